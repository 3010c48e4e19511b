//! Where an attempt stops and another may follow it: what is stored of it, and how long the row rests.
//! A request that no further attempt takes over is left by `leave`.

use std::borrow::Cow;
use std::ops::ControlFlow::{Break, Continue};
use std::time::Duration;

use super::body::store_failed;
use super::transition::Transition;
use super::{PhaseEnd, RoundEnd, Run};
use crate::definition::{ListedKind, Phase, PhaseList, STARTED};
use crate::engine::observed;
use crate::engine::outcome::{CallError, FailureCause, Outcome, PAUSES_UNREAD};
use crate::engine::resolution::uncalled;
use crate::moment::Moment;
use crate::observe;
use crate::phase::Reply;
use crate::store::events::EventKind;
use crate::store::{NewRow, Settles, Status, Store, StoreError};

pub(super) const ATTEMPT_CAP: &str = "gave up at the attempt cap";

/// The reason of a dead letter: which cap was reached, and why it was tried until then.
pub(super) fn at_cap(cap: &'static str, last: Option<&str>) -> Cow<'static, str> {
    match last {
        Some(last) if !last.starts_with(cap) => format!("{cap}: {last}").into(),
        Some(last) => last.to_owned().into(),
        None => cap.into(),
    }
}

/// Whether an attempt counts against the cap, which stands for that many back-offs. One that a client began, and ended,
/// before the back-off had passed does not, nor does one that ends with its process or met a pause, or may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Yes,
    No,
}

fn counts(cause: &FailureCause, back_off_left: Duration) -> Counts {
    let is_forgiven = matches!(
        cause,
        FailureCause::ShuttingDown
            | FailureCause::Paused { .. }
            | FailureCause::Database { kind: PAUSES_UNREAD, .. }
    );
    match (back_off_left.is_zero() && !is_forgiven) || mutated!(CountEveryAttempt) {
        true => Counts::Yes,
        false => Counts::No,
    }
}

impl<S: Store> Run<S> {
    /// Stores the reply and finishes; of a first phase that rejected the request, by creating the row
    /// anew, finished.
    pub(super) async fn finish(
        &mut self,
        phase: &'static Phase,
        reply: Reply,
        new: Option<&NewRow<'_>>,
    ) -> PhaseEnd {
        let finished = match self.finished_with(reply) {
            Ok(finished) => finished,
            Err(why) => {
                let cause = why.at(phase.name);
                return match new {
                    Some(_) => Ok(Break(self.not_begun(cause, None))),
                    None => self.halt(cause, None).await,
                };
            }
        };
        match new {
            Some(row) => self.create(row, finished).await,
            None => self.write_and_arrive(finished).await,
        }
    }

    /// The first phase failed, and with it went the row: nothing is stored, so nothing is released.
    pub(super) fn not_begun(&self, cause: FailureCause, after: Option<Duration>) -> RoundEnd {
        self.core.attempt_begins(self.context.request_id, 1, STARTED, None);
        observe::not_begun(self.subject(), observed::failure(&cause));
        let settings = &self.core.settings;
        let longest = settings.longest_back_off_asked_for();
        let retry_after = after.map_or_else(|| settings.back_off(1), |after| after.min(longest));
        RoundEnd::Outcome(Outcome::Failed { cause, retry_after })
    }

    pub(super) async fn halt(&mut self, cause: FailureCause, after: Option<Duration>) -> PhaseEnd {
        self.release(cause, after).await.map(Break)
    }

    /// Releases the row after a passing failure, with what is done so far, so that the next attempt
    /// resumes immediately; leaves it unknown, where a call that is made at most once may have been executed.
    pub(in crate::engine) async fn release(
        &mut self,
        cause: FailureCause,
        after: Option<Duration>,
    ) -> Result<RoundEnd, CallError> {
        if let Some(phase) = self.may_be_executed.filter(|_| !mutated!(ReleaseExecuted)) {
            return self.leave_unknown(Some(phase), cause.reason()).await;
        }
        let back_off_left = self.back_off_left();
        let counts = counts(&cause, back_off_left);
        if counts == Counts::Yes && self.failures() >= self.core.settings.max_attempts {
            let reason = Some(at_cap(ATTEMPT_CAP, Some(cause.reason())));
            return self.leave(Status::DeadLetter, None, None, reason).await;
        }
        let hold = self.back_off(after, back_off_left);
        let released = self.released_by(&cause, hold, counts);
        if let Break(end) = self.write(&released).await? {
            return Ok(end);
        }
        observe::released(self.subject(), observed::failure(&cause), hold);
        Ok(RoundEnd::Outcome(Outcome::Failed { cause, retry_after: hold }))
    }

