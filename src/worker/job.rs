//! [`Job`]: a staged job on its way, and [`JobSink`]: where it goes.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::key::{IdempotencyKey, Scope};
use crate::phase::JobId;
use crate::traces::Traceparent;

/// A job that a phase staged, now to be delivered.
#[derive(Clone)]
#[non_exhaustive]
pub struct Job {
    /// The same at each delivery, and that which [`Tx::stage_job`](crate::Tx::stage_job) returned: what
    /// must not be done twice remembers it.
    pub id: JobId,
    /// The name it was staged under.
    pub name: String,
    /// Whose request staged it.
    pub scope: Scope,
    /// Under which key.
    pub key: IdempotencyKey,
    /// Its arguments, as JSON.
    pub args: Vec<u8>,
    /// Which delivery this is; 1 for the first. It grows with each, and by one more where an operator lets the job
    /// try again.
    pub attempt: u32,
    pub(super) trace: Option<Traceparent>,
}

impl Job {
    /// The context of this delivery, for what goes on elsewhere to be its child; where nothing is
    /// [traced](crate::engine::EngineBuilder::traces), that of the phase that staged it, if that was.
    #[must_use]
    pub fn traceparent(&self) -> Option<Traceparent> {
        self.trace
    }

    /// The arguments.
    ///
    /// # Errors
    /// A dead letter where they are no `T`: another delivery would not help.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T, DeliveryError> {
        serde_json::from_slice(&self.args)
            .map_err(|_| DeliveryError::dead("the arguments are of another type"))
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
    /// A passing failure: the job is delivered again, with back-off.
    #[must_use]
    pub fn retry(reason: &'static str) -> Self {
        Self { reason, then: Then::Again }
    }

    /// As [`retry`](Self::retry), not before the time that the other side asked for. The enqueuer's own
    /// back-off holds too: the longer of the two counts, an hour at most.
    #[must_use]
    pub fn retry_after(reason: &'static str, after: Duration) -> Self {
        Self { reason, then: Then::After(after) }
    }

    /// Another delivery would not help: the job is a dead letter at once.
    #[must_use]
    pub fn dead(reason: &'static str) -> Self {
        Self { reason, then: Then::Never }
    }
}

/// Where staged jobs go: [`Handlers`](crate::worker::Handlers) in this process, a queue, a stream.
///
/// Called at least once for each job (G18), the jobs of one request one after the other, in the order
/// in which they were staged.
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
///         // The queue drops a message whose id it has seen: a second delivery is no second mail.
///         let sent = self.0.push(&job.id.to_string(), &job.args).await;
///         sent.map_err(|_| DeliveryError::retry("the queue did not answer"))
///     }
/// }
/// ```
pub trait JobSink: Send + Sync + 'static {
    /// Delivers the job. A panic, and an answer that takes longer than
    /// [`WorkerConfig::delivery`](crate::worker::WorkerConfig::delivery), count as a passing failure.
    ///
    /// # Errors
    /// [`DeliveryError`] says whether and when to try again.
    fn deliver(&self, job: &Job) -> impl Future<Output = Result<(), DeliveryError>> + Send;

    /// How many jobs of that name this process delivers at the same time, of which one scope has half at most
    /// (rounded up); jobs beyond it are not claimed. By default names have no bound of their own: a scope has as
    /// many jobs at a time as its share of the worker's
    /// [slots](crate::worker::WorkerConfig::concurrency).
    ///
    /// A bound below that keeps a slow name from the others. One above it is for a sink that takes many at a time
    /// (a connection that pipelines): of a scope whose deliveries end within a second, up to that many are under
    /// way, and a [batch](crate::worker::WorkerConfig::batch) more than its share at most. A panic means 1.
    fn at_once(&self, name: &str) -> Option<usize> {
        let _ = name;
        None
    }

    /// Whether this sink takes jobs of that name; by default it takes all. What it does not take is
    /// left to other nodes: no attempt is counted, and the later jobs of the same request wait for it
    /// as for any other (G18). [`Engine::overdue_jobs`](crate::Engine::overdue_jobs) shows a job that
    /// no node takes. A panic counts as a passing failure of the job.
    fn handles(&self, name: &str) -> bool {
        let _ = name;
        true
    }
}

/// A sink behind a pointer.
pub(crate) trait DynSink: Send + Sync {
    fn deliver<'a>(
        &'a self,
        job: &'a Job,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeliveryError>> + Send + 'a>>;

    fn at_once(&self, name: &str) -> Option<usize>;

    fn handles(&self, name: &str) -> bool;
}

impl<T: JobSink> DynSink for T {
    fn deliver<'a>(
        &'a self,
        job: &'a Job,
    ) -> Pin<Box<dyn Future<Output = Result<(), DeliveryError>> + Send + 'a>> {
        Box::pin(JobSink::deliver(self, job))
    }

    fn at_once(&self, name: &str) -> Option<usize> {
        JobSink::at_once(self, name)
    }

    fn handles(&self, name: &str) -> bool {
        JobSink::handles(self, name)
    }
}
