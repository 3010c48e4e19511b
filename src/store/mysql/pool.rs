//! The pool, and [`ConnectionGuard`]: a connection that goes back to it only as it came.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{self, Metrics, Object, RecycleError, RecycleResult};

use super::connection::MysqlConn;
use super::error::Failure;
use super::opener::SessionOpener;
use crate::observe;
use crate::store::left_sessions::ReadOnlyServer;
use crate::store::{PoolSettings, StoreError};

pub(super) type MysqlPool = managed::Pool<Manager>;

/// Opens connections.
#[derive(Debug)]
pub(super) struct Manager {
    opener: SessionOpener,
    read_only: Arc<ReadOnlyServer>,
}

impl managed::Manager for Manager {
    // Behind a pointer: on its way out of the pool and back, a connection is moved dozens of times.
    type Type = Box<MysqlConn>;
    type Error = String;

    async fn create(&self) -> Result<Box<MysqlConn>, String> {
        let opened = MysqlConn::open(&self.opener).await;
        opened.map(Box::new).map_err(|failure| match failure {
            Failure::Server { code, message } => format!("{code}: {message}"),
            Failure::Lost(message) | Failure::Client(message) => message,
            Failure::Unanswered => "no answer in time".to_owned(),
        })
    }

    // Without a question to the server: a dead connection is found out by its first use.
    async fn recycle(&self, conn: &mut Box<MysqlConn>, metrics: &Metrics) -> RecycleResult<String> {
        if !conn.is_at_rest() {
            return Err(RecycleError::message("a connection in use"));
        }
        // It was in use when the idle ones were closed.
        match self.read_only.was_left_since(metrics.created) {
            true => Err(RecycleError::message("a connection to a server that was left")),
            false => Ok(()),
        }
    }
}

pub(super) fn open(
    opener: SessionOpener,
    read_only: Arc<ReadOnlyServer>,
    settings: PoolSettings,
) -> Result<MysqlPool, StoreError> {
    settings.pool_of(Manager { opener, read_only })
}

/// How long a connection may take to say that its server is still there.
const SAYS_SO_WITHIN: Duration = Duration::from_secs(5);

/// How a connection is taken from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checkout {
    /// As it is: its first use finds out whether it is dead. For what the engine and the workers send, who resolve an
    /// outcome that is not known.
    AsItIs,
    /// Asked first: for what an operator sends, once, after a quiet night or a restart of the server. Those that turn out
    /// to be closed are passed over, and so is the first that gives no answer in time; see
    /// [`that_answers`](ConnectionGuard::that_answers).
    Pinged,
}

/// A connection of the pool. Dropped in the middle of a statement or a transaction it is closed, and its
/// session at the server ended: its future was dropped (G13).
pub(super) struct ConnectionGuard(Option<Object<Manager>>);

impl ConnectionGuard {
    /// One for the engine's own statements: what an application has set on it is undone first.
    pub(super) async fn of(pool: &MysqlPool) -> Result<Self, StoreError> {
        let mut connection = Self::as_it_is(pool).await?;
        if connection.was_with_application() {
            let at_rest = connection.session().rollback();
            if let Some(failure) = connection.texts(&at_rest).await.failure {
                connection.0.take().map(Object::take);
                return Err(StoreError::database("take a connection", failure));
            }
            connection.stop_watching();
            connection.was_taken_back();
        }
        Ok(connection)
    }

    /// One that is taken from the pool in this way.
    pub(super) async fn by(pool: &MysqlPool, checkout: Checkout) -> Result<Self, StoreError> {
        match checkout {
            Checkout::AsItIs => Self::of(pool).await,
            Checkout::Pinged => Self::that_answers(pool, SAYS_SO_WITHIN).await,
        }
    }

    /// One that was asked whether its server is still there: those behind a restart of the server are not. For what
    /// is not sent again, and is in no hurry. One that gives no answer is half open, behind a firewall that has forgotten
    /// it, or its server is slow: once, it counts as dead, and the idle ones, which are as old, are closed with it. The
    /// second time it is an error.
    ///
    /// A connection that is opened behind those is not asked.
    pub(super) async fn that_answers(
        pool: &MysqlPool,
        within: Duration,
    ) -> Result<Self, StoreError> {
        let mut was_silent = false;
        for _ in 0..pool.status().size {
            let mut connection = Self::of(pool).await?;
            match connection.ping(within).await {
                Ok(()) => return Ok(connection),
                Err(failure @ Failure::Unanswered) if was_silent => {
                    return Err(StoreError::database("ask for an answer", failure));
                }
                Err(Failure::Unanswered) => {
                    was_silent = true;
                    pool.retain(|_, _| false);
                }
                // Dropped, it is closed.
                Err(_) => {}
            }
        }
        Self::of(pool).await
    }

    async fn as_it_is(pool: &MysqlPool) -> Result<Self, StoreError> {
        let began = Instant::now();
        let object = pool.get().await;
        observe::connected(began);
        let object = object.map_err(|error| StoreError::NoConnection(error.to_string()))?;
        Ok(Self(Some(object)))
    }

    /// One for the application.
    pub(super) async fn to_application(pool: &MysqlPool) -> Result<Self, StoreError> {
        let mut connection = Self::of(pool).await?;
        match connection.lend().await {
            Ok(()) => Ok(connection),
            Err(failure) => Err(StoreError::database("lend a connection", failure)),
        }
    }
}

// There is a connection until it is dropped.
impl Deref for ConnectionGuard {
    type Target = MysqlConn;

    #[allow(clippy::expect_used)]
    fn deref(&self) -> &MysqlConn {
        self.0.as_ref().expect("until it is dropped")
    }
}

impl DerefMut for ConnectionGuard {
    #[allow(clippy::expect_used)]
    fn deref_mut(&mut self) -> &mut MysqlConn {
        self.0.as_mut().expect("until it is dropped")
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let Some(object) = self.0.take() else { return };
        let is_free = object.is_at_rest()
            && !object.has_strayed()
            && (!object.was_with_application() || object.is_outside_of_transactions());
        if !is_free {
            // The idle ones may be more than a phase has runs, and each may have the statement.
            if object.has_stale_statement()
                && let Some(pool) = Object::pool(&object)
            {
                pool.retain(|_, _| false);
            }
            drop(Object::take(object));
        }
    }
}

/// A connection for the application's own statements, see [`Mysql::connection`](super::Mysql::connection).
pub struct MysqlHandle(pub(super) ConnectionGuard);

impl fmt::Debug for MysqlHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlHandle").field(&**self).finish()
    }
}

impl Deref for MysqlHandle {
    type Target = MysqlConn;

    fn deref(&self) -> &MysqlConn {
        &self.0
    }
}

impl DerefMut for MysqlHandle {
    fn deref_mut(&mut self) -> &mut MysqlConn {
        &mut self.0
    }
}
