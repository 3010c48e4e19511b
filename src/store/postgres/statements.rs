//! Every statement that the engine sends to PostgreSQL, but for what a phase's commit writes
//! (`commit_statements`), and for what is said of sessions and transactions (`session`).
//!
//! Each names the distribution column `scope`, touches one row of one table, and is prepared once
//! for each connection. Times are `clock_timestamp()`: `now()` is the transaction's start (H12). What a statement
//! changes, and its `RETURNING`, asks for it in a query of its own, `(SELECT clock_timestamp() + $1)`, and casts no
//! column: a distributed table (docs/scaling.md) takes no other form. In a phase's transaction it is
//! `statement_timestamp()`, for what stands at `NextState`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::pg::data_types::PgInterval;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{
    Array, BigInt, Binary, Bool, Integer, Interval, Nullable, SmallInt, Text, Timestamptz,
    Uuid as SqlUuid,
};
use diesel::{QueryResult, sql_types};
use uuid::Uuid;

use crate::definition::Isolation;
use crate::key::{IdempotencyKey, Scope};
use crate::store::row::millis;
use crate::store::statement::{Bind, push_bind, statement};
use crate::store::{Claim, Guard, HeldKey, Hold, JobAt, Right};

macro_rules! bind {
    ($($type:ty => $sql:ty),* $(,)?) => {
        $(impl Bind<Pg> for $type { type Sql = $sql; })*
    };
}

bind! {
    &str => Text,
    String => Text,
    Option<&str> => Nullable<Text>,
    Option<String> => Nullable<Text>,
    Option<i64> => Nullable<BigInt>,
    Option<i32> => Nullable<Integer>,
    Vec<String> => Array<Text>,
    Option<Vec<String>> => Nullable<Array<Text>>,
    Vec<Uuid> => Array<SqlUuid>,
    Vec<i64> => Array<BigInt>,
    Vec<i32> => Array<Integer>,
    Vec<Option<String>> => Array<Nullable<Text>>,
    Vec<Option<Vec<u8>>> => Array<Nullable<Binary>>,
    Vec<Option<&[u8]>> => Array<Nullable<Binary>>,
    Option<Uuid> => Nullable<SqlUuid>,
    bool => Bool,
    i64 => BigInt,
    i32 => Integer,
    DateTime<Utc> => Timestamptz,
    i16 => SmallInt,
    PgInterval => Interval,
    Option<i16> => Nullable<SmallInt>,
    Uuid => SqlUuid,
    &[u8] => Binary,
    Vec<&str> => Array<Text>,
    Vec<&[u8]> => Array<Binary>,
    Vec<bool> => Array<Bool>,
    Option<&[u8]> => Nullable<Binary>,
}

/// `BEGIN`, with the isolation level said, whatever the session's default is: under a default of REPEATABLE
/// READ, a race would be a serialization failure.
pub(super) struct Begin(pub(super) Isolation);

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
    /// Lease token and recovery point guard the row (G3, G6).
    Guarded<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid, token: i64, from: &'a str },
    " WHERE scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
    " AND lease_token = ", token, " AND recovery_point = ", from, " AND status = 'in_progress'"
}

impl<'a> Guarded<'a> {
    pub(super) fn new(guard: &Guard<'a>) -> Self {
        Self {
            scope: guard.scope.as_str(),
            key: guard.key.as_str(),
            request_id: guard.request_id,
            token: guard.lease_token,
            from: guard.recovery_point,
        }
    }
}

statement! {
    /// The first of a transaction that keeps what it saw at its beginning: it locks the key's row, so that nobody
    /// changes it from then on, the heartbeat neither. The lock is the better lease while it lasts. Does not wait
    /// for it: says whether it has it, and whether the row is there. And nothing of the transaction: behind Citus it is
    /// executed on the row's node, which has another one.
    Pin<'a> for Pg, rows (Bool, Bool), { locked: NotLocked<'a>, guarded: Guarded<'a> },
    "SELECT ", {locked}, ", EXISTS (SELECT 1 FROM atomic_phases_keys", {guarded}, ")"
}

impl<'a> Pin<'a> {
    pub(super) fn new(guard: &Guard<'a>) -> Self {
        let locked = NotLocked::new(guard.scope, guard.key);
        Self { locked, guarded: Guarded::new(guard) }
    }
}

statement! {
    /// Whether the row's lock is ours from here on. Never waits for it: who waits keeps a connection, and
    /// a lock may be held for as long as a phase takes. That nothing is written does not yet say that the
    /// row is somebody else's then: [`Stands`] does.
    NotLocked<'a> for Pg, rows sql_types::Untyped, { scope: &'a str, key: &'a str },
    "EXISTS (SELECT 1 FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " FOR NO KEY UPDATE SKIP LOCKED)"
}

