//! [`Enqueuer`]: delivers staged jobs.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use uuid::Uuid;

use super::backlog::Candidate;
use super::dispatcher::{Dispatcher, Searching, Settled, Source};
use super::job::{DeliveryError, DynSink, Job, JobSink, Then};
use super::rests::Rests;
use super::{Stop, WorkerConfig, by_chance, until_shutdown};
use crate::engine::Engine;
use crate::key::Scope;
use crate::moment::Moment;
use crate::observe::{self, JobSeen};
use crate::store::{DueJob, JobAt, JobPlace, JobRow, Store, StoreError, Undelivered};

/// The longest back-off, also where a sink asks for more.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3600);

/// How long to wait at first until a word about a delivery is said again; doubles up to 64 times that.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Why a job is a dead letter of which each delivery up to the cap began, and the last did not end.
const CUT_OFF: &str = "the last delivery up to the cap was cut off, as where its process ends";

/// How many names that this node leaves to others are reported, once each.
const REPORTED: usize = 1000;

/// Stands with a job whose arguments a node could not open.
const SEALED: &str = "a node's codec cannot open its arguments: it has another secret, most likely";

/// And with one that its sink gave back.
const NOT_HANDLED: &str = "a node's sink does not handle its name any more";

/// How long this node does not try a job again that it had to leave after it was claimed: from the first time
/// to the longest. Each try is a claim, which keeps other nodes from the job for its length.
const LEFT_FOR: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];

/// Hands staged jobs to a [`JobSink`], at least once each (G18), those of one request in their order.
/// A job that fails waits, with a back-off that doubles up to an hour, and its request's later jobs
/// with it; at the cap it is a dead letter, and they go on. A delivery that ends with its process
/// counts towards the cap as well. A job that this node cannot deliver, because its sink does not handle the
/// name or its codec does not open the arguments, is left to the others, and no attempt counts.
///
/// Scopes share its slots as they share the [`Completer`](crate::worker::Completer)'s.
pub struct Enqueuer<S: Store, A: Send + Sync + 'static> {
    jobs: Dispatcher<DueJobs<S, A>>,
}

/// What one look of the enqueuer came to, in jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Delivered.
    pub delivered: u32,
    /// Failed, and to be delivered again later.
    pub put_back: u32,
    /// Became dead letters.
    pub dead_letters: u32,
    /// Another node was faster, the answer to the claim came too late to deliver under it, or the store
    /// failed in between: delivered again, if need be.
    pub lost: u32,
    /// Left to a node whose sink [handles](JobSink::handles) their name, and whose codec opens their
    /// arguments.
    pub left: u32,
}

impl<S: Store, A: Send + Sync + 'static> Enqueuer<S, A> {
    /// An enqueuer for the engine's staged jobs.
    pub fn new(engine: &Engine<S, A>, sink: impl JobSink, config: WorkerConfig) -> Self {
        Self::with(engine, Arc::new(sink), config)
    }

    pub(super) fn with(
        engine: &Engine<S, A>,
        sink: Arc<dyn DynSink>,
        config: WorkerConfig,
    ) -> Self {
        let delivery = Delivery {
            engine: engine.clone(),
            sink,
            lease: config.delivery,
            max_deliveries: config.max_deliveries,
        };
        let source = DueJobs {
            delivery: Arc::new(delivery),
            sum: Delivered::default(),
            left: Rests::of(LEFT_FOR),
            reported: HashSet::new(),
        };
        Self { jobs: Dispatcher::new(source, &config) }
    }

    /// Works off what is due, from where the last call stopped: up to
    /// [`batch`](WorkerConfig::batch) jobs, of each request one. What is left to another node, lost to one,
    /// or could not be settled does not count.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be searched.
    pub async fn run_once(&mut self) -> Result<Delivered, StoreError> {
        self.jobs.one_pass().await?;
        Ok(std::mem::take(&mut self.jobs.source().sum))
    }

    /// Delivers until `shutdown` is ready; what it has begun, it ends.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let stop = Stop::default();
        until_shutdown(&stop, self.jobs.forever(stop.set()), shutdown).await;
    }
}

/// What the enqueuer looks for.
struct DueJobs<S: Store, A> {
    delivery: Arc<Delivery<S, A>>,
    sum: Delivered,
    /// Jobs that were claimed, and left: by place, because the token has changed since.
    left: Rests,
    reported: HashSet<(Why, String)>,
}

/// Why a job is left to other nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Why {
    NotHandled,
    Sealed,
}

