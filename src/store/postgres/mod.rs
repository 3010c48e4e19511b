//! [`Postgres`]: the production store, on diesel-async.
//!
//! It begins, commits and rolls back itself, never through `AsyncConnection::transaction`, which
//! would hide which of body, commit and rollback failed (H8). `statements` and `commit_statements` contain the SQL.

mod admin;
mod ask;
mod census;
mod commit_statements;
mod connection;
mod error;
mod group;
mod group_statements;
mod keys;
mod ops;
mod ops_bulk;
mod ops_nodes;
mod ops_statements;
#[cfg(test)]
mod own_transaction;
mod pipelined;
mod pool;
mod session;
mod settle;
mod single_statement;
mod statement;
mod statements;
mod time_limit;
mod together;
mod transaction;
mod twin;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
#[cfg(feature = "fault-injection")]
use diesel::migration::MigrationSource;
use diesel::pg::Pg;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::Error;
use diesel_async::{AsyncMigrationHarness, AsyncPgConnection, RunQueryDsl};
use diesel_migrations::{EmbeddedMigrations, embed_migrations};
use futures_util::FutureExt;
use uuid::Uuid;

use self::ask::{ask, ask_again, ask_for_many, ask_in_transaction, ask_within, on_another};
use self::connection::ConnectionGuard;
use self::group::Groups;
use self::ops::Operators;
use self::ops_statements::AppliedHere;
use self::pipelined::{RowWrite, row_times};
pub use self::pool::{DeadpoolPool, Pool};
use self::pool::{PoolOrigin, WritablePool};
use self::statement::{Statement, StatementRegistry};
use self::statements as sql;
use self::time_limit::{answered, answered_within};
use self::transaction::PgTransaction;
use self::twin::{Twin, Waits};
use super::audit::AuditEntry;
use super::migrations::{Terms, name_missing, not_among, revert_migrations, run_migrations};
use super::patience::{LOCKED_WAIT, patiently};
use super::row::{MAX_EXPIRED, count, key_row, key_summary};
use super::shares::Shares;
use super::{
    Change, Claim, Commit, Guard, Hold, KeyRow, KeySummary, NewRow, ParamsAndContext, PoolSettings,
    Reserved, RowTimes, Store, StoreError, TransactionId, Writes,
};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::setting::number;

const MIGRATIONS: EmbeddedMigrations = embed_migrations!("migrations/postgres");

/// A migration that changes a table needs a lock which every request waits behind from the moment that it is
/// asked for, granted or not. So it is asked for 50 ms at a time, and a statement takes half a second at most:
/// together less than a request waits for a row (`creation_wait`, a second by default). In between it rests for a
/// second or two. A process that freezes in the middle loses its locks after five seconds, by the server's
/// own clock.
const MIGRATION_TERMS: Terms = Terms {
    bounds: "SET LOCAL lock_timeout = '50ms'; SET LOCAL statement_timeout = '500ms'; \
             SET LOCAL idle_in_transaction_session_timeout = '5s'",
    lock_wait: Duration::from_millis(50),
    pause: Duration::from_secs(1),
    patience: Duration::from_secs(30),
};

/// The largest number of connections that a setting takes.
const MAX_CONNECTIONS: u64 = 100_000;

