//! [`Moment`]: every reading of this machine's monotonic clock that a decision of the engine rests on.
//!
//! A lease is measured from a moment *before* the statement that acquires or renews it was sent: the
//! database counts from when it executes the statement, which is later, and its answer may be read later by
//! any length of time. So what this process believes ends before what the database grants.
//!
//! On Linux and Android the clock is `CLOCK_BOOTTIME`, which continues while the machine is suspended.
//! Elsewhere it is [`Instant`], which on some systems (macOS) stands still in a suspend: a process
//! that was suspended there with its machine notices the end of its lease only at its next
//! statement, which is fenced.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// This machine's wall clock, for what is only reported: no decision rests on it. Simulated time where that runs.
pub(crate) fn wall_clock() -> DateTime<Utc> {
    simulated! {
        if let Some(elapsed) = crate::simulation::elapsed() {
            return DateTime::UNIX_EPOCH + elapsed;
        }
    }
    Utc::now()
}

/// A reading of the monotonic clock. Compared only with readings of the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = reading();
        simulated! { let now = crate::simulation::elapsed().unwrap_or(now); }
        // A task that an explorer held for longer than its lease reads a clock that has gone on.
        faults! { let now = now + crate::fault::stood_still_for(); }
        Self(now)
    }

    /// How long ago it was.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// From `earlier` to this; zero where `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This much later.
    pub(crate) fn after(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn reading() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Since boot, so neither part is negative.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn reading() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGINNING.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_follow_each_other_and_never_overflow() {
        let first = Moment::now();
        let second = Moment::now();
        assert!(second >= first && first.since(second) == Duration::ZERO);
        assert!(first.after(Duration::MAX) > second);
        assert_eq!(first.after(Duration::from_secs(3)).since(first), Duration::from_secs(3));
    }
}
