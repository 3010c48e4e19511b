//! [`Sqlite`]: the embedded store, in a file or in memory, with the semantics of
//! [`Postgres`](crate::store::Postgres).
//!
//! SQLite has one writer at a time; so has this store. Its connection lives on a thread of its own
//! (`thread`), and the task that holds the lock of the connection (`turns`) is the writer. Single statements
//! and whole transactions are handed over without it: the thread takes the lock for those that wait,
//! and the transactions share a commit (`group`). The task of a request goes to the thread with its
//! transaction ([`movable_task`]). A look at a key needs none of it (`reader`).

mod admin;
mod error;
mod group;
mod ops;
mod ops_nodes;
mod ops_statements;
mod reader;
#[cfg(feature = "fault-injection")]
mod standby;
mod statement_registry;
mod statements;
mod thread;
mod transaction;
mod turns;
mod watched;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::connection::SimpleConnection;
#[cfg(feature = "fault-injection")]
use diesel::migration::MigrationSource;
use diesel::query_builder::{QueryBuilder, QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error};
use diesel::sqlite::SqliteQueryBuilder;
use diesel::{Connection, QueryResult, RunQueryDsl, SqliteConnection};
use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};
use futures_util::{FutureExt, future};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use self::error::TimeLimitPassed;
use self::group::{Queued, Start, Waiting, Work, work_off};
use self::ops::Operators;
use self::ops_statements::InsertAudit;
use self::reader::{Reader, absolute};
use self::statements as sql;
use self::thread::{HandedOver, TaskQueue, Worker};
use self::transaction::{SqliteTransaction, begin};
pub use self::turns::ConnectionGuard;
use self::turns::{ConnectionLock, OfferQueue};
pub use self::watched::WatchedConnection;
use super::audit::AuditEntry;
use super::migrations::{Terms, migrated_by, name_missing, revert_migrations, run_migrations};
use super::operators::OperatorStore;
use super::row::{MAX_EXPIRED, count, key_row};
use super::tokenizer::{Dialect, controls_transaction, holds_several};
use super::{
    Change, Claim, Commit, Guard, Hold, KeyRow, KeySummary, NewRow, ParamsAndContext, Refusal,
    Reserved, RowTimes, Store, StoreError, Transaction, Writes,
};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::movable_task::{self, PollingThread};
use crate::store::in_millis::tuple_rows::BlockingRows;

const MIGRATIONS: EmbeddedMigrations = embed_migrations!("migrations/sqlite");

/// A migration waits for the writers of other processes as long as any statement does (`busy_timeout`), and
/// then once more.
const MIGRATION_TERMS: Terms =
    Terms { bounds: "", lock_wait: WRITER_WAIT, pause: Duration::ZERO, patience: Duration::ZERO };

/// How long a request waits for the writer before it: in this process for the connection, and of
/// another process for the file (`busy_timeout`).
const WRITER_WAIT: Duration = Duration::from_secs(10);

/// Write-ahead log, and every commit on the disk before it is acknowledged.
const PRAGMAS: &str = "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; \
    PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;";

/// The connection of a phase's diesel statements.
/// [`WatchedConnection::sqlite`] gives access to diesel's own type, to register a function or a collation:
/// `conn.spawn_blocking(|conn| ..)`.
pub type SqliteConn = SyncConnectionWrapper<WatchedConnection, Worker>;

