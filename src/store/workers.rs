//! What workers search for, claim and finish.

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::pauses::PausedPhase;
use super::{
    DueJob, DueKey, Enrolled, ExpiredKey, ExpiryPlace, HeldKey, JobAt, JobPlace, JobRow, KeyPlace,
    Page, StoreError, Undelivered,
};

/// The part of a [`Store`](super::Store) that the workers need.
#[doc(hidden)]
pub trait WorkerStore: Send + Sync {
    /// Whether requests that are taken over at one moment share a statement and a commit: then a completer takes over
    /// more of them than it runs.
    const CLAIMS_TOGETHER: bool = false;

    /// Up to `limit` rows that are due, behind this place, the longest due first: of every status that
    /// a worker looks for. One search for all of them is bounded by its limit, whatever the rows are.
    fn due_keys(
        &self,
        after: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<Page<DueKey, KeyPlace>, StoreError>> + Send;

    /// Reads `limit` rows that expire within these bounds, behind this place, in the order in which they
    /// expire. Of these, those in progress that the index of due rows does not have.
    fn held_keys(
        &self,
        expiry: (DateTime<Utc>, DateTime<Utc>),
        after: &ExpiryPlace,
        limit: u32,
    ) -> impl Future<Output = Result<Page<HeldKey, ExpiryPlace>, StoreError>> + Send;

    /// Enters rows whose lease has ended in the index of due rows, each by its own guard, in one transaction:
    /// what came of each. Waits for no row that another transaction has locked: it passes over it. `Err`: nothing
    /// was entered, or no answer came.
    fn enrol_keys(
        &self,
        held: &[HeldKey],
    ) -> impl Future<Output = Result<Vec<Enrolled>, StoreError>> + Send;

    /// Reads `limit` rows that have expired, behind this place, in the order in which they did. Of these, the completed ones.
    fn expired_keys(
        &self,
        after: &ExpiryPlace,
        limit: u32,
    ) -> impl Future<Output = Result<Page<ExpiredKey, ExpiryPlace>, StoreError>> + Send;

    /// Deletes these rows, a part of a page, as far as they still are completed and expired, and says how many (G15). Waits
    /// for no row that another transaction has locked: it passes over it. If the server refuses to delete one, none is
    /// deleted, and the result is an error.
    fn reap_rows(
        &self,
        expired: &[ExpiredKey],
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Up to `limit` staged jobs that are due, behind this place, the longest due first.
    fn jobs_due(
        &self,
        after: &JobPlace,
        limit: u32,
    ) -> impl Future<Output = Result<Page<DueJob, JobPlace>, StoreError>> + Send;

    /// Acquires the right to deliver a job for the length of `lease`: one guarded statement. `None`
    /// where another node was faster, or where an earlier job of the request is still to be
    /// delivered.
    fn claim_job(
        &self,
        at: &JobAt,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<JobRow>, StoreError>> + Send;

    /// The job was delivered: its row goes, and the next of its request is due. `false` where another
    /// process has it by now, or it is gone.
    fn job_delivered(&self, at: &JobAt) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// As [`claim_job`](Self::claim_job), of many jobs in one transaction: what came of each. A row that
    /// another transaction has locked is not waited for for long, and may be passed over. `Err`: nothing was
    /// claimed, or no answer came.
    fn claim_jobs(
        &self,
        at: &[JobAt],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Result<Option<JobRow>, StoreError>>, StoreError>> + Send;

    /// As [`job_delivered`](Self::job_delivered), of many jobs in one transaction, of each
    /// request one, and notices: whether each was deleted. A row that another transaction has locked is not waited for for long.
    fn jobs_delivered(
        &self,
        at: &[JobAt],
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// The job was not delivered, for this reason. Behind a dead one the next of its request is due; the
    /// others wait until it is out of the way, and no search finds them meanwhile.
    fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The foreign phases that operators have paused and whose pause lasts, a thousand at most. Where the store has a
    /// connection for what workers search for, they are read there, and wait for no request. If that fails, or gives no answer
    /// within a second, they are also read as requests read.
    fn paused_phases(&self) -> impl Future<Output = Result<Vec<PausedPhase>, StoreError>> + Send;
}
