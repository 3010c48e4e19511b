//! One local phase: its writes, its output and the recovery point in one commit (G4). The first phase
//! runs here like every other; its commit creates the row, too.

use std::ops::ControlFlow::Break;
use std::time::Duration;

use super::body::{Body, database_failed, refused, store_failed, timed_out};
use super::commit::{CommitFailure, CommitFate};
use super::transition::Transition;
use super::writing::Writing;
use super::{PhaseEnd, RoundEnd, Run};
use crate::definition::{BATCH_TIME_LIMIT, Phase};
use crate::engine::encoding::Unstorable;
use crate::engine::outcome::{CallError, FailureCause};
use crate::job::StagedJob;
use crate::moment::Moment;
use crate::movable_task;
use crate::observe;
use crate::phase::{Batch, PhaseFailure, PhaseInputs, Reply, Staging, Tx};
use crate::store::{Statements, Store, StoreError, Transaction};

const TOO_LARGE_ARGS: &str = "the arguments of the phase's staged jobs together are over Limits::job_args: stage \
    less, or raise it";

/// What a phase has staged, encoded.
type Staged = Result<Vec<StagedJob>, Unstorable>;

/// Why a phase has written nothing.
enum Undone {
    /// It rejected the request: this reply is to be stored.
    Rejected(Reply),
    /// What failed may succeed when the phase is run again.
    Again(StoreError),
    /// It would fail again: the request stops here.
    Stopped(FailureCause, Option<Duration>),
}

impl Undone {
    /// After a commit that wrote nothing.
    fn of(phase: &Phase, failure: CommitFailure) -> Self {
        let cause = match failure {
            CommitFailure::Refused(refusal) => refused(phase, refusal),
            CommitFailure::Failed(StoreError::TimeLimit) => timed_out(phase),
            CommitFailure::Failed(error) if error.is_worth_a_rerun() => return Self::Again(error),
            CommitFailure::Failed(error) => store_failed(phase, &error),
            // It would be as slow again.
            CommitFailure::NeverArrived(error)
                if phase.kind.is_batch() && error.is_unanswered() =>
            {
                timed_out(phase)
            }
            CommitFailure::NeverArrived(error) => return Self::Again(error),
        };
        Self::Stopped(cause, None)
    }

    /// Whether another connection may do better.
    fn is_of_the_connection(&self) -> bool {
        matches!(self, Self::Again(error) if error.is_of_the_connection())
    }
}

impl<S: Store> Run<S> {
    /// Runs a local phase, again where that may help. `creating`: what the first phase writes into, if its commit
    /// creates the row.
    pub(super) async fn local(
        &mut self,
        index: usize,
        phase: &'static Phase,
        mut creating: Option<Writing<'_, S>>,
    ) -> PhaseEnd {
        let new = creating.as_ref().and_then(Writing::new_row);
        loop {
            let undone = match self.try_local(index, phase, creating.take()).await {
                Ok(end) => return end,
                Err(undone) => undone,
            };
            self.outputs.truncate(index);
            if let Undone::Again(error) = &undone {
                self.core.store.recover_from(error).await;
            }
            let (cause, after) = match undone {
                Undone::Rejected(reply) => return self.finish(phase, reply, new).await,
                Undone::Stopped(cause, after) => (cause, after),
                // The request did not cause the lack of a connection.
                Undone::Again(error @ StoreError::NoConnection(_)) if !self.may_rerun() => {
                    if new.is_none() {
                        self.let_go(phase, &error).await;
                    }
                    return Err(error.into());
                }
                // Bounded, also where a commit is lost each time: a statement may end its connection (G17).
                Undone::Again(error) if self.reruns >= self.core.settings.max_reruns => {
                    (store_failed(phase, &error), None)
                }
                Undone::Again(error) => {
                    self.reruns += 1;
                    observe::rerun(self.definition.name, phase.name, error.kind());
                    if new.is_some() {
                        // The row went away with the phase's writes: the key is looked at again.
                        return Ok(Break(RoundEnd::Restart(error)));
                    }
                    self.pause().await;
                    continue;
                }
            };
            return match new {
                Some(_) => Ok(Break(self.not_begun(cause, after))),
                None => self.halt(cause, after).await,
            };
        }
    }

