//! The judge of a run: ledgers outside of the engine, and the clients' answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use atomic_phases::fingerprint::{RequestOrigin, fingerprint};
use atomic_phases::simulation::{Database, KeyChange, KeyState};
use atomic_phases::{CallError, Outcome};
use uuid::Uuid;

use super::plan::{Call, HOSTILE, Kind, Manner, Plan};
use super::provider::{Entry, Honours};
use super::requests::{Alert, Fare, Flood, Note, Parcel, REJECTED, Ride, Stray, Transfer};

/// A client's call and its answer.
#[derive(Default)]
pub struct History {
    pub ops: Vec<Op>,
}

pub struct Op {
    pub call: Call,
    pub invoked: Duration,
    pub returned: Option<Duration>,
    pub told: Told,
    /// The fingerprints that the key's row had between the call and its answer.
    pub stored: Option<String>,
    /// Answered *in progress* for a key that had no row and that no transaction was about to create.
    pub of_nothing: bool,
}

impl Op {
    /// Whether a first phase failed that ran before the key was read: a caller that claims that a key is new
    /// accepts this.
    fn is_of_nothing_begun(&self) -> bool {
        self.call.manner == Manner::ExpectNew && self.told == Told::Failed
    }
}

#[derive(Clone, PartialEq, Eq)]
pub enum Told {
    Finished {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
        replayed: bool,
    },
    InProgress,
    Erased,
    Mismatch,
    Unknown,
    DeadLetter,
    Failed,
    Accepted,
    /// An error: nothing was started, or a retry is safe.
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
    pub fn of(outcome: &Result<Outcome, CallError>) -> Self {
        match outcome {
            Ok(Outcome::Finished(finished)) => Self::Finished {
                status: finished.reply.status(),
                headers: finished.reply.headers().to_vec(),
                body: finished.reply.bytes().to_vec(),
                replayed: finished.replayed,
            },
            Ok(Outcome::InProgress { .. }) => Self::InProgress,
            Ok(Outcome::Erased) => Self::Erased,
            Ok(Outcome::Mismatch) => Self::Mismatch,
            Ok(Outcome::Unknown { .. }) => Self::Unknown,
            Ok(Outcome::DeadLetter) => Self::DeadLetter,
            Ok(Outcome::Failed { .. }) => Self::Failed,
            Ok(Outcome::Accepted) => Self::Accepted,
            Ok(_) | Err(_) => Self::Error,
        }
    }

