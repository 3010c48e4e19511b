//! What the workers ask a store for, and what it hands them.

use std::time::Duration;

use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};
use crate::store::StoreError;
use crate::store::row::millis;

/// Which rows a worker is looking for. A look takes no lock and promises nothing: a row is won by the
/// same guarded takeover that a retry uses (H19).
#[derive(Clone, Copy, Debug)]
pub enum Due {
    /// Accepted rows at once; released ones whose back-off has passed, and slow or once taken over
    /// ones whose lease has run out, by `grace` at least: the client may come first.
    Resume { grace: Duration },
    /// Rows in progress whose lease has run out, by `grace` at least, and that the index of due rows
    /// does not have: their holder died young. Of the whole table, or of what was `created` lately.
    Abandoned { created: Option<Created>, grace: Duration },
    /// Unknown rows that have rested.
    Reconcile,
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

/// A staged job that is ours to deliver.
pub struct JobRow {
    pub(crate) at: JobAt,
    pub(crate) key: IdempotencyKey,
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) args: Vec<u8>,
    /// Since it was staged.
    pub(crate) lag: Duration,
}

pub(super) type KeyAtRow = (String, String);
pub(super) type JobAtRow = (String, Uuid, i64, i32);
pub(super) type JobDataRow = (String, Uuid, String, Vec<u8>, i32, i64);

/// The keys of due rows. One that no request can have was written by hand: it is left where it is,
/// and must not keep a worker from the others.
pub(super) fn keys_at(rows: Vec<KeyAtRow>) -> Vec<(Scope, IdempotencyKey)> {
    rows.into_iter().filter_map(|(name, of)| Some((scope(name).ok()?, key(of).ok()?))).collect()
}

/// As [`keys_at`], for jobs.
pub(super) fn jobs_at(rows: Vec<JobAtRow>) -> Vec<JobAt> {
    let job_at = |(name, request_id, position, attempts): JobAtRow| {
        let attempts = attempts.cast_unsigned();
        Some(JobAt { scope: scope(name).ok()?, request_id, position, attempts })
    };
    rows.into_iter().filter_map(job_at).collect()
}

pub(super) fn job(at: &JobAt, row: JobDataRow) -> Result<JobRow, StoreError> {
    let (name, id, job_name, args, attempts, lag) = row;
    let at = JobAt { attempts: attempts.cast_unsigned(), ..at.clone() };
    let lag = Duration::from_millis(u64::try_from(lag).unwrap_or(0));
    Ok(JobRow { at, key: key(name)?, id, name: job_name, args, lag })
}

fn scope(text: String) -> Result<Scope, StoreError> {
    Scope::new(text).map_err(|_| StoreError::Unreadable { column: "scope" })
}

fn key(text: String) -> Result<IdempotencyKey, StoreError> {
    IdempotencyKey::new(text).map_err(|_| StoreError::Unreadable { column: "idempotency_key" })
}
