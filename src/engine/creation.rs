//! [`Creation`]: a key is counted as created when its row is known to be durable, and once; and what follows if that is known
//! late.

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
    /// The key was read, and has the row that this call would create. If that is how the call hears of its commit, the
    /// workers have not been woken for what it stored: a request for them, or jobs.
    pub(super) fn creation_found(&self, creation: &Creation, definition: &'static str) {
        if creation.found(definition) {
            self.wakeups.accepted.notify_one();
            self.wakeups.staged.notify_one();
        }
    }

    /// The row of such a call is finished, by the commit that created it.
    pub(super) fn creation_finished(&self, definition: &'static str, began: Moment) {
        observe::committed(FINISHED);
        observe::completed(definition, 1, began.elapsed());
    }
}

impl Creation {
    /// A commit of the row is done. Returns whether this is the first time that it is known.
    pub(super) fn committed(&self, definition: &'static str) -> bool {
        let is_new = !self.is_counted.swap(true, Ordering::Relaxed);
        if is_new {
            observe::created(definition);
        }
        is_new
    }

    /// A commit of the row got no answer.
    pub(super) fn unanswered(&self) {
        self.is_unanswered.store(true, Ordering::Relaxed);
    }

    /// The key was read, and has the row that this call would create. Returns whether only this tells of its commit.
    fn found(&self, definition: &'static str) -> bool {
        self.is_unanswered.load(Ordering::Relaxed) && self.committed(definition)
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
