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
mod write;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use uuid::Uuid;

pub use self::backend::MemoryBackend;
pub use self::connection::MemoryConnection;
pub use self::database::{Database, KeyChange, KeyState};
pub use self::network::{Cut, Network, Passage, Perfect};
pub use self::write::Write;

use self::link::{Lent, Pool};
use self::record::{AuditRecord, JobRecord, KeyRecord, Place, Time};
use self::session::Session;
use self::statements::{
    AsSeen, Birth, Guarded, Lives, NextState, Pinned, TakeOver, Wait, after, refusal, staged, waits,
};
use super::audit::AuditEntry;
use super::due::{
    DueJobRow, DueKeyRow, HeldKeyRow, JobListRow, due_jobs, due_keys, held_keys, listed_jobs,
};
use super::pauses::PausedPhase;
use super::row::{SurveyRow, SurveyedJobRow, key_row, key_summary, surveyed, surveyed_jobs};
use super::{
    Change, Claim, Commit, DueJob, DueKey, Erase, ExpiryPlace, Guard, HeldKey, Hold, JobAt,
    JobPlace, JobRow, KeyPlace, KeyRow, KeySummary, NewRow, Page, ParamsAndContext, Reserved,
    RowTimes, StagedJobRow, Status, Store, StoreError, SurveyedJob, SurveyedRow, Transaction,
    Undelivered, Writes,
};
use crate::definition::Isolation;
use crate::key::{IdempotencyKey, KEYLESS, Scope};
use crate::phase::StagedJob;

/// How long a statement waits for a key's row while it holds a connection, as in the other store; the rest
/// of the time is waited for without one.
const ROW_LOCK_WAIT: Duration = Duration::from_millis(20);

/// How long a write waits for a row whose lock another transaction holds, without a connection.
const LOCKED_WAIT: Duration = Duration::from_secs(1);

/// The pauses between two looks at what another transaction does.
struct Pauses {
    until: Instant,
    pause: Duration,
}

impl Pauses {
    fn within(bound: Duration) -> Self {
        Self { until: Instant::now() + bound, pause: Duration::from_millis(5) }
    }

