//! What becomes of staged jobs.

use std::time::Duration;

use super::{job_names, metrics};
use crate::key::{IdempotencyKey, Scope, ShortHash};

/// A staged job, as far as a log may know it.
pub(crate) struct JobSeen {
    pub(crate) id: uuid::Uuid,
    pub(crate) name: String,
    pub(crate) request_id: uuid::Uuid,
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) attempt: u32,
}

impl JobSeen {
    /// Its name, where there is a metric that has it, and there are not too many of them.
    fn label(&self) -> &'static str {
        if cfg!(feature = "metrics") { job_names::label(&self.name) } else { "" }
    }
}

/// An event about a job, with what an operator finds it by.
macro_rules! job_event {
    ($level:ident, $job:expr, { $($field:tt)* }, $text:literal) => {
        $level!(
            job = $job.name,
            id = %$job.id,
            request_id = %$job.request_id,
            scope = %ShortHash($job.scope.as_str()),
            key = %ShortHash($job.key.as_str()),
            attempt = $job.attempt,
            $($field)*
            $text
        )
    };
}

pub(crate) fn job_delivered(job: &JobSeen, lag: Duration) {
    metrics::JOBS_DELIVERED.add(1, [job.label()]);
    metrics::JOB_LAG.record(lag.as_secs_f64(), [job.label()]);
    job_event!(debug, job, { ?lag, }, "job delivered");
}

pub(crate) fn job_failed(job: &JobSeen, reason: &'static str, back_off: Duration) {
    metrics::JOBS_FAILED.add(1, [job.label()]);
    job_event!(warn, job, { reason, ?back_off, }, "job not delivered; it is delivered again");
}

pub(crate) fn job_dead(job: &JobSeen, reason: &'static str) {
    metrics::JOBS_DEAD.add(1, [job.label()]);
    job_event!(warn, job, { reason, }, "job is a dead letter");
}

/// The store could not say whether the job is ours to deliver. Its id and key are not known before that.
pub(crate) fn job_not_claimed(
    name: &str,
    scope: &Scope,
    request_id: uuid::Uuid,
    kind: &'static str,
) {
    let scope = ShortHash(scope.as_str());
    warn!(job = name, %request_id, %scope, kind, "the store failed before a delivery");
}

/// The store failed after a delivery. The job is delivered again, if it has to be.
pub(crate) fn job_unsettled(job: &JobSeen, kind: &'static str) {
    job_event!(warn, job, { kind, }, "the store failed after a delivery");
}

/// An enqueuer met a job whose arguments its codec cannot open. Once for each name.
pub(crate) fn job_sealed(name: &str) {
    warn!(
        job = name,
        "left to other nodes: the codec of this process cannot open such a job's arguments"
    );
}

/// An enqueuer met a job that its sink does not handle. Once for each name.
pub(crate) fn job_not_handled(name: &str) {
    warn!(job = name, "left to other nodes: the sink of this process does not handle such jobs");
}

/// Workers start with a sink that does not handle a job which the requests of this process stage.
pub(crate) fn job_staged_and_not_handled(name: &str) {
    warn!(
        job = name,
        "the sink of this process does not handle such jobs, which its own requests stage: unless another node's does, \
         no node delivers them"
    );
}
