//! [`PgTransaction`]: an open transaction, and what its commit came to.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use diesel::QueryResult;
use diesel::result::Error;
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use futures_util::future::{join, maybe_done};

use super::connection::ConnectionGuard;
use super::error::{
    Mark, cannot_stage, is_of_a_failed_transaction, is_of_the_client, is_of_the_server,
    is_out_of_reach, is_refused_by_server,
};
use super::pool::WritablePool;
use super::session::{Known, KnownRow};
use super::time_limit::{answered, answered_within};
use super::{Pool, Postgres, commit_statements, numbered, session, sql};
use crate::job::StagedJob;
use crate::store::keyed_limit::KeyPermit;
use crate::store::row::{KeySummaryRow, key_summary};
use crate::store::shares::PhaseSlot;
use crate::store::{
    Change, Commit, Guard, KeySummary, NewRow, Refusal, StoreError, Transaction, TransactionId,
};

/// How long a rollback may take. It waits behind a statement that the phase gave up, with a time limit of
/// its own; past this, the connection is closed instead, and the server ends that statement and frees
/// its locks (G13).
const ROLLBACK_WITHIN: Duration = Duration::from_millis(500);

/// An open transaction. Dropped, it closes its connection, and the server rolls back.
pub struct PgTransaction<P: Pool> {
    pub(super) connection: ConnectionGuard<P>,
    /// Of one that a phase is given.
    known: Option<Known>,
    /// Of the key that it is about to create: until then the others of this process wait in memory.
    pub(super) turn: Option<KeyPermit>,
    /// Behind the connection, and so free only when that has gone back.
    _place: Option<PhaseSlot>,
}

impl<P: Pool> Transaction<Postgres<P>> for PgTransaction<P> {
    fn connection(&mut self) -> Result<&mut AsyncPgConnection, StoreError> {
        self.connection.exclusive()
    }

    fn id(&self) -> Option<TransactionId> {
        self.known.as_ref().map(Known::id)
    }

    async fn commit(self, guard: &Guard<'_>, change: &Change<'_>, jobs: &[StagedJob]) -> Commit {
        match self.try_commit(guard, change, jobs).await {
            Ok(commit) => commit,
            Err(error) => Commit::Failed(error),
        }
    }

    async fn rollback(self) {
        let rolled_back = match self.connection.shared() {
            Ok(conn) => {
                let sent = sql::Rollback {}.execute(&mut &*conn);
                answered_within(ROLLBACK_WITHIN, sent).await.is_ok()
            }
            Err(_) => false,
        };
        // Otherwise the guard closes the connection, which rolls back too.
        if rolled_back {
            self.connection.give_back();
        }
    }
}

impl<P: Pool> PgTransaction<P> {
    /// A connection on which `BEGIN` is about to be sent.
    pub(super) async fn begin(pool: &WritablePool<P>) -> Result<Self, StoreError> {
        Ok(Self {
            connection: ConnectionGuard::of(pool).await?.in_transaction()?,
            known: None,
            turn: None,
            _place: None,
        })
    }

    /// A connection on which a statement is about to be sent that is a transaction by itself.
    pub(super) async fn single(pool: &WritablePool<P>) -> Result<Self, StoreError> {
        Ok(Self {
            connection: ConnectionGuard::of(pool).await?,
            known: None,
            turn: None,
            _place: None,
        })
    }

    /// One that holds its phase's place until it ends.
    pub(super) fn at(self, place: PhaseSlot) -> Self {
        Self { _place: Some(place), ..self }
    }

    /// Known by what its first statement answered. A session that has lost what was said to it is told again.
    pub(super) async fn known_by(
        self,
        told: impl IntoIterator<Item = KnownRow>,
    ) -> Result<Self, StoreError> {
        let told = told.into_iter().next();
        let lost = || StoreError::database("begin a transaction", Error::NotFound);
        let (number, jobs, is_set_up) = told.ok_or_else(lost)?;
        let known = Some(Known { number, jobs });
        if is_set_up {
            return Ok(Self { known, ..self });
        }
        let conn = self.connection.shared()?;
        let said = answered(session::SetUp {}.execute(&mut &*conn)).await;
        let (tx, _) = self.unless_refused("set up the session", said).await?;
        Ok(Self { known, ..tx })
    }

