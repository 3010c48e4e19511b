//! How the new type reads a client's bytes when the client sends them again.

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
    "an option that is left out becomes a default":
        left_out::P => with_default::P, r#"{"cents":1,"tip":null}"#;
    "a default becomes an option that is left out": with_default::P => left_out::P, r#"{"cents":1}"#;
    "a default `Vec` becomes an option": items_default::P => items_option::P, "{}";
    "a `Vec` that is left out becomes an option that is left out":
        items_left_out::P => items_option_left_out::P, r#"{"items":[]}"#;
    "a `Vec` is left out that was written": items_default::P => items_left_out::P, "{}";
    "another value is left out": seven_left_out::P => two_left_out::P, r#"{"seats":7}"#;
    "a value that was left out is written": seven_left_out::P => default_two::P, r#"{"seats":7}"#;
    "the default stays where it is not left out any more": seven_left_out::P => default_seven::P, r#"{"seats":7}"#;
    "an option that is left out gets a default": left_out_alone::P => absent_five::P, r#"{"tip":null}"#;
    "a date becomes a string": date::P => text::P, r#"{"at":"2024-1-5"}"#;
    "a date and time becomes a string": date_time::P => text::P, r#"{"at":"2024-01-05T00:00:00.500000"}"#;
    "a time of day becomes a string": time::P => text::P, r#"{"at":"10:00:00.500000"}"#;
    "an address becomes a string": address::P => text::P, r#"{"at":"0:0:0:0:0:0:0:1"}"#;
    "a number in a string becomes a string": number_text::P => text::P, r#"{"at":"007"}"#;
    "the keys of a map become strings":
        address_keys::P => text_keys::P, r#"{"m":{"0:0:0:0:0:0:0:1":1}}"#;
    "keys are lower-cased, and are not any more": lower_keys::P => text_keys::P, r#"{"m":{"USD":1}}"#;
    "an enum with an alias becomes a string": kind_alias::P => kind_text::P, r#"{"kind":"cash"}"#;
    "the alias of a variant goes": kind_alias::P => kind_plain::P, r#"{"kind":"cash"}"#;
    "the alias of a variant becomes one of its own": kind_alias::P => kind_both::P, r#"{"kind":"cash"}"#;
    "an integer was clamped": clamped::P => clamped_no_more::P, r#"{"n":500}"#;
    "a float was rounded": rounded::P => rounded_no_more::P, r#"{"x":1.234}"#;
    "a list was sorted": sorted::P => list::P, r#"{"tags":["b","a"]}"#;
    "lines of nothing were dropped": no_empty_lines::P => lines::P, r#"{"lines":[{"n":0,"sku":"a"}]}"#;
    "an alias becomes a member of its own": named_alias::P => named_both::P, r#"{"note":1}"#;
    "the alias of an optional member goes": colour_alias::P => colour::P, r#"{"colour":"x"}"#;
    "an optional member has to be there": absent_none::P => needs_tip::P, "{}";
    "a nested alias, and another type": nested_alias::P => nested_retyped::P, r#"{"p":{"amount":1,"c":1}}"#;
    "a nested alias comes": nested::P => nested_alias::P, r#"{"p":{"amount":1,"c":1}}"#;
    "a nested alias goes": nested_alias::P => nested::P, r#"{"p":{"amt":1,"c":1}}"#;
    "a default changes that does not count any more": default_seven::P => uncounted_two::P, "{}";
}

/// The row has its own value, and its retry is served: the omitted member has another value now.
#[tokio::test(flavor = "multi_thread")]
async fn g1_what_was_left_out_and_is_another_value_is_told() {
    for (row, told) in [
        (
            meets::<left_out::P, with_default::P>("{\"cents\":1}", "{\"cents\":1}").await,
            [diff::<left_out::P, with_default::P>(), locked::<left_out::P, with_default::P>()],
        ),
        (
            meets::<seven_left_out::P, default_two::P>("{}", "{}").await,
            [
                diff::<seven_left_out::P, default_two::P>(),
                locked::<seven_left_out::P, default_two::P>(),
            ],
        ),
    ] {
        assert!(row.is_retry_served && row.row.is_some(), "{row:?}");
        for findings in told {
            let denied = findings.iter().filter(|finding| finding.lint == Lint::DefaultChanged);
            assert_eq!(
                denied.count(),
                2,
                "of the parameters, and of the output: {:#?}",
                lints(&findings)
            );
        }
    }
}

fn is_seven(seats: &u8) -> bool {
    *seats == 7
}

fn is_two(seats: &u8) -> bool {
    *seats == 2
}

fn seven() -> u8 {
    7
}

fn two_uncounted() -> Unfingerprinted<u8> {
    Unfingerprinted(2)
}

fn clamp<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    u32::deserialize(from).map(|n| n.min(100))
}

fn cents<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    f64::deserialize(from).map(|x| (x * 100.0).round() / 100.0)
}

fn in_order<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let mut tags = Vec::<String>::deserialize(from)?;
    tags.sort();
    Ok(tags)
}

fn lower<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, u8>, D::Error> {
    let read = BTreeMap::<String, u8>::deserialize(from)?;
    Ok(read.into_iter().map(|(key, value)| (key.to_lowercase(), value)).collect())
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn as_text<S: serde::Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

fn with_some<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<no_empty_lines::Line>, D::Error> {
    let mut lines = Vec::<no_empty_lines::Line>::deserialize(from)?;
    lines.retain(|line| line.n > 0);
    Ok(lines)
}

fn as_it_is<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    Option::deserialize(from)
}

