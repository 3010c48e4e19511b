//! The survey of staged jobs, and how many of them gave up.

use diesel::pg::Pg;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Text};

use crate::store::statement::statement;

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
