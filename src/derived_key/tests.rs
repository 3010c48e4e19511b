//! Golden vectors from `hashlib` and `hmac` of Python, and F3: no two lists of fields meet.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn derive(keys: &DerivedKeys) -> String {
    let fingerprint = format!("v1:{}", "ab".repeat(32));
    derive_from(
        keys,
        [
            "Müller & Söhne",
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            "rides.create",
            "charge_created",
            &fingerprint,
        ],
        0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
    )
}

fn derive_from(
    keys: &DerivedKeys,
    [scope, key, definition, phase, fingerprint]: [&str; 5],
    id: u128,
) -> String {
    let (scope, key) = (Scope::new(scope).unwrap(), IdempotencyKey::new(key).unwrap());
    let derivation = keys.current();
    let derived =
        derivation.derive(&scope, &key, definition, phase, fingerprint, Uuid::from_u128(id));
    derived.as_str().to_owned()
}

/// A change of these makes every open request charge twice: no reason is good enough.
#[test]
fn g1_derived_keys_are_what_they_always_were() {
    let plain = DerivedKeys::plain();
    let secret = plain.clone().with_secret(SECRET).unwrap();
    let long = plain.clone().with_secret([b'k'; 100]).unwrap();
    assert_eq!(derive(&plain), "OGHbzIF3e-gnszgpzTvi-7PisPUSc_O-");
    assert_eq!(derive(&plain.salted_by_request()), "6zDtkWHUKdW7s5cMaxgh8mlUDtktBvhU");
    assert_eq!(derive(&secret), "lOBN0GoRzMb3E5FfwPRa9tOsAlQs2sKZ");
    assert_eq!(derive(&secret.salted_by_request()), "tTKGMLFgVu9f4P64Oj-aMe__up4wJl9y");
    assert_eq!(derive(&long), "mkp_zV4cEcxrsVeavHTIYUxTi44m8FN2");
}

/// Row 58 of the wire contract among them: the same parameters under another key.
#[test]
fn g1_each_field_counts_and_the_row_id_only_where_it_is_asked_for() {
    let base = ["scope", "key", "definition", "phase", "v1:00"];
    let plain = DerivedKeys::plain();
    let mut seen = HashSet::from([derive_from(&plain, base, 1)]);
    for field in 0..base.len() {
        let mut other = base;
        other[field] = "other";
        assert!(seen.insert(derive_from(&plain, other, 1)), "field {field}");
    }
    assert!(!seen.insert(derive_from(&plain, base, 2)));
    let salted = plain.salted_by_request();
    assert!(seen.insert(derive_from(&salted, base, 1)));
    assert!(seen.insert(derive_from(&salted, base, 2)));
}

#[test]
fn a_secret_that_can_be_guessed_is_refused() {
    for length in [0, 15] {
        let refused = DerivedKeys::plain().with_secret(vec![7; length]).unwrap_err();
        assert_eq!(refused, SecretTooShort { length });
    }
    assert!(DerivedKeys::plain().with_secret([7; 16]).is_ok());
}

#[test]
fn g1_a_mark_tells_each_secret_and_salt_from_the_others_and_is_what_it_always_was() {
    let plain = DerivedKeys::plain();
    let secret = |secret: [u8; 16]| plain.clone().with_secret(secret).unwrap();
    let marks = [
        plain.clone(),
        plain.clone().salted_by_request(),
        secret([1; 16]),
        secret([2; 16]),
        secret([1; 16]).salted_by_request(),
    ]
    .map(|keys| keys.current().mark());
    assert_eq!(HashSet::from(marks.clone()).len(), marks.len(), "{marks:?}");
    assert_eq!(marks[0], None);
    // In whatever order they were chosen.
    let salted_first = plain.clone().salted_by_request().with_secret([1; 16]).unwrap();
    assert_eq!(salted_first.current().mark(), marks[4]);
    assert_eq!(plain.with_secret(SECRET).unwrap().current().mark().as_deref(), Some("N7ZwOmPU"));
}

#[test]
fn g1_a_row_goes_on_under_the_secret_of_its_mark_where_there_is_one() {
    let [one, two, three] =
        [1, 2, 3].map(|byte| DerivedKeys::plain().with_secret([byte; 16]).unwrap());
    let keys = two.clone().also_continue(one.clone()).also_continue(DerivedKeys::plain());
    for known in [&one, &two, &DerivedKeys::plain()] {
        let mark = known.current().mark();
        assert_eq!(keys.marked(mark.as_deref()).unwrap().mark(), mark);
    }
    assert!(keys.marked(three.current().mark().as_deref()).is_none());
    assert!(three.marked(None).is_none(), "no secret is not taken for an empty one");
    assert_eq!(derive(&keys), derive(&two));
    // What the other continues, this one continues, too.
    let all = three.also_continue(keys);
    assert!(all.marked(one.current().mark().as_deref()).is_some());
}

#[test]
fn g19_debug_never_shows_the_secret() {
    let keys = DerivedKeys::plain().with_secret(SECRET).unwrap().salted_by_request();
    assert_eq!(format!("{keys:?}"), "DerivedKeys { secret: true, salted_by_request: true }");
    let both = DerivedKeys::plain().also_continue(keys);
    assert_eq!(
        format!("{both:?}"),
        "DerivedKeys { secret: false, salted_by_request: false, also_continues: 1 }"
    );
}

fn of(fields: &[Vec<u8>]) -> Vec<u8> {
    preimage(&fields.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn f3_different_fields_have_different_preimages(
        a in vec(vec(0_u8..3, 0..4), 0..8),
        b in vec(vec(0_u8..3, 0..4), 0..8),
    ) {
        prop_assert_eq!(a == b, of(&a) == of(&b));
    }

    /// The same bytes, cut elsewhere: what a separator would get wrong.
    #[test]
    fn f3_a_boundary_that_moves_changes_the_preimage(
        bytes in vec(any::<u8>(), 0..16),
        cuts in (0_usize..17, 0_usize..17),
    ) {
        let cut = |at: usize| {
            let (head, tail) = bytes.split_at(at.min(bytes.len()));
            [head.to_vec(), tail.to_vec()]
        };
        let (a, b) = (cut(cuts.0), cut(cuts.1));
        prop_assert_eq!(a == b, of(&a) == of(&b));
    }

    #[test]
    fn a_derived_key_is_32_characters_that_every_provider_takes(phase in ".*", id in any::<u128>()) {
        let key = derive_from(&DerivedKeys::plain().salted_by_request(), ["s", "k", "d", &phase, "v1:"], id);
        prop_assert_eq!(key.len(), 32);
        prop_assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
    }
}
