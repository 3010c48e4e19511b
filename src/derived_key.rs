//! [`DerivedKeys`]: how the idempotency key for a foreign system is derived.
//!
//! From what the request *is*, never from chance, time or the attempt: a retry, a takeover and a
//! database restored from yesterday derive the same key, and the provider recognises it (G1).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};
use crate::phase::DerivedKey;

/// The form of the preimage; its first field. Another form has another text here.
const VERSION: &[u8] = b"v1";

/// 24 bytes are the 32 characters of a derived key.
const KEPT_BYTES: usize = 24;

/// How derived keys are made: the first 32 characters of
/// `base64url(SHA-256(version, scope, key, definition, phase, fingerprint))`, each field preceded
/// by its length.
///
/// # Never change it while requests are open
/// Each of the two options changes every derived key. A row that called its provider under one
/// key and resumes under another charges twice. All processes on one database share one
/// configuration; change it when no row is unfinished, or along with the definition's name.
///
/// ```
/// use atomic_phases::config::DerivedKeys;
///
/// let keys = DerivedKeys::plain().with_secret("32 bytes from your secret store.")?;
/// assert_eq!(format!("{keys:?}"), "DerivedKeys { secret: true, salted_by_request: false }");
/// # Ok::<(), atomic_phases::config::SecretTooShort>(())
/// ```
#[derive(Clone, Default)]
pub struct DerivedKeys {
    secret: Option<Hmac<Sha256>>,
    salt: Salt,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Salt {
    #[default]
    None,
    RequestId,
}

/// A secret of less than [`DerivedKeys::MIN_SECRET`] bytes, which could be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret of the derived keys has {length} bytes; use at least {}, from a random source",
    DerivedKeys::MIN_SECRET
)]
pub struct SecretTooShort {
    /// Its length in bytes.
    pub length: usize,
}

impl DerivedKeys {
    /// Shortest secret, in bytes.
    pub const MIN_SECRET: usize = 16;

    /// SHA-256 without a secret: the default.
    #[must_use]
    pub fn plain() -> Self {
        Self::default()
    }

    /// HMAC-SHA-256 under `secret` instead: the provider, who sees derived keys, cannot test
    /// guesses about the scope, the client's key and the parameters that went into them.
    ///
    /// # Errors
    /// [`SecretTooShort`] for less than [`MIN_SECRET`](Self::MIN_SECRET) bytes.
    pub fn with_secret(self, secret: impl AsRef<[u8]>) -> Result<Self, SecretTooShort> {
        let secret = secret.as_ref();
        let too_short = SecretTooShort { length: secret.len() };
        if secret.len() < Self::MIN_SECRET {
            return Err(too_short);
        }
        // HMAC takes a key of any length; its type says otherwise.
        let secret = Hmac::new_from_slice(secret).map_err(|_| too_short)?;
        Ok(Self { secret: Some(secret), ..self })
    }

    /// Adds the row's id: a key that is used again after it expired is a new request to the
    /// provider too, and is charged anew. The price: a database restored from a backup has lost
    /// the ids of the rows since, and G1 does not hold for those.
    #[must_use]
    pub fn salted_by_request(self) -> Self {
        Self { salt: Salt::RequestId, ..self }
    }

    /// The derived key of one foreign phase of one request.
    pub(crate) fn derive(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        definition: &str,
        phase: &str,
        fingerprint: &str,
        request_id: Uuid,
    ) -> DerivedKey {
        let mut fields = vec![
            VERSION,
            scope.as_str().as_bytes(),
            key.as_str().as_bytes(),
            definition.as_bytes(),
            phase.as_bytes(),
            fingerprint.as_bytes(),
        ];
        if self.salt == Salt::RequestId {
            fields.push(request_id.as_bytes());
        }
        let hash = self.hash(&preimage(&fields));
        DerivedKey::new(URL_SAFE_NO_PAD.encode(&hash[..KEPT_BYTES]))
    }

    fn hash(&self, preimage: &[u8]) -> [u8; 32] {
        match &self.secret {
            None => Sha256::digest(preimage).into(),
            Some(secret) => secret.clone().chain_update(preimage).finalize().into_bytes().into(),
        }
    }
}

/// Each field after its length in bytes, as eight bytes, the highest first: no two lists of fields
/// have one preimage, whatever bytes they hold.
fn preimage(fields: &[&[u8]]) -> Vec<u8> {
    let mut preimage = Vec::new();
    for field in fields {
        preimage.extend_from_slice(&(field.len() as u64).to_be_bytes());
        preimage.extend_from_slice(field);
    }
    preimage
}

/// Whether there is a secret, never which.
impl fmt::Debug for DerivedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DerivedKeys")
            .field("secret", &self.secret.is_some())
            .field("salted_by_request", &(self.salt == Salt::RequestId))
            .finish()
    }
}

#[cfg(test)]
mod tests;
