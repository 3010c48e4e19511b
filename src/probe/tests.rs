use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;
use crate::fingerprint::Unfingerprinted;

#[derive(Serialize, Deserialize)]
struct Point {
    lat: f64,
    lon: f64,
}

fn shape<T: Serialize + DeserializeOwned>() -> String {
    let mut catalogue = Catalogue::default();
    let probed = probe(ValueType::of::<T>(), &mut catalogue, &[]);
    let types = catalogue.types_of([&probed.shape]);
    for sample in &probed.samples {
        let value: Value = serde_json::from_str(sample).unwrap();
        atomic_phases_compat::fits(&value, &probed.shape, &types).unwrap();
    }
    let types: Vec<_> = types.iter().map(|(name, shape)| format!(" {name} = {shape}")).collect();
    format!("{}{}", probed.shape, types.concat())
}

fn samples<T: Serialize + DeserializeOwned>() -> Vec<String> {
    probe(ValueType::of::<T>(), &mut Catalogue::default(), &[]).samples
}

#[test]
fn plain_types_are_seen_with_their_width() {
    assert_eq!(
        shape::<(i64, u8, f32, bool, char, String, ())>(),
        "(i64, u8, f32, bool, char, str, null)"
    );
    assert_eq!(shape::<Option<Vec<u16>>>(), "[u16]?");
    assert_eq!(shape::<BTreeMap<i8, Option<bool>>>(), "map<i8, bool?>");
    assert_eq!(shape::<HashMap<String, serde_json::Value>>(), "map<str, any>");
    assert_eq!(shape::<u128>(), "u128");
    assert_eq!(samples::<i32>(), ["2147483647", "-2147483648"]);
    assert_eq!(samples::<u64>(), ["18446744073709551615", "0"]);
    assert_eq!(samples::<Vec<Option<u8>>>(), ["[255]", "[]"]);
}

#[derive(Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[derive(Clone)]
struct Id(uuid::Uuid);

impl TryFrom<String> for Id {
    type Error = uuid::Error;

    fn try_from(text: String) -> Result<Self, uuid::Error> {
        text.parse().map(Self)
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0.to_string()
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct Percent(u8);

impl TryFrom<u8> for Percent {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, &'static str> {
        (1..=100).contains(&number).then_some(Self(number)).ok_or("no percentage")
    }
}

impl From<Percent> for u8 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

#[test]
fn types_that_validate_are_given_what_they_take() {
    assert_eq!(shape::<Id>(), "str(uuid)");
    assert_eq!(shape::<chrono::DateTime<chrono::Utc>>(), "str(date-time)");
    assert_eq!(shape::<chrono::NaiveDate>(), "str(naive-date)");
    assert_eq!(shape::<NonZeroU32>(), "u32(1..)");
    assert_eq!(shape::<std::num::NonZeroI8>(), "i8(!0)");
    assert_eq!(shape::<Percent>(), "u8(1..100)");
    assert_eq!(shape::<Vec<Percent>>(), "[u8(1..100)]");
    assert_eq!(
        shape::<std::time::Duration>(),
        r#"{secs: u64, nanos: u32, !} but [{"nanos":4294967295,"secs":18446744073709551615}]"#,
        "which is too long by the two together"
    );
    assert_eq!(shape::<std::net::IpAddr>(), "str(ip)");
    assert_eq!(shape::<Vec<Id>>(), "[str(uuid)]");
}

#[derive(Serialize, Deserialize)]
struct Seen {
    id: u8,
    #[serde(alias = "when")]
    at: Unfingerprinted<Option<u8>>,
    by: Vec<SeenBy>,
}

#[derive(Serialize, Deserialize)]
enum SeenBy {
    Node { trace: Unfingerprinted<String> },
}

#[derive(Serialize, Deserialize)]
struct SeenFlat {
    #[serde(flatten)]
    seen: Seen,
}

#[test]
fn a_member_that_is_left_out_of_the_fingerprint_is_marked() {
    assert_eq!(
        shape::<Seen>(),
        "{id: u8, at|when?: unfingerprinted u8?, by: [SeenBy]} \
         SeenBy = enum {Node: {trace: unfingerprinted str}}"
    );
    assert_eq!(
        shape::<SeenFlat>(),
        "{id: u8, at?: unfingerprinted u8?, by: [enum {Node: {trace: unfingerprinted str}}], #}"
    );
}

#[derive(Serialize, Deserialize)]
struct Ride {
    user_id: i64,
    origin: Point,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    tip: Option<u8>,
    #[serde(default)]
    seats: u8,
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(alias = "a", alias = "z", rename = "m")]
    moved: bool,
}

