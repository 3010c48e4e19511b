//! [`Store`]: the engine's only interface to a database, and the types of its rows.
//!
//! All SQL lives in the stores, and only here. A store decides nothing about a request: it reads
//! and writes rows, guards every write (G3), and reports the outcome of a commit exactly (G7).

#[macro_use]
mod opaque;

mod admin;
pub(crate) mod audit;
pub(crate) mod bulk;
mod by_text;
pub(crate) mod census;
mod change;
mod claim;
/// The tests' own server.
#[cfg(all(test, feature = "postgres"))]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../tests/support/cluster.rs"]
pub(crate) mod cluster;
mod commit;
mod creation;
mod due;
mod error;
pub(crate) mod events;
mod fault;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod first_answer;
#[cfg(all(test, feature = "fault-injection"))]
mod guards;
mod halving;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod in_millis;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod keyed_limit;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod left_sessions;
#[cfg(all(test, feature = "mysql", feature = "postgres", feature = "fault-injection"))]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../tests/support/mariadb.rs"]
mod mariadb;
#[cfg(feature = "simulation")]
pub(crate) mod memory;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod migrations;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
pub(crate) mod nodes;
pub(crate) mod operators;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "simulation"))]
mod patience;
pub(crate) mod pauses;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod pool_settings;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod row;
mod scope_limits;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod shares;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod statement;
mod survey;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod swallowed;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
mod tokenizer;
mod types;
mod workers;

use std::future::Future;

use chrono::{DateTime, Utc};
use diesel::query_builder::{QueryFragment, QueryId};
use diesel_async::AsyncConnectionCore;
use uuid::Uuid;

use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};

pub(crate) use self::admin::AdminStore;
pub(crate) use self::by_text::ByText;
pub(crate) use self::change::{Change, Guard, Settles, Statements, Undelivered, Writes};
pub(crate) use self::claim::{Claim, Erase, EraseAct, Hold, Right, Seen, SettledKey};
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
use self::commit::is_nested;
pub(crate) use self::commit::{Commit, Refusal};
pub(crate) use self::creation::{Birth, NewRow, Reserved, RowTimes};
pub(crate) use self::due::{
    DueJob, DueKey, Enrolled, ExpiredKey, ExpiryPlace, HeldKey, JobAt, JobPlace, JobRow, KeyPlace,
    Page,
};
pub use self::error::StoreError;
pub(crate) use self::fault::{StoreUnderFaults, TransactionUnderFaults};
pub(crate) use self::halving::{Halving, Refused};
#[cfg(feature = "mysql")]
pub use self::mysql::{Mysql, MysqlConn, MysqlHandle};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use self::pool_settings::PoolSettings;
#[cfg(feature = "postgres")]
pub use self::postgres::{DeadpoolPool, Pool, Postgres};
pub(crate) use self::row::{REPLY_STATUSES, millis, whole_millis};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{ConnectionGuard, Sqlite, SqliteConn, WatchedConnection};
pub(crate) use self::survey::{FoundBy, SurveyedJob, SurveyedRow};
pub use self::survey::{Standing, UnknownStatus};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::types::ERASED;
#[cfg(test)]
pub(crate) use self::types::EVERY_STATUS;
pub use self::types::Status;
pub(crate) use self::types::{
    KeyRow, KeySummary, ParamsAndContext, StoredResponse, TransactionId, Work,
};
pub(crate) use self::workers::WorkerStore;
pub use crate::error::DbError;

