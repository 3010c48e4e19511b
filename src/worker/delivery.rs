//! [`Delivery`]: a job from its claim to its outcome.

use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use super::by_chance;
use super::claims::{Claimed, NotClaimed, Won};
use super::gates::{Way, WorkLimits, WorkPermit};
use super::job::{DeliveryError, DynSink, Job, Then};
use super::settlements::{Deleted, Settlements};
use crate::chance;
use crate::engine::Engine;
use crate::moment::Moment;
use crate::observe::{self, JobSeen, Span, spans};
use crate::panics;
use crate::store::{DueJob, JobAt, JobRow, Store, StoreError, Undelivered};

/// The longest back-off, also where a sink asks for more.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3600);

/// How long to wait at first before the result of a delivery is written again; doubles up to 64 times that.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Why a job is a dead letter of which each delivery up to the cap began, and the last did not end.
const CUT_OFF: &str = "the last delivery up to the cap was cut off, as where its process ends";

/// Stands with a job whose arguments a node could not open.
const SEALED: &str = "a node's codec cannot open its arguments: it has another secret, most likely";

/// And with one that its sink gave back.
const NOT_HANDLED: &str = "a node's sink does not handle its name any more";

/// And with one that was claimed ahead of its turn, which did not come.
const NO_TURN: &str = "a node that claimed it was busy for too long, or ended";

/// What it takes to deliver a job.
pub(super) struct Delivery<S: Store> {
    pub(super) engine: Engine<S>,
    pub(super) sink: Arc<dyn DynSink>,
    pub(super) lease: Duration,
    pub(super) max_deliveries: u32,
    pub(super) settlements: Settlements<S>,
    /// For jobs whose name has no bound of its own.
    pub(super) limits: WorkLimits,
}

pub(super) enum Ended {
    Delivered,
    PutBack,
    Dead,
    /// Another node has it, or may have it by now.
    Lost,
    /// Given back: its turn here did not come in time.
    NoTurn,
    /// Left to other nodes.
    Left(Why, DueJob),
    /// The store failed.
    Failed,
}

impl Ended {
    /// What the span of the delivery says of it. An end that is final has a status, too.
    fn tell(&self, span: &Span) {
        let (outcome, status) = match self {
            Self::Delivered => ("delivered", Some("OK")),
            Self::PutBack => ("failed", None),
            Self::Dead => ("dead_letter", Some("ERROR")),
            Self::Lost => ("lost", None),
            Self::Left(..) | Self::NoTurn => ("left", None),
            Self::Failed => ("unavailable", None),
        };
        span.record(spans::OUTCOME, outcome);
        if let Some(status) = status {
            span.record(spans::STATUS, status);
        }
        if matches!(self, Self::Dead) {
            span.record(spans::ERROR_TYPE, outcome);
        }
    }
}

/// Why a job is left to other nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Why {
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

/// Why a job that was claimed was not delivered.
enum Failure {
    Delivery(DeliveryError),
    Left(Why),
    /// Its turn did not come in time, or the answer to its claim.
    NoTurn,
}

impl From<DeliveryError> for Failure {
    fn from(error: DeliveryError) -> Self {
        Self::Delivery(error)
    }
}

impl<S: Store> Delivery<S> {
    /// How many of these jobs are delivered at the same time, where the sink says so.
    pub(super) fn max_concurrency(&self, name: &str) -> Option<usize> {
        let most = panics::catch(|| self.sink.concurrency(name));
        most.unwrap_or(Some(NonZeroUsize::MIN)).map(NonZeroUsize::get)
    }

    /// `claimed`: the answer to the claim, to come.
    pub(super) async fn deliver(
        &self,
        found: DueJob,
        claimed: oneshot::Receiver<Claimed>,
        way: Way,
    ) -> Ended {
        let Ok(Claimed { sent, row }) = claimed.await else { return Ended::Failed };
        match row {
            Ok(None) => Ended::Lost,
            Ok(Some(Won { row, counted })) => {
                let ended = self.deliver_claimed(found, sent, row, way).await;
                drop(counted);
                ended
            }
            Err(NotClaimed(kind)) => {
                let JobAt { scope, request_id, .. } = &found.at;
                observe::job_not_claimed(&found.name, scope, *request_id, kind);
                Ended::Failed
            }
        }
    }