impl<'a> NotLocked<'a> {
    pub(super) fn new(scope: &'a Scope, key: &'a IdempotencyKey) -> Self {
        Self { scope: scope.as_str(), key: key.as_str() }
    }
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

/// The columns of a [`Row`]. What a run needs stays behind where the row is completed.
pub(super) const COLUMNS: &str = "request_id, definition, definition_version, fingerprint, \
    status, recovery_point, open_intent, lease_token, attempts, \
    forgiven_attempts, reconciles, resolution, phases, reason, \
    (SELECT clock_timestamp()), locked_until, run_after, waiting_since, advanced_at, created_at, expires_at, \
    CASE WHEN status <> 'completed' THEN params END, \
    CASE WHEN status <> 'completed' THEN context END, \
    CASE WHEN status <> 'completed' THEN outputs END, trace, \
    response_status, response_headers, response_body";

pub(super) type RowSql = (
    (SqlUuid, Text, Integer, Text),
    (Text, Text, Nullable<Text>, BigInt, Integer),
    (Integer, Integer, Nullable<Text>, Text, Nullable<Text>),
    (Timestamptz, Nullable<Timestamptz>, Nullable<Timestamptz>, Nullable<Timestamptz>),
    (Timestamptz, Timestamptz, Timestamptz),
    (Nullable<Binary>, Nullable<Binary>, Nullable<Binary>, Nullable<Binary>),
    (Nullable<SmallInt>, Nullable<Binary>, Nullable<Binary>),
);

/// The columns of a [`KeySummaryRow`](crate::store::row::KeySummaryRow).
const SEEN: &str = "request_id, definition, definition_version, fingerprint, status, lease_token, \
    clock_timestamp(), locked_until, run_after, expires_at, \
    trace, response_status, response_headers, response_body";

type GlanceSql = (
    (SqlUuid, Text, Integer, Text),
    (Text, BigInt, Timestamptz, Nullable<Timestamptz>, Nullable<Timestamptz>, Timestamptz),
    (Nullable<Binary>, Nullable<SmallInt>, Nullable<Binary>, Nullable<Binary>),
);

statement! {
    /// What a call has to see of the key's row. A replay is this statement and no other.
    Look<'a> for Pg, rows GlanceSql,
    { scope: &'a str, key: &'a str },
    "SELECT ", [SEEN], " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The key's row, if there is one.
    Read<'a> for Pg, rows RowSql,
    { scope: &'a str, key: &'a str },
    "SELECT ", [COLUMNS], " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// Makes room for a new life of a key whose request is finished and expired. `request_id` guards
    /// it: of two that come at once, the second finds the new row.
    DeleteExpired<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid },
    "DELETE FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= (SELECT clock_timestamp())"
}

statement! {
    /// The database's clock.
    Now for Pg, rows Timestamptz, {}, "SELECT clock_timestamp()"
}

statement! {
    /// What a takeover is guarded by: the token and the status that were read. Of two that try, one wins
    /// (G10). A row in progress is free once its holder let the lease run out; or it is our own, after a
    /// commit that got no answer.
    Free<'a> for Pg, rows sql_types::Untyped,
    {
        scope: &'a str, key: &'a str, request_id: Uuid, token: i64, from: &'a str,
        stands_at: Option<&'a str>, own: bool,
    },
    " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = ", from, "::atomic_phases_status",
    " AND recovery_point = coalesce(", stands_at, ", recovery_point) AND (status <> 'in_progress' OR ", own,
    " OR locked_until IS NULL OR locked_until <= (SELECT clock_timestamp()))"
}

impl<'a> Free<'a> {
    fn new(claim: &Claim<'a>) -> Self {
        Self {
            scope: claim.scope.as_str(),
            key: claim.key.as_str(),
            request_id: claim.request_id,
            token: claim.lease_token,
            from: claim.status.as_str(),
            stands_at: claim.recovery_point,
            own: claim.right == Right::Own,
        }
    }
}

/// A [line](crate::store::events::line) behind those that the row has, with its time, which is none before that of
/// what it came after; nothing, where there is none.
pub(super) struct NewEvent<'a>(pub(super) Option<&'a str>);

impl QueryFragment<Pg> for NewEvent<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let Some(line) = &self.0 else { return Ok(()) };
        out.push_sql(
            ", events_written = coalesce(events_written, 0) + 1, events = right(coalesce(events, '') || CAST(",
        );
        push_bind(&mut out, line)?;
        out.push_sql(
            " AS text) || (SELECT ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint::text), 4000)",
        );
        Ok(())
    }
}

/// The trace that the row has from now on; nothing, where it stays.
pub(super) struct NewTrace<'a>(Option<&'a [u8]>);

impl QueryFragment<Pg> for NewTrace<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let Some(trace) = &self.0 else { return Ok(()) };
        out.push_sql(", trace = ");
        push_bind(&mut out, trace)
    }
}

