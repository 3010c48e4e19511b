//! [`Reconciler`]: looks into what nobody knows.

use std::future::Future;
use std::time::Duration;

use super::completer::{Swept, drive};
use super::{More, Stop, Worker, WorkerConfig, run};
use crate::engine::Engine;
use crate::store::{Due, Right, Store, StoreError};

/// Asks the `#[reconcile]` functions of requests whose outcome is unknown and that have rested for
/// [`reconcile_after`](crate::EngineBuilder::reconcile_after). *Executed*: its output is stored and
/// the request goes on. *Not executed*: released, for a completer or a retry. *Still unknown*: later,
/// with back-off; past the cap it is a dead letter, for an operator.
pub struct Reconciler<S: Store, A> {
    engine: Engine<S, A>,
    config: WorkerConfig,
    /// Unknown rows at the head that nobody here can look into (G14).
    skip: u32,
}

impl<S: Store, A: Send + Sync + 'static> Reconciler<S, A> {
    /// A reconciler for the engine's requests.
    pub fn new(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        Self { engine: engine.clone(), config, skip: 0 }
    }

    /// One look: up to [`batch`](WorkerConfig::batch) requests.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Swept, StoreError> {
        self.sweep(&Stop::default()).await
    }

    /// Looks until `shutdown` is ready; what it has begun, it ends.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run(self, shutdown).await;
    }

    async fn sweep(&mut self, stop: &Stop) -> Result<Swept, StoreError> {
        let batch = self.config.batch;
        let keys = self.engine.store().due(Due::Reconcile, batch, self.skip).await?;
        let is_full_batch = keys.len() as u32 == batch;
        let concurrency = self.config.concurrency;
        let swept = drive(&self.engine, keys, Right::Reconcile, concurrency, stop).await;
        self.skip = if is_full_batch { self.skip.saturating_add(swept.stuck()) } else { 0 };
        Ok(swept)
    }
}

impl<S: Store, A: Send + Sync + 'static> Worker for Reconciler<S, A> {
    const NAME: &'static str = "reconciler";

    fn pace(&self) -> Duration {
        self.config.poll
    }

    async fn look(&mut self, stop: &Stop) -> Result<More, StoreError> {
        let swept = self.sweep(stop).await?;
        Ok(if swept.total() >= self.config.batch { More::Likely } else { More::No })
    }
}

impl<S: Store, A> std::fmt::Debug for Reconciler<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").field("config", &self.config).finish_non_exhaustive()
    }
}
