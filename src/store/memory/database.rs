//! [`Database`]: the server's side. Committed versions of rows, row locks, a clock.
//!
//! What it copies of PostgreSQL is what the engine relies on: each statement of a READ COMMITTED
//! transaction sees what was committed before it began; a write waits for the transaction that holds
//! the row, and then judges the newest version; a unique key waits for the transaction that is about to
//! insert it. The wait ends by the other's end, by the lock timeout, by the deadlock detector after a
//! second, or half a second after its client is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, SubsecRound, Utc};
use diesel::result::{DatabaseErrorKind, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::store::census::CensusLease;

use super::record::{AuditRecord, BulkRecord, JobRecord, KeyRecord, PauseRecord, Place, Record};
use crate::store::nodes::NodeRow;

/// A database that lives in memory: the server. [`Memory`](super::Memory) is a client of it.
///
/// Its clock is tokio's: in a runtime whose time is paused, a day passes immediately. It is lost when the
/// value is dropped.
#[derive(Clone)]
pub struct Database(pub(super) Arc<Shared>);

pub(super) struct Shared {
    state: Mutex<State>,
    /// The database's clock at a moment of tokio's.
    started: (DateTime<Utc>, Instant),
    /// How far it was set forward since then, in microseconds.
    ahead: AtomicI64,
    /// The processes that run workers: of no matter to any transaction.
    pub(super) nodes: Mutex<Vec<NodeRow>>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) slots: BTreeMap<Place, Slot>,
    /// How many transactions have committed: the age of a snapshot.
    pub(super) commits: u64,
    pub(super) open: BTreeMap<u64, OpenTransaction>,
    next_transaction: u64,
    /// Snapshots in use, and by how many.
    snapshots: BTreeMap<u64, usize>,
    next_row: u64,
    /// Grows at each restart; a session of an older one is gone.
    pub(super) life: u64,
    pub(super) down: bool,
    /// Who takes the census, and until when.
    census: Option<(Uuid, DateTime<Utc>)>,
    /// Whether there are tables.
    pub(super) reverted: bool,
    /// What the last commits replaced, the newest last.
    undo: Vec<(u64, Vec<Place>)>,
    on_commit: Option<Arc<Watch>>,
}

/// Who watches the commits.
type Watch = dyn Fn(&KeyChange<'_>) + Send + Sync;

/// The versions of one row, and who is about to change it.
#[derive(Default)]
pub(super) struct Slot {
    /// By the commit that made them, the oldest first. `None`: deleted.
    pub(super) versions: Vec<(u64, Option<Arc<Record>>)>,
    pub(super) holder: Option<u64>,
}

pub(super) struct OpenTransaction {
    /// Rung when it ends.
    pub(super) ended: Arc<Notify>,
    /// Whose end it waits for.
    pub(super) waits_for: Option<u64>,
    pub(super) locks: Vec<Place>,
}

/// A change of a key's row, at its commit; for a test that watches.
#[derive(Clone, Copy, Debug)]
pub struct KeyChange<'a> {
    /// As it was; `None` where it is new.
    pub before: Option<KeyState<'a>>,
    /// As it is; `None` where it was deleted.
    pub after: Option<KeyState<'a>>,
    /// The database's clock.
    pub at: DateTime<Utc>,
    /// Whose transaction it is: see [`Network::client`](super::Network::client).
    pub by: &'a str,
    /// The task that sent the commit, if it was one.
    pub task: Option<tokio::task::Id>,
}

/// Who commits.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    pub(super) client: &'a str,
    pub(super) task: Option<tokio::task::Id>,
}

/// What a test may see of a key's row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyState<'a>(&'a KeyRecord);

