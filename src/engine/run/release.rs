//! Where a request stops before its end: released for a retry, unknown, or a dead letter.

use std::borrow::Cow;
use std::ops::ControlFlow::{Break, Continue};
use std::time::Duration;

use super::body::store_failed;
use super::transition::Transition;
use super::{PhaseEnd, RoundEnd, Run};
use crate::definition::{ListedKind, Phase, PhaseList, STARTED};
use crate::engine::decide::WINDOW_PASSED;
use crate::engine::observed;
use crate::engine::outcome::{CallError, FailureCause, Outcome, PAUSES_UNREAD};
use crate::engine::resolution::uncalled;
use crate::engine::waiting::{WAITING_JOB, Waiting};
use crate::job::StagedJob;
use crate::moment::{Moment, wall_clock};
use crate::observe;
use crate::phase::{Reply, RequestContext};
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
fn counts(cause: &FailureCause, back_off_left: Duration) -> bool {
    let is_forgiven = matches!(
        cause,
        FailureCause::ShuttingDown
            | FailureCause::Paused { .. }
            | FailureCause::Database { kind: PAUSES_UNREAD, .. }
    );
    back_off_left.is_zero() && !is_forgiven
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

    pub(super) async fn unknown(&mut self, phase: &'static str, reason: &'static str) -> PhaseEnd {
        self.leave_unknown(Some(phase), reason).await.map(Break)
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
        let counts = counts(&cause, back_off_left) || mutated!(CountEveryAttempt);
        if counts && self.failures() >= self.core.settings.max_attempts {
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
    fn released_by(&self, cause: &FailureCause, hold: Duration, counts: bool) -> Transition {
        let (forgiven, reason) = (u32::from(!counts), Some(cause.reason().into()));
        let standing = self.standing(Status::FailedRetryable, Some(hold));
        let resolution = self.noted_uncalled();
        let mut released = Transition { forgiven, reason, resolution, ..standing };
        if counts {
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

    /// Leaves a row to an operator whose attempts are used up. The takeover that found it so was none.
    /// `last`: why the last attempt ended.
    pub(in crate::engine) async fn give_up(
        &mut self,
        last: Option<&str>,
    ) -> Result<RoundEnd, CallError> {
        let reason = Some(at_cap(ATTEMPT_CAP, last));
        let standing = self.standing(Status::DeadLetter, None);
        let left = Transition { was_no_attempt: true, reason, ..standing };
        self.leave_at(self.stopped(left, EventKind::DeadLetter).await).await
    }

    /// Leaves the row to the phase's reconcile function; to an operator alone, where it has none. `intent`: the
    /// phase whose call may have had its effect.
    pub(in crate::engine) async fn leave_unknown(
        &mut self,
        intent: Option<&str>,
        reason: &'static str,
    ) -> Result<RoundEnd, CallError> {
        self.leave_unknown_as(intent, reason, false).await
    }

    /// Enters an outcome that waited for an operator in the index of due rows.
    pub(in crate::engine) async fn ask_about(
        &mut self,
        phase: &str,
    ) -> Result<RoundEnd, CallError> {
        let hold = Some(self.reconcile_after(phase));
        // No event is noted: nothing has become known of the request.
        let intent = Some(phase.to_owned());
        self.leave_at(Transition { intent, ..self.standing(Status::Unknown, hold) }).await
    }

    async fn leave_unknown_as(
        &mut self,
        intent: Option<&str>,
        reason: &'static str,
        was_no_attempt: bool,
    ) -> Result<RoundEnd, CallError> {
        let phase = intent.unwrap_or_default();
        let hold = self.is_asked(phase).then(|| self.reconcile_after(phase));
        let standing = self.standing(Status::Unknown, hold);
        let (intent, reason_is) = (intent.map(str::to_owned), Some(reason.into()));
        let left = Transition { intent, reason: reason_is, was_no_attempt, ..standing };
        let kind = match reason {
            WINDOW_PASSED => EventKind::WindowPassed,
            _ => EventKind::Unknown,
        };
        let left = self.leave_at(self.stopped(left, kind).await).await?;
        if matches!(left, RoundEnd::Outcome(_)) {
            observe::unknown(self.definition.name, self.subject(), phase, reason);
        }
        Ok(left)
    }

    /// Leaves a row as unknown at which this takeover has found what may have been called before. A word about
    /// the attempt that called is about the last one (`Resolution::not_executed`), so the takeover is none.
    pub(in crate::engine) async fn found_unknown(
        &mut self,
        phase: &str,
        reason: &'static str,
    ) -> Result<RoundEnd, CallError> {
        self.leave_unknown_as(Some(phase), reason, true).await
    }

    /// Leaves an outcome as unknown that was so before: the process that looked into it has ended. It has begun to wait
    /// long ago, was reported then, and keeps its reason.
    pub(in crate::engine) async fn waits_on(
        &mut self,
        intent: Option<&str>,
    ) -> Result<RoundEnd, CallError> {
        let phase = intent.unwrap_or_default();
        let hold = self.is_asked(phase).then(|| self.reconcile_after(phase));
        self.leave(Status::Unknown, intent, hold, None).await
    }

    /// Leaves the row to a reconcile function or an operator. `reason: None` leaves the reason that it has.
    pub(super) async fn leave(
        &mut self,
        status: Status,
        intent: Option<&str>,
        hold: Option<Duration>,
        reason: Option<Cow<'static, str>>,
    ) -> Result<RoundEnd, CallError> {
        let intent = intent.map(str::to_owned);
        // For an operator's retry of a dead letter.
        let resolution = intent.is_none().then(|| self.noted_uncalled()).flatten();
        let left = Transition { intent, reason, resolution, ..self.standing(status, hold) };
        // An outcome that is unknown already is looked into here.
        let kind = match status {
            Status::DeadLetter => EventKind::DeadLetter,
            _ => EventKind::StillUnknown,
        };
        self.leave_at(self.stopped(left, kind).await).await
    }

    /// Leaves an outcome as unknown, and begins to count anew how often it was looked into.
    pub(super) async fn leave_uncounted(
        &mut self,
        intent: Option<&str>,
        hold: Duration,
        reason: Option<Cow<'static, str>>,
    ) -> Result<RoundEnd, CallError> {
        let (intent, settles) = (intent.map(str::to_owned), Settles::Reconciles);
        let standing = self.standing(Status::Unknown, Some(hold));
        let left = Transition { intent, reason, settles, ..standing };
        self.leave_at(self.stopped(left, EventKind::StillUnknown).await).await
    }

    /// With what an operator is to read of it: at which phase, in which attempt. Where it begins to wait, with the
    /// notice of that, if notices are wanted.
    async fn stopped(&self, left: Transition, kind: EventKind) -> Transition {
        // Where the outputs could not be read, which phase is next is not known.
        let done = self.outputs.len();
        let next = self.definition.phases.get(done).filter(|_| done > 0 || self.point == STARTED);
        let (phase, reason) = (left.intent.clone(), left.reason.clone());
        let phase = phase.as_deref().or(next.map(|phase| phase.name));
        let attempt = self.context.attempt.saturating_sub(left.was_no_attempt.into());
        let notice = match kind {
            EventKind::StillUnknown => None,
            _ if !self.core.settings.tells_of_waiting => None,
            _ => self.notice(&left, attempt, phase).await,
        };
        let left = left.noted(kind, attempt, phase, reason.as_deref(), self.core.trace());
        Transition { notice, ..left }
    }

    /// The job that tells of a request that begins to wait.
    async fn notice(
        &self,
        left: &Transition,
        attempt: u32,
        phase: Option<&str>,
    ) -> Option<StagedJob> {
        let RequestContext { scope, key, request_id, .. } = &self.context;
        // Nothing depends on this time being the database's.
        let since = self.core.now().await.unwrap_or_else(|_| wall_clock());
        let waiting = Waiting {
            request_id: *request_id,
            definition: self.definition.name.to_owned(),
            version: self.definition.version,
            phase: phase.map(str::to_owned),
            attempt,
            status: left.status,
            is_asked: left.status == Status::Unknown && left.hold.is_some(),
            reason: left.reason.as_deref().map(str::to_owned),
            since,
        };
        let args = serde_json::to_vec(&waiting).ok()?;
        let mut job = StagedJob::notice(*request_id, self.lease.token(), WAITING_JOB, args);
        job.trace = self.core.trace().map(|trace| trace.stored());
        match self.core.encode_args(scope, key, &job).map(std::borrow::Cow::into_owned) {
            Ok(args) => job.args = args,
            Err(error) => {
                observe::notice_failed(self.subject(), error.0);
                return None;
            }
        }
        Some(job)
    }

    async fn leave_at(&mut self, left: Transition) -> Result<RoundEnd, CallError> {
        if let Break(end) = self.write(&left).await? {
            return Ok(end);
        }
        Ok(RoundEnd::Outcome(match left.status {
            Status::DeadLetter => {
                let reason = left.reason.as_deref().unwrap_or_default();
                observe::dead_letter(self.definition.name, self.subject(), reason);
                self.core.traced_dead_letter();
                Outcome::DeadLetter
            }
            _ => self.core.unknown(left.hold),
        }))
    }

    /// Whether the phase has a reconcile function. Where this build does not know the phase, one that does
    /// may ask.
    fn is_asked(&self, phase: &str) -> bool {
        let phase = self.definition.phases.iter().find(|known| known.is_called(phase));
        phase.is_none_or(|phase| phase.reconciles)
    }

    /// How long an unknown outcome rests before it is looked into. Not less than the time limit of the call:
    /// a holder that lost its lease begins no call, and what it had begun is over by then, so that *not
    /// executed* can be believed (G2). The limit is that under which the call was begun, by this build or by
    /// one before it with another.
    fn reconcile_after(&self, phase: &str) -> Duration {
        let phase = self.definition.phases.iter().find(|known| known.is_called(phase));
        let own = phase.and_then(Phase::time_limit).unwrap_or_default();
        let begun_under = self.taken_over_under.as_deref().filter(|_| !mutated!(OwnTimeLimit));
        let begun_under = begun_under.and_then(PhaseList::parse);
        let begun_under = begun_under.map(|list| list.time_limit_of(phase)).unwrap_or_default();
        self.core.settings.reconcile_after.max(own).max(begun_under)
    }

    /// The note that up to this release nothing was called that the provider of the next phase could know. The phase has its
    /// name in the row's list, which is another build's where this one could not decode the row.
    fn noted_uncalled(&self) -> Option<String> {
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
