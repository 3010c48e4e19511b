//! The statements of `ops`: those of `store::postgres::ops_statements`, with owned values.

use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, BigInt, Binary, Integer, Nullable, Text};

use super::rows::RowSql;
use super::statements::{CLOCK, COLUMNS};
pub(super) use crate::store::in_millis::audit::*;
pub(super) use crate::store::in_millis::jobs::*;
pub(super) use crate::store::in_millis::pauses::*;
pub(super) use crate::store::in_millis::requests::*;
use crate::store::in_millis::{Allowed, InMillis};
use crate::store::operators::{Limits, ListRequests, MOST_LOOKED_AT, RequestAt, Walk};
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

    /// The index that has its rows in their order. For half of a small table the server would rather read all of
    /// it and sort.
    fn index(&self) -> &'static str {
        match self.walk {
            Walk::Waiting => "atomic_phases_keys_waiting",
            Walk::Due => "atomic_phases_keys_due_listed",
            Walk::Newest => "atomic_phases_keys_newest",
        }
    }

    fn order(&self) -> (&'static str, &'static str, &'static str, bool) {
        match self.walk {
            Walk::Waiting => ("waiting_since", ">", "", true),
            Walk::Due => ("run_after", ">", "", true),
            Walk::Newest => ("expires_at", "<", " DESC", false),
        }
    }

    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, Db>, columns: &str) -> QueryResult<()> {
        let (column, behind, ..) = self.order();
        out.push_sql("SELECT ");
        out.push_sql(columns);
        out.push_sql(&format!(" FROM atomic_phases_keys FORCE INDEX ({}) WHERE ", self.index()));
        if self.order().3 {
            out.push_sql(column);
            out.push_sql(" IS NOT NULL AND ");
        }
        // The first bounds the index; a comparison of rows does not.
        out.push_sql(&format!("{column} {behind}= "));
        push_bind(out, &self.time)?;
        out.push_sql(&format!(" AND ({column}, request_id) {behind} ("));
        push_bind(out, &self.time)?;
        out.push_sql(", ");
        push_bind(out, &self.request_id)?;
        out.push_sql(")");
        self.push_order(out);
        Ok(())
    }

    fn push_order(&self, out: &mut AstPass<'_, '_, Db>) {
        let (column, _, direction, _) = self.order();
        out.push_sql(&format!(" ORDER BY {column}{direction}, request_id{direction}"));
    }
}

impl QueryFragment<Db> for Walked {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        self.push(&mut out, "*")?;
        out.push_sql(&format!(" LIMIT {MOST_LOOKED_AT}"));
        Ok(())
    }
}

/// The order of the rows that were found: that of the walk.
pub(super) struct InOrder(Walked);

impl QueryFragment<Db> for InOrder {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        self.0.push_order(&mut out);
        Ok(())
    }
}

/// See `store::operators::state_name`.
const STATE: &str = "CASE status WHEN 'pending' THEN 'accepted' \
    WHEN 'in_progress' THEN CASE WHEN locked_until > CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED) \
    THEN 'running' ELSE 'lease_ended' END \
    WHEN 'failed_retryable' THEN CASE WHEN run_after > CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED) \
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
     run_after, waiting_since, created_at, expires_at FROM (SELECT looked.*, ", [STATE], " FROM (", {walked},
    ") AS looked) AS k WHERE ", {allowed}, " AND (", states,
    " IS NULL OR FIND_IN_SET(HEX(state), ", states, ") > 0) AND coalesce(scope = ", scope,
    ", true) AND coalesce(definition = ", definition, ", true) AND coalesce(definition_version = ",
    version, ", true) AND coalesce(", phase,
    " IN (recovery_point, coalesce(open_intent, recovery_point)), true) AND (", reason,
    " IS NULL OR instr(coalesce(reason, ''), ", reason, ") > 0) AND coalesce(created_at <= ", [CLOCK], " - ",
    older_ms, ", true) AND (", waiting_ms, " IS NULL OR coalesce(waiting_since <= ", [CLOCK], " - ",
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
            order: InOrder(Walked::of(list)),
            limit: list.limit.into(),
        }
    }
}

/// The last place that a search looked at, where it looked at as many rows as it may.
pub(super) struct LastLookedAt(Walked);

impl QueryFragment<Db> for LastLookedAt {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        let column = self.0.order().0;
        self.0.push(&mut out, &format!("{column}, request_id"))?;
        out.push_sql(&format!(" LIMIT 1 OFFSET {}", MOST_LOOKED_AT - 1));
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
    "SELECT scope, idempotency_key, ", (COLUMNS[0]), [CLOCK], (COLUMNS[1]), " FROM atomic_phases_keys WHERE ", {at}, " AND ",
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
    /// The events of a request, by the primary key. Bytes: the first line may be cut within a character.
    Events for Db, rows (Nullable<Binary>, Nullable<Integer>),
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
    definition, ", ", phase, ", ", reason, ", ", paused_by, ", ", [CLOCK], ", ", [CLOCK], " + ", for_ms,
    ") ON DUPLICATE KEY UPDATE reason = VALUES(reason), paused_by = VALUES(paused_by), \
     paused_at = VALUES(paused_at), ends_at = VALUES(ends_at)"
}

statement! {
    /// Its requests: a JSON array of pairs, id and version.
    AddItems for Db, rows sql_types::Untyped, { id: Vec<u8>, requests: String },
    "INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen) SELECT ", id,
    ", item.position - 1, UNHEX(item.id), item.seen FROM JSON_TABLE(CONVERT(", requests,
    " USING utf8mb4), '$[*]' COLUMNS (position FOR ORDINALITY, id VARCHAR(32) PATH '$[0]', \
     seen VARCHAR(100) PATH '$[1]')) AS item"
}
