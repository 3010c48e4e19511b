//! What creates a row, and what a phase's commit writes: the row as its first phase leaves it, its next states, and the
//! jobs.
//!
//! That there is no row to write, or another one, has to be an error, so that what travels behind it
//! comes to nothing: the cast of a text that is not a number raises one, and carries the engine's mark
//! through a server of any language.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::pg::data_types::PgInterval;
use diesel::query_builder::{AstPass, Query, QueryFragment};
use diesel::serialize::ToSql;
use diesel::sql_types::{self, HasSqlType, Integer, Nullable, Timestamptz};
use uuid::Uuid;

use super::error::Mark;
use super::session::{
    JOBS, Known, KnownSql, NUMBER, OURS, SAME_JOBS, SET_UP, WAIT_AS_BEFORE, WAIT_BRIEFLY,
};
use super::statement::Statement;
use super::statements::{Guarded, NewEvent, NotLocked, WAITS};
use super::{Pool, PoolOrigin, Postgres};
use crate::definition::STARTED;
use crate::job::StagedJob;
use crate::store::row::millis;
use crate::store::statement::{Bind, push_bind, statement};
use crate::store::{Birth, Change, Guard, NewRow, Status, StoredResponse, Writes};

/// An answer of one row, also where the part that is joined has none.
const ONE_ROW_OF: &str = " FROM (SELECT 1) AS one LEFT JOIN ";

/// Stages jobs, of the request whose row is in a part of the statement.
const INSERT_JOBS: &str = "INSERT INTO atomic_phases_staged_jobs (scope, idempotency_key, request_id, job_id, \
    position, name, args, staged_at, run_after, trace) SELECT ";

/// The row as its first phase leaves it, or finds it, from the time `t`. It names what there is, and nothing else:
/// each bind and each column costs, here and on the server. So its text depends on what it holds.
pub(in crate::store) struct BornRow<'a> {
    known: BornKnown<'a>,
    birth: Birth,
    status: Status,
    lease: Option<PgInterval>,
    due: Option<PgInterval>,
    /// The present, where nothing has run yet.
    created_at: Option<DateTime<Utc>>,
    retention: PgInterval,
    params: &'a [u8],
    context: Option<&'a [u8]>,
    trace: Option<&'a [u8]>,
    outputs: Option<&'a [u8]>,
    response: Option<Response<'a>>,
}

statement! {
    /// Reserves the key: creates the row, if there is none (G10). Waits for a transaction that is about to create it,
    /// [`ROW_LOCK_WAIT`](super::twin::ROW_LOCK_WAIT) at most. Tells by what the transaction is known, too; no row of an
    /// answer where the key has one, of which the next look tells: a second branch for that here would cost each
    /// request more than it saves the few.
    ///
    /// The server makes the row first, then answers, which gives the phase the lock timeout that its session
    /// had.
    Reserve<'a> for Pg as varying, rows (KnownSql, Timestamptz, Timestamptz), { row: BornRow<'a> },
    "WITH begun AS MATERIALIZED (SELECT clock_timestamp() AS t, ", [NUMBER], " AS number, ", [JOBS],
    " AS jobs, ", [SET_UP], " IS TRUE AS is_set_up, ", [WAIT_BRIEFLY], "), made AS (", {row}, " FROM begun \
     ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING created_at, expires_at) \
     SELECT number, jobs, ", [WAIT_AS_BEFORE], " IS NOT NULL AND is_set_up, created_at, expires_at FROM made, begun"
}

statement! {
    /// What each row begins with.
    BornKnown<'a> for Pg, rows sql_types::Untyped,
    {
        scope: &'a str, key: &'a str, request_id: Uuid, definition: &'a str, version: i32,
        phases: &'a str, fingerprint: &'a str, to: &'a str,
    },
    scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ", phases, ", ",
    fingerprint, ", ", to, ", "
}