impl<'a> KeyState<'a> {
    /// Whose key it is.
    #[must_use]
    pub fn scope(&self) -> &'a str {
        &self.0.scope
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'a str {
        &self.0.idempotency_key
    }

    /// Which life of the key it is.
    #[must_use]
    pub fn request_id(&self) -> Uuid {
        self.0.request_id.uuid()
    }

    /// Name of its definition.
    #[must_use]
    pub fn definition(&self) -> &'a str {
        &self.0.definition
    }

    /// The fingerprint of the request that it was made for.
    #[must_use]
    pub fn fingerprint(&self) -> &'a str {
        &self.0.fingerprint
    }

    /// Its status, as it is stored.
    #[must_use]
    pub fn status(&self) -> &'a str {
        &self.0.status
    }

    /// Its recovery point.
    #[must_use]
    pub fn recovery_point(&self) -> &'a str {
        &self.0.recovery_point
    }

    /// The at-most-once phase whose call may be under way.
    #[must_use]
    pub fn open_intent(&self) -> Option<&'a str> {
        self.0.open_intent.as_deref()
    }

    /// Its fencing token.
    #[must_use]
    pub fn lease_token(&self) -> i64 {
        self.0.lease_token
    }

    /// Until when its lease holds.
    #[must_use]
    pub fn locked_until(&self) -> Option<DateTime<Utc>> {
        self.0.locked_until.map(|time| time.0)
    }

    /// How often its lease was acquired.
    #[must_use]
    pub fn attempts(&self) -> i32 {
        self.0.attempts
    }

    /// How often its reconcile function was asked.
    #[must_use]
    pub fn reconciles(&self) -> i32 {
        self.0.reconciles
    }

    /// When a finished key stops to replay.
    #[must_use]
    pub fn expires_at(&self) -> DateTime<Utc> {
        self.0.expires_at.0
    }

    /// Status and body of the stored reply.
    #[must_use]
    pub fn response(&self) -> Option<(i16, Option<&'a [u8]>)> {
        let body = self.0.response_body.as_ref().map(|body| body.0.as_slice());
        self.0.response_status.map(|status| (status, body))
    }

    /// The headers of the stored reply, as they are stored: names and values, in JSON.
    #[must_use]
    pub fn response_headers(&self) -> Option<&'a [u8]> {
        self.0.response_headers.as_ref().map(|headers| headers.0.as_slice())
    }
}

impl Default for Database {
    fn default() -> Self {
        // The same in each run of a simulation.
        Self::starting_at(match crate::simulation::is_simulated() {
            true => DateTime::from_timestamp(1_800_000_000, 0).unwrap_or(DateTime::UNIX_EPOCH),
            false => Utc::now(),
        })
    }
}

impl Database {
    /// An empty database, whose clock now shows `time`.
    #[must_use]
    pub fn starting_at(time: DateTime<Utc>) -> Self {
        let started = (time, Instant::now());
        Self(Arc::new(Shared {
            state: Mutex::default(),
            started,
            ahead: AtomicI64::new(0),
            nodes: Mutex::default(),
        }))
    }