    /// Pauses, each time for longer; `false` where the bound has passed.
    async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(200));
        !left.is_zero()
    }
}

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

    async fn try_write(&self, guard: &Guard<'_>, change: &Change<'_>) -> Result<bool, StoreError> {
        let (guarded, next) = (Guarded::by(guard), NextState::of(change));
        let write = self.ask("write the key", move |session| write(session, guarded, next).boxed());
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
        let mut pauses = Pauses::within(row.lock_wait);
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
                    if row.caller.unless_gone(pauses.pause()).await == Some(true) => {}
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
        let mut pauses = Pauses::within(row.lock_wait);
        loop {
            let birth = Birth::of(row).changed(created_at, change);
            match self.try_create(birth, written.clone()).await {
                Ok(Commit::Failed(StoreError::Locked))
                    if row.caller.unless_gone(pauses.pause()).await == Some(true) => {}
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
        let mut pauses = Pauses::within(LOCKED_WAIT);
        loop {
            let begun = match self.try_begin(isolation, guard).await {
                Err(error) if error.is_of_the_connection() => {
                    self.pool.forget_idle();
                    self.try_begin(isolation, guard).await
                }
                begun => begun,
            };
            match begun {
                Err(StoreError::Locked) if pauses.pause().await => {}
                begun => return begun,
            }
        }
    }

    async fn take_over(&self, claim: &Claim<'_>, hold: Hold) -> Result<Option<KeyRow>, StoreError> {
        let mut pauses = Pauses::within(LOCKED_WAIT);
        loop {
            match self.try_take_over(claim, hold).await {
                Err(StoreError::Locked) if pauses.pause().await => {}
                taken => return taken,
            }
        }
    }

    async fn write(&self, guard: &Guard<'_>, change: &Change<'_>) -> Commit {
        let mut pauses = Pauses::within(LOCKED_WAIT);
        loop {
            match self.try_write(guard, change).await {
                Err(StoreError::Locked) if pauses.pause().await => {}
                written => return commit_of(written),
            }
        }
    }

    async fn settle(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        let mut pauses = Pauses::within(LOCKED_WAIT);
        loop {
            match self.try_settle(claim, hold, change, audit).await {
                Err(StoreError::Locked) if pauses.pause().await => {}
                settled => return commit_of(settled),
            }
        }
    }

    async fn renew(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        let mut pauses = Pauses::within(LOCKED_WAIT);
        loop {
            match self.try_renew(guard, hold).await {
                Err(StoreError::Locked) if pauses.pause().await => {}
                renewed => return renewed,
            }
        }
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

    async fn due(
        &self,
        place: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> Result<Page<DueKey, KeyPlace>, StoreError> {
        let keys =
            self.ask_again("look for due keys", |session| read_keys(session).boxed()).await?;
        let now = self.database().now();
        let behind = (place.run_after, place.scope.as_str(), place.key.as_str());
        let due_at = |key: &KeyRecord| {
            let due = key.run_after?.0;
            let at = (due, key.scope.as_str(), key.idempotency_key.as_str());
            (due <= now && at > behind).then_some(due)
        };
        let row = |key: &KeyRecord| {
            let due = due_at(key)?;
            Some((
                due,
                key.scope.clone(),
                key.idempotency_key.clone(),
                key.status.clone(),
                key.lease_token,
                key.definition.clone(),
                key.definition_version,
                after(due, grace).0 <= now,
                key.request_id.uuid(),
            ))
        };
        let mut rows: Vec<DueKeyRow> = keys.iter().filter_map(row).collect();
        rows.sort();
        rows.truncate(limit as usize);
        Ok(due_keys(rows, limit))
    }

    async fn held(
        &self,
        (from, to): (DateTime<Utc>, DateTime<Utc>),
        place: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<HeldKey, ExpiryPlace>, StoreError> {
        let keys =
            self.ask_again("look for held keys", |session| read_keys(session).boxed()).await?;
        let now = self.database().now();
        let by_expiry =
            |key: &KeyRecord| (key.expires_at.0, key.scope.clone(), key.idempotency_key.clone());
        let behind = (place.expires_at, place.scope.clone(), place.key.clone());
        let is_read =
            |key: &KeyRecord| (from..=to).contains(&key.expires_at.0) && by_expiry(key) > behind;
        let mut read: Vec<_> = keys.into_iter().filter(is_read).collect();
        read.sort_by_key(by_expiry);
        read.truncate(limit as usize);
        let row = |key: &KeyRecord, is_the_last| -> HeldKeyRow {
            let left = key.locked_until.map_or(0, |until| (until.0 - now).num_milliseconds());
            let (expires_at, scope, name) = by_expiry(key);
            let (request_id, token) = (key.request_id.uuid(), key.lease_token);
            (expires_at, scope, name, request_id, token, left.max(0), is_the_last)
        };
        let is_held = |key: &&KeyRecord| key.is(Status::InProgress) && key.run_after.is_none();
        let mut rows: Vec<_> = read.iter().filter(is_held).map(|key| row(key, false)).collect();
        rows.extend(read.last().filter(|_| read.len() == limit as usize).map(|key| row(key, true)));
        Ok(held_keys(rows))
    }

    async fn enrol(&self, held: &HeldKey) -> Result<bool, StoreError> {
        let place = place_of(&held.scope, &held.key);
        let (request_id, token) = (held.request_id, held.lease_token);
        self.ask_again("enrol a key", move |session| {
            enrol(session, place, request_id, token).boxed()
        })
        .await
    }

    async fn reap(&self, limit: u32) -> Result<u32, StoreError> {
        self.ask("reap expired keys", move |session| reap(session, limit).boxed()).await
    }

    async fn jobs_due(
        &self,
        place: &JobPlace,
        limit: u32,
    ) -> Result<Page<DueJob, JobPlace>, StoreError> {
        let jobs =
            self.ask_again("look for staged jobs", |session| read_jobs(session).boxed()).await?;
        let now = self.database().now();
        let behind_id = Uuid::from_slice(&place.request_id).unwrap_or_default();
        let behind = (place.run_after, place.scope.as_str(), behind_id, place.position);
        let row = |job: &JobRecord| {
            let (due, request_id) = (job.run_after?.0, job.request_id.uuid());
            let at = (due, job.scope.as_str(), request_id, job.position);
            let is_next = Session::is_next(&jobs, job, now);
            let row = (due, job.scope.clone(), request_id, job.position, job.attempts);
            let (due, scope, request_id, position, attempts) = row;
            (due <= now && at > behind)
                .then(|| (due, scope, request_id, position, attempts, job.name.clone(), is_next))
        };
        let mut rows: Vec<DueJobRow> = jobs.iter().filter_map(row).collect();
        rows.sort();
        rows.truncate(limit as usize);
        Ok(due_jobs(rows, limit))
    }

    async fn claim_job(&self, at: &JobAt, lease: Duration) -> Result<Option<JobRow>, StoreError> {
        let (place, attempts) = job_place(at);
        let claimed = self
            .ask("claim a staged job", move |session| {
                claim_job(session, place, attempts, lease).boxed()
            })
            .await?;
        claimed.map(|claimed| claimed_job(at, claimed)).transpose()
    }

    async fn claim_jobs(
        &self,
        at: &[JobAt],
        lease: Duration,
    ) -> Result<Vec<Result<Option<JobRow>, StoreError>>, StoreError> {
        let places: Vec<_> = at.iter().map(job_place).collect();
        let claimed = self
            .ask("claim staged jobs", move |session| claim_each(session, places, lease).boxed());
        let rows = at.iter().zip(claimed.await?);
        let claimed = |(at, row): (_, Option<_>)| row.map(|row| claimed_job(at, row)).transpose();
        Ok(rows.map(claimed).collect())
    }

    async fn jobs_delivered(&self, at: &[JobAt]) -> Result<Vec<bool>, StoreError> {
        let places: Vec<_> = at.iter().map(job_place).collect();
        self.ask("delete delivered jobs", move |session| delete_each(session, places).boxed()).await
    }

    async fn job_delivered(&self, at: &JobAt) -> Result<bool, StoreError> {
        let (place, attempts) = job_place(at);
        self.ask("delete a delivered job", move |session| {
            change_job(session, place, attempts, Behind::MadeDue, |_, _| None).boxed()
        })
        .await
    }

    async fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let (place, attempts) = job_place(at);
        let reason = reason.to_owned();
        let (back_off, forgiven, behind) = match becomes {
            Undelivered::Again(after) => (Some(after), 0, Behind::Waits),
            Undelivered::Left => (Some(Duration::ZERO), 1, Behind::Waits),
            Undelivered::Dead => (None, 0, Behind::MadeDue),
        };
        let put_back = move |job: JobRecord, now: DateTime<Utc>| {
            let run_after = back_off.map(|back_off| after(now, back_off));
            let forgiven_attempts = job.attempts.min(job.forgiven_attempts + forgiven);
            Some(JobRecord { run_after, forgiven_attempts, reason: Some(reason), ..job })
        };
        self.ask_again("put a job back", move |session| {
            change_job(session, place, attempts, behind, put_back).boxed()
        })
        .await
    }

    async fn erase(&self, erase: &Erase<'_>) -> Result<u32, StoreError> {
        let (limit, retention) = (erase.limit, erase.retention);
        let mut pauses = Pauses::within(LOCKED_WAIT);
        loop {
            let scope = erase.scope.as_str().to_owned();
            let key = erase.key.map(|key| key.as_str().to_owned());
            let act = erase.act.map(|act| (AsSeen::of(act.seen), AuditRecord::of(act.audit)));
            let erased = self.ask_again("erase", move |session| {
                erase_keys(session, scope, key, act, (limit, retention)).boxed()
            });
            match erased.await? {
                Erased::Locked if pauses.pause().await => {}
                Erased::Locked => return Err(StoreError::Locked),
                Erased::Rows(erased) => return Ok(erased),
            }
        }
    }

    async fn count_unerased(&self, scope: &Scope) -> Result<u64, StoreError> {
        let keys = self.ask_again("count the keys", |session| read_keys(session).boxed()).await?;
        let of_scope = keys.iter().filter(|key| key.scope == scope.as_str());
        Ok(of_scope.filter(|key| key.fingerprint != super::ERASED).count() as u64)
    }

    async fn dead_jobs(&self) -> Result<u64, StoreError> {
        let jobs = self.ask_again("count dead jobs", |session| read_jobs(session).boxed()).await?;
        Ok(jobs.iter().filter(|job| job.run_after.is_none()).count() as u64)
    }

    async fn revive_jobs(&self) -> Result<u64, StoreError> {
        let any = |_: &JobRecord| true;
        self.ask_again("revive dead jobs", move |session| {
            change_dead_jobs(session, any, revived).boxed()
        })
        .await
    }

    async fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> Result<u32, StoreError> {
        let scope = scope.as_str().to_owned();
        let key = key.map(|key| key.as_str().to_owned());
        self.ask_again("erase jobs", move |session| {
            async move {
                session.begin(Isolation::ReadCommitted)?;
                let erased = session.erase_orphaned_jobs(&scope, key.as_deref(), limit).await;
                session.conclude(erased).await
            }
            .boxed()
        })
        .await
    }

    async fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> Result<u64, StoreError> {
        let scope = scope.as_str().to_owned();
        let key = key.map(|key| key.as_str().to_owned());
        self.ask_again("count jobs", move |session| {
            async move {
                session.begin(Isolation::ReadCommitted)?;
                let counted = session.count_orphans(&scope, key.as_deref());
                session.conclude(counted).await
            }
            .boxed()
        })
        .await
    }

    async fn list_dead_jobs(
        &self,
        after: Option<(&Scope, Uuid)>,
        limit: u32,
    ) -> Result<Vec<StagedJobRow>, StoreError> {
        let jobs = self.ask_again("list dead jobs", |session| read_jobs(session).boxed()).await?;
        let after = after.map(|(scope, id)| (scope.as_str(), id)).unwrap_or_default();
        let mut dead: Vec<&JobRecord> = jobs
            .iter()
            .filter(|job| {
                job.run_after.is_none() && (job.scope.as_str(), job.job_id.uuid()) > after
            })
            .collect();
        dead.sort_by_key(|job| (job.scope.as_str(), job.job_id.uuid()));
        Ok(listed_jobs(dead.into_iter().take(limit as usize).map(listed).collect()))
    }

    async fn list_overdue_jobs(
        &self,
        overdue: Duration,
        limit: u32,
    ) -> Result<Vec<StagedJobRow>, StoreError> {
        let jobs =
            self.ask_again("list overdue jobs", |session| read_jobs(session).boxed()).await?;
        let now = self.database().now();
        let mut late: Vec<&JobRecord> = jobs
            .iter()
            .filter(|job| job.run_after.is_some_and(|due| after(due.0, overdue).0 <= now))
            .collect();
        late.sort_by_key(|job| {
            (job.run_after, job.scope.as_str(), job.request_id.uuid(), job.position)
        });
        Ok(listed_jobs(late.into_iter().take(limit as usize).map(listed).collect()))
    }

    async fn pauses(&self) -> Result<Vec<PausedPhase>, StoreError> {
        self.paused_phases().await
    }

    async fn revive_job(&self, scope: &Scope, id: Uuid) -> Result<bool, StoreError> {
        let scope = scope.as_str().to_owned();
        let this = move |job: &JobRecord| job.scope == scope && job.job_id.uuid() == id;
        let revived = self.ask_again("revive a job", move |session| {
            change_dead_jobs(session, this, revived).boxed()
        });
        Ok(revived.await? == 1)
    }

    async fn discard_job(&self, scope: &Scope, id: Uuid) -> Result<bool, StoreError> {
        let scope = scope.as_str().to_owned();
        let this = move |job: &JobRecord| job.scope == scope && job.job_id.uuid() == id;
        let discarded = self.ask_again("discard a job", move |session| {
            change_dead_jobs(session, this, |_, _| None).boxed()
        });
        Ok(discarded.await? == 1)
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

    async fn survey(&self, limit: u32, youth: Duration) -> Result<Vec<SurveyedRow>, StoreError> {
        let keys = self.ask_again("survey the keys", |session| read_keys(session).boxed()).await?;
        let found = |by: i32, mut keys: Vec<&KeyRecord>, place: fn(&KeyRecord) -> Option<Time>| {
            keys.retain(|key| place(key).is_some());
            keys.sort_by_key(|key| place(key));
            let row = move |key: &KeyRecord| -> SurveyRow {
                (
                    by,
                    (key.scope.clone(), key.idempotency_key.clone()),
                    (key.definition.clone(), key.definition_version, key.phases.clone()),
                    (
                        key.status.clone(),
                        key.recovery_point.clone(),
                        key.open_intent.clone(),
                        key.reason.clone(),
                    ),
                )
            };
            keys.into_iter().take(limit as usize).map(row).collect::<Vec<_>>()
        };
        let all = || keys.iter().collect();
        let mut rows = found(0, all(), |key| key.run_after);
        rows.extend(found(1, all(), |key| key.waiting_since));
        let mut youngest: Vec<&KeyRecord> = all();
        youngest.sort_by_key(|key| std::cmp::Reverse(key.expires_at));
        youngest.truncate(limit as usize);
        let oldest = youngest.get((limit as usize).wrapping_sub(1)).copied();
        let now = self.database().now();
        let is_young = |key: &&KeyRecord| after(key.created_at.0, youth).0 > now;
        rows.extend(found(3, oldest.into_iter().filter(is_young).collect(), |key| {
            Some(key.expires_at)
        }));
        youngest.retain(|key| key.is(Status::InProgress) && key.run_after.is_none());
        rows.extend(found(2, youngest, |key| Some(key.expires_at)));
        rows.into_iter().map(surveyed).collect()
    }

    async fn survey_jobs(
        &self,
        limit: u32,
        most_bytes: u32,
    ) -> Result<Vec<SurveyedJob>, StoreError> {
        let mut jobs =
            self.ask_again("survey the jobs", |session| read_jobs(session).boxed()).await?;
        jobs.sort_by_key(|job| (job.run_after, job.staged_at));
        let of = |dead: bool| {
            let row = move |job: &JobRecord| -> SurveyedJobRow {
                let args = job.args.0.clone();
                let is_short = args.len() <= most_bytes as usize;
                (i32::from(dead), job.name.clone(), is_short.then_some(args))
            };
            let jobs = jobs.iter().filter(move |job| job.run_after.is_none() == dead);
            jobs.take(limit as usize).map(row)
        };
        Ok(surveyed_jobs(of(false).chain(of(true)).collect()))
    }
}

fn job_place(at: &JobAt) -> (Place, i32) {
    let place = Place::Job(at.scope.as_str().to_owned(), at.request_id, at.position);
    (place, at.attempts.cast_signed())
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

async fn write(session: &mut Session, guarded: Guarded, next: NextState) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let written = session.advance(&guarded, next, Wait::No).await;
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

/// What became of a guarded statement that commits by itself. `false`: the row is not as the guard says.
fn commit_of(written: Result<bool, StoreError>) -> Commit {
    match written {
        Ok(true) => Commit::Done(()),
        Ok(false) => Commit::Fenced,
        Err(error @ (StoreError::NoConnection(_) | StoreError::Locked)) => Commit::Failed(error),
        Err(error) if error.is_from_server() => Commit::Failed(error),
        Err(error) => Commit::Unknown(error),
    }
}

/// Writes the audit row, if there is one, in the open transaction.
async fn audited(session: &mut Session, audit: Option<AuditRecord>) -> QueryResult<()> {
    match audit {
        Some(audit) => session.insert_audit(audit).await,
        None => Ok(()),
    }
}

async fn reap(session: &mut Session, limit: u32) -> QueryResult<u32> {
    session.begin(Isolation::ReadCommitted)?;
    let reaped = reap_batch(session, limit).await;
    session.conclude(reaped).await
}

async fn reap_batch(session: &mut Session, limit: u32) -> QueryResult<u32> {
    let now = session.now();
    let expired = move |key: &KeyRecord, _| key.is(Status::Completed) && key.expires_at.0 <= now;
    let mut keys = session.read_keys()?;
    keys.retain(|key| expired(key, now));
    keys.sort_by_key(|key| key.expires_at);
    let mut reaped = 0;
    for key in keys {
        if reaped == limit {
            break;
        }
        let same =
            move |other: &KeyRecord, now| other.request_id == key.request_id && expired(other, now);
        let place = Place::Key(key.scope.clone(), key.idempotency_key.clone());
        reaped += u32::from(session.delete_key(&place, Wait::No, same).await?);
    }
    Ok(reaped)
}

async fn claim_job(
    session: &mut Session,
    place: Place,
    attempts: i32,
    lease: Duration,
) -> QueryResult<Option<(JobRecord, DateTime<Utc>)>> {
    session.begin(Isolation::ReadCommitted)?;
    let claimed = claim_next(session, place, attempts, lease).await;
    session.conclude(claimed).await
}

fn claimed_job(at: &JobAt, (job, now): (JobRecord, DateTime<Utc>)) -> Result<JobRow, StoreError> {
    let lag = (now - job.staged_at.0).num_milliseconds();
    let (key, id) = (job.idempotency_key, job.job_id.uuid());
    let row = (key, id, job.name, job.args.0, job.attempts, job.forgiven_attempts, lag);
    super::due::job(at, row)
}

/// Each of them, in one transaction: those that were won.
async fn claim_each(
    session: &mut Session,
    places: Vec<(Place, i32)>,
    lease: Duration,
) -> QueryResult<Vec<Option<(JobRecord, DateTime<Utc>)>>> {
    session.begin(Isolation::ReadCommitted)?;
    let each = async {
        let mut claimed = Vec::new();
        for (place, attempts) in places {
            // `SKIP LOCKED`
            claimed.push(match session.is_of_another(&place) {
                true => None,
                false => claim_next(session, place, attempts, lease).await?,
            });
        }
        Ok(claimed)
    };
    let claimed = each.await;
    session.conclude(claimed).await
}

async fn delete_each(session: &mut Session, places: Vec<(Place, i32)>) -> QueryResult<Vec<bool>> {
    session.begin(Isolation::ReadCommitted)?;
    let each = async {
        let mut deleted = Vec::new();
        for (place, attempts) in places {
            deleted
                .push(change_next(session, &place, attempts, Behind::MadeDue, |_, _| None).await?);
        }
        Ok(deleted)
    };
    let deleted = each.await;
    session.conclude(deleted).await
}

async fn claim_next(
    session: &mut Session,
    place: Place,
    attempts: i32,
    lease: Duration,
) -> QueryResult<Option<(JobRecord, DateTime<Utc>)>> {
    if !session.lock_dead_before(&place)? {
        return Ok(None);
    }
    let jobs = session.read_jobs()?;
    let is_due = move |job: &JobRecord, now| {
        job.attempts == attempts
            && job.run_after.is_some_and(|due| due.0 <= now)
            && Session::is_next(&jobs, job, now)
    };
    let claim = |job: JobRecord, now| {
        let run_after = Some(after(now, lease));
        Some(JobRecord { attempts: job.attempts + 1, reason: None, run_after, ..job })
    };
    session.update_job(&place, is_due, claim).await
}

/// What becomes of the later jobs of the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// The next of them is due, if it waits.
    MadeDue,
    /// Those that are due wait.
    Waits,
}

async fn change_job(
    session: &mut Session,
    place: Place,
    attempts: i32,
    behind: Behind,
    change: impl FnOnce(JobRecord, DateTime<Utc>) -> Option<JobRecord> + Send,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let changed = change_next(session, &place, attempts, behind, change).await;
    session.conclude(changed).await
}

async fn change_next(
    session: &mut Session,
    place: &Place,
    attempts: i32,
    behind: Behind,
    change: impl FnOnce(JobRecord, DateTime<Utc>) -> Option<JobRecord> + Send,
) -> QueryResult<bool> {
    let ours = move |job: &JobRecord, _: DateTime<Utc>| job.attempts == attempts;
    let changed = session.update_job(place, ours, change).await?.is_some();
    if changed {
        change_behind(session, place, behind).await?;
    }
    Ok(changed)
}

async fn change_behind(session: &mut Session, place: &Place, behind: Behind) -> QueryResult<()> {
    let Place::Job(scope, request_id, position) = place else { return Ok(()) };
    let mut later = session.read_jobs()?;
    later.retain(|job| {
        (&job.scope, job.request_id.uuid()) == (scope, *request_id)
            && job.position > *position
            && job.run_after.is_some()
    });
    later.sort_by_key(|job| job.position);
    if behind == Behind::MadeDue {
        later.truncate(1);
    }
    for job in later {
        let matches = move |job: &JobRecord, now: DateTime<Utc>| match behind {
            Behind::MadeDue => job.run_after == Some(waits()),
            Behind::Waits => job.run_after.is_some_and(|due| due.0 <= now),
        };
        let change = move |job: JobRecord, now: DateTime<Utc>| {
            let run_after = if behind == Behind::MadeDue { Time(now) } else { waits() };
            Some(JobRecord { run_after: Some(run_after), ..job })
        };
        session.update_job(&job.place(), matches, change).await?;
    }
    Ok(())
}

/// What an erasure came to.
enum Erased {
    Rows(u32),
    /// The one row has the lock of another transaction on it.
    Locked,
}

async fn erase_keys(
    session: &mut Session,
    scope: String,
    key: Option<String>,
    act: Option<(AsSeen, AuditRecord)>,
    bounds: (u32, Duration),
) -> QueryResult<Erased> {
    session.begin(Isolation::ReadCommitted)?;
    let erased = erase_batch(session, scope, key, act, bounds).await;
    session.conclude(erased).await
}

async fn erase_batch(
    session: &mut Session,
    scope: String,
    key: Option<String>,
    act: Option<(AsSeen, AuditRecord)>,
    (limit, retention): (u32, Duration),
) -> QueryResult<Erased> {
    if let Some(key) = key {
        let place = Place::Key(scope, key);
        let (seen, audit) = act.unzip();
        let erased = session.erase(&place, retention, Lives::All, seen.as_ref()).await?;
        if erased {
            audited(session, audit).await?;
        }
        return Ok(match !erased && session.is_settled(&place, Lives::All, seen.as_ref())? {
            true => Erased::Locked,
            false => Erased::Rows(erased.into()),
        });
    }
    let mut erased = 0;
    for key in session.read_keys()? {
        if erased == limit {
            break;
        }
        if key.scope == scope && key.fingerprint != super::ERASED {
            let place = Place::Key(key.scope, key.idempotency_key);
            erased += u32::from(session.erase(&place, retention, Lives::This, None).await?);
        }
    }
    Ok(Erased::Rows(erased))
}

fn listed(job: &JobRecord) -> JobListRow {
    (
        job.scope.clone(),
        job.request_id.uuid(),
        job.job_id.uuid(),
        job.name.clone(),
        job.attempts,
        job.reason.clone(),
        job.staged_at.0,
    )
}

/// An operator's word: a dead letter is delivered again, with a new count of attempts.
fn revived(job: JobRecord, now: DateTime<Utc>) -> Option<JobRecord> {
    let run_after = Some(record::Time(now));
    let attempts = job.attempts + 1;
    Some(JobRecord { run_after, attempts, forgiven_attempts: attempts, ..job })
}

async fn change_dead_jobs(
    session: &mut Session,
    which: impl Fn(&JobRecord) -> bool + Send + Sync,
    change: fn(JobRecord, DateTime<Utc>) -> Option<JobRecord>,
) -> QueryResult<u64> {
    session.begin(Isolation::ReadCommitted)?;
    let changed = change_each_dead_job(session, which, change).await;
    session.conclude(changed).await
}

async fn change_each_dead_job(
    session: &mut Session,
    which: impl Fn(&JobRecord) -> bool + Send + Sync,
    change: fn(JobRecord, DateTime<Utc>) -> Option<JobRecord>,
) -> QueryResult<u64> {
    let mut changed = 0;
    for job in session.read_jobs()? {
        let dead = |job: &JobRecord, _| job.run_after.is_none() && which(job);
        changed += u64::from(session.update_job(&job.place(), dead, change).await?.is_some());
    }
    Ok(changed)
}

async fn enrol(
    session: &mut Session,
    place: Place,
    request_id: Uuid,
    token: i64,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let abandoned = move |key: &KeyRecord, now| {
        key.request_id.uuid() == request_id
            && key.lease_token == token
            && key.is(Status::InProgress)
            && key.run_after.is_none()
            && key.locked_until.is_some_and(|until| until.0 <= now)
    };
    let enter = |key: &mut KeyRecord, _| key.run_after = key.locked_until;
    let entered = session.update_key(&place, Wait::ForTheLock, abandoned, enter).await;
    Ok(session.conclude(entered).await?.is_some())
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