builds! {
    items_default { pub struct P { #[serde(default)] pub items: Vec<u8> } }
    items_option { pub struct P { pub items: Option<Vec<u8>> } }
    items_left_out { pub struct P { #[serde(default, skip_serializing_if = "Vec::is_empty")] pub items: Vec<u8> } }
    items_option_left_out { pub struct P { #[serde(skip_serializing_if = "Option::is_none")] pub items: Option<Vec<u8>> } }
    seven_left_out { pub struct P { #[serde(default = "seven", skip_serializing_if = "is_seven")] pub seats: u8 } }
    two_left_out { pub struct P { #[serde(default = "two", skip_serializing_if = "is_two")] pub seats: u8 } }
    default_seven { pub struct P { #[serde(default = "seven")] pub seats: u8 } }
    uncounted_two { pub struct P { #[serde(default = "two_uncounted")] pub seats: Unfingerprinted<u8> } }
    left_out_alone { pub struct P { #[serde(skip_serializing_if = "Option::is_none")] pub tip: Option<u8> } }
    date { pub struct P { pub at: chrono::NaiveDate } }
    date_time { pub struct P { pub at: chrono::NaiveDateTime } }
    time { pub struct P { pub at: chrono::NaiveTime } }
    address { pub struct P { pub at: IpAddr } }
    number_text { pub struct P { #[serde(deserialize_with = "number", serialize_with = "as_text")] pub at: u64 } }
    text { pub struct P { pub at: String } }
    address_keys { pub struct P { pub m: BTreeMap<IpAddr, u8> } }
    lower_keys { pub struct P { #[serde(deserialize_with = "lower")] pub m: BTreeMap<String, u8> } }
    text_keys { pub struct P { pub m: BTreeMap<String, u8> } }
    kind_alias { pub enum K { Card, #[serde(alias = "cash")] Cash } pub struct P { pub kind: K } }
    kind_plain { pub enum K { Card, Cash } pub struct P { pub kind: K } }
    kind_both { #[allow(non_camel_case_types)] pub enum K { Card, Cash, cash } pub struct P { pub kind: K } }
    kind_text { pub struct P { pub kind: String } }
    clamped { pub struct P { #[serde(deserialize_with = "clamp")] pub n: u32 } }
    clamped_no_more { pub struct P { pub n: u32 } }
    rounded { pub struct P { #[serde(deserialize_with = "cents")] pub x: f64 } }
    rounded_no_more { pub struct P { pub x: f64 } }
    sorted { pub struct P { #[serde(deserialize_with = "in_order")] pub tags: Vec<String> } }
    no_empty_lines {
        pub struct Line { pub sku: String, pub n: u8 }
        pub struct P { #[serde(deserialize_with = "with_some")] pub lines: Vec<Line> }
    }
    lines { pub struct Line { pub sku: String, pub n: u8 } pub struct P { pub lines: Vec<Line> } }
    named_both { pub struct P { pub memo: u8, pub note: Option<u8> } }
    colour_alias { pub struct P { #[serde(alias = "colour")] pub color: Option<String> } }
    colour { pub struct P { pub color: Option<String> } }
    needs_tip { pub struct P { #[serde(deserialize_with = "as_it_is")] pub tip: Option<u8> } }
    nested { pub struct Al { pub amount: u32, pub c: u8 } pub struct P { pub p: Al } }
    nested_alias { pub struct Al { #[serde(alias = "amt")] pub amount: u32, pub c: u8 } pub struct P { pub p: Al } }
    nested_retyped { pub struct Al { #[serde(alias = "amt")] pub amount: String, pub c: u8 } pub struct P { pub p: Al } }
}

/// Wherever a struct with an alias is, probing sees all of it, and reports each part that it does not see.
#[test]
fn an_alias_is_seen_wherever_its_struct_is() {
    type Al = nested_alias::Al;
    let al = "Al = {amount|amt: u32, c: u8}";
    for (seen, here) in [
        (shape_with_types::<(Al, u8)>(), "(Al, u8)"),
        (shape_with_types::<nested_alias::P>(), "{p: Al}"),
        (shape_with_types::<Option<Al>>(), "Al?"),
        (shape_with_types::<Vec<Vec<Al>>>(), "[[Al]]"),
        (shape_with_types::<BTreeMap<String, Al>>(), "map<str, Al>"),
        (shape_with_types::<Result<Al, u8>>(), "Result"),
        (shape_with_types::<BTreeMap<u8, (Option<nested_alias::P>, u8)>>(), "map<u8, (P?, u8)>"),
    ] {
        assert!(seen.contains(here) || here == "Result", "{seen} for {here}");
        assert!(seen.contains(al), "{seen}");
    }
    // Where no value is known, the names are.
    let seen = shape_with_types::<(hidden_alias::Al, u8)>();
    assert!(seen.contains("Al = {amount|amt"), "{seen}");
}

rule!(Never of String, v => v == "what no probe tries");

builds! {
    hidden_alias { pub struct Al { #[serde(alias = "amt")] pub amount: u32, pub c: Never } }
}

fn shape_with_types<T: Held>() -> String {
    let locks = filed::<T>();
    let lock = locks.get("pay", 1).unwrap();
    let types = lock.types.iter().map(|(name, shape)| format!(" {name} = {shape}"));
    format!("{}{}", lock.request, types.collect::<String>())
}

builds! {
    unfingerprinted { pub struct P { pub cents: u8, pub sent_at: Unfingerprinted<String> } }
    fingerprinted { pub struct P { pub cents: u8, pub sent_at: String } }
}

/// A member that a client may send differently each time is now part of the fingerprint.
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
    assert!(level(&diff::<Now, Before>()) < Level::Deny, "it is one more that is recognized");
}

/// The HTTP boundary refuses them, and so their stored answers, and the report says so.
#[test]
fn g9_what_a_client_may_not_send_any_more_is_told() {
    for (findings, lint) in [
        (diff::<named_alias::P, named_new::P>(), Lint::RetryRefused),
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
