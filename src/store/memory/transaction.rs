//! A transaction, on the server's side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use diesel::QueryResult;
use diesel::result::DatabaseErrorKind;
use tokio::sync::watch;
use tokio::time::Instant;

use super::database::Database;
use super::error::{connection_lost, error};
use super::record::{Place, Record};
use super::state::{By, DEADLOCK_TIMEOUT, State};
use crate::definition::Isolation;

/// An open transaction. Dropped, it is undone.
pub(super) struct OpenTx {
    db: Database,
    id: u64,
    isolation: Isolation,
    /// Of the whole transaction, where its isolation level has one.
    snapshot: Option<u64>,
    /// Of the statement.
    statement: Option<u64>,
    writes: BTreeMap<Place, Option<Arc<Record>>>,
    savepoints: Vec<BTreeMap<Place, Option<Arc<Record>>>>,
    read: BTreeSet<Place>,
    /// A statement failed: nothing but the end, or the return to a savepoint, is possible.
    pub(super) failed: bool,
}

/// What bounds a wait for a lock.
pub(super) struct Patience {
    pub(super) lock_timeout: Option<Duration>,
    /// Closed when the client is gone.
    pub(super) client: watch::Receiver<()>,
}

/// How long a statement goes on to wait for a client that is gone (H13).
const CLIENT_CHECK: Duration = Duration::from_millis(500);

impl OpenTx {
    pub(super) fn begin(db: &Database, isolation: Isolation) -> Self {
        let id = db.state().begin();
        Self {
            db: db.clone(),
            id,
            isolation,
            snapshot: None,
            statement: None,
            writes: BTreeMap::new(),
            savepoints: Vec::new(),
            read: BTreeSet::new(),
            failed: false,
        }
    }

    /// A statement begins: from here on it sees what is committed by now, or what the whole
    /// transaction sees.
    pub(super) fn begin_statement(&mut self) -> QueryResult<()> {
        let mut state = self.db.state();
        if state.reverted {
            return Err(error(DatabaseErrorKind::Unknown, "relation does not exist"));
        }
        if let Some(former) = self.statement.take() {
            state.let_snapshot_go(former);
        }
        self.statement = Some(state.hold_snapshot());
        if self.snapshot.is_none() && self.isolation != Isolation::ReadCommitted {
            self.snapshot = Some(state.hold_snapshot());
        }
        Ok(())
    }

    fn sees(&self) -> u64 {
        self.snapshot.or(self.statement).unwrap_or(u64::MAX)
    }

    /// The row as the statement sees it.
    pub(super) fn see(&mut self, place: &Place) -> Option<Arc<Record>> {
        if self.isolation == Isolation::Serializable {
            self.read.insert(place.clone());
        }
        match self.writes.get(place) {
            Some(own) => own.clone(),
            None => self.db.state().slots.get(place)?.seen_at(self.sees()),
        }
    }

    /// The rows as the statement sees them, in order.
    pub(super) fn see_all(&mut self, range: std::ops::Range<Place>) -> Vec<(Place, Arc<Record>)> {
        let (state, snapshot) = (self.db.state(), self.sees());
        let mut seen: BTreeMap<Place, Option<Arc<Record>>> = state
            .slots
            .range(range.clone())
            .map(|(place, slot)| (place.clone(), slot.seen_at(snapshot)))
            .collect();
        drop(state);
        let own = self.writes.range(range);
        seen.extend(own.map(|(place, record)| (place.clone(), record.clone())));
        if self.isolation == Isolation::Serializable {
            self.read.extend(seen.keys().cloned());
        }
        seen.into_iter().filter_map(|(place, record)| Some((place, record?))).collect()
    }

    /// The newest version of a row that is locked.
    pub(super) fn newest(&self, place: &Place) -> Option<Arc<Record>> {
        match self.writes.get(place) {
            Some(own) => own.clone(),
            None => self.db.state().slots.get(place)?.newest(),
        }
    }

    /// Acquires the row's lock; an insert waits in the same way for another of the same key.
    pub(super) async fn lock(&mut self, place: &Place, patience: &mut Patience) -> QueryResult<()> {
        let began = Instant::now();
        loop {
            let ended = {
                let mut state = self.db.state();
                if !state.open.contains_key(&self.id) {
                    return Err(connection_lost());
                }
                let slot = state.slots.entry(place.clone()).or_default();
                match slot.holder {
                    Some(holder) if holder == self.id => return self.check_snapshot(place, &state),
                    Some(other) => {
                        let Some(ended) = state.open.get(&other).map(|open| open.ended.clone())
                        else {
                            return Err(connection_lost());
                        };
                        if let Some(open) = state.open.get_mut(&self.id) {
                            open.waits_for = Some(other);
                        }
                        if began.elapsed() >= DEADLOCK_TIMEOUT && state.is_deadlock(self.id) {
                            drop(state);
                            self.waits_no_more();
                            return Err(error(DatabaseErrorKind::Unknown, "deadlock detected"));
                        }
                        // Registered before the lock of the state is let go: no end is missed.
                        let mut ended = Box::pin(ended.notified_owned());
                        ended.as_mut().enable();
                        ended
                    }
                    None => {
                        slot.holder = Some(self.id);
                        if let Some(open) = state.open.get_mut(&self.id) {
                            open.waits_for = None;
                            open.locks.push(place.clone());
                        }
                        return self.check_snapshot(place, &state);
                    }
                }
            };
            if let Err(given_up) = wait_for(ended, began, patience).await {
                self.waits_no_more();
                return Err(given_up);
            }
        }
    }

