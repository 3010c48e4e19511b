//! [`Memory`]: a store in memory, for simulations and tests.
//!
//! It has two ends, as a real one has. [`Database`] is the server: versions of rows, locks, a clock
//! (`database`, `transaction`), which executes the engine's statements (`statements`) for sessions
//! (`session`). `Memory` is a client: a pool of connections (`link`), on which statements travel as the
//! [`Network`] says. Between them it keeps PostgreSQL's manners: a statement that was sent is executed
//! although its client is gone, a transaction whose client is gone is undone, and a commit whose answer
//! is lost is neither done nor not done.
//!
//! It keeps everything for as long as it lives, in no other place, and executes no SQL.

mod admin;
mod backend;
mod census;
mod connection;
mod database;
#[cfg(test)]
mod differential;
mod link;
mod network;
mod ops;
mod ops_bulk;
mod record;
mod session;
mod statements;
mod transaction;
mod workers;
mod write;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

pub use self::backend::MemoryBackend;
pub use self::connection::MemoryConnection;
pub use self::database::{Database, KeyChange, KeyState};
use self::link::{Lent, Pool};
pub use self::network::{Cut, Network, Passage, Perfect};
use self::record::{AuditRecord, JobRecord, KeyRecord, Place};
use self::session::Session;
use self::statements::{Birth, Guarded, NextState, Pinned, TakeOver, Wait, refusal, staged};
pub use self::write::Write;
use super::audit::AuditEntry;
use super::patience::{Patience, patiently};
use super::row::{key_row, key_summary};
use super::{
    Change, Claim, Commit, Guard, Hold, KeyRow, KeySummary, NewRow, ParamsAndContext, Reserved,
    RowTimes, Store, StoreError, Transaction, Writes,
};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, KEYLESS, Scope};

/// How long a statement waits for a key's row while it holds a connection, as in the other store; the rest
/// of the time is waited for without one.
const ROW_LOCK_WAIT: Duration = Duration::from_millis(20);

/// A client of a [`Database`] in memory: a store with the semantics of PostgreSQL.
#[derive(Clone)]
pub struct Memory {
    pool: Arc<Pool>,
}

impl Memory {
    /// A client of `database`, with 16 connections that never fail.
    #[must_use]
    pub fn connect(database: &Database) -> Self {
        Self::connect_through(database, Perfect, 16)
    }

    /// A client of `database` with up to `connections`, whose statements travel as `network` says.
    #[must_use]
    pub fn connect_through(database: &Database, network: impl Network, connections: usize) -> Self {
        Self { pool: Arc::new(Pool::new(database.clone(), Arc::new(network), connections)) }
    }

    /// The server.
    #[must_use]
    pub fn database(&self) -> &Database {
        self.pool.database()
    }

    /// How many of the pool's connections the running task has: while a foreign call runs, none.
    #[must_use]
    pub fn connections_of_this_task(&self) -> usize {
        self.pool.held_here()
    }

