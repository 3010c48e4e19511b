//! [`LeftSessions`]: when the sessions of a pool were left last, because new ones may do better.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::lock;

/// When all sessions were left last: once in so many seconds at most.
#[derive(Debug, Default)]
pub(super) struct LeftSessions<const SECONDS: u64>(Mutex<Option<Instant>>);

/// Those on a server that is read only. One that stays so, and serves replays, would have each of them on a connection of its
/// own, if they were left each time (G16).
pub(super) type ReadOnlyServer = LeftSessions<1>;

impl<const SECONDS: u64> LeftSessions<SECONDS> {
    /// Whether they are to be left now: then this is the last time.
    pub(super) fn is_to_be_left(&self, now: Instant) -> bool {
        let mut last = lock(&self.0);
        let every = Duration::from_secs(SECONDS);
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= every);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    /// Whether that was later than a connection was opened, or taken from its pool.
    pub(super) fn was_left_since(&self, then: Instant) -> bool {
        lock(&self.0).is_some_and(|last| last >= then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g16_a_server_that_is_read_only_is_left_once_a_second_at_most() {
        let (server, now) = (ReadOnlyServer::default(), Instant::now());
        let due = [0, 0, 999, 1000, 1001, 1999, 2000]
            .map(|millis| server.is_to_be_left(now + Duration::from_millis(millis)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
        assert!(!server.is_to_be_left(now), "an earlier reading, of another task");
        let last = now + Duration::from_secs(2);
        let opened = [0, 2000, 2001]
            .map(|millis| server.was_left_since(now + Duration::from_millis(millis)));
        assert_eq!((opened, server.was_left_since(last)), ([true, true, false], true));
    }
}