    async fn deliver_claimed(&self, found: DueJob, sent: Moment, row: JobRow, way: Way) -> Ended {
        let seen = JobSeen {
            id: row.id,
            name: row.name.clone(),
            request_id: row.at.request_id,
            scope: row.at.scope.clone(),
            key: row.key.clone(),
            attempt: row.at.attempts,
        };
        let span = spans::job(&seen, self.engine.core.is_traced());
        self.engine.core.link_staging(&span, row.trace);
        let ended = self.deliver_within(&span, &seen, found, sent, row, way).await;
        let ended = ended.unwrap_or(Ended::Failed);
        ended.tell(&span);
        ended
    }

    /// An error: what came of it could not be written down.
    async fn deliver_within(
        &self,
        span: &Span,
        seen: &JobSeen,
        found: DueJob,
        sent: Moment,
        row: JobRow,
        way: Way,
    ) -> Result<Ended, Arc<StoreError>> {
        let (at, lag, forgiven) = (row.at.clone(), row.lag, row.forgiven_attempts);
        let (store, settlements) = (self.engine.store(), &self.settlements);
        let ends = sent.after(self.lease);
        let claim = OpenDelivery { store, settlements, at: &at, seen, ends };
        let tries = at.attempts.saturating_sub(forgiven);
        let delivered = if tries > self.max_deliveries {
            // Its last delivery ended with its process, which left no word of that.
            Err(DeliveryError::dead(CUT_OFF).into())
        } else if claim.is_over() {
            return Ok(Ended::Lost);
        } else {
            self.deliver_in_turn(span, sent, row, &way).await
        };
        let settlement = match &delivered {
            Ok(()) => Settlement::Delivered,
            Err(Failure::Left(why)) => Settlement::Not(Undelivered::Left, why.reason()),
            Err(Failure::NoTurn) => Settlement::Not(Undelivered::Left, NO_TURN),
            Err(Failure::Delivery(error)) => {
                let back_off = self.back_off(error.then, tries);
                let becomes = back_off.map_or(Undelivered::Dead, Undelivered::Again);
                Settlement::Not(becomes, error.reason)
            }
        };
        if !claim.settle(settlement).await? {
            return Ok(Ended::Lost);
        }
        Ok(match settlement {
            Settlement::Delivered => {
                observe::job_delivered(seen, lag);
                Ended::Delivered
            }
            Settlement::Not(Undelivered::Again(back_off), reason) => {
                observe::job_failed(seen, reason, back_off);
                Ended::PutBack
            }
            Settlement::Not(Undelivered::Dead, reason) => {
                observe::job_dead(seen, reason);
                Ended::Dead
            }
            Settlement::Not(Undelivered::Left, _) => match delivered {
                Err(Failure::Left(why)) => Ended::Left(why, found),
                _ => Ended::NoTurn,
            },
        })
    }

    /// The claim counts from before it was sent: its answer may be read at any time later, when another node has
    /// delivered the job and those behind it. What is left of the claim after two thirds is for writing down what came
    /// of it.
    async fn deliver_in_turn(
        &self,
        span: &Span,
        sent: Moment,
        row: JobRow,
        way: &Way,
    ) -> Result<(), Failure> {
        let ends = sent.after(self.lease * 2 / 3);
        if Moment::now() >= ends {
            // Given back uncounted: else a store that always answers late would use up the deliveries.
            return Err(Failure::NoTurn);
        }
        let job = self.job(row, span).map_err(Failure::Left)?;
        let permit = self.permit(way, sent).await?;
        let handing_over = pin!(self.hand_over(&job, ends, permit));
        span.clone().around(handing_over).await
    }

