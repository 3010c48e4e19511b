//! The phase loop: from a row whose lease is ours to its end, or to where it stops.

use std::ops::ControlFlow::{self, Break, Continue};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use serde_json::value::RawValue;
use tracing::Instrument;

use super::Core;
use super::lease::{Heartbeat, Holder, Lease};
use super::moved::{Fate, Moved};
use super::outcome::{ExecuteError, FailureCause, Outcome};
use super::quota::Admission;
use crate::definition::{
    BATCH_TIME_LIMIT, Definition, EffectClass, Isolation, Phase, PhaseKind, Phases, STARTED, Step,
};
use crate::error::DbError;
#[cfg(feature = "fault-injection")]
use crate::fault::{Mode, Place};
use crate::moment::Moment;
use crate::observe;
use crate::phase::{
    Batch, DerivedKey, ForeignFailure, Outputs, PhaseFailure, Reply, RequestContext, Scene,
    StagedJob, Staging, Statements, Tx,
};
use crate::store::{Commit, Creation, NewRow, Refusal, Store, StoreError, Transaction, Writes};

/// A request that this process holds the lease of.
pub(super) struct Run<S: Store, A> {
    pub(super) core: Arc<Core<S, A>>,
    pub(super) definition: Definition,
    pub(super) request: Box<dyn Phases<S, A>>,
    pub(super) holder: Holder,
    pub(super) fingerprint: String,
    pub(super) context: RequestContext,
    /// Of the phases that are done, the last of which may not be committed yet: an idempotent
    /// foreign result rides in the commit of the local phase behind it.
    pub(super) outputs: Outputs,
    /// The recovery point, as the row has it.
    pub(super) point: String,
    pub(super) lease: Lease,
    pub(super) expires_at: DateTime<Utc>,
    pub(super) heartbeat: Option<Heartbeat>,
    /// How old the last recovery point was, at most, at a moment of this machine's monotonic clock.
    pub(super) advanced: (Duration, Moment),
    /// How many of its attempts do not count against the cap.
    pub(super) forgiven_attempts: u32,
    /// When the back-off ends during which a client resumed the request.
    pub(super) back_off_ends: Option<Moment>,
    /// How often a phase was run again by itself.
    pub(super) reruns: u32,
    /// Of a request that has no row yet, where its scope has a quota.
    pub(super) admission: Option<Arc<Admission>>,
}

/// How a local phase writes: into an open transaction, or by statements that travel with its commit.
enum Writing<S: Store> {
    Open(S::Transaction),
    Later(Isolation, Statements<S>),
}

impl<S: Store> Writing<S> {
    async fn undo(self) {
        if let Self::Open(tx) = self {
            tx.rollback().await;
        }
    }
}

/// How a run ends.
pub(super) enum Ended {
    Outcome(Outcome),
    /// The key has a row by now, and nothing ran.
    Exists,
    /// Another transaction is about to create the key's row, or to change it, and nothing ran.
    Busy,
    /// Somebody else holds the row: answer as anybody who comes second (G3).
    Lost,
    /// The first phase rejected the request; its row went away with its writes.
    Rejected(Reply),
    /// The row was not committed, or the outcome of its commit is unknown: look again. Nothing runs
    /// meanwhile. `rejected`: the reply that it was to be created with.
    Again {
        error: StoreError,
        rejected: Option<Reply>,
    },
}

impl Ended {
    fn again(error: StoreError) -> Self {
        Self::Again { error, rejected: None }
    }
}

/// How the body of a phase ended.
pub(super) enum Body<F> {
    Output(Box<RawValue>),
    Reply(Reply),
    Failed(F),
    Panicked,
    /// It took longer than the phase's time limit, and was dropped.
    TimedOut,
}

pub(super) type Flow = Result<ControlFlow<Ended>, ExecuteError>;

