//! What a phase hands over: its statements, executed behind the begin, and the guarded update last. So a statement
//! that commits behind the engine's back has no recovery point to take along (G4). On MariaDB all of it is one
//! [`Block`], where the texts allow it; else they are executed one by one.

use std::time::{Duration, Instant};

use diesel::QueryResult;
use diesel::result::Error;
use mysql_async::{Row, from_row_opt};
use tokio::time::{self, timeout_at};

use super::another::{Another, Reason};
use super::block::{Block, Trouble};
use super::connection::{Answers, MysqlConn};
use super::error::Failure;
use super::literal::BoundStatement;
use super::named_statements::NamedStatements;
use super::place::Place;
use super::session::Session;
use super::statement::Statement;
use super::statements as sql;
use super::transaction::{MysqlTransaction, Script};
use super::waits::LockWait;
use super::{ANSWER_WITHIN, KeyPermit, Mysql};
use crate::definition::Isolation;
use crate::key::Scope;
use crate::store::patience::Patience;
use crate::store::row::millis;
use crate::store::shares;
use crate::store::{Change, Commit, Guard, NewRow, Refusal, RowTimes, StoreError, Writes};

/// The rule that a phase breaks by what it hands over.
pub(super) fn refusal(writes: &Writes<'_, Mysql>) -> Option<Refusal> {
    let is_refused = writes.statements.all.iter().any(Statement::is_refused);
    is_refused.then_some(Refusal::LeftTransaction)
}

/// How often a reservation that lost a deadlock is tried: with three duplicates of one key, of which the first
/// rolls back, InnoDB lets one of the other two lose it.
pub(super) const TRIES: u32 = 3;

/// What a text that creates a row came to.
#[allow(clippy::large_enum_variant, reason = "taken apart where it is returned")]
pub(super) enum Created {
    /// It is there, in this open transaction, since this time.
    Yes { tx: MysqlTransaction, at: i64 },
    /// The key has a row.
    Exists,
    /// Another transaction is about to create it.
    Busy,
}

impl Mysql {
    /// Waits for the others of this process that are about to create the same key. `None` where one of them still is,
    /// past the bound or when the caller has given up.
    pub(super) async fn turn(&self, row: &NewRow<'_>, until: Instant) -> Option<KeyPermit> {
        let key = (row.scope.clone(), row.key.clone());
        row.caller.unless_gone(self.keys.take(&key, until)).await.flatten()
    }

    /// Creates the row in an open transaction, once no other is about to do so. That is waited for in memory, without a
    /// connection (G16), until then or until the caller gives up.
    pub(super) async fn create_when_free(
        &self,
        row: &NewRow<'_>,
        until: Instant,
        insert: impl Fn() -> QueryResult<BoundStatement>,
    ) -> Result<Created, StoreError> {
        let mut patience = Patience::new(until.saturating_duration_since(Instant::now()));
        loop {
            let created = self.create_row(row, until, &insert).await?;
            let is_busy = matches!(created, Created::Busy);
            if !is_busy || row.caller.unless_gone(patience.pause()).await != Some(true) {
                return Ok(created);
            }
        }
    }

    /// The same with what the phase writes, and committed: one block.
    pub(super) async fn create_as_block(
        &self,
        row: &NewRow<'_>,
        until: Instant,
        insert: impl Fn() -> QueryResult<BoundStatement>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let mut patience = Patience::new(until.saturating_duration_since(Instant::now()));
        let handed_over = (&writes.statements.all[..], writes.jobs);
        let make = |session: &Session, named: &NamedStatements| {
            Block::creating(session, named, row, insert()?, handed_over)
        };
        let mut deadlocks = 0;
        loop {
            let another = Another::until(until, row.caller);
            let sent = self.as_block(row.scope, another, writes.within, handed_over.0, make);
            let trouble = match sent.await {
                Ok(Ok(rows)) => return created(row, &[rows]),
                Ok(Err(trouble)) => trouble,
                Err(error) => return Commit::Failed(error),
            };
            if trouble.at == Place::Reservation && trouble.failure.has_undone_all() {
                deadlocks += 1;
                match deadlocks < TRIES {
                    true => continue,
                    false => return Commit::Failed(StoreError::Locked),
                }
            }
            let is_busy = trouble.at == Place::Reservation && trouble.failure.is_of_a_lock();
            if !is_busy || row.caller.unless_gone(patience.pause()).await != Some(true) {
                return trouble.judge();
            }
        }
    }

