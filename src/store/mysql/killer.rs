//! [`Killer`]: ends the sessions of clients that are gone.
//!
//! The server does not look at its client while it executes: a session that waits for a lock goes on, with the locks
//! that it has. `KILL` ends it (G13), which a user may do to his own sessions without any right. The connection for it
//! is kept, because a server that is full refuses a new one, and then of all times somebody waits for those locks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};
use tokio::time::timeout;

/// How long a session has to end by itself, which is when its statement does. A MariaDB that is told to kill one in the
/// middle of reading a table's triggers takes these for broken from then on, for all sessions, until `FLUSH TABLES`.
const ENDS_WITHIN: Duration = Duration::from_millis(250);

/// How long the server is given to kill a session.
const KILL_WITHIN: Duration = Duration::from_secs(1);

/// It has ended by itself.
const NO_SUCH_SESSION: u16 = 1094;

/// What ends sessions, of all connections that were opened with it.
#[derive(Clone, Debug)]
pub(super) struct Killer {
    opts: Opts,
    blocks: bool,
    kept: Arc<Mutex<Option<Conn>>>,
}

impl Killer {
    pub(super) fn new(opts: Opts) -> Self {
        Self { opts, blocks: true, kept: Arc::default() }
    }

    /// The same for sessions that are sent no blocks, as on MySQL.
    #[cfg(feature = "fault-injection")]
    pub(super) fn without_blocks(self) -> Self {
        Self { blocks: false, ..self }
    }

    /// Whether its sessions may be sent blocks, if their server has them.
    pub(super) fn allows_blocks(&self) -> bool {
        self.blocks
    }

    pub(super) fn opts(&self) -> Opts {
        self.opts.clone()
    }

    /// Opens the connection that is kept.
    pub(super) async fn prepare(&self) -> Result<(), Error> {
        let conn = Conn::new(self.opts.clone()).await?;
        self.keep(conn);
        Ok(())
    }

    /// Ends a session of this user's, soon. An id is given to another session only after a restart of the server.
    pub(super) fn end_soon(&self, id: u32) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let killer = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(ENDS_WITHIN).await;
                timeout(KILL_WITHIN, killer.end(id)).await
            });
        }
    }

    async fn end(&self, id: u32) {
        if let Some(kept) = self.take()
            && self.kill(kept, id).await
        {
            return;
        }
        // It is in use, or was dead.
        if let Ok(conn) = Conn::new(self.opts.clone()).await {
            self.kill(conn, id).await;
        }
    }

    /// Whether the connection was good for it.
    async fn kill(&self, mut conn: Conn, id: u32) -> bool {
        let is_ended = match conn.query_drop(format!("KILL {id}")).await {
            Ok(()) => true,
            Err(Error::Server(error)) => error.code == NO_SUCH_SESSION,
            Err(_) => false,
        };
        if is_ended {
            self.keep(conn);
        }
        is_ended
    }

    fn take(&self) -> Option<Conn> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self, conn: Conn) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert(conn);
    }
}
