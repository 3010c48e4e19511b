//! A request definition as data: its name, its version and its phases in order.

mod phase_list;

use std::time::Duration;

pub(crate) use self::phase_list::{ListedKind, ListedPhase, PhaseList};

/// The recovery point of a row before its first phase is committed.
pub(crate) const STARTED: &str = "started";

/// The recovery point of a row whose last phase is committed.
pub(crate) const FINISHED: &str = "finished";

/// How long a foreign phase may take unless it says otherwise: longer than the 10 to 20 s after which
/// HTTP clients and load balancers give up by default, and no longer than the default lease.
const FOREIGN_TIME_LIMIT: Duration = Duration::from_secs(30);

/// How long the statements of a batch may take unless the phase says otherwise.
pub(crate) const BATCH_TIME_LIMIT: Duration = Duration::from_secs(15);

/// A named, versioned list of phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Name, stored in each row; `rides.create`, say.
    pub name: &'static str,
    /// Version, stored in each row. Raise it for a change that rows in flight must not survive.
    pub version: u32,
    /// The phases in order.
    pub phases: &'static [Phase],
}

/// One atomic step of a [`Definition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Its name, which is also the recovery point that its commit reaches.
    pub name: &'static str,
    /// Names that it had in earlier deploys, newest first.
    pub was: &'static [&'static str],
    /// Where it works.
    pub kind: PhaseKind,
    /// `#[phase(commit)]`: commit the recovery point immediately after this phase, even if it could be
    /// committed with the next one.
    pub commit: bool,
    /// `#[phase(timeout = "10s")]`: how long the phase may take. Foreign phase: from the beginning of its
    /// body; past it the body is dropped. Local phase with a [`Batch`](crate::Batch): how long the database may take to
    /// execute its statements. `None`: the default of [`Phase::time_limit`].
    pub timeout: Option<Duration>,
    /// Whether it has a `#[reconcile]` function, which is called for an unknown outcome.
    pub reconciles: bool,
}

/// Where a phase works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PhaseKind {
    /// In the database, in one transaction of this isolation level, which the phase is given
    /// ([`Tx`](crate::Tx)).
    Local(Isolation),
    /// The same, with statements that the phase adds to a [`Batch`](crate::Batch).
    Batch(Isolation),
    /// At a foreign system, with no transaction open.
    Foreign(EffectClass),
}

/// What a provider promises about a repeated call. Mandatory on a foreign phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EffectClass {
    /// The provider honors the derived key: any number of calls, one effect.
    Idempotent {
        /// How long the provider remembers a key. Past it, less a margin, no call is repeated (G11).
        window: Option<Duration>,
    },
    /// The provider honors no key: the call is made at most once, and an interruption leaves the
    /// request `unknown` until it is reconciled (G2).
    AtMostOnce,
}

/// Isolation level of a local phase's transaction. SQLite's is always serializable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isolation {
    /// The default, and the level of the engine's own guarded updates.
    #[default]
    ReadCommitted,
    /// One snapshot for the whole phase.
    RepeatableRead,
    /// As if transactions ran one after the other. A serialization failure re-runs the phase.
    Serializable,
}

impl PhaseKind {
    /// The isolation level of a phase in the database; `None` of a foreign one.
    #[must_use]
    pub fn isolation(self) -> Option<Isolation> {
        match self {
            Self::Local(isolation) | Self::Batch(isolation) => Some(isolation),
            Self::Foreign(_) => None,
        }
    }

    /// Whether the phase works in the database.
    #[must_use]
    pub fn is_local(self) -> bool {
        self.isolation().is_some()
    }

    /// Whether the phase takes a `Batch`.
    pub(crate) fn is_batch(self) -> bool {
        matches!(self, Self::Batch(_))
    }
}

impl Phase {
    /// Whether the phase can share its commit with the key's row, which it does as the first one.
    pub(crate) fn shares_the_reservation(&self) -> bool {
        self.kind.isolation() == Some(Isolation::ReadCommitted)
    }

    /// Whether the phase, as the first one, creates the key's row by the commit of its own statements: the row is visible
    /// when they have been executed.
    pub(crate) fn creates_the_row(&self) -> bool {
        self.shares_the_reservation() && self.kind.is_batch()
    }

    /// Whether the key has to be reserved before the phase runs as the first one: it shares the commit, and
    /// writes before it.
    pub(crate) fn needs_a_reservation(&self) -> bool {
        self.kind == PhaseKind::Local(Isolation::ReadCommitted)
    }

    /// The name from which the derived key is computed: the oldest, so that a rename between a call and its
    /// repetition does not change the provider's key (G1).
    #[must_use]
    pub fn key_name(&self) -> &'static str {
        self.was.last().copied().unwrap_or(self.name)
    }

    /// How long the phase may take, if it is limited: by default 30 s for a foreign phase and 15 s for a
    /// local phase with a `Batch`. By default the engine does not limit a local phase with a `Tx`.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        let by_default = match self.kind {
            PhaseKind::Foreign(_) => Some(FOREIGN_TIME_LIMIT),
            PhaseKind::Batch(_) => Some(BATCH_TIME_LIMIT),
            PhaseKind::Local(_) => None,
        };
        self.timeout.or(by_default)
    }

    /// Whether `name` in a row means this phase.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.was.contains(&name)
    }
}

impl Definition {
    /// Whether a row of this definition may stand at the recovery point.
    pub(crate) fn stands_at(&self, point: &str) -> bool {
        point == STARTED
            || point == FINISHED
            || self.phases.iter().any(|phase| phase.is_called(point))
    }
}
