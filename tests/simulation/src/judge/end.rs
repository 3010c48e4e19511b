//! When a run is over: the providers' ledger, the application's rows, and the clients' answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atomic_phases::simulation::Database;

use super::answers::{answers, in_progress_of_nothing};
use super::{Delivered, Done, History, Told, Watched};
use crate::plan::{Kind, Plan};
use crate::provider::{Entry, Honours};
use crate::requests::REJECTED;

pub fn at_the_end(
    plan: &Plan,
    database: &Database,
    watched: &Watched,
    ledger: &[Entry],
    jobs: &[Delivered],
    history: &History,
) -> Vec<String> {
    // Acknowledged commits were lost: G1 holds, and the database is consistent in itself.
    if plan.loses_commits() {
        let mut found = effects_by_key(ledger);
        found.extend(rows(database, &stored(database), None, jobs));
        return found;
    }
    let mut found = match plan.is_beyond_promises() {
        true => effects_by_key(ledger),
        false => effects(ledger),
    };
    found.extend(rows(database, &watched.finished, Some(ledger), jobs));
    let lives = watched.lives.values().map(Vec::len).sum();
    let writes = database.rows("rides").len();
    if writes > lives {
        found.push(format!("G4: {writes} first writes for {lives} requests"));
    }
    found.extend(answers(watched, history));
    if plan.is_well_connected() {
        found.extend(in_progress_of_nothing(history));
    }
    if plan.is_calm() {
        found.extend(calm(ledger, history));
    }
    found
}

/// One effect for each life of a request (G1), and no second call where the first may have been made (G2).
fn effects(ledger: &[Entry]) -> Vec<String> {
    let mut found = Vec::new();
    let mut effects: BTreeMap<&str, u32> = BTreeMap::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for entry in ledger {
        match entry {
            Entry::Called { key, honours, .. } => {
                if *honours == Honours::Never && !open.insert(key) {
                    found.push("G2: called twice".to_owned());
                }
            }
            Entry::Effect { life, .. } => {
                let times = effects.entry(life).or_default();
                *times += 1;
                if *times == 2 {
                    found.push(format!("G1/G2: a second effect for {life}"));
                }
            }
            Entry::Wrong(what) => found.push(what.clone()),
            Entry::Denied { key } => {
                open.remove(key.as_str());
            }
        }
    }
    found
}

/// At a provider that honors keys, one effect for each key within its window (G1).
fn effects_by_key(ledger: &[Entry]) -> Vec<String> {
    let mut found = Vec::new();
    let mut last: BTreeMap<&str, Duration> = BTreeMap::new();
    for entry in ledger {
        match entry {
            Entry::Effect { key, at, honours, .. } if *honours != Honours::Never => {
                let before = last.insert(key, *at);
                let forgotten = |before| match honours {
                    Honours::For(window) => *at - before >= *window,
                    Honours::ForEver | Honours::Never => false,
                };
                if before.is_some_and(|before| !forgotten(before)) {
                    found.push(format!("G1: a second effect for {key}"));
                }
            }
            Entry::Wrong(what) => found.push(what.clone()),
            _ => {}
        }
    }
    found
}

/// The requests that are finished according to the table at the end.
fn stored(database: &Database) -> Vec<Done> {
    let mut finished = Vec::new();
    database.each_key(|key| finished.push(Done::of(&key)));
    finished
}

/// The application's rows are those of the requests that reached that point, each once (G4, G18). `ledger`: the
/// effects outside of the database that must match.
fn rows(
    database: &Database,
    finished: &[Done],
    ledger: Option<&[Entry]>,
    jobs: &[Delivered],
) -> Vec<String> {
    let mut found = Vec::new();
    let rides: BTreeMap<String, i64> = database
        .rows("rides")
        .into_iter()
        .map(|(life, amount)| (life, amount.as_i64().unwrap_or(0)))
        .collect();
    let mut receipts: BTreeMap<String, u32> = BTreeMap::new();
    for (_, receipt) in database.rows("receipts") {
        *receipts.entry(receipt["life"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    let effects: BTreeSet<&str> = ledger
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| match entry {
            Entry::Effect { life, .. } => Some(life.as_str()),
            _ => None,
        })
        .collect();
    let mut totals: BTreeMap<&str, i64> = BTreeMap::new();
    for Done { at, definition, response } in finished {
        let Some((201, body)) = response else { continue };
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let life = body["life"].as_str().unwrap_or_default();
        let amount = body["amount"].as_i64().unwrap_or(0);
        if rides.get(life) != Some(&amount) {
            found.push(format!("G4: {at} is finished without its first write"));
        }
        if definition != "alert" && receipts.get(life) != Some(&1) {
            found.push(format!("G4: {at} has {:?} receipts", receipts.get(life)));
        }
        let (total, foreign, names): (_, _, &[&str]) = match definition.as_str() {
            "ride" => (Some("rides"), true, &["receipt"]),
            "parcel" => (Some("parcels"), true, &["receipt", "thanks"]),
            "transfer" => (Some("to"), false, &["receipt"]),
            _ => (None, true, &[]),
        };
        if let Some(total) = total {
            *totals.entry(total).or_default() += amount;
        }
        if ledger.is_none() {
            continue;
        }
        if foreign && !effects.contains(life) {
            found.push(format!("G4: {at} is finished without its effect"));
        }
        for name in names {
            let delivered: BTreeSet<&str> = jobs
                .iter()
                .filter(|job| job.life == life && job.name == *name)
                .map(|job| job.id.as_str())
                .collect();
            if delivered.len() != 1 {
                found.push(format!("G18: {at}: {name} was delivered as {delivered:?}"));
            }
        }
    }
    if receipts.values().any(|receipts| *receipts > 1) {
        found.push(format!("G3/G4: a last phase was committed twice: {receipts:?}"));
    }
    for (total, sum) in totals {
        let rows = database.rows("totals");
        let stored = rows.iter().find(|(id, _)| id == total).and_then(|(_, sum)| sum.as_i64());
        if stored != Some(sum) {
            found.push(format!("G4: the total {total} is {stored:?}, and its parts make {sum}"));
        }
    }
    found
}

/// Without faults: one call for each request, and no failure.
fn calm(ledger: &[Entry], history: &History) -> Vec<String> {
    let mut calls: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in ledger {
        if let Entry::Called { life, .. } = entry {
            *calls.entry(life).or_default() += 1;
        }
    }
    let twice = calls.iter().filter(|(_, calls)| **calls > 1);
    let mut found: Vec<String> =
        twice.map(|(life, calls)| format!("G10: {calls} calls for {life} in a calm run")).collect();
    for op in &history.ops {
        // Those two fail by themselves the first time.
        let fails = op.call.kind == Kind::Stray
            || (op.call.kind == Kind::Parcel && op.call.amount == REJECTED);
        if fails && matches!(op.told, Told::Unknown | Told::Failed) {
            continue;
        }
        if matches!(op.told, Told::Unknown | Told::DeadLetter | Told::Failed | Told::Error) {
            found.push(format!("in a calm run, told {:?} at {:?}", op.told, op.invoked));
        }
    }
    found
}
