//! The fingerprint of a request, which distinguishes a retry from another request under the same key (G9).
//!
//! `v1:` and the SHA-256, in hex, of the canonical JSON of method, path, query and the *typed*
//! parameters. Two requests are the same exactly when the handler would see the same values: the
//! order of members, white space, escapes, fields that the type does not know and the encoding of
//! the body are gone once the parameters are typed; everything else counts. `1` and `1.0` are one
//! value to a float field and two to a `serde_json::Value`.
//!
//! A row keeps the fingerprint with which it was created. If it differs from a caller's, the type may have
//! gained a field since then: the engine decodes the stored parameters as the caller's type and computes
//! their fingerprint again.
//!
//! `v1` is stored in rows, and its form never changes. Another form, for example a keyed one, is another
//! `FingerprintVersion`. This module never reads a request's body, and never reads or writes a row.

mod canonical;
mod error;
mod map_key;
mod scalars;
mod unfingerprinted;

use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::key::hex;

pub(crate) use error::Step;
pub use error::{FingerprintError, FingerprintRule};
pub(crate) use unfingerprinted::NAME as UNFINGERPRINTED;
pub use unfingerprinted::Unfingerprinted;

/// Where a request was sent: the part of the fingerprint besides the parameters.
///
/// Compared as text, byte by byte: `POST` and `post`, `/a` and `/a/`, `x=1&y=2` and `y=2&x=1` are different.
/// The default is the origin of a request that did not come over HTTP.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestOrigin {
    /// The method: `POST`.
    pub method: String,
    /// The path as sent, with its percent-encoding: `/accounts/17/rides`.
    pub path: String,
    /// What follows the `?`, if there is one. `Some("")` and `None` are different.
    pub query: Option<String>,
}

impl RequestOrigin {
    /// An origin with this method, path and query.
    pub fn new(method: impl Into<String>, path: impl Into<String>, query: Option<&str>) -> Self {
        Self { method: method.into(), path: path.into(), query: query.map(str::to_owned) }
    }
}

/// The method only: paths and queries hold ids and worse (G19).
impl fmt::Debug for RequestOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestOrigin").field("method", &self.method).finish_non_exhaustive()
    }
}

/// A form of the fingerprint. Each row says by its prefix which one it was written with, and is
/// compared in that one for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FingerprintVersion {
    /// SHA-256 over the canonical form of this module.
    V1,
}

impl FingerprintVersion {
    /// What new rows are written with.
    pub(crate) const CURRENT: Self = Self::V1;
}

/// What a row stores: a fingerprint, and behind a `.` the [mark](origin_mark) of the request's origin.
///
/// By the mark a request with another origin is told apart even where the fingerprint was taken with a
/// parameter type that has changed since.
#[derive(Clone, Copy)]
pub(crate) struct StoredFingerprint<'r> {
    pub(crate) version: FingerprintVersion,
    /// The fingerprint alone, which derived keys are made of.
    pub(crate) fingerprint: &'r str,
    origin: Option<&'r str>,
}

impl<'r> StoredFingerprint<'r> {
    /// `None` where a newer process wrote it, or none did (G14).
    pub(crate) fn parse(stored: &'r str) -> Option<Self> {
        let (fingerprint, behind) = stored.split_at_checked(V1.len() + V1_DIGITS)?;
        let digest = fingerprint.strip_prefix(V1)?;
        let origin = match behind {
            "" => None,
            _ => Some(behind.strip_prefix('.').filter(|mark| mark.len() == MARK_DIGITS)?),
        };
        let is_known = is_hex(digest) && origin.is_none_or(is_hex);
        is_known.then_some(Self { version: FingerprintVersion::V1, fingerprint, origin })
    }

    /// Whether the row's request came by `origin`.
    pub(crate) fn came_by(&self, origin: &RequestOrigin) -> bool {
        self.origin.is_some_and(|mark| mark == origin_mark(self.fingerprint, origin))
    }
}

/// What a fingerprint in this form begins with, and how many digits follow.
const V1: &str = "v1:";
const V1_DIGITS: usize = 64;

const MARK_DIGITS: usize = 16;

fn is_hex(text: &str) -> bool {
    // Without a branch for each byte.
    text.bytes().fold(true, |so_far, byte| so_far & byte.is_ascii_hexdigit())
}

