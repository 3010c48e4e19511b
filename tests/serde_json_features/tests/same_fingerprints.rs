//! Fingerprint v1 with `arbitrary_precision` and `preserve_order`: the fixtures of the main tests, except where the handler
//! sees more digits (G9).

use atomic_phases::fingerprint::{FingerprintRule, RequestOrigin, fingerprint};
use atomic_phases::http::Policy;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    name: String,
    method: String,
    path: String,
    query: Option<String>,
    body: String,
    fingerprint: String,
}

#[test]
fn the_features_are_really_on() {
    let value: Value = serde_json::from_str(r#"{"b":1.000,"a":1}"#).unwrap();
    assert_eq!(value.to_string(), r#"{"b":1.000,"a":1}"#);
}

/// With numbers that no float holds: without the feature a handler sees the next float.
const LONG_NUMBERS: [&str; 5] = [
    "one below i64",
    "one above u64",
    "underflow",
    "more digits than a float has",
    "numbers all the way down",
];

#[test]
fn g9_v1_does_not_depend_on_the_features_of_serde_json() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../fixtures/fingerprints.json")).unwrap();
    assert!(cases.len() >= 40);
    for case in cases {
        let origin = RequestOrigin::new(case.method, case.path, case.query.as_deref());
        let body: Value = serde_json::from_str(&case.body).unwrap();
        let found = fingerprint(&origin, &body).unwrap();
        let is_long = LONG_NUMBERS.contains(&case.name.as_str());
        assert_eq!(found.as_str() != case.fingerprint, is_long, "{}", case.name);
    }
}

#[test]
fn g9_each_digit_that_the_handler_sees_counts() {
    let of = |body: &str| {
        let body: Value = serde_json::from_str(body).unwrap();
        fingerprint(&RequestOrigin::default(), &body).unwrap()
    };
    for (one, other) in [
        ("18446744073709551616", "18446744073709551617"),
        ("-9223372036854775809", "-9223372036854775810"),
        ("0.1", "0.10000000000000000001"),
        ("1e-400", "0.0"),
    ] {
        assert_ne!(of(one), of(other), "{one}");
    }
    for (one, other) in [
        ("18446744073709551616", "1844674407370955161.60E1"),
        ("0.1000", "1e-1"),
        ("-0.0", "0e5"),
        ("1.0", "100e-2"),
    ] {
        assert_eq!(of(one), of(other), "{one}");
    }
    let float = fingerprint(&RequestOrigin::default(), &1e20).unwrap();
    assert_eq!(float, of("100000000000000000000"));
}

/// Without the feature the parser refuses the number; with the feature, the fingerprint does.
#[test]
fn a_number_that_no_handler_can_hold_is_refused() {
    let body: Value = serde_json::from_str(r#"{"a":[1e400]}"#).unwrap();
    let error = fingerprint(&RequestOrigin::default(), &body).unwrap_err();
    assert_eq!(
        (error.path().as_str(), error.rule()),
        ("[key][0]", FingerprintRule::NumberOutOfRange)
    );
}

/// With the feature, numbers arrive as objects with a reserved name; a body that contains such a name is still
/// refused.
#[test]
fn a_body_with_numbers_is_read_and_a_reserved_name_is_refused() {
    let read = |body: &str| {
        let mut request = http::Request::builder().header("content-type", "application/json");
        let headers = std::mem::take(request.headers_mut().unwrap());
        Policy::default()
            .parameters::<Value>(&headers, body.as_bytes())
            .map(|value| value.to_string())
    };
    for body in [r#"{"lat":2.5,"of":[1,-1.50e+3,{"n":12345678901234567890123}]}"#, "7"] {
        assert_eq!(read(body).ok().as_deref(), Some(body));
    }
    for body in [
        r#"{"$serde_json::private::Number":"5"}"#,
        r#"{"$serde_json::private::Number":"\u0035"}"#,
        r#"{"a":{"\u0024serde_json::private::RawValue":"{}"}}"#,
        r#"{"a":1.5,"a":1.5}"#,
    ] {
        assert!(read(body).is_err(), "{body}");
    }
}