impl<'a> BornRow<'a> {
    pub(super) fn new(row: &NewRow<'a>, created_at: DateTime<Utc>, change: &Change<'a>) -> Self {
        Self {
            known: BornKnown::new(row, change.recovery_point),
            status: change.status,
            lease: change.lease().map(interval),
            created_at: Some(created_at),
            outputs: change.outputs,
            response: change.response.map(Response::new),
            ..Self::at_start(row)
        }
    }

    /// As it is before its first phase.
    pub(super) fn at_start(row: &NewRow<'a>) -> Self {
        Self {
            known: BornKnown::new(row, STARTED),
            birth: row.birth,
            status: row.birth.status(),
            lease: row.birth.lease().map(interval),
            due: row.birth.due().map(interval),
            created_at: None,
            retention: interval(row.retention),
            params: row.params,
            context: row.context,
            trace: row.trace,
            outputs: None,
            response: None,
        }
    }
}

impl<'a> BornKnown<'a> {
    fn new(row: &NewRow<'a>, recovery_point: &'a str) -> Self {
        Self {
            scope: row.scope.as_str(),
            key: row.key.as_str(),
            request_id: row.request_id,
            definition: row.definition,
            version: row.version.cast_signed(),
            phases: row.phases,
            fingerprint: row.fingerprint,
            to: recovery_point,
        }
    }
}

impl QueryFragment<Pg> for BornRow<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
             definition_version, phases, fingerprint, recovery_point, lease_token, attempts, \
             status, advanced_at, created_at, expires_at, params",
        );
        let named = [
            (self.lease.is_some(), ", locked_until"),
            (self.due.is_some(), ", run_after"),
            (self.context.is_some(), ", context"),
            (self.trace.is_some(), ", trace"),
            (self.outputs.is_some(), ", outputs"),
            (self.response.is_some(), ", response_status, response_headers, response_body"),
        ];
        named
            .iter()
            .filter(|(is_there, _)| *is_there)
            .for_each(|(_, columns)| out.push_sql(columns));
        out.push_sql(") SELECT ");
        self.known.walk_ast(out.reborrow())?;
        // The first fencing token and the count of attempts.
        out.push_sql(match self.birth {
            Birth::Held(_) => "1, 1, ",
            Birth::Pending => "0, 0, ",
        });
        push_status(&mut out, self.status);
        match &self.created_at {
            None => out.push_sql(", t, t"),
            created_at => push_next(&mut out, ", t, ", created_at.as_ref())?,
        }
        out.push_sql(", t + ");
        push_bind(&mut out, &self.retention)?;
        push_next(&mut out, ", ", Some(&self.params))?;
        push_next(&mut out, ", t + ", self.lease.as_ref())?;
        push_next(&mut out, ", t + ", self.due.as_ref())?;
        push_next(&mut out, ", ", self.context.as_ref())?;
        push_next(&mut out, ", ", self.trace.as_ref())?;
        push_next(&mut out, ", ", self.outputs.as_ref())?;
        if let Some(response) = &self.response {
            push_next(&mut out, ", ", Some(&response.status))?;
            push_next(&mut out, ", ", Some(&response.headers))?;
            push_next(&mut out, ", ", Some(&response.body))?;
        }
        Ok(())
    }
}

/// A stored reply; its body is `None` where it was over the cap.
struct Response<'a> {
    status: i16,
    headers: &'a [u8],
    body: Option<&'a [u8]>,
}

impl<'a> Response<'a> {
    fn new(response: &'a StoredResponse) -> Self {
        Self {
            status: response.status.cast_signed(),
            headers: &response.headers,
            body: response.body.as_deref(),
        }
    }
}

fn interval(length: Duration) -> PgInterval {
    PgInterval::from_microseconds(millis(length).saturating_mul(1000))
}

/// As a literal: the server then reads it once, when it prepares the statement.
fn push_status(out: &mut AstPass<'_, '_, Pg>, status: Status) {
    out.push_sql("'");
    out.push_sql(status.as_str());
    out.push_sql("'");
}

