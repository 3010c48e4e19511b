//! [`IdempotencyKey`] and [`Scope`]: newtypes that cannot hold an invalid value.
//!
//! Neither prints its content: `Debug` shows the first eight hex digits of its SHA-256, which is
//! enough to follow one key through a log and not enough to use it (G19).

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// Maximum length of an idempotency key and of a scope, in bytes. 255 is the limit of the Stripe API, which
/// clients already respect.
pub const MAX_KEY_LENGTH: usize = 255;

/// The prefix of the keys that the HTTP boundary generates for requests without one. Such keys do not count
/// against [`Quota::keys`](crate::config::Quota::keys), so the engine takes them from the boundary only. The
/// stores' statements repeat this text, because they count the keys before and after it.
pub(crate) const KEYLESS: &str = "~keyless:";

/// The opaque string by which a client names one logical request: 1 to 255 visible ASCII
/// characters (`!` to `~`), compared byte by byte.
///
/// ```
/// use atomic_phases::IdempotencyKey;
///
/// let key: IdempotencyKey = "8e03978e-40d5-43dd-bc93-6894a57f9324".parse()?;
/// assert_eq!(key.as_str().len(), 36);
/// assert!("two words".parse::<IdempotencyKey>().is_err());
/// # Ok::<(), atomic_phases::key::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

/// The owner of a key: a tenant, an account, a user. Two scopes never see each other's keys (G16).
///
/// 1 to 255 bytes of text without control characters. Take it from the authenticated caller, never
/// from the request body.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

/// Why a string is not an [`IdempotencyKey`] or a [`Scope`]. The error never contains the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The string is empty.
    #[error("the {what} is empty; send 1 to {MAX_KEY_LENGTH} characters")]
    Empty {
        /// `"idempotency key"` or `"scope"`.
        what: &'static str,
    },
    /// The string is longer than [`MAX_KEY_LENGTH`].
    #[error("the {what} has {length} bytes; the limit is {MAX_KEY_LENGTH}: use a shorter one")]
    TooLong {
        /// `"idempotency key"` or `"scope"`.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// A character that is not allowed.
    #[error("the {what} has a character at byte {at} that is not {allowed}: leave it out")]
    Character {
        /// `"idempotency key"` or `"scope"`.
        what: &'static str,
        /// Byte offset of the first such character.
        at: usize,
        /// What is allowed, in words.
        allowed: &'static str,
    },
}

impl IdempotencyKey {
    /// Checks and wraps `key`. One that begins with `~keyless:`, as the HTTP boundary's own do, can be looked up, but not
    /// [called with](crate::engine::CallError::ReservedKey).
    ///
    /// # Errors
    /// [`InvalidKey`] says which rule the string breaks.
    pub fn new(key: impl Into<String>) -> Result<Self, InvalidKey> {
        const WHAT: &str = "idempotency key";
        let key = checked_length(key.into(), WHAT)?;
        match key.bytes().position(|byte| !byte.is_ascii_graphic()) {
            None => Ok(Self(key.into())),
            Some(at) => {
                Err(InvalidKey::Character { what: WHAT, at, allowed: "visible ASCII ('!' to '~')" })
            }
        }
    }

    /// A new key for a new logical request: a version 4 UUID. The first call with it may
    /// [say so](crate::engine::Call::expect_new).
    #[must_use]
    pub fn random() -> Self {
        Self::made_here(crate::chance::uuid().to_string())
    }

    /// The key of a request that came without one: new, and never revealed.
    #[cfg(feature = "http")]
    pub(crate) fn keyless() -> Self {
        Self::made_here(format!("{KEYLESS}{}", crate::chance::uuid()))
    }

    /// Whether it is, or looks like, [one of the boundary's own](Self::keyless).
    pub(crate) fn is_keyless(&self) -> bool {
        self.0.starts_with(KEYLESS)
    }