    /// What a later phase writes, and its recovery point: one block.
    pub(super) async fn advance_as_block(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        let write = sql::Write::new(guard, change);
        let handed_over = (&writes.statements.all[..], writes.jobs);
        let make = |session: &Session, named: &NamedStatements| {
            Block::advancing(session, named, guard, &write, handed_over)
        };
        let another = Another::default();
        match self.as_block(guard.scope, another, writes.within, handed_over.0, make).await {
            Ok(Ok(_)) => Commit::Done(()),
            Ok(Err(trouble)) => trouble.judge(),
            Err(error) => Commit::Failed(error),
        }
    }

    /// Sends a block, which holds a place of its scope for as long as it takes. One that a dead connection could not
    /// even prepare is sent on another.
    async fn as_block(
        &self,
        scope: &Scope,
        mut another: Another<'_>,
        within: Duration,
        statements: &[Statement],
        make: impl Fn(&Session, &NamedStatements) -> QueryResult<Block>,
    ) -> Result<Result<Vec<Row>, Trouble>, StoreError> {
        loop {
            let place = self.shares.for_a_phase(scope).await?;
            let mut tx = MysqlTransaction::on(&self.pool).await?;
            tx.place = Some(place);
            let named = tx.connection.name_statements(statements).await;
            let told = match named {
                Ok(()) => {
                    let block = match make(tx.connection.session(), tx.connection.named()) {
                        Ok(block) => block,
                        Err(error) => {
                            tx.end();
                            return Err(StoreError::database("write the phase", error));
                        }
                    };
                    block.send(&mut tx.connection, time::Instant::now() + within).await
                }
                Err(failure) => Err(Trouble { at: Place::Nowhere, failure }),
            };
            let Err(trouble) = &told else {
                tx.end();
                return Ok(told);
            };
            tx.undo().await;
            let is_dead = matches!(trouble.failure, Failure::Lost(_));
            if !is_dead || trouble.at != Place::Nowhere {
                if is_dead {
                    self.forget_idle();
                } else if trouble.failure.is_of_reading_only() {
                    self.leave_read_only();
                }
                return Ok(told);
            }
            if !another.is_to_be_tried(self, Reason::of(&trouble.failure)).await {
                return Ok(told);
            }
        }
    }

    /// Begins a transaction and creates the row in it, in one round trip. Each try has a place of its scope for itself:
    /// a pause between two of them keeps none from other phases (G16).
    async fn create_row(
        &self,
        row: &NewRow<'_>,
        until: Instant,
        insert: impl Fn() -> QueryResult<BoundStatement>,
    ) -> Result<Created, StoreError> {
        let (mut deadlocks, mut another) = (0, Another::until(until, row.caller));
        loop {
            let place = self.shares.for_a_phase(row.scope).await?;
            match self.try_to_create(row, place, insert()).await {
                Err(failure) if failure.has_undone_all() => {
                    deadlocks += 1;
                    if deadlocks == TRIES {
                        return Ok(Created::Busy);
                    }
                }
                Err(failure) if failure.is_lost() => {
                    if !another.is_to_be_tried(self, Reason::of(&failure)).await {
                        return Err(StoreError::database(RESERVE, failure));
                    }
                }
                Err(failure) if failure.is_of_a_unique_key() => {
                    return Ok(Created::Exists);
                }
                Err(failure) if failure.is_of_a_lock() => return Ok(Created::Busy),
                Err(failure) => {
                    let error = StoreError::database(RESERVE, failure);
                    self.leave_behind(&error);
                    return Err(error);
                }
                Ok(created) => return created,
            }
        }
    }

