//! [`Resolution`]: what a webhook or an operator knows of a request; [`Resolved`] and [`ResolveError`]: what
//! became of it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::AGAIN;
use crate::engine::StrandedBecause;
use crate::engine::outcome::CallError;
use crate::phase::Reply;
use crate::roundtrip;
use crate::store::audit::ValueDigest;
use crate::store::{Status, StoreError};

/// What a webhook or an operator knows about a request whose outcome is unknown, or about a dead letter.
///
/// A resolution names a key, and a key may have several successive requests: a finished one expires with its
/// retention, and the next call with its key is a new request. If a resolution may come later than that, for example
/// because a provider redelivers its webhooks for days, it must name its request
/// ([`of_request`](Self::of_request)). Otherwise a resolution of a call of the first request is applied to the
/// second, and a call that was made may be made again (G2). An operator's resolution
/// ([`Ops::resolve`](crate::ops::Ops::resolve)) always names its request.
#[derive(Debug)]
pub struct Resolution {
    pub(super) kind: ResolutionKind,
    /// The request that it is about, and no other under its key.
    pub(super) request: Option<Uuid>,
}

#[derive(Clone)]
pub(super) enum ResolutionKind {
    Executed { phase: String, output: Box<RawValue> },
    NotExecuted { phase: String, attempt: u32 },
    Finish(Reply),
    Retry,
}

impl Resolution {
    /// The call of `phase` had its effect, and this is the output that the phase would have returned.
    /// The request continues after it.
    ///
    /// # Errors
    /// [`ResolveError::NotStorable`] if `output` has no JSON form, or contains a float that is NaN or infinite, which
    /// JSON writes as `null`.
    pub fn executed(
        phase: impl Into<String>,
        output: &impl Serialize,
    ) -> Result<Self, ResolveError> {
        let output = roundtrip::raw_json(output).ok_or(ResolveError::NotStorable)?;
        Ok(ResolutionKind::Executed { phase: phase.into(), output }.into())
    }

    /// The call of `phase` in this attempt
    /// ([`RequestContext::attempt`](crate::RequestContext::attempt),
    /// [`RequestStatus::attempt`](crate::engine::RequestStatus::attempt)) had no effect and will have none:
    /// it may be made again. For an idempotent phase, this covers the calls of all attempts, because they use one derived
    /// key: the next call begins a new window. Because of the attempt, a resolution of an earlier call, delivered twice or
    /// late, is not applied to a later call: if it is known already, also by one of a later attempt, the result is
    /// [`Resolved::Already`].
    pub fn not_executed(phase: impl Into<String>, attempt: u32) -> Self {
        ResolutionKind::NotExecuted { phase: phase.into(), attempt }.into()
    }

    /// Closes the request with this reply, for an operator who has settled it by hand. It applies to any unfinished request
    /// that no holder runs: also to one that is accepted, is due or backs off, or whose holder's lease has ended.
    pub fn finish(reply: Reply) -> Self {
        ResolutionKind::Finish(reply).into()
    }

    /// Retries a dead letter, with a new count of attempts.
    pub fn retry() -> Self {
        ResolutionKind::Retry.into()
    }

    /// Applies only to the request with this id
    /// ([`RequestContext::request_id`](crate::RequestContext::request_id),
    /// [`RequestStatus::request_id`](crate::engine::RequestStatus::request_id)). If the key belongs to another request
    /// by now, the resolution is refused ([`ResolveError::AnotherRequest`]).
    #[must_use]
    pub fn of_request(self, request_id: Uuid) -> Self {
        Self { request: Some(request_id), ..self }
    }

    /// The phase whose call it is about; `None` where it is about the whole request.
    pub(crate) fn phase(&self) -> Option<&str> {
        self.kind.phase()
    }

    /// The attempt whose call had no effect.
    pub(crate) fn attempt(&self) -> Option<u32> {
        match self.kind {
            ResolutionKind::NotExecuted { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    /// Of the output as it was given, before a codec encodes it, or of the reply's body.
    pub(crate) fn value_digest(&self) -> Option<ValueDigest> {
        match &self.kind {
            ResolutionKind::Executed { output, .. } => {
                Some(ValueDigest::of(output.get().as_bytes()))
            }
            ResolutionKind::Finish(reply) => Some(ValueDigest::of(reply.bytes())),
            ResolutionKind::NotExecuted { .. } | ResolutionKind::Retry => None,
        }
    }

    /// Whether it has a value, an output or a reply, that can be compared with a stored one.
    pub(crate) fn has_value(&self) -> bool {
        matches!(self.kind, ResolutionKind::Executed { .. } | ResolutionKind::Finish(_))
    }

    /// What an audit row says of it, and in which status it leaves the request.
    pub(crate) fn act(&self) -> (&'static str, Status) {
        match &self.kind {
            ResolutionKind::Executed { .. } => ("resolve.executed", Status::FailedRetryable),
            ResolutionKind::NotExecuted { .. } => ("resolve.not_executed", Status::FailedRetryable),
            ResolutionKind::Finish(_) => ("resolve.finish", Status::Completed),
            ResolutionKind::Retry => ("retry", Status::FailedRetryable),
        }
    }
}

impl fmt::Debug for ResolutionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // G19: not the output.
            Self::Executed { phase, output } => {
                write!(f, "Executed({phase}, {} bytes)", output.get().len())
            }
            Self::NotExecuted { phase, attempt } => write!(f, "NotExecuted({phase}, {attempt})"),
            Self::Finish(reply) => write!(f, "Finish({reply:?})"),
            Self::Retry => f.write_str("Retry"),
        }
    }
}

