//! [`PoolSettings`]: how a store that reaches its server through a pool sets it up.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use deadpool::Runtime;
use deadpool::managed::{Hook, HookError, Manager, Pool, Timeouts};

use super::StoreError;
use crate::chance;
use crate::setting::{CENTURY, HOUR, MILLISECOND, duration, number};

/// The settings of a pool that a store's `connect_with` opens.
///
/// ```
/// # use std::time::Duration;
/// use atomic_phases::store::PoolSettings;
///
/// let pool = PoolSettings::default().max_size(32).wait(Duration::from_secs(2));
/// # let _ = pool;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct PoolSettings {
    pub(super) max_size: usize,
    pub(super) wait: Duration,
    max_age: Duration,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self { max_size: 16, wait: Duration::from_secs(5), max_age: HOUR / 2 }
    }
}

impl PoolSettings {
    /// The largest number of connections; default 16: 4 to 8 for each core of a small server.
    pub fn max_size(self, max_size: usize) -> Self {
        Self { max_size, ..self }
    }

    /// How long to wait for one, and for the server to accept a new one; default 5 s. Then the
    /// request is answered with 503 and nothing runs (G12).
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// How long a connection is used at most; default half an hour. Then it is closed when a request would take it out of the
    /// pool, and another is opened. Each connection is used for up to a tenth less, by chance, so that those that were opened
    /// together, when the processes of a deployment started, are not replaced together.
    ///
    /// A server's session remembers a schema that a migration has changed since (the type of a
    /// function's variable, say), and stays on the server that it reached when the name led there: nothing says so, and this
    /// is how long it lasts at most. Where the server limits the connections of the user, leave room for one more: the server
    /// may still count the one that is closed when the other one is opened.
    pub fn max_age(self, max_age: Duration) -> Self {
        Self { max_age, ..self }
    }

    /// A pool with these settings, if they can work.
    pub(super) fn pool_of<M: Manager>(self, manager: M) -> Result<Pool<M>, StoreError> {
        number("PoolSettings::max_size", self.max_size, 1, 100_000)?;
        duration("PoolSettings::wait", self.wait, MILLISECOND, HOUR)?;
        duration("PoolSettings::max_age", self.max_age, MILLISECOND, CENTURY)?;
        let (max_age, seed) = (self.max_age, chance::number());
        let is_young = Hook::sync_fn(move |_, metrics| {
            match metrics.age() <= lifetime(max_age, seed, metrics.created) {
                true => Ok(()),
                false => Err(HookError::message("it is old")),
            }
        });
        Pool::builder(manager)
            .pre_recycle(is_young)
            .max_size(self.max_size)
            .timeouts(Timeouts {
                wait: Some(self.wait),
                create: Some(self.wait),
                recycle: Some(self.wait),
            })
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Configuration(error.to_string()))
    }
}

/// How long a connection that was opened then is used: up to a tenth less than `max_age`. It is the same whenever it is asked,
/// because the chance is a hash of the moment; and the pools of processes that start together have other seeds.
fn lifetime(max_age: Duration, seed: u32, opened: Instant) -> Duration {
    let mut chance = DefaultHasher::new();
    (seed, opened).hash(&mut chance);
    let fraction = chance.finish() as f64 / u64::MAX as f64;
    max_age - (max_age / 10).mul_f64(fraction)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU32, Ordering};

    use deadpool::managed::{Metrics, RecycleResult};

    use super::*;

    #[test]
    fn connections_that_are_opened_together_are_not_replaced_together() {
        let (max_age, now) = (HOUR / 2, Instant::now());
        let opened = || (0..100).map(|micros| now + Duration::from_micros(micros));
        let lifetimes = |seed| -> Vec<Duration> {
            opened().map(|opened| lifetime(max_age, seed, opened)).collect()
        };
        let drawn = lifetimes(1);
        assert_eq!(lifetimes(1), drawn, "a connection keeps its own");
        assert_ne!(lifetimes(2), drawn, "another process has others");
        let range = max_age - max_age / 10..=max_age;
        assert!(drawn.iter().all(|lifetime| range.contains(lifetime)), "{drawn:?}");
        let minutes: BTreeSet<u64> = drawn.iter().map(|time| time.as_secs() / 60).collect();
        assert!(minutes.len() >= 3, "{minutes:?}");
    }

    /// Its connections are numbers.
    struct Numbers(AtomicU32);

    impl Manager for Numbers {
        type Type = u32;
        type Error = ();

        async fn create(&self) -> Result<u32, ()> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed))
        }

        async fn recycle(&self, _: &mut u32, _: &Metrics) -> RecycleResult<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_old_is_not_used_again() {
        let old = Duration::from_millis(50);
        for (max_age, expected) in [(old, 1), (HOUR, 0)] {
            let settings = PoolSettings::default().max_size(1).max_age(max_age);
            let pool = settings.pool_of(Numbers(AtomicU32::new(0))).unwrap();
            assert_eq!(*pool.get().await.unwrap(), 0);
            tokio::time::sleep(2 * old).await;
            assert_eq!(*pool.get().await.unwrap(), expected, "{max_age:?}");
            assert_eq!(pool.status().size, 1);
        }
        let settings = PoolSettings::default().max_age(Duration::ZERO);
        assert!(settings.pool_of(Numbers(AtomicU32::new(0))).is_err());
    }
}
