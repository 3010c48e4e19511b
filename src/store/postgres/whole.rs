//! A whole transaction in one round trip, for a phase that hands its statements over.
//!
//! Nothing waits for an answer, so everything rests on order: each statement travels prepared, is
//! polled in turn, and so is sent in turn, because diesel-async takes a statement out of its cache, or
//! prepares it, under one fair lock. The first statement behind `BEGIN` is the engine's own: it raises
//! where the row is not ours, which turns all that follows into nothing, and it ends the connection
//! where there is no transaction, so that nothing of what follows can commit by itself.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
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
    IDLE_IN_TRANSACTION, PgTransaction, Pool, Postgres, answered, is_lock_timeout, is_lost, sql,
};
use crate::definition::Isolation;
use crate::store::statement::is_of_a_transaction;
use crate::store::{Change, Commit, Creation, Guard, NewRow, Refusal, StoreError, Writes};

/// A statement of a phase, to be sent later.
pub struct Statement {
    send: Box<dyn FnOnce(&AsyncPgConnection) -> Executed<'_> + Send>,
    /// Whether it would end the transaction.
    ends: bool,
    /// Whether it can travel with others. A type whose number diesel has to ask the server for is
    /// asked for in front of that lock, so that others would overtake the statement.
    alone: bool,
}

type Executed<'c> = BoxFuture<'c, QueryResult<usize>>;

impl Statement {
    pub(super) fn of<Q>(query: Q) -> Self
    where
        Q: QueryFragment<Pg> + QueryId + Send + 'static,
    {
        let mut lookup = Asked(false);
        // What cannot be serialised is told again when it is sent, as that statement's error.
        let _ = query.collect_binds(&mut RawBytesBindCollector::new(), &mut lookup, &Pg);
        let mut text = PgQueryBuilder::default();
        let _ = query.to_sql(&mut text, &Pg);
        Self {
            send: Box::new(move |mut conn: &AsyncPgConnection| conn.execute_returning_count(query)),
            ends: is_of_a_transaction(&text.finish()),
            alone: lookup.0,
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

/// What one round trip answered: the engine's own statement, or the first error.
struct Answer<H> {
    head: QueryResult<H>,
    commit: QueryResult<usize>,
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
        let create = sql::Create::new(row, created_at, change).load::<sql::Times>(&mut &*conn);
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
        let Answer { head, commit } = send(conn, head, &guard, writes).await;
        Ok(match head {
            Ok(made) => match (tx.committed(commit.map(drop)), made) {
                (Commit::Done, Some((now, expires_at))) => Creation::Done { now, expires_at },
                (Commit::Failed(error), _) => Creation::Failed(error),
                (Commit::Unknown(error), _) => Creation::Unknown(error),
                _ => Creation::Exists,
            },
            Err(error) if is_lost(&error) => {
                Creation::Unknown(StoreError::database("create the key", error))
            }
            Err(error) => {
                if commit.is_ok() {
                    tx.0.give_back();
                }
                if is_taken(&error) {
                    Creation::Exists
                } else if is_lock_timeout(&error, began, row.lock_wait) {
                    Creation::Busy
                } else {
                    Creation::Failed(StoreError::database("create the key", error))
                }
            }
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
        let Answer { head, commit } = send(conn, head, guard, writes).await;
        Ok(tx.concluded(head, commit))
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
    let written: Vec<Executed<'_>> = statements.chain(jobs.map(FutureExt::boxed)).collect();
    let commit = sql::CommitTx {}.execute(&mut &*conn);
    let sent = async {
        let (head, written, commit) = if alone {
            let head = head.await;
            let mut answers = Vec::new();
            for statement in written {
                answers.push(statement.await);
            }
            (head, answers, commit.await)
        } else {
            join3(head, in_turn(written), commit).await
        };
        // The first error is the cause: what follows it fails for being in a failed transaction.
        let written = written.into_iter().collect::<QueryResult<Vec<_>>>();
        Ok(Answer { head: head.and_then(|head| written.map(|_| head)), commit })
    };
    answered(sent).await.unwrap_or_else(|error| Answer { head: Err(error), commit: Ok(0) })
}

/// Whether another row has the key.
fn is_taken(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(DatabaseErrorKind::UniqueViolation, about)
        if about.table_name().is_some_and(|table| table.starts_with("atomic_phases_keys")))
}

/// All of them at once, sent in this order.
async fn in_turn(statements: Vec<Executed<'_>>) -> Vec<QueryResult<usize>> {
    let mut all: Vec<MaybeDone<Executed<'_>>> = statements.into_iter().map(maybe_done).collect();
    poll_fn(|context: &mut Context<'_>| {
        let polled = all.iter_mut().map(|statement| Pin::new(statement).poll(context));
        match polled.filter(Poll::is_pending).count() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
    let missing = || Err(Error::BrokenTransactionManager);
    all.iter_mut().map(|one| Pin::new(one).take_output().unwrap_or_else(missing)).collect()
}