/// Rows in PostgreSQL 14 or newer, reached through a connection pool.
///
/// Behind PgBouncer: session pooling, or version 1.21 and newer with `max_prepared_statements` above
/// zero. Transaction pooling without it fails with *prepared statement already exists* (H11). With transaction
/// pooling, `client_connection_check_interval` must be set for the role, or in `connect_query`; otherwise the engine logs
/// a warning. After a migration that changes a column which the application reads, send the pooler a `RECONNECT`.
/// `docs/stores.md` has the reasons.
/// All nodes must write to one primary with `synchronous_commit = on`. Leave `default_transaction_isolation` at
/// `read committed` for its role: a [`Batch`](crate::Batch) that is sent as a single statement runs at that level.
///
/// A connection that can only read, because it leads to a standby or its session began so, is closed when a write on it is
/// refused, and so are the idle ones of its pool (not those of bb8, which has no way to).
///
/// Several runtimes may share it, but a connection is driven by the runtime that opened it: if that one is blocked, a
/// statement on the connection has no answer, on whichever runtime it was sent, and counts as lost after 15 seconds.
///
/// A statement of a request waits at most 20 ms for a key that another transaction has locked or is about
/// to create; for the rest of the [creation wait](crate::engine::EngineBuilder::creation_wait) the call waits without a
/// connection. A scope uses one of the pool's connections to poll a key that it waits for;
/// all scopes together use a quarter of them.
///
/// A local phase holds a connection until its commit. The local phases of one scope hold at most three quarters of
/// the pool's connections (12 of 16; [`connections_per_scope`](Self::connections_per_scope)
/// changes that), and those of all scopes seven eighths (14 of 16); at least one is left free, in a pool of
/// two or more. So slow phases of one scope take no connections from another's, and
/// replays and heartbeats always get through. Further phases of that scope wait in memory, for as long as the pool
/// would let them wait, and then fail with [`StoreError::NoConnection`], which names the share. Connections that the
/// application itself takes from the pool are not counted, nor are those of other processes, which have pools of their
/// own.
///
/// [`migrate`](Store::migrate) may run concurrently with requests, even of the previous build. It waits for a lock that
/// blocks them for 50 ms at a time, a second or more apart, for 30 seconds; then, for example because of a long
/// transaction on the engine's tables, it fails and has changed nothing. It holds such a lock for
/// milliseconds, and at most half a second per statement.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use atomic_phases::store::PoolSettings;
/// use atomic_phases::{Postgres, Store};
///
/// let store = Postgres::connect("postgres://rides@db.internal/rides").await?;
/// // Or, for a busier process:
/// let pool = PoolSettings::default().max_size(32);
/// let store = Postgres::connect_with("postgres://rides@db.internal/rides", pool).await?;
/// store.migrate().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Postgres<P: Pool = DeadpoolPool> {
    pool: WritablePool<P>,
    registry: Arc<StatementRegistry>,
    waits: Arc<Waits>,
    shares: Arc<Shares>,
    pool_origin: PoolOrigin,
    operators: Operators<P>,
    groups: Groups,
}

// Whatever the pool is: a connection of the driver's has no `Debug`.
opaque! {
    [P: Pool] Postgres<P>;
}

impl Postgres {
    /// Opens a pool of [`PoolSettings::default`] for `url` (`postgres://user:password@host/db`,
    /// without TLS). For TLS or other settings, build the pool yourself and pass it to
    /// [`with_pool`](Self::with_pool); `examples/postgres_tls.rs` does so with rustls.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`] if the first connection cannot be opened: names host, port,
    /// database and user, and the cause.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, PoolSettings::default()).await
    }

    /// As [`connect`](Self::connect), with the pool's settings.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_with(url: &str, settings: PoolSettings) -> Result<Self, StoreError> {
        // Each is opened when it is needed for the first time.
        let of_operators = settings.max_size(ops::CONNECTIONS);
        let operators = Operators::on(pool::open(url, of_operators)?);
        let pool = pool::open(url, settings)?;
        let store = Self { pool_origin: PoolOrigin::Engine, operators, ..Self::with_pool(pool) };
        match Pool::get(store.pool()).await {
            Ok(first) => {
                // A second one beside it hears whether a pooler shares sessions, and the log says so now.
                if settings.max_size > 1
                    && let Ok(second) = Pool::get(store.pool()).await
                {
                    <DeadpoolPool as Pool>::close(second);
                }
                drop(first);
                Ok(store)
            }
            Err(error) => Err(pool::unreachable(url, error).await),
        }
    }
}

