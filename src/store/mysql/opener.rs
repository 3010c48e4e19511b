//! [`SessionOpener`]: opens sessions at one URL, and keeps one [`Killer`] for each server that they lead to.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mysql_async::Opts;

use super::killer::Killer;
use super::server::{Product, Server};
use super::session::Purpose;
use super::statement_registry::StatementRegistry;
use crate::lock::lock;
use crate::observe;
use crate::repeats::Repeats;

const NUMBERED: &str = "a proxy in front of the database numbers its sessions itself, so the engine cannot end the session \
    of a dropped future: the session executes its statement to the end, and keeps its locks until then. Connect to the \
    server directly";

/// Said once a day of each address.
static WARNINGS: Repeats = Repeats::new();
const A_DAY: Duration = Duration::from_secs(24 * 3600);

/// What opens sessions at one URL, and has the killers of their servers.
#[derive(Clone)]
pub(super) struct SessionOpener {
    opts: Opts,
    pub(super) purpose: Purpose,
    /// The products whose servers are sent blocks: MySQL has none.
    pub(super) blocks: &'static [Product],
    known: Arc<Mutex<Known>>,
    /// What each of its sessions keeps prepared.
    registry: Arc<StatementRegistry>,
}

#[derive(Debug, Default)]
struct Known {
    /// Of the server that the URL led to last.
    last: Option<Arc<Killer>>,
    /// Of each server that has a session.
    all: Vec<Weak<Killer>>,
    /// Whether a proxy has numbered a session. The numbers of another one may be equal by chance.
    is_behind_a_proxy: bool,
}

impl SessionOpener {
    pub(super) fn new(opts: Opts) -> Self {
        Self {
            opts,
            purpose: Purpose::Requests,
            blocks: &[Product::Mariadb],
            known: Arc::default(),
            registry: Arc::default(),
        }
    }

    /// The same for sessions that search, and have a time limit for that.
    pub(super) fn of_searches(self) -> Self {
        Self { purpose: Purpose::Searches, ..self }
    }

    pub(super) fn opts(&self) -> Opts {
        self.opts.clone()
    }

    pub(super) fn registry(&self) -> Arc<StatementRegistry> {
        self.registry.clone()
    }

    /// The killer of a session that was opened on this server. Where it takes the place of another one, its connection is
    /// opened now, while the server has room for it. `None` behind a proxy.
    pub(super) fn killer_of(&self, server: Option<Server>) -> Option<Arc<Killer>> {
        let mut known = lock(&self.known);
        known.is_behind_a_proxy |= server.is_none();
        let Some(server) = server.filter(|_| !known.is_behind_a_proxy) else {
            drop(known);
            let address = (self.opts.ip_or_hostname(), self.opts.tcp_port());
            if WARNINGS.admits(address, A_DAY).is_some() {
                observe::sessions_are_proxied(NUMBERED);
            }
            return None;
        };
        let mut all = known.all.iter().filter_map(Weak::upgrade);
        let killer = match all.find(|killer| *killer.server() == server) {
            Some(killer) => killer,
            None => {
                let killer = Arc::new(Killer::new(self.opts(), server));
                known.all.retain(|other| other.strong_count() > 0);
                known.all.push(Arc::downgrade(&killer));
                if known.last.is_some() {
                    killer.prepare_soon();
                }
                killer
            }
        };
        known.last = Some(killer.clone());
        Some(killer)
    }
}

/// Without the options, which have the password.
impl fmt::Debug for SessionOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOpener").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g16_a_server_keeps_its_killer_while_it_has_a_session_or_was_reached_last() {
        let opener = SessionOpener::new(Opts::from_url("mysql://ada@localhost/rides").unwrap());
        let of = |name: &str| opener.killer_of(Some(Server::named(name))).unwrap();
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

    #[test]
    fn g16_behind_a_proxy_no_session_has_a_killer() {
        let opener = SessionOpener::new(Opts::from_url("mysql://ada@localhost/rides").unwrap());
        assert!(opener.killer_of(None).is_none());
        let equal_by_chance = Some(Server::named("first"));
        assert!(opener.clone().killer_of(equal_by_chance).is_none(), "nor for another pool");
    }
}
