//! [`Mysql`]: MySQL and MariaDB, on a connection of the store's own over `mysql_async`.
//!
//! | file | what it holds |
//! |---|---|
//! | `connection`, `watch`, `session`, `waits`, `pool`, `server`, `durability`, `opener`, `killer` | one session: what is under way on it, what failed on it, its settings, how long it waits for a lock, when it goes back, where it is, whether its commits are durable, how it is opened and ended |
//! | `another` | what a dead connection could not do, on another one |
//! | `transaction`, `batch`, `block`, `place` | a transaction of a phase, from its mark to its commit |
//! | `store`, `keys`, `workers`, `admin`, `ops` | what the engine, the workers and operators ask for |
//! | `ask`, `guarded` | how that is sent: a statement by itself, or several in one transaction |
//! | `fault` | what crash tests need, with a copy of all tables for an explorer |
//! | `statements`, `searches`, `job_statements`, `erasure`, `ops_statements`, `words`, `rows`, `tuple_rows` | the SQL that is MySQL's own, and what it returns; what it has in common with SQLite is in `store::in_millis` |
//! | `error`, `statement`, `literal`, `statement_registry`, `prepared_cache`, `named_statements`, `rewritten` | from a code to what it means; from a query to what is sent, whether it stays prepared, where it is found again, under which name a block executes it, and whether the driver changes it |

mod admin;
mod another;
mod ask;
#[cfg(test)]
mod assignments;
mod batch;
mod block;
mod connection;
mod durability;
mod erasure;
mod error;
#[cfg(feature = "fault-injection")]
mod fault;
mod guarded;
mod job_statements;
mod keys;
mod killer;
mod literal;
mod named_statements;
mod opener;
mod ops;
mod ops_statements;
mod place;
mod pool;
mod prepared_cache;
mod rewritten;
mod rows;
mod searches;
mod server;
mod session;
mod statement;
mod statement_registry;
mod statements;
mod store;
mod transaction;
mod tuple_rows;
mod waits;
mod watch;
mod words;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use diesel_async::AsyncMigrationHarness;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};
use tokio::time::timeout;

use self::connection::Answers;
pub use self::connection::MysqlConn;
use self::error::Failure;
use self::opener::SessionOpener;
pub use self::pool::MysqlHandle;
use self::pool::{ConnectionGuard, MysqlPool};
use self::session::Session;
use self::statement::Statement;
use self::waits::WAIT_A_SECOND_FOR_TABLES;
use super::keyed_limit::{KeyPermit, KeyedLimit};
use super::left_sessions::ReadOnlyServer;
use super::migrations::Terms;
use super::shares::Shares;
use super::{PoolSettings, StoreError};
use crate::key::{IdempotencyKey, Scope};

const MIGRATIONS: EmbeddedMigrations = embed_migrations!("migrations/mysql");

/// A migration that changes a table waits for those that use it, and each later statement waits behind it. So it
/// waits a second at a time, which is the least that the server knows, and rests in between.
const MIGRATION_TERMS: Terms = Terms {
    bounds: WAIT_A_SECOND_FOR_TABLES,
    lock_wait: Duration::from_secs(1),
    pause: Duration::from_secs(1),
    patience: Duration::from_secs(30),
};

/// If several processes start at the same time, one of them migrates. The server frees the lock when the connection
/// closes. The process asks for it several times, for ten seconds each, because an answer must arrive in
/// [`ANSWER_WITHIN`].
const ONE_AT_A_TIME: &str =
    "SELECT GET_LOCK(CONCAT('atomic_phases.', LEFT(SHA2(DATABASE(), 256), 40)), 10) = 1";
const TIMES_ASKED: u32 = 6;

