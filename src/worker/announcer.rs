//! [`Announcer`]: registers this process for operators to see.

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use super::{More, Stop, Worker, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::chance;
use crate::engine::Engine;
use crate::store::StoreError;
use crate::store::nodes::NodeEntry;
use crate::store::operators::OperatorStore;

/// How often. Four times within the minute after which a process counts as gone.
const EVERY: Duration = Duration::from_secs(15);

/// How long the end of a process waits for its last word.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Records every 15 seconds that this process runs, and which definitions it knows, for
/// [`Ops::nodes`](crate::ops::Ops::nodes) and [`Ops::definitions`](crate::ops::Ops::definitions). No request
/// depends on this record.
///
/// [`spawn_workers`](Engine::spawn_workers) runs one. A process that only serves requests may run its own.
pub struct Announcer<S: OperatorStore> {
    engine: Engine<S>,
    config: WorkerConfig,
    id: Uuid,
}

impl<S: OperatorStore> Announcer<S> {
    /// An announcer with a new id for this run of the process. [`WorkerConfig::node`] sets its name.
    pub fn new<A: Send + Sync + 'static>(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        Self { engine: engine.without_app(), config, id: chance::uuid() }
    }

    /// Writes the record once.
    ///
    /// # Errors
    /// [`StoreError`]; a later call makes up for it.
    pub async fn run_once(&mut self) -> Result<(), StoreError> {
        self.config.check()?;
        let (name, build) = self.config.node.clone();
        let definitions = self.engine.announced();
        self.engine.store().announce(&NodeEntry { id: self.id, name, build, definitions }).await
    }

    /// Writes the record until `shutdown` is ready, then deletes it.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, poll_until_stopped(&mut self, &stop), shutdown).await;
        let _ = tokio::time::timeout(LAST_WORD, self.engine.store().depart(self.id)).await;
    }
}

impl<S: OperatorStore> Worker for Announcer<S> {
    const NAME: &'static str = "announcer";

    fn pace(&self) -> Duration {
        EVERY
    }

    async fn poll_once(&mut self, _: &Stop) -> Result<More, StoreError> {
        self.run_once().await.map(|()| More::No)
    }
}

impl<S: OperatorStore> std::fmt::Debug for Announcer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcer").field("id", &self.id).finish_non_exhaustive()
    }
}