impl Why {
    fn reason(self) -> &'static str {
        match self {
            Self::NotHandled => NOT_HANDLED,
            Self::Sealed => SEALED,
        }
    }
}

impl<S: Store, A> DueJobs<S, A> {
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

/// One job of a request at a time.
impl Candidate for DueJob {
    type Id = (Scope, Uuid);

    fn id(&self) -> Self::Id {
        (self.at.scope.clone(), self.at.request_id)
    }

    fn scope(&self) -> &Scope {
        &self.at.scope
    }

    fn state(&self) -> i64 {
        self.at.position.wrapping_add(self.at.attempts.into())
    }
}

impl<S: Store, A: Send + Sync + 'static> Source for DueJobs<S, A> {
    type Place = JobPlace;
    type Found = DueJob;
    type Ended = Ended;

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
        // A sink that panics here is asked again where it counts as the job's failure: see `hand_over`.
        let handles = || self.delivery.sink.handles(&found.name);
        let is_handled = catch_unwind(AssertUnwindSafe(handles)).unwrap_or(true);
        if !is_handled {
            self.leave(Why::NotHandled, &found.name);
        }
        is_handled
    }

    fn begin(&self, found: DueJob) -> impl Future<Output = Ended> + Send + 'static {
        let delivery = self.delivery.clone();
        async move {
            // On a task of its own: a sink may keep its thread, and whoever asked for a look may go away.
            let delivering = async move { delivery.deliver(found).await };
            match crate::task::spawn(delivering).await {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) | Err(_) => Ended::Failed,
            }
        }
    }

    fn settle(&mut self, ended: Ended) -> Settled {
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
            Ended::Lost => (&mut self.sum.lost, Settled::Lost),
            Ended::Failed => (&mut self.sum.lost, Settled::Failed),
        };
        *count += 1;
        settled
    }

    async fn wakeup(&self) {
        self.delivery.engine.wakeups().staged.notified().await;
    }
}

/// What it takes to deliver a job.
struct Delivery<S: Store, A> {
    engine: Engine<S, A>,
    sink: Arc<dyn DynSink>,
    lease: Duration,
    max_deliveries: u32,
}

enum Ended {
    Delivered,
    PutBack,
    Dead,
    /// Another node has it, or may have it by now.
    Lost,
    /// Left to other nodes.
    Left(Why, DueJob),
    /// The store failed.
    Failed,
}

fn place(at: &JobAt) -> (&Scope, Uuid, i64) {
    (&at.scope, at.request_id, at.position)
}

/// Why a job that was claimed was not delivered.
enum Failure {
    Delivery(DeliveryError),
    Left(Why),
}

impl From<DeliveryError> for Failure {
    fn from(error: DeliveryError) -> Self {
        Self::Delivery(error)
    }
}

