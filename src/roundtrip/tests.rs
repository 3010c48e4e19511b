use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::*;

/// Where and why the value does not come back.
#[track_caller]
fn lost<T: Serialize + DeserializeOwned>(value: &T) -> (String, Because) {
    let loss = stored(value).unwrap_err();
    (Step::path(loss.path.iter()), loss.because)
}

#[track_caller]
fn comes_back<T: Serialize + DeserializeOwned>(value: &T) {
    let json = stored(value).unwrap();
    assert_eq!(json.get(), serde_json::to_string(value).unwrap());
}

#[derive(Serialize, Deserialize)]
struct Quote<T> {
    name: String,
    lines: Vec<Line<T>>,
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    rate: T,
}

fn quote<T>(rates: impl IntoIterator<Item = T>) -> Quote<T> {
    let lines = rates.into_iter().map(|rate| Line { rate }).collect();
    Quote { name: "a \"}],{[ b".into(), lines }
}

#[test]
fn a_float_without_a_json_form_is_found() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(lost(&quote([1.0, bad])), ("lines[1].rate".into(), Because::NotFinite));
        assert_eq!(lost(&quote([None, Some(bad)])), ("lines[1].rate".into(), Because::NotFinite));
        assert_eq!(lost(&bad), (String::new(), Because::NotFinite));
    }
    comes_back(&quote([0.1, -0.0, 98.37282740013183, f64::MIN_POSITIVE]));
    comes_back(&quote([0.1_f32, f32::MAX]));
}

#[test]
fn a_nested_option_is_found() {
    assert_eq!(lost(&quote([Some(None::<u8>)])), ("lines[0].rate".into(), Because::Differs));
    assert_eq!(lost(&Some(())).1, Because::Differs);
    comes_back(&quote([None, Some(Some(1))]));
}

#[test]
fn a_key_that_is_no_text_is_found() {
    let map = BTreeMap::from([((1, 2), 3)]);
    assert_eq!(lost(&quote([map])), ("lines[0].rate[key]".into(), Because::NotWritten));
    comes_back(&quote([BTreeMap::from([(1, 2), (3, 4)])]));
}

#[test]
fn a_member_that_is_not_written_or_not_read_is_found() {
    #[derive(Serialize, Deserialize)]
    struct Skipped {
        #[serde(skip_serializing)]
        #[allow(dead_code)]
        never: u8,
    }
    assert_eq!(lost(&quote([Skipped { never: 1 }])), ("lines[0].rate".into(), Because::NotRead));
    #[derive(Serialize, Deserialize)]
    struct Unless {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        items: Vec<u8>,
    }
    comes_back(&quote([Unless { items: vec![1] }]));
    let (path, because) = lost(&quote([Unless { items: vec![1] }, Unless { items: vec![] }]));
    assert_eq!((path.as_str(), because), ("lines[1].rate", Because::NotRead));
}

#[test]
fn an_untagged_variant_that_is_read_as_another_is_found() {
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Amount {
        Float(f64),
        Whole(i64),
    }
    let (path, because) = lost(&quote([Amount::Float(0.5), Amount::Whole(1)]));
    assert_eq!((path.as_str(), because), ("lines[1].rate", Because::Differs));
    #[derive(Serialize, Deserialize)]
    struct Paid {
        id: u8,
    }
    #[derive(Serialize, Deserialize)]
    struct Declined {
        id: u8,
    }
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Answer {
        Paid(Paid),
        Declined(Declined),
    }
    comes_back(&quote([Answer::Paid(Paid { id: 1 })]));
    assert_eq!(lost(&Answer::Declined(Declined { id: 1 })).1, Because::Differs);
}

#[test]
fn what_has_no_order_comes_back_in_any() {
    let texts = || (0..20).map(|n| n.to_string());
    comes_back(&quote([texts().collect::<HashSet<_>>()]));
    comes_back(&quote([texts().map(|text| (text, 1)).collect::<HashMap<_, _>>()]));
    // An array is not a set: other defects in it are still found.
    let rates = [(1.0, texts().collect::<HashSet<_>>()), (f64::NAN, HashSet::new())];
    assert_eq!(lost(&quote(rates)), ("lines[1].rate[0]".into(), Because::NotFinite));
}

