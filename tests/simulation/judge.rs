//! What a run is judged by: ledgers outside of the engine, and what clients were told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atomic_phases::simulation::{Database, KeyChange};
use atomic_phases::*;

use super::plan::{Call, Kind, Plan};
use super::provider::{Entry, Honours};
use super::requests::{Note, Parcel, Ride, Transfer};

/// What clients asked and were told.
#[derive(Default)]
pub struct History {
    pub ops: Vec<Op>,
}

pub struct Op {
    pub call: Call,
    pub invoked: Duration,
    pub returned: Option<Duration>,
    pub told: Told,
    /// The fingerprint of the key's row when it was asked.
    pub stored: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Told {
    Finished {
        status: u16,
        body: Vec<u8>,
        replayed: bool,
    },
    InProgress,
    Mismatch,
    Unknown,
    DeadLetter,
    Failed,
    Accepted,
    /// An error: nothing was started, or it is safe to ask again.
    Error,
    /// No answer.
    Nothing,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Finished { status, body, .. } => {
                write!(f, "{}: {status} {}", self.name(), String::from_utf8_lossy(body))
            }
            _ => f.write_str(self.name()),
        }
    }
}

impl Told {
    pub fn of(outcome: Result<Outcome, ExecuteError>) -> Self {
        match outcome {
            Ok(Outcome::Finished(finished)) => Self::Finished {
                status: finished.reply.status(),
                body: finished.reply.bytes().to_vec(),
                replayed: finished.replayed,
            },
            Ok(Outcome::InProgress { .. }) => Self::InProgress,
            Ok(Outcome::Mismatch) => Self::Mismatch,
            Ok(Outcome::Unknown { .. }) => Self::Unknown,
            Ok(Outcome::DeadLetter) => Self::DeadLetter,
            Ok(Outcome::Failed { .. }) => Self::Failed,
            Ok(Outcome::Accepted) => Self::Accepted,
            Ok(_) | Err(_) => Self::Error,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Finished { replayed: true, .. } => "replayed",
            Self::Finished { .. } => "finished",
            Self::InProgress => "in progress",
            Self::Mismatch => "mismatch",
            Self::Unknown => "unknown",
            Self::DeadLetter => "dead letter",
            Self::Failed => "failed",
            Self::Accepted => "accepted",
            Self::Error => "error",
            Self::Nothing => "nothing",
        }
    }
}

const POINTS: [&[&str]; 4] = [
    &["started", "booked", "charged", "finished"],
    &["started", "noted", "notified", "finished"],
    &["started", "packed", "sent", "finished"],
    &["started", "taken", "finished"],
];

fn place(point: &str, definition: &str) -> usize {
    let list = match definition {
        "ride" => POINTS[0],
        "note" => POINTS[1],
        "parcel" => POINTS[2],
        _ => POINTS[3],
    };
    list.iter().position(|known| *known == point).unwrap_or(usize::MAX)
}

/// A commit that changes a key's row.
pub fn transition(
    change: &KeyChange<'_>,
    holders: &mut BTreeMap<(String, String), String>,
    violations: &mut Vec<String>,
) {
    let Some(after) = change.after else {
        violations.push("G15: a row was deleted before its time".to_owned());
        return;
    };
    let row = (after.scope().to_owned(), after.key().to_owned());
    let Some(before) = change.before else {
        holders.insert(row, change.by.to_owned());
        return;
    };
    let mut complain =
        |what: &str| violations.push(format!("{what}: {} {before:?} -> {after:?}", change.by));
    if before.request_id() != after.request_id() {
        complain("G15: another life of a key that had not expired");
    }
    if after.lease_token() < before.lease_token() {
        complain("G3: the token falls");
    }
    let (was, is) = (
        place(before.recovery_point(), before.definition()),
        place(after.recovery_point(), after.definition()),
    );
    if is < was {
        complain("G6: a recovery point moves back");
    }
    if before.status() == "completed" && before != after {
        complain("G8: a finished row changes");
    }
    if after.lease_token() > before.lease_token() {
        let alive = before.locked_until().is_some_and(|until| until > change.at);
        let by_another = holders.get(&row).is_some_and(|holder| holder != change.by);
        if before.status() == "in_progress" && alive && by_another {
            complain("G10: a lease that is alive is taken over");
        }
        holders.insert(row, change.by.to_owned());
    }
}

/// What the fingerprint of a call is.
fn fingerprint_of(call: &Call) -> String {
    let origin = RequestOrigin::default();
    let amount = call.amount;
    let taken = match call.kind {
        Kind::Ride => fingerprint(&origin, &Ride { amount }),
        Kind::Note => fingerprint(&origin, &Note { amount }),
        Kind::Parcel => fingerprint(&origin, &Parcel { amount }),
        Kind::Transfer => fingerprint(&origin, &Transfer { amount }),
    };
    taken.unwrap().as_str().to_owned()
}

