//! [`Lock`]: what stored rows and providers can see of one definition and version.

use std::time::Duration;

use crate::format;
use crate::shape::{Shape, Types};

/// One definition in one version, as far as a stored row or a provider can see it.
///
/// Isolation levels, time limits, `commit`, `Tx` or `Batch` and the bodies are not in it: no row
/// depends on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Lock {
    /// Name of the definition.
    pub definition: String,
    /// Its version.
    pub version: u32,
    /// Whether new requests are of it.
    pub state: State,
    /// What the parameters look like.
    pub request: Shape,
    /// Parameters as this build writes them.
    pub request_samples: Vec<RequestSample>,
    /// The phases in order.
    pub phases: Vec<Locked>,
    /// The jobs that its phases stage, by name.
    pub jobs: Vec<LockedJob>,
    /// The named types of all shapes.
    pub types: Types,
}

/// Where a version is in its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// New requests are of it.
    #[default]
    Current,
    /// A higher version is registered beside it; it runs the rows that are there.
    Draining,
    /// No row of it is left, since this date; its code may go.
    Retired(String),
}

/// Parameters as they are stored, and what the engine made of them when the lock was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSample {
    /// The stored form.
    pub json: String,
    /// Their fingerprint, for a request that came by no route.
    pub fingerprint: String,
}

/// One phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Locked {
    /// Its name.
    pub name: String,
    /// Its earlier names, newest first.
    pub was: Vec<String>,
    /// Where it works, and what its provider promises.
    pub effect: Effect,
    /// Whether a reconcile function asks the provider for an unknown outcome.
    pub reconciles: bool,
    /// The derived key of the first request sample, under a fixed scope and key. Of a foreign phase.
    pub derived: Option<String>,
    /// What it returns.
    pub output: Output,
    /// The phases that ask for its output, or that are asked about by a function which does. `None`: not known, so each
    /// phase behind it may.
    pub asked_by: Option<Vec<String>>,
}

/// Where a phase works, and what its provider promises about a repeated call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// In the database.
    Local,
    /// At a provider that honors the derived key for as long as the window.
    Idempotent {
        /// `None`: for ever.
        window: Option<Duration>,
    },
    /// At a provider that honors no key.
    AtMostOnce,
}

/// A job that a phase stages: it may be delivered by a later build.
#[derive(Clone, Debug, PartialEq)]
pub struct LockedJob {
    /// Its name.
    pub name: String,
    /// What its arguments look like.
    pub args: Shape,
    /// Arguments as this build writes them, in JSON.
    pub samples: Vec<String>,
}

/// What a phase returns.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The reply, which no later phase reads.
    Reply,
    /// A value that later phases may ask for.
    Value {
        /// What it looks like.
        shape: Shape,
        /// Values as this build writes them, in JSON.
        samples: Vec<String>,
    },
}

/// A lock file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockError(pub(crate) String);

impl std::fmt::Display for LockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LockError {}

impl Lock {
    /// Reads a lock file.
    ///
    /// # Errors
    /// [`LockError`] says at which line and why.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        format::parse(text)
    }

    /// The lock file. The same lock has the same bytes.
    #[must_use]
    pub fn to_toml(&self) -> String {
        format::write(self)
    }

    /// Whether rows of this version may still be there.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !matches!(self.state, State::Retired(_))
    }
}

impl Effect {
    /// Whether it is foreign.
    #[must_use]
    pub fn is_foreign(self) -> bool {
        self != Self::Local
    }
}

impl Locked {
    /// The name that the derived key is made of: the oldest.
    #[must_use]
    pub fn provider_key(&self) -> &str {
        self.was.last().unwrap_or(&self.name)
    }

    /// Whether a row that says `name` means this phase.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.was.iter().any(|was| was == name)
    }
}
