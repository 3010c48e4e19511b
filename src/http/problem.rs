//! [`Problem`]: every answer that is not a phase's own reply, as data. The
//! [profile](super::Profile) determines its form on the wire.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};

use super::header::KeyHeaderError;
use crate::engine::{CallError, FailureCause};

/// After how long a client may try again: where the cause may be gone in a moment, and where a key has to expire first.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(60);

/// What kind of problem: fixes status, code, title and whether a retry may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    KeyMissing,
    KeyMalformed,
    KeyTooLong,
    KeyRepeated,
    Unauthenticated,
    MethodNotAllowed,
    BodyTooLarge,
    BodyNotRead,
    MediaType,
    ParametersMalformed,
    ParametersInvalid,
    KeyReused,
    InProgress,
    OutcomeUnknown,
    RecordDeleted,
    DeadLetter,
    NotRetained,
    NoSuchRequest,
    Panicked,
    Misconfigured,
    RateExceeded,
    TooManyKeys,
    NotContinuedHere,
    Unavailable,
}

/// Whose problem it is, which the Stripe profile tells as `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    Idempotency,
    Request,
    Server,
}

/// One row of the published table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) code: &'static str,
    pub(crate) ietf_status: u16,
    pub(crate) stripe_status: u16,
    pub(crate) title: &'static str,
    pub(crate) retryable: bool,
    pub(crate) concern: Concern,
}

impl Kind {
    /// In the order of the checks.
    pub(crate) const ALL: [Self; 24] = [
        Self::MethodNotAllowed,
        Self::Unauthenticated,
        Self::KeyMissing,
        Self::KeyMalformed,
        Self::KeyTooLong,
        Self::KeyRepeated,
        Self::MediaType,
        Self::BodyTooLarge,
        Self::BodyNotRead,
        Self::ParametersMalformed,
        Self::ParametersInvalid,
        Self::Unavailable,
        Self::RateExceeded,
        Self::TooManyKeys,
        Self::KeyReused,
        Self::InProgress,
        Self::NotRetained,
        Self::NoSuchRequest,
        Self::NotContinuedHere,
        Self::OutcomeUnknown,
        Self::RecordDeleted,
        Self::DeadLetter,
        Self::Panicked,
        Self::Misconfigured,
    ];

