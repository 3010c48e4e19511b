//! [`Latch`]: something that happens once, and that others may wait for.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether it has happened. A few words, where a watch channel, which has room for many receivers, takes half a kilobyte.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_set: AtomicBool,
    set: Notify,
}

impl Latch {
    /// From now on it has happened: all that wait for it continue.
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.set.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Until it has happened.
    pub(crate) async fn reached(&self) {
        let mut set = pin!(self.set.notified());
        // First listen, then look.
        set.as_mut().enable();
        if !self.is_set() {
            set.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_ends_whether_it_begins_before_or_after() {
        let latch = Latch::default();
        let before = latch.reached();
        tokio::join!(biased; before, async {
            assert!(!latch.is_set());
            latch.set();
        });
        latch.reached().await;
        assert!(latch.is_set());
    }
}