    fn job(&self, row: JobRow, span: &Span) -> Result<Job, Why> {
        let JobRow { at, key, id, name, args, trace, .. } = row;
        let trace = self.engine.core.trace_of(span).or(trace);
        let args = self.engine.decoded_args(&at.scope, &key, id, args).map_err(|_| Why::Sealed)?;
        Ok(Job { id, name, scope: at.scope, key, args, attempt: at.attempts, trace })
    }

    /// Waits for its turn, for a part of the claim: with the rest it is delivered.
    async fn permit<'t>(
        &'t self,
        way: &'t Way,
        sent: Moment,
    ) -> Result<Option<WorkPermit<'t>>, Failure> {
        let Way::Gate(gate) = way else { return Ok(None) };
        let permit = self.limits.by(gate, sent.after(self.lease / 6)).await;
        permit.map(Some).ok_or(Failure::NoTurn)
    }

    async fn hand_over(
        &self,
        job: &Job,
        ends: Moment,
        permit: Option<WorkPermit<'_>>,
    ) -> Result<(), Failure> {
        // In an async block: a sink may panic before it returns its future, too.
        let delivery = async {
            match self.sink.handles(&job.name) {
                true => Ok(self.sink.deliver(job).await?),
                false => Err(Failure::Left(Why::NotHandled)),
            }
        };
        let mut delivery = pin!(panics::catch_async(delivery));
        // The timer wakes; the moment decides. A process that stood still must not continue a delivery that
        // is another node's by now.
        let delivery = poll_fn(|context| match Moment::now() < ends {
            true => delivery.as_mut().poll(context).map(Some),
            false => Poll::Ready(None),
        });
        let delivery = tokio::time::timeout(ends.since(Moment::now()), delivery);
        let ended = match permit {
            Some(permit) => permit.for_work(delivery).await,
            None => delivery.await,
        };
        let why = match ended {
            Ok(Some(Some(delivered))) => return delivered,
            Ok(Some(None)) => "the delivery panicked: the process's log says where",
            Ok(None) | Err(_) => "the delivery took too long: see `WorkerConfig::delivery`",
        };
        Err(DeliveryError::retry(why).into())
    }

    /// `None`: never again. `tries` are those that no operator has forgiven.
    fn back_off(&self, then: Then, tries: u32) -> Option<Duration> {
        // 1 s, 2 s, 4 s, … up to an hour, each a part less by chance: the cap stands for as long as these take together.
        let ours = Duration::from_secs(1 << tries.saturating_sub(1).min(12));
        let ours = chance::shortened(ours.min(LONGEST_BACK_OFF));
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
enum Settlement {
    Delivered,
    Not(Undelivered, &'static str),
}

/// A job that is ours until the claim ends.
struct OpenDelivery<'a, S> {
    store: &'a S,
    settlements: &'a Settlements<S>,
    at: &'a JobAt,
    seen: &'a JobSeen,
    ends: Moment,
}

impl<S: Store> OpenDelivery<'_, S> {
    /// Says what came of the delivery, as often as it takes while the claim stands: no other node has the job
    /// before, so that it need not wait for the claim's end where the store was away for a moment. Whether
    /// it was ours to say.
    async fn settle(&self, settlement: Settlement) -> Result<bool, Arc<StoreError>> {
        let (mut tries, mut may_be_said) = (0_u32, false);
        loop {
            tries += 1;
            let said = match settlement {
                Settlement::Delivered => match self.settlements.delivered(self.at).await {
                    Deleted::Yes => Ok(true),
                    Deleted::No => self.store.job_delivered(self.at).await.map_err(Arc::new),
                    Deleted::Failed(error) => Err(error),
                },
                Settlement::Not(becomes, why) => {
                    self.store.job_failed(self.at, becomes, why).await.map_err(Arc::new)
                }
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
    }

    fn is_over(&self) -> bool {
        Moment::now() >= self.ends
    }
}
