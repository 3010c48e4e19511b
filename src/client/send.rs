//! [`Caller`]: sends a request with `reqwest` until it is done, given up or out of time.

use std::error::Error;
use std::fmt;
use std::iter::successors;
use std::time::Instant;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Request, StatusCode};

use super::answer::{Answer, REPLAY_MARKER};
use super::call::{KeyForm, KeyedCall};
use super::decide::{Decision, End, Reason, Transport};
use crate::setting::{SettingError, number};

/// Sends keyed requests over a `reqwest::Client`, and retries when that can help.
///
/// An attempt is one request: the client follows no redirect and repeats nothing, even if its builder says otherwise. The
/// policy's [time for an attempt](super::RetryPolicy::time_for_attempt) replaces the client's own
/// `timeout`; that of a single request applies if it is shorter.
///
/// ```no_run
/// # async fn book() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use atomic_phases::client::{Caller, KeyedCall, RetryPolicy};
///
/// let http = reqwest::Client::builder().connect_timeout(Duration::from_secs(5));
/// let caller = Caller::new(http)?;
/// let request = caller.http().post("http://127.0.0.1:5000/rides").body("…").build()?;
/// let call = KeyedCall::new(RetryPolicy::new(Duration::from_secs(60)));
/// let answered = caller.send(call, request).await?;
/// println!("{} after {} attempts", answered.response.status, answered.attempts);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Caller {
    http: Client,
    key_form: KeyForm,
    marker: HeaderName,
    response_limit: usize,
}

/// A final answer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Answered {
    /// The response, with any final status: a declined card is an answer too.
    pub response: Response,
    /// An earlier attempt made it.
    pub replayed: bool,
    /// How many attempts it took.
    pub attempts: u32,
}

/// A response, read to its end. `Debug` shows no header value and no body.
#[non_exhaustive]
pub struct Response {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body's bytes; empty if it exceeds the caller's limit.
    pub body: Vec<u8>,
    /// Whether the body is over the limit.
    pub too_large: bool,
    /// What the decision was made from.
    pub answer: Answer,
}

/// Why there is no final answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No further attempt was useful or allowed.
    #[error("gave up after {} attempts: {}", .0.attempts, .0.reason)]
    GaveUp(Box<GaveUp>),
    /// The body is a stream, which cannot be sent twice: give the request its bytes.
    #[error("the request's body is a stream and cannot be sent again: give it as bytes")]
    NotRepeatable,
    /// The call's policy cannot work, or its key needs another [`KeyForm`]. Nothing was sent.
    #[error(transparent)]
    Policy(#[from] SettingError),
    /// `reqwest` cannot send this request at all, whatever the network: its URL is not valid, or it is an `https` URL and
    /// no TLS feature of `reqwest` is enabled. The error does not contain the URL.
    #[error("the request cannot be sent: check its URL; https needs a TLS feature of `reqwest`")]
    Invalid(#[source] reqwest::Error),
}

/// How far a call got before it was given up.
#[derive(Debug)]
#[non_exhaustive]
pub struct GaveUp {
    /// Why.
    pub reason: Reason,
    /// How many attempts were made.
    pub attempts: u32,
    /// How the last one ended.
    pub last: Last,
}

/// How an attempt ended.
#[derive(Debug)]
pub enum Last {
    /// With a response.
    Response(Response),
    /// Without one.
    Unanswered(Transport),
}

/// An attempt that ended, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tried {
    /// Which one, from 1.
    pub number: u32,
    /// How it ended.
    pub end: End,
    /// What is done next.
    pub next: Decision,
}

impl Caller {
    /// Sends over a client of this builder, with the key in bare form.
    ///
    /// # Errors
    /// Those of `reqwest`: the client cannot be built.
    pub fn new(http: ClientBuilder) -> Result<Self, reqwest::Error> {
        let (key_form, marker) = (KeyForm::Bare, HeaderName::from_static(REPLAY_MARKER));
        Ok(Self { http: one_exchange(http)?, key_form, marker, response_limit: 4 << 20 })
    }

    /// The client that it sends over, to build requests with.
    #[must_use]
    pub fn http(&self) -> &Client {
        &self.http
    }

    /// Maximum size of a response body, in bytes; default 4 MiB. A longer body is discarded, and if its status
    /// is a final answer the call is given up with [`Reason::ResponseTooLarge`].
    ///
    /// # Errors
    /// [`SettingError`] for zero, with which only an empty body would be an answer, and for more than a `Vec` holds.
    pub fn response_limit(self, bytes: usize) -> Result<Self, SettingError> {
        number("Caller::response_limit", bytes, 1, isize::MAX as u64)?;
        Ok(Self { response_limit: bytes, ..self })
    }

    /// How the key is written in its header.
    #[must_use]
    pub fn key_form(self, key_form: KeyForm) -> Self {
        Self { key_form, ..self }
    }

    /// The header that marks a replay; default [`REPLAY_MARKER`].
    #[must_use]
    pub fn marker(self, marker: HeaderName) -> Self {
        Self { marker, ..self }
    }

    /// Sends `request` with the call's key until there is a final answer, or the call is given up. Each
    /// attempt sends the same bytes.
    ///
    /// Dropping the future stops the retries; an attempt under way may still take effect.
    ///
    /// # Errors
    /// [`SendError`] says why there is no final answer.
    pub async fn send(&self, call: KeyedCall, request: Request) -> Result<Answered, SendError> {
        self.send_watched(call, request, |_| ()).await
    }

