//! [`Store`]: the engine's only door to a database, and the rows that pass through it.
//!
//! All SQL lives in the stores, and only here. A store decides nothing about a request: it reads
//! and writes rows, guards every write (G3), and says honestly what became of a commit (G7).

pub(crate) mod audit;
pub(crate) mod bulk;
mod by_text;
pub(crate) mod census;
/// The tests' own server.
#[cfg(all(test, feature = "postgres"))]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../tests/support/cluster.rs"]
pub(crate) mod cluster;
mod due;
mod error;
pub(crate) mod events;
#[cfg(all(test, feature = "fault-injection"))]
mod guards;
#[cfg(feature = "simulation")]
pub(crate) mod memory;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod migrations;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
pub(crate) mod nodes;
pub(crate) mod operators;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod patience;
pub(crate) mod pauses;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod pool_settings;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod row;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod rows_in_millis;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod shares;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod statement;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod tokenizer;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod turns;
mod types;

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::query_builder::{QueryFragment, QueryId};
use diesel_async::AsyncConnectionCore;
use uuid::Uuid;

use crate::definition::Isolation;
use crate::key::{IdempotencyKey, Scope};
use crate::phase::StagedJob;

pub(crate) use self::by_text::ByText;
pub(crate) use self::due::{
    DueJob, DueKey, ExpiryPlace, HeldKey, JobAt, JobPlace, JobRow, KeyPlace, Page, StagedJobRow,
};
pub use self::error::StoreError;
#[cfg(feature = "mysql")]
pub use self::mysql::{Mysql, MysqlConn, MysqlHandle};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use self::pool_settings::PoolSettings;
#[cfg(feature = "postgres")]
pub use self::postgres::{DeadpoolPool, Pool, Postgres};
pub(crate) use self::row::{millis, whole_millis};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{ConnectionGuard, Sqlite, SqliteConn, WatchedConnection};
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
use self::types::is_nested;
pub(crate) use self::types::{
    Birth, Change, Claim, Commit, ERASED, Erase, EraseAct, FoundBy, Guard, Hold, KeyRow,
    KeySummary, NewRow, ParamsAndContext, Refusal, Reserved, Right, RowTimes, Seen, Settles,
    StoredResponse, SurveyedJob, SurveyedRow, TransactionId, Undelivered, Work, Writes,
};
pub use self::types::{Standing, Status};
pub use crate::error::DbError;