pub fn at_the_end(
    plan: &Plan,
    database: &Database,
    ledger: &[Entry],
    jobs: &[(String, String, String)],
    history: &History,
) -> Vec<String> {
    let mut found = effects(ledger);
    found.extend(rows(database, ledger, jobs));
    found.extend(answers(history));
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
            Entry::WithoutLease { life } => {
                found.push(format!("G2/G10: a call for {life} under a lease that has ended"));
            }
            Entry::Denied { key } => {
                open.remove(key.as_str());
            }
        }
    }
    found
}

/// The application's rows are those of the requests that came so far, each once (G4, G18).
fn rows(database: &Database, ledger: &[Entry], jobs: &[(String, String, String)]) -> Vec<String> {
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
        .iter()
        .filter_map(|entry| match entry {
            Entry::Effect { life, .. } => Some(life.as_str()),
            _ => None,
        })
        .collect();
    let mut totals: BTreeMap<&str, i64> = BTreeMap::new();
    let mut keys = 0;
    database.each_key(|key| {
        keys += 1;
        let reply = key.response().filter(|(status, _)| *status == 201);
        let at = format!("{} {}@{}", key.key(), key.status(), key.recovery_point());
        let Some((_, Some(body))) = reply else { return };
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let life = body["life"].as_str().unwrap_or_default();
        let amount = body["amount"].as_i64().unwrap_or(0);
        if rides.get(life) != Some(&amount) {
            found.push(format!("G4: {at} is finished without its first write"));
        }
        if receipts.get(life) != Some(&1) {
            found.push(format!("G4: {at} has {:?} receipts", receipts.get(life)));
        }
        let (total, foreign, names): (_, _, &[&str]) = match key.definition() {
            "ride" => (Some("rides"), true, &["receipt"]),
            "parcel" => (Some("parcels"), true, &["receipt", "thanks"]),
            "transfer" => (Some("to"), false, &["receipt"]),
            _ => (None, true, &[]),
        };
        if let Some(total) = total {
            *totals.entry(total).or_default() += amount;
        }
        if foreign && !effects.contains(life) {
            found.push(format!("G4: {at} is finished without its effect"));
        }
        for name in names {
            let delivered: BTreeSet<&str> = jobs
                .iter()
                .filter(|(of, job, _)| of == life && job == name)
                .map(|(_, _, id)| id.as_str())
                .collect();
            if delivered.len() != 1 {
                found.push(format!("G18: {at}: {name} was delivered as {delivered:?}"));
            }
        }
    });
    if receipts.values().any(|receipts| *receipts > 1) {
        found.push(format!("G3/G4: a last phase was committed twice: {receipts:?}"));
    }
    if rides.len() > keys {
        found.push(format!("G4: {} first writes for {keys} rows", rides.len()));
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

/// Per key: nothing, then one request, then its one answer, for ever. What is told fits an order in
/// which each call takes place between its question and its answer.
fn answers(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let mut keys: BTreeMap<(u8, u8), Vec<&Op>> = BTreeMap::new();
    for op in &history.ops {
        keys.entry((op.call.scope, op.call.key)).or_default().push(op);
    }
    for (key, ops) in keys {
        let mut answer: Option<(&[u8], u16, i64, Duration)> = None;
        let mut first_hand = 0;
        for op in &ops {
            let at = format!("key {key:?}, {:?} to {:?}", op.invoked, op.returned);
            if let Told::Finished { status, body, replayed } = &op.told {
                let returned = op.returned.unwrap_or(op.invoked);
                first_hand += u32::from(!replayed);
                match answer {
                    None => answer = Some((body, *status, op.call.amount, returned)),
                    Some((known, known_status, amount, since)) => {
                        if (known, known_status) != (body.as_slice(), *status) {
                            found.push(format!("G8: another answer than before: {at}"));
                        }
                        if amount != op.call.amount {
                            found.push(format!("G9: another request's answer: {at}"));
                        }
                        answer = Some((known, known_status, amount, since.min(returned)));
                    }
                }
            }
            let Some(stored) = &op.stored else { continue };
            // What a row says behind the fingerprint is about the form of its parameters.
            let other = !stored.starts_with(&fingerprint_of(&op.call));
            match (&op.told, other) {
                (Told::Error | Told::Nothing, _) => {}
                (Told::Mismatch, true) => {}
                (told, true) => found.push(format!("G9: another request is told {told:?}: {at}")),
                (Told::Mismatch, false) => found.push(format!("G9: the same is a mismatch: {at}")),
                _ => {}
            }
        }
        if first_hand > 1 {
            found.push(format!("G10: {first_hand} calls ran key {key:?} to its end"));
        }
        let Some((_, _, amount, since)) = answer else { continue };
        for op in ops.iter().filter(|op| op.invoked > since && op.call.amount == amount) {
            if !matches!(op.told, Told::Finished { .. } | Told::Error | Told::Nothing) {
                let at = format!("key {key:?}, asked at {:?}", op.invoked);
                found.push(format!("moved back: finished, and then {:?}: {at}", op.told));
            }
        }
    }
    found
}

/// Where nothing goes wrong: one call for each request, and no failure.
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
        if matches!(op.told, Told::Unknown | Told::DeadLetter | Told::Failed | Told::Error) {
            found.push(format!("in a calm run, told {:?} at {:?}", op.told, op.invoked));
        }
    }
    found
}
