//! Driving a request on with no client: what the workers ask of the engine.

use std::sync::Arc;

use super::outcome::{CallError, FailureCause, Outcome};
use super::run::RoundEnd;
use super::{Core, Engine, Wakeups, observed};
use crate::config::Settings;
use crate::key::{IdempotencyKey, Scope};
use crate::movable_task::MovableTask;
use crate::observe::{self, Subject};
use crate::phase::JobId;
use crate::store::{DueKey, KeyRow, Right, Status, Store};

/// The outcome of a request that a worker drove on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    Finished,
    Released,
    Unknown,
    DeadLetter,
    /// Another process has it, or it is no longer due.
    Lost,
    /// Left to a node that knows it (G14).
    Left,
    /// The store failed in between.
    Failed,
}

impl Driven {
    /// One word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Released => "failed",
            Self::Unknown => "unknown",
            Self::DeadLetter => "dead_letter",
            Self::Lost => "lost",
            Self::Left => "left",
            Self::Failed => "unavailable",
        }
    }
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Drives the request on by this right, if it still is due. On a task of its own: a worker that
    /// is stopped cancels no phase.
    pub(crate) async fn drive(&self, found: DueKey, right: Right) -> Driven {
        let span = observe::spans::driven(subject(&found), found.version, self.core.is_traced());
        let engine = self.clone();
        let driving = async move {
            let mut task = Task { found, has_ended: false };
            let driven = engine.drive_in_place(subject(&task.found), right).await;
            task.has_ended = true;
            driven
        };
        let driving = MovableTask::new(carried!(span.around(Box::pin(driving))));
        let driven = crate::task::spawn(driving).await.ok().and_then(Result::ok);
        driven.unwrap_or(Driven::Failed)
    }

    /// As [`drive`](Self::drive), on the caller's own task.
    /// `found`: the row as far as it is known.
    pub(crate) async fn drive_in_place(&self, found: Subject<'_>, right: Right) -> Driven {
        let Some(_entered) = self.core.running.enter() else { return Driven::Lost };
        let driven = match self.core.drive(found, right).await {
            Ok(driven) => driven,
            Err(CallError::Unreadable { .. }) => Driven::Left,
            Err(_) => Driven::Failed,
        };
        self.core.traced_drive(driven);
        driven
    }

    pub(crate) fn is_registered(&self, definition: &str, version: u32) -> bool {
        self.core.registry.get(definition, version).is_some()
    }

    /// The definitions that are registered, as a process tells operators.
    pub(crate) fn announced(&self) -> String {
        serde_json::to_string(&self.core.definitions()).unwrap_or_default()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.core.settings
    }

    pub(crate) fn wakeups(&self) -> &Wakeups {
        &self.core.wakeups
    }

    /// The arguments of a staged job, as they were given.
    pub(crate) fn decoded_args(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        job: JobId,
        stored: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        self.core.decode_args(scope, key, job, stored)
    }
}

impl<S: Store> Core<S> {
    async fn drive(
        self: &Arc<Self>,
        found: Subject<'_>,
        right: Right,
    ) -> Result<Driven, CallError> {
        let Subject { scope, key, .. } = found;
        let row = self.store.read(scope, key).await.map_err(|error| {
            let error = error.into();
            observed::drive_failed(found, &error);
            error
        })?;
        let Some(row) = row else { return Ok(Driven::Lost) };
        if !is_due(&row, right) {
            return Ok(Driven::Lost);
        }
        let (definition, request_id) = (row.definition.clone(), row.request_id);
        // Boxed: the future of a whole request is deep, and callers of ours nest it deeper.
        let resumed = Box::pin(self.resume(scope, key, row, right)).await;
        if let Err(error) = &resumed {
            let subject = Subject { definition: &definition, request_id, scope, key };
            observed::drive_failed(subject, error);
        }
        Ok(match resumed? {
            RoundEnd::Outcome(outcome) => match outcome {
                Outcome::Finished(_) | Outcome::ReplyNotRetained { .. } | Outcome::Erased => {
                    Driven::Finished
                }
                Outcome::Failed { cause: FailureCause::NotKnownHere, .. } => Driven::Left,
                Outcome::Failed { .. } => Driven::Released,
                Outcome::Unknown { .. } => Driven::Unknown,
                Outcome::DeadLetter => Driven::DeadLetter,
                Outcome::Mismatch | Outcome::InProgress { .. } | Outcome::Accepted => Driven::Lost,
            },
            RoundEnd::Changed | RoundEnd::Found(_) | RoundEnd::Busy | RoundEnd::Lost => {
                Driven::Lost
            }
            // The commit's outcome is not known: the lease runs out, and the next look continues.
            RoundEnd::Restart(_) => Driven::Failed,
        })
    }
}

/// What a log may know of a row that was found.
fn subject(found: &DueKey) -> Subject<'_> {
    let DueKey { definition, request_id, scope, key, .. } = found;
    Subject { definition, request_id: *request_id, scope, key }
}

/// Says so where it is dropped before its end: it panicked, or its runtime is gone.
struct Task {
    found: DueKey,
    has_ended: bool,
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.has_ended {
            observed::drive_failed(subject(&self.found), &CallError::TaskLost);
        }
    }
}

/// Whether the row is what the worker was looking for, a moment later.
fn is_due(row: &KeyRow, right: Right) -> bool {
    match row.status {
        Status::Pending => right == Right::Free,
        Status::FailedRetryable => right == Right::Free && row.back_off_left.is_zero(),
        Status::InProgress => right == Right::Free && row.lease_left.is_zero(),
        Status::Unknown => {
            right == Right::Reconcile && row.for_workers && row.back_off_left.is_zero()
        }
        Status::Completed | Status::DeadLetter => false,
    }
}
