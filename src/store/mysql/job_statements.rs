//! The statements of staged jobs.

use std::time::Duration;

use diesel::mysql::Mysql as Db;
use diesel::sql_types::{self, BigInt, Binary, Nullable, Text};

use super::words::{CLOCK, NOW};
use crate::store::JobAt;
use crate::store::in_millis::deliveries::Claimed;
use crate::store::in_millis::statements::WAITS;
use crate::store::row::millis;
use crate::store::statement::statement;

statement! {
    /// Acquires the right to deliver a job: `attempts` is its fencing token. MySQL lets no UPDATE ask its own
    /// table, so what [`IS_NEXT`] says is asked of a table that is computed first.
    ClaimJob for Db, rows sql_types::Untyped,
    { lease_ms: i64, scope: String, request_id: Vec<u8>, position: i64, attempts: i32 },
    "UPDATE atomic_phases_staged_jobs AS j JOIN (SELECT \
     MIN(CASE WHEN run_after IS NOT NULL THEN position END) AS first, \
     COUNT(CASE WHEN position > ", position, " AND position < 4611686018427387904 AND attempts > 0 AND reason IS NULL \
     AND run_after > CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED) THEN 1 END) AS under_way \
     FROM atomic_phases_staged_jobs WHERE scope = ", scope, " AND request_id = ", request_id,
    ") AS others ON (others.first = j.position OR j.position >= 4611686018427387904) AND (j.forgiven_attempts = 0 OR others.under_way = 0) \
     SET j.attempts = j.attempts + 1, j.reason = NULL, j.run_after = ", [NOW], " + ", lease_ms,
    " WHERE j.scope = ", scope, " AND j.request_id = ", request_id, " AND j.position = ", position,
    " AND j.attempts = ", attempts, " AND j.run_after <= ", [NOW]
}

impl ClaimJob {
    pub(super) fn new(at: &JobAt, lease: Duration) -> Self {
        Self {
            lease_ms: millis(lease),
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
            attempts: at.attempts.cast_signed(),
        }
    }
}

type ClaimedSql = (Text, Binary, Text, Binary, BigInt, BigInt, BigInt, Nullable<Binary>);

statement! {
    /// A job that was claimed, by its new fencing token.
    ClaimedJob for Db, rows ClaimedSql, { claimed: Claimed },
    "SELECT idempotency_key, job_id, name, args, attempts, forgiven_attempts, ", [CLOCK],
    " - staged_at, trace FROM atomic_phases_staged_jobs", {claimed}
}

impl ClaimedJob {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { claimed: Claimed { attempts: at.attempts.cast_signed() + 1, ..Claimed::new(at) } }
    }
}

statement! {
    /// The same, if the statement before has claimed it.
    JobIfClaimed for Db, rows ClaimedSql, { job: ClaimedJob },
    {job}, " AND ROW_COUNT() = 1"
}

impl JobIfClaimed {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { job: ClaimedJob::new(at) }
    }
}

statement! {
    /// Behind a job that has ended, the next that waits is due.
    MakeNextDue for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64 },
    "UPDATE atomic_phases_staged_jobs AS j JOIN (SELECT MIN(position) AS next \
     FROM atomic_phases_staged_jobs WHERE scope = ", scope, " AND request_id = ", request_id,
    " AND position > ", position, " AND run_after IS NOT NULL) AS others ON others.next = j.position \
     SET j.run_after = ", [NOW], " WHERE j.scope = ", scope, " AND j.request_id = ", request_id,
    " AND j.run_after = ", [WAITS]
}

impl MakeNextDue {
    pub(super) fn new(at: &JobAt) -> Self {
        Self {
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
        }
    }
}

statement! {
    /// How many rows the statement before has written, for those behind it.
    NoteCount for Db, rows sql_types::Untyped, {}, "SET @atomic_phases = ROW_COUNT()"
}

statement! {
    /// What was noted.
    Noted for Db, rows BigInt, {}, "SELECT @atomic_phases"
}

statement! {
    /// [`MakeNextDue`], if one was noted.
    MakeNextDueIfNoted for Db, rows sql_types::Untyped, { next: MakeNextDue },
    {next}, " AND @atomic_phases = 1"
}

impl MakeNextDueIfNoted {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { next: MakeNextDue::new(at) }
    }
}
