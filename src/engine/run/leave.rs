//! Where a request stops, and is left to its phase's reconcile function or to an operator: unknown, or a dead letter.

use std::borrow::Cow;
use std::ops::ControlFlow::Break;
use std::time::Duration;

use super::release::{ATTEMPT_CAP, at_cap};
use super::transition::Transition;
use super::{PhaseEnd, RoundEnd, Run};
use crate::definition::{Phase, PhaseList, STARTED};
use crate::engine::decide::WINDOW_PASSED;
use crate::engine::outcome::{CallError, Outcome};
use crate::engine::waiting::{WAITING_JOB, Waiting};
use crate::job::StagedJob;
use crate::moment::wall_clock;
use crate::observe;
use crate::phase::RequestContext;
use crate::store::events::EventKind;
use crate::store::{Settles, Status, Store};

/// What has found that the outcome of a call is unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FoundBy {
    /// The attempt that made the call.
    Attempt,
    /// A takeover. It called nothing, so it does not count as an attempt.
    Takeover,
}

impl<S: Store> Run<S> {
    pub(super) async fn unknown(&mut self, phase: &'static str, reason: &'static str) -> PhaseEnd {
        self.leave_unknown(Some(phase), reason).await.map(Break)
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
        self.leave_at(self.with_event(left, EventKind::DeadLetter).await).await
    }

    /// Leaves the row to the phase's reconcile function; to an operator alone, where it has none. `intent`: the
    /// phase whose call may have had its effect.
    pub(in crate::engine) async fn leave_unknown(
        &mut self,
        intent: Option<&str>,
        reason: &'static str,
    ) -> Result<RoundEnd, CallError> {
        self.leave_unknown_as(intent, reason, FoundBy::Attempt).await
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
        found_by: FoundBy,
    ) -> Result<RoundEnd, CallError> {
        let phase = intent.unwrap_or_default();
        let hold = self.is_asked(phase).then(|| self.reconcile_after(phase));
        let standing = self.standing(Status::Unknown, hold);
        let (intent, reason_is) = (intent.map(str::to_owned), Some(reason.into()));
        let was_no_attempt = found_by == FoundBy::Takeover;
        let left = Transition { intent, reason: reason_is, was_no_attempt, ..standing };
        let kind = match reason {
            WINDOW_PASSED => EventKind::WindowPassed,
            _ => EventKind::Unknown,
        };
        let left = self.leave_at(self.with_event(left, kind).await).await?;
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
        self.leave_unknown_as(Some(phase), reason, FoundBy::Takeover).await
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
        self.leave_at(self.with_event(left, kind).await).await
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
        self.leave_at(self.with_event(left, EventKind::StillUnknown).await).await
    }

    /// With what an operator is to read of it: at which phase, in which attempt. Where it begins to wait, with the
    /// notice of that, if notices are wanted.
    async fn with_event(&self, left: Transition, kind: EventKind) -> Transition {
        // Where the outputs could not be read, which phase is next is not known.
        let done = self.outputs.len();
        let next = self.definition.phases.get(done).filter(|_| done > 0 || self.point == STARTED);
        let (phase, reason) = (left.intent.clone(), left.reason.clone());
        let phase = phase.as_deref().or(next.map(|phase| phase.name));
        let attempt = self.context.attempt.saturating_sub(left.was_no_attempt.into());
        let notice = match kind {
            EventKind::StillUnknown => None,
            _ if !self.core.settings.notifies_waiting => None,
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
        match self.core.encode_args(scope, key, &job).map(Cow::into_owned) {
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
}
