//! Pairs of types that nobody chose: members that are optional, nested, named twice, limited and written otherwise than
//! they are read, each under each other one. Where a change is not refused, each body that a client has sent is served
//! again, and its row goes on.
//!
//! `DRAWN_MEMBERS=1 cargo test --release --all-features --test compat drawn_members` takes every pair.

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
    /// A row with this body that stands behind its first phase.
    begins: fn(Memory, String) -> Done<()>,
    /// Whether that row goes on, and whether the same bytes are served.
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
                crate::support::failed(old.call(&scope(), &key("k"), request).await);
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
    }
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
                judged += 1;
                let db = Memory::connect(&Database::default());
                (kinds[old].begins)(db.clone(), (*body).to_owned()).await;
                let (goes_on, is_served) = (kinds[new].meets)(db, (*body).to_owned()).await;
                for (by, findings) in [("diff", &command), ("locked!", &test)] {
                    let is_refused = level(findings) >= Level::Deny;
                    refused += u32::from(is_refused);
                    let is_fine = goes_on && is_served;
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
