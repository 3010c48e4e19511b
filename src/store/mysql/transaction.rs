//! [`MysqlTransaction`]: the open transaction of a phase, from its mark to its commit.
//!
//! The mark is a savepoint right behind the begin. Whatever ends the transaction behind the engine's back
//! ends the savepoint too: a raw `COMMIT`, any DDL (one that fails, too), a deadlock. Releasing it is the
//! first statement of the commit, and fails then (G4).

use std::ops::Range;

use diesel::result::Error;
use mysql_async::Row;
use tokio::time::Instant;

use super::block::Block;
use super::connection::{Answers, MysqlConn};
use super::error::Failure;
use super::literal::BoundStatement;
use super::pool::{Checkout, ConnectionGuard, MysqlPool};
use super::statements as sql;
use super::waits::{LockWait, WAIT_A_SECOND, WAIT_FOR_TABLES_AS_SERVER_SAYS};
use super::watch::{Watch, gone};
use super::{ANSWER_WITHIN, KeyPermit, Mysql};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::store::shares::PhaseSlot;
use crate::store::swallowed::PhaseState;
use crate::store::{
    Change, Commit, Guard, Refusal, StoreError, Transaction, TransactionId, is_nested,
};

/// An open transaction. Dropped, it closes its connection, and the server rolls back.
pub struct MysqlTransaction {
    pub(super) connection: ConnectionGuard,
    /// Of the key that it is about to create: until then the others of this process wait in memory.
    pub(super) turn: Option<KeyPermit>,
    /// Behind the connection, and so free only when that has gone back.
    pub(super) place: Option<PhaseSlot>,
}

/// A text of several statements, and where in it what stands.
#[derive(Default)]
pub(super) struct Script {
    text: String,
    statements: usize,
}

impl Script {
    /// Adds statements, and says the place of the first.
    pub(super) fn push(&mut self, sql: &str) -> usize {
        self.add(sql, sql.split("; ").count())
    }

    /// Adds one statement, whatever text or name is in it, and says its place.
    fn push_one(&mut self, sql: &str) -> usize {
        self.add(sql, 1)
    }

    /// Adds one statement of the engine's with what is bound in it.
    pub(super) fn push_bound(&mut self, bound: BoundStatement) -> usize {
        self.push_one(&bound.into_text())
    }

    /// Adds the `COMMIT`, and says its place.
    pub(super) fn push_commit(&mut self) -> usize {
        self.push_one(WAIT_FOR_TABLES_AS_SERVER_SAYS);
        self.push_one(sql::COMMIT)
    }

    fn add(&mut self, sql: &str, statements: usize) -> usize {
        let at = self.statements;
        if !self.text.is_empty() {
            self.text.push_str("; ");
        }
        self.text.push_str(sql);
        self.statements += statements;
        at
    }

    pub(super) async fn send(&self, conn: &mut MysqlConn) -> Answers {
        conn.texts(&self.text).await
    }
}

impl MysqlTransaction {
    /// One of the engine's alone, that begins when the script is sent.
    async fn begin(pool: &MysqlPool, checkout: Checkout) -> Result<(Self, Script), StoreError> {
        let tx = Self::of(ConnectionGuard::by(pool, checkout).await?)?;
        let mut script = Script::default();
        let session = tx.connection.session();
        script.push(&session.begin(Isolation::ReadCommitted, LockWait::Engine));
        Ok((tx, script))
    }

    /// One that is about to begin. From here on the connection goes back to the pool only by way of an end.
    pub(super) async fn on(pool: &MysqlPool) -> Result<Self, StoreError> {
        Self::of(ConnectionGuard::of(pool).await?)
    }

    fn of(mut connection: ConnectionGuard) -> Result<Self, StoreError> {
        let watching = connection.begin_watching();
        watching.map_err(|error| StoreError::database("begin a transaction", error))?;
        Ok(Self { connection, turn: None, place: None })
    }

