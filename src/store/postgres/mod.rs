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
use futures_util::future::{OptionFuture, join, join_all, join3, join4};
use uuid::Uuid;

use self::ask::{ask, ask_again, ask_for_many, ask_within};
use self::commit_statements::WriteWithNotice;
use self::connection::Lent;
use self::error::{
    Mark, cannot_stage, is_lost, is_of_a_failed_transaction, is_of_the_server, is_out_of_reach,
    is_refused_by_server,
};
use self::group::Groups;
use self::ops::Operators;
use self::ops_statements::EraseSeen;
pub use self::pool::{DeadpoolPool, Pool};
use self::session::{Known, KnownRow};
use self::statement::{Statement, StatementRegistry};
use self::statements as sql;
use self::time_limit::{answered, answered_within};
use self::twin::{KeyTurn, ROW_LOCK_WAIT, Twin, Waits};
use super::audit::AuditEntry;
use super::due::ExpiredRow;
use super::migrations::{Terms, name_missing, revert_migrations, run_migrations};
use super::patience::{LOCKED_WAIT, patiently};
use super::row::{KeySummaryRow, MOST_EXPIRED, Row, count, key_row, key_summary, millis};
use super::shares::{Place, Shares};
use super::{
    Change, Claim, Commit, Erase, Guard, HeldKey, Hold, KeyRow, KeySummary, NewRow,
    ParamsAndContext, PoolSettings, Refusal, Reserved, RowTimes, Store, StoreError, Transaction,
    TransactionId, Writes,
};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::setting::number;

const MIGRATIONS: EmbeddedMigrations = embed_migrations!("migrations/postgres");

/// A migration that changes a table needs a lock which every request waits behind from the moment that it is
/// asked for, granted or not. So it is asked for 50 ms at a time, and a statement takes half a second at most:
/// together less than a request waits for a row (`lock_wait`, a second by default). In between it rests for a
/// second or two. A process that freezes in the middle loses its locks after five seconds, by the server's
/// own clock.
const MIGRATION_TERMS: Terms = Terms {
    bounds: "SET LOCAL lock_timeout = '50ms'; SET LOCAL statement_timeout = '500ms'; \
             SET LOCAL idle_in_transaction_session_timeout = '5s'",
    lock_wait: Duration::from_millis(50),
    pause: Duration::from_secs(1),
    patience: Duration::from_secs(30),
};

/// How long the store waits for the server's answer to a statement of its own. Past it, the
/// connection is destroyed, and a commit's outcome counts as unknown.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// How long a rollback may take. It waits behind a statement that the phase gave up, with a time limit of
/// its own; past this, the connection is closed instead, and the server ends that statement and frees
/// its locks (G13).
const ROLLBACK_WITHIN: Duration = Duration::from_millis(500);

/// The largest number of connections that a setting takes.
const MOST_CONNECTIONS: u64 = 100_000;

