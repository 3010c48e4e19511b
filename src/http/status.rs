//! The status resource: the state of a request, for a client that was answered 202.

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use serde_json::{Value, json};

use super::boundary::Idempotency;
use super::header::key_of_segment;
use super::problem::{Kind, Problem};
use super::respond::Answer;
use super::retry_after::whole_seconds;
use crate::engine::RequestStatus;
use crate::phase::Reply;
use crate::store::{Status, Store};

impl<S: Store, A: Send + Sync + 'static> Idempotency<S, A> {
    /// The state of the caller's request under `key`: 200 with JSON, 401, or 404 if this caller has
    /// no such key (G16). `head` is the head of the status request, `key` the percent-decoded end of its path.
    ///
    /// `status` is `pending` (accepted, and not begun), `in_progress`, `failed_retryable`, `unknown`, `dead_letter` or
    /// `completed`; `recovery_point` is the last committed phase; `reason` is why the last attempt ended before
    /// the request did, and `open_intent` the phase whose intent to call is stored without an outcome (an idempotent phase
    /// stores none before its call, which is repeated under the same derived key); each is `null` if there is none. Until
    /// the request is settled, the answer has a `Retry-After`. A completed request has a `response`: `status`, `headers` as
    /// name and value, and `body` if it is UTF-8, otherwise `body_base64`; `null` if it was not retained.
    pub async fn status(&self, head: &Parts, key: &str) -> Answer {
        let mut response = self.standing(head, key).await.into_http();
        // A 404 may be kept by a cache, and is true for a moment only.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.into()
    }

    async fn standing(&self, head: &Parts, key: &str) -> Answer {
        let Some(scope) = self.scope(head) else { return self.policy().unauthenticated() };
        let unknown = || {
            let detail =
                "You have no request under this key, or its answer has expired. Check the key.";
            self.policy().refuse(&Problem::new(Kind::NoSuchRequest, detail))
        };
        let Some(key) = key_of_segment(key) else { return unknown() };
        match self.engine().status(&scope, &key).await {
            Ok(Some(status)) => response_of(&status).into(),
            Ok(None) => unknown(),
            Err(error) => self.policy().refuse(&error.into()),
        }
    }
}

fn response_of(status: &RequestStatus) -> Response<Bytes> {
    let mut told = json!({
        "status": status.status.as_str(),
        "recovery_point": status.recovery_point,
        "attempt": status.attempt,
        "reason": status.reason,
        "open_intent": status.open_intent,
    });
    if status.status == Status::Completed {
        told["response"] = status.reply.as_ref().map_or(Value::Null, reply_as_json);
    }
    let mut response = Response::new(Bytes::from(told.to_string()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if !matches!(status.status, Status::Completed | Status::DeadLetter) {
        headers.insert(RETRY_AFTER, whole_seconds(status.retry_after).into());
    }
    response
}

/// Status, header lines, and the body as text where it is UTF-8.
pub(crate) fn reply_as_json(reply: &Reply) -> Value {
    use base64::Engine as _;
    let mut response = json!({ "status": reply.status(), "headers": reply.headers() });
    match std::str::from_utf8(reply.bytes()) {
        Ok(text) => response["body"] = text.into(),
        Err(_) => {
            let base64 = base64::engine::general_purpose::STANDARD.encode(reply.bytes());
            response["body_base64"] = base64.into();
        }
    }
    response
}