    /// Begins it. The rows of the statement that pins what it sees, if there is one.
    pub(super) async fn open(
        &mut self,
        isolation: Isolation,
        pin: Option<BoundStatement>,
    ) -> Result<Vec<Row>, Failure> {
        let session = self.connection.session();
        if session.has_blocks {
            let block = Block::opening(session, isolation, pin);
            let opened = block.send(&mut self.connection, Instant::now() + ANSWER_WITHIN).await;
            return opened.map_err(|trouble| trouble.failure);
        }
        let mut script = Script::default();
        script.push(&session.begin(isolation, LockWait::of_a_begin(pin.as_ref())));
        if let Some(pin) = pin {
            script.push_bound(pin);
            script.push(&session.server_lock_wait());
        }
        let Answers { rows, failure } = script.send(&mut self.connection).await;
        failure.map_or(Ok(rows.into_iter().flatten().collect()), Err)
    }

    /// It has ended, and its session is at rest.
    pub(super) fn end(mut self) {
        self.connection.stop_watching();
    }

    /// Ends it without a trace, and gives the connection back.
    pub(super) async fn undo(mut self) {
        if !self.connection.is_usable() {
            return;
        }
        let text = self.connection.session().rollback();
        if self.connection.texts(&text).await.failure.is_none() {
            self.connection.stop_watching();
        }
    }

    /// What the phase has done to its transaction, as far as the client knows.
    pub(super) fn broken_rule(&mut self) -> Option<Commit> {
        if !self.connection.is_usable() {
            // The answer of the last statement was not waited for: it may have been executed, and is rolled back.
            let lost = Failure::Lost("a statement's answer was not waited for".to_owned());
            return Some(Commit::Failed(StoreError::database("commit", lost)));
        }
        match self.connection.watch() {
            Watch::Phase(PhaseState::Failed) => {
                return Some(Commit::Refused(Refusal::SwallowedError));
            }
            Watch::Gone => return Some(Commit::Failed(StoreError::database("commit", gone()))),
            Watch::Off | Watch::Phase(PhaseState::Sound) => {}
        }
        is_nested(self.connection.status()).then_some(Commit::Refused(Refusal::OpenSavepoint))
    }

    /// The last text of a transaction: the mark, the engine's own writes, `COMMIT`. `write`: the guarded
    /// update, unless there is none.
    pub(super) async fn conclude(
        mut self,
        guard: &Guard<'_>,
        jobs: &[StagedJob],
        write: Option<&sql::Write>,
    ) -> Commit {
        if let Some(broken) = self.broken_rule() {
            self.undo().await;
            return broken;
        }
        let has_strayed = self.connection.has_strayed();
        if !has_strayed && Block::takes(self.connection.session(), &[], jobs) {
            return self.conclude_by_a_block(guard, jobs, write).await;
        }
        let mut script = Script::default();
        let mut homecoming: Vec<&str> = match has_strayed {
            true => self.connection.session().homecoming().collect(),
            false => Vec::new(),
        };
        homecoming.push(WAIT_A_SECOND);
        match concluding(&mut script, &homecoming, guard, jobs, write) {
            Ok(positions) => self.finish(script, positions).await,
            Err(error) => {
                self.undo().await;
                Commit::Failed(StoreError::database("write the recovery point", error))
            }
        }
    }

    async fn conclude_by_a_block(
        mut self,
        guard: &Guard<'_>,
        jobs: &[StagedJob],
        write: Option<&sql::Write>,
    ) -> Commit {
        let block = match Block::concluding(self.connection.session(), guard, jobs, write) {
            Ok(block) => block,
            Err(error) => {
                self.undo().await;
                return Commit::Failed(StoreError::database("write the recovery point", error));
            }
        };
        let sent = block.send(&mut self.connection, Instant::now() + ANSWER_WITHIN).await;
        let Err(trouble) = sent else {
            self.end();
            return Commit::Done(());
        };
        let commit = trouble.judge();
        if !matches!(commit, Commit::Unknown(_)) {
            self.undo().await;
        }
        commit
    }

