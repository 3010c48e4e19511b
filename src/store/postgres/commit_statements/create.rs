//! What creates a row: before its first phase, as that phase leaves it, and with the phase's writes in one statement.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{Integer, Nullable};

use super::super::error::Mark;
use super::super::numbered::{Shape, Shaped, shaped};
use super::super::session::{
    JOBS, KnownSql, NUMBER, OURS, SET_UP, WAIT_AS_BEFORE, WAIT_BRIEFLY, WAIT_BRIEFLY_ALONE,
};
use super::super::timestamptz::Timestamptz;
use super::phase_writes::PhaseWrites;
use super::row::BornRow;
use super::{Committed, ONE_ROW_OF, push_left_open};
use crate::store::statement::statement;

shaped! {
    /// Reserves the key: creates the row, if there is none (G10). Waits for a transaction that is about to create it,
    /// [`ROW_LOCK_WAIT`](super::super::twin::ROW_LOCK_WAIT) at most. Tells by what the transaction is known, too; no
    /// row of an answer where the key has one, which the next read of the key finds: a second branch for that here
    /// would cost each request more than it saves the few.
    ///
    /// The server makes the row first, then answers, which gives the phase the lock timeout that its session
    /// had.
    Reserve<'a> for Pg, rows (KnownSql, Timestamptz, Timestamptz), { row: BornRow<'a> },
    "WITH begun AS MATERIALIZED (SELECT clock_timestamp() AS t, ", [NUMBER], " AS number, ", [JOBS],
    " AS jobs, ", [SET_UP], " IS TRUE AS is_set_up, ", [WAIT_BRIEFLY], "), made AS (", {row}, " FROM begun \
     ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING created_at, expires_at) \
     SELECT number, jobs, ", [WAIT_AS_BEFORE], " IS NOT NULL AND is_set_up, created_at, expires_at FROM made, begun"
}

shaped! {
    /// Creates the row as its first phase leaves it. First in a transaction whose other statements,
    /// and `COMMIT`, are right behind it: that there is a row has to be an error (see [`Advance`](super::Advance)), and
    /// not a unique violation, for which the server writes the key into its log (G19).
    /// If the `BEGIN` before it failed, those statements must not come to run by themselves: then
    /// this inserts nothing and ends the connection, before the server reads them. The server makes the row first, then
    /// answers, which gives the phase's statements the lock timeout that their session had.
    Create<'a> for Pg, rows (Nullable<Timestamptz>, Nullable<Timestamptz>, Integer),
    { row: BornRow<'a> },
    "WITH begun AS MATERIALIZED (SELECT clock_timestamp() AS t, ", [WAIT_BRIEFLY], " WHERE ", [OURS], "), made AS (",
    {row}, " FROM begun ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING advanced_at, expires_at) \
     SELECT advanced_at, expires_at, CASE WHEN advanced_at IS NOT NULL AND ", [WAIT_AS_BEFORE],
    " IS NOT NULL THEN '1' WHEN ", [OURS], " THEN ", (Mark::Exists.sql()),
    " ELSE pg_terminate_backend(pg_backend_pid())::text END::integer", [ONE_ROW_OF],
    "begun ON true LEFT JOIN made ON true"
}

/// The same with the phase's writes in it, as one statement that is a transaction by itself. The lock
/// timeout bounds the wait for the row only: the server makes the row first, then answers, which gives
/// the session its own back, and then executes what the answer has no use for.
pub(in crate::store::postgres) struct CreateAndWrite<'a> {
    /// On a session that the engine opened, no transaction is left open.
    pub(in crate::store::postgres) committed: Committed,
    pub(in crate::store::postgres) row: BornRow<'a>,
    pub(in crate::store::postgres) writes: PhaseWrites<'a>,
}

impl QueryId for CreateAndWrite<'_> {
    type QueryId = CreateAndWrite<'static>;
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Shaped for CreateAndWrite<'_> {
    fn note(&self, shape: &mut Shape) {
        self.committed.note(shape);
        self.row.note(shape);
        self.writes.note(shape);
    }
}

impl Query for CreateAndWrite<'_> {
    type SqlType = (Nullable<Timestamptz>, Nullable<Timestamptz>, Integer);
}

impl QueryFragment<Pg> for CreateAndWrite<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("WITH atomic_phases_begun AS MATERIALIZED (SELECT clock_timestamp() AS t, ");
        out.push_sql(WAIT_BRIEFLY_ALONE);
        out.push_sql("), atomic_phases_key AS (");
        self.row.walk_ast(out.reborrow())?;
        out.push_sql(
            " FROM atomic_phases_begun ON CONFLICT (scope, idempotency_key) DO NOTHING \
             RETURNING idempotency_key, request_id, advanced_at, expires_at)",
        );
        self.writes.walk_ast(out.reborrow())?;
        out.push_sql(" SELECT advanced_at, expires_at, CASE ");
        push_left_open(&mut out, self.committed.0);
        out.push_sql("WHEN advanced_at IS NULL THEN ");
        out.push_sql(Mark::Exists.sql());
        out.push_sql(" WHEN ");
        out.push_sql(WAIT_AS_BEFORE);
        if self.writes.stages() {
            // Looked for, and so inserted, behind that: what the application's triggers wait for is not bounded.
            out.push_sql(" IS NULL OR ");
            self.writes.push_unstaged(&mut out);
            out.push_sql(" ELSE ");
        } else {
            out.push_sql(" IS NOT NULL THEN ");
        }
        self.committed.walk_ast(out.reborrow())?;
        out.push_sql(" END::integer FROM atomic_phases_begun LEFT JOIN atomic_phases_key ON true");
        Ok(())
    }
}

pub(in crate::store::postgres) type Made = (Option<DateTime<Utc>>, Option<DateTime<Utc>>, i32);