impl From<ResolutionKind> for Resolution {
    fn from(kind: ResolutionKind) -> Self {
        Self { kind, request: None }
    }
}

impl ResolutionKind {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Executed { .. } => "executed",
            Self::NotExecuted { .. } => "not_executed",
            Self::Finish(_) => "finish",
            Self::Retry => "retry",
        }
    }

    pub(super) fn phase(&self) -> Option<&str> {
        match self {
            Self::Executed { phase, .. } | Self::NotExecuted { phase, .. } => Some(phase),
            Self::Finish(_) | Self::Retry => None,
        }
    }
}

/// The result of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Resolved {
    /// It was written. A completer or the next retry continues the request.
    Applied,
    /// The same resolution was known already.
    Already,
    /// The request had finished before the resolution came, for example because a webhook was slower
    /// than the answer. Nothing was written. Whether it finished with this output is not known, because the output of
    /// a call is not stored if its request continued to its end without interruption. Compare with your own tables if
    /// that matters.
    Finished,
}

impl Resolved {
    /// Its name, as in the JSON API: `applied`, `already`, `finished`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Already => "already",
            Self::Finished => "finished",
        }
    }
}

/// Why a resolution was refused. Nothing was written, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// There is no row under this key.
    #[error("there is no request under this key; check the scope and the key")]
    NoSuchKey,
    /// The request that the resolution names is gone, and its key belongs to another request: nothing is left to resolve.
    #[error("the key belongs to another request now, so nothing is left to resolve")]
    AnotherRequest,
    /// The row has changed since the operator read it: read it again.
    #[error("the request has changed since it was read: read it again")]
    MovedOn,
    /// It contradicts an earlier resolution or result, or the request does not wait for it.
    #[error("{0}")]
    Conflict(&'static str),
    /// The request's definition has no such phase, or the request does not wait for a resolution of it.
    #[error(
        "the request does not wait for a resolution of this phase; its status names the phase whose call has no outcome"
    )]
    NotThatPhase,
    /// The request is in use: a holder runs it now, perhaps the very call that the resolution is about, or another
    /// transaction has locked its row. Repeat the resolution later.
    #[error("the request is in use; repeat the resolution in {retry_after:?}")]
    InProgress {
        /// The rest of the holder's lease, but a second at least; a second if the row is locked.
        retry_after: Duration,
    },
    /// This process cannot continue the request (G14): send a resolution of one of its calls to another process.
    /// [`Resolution::finish`] and [`Engine::erase`](crate::Engine::erase) do not need the definition. To finish a request,
    /// a process needs the application's settings all the same (codec, header lines, retention): an engine without any
    /// definition is refused.
    #[error(
        "this process cannot continue the request: {0}; send the resolution to a process that can"
    )]
    NotKnownHere(StrandedBecause),
    /// Whether the later phases could read the output cannot be checked.
    #[error(
        "the output cannot be checked: {0}; send the resolution to a process that can read the request"
    )]
    Undecodable(StrandedBecause),
    /// The output cannot be read as what the phase returns, so the later phases could not read it. The last phase
    /// returns a reply: [`Resolution::finish`] takes one.
    #[error("the output cannot be read as what the phase returns{}", because(.why.as_deref()))]
    OtherType {
        /// What its type says of that: what it expects, or misses. It quotes nothing of the output (G19).
        why: Option<String>,
    },
    /// The value has no JSON form, is over its cap, or cannot be replayed.
    #[error(
        "the value cannot be stored: it has no JSON form, exceeds its cap in Limits together with the stored \
         outputs, or is a reply that HTTP does not allow; change it, or raise the cap"
    )]
    NotStorable,
    /// The codec could not encode the value. Repeat the resolution later.
    #[error("the codec cannot encode the value: {why}; repeat the resolution later")]
    NotEncoded {
        /// Why not, in the codec's words.
        why: &'static str,
    },
    /// The task that wrote it was lost with its runtime. Whether the resolution was written is not known: repeat
    /// it.
    #[error(
        "the task that wrote the resolution was lost; repeat it, because it may not have been written"
    )]
    TaskLost,
    /// The task that wrote it panicked: a defect of the engine, the store or a driver. Whether the resolution was written is
    /// not known: repeat it.
    #[error(
        "the task that wrote the resolution ended in a panic; repeat it, because it may not have been written"
    )]
    TaskPanicked,
    /// The store could not be read or written. If its answer to the commit was lost for good, whether the
    /// resolution was written is not known: repeat it.
    #[error("the store is unavailable; repeat the resolution")]
    Unavailable(#[source] StoreError),
    /// This process cannot read a stored value. The row was not changed.
    #[error(
        "the stored {what} of the request cannot be read; send the resolution to a process with the build and \
         the codec that wrote it"
    )]
    Unreadable {
        /// Which value.
        what: &'static str,
    },
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(|| "; give an output of its type".to_owned(), |why| format!(": {why}"))
}

impl ResolveError {
    /// Whether it says for certain that nothing was written.
    pub(super) fn denies_a_write(&self) -> bool {
        !matches!(
            self,
            Self::InProgress { .. } | Self::TaskLost | Self::TaskPanicked | Self::Unavailable(_)
        )
    }
}

impl From<StoreError> for ResolveError {
    fn from(error: StoreError) -> Self {
        CallError::from(error).into()
    }
}

impl From<CallError> for ResolveError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(StoreError::Locked) => Self::InProgress { retry_after: AGAIN },
            CallError::Unavailable(error) => Self::Unavailable(error),
            CallError::Unreadable { what, .. } => Self::Unreadable { what },
            CallError::TaskLost => Self::TaskLost,
            _ => Self::NotKnownHere(StrandedBecause::NewerForm),
        }
    }
}