    /// Sends a text that ends the transaction.
    pub(super) async fn finish(self, script: Script, positions: Positions) -> Commit {
        self.finish_with_rows(script, positions).await.0
    }

    /// And the rows of each of its statements.
    async fn finish_with_rows(
        mut self,
        mut script: Script,
        positions: Positions,
    ) -> (Commit, Vec<Vec<Row>>) {
        script.push(self.connection.session().at_rest());
        let Answers { rows, failure } = script.send(&mut self.connection).await;
        let is_at_rest = failure.is_none();
        let commit = positions.judge(rows.len(), failure);
        match &commit {
            Commit::Done(()) if is_at_rest => self.connection.stop_watching(),
            // The connection is closed, and a session that still executes it is ended.
            Commit::Done(()) | Commit::Unknown(_) => {}
            _ => self.undo().await,
        }
        (commit, rows)
    }
}

/// The positions of some statements in the last text of a transaction.
pub(super) struct Positions {
    /// The release of the mark. One of the engine's alone has none: the mark ends with the transaction.
    mark: Option<usize>,
    jobs: Range<usize>,
    /// What raises an error where the guarded statement found no row.
    raise: Option<usize>,
    commit: usize,
}

/// The last text of a phase's transaction.
fn concluding(
    script: &mut Script,
    homecoming: &[&str],
    guard: &Guard<'_>,
    jobs: &[StagedJob],
    write: Option<&sql::Write>,
) -> diesel::QueryResult<Positions> {
    let mark = script.push(sql::RELEASE);
    for statement in homecoming {
        script.push_one(statement);
    }
    for job in jobs {
        script.push_bound(BoundStatement::of(&sql::InsertJob::new(guard, job))?);
    }
    let jobs = mark + 1..script.statements;
    let raise = match write {
        Some(write) => {
            script.push_bound(BoundStatement::of(write)?);
            Some(script.push(RAISE_UNLESS_ONE))
        }
        None => None,
    };
    let commit = script.push_commit();
    Ok(Positions { mark: Some(mark), jobs, raise, commit })
}

/// A subquery of two rows, where no row was as the guard says.
const RAISE_UNLESS_ONE: &str =
    "SET @atomic_phases = IF(ROW_COUNT() = 1, 1, (SELECT 1 UNION ALL SELECT 2))";

/// A transaction of the engine's alone, in one round trip: a guarded statement, which is the last of `up_to_guarded`, and
/// what follows from it.
pub(super) async fn in_one_go(
    pool: &MysqlPool,
    checkout: Checkout,
    up_to_guarded: Vec<BoundStatement>,
    then: Vec<BoundStatement>,
) -> Commit {
    let (tx, mut script) = match MysqlTransaction::begin(pool, checkout).await {
        Ok(begun) => begun,
        Err(error) => return Commit::Failed(error),
    };
    for bound in up_to_guarded {
        script.push_bound(bound);
    }
    let raise = script.push(RAISE_UNLESS_ONE);
    for bound in then {
        script.push_bound(bound);
    }
    let commit = script.push_commit();
    tx.finish(script, Positions { raise: Some(raise), ..Positions::of_commit(commit) }).await
}

/// The same of many statements, each of which writes as much as it can, and is followed by one that tells what
/// that was: the rows of these.
pub(super) async fn each_in_one_go(
    pool: &MysqlPool,
    each: Vec<EachTold>,
) -> (Commit, Vec<Vec<Row>>) {
    let (tx, mut script) = match MysqlTransaction::begin(pool, Checkout::AsItIs).await {
        Ok(begun) => begun,
        Err(error) => return (Commit::Failed(error), Vec::new()),
    };
    // Of many rows one may be locked for a moment: that ends it for none of the others.
    script.push(WAIT_A_SECOND);
    let mut told = Vec::with_capacity(each.len());
    for EachTold { writes, tells } in each {
        for write in writes {
            script.push_bound(write);
        }
        told.push(script.push_bound(tells));
    }
    let commit = script.push_commit();
    let (commit, mut rows) = tx.finish_with_rows(script, Positions::of_commit(commit)).await;
    let told = told.into_iter().map(|at| rows.get_mut(at).map(std::mem::take).unwrap_or_default());
    (commit, told.collect())
}

