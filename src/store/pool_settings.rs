//! [`PoolSettings`]: how a store that reaches its server through a pool sets it up.

use std::time::Duration;

/// The settings of a pool that a store's `connect_with` opens.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// The largest number of connections. Default 16: 4 to 8 for each core of a small server.
    pub max_size: usize,
    /// How long to wait for one, and for the server to accept a new one. Default 5 s; then the
    /// request is answered with 503 and nothing runs (G12).
    pub wait: Duration,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self { max_size: 16, wait: Duration::from_secs(5) }
    }
}
