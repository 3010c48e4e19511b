//! Sends a transition to the store, and finds out its outcome: the one place that reads the answer to a commit of
//! a run.
//!
//! `engine/resolve` reads the answer to a resolution itself, because no answer means the same there. A run has the lease
//! before it commits: its token says afterwards whose the row is. A resolution acquires the lease in the transaction that
//! writes it: if no answer comes, there is no token to ask with, and the only question is the resolution itself, sent again
//! with the row as it was read.
//!
//! | answer | run | resolution |
//! |---|---|---|
//! | `Done` | confirms the lease, wakes workers, goes on to the next phase | the caller of `resolve` has its answer; another worker runs the request |
//! | `Fenced` | the row is another holder's (G3), or the key has a row | the row was overtaken; after an answer that did not come, perhaps by the resolution itself: the row is read again |
//! | `Refused` | the phase broke the rules of its transaction | there is no phase, so nothing was written: as `Fenced` |
//! | `Failed` | nothing was written: the phase runs again, or the request is released | sent again, within bounds; after an answer that did not come, it is not known that nothing was written |
//! | `Unknown` | asked by the lease, with a locking read (G7) | sent again: it waits for the first, and finds the row as that one left it (G7) |
//!
//! So one reader of both would be two, selected at each answer. `tests/readme/commits.rs` keeps a third from being added.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use super::transition::Transition;
use super::writing::{RowBefore, Writing};
use super::{PhaseEnd, RoundEnd, Run};
use crate::definition::{BATCH_TIME_LIMIT, STARTED};
use crate::engine::jitter::jitter;
use crate::engine::outcome::{CallError, Finished, Outcome};
use crate::job::StagedJob;
use crate::moment::{Moment, wall_clock};
use crate::observe;
use crate::store::audit::AuditEntry;
use crate::store::{
    Claim, Commit, NewRow, Refusal, Right, RowTimes, Statements, Status, Store, StoreError,
    Transaction, Writes,
};

/// The outcome of a commit, after everything was asked that can be asked.
pub(super) enum CommitFate {
    /// Durable. A moment before it was sent.
    Applied(Moment),
    /// The row is another holder's (G3). Or it was to be created, and what the key has must be read first.
    EndsRound(RoundEnd),
    /// Nothing was written, and the row is as it was before.
    NotCommitted(CommitFailure),
}

/// Why a commit wrote nothing, where the row is not another holder's.
pub(super) enum CommitFailure {
    /// The phase broke the rules of its transaction.
    Refused(Refusal),
    /// The store says so.
    Failed(StoreError),
    /// It got no answer, and certainly never arrived.
    NeverArrived(StoreError),
}

impl CommitFailure {
    /// Of a commit without a phase: the error after which to try again, if that may help.
    fn worth_a_rerun(self) -> Result<StoreError, CallError> {
        match self {
            Self::NeverArrived(error) => Ok(error),
            Self::Failed(error) if error.is_worth_a_rerun() => Ok(error),
            Self::Failed(error) => Err(error.into()),
            Self::Refused(refusal) => {
                let why = format!("the store refused a write without a phase: {refusal:?}");
                Err(StoreError::Configuration(why).into())
            }
        }
    }
}

/// What a locking read says about a commit that got no answer.
enum Arrival {
    Arrived,
    NeverArrived,
    /// The row is another holder's, so it does not matter to us.
    Lost,
}

impl<S: Store> Run<S> {
    /// Commits a transition, fenced (G3), with what the phase wrote and the jobs that it staged (G4).
    /// `writing: None`: in a transaction of its own, one guarded statement; of jobs, one notice at most.
    pub(super) async fn commit(
        &mut self,
        writing: Option<Writing<'_, S>>,
        within: Duration,
        transition: &Transition,
        jobs: &[StagedJob],
    ) -> Result<CommitFate, CallError> {
        let row = writing.as_ref().map_or(RowBefore::Committed, Writing::row_before);
        // Before it is sent: no later than what the database writes.
        let kept = transition.keep_for.and_then(|keep_for| self.core.clock.after(keep_for));
        let sent = Moment::now();
        // Boxed, because a store's future is large, and a request would have room for it throughout its foreign calls.
        let answer = boxed!(self.send(writing, within, transition, jobs)).await;
        let fate = self.fate_of(answer, row, transition, sent).await?;
        if let CommitFate::Applied(sent) = fate {
            self.lease.confirm(sent);
            self.expires_at = kept.map_or(self.expires_at, |kept| kept.max(self.expires_at));
            if row != RowBefore::Committed {
                self.creation.committed(self.definition.name);
            }
            if row == RowBefore::Absent {
                self.core.attempt_begins(
                    self.context.request_id,
                    (transition.status != Status::Pending).into(),
                    STARTED,
                    None,
                );
            }
            if !jobs.is_empty() {
                self.core.wakeups.staged.notify_one();
            }
            // A resolution of an unknown outcome forgives all attempts before it, in the row and here.
            if transition.settles.attempts() {
                self.forgiven_attempts = self.context.attempt;
            }
        }
        Ok(fate)
    }