impl<S: Store, A: Send + Sync + 'static> Run<S, A> {
    /// Runs a request whose row was created in `tx` and is not committed yet.
    pub(super) async fn fresh(mut self, tx: S::Transaction) -> Result<Ended, ExecuteError> {
        match self.definition.phases.first() {
            // Row and first phase share a commit: a first phase that fails leaves nothing behind.
            Some(phase) if phase.shares_the_reservation() => {
                let mut writing = Writing::Open(tx);
                let (body, jobs) = self.local_body(0, phase, &mut writing).await?;
                let moved = match self.first_moved(phase, body) {
                    Ok(moved) => moved,
                    Err(ended) => {
                        writing.undo().await;
                        return Ok(ended);
                    }
                };
                let sent = Moment::now();
                let commit = self.commit(phase, writing, &moved, &jobs).await;
                if let Break(ended) = self.first_committed(phase, commit, moved, sent, &jobs)? {
                    return Ok(ended);
                }
            }
            _ => {
                match committing!(STARTED, BeforeCommit to AfterCommit, tx.commit_reservation().await)
                {
                    Commit::Done => {}
                    Commit::Unknown(error) => return Ok(Ended::again(error)),
                    Commit::Failed(error) => return Err(error.into()),
                    Commit::Fenced | Commit::Refused(_) => return Ok(Ended::Lost),
                }
            }
        }
        self.resumed().await
    }

    /// Runs a request that has no row yet, and whose first phase hands its statements over: the row
    /// travels with them. What the phase computes has no effect before, so nothing has to be
    /// reserved for it.
    pub(super) async fn fresh_batch(
        mut self,
        phase: &'static Phase,
        row: &NewRow<'_>,
    ) -> Result<Ended, ExecuteError> {
        let mut writing = Writing::Later(Isolation::ReadCommitted, Statements::default());
        let (body, jobs) = self.local_body(0, phase, &mut writing).await?;
        let moved = match self.first_moved(phase, body) {
            Ok(moved) => moved,
            Err(ended) => return Ok(ended),
        };
        let Writing::Later(_, statements) = writing else { return Ok(Ended::Exists) };
        let (mut born, mut busy) = (None, false);
        let sent = Moment::now();
        let commit = committing!(phase.name, BeforeCommit to AfterCommit, {
            let within = phase.time_limit().unwrap_or(BATCH_TIME_LIMIT);
            let writes = Writes { statements, jobs: &jobs, within };
            let created_at = self.context.created_at;
            match self.core.store.create(row, created_at, &self.change(&moved), writes).await {
                Creation::Done { now, expires_at } => {
                    born = Some((now, expires_at));
                    Commit::Done
                }
                Creation::Busy => {
                    busy = true;
                    Commit::Fenced
                }
                Creation::Exists => Commit::Fenced,
                Creation::Refused(refusal) => Commit::Refused(refusal),
                #[cfg(feature = "fault-injection")]
                Creation::Failed(_) if mutated!(FailureToldAsBusy) => {
                    busy = true;
                    Commit::Fenced
                }
                Creation::Failed(error) => Commit::Failed(error),
                Creation::Unknown(error) => Commit::Unknown(error),
            }
        });
        if busy {
            return Ok(Ended::Busy);
        }
        if let Commit::Fenced = commit {
            return Ok(Ended::Exists);
        }
        if let Some((now, expires_at)) = born {
            observe::created(self.definition.name);
            self.core.clock.heard(now);
            self.expires_at = expires_at;
        }
        match self.first_committed(phase, commit, moved, sent, &jobs)? {
            Break(ended) => Ok(ended),
            Continue(()) => self.resumed().await,
        }
    }

    /// Runs a request whose row is committed, from its recovery point on.
    pub(super) async fn resumed(mut self) -> Result<Ended, ExecuteError> {
        if let Some(admission) = self.admission.take() {
            admission.end();
        }
        self.heartbeat = Some(self.core.heartbeats.start(
            &self.core.store,
            self.holder.clone(),
            self.lease.clone(),
            self.core.settings.hold(),
        ));
        loop {
            if self.lease.is_lost() {
                observe::lost(self.definition.name);
                return Ok(Ended::Lost);
            }
            if self.core.running.is_closing() {
                return self.stop(FailureCause::ShuttingDown, Some(Duration::ZERO)).await;
            }
            let index = self.outputs.len();
            let Some(phase) = self.definition.phases.get(index) else {
                let rule = "the last phase returned no reply";
                return self.stop(FailureCause::Misuse { phase: "", rule }, None).await;
            };
            let flow = match phase.kind {
                PhaseKind::Local(isolation) => self.local(index, phase, isolation).await?,
                PhaseKind::Foreign(effect) => self.foreign(index, phase, effect).await?,
            };
            if let Break(ended) = flow {
                return Ok(ended);
            }
        }
    }

    /// Where a first phase that shares the row's commit leaves the request. Nothing of a failure is
    /// stored, so nothing has to be released.
    fn first_moved(
        &mut self,
        phase: &'static Phase,
        body: Body<PhaseFailure>,
    ) -> Result<Moved, Ended> {
        let moved = match body {
            Body::Output(output) => self.moved_by_output(phase, output),
            Body::Reply(reply) => self.moved_by_reply(reply),
            Body::Failed(PhaseFailure::Reject(reply)) => return Err(Ended::Rejected(reply)),
            Body::Failed(PhaseFailure::Retryable { reason, after }) => {
                let cause = FailureCause::Phase { phase: phase.name, reason };
                return Err(self.first_failed(cause, after));
            }
            Body::Failed(PhaseFailure::Database(error)) if self.may_rerun(phase, &error) => {
                return Err(Ended::again(StoreError::database("run the first phase", error)));
            }
            Body::Failed(PhaseFailure::Database(error)) => {
                return Err(self.first_failed(database(phase, &error), None));
            }
            Body::Panicked => {
                return Err(self.first_failed(FailureCause::Panic { phase: phase.name }, None));
            }
            Body::TimedOut => return Err(self.first_failed(timed_out(phase), None)),
        };
        moved.map_err(|rule| {
            self.first_failed(FailureCause::Misuse { phase: phase.name, rule }, None)
        })
    }

    fn first_failed(&self, cause: FailureCause, after: Option<Duration>) -> Ended {
        observe::not_begun(self.subject(), &cause);
        let retry_after = after.unwrap_or(self.core.settings.back_off(1));
        Ended::Outcome(Outcome::Failed { cause, retry_after })
    }

    fn first_committed(
        &mut self,
        phase: &'static Phase,
        commit: Commit,
        moved: Moved,
        sent: Moment,
        jobs: &[StagedJob],
    ) -> Flow {
        Ok(Break(match commit {
            Commit::Done => {
                self.ring(jobs);
                return self.arrive(moved, sent);
            }
            Commit::Fenced => {
                observe::lost(self.definition.name);
                Ended::Lost
            }
            Commit::Refused(refusal) => self.first_failed(refused(phase, refusal), None),
            Commit::Unknown(error) => {
                observe::commit_unanswered(self.subject());
                Ended::again(error)
            }
            Commit::Failed(error) if self.may_rerun_store(phase, &error) => Ended::again(error),
            Commit::Failed(error) => self.first_failed(store_failed(phase, &error), None),
        }))
    }

    /// One local phase: its writes, its output and the recovery point in one commit (G4).
    async fn local(&mut self, index: usize, phase: &'static Phase, isolation: Isolation) -> Flow {
        loop {
            reach!(phase.name, BeforePhase);
            let mut writing = match phase.batch {
                true => Writing::Later(isolation, Statements::default()),
                false => match self.core.store.begin(isolation, &self.guard()).await {
                    Ok(Some(tx)) => Writing::Open(tx),
                    Ok(None) => {
                        observe::lost(self.definition.name);
                        return Ok(Break(Ended::Lost));
                    }
                    Err(error) if self.may_rerun_store(phase, &error) => {
                        self.pause().await;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            let (body, jobs) = self.local_body(index, phase, &mut writing).await?;
            let moved = match body {
                Body::Output(output) => self.moved_by_output(phase, output),
                Body::Reply(reply) => self.moved_by_reply(reply),
                Body::Panicked => {
                    writing.undo().await;
                    return self.halt(FailureCause::Panic { phase: phase.name }, None).await;
                }
                Body::TimedOut => {
                    // A statement of it may still be running: its connection is closed, which undoes it.
                    drop(writing);
                    return self.halt(timed_out(phase), None).await;
                }
                Body::Failed(failure) => {
                    writing.undo().await;
                    match failure {
                        PhaseFailure::Reject(reply) => return self.finish(phase, reply).await,
                        PhaseFailure::Retryable { reason, after } => {
                            let cause = FailureCause::Phase { phase: phase.name, reason };
                            return self.halt(cause, after).await;
                        }
                        PhaseFailure::Database(error) if self.may_rerun(phase, &error) => {
                            self.pause().await;
                            continue;
                        }
                        PhaseFailure::Database(error) => {
                            return self.halt(database(phase, &error), None).await;
                        }
                    }
                }
            };
            let moved = match moved {
                Ok(moved) => moved,
                Err(rule) => {
                    writing.undo().await;
                    return self.halt(FailureCause::Misuse { phase: phase.name, rule }, None).await;
                }
            };
            let sent = Moment::now();
            match self.commit(phase, writing, &moved, &jobs).await {
                Commit::Done => {
                    self.ring(&jobs);
                    return self.arrive(moved, sent);
                }
                Commit::Fenced => {
                    observe::lost(self.definition.name);
                    return Ok(Break(Ended::Lost));
                }
                Commit::Unknown(error) => {
                    let is_too_slow = phase.batch && error.is_unanswered();
                    let cause = store_failed(phase, &error);
                    match self.resolve(&moved, error).await?.1 {
                        Fate::Applied => {
                            self.ring(&jobs);
                            return self.arrive(moved, sent);
                        }
                        Fate::Lost => return Ok(Break(Ended::Lost)),
                        // Bounded too: a statement may end its connection each time (G17).
                        Fate::NotApplied => {
                            self.outputs.truncate(index);
                            // It would be as slow again.
                            if is_too_slow {
                                return self.halt(timed_out(phase), None).await;
                            }
                            if self.reruns >= self.core.settings.max_reruns {
                                return self.halt(cause, None).await;
                            }
                            self.reruns += 1;
                            self.pause().await;
                        }
                    }
                }
                Commit::Failed(error) => {
                    self.outputs.truncate(index);
                    if !self.may_rerun_store(phase, &error) {
                        return self.halt(store_failed(phase, &error), None).await;
                    }
                    self.pause().await;
                }
                Commit::Refused(refusal) => {
                    self.outputs.truncate(index);
                    return self.halt(refused(phase, refusal), None).await;
                }
            }
        }
    }

    /// The writes of the phase, its jobs and the recovery point in one commit (G4), fenced (G3).
    async fn commit(
        &mut self,
        phase: &'static Phase,
        writing: Writing<S>,
        moved: &Moved,
        jobs: &[StagedJob],
    ) -> Commit {
        #[cfg(feature = "fault-injection")]
        let writing = match writing {
            Writing::Open(tx)
                if mutated!(SecondCommit) || mutated!(NoFence) || mutated!(AssumeCommitted) =>
            {
                return self.mutant_commit(phase, tx, moved, jobs).await;
            }
            writing => writing,
        };
        committing!(phase.name, BeforeCommit to AfterCommit, {
            let (guard, change) = (self.guard(), self.change(moved));
            match writing {
                Writing::Open(tx) => tx.commit(&guard, &change, jobs).await,
                Writing::Later(isolation, statements) => {
                    let within = phase.time_limit().unwrap_or(BATCH_TIME_LIMIT);
                    let writes = Writes { statements, jobs, within };
                    self.core.store.advance(isolation, &guard, &change, writes).await
                }
            }
        })
    }

    fn ring(&self, jobs: &[StagedJob]) {
        if !jobs.is_empty() {
            self.core.bells.staged.notify_one();
        }
    }

    async fn local_body(
        &self,
        index: usize,
        phase: &'static Phase,
        writing: &mut Writing<S>,
    ) -> Result<(Body<PhaseFailure>, Vec<StagedJob>), ExecuteError> {
        #[cfg(feature = "fault-injection")]
        if let (Some(Mode::CutConnection), Writing::Open(tx)) =
            (crate::fault::at(phase.name, Place::BeforeBody).await, &mut *writing)
        {
            self.core.store.cut(tx).await;
        }
        let mut staging = Staging::new(self.context.request_id, index);
        let scene = Scene {
            app: &self.core.app,
            context: &self.context,
            outputs: &self.outputs,
            derived_key: None,
        };
        let began = Moment::now();
        let ended = match writing {
            Writing::Open(tx) => {
                let mut tx = Tx::new(&self.core.store, tx.connection()?, &mut staging);
                let running = inside!(phase.name, self.request.run_local(index, &mut tx, &scene));
                bounded(phase, AssertUnwindSafe(running).catch_unwind()).await
            }
            Writing::Later(_, statements) => {
                let mut batch = Batch::new(statements, &mut staging);
                let running =
                    inside!(phase.name, self.request.run_batch(index, &mut batch, &scene));
                bounded(phase, AssertUnwindSafe(running).catch_unwind()).await
            }
        };
        observe::phase_took(self.definition.name, phase.name, began.elapsed());
        let body = ended.map_or(Body::TimedOut, Body::of);
        let mut jobs = staging.into_jobs();
        for job in &mut jobs {
            match self.core.encode(&self.holder.scope, &self.holder.key, "args", &job.args) {
                Ok(args) => job.args = args.into_owned(),
                Err(error) => {
                    let failure = PhaseFailure::Retryable { reason: error.0, after: None };
                    return Ok((Body::Failed(failure), Vec::new()));
                }
            }
        }
        Ok((body, jobs))
    }

    /// The key for the provider: equal in each attempt (G1).
    pub(super) fn derived_key(&self, phase: &Phase) -> DerivedKey {
        self.core.derived_keys.derive(
            &self.holder.scope,
            &self.holder.key,
            self.definition.name,
            phase.key_name(),
            &self.fingerprint,
            self.context.request_id,
        )
    }

    pub(super) async fn unknown(&mut self, phase: &'static str, reason: &'static str) -> Flow {
        self.leave_unknown(Some(phase), reason).await.map(Break)
    }

    /// How long an unknown outcome rests before it is looked into. Not less than the phase's time limit:
    /// a holder that lost its lease begins no call, and what it had begun is over by then, so that *not
    /// executed* can be believed.
    pub(super) fn reconcile_after(&self, phase: &str) -> Duration {
        let phase = self.definition.phases.iter().find(|known| known.is_called(phase));
        let limit = phase.filter(|phase| phase.kind == PhaseKind::Foreign(EffectClass::AtMostOnce));
        let limit = limit.and_then(Phase::time_limit).unwrap_or_default();
        self.core.settings.reconcile_after.max(limit)
    }

    pub(super) async fn halt(&mut self, cause: FailureCause, after: Option<Duration>) -> Flow {
        self.stop(cause, after).await.map(Break)
    }

    fn may_rerun(&mut self, phase: &'static Phase, error: &DbError) -> bool {
        let may = error.is_worth_a_rerun() && self.reruns < self.core.settings.max_reruns;
        if may {
            self.reruns += 1;
            observe::rerun(phase.name, error.kind());
        }
        may
    }

    fn may_rerun_store(&mut self, phase: &'static Phase, error: &StoreError) -> bool {
        let may = error.is_worth_a_rerun() && self.reruns < self.core.settings.max_reruns;
        if may {
            self.reruns += 1;
            observe::rerun(phase.name, error.kind());
        }
        may
    }

    pub(super) async fn pause(&self) {
        tokio::time::sleep(jitter(self.reruns)).await;
    }
}

impl<F> Body<F> {
    pub(super) fn of<E: Into<BodyError<F>>>(
        ended: Result<Result<Step, E>, Box<dyn std::any::Any + Send>>,
    ) -> Self {
        match ended {
            Ok(Ok(Step::Output(output))) => Self::Output(output),
            Ok(Ok(Step::Reply(reply))) => Self::Reply(reply),
            Ok(Err(error)) => Self::Failed(error.into().0),
            // The panic's message went to the panic hook already; it may hold anything (G19).
            Err(_) => Self::Panicked,
        }
    }
}

pub(super) struct BodyError<F>(F);

impl From<crate::phase::PhaseError> for BodyError<PhaseFailure> {
    fn from(error: crate::phase::PhaseError) -> Self {
        Self(error.0)
    }
}

impl From<crate::phase::ForeignError> for BodyError<ForeignFailure> {
    fn from(error: crate::phase::ForeignError) -> Self {
        Self(error.0)
    }
}

/// The body of a local phase within its time limit, if it has one. `None`: it took longer.
async fn bounded<T>(phase: &Phase, body: impl Future<Output = T>) -> Option<T> {
    let body = body.instrument(observe::phase(phase.name));
    match phase.time_limit() {
        None => Some(body.await),
        Some(limit) => tokio::time::timeout(limit, body).await.ok(),
    }
}

pub(super) fn timed_out(phase: &Phase) -> FailureCause {
    let limit = phase.time_limit().unwrap_or_default();
    FailureCause::TimeLimit { phase: phase.name, limit }
}

pub(super) fn database(phase: &Phase, error: &DbError) -> FailureCause {
    FailureCause::Database { phase: phase.name, kind: error.kind(), about: error.about() }
}

fn store_failed(phase: &Phase, error: &StoreError) -> FailureCause {
    FailureCause::Database { phase: phase.name, kind: error.kind(), about: error.about() }
}

fn refused(phase: &Phase, refusal: Refusal) -> FailureCause {
    let rule = match refusal {
        Refusal::SwallowedError => {
            "a statement failed and the phase went on: return the error, or use a savepoint"
        }
        Refusal::LeftTransaction => {
            "the phase ended the transaction (a raw COMMIT or ROLLBACK) or forgot its settings \
             (RESET ALL): the engine commits, and knows its transaction by a setting"
        }
        Refusal::OpenSavepoint => {
            "a nested transaction() was dropped half-way (by a timeout or select!) and the phase went \
             on: return an error then, or put the time limit around statements that only read"
        }
        Refusal::SeveralStatements => {
            "a statement's text holds several statements, and only the first would be executed: add \
             each by itself"
        }
        Refusal::OutOfReach => {
            "at the end of the phase the engine cannot reach its tables: the phase changed the role or \
             the search_path; change it back before the phase returns (RESET ROLE, RESET search_path)"
        }
    };
    FailureCause::Misuse { phase: phase.name, rule }
}

/// 5 ms, doubling, up to about 1.3 s; half of it by chance, so that two that collided do not do so
/// again.
pub(super) fn jitter(tries: u32) -> Duration {
    #[cfg(feature = "fault-injection")]
    if mutated!(NoPause) {
        return Duration::ZERO;
    }
    let longest = 5_u64 << tries.min(8);
    Duration::from_millis(longest / 2 + crate::chance::up_to(longest / 2))
}