#[test]
fn g5_a_tuple_that_is_read_in_another_order_is_found() {
    struct Point {
        lat: f64,
        lon: f64,
    }
    impl Serialize for Point {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            (self.lon, self.lat).serialize(serializer)
        }
    }
    impl<'de> Deserialize<'de> for Point {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let (lat, lon) = Deserialize::deserialize(deserializer)?;
            Ok(Self { lat, lon })
        }
    }
    let place = || "lines[0].rate[0]".to_owned();
    assert_eq!(lost(&quote([Point { lat: 48.2, lon: 16.4 }])), (place(), Because::Differs));
    comes_back(&quote([Point { lat: 1.5, lon: 1.5 }]));

    struct Turned([u8; 2]);
    impl Serialize for Turned {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            [self.0[1], self.0[0]].serialize(serializer)
        }
    }
    impl<'de> Deserialize<'de> for Turned {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Deserialize::deserialize(deserializer).map(Self)
        }
    }
    assert_eq!(lost(&quote([Turned([1, 2])])), (place(), Because::Differs));
}

#[test]
fn a_map_as_a_list_of_pairs_comes_back_with_the_sets_in_it() {
    struct Pairs(HashMap<u8, HashSet<u8>>);
    impl Serialize for Pairs {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(&self.0)
        }
    }
    impl<'de> Deserialize<'de> for Pairs {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let pairs = Vec::<(u8, HashSet<u8>)>::deserialize(deserializer)?;
            Ok(Self(pairs.into_iter().collect()))
        }
    }
    let pairs = || Pairs((0..20).map(|key| (key, (key..key + 20).collect())).collect());
    comes_back(&quote([pairs(), pairs()]));
    let loss = difference(&pairs(), &pairs(), Order::Counts).unwrap();
    assert_eq!(loss.because, Because::Order);
}

#[test]
fn where_the_order_counts_a_set_is_told_from_an_array() {
    let found = |a: &Quote<Vec<u8>>, b: &Quote<Vec<u8>>| {
        difference(a, b, Order::Counts).map(|loss| (Step::path(loss.path.iter()), loss.because))
    };
    let one = quote([vec![1], vec![1, 2, 2]]);
    assert_eq!(found(&one, &quote([vec![1], vec![1, 2, 2]])), None);
    let path = || "lines[1].rate".to_owned();
    assert_eq!(found(&one, &quote([vec![1], vec![2, 1, 2]])), Some((path(), Because::Order)));
    assert_eq!(
        found(&one, &quote([vec![1], vec![2, 1, 1]])),
        Some((path() + "[0]", Because::Differs))
    );
}

#[test]
fn the_usual_kinds_of_values_come_back() {
    #[derive(Serialize, Deserialize)]
    enum Shape {
        Unit,
        Newtype(Option<u8>),
        Tuple(u8, String),
        Struct { a: char, b: () },
    }
    #[derive(Serialize, Deserialize)]
    struct Unit;
    #[derive(Serialize, Deserialize)]
    struct Flat {
        id: u128,
        #[serde(flatten)]
        rest: BTreeMap<String, serde_json::Value>,
        #[serde(skip)]
        #[allow(dead_code)]
        cache: Option<u8>,
    }
    comes_back(&(Shape::Unit, Shape::Newtype(None), Shape::Tuple(1, "é\n\u{0}".into())));
    comes_back(&(Shape::Struct { a: '"', b: () }, Unit, (), [0_u8; 3], i128::MIN));
    let rest = BTreeMap::from([("x".to_owned(), serde_json::json!({"y": [1, 2.5, null]}))]);
    comes_back(&Flat { id: u128::MAX, rest, cache: None });
    comes_back(&(std::time::Duration::MAX, std::net::Ipv4Addr::LOCALHOST));
    comes_back(&serde_json::value::RawValue::from_string("[1, {}]".into()).unwrap());
}

#[test]
fn g19_a_reason_names_the_place_in_the_type_and_no_value() {
    let map = BTreeMap::from([("canary".to_owned(), f64::NAN)]);
    let loss = stored(&quote([BTreeMap::new(), map])).unwrap_err();
    let reason = loss.reason();
    assert!(
        reason.starts_with("`lines[].rate[key]` of the output is a float that is NaN"),
        "{reason}"
    );
    let loss = stored(&f64::NAN).unwrap_err();
    assert!(loss.reason().starts_with("the output as a whole is a float"), "{}", loss.reason());
    assert!(std::ptr::eq(loss.reason(), loss.reason()), "kept once");
}
