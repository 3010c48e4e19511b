//! The statements of a request: those of `store::postgres::statements`, with owned values.
//!
//! In MySQL an UPDATE assigns from left to right, and each expression sees what was assigned before it. So a column
//! that decides about others, `status` or `recovery_point`, is assigned last.

use diesel::QueryResult;
use diesel::query_builder::AstPass;
use diesel::sql_types::{self, BigInt, Binary, Nullable};
use uuid::Uuid;

use super::{InMillis, KeySummarySql, RowSql};
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::store::row::millis;
use crate::store::statement::{Part, statement};
use crate::store::{Change, Claim, Guard, Hold, NewRow, Right, Status};

/// When a job is due that waits for another one of its request: not before the end of that one makes it due.
/// So a search never meets it, however many wait (G16). The last day of the year 9999.
pub(in crate::store) const WAITS: &str = "253402214400000";

/// The columns of a [`StoredRow`](super::StoredRow), around the time of the database. What a run needs stays behind where the
/// row is completed.
pub(in crate::store) const COLUMNS: [&str; 2] = [
    "request_id, definition, definition_version, fingerprint, \
     status, recovery_point, open_intent, lease_token, attempts, \
     forgiven_attempts, reconciles, resolution, phases, reason, ",
    ", locked_until, run_after, \
     waiting_since, advanced_at, created_at, expires_at, \
     CASE WHEN status <> 'completed' THEN params END, \
     CASE WHEN status <> 'completed' THEN context END, \
     CASE WHEN status <> 'completed' THEN outputs END, trace, \
     response_status, response_headers, response_body",
];

statement! {
    /// The key's row, if there is one.
    Read in D: InMillis, rows RowSql,
    { scope: String, key: String },
    "SELECT ", (COLUMNS[0]), (D::CLOCK), (COLUMNS[1]), " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

impl Read {
    pub(in crate::store) fn of(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

/// The columns of a [`StoredKeySummary`](super::StoredKeySummary), in the same way.
const SEEN: [&str; 2] = [
    "request_id, definition, definition_version, fingerprint, status, lease_token, ",
    ", locked_until, run_after, expires_at, \
     trace, response_status, response_headers, response_body",
];

statement! {
    /// What a call has to see of the key's row. A replay is this statement and no other.
    Look in D: InMillis, rows KeySummarySql,
    { scope: String, key: String },
    "SELECT ", (SEEN[0]), (D::CLOCK), (SEEN[1]), " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

impl Look {
    pub(in crate::store) fn at(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

statement! {
    /// Makes room for a new life of a key whose request is finished and expired.
    DeleteExpired in D: InMillis, rows sql_types::Untyped,
    { scope: String, key: String, request_id: Vec<u8> },
    "DELETE FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= ", (D::CLOCK)
}

impl DeleteExpired {
    pub(in crate::store) fn of(row: &NewRow<'_>, request_id: Uuid) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: request_id.as_bytes().to_vec(),
        }
    }
}

statement! {
    /// The database's clock.
    Now in D: InMillis, rows BigInt, {}, "SELECT ", (D::CLOCK)
}

/// A [line](crate::store::events::line) behind those that the row has, with its time; nothing, where there is none.
pub(in crate::store) struct NewEvent(Option<String>);

impl NewEvent {
    fn of(line: Option<&str>) -> Self {
        Self(line.map(str::to_owned))
    }
}

impl<D: InMillis> Part<D> for NewEvent
where
    String: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        let Some(line) = &self.0 else { return Ok(()) };
        out.push_sql(", events_written = coalesce(events_written, 0) + 1, events = ");
        out.push_sql(D::LAST_4000[0]);
        out.push_sql("coalesce(events, '')");
        out.push_sql(D::LAST_4000[1]);
        line.push(out)?;
        out.push_sql(D::LAST_4000[1]);
        out.push_sql(D::NOW);
        out.push_sql(D::LAST_4000[2]);
        Ok(())
    }
}

/// The trace that the row has from now on; nothing, where it stays.
pub(in crate::store) struct NewTrace(Option<Vec<u8>>);

impl NewTrace {
    fn of(trace: Option<&[u8]>) -> Self {
        Self(trace.map(<[u8]>::to_vec))
    }
}

impl<D: InMillis> Part<D> for NewTrace
where
    Vec<u8>: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        let Some(trace) = &self.0 else { return Ok(()) };
        out.push_sql(", trace = ");
        trace.push(out)
    }
}

/// Sets the key's expiry to so many milliseconds from now, unless it is later already; nothing, where it stays.
pub(in crate::store) struct KeepFor(Option<i64>);

impl<D: InMillis> Part<D> for KeepFor
where
    i64: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        let Some(keep_for) = &self.0 else { return Ok(()) };
        out.push_sql(", expires_at = ");
        out.push_sql(D::GREATEST);
        out.push_sql("(expires_at, ");
        out.push_sql(D::NOW);
        out.push_sql(" + ");
        keep_for.push(out)?;
        out.push_sql(")");
        Ok(())
    }
}

