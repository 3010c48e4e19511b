//! The canonical form itself; what a client sees of it is in `tests/requests/fingerprint.rs`.

use std::collections::{BTreeMap, HashMap};

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::*;

mod left_out;
mod properties;

pub(super) fn canonical<T: Serialize + ?Sized>(value: &T) -> Result<String, FingerprintError> {
    let mut out = Vec::new();
    canonical::write(&mut out, value)?;
    Ok(String::from_utf8(out).unwrap())
}

fn text<T: Serialize + ?Sized>(value: &T) -> String {
    canonical(value).unwrap()
}

/// The place and the rule of the error.
fn refused<T: Serialize + ?Sized>(value: &T) -> (String, FingerprintRule) {
    let error = canonical(value).unwrap_err();
    (error.path(), error.rule())
}

#[test]
fn g9_the_canonical_text_of_each_fixture_is_what_the_second_implementation_writes() {
    #[derive(Deserialize)]
    struct Case {
        name: String,
        body: String,
        canonical: String,
    }
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../tests/fixtures/fingerprints.json")).unwrap();
    for case in cases {
        let body: serde_json::Value = serde_json::from_str(&case.body).unwrap();
        assert_eq!(text(&body), case.canonical, "{}", case.name);
    }
}

#[test]
fn g9_the_preimage_is_one_canonical_object_of_origin_and_parameters() {
    let origin = RequestOrigin::new("POST", "/a\"b", Some("x=1"));
    assert_eq!(
        String::from_utf8(preimage(&origin, &[1]).unwrap()).unwrap(),
        r#"{"method":"POST","params":[1],"path":"/a\"b","query":"x=1"}"#
    );
    assert_eq!(
        String::from_utf8(preimage(&RequestOrigin::default(), &()).unwrap()).unwrap(),
        r#"{"method":"","params":null,"path":"","query":null}"#
    );
}

#[derive(Serialize)]
enum Shape {
    Unit,
    Newtype(u8),
    Tuple(u8, u8),
    Struct { b: u8, a: u8 },
}

#[derive(Serialize)]
struct Unit;

#[derive(Serialize)]
struct Newtype(u8);

#[derive(Serialize)]
struct Pair(u8, u8);

#[test]
fn every_kind_of_value_has_the_shape_that_serde_json_gives_it() {
    assert_eq!(text(&(Unit, Newtype(1), Pair(1, 2), (), 'é')), r#"[null,1,[1,2],null,"é"]"#);
    let shapes = [Shape::Unit, Shape::Newtype(1), Shape::Tuple(1, 2), Shape::Struct { b: 1, a: 2 }];
    assert_eq!(text(&shapes), r#"["Unit",{"Newtype":1},{"Tuple":[1,2]},{"Struct":{"a":2,"b":1}}]"#);
    assert_eq!(text(&(Some(1), None::<u8>, true)), "[1,null,true]");
    struct Bytes;
    impl Serialize for Bytes {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&[0, 255])
        }
    }
    assert_eq!(text(&Bytes), "[0,255]");
}

#[test]
fn integers_are_exact_at_any_width_and_never_look_like_a_float() {
    assert_eq!(
        text(&(i128::MIN, u128::MAX, i64::MIN, u64::MAX, 9_007_199_254_740_993_u64)),
        "[-170141183460469231731687303715884105728,340282366920938463463374607431768211455,\
         -9223372036854775808,18446744073709551615,9007199254740993]"
    );
    assert_eq!(text(&(1.0_f64, 1.0_f32, 100.0_f64, 1e300_f64)), "[1e0,1e0,1e2,1e300]");
    assert_eq!(text(&(0.0_f64, -0.0_f64, -0.0_f32, -1.5_f64)), "[0e0,0e0,0e0,-1.5e0]");
}

