//! [`Outcome`]: the result of a call, and [`CallError`]: why nothing was attempted.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::fingerprint::FingerprintError;
use crate::key::KEYLESS;
use crate::phase::Reply;
use crate::store::StoreError;

/// The outcome of a request. Each variant says what the caller may do next; durations are measured
/// by the database's clock.
///
/// ```
/// use atomic_phases::Outcome;
///
/// /// The status of an answer to a client. `http::Answer` produces the complete answer.
/// fn status(outcome: &Outcome) -> u16 {
///     match outcome {
///         Outcome::Finished(done) => done.reply.status(),
///         Outcome::Accepted => 202,
///         Outcome::Mismatch => 422,
///         // A retry with the same key resumes, or waits for the holder: the charge is not made twice.
///         Outcome::Failed { .. } => 503,
///         Outcome::InProgress { .. } | Outcome::Unknown { .. } | Outcome::DeadLetter => 409,
///         Outcome::ReplyNotRetained { .. } | Outcome::Erased => 410,
///         // Variants added later.
///         _ => 500,
///     }
/// }
/// assert_eq!(status(&Outcome::Mismatch), 422);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Finished, now or earlier, with this reply, which was durable before it was returned (G8).
    Finished(Finished),
    /// Finished earlier, with a reply over [`Limits::reply_body`](crate::config::Limits) that was not
    /// retained. The request never runs again.
    ReplyNotRetained {
        /// The reply's HTTP status.
        status: u16,
    },
    /// Finished earlier, and its data has been [erased](crate::Engine::erase). It never runs again.
    Erased,
    /// The key was used for another request: other parameters, path or definition. Checked before
    /// anything else about the row is revealed (G9).
    Mismatch,
    /// Another holder is running it. Retry after `retry_after`, which is at most the rest of the lease.
    InProgress {
        /// A few seconds while the holder renews its lease; otherwise the rest of the lease.
        retry_after: Duration,
    },
    /// It stopped at a transient failure and is released. A retry with the same key resumes after the
    /// last committed phase.
    Failed {
        /// What stopped it.
        cause: FailureCause,
        /// When to retry.
        retry_after: Duration,
    },
    /// A foreign effect may or may not have happened. The call is not repeated; a reconcile function, a
    /// webhook or an operator settles it.
    Unknown {
        /// The time until the outcome is reconciled. If only an operator can settle it, the time after which a
        /// reconcile function would be called.
        retry_after: Duration,
        /// Whether the phase has a reconcile function. If not, the request waits for an operator.
        is_asked: bool,
    },
    /// Stored durably; a worker will run it. The result of [`Call::accept`](crate::engine::Call::accept).
    Accepted,
    /// Given up at the attempt cap; only an operator can retry or settle it.
    DeadLetter,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finished {
    /// Its answer.
    pub reply: Reply,
    /// Whether an earlier call produced the reply.
    pub replayed: bool,
    /// The key replays the reply at least until this time. If a request takes longer than a third of its lease, its
    /// renewals and its end set a later time, so a replay may return a later one than the first answer.
    pub expires_at: DateTime<Utc>,
}

