//! [`PoolSettings`]: how a store that reaches its server through a pool sets it up.

use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Manager, Pool, Timeouts};

use super::StoreError;
use crate::setting::{HOUR, MILLISECOND, duration, number};

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
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self { max_size: 16, wait: Duration::from_secs(5) }
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

    /// A pool with these settings, if they can work.
    pub(super) fn pool_of<M: Manager>(self, manager: M) -> Result<Pool<M>, StoreError> {
        number("PoolSettings::max_size", self.max_size, 1, 100_000)?;
        duration("PoolSettings::wait", self.wait, MILLISECOND, HOUR)?;
        Pool::builder(manager)
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