/// Rows in a SQLite database: for tests, tools, and services on one machine.
///
/// Several processes may share a file on a local disk, and see the same leases; other machines cannot
/// share it. Transactions are `BEGIN IMMEDIATE` and serializable, whatever
/// isolation level a phase declares.
///
/// Phases with a [`Batch`](crate::Batch) that write concurrently share a commit, and
/// so an fsync; each still succeeds or fails on its own. A [`Tx`](crate::Tx) has a commit of its own.
///
/// A [`Tx`](crate::Tx) phase runs on the thread of the connection, so that no statement of it has to be handed
/// there; foreign phases and those with a [`Batch`](crate::Batch) run on a thread of the runtime. Timers, sockets
/// and tasks of such a phase are those of its runtime, as in every phase, and so is its `tracing` subscriber. Anything
/// else that is set for a thread of the runtime (a test's local recorder of metrics, say) is not seen in it. The
/// thread's stack has 8 MiB.
///
/// One connection writes for all scopes. A [`Tx`](crate::Tx) phase holds it until its
/// commit: meanwhile the writes of other requests wait for at most ten seconds, and then fail with
/// [`StoreError::NoConnection`]; replays from a file do not wait. So scopes are isolated only if
/// such phases are short: if tenants must not delay each other, use PostgreSQL.
///
/// Several tokio runtimes may share a store. If a runtime is no longer driven while a [`Tx`](crate::Tx) phase of it
/// waits for something other than statements, the phase keeps the connection until the runtime is dropped.
///
/// Keys are read from the file on the caller's thread, concurrently with the writer: a few pages, which are in
/// memory unless the key is old.
#[derive(Clone)]
pub struct Sqlite {
    lock: ConnectionLock,
    /// To the connection's thread.
    work: mpsc::UnboundedSender<Queued>,
    /// Of the connection's thread, for the tasks whose transactions it runs.
    task_queue: Arc<dyn PollingThread>,
    handed_over: HandedOver,
    reader: Reader,
    operators: Operators,
}

