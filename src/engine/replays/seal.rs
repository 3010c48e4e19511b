//! [`Seal`]: the form of an answer in the cache. Without the secret, one cannot find out whose it is, forge one, or
//! move one to another place.
//!
//! An answer is its form (one byte), until when it counts and its key is kept (microseconds since 1970, 8 bytes
//! each), the status (2), the length of the headers (4), headers and body as the codec made them, and a tag:
//! HMAC-SHA-256 over scope, key, definition, fingerprint and all of the above. A hint that the request is in
//! progress is its form, until when it counts, and a tag. Numbers are big-endian.

use chrono::{DateTime, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::key::{IdempotencyKey, Scope, hex};
use crate::store::StoredResponse;

/// A larger answer is not put into the cache: it would push out many others, and the database reads it in little more
/// time than it takes to send it.
pub(super) const MAX_BYTES: usize = 64 << 10;

const ANSWER: u8 = 1;
const IN_PROGRESS: u8 = 2;
const HEAD: usize = 1 + 8 + 8 + 2 + 4;
const TAG: usize = 32;

/// What each hash is for, so that none is good for anything else.
const NAME: &[u8] = b"name";
const TOMBSTONE_OF_KEY: &[u8] = b"tombstone of a key";
const TOMBSTONE_OF_SCOPE: &[u8] = b"tombstone of a scope";
const VALUE: &[u8] = b"value";

/// The answer to which request.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Whose<'a> {
    pub(in crate::engine) scope: &'a Scope,
    pub(in crate::engine) key: &'a IdempotencyKey,
    pub(in crate::engine) definition: &'static str,
    pub(in crate::engine) fingerprint: &'a str,
}

/// An answer, as it comes out of the cache.
pub(in crate::engine) struct Entry {
    /// Until when it may be returned, by the database's clock.
    pub(super) until: DateTime<Utc>,
    pub(in crate::engine) expires_at: DateTime<Utc>,
    pub(in crate::engine) response: StoredResponse,
}

/// What a value says of the request that it was sealed for.
pub(super) enum Opened {
    Answer(Entry),
    /// It is in progress, and will be for longer than this, as far as its holder knew.
    InProgress {
        until: DateTime<Utc>,
    },
}

pub(super) struct Seal(Hmac<Sha256>);

impl Seal {
    pub(super) fn new(secret: &[u8]) -> Self {
        // HMAC takes a key of any length; its type says otherwise.
        #[allow(clippy::expect_used)]
        Self(Hmac::new_from_slice(secret).expect("a key of any length"))
    }

    /// Under which the answer of a key is kept.
    pub(super) fn name(&self, scope: &Scope, key: &IdempotencyKey) -> String {
        self.named("reply:", &[NAME, scope.as_str().as_bytes(), key.as_str().as_bytes()])
    }

    /// What says that the key, or its whole scope, was erased.
    pub(super) fn tombstone(&self, scope: &Scope, key: Option<&IdempotencyKey>) -> String {
        let scope = scope.as_str().as_bytes();
        match key {
            Some(key) => self.named("erased:", &[TOMBSTONE_OF_KEY, scope, key.as_str().as_bytes()]),
            None => self.named("erased:", &[TOMBSTONE_OF_SCOPE, scope]),
        }
    }

    /// `None` where it is not for the cache.
    pub(super) fn seal(
        &self,
        whose: &Whose<'_>,
        until: DateTime<Utc>,
        expires_at: DateTime<Utc>,
        response: &StoredResponse,
    ) -> Option<Vec<u8>> {
        let body = response.body.as_ref()?;
        let size = HEAD + response.headers.len() + body.len() + TAG;
        if size > MAX_BYTES {
            return None;
        }
        let mut value = Vec::with_capacity(size);
        value.push(ANSWER);
        value.extend_from_slice(&until.timestamp_micros().to_be_bytes());
        value.extend_from_slice(&expires_at.timestamp_micros().to_be_bytes());
        value.extend_from_slice(&response.status.to_be_bytes());
        value.extend_from_slice(&u32::try_from(response.headers.len()).ok()?.to_be_bytes());
        value.extend_from_slice(&response.headers);
        value.extend_from_slice(body);
        self.finish(whose, &mut value);
        Some(value)
    }

    /// That the request is in progress.
    pub(super) fn seal_hint(&self, whose: &Whose<'_>, until: DateTime<Utc>) -> Vec<u8> {
        let mut value = vec![IN_PROGRESS];
        value.extend_from_slice(&until.timestamp_micros().to_be_bytes());
        self.finish(whose, &mut value);
        value
    }

