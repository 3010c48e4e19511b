//! Types that keep to themselves what they are made of.

use super::*;

#[derive(Serialize, Deserialize)]
#[serde(tag = "is")]
enum Tagged {
    A { a: u8 },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Event {
    Paid { cents: u32, tip: Option<u8>, by: Card },
    Sent(Point),
    Gone,
    Listed { ids: Vec<Id>, at: Option<Point> },
}

#[test]
fn a_tagged_enum_is_seen_form_by_form() {
    assert_eq!(shape::<Tagged>(), "{is: enum {A}, a: u8}");
    assert_eq!(
        shape::<Event>(),
        "union {{kind: enum {Paid}, cents: u32, tip?: u8?, by: enum {Debit, Credit}}, \
         {kind: enum {Sent}, lat: f64, lon: f64}, {kind: enum {Gone}}, \
         {kind: enum {Listed}, ids: [str(uuid)], at?: {lat: f64, lon: f64}?}}"
    );
    assert_eq!(shape::<Option<Vec<Tagged>>>(), "[{is: enum {A}, a: u8}]?");
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "t", content = "c")]
enum Beside {
    A(u32),
    B { b: String },
    C,
}

#[test]
fn a_content_goes_by_the_tag_beside_it() {
    assert_eq!(
        shape::<Vec<Beside>>(),
        "[union {{t: enum {A}, c: u32}, {t: enum {B}, c: {b: str, #}}, {t: enum {C}, #}}]"
    );
}

#[derive(Serialize, Deserialize)]
struct Flat {
    id: u8,
    #[serde(flatten)]
    point: Point,
    #[serde(flatten)]
    more: More,
}

