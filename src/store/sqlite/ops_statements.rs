//! The statements of `ops`: those of `store::postgres::ops_statements`, with owned values.

use diesel::QueryResult;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, BigInt, Binary, Integer, Nullable, Text};
use diesel::sqlite::Sqlite as Db;

use super::sql::{COLUMNS, NOW, RowSql};
pub(super) use crate::store::in_millis::audit::*;
pub(super) use crate::store::in_millis::jobs::*;
pub(super) use crate::store::in_millis::pauses::*;
pub(super) use crate::store::in_millis::requests::*;
use crate::store::in_millis::{Allowed, InMillis};
use crate::store::operators::{Limits, ListRequests, RequestAt, Walk};
use crate::store::statement::{push_bind, statement};

statement! {
    /// The versions of the migrations that have run, the application's own among them.
    Applied for Db, rows Text, {}, "SELECT version FROM __diesel_schema_migrations"
}

/// The rows that a search looks at: a bounded part of one index, in its order, from one place on.
#[derive(Clone)]
pub(super) struct Walked {
    walk: Walk,
    time: i64,
    request_id: Vec<u8>,
}

impl Walked {
    fn of(list: &ListRequests) -> Self {
        Self {
            walk: list.walk,
            time: list.after.time.timestamp_millis(),
            request_id: list.after.request_id.as_bytes().to_vec(),
        }
    }

    /// `columns`: literals, one behind the other.
    fn push<'b>(
        &'b self,
        out: &mut AstPass<'_, 'b, Db>,
        columns: &[&'static str],
    ) -> QueryResult<()> {
        let sql = self.walk.sql();
        out.push_sql("SELECT ");
        columns.iter().for_each(|part| out.push_sql(part));
        out.push_sql(sql.rows);
        out.push_sql(sql.behind);
        push_bind(out, &self.time)?;
        out.push_sql(", ");
        push_bind(out, &self.request_id)?;
        out.push_sql(")");
        out.push_sql(sql.order);
        Ok(())
    }
}

impl QueryFragment<Db> for Walked {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        self.push(&mut out, &["*"])?;
        // `MOST_LOOKED_AT`.
        out.push_sql(" LIMIT 10000");
        Ok(())
    }
}

/// The order of the rows that were found: that of the walk.
pub(super) struct InOrder(Walk);

impl QueryFragment<Db> for InOrder {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        out.push_sql(self.0.sql().order);
        Ok(())
    }
}

/// See `store::operators::state_name`.
const STATE: &str = "CASE status WHEN 'pending' THEN 'accepted' \
    WHEN 'in_progress' THEN CASE WHEN locked_until > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) \
    THEN 'running' ELSE 'lease_ended' END \
    WHEN 'failed_retryable' THEN CASE WHEN run_after > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) \
    THEN 'backing_off' ELSE 'due' END \
    WHEN 'completed' THEN CASE fingerprint WHEN 'erased' THEN 'erased' ELSE 'finished' END \
    WHEN 'unknown' THEN 'unknown' WHEN 'dead_letter' THEN 'dead_letter' ELSE 'unreadable' END AS state";

statement! {
    /// A page of requests: of the rows that are looked at, those that are asked for.
    List for Db as varying, rows ListedSql,
    {
        walked: Walked, allowed: Allowed, states: Option<String>, scope: Option<String>,
        definition: Option<String>, version: Option<i64>, phase: Option<String>,
        reason: Option<String>, older_ms: Option<i64>, waiting_ms: Option<i64>,
        order: InOrder, limit: i64,
    },
    "SELECT request_id, scope, idempotency_key, definition, definition_version, phases, state, \
     status, recovery_point, open_intent, reason, lease_token, attempts, resolution, locked_until, \
     run_after, waiting_since, created_at, expires_at FROM (SELECT *, ", [STATE], " FROM (", {walked},
    ") AS looked) AS k WHERE ", {allowed}, " AND (", states,
    " IS NULL OR state IN (SELECT value FROM json_each(", states, "))) AND coalesce(scope = ", scope,
    ", true) AND coalesce(definition = ", definition, ", true) AND coalesce(definition_version = ",
    version, ", true) AND coalesce(", phase,
    " IN (recovery_point, coalesce(open_intent, recovery_point)), true) AND (", reason,
    " IS NULL OR instr(coalesce(reason, ''), ", reason, ") > 0) AND coalesce(created_at <= ", [NOW], " - ",
    older_ms, ", true) AND (", waiting_ms, " IS NULL OR coalesce(waiting_since <= ", [NOW], " - ",
    waiting_ms, ", false))", {order}, " LIMIT ", limit
}

