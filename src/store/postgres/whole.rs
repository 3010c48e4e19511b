//! A whole transaction in one round trip, for a phase that hands its statements over.
//!
//! Nothing waits for an answer, so everything rests on order: each statement travels prepared, is
//! polled in turn, and so is sent in turn, because diesel-async takes a statement out of its cache, or
//! prepares it, under one fair lock. The first statement behind `BEGIN` is the engine's own: it raises
//! where the row is not ours, which turns all that follows into nothing, and it ends the connection
//! where there is no transaction, so that nothing of what follows can commit by itself.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::pg::{Pg, PgMetadataLookup, PgQueryBuilder, PgTypeMetadata};
use diesel::query_builder::bind_collector::RawBytesBindCollector;
use diesel::query_builder::{QueryBuilder, QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error};
use diesel_async::{AsyncConnectionCore, AsyncPgConnection, RunQueryDsl};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, OptionFuture, join3, join5, maybe_done};

use super::lent::Lent;
use super::{
    IDLE_IN_TRANSACTION, PgTransaction, Pool, Postgres, answered, is_lock_timeout, is_lost,
    refused, sql,
};
use crate::definition::Isolation;
use crate::store::statement::is_of_a_transaction;
use crate::store::{Change, Commit, Creation, Guard, NewRow, Refusal, StoreError, Writes};

/// A statement of a phase, to be sent later.
pub struct Statement {
    send: Box<dyn FnOnce(&AsyncPgConnection) -> Executed<'_> + Send>,
    /// Whether it would end the transaction.
    ends: bool,
    /// Whether it has to travel alone: a type whose number diesel has to ask the server for is asked
    /// for in front of that lock, so that others would overtake the statement.
    alone: bool,
}

type Executed<'c> = BoxFuture<'c, QueryResult<usize>>;

impl Statement {
    pub(super) fn of<Q>(query: Q) -> Self
    where
        Q: QueryFragment<Pg> + QueryId + Send + 'static,
    {
        let mut asked = Asked(false);
        let mut text = PgQueryBuilder::default();
        // What has no SQL form is told again when it is to be sent, as that statement's error.
        let _ = query.collect_binds(&mut RawBytesBindCollector::new(), &mut asked, &Pg);
        let _ = query.to_sql(&mut text, &Pg);
        Self {
            send: Box::new(move |mut conn: &AsyncPgConnection| conn.execute_returning_count(query)),
            ends: is_of_a_transaction(&text.finish()),
            alone: asked.0,
        }
    }
}

/// Whether a type's number was asked for.
struct Asked(bool);

impl PgMetadataLookup for Asked {
    fn lookup_type(&mut self, _: &str, _: Option<&str>) -> PgTypeMetadata {
        self.0 = true;
        PgTypeMetadata::new(0, 0)
    }
}

/// What a whole transaction came to.
enum Answer<H> {
    /// Everything succeeded but `COMMIT`, which answered this.
    Commit(H, QueryResult<usize>),
    /// The server refused a statement, so its `COMMIT` is a rollback.
    Refused { error: Error, reusable: bool },
    /// `COMMIT` was not sent.
    NotSent(Error),
    /// Nobody knows whether `COMMIT` was executed.
    Lost(Error),
}

impl<P: Pool> Postgres<P> {
    pub(super) async fn create_whole(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Result<Creation, StoreError> {
        if writes.statements.iter().any(|statement| statement.ends) {
            return Ok(Creation::Refused(Refusal::LeftTransaction));
        }
        let tx = PgTransaction(Lent::of(&self.pool).await?.in_transaction()?);
        let conn = tx.0.shared()?;
        let began = Instant::now();
        let begin = sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn);
        let set = sql::Settings::new(Some(row.lock_wait), IDLE_IN_TRANSACTION);
        let set = set.execute(&mut &*conn);
        let make_room = row.replaces.map(|request_id| {
            sql::DeleteExpired { scope: row.scope.as_str(), key: row.key.as_str(), request_id }
                .execute(&mut &*conn)
        });
        let create = sql::Create::new(row, created_at, change).load::<sql::Made>(&mut &*conn);
        // The bound is for the row only: the phase's statements keep the session's own.
        let reset = sql::ResetLockTimeout {}.execute(&mut &*conn);
        let head = async {
            let room = OptionFuture::from(make_room);
            let (begun, set, room, created, reset) = join5(begin, set, room, create, reset).await;
            begun.and(set).and(room.unwrap_or(Ok(0)))?;
            let made = created?.into_iter().next();
            reset.map(|_| made)
        };
        let guard = Guard {
            scope: row.scope,
            key: row.key,
            request_id: row.request_id,
            lease_token: 1,
            recovery_point: "",
        };
        let failed = |error| StoreError::database("create the key", error);
        Ok(match send(conn, head, &guard, writes).await {
            Answer::Commit(made, commit) => match (tx.committed(commit.map(drop)), made) {
                (Commit::Done, Some((Some(now), Some(expires_at), _))) => {
                    Creation::Done { now, expires_at }
                }
                (Commit::Failed(error), _) => Creation::Failed(error),
                (Commit::Unknown(error), _) => Creation::Unknown(error),
                _ => Creation::Exists,
            },
            Answer::Refused { error, reusable } => {
                if reusable {
                    tx.0.give_back();
                }
                if is_taken(&error) {
                    Creation::Exists
                } else if is_lock_timeout(&error, began, row.lock_wait) {
                    Creation::Busy
                } else {
                    Creation::Failed(failed(error))
                }
            }
            Answer::NotSent(error) => Creation::Failed(failed(error)),
            Answer::Lost(error) => Creation::Unknown(failed(error)),
        })
    }

