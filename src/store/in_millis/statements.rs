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
use crate::store::{Change, Claim, Guard, Hold, NewRow, Right};

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
    "SELECT ", (COLUMNS[0]), (D::CLOCK), (COLUMNS[1]), " FROM atomic_phases_keys", (D::BY_KEY), " WHERE scope = ", scope, " AND idempotency_key = ", key
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
    "SELECT ", (SEEN[0]), (D::LOOKED_AT), (SEEN[1]), " FROM atomic_phases_keys", (D::BY_KEY), " WHERE scope = ", scope, " AND idempotency_key = ", key
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

/// Declares what an update assigns where there is a value; nothing, where the column stays.
macro_rules! assigned {
    ($(#[$doc:meta])* Part<D> for $name:ident($value:ty), $text:literal) => {
        $(#[$doc])*
        pub(in crate::store) struct $name(Option<$value>);

        impl<D: InMillis> Part<D> for $name
        where
            $value: Part<D>,
        {
            fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
                let Some(value) = &self.0 else { return Ok(()) };
                out.push_sql($text);
                value.push(out)
            }
        }
    };
}

assigned! { Part<D> for NewTrace(Vec<u8>), ", trace = " }

assigned! { Part<D> for NewOutputs(Vec<u8>), ", outputs = " }

assigned! { Part<D> for NewResolution(String), ", resolution = " }

assigned! { Part<D> for NewReconciles(i32), ", reconciles = " }

assigned! { Part<D> for NewReason(String), ", reason = " }

assigned! {
    /// How many attempts were none after all.
    Part<D> for FewerAttempts(i32), ", attempts = attempts - "
}

/// When the row came to its place: now, unless it stays there.
pub(in crate::store) enum NewAdvance {
    Now,
    Stays,
}

impl<D: InMillis> Part<D> for NewAdvance {
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        out.push_sql(match self {
            Self::Now => D::NOW,
            Self::Stays => "advanced_at",
        });
        Ok(())
    }
}

/// Until when the row is held, and from when on workers look at it. A holder's row is not due while it is young: no index
/// is written then.
pub(in crate::store) enum NewHold {
    /// A lease, in milliseconds.
    Lease(i64),
    /// No lease, but a back-off, in milliseconds.
    BackOff(i64),
    Nothing,
}

impl NewHold {
    fn of(change: &Change<'_>) -> Self {
        match (change.lease(), change.due()) {
            (Some(lease), _) => Self::Lease(millis(lease)),
            (None, Some(back_off)) => Self::BackOff(millis(back_off)),
            (None, None) => Self::Nothing,
        }
    }
}

impl<D: InMillis> Part<D> for NewHold
where
    i64: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        match self {
            Self::Lease(lease) => {
                out.push_sql(", locked_until = ");
                out.push_sql(D::NOW);
                out.push_sql(" + ");
                lease.push(out)?;
                out.push_sql(", run_after = CASE WHEN run_after IS NOT NULL OR created_at < ");
                out.push_sql(D::NOW);
                out.push_sql(" - 5000 THEN ");
                out.push_sql(D::NOW);
                out.push_sql(" + ");
                lease.push(out)?;
                out.push_sql(" END");
            }
            Self::BackOff(back_off) => {
                out.push_sql(", locked_until = NULL, run_after = ");
                out.push_sql(D::NOW);
                out.push_sql(" + ");
                back_off.push(out)?;
            }
            Self::Nothing => out.push_sql(", locked_until = NULL, run_after = NULL"),
        }
        Ok(())
    }
}

/// How many attempts do not count against the cap: all so far, or so many more than until now.
pub(in crate::store) enum Forgiven {
    All,
    More(Option<i32>),
}

impl Forgiven {
    fn of(change: &Change<'_>) -> Self {
        let more = change.forgiven_attempts.cast_signed();
        match change.settles.attempts() {
            true => Self::All,
            false => Self::More((more != 0).then_some(more)),
        }
    }
}