impl<S: Store, A: Send + Sync + 'static> Delivery<S, A> {
    async fn deliver(&self, found: DueJob) -> Result<Ended, StoreError> {
        let store = self.engine.store();
        let sent = Moment::now();
        let not_claimed = |error: &StoreError| {
            observe::job_not_claimed(
                &found.name,
                &found.at.scope,
                found.at.request_id,
                error.kind(),
            );
        };
        let claimed = store.claim_job(&found.at, self.lease).await.inspect_err(not_claimed);
        let Some(row) = claimed? else {
            return Ok(Ended::Lost);
        };
        let (at, lag, forgiven) = (row.at.clone(), row.lag, row.forgiven_attempts);
        let seen = JobSeen {
            id: row.id,
            name: row.name.clone(),
            request_id: at.request_id,
            scope: at.scope.clone(),
            key: row.key.clone(),
            attempt: at.attempts,
        };
        let claim = Claim { store, at: &at, seen: &seen, ends: sent.after(self.lease) };
        let tries = at.attempts.saturating_sub(forgiven);
        let delivered = if tries > self.max_deliveries {
            // Its last delivery ended with its process, which left no word of that.
            Err(DeliveryError::dead(CUT_OFF).into())
        } else {
            // The claim counts from before it was sent: its answer may be read at any time later, when
            // another node has delivered the job and those behind it. What is left of the claim after
            // the limit is for writing down what came of it.
            let ends = sent.after(self.lease * 2 / 3);
            if Moment::now() >= ends {
                return Ok(Ended::Lost);
            }
            match self.job(row) {
                Ok(job) => self.hand_over(&job, ends).await,
                Err(why) => Err(Failure::Left(why)),
            }
        };
        let error = match delivered {
            Ok(()) => {
                if !claim.settle(Word::Delivered).await? {
                    return Ok(Ended::Lost);
                }
                observe::job_delivered(&seen, lag);
                return Ok(Ended::Delivered);
            }
            Err(Failure::Left(why)) => {
                return Ok(
                    match claim.settle(Word::Not(Undelivered::Left, why.reason())).await? {
                        true => Ended::Left(why, found),
                        false => Ended::Lost,
                    },
                );
            }
            Err(Failure::Delivery(error)) => error,
        };
        let back_off = self.back_off(error.then, tries);
        let becomes = back_off.map_or(Undelivered::Dead, Undelivered::Again);
        if !claim.settle(Word::Not(becomes, error.reason)).await? {
            return Ok(Ended::Lost);
        }
        Ok(match back_off {
            Some(back_off) => {
                observe::job_failed(&seen, error.reason, back_off);
                Ended::PutBack
            }
            None => {
                observe::job_dead(&seen, error.reason);
                Ended::Dead
            }
        })
    }

    fn job(&self, row: JobRow) -> Result<Job, Why> {
        let JobRow { at, key, id, name, args, .. } = row;
        let args = self.engine.decoded_args(&at.scope, &key, id, args).map_err(|_| Why::Sealed)?;
        Ok(Job { id, name, scope: at.scope, key, args, attempt: at.attempts })
    }

    async fn hand_over(&self, job: &Job, ends: Moment) -> Result<(), Failure> {
        // In an async block: a sink may panic before it returns its future, too.
        let delivery = async {
            match self.sink.handles(&job.name) {
                true => Ok(self.sink.deliver(job).await?),
                false => Err(Failure::Left(Why::NotHandled)),
            }
        };
        let mut delivery = pin!(AssertUnwindSafe(delivery).catch_unwind());
        // The timer wakes; the moment decides. A process that stood still must not go on with a delivery that
        // is another node's by now.
        let delivery = poll_fn(|context| match Moment::now() < ends {
            true => delivery.as_mut().poll(context).map(Some),
            false => Poll::Ready(None),
        });
        match tokio::time::timeout(ends.since(Moment::now()), delivery).await {
            Ok(Some(Ok(delivered))) => delivered,
            Ok(Some(Err(_))) => Err(DeliveryError::retry("the delivery panicked").into()),
            Ok(None) | Err(_) => Err(DeliveryError::retry("the delivery took too long").into()),
        }
    }

    /// `None`: never again. `tries` are those that no operator has forgiven.
    fn back_off(&self, then: Then, tries: u32) -> Option<Duration> {
        // 1 s, 2 s, 4 s, … up to an hour: the cap stands for as long as these take together.
        let ours = Duration::from_secs(1 << tries.saturating_sub(1).min(12)).min(LONGEST_BACK_OFF);
        match then {
            Then::Never => None,
            _ if tries >= self.max_deliveries => None,
            Then::Again => Some(ours),
            Then::After(asked) => Some(asked.clamp(ours, LONGEST_BACK_OFF)),
        }
    }
}

/// What came of a delivery.
#[derive(Clone, Copy)]
enum Word {
    Delivered,
    Not(Undelivered, &'static str),
}

/// A job that is ours until the claim ends.
struct Claim<'a, S> {
    store: &'a S,
    at: &'a JobAt,
    seen: &'a JobSeen,
    ends: Moment,
}

impl<S: Store> Claim<'_, S> {
    /// Says what came of the delivery, as often as it takes while the claim stands: no other node has the job
    /// before, so that it need not wait for the claim's end where the store was away for a moment. Whether
    /// it was ours to say.
    async fn settle(&self, word: Word) -> Result<bool, StoreError> {
        let mut may_be_said = false;
        for tries in 1.. {
            let said = match word {
                Word::Delivered => self.store.job_delivered(self.at).await,
                Word::Not(becomes, why) => self.store.job_failed(self.at, becomes, why).await,
            };
            let error = match said {
                // Nothing is there to be changed: by our own word, which got no answer.
                Ok(is_ours) => return Ok(is_ours || may_be_said && !self.is_over()),
                Err(error) => error,
            };
            if tries == 1 {
                observe::job_unsettled(self.seen, error.kind());
            }
            may_be_said |= error.is_of_the_connection();
            if self.is_over() {
                return Err(error);
            }
            tokio::time::sleep(by_chance(FIRST_PAUSE * (1 << tries.min(6)))).await;
        }
        Ok(false)
    }

    fn is_over(&self) -> bool {
        Moment::now() >= self.ends
    }
}

impl<S: Store, A: Send + Sync + 'static> std::fmt::Debug for Enqueuer<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enqueuer").finish_non_exhaustive()
    }
}