statement! {
    /// Acquires the lease of a row. Where the row is our own, after a commit that got no answer, this
    /// fences that commit off if it never arrived, and returns which recovery point holds (H5).
    TakeOver<'a> for Pg as varying, rows RowSql,
    {
        lease_ms: i64, retention_ms: i64, attempt: i32, reconcile: i32, phases: Option<&'a str>,
        is_free: bool, event: NewEvent<'a>, trace: NewTrace<'a>, free: Free<'a>, not_locked: NotLocked<'a>,
    },
    "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, \
     locked_until = (SELECT clock_timestamp() + ", lease_ms, " * interval '1 millisecond'), \
     run_after = (SELECT clock_timestamp() + ", lease_ms, " * interval '1 millisecond'), \
     expires_at = greatest(expires_at, (SELECT clock_timestamp() + ", retention_ms, " * interval '1 millisecond')), \
     attempts = attempts + CASE WHEN open_intent IS NULL THEN ", attempt, " ELSE 0 END, reconciles = reconciles + ", reconcile,
    ", phases = coalesce(", phases, ", phases), waiting_since = CASE WHEN NOT ", is_free,
    " OR open_intent IS NOT NULL THEN waiting_since END", {event}, {trace}, {free}, " AND ", {not_locked}, " RETURNING ", [COLUMNS]
}

impl<'a> TakeOver<'a> {
    pub(super) fn new(claim: &Claim<'a>, hold: Hold) -> Self {
        Self {
            lease_ms: millis(hold.lease),
            retention_ms: millis(hold.retention),
            attempt: (claim.right == Right::Free).into(),
            reconcile: (claim.right == Right::Reconcile).into(),
            phases: claim.phases,
            is_free: claim.right == Right::Free,
            event: NewEvent(claim.event),
            trace: NewTrace(claim.trace),
            free: Free::new(claim),
            not_locked: NotLocked::new(claim.scope, claim.key),
        }
    }
}

statement! {
    /// Whether a row still is what a takeover that wrote nothing is guarded by: then its lock was held.
    StandsFree<'a> for Pg, rows Bool, { free: Free<'a> },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys", {free}, ")"
}

impl<'a> StandsFree<'a> {
    pub(super) fn new(claim: &Claim<'a>) -> Self {
        Self { free: Free::new(claim) }
    }
}

statement! {
    /// What a renewal is guarded by.
    Held<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid, token: i64 },
    " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = 'in_progress'"
}

impl<'a> Held<'a> {
    fn new(guard: &Guard<'a>) -> Self {
        Self {
            scope: guard.scope.as_str(),
            key: guard.key.as_str(),
            request_id: guard.request_id,
            token: guard.lease_token,
        }
    }
}

statement! {
    /// Extends the lease while its holder lives. The holder's own commit, or a phase of its that keeps
    /// the row locked, is a lease by itself: this never waits for it.
    Renew<'a> for Pg, rows sql_types::Untyped,
    { lease_ms: i64, retention_ms: i64, held: Held<'a>, not_locked: NotLocked<'a> },
    "UPDATE atomic_phases_keys SET locked_until = (SELECT clock_timestamp() + ", lease_ms,
    " * interval '1 millisecond'), run_after = (SELECT clock_timestamp() + ", lease_ms,
    " * interval '1 millisecond'), \
     expires_at = greatest(expires_at, (SELECT clock_timestamp() + ", retention_ms,
    " * interval '1 millisecond'))", {held}, " AND ", {not_locked}
}

impl<'a> Renew<'a> {
    pub(super) fn new(guard: &Guard<'a>, hold: Hold) -> Self {
        Self {
            lease_ms: millis(hold.lease),
            retention_ms: millis(hold.retention),
            held: Held::new(guard),
            not_locked: NotLocked::new(guard.scope, guard.key),
        }
    }
}

statement! {
    /// As [`StandsFree`], of a renewal.
    StandsHeld<'a> for Pg, rows Bool, { held: Held<'a> },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys", {held}, ")"
}

impl<'a> StandsHeld<'a> {
    pub(super) fn new(guard: &Guard<'a>) -> Self {
        Self { held: Held::new(guard) }
    }
}

statement! {
    /// The same of a guarded write.
    StandsGuarded<'a> for Pg, rows Bool, { guarded: Guarded<'a> },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys", {guarded}, ")"
}

/// Where a row stands, and what a process must know to go on with it.
const PLACE: &str = "scope, idempotency_key, definition, definition_version, phases, status, \
    recovery_point, open_intent, reason";

type SurveySql =
    (Integer, (Text, Text), (Text, Integer, Text), (Text, Text, Nullable<Text>, Nullable<Text>));

statement! {
    /// Unfinished rows, bounded: those that the partial indexes have, and, of the rows that were created
    /// last, those that are not finished and that no partial index has: that are in progress, or in a status that only
    /// a later build knows.
    ///
    /// The last part is there where the youngest rows are more than were looked at: the oldest of those was
    /// created a moment ago.
    Survey for Pg, rows SurveySql,
    { limit: i64, again: i64, once_more: i64, behind: i64, youth_ms: i64 },
    "SELECT * FROM (SELECT 0, ", [PLACE], " FROM atomic_phases_keys WHERE run_after IS NOT NULL \
     ORDER BY run_after LIMIT ", limit, ") AS due \
     UNION ALL SELECT * FROM (SELECT 1, ", [PLACE], " FROM atomic_phases_keys \
     WHERE waiting_since IS NOT NULL ORDER BY waiting_since LIMIT ", again, ") AS waiting \
     UNION ALL SELECT 2, ", [PLACE], " FROM (SELECT * FROM atomic_phases_keys \
     ORDER BY expires_at DESC LIMIT ", once_more, ") AS latest \
     WHERE status <> 'completed' AND run_after IS NULL AND waiting_since IS NULL \
     UNION ALL SELECT 3, ", [PLACE], " FROM (SELECT * FROM atomic_phases_keys \
     ORDER BY expires_at DESC OFFSET ", behind, " LIMIT 1) AS oldest \
     WHERE created_at > statement_timestamp() - ", youth_ms, " * interval '1 millisecond'"
}

