//! [`Sweep`]: what a search of a worker came to.

use crate::engine::Driven;

/// The result of one search of a worker, in numbers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sweep {
    /// Finished.
    pub finished: u32,
    /// Stopped at a transient failure, and released again.
    pub released: u32,
    /// Unknown, newly or still.
    pub unknown: u32,
    /// Gave up at the cap.
    pub dead_letters: u32,
    /// Another holder was faster.
    pub lost: u32,
    /// Left to a node that knows their definition, phases or format (G14), or to any: their turn did not come here.
    pub left: u32,
    /// The store failed in between; a later search continues them.
    pub failed: u32,
}

impl Sweep {
    pub(super) fn count(&mut self, driven: Driven) {
        *match driven {
            Driven::Finished => &mut self.finished,
            Driven::Released => &mut self.released,
            Driven::Unknown => &mut self.unknown,
            Driven::DeadLetter => &mut self.dead_letters,
            Driven::Lost => &mut self.lost,
            Driven::Left | Driven::GivenBack => &mut self.left,
            Driven::Failed => &mut self.failed,
        } += 1;
    }

    /// How many requests there were in all.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.finished
            + self.released
            + self.unknown
            + self.dead_letters
            + self.lost
            + self.left
            + self.failed
    }
}