    /// Ends a transaction that found the key reserved, and looks at its row, in one round trip.
    pub(super) async fn undo_and_look(
        self,
        row: &NewRow<'_>,
    ) -> Result<Option<KeySummary>, StoreError> {
        let look = sql::Look { scope: row.scope.as_str(), key: row.key.as_str() };
        let conn = self.connection.shared()?;
        let (undone, seen) = answered(both(
            sql::Rollback {}.execute(&mut &*conn),
            look.load::<KeySummaryRow>(&mut &*conn),
        ))
        .await
        .map_err(|error| StoreError::database("read the key", error))?;
        undone.map_err(|error| StoreError::database("undo a reservation", error))?;
        let rows = self.connection.settle("read the key", seen).await?;
        rows.into_iter().next().map(key_summary).transpose()
    }

    /// Goes on, unless a statement of the engine's was refused: then the connection goes back to its
    /// pool, if it still is one. A server that ends a connection says so in its own language; that no
    /// other statement is answered after it is the same in all.
    pub(super) async fn unless_refused<T>(
        self,
        doing: &'static str,
        answer: Result<T, Error>,
    ) -> Result<(Self, T), StoreError> {
        match answer {
            Ok(value) => Ok((self, value)),
            Err(error) if !is_of_the_server(&error) => Err(StoreError::database(doing, error)),
            Err(error) => {
                let conn = self.connection.shared()?;
                match answered(sql::Rollback {}.execute(&mut &*conn)).await {
                    Err(lost) => Err(StoreError::database(doing, lost)),
                    Ok(_) => {
                        self.connection.give_back_after(&error);
                        Err(StoreError::database(doing, error))
                    }
                }
            }
        }
    }

    /// Guarded update, with the jobs, and `COMMIT` in one round trip. That is safe because the update raises
    /// an error where it matches no row, and so turns the `COMMIT` behind it into a rollback; and because the `COMMIT` is
    /// not sent where the update was not.
    async fn try_commit(
        mut self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        jobs: &[StagedJob],
    ) -> Result<Commit, StoreError> {
        if self.connection.is_nested()? {
            self.rollback().await;
            return Ok(Commit::Refused(Refusal::OpenSavepoint));
        }
        let conn = self.connection.shared()?;
        let gone = || StoreError::database("commit", Error::BrokenTransactionManager);
        let known = self.known.as_ref().ok_or_else(gone)?;
        let advance = commit_statements::Advance::new(guard, change, known);
        let sent = match jobs {
            [] => {
                let advance = numbered::load::<_, i32>(conn, &advance);
                answered(and_commit(advance, sql::CommitTx {}.execute(&mut &*conn))).await
            }
            [job] => {
                let advance = commit_statements::AdvanceAndStageOne::new(advance, guard, job);
                let advance = numbered::load::<_, i32>(conn, &advance);
                answered(and_commit(advance, sql::CommitTx {}.execute(&mut &*conn))).await
            }
            jobs => {
                let advance = commit_statements::AdvanceAndStage::new(advance, guard, jobs);
                let advance = numbered::load::<_, i32>(conn, &advance);
                answered(and_commit(advance, sql::CommitTx {}.execute(&mut &*conn))).await
            }
        };
        match sent {
            Ok(Ok((advanced, committed))) => Ok(self.concluded(advanced, committed)),
            // The connection is closed, which rolls back.
            Ok(Err(refused)) => Err(StoreError::database("write the recovery point", refused)),
            Err(error) => Ok(Commit::Unknown(StoreError::database("commit", error))),
        }
    }

    /// What became of a transaction by the answer of the engine's statement, or the first error, and
    /// that of the `COMMIT` which was sent along.
    pub(super) fn concluded<T>(
        self,
        head: Result<T, Error>,
        commit: Result<usize, Error>,
    ) -> Commit {
        let Err(error) = head else {
            return self.committed(commit.map(drop));
        };
        // Lost, or an answer that the client cannot read.
        if !is_of_the_server(&error) {
            return Commit::Unknown(StoreError::database("commit", error));
        }
        // The server refused a statement, so its COMMIT was a rollback, whatever it answered.
        if commit.is_ok() {
            self.connection.give_back_after(&error);
        }
        // All of these are the engine's own: they find the transaction failed where the phase ignored
        // an error of its statements.
        if is_of_a_failed_transaction(&error) {
            Commit::Refused(Refusal::SwallowedError)
        } else if is_out_of_reach(&error) {
            Commit::Refused(Refusal::OutOfReach)
        } else {
            refused("write the recovery point", error)
        }
    }

