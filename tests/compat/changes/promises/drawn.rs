//! Pairs of random types: members that are optional, nested, aliased, limited, or written in another form than they
//! are read, each compared with each other one. If a change is not refused, each body that a client has sent is
//! served again, and its row continues.
//!
//! `DRAWN_MEMBERS=1 cargo test --release --all-features --test changes drawn_members` takes every pair.

use std::future::Future;
use std::pin::Pin;

use super::retries::*;
use super::*;

type Done<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A type without its name.
struct Kind {
    name: &'static str,
    files: fn() -> Locks,
    definitions: fn() -> Definitions<Memory>,
    reads: fn(&str) -> bool,
    /// Writes a row with this body whose first phase is committed; `false`: the engine refuses the body, because it
    /// could not compare a retry with it.
    begins: fn(Memory, String) -> Done<bool>,
    /// Whether that row continues, and whether the same bytes are served.
    meets: fn(Memory, String) -> Done<(bool, bool)>,
}

fn kind<T: Held>(name: &'static str) -> Kind {
    Kind {
        name,
        files: filed::<T>,
        definitions: of::<T>,
        reads: |body| serde_json::from_str::<T>(body).is_ok(),
        begins: |db, body| {
            Box::pin(async move {
                let request: Holds<T> = serde_json::from_str(&body).unwrap();
                let old = Engine::builder(db).register::<Holds<T>>().build().unwrap();
                match old.call(&scope(), &key("k"), request).await {
                    Err(atomic_phases::engine::CallError::Fingerprint(_)) => false,
                    outcome => {
                        crate::support::failed(outcome);
                        true
                    }
                }
            })
        },
        meets: |db, body| {
            Box::pin(async move {
                db.database().set_clock_forward(std::time::Duration::from_secs(7200));
                let new = Engine::builder(db).register::<Holds<T>>().build().unwrap();
                Completer::new(&new, config()).run_once().await.unwrap();
                let status = new.status(&scope(), &key("k")).await.unwrap().unwrap();
                let is_served = match serde_json::from_str::<Holds<T>>(&body) {
                    Err(_) => false,
                    Ok(request) => {
                        let outcome = new.call(&scope(), &key("k"), request).await;
                        matches!(outcome, Ok(Outcome::Finished(_)))
                    }
                };
                (status.reply.is_some(), is_served)
            })
        },
    }
}

macro_rules! families {
    ($([$($module:ident),*] $($body:literal)*;)*) => {
        vec![$((vec![$(kind::<$module::P>(stringify!($module))),*], vec![$($body),*])),*]
    };
}

