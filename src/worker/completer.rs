//! [`Completer`]: runs what was accepted and resumes what was abandoned.

use std::future::Future;

use futures_util::future::join;

use super::dispatcher::Dispatcher;
use super::enroller::Enroller;
use super::requests::DueRequests;
use super::{Stop, WorkerConfig, looks, until_shutdown};
use crate::engine::{Driven, Engine};
use crate::store::{Right, Store, StoreError};

/// Runs accepted requests at once, and resumes released and abandoned ones, on any number of nodes.
///
/// A request is abandoned when its lease has run out. It is found by its entry in the index of due
/// rows, or, where its holder died before it was entered there, among the rows that were created one
/// lease ago.
///
/// # Fairness
///
/// Of the [`concurrency`](WorkerConfig::concurrency) slots one scope holds at most half, rounded up,
/// however long its requests take and however many of them are due. A request that takes longer than a
/// second most likely waits for a foreign system: it no longer occupies a slot, up to four times
/// `concurrency` in all. So a scope whose requests hang delays no other; where several hang at once,
/// another waits a second at most, and from eight of them on until the first of their calls ends, at
/// the latest by its time limit. Scopes take turns: the next request is of the scope that has the
/// fewest under way.
pub struct Completer<S: Store, A: Send + Sync + 'static> {
    requests: Dispatcher<DueRequests<S, A>>,
    enroller: Enroller<S, A>,
}

/// What one look of a worker came to, in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sweep {
    /// Finished.
    pub finished: u32,
    /// Stopped at a passing failure, and released again.
    pub released: u32,
    /// Ended unknown, or still are.
    pub unknown: u32,
    /// Gave up at the cap.
    pub dead_letters: u32,
    /// Somebody else was faster.
    pub lost: u32,
    /// Left to a node that knows their definition, phases or format (G14).
    pub left: u32,
    /// The store failed in between; whoever looks next goes on.
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
            Driven::Left => &mut self.left,
            Driven::Failed => &mut self.failed,
        } += 1;
    }

    /// How many requests were looked at.
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

impl<S: Store, A: Send + Sync + 'static> Completer<S, A> {
    /// A completer for the engine's requests.
    pub fn new(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        let source = DueRequests::new(engine, Right::Free, config.grace);
        Self {
            requests: Dispatcher::new(source, &config),
            enroller: Enroller::new(engine, &config),
        }
    }

    /// Works off what is due, from where the last call stopped: up to
    /// [`batch`](WorkerConfig::batch) requests, each driven to its end or to where it stops. Requests that
    /// are [left](Sweep::left) to another node, [lost](Sweep::lost) to one or [failed](Sweep::failed) do not
    /// count: however many of them there are, one call comes past them.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Sweep, StoreError> {
        self.requests.check()?;
        self.enroller.enrol_some().await?;
        self.requests.one_pass().await?;
        Ok(self.requests.source().take_swept())
    }

    /// Runs requests until `shutdown` is ready; what it has begun, it ends.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        // Beside each other: a row that is locked keeps the enroller waiting, and no request.
        let both = join(self.requests.forever(stop.set()), looks(&mut self.enroller, &stop));
        until_shutdown(&stop, both, shutdown).await;
    }
}

impl<S: Store, A: Send + Sync + 'static> std::fmt::Debug for Completer<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completer").finish_non_exhaustive()
    }
}
