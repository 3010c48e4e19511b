//! The next state of a row, how it is written, and how a commit that got no answer is resolved.

use std::borrow::Cow;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use serde_json::value::RawValue;

use super::lease::Holder;
use super::outcome::{ExecuteError, FailureCause, Finished, Outcome};
use super::run::{Ended, Run, jitter};
use super::stored::Rule;
use crate::definition::{FINISHED, Phase};
use crate::moment::Moment;
use crate::observe::{self, Subject};
use crate::phase::Reply;
use crate::store::{
    Change, Claim, Commit, Guard, Right, Settles, Status, Store, StoreError, StoredResponse,
    Transaction,
};

/// A state that the row is to move to.
pub(super) struct Moved {
    pub(super) status: Status,
    pub(super) point: String,
    outputs: Option<Vec<u8>>,
    intent: Option<String>,
    hold: Duration,
    resolution: Option<String>,
    pub(super) settles: Settles,
    reason: Option<Cow<'static, str>>,
    /// How many attempts are taken off the count against the cap.
    forgiven: u32,
    finished: Option<(Reply, StoredResponse)>,
}

pub(super) const ATTEMPT_CAP: &str = "gave up at the attempt cap";

/// The reason of a dead letter: which cap was reached, and why it was tried until then.
pub(super) fn at_cap(cap: &'static str, last: Option<&str>) -> Cow<'static, str> {
    match last {
        Some(last) if !last.starts_with(cap) => format!("{cap}: {last}").into(),
        Some(last) => last.to_owned().into(),
        None => cap.into(),
    }
}

/// What became of a commit that got no answer.
pub(super) enum Fate {
    Applied,
    NotApplied,
    /// Somebody else holds the row, so it does not matter to us.
    Lost,
}

impl<S: Store, A: Send + Sync + 'static> Run<S, A> {
    /// After `phase`, with its output. The output is part of the run from here on; a caller whose
    /// commit fails truncates it again.
    pub(super) fn moved_by_output(
        &mut self,
        phase: &Phase,
        output: Box<RawValue>,
    ) -> Result<Moved, Rule> {
        let done = self.outputs.len();
        if done + 1 == self.definition.phases.len() {
            return Err("the last phase returned an output and no reply");
        }
        self.outputs.push(phase.name, output);
        let encoded = self.core.encode_outputs(&self.holder.scope, &self.holder.key, &self.outputs);
        match encoded {
            Ok(outputs) => Ok(Moved {
                outputs: Some(outputs),
                ..self.moved(Status::InProgress, phase.name, self.core.settings.lease)
            }),
            Err(rule) => {
                self.outputs.truncate(done);
                Err(rule)
            }
        }
    }

    /// Finished with `reply`.
    pub(super) fn moved_by_reply(&self, reply: Reply) -> Result<Moved, Rule> {
        let stored = self.core.encode_reply(&self.holder.scope, &self.holder.key, &reply)?;
        if cfg!(debug_assertions) {
            let names = self.core.not_replayed(&reply);
            names.for_each(|name| observe::header_not_replayed(self.subject(), name));
        }
        Ok(Moved {
            finished: Some((reply, stored)),
            ..self.moved(Status::Completed, FINISHED, Duration::ZERO)
        })
    }

    /// Where it stands, with the intent to make `phase`'s call.
    pub(super) fn moved_by_intent(&self, phase: &Phase) -> Moved {
        Moved {
            intent: Some(phase.name.to_owned()),
            ..self.moved(Status::InProgress, &self.point, self.core.settings.lease)
        }
    }

    fn moved(&self, status: Status, point: &str, hold: Duration) -> Moved {
        Moved {
            status,
            point: point.to_owned(),
            outputs: None,
            intent: None,
            hold,
            resolution: None,
            settles: Settles::Nothing,
            reason: None,
            forgiven: 0,
            finished: None,
        }
    }

    /// What a log may know of the request.
    pub(super) fn subject(&self) -> Subject<'_> {
        let Holder { scope, key, request_id } = &self.holder;
        Subject { definition: self.definition.name, request_id: *request_id, scope, key }
    }

    pub(super) fn guard(&self) -> Guard<'_> {
        self.holder.guard(self.lease.token(), &self.point)
    }

    pub(super) fn change<'a>(&'a self, moved: &'a Moved) -> Change<'a> {
        Change {
            status: moved.status,
            recovery_point: &moved.point,
            outputs: moved.outputs.as_deref(),
            open_intent: moved.intent.as_deref(),
            hold: moved.hold,
            resolution: moved.resolution.as_deref(),
            settles: moved.settles,
            reason: moved.reason.as_deref(),
            forgiven_attempts: moved.forgiven,
            response: moved.finished.as_ref().map(|(_, stored)| stored),
        }
    }

    /// The move is durable: only now may a caller hear of it (G8). `sent`: a moment before its commit was
    /// sent.
    pub(super) fn arrive(
        &mut self,
        moved: Moved,
        sent: Moment,
    ) -> Result<ControlFlow<Ended>, ExecuteError> {
        observe::committed(&moved.point);
        self.lease.confirm(sent);
        self.advanced = (Duration::ZERO, sent);
        self.point = moved.point;
        Ok(match moved.finished {
            None => Continue(()),
            Some((reply, _)) => Break(Ended::Outcome(Outcome::Finished(Finished {
                #[cfg(feature = "fault-injection")]
                reply: super::mutants::told(reply),
                #[cfg(not(feature = "fault-injection"))]
                reply,
                replayed: false,
                expires_at: self.expires_at,
            }))),
        })
    }

    /// Writes `moved` in a transaction of its own. Returns a moment before the write was sent; `None` where
    /// the row is another holder's.
    pub(super) async fn write(&mut self, moved: &Moved) -> Result<Option<Moment>, ExecuteError> {
        loop {
            let sent = Moment::now();
            let error = match self.write_once(moved).await {
                Commit::Done => {
                    self.lease.confirm(sent);
                    self.settled_by(moved);
                    return Ok(Some(sent));
                }
                Commit::Fenced => {
                    observe::lost(self.definition.name);
                    return Ok(None);
                }
                Commit::Refused(_) => return Ok(None),
                Commit::Unknown(error) => {
                    let (error, fate) = self.resolve(moved, error).await?;
                    match fate {
                        Fate::Applied => {
                            self.settled_by(moved);
                            return Ok(Some(sent));
                        }
                        Fate::Lost => return Ok(None),
                        Fate::NotApplied => error,
                    }
                }
                Commit::Failed(error) if error.is_worth_a_rerun() => error,
                Commit::Failed(error) => return Err(error.into()),
            };
            // Bounded, also where a write is lost each time on its way: the lease then runs out, and the
            // next attempt goes on (G17).
            if self.reruns >= self.core.settings.max_reruns {
                return Err(error.into());
            }
            self.reruns += 1;
            self.pause().await;
        }
    }

    /// A word about an unknown outcome forgives all attempts before it, in the row and here.
    fn settled_by(&mut self, moved: &Moved) {
        if moved.settles.attempts() {
            self.forgiven_attempts = self.context.attempt;
        }
    }

    async fn write_once(&self, moved: &Moved) -> Commit {
        #[cfg(feature = "fault-injection")]
        return self.write_with_faults(moved).await;
        #[cfg(not(feature = "fault-injection"))]
        self.core.store.write(&self.guard(), &self.change(moved)).await
    }

    /// The same between the two points that fit what is written.
    #[cfg(feature = "fault-injection")]
    async fn write_with_faults(&self, moved: &Moved) -> Commit {
        let moves = self.definition.phases.iter().find(|phase| phase.is_called(&moved.point));
        let next = self.definition.phases.get(self.outputs.len()).or(self.definition.phases.last());
        let advances = moved.status == Status::InProgress && moved.intent.is_none();
        let phase = moves.filter(|_| advances).or(next).map_or("", |phase| phase.name);
        let write = async { self.core.store.write(&self.guard(), &self.change(moved)).await };
        match (moved.status, &moved.intent) {
            (Status::InProgress, Some(_)) => {
                committing!(phase, BeforeIntent to AfterIntent, write.await)
            }
            (Status::InProgress | Status::Completed, _) => {
                committing!(phase, BeforeCommit to AfterCommit, write.await)
            }
            _ => committing!(phase, BeforeRelease to AfterRelease, write.await),
        }
    }

    /// Finds out what became of a commit that got no answer, before anything else happens (G7). Returns the
    /// commit's own error along with it.
    pub(super) async fn resolve(
        &mut self,
        moved: &Moved,
        error: StoreError,
    ) -> Result<(StoreError, Fate), ExecuteError> {
        observe::commit_unanswered(self.subject());
        // Past the lease another process may have the row; it is for that one to find out then.
        let until = Moment::now().after(self.core.settings.lease);
        for tries in 1.. {
            match self.ask(moved).await {
                Ok(fate) => return Ok((error, fate)),
                Err(error) if Moment::now() >= until => return Err(error.into()),
                Err(_) => tokio::time::sleep(jitter(tries)).await,
            }
        }
        Err(error.into())
    }

    async fn ask(&mut self, moved: &Moved) -> Result<Fate, StoreError> {
        let token = self.lease.token();
        let claim = Claim {
            scope: &self.holder.scope,
            key: &self.holder.key,
            request_id: self.holder.request_id,
            lease_token: token,
            status: Status::InProgress,
            recovery_point: None,
            phases: None,
            right: Right::Own,
        };
        #[cfg(feature = "fault-injection")]
        let claim = super::mutants::claim(&self.core.store, claim).await;
        let sent = Moment::now();
        // A locking write: it waits for our commit if that is still under way, and fences it off if
        // it never arrived. A plain read could miss it (H5).
        if let Some(row) = self.core.store.take_over(&claim, self.core.settings.hold()).await? {
            self.lease.raise(row.lease_token, sent);
            let intends = row.open_intent == moved.intent;
            #[cfg(feature = "fault-injection")]
            let intends = super::mutants::intends(intends);
            let applied =
                moved.status == Status::InProgress && row.recovery_point == moved.point && intends;
            return Ok(if applied { Fate::Applied } else { Fate::NotApplied });
        }
        // Not in progress under our token: our own commit ended it, or another process took it over. The
        // update above has waited for the row's lock, so this read is not early.
        let row = self.core.store.read(&self.holder.scope, &self.holder.key).await?;
        let ours = row.is_some_and(|row| {
            let under_our_token = row.lease_token == token;
            #[cfg(feature = "fault-injection")]
            let under_our_token = super::mutants::under_our_token(under_our_token);
            row.request_id == self.holder.request_id
                && under_our_token
                && row.status == moved.status
        });
        Ok(if ours { Fate::Applied } else { Fate::Lost })
    }

    /// Stores the reply and finishes.
    pub(super) async fn finish(
        &mut self,
        phase: &Phase,
        reply: Reply,
    ) -> Result<ControlFlow<Ended>, ExecuteError> {
        let moved = match self.moved_by_reply(reply) {
            Ok(moved) => moved,
            Err(rule) => {
                let cause = FailureCause::Misuse { phase: phase.name, rule };
                return self.stop(cause, None).await.map(Break);
            }
        };
        match self.write(&moved).await? {
            Some(sent) => self.arrive(moved, sent),
            None => Ok(Break(Ended::Lost)),
        }
    }

    /// Finishes a request whose first phase rejected it: `tx` has just created the row anew.
    pub(super) async fn finish_fresh(
        mut self,
        tx: S::Transaction,
        reply: Reply,
    ) -> Result<Ended, ExecuteError> {
        let moved = match self.moved_by_reply(reply.clone()) {
            Ok(moved) => moved,
            Err(rule) => {
                tx.rollback().await;
                let cause = FailureCause::Misuse { phase: self.first_phase_name(), rule };
                observe::not_begun(self.subject(), &cause);
                let retry_after = self.core.settings.back_off(1);
                return Ok(Ended::Outcome(Outcome::Failed { cause, retry_after }));
            }
        };
        let sent = Moment::now();
        match tx.commit(&self.guard(), &self.change(&moved), &[]).await {
            Commit::Done => match self.arrive(moved, sent)? {
                Break(ended) => Ok(ended),
                Continue(()) => Ok(Ended::Lost),
            },
            Commit::Unknown(error) => Ok(Ended::Again { error, rejected: Some(reply) }),
            Commit::Failed(error) => Err(error.into()),
            Commit::Fenced | Commit::Refused(_) => Ok(Ended::Lost),
        }
    }

    fn first_phase_name(&self) -> &'static str {
        self.definition.phases.first().map_or("", |phase| phase.name)
    }

    /// Releases the row after a passing failure, with what is done so far, so that whoever comes
    /// next resumes at once.
    pub(super) async fn stop(
        &mut self,
        cause: FailureCause,
        after: Option<Duration>,
    ) -> Result<Ended, ExecuteError> {
        let settings = &self.core.settings;
        let failures = self.failures();
        let left = self.back_off_ends.map(|ends| ends.since(Moment::now())).unwrap_or_default();
        // The cap stands for that many back-offs: an attempt that a client began, and ended, before the
        // back-off had passed does not count, nor does one that ends with its process.
        let counts = left.is_zero() && cause != FailureCause::ShuttingDown;
        #[cfg(feature = "fault-injection")]
        let counts = counts || mutated!(CountEveryAttempt);
        if counts && failures >= settings.max_attempts {
            let reason = Some(at_cap(ATTEMPT_CAP, Some(cause.reason())));
            return self.leave(Status::DeadLetter, None, Duration::ZERO, reason).await;
        }
        let hold = match after {
            // Nor does it move the end of that back-off, so that the next attempt after it counts.
            _ if !left.is_zero() && cause != FailureCause::ShuttingDown => left,
            Some(after) => after.min(settings.longest_back_off_asked_for()),
            None => settings.back_off(failures),
        };
        let (forgiven, reason) = (u32::from(!counts), Some(cause.reason().into()));
        let released = Moved { forgiven, reason, ..self.standing(Status::FailedRetryable, hold) };
        #[cfg(feature = "fault-injection")]
        let released = super::mutants::released(released);
        if self.write(&released).await?.is_none() {
            return Ok(Ended::Lost);
        }
        observe::released(self.subject(), &cause, hold);
        Ok(Ended::Outcome(Outcome::Failed { cause, retry_after: hold }))
    }

    /// Leaves a row to an operator whose attempts are used up. The takeover that found it so was none.
    /// `last`: why the last attempt ended.
    pub(super) async fn give_up(&mut self, last: Option<&str>) -> Result<Ended, ExecuteError> {
        let reason = Some(at_cap(ATTEMPT_CAP, last));
        let standing = self.standing(Status::DeadLetter, Duration::ZERO);
        self.leave_at(Moved { forgiven: 1, reason, ..standing }).await
    }

    /// Leaves the row to a reconcile function. `intent`: the phase whose call may have had its effect.
    pub(super) async fn leave_unknown(
        &mut self,
        intent: Option<&str>,
        reason: &'static str,
    ) -> Result<Ended, ExecuteError> {
        let phase = intent.unwrap_or_default();
        let hold = self.reconcile_after(phase);
        let left = self.leave(Status::Unknown, intent, hold, Some(reason.into())).await?;
        if matches!(left, Ended::Outcome(_)) {
            observe::unknown(self.definition.name, self.subject(), phase, reason);
        }
        Ok(left)
    }

    /// Leaves the row to a reconcile function or an operator. `reason: None` leaves the reason that it has.
    pub(super) async fn leave(
        &mut self,
        status: Status,
        intent: Option<&str>,
        hold: Duration,
        reason: Option<Cow<'static, str>>,
    ) -> Result<Ended, ExecuteError> {
        let intent = intent.map(str::to_owned);
        let left = Moved { intent, reason, ..self.standing(status, hold) };
        self.leave_at(left).await
    }

    async fn leave_at(&mut self, left: Moved) -> Result<Ended, ExecuteError> {
        let Moved { status, hold, .. } = left;
        if self.write(&left).await?.is_none() {
            return Ok(Ended::Lost);
        }
        Ok(Ended::Outcome(match status {
            Status::DeadLetter => {
                let reason = left.reason.as_deref().unwrap_or_default();
                observe::dead_letter(self.definition.name, self.subject(), reason);
                Outcome::DeadLetter
            }
            _ => Outcome::Unknown { retry_after: hold },
        }))
    }

    /// Releases the row after a word that settles what was unknown.
    pub(super) fn released(&self, resolution: String, settles: Settles, hold: Duration) -> Moved {
        Moved {
            resolution: Some(resolution),
            settles,
            ..self.moved(Status::FailedRetryable, &self.point, hold)
        }
    }

    /// Released behind `phase`, with the output that a webhook or an operator vouches for.
    pub(super) fn released_behind(
        &mut self,
        phase: &Phase,
        output: Box<RawValue>,
        resolution: String,
    ) -> Result<Moved, Rule> {
        let moved = self.resumed_behind(phase, output, resolution)?;
        let (status, hold) = (Status::FailedRetryable, Duration::ZERO);
        Ok(Moved { status, hold, ..moved })
    }

    /// Goes on behind `phase`, with the output that its reconcile function vouches for.
    pub(super) fn resumed_behind(
        &mut self,
        phase: &Phase,
        output: Box<RawValue>,
        resolution: String,
    ) -> Result<Moved, Rule> {
        let moved = self.moved_by_output(phase, output)?;
        Ok(Moved { resolution: Some(resolution), settles: Settles::Attempts, ..moved })
    }

    /// Finished with a reply that an operator vouches for.
    pub(super) fn finished_by(&self, reply: Reply, resolution: String) -> Result<Moved, Rule> {
        let moved = self.moved_by_reply(reply)?;
        Ok(Moved { resolution: Some(resolution), settles: Settles::Attempts, ..moved })
    }

    /// How many attempts count against the cap, this one included.
    pub(super) fn failures(&self) -> u32 {
        self.context.attempt.saturating_sub(self.forgiven_attempts).max(1)
    }

    /// The row as it stands, with a foreign result that has not been committed yet.
    fn standing(&self, status: Status, hold: Duration) -> Moved {
        let last = self.outputs.phases().last();
        let riding = last.filter(|last| *last != self.point);
        let (holder, core) = (&self.holder, &self.core);
        let outputs = riding
            .and_then(|_| core.encode_outputs(&holder.scope, &holder.key, &self.outputs).ok());
        match (riding, outputs) {
            (Some(point), Some(outputs)) => {
                Moved { outputs: Some(outputs), ..self.moved(status, point, hold) }
            }
            _ => self.moved(status, &self.point, hold),
        }
    }
}
