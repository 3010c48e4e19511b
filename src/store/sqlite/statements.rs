//! Every statement that the engine sends to SQLite: those of `store::postgres::statements`, with
//! owned values, because they are executed on another thread.
//!
//! `unixepoch('subsec')` is the clock; it stands still within one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, BigInt, Binary, Bool, Integer, Nullable, Text};
use diesel::sqlite::Sqlite as Db;

use crate::key::{IdempotencyKey, Scope};
use crate::phase::StagedJob;
use crate::store::in_millis::InMillis;
pub(super) use crate::store::in_millis::*;
use crate::store::row::millis;
use crate::store::statement::{push_bind, statement};
use crate::store::{
    Change, Claim, Guard, Hold, JobAt, JobRow, NewRow, Right, Seen, Status, StoreError,
    Undelivered, due,
};

impl InMillis for Db {
    const NOW: &'static str = "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";
    const CLOCK: &'static str = Self::NOW;
    const AMONG: [&'static str; 3] = ["", " IN (SELECT value FROM json_each(", "))"];

    /// A JSON array.
    fn list(texts: &[String]) -> String {
        serde_json::to_string(texts).unwrap_or_default()
    }
}

/// Milliseconds since 1970.
pub(super) const NOW: &str = Db::NOW;

/// When a job is due that waits for another one of its request: not before the end of that one makes it due.
/// So a search never meets it, however many wait (G16). The last day of the year 9999.
const WAITS: &str = "253402214400000";

/// The columns of a [`StoredRow`]. What a run needs stays behind where the row is completed.
pub(super) const COLUMNS: &str = "request_id, definition, definition_version, fingerprint, \
    status, recovery_point, open_intent, lease_token, attempts, \
    forgiven_attempts, reconciles, resolution, phases, reason, \
    CAST(round(unixepoch('subsec') * 1000) AS INTEGER), locked_until, run_after, \
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
    CAST(round(unixepoch('subsec') * 1000) AS INTEGER), locked_until, run_after, expires_at, \
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
    /// The file of the database, where there is one with a write-ahead log.
    LoggedFile for Db, rows Text, {},
    "SELECT file FROM pragma_database_list, pragma_journal_mode \
     WHERE name = 'main' AND file <> '' AND journal_mode = 'wal'"
}

statement! {
    /// Makes room for a new life of a key whose request is finished and expired.
    DeleteExpired for Db, rows sql_types::Untyped,
    { scope: String, key: String, request_id: Vec<u8> },
    "DELETE FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= ", [NOW]
}

