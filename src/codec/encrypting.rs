//! [`EncryptingCodec`]: XChaCha20-Poly1305 over everything that a user gave, with the value's place as
//! associated data, and a number for the key, so that keys can be replaced.
//!
//! A stored value is `A9 'a' 'p' 01`, the key's number (4 bytes, big-endian), a random nonce (24 bytes), and
//! the ciphertext with its tag (16 bytes). A9 begins no UTF-8 text, and so no JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::{Codec, CodecError, Place};
use crate::setting::SettingError;

/// Why a value is not decrypted whose key this process does not have.
const NO_KEY: &str = "this process does not have its key: add it by `also_read`";

/// Tells an encrypted value, and the form that it has.
const FORM: [u8; 4] = [0xa9, b'a', b'p', 1];
const KEY_ID: usize = 4;
const NONCE: usize = 24;
const HEAD: usize = FORM.len() + KEY_ID + NONCE;
/// What Poly1305 adds behind a text.
const TAG: usize = 16;

/// Encrypts what is stored, and authenticates it together with the row and column that it is in.
///
/// Takes 256-bit keys, each with a number of your own that is stored with each value. Make a key with a
/// cryptographic random number generator (`openssl rand 32`), keep it where the database's backups are
/// not, and never give its number to another one.
///
/// ```
/// use atomic_phases::codec::EncryptingCodec;
///
/// # let (old, new) = ([1; 32], [2; 32]);
/// let codec = EncryptingCodec::new(1, &old);
/// // To replace it, in three deployments: first each node learns to read the new key …
/// let codec = EncryptingCodec::new(1, &old).also_read(2, &new)?;
/// // … then to write with it …
/// let codec = EncryptingCodec::new(2, &new).also_read(1, &old)?;
/// // … and after a retention, when nothing is stored under the old one any more, it goes.
/// let codec = EncryptingCodec::new(2, &new);
/// # Ok::<(), atomic_phases::config::SettingError>(())
/// ```
///
/// What is open for longer than the retention (an unknown outcome, a dead letter, a staged job that gave up)
/// keeps the key that it was written with; [`Engine::check`](crate::Engine::check) reports what this process
/// cannot read.
///
/// Not hidden: scopes, idempotency keys, names of definitions and phases, fingerprints (which are SHA-256 over
/// the parameters: who can guess all of them can tell that a guess is right), reasons, times, sizes. Not found out:
/// a row, or a value, that is put back to an earlier state of its own.
pub struct EncryptingCodec {
    current: u32,
    keys: BTreeMap<u32, XChaCha20Poly1305>,
    reads_plain: bool,
}

impl EncryptingCodec {
    /// Encrypts with this key, and reads what was encrypted with it.
    #[must_use]
    pub fn new(id: u32, key: &[u8; 32]) -> Self {
        let keys = BTreeMap::from([(id, XChaCha20Poly1305::new(key.into()))]);
        Self { current: id, keys, reads_plain: false }
    }

    /// Reads what was encrypted with this key, too.
    ///
    /// # Errors
    /// [`SettingError`] if another key has this number: what was encrypted with one of them could not be read.
    pub fn also_read(mut self, id: u32, key: &[u8; 32]) -> Result<Self, SettingError> {
        if self.keys.insert(id, XChaCha20Poly1305::new(key.into())).is_none() {
            return Ok(self);
        }
        let (value, bound) = (id.to_string(), "the number of no other key".to_owned());
        Err(SettingError { setting: "EncryptingCodec::also_read (id)", value, bound })
    }

    /// Reads what was stored before there was encryption. For the first retention only: as long as it is
    /// on, who can write to the database can put a value of their own in place of an encrypted one.
    #[must_use]
    pub fn also_read_plain(self) -> Self {
        Self { reads_plain: true, ..self }
    }
}

