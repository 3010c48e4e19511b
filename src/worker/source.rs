//! [`Source`]: what a worker looks for, and what it does with it.

use std::future::Future;
use std::pin::Pin;

use super::backlog::Candidate;
use crate::store::{Page, StoreError};

pub(super) type Searching<C, P> =
    Pin<Box<dyn Future<Output = Result<Page<C, P>, StoreError>> + Send>>;

/// What a worker looks for, and what it does with it.
pub(super) trait Source: Send {
    type Place: Clone + Default + Send;
    type Found: Candidate;
    type Ended: Send + 'static;

    /// Whether a scope whose work ends quickly may have more of it under way: up to a batch, because the work
    /// waits by itself for its turn.
    const CLAIMS_AHEAD: bool = false;

    /// Which worker it is, for the log.
    fn name(&self) -> &'static str;

    /// A bounded part of the index, from a place on.
    fn search(&self, after: Self::Place, limit: u32) -> Searching<Self::Found, Self::Place>;

    /// Whether it is this worker's to begin.
    fn admits(&mut self, found: &Self::Found) -> bool;

    /// Whether it is refused at this moment only, and soon admitted, although nothing about its row changes.
    fn is_early(&self, found: &Self::Found) -> bool {
        let _ = found;
        false
    }

    /// Whether it may begin now, beside what is under way.
    fn may_begin(&self, found: &Self::Found) -> bool {
        let _ = found;
        true
    }

    /// How many of its [kind](Candidate::kind) have room beside what is under way. `None`: any number. Beyond that, it waits
    /// for others of its kind, however many slots are free.
    fn room_of_kind(&self, found: &Self::Found) -> Option<usize> {
        let _ = found;
        None
    }

    fn begin(&mut self, found: Self::Found) -> impl Future<Output = Self::Ended> + Send + 'static;

    /// All that may begin at this moment has.
    fn begun(&mut self) {}

    /// Nothing more begins; what waits for its turn need not.
    fn stop(&mut self) {}

    /// Counts its outcome.
    fn settle(&mut self, ended: Self::Ended) -> Settled;

    /// Ready when there is a reason to search earlier.
    fn wakeup(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// The outcome of a piece of work, for the pace of the searches.
pub(super) enum Settled {
    /// It continued.
    Progress,
    /// It continued, and what comes behind it may be due by now.
    MoreBehind,
    /// Another node has it.
    Lost,
    /// This process cannot continue it.
    Left,
    /// Going on with it failed.
    Failed,
}
