//! A whole transaction in one round trip, for a phase that hands its statements over.
//!
//! Where they can be parts of one statement, they are: [`single_statement`](super::single_statement). Else they travel
//! together, nothing waits for an answer, and so everything rests on order: each statement travels
//! prepared, is polled, and so sent, in their order, because diesel-async takes a statement out of
//! its cache, or prepares it, under one fair lock. The first statement behind `BEGIN` is the engine's
//! own: it raises where the row is not ours, which turns all that follows into nothing, and it ends the
//! connection where there is no transaction, so that nothing of what follows can commit by itself.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{Query, QueryFragment, QueryId};
use diesel::result::Error;
use diesel::sql_types::Integer;
use diesel_async::{AsyncConnectionCore, AsyncPgConnection, RunQueryDsl};
use futures_util::future::{BoxFuture, MaybeDone, OptionFuture, join3, join5, maybe_done};
use futures_util::{FutureExt, TryStreamExt};

use super::commit_statements::PhaseWrites;
use super::error::{Mark, cannot_stage, is_of_the_client, is_of_the_server};
use super::single_statement::{self, Answer};
use super::transaction::{PgTransaction, refused};
use super::twin::ROW_LOCK_WAIT;
use super::{Pool, Postgres, answered, answered_within, commit_statements, session, sql};
use crate::definition::Isolation;
use crate::store::{Change, Commit, Guard, NewRow, Refusal, RowTimes, StoreError, Writes};

type Executed<'c> = BoxFuture<'c, QueryResult<usize>>;

impl<P: Pool> Postgres<P> {
    pub(super) async fn create_in_one_trip(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: &mut Writes<'_, Self>,
    ) -> Result<Commit<RowTimes>, StoreError> {
        if writes.statements.all.iter().any(|statement| statement.about().ends) {
            return Ok(Commit::Refused(Refusal::LeftTransaction));
        }
        // To delete a row and to insert its successor takes two statements.
        let attempt = match row.replaces {
            None => self.merge_attempt(Isolation::ReadCommitted, writes),
            Some(_) => None,
        };
        if let Some(attempt) = attempt {
            let tx = PgTransaction::single(&self.pool).await?;
            let conn = tx.connection.shared()?;
            let create = commit_statements::CreateAndWrite {
                pool_origin: self.pool_origin,
                row: commit_statements::BornRow::new(row, created_at, change),
                writes: PhaseWrites::new(&row.guard(), writes),
            };
            if let Some(answer) = single_statement::send::<_, commit_statements::Made>(
                conn,
                self.pool_origin,
                create,
                writes.within,
            )
            .await
            {
                self.registry.ended(attempt, true);
                let has_lost = matches!(
                    &answer,
                    Answer::Commit((.., commit_statements::COMMITTED_AND_LOST), Ok(_))
                );
                return Ok(tx.set_up_if(has_lost).await.created(answer));
            }
            tx.connection.give_back();
        }
        let creation = self.create_pipelined(row, created_at, change, writes).await;
        if let (Some(attempt), Ok(Commit::Done(_))) = (attempt, &creation) {
            self.registry.ended(attempt, false);
        }
        creation
    }

