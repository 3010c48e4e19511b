//! [`Patience`]: how a statement waits for what another transaction has locked, without a connection (G16).

use std::time::{Duration, Instant};

/// The pauses between two looks at what another transaction does: without a connection, and bounded.
pub(crate) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    pub(crate) fn new(bound: Duration) -> Self {
        Self { until: Instant::now() + bound, pause: Duration::from_millis(5) }
    }

    /// Pauses, each time for longer; `false` where the bound has passed.
    pub(crate) async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(200));
        !left.is_zero()
    }
}
