//! Rows as they are read through a [`Store`](super::Store): a key's row, what a call needs of it, and what is stored
//! in it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::traces::StoredTrace;

/// What a client gave, as it is stored: parameters and context.
pub(crate) type ParamsAndContext = (Vec<u8>, Option<Vec<u8>>);

/// How the server knows an open transaction.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TransactionId(pub(crate) String);

/// The status of a row. `expired` is not a status: expiry is judged when the key is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Accepted, to be run in the background.
    Pending,
    /// A holder runs it or has crashed; lease expiry distinguishes the two.
    InProgress,
    /// Released after a transient failure; safe to resume.
    FailedRetryable,
    /// Finished; the reply is stored.
    Completed,
    /// A foreign effect may or may not have happened.
    Unknown,
    /// Gave up at the attempt cap.
    DeadLetter,
}

#[cfg(test)]
pub(crate) const EVERY_STATUS: [Status; 6] = [
    Status::Pending,
    Status::InProgress,
    Status::FailedRetryable,
    Status::Completed,
    Status::Unknown,
    Status::DeadLetter,
];

impl Status {
    /// The status as it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::FailedRetryable => "failed_retryable",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
            Self::DeadLetter => "dead_letter",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [
            Self::Pending,
            Self::InProgress,
            Self::FailedRetryable,
            Self::Completed,
            Self::Unknown,
            Self::DeadLetter,
        ]
        .into_iter()
        .find(|status| status.as_str() == text)
    }
}

/// What a row means for a call is seen by this much of it (`engine::decide`), with everything about
/// time already judged by the database's clock.
#[derive(Debug)]
pub struct KeySummary {
    pub(crate) request_id: Uuid,
    pub(crate) definition: String,
    pub(crate) version: u32,
    pub(crate) fingerprint: String,
    pub(crate) status: Status,
    pub(crate) lease_token: i64,
    /// Until the lease ends; zero once it has ended.
    pub(crate) lease_left: Duration,
    /// Until the back-off of a released or unknown row ends.
    pub(crate) back_off_left: Duration,
    /// Whether a worker has to look at it some time.
    pub(crate) for_workers: bool,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) expired: bool,
    /// Behind a pointer, because most rows have none, and every call has a summary.
    pub(crate) trace: Option<Box<StoredTrace>>,
    pub(crate) response: Option<StoredResponse>,
}

/// Stands in the place of an erased row's fingerprint. No version of a fingerprint looks like it, so
/// that a process that is too old to know it leaves the row alone (G14).
pub(crate) const ERASED: &str = "erased";

impl KeySummary {
    pub(crate) fn is_erased(&self) -> bool {
        self.fingerprint == ERASED
    }

    /// Whether the request is finished and the key free for another one.
    pub(crate) fn is_over(&self) -> bool {
        self.status == Status::Completed && self.expired
    }
}

/// A row of the key table, with everything about time already judged by the database's clock.
#[derive(Debug)]
pub struct KeyRow {
    pub(crate) request_id: Uuid,
    pub(crate) definition: String,
    pub(crate) version: u32,
    pub(crate) fingerprint: String,
    pub(crate) status: Status,
    pub(crate) recovery_point: String,
    pub(crate) open_intent: Option<String>,
    pub(crate) lease_token: i64,
    pub(crate) attempts: u32,
    /// How many of them a resolution has forgiven.
    pub(crate) forgiven_attempts: u32,
    /// How often the unknown outcome was looked into.
    pub(crate) reconciles: u32,
    /// The last word about an unknown outcome; see `engine::resolve`.
    pub(crate) resolution: Option<String>,
    /// The phases that it is run under, as text (`definition::PhaseList`).
    pub(crate) phases: String,
    /// Why the last attempt ended before the request did.
    pub(crate) reason: Option<String>,
    /// Since when it waits for a reconcile function or an operator.
    pub(crate) waiting_since: Option<DateTime<Utc>>,
    /// Until the lease ends; zero once it has ended.
    pub(crate) lease_left: Duration,
    /// Until the back-off of a released or unknown row ends.
    pub(crate) back_off_left: Duration,
    /// Whether a worker has to look at it some time.
    pub(crate) for_workers: bool,
    /// Since the last recovery point was committed.
    pub(crate) since_advance: Duration,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) expired: bool,
    pub(crate) trace: Option<StoredTrace>,
    /// Absent in a completed row, which does not need them.
    pub(crate) work: Option<Work>,
    pub(crate) response: Option<StoredResponse>,
}

impl KeyRow {
    pub(crate) fn is_erased(&self) -> bool {
        self.fingerprint == ERASED
    }
}

/// What a run needs to continue.
pub(crate) struct Work {
    pub(crate) params: Vec<u8>,
    pub(crate) context: Option<Vec<u8>>,
    pub(crate) outputs: Option<Vec<u8>>,
}

/// A reply as it is stored. `body: None` marks one that was over the cap and was not retained.
#[derive(Clone)]
pub(crate) struct StoredResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Option<Vec<u8>>,
}

// G19: a row that is printed shows sizes, never content.
impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Work({} bytes of parameters)", self.params.len())
    }
}

impl std::fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoredResponse({})", self.status)
    }
}
