//! [`Killer`]: ends the sessions of clients that are gone.
//!
//! The server does not look at its client while it executes: a session that waits for a lock goes on, with the locks
//! that it has. `KILL` ends it (G13), which a user may do to his own sessions without any right. The connection for it
//! is kept, because a server that is full refuses a new one, and then of all times other sessions wait for those locks.
//! It ends sessions one by one: if it served one task alone, the others would find it in use, and the server full.
//!
//! A session is named by its number, which another server gives to another session. So each [`Server`] has a killer of its
//! own, and each session keeps that of its server: behind a failover, those that are still on the former primary are ended
//! there. The last of them takes the killer along, and its connection.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
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

/// How long a session may take to be ended, from the end of the one before it.
const GIVES_UP_AFTER: Duration = Duration::from_secs(5);

/// How long it may wait for those before it. Behind that, most statements have ended by themselves.
const WAITS_FOR_OTHERS: Duration = Duration::from_secs(30);

/// The kept connection may be idle for months: a year, in seconds, is the server's maximum. The other settings are for the
/// question which server it is.
const SETTINGS: &str = "SET SESSION wait_timeout = 31536000, SESSION timestamp = DEFAULT, \
     SESSION sql_big_selects = 1, SESSION sql_select_limit = 18446744073709551615";

/// What opens sessions at one URL, and has their killers.
#[derive(Clone, Debug)]
pub(super) struct Killers {
    opts: Opts,
    blocks: bool,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Of the server that the URL led to last.
    last: Option<Arc<Killer>>,
    /// Of each server that has a session.
    all: Vec<Weak<Killer>>,
}

impl Killers {
    pub(super) fn new(opts: Opts) -> Self {
        Self { opts, blocks: true, known: Arc::default() }
    }

    /// The same for sessions that are sent no blocks, as on MySQL.
    #[cfg(feature = "fault-injection")]
    pub(super) fn without_blocks(self) -> Self {
        Self { blocks: false, ..self }
    }

    /// Whether their sessions may be sent blocks, if their server has them.
    pub(super) fn allows_blocks(&self) -> bool {
        self.blocks
    }

    pub(super) fn opts(&self) -> Opts {
        self.opts.clone()
    }

    /// The killer of a session that was opened on this server. Where it takes the place of another one, its connection is
    /// opened now, while the server has room for it.
    pub(super) fn of(&self, server: Server) -> Arc<Killer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = known.all.iter().filter_map(Weak::upgrade);
        let killer = match all.find(|killer| killer.server == server) {
            Some(killer) => killer,
            None => {
                let killer = Killer { opts: self.opts(), server, kept: Default::default() };
                let killer = Arc::new(killer);
                known.all.retain(|other| other.strong_count() > 0);
                known.all.push(Arc::downgrade(&killer));
                if known.last.is_some() {
                    killer.prepare_soon();
                }
                killer
            }
        };
        known.last = Some(killer.clone());
        killer
    }
}

/// What ends the sessions of one server.
#[derive(Debug)]
pub(super) struct Killer {
    opts: Opts,
    server: Server,
    kept: tokio::sync::Mutex<Option<Conn>>,
}

impl Killer {
    /// Opens the connection that is kept.
    pub(super) async fn prepare(&self) -> Result<(), Error> {
        let mut conn = Conn::new(self.opts.clone()).await?;
        if Server::behind(&mut conn, SETTINGS).await? == self.server {
            *self.kept.lock().await = Some(conn);
        }
        Ok(())
    }

    /// The same. Where it cannot be opened now, the first session to be ended opens it.
    fn prepare_soon(self: &Arc<Self>) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let killer = self.clone();
            runtime.spawn(async move { timeout(NEW_ANSWERS_WITHIN, killer.prepare()).await });
        }
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
        let mut by_kept = pin!(self.kill(conn, session));
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

    async fn end_by_new(&self, session: u32) -> Option<Conn> {
        let ended = async { self.kill(Conn::new(self.opts.clone()).await.ok()?, session).await };
        timeout(NEW_ANSWERS_WITHIN, ended).await.ok().flatten()
    }

    /// Ends a session, and returns the connection if it was good for it. One that leads to another server ends nothing: the
    /// session has ended with its server, or is out of reach. A restart between the question and the `KILL` ends the
    /// connection, too.
    async fn kill(&self, mut conn: Conn, session: u32) -> Option<Conn> {
        if Server::behind(&mut conn, SETTINGS).await.ok()? != self.server {
            return None;
        }
        match conn.query_drop(format!("KILL {session}")).await {
            Ok(()) => Some(conn),
            Err(error) if is_of_an_ended_session(&error) => Some(conn),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g16_a_server_keeps_its_killer_while_it_has_a_session_or_was_reached_last() {
        let killers = Killers::new(Opts::from_url("mysql://ada@localhost/rides").unwrap());
        let of = |name: &str| killers.of(Server::named(name));
        let first = of("first");
        assert!(Arc::ptr_eq(&first, &of("first")));
        let second = of("second");
        assert!(!Arc::ptr_eq(&first, &second), "the same number is of another session there");
        assert!(Arc::ptr_eq(&first, &of("first")), "it still has a session");
        let [first, second] = [first, second].map(|killer| Arc::downgrade(&killer));
        assert_eq!((first.strong_count(), second.strong_count()), (1, 0));
        of("second");
        assert_eq!(first.strong_count(), 0, "its last session takes it along");
    }
}
