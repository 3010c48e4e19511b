//! [`OperatorStore`]: what operators ask a store for. No request uses any of it.
//!
//! Each search walks one index from one place on, and reads [`MAX_ROWS_PER_SEARCH`] rows at most. What an
//! operator may see is a condition of the statement ([`ScopeLimits`]), so that no caller can forget it.

use std::future::Future;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::audit::{AuditEntry, AuditSearch, Audited};
use super::bulk::{BulkClaim, BulkItem, BulkPart, BulkRow, NewBulk, SettledItem};
use super::census::{CensusGroup, CensusLease, JobCensus};
use super::events::StoredEvents;
use super::nodes::{NodeEntry, NodeRow};
use super::pauses::{PauseAct, PausedPhase};
use super::row::{Row, key_row};
pub(crate) use super::scope_limits::ScopeLimits;
use super::{KeyRow, Store, StoreError};
use crate::key::{IdempotencyKey, Scope};
use crate::number::to_u32;

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

/// By which index a search finds requests, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// `atomic_phases_keys_waiting`: unknown outcomes and dead letters, the longest waiting first.
    Waiting,
    /// `atomic_phases_keys_due`: what a worker looks at some time, the longest due first.
    Due,
    /// `atomic_phases_keys_expiry`: every row, the one that expires last first.
    Newest,
}

/// A place in the order of a [`Walk`]: the time that the walk goes by, and the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlace {
    pub(crate) time: DateTime<Utc>,
    pub(crate) request_id: Uuid,
}

/// What a [`Walk`] is in SQL.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) struct WalkSql {
    /// The column of the index that the walk goes by.
    pub(crate) column: &'static str,
    /// Of which rows.
    pub(crate) rows: &'static str,
    /// Behind a place, whose two binds follow.
    pub(crate) behind: &'static str,
    pub(crate) order: &'static str,
}

impl Walk {
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    pub(crate) fn sql(self) -> WalkSql {
        let (column, rows, behind, order) = match self {
            Self::Waiting => (
                "waiting_since",
                " WHERE waiting_since IS NOT NULL AND ",
                "(waiting_since, request_id) > (",
                " ORDER BY waiting_since, request_id",
            ),
            Self::Due => (
                "run_after",
                " WHERE run_after IS NOT NULL AND ",
                "(run_after, request_id) > (",
                " ORDER BY run_after, request_id",
            ),
            Self::Newest => (
                "expires_at",
                " WHERE ",
                "(expires_at, request_id) < (",
                " ORDER BY expires_at DESC, request_id DESC",
            ),
        };
        WalkSql { column, rows, behind, order }
    }

    /// From a time on, which follows.
    #[cfg(any(feature = "sqlite", feature = "mysql"))]
    pub(crate) fn from(self) -> &'static str {
        match self {
            Self::Waiting => "waiting_since >= ",
            Self::Due => "run_after >= ",
            Self::Newest => "expires_at <= ",
        }
    }

    /// The place in front of the first.
    pub(crate) fn start(self) -> ListPlace {
        match self {
            Self::Waiting | Self::Due => {
                ListPlace { time: DateTime::UNIX_EPOCH, request_id: Uuid::nil() }
            }
            Self::Newest => {
                // The year 9999: every database's times hold it.
                let time = DateTime::from_timestamp(253_370_764_800, 0).unwrap_or_default();
                ListPlace { time, request_id: Uuid::max() }
            }
        }
    }
}

/// Which requests to find.
#[derive(Clone)]
pub struct ListRequests {
    pub(crate) walk: Walk,
    pub(crate) after: ListPlace,
    pub(crate) limit: u32,
    pub(crate) limits: ScopeLimits,
    /// Names of states, as the stores tell them ([`state_name`]).
    pub(crate) states: Option<Vec<String>>,
    pub(crate) scope: Option<String>,
    pub(crate) definition: Option<String>,
    pub(crate) version: Option<u32>,
    /// A part of the reason.
    pub(crate) reason: Option<String>,
    /// Accepted so long ago, at least, in milliseconds.
    pub(crate) older_ms: Option<i64>,
    /// Waiting for a reconcile function or an operator for so long, in milliseconds.
    pub(crate) waiting_ms: Option<i64>,
}

