//! [`Batch`]: the statements of a local phase that does not read their results.

use diesel::query_builder::{QueryFragment, QueryId};
use diesel_async::AsyncConnectionCore;
use serde::Serialize;

use super::tx::Staging;
use crate::phase::{JobId, PhaseError};
use crate::store::{Statements, Store};

/// The writes of a local phase, collected instead of executed: the fastest form for a phase that does not
/// read from the database.
///
/// The engine sends the recovery point, these statements and the staged jobs in one round trip, with all
/// guarantees of a [`Tx`](crate::Tx): everything commits together or not at all (G4), fenced
/// (G3). A failed statement fails the phase, like an error that the phase returns. A phase that
/// reads a result, for example the number of rows or a unique violation, takes a `Tx`.
///
/// | statements | sent to PostgreSQL |
/// |---|---|
/// | none, one, or several of which all after the first were [added as independent](Self::add_independent) | a single statement that contains them as parts: `WITH …, part AS (INSERT …) SELECT …` |
/// | several, [added](Self::add) in order | `BEGIN`, the recovery point, the statements one by one, `COMMIT` |
///
/// The statements are also sent one by one if one of them cannot be a part (a `SELECT`, a statement with a `WITH` or a
/// comment of its own, a `sql_query` with `$1` in it), if the server refuses the single statement (a table with a rule),
/// or if the phase has an isolation level of its own.
///
/// A part does not see the engine's write to the key's row, and if two parts insert into one table, its
/// statement trigger fires once, for both.
///
/// As the *first* phase of a request it also saves the round trip of the reservation: the key's row
/// is inserted together with the statements. Two concurrent duplicates may then both
/// compute their statements; only those of one are executed (G10). So the phase must have no other side effects.
///
/// The database may take 15 s for all of it, or as long as `#[phase(timeout = "60s")]` allows. Past it the
/// connection is closed; if nothing was committed, the request is released with
/// [`FailureCause::TimeLimit`](crate::engine::FailureCause::TimeLimit). On SQLite, whose statements run on one
/// thread, a running statement is not interrupted: its limit is checked when it ends, and then it is rolled back.
///
/// The rule of [`Tx`](crate::Tx) about role and search path applies to the statements together: after them, the
/// engine's tables must be accessible, and unchanged.
///
/// The first 256 different texts that an engine sees are prepared once for each connection, even those of an
/// `UPDATE` or of an insert of several rows, which diesel itself prepares anew each time.
///
/// A statement owns its values, because it is sent after the phase has returned:
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use atomic_phases::store::Sqlite;
/// use atomic_phases::{Batch, PhaseResult, RequestContext};
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

impl<'b, S: Store> Batch<'b, S> {
    pub(crate) fn new(statements: &'b mut Statements<S>, staging: &'b mut Staging) -> Self {
        Self { statements, staging }
    }

    /// Adds a statement: a diesel insert, update or delete, or a type of your own. It sees the effects of
    /// the statements before it.
    ///
    /// The statement is added, not executed. If rustc reports that `DerefMut` is missing for `Batch`, a statement is
    /// executed on it (`.execute(batch).await?`): write `batch.add(statement)` instead, or take a
    /// [`Tx`](crate::Tx) if the phase needs the result. A raw `COMMIT` or `ROLLBACK` is refused, and fails the
    /// phase.
    ///
    /// On SQLite, diesel inserts several rows with several statements: add an insert for
    /// each row. On PostgreSQL, one insert with `.values(rows)` works.
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

    /// Adds a statement that is independent of the others in this batch: no statement of the two sides, and no trigger
    /// of one, needs to see the effects of the other side. Inserts into several tables are the
    /// common case; a foreign key between them is fine, because it is checked at the end.
    ///
    /// The engine then sends PostgreSQL a single statement instead of a transaction of several, which is about half
    /// the work. Its parts see the state before it: an update of a row that another part inserts finds
    /// no row, and if two parts change one row, only one takes effect. [Add](Self::add) such statements in order. SQLite
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