/// A value, if there is one, behind `text`.
fn push_next<'b, T>(
    out: &mut AstPass<'_, 'b, Pg>,
    text: &'static str,
    value: Option<&'b T>,
) -> QueryResult<()>
where
    Pg: HasSqlType<T::Sql>,
    T: Bind<Pg> + ToSql<T::Sql, Pg>,
{
    let Some(value) = value else { return Ok(()) };
    out.push_sql(text);
    push_bind(out, value)
}

statement! {
    /// Creates the row as its first phase leaves it. First in a transaction whose other statements,
    /// and `COMMIT`, are right behind it: that there is a row has to be an error (see [`Advance`]), and
    /// not a unique violation, for which the server writes the key into its log (G19).
    /// If the `BEGIN` before it failed, those statements must not come to run by themselves: then
    /// this inserts nothing and ends the connection, before the server reads them.
    Create<'a> for Pg as varying, rows (Nullable<Timestamptz>, Nullable<Timestamptz>, Integer),
    { row: BornRow<'a> },
    "WITH made AS (", {row}, " FROM clock_timestamp() AS t WHERE ", [OURS],
    " ON CONFLICT (scope, idempotency_key) DO NOTHING RETURNING advanced_at, expires_at) \
     SELECT advanced_at, expires_at, CASE WHEN advanced_at IS NOT NULL THEN '1' WHEN ", [OURS],
    " THEN ", (Mark::Exists.sql()), " ELSE pg_terminate_backend(pg_backend_pid())::text END::integer", [ONE_ROW_OF],
    "made ON true"
}

statement! {
    /// In front of such a single statement, on a connection of an application's pool: from the next statement
    /// on the server looks after its client. And a mark that ends with this statement's transaction, so
    /// that the next one sees it only where the application left a transaction open, and it would not commit.
    Ready for Pg, rows sql_types::Untyped, {},
    "SELECT set_config('atomic_phases.check_interval', \
     current_setting('client_connection_check_interval'), false), \
     set_config('client_connection_check_interval', '500', false), \
     set_config('atomic_phases.left_open', 'yes', true)"
}

statement! {
    /// Behind it: the session is as [`Ready`] found it. The session may be another one, behind a pooler.
    Restore for Pg, rows sql_types::Untyped, {},
    "SELECT set_config('client_connection_check_interval', \
     coalesce(nullif(current_setting('atomic_phases.check_interval', true), ''), \
     current_setting('client_connection_check_interval')), false)"
}

/// The same with the phase's writes in it, as one statement that is a transaction by itself. The lock
/// timeout bounds the wait for the row only: the server makes the row first, then answers, which gives
/// the session its own back, and then executes what the answer has no use for.
pub(super) struct CreateAndWrite<'a> {
    /// On a session that the engine opened, no transaction is left open.
    pub(super) pool_origin: PoolOrigin,
    pub(super) row: BornRow<'a>,
    pub(super) writes: PhaseWrites<'a>,
}

impl Query for CreateAndWrite<'_> {
    type SqlType = (Nullable<Timestamptz>, Nullable<Timestamptz>, Integer);
}

impl QueryFragment<Pg> for CreateAndWrite<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("WITH atomic_phases_begun AS MATERIALIZED (SELECT clock_timestamp() AS t, ");
        out.push_sql(WAIT_BRIEFLY);
        out.push_sql("), atomic_phases_key AS (");
        self.row.walk_ast(out.reborrow())?;
        out.push_sql(
            " FROM atomic_phases_begun ON CONFLICT (scope, idempotency_key) DO NOTHING \
             RETURNING idempotency_key, request_id, advanced_at, expires_at)",
        );
        self.writes.walk_ast(out.reborrow())?;
        out.push_sql(" SELECT advanced_at, expires_at, CASE ");
        push_left_open(&mut out, self.pool_origin);
        out.push_sql("WHEN advanced_at IS NULL THEN ");
        out.push_sql(Mark::Exists.sql());
        out.push_sql(" WHEN ");
        out.push_sql(WAIT_AS_BEFORE);
        out.push_sql(" IS NOT NULL");
        push_committed(&mut out, self.pool_origin);
        Ok(())
    }
}

