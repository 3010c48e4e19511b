//! What a client's bytes are read as, when it sends them again.

use super::*;

fn one() -> u8 {
    1
}

fn two() -> u8 {
    2
}

fn chance() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

fn some_five() -> Option<u8> {
    Some(5)
}

/// `serde_with::double_option`.
fn double<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u8>>, D::Error> {
    Option::<u8>::deserialize(from).map(Some)
}

fn trimmed<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| text.trim().to_owned())
}

builds! {
    default_one { pub struct P { #[serde(default = "one")] pub seats: u8 } }
    default_two { pub struct P { #[serde(default = "two")] pub seats: u8 } }
    default_fixed { pub struct P { #[serde(default)] pub nonce: u64 } }
    default_chance { pub struct P { #[serde(default = "chance")] pub nonce: u64 } }
    absent_none { pub struct P { pub tip: Option<u8> } }
    absent_five { pub struct P { #[serde(default = "some_five")] pub tip: Option<u8> } }
    absent_double {
        pub struct P { #[serde(default, deserialize_with = "double", skip_serializing_if = "Option::is_none")] pub tip: Option<Option<u8>> }
    }
    kinds_two { pub enum K { Card, #[serde(other)] Unknown } pub struct P { pub kind: K } }
    kinds_three { pub enum K { Card, Cash, #[serde(other)] Unknown } pub struct P { pub kind: K } }
    set { pub struct P { pub tags: BTreeSet<String> } }
    list { pub struct P { pub tags: Vec<String> } }
    hash_set { pub struct P { pub tags: HashSet<String> } }
    f32s { pub struct P { pub lat: f32 } }
    f64s { pub struct P { pub lat: f64 } }
    u64s { pub struct P { pub user_id: u64 } }
    u64_as_f64 { pub struct P { pub user_id: f64 } }
    utc { pub struct P { pub at: DateTime<Utc> } }
    offset { pub struct P { pub at: DateTime<FixedOffset> } }
    at_text { pub struct P { pub at: String } }
    trims { pub struct P { #[serde(deserialize_with = "trimmed")] pub name: String } }
    keeps { pub struct P { pub name: String } }
    named_old { pub struct P { pub note: u8 } }
    named_alias { pub struct P { #[serde(alias = "note")] pub memo: u8 } }
    named_new { pub struct P { pub memo: u8 } }
    open_plain { pub struct P { pub cents: u8 } }
    open_rest { pub struct P { pub cents: u8, #[serde(flatten)] pub rest: BTreeMap<String, Value> } }
    closed_plain { #[serde(deny_unknown_fields)] pub struct P { pub cents: u8 } }
}

builds! {
    left_out { pub struct P { pub cents: u8, #[serde(default, skip_serializing_if = "Option::is_none")] pub tip: Option<u8> } }
    with_default { pub struct P { pub cents: u8, #[serde(default)] pub tip: u8 } }
    words { pub struct P { pub cents: u8, #[serde(default, skip_serializing_if = "Vec::is_empty")] pub items: Vec<u8> } }
    words_not_empty { pub struct P { pub cents: u8, #[serde(default)] pub items: Option<(u8,)> } }
}

promises! {
    g9_a_retry_with_the_same_bytes_is_served_or_the_change_is_refused:
    "a default is another constant": default_one::P => default_two::P, "{}";
    "a default is by chance": default_fixed::P => default_chance::P, "{}";
    "an `Option` gets a default that is not `None`": absent_none::P => absent_five::P, "{}";
    "an `Option` is told apart from `null`": absent_none::P => absent_double::P, "{}";
    "a variant comes beside `#[serde(other)]`":
        kinds_two::P => kinds_three::P, r#"{"kind":"Cash"}"#;
    "a set becomes a list": set::P => list::P, r#"{"tags":["night","child"]}"#;
    "a list becomes a `HashSet`":
        list::P => hash_set::P, r#"{"tags":["a","b","c","d","e","f","g","h"]}"#;
    "`f32` becomes `f64`": f32s::P => f64s::P, r#"{"lat":52.520008123}"#;
    "`f64` becomes `f32`": f64s::P => f32s::P, r#"{"lat":1e39}"#;
    "a time in UTC becomes one with its offset":
        utc::P => offset::P, r#"{"at":"2000-01-01T01:00:00+01:00"}"#;
    "a time becomes a string": utc::P => at_text::P, r#"{"at":"2000-01-01T01:00:00+01:00"}"#;
    "a string is not trimmed any more": trims::P => keeps::P, r#"{"name":" Ann "}"#;
    "members are kept that were ignored":
        open_plain::P => open_rest::P, r#"{"cents":1,"trace":"x"}"#;
    "an option that is left out becomes a default": left_out::P => with_default::P, r#"{"cents":1}"#;
    "such an option that is there": left_out::P => with_default::P, r#"{"cents":1,"tip":5}"#;
}

builds! {
    unfingerprinted { pub struct P { pub cents: u8, pub sent_at: Unfingerprinted<String> } }
    fingerprinted { pub struct P { pub cents: u8, pub sent_at: String } }
}

/// What a client may send otherwise each time counts from now on.
#[tokio::test(flavor = "multi_thread")]
async fn g9_a_member_that_was_left_out_of_the_fingerprint_and_counts_is_told() {
    let body = |at| format!(r#"{{"cents":1,"sent_at":"{at}"}}"#);
    type Before = unfingerprinted::P;
    type Now = fingerprinted::P;
    let seen = meets::<Before, Before>(&body("10:00"), &body("10:01")).await;
    assert!(seen.is_retry_served, "as long as it is left out");
    let seen = meets::<Before, Now>(&body("10:00"), &body("10:01")).await;
    assert!(seen.row.is_some() && !seen.is_retry_served, "{seen:?}");
    for findings in [diff::<Before, Now>(), locked::<Before, Now>()] {
        let is_told = |finding: &Finding| finding.lint == Lint::RetryDiffers;
        assert!(findings.iter().any(is_told), "{:?} {:#?}", shape::<Before>(), lints(&findings));
    }
    assert!(level(&diff::<Now, Before>()) < Level::Deny, "it is one more that is recognised");
}

/// They are refused at the boundary, with their answers, and that is told.
#[test]
fn g9_what_a_client_may_not_send_any_more_is_told() {
    for (findings, lint) in [
        (diff::<named_alias::P, named_new::P>(), Lint::AliasDropped),
        (diff::<open_plain::P, closed_plain::P>(), Lint::MembersRefused),
    ] {
        assert!(findings.iter().any(|finding| finding.lint == lint), "{findings:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_as_another_value_is_told() {
    sees_the_same::<f64s::P, f32s::P>(r#"{"lat":52.520008123}"#, "52.520008123").await;
    let id = r#"{"user_id":9007199254740993}"#;
    sees_the_same::<u64s::P, u64_as_f64::P>(id, "9007199254740993").await;
    sees_the_same::<list::P, set::P>(r#"{"tags":["b","a","b"]}"#, r#"["b","a","b"]"#).await;
}