statement! {
    /// Reserves the key: creates the row, or returns no row where there is one (G10).
    Insert for Db, rows (BigInt, BigInt),
    {
        scope: String, key: String, request_id: Vec<u8>, definition: String, version: i32,
        phases: String, fingerprint: String, status: String, first: i32,
        lease_ms: Option<i64>, due_ms: Option<i64>, retention_ms: i64, params: Vec<u8>,
        context: Option<Vec<u8>>, trace: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, run_after, advanced_at, created_at, expires_at, params, context, trace) \
     SELECT ", scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", 'started', ", first, ", ", first,
    ", t + ", lease_ms, ", t + ", due_ms, ", t, t, t + ", retention_ms, ", ", params, ", ", context, ", ", trace,
    " FROM (SELECT ", [NOW], " AS t) WHERE true \
     ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING created_at, expires_at"
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
    /// Creates the row as its first phase leaves it, or returns no row where there is one.
    Create for Db, rows (BigInt, BigInt),
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
     SELECT ", scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", ", to, ", ", first, ", ", first, ", t + ", lease_ms,
    ", t + ", due_ms, ", t, ", created_at, ", t + ", retention_ms, ", ", params, ", ", context, ", ", trace, ", ", outputs, ", ",
    response_status, ", ", response_headers, ", ", response_body,
    " FROM (SELECT ", [NOW], " AS t) WHERE true \
     ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING advanced_at, expires_at"
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
    /// The database's clock.
    Now for Db, rows BigInt, {}, "SELECT ", [NOW]
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
            ", events_written = coalesce(events_written, 0) + 1, events = substr(coalesce(events, '') || ",
        );
        push_bind(&mut out, line)?;
        out.push_sql(" || ");
        out.push_sql(NOW);
        out.push_sql(", -4000)");
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
    TakeOver for Db as varying, rows RowSql,
    {
        lease_ms: i64, retention_ms: i64, attempt: i32, reconcile: i32, phases: Option<String>,
        free: bool, event: NewEvent, trace: NewTrace, scope: String, key: String, request_id: Vec<u8>, token: i64, from: String,
        stands_at: Option<String>, own: bool,
    },
    "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, \
     locked_until = ", [NOW], " + ", lease_ms, ", run_after = ", [NOW], " + ", lease_ms,
    ", expires_at = max(expires_at, ", [NOW], " + ", retention_ms, "), \
     attempts = attempts + CASE WHEN open_intent IS NULL THEN ", attempt, " ELSE 0 END, reconciles = reconciles + ", reconcile, ", phases = coalesce(", phases,
    ", phases), waiting_since = CASE WHEN NOT ", free,
    " OR open_intent IS NOT NULL THEN waiting_since END", {event}, {trace}, " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = ", from,
    " AND recovery_point = coalesce(", stands_at, ", recovery_point) AND (status <> 'in_progress' OR ", own,
    " OR coalesce(locked_until <= ", [NOW], ", true)) RETURNING ", [COLUMNS]
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
    "UPDATE atomic_phases_keys SET status = ", status, ", recovery_point = ", to,
    ", advanced_at = CASE WHEN recovery_point = ", to, " AND NOT ", window,
    " THEN advanced_at ELSE ", [NOW], " END, outputs = coalesce(", outputs, ", outputs), open_intent = ", open_intent,
    ", locked_until = ", [NOW], " + ", lease_ms,
    ", run_after = CASE WHEN NOT ", held, " OR run_after IS NOT NULL OR created_at < ", [NOW],
    " - 5000 THEN ", [NOW], " + ", due_ms, " END, resolution = coalesce(", resolution,
    ", resolution), reconciles = CASE WHEN ", outcome, " THEN 0 ELSE reconciles END, \
     forgiven_attempts = CASE WHEN ", attempts, " THEN attempts ELSE min(attempts, forgiven_attempts + ", forgiven, ") END, \
     attempts = attempts - ", no_attempt, ", reason = coalesce(", reason, ", reason), waiting_since = CASE WHEN ", waits,
    " THEN coalesce(waiting_since, ", [NOW], ") END, response_status = ", response_status,
    ", response_headers = ", response_headers, ", response_body = ", response_body, {event},
    " WHERE scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
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
    ", run_after = ", [NOW], " + ", lease_ms, ", expires_at = max(expires_at, ", [NOW], " + ",
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

/// Where a row stands, and what a process must know to go on with it.
const PLACE: &str = "scope, idempotency_key, definition, definition_version, phases, status, \
    recovery_point, open_intent, reason";

type SurveySql =
    (Integer, (Text, Text), (Text, Integer, Text), (Text, Text, Nullable<Text>, Nullable<Text>));

statement! {
    /// Unfinished rows, bounded: those that the partial indexes have, and, of the rows that were created
    /// last, those that are in progress and that no partial index has yet.
    ///
    /// The last part is there where the youngest rows are more than were looked at.
    Survey for Db, rows SurveySql,
    { limit: i64, again: i64, once_more: i64, behind: i64, youth_ms: i64 },
    "SELECT * FROM (SELECT 0, ", [PLACE], " FROM atomic_phases_keys WHERE run_after IS NOT NULL \
     ORDER BY run_after LIMIT ", limit, ") AS due \
     UNION ALL SELECT * FROM (SELECT 1, ", [PLACE], " FROM atomic_phases_keys \
     WHERE waiting_since IS NOT NULL ORDER BY waiting_since LIMIT ", again, ") AS waiting \
     UNION ALL SELECT 2, ", [PLACE], " FROM (SELECT * FROM atomic_phases_keys \
     ORDER BY expires_at DESC LIMIT ", once_more, ") AS latest \
     WHERE status = 'in_progress' AND run_after IS NULL \
     UNION ALL SELECT 3, ", [PLACE], " FROM (SELECT * FROM atomic_phases_keys \
     ORDER BY expires_at DESC LIMIT 1 OFFSET ", behind, ") AS oldest WHERE created_at > ", [NOW], " - ",
    youth_ms
}

impl Survey {
    pub(super) fn of(limit: u32, youth: Duration) -> Self {
        let (limit, youth_ms) = (i64::from(limit), millis(youth));
        Self { limit, again: limit, once_more: limit, behind: limit - 1, youth_ms }
    }
}

