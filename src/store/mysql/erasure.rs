//! The statements of erasure. InnoDB has no statement that both updates and deletes, so the dead jobs of
//! erased rows go after them, in the same transaction.

use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, Text};

use super::words::NOW;
use crate::store::in_millis::erasure::AsSeen;
use crate::store::statement::statement;

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
    /// The keys of a bounded batch of a scope's settled rows, but for those that another transaction has locked. An `UPDATE`
    /// that looks for them would wait for each row that is being created.
    SettledKeys for Db, rows Text,
    { scope: String, limit: i64 },
    "SELECT k.idempotency_key FROM atomic_phases_keys AS k WHERE k.fingerprint <> 'erased' AND k.scope = ", scope,
    [SETTLED], "request_id = k.request_id) LIMIT ", limit, " FOR UPDATE SKIP LOCKED"
}

statement! {
    /// Erases those of a scope's rows with these keys that are settled. With a `LIMIT`, the server does not
    /// execute it as a join, which would wait for other rows.
    EraseKeys for Db as varying, rows sql_types::Untyped,
    { retention_ms: i64, scope: String, keys: Keys, limit: i64 },
    [ERASE], [NOW], " + ", retention_ms, [ERASED], "k.fingerprint <> 'erased' AND k.scope = ", scope,
    " AND k.idempotency_key IN (", {keys}, ")", [SETTLED], "request_id = k.request_id) LIMIT ", limit
}

/// At least one key.
pub(in crate::store) struct Keys(pub(in crate::store) Vec<String>);

impl QueryFragment<Db> for Keys {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        for (at, key) in self.0.iter().enumerate() {
            if at > 0 {
                out.push_sql(", ");
            }
            out.push_bind_param::<Text, String>(key)?;
        }
        Ok(())
    }
}

statement! {
    /// The dead jobs of erased rows.
    EraseJobs for Db, rows sql_types::Untyped,
    { scope: String },
    "DELETE FROM atomic_phases_staged_jobs WHERE scope = ", scope,
    " AND run_after IS NULL AND EXISTS (SELECT 1 FROM atomic_phases_keys AS k \
     WHERE k.scope = atomic_phases_staged_jobs.scope \
     AND k.idempotency_key = atomic_phases_staged_jobs.idempotency_key AND k.fingerprint = 'erased')"
}

statement! {
    /// A bounded batch of the dead jobs of keys that were reaped.
    EraseOrphanedJobs for Db, rows sql_types::Untyped,
    { scope: String, is_any: bool, key: String, limit: i64 },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND (", is_any, " OR idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = atomic_phases_staged_jobs.scope \
     AND k.idempotency_key = atomic_phases_staged_jobs.idempotency_key \
     AND k.fingerprint <> 'erased') LIMIT ", limit
}