impl List {
    pub(super) fn new(list: &ListRequests) -> Self {
        Self {
            walked: Walked::of(list),
            allowed: Allowed::by::<Db>(&list.limits),
            states: list.states.as_deref().map(Db::list),
            scope: list.scope.clone(),
            definition: list.definition.clone(),
            version: list.version.map(|version| version.cast_signed().into()),
            phase: list.phase.clone(),
            reason: list.reason.clone(),
            older_ms: list.older_ms,
            waiting_ms: list.waiting_ms,
            order: InOrder(list.walk),
            limit: list.limit.into(),
        }
    }
}

/// The last place that a search looked at, where it looked at as many rows as it may.
pub(super) struct LastLookedAt(Walked);

impl QueryFragment<Db> for LastLookedAt {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        self.0.push(&mut out, &[self.0.walk.sql().column, ", request_id"])?;
        out.push_sql(" LIMIT 1 OFFSET 9999");
        Ok(())
    }
}

statement! {
    /// How far a search looked.
    EndOfLook for Db as varying, rows (BigInt, Binary), { last: LastLookedAt }, {last}
}

impl EndOfLook {
    pub(super) fn new(list: &ListRequests) -> Self {
        Self { last: LastLookedAt(Walked::of(list)) }
    }
}

/// By its id, or by its key.
pub(super) enum At {
    Id(Vec<u8>),
    Key(String, String),
}

impl QueryFragment<Db> for At {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        match self {
            Self::Id(id) => {
                out.push_sql("request_id = ");
                push_bind(&mut out, id)
            }
            Self::Key(scope, key) => {
                out.push_sql("scope = ");
                push_bind(&mut out, scope)?;
                out.push_sql(" AND idempotency_key = ");
                push_bind(&mut out, key)
            }
        }
    }
}

statement! {
    /// One request, by `atomic_phases_keys_request` or by its primary key.
    Find for Db as varying, rows (Text, Text, RowSql), { at: At, allowed: Allowed },
    "SELECT scope, idempotency_key, ", (COLUMNS[0]), [NOW], (COLUMNS[1]), " FROM atomic_phases_keys WHERE ", {at}, " AND ",
    {allowed}, " LIMIT 1"
}

impl Find {
    pub(super) fn new(at: RequestAt<'_>, limits: &Limits) -> Self {
        let at = match at {
            RequestAt::Id(id) => At::Id(id.as_bytes().to_vec()),
            RequestAt::Key(scope, key) => {
                At::Key(scope.as_str().to_owned(), key.as_str().to_owned())
            }
        };
        Self { at, allowed: Allowed::by::<Db>(limits) }
    }
}

statement! {
    /// The events of a request, by the primary key.
    Events for Db, rows (Nullable<Text>, Nullable<Integer>),
    { scope: String, key: String, request_id: Vec<u8> },
    "SELECT events, events_written FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// Pauses a phase, for so long or until an operator ends it.
    PausePhase for Db, rows sql_types::Untyped,
    {
        definition: String, phase: String, reason: String, paused_by: String, for_ms: Option<i64>,
    },
    "INSERT INTO atomic_phases_pauses (definition, phase, reason, paused_by, paused_at, ends_at) VALUES (",
    definition, ", ", phase, ", ", reason, ", ", paused_by, ", ", [NOW], ", ", [NOW], " + ", for_ms,
    ") ON CONFLICT (definition, phase) DO UPDATE SET reason = excluded.reason, \
     paused_by = excluded.paused_by, paused_at = excluded.paused_at, ends_at = excluded.ends_at"
}

statement! {
    /// A request of it.
    AddItem for Db, rows sql_types::Untyped,
    { id: Vec<u8>, position: i64, request_id: Vec<u8>, seen: String },
    "INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen) VALUES (", id, ", ", position,
    ", ", request_id, ", ", seen, ")"
}