    /// Tries it once. The place stays with the transaction, if it is still open.
    async fn try_to_create(
        &self,
        row: &NewRow<'_>,
        place: shares::PhaseSlot,
        insert: QueryResult<BoundStatement>,
    ) -> Result<Result<Created, StoreError>, Failure> {
        let mut tx = match MysqlTransaction::on(&self.pool).await {
            Ok(tx) => tx,
            Err(error) => return Ok(Err(error)),
        };
        tx.place = Some(place);
        let rows = match reserve(&mut tx.connection, row, insert).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(failure)) => {
                tx.undo().await;
                return Err(failure);
            }
            Err(error) => {
                tx.end();
                return Ok(Err(StoreError::database(RESERVE, error)));
            }
        };
        Ok(match time_told(&rows) {
            Some(at) => Ok(Created::Yes { tx, at }),
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
        let until = time::Instant::now() + writes.within;
        for statement in writes.statements.all {
            let done = match statement.bound {
                Ok(bound) => match timeout_at(until, tx.connection.execute_one(bound)).await {
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
        until: Instant,
        insert: impl Fn() -> QueryResult<BoundStatement>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let (tx, at) = match self.create_when_free(row, until, insert).await {
            Ok(Created::Yes { tx, at }) => (tx, at),
            Ok(Created::Exists) => return Commit::Fenced,
            Ok(Created::Busy) => return Commit::Failed(StoreError::Locked),
            Err(error) => return Commit::Failed(error),
        };
        let committed = Self::execute_and_commit(tx, &row.guard(), None, writes).await;
        match row_times(row, at) {
            Ok(times) => committed.map(|()| times),
            Err(error) => Commit::Unknown(error),
        }
    }
}

/// The times of a row that was created then.
pub(super) fn row_times(row: &NewRow<'_>, at: i64) -> Result<RowTimes, StoreError> {
    Ok(RowTimes {
        written_at: sql::time(at, "advanced_at")?,
        expires_at: sql::time(at.saturating_add(millis(row.retention)), "expires_at")?,
    })
}

/// What a block has told of the row that it created.
fn created(row: &NewRow<'_>, rows: &[Vec<Row>]) -> Commit<RowTimes> {
    let at = time_told(rows).ok_or(StoreError::Unreadable { column: "advanced_at" });
    match at.and_then(|at| row_times(row, at)) {
        Ok(times) => Commit::Done(times),
        Err(error) => Commit::Unknown(error),
    }
}

const RESERVE: &str = "reserve the key";

/// The begin, and behind it the row, whose lock is not waited for as long as a phase's are. Its time is the last row.
async fn reserve(
    conn: &mut MysqlConn,
    row: &NewRow<'_>,
    insert: QueryResult<BoundStatement>,
) -> QueryResult<Result<Vec<Vec<Row>>, Failure>> {
    let (insert, session) = (insert?, conn.session());
    if session.has_blocks {
        let block = Block::reserving(session, row, insert)?;
        let told = block.send(conn, time::Instant::now() + ANSWER_WITHIN).await;
        return Ok(told.map(|rows| vec![rows]).map_err(|trouble| trouble.failure));
    }
    let mut script = Script::default();
    script.push(&session.begin(Isolation::ReadCommitted, LockWait::Engine));
    if let Some(request_id) = row.replaces {
        script.push_bound(BoundStatement::of(&sql::DeleteExpired::of(row, request_id))?);
    }
    script.push_bound(insert);
    script.push(&session.server_lock_wait());
    script.push_bound(BoundStatement::of(&sql::WrittenAt::of(row.scope, row.key))?);
    let Answers { rows, failure } = script.send(conn).await;
    Ok(failure.map_or(Ok(rows), Err))
}

/// In the last rows of a text.
fn time_told(rows: &[Vec<Row>]) -> Option<i64> {
    let row = rows.iter().rev().find_map(|rows| rows.first())?;
    from_row_opt(row.clone()).ok()
}