impl Survey {
    pub(super) fn of(limit: u32, youth: Duration) -> Self {
        let (limit, youth_ms) = (i64::from(limit), millis(youth));
        Self { limit, again: limit, once_more: limit, behind: limit - 1, youth_ms }
    }
}

statement! {
    /// The outputs alone, for a word about a request that may be finished.
    Outputs<'a> for Pg, rows Nullable<Binary>,
    { scope: &'a str, key: &'a str },
    "SELECT outputs FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The parameters alone, where the fingerprints of two requests differ.
    ParamsAndContext<'a> for Pg, rows (Binary, Nullable<Binary>),
    { scope: &'a str, key: &'a str, request_id: Uuid },
    "SELECT params, context FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// The scope's keys that are not past their retention, counted up to a cap (G16). Read from the
    /// primary key's index alone, before and behind the reserved keys of requests that had none; how many
    /// expired ones it may pass over is bounded too.
    CountKeys<'a> for Pg, rows BigInt,
    { scope: &'a str, most: i64, cap: i64 },
    "SELECT count(*) FROM (SELECT FROM ((SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key < '~keyless:' ORDER BY idempotency_key LIMIT ", most,
    ") UNION ALL (SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key >= '~keyless;' ORDER BY idempotency_key LIMIT ", most,
    ")) AS seen WHERE expires_at > statement_timestamp() LIMIT ", cap, ") AS live"
}

// The workers' looks compare with `statement_timestamp()`: an index can be searched for it, and not for
// the volatile `clock_timestamp()`. They take no lock, and no guarantee rests on them.

statement! {
    /// A bounded part of the index of due rows, from one place on: rows of every status that a worker
    /// looks for, so that none of them can stand in another's way.
    DueKeys<'a> for Pg, rows (Timestamptz, Text, Text, Text, BigInt, Text, Integer, Bool, SqlUuid),
    { grace_ms: i64, run_after: DateTime<Utc>, scope: &'a str, key: &'a str, limit: i64 },
    "SELECT run_after, scope, idempotency_key, status::text, lease_token, definition, \
     definition_version, run_after <= statement_timestamp() - ", grace_ms, " * interval '1 millisecond', \
     request_id FROM atomic_phases_keys WHERE run_after <= statement_timestamp() \
     AND (run_after, scope, idempotency_key) > (", run_after, ", ", scope, ", ", key, ") \
     ORDER BY run_after, scope, idempotency_key LIMIT ", limit
}

statement! {
    /// A bounded part of the index of expiry, from one place on. Of the rows that are read there, those in
    /// progress that the index of due rows does not have; and, of a full page, where it ends.
    HeldKeys<'a> for Pg, rows (Timestamptz, Text, Text, SqlUuid, BigInt, BigInt, Bool),
    {
        from: DateTime<Utc>, to: DateTime<Utc>, expires_at: DateTime<Utc>, scope: &'a str, key: &'a str,
        limit: i64, again: i64,
    },
    "WITH read AS MATERIALIZED (SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     locked_until, status = 'in_progress' AND run_after IS NULL AS is_held FROM atomic_phases_keys \
     WHERE expires_at >= ", from, " AND expires_at <= ", to,
    " AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key, ") \
     ORDER BY expires_at, scope, idempotency_key LIMIT ", limit, ") \
     SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     coalesce(extract(epoch FROM greatest(locked_until - statement_timestamp(), interval '0')) * 1000, 0)\
     ::bigint, false FROM read WHERE is_held \
     UNION ALL (SELECT expires_at, scope, idempotency_key, request_id, lease_token, 0::bigint, true FROM read \
     WHERE (SELECT count(*) FROM read) = ", again,
    " ORDER BY expires_at DESC, scope DESC, idempotency_key DESC LIMIT 1)"
}

statement! {
    /// What the entry of such a row is guarded by: nobody has it by now.
    Abandoned<'a> for Pg, rows sql_types::Untyped, { held: Held<'a> },
    {held}, " AND run_after IS NULL AND locked_until <= (SELECT clock_timestamp())"
}

impl<'a> Abandoned<'a> {
    fn new(held: &'a HeldKey) -> Self {
        let (scope, key) = (held.scope.as_str(), held.key.as_str());
        let (request_id, token) = (held.request_id, held.lease_token);
        Self { held: Held { scope, key, request_id, token } }
    }
}

statement! {
    /// Enters such a row in the index of due rows. Never waits for its lock: the rows behind it would wait as long.
    Enrol<'a> for Pg, rows sql_types::Untyped, { abandoned: Abandoned<'a>, not_locked: NotLocked<'a> },
    "UPDATE atomic_phases_keys SET run_after = locked_until", {abandoned}, " AND ", {not_locked}
}

