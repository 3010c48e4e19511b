//! [`Enqueuer`]: delivers staged jobs.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::backlog::Candidate;
use super::claims::Claims;
use super::delivery::{Delivery, Ended, Why};
use super::dispatcher::Dispatcher;
use super::gates::{Gates, Way, WorkLimits};
use super::job::{DynSink, JobSink};
use super::rests::Rests;
use super::settlements::Settlements;
use super::source::{Searching, Settled, Source};
use super::{Stop, WorkerConfig, until_shutdown};
use crate::engine::Engine;
use crate::job::FIRST_NOTICE;
use crate::key::Scope;
use crate::observe;
use crate::panics;
use crate::store::{DueJob, JobAt, JobPlace, Store, StoreError};

/// How many names that this node leaves to others are reported, once each.
const REPORTED: usize = 1000;

/// How long this node does not try a job again that it had to leave after it was claimed: from the first time
/// to the longest. Each try is a claim, which keeps other nodes from the job for its length.
const LEFT_FOR: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];

/// Delivers staged jobs to a [`JobSink`], at least once each (G18), those of one request in order.
/// A failed job waits, with a back-off that doubles up to an hour, and its request's later jobs wait
/// with it; at the cap it is a dead letter, and they continue. A delivery cut off by the end of its process
/// counts towards the cap as well. A job that this node cannot deliver, because its sink does not handle the
/// name or its codec cannot decode the arguments, is left to other nodes, and no attempt is counted.
///
/// Scopes share its slots as they share the [`Completer`](crate::worker::Completer)'s.
pub struct Enqueuer<S: Store> {
    jobs: Dispatcher<DueJobs<S>>,
}

/// The result of one search of the enqueuer, in numbers of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Delivered.
    pub delivered: u32,
    /// Failed, and will be delivered again later.
    pub put_back: u32,
    /// Became dead letters.
    pub dead_letters: u32,
    /// Another node was faster, the answer to the claim came too late to deliver under it, or the store
    /// failed in between: delivered again if necessary.
    pub lost: u32,
    /// Left to a node whose sink [handles](JobSink::handles) their name, and whose codec can decode their
    /// arguments.
    pub left: u32,
}

impl<S: Store> Enqueuer<S> {
    /// An enqueuer for the engine's staged jobs. Logs a warning for each job that the engine's requests are known to stage and
    /// that `sink` does not [handle](JobSink::handles): unless another node's sink does, it is never delivered.
    pub fn new<A: Send + Sync + 'static>(
        engine: &Engine<S, A>,
        sink: impl JobSink,
        config: WorkerConfig,
    ) -> Self {
        let engine = engine.without_app();
        let sink: Arc<dyn DynSink> = Arc::new(sink);
        report_unhandled(&engine, sink.as_ref());
        Self::with(&engine, sink, config)
    }

    pub(super) fn with(engine: &Engine<S>, sink: Arc<dyn DynSink>, config: WorkerConfig) -> Self {
        // The sink that is checked is the one that is used.
        let config = WorkerConfig { sink: Some(sink.clone()), ..config };
        let delivery = Delivery {
            engine: engine.clone(),
            sink,
            lease: config.delivery,
            max_deliveries: config.max_deliveries,
            settlements: Settlements::new(engine.store()),
            limits: WorkLimits::new(config.concurrency),
        };
        let source = DueJobs {
            delivery: Arc::new(delivery),
            claims: Claims::default(),
            gates: Gates::new(config.concurrency),
            sum: Delivered::default(),
            left: Rests::of(LEFT_FOR),
            reported: HashSet::new(),
        };
        Self { jobs: Dispatcher::new(source, &config) }
    }

    /// Processes due jobs, from where the last call stopped: up to
    /// [`batch`](WorkerConfig::batch) jobs, one of each request. Jobs left to another node, lost to one,
    /// or not settled do not count.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Delivered, StoreError> {
        self.jobs.one_pass().await?;
        Ok(std::mem::take(&mut self.jobs.source().sum))
    }

    /// Delivers until `shutdown` is ready; then finishes the deliveries that it has begun.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, self.jobs.forever(stop.set()), shutdown).await;
    }
}

/// A sink that panics here is asked again where it counts as the job's failure: see `hand_over`.
fn handles(sink: &dyn DynSink, name: &str) -> bool {
    panics::catch(|| sink.handles(name)).unwrap_or(true)
}

/// Reports the jobs that this process stages and its sink does not handle, when workers start: before one is late.
/// Another node may handle them, so that is not an error.
pub(super) fn report_unhandled<S: Store>(engine: &Engine<S>, sink: &dyn DynSink) {
    for name in engine.core.jobs.iter().filter(|name| !handles(sink, name)) {
        observe::job_staged_and_not_handled(name);
    }
}

