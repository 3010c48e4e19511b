//! The state of a [`Database`](super::Database): versions of rows, their locks, open transactions and snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Notify;
use uuid::Uuid;

use super::key_state::{KeyChange, KeyState};
use super::record::{Place, Record};

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
    pub(super) census: Option<(Uuid, DateTime<Utc>)>,
    /// Whether there are tables.
    pub(super) reverted: bool,
    /// What the last commits replaced, the newest last.
    pub(super) undo: Vec<(u64, Vec<Place>)>,
    /// The last commit that a standby has, which receives no later one.
    pub(super) replicated: u64,
    pub(super) on_commit: Option<Arc<Watch>>,
}

/// Who watches the commits.
pub(super) type Watch = dyn Fn(&KeyChange<'_>) + Send + Sync;

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

/// Who commits.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    pub(super) client: &'a str,
    pub(super) task: Option<tokio::task::Id>,
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

    pub(super) fn end_all_sessions(&mut self) {
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

    /// Fails over to a standby that has not received the last `lost` commits.
    pub(super) fn lose(&mut self, lost: usize) {
        self.end_all_sessions();
        for _ in 0..lost {
            let Some((commit, places)) = self.undo.pop() else { return };
            for place in places {
                if let Some(slot) = self.slots.get_mut(&place) {
                    slot.versions.retain(|(of, _)| *of != commit);
                }
            }
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

/// When the server looks for a circle of waits.
pub(super) const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);
