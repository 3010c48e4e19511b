//! Every statement that the engine sends to PostgreSQL.
//!
//! Each names the distribution column `scope`, touches one row of one table, and is prepared once
//! for each connection. Times are `clock_timestamp()`: `now()` is the transaction's start (H12).

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{
    BigInt, Binary, Bool, Integer, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid,
};
use diesel::{QueryResult, sql_types};
use uuid::Uuid;

use crate::definition::Isolation;
use crate::phase::StagedJob;
use crate::store::row::millis;
use crate::store::statement::{Bind, statement};
use crate::store::{Change, Claim, Guard, NewRow, Right, Status};

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
    bool => Bool,
    i64 => BigInt,
    i32 => Integer,
    Option<i16> => Nullable<SmallInt>,
    Uuid => SqlUuid,
    &[u8] => Binary,
    Option<&[u8]> => Nullable<Binary>,
}

/// `BEGIN`, with the isolation level said, whatever the session's default is (R7).
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
    /// Settings of this transaction only, so that they pass through any pooler:
    /// a bound for row locks, two bounds for a client that is gone (H13), and the mark by which the
    /// guarded update knows that it still is in the transaction that the engine began (H7).
    Settings for Pg, rows sql_types::Untyped,
    { lock_timeout: Option<String>, idle_timeout: String },
    "SELECT set_config('lock_timeout', coalesce(", lock_timeout, ", current_setting('lock_timeout')), true), \
     set_config('idle_in_transaction_session_timeout', ", idle_timeout, ", true), \
     set_config('client_connection_check_interval', '500', true), \
     set_config('atomic_phases.transaction', 'ours', true)"
}

statement! {
    /// Gives the phase the lock timeout that its session had.
    ResetLockTimeout for Pg, rows sql_types::Untyped, {}, "SET LOCAL lock_timeout TO DEFAULT"
}

impl Settings {
    pub(super) fn new(lock_wait: Option<Duration>, idle: Duration) -> Self {
        Self {
            lock_timeout: lock_wait.map(|wait| wait.as_millis().max(1).to_string()),
            idle_timeout: idle.as_millis().to_string(),
        }
    }
}

/// The columns of a [`Row`]. What a run needs stays behind where the row is completed.
const COLUMNS: &str = "request_id, definition, definition_version, fingerprint, \
    status, recovery_point, open_intent, lease_token, attempts, \
    coalesce(extract(epoch FROM locked_until - clock_timestamp()) * 1000, 0)::bigint, \
    coalesce(extract(epoch FROM run_after - clock_timestamp()) * 1000, 0)::bigint, \
    (extract(epoch FROM clock_timestamp() - advanced_at) * 1000)::bigint, \
    created_at, expires_at, expires_at <= clock_timestamp(), \
    CASE WHEN status <> 'completed' THEN params END, \
    CASE WHEN status <> 'completed' THEN context END, \
    CASE WHEN status <> 'completed' THEN outputs END, \
    response_status, response_headers, response_body";

type RowSql = (
    (SqlUuid, Text, Integer, Text),
    (Text, Text, Nullable<Text>, BigInt, Integer),
    (BigInt, BigInt, BigInt, Timestamptz, Timestamptz, Bool),
    (Nullable<Binary>, Nullable<Binary>, Nullable<Binary>),
    (Nullable<SmallInt>, Nullable<Binary>, Nullable<Binary>),
);

statement! {
    /// The key's row, if there is one. A replay is this statement and no other.
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
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= clock_timestamp()"
}

statement! {
    /// Reserves the key: creates the row, or returns no row where there is one (G10). Waits for a
    /// transaction that is about to create it.
    Insert<'a> for Pg, rows (Timestamptz, Timestamptz),
    {
        scope: &'a str, key: &'a str, request_id: Uuid, definition: &'a str, version: i32,
        phases_hash: &'a str, fingerprint: &'a str, lease_ms: i64, retention_ms: i64,
        params: &'a [u8], context: Option<&'a [u8]>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases_hash, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, advanced_at, created_at, expires_at, params, context) \
     SELECT ", scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases_hash, ", ", fingerprint, ", 'in_progress', 'started', 1, 1, \
     t + ", lease_ms, " * interval '1 millisecond', t, t, t + ", retention_ms,
    " * interval '1 millisecond', ", params, ", ", context, " FROM clock_timestamp() AS t \
     ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING created_at, expires_at"
}