impl<'a> Enrol<'a> {
    pub(super) fn new(held: &'a HeldKey) -> Self {
        Self { abandoned: Abandoned::new(held), not_locked: NotLocked::new(&held.scope, &held.key) }
    }
}

statement! {
    /// As [`StandsFree`], of such an entry.
    StandsAbandoned<'a> for Pg, rows Bool, { abandoned: Abandoned<'a> },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys", {abandoned}, ")"
}

impl<'a> StandsAbandoned<'a> {
    pub(super) fn new(held: &'a HeldKey) -> Self {
        Self { abandoned: Abandoned::new(held) }
    }
}

statement! {
    /// A bounded part of the expired rows, from one place on.
    ExpiredKeys<'a> for Pg, rows (Timestamptz, Text, Text, SqlUuid),
    { expires_at: DateTime<Utc>, scope: &'a str, key: &'a str, limit: i64 },
    "SELECT expires_at, scope, idempotency_key, request_id FROM atomic_phases_keys \
     WHERE expires_at <= statement_timestamp() AND status = 'completed' \
     AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key, ") \
     ORDER BY expires_at, scope, idempotency_key LIMIT ", limit
}

statement! {
    /// Deletes an expired row that still is completed and expired when it is locked (G15). Never waits
    /// for the lock: it holds those of other scopes' rows by then (G16).
    Reap<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid, again: &'a str, key_again: &'a str },
    "DELETE FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= statement_timestamp() \
     AND EXISTS (SELECT 1 FROM atomic_phases_keys WHERE scope = ", again, " AND idempotency_key = ",
    key_again, " FOR UPDATE SKIP LOCKED)"
}

/// When a job is due that waits for another one of its request: not before the end of that one makes it due.
/// So a search never meets it, however many wait (G16). A time that any client can read.
pub(super) const WAITS: &str = "timestamptz '9999-12-31 00:00:00+00'";

// Whether it is a job's turn: no earlier one of the same request is still to be delivered; a dead letter does not
// count. And no later one is under way, as it may be where an operator lets an earlier one try again: it was claimed,
// and no reason says how its delivery ended. Of a job that nobody let try again the later ones, of which
// there may be many, are not read. A notice waits for none, and none waits for it: its position is 2^62 or more.
//
// A query that ends with the scope is given its own: `j.scope`, or where one job is asked for by a distributed
// table, the parameter. There no shard is known for it otherwise.

const NONE_BEFORE: &str = "NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id \
    AND other.run_after IS NOT NULL AND other.position < j.position AND j.position < 4611686018427387904)";

const NONE_BEHIND: &str = " AND (j.forgiven_attempts = 0 OR NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.request_id = j.request_id AND other.position > j.position AND other.position < 4611686018427387904 \
    AND other.attempts > 0 AND other.reason IS NULL AND other.run_after > statement_timestamp() \
    AND other.scope = ";

const DEAD_BEFORE: &str = " FROM atomic_phases_staged_jobs AS dead WHERE dead.request_id = j.request_id \
    AND dead.position < j.position AND dead.run_after IS NULL AND dead.scope = ";

statement! {
    /// A bounded part of the index of due jobs, from one place on, with what tells whether it is a
    /// job's turn.
    DueJobs<'a> for Pg, rows (Timestamptz, Text, SqlUuid, BigInt, Integer, Text, Bool),
    {
        run_after: DateTime<Utc>, scope: &'a str, request_id: Uuid, position: i64, limit: i64,
    },
    "SELECT run_after, scope, request_id, position, attempts, name, ", [NONE_BEFORE],
    [NONE_BEHIND], "j.scope)) FROM atomic_phases_staged_jobs AS j WHERE run_after <= statement_timestamp() \
     AND (run_after, scope, request_id, position) > (", run_after, ", ", scope, ", ", request_id,
    ", ", position, ") ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// It is the job's turn, and will be until this is committed: none of the dead jobs in front of it is about to be
    /// revived, for each of them is locked. The turn sees only what was committed when the statement began.
    IsNext<'a> for Pg, rows sql_types::Untyped, { behind: &'a str, dead: &'a str, locked: &'a str },
    [NONE_BEFORE], [NONE_BEHIND], behind, ")) AND (SELECT count(*)", [DEAD_BEFORE], dead,
    ") = (SELECT count(*) FROM (SELECT", [DEAD_BEFORE], locked, " FOR SHARE SKIP LOCKED) AS locked)"
}

type JobSql = (Text, SqlUuid, Text, Binary, Integer, Integer, BigInt, Nullable<Binary>);

statement! {
    /// Acquires the right to deliver a job: `attempts` is its fencing token.
    ClaimJob<'a> for Pg, rows JobSql,
    {
        lease_ms: i64, scope: &'a str, request_id: Uuid, position: i64, attempts: i32,
        is_next: IsNext<'a>,
    },
    "UPDATE atomic_phases_staged_jobs AS j SET attempts = attempts + 1, \
     reason = NULL, run_after = (SELECT clock_timestamp() + ", lease_ms, " * interval '1 millisecond') \
     WHERE scope = ", scope, " AND request_id = ", request_id, " AND position = ", position,
    " AND attempts = ", attempts, " AND run_after <= (SELECT clock_timestamp()) AND ", {is_next},
    " RETURNING idempotency_key, job_id, name, args, attempts, forgiven_attempts, \
     (extract(epoch FROM (SELECT clock_timestamp()) - staged_at) * 1000)::bigint, trace"
}