#[derive(Serialize, Deserialize)]
struct More {
    note: Option<String>,
    tags: Vec<String>,
    #[serde(default)]
    price: u16,
    any: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct WithRest {
    id: Percent,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[test]
fn the_members_of_a_flattened_struct_are_those_of_the_one_around_it() {
    assert_eq!(
        shape::<Flat>(),
        "{id: u8, lat: f64, lon: f64, note?: str?, tags: [str], price?: u16 = 0, any?: any = null, #}"
    );
    assert_eq!(shape::<WithRest>(), "{id: u8(1..100), *, #}");
    assert_eq!(
        samples::<Flat>()[0],
        r#"{"id":1,"lat":0.5,"lon":0.5,"note":"","tags":[""],"price":0,"any":null}"#
    );
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Amount {
    Cents(u32),
    Text(String),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Method {
    Card { last: u16 },
    Bank { iban: String, bic: Option<String> },
}

#[derive(Serialize, Deserialize)]
struct Due {
    amount: Amount,
    tagged: Option<Tagged>,
    any: Value,
    method: Method,
}

#[test]
fn a_type_without_a_tag_has_a_sample_of_each_form() {
    assert_eq!(
        shape::<Due>(),
        "{amount: union {u32, str}, tagged?: {is: enum {A}, a: u8}?, any: any, \
         method: union {{last: u16, #}, {iban: str, bic?: str?, #}}}"
    );
    let samples = samples::<Due>();
    for part in [r#""amount":0"#, r##""amount":"""##, r#""last":"#, r#""iban":"#] {
        assert!(samples.iter().any(|sample| sample.contains(part)), "{part}: {samples:#?}");
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Numbers {
    Small(u8),
    Large(u64),
    Signed(i32),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum When {
    Day(chrono::NaiveDate),
    From(std::net::IpAddr),
    Text(String),
    List(Vec<u8>),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Late {
    Text(String),
    Day(chrono::NaiveDate),
    Owned { id: u8, note: Option<String> },
    Sold { id: u8 },
}

/// serde takes the first that fits.
#[test]
fn the_alternatives_of_a_type_without_a_tag_stand_as_they_are_tried() {
    assert_eq!(shape::<(Numbers, u8)>(), "(union {u8, u64, i32}, u8)");
    assert_eq!(shape::<(When, u8)>(), "(union {str(naive-date), str(ip), str, [u8]}, u8)");
    assert_eq!(
        shape::<(Late, u8)>(),
        "(union {str, {id: u8, note?: str?, #}, enum {}, enum {}}, u8)",
        "two are never read"
    );
}

/// As decimals are read, from numbers and from strings, and written.
struct Decimal(f64);

impl Serialize for Decimal {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reads;
        impl serde::de::Visitor<'_> for Reads {
            type Value = Decimal;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a decimal")
            }
            fn visit_i64<E>(self, number: i64) -> Result<Decimal, E> {
                Ok(Decimal(number as f64))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Decimal, E> {
                Ok(Decimal(number as f64))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Decimal, E> {
                Ok(Decimal(number))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Decimal, E> {
                text.parse().map(Decimal).map_err(|_| E::custom("not a decimal"))
            }
        }
        from.deserialize_any(Reads)
    }
}

#[test]
fn what_is_only_read_is_told_apart_from_what_is_written() {
    assert_eq!(
        shape::<(Decimal, bool)>(),
        "(union {str(one+decimal+minus+zeros+cents+plus~zeros~cents~plus); i128(-9223372036854775808..18446744073709551615), f64}, bool)"
    );
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "op")]
enum Operation {
    Not { of: Box<Operation> },
    All { of: Vec<Operation> },
    Number { n: i8 },
}

#[derive(Serialize, Deserialize)]
struct Node {
    #[serde(flatten)]
    point: Point,
    below: Vec<Node>,
    next: Option<Box<Node>>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Nested {
    Number(i8),
    List(Vec<Nested>),
}

#[derive(Serialize, Deserialize)]
struct WithAmount {
    #[serde(flatten)]
    due: DueAmount,
}

#[derive(Serialize, Deserialize)]
struct DueAmount {
    amount: Amount,
    by: u8,
}

/// A value that is nested deeper, or holds another kind, must not be told to be of another form.
#[test]
fn what_holds_itself_or_several_kinds_is_opaque_there_and_nowhere_else() {
    assert_eq!(
        shape::<Operation>(),
        "union {{op: enum {Not}, of: opaque}, {op: enum {All}, of: [opaque]}, {op: enum {Number}, n: i8}}"
    );
    assert_eq!(shape::<Node>(), "{lat: f64, lon: f64, below: [opaque], next?: opaque?, #}");
    assert_eq!(shape::<Nested>(), "union {i8, [opaque]}");
    assert_eq!(shape::<WithAmount>(), "{amount: union {u32, str}, by: u8, #}");
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "is")]
enum Open {
    A {
        a: u8,
    },
    #[serde(other)]
    Other,
}

/// Serializes as something else than it reads.
#[derive(Serialize, Deserialize)]
struct External {
    #[serde(flatten)]
    by: By,
}

#[test]
fn what_does_not_tell_its_forms_is_opaque_and_has_the_samples_that_are_given() {
    assert_eq!(shape::<Open>(), "opaque");
    assert_eq!(shape::<External>(), "opaque");
    let given = [r#"{"is":"A","a":1}"#.to_owned()];
    let probed = probe(ValueType::of::<Open>(), &mut Catalogue::default(), &given);
    assert_eq!(probed.shape, Shape::Opaque);
    assert!(probed.samples.contains(&given[0]), "{:?}", probed.samples);
}

#[derive(Serialize, Deserialize)]
struct Sparing {
    #[serde(flatten)]
    inner: SparingInner,
}

#[derive(Serialize, Deserialize)]
struct SparingInner {
    a: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    b: Option<u8>,
}

#[test]
fn a_member_that_is_written_only_where_it_is_there_is_seen_in_a_sample() {
    assert_eq!(shape::<Sparing>(), "{a: u8, #}");
    let given = [r#"{"a":1,"b":2}"#.to_owned()];
    let probed = probe(ValueType::of::<Sparing>(), &mut Catalogue::default(), &given);
    assert_eq!(probed.shape.to_string(), "union {{a: u8, b?: u8? = left out, #}, {a: u8, #}}");
}
