//! One call on its way: looks at the key's row, decides, and creates it or takes it over, until there is
//! an answer.

use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::value::RawValue;
use uuid::Uuid;

use super::creation::Creation;
use super::decide::{Answer, Comparison, Decision, decide};
use super::given::Asking;
use super::jitter::jitter;
use super::lease::Entered;
use super::outcome::{CallError, FailureCause, Finished, Outcome};
use super::quota::Admission;
use super::replays::{CacheAnswer, Whose};
use super::run::{RoundEnd, timed_out};
use super::{Core, observed};
use crate::caller::Caller;
use crate::definition::Definition;
use crate::fingerprint::Fingerprint;
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::movable_task::MovableTask;
use crate::observe::{self, Span, Subject};
use crate::store::{KeyRow, KeySummary, Right, Status, Store, StoreError};
use crate::task::{self, UnlessEnded};

/// One call on its way, detached from its caller.
pub(super) struct Attempt<S: Store> {
    pub(super) core: Arc<Core<S>>,
    pub(super) scope: Scope,
    pub(super) key: IdempotencyKey,
    pub(super) definition: Definition,
    pub(super) phases: Arc<str>,
    pub(super) fingerprint: Fingerprint,
    pub(super) given: Box<dyn Asking<S>>,
    /// What the stored parameters of a row came to, once they were read.
    pub(super) compared: Mutex<Option<(Uuid, Comparison)>>,
    pub(super) context: Option<Box<RawValue>>,
    pub(super) mode: Mode,
    /// Whether to read the key's row before it is reserved.
    pub(super) reads_first: bool,
    /// Under which this call creates the row, if it does. By it the call knows its own row again
    /// after a commit that got no answer.
    pub(super) request_id: Uuid,
    pub(super) creation: Arc<Creation>,
    /// Until when to wait for the other process.
    pub(super) patience: Option<Moment>,
    pub(super) caller: Caller,
    pub(super) began: Moment,
    pub(super) _entered: Entered,
}

/// What a call does with a request that no process runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Run,
    /// Stores it and leaves the work to the workers.
    Accept,
}

/// What the rounds of one call came to so far.
#[derive(Default)]
struct Rounds {
    /// How often the row changed between two statements since it was last waited for.
    races: u32,
    /// How often a commit of this call failed or got no answer.
    restarts: u32,
    /// How often it waited for another holder.
    waits: u32,
    /// Whether it ran the request and lost it to another holder.
    ran: bool,
    /// A moment before it first sent a row to be created.
    first_sent: Option<Moment>,
    /// Why the last commit is not tried again.
    too_slow: Option<FailureCause>,
    /// The quota's word about a new key, asked for once.
    admitted: Option<Option<Arc<Admission>>>,
}

/// What a round knows of the key's row when it begins.
enum RowAtStart {
    /// Nothing: the round reads the row.
    NotRead,
    /// The caller expects a new key, so there should be no row.
    ExpectedNew,
    /// What has just been read.
    Read(Option<KeySummary>),
}

/// After how long to ask again, at least, if another process works on the row.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// How often the row is looked at anew because it changed between two statements (H20).
pub(super) const MAX_ROUNDS: u32 = 16;

impl<S: Store> Attempt<S> {
    /// On a task of its own: its caller may go away, and that must not cancel a phase (`w35_*` in `tests/http`).
    pub(super) async fn detached(mut self) -> Result<Outcome, CallError> {
        let span = self.span();
        // Reading has no side effects, so it needs no task of its own; a replay is most often only this.
        let answer = async {
            if let Some(outcome) = self.cached().await {
                return Ok((None, Some(outcome)));
            }
            let mut row = match self.reads_first {
                true => self.core.store.look_up_key(&self.scope, &self.key).await?,
                false => None,
            };
            let told = self.outcome_of_row(&mut row).await?;
            Ok::<_, CallError>((row, told))
        };
        let row = match span.clone().around(pin!(answer)).await {
            Ok((row, None)) => row,
            Ok((_, Some(outcome))) => return span.in_scope(|| self.report(Ok(outcome))),
            Err(error) => return span.in_scope(|| self.report(Err(error))),
        };
        let (_present, caller) = Caller::elsewhere();
        self.caller = caller;
        // Boxed, because tokio moves a task's future about several times. What is large is in a box of its own.
        let settling = span.around(boxed!(async move {
            let lost = UnlessEnded::new(|| {
                let _ = self.report(Err(CallError::TaskLost));
            });
            let row_at_start =
                if self.reads_first { RowAtStart::Read(row) } else { RowAtStart::ExpectedNew };
            let settled = boxed!(self.settle(row_at_start)).await;
            lost.ended();
            settled
        }));
        let settled = task::spawn_movable(carried!(settling)).await;
        settled.unwrap_or(Err(CallError::TaskLost))
    }

