//! [`Killer`]: ends the sessions of clients that are gone.
//!
//! The server does not look at its client while it executes: a session that waits for a lock goes on, with the locks that it
//! has. `KILL` ends it (G13); a user needs no privilege to kill its own sessions. The connection for it is kept, because a
//! server that is full refuses a new one, just when other sessions wait for those locks. It ends sessions one by one: if it
//! served one task alone, the others would find it in use, and the server full.
//!
//! A session is named by its number, which another server gives to another session. So each [`Server`] has a killer of its
//! own, and each session keeps that of its server: behind a failover, those that are still on the former primary are ended
//! there. The last of them takes the killer along, and its connection.
//!
//! A proxy with sessions of its own (ProxySQL, MaxScale) numbers them itself, and another proxy behind the same address gives
//! the same number to another client's session. Behind a proxy no session has a killer: each ends with its statement.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};
use tokio::time::timeout;

use super::error::is_of_an_ended_session;
use super::server::Server;

/// How long a session has to end by itself, which is when its statement does. A MariaDB that is told to kill one in the
/// middle of reading a table's triggers takes these for broken from then on, for all sessions, until `FLUSH TABLES`.
const ENDS_WITHIN: Duration = Duration::from_millis(250);

/// When a new connection is tried as well: the kept one was idle, and a firewall that has forgotten it drops its
/// packets, which looks like a slow server.
const KEPT_ANSWERS_WITHIN: Duration = Duration::from_millis(300);

/// How long a new connection has to open, and to end a session.
const NEW_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// How often a new connection is opened, and how long after one that led to another server: a balancer may lead the next one
/// to the session's own.
const TRIES: u32 = 3;
const TRIES_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How long a session may take to be ended, from the end of the one before it.
const GIVES_UP_AFTER: Duration = Duration::from_secs(5);

/// How long it may wait for those before it. Behind that, most statements have ended by themselves.
const WAITS_FOR_OTHERS: Duration = Duration::from_secs(30);

/// The kept connection may be idle for months: a year, in seconds, is the server's maximum. The other settings are for the
/// question which server it is.
const SETTINGS: &str = "SET SESSION wait_timeout = 31536000, SESSION timestamp = DEFAULT, \
     SESSION sql_big_selects = 1, SESSION sql_select_limit = 18446744073709551615, NAMES utf8mb4";

/// What ends the sessions of one server.
pub(super) struct Killer {
    opts: Opts,
    server: Server,
    kept: tokio::sync::Mutex<Option<Conn>>,
}

/// Without the options, which have the password.
impl fmt::Debug for Killer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Killer").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Killer {
    pub(super) fn new(opts: Opts, server: Server) -> Self {
        Self { opts, server, kept: tokio::sync::Mutex::default() }
    }

    /// The server whose sessions it ends.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Opens the connection that is kept.
    pub(super) async fn prepare(&self) -> Result<(), Error> {
        if let Some(conn) = self.connect().await? {
            *self.kept.lock().await = Some(conn);
        }
        Ok(())
    }

    /// The same. Where it cannot be opened now, the first session to be ended opens it.
    pub(super) fn prepare_soon(self: &Arc<Self>) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let killer = self.clone();
            runtime.spawn(async move { timeout(NEW_ANSWERS_WITHIN, killer.prepare()).await });
        }
    }

    /// A new connection, if it leads to this server. It leads there until it ends, which a restart of the server brings about:
    /// so the server is asked once, and the end of a session is a single round trip.
    async fn connect(&self) -> Result<Option<Conn>, Error> {
        let mut conn = Conn::new(self.opts.clone()).await?;
        let server = Server::behind(&mut conn, SETTINGS).await?;
        Ok((server.as_ref() == Some(&self.server)).then_some(conn))
    }

    /// Ends a session of this user's, soon. Without a runtime, which is a process that ends, nothing ends it but its
    /// statement.
    pub(super) fn end_soon(self: &Arc<Self>, session: u32) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let killer = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(ENDS_WITHIN).await;
                killer.end(session).await;
            });
        }
    }

    /// Ends it, once those before it are ended. Each has its own time: many that are slow take none from the last.
    async fn end(&self, session: u32) {
        let Ok(mut kept) = timeout(WAITS_FOR_OTHERS, self.kept.lock()).await else { return };
        let conn = kept.take();
        *kept = timeout(GIVES_UP_AFTER, self.end_by(conn, session)).await.ok().flatten();
    }

    /// Ends it by the kept connection, or else by a new one. The one that is kept from here on.
    async fn end_by(&self, kept: Option<Conn>, session: u32) -> Option<Conn> {
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

    /// Where each new connection leads to another server, nothing is ended: the session has ended with its server, or is out
    /// of reach.
    async fn end_by_new(&self, session: u32) -> Option<Conn> {
        let ended = async {
            for number in 0..TRIES {
                if number > 0 {
                    tokio::time::sleep(TRIES_AGAIN_AFTER).await;
                }
                if let Ok(Some(conn)) = self.connect().await {
                    return kill(conn, session).await;
                }
            }
            None
        };
        timeout(NEW_ANSWERS_WITHIN, ended).await.ok().flatten()
    }
}

/// Ends a session, and returns the connection if it was good for it.
async fn kill(mut conn: Conn, session: u32) -> Option<Conn> {
    match conn.query_drop(format!("KILL {session}")).await {
        Ok(()) => Some(conn),
        Err(error) if is_of_an_ended_session(&error) => Some(conn),
        Err(_) => None,
    }
}