/// The mark of an origin. It is salted with the fingerprint, so that rows cannot be grouped by it.
fn origin_mark(fingerprint: &str, origin: &RequestOrigin) -> String {
    let query = origin.query.as_deref();
    let mut hash = Sha256::new();
    for field in [Some(fingerprint), Some(&origin.method), Some(&origin.path), query] {
        let length = field.map_or(u64::MAX, |field| field.len() as u64);
        hash.update(length.to_be_bytes());
        hash.update(field.unwrap_or_default());
    }
    hex(&hash.finalize()[..MARK_DIGITS / 2])
}

/// `v1:` and 64 lower-case hex digits.
#[derive(Clone)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text that a row stores; see [`StoredFingerprint`].
    pub(crate) fn stored(&self, origin: &RequestOrigin) -> String {
        [&*self.0, ".", &origin_mark(&self.0, origin)].concat()
    }

    /// Whether a row's fingerprint is this one. Takes the same time for every stored text of its length, so
    /// that timing does not reveal its first characters.
    #[must_use]
    pub fn matches(&self, stored: &str) -> bool {
        let (own, stored) = (self.0.as_bytes(), stored.as_bytes());
        let differences = own.iter().zip(stored).fold(0, |seen, (a, b)| seen | (a ^ b));
        // The whole of it is needed, and so no part is left out.
        own.len() == stored.len() && std::hint::black_box(differences) == 0
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }
}

impl Eq for Fingerprint {}

/// The first eight digits: with all 64, a request with few possible values could be guessed.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({}…)", self.0.get(..11).unwrap_or_default())
    }
}

/// The fingerprint of a request, in the form that new rows are written with.
///
/// The engine computes it for each call. Use this function to find out whether two requests are the same.
///
/// ```
/// use atomic_phases::fingerprint::{RequestOrigin, fingerprint};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct CreateRide { user_id: i64, distance: f64 }
///
/// let origin = RequestOrigin::new("POST", "/rides", None);
/// let first: CreateRide = serde_json::from_str(r#"{"user_id": 1, "distance": 1.0}"#)?;
/// let retry: CreateRide = serde_json::from_str(r#"{"distance":1,"user_id":1}"#)?;
/// assert_eq!(fingerprint(&origin, &first)?, fingerprint(&origin, &retry)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FingerprintError`] names the field and the rule if the parameters have no canonical form.
pub fn fingerprint<T: Serialize + ?Sized>(
    origin: &RequestOrigin,
    parameters: &T,
) -> Result<Fingerprint, FingerprintError> {
    fingerprint_in(FingerprintVersion::CURRENT, origin, parameters)
}

/// The fingerprint in the form that a row was written with.
pub(crate) fn fingerprint_in<T: Serialize + ?Sized>(
    version: FingerprintVersion,
    origin: &RequestOrigin,
    parameters: &T,
) -> Result<Fingerprint, FingerprintError> {
    match version {
        FingerprintVersion::V1 => {
            let preimage = preimage(origin, parameters)?;
            Ok(Fingerprint([V1, &hex(&Sha256::digest(&preimage))].concat()))
        }
    }
}

/// The canonical JSON of `{"method", "params", "path", "query"}`. The parameters are written by
/// themselves, so that an error's path and the depth count from them.
fn preimage<T: Serialize + ?Sized>(
    origin: &RequestOrigin,
    parameters: &T,
) -> Result<Vec<u8>, FingerprintError> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(br#"{"method":"#);
    scalars::write_string(&mut out, &origin.method);
    out.extend_from_slice(br#","params":"#);
    canonical::write(&mut out, parameters)?;
    out.extend_from_slice(br#","path":"#);
    scalars::write_string(&mut out, &origin.path);
    out.extend_from_slice(br#","query":"#);
    canonical::write(&mut out, &origin.query)?;
    out.push(b'}');
    Ok(out)
}

/// Where a value has no JSON form because of the key of a map.
pub(crate) fn bad_map_key<T: Serialize + ?Sized>(value: &T) -> Option<Vec<Step>> {
    let error = canonical::write(&mut Vec::new(), value).err()?;
    (error.rule() == FingerprintRule::MapKey).then(|| error.into_path())
}

#[cfg(test)]
mod tests;