    /// Whether a retry with the same key cannot change the answer.
    pub fn is_final(&self) -> bool {
        let is_done = matches!(self, Self::Finished { .. } | Self::Erased);
        is_done || matches!(self, Self::Mismatch | Self::DeadLetter)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Finished { replayed: true, .. } => "replayed",
            Self::Finished { .. } => "finished",
            Self::InProgress => "in progress",
            Self::Erased => "erased",
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

/// A job that was delivered.
#[derive(Clone)]
pub struct Delivered {
    pub row: Row,
    pub life: String,
    pub name: String,
    pub id: String,
    pub at: Duration,
}

/// Scope and key.
pub type Row = (String, String);

/// The holder that acquired a row's lease: a node, and one of its tasks.
type Holder = (String, Option<tokio::task::Id>);

/// The fingerprint of a row whose data is gone.
const ERASED: &str = "erased";

/// A finished request: the values of its row at that time.
struct Done {
    at: String,
    definition: String,
    response: Option<(i16, Vec<u8>)>,
}

impl Done {
    fn of(row: &KeyState<'_>) -> Self {
        Self {
            at: format!("{} {}@{}", row.key(), row.status(), row.recovery_point()),
            definition: row.definition().to_owned(),
            response: row.response().map(|(status, body)| (status, body.unwrap_or(&[]).to_vec())),
        }
    }
}

/// The state according to the commits so far.
pub struct Watched {
    plan: Arc<Plan>,
    pub violations: Vec<String>,
    pub coverage: BTreeMap<String, u64>,
    /// The last holder that acquired the lease.
    holders: BTreeMap<Row, Holder>,
    /// Since when there is a row.
    created: BTreeMap<Row, Duration>,
    /// Since when a row waits for a worker.
    pending: BTreeMap<Row, Duration>,
    /// When it was finished.
    completed: BTreeMap<Row, Duration>,
    /// The times at which each life of the key began.
    lives: BTreeMap<Row, Vec<Duration>>,
    /// The ids of all requests that began.
    begun: BTreeSet<Uuid>,
    /// Every request that was finished.
    finished: Vec<Done>,
    /// Since when a key is erased, for its caller and for the database.
    erased: BTreeMap<Row, Duration>,
    /// The attempt that wrote the row's intent.
    intents: BTreeMap<Row, i32>,
    /// The number of resolutions of a row that are under way, and of those that have begun.
    words: BTreeMap<Row, (u32, u32)>,
    /// How often a row was taken over for a resolution, or for a reconcile function: without counting as an
    /// attempt, and without a call of the function.
    settled: BTreeMap<Row, u32>,
    /// How many commits changed a row.
    pub commits: usize,
}

impl Watched {
    pub fn new(plan: &Arc<Plan>) -> Self {
        Self {
            plan: plan.clone(),
            violations: Vec::new(),
            coverage: BTreeMap::new(),
            holders: BTreeMap::new(),
            created: BTreeMap::new(),
            pending: BTreeMap::new(),
            completed: BTreeMap::new(),
            lives: BTreeMap::new(),
            begun: BTreeSet::new(),
            finished: Vec::new(),
            erased: BTreeMap::new(),
            intents: BTreeMap::new(),
            words: BTreeMap::new(),
            settled: BTreeMap::new(),
            commits: 0,
        }
    }

    pub fn covers(&mut self, what: String) {
        *self.coverage.entry(what).or_default() += 1;
    }

    /// A commit that changes a key's row.
    pub fn transition(&mut self, change: &KeyChange<'_>, now: Duration) {
        self.commits += 1;
        let (before, after) = (change.before.map(|s| s.status()), change.after.map(|s| s.status()));
        let (before, after) = (before.unwrap_or("none"), after.unwrap_or("none"));
        self.covers(format!("row: {before} -> {after}"));
        let has_ended = change.before.is_some_and(|before| {
            before.status() == "completed" && before.expires_at() <= change.at
        });
        let Some(after) = change.after else {
            if !has_ended {
                self.violations.push("G15: a row was deleted before its time".to_owned());
            }
            return;
        };
        let row = (after.scope().to_owned(), after.key().to_owned());
        let by = (change.by.to_owned(), change.task);
        if after.status() == "pending" {
            self.pending.insert(row.clone(), now);
        }
        if after.status() == "completed" {
            self.completed.entry(row.clone()).or_insert(now);
        }
        let is_erased = after.fingerprint() == ERASED;
        let was_open = |before: KeyState<'_>| {
            before.status() != "completed" || before.request_id() != after.request_id()
        };
        if after.status() == "completed" && !is_erased && change.before.is_none_or(was_open) {
            self.finished.push(Done::of(&after));
        }
        let is_new = |before: KeyState<'_>| before.request_id() != after.request_id();
        if change.before.is_none_or(is_new) {
            self.lives.entry(row.clone()).or_default().push(now);
            if !self.begun.insert(after.request_id()) && !self.plan.loses_commits() {
                self.violations.push(format!("G10: one call has begun its request twice: {row:?}"));
            }
            self.created.insert(row.clone(), now);
        }
        let Some(before) = change.before.filter(|before| !(is_new(*before) && has_ended)) else {
            self.holders.insert(row, by);
            return;
        };
        self.intends(&row, before, after);
        let mut found = Vec::new();
        if before.request_id() != after.request_id() {
            found.push("G15: another life of a key that had not expired".to_owned());
        }
        if after.lease_token() < before.lease_token() {
            found.push("G3: the token falls".to_owned());
        }
        let definition = before.definition();
        let was = place(before.recovery_point(), definition);
        if place(after.recovery_point(), definition) < was {
            found.push("G6: a recovery point moves back".to_owned());
        }
        let status = |row: KeyState<'_>| row.response().map(|(status, _)| status);
        let only_erased = is_erased && status(before) == status(after);
        if before.status() == "completed" && before != after && !only_erased {
            found.push("G8: a finished row changes".to_owned());
        }
        if after.status() == "dead_letter" && before.status() != "dead_letter" {
            let age = now - self.created.get(&row).copied().unwrap_or_default();
            if age < back_offs(&self.plan) && !self.plan.is_beyond_promises() {
                found.push(format!("G17: gave up after {age:?}, before its back-offs had passed"));
            }
        }
        if after.lease_token() > before.lease_token() {
            let alive = before.locked_until().is_some_and(|until| until > change.at);
            let by_another = self.holders.get(&row).is_some_and(|holder| *holder != by);
            let believed = !self.plan.loses_commits();
            if before.status() == "in_progress" && alive && by_another && believed {
                found.push("G10: a lease that is alive is taken over".to_owned());
            }
            self.holders.insert(row.clone(), by);
            if let Some(since) = self.pending.remove(&row) {
                found.extend(self.was_late("was accepted", &row.0, now - since));
            }
        }
        let text = |what| format!("{what}: {} {before:?} -> {after:?}", change.by);
        self.violations.extend(found.into_iter().map(text));
    }

    /// The process that is about to call, and the process that takes the row over because of what is known about a
    /// call.
    fn intends(&mut self, row: &Row, before: KeyState<'_>, after: KeyState<'_>) {
        match (before.open_intent(), after.open_intent()) {
            (None, Some(_)) => {
                self.intents.insert(row.clone(), after.attempts());
            }
            (Some(_), None) => {
                self.intents.remove(row);
            }
            _ => {}
        }
        let begins = before.status() != "in_progress" && after.status() == "in_progress";
        let counts = |row: KeyState<'_>| (row.attempts(), row.reconciles());
        if begins && before.status() != "pending" && counts(before) == counts(after) {
            *self.settled.entry(row.clone()).or_default() += 1;
            if self.words.get(row).is_none_or(|(open, _)| *open == 0) {
                self.covers("word: of none, asked by a later build".to_owned());
            }
        }
    }

    /// The attempt that wrote the row's intent.
    pub fn intended_in(&self, row: &Row) -> Option<i32> {
        self.intents.get(row).copied()
    }

    pub fn word_begins(&mut self, row: &Row) {
        let (open, begun) = self.words.entry(row.clone()).or_default();
        (*open, *begun) = (*open + 1, *begun + 1);
    }

    pub fn word_ends(&mut self, row: &Row) {
        self.words.entry(row.clone()).or_default().0 -= 1;
    }

    /// The number of resolutions of any row that are under way.
    pub fn words(&self) -> u32 {
        self.words.values().map(|(open, _)| open).sum()
    }

    /// How often the row was taken over for a resolution; `None` if several resolutions of it are under way.
    pub fn settled(&self, row: &Row) -> Option<u32> {
        let is_alone = self.words.get(row).is_some_and(|(_, begun)| *begun == 1);
        is_alone.then(|| self.settled.get(row).copied().unwrap_or_default())
    }

    /// If one scope floods the workers, the others wait no longer than without it (G16).
    fn was_late(&self, what: &str, scope: &str, waited: Duration) -> Option<String> {
        let bound = Duration::from_millis(2 * self.plan.poll) + Duration::from_secs(4);
        let is_late = self.plan.is_flooded() && scope != scope_name(HOSTILE) && waited > bound;
        is_late.then(|| format!("G16: {scope} {what} and waited for {waited:?}"))
    }

    pub fn was_erased(&mut self, scope: u8, key: u8, now: Duration) {
        self.erased.insert((scope_name(scope), key_name(key)), now);
    }

    /// Whether a life of the key began after `from`, and not after `to`.
    fn begins_between(&self, (scope, key): (u8, u8), from: Duration, to: Duration) -> bool {
        let lives = self.lives.get(&(scope_name(scope), key_name(key)));
        lives.is_some_and(|lives| lives.iter().any(|began| *began > from && *began <= to))
    }

    pub fn deliveries(&self, jobs: &[Delivered]) -> Vec<String> {
        let late = |job: &Delivered| {
            let since = self.completed.get(&job.row)?;
            self.was_late("staged a job", &job.row.0, job.at.saturating_sub(*since))
        };
        let mut found: Vec<String> = jobs.iter().filter_map(late).collect();
        // After lost commits or a changed clock of the database, claims of jobs are not checked.
        if self.plan.is_beyond_promises() {
            return found;
        }
        let mut behind = BTreeSet::new();
        for job in jobs {
            if job.name == "thanks" {
                behind.insert(&job.life);
            } else if behind.contains(&job.life) {
                let Delivered { name, life, at, .. } = job;
                found.push(format!("G18: {name} of {life} at {at:?}, behind one that comes later"));
            }
        }
        found
    }
}

/// The least duration of the attempts before the last one. Each is followed by its back-off, or by the end of its
/// lease. An attempt that a client begins within a back-off counts only if it then loses its lease, so of two
/// consecutive ones, one takes its time.
fn back_offs(plan: &Plan) -> Duration {
    let of_attempt = |attempt: u32| (1_000 << attempt.min(4)).min(10_000).min(plan.lease);
    let attempts = (0..plan.max_attempts.saturating_sub(1)).rev().step_by(2);
    Duration::from_millis(attempts.map(of_attempt).sum())
}

pub fn scope_name(scope: u8) -> String {
    format!("tenant-{scope}")
}

pub fn key_name(key: u8) -> String {
    format!("key-{key}")
}

fn place(point: &str, definition: &str) -> usize {
    let points = match definition {
        "ride" => ["booked", "charged", "checked"],
        "fare" => ["asked", "paid", ""],
        "note" | "stray" => ["noted", "notified", ""],
        "alert" => ["noted", "", ""],
        "parcel" => ["packed", "sent", ""],
        "flood" => ["staged", "hung", ""],
        _ => ["taken", "", ""],
    };
    match point {
        "started" => 0,
        "finished" => usize::MAX,
        point => 1 + points.iter().position(|known| *known == point).unwrap_or(points.len()),
    }
}

/// The fingerprint of a call.
fn fingerprint_of(call: &Call) -> String {
    let origin = RequestOrigin::default();
    let amount = call.amount;
    let taken = match call.kind {
        Kind::Ride => fingerprint(&origin, &Ride { amount }),
        Kind::Fare => fingerprint(&origin, &Fare { amount }),
        Kind::Note => fingerprint(&origin, &Note { amount }),
        Kind::Parcel => fingerprint(&origin, &Parcel { amount }),
        Kind::Transfer => fingerprint(&origin, &Transfer { amount }),
        Kind::Alert => fingerprint(&origin, &Alert { amount }),
        Kind::Stray => fingerprint(&origin, &Stray { amount }),
        Kind::Flood => fingerprint(&origin, &Flood { amount }),
    };
    taken.unwrap().as_str().to_owned()
}

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

/// Status, headers and body.
type Said<'a> = (u16, &'a [(String, String)], &'a [u8]);

/// In each life of a key: nothing, then one request, then its one answer, until it is erased or its retention is
/// over. The answers must fit an order in which each call takes place between its question and its answer.
fn answers(watched: &Watched, history: &History) -> Vec<String> {
    let plan = &watched.plan;
    let mut found = Vec::new();
    let mut keys: BTreeMap<(u8, u8), Vec<&Op>> = BTreeMap::new();
    for op in &history.ops {
        keys.entry((op.call.scope, op.call.key)).or_default().push(op);
    }
    for (key, ops) in keys {
        let mut answer: Option<(Said<'_>, i64, Duration)> = None;
        let mut first_hand = 0;
        for op in &ops {
            let at = format!("key {key:?}, {:?} to {:?}", op.invoked, op.returned);
            if let Told::Finished { status, headers, body, replayed } = &op.told {
                let said = (*status, headers.as_slice(), body.as_slice());
                let returned = op.returned.unwrap_or(op.invoked);
                first_hand += u32::from(!replayed);
                match answer {
                    None => answer = Some((said, op.call.amount, returned)),
                    Some((known, amount, since))
                        if plan.has_many_lives() && (known, amount) != (said, op.call.amount) =>
                    {
                        // The answer of a life that began since then; or of the previous one, late.
                        if watched.begins_between(key, since, returned) {
                            answer = Some((said, op.call.amount, returned));
                        } else if op.invoked > since {
                            found.push(format!("G8: another answer in the same life: {at}"));
                        }
                    }
                    Some((known, amount, since)) => {
                        if known != said {
                            found.push(format!("G8: another answer than before: {at}"));
                        }
                        if amount != op.call.amount {
                            found.push(format!("G9: another request's answer: {at}"));
                        }
                        answer = Some((known, amount, since.min(returned)));
                    }
                }
            }
            let returned = op.returned.unwrap_or(op.invoked);
            let row = (scope_name(key.0), key_name(key.1));
            let gone = watched.erased.get(&row).filter(|since| op.invoked > **since);
            if let (Some(since), Told::Finished { .. }) = (gone, &op.told)
                && !watched.begins_between(key, *since, returned)
            {
                found.push(format!("an answer that was erased is told: {at}"));
            }
            if op.told == Told::Erased && !plan.erases(key.0, key.1) {
                found.push(format!("told erased, and it was not erased: {at}"));
            }
            let Some(stored) = &op.stored else { continue };
            // The row may no longer have anything about this life.
            if op.told == Told::Erased || watched.begins_between(key, op.invoked, returned) {
                continue;
            }
            // The part of a row's value after the fingerprint is the form of its parameters.
            let other = !stored.starts_with(&fingerprint_of(&op.call));
            match (&op.told, other) {
                (Told::Error | Told::Nothing, _) => {}
                (Told::Failed, _) if op.is_of_nothing_begun() => {}
                (Told::Mismatch, true) => {}
                (told, true) => found.push(format!("G9: another request is told {told:?}: {at}")),
                (Told::Mismatch, false) => found.push(format!("G9: the same is a mismatch: {at}")),
                _ => {}
            }
        }
        let lives = watched.lives.get(&(scope_name(key.0), key_name(key.1)));
        if first_hand > lives.map_or(1, |lives| lives.len() as u32) {
            found.push(format!("G10: {first_hand} calls ran key {key:?} to its end"));
        }
        let Some((_, amount, since)) = answer else { continue };
        for op in ops.iter().filter(|op| op.invoked > since && op.call.amount == amount) {
            let may_have_ended = plan.has_many_lives() || plan.erases(key.0, key.1);
            let is_told = matches!(op.told, Told::Finished { .. } | Told::Error | Told::Nothing);
            if !may_have_ended && !is_told && !op.is_of_nothing_begun() {
                let at = format!("key {key:?}, asked at {:?}", op.invoked);
                found.push(format!("moved back: finished, and then {:?}: {at}", op.told));
            }
        }
    }
    found
}

/// The answer *in progress* refers to something (G10): a row, a transaction, or another call that came first. If
/// transactions were abandoned, it may refer to one that is over by now.
fn in_progress_of_nothing(history: &History) -> Vec<String> {
    let of_nothing = history.ops.iter().filter(|op| op.of_nothing);
    let without = of_nothing.filter(|op| {
        !history.ops.iter().any(|other| {
            // An unanswered call may continue without its client.
            let goes_on = matches!(other.told, Told::Nothing | Told::Error);
            let overlaps = goes_on || other.returned.is_none_or(|end| end >= op.invoked);
            !std::ptr::eq(other, *op)
                && (other.call.scope, other.call.key) == (op.call.scope, op.call.key)
                && Some(other.invoked) <= op.returned
                && overlaps
        })
    });
    let text =
        |op: &Op| format!("G10: told in progress, and no process works on it: {:?}", op.call);
    without.map(text).collect()
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
