//! Fingerprint v1 with `arbitrary_precision` and `preserve_order`: exactly the fixtures of the main tests (G9).

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

#[test]
fn g9_v1_does_not_depend_on_the_features_of_serde_json() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../fixtures/fingerprints.json")).unwrap();
    assert!(cases.len() >= 40);
    for case in cases {
        let origin = RequestOrigin::new(case.method, case.path, case.query.as_deref());
        let body: Value = serde_json::from_str(&case.body).unwrap();
        let found = fingerprint(&origin, &body).unwrap();
        assert_eq!(found.as_str(), case.fingerprint, "{}", case.name);
    }
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
