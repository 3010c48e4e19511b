//! [`BulkRunner`]: runs operators' bulk acts.

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use super::{More, Stop, Worker, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::engine::Engine;
use crate::moment::Moment;
use crate::ops::{BulkAct, Ops, Panicked, Slice, TurnEnd};
use crate::store::StoreError;
use crate::store::bulk::{BulkClaim, BulkItem, BulkPart, BulkRow};
use crate::store::operators::OperatorStore;

/// How many requests a worker takes at a time: within so many a bulk act is stopped.
const SLICE: u32 = 10;

/// How long a slice may take until another worker continues it: ten acts, each of some milliseconds, and some
/// seconds where a row is locked.
const LEASE: Duration = Duration::from_secs(60);

/// How many bulk acts one pass continues: one slice of each, one by one, so that a long one does not delay a short one.
const MAX_ACTS_PER_PASS: usize = 8;

/// And among how many it searches for those: another build's acts may be in front of them.
const MAX_OPEN: u32 = 1000;

/// Runs [bulk acts](crate::ops::Ops::start_bulk), a slice at a time, on any number of nodes.
pub struct BulkRunner<S: OperatorStore> {
    engine: Engine<S>,
    store: S,
    config: WorkerConfig,
    panicked: Panicked,
}

impl<S: OperatorStore> BulkRunner<S> {
    /// A runner for the engine's store.
    pub fn new<A: Send + Sync + 'static>(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        let (engine, store) = (engine.without_app(), engine.store().for_workers());
        Self { engine, store, config, panicked: Panicked::default() }
    }

    /// Processes one slice of each bulk act that has not ended and that no other worker is processing.
    /// Returns how many requests it processed.
    ///
    /// # Errors
    /// [`StoreError`]; a later call continues the slice. Where an act was begun, or the store does not answer, it does so
    /// after a minute at the earliest.
    pub async fn run_once(&mut self) -> Result<u32, StoreError> {
        self.config.check()?;
        self.slices(&Stop::default()).await
    }

    /// Runs bulk acts until `shutdown` is ready.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, poll_until_stopped(&mut self, &stop), shutdown).await;
    }

    async fn slices(&mut self, stop: &Stop) -> Result<u32, StoreError> {
        let open = self.store.open_bulks(MAX_OPEN).await?;
        let known = open.iter().filter_map(|bulk| Some((bulk, self.engine.starter_of(bulk)?)));
        let known: Vec<_> = known.take(MAX_ACTS_PER_PASS).collect();
        let (mut settled, mut failed) = (0, None);
        for (bulk, starter) in known {
            // One that fails keeps none behind it waiting.
            match self.slice(bulk, starter, stop).await {
                Ok(more) => settled += more,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(settled), Err)
    }

    async fn slice(
        &mut self,
        bulk: &BulkRow,
        (ops, act): (Ops<S>, BulkAct),
        stop: &Stop,
    ) -> Result<u32, StoreError> {
        let claim = BulkClaim { id: bulk.id, token: bulk.lease_token, lease: LEASE };
        let until = Moment::now().after(LEASE);
        if !self.store.claim_bulk(&claim).await? {
            return Ok(0);
        }
        let slice = Slice { bulk, act, token: bulk.lease_token + 1 };
        let (is_stopped, items) = match self.next_of(bulk.id).await {
            Ok(next) => next,
            Err(error) => {
                self.give_back(&slice).await;
                return Err(error);
            }
        };
        let (mut settled, mut is_kept) = (0, false);
        for item in items {
            if stop.is_set() && !is_stopped {
                break;
            }
            // This process was frozen for longer than its lease, so another worker may have continued the slice.
            if Moment::now() >= until {
                return Ok(settled);
            }
            // Behind an error here the lease goes on: a commit of the act may be under way.
            let turn = match is_stopped {
                // The worker that was stopped died: count what it did.
                true => ops.count_if_done(&slice, &item).await?,
                false => ops.take_turn(&slice, &item, &mut self.panicked).await?,
            };
            match turn {
                TurnEnd::Settled => settled += 1,
                TurnEnd::LeftAsItIs => {}
                // Those behind it have their turn; it has its next one after the lease.
                TurnEnd::Panicked => is_kept = true,
                TurnEnd::Lost => return Ok(settled),
            }
        }
        if !is_kept {
            self.store.leave_bulk(bulk.id, slice.token).await?;
        }
        Ok(settled)
    }

    /// Whether a bulk act was stopped, and its next requests. Read after the claim: an operator may have stopped it since
    /// this worker found it.
    async fn next_of(&self, id: Uuid) -> Result<(bool, Vec<BulkItem>), StoreError> {
        let claimed = self.store.bulk(id).await?;
        let is_stopped = claimed.is_none_or(|bulk| bulk.stopped_by.is_some());
        Ok((is_stopped, self.store.bulk_items(id, BulkPart::Waiting, SLICE).await?))
    }

    /// Ends the lease of a slice in which no act was begun, so that a worker can continue it immediately. The slice is not
    /// left: then a stop would end the bulk act, and what a worker that died before has done would not be counted.
    async fn give_back(&self, slice: &Slice<'_>) {
        let (id, token) = (slice.bulk.id, slice.token);
        let claim = BulkClaim { id, token, lease: Duration::ZERO };
        // Else its lease ends by itself.
        let _ = self.store.claim_bulk(&claim).await;
    }
}

impl<S: OperatorStore> Worker for BulkRunner<S> {
    const NAME: &'static str = "bulk runner";

    fn pace(&self) -> Duration {
        self.config.poll
    }

    async fn poll_once(&mut self, stop: &Stop) -> Result<More, StoreError> {
        Ok(if self.slices(stop).await? > 0 { More::Likely } else { More::No })
    }
}

impl<S: OperatorStore> std::fmt::Debug for BulkRunner<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BulkRunner").field("config", &self.config).finish_non_exhaustive()
    }
}
