//! What the workers ask a store for, and what it hands them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};
use crate::store::row::millis;
use crate::store::{Status, StoreError};

/// What was found from one place of an index on, in its order.
///
/// A search reads a bounded part of the index and takes no lock. It promises nothing: a row is won by
/// the same guarded takeover that a retry uses (H19).
pub struct Page<T, P> {
    pub(crate) rows: Vec<T>,
    /// Where the next page begins. `None`: the index has no more of it.
    pub(crate) next: Option<P>,
}

/// A place in the index of due rows.
#[derive(Clone, Debug)]
pub struct KeyPlace {
    pub(super) run_after: DateTime<Utc>,
    pub(super) scope: String,
    pub(super) key: String,
}

impl Default for KeyPlace {
    fn default() -> Self {
        Self { run_after: DateTime::UNIX_EPOCH, scope: String::new(), key: String::new() }
    }
}

/// A row that is due, for one worker or another.
pub struct DueKey {
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) status: Status,
    /// Tells whether the row was taken over since it was found.
    pub(crate) lease_token: i64,
    pub(crate) definition: String,
    pub(crate) version: u32,
    /// Whether it has been due for as long as the search's grace.
    pub(crate) past_grace: bool,
}

/// A row in progress whose lease has run out and that the index of due rows does not have: its
/// holder died young.
pub struct Abandoned {
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) lease_token: i64,
}

/// A place in the index of expiry.
#[derive(Clone, Debug)]
pub struct ExpiryPlace {
    pub(super) expires_at: DateTime<Utc>,
    pub(super) scope: String,
    pub(super) key: String,
}

impl Default for ExpiryPlace {
    fn default() -> Self {
        let expires_at = DateTime::UNIX_EPOCH;
        Self { expires_at, scope: String::new(), key: String::new() }
    }
}

/// Rows that were created from `from` to `to` ago, with this retention.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    pub(crate) retention: Duration,
}

impl Created {
    /// When they expire, from now, in milliseconds: the order of creation and of expiry is one.
    pub(super) fn expiry(created: Option<Self>) -> (i64, i64) {
        const CENTURY: i64 = millis(Duration::MAX);
        match created {
            None => (-CENTURY, CENTURY),
            Some(Self { from, to, retention }) => {
                (millis(retention) - millis(from), millis(retention) - millis(to))
            }
        }
    }
}

/// Where a staged job stands, and its fencing token.
#[derive(Clone, Debug)]
pub struct JobAt {
    pub(crate) scope: Scope,
    pub(crate) request_id: Uuid,
    pub(crate) position: i64,
    pub(crate) attempts: u32,
}

/// A place in the index of staged jobs that are due.
#[derive(Clone, Debug)]
pub struct JobPlace {
    pub(super) run_after: DateTime<Utc>,
    pub(super) scope: String,
    pub(super) request_id: Uuid,
    pub(super) position: i64,
}

impl Default for JobPlace {
    fn default() -> Self {
        let run_after = DateTime::UNIX_EPOCH;
        Self { run_after, scope: String::new(), request_id: Uuid::nil(), position: i64::MIN }
    }
}

/// A staged job that is due.
pub struct DueJob {
    pub(crate) at: JobAt,
    pub(crate) name: String,
    /// No earlier job of its request is still to be delivered.
    pub(crate) is_next: bool,
}

/// A staged job that is ours to deliver.
pub struct JobRow {
    pub(crate) at: JobAt,
    pub(crate) key: IdempotencyKey,
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) args: Vec<u8>,
    /// As many of its attempts an operator has forgiven.
    pub(crate) forgiven_attempts: u32,
    /// Since it was staged.
    pub(crate) lag: Duration,
}

/// What an operator sees of a staged job.
pub struct StagedJobRow {
    pub(crate) scope: Scope,
    pub(crate) request_id: Uuid,
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) attempts: u32,
    pub(crate) reason: Option<String>,
    pub(crate) staged_at: DateTime<Utc>,
}

