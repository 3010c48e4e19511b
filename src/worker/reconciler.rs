//! [`Reconciler`]: reconciles unknown outcomes.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join;

use super::dispatcher::Dispatcher;
use super::requests::DueRequests;
use super::sweep::Sweep;
use super::unasked::Unasked;
use super::{Stop, Worker, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::engine::Engine;
use crate::store::operators::OperatorStore;
use crate::store::{Right, StoreError};

/// Calls the `#[reconcile]` functions of requests whose outcome is unknown and that have rested for
/// [`reconcile_after`](crate::engine::EngineBuilder::reconcile_after). *Executed*: the output is stored and
/// the request continues. *Not executed*: the request is released, for a completer or a retry. *Still unknown*: the
/// function is called again, with back-off; past the cap the request is a dead letter, for an operator.
///
/// If a build without the function has left a request to an operator, a build with it calls it after the same rest.
///
/// Scopes share its slots as they share the [`Completer`](crate::worker::Completer)'s.
pub struct Reconciler<S: OperatorStore> {
    requests: Dispatcher<DueRequests<S>>,
    unasked: Unasked<S>,
}

impl<S: OperatorStore> Reconciler<S> {
    /// A reconciler for the engine's requests.
    pub fn new<A: Send + Sync + 'static>(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        let engine = engine.without_app();
        let source =
            DueRequests::new(&engine, Right::Reconcile, &config.clone().grace(Duration::ZERO));
        let unasked = Unasked::new(&engine, &config);
        Self { requests: Dispatcher::new(source, &config), unasked }
    }

    /// Reconciles due requests, from where the last call stopped: up to
    /// [`batch`](WorkerConfig::batch) requests, counted as by [`Completer::run_once`](crate::worker::Completer::run_once).
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be searched. Also if it refuses to change the row of an unknown outcome that a
    /// build without the reconcile function has left to an operator: the other outcomes are reconciled, and the next call
    /// counts them.
    pub async fn run_once(&mut self) -> Result<Sweep, StoreError> {
        self.requests.one_pass().await?;
        // An outcome that it enters rests first.
        self.unasked.poll_once(&Stop::default()).await?;
        Ok(self.requests.source().take_swept())
    }

    /// Reconciles requests until `shutdown` is ready; then finishes those that it has begun.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        let asking =
            join(self.requests.forever(stop.set()), poll_until_stopped(&mut self.unasked, &stop));
        until_shutdown(&stop, asking, shutdown).await;
    }
}

impl<S: OperatorStore> std::fmt::Debug for Reconciler<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").finish_non_exhaustive()
    }
}