    /// A key that is valid by how this crate made it.
    pub(crate) fn made_here(key: String) -> Self {
        Self(key.into())
    }

    /// The key as the client sent it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Scope {
    /// Checks and wraps `scope`.
    ///
    /// # Errors
    /// [`InvalidKey`] says which rule the string breaks.
    pub fn new(scope: impl Into<String>) -> Result<Self, InvalidKey> {
        const WHAT: &str = "scope";
        let scope = checked_length(scope.into(), WHAT)?;
        match scope.char_indices().find(|(_, c)| c.is_control()) {
            None => Ok(Self(scope.into())),
            Some((at, _)) => {
                Err(InvalidKey::Character { what: WHAT, at, allowed: "printable text" })
            }
        }
    }

    /// The scope of an application that has no tenants. An explicit choice: with it, all callers
    /// share one namespace of keys. Its text is `-`, also in the column `scope`.
    #[must_use]
    pub fn single_tenant() -> Self {
        Self("-".into())
    }

    /// The scope's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn checked_length(text: String, what: &'static str) -> Result<String, InvalidKey> {
    match text.len() {
        0 => Err(InvalidKey::Empty { what }),
        length if length > MAX_KEY_LENGTH => Err(InvalidKey::TooLong { what, length }),
        _ => Ok(text),
    }
}

impl std::str::FromStr for IdempotencyKey {
    type Err = InvalidKey;
    fn from_str(key: &str) -> Result<Self, InvalidKey> {
        Self::new(key)
    }
}

impl std::str::FromStr for Scope {
    type Err = InvalidKey;
    fn from_str(scope: &str) -> Result<Self, InvalidKey> {
        Self::new(scope)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey(#{})", ShortHash(&self.0))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope(#{})", ShortHash(&self.0))
    }
}

/// The first eight hex digits of the text's SHA-256: how a key appears in logs. Computed only when it is
/// printed, which is rare.
pub(crate) struct ShortHash<'a>(pub(crate) &'a str);

impl fmt::Display for ShortHash<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&Sha256::digest(self.0.as_bytes())[..4]))
    }
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |digit: u8| DIGITS[usize::from(digit)];
    let mut digits = vec![0; 2 * bytes.len()];
    // As arrays: a pair whose length is not known to the compiler is copied by a call.
    let (pairs, _) = digits.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(bytes) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
    String::from_utf8(digits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_1_to_255_visible_ascii_characters() {
        for good in ["a", "!", "~", "8e03978e-40d5", &"x".repeat(255)] {
            assert_eq!(IdempotencyKey::new(good).unwrap().as_str(), good);
        }
        assert_eq!(IdempotencyKey::new(""), Err(InvalidKey::Empty { what: "idempotency key" }));
        assert_eq!(
            IdempotencyKey::new("x".repeat(256)),
            Err(InvalidKey::TooLong { what: "idempotency key", length: 256 })
        );
        for bad in [" ", "a b", "a\n", "a\0", "é", "\u{7f}", "a\tb"] {
            assert!(matches!(IdempotencyKey::new(bad), Err(InvalidKey::Character { .. })));
        }
    }

    #[test]
    fn a_scope_may_hold_any_printable_text() {
        assert!(Scope::new("Müller & Söhne: a b").is_ok());
        assert!(matches!(Scope::new("a\0b"), Err(InvalidKey::Character { at: 1, .. })));
        assert!(Scope::new("").is_err());
    }

    #[test]
    fn g19_debug_shows_a_hash_and_never_the_text() {
        let shown = format!(
            "{:?} {:?}",
            IdempotencyKey::new("canary").unwrap(),
            Scope::new("canary").unwrap()
        );
        assert!(!shown.contains("canary"), "{shown}");
        assert!(shown.contains('#'), "{shown}");
        let error = IdempotencyKey::new("canary with spaces").unwrap_err();
        assert!(!error.to_string().contains("canary"));
    }
}
