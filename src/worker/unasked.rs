//! [`Unasked`]: unknown outcomes that were left to an operator alone, because the build that left them had no
//! reconcile function for the phase.

use std::time::Duration;

use super::{More, Stop, Worker, WorkerConfig};
use crate::engine::Engine;
use crate::store::StoreError;
use crate::store::operators::OperatorStore;

/// A part of the reconciler: a build that has the function comes with a deploy, so it looks at its start, and
/// rarely after it, for nodes of the build before that continue meanwhile.
pub(super) struct Unasked<S: OperatorStore> {
    engine: Engine<S>,
    every: Duration,
}

impl<S: OperatorStore> Unasked<S> {
    pub(super) fn new(engine: &Engine<S>, config: &WorkerConfig) -> Self {
        Self { engine: engine.clone(), every: config.full_sweep }
    }
}

impl<S: OperatorStore> Worker for Unasked<S> {
    const NAME: &'static str = "reconciler";

    fn pace(&self) -> Duration {
        self.every
    }

    async fn poll_once(&mut self, stop: &Stop) -> Result<More, StoreError> {
        self.engine.ask_about_unasked(|| stop.is_set()).await?;
        Ok(More::No)
    }
}
