//! [`Reconciler`]: looks into what nobody knows.

use std::future::Future;
use std::time::Duration;

use super::completer::Sweep;
use super::dispatcher::Dispatcher;
use super::requests::DueRequests;
use super::{Stop, WorkerConfig, until_shutdown};
use crate::engine::Engine;
use crate::store::{Right, Store, StoreError};

/// Asks the `#[reconcile]` functions of requests whose outcome is unknown and that have rested for
/// [`reconcile_after`](crate::engine::EngineBuilder::reconcile_after). *Executed*: its output is stored and
/// the request goes on. *Not executed*: released, for a completer or a retry. *Still unknown*: later,
/// with back-off; past the cap it is a dead letter, for an operator.
///
/// Scopes share its slots as they share the [`Completer`](crate::worker::Completer)'s.
pub struct Reconciler<S: Store, A: Send + Sync + 'static> {
    requests: Dispatcher<DueRequests<S, A>>,
}

impl<S: Store, A: Send + Sync + 'static> Reconciler<S, A> {
    /// A reconciler for the engine's requests.
    pub fn new(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        let source = DueRequests::new(engine, Right::Reconcile, Duration::ZERO);
        Self { requests: Dispatcher::new(source, &config) }
    }

    /// Looks into what is due, from where the last call stopped: up to
    /// [`batch`](WorkerConfig::batch) requests, as [`Completer::run_once`](crate::worker::Completer::run_once) does.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Sweep, StoreError> {
        self.requests.one_pass().await?;
        Ok(self.requests.source().take_swept())
    }

    /// Looks into requests until `shutdown` is ready; what it has begun, it ends.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, self.requests.forever(stop.set()), shutdown).await;
    }
}

impl<S: Store, A: Send + Sync + 'static> std::fmt::Debug for Reconciler<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler").finish_non_exhaustive()
    }
}