impl Sqlite {
    /// Opens, or creates, the database file at `url`: a path, `sqlite://` and a path, or a `file:` URI as
    /// SQLite has them; `:memory:` for one that lives as long as this value. The process may change its directory later.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`] if the file cannot be opened.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let (work, queue) = mpsc::unbounded_channel();
        let offers = Arc::<OfferQueue>::default();
        let handed_over = HandedOver::default();
        let (task_queue, poll_moved_tasks) = TaskQueue::open(handed_over.clone());
        let beside = future::join(work_off(queue), poll_moved_tasks).map(|_| ());
        let mut worker = Worker::start(beside, offers.clone(), handed_over.clone())
            .map_err(|error| StoreError::NoConnection(error.to_string()))?;
        let url = url.to_owned();
        let (opened, reader, url) = worker
            .run(move || {
                let mut conn =
                    SqliteConnection::establish(&url).map_err(|error| error.to_string())?;
                conn.batch_execute(PRAGMAS).map_err(|error| error.to_string())?;
                let url = absolute(&mut conn, &url);
                let reader = Reader::open(url.as_deref());
                Ok((WatchedConnection::new(conn), reader, url))
            })
            .await
            .unwrap_or_else(|error| Err(error.to_string()))
            .map_err(StoreError::NoConnection)?;
        let conn = SqliteConn::with_runtime(opened, worker);
        let operators = Operators::beside(url.filter(|_| reader.is_open()));
        let (lock, task_queue) = (ConnectionLock::new(conn, offers), Arc::new(task_queue));
        Ok(Self { lock, work, task_queue, handed_over, reader, operators })
    }

    /// The connection, for the application's own statements outside of phases. While the application has it, no
    /// request makes progress.
    ///
    /// Changes to it stay, and phases see them: an instrumentation, a function, an attached database, a `PRAGMA`.
    /// They cannot disable the engine's checks of a phase, but a `PRAGMA` may change the durability of commits
    /// (`synchronous`, `journal_mode`).
    ///
    /// If a transaction is still open when the connection is returned (the future of a `transaction()` was
    /// dropped, or a raw `BEGIN`), it is rolled back before the engine or another caller uses the connection.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`] if other writers hold it for ten seconds.
    pub async fn connection(&self) -> Result<ConnectionGuard, StoreError> {
        let mut conn = self.writer(Instant::now() + WRITER_WAIT).await?;
        let ended = conn.spawn_blocking(|conn| {
            conn.end_what_was_left();
            Ok(())
        });
        ended.await.map_err(|error| StoreError::database("lend the connection", error))?;
        Ok(conn)
    }

    /// How often something was handed to the connection's thread so far: a statement, a transaction or a task. For
    /// tests.
    #[doc(hidden)]
    #[must_use]
    pub fn __handed_over(&self) -> u64 {
        self.handed_over.count()
    }

    /// The connection, as the writer before left it.
    async fn writer(&self, until: Instant) -> Result<ConnectionGuard, StoreError> {
        let waiting = timeout_at(until, self.lock.clone().acquire());
        // It may have become free only behind what kept this task from being polled until now.
        match waiting.await {
            Ok(conn) if Instant::now() < until => Ok(conn),
            _ => Err(too_many_before()),
        }
    }

    /// Runs `work` on the connection's thread. Once it has begun it runs to its end, whatever becomes of
    /// this future; and it does not begin where this future was dropped before.
    async fn run<R: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut SqliteConnection) -> QueryResult<R> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let start = Start::default();
        let begins = start.clone();
        let statement = Work::Statement(Box::new(move |conn| {
            if begins.take() {
                let _ = answer.send(conn.outside(work));
            }
        }));
        match self.answered(statement, start, answered).await {
            Some(answer) => answer
                .unwrap_or_else(|_| Err(thread_gone()))
                .map_err(|error| StoreError::database(doing, error)),
            None => Err(too_many_before()),
        }
    }

    /// Hands `work` over and waits for its answer; `None` where it did not begin in time.
    async fn answered<T>(
        &self,
        work: Work,
        start: Start,
        mut answered: oneshot::Receiver<T>,
    ) -> Option<Result<T, oneshot::error::RecvError>> {
        let _given_up = GivenUp(start.clone());
        self.handed_over.note();
        let _ = self.work.send((self.lock.clone(), work));
        match tokio::time::timeout(WRITER_WAIT, &mut answered).await {
            Err(_) if start.take() => None,
            Err(_) => Some(answered.await),
            Ok(told) => Some(told),
        }
    }

    /// [`guarded_then`], in one transaction.
    async fn together(
        &self,
        doing: &'static str,
        guarded: impl QueryFragment<diesel::sqlite::Sqlite> + QueryId + Send + 'static,
        then: Option<impl QueryFragment<diesel::sqlite::Sqlite> + QueryId + Send + 'static>,
    ) -> Result<bool, StoreError> {
        self.run(doing, move |conn| {
            conn.immediate_transaction(|conn| guarded_then(conn, &guarded, then.as_ref()))
        })
        .await
    }

    async fn begin_with<R: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut SqliteConnection) -> QueryResult<R> + Send + 'static,
    ) -> Result<(SqliteTransaction, R), StoreError> {
        let until = Instant::now() + WRITER_WAIT;
        let moved = movable_task::move_to(&self.task_queue).await;
        let mut tx = SqliteTransaction { conn: Some(self.writer(until).await?), _moved: moved };
        let answer = tx.connection()?.spawn_blocking(move |conn| {
            let value = conn.outside(|conn| {
                begin(conn)?;
                work(conn)
            })?;
            conn.watch();
            Ok(value)
        });
        let value = answer.await.map_err(|error| StoreError::database(doing, error))?;
        Ok((tx, value))
    }
}

impl Store for Sqlite {
    type Connection = SqliteConn;
    type Transaction = SqliteTransaction;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<diesel::sqlite::Sqlite> + QueryId + Send + 'static,
    {
        let mut text = SqliteQueryBuilder::new();
        // What has no text is told again when it is executed, as that statement's error.
        let _ = query.to_sql(&mut text, &diesel::sqlite::Sqlite);
        let text = text.finish();
        let refusal = if controls_transaction(&text, Dialect::Sqlite) {
            Some(Refusal::LeftTransaction)
        } else if holds_several(&text, Dialect::Sqlite) {
            Some(Refusal::SeveralStatements)
        } else {
            None
        };
        Statement { refusal, run: Box::new(move |conn| conn.execute_returning_count(&query)) }
    }

