//! From a row's columns to the engine's types. The one place that judges stored values.

use std::ops::RangeInclusive;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, Utc};
use uuid::Uuid;

use super::{
    FoundBy, KeyRow, KeySummary, Standing, Status, StoreError, StoredResponse, SurveyedJob,
    SurveyedRow, UnknownStatus, Work,
};
use crate::number::to_u32;
use crate::traces::StoredTrace;

/// The columns of a key's row, in the order in which each store selects them; `now` is the database's
/// clock.
pub(super) type Row = (
    (Uuid, String, i32, String),
    (String, String, Option<String>, i64, i32),
    (i32, i32, Option<String>, String, Option<String>),
    (DateTime<Utc>, Option<DateTime<Utc>>, Option<DateTime<Utc>>, Option<DateTime<Utc>>),
    (DateTime<Utc>, DateTime<Utc>, DateTime<Utc>),
    (Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>),
    (Option<i16>, Option<Vec<u8>>, Option<Vec<u8>>),
);

/// The columns of a [`KeySummary`]; `now` is the database's clock.
pub(super) type KeySummaryRow = (
    (Uuid, String, i32, String),
    (String, i64, DateTime<Utc>, Option<DateTime<Utc>>, Option<DateTime<Utc>>, DateTime<Utc>),
    (Option<Vec<u8>>, Option<i16>, Option<Vec<u8>>, Option<Vec<u8>>),
);

pub(super) type SurveyRow = (
    i32,
    (String, String),
    (String, i32, String),
    (String, String, Option<String>, Option<String>, i32, Option<String>),
);

/// 1 of a dead letter, 0 of a job that is to be delivered.
pub(super) type SurveyedJobRow = (i32, String, Option<Vec<u8>>);

pub(super) fn surveyed_jobs(rows: Vec<SurveyedJobRow>) -> Vec<SurveyedJob> {
    let job = |(dead, name, args)| SurveyedJob { is_dead: dead == 1, name, args };
    rows.into_iter().map(job).collect()
}

pub(super) fn key_row(row: Row) -> Result<KeyRow, StoreError> {
    let (
        (request_id, definition, version, fingerprint),
        (status, recovery_point, open_intent, lease_token, attempts),
        (forgiven_attempts, reconciles, resolution, phases, reason),
        (now, locked_until, run_after, waiting_since),
        (advanced_at, created_at, expires_at),
        (params, context, outputs, trace),
        response,
    ) = row;
    let attempts = counted(attempts, "attempts")?;
    let forgiven_attempts = counted(forgiven_attempts, "forgiven_attempts")?;
    if forgiven_attempts > attempts {
        return Err(StoreError::Unreadable { column: "forgiven_attempts" });
    }
    if lease_token < 0 {
        return Err(StoreError::Unreadable { column: "lease_token" });
    }
    Ok(KeyRow {
        request_id,
        definition,
        version: version.cast_unsigned(),
        fingerprint,
        status: parsed(&status)?,
        recovery_point,
        open_intent,
        lease_token,
        attempts,
        forgiven_attempts,
        reconciles: counted(reconciles, "reconciles")?,
        resolution,
        phases,
        reason,
        waiting_since,
        lease_left: until(locked_until, now),
        back_off_left: until(run_after, now),
        for_workers: run_after.is_some(),
        since_advance: until(Some(now), advanced_at),
        created_at: whole_millis(created_at),
        expires_at,
        expired: expires_at <= now,
        trace: stored_trace(trace),
        work: params.map(|params| Work { params, context, outputs }),
        response: stored_response(response)?,
    })
}