    /// As [`send`](Self::send); calls `watch` at the end of each attempt.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_watched(
        &self,
        mut call: KeyedCall,
        mut request: Request,
        mut watch: impl FnMut(Tried),
    ) -> Result<Answered, SendError> {
        call.check(self.key_form)?;
        if let Ok(mut key) = HeaderValue::from_str(&call.header_value(self.key_form)) {
            // Keeps the key out of the HTTP library's own logs (G19).
            key.set_sensitive(true);
            request.headers_mut().insert("idempotency-key", key);
        }
        let began = Instant::now();
        loop {
            let mut attempt = request.try_clone().ok_or(SendError::NotRepeatable)?;
            let time = call.policy().time_for_attempt(began.elapsed());
            let timeout = attempt.timeout_mut();
            *timeout = Some(timeout.map_or(time, |own| own.min(time)));
            let last = self.attempt(attempt).await?;
            let end = last.end();
            let next = match (call.decide(end, began.elapsed(), random()), &last) {
                (Decision::Done { .. }, Last::Response(response)) if response.too_large => {
                    Decision::GiveUp(Reason::ResponseTooLarge)
                }
                (next, _) => next,
            };
            let attempts = call.attempts();
            watch(Tried { number: attempts, end, next });
            match (next, last) {
                (Decision::Done { replayed }, Last::Response(response)) => {
                    return Ok(Answered { response, replayed, attempts });
                }
                (Decision::RetryAfter(wait), _) => tokio::time::sleep(wait).await,
                (Decision::GiveUp(reason), last) => {
                    return Err(SendError::GaveUp(Box::new(GaveUp { reason, attempts, last })));
                }
                // `decide` is never done without an answer.
                (Decision::Done { .. }, Last::Unanswered(_)) => {}
            }
        }
    }

    async fn attempt(&self, request: Request) -> Result<Last, SendError> {
        let response = match self.http.execute(request).await {
            Ok(response) => response,
            Err(error) if error.is_builder() || lacks_tls(&error) => {
                return Err(SendError::Invalid(error.without_url()));
            }
            Err(error) if error.is_connect() => return Ok(Last::Unanswered(Transport::NotSent)),
            Err(_) => return Ok(Last::Unanswered(Transport::Unknown)),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        // An answer that was cut off is none: the next attempt gets the whole.
        let Ok(body) = self.body(response).await else {
            return Ok(Last::Unanswered(Transport::Unknown));
        };
        let (body, too_large) = body.map_or((Vec::new(), true), |body| (body, false));
        // Of one header lines are joined: each hop may have added its own.
        let lines = headers.get_all(RETRY_AFTER).iter().filter_map(|line| line.to_str().ok());
        let retry_after = lines.collect::<Vec<_>>().join(", ");
        let header = |name: &str| match name {
            "retry-after" => Some(retry_after.as_str()).filter(|lines| !lines.is_empty()),
            name => headers.get(name).and_then(|value| value.to_str().ok()),
        };
        let answer = Answer::read_marked(status.as_u16(), header, &body, self.marker.as_str());
        Ok(Last::Response(Response { status, headers, body, too_large, answer }))
    }

    /// `None`: over the limit.
    async fn body(
        &self,
        mut response: reqwest::Response,
    ) -> Result<Option<Vec<u8>>, reqwest::Error> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > self.response_limit {
                return Ok(None);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Some(body))
    }
}

/// A client for which a request is one exchange. A redirect that it follows is another request, and then the answer, or
/// the lack of a connection, is that one's. What it repeats by itself, no policy has decided.
pub(crate) fn one_exchange(http: ClientBuilder) -> Result<Client, reqwest::Error> {
    http.redirect(Policy::none()).retry(reqwest::retry::never()).build()
}

/// Whether the URL is one of `https`, and no TLS feature of `reqwest` is enabled: only the text of a cause says so.
pub(crate) fn lacks_tls(error: &reqwest::Error) -> bool {
    successors(error.source(), |cause| (*cause).source())
        .any(|cause| cause.to_string().contains("scheme is not http"))
}

impl Last {
    fn end(&self) -> End {
        match self {
            Self::Response(response) => End::Answered(response.answer),
            Self::Unanswered(transport) => End::Unanswered(*transport),
        }
    }
}

/// Without the client, whose `Debug` shows its default header lines: credentials, as a rule.
impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("key_form", &self.key_form)
            .field("marker", &self.marker)
            .field("response_limit", &self.response_limit)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // G19: neither header values nor the body.
        write!(f, "Response({}, {} bytes)", self.status.as_u16(), self.body.len())
    }
}

/// 32 random bits: the low ones of a version 4 UUID, which are all random.
fn random() -> u32 {
    crate::chance::number()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the error of `reqwest` itself, which has no TLS here: another text of its cause would be found here.
    #[tokio::test]
    async fn a_url_of_https_lacks_tls_and_a_refused_connection_does_not() {
        let http = one_exchange(Client::builder().no_proxy()).unwrap();
        for (url, lacks) in [("https://127.0.0.1:1/", true), ("http://127.0.0.1:1/", false)] {
            let error = http.get(url).send().await.unwrap_err();
            assert_eq!(lacks_tls(&error), lacks, "{error:?}");
        }
    }
}
