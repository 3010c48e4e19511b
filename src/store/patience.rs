//! [`Patience`]: how a statement waits for what another transaction has locked, without a connection (G16).

use std::time::Duration;

use tokio::time::Instant;

use super::StoreError;

/// How long a write waits for a row whose lock another transaction holds: a holder in its own commit, or one
/// that lost its network, until the server notices (H13).
#[cfg(any(feature = "postgres", feature = "simulation"))]
pub(super) const LOCKED_WAIT: Duration = Duration::from_secs(1);

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

/// Asks until what it asks for is not locked by another transaction any more, for [`LOCKED_WAIT`] at most.
#[cfg(any(feature = "postgres", feature = "simulation"))]
pub(super) async fn patiently<R, F>(ask: impl Fn() -> F) -> Result<R, StoreError>
where
    F: Future<Output = Result<R, StoreError>>,
{
    patiently_for(LOCKED_WAIT, ask).await
}

/// The same for so long: a store may have another bound.
pub(super) async fn patiently_for<R, F>(
    bound: Duration,
    ask: impl Fn() -> F,
) -> Result<R, StoreError>
where
    F: Future<Output = Result<R, StoreError>>,
{
    let mut patience = Patience::new(bound);
    loop {
        match ask().await {
            Err(StoreError::Locked) if patience.pause().await => {}
            answer => return answer,
        }
    }
}
