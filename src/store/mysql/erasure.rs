//! The statements of erasure. InnoDB has no statement that both updates and deletes, so the dead jobs of
//! an erased row go after it, in the same transaction, and those of a scope's rows behind all of them.

use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, Binary, Text};

use super::words::NOW;
use crate::store::in_millis::erasure::AsSeen;
use crate::store::statement::{Part, statement};

const ERASE: &str = "UPDATE atomic_phases_keys AS k FORCE INDEX (PRIMARY) SET open_intent = NULL, locked_until = NULL, \
    run_after = NULL, resolution = NULL, reason = NULL, events = NULL, events_written = NULL, trace = NULL, \
    waiting_since = NULL, params = '', context = NULL, outputs = NULL, \
    response_status = coalesce(k.response_status, 410), response_headers = NULL, \
    response_body = NULL, expires_at = CASE WHEN k.status = 'completed' THEN k.expires_at \
    ELSE GREATEST(k.expires_at, ";
/// Behind what `expires_at` is made of.
const ERASED: &str =
    ") END, status = 'completed', recovery_point = 'finished', fingerprint = 'erased' WHERE ";
const SETTLED: &str = " AND k.status IN ('completed', 'dead_letter') AND NOT EXISTS \
    (SELECT 1 FROM atomic_phases_staged_jobs AS j WHERE j.scope = k.scope \
    AND j.run_after IS NOT NULL AND j.";

statement! {
    /// Erases one settled row. A second time finds what was not there the first time.
    EraseKey for Db, rows sql_types::Untyped,
    { retention_ms: i64, scope: String, key: String, seen: AsSeen },
    [ERASE], [NOW], " + ", retention_ms, [ERASED], "k.scope = ", scope, " AND k.idempotency_key = ", key, " AND ", {seen}, [SETTLED], "idempotency_key = k.idempotency_key)"
}

statement! {
    /// The keys of a scope's settled rows from one to another, but for those that another transaction has locked. An
    /// `UPDATE` that looks for them would wait for each row that is being created.
    SettledKeys for Db, rows Text,
    { scope: String, from: String, to: String },
    "SELECT k.idempotency_key FROM atomic_phases_keys AS k FORCE INDEX (PRIMARY) WHERE k.fingerprint <> 'erased' AND k.scope = ", scope,
    " AND k.idempotency_key >= ", from, " AND k.idempotency_key <= ", to,
    [SETTLED], "request_id = k.request_id) FOR UPDATE SKIP LOCKED"
}

statement! {
    /// Erases those of a scope's rows with these keys that are settled. With a `LIMIT`, the server does not
    /// execute it as a join, which would wait for other rows.
    EraseKeys for Db as varying, rows sql_types::Untyped,
    { retention_ms: i64, scope: String, keys: Listed<String>, limit: i64 },
    [ERASE], [NOW], " + ", retention_ms, [ERASED], "k.fingerprint <> 'erased' AND k.scope = ", scope,
    " AND k.idempotency_key IN (", {keys}, ")", [SETTLED], "request_id = k.request_id) LIMIT ", limit
}

/// Values in a row, at least one.
pub(in crate::store) struct Listed<T>(pub(in crate::store) Vec<T>);

impl<T: Part<Db>> QueryFragment<Db> for Listed<T> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        // The text has a place for each.
        out.unsafe_to_cache_prepared();
        for (at, value) in self.0.iter().enumerate() {
            if at > 0 {
                out.push_sql(", ");
            }
            value.push(&mut out)?;
        }
        Ok(())
    }
}

statement! {
    /// The dead jobs of one erased row.
    EraseJobs for Db, rows sql_types::Untyped,
    { scope: String, key: String },
    "DELETE FROM atomic_phases_staged_jobs WHERE scope = ", scope, " AND run_after IS NULL AND idempotency_key = ", key
}

// A `DELETE` locks the rows that its subqueries read: here those of keys, also of keys that are in use, and it fails
// where one of them is locked. So the requests are searched for by a statement that locks nothing. Their dead jobs are
// still those of a key that is gone or erased, whatever becomes of the key in between.

statement! {
    /// Requests that have dead jobs, and whose keys were reaped or erased.
    ReapedWithJobs for Db, rows Binary,
    { scope: String, is_any: bool, key: String, limit: i64 },
    "SELECT DISTINCT j.request_id FROM atomic_phases_staged_jobs AS j WHERE j.run_after IS NULL AND j.scope = ", scope,
    " AND (", is_any, " OR j.idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = j.scope \
     AND k.idempotency_key = j.idempotency_key AND k.fingerprint <> 'erased') LIMIT ", limit
}

statement! {
    /// The dead jobs of these requests, by the primary key: by that of all dead letters it would lock those of other scopes.
    EraseJobsOf for Db as varying, rows sql_types::Untyped,
    { scope: String, requests: Listed<Vec<u8>> },
    "DELETE j FROM atomic_phases_staged_jobs AS j FORCE INDEX (PRIMARY) WHERE j.scope = ", scope,
    " AND j.request_id IN (", {requests}, ") AND j.run_after IS NULL"
}
