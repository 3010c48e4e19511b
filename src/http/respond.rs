//! From an [`Outcome`] to an answer. A first answer and a replay are made by the same lines from the
//! same status and bytes; they differ in the marker, and in the header lines that are not stored.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
    TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};

use super::header::{IDEMPOTENCY_EXPIRES, IDEMPOTENCY_KEY};
use super::policy::Policy;
use super::problem::{Kind, Problem};
use super::profile::{Profile, SHOULD_RETRY};
use super::retry_after::whole_seconds;
use crate::engine::{CallError, Finished, Outcome};
use crate::key::IdempotencyKey;
use crate::phase::Reply;
use crate::store::Status;

/// An answer in plain `http` types: [`into_http`](Self::into_http) converts it for any server.
/// With the feature `axum` it is an `IntoResponse`.
pub struct Answer(Box<Response<Bytes>>);

impl Answer {
    /// The response, complete except for the headers that the server adds (`date`, `content-length`).
    #[must_use]
    pub fn into_http(self) -> Response<Bytes> {
        *self.0
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }
}

/// Boxed, because it is what most checks may fail with.
impl From<Response<Bytes>> for Answer {
    fn from(response: Response<Bytes>) -> Self {
        Self(Box::new(response))
    }
}

/// The status only: the header has the key, and the body what a phase answered (G19).
impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({})", self.0.status().as_u16())
    }
}

impl From<Answer> for Response<Bytes> {
    fn from(answer: Answer) -> Self {
        *answer.0
    }
}

impl Policy {
    /// The answer for an outcome. `key` is the key that the client sent, or `None` if the server
    /// generated one.
    #[must_use]
    pub fn answer(
        &self,
        key: Option<&IdempotencyKey>,
        outcome: Result<Outcome, CallError>,
    ) -> Answer {
        let problem = match outcome {
            Ok(Outcome::Finished(finished)) => return self.finished(key, &finished).into(),
            Ok(Outcome::Accepted) => {
                return self.accepted(key, Status::Pending, Duration::from_secs(1)).into();
            }
            Ok(Outcome::InProgress { retry_after }) if self.status_prefix.is_some() => {
                return self.accepted(key, Status::InProgress, retry_after).into();
            }
            Ok(Outcome::InProgress { retry_after }) => Problem::in_progress(retry_after),
            Ok(Outcome::Mismatch) => Problem::new(
                Kind::KeyReused,
                "It was used for another request: other parameters, method, path or query. \
                 Use a new key.",
            ),
            Ok(Outcome::ReplyNotRetained { .. }) => Problem::new(
                Kind::NotRetained,
                "The request is done and will not run again; its response was too large to keep. Ask for what it \
                 made: with a new key, it would be done again.",
            ),
            Ok(Outcome::Erased) => Problem::new(
                Kind::NotRetained,
                "The request is done and will not run again; its data was erased. With a new key, it would be \
                 done again.",
            ),
            Ok(Outcome::Failed { cause, retry_after }) => Problem::failed(&cause, retry_after),
            Ok(Outcome::Unknown { retry_after, is_asked: true }) => {
                Problem::being_determined(retry_after)
            }
            Ok(Outcome::Unknown { retry_after, is_asked: false }) => {
                Problem::left_to_the_operator(retry_after)
            }
            Ok(Outcome::DeadLetter) => Problem::new(
                Kind::DeadLetter,
                "It failed too often and was given up. The service's operator must retry or settle it.",
            ),
            Err(error) => error.into(),
        };
        self.refuse(&if key.is_some() { problem } else { problem.without_key() })
    }

    /// The answer of a layer in front that cannot do its work now: 503, to be retried with the
    /// same key.
    #[must_use]
    pub fn unavailable(&self) -> Answer {
        self.refuse(&Problem::unavailable())
    }

    pub(crate) fn refuse(&self, problem: &Problem) -> Answer {
        self.profile.tell(problem, &self.documentation).into()
    }

    pub(crate) fn unauthenticated(&self) -> Answer {
        let detail = "Authenticate; keys belong to their callers.";
        let problem = Problem::new(Kind::Unauthenticated, detail);
        self.refuse(&problem.with_header(WWW_AUTHENTICATE, self.challenge.clone()))
    }