    migrated_by!(unapplied_migrations);

    async fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let look = sql::Look::at(scope, key);
        let rows = match self.reader.look(&look) {
            Some(rows) => rows,
            None => self.run("read the key", |conn| look.rows(conn)).await?,
        };
        rows.into_iter().next().map(sql::key_summary).transpose()
    }

    async fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        let read = sql::Read::of(scope, key);
        let rows = self.run("read the key", |conn| read.rows::<sql::StoredRow>(conn)).await?;
        rows.into_iter().next().map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<SqliteTransaction>, StoreError> {
        let insert = sql::InsertNew { insert: sql::Insert::new(row) };
        let make_room = row.replaces.map(|request_id| sql::DeleteExpired::of(row, request_id));
        let look = sql::Look::at(row.scope, row.key);
        let (tx, (times, row)) = self
            .begin_with("reserve the key", |conn| {
                make_room.map(|delete| delete.execute(conn)).transpose()?;
                let times = insert.rows::<(i64, i64)>(conn)?.into_iter().next();
                // There is no other writer meanwhile, so there is a row.
                let row = match times {
                    Some(_) => None,
                    None => look.rows::<sql::StoredKeySummary>(conn)?.into_iter().next(),
                };
                Ok((times, row))
            })
            .await?;
        match times {
            Some((created_at, expires_at)) => Ok(Reserved::Fresh {
                tx,
                created_at: sql::time(created_at, "created_at")?,
                expires_at: sql::time(expires_at, "expires_at")?,
            }),
            None => {
                tx.rollback().await;
                Ok(Reserved::Exists(row.map(sql::key_summary).transpose()?))
            }
        }
    }

    async fn create_key(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        let create = sql::CreateNew { create: sql::Create::new(row, created_at, change) };
        let make_room = row.replaces.map(|request_id| sql::DeleteExpired::of(row, request_id));
        let write = writing(&row.guard(), writes);
        let times = self.in_one_transaction(move |conn| {
            make_room.as_ref().map(|delete| delete.execute(conn)).transpose()?;
            let Some(times) = (&create).rows::<(i64, i64)>(conn)?.into_iter().next() else {
                return Ok(None);
            };
            write(conn)?;
            Ok(Some(times))
        });
        match times.await {
            (Commit::Done(()), Some((written_at, expires_at))) => {
                match (sql::time(written_at, "advanced_at"), sql::time(expires_at, "expires_at")) {
                    (Ok(written_at), Ok(expires_at)) => {
                        Commit::Done(RowTimes { written_at, expires_at })
                    }
                    (Err(error), _) | (_, Err(error)) => Commit::Unknown(error),
                }
            }
            (Commit::Failed(error), _) => Commit::Failed(error),
            (Commit::Unknown(error), _) => Commit::Unknown(error),
            _ => Commit::Fenced,
        }
    }

    async fn advance_key(
        &self,
        _: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        let advance = sql::Write::new(guard, change);
        let write = writing(guard, writes);
        let advanced = self.in_one_transaction(move |conn| {
            if (&advance).execute(conn)? != 1 {
                return Ok(None);
            }
            write(conn)?;
            Ok(Some(()))
        });
        advanced.await.0
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = self.run("tell the time", |conn| sql::Now {}.rows::<i64>(conn)).await?;
        sql::time(rows.into_iter().next().unwrap_or(-1), "now")
    }

    async fn begin_transaction(
        &self,
        _: Isolation,
        _: &Guard<'_>,
    ) -> Result<Option<SqliteTransaction>, StoreError> {
        let (tx, ()) = self.begin_with("begin a transaction", |_| Ok(())).await?;
        Ok(Some(tx))
    }

    async fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        let take_over = sql::Taken { taken: sql::TakeOver::new(claim, hold) };
        let rows =
            self.run("take over the key", |conn| take_over.rows::<sql::StoredRow>(conn)).await?;
        rows.into_iter().next().map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn write_change(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Commit {
        let write = sql::Write::new(guard, change);
        let notice = notice.map(|job| sql::InsertJob::new(guard, job));
        let written = self.run("write the key", |conn| match notice {
            None => write.execute(conn),
            Some(notice) => conn.immediate_transaction(|conn| match write.execute(conn)? {
                0 => Ok(0),
                _ => stage(conn, &notice).map(|()| 1),
            }),
        });
        match written.await {
            Ok(0) => Commit::Fenced,
            Ok(_) => Commit::Done(()),
            Err(error) => Commit::Failed(error),
        }
    }

    async fn settle_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        let take_over = sql::Taken { taken: sql::TakeOver::new(claim, hold) };
        let write = sql::Write::new(&claim.behind(), change);
        let audit = audit.map(InsertAudit::of);
        let settled = self.run("settle the key", |conn| {
            conn.immediate_transaction(|conn| {
                if take_over.rows::<sql::StoredRow>(conn)?.is_empty() {
                    return Ok(false);
                }
                if write.execute(conn)? != 1 {
                    return Err(Error::RollbackTransaction);
                }
                audit.map(|audit| audit.execute(conn)).transpose().map(|_| true)
            })
        });
        match settled.await {
            Ok(true) => Commit::Done(()),
            Ok(false) => Commit::Fenced,
            Err(error) => Commit::Failed(error),
        }
    }

    async fn renew_lease(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        let renew = sql::Renew::new(guard, hold);
        Ok(self.run("renew the lease", |conn| renew.execute(conn)).await? == 1)
    }

    async fn read_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let read = sql::Outputs { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() };
        let rows = self.run("read the outputs", |conn| read.rows::<Option<Vec<u8>>>(conn)).await?;
        Ok(rows.into_iter().next().flatten())
    }

    async fn read_params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let read = sql::ParamsAndContext {
            scope: scope.as_str().to_owned(),
            key: key.as_str().to_owned(),
            request_id: request_id.as_bytes().to_vec(),
        };
        let rows = self
            .run("read what was given", |conn| read.rows::<(Vec<u8>, Option<Vec<u8>>)>(conn))
            .await?;
        Ok(rows.into_iter().next())
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let counting = sql::CountKeys {
            scope: scope.as_str().to_owned(),
            most: i64::from(cap) + MAX_EXPIRED,
            cap: cap.into(),
        };
        Ok(count(self.run("count the keys", |conn| counting.rows::<i64>(conn)).await?))
    }

    // One writer at a time, and in this process one connection.
    #[cfg(feature = "fault-injection")]
    const CONCURRENT: bool = false;

    #[cfg(feature = "fault-injection")]
    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        let pass = sql::PassTime { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() };
        self.run("pass time", |conn| pass.execute(conn)).await?;
        Ok(())
    }

    #[cfg(feature = "fault-injection")]
    async fn replicate(&self) -> Result<(), StoreError> {
        self.run("copy all tables", standby::copy).await
    }

    #[cfg(feature = "fault-injection")]
    async fn fail_over(&self) -> Result<(), StoreError> {
        self.run("bring all tables back", standby::bring_back).await
    }

    #[cfg(feature = "fault-injection")]
    async fn cut(&self, _: &mut SqliteTransaction) {}
}

