//! [`DerivedKey`] and [`DerivedKeys`]: how the idempotency key for a foreign system is derived.
//!
//! From the request itself, never from randomness, time or the attempt: after a retry, a takeover or the restore of
//! an old backup, the derived key is the same, and the provider recognizes it (G1).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};

/// The form of the preimage; its first field. Another form has another text here.
const VERSION: &[u8] = b"v1";

/// 24 bytes are the 32 characters of a derived key.
const KEPT_BYTES: usize = 24;

/// How many bytes of a hash tell one way of making derived keys from another.
const MARK_BYTES: usize = 6;

/// The idempotency key for the foreign system: 32 characters of `[A-Za-z0-9_-]`.
///
/// It is derived, not random, and the same in each attempt: after a retry, a takeover or the restore of
/// an old backup, the same key is sent, so that the provider recognizes the repetition (G1).
#[derive(Clone)]
pub struct DerivedKey {
    text: String,
    /// Whether anything has read it.
    is_read: Arc<AtomicBool>,
}

impl DerivedKey {
    pub(crate) fn new(text: String) -> Self {
        Self { text, is_read: Arc::default() }
    }

    /// The same key, which nothing has read, and where it is told that something has.
    pub(crate) fn unread(self) -> (Self, Arc<AtomicBool>) {
        let key = Self::new(self.text);
        let is_read = key.is_read.clone();
        (key, is_read)
    }

    /// The key's text, for the provider's idempotency header.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.is_read.store(true, Ordering::Relaxed);
        &self.text
    }
}

impl PartialEq for DerivedKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for DerivedKey {}

impl AsRef<str> for DerivedKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedKey(…)")
    }
}

/// An application that calls a foreign system is that system's client: to the client half, the derived key is an
/// ordinary idempotency key ([`client::KeyedCall`](crate::client::KeyedCall)).
impl From<DerivedKey> for IdempotencyKey {
    fn from(key: DerivedKey) -> Self {
        Self::made_here(key.as_str().to_owned())
    }
}

/// How derived keys are computed: the first 32 characters of
/// `base64url(SHA-256(version, scope, key, definition, phase, fingerprint))`, each field preceded
/// by its length.
///
/// Without a secret, two environments derive the same key from the same request: if staging and production share a provider
/// account, the second gets the charge of the first. Give each its own secret, or its own account.
///
/// # To replace a secret
/// The secret and the salt change every derived key. A call made with one key and repeated
/// with another charges twice, so a mark in each row identifies the secret of its calls, without revealing
/// it. A row whose call may have been made continues with that secret, if
/// this process has it. Otherwise the row is left alone and reported
/// ([`StrandedBecause::DerivedKeysChanged`](crate::engine::StrandedBecause)).
///
/// ```
/// use atomic_phases::config::DerivedKeys;
///
/// # fn example() -> Result<(), atomic_phases::config::SecretTooShort> {
/// let old = DerivedKeys::plain().with_secret("32 bytes from your secret store.")?;
/// let new = DerivedKeys::plain().with_secret("another 32 bytes from that store")?;
/// // In three deployments: first each node gets the new secret …
/// let keys = old.clone().also_continue(new.clone());
/// // … then new calls use it …
/// let keys = new.clone().also_continue(old);
/// // … and when `Engine::check` finds no rows of the old secret any more, remove the old one.
/// let keys = new;
/// # Ok(()) }
/// # example().unwrap();
/// ```
///
/// From the second of these deployments on, a key used again after its retention is another request to the provider,
/// as if it were [salted](Self::salted_by_request).
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
    current: Arc<Derivation>,
    also: Vec<Arc<Derivation>>,
}

/// One way of making derived keys.
#[derive(Clone, Default)]
pub(crate) struct Derivation {
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
#[non_exhaustive]
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
        let current = Derivation { secret: Some(secret), salt: self.current.salt };
        Ok(Self { current: Arc::new(current), ..self })
    }

    /// Adds the row's id: a key used again after it expired is a new request to the provider too, and is
    /// charged again. The cost: a restored backup or a failover may lose rows and with them these ids, and G1
    /// does not hold for those requests.
    #[must_use]
    pub fn salted_by_request(self) -> Self {
        let secret = self.current.secret.clone();
        let current = Derivation { secret, salt: Salt::RequestId };
        Self { current: Arc::new(current), ..self }
    }

    /// Adds `other`, which is used only for rows whose call may have been made with it. All other calls use
    /// the keys of `self`.
    #[must_use]
    pub fn also_continue(mut self, other: Self) -> Self {
        self.also.push(other.current);
        self.also.extend(other.also);
        self
    }

    /// Under which new calls are made.
    pub(crate) fn current(&self) -> &Arc<Derivation> {
        &self.current
    }

    /// That of this [mark](Derivation::mark), if this process has it.
    pub(crate) fn marked(&self, mark: Option<&str>) -> Option<&Arc<Derivation>> {
        let mut known = std::iter::once(&self.current).chain(&self.also);
        known.find(|derivation| derivation.mark().as_deref() == mark)
    }
}

impl Derivation {
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

    /// Tells secret and salt from others, and reveals nothing about the secret;
    /// `None` where there is neither. Two secrets have one mark by a chance of 2^-48. No derived key has its
    /// preimage: those begin with a version.
    pub(crate) fn mark(&self) -> Option<String> {
        let salt: &[u8] = match self.salt {
            Salt::None if self.secret.is_none() => return None,
            Salt::None => b"unsalted",
            Salt::RequestId => b"request id",
        };
        let hash = self.hash(&preimage(&[b"mark", salt]));
        Some(URL_SAFE_NO_PAD.encode(&hash[..MARK_BYTES]))
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
    let length = fields.iter().map(|field| size_of::<u64>() + field.len()).sum();
    let mut preimage = Vec::with_capacity(length);
    for field in fields {
        preimage.extend_from_slice(&(field.len() as u64).to_be_bytes());
        preimage.extend_from_slice(field);
    }
    preimage
}

/// Whether there is a secret, never which.
impl fmt::Debug for DerivedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DerivedKeys");
        shown.field("secret", &self.current.secret.is_some());
        shown.field("salted_by_request", &(self.current.salt == Salt::RequestId));
        if !self.also.is_empty() {
            shown.field("also_continues", &self.also.len());
        }
        shown.finish()
    }
}

#[cfg(test)]
mod tests;
