//! The promises about a change of a type. If neither the command nor the test refuses it, each row continues and
//! each retry with the same bytes is served. If one of them refuses it, a row or a retry shows why. Both report the
//! same.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use atomic_phases::Outcome;
use atomic_phases::compat::{Lock, Locks};
use atomic_phases::fingerprint::Unfingerprinted;
use chrono::{DateTime, FixedOffset, Utc};
use serde::Deserializer;

use super::*;

fn of<T: Held>() -> Definitions<Memory> {
    Definitions::<Memory>::new().with::<Holds<T>>()
}

/// The lock files as they are in the repository.
fn filed<T: Held>() -> Locks {
    of::<T>().locks().iter().map(|lock| Lock::parse(&lock.to_toml()).unwrap()).collect()
}

fn shape<T: Held>() -> String {
    filed::<T>().get("pay", 1).unwrap().request.to_string()
}

fn level(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.lint.level()).max().unwrap_or(Level::Allow)
}

fn lints(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|f| format!("{:?} {}: {}", f.lint.level(), f.lint, f.change)).collect()
}

/// The report of the command, which has only the files.
fn diff<B: Held, A: Held>() -> Vec<Finding> {
    compare(&filed::<B>(), &filed::<A>())
}

/// The report of the test, which has the code of the new build.
fn locked<B: Held, A: Held>() -> Vec<Finding> {
    compare_with(&filed::<B>(), &of::<A>().locks(), &of::<A>())
}

#[derive(Debug)]
struct Seen {
    /// The parameters and the output as the last phase of the new build sees them; `None`: the row fails.
    row: Option<String>,
    is_retry_served: bool,
}

/// A row of `B` whose first phase is committed, run by `A`; and a client's retry of it.
async fn meets<B: Held, A: Held>(first: &str, retry: &str) -> Seen {
    let db = Memory::connect(&Database::default());
    let request: Holds<B> = serde_json::from_str(first).unwrap();
    let old = Engine::builder(db.clone()).register::<Holds<B>>().build().unwrap();
    crate::support::failed(old.call(&scope(), &key("k"), request).await);
    db.database().set_clock_forward(std::time::Duration::from_secs(7200));
    let new = Engine::builder(db).register::<Holds<A>>().build().unwrap();
    Completer::new(&new, config()).run_once().await.unwrap();
    let status = new.status(&scope(), &key("k")).await.unwrap().unwrap();
    let row = status.reply.map(|reply| String::from_utf8_lossy(reply.bytes()).into_owned());
    let is_retry_served = match serde_json::from_str::<Holds<A>>(retry) {
        Err(_) => false,
        Ok(request) => {
            let outcome = new.call(&scope(), &key("k"), request).await;
            matches!(outcome, Ok(Outcome::Finished(_)))
        }
    };
    Seen { row, is_retry_served }
}

/// Whether the report differs from what happens.
async fn is_broken<B: Held, A: Held>(what: &str, body: &str) -> Option<String> {
    let (command, test) = (diff::<B, A>(), locked::<B, A>());
    let seen = meets::<B, A>(body, body).await;
    let shows_it = seen.row.is_none() || !seen.is_retry_served;
    let denied = [&command, &test].map(|findings| level(findings) >= Level::Deny);
    (denied != [shows_it; 2]).then(|| {
        format!(
            "{what}: the command refuses it: {}, the test: {}; {seen:?}\n  {} => {}\n  {:#?}\n  {:#?}",
            denied[0],
            denied[1],
            shape::<B>(),
            shape::<A>(),
            lints(&command),
            lints(&test)
        )
    })
}

/// The new build sees the values that the old one stored, or the report says that it does not.
async fn sees_the_same<B: Held, A: Held>(body: &str, same: &str) {
    let seen = meets::<B, A>(body, body).await;
    let is_told = |findings: &[Finding]| {
        let lints = [Lint::MemberDropped, Lint::MemberRenamed];
        level(findings) >= Level::Deny || findings.iter().any(|f| lints.contains(&f.lint))
    };
    let row = seen.row.unwrap_or_default();
    let (command, test) = (diff::<B, A>(), locked::<B, A>());
    assert!(
        row.contains(same) || (is_told(&command) && is_told(&test)),
        "{row} for {same}\n{:#?}\n{:#?}",
        lints(&command),
        lints(&test)
    );
}

macro_rules! builds {
    ($($module:ident { $($items:item)* })*) => {
        $(pub(super) mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)] $items)*
        })*
    };
}

macro_rules! promises {
    ($name:ident: $($what:literal: $before:ty => $after:ty, $body:expr;)*) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let broken = [$(Box::pin(is_broken::<$before, $after>($what, $body)).await),*];
            let broken: Vec<String> = broken.into_iter().flatten().collect();
            assert!(broken.is_empty(), "{}", broken.join("\n"));
        }
    };
}

macro_rules! rule {
    ($name:ident of $inner:ty, $value:ident => $rule:expr) => {
        #[derive(Clone, Debug, PartialEq)]
        pub(super) struct $name(pub(super) $inner);
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(to)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let $value = <$inner>::deserialize(from)?;
                match $rule {
                    true => Ok(Self($value)),
                    false => Err(serde::de::Error::custom("against the rule")),
                }
            }
        }
    };
}

rule!(IntegerText of String, v => v.parse::<i64>().is_ok());

/// Read in any case and written in lower case, as Stripe writes them.
#[derive(Clone, Debug, PartialEq)]
struct LowerCurrency(String);

impl Serialize for LowerCurrency {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LowerCurrency {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match text.len() == 3 && text.chars().all(|c| c.is_ascii_alphabetic()) {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(serde::de::Error::custom("no currency")),
        }
    }
}

/// As `uuid::serde::simple`: read in each form, and written without hyphens.
#[derive(Clone, Debug, PartialEq)]
struct SimpleUuid(uuid::Uuid);

impl Serialize for SimpleUuid {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0.simple())
    }
}

impl<'de> Deserialize<'de> for SimpleUuid {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

mod drawn;
mod earlier;
mod narrowings;
mod retries;
