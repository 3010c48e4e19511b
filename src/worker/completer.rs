//! [`Completer`]: runs what was accepted and resumes what was abandoned.

use std::future::Future;
use std::time::{Duration, Instant};

use super::{More, Stop, Worker, WorkerConfig, each, run};
use crate::engine::{Driven, Engine};
use crate::key::{IdempotencyKey, Scope};
use crate::store::{Created, Due, Right, Store, StoreError};

/// How old a request is at most when it first shows in the index of due rows: see `run_after` in the
/// guarded update. Plus what a commit may take.
const ENROLLED_BY: Duration = Duration::from_secs(10);

/// Runs accepted requests at once, and resumes released and abandoned ones, on any number of nodes.
///
/// A request is abandoned when its lease has run out. It is found by its entry in the index of due
/// rows, or, where its holder died before it was entered there, among the rows that were created one
/// lease ago.
pub struct Completer<S: Store, A> {
    engine: Engine<S, A>,
    config: WorkerConfig,
    /// Due rows at the head that nobody here can drive on (G14).
    skip: u32,
    swept: Sweeps,
}

/// When the young rows, and when all rows were last swept.
struct Sweeps {
    young: Option<Instant>,
    full: Option<Instant>,
}

/// What one look of a worker came to, in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
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
    /// Left to a node that knows their definition (G14).
    pub left: u32,
    /// The store failed in between; whoever looks next goes on.
    pub failed: u32,
}

impl Swept {
    fn count(&mut self, driven: Driven) {
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

    /// How many of them stay at the head of what is due, where they must not stand in the way of
    /// those behind.
    pub(super) fn stuck(&self) -> u32 {
        self.left + self.failed
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
        Self { engine: engine.clone(), config, skip: 0, swept: Sweeps { young: None, full: None } }
    }

    /// One look: up to [`batch`](WorkerConfig::batch) requests of either kind, each driven to its end
    /// or to where it stops.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Swept, StoreError> {
        self.sweep(&Stop::default()).await
    }

    /// Looks until `shutdown` is ready; what it has begun, it ends.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run(self, shutdown).await;
    }

    async fn sweep(&mut self, stop: &Stop) -> Result<Swept, StoreError> {
        let store = self.engine.store();
        let (batch, grace) = (self.config.batch, self.config.grace);
        let mut keys = store.due(Due::Resume { grace }, batch, self.skip).await?;
        let is_full_batch = keys.len() as u32 == batch;
        let now = Instant::now();
        let created = self.young(now);
        let abandoned = store.due(Due::Abandoned { created, grace }, batch, 0).await?;
        // More than a batch of them: the same again at the next look.
        if (abandoned.len() as u32) < batch {
            self.swept.young = Some(now);
            if created.is_none() {
                self.swept.full = Some(now);
            }
        }
        keys.extend(abandoned);
        let swept = drive(&self.engine, keys, Right::Free, self.config.concurrency, stop).await;
        self.skip = if is_full_batch { self.skip.saturating_add(swept.stuck()) } else { 0 };
        Ok(swept)
    }

    /// Which rows the last look cannot have seen; `None` where it is time to read all of them.
    fn young(&self, now: Instant) -> Option<Created> {
        let since = |then: Instant| now.saturating_duration_since(then);
        self.swept.full.filter(|then| since(*then) < self.config.full_sweep)?;
        let (lease, retention) = (self.engine.settings().lease, self.engine.settings().retention);
        let from = lease + since(self.swept.young?) + ENROLLED_BY + self.config.grace;
        Some(Created { from, to: lease, retention })
    }
}

impl<S: Store, A: Send + Sync + 'static> Worker for Completer<S, A> {
    const NAME: &'static str = "completer";

    fn pace(&self) -> Duration {
        self.config.poll
    }

    async fn look(&mut self, stop: &Stop) -> Result<More, StoreError> {
        let swept = self.sweep(stop).await?;
        Ok(if swept.total() >= self.config.batch { More::Likely } else { More::No })
    }

    async fn bell(&self) {
        self.engine.bells().accepted.notified().await;
    }
}

/// Drives each request on, and counts what became of them.
pub(super) async fn drive<S: Store, A: Send + Sync + 'static>(
    engine: &Engine<S, A>,
    keys: Vec<(Scope, IdempotencyKey)>,
    right: Right,
    concurrency: usize,
    stop: &Stop,
) -> Swept {
    let drive = |(scope, key)| engine.drive(scope, key, right);
    let mut swept = Swept::default();
    for driven in each(keys, concurrency, stop, drive).await {
        swept.count(driven);
    }
    swept
}

impl<S: Store, A> std::fmt::Debug for Completer<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completer").field("config", &self.config).finish_non_exhaustive()
    }
}
