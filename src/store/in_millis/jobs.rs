//! The statements of operators about staged jobs, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Binary, Nullable, Text};
use uuid::Uuid;

use super::Allowed;
use super::InMillis;
use crate::store::operators::OperatedRow;
use crate::store::statement::statement;

/// What an operator sees of a job: not its arguments, which MySQL would copy into a temporary table.
const JOB: &str = "SELECT job_id, scope, request_id, position, name, attempts, reason, staged_at, \
    run_after FROM ";

type JobSql =
    ((Binary, Text, Binary, BigInt), (Text, BigInt, Nullable<Text>, BigInt, Nullable<BigInt>));

pub(in crate::store) type StoredJob =
    ((Vec<u8>, String, Vec<u8>, i64), (String, i64, Option<String>, i64, Option<i64>));

pub(in crate::store) fn operated(row: StoredJob) -> Option<OperatedRow> {
    let ((id, scope, request_id, position), (name, attempts, reason, staged_at, run_after)) = row;
    let (id, request_id) = (Uuid::from_slice(&id).ok()?, Uuid::from_slice(&request_id).ok()?);
    let staged_at = DateTime::from_timestamp_millis(staged_at)?;
    let run_after = run_after.and_then(DateTime::from_timestamp_millis);
    let attempts = i32::try_from(attempts).ok()?;
    Some(((id, scope, request_id, position), (name, attempts, reason, staged_at, run_after)))
}

statement! {
    /// The jobs of one request, in order.
    JobsOf in D: InMillis, rows JobSql, { scope: String, request_id: Vec<u8> },
    [JOB], "atomic_phases_staged_jobs WHERE scope = ", scope, " AND request_id = ", request_id,
    " ORDER BY position LIMIT 100"
}

statement! {
    /// Jobs that are dead letters, by `atomic_phases_staged_jobs_dead_oldest`.
    DeadJobsAfter in D: InMillis, rows JobSql,
    { staged_at: i64, id: Vec<u8>, allowed: Allowed, limit: i64 },
    [JOB], "(", [JOB], "atomic_phases_staged_jobs WHERE run_after IS NULL \
     AND (staged_at, job_id) > (", staged_at, ", ", id, ") AND staged_at >= ", staged_at,
    " ORDER BY staged_at, job_id LIMIT 10000) AS looked WHERE ", allowed,
    " ORDER BY staged_at, job_id LIMIT ", limit
}

statement! {
    /// How far it looked.
    EndOfDeadJobs in D: InMillis, rows (BigInt, Binary), { staged_at: i64, id: Vec<u8> },
    "SELECT staged_at, job_id FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     AND (staged_at, job_id) > (", staged_at, ", ", id, ") AND staged_at >= ", staged_at,
    " ORDER BY staged_at, job_id LIMIT 1 OFFSET 9999"
}

statement! {
    /// Jobs that are late, by `atomic_phases_staged_jobs_due`.
    LateJobs in D: InMillis, rows JobSql, { late_ms: i64, allowed: Allowed, limit: i64 },
    [JOB], "(", [JOB], "atomic_phases_staged_jobs", (D::BY_DUE_JOBS), " WHERE run_after <= ", (D::CLOCK), " - ", late_ms,
    " ORDER BY run_after, scope, request_id, position LIMIT 10000) AS looked WHERE ", allowed,
    " ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// A dead letter, by `atomic_phases_staged_jobs_dead_id`.
    DeadJob in D: InMillis, rows JobSql, { id: Vec<u8>, allowed: Allowed },
    [JOB], "atomic_phases_staged_jobs WHERE run_after IS NULL AND job_id = ", id, " AND ", allowed,
    " LIMIT 1"
}

statement! {
    /// A dead letter is delivered again, with a new count of attempts. The fencing token grows: what an earlier holder
    /// says of the job, late or once more, is of another life.
    RetryJob in D: InMillis, rows sql_types::Untyped, { scope: String, job_id: Vec<u8>, attempts: i32 },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", (D::NOW),
    ", forgiven_attempts = attempts + 1, attempts = attempts + 1 WHERE run_after IS NULL AND scope = ",
    scope, " AND job_id = ", job_id, " AND attempts = ", attempts
}

statement! {
    /// A dead letter is never delivered.
    DiscardDeadJob in D: InMillis, rows sql_types::Untyped,
    { scope: String, job_id: Vec<u8>, attempts: i32 },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id, " AND attempts = ", attempts
}
