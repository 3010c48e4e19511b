//! The statements of staged jobs and their delivery, with owned values.

use std::time::Duration;

use diesel::sql_types::{self, BigInt, Binary, Bool, Integer, Nullable, Text};

use super::InMillis;
use super::statements::WAITS;
use crate::store::row::millis;
use crate::store::statement::statement;
use crate::store::{JobAt, Undelivered};

/// No earlier job of the same request is still to be delivered; a dead letter does not count. And no
/// later one is under way, as it may be where an operator lets an earlier one try again: it was claimed,
/// and no reason says how its delivery ended. One that [`WAITS`] is not, however its last delivery ended. Of a job that
/// was not let try again the later ones, of which there may be many, are not read. A notice waits for none, and none
/// waits for it: its position is 2^62 or more. Between both stands the time.
pub(in crate::store) const IS_NEXT: [&str; 2] = [
    "NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id \
    AND other.run_after IS NOT NULL AND other.position < j.position AND j.position < 4611686018427387904) \
    AND (j.forgiven_attempts = 0 OR NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id AND other.position > j.position \
    AND other.position < 4611686018427387904 AND other.attempts > 0 AND other.reason IS NULL \
    AND other.run_after < 253402214400000 AND other.run_after > ",
    "))",
];

statement! {
    /// A bounded part of the index of due jobs, from one place on, with what tells whether it is a
    /// job's turn.
    DueJobs in D: InMillis, rows (BigInt, Text, Binary, BigInt, BigInt, Text, Bool),
    { run_after: i64, scope: String, request_id: Vec<u8>, position: i64, limit: i64 },
    "SELECT run_after, scope, request_id, position, attempts, name, ", (IS_NEXT[0]), (D::CLOCK), (IS_NEXT[1]),
    " FROM atomic_phases_staged_jobs AS j WHERE run_after <= ", (D::CLOCK),
    " AND (run_after, scope, request_id, position) > (", run_after, ", ", scope, ", ", request_id,
    ", ", position, ") AND run_after >= ", run_after, " ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// What guards the result of a delivery: the fencing token.
    Claimed in D: InMillis, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64, attempts: i32 },
    " WHERE scope = ", scope, " AND request_id = ", request_id, " AND position = ", position,
    " AND attempts = ", attempts
}

impl Claimed {
    pub(in crate::store) fn new(at: &JobAt) -> Self {
        Self {
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
            attempts: at.attempts.cast_signed(),
        }
    }
}

statement! {
    /// A job that was delivered.
    JobDelivered in D: InMillis, rows sql_types::Untyped, { claimed: Claimed },
    "DELETE FROM atomic_phases_staged_jobs", claimed
}

impl JobDelivered {
    pub(in crate::store) fn new(at: &JobAt) -> Self {
        Self { claimed: Claimed::new(at) }
    }
}

statement! {
    /// A job that was not delivered: due again later, or, without a back-off, a dead letter.
    JobFailed in D: InMillis, rows sql_types::Untyped,
    { back_off_ms: Option<i64>, forgiven: i32, reason: String, claimed: Claimed },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", (D::NOW), " + ", back_off_ms,
    ", forgiven_attempts = ", (D::LEAST), "(attempts, forgiven_attempts + ", forgiven, "), reason = ", reason, claimed
}

impl JobFailed {
    pub(in crate::store) fn new(at: &JobAt, becomes: Undelivered, reason: &str) -> Self {
        let (back_off, counts) = match becomes {
            Undelivered::Again(after) => (Some(after), true),
            Undelivered::Left => (Some(Duration::ZERO), false),
            Undelivered::Dead => (None, true),
        };
        Self {
            back_off_ms: back_off.map(millis),
            forgiven: (!counts).into(),
            reason: reason.to_owned(),
            claimed: Claimed::new(at),
        }
    }
}

statement! {
    /// The jobs of later phases, which are due, wait for one that was put back.
    LetOthersWait in D: InMillis, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64 },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [WAITS], " WHERE scope = ", scope,
    " AND request_id = ", request_id, " AND position > ", position, " AND position < 4611686018427387904 \
     AND run_after <= ", (D::CLOCK)
}

impl LetOthersWait {
    pub(in crate::store) fn new(at: &JobAt) -> Self {
        Self {
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
        }
    }
}

statement! {
    /// Staged jobs, bounded, by the indexes of due ones and of dead letters.
    SurveyJobs in D: InMillis, rows (Integer, Text, Nullable<Binary>),
    { most: i64, limit: i64 },
    "SELECT * FROM (SELECT 0 AS dead, name, CASE WHEN length(args) <= ", most, " THEN args END AS args \
     FROM atomic_phases_staged_jobs WHERE run_after IS NOT NULL ORDER BY run_after LIMIT ", limit,
    ") AS due UNION ALL SELECT * FROM (SELECT 1 AS dead, name, CASE WHEN length(args) <= ", most,
    " THEN args END AS args FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     ORDER BY staged_at LIMIT ", limit, ") AS dead_letters"
}

impl SurveyJobs {
    pub(in crate::store) fn of(limit: u32, most_bytes: u32) -> Self {
        let (limit, most) = (i64::from(limit), i64::from(most_bytes));
        Self { most, limit }
    }
}
