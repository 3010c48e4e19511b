//! Every statement of a request. What is written behind a row's lock takes its time from `SYSDATE`, which is
//! the time of the assignment, and not that of the statement's begin, in front of the wait.
//!
//! An UPDATE assigns from left to right, and each expression sees what was assigned before it. So a column
//! that decides about others, `status` or `recovery_point`, is assigned last.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, BigInt};

use uuid::Uuid;

use super::rows::{KeySummarySql, RowSql};
use crate::key::{IdempotencyKey, Scope};
use crate::phase::StagedJob;
use crate::store::in_millis::InMillis;
use crate::store::row::millis;
use crate::store::statement::{push_bind, statement};
use crate::store::{Change, Claim, Guard, Hold, NewRow, Right, Status};

pub(super) use super::erasure::*;
pub(super) use super::job_statements::*;
pub(super) use super::rows::*;
pub(super) use super::searches::*;

/// Means the same in any time zone of the session.
impl InMillis for Db {
    const NOW: &'static str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)";
    const CLOCK: &'static str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)";
    const AMONG: [&'static str; 3] = ["FIND_IN_SET(HEX(", "), ", ") > 0"];

    /// No text has a comma in hex, and none is like another in some collation.
    fn list(texts: &[String]) -> String {
        let hex =
            |text: &String| text.bytes().map(|byte| format!("{byte:02X}")).collect::<String>();
        texts.iter().map(hex).collect::<Vec<_>>().join(",")
    }
}

pub(super) const NOW: &str = Db::NOW;
pub(super) const CLOCK: &str = Db::CLOCK;

/// When a job is due that waits for another one of its request: not before the end of that one makes it due.
/// So a search never meets it, however many wait (G16). The last day of the year 9999.
pub(super) const WAITS: &str = "253402214400000";

/// The columns of a [`StoredRow`]. What a run needs stays behind where the row is completed.
pub(super) const COLUMNS: &str = "request_id, definition, definition_version, fingerprint, \
    status, recovery_point, open_intent, lease_token, attempts, \
    forgiven_attempts, reconciles, resolution, phases, reason, \
    CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED), locked_until, run_after, \
    waiting_since, advanced_at, created_at, expires_at, \
    CASE WHEN status <> 'completed' THEN params END, \
    CASE WHEN status <> 'completed' THEN context END, \
    CASE WHEN status <> 'completed' THEN outputs END, trace, \
    response_status, response_headers, response_body";

statement! {
    /// The key's row, if there is one.
    Read for Db, rows RowSql,
    { scope: String, key: String },
    "SELECT ", [COLUMNS], " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

/// The columns of a [`StoredKeySummary`].
const SEEN: &str = "request_id, definition, definition_version, fingerprint, status, lease_token, \
    CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED), locked_until, run_after, expires_at, \
    trace, response_status, response_headers, response_body";

statement! {
    /// What a call has to see of the key's row. A replay is this statement and no other.
    Look for Db, rows KeySummarySql,
    { scope: String, key: String },
    "SELECT ", [SEEN], " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

impl Look {
    pub(super) fn at(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

impl Read {
    pub(super) fn of(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

statement! {
    /// Makes room for a new life of a key whose request is finished and expired.
    DeleteExpired for Db, rows sql_types::Untyped,
    { scope: String, key: String, request_id: Vec<u8> },
    "DELETE FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= ", [CLOCK]
}

impl DeleteExpired {
    pub(super) fn of(row: &NewRow<'_>, request_id: Uuid) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: request_id.as_bytes().to_vec(),
        }
    }
}

statement! {
    /// Reserves the key: creates the row, or violates the primary key where there is one (G10).
    Insert for Db, rows sql_types::Untyped,
    {
        scope: String, key: String, request_id: Vec<u8>, definition: String, version: i32,
        phases: String, fingerprint: String, status: String, first: i32,
        lease_ms: Option<i64>, due_ms: Option<i64>, retention_ms: i64, params: Vec<u8>,
        context: Option<Vec<u8>>, trace: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, run_after, advanced_at, created_at, expires_at, params, context, trace) \
     VALUES (", scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", 'started', ", first, ", ", first, ", ", [CLOCK], " + ", lease_ms,
    ", ", [CLOCK], " + ", due_ms, ", ", [CLOCK], ", ", [CLOCK], ", ", [CLOCK], " + ", retention_ms, ", ", params,
    ", ", context, ", ", trace, ")"
}

impl Insert {
    pub(super) fn new(row: &NewRow<'_>) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: row.request_id.as_bytes().to_vec(),
            definition: row.definition.to_owned(),
            version: row.version.cast_signed(),
            phases: row.phases.to_owned(),
            fingerprint: row.fingerprint.to_owned(),
            status: row.birth.status().as_str().to_owned(),
            first: row.birth.attempts(),
            lease_ms: row.birth.lease().map(millis),
            due_ms: row.birth.due().map(millis),
            retention_ms: millis(row.retention),
            params: row.params.to_vec(),
            context: row.context.map(<[u8]>::to_vec),
            trace: row.trace.map(<[u8]>::to_vec),
        }
    }
}

statement! {
    /// Creates the row as its first phase leaves it, or violates the primary key where there is one.
    Create for Db, rows sql_types::Untyped,
    {
        scope: String, key: String, request_id: Vec<u8>, definition: String, version: i32,
        phases: String, fingerprint: String, status: String, to: String, first: i32,
        lease_ms: Option<i64>, due_ms: Option<i64>, created_at: i64, retention_ms: i64, params: Vec<u8>,
        context: Option<Vec<u8>>, trace: Option<Vec<u8>>, outputs: Option<Vec<u8>>, response_status: Option<i16>,
        response_headers: Option<Vec<u8>>, response_body: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, run_after, advanced_at, created_at, expires_at, params, context, trace, outputs, \
     response_status, response_headers, response_body) \
     VALUES (", scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", ", to, ", ", first, ", ", first, ", ", [CLOCK], " + ", lease_ms,
    ", ", [CLOCK], " + ", due_ms, ", ", [CLOCK], ", ", created_at, ", ", [CLOCK], " + ", retention_ms, ", ", params, ", ",
    context, ", ", trace, ", ", outputs, ", ", response_status, ", ", response_headers, ", ", response_body, ")"
}

impl Create {
    pub(super) fn new(row: &NewRow<'_>, created_at: DateTime<Utc>, change: &Change<'_>) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: row.request_id.as_bytes().to_vec(),
            definition: row.definition.to_owned(),
            version: row.version.cast_signed(),
            phases: row.phases.to_owned(),
            fingerprint: row.fingerprint.to_owned(),
            status: change.status.as_str().to_owned(),
            to: change.recovery_point.to_owned(),
            first: row.birth.attempts(),
            lease_ms: change.lease().map(millis),
            due_ms: row.birth.due().map(millis),
            created_at: created_at.timestamp_millis(),
            retention_ms: millis(row.retention),
            params: row.params.to_vec(),
            context: row.context.map(<[u8]>::to_vec),
            trace: row.trace.map(<[u8]>::to_vec),
            outputs: change.outputs.map(<[u8]>::to_vec),
            response_status: change.response.map(|response| response.status.cast_signed()),
            response_headers: change.response.map(|response| response.headers.clone()),
            response_body: change.response.and_then(|response| response.body.clone()),
        }
    }
}

statement! {
    /// The times of a row that was just created, in its transaction.
    Times for Db, rows (BigInt, BigInt, BigInt),
    { scope: String, key: String },
    "SELECT created_at, advanced_at, expires_at FROM atomic_phases_keys WHERE scope = ", scope,
    " AND idempotency_key = ", key
}

impl Times {
    pub(super) fn of(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

statement! {
    /// Locks the row for a transaction that keeps what it saw at its beginning, if it is as the guard says:
    /// the heartbeat would change it behind its back.
    Pin for Db, rows BigInt,
    { scope: String, key: String, request_id: Vec<u8>, token: i64, from: String },
    "SELECT lease_token FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND recovery_point = ", from,
    " AND status = 'in_progress' FOR UPDATE"
}

impl Pin {
    pub(super) fn new(guard: &Guard<'_>) -> Self {
        Self {
            scope: guard.scope.as_str().to_owned(),
            key: guard.key.as_str().to_owned(),
            request_id: guard.request_id.as_bytes().to_vec(),
            token: guard.lease_token,
            from: guard.recovery_point.to_owned(),
        }
    }
}

statement! {
    /// The database's clock.
    Now for Db, rows BigInt, {}, "SELECT ", [CLOCK]
}

/// A [line](crate::store::events::line) behind those that the row has, with its time; nothing, where there is none.
pub(super) struct NewEvent(Option<String>);

impl NewEvent {
    fn of(line: Option<&str>) -> Self {
        Self(line.map(str::to_owned))
    }
}

impl QueryFragment<Db> for NewEvent {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        let Some(line) = &self.0 else { return Ok(()) };
        out.push_sql(
            ", events_written = coalesce(events_written, 0) + 1, events = RIGHT(CONCAT(coalesce(events, ''), ",
        );
        push_bind(&mut out, line)?;
        out.push_sql(", ");
        out.push_sql(NOW);
        out.push_sql("), 4000)");
        Ok(())
    }
}

/// The trace that the row has from now on; nothing, where it stays.
pub(super) struct NewTrace(Option<Vec<u8>>);

impl NewTrace {
    fn of(trace: Option<&[u8]>) -> Self {
        Self(trace.map(<[u8]>::to_vec))
    }
}

impl QueryFragment<Db> for NewTrace {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        let Some(trace) = &self.0 else { return Ok(()) };
        out.push_sql(", trace = ");
        push_bind(&mut out, trace)
    }
}

statement! {
    /// Acquires the lease of a row that is free, or our own after a commit of unknown outcome.
    TakeOver for Db as varying, rows sql_types::Untyped,
    {
        lease_ms: i64, retention_ms: i64, attempt: i32, reconcile: i32, phases: Option<String>,
        free: bool, event: NewEvent, trace: NewTrace, scope: String, key: String, request_id: Vec<u8>, token: i64, from: String,
        stands_at: Option<String>, own: bool,
    },
    "UPDATE atomic_phases_keys SET lease_token = lease_token + 1, \
     locked_until = ", [NOW], " + ", lease_ms, ", run_after = ", [NOW], " + ", lease_ms,
    ", expires_at = GREATEST(expires_at, ", [NOW], " + ", retention_ms, "), \
     attempts = attempts + CASE WHEN open_intent IS NULL THEN ", attempt, " ELSE 0 END, reconciles = reconciles + ", reconcile, ", phases = coalesce(", phases,
    ", phases), waiting_since = CASE WHEN NOT ", free,
    " OR open_intent IS NOT NULL THEN waiting_since END", {event}, {trace}, ", status = 'in_progress' WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = ", from,
    " AND recovery_point = coalesce(", stands_at, ", recovery_point) AND (status <> 'in_progress' OR ", own,
    " OR coalesce(locked_until <= ", [NOW], ", true))"
}

impl TakeOver {
    pub(super) fn new(claim: &Claim<'_>, hold: Hold) -> Self {
        Self {
            lease_ms: millis(hold.lease),
            retention_ms: millis(hold.retention),
            attempt: (claim.right == Right::Free).into(),
            reconcile: (claim.right == Right::Reconcile).into(),
            phases: claim.phases.map(str::to_owned),
            free: claim.right == Right::Free,
            event: NewEvent::of(claim.event),
            trace: NewTrace::of(claim.trace),
            scope: claim.scope.as_str().to_owned(),
            key: claim.key.as_str().to_owned(),
            request_id: claim.request_id.as_bytes().to_vec(),
            token: claim.lease_token,
            from: claim.status.as_str().to_owned(),
            stands_at: claim.recovery_point.map(str::to_owned),
            own: claim.right == Right::Own,
        }
    }
}

statement! {
    /// The next state of a row, guarded by lease token and recovery point (G3, G6).
    Write for Db as varying, rows sql_types::Untyped,
    {
        status: String, to: String,
        outputs: Option<Vec<u8>>, open_intent: Option<String>, lease_ms: Option<i64>,
        due_ms: Option<i64>, held: bool, resolution: Option<String>, window: bool, outcome: bool, attempts: bool,
        response_status: Option<i16>, response_headers: Option<Vec<u8>>,
        response_body: Option<Vec<u8>>, scope: String, key: String, request_id: Vec<u8>,
        forgiven: i32, no_attempt: i32, reason: Option<String>, waits: bool, event: NewEvent, token: i64, from: String,
    },
    "UPDATE atomic_phases_keys SET advanced_at = CASE WHEN recovery_point = ", to, " AND NOT ", window,
    " THEN advanced_at ELSE ", [NOW], " END, outputs = coalesce(", outputs, ", outputs), open_intent = ", open_intent,
    ", locked_until = ", [NOW], " + ", lease_ms,
    ", run_after = CASE WHEN NOT ", held, " OR run_after IS NOT NULL OR created_at < ", [NOW],
    " - 5000 THEN ", [NOW], " + ", due_ms, " END, resolution = coalesce(", resolution,
    ", resolution), reconciles = CASE WHEN ", outcome, " THEN 0 ELSE reconciles END, \
     forgiven_attempts = CASE WHEN ", attempts, " THEN attempts ELSE LEAST(attempts, forgiven_attempts + ", forgiven, ") END, \
     attempts = attempts - ", no_attempt, ", reason = coalesce(", reason, ", reason), waiting_since = CASE WHEN ", waits,
    " THEN coalesce(waiting_since, ", [NOW], ") END, response_status = ", response_status,
    ", response_headers = ", response_headers, ", response_body = ", response_body, {event},
    ", status = ", status, ", recovery_point = ", to, " WHERE scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
    " AND lease_token = ", token, " AND recovery_point = ", from, " AND status = 'in_progress'"
}

impl Write {
    pub(super) fn new(guard: &Guard<'_>, change: &Change<'_>) -> Self {
        Self {
            status: change.status.as_str().to_owned(),
            to: change.recovery_point.to_owned(),
            outputs: change.outputs.map(<[u8]>::to_vec),
            open_intent: change.open_intent.map(str::to_owned),
            lease_ms: change.lease().map(millis),
            due_ms: change.due().map(millis),
            held: change.status == Status::InProgress,
            resolution: change.resolution.map(str::to_owned),
            window: change.settles.window(),
            outcome: change.settles.outcome(),
            attempts: change.settles.attempts(),
            forgiven: change.forgiven_attempts.cast_signed(),
            no_attempt: change.was_no_attempt.into(),
            reason: change.reason.map(str::to_owned),
            waits: change.waits(),
            event: NewEvent::of(change.event),
            response_status: change.response.map(|response| response.status.cast_signed()),
            response_headers: change.response.map(|response| response.headers.clone()),
            response_body: change.response.and_then(|response| response.body.clone()),
            scope: guard.scope.as_str().to_owned(),
            key: guard.key.as_str().to_owned(),
            request_id: guard.request_id.as_bytes().to_vec(),
            token: guard.lease_token,
            from: guard.recovery_point.to_owned(),
        }
    }
}

statement! {
    /// Extends the lease while its holder lives.
    Renew for Db, rows sql_types::Untyped,
    {
        lease_ms: i64, retention_ms: i64, scope: String, key: String, request_id: Vec<u8>, token: i64,
    },
    "UPDATE atomic_phases_keys SET locked_until = ", [NOW], " + ", lease_ms,
    ", run_after = ", [NOW], " + ", lease_ms, ", expires_at = GREATEST(expires_at, ", [NOW], " + ",
    retention_ms, ") WHERE scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
    " AND lease_token = ", token, " AND status = 'in_progress'"
}

impl Renew {
    pub(super) fn new(guard: &Guard<'_>, hold: Hold) -> Self {
        Self {
            lease_ms: millis(hold.lease),
            retention_ms: millis(hold.retention),
            scope: guard.scope.as_str().to_owned(),
            key: guard.key.as_str().to_owned(),
            request_id: guard.request_id.as_bytes().to_vec(),
            token: guard.lease_token,
        }
    }
}

statement! {
    /// A staged job, in the transaction of the phase that stages it (G18).
    InsertJob for Db, rows sql_types::Untyped,
    {
        scope: String, job_id: Vec<u8>, key: String, request_id: Vec<u8>, position: i64,
        name: String, args: Vec<u8>, waits: bool, trace: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_staged_jobs (scope, job_id, idempotency_key, request_id, position, \
     name, args, staged_at, run_after, trace) VALUES (", scope, ", ", job_id, ", ", key, ", ", request_id, ", ",
    position, ", ", name, ", ", args, ", ", [NOW], ", CASE WHEN ", waits, " THEN ", [WAITS], " ELSE ", [NOW],
    " END, ", trace, ")"
}

impl InsertJob {
    pub(super) fn new(guard: &Guard<'_>, job: &StagedJob) -> Self {
        Self {
            scope: guard.scope.as_str().to_owned(),
            job_id: job.id.as_bytes().to_vec(),
            key: guard.key.as_str().to_owned(),
            request_id: guard.request_id.as_bytes().to_vec(),
            position: job.position,
            name: job.name.clone(),
            args: job.args.clone(),
            waits: job.is_behind_another(),
            trace: job.trace.map(|trace| trace.to_vec()),
        }
    }
}
