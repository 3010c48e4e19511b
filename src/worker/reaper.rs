//! [`Reaper`]: deletes expired keys.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::pace::rest_behind;
use super::{More, Stop, Worker, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::number::to_u32;
use crate::observe;
use crate::store::{ExpiryPlace, Halving, Refused, Store, StoreError};

/// After so many refused rows of a batch, if none was deleted, the reason is most likely not in the rows: the batch ends.
const MAX_REFUSED: u32 = 20;

/// Behind a full batch that took no longer, twice as many rows are deleted at a time, if there were fewer than configured.
const QUICK: Duration = Duration::from_secs(1);

/// Deletes completed keys past their expiry, and nothing else: a request that runs, waits, is unknown or is a
/// dead letter stays until it is settled (G15).
///
/// The reaper does not delete staged jobs: those of a deleted key are delivered like any other, or stay as
/// dead letters until an operator [retries](crate::ops::Ops::retry_job),
/// [discards](crate::ops::Ops::discard_job) or [erases](crate::Engine::erase) them.
///
/// The reaper walks along all expired rows, a batch at a time, and then begins anew. A row that is not completed blocks no
/// other. Neither does one that the server refuses to delete, for example because a table of the application refers to it. The
/// log reports it, and its batch counts as an error of the store: the reaper walks past it to the last expired row, and only
/// then tries it again.
///
/// If the server is too slow to delete a batch, for example because a table of the application refers to the keys and has no
/// index on its foreign key, nothing of it is deleted. The log reports it, and the next batch has half as many rows.
pub struct Reaper<S> {
    store: S,
    config: WorkerConfig,
    /// The next batch begins behind this place.
    place: ExpiryPlace,
    /// How many rows a batch reads: fewer than configured behind one that was not answered in time.
    at_a_time: u32,
}

/// What came of a batch.
#[derive(Default)]
struct Reaped {
    keys: u32,
    is_more: bool,
    /// How many rows the server refused to delete, and why the last of them.
    refusals: u32,
    refused: Option<StoreError>,
}

impl<S: Store> Reaper<S> {
    /// A reaper for the store.
    pub fn new(store: &S, config: WorkerConfig) -> Self {
        let at_a_time = config.reap_batch;
        Self { store: store.clone(), config, place: ExpiryPlace::default(), at_a_time }
    }

    /// Deletes at most [`reap_batch`](WorkerConfig::reap_batch) keys, from where the last call stopped, and returns how many:
    /// 0 at the end of the expired rows, behind which the next call begins anew. Passes over any number of rows that are not
    /// completed, or that another transaction has locked.
    ///
    /// # Errors
    /// [`StoreError`]; a later call finds the rest of the batch. If the server refuses to delete some rows of a batch, the
    /// others are deleted, and it is an error only if none was: the next call continues behind them. If it does not answer in
    /// time, the next batch has half as many rows.
    pub async fn run_once(&mut self) -> Result<u32, StoreError> {
        let stop = Stop::default();
        loop {
            let began = Instant::now();
            let reaped = self.reap(&stop).await?;
            if reaped.keys > 0 || !reaped.is_more {
                return Ok(reaped.keys);
            }
            tokio::time::sleep(rest_behind(began.elapsed())).await;
        }
    }

    async fn reap(&mut self, stop: &Stop) -> Result<Reaped, StoreError> {
        self.config.check()?;
        let mut reaped = Reaped::default();
        let done = self.reap_batch(&mut reaped, stop).await;
        observe::reaped(reaped.keys);
        if let Some(error) = &reaped.refused {
            observe::not_reaped(reaped.refusals, error.kind());
        }
        done?;
        match reaped.refused {
            Some(error) if reaped.keys == 0 => Err(error),
            _ => Ok(reaped),
        }
    }

    async fn reap_batch(&mut self, reaped: &mut Reaped, stop: &Stop) -> Result<(), StoreError> {
        let began = Instant::now();
        let page = self.store.expired_keys(&self.place, self.at_a_time).await?;
        reaped.is_more = true;
        let mut parts = Halving::of(&page.rows);
        while let Some(part) = parts.next_part() {
            let Some(last) = part.last() else { break };
            let is_of_all = reaped.keys == 0 && reaped.refusals >= MAX_REFUSED;
            if is_of_all || stop.is_set() {
                return Ok(());
            }
            match self.store.reap_rows(part).await {
                Ok(keys) => reaped.keys += keys,
                Err(error) => match parts.refused(part, error)? {
                    Refused::Halved => continue,
                    Refused::TooSlow(error) => {
                        self.take_fewer_than(part.len());
                        return Err(error);
                    }
                    Refused::One(error) => {
                        reaped.refusals += 1;
                        reaped.refused = Some(error);
                    }
                },
            }
            self.place = last.at.clone();
        }
        reaped.is_more = page.next.is_some();
        self.place = page.next.unwrap_or_default();
        if reaped.is_more {
            self.take_more_unless_slow(began);
        }
        Ok(())
    }

    /// Behind a full batch that began then.
    fn take_more_unless_slow(&mut self, began: Instant) {
        if began.elapsed() < QUICK {
            self.at_a_time = self.at_a_time.saturating_mul(2).min(self.config.reap_batch);
        }
    }

    /// So many were not deleted in time. The server may still be at it, and undoes it when it notices that its client is
    /// gone: fewer are tried by the next batch, and not by this one.
    fn take_fewer_than(&mut self, rows: usize) {
        self.at_a_time = to_u32(rows / 2).clamp(1, self.at_a_time);
        observe::reaped_too_slowly(self.at_a_time);
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
        stop.rest(rest_behind(began.elapsed())).await;
        Ok(More::Likely)
    }
}

impl<S> std::fmt::Debug for Reaper<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reaper").field("config", &self.config).finish_non_exhaustive()
    }
}