    /// Three titles are the draft's, word for word.
    pub(crate) fn facts(self) -> Facts {
        use Concern::{Idempotency, Request, Server};
        let (code, ietf_status, stripe_status, title, retryable, concern) = match self {
            Self::KeyMissing => ("idempotency_key_missing", 400, 400, MISSING, false, Idempotency),
            Self::KeyMalformed => {
                let title = "Idempotency-Key is malformed";
                ("idempotency_key_malformed", 400, 400, title, false, Idempotency)
            }
            Self::KeyTooLong => {
                let title = "Idempotency-Key is too long";
                ("idempotency_key_too_long", 400, 400, title, false, Idempotency)
            }
            Self::KeyRepeated => {
                let title = "Idempotency-Key is sent more than once";
                ("idempotency_key_repeated", 400, 400, title, false, Idempotency)
            }
            Self::Unauthenticated => {
                ("unauthenticated", 401, 401, "The caller is not known", false, Request)
            }
            Self::MethodNotAllowed => {
                ("method_not_allowed", 405, 405, "The method takes no key", false, Request)
            }
            Self::BodyTooLarge => {
                ("body_too_large", 413, 413, "The request is too large", false, Request)
            }
            Self::BodyNotRead => {
                let title = "The body did not arrive";
                ("body_not_read", 408, 408, title, true, Request)
            }
            Self::MediaType => {
                let title = "The body's type or encoding is not supported";
                ("unsupported_media_type", 415, 415, title, false, Request)
            }
            Self::ParametersMalformed => {
                ("parameters_malformed", 400, 400, "The body cannot be read", false, Request)
            }
            Self::ParametersInvalid => {
                ("parameters_invalid", 422, 400, "The parameters are not valid", false, Request)
            }
            Self::KeyReused => ("idempotency_key_reused", 422, 400, REUSED, false, Idempotency),
            Self::InProgress => {
                ("idempotency_key_in_use", 409, 409, OUTSTANDING, true, Idempotency)
            }
            Self::OutcomeUnknown => {
                let title = "The outcome of the request is unknown";
                ("outcome_unknown", 409, 409, title, true, Idempotency)
            }
            Self::RecordDeleted => {
                let title = "The record of the request was deleted";
                ("record_deleted", 409, 409, title, false, Idempotency)
            }
            Self::DeadLetter => {
                ("dead_letter", 409, 409, "The request was given up", false, Idempotency)
            }
            Self::NoSuchRequest => {
                ("no_such_request", 404, 404, "There is no such request", false, Request)
            }
            Self::NotRetained => {
                let title = "The response was not retained";
                ("response_not_retained", 410, 410, title, false, Idempotency)
            }
            Self::Panicked => ("internal_error", 500, 500, "The request failed", true, Server),
            Self::Misconfigured => {
                ("misconfigured", 500, 500, "The server is not set up for this", false, Server)
            }
            Self::RateExceeded => {
                ("rate_exceeded", 429, 429, "Too many new requests", true, Request)
            }
            Self::TooManyKeys => {
                ("too_many_keys", 429, 429, "Too many keys are stored", true, Request)
            }
            Self::NotContinuedHere => {
                let title = "This server cannot continue the request";
                ("not_continued_here", 503, 503, title, true, Server)
            }
            Self::Unavailable => {
                ("temporarily_unavailable", 503, 503, "Not available now", true, Server)
            }
        };
        Facts { code, ietf_status, stripe_status, title, retryable, concern }
    }
}

const MISSING: &str = "Idempotency-Key is missing";
const REUSED: &str = "Idempotency-Key is already used";
const OUTSTANDING: &str = "A request is outstanding for this Idempotency-Key";

/// What went wrong, with what the client may do about it.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) detail: Cow<'static, str>,
    pub(crate) retryable: bool,
    pub(crate) retry_after: Option<Duration>,
    /// A header that the status asks for, as 401 does for `WWW-Authenticate`.
    pub(crate) header: Option<(HeaderName, HeaderValue)>,
    /// Whether the call certainly began nothing.
    began_nothing: bool,
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        let (detail, retryable) = (detail.into(), kind.facts().retryable);
        Self { kind, detail, retryable, retry_after: None, header: None, began_nothing: false }
    }

    pub(crate) fn with_header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    pub(crate) fn later(kind: Kind, detail: impl Into<Cow<'static, str>>, after: Duration) -> Self {
        Self { retry_after: Some(after), ..Self::new(kind, detail) }
    }

    /// One of a call that was refused before anything was begun.
    fn began_nothing(kind: Kind, detail: impl Into<Cow<'static, str>>, after: Duration) -> Self {
        Self { began_nothing: true, ..Self::later(kind, detail, after) }
    }

    /// The form for a client that sent no key: its retry is another request, which is safe only if this one began nothing.
    pub(crate) fn without_key(self) -> Self {
        if !self.retryable || self.began_nothing {
            return self;
        }
        let detail = "Part of it may be done, and the rest may follow. Without an Idempotency-Key, \
                      a retry is another request.";
        Self { detail: detail.into(), retryable: false, retry_after: None, ..self }
    }

    pub(crate) fn unavailable() -> Self {
        let detail = "Nothing was lost. Try again with the same key.";
        Self::later(Kind::Unavailable, detail, SOON)
    }

    pub(crate) fn in_progress(retry_after: Duration) -> Self {
        let detail = "This request is in progress. Ask again with the same key.";
        Self::later(Kind::InProgress, detail, retry_after)
    }

    /// The outcome is unknown, and a reconcile function is asked for it.
    pub(crate) fn being_determined(retry_after: Duration) -> Self {
        let detail =
            "The outcome is being determined. Nothing is repeated; ask again with the same key.";
        Self::later(Kind::OutcomeUnknown, detail, retry_after)
    }

    /// The outcome is unknown, and an operator has to settle it.
    pub(crate) fn left_to_the_operator(retry_after: Duration) -> Self {
        let detail = "The service's operator must determine the outcome. Nothing is repeated; ask again with the same key.";
        Self::later(Kind::OutcomeUnknown, detail, retry_after)
    }

    pub(crate) fn failed(cause: &FailureCause, retry_after: Duration) -> Self {
        let detail = "Try again with the same key: what is done is not done twice.";
        match cause {
            FailureCause::NotKnownHere | FailureCause::Undecodable { .. } => {
                Self::not_continued_here(retry_after)
            }
            FailureCause::Panic { .. } => Self::later(Kind::Panicked, detail, retry_after),
            _ => Self::later(Kind::Unavailable, detail, retry_after),
        }
    }

    /// A row that this build does not know or cannot read (G14). It may stay so: a deploy that is under way
    /// ends by itself, a build that was deployed too early does not.
    fn not_continued_here(retry_after: Duration) -> Self {
        let detail = "It was begun by another version of this service, which can continue it; nothing \
                      is lost, and nothing is repeated. Try again with the same key: another server \
                      may run that version. If that does not help, the service's operator must act.";
        Self::later(Kind::NotContinuedHere, detail, retry_after)
    }
}