/// What such a statement answers, in one row: 1; or, in a session that has lost what the engine said to it,
/// [`COMMITTED_AND_LOST`].
fn push_committed(out: &mut AstPass<'_, '_, Pg>, origin: PoolOrigin) {
    if origin == PoolOrigin::Engine {
        out.push_sql(" AND ");
        out.push_sql(SET_UP);
        out.push_sql(" IS TRUE");
    }
    out.push_sql(" THEN '1' ELSE '2' END::integer");
    out.push_sql(ONE_ROW_OF);
    out.push_sql("atomic_phases_key ON true");
}

/// See [`push_committed`].
pub(super) const COMMITTED_AND_LOST: i32 = 2;

/// On a session of an application's: the mark of [`Ready`] is an error where the statement would not
/// commit.
fn push_left_open(out: &mut AstPass<'_, '_, Pg>, origin: PoolOrigin) {
    if origin.is_application() {
        out.push_sql("WHEN current_setting('atomic_phases.left_open', true) = 'yes' THEN ");
        out.push_sql(Mark::LeftOpen.sql());
        out.push_sql(" ");
    }
}

pub(super) type Made = (Option<DateTime<Utc>>, Option<DateTime<Utc>>, i32);

/// The next state of a row: what changes, and nothing else. So its text depends on what it holds.
///
/// Its clock is that of the statement's begin, which is asked nothing in a query of its own: Citus would send the answer
/// to the row's node in front of the update, and then, where the phase has written to another node before, take the
/// update for one that needs no commit in two phases (G4). A time that is too early makes a lease shorter, and no longer.
pub(in crate::store) struct NextState<'a> {
    status: Status,
    to: &'a str,
    outputs: Option<&'a [u8]>,
    open_intent: Option<&'a str>,
    lease: Option<PgInterval>,
    due: Option<PgInterval>,
    response: Option<Response<'a>>,
}

impl<'a> NextState<'a> {
    pub(super) fn new(change: &Change<'a>) -> Self {
        Self {
            status: change.status,
            to: change.recovery_point,
            outputs: change.outputs,
            open_intent: change.open_intent,
            lease: change.lease().map(interval),
            due: change.due().map(interval),
            response: change.response.map(Response::new),
        }
    }
}

impl QueryFragment<Pg> for NextState<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("UPDATE atomic_phases_keys SET status = ");
        push_status(&mut out, self.status);
        push_next(&mut out, ", recovery_point = ", Some(&self.to))?;
        push_next(&mut out, ", outputs = ", self.outputs.as_ref())?;
        match &self.open_intent {
            None => out.push_sql(", open_intent = NULL"),
            intent => push_next(&mut out, ", open_intent = ", intent.as_ref())?,
        }
        match &self.lease {
            None => out.push_sql(", locked_until = NULL"),
            lease => {
                push_next(&mut out, ", locked_until = statement_timestamp() + ", lease.as_ref())?;
            }
        }
        match &self.due {
            None => out.push_sql(", run_after = NULL"),
            // While it runs, the workers hear of it only once it is slow. A time that is not half used up stays, so
            // that the update is HOT; the heartbeat moves it on long before. One behind the lease's end does not: it is
            // of a clock that was set back. No CASE, in which Citus takes no clock.
            due if self.lease.is_some() => {
                push_next(
                    &mut out,
                    ", run_after = (ARRAY[NULL, run_after, statement_timestamp() + ",
                    due.as_ref(),
                )?;
                push_next(
                    &mut out,
                    "])[1 + (run_after IS NOT NULL OR created_at < statement_timestamp() - interval '5 seconds')::int \
                     * (1 + ((run_after + (run_after - statement_timestamp()) < statement_timestamp() + ",
                    due.as_ref(),
                )?;
                push_next(&mut out, " OR run_after > statement_timestamp() + ", due.as_ref())?;
                out.push_sql(") IS NOT FALSE)::int)]");
            }
            due => push_next(&mut out, ", run_after = statement_timestamp() + ", due.as_ref())?,
        }
        if let Some(response) = &self.response {
            push_next(&mut out, ", response_status = ", Some(&response.status))?;
            push_next(&mut out, ", response_headers = ", Some(&response.headers))?;
            push_next(&mut out, ", response_body = ", Some(&response.body))?;
        }
        Ok(())
    }
}