/// A database that stores the rows of idempotency keys.
///
/// Implemented by [`Postgres`], [`Sqlite`] and `Mysql`, and sealed: it extends traits that no other crate can name, so
/// a later version may add methods. Only the engine calls its methods; an application names the type, as in
/// `Tx<'_, Store>`. A request that runs on several stores executes its statements through
/// [a trait of its own](macro@crate::atomic_phases#several-stores) that extends this one.
pub trait Store:
    WorkerStore + AdminStore + StoreUnderFaults + Clone + Send + Sync + 'static
{
    /// diesel's type of the connection, which local phases borrow.
    type Connection: AsyncConnectionCore + Send;

    /// An open transaction. If it is dropped without [`commit`](Transaction::commit), it is rolled back, and
    /// its locks are gone within a second, even if the future that held it was dropped (G13).
    #[doc(hidden)]
    type Transaction: Transaction<Self>;

    /// A statement that a phase adds to a batch, to be executed with its commit.
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

    /// Whether a connection is to keep a statement of a [`Tx`](crate::Tx) prepared that diesel would prepare anew
    /// each time. `false` where that gains nothing.
    #[doc(hidden)]
    fn keeps_prepared(
        &self,
        query: &impl QueryFragment<<Self::Connection as AsyncConnectionCore>::Backend>,
    ) -> bool {
        let _ = query;
        false
    }

    /// Applies the missing migrations. Safe to call from several processes concurrently, and while nodes
    /// of the previous build serve requests: they work on the new schema too, and wait for the lock of a migration
    /// no longer than the store documents. If none is missing, it only reads: a role that may create nothing may call it,
    /// and so may a process beside a database that can only be read.
    ///
    /// # Errors
    /// [`StoreError::Migration`] if one failed or could not get its locks in time. Those before it are
    /// applied, and it is rolled back: call this again.
    fn migrate(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The names of the missing migrations.
    #[doc(hidden)]
    fn missing_migrations(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Reverts all migrations: drops the tables of this crate, with all their rows.
    ///
    /// # Errors
    /// [`StoreError::Migration`], as there.
    fn revert_migrations(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What a call has to see of the key's row, if there is one: one statement, no lock, no write. A
    /// replay is this and nothing else, so it is as narrow as can be.
    #[doc(hidden)]
    fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<KeySummary>, StoreError>> + Send;

    /// The key's row, if there is one: one statement, no lock, no write.
    #[doc(hidden)]
    fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<KeyRow>, StoreError>> + Send;

    /// Begins a transaction and, in one statement, creates the row in it or tells the row that the
    /// key has. Waits at most the bound of `row.creation_wait` for another transaction that is about to
    /// create it.
    #[doc(hidden)]
    fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> impl Future<Output = Result<Reserved<Self::Transaction>, StoreError>> + Send;

    /// A whole transaction in one round trip: creates the row as `change` leaves it, unless the key
    /// has one ([`Commit::Fenced`]), runs the statements, stages the jobs and commits. Waits at most the
    /// bound of `row.creation_wait` for another transaction that is about to create it
    /// ([`StoreError::Locked`]). The row gets the `created_at` that its phases have seen (G5): it was estimated
    /// before they ran, from what the database's clock said earlier.
    #[doc(hidden)]
    fn create_key(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> impl Future<Output = Commit<RowTimes>> + Send;

    /// A whole transaction in one round trip: writes `change`, guarded, runs the statements, stages
    /// the jobs and commits.
    #[doc(hidden)]
    fn advance_key(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> impl Future<Output = Commit> + Send;

    /// What the database's clock says, at the execution of the statement.
    #[doc(hidden)]
    fn database_time(&self) -> impl Future<Output = Result<DateTime<Utc>, StoreError>> + Send;

    /// Before something is tried again that ended with this error: closes the connections of the pool, if there is one,
    /// that may fail as that one did, and waits where its server needs the time.
    #[doc(hidden)]
    fn recover_from(&self, error: &StoreError) -> impl Future<Output = ()> + Send {
        let _ = error;
        std::future::ready(())
    }

    /// Begins the transaction of a phase whose row is guarded by `guard`. One that keeps what it saw at
    /// its beginning locks the row there, which is a lease by itself until it ends. `None` where the row
    /// was found to belong to another holder.
    #[doc(hidden)]
    fn begin_transaction(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> impl Future<Output = Result<Option<Self::Transaction>, StoreError>> + Send;

    /// Whether the transaction is open at the server, asked on another connection than its own.
    #[doc(hidden)]
    fn is_transaction_open(
        &self,
        transaction: &TransactionId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = transaction;
        std::future::ready(Ok(true))
    }

    /// Acquires the lease of an existing row: one guarded statement, which raises the fencing token
    /// by one. `None` where another process was faster.
    #[doc(hidden)]
    fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> impl Future<Output = Result<Option<KeyRow>, StoreError>> + Send;

    /// Writes `change` in a transaction of its own: one guarded statement. Where there is a notice of it, that is
    /// staged in the same transaction.
    #[doc(hidden)]
    fn write_change(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> impl Future<Output = Commit> + Send;

    /// Acquires a row that has no holder and writes `change` to it, with the audit row that it may have, in one
    /// transaction: the row is never seen held, and what is cut off leaves it as it was.
    #[doc(hidden)]
    fn settle_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&audit::AuditEntry>,
    ) -> impl Future<Output = Commit> + Send;

    /// Extends the lease. `false` where it is not ours any more.
    #[doc(hidden)]
    fn renew_lease(
        &self,
        guard: &Guard<'_>,
        hold: Hold,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The stored outputs, of a finished row too.
    #[doc(hidden)]
    fn read_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// What the client gave in this life of the key, of a finished one too: parameters and context.
    #[doc(hidden)]
    fn read_params(
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
}

/// An open transaction of a [`Store`].
#[doc(hidden)]
pub trait Transaction<S: Store>: TransactionUnderFaults + Send {
    /// The connection, for the phase's own statements.
    fn connection(&mut self) -> Result<&mut S::Connection, StoreError>;

    /// How the server knows it. `None` if there is no network in between, so that the phase learns of its end in any case,
    /// or if the server cannot be asked.
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

    /// Undoes everything and gives the connection back.
    fn rollback(self) -> impl Future<Output = ()> + Send;
}
