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
use futures_util::future::{BoxFuture, MaybeDone, OptionFuture, join, join3, maybe_done};
use futures_util::{FutureExt, TryStreamExt};

use super::commit_statements::{
    AdvanceAndWrite, AdvanceFirst, BornRow, COMMITTED_AND_LOST, Committed, Create, CreateAndWrite,
    InsertJob, Made, PhaseWrites, UpdateRow,
};
use super::error::{is_of_the_client, is_of_the_server};
use super::single_statement::{self, Answer};
use super::transaction::{PgTransaction, refused};
use super::twin::ROW_LOCK_WAIT;
use super::{Pool, Postgres, answered, answered_within, numbered, session, sql};
use crate::definition::Isolation;
use crate::store::{Change, Commit, Guard, NewRow, Refusal, RowTimes, StoreError, Writes};

type Executed<'c> = BoxFuture<'c, QueryResult<usize>>;

/// What a phase's commit does to its key's row.
#[derive(Clone, Copy)]
pub(super) enum RowWrite<'a> {
    /// Creates it as its first phase leaves it.
    Create { row: &'a NewRow<'a>, created_at: DateTime<Utc>, change: &'a Change<'a> },
    /// Writes its next state, guarded.
    Advance { isolation: Isolation, guard: &'a Guard<'a>, change: &'a Change<'a> },
}

impl<P: Pool> Postgres<P> {
    /// Writes the row, what the phase hands over and its jobs, and commits: as a single statement where they can be one
    /// and the server takes it, else pipelined. `known` is of a row that was written; without one it was fenced.
    pub(super) async fn in_one_trip<T>(
        &self,
        write: RowWrite<'_>,
        writes: &mut Writes<'_, Self>,
        known: impl FnOnce(Made) -> Option<T>,
    ) -> Result<Commit<T>, StoreError> {
        if writes.statements.all.iter().any(|statement| statement.about().ends) {
            return Ok(Commit::Refused(Refusal::LeftTransaction));
        }
        let attempt = if write.is_single() { self.merge_attempt(writes) } else { None };
        if let Some(attempt) = attempt {
            let tx = PgTransaction::single(&self.pool).await?;
            let (conn, pool_origin, within) =
                (tx.connection.shared()?, self.pool_origin, writes.within);
            let committed = Committed(pool_origin);
            let answer = match write {
                RowWrite::Create { row, created_at, change } => {
                    let writes = PhaseWrites::new(&row.guard(), writes);
                    let row = BornRow::new(row, created_at, change);
                    let create = CreateAndWrite { committed, row, writes };
                    single_statement::send(conn, pool_origin, create, within, |made| made).await
                }
                RowWrite::Advance { guard, change, .. } => {
                    let writes = PhaseWrites::new(guard, writes);
                    let update = UpdateRow::new(guard, change);
                    let advance = AdvanceAndWrite { committed, update, writes };
                    single_statement::send(conn, pool_origin, advance, within, advanced).await
                }
            };
            if let Some(answer) = answer {
                self.registry.ended(attempt, true);
                return Ok(tx.ended_by(answer, write, known).await);
            }
            tx.connection.give_back();
        }
        let tx = PgTransaction::begin(&self.pool).await?;
        let conn = tx.connection.shared()?;
        let answer = match write {
            RowWrite::Create { row, created_at, change } => {
                let head = self.create_row(conn, row, (created_at, change), writes);
                self.send(conn, head, &row.guard(), writes).await
            }
            RowWrite::Advance { isolation, guard, change } => {
                let head = self.advance_row(conn, isolation, (guard, change), writes);
                self.send(conn, head, guard, writes).await
            }
        };
        let commit = tx.ended_by(answer, write, known).await;
        if let (Some(attempt), Commit::Done(_)) = (attempt, &commit) {
            self.registry.ended(attempt, false);
        }
        Ok(commit)
    }

