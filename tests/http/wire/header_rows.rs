//! Rows 1 to 11: the header.

use atomic_phases::http::{KeyRule, KeySyntax, Profile};

use super::expect::{does_not_reflect, is_error, is_reply};
use super::server::Wire;
use crate::support::{TestDb, Trouble};

const UUID: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

pub async fn w01_without_a_key_is_400<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let seen = wire.book("x").without("idempotency-key").send().await;
    is_error(&seen, profile, "idempotency_key_missing");
    assert_eq!(wire.effects(), 0);
}

pub async fn w02_a_quoted_key_is_read_without_its_quotes<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    is_reply(&wire.book(&format!("\"{UUID}\"")).send().await, profile, UUID, 201, false);
}

pub async fn w03_a_bare_key_is_read_whatever_its_first_character<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let strict =
        Wire::setup(db.another().await, profile).policy(|p| p.key_syntax(KeySyntax::Quoted));
    let (wire, strict) = (Wire::start(db, profile).await, strict.start().await);
    for key in [UUID, "e039", "1", "-1", "*a", "_"] {
        is_error(&strict.book(key).send().await, profile, "idempotency_key_malformed");
        is_reply(&wire.book(key).send().await, profile, key, 201, false);
        is_reply(&strict.book(&format!("\"{key}\"")).send().await, profile, key, 201, true);
    }
    assert_eq!((wire.effects(), strict.effects()), (6, 0));
}

pub async fn w04_quoted_and_bare_name_one_key<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    is_reply(&wire.book(UUID).send().await, profile, UUID, 201, false);
    is_reply(&wire.book(&format!("\"{UUID}\"")).send().await, profile, UUID, 201, true);
    assert_eq!(wire.effects(), 1);
}

pub async fn w05_parameters_of_the_header_are_ignored<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    is_reply(&wire.book("\"k\";a=1").send().await, profile, "k", 201, false);
    is_reply(&wire.book("\"k\"; b=\"x\";c").send().await, profile, "k", 201, true);
}

pub async fn w06_surrounding_spaces_are_trimmed<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    is_reply(&wire.book("  k \t ").send().await, profile, "k", 201, false);
    is_reply(&wire.book("\t\"k\"  ").send().await, profile, "k", 201, true);
}

pub async fn w07_malformed_is_400_and_nothing_is_reserved<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let malformed: [&[u8]; 22] = [
        b"",
        b"   ",
        b"\"\"",
        b"\"canary",
        b"canary\"",
        b"\"canary\\",
        b"\"canary\\n\"",
        b"\"canary canary\"",
        b"canary canary",
        b"canary\tcanary",
        b"\"canary\tcanary\"",
        b"canary\xc3\xa9",
        b"\"canary\xff\"",
        b"?1",
        b":Y2FuYXJ5:",
        b"@1659578233",
        b"(\"canary\")",
        b"%\"canary\"",
        b"\"canary\", \"canary\"",
        b"canary, canary",
        b"\"canary\";A=1",
        b"canary;a=1",
    ];
    for value in malformed {
        let seen = wire.book("").set("idempotency-key", value).send().await;
        is_error(&seen, profile, "idempotency_key_malformed");
        does_not_reflect(&seen, "canary");
    }
    // The HTTP library refuses what HTTP itself does not allow in a header line.
    for value in [&b"a\x00b"[..], b"a\x01b", b"\"a\x7fb\""] {
        let seen = wire.book("").set("idempotency-key", value).send().await;
        assert_eq!(seen.status, 400, "{value:?}");
    }
    assert_eq!(wire.effects(), 0);
}

pub async fn w08_two_lines_are_400_and_nothing_is_reserved<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for other in ["canary", "other", "\"canary\"", ""] {
        let seen = wire.book("canary").line("Idempotency-KEY", other).send().await;
        is_error(&seen, profile, "idempotency_key_repeated");
        does_not_reflect(&seen, "canary");
    }
    assert_eq!(wire.effects(), 0);
    is_reply(&wire.book("canary").send().await, profile, "canary", 201, false);
}

pub async fn w09_255_characters_are_a_key_and_256_are_not<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let longest = "x".repeat(255);
    is_reply(&wire.book(&longest).send().await, profile, &longest, 201, false);
    is_reply(&wire.book(&format!("\"{longest}\"")).send().await, profile, &longest, 201, true);
    for longer in [format!("{longest}x"), format!("\"{longest}x\""), "x".repeat(5000)] {
        let seen = wire.book(&longer).send().await;
        is_error(&seen, profile, "idempotency_key_too_long");
        does_not_reflect(&seen, "xxxx");
    }
    assert_eq!(wire.effects(), 1);
}

pub async fn w10_letter_case_makes_two_keys<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    is_reply(&wire.book("key").send().await, profile, "key", 201, false);
    is_reply(&wire.book("Key").send().await, profile, "Key", 201, false);
    assert_eq!(wire.effects(), 2);
}

pub async fn w11_malformed_on_an_optional_route_is_never_treated_as_absent<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let optional = Wire::setup(db, profile).policy(|policy| policy.key(KeyRule::Optional));
    let wire = optional.start().await;
    for value in ["", "a b", "?1", "a,b", "\"a"] {
        let seen = wire.book(value).send().await;
        is_error(&seen, profile, "idempotency_key_malformed");
    }
    let seen = wire.book("a").key("a").send().await;
    is_error(&seen, profile, "idempotency_key_repeated");
    assert_eq!(wire.effects(), 0);
    // Without a key, each request is a new one, and has no status resource.
    for effects in 1..=2 {
        let seen = wire.book("").without("idempotency-key").send().await;
        assert_eq!(seen.status, 201);
        for name in ["idempotency-key", "idempotency-expires", "idempotent-replayed"] {
            assert_eq!(seen.header(name), None);
        }
        assert_eq!(wire.effects(), effects);
    }
    let seen = wire.troubled("", Trouble::RetryForeignAlways).without("idempotency-key");
    let seen = seen.send().await;
    assert_eq!((seen.status, seen.header("retry-after")), (503, None));
    match profile {
        Profile::Ietf => assert_eq!(seen.json()["retryable"], false),
        _ => assert_eq!(seen.header("stripe-should-retry"), Some("false")),
    }
    is_reply(&wire.book("a").send().await, profile, "a", 201, false);
}