#[derive(Serialize, Deserialize)]
enum Kind {
    Short,
    Long(u16),
    Shared { with: Vec<Point>, by: Option<u8> },
    Pair(u8, u8),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Closed {
    a: u8,
}

#[test]
fn a_struct_is_seen_with_its_optional_and_renamed_members() {
    assert_eq!(
        shape::<Ride>(),
        "{user_id: i64, origin: Point, note?: str? = left out, tip?: u8?, seats?: u8 = 0, type: Kind, m|a|z: bool} \
         Kind = enum {Short, Long: u16, Shared: {with: [Point], by?: u8?}, Pair: (u8, u8)} \
         Point = {lat: f64, lon: f64}"
    );
    assert_eq!(shape::<Closed>(), "{a: u8, !}");
    let samples = samples::<Ride>();
    assert_eq!(samples.len(), 5, "four variants, and the least: {samples:#?}");
    assert!(samples[4].contains(r#""tip":null"#) && !samples[4].contains("note"), "{}", samples[4]);
}

#[derive(Serialize, Deserialize)]
struct Tree {
    leaf: u8,
    #[serde(default)]
    more: Vec<Tree>,
    other: Option<Box<Tree>>,
}

#[test]
fn a_type_that_holds_itself_is_seen_once() {
    assert_eq!(
        shape::<Tree>(),
        "{leaf: u8, more?: [Tree] = [], other?: Tree?} Tree = {leaf: u8, more?: [Tree] = [], other?: Tree?}"
    );
}

mod other {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Point {
        x: u8,
    }
}

#[test]
fn two_types_of_one_name_are_told_apart() {
    assert_eq!(
        shape::<(Point, other::Point)>(),
        "(Point, Point_2) Point = {lat: f64, lon: f64} Point_2 = {x: u8}"
    );
}

#[derive(Serialize, Deserialize)]
enum Card {
    Debit,
    Credit,
}

#[derive(Serialize, Deserialize)]
enum Bank {
    Sepa,
    Swift { bic: Option<String> },
}

#[derive(Serialize, Deserialize)]
enum By {
    Card(Card),
    Bank(Vec<Bank>),
    Cash,
}

#[derive(Serialize, Deserialize)]
struct Paid {
    first: Option<By>,
    rest: BTreeMap<String, By>,
}

#[test]
fn each_variant_is_reached_wherever_it_is() {
    assert_eq!(
        shape::<Paid>(),
        "{first?: By?, rest: map<str, By>} Bank = enum {Sepa, Swift: {bic?: str?}} \
         By = enum {Card: Card, Bank: [Bank], Cash} Card = enum {Debit, Credit}"
    );
}

#[derive(Serialize, Deserialize)]
enum Currency {
    Aed,
    Aud,
    Brl,
    Cad,
    Chf,
    Cny,
    Czk,
    Dkk,
    Eur,
    Gbp,
    Huf,
    Inr,
    Jpy,
    Nok,
}

#[test]
fn an_enum_of_many_has_them_all_and_few_samples() {
    let all = shape::<Currency>();
    assert!(all.ends_with("Jpy, Nok}"), "{all}");
    assert_eq!(samples::<Currency>().len(), MAX_SAMPLES - 1);
}

#[derive(Serialize, Deserialize)]
struct Range<T> {
    from: T,
    to: T,
}

mod same {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Point {
        lat: u8,
        lon: u8,
    }
}

#[test]
fn a_generic_type_at_two_types_is_two() {
    assert_eq!(
        shape::<(Range<u32>, Range<String>, Range<u32>)>(),
        "(Range, Range_2, Range) Range = {from: u32, to: u32} Range_2 = {from: str, to: str}"
    );
    assert_eq!(
        shape::<(Point, same::Point)>(),
        "(Point, Point_2) Point = {lat: f64, lon: f64} Point_2 = {lat: u8, lon: u8}"
    );
}

/// Three lower-case letters.
fn lower<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    match text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_lowercase()) {
        true => Ok(text),
        false => Err(serde::de::Error::custom("three lower-case letters")),
    }
}

#[derive(Serialize, Deserialize)]
struct Price {
    #[serde(deserialize_with = "lower")]
    currency: String,
    cents: i64,
    kind: Kind,
    note: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Order {
    price: Price,
    old_price: Option<Price>,
    more: Vec<Price>,
    seats: u8,
}

#[test]
fn a_rule_of_its_own_hides_nothing_but_its_member() {
    let price = "{currency: str(own), cents: i64, kind: Kind, note?: str?}";
    let kind = "Kind = enum {Short, Long: u16, Shared: {with: [Point], by?: u8?}, Pair: (u8, u8)}";
    let point = "Point = {lat: f64, lon: f64}";
    assert_eq!(shape::<Price>(), format!("{price} {kind} {point}"));
    assert_eq!(
        shape::<Order>(),
        format!(
            "{{price: Price, old_price?: Price?, more: [Price], seats: u8}} {kind} {point} Price = {price}"
        )
    );
    assert!(samples::<Order>().is_empty());
}

#[test]
fn a_sample_shows_what_a_rule_takes() {
    let given = [r#"{"currency":"eur","cents":1,"kind":"Short","note":null}"#.to_owned()];
    let probed = probe(ValueType::of::<Price>(), &mut Catalogue::default(), &given);
    assert!(probed.samples.len() > 4, "{:#?}", probed.samples);
    assert!(probed.samples.iter().all(|sample| sample.contains(r#""currency":"eur""#)));
}

#[derive(Serialize, Deserialize)]
enum State {
    Open,
    Closed,
    #[serde(other)]
    Unknown,
}

#[test]
fn an_enum_that_takes_unknown_variants_says_so() {
    assert_eq!(shape::<State>(), "enum {Open, Closed, Unknown, *}");
    assert_eq!(shape::<Card>(), "enum {Debit, Credit}");
}

#[derive(Serialize, Deserialize)]
enum Expression {
    Sum(Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    Any(Vec<Expression>),
    Number(i64),
}

#[test]
fn a_type_that_holds_itself_ends() {
    assert_eq!(
        shape::<Expression>(),
        "enum {Sum: (Expression, Expression), Not: Expression, Any: [Expression], Number: i64} \
         Expression = enum {Sum: (Expression, Expression), Not: Expression, Any: [Expression], Number: i64}"
    );
}

mod wholes;
