//! A transaction and its connection: beginning, end, whether it is open, and the clock.

use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{Bool, Integer, Text};
use diesel::{QueryResult, sql_types};

use super::super::timestamptz::Timestamptz;
use crate::definition::Isolation;
use crate::store::statement::statement;

/// `BEGIN`, with the isolation level said, whatever the session's default is: under a default of REPEATABLE
/// READ, a race would be a serialization failure.
pub(in crate::store::postgres) struct Begin(pub(in crate::store::postgres) Isolation);

impl QueryId for Begin {
    type QueryId = ();
    // The text depends on a value; the cache then goes by the text.
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl QueryFragment<Pg> for Begin {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(match self.0 {
            Isolation::ReadCommitted => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Isolation::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            Isolation::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE",
        });
        Ok(())
    }
}

impl Query for Begin {
    type SqlType = sql_types::Untyped;
}

statement! {
    /// Ends the transaction.
    CommitTx for Pg, rows sql_types::Untyped, {}, "COMMIT"
}

statement! {
    /// Undoes the transaction.
    Rollback for Pg, rows sql_types::Untyped, {}, "ROLLBACK"
}

statement! {
    /// Whether the transaction of that number is open: until it ends it holds the lock of its number. Not
    /// by `pg_xact_status`, which is an error for a number that a server behind a failover has not given
    /// out yet.
    IsOpen<'a> for Pg, rows Bool, { number: &'a str },
    "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' \
     AND mode = 'ExclusiveLock' AND granted AND transactionid = ", number, "::text::xid8::xid)"
}

statement! {
    /// What [`AskTwin`] is to ask about. Without a bound for statements: it is to hear of the lock.
    AboutTwin<'a> for Pg, rows sql_types::Untyped, { scope: &'a str, key: &'a str, replaces: String },
    "SELECT set_config('atomic_phases.scope', ", scope, ", true), set_config('atomic_phases.key', ", key,
    ", true), set_config('atomic_phases.replaces', ", replaces, ", true), \
     set_config('statement_timeout', '0', true)"
}

statement! {
    /// Whether another transaction is about to create the key's row: creates it, in a transaction that
    /// is then rolled back. diesel does not pass the SQLSTATE on that tells a lock timeout from anything
    /// else (H9); a block of PL/pgSQL reads it, in a server of any language.
    AskTwin for Pg, rows sql_types::Untyped, {},
    "DO $twin$ DECLARE told text := 'exists'; t timestamptz := clock_timestamp(); BEGIN \
     BEGIN \
     DELETE FROM atomic_phases_keys WHERE scope = current_setting('atomic_phases.scope') \
     AND idempotency_key = current_setting('atomic_phases.key') \
     AND request_id = nullif(current_setting('atomic_phases.replaces'), '')::uuid \
     AND status = 'completed' AND expires_at <= t; \
     INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     advanced_at, created_at, expires_at, params) VALUES (current_setting('atomic_phases.scope'), \
     current_setting('atomic_phases.key'), gen_random_uuid(), '', 0, '', '', 'pending', \
     'started', 0, 0, t, t, t, '') ON CONFLICT DO NOTHING; \
     IF FOUND THEN told := 'none'; END IF; \
     EXCEPTION WHEN lock_not_available OR deadlock_detected THEN told := 'open'; END; \
     PERFORM set_config('atomic_phases.twin', told, true); END $twin$"
}

statement! {
    /// What [`AskTwin`] found.
    ToldTwin for Pg, rows Text, {}, "SELECT current_setting('atomic_phases.twin')"
}

statement! {
    /// Whether the connection is alive.
    Ping for Pg, rows Integer, {}, "SELECT 1"
}

statement! {
    /// The database's clock.
    Now for Pg, rows Timestamptz, {}, "SELECT clock_timestamp()"
}
