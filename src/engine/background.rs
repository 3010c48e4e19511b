//! Driving a request on with no client: what the workers ask of the engine.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::lease::Entered;
use super::outcome::{CallError, FailureCause, Outcome};
use super::resume::Acquired;
use super::run::RoundEnd;
use super::{Core, Engine, Wakeups, observed};
use crate::config::Settings;
use crate::key::{IdempotencyKey, Scope};
use crate::observe::{self, Subject};
use crate::phase::JobId;
use crate::store::{DueKey, KeyRow, Right, Status, Store};
use crate::task::{self, UnlessEnded};

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
    /// It is pending again: its turn did not come.
    GivenBack,
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
            Self::Left | Self::GivenBack => "left",
            Self::Failed => "unavailable",
        }
    }
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Drives a request that was found on, on a task of its own: a worker that is stopped cancels no phase.
    pub(crate) async fn drive(
        &self,
        found: DueKey,
        driving: impl Future<Output = Driven> + Send + 'static,
    ) -> Driven {
        let span = observe::spans::driven(subject(&found), found.version, self.core.is_traced());
        let core = self.core.clone();
        let driving = span.around(boxed!(async move {
            let lost = UnlessEnded::new(move || {
                observed::drive_failed(subject(&found), &CallError::TaskLost);
            });
            let driven = driving.await;
            core.traced_drive(driven);
            lost.ended();
            driven
        }));
        task::spawn_movable(carried!(driving)).await.unwrap_or(Driven::Failed)
    }

    /// Acquires the lease of a request by this right, if it still is due. `found`: the row as far as it is known.
    pub(crate) async fn claim(
        &self,
        found: Subject<'_>,
        right: Right,
    ) -> Result<Claimed<S>, Driven> {
        self.claim_if(found, right, |row| is_due(row, right)).await
    }

    /// The same of a request that has never run, and can be [given back](Claimed::give_back).
    pub(crate) async fn claim_pending(&self, found: Subject<'_>) -> Result<Claimed<S>, Driven> {
        self.claim_if(found, Right::Free, |row| match mutated!(GiveBackAsFound) {
            true => is_due(row, Right::Free),
            false => row.status == Status::Pending,
        })
        .await
    }

    async fn claim_if(
        &self,
        found: Subject<'_>,
        right: Right,
        is_wanted: impl FnOnce(&KeyRow) -> bool,
    ) -> Result<Claimed<S>, Driven> {
        let entered = self.core.running.enter().ok_or(Driven::Lost)?;
        match self.core.acquire_if(found, right, is_wanted).await {
            Ok(acquired) => Ok(Claimed { acquired: acquired?, _entered: entered }),
            Err(error) => Err(failed(found, &error)),
        }
    }

    /// Ready when the engine is [shutting down](Engine::shutdown).
    pub(crate) async fn closing(&self) {
        self.core.running.closing().await;
    }

    /// Drives a request on by this right, on the caller's own task.
    pub(crate) async fn drive_in_place(&self, found: Subject<'_>, right: Right) -> Driven {
        match self.claim(found, right).await {
            Ok(claimed) => claimed.go_on(found).await,
            Err(driven) => driven,
        }
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

    /// The longest time limit of a registered first phase that creates its row with its own commit.
    pub(crate) fn longest_first_batch(&self) -> Option<Duration> {
        let first =
            self.core.registry.entries().filter_map(|entry| entry.definition.phases.first());
        first.filter(|phase| phase.creates_the_row()).filter_map(|phase| phase.time_limit()).max()
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
    async fn acquire_if(
        self: &Arc<Self>,
        found: Subject<'_>,
        right: Right,
        is_wanted: impl FnOnce(&KeyRow) -> bool,
    ) -> Result<Result<Box<Acquired<S>>, Driven>, CallError> {
        let Subject { scope, key, .. } = found;
        let row = reading!("read", self.store.read_key(scope, key))?;
        let Some(row) = row.filter(is_wanted) else { return Ok(Err(Driven::Lost)) };
        let acquired = self.acquire(scope, key, row, right).await?;
        Ok(acquired.map(Box::new).map_err(driven))
    }
}

/// A request whose lease is ours.
pub(crate) struct Claimed<S: Store> {
    acquired: Box<Acquired<S>>,
    /// A shutdown waits for it.
    _entered: Entered,
}

impl<S: Store> Claimed<S> {
    /// Resumes it after its recovery point.
    pub(crate) async fn go_on(self, found: Subject<'_>) -> Driven {
        let Self { acquired, _entered } = self;
        // Boxed: the future of a whole request is deep, and callers of ours nest it deeper.
        boxed!(acquired.go_on()).await.map_or_else(|error| failed(found, &error), driven)
    }

    /// Makes it pending again: nothing of it has run, and another process may take it immediately.
    pub(crate) async fn give_back(self, found: Subject<'_>) -> Driven {
        let Self { acquired, _entered } = self;
        match acquired.give_back().await {
            Ok(true) => Driven::GivenBack,
            Ok(false) => Driven::Lost,
            Err(error) => failed(found, &error),
        }
    }
}

/// What became of a request that was resumed.
fn driven(end: RoundEnd) -> Driven {
    match end {
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
        RoundEnd::Changed | RoundEnd::Found(_) | RoundEnd::Busy | RoundEnd::Lost => Driven::Lost,
        // The commit's outcome is not known: the lease runs out, and the next look continues.
        RoundEnd::Restart(_) => Driven::Failed,
    }
}

/// Says that a worker could not drive it on.
fn failed(subject: Subject<'_>, error: &CallError) -> Driven {
    observed::drive_failed(subject, error);
    match error {
        CallError::Unreadable { .. } => Driven::Left,
        _ => Driven::Failed,
    }
}

/// What a log may know of a row that was found.
pub(crate) fn subject(found: &DueKey) -> Subject<'_> {
    let DueKey { definition, request_id, scope, key, .. } = found;
    Subject { definition, request_id: *request_id, scope, key }
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