pub(super) fn key_summary(row: KeySummaryRow) -> Result<KeySummary, StoreError> {
    let (
        (request_id, definition, version, fingerprint),
        (status, lease_token, now, locked_until, run_after, expires_at),
        (trace, response_status, response_headers, response_body),
    ) = row;
    Ok(KeySummary {
        request_id,
        definition,
        version: version.cast_unsigned(),
        fingerprint,
        status: parsed(&status)?,
        lease_token,
        lease_left: until(locked_until, now),
        back_off_left: until(run_after, now),
        for_workers: run_after.is_some(),
        expires_at,
        expired: expires_at <= now,
        trace: stored_trace(trace).map(Box::new),
        response: stored_response((response_status, response_headers, response_body))?,
    })
}

/// A trace that cannot be read counts as none: the row is still used.
fn stored_trace(stored: Option<Vec<u8>>) -> Option<StoredTrace> {
    stored.as_deref().and_then(StoredTrace::read)
}

fn stored_response(
    (status, headers, body): (Option<i16>, Option<Vec<u8>>, Option<Vec<u8>>),
) -> Result<Option<StoredResponse>, StoreError> {
    let Some(status) = status else { return Ok(None) };
    let headers = headers.unwrap_or_default();
    Ok(Some(StoredResponse { status: reply_status(status)?, headers, body }))
}

pub(super) fn surveyed(row: SurveyRow) -> SurveyedRow {
    let (found_by, (scope, key), (definition, version, phases), place) = row;
    let (status, recovery_point, open_intent, reason, attempts, resolution) = place;
    let (version, rows) = (version.cast_unsigned(), 1);
    let standing = match Status::parse(&status) {
        Some(status) => Ok(Standing {
            definition,
            version,
            phases,
            recovery_point,
            status,
            open_intent,
            reason,
            rows,
            attempts: attempts.max(0).cast_unsigned(),
            resolution,
        }),
        // One row of a later build does not hide the others.
        None => Err(UnknownStatus { definition, version, recovery_point, status, rows }),
    };
    let found_by = match found_by {
        0 => FoundBy::Due,
        1 => FoundBy::Waiting,
        2 => FoundBy::Youth,
        _ => FoundBy::OldestOfYouth,
    };
    SurveyedRow { found_by, scope, key, standing }
}

/// A count that grows from zero.
fn counted(stored: i32, column: &'static str) -> Result<u32, StoreError> {
    u32::try_from(stored).map_err(|_| StoreError::Unreadable { column })
}

/// The statuses that a stored reply may have. A number that is not a status must not reach a client as a status.
pub(crate) const REPLY_STATUSES: RangeInclusive<u16> = 200..=599;

fn reply_status(stored: i16) -> Result<u16, StoreError> {
    match u16::try_from(stored) {
        Ok(status) if REPLY_STATUSES.contains(&status) => Ok(status),
        _ => Err(StoreError::Unreadable { column: "response_status" }),
    }
}

fn parsed(status: &str) -> Result<Status, StoreError> {
    Status::parse(status).ok_or(StoreError::Unreadable { column: "status" })
}

/// Milliseconds, as the statements count. A hundred years is as good as for ever, and fits a
/// timestamp.
pub(crate) const fn millis(duration: Duration) -> i64 {
    const CENTURY: u128 = 100 * 365 * 24 * 3600 * 1000;
    let millis = duration.as_millis();
    (if millis < CENTURY { millis } else { CENTURY }) as i64
}

/// From `now`; a time that has passed already is zero time left. Both are the database's clock.
fn until(then: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Duration {
    then.and_then(|then| (then - now).to_std().ok()).unwrap_or_default()
}

/// How many expired keys of a scope are passed over where its keys are counted. The reaper deletes them
/// within minutes; where it does not run, the count must not grow slow.
pub(super) const MAX_EXPIRED: i64 = 10_000;

/// A time of creation in the precision that every store keeps, so that the attempt that computes it and
/// those that read it see the same (G5).
pub(crate) fn whole_millis(time: DateTime<Utc>) -> DateTime<Utc> {
    time.trunc_subsecs(3)
}

/// The number that a `SELECT count(*)` returned.
pub(super) fn count(rows: Vec<i64>) -> u32 {
    rows.first().map_or(0, |rows| to_u32(*rows))
}