    /// `head`, which begins the transaction; the phase's statements; its jobs or the question whether
    /// the transaction is still ours; `COMMIT`.
    async fn send(
        &self,
        conn: &AsyncPgConnection,
        head: impl Future<Output = QueryResult<Made>>,
        guard: &Guard<'_>,
        writes: &mut Writes<'_, Self>,
    ) -> Answer {
        let all = &writes.statements.all;
        let alone = all.iter().any(|statement| statement.about().alone());
        let statements = all.iter().map(|statement| {
            let mut conn = conn;
            conn.execute_returning_count(statement.to_send(&self.registry))
        });
        let jobs = writes.jobs.iter().map(|job| told(InsertJob::new(guard, job), conn));
        // Made in this order, too: that is the one in which diesel's instrumentation sees them.
        let proof = (writes.jobs.is_empty() && may_leave(writes)).then_some(session::StillOurs {});
        let ends_with_ours = proof.is_some() || !writes.jobs.is_empty();
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
        let was_revived = ends_with_ours
            && answers.iter().any(|answer| matches!(answer, Some(Err(_))))
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

impl<P: Pool> Postgres<P> {
    /// `BEGIN`, and the row as its first phase leaves it. Made in the order in which they are to be sent.
    fn create_row<'c>(
        &self,
        conn: &'c AsyncPgConnection,
        row: &NewRow<'c>,
        (created_at, change): (DateTime<Utc>, &Change<'c>),
        writes: &Writes<'_, Self>,
    ) -> impl Future<Output = QueryResult<Made>> + Send + use<'c, P> {
        let begin = self.begin(conn, Isolation::ReadCommitted, row.replaces.is_some(), writes);
        let make_room = row.replaces.map(|request_id| {
            sql::DeleteExpired { scope: row.scope.as_str(), key: row.key.as_str(), request_id }
                .execute(&mut &*conn)
        });
        let create = Create { row: BornRow::new(row, created_at, change) };
        let create = numbered::load::<_, Made>(conn, &create);
        async move {
            let room = OptionFuture::from(make_room);
            let (begun, room, created) = join3(begin, room, create).await;
            begun.and(room.unwrap_or(Ok(0)))?;
            created?.into_iter().next().ok_or(Error::NotFound)
        }
    }

    /// `BEGIN`, and the row's next state.
    fn advance_row<'c>(
        &self,
        conn: &'c AsyncPgConnection,
        isolation: Isolation,
        (guard, change): (&Guard<'c>, &Change<'c>),
        writes: &Writes<'_, Self>,
    ) -> impl Future<Output = QueryResult<Made>> + Send + use<'c, P> {
        let begin = self.begin(conn, isolation, false, writes);
        let advance = AdvanceFirst { update: UpdateRow::new(guard, change) };
        let advance = numbered::load::<_, i32>(conn, &advance);
        async move {
            let (begun, told) = join(begin, advance).await;
            begun?;
            told?.into_iter().next().map(advanced).ok_or(Error::NotFound)
        }
    }

    /// `BEGIN`, and behind it the bounds, and what the statements compare.
    fn begin<'c>(
        &self,
        mut conn: &'c AsyncPgConnection,
        isolation: Isolation,
        makes_room: bool,
        writes: &Writes<'_, Self>,
    ) -> impl Future<Output = QueryResult<usize>> + Send + use<'c, P> {
        let begin = sql::Begin(isolation).execute(&mut conn);
        let set = if makes_room || self.pool_origin.is_application() {
            // A row that makes room is waited for by a statement that sets no bound of its own.
            session::Settings::new(makes_room.then_some(ROW_LOCK_WAIT)).execute(&mut conn).boxed()
        } else if may_leave(writes) || !writes.jobs.is_empty() {
            session::MarkTransactionAndJobs {}.execute(&mut conn).boxed()
        } else {
            session::MarkTransaction {}.execute(&mut conn).boxed()
        };
        join(begin, set).map(|(begun, set)| begun.and(set))
    }
}

/// Whether a statement is more than an `INSERT`, `UPDATE` or `DELETE`, and so may end the transaction or put the engine's
/// tables out of reach.
fn may_leave<P: Pool>(writes: &Writes<'_, Postgres<P>>) -> bool {
    writes.statements.all.iter().any(|statement| !statement.about().merges)
}

/// What a row that was there before tells is a number, and no times.
fn advanced(number: i32) -> Made {
    (None, None, number)
}

/// Of a row that was created.
pub(super) fn row_times((written_at, expires_at, _): Made) -> Option<RowTimes> {
    Some(RowTimes { written_at: written_at?, expires_at: expires_at? })
}

impl RowWrite<'_> {
    /// Whether one statement can do it, and be the whole transaction.
    fn is_single(self) -> bool {
        match self {
            // To delete a row and to insert its successor takes two.
            Self::Create { row, .. } => row.replaces.is_none(),
            Self::Advance { isolation, .. } => isolation == Isolation::ReadCommitted,
        }
    }

    /// In words: all of it, and what the server refuses of it.
    fn doing(self) -> (&'static str, &'static str) {
        match self {
            Self::Create { .. } => ("create the key", "create the key"),
            Self::Advance { .. } => ("write the phase", "write the recovery point"),
        }
    }
}

impl<P: Pool> PgTransaction<P> {
    /// Sets the bounds of the session again; whether that succeeded.
    async fn sets_up(&self) -> bool {
        match self.connection.shared() {
            Ok(conn) => answered(session::SetUp {}.execute(&mut &*conn)).await.is_ok(),
            Err(_) => false,
        }
    }

    /// What became of the transaction, by the answer to all that was sent. If the session has lost the engine's settings, this
    /// sets them again, for the next user of the connection.
    async fn ended_by<T>(
        self,
        answer: Answer,
        write: RowWrite<'_>,
        known: impl FnOnce(Made) -> Option<T>,
    ) -> Commit<T> {
        if let Answer::Commit(made @ (.., COMMITTED_AND_LOST), Ok(_)) = answer
            && !self.sets_up().await
        {
            // The connection is closed, not given back: a statement may be pending on it.
            return known(made).map_or(Commit::Fenced, Commit::Done);
        }
        let (doing, doing_refused) = write.doing();
        let failed = |error| StoreError::database(doing, error);
        match answer {
            Answer::Commit(made, commit) => match (self.committed(commit.map(drop)), known(made)) {
                (Commit::Done(()), Some(known)) => Commit::Done(known),
                (Commit::Failed(error), _) => Commit::Failed(error),
                (Commit::Unknown(error), _) => Commit::Unknown(error),
                _ => Commit::Fenced,
            },
            Answer::Refused { error, reusable } => {
                if reusable {
                    self.connection.give_back_after(&error);
                }
                refused(doing_refused, error)
            }
            Answer::NotSent(error) => Commit::Failed(match failed(error) {
                // It would be as slow again.
                error if error.is_unanswered() => StoreError::TimeLimit,
                error => error,
            }),
            Answer::Lost(error) => Commit::Unknown(failed(error)),
        }
    }
}