impl<'a> ClaimJob<'a> {
    pub(super) fn new(at: &'a JobAt, lease: Duration) -> Self {
        let scope = at.scope.as_str();
        Self {
            lease_ms: millis(lease),
            scope,
            request_id: at.request_id,
            position: at.position,
            attempts: at.attempts.cast_signed(),
            is_next: IsNext { behind: scope, dead: scope, locked: scope },
        }
    }
}

statement! {
    /// Jobs, each with its fencing token, and their numbers.
    Given for Pg, rows sql_types::Untyped,
    { scopes: Vec<String>, requests: Vec<Uuid>, positions: Vec<i64>, attempts: Vec<i32> },
    "unnest(", scopes, ", ", requests, ", ", positions, ", ", attempts,
    ") WITH ORDINALITY AS given (scope, request_id, position, attempts, number)"
}

impl Given {
    fn new(at: &[JobAt]) -> Self {
        Self {
            scopes: at.iter().map(|at| at.scope.as_str().to_owned()).collect(),
            requests: at.iter().map(|at| at.request_id).collect(),
            positions: at.iter().map(|at| at.position).collect(),
            attempts: at.iter().map(|at| at.attempts.cast_signed()).collect(),
        }
    }
}

/// A job as it was given.
const IS_GIVEN: &str = "j.scope = given.scope AND j.request_id = given.request_id \
    AND j.position = given.position AND j.attempts = given.attempts";

statement! {
    /// How a statement about many rows is planned: by the key, and once for a connection. For few rows at hand the
    /// server would plan anew each time: of arrays that it does not know it expects ten elements.
    ByKey for Pg, rows sql_types::Untyped, {},
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), \
     set_config('enable_mergejoin', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)"
}

statement! {
    /// [`ClaimJob`] of many. Never waits for a lock: it holds those of other scopes' jobs by then (G16), and two
    /// that claim the same jobs must not wait for each other.
    ClaimJobs for Pg, rows (BigInt, JobSql),
    { given: Given, lease_ms: i64 },
    "UPDATE atomic_phases_staged_jobs AS j SET attempts = j.attempts + 1, reason = NULL, \
     run_after = clock.lease_ends FROM ", {given}, ", (SELECT clock_timestamp() AS now, clock_timestamp() + ",
    lease_ms, " * interval '1 millisecond' AS lease_ends OFFSET 0) AS clock WHERE ", [IS_GIVEN],
    " AND j.run_after <= clock.now AND EXISTS (SELECT FROM atomic_phases_staged_jobs AS free \
     WHERE free.scope = given.scope AND free.request_id = given.request_id \
     AND free.position = given.position FOR UPDATE SKIP LOCKED) AND ",
    [NONE_BEFORE], [NONE_BEHIND], "j.scope)) AND (SELECT count(*)", [DEAD_BEFORE],
    "j.scope) = (SELECT count(*) FROM (SELECT", [DEAD_BEFORE],
    "j.scope FOR SHARE SKIP LOCKED) AS locked) RETURNING given.number, j.idempotency_key, j.job_id, j.name, \
     j.args, j.attempts, j.forgiven_attempts, \
     (extract(epoch FROM clock.now - j.staged_at) * 1000)::bigint, j.trace"
}

impl ClaimJobs {
    pub(super) fn new(at: &[JobAt], lease: Duration) -> Self {
        Self { lease_ms: millis(lease), given: Given::new(at) }
    }
}

statement! {
    /// [`JobDelivered`] of many, each of another request.
    JobsDelivered for Pg, rows BigInt, { given: Given },
    "WITH ended AS (DELETE FROM atomic_phases_staged_jobs AS j USING ", {given}, " WHERE ", [IS_GIVEN],
    " RETURNING j.scope, j.request_id, j.position, given.number), \
     made_due AS (UPDATE atomic_phases_staged_jobs AS j SET run_after = (SELECT clock_timestamp()) FROM ended, \
     LATERAL (SELECT n.position FROM atomic_phases_staged_jobs AS n WHERE n.scope = ended.scope \
     AND n.request_id = ended.request_id AND n.position > ended.position AND n.run_after IS NOT NULL \
     ORDER BY n.position LIMIT 1) AS next WHERE j.scope = ended.scope AND j.request_id = ended.request_id \
     AND j.position = next.position AND j.run_after = ", [WAITS], ") SELECT number FROM ended"
}

impl JobsDelivered {
    pub(super) fn new(at: &[JobAt]) -> Self {
        Self { given: Given::new(at) }
    }
}

statement! {
    /// What a word about a delivery is guarded by: the fencing token.
    Claimed<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, request_id: Uuid, position: i64, attempts: i32 },
    " WHERE scope = ", scope, " AND request_id = ", request_id, " AND position = ", position,
    " AND attempts = ", attempts
}