statement! {
    /// The outputs alone, for a word about a request that may be finished.
    Outputs for Db, rows Nullable<Binary>,
    { scope: String, key: String },
    "SELECT outputs FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The parameters alone, where the fingerprints of two requests differ.
    ParamsAndContext for Db, rows (Binary, Nullable<Binary>),
    { scope: String, key: String, request_id: Vec<u8> },
    "SELECT params, context FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// The scope's keys that are not past their retention, counted up to a cap (G16): before and behind the
    /// reserved keys of requests that had none.
    CountKeys for Db, rows BigInt,
    { scope: String, most: i64, cap: i64 },
    "SELECT count(*) FROM (SELECT 1 FROM (SELECT * FROM (SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key < '~keyless:' ORDER BY idempotency_key LIMIT ", most,
    ") UNION ALL SELECT * FROM (SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key >= '~keyless;' ORDER BY idempotency_key LIMIT ", most,
    ")) WHERE expires_at > ", [NOW], " LIMIT ", cap, ")"
}

statement! {
    /// A bounded part of the index of due rows, from one place on.
    DueKeys for Db, rows (BigInt, Text, Text, Text, BigInt, Text, BigInt, Bool, Binary),
    { grace_ms: i64, run_after: i64, scope: String, key: String, limit: i64 },
    "SELECT run_after, scope, idempotency_key, status, lease_token, definition, definition_version, \
     run_after <= ", [NOW], " - ", grace_ms, ", request_id FROM atomic_phases_keys WHERE run_after <= ", [NOW],
    " AND (run_after, scope, idempotency_key) > (", run_after, ", ", scope, ", ", key,
    ") ORDER BY run_after, scope, idempotency_key LIMIT ", limit
}

statement! {
    /// A bounded part of the index of expiry, from one place on. Of the rows that are read there, those in
    /// progress that the index of due rows does not have; and, of a full page, where it ends.
    HeldKeys for Db, rows (BigInt, Text, Text, Binary, BigInt, BigInt, Bool),
    {
        from: i64, to: i64, expires_at: i64, scope: String, key: String, limit: i64, again: i64,
    },
    "WITH read AS MATERIALIZED (SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     locked_until, status = 'in_progress' AND run_after IS NULL AS is_held FROM atomic_phases_keys \
     WHERE expires_at >= ", from, " AND expires_at <= ", to,
    " AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key,
    ") ORDER BY expires_at, scope, idempotency_key LIMIT ", limit,
    ") SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     max(0, coalesce(locked_until, 0) - ", [NOW], "), false FROM read WHERE is_held \
     UNION ALL SELECT * FROM (SELECT expires_at, scope, idempotency_key, request_id, lease_token, 0, true \
     FROM read WHERE (SELECT count(*) FROM read) = ", again,
    " ORDER BY expires_at DESC, scope DESC, idempotency_key DESC LIMIT 1)"
}

statement! {
    /// Enters such a row in the index of due rows, unless somebody has it by now.
    Enrol for Db, rows sql_types::Untyped,
    { scope: String, key: String, request_id: Vec<u8>, token: i64 },
    "UPDATE atomic_phases_keys SET run_after = locked_until WHERE scope = ", scope,
    " AND idempotency_key = ", key, " AND request_id = ", request_id, " AND lease_token = ", token,
    " AND status = 'in_progress' AND run_after IS NULL AND locked_until <= ", [NOW]
}

statement! {
    /// A bounded batch of expired rows (G15).
    Reap for Db, rows sql_types::Untyped,
    { limit: i64 },
    "DELETE FROM atomic_phases_keys WHERE rowid IN (SELECT rowid FROM atomic_phases_keys \
     WHERE expires_at <= ", [NOW], " AND status = 'completed' ORDER BY expires_at LIMIT ", limit,
    ")"
}

/// No earlier job of the same request is still to be delivered; a dead letter does not count. And no
/// later one is under way, as it may be where an operator lets an earlier one try again: it was claimed,
/// and no reason says how its delivery ended. Of a job that nobody let try again the later ones, of which
/// there may be many, are not read.
const IS_NEXT: &str = "NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id \
    AND other.run_after IS NOT NULL AND other.position < j.position AND j.position < 4611686018427387904) \
    AND (j.forgiven_attempts = 0 OR NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id AND other.position > j.position \
    AND other.attempts > 0 AND other.reason IS NULL \
    AND other.run_after > CAST(round(unixepoch('subsec') * 1000) AS INTEGER)))";

