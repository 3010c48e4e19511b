//! Any bytes as a body, JSON and form: no panic; what is accepted as JSON is the same request when it
//! is written anew.

#![no_main]

use atomic_phases::fingerprint::{RequestOrigin, Unfingerprinted, fingerprint};
use atomic_phases::http::{Bodies, Policy};
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use libfuzzer_sys::fuzz_target;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Parameters {
    amount: f64,
    count: i64,
    note: String,
    tags: Vec<i64>,
    extra: serde_json::Value,
    sent_at: Unfingerprinted<Option<String>>,
}

fuzz_target!(|body: &[u8]| {
    let policy = Policy::default().bodies(Bodies::JsonOrForm);
    let of = |content_type| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    let form = of("application/x-www-form-urlencoded");
    let _ = policy.parameters::<Parameters>(&form, body);
    let json = of("application/json");
    let _ = policy.parameters::<serde_json::Value>(&json, body);
    let Ok(first) = policy.parameters::<Parameters>(&json, body) else { return };
    let origin = RequestOrigin::new("POST", "/", None);
    let again = serde_json::to_vec(&first).expect("it came from JSON");
    let second: Parameters =
        policy.parameters(&json, &again).ok().expect("what was accepted is accepted again");
    let [first, second] = [&first, &second].map(|params| fingerprint(&origin, params).ok());
    assert!(first == second, "another request");
});