    /// Runs it once: how it ended, or why it has written nothing.
    async fn try_local(
        &mut self,
        index: usize,
        phase: &'static Phase,
        creating: Option<Writing<'_, S>>,
    ) -> Result<PhaseEnd, Undone> {
        let mut writing = match self.open(phase, creating).await {
            Ok(Some(writing)) => writing,
            Ok(None) => return Ok(Ok(Break(self.lost()))),
            Err(error @ StoreError::NoConnection(_)) => return Err(Undone::Again(error)),
            Err(error) if error.is_worth_a_rerun() && self.may_rerun() => {
                return Err(Undone::Again(error));
            }
            Err(error) => return Ok(Err(error.into())),
        };
        let (body, staged) = match self.local_body(index, phase, &mut writing).await {
            Ok((Some(body), staged)) => (body, staged),
            Ok((None, _)) => {
                drop(writing);
                return Ok(Ok(Break(self.lost())));
            }
            Err(error) => return Ok(Err(error)),
        };
        let can_only_read = body.is_of_reading_only();
        let ready = self.transition_of(phase, body).and_then(|transition| match staged {
            Ok(jobs) => Ok((transition, jobs)),
            Err(why) => Err(Undone::Stopped(why.at(phase.name), None)),
        });
        let (transition, jobs) = match ready {
            Ok(ready) => ready,
            Err(undone @ Undone::Stopped(FailureCause::TimeLimit { .. }, _)) => {
                // A statement of it may still be running: its connection is closed, which undoes it.
                drop(writing);
                return Err(undone);
            }
            Err(undone) if can_only_read || undone.is_of_the_connection() => {
                // It would fail again there: the connection is closed.
                drop(writing);
                return Err(undone);
            }
            Err(undone) => {
                writing.undo().await;
                return Err(undone);
            }
        };
        let within = phase.time_limit().unwrap_or(BATCH_TIME_LIMIT);
        match self.commit(Some(writing), within, &transition, &jobs).await {
            Ok(CommitFate::Applied(sent)) => Ok(Ok(self.arrive(transition, sent))),
            Ok(CommitFate::EndsRound(end)) => Ok(Ok(Break(end))),
            Ok(CommitFate::NotCommitted(failure)) => Err(Undone::of(phase, failure)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// What the phase is to write into. `None` where the row was found to be another holder's.
    async fn open<'r>(
        &self,
        phase: &'static Phase,
        creating: Option<Writing<'r, S>>,
    ) -> Result<Option<Writing<'r, S>>, StoreError> {
        if creating.is_some() {
            return Ok(creating);
        }
        reach!(phase.name, BeforePhase);
        let isolation = phase.kind.isolation().unwrap_or_default();
        if phase.kind.is_batch() {
            // It holds no connection, and so keeps no thread of one busy.
            movable_task::move_back().await;
            return Ok(Some(Writing::Statements(isolation, Statements::default())));
        }
        // Boxed, as a commit is.
        let guard = self.guard();
        let begun = boxed!(self.core.store.begin_transaction(isolation, &guard)).await?;
        Ok(begun.map(Writing::Open))
    }

    /// Where the body of the phase leads, if it may be committed.
    fn transition_of(
        &mut self,
        phase: &'static Phase,
        body: Body<PhaseFailure>,
    ) -> Result<Transition, Undone> {
        let stopped = |cause| Undone::Stopped(cause, None);
        let transition = match body {
            Body::Output(output) => self.after_output(phase, output),
            Body::Reply(reply) => self.finished_with(reply),
            Body::Panicked => return Err(stopped(FailureCause::Panic { phase: phase.name })),
            Body::TimedOut => return Err(stopped(timed_out(phase))),
            Body::Failed(PhaseFailure::Reject(reply)) => return Err(Undone::Rejected(reply)),
            Body::Failed(PhaseFailure::Retryable { reason, after }) => {
                let cause = FailureCause::Phase { phase: phase.name, reason };
                return Err(Undone::Stopped(cause, after));
            }
            Body::Failed(PhaseFailure::Database(error)) if error.is_worth_a_rerun() => {
                return Err(Undone::Again(StoreError::database("run the phase", error)));
            }
            Body::Failed(PhaseFailure::Database(error)) => {
                return Err(stopped(database_failed(phase, &error)));
            }
        };
        transition.map_err(|why| stopped(why.at(phase.name)))
    }

    /// Runs its body; `None` where the row is another holder's by now.
    async fn local_body(
        &self,
        index: usize,
        phase: &'static Phase,
        writing: &mut Writing<'_, S>,
    ) -> Result<(Option<Body<PhaseFailure>>, Staged), CallError> {
        faults! {
            use crate::store::TransactionUnderFaults;

            if asked!(phase.name, BeforeBody, CutConnection)
                && let Writing::Open(tx) | Writing::Reserved(_, tx) = &mut *writing
            {
                tx.cut().await;
            }
        }
        let mut staging = Staging::new(self.context.request_id, index);
        let inputs =
            PhaseInputs { context: &self.context, outputs: &self.outputs, derived_key: None };
        let began = Moment::now();
        let span = self.span_of(phase);
        let body = match writing {
            Writing::Open(tx) | Writing::Reserved(_, tx) => {
                let transaction = tx.id();
                let mut tx = Tx::new(&self.core.store, tx.connection()?, &mut staging);
                let running = inside!(phase.name, self.request.run_local(index, &mut tx, &inputs));
                self.attended(phase, span.clone(), transaction, running).await
            }
            Writing::Statements(_, statements) | Writing::Create(_, statements) => {
                let mut batch = Batch::new(statements, &mut staging);
                let running =
                    inside!(phase.name, self.request.run_batch(index, &mut batch, &inputs));
                self.attended(phase, span.clone(), None, running).await
            }
        };
        observe::phase_took(self.definition.name, phase.name, began.elapsed());
        let mut jobs = staging.into_jobs();
        let args: usize = jobs.iter().map(|job| job.args.len()).sum();
        let stages = matches!(body, Some(Body::Output(_) | Body::Reply(_)));
        if stages && args > self.core.settings.limits.job_args {
            let failure = PhaseFailure::Retryable { reason: TOO_LARGE_ARGS, after: None };
            return Ok((Some(Body::Failed(failure)), Ok(Vec::new())));
        }
        let trace = (!jobs.is_empty()).then(|| self.core.trace_of(&span)).flatten();
        let trace = trace.map(|trace| trace.stored());
        for job in &mut jobs {
            job.trace = trace;
            match self.core.encode_args(&self.context.scope, &self.context.key, job) {
                Ok(args) => job.args = args.into_owned(),
                Err(error) => return Ok((body, Err(error.into()))),
            }
        }
        Ok((body, Ok(jobs)))
    }

    fn may_rerun(&self) -> bool {
        self.reruns < self.core.settings.max_reruns
    }
}