statement! {
    /// Between phases, in a transaction of its own: the number of rows tells. The recovery point may
    /// stay, and there may be a word about an outcome that was unknown. Never waits for the row's lock.
    Write<'a> for Pg as varying, rows sql_types::Untyped,
    {
        next: NextState<'a>, to: &'a str, resolution: Option<&'a str>, window: bool, outcome: bool, attempts: bool,
        forgiven: i32, no_attempt: i32, reason: Option<&'a str>, waits: bool, event: NewEvent<'a>,
        guarded: Guarded<'a>, not_locked: NotLocked<'a>,
    },
    {next}, ", advanced_at = CASE WHEN recovery_point = ", to, " AND NOT ", window,
    " THEN advanced_at ELSE (SELECT clock_timestamp()) END, resolution = coalesce(", resolution,
    ", resolution), reconciles = CASE WHEN ", outcome,
    " THEN 0 ELSE reconciles END, forgiven_attempts = CASE WHEN ", attempts,
    " THEN attempts ELSE least(attempts, forgiven_attempts + ", forgiven,
    ") END, attempts = attempts - ", no_attempt, ", reason = coalesce(", reason,
    ", reason), waiting_since = CASE WHEN ", waits,
    " THEN coalesce(waiting_since, (SELECT clock_timestamp())) END", {event}, {guarded}, " AND ", {not_locked}
}

impl<'a> Write<'a> {
    pub(super) fn new(guard: &Guard<'a>, change: &Change<'a>) -> Self {
        Self {
            next: NextState::new(change),
            to: change.recovery_point,
            resolution: change.resolution,
            window: change.settles.window(),
            outcome: change.settles.outcome(),
            attempts: change.settles.attempts(),
            forgiven: change.forgiven_attempts.cast_signed(),
            no_attempt: change.was_no_attempt.into(),
            reason: change.reason,
            waits: change.waits(),
            event: NewEvent(change.event),
            guarded: Guarded::new(guard),
            not_locked: NotLocked::new(guard.scope, guard.key),
        }
    }
}

statement! {
    /// [`Write`], and the notice of it: both or neither. The number of rows tells.
    WriteWithNotice<'a> for Pg as varying, rows sql_types::Untyped,
    {
        write: Write<'a>, scope: &'a str, job_id: Uuid, position: i64, name: &'a str, args: &'a [u8],
        trace: Option<&'a [u8]>,
    },
    "WITH written AS (", {write}, " RETURNING idempotency_key, request_id, (SELECT clock_timestamp()) AS told_at) ",
    [INSERT_JOBS], scope, ", idempotency_key, request_id, ", job_id, ", ", position, ", ", name, ", ", args,
    ", told_at, told_at, ", trace, " FROM written"
}

impl<'a> WriteWithNotice<'a> {
    pub(super) fn new(write: Write<'a>, guard: &Guard<'a>, job: &'a StagedJob) -> Self {
        Self {
            write,
            scope: guard.scope.as_str(),
            job_id: job.id,
            position: job.position,
            name: &job.name,
            args: &job.args,
            trace: job.trace(),
        }
    }
}

