//! Rows as SQLite and MySQL hold them: times are milliseconds since 1970, ids are bytes. And what they are to the
//! engine.

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Binary, Nullable, Text};
use uuid::Uuid;

use crate::store::row::{self, Row};
use crate::store::{JobPlace, KeyPlace, KeySummary, StoreError, due};

/// Every number as wide as it may be held: read as a smaller one, it would be cut off silently.
pub(crate) type RowSql = (
    (Binary, Text, BigInt, Text),
    (Text, Text, Nullable<Text>, BigInt, BigInt),
    (BigInt, BigInt, Nullable<Text>, Text, Nullable<Text>),
    (BigInt, Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>),
    (BigInt, BigInt, BigInt),
    (Nullable<Binary>, Nullable<Binary>, Nullable<Binary>, Nullable<Binary>),
    (Nullable<BigInt>, Nullable<Binary>, Nullable<Binary>),
);

pub(crate) type StoredRow = (
    (Vec<u8>, String, i64, String),
    (String, String, Option<String>, i64, i64),
    (i64, i64, Option<String>, String, Option<String>),
    (i64, Option<i64>, Option<i64>, Option<i64>),
    (i64, i64, i64),
    (Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>),
    (Option<i64>, Option<Vec<u8>>, Option<Vec<u8>>),
);

pub(crate) fn row(row: StoredRow) -> Result<Row, StoreError> {
    let ((request_id, definition, version, fingerprint), state, care, due, times, work, response) =
        row;
    let (status, recovery_point, open_intent, lease_token, attempts) = state;
    let (forgiven_attempts, reconciles, resolution, phases, reason) = care;
    let (now, locked_until, run_after, waiting_since) = due;
    let (advanced_at, created_at, expires_at) = times;
    let (response_status, response_headers, response_body) = response;
    let request_id = Uuid::from_slice(&request_id)
        .map_err(|_| StoreError::Unreadable { column: "request_id" })?;
    let locked_until = locked_until.map(|then| time(then, "locked_until")).transpose()?;
    let run_after = run_after.map(|then| time(then, "run_after")).transpose()?;
    let waiting_since = waiting_since.map(|then| time(then, "waiting_since")).transpose()?;
    let advanced_at = time(advanced_at, "advanced_at")?;
    let created_at = time(created_at, "created_at")?;
    let expires_at = time(expires_at, "expires_at")?;
    Ok((
        (request_id, definition, fitting(version, "definition_version")?, fingerprint),
        (status, recovery_point, open_intent, lease_token, fitting(attempts, "attempts")?),
        (
            fitting(forgiven_attempts, "forgiven_attempts")?,
            fitting(reconciles, "reconciles")?,
            resolution,
            phases,
            reason,
        ),
        (time(now, "now")?, locked_until, run_after, waiting_since),
        (advanced_at, created_at, expires_at),
        work,
        (
            response_status.map(|status| fitting(status, "response_status")).transpose()?,
            response_headers,
            response_body,
        ),
    ))
}

pub(crate) fn fitting<T: TryFrom<i64>>(stored: i64, column: &'static str) -> Result<T, StoreError> {
    T::try_from(stored).map_err(|_| StoreError::Unreadable { column })
}

pub(crate) fn time(millis: i64, column: &'static str) -> Result<DateTime<Utc>, StoreError> {
    DateTime::from_timestamp_millis(millis).ok_or(StoreError::Unreadable { column })
}

pub(crate) type KeySummarySql = (
    (Binary, Text, BigInt, Text),
    (Text, BigInt, BigInt, Nullable<BigInt>, Nullable<BigInt>, BigInt),
    (Nullable<Binary>, Nullable<BigInt>, Nullable<Binary>, Nullable<Binary>),
);

pub(crate) type StoredKeySummary = (
    (Vec<u8>, String, i64, String),
    (String, i64, i64, Option<i64>, Option<i64>, i64),
    (Option<Vec<u8>>, Option<i64>, Option<Vec<u8>>, Option<Vec<u8>>),
);

