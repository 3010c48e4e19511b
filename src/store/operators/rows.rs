//! What operators see: requests and staged jobs, with the columns that each store selects for them.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{ListPlace, MAX_ROWS_PER_SEARCH, Walk};
use crate::key::{IdempotencyKey, Scope};
use crate::number::to_u32;
use crate::store::audit::AuditEntry;
use crate::store::row::{Row, key_row};
use crate::store::{KeyRow, StoreError};

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
pub(in crate::store) type ListedRow = (
    (Uuid, String, String),
    (String, i32, String),
    (String, String, String, Option<String>, Option<String>),
    (i32, Option<String>),
    (Option<DateTime<Utc>>, Option<DateTime<Utc>>, Option<DateTime<Utc>>),
    (DateTime<Utc>, DateTime<Utc>),
);

pub(in crate::store) fn listed_request(row: ListedRow) -> ListedRequest {
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
pub(in crate::store) type FoundRow = (String, String, Row);

pub(in crate::store) fn found_request(
    (scope, key, row): FoundRow,
) -> Result<FoundRequest, StoreError> {
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
pub(in crate::store) type OperatedRow = (
    (Uuid, String, Uuid, i64),
    (String, i32, Option<String>, DateTime<Utc>, Option<DateTime<Utc>>),
);

pub(in crate::store) fn operated_job(row: OperatedRow) -> OperatedJob {
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
