//! [`OperatorStore`]: what operators ask a store for. No request uses any of it.
//!
//! Each search walks one index from one place on, and reads [`MAX_ROWS_PER_SEARCH`] rows at most. What an
//! operator may see is a condition of the statement ([`ScopeLimits`]), so that no caller can forget it.

mod rows;
mod search;

use std::future::Future;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

pub(crate) use self::rows::*;
pub(crate) use self::search::*;
use super::audit::{AuditEntry, AuditSearch, Audited};
use super::bulk::{BulkClaim, BulkItem, BulkPart, BulkRow, NewBulk, SettledItem};
use super::census::{CensusGroup, CensusLease, JobCensus};
use super::events::StoredEvents;
use super::nodes::{NodeEntry, NodeRow};
use super::pauses::{PauseAct, PausedPhase};
pub(crate) use super::scope_limits::ScopeLimits;
use super::{Store, StoreError};
use crate::key::Scope;

/// How many rows one statement of a search reads. Some 50 ms, where each is on a page of its own.
pub(crate) const MAX_ROWS_PER_SEARCH: u32 = 10_000;

/// How many requests one statement finds by their ids.
pub(crate) const IDS_PER_SEARCH: usize = 100;

/// How long a staged job has been due when it counts as late, in milliseconds: as the alert on late jobs has it.
pub(crate) const LATE_MS: i64 = 60_000;

/// How many staged jobs of one request are listed; as the statements of the other stores say it.
#[cfg(feature = "simulation")]
pub(crate) const MAX_JOBS: u32 = 100;

/// How long the database may take for one search.
#[cfg(feature = "postgres")]
pub(crate) const SEARCH_WITHIN: &str = "5000";

/// What operators ask a store for.
///
/// Implemented by every store of this crate. Its methods are those of [`Ops`](crate::ops::Ops).
pub trait OperatorStore: Store {
    /// The same store for a health check: what is asked here waits for no search of an operator, nor of a worker. One search
    /// runs at a time.
    #[doc(hidden)]
    #[must_use]
    fn for_probes(&self) -> Self;

    /// The same store for what workers, and probes that count, search for: it waits for no search of an operator. One search
    /// runs at a time.
    #[doc(hidden)]
    #[must_use]
    fn for_workers(&self) -> Self;