pub(super) type Times = (DateTime<Utc>, DateTime<Utc>);

impl<'a> Insert<'a> {
    pub(super) fn new(row: &NewRow<'a>) -> Self {
        Self {
            scope: row.scope.as_str(),
            key: row.key.as_str(),
            request_id: row.request_id,
            definition: row.definition,
            version: row.version.cast_signed(),
            phases_hash: row.phases_hash,
            fingerprint: row.fingerprint,
            lease_ms: millis(row.lease),
            retention_ms: millis(row.retention),
            params: row.params,
            context: row.context,
        }
    }
}

statement! {
    /// Acquires the lease of a row. The token that was read guards it: of two that try, one wins
    /// (G10). Either the row is free: released, or its holder let the lease run out. Or it is our
    /// own, after a commit that got no answer: then this waits for the lock of that commit, fences
    /// it off if it never arrived, and returns which recovery point holds (H5).
    TakeOver<'a> for Pg, rows RowSql,
    {
        lease_ms: i64, attempt: i32, scope: &'a str, key: &'a str, request_id: Uuid, token: i64,
        own: bool,
    },
    "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, \
     locked_until = clock_timestamp() + ", lease_ms, " * interval '1 millisecond', \
     run_after = NULL, attempts = attempts + ", attempt,
    " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token,
    " AND (status IN ('failed_retryable', 'pending') OR (status = 'in_progress' AND (", own,
    " OR coalesce(locked_until <= clock_timestamp(), true)))) RETURNING ", [COLUMNS]
}

impl<'a> TakeOver<'a> {
    pub(super) fn new(claim: &Claim<'a>, lease: Duration) -> Self {
        let own = claim.right == Right::Own;
        Self {
            lease_ms: millis(lease),
            // Going on after an unanswered commit is not another attempt.
            attempt: if own { 0 } else { 1 },
            scope: claim.scope.as_str(),
            key: claim.key.as_str(),
            request_id: claim.request_id,
            token: claim.lease_token,
            own,
        }
    }
}

macro_rules! guarded_update {
    ($name:ident, $rows:ty, $before:literal, $after:literal) => {
        statement! {
            /// The next state of a row, guarded by lease token and recovery point (G3, G6).
            $name<'a> for Pg, rows $rows,
            {
                status: &'a str, to: &'a str, to_again: &'a str, phases_hash: &'a str,
                outputs: Option<&'a [u8]>, open_intent: Option<&'a str>, lease_ms: Option<i64>,
                back_off_ms: Option<i64>, response_status: Option<i16>,
                response_headers: Option<&'a [u8]>, response_body: Option<&'a [u8]>,
                scope: &'a str, key: &'a str, request_id: Uuid, token: i64, from: &'a str,
            },
            $before, "UPDATE atomic_phases_keys SET status = ", status,
            ", recovery_point = ", to,
            ", advanced_at = CASE WHEN recovery_point = ", to_again,
            " THEN advanced_at ELSE clock_timestamp() END, phases_hash = ", phases_hash,
            ", outputs = coalesce(", outputs, ", outputs), open_intent = ", open_intent,
            ", locked_until = clock_timestamp() + ", lease_ms, " * interval '1 millisecond'",
            ", run_after = clock_timestamp() + ", back_off_ms, " * interval '1 millisecond'",
            ", response_status = ", response_status, ", response_headers = ", response_headers,
            ", response_body = ", response_body,
            " WHERE scope = ", scope, " AND idempotency_key = ", key,
            " AND request_id = ", request_id, " AND lease_token = ", token,
            " AND recovery_point = ", from, " AND status = 'in_progress'", $after
        }

        impl<'a> $name<'a> {
            pub(super) fn new(guard: &Guard<'a>, change: &Change<'a>) -> Self {
                let held = change.status == Status::InProgress;
                Self {
                    status: change.status.as_str(),
                    to: change.recovery_point,
                    to_again: change.recovery_point,
                    phases_hash: change.phases_hash,
                    outputs: change.outputs,
                    open_intent: change.open_intent,
                    lease_ms: held.then(|| millis(change.hold)),
                    back_off_ms: (!held).then(|| millis(change.hold)),
                    response_status: change.response.map(|response| response.status.cast_signed()),
                    response_headers: change.response.map(|response| &*response.headers),
                    response_body: change.response.and_then(|response| response.body.as_deref()),
                    scope: guard.scope.as_str(),
                    key: guard.key.as_str(),
                    request_id: guard.request_id,
                    token: guard.lease_token,
                    from: guard.recovery_point,
                }
            }
        }
    };
}

