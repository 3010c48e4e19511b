//! Types that accept less than before.

use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub(super) struct Rank<const MOST: u8>(u8);

impl<const MOST: u8> TryFrom<u8> for Rank<MOST> {
    type Error = &'static str;
    fn try_from(rank: u8) -> Result<Self, &'static str> {
        match rank {
            1 | 5 | 10 if rank <= MOST => Ok(Self(rank)),
            _ => Err("no such rank"),
        }
    }
}

impl<const MOST: u8> From<Rank<MOST>> for u8 {
    fn from(Rank(rank): Rank<MOST>) -> Self {
        rank
    }
}

rule!(OfFive of u32, v => v % 5 == 0);
rule!(Positive of f64, v => v > 0.0);
rule!(Bounded of f64, v => (-90.0..=90.0).contains(&v));
rule!(NotEmpty of Vec<u8>, v => !v.is_empty());
rule!(AtMostTwo of Vec<u8>, v => v.len() <= 2);
rule!(Short of String, v => v.len() <= 100);
rule!(Ascii of String, v => v.is_ascii());
rule!(UsdOrEur of String, v => v == "USD" || v == "EUR");
rule!(Usd of String, v => v == "USD");
rule!(DecimalText of String, v => v.parse::<f64>().is_ok());
rule!(Letter of char, v => v.is_ascii_lowercase());
rule!(Period of (u8, u8), v => v.0 < v.1);

