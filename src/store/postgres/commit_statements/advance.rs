//! The commit of a phase that is not the first: last in the phase's transaction, in front of its statements, or with them
//! as a single statement.

use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{self, Integer};
use uuid::Uuid;

use super::super::error::Mark;
use super::super::numbered::{Shape, Shaped, shaped};
use super::super::session::{JOBS, Known, NUMBER, OURS};
use super::super::statements::{Guarded, WAITS};
use super::phase_writes::{JobPart, PhaseWrites};
use super::row::NextState;
use super::{Committed, INSERT_JOBS, ONE_ROW_OF, push_left_open};
use crate::job::StagedJob;
use crate::store::statement::statement;
use crate::store::{Change, Guard};

shaped! {
    /// The commit of a phase, which always moves the recovery point. What it comes to is judged by the session that
    /// the engine speaks to: Citus would execute the judgement on the row's node, where the transaction has another
    /// number, but for a volatile function in a query of the update's own. Its answer is not asked for, so no server
    /// executes it.
    UpdateRow<'a> for Pg, rows sql_types::Untyped, { next: NextState<'a>, guarded: Guarded<'a> },
    "WITH apart AS (SELECT clock_timestamp()) ", {next}, ", advanced_at = statement_timestamp()", {guarded}
}

impl<'a> UpdateRow<'a> {
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>, change: &Change<'a>) -> Self {
        Self { next: NextState::new(change), guarded: Guarded::new(guard) }
    }
}

shaped! {
    /// Last in a phase's transaction, with COMMIT right behind it: no row has to be an error, which
    /// turns that COMMIT into a rollback. The cast of a text that is not a number raises one, and carries
    /// our mark through a server of any language.
    Advance<'a> for Pg, rows Integer, { update: UpdateRow<'a>, ours: Ours<'a>, not_ours: NotOurs<'a> },
    "WITH advanced AS (", {update}, {ours}, " RETURNING scope) \
     SELECT CASE WHEN scope IS NOT NULL THEN '1'", {not_ours}, " ELSE ", (Mark::Fenced.sql()),
    " END::integer", [ONE_ROW_OF], "advanced ON true"
}

impl<'a> Advance<'a> {
    pub(in crate::store::postgres) fn new(
        guard: &Guard<'a>,
        change: &Change<'a>,
        known: &'a Known,
    ) -> Self {
        let (ours, not_ours) = (Ours { number: &known.number }, NotOurs::of(known));
        Self { update: UpdateRow::new(guard, change), ours, not_ours }
    }
}

shaped! {
    /// [`Advance`], and the jobs that the phase staged, in the same transaction and in no other: after a raw
    /// COMMIT of the phase they would be committed by themselves (G18). In the table that stands beside the
    /// keys', and in no other: no enqueuer would find them there. That one of them was not inserted is an error
    /// too. The server expects few elements of an array that it does not know, and so keeps the plan of this
    /// statement; of a `generate_series` it expects a thousand rows, and would plan each commit anew.
    AdvanceAndStage<'a> for Pg, rows Integer,
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
    pub(in crate::store::postgres) fn new(
        advance: Advance<'a>,
        guard: &Guard<'a>,
        jobs: &'a [StagedJob],
    ) -> Self {
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

shaped! {
    /// The same for one job, as most phases have it: no arrays to take apart, and nothing to count.
    AdvanceAndStageOne<'a> for Pg, rows Integer,
    { update: UpdateRow<'a>, ours: Ours<'a>, job: JobPart<'a>, not_ours: NotOurs<'a> },
    "WITH atomic_phases_key AS (", {update}, {ours}, " RETURNING idempotency_key, request_id, advanced_at), staged AS (",
    {job}, " RETURNING job_id) SELECT CASE", {not_ours}, " WHEN request_id IS NULL THEN ", (Mark::Fenced.sql()),
    " WHEN job_id IS NULL THEN ", (Mark::Unstaged.sql()), " ELSE '1' END::integer", [ONE_ROW_OF],
    "atomic_phases_key ON true LEFT JOIN staged ON true"
}

impl<'a> AdvanceAndStageOne<'a> {
    pub(in crate::store::postgres) fn new(
        advance: Advance<'a>,
        guard: &Guard<'a>,
        job: &'a StagedJob,
    ) -> Self {
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

impl Shaped for Ours<'_> {
    fn note(&self, _: &mut Shape) {}
}

impl Shaped for NotOurs<'_> {
    fn note(&self, _: &mut Shape) {}
}

impl<'a> NotOurs<'a> {
    fn of(known: &'a Known) -> Self {
        Self { number: &known.number, jobs: &known.jobs }
    }
}

shaped! {
    /// The same in front of a phase's statements instead of behind them. If the `BEGIN` before it
    /// failed, they must not come to run by themselves: it ends the connection, before the server
    /// reads them.
    AdvanceFirst<'a> for Pg, rows Integer, { update: UpdateRow<'a> },
    "WITH advanced AS (", {update}, " AND ", [OURS], " RETURNING scope) \
     SELECT CASE WHEN scope IS NOT NULL THEN '1' WHEN ", [OURS], " THEN ", (Mark::Fenced.sql()),
    " ELSE pg_terminate_backend(pg_backend_pid())::text END::integer", [ONE_ROW_OF], "advanced ON true"
}

/// The same with the phase's writes in it, as one statement that is a transaction by itself.
pub(in crate::store::postgres) struct AdvanceAndWrite<'a> {
    /// As in [`CreateAndWrite`](super::CreateAndWrite).
    pub(in crate::store::postgres) committed: Committed,
    pub(in crate::store::postgres) update: UpdateRow<'a>,
    pub(in crate::store::postgres) writes: PhaseWrites<'a>,
}

impl QueryId for AdvanceAndWrite<'_> {
    type QueryId = AdvanceAndWrite<'static>;
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Shaped for AdvanceAndWrite<'_> {
    fn note(&self, shape: &mut Shape) {
        self.committed.note(shape);
        self.update.note(shape);
        self.writes.note(shape);
    }
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
        push_left_open(&mut out, self.committed.0);
        out.push_sql("WHEN advanced_at IS NULL THEN ");
        out.push_sql(Mark::Fenced.sql());
        if self.writes.stages() {
            out.push_sql(" WHEN ");
            self.writes.push_unstaged(&mut out);
        }
        out.push_sql(" ELSE ");
        self.committed.walk_ast(out.reborrow())?;
        out.push_sql(" END::integer");
        out.push_sql(ONE_ROW_OF);
        out.push_sql("atomic_phases_key ON true");
        Ok(())
    }
}
