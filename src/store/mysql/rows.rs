//! From what MySQL returns to the rows of all stores, beside what it has in common with SQLite.

pub(super) use crate::store::in_millis::*;
use crate::store::{StoreError, due};

pub(super) type ClaimedRow = (String, Vec<u8>, String, Vec<u8>, i64, i64, i64, Option<Vec<u8>>);

pub(super) fn claimed(row: ClaimedRow) -> Result<due::JobDataRow, StoreError> {
    let (key, id, name, args, attempts, forgiven, lag, trace) = row;
    let attempts = fitting(attempts, "attempts")?;
    let forgiven = fitting(forgiven, "forgiven_attempts")?;
    Ok((key, uuid(&id, "job_id")?, name, args, attempts, forgiven, lag, trace))
}