    /// One statement, or several that travel together, on a connection of their own.
    async fn ask<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let lent = self.pool.get().await?;
        settle(lent, doing, work).await
    }

    /// As `ask`, for what is safe to send twice: after a restart of the server, each idle connection of
    /// the pool is dead, and the first to use one finds out.
    async fn ask_again<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>>
        + Clone
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        match self.ask(doing, work.clone()).await {
            Err(error) if error.is_of_the_connection() => {
                self.pool.forget_idle();
                self.ask(doing, work).await
            }
            answer => answer,
        }
    }

    async fn try_reserve(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<MemoryTransaction>, StoreError> {
        let lent = self.pool.get().await?;
        let birth = Birth::of(row);
        let reserved = lent.ask("reserve the key", |session| session.reserve(birth).boxed()).await;
        let tx = MemoryTransaction(MemoryConnection(lent));
        match reserved {
            Ok(Ok(row)) => Ok(Reserved::Fresh {
                tx,
                created_at: row.created_at.0,
                expires_at: row.expires_at.0,
            }),
            Ok(Err(taken)) => {
                tx.rollback().await;
                let seen = taken.map(|(row, now)| key_summary(row.key_summary(now))).transpose()?;
                Ok(Reserved::Exists(seen))
            }
            Err(error) if is_lock_timeout(&error) => {
                tx.rollback().await;
                Ok(Reserved::Busy)
            }
            Err(error) => Err(StoreError::database("reserve the key", error)),
        }
    }

    /// A transaction that keeps what it saw at its beginning locks the key's row there.
    async fn try_begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MemoryTransaction>, StoreError> {
        let lent = self.pool.get().await?;
        let guarded = Guarded::by(guard);
        let begun = lent.ask("begin", move |session| {
            async move {
                session.begin(isolation)?;
                match isolation {
                    Isolation::ReadCommitted => Ok(Pinned::Locked),
                    _ => session.pin(&guarded),
                }
            }
            .boxed()
        });
        let pinned =
            begun.await.map_err(|error| StoreError::database("begin a transaction", error));
        let tx = MemoryTransaction(MemoryConnection(lent));
        match pinned? {
            Pinned::Locked => Ok(Some(tx)),
            Pinned::OfAnother => {
                tx.rollback().await;
                Err(StoreError::Locked)
            }
            Pinned::Gone => {
                tx.rollback().await;
                Ok(None)
            }
        }
    }

    async fn try_create(
        &self,
        birth: Birth,
        written: HandedOver,
    ) -> Result<Commit<RowTimes>, StoreError> {
        let lent = self.pool.get().await?;
        let answer = lent.ask("create", |session| create(session, birth, written).boxed()).await;
        let failed = |error| StoreError::database("create the key", error);
        Ok(match answer {
            Ok(row) => {
                lent.give_back();
                Commit::Done(RowTimes { now: row.advanced_at.0, expires_at: row.expires_at.0 })
            }
            Err(error) if is_lost(&error) => Commit::Unknown(failed(error)),
            Err(error) => {
                lent.give_back();
                if message_of(&error).contains(statements::MARK_EXISTS) {
                    Commit::Fenced
                } else if is_lock_timeout(&error) {
                    Commit::Failed(StoreError::Locked)
                } else {
                    Commit::Failed(failed(error))
                }
            }
        })
    }

    async fn try_take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        let take = TakeOver::new(claim, hold);
        let taken =
            self.ask("take over the key", |session| take_over(session, take).boxed()).await?;
        if let Some((row, now)) = taken {
            return key_row(row.row(now)).map(Some);
        }
        match self.stands_free(claim, hold).await? {
            true => Err(StoreError::Locked),
            false => Ok(None),
        }
    }

    async fn try_write(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Result<bool, StoreError> {
        let (guarded, next) = (Guarded::by(guard), NextState::of(change));
        let notice = notice.map(|job| staged(guard, job));
        let write =
            self.ask("write the key", move |session| write(session, guarded, next, notice).boxed());
        if write.await? {
            return Ok(true);
        }
        let guarded = Guarded::by(guard);
        let place = guarded.place.clone();
        let seen =
            self.ask_again("look at the key", |session| read_key(session, place).boxed()).await?;
        match seen.is_some_and(|(row, _)| guarded.matches(&row)) {
            true => Err(StoreError::Locked),
            false => Ok(false),
        }
    }

    async fn try_settle(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Result<bool, StoreError> {
        let take = TakeOver::new(claim, hold);
        let (guarded, next) = (Guarded::by(&claim.behind()), NextState::of(change));
        let audit = audit.map(AuditRecord::of);
        let settled = self.ask("settle the key", move |session| {
            settle_key(session, take, guarded, next, audit).boxed()
        });
        if settled.await? {
            return Ok(true);
        }
        match self.stands_free(claim, hold).await? {
            true => Err(StoreError::Locked),
            false => Ok(false),
        }
    }

    /// Whether the row still is what a takeover that wrote nothing is guarded by: then its lock was held.
    async fn stands_free(&self, claim: &Claim<'_>, hold: Hold) -> Result<bool, StoreError> {
        let take = TakeOver::new(claim, hold);
        let place = take.place.clone();
        let seen =
            self.ask_again("look at the key", |session| read_key(session, place).boxed()).await?;
        Ok(seen.is_some_and(|(row, now)| take.matches(&row, now)))
    }

    async fn try_renew(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        let guarded = Guarded::by(guard);
        let renewed = self.ask_again("renew the lease", move |session| {
            async move {
                session.begin(Isolation::ReadCommitted)?;
                let renewed = session.renew(&guarded, hold).await;
                session.conclude(renewed).await
            }
            .boxed()
        });
        if renewed.await? {
            return Ok(true);
        }
        let guarded = Guarded::by(guard);
        let place = guarded.place.clone();
        let seen =
            self.ask_again("look at the key", |session| read_key(session, place).boxed()).await?;
        match seen.is_some_and(|(row, _)| guarded.holds(&row)) {
            true => Err(StoreError::Locked),
            false => Ok(false),
        }
    }
}

/// A connection's answer to a statement of its own; it is given back, unless it is gone.
async fn settle<T: Send + 'static>(
    lent: Lent,
    doing: &'static str,
    work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>> + Send + 'static,
) -> Result<T, StoreError> {
    let answer = lent.ask(doing, work).await;
    if !matches!(&answer, Err(error) if is_lost(error)) {
        lent.give_back();
    }
    answer.map_err(|error| StoreError::database(doing, error))
}

