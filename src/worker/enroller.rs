//! [`Enroller`]: finds requests whose holder died young, and enters them in the index of due rows.

use std::collections::VecDeque;
use std::time::Duration;

use super::{More, Stop, Worker, WorkerConfig};
use crate::engine::Engine;
use crate::moment::Moment;
use crate::store::{Abandoned, Created, ExpiryPlace, Store, StoreError};

/// How old a request is at most when it first shows in the index of due rows: see `run_after` in the
/// guarded update. Plus what a commit may take.
const ENROLLED_BY: Duration = Duration::from_secs(10);

/// A part of the completer. A request that runs its usual way is never in the index of due rows, and so
/// one whose holder died in its first seconds is not either. It is found by its creation: among the
/// rows that were created one lease ago, or at times among all.
pub(super) struct Enroller<S: Store, A> {
    engine: Engine<S, A>,
    batch: u32,
    grace: Duration,
    poll: Duration,
    full_sweep: Duration,
    /// When the last complete pass over the young rows, and over all rows, began.
    young: Option<Moment>,
    full: Option<Moment>,
    /// The pass under way.
    pass: Option<Pass>,
    /// Found and not entered, because another transaction held the row. What is beyond [`KEPT`] is found
    /// by the next sweep of all rows.
    locked: VecDeque<Abandoned>,
}

/// How many locked rows are remembered.
const KEPT: usize = 10_000;

/// A read of the young rows, or of all, a batch at a time.
struct Pass {
    began: Moment,
    created: Option<Created>,
    place: ExpiryPlace,
}

/// What one search came to.
pub(super) struct Enrolled {
    entered: u32,
    /// Whether the pass goes on.
    more: More,
}

impl<S: Store, A: Send + Sync + 'static> Enroller<S, A> {
    pub(super) fn new(engine: &Engine<S, A>, config: &WorkerConfig) -> Self {
        Self {
            engine: engine.clone(),
            batch: config.batch,
            grace: config.grace,
            poll: config.poll,
            full_sweep: config.full_sweep,
            young: None,
            full: None,
            pass: None,
            locked: VecDeque::new(),
        }
    }

    /// One search, of a batch at most. Each row is entered by a statement of its own, so that one that
    /// is locked keeps no other from it; then as many of those that were locked before.
    pub(super) async fn enrol(&mut self, stop: &Stop) -> Result<Enrolled, StoreError> {
        let pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                let began = Moment::now();
                Pass { began, created: self.created(began), place: ExpiryPlace::default() }
            }
        };
        let store = self.engine.store().clone();
        let found = store.abandoned(pass.created, &pass.place, self.grace, self.batch).await?;
        let again = self.locked.len().min(self.batch as usize);
        let mut entered = 0;
        for row in found.rows {
            if stop.is_set() {
                return Ok(Enrolled { entered, more: More::No });
            }
            entered += self.enter(row).await?;
        }
        for _ in 0..again {
            let Some(row) = self.locked.pop_front().filter(|_| !stop.is_set()) else { break };
            entered += self.enter(row).await?;
        }
        let is_full = found.next.is_some();
        match found.next {
            Some(place) => self.pass = Some(Pass { place, ..pass }),
            None => {
                self.young = Some(pass.began);
                if pass.created.is_none() {
                    self.full = Some(pass.began);
                }
            }
        }
        if entered > 0 {
            self.engine.wakeups().accepted.notify_one();
        }
        Ok(Enrolled { entered, more: if is_full { More::Likely } else { More::No } })
    }

    /// Searches on until rows were entered, or to the end: rows that are locked, and what is no longer
    /// abandoned, keep nothing from a worker that looks once.
    pub(super) async fn enrol_some(&mut self) -> Result<(), StoreError> {
        let stop = Stop::default();
        while let Enrolled { entered: 0, more: More::Likely } = self.enrol(&stop).await? {}
        Ok(())
    }

    /// Enters a row, or remembers it where another transaction holds it.
    async fn enter(&mut self, row: Abandoned) -> Result<u32, StoreError> {
        match self.engine.store().enrol(&row).await {
            Ok(is_ours) => Ok(is_ours.into()),
            Err(error) if error.is_from_server() => {
                self.remember(row);
                Ok(0)
            }
            Err(error) => {
                self.remember(row);
                Err(error)
            }
        }
    }

    /// A row that is locked: the young rows overlap from one pass to the next, so it may be known.
    fn remember(&mut self, row: Abandoned) {
        let is_known = self.locked.iter().any(|known| {
            known.request_id == row.request_id && known.lease_token == row.lease_token
        });
        if !is_known && self.locked.len() < KEPT {
            self.locked.push_back(row);
        }
    }

    /// Which rows the last look cannot have seen; `None` where it is time to read all of them.
    fn created(&self, now: Moment) -> Option<Created> {
        self.full.filter(|then| now.since(*then) < self.full_sweep)?;
        let reach = now.since(self.young?);
        let (lease, retention) = (self.engine.settings().lease, self.engine.settings().retention);
        let from = lease + reach + ENROLLED_BY + self.grace;
        Some(Created { from, to: lease, retention })
    }
}

impl<S: Store, A: Send + Sync + 'static> Worker for Enroller<S, A> {
    const NAME: &'static str = "completer";

    fn pace(&self) -> Duration {
        self.poll
    }

    async fn look(&mut self, stop: &Stop) -> Result<More, StoreError> {
        Ok(self.enrol(stop).await?.more)
    }
}
