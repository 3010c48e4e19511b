//! [`Reaper`]: deletes expired keys.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::{More, Stop, Worker, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::observe;
use crate::store::{Store, StoreError};

/// Deletes completed keys past their expiry, and nothing else: a request that runs, waits, is unknown or is a
/// dead letter stays until it is settled (G15).
///
/// The reaper does not delete staged jobs: those of a deleted key are delivered like any other, or stay as
/// dead letters until an operator [retries](crate::ops::Ops::retry_job),
/// [discards](crate::ops::Ops::discard_job) or [erases](crate::Engine::erase) them.
pub struct Reaper<S> {
    store: S,
    config: WorkerConfig,
}

impl<S: Store> Reaper<S> {
    /// A reaper for the store.
    pub fn new(store: &S, config: WorkerConfig) -> Self {
        Self { store: store.clone(), config }
    }

    /// Deletes one batch of at most [`reap_batch`](WorkerConfig::reap_batch) keys, and returns how many it deleted.
    /// Skips rows that another transaction has locked.
    ///
    /// # Errors
    /// [`StoreError`]; a later call finds the rest of the batch.
    pub async fn run_once(&mut self) -> Result<u32, StoreError> {
        self.config.check()?;
        let reaped = self.store.reap(self.config.reap_batch).await?;
        observe::reaped(reaped);
        Ok(reaped)
    }

    /// Reaps until `shutdown` is ready.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, poll_until_stopped(&mut self, &stop), shutdown).await;
    }
}

impl<S: Store> Worker for Reaper<S> {
    const NAME: &'static str = "reaper";

    fn pace(&self) -> Duration {
        self.config.reap_every
    }

    async fn poll_once(&mut self, _: &Stop) -> Result<More, StoreError> {
        let began = Instant::now();
        let full = self.run_once().await? >= self.config.reap_batch;
        if full {
            // Four fifths of the time are left to others: no request waits for a reaper.
            tokio::time::sleep(began.elapsed() * 4).await;
        }
        Ok(if full { More::Likely } else { More::No })
    }
}

impl<S> std::fmt::Debug for Reaper<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reaper").field("config", &self.config).finish_non_exhaustive()
    }
}
