//! A change that is to be written: its guard, the next state of the row, and what a phase adds to it.

use std::time::Duration;

use uuid::Uuid;

use super::{Status, Store, StoredResponse};
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};

/// What a phase handed over.
pub(crate) struct Statements<S: Store> {
    pub(crate) all: Vec<S::Statement>,
    /// Whether one of them may need what stands before it.
    pub(crate) in_order: bool,
}

impl<S: Store> Default for Statements<S> {
    fn default() -> Self {
        Self { all: Vec::new(), in_order: false }
    }
}

/// What a phase hands over.
pub struct Writes<'a, S: Store> {
    pub(crate) statements: Statements<S>,
    pub(crate) jobs: &'a [StagedJob],
    /// How long the database may take for all of it. Past it the connection is destroyed, and the
    /// outcome is unknown.
    pub(crate) within: Duration,
}

/// What every write of the engine is guarded by (G3).
#[derive(Clone, Copy)]
pub struct Guard<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) lease_token: i64,
    pub(crate) recovery_point: &'a str,
}

/// What a resolution of an unknown outcome settles, besides that outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settles {
    /// There is no resolution.
    Nothing,
    /// There is none, and how often the outcome was looked into counts anew.
    Reconciles,
    /// No call was made: a provider's window begins anew. The attempts so far count.
    Window,
    /// The attempts so far: from outside the request is given as many again, or it continued.
    Attempts,
    /// Both.
    WindowAndAttempts,
}

impl Settles {
    pub(super) fn outcome(self) -> bool {
        self != Self::Nothing
    }

    pub(super) fn window(self) -> bool {
        matches!(self, Self::Window | Self::WindowAndAttempts)
    }

    pub(crate) fn attempts(self) -> bool {
        matches!(self, Self::Attempts | Self::WindowAndAttempts)
    }
}

/// The next state of a row.
pub struct Change<'a> {
    pub(crate) status: Status,
    pub(crate) recovery_point: &'a str,
    pub(crate) outputs: Option<&'a [u8]>,
    pub(crate) open_intent: Option<&'a str>,
    /// From now, by the database's clock: how long the lease holds (`InProgress`), or how long the
    /// back-off lasts (any other status, whose lease is gone). `None` where no worker has to look at the row:
    /// it is over, or an operator's alone.
    pub(crate) hold: Option<Duration>,
    /// A resolution of an unknown outcome, and what it settles; of a release, that nothing was called.
    pub(crate) resolution: Option<&'a str>,
    pub(crate) settles: Settles,
    /// Why an attempt ended before the request did. `None` leaves the last reason where it is.
    pub(crate) reason: Option<&'a str>,
    /// How many attempts are taken off the count against the cap.
    pub(crate) forgiven_attempts: u32,
    /// The takeover was no attempt after all: nothing was called, and its number is the next attempt's.
    pub(crate) was_no_attempt: bool,
    pub(crate) response: Option<&'a StoredResponse>,
    /// How long the key is kept from now, at least; `None` leaves its expiry where it is.
    pub(crate) keep_for: Option<Duration>,
    /// A [line](super::events::line) of its outcome. What runs its usual way has none.
    pub(crate) event: Option<&'a str>,
}

impl Change<'_> {
    /// Whether the row is left to a reconcile function or an operator.
    pub(super) fn waits(&self) -> bool {
        matches!(self.status, Status::Unknown | Status::DeadLetter)
    }

    pub(super) fn lease(&self) -> Option<Duration> {
        self.hold.filter(|_| self.status == Status::InProgress)
    }

    /// When a worker has to look at the row; never, where nothing is left for it to do.
    pub(super) fn due(&self) -> Option<Duration> {
        self.hold
    }
}

/// What becomes of a job that was not delivered.
#[derive(Clone, Copy, Debug)]
pub enum Undelivered {
    /// It is due again after so long.
    Again(Duration),
    /// It is due immediately, for another node. The attempt does not count.
    Left,
    /// It is a dead letter.
    Dead,
}