/// What stopped a request, without values (G19).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureCause {
    /// The phase returned a retryable failure with this reason.
    Phase {
        /// The phase's name.
        phase: &'static str,
        /// The reason it gave.
        reason: &'static str,
    },
    /// The phase panicked.
    Panic {
        /// The phase's name.
        phase: &'static str,
    },
    /// A database error ended the phase, after the re-runs that the engine allows. Or the process has never been able to
    /// read what operators have paused, and so did not begin a foreign phase: this does not count as an attempt.
    Database {
        /// The phase's name.
        phase: &'static str,
        /// What kind of error.
        kind: &'static str,
        /// The constraint, table or column of the application's that the error names: `constraint rides_pkey
        /// of table rides`. It has names of the schema, never a value.
        about: Option<String>,
    },
    /// The phase broke a rule of its transaction, or returned a value that cannot be stored; its writes were
    /// rolled back.
    Misuse {
        /// The phase's name.
        phase: &'static str,
        /// Which rule, and what to do.
        rule: &'static str,
    },
    /// The codec could not encode what the phase returned or staged; the phase's writes were rolled back.
    Codec {
        /// The phase's name.
        phase: &'static str,
        /// Why not, in the codec's words.
        reason: &'static str,
    },
    /// The phase took longer than its time limit, and was dropped; see `#[phase(timeout = "..")]`.
    TimeLimit {
        /// The phase's name.
        phase: &'static str,
        /// Its limit.
        limit: Duration,
    },
    /// An operator has paused the phase: it was not begun. This does not count as an attempt.
    Paused {
        /// The phase's name.
        phase: &'static str,
    },
    /// Stored parameters or outputs do not decode as the registered types. This counts as an attempt; an
    /// operator can [resolve](crate::Engine::resolve) the request, or a later build may be able to read it.
    Undecodable {
        /// Which values.
        what: &'static str,
    },
    /// The attempt that this call waited for ([`OnDuplicate::Wait`](crate::config::OnDuplicate::Wait)) failed, and its
    /// back-off has not ended. [`RequestStatus::reason`](crate::engine::RequestStatus) has the cause.
    OtherAttempt,
    /// This process is shutting down.
    ShuttingDown,
    /// This process does not know the row's definition version, recovery point or format, or cannot decode
    /// its parameters as the caller's type, and so cannot tell whether this is the same request;
    /// another node may. The row was not changed (G14).
    NotKnownHere,
}

/// The reason of a request that met a pause, which may be over by the time that it is read. The operator's own reason is in
/// the audit only: clients do not see it.
pub(crate) const PAUSED: &str = "the phase was paused by an operator";

/// The kind of a database error after which it is not known whether the phase is paused.
pub(crate) const PAUSES_UNREAD: &str = "the pauses could not be read since the process started: \
    the phase is tried again; if this lasts, the process's log says why";

impl FailureCause {
    /// Why the request stopped, in words that are stored with it and shown to operators.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Phase { reason, .. } | Self::Codec { reason, .. } => reason,
            Self::Panic { .. } => "the phase panicked",
            Self::Database { kind, .. } => kind,
            Self::Misuse { rule, .. } => rule,
            Self::TimeLimit { .. } => "the phase's time limit has passed",
            Self::Paused { .. } => PAUSED,
            Self::Undecodable { what } => what,
            Self::OtherAttempt => "another attempt failed",
            Self::ShuttingDown => "the process was shutting down",
            Self::NotKnownHere => "this process does not know it",
        }
    }

    /// The phase that it stopped at, where it was one.
    #[must_use]
    pub fn phase(&self) -> Option<&'static str> {
        match self {
            Self::Phase { phase, .. }
            | Self::Panic { phase }
            | Self::Database { phase, .. }
            | Self::Misuse { phase, .. }
            | Self::Codec { phase, .. }
            | Self::TimeLimit { phase, .. }
            | Self::Paused { phase } => Some(phase),
            Self::Undecodable { .. }
            | Self::OtherAttempt
            | Self::ShuttingDown
            | Self::NotKnownHere => None,
        }
    }

    /// A short name for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Phase { .. } => "phase",
            Self::Panic { .. } => "panic",
            Self::Database { .. } => "database",
            Self::Misuse { .. } => "misuse",
            Self::Codec { .. } => "codec",
            Self::TimeLimit { .. } => "time_limit",
            Self::Paused { .. } => "paused",
            Self::Undecodable { .. } => "undecodable",
            Self::OtherAttempt => "other_attempt",
            Self::ShuttingDown => "shutting_down",
            Self::NotKnownHere => "not_known_here",
        }
    }
}

