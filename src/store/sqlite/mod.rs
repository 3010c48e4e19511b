//! [`Sqlite`]: the embedded store, in a file or in memory, with the semantics of
//! [`Postgres`](crate::store::Postgres).
//!
//! SQLite has one writer at a time; so has this store. Its connection lives on a thread of its own
//! (`thread`), and the task that holds the lock of the connection (`turns`) is the writer. Single statements
//! and whole transactions are handed over without it (`ask`): the thread takes the lock for those that wait, and the
//! transactions share a commit (`group`). The task of a request goes to the thread with its
//! transaction ([`movable_task`](crate::movable_task)). A look at a key needs none of it (`reader`).

mod admin;
mod ask;
mod error;
#[cfg(feature = "fault-injection")]
mod fault;
mod file;
mod group;
mod ops;
mod ops_statements;
mod reader;
mod statement;
mod statement_registry;
mod statements;
mod store;
mod thread;
mod transaction;
mod turns;
mod watched;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::{Connection, SqliteConnection};
use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};
use futures_util::{FutureExt, future};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::file::OpenFile;
use self::group::{Queued, work_off};
use self::ops::Operators;
use self::reader::{Reader, absolute, logged_file};
use self::thread::{HandedOver, TaskQueue, Worker};
pub use self::turns::ConnectionGuard;
use self::turns::{ConnectionLock, OfferQueue};
pub use self::watched::WatchedConnection;
use super::StoreError;
use super::migrations::Terms;
use crate::movable_task::PollingThread;

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
/// While a process has the file open, neither replace nor delete it: SQLite does not notice, and what it acknowledges from then
/// on is lost. On Unix the store notices it, and the engine neither reads nor writes any more. It does not notice that another
/// program writes into the file (`cp`), or deletes only its log. To restore a copy, stop each process, delete the files of that
/// name with `-wal` and `-shm`, and start them again behind it.
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
    /// [`StoreError::NoConnection`] if the file cannot be opened, or was replaced meanwhile.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let (work, queue) = mpsc::unbounded_channel();
        let offers = Arc::<OfferQueue>::default();
        let handed_over = HandedOver::default();
        let (task_queue, poll_moved_tasks) = TaskQueue::open(handed_over.clone());
        let beside = future::join(work_off(queue), poll_moved_tasks).map(|_| ());
        let mut worker = Worker::start(beside, offers.clone(), handed_over.clone())
            .map_err(|error| StoreError::NoConnection(error.to_string()))?;
        let url = url.to_owned();
        let (opened, reader, operators) = worker
            .run(move || {
                let (mut conn, file) = file::open(|| SqliteConnection::establish(&url))
                    .map_err(|error| error.to_string())?;
                conn.batch_execute(PRAGMAS).map_err(|error| error.to_string())?;
                let path = logged_file(&mut conn);
                // Without a write-ahead log, SQLite itself notices that its file was replaced.
                let file = path.as_ref().map_or_else(OpenFile::default, |_| file);
                let url = path.map(|path| absolute(path, &url));
                let reader = Reader::open(url.as_deref(), file.clone());
                let operators = Operators::beside(url.filter(|_| reader.is_open()), &file);
                Ok((WatchedConnection::new(conn, file), reader, operators))
            })
            .await
            .unwrap_or_else(|error| Err(error.to_string()))
            .map_err(StoreError::NoConnection)?;
        let conn = SqliteConn::with_runtime(opened, worker);
        let (lock, task_queue) = (ConnectionLock::new(conn, offers), Arc::new(task_queue));
        Ok(Self { lock, work, task_queue, handed_over, reader, operators })
    }

    /// The connection, for the application's own statements outside of phases. While the application has it, no
    /// request makes progress.
    ///
    /// Changes to it stay, and phases see them: an instrumentation, a function, an attached database, a `PRAGMA`.
    /// They cannot disable the engine's checks of a phase, but a `PRAGMA` may change the durability of commits
    /// (`synchronous`, `journal_mode`). A phase can make no such change itself.
    ///
    /// A phase may read from an attached database, and must not write to it. With a write-ahead log, a transaction is [atomic
    /// within each file](https://www.sqlite.org/lang_attach.html) and not across them: SQLite commits one after the other, and
    /// a failure or a crash in between leaves the recovery point committed without the rows of the other file (G4). The engine
    /// does not see such a write, and does not refuse it.
    ///
    /// If a transaction is still open when the connection is returned (the future of a `transaction()` was
    /// dropped, or a raw `BEGIN`), it is rolled back before the engine or another caller uses the connection.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`] if other writers hold it for ten seconds; [`StoreError::Database`] if the file was replaced.
    pub async fn connection(&self) -> Result<ConnectionGuard, StoreError> {
        let mut conn = self.writer(Instant::now() + WRITER_WAIT).await?;
        let ended = conn.spawn_blocking(|conn| {
            conn.end_what_was_left();
            conn.check_file()
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

    async fn with_migrations<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteConnection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        // The harness's own error travels inside the statement's.
        self.run("migrate", |conn| Ok(work(conn))).await?
    }
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sqlite").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod plans;
