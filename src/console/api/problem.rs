//! [`Problem`]: why an operator was not served, as `application/problem+json` (RFC 9457) with `code` and
//! `retryable`, as the boundary of the requests tells its own.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::json;

use crate::console::access::NotLetIn;
use crate::engine::{EraseError, ResolveError};
use crate::ops::OpsError;

/// What kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unauthenticated,
    CrossOrigin,
    NoSuchRoute,
    MethodNotAllowed,
    MediaType,
    BodyTooLarge,
    BodyNotRead,
    Malformed,
    Invalid,
    NotAllowed,
    NoVersion,
    NoSuchRequest,
    NoSuchJob,
    NoSuchPhase,
    NoSuchBulk,
    MovedOn,
    InUse,
    Refused,
    Unreadable,
    Panicked,
    Unavailable,
}

/// What is the same of every problem of a kind.
pub(crate) struct Facts {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) title: &'static str,
    /// Whether the same request may be served later.
    pub(crate) retryable: bool,
}

impl Kind {
    /// In the order of the checks.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 21] = [
        Self::CrossOrigin,
        Self::Unauthenticated,
        Self::NoSuchRoute,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::BodyNotRead,
        Self::MediaType,
        Self::Malformed,
        Self::Invalid,
        Self::NoVersion,
        Self::NotAllowed,
        Self::NoSuchRequest,
        Self::NoSuchJob,
        Self::NoSuchPhase,
        Self::NoSuchBulk,
        Self::MovedOn,
        Self::InUse,
        Self::Refused,
        Self::Unreadable,
        Self::Panicked,
        Self::Unavailable,
    ];

    pub(crate) fn facts(self) -> Facts {
        let (status, code, title) = match self {
            Self::CrossOrigin => (403, "cross_origin", "The request comes from another site"),
            Self::Unauthenticated => (401, "unauthenticated", "The caller is not known"),
            Self::NoSuchRoute => (404, "no_such_route", "There is no such route"),
            Self::MethodNotAllowed => (405, "method_not_allowed", "The route has no such method"),
            Self::BodyTooLarge => (413, "body_too_large", "The request is too large"),
            Self::BodyNotRead => (408, "body_not_read", "The body did not arrive"),
            Self::MediaType => (415, "unsupported_media_type", "The body is not application/json"),
            Self::Malformed => (400, "malformed", "The request cannot be read"),
            Self::Invalid => (422, "invalid", "The request is not valid"),
            Self::NoVersion => (428, "version_missing", "If-Match is missing"),
            Self::NotAllowed => (403, "not_allowed", "The operator lacks a permission"),
            Self::NoSuchRequest => (404, "no_such_request", "There is no such request"),
            Self::NoSuchJob => (404, "no_such_job", "There is no such job"),
            Self::NoSuchPhase => (404, "no_such_phase", "There is no such phase"),
            Self::NoSuchBulk => (404, "no_such_bulk", "There is no such bulk act"),
            Self::MovedOn => (412, "moved_on", "It has changed since it was read"),
            Self::InUse => (409, "in_use", "The request is in use"),
            Self::Refused => (409, "refused", "The act was refused"),
            Self::Unreadable => (409, "unreadable", "A stored value cannot be read here"),
            Self::Panicked => (500, "panicked", "The task ended in a panic"),
            Self::Unavailable => (503, "unavailable", "Not available now"),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retryable = matches!(self, Self::BodyNotRead | Self::InUse | Self::Unavailable);
        Facts { status, code, title, retryable }
    }

    fn detail(self) -> &'static str {
        match self {
            Self::Unauthenticated => "Say who you are, as the application asks for it.",
            Self::NoSuchRoute => "The routes are in openapi.json.",
            Self::MethodNotAllowed => "The methods of each route are in openapi.json.",
            Self::BodyNotRead => "Nothing was done. Send it again.",
            Self::MediaType => "Send JSON, with `Content-Type: application/json`.",
            Self::NoVersion => {
                "An act says which version it is about: send the ETag of what you saw as If-Match."
            }
            Self::NoSuchRequest => {
                "There is none that you may see: check its id, or its scope and key."
            }
            Self::NoSuchJob => {
                "There is no dead job of this id that you may see: list the dead jobs."
            }
            Self::NoSuchBulk => "There is no bulk act of this id that you may see: list them.",
            Self::MovedOn => "Nothing was done. Read it again, then decide again.",
            Self::Panicked => {
                "The task of the act ended in a panic. Whether it was written is not known: read the audit."
            }
            Self::Unavailable => {
                "Whether an act was done is in the audit. Read it again, then decide again."
            }
            Self::CrossOrigin
            | Self::BodyTooLarge
            | Self::Malformed
            | Self::Invalid
            | Self::NotAllowed
            | Self::NoSuchPhase
            | Self::InUse
            | Self::Refused
            | Self::Unreadable => "",
        }
    }
}