impl Sqlite {
    /// A transaction, from its begin to its commit, on the connection's thread. `None` from `work`: the row is
    /// another holder's, and nothing is written.
    async fn in_one_transaction<R: Send + 'static>(
        &self,
        work: impl FnMut(&mut SqliteConnection) -> QueryResult<Option<R>> + Send + 'static,
    ) -> (Commit, Option<R>) {
        let (answer, answered) = oneshot::channel();
        let start = Start::default();
        let waiting = Waiting { work, came_to: None, start: start.clone(), answer };
        match self.answered(Work::Transaction(Box::new(waiting)), start, answered).await {
            Some(Ok(told)) => told,
            Some(Err(_)) => {
                (Commit::Unknown(StoreError::database("write the phase", thread_gone())), None)
            }
            None => (Commit::Failed(too_many_before()), None),
        }
    }

    /// [`migrate`](Store::migrate) with other migrations.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub async fn migrate_from(
        &self,
        source: impl MigrationSource<diesel::sqlite::Sqlite> + Send + 'static,
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
        source: impl MigrationSource<diesel::sqlite::Sqlite> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.with_migrations(revert_migrations(source, MIGRATION_TERMS)).await
    }

    async fn with_migrations<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteConnection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        // The harness's own error travels inside the statement's.
        self.run("migrate", |conn| Ok(work(conn))).await?
    }
}

