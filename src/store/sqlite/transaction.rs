//! [`SqliteTransaction`]: an open transaction of a phase, from its `BEGIN` to its end.

use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::result::Error;
use diesel::{QueryResult, RunQueryDsl, SqliteConnection};

use super::error::is_certain_at_commit;
use super::statement::stage;
use super::turns::ConnectionGuard;
use super::watched::WatchedConnection;
use super::{Sqlite, SqliteConn, statements as sql};
use crate::job::StagedJob;
use crate::movable_task::MovedGuard;
use crate::store::{Change, Commit, Guard, Refusal, StoreError, Transaction, is_nested};

/// An open transaction. Dropped, it is rolled back by the connection's thread, before whatever the
/// next writer sends.
pub struct SqliteTransaction {
    pub(super) conn: Option<ConnectionGuard>,
    /// On the connection's thread, where the task of the transaction could go there.
    pub(super) _moved: MovedGuard,
}

impl Transaction<Sqlite> for SqliteTransaction {
    fn connection(&mut self) -> Result<&mut SqliteConn, StoreError> {
        self.conn.as_deref_mut().ok_or_else(|| {
            StoreError::database("use a transaction that has ended", Error::NotInTransaction)
        })
    }

    async fn commit(
        mut self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        jobs: &[StagedJob],
    ) -> Commit {
        let write = sql::Write::new(guard, change);
        let jobs: Vec<_> = jobs.iter().map(|job| sql::InsertJob::new(guard, job)).collect();
        self.finish(move |conn| {
            if let Err(error) = conn.check_file() {
                return Commit::Failed(StoreError::database("commit", error));
            }
            if conn.has_failed() {
                return Commit::Refused(Refusal::SwallowedError);
            }
            let conn = conn.unwatched();
            // A raw COMMIT or ROLLBACK of the phase ended our savepoint with the transaction (H7).
            if conn.batch_execute(RELEASE).is_err() {
                return Commit::Refused(Refusal::LeftTransaction);
            }
            if is_nested(AnsiTransactionManager::transaction_manager_status_mut(conn)) {
                return Commit::Refused(Refusal::OpenSavepoint);
            }
            for job in jobs {
                if let Err(error) = stage(conn, &job) {
                    return Commit::Failed(StoreError::database("stage a job", error));
                }
            }
            match write.execute(conn) {
                Ok(1) => commit(conn),
                Ok(_) => Commit::Fenced,
                Err(error) => {
                    Commit::Failed(StoreError::database("write the recovery point", error))
                }
            }
        })
        .await
    }

    async fn rollback(self) {
        // As in Drop, and here the caller may wait for it.
        drop(self);
    }
}

impl SqliteTransaction {
    pub(super) async fn finish(
        &mut self,
        work: impl FnOnce(&mut WatchedConnection) -> Commit + Send + 'static,
    ) -> Commit {
        let Some(mut conn) = self.conn.take() else {
            return Commit::Failed(StoreError::database("commit", Error::NotInTransaction));
        };
        let answer = conn.spawn_blocking(move |conn| {
            let commit = work(conn);
            conn.stop_watching();
            Ok(commit)
        });
        // It is in the thread's queue, in front of whatever the next writer sends.
        drop(conn);
        answer.await.unwrap_or_else(|error| Commit::Unknown(StoreError::database("commit", error)))
    }
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        if let Some(mut conn) = self.conn.take() {
            // Handed to the thread immediately; no task has to wait for it.
            drop(conn.spawn_blocking(|conn| {
                conn.stop_watching();
                Ok(())
            }));
        }
    }
}

pub(super) const RELEASE: &str = "RELEASE atomic_phases";

/// A deferred `BEGIN` that comes to write fails immediately where another process writes; this one waits.
pub(super) fn begin(conn: &mut SqliteConnection) -> QueryResult<()> {
    use diesel::connection::TransactionDepthChange::IncreaseDepth;
    conn.batch_execute("BEGIN IMMEDIATE; SAVEPOINT atomic_phases")?;
    // A user's nested transaction() is a savepoint of ours.
    AnsiTransactionManager::transaction_manager_status_mut(conn)
        .transaction_state()?
        .change_transaction_depth(IncreaseDepth)
}

pub(super) fn commit(conn: &mut SqliteConnection) -> Commit {
    match conn.batch_execute("COMMIT") {
        Ok(()) => Commit::Done(()),
        Err(error) if is_certain_at_commit(&error) => {
            Commit::Failed(StoreError::database("commit", error))
        }
        // A full disk or a failed fsync: what is in the log decides, and a read tells.
        Err(error) => Commit::Unknown(StoreError::database("commit", error)),
    }
}

opaque! {
    [] SqliteTransaction;
}