impl ListRequests {
    /// The first that these limits allow.
    pub(crate) fn of(walk: Walk, after: ListPlace, limits: ScopeLimits) -> Self {
        Self {
            walk,
            after,
            limit: 1,
            limits,
            states: None,
            scope: None,
            definition: None,
            version: None,
            reason: None,
            older_ms: None,
            waiting_ms: None,
        }
    }
}

/// What a search found.
pub struct SearchPage<T, P> {
    pub(crate) rows: Vec<T>,
    /// Behind which place to continue, where the bound was reached before the page was full; a full page goes
    /// on behind its last row.
    pub(crate) searched_to: Option<P>,
}

/// A request as a list shows it.
#[derive(Clone)]
pub struct ListedRequest {
    pub(crate) request_id: Uuid,
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) definition: String,
    pub(crate) version: u32,
    pub(crate) phases: String,
    /// One of the names of [`state_name`], or a status that this build does not know.
    pub(crate) state: String,
    pub(crate) status: String,
    pub(crate) recovery_point: String,
    pub(crate) open_intent: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) attempts: u32,
    pub(crate) resolution: Option<String>,
    pub(crate) locked_until: Option<DateTime<Utc>>,
    pub(crate) run_after: Option<DateTime<Utc>>,
    pub(crate) waiting_since: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
}

/// The columns of a [`ListedRequest`], in the order in which each store selects them.
pub(super) type ListedRow = (
    (Uuid, String, String),
    (String, i32, String),
    (String, String, String, Option<String>, Option<String>),
    (i32, Option<String>),
    (Option<DateTime<Utc>>, Option<DateTime<Utc>>, Option<DateTime<Utc>>),
    (DateTime<Utc>, DateTime<Utc>),
);

pub(super) fn listed_request(row: ListedRow) -> ListedRequest {
    let ((request_id, scope, key), (definition, version, phases), stands, counts, due, times) = row;
    let (state, status, recovery_point, open_intent, reason) = stands;
    let (attempts, resolution) = counts;
    let (locked_until, run_after, waiting_since) = due;
    let (created_at, expires_at) = times;
    ListedRequest {
        request_id,
        scope,
        key,
        definition,
        version: version.cast_unsigned(),
        phases,
        state,
        status,
        recovery_point,
        open_intent,
        reason,
        attempts: attempts.max(0).cast_unsigned(),
        resolution,
        locked_until,
        run_after,
        waiting_since,
        created_at,
        expires_at,
    }
}

impl ListedRequest {
    /// Where it stands in the order of the walk.
    pub(crate) fn place(&self, walk: Walk) -> ListPlace {
        let time = match walk {
            Walk::Waiting => self.waiting_since,
            Walk::Due => self.run_after,
            Walk::Newest => Some(self.expires_at),
        };
        ListPlace { time: time.unwrap_or_default(), request_id: self.request_id }
    }
}

/// By what one request is found.
#[derive(Clone, Copy, Debug)]
pub enum RequestAt<'a> {
    Id(Uuid),
    Key(&'a Scope, &'a IdempotencyKey),
}

/// A request that was found, with all that is stored of it.
pub struct FoundRequest {
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) now: DateTime<Utc>,
    pub(crate) row: KeyRow,
}

/// Its scope, its key, and the columns of its row.
pub(super) type FoundRow = (String, String, Row);

pub(super) fn found_request((scope, key, row): FoundRow) -> Result<FoundRequest, StoreError> {
    let scope = Scope::new(scope).map_err(|_| StoreError::Unreadable { column: "scope" })?;
    let key = IdempotencyKey::new(key)
        .map_err(|_| StoreError::Unreadable { column: "idempotency_key" })?;
    let now = row.3.0;
    Ok(FoundRequest { scope, key, now, row: key_row(row)? })
}

