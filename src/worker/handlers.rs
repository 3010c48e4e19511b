//! [`Handlers`]: a sink in this process.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;

use serde::de::DeserializeOwned;

use super::job::{DeliveryError, Job, JobSink};
use crate::setting::{SettingError, number, refused};

type Delivery = Pin<Box<dyn Future<Output = Result<(), DeliveryError>> + Send>>;
type Handler = Box<dyn Fn(Job) -> Delivery + Send + Sync>;

/// Functions of this process, by the name of the job that they handle. Jobs with other names are left to
/// nodes that have a function for them. If no node has one, the job stays staged, and does not become a dead letter: it is
/// late ([`Ops::late_jobs`](crate::ops::Ops::late_jobs)).
///
/// So when workers start, the names are compared with those of the jobs that the registered definitions are known to stage: in
/// `stage_job("name", ..)` in their blocks, by [`Definitions::job`](crate::compat::Definitions::job), and
/// [`WAITING_JOB`](crate::engine::WAITING_JOB) with [`notify_waiting`](crate::engine::EngineBuilder::notify_waiting). For each
/// name without a function here, the log has a warning.
///
/// A function gets the arguments and the job. It captures whatever else it needs, such as a clone of the store, by which it
/// reaches the database: [Staged jobs](crate::ops#staged-jobs) has an example.
///
/// ```
/// use atomic_phases::worker::{DeliveryError, Handlers, Job};
///
/// let jobs = Handlers::new().on("send_receipt", async |charge: String, job: Job| {
///     // Delivered at least once: let the mailer ignore a job.id that it has seen.
///     let _ = (charge, job.id);
///     Ok::<_, DeliveryError>(())
/// });
/// # let _ = jobs;
/// ```
#[derive(Default)]
pub struct Handlers {
    handlers: HashMap<String, Handler>,
    concurrency: HashMap<String, NonZeroUsize>,
}

impl Handlers {
    /// No handler yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles the jobs called `name`, instead of an earlier function for that name. A job whose arguments are not a `T`
    /// becomes a dead letter immediately.
    #[must_use]
    pub fn on<T, F, R>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + Send,
        F: Fn(T, Job) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), DeliveryError>> + Send + 'static,
    {
        let handler = move |job: Job| -> Delivery {
            match job.args::<T>() {
                Ok(args) => Box::pin(handler(args, job)),
                Err(error) => Box::pin(std::future::ready(Err(error))),
            }
        };
        self.handlers.insert(name.into(), Box::new(handler));
        self
    }

    /// Handles at most `most` jobs called `name` concurrently, in this process: 1 to 100,000. See
    /// [`JobSink::concurrency`]. A name that has no function when workers start is refused then, like any other
    /// setting that cannot work.
    ///
    /// # Errors
    /// [`SettingError`] for another number. To leave a name to other nodes, add no function for it.
    pub fn concurrency(
        mut self,
        name: impl Into<String>,
        most: usize,
    ) -> Result<Self, SettingError> {
        number("Handlers::concurrency", most, 1, 100_000)?;
        // It is not zero: see above.
        self.concurrency.extend(NonZeroUsize::new(most).map(|most| (name.into(), most)));
        Ok(self)
    }
}

impl JobSink for Handlers {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        match self.handlers.get(&job.name) {
            Some(handler) => handler(job.clone()).await,
            // Not asked for: see `handles`.
            None => {
                Err(DeliveryError::retry("no handler of this name here: add it by `Handlers::on`"))
            }
        }
    }

    /// A node of another deploy may have a handler for the others.
    fn handles(&self, name: &str) -> bool {
        self.handlers.contains_key(name)
    }

    fn concurrency(&self, name: &str) -> Option<NonZeroUsize> {
        self.concurrency.get(name).copied()
    }

    /// A limit of a name that has no function would limit nothing.
    fn check(&self) -> Result<(), SettingError> {
        let limited = self.concurrency.keys();
        match limited.filter(|name| !self.handlers.contains_key(*name)).min() {
            None => Ok(()),
            Some(name) => {
                let bound = "a name that has a function in the same `Handlers` (see `Handlers::on`): it does not limit the \
                    jobs that another sink takes";
                Err(refused("Handlers::concurrency (name)", name, bound))
            }
        }
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.handlers.keys()).finish()
    }
}
