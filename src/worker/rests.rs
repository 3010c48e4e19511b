//! [`Rests`]: rows that a worker has looked at in vain, and does not look at again for a while.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// How long a row that this process cannot continue is left alone (G14): a newer one may come, or an
/// operator.
const LEFT: Duration = Duration::from_secs(60);

/// How long a row rests whose drive failed: from the first to the longest.
const FAILED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How many rows are remembered: a few megabytes. What is forgotten is looked at once more.
const REMEMBERED: usize = 50_000;

/// By a hash of row and state: a row that changed is another one.
pub(super) struct Rests {
    hasher: RandomState,
    rests: HashMap<u64, Rest>,
    /// How long what failed rests: from the first time to the longest.
    failed: [Duration; 2],
}

struct Rest {
    until: Instant,
    failures: u32,
}

impl Rests {
    pub(super) fn new() -> Self {
        Self::of(FAILED)
    }

    /// Of rows that rest so long when they failed: from the first time to the longest.
    pub(super) fn of(failed: [Duration; 2]) -> Self {
        Self { hasher: RandomState::new(), rests: HashMap::new(), failed }
    }

    pub(super) fn is_resting(&self, row: &impl Hash) -> bool {
        let rest = self.rests.get(&self.hasher.hash_one(row));
        rest.is_some_and(|rest| Instant::now() < rest.until)
    }

    /// This process cannot continue it.
    pub(super) fn leave(&mut self, row: &impl Hash) {
        self.put(row, LEFT, 0);
    }

    /// Going on with it failed.
    pub(super) fn fail(&mut self, row: &impl Hash) {
        let before = self.rests.get(&self.hasher.hash_one(row)).map_or(0, |rest| rest.failures);
        let [first, longest] = self.failed;
        let rest = first.saturating_mul(1 << before.min(10)).min(longest);
        self.put(row, rest, before + 1);
    }

    fn put(&mut self, row: &impl Hash, rest: Duration, failures: u32) {
        let now = Instant::now();
        if self.rests.len() >= REMEMBERED {
            self.rests.retain(|_, rest| now < rest.until);
        }
        if self.rests.len() < REMEMBERED {
            self.rests.insert(self.hasher.hash_one(row), Rest { until: now + rest, failures });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn g17_what_was_left_or_failed_rests_and_is_read_again() {
        let mut rests = Rests::new();
        rests.leave(&("left", 1));
        rests.fail(&("failed", 1));
        assert!(rests.is_resting(&("left", 1)) && rests.is_resting(&("failed", 1)));
        assert!(!rests.is_resting(&("left", 2)), "the row changed");
        tokio::time::advance(FAILED[0]).await;
        assert!(!rests.is_resting(&("failed", 1)));
        rests.fail(&("failed", 1));
        tokio::time::advance(FAILED[0]).await;
        assert!(rests.is_resting(&("failed", 1)), "longer each time");
        for _ in 0..10 {
            rests.fail(&("failed", 1));
        }
        tokio::time::advance(FAILED[1]).await;
        assert!(!rests.is_resting(&("failed", 1)) && !rests.is_resting(&("left", 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded() {
        let mut rests = Rests::new();
        for row in 0..REMEMBERED + 10 {
            rests.leave(&row);
        }
        assert_eq!(rests.rests.len(), REMEMBERED);
        tokio::time::advance(LEFT).await;
        rests.leave(&0);
        assert_eq!(rests.rests.len(), 1);
    }
}