// In a transaction of its own: the number of rows tells.
guarded_update!(Write, sql_types::Untyped, "", "");

// Last in a phase's transaction, with COMMIT right behind it: no row has to be an error, which turns
// that COMMIT into a rollback. The cast of a text that is no number raises one, and carries our mark
// through a server of any language.
guarded_update!(
    Advance,
    Integer,
    "WITH advanced AS (",
    " AND current_setting('atomic_phases.transaction', true) = 'ours' RETURNING 1) \
     SELECT CASE WHEN count(*) = 1 THEN 1 \
     WHEN current_setting('atomic_phases.transaction', true) = 'ours' \
     THEN ('atomic_phases:fenced:' || count(*))::integer \
     ELSE ('atomic_phases:left:' || count(*))::integer END FROM advanced"
);

/// What [`Advance`] raises where the lease is somebody else's.
pub(super) const MARK_FENCED: &str = "atomic_phases:fenced:";
/// What [`Advance`] raises outside of the transaction that the engine began.
pub(super) const MARK_LEFT: &str = "atomic_phases:left:";

statement! {
    /// Extends the lease while its holder lives.
    Renew<'a> for Pg, rows sql_types::Untyped,
    { lease_ms: i64, scope: &'a str, key: &'a str, request_id: Uuid, token: i64 },
    "UPDATE atomic_phases_keys SET locked_until = clock_timestamp() + ", lease_ms,
    " * interval '1 millisecond' WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = 'in_progress'"
}

impl<'a> Renew<'a> {
    pub(super) fn new(guard: &Guard<'a>, lease: Duration) -> Self {
        Self {
            lease_ms: millis(lease),
            scope: guard.scope.as_str(),
            key: guard.key.as_str(),
            request_id: guard.request_id,
            token: guard.lease_token,
        }
    }
}

statement! {
    /// A staged job, in the transaction of the phase that stages it, and in no other: after a raw
    /// COMMIT of the phase it would be committed by itself (G18).
    InsertJob<'a> for Pg, rows sql_types::Untyped,
    {
        scope: &'a str, job_id: Uuid, key: &'a str, request_id: Uuid, position: i64,
        name: &'a str, args: &'a [u8],
    },
    "INSERT INTO atomic_phases_staged_jobs (scope, job_id, idempotency_key, request_id, position, \
     name, args, staged_at) SELECT ", scope, ", ", job_id, ", ", key, ", ", request_id, ", ",
    position, ", ", name, ", ", args, ", clock_timestamp() \
     WHERE current_setting('atomic_phases.transaction', true) = 'ours'"
}

impl<'a> InsertJob<'a> {
    pub(super) fn new(guard: &Guard<'a>, job: &'a StagedJob) -> Self {
        Self {
            scope: guard.scope.as_str(),
            job_id: job.id,
            key: guard.key.as_str(),
            request_id: guard.request_id,
            position: job.position,
            name: &job.name,
            args: &job.args,
        }
    }
}

type SurveySql = (Text, Integer, Text, Text, Text, BigInt);

statement! {
    /// The unfinished rows by what a process must know to continue them (G14). Scans the table: for
    /// start-up and the command line.
    Survey for Pg, rows SurveySql, {},
    "SELECT definition, definition_version, phases_hash, recovery_point, status, count(*) \
     FROM atomic_phases_keys WHERE status <> 'completed' GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 4, 5"
}