/// What is written about one row, and the statement that tells what came of it.
pub(super) struct EachTold {
    pub(super) writes: Vec<BoundStatement>,
    pub(super) tells: BoundStatement,
}

impl Positions {
    /// Of a text that releases no mark, stages no jobs of a phase and raises no error.
    pub(super) fn of_commit(commit: usize) -> Self {
        Self { mark: None, jobs: 0..0, raise: None, commit }
    }

    /// What became of the transaction: told by how many statements of the text were answered.
    fn judge(&self, at: usize, failure: Option<Failure>) -> Commit {
        let Some(failure) = failure else { return Commit::Done(()) };
        if at > self.commit {
            // Only the settings of the session are not as they were; so the connection is not used again.
            return Commit::Done(());
        }
        match at {
            _ if Some(at) == self.mark && failure.is_of_a_missing_savepoint() => {
                Commit::Refused(Refusal::LeftTransaction)
            }
            _ if Some(at) == self.raise && failure.is_raised() => Commit::Fenced,
            _ if failure.is_of_a_lock() && at < self.commit => Commit::Failed(StoreError::Locked),
            // The server has the whole text, and executes it.
            _ if failure.is_lost() => Commit::Unknown(StoreError::database("commit", failure)),
            _ if at == self.commit && !failure.is_certain_at_commit() => {
                Commit::Unknown(StoreError::database("commit", failure))
            }
            _ if at == self.commit => Commit::Failed(StoreError::database("commit", failure)),
            _ if self.jobs.contains(&at) => {
                Commit::Failed(StoreError::database("stage a job", failure))
            }
            _ => Commit::Failed(StoreError::database("write the recovery point", failure)),
        }
    }
}

impl Transaction<Mysql> for MysqlTransaction {
    fn connection(&mut self) -> Result<&mut MysqlConn, StoreError> {
        Ok(&mut self.connection)
    }

    /// Its session, which does not end before it: the server closes one that is idle in a transaction. `None` behind a
    /// proxy, which numbers its sessions itself: there, only the phase's time limit ends a phase whose transaction is gone.
    fn id(&self) -> Option<TransactionId> {
        let (number, server) = (self.connection.session_number()?, self.connection.server()?);
        Some(TransactionId(format!("{number} {server}")))
    }

    async fn commit(self, guard: &Guard<'_>, change: &Change<'_>, jobs: &[StagedJob]) -> Commit {
        self.conclude(guard, jobs, Some(&sql::Write::new(guard, change))).await
    }

    async fn rollback(self) {
        self.undo().await;
    }
}

impl From<Failure> for crate::error::DbError {
    fn from(failure: Failure) -> Self {
        Self::from(Error::from(failure))
    }
}

opaque! {
    [] MysqlTransaction;
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::key::{IdempotencyKey, Scope};

    #[test]
    fn g4_a_database_of_any_name_moves_no_place() {
        let (scope, key) = (Scope::new("one").unwrap(), IdempotencyKey::new("k").unwrap());
        let (request_id, lease_token, recovery_point) = (Uuid::nil(), 1, "started");
        let guard = Guard { scope: &scope, key: &key, request_id, lease_token, recovery_point };
        let places = |home: &str| {
            let mut script = Script::default();
            let homecoming = ["SET a = 1", home];
            let of = concluding(&mut script, &homecoming, &guard, &[], None).unwrap();
            (of.mark, of.jobs, of.raise, of.commit)
        };
        assert_eq!(places("USE `a; b`"), places("USE `rides`"));
        assert_eq!(places("USE `a; b`"), (Some(0), 1..3, None, 4));
    }
}
