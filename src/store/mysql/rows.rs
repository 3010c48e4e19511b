//! From what MySQL returns to the rows of all stores, beside what it has in common with SQLite.

use mysql_async::Row;
use mysql_async::prelude::FromValue;

pub(super) use crate::store::in_millis::*;
use crate::store::{StoreError, due};

pub(super) type ClaimedRow = (String, Vec<u8>, String, Vec<u8>, i64, i64, i64, Option<Vec<u8>>);

pub(super) fn claimed(row: ClaimedRow) -> Result<due::JobDataRow, StoreError> {
    let (key, id, name, args, attempts, forgiven, lag, trace) = row;
    let attempts = fitting(attempts, "attempts")?;
    let forgiven = fitting(forgiven, "forgiven_attempts")?;
    Ok((key, uuid(&id, "job_id")?, name, args, attempts, forgiven, lag, trace))
}

/// A row of [`Look`](super::statements::Look), which each request reads. diesel would copy each value, and read each column's
/// name.
pub(super) fn taken_apart(mut row: Row) -> Result<StoredKeySummary, StoreError> {
    let row = &mut row;
    let request = (
        taken(row, 0, "request_id")?,
        taken(row, 1, "definition")?,
        taken(row, 2, "definition_version")?,
        taken(row, 3, "fingerprint")?,
    );
    let state = (
        taken(row, 4, "status")?,
        taken(row, 5, "lease_token")?,
        taken(row, 6, "now")?,
        taken(row, 7, "locked_until")?,
        taken(row, 8, "run_after")?,
        taken(row, 9, "expires_at")?,
    );
    let response = (
        taken(row, 10, "trace")?,
        taken(row, 11, "response_status")?,
        taken(row, 12, "response_headers")?,
        taken(row, 13, "response_body")?,
    );
    Ok((request, state, response))
}

fn taken<T: FromValue>(row: &mut Row, at: usize, column: &'static str) -> Result<T, StoreError> {
    row.take_opt(at).and_then(Result::ok).ok_or(StoreError::Unreadable { column })
}