    /// On the caller's own task.
    pub(super) async fn in_place(self) -> Result<Outcome, CallError> {
        let span = if self.core.is_traced() { self.span() } else { Span::none() };
        let settling = span.around(boxed!(self.unspanned()));
        MovableTask::new(carried!(settling)).await.unwrap_or(Err(CallError::TaskLost))
    }

    fn span(&self) -> Span {
        let is_traced = self.core.is_traced();
        observe::spans::request(&self.definition, &self.scope, &self.key, is_traced)
    }

    async fn unspanned(self) -> Result<Outcome, CallError> {
        if let Some(outcome) = self.cached().await {
            return self.report(Ok(outcome));
        }
        let row_at_start =
            if self.reads_first { RowAtStart::NotRead } else { RowAtStart::ExpectedNew };
        // Boxed, because the future of a whole request is deep, and its caller's is deeper.
        boxed!(self.settle(row_at_start)).await
    }

    /// The answer to this very request, where the replay cache has it: it is finished, so there is nothing else that
    /// the row could say. Or that it is in progress, where the row would be read for nothing else. Whatever the cache
    /// has besides is the row's to judge.
    async fn cached(&self) -> Option<Outcome> {
        let replays = self.core.replays.as_ref().filter(|_| self.reads_first)?;
        let whose = Whose {
            scope: &self.scope,
            key: &self.key,
            definition: self.definition.name,
            fingerprint: self.fingerprint.as_str(),
        };
        // Boxed, so that a call without a cache is no larger for it.
        let entry = match Box::pin(replays.ask(&self.core.store, &whose)).await? {
            CacheAnswer::Answer(entry) => entry,
            CacheAnswer::InProgress(left) => {
                let hears_it = self.patience.is_none() && self.mode == Mode::Run;
                let retry_after = self.core.settings.ask_again_after(left);
                return hears_it.then_some(Outcome::InProgress { retry_after });
            }
        };
        let expires_at = entry.expires_at;
        let reply =
            self.core.decode_reply(&self.scope, &self.key, Some(entry.response)).ok()?.ok()?;
        Some(Outcome::Finished(Finished { reply, replayed: true, expires_at }))
    }

    /// The outcome that the row alone determines; `None`: there is something to do.
    async fn outcome_of_row(
        &self,
        row: &mut Option<KeySummary>,
    ) -> Result<Option<Outcome>, CallError> {
        let Some(found) = row.as_ref() else { return Ok(None) };
        let Some(facts) = self.facts(found).await? else { return Ok(None) };
        let answer = match decide(found, &facts) {
            Decision::Create
            | Decision::TakeOver
            | Decision::Recover
            | Decision::Answer(Answer::InProgress { .. }) => return Ok(None),
            // Settled while this call waits, perhaps.
            Decision::Answer(Answer::Unknown { looked_into: Some(after) })
                if self.can_wait(after) =>
            {
                return Ok(None);
            }
            Decision::Answer(answer) => answer,
        };
        row.take().map(|row| self.answer(answer, row)).transpose()
    }

    /// Another transaction is about to create the key's row, or to change the one that there is, and
    /// takes long. What a row says comes before that it is busy: a call that expected a new key has not
    /// looked at it yet (G9).
    async fn busy(&self) -> Result<Outcome, CallError> {
        let retry_after = self.core.settings.creation_wait;
        if self.caller.is_gone() {
            return Ok(Outcome::InProgress { retry_after });
        }
        let mut row = self.look().await?;
        let told = self.outcome_of_row(&mut row).await?;
        Ok(told.unwrap_or(Outcome::InProgress { retry_after }))
    }

