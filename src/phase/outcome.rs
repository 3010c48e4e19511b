//! How a phase ends: an output, an early reply, or one of the declared kinds of failure.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::DbError;

/// What a phase returns: its output, or how it failed.
///
/// A phase that may finish the request early and keep its writes returns
/// `PhaseResult<Flow<Output>>`; the last phase returns `PhaseResult<Reply>`. A foreign phase that
/// may return *unknown* or *not executed* names its error type: `PhaseResult<Charge, ForeignError>`.
/// Any error type of your own works if it converts into [`PhaseError`] (local) or
/// [`ForeignError`] (foreign).
pub type PhaseResult<T, E = PhaseError> = Result<T, E>;

/// The output of a phase that may also finish the request: its writes are kept either way.
///
/// ```
/// # use atomic_phases::store::Sqlite;
/// # use serde::{Deserialize, Serialize};
/// use atomic_phases::prelude::*;
///
/// # #[derive(Serialize, Deserialize)]
/// # struct Order { pieces: u32 }
/// #[derive(Serialize, Deserialize)]
/// struct Reserved(u32);
///
/// #[atomic_phases(name = "orders.create", version = 1, app = ())]
/// impl Order {
///     #[phase]
///     async fn reserved(&self, _: &mut Batch<'_, Sqlite>) -> PhaseResult<Flow<Reserved>> {
///         if self.pieces == 0 {
///             // What this phase wrote is committed, and this answer replayed. `PhaseError::reject` rolls back.
///             return Ok(Flow::Finish(Reply::json(200, &"nothing to send")?));
///         }
///         Ok(Flow::Continue(Reserved(self.pieces)))
///     }
///
///     #[phase]
///     async fn answered(
///         &self,
///         _: &mut Batch<'_, Sqlite>,
///         reserved: &Reserved,
///     ) -> PhaseResult<Reply> {
///         Ok(Reply::json(201, &reserved.0)?)
///     }
/// }
/// ```
#[derive(Debug)]
pub enum Flow<T> {
    /// Continue with this output.
    Continue(T),
    /// Finish the request with this reply, now; later phases do not run.
    Finish(Reply),
}

/// What a phase may return for later ones.
// Implemented for all that qualifies; with `do_not_recommend` there, the compiler tells a user whose type
// does not of this trait, in these words.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the output of a phase",
    label = "not an output",
    note = "an output is stored with the recovery point and read back by later phases: derive `serde::Serialize` and `serde::Deserialize` for `{Self}`, which must own its data",
    note = "see https://docs.rs/atomic-phases/latest/atomic_phases/attr.phase.html#what-it-returns"
)]
pub trait Output: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Output for T {}

/// The answer of a finished request: stored, and replayed (G8). A replay has the same status, the same
/// body bytes, and the header lines that
/// [`EngineBuilder::store_header`](crate::engine::EngineBuilder::store_header) lists; other lines are on the
/// first answer only.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// A value cannot be a [`Reply`]'s body. The error does not contain the value.
#[derive(Debug, thiserror::Error)]
#[error("the reply's body does not serialize to JSON: use maps whose keys are strings")]
#[non_exhaustive]
pub struct ReplyNotJson;

impl Reply {
    /// An empty reply with an HTTP status from 200 to 599. HTTP has no content in a 204, a 205 or a 304: the HTTP
    /// boundary sends these without the body that a phase may have given them.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    /// A JSON reply, with its `content-type`.
    ///
    /// # Errors
    /// [`ReplyNotJson`] if `body` has no JSON form; inside a phase, `?` converts it into a
    /// retryable failure.
    pub fn json(status: u16, body: &(impl Serialize + ?Sized)) -> Result<Self, ReplyNotJson> {
        let body = serde_json::to_vec(body).map_err(|_| ReplyNotJson)?;
        Ok(Self::new(status).header("content-type", "application/json").body(body))
    }