impl<P: Pool> Postgres<P> {
    /// Uses an existing pool of the application: deadpool's, or with the feature `bb8`
    /// bb8's. Give it 4 to 8 connections for each core of the server, and a time limit for waiting.
    /// bb8's pool does not report its size: set it with [`pool_size`](Self::pool_size). Operators, health checks and
    /// the searches of workers take half of its connections at most, and four at most, unless they have
    /// [a pool](Self::operators_pool) of their own. Of a pool of fewer than four, health checks wait for operators' searches:
    /// give it eight or more.
    ///
    /// The engine trusts such a connection less than one that it opened: it may have an open transaction,
    /// and lack the limits for a disconnected client. So the engine sets these limits in each
    /// transaction, until its end. That costs one small statement for a request whose first phase takes a `Tx`
    /// (12 instead of 11, with one statement in each of two phases), two for each
    /// [`Batch`](crate::Batch) that is a single statement, and no round trip.
    #[must_use]
    pub fn with_pool(pool: P) -> Self {
        let size = pool.max_size();
        let waits = Arc::new(Waits::new(size));
        let shares = Arc::new(Shares::new(size, pool.wait(), None));
        let registry = Arc::new(StatementRegistry::new());
        let operators = Operators::beside_requests(size);
        Self {
            pool: WritablePool::of(pool),
            registry,
            waits,
            shares,
            pool_origin: PoolOrigin::Application,
            operators,
            groups: Groups::new(),
        }
    }

    /// Sets the maximum number of connections of the pool, 1 to 100,000, if the pool does not report it:
    /// for bb8's, the default is 10. The shares of scopes are shares of this number, and so is what searches take.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] for a number out of these bounds.
    pub fn pool_size(self, connections: usize) -> Result<Self, StoreError> {
        number("Postgres::pool_size", connections, 1, MAX_CONNECTIONS)?;
        let shares = Shares::new(connections, self.pool.wait(), self.shares.chosen());
        let waits = Arc::new(Waits::new(connections));
        let operators = self.operators.clone().resized(connections);
        Ok(Self { waits, shares: Arc::new(shares), operators, ..self })
    }

    /// How many connections the local phases of one scope hold at most; by default three quarters
    /// of the pool's. Fewer isolate scopes better; more are for an application with one scope. The share of all
    /// scopes together is the upper limit: larger numbers, up to 100,000, mean the same.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] for zero, or more than 100,000.
    pub fn connections_per_scope(self, most: usize) -> Result<Self, StoreError> {
        number("Postgres::connections_per_scope", most, 1, MAX_CONNECTIONS)?;
        let shares = Shares::new(self.shares.pool_size(), self.pool.wait(), Some(most));
        Ok(Self { shares: Arc::new(shares), ..self })
    }

    /// A connection of the pool, for the application's own queries outside of phases. Begin transactions with
    /// diesel's `transaction()`: if a raw `BEGIN` is left open, later writes of the engine would become part of it.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`] if the pool has none in time.
    pub async fn connection(&self) -> Result<P::Handle, StoreError> {
        self.pool.get().await
    }

    /// The pool, for the application's own queries outside of phases. Begin transactions with diesel's
    /// `transaction()`: if a raw `BEGIN` is left open, later writes of the engine would become part of it.
    #[must_use]
    pub fn pool(&self) -> &P {
        &self.pool
    }

    /// [`migrate`](Store::migrate) with other migrations, tried for so long.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub async fn migrate_from(
        &self,
        source: impl MigrationSource<Pg> + Send + 'static,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let terms = Terms { patience, ..MIGRATION_TERMS };
        self.with_migrations(run_migrations(source, terms)).await
    }

    /// [`revert_migrations`](Store::revert_migrations) of others.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub async fn revert_from(
        &self,
        source: impl MigrationSource<Pg> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.with_migrations(revert_migrations(source, MIGRATION_TERMS)).await
    }

    /// Names the migrations that are missing by what stands in their table. diesel creates that before it reads it,
    /// also where it is there, and so may not ask for a role that may create nothing, or on a standby.
    async fn missing_by_their_table(&self) -> Result<Vec<String>, StoreError> {
        let applied = ask_again!(self, "read which migrations have run", |conn| {
            AppliedHere {}.load::<String>(&mut conn)
        })?;
        not_among::<Pg>(&MIGRATIONS, &applied)
    }

    async fn with_migrations<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut AsyncMigrationHarness<P::Handle>) -> Result<R, StoreError>
        + Send
        + 'static,
    ) -> Result<R, StoreError> {
        let conn = self.pool.get().await?;
        // diesel's harness is synchronous: on a thread of its own it may block, on any runtime.
        tokio::task::spawn_blocking(move || work(&mut AsyncMigrationHarness::new(conn)))
            .await
            .map_err(|_| StoreError::Migration("its thread panicked".to_owned()))?
    }
}