impl<D: InMillis> Part<D> for Forgiven
where
    i32: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        let Self::More(more) = self else {
            out.push_sql("attempts");
            return Ok(());
        };
        out.push_sql(D::LEAST);
        out.push_sql("(attempts, forgiven_attempts");
        if let Some(more) = more {
            out.push_sql(" + ");
            more.push(out)?;
        }
        out.push_sql(")");
        Ok(())
    }
}

/// Since when the row waits for an operator or a reconcile function, if it does.
pub(in crate::store) enum NewWait {
    Waits,
    No,
}

impl<D: InMillis> Part<D> for NewWait {
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        match self {
            Self::Waits => {
                out.push_sql("coalesce(waiting_since, ");
                out.push_sql(D::NOW);
                out.push_sql(")");
            }
            Self::No => out.push_sql("NULL"),
        }
        Ok(())
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
            trace: NewTrace(claim.trace.map(<[u8]>::to_vec)),
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
    /// The next state of a row, guarded by lease token and recovery point (G3, G6). What stays as it is, or is known
    /// beforehand, is not in the text: each value and each expression costs the server and the client at each execution.
    Write in D: InMillis as varying, rows sql_types::Untyped,
    {
        advance: NewAdvance, outputs: NewOutputs, open_intent: Option<String>, hold: NewHold,
        resolution: NewResolution, reconciles: NewReconciles, forgiven: Forgiven, no_attempt: FewerAttempts,
        reason: NewReason, waits: NewWait, response_status: Option<i16>, response_headers: Option<Vec<u8>>,
        response_body: Option<Vec<u8>>, event: NewEvent, keep_for: KeepFor, status: String, to: String,
        scope: String, key: String, request_id: Vec<u8>, token: i64, from: String,
    },
    "UPDATE atomic_phases_keys", (D::BY_KEY), " SET advanced_at = ", advance, outputs, ", open_intent = ", open_intent,
    hold, resolution, reconciles, ", forgiven_attempts = ", forgiven, no_attempt, reason, ", waiting_since = ", waits,
    ", response_status = ", response_status, ", response_headers = ", response_headers, ", response_body = ", response_body,
    event, keep_for, ", status = ", status, ", recovery_point = ", to, " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND recovery_point = ", from,
    " AND status = 'in_progress'"
}

impl Write {
    pub(in crate::store) fn new(guard: &Guard<'_>, change: &Change<'_>) -> Self {
        // The guard says where the row stands: another row is not written.
        let stays = guard.recovery_point == change.recovery_point && !change.settles.window();
        Self {
            advance: if stays { NewAdvance::Stays } else { NewAdvance::Now },
            outputs: NewOutputs(change.outputs.map(<[u8]>::to_vec)),
            open_intent: change.open_intent.map(str::to_owned),
            hold: NewHold::of(change),
            resolution: NewResolution(change.resolution.map(str::to_owned)),
            reconciles: NewReconciles(change.settles.outcome().then_some(0)),
            forgiven: Forgiven::of(change),
            no_attempt: FewerAttempts(change.was_no_attempt.then_some(1)),
            reason: NewReason(change.reason.map(str::to_owned)),
            waits: if change.waits() { NewWait::Waits } else { NewWait::No },
            response_status: change.response.map(|response| response.status.cast_signed()),
            response_headers: change.response.map(|response| response.headers.clone()),
            response_body: change.response.and_then(|response| response.body.clone()),
            event: NewEvent::of(change.event),
            keep_for: KeepFor(change.keep_for.map(millis)),
            status: change.status.as_str().to_owned(),
            to: change.recovery_point.to_owned(),
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
    "SELECT outputs FROM atomic_phases_keys", (D::BY_KEY), " WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The parameters alone, where the fingerprints of two requests differ.
    ParamsAndContext in D: InMillis, rows (Binary, Nullable<Binary>),
    { scope: String, key: String, request_id: Vec<u8> },
    "SELECT params, context FROM atomic_phases_keys", (D::BY_KEY), " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}