    async fn create_pipelined(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: &mut Writes<'_, Self>,
    ) -> Result<Commit<RowTimes>, StoreError> {
        let tx = PgTransaction::begin(&self.pool).await?;
        let conn = tx.connection.shared()?;
        let begin = sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn);
        let set = session::Settings::new(Some(ROW_LOCK_WAIT));
        let set = set.execute(&mut &*conn);
        let make_room = row.replaces.map(|request_id| {
            sql::DeleteExpired { scope: row.scope.as_str(), key: row.key.as_str(), request_id }
                .execute(&mut &*conn)
        });
        let create = commit_statements::Create {
            row: commit_statements::BornRow::new(row, created_at, change),
        };
        let create = create.load::<commit_statements::Made>(&mut &*conn);
        // The bound is for the row only: the phase's statements keep the session's own.
        let reset = session::RestoreLockTimeout {}.execute(&mut &*conn);
        let head = async {
            let room = OptionFuture::from(make_room);
            let (begun, set, room, created, reset) = join5(begin, set, room, create, reset).await;
            begun.and(set).and(room.unwrap_or(Ok(0)))?;
            let made = created?.into_iter().next().ok_or(Error::NotFound)?;
            reset.map(|_| made)
        };
        let answer = self.send(conn, head, &row.guard(), writes).await;
        Ok(tx.created(answer))
    }

    pub(super) async fn advance_in_one_trip(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: &mut Writes<'_, Self>,
    ) -> Result<Commit, StoreError> {
        if writes.statements.all.iter().any(|statement| statement.about().ends) {
            return Ok(Commit::Refused(Refusal::LeftTransaction));
        }
        let attempt = self.merge_attempt(isolation, writes);
        if let Some(attempt) = attempt {
            let tx = PgTransaction::single(&self.pool).await?;
            let conn = tx.connection.shared()?;
            let advance = commit_statements::AdvanceAndWrite {
                pool_origin: self.pool_origin,
                update: commit_statements::UpdateRow::new(guard, change),
                writes: PhaseWrites::new(guard, writes),
            };
            let sent =
                single_statement::send::<_, i32>(conn, self.pool_origin, advance, writes.within);
            if let Some(answer) = sent.await {
                self.registry.ended(attempt, true);
                let has_lost =
                    matches!(&answer, Answer::Commit(commit_statements::COMMITTED_AND_LOST, Ok(_)));
                return Ok(tx.set_up_if(has_lost).await.advanced(answer));
            }
            tx.connection.give_back();
        }
        let commit = self.advance_pipelined(isolation, guard, change, writes).await;
        if let (Some(attempt), Ok(Commit::Done(()))) = (attempt, &commit) {
            self.registry.ended(attempt, false);
        }
        commit
    }

    async fn advance_pipelined(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: &mut Writes<'_, Self>,
    ) -> Result<Commit, StoreError> {
        let tx = PgTransaction::begin(&self.pool).await?;
        let conn = tx.connection.shared()?;
        let begin = sql::Begin(isolation).execute(&mut &*conn);
        let set = session::Settings::new(None).execute(&mut &*conn);
        let advance = commit_statements::AdvanceFirst {
            update: commit_statements::UpdateRow::new(guard, change),
        };
        let advance = advance.load::<i32>(&mut &*conn);
        let head = async {
            let (begun, set, advanced) = join3(begin, set, advance).await;
            begun.and(set)?;
            advanced?.into_iter().next().ok_or(Error::NotFound)
        };
        let answer = self.send(conn, head, guard, writes).await;
        Ok(tx.advanced(answer))
    }

    /// `head`, which begins the transaction; the phase's statements; its jobs or the question whether
    /// the transaction is still ours; `COMMIT`.
    async fn send<H>(
        &self,
        conn: &AsyncPgConnection,
        head: impl Future<Output = QueryResult<H>>,
        guard: &Guard<'_>,
        writes: &mut Writes<'_, Self>,
    ) -> Answer<H> {
        let all = &writes.statements.all;
        let alone = all.iter().any(|statement| statement.about().alone);
        let statements = all.iter().map(|statement| {
            let mut conn = conn;
            conn.execute_returning_count(statement.to_send(&self.registry))
        });
        let jobs =
            writes.jobs.iter().map(|job| told(commit_statements::InsertJob::new(guard, job), conn));
        // Made in this order, too: that is the one in which diesel's instrumentation sees them.
        let proof = writes.jobs.is_empty().then_some(session::StillOurs {});
        let proof = proof.into_iter().map(|proof| told(proof, conn));
        let mut written: Vec<MaybeDone<Executed<'_>>> =
            statements.chain(jobs).chain(proof).map(maybe_done).collect();
        let mut head = pin!(maybe_done(head));
        let mut commit = maybe_done(sql::CommitTx {}.execute(&mut &*conn).boxed());
        let mut sent = false;
        // Each is polled, and so sent, in its turn. What the client itself refuses (a value without an SQL
        // form, a bind that is missing) is an error in its turn: behind it, COMMIT must not be sent. An
        // error of the server's undoes the transaction, whatever is sent behind it.
        let polled = poll_fn(|context| {
            let mut pending = head.as_mut().poll(context).is_pending();
            for statement in &mut written {
                if alone && pending {
                    break;
                }
                pending |= Pin::new(&mut *statement).poll(context).is_pending();
                if let MaybeDone::Done(Err(error)) = statement
                    && (alone || !is_of_the_server(error))
                {
                    return Poll::Ready(());
                }
            }
            let is_refused = alone && matches!(head.as_mut().output_mut(), Some(Err(_)));
            if is_refused || (alone && pending) {
                return if is_refused { Poll::Ready(()) } else { Poll::Pending };
            }
            sent = true;
            pending |= Pin::new(&mut commit).poll(context).is_pending();
            if pending { Poll::Pending } else { Poll::Ready(()) }
        });
        let polled = answered_within(writes.within, polled.map(Ok)).await;
        let commit = Pin::new(&mut commit).take_output();
        let mut answers: Vec<_> =
            written.iter_mut().map(|statement| Pin::new(statement).take_output()).collect();
        // The engine's last statement succeeded behind one that failed: the phase went back to a savepoint,
        // and the transaction was not undone.
        let was_revived = answers.iter().any(|answer| matches!(answer, Some(Err(_))))
            && matches!(answers.last(), Some(Some(Ok(_))));
        // The first error is the cause: what follows it fails for being in a failed transaction.
        let errors = answers.iter_mut().filter_map(|answer| answer.take()?.err());
        let (head, error) = match head.take_output() {
            Some(Ok(head)) => (Some(head), polled.err().or(errors.into_iter().next())),
            Some(Err(error)) => (None, Some(error)),
            None => (None, polled.err().or(errors.into_iter().next())),
        };
        match (head, error, commit) {
            (_, Some(error), commit) if is_of_the_server(&error) && !was_revived => {
                Answer::Refused { error, reusable: commit.is_some_and(|commit| commit.is_ok()) }
            }
            (_, Some(error), _) if !sent || is_of_the_client(&error) => Answer::NotSent(error),
            (_, Some(error), _) => Answer::Lost(error),
            (Some(head), None, Some(commit)) => Answer::Commit(head, commit),
            (_, None, _) => Answer::Lost(Error::BrokenTransactionManager),
        }
    }
}