    fn report(&self, outcome: Result<Outcome, CallError>) -> Result<Outcome, CallError> {
        observed::answered(self.definition.name, &outcome, self.began.elapsed());
        self.core.traced_answer(&outcome);
        if let Some(scopes) = &self.core.scopes {
            observe::answered_to(scopes, &self.scope, observed::outcome_label(&outcome));
        }
        if let Err(error) = &outcome {
            observed::call_failed(self.subject(), error);
        }
        outcome
    }

    /// What a log may know of the request. Its id is that of this call, as long as no row is known.
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject {
            definition: self.definition.name,
            request_id: self.request_id,
            scope: &self.scope,
            key: &self.key,
        }
    }

    /// Round after round, until there is an answer.
    async fn settle(&self, mut row_at_start: RowAtStart) -> Result<Outcome, CallError> {
        let mut rounds = Rounds::default();
        let settled = loop {
            let next = match self.run_round(row_at_start, &mut rounds).await {
                Ok(end) => self.after_round(end, &mut rounds).await,
                Err(error) => Err(error),
            };
            match next {
                Ok(Continue(next)) => row_at_start = next,
                Ok(Break(outcome)) => break Ok(outcome),
                Err(error) => break Err(error),
            }
        };
        if self.creation.is_unknown() {
            self.verify_creation();
        }
        self.report(settled)
    }

    /// Reads the key's row, which a commit of this call that got no answer may have created.
    async fn look(&self) -> Result<Option<KeySummary>, StoreError> {
        let row = reading!("look", self.core.store.look_up_key(&self.scope, &self.key))?;
        self.note_read(row.as_ref());
        Ok(row)
    }

    fn note_read(&self, row: Option<&KeySummary>) {
        if row.is_some_and(|row| row.request_id == self.request_id) {
            self.core.creation_found(&self.creation, self.definition.name);
        }
    }

    /// Reads the key's row, unless it is known, and does what it asks for.
    async fn run_round(
        &self,
        row_at_start: RowAtStart,
        rounds: &mut Rounds,
    ) -> Result<RoundEnd, CallError> {
        let is_expected_new = matches!(row_at_start, RowAtStart::ExpectedNew);
        let row = match row_at_start {
            RowAtStart::ExpectedNew => None,
            RowAtStart::Read(row) => row,
            RowAtStart::NotRead => self.look().await?,
        };
        self.note_read(row.as_ref());
        match self.act(row, rounds).await? {
            // Boxed, because it is rare and deep: a compiler has a limit for futures in futures.
            RoundEnd::Busy => Ok(RoundEnd::Outcome(boxed!(self.busy()).await?)),
            // What the row of a key says that was wrongly expected to be new comes before why nothing
            // was begun (G8, G9). A row of its own has begun, and waits out its back-off.
            RoundEnd::Outcome(failed @ Outcome::Failed { .. }) if is_expected_new => {
                let row = self.look().await?.filter(|row| row.request_id != self.request_id);
                Ok(row.map_or(RoundEnd::Outcome(failed), RoundEnd::Found))
            }
            end => Ok(end),
        }
    }

    /// The answer to the call, if the round came to one; otherwise what the next round begins with, once it may begin.
    async fn after_round(
        &self,
        end: RoundEnd,
        rounds: &mut Rounds,
    ) -> Result<ControlFlow<Outcome, RowAtStart>, CallError> {
        match end {
            RoundEnd::Outcome(outcome) => {
                // A wait that an outcome cannot be known by would be in vain.
                let may_change = match outcome {
                    Outcome::InProgress { .. } => true,
                    Outcome::Unknown { retry_after, is_asked: true } => self.can_wait(retry_after),
                    _ => false,
                };
                let has_waited = may_change && self.wait_for_the_other(rounds.waits).await;
                if !has_waited {
                    faults! {
                        if let (Outcome::Finished(finished), Some(last)) =
                            (&outcome, self.definition.phases.last())
                            && !finished.replayed
                        {
                            reach!(last.name, BeforeReply);
                        }
                    }
                    return Ok(Break(outcome));
                }
                rounds.waits = rounds.waits.saturating_add(1);
                rounds.races = 0;
            }
            RoundEnd::Restart(error) => {
                if rounds.restarts >= self.core.settings.max_reruns {
                    return Err(error.into());
                }
                rounds.restarts += 1;
                rounds.too_slow = self.too_slow(&error);
                tokio::time::sleep(jitter(rounds.restarts)).await;
            }
            // It changed each time: another process is working on it.
            _ if rounds.races >= MAX_ROUNDS => {
                return Ok(Break(Outcome::InProgress { retry_after: AGAIN }));
            }
            raced => {
                // The first time it was a race; after that something continues.
                if rounds.races > 0 {
                    tokio::time::sleep(jitter(rounds.races)).await;
                }
                rounds.races += 1;
                rounds.ran |= matches!(raced, RoundEnd::Lost);
                if let RoundEnd::Found(row) = raced {
                    return Ok(Continue(RowAtStart::Read(Some(row))));
                }
            }
        }
        Ok(Continue(RowAtStart::NotRead))
    }

    /// Does what the key's row asks for. Where there is none, creates it.
    async fn act(
        &self,
        row: Option<KeySummary>,
        rounds: &mut Rounds,
    ) -> Result<RoundEnd, CallError> {
        let (replaces, too_slow) = match row {
            None => (None, rounds.too_slow.take()),
            Some(row) => {
                let Some(facts) = self.facts(&row).await? else { return Ok(RoundEnd::Changed) };
                let too_slow = rounds.too_slow.take();
                match decide(&row, &facts) {
                    Decision::Create => (Some(row.request_id), too_slow),
                    Decision::TakeOver => {
                        if let Some(outcome) = self.instead_of_running(&row, rounds) {
                            return Ok(RoundEnd::Outcome(outcome));
                        }
                        return self.resume(&row, Right::Free).await;
                    }
                    Decision::Recover => return self.resume(&row, Right::Own).await,
                    Decision::Answer(Answer::InProgress { .. }) if mutated!(ApplicationClock) => {
                        return self.resume(&row, Right::Own).await;
                    }
                    // One of the workers has it already: the commit of the acceptance got no answer.
                    Decision::Answer(Answer::InProgress { .. })
                        if self.mode == Mode::Accept && row.request_id == self.request_id =>
                    {
                        return Ok(RoundEnd::Outcome(Outcome::Accepted));
                    }
                    Decision::Answer(answer) => {
                        return Ok(RoundEnd::Outcome(self.answer(answer, row)?));
                    }
                }
            }
        };
        // It would be as slow again.
        if let Some(cause) = too_slow {
            observe::not_begun(self.subject(), observed::failure(&cause));
            let retry_after = self.core.settings.back_off(1);
            return Ok(RoundEnd::Outcome(Outcome::Failed { cause, retry_after }));
        }
        self.admit_and_create(replaces, rounds).await
    }

    /// The answer to a call that leaves a row alone which no process runs.
    fn instead_of_running(&self, row: &KeySummary, rounds: &Rounds) -> Option<Outcome> {
        let has_failed = row.status == Status::FailedRetryable && !row.back_off_left.is_zero();
        // What a call waited for has failed: that is its answer too. A hundred that wait would all
        // run it at the same moment.
        if rounds.waits > 0 && has_failed {
            let (cause, retry_after) = (FailureCause::OtherAttempt, row.back_off_left);
            return Some(Outcome::Failed { cause, retry_after });
        }
        // A call that accepts leaves the row to the workers.
        (self.mode == Mode::Accept).then_some(Outcome::Accepted)
    }

    /// Creates the row, if the scope may have another key, and unless the request may have run for this call before.
    async fn admit_and_create(
        &self,
        replaces: Option<Uuid>,
        rounds: &mut Rounds,
    ) -> Result<RoundEnd, CallError> {
        // The row of a commit that got no answer may be finished, expired and deleted by now. Created
        // again, the request would run twice for one call.
        let sent_before = rounds.first_sent.filter(|_| rounds.restarts > 0);
        let may_have_ended = sent_before.is_some_and(|sent| self.may_have_ended(sent));
        if rounds.ran || self.creation.is_committed() || may_have_ended {
            return Err(CallError::RowDeleted);
        }
        let admitted = match rounds.admitted.take() {
            Some(admission) => Ok(admission),
            None => self.core.admit(&self.scope, &self.key, &self.caller, &self.creation).await,
        };
        let admission = match admitted {
            Ok(admission) => admission,
            Err(refused) => return self.refused(refused).await,
        };
        rounds.first_sent.get_or_insert_with(Moment::now);
        let end = self.create(replaces, admission.clone()).await?;
        if mutated!(RetentionWhenRead) {
            rounds.first_sent = Some(Moment::now());
        }
        if matches!(end, RoundEnd::Restart(_)) {
            rounds.admitted = Some(admission);
        }
        Ok(end)
    }

    /// Whether a row that was created then may be past its retention.
    fn may_have_ended(&self, sent: Moment) -> bool {
        Moment::now().since(sent) >= self.core.settings.retention
    }

    /// No room for a new key: which this is not, if by now it has a row, or another call creates it.
    async fn refused(&self, refused: CallError) -> Result<RoundEnd, CallError> {
        let is_of_quota = matches!(
            refused,
            CallError::RateExceeded { .. }
                | CallError::TooManyKeys { .. }
                | CallError::CreatingOthers { .. }
        );
        if is_of_quota
            && !mutated!(QuotaBeforeRow)
            && let Some(row) = self.look().await?
        {
            return Ok(RoundEnd::Found(row));
        }
        match is_of_quota && self.core.is_creating(&self.scope, &self.key) {
            true => Ok(RoundEnd::Busy),
            false => Err(refused),
        }
    }

    /// Statements that were handed over, and took longer than their phase may.
    fn too_slow(&self, error: &StoreError) -> Option<FailureCause> {
        let first = self.definition.phases.first().filter(|first| first.kind.is_batch());
        first.filter(|_| error.is_unanswered()).map(timed_out)
    }

    /// Goes on with the row that was seen, if it is still that.
    async fn resume(&self, seen: &KeySummary, right: Right) -> Result<RoundEnd, CallError> {
        let row = reading!("read", self.core.store.read_key(&self.scope, &self.key))?;
        let is_still = |row: &KeyRow| {
            (row.request_id, row.lease_token, row.status)
                == (seen.request_id, seen.lease_token, seen.status)
        };
        let Some(row) = row.filter(is_still) else { return Ok(RoundEnd::Changed) };
        self.core.resume(&self.scope, &self.key, row, right).await
    }

    /// Whether this call waits for others, and longer than this.
    fn can_wait(&self, at_least: Duration) -> bool {
        self.patience.is_some_and(|until| until.since(Moment::now()) > at_least)
    }

    /// Whether there was time left to wait for the other holder, and it was waited for until its end. A wait is
    /// its caller's only: it ends when they have given up. `rounds`: how often it was waited for before.
    async fn wait_for_the_other(&self, rounds: u32) -> bool {
        const FIRST_POLL: Duration = Duration::from_millis(25);
        const LONGEST_POLL: Duration = Duration::from_millis(500);
        let left = self.patience.map(|until| until.since(Moment::now())).unwrap_or_default();
        // A shutdown does not wait for one that only waits.
        if left.is_zero() || self.core.running.is_closing() {
            return false;
        }
        let poll = (FIRST_POLL * (1 << rounds.min(5))).min(LONGEST_POLL);
        let _waits = self.core.running.waits();
        let slept = self.caller.unless_gone(tokio::time::sleep(poll.min(left))).await;
        slept.is_some() && !self.caller.is_gone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<S: Store, F>(_: impl FnOnce(&'static mut Attempt<S>) -> F) -> usize {
        size_of::<F>()
    }

    /// A request has this room throughout its foreign calls, however long they take. So what is large and short is
    /// boxed where it is awaited: a commit, most of all.
    #[test]
    fn a_request_in_flight_takes_little_memory() {
        let sizes = [
            #[cfg(feature = "postgres")]
            size(|attempt: &'static mut Attempt<crate::store::Postgres>| {
                attempt.settle(RowAtStart::NotRead)
            }),
            #[cfg(feature = "sqlite")]
            size(|attempt: &'static mut Attempt<crate::store::Sqlite>| {
                attempt.settle(RowAtStart::NotRead)
            }),
            #[cfg(feature = "mysql")]
            size(|attempt: &'static mut Attempt<crate::store::Mysql>| {
                attempt.settle(RowAtStart::NotRead)
            }),
        ];
        assert!(sizes.iter().all(|size| *size < 16_000), "{sizes:?} bytes");
    }
}