/// What went wrong, and what the operator may do about it. Holds no key and no value (G19).
#[derive(Debug)]
pub(super) struct Problem {
    kind: Kind,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
}

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        let retry_after = (kind == Kind::Unavailable).then_some(Duration::from_secs(1));
        Self { kind, detail: detail.into(), retry_after }
    }

    pub(super) fn of(kind: Kind) -> Self {
        Self::new(kind, kind.detail())
    }

    /// The same of a question that changes nothing, whatever became of it.
    pub(super) fn of_read(self) -> Self {
        match self.kind {
            Kind::Unavailable => {
                Self { detail: "Nothing was changed. Ask again in a moment.".into(), ..self }
            }
            Kind::Panicked => {
                Self { detail: "Nothing was changed. The service's log says why.".into(), ..self }
            }
            _ => self,
        }
    }

    /// `prefix`: where the routes are.
    pub(super) fn tell(&self, prefix: &str) -> Response {
        let Facts { status, code, title, retryable } = self.kind.facts();
        let body = json!({
            "type": format!("{prefix}/openapi.json#{code}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail,
            "code": code,
            "retryable": retryable,
        });
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, after.as_secs().max(1).into());
        }
        if self.kind == Kind::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<NotLetIn> for Problem {
    fn from(refused: NotLetIn) -> Self {
        match refused {
            NotLetIn::Unknown => Self::of(Kind::Unauthenticated),
            NotLetIn::CrossOrigin(why) => Self::new(
                Kind::CrossOrigin,
                format!(
                    "It was taken for a foreign page's: {why}. A program sends a bearer token."
                ),
            ),
        }
    }
}

impl From<OpsError> for Problem {
    fn from(error: OpsError) -> Self {
        let kind = match &error {
            OpsError::NotAllowed { .. } | OpsError::NotEveryScope => Kind::NotAllowed,
            OpsError::NoSuchRequest => Kind::NoSuchRequest,
            OpsError::NoSuchJob => Kind::NoSuchJob,
            OpsError::NoSuchPhase => Kind::NoSuchPhase,
            OpsError::NoSuchBulk => Kind::NoSuchBulk,
            OpsError::MovedOn => Kind::MovedOn,
            OpsError::BadReason
            | OpsError::BadFilter(_)
            | OpsError::BadPage { .. }
            | OpsError::BadCursor
            | OpsError::TooLong
            | OpsError::TooShort => Kind::Invalid,
            OpsError::Resolve(ResolveError::InProgress { .. })
            | OpsError::Erase(EraseError::InUse) => Kind::InUse,
            error if error.is_of_a_panic() => Kind::Panicked,
            error if error.is_of_no_answer() => Kind::Unavailable,
            OpsError::Resolve(_) | OpsError::Erase(_) | OpsError::TooManyPauses => Kind::Refused,
            OpsError::Unreadable { .. } => Kind::Unreadable,
            OpsError::Unavailable(_) => Kind::Unavailable,
        };
        let own = kind.detail();
        let detail =
            if own.is_empty() { sentence(&error.to_string()).into() } else { Cow::Borrowed(own) };
        let retry_after = match &error {
            OpsError::Resolve(ResolveError::InProgress { retry_after }) => Some(*retry_after),
            OpsError::Erase(EraseError::InUse) => Some(Duration::from_secs(1)),
            _ => None,
        };
        let problem = Self::new(kind, detail);
        Self { retry_after: retry_after.or(problem.retry_after), ..problem }
    }
}

/// An error's text as a sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts_of(error: ResolveError) -> (u16, bool, bool) {
        let problem = Problem::from(OpsError::Resolve(error));
        let Facts { status, retryable, .. } = problem.kind.facts();
        (status.as_u16(), retryable, problem.retry_after.is_some())
    }

    #[test]
    fn an_act_whose_task_panicked_is_not_told_as_a_database_that_does_not_answer() {
        assert_eq!(facts_of(ResolveError::TaskPanicked), (500, false, false));
        let problem = Problem::from(OpsError::Resolve(ResolveError::TaskPanicked));
        assert!(problem.detail.contains("read the audit"), "{problem:?}");
        let read = problem.of_read();
        assert!(read.detail.contains("Nothing was changed"), "{read:?}");
        // Its runtime is gone: another process may do it.
        assert_eq!(facts_of(ResolveError::TaskLost), (503, true, true));
    }
}