async fn read_keys(session: &mut Session) -> QueryResult<Vec<KeyRecord>> {
    session.begin(Isolation::ReadCommitted)?;
    let keys = session.read_keys();
    session.conclude(keys).await
}

async fn read_jobs(session: &mut Session) -> QueryResult<Vec<JobRecord>> {
    session.begin(Isolation::ReadCommitted)?;
    let jobs = session.read_jobs();
    session.conclude(jobs).await
}

async fn read_key(
    session: &mut Session,
    place: Place,
) -> QueryResult<Option<(KeyRecord, DateTime<Utc>)>> {
    session.begin(Isolation::ReadCommitted)?;
    let key = session.read_key(&place);
    let now = session.now();
    Ok(session.conclude(key).await?.map(|key| (key, now)))
}

fn place_of(scope: &Scope, key: &IdempotencyKey) -> Place {
    Place::Key(scope.as_str().to_owned(), key.as_str().to_owned())
}

/// What a phase hands over.
#[doc(hidden)]
pub struct Statement(QueryResult<Write>);

impl Store for Memory {
    type Connection = MemoryConnection;
    type Transaction = MemoryTransaction;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<MemoryBackend> + QueryId + Send + 'static,
    {
        Statement(Write::from_query(&query))
    }

    /// A database is migrated from its beginning; this is the end of
    /// [`revert_migrations`](Store::revert_migrations).
    async fn migrate(&self) -> Result<(), StoreError> {
        self.database().state().reverted = false;
        Ok(())
    }

    async fn missing_migrations(&self) -> Result<Vec<String>, StoreError> {
        let missing = self.database().state().reverted;
        Ok(missing.then(|| "atomic_phases".to_owned()).into_iter().collect())
    }

    async fn revert_migrations(&self) -> Result<(), StoreError> {
        self.database().drop_tables();
        Ok(())
    }

    async fn look(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let place = place_of(scope, key);
        let seen =
            self.ask_again("look at the key", |session| read_key(session, place).boxed()).await?;
        seen.map(|(row, now)| key_summary(row.key_summary(now))).transpose()
    }

    async fn read(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        let place = place_of(scope, key);
        let seen =
            self.ask_again("read the key", |session| read_key(session, place).boxed()).await?;
        seen.map(|(row, now)| key_row(row.row(now))).transpose()
    }

    async fn reserve(&self, row: &NewRow<'_>) -> Result<Reserved<MemoryTransaction>, StoreError> {
        let mut patience = Patience::new(row.lock_wait);
        loop {
            let reserved = match self.try_reserve(row).await {
                Err(error) if error.is_of_the_connection() => {
                    self.pool.forget_idle();
                    self.try_reserve(row).await
                }
                reserved => reserved,
            };
            match reserved {
                Ok(Reserved::Busy)
                    if row.caller.unless_gone(patience.pause()).await == Some(true) => {}
                reserved => return reserved,
            }
        }
    }

    async fn create(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let written = match handed_over(&row.guard(), writes) {
            Ok(written) => written,
            Err(error) => return Commit::Failed(StoreError::database("create the key", error)),
        };
        let mut patience = Patience::new(row.lock_wait);
        loop {
            let birth = Birth::of(row).changed(created_at, change);
            match self.try_create(birth, written.clone()).await {
                Ok(Commit::Failed(StoreError::Locked))
                    if row.caller.unless_gone(patience.pause()).await == Some(true) => {}
                created => return created.unwrap_or_else(Commit::Failed),
            }
        }
    }

    async fn advance(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        let lent = match self.pool.get().await {
            Ok(lent) => lent,
            Err(error) => return Commit::Failed(error),
        };
        let (guarded, next) = (Guarded::by(guard), NextState::of_phase(change));
        let written = match handed_over(guard, writes) {
            Ok(written) => written,
            Err(error) => return Commit::Failed(StoreError::database("write the phase", error)),
        };
        let answer = lent
            .ask("advance", move |session| {
                advance(session, isolation, guarded, next, written).boxed()
            })
            .await;
        committed(lent, answer)
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        self.ask_again("tell the time", |session| {
            async {
                session.hello()?;
                Ok(session.now())
            }
            .boxed()
        })
        .await
    }

