use std::time::Duration;

use super::duration_text;
use super::read::duration;
use super::write::quoted;
use crate::lock::{Lock, State};

const FILE: &str = r#"# Written by `ATOMIC_PHASES_LOCK=update cargo test`. Review it like a migration: rows in flight, clients'
# retries and providers depend on what is in it.
format = 1
definition = "rides.create"
version = 2
state = "current"

[request]
shape = "{origin: Point, user_id: i64, note?: str?}"

[[request.sample]]
json = '{"origin":{"lat":0.5,"lon":0.5},"user_id":1,"note":null}'
fingerprint = "v1:6f1c"

[[phase]]
name = "ride_created"
kind = "local"
output = "{id: i64}"
asked_by = ["charge_made", "receipt_staged"]
samples = [
    '{"id":1}',
    '{"id":-1}',
]

[[phase]]
name = "charge_made"
was = ["charged", "charge_created"]
kind = "foreign"
effect = "idempotent"
window = "24h"
provider_key = "charge_created"
derived = "kJ3"
output = "{id: str}"
samples = [
    "{\"id\":\"it's\"}",
]

[[phase]]
name = "pilot_called"
kind = "foreign"
effect = "at_most_once"
provider_key = "pilot_called"
reconciles = true
output = "null"
asked_by = []

[[phase]]
name = "receipt_staged"
kind = "local"
output = "reply"

[[job]]
name = "send_receipt"
args = "{ride: str}"
samples = [
    '{"ride":""}',
]

[types]
Point = "{lat: f64, lon: f64}"
"#;

#[test]
fn a_file_that_is_read_and_written_has_the_same_bytes() {
    let lock = Lock::parse(FILE).unwrap();
    assert_eq!(lock.phases[1].provider_key(), "charge_created");
    assert_eq!(lock.to_toml(), FILE);
    for state in [State::Draining, State::Retired("2026-11-20".into())] {
        let lock = Lock { state, ..lock.clone() };
        assert_eq!(Lock::parse(&lock.to_toml()), Ok(lock));
    }
}

#[test]
fn what_is_no_lock_file_is_refused_with_the_reason() {
    for (from, to, because) in [
        ("format = 1", "format = 2", "format 2"),
        ("version = 2", "version = \"2\"", "line 5"),
        ("state = \"current\"", "state = \"old\"", "state"),
        ("\"24h\"", "\"24\"", "window"),
        ("effect = \"at_most_once\"\n", "", "kind"),
        ("provider_key = \"charge_created\"", "provider_key = \"charged\"", "provider_key"),
        ("lon: f64}\"", "lon f64}\"", "a shape has"),
        ("Point = \"{lat: f64, lon: f64}\"", "Point = \"Point?\"", "defined by itself"),
        ("Point = \"{lat: f64, lon: f64}\"", "Point = \"union {u8, Point}\"", "defined by itself"),
        ("Point = \"{lat: f64, lon: f64}\"", "Point = \"Point but [1]\"", "defined by itself"),
        ("Point = \"{lat: f64, lon: f64}\"", "", "Point is not in [types]"),
        ("args = \"{ride: str}\"", "args = \"{ride: i46}\"", "i46 is not in [types]"),
        ("derived", "derivd", "derivd"),
    ] {
        let text = FILE.replacen(from, to, 1);
        assert_ne!(text, FILE, "{from}");
        let error = Lock::parse(&text).unwrap_err().to_string();
        assert!(error.contains(because), "{from} -> {to}: {error}");
    }
}

#[test]
fn a_time_comes_back_from_its_text() {
    for millis in [0, 1, 1000, 60_000, 90_000, 86_400_000, 1_500] {
        let time = Duration::from_millis(millis);
        assert_eq!(duration(&duration_text(time)), Some(time));
    }
}

proptest::proptest! {
    #[test]
    fn any_string_comes_back(text in "\\PC{0,20}|[\"'\\\\\n\t\u{1}a]{0,9}") {
        let file = format!("a = {}", quoted(&text));
        let table: toml::Table = file.parse().unwrap();
        proptest::prop_assert_eq!(table["a"].as_str(), Some(text.as_str()));
    }
}
