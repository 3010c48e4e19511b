//! Erasure: what users gave goes, and the key's row stays.

use diesel::pg::Pg;
use diesel::sql_types;
use diesel::sql_types::{BigInt, Bool, Nullable, Text, Uuid as SqlUuid};

use super::lease::NotLocked;
use crate::store::statement::statement;

// Erasure. Of a settled row whose jobs are settled too, what users gave goes, and with it the
// fingerprint: a hash of parameters that have few possible values tells them. The row stays, as a
// finished one, and so keeps its key from being run again.

pub(in crate::store::postgres) const ERASE: &str = "WITH erased AS (UPDATE atomic_phases_keys AS k SET status = 'completed', \
    recovery_point = 'finished', fingerprint = 'erased', open_intent = NULL, locked_until = NULL, \
    run_after = NULL, resolution = NULL, reason = NULL, events = NULL, events_written = NULL, trace = NULL, \
    waiting_since = NULL, params = '', context = NULL, outputs = NULL, \
    response_status = coalesce(k.response_status, 410), response_headers = NULL, \
    response_body = NULL, expires_at = CASE WHEN k.status = 'completed' THEN k.expires_at \
    ELSE greatest(k.expires_at, (SELECT clock_timestamp() + ";
pub(in crate::store::postgres) const SETTLED: &str = " AND k.status IN ('completed', 'dead_letter') AND NOT EXISTS \
    (SELECT 1 FROM atomic_phases_staged_jobs AS j WHERE j.scope = k.scope \
    AND j.run_after IS NOT NULL AND j.";
pub(in crate::store::postgres) const ERASED_JOBS: &str = ") RETURNING k.scope, k.idempotency_key), \
    jobs AS (DELETE FROM atomic_phases_staged_jobs AS j USING erased AS e WHERE j.scope = e.scope \
    AND j.idempotency_key = e.idempotency_key AND j.run_after IS NULL)";
const COUNT_ERASED: &str = " SELECT count(*) FROM erased";

statement! {
    /// Erases one settled row, unless another transaction has it locked. A second time finds what was not
    /// there the first time.
    EraseKey<'a> for Pg, rows BigInt,
    { retention_ms: i64, scope: &'a str, key: &'a str, not_locked: NotLocked<'a> },
    [ERASE], retention_ms, " * interval '1 millisecond')) END WHERE k.scope = ", scope,
    " AND k.idempotency_key = ", key, " AND ", {not_locked}, [SETTLED],
    "idempotency_key = k.idempotency_key", [ERASED_JOBS], [COUNT_ERASED]
}

statement! {
    /// Whether a row that was not erased could have been: then its lock was held.
    StandsSettled<'a> for Pg, rows Bool,
    { scope: &'a str, key: &'a str },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys AS k WHERE k.scope = ", scope,
    " AND k.idempotency_key = ", key, [SETTLED], "idempotency_key = k.idempotency_key))"
}

statement! {
    /// Erases a scope's settled rows from one key to another, but for those that another transaction has locked. Both sides
    /// of the join name the keys: a generic plan may be a hash join, and would read all rows of the scope.
    EraseBetween<'a> for Pg, rows BigInt,
    { retention_ms: i64, scope: &'a str, from: &'a str, to: &'a str },
    [ERASE], retention_ms, " * interval '1 millisecond')) END WHERE k.scope = ", scope,
    " AND k.idempotency_key >= ", from, " AND k.idempotency_key <= ", to,
    " AND k.idempotency_key IN (SELECT s.idempotency_key FROM atomic_phases_keys AS s \
     WHERE s.scope = ", scope, " AND s.idempotency_key >= ", from, " AND s.idempotency_key <= ", to,
    " AND s.status IN ('completed', 'dead_letter') \
     AND s.fingerprint <> 'erased' AND NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS j \
     WHERE j.scope = s.scope AND j.request_id = s.request_id AND j.run_after IS NOT NULL) \
     FOR NO KEY UPDATE SKIP LOCKED)", [SETTLED], "request_id = k.request_id", [ERASED_JOBS],
    [COUNT_ERASED]
}

statement! {
    /// A bounded batch of the dead jobs of keys that were reaped, or erased in a later life.
    EraseOrphanedJobs<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, is_any: bool, key: &'a str, limit: i64 },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND (request_id, position) IN (SELECT j.request_id, j.position \
     FROM atomic_phases_staged_jobs AS j WHERE j.run_after IS NULL AND j.scope = ", scope,
    " AND (", is_any, " OR j.idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = j.scope \
     AND k.idempotency_key = j.idempotency_key AND k.fingerprint <> 'erased') LIMIT ", limit, ")"
}

statement! {
    /// Requests whose key was reaped before their jobs were delivered.
    CountOrphans<'a> for Pg, rows BigInt,
    { scope: &'a str, is_any: bool, key: &'a str },
    "SELECT count(DISTINCT j.request_id) FROM atomic_phases_staged_jobs AS j \
     WHERE j.run_after IS NOT NULL AND j.scope = ", scope,
    " AND (", is_any, " OR j.idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = j.scope \
     AND k.idempotency_key = j.idempotency_key AND k.request_id = j.request_id)"
}

statement! {
    /// A bounded part of a scope's keys, from one on, and whether each is to be erased. The index has no more than the key: a
    /// condition would let a page read all rows that are not, for example those that are erased.
    KeysToErase<'a> for Pg, rows (Text, SqlUuid, Text, Bool),
    { scope: &'a str, after: &'a str, limit: i64 },
    "SELECT idempotency_key, request_id, definition, status IN ('completed', 'dead_letter') AND fingerprint <> 'erased' \
     FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key > ", after,
    " ORDER BY idempotency_key LIMIT ", limit
}

statement! {
    /// What a scope's erasure has left in a bounded part of its keys, from one on.
    CountUnerased<'a> for Pg, rows (BigInt, BigInt, Nullable<Text>),
    { scope: &'a str, after: &'a str, limit: i64 },
    "SELECT count(CASE WHEN fingerprint <> 'erased' THEN 1 END), count(*), max(idempotency_key) \
     FROM (SELECT idempotency_key, fingerprint FROM atomic_phases_keys WHERE scope = ", scope,
    " AND idempotency_key > ", after, " ORDER BY idempotency_key LIMIT ", limit, ") AS looked"
}