/// How long the store waits for the server's answer to a statement of its own. Past it, the connection is
/// closed, its session is ended, and a commit's outcome counts as unknown.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Rows in MariaDB 10.6 or newer, or MySQL 8.0 or newer, reached through a connection pool of the store's own.
///
/// All nodes must write to one server, with `innodb_flush_log_at_trx_commit = 1` and, if it has a binary log,
/// `sync_binlog = 1`. The store logs a warning if a setting has another value.
/// [Stores](https://github.com/atomic-phases/atomic-phases/blob/main/docs/stores.md) says what was tested on MariaDB only, and
/// what differs from the other stores.
///
/// A phase's statements run in a transaction that ends with the engine's own commit. The engine marks it with a
/// savepoint, and so detects a raw `COMMIT`, any DDL (it commits implicitly, even if it fails), and a deadlock whose
/// error the phase ignored; the phase then fails.
///
/// Dropping a statement's future in the middle makes its connection unusable: the phase's next statement
/// fails, and so does the phase. The session is ended at the server within a second, if no proxy is in front of it.
#[derive(Clone)]
pub struct Mysql {
    pool: MysqlPool,
    /// Where this one searches: the pool of operators, or of those who ask in their place.
    searches: MysqlPool,
    /// Of operators: searches take no connection from requests.
    operators: MysqlPool,
    /// Of health checks: they do not wait for a search of an operator.
    probes: MysqlPool,
    /// Of what workers search for, and of the pauses: nor do those.
    workers: MysqlPool,
    keys: Arc<KeyedLimit<(Scope, IdempotencyKey)>>,
    shares: Arc<Shares>,
    /// As its first connection has found it.
    session: Arc<Session>,
    read_only: Arc<ReadOnlyServer>,
    url: Arc<str>,
}

/// How many connections operators use.
const OPERATORS_CONNECTIONS: usize = 2;

