//! [`Killer`]: ends the sessions of clients that are gone.
//!
//! The server does not look at its client while it executes: a session that waits for a lock goes on, with the locks
//! that it has. `KILL` ends it (G13), which a user may do to his own sessions without any right. The connection for it
//! is kept, because a server that is full refuses a new one, and then of all times other sessions wait for those locks.
//! It ends sessions one by one: if it served one task alone, the others would find it in use, and the server full.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error::is_of_an_ended_session;
use crate::moment::Moment;

/// How long a session has to end by itself, which is when its statement does. A MariaDB that is told to kill one in the
/// middle of reading a table's triggers takes these for broken from then on, for all sessions, until `FLUSH TABLES`.
const ENDS_WITHIN: Duration = Duration::from_millis(250);

/// When a new connection is tried as well: the kept one was idle, and a firewall that has forgotten it drops its
/// packets, which looks like a slow server.
const KEPT_ANSWERS_WITHIN: Duration = Duration::from_millis(300);

/// How long a new connection has to open, and to end a session.
const NEW_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// How long a session may take to be ended, from the end of the one before it.
const GIVES_UP_AFTER: Duration = Duration::from_secs(5);

/// How long it may wait for those before it: a server that was restarted meanwhile is still [`YOUNG`], and so recognised.
const WAITS_FOR_OTHERS: Duration = Duration::from_secs(30);

/// The kept connection may be idle for months. A year, in seconds, is the server's maximum.
const MAY_BE_IDLE: &str = "SET SESSION wait_timeout = 31536000";

/// For how many seconds the server has run, without their fraction.
const UPTIME: &str = "SHOW STATUS LIKE 'Uptime'";

/// How long a server has run at most, where it may have been restarted while a session was being ended. The server
/// computes it by its wall clock, which may have been set back: without this bound the sessions of its first hours would
/// then never be ended.
const YOUNG: Duration = Duration::from_secs(60);

/// A session of the server's that is to be ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doomed {
    pub(super) id: u32,
    /// When it was open, by this process's clock.
    pub(super) since: Moment,
}

impl Doomed {
    /// Whether it ended with its server: one that runs for so long was restarted since, and its ids began anew.
    fn is_older_than(self, uptime: Duration) -> bool {
        uptime < YOUNG && self.since.elapsed() > uptime + Duration::from_secs(1)
    }
}

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
        let mut conn = Conn::new(self.opts.clone()).await?;
        conn.query_drop(MAY_BE_IDLE).await?;
        *self.kept.lock().await = Some(conn);
        Ok(())
    }

    /// Ends a session of this user's, soon. Without a runtime, which is a process that ends, nothing ends it but its
    /// statement.
    pub(super) fn end_soon(&self, session: Doomed) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let killer = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(ENDS_WITHIN).await;
                killer.end(session).await;
            });
        }
    }

    /// Ends it, once those before it are ended. Each has its own time: many that are slow take none from the last.
    async fn end(&self, session: Doomed) {
        let Ok(mut kept) = timeout(WAITS_FOR_OTHERS, self.kept.lock()).await else { return };
        let conn = kept.take();
        *kept = timeout(GIVES_UP_AFTER, self.end_by(conn, session)).await.ok().flatten();
    }

    /// Ends it by the kept connection, or else by a new one. The one that is kept from here on.
    async fn end_by(&self, kept: Option<Conn>, session: Doomed) -> Option<Conn> {
        let Some(conn) = kept else { return self.end_by_new(session).await };
        let mut by_kept = pin!(kill(conn, session));
        match timeout(KEPT_ANSWERS_WITHIN, &mut by_kept).await {
            Ok(Some(conn)) => Some(conn),
            Ok(None) => self.end_by_new(session).await,
            Err(_) => match self.end_by_new(session).await {
                Some(conn) => Some(conn),
                // The server is full, or slow: what was sent is all that there is.
                None => timeout(NEW_ANSWERS_WITHIN, by_kept).await.ok().flatten(),
            },
        }
    }

    async fn end_by_new(&self, session: Doomed) -> Option<Conn> {
        let ended = async {
            let mut conn = kill(Conn::new(self.opts.clone()).await.ok()?, session).await?;
            conn.query_drop(MAY_BE_IDLE).await.ok()?;
            Some(conn)
        };
        timeout(NEW_ANSWERS_WITHIN, ended).await.ok().flatten()
    }
}

/// Ends a session, and returns the connection if it was good for it. A restart between the question and the `KILL`
/// ends the connection, too.
async fn kill(mut conn: Conn, session: Doomed) -> Option<Conn> {
    let told: Option<(String, String)> = conn.query_first(UPTIME).await.ok()?;
    let uptime = told.and_then(|(_, seconds)| seconds.parse().ok()).map(Duration::from_secs);
    if uptime.is_some_and(|uptime| session.is_older_than(uptime)) {
        return Some(conn);
    }
    match conn.query_drop(format!("KILL {}", session.id)).await {
        Ok(()) => Some(conn),
        Err(error) if is_of_an_ended_session(&error) => Some(conn),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g13_a_session_ended_with_its_server_only_where_that_was_restarted_since() {
        let seconds = Duration::from_secs;
        let session = Doomed { id: 1, since: Moment::now() };
        assert!(!session.is_older_than(Duration::ZERO), "it was just opened");
        let old = Doomed { id: 1, since: Moment::ago(seconds(600)) };
        assert!(old.is_older_than(seconds(3)), "its server runs for less");
        assert!(!old.is_older_than(seconds(900)));
        assert!(!old.is_older_than(seconds(300)), "its server's clock was set back");
    }
}