    async fn begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MemoryTransaction>, StoreError> {
        patiently(|| async move {
            match self.try_begin(isolation, guard).await {
                Err(error) if error.is_of_the_connection() => {
                    self.pool.forget_idle();
                    self.try_begin(isolation, guard).await
                }
                begun => begun,
            }
        })
        .await
    }

    async fn take_over(&self, claim: &Claim<'_>, hold: Hold) -> Result<Option<KeyRow>, StoreError> {
        patiently(|| self.try_take_over(claim, hold)).await
    }

    async fn write(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Commit {
        Commit::of(patiently(|| self.try_write(guard, change, notice)).await)
    }

    async fn settle(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        Commit::of(patiently(|| self.try_settle(claim, hold, change, audit)).await)
    }

    async fn renew(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        patiently(|| self.try_renew(guard, hold)).await
    }

    async fn outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let place = place_of(scope, key);
        let seen =
            self.ask_again("read the outputs", |session| read_key(session, place).boxed()).await?;
        Ok(seen.and_then(|(row, _)| Some(row.outputs?.0)))
    }

    async fn given(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let place = place_of(scope, key);
        let seen = self
            .ask_again("read what was given", |session| read_key(session, place).boxed())
            .await?;
        let same_life = seen.filter(|(row, _)| row.request_id.uuid() == request_id);
        Ok(same_life.map(|(row, _)| (row.params.0, row.context.map(|context| context.0))))
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let keys = self.ask_again("count the keys", |session| read_keys(session).boxed()).await?;
        let now = self.database().now();
        let live = |key: &&KeyRecord| {
            key.scope == scope.as_str()
                && key.expires_at.0 > now
                && !key.idempotency_key.starts_with(KEYLESS)
        };
        Ok(keys.iter().filter(live).take(cap as usize).count() as u32)
    }

    #[cfg(feature = "fault-injection")]
    const CONCURRENT: bool = true;

    #[cfg(feature = "fault-injection")]
    const IN_MEMORY: bool = true;

    #[cfg(feature = "fault-injection")]
    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        let place = place_of(scope, key);
        self.ask_again("pass time", |session| pass_time(session, place).boxed()).await
    }

    #[cfg(feature = "fault-injection")]
    async fn cut(&self, tx: &mut MemoryTransaction) {
        let _ =
            tx.0.0
                .ask("cut", |session| {
                    async {
                        session.end();
                        Ok(())
                    }
                    .boxed()
                })
                .await;
    }
}

/// What a phase handed over: its statements, and the jobs that it staged.
#[derive(Clone)]
struct HandedOver {
    statements: Vec<Write>,
    jobs: Vec<JobRecord>,
}

fn handed_over(guard: &Guard<'_>, writes: Writes<'_, Memory>) -> QueryResult<HandedOver> {
    let statements = writes.statements.all.into_iter().map(|Statement(write)| write);
    let jobs = writes.jobs.iter().map(|job| staged(guard, job)).collect();
    Ok(HandedOver { statements: statements.collect::<Result<_, _>>()?, jobs })
}

async fn execute(session: &mut Session, written: HandedOver) -> QueryResult<()> {
    for write in written.statements {
        session.write(write).await?;
    }
    for job in written.jobs {
        session.insert_job(job).await?;
    }
    Ok(())
}

async fn create(
    session: &mut Session,
    birth: Birth,
    written: HandedOver,
) -> QueryResult<KeyRecord> {
    let row = match session.create(birth).await {
        Ok(row) => execute(session, written).await.map(|()| row),
        Err(error) => Err(error),
    };
    session.conclude(row).await
}

async fn advance(
    session: &mut Session,
    isolation: Isolation,
    guarded: Guarded,
    next: NextState,
    written: HandedOver,
) -> QueryResult<()> {
    session.begin(isolation)?;
    let advanced = match session.advance_or_fail(&guarded, next).await {
        Ok(()) => execute(session, written).await,
        Err(error) => Err(error),
    };
    session.conclude(advanced).await
}

async fn take_over(
    session: &mut Session,
    take: TakeOver,
) -> QueryResult<Option<(KeyRecord, DateTime<Utc>)>> {
    session.begin(Isolation::ReadCommitted)?;
    let taken = session.take_over(take).await;
    session.conclude(taken).await
}