    fn finish(&self, whose: &Whose<'_>, value: &mut Vec<u8>) {
        let tag = self.tag(whose, value).finalize().into_bytes();
        value.extend_from_slice(&tag);
    }

    /// `None` where it was not sealed here for this very request.
    pub(super) fn open(&self, whose: &Whose<'_>, value: &[u8]) -> Option<Opened> {
        if value.len() > MAX_BYTES {
            return None;
        }
        let (sealed, tag) = value.split_last_chunk::<TAG>()?;
        // In constant time.
        self.tag(whose, sealed).verify_slice(tag).ok()?;
        let (form, rest) = sealed.split_first()?;
        let (until, rest) = rest.split_first_chunk()?;
        let until = time(*until)?;
        match *form {
            ANSWER => answer(until, rest).map(Opened::Answer),
            IN_PROGRESS if rest.is_empty() => Some(Opened::InProgress { until }),
            _ => None,
        }
    }

    fn tag(&self, whose: &Whose<'_>, sealed: &[u8]) -> Hmac<Sha256> {
        self.hash(&[
            VALUE,
            whose.scope.as_str().as_bytes(),
            whose.key.as_str().as_bytes(),
            whose.definition.as_bytes(),
            whose.fingerprint.as_bytes(),
            sealed,
        ])
    }

    /// 128 bits are enough for a name: two that are equal only miss each other.
    fn named(&self, what: &str, fields: &[&[u8]]) -> String {
        let hash = self.hash(fields).finalize().into_bytes();
        format!("{what}{}", hex(&hash[..16]))
    }

    /// Each field after its length: no two lists of fields are the same bytes.
    fn hash(&self, fields: &[&[u8]]) -> Hmac<Sha256> {
        let mut hash = self.0.clone();
        for field in fields {
            hash.update(&(field.len() as u64).to_be_bytes());
            hash.update(field);
        }
        hash
    }
}

/// What stands behind the time of an answer.
fn answer(until: DateTime<Utc>, rest: &[u8]) -> Option<Entry> {
    let (expires_at, rest) = rest.split_first_chunk()?;
    let (status, rest) = rest.split_first_chunk()?;
    let (headers, rest) = rest.split_first_chunk()?;
    let headers = usize::try_from(u32::from_be_bytes(*headers)).ok()?;
    let (headers, body) = rest.split_at_checked(headers)?;
    Some(Entry {
        until,
        expires_at: time(*expires_at)?,
        response: StoredResponse {
            status: u16::from_be_bytes(*status),
            headers: headers.to_vec(),
            body: Some(body.to_vec()),
        },
    })
}

