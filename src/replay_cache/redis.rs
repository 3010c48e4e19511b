//! [`RedisReplays`]: finished answers in Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{ErrorKind, IntoConnectionInfo, Pipeline, RedisError, pipe};

use super::{Answering, CacheError, ReplayCache};
use crate::lock::lock;
use crate::moment::Moment;

/// An ask that was given up after at least this time was not answered; one that was given up sooner lost its caller.
const UNANSWERED: Duration = Duration::from_millis(1);

/// Keeps finished answers in Redis, as strings that expire: `GETRANGE` and `EXISTS` for each call, `SET .. PX`
/// behind each finished request, each in one round trip, over one connection that all calls share.
///
/// One server, or a primary that clients are led to; not Redis Cluster. Replicas and persistence are of no
/// use to it, any `maxmemory-policy` is fine, and `FLUSHALL` is always safe.
///
/// A connection on which an ask was not answered in time is closed, and another one is opened: it is not known how
/// long the answer is that it would go on to receive.
#[derive(Clone)]
pub struct RedisReplays {
    connection: Arc<Mutex<Connected>>,
    client: redis::Client,
    prefix: String,
}

struct Connected {
    /// `None` from when an ask was not answered to the next one.
    manager: Option<ConnectionManager>,
    /// Counts the connections.
    number: u64,
}

impl RedisReplays {
    /// Uses the server at `url` (`redis://user:password@host:port/database`). It need not be there: it is connected to
    /// at the first call, and again whenever the connection is lost. Within a tokio runtime.
    ///
    /// # Errors
    /// [`RedisError`] where the URL is invalid.
    pub fn new(url: &str) -> Result<Self, RedisError> {
        let tcp = TcpSettings::default().set_nodelay(true);
        // A peer that vanished silently is noticed when it does not acknowledge what was sent. (Who only does
        // not answer is the engine's to judge.)
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let tcp = tcp.set_user_timeout(Duration::from_secs(5));
        let client = redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
        let manager = open(&client)?;
        let connection = Arc::new(Mutex::new(Connected { manager: Some(manager), number: 0 }));
        Ok(Self { connection, client, prefix: "atomic-phases:".to_owned() })
    }

    /// What the names in Redis begin with; `atomic-phases:`.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn connected(&self) -> Result<(ConnectionManager, u64), RedisError> {
        let mut connected = lock(&self.connection);
        let manager = match connected.manager.clone() {
            Some(manager) => manager,
            None => connected.manager.insert(open(&self.client)?).clone(),
        };
        Ok((manager, connected.number))
    }

    async fn send<T: redis::FromRedisValue>(&self, commands: Pipeline) -> Result<T, CacheError> {
        let (mut manager, number) = self.connected().map_err(|_| CacheError::Unavailable)?;
        let unanswered = Unanswered { of: self, number, sent: Moment::now() };
        let sent = commands.query_async(&mut manager).await;
        std::mem::forget(unanswered);
        sent.map_err(|error: RedisError| match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType => {
                CacheError::Refused
            }
            _ => CacheError::Unavailable,
        })
    }
}

fn open(client: &redis::Client) -> Result<ConnectionManager, RedisError> {
    // The engine has time limits and a pause of its own, which a retry in here would only spend.
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(Duration::from_secs(1)))
        .set_response_timeout(None);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// An ask, until it is answered. Where it is given up instead, others get another connection; this one is closed with
/// the last ask that is under way on it.
struct Unanswered<'a> {
    of: &'a RedisReplays,
    number: u64,
    sent: Moment,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.sent.elapsed() < UNANSWERED {
            return;
        }
        let mut connected = lock(&self.of.connection);
        if connected.number == self.number {
            *connected = Connected { manager: None, number: self.number + 1 };
        }
    }
}

impl ReplayCache for RedisReplays {
    fn get<'a>(
        &'a self,
        name: &'a str,
        tombstones: [&'a str; 2],
        at_most: usize,
    ) -> Answering<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let mut both = pipe();
            // A part of a value, because another program may have put anything there. The commands of a pipeline are
            // executed in their order: the tombstones are looked for after the value was read.
            both.cmd("GETRANGE").arg(self.named(name)).arg(0).arg(at_most.saturating_sub(1));
            both.cmd("EXISTS").arg(&tombstones.map(|tombstone| self.named(tombstone)));
            let (value, tombstones): (Vec<u8>, u64) = self.send(both).await?;
            Ok((tombstones == 0 && !value.is_empty()).then_some(value))
        })
    }

    fn put<'a>(&'a self, name: &'a str, value: Vec<u8>, keep_for: Duration) -> Answering<'a, ()> {
        Box::pin(async move {
            let mut set = pipe();
            let name = self.named(name);
            set.cmd("SET").arg(name).arg(value).arg("PX").arg(millis(keep_for)).ignore();
            self.send(set).await
        })
    }

    fn bury<'a>(
        &'a self,
        tombstone: &'a str,
        name: Option<&'a str>,
        keep_for: Duration,
    ) -> Answering<'a, ()> {
        Box::pin(async move {
            let mut both = pipe();
            let tombstone = self.named(tombstone);
            both.cmd("SET").arg(tombstone).arg("").arg("PX").arg(millis(keep_for)).ignore();
            if let Some(name) = name {
                both.cmd("DEL").arg(self.named(name)).ignore();
            }
            self.send(both).await
        })
    }
}

/// Redis takes no less than one.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Not the URL, which may have a password in it.
impl std::fmt::Debug for RedisReplays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisReplays").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
