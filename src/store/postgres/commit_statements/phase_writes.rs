//! What a phase writes besides the row: its statements and its staged jobs.

use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, Integer};
use uuid::Uuid;

use super::super::error::Mark;
use super::super::numbered::{Shape, Shaped};
use super::super::session::{OURS, SAME_JOBS};
use super::super::statement::Statement;
use super::super::statements::WAITS;
use super::super::{Pool, Postgres};
use super::{INSERT_JOBS, ONE_ROW_OF};
use crate::job::StagedJob;
use crate::store::statement::statement;
use crate::store::{Guard, Writes};

statement! {
    /// A staged job of a batch. As in [`AdvanceAndStage`](super::AdvanceAndStage), that there is no row is an error, which
    /// also undoes a row that is in the wrong transaction.
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
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>, job: &'a StagedJob) -> Self {
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

/// Most parts of a single statement: one that long has no round trip to save.
pub(in crate::store::postgres) const MAX_PARTS: usize = 32;

/// What a phase writes, as parts of the statement that commits.
pub(in crate::store::postgres) struct PhaseWrites<'a> {
    statements: &'a [Statement],
    jobs: Vec<JobPart<'a>>,
}

impl<'a> PhaseWrites<'a> {
    pub(in crate::store::postgres) fn new<P: Pool>(
        guard: &Guard<'a>,
        writes: &'a Writes<'_, Postgres<P>>,
    ) -> Self {
        let jobs = writes.jobs.iter().map(|job| JobPart::new(guard, job)).collect();
        Self { statements: &writes.statements.all, jobs }
    }

    pub(super) fn stages(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Part of a `CASE`, of a phase that stages jobs: what it raises where one of them was not inserted. Each is looked for,
    /// not counted: that spares the server a node of the plan, which it sets up at each execution.
    pub(super) fn push_unstaged(&self, out: &mut AstPass<'_, '_, Pg>) {
        for position in 0..self.jobs.len() {
            out.push_sql(if position == 0 { "NOT EXISTS" } else { " OR NOT EXISTS" });
            out.push_sql(" (SELECT FROM atomic_phases_job_");
            out.push_sql(&position.to_string());
            out.push_sql(")");
        }
        out.push_sql(" THEN ");
        out.push_sql(Mark::Unstaged.sql());
    }
}

impl Shaped for PhaseWrites<'_> {
    fn note(&self, shape: &mut Shape) {
        shape.note(self.jobs.len() as u64, MAX_PARTS as u64 + 1);
        self.statements.iter().for_each(|statement| shape.note_statement(statement));
    }
}

impl QueryFragment<Pg> for PhaseWrites<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        // PostgreSQL executes the parts that nothing refers to from the last to the first. So the first
        // stands last: rows are locked in the order in which the same writes, one by one, lock them, and a
        // sequence counts in the order of the batch. The jobs, which lock nothing, are inserted before: the answer looks
        // for them.
        for (position, job) in self.jobs.iter().enumerate().rev() {
            out.push_sql(", atomic_phases_job_");
            out.push_sql(&position.to_string());
            out.push_sql(" AS (");
            job.walk_ast(out.reborrow())?;
            out.push_sql(" RETURNING job_id)");
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

impl Shaped for JobPart<'_> {
    fn note(&self, _: &mut Shape) {}
}

impl<'a> JobPart<'a> {
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>, job: &'a StagedJob) -> Self {
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