statement! {
    /// A bounded part of the index of due jobs, from one place on, with what tells whether it is a
    /// job's turn.
    DueJobs for Db, rows (BigInt, Text, Binary, BigInt, BigInt, Text, Bool),
    { run_after: i64, scope: String, request_id: Vec<u8>, position: i64, limit: i64 },
    "SELECT run_after, scope, request_id, position, attempts, name, ", [IS_NEXT],
    " FROM atomic_phases_staged_jobs AS j WHERE run_after <= ", [NOW],
    " AND (run_after, scope, request_id, position) > (", run_after, ", ", scope, ", ", request_id,
    ", ", position, ") ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// Acquires the right to deliver a job: `attempts` is its fencing token.
    ClaimJob for Db, rows (Text, Binary, Text, Binary, Integer, Integer, BigInt, Nullable<Binary>),
    { lease_ms: i64, scope: String, request_id: Vec<u8>, position: i64, attempts: i32 },
    "UPDATE atomic_phases_staged_jobs AS j SET attempts = attempts + 1, reason = NULL, run_after = ", [NOW],
    " + ", lease_ms, " WHERE scope = ", scope, " AND request_id = ", request_id,
    " AND position = ", position, " AND attempts = ", attempts, " AND run_after <= ", [NOW],
    " AND ", [IS_NEXT], " RETURNING idempotency_key, job_id, name, args, attempts, \
     forgiven_attempts, ", [NOW], " - staged_at, trace"
}

impl ClaimJob {
    pub(super) fn new(at: &JobAt, lease: Duration) -> Self {
        Self {
            lease_ms: millis(lease),
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
            attempts: at.attempts.cast_signed(),
        }
    }
}

statement! {
    /// What a word about a delivery is guarded by: the fencing token.
    Claimed for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64, attempts: i32 },
    " WHERE scope = ", scope, " AND request_id = ", request_id, " AND position = ", position,
    " AND attempts = ", attempts
}

impl Claimed {
    fn new(at: &JobAt) -> Self {
        Self {
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
            attempts: at.attempts.cast_signed(),
        }
    }
}

statement! {
    /// A job that was delivered.
    JobDelivered for Db, rows sql_types::Untyped, { claimed: Claimed },
    "DELETE FROM atomic_phases_staged_jobs", {claimed}
}

impl JobDelivered {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { claimed: Claimed::new(at) }
    }
}

statement! {
    /// A job that was not delivered: due again later, or, without a back-off, a dead letter.
    JobFailed for Db, rows sql_types::Untyped,
    { back_off_ms: Option<i64>, forgiven: i32, reason: String, claimed: Claimed },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW], " + ", back_off_ms,
    ", forgiven_attempts = min(attempts, forgiven_attempts + ", forgiven, "), reason = ", reason, {claimed}
}

impl JobFailed {
    pub(super) fn new(at: &JobAt, becomes: Undelivered, reason: &str) -> Self {
        let (back_off, counts) = match becomes {
            Undelivered::Again(after) => (Some(after), true),
            Undelivered::Left => (Some(Duration::ZERO), false),
            Undelivered::Dead => (None, true),
        };
        Self {
            back_off_ms: back_off.map(millis),
            forgiven: (!counts).into(),
            reason: reason.to_owned(),
            claimed: Claimed::new(at),
        }
    }
}

statement! {
    /// Behind a job that has ended, the next that waits is due.
    MakeNextDue for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, again: String, once_more: Vec<u8>, position: i64 },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW], " WHERE scope = ", scope,
    " AND request_id = ", request_id, " AND run_after = ", [WAITS], " AND position = (SELECT n.position \
     FROM atomic_phases_staged_jobs AS n WHERE n.scope = ", again, " AND n.request_id = ", once_more,
    " AND n.position > ", position, " AND n.run_after IS NOT NULL ORDER BY n.position LIMIT 1)"
}

impl MakeNextDue {
    pub(super) fn new(at: &JobAt) -> Self {
        let scope = at.scope.as_str().to_owned();
        let request_id = at.request_id.as_bytes().to_vec();
        let (again, once_more) = (scope.clone(), request_id.clone());
        Self { scope, request_id, again, once_more, position: at.position }
    }
}

