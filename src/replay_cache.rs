//! A cache in front of replays: the engine looks for finished answers in it before it reads the database.
//!
//! It makes a replay cheaper, and correctness does not depend on it. Each entry is sealed under the
//! application's secret for one scope, one key and one request, and expires by the database's clock. So if a
//! cache loses, keeps, swaps or forges entries, hangs or is unavailable, the engine reads the row, and
//! nothing else changes. `docs/replay-cache.md` says when a cache helps and when it does harm.

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

/// The future that a [`ReplayCache`] returns.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, CacheError>> + Send + 'a>>;

/// Stores bytes under names, for a limited time. `RedisReplays` implements it (feature `redis`).
///
/// An implementation need not be correct or fast: the engine drops a call that takes longer than the [time
/// limit](CachedReplays::time_limit), and checks each value. Names are hashes under the application's secret,
/// at most 60 ASCII characters. A panic counts as [`CacheError::Unavailable`].
///
/// For an erasure to take effect immediately, an implementation must do two things: [`get`](Self::get) reads
/// the value *before* the tombstones, and [`bury`](Self::bury) writes the tombstone *before* it deletes the
/// value. If it does not, or loses a tombstone, an erased answer may be returned for at most
/// [`keep_for`](CachedReplays::keep_for).
pub trait ReplayCache: Send + Sync + 'static {
    /// The value under this name, or its first `at_most` bytes. `None` if there is none, or if one of the
    /// tombstones exists.
    fn get<'a>(
        &'a self,
        name: &'a str,
        tombstones: [&'a str; 2],
        at_most: usize,
    ) -> Answering<'a, Option<Vec<u8>>>;

    /// Stores a value under a name for at most this long, and replaces an existing one. An empty value is as good
    /// as none.
    fn put<'a>(&'a self, name: &'a str, value: Vec<u8>, keep_for: Duration) -> Answering<'a, ()>;

    /// Stores a tombstone for at least this long, and then deletes the value under `name`.
    fn bury<'a>(
        &'a self,
        tombstone: &'a str,
        name: Option<&'a str>,
        keep_for: Duration,
    ) -> Answering<'a, ()>;
}

/// Why a cache failed. The engine then reads the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// It could not be reached, did not answer, or is not the server that takes writes. After a few consecutive
    /// failures the engine does not use it for some seconds.
    #[error("the replay cache is unavailable; the database answers instead")]
    Unavailable,
    /// It refused, for example because it is full, or the name has a value of another kind.
    #[error("the replay cache refused; check its memory limit and the rights of its user")]
    Refused,
}

/// A cache in front of replays, with its settings; see
/// [`EngineBuilder::cached_replays`](crate::engine::EngineBuilder::cached_replays). Use the same settings on
/// each node.
///
/// An answer from the cache is the answer that the row has. Each is sealed (HMAC-SHA-256) together with its
/// scope, key, definition and fingerprint, and encoded by the [codec](crate::codec). A value that does not
/// open for a call (another request, another key's answer, garbage) is ignored, and the engine reads the row.
///
/// A background task writes an entry after the commit of the answer, never from a read of the row. The entry
/// is valid until [`keep_for`](Self::keep_for) after that commit, and at most until the key expires, by the
/// database's clock.
///
/// # Erasure
/// [`Engine::erase`](crate::Engine::erase) writes a tombstone into the cache and returns when it is stored.
/// The tombstone outlives every entry written before it, and every entry that a task writes late. If the
/// cache does not confirm it (the engine logs this, and sends it again), or loses it later, an erased answer may
/// be returned for the rest of [`keep_for`](Self::keep_for).
#[derive(Clone)]
#[must_use = "give it to EngineBuilder::cached_replays"]
pub struct CachedReplays {
    pub(crate) cache: Arc<dyn ReplayCache>,
    pub(crate) secret: Arc<[u8]>,
    pub(crate) keep_for: Duration,
    pub(crate) time_limit: Duration,
    pub(crate) hint_for: Option<Duration>,
}

impl CachedReplays {
    /// Shortest secret, in bytes.
    pub const MIN_SECRET: usize = 32;

    /// Reads replays through `cache`. `secret` is at least 32 bytes from a random source. Use the same secret
    /// on each node and a different one for each database, because an answer of one database must not be
    /// returned by another. With another secret the cache begins empty.
    pub fn new(cache: impl ReplayCache, secret: impl AsRef<[u8]>) -> Self {
        Self {
            cache: Arc::new(cache),
            secret: secret.as_ref().into(),
            keep_for: Duration::from_secs(600),
            time_limit: Duration::from_millis(50),
            hint_for: None,
        }
    }

    /// How long after its commit an answer is returned from the cache; default 10 min. Most retries come
    /// within seconds; later ones read the database.
    pub fn keep_for(mut self, keep_for: Duration) -> Self {
        self.keep_for = keep_for;
        self
    }

    /// How long a call waits for the cache before it reads the row; default 50 ms. After three consecutive
    /// failures the engine does not use the cache for five seconds.
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Also writes a hint that a request is in progress while one of its foreign calls is under way: for this long, and
    /// at most for the rest of the lease, a duplicate is then answered `Outcome::InProgress` without a read of the row.
    /// Off by default, because each foreign call costs two more writes into the cache.
    ///
    /// A hint never lets a call run. It is withdrawn when the call ends, before the request's outcome is returned. If
    /// the holder dies, or the cache does not receive the withdrawal in time, retries are told *in progress* until the
    /// hint ends: choose seconds.
    pub fn hint_in_progress(mut self, hint_for: Duration) -> Self {
        self.hint_for = Some(hint_for);
        self
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let (least, most) = (Self::MIN_SECRET as u64, 1024);
        number("CachedReplays::new (bytes of the secret)", self.secret.len(), least, most)?;
        duration("CachedReplays::keep_for", self.keep_for, MILLISECOND * 1000, DAY)?;
        duration("CachedReplays::time_limit", self.time_limit, MILLISECOND, MILLISECOND * 1000)?;
        self.hint_for.map_or(Ok(()), |hint_for| {
            let (least, most) = (MILLISECOND * 100, MILLISECOND * 60_000);
            duration("CachedReplays::hint_in_progress", hint_for, least, most)
        })
    }
}

/// Never the secret.
impl fmt::Debug for CachedReplays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedReplays")
            .field("keep_for", &self.keep_for)
            .field("time_limit", &self.time_limit)
            .field("hint_for", &self.hint_for)
            .finish_non_exhaustive()
    }
}