/// The place, so that no two places are the same bytes.
fn associated_data(head: &[u8], place: Place<'_>) -> Vec<u8> {
    let parts = [place.scope.as_str(), place.key.as_str(), place.column].map(str::as_bytes);
    let mut data = head.to_vec();
    // A key has many jobs, each of which is a row of its own.
    let job = place.job.as_ref().map(|job| job.as_bytes().as_slice());
    for part in parts.into_iter().chain(job) {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part);
    }
    data
}

impl Codec for EncryptingCodec {
    fn encode<'v>(
        &self,
        place: Place<'_>,
        plain: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        let cipher = self.keys.get(&self.current).ok_or(CodecError("there is no current key"))?;
        let nonce = XNonce::try_generate().map_err(|_| CodecError("no random numbers"))?;
        let mut stored = Vec::with_capacity(HEAD + plain.len() + TAG);
        stored.extend_from_slice(&FORM);
        stored.extend_from_slice(&self.current.to_be_bytes());
        let aad = associated_data(&stored, place);
        stored.extend_from_slice(&nonce);
        let sealed = cipher
            .encrypt(&nonce, Payload { msg: &plain, aad: &aad })
            .map_err(|_| CodecError("the value is too long to be encrypted"))?;
        stored.extend_from_slice(&sealed);
        Ok(Cow::Owned(stored))
    }

    fn decode<'v>(
        &self,
        place: Place<'_>,
        stored: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        if !stored.starts_with(&FORM) {
            return match self.reads_plain {
                true => Ok(stored),
                false => Err(CodecError("it is not encrypted: `also_read_plain` reads it")),
            };
        }
        let (head, sealed) = stored.split_at_checked(HEAD).ok_or(CodecError("it was cut off"))?;
        let (head, nonce) = head.split_at(HEAD - NONCE);
        let id = head[FORM.len()..].try_into().map(u32::from_be_bytes);
        let id = id.map_err(|_| CodecError("it was cut off"))?;
        let cipher = self.keys.get(&id).ok_or(CodecError(NO_KEY))?;
        let nonce = XNonce::try_from(nonce).map_err(|_| CodecError("it was cut off"))?;
        let aad = associated_data(head, place);
        cipher
            .decrypt(&nonce, Payload { msg: sealed, aad: &aad })
            .map(Cow::Owned)
            .map_err(|_| CodecError("it was altered or moved, or its key is another one"))
    }
}

