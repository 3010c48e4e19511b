//! [`Reaper`]: deletes expired keys.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::{More, Stop, Worker, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::observe;
use crate::store::{ExpiryPlace, Store, StoreError};

/// How many times as long as a batch took the worker rests behind it, and how long at most. So four fifths of the time
/// are left to others: no request waits for a reaper.
const REST_RATIO: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Deletes completed keys past their expiry, and nothing else: a request that runs, waits, is unknown or is a
/// dead letter stays until it is settled (G15).
///
/// The reaper does not delete staged jobs: those of a deleted key are delivered like any other, or stay as
/// dead letters until an operator [retries](crate::ops::Ops::retry_job),
/// [discards](crate::ops::Ops::discard_job) or [erases](crate::Engine::erase) them.
///
/// A row that the server refuses to delete, because a table of the application refers to it, stays, is reported in the
/// log and counted as an error of the store. It keeps no other row from being deleted.
pub struct Reaper<S> {
    store: S,
    config: WorkerConfig,
    /// Where the next walk begins that deletes one by one.
    place: ExpiryPlace,
}

/// What came of a batch.
struct Reaped {
    keys: u32,
    is_more: bool,
    /// Why the server did not delete others.
    refused: Option<StoreError>,
}

impl<S: Store> Reaper<S> {
    /// A reaper for the store.
    pub fn new(store: &S, config: WorkerConfig) -> Self {
        Self { store: store.clone(), config, place: ExpiryPlace::default() }
    }

    /// Deletes one batch of at most [`reap_batch`](WorkerConfig::reap_batch) keys, and returns how many it deleted.
    /// Skips rows that another transaction has locked.
    ///
    /// # Errors
    /// [`StoreError`]; a later call finds the rest of the batch. If the server refuses to delete some rows of a batch, the
    /// others are deleted, and it is an error only if none was.
    pub async fn run_once(&mut self) -> Result<u32, StoreError> {
        let reaped = self.reap(&Stop::default()).await?;
        match reaped.refused {
            Some(error) if reaped.keys == 0 => Err(error),
            _ => Ok(reaped.keys),
        }
    }

    async fn reap(&mut self, stop: &Stop) -> Result<Reaped, StoreError> {
        self.config.check()?;
        let batch = self.config.reap_batch;
        let reaped = match self.store.reap(batch).await {
            Ok(keys) => {
                self.place = ExpiryPlace::default();
                Reaped { keys, is_more: keys >= batch, refused: None }
            }
            Err(error) if error.may_be_of_one() => self.reap_each(stop).await?,
            Err(error) => return Err(error),
        };
        observe::reaped(reaped.keys);
        Ok(reaped)
    }

    /// One by one, because the server may have refused one of a batch, and then has deleted none of it. It continues
    /// where the last such walk ended, so that it comes past any number of rows that the server refuses.
    async fn reap_each(&mut self, stop: &Stop) -> Result<Reaped, StoreError> {
        let page = self.store.expired(&self.place, self.config.reap_batch).await?;
        let mut reaped = Reaped { keys: 0, is_more: page.next.is_some(), refused: None };
        let mut refused = 0;
        for expired in &page.rows {
            if stop.is_set() {
                return Ok(reaped);
            }
            match self.store.reap_one(expired).await {
                Ok(is_reaped) => reaped.keys += u32::from(is_reaped),
                Err(error) if error.may_be_of_one() => {
                    refused += 1;
                    reaped.refused = Some(error);
                }
                Err(error) => {
                    observe::reaped(reaped.keys);
                    return Err(error);
                }
            }
        }
        self.place = page.next.unwrap_or_default();
        if let Some(error) = &reaped.refused {
            observe::not_reaped(refused, error.kind());
        }
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

    async fn poll_once(&mut self, stop: &Stop) -> Result<More, StoreError> {
        let began = Instant::now();
        let reaped = self.reap(stop).await?;
        if !reaped.is_more {
            return Ok(More::No);
        }
        // Where the server refuses all, the reason is most likely not one of theirs.
        let rest = match reaped.refused.is_some() && reaped.keys == 0 {
            true => LONGEST_REST,
            false => (began.elapsed() * REST_RATIO).min(LONGEST_REST),
        };
        tokio::select! {
            biased;
            () = stop.set() => {}
            () = tokio::time::sleep(rest) => {}
        }
        Ok(More::Likely)
    }
}

impl<S> std::fmt::Debug for Reaper<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reaper").field("config", &self.config).finish_non_exhaustive()
    }
}
