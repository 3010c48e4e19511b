//! [`Creation`]: a key is counted as created when its row is known to be durable, and once.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Core;
use crate::definition::FINISHED;
use crate::moment::Moment;
use crate::observe;
use crate::store::Store;

/// What one call knows of the row that it creates. It may send the row several times: of its commits one at most is
/// done, because all of them are of the same request id.
#[derive(Debug, Default)]
pub(super) struct Creation {
    /// Whether a commit of the row got no answer.
    is_unanswered: AtomicBool,
    is_counted: AtomicBool,
}

impl<S: Store> Core<S> {
    /// A commit that created its row and finished it got no answer, and was found to be done: what its answer would have
    /// been followed by.
    pub(super) fn finished_by_its_creation(&self, definition: &'static str, began: Moment) {
        observe::committed(FINISHED);
        observe::completed(definition, 1, began.elapsed());
        self.wakeups.staged.notify_one();
    }
}

impl Creation {
    /// A commit of the row is done.
    pub(super) fn committed(&self, definition: &'static str) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            observe::created(definition);
        }
    }

    /// A commit of the row got no answer.
    pub(super) fn unanswered(&self) {
        self.is_unanswered.store(true, Ordering::Relaxed);
    }

    /// The key was read, and has the row that this call would create.
    pub(super) fn found(&self, definition: &'static str) {
        if self.is_unanswered.load(Ordering::Relaxed) {
            self.committed(definition);
        }
    }

    /// Whether the row is known to have been there: it is never created again.
    pub(super) fn is_committed(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }

    /// Whether the row may be there without having been counted.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_unanswered.load(Ordering::Relaxed) && !self.is_counted.load(Ordering::Relaxed)
    }
}