/// Why a call has no [`Outcome`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The store could not reserve, read or commit (G12). Nothing runs; what was committed stays,
    /// and a later call with the same key continues from it.
    #[error("the store is unavailable; call again with the same key")]
    Unavailable(#[source] StoreError),
    /// The engine is shutting down and accepts no new requests.
    #[error("the engine is shutting down; call another node")]
    ShuttingDown,
    /// The parameters have no canonical form.
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
    /// The key begins with `~keyless:`, like the keys that the HTTP boundary makes for requests without a key. These do not
    /// count against [`Quota::keys`](crate::config::Quota::keys), so no client may send one.
    #[error(
        "keys that begin with {KEYLESS} are reserved for requests without a key; choose another"
    )]
    ReservedKey,
    /// Larger than the configured cap; see [`Limits`](crate::config::Limits).
    #[error("the size of the {what} is {size} bytes; the limit is {limit}: send less")]
    TooLarge {
        /// `parameters` or `context`.
        what: &'static str,
        /// Serialized size in bytes.
        size: usize,
        /// The cap in bytes.
        limit: usize,
    },
    /// The scope creates keys faster than [`Quota::rate`](crate::config::Quota::rate) allows. HTTP 429.
    #[error("this scope may create {limit} keys in {period:?}; try again in {retry_after:?}")]
    RateExceeded {
        /// How many.
        limit: u32,
        /// In which time.
        period: Duration,
        /// When it may create the next.
        retry_after: Duration,
    },
    /// The scope has as many keys as [`Quota::keys`](crate::config::Quota::keys) allows. HTTP 429: some of
    /// them must expire first.
    #[error("this scope has {limit} keys, which is its limit; try again when one has expired")]
    TooManyKeys {
        /// How many.
        limit: u32,
    },
    /// Other requests of the scope are being created; including them, the scope may have as
    /// many keys as [`Quota::keys`](crate::config::Quota::keys) allows. HTTP 429.
    #[error(
        "this scope is creating other keys, and may have {limit} at most; try again in {retry_after:?}"
    )]
    CreatingOthers {
        /// How many it may have.
        limit: u32,
        /// When to try again.
        retry_after: Duration,
    },
    /// A value that does not survive serialization to JSON and back, so that a resumed run would see a different
    /// value.
    #[error(
        "the {what} cannot be stored: JSON does not give back the same value; use finite numbers, and one form \
         for both halves of serde"
    )]
    NotStorable {
        /// `parameters` or `context`.
        what: &'static str,
    },
    /// The request's definition was not registered with this engine.
    #[error(
        "the definition {name} version {version} is not registered: add `.register::<…>()` to the engine's builder"
    )]
    NotRegistered {
        /// The definition's name.
        name: &'static str,
        /// Its version.
        version: u32,
    },
    /// The codec could not encode a value of a new request. Nothing runs, and the key has no row: a later call with
    /// the same key begins the request.
    #[error(
        "the codec cannot encode the {what} of a new request: {why}; nothing was begun, so call again when the \
         codec can"
    )]
    NotEncoded {
        /// `params` or `context`.
        what: &'static str,
        /// Why not, in the codec's words.
        why: &'static str,
    },
    /// This process cannot read a stored value. The row was not changed.
    #[error(
        "the stored {what} of the request cannot be read: {why}; call a process with the build and the codec \
         that wrote it"
    )]
    Unreadable {
        /// Which value.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The request's row was deleted, or expired, while this call ran it. Its effects remain. Another call would
    /// begin a new request, so this call does not repeat itself.
    #[error(
        "the row of the request was deleted while it ran, and its effects remain: find out what is done before \
         you call again, because a call with this key begins another request"
    )]
    RowDeleted,
    /// The task that ran the request ended without an answer: the runtime is shutting down, or this crate has a
    /// defect. As after a crash, a retry resumes.
    #[error("the task that ran the request ended without an answer; retry with the same key")]
    TaskLost,
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unreadable { column } => unreadable(column),
            error => Self::Unavailable(error),
        }
    }
}

/// A stored value is not what this version of the engine writes there.
pub(super) fn unreadable(what: &'static str) -> CallError {
    CallError::Unreadable { what, why: "written by a newer version, or by hand" }
}