impl fmt::Debug for EncryptingCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { current, keys, reads_plain } = self;
        let ids: Vec<&u32> = keys.keys().collect();
        f.debug_struct("EncryptingCodec")
            .field("current", current)
            .field("keys", &ids)
            .field("reads_plain", reads_plain)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{IdempotencyKey, Scope};

    fn at<T>(scope: &str, key: &str, column: &'static str, then: impl FnOnce(Place<'_>) -> T) -> T {
        let (scope, key) = (Scope::new(scope).unwrap(), IdempotencyKey::new(key).unwrap());
        then(Place { scope: &scope, key: &key, column, job: None })
    }

    fn stored(codec: &EncryptingCodec, plain: &[u8]) -> Vec<u8> {
        at("s", "k", "params", |place| codec.encode(place, plain.into()).unwrap().into_owned())
    }

    fn read(codec: &EncryptingCodec, stored: &[u8]) -> Result<Vec<u8>, CodecError> {
        at("s", "k", "params", |place| codec.decode(place, stored.into()).map(Cow::into_owned))
    }

    const OLD: [u8; 32] = [1; 32];
    const NEW: [u8; 32] = [2; 32];

    #[test]
    fn what_is_stored_comes_back_and_looks_like_nothing() {
        let codec = EncryptingCodec::new(7, &OLD);
        for plain in [&b""[..], b"canary", &[0xa9, b'a', b'p', 1], &[0; 100_000]] {
            let (one, two) = (stored(&codec, plain), stored(&codec, plain));
            assert_ne!(one, two, "a nonce of its own");
            assert_eq!(one.len(), HEAD + plain.len() + 16);
            assert!(plain.len() < 6 || !one.windows(6).any(|window| window == &plain[..6]));
            assert_eq!(read(&codec, &one).unwrap(), plain);
        }
    }

    #[test]
    fn each_bit_and_each_part_of_the_place_counts() {
        let codec = EncryptingCodec::new(7, &OLD);
        let good = stored(&codec, b"value");
        for at in 0..good.len() * 8 {
            let mut altered = good.clone();
            altered[at / 8] ^= 1 << (at % 8);
            assert!(read(&codec, &altered).is_err(), "bit {at}");
        }
        for length in 0..good.len() {
            assert!(read(&codec, &good[..length]).is_err(), "{length} bytes");
        }
        let moved = |scope, key, column| {
            at(scope, key, column, |place| codec.decode(place, (&good[..]).into()).is_err())
        };
        assert!(!moved("s", "k", "params"));
        for (scope, key, column) in
            [("t", "k", "params"), ("s", "l", "params"), ("s", "k", "outputs")]
        {
            assert!(moved(scope, key, column), "{scope} {key} {column}");
        }
        let of_job = |job, then: &dyn Fn(Place<'_>) -> bool| {
            at("s", "k", "args", |place| then(Place { job, ..place }))
        };
        let [one, other] = [1, 2].map(|id| Some(uuid::Uuid::from_u128(id)));
        let args = at("s", "k", "args", |place| {
            codec.encode(Place { job: one, ..place }, b"v"[..].into()).unwrap().into_owned()
        });
        let opens = |place: Place<'_>| codec.decode(place, (&args[..]).into()).is_ok();
        assert!(of_job(one, &opens));
        assert!(!of_job(other, &opens), "another job of the key");
        assert!(!of_job(None, &opens), "no job");
        // As bytes in a row these would be one place.
        let joined = at("ab", "c", "params", |place| codec.encode(place, b"v"[..].into()).unwrap());
        assert!(at("a", "bc", "params", |place| codec.decode(place, joined).is_err()));
    }

    #[test]
    fn a_key_is_replaced_in_three_steps_and_no_step_loses_anything() {
        let steps = [
            EncryptingCodec::new(1, &OLD),
            EncryptingCodec::new(1, &OLD).also_read(2, &NEW).unwrap(),
            EncryptingCodec::new(2, &NEW).also_read(1, &OLD).unwrap(),
            EncryptingCodec::new(2, &NEW),
        ];
        // Two steps that run at the same time read each other.
        for pair in steps.windows(2) {
            for (writer, reader) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                assert_eq!(read(reader, &stored(writer, b"value")).unwrap(), b"value");
            }
        }
        let old = stored(&steps[0], b"value");
        let error = read(&steps[3], &old).unwrap_err();
        assert_eq!(error.0, NO_KEY);
        // Nor is another key taken for it, because it was given the same number.
        assert!(read(&EncryptingCodec::new(1, &NEW), &old).is_err());
    }

    #[test]
    fn plain_values_are_read_where_that_is_asked_for() {
        let (strict, lenient) =
            (EncryptingCodec::new(1, &OLD), EncryptingCodec::new(1, &OLD).also_read_plain());
        for plain in [&b""[..], b"{}", b"[1]", b"\xa9"] {
            assert!(read(&strict, plain).is_err());
            assert_eq!(read(&lenient, plain).unwrap(), plain);
        }
        let sealed = stored(&lenient, b"value");
        assert_eq!(read(&lenient, &sealed).unwrap(), b"value");
        // What is encrypted with an unknown key is not taken for plain bytes.
        assert!(read(&EncryptingCodec::new(2, &NEW).also_read_plain(), &sealed).is_err());
    }

    #[test]
    fn g19_debug_shows_the_numbers_of_the_keys_alone() {
        let codec = EncryptingCodec::new(1, &[77; 32]).also_read(2, &NEW).unwrap();
        assert_eq!(
            format!("{codec:?}"),
            "EncryptingCodec { current: 1, keys: [1, 2], reads_plain: false }"
        );
    }
}
