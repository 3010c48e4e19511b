//! The judge of a run: ledgers outside of the engine, and the clients' answers.

mod answers;
mod end;
mod history;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use atomic_phases::simulation::{KeyChange, KeyState};
use uuid::Uuid;

pub use self::end::at_the_end;
pub use self::history::{History, Op, Told};
use super::plan::{HOSTILE, Limits, Plan};

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
    /// The calls of a row, at a provider that forgets keys, that may have had an effect.
    calls: BTreeMap<Row, BTreeSet<u64>>,
    /// How often each node was started.
    starts: BTreeMap<String, u32>,
    /// How many keys each node has created in each scope.
    created_by: BTreeMap<(String, String), u32>,
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
            calls: BTreeMap::new(),
            starts: BTreeMap::new(),
            created_by: BTreeMap::new(),
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
            let found = self.exceeds_its_quota(&row.0, change.by, now);
            self.violations.extend(found);
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
        let is_at_cap = after.reconciles() >= self.plan.max_reconciles.cast_signed();
        let is_in_vain = self.plan.is_undisturbed() && !self.plan.searchable;
        if (before.status(), after.status()) == ("in_progress", "unknown")
            && is_at_cap
            && is_in_vain
        {
            found.push("G17: a reconcile function is asked more often than its cap".to_owned());
        }
        if after.status() == "dead_letter" && before.status() != "dead_letter" && !is_at_cap {
            let age = now - self.created.get(&row).copied().unwrap_or_default();
            if age < back_offs(&self.plan) && !self.plan.is_beyond_promises() {
                found.push(format!("G17: gave up after {age:?}, before its back-offs had passed"));
            }
        }
        let becomes_unknown = after.status() == "unknown" && before.status() != "unknown";
        // Nothing was called, or the provider has refused each call, and was heard.
        let is_uncalled = || self.calls.get(&row).is_none_or(BTreeSet::is_empty);
        if becomes_unknown && definition == "fare" && self.plan.hears_all() && is_uncalled() {
            found.push("G17: unknown, and no call of it can have had an effect".to_owned());
        }
        if after.lease_token() > before.lease_token() {
            // The takeover was decided before its commit, by a clock that may have been set back since then.
            let decided = change.at + self.plan.set_back_lately(now);
            let alive = before.locked_until().is_some_and(|until| until > decided);
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

    pub fn starts(&mut self, node: &str) {
        *self.starts.entry(node.to_owned()).or_default() += 1;
    }

    /// Counts a key that a node has created.
    fn exceeds_its_quota(&mut self, scope: &str, node: &str, now: Duration) -> Vec<String> {
        let created = self.created_by.entry((node.to_owned(), scope.to_owned())).or_default();
        *created += 1;
        let created = u64::from(*created);
        // A commit that got no answer, and was lost, is sent again for the same key.
        let quota = self.plan.quota.filter(|_| !self.plan.loses_commits());
        let Some(Limits { keys: limit, rate: (burst, period) }) = quota else {
            return Vec::new();
        };
        let mut found = Vec::new();
        // Each start has another bucket, which is full at first.
        let starts = u64::from(self.starts.get(node).copied().unwrap_or_default());
        let refilled = now.as_millis() as u64 * u64::from(burst) / period;
        if created > starts * u64::from(burst) + refilled {
            found.push(format!("G16: {node} creates key {created} of {scope}, above its rate"));
        }
        // Other processes do not see each other's uncommitted keys, of which each has two at most.
        let keys = self.keys_of(scope);
        let others = self.starts.values().sum::<u32>().saturating_sub(1);
        if self.plan.is_undisturbed() && keys > limit + 2 * others {
            found.push(format!("G16: {scope} has {keys} keys, above its quota"));
        }
        found
    }

    /// How many keys of the scope were ever created.
    pub fn keys_of(&self, scope: &str) -> u32 {
        self.created.keys().filter(|(of, _)| of == scope).count() as u32
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

    pub fn called(&mut self, row: &Row, number: u64) {
        self.calls.entry(row.clone()).or_default().insert(number);
    }

    pub fn refused(&mut self, row: &Row, number: u64) {
        self.calls.entry(row.clone()).or_default().remove(&number);
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

    /// How many lives of the key there may have been in this time: those that began in it, and one from before.
    fn lives_between(&self, (scope, key): (u8, u8), from: Duration, to: Duration) -> usize {
        let lives = self.lives.get(&(scope_name(scope), key_name(key)));
        let began = |before: Duration| {
            lives.into_iter().flatten().filter(|began| **began <= before).count()
        };
        began(to) - began(from).saturating_sub(1)
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

/// The least duration of the attempts before the last one. Each is followed by its back-off, of which up to a quarter is
/// left out by chance, or by the end of its lease. An attempt that a client begins within a back-off counts only if it
/// then loses its lease, so of two consecutive ones, one takes its time.
fn back_offs(plan: &Plan) -> Duration {
    let of_attempt = |attempt: u32| (750 << attempt.min(4)).min(7_500).min(plan.lease);
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