    /// What the answer to a commit means. Where there was none, asks for the outcome.
    async fn fate_of(
        &mut self,
        answer: Commit<Option<RowTimes>>,
        row: RowBefore,
        transition: &Transition,
        sent: Moment,
    ) -> Result<CommitFate, CallError> {
        let is_created = row == RowBefore::Absent;
        Ok(match answer {
            Commit::Done(times) => {
                if let Some(RowTimes { written_at, expires_at }) = times {
                    self.core.clock.set(written_at);
                    self.expires_at = expires_at;
                }
                CommitFate::Applied(sent)
            }
            // The key has a row.
            Commit::Fenced if is_created => CommitFate::EndsRound(RoundEnd::Changed),
            Commit::Fenced => CommitFate::EndsRound(self.lost()),
            Commit::Refused(refusal) => CommitFate::NotCommitted(CommitFailure::Refused(refusal)),
            Commit::Failed(StoreError::Locked) if is_created => {
                CommitFate::EndsRound(RoundEnd::Busy)
            }
            Commit::Failed(_) if is_created && mutated!(FailureToldAsBusy) => {
                CommitFate::EndsRound(RoundEnd::Busy)
            }
            Commit::Failed(error) => CommitFate::NotCommitted(CommitFailure::Failed(error)),
            Commit::Unknown(error) => {
                observe::commit_unanswered(self.definition.name, self.subject());
                if row != RowBefore::Committed {
                    self.creation.unanswered();
                    return Ok(CommitFate::EndsRound(RoundEnd::Restart(error)));
                }
                match boxed!(self.ask_until_answered(transition)).await? {
                    Arrival::Arrived => CommitFate::Applied(sent),
                    Arrival::NeverArrived => {
                        CommitFate::NotCommitted(CommitFailure::NeverArrived(error))
                    }
                    Arrival::Lost => CommitFate::EndsRound(self.lost()),
                }
            }
        })
    }

    /// Between the two crash points that fit what is committed.
    async fn send(
        &self,
        writing: Option<Writing<'_, S>>,
        within: Duration,
        transition: &Transition,
        jobs: &[StagedJob],
    ) -> Commit<Option<RowTimes>> {
        faults! {
            let writing = match self.mutant_commit(writing, transition, jobs).await {
                Ok(commit) => return commit.map(|()| None),
                Err(writing) => writing,
            };
        }
        committing!(self.phase_of(writing.as_ref(), transition), transition.kind(), {
            let (guard, change) = (self.guard(), transition.change());
            let store = &self.core.store;
            match writing {
                None => store.write_change(&guard, &change, jobs.first()).await.map(|()| None),
                Some(Writing::Open(tx) | Writing::Reserved(_, tx)) => {
                    tx.commit(&guard, &change, jobs).await.map(|()| None)
                }
                Some(Writing::Statements(isolation, statements)) => {
                    let writes = Writes { statements, jobs, within };
                    store.advance_key(isolation, &guard, &change, writes).await.map(|()| None)
                }
                Some(Writing::Create(row, statements)) => {
                    let writes = Writes { statements, jobs, within };
                    store.create_key(row, self.context.created_at, &change, writes).await.map(Some)
                }
            }
        })
    }

    /// Acquires the row and writes the transition, in one transaction. Its outcome is the caller's to find
    /// out.
    pub(in crate::engine) async fn settle(
        &self,
        claim: &Claim<'_>,
        transition: &Transition,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        let (store, hold) = (&self.core.store, self.core.settings.hold());
        committing!(self.phase_of(None, transition), transition.kind(), {
            store.settle_key(claim, hold, &transition.change(), audit).await
        })
    }

