//! [`Unfingerprinted`]: a field that is no part of what makes two requests the same.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// By this name the canonical form knows the wrapper. Every other format sees a plain newtype, which
/// serde formats write as their content.
pub(super) const MARK: &str = "$atomic_phases::Unfingerprinted";

/// A field of a request's parameters that its fingerprint leaves out, name and value: a client's
/// clock, a tracing id, a debug switch. It is stored, and phases see it as the first attempt gave it.
///
/// For an optional field write `Unfingerprinted<Option<T>>`.
///
/// ```
/// # use atomic_phases::{Fingerprint, RequestOrigin, Unfingerprinted};
/// #[derive(serde::Serialize)]
/// struct Order { item: u32, sent_at: Unfingerprinted<u64> }
///
/// let origin = RequestOrigin::default();
/// let first = Fingerprint::of(&origin, &Order { item: 7, sent_at: Unfingerprinted(100) })?;
/// let retry = Fingerprint::of(&origin, &Order { item: 7, sent_at: Unfingerprinted(250) })?;
/// assert_eq!(first, retry);
/// # Ok::<(), atomic_phases::FingerprintError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unfingerprinted<T>(pub T);

impl<T> std::ops::Deref for Unfingerprinted<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Unfingerprinted<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T: Serialize> Serialize for Unfingerprinted<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(MARK, &self.0)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unfingerprinted<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}
