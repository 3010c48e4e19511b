//! Every statement that the engine sends to SQLite: those of `store::postgres::statements`, with
//! owned values, because they are executed on another thread.
//!
//! `unixepoch('subsec')` is the clock; it stands still within one statement.

use std::time::Duration;

use diesel::sql_types::{self, BigInt, Binary, Bool, Integer, Nullable, Text};
use diesel::sqlite::Sqlite as Db;

use crate::store::in_millis::InMillis;
pub(super) use crate::store::in_millis::births::*;
pub(super) use crate::store::in_millis::deliveries::*;
pub(super) use crate::store::in_millis::erasure::*;
pub(super) use crate::store::in_millis::searches::*;
pub(super) use crate::store::in_millis::statements::*;
pub(super) use crate::store::in_millis::*;
use crate::store::operators::Walk;
use crate::store::row::millis;
use crate::store::statement::statement;
use crate::store::{JobAt, JobRow, StoreError, due};

macro_rules! now {
    () => {
        "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)"
    };
}

impl InMillis for Db {
    const NOW: &'static str = now!();
    const CLOCK: &'static str = Self::NOW;
    const LOOKED_AT: &'static str = Self::NOW;
    const GREATEST: &'static str = "max";
    const LEAST: &'static str = "min";
    const LAST_4000: [&'static str; 3] = ["substr(", " || ", ", -4000)"];
    const AMONG: [&'static str; 3] = ["", " IN (SELECT value FROM json_each(", "))"];
    const PAUSED_UNTIL: [&'static str; 2] =
        ["strftime('paused until %Y-%m-%dT%H:%M:%SZ', ", " / 1000, 'unixepoch')"];
    const VALUES: [&'static str; 3] =
        ["SELECT ", "t", concat!(" FROM (SELECT ", now!(), " AS t) WHERE true")];
    const UPDATES_NODE: &'static str = " ON CONFLICT (id) DO UPDATE SET name = excluded.name, \
         build = excluded.build, definitions = excluded.definitions, seen_at = excluded.seen_at";
    const UPDATES_PAUSE: &'static str = " ON CONFLICT (definition, phase) DO UPDATE SET reason = excluded.reason, \
         paused_by = excluded.paused_by, paused_at = excluded.paused_at, ends_at = excluded.ends_at";
    /// The transaction is the only one that writes.
    const HOLDS_PAUSE: &'static str = " ON CONFLICT (definition, phase) DO NOTHING";
    const BY_KEY: &'static str = "";
    const BY_EXPIRY: &'static str = "";
    const BY_DUE_JOBS: &'static str = "";

    fn by_index(_: Walk) -> &'static str {
        ""
    }

    /// A JSON array.
    fn list(texts: &[String]) -> String {
        serde_json::to_string(texts).unwrap_or_default()
    }
}

/// Milliseconds since 1970.
pub(super) const NOW: &str = Db::NOW;

statement! {
    /// The number, the name and the file of each database of the connection, that of `main` first.
    Files for Db, rows (Integer, Text, Text), {},
    "PRAGMA database_list"
}

statement! {
    /// The file of the database, where there is one with a write-ahead log.
    LoggedFile for Db, rows Text, {},
    "SELECT file FROM pragma_database_list, pragma_journal_mode \
     WHERE name = 'main' AND file <> '' AND journal_mode = 'wal'"
}

statement! {
    /// Reserves the key: creates the row, or returns no row where there is one (G10).
    InsertNew for Db, rows (BigInt, BigInt), { insert: Insert },
    insert, " ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING created_at, expires_at"
}

statement! {
    /// Creates the row as its first phase leaves it, or returns no row where there is one.
    CreateNew for Db, rows (BigInt, BigInt), { create: Create },
    create, " ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING advanced_at, expires_at"
}

statement! {
    /// A bounded part of the index of expiry, from one place on. Of the rows that are read there, those in
    /// progress that the index of due rows does not have; and, of a full page, where it ends.
    HeldKeys for Db, rows (BigInt, Text, Text, Binary, BigInt, BigInt, Bool),
    { from: i64, to: i64, expires_at: i64, scope: String, key: String, limit: i64 },
    "WITH read AS MATERIALIZED (SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     locked_until, status = 'in_progress' AND run_after IS NULL AS is_held FROM atomic_phases_keys \
     WHERE expires_at >= ", from, " AND expires_at <= ", to,
    " AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key,
    ") ORDER BY expires_at, scope, idempotency_key LIMIT ", limit,
    ") SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     max(0, coalesce(locked_until, 0) - ", [NOW], "), false FROM read WHERE is_held \
     UNION ALL SELECT * FROM (SELECT expires_at, scope, idempotency_key, request_id, lease_token, 0, true \
     FROM read WHERE (SELECT count(*) FROM read) = ", limit,
    " ORDER BY expires_at DESC, scope DESC, idempotency_key DESC LIMIT 1)"
}

statement! {
    /// Enters such a row in the index of due rows, unless a holder has it by now.
    Enrol for Db, rows sql_types::Untyped, { not_entered: NotEntered },
    "UPDATE atomic_phases_keys SET run_after = locked_until WHERE ", not_entered,
    " AND locked_until <= ", [NOW]
}

statement! {
    /// Deletes the completed rows of a part of the index of expiry (G15).
    Reap for Db, rows sql_types::Untyped, { completed: CompletedBetween },
    "DELETE FROM atomic_phases_keys WHERE ", completed
}

statement! {
    /// Acquires the right to deliver a job: `attempts` is its fencing token.
    ClaimJob for Db, rows (Text, Binary, Text, Binary, Integer, Integer, BigInt, Nullable<Binary>),
    { lease_ms: i64, scope: String, request_id: Vec<u8>, position: i64, attempts: i32 },
    "UPDATE atomic_phases_staged_jobs AS j SET attempts = attempts + 1, reason = NULL, run_after = ", [NOW],
    " + ", lease_ms, " WHERE scope = ", scope, " AND request_id = ", request_id,
    " AND position = ", position, " AND attempts = ", attempts, " AND run_after <= ", [NOW],
    " AND ", (IS_NEXT[0]), [NOW], (IS_NEXT[1]), " RETURNING idempotency_key, job_id, name, args, attempts, \
     forgiven_attempts, ", [NOW], " - staged_at, trace"
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

statement! {
    /// Behind a job that has ended, the next that waits is due.
    MakeNextDue for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64 },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW], " WHERE scope = ", scope,
    " AND request_id = ", request_id, " AND run_after = ", [WAITS], " AND position = (SELECT n.position \
     FROM atomic_phases_staged_jobs AS n WHERE n.scope = ", scope, " AND n.request_id = ", request_id,
    " AND n.position > ", position, " AND n.run_after IS NOT NULL ORDER BY n.position LIMIT 1)"
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

// Erasure: see the other store. SQLite has no statement that both updates and deletes, so the dead
// jobs of erased rows go after them, in the same transaction.

const ERASE: &str = "UPDATE atomic_phases_keys AS k SET status = 'completed', \
    recovery_point = 'finished', fingerprint = 'erased', open_intent = NULL, locked_until = NULL, \
    run_after = NULL, resolution = NULL, reason = NULL, events = NULL, events_written = NULL, trace = NULL, \
    waiting_since = NULL, params = x'', context = NULL, outputs = NULL, \
    response_status = coalesce(k.response_status, 410), response_headers = NULL, \
    response_body = NULL, expires_at = CASE WHEN k.status = 'completed' THEN k.expires_at \
    ELSE max(k.expires_at, ";
const SETTLED: &str = " AND k.status IN ('completed', 'dead_letter') AND NOT EXISTS \
    (SELECT 1 FROM atomic_phases_staged_jobs AS j WHERE j.scope = k.scope \
    AND j.run_after IS NOT NULL AND j.";

statement! {
    /// Erases one settled row. A second time finds what was not there the first time.
    EraseKey for Db, rows sql_types::Untyped,
    { retention_ms: i64, scope: String, key: String, seen: AsSeen },
    [ERASE], [NOW], " + ", retention_ms, ") END WHERE k.scope = ", scope,
    " AND k.idempotency_key = ", key, " AND ", {seen}, [SETTLED], "idempotency_key = k.idempotency_key)"
}

statement! {
    /// Erases a scope's settled rows from one key to another.
    EraseBetween for Db, rows sql_types::Untyped,
    { retention_ms: i64, scope: String, from: String, to: String },
    [ERASE], [NOW], " + ", retention_ms, ") END WHERE k.fingerprint <> 'erased' AND k.scope = ", scope,
    " AND k.idempotency_key >= ", from, " AND k.idempotency_key <= ", to, [SETTLED],
    "request_id = k.request_id)"
}

statement! {
    /// The dead jobs of erased rows.
    EraseJobs for Db, rows sql_types::Untyped,
    { scope: String },
    "DELETE FROM atomic_phases_staged_jobs AS j WHERE j.scope = ", scope,
    " AND j.run_after IS NULL AND EXISTS (SELECT 1 FROM atomic_phases_keys AS k \
     WHERE k.scope = j.scope AND k.idempotency_key = j.idempotency_key AND k.fingerprint = 'erased')"
}

statement! {
    /// A bounded batch of the dead jobs of keys that were reaped.
    EraseOrphanedJobs for Db, rows sql_types::Untyped,
    { scope: String, is_any: bool, key: String, limit: i64 },
    "DELETE FROM atomic_phases_staged_jobs WHERE rowid IN (SELECT j.rowid \
     FROM atomic_phases_staged_jobs AS j WHERE j.run_after IS NULL AND j.scope = ", scope,
    " AND (", is_any, " OR j.idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = j.scope \
     AND k.idempotency_key = j.idempotency_key AND k.fingerprint <> 'erased') LIMIT ", limit, ")"
}

pub(super) type JobDataRow = (String, Vec<u8>, String, Vec<u8>, i32, i32, i64, Option<Vec<u8>>);

pub(super) fn job(at: &JobAt, row: JobDataRow) -> Result<JobRow, StoreError> {
    let (key, id, name, args, attempts, forgiven, lag, trace) = row;
    due::job(at, (key, uuid(&id, "job_id")?, name, args, attempts, forgiven, lag, trace))
}

statement! {
    /// [`TakeOver`], and the row as it is then.
    TakeOverReturning for Db as varying, rows RowSql, { take_over: TakeOver },
    {take_over}, " RETURNING ", (COLUMNS[0]), [NOW], (COLUMNS[1])
}