fn time(micros: [u8; 8]) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(i64::from_be_bytes(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"32 bytes from your secret store.";

    fn at<T>(scope: &str, key: &str, then: impl FnOnce(Whose<'_>) -> T) -> T {
        let (scope, key) = (Scope::new(scope).unwrap(), IdempotencyKey::new(key).unwrap());
        then(Whose { scope: &scope, key: &key, definition: "book", fingerprint: "v1:00" })
    }

    fn sealed(seal: &Seal, headers: &[u8], body: Option<&[u8]>) -> Option<Vec<u8>> {
        let response =
            StoredResponse { status: 201, headers: headers.into(), body: body.map(<[u8]>::to_vec) };
        let (until, expires_at) = (time(7_i64.to_be_bytes())?, time(9_i64.to_be_bytes())?);
        at("s", "k", |whose| seal.seal(&whose, until, expires_at, &response))
    }

    #[test]
    fn g8_what_is_sealed_opens_byte_for_byte() {
        let seal = Seal::new(SECRET);
        for (headers, body) in [(&b""[..], &b""[..]), (b"[]", b"\0\xff"), (b"h", &[7; 60_000])] {
            let value = sealed(&seal, headers, Some(body)).unwrap();
            let Some(Opened::Answer(entry)) = at("s", "k", |whose| seal.open(&whose, &value))
            else {
                panic!()
            };
            assert_eq!(entry.response.status, 201);
            assert_eq!(entry.response.headers, headers);
            assert_eq!(entry.response.body.as_deref(), Some(body));
            let times = (entry.until.timestamp_micros(), entry.expires_at.timestamp_micros());
            assert_eq!(times, (7, 9));
        }
    }

    #[test]
    fn g9_it_opens_for_its_own_request_and_for_no_other() {
        let seal = Seal::new(SECRET);
        let value = sealed(&seal, b"[]", Some(b"body")).unwrap();
        let opens = |whose: Whose<'_>| seal.open(&whose, &value).is_some();
        assert!(at("s", "k", opens));
        assert!(!at("t", "k", opens) && !at("s", "l", opens));
        assert!(!at("s", "k", |whose| opens(Whose { definition: "notify", ..whose })));
        assert!(!at("s", "k", |whose| opens(Whose { fingerprint: "v1:01", ..whose })));
        // Nor for one whose parts are the same when they are joined.
        assert!(!at("sk", "k", opens) && !at("s", "kbook", opens));
        let other = Seal::new(b"another 32 bytes from that store");
        assert!(at("s", "k", |whose| other.open(&whose, &value)).is_none());
    }

    #[test]
    fn g9_a_hint_opens_for_its_own_request_and_for_no_other() {
        let seal = Seal::new(SECRET);
        let until = DateTime::from_timestamp_micros(7).unwrap();
        let value = at("s", "k", |whose| seal.seal_hint(&whose, until));
        let opens = |whose: Whose<'_>| match seal.open(&whose, &value) {
            Some(Opened::InProgress { until }) => Some(until),
            _ => None,
        };
        assert_eq!(at("s", "k", opens), Some(until));
        assert!(at("t", "k", opens).is_none() && at("s", "l", opens).is_none());
        assert!(at("s", "k", |whose| opens(Whose { definition: "notify", ..whose })).is_none());
        assert!(at("s", "k", |whose| opens(Whose { fingerprint: "v1:01", ..whose })).is_none());
        each_bit_counts(&seal, &value);
    }

    #[test]
    fn each_bit_counts_and_so_does_each_length() {
        let seal = Seal::new(SECRET);
        each_bit_counts(&seal, &sealed(&seal, b"[]", Some(b"body")).unwrap());
    }

    fn each_bit_counts(seal: &Seal, value: &[u8]) {
        let opens = |value: &[u8]| at("s", "k", |whose| seal.open(&whose, value).is_some());
        for bit in 0..value.len() * 8 {
            let mut altered = value.to_vec();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&altered), "bit {bit}");
        }
        for length in 0..value.len() {
            assert!(!opens(&value[..length]), "{length} bytes");
        }
        assert!(!opens(&[value, b" "].concat()));
        assert!(!opens(&vec![0; MAX_BYTES + 1]));
    }

    #[test]
    fn another_form_under_the_same_secret_is_left_alone() {
        let seal = Seal::new(SECRET);
        let mut value = sealed(&seal, b"[]", Some(b"body")).unwrap();
        value.truncate(value.len() - TAG);
        for form in [0, IN_PROGRESS, IN_PROGRESS + 1] {
            value[0] = form;
            let whole = at("s", "k", |whose| {
                let tag = seal.tag(&whose, &value).finalize().into_bytes();
                [&value[..], &tag].concat()
            });
            assert!(at("s", "k", |whose| seal.open(&whose, &whole)).is_none(), "{form}");
        }
    }

    #[test]
    fn what_was_not_retained_or_is_large_is_not_sealed() {
        let seal = Seal::new(SECRET);
        assert!(sealed(&seal, b"", None).is_none());
        let most = MAX_BYTES - HEAD - TAG;
        assert_eq!(sealed(&seal, b"", Some(&vec![0; most])).unwrap().len(), MAX_BYTES);
        assert!(sealed(&seal, b"", Some(&vec![0; most + 1])).is_none());
    }

    #[test]
    fn g16_g19_names_tell_nothing_and_no_two_places_have_one() {
        let seal = Seal::new(SECRET);
        let names_at = |scope: &str, key: &str| {
            at(scope, key, |Whose { scope, key, .. }| {
                [
                    seal.name(scope, key),
                    seal.tombstone(scope, Some(key)),
                    seal.tombstone(scope, None),
                ]
            })
        };
        let [name, of_key, of_scope] = names_at("canary", "k");
        for other in [names_at("canaryk", "k"), names_at("canary", "kk"), names_at("c", "anaryk")] {
            assert!(other[0] != name && other[1] != of_key);
        }
        assert_eq!(names_at("canary", "l")[2], of_scope, "one for all keys of the scope");
        assert_ne!(of_key, of_scope);
        let other = Seal::new(b"another 32 bytes from that store");
        assert_ne!(at("canary", "k", |whose| other.name(whose.scope, whose.key)), name);
        for name in [name, of_key, of_scope] {
            assert!(name.len() <= 60 && name.is_ascii() && !name.contains("canary"), "{name}");
        }
    }
}