    /// A plain text reply, with its `content-type`.
    #[must_use]
    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::new(status).header("content-type", "text/plain; charset=utf-8").body(text.into())
    }

    /// Adds a header line; lines with the same name keep their order. `content-type`, `content-location`,
    /// `location`, `etag` and `last-modified` may occur only once: the line replaces an existing one.
    ///
    /// A name or value with a character that HTTP does not allow there (a line break above all) makes
    /// the phase fail. The HTTP boundary itself sets `idempotency-key`, `idempotency-expires` and the replay
    /// marker; lines with these names are ignored.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        const ONCE: [&str; 5] =
            ["content-type", "content-location", "location", "etag", "last-modified"];
        let name = name.into();
        if ONCE.iter().any(|once| name.eq_ignore_ascii_case(once)) {
            self.headers.retain(|(other, _)| !name.eq_ignore_ascii_case(other));
        }
        self.headers.push((name, value.into()));
        self
    }

    /// Replaces the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The header lines in order.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The body's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.body
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // G19: neither header values nor the body.
        write!(
            f,
            "Reply({}, {} header lines, {} bytes)",
            self.status,
            self.headers.len(),
            self.body.len()
        )
    }
}

/// How a local phase fails, or a foreign one before or without its call.
///
/// Reasons are `&'static str`, so that a log line about a failure cannot hold a user's data (G19).
#[derive(Debug)]
pub struct PhaseError(pub(crate) PhaseFailure);

#[derive(Debug)]
pub(crate) enum PhaseFailure {
    Reject(Reply),
    Retryable { reason: &'static str, after: Option<Duration> },
    Database(DbError),
}

impl PhaseError {
    /// A business rejection: the phase's writes are rolled back, then this reply is stored and
    /// replayed to every retry.
    ///
    /// What earlier phases committed stays. If that must be undone (the seat was reserved, and then the card
    /// is declined), let the foreign phase return the refusal as its output, and the next local phase
    /// undo it and answer with [`Flow::Finish`](crate::phase::Flow::Finish).
    #[must_use]
    pub fn reject(reply: Reply) -> Self {
        Self(PhaseFailure::Reject(reply))
    }

    /// A transient failure: the phase's writes are rolled back, the request is released immediately, and
    /// a retry runs this phase again.
    #[must_use]
    pub fn retryable(reason: &'static str) -> Self {
        Self(PhaseFailure::Retryable { reason, after: None })
    }

