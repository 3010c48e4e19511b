//! [`WorkerConfig`]: the settings of the workers.

use std::sync::Arc;
use std::time::Duration;

use super::job::{DynSink, JobSink};
use crate::setting::{CENTURY, DAY, MILLISECOND, SettingError, duration, number, text};

/// How many characters the name of a process has, and that of its build: what the column of MySQL holds.
const NODE: usize = 100;

/// The settings of the workers that [`Engine::spawn_workers`](crate::Engine::spawn_workers) runs: completer, reconciler,
/// reaper, the runner of bulk acts and the announcer. A [`sink`](Self::sink) adds the enqueuer, and the cargo feature
/// `metrics` adds the census.
///
/// ```
/// use std::time::Duration;
///
/// use atomic_phases::worker::{DeliveryError, Handlers, Job, WorkerConfig};
/// # fn example(engine: &atomic_phases::Engine<atomic_phases::store::Sqlite>) -> Result<(), Box<dyn std::error::Error>> {
///
/// let mails = Handlers::new().on("send_receipt", async |ride: String, job: Job| {
///     // Delivered at least once: the job's id is the same each time.
///     println!("receipt for {ride}, unless {} was mailed before", job.id);
///     Ok::<_, DeliveryError>(())
/// });
/// let config = WorkerConfig::default().poll(Duration::from_millis(200)).concurrency(32).sink(mails);
/// let workers = engine.spawn_workers(config)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct WorkerConfig {
    pub(crate) poll: Duration,
    pub(crate) batch: u32,
    pub(crate) concurrency: usize,
    pub(crate) grace: Duration,
    pub(crate) full_sweep: Duration,
    pub(crate) reap_every: Duration,
    pub(crate) reap_batch: u32,
    pub(crate) census_every: Duration,
    pub(crate) delivery: Duration,
    pub(crate) max_deliveries: u32,
    pub(crate) sink: Option<Arc<dyn DynSink>>,
    pub(crate) node: (String, String),
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            batch: 100,
            concurrency: 8,
            grace: Duration::from_secs(2),
            full_sweep: Duration::from_secs(3600),
            reap_every: Duration::from_secs(60),
            reap_batch: 200,
            census_every: Duration::from_secs(15),
            delivery: Duration::from_secs(60),
            max_deliveries: 20,
            sink: None,
            node: <(String, String)>::default(),
        }
    }
}