/// Types whose members have the same names, and bodies that one of them reads.
fn families() -> Vec<(Vec<Kind>, Vec<&'static str>)> {
    families! {
        [default_one, default_two, default_seven, seven_left_out, two_left_out, uncounted_two, seats_option, seats_left_out,
            seats_double, seats_needed, seats_known, seats_known_less, seats_clamped]
            "{}" r#"{"seats":null}"# r#"{"seats":0}"# r#"{"seats":1}"# r#"{"seats":2}"# r#"{"seats":3}"# r#"{"seats":7}"#
            r#"{"seats":200}"#;
        [items_default, items_left_out, items_option, items_option_left_out]
            "{}" r#"{"items":null}"# r#"{"items":[]}"# r#"{"items":[1,1]}"#;
        [date, date_time, time, address, number_text, text]
            r#"{"at":"2024-1-5"}"# r#"{"at":"2024-01-05"}"# r#"{"at":"2024-01-05T00:00:00.500000"}"#
            r#"{"at":"10:00:00.500000"}"# r#"{"at":"0:0:0:0:0:0:0:1"}"# r#"{"at":"007"}"#;
        [address_keys, lower_keys, text_keys]
            r#"{"m":{"0:0:0:0:0:0:0:1":1}}"# r#"{"m":{"USD":1}}"# r#"{"m":{}}"#;
        [kind_alias, kind_plain, kind_both, kind_text]
            r#"{"kind":"cash"}"# r#"{"kind":"Cash"}"# r#"{"kind":"Card"}"#;
        [nested, nested_alias, nested_retyped, nested_option, nested_list, nested_map]
            r#"{"p":{"amount":1,"c":1}}"# r#"{"p":{"amt":1,"c":1}}"# r#"{"p":{"amt":"1","c":1}}"# "{}"
            r#"{"p":[{"amt":1,"c":1}]}"# r#"{"p":{"a":{"amt":1,"c":1}}}"#;
        [short_text, shorter_text, trimmed_text, plain_text]
            r#"{"s":"a"}"# r#"{"s":" a "}"#;
        [a_uuid, a_float, a_set, a_kind, a_struct, a_closed_struct, a_map, a_value]
            r#"{"v":"0000000A-0000-4000-8000-00000000000A"}"# r#"{"v":1}"# r#"{"v":["b","a"]}"# r#"{"v":"a"}"#
            r#"{"v":{"a":1}}"# r#"{"v":{"a":1,"b":2}}"# r#"{"v":{"a":1,"b":null,"c":3}}"#;
        [two_ids, two_texts, texts, set_of_texts, chance_of_texts, named_texts]
            r#"{"v":["0000000B-0000-4000-8000-00000000000A","0000000A-0000-4000-8000-00000000000A"]}"#
            r#"{"v":["b","a"]}"# r#"{"v":{"a":"b","b":"a"}}"#;
        [open_kind, kind_without_others, any_kind] r#"{"v":"A"}"# r#"{"v":"Foo"}"# r#"{"v":"Unknown"}"#;
        [keeps_none, keeps_wide, keeps_narrow, keeps_texts, keeps_any, keeps_maybe, keeps_kinds, keeps_lists, knows_one]
            r#"{"a":1}"# r#"{"a":1,"b":2}"# r#"{"a":1,"b":70000}"# r#"{"a":1,"b":"x"}"# r#"{"a":1,"b":null}"#
            r#"{"a":1,"b":"B"}"# r#"{"a":1,"b":["x"]}"#;
        [tag_alias, tag_plain, tag_other_name, tag_both, tag_set, tag_chance]
            r#"{"v":{"k":"A","x":[2,1]}}"# r#"{"v":{"k":"a","x":[2,1]}}"# r#"{"v":{"k":"B"}}"#;
        [keys_alias, keys_plain, text_keys] r#"{"m":{"a":1}}"# r#"{"m":{"A":1}}"#;
        [opts_one, opts_two, opts_more, opts_own]
            "{}" r#"{"o":{"a":1}}"# r#"{"o":{"a":2}}"#;
        [words_one, words_two] "{}" r#"{"version":"2024-01-01","channels":["mail"],"most":5000000000}"#;
        [null_is_none, null_is_empty, empty_only] "{}" r#"{"v":null}"# r#"{"v":[]}"# r#"{"v":[1]}"#;
    }
}