statement! {
    /// The commit of a phase, which always moves the recovery point. What it comes to is judged by the session that
    /// the engine speaks to: Citus would execute the judgement on the row's node, where the transaction has another
    /// number, but for a volatile function in a query of the update's own. Its answer is not asked for, so no server
    /// executes it.
    UpdateRow<'a> for Pg as varying, rows sql_types::Untyped, { next: NextState<'a>, guarded: Guarded<'a> },
    "WITH apart AS (SELECT clock_timestamp()) ", {next}, ", advanced_at = statement_timestamp()", {guarded}
}

impl<'a> UpdateRow<'a> {
    pub(super) fn new(guard: &Guard<'a>, change: &Change<'a>) -> Self {
        Self { next: NextState::new(change), guarded: Guarded::new(guard) }
    }
}

statement! {
    /// Last in a phase's transaction, with COMMIT right behind it: no row has to be an error, which
    /// turns that COMMIT into a rollback. The cast of a text that is not a number raises one, and carries
    /// our mark through a server of any language.
    Advance<'a> for Pg as varying, rows Integer, { update: UpdateRow<'a>, ours: Ours<'a>, not_ours: NotOurs<'a> },
    "WITH advanced AS (", {update}, {ours}, " RETURNING scope) \
     SELECT CASE WHEN scope IS NOT NULL THEN '1'", {not_ours}, " ELSE ", (Mark::Fenced.sql()),
    " END::integer", [ONE_ROW_OF], "advanced ON true"
}

impl<'a> Advance<'a> {
    pub(super) fn new(guard: &Guard<'a>, change: &Change<'a>, known: &'a Known) -> Self {
        let (ours, not_ours) = (Ours { number: &known.number }, NotOurs::of(known));
        Self { update: UpdateRow::new(guard, change), ours, not_ours }
    }
}

statement! {
    /// [`Advance`], and the jobs that the phase staged, in the same transaction and in no other: after a raw
    /// COMMIT of the phase they would be committed by themselves (G18). In the table that stands beside the
    /// keys', and in no other: no enqueuer would find them there. That one of them was not inserted is an error
    /// too. The server expects few elements of an array that it does not know, and so keeps the plan of this
    /// statement; of a `generate_series` it expects a thousand rows, and would plan each commit anew.
    AdvanceAndStage<'a> for Pg as varying, rows Integer,
    {
        update: UpdateRow<'a>, ours: Ours<'a>, scope: &'a str, ids: Vec<Uuid>, positions: Vec<i64>, names: Vec<&'a str>,
        args: Vec<&'a [u8]>, waits: Vec<bool>, traces: Vec<Option<&'a [u8]>>, not_ours: NotOurs<'a>, count: i32,
    },
    "WITH advanced AS (", {update}, {ours}, " RETURNING scope, idempotency_key, request_id, advanced_at), staged AS (",
    [INSERT_JOBS], scope, ", idempotency_key, request_id, job.id, job.position, job.name, job.args, advanced_at, \
     CASE WHEN job.waits THEN ", [WAITS], " ELSE advanced_at END, job.trace FROM advanced, unnest(", ids, "::uuid[], ",
    positions, "::bigint[], ", names, "::text[], ", args, "::bytea[], ", waits, "::boolean[], ", traces, "::bytea[]) \
     AS job (id, position, name, args, waits, trace) RETURNING job_id) SELECT CASE", {not_ours},
    " WHEN scope IS NULL THEN ", (Mark::Fenced.sql()), " WHEN (SELECT count(*) FROM staged) <> ", count, " THEN ",
    (Mark::Unstaged.sql()), " ELSE '1' END::integer", [ONE_ROW_OF], "advanced ON true"
}

impl<'a> AdvanceAndStage<'a> {
    pub(super) fn new(advance: Advance<'a>, guard: &Guard<'a>, jobs: &'a [StagedJob]) -> Self {
        let Advance { update, ours, not_ours } = advance;
        let count = i32::try_from(jobs.len()).unwrap_or(i32::MAX);
        Self {
            update,
            ours,
            not_ours,
            scope: guard.scope.as_str(),
            ids: jobs.iter().map(|job| job.id).collect(),
            positions: jobs.iter().map(|job| job.position).collect(),
            names: jobs.iter().map(|job| job.name.as_str()).collect(),
            args: jobs.iter().map(|job| job.args.as_slice()).collect(),
            waits: jobs.iter().map(StagedJob::is_behind_another).collect(),
            traces: jobs.iter().map(StagedJob::trace).collect(),
            count,
        }
    }
}