impl Mysql {
    /// Opens a pool of [`PoolSettings::default`] for `url`: `mysql://user:password@host:port/database`. With
    /// the feature `mysql-tls`, `?require_ssl=true` and its siblings of `mysql_async` are understood, and
    /// `?ssl_ca=/path/to/authority.pem`: the connection is encrypted, and the server's certificate must be from this
    /// authority or from a public one.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`] if the first connection cannot be opened.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, PoolSettings::default()).await
    }

    /// As [`connect`](Self::connect), with the pool's settings.
    ///
    /// # Errors
    /// As there; [`StoreError::Configuration`] for a URL that cannot work, [`StoreError::Setting`] for a number.
    pub async fn connect_with(url: &str, settings: PoolSettings) -> Result<Self, StoreError> {
        Self::by(SessionOpener::new(parsed(url)?), url, settings).await
    }

    async fn by(
        opener: SessionOpener,
        url: &str,
        settings: PoolSettings,
    ) -> Result<Self, StoreError> {
        let read_only = Arc::<ReadOnlyServer>::default();
        // Each connection is opened when it is needed for the first time.
        let beside = |connections| {
            pool::open(
                opener.clone().of_searches(),
                read_only.clone(),
                settings.max_size(connections),
            )
        };
        let (operators, probes, workers) = (beside(OPERATORS_CONNECTIONS)?, beside(1)?, beside(1)?);
        let searches = operators.clone();
        let pool = pool::open(opener, read_only.clone(), settings)?;
        let shares = Arc::new(Shares::new(settings.max_size, settings.wait));
        let keys = Arc::new(KeyedLimit::new(1));
        let (session, killer) = {
            let first = ConnectionGuard::of(&pool).await?;
            (Arc::new(first.session().clone()), first.killer())
        };
        let refused = |error: mysql_async::Error| StoreError::NoConnection(error.to_string());
        if let Some(killer) = killer {
            // A server may accept it and say nothing.
            let silent = |_| StoreError::NoConnection("no answer in time".to_owned());
            let prepared = timeout(settings.wait, killer.prepare()).await;
            prepared.map_err(silent)?.map_err(refused)?;
        }
        let url = url.into();
        Ok(Self {
            pool,
            searches,
            operators,
            probes,
            workers,
            keys,
            shares,
            session,
            read_only,
            url,
        })
    }

    /// How many connections the local phases of one scope hold at most; by default three quarters
    /// of the pool's. The upper limit is the share of all scopes together: of two connections or more, it leaves an eighth,
    /// and at least one, to other statements.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for zero, or more than the share of all scopes.
    pub fn connections_per_scope(self, most: usize) -> Result<Self, StoreError> {
        let shares = self.shares.for_each_scope("Mysql::connections_per_scope", most)?;
        Ok(Self { shares: Arc::new(shares), ..self })
    }

    /// A connection of the pool, for the application's own statements outside of phases. Session settings are
    /// reset before the engine uses it; a transaction left open is rolled back.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`] if the pool has none in time.
    pub async fn connection(&self) -> Result<MysqlHandle, StoreError> {
        ConnectionGuard::to_application(&self.pool).await.map(MysqlHandle)
    }

    async fn with_migrations<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut AsyncMigrationHarness<MysqlConn>) -> Result<R, StoreError>
        + Send
        + 'static,
    ) -> Result<R, StoreError> {
        let opts = session::options(&self.url)
            .map_err(|error| StoreError::Configuration(error.to_string()))?;
        let failed = |failure: Failure| {
            StoreError::Migration(diesel::result::Error::from(failure).to_string())
        };
        let opened = timeout(ANSWER_WITHIN, MysqlConn::open(&SessionOpener::new(opts))).await;
        let mut conn = opened.unwrap_or(Err(Failure::Unanswered)).map_err(failed)?;
        // Also where none has run yet: a backup may have locked the whole server.
        if let Some(failure) = conn.texts(MIGRATION_TERMS.bounds).await.failure {
            return Err(failed(failure));
        }
        for _ in 0..TIMES_ASKED {
            if is_its_turn(conn.texts(ONE_AT_A_TIME).await).map_err(failed)? {
                break;
            }
        }
        // diesel's harness is synchronous: on a thread of its own it may block, on any runtime. An `ALTER` may take hours, so
        // its statements have no time limit of the client's: a machine that is gone is found out by TCP (`SILENT_FOR_MS`), and
        // a server that stands still is waited for.
        tokio::task::spawn_blocking(move || work(&mut AsyncMigrationHarness::new(conn)))
            .await
            .map_err(|_| StoreError::Migration("its thread panicked".to_owned()))?
    }
}

/// Whether a process that has asked for [`ONE_AT_A_TIME`] migrates now. A cluster may refuse such locks (1235; Percona's: 1105):
/// there, the processes migrate at the same time, and those that fail for that look again.
fn is_its_turn(answers: Answers) -> Result<bool, Failure> {
    let Answers { rows, failure } = answers;
    match failure {
        Some(Failure::Server { .. }) => return Ok(true),
        Some(failure) => return Err(failure),
        None => {}
    }
    let row = rows.first().and_then(|rows| rows.first());
    Ok(row.and_then(|row| row.get_opt::<i64, _>(0)?.ok()) == Some(1))
}

fn parsed(url: &str) -> Result<mysql_async::Opts, StoreError> {
    let refused = |error| StoreError::Configuration(format!("the database's URL: {error}"));
    session::options(url).map_err(refused)
}

impl std::fmt::Debug for Mysql {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mysql").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MariaDB 10.11.3 with Galera says 1235: "doesn't yet support 'GET_LOCK in cluster (WSREP_ON=ON)'".
    #[test]
    fn a_cluster_that_has_no_named_locks_is_migrated_without_one() {
        let turn = |failure| is_its_turn(Answers { rows: Vec::new(), failure });
        let server = |code| Some(Failure::Server { code, message: String::new() });
        assert!(turn(server(1235)).unwrap() && turn(server(1105)).unwrap());
        assert!(!turn(None).unwrap(), "another process has it");
        assert!(turn(Some(Failure::Unanswered)).is_err());
    }
}