    /// Its clock.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        let (time, then) = self.0.started;
        let ahead = chrono::Duration::microseconds(self.0.ahead.load(Ordering::Relaxed));
        (time + then.elapsed() + ahead).trunc_subsecs(6)
    }

    /// The right to take the census, where nobody else has it.
    pub(super) fn claim_census(&self, lease: CensusLease) -> bool {
        let (now, mut state) = (self.now(), self.state());
        let is_free =
            state.census.is_none_or(|(holder, until)| holder == lease.holder || until <= now);
        if is_free {
            state.census = Some((lease.holder, now + lease.length));
        }
        is_free
    }

    /// Sets its clock forward, as an administrator or a time service may.
    pub fn set_clock_forward(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.0.ahead.fetch_add(by, Ordering::Relaxed);
    }

    /// Sets its clock back: a lease acquired before lasts longer by this time.
    pub fn set_clock_back(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.0.ahead.fetch_sub(by, Ordering::Relaxed);
    }

    /// The committed rows of one of the application's tables, by id.
    #[must_use]
    pub fn rows(&self, table: &str) -> Vec<(String, Value)> {
        let state = self.state();
        let of_table = |(place, slot): (&Place, &Slot)| match (place, slot.newest()?.as_ref()) {
            (Place::Row(of, id), Record::Row(value)) if of == table => {
                Some((id.clone(), value.clone()))
            }
            _ => None,
        };
        state.slots.iter().filter_map(of_table).collect()
    }

    /// Looks at each committed row of the key table.
    pub fn each_key(&self, mut look: impl FnMut(KeyState<'_>)) {
        let state = self.state();
        let newest = state.slots.values().filter_map(Slot::newest);
        for record in newest {
            record.key().into_iter().for_each(|key| look(KeyState(key)));
        }
    }

    /// Whether an open transaction is about to create, change or delete this key's row.
    #[must_use]
    pub fn is_locked(&self, scope: &str, key: &str) -> bool {
        let state = self.state();
        let place = Place::Key(scope.to_owned(), key.to_owned());
        state.slots.get(&place).is_some_and(|slot| slot.holder.is_some())
    }

    /// Puts a row into one of the application's tables, as another program would.
    pub fn put(&self, table: impl Into<String>, id: impl Into<String>, value: impl Into<Value>) {
        let record = Some(Arc::new(Record::Row(value.into())));
        let place = Place::Row(table.into(), id.into());
        let nobody = By { client: "", task: None };
        self.state().install(BTreeMap::from([(place, record)]), self.now(), nobody);
    }

    /// The committed staged jobs: their ids.
    #[must_use]
    pub fn staged_jobs(&self) -> Vec<Uuid> {
        let state = self.state();
        let newest = state.slots.values().filter_map(Slot::newest);
        newest.filter_map(|record| Some(record.job()?.job_id.uuid())).collect()
    }

    /// Calls `watch` at each commit that changes a key's row. It must not use the database.
    pub fn on_commit(&self, watch: impl Fn(&KeyChange<'_>) + Send + Sync + 'static) {
        self.state().on_commit = Some(Arc::new(watch));
    }

    /// The tables go, with all that is in them.
    pub(super) fn drop_tables(&self) {
        let mut state = self.state();
        state.slots.clear();
        state.reverted = true;
    }

    /// Crashes and restarts: every connection ends, every open transaction is rolled back, and committed data
    /// stays.
    pub fn restart(&self) {
        self.state().end_all_sessions();
    }

    /// From now on no connection can be opened; those that are open end.
    pub fn stop(&self) {
        let mut state = self.state();
        state.down = true;
        state.end_all_sessions();
    }

    /// The end of [`stop`](Self::stop).
    pub fn start(&self) {
        self.state().down = false;
    }

    /// Fails over to a standby that has not received the last `lost` commits: they are gone, although they
    /// were acknowledged.
    pub fn fail_over_losing(&self, lost: usize) {
        let mut state = self.state();
        state.end_all_sessions();
        for _ in 0..lost {
            let Some((commit, places)) = state.undo.pop() else { return };
            for place in places {
                if let Some(slot) = state.slots.get_mut(&place) {
                    slot.versions.retain(|(of, _)| *of != commit);
                }
            }
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// All committed rows, for a test that wants to look at them by other means.
    #[doc(hidden)]
    #[must_use]
    pub fn dump(&self) -> Value {
        dump_of(&self.state())
    }

    /// Makes the rows in which `after` differs from `before` be those of `after`; for a test that changes
    /// rows behind the engine's back. `false`, and nothing is changed, where the database is not as `seen`
    /// any more, or where a transaction holds one of these rows.
    ///
    /// # Errors
    /// Where one is not a dump.
    #[doc(hidden)]
    pub fn restore(
        &self,
        seen: &Value,
        before: Value,
        after: Value,
    ) -> Result<bool, serde_json::Error> {
        let (before, after) = (records(before)?, records(after)?);
        let mut state = self.state();
        let places = before.keys().chain(after.keys());
        let held = |place| state.slots.get(place).is_some_and(|slot| slot.holder.is_some());
        let changed = |place: &&Place| match (before.get(place), after.get(place)) {
            (Some(before), Some(after)) => !same(before, after),
            (before, after) => before.is_some() || after.is_some(),
        };
        if places.filter(changed).any(held) || dump_of(&state) != *seen {
            return Ok(false);
        }
        state.commits += 1;
        let commit = state.commits;
        let mut install = |place: &Place, record: Option<Record>| {
            let slot = state.slots.entry(place.clone()).or_default();
            slot.versions.push((commit, record.map(Arc::new)));
        };
        for (place, record) in &before {
            if !after.contains_key(place) {
                install(place, None);
            } else if !same(record, &after[place]) {
                install(place, Some(after[place].clone()));
            }
        }
        for (place, record) in &after {
            if !before.contains_key(place) {
                install(place, Some(record.clone()));
            }
        }
        Ok(true)
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Dump {
    keys: Vec<KeyRecord>,
    jobs: Vec<JobRecord>,
    rows: Vec<(String, String, Value)>,
    #[serde(default)]
    audit: Vec<AuditRecord>,
    #[serde(default)]
    pauses: Vec<PauseRecord>,
    #[serde(default)]
    bulks: Vec<BulkRecord>,
}

fn dump_of(state: &State) -> Value {
    let mut dump = Dump::default();
    for (place, slot) in &state.slots {
        match (slot.newest().map(|record| (*record).clone()), place) {
            (Some(Record::Key(key)), _) => dump.keys.push(key),
            (Some(Record::Job(job)), _) => dump.jobs.push(job),
            (Some(Record::Audit(audit)), _) => dump.audit.push(audit),
            (Some(Record::Pause(pause)), _) => dump.pauses.push(pause),
            (Some(Record::Bulk(bulk)), _) => dump.bulks.push(bulk),
            (Some(Record::Row(value)), Place::Row(table, id)) => {
                dump.rows.push((table.clone(), id.clone(), value));
            }
            _ => {}
        }
    }
    serde_json::to_value(dump).unwrap_or_default()
}

fn records(dump: Value) -> Result<BTreeMap<Place, Record>, serde_json::Error> {
    let Dump { keys, jobs, rows, audit, pauses, bulks } = serde_json::from_value(dump)?;
    let keys = keys.into_iter().map(|key| (key.place(), Record::Key(key)));
    let jobs = jobs.into_iter().map(|job| (job.place(), Record::Job(job)));
    let rows =
        rows.into_iter().map(|(table, id, value)| (Place::Row(table, id), Record::Row(value)));
    let audit = audit.into_iter().map(|audit| (audit.place(), Record::Audit(audit)));
    let pauses = pauses.into_iter().map(|pause| (pause.place(), Record::Pause(pause)));
    let bulks = bulks.into_iter().map(|bulk| (bulk.place(), Record::Bulk(bulk)));
    Ok(keys.chain(jobs).chain(rows).chain(audit).chain(pauses).chain(bulks).collect())
}

fn same(a: &Record, b: &Record) -> bool {
    match (a, b) {
        (Record::Key(a), Record::Key(b)) => a == b,
        (Record::Job(a), Record::Job(b)) => a == b,
        (Record::Row(a), Record::Row(b)) => a == b,
        (Record::Audit(a), Record::Audit(b)) => a == b,
        (Record::Pause(a), Record::Pause(b)) => a == b,
        (Record::Bulk(a), Record::Bulk(b)) => a == b,
        _ => false,
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

impl Slot {
    pub(super) fn newest(&self) -> Option<Arc<Record>> {
        self.versions.last().and_then(|(_, record)| record.clone())
    }

    /// The version that a snapshot of this age sees.
    pub(super) fn seen_at(&self, snapshot: u64) -> Option<Arc<Record>> {
        let seen = self.versions.iter().rev().find(|(commit, _)| *commit <= snapshot);
        seen.and_then(|(_, record)| record.clone())
    }

    pub(super) fn changed_since(&self, snapshot: u64) -> bool {
        self.versions.last().is_some_and(|(commit, _)| *commit > snapshot)
    }
}

/// How many commits a failover can lose.
const UNDO: usize = 64;

impl State {
    pub(super) fn begin(&mut self) -> u64 {
        self.next_transaction += 1;
        let id = self.next_transaction;
        let opened = OpenTransaction { ended: Arc::default(), waits_for: None, locks: Vec::new() };
        self.open.insert(id, opened);
        id
    }

    pub(super) fn new_row_id(&mut self) -> String {
        self.next_row += 1;
        format!("{:08}", self.next_row)
    }

    pub(super) fn hold_snapshot(&mut self) -> u64 {
        *self.snapshots.entry(self.commits).or_default() += 1;
        self.commits
    }

    pub(super) fn let_snapshot_go(&mut self, snapshot: u64) {
        if let Some(users) = self.snapshots.get_mut(&snapshot) {
            *users -= 1;
            if *users == 0 {
                self.snapshots.remove(&snapshot);
            }
        }
    }

    /// Gives the locks up. What the transaction wrote is its caller's to install, or to forget.
    pub(super) fn end(&mut self, id: u64) {
        let Some(ended) = self.open.remove(&id) else { return };
        for place in ended.locks {
            if let Some(slot) = self.slots.get_mut(&place) {
                slot.holder = None;
                if slot.versions.is_empty() {
                    self.slots.remove(&place);
                }
            }
        }
        ended.ended.notify_waiters();
    }

    fn end_all_sessions(&mut self) {
        self.life += 1;
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().for_each(|id| self.end(id));
    }

    /// Makes the writes visible, and calls who watches.
    pub(super) fn install(
        &mut self,
        writes: BTreeMap<Place, Option<Arc<Record>>>,
        at: DateTime<Utc>,
        by: By<'_>,
    ) {
        if writes.is_empty() {
            return;
        }
        self.commits += 1;
        let (commit, oldest) = (self.commits, self.snapshots.keys().next().copied());
        self.undo.push((commit, writes.keys().cloned().collect()));
        if self.undo.len() > UNDO {
            self.undo.remove(0);
        }
        // A version is of use to the oldest snapshot, and to a failover that loses its successors.
        let oldest =
            oldest.unwrap_or(commit).min(self.undo.first().map_or(commit, |(of, _)| of - 1));
        let watch = self.on_commit.clone();
        for (place, record) in writes {
            let slot = self.slots.entry(place).or_default();
            if let Some(watch) = &watch {
                let before = slot.newest();
                let (before, after) = (before.as_deref(), record.as_deref());
                let (before, after) = (before.and_then(Record::key), after.and_then(Record::key));
                if before.is_some() || after.is_some() {
                    let (before, after) = (before.map(KeyState), after.map(KeyState));
                    watch(&KeyChange { before, after, at, by: by.client, task: by.task });
                }
            }
            let needed = slot.versions.iter().rposition(|(of, _)| *of <= oldest).unwrap_or(0);
            slot.versions.drain(..needed);
            slot.versions.push((commit, record));
        }
    }

    /// Whether a wait of `id` for `other` would close a circle.
    pub(super) fn is_deadlock(&self, id: u64) -> bool {
        let mut next = self.open.get(&id).and_then(|open| open.waits_for);
        while let Some(other) = next {
            if other == id {
                return true;
            }
            next = self.open.get(&other).and_then(|open| open.waits_for);
        }
        false
    }
}

/// The server's errors, as diesel-async reports PostgreSQL's: most have no kind of their own (H9).
pub(super) fn error(kind: DatabaseErrorKind, message: &str) -> Error {
    Error::DatabaseError(kind, Box::new(message.to_owned()))
}

pub(super) fn lost() -> Error {
    error(DatabaseErrorKind::ClosedConnection, "connection closed")
}

/// When the server looks for a circle of waits.
pub(super) const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);
