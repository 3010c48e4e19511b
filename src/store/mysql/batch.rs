//! What a phase hands over: its statements, executed one by one behind the begin, and the guarded update last.
//! So a statement that commits behind the engine's back has no recovery point to take along (G4).

use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::QueryFragment;
use diesel::result::Error;
use mysql_async::{Row, from_row_opt};
use tokio::time::{Instant, timeout_at};

use super::Mysql;
use super::connection::Answers;
use super::error::Failure;
use super::literal::Bound;
use super::session::Session;
use super::statements as sql;
use super::transaction::{MysqlTransaction, Script};
use super::watch::only_touches_rows;
use crate::definition::Isolation;
use crate::store::{Change, Commit, Guard, NewRow, Refusal, RowTimes, StoreError, Writes};

/// A statement of a phase, to be executed later.
pub struct Statement {
    bound: QueryResult<Bound>,
}

impl Statement {
    pub(super) fn of(query: &impl QueryFragment<Db>) -> Self {
        Self { bound: Bound::of(query) }
    }

    fn is_refused(&self) -> bool {
        self.bound.as_ref().is_ok_and(|bound| !only_touches_rows(&bound.sql))
    }
}

/// The rule that a phase breaks by what it hands over.
pub(super) fn refusal(writes: &Writes<'_, Mysql>) -> Option<Refusal> {
    let is_refused = writes.statements.all.iter().any(Statement::is_refused);
    is_refused.then_some(Refusal::LeftTransaction)
}

/// How often a reservation that lost a deadlock is tried: with three duplicates of one key, of which the first
/// rolls back, InnoDB lets one of the other two lose it.
pub(super) const TRIES: u32 = 3;

/// What a text that creates a row came to.
#[expect(clippy::large_enum_variant, reason = "taken apart where it is returned")]
pub(super) enum Created {
    /// It is there, in this open transaction.
    Yes { tx: MysqlTransaction, created_at: i64, advanced_at: i64, expires_at: i64 },
    /// The key has a row.
    Exists,
    /// Another transaction is about to create it.
    Busy,
}

impl Mysql {
    /// Begins a transaction and creates the row in it, in one round trip.
    pub(super) async fn create_row(
        &self,
        row: &NewRow<'_>,
        insert: impl Fn() -> QueryResult<Bound>,
    ) -> Result<Created, StoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_to_create(row, insert()).await {
                Err(Trouble { failure }) if failure.has_undone_all() => {
                    if tries == TRIES {
                        return Ok(Created::Busy);
                    }
                }
                Err(Trouble { failure }) if failure.is_lost() && tries == 1 => self.forget_idle(),
                Err(Trouble { failure }) if failure.is_of_a_unique_key() => {
                    return Ok(Created::Exists);
                }
                Err(Trouble { failure }) if failure.is_of_a_lock() => return Ok(Created::Busy),
                Err(Trouble { failure }) => {
                    return Err(StoreError::database(RESERVE, failure));
                }
                Ok(created) => return created,
            }
        }
    }

    async fn try_to_create(
        &self,
        row: &NewRow<'_>,
        insert: QueryResult<Bound>,
    ) -> Result<Result<Created, StoreError>, Trouble> {
        let (mut tx, mut script) =
            match MysqlTransaction::begin(&self.pool, Isolation::ReadCommitted).await {
                Ok(begun) => begun,
                Err(error) => return Ok(Err(error)),
            };
        if let Err(error) = fill(&mut script, tx.lent.session(), row, insert) {
            return Ok(Err(StoreError::database(RESERVE, error)));
        }
        let Answers { rows, failure } = script.send(&mut tx.lent).await;
        if let Some(failure) = failure {
            tx.undo().await;
            return Err(Trouble { failure });
        }
        Ok(match times(&rows) {
            Some((created_at, advanced_at, expires_at)) => {
                Ok(Created::Yes { tx, created_at, advanced_at, expires_at })
            }
            None => {
                tx.undo().await;
                Err(StoreError::database(RESERVE, Error::NotFound))
            }
        })
    }

    /// Executes what a phase hands over in its transaction, and commits with the guarded `write`, if there
    /// is one.
    pub(super) async fn execute_and_commit(
        mut tx: MysqlTransaction,
        guard: &Guard<'_>,
        write: Option<&sql::Write>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        const DOING: &str = "execute a statement of the phase";
        let until = Instant::now() + writes.within;
        for statement in writes.statements.all {
            let done = match statement.bound {
                Ok(bound) => match timeout_at(until, tx.lent.execute_one(bound)).await {
                    Ok(done) => done.map_err(Error::from),
                    // COMMIT was not sent: what was executed ends with the session.
                    Err(_) => return Commit::Failed(StoreError::TimeLimit),
                },
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tx.undo().await;
                return Commit::Failed(StoreError::database(DOING, error));
            }
        }
        tx.conclude(guard, writes.jobs, write).await
    }

    pub(super) async fn try_advance(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        match self.begin_guarded(isolation, guard).await {
            Ok(Some(tx)) => {
                let write = sql::Write::new(guard, change);
                Self::execute_and_commit(tx, guard, Some(&write), writes).await
            }
            Ok(None) => Commit::Fenced,
            Err(error) => Commit::Failed(error),
        }
    }

    pub(super) async fn try_create(
        &self,
        row: &NewRow<'_>,
        insert: impl Fn() -> QueryResult<Bound>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let (tx, now, expires_at) = match self.create_row(row, insert).await {
            Ok(Created::Yes { tx, advanced_at, expires_at, .. }) => (tx, advanced_at, expires_at),
            Ok(Created::Exists) => return Commit::Fenced,
            Ok(Created::Busy) => return Commit::Failed(StoreError::Locked),
            Err(error) => return Commit::Failed(error),
        };
        let committed = Self::execute_and_commit(tx, &row.guard(), None, writes).await;
        match (sql::time(now, "advanced_at"), sql::time(expires_at, "expires_at")) {
            (Ok(now), Ok(expires_at)) => committed.map(|()| RowTimes { now, expires_at }),
            (Err(error), _) | (_, Err(error)) => Commit::Unknown(error),
        }
    }
}

const RESERVE: &str = "reserve the key";

/// Why a text failed.
struct Trouble {
    failure: Failure,
}

/// Behind the begin: the row, with its own bound for the wait, and its times.
fn fill(
    script: &mut Script,
    session: &Session,
    row: &NewRow<'_>,
    insert: QueryResult<Bound>,
) -> QueryResult<()> {
    if let Some(request_id) = row.replaces {
        script.push_bound(Bound::of(&sql::DeleteExpired::of(row, request_id))?);
    }
    script.push(&session.waiting(&insert?.into_text(), row.lock_wait));
    script.push_bound(Bound::of(&sql::Times::of(row.scope, row.key))?);
    Ok(())
}

/// The last rows of a text.
fn times(rows: &[Vec<Row>]) -> Option<(i64, i64, i64)> {
    let row = rows.iter().rev().find_map(|rows| rows.first())?;
    from_row_opt(row.clone()).ok()
}