    /// Acquires the row's lock if no other transaction holds it.
    pub(super) fn try_lock(&mut self, place: &Place) -> QueryResult<bool> {
        let mut state = self.db.state();
        if !state.open.contains_key(&self.id) {
            return Err(connection_lost());
        }
        let slot = state.slots.entry(place.clone()).or_default();
        match slot.holder {
            Some(holder) if holder != self.id => return Ok(false),
            Some(_) => {}
            None => {
                slot.holder = Some(self.id);
                if let Some(open) = state.open.get_mut(&self.id) {
                    open.locks.push(place.clone());
                }
            }
        }
        self.check_snapshot(place, &state)?;
        Ok(true)
    }

    fn waits_no_more(&self) {
        if let Some(open) = self.db.state().open.get_mut(&self.id) {
            open.waits_for = None;
        }
    }

    /// Under a snapshot, a row that has been changed since then cannot be changed.
    fn check_snapshot(&self, place: &Place, state: &State) -> QueryResult<()> {
        let changed = self.snapshot.is_some_and(|snapshot| {
            state.slots.get(place).is_some_and(|slot| slot.changed_since(snapshot))
        });
        match changed {
            true => Err(could_not_serialize()),
            false => Ok(()),
        }
    }

    /// Writes a row whose lock is held.
    pub(super) fn write(&mut self, place: Place, record: Option<Record>) {
        self.writes.insert(place, record.map(Arc::new));
    }

    pub(super) fn new_row_id(&self) -> String {
        self.db.state().new_row_id()
    }

    /// Whether another transaction is about to insert, change or delete the row.
    pub(super) fn is_of_another(&self, place: &Place) -> bool {
        let state = self.db.state();
        state.slots.get(place).and_then(|slot| slot.holder).is_some_and(|holder| holder != self.id)
    }

    pub(super) fn savepoint(&mut self) {
        self.savepoints.push(self.writes.clone());
    }

    pub(super) fn release_savepoint(&mut self) -> QueryResult<()> {
        self.savepoints.pop().map(drop).ok_or_else(no_savepoint)
    }

    pub(super) fn back_to_savepoint(&mut self) -> QueryResult<()> {
        self.writes = self.savepoints.last().ok_or_else(no_savepoint)?.clone();
        self.failed = false;
        Ok(())
    }

    /// Commits. `Err`: undone.
    pub(super) fn commit(mut self, by: By<'_>) -> QueryResult<()> {
        let now = self.db.now();
        let db = self.db.clone();
        let mut state = db.state();
        if !state.open.contains_key(&self.id) {
            return Err(connection_lost());
        }
        let is_stale = |place: &Place, snapshot| {
            state.slots.get(place).is_some_and(|slot| slot.changed_since(snapshot))
        };
        // Stricter than PostgreSQL, which aborts on dangerous structures only: each abort is one that a
        // serializable transaction must be ready for.
        if let (Isolation::Serializable, Some(snapshot)) = (self.isolation, self.snapshot)
            && !self.writes.is_empty()
            && self.read.iter().any(|place| is_stale(place, snapshot))
        {
            return Err(could_not_serialize());
        }
        state.install(std::mem::take(&mut self.writes), now, by);
        Ok(())
    }
}

impl Drop for OpenTx {
    fn drop(&mut self) {
        let mut state = self.db.state();
        for snapshot in [self.statement.take(), self.snapshot.take()].into_iter().flatten() {
            state.let_snapshot_go(snapshot);
        }
        state.end(self.id);
    }
}

fn no_savepoint() -> diesel::result::Error {
    error(DatabaseErrorKind::Unknown, "savepoint does not exist")
}

fn could_not_serialize() -> diesel::result::Error {
    error(
        DatabaseErrorKind::SerializationFailure,
        "could not serialize access due to concurrent update",
    )
}

/// Waits for the end of the holder's transaction, or until it is time to look for a deadlock. `began`: when the wait for the
/// lock did.
async fn wait_for(
    ended: impl Future<Output = ()>,
    began: Instant,
    patience: &mut Patience,
) -> QueryResult<()> {
    let until = patience.lock_timeout.map(|bound| began + bound);
    let detector = async {
        match began + DEADLOCK_TIMEOUT {
            then if then > Instant::now() => tokio::time::sleep_until(then).await,
            _ => std::future::pending().await,
        }
    };
    let timeout = async {
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    let client = &mut patience.client;
    let gone = async {
        while client.changed().await.is_ok() {}
        tokio::time::sleep(CLIENT_CHECK).await;
    };
    tokio::select! {
        biased;
        () = ended => Ok(()),
        () = timeout => {
            let message = "canceling statement due to lock timeout";
            Err(error(DatabaseErrorKind::Unknown, message))
        }
        () = gone => Err(connection_lost()),
        () = detector => Ok(()),
    }
}
