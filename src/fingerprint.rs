//! The fingerprint of a request: how a retry is told from another request under the same key (G9).
//!
//! `v1:` and the SHA-256, in hex, of the canonical JSON of method, path, query and the *typed*
//! parameters. Two requests are the same exactly when the handler would see the same values: the
//! order of members, white space, escapes, fields that the type does not know and the encoding of
//! the body are gone once the parameters are typed; everything else counts. `1` and `1.0` are one
//! value to a float field and two to a `serde_json::Value`.
//!
//! `v1` is stored in rows: its form never changes. A different form, a keyed one say, is another
//! [`FingerprintVersion`]. This module never sees a body, and never reads or writes a row.

mod canonical;
mod compound;
mod error;
mod map_key;
mod scalars;
mod unfingerprinted;

use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::key::hex;

pub use error::{FingerprintError, FingerprintRule};
pub use unfingerprinted::Unfingerprinted;

/// Where a request was sent: the part of the fingerprint besides the parameters.
///
/// Taken as text, byte by byte: `POST` and `post`, `/a` and `/a/`, `x=1&y=2` and `y=2&x=1` are
/// different. The default is the origin of a request that did not come over HTTP.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RequestOrigin {
    /// The method: `POST`.
    pub method: String,
    /// The path as sent, with its percent-encoding: `/accounts/17/rides`.
    pub path: String,
    /// What follows the `?`, if there is one. `Some("")` and `None` are different.
    pub query: Option<String>,
}

impl RequestOrigin {
    /// An origin of these three.
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

    /// The version of a stored fingerprint; `None` where a newer process wrote it, or nobody (G14).
    pub(crate) fn of(stored: &str) -> Option<Self> {
        let (version, digest) = stored.split_once(':')?;
        let is_sha256 = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        (version == "v1" && is_sha256).then_some(Self::V1)
    }
}

/// `v1:` and 64 lower-case hex digits.
#[derive(Clone)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The text that a row stores.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a row's fingerprint is this one. Takes equally long for every stored text, so that
    /// nobody learns a stored fingerprint by its beginning.
    #[must_use]
    pub fn matches(&self, stored: &str) -> bool {
        let (own, stored) = (self.0.as_bytes(), stored.as_bytes());
        let differences = own
            .iter()
            .zip(stored.iter().chain(std::iter::repeat(&0)))
            .fold(u8::from(own.len() != stored.len()), |seen, (a, b)| {
                std::hint::black_box(seen | (a ^ b))
            });
        differences == 0
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
/// The engine does this by itself; it is here for those who want to know beforehand whether two
/// requests are the same.
///
/// ```
/// use atomic_phases::{RequestOrigin, fingerprint};
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
/// [`FingerprintError`] names the field and the rule where the parameters have no canonical form.
pub fn fingerprint<T: Serialize + ?Sized>(
    origin: &RequestOrigin,
    parameters: &T,
) -> Result<Fingerprint, FingerprintError> {
    fingerprint_in(FingerprintVersion::CURRENT, origin, parameters)
}

/// The fingerprint in the form that `stored` was written with; `None` where this process does not
/// know that form and has to leave the row to one that does (G14).
pub(crate) fn fingerprint_like<T: Serialize + ?Sized>(
    stored: &str,
    origin: &RequestOrigin,
    parameters: &T,
) -> Result<Option<Fingerprint>, FingerprintError> {
    FingerprintVersion::of(stored)
        .map(|version| fingerprint_in(version, origin, parameters))
        .transpose()
}

fn fingerprint_in<T: Serialize + ?Sized>(
    version: FingerprintVersion,
    origin: &RequestOrigin,
    parameters: &T,
) -> Result<Fingerprint, FingerprintError> {
    match version {
        FingerprintVersion::V1 => {
            let preimage = preimage(origin, parameters)?;
            Ok(Fingerprint(format!("v1:{}", hex(&Sha256::digest(&preimage)))))
        }
    }
}

/// The canonical JSON of `{"method", "params", "path", "query"}`. The parameters are written by
/// themselves, so that an error's path and the depth count from them.
fn preimage<T: Serialize + ?Sized>(
    origin: &RequestOrigin,
    parameters: &T,
) -> Result<Vec<u8>, FingerprintError> {
    let mut out = br#"{"method":"#.to_vec();
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

#[cfg(test)]
mod tests;