statement! {
    /// The same for one job, as most phases have it: no arrays to take apart, and nothing to count.
    AdvanceAndStageOne<'a> for Pg as varying, rows Integer,
    { update: UpdateRow<'a>, ours: Ours<'a>, job: JobPart<'a>, not_ours: NotOurs<'a> },
    "WITH atomic_phases_key AS (", {update}, {ours}, " RETURNING idempotency_key, request_id, advanced_at), staged AS (",
    {job}, " RETURNING job_id) SELECT CASE", {not_ours}, " WHEN request_id IS NULL THEN ", (Mark::Fenced.sql()),
    " WHEN job_id IS NULL THEN ", (Mark::Unstaged.sql()), " ELSE '1' END::integer", [ONE_ROW_OF],
    "atomic_phases_key ON true LEFT JOIN staged ON true"
}

impl<'a> AdvanceAndStageOne<'a> {
    pub(super) fn new(advance: Advance<'a>, guard: &Guard<'a>, job: &'a StagedJob) -> Self {
        let Advance { update, ours, not_ours } = advance;
        Self { update, ours, job: JobPart::new(guard, job), not_ours }
    }
}

statement! {
    /// Whether this is the transaction that the engine began (H7).
    Ours<'a> for Pg, rows sql_types::Untyped, { number: &'a str }, " AND ", [NUMBER], " = ", number
}

statement! {
    /// What an [`Advance`] raises in another transaction than the engine's, or where the phase has put another
    /// table of staged jobs in reach.
    NotOurs<'a> for Pg, rows sql_types::Untyped, { number: &'a str, jobs: &'a str },
    " WHEN ", [NUMBER], " <> ", number, " THEN ", (Mark::Left.sql()), " WHEN ", [JOBS], " <> ", jobs, " THEN ",
    (Mark::Strayed.sql())
}

impl<'a> NotOurs<'a> {
    fn of(known: &'a Known) -> Self {
        Self { number: &known.number, jobs: &known.jobs }
    }
}

statement! {
    /// The same in front of a phase's statements instead of behind them. If the `BEGIN` before it
    /// failed, they must not come to run by themselves: it ends the connection, before the server
    /// reads them.
    AdvanceFirst<'a> for Pg as varying, rows Integer, { update: UpdateRow<'a> },
    "WITH advanced AS (", {update}, " AND ", [OURS], " RETURNING scope) \
     SELECT CASE WHEN scope IS NOT NULL THEN '1' WHEN ", [OURS], " THEN ", (Mark::Fenced.sql()),
    " ELSE pg_terminate_backend(pg_backend_pid())::text END::integer", [ONE_ROW_OF], "advanced ON true"
}

/// The same with the phase's writes in it, as one statement that is a transaction by itself.
pub(super) struct AdvanceAndWrite<'a> {
    /// As in [`CreateAndWrite`].
    pub(super) pool_origin: PoolOrigin,
    pub(super) update: UpdateRow<'a>,
    pub(super) writes: PhaseWrites<'a>,
}

impl Query for AdvanceAndWrite<'_> {
    type SqlType = Integer;
}

impl QueryFragment<Pg> for AdvanceAndWrite<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("WITH atomic_phases_key AS (");
        self.update.walk_ast(out.reborrow())?;
        out.push_sql(" RETURNING idempotency_key, request_id, advanced_at)");
        self.writes.walk_ast(out.reborrow())?;
        out.push_sql(" SELECT CASE ");
        push_left_open(&mut out, self.pool_origin);
        out.push_sql("WHEN advanced_at IS NULL THEN ");
        out.push_sql(Mark::Fenced.sql());
        out.push_sql(" WHEN true");
        push_committed(&mut out, self.pool_origin);
        Ok(())
    }
}