statement! {
    /// The jobs of later phases, which are due, wait for one that was put back.
    LetOthersWait for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64 },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [WAITS], " WHERE scope = ", scope,
    " AND request_id = ", request_id, " AND position > ", position, " AND position < 4611686018427387904 \
     AND run_after <= ", [NOW]
}

impl LetOthersWait {
    pub(super) fn new(at: &JobAt) -> Self {
        Self {
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
        }
    }
}

/// What an operator sees of a job.
const LISTED: &str = "SELECT scope, request_id, job_id, name, attempts, reason, staged_at \
    FROM atomic_phases_staged_jobs WHERE run_after ";

type ListedSql = (Text, Binary, Binary, Text, BigInt, Nullable<Text>, BigInt);

statement! {
    /// Staged jobs, bounded, by the indexes of due ones and of dead letters.
    SurveyJobs for Db, rows (Integer, Text, Nullable<Binary>),
    { most: i64, limit: i64, most_again: i64, again: i64 },
    "SELECT * FROM (SELECT 0 AS dead, name, CASE WHEN length(args) <= ", most, " THEN args END AS args \
     FROM atomic_phases_staged_jobs WHERE run_after IS NOT NULL ORDER BY run_after LIMIT ", limit,
    ") AS due UNION ALL SELECT * FROM (SELECT 1 AS dead, name, CASE WHEN length(args) <= ", most_again,
    " THEN args END AS args FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     ORDER BY staged_at LIMIT ", again, ") AS dead_letters"
}

impl SurveyJobs {
    pub(super) fn of(limit: u32, most_bytes: u32) -> Self {
        let (limit, most) = (i64::from(limit), i64::from(most_bytes));
        Self { most, limit, most_again: most, again: limit }
    }
}

statement! {
    /// A page of the jobs that are dead letters.
    ListDeadJobs for Db, rows ListedSql,
    { scope: String, job_id: Vec<u8>, limit: i64 },
    [LISTED], "IS NULL AND (scope, job_id) > (", scope, ", ", job_id,
    ") ORDER BY scope, job_id LIMIT ", limit
}

