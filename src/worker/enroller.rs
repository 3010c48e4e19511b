//! [`Enroller`]: finds requests whose holder died young, and enters them in the index of due rows.

use std::time::Duration;

use super::{More, Stop, Worker, WorkerConfig};
use crate::engine::Engine;
use crate::moment::Moment;
use crate::store::{Abandoned, Created, Store, StoreError};

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
    /// When the young rows, and when all rows were last searched to the end.
    young: Option<Moment>,
    full: Option<Moment>,
    /// Found and not entered, because another transaction holds the row: a batch at most. What is beyond
    /// is found by the next sweep of all rows.
    locked: Vec<Abandoned>,
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
            locked: Vec::new(),
        }
    }

    /// One search, of a batch at most. Each row is entered by a statement of its own, so that one that
    /// is locked keeps no other from it.
    pub(super) async fn enrol(&mut self, stop: &Stop) -> Result<More, StoreError> {
        let now = Moment::now();
        let created = self.created(now);
        let found = self.engine.store().abandoned(created, self.grace, self.batch).await?;
        let is_full = found.len() as u32 >= self.batch;
        let mut entered = 0;
        for row in std::mem::take(&mut self.locked).into_iter().chain(found) {
            if stop.is_set() {
                return Ok(More::No);
            }
            match self.engine.store().enrol(&row).await {
                Ok(is_ours) => entered += u32::from(is_ours),
                Err(error) if error.is_from_server() && self.locked.len() < self.batch as usize => {
                    self.locked.push(row);
                }
                Err(error) => return Err(error),
            }
        }
        if !is_full {
            self.young = Some(now);
            if created.is_none() {
                self.full = Some(now);
            }
        }
        if entered > 0 {
            self.engine.bells().accepted.notify_one();
        }
        Ok(if is_full && entered > 0 { More::Likely } else { More::No })
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
        self.enrol(stop).await
    }
}
