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
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::key_state::{KeyChange, KeyState};
use super::record::{Place, Record};
use super::state::{By, Slot, State};
use crate::lock::lock;
use crate::store::census::CensusLease;
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
    /// The processes that announce themselves. They are not part of any transaction.
    pub(super) nodes: Mutex<Vec<NodeRow>>,
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

    /// The right to take the census, if no other process has it.
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
        let no_client = By { client: "", task: None };
        self.state().install(BTreeMap::from([(place, record)]), self.now(), no_client);
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
        self.state().lose(lost);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}