/// How much waits, each counted among the first [`MAX_ROWS_PER_SEARCH`] of its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingCounts {
    pub(crate) unknown: u32,
    pub(crate) dead_letters: u32,
    pub(crate) oldest_waiting: Option<DateTime<Utc>>,
    pub(crate) due: u32,
    pub(crate) dead_jobs: u32,
    pub(crate) late_jobs: u32,
    /// Whether one of the indexes has more than was looked at.
    pub(crate) waiting_is_more: bool,
    pub(crate) due_is_more: bool,
    pub(crate) dead_jobs_are_more: bool,
    pub(crate) late_jobs_are_more: bool,
}

/// What a statement counts of each index, behind how much it has looked at: unknown rows, dead letters and since when
/// the oldest waits; due rows; dead jobs; late jobs.
pub(in crate::store) type Counted<T> =
    ((i64, i64, i64, Option<T>), (i64, i64), (i64, i64), (i64, i64));

impl WaitingCounts {
    /// `time`: of the store's own form.
    pub(in crate::store) fn of<T>(
        counted: Vec<Counted<T>>,
        time: impl Fn(T) -> Option<DateTime<Utc>>,
    ) -> Self {
        let Some((waiting, due, dead, late)) = counted.into_iter().next() else {
            return Self::default();
        };
        let (looked, unknown, dead_letters, oldest_waiting) = waiting;
        let most = i64::from(MAX_ROWS_PER_SEARCH);
        Self {
            unknown: to_u32(unknown),
            dead_letters: to_u32(dead_letters),
            oldest_waiting: oldest_waiting.and_then(time),
            due: to_u32(due.1),
            dead_jobs: to_u32(dead.1),
            late_jobs: to_u32(late.1),
            waiting_is_more: looked > most,
            due_is_more: due.0 > most,
            dead_jobs_are_more: dead.0 > most,
            late_jobs_are_more: late.0 > most,
        }
    }
}

/// A staged job as operators see it.
#[derive(Clone, PartialEq, Eq)]
pub struct OperatedJob {
    pub(crate) id: Uuid,
    pub(crate) scope: String,
    pub(crate) request_id: Uuid,
    pub(crate) position: i64,
    pub(crate) name: String,
    pub(crate) attempts: u32,
    pub(crate) reason: Option<String>,
    pub(crate) staged_at: DateTime<Utc>,
    /// `None`: a dead letter.
    pub(crate) run_after: Option<DateTime<Utc>>,
}

/// The columns of an [`OperatedJob`].
pub(super) type OperatedRow = (
    (Uuid, String, Uuid, i64),
    (String, i32, Option<String>, DateTime<Utc>, Option<DateTime<Utc>>),
);

pub(super) fn operated_job(row: OperatedRow) -> OperatedJob {
    let ((id, scope, request_id, position), (name, attempts, reason, staged_at, run_after)) = row;
    let attempts = attempts.max(0).cast_unsigned();
    OperatedJob { id, scope, request_id, position, name, attempts, reason, staged_at, run_after }
}

/// What becomes of a job that is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobFate {
    Retry,
    Discard,
}

/// A dead job as the operator saw it, and the audit row of what is done with it.
pub struct JobAct<'a> {
    pub(crate) scope: &'a str,
    pub(crate) id: Uuid,
    /// Its fencing token: who changed it since then was faster.
    pub(crate) attempts: u32,
    pub(crate) fate: JobFate,
    pub(crate) audit: &'a AuditEntry,
}

/// The name of a state, as the statements of the stores tell it too: one of [`STATES`], or a status that
/// this build does not know.
///
/// `waits`: for a reconcile function or an operator. While one is asked, or has died while it was, that is still so.
pub(crate) fn state_name(
    status: &str,
    waits: bool,
    is_erased: bool,
    is_leased: bool,
    backs_off: bool,
) -> &'static str {
    match status {
        "pending" => "accepted",
        "in_progress" if waits => "unknown",
        "in_progress" if is_leased => "running",
        "in_progress" => "lease_ended",
        "failed_retryable" if backs_off => "backing_off",
        "failed_retryable" => "due",
        "unknown" => "unknown",
        "dead_letter" => "dead_letter",
        "completed" if is_erased => "erased",
        "completed" => "finished",
        _ => "unreadable",
    }
}

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

    /// The phases that are paused, a thousand at most: as [`paused_phases`](super::WorkerStore::paused_phases), as a search
    /// of operators.
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
