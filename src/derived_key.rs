//! [`DerivedKeys`]: how the idempotency key for a foreign system is made.
//!
//! Base64url of SHA-256, cut to 32 characters (192 bits), over the length-prefixed fields: the text
//! `v1`, scope, key, definition, phase, fingerprint. Nothing in it is stored or random, so it
//! survives a failover that forgets the row (G1).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};
use crate::phase::DerivedKey;

const VERSION: &str = "v1";
const LENGTH: usize = 32;

/// How the keys for foreign systems are derived. What is set here must stay while requests are in
/// flight: another setting is another key at the provider.
#[derive(Clone, Default)]
pub struct DerivedKeys {
    secret: Option<Vec<u8>>,
    salted: bool,
}

impl DerivedKeys {
    /// The plain form. Whoever knows scope, key and parameters can compute it.
    #[must_use]
    pub fn plain() -> Self {
        Self::default()
    }

    /// HMAC-SHA-256 with a secret of the application instead of SHA-256, for providers that show
    /// keys to others. An empty secret is a secret that everybody knows.
    #[must_use]
    pub fn with_secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Adds the row's request id: a key that is reused after it expired is charged anew, instead of
    /// being answered by a provider that remembers longer. The price: after a failover that forgets
    /// the row, a retry is charged anew too.
    #[must_use]
    pub fn salted_by_request(mut self) -> Self {
        self.salted = true;
        self
    }

    pub(crate) fn derive(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        definition: &str,
        phase: &str,
        fingerprint: &str,
        request_id: Uuid,
    ) -> DerivedKey {
        let fields = [VERSION, scope.as_str(), key.as_str(), definition, phase, fingerprint];
        let mut message = preimage(&fields);
        if self.salted {
            message.extend(preimage_field(request_id.as_bytes()));
        }
        let hash: [u8; 32] = match &self.secret {
            None => Sha256::digest(&message).into(),
            Some(secret) => hmac(secret, &message),
        };
        let mut text = URL_SAFE_NO_PAD.encode(hash);
        text.truncate(LENGTH);
        DerivedKey(text)
    }
}

/// Each field with its length before it, so that no two lists of fields make one message.
fn preimage(fields: &[&str]) -> Vec<u8> {
    fields.iter().flat_map(|field| preimage_field(field.as_bytes())).collect()
}

fn preimage_field(field: &[u8]) -> impl Iterator<Item = u8> {
    let length = (field.len() as u64).to_be_bytes();
    length.into_iter().chain(field.iter().copied())
}

fn hmac(secret: &[u8], message: &[u8]) -> [u8; 32] {
    // HMAC takes keys of any length: longer ones are hashed, so this cannot fail.
    Hmac::<Sha256>::new_from_slice(secret).map_or_else(
        |_| Sha256::digest(message).into(),
        |mac| mac.chain_update(message).finalize().into_bytes().into(),
    )
}

impl std::fmt::Debug for DerivedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secret = if self.secret.is_some() { "set" } else { "none" };
        f.debug_struct("DerivedKeys")
            .field("secret", &secret)
            .field("salted", &self.salted)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(keys: &DerivedKeys, scope: &str, key: &str, phase: &str, id: u128) -> String {
        let (scope, key) = (Scope::new(scope).unwrap(), IdempotencyKey::new(key).unwrap());
        keys.derive(&scope, &key, "rides.create", phase, "v1:ab", Uuid::from_u128(id)).0
    }

    #[test]
    fn g1_the_key_is_the_same_in_each_attempt_and_each_deploy() {
        // Computed with Python's hashlib and hmac over the same length-prefixed fields.
        let plain = DerivedKeys::plain();
        assert_eq!(
            key(&plain, "user-1", "k-1", "charge_created", 1),
            "qBiskrFy7gbAxnXklVcRmORgCMVeQGri"
        );
        assert_eq!(
            key(&plain, "user-1", "k-1", "charge_created", 2),
            "qBiskrFy7gbAxnXklVcRmORgCMVeQGri"
        );
        let secret = DerivedKeys::plain().with_secret("shh");
        assert_eq!(
            key(&secret, "user-1", "k-1", "charge_created", 1),
            "PBK4n0AzcqtO-Rxi3RUPk9V0EwvdPua2"
        );
        let salted = DerivedKeys::plain().salted_by_request();
        assert_eq!(
            key(&salted, "user-1", "k-1", "charge_created", 1),
            "CvkUm0W08o2zmeyIf9Lhae-AJAtG-0G5"
        );
    }

    #[test]
    fn a_salted_key_is_another_in_another_life_of_the_row() {
        let salted = DerivedKeys::plain().salted_by_request();
        assert_ne!(key(&salted, "u", "k", "p", 1), key(&salted, "u", "k", "p", 2));
    }

    #[test]
    fn wire_71_fields_that_would_collide_if_joined_do_not() {
        let keys = DerivedKeys::plain();
        assert_ne!(key(&keys, "a:b", "c", "p", 1), key(&keys, "a", "b:c", "p", 1));
        assert_ne!(key(&keys, "ab", "c", "p", 1), key(&keys, "a", "bc", "p", 1));
        assert_ne!(key(&keys, "a", "b", "cp", 1), key(&keys, "a", "bc", "p", 1));
    }

    #[test]
    fn every_key_fits_the_providers() {
        for n in 0..200 {
            let key = key(&DerivedKeys::plain(), "s", &n.to_string(), "p", 1);
            assert_eq!(key.len(), 32);
            assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        }
    }

    #[test]
    fn g19_debug_does_not_show_the_secret() {
        let shown = format!("{:?}", DerivedKeys::plain().with_secret("canary"));
        assert!(!shown.contains("canary") && shown.contains("set"), "{shown}");
    }

    proptest::proptest! {
        #[test]
        fn two_lists_of_fields_never_make_one_message(
            a in proptest::collection::vec(".{0,5}", 0..4),
            b in proptest::collection::vec(".{0,5}", 0..4),
        ) {
            let message = |fields: &[String]| {
                preimage(&fields.iter().map(String::as_str).collect::<Vec<_>>())
            };
            proptest::prop_assert_eq!(message(&a) == message(&b), a == b);
        }
    }
}
