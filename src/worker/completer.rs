//! [`Completer`]: runs accepted requests and resumes abandoned ones.

use std::future::Future;

use futures_util::future::join;

use super::dispatcher::Dispatcher;
use super::enroller::Enroller;
use super::requests::DueRequests;
use super::sweep::Sweep;
use super::{Stop, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::engine::Engine;
use crate::store::{Right, Store, StoreError};

/// Runs accepted requests immediately, and resumes released and abandoned ones, on any number of nodes.
///
/// A request is abandoned when its lease has expired. The completer finds it in the index of due
/// rows, or, if its holder died before the row was added there, among the rows that were created one
/// lease ago.
///
/// # Fairness
///
/// One scope holds at most half of the [`concurrency`](WorkerConfig::concurrency) slots, rounded up,
/// however long its requests take and however many of them are due. A request that takes longer than a
/// second most likely waits for a foreign system: it no longer occupies a slot, up to four times
/// `concurrency` in total. So a scope whose requests hang delays no other. If several scopes hang,
/// another scope waits for at most a second; if eight or more hang, it waits until the first of their calls ends, at
/// the latest by its time limit. Scopes alternate: the next request is from the scope with the
/// fewest requests under way.
///
/// However many requests of one scope are due, one of another scope that becomes due behind them is found within about two
/// [polls](WorkerConfig::poll). A completer that has just started first reads past them, page by page, each followed by a
/// rest of four times what it took. A page takes a few milliseconds. It has a thousand rows while none of the completer's
/// requests ends, and a hundred while some do; or a [batch](WorkerConfig::batch), if that is more. So a completer of which no
/// request ends reads past a hundred thousand requests in a hundred pages; a busy one needs a thousand pages, each followed by
/// a rest.
pub struct Completer<S: Store> {
    requests: Dispatcher<DueRequests<S>>,
    enroller: Enroller<S>,
}

impl<S: Store> Completer<S> {
    /// A completer for the engine's requests.
    pub fn new<A: Send + Sync + 'static>(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        let engine = engine.without_app();
        let source = DueRequests::new(&engine, Right::Free, &config);
        Self {
            requests: Dispatcher::new(source, &config),
            enroller: Enroller::new(&engine, &config),
        }
    }

    /// Processes due requests, from where the last call stopped: up to
    /// [`batch`](WorkerConfig::batch) requests, each driven until it ends or stops. Requests that
    /// are [left](Sweep::left) to another node, [lost](Sweep::lost) to one or [failed](Sweep::failed) do not
    /// count: one call passes over any number of them.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Sweep, StoreError> {
        let left = self.requests.one_pass().await?;
        // That may read the whole table: what is due does not wait for it.
        if self.enroller.enrol_some().await? > 0 {
            self.requests.source().end_pass();
            self.requests.pass_of(left).await?;
        }
        Ok(self.requests.source().take_swept())
    }

    /// Runs requests until `shutdown` is ready; then finishes those that it has begun.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        // Beside each other: a row that is locked keeps the enroller waiting, and no request.
        let both =
            join(self.requests.forever(stop.set()), poll_until_stopped(&mut self.enroller, &stop));
        until_shutdown(&stop, both, shutdown).await;
    }
}

impl<S: Store> std::fmt::Debug for Completer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completer").finish_non_exhaustive()
    }
}