statement! {
    /// The jobs that have been due for longest.
    ListOverdueJobs for Db, rows ListedSql,
    { overdue_ms: i64, limit: i64 },
    [LISTED], "<= ", [NOW], " - ", overdue_ms,
    " ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

// Erasure: see the other store. SQLite has no statement that both updates and deletes, so the dead
// jobs of erased rows go after them, in the same transaction.

const ERASE: &str = "UPDATE atomic_phases_keys AS k SET status = 'completed', \
    recovery_point = 'finished', fingerprint = 'erased', open_intent = NULL, locked_until = NULL, \
    run_after = NULL, resolution = NULL, reason = NULL, events = NULL, events_written = NULL, trace = NULL, \
    waiting_since = NULL, params = x'', context = NULL, outputs = NULL, \
    response_status = coalesce(k.response_status, 410), response_headers = NULL, \
    response_body = NULL, expires_at = CASE WHEN k.status = 'completed' THEN k.expires_at \
    ELSE max(k.expires_at, ";
const SETTLED: &str = " AND k.status IN ('completed', 'dead_letter') AND NOT EXISTS \
    (SELECT 1 FROM atomic_phases_staged_jobs AS j WHERE j.scope = k.scope \
    AND j.run_after IS NOT NULL AND j.";

statement! {
    /// Erases one settled row. A second time finds what was not there the first time.
    EraseKey for Db, rows sql_types::Untyped,
    { retention_ms: i64, scope: String, key: String, seen: AsSeen },
    [ERASE], [NOW], " + ", retention_ms, ") END WHERE k.scope = ", scope,
    " AND k.idempotency_key = ", key, " AND ", {seen}, [SETTLED], "idempotency_key = k.idempotency_key)"
}

statement! {
    /// Whether the row is as an operator saw it, if one did.
    AsSeen for Db, rows sql_types::Untyped,
    { request_id: Option<Vec<u8>>, token: Option<i64>, status: Option<String> },
    "coalesce(k.request_id = ", request_id, ", true) AND coalesce(k.lease_token = ", token,
    ", true) AND coalesce(k.status = ", status, ", true)"
}

impl AsSeen {
    pub(super) fn by(seen: Option<&Seen>) -> Self {
        Self {
            request_id: seen.map(|seen| seen.request_id.as_bytes().to_vec()),
            token: seen.map(|seen| seen.lease_token),
            status: seen.map(|seen| seen.status.as_str().to_owned()),
        }
    }
}

statement! {
    /// Erases a bounded batch of a scope's settled rows.
    EraseScope for Db, rows sql_types::Untyped,
    { retention_ms: i64, scope: String, limit: i64 },
    [ERASE], [NOW], " + ", retention_ms, ") END WHERE k.rowid IN (SELECT k.rowid \
     FROM atomic_phases_keys AS k WHERE k.fingerprint <> 'erased' AND k.scope = ", scope, [SETTLED],
    "request_id = k.request_id) LIMIT ", limit, ")"
}

statement! {
    /// The dead jobs of erased rows.
    EraseJobs for Db, rows sql_types::Untyped,
    { scope: String },
    "DELETE FROM atomic_phases_staged_jobs AS j WHERE j.scope = ", scope,
    " AND j.run_after IS NULL AND EXISTS (SELECT 1 FROM atomic_phases_keys AS k \
     WHERE k.scope = j.scope AND k.idempotency_key = j.idempotency_key AND k.fingerprint = 'erased')"
}

statement! {
    /// A bounded batch of the dead jobs of keys that were reaped.
    EraseOrphanedJobs for Db, rows sql_types::Untyped,
    { scope: String, is_any: bool, key: String, limit: i64 },
    "DELETE FROM atomic_phases_staged_jobs WHERE rowid IN (SELECT j.rowid \
     FROM atomic_phases_staged_jobs AS j WHERE j.run_after IS NULL AND j.scope = ", scope,
    " AND (", is_any, " OR j.idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = j.scope \
     AND k.idempotency_key = j.idempotency_key AND k.fingerprint <> 'erased') LIMIT ", limit, ")"
}

statement! {
    /// Requests whose key was reaped before their jobs were delivered.
    CountOrphans for Db, rows BigInt,
    { scope: String, is_any: bool, key: String },
    "SELECT count(DISTINCT j.request_id) FROM atomic_phases_staged_jobs AS j \
     WHERE j.run_after IS NOT NULL AND j.scope = ", scope,
    " AND (", is_any, " OR j.idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = j.scope \
     AND k.idempotency_key = j.idempotency_key AND k.request_id = j.request_id)"
}

statement! {
    /// What a scope's erasure has left.
    CountUnerased for Db, rows BigInt,
    { scope: String },
    "SELECT count(*) FROM atomic_phases_keys WHERE fingerprint <> 'erased' AND scope = ", scope
}

statement! {
    /// The jobs that are dead letters.
    DeadJobs for Db, rows BigInt, {},
    "SELECT count(*) FROM atomic_phases_staged_jobs WHERE run_after IS NULL"
}

statement! {
    /// An operator's word: all dead letters are delivered again, with a new count of attempts. The fencing
    /// token grows: what an earlier holder says of a job, late or once more, is of another life.
    ReviveJobs for Db, rows sql_types::Untyped, {},
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW],
    ", attempts = attempts + 1, forgiven_attempts = attempts + 1 WHERE run_after IS NULL"
}

statement! {
    /// The same for one.
    ReviveJob for Db, rows sql_types::Untyped,
    { scope: String, job_id: Vec<u8> },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW],
    ", attempts = attempts + 1, forgiven_attempts = attempts + 1 WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id
}

statement! {
    /// An operator's word: this dead letter is never delivered.
    DiscardJob for Db, rows sql_types::Untyped,
    { scope: String, job_id: Vec<u8> },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id
}

#[cfg(feature = "fault-injection")]
statement! {
    /// The row's lease and its back-off are over.
    PassTime for Db, rows sql_types::Untyped,
    { scope: String, key: String },
    "UPDATE atomic_phases_keys SET \
     locked_until = CASE WHEN locked_until IS NOT NULL THEN created_at END, \
     run_after = CASE WHEN run_after IS NOT NULL THEN created_at END \
     WHERE scope = ", scope, " AND idempotency_key = ", key
}

pub(super) type JobDataRow = (String, Vec<u8>, String, Vec<u8>, i32, i32, i64, Option<Vec<u8>>);

pub(super) fn job(at: &JobAt, row: JobDataRow) -> Result<JobRow, StoreError> {
    let (key, id, name, args, attempts, forgiven, lag, trace) = row;
    due::job(at, (key, uuid(&id, "job_id")?, name, args, attempts, forgiven, lag, trace))
}