#[test]
fn an_f32_counts_as_its_value_whatever_the_width_of_the_field() {
    assert_eq!(text(&0.5_f32), text(&0.5_f64));
    assert_eq!(text(&0.1_f32), "1.0000000149011612e-1");
    assert_ne!(text(&0.1_f32), text(&0.1_f64));
}

#[test]
fn a_float_without_a_json_form_is_refused_and_its_place_is_named() {
    #[derive(Serialize)]
    struct Order {
        items: Vec<Item>,
    }
    #[derive(Serialize)]
    struct Item {
        price: f64,
    }
    let order = |price| Order { items: vec![Item { price: 1.0 }, Item { price }] };
    for price in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(refused(&order(price)), ("items[1].price".into(), FingerprintRule::NotFinite));
    }
    assert_eq!(refused(&f32::NAN), (String::new(), FingerprintRule::NotFinite));
    let shown = canonical(&order(f64::NAN)).unwrap_err().to_string();
    assert!(shown.starts_with("no fingerprint of `items[1].price`: a float"), "{shown}");
}

#[test]
fn a_number_in_disguise_is_the_number_that_serde_json_reads() {
    // What `Number` does under `arbitrary_precision`; here without the feature.
    struct Token(&'static str);
    impl Serialize for Token {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeStruct;
            const NAME: &str = "$serde_json::private::Number";
            let mut number = serializer.serialize_struct(NAME, 1)?;
            number.serialize_field(NAME, self.0)?;
            number.end()
        }
    }
    for (token, expected) in [
        ("1", "1"),
        ("1.0", "1e0"),
        ("1E2", "1e2"),
        ("-0", "0e0"),
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "1.8446744073709552e19"),
        ("0.10000", "1e-1"),
    ] {
        assert_eq!(text(&Token(token)), expected);
    }
    for token in ["1e400", "NaN", "", "0x10", "007", "secret"] {
        assert_eq!(refused(&[Token(token)]), ("[0]".into(), FingerprintRule::NumberOutOfRange));
    }
}