impl WorkerConfig {
    /// How often completer, reconciler and enqueuer search, on average; default 1 s. If no row is due, that is
    /// one search of an empty index.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// How many rows a search reads at most, how many jobs one statement claims (500 at most), and how many requests or jobs a
    /// `run_once` begins; default 100. If a search of a [running](crate::worker::Completer::run) worker finds nothing to
    /// begin, its next search reads 1,000 rows; 100, if one of the worker's requests or jobs has ended within the last
    /// second. Neither reads fewer rows than a batch.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch;
        self
    }

    /// How many requests or jobs a worker runs concurrently; default 8. One scope holds at most half of
    /// them. Each local phase among them takes a connection.
    ///
    /// A worker claims jobs in bulk; on PostgreSQL also accepted requests that have never run. If those of a scope end within
    /// a second, the worker claims up to a [`batch`](Self::batch) more, which wait in this process. What has
    /// waited for a sixth of its claim ([`delivery`](Self::delivery), or the
    /// [lease](crate::engine::EngineBuilder::lease)), or waits when the worker stops, is returned uncounted. The claims
    /// of a process that is killed expire, and count as attempts. A sink may have limits of its own for the names of
    /// jobs ([`JobSink::concurrency`]).
    ///
    /// A request or job that takes longer than a second no longer counts, because it most likely waits for a foreign
    /// system and holds no connection. In total, at most four times this number run. See
    /// [`Completer`](crate::worker::Completer#fairness).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long workers leave a released or abandoned request to its client; default 2 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How often the completer reads the whole table for requests whose holder died; default 1 h, at least a second, and at
    /// its start. It reads a page at a time, with rests, and takes a fifth of one connection's time. Between these scans it
    /// reads each row once, soon after it was created; and, if a registered definition begins with a
    /// [`Batch`](crate::Batch), once more when the time limit of that has passed. That is enough if all nodes have the same
    /// [`retention`](crate::engine::EngineBuilder::retention).
    pub fn full_sweep(mut self, full_sweep: Duration) -> Self {
        self.full_sweep = full_sweep;
        self
    }

    /// How often the reaper searches; default 60 s. After a full batch it continues without this delay.
    pub fn reap_every(mut self, reap_every: Duration) -> Self {
        self.reap_every = reap_every;
        self
    }

    /// How many expired rows the reaper reads, and deletes at most, in one batch; default 200, which takes a few
    /// milliseconds. After a full batch it rests four times as long as the batch took, five seconds at most. So if a batch
    /// takes longer than 1.25 s, as it may if the server refuses many rows, the reaper spends more than a fifth of its time
    /// on deleting.
    pub fn reap_batch(mut self, reap_batch: u32) -> Self {
        self.reap_batch = reap_batch;
        self
    }

    /// How often the [census](crate::worker::Census) counts what waits, if metrics are enabled; default 15 s. One process
    /// counts; at the same interval, each of the others checks with one statement whether to take over.
    pub fn census_every(mut self, census_every: Duration) -> Self {
        self.census_every = census_every;
        self
    }

    /// How long a job is claimed for; default 60 s, at least a second. A delivery may take two thirds of it, from the claim
    /// on, or half if the job waited in the process first; when the claim expires the job is due again, for any node.
    pub fn delivery(mut self, delivery: Duration) -> Self {
        self.delivery = delivery;
        self
    }

    /// How often a job is delivered before it is a dead letter; default 20, with a back-off that doubles from
    /// a second to an hour, less up to a quarter by chance: about seven hours. A sink may ask for a longer back-off
    /// ([`DeliveryError::retry_after`](crate::worker::DeliveryError::retry_after)), up to that hour.
    /// A delivery that is cut off, because its process ends or it takes longer than
    /// [`delivery`](Self::delivery), counts, too.
    pub fn max_deliveries(mut self, max_deliveries: u32) -> Self {
        self.max_deliveries = max_deliveries;
        self
    }

    /// The name and build of this process that operators see, for example `("api-2", "9f2c1d")`: a host or a pod, and a
    /// version or a commit. At most a hundred characters each, and no control characters. Without it,
    /// they see an id.
    pub fn node(mut self, name: impl Into<String>, build: impl Into<String>) -> Self {
        self.node = (name.into(), build.into());
        self
    }

    /// Whether all numbers can work, and the settings of the [`sink`](Self::sink).
    ///
    /// # Errors
    /// [`SettingError`] names the first that cannot.
    pub fn check(&self) -> Result<(), SettingError> {
        let most = i32::MAX as u64;
        duration("WorkerConfig::poll", self.poll, MILLISECOND, DAY)?;
        number("WorkerConfig::batch", self.batch, 1, 100_000)?;
        number("WorkerConfig::concurrency", self.concurrency, 1, 10_000)?;
        duration("WorkerConfig::grace", self.grace, Duration::ZERO, DAY)?;
        duration("WorkerConfig::full_sweep", self.full_sweep, MILLISECOND * 1000, CENTURY)?;
        duration("WorkerConfig::reap_every", self.reap_every, MILLISECOND, CENTURY)?;
        number("WorkerConfig::reap_batch", self.reap_batch, 1, 100_000)?;
        duration("WorkerConfig::census_every", self.census_every, MILLISECOND * 10, DAY)?;
        duration("WorkerConfig::delivery", self.delivery, MILLISECOND * 1000, DAY)?;
        number("WorkerConfig::max_deliveries", self.max_deliveries, 1, most)?;
        text("WorkerConfig::node (name)", &self.node.0, NODE)?;
        text("WorkerConfig::node (build)", &self.node.1, NODE)?;
        self.sink.as_ref().map_or(Ok(()), |sink| sink.check())
    }

    /// Where staged jobs go.
    pub fn sink(mut self, sink: impl JobSink) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }
}

impl std::fmt::Debug for WorkerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerConfig")
            .field("poll", &self.poll)
            .field("batch", &self.batch)
            .field("concurrency", &self.concurrency)
            .field("grace", &self.grace)
            .field("sink", &self.sink.is_some())
            .finish_non_exhaustive()
    }
}
