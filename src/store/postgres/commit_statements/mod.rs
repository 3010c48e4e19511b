//! What creates a row, and what a phase's commit writes: the row as its first phase leaves it, its next states, and the
//! jobs.
//!
//! | file | statements |
//! |---|---|
//! | `row` | parts: the row as its first phase leaves it, and its next state |
//! | `create` | creates the row |
//! | `advance` | commits a later phase |
//! | `write` | writes between phases, in a transaction of its own |
//! | `phase_writes` | a phase's statements and jobs, as parts of a commit and on their own |
//!
//! That there is no row to write, or another one, has to be an error, so that what travels behind it
//! comes to nothing: the cast of a text that is not a number raises one, and carries the engine's mark
//! through a server of any language.

mod advance;
mod create;
mod phase_writes;
mod row;
mod write;

use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types;

use super::PoolOrigin;
use super::error::Mark;
use super::numbered::{Shape, Shaped};
use super::session::SET_UP;
use crate::store::statement::statement;

pub(super) use self::advance::{
    Advance, AdvanceAndStage, AdvanceAndStageOne, AdvanceAndWrite, AdvanceFirst, UpdateRow,
};
pub(super) use self::create::{Create, CreateAndWrite, Made, Reserve};
pub(super) use self::phase_writes::{InsertJob, MAX_PARTS, PhaseWrites};
pub(super) use self::row::BornRow;
pub(super) use self::write::{Write, WriteWithNotice};

/// An answer of one row, also where the part that is joined has none.
const ONE_ROW_OF: &str = " FROM (SELECT 1) AS one LEFT JOIN ";

/// Stages jobs, of the request whose row is in a part of the statement.
const INSERT_JOBS: &str = "INSERT INTO atomic_phases_staged_jobs (scope, idempotency_key, request_id, job_id, \
    position, name, args, staged_at, run_after, trace) SELECT ";

statement! {
    /// In front of a single statement that commits, on a connection of an application's pool: from the next statement
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

/// What a statement answers that commits: 1; or, in a session of the engine's that has lost what the engine said to it,
/// [`COMMITTED_AND_LOST`].
pub(in crate::store) struct Committed(pub(in crate::store) PoolOrigin);

impl QueryFragment<Pg> for Committed {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        if self.0.is_application() {
            out.push_sql("'1'");
        } else {
            out.push_sql("CASE WHEN ");
            out.push_sql(SET_UP);
            out.push_sql(" THEN '1' ELSE '2' END");
        }
        Ok(())
    }
}

impl Shaped for Committed {
    fn note(&self, shape: &mut Shape) {
        self.0.note(shape);
    }
}

/// See [`Committed`].
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