/// A database that keeps the rows of idempotency keys.
///
/// Implemented by [`Postgres`] and [`Sqlite`]. Its methods are the
/// engine's; an application only names the type, in `Tx<'_, Store>`. A request that is to run on several
/// stores does its statements by [a trait of its own](macro@crate::atomic_phases#several-stores) over this one.
pub trait Store: Clone + Send + Sync + 'static {
    /// What diesel calls the connection; lent to local phases.
    type Connection: AsyncConnectionCore + Send;

    /// An open transaction. Dropped without [`commit`](Transaction::commit), it is undone, and its
    /// locks are gone within a second, whatever became of the future that held it (G13).
    #[doc(hidden)]
    type Transaction: Transaction<Self>;

    /// A statement that a phase hands over, to run with its commit.
    #[doc(hidden)]
    type Statement: Send;

    /// See [`Batch::add`](crate::Batch::add).
    #[doc(hidden)]
    fn statement<Q>(query: Q) -> Self::Statement
    where
        Q: QueryFragment<<Self::Connection as AsyncConnectionCore>::Backend>
            + QueryId
            + Send
            + 'static;

    /// Whether to keep a statement of a [`Tx`](crate::Tx) prepared that diesel would prepare anew each
    /// time.
    #[doc(hidden)]
    fn keeps(
        &self,
        query: &impl QueryFragment<<Self::Connection as AsyncConnectionCore>::Backend>,
    ) -> bool {
        let _ = query;
        false
    }

    /// Applies the migrations that are missing. Safe to call from several processes at once, and while nodes
    /// of the build before serve requests: they work on the new schema too, and wait no longer than the
    /// store says for a lock of a migration.
    ///
    /// # Errors
    /// [`StoreError::Migration`], where one failed or could not get its locks in time. Those before it are
    /// applied, and nothing of it is: call it again.
    fn migrate(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The names of the migrations that are not applied.
    #[doc(hidden)]
    fn missing_migrations(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Undoes all migrations: the tables of this crate are dropped, with all that is in them.
    ///
    /// # Errors
    /// [`StoreError::Migration`], as there.
    fn revert_migrations(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What a call has to see of the key's row, if there is one: one statement, no lock, no write. A
    /// replay is this and nothing else, so it is as narrow as can be.
    #[doc(hidden)]
    fn look(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<KeySummary>, StoreError>> + Send;

    /// The key's row, if there is one: one statement, no lock, no write.
    #[doc(hidden)]
    fn read(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<KeyRow>, StoreError>> + Send;

    /// Begins a transaction and, in one statement, creates the row in it or tells the row that the
    /// key has. Waits at most the bound of `row.lock_wait` for another transaction that is about to
    /// create it.
    #[doc(hidden)]
    fn reserve(
        &self,
        row: &NewRow<'_>,
    ) -> impl Future<Output = Result<Reserved<Self::Transaction>, StoreError>> + Send;

    /// A whole transaction in one round trip: creates the row as `change` leaves it, unless the key
    /// has one ([`Commit::Fenced`]), runs the statements, stages the jobs and commits. Waits at most the
    /// bound of `row.lock_wait` for another transaction that is about to create it
    /// ([`StoreError::Locked`]).
    #[doc(hidden)]
    fn create(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> impl Future<Output = Commit<RowTimes>> + Send;

    /// A whole transaction in one round trip: writes `change`, guarded, runs the statements, stages
    /// the jobs and commits.
    #[doc(hidden)]
    fn advance(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> impl Future<Output = Commit> + Send;

    /// The database's clock.
    #[doc(hidden)]
    fn now(&self) -> impl Future<Output = Result<DateTime<Utc>, StoreError>> + Send;

    /// Closes the connections that nobody uses, where it has such: one of them was found to be good for nothing any
    /// more, and the others are as old.
    #[doc(hidden)]
    fn forget_idle(&self) {}

    /// Begins the transaction of a phase whose row is guarded by `guard`. One that keeps what it saw at
    /// its beginning locks the row there, which is a lease by itself until it ends. `None` where the row
    /// was found to be somebody else's.
    #[doc(hidden)]
    fn begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> impl Future<Output = Result<Option<Self::Transaction>, StoreError>> + Send;

    /// Whether the transaction is open at the server, asked on another connection than its own.
    #[doc(hidden)]
    fn is_open(
        &self,
        transaction: &TransactionId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = transaction;
        std::future::ready(Ok(true))
    }

    /// Acquires the lease of an existing row: one guarded statement, which raises the fencing token
    /// by one. `None` where somebody else was faster.
    #[doc(hidden)]
    fn take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> impl Future<Output = Result<Option<KeyRow>, StoreError>> + Send;

    /// Writes `change` in a transaction of its own: one guarded statement.
    #[doc(hidden)]
    fn write(&self, guard: &Guard<'_>, change: &Change<'_>) -> impl Future<Output = Commit> + Send;

    /// Acquires a row that nobody holds and writes `change` to it, with the audit row that it may have, in one
    /// transaction: the row is never seen held, and what is cut off leaves it as it was.
    #[doc(hidden)]
    fn settle(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&audit::AuditEntry>,
    ) -> impl Future<Output = Commit> + Send;

    /// Extends the lease. `false` where it is not ours any more.
    #[doc(hidden)]
    fn renew(
        &self,
        guard: &Guard<'_>,
        hold: Hold,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The stored outputs, of a finished row too.
    #[doc(hidden)]
    fn outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// What the client gave in this life of the key, of a finished one too: parameters and context.
    #[doc(hidden)]
    fn given(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> impl Future<Output = Result<Option<ParamsAndContext>, StoreError>> + Send;

    /// How many keys of the scope, but for those of requests that had none, are not past their retention,
    /// counted up to `cap`.
    #[doc(hidden)]
    fn count_keys(
        &self,
        scope: &Scope,
        cap: u32,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Up to `limit` rows that are due, behind this place, the longest due first: of every status that
    /// a worker looks for. One search for all of them is bounded by its limit, whatever the rows are.
    #[doc(hidden)]
    fn due(
        &self,
        after: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<Page<DueKey, KeyPlace>, StoreError>> + Send;

    /// Reads `limit` rows that expire within these bounds, behind this place, in the order in which they
    /// expire. Of these, those in progress that the index of due rows does not have.
    #[doc(hidden)]
    fn held(
        &self,
        expiry: (DateTime<Utc>, DateTime<Utc>),
        after: &ExpiryPlace,
        limit: u32,
    ) -> impl Future<Output = Result<Page<HeldKey, ExpiryPlace>, StoreError>> + Send;

    /// Enters a row whose lease has ended in the index of due rows: one guarded statement. `false` where
    /// that was done by another node, or somebody has its lease.
    #[doc(hidden)]
    fn enrol(&self, held: &HeldKey) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes completed rows past their expiry, `limit` at most, and says how many (G15). Waits for no
    /// row that another transaction has locked: it passes over it.
    #[doc(hidden)]
    fn reap(&self, limit: u32) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Up to `limit` staged jobs that are due, behind this place, the longest due first.
    #[doc(hidden)]
    fn jobs_due(
        &self,
        after: &JobPlace,
        limit: u32,
    ) -> impl Future<Output = Result<Page<DueJob, JobPlace>, StoreError>> + Send;

    /// Acquires the right to deliver a job for the length of `lease`: one guarded statement. `None`
    /// where somebody else was faster, or where an earlier job of the request is still to be
    /// delivered.
    #[doc(hidden)]
    fn claim_job(
        &self,
        at: &JobAt,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<JobRow>, StoreError>> + Send;

    /// The job was delivered: its row goes, and the next of its request is due. `false` where somebody
    /// else has it by now, or it is gone.
    #[doc(hidden)]
    fn job_delivered(&self, at: &JobAt) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// As [`claim_job`](Self::claim_job), of many jobs in one transaction: what came of each. A row that
    /// another transaction has locked is not waited for for long, and may be passed over. `Err`: nothing was
    /// claimed, or no answer came.
    #[doc(hidden)]
    fn claim_jobs(
        &self,
        at: &[JobAt],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Result<Option<JobRow>, StoreError>>, StoreError>> + Send;

    /// As [`job_delivered`](Self::job_delivered), of many jobs in one transaction, no two of them of one
    /// request: whether each was deleted. A row that another transaction has locked is not waited for for long.
    #[doc(hidden)]
    fn jobs_delivered(
        &self,
        at: &[JobAt],
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// The job was not delivered, for this reason. Behind a dead one the next of its request is due; the
    /// others wait until it is out of the way, and no search finds them meanwhile.
    #[doc(hidden)]
    fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Takes what users gave out of a settled row of the scope, or out of `limit` of them at most,
    /// and deletes its dead jobs: one guarded statement. Says how many rows there were: none that
    /// are unfinished, or that have jobs to be delivered.
    #[doc(hidden)]
    fn erase(&self, erase: &Erase<'_>) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// How many rows of the scope are not erased.
    #[doc(hidden)]
    fn count_unerased(&self, scope: &Scope)
    -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes up to `limit` dead jobs of the scope, or of one of its keys, whose key has no row but an
    /// erased one, and says how many.
    #[doc(hidden)]
    fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// How many requests of the scope, or of one of its keys, have no row and jobs that are still to be
    /// delivered.
    #[doc(hidden)]
    fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// How many jobs are dead letters.
    #[doc(hidden)]
    fn dead_jobs(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Up to `limit` jobs that are dead letters, by scope and id, behind this one.
    #[doc(hidden)]
    fn list_dead_jobs(
        &self,
        after: Option<(&Scope, Uuid)>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StagedJobRow>, StoreError>> + Send;

    /// Up to `limit` jobs that have been due for `overdue` and are still to be delivered, the longest
    /// due first.
    #[doc(hidden)]
    fn list_overdue_jobs(
        &self,
        overdue: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StagedJobRow>, StoreError>> + Send;

    /// The foreign phases that operators have paused and whose pause lasts, a thousand at most.
    #[doc(hidden)]
    fn pauses(&self) -> impl Future<Output = Result<Vec<pauses::PausedPhase>, StoreError>> + Send;

    /// Lets all jobs that are dead letters try again, and says how many.
    #[doc(hidden)]
    fn revive_jobs(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Lets one job that is a dead letter try again. `false` where there is none of this id.
    #[doc(hidden)]
    fn revive_job(
        &self,
        scope: &Scope,
        id: Uuid,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes one job that is a dead letter. `false` where there is none of this id.
    #[doc(hidden)]
    fn discard_job(
        &self,
        scope: &Scope,
        id: Uuid,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Whether others can work with the database while a transaction is open.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    const CONCURRENT: bool;

    /// Whether it is a model in memory, whose time can be simulated.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    const IN_MEMORY: bool = false;

    /// Moves the database's clock, as far as this row is concerned: its lease and its back-off are over.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    fn pass_time(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Cuts the connection of an open transaction, at the server.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    fn cut(&self, tx: &mut Self::Transaction) -> impl Future<Output = ()> + Send;

    /// Unfinished rows by the partial indexes, and the youngest by the index on expiry: `limit` of each
    /// at most. A row may come twice. Where there may be more that were created within `youth`, the
    /// [oldest](FoundBy::OldestOfYouth) of the youngest says so.
    #[doc(hidden)]
    fn survey(
        &self,
        limit: u32,
        youth: Duration,
    ) -> impl Future<Output = Result<Vec<SurveyedRow>, StoreError>> + Send;

    /// Staged jobs, those that have been due for longest first, then the oldest dead letters: `limit` of each at
    /// most. Arguments that are longer than `most_bytes` stay where they are.
    #[doc(hidden)]
    fn survey_jobs(
        &self,
        limit: u32,
        most_bytes: u32,
    ) -> impl Future<Output = Result<Vec<SurveyedJob>, StoreError>> + Send;
}

/// An open transaction of a [`Store`].
#[doc(hidden)]
pub trait Transaction<S: Store>: Send {
    /// The connection, for the phase's own statements.
    fn connection(&mut self) -> Result<&mut S::Connection, StoreError>;

    /// How the server knows it. `None` where it cannot end without the phase hearing of it: there is no
    /// network in between.
    fn id(&self) -> Option<TransactionId> {
        None
    }

    /// Inserts the staged jobs, writes `change` guarded and last, and commits.
    fn commit(
        self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        jobs: &[StagedJob],
    ) -> impl Future<Output = Commit> + Send;

    /// Commits what was written so far, and nothing of the engine's: for a mutant.
    #[cfg(feature = "fault-injection")]
    fn commit_unguarded(self) -> impl Future<Output = Commit> + Send;

    /// Undoes everything and gives the connection back.
    fn rollback(self) -> impl Future<Output = ()> + Send;
}