async fn write(
    session: &mut Session,
    guarded: Guarded,
    next: NextState,
    notice: Option<JobRecord>,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let written = match (session.advance(&guarded, next, Wait::No).await, notice) {
        (Ok(true), Some(notice)) => session.insert_job(notice).await.map(|()| true),
        (written, _) => written,
    };
    session.conclude(written).await
}

async fn settle_key(
    session: &mut Session,
    take: TakeOver,
    guarded: Guarded,
    next: NextState,
    audit: Option<AuditRecord>,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let settled = match session.take_over(take).await {
        Ok(Some(_)) => match session.advance(&guarded, next, Wait::No).await {
            Ok(true) => audited(session, audit).await.map(|()| true),
            Ok(false) => Err(Error::NotFound),
            Err(error) => Err(error),
        },
        Ok(None) => Ok(false),
        Err(error) => Err(error),
    };
    session.conclude(settled).await
}

/// Writes the audit row, if there is one, in the open transaction.
async fn audited(session: &mut Session, audit: Option<AuditRecord>) -> QueryResult<()> {
    match audit {
        Some(audit) => session.insert_audit(audit).await,
        None => Ok(()),
    }
}

#[cfg(feature = "fault-injection")]
async fn pass_time(session: &mut Session, place: Place) -> QueryResult<()> {
    session.begin(Isolation::ReadCommitted)?;
    let pass = |key: &mut KeyRecord, _| {
        key.locked_until = key.locked_until.map(|_| key.created_at);
        key.run_after = key.run_after.map(|_| key.created_at);
    };
    let passed = session.update_key(&place, Wait::ForTheLock, |_, _| true, pass).await;
    session.conclude(passed).await.map(drop)
}

/// An open transaction. Dropped, it closes its connection, and the server undoes it.
#[doc(hidden)]
pub struct MemoryTransaction(MemoryConnection);

impl Transaction<Memory> for MemoryTransaction {
    fn connection(&mut self) -> Result<&mut MemoryConnection, StoreError> {
        Ok(&mut self.0)
    }

    async fn commit(self, guard: &Guard<'_>, change: &Change<'_>, jobs: &[StagedJob]) -> Commit {
        let (guarded, next) = (Guarded::by(guard), NextState::of_phase(change));
        let jobs: Vec<JobRecord> = jobs.iter().map(|job| staged(guard, job)).collect();
        let lent = self.0.0;
        let answer =
            lent.ask("commit", |session| commit(session, guarded, next, jobs).boxed()).await;
        committed(lent, answer)
    }

    #[cfg(feature = "fault-injection")]
    async fn commit_unguarded(self) -> Commit {
        let lent = self.0.0;
        let answer = lent.ask("commit the reservation", |session| session.commit().boxed()).await;
        committed(lent, answer)
    }

    async fn rollback(self) {
        let lent = self.0.0;
        let rolled_back = lent.ask("rollback", |session| {
            async {
                session.rollback();
                Ok(())
            }
            .boxed()
        });
        // Otherwise the connection is closed, and the server undoes the transaction by itself.
        if rolled_back.await.is_ok() {
            lent.give_back();
        }
    }
}

async fn commit(
    session: &mut Session,
    guarded: Guarded,
    next: NextState,
    jobs: Vec<JobRecord>,
) -> QueryResult<()> {
    // The jobs ride in the statement of the guarded update.
    let mut answer = session.advance_or_fail(&guarded, next).await;
    for job in jobs {
        if answer.is_ok() {
            answer = session.insert_job(job).await;
        }
    }
    session.conclude(answer).await
}

/// What became of a transaction by its answer.
fn committed(lent: Lent, answer: QueryResult<()>) -> Commit {
    let Err(error) = answer else {
        lent.give_back();
        return Commit::Done(());
    };
    if is_lost(&error) {
        return Commit::Unknown(StoreError::database("commit", error));
    }
    lent.give_back();
    let message = message_of(&error);
    if message.contains(statements::MARK_FENCED) {
        Commit::Fenced
    } else if let Some(refusal) = refusal(message) {
        Commit::Refused(refusal)
    } else {
        Commit::Failed(StoreError::database("write the recovery point", error))
    }
}

fn message_of(error: &Error) -> &str {
    match error {
        Error::DatabaseError(_, about) => about.message(),
        _ => "",
    }
}

fn is_lock_timeout(error: &Error) -> bool {
    message_of(error).contains("lock timeout")
}

fn is_lost(error: &Error) -> bool {
    matches!(
        error,
        Error::DatabaseError(
            DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection,
            _
        )
    )
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}