pub(super) type DueKeyRow = (DateTime<Utc>, String, String, String, i64, String, i32, bool, Uuid);
pub(super) type AbandonedRow = (DateTime<Utc>, String, String, Uuid, i64);
/// An expired row, by its place in the index and its identity.
#[cfg(feature = "postgres")]
pub(super) type ExpiredRow = (DateTime<Utc>, String, String, Uuid);
pub(super) type DueJobRow = (DateTime<Utc>, String, Uuid, i64, i32, String, bool);
pub(super) type JobDataRow = (String, Uuid, String, Vec<u8>, i32, i32, i64);
pub(super) type JobListRow = (String, Uuid, Uuid, String, i32, Option<String>, DateTime<Utc>);

/// The due rows of a page. One that no request can have was written by hand: it is left where it is,
/// and must not keep a worker from the others.
pub(super) fn due_keys(rows: Vec<DueKeyRow>, is_full: bool) -> Page<DueKey, KeyPlace> {
    let next = rows.last().filter(|_| is_full).map(|(run_after, scope, key, ..)| KeyPlace {
        run_after: *run_after,
        scope: scope.clone(),
        key: key.clone(),
    });
    let due_key = |row: DueKeyRow| {
        let (_, scope_text, key_text, status, lease_token, definition, version, past_grace, id) =
            row;
        Some(DueKey {
            scope: scope(scope_text).ok()?,
            key: key(key_text).ok()?,
            request_id: id,
            status: Status::parse(&status)?,
            lease_token,
            definition,
            version: version.cast_unsigned(),
            past_grace,
        })
    };
    Page { rows: rows.into_iter().filter_map(due_key).collect(), next }
}

/// As [`due_keys`], for rows whose holder died young.
pub(super) fn abandoned(rows: Vec<AbandonedRow>, is_full: bool) -> Page<Abandoned, ExpiryPlace> {
    let next = rows.last().filter(|_| is_full).map(|(expires_at, scope, key, ..)| ExpiryPlace {
        expires_at: *expires_at,
        scope: scope.clone(),
        key: key.clone(),
    });
    let abandoned = |(_, scope_text, key_text, request_id, lease_token)| {
        let (scope, key) = (scope(scope_text).ok()?, key(key_text).ok()?);
        Some(Abandoned { scope, key, request_id, lease_token })
    };
    Page { rows: rows.into_iter().filter_map(abandoned).collect(), next }
}

/// As [`due_keys`], for jobs.
pub(super) fn due_jobs(rows: Vec<DueJobRow>, is_full: bool) -> Page<DueJob, JobPlace> {
    let last = rows.last().filter(|_| is_full);
    let next = last.map(|(run_after, scope, request_id, position, ..)| JobPlace {
        run_after: *run_after,
        scope: scope.clone(),
        request_id: *request_id,
        position: *position,
    });
    let due_job = |row: DueJobRow| {
        let (_, scope_text, request_id, position, attempts, name, is_next) = row;
        let attempts = attempts.cast_unsigned();
        let at = JobAt { scope: scope(scope_text).ok()?, request_id, position, attempts };
        Some(DueJob { at, name, is_next })
    };
    Page { rows: rows.into_iter().filter_map(due_job).collect(), next }
}

pub(super) fn job(at: &JobAt, row: JobDataRow) -> Result<JobRow, StoreError> {
    let (name, id, job_name, args, attempts, forgiven, lag) = row;
    let at = JobAt { attempts: attempts.cast_unsigned(), ..at.clone() };
    let lag = Duration::from_millis(u64::try_from(lag).unwrap_or(0));
    let forgiven_attempts = forgiven.cast_unsigned();
    Ok(JobRow { at, key: key(name)?, id, name: job_name, args, forgiven_attempts, lag })
}

pub(super) fn listed_jobs(rows: Vec<JobListRow>) -> Vec<StagedJobRow> {
    let listed = |row: JobListRow| {
        let (scope_text, request_id, id, name, attempts, reason, staged_at) = row;
        let (scope, attempts) = (scope(scope_text).ok()?, attempts.cast_unsigned());
        Some(StagedJobRow { scope, request_id, id, name, attempts, reason, staged_at })
    };
    rows.into_iter().filter_map(listed).collect()
}

fn scope(text: String) -> Result<Scope, StoreError> {
    Scope::new(text).map_err(|_| StoreError::Unreadable { column: "scope" })
}

fn key(text: String) -> Result<IdempotencyKey, StoreError> {
    IdempotencyKey::new(text).map_err(|_| StoreError::Unreadable { column: "idempotency_key" })
}
