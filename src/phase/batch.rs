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
/// The engine sends `BEGIN`, the recovery point, these statements in order, and `COMMIT` in one round
/// trip. All that a [`Tx`](crate::Tx) promises holds: everything commits together or not at all (G4),
/// fenced (G3). A statement that fails fails the phase, as an error that the phase returns does; a
/// phase that wants to look at an answer, the number of rows or a unique violation say, takes a `Tx`.
///
/// As the *first* phase of a request it also saves the round trip of the reservation: the key's row
/// travels along with the statements. Two duplicates that come at the same moment may then both
/// compute their statements; only those of one are executed (G10). So compute, and touch nothing else.
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

    /// Adds a statement: an insert, an update, a delete of diesel, or a type of your own.
    ///
    /// Added, not executed: where rustc misses `DerefMut` for `Batch`, a statement is executed on it
    /// (`.execute(batch).await?`), and either becomes `batch.add(statement)` or wants a
    /// [`Tx`](crate::Tx), if its answer is needed.
    ///
    /// On SQLite several rows are several statements, as diesel does it there itself: add an insert for
    /// each, where PostgreSQL takes one with `.values(rows)`.
    ///
    /// On PostgreSQL a statement whose text is the same each time is prepared once for each
    /// connection; of diesel's own that is an insert of one row without optional columns. An `UPDATE`
    /// of diesel's is prepared anew each time, one more round trip: a
    /// type with a static query id of yours avoids it (the guide is in `docs/bench.md`).
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

    /// Adds a statement that is independent of the others: it neither sees nor changes a row that
    /// another one of this batch writes, nor does a trigger of it. To insert into two tables is the
    /// common case; a foreign key between them is fine, for it is looked at in the end.
    ///
    /// Where all behind the first are independent, PostgreSQL is sent one statement, of which these are
    /// the parts (`WITH … AS (INSERT …)`), instead of a transaction of several: about half the work.
    /// Two parts that change the same row are one too many: PostgreSQL then executes either.
    /// SQLite executes them in order, as if they had been [added](Self::add).
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