impl<P: Pool> Store for Postgres<P> {
    type Connection = AsyncPgConnection;
    type Transaction = PgTransaction<P>;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<Pg> + QueryId + Send + 'static,
    {
        Statement::of(query)
    }

    fn keeps_prepared(&self, query: &impl QueryFragment<Pg>) -> bool {
        statement::keeps_prepared(query, &self.registry)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        if self.missing_by_their_table().await.is_ok_and(|missing| missing.is_empty()) {
            return Ok(());
        }
        self.with_migrations(run_migrations(MIGRATIONS, MIGRATION_TERMS)).await
    }

    async fn missing_migrations(&self) -> Result<Vec<String>, StoreError> {
        match self.missing_by_their_table().await {
            Ok(missing) => Ok(missing),
            Err(_) => self.with_migrations(name_missing(MIGRATIONS)).await,
        }
    }

    async fn revert_migrations(&self) -> Result<(), StoreError> {
        self.with_migrations(revert_migrations(MIGRATIONS, MIGRATION_TERMS)).await
    }

    async fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let rows = on_another(&self.pool, || self.try_look(scope, key)).await?;
        rows.into_iter().next().map(key_summary).transpose()
    }

    async fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        self.read_in_group(scope, key).await?.map(key_row).transpose()
    }

    async fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<PgTransaction<P>>, StoreError> {
        let until = Instant::now() + row.creation_wait;
        let Some(turn) = self.waits.for_the_key(row, until).await else {
            return Ok(Reserved::Busy);
        };
        let mut tried_again = false;
        loop {
            return match on_another(&self.pool, || self.try_reserve(row)).await {
                Ok(Reserved::Fresh { mut tx, created_at, expires_at }) => {
                    tx.turn = Some(turn);
                    Ok(Reserved::Fresh { tx, created_at, expires_at })
                }
                Err(error) if error.may_be_of_a_lock() => match self.twin(row, until).boxed().await
                {
                    Ok(Twin::Exists) => Ok(Reserved::Exists(None)),
                    Ok(Twin::Open) => Ok(Reserved::Busy),
                    Ok(Twin::Gone) => continue,
                    // The twin may have gone before it was asked about; another cause comes again.
                    Ok(Twin::None) if !std::mem::replace(&mut tried_again, true) => continue,
                    Ok(Twin::None) | Err(_) => Err(error),
                },
                reserved => reserved,
            };
        }
    }

    fn forget_idle(&self) {
        self.pool.forget_idle();
    }

    async fn begin_transaction(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<PgTransaction<P>>, StoreError> {
        patiently(|| on_another(&self.pool, || self.try_begin(isolation, guard))).await
    }

    async fn create_key(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        mut writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let until = Instant::now() + row.creation_wait;
        let Some(_turn) = self.waits.for_the_key(row, until).await else {
            return Commit::Failed(StoreError::Locked);
        };
        loop {
            let place = match self.shares.for_a_phase(row.scope).await {
                Ok(place) => place,
                Err(error) => return Commit::Failed(error),
            };
            let create = RowWrite::Create { row, created_at, change };
            let creation = self.in_one_trip(create, &mut writes, row_times).await;
            drop(place);
            return match creation.unwrap_or_else(Commit::Failed) {
                Commit::Failed(error) if error.may_be_of_a_lock() => {
                    match self.twin(row, until).boxed().await {
                        Ok(Twin::Exists) => Commit::Fenced,
                        Ok(Twin::Open) => Commit::Failed(StoreError::Locked),
                        Ok(Twin::Gone) => continue,
                        Ok(Twin::None) | Err(_) => Commit::Failed(error),
                    }
                }
                creation => creation,
            };
        }
    }

    async fn advance_key(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        mut writes: Writes<'_, Self>,
    ) -> Commit {
        let _place = match self.shares.for_a_phase(guard.scope).await {
            Ok(place) => place,
            Err(error) => return Commit::Failed(error),
        };
        let advance = RowWrite::Advance { isolation, guard, change };
        let advanced = self.in_one_trip(advance, &mut writes, |_| Some(())).await;
        advanced.unwrap_or_else(Commit::Failed)
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows =
            ask_again!(self, "tell the time", |conn| sql::Now {}.load::<DateTime<Utc>>(&mut conn))?;
        rows.into_iter()
            .next()
            .ok_or_else(|| StoreError::database("tell the time", Error::NotFound))
    }

    async fn is_transaction_open(&self, transaction: &TransactionId) -> Result<bool, StoreError> {
        let number = transaction.0.as_str();
        let open = ask_again!(self, "search for a transaction", |conn| {
            sql::IsOpen { number }.load::<bool>(&mut conn)
        })?;
        Ok(open == [true])
    }

    async fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        patiently(|| self.take_over_in_group(claim, hold)).await?.map(key_row).transpose()
    }

    async fn write_change(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Commit {
        Commit::of(patiently(|| self.try_write(guard, change, notice)).await)
    }

    async fn settle_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        Commit::of(patiently(|| self.try_settle(claim, hold, change, audit)).await)
    }

    async fn renew_lease(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        patiently(|| self.try_renew(guard, hold)).await
    }

    async fn read_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let rows = ask_again!(self, "read the outputs", |conn| {
            sql::Outputs { scope: scope.as_str(), key: key.as_str() }
                .load::<Option<Vec<u8>>>(&mut conn)
        })?;
        Ok(rows.into_iter().next().flatten())
    }

    async fn read_params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let rows =
            ask_again!(self, "read what was given", |conn| {
                sql::ParamsAndContext { scope: scope.as_str(), key: key.as_str(), request_id }
                    .load::<(Vec<u8>, Option<Vec<u8>>)>(&mut conn)
            })?;
        Ok(rows.into_iter().next())
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let rows = ask_again!(self, "count the keys", |conn| {
            sql::CountKeys {
                scope: scope.as_str(),
                most: i64::from(cap) + MAX_EXPIRED,
                cap: cap.into(),
            }
            .load::<i64>(&mut conn)
        })?;
        Ok(count(rows))
    }

    #[cfg(feature = "fault-injection")]
    const CONCURRENT: bool = true;

    #[cfg(feature = "fault-injection")]
    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        ask_again!(self, "pass time", |conn| {
            sql::PassTime { scope: scope.as_str(), key: key.as_str() }.execute(&mut conn)
        })?;
        Ok(())
    }

    #[cfg(feature = "fault-injection")]
    async fn replicate(&self) -> Result<(), StoreError> {
        ask_again!(self, "copy all tables", |conn| sql::CopyTables {}.execute(&mut conn))?;
        Ok(())
    }

    #[cfg(feature = "fault-injection")]
    async fn fail_over(&self) -> Result<(), StoreError> {
        ask_again!(self, "bring all tables back", |conn| {
            sql::BringTablesBack {}.execute(&mut conn)
        })?;
        Ok(())
    }

    #[cfg(feature = "fault-injection")]
    async fn cut(&self, tx: &mut PgTransaction<P>) {
        if let Ok(conn) = tx.connection.shared() {
            let _ = sql::Terminate {}.load::<bool>(&mut &*conn).await;
        }
    }
}