impl<'a> Claimed<'a> {
    fn new(at: &'a JobAt) -> Self {
        Self {
            scope: at.scope.as_str(),
            request_id: at.request_id,
            position: at.position,
            attempts: at.attempts.cast_signed(),
        }
    }
}

statement! {
    /// Behind a job that has `ended`, the next that waits is due.
    MakeNextDue<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, request_id: Uuid, again: &'a str, once_more: Uuid },
    "UPDATE atomic_phases_staged_jobs AS j SET run_after = (SELECT clock_timestamp()) FROM ended, \
     LATERAL (SELECT n.position FROM atomic_phases_staged_jobs AS n WHERE n.scope = ", scope,
    " AND n.request_id = ", request_id, " AND n.position > ended.position AND n.run_after IS NOT NULL \
     ORDER BY n.position LIMIT 1) AS next WHERE j.scope = ", again, " AND j.request_id = ", once_more,
    " AND j.position = next.position AND j.run_after = ", [WAITS]
}

impl<'a> MakeNextDue<'a> {
    fn new(at: &'a JobAt) -> Self {
        let (scope, request_id) = (at.scope.as_str(), at.request_id);
        Self { scope, request_id, again: scope, once_more: request_id }
    }
}

statement! {
    /// A job that was delivered.
    JobDelivered<'a> for Pg, rows BigInt, { claimed: Claimed<'a>, next: MakeNextDue<'a> },
    "WITH ended AS (DELETE FROM atomic_phases_staged_jobs", {claimed},
    " RETURNING position), made_due AS (", {next}, ") SELECT count(*) FROM ended"
}

impl<'a> JobDelivered<'a> {
    pub(super) fn new(at: &'a JobAt) -> Self {
        Self { claimed: Claimed::new(at), next: MakeNextDue::new(at) }
    }
}

statement! {
    /// A job that is a dead letter.
    JobDead<'a> for Pg, rows BigInt, { reason: &'a str, claimed: Claimed<'a>, next: MakeNextDue<'a> },
    "WITH ended AS (UPDATE atomic_phases_staged_jobs SET run_after = NULL, reason = ", reason, {claimed},
    " RETURNING position), made_due AS (", {next}, ") SELECT count(*) FROM ended"
}

impl<'a> JobDead<'a> {
    pub(super) fn new(at: &'a JobAt, reason: &'a str) -> Self {
        Self { reason, claimed: Claimed::new(at), next: MakeNextDue::new(at) }
    }
}

statement! {
    /// A job that was not delivered, and is due again later. Those of later phases, which are due, wait for it.
    JobPutBack<'a> for Pg, rows BigInt,
    {
        back_off_ms: i64, forgiven: i32, reason: &'a str, claimed: Claimed<'a>, scope: &'a str,
        request_id: Uuid,
    },
    "WITH put_back AS (UPDATE atomic_phases_staged_jobs SET run_after = (SELECT clock_timestamp() + ", back_off_ms,
    " * interval '1 millisecond'), forgiven_attempts = least(attempts, forgiven_attempts + ", forgiven,
    "), reason = ", reason, {claimed}, " RETURNING position), \
     waits AS (UPDATE atomic_phases_staged_jobs AS j SET run_after = ", [WAITS],
    " FROM put_back WHERE j.scope = ", scope, " AND j.request_id = ", request_id,
    " AND j.position > put_back.position AND j.position < 4611686018427387904 AND j.run_after <= (SELECT clock_timestamp())) SELECT count(*) FROM put_back"
}

impl<'a> JobPutBack<'a> {
    pub(super) fn new(at: &'a JobAt, after: Duration, counts: bool, reason: &'a str) -> Self {
        Self {
            back_off_ms: millis(after),
            forgiven: (!counts).into(),
            reason,
            claimed: Claimed::new(at),
            scope: at.scope.as_str(),
            request_id: at.request_id,
        }
    }
}

/// What an operator sees of a job.
const LISTED: &str = "SELECT scope, request_id, job_id, name, attempts, reason, staged_at \
    FROM atomic_phases_staged_jobs WHERE run_after ";

type ListedSql = (Text, SqlUuid, SqlUuid, Text, Integer, Nullable<Text>, Timestamptz);