fn thread_gone() -> Error {
    let message = "the database thread is gone".to_owned();
    Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand, Box::new(message))
}

fn too_many_before() -> StoreError {
    StoreError::NoConnection("the writers before this one took over ten seconds".to_owned())
}

/// A future that is dropped before its turn has not begun (G13).
struct GivenUp(Start);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// A statement of a phase, to be executed later.
pub struct Statement {
    run: Box<Execution>,
    /// The rule that its text breaks.
    refusal: Option<Refusal>,
}

type Execution = dyn Fn(&mut SqliteConnection) -> QueryResult<usize> + Send;

/// The rule that a phase breaks by what it hands over.
fn refusal(writes: &Writes<'_, Sqlite>) -> Option<Refusal> {
    writes.statements.all.iter().find_map(|statement| statement.refusal)
}

/// What a phase hands over, to be executed on the connection's thread.
fn writing(
    guard: &Guard<'_>,
    writes: Writes<'_, Sqlite>,
) -> impl Fn(&mut SqliteConnection) -> QueryResult<()> + Send + 'static {
    let Writes { statements, jobs, within } = writes;
    let jobs: Vec<_> = jobs.iter().map(|job| sql::InsertJob::new(guard, job)).collect();
    move |conn| {
        let began = Moment::now();
        for statement in &statements.all {
            (statement.run)(conn)?;
            // One that is under way is not interrupted: diesel has no word for it.
            if began.elapsed() > within {
                return Err(Error::QueryBuilderError(Box::new(TimeLimitPassed)));
            }
        }
        for job in &jobs {
            stage(conn, job)?;
        }
        Ok(())
    }
}

/// Stages a job. That it was not inserted, without an error, is one: a trigger of the application's may have said
/// `RAISE(IGNORE)`.
fn stage(conn: &mut SqliteConnection, job: &sql::InsertJob) -> QueryResult<()> {
    match job.execute(conn)? {
        1 => Ok(()),
        _ => Err(Error::NotFound),
    }
}

/// Executes a guarded statement, and what follows from it. `false` where the row is not as it says.
fn guarded_then(
    conn: &mut SqliteConnection,
    guarded: &(impl QueryFragment<diesel::sqlite::Sqlite> + QueryId),
    then: Option<&(impl QueryFragment<diesel::sqlite::Sqlite> + QueryId)>,
) -> QueryResult<bool> {
    let is_as_it_says = conn.execute_returning_count(guarded)? == 1;
    if let Some(then) = then.filter(|_| is_as_it_says) {
        conn.execute_returning_count(then)?;
    }
    Ok(is_as_it_says)
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sqlite").finish_non_exhaustive()
    }
}

opaque! {
    [] Statement;
}

#[cfg(test)]
mod plans;

#[cfg(test)]
mod tests {
    use super::*;

    /// So those that wait behind a statement which kept the thread for long do not do the same one after the other.
    #[tokio::test]
    async fn g12_a_turn_that_comes_too_late_is_refused() {
        let store = Sqlite::connect(":memory:").await.unwrap();
        let late = store.writer(Instant::now()).await;
        assert!(matches!(late, Err(StoreError::NoConnection(_))));
        assert!(store.writer(Instant::now() + WRITER_WAIT).await.is_ok(), "it is free");
    }
}
