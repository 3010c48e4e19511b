//! [`Transition`]: a state that the row is to move to. Made from what a phase came to; what becomes of it
//! is `commit`'s to find out.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::value::RawValue;

use super::Run;
use crate::definition::{FINISHED, Phase, STARTED};
use crate::engine::encoding::Unstorable;
use crate::job::StagedJob;
use crate::observe;
use crate::phase::Reply;
use crate::store::events::{EventKind, line};
use crate::store::{Change, Settles, Status, Store, StoredResponse};
use crate::traces::Traceparent;

/// A state that the row is to move to.
pub(in crate::engine) struct Transition {
    pub(super) status: Status,
    pub(super) point: Cow<'static, str>,
    pub(super) outputs: Option<Vec<u8>>,
    pub(super) intent: Option<String>,
    pub(super) hold: Option<Duration>,
    pub(super) resolution: Option<String>,
    pub(super) settles: Settles,
    pub(super) reason: Option<Cow<'static, str>>,
    /// How many attempts are taken off the count against the cap.
    pub(super) forgiven: u32,
    /// The takeover called nothing, so that it was no attempt.
    pub(super) was_no_attempt: bool,
    pub(super) finished: Option<(Reply, StoredResponse)>,
    /// How long the key is kept from now, at least; `None` leaves its expiry where it is.
    pub(super) keep_for: Option<Duration>,
    /// What an operator is to read of it, where that is not a request's usual way: a [`line`].
    pub(super) event: Option<String>,
    /// A job that tells of it.
    pub(super) notice: Option<StagedJob>,
}

impl Transition {
    /// To this place, and nothing else.
    fn to(status: Status, point: impl Into<Cow<'static, str>>, hold: Option<Duration>) -> Self {
        Self {
            status,
            point: point.into(),
            outputs: None,
            intent: None,
            hold,
            resolution: None,
            settles: Settles::Nothing,
            reason: None,
            forgiven: 0,
            was_no_attempt: false,
            finished: None,
            keep_for: None,
            event: None,
            notice: None,
        }
    }

    /// With what an operator is to read of it. `attempt`: the one that it is about.
    pub(in crate::engine) fn noted(
        self,
        kind: EventKind,
        attempt: u32,
        phase: Option<&str>,
        reason: Option<&str>,
        trace: Option<Traceparent>,
    ) -> Self {
        Self { event: Some(line(kind, attempt, phase, reason, trace)), ..self }
    }

    /// In the store's form.
    pub(super) fn change(&self) -> Change<'_> {
        Change {
            status: self.status,
            recovery_point: &self.point,
            outputs: self.outputs.as_deref(),
            open_intent: self.intent.as_deref(),
            hold: self.hold,
            resolution: self.resolution.as_deref(),
            settles: self.settles,
            reason: self.reason.as_deref(),
            forgiven_attempts: self.forgiven,
            was_no_attempt: self.was_no_attempt,
            response: self.finished.as_ref().map(|(_, stored)| stored),
            keep_for: self.keep_for,
            event: self.event.as_deref(),
        }
    }

    /// Whether it leads to a recovery point, and the request continues from there.
    pub(super) fn advances(&self) -> bool {
        self.status == Status::InProgress && self.intent.is_none()
    }

    /// Between which crash points it is committed.
    pub(super) fn kind(&self) -> CommitKind {
        match (self.status, &self.intent) {
            (Status::InProgress, Some(_)) => CommitKind::Intent,
            (Status::Pending | Status::InProgress | Status::Completed, _) => CommitKind::Phase,
            (Status::FailedRetryable | Status::Unknown | Status::DeadLetter, _) => {
                CommitKind::Release
            }
        }
    }
}

/// Between which two crash points a commit is made.
pub(super) enum CommitKind {
    Intent,
    Phase,
    Release,
}

faults! {
    use crate::fault::Place;

    impl CommitKind {
        pub(super) fn points(self) -> (Place, Place) {
            match self {
                Self::Intent => (Place::BeforeIntent, Place::AfterIntent),
                Self::Phase => (Place::BeforeCommit, Place::AfterCommit),
                Self::Release => (Place::BeforeRelease, Place::AfterRelease),
            }
        }
    }
}

impl<S: Store> Run<S> {
    /// At its start, where a request stands whose row is committed before its first phase.
    pub(super) fn at_start(&self) -> Transition {
        Transition::to(Status::InProgress, STARTED, Some(self.core.settings.lease))
    }