/// Rows in PostgreSQL 14 or newer, reached through a connection pool.
///
/// Behind PgBouncer: session pooling, or version 1.21 and newer with `max_prepared_statements` above
/// zero. Transaction pooling without it fails with *prepared statement already exists* (H11). With transaction
/// pooling, `client_connection_check_interval` must be set for the role, or in `connect_query`; otherwise the engine logs
/// a warning. After a migration that changes a column which the application reads, send the pooler a `RECONNECT`.
/// `docs/stores.md` has the reasons.
/// All nodes must write to one primary with `synchronous_commit = on`.
///
/// A statement of a request waits at most 20 ms for a key that another transaction has locked or is about
/// to create; for the rest of the [lock wait](crate::engine::EngineBuilder::lock_wait) the call waits without a
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
/// let pool = PoolSettings { max_size: 32, ..PoolSettings::default() };
/// let store = Postgres::connect_with("postgres://rides@db.internal/rides", pool).await?;
/// store.migrate().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Postgres<P: Pool = DeadpoolPool> {
    pool: P,
    texts: Arc<StatementRegistry>,
    waits: Arc<Waits>,
    shares: Arc<Shares>,
    /// Whether the pool's connections begin with what a joined statement cannot set for itself.
    is_ours: bool,
    operators: Operators<P>,
    groups: Groups,
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
        // Opened when an operator looks for the first time.
        let of_operators = PoolSettings { max_size: ops::CONNECTIONS, ..settings };
        let operators = Operators::on(Some(pool::open(url, of_operators)?));
        let pool = pool::open(url, settings)?;
        let store = Self { is_ours: true, operators, ..Self::with_pool(pool) };
        match Pool::get(&store.pool).await {
            Ok(first) => {
                // A second one beside it hears whether a pooler shares sessions, and the log says so now.
                if settings.max_size > 1
                    && let Ok(second) = Pool::get(&store.pool).await
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

/// How long a statement about many rows waits for the lock of one: the others wait with it.
const MANY_WAIT: Duration = Duration::from_millis(100);

impl<P: Pool> Postgres<P> {
    /// Uses an existing pool of the application: deadpool's, or with the feature `bb8`
    /// bb8's. Give it 4 to 8 connections for each core of the server, and a time limit for waiting.
    /// bb8's pool does not report its size: set it with [`pool_size`](Self::pool_size).
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
        let (texts, operators) = (Arc::new(StatementRegistry::new()), Operators::on(None));
        Self { pool, texts, waits, shares, is_ours: false, operators, groups: Groups::new() }
    }

    /// Sets the maximum number of connections of the pool, 1 to 100,000, if the pool does not report it:
    /// for bb8's, the default is 10. The shares of scopes are shares of this number.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] for a number out of these bounds.
    pub fn pool_size(self, connections: usize) -> Result<Self, StoreError> {
        number("Postgres::pool_size", connections, 1, MOST_CONNECTIONS)?;
        let shares = Shares::new(connections, self.pool.wait(), self.shares.chosen());
        let waits = Arc::new(Waits::new(connections));
        Ok(Self { waits, shares: Arc::new(shares), ..self })
    }

    /// How many connections the local phases of one scope hold at most; by default three quarters
    /// of the pool's. Fewer isolate scopes better; more are for an application with one scope. The share of all
    /// scopes together is the upper limit: larger numbers, up to 100,000, mean the same.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] for zero, or more than 100,000.
    pub fn connections_per_scope(self, most: usize) -> Result<Self, StoreError> {
        number("Postgres::connections_per_scope", most, 1, MOST_CONNECTIONS)?;
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

    async fn try_look(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Vec<KeySummaryRow>, StoreError> {
        let lent = Lent::to_read(&self.pool).await?;
        let look = sql::Look { scope: scope.as_str(), key: key.as_str() };
        let answer = answered(look.load(&mut lent.shared()?)).await;
        lent.settle("look at the key", answer).await
    }

    /// `BEGIN` and the transaction's settings, in one round trip. A transaction that keeps what it saw at
    /// its beginning also locks the key's row there: the heartbeat would change the row behind its back,
    /// and it could never commit. `None` where the row is not in the state that the guard says.
    async fn try_begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<PgTransaction<P>>, StoreError> {
        let place = self.shares.for_a_phase(guard.scope).await?;
        let tx = PgTransaction::begin(&self.pool).await?.at(place);
        let conn = tx.lent.shared()?;
        let begin = sql::Begin(isolation).execute(&mut &*conn);
        if isolation == Isolation::ReadCommitted {
            let sent = match self.is_ours {
                true => answered(both(begin, session::Know {}.load::<KnownRow>(&mut &*conn))).await,
                false => {
                    answered(both(begin, session::KnowAndSay {}.load::<KnownRow>(&mut &*conn)))
                        .await
                }
            };
            let known = sent.and_then(|(begun, known)| begun.and(known));
            let (tx, known) = tx.unless_refused("begin a transaction", known).await?;
            return tx.known_by(known).await.map(Some);
        }
        let pin = sql::Pin::new(guard);
        let know = session::KnowAndSay {};
        let sent =
            join3(begin, pin.load::<(bool, bool)>(&mut &*conn), know.load::<KnownRow>(&mut &*conn));
        let pinned = answered(sent.map(Ok)).await;
        let pinned = pinned
            .and_then(|(begun, rows, known)| begun.and(rows).and_then(|rows| Ok((rows, known?))));
        let (tx, (mut rows, known)) = tx.unless_refused("lock the key", pinned).await?;
        match rows.pop() {
            Some((true, _)) => tx.known_by(known).await.map(Some),
            Some((false, stands)) => {
                tx.rollback().await;
                if stands { Err(StoreError::Locked) } else { Ok(None) }
            }
            None => Err(StoreError::database("lock the key", Error::NotFound)),
        }
    }

    /// `BEGIN` and the row, in one round trip. Each travels as a prepared statement, polled, and so sent,
    /// in this order: a `COMMIT` or `BEGIN` by `batch_execute` would overtake the others. In between what an
    /// application's session has to be told, and what makes room for a key that is used again.
    async fn try_reserve(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<PgTransaction<P>>, StoreError> {
        let place = self.shares.for_a_phase(row.scope).await?;
        let tx = PgTransaction::begin(&self.pool).await?.at(place);
        let conn = tx.lent.shared()?;
        let settings = match row.replaces {
            Some(_) => Some(session::Settings::new(Some(ROW_LOCK_WAIT))),
            None => (!self.is_ours).then(|| session::Settings::new(None)),
        };
        let make_room = row.replaces.map(|request_id| {
            sql::DeleteExpired { scope: row.scope.as_str(), key: row.key.as_str(), request_id }
                .execute(&mut &*conn)
        });
        let sent =
            join4(
                sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
                OptionFuture::from(settings.map(|settings| settings.execute(&mut &*conn))),
                OptionFuture::from(make_room),
                commit_statements::Reserve { row: commit_statements::BornRow::at_start(row) }
                    .load::<(KnownRow, DateTime<Utc>, DateTime<Utc>)>(&mut &*conn),
            );
        let inserted = answered(async {
            let (begun, set, room, inserted) = sent.await;
            begun.and(set.unwrap_or(Ok(0))).and(room.unwrap_or(Ok(0)))?;
            inserted
        })
        .await;
        let (tx, rows) = tx.unless_refused("reserve the key", inserted).await?;
        let Some(((number, jobs, is_set_up), created_at, expires_at)) = rows.into_iter().next()
        else {
            return tx.undo_and_look(row).await.map(Reserved::Exists);
        };
        let known = (number, jobs, is_set_up || !self.is_ours);
        let tx = tx.known_by([known]).await?;
        Ok(Reserved::Fresh { tx, created_at, expires_at })
    }

    /// One guarded update, in a transaction that says its isolation level.
    async fn take_over_once(&self, claim: &Claim<'_>, hold: Hold) -> Result<Vec<Row>, StoreError> {
        let lent = Lent::of(&self.pool).await?.in_transaction()?;
        let conn = lent.shared()?;
        let answer = answered(async {
            let (begun, set, rows, committed) = join4(
                sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
                session::Settings::new(None).execute(&mut &*conn),
                sql::TakeOver::new(claim, hold).load::<Row>(&mut &*conn),
                sql::CommitTx {}.execute(&mut &*conn),
            )
            .await;
            begun.and(set)?;
            let rows = rows?;
            committed.map(|_| rows)
        });
        let answer = answer.await;
        lent.settle("take over the key", answer).await
    }

    /// One guarded update. `false` where the row is not as it was read.
    async fn try_enrol(&self, held: &HeldKey) -> Result<bool, StoreError> {
        let entered = ask_again!(self, "enter an abandoned key among the due ones", |conn| {
            sql::Enrol::new(held).execute(&mut conn)
        })?;
        if entered == 1 {
            return Ok(true);
        }
        let stands = ask_again!(self, "look at the key", |conn| {
            sql::StandsAbandoned::new(held).load::<bool>(&mut conn)
        })?;
        if stands == [true] { Err(StoreError::Locked) } else { Ok(false) }
    }

    /// One guarded update. `false` where the row is not as the guard says.
    async fn try_write(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Result<bool, StoreError> {
        let write = commit_statements::Write::new(guard, change);
        let written = match notice {
            None => self.write_once(write).await?,
            Some(job) => self.write_once(WriteWithNotice::new(write, guard, job)).await?,
        };
        if written == 1 {
            return Ok(true);
        }
        let stands = ask_again!(self, "look at the key", |conn| {
            sql::StandsGuarded { guarded: sql::Guarded::new(guard) }.load::<bool>(&mut conn)
        })?;
        if stands == [true] { Err(StoreError::Locked) } else { Ok(false) }
    }

    /// One settled row. What is locked beside it is waited for, a second at most.
    async fn try_erase(
        &self,
        erase: &Erase<'_>,
        key: &IdempotencyKey,
    ) -> Result<Vec<i64>, StoreError> {
        let (scope_text, key_text) = (erase.scope.as_str(), key.as_str());
        let not_locked = sql::NotLocked::new(erase.scope, key);
        let retention_ms = millis(erase.retention);
        let rows = match &erase.act {
            None => {
                let (scope, key) = (scope_text, key_text);
                let erase = sql::EraseKey { retention_ms, scope, key, not_locked };
                ask_within!(LOCKED_WAIT, self, "erase a key", |conn| erase.load::<i64>(&mut conn))?
            }
            Some(act) => {
                let erase = EraseSeen::new(retention_ms, (scope_text, key_text), act, not_locked);
                ask_within!(LOCKED_WAIT, self, "erase a key", |conn| erase.load::<i64>(&mut conn))?
            }
        };
        if rows.iter().any(|erased| *erased > 0) {
            return Ok(rows);
        }
        let seen_has_moved = match &erase.act {
            None => false,
            Some(act) => self.read(erase.scope, key).await?.is_none_or(|row| !act.seen.is(&row)),
        };
        if seen_has_moved {
            return Ok(rows);
        }
        let stands = ask_again!(self, "look at the key", |conn| {
            sql::StandsSettled { scope: scope_text, key: key_text }.load::<bool>(&mut conn)
        })?;
        if stands == [true] { Err(StoreError::Locked) } else { Ok(rows) }
    }

    /// Deletes these rows, but for those that another transaction has locked: in one round trip.
    async fn reap_page(&self, rows: &[ExpiredRow]) -> Result<u32, StoreError> {
        if rows.is_empty() {
            return Ok(0);
        }
        let lent = Lent::of(&self.pool).await?.in_transaction()?;
        let conn = lent.shared()?;
        let deleting = rows.iter().map(|(_, scope, key, request_id)| {
            let reap =
                sql::Reap { scope, key, request_id: *request_id, again: scope, key_again: key };
            async move { reap.execute(&mut &*conn).await }
        });
        let answer = answered(async {
            let (begun, deleted, committed) = join3(
                sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
                join_all(deleting),
                sql::CommitTx {}.execute(&mut &*conn),
            )
            .await;
            begun?;
            let deleted = deleted.into_iter().sum::<Result<usize, Error>>()?;
            committed.map(|_| deleted)
        });
        let answer = answer.await;
        let deleted = lent.settle("reap expired keys", answer).await?;
        Ok(u32::try_from(deleted).unwrap_or(u32::MAX))
    }

    /// One guarded update. It commits by itself, but for a connection on which somebody has left a
    /// transaction open: in a pool of the application's that may be, and then only COMMIT commits it.
    async fn write_once<Q>(&self, write: Q) -> Result<usize, StoreError>
    where
        Q: QueryFragment<Pg> + QueryId + Send,
    {
        if self.is_ours {
            return ask!(self, "write the key", |conn| write.execute(&mut conn));
        }
        let lent = Lent::of(&self.pool).await?.in_transaction()?;
        let conn = lent.shared()?;
        let answer = answered(async {
            let (begun, written, committed) = join3(
                sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
                write.execute(&mut &*conn),
                sql::CommitTx {}.execute(&mut &*conn),
            )
            .await;
            begun?;
            let written = written?;
            committed.map(|_| written)
        });
        let answer = answer.await;
        lent.settle("write the key", answer).await
    }

    async fn try_renew(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        let renewed = ask_again!(self, "renew the lease", |conn| {
            sql::Renew::new(guard, hold).execute(&mut conn)
        })?;
        if renewed == 1 {
            return Ok(true);
        }
        let stands = ask_again!(self, "look at the key", |conn| {
            sql::StandsHeld::new(guard).load::<bool>(&mut conn)
        })?;
        if stands == [true] { Err(StoreError::Locked) } else { Ok(false) }
    }

    async fn try_take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<Row>, StoreError> {
        if let Some(row) = self.take_over_once(claim, hold).await?.into_iter().next() {
            return Ok(Some(row));
        }
        if self.stands_free(claim).await? { Err(StoreError::Locked) } else { Ok(None) }
    }

    /// Whether the row still is what a takeover that wrote nothing is guarded by: then its lock was held.
    async fn stands_free(&self, claim: &Claim<'_>) -> Result<bool, StoreError> {
        let stands = ask_again!(self, "look at the key", |conn| {
            sql::StandsFree::new(claim).load::<bool>(&mut conn)
        })?;
        Ok(stands == [true])
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

    fn keeps(&self, query: &impl QueryFragment<Pg>) -> bool {
        statement::keeps(query, &self.texts)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        self.with_migrations(run_migrations(MIGRATIONS, MIGRATION_TERMS)).await
    }

    async fn missing_migrations(&self) -> Result<Vec<String>, StoreError> {
        self.with_migrations(name_missing(MIGRATIONS)).await
    }

    async fn revert_migrations(&self) -> Result<(), StoreError> {
        self.with_migrations(revert_migrations(MIGRATIONS, MIGRATION_TERMS)).await
    }

    async fn look(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let rows = match self.try_look(scope, key).await {
            Err(error) if error.is_of_the_connection() => {
                self.pool.forget_idle();
                self.try_look(scope, key).await?
            }
            answer => answer?,
        };
        rows.into_iter().next().map(key_summary).transpose()
    }

    async fn read(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        self.read_in_group(scope, key).await?.map(key_row).transpose()
    }

    async fn reserve(&self, row: &NewRow<'_>) -> Result<Reserved<PgTransaction<P>>, StoreError> {
        let until = Instant::now() + row.lock_wait;
        let Some(turn) = self.waits.for_the_key(row, until).await else {
            return Ok(Reserved::Busy);
        };
        let mut tried_again = false;
        loop {
            let reserved = match self.try_reserve(row).await {
                Err(error) if error.is_of_the_connection() => {
                    self.pool.forget_idle();
                    self.try_reserve(row).await
                }
                reserved => reserved,
            };
            return match reserved {
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

    async fn begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<PgTransaction<P>>, StoreError> {
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

    async fn create(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        mut writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let until = Instant::now() + row.lock_wait;
        let Some(_turn) = self.waits.for_the_key(row, until).await else {
            return Commit::Failed(StoreError::Locked);
        };
        loop {
            let place = match self.shares.for_a_phase(row.scope).await {
                Ok(place) => place,
                Err(error) => return Commit::Failed(error),
            };
            let creation = self.create_whole(row, created_at, change, &mut writes).await;
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

    async fn advance(
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
        self.advance_whole(isolation, guard, change, &mut writes)
            .await
            .unwrap_or_else(Commit::Failed)
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows =
            ask_again!(self, "tell the time", |conn| sql::Now {}.load::<DateTime<Utc>>(&mut conn))?;
        rows.into_iter()
            .next()
            .ok_or_else(|| StoreError::database("tell the time", Error::NotFound))
    }

    async fn is_open(&self, transaction: &TransactionId) -> Result<bool, StoreError> {
        let number = transaction.0.as_str();
        let open = ask_again!(self, "look for a transaction", |conn| {
            sql::IsOpen { number }.load::<bool>(&mut conn)
        })?;
        Ok(open == [true])
    }

    async fn take_over(&self, claim: &Claim<'_>, hold: Hold) -> Result<Option<KeyRow>, StoreError> {
        patiently(|| self.take_over_in_group(claim, hold)).await?.map(key_row).transpose()
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
        let rows = ask_again!(self, "read the outputs", |conn| {
            sql::Outputs { scope: scope.as_str(), key: key.as_str() }
                .load::<Option<Vec<u8>>>(&mut conn)
        })?;
        Ok(rows.into_iter().next().flatten())
    }

    async fn given(
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
                most: i64::from(cap) + MOST_EXPIRED,
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
    async fn cut(&self, tx: &mut PgTransaction<P>) {
        if let Ok(conn) = tx.lent.shared() {
            let _ = sql::Terminate {}.load::<bool>(&mut &*conn).await;
        }
    }
}

/// An open transaction. Dropped, it closes its connection, and the server rolls back.
pub struct PgTransaction<P: Pool> {
    lent: Lent<P>,
    /// Of one that a phase is given.
    known: Option<Known>,
    /// Of the key that it is about to create: until then the others of this process wait in memory.
    turn: Option<KeyTurn>,
    /// Behind the connection, and so free only when that has gone back.
    _place: Option<Place>,
}

impl<P: Pool> Transaction<Postgres<P>> for PgTransaction<P> {
    fn connection(&mut self) -> Result<&mut AsyncPgConnection, StoreError> {
        self.lent.exclusive()
    }

    fn id(&self) -> Option<TransactionId> {
        self.known.as_ref().map(Known::id)
    }

    async fn commit(self, guard: &Guard<'_>, change: &Change<'_>, jobs: &[StagedJob]) -> Commit {
        match self.try_commit(guard, change, jobs).await {
            Ok(commit) => commit,
            Err(error) => Commit::Failed(error),
        }
    }

    #[cfg(feature = "fault-injection")]
    async fn commit_unguarded(self) -> Commit {
        let sent = match self.lent.shared() {
            Ok(conn) => answered(sql::CommitTx {}.execute(&mut &*conn)).await,
            Err(error) => return Commit::Failed(error),
        };
        self.committed(sent.map(drop))
    }

    async fn rollback(self) {
        let rolled_back = match self.lent.shared() {
            Ok(conn) => {
                let sent = sql::Rollback {}.execute(&mut &*conn);
                answered_within(ROLLBACK_WITHIN, sent).await.is_ok()
            }
            Err(_) => false,
        };
        // Otherwise the guard closes the connection, which rolls back too.
        if rolled_back {
            self.lent.give_back();
        }
    }
}

impl<P: Pool> PgTransaction<P> {
    /// A connection on which `BEGIN` is about to be sent.
    async fn begin(pool: &P) -> Result<Self, StoreError> {
        Ok(Self {
            lent: Lent::of(pool).await?.in_transaction()?,
            known: None,
            turn: None,
            _place: None,
        })
    }

    /// A connection on which a statement is about to be sent that is a transaction by itself.
    async fn single(pool: &P) -> Result<Self, StoreError> {
        Ok(Self { lent: Lent::of(pool).await?, known: None, turn: None, _place: None })
    }

    /// One that holds its phase's place until it ends.
    fn at(self, place: Place) -> Self {
        Self { _place: Some(place), ..self }
    }

    /// Known by what its first statement answered. A session that has lost what was said to it is told again.
    async fn known_by(self, told: impl IntoIterator<Item = KnownRow>) -> Result<Self, StoreError> {
        let told = told.into_iter().next();
        let lost = || StoreError::database("begin a transaction", Error::NotFound);
        let (number, jobs, is_set_up) = told.ok_or_else(lost)?;
        let known = Some(Known { number, jobs });
        if is_set_up {
            return Ok(Self { known, ..self });
        }
        let conn = self.lent.shared()?;
        let said = answered(session::SetUp {}.execute(&mut &*conn)).await;
        let (tx, _) = self.unless_refused("set up the session", said).await?;
        Ok(Self { known, ..tx })
    }

    /// Ends a transaction that found the key reserved, and looks at its row, in one round trip.
    async fn undo_and_look(self, row: &NewRow<'_>) -> Result<Option<KeySummary>, StoreError> {
        let look = sql::Look { scope: row.scope.as_str(), key: row.key.as_str() };
        let conn = self.lent.shared()?;
        let (undone, seen) = answered(both(
            sql::Rollback {}.execute(&mut &*conn),
            look.load::<KeySummaryRow>(&mut &*conn),
        ))
        .await
        .map_err(|error| StoreError::database("look at the key", error))?;
        undone.map_err(|error| StoreError::database("undo a reservation", error))?;
        let rows = self.lent.settle("look at the key", seen).await?;
        rows.into_iter().next().map(key_summary).transpose()
    }

    /// Goes on, unless a statement of the engine's was refused: then the connection goes back to its
    /// pool, if it still is one. A server that ends a connection says so in its own language; that no
    /// other statement is answered after it is the same in all.
    async fn unless_refused<T>(
        self,
        doing: &'static str,
        answer: Result<T, Error>,
    ) -> Result<(Self, T), StoreError> {
        match answer {
            Ok(value) => Ok((self, value)),
            Err(error) if !is_of_the_server(&error) => Err(StoreError::database(doing, error)),
            Err(error) => {
                let conn = self.lent.shared()?;
                match answered(sql::Rollback {}.execute(&mut &*conn)).await {
                    Err(lost) => Err(StoreError::database(doing, lost)),
                    Ok(_) => {
                        self.lent.give_back_after(&error);
                        Err(StoreError::database(doing, error))
                    }
                }
            }
        }
    }

    /// Guarded update, with the jobs, and `COMMIT` in one round trip. That is safe because the update raises
    /// an error where it matches no row, and so turns the `COMMIT` behind it into a rollback.
    async fn try_commit(
        mut self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        jobs: &[StagedJob],
    ) -> Result<Commit, StoreError> {
        if self.lent.is_nested()? {
            self.rollback().await;
            return Ok(Commit::Refused(Refusal::OpenSavepoint));
        }
        let conn = self.lent.shared()?;
        let gone = || StoreError::database("commit", Error::BrokenTransactionManager);
        let known = self.known.as_ref().ok_or_else(gone)?;
        let advance = commit_statements::Advance::new(guard, change, known);
        let sent = match jobs {
            [] => {
                let advance = advance.load::<i32>(&mut &*conn);
                answered(both(advance, sql::CommitTx {}.execute(&mut &*conn))).await
            }
            [job] => {
                let advance = commit_statements::AdvanceAndStageOne::new(advance, guard, job);
                let advance = advance.load::<i32>(&mut &*conn);
                answered(both(advance, sql::CommitTx {}.execute(&mut &*conn))).await
            }
            jobs => {
                let advance = commit_statements::AdvanceAndStage::new(advance, guard, jobs);
                let advance = advance.load::<i32>(&mut &*conn);
                answered(both(advance, sql::CommitTx {}.execute(&mut &*conn))).await
            }
        };
        match sent {
            Ok((advanced, committed)) => Ok(self.concluded(advanced, committed)),
            Err(error) => Ok(Commit::Unknown(StoreError::database("commit", error))),
        }
    }

    /// What became of a transaction by the answer of the engine's statement, or the first error, and
    /// that of the `COMMIT` which was sent along.
    fn concluded<T>(self, head: Result<T, Error>, commit: Result<usize, Error>) -> Commit {
        let Err(error) = head else {
            return self.committed(commit.map(drop));
        };
        if is_lost(&error) {
            return Commit::Unknown(StoreError::database("commit", error));
        }
        // The server refused a statement, so its COMMIT was a rollback, whatever it answered.
        if commit.is_ok() {
            self.lent.give_back_after(&error);
        }
        // All of these are the engine's own: they find the transaction failed where the phase ignored
        // an error of its statements.
        if is_of_a_failed_transaction(&error) {
            Commit::Refused(Refusal::SwallowedError)
        } else if is_out_of_reach(&error) {
            Commit::Refused(Refusal::OutOfReach)
        } else {
            refused(error)
        }
    }

    fn committed(self, answer: Result<(), Error>) -> Commit {
        match answer {
            Ok(()) => {
                self.lent.give_back();
                Commit::Done(())
            }
            // A constraint that was deferred to the commit, or a serialization failure: the server
            // said no. Any other error may hide a commit that was applied (H4, H9).
            Err(error) if is_refused_by_server(&error) => {
                Commit::Failed(StoreError::database("commit", error))
            }
            Err(error) => Commit::Unknown(StoreError::database("commit", error)),
        }
    }
}

/// What a statement of the engine's, or another statement of its transaction, was refused for.
fn refused(error: Error) -> Commit {
    match Mark::of(&error) {
        Some(Mark::Fenced) => Commit::Fenced,
        Some(Mark::Left) => Commit::Refused(Refusal::LeftTransaction),
        _ if cannot_stage(&error) => Commit::Refused(Refusal::OutOfReach),
        _ => Commit::Failed(StoreError::database("write the recovery point", error)),
    }
}

async fn both<A: Future, B: Future>(a: A, b: B) -> Result<(A::Output, B::Output), Error> {
    Ok(join(a, b).await)
}
