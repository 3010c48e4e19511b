//! A cache in front of replays: finished answers are read through it, and the database is asked for the rest.
//!
//! It makes a replay cheaper, and is never asked to be right. What it holds is sealed under the application's
//! secret for one scope, one key and one request, and ends by the database's clock: a cache that loses, keeps,
//! swaps or makes up entries, hangs or is gone costs a look at the row, and nothing else. When it helps, and when
//! it gets in the way: `docs/replay-cache.md`.

#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis")]
pub use self::redis::RedisReplays;
use crate::setting::{DAY, MILLISECOND, SettingError, duration, number};

/// What a [`ReplayCache`] answers.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, CacheError>> + Send + 'a>>;

/// Keeps bytes under names, for a while. `RedisReplays` is one (feature `redis`).
///
/// It need not be right, nor quick: the engine drops what takes longer than its
/// [time limit](CachedReplays::time_limit), and judges what it is given. Names are hashes under the application's
/// secret, of 60 ASCII characters at most. A panic counts as [`CacheError::Unavailable`].
///
/// One thing is asked of an implementation that an erasure is to be heard of at once: in [`get`](Self::get) the
/// value is read *before* the tombstones are, and in [`bury`](Self::bury) the tombstone is written *before* the
/// value goes. One that does not keep to it, or loses a tombstone, lets an erased answer be told for
/// [`keep_for`](CachedReplays::keep_for) at most.
pub trait ReplayCache: Send + Sync + 'static {
    /// The value under this name, or its first `at_most` bytes; `None` where there is none, or where there is
    /// one of the tombstones.
    fn get<'a>(
        &'a self,
        name: &'a str,
        tombstones: [&'a str; 2],
        at_most: usize,
    ) -> Answering<'a, Option<Vec<u8>>>;

    /// Keeps a value under a name for so long at most, in place of one that may be there.
    fn put<'a>(&'a self, name: &'a str, value: Vec<u8>, keep_for: Duration) -> Answering<'a, ()>;

    /// Keeps a tombstone for so long at least, and then forgets the value under `name`.
    fn bury<'a>(
        &'a self,
        tombstone: &'a str,
        name: Option<&'a str>,
        keep_for: Duration,
    ) -> Answering<'a, ()>;
}

/// Why a cache did not do as it was asked. It costs a look at the row, no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// It could not be reached, or gave no answer. A few of these one after another, and it is left alone for
    /// some seconds.
    #[error("the replay cache is unavailable")]
    Unavailable,
    /// It answered that it would not: it is full, say, or the name holds something else.
    #[error("the replay cache refused")]
    Refused,
}

/// A cache in front of replays, and how much it is relied on; see
/// [`EngineBuilder::cached_replays`](crate::engine::EngineBuilder::cached_replays). The same on each node.
///
/// What is told from it is what the row would have told: each answer is sealed (HMAC-SHA-256) together with its
/// scope, its key, its definition and the fingerprint of its request, as the [codec](crate::codec) encoded it.
/// What does not open for a call (another request, another key's answer, garbage) is as good as nothing, and
/// the row is looked at.
///
/// An entry is written after the commit of the answer, never from a reading of the row, by a task that the answer
/// does not wait for. It counts until [`keep_for`](Self::keep_for) after that commit, and never past the
/// key's expiry, by the database's clock, whatever the cache thinks.
///
/// # Erasure
/// [`Engine::erase`](crate::Engine::erase) puts a tombstone into the cache, which outlives every entry that was
/// written or is still to be written, and returns once it is there. Where the cache does not confirm it, which is
/// logged, or loses it later, an erased answer may be told for what is left of [`keep_for`](Self::keep_for).
#[derive(Clone)]
#[must_use = "give it to EngineBuilder::cached_replays"]
pub struct CachedReplays {
    pub(crate) cache: Arc<dyn ReplayCache>,
    pub(crate) secret: Arc<[u8]>,
    pub(crate) keep_for: Duration,
    pub(crate) time_limit: Duration,
}

impl CachedReplays {
    /// Shortest secret, in bytes.
    pub const MIN_SECRET: usize = 32;

    /// Reads replays through `cache`. `secret`: 32 bytes or more from a random source, the same on each node,
    /// and another for each database, because a key's answer in one is no answer in another. With another secret
    /// the cache begins empty.
    pub fn new(cache: impl ReplayCache, secret: impl AsRef<[u8]>) -> Self {
        Self {
            cache: Arc::new(cache),
            secret: secret.as_ref().into(),
            keep_for: Duration::from_secs(600),
            time_limit: Duration::from_millis(50),
        }
    }

    /// How long after its commit an answer is told from the cache; 10 min. Most retries come within seconds.
    /// Later ones ask the database.
    pub fn keep_for(mut self, keep_for: Duration) -> Self {
        self.keep_for = keep_for;
        self
    }

    /// How long a call waits for the cache before it looks at the row; 50 ms. After three failures one after
    /// another the cache is left alone for five seconds.
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let (least, most) = (Self::MIN_SECRET as u64, 1024);
        number("CachedReplays::new (bytes of the secret)", self.secret.len(), least, most)?;
        duration("CachedReplays::keep_for", self.keep_for, MILLISECOND * 1000, DAY)?;
        duration("CachedReplays::time_limit", self.time_limit, MILLISECOND, MILLISECOND * 1000)
    }
}

/// Never the secret.
impl fmt::Debug for CachedReplays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedReplays")
            .field("keep_for", &self.keep_for)
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}