#[test]
fn raw_json_counts_as_its_text() {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    assert_eq!(text(&raw(r#"{"b":1, "a":2}"#)), r#""{\"b\":1, \"a\":2}""#);
}

#[test]
fn the_keys_of_maps_are_those_of_serde_json() {
    #[derive(Serialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
    enum Letter {
        B,
        A,
    }
    assert_eq!(text(&BTreeMap::from([(Letter::B, 1), (Letter::A, 2)])), r#"{"A":2,"B":1}"#);
    assert_eq!(text(&BTreeMap::from([(9, 1), (10, 2), (-1, 3)])), r#"{"-1":3,"10":2,"9":1}"#);
    assert_eq!(text(&BTreeMap::from([(true, 1), (false, 2)])), r#"{"false":2,"true":1}"#);
    assert_eq!(text(&BTreeMap::from([('z', 1), ('"', 2)])), r#"{"\"":2,"z":1}"#);
    assert_eq!(text(&BTreeMap::from([(u128::MAX, ())])), format!(r#"{{"{}":null}}"#, u128::MAX));
    let no_text = BTreeMap::from([(vec![1], 1)]);
    assert_eq!(refused(&no_text), ("[key]".into(), FingerprintRule::MapKey));
    assert_eq!(refused(&BTreeMap::from([((), 1)])).1, FingerprintRule::MapKey);
}

#[test]
fn a_member_twice_is_refused() {
    struct Twice;
    impl Serialize for Twice {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            map.serialize_entry("canary", &1)?;
            map.serialize_entry("b", &2)?;
            map.serialize_entry("canary", &1)?;
            map.end()
        }
    }
    assert_eq!(refused(&Some(Twice)), ("[key]".into(), FingerprintRule::DuplicateMember));

    #[derive(Serialize)]
    struct Renamed {
        #[serde(rename = "a")]
        one: u8,
        #[serde(flatten)]
        rest: HashMap<String, u8>,
    }
    let clash = Renamed { one: 1, rest: HashMap::from([("a".into(), 2)]) };
    assert_eq!(refused(&clash).1, FingerprintRule::DuplicateMember);
}

#[test]
fn endless_nesting_is_refused_before_it_costs_the_stack() {
    struct Endless;
    impl Serialize for Endless {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut seq = serializer.serialize_seq(None)?;
            seq.serialize_element(self)?;
            seq.end()
        }
    }
    let (path, rule) = refused(&Endless);
    assert_eq!(rule, FingerprintRule::TooDeep);
    assert_eq!(path, "[0]".repeat(error::MAX_DEPTH));

    let nested = |levels: usize| -> serde_json::Value {
        (0..levels).fold(serde_json::Value::Null, |inner, level| match level % 2 {
            0 => serde_json::json!([inner]),
            _ => serde_json::json!({ "a": inner }),
        })
    };
    assert!(canonical(&nested(error::MAX_DEPTH)).is_ok());
    assert_eq!(refused(&nested(error::MAX_DEPTH + 1)).1, FingerprintRule::TooDeep);
}

#[test]
fn g19_no_error_holds_a_value() {
    struct Talkative;
    impl Serialize for Talkative {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("canary"))
        }
    }
    let map = HashMap::from([("canary", HashMap::from([("canary", Talkative)]))]);
    let error = canonical(&map).unwrap_err();
    assert_eq!((error.path().as_str(), error.rule()), ("[key][key]", FingerprintRule::Refused));
    assert!(!format!("{error} {error:?} {error:#?}").contains("canary"));

    let origin = RequestOrigin::new("POST", "/canary", Some("canary"));
    assert!(!format!("{origin:?}").contains("canary"));
    let fingerprint = fingerprint(&origin, "canary").unwrap();
    assert_eq!(format!("{fingerprint:?}").len(), "Fingerprint(v1:00000000…)".len());
}

#[test]
fn g14_a_version_of_a_newer_process_is_left_alone() {
    let origin = RequestOrigin::default();
    let stored = fingerprint(&origin, &1).unwrap().stored(&origin);
    for unknown in ["v2:00", "", "v1", "V1:00", "v1k:00", "00:v1:", "v1:00.00", &stored[..82]] {
        assert!(StoredFingerprint::parse(unknown).is_none(), "{unknown}");
    }
    assert!(StoredFingerprint::parse(&stored.replace("v1", "v2")).is_none());
}

#[test]
fn g9_a_row_knows_its_origin_and_its_derived_keys_do_not() {
    let origin = RequestOrigin::new("POST", "/rides", None);
    let own = fingerprint(&origin, &1).unwrap();
    let text = own.stored(&origin);
    let stored = StoredFingerprint::parse(&text).unwrap();
    assert_eq!(stored.version, FingerprintVersion::CURRENT);
    assert_eq!(stored.fingerprint, own.as_str());
    assert!(stored.came_by(&origin));
    for other in [
        RequestOrigin::new("PUT", "/rides", None),
        RequestOrigin::new("POST", "/ride", Some("s")),
        RequestOrigin::new("POST", "/rides", Some("")),
        RequestOrigin::default(),
    ] {
        assert!(!stored.came_by(&other), "{other:?}");
    }
    let elsewhere = fingerprint(&origin, &2).unwrap().stored(&origin);
    assert_ne!(elsewhere[67..], text[67..], "rows cannot be grouped by it");
    // Without a mark there is no second comparison.
    assert!(!StoredFingerprint::parse(own.as_str()).unwrap().came_by(&origin));
}

#[test]
fn only_the_very_same_text_matches() {
    let own = fingerprint(&RequestOrigin::default(), &1).unwrap();
    assert!(own.matches(own.as_str()));
    let longer = format!("{}0", own.as_str());
    let zero_ended = format!("{}\0", own.as_str());
    for other in
        ["", "v1:", &own.as_str()[..66], &longer, &zero_ended, &own.as_str().to_uppercase()]
    {
        assert!(!own.matches(other), "{other}");
    }
}
