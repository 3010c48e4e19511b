//! [`Enqueuer`]: delivers staged jobs.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::job::{DeliveryError, DynSink, Job, JobSink, Then};
use super::{More, Stop, Worker, WorkerConfig, each, run};
use crate::engine::Engine;
use crate::observe;
use crate::store::{JobAt, JobRow, Store, StoreError};

/// Hands staged jobs to a [`JobSink`], at least once each (G18), those of one request in their order.
/// A job that fails waits, with a back-off that doubles up to an hour, and its request's later jobs
/// with it; at the cap it is a dead letter, and they go on.
pub struct Enqueuer<S: Store, A> {
    engine: Engine<S, A>,
    config: WorkerConfig,
    sink: Arc<dyn DynSink>,
}

/// What one look of the enqueuer came to, in jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Delivered.
    pub delivered: u32,
    /// Failed, and to be delivered again later.
    pub put_back: u32,
    /// Became dead letters.
    pub dead_letters: u32,
    /// Somebody else was faster, or the store failed in between: delivered again, if need be.
    pub lost: u32,
}

impl<S: Store, A: Send + Sync + 'static> Enqueuer<S, A> {
    /// An enqueuer for the engine's staged jobs.
    pub fn new(engine: &Engine<S, A>, sink: impl JobSink, config: WorkerConfig) -> Self {
        Self::with(engine, Arc::new(sink), config)
    }

    pub(super) fn with(
        engine: &Engine<S, A>,
        sink: Arc<dyn DynSink>,
        config: WorkerConfig,
    ) -> Self {
        Self { engine: engine.clone(), config, sink }
    }

    /// One look: up to [`batch`](WorkerConfig::batch) jobs, of each request one.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Delivered, StoreError> {
        self.sweep(&Stop::default()).await
    }

    /// Delivers until `shutdown` is ready; what it has begun, it ends.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run(self, shutdown).await;
    }

    async fn sweep(&mut self, stop: &Stop) -> Result<Delivered, StoreError> {
        let jobs = self.engine.store().jobs_due(self.config.batch).await?;
        let this = &*self;
        let deliver = |at: JobAt| async move { this.deliver(&at).await };
        let mut sum = Delivered::default();
        for ended in each(jobs, self.config.concurrency, stop, deliver).await {
            *match ended {
                Ok(Ended::Delivered) => &mut sum.delivered,
                Ok(Ended::PutBack) => &mut sum.put_back,
                Ok(Ended::Dead) => &mut sum.dead_letters,
                Ok(Ended::Lost) | Err(_) => &mut sum.lost,
            } += 1;
        }
        Ok(sum)
    }

    async fn deliver(&self, at: &JobAt) -> Result<Ended, StoreError> {
        let store = self.engine.store();
        let Some(row) = store.claim_job(at, self.config.delivery).await? else {
            return Ok(Ended::Lost);
        };
        let at = row.at.clone();
        let (attempt, lag) = (at.attempts, row.lag);
        let (name, failed) = match self.job(row) {
            Ok(job) => (job.name.clone(), self.hand_over(&job).await.err()),
            Err(error) => (String::new(), Some(error)),
        };
        let Some(error) = failed else {
            observe::job_delivered(&name, lag);
            let ours = store.job_delivered(&at).await?;
            return Ok(if ours { Ended::Delivered } else { Ended::Lost });
        };
        observe::job_failed(&name, error.reason, attempt);
        let back_off = match error.then {
            Then::Never => None,
            _ if attempt >= self.config.max_deliveries => None,
            Then::After(after) => Some(after),
            Then::Again => Some(back_off(attempt)),
        };
        if back_off.is_none() {
            observe::job_dead(&name);
        }
        Ok(match (store.job_failed(&at, back_off).await?, back_off) {
            (false, _) => Ended::Lost,
            (true, Some(_)) => Ended::PutBack,
            (true, None) => Ended::Dead,
        })
    }

    fn job(&self, row: JobRow) -> Result<Job, DeliveryError> {
        let JobRow { at, key, id, name, args, lag: _ } = row;
        let args = self
            .engine
            .decoded(&at.scope, &key, "args", args)
            .map_err(|_| DeliveryError::retry("the stored arguments are not readable here"))?;
        Ok(Job { id, name, scope: at.scope, key, args, attempt: at.attempts })
    }

    async fn hand_over(&self, job: &Job) -> Result<(), DeliveryError> {
        // The rest of the claim is for writing down what came of it.
        let bound = self.config.delivery * 2 / 3;
        let delivery = AssertUnwindSafe(self.sink.deliver(job)).catch_unwind();
        match tokio::time::timeout(bound, delivery).await {
            Ok(Ok(delivered)) => delivered,
            Ok(Err(_)) => Err(DeliveryError::retry("the delivery panicked")),
            Err(_) => Err(DeliveryError::retry("the delivery took too long")),
        }
    }
}

enum Ended {
    Delivered,
    PutBack,
    Dead,
    Lost,
}

/// 1 s, 2 s, 4 s, … up to an hour.
fn back_off(attempt: u32) -> Duration {
    const HOUR: u64 = 3600;
    Duration::from_secs((1 << attempt.saturating_sub(1).min(12)).min(HOUR))
}

impl<S: Store, A: Send + Sync + 'static> Worker for Enqueuer<S, A> {
    const NAME: &'static str = "enqueuer";

    fn pace(&self) -> Duration {
        self.config.poll
    }

    async fn look(&mut self, stop: &Stop) -> Result<More, StoreError> {
        // The request of a job that was delivered may have a next one.
        let delivered = self.sweep(stop).await?.delivered;
        Ok(if delivered > 0 { More::Likely } else { More::No })
    }

    async fn bell(&self) {
        self.engine.bells().staged.notified().await;
    }
}

impl<S: Store, A> std::fmt::Debug for Enqueuer<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enqueuer").field("config", &self.config).finish_non_exhaustive()
    }
}
