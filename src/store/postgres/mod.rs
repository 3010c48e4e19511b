//! [`Postgres`]: the production store, on diesel-async.
//!
//! It begins, commits and rolls back itself, never through `AsyncConnection::transaction`, which
//! would hide which of body, commit and rollback failed (H8).
//!
//! | file | what it holds |
//! |---|---|
//! | `pool`, `search_slots`, `connection`, `session`, `time_limit` | a connection: where it is from, when it goes back, what it is set to, how long its answers are waited for |
//! | `store`, `keys`, `settle`, `workers`, `admin`, `ops` | what the engine, the workers and operators ask for |
//! | `ask`, `together`, `group` | how that is sent: a statement by itself, again if its connection was dead, or what many ask for at one moment as a single statement |
//! | `twin` | how a reservation waits for another one of its key |
//! | `transaction`, `statement`, `pipelined`, `single_statement` | a phase's transaction: an open one, what a phase hands over, in one round trip, in one statement |
//! | `numbered` | how a statement of the engine's is sent whose text depends on what it holds |
//! | `statements`, `commit_statements`, `group_statements`, `ops_statements`, `ops_bulk`, `ops_nodes`, `census` | the SQL, and what it returns |
//! | `timestamptz` | the times of the tables, `infinity` too |
//! | `error` | what an error says for certain, and what it leaves open |

mod admin;
mod ask;
mod census;
mod commit_statements;
mod connection;
mod error;
#[cfg(feature = "fault-injection")]
mod fault;
mod group;
mod group_statements;
mod keys;
mod numbered;
mod ops;
mod ops_bulk;
mod ops_nodes;
mod ops_statements;
#[cfg(test)]
mod own_transaction;
mod pipelined;
mod pool;
mod search_slots;
mod session;
mod settle;
mod single_statement;
mod statement;
mod statements;
mod store;
mod time_limit;
mod timestamptz;
mod together;
mod transaction;
mod twin;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use diesel::pg::Pg;
use diesel_async::{AsyncMigrationHarness, RunQueryDsl};
use diesel_migrations::{EmbeddedMigrations, embed_migrations};

use self::ask::{ask, ask_again, ask_for_many, ask_in_transaction, ask_within, on_another};
use self::connection::ConnectionGuard;
use self::group::Groups;
use self::ops_statements::AppliedHere;
pub use self::pool::{DeadpoolPool, Pool};
use self::pool::{PoolOrigin, WritablePool};
use self::search_slots::Operators;
use self::statement::StatementRegistry;
use self::statements as sql;
use self::time_limit::{answered, answered_within};
use self::twin::Waits;
use super::migrations::{Terms, not_among};
use super::patience::LOCKED_WAIT;
use super::shares::Shares;
use super::{PoolSettings, StoreError};
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
/// [Stores](https://github.com/atomic-phases/atomic-phases/blob/main/docs/stores.md) has the reasons.
/// All nodes must write to one primary with `fsync = on` and `synchronous_commit = on`: a store that opened its pool itself
/// logs a warning if one of them is `off`. Leave `default_transaction_isolation` at
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
/// [`migrate`](crate::Store::migrate) may run concurrently with requests, even of the previous build. It waits for a lock that
/// blocks them for 50 ms at a time, a second or more apart, for 30 seconds; then, for example because of a long
/// transaction on the engine's tables, it fails and has changed nothing. It holds such a lock for
/// milliseconds, and at most half a second per statement.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use atomic_phases::Store;
/// use atomic_phases::store::{PoolSettings, Postgres};
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
        let of_operators = settings.max_size(search_slots::CONNECTIONS);
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
    /// bb8's. Give it 4 to 8 connections for each core of the server, and a time limit for waiting: a phase waits for its
    /// share of the pool for as long, an hour at most.
    /// bb8's pool does not report its size: set it with [`pool_size`](Self::pool_size). Operators, health checks,
    /// the searches of workers and the reads of the pauses take half of its connections at most, and four at most, unless they
    /// have [a pool](Self::operators_pool) of their own. Of a pool of fewer than four, health checks wait for operators'
    /// searches: give it eight or more.
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
        let shares = Arc::new(Shares::new(size, pool.wait()));
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
    /// [`StoreError::Setting`] for a number out of these bounds, or too small for the
    /// [`connections_per_scope`](Self::connections_per_scope) that were set.
    pub fn pool_size(self, connections: usize) -> Result<Self, StoreError> {
        number("Postgres::pool_size", connections, 1, MAX_CONNECTIONS)?;
        let shares = self.shares.resized(connections)?;
        let waits = Arc::new(Waits::new(connections));
        let operators = self.operators.clone().resized(connections);
        Ok(Self { waits, shares: Arc::new(shares), operators, ..self })
    }

    /// How many connections the local phases of one scope hold at most; by default three quarters
    /// of the pool's. Fewer isolate scopes better; more are for an application with one scope. The upper limit is the share
    /// of all scopes together: of two connections or more, it leaves an eighth, and at least one, to other statements. For a
    /// pool that does not report its size, set [`pool_size`](Self::pool_size) first.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for zero, or more than the share of all scopes.
    pub fn connections_per_scope(self, most: usize) -> Result<Self, StoreError> {
        let shares = self.shares.for_each_scope("Postgres::connections_per_scope", most)?;
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
