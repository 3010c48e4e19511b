//! The clients' calls, and what they were told.

use std::time::Duration;

use atomic_phases::Outcome;
use atomic_phases::engine::CallError;

use crate::plan::{Call, Manner};

/// A client's call and its answer.
#[derive(Default)]
pub struct History {
    pub ops: Vec<Op>,
}

pub struct Op {
    pub call: Call,
    pub invoked: Duration,
    pub returned: Option<Duration>,
    pub told: Told,
    /// The fingerprints that the key's row had between the call and its answer.
    pub stored: Option<String>,
    /// Answered *in progress* for a key that had no row and that no transaction was about to create.
    pub of_nothing: bool,
}

impl Op {
    /// Whether a first phase failed that ran before the key was read: a caller that claims that a key is new
    /// accepts this.
    pub(super) fn is_of_nothing_begun(&self) -> bool {
        self.call.manner == Manner::ExpectNew && self.told == Told::Failed
    }
}

#[derive(Clone, PartialEq, Eq)]
pub enum Told {
    Finished {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
        replayed: bool,
    },
    InProgress,
    Erased,
    Mismatch,
    Unknown,
    DeadLetter,
    Failed,
    Accepted,
    /// The scope has its quota, or creates keys too fast.
    OverQuota,
    /// An error: nothing was started, or a retry is safe.
    Error,
    /// No answer.
    Nothing,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Finished { status, body, .. } => {
                write!(f, "{}: {status} {}", self.name(), String::from_utf8_lossy(body))
            }
            _ => f.write_str(self.name()),
        }
    }
}

impl Told {
    pub fn of(outcome: &Result<Outcome, CallError>) -> Self {
        match outcome {
            Ok(Outcome::Finished(finished)) => Self::Finished {
                status: finished.reply.status(),
                headers: finished.reply.headers().to_vec(),
                body: finished.reply.bytes().to_vec(),
                replayed: finished.replayed,
            },
            Ok(Outcome::InProgress { .. }) => Self::InProgress,
            Ok(Outcome::Erased) => Self::Erased,
            Ok(Outcome::Mismatch) => Self::Mismatch,
            Ok(Outcome::Unknown { .. }) => Self::Unknown,
            Ok(Outcome::DeadLetter) => Self::DeadLetter,
            Ok(Outcome::Failed { .. }) => Self::Failed,
            Ok(Outcome::Accepted) => Self::Accepted,
            Err(
                CallError::RateExceeded { .. }
                | CallError::TooManyKeys { .. }
                | CallError::CreatingOthers { .. },
            ) => Self::OverQuota,
            Ok(_) | Err(_) => Self::Error,
        }
    }

    /// Whether a retry with the same key cannot change the answer.
    pub fn is_final(&self) -> bool {
        let is_done = matches!(self, Self::Finished { .. } | Self::Erased);
        is_done || matches!(self, Self::Mismatch | Self::DeadLetter)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Finished { replayed: true, .. } => "replayed",
            Self::Finished { .. } => "finished",
            Self::InProgress => "in progress",
            Self::Erased => "erased",
            Self::Mismatch => "mismatch",
            Self::Unknown => "unknown",
            Self::DeadLetter => "dead letter",
            Self::Failed => "failed",
            Self::Accepted => "accepted",
            Self::OverQuota => "over quota",
            Self::Error => "error",
            Self::Nothing => "nothing",
        }
    }
}