builds! {
    chars { pub struct P { pub seat: char } }
    letters { pub struct P { pub seat: Letter } }
    v_u32 { pub struct P { pub cents: u32 } }
    v_five { pub struct P { pub cents: OfFive } }
    v_f64 { pub struct P { pub x: f64 } }
    v_positive { pub struct P { pub x: Positive } }
    v_bounded { pub struct P { pub x: Bounded } }
    v_list { pub struct P { pub items: Vec<u8> } }
    v_not_empty { pub struct P { pub items: NotEmpty } }
    v_at_most_two { pub struct P { pub items: AtMostTwo } }
    v_str { pub struct P { pub name: String } }
    v_short { pub struct P { pub name: Short } }
    v_ascii { pub struct P { pub name: Ascii } }
    v_usd_or_eur { pub struct P { pub currency: UsdOrEur } }
    v_usd { pub struct P { pub currency: Usd } }
    v_decimal { pub struct P { pub amount: DecimalText } }
    v_integer { pub struct P { pub amount: IntegerText } }
    v_cents_text { pub struct P { pub cents: IntegerText } }
    v_pair { pub struct P { pub of: (u8, u8) } }
    v_period { pub struct P { pub of: Period } }
    ranks { pub struct P { pub rank: Rank<10> } }
    fewer_ranks { pub struct P { pub rank: Rank<5> } }
    ip { pub struct P { pub from: IpAddr } }
    ipv4 { pub struct P { pub from: Ipv4Addr } }
    w_u128 { pub struct P { pub x: u128 } }
    w_i128 { pub struct P { pub x: i128 } }
    two_names { pub struct P { pub note: Option<u8>, pub memo: Option<u8> } }
    one_name { pub struct P { #[serde(alias = "note")] pub memo: Option<u8> } }
    passes_on { pub struct P { pub cents: u8, #[serde(flatten)] pub more: BTreeMap<String, Value> } }
    promoted { pub struct P { pub cents: u8, pub note: Option<String>, #[serde(flatten)] pub more: BTreeMap<String, Value> } }
    scopes_three { pub enum S { #[serde(rename = "*")] All, Read, Write } pub struct P { pub scope: S } }
    scopes_two { pub enum S { #[serde(rename = "*")] All, Read } pub struct P { pub scope: S } }
    pair { pub struct At(pub u8, pub u8); pub struct P { pub at: At } }
    pair_flat {
        pub struct Lat { pub lat: u8 }
        pub struct At { #[serde(flatten)] pub lat: Lat, pub lon: u8 }
        pub struct P { pub at: At }
    }
    ways_two {
        #[serde(untagged)] pub enum V { N(u32), T(String) }
        #[serde(tag = "is")] pub enum W { A { v: V }, B }
        pub struct P { pub by: W }
    }
    ways_one {
        #[serde(untagged)] pub enum V { N(u32) }
        #[serde(tag = "is")] pub enum W { A { v: V }, B }
        pub struct P { pub by: W }
    }
    card_or_any { #[serde(untagged)] pub enum M { Card { last: u32 }, Other(Value) } pub struct P { pub by: M } }
    short_card_or_any { #[serde(untagged)] pub enum M { Card { last: u8 }, Other(Value) } pub struct P { pub by: M } }
    colours { pub enum C { Red, #[serde(other)] Other } pub struct P { pub colour: C } }
    colour_text { pub struct P { pub colour: String } }
    card_first {
        #[serde(untagged)]
        pub enum M { Card { token: String }, Bank { token: String, #[serde(default, skip_serializing_if = "Option::is_none")] iban: Option<String> } }
        pub struct P { pub by: M }
    }
}

rule!(WholeUtc of String, v => v.len() == 20 && v.ends_with('Z') && DateTime::parse_from_rfc3339(&v).is_ok());
rule!(AnyUrl of String, v => v.contains("://"));
rule!(HttpsUrl of String, v => v.starts_with("https://"));

builds! {
    v_whole { pub struct P { pub at: WholeUtc } }
    v_url { pub struct P { pub hook: AnyUrl } }
    v_https { pub struct P { pub hook: HttpsUrl } }
}

builds! {
    mixed_two { pub enum K { Card { last: u32 }, Cash, #[serde(untagged)] Other(String) } pub struct P { pub by: K } }
    mixed_one { pub enum K { Cash, #[serde(untagged)] Other(String) } pub struct P { pub by: K } }
}

builds! {
    at { pub struct P { pub at: DateTime<Utc> } }
    u_simple { pub struct P { pub id: SimpleUuid } }
    hyphenated { pub struct P { pub id: Hyphenated } }
}

rule!(Hyphenated of String, v => v.len() == 36 && uuid::Uuid::parse_str(&v).is_ok());

macro_rules! wide {
    ($module:ident: $($currency:ident)*) => {
        mod $module {
            use super::*;
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            pub enum Currency { $($currency),* }
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            pub struct P {
                pub billing: Country, pub shipping: Country, pub origin: Country, pub customs: Country,
                pub carrier: Country, pub seller: Country, pub buyer: Country, pub bank: Country,
                pub issuer: Country, pub currency: Currency,
            }
        }
    };
}

macro_rules! countries {
    ($($country:ident)*) => {
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        enum Country { $($country),* }
    };
}

countries! {
    A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 B0 B1 B2 B3 B4 B5 B6 B7 B8 B9 C0 C1 C2 C3 C4 C5 C6 C7 C8 C9 D0 D1 D2 D3 D4 D5 D6 D7 D8 D9
    E0 E1 E2 E3 E4 E5 E6 E7 E8 E9 F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 G0 G1 G2 G3 G4 G5 G6 G7 G8 G9 H0 H1 H2 H3 H4 H5 H6 H7 H8 H9
    I0 I1 I2 I3 I4 I5 I6 I7 I8 I9 J0 J1 J2 J3 J4 J5 J6 J7 J8 J9 K0 K1 K2 K3 K4 K5 K6 K7 K8 K9 L0 L1 L2 L3 L4 L5 L6 L7 L8 L9
    M0 M1 M2 M3 M4 M5 M6 M7 M8 M9 N0 N1 N2 N3 N4 N5 N6 N7 N8 N9 O0 O1 O2 O3 O4 O5 O6 O7 O8 O9 P0 P1 P2 P3 P4 P5 P6 P7 P8 P9
    Q0 Q1 Q2 Q3 Q4 Q5 Q6 Q7 Q8 Q9 R0 R1 R2 R3 R4 R5 R6 R7 R8 R9 S0 S1 S2 S3 S4 S5 S6 S7 S8 S9 T0 T1 T2 T3 T4 T5 T6 T7 T8 T9
    U0 U1 U2 U3 U4 U5 U6 U7 U8 U9 V0 V1 V2 V3 V4 V5 V6 V7 V8 V9 W0 W1 W2 W3 W4 W5 W6 W7 W8 W9 X0 X1 X2 X3 X4 X5 X6 X7 X8
}

wide!(wide: Aed Aud Brl Cad Chf Cny Czk Dkk Eur Gbp Huf Inr Jpy Nok Nzd Pln Sek Usd);
wide!(less_wide: Aed Aud Brl Cad Chf Cny Czk Dkk Eur Gbp Huf Inr Jpy Nok Nzd Pln Usd);

promises! {
    g14_a_type_that_takes_less_is_refused_where_a_row_shows_it:
    "an integer with gaps loses one": ranks::P => fewer_ranks::P, r#"{"rank":10}"#;
    "an integer has to be a multiple of five": v_u32::P => v_five::P, r#"{"cents":3}"#;
    "a float has to be positive": v_f64::P => v_positive::P, r#"{"x":-1.5}"#;
    "a float gets bounds": v_f64::P => v_bounded::P, r#"{"x":100.5}"#;
    "a list must not be empty": v_list::P => v_not_empty::P, r#"{"items":[]}"#;
    "a list gets a greatest length": v_list::P => v_at_most_two::P, r#"{"items":[1,2,3]}"#;
    "a string gets a greatest length": v_str::P => v_short::P, &format!(r#"{{"name":"{}"}}"#, "a".repeat(101));
    "a string has to be ASCII": v_str::P => v_ascii::P, r#"{"name":"Zoë"}"#;
    "a set of currencies loses one": v_usd_or_eur::P => v_usd::P, r#"{"currency":"EUR"}"#;
    "a decimal in a string becomes an integer": v_decimal::P => v_integer::P, r#"{"amount":"1.5"}"#;
    "an address becomes one of version 4": ip::P => ipv4::P, r#"{"from":"::1"}"#;
    "`u128` becomes `i128`": w_u128::P => w_i128::P, &format!(r#"{{"x":{}}}"#, u128::MAX);
    "two members become one by an alias": two_names::P => one_name::P, r#"{"note":1,"memo":2}"#;
    "a member that was passed on gets a type": passes_on::P => promoted::P, r#"{"cents":1,"note":5}"#;
    "an enum with a variant called `*` loses another":
        scopes_three::P => scopes_two::P, r#"{"scope":"Write"}"#;
    "a tuple becomes a struct with a flattened member": pair::P => pair_flat::P, r#"{"at":[1,2]}"#;
    "a place with two kinds of values loses one":
        ways_two::P => ways_one::P, r#"{"by":{"is":"A","v":"x"}}"#;
    "a character gets a rule": chars::P => letters::P, r#"{"seat":"A"}"#;
    "two members get a rule together": v_pair::P => v_period::P, r#"{"of":[2,1]}"#;
    "a time is read in whole seconds": at::P => v_whole::P, r#"{"at":"2000-01-01T00:00:00.500Z"}"#;
    "a URL has to be https": v_url::P => v_https::P, r#"{"hook":"http://a.example/"}"#;
    "a UUID without hyphens becomes one that needs them":
        u_simple::P => hyphenated::P, r#"{"id":"00000000000000000000000000000000"}"#;
    "an enum with an untagged variant loses a tagged one":
        mixed_two::P => mixed_one::P, r#"{"by":{"Card":{"last":4242}}}"#;
    "a variant goes behind two thousand alternatives":
        wide::P => less_wide::P, &currency_behind_countries("Sek");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_form_reads_is_told() {
    sees_the_same::<card_or_any::P, short_card_or_any::P>(r#"{"by":{"last":4242}}"#, "4242").await;
    sees_the_same::<colour_text::P, colours::P>(r#"{"colour":"Blue"}"#, "Blue").await;
}

fn currency_behind_countries(currency: &str) -> String {
    let names = [
        "billing", "shipping", "origin", "customs", "carrier", "seller", "buyer", "bank", "issuer",
    ];
    let members: Vec<String> = names.iter().map(|name| format!(r#""{name}":"A0""#)).collect();
    format!(r#"{{{},"currency":"{currency}"}}"#, members.join(","))
}
