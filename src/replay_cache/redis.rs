//! [`RedisReplays`]: finished answers in Redis.

use std::time::Duration;

use redis::{FromRedisValue, Pipeline, RedisError, pipe};

use super::{Answering, CacheError, ReplayCache};
use crate::redis_connection::{NotDone, RedisConnection};

/// Keeps finished answers in Redis, as strings that expire: `GETRANGE` and `EXISTS` for each call, `SET .. PX`
/// behind each finished request, each in one round trip, over one connection that all calls share.
///
/// One server, or a primary that clients are led to; not Redis Cluster. Replicas and persistence are of no
/// use to it, any `maxmemory-policy` is fine, and `FLUSHALL` is always safe.
///
/// It opens another connection if the last one was lost or is no longer answered (a call was given up, and a `PING` behind
/// it has no answer within a second), and if the server refuses a write because it is no longer the primary.
#[derive(Clone)]
pub struct RedisReplays {
    connection: RedisConnection,
    prefix: String,
}

impl RedisReplays {
    /// Uses the server at `url` (`redis://user:password@host:port/database`). It need not be there: it is connected to
    /// at the first call, and again whenever the connection is lost.
    ///
    /// # Errors
    /// [`RedisError`] where the URL is invalid.
    pub fn new(url: &str) -> Result<Self, RedisError> {
        let connection = RedisConnection::new(url)?;
        Ok(Self { connection, prefix: "atomic-phases:".to_owned() })
    }

    /// What the names in Redis begin with; `atomic-phases:`.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn send<T: FromRedisValue>(&self, commands: Pipeline) -> Result<T, CacheError> {
        let sent = self.connection.send(&commands).await;
        sent.map_err(|not_done| match not_done {
            NotDone::Refused => CacheError::Refused,
            NotDone::NotConnected | NotDone::NotThePrimary | NotDone::Lost => {
                CacheError::Unavailable
            }
        })
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