    /// At its start, for a worker to run it.
    pub(super) fn pending(&self) -> Transition {
        Transition::to(Status::Pending, STARTED, Some(Duration::ZERO))
    }

    /// After `phase`, with its output. The output is part of the run from here on; a caller whose
    /// commit fails truncates it again.
    pub(super) fn after_output(
        &mut self,
        phase: &Phase,
        output: Box<RawValue>,
    ) -> Result<Transition, Unstorable> {
        let done = self.outputs.len();
        if done + 1 == self.definition.phases.len() {
            return Err(Unstorable::Rule(
                "the last phase returned an output and no reply: return a `Reply`",
            ));
        }
        self.outputs.push(phase.name, output);
        match self.core.encode_outputs(&self.context.scope, &self.context.key, &self.outputs) {
            Ok(outputs) => Ok(Transition {
                outputs: Some(outputs),
                ..Transition::to(Status::InProgress, phase.name, Some(self.core.settings.lease))
            }),
            Err(why) => {
                self.outputs.truncate(done);
                Err(why)
            }
        }
    }

    /// Finished with `reply`.
    pub(super) fn finished_with(&self, reply: Reply) -> Result<Transition, Unstorable> {
        let stored = self.core.encode_reply(&self.context.scope, &self.context.key, &reply)?;
        Ok(self.finished(reply, stored))
    }

    fn finished(&self, reply: Reply, stored: StoredResponse) -> Transition {
        if cfg!(debug_assertions) {
            let names = self.core.not_replayed(&reply);
            names.for_each(|name| observe::header_not_replayed(self.subject(), name));
        }
        // No heartbeat moves the expiry while a phase keeps the row to itself. It has an index, which a fast request
        // does not write to.
        let keep_for = self.lease.is_old().then_some(self.core.settings.retention);
        Transition {
            finished: Some((reply, stored)),
            keep_for,
            ..Transition::to(Status::Completed, FINISHED, None)
        }
    }

    /// Where it stands, with the intent to make `phase`'s call.
    pub(super) fn intending(&self, phase: &Phase) -> Transition {
        Transition {
            intent: Some(phase.name.to_owned()),
            ..Transition::to(Status::InProgress, self.point.clone(), Some(self.core.settings.lease))
        }
    }

    /// Where it stands, with a foreign result that has not been committed yet.
    pub(super) fn standing(&self, status: Status, hold: Option<Duration>) -> Transition {
        let last = self.outputs.phases().last();
        let riding = last.filter(|last| *last != self.point);
        let (context, core) = (&self.context, &self.core);
        let outputs = riding
            .and_then(|_| core.encode_outputs(&context.scope, &context.key, &self.outputs).ok());
        match (riding, outputs) {
            (Some(point), Some(outputs)) => {
                let point = point.to_owned();
                Transition { outputs: Some(outputs), ..Transition::to(status, point, hold) }
            }
            _ => Transition::to(status, self.point.clone(), hold),
        }
    }

    /// Released after a resolution of what was unknown.
    pub(in crate::engine) fn released(
        &self,
        resolution: String,
        settles: Settles,
        hold: Duration,
    ) -> Transition {
        Transition {
            resolution: Some(resolution),
            settles,
            ..Transition::to(Status::FailedRetryable, self.point.clone(), Some(hold))
        }
    }

    /// Released behind `phase`, with these outputs, the last of which a webhook or an operator vouches for.
    pub(in crate::engine) fn released_behind(
        &self,
        phase: &Phase,
        outputs: Vec<u8>,
        resolution: String,
    ) -> Transition {
        Transition {
            outputs: Some(outputs),
            resolution: Some(resolution),
            settles: Settles::Attempts,
            ..Transition::to(Status::FailedRetryable, phase.name, Some(Duration::ZERO))
        }
    }

    /// Going on behind `phase`, with the output that its reconcile function vouches for.
    pub(super) fn resumed_behind(
        &mut self,
        phase: &Phase,
        output: Box<RawValue>,
        resolution: String,
    ) -> Result<Transition, Unstorable> {
        let behind = self.after_output(phase, output)?;
        Ok(Transition { resolution: Some(resolution), settles: Settles::Attempts, ..behind })
    }

    /// Finished with a reply that an operator vouches for, as it is stored.
    pub(in crate::engine) fn finished_by(
        &self,
        reply: Reply,
        stored: StoredResponse,
        resolution: String,
    ) -> Transition {
        let settles = Settles::Attempts;
        Transition { resolution: Some(resolution), settles, ..self.finished(reply, stored) }
    }
}
