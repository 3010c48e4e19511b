//! [`Unfingerprinted`]: a field that is not part of the fingerprint.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The newtype name by which the canonical form recognizes the wrapper.
pub(crate) const NAME: &str = "$atomic_phases::private::Unfingerprinted";

/// A field that may differ between a request and its retry: a client's timestamp, a trace id. The
/// canonical form leaves the member out, name and value.
///
/// Phases still see it, with the value of the *first* request. Do not derive anything from it that must
/// differ in a retry.
///
/// To serde it is a newtype struct around `T`, which JSON, forms, CBOR, MessagePack and postcard
/// all write as `T` alone (RON, which writes the parentheses, is the exception). An optional field
/// is `Unfingerprinted<Option<T>>`; it may be absent from a body, just like an `Option<T>`.
///
/// Only a member can be omitted. As an element of a list, inside an `Option`, as the content of an enum
/// variant or as the parameters as a whole it is an error
/// ([`FingerprintRule::NotAMember`](crate::fingerprint::FingerprintRule::NotAMember)). In a map, an entry
/// with such a value is omitted, including its key. Do not `#[serde(flatten)]` it: serde then removes the
/// wrapper first, and its fields count. Wrap the fields inside instead.
///
/// ```
/// use atomic_phases::fingerprint::{RequestOrigin, Unfingerprinted, fingerprint};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Payment {
///     amount: u64,
///     sent_at: Unfingerprinted<Option<String>>,
/// }
///
/// let origin = RequestOrigin::new("POST", "/payments", None);
/// let first: Payment = serde_json::from_str(r#"{"amount":5,"sent_at":"10:00"}"#)?;
/// let retry: Payment = serde_json::from_str(r#"{"amount":5}"#)?;
/// assert_eq!(fingerprint(&origin, &first)?, fingerprint(&origin, &retry)?);
/// assert_eq!(serde_json::to_string(&first)?, r#"{"amount":5,"sent_at":"10:00"}"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unfingerprinted<T>(pub T);

impl<T: Serialize> Serialize for Unfingerprinted<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(NAME, &self.0)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unfingerprinted<T> {
    /// Straight to `T`, not through a newtype visitor: only so does serde give an absent
    /// `Unfingerprinted<Option<_>>` its `None`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}

impl<T> From<T> for Unfingerprinted<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Unfingerprinted<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Unfingerprinted<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// As `T` shows itself: a `T` that hides its value stays hidden.
impl<T: fmt::Debug> fmt::Debug for Unfingerprinted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
