//! [`Profile`]: the dialect of problems and keys.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LINK, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

use super::header::{bare_form, quoted_form};
use super::problem::{Concern, Facts, Problem};
use super::retry_after::whole_seconds;
use crate::key::IdempotencyKey;

/// `stripe-should-retry`
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// The conventions that the answers follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// `draft-ietf-httpapi-idempotency-key-header`: `application/problem+json` (RFC 9457) with the
    /// draft's titles and the additional members `code` and `retryable`; another request under a used key is
    /// 422; `Link: <…>; rel="describedby"` points to the published policy.
    #[default]
    Ietf,
    /// The Stripe API's envelope `{"error":{"type","code","message"}}` with `Stripe-Should-Retry`;
    /// another request under a used key is 400.
    Stripe,
}

/// `ietf` or `stripe`, as in a configuration.
impl std::str::FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        match name {
            "ietf" => Ok(Self::Ietf),
            "stripe" => Ok(Self::Stripe),
            _ => Err(UnknownProfile),
        }
    }
}

/// A name that is not a [`Profile`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a profile is `ietf` or `stripe`")]
#[non_exhaustive]
pub struct UnknownProfile;

impl Profile {
    /// The status of a kind of problem.
    pub(crate) fn status(self, facts: &Facts) -> u16 {
        match self {
            Self::Ietf => facts.ietf_status,
            Self::Stripe => facts.stripe_status,
        }
    }

    /// How the key is echoed: each profile in the form of its own documents.
    pub(crate) fn echo(self, key: &IdempotencyKey) -> Option<HeaderValue> {
        match self {
            Self::Ietf => quoted_form(key),
            Self::Stripe => bare_form(key),
        }
    }

    /// The answer that tells `problem`; `documentation` is the URI of the published policy.
    pub(crate) fn tell(self, problem: &Problem, documentation: &str) -> Response<Bytes> {
        let facts = problem.kind.facts();
        let mut response = Response::new(self.body(&facts, problem, documentation));
        *response.status_mut() =
            StatusCode::from_u16(self.status(&facts)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        match self {
            Self::Ietf => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
                let link = format!("<{}>; rel=\"describedby\"", kind_uri(documentation, &facts));
                // A URI that is not a valid header value is left out; the body still has it.
                headers.extend(HeaderValue::try_from(link).map(|link| (LINK, link)));
            }
            Self::Stripe => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                let retry = if problem.retryable { "true" } else { "false" };
                headers.insert(SHOULD_RETRY, HeaderValue::from_static(retry));
            }
        }
        if let Some(after) = problem.retry_after {
            headers.insert(RETRY_AFTER, whole_seconds(after).into());
        }
        headers.extend(problem.header.clone());
        response
    }

    fn body(self, facts: &Facts, problem: &Problem, documentation: &str) -> Bytes {
        let body = match self {
            Self::Ietf => json!({
                "type": kind_uri(documentation, facts),
                "title": facts.title,
                "status": facts.ietf_status,
                "detail": problem.detail,
                "code": facts.code,
                "retryable": problem.retryable,
            }),
            Self::Stripe => json!({ "error": {
                "type": match facts.concern {
                    Concern::Idempotency => "idempotency_error",
                    Concern::Request => "invalid_request_error",
                    Concern::Server => "api_error",
                },
                "code": facts.code,
                "message": format!("{}. {}", facts.title, problem.detail),
            }}),
        };
        body.to_string().into()
    }
}

/// Each kind of problem has a place on the policy's page.
fn kind_uri(documentation: &str, facts: &Facts) -> String {
    format!("{documentation}#{}", facts.code)
}