    /// As [`retryable`](Self::retryable), with the back-off that the provider asked for. It is clamped to an hour, or to the
    /// [longest back-off](crate::engine::EngineBuilder::back_off) of the engine if that is longer.
    #[must_use]
    pub fn retryable_after(reason: &'static str, after: Duration) -> Self {
        Self(PhaseFailure::Retryable { reason, after: Some(after) })
    }
}

/// After a serialization failure or deadlock, the engine re-runs a local phase, a bounded number of times;
/// any other database error is a retryable failure.
impl From<diesel::result::Error> for PhaseError {
    fn from(error: diesel::result::Error) -> Self {
        Self(PhaseFailure::Database(error.into()))
    }
}

impl From<ReplyNotJson> for PhaseError {
    fn from(_: ReplyNotJson) -> Self {
        Self::retryable("the reply does not serialize to JSON: use maps whose keys are strings")
    }
}

/// How a foreign phase fails: as a [`PhaseError`], or in a way specific to foreign calls.
///
/// In an `at_most_once` phase the difference decides about a second effect: after the call was
/// made, everything but [`reject`](Self::reject) and [`not_executed`](Self::not_executed) leaves
/// the request *unknown*.
///
/// Classify the failures once, in an error type of your own, and use `?` in the phases:
///
/// ```
/// use atomic_phases::Reply;
/// use atomic_phases::phase::ForeignError;
///
/// enum BankError {
///     Declined,
///     Busy,
///     Unreachable,
///     ConnectionLost,
/// }
///
/// impl From<BankError> for ForeignError {
///     fn from(error: BankError) -> Self {
///         match error {
///             // A final answer: the client receives it, and so does each retry.
///             BankError::Declined => Self::reject(Reply::new(402)),
///             // An answer that says that nothing was done: try again.
///             BankError::Busy => Self::not_executed("the bank is busy"),
///             // Nothing was sent.
///             BankError::Unreachable => Self::not_executed("no connection to the bank"),
///             // It was sent, and the outcome is unknown.
///             BankError::ConnectionLost => Self::unknown("the bank's answer was lost"),
///         }
///     }
/// }
///
/// # use atomic_phases::phase::DerivedKey;
/// # use atomic_phases::{ForeignCall, PhaseResult};
/// # struct Transfer;
/// # struct Bank;
/// # impl Bank {
/// #     async fn pay(&self, _: DerivedKey) -> Result<Transfer, BankError> { Err(BankError::Busy) }
/// # }
/// // The body of a phase: `make` returns a `BankError`, which `?` converts.
/// async fn sent(call: ForeignCall, bank: &Bank) -> PhaseResult<Transfer, ForeignError> {
///     Ok(call.make(|key| bank.pay(key)).await?)
/// }
/// ```
#[derive(Debug)]
pub struct ForeignError(pub(crate) ForeignFailure);

#[derive(Debug)]
pub(crate) enum ForeignFailure {
    Phase(PhaseFailure),
    NotExecuted { reason: &'static str, after: Option<Duration> },
    Unknown { reason: &'static str },
}

impl ForeignError {
    /// A business rejection (card declined): this reply is stored and replayed. What earlier phases
    /// committed stays: see [`PhaseError::reject`].
    #[must_use]
    pub fn reject(reply: Reply) -> Self {
        PhaseError::reject(reply).into()
    }

    /// A transient failure that says nothing about the effect. If the provider honors the derived
    /// key, a retry calls again with the same key; if it does not, the request is *unknown*.
    #[must_use]
    pub fn retryable(reason: &'static str) -> Self {
        PhaseError::retryable(reason).into()
    }

    /// As [`retryable`](Self::retryable), with the back-off that the provider asked for. It is clamped to an hour, or to the
    /// [longest back-off](crate::engine::EngineBuilder::back_off) of the engine if that is longer.
    #[must_use]
    pub fn retryable_after(reason: &'static str, after: Duration) -> Self {
        PhaseError::retryable_after(reason, after).into()
    }

    /// The effect certainly did not happen (connection refused, 429, a rejected signature): safe to
    /// call again, at any provider. If no other call of the phase may have had an effect, the engine calls again even after
    /// the provider's window: the provider has no key to forget.
    #[must_use]
    pub fn not_executed(reason: &'static str) -> Self {
        Self(ForeignFailure::NotExecuted { reason, after: None })
    }

    /// As [`not_executed`](Self::not_executed), with the back-off that the provider asked for. It is clamped to an hour, or to
    /// the [longest back-off](crate::engine::EngineBuilder::back_off) of the engine if that is longer.
    #[must_use]
    pub fn not_executed_after(reason: &'static str, after: Duration) -> Self {
        Self(ForeignFailure::NotExecuted { reason, after: Some(after) })
    }

    /// The effect may or may not have happened, and calling again would not be safe: the engine does not
    /// repeat the call; a reconcile function, a webhook or an operator settles it.
    #[must_use]
    pub fn unknown(reason: &'static str) -> Self {
        Self(ForeignFailure::Unknown { reason })
    }

    /// The provider refuses the derived key, because it has seen it with other parameters: *unknown*, with a reason
    /// that explains the cause. Either a failover lost the row of a request whose call was made, and the parameters
    /// contain values derived from the row ([`RequestContext::uuid`](crate::RequestContext::uuid)); or two builds
    /// send different parameters.
    #[must_use]
    pub fn other_parameters() -> Self {
        Self::unknown(OTHER_PARAMETERS)
    }
}

/// Why the call must not be repeated, nor its outcome be guessed.
const OTHER_PARAMETERS: &str = "the provider has this key with other parameters: those of a row that was lost, or of another build";

impl From<PhaseError> for ForeignError {
    fn from(error: PhaseError) -> Self {
        Self(ForeignFailure::Phase(error.0))
    }
}

impl From<ReplyNotJson> for ForeignError {
    fn from(error: ReplyNotJson) -> Self {
        PhaseError::from(error).into()
    }
}

/// What a `#[reconcile]` function found out about a call whose outcome is unknown.
#[derive(Debug)]
pub enum Reconciled<T> {
    /// The effect happened; this is the output that the phase would have returned.
    Executed(T),
    /// The effect did not happen, and the call will no longer arrive: it may be made again.
    ///
    /// If the provider merely does not find the call, return [`StillUnknown`](Self::StillUnknown): the call may still be
    /// on its way. The engine asks no earlier than the phase's time limit (`#[phase(timeout = "..")]`, 30 s by default)
    /// after the end of its holder's lease: by then a live holder has dropped the call, and a frozen one
    /// can no longer begin it. Bytes that a socket accepted before may still arrive;
    /// [`reconcile_after`](crate::engine::EngineBuilder::reconcile_after) must be longer than that can take.
    NotExecuted,
    /// The outcome cannot be determined yet.
    StillUnknown,
}
