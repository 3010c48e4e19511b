//! What the workers ask a store for, and what it returns.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};
use crate::store::{Status, StoreError};
use crate::traces::Traceparent;

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
#[derive(Clone)]
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
#[derive(Clone)]
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

/// A row in progress that the index of due rows does not have: it is young, or its holder died young.
#[derive(Clone)]
pub struct HeldKey {
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) lease_token: i64,
    /// Until its lease ends; zero once it has ended.
    pub(crate) lease_left: Duration,
}

/// What came of the entry of such a row in the index of due rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// It is in the index now.
    Entered,
    /// It is as it was found, and for so long its holder's; zero where another transaction has it locked.
    Held(Duration),
    /// It has ended, is another holder's, or was entered before.
    Gone,
}

impl Enrolled {
    /// From how much is left of the lease of a row that is as it was found.
    pub(super) fn unless_entered(left_ms: Option<i64>) -> Self {
        let held = |left| Self::Held(Duration::from_millis(u64::try_from(left).unwrap_or(0)));
        left_ms.map_or(Self::Gone, held)
    }
}

/// A place in the index of expiry.
#[derive(Clone)]
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

/// A completed row past its expiry. Its names are as the database has them: whatever they are, the row goes.
pub struct ExpiredKey {
    pub(crate) at: ExpiryPlace,
    pub(super) request_id: Uuid,
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
#[derive(Clone)]
pub struct JobPlace {
    pub(super) run_after: DateTime<Utc>,
    pub(super) scope: String,
    /// As the database has it, so that a search continues after a value that is not an id.
    pub(super) request_id: Vec<u8>,
    pub(super) position: i64,
}

impl Default for JobPlace {
    fn default() -> Self {
        let run_after = DateTime::UNIX_EPOCH;
        Self { run_after, scope: String::new(), request_id: Vec::new(), position: i64::MIN }
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
    /// Of the phase that staged it.
    pub(crate) trace: Option<Traceparent>,
}

pub(super) type DueKeyRow = (DateTime<Utc>, String, String, String, i64, String, i32, bool, Uuid);
/// The last field of a row of the search: whether it is the last that was read of a full page.
pub(super) type HeldKeyRow = (DateTime<Utc>, String, String, Uuid, i64, i64, bool);
/// An expired row, by its place in the index and its identity, and whether it is completed.
pub(super) type ExpiredRow = (DateTime<Utc>, String, String, Uuid, bool);
pub(super) type DueJobRow = (DateTime<Utc>, String, Uuid, i64, i32, String, bool);
pub(super) type JobDataRow = (String, Uuid, String, Vec<u8>, i32, i32, i64, Option<Vec<u8>>);
/// A job that was claimed with others, and which of them it is, counted from one.
#[cfg(feature = "postgres")]
pub(super) type NthJobRow = (i64, JobDataRow);

/// What a search found that reads up to `limit` rows. One that is not looked for, or that no request can have because it was
/// written by hand, is left where it is, and must not keep a worker from the others, so the next page begins behind it, too.
pub(super) fn page<R, T, P>(
    rows: Vec<R>,
    limit: u32,
    place: impl FnOnce(&R) -> P,
    read: impl FnMut(R) -> Option<T>,
) -> Page<T, P> {
    let next = rows.last().filter(|_| rows.len() >= limit as usize).map(place);
    Page { rows: rows.into_iter().filter_map(read).collect(), next }
}

#[cfg(any(feature = "postgres", feature = "simulation"))]
pub(super) fn due_keys(rows: Vec<DueKeyRow>, limit: u32) -> Page<DueKey, KeyPlace> {
    let place = |(run_after, scope, key, ..): &DueKeyRow| KeyPlace {
        run_after: *run_after,
        scope: scope.clone(),
        key: key.clone(),
    };
    page(rows, limit, place, due_key)
}

pub(super) fn due_key(row: DueKeyRow) -> Option<DueKey> {
    let (_, scope_text, key_text, status, lease_token, definition, version, past_grace, id) = row;
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
}

/// As [`page`], of a search that reads more than it returns: the last row that it read says where it continues.
pub(super) fn held_keys(mut rows: Vec<HeldKeyRow>) -> Page<HeldKey, ExpiryPlace> {
    let last = rows.iter().position(|(.., is_the_last)| *is_the_last);
    let next = last.map(|last| {
        let (expires_at, scope, key, ..) = rows.remove(last);
        ExpiryPlace { expires_at, scope, key }
    });
    Page { rows: rows.into_iter().filter_map(held_key).collect(), next }
}

pub(super) fn held_key(row: HeldKeyRow) -> Option<HeldKey> {
    let (_, scope_text, key_text, request_id, lease_token, left, _) = row;
    let (scope, key) = (scope(scope_text).ok()?, key(key_text).ok()?);
    let lease_left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    Some(HeldKey { scope, key, request_id, lease_token, lease_left })
}

pub(super) fn expired_keys(rows: Vec<ExpiredRow>, limit: u32) -> Page<ExpiredKey, ExpiryPlace> {
    let place = |(expires_at, scope, key, ..): &ExpiredRow| ExpiryPlace {
        expires_at: *expires_at,
        scope: scope.clone(),
        key: key.clone(),
    };
    page(rows, limit, place, |(expires_at, scope, key, request_id, is_completed)| {
        is_completed
            .then_some(ExpiredKey { at: ExpiryPlace { expires_at, scope, key }, request_id })
    })
}

#[cfg(any(feature = "postgres", feature = "simulation"))]
pub(super) fn due_jobs(rows: Vec<DueJobRow>, limit: u32) -> Page<DueJob, JobPlace> {
    let place = |(run_after, scope, request_id, position, ..): &DueJobRow| JobPlace {
        run_after: *run_after,
        scope: scope.clone(),
        request_id: request_id.as_bytes().to_vec(),
        position: *position,
    };
    page(rows, limit, place, due_job)
}

pub(super) fn due_job(row: DueJobRow) -> Option<DueJob> {
    let (_, scope_text, request_id, position, attempts, name, is_next) = row;
    let attempts = attempts.cast_unsigned();
    let at = JobAt { scope: scope(scope_text).ok()?, request_id, position, attempts };
    Some(DueJob { at, name, is_next })
}

pub(super) fn job(at: &JobAt, row: JobDataRow) -> Result<JobRow, StoreError> {
    let (name, id, job_name, args, attempts, forgiven, lag, trace) = row;
    let at = JobAt { attempts: attempts.cast_unsigned(), ..at.clone() };
    let lag = Duration::from_millis(u64::try_from(lag).unwrap_or(0));
    let forgiven_attempts = forgiven.cast_unsigned();
    let trace = trace.as_deref().and_then(Traceparent::read);
    Ok(JobRow { at, key: key(name)?, id, name: job_name, args, forgiven_attempts, lag, trace })
}

/// What came of each claim, from the jobs that were won.
#[cfg(feature = "postgres")]
pub(super) fn claimed_jobs(
    at: &[JobAt],
    won: Vec<NthJobRow>,
) -> Vec<Result<Option<JobRow>, StoreError>> {
    let mut claimed: Vec<_> = at.iter().map(|_| Ok(None)).collect();
    for (number, row) in won {
        let nth = nth(number);
        if let (Some(at), Some(claimed)) = (at.get(nth), claimed.get_mut(nth)) {
            *claimed = job(at, row).map(Some);
        }
    }
    claimed
}

/// Whether each of so many is among these.
#[cfg(feature = "postgres")]
pub(super) fn are_among(of: usize, numbers: &[i64]) -> Vec<bool> {
    let mut are = vec![false; of];
    for number in numbers {
        if let Some(is) = are.get_mut(nth(*number)) {
            *is = true;
        }
    }
    are
}

/// The place of what is counted from one.
#[cfg(feature = "postgres")]
fn nth(number: i64) -> usize {
    usize::try_from(number - 1).unwrap_or(usize::MAX)
}

fn scope(text: String) -> Result<Scope, StoreError> {
    Scope::new(text).map_err(|_| StoreError::Unreadable { column: "scope" })
}

fn key(text: String) -> Result<IdempotencyKey, StoreError> {
    IdempotencyKey::new(text).map_err(|_| StoreError::Unreadable { column: "idempotency_key" })
}