    fn finished(&self, key: Option<&IdempotencyKey>, finished: &Finished) -> Response<Bytes> {
        let mut response = replied(&finished.reply);
        // What a phase says of these, it can only say wrongly.
        for name in [&IDEMPOTENCY_KEY, &IDEMPOTENCY_EXPIRES, &self.marker] {
            response.headers_mut().remove(name);
        }
        let is_error = response.status().as_u16() >= 400;
        let headers = response.headers_mut();
        if self.profile == Profile::Stripe && is_error {
            // Stored: a retry would only hear it again.
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        let Some(key) = key else { return response };
        headers.extend(self.profile.echo(key).map(|echo| (IDEMPOTENCY_KEY, echo)));
        headers.extend(http_date(finished.expires_at).map(|date| (IDEMPOTENCY_EXPIRES, date)));
        if finished.replayed {
            headers.insert(self.marker.clone(), HeaderValue::from_static("true"));
        }
        response
    }

    /// It is stored, and a process runs it or will: where to look for its result. `status`: what a call knows of that. Only the
    /// status resource tells a row that was never run from one that waits for its next attempt.
    fn accepted(
        &self,
        key: Option<&IdempotencyKey>,
        status: Status,
        retry_after: Duration,
    ) -> Response<Bytes> {
        let body = format!(r#"{{"status":"{}"}}"#, status.as_str());
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Without a key, it is not the same request that would come again.
        let Some(key) = key else { return response };
        headers.insert(RETRY_AFTER, whole_seconds(retry_after).into());
        headers.extend(self.profile.echo(key).map(|echo| (IDEMPOTENCY_KEY, echo)));
        let uri = self.status_uri(key).and_then(|uri| HeaderValue::try_from(uri).ok());
        headers.extend(uri.map(|uri| (LOCATION, uri)));
        response
    }
}

/// The reply as it is. The message's framing is the server's: a length that a phase gave might be
/// another one than the body's.
fn replied(reply: &Reply) -> Response<Bytes> {
    // The engine stores 200 to 599 only.
    let status = StatusCode::from_u16(reply.status()).unwrap_or(StatusCode::OK);
    // They have none (RFC 9110, 6.4.1): clients take the length of one for a broken HTTP/2 stream.
    let has_content = !matches!(
        status,
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
    );
    let is_left_out = !has_content && !reply.bytes().is_empty();
    let body = if is_left_out { Bytes::new() } else { Bytes::copy_from_slice(reply.bytes()) };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in reply.headers() {
        match (HeaderName::try_from(name), HeaderValue::from_bytes(value.as_bytes())) {
            (Ok(CONTENT_LENGTH | TRANSFER_ENCODING), _) => {}
            // A client would parse the empty body as that.
            (Ok(CONTENT_TYPE), _) if is_left_out => {}
            (Ok(name), Ok(value)) => {
                response.headers_mut().append(name, value);
            }
            _ => crate::observe::header_not_sent(),
        }
    }
    response
}

/// `None` outside of the years that an HTTP date can tell.
fn http_date(time: DateTime<Utc>) -> Option<HeaderValue> {
    const YEAR_9999: i64 = 253_370_764_800;
    (0..YEAR_9999)
        .contains(&time.timestamp())
        .then(|| httpdate::fmt_http_date(SystemTime::from(time)))
        .and_then(|date| HeaderValue::try_from(date).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_that_http_cannot_tell_is_left_out() {
        assert_eq!(http_date(DateTime::<Utc>::MAX_UTC), None);
        assert_eq!(http_date(DateTime::<Utc>::MIN_UTC), None);
        let date = http_date(DateTime::from_timestamp(784_111_777, 0).unwrap()).unwrap();
        assert_eq!(date, "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    /// Over HTTP/2 a server would announce the length of such a body, and clients take that for a broken stream: each
    /// replay, too, would be an answer that no client can read.
    #[test]
    fn an_answer_that_has_no_content_is_sent_without_the_body_that_a_phase_gave_it() {
        for status in [204, 205, 304] {
            let response = replied(&Reply::json(status, &()).unwrap().header("etag", "\"1\""));
            assert_eq!(response.status(), status);
            assert!(response.body().is_empty(), "{status}: {:?}", response.body());
            let lines: Vec<_> = response.headers().keys().collect();
            assert_eq!(lines, ["etag"], "{status}: no type of a body that is not there");
        }
        let response = replied(&Reply::json(200, &()).unwrap());
        assert_eq!((&response.body()[..], response.headers().len()), (&b"null"[..], 1));
    }

    #[test]
    fn a_phases_framing_and_impossible_lines_are_left_out() {
        let reply = Reply::new(200)
            .header("content-length", "9")
            .header("Transfer-Encoding", "chunked")
            .header("no name", "x")
            .header("x-split", "a\r\nb: c")
            .header("link", "<a>")
            .header("link", "<b>");
        let response = replied(&reply);
        assert_eq!(response.headers().len(), 2);
        let links: Vec<_> = response.headers().get_all("link").iter().collect();
        assert_eq!(links, ["<a>", "<b>"]);
    }
}