/// Whether `member_added` covers this body: it has the member, which the old type ignored.
fn was_sent_before(findings: &[Finding], body: &str) -> bool {
    findings.iter().filter(|finding| finding.lint == Lint::MemberAdded).any(|finding| {
        let place = finding.change.split_once(" of its parameters").map_or("", |(place, _)| place);
        let name = place.rsplit('.').next().unwrap_or_default();
        !name.is_empty() && body.contains(&format!("\"{name}\":"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn g9_what_is_called_fine_of_drawn_members_is_fine_for_each_body() {
    let every = std::env::var_os("DRAWN_MEMBERS").is_some();
    let (mut judged, mut refused, mut broken) = (0, 0, Vec::new());
    for (kinds, bodies) in families() {
        let built: Vec<(Locks, Definitions<Memory>)> =
            kinds.iter().map(|kind| ((kind.files)(), (kind.definitions)())).collect();
        let pairs = (0..kinds.len()).flat_map(|old| (0..kinds.len()).map(move |new| (old, new)));
        for (nth, (old, new)) in pairs.enumerate() {
            if !every && nth % 2 != 0 && kinds.len() > 8 {
                continue;
            }
            let command = compare(&built[old].0, &built[new].0);
            let test = compare_with(&built[old].0, &built[new].1.locks(), &built[new].1);
            for body in bodies.iter().filter(|body| (kinds[old].reads)(body)) {
                let db = Memory::connect(&Database::default());
                if !(kinds[old].begins)(db.clone(), (*body).to_owned()).await {
                    continue;
                }
                judged += 1;
                let (goes_on, is_served) = (kinds[new].meets)(db, (*body).to_owned()).await;
                for (by, findings) in [("diff", &command), ("locked!", &test)] {
                    let is_refused = level(findings) >= Level::Deny;
                    refused += u32::from(is_refused);
                    let is_fine = goes_on && (is_served || was_sent_before(findings, body));
                    if !is_refused && !is_fine {
                        broken.push(format!(
                            "{} => {} with {body}: {by} says fine; it goes on: {goes_on}, is served: {is_served}\n{:#?}\n{}\n{}",
                            kinds[old].name,
                            kinds[new].name,
                            lints(findings),
                            built[old].0.iter().next().unwrap().request,
                            built[new].0.iter().next().unwrap().request,
                        ));
                    }
                }
            }
        }
    }
    eprintln!("{judged} bodies, {refused} refused");
    assert!(broken.is_empty(), "{} of {judged}: {}", broken.len(), broken.join("\n"));
    assert!(judged > 200 && refused > 100, "{judged} {refused}");
}

rule!(Known of u16, v => [1, 2, 3, 7].contains(&v));
rule!(KnownLess of u16, v => [1, 3, 7].contains(&v));
rule!(Short of String, v => v.len() <= 100);
rule!(Shorter of String, v => v.len() <= 40);

fn at_most<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    u8::deserialize(from).map(|seats| seats.min(100))
}

fn told_apart<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u8>>, D::Error> {
    Option::<u8>::deserialize(from).map(Some)
}

fn without_blanks<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| text.trim().to_owned())
}

fn or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

fn its_own() -> opts_own::Opts {
    opts_own::Opts { a: 2 }
}

fn first_version() -> String {
    "2024-01-01".to_owned()
}

fn second_version() -> String {
    "2025-01-01".to_owned()
}

fn by_mail() -> Vec<String> {
    vec!["mail".to_owned()]
}

fn five() -> u64 {
    5_000_000_000
}

/// An input is stored as it is, or in the form in which it is read.
mod forms {
    use super::*;
    builds! {
        a_uuid { pub struct P { pub v: SimpleUuid } }
        a_float { pub struct P { pub v: f64 } }
        a_set { pub struct P { pub v: BTreeSet<String> } }
        a_kind { pub enum K { #[serde(alias = "a")] A, B } pub struct P { pub v: K } }
        a_struct { pub struct V { pub a: u8, #[serde(default)] pub b: Option<u8> } pub struct P { pub v: V } }
        a_closed_struct {
            #[serde(deny_unknown_fields)] pub struct V { pub a: u8, pub b: Option<u8>, pub c: Option<u8> }
            pub struct P { pub v: V }
        }
        a_map { pub struct P { pub v: BTreeMap<String, Option<u8>> } }
        a_value { pub struct P { pub v: Value } }
        two_ids { pub struct P { pub v: [SimpleUuid; 2] } }
        two_texts { pub struct P { pub v: (String, String) } }
        texts { pub struct P { pub v: Vec<String> } }
        set_of_texts { pub struct P { pub v: BTreeSet<String> } }
        chance_of_texts { pub struct P { pub v: HashSet<String> } }
        named_texts { pub struct V { pub a: String, pub b: String } pub struct P { pub v: V } }
        open_kind { pub enum K { A, #[serde(other)] Unknown } pub struct P { pub v: K } }
        kind_without_others { pub enum K { A, Unknown } pub struct P { pub v: K } }
        any_kind { pub struct P { pub v: String } }
    }
}
use forms::*;

/// Members that are kept without being known, other names in types with a tag and of keys, and defaults of every form.
mod members {
    use super::*;
    builds! {
        keeps_none { pub struct P { pub a: u8 } }
        keeps_wide { pub struct P { pub a: u8, #[serde(flatten)] pub rest: BTreeMap<String, u32> } }
        keeps_narrow { pub struct P { pub a: u8, #[serde(flatten)] pub rest: BTreeMap<String, u16> } }
        keeps_texts { pub struct P { pub a: u8, #[serde(flatten)] pub rest: BTreeMap<String, String> } }
        keeps_any { pub struct P { pub a: u8, #[serde(flatten)] pub rest: BTreeMap<String, Value> } }
        keeps_maybe { pub struct P { pub a: u8, #[serde(flatten)] pub rest: BTreeMap<String, Option<u32>> } }
        keeps_kinds { pub enum K { A, B } pub struct P { pub a: u8, #[serde(flatten)] pub rest: BTreeMap<String, K> } }
        keeps_lists { pub struct P { pub a: u8, #[serde(flatten)] pub rest: BTreeMap<String, Vec<String>> } }
        knows_one {
            pub struct P { pub a: u8, pub b: Option<u32>, #[serde(flatten)] pub rest: BTreeMap<String, u32> }
        }
        tag_alias { #[serde(tag = "k")] pub enum V { #[serde(alias = "a")] A { x: Vec<u8> }, B } pub struct P { pub v: V } }
        tag_plain { #[serde(tag = "k")] pub enum V { A { x: Vec<u8> }, B } pub struct P { pub v: V } }
        tag_other_name { #[serde(tag = "k")] pub enum V { #[serde(alias = "A")] Aa { x: Vec<u8> }, B } pub struct P { pub v: V } }
        tag_both {
            #[serde(tag = "k")]
            pub enum V { A { x: Vec<u8> }, #[serde(rename = "a")] Small { x: Vec<u8> }, B }
            pub struct P { pub v: V }
        }
        tag_set { #[serde(tag = "k")] pub enum V { A { x: BTreeSet<u8> }, B } pub struct P { pub v: V } }
        tag_chance { #[serde(tag = "k")] pub enum V { A { x: HashSet<u8> }, B } pub struct P { pub v: V } }
        keys_alias {
            #[derive(Eq, PartialOrd, Ord)] pub enum K { #[serde(alias = "a")] A, B }
            pub struct P { pub m: BTreeMap<K, u8> }
        }
        keys_plain { #[derive(Eq, PartialOrd, Ord)] pub enum K { A, B } pub struct P { pub m: BTreeMap<K, u8> } }
        opts_one { #[derive(Default)] pub struct Opts { pub a: u8 } pub struct P { #[serde(default)] pub o: Opts } }
        opts_own { pub struct Opts { pub a: u8 } pub struct P { #[serde(default = "its_own")] pub o: Opts } }
        opts_two {
            #[derive(Default)] pub struct Opts { pub a: u8, #[serde(default)] pub b: Vec<u8> }
            pub struct P { #[serde(default)] pub o: Opts }
        }
        opts_more {
            #[derive(Default)] pub struct Opts { pub a: u8, pub b: Option<u8> }
            pub struct P { #[serde(default)] pub o: Opts }
        }
        words_one {
            pub struct P {
                #[serde(default = "first_version")] pub version: String,
                #[serde(default = "by_mail")] pub channels: Vec<String>,
                #[serde(default = "five")] pub most: u64,
            }
        }
        words_two {
            pub struct P {
                #[serde(default = "second_version")] pub version: String,
                #[serde(default = "by_mail")] pub channels: Vec<String>,
                #[serde(default = "five")] pub most: u64,
            }
        }
        null_is_none { pub struct P { pub v: Option<Vec<u8>> } }
        null_is_empty { pub struct P { #[serde(default, deserialize_with = "or_empty")] pub v: Vec<u8> } }
        empty_only { pub struct P { #[serde(default)] pub v: Vec<u8> } }
    }
}
use members::*;

promises! {
    g14_no_change_is_refused_that_neither_a_row_nor_a_retry_sees:
    "a default gets an optional member": opts_one::P => opts_more::P, "{}";
    "a default gets a list": opts_one::P => opts_two::P, "{}";
    "a default is another one": opts_one::P => opts_own::P, "{}";
    "a version is another one": words_one::P => words_two::P, "{}";
    "`null` is read as nothing": empty_only::P => null_is_empty::P, "{}";
    "`null` was read as nothing": null_is_empty::P => null_is_none::P, "{}";
    "a tag has another name, and an alias": tag_plain::P => tag_alias::P, r#"{"v":{"k":"A","x":[1]}}"#;
    "an alias of a tag goes": tag_alias::P => tag_plain::P, r#"{"v":{"k":"a","x":[1]}}"#;
    "an alias of a tag becomes a variant": tag_alias::P => tag_both::P, r#"{"v":{"k":"a","x":[1]}}"#;
    "a set in a tagged variant becomes a list": tag_set::P => tag_plain::P, r#"{"v":{"k":"A","x":[2,1]}}"#;
    "what is kept is wider": keeps_narrow::P => keeps_wide::P, r#"{"a":1,"b":2}"#;
    "what is kept is narrower": keeps_wide::P => keeps_narrow::P, r#"{"a":1,"b":70000}"#;
    "what is kept is known": keeps_wide::P => knows_one::P, r#"{"a":1,"b":2}"#;
    "what is kept is anything": keeps_wide::P => keeps_any::P, r#"{"a":1,"b":2}"#;
    "what is kept may not be `null`": keeps_maybe::P => keeps_wide::P, r#"{"a":1,"b":null}"#;
    "others are not read any more": open_kind::P => kind_without_others::P, r#"{"v":"Foo"}"#;
    "others become strings": open_kind::P => any_kind::P, r#"{"v":"Foo"}"#;
    "an id becomes a value": a_uuid::P => a_value::P, r#"{"v":"0000000A-0000-4000-8000-00000000000A"}"#;
    "a float becomes a value": a_float::P => a_value::P, r#"{"v":1}"#;
    "a struct becomes a value": a_struct::P => a_value::P, r#"{"v":{"a":1}}"#;
    "a struct becomes a map": a_closed_struct::P => a_map::P, r#"{"v":{"a":1}}"#;
    "a pair of ids becomes a list of strings":
        two_ids::P => texts::P, r#"{"v":["0000000B-0000-4000-8000-00000000000A","0000000A-0000-4000-8000-00000000000A"]}"#;
    "a pair becomes a list": two_texts::P => texts::P, r#"{"v":["b","a"]}"#;
    "a pair becomes a set": two_texts::P => set_of_texts::P, r#"{"v":["b","a"]}"#;
    "an alias of a key goes": keys_alias::P => keys_plain::P, r#"{"m":{"a":1}}"#;
    "keys with an alias become strings": keys_alias::P => text_keys::P, r#"{"m":{"a":1}}"#;
}

builds! {
    seats_option { pub struct P { pub seats: Option<u8> } }
    seats_left_out { pub struct P { #[serde(skip_serializing_if = "Option::is_none")] pub seats: Option<u8> } }
    seats_double {
        pub struct P {
            #[serde(default, deserialize_with = "told_apart", skip_serializing_if = "Option::is_none")]
            pub seats: Option<Option<u8>>,
        }
    }
    seats_needed { pub struct P { pub seats: u8 } }
    seats_known { pub struct P { pub seats: Known } }
    seats_known_less { pub struct P { pub seats: KnownLess } }
    seats_clamped { pub struct P { #[serde(deserialize_with = "at_most")] pub seats: u8 } }
    nested_option { pub struct P { pub p: Option<super::nested_alias::Al> } }
    nested_list { pub struct P { pub p: Vec<super::nested_alias::Al> } }
    nested_map { pub struct P { pub p: BTreeMap<String, super::nested_alias::Al> } }
    short_text { pub struct P { pub s: Short } }
    shorter_text { pub struct P { pub s: Shorter } }
    trimmed_text { pub struct P { #[serde(deserialize_with = "without_blanks")] pub s: String } }
    plain_text { pub struct P { pub s: String } }
}