    pub(super) fn committed(self, answer: Result<(), Error>) -> Commit {
        match answer {
            Ok(()) => {
                self.connection.give_back();
                Commit::Done(())
            }
            // A constraint that was deferred to the commit, or a serialization failure: the server
            // said no. Any other error may hide a commit that was applied (H4, H9).
            Err(error) if is_refused_by_server(&error) => {
                Commit::Failed(StoreError::database("commit", error))
            }
            Err(error) => Commit::Unknown(StoreError::database("commit", error)),
        }
    }
}

/// What a statement of the engine's, or another statement of its transaction, was refused for.
pub(super) fn refused<T>(doing: &'static str, error: Error) -> Commit<T> {
    match Mark::of(&error) {
        Some(Mark::Exists | Mark::Fenced) => Commit::Fenced,
        Some(Mark::Left) => Commit::Refused(Refusal::LeftTransaction),
        _ if cannot_stage(&error) => Commit::Refused(Refusal::OutOfReach),
        _ => Commit::Failed(StoreError::database(doing, error)),
    }
}

/// Two statements that are sent together: each answers for itself.
pub(super) async fn both<A: Future, B: Future>(
    a: A,
    b: B,
) -> Result<(A::Output, B::Output), Error> {
    Ok(join(a, b).await)
}

/// A statement and the `COMMIT` behind it, sent together: each answers for itself. Or the error for which the client did
/// not send the statement (one larger than a message may be): the `COMMIT`, which would commit what stands before it, is
/// not sent then either. It is polled, and so sent, in its turn, as in [`pipelined`](super::pipelined).
async fn and_commit<T>(
    statement: impl Future<Output = QueryResult<T>>,
    commit: impl Future<Output = QueryResult<usize>>,
) -> QueryResult<Result<(QueryResult<T>, QueryResult<usize>), Error>> {
    let (mut statement, mut commit) = (pin!(maybe_done(statement)), pin!(maybe_done(commit)));
    poll_fn(|context| {
        let pending = statement.as_mut().poll(context).is_pending();
        if let Some(Err(error)) = statement.as_mut().output_mut()
            && is_of_the_client(error)
        {
            return Poll::Ready(());
        }
        match commit.as_mut().poll(context).is_pending() || pending {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
    match (statement.take_output(), commit.take_output()) {
        (Some(told), Some(committed)) => Ok(Ok((told, committed))),
        (Some(Err(refused)), None) => Ok(Err(refused)),
        _ => Err(Error::BrokenTransactionManager),
    }
}

opaque! {
    [P: Pool] PgTransaction<P>;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use diesel::result::DatabaseErrorKind;

    use super::*;

    /// Whether `COMMIT` is sent behind a statement that ends with this error, after it was prepared or had been before.
    async fn is_committed(error: impl Fn() -> Error) -> [bool; 2] {
        let mut all = [false; 2];
        for (is_prepared, sent) in [true, false].into_iter().zip(&mut all) {
            let is_sent = Cell::new(false);
            let turn = async || {
                if !is_prepared {
                    tokio::task::yield_now().await;
                }
            };
            let statement = async {
                turn().await;
                Err::<(), _>(error())
            };
            let commit = async {
                turn().await;
                is_sent.set(true);
                Ok(0)
            };
            let told = and_commit(statement, commit).await.unwrap();
            *sent = is_sent.get();
            assert_eq!(told.is_ok(), *sent);
        }
        all
    }

    /// What the client refuses is not sent, and nothing is behind it that would commit the phase's writes alone. An error
    /// of the server's turns the `COMMIT` into a rollback. Behind an answer that the client cannot read, `COMMIT` may have been
    /// executed: it is not taken for one that was not sent (G7).
    #[tokio::test]
    async fn g4_no_commit_is_sent_behind_what_the_client_refused() {
        let of_a_kind = |kind, text: &str| Error::DatabaseError(kind, Box::new(text.to_owned()));
        let too_large = "error encoding message to server";
        let too_large = || of_a_kind(DatabaseErrorKind::UnableToSendCommand, too_large);
        assert_eq!(is_committed(too_large).await, [false; 2]);
        assert_eq!(is_committed(|| Error::SerializationError("no".into())).await, [false; 2]);
        let of_the_server = || of_a_kind(DatabaseErrorKind::Unknown, "fenced");
        assert_eq!(is_committed(of_the_server).await, [true; 2]);
        assert_eq!(is_committed(|| Error::DeserializationError("no".into())).await, [true; 2]);
    }
}
