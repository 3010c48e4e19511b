//! The fingerprint of a request: by it a key that is used for another request is told from a retry
//! (G9).
//!
//! `v1:` and the lower-case hex of SHA-256 over the canonical JSON of method, path, query and the
//! *typed* parameters. Because it is taken over what the handler sees, two bodies are the same
//! request exactly when the handler would see the same values: white space, member order, escapes
//! and the encoding of the body do not count, every value does. No cargo feature of any dependency
//! changes a fingerprint (`canonical` never goes through `serde_json::Value`).

mod canonical;
mod unfingerprinted;

use serde::Serialize;
use sha2::{Digest, Sha256};

pub use self::canonical::FingerprintError;
pub use self::unfingerprinted::Unfingerprinted;

use crate::key::hex;

/// By which HTTP method, path and query a request came. Part of its fingerprint; empty for one that
/// did not come over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOrigin {
    method: String,
    path: String,
    query: Option<String>,
}

impl RequestOrigin {
    /// The method in upper case, the path and the query as they stand in the request line.
    #[must_use]
    pub fn new(method: impl Into<String>, path: impl Into<String>, query: Option<&str>) -> Self {
        Self { method: method.into(), path: path.into(), query: query.map(str::to_owned) }
    }
}

/// A fingerprint of the newest version that this crate writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(String);

const V1: &str = "v1:";

impl Fingerprint {
    /// Takes the fingerprint of `params`, which came by `origin`.
    ///
    /// # Errors
    /// [`FingerprintError`] where the parameters have no canonical form.
    pub fn of<T: Serialize + ?Sized>(
        origin: &RequestOrigin,
        params: &T,
    ) -> Result<Self, FingerprintError> {
        let text = format!(
            r#"{{"method":{},"params":{},"path":{},"query":{}}}"#,
            canonical::json(&origin.method)?,
            canonical::json(params)?,
            canonical::json(&origin.path)?,
            canonical::json(&origin.query)?,
        );
        Ok(Self(format!("{V1}{}", hex(&Sha256::digest(text.as_bytes())))))
    }

    /// The version, a colon and the hash in hex.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a stored fingerprint is this one, compared in constant time. `None` where it was
    /// written by a version that this crate does not know: the row belongs to a newer process (G14).
    #[must_use]
    pub(crate) fn matches(&self, stored: &str) -> Option<bool> {
        stored.starts_with(V1).then(|| {
            let pairs = self.0.bytes().zip(stored.bytes());
            let differences = pairs.fold(0, |different, (a, b)| different | (a ^ b));
            self.0.len() == stored.len() && differences == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Serialize, Deserialize)]
    struct Params {
        amount: i64,
        #[serde(default)]
        rate: f64,
        #[serde(default)]
        name: String,
        #[serde(default)]
        tags: Vec<String>,
        #[serde(default)]
        nested: BTreeMap<String, BTreeMap<String, i64>>,
        #[serde(default)]
        sent_at: Unfingerprinted<i64>,
    }

    fn of(body: &str) -> Fingerprint {
        let params: Params = serde_json::from_str(body).unwrap();
        Fingerprint::of(&RequestOrigin::new("POST", "/rides", None), &params).unwrap()
    }

    #[test]
    fn wire_50_a_value_the_method_the_path_and_the_query_count() {
        assert_ne!(of(r#"{"amount":1}"#), of(r#"{"amount":2}"#));
        let origins = [
            RequestOrigin::new("POST", "/rides", None),
            RequestOrigin::new("PATCH", "/rides", None),
            RequestOrigin::new("POST", "/ride", None),
            RequestOrigin::new("POST", "/rides", Some("")),
            RequestOrigin::new("POST", "/rides", Some("a=1")),
            RequestOrigin::default(),
        ];
        for (i, one) in origins.iter().enumerate() {
            for (j, other) in origins.iter().enumerate() {
                let same = Fingerprint::of(one, &1).unwrap() == Fingerprint::of(other, &1).unwrap();
                assert_eq!(same, i == j, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn wire_51_member_order_white_space_escapes_and_the_spelling_of_a_float_do_not_count() {
        let plain = of(r#"{"amount":1,"rate":1.0,"name":"é","nested":{"a":{"x":1,"y":2},"b":{}}}"#);
        let odd = of(
            "{ \"nested\": {\"b\":{},\"a\":{\"y\":2,\"x\":1}}, \"name\":\"\\u00e9\",\n\"rate\":1, \"amount\":1 }",
        );
        assert_eq!(plain, odd);
        assert_eq!(of(r#"{"amount":1,"rate":100}"#), of(r#"{"amount":1,"rate":1e2}"#));
        assert_eq!(of(r#"{"amount":1,"rate":0.0}"#), of(r#"{"amount":1,"rate":-0.0}"#));
    }

    #[test]
    fn wire_52_array_order_counts() {
        assert_ne!(of(r#"{"amount":1,"tags":["a","b"]}"#), of(r#"{"amount":1,"tags":["b","a"]}"#));
    }

    #[test]
    fn wire_53_integers_count_past_2_to_the_53() {
        assert_ne!(of(r#"{"amount":9007199254740993}"#), of(r#"{"amount":9007199254740992}"#));
    }

    #[test]
    fn wire_54_unicode_is_not_normalised() {
        let composed = of("{\"amount\":1,\"name\":\"\u{e9}\"}");
        assert_ne!(composed, of("{\"amount\":1,\"name\":\"e\u{301}\"}"));
    }

    #[test]
    fn wire_56_a_field_that_is_no_part_of_the_request_does_not_count() {
        assert_eq!(of(r#"{"amount":1,"sent_at":1}"#), of(r#"{"amount":1,"sent_at":2}"#));
        assert_eq!(of(r#"{"amount":1,"sent_at":1}"#), of(r#"{"amount":1}"#));
    }

    #[test]
    fn a_newer_version_is_not_judged() {
        let one = of(r#"{"amount":1}"#);
        assert_eq!(one.matches(one.as_str()), Some(true));
        assert_eq!(one.matches(of(r#"{"amount":2}"#).as_str()), Some(false));
        assert_eq!(one.matches(&one.as_str()[..20]), Some(false), "cut off");
        assert_eq!(one.matches("v2:anything"), None);
        assert_eq!(one.matches(""), None);
    }

    #[test]
    fn the_form_of_version_1_is_fixed() {
        // sha256 of {"method":"POST","params":{"a":1,"b":[2.5e0,null,"x\"y"]},"path":"/p","query":"q=1"},
        // taken with Python's hashlib.
        #[derive(Serialize)]
        struct P {
            b: (f64, Option<u8>, &'static str),
            a: u8,
        }
        let params = P { a: 1, b: (2.5, None, "x\"y") };
        assert_eq!(
            Fingerprint::of(&RequestOrigin::new("POST", "/p", Some("q=1")), &params)
                .unwrap()
                .as_str(),
            "v1:18dfce7dfaded9936270d98b8fdac72ed4dda942ba820190a12dc1a0cb9148cf"
        );
    }
}