impl From<KeyHeaderError> for Problem {
    fn from(error: KeyHeaderError) -> Self {
        let kind = match error {
            KeyHeaderError::Missing => Kind::KeyMissing,
            KeyHeaderError::Repeated => Kind::KeyRepeated,
            KeyHeaderError::TooLong => Kind::KeyTooLong,
            KeyHeaderError::Malformed(_) => Kind::KeyMalformed,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        match error {
            // Their texts name fields, rules and limits, never values.
            CallError::Fingerprint(_) | CallError::NotStorable { .. } => {
                Self::new(Kind::ParametersInvalid, error.to_string())
            }
            CallError::TooLarge { .. } => Self::new(Kind::BodyTooLarge, error.to_string()),
            CallError::ReservedKey => Self::new(Kind::KeyMalformed, error.to_string()),
            CallError::RateExceeded { limit, period, retry_after } => {
                let detail = format!(
                    "Nothing was done. A caller may send at most {limit} new requests in {period:?}: try again later."
                );
                Self::began_nothing(Kind::RateExceeded, detail, retry_after)
            }
            CallError::CreatingOthers { limit, retry_after } => {
                let detail = format!(
                    "Other requests of this caller are being stored first, and a caller may have at most {limit} \
                     keys. Try again later."
                );
                Self::began_nothing(Kind::RateExceeded, detail, retry_after)
            }
            CallError::TooManyKeys { limit } => {
                let detail = format!(
                    "Nothing was done. A caller may have at most {limit} keys: try again when one has expired."
                );
                Self::began_nothing(Kind::TooManyKeys, detail, LATER)
            }
            CallError::NotRegistered { .. } => Self::new(
                Kind::Misconfigured,
                "This request is not known here. The service's operator must act.",
            ),
            CallError::RowDeleted => {
                let detail = "It was deleted while the request ran. Part of the request may be done, and \
                              a retry is another request: find out first what is done.";
                Self::new(Kind::RecordDeleted, detail)
            }
            CallError::Unreadable { .. } => Self::not_continued_here(SOON),
            CallError::ShuttingDown => {
                let detail =
                    "This server is shutting down, and began nothing. Send the same request again.";
                Self::began_nothing(Kind::Unavailable, detail, SOON)
            }
            // What happened inside is the log's, not the client's. `NotEncoded` may follow a commit that got no answer.
            CallError::Unavailable(_) | CallError::NotEncoded { .. } | CallError::TaskLost => {
                Self::unavailable()
            }
        }
    }
}
