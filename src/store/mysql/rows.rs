//! From what MySQL returns to the rows of all stores, beside what it has in common with SQLite.

use chrono::NaiveDate;
use mysql_async::prelude::FromValue;
use mysql_async::{Row, Value};

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
    let now = row.as_ref(6).and_then(millis_of);
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
        now.ok_or(StoreError::Unreadable { column: "now" })?,
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

/// A time in UTC, rounded as the server rounds.
fn millis_of(time: &Value) -> Option<i64> {
    let Value::Date(year, month, day, hour, minute, second, micros) = *time else { return None };
    let day = NaiveDate::from_ymd_opt(year.into(), month.into(), day.into())?;
    let time = day.and_hms_micro_opt(hour.into(), minute.into(), second.into(), micros)?;
    Some((time.and_utc().timestamp_micros() + 500).div_euclid(1000))
}

fn taken<T: FromValue>(row: &mut Row, at: usize, column: &'static str) -> Result<T, StoreError> {
    row.take_opt(at).and_then(Result::ok).ok_or(StoreError::Unreadable { column })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rounded_to_milliseconds() {
        for (micros, millis) in [(0, 0), (499, 0), (500, 1), (999_499, 999), (999_500, 1000)] {
            let time = Value::Date(1970, 1, 2, 1, 1, 1, micros);
            assert_eq!(millis_of(&time), Some((25 * 3600 + 61) * 1000 + millis), "{micros}");
        }
        assert_eq!(millis_of(&Value::Date(0, 0, 0, 0, 0, 0, 0)), None);
        assert_eq!(millis_of(&Value::NULL), None);
    }
}
