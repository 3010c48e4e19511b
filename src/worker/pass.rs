//! [`Until`]: for how long a worker continues, and how much a single pass may still begin.

use tokio::time::Instant;

use super::slots::LONG;
use crate::number::to_u32;
use crate::store::StoreError;

/// For how long to continue.
pub(super) enum Until {
    Shutdown,
    /// The end of one pass, or of as many pieces of work that continued as a batch has. Once nothing was begun
    /// for as long as [`LONG`], the scopes that wait for their own work make room for others, which the pass
    /// goes on to look for; at its end they are left to the next pass (G16).
    PassEnds(PassBudget),
}

/// What a single pass may still begin.
pub(super) struct PassBudget {
    batch: u32,
    /// How much it has begun, without what came to nothing.
    begun: u32,
    /// When nothing will have begun for as long as [`LONG`].
    stalls: Instant,
    is_stalled: bool,
    /// Whether it was once, while work waited.
    has_stalled: bool,
    /// Why the pass ends early.
    pub(super) failed: Option<StoreError>,
}

impl PassBudget {
    pub(super) fn new(batch: u32) -> Self {
        Self {
            batch,
            begun: 0,
            stalls: Instant::now() + LONG,
            is_stalled: false,
            has_stalled: false,
            failed: None,
        }
    }

    /// So much was begun now, and so much waits.
    pub(super) fn count(&mut self, begun: u32, waiting: usize) {
        let now = Instant::now();
        self.begun += begun;
        if begun > 0 {
            self.stalls = now + LONG;
        }
        self.is_stalled = self.stalls <= now;
        self.has_stalled |= waiting > 0 && self.is_stalled;
    }

    pub(super) fn came_to_nothing(&mut self, ended: u32) {
        self.begun = self.begun.saturating_sub(ended);
    }

    /// When to count again, because the pass has stalled by then: where so much waits.
    pub(super) fn stalls_at(&self, waiting: usize) -> Option<Instant> {
        (waiting > 0 && !self.is_stalled).then_some(self.stalls)
    }

    /// Whether what waits is left to the next pass, once this one searches no more.
    pub(super) fn leaves_what_waits(&self) -> bool {
        self.has_stalled && self.is_stalled
    }

    /// How much a search may find, while so much waits.
    pub(super) fn limit(&self, waiting: usize) -> u32 {
        match self.left() {
            0 => 0,
            _ if self.has_stalled => self.batch,
            left => left.saturating_sub(to_u32(waiting)),
        }
    }

    /// How much may be begun.
    pub(super) fn left(&self) -> u32 {
        self.batch.saturating_sub(self.begun)
    }
}
