//! [`Batch`]: the statements of a local phase that needs none of their answers.

use diesel::query_builder::{QueryFragment, QueryId};
use diesel_async::AsyncConnectionCore;
use serde::Serialize;

use super::tx::Staging;
use crate::phase::{JobId, PhaseError};
use crate::store::Store;

/// What a local phase writes, handed over instead of executed: for a phase that needs no answer of
/// the database, the fastest form there is.
///
/// The engine sends the recovery point, these statements and the staged jobs in one round trip. All
/// that a [`Tx`](crate::Tx) promises holds: everything commits together or not at all (G4), fenced
/// (G3). A statement that fails fails the phase, as an error that the phase returns does; a phase that
/// wants to look at an answer, the number of rows or a unique violation say, takes a `Tx`.
///
/// | statements | PostgreSQL is sent |
/// |---|---|
/// | none, one, or several of which all behind the first were [added as independent](Self::add_independent) | one statement, of which they are the parts: `WITH …, part AS (INSERT …) SELECT …` |
/// | several, [added](Self::add) in order | `BEGIN`, the recovery point, each in turn, `COMMIT` |
///
/// A statement that cannot be a part (a `SELECT`, one with a `WITH` or a comment of its own, a `sql_query`
/// with `$1` in it, a phase with an isolation level of its own), or that the server refuses as one (a
/// table with a rule), is sent in turn, too.
///
/// A part does not see the key's own row as the engine is about to write it, and a statement trigger of
/// a table that two parts insert into fires once, for both.
///
/// As the *first* phase of a request it also saves the round trip of the reservation: the key's row
/// travels along with the statements. Two duplicates that come at the same moment may then both
/// compute their statements; only those of one are executed (G10). So compute, and touch nothing else.
///
/// The database may take 15 s for all of it, or as long as `#[phase(timeout = "60s")]` says. Past it the
/// connection is closed; if nothing was committed, the request is released with
/// [`FailureCause::TimeLimit`](crate::engine::FailureCause::TimeLimit). On SQLite, whose statements run on one
/// thread, one that is under way is not interrupted: its limit is looked at behind it, and then it is undone.
///
/// The rule of [`Tx`](crate::Tx) about role and search path holds for the statements together: behind them the
/// engine's tables are within reach, and the same.
///
/// The first 256 different texts that an engine sees are prepared once for each connection, those of an
/// `UPDATE` or of an insert of several rows, which diesel itself prepares anew each time, too.
///
/// A statement owns its values, because it is sent after the phase has returned:
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use atomic_phases::{Batch, PhaseResult, RequestContext, Sqlite};
/// use diesel::ExpressionMethods;
///
/// diesel::table! { rides (id) { id -> Text, user_id -> BigInt, } }
///
/// async fn book(batch: &mut Batch<'_, Sqlite>, ctx: &RequestContext, user: i64) -> PhaseResult<String> {
///     let ride = ctx.uuid(0).to_string();
///     let row = (rides::id.eq(ride.clone()), rides::user_id.eq(user));
///     batch.add(diesel::insert_into(rides::table).values(row));
///     Ok(ride)
/// }
/// # }
/// ```
pub struct Batch<'b, S: Store> {
    statements: &'b mut Statements<S>,
    staging: &'b mut Staging,
}

/// What a phase handed over.
pub(crate) struct Statements<S: Store> {
    pub(crate) all: Vec<S::Statement>,
    /// Whether one of them may need what stands before it.
    pub(crate) in_order: bool,
}

impl<S: Store> Default for Statements<S> {
    fn default() -> Self {
        Self { all: Vec::new(), in_order: false }
    }
}

impl<'b, S: Store> Batch<'b, S> {
    pub(crate) fn new(statements: &'b mut Statements<S>, staging: &'b mut Staging) -> Self {
        Self { statements, staging }
    }

    /// Adds a statement: an insert, an update, a delete of diesel, or a type of your own. It sees what
    /// the statements before it did.
    ///
    /// Added, not executed: where rustc misses `DerefMut` for `Batch`, a statement is executed on it
    /// (`.execute(batch).await?`), and either becomes `batch.add(statement)` or wants a
    /// [`Tx`](crate::Tx), if its answer is needed. A raw `COMMIT` or `ROLLBACK` is refused, and fails the
    /// phase.
    ///
    /// On SQLite several rows are several statements, as diesel does it there itself: add an insert for
    /// each, where PostgreSQL takes one with `.values(rows)`.
    pub fn add<Q>(&mut self, statement: Q)
    where
        Q: QueryFragment<<S::Connection as AsyncConnectionCore>::Backend>
            + QueryId
            + Send
            + 'static, // Sent after the phase has returned, so it owns its values: `id.eq(id.clone())`.
    {
        self.statements.in_order |= !self.statements.all.is_empty();
        self.statements.all.push(S::statement(statement));
    }

    /// Adds a statement that is independent of the others in this batch: it need not see what they do,
    /// and they need not see what it does, nor need their triggers. Inserts into several tables are the
    /// common case, and a foreign key between them is fine: it is looked at in the end.
    ///
    /// PostgreSQL is then sent one statement instead of a transaction of several, which is about half the
    /// work. Its parts see what was there before it: an update of a row that another part inserts finds
    /// no row, and of two parts that change one row only one does. [Add](Self::add) such in order. SQLite
    /// executes both kinds in order.
    pub fn add_independent<Q>(&mut self, statement: Q)
    where
        Q: QueryFragment<<S::Connection as AsyncConnectionCore>::Backend>
            + QueryId
            + Send
            + 'static,
    {
        self.statements.all.push(S::statement(statement));
    }

    /// As [`Tx::stage_job`](crate::Tx::stage_job).
    ///
    /// # Errors
    /// As there.
    pub fn stage_job(&mut self, name: &str, args: &impl Serialize) -> Result<JobId, PhaseError> {
        self.staging.stage(name, args)
    }
}

impl<S: Store> std::fmt::Debug for Batch<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("statements", &self.statements.all.len())
            .finish_non_exhaustive()
    }
}