statement! {
    /// Acquires the lease of a row that is free, or our own after a commit of unknown outcome. Where nothing was called,
    /// however long the request was queued, a provider's window begins with this attempt (G11).
    TakeOver in D: InMillis as varying, rows sql_types::Untyped,
    {
        lease_ms: i64, retention_ms: i64, opens_window: bool, attempt: i32, reconcile: i32, phases: Option<String>,
        free: bool, event: NewEvent, trace: NewTrace, scope: String, key: String, request_id: Vec<u8>, token: i64, from: String,
        stands_at: Option<String>, own: bool,
    },
    "UPDATE atomic_phases_keys", (D::BY_KEY), " SET lease_token = lease_token + 1, \
     locked_until = ", (D::NOW), " + ", lease_ms, ", run_after = ", (D::NOW), " + ", lease_ms,
    ", expires_at = ", (D::GREATEST), "(expires_at, ", (D::NOW), " + ", retention_ms,
    "), advanced_at = CASE WHEN ", opens_window, " THEN ", (D::NOW), " ELSE advanced_at END, \
     attempts = attempts + CASE WHEN open_intent IS NULL THEN ", attempt, " ELSE 0 END, reconciles = reconciles + ", reconcile, ", phases = coalesce(", phases,
    ", phases), waiting_since = CASE WHEN NOT ", free,
    " OR open_intent IS NOT NULL THEN waiting_since END", event, trace, ", status = 'in_progress' WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = ", from,
    " AND recovery_point = coalesce(", stands_at, ", recovery_point) AND (status <> 'in_progress' OR ", own,
    " OR coalesce(locked_until <= ", (D::NOW), ", true))"
}

impl TakeOver {
    pub(in crate::store) fn new(claim: &Claim<'_>, hold: Hold) -> Self {
        Self {
            lease_ms: millis(hold.lease),
            retention_ms: millis(hold.retention),
            opens_window: claim.opens_window,
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
    Write in D: InMillis as varying, rows sql_types::Untyped,
    {
        status: String, to: String,
        outputs: Option<Vec<u8>>, open_intent: Option<String>, lease_ms: Option<i64>,
        due_ms: Option<i64>, held: bool, resolution: Option<String>, window: bool, outcome: bool, attempts: bool,
        response_status: Option<i16>, response_headers: Option<Vec<u8>>,
        response_body: Option<Vec<u8>>, scope: String, key: String, request_id: Vec<u8>,
        forgiven: i32, no_attempt: i32, reason: Option<String>, waits: bool, event: NewEvent, keep_for: KeepFor, token: i64,
        from: String,
    },
    "UPDATE atomic_phases_keys", (D::BY_KEY), " SET advanced_at = CASE WHEN recovery_point = ", to, " AND NOT ", window,
    " THEN advanced_at ELSE ", (D::NOW), " END, outputs = coalesce(", outputs, ", outputs), open_intent = ", open_intent,
    ", locked_until = ", (D::NOW), " + ", lease_ms,
    ", run_after = CASE WHEN NOT ", held, " OR run_after IS NOT NULL OR created_at < ", (D::NOW),
    " - 5000 THEN ", (D::NOW), " + ", due_ms, " END, resolution = coalesce(", resolution,
    ", resolution), reconciles = CASE WHEN ", outcome, " THEN 0 ELSE reconciles END, \
     forgiven_attempts = CASE WHEN ", attempts, " THEN attempts ELSE ", (D::LEAST), "(attempts, forgiven_attempts + ", forgiven, ") END, \
     attempts = attempts - ", no_attempt, ", reason = coalesce(", reason, ", reason), waiting_since = CASE WHEN ", waits,
    " THEN coalesce(waiting_since, ", (D::NOW), ") END, response_status = ", response_status,
    ", response_headers = ", response_headers, ", response_body = ", response_body, event, keep_for,
    ", status = ", status, ", recovery_point = ", to, " WHERE scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
    " AND lease_token = ", token, " AND recovery_point = ", from, " AND status = 'in_progress'"
}

impl Write {
    pub(in crate::store) fn new(guard: &Guard<'_>, change: &Change<'_>) -> Self {
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
            keep_for: KeepFor(change.keep_for.map(millis)),
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
    Renew in D: InMillis, rows sql_types::Untyped,
    {
        lease_ms: i64, retention_ms: i64, scope: String, key: String, request_id: Vec<u8>, token: i64,
    },
    "UPDATE atomic_phases_keys", (D::BY_KEY), " SET locked_until = ", (D::NOW), " + ", lease_ms,
    ", run_after = ", (D::NOW), " + ", lease_ms, ", expires_at = ", (D::GREATEST), "(expires_at, ", (D::NOW), " + ",
    retention_ms, ") WHERE scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
    " AND lease_token = ", token, " AND status = 'in_progress'"
}

impl Renew {
    pub(in crate::store) fn new(guard: &Guard<'_>, hold: Hold) -> Self {
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
    InsertJob in D: InMillis, rows sql_types::Untyped,
    {
        scope: String, job_id: Vec<u8>, key: String, request_id: Vec<u8>, position: i64,
        name: String, args: Vec<u8>, waits: bool, trace: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_staged_jobs (scope, job_id, idempotency_key, request_id, position, \
     name, args, staged_at, run_after, trace) VALUES (", scope, ", ", job_id, ", ", key, ", ", request_id, ", ",
    position, ", ", name, ", ", args, ", ", (D::NOW), ", CASE WHEN ", waits, " THEN ", [WAITS], " ELSE ", (D::NOW),
    " END, ", trace, ")"
}

impl InsertJob {
    pub(in crate::store) fn new(guard: &Guard<'_>, job: &StagedJob) -> Self {
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

statement! {
    /// The outputs alone, for a resolution of a request that may be finished.
    Outputs in D: InMillis, rows Nullable<Binary>,
    { scope: String, key: String },
    "SELECT outputs FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The parameters alone, where the fingerprints of two requests differ.
    ParamsAndContext in D: InMillis, rows (Binary, Nullable<Binary>),
    { scope: String, key: String, request_id: Vec<u8> },
    "SELECT params, context FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}