statement! {
    /// A staged job of a batch. As in [`AdvanceAndStage`], that there is no row is an error, which also undoes a
    /// row that is in the wrong transaction.
    InsertJob<'a> for Pg, rows Integer,
    {
        scope: &'a str, job_id: Uuid, key: &'a str, request_id: Uuid, position: i64,
        name: &'a str, args: &'a [u8], waits: bool, trace: Option<&'a [u8]>,
    },
    "WITH staged AS (INSERT INTO atomic_phases_staged_jobs (scope, job_id, idempotency_key, request_id, \
     position, name, args, staged_at, run_after, trace) SELECT ", scope, ", ", job_id, ", ", key, ", ",
    request_id, ", ", position, ", ", name, ", ", args, ", t, CASE WHEN ", waits, " THEN ", [WAITS],
    " ELSE t END, ", trace, " FROM clock_timestamp() AS t \
     RETURNING job_id) SELECT CASE WHEN (", [OURS], ") IS NOT TRUE THEN ", (Mark::Left.sql()),
    " WHEN (", [SAME_JOBS], ") IS NOT TRUE THEN ", (Mark::Strayed.sql()),
    " WHEN job_id IS NULL THEN ", (Mark::Unstaged.sql()), " ELSE '1' END::integer", [ONE_ROW_OF],
    "staged ON true"
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
            waits: job.is_behind_another(),
            trace: job.trace(),
        }
    }
}

/// What a phase writes, as parts of the statement that commits.
pub(super) struct PhaseWrites<'a> {
    statements: &'a [Statement],
    jobs: Vec<JobPart<'a>>,
}

impl<'a> PhaseWrites<'a> {
    pub(super) fn new<P: Pool>(guard: &Guard<'a>, writes: &'a Writes<'_, Postgres<P>>) -> Self {
        let jobs = writes.jobs.iter().map(|job| JobPart::new(guard, job)).collect();
        Self { statements: &writes.statements.all, jobs }
    }
}

impl QueryFragment<Pg> for PhaseWrites<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        // PostgreSQL executes the parts that nothing refers to from the last to the first. So the first
        // stands last: rows are locked in the order in which the same writes, one by one, lock them, and a
        // sequence counts in the order of the batch.
        for (position, job) in self.jobs.iter().enumerate().rev() {
            out.push_sql(", atomic_phases_job_");
            out.push_sql(&position.to_string());
            out.push_sql(" AS (");
            job.walk_ast(out.reborrow())?;
            out.push_sql(")");
        }
        for (position, statement) in self.statements.iter().enumerate().rev() {
            out.push_sql(", atomic_phases_");
            out.push_sql(&position.to_string());
            out.push_sql(" AS (");
            statement.walk(out.reborrow())?;
            out.push_sql(")");
        }
        Ok(())
    }
}

statement! {
    /// A staged job as a part of a statement that changes the row: its request is that of the row. The scope says by
    /// itself for which shard it is.
    JobPart<'a> for Pg, rows sql_types::Untyped,
    {
        scope: &'a str, job_id: Uuid, position: i64, name: &'a str, args: &'a [u8], waits: bool,
        trace: Option<&'a [u8]>,
    },
    [INSERT_JOBS], scope, ", idempotency_key, request_id, ", job_id, ", ", position, ", ", name, ", ", args,
    ", advanced_at, CASE WHEN ", waits, " THEN ", [WAITS], " ELSE advanced_at END, ", trace, " FROM atomic_phases_key"
}

impl<'a> JobPart<'a> {
    pub(super) fn new(guard: &Guard<'a>, job: &'a StagedJob) -> Self {
        Self {
            scope: guard.scope.as_str(),
            job_id: job.id,
            position: job.position,
            name: &job.name,
            args: &job.args,
            waits: job.is_behind_another(),
            trace: job.trace(),
        }
    }
}