    pub(super) async fn advance_whole(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Result<Commit, StoreError> {
        if writes.statements.iter().any(|statement| statement.ends) {
            return Ok(Commit::Refused(Refusal::LeftTransaction));
        }
        let tx = PgTransaction(Lent::of(&self.pool).await?.in_transaction()?);
        let conn = tx.0.shared()?;
        let begin = sql::Begin(isolation).execute(&mut &*conn);
        let set = sql::Settings::new(None, IDLE_IN_TRANSACTION).execute(&mut &*conn);
        let advance = sql::AdvanceFirst::new(guard, change).load::<i32>(&mut &*conn);
        let head = async {
            let (begun, set, advanced) = join3(begin, set, advance).await;
            begun.and(set)?;
            advanced
        };
        let failed = |error| StoreError::database("write the phase", error);
        Ok(match send(conn, head, guard, writes).await {
            Answer::Commit(_, commit) => tx.committed(commit.map(drop)),
            Answer::Refused { error, reusable } => {
                if reusable {
                    tx.0.give_back();
                }
                refused(error)
            }
            Answer::NotSent(error) => Commit::Failed(failed(error)),
            Answer::Lost(error) => Commit::Unknown(failed(error)),
        })
    }
}

/// `head`, which begins the transaction; the phase's statements, its jobs, `COMMIT`.
async fn send<P: Pool, H>(
    conn: &AsyncPgConnection,
    head: impl Future<Output = QueryResult<H>>,
    guard: &Guard<'_>,
    writes: Writes<'_, Postgres<P>>,
) -> Answer<H> {
    let alone = writes.statements.iter().any(|statement| statement.alone);
    let statements = writes.statements.into_iter().map(|statement| (statement.send)(conn));
    let jobs = writes.jobs.iter().map(|job| sql::InsertJob::new(guard, job).execute(&mut &*conn));
    let mut written: Vec<MaybeDone<Executed<'_>>> =
        statements.chain(jobs.map(FutureExt::boxed)).map(maybe_done).collect();
    let mut head = pin!(maybe_done(head));
    let mut commit = maybe_done(sql::CommitTx {}.execute(&mut &*conn).boxed());
    let mut sent = false;
    // Each is polled, and so sent, in its turn. What the client itself refuses (a value without an SQL
    // form, a bind that is missing) is an error in its turn: behind it, COMMIT must not be sent.
    let all = poll_fn(|context| {
        let mut pending = head.as_mut().poll(context).is_pending();
        for statement in &mut written {
            if alone && pending {
                break;
            }
            pending |= Pin::new(&mut *statement).poll(context).is_pending();
            if let MaybeDone::Done(Err(error)) = statement
                && (alone || is_of_the_client(error))
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
    let all = answered(all.map(Ok)).await;
    let commit = Pin::new(&mut commit).take_output();
    let errors =
        written.iter_mut().filter_map(|statement| Pin::new(statement).take_output()?.err());
    // The first error is the cause: what follows it fails for being in a failed transaction.
    let (head, error) = match head.take_output() {
        Some(Ok(head)) => (Some(head), all.err().or(errors.into_iter().next())),
        Some(Err(error)) => (None, Some(error)),
        None => (None, all.err().or(errors.into_iter().next())),
    };
    match (head, error, commit) {
        (_, Some(error), commit) if is_of_the_server(&error) => {
            Answer::Refused { error, reusable: commit.is_some_and(|commit| commit.is_ok()) }
        }
        (_, Some(error), _) if !sent || is_of_the_client(&error) => Answer::NotSent(error),
        (_, Some(error), _) => Answer::Lost(error),
        (Some(head), None, Some(commit)) => Answer::Commit(head, commit),
        (_, None, _) => Answer::Lost(Error::BrokenTransactionManager),
    }
}

/// Whether the server refused the statement: then it undoes the transaction, with `COMMIT` or without.
fn is_of_the_server(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(..)) && !is_lost(error)
}

/// Whether the client refused the statement in its turn: neither it nor `COMMIT` behind it was sent.
fn is_of_the_client(error: &Error) -> bool {
    match error {
        // tokio-postgres counts the binds, and has no kind of error for it that diesel passes on.
        Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand, about) => {
            let message = about.message();
            message.contains("parameters but got") || message.contains("serializing parameter")
        }
        Error::DatabaseError(..) => false,
        _ => true,
    }
}

/// Whether another row has the key.
fn is_taken(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(_, about) if about.message().contains(sql::MARK_EXISTS))
}