statement! {
    /// A page of the jobs that are dead letters.
    ListDeadJobs<'a> for Pg, rows ListedSql,
    { scope: &'a str, job_id: Uuid, limit: i64 },
    [LISTED], "IS NULL AND (scope, job_id) > (", scope, ", ", job_id,
    ") ORDER BY scope, job_id LIMIT ", limit
}

statement! {
    /// The jobs that have been due for longest.
    ListOverdueJobs for Pg, rows ListedSql,
    { overdue_ms: i64, limit: i64 },
    [LISTED], "<= statement_timestamp() - ", overdue_ms, " * interval '1 millisecond' \
     ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// Staged jobs, bounded, by the indexes of due ones and of dead letters.
    SurveyJobs for Pg, rows (Integer, Text, Nullable<Binary>),
    { most: i64, limit: i64, most_again: i64, again: i64 },
    "SELECT * FROM (SELECT 0 AS dead, name, CASE WHEN octet_length(args) <= ", most, " THEN args END AS args \
     FROM atomic_phases_staged_jobs WHERE run_after IS NOT NULL ORDER BY run_after LIMIT ", limit,
    ") AS due UNION ALL SELECT * FROM (SELECT 1 AS dead, name, CASE WHEN octet_length(args) <= ", most_again,
    " THEN args END AS args FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     ORDER BY staged_at LIMIT ", again, ") AS dead_letters"
}

impl SurveyJobs {
    pub(super) fn of(limit: u32, most_bytes: u32) -> Self {
        let (limit, most) = (i64::from(limit), i64::from(most_bytes));
        Self { most, limit, most_again: most, again: limit }
    }
}

// Erasure. Of a settled row whose jobs are settled too, what users gave goes, and with it the
// fingerprint: a hash of parameters that have few possible values tells them. The row stays, as a
// finished one, and so keeps its key from being run again.

pub(super) const ERASE: &str = "WITH erased AS (UPDATE atomic_phases_keys AS k SET status = 'completed', \
    recovery_point = 'finished', fingerprint = 'erased', open_intent = NULL, locked_until = NULL, \
    run_after = NULL, resolution = NULL, reason = NULL, events = NULL, events_written = NULL, trace = NULL, \
    waiting_since = NULL, params = '', context = NULL, outputs = NULL, \
    response_status = coalesce(k.response_status, 410), response_headers = NULL, \
    response_body = NULL, expires_at = CASE WHEN k.status = 'completed' THEN k.expires_at \
    ELSE greatest(k.expires_at, (SELECT clock_timestamp() + ";
pub(super) const SETTLED: &str = " AND k.status IN ('completed', 'dead_letter') AND NOT EXISTS \
    (SELECT 1 FROM atomic_phases_staged_jobs AS j WHERE j.scope = k.scope \
    AND j.run_after IS NOT NULL AND j.";
pub(super) const ERASED_JOBS: &str = ") RETURNING k.scope, k.idempotency_key), \
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
    /// Erases a bounded batch of a scope's settled rows, but for those that another transaction has locked.
    EraseScope<'a> for Pg, rows BigInt,
    { retention_ms: i64, scope: &'a str, again: &'a str, limit: i64 },
    [ERASE], retention_ms, " * interval '1 millisecond')) END WHERE k.scope = ", scope,
    " AND k.idempotency_key IN (SELECT s.idempotency_key FROM atomic_phases_keys AS s \
     WHERE s.scope = ", again, " AND s.status IN ('completed', 'dead_letter') \
     AND s.fingerprint <> 'erased' AND NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS j \
     WHERE j.scope = s.scope AND j.request_id = s.request_id AND j.run_after IS NOT NULL) LIMIT ",
    limit, " FOR NO KEY UPDATE SKIP LOCKED)", [SETTLED], "request_id = k.request_id", [ERASED_JOBS],
    [COUNT_ERASED]
}

statement! {
    /// A bounded batch of the dead jobs of keys that were reaped, or erased in a later life.
    EraseOrphanedJobs<'a> for Pg, rows sql_types::Untyped,
    {
        scope: &'a str, again: &'a str, is_any: bool, key: &'a str, limit: i64,
    },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND (request_id, position) IN (SELECT j.request_id, j.position \
     FROM atomic_phases_staged_jobs AS j WHERE j.run_after IS NULL AND j.scope = ", again,
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
    /// What a scope's erasure has left.
    CountUnerased<'a> for Pg, rows BigInt,
    { scope: &'a str },
    "SELECT count(*) FROM atomic_phases_keys WHERE fingerprint <> 'erased' AND scope = ", scope
}

statement! {
    /// The jobs that are dead letters.
    DeadJobs for Pg, rows BigInt, {},
    "SELECT count(*) FROM atomic_phases_staged_jobs WHERE run_after IS NULL"
}

/// The fencing token grows: what an earlier holder says of the job, late or once more, is of another life.
const REVIVE: &str = "UPDATE atomic_phases_staged_jobs SET run_after = (SELECT clock_timestamp()), \
    attempts = attempts + 1, forgiven_attempts = attempts + 1 WHERE run_after IS NULL";

statement! {
    /// An operator's word: all dead letters are delivered again, with a new count of attempts.
    ReviveJobs for Pg, rows sql_types::Untyped, {}, [REVIVE]
}

statement! {
    /// The same for one.
    ReviveJob<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, job_id: Uuid },
    [REVIVE], " AND scope = ", scope, " AND job_id = ", job_id
}

statement! {
    /// An operator's word: this dead letter is never delivered.
    DiscardJob<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, job_id: Uuid },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id
}

#[cfg(feature = "fault-injection")]
statement! {
    /// The row's lease and its back-off are over.
    PassTime<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str },
    "UPDATE atomic_phases_keys SET \
     locked_until = CASE WHEN locked_until IS NOT NULL THEN created_at END, \
     run_after = CASE WHEN run_after IS NOT NULL THEN created_at END \
     WHERE scope = ", scope, " AND idempotency_key = ", key
}

#[cfg(feature = "fault-injection")]
statement! {
    /// The end of this connection, by the server's hand.
    Terminate for Pg, rows Bool, {}, "SELECT pg_terminate_backend(pg_backend_pid())"
}
