//! How the engine's statements and transactions are handed to the connection's thread.

use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error};
use diesel::{Connection, QueryResult, SqliteConnection};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::group::{Queued, Start, Waiting, Work};
use super::statement::Sharing;
use super::transaction::{SqliteTransaction, begin};
use super::turns::ConnectionGuard;
use super::{Sqlite, WRITER_WAIT};
use crate::movable_task;
use crate::store::{Commit, StoreError, Transaction};

impl Sqlite {
    /// The connection, as the writer before left it.
    pub(super) async fn writer(&self, until: Instant) -> Result<ConnectionGuard, StoreError> {
        let waiting = timeout_at(until, self.lock.clone().acquire());
        // It may have become free only behind what kept this task from being polled until now.
        match waiting.await {
            Ok(conn) if Instant::now() < until => Ok(conn),
            _ => Err(too_many_before()),
        }
    }

    /// Runs `work` on the connection's thread. Once it has begun it runs to its end, whatever becomes of
    /// this future; and it does not begin where this future was dropped before.
    pub(super) async fn run<R: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut SqliteConnection) -> QueryResult<R> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let statement = Work::Statement(Box::new(move |conn| {
            let _ = answer.send(conn.outside(work));
        }));
        match self.hand_over(statement, answered).await {
            Some(answer) => answer
                .unwrap_or_else(|_| Err(thread_gone()))
                .map_err(|error| StoreError::database(doing, error)),
            None => Err(too_many_before()),
        }
    }

    /// Hands `work` over and waits for its answer; `None` where it did not begin in time.
    async fn hand_over<T>(
        &self,
        work: Work,
        mut answered: oneshot::Receiver<T>,
    ) -> Option<Result<T, oneshot::error::RecvError>> {
        let start = Start::default();
        let _given_up = GivenUp(start.clone());
        self.handed_over.note();
        let _ = self.work.send(Queued { lock: self.lock.clone(), start: start.clone(), work });
        match tokio::time::timeout(WRITER_WAIT, &mut answered).await {
            Err(_) if start.take() => None,
            Err(_) => Some(answered.await),
            Ok(told) => Some(told),
        }
    }

    /// [`guarded_then`], in one transaction.
    pub(super) async fn together(
        &self,
        doing: &'static str,
        guarded: impl QueryFragment<diesel::sqlite::Sqlite> + QueryId + Send + 'static,
        then: Option<impl QueryFragment<diesel::sqlite::Sqlite> + QueryId + Send + 'static>,
    ) -> Result<bool, StoreError> {
        self.run(doing, move |conn| {
            conn.immediate_transaction(|conn| guarded_then(conn, &guarded, then.as_ref()))
        })
        .await
    }

    pub(super) async fn begin_with<R: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut SqliteConnection) -> QueryResult<R> + Send + 'static,
    ) -> Result<(SqliteTransaction, R), StoreError> {
        let until = Instant::now() + WRITER_WAIT;
        let moved = movable_task::move_to(&self.task_queue).await;
        let mut tx = SqliteTransaction { conn: Some(self.writer(until).await?), _moved: moved };
        let answer = tx.connection()?.spawn_blocking(move |conn| {
            let value = conn.outside(|conn| {
                begin(conn)?;
                work(conn)
            })?;
            conn.watch();
            Ok(value)
        });
        let value = answer.await.map_err(|error| StoreError::database(doing, error))?;
        Ok((tx, value))
    }

    /// A transaction, from its begin to its commit, on the connection's thread. `None` from `work`: the row is
    /// another holder's, and nothing is written.
    pub(super) async fn in_one_transaction<R: Send + 'static>(
        &self,
        sharing: Sharing,
        work: impl FnMut(&mut SqliteConnection) -> QueryResult<Option<R>> + Send + 'static,
    ) -> (Commit, Option<R>) {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { work, came_to: None, answer };
        match self.hand_over(Work::Transaction(sharing, Box::new(waiting)), answered).await {
            Some(Ok(told)) => told,
            Some(Err(_)) => {
                (Commit::Unknown(StoreError::database("write the phase", thread_gone())), None)
            }
            None => (Commit::Failed(too_many_before()), None),
        }
    }
}

pub(super) fn thread_gone() -> Error {
    let message = "the database thread is gone".to_owned();
    Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand, Box::new(message))
}

fn too_many_before() -> StoreError {
    StoreError::NoConnection("the writers before this one took over ten seconds".to_owned())
}

/// A future that is dropped before its turn has not begun (G13).
struct GivenUp(Start);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// Executes a guarded statement, and what follows from it. `false` where the row is not as it says.
pub(super) fn guarded_then(
    conn: &mut SqliteConnection,
    guarded: &(impl QueryFragment<diesel::sqlite::Sqlite> + QueryId),
    then: Option<&(impl QueryFragment<diesel::sqlite::Sqlite> + QueryId)>,
) -> QueryResult<bool> {
    let is_as_it_says = conn.execute_returning_count(guarded)? == 1;
    if let Some(then) = then.filter(|_| is_as_it_says) {
        conn.execute_returning_count(then)?;
    }
    Ok(is_as_it_says)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::super::group::MAX_TOGETHER;
    use super::*;

    /// A phase without a time limit may hold the connection for as long as it likes.
    #[tokio::test]
    async fn g17_what_was_given_up_is_not_kept_until_the_connection_is_free() {
        let store = Sqlite::connect(":memory:").await.unwrap();
        let held = store.writer(Instant::now() + WRITER_WAIT).await.unwrap();
        let rows = Arc::new(());
        for _ in 0..1000 {
            let row = rows.clone();
            let write = store.run("write", move |_| {
                drop(row);
                Ok(())
            });
            // Handed over, and given up.
            assert!(write.now_or_never().is_none());
        }
        let kept = || Arc::strong_count(&rows) - 1;
        let until = Instant::now() + Duration::from_secs(5);
        while kept() > 2 * MAX_TOGETHER && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(kept() <= 2 * MAX_TOGETHER, "{} are kept", kept());
        drop(held);
        store.run("write", |_| Ok(())).await.unwrap();
    }

    /// So those that wait behind a statement which kept the thread for long do not do the same one after the other.
    #[tokio::test]
    async fn g12_a_turn_that_comes_too_late_is_refused() {
        let store = Sqlite::connect(":memory:").await.unwrap();
        let late = store.writer(Instant::now()).await;
        assert!(matches!(late, Err(StoreError::NoConnection(_))));
        assert!(store.writer(Instant::now() + WRITER_WAIT).await.is_ok(), "it is free");
    }
}
