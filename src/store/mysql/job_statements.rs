//! The statements of staged jobs.

use std::time::Duration;

use diesel::mysql::Mysql as Db;
use diesel::sql_types::{self, BigInt, Binary, Nullable, Text};

use super::words::{CLOCK, NOW};
use crate::job::FIRST_NOTICE;
use crate::store::JobAt;
use crate::store::in_millis::deliveries::Claimed;
use crate::store::in_millis::statements::WAITS;
use crate::store::row::millis;
use crate::store::statement::statement;

// MySQL lets no UPDATE ask its own table, but for a table that is computed first. An UPDATE of two tables locks what it
// reads for that. So it reads only what decides, by the primary key, and never the row that it writes: two that claim
// one job would both have it locked, and lose a deadlock.

statement! {
    /// How many jobs of the request there are in front of this one that are still to be delivered. The dead ones are locked,
    /// too: none of them is revived before this is committed.
    Earlier for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, from: i64, position: i64 },
    "(SELECT COUNT(run_after) AS alive FROM atomic_phases_staged_jobs FORCE INDEX (PRIMARY) WHERE scope = ", scope,
    " AND request_id = ", request_id, " AND position >= ", from, " AND position < ", position, ")"
}

statement! {
    /// A job behind it that is under way, if there is any. The server computes it only for a job that an operator has
    /// retried.
    UnderWay for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64 },
    "(SELECT position FROM atomic_phases_staged_jobs FORCE INDEX (PRIMARY) WHERE scope = ", scope,
    " AND request_id = ", request_id, " AND position > ", position, " AND position < 4611686018427387904 \
     AND attempts > 0 AND reason IS NULL AND run_after < ", [WAITS], " AND run_after > ", [CLOCK], " LIMIT 1)"
}

statement! {
    /// Acquires the right to deliver a job: `attempts` is its fencing token. See [`IS_NEXT`].
    ClaimJob for Db, rows sql_types::Untyped,
    {
        earlier: Earlier, lease_ms: i64, scope: String, request_id: Vec<u8>, position: i64, attempts: i32,
        under_way: UnderWay,
    },
    "UPDATE atomic_phases_staged_jobs AS j JOIN ", {earlier}, " AS earlier ON earlier.alive = 0 \
     SET j.attempts = j.attempts + 1, j.reason = NULL, j.run_after = ", [NOW], " + ", lease_ms,
    " WHERE j.scope = ", scope, " AND j.request_id = ", request_id, " AND j.position = ", position,
    " AND j.attempts = ", attempts, " AND j.run_after <= ", [NOW],
    " AND (j.forgiven_attempts = 0 OR NOT EXISTS (SELECT 1 FROM ", {under_way}, " AS under_way))"
}

impl ClaimJob {
    pub(super) fn new(at: &JobAt, lease: Duration) -> Self {
        let scope = || at.scope.as_str().to_owned();
        let request_id = || at.request_id.as_bytes().to_vec();
        let position = at.position;
        // A notice waits for none.
        let from = if position < FIRST_NOTICE { 0 } else { position };
        Self {
            earlier: Earlier { scope: scope(), request_id: request_id(), from, position },
            lease_ms: millis(lease),
            scope: scope(),
            request_id: request_id(),
            position,
            attempts: at.attempts.cast_signed(),
            under_way: UnderWay { scope: scope(), request_id: request_id(), position },
        }
    }
}

type ClaimedSql = (Text, Binary, Text, Binary, BigInt, BigInt, BigInt, Nullable<Binary>);

statement! {
    /// A job that was claimed, by its new fencing token.
    ClaimedJob for Db, rows ClaimedSql, { claimed: Claimed },
    "SELECT idempotency_key, job_id, name, args, attempts, forgiven_attempts, ", [CLOCK],
    " - GREATEST(staged_at, 0), trace FROM atomic_phases_staged_jobs", {claimed}
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
    "UPDATE atomic_phases_staged_jobs AS j JOIN (SELECT position \
     FROM atomic_phases_staged_jobs FORCE INDEX (PRIMARY) WHERE scope = ", scope, " AND request_id = ", request_id,
    " AND position > ", position, " AND run_after IS NOT NULL ORDER BY position LIMIT 1) AS next \
     ON next.position = j.position SET j.run_after = ", [NOW], " WHERE j.scope = ", scope, " AND j.request_id = ", request_id,
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