    /// The phase that the crash points of a commit are named after.
    pub(super) fn phase_of(
        &self,
        writing: Option<&Writing<'_, S>>,
        transition: &Transition,
    ) -> &'static str {
        let is_created = writing.is_some_and(|writing| writing.row_before() == RowBefore::Absent);
        if is_created && transition.point == STARTED {
            return STARTED;
        }
        let phases = self.definition.phases;
        let reached = phases.iter().find(|phase| phase.is_called(&transition.point));
        let next = phases.get(self.outputs.len()).or(phases.last());
        let phase = reached.filter(|_| transition.advances()).or(next);
        phase.map_or("", |phase| phase.name)
    }

    /// Finds out the outcome of a commit that got no answer, before anything else happens (G7).
    async fn ask_until_answered(&mut self, transition: &Transition) -> Result<Arrival, CallError> {
        // Past the lease another process may have the row; it is for that one to find out then.
        let until = Moment::now().after(self.core.settings.lease);
        let mut tries = 0;
        loop {
            match self.ask(transition).await {
                Ok(arrival) => return Ok(arrival),
                Err(error) if Moment::now() >= until => return Err(error.into()),
                Err(_) => {
                    tries += 1;
                    tokio::time::sleep(jitter(tries)).await;
                }
            }
        }
    }

    async fn ask(&mut self, transition: &Transition) -> Result<Arrival, StoreError> {
        let token = self.lease.token();
        let claim = Claim {
            scope: &self.context.scope,
            key: &self.context.key,
            request_id: self.context.request_id,
            lease_token: token,
            status: Status::InProgress,
            recovery_point: None,
            phases: None,
            right: Right::Own,
            opens_window: false,
            event: None,
            trace: None,
        };
        faults! { let claim = super::mutants::claim(&self.core.store, claim).await; }
        reach!(&transition.point, BeforeTakeOver);
        let sent = Moment::now();
        // A locking write: it waits for our commit if that is still under way, and fences it off if
        // it never arrived. A plain read could miss it (H5).
        if let Some(row) = self.core.store.take_over_key(&claim, self.core.settings.hold()).await? {
            reach!(&transition.point, AfterTakeOver);
            self.lease.raise(row.lease_token, sent);
            let intends = row.open_intent == transition.intent || mutated!(AssumeIntent);
            let arrived = transition.status == Status::InProgress
                && row.recovery_point == transition.point
                && intends;
            return Ok(if arrived { Arrival::Arrived } else { Arrival::NeverArrived });
        }
        // Not in progress under our token: our own commit ended it, or another process took it over. The
        // update above has waited for the row's lock, so this read is not early.
        let (scope, key) = (&self.context.scope, &self.context.key);
        let row = reading!("read", self.core.store.read_key(scope, key))?;
        let ours = row.is_some_and(|row| {
            row.request_id == self.context.request_id
                && (row.lease_token == token || mutated!(AskWithoutToken))
                && row.status == transition.status
        });
        Ok(if ours { Arrival::Arrived } else { Arrival::Lost })
    }

    /// Writes a transition in a transaction of its own, as often as it takes, within bounds. Continues with a
    /// moment before it was sent.
    pub(super) async fn write(
        &mut self,
        transition: &Transition,
    ) -> Result<ControlFlow<RoundEnd, Moment>, CallError> {
        loop {
            let notice = transition.notice.as_slice();
            let error = match self.commit(None, BATCH_TIME_LIMIT, transition, notice).await? {
                CommitFate::Applied(sent) => return Ok(Continue(sent)),
                CommitFate::EndsRound(end) => return Ok(Break(end)),
                CommitFate::NotCommitted(failure) => failure.worth_a_rerun()?,
            };
            // Bounded, also where a write is lost each time on its way: the lease then runs out, and the
            // next attempt continues (G17).
            if self.reruns >= self.core.settings.max_reruns {
                return Err(error.into());
            }
            self.reruns += 1;
            self.core.store.recover_from(&error).await;
            self.pause().await;
        }
    }

    /// Writes a transition that leads on, and goes on from there.
    pub(super) async fn write_and_arrive(&mut self, transition: Transition) -> PhaseEnd {
        Ok(match self.write(&transition).await? {
            Continue(sent) => self.arrive(transition, sent),
            Break(end) => Break(end),
        })
    }

    /// Creates the row as the transition leaves it, with nothing else in its commit.
    pub(super) async fn create(&mut self, row: &NewRow<'_>, transition: Transition) -> PhaseEnd {
        let writing = Some(Writing::Create(row, Statements::default()));
        Ok(match self.commit(writing, BATCH_TIME_LIMIT, &transition, &[]).await? {
            CommitFate::Applied(sent) => self.arrive(transition, sent),
            CommitFate::EndsRound(end) => Break(end),
            CommitFate::NotCommitted(failure) => {
                let error = failure.worth_a_rerun()?;
                self.core.store.recover_from(&error).await;
                Break(RoundEnd::Restart(error))
            }
        })
    }

    /// The transition is durable: only now may a caller hear of it (G8). `sent`: a moment before its
    /// commit was sent.
    pub(super) fn arrive(&mut self, transition: Transition, sent: Moment) -> ControlFlow<RoundEnd> {
        observe::committed(&transition.point);
        if transition.intent.is_none() {
            self.may_be_executed = None;
        }
        self.may_be_called = false;
        self.advanced = (Duration::ZERO, sent);
        self.point = transition.point;
        let Some((reply, stored)) = transition.finished else { return Continue(()) };
        let (name, expires_at) = (self.definition.name, self.expires_at);
        observe::completed(name, self.context.attempt, self.age());
        self.core.traced_end(stored.status);
        self.core.remember(&self.whose(), stored, expires_at, sent, self.hint.clone());
        faults! { let reply = super::mutants::reply(reply); }
        let finished = Finished { reply, replayed: false, expires_at };
        Break(RoundEnd::Outcome(Outcome::Finished(finished)))
    }

    /// Since the creation of the request, by the database's clock where it was heard lately.
    fn age(&self) -> Duration {
        if !cfg!(feature = "metrics") {
            return Duration::ZERO;
        }
        let now = self.core.clock.reads().unwrap_or_else(wall_clock);
        (now - self.context.created_at).to_std().unwrap_or_default()
    }

    pub(super) async fn pause(&self) {
        tokio::time::sleep(jitter(self.reruns)).await;
    }
}
