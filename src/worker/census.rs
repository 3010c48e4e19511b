//! [`Census`]: counts waiting requests and jobs, for the gauges.

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use super::gauges::{self, Versions};
use super::{More, Stop, Worker, WorkerConfig, poll_until_stopped, until_shutdown};
use crate::chance;
use crate::engine::{Core, Engine, PAUSED};
use crate::ops::versions;
use crate::store::StoreError;
use crate::store::census::{Census as Counted, CensusLease};
use crate::store::operators::{OperatorStore, ScopeLimits};

/// Counts requests and jobs that wait, are due or are stranded, and exports the numbers as gauges: see
/// `docs/metrics.md`.
///
/// One process counts at a time, under a lease in the database; the others try to acquire that lease at the
/// same interval. Each search reads at most ten thousand rows of one index that contains no successful
/// requests. It shares a connection with the other workers, `/health/waiting` and (on PostgreSQL and MySQL) the engine's
/// reads of the pauses, so requests lose none, and it does not wait for operators' searches. A pool that the application
/// has made is different: see
/// [`Postgres::operators_pool`](crate::store::Postgres::operators_pool). If this process
/// can no longer know the numbers, because another has the lease or the store does not answer, its gauges become `NaN`.
pub struct Census<S: OperatorStore> {
    core: std::sync::Arc<Core<S>>,
    store: S,
    config: WorkerConfig,
    holder: Uuid,
    definitions: Vec<&'static str>,
    versions: Versions,
    /// The gauges say what this process has counted.
    is_told: bool,
}

impl<S: OperatorStore> Census<S> {
    /// A census of the engine's requests and jobs.
    pub fn new<A: Send + Sync + 'static>(engine: &Engine<S, A>, config: WorkerConfig) -> Self {
        let core = engine.core.clone();
        let store = core.store.for_workers();
        let definitions = core.known_names();
        let versions = Versions::new(core.known_versions());
        let holder = chance::uuid();
        Self { core, store, config, holder, definitions, versions, is_told: false }
    }

    /// Counts once, unless another process does. Returns whether it counted.
    ///
    /// # Errors
    /// [`StoreError`]; the gauges are then `NaN`.
    pub async fn run_once(&mut self) -> Result<bool, StoreError> {
        self.config.check()?;
        let counted = self.count().await;
        if !matches!(counted, Ok(true)) {
            self.forget();
        }
        counted
    }

    /// Counts until `shutdown` is ready, then releases the lease to another process.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, poll_until_stopped(&mut self, &stop), shutdown).await;
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
        let store = &self.store;
        let groups = store.unfinished(&ScopeLimits::default(), PAUSED).await?;
        let census = Counted { groups, jobs: store.job_census().await? };
        let nodes = versions(&store.nodes().await?);
        gauges::counted(&self.definitions, &self.core.tally(&census));
        self.versions.counted(&nodes);
        self.is_told = true;
        Ok(true)
    }

    fn claim(&self, length: Duration) -> impl Future<Output = Result<bool, StoreError>> + Send {
        self.store.claim_census(CensusLease { holder: self.holder, length })
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

    async fn poll_once(&mut self, _: &Stop) -> Result<More, StoreError> {
        self.run_once().await?;
        Ok(More::No)
    }
}

impl<S: OperatorStore> std::fmt::Debug for Census<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Census").field("config", &self.config).finish_non_exhaustive()
    }
}
