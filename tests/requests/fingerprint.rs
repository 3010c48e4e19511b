//! Which requests are the same (G9): rows 50 to 59 and 79 of the wire contract, as far as the typed parameters
//! decide them (row 58, another key, is a test of the derived key). The tests of the HTTP boundary cover the
//! statuses.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::support::*;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::fingerprint::{
    Fingerprint, FingerprintRule, RequestOrigin, Unfingerprinted, fingerprint,
};
use atomic_phases::phase::DerivedKey;
use atomic_phases::request::{RequestDefinition, assert_sound};
use atomic_phases::{
    Batch, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, atomic_phases,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

on_every_store! {
    g9_a_field_that_was_added_with_a_default_makes_no_mismatch,
    g9_what_the_callers_type_cannot_read_is_no_mismatch_and_not_replayed,
    g9_parameters_that_read_differently_each_time_are_refused_at_the_first_request,
    g5_a_float_without_a_json_form_is_refused_outside_of_the_fingerprint_too,
}

#[derive(Debug, Serialize, Deserialize)]
struct CreateRide {
    user_id: i64,
    distance: f64,
    note: String,
    stops: Vec<u32>,
    origin: Point,
    sent_at: Unfingerprinted<Option<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Point {
    lat: f64,
    lon: f64,
}

const BODY: &str = r#"{"user_id":9007199254740993,"distance":1.0,"note":"café","stops":[1,2],
    "origin":{"lat":0.1,"lon":-0.2},"sent_at":"10:00"}"#;

fn origin() -> RequestOrigin {
    RequestOrigin::new("POST", "/rides", None)
}

fn of_body<T: Serialize + DeserializeOwned>(body: &str) -> Fingerprint {
    fingerprint(&origin(), &serde_json::from_str::<T>(body).unwrap()).unwrap()
}

fn ride(body: &str) -> Fingerprint {
    of_body::<CreateRide>(body)
}

/// `BODY` with one part of its text replaced.
fn with(part: &str, other: &str) -> Fingerprint {
    assert!(BODY.contains(part), "{part}");
    ride(&BODY.replace(part, other))
}

#[test]
fn g9_v1_is_what_it_always_was() {
    #[derive(Deserialize)]
    struct Case {
        name: String,
        method: String,
        path: String,
        query: Option<String>,
        body: String,
        fingerprint: String,
    }
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../fixtures/fingerprints.json")).unwrap();
    assert!(cases.len() >= 40);
    for case in cases {
        let origin = RequestOrigin::new(case.method, case.path, case.query.as_deref());
        let body: serde_json::Value = serde_json::from_str(&case.body).unwrap();
        let found = fingerprint(&origin, &body).unwrap();
        assert_eq!(found.as_str(), case.fingerprint, "{}", case.name);
    }
}

#[test]
fn g9_v1_of_typed_parameters_is_what_it_always_was() {
    #[derive(Serialize)]
    struct Ride {
        user_id: u64,
        options: Vec<Choice>,
        note: &'static str,
        distance: f32,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        Fast,
        Tip(u8),
    }
    let options = vec![Choice::Fast, Choice::Tip(5)];
    let ride = Ride { user_id: 9_007_199_254_740_993, options, note: "café", distance: 1.0 };
    // sha256 of {"method":"POST","params":{"distance":1e0,"note":"café","options":["fast",
    // {"tip":5}],"user_id":9007199254740993},"path":"/rides","query":null}, by Python's hashlib.
    assert_eq!(
        fingerprint(&origin(), &ride).unwrap().as_str(),
        "v1:dd8084ad9b7a72413113fb2e7f458f56ac7e13d4cb13633202e11be217a1c5e9"
    );
}

#[test]
fn g9_row_50_a_value_the_method_the_path_and_the_query_count() {
    let parameters: CreateRide = serde_json::from_str(BODY).unwrap();
    let first = fingerprint(&origin(), &parameters).unwrap();
    assert_eq!(first, ride(BODY));
    assert_ne!(first, with("café", "cafe"));
    assert_ne!(first, with("0.1", "0.2"));
    for other in [
        RequestOrigin::new("PUT", "/rides", None),
        RequestOrigin::new("POST", "/rides/", None),
        RequestOrigin::new("POST", "/rides", Some("")),
        RequestOrigin::new("POST", "/rides", Some("dry_run=1")),
        RequestOrigin::default(),
    ] {
        assert_ne!(first, fingerprint(&other, &parameters).unwrap(), "{other:?}");
    }
}

#[test]
fn g9_row_51_how_a_value_is_written_does_not_count() {
    let first = ride(BODY);
    assert_eq!(first, with("1.0", "1"));
    assert_eq!(first, with("1.0", "10e-1"));
    assert_eq!(first, with("café", r"caf\u00e9"));
    assert_eq!(first, with("café", r"\u0063\u0061f\u00E9"));
    assert_eq!(first, with(",", " ,\n\t "));
    assert_eq!(first, with(r#""lat":0.1,"lon":-0.2"#, r#""lon":-0.20,"lat":1e-1"#));
    assert_eq!(first, with(r#"{"user_id""#, r#"{"a_field_that_the_type_ignores":[1],"user_id""#));
}

#[test]
fn g9_row_52_the_order_of_an_array_counts() {
    assert_ne!(ride(BODY), with("[1,2]", "[2,1]"));
    assert_ne!(ride(BODY), with("[1,2]", "[1,2,2]"));
}

#[test]
fn g9_row_53_integers_count_past_2_to_the_53() {
    assert_ne!(ride(BODY), with("9007199254740993", "9007199254740992"));
    assert_ne!(of_body::<u64>("18446744073709551615"), of_body::<u64>("18446744073709551614"));
    let untyped = of_body::<serde_json::Value>;
    assert_ne!(untyped("9007199254740993"), untyped("9007199254740992"));
}

#[test]
fn g9_row_54_composed_and_decomposed_text_are_two_texts() {
    assert_ne!(ride(BODY), with("café", "cafe\u{301}"));
}

#[test]
fn g9_row_55_a_member_twice_does_not_become_a_request() {
    let twice = BODY.replace(r#""distance":1.0"#, r#""distance":1.0,"distance":2.0"#);
    assert!(serde_json::from_str::<CreateRide>(&twice).is_err());
}

#[test]
fn g9_row_56_an_unfingerprinted_field_does_not_count_and_is_stored_all_the_same() {
    assert_eq!(ride(BODY), with("10:00", "11:00"));
    assert_eq!(ride(BODY), with(r#""10:00""#, "null"));
    assert_eq!(ride(BODY), with(r#","sent_at":"10:00""#, ""));
    let parameters: CreateRide = serde_json::from_str(BODY).unwrap();
    let stored = serde_json::to_string(&parameters).unwrap();
    let resumed: CreateRide = serde_json::from_str(&stored).unwrap();
    assert_eq!(resumed.sent_at.as_deref(), Some("10:00"));
}

#[test]
fn row_56_the_wrapper_is_invisible_elsewhere() {
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        A { at: Unfingerprinted<Option<u8>>, n: u8 },
    }
    for body in [r#"{"kind":"A","at":1,"n":2}"#, r#"{"kind":"A","at":null,"n":2}"#] {
        let value: Tagged = serde_json::from_str(body).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), body);
        assert_eq!(of_body::<Tagged>(body), of_body::<Tagged>(r#"{"kind":"A","n":2}"#));
    }
    assert_eq!(format!("{:?}", Unfingerprinted(Some(1))), "Some(1)");
    assert_eq!(Unfingerprinted::<u8>::default().0, 0);
}

#[test]
fn g9_row_57_json_and_form_of_equal_parameters_are_one_request() {
    #[derive(Serialize, Deserialize)]
    struct Charge {
        amount: u64,
        currency: String,
        sent_at: Unfingerprinted<Option<u64>>,
    }
    let form = axum_form::<Charge>("currency=e%C3%BAr&amount=500&sent_at=7");
    assert_eq!(
        fingerprint(&origin(), &form).unwrap(),
        of_body::<Charge>(r#"{"amount":500,"currency":"eúr"}"#)
    );
}

/// A form as an axum route receives it.
fn axum_form<T: DeserializeOwned>(body: &str) -> T {
    use axum::extract::{Form, FromRequest};
    let request = axum::http::Request::post("/")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(axum::body::Body::from(body.to_owned()))
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    match runtime.block_on(Form::<T>::from_request(request, &())) {
        Ok(Form(form)) => form,
        Err(rejection) => panic!("{rejection}"),
    }
}

#[test]
fn g9_row_59_a_stored_fingerprint_names_its_version() {
    let stored = ride(BODY).as_str().to_owned();
    assert!(stored.starts_with("v1:"));
    assert_eq!(stored.len(), 67);
    assert!(ride(BODY).matches(&stored));
    assert!(!with("café", "cafe").matches(&stored));
}

/// Without serde_json's `float_roundtrip`, which `Cargo.toml` enables, about every eighth coordinate changes by one
/// bit when it is stored and read. A resumed run would then send its provider another number.
#[test]
fn g5_a_stored_float_reads_back_as_itself() {
    for float in [98.37282740013183, 104.16853677408587, 159.85869657248585] {
        let stored = serde_json::to_string(&float).unwrap();
        let resumed: f64 = serde_json::from_str(&stored).unwrap();
        assert_eq!(resumed.to_bits(), f64::to_bits(float));
    }
}

#[test]
fn row_79_hostile_json_is_refused_by_the_parser_and_never_panics() {
    for body in ["1e400", r#""\ud800""#, &"[".repeat(10_000), r#"{"a":NaN}"#] {
        assert!(serde_json::from_str::<serde_json::Value>(body).is_err());
    }
    // What the parser accepts at its own limit is within the engine's.
    let deep = format!("{}1{}", "[".repeat(127), "]".repeat(127));
    of_body::<serde_json::Value>(&deep);
}

#[test]
fn f2_ten_megabytes_are_no_matter() {
    let long = "\u{e9}\n".repeat(10_000_000 / 3);
    let parameters = HashMap::from([("z", &long), ("a", &long)]);
    fingerprint(&origin(), &parameters).unwrap();
}

#[test]
fn the_options_of_serde_derive_just_work() {
    #[derive(Serialize, Deserialize)]
    struct Order {
        #[serde(rename = "type")]
        kind: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        #[serde(flatten)]
        rest: HashMap<String, Amount>,
    }
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Amount {
        Cents(u64),
        Text(String),
    }
    let first = of_body::<Order>(r#"{"type":"t","x":1,"y":"2"}"#);
    assert_eq!(first, of_body::<Order>(r#"{"y":"2","note":null,"x":1,"type":"t"}"#));
    assert_ne!(first, of_body::<Order>(r#"{"type":"t","x":"1","y":"2"}"#));
    let same = of_body::<serde_json::Value>(r#"{"type":"t","x":1,"y":"2"}"#);
    assert_eq!(first, same, "a type and the value of the same shape");
}

/// An order, as one deploy declares it.
macro_rules! order {
    ($name:ident, version $version:literal, { $($field:tt)* }) => {
        #[derive(Serialize, Deserialize)]
        struct $name { $($field)* }

        #[atomic_phases(name = "order", version = $version)]
        impl<Db: TestDb> $name {
            #[phase]
            async fn kept(&self, batch: &mut Batch<'_, Db>) -> PhaseResult<()> {
                Db::add_step(batch, "order", "kept");
                Ok(())
            }

            #[phase(foreign(idempotent))]
            async fn paid(&self, call: ForeignCall, app: &App) -> PhaseResult<()> {
                let pay = async |key: DerivedKey| {
                    Ok::<_, PhaseError>(app.provider.call(key.as_str(), "pay").await)
                };
                call.make(pay).await?;
                match app.provider.calls().len() {
                    1 => Err(PhaseError::retryable("asked for")),
                    _ => Ok(()),
                }
            }

            #[phase]
            async fn answered(&self, batch: &mut Batch<'_, Db>) -> PhaseResult<Reply> {
                Db::add_step(batch, "order", "answered");
                Ok(Reply::text(200, serde_json::to_string(self).unwrap()))
            }
        }
    };
}

order!(Order, version 1, { amount: i64 });
order!(WithNote, version 1, { amount: i64, #[serde(default)] note: Option<String> });
order!(OfVersion2, version 2, { amount: i64, #[serde(default)] note: Option<String> });
order!(InWords, version 1, { amount: String });

fn of<S: TestDb, R: RequestDefinition<S, App>>(db: &S, app: &App) -> Engine<S, App> {
    Engine::builder(db.clone()).app(app.clone()).register::<R>().build().unwrap()
}

/// The parameters are what today's handler sees.
async fn g9_a_field_that_was_added_with_a_default_makes_no_mismatch<S: TestDb>(db: S) {
    let app = App::default();
    let old = of::<S, Order>(&db, &app);
    let call = async |engine: &Engine<S, App>, name: &str, path: &str, note: Option<&str>| {
        let request = WithNote { amount: 1, note: note.map(str::to_owned) };
        let origin = RequestOrigin::new("POST", path, None);
        engine.call(&scope(), &key(name), request).origin(origin).await
    };
    let old_call = async |name: &str| {
        let origin = RequestOrigin::new("POST", "/orders", None);
        old.call(&scope(), &key(name), Order { amount: 1 }).origin(origin).await
    };
    failed(old_call("open").await);
    let done = finished(old_call("done").await);

    let new = of::<S, WithNote>(&db, &app);
    for name in ["open", "done"] {
        for other in
            [call(&new, name, "/orders", Some("")).await, call(&new, name, "/orders/1", None).await]
        {
            assert!(matches!(other, Ok(Outcome::Mismatch)), "{name}: {other:?}");
        }
    }
    let again = finished(call(&new, "done", "/orders", None).await);
    assert!(again.replayed && again.reply == done.reply, "{again:?}");
    finished(call(&new, "open", "/orders", None).await);
    assert!(finished(call(&new, "open", "/orders", None).await).replayed);
    let calls = app.provider.calls();
    assert_eq!(calls.len(), 3);
    assert_eq!(
        calls[0], calls[2],
        "G1: the derived key is of the fingerprint that the row was born with"
    );
    assert_eq!(app.provider.effects(), 2);

    // The caller's type may also belong to another version.
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Order>();
    let both = builder.register::<OfVersion2>().build().unwrap();
    let origin = RequestOrigin::new("POST", "/orders", None);
    let request = OfVersion2 { amount: 1, note: None };
    let again = both.call(&scope(), &key("done"), request).origin(origin.clone()).await;
    assert!(finished(again).replayed);
    let request = OfVersion2 { amount: 2, note: None };
    let other = both.call(&scope(), &key("done"), request).origin(origin).await;
    assert!(matches!(other, Ok(Outcome::Mismatch)), "{other:?}");
}

async fn g9_what_the_callers_type_cannot_read_is_no_mismatch_and_not_replayed<S: TestDb>(db: S) {
    let app = App::default();
    let old = of::<S, Order>(&db, &app);
    failed(old.call(&scope(), &key("open"), Order { amount: 1 }).await);
    finished(old.call(&scope(), &key("done"), Order { amount: 1 }).await);
    let new = of::<S, InWords>(&db, &app);
    for name in ["open", "done"] {
        let told = new.call(&scope(), &key(name), InWords { amount: "one".into() }).await;
        assert_eq!(failed(told), FailureCause::NotKnownHere, "{name}");
    }
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 3);
    assert_eq!(app.provider.calls().len(), 2);
}

#[derive(Serialize, Deserialize)]
struct Tagged<T> {
    ride: u8,
    tags: Vec<T>,
}

macro_rules! tagged {
    ($name:literal, $type:ty) => {
        #[atomic_phases(name = $name, version = 1)]
        impl<Db: TestDb> Tagged<$type> {
            #[phase]
            async fn answered(&self, batch: &mut Batch<'_, Db>) -> PhaseResult<Reply> {
                Db::add_step(batch, "tagged", "answered");
                Ok(Reply::new(204))
            }
        }
    };
}

tagged!("tagged.sets", HashSet<String>);
tagged!("tagged.sorted", BTreeSet<String>);
tagged!("tagged.maps", HashMap<String, u8>);
tagged!("tagged.skipped", Skipped);
tagged!("tagged.unread", Unread);
tagged!("tagged.weights", Weight);

fn yes() -> bool {
    true
}

#[derive(Serialize, Deserialize)]
struct Skipped {
    #[serde(default = "yes", skip_serializing_if = "std::ops::Not::not")]
    wanted: bool,
}

#[derive(Serialize, Deserialize)]
struct Unread {
    #[serde(skip_serializing)]
    #[allow(dead_code)]
    code: u8,
}

#[derive(Serialize, Deserialize)]
struct Weight {
    kg: Unfingerprinted<Option<f64>>,
}

async fn g5_a_float_without_a_json_form_is_refused_outside_of_the_fingerprint_too<S: TestDb>(
    db: S,
) {
    let engine = Engine::builder(db.clone()).register::<Tagged<Weight>>().build().unwrap();
    let call = |kg| {
        let tags = vec![Weight { kg: Unfingerprinted(kg) }];
        engine.call(&scope(), &key("k"), Tagged { ride: 1, tags })
    };
    for bad in [f64::NAN, f64::INFINITY] {
        let error = call(Some(bad)).await.unwrap_err();
        let CallError::Fingerprint(found) = &error else { panic!("{error:?}") };
        let (path, rule) = ("tags[0].kg", FingerprintRule::NotFinite);
        assert_eq!((found.path().as_str(), found.rule()), (path, rule));
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0, "nothing ran");
    assert!(!finished(call(None).await).replayed);
}

async fn g9_parameters_that_read_differently_each_time_are_refused_at_the_first_request<
    S: TestDb,
>(
    db: S,
) {
    let builder = Engine::builder(db.clone()).register::<Tagged<HashSet<String>>>();
    let builder = builder.register::<Tagged<BTreeSet<String>>>().register::<Tagged<Skipped>>();
    let builder = builder.register::<Tagged<HashMap<String, u8>>>();
    let engine = builder.register::<Tagged<Unread>>().build().unwrap();
    let body = r#"{"ride": 1, "tags": [["canary", "b", "c", "d", "e", "f", "g", "h"]]}"#;

    // A set of two elements has the same order in half of the reads, by chance.
    let two = r#"{"ride": 1, "tags": [["canary", "b"]]}"#;
    for n in 0..50 {
        let set: Tagged<HashSet<String>> =
            serde_json::from_str(if n == 0 { body } else { two }).unwrap();
        let error = engine.call(&scope(), &key("sets"), set).await.unwrap_err();
        let CallError::Fingerprint(found) = &error else { panic!("{error:?}") };
        assert_eq!((found.path().as_str(), found.rule()), ("tags[0]", FingerprintRule::Unordered));
        assert!(error.to_string().contains("BTreeSet"), "{error}");
        assert!(!format!("{error} {error:?}").contains("canary"), "G19: {error:?}");
    }

    let skipped =
        Tagged { ride: 1, tags: vec![Skipped { wanted: true }, Skipped { wanted: false }] };
    let error = engine.call(&scope(), &key("skipped"), skipped).await.unwrap_err();
    let CallError::Fingerprint(found) = &error else { panic!("{error:?}") };
    assert_eq!((found.path().as_str(), found.rule()), ("tags[1]", FingerprintRule::NotStable));

    let unread = Tagged { ride: 1, tags: vec![Unread { code: 1 }] };
    let error = engine.call(&scope(), &key("unread"), unread).await.unwrap_err();
    let CallError::Fingerprint(found) = &error else { panic!("{error:?}") };
    assert_eq!((found.path().as_str(), found.rule()), ("tags[0]", FingerprintRule::NotRead));
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0, "nothing ran");

    // Parameters with a fixed order, or that are sorted, are the same request each time.
    for replayed in [false, true, true, true] {
        let sorted: Tagged<BTreeSet<String>> = serde_json::from_str(body).unwrap();
        let told = engine.call(&scope(), &key("sorted"), sorted).await;
        assert_eq!(finished(told).replayed, replayed);
        let tags = vec![(0..9).map(|n| (n.to_string(), n)).collect::<HashMap<_, _>>()];
        let told = engine.call(&scope(), &key("maps"), Tagged { ride: 1, tags }).await;
        assert_eq!(finished(told).replayed, replayed);
    }
}

/// The reason why `assert_sound` refuses a request.
#[track_caller]
fn unsound<R: Serialize + DeserializeOwned + PartialEq>(request: impl Fn() -> R) -> String {
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| assert_sound(request)));
    *refused.expect_err("it was found sound").downcast::<String>().unwrap()
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Traps<T> {
    rides: Vec<T>,
}

fn traps<T>(ride: T) -> Traps<T> {
    Traps { rides: vec![ride] }
}

#[test]
fn a_sound_request_is_found_sound() {
    #[derive(Serialize, Deserialize, PartialEq)]
    struct Sound {
        id: i64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tags: Vec<String>,
        zones: BTreeSet<String>,
        sent_at: Unfingerprinted<Option<f64>>,
        price: Option<f64>,
    }
    let sound = |tags: &[&str]| Sound {
        id: 9_007_199_254_740_993,
        tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
        zones: ["b", "a"].map(str::to_owned).into(),
        sent_at: Unfingerprinted(Some(std::time::Instant::now().elapsed().as_secs_f64())),
        price: Some(0.1),
    };
    assert_sound(|| sound(&[]));
    assert_sound(|| sound(&["night", "child seat"]));
    assert_sound(|| serde_json::from_str::<Sound>(r#"{"id":1,"zones":[]}"#).unwrap());
}

#[test]
fn what_a_request_loses_on_its_way_through_the_store_is_found() {
    #[derive(Clone, Serialize, Deserialize, PartialEq)]
    struct Skips {
        id: i64,
        #[serde(skip)]
        note: String,
    }
    let skips = Skips { id: 1, note: "ring twice".into() };
    let why = unsound(|| traps(skips.clone()));
    assert!(why.contains("a member is skipped") && !why.contains("ring"), "{why}");

    #[derive(Clone, Deserialize, PartialEq)]
    struct Redacts(String);
    impl Serialize for Redacts {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str("***")
        }
    }
    let why = unsound(|| traps(Redacts("hunter2".into())));
    assert!(why.contains("redaction") && !why.contains("hunter2"), "{why}");

    #[derive(Clone, Serialize, Deserialize, PartialEq)]
    struct NeverRead {
        #[serde(skip_serializing)]
        code: u8,
    }
    let why = unsound(|| traps(NeverRead { code: 1 }));
    assert!(why.contains("`rides[0]`") && why.contains("#[serde(default)]"), "{why}");

    #[derive(Clone, Serialize, Deserialize, PartialEq)]
    #[serde(untagged)]
    enum Amount {
        Float(f64),
        Whole(i64),
    }
    assert_sound(|| traps(Amount::Float(0.5)));
    let why = unsound(|| traps(Amount::Whole(1)));
    assert!(why.contains("`rides[0]`") && why.contains("untagged"), "{why}");
    let why = unsound(|| traps(Some(None::<u8>)));
    assert!(why.contains("`rides[0]`") && why.contains("`Option`"), "{why}");
    let why = unsound(|| traps(f64::NAN));
    assert!(why.contains("`rides[0]`") && why.contains("NaN"), "{why}");
    let why = unsound(|| traps(HashMap::from([((1, 2), 3)])));
    assert!(why.contains("a map's key"), "{why}");
}

#[test]
fn what_is_another_request_each_time_is_found() {
    let clock = std::sync::atomic::AtomicU64::new(0);
    let now = || clock.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let why = unsound(|| traps(now()));
    assert!(why.contains("`rides[0]`") && why.contains("ctx.created_at()"), "{why}");
    let why = unsound(|| traps(HashSet::from(["a".to_owned(), "b".to_owned()])));
    assert!(why.contains("`rides[0]`") && why.contains("BTreeSet"), "{why}");
}