    /// Names the migrations that have not run, by what stands in their table: it is read, and never made.
    #[doc(hidden)]
    fn unapplied_migrations(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Whether the database is there to be read alone, as a standby is: it serves replays, and refuses each request
    /// that is new. Does not wait for another writer; `false` if that cannot be determined in time.
    #[doc(hidden)]
    fn is_read_only(&self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// A page of requests.
    #[doc(hidden)]
    fn list_requests(
        &self,
        list: &ListRequests,
    ) -> impl Future<Output = Result<SearchPage<ListedRequest, ListPlace>, StoreError>> + Send;

    /// Requests by their ids, [`IDS_PER_SEARCH`] at most, in any order: as a list has them, without their values.
    #[doc(hidden)]
    fn requests_by_ids(
        &self,
        ids: &[Uuid],
        limits: &ScopeLimits,
    ) -> impl Future<Output = Result<Vec<ListedRequest>, StoreError>> + Send;

    /// One request, with all that is stored of it.
    #[doc(hidden)]
    fn find_request(
        &self,
        at: RequestAt<'_>,
        limits: &ScopeLimits,
    ) -> impl Future<Output = Result<Option<FoundRequest>, StoreError>> + Send;

    /// How much waits.
    #[doc(hidden)]
    fn count_waiting(
        &self,
        limits: &ScopeLimits,
    ) -> impl Future<Output = Result<WaitingCounts, StoreError>> + Send;

    /// Acquires or renews the right to take the census. `false`: another process has it.
    #[doc(hidden)]
    fn claim_census(
        &self,
        lease: CensusLease,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// What is unfinished and does not run, by how it stands; ten thousand rows of each index at most. `paused`: the
    /// reason of a row that met a pause.
    #[doc(hidden)]
    fn unfinished(
        &self,
        limits: &ScopeLimits,
        paused: &str,
    ) -> impl Future<Output = Result<Vec<CensusGroup>, StoreError>> + Send;

    /// [`Store::database_time`], by a connection of the operators'.
    #[doc(hidden)]
    fn operators_time(&self) -> impl Future<Output = Result<DateTime<Utc>, StoreError>> + Send;

    /// How many jobs are staged.
    #[doc(hidden)]
    fn job_census(&self) -> impl Future<Output = Result<JobCensus, StoreError>> + Send;

    /// The staged jobs of a request, in order, a hundred at most.
    #[doc(hidden)]
    fn jobs_of(
        &self,
        scope: &Scope,
        request_id: Uuid,
    ) -> impl Future<Output = Result<Vec<OperatedJob>, StoreError>> + Send;

    /// Jobs that are dead letters, the oldest first.
    #[doc(hidden)]
    fn dead_jobs_after(
        &self,
        limits: &ScopeLimits,
        after: (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> impl Future<Output = Result<SearchPage<OperatedJob, (DateTime<Utc>, Uuid)>, StoreError>> + Send;

    /// Jobs that have been due for [`LATE_MS`], the longest due first. It looks at ten thousand of them, of whatever scope.
    #[doc(hidden)]
    fn late_jobs(
        &self,
        limits: &ScopeLimits,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<OperatedJob>, StoreError>> + Send;

    /// The job of this id, if it is a dead letter.
    #[doc(hidden)]
    fn dead_job(
        &self,
        limits: &ScopeLimits,
        id: Uuid,
    ) -> impl Future<Output = Result<Option<OperatedJob>, StoreError>> + Send;

    /// Retries or discards a dead job and writes the audit row, in one transaction. `false`: it is not
    /// as it was seen, and nothing was written.
    #[doc(hidden)]
    fn settle_job(&self, act: &JobAct<'_>)
    -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The [events](super::events) of a request; none of one that is gone by now.
    #[doc(hidden)]
    fn events(
        &self,
        found: &FoundRequest,
    ) -> impl Future<Output = Result<StoredEvents, StoreError>> + Send;

    /// Writes that the process is there; its first time is when it started.
    #[doc(hidden)]
    fn announce(&self, node: &NodeEntry) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes that it is there no more.
    #[doc(hidden)]
    fn depart(&self, node: Uuid) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The processes, a thousand at most, those that were seen last first.
    #[doc(hidden)]
    fn nodes(&self) -> impl Future<Output = Result<Vec<NodeRow>, StoreError>> + Send;

    /// Whether one of them was seen within this time.
    #[doc(hidden)]
    fn saw_a_node(
        &self,
        within: TimeDelta,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The phases that are paused: as [`paused_phases`](super::WorkerStore::paused_phases), as a search of operators.
    #[doc(hidden)]
    fn list_pauses(&self) -> impl Future<Output = Result<Vec<PausedPhase>, StoreError>> + Send;

    /// Pauses a phase, or replaces or ends its pause, and writes the audit row, in one transaction. `false`: the phase does
    /// not stand as the act says, and nothing was written.
    #[doc(hidden)]
    fn set_pause(
        &self,
        act: &PauseAct<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Starts a bulk act and writes the audit row, in one transaction.
    #[doc(hidden)]
    fn start_bulk(&self, bulk: &NewBulk<'_>)
    -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Bulk acts, the newest first, from one place on. Whose limits allow which is the caller's to judge: it goes by what
    /// is stored as one text. How far each came is not counted, and reads as zero: the caller
    /// [counts](Self::counted_bulks) those that it lists.
    #[doc(hidden)]
    fn bulks(
        &self,
        before: (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> impl Future<Output = Result<Vec<BulkRow>, StoreError>> + Send;

    /// Those of these that are still there, in any order, with how far each came.
    #[doc(hidden)]
    fn counted_bulks(
        &self,
        bulks: &[BulkRow],
    ) -> impl Future<Output = Result<Vec<BulkRow>, StoreError>> + Send;

    /// One of them.
    #[doc(hidden)]
    fn bulk(&self, id: Uuid) -> impl Future<Output = Result<Option<BulkRow>, StoreError>> + Send;

    /// Requests of a bulk act, in order.
    #[doc(hidden)]
    fn bulk_items(
        &self,
        id: Uuid,
        part: BulkPart,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<BulkItem>, StoreError>> + Send;

    /// Bulk acts that are not at their end and that no worker is at, the oldest first. How far each came is not counted.
    #[doc(hidden)]
    fn open_bulks(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<BulkRow>, StoreError>> + Send;

    /// Acquires the right to do a slice. `false`: another worker was faster, or it is at its end.
    #[doc(hidden)]
    fn claim_bulk(
        &self,
        claim: &BulkClaim,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes the outcome of a request, and the audit row, if there is one, in one transaction. `false`:
    /// another worker has the token, or has written it.
    #[doc(hidden)]
    fn settle_bulk_item(
        &self,
        item: &SettledItem<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Ends a slice, and the bulk act where no request is left or it was stopped.
    #[doc(hidden)]
    fn leave_bulk(
        &self,
        id: Uuid,
        token: i64,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Stops a bulk act and writes the audit row, in one transaction. It ends now, or with the slice that is under way.
    /// `false`: it is at its end, was stopped before, or is not there.
    #[doc(hidden)]
    fn stop_bulk(
        &self,
        id: Uuid,
        audit: &AuditEntry,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes an audit row by itself: of a refusal, or of values that were shown.
    #[doc(hidden)]
    fn record(&self, entry: &AuditEntry) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The audit rows of a search, the newest first, from one place on. It looks at ten thousand rows of the request, or of
    /// all, whatever else is asked for.
    #[doc(hidden)]
    fn audit_before(
        &self,
        limits: &ScopeLimits,
        search: &AuditSearch,
        before: (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> impl Future<Output = Result<SearchPage<Audited, (DateTime<Utc>, Uuid)>, StoreError>> + Send;
}
