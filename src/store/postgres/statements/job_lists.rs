//! Staged jobs, as operators list, revive and discard them.

use diesel::pg::Pg;
use diesel::sql_types;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Text, Timestamptz, Uuid as SqlUuid};
use uuid::Uuid;

use crate::store::statement::statement;

/// What an operator sees of a job.
const LISTED: &str = "SELECT scope, request_id, job_id, name, attempts, reason, staged_at \
    FROM atomic_phases_staged_jobs WHERE run_after ";

type ListedSql = (Text, SqlUuid, SqlUuid, Text, Integer, Nullable<Text>, Timestamptz);

statement! {
    /// A page of the jobs that are dead letters.
    ListDeadJobs<'a> for Pg, rows ListedSql,
    { scope: &'a str, job_id: Uuid, limit: i64 },
    [LISTED], "IS NULL AND (scope, job_id) > (", scope, ", ", job_id,
    ") ORDER BY scope, job_id LIMIT ", limit
}

statement! {
    /// The jobs that have been due for longest.
    ListOverdueJobs for Pg, rows ListedSql,
    { overdue_ms: i64, limit: i64 },
    [LISTED], "<= statement_timestamp() - ", overdue_ms, " * interval '1 millisecond' \
     ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// Staged jobs, bounded, by the indexes of due ones and of dead letters.
    SurveyJobs for Pg, rows (Integer, Text, Nullable<Binary>),
    { most: i64, limit: i64 },
    "SELECT * FROM (SELECT 0 AS dead, name, CASE WHEN octet_length(args) <= ", most, " THEN args END AS args \
     FROM atomic_phases_staged_jobs WHERE run_after IS NOT NULL ORDER BY run_after LIMIT ", limit,
    ") AS due UNION ALL SELECT * FROM (SELECT 1 AS dead, name, CASE WHEN octet_length(args) <= ", most,
    " THEN args END AS args FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     ORDER BY staged_at LIMIT ", limit, ") AS dead_letters"
}

impl SurveyJobs {
    pub(in crate::store::postgres) fn of(limit: u32, most_bytes: u32) -> Self {
        let (limit, most) = (i64::from(limit), i64::from(most_bytes));
        Self { most, limit }
    }
}

statement! {
    /// The jobs that are dead letters.
    DeadJobs for Pg, rows BigInt, {},
    "SELECT count(*) FROM atomic_phases_staged_jobs WHERE run_after IS NULL"
}

/// The fencing token grows: what an earlier holder says of the job, late or once more, is of another life.
const REVIVE: &str = "UPDATE atomic_phases_staged_jobs SET run_after = (SELECT clock_timestamp()), \
    attempts = attempts + 1, forgiven_attempts = attempts + 1 WHERE run_after IS NULL";

statement! {
    /// An operator's word: all dead letters are delivered again, with a new count of attempts.
    ReviveJobs for Pg, rows sql_types::Untyped, {}, [REVIVE]
}

statement! {
    /// The same for one.
    ReviveJob<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, job_id: Uuid },
    [REVIVE], " AND scope = ", scope, " AND job_id = ", job_id
}

statement! {
    /// An operator's word: this dead letter is never delivered.
    DiscardJob<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, job_id: Uuid },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id
}
