//! [`Job`]: a staged job on its way, and [`JobSink`]: where it goes.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::key::{IdempotencyKey, Scope};
use crate::phase::JobId;
use crate::setting::SettingError;
use crate::traces::Traceparent;

/// A job that a phase staged, to be delivered.
#[derive(Clone)]
#[non_exhaustive]
pub struct Job {
    /// The id that [`Tx::stage_job`](crate::Tx::stage_job) returned, the same at each delivery. Use it to
    /// ignore a second delivery.
    pub id: JobId,
    /// The name it was staged under.
    pub name: String,
    /// The scope of the request that staged it.
    pub scope: Scope,
    /// The key of the request that staged it.
    pub key: IdempotencyKey,
    /// Its arguments, as JSON.
    pub args: Vec<u8>,
    /// The number of this delivery; 1 for the first. It grows with each, and by one more if an operator retries
    /// the job.
    pub attempt: u32,
    pub(super) trace: Option<Traceparent>,
}

impl Job {
    /// The trace context of this delivery, to propagate it to other systems. If the engine does not
    /// [trace](crate::engine::EngineBuilder::traces), the context of the phase that staged the job, if that
    /// was traced.
    #[must_use]
    pub fn traceparent(&self) -> Option<Traceparent> {
        self.trace
    }

    /// The arguments.
    ///
    /// # Errors
    /// A dead letter if they are not a `T`: another delivery would not help.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T, DeliveryError> {
        serde_json::from_slice(&self.args).map_err(|_| {
            DeliveryError::dead(
                "the arguments are of another type: let the handler read both, and retry the job",
            )
        })
    }
}

// G19: without the arguments.
impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Why a job was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DeliveryError {
    pub(super) reason: &'static str,
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Again,
    After(Duration),
    Never,
}

impl DeliveryError {
    /// A transient failure: the job is delivered again, with back-off.
    #[must_use]
    pub fn retry(reason: &'static str) -> Self {
        Self { reason, then: Then::Again }
    }

    /// As [`retry`](Self::retry), but not before the time that the receiver asked for. The enqueuer's own
    /// back-off applies too: the longer of the two counts, an hour at most.
    #[must_use]
    pub fn retry_after(reason: &'static str, after: Duration) -> Self {
        Self { reason, then: Then::After(after) }
    }

    /// Another delivery would not help: the job becomes a dead letter immediately.
    #[must_use]
    pub fn dead(reason: &'static str) -> Self {
        Self { reason, then: Then::Never }
    }
}

/// Where staged jobs go: [`Handlers`](crate::worker::Handlers) in this process, a queue, a stream.
///
/// Called at least once for each job (G18); the jobs of one request are delivered one by one, in the order
/// in which they were staged.
///
/// ```
/// use atomic_phases::worker::{DeliveryError, Job, JobSink};
/// # struct Queue;
/// # impl Queue {
/// #     async fn push(&self, _id: &str, _body: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
/// # }
///
/// struct ToQueue(Queue);
///
/// impl JobSink for ToQueue {
///     async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
///         // The queue drops a message whose id it has seen: a second delivery sends no second email.
///         let sent = self.0.push(&job.id.to_string(), &job.args).await;
///         sent.map_err(|_| DeliveryError::retry("the queue did not answer"))
///     }
/// }
/// ```
pub trait JobSink: Send + Sync + 'static {
    /// Delivers the job. A panic, and an answer that takes longer than a delivery
    /// [may take](crate::worker::WorkerConfig::delivery), count as a transient failure.
    ///
    /// # Errors
    /// [`DeliveryError`] says whether and when to retry.
    fn deliver(&self, job: &Job) -> impl Future<Output = Result<(), DeliveryError>> + Send;

    /// How many jobs of that name this process delivers concurrently, of which one scope has at most half
    /// (rounded up); further jobs are not claimed. By default names have no limit of their own: a scope has as
    /// many concurrent jobs as its share of the worker's
    /// [slots](crate::worker::WorkerConfig::concurrency).
    ///
    /// A lower limit keeps a slow name from delaying the others. A higher one is for a sink that takes many at a time
    /// (a connection that pipelines): if a scope's deliveries end within a second, up to that many are under
    /// way, at most a [batch](crate::worker::WorkerConfig::batch) more than its share. To leave a name to other nodes, see
    /// [`handles`](Self::handles). While this panics, one job of the name is delivered at a time.
    fn concurrency(&self, name: &str) -> Option<NonZeroUsize> {
        let _ = name;
        None
    }

    /// Whether this sink takes jobs of that name; by default it takes all. Other jobs are
    /// left to other nodes: no attempt is counted, and the later jobs of the same request wait
    /// as usual (G18). [`Ops::late_jobs`](crate::ops::Ops::late_jobs) lists jobs that
    /// no node takes. A panic counts as a transient failure of the job.
    fn handles(&self, name: &str) -> bool {
        let _ = name;
        true
    }

    /// Whether its settings can work; by default there are none. Workers ask before they start. A sink that passes jobs on to
    /// another sink asks that one.
    ///
    /// # Errors
    /// [`SettingError`] names the first setting that cannot; then nothing is delivered.
    fn check(&self) -> Result<(), SettingError> {
        Ok(())
    }
}

/// A sink behind a pointer.
pub(crate) trait DynSink: Send + Sync {
    fn deliver<'a>(
        &'a self,
        job: &'a Job,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeliveryError>> + Send + 'a>>;

    fn concurrency(&self, name: &str) -> Option<NonZeroUsize>;

    fn handles(&self, name: &str) -> bool;

    fn check(&self) -> Result<(), SettingError>;
}

impl<T: JobSink> DynSink for T {
    fn deliver<'a>(
        &'a self,
        job: &'a Job,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeliveryError>> + Send + 'a>> {
        Box::pin(JobSink::deliver(self, job))
    }

    fn concurrency(&self, name: &str) -> Option<NonZeroUsize> {
        JobSink::concurrency(self, name)
    }

    fn handles(&self, name: &str) -> bool {
        JobSink::handles(self, name)
    }

    fn check(&self) -> Result<(), SettingError> {
        JobSink::check(self)
    }
}