pub(crate) fn key_summary(row: StoredKeySummary) -> Result<KeySummary, StoreError> {
    let ((request_id, definition, version, fingerprint), state, response) = row;
    let (status, lease_token, now, locked_until, run_after, expires_at) = state;
    let (trace, response_status, response_headers, response_body) = response;
    let version = fitting(version, "definition_version")?;
    let locked_until = locked_until.map(|then| time(then, "locked_until")).transpose()?;
    let run_after = run_after.map(|then| time(then, "run_after")).transpose()?;
    let response_status =
        response_status.map(|status| fitting(status, "response_status")).transpose()?;
    row::key_summary((
        (uuid(&request_id, "request_id")?, definition, version, fingerprint),
        (
            status,
            lease_token,
            time(now, "now")?,
            locked_until,
            run_after,
            time(expires_at, "expires_at")?,
        ),
        (trace, response_status, response_headers, response_body),
    ))
}
// Rows of the workers' and operators' searches. One with a value that no row of ours has was written by hand, and
// is passed over.

pub(crate) type DueKeyRow = (i64, String, String, String, i64, String, i64, bool, Vec<u8>);
pub(crate) type DueJobRow = (i64, String, Vec<u8>, i64, i64, String, bool);

pub(crate) type HeldKeyRow = (i64, String, String, Vec<u8>, i64, i64, bool);
pub(crate) type ExpiredKeyRow = (i64, String, String, Vec<u8>, bool);

/// Where the search continues behind it.
pub(crate) fn key_place((run_after, scope, key, ..): &DueKeyRow) -> KeyPlace {
    KeyPlace { run_after: moment(*run_after), scope: scope.clone(), key: key.clone() }
}

pub(crate) fn job_place((run_after, scope, request_id, position, ..): &DueJobRow) -> JobPlace {
    JobPlace {
        run_after: moment(*run_after),
        scope: scope.clone(),
        request_id: request_id.clone(),
        position: *position,
    }
}

/// What is out of a timestamp's range is beyond its last.
fn moment(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or(match millis {
        0.. => DateTime::<Utc>::MAX_UTC,
        _ => DateTime::<Utc>::MIN_UTC,
    })
}

/// The request id for a row that has none. No request has it: no guarded statement finds a row by it.
pub(crate) fn held_key(
    (expires_at, scope, key, id, token, left, is_the_last): HeldKeyRow,
) -> due::HeldKeyRow {
    let id = Uuid::from_slice(&id).unwrap_or_default();
    (moment(expires_at), scope, key, id, token, left, is_the_last)
}

/// An id that is not a UUID, which SQLite may have, becomes the nil one: such a row is deleted by its place.
pub(crate) fn expired_key(
    (expires_at, scope, key, id, is_completed): ExpiredKeyRow,
) -> due::ExpiredRow {
    (moment(expires_at), scope, key, Uuid::from_slice(&id).unwrap_or_default(), is_completed)
}

/// How far an operator's search has looked: a time, and an id of that time.
pub(crate) type Place = (i64, Vec<u8>);

/// The same, as an operator's search has it.
pub(crate) type Reached = Option<(DateTime<Utc>, Uuid)>;

pub(crate) fn place(found: Vec<Place>) -> Reached {
    let (time, id) = found.into_iter().next()?;
    Some((DateTime::from_timestamp_millis(time)?, Uuid::from_slice(&id).ok()?))
}

/// Whether a page of an operator's search has as many rows as it may. If not, how far was looked is asked, too.
pub(crate) fn is_full<R>(rows: &[R], limit: u32) -> bool {
    rows.len() >= limit as usize
}

pub(crate) fn due_key(row: DueKeyRow) -> Option<due::DueKeyRow> {
    let (run_after, scope, key, status, token, definition, version, past_grace, id) = row;
    let run_after = DateTime::from_timestamp_millis(run_after)?;
    let (version, id) = (i32::try_from(version).ok()?, Uuid::from_slice(&id).ok()?);
    Some((run_after, scope, key, status, token, definition, version, past_grace, id))
}

pub(crate) fn due_job(row: DueJobRow) -> Option<due::DueJobRow> {
    let (run_after, scope, request_id, position, attempts, name, is_next) = row;
    let run_after = DateTime::from_timestamp_millis(run_after)?;
    let request_id = Uuid::from_slice(&request_id).ok()?;
    Some((run_after, scope, request_id, position, i32::try_from(attempts).ok()?, name, is_next))
}

pub(crate) fn uuid(bytes: &[u8], column: &'static str) -> Result<Uuid, StoreError> {
    Uuid::from_slice(bytes).map_err(|_| StoreError::Unreadable { column })
}