/// A statement of the engine's that answers one number, or raises a [`Mark`].
fn told<'c, Q>(statement: Q, mut conn: &'c AsyncPgConnection) -> Executed<'c>
where
    Q: Query<SqlType = Integer> + QueryFragment<Pg> + QueryId + Send + 'c,
{
    let sent = AsyncConnectionCore::load(&mut conn, statement);
    async move { Ok(sent.await?.try_collect::<Vec<_>>().await?.len()) }.boxed()
}

impl<P: Pool> PgTransaction<P> {
    /// Says again to a session what it has lost, for the statements that it is used for next. Where that fails,
    /// the next transaction finds it out.
    async fn set_up_if(self, has_lost: bool) -> Self {
        if has_lost && let Ok(conn) = self.connection.shared() {
            let _ = answered(session::SetUp {}.execute(&mut &*conn)).await;
        }
        self
    }

    fn created(self, answer: Answer<commit_statements::Made>) -> Commit<RowTimes> {
        let failed = |error| StoreError::database("create the key", error);
        match answer {
            Answer::Commit(made, commit) => match (self.committed(commit.map(drop)), made) {
                (Commit::Done(()), (Some(written_at), Some(expires_at), _)) => {
                    Commit::Done(RowTimes { written_at, expires_at })
                }
                (Commit::Failed(error), _) => Commit::Failed(error),
                (Commit::Unknown(error), _) => Commit::Unknown(error),
                _ => Commit::Fenced,
            },
            Answer::Refused { error, reusable } => {
                if reusable {
                    self.connection.give_back_after(&error);
                }
                match Mark::of(&error) {
                    Some(Mark::Exists) => Commit::Fenced,
                    Some(Mark::Left) => Commit::Refused(Refusal::LeftTransaction),
                    _ if cannot_stage(&error) => Commit::Refused(Refusal::OutOfReach),
                    _ => Commit::Failed(failed(error)),
                }
            }
            Answer::NotSent(error) => Commit::Failed(failed(error)),
            Answer::Lost(error) => Commit::Unknown(failed(error)),
        }
    }

    fn advanced(self, answer: Answer<i32>) -> Commit {
        let failed = |error| StoreError::database("write the phase", error);
        match answer {
            Answer::Commit(_, commit) => self.committed(commit.map(drop)),
            Answer::Refused { error, reusable } => {
                if reusable {
                    self.connection.give_back_after(&error);
                }
                refused(error)
            }
            Answer::NotSent(error) => Commit::Failed(failed(error)),
            Answer::Lost(error) => Commit::Unknown(failed(error)),
        }
    }
}