    /// What is left of the back-off in which this attempt began.
    fn back_off_left(&self) -> Duration {
        self.back_off_ends.map(|ends| ends.since(Moment::now())).unwrap_or_default()
    }

    /// How long the row rests. An attempt that began before the last back-off had passed does not move its end, so that
    /// the next attempt after it counts; and a shutdown does not end it.
    fn back_off(&self, asked_for: Option<Duration>, left: Duration) -> Duration {
        let settings = &self.core.settings;
        match asked_for {
            _ if !left.is_zero() => left,
            Some(after) => after.min(settings.longest_back_off_asked_for()),
            None => settings.back_off(self.failures()),
        }
    }

    /// The row as it is released, with what an operator is to read of it if the attempt counts: of those that do not,
    /// there is no bound but a client's patience.
    fn released_by(&self, cause: &FailureCause, hold: Duration, counts: Counts) -> Transition {
        let (forgiven, reason) = (u32::from(counts == Counts::No), Some(cause.reason().into()));
        let standing = self.standing(Status::FailedRetryable, Some(hold));
        let resolution = self.noted_uncalled();
        let mut released = Transition { forgiven, reason, resolution, ..standing };
        if counts == Counts::Yes {
            let attempt = self.context.attempt;
            let (phase, reason) = (cause.phase(), Some(cause.reason()));
            released =
                released.noted(EventKind::Released, attempt, phase, reason, self.core.trace());
        }
        if mutated!(WindowFromRelease) {
            released.settles = Settles::Window;
        }
        released
    }

    /// Releases a row of which nothing could run, because no connection was to be had for it: phases of
    /// other scopes hold them, most likely. The attempt does not count, or they would bring it to the cap
    /// (G16). Where there is none for this either, the lease runs out.
    pub(super) async fn let_go(&mut self, phase: &Phase, error: &StoreError) {
        let hold = self.core.settings.back_off(self.context.attempt).max(self.back_off_left());
        let cause = store_failed(phase, error);
        let standing = self.standing(Status::FailedRetryable, Some(hold));
        let released = Transition { forgiven: 1, reason: Some(cause.reason().into()), ..standing };
        if let Ok(Continue(_)) = self.write(&released).await {
            observe::released(self.subject(), observed::failure(&cause), hold);
        }
    }

    /// Makes a row that was pending until it was acquired what it was before. Whether it was still ours.
    pub(in crate::engine) async fn give_back(&mut self) -> Result<bool, CallError> {
        let pending = Transition { was_no_attempt: true, ..self.pending() };
        let is_ours = self.write(&pending).await?.is_continue();
        if is_ours {
            observe::given_back(self.definition.name);
        }
        Ok(is_ours)
    }

    /// The note that up to this release nothing was called that the provider of the next phase could know. The phase has its
    /// name in the row's list, which is another build's where this one could not decode the row.
    pub(super) fn noted_uncalled(&self) -> Option<String> {
        if self.may_be_called {
            return None;
        }
        let listed = self.taken_over_under.as_deref().and_then(PhaseList::parse);
        let listed = listed.unwrap_or_else(|| PhaseList::of(&self.definition));
        let next = listed.phases.get(self.outputs.len())?;
        (next.kind != ListedKind::Local).then(|| uncalled(&next.name, self.context.attempt))
    }

    /// How many attempts count against the cap, this one included.
    pub(super) fn failures(&self) -> u32 {
        self.context.attempt.saturating_sub(self.forgiven_attempts).max(1)
    }
}