/// What the enqueuer looks for.
struct DueJobs<S: Store> {
    delivery: Arc<Delivery<S>>,
    /// Of what has begun at this moment.
    claims: Claims,
    gates: Gates,
    sum: Delivered,
    /// Jobs that were claimed, and left: by place, because the token has changed since.
    left: Rests,
    reported: HashSet<(Why, String)>,
}

impl<S: Store> DueJobs<S> {
    /// Counts a job that is left, and reports its name once.
    fn leave(&mut self, why: Why, name: &str) {
        self.sum.left += 1;
        if self.reported.len() < REPORTED && self.reported.insert((why, name.to_owned())) {
            match why {
                Why::NotHandled => observe::job_not_handled(name),
                Why::Sealed => observe::job_sealed(name),
            }
        }
    }
}

fn place(at: &JobAt) -> (&Scope, Uuid, i64) {
    (&at.scope, at.request_id, at.position)
}

/// One job of a request at a time, and its notices beside it.
impl Candidate for DueJob {
    type Id = (Scope, Uuid, Option<i64>);

    fn id(&self) -> Self::Id {
        let notice = Some(self.at.position).filter(|position| *position >= FIRST_NOTICE);
        (self.at.scope.clone(), self.at.request_id, notice)
    }

    fn scope(&self) -> &Scope {
        &self.at.scope
    }

    fn state(&self) -> [i64; 2] {
        [self.at.position, self.at.attempts.into()]
    }

    /// One that was tried before may be what ends processes: few others are claimed beside it, whose attempts
    /// would count too.
    fn may_go_ahead(&self) -> bool {
        self.at.attempts == 0
    }

    fn kind(&self) -> &str {
        &self.name
    }
}

impl<S: Store> Source for DueJobs<S> {
    type Place = JobPlace;
    type Found = DueJob;
    /// Of which scope and name the job is, and how it came in.
    type Ended = (Scope, String, Way, Ended);

    const CLAIMS_AHEAD: bool = true;

    fn name(&self) -> &'static str {
        "enqueuer"
    }

    fn search(&self, after: JobPlace, limit: u32) -> Searching<DueJob, JobPlace> {
        let store = self.delivery.engine.store().clone();
        Box::pin(async move { store.jobs_due(&after, limit).await })
    }

    fn admits(&mut self, found: &DueJob) -> bool {
        if !found.is_next {
            return false;
        }
        if self.left.is_resting(&place(&found.at)) {
            self.sum.left += 1;
            return false;
        }
        let is_handled = handles(self.delivery.sink.as_ref(), &found.name);
        if !is_handled {
            self.leave(Why::NotHandled, &found.name);
        }
        is_handled
    }

    fn may_begin(&self, found: &DueJob) -> bool {
        let most = self.delivery.max_concurrency(&found.name);
        self.gates.has_room(&found.at.scope, &found.name, most)
    }

    fn room_of_kind(&self, found: &DueJob) -> Option<usize> {
        let most = self.delivery.max_concurrency(&found.name).filter(|most| *most < usize::MAX)?;
        Some(self.gates.room_of(&found.name, most))
    }

    fn begin(&mut self, found: DueJob) -> impl Future<Output = Self::Ended> + Send + 'static {
        let (delivery, scope, name) =
            (self.delivery.clone(), found.at.scope.clone(), found.name.clone());
        let way = self.gates.enter(&scope, &name, delivery.max_concurrency(&name));
        let (claimed, way_in) = (self.claims.add(found.at.clone()), way.clone());
        async move {
            // On a task of its own: a sink may keep its thread, and the caller of `run_once` may go away.
            let delivering = async move { delivery.deliver(found, claimed, way_in).await };
            let ended = crate::task::spawn(delivering).await;
            (scope, name, way, ended.unwrap_or(Ended::Failed))
        }
    }

    fn begun(&mut self) {
        self.claims.send(&self.delivery.settlements, self.delivery.lease);
    }

    fn stop(&mut self) {
        self.gates.close();
        self.delivery.limits.close();
    }

    fn settle(&mut self, (scope, name, way, ended): Self::Ended) -> Settled {
        self.gates.leave(&scope, &name, &way);
        let (count, settled) = match ended {
            Ended::Left(why, found) => {
                self.left.fail(&place(&found.at));
                self.leave(why, &found.name);
                return Settled::Lost;
            }
            // The request of a job that was delivered may have a next one.
            Ended::Delivered => (&mut self.sum.delivered, Settled::MoreBehind),
            Ended::Dead => (&mut self.sum.dead_letters, Settled::MoreBehind),
            Ended::PutBack => (&mut self.sum.put_back, Settled::Progress),
            Ended::Lost | Ended::NoTurn => (&mut self.sum.lost, Settled::Lost),
            Ended::Failed => (&mut self.sum.lost, Settled::Failed),
        };
        *count += 1;
        settled
    }

    async fn wakeup(&self) {
        self.delivery.engine.wakeups().staged.notified().await;
    }
}

impl<S: Store> std::fmt::Debug for Enqueuer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enqueuer").finish_non_exhaustive()
    }
}
