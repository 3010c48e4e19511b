//! [`Census`]: counts what waits, for the gauges.

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use super::{More, Stop, Worker, WorkerConfig, looks, until_shutdown};
use crate::chance;
use crate::engine::{Core, Engine, PAUSED};
use crate::observe::gauges::{self, Versions};
use crate::ops::versions;
use crate::store::StoreError;
use crate::store::census::{Census as Counted, CensusLease};
use crate::store::operators::{Limits, OperatorStore};

/// Counts what waits, is due or is stranded, and tells it as gauges: see `docs/metrics.md`.
///
/// One process at a time does, by a lease in the database, and the others ask for it as often. Each search looks at
/// ten thousand rows of one index at most, in which no request is that goes well, and on the operators' connections:
/// it takes none from a request. What this process does not know any more, because another has the lease or because
/// the store is away, it does not go on telling: its gauges are no numbers (`NaN`) then.
pub struct Census<S: OperatorStore> {
    core: std::sync::Arc<Core<S>>,
    config: WorkerConfig,
    holder: Uuid,
    definitions: Vec<&'static str>,
    versions: Versions,
    /// The gauges say what this process has counted.
    is_told: bool,
}

impl<S: OperatorStore> Census<S> {
    /// A census of the engine's requests.
    pub fn new<A: Send + Sync + 'static>(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        let core = engine.core.clone();
        let definitions = core.known_names();
        let versions = Versions::new(core.known_versions());
        Self { core, config, holder: chance::uuid(), definitions, versions, is_told: false }
    }

    /// Counts once, unless another process does: says whether it has counted.
    ///
    /// # Errors
    /// [`StoreError`]; the gauges are no numbers then.
    pub async fn run_once(&mut self) -> Result<bool, StoreError> {
        self.config.check()?;
        let counted = self.count().await;
        if !matches!(counted, Ok(true)) {
            self.forget();
        }
        counted
    }

    /// Counts until `shutdown` is ready, and then lets another process do it.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, looks(&mut self, &stop), shutdown).await;
        if self.is_told {
            self.forget();
            // Else its lease ends by itself.
            let _ = self.claim(Duration::ZERO).await;
        }
    }

    async fn count(&mut self) -> Result<bool, StoreError> {
        // A process that is slow for once keeps it.
        if !self.claim(self.config.census_every.saturating_mul(3)).await? {
            return Ok(false);
        }
        let store = &self.core.store;
        let groups = store.unfinished(&Limits::default(), PAUSED).await?;
        let census = Counted { groups, jobs: store.job_census().await? };
        let nodes = versions(&store.nodes().await?);
        gauges::counted(&self.definitions, &self.core.tally(&census));
        self.versions.counted(&nodes);
        self.is_told = true;
        Ok(true)
    }

    fn claim(&self, length: Duration) -> impl Future<Output = Result<bool, StoreError>> + Send {
        self.core.store.claim_census(CensusLease { holder: self.holder, length })
    }

    fn forget(&mut self) {
        if std::mem::take(&mut self.is_told) {
            gauges::not_counted(&self.definitions);
            self.versions.not_counted();
        }
    }
}

/// Also where it panicked.
impl<S: OperatorStore> Drop for Census<S> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl<S: OperatorStore> Worker for Census<S> {
    const NAME: &'static str = "census";

    fn pace(&self) -> Duration {
        self.config.census_every
    }

    async fn look(&mut self, _: &Stop) -> Result<More, StoreError> {
        self.run_once().await?;
        Ok(More::No)
    }
}

impl<S: OperatorStore> std::fmt::Debug for Census<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Census").field("config", &self.config).finish_non_exhaustive()
    }
}
