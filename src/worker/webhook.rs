//! [`Webhook`]: notifies a receiver over HTTP of requests that begin to wait.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::header::{CONTENT_TYPE, HeaderMap, USER_AGENT};
use reqwest::{Client, ClientBuilder, Url};
use serde::Serialize;
use sha2::Sha256;

use super::job::{DeliveryError, Job, JobSink};
use crate::client::{Answer, lacks_tls, one_exchange};
use crate::engine::{WAITING_JOB, Waiting};
use crate::setting::{DAY, MILLISECOND, SettingError, duration, refused};

/// How long a receiver may take to answer.
const WITHIN: Duration = Duration::from_secs(10);

/// In bytes, as Standard Webhooks has it.
const SECRET_LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// Stands in front of a secret's base64.
const SECRET_PREFIX: &str = "whsec_";

const EVENT: &str = "request.waiting";

/// Sends each [`Waiting`] to a receiver, signed as [Standard Webhooks](https://www.standardwebhooks.com)
/// specifies.
///
/// A `POST` of JSON, with these header lines:
///
/// | line | |
/// |---|---|
/// | `webhook-id` | The job's id: the same at each delivery. A receiver that has seen it does nothing and answers 200. |
/// | `webhook-timestamp` | Now, in Unix seconds. A receiver refuses what is older than a few minutes. |
/// | `webhook-signature` | `v1,` and the base64 of HMAC-SHA256 over `{id}.{timestamp}.{body}`; one for each secret, separated by spaces. |
///
/// The body is `{"type": "request.waiting", "timestamp": …, "data": {…}}`: the fields of [`Waiting`], and the `link`.
/// It contains no key, no scope and no user data (G19).
///
/// An answer of 2xx ends the delivery. Any other answer, and none within the [time limit](Self::within), is a
/// transient failure: the job is delivered again after its back-off, or after `Retry-After` if that is
/// longer. At its [cap](crate::worker::WorkerConfig::max_deliveries) it becomes a dead letter, which
/// operators see. After 410 it becomes one immediately.
///
/// ```no_run
/// # use atomic_phases::worker::{DeliveryError, Handlers, Webhook, WorkerConfig, WebhookError};
/// # fn configure(mailer: Handlers) -> Result<WorkerConfig, WebhookError> {
/// let secret = std::env::var("ON_CALL_SECRET").unwrap_or_default(); // whsec_…
/// let on_call = Webhook::new("https://on-call.example.com/hooks", &secret)?
///     .link("https://example.com/ops/requests/")?;
/// let config = WorkerConfig::default().sink(on_call.beside(mailer));
/// # Ok(config) }
/// ```
///
/// TLS is that of the application's `reqwest`: enable one of its TLS features, or no notice reaches a URL of `https`, and
/// the reason of its job says so. Redirects are not followed.
#[derive(Clone)]
pub struct Webhook {
    http: Client,
    url: Url,
    signers: Vec<Hmac<Sha256>>,
    link: Option<String>,
    within: Duration,
}

/// Why a text is not a URL. It quotes nothing of the text, which may have a secret in it (G19).
type UrlError = <Url as FromStr>::Err;

/// Why a [`Webhook`] cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// The URL is not one.
    #[error(
        "the webhook's URL cannot be parsed: give the receiver's whole URL, for example https://example.com/hooks"
    )]
    Url(#[source] UrlError),
    /// The URL has another scheme than `http` and `https`.
    #[error("the webhook's URL is neither http nor https: give the receiver's https URL")]
    Scheme,
    /// The secret is invalid.
    #[error(
        "a webhook's secret is `whsec_` and the base64 of 24 to 64 random bytes: `openssl rand -base64 32`"
    )]
    Secret,
    /// A setting that cannot work.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The HTTP client could not be built.
    #[error("the webhook's HTTP client cannot be built")]
    Client(#[source] reqwest::Error),
}

/// What is sent.
#[derive(Serialize)]
struct Event<'a> {
    r#type: &'static str,
    timestamp: DateTime<Utc>,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    #[serde(flatten)]
    waiting: &'a Waiting,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
}

impl Webhook {
    /// A webhook to this URL, signed with this secret: `whsec_` and the base64 of 24 to 64 random bytes.
    ///
    /// # Errors
    /// [`WebhookError`] says what is invalid.
    pub fn new(url: &str, secret: &str) -> Result<Self, WebhookError> {
        let url: Url = url.parse().map_err(WebhookError::Url)?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(WebhookError::Scheme);
        }
        let http = one_exchange(Client::builder()).map_err(WebhookError::Client)?;
        let webhook = Self { http, url, signers: Vec::new(), link: None, within: WITHIN };
        webhook.also_signed_with(secret)
    }

    /// Signs with one more secret, for rotation: the receiver accepts a signature of either.
    ///
    /// # Errors
    /// [`WebhookError::Secret`].
    pub fn also_signed_with(mut self, secret: &str) -> Result<Self, WebhookError> {
        let encoded = secret.strip_prefix(SECRET_PREFIX).ok_or(WebhookError::Secret)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| WebhookError::Secret)?;
        if !SECRET_LENGTH.contains(&bytes.len()) {
            return Err(WebhookError::Secret);
        }
        self.signers.push(Hmac::new_from_slice(&bytes).map_err(|_| WebhookError::Secret)?);
        Ok(self)
    }

    /// Adds a link to each event: this text, followed by the request's id. The console has the page of a
    /// request at `requests/` below its mount point.
    ///
    /// # Errors
    /// [`WebhookError::Setting`] if the two do not make an `http` or `https` URL with the id behind its host.
    pub fn link(mut self, in_front: impl Into<String>) -> Result<Self, WebhookError> {
        let in_front = in_front.into();
        if !is_link(&in_front) {
            let bound =
                "the URL in front of a request's id, for example https://example.com/ops/requests/";
            return Err(refused("Webhook::link", &in_front, bound).into());
        }
        self.link = Some(in_front);
        Ok(self)
    }

    /// How long the receiver may take to answer; default 10 s, and at most [a
    /// delivery](crate::worker::WorkerConfig::delivery).
    ///
    /// # Errors
    /// [`WebhookError::Setting`]: less than a millisecond, or more than a day.
    pub fn within(mut self, limit: Duration) -> Result<Self, WebhookError> {
        duration("Webhook::within", limit, MILLISECOND, DAY)?;
        self.within = limit;
        Ok(self)
    }

    /// Uses a client of this builder, for example with a proxy or its own root certificates. It follows no redirects
    /// either, whatever the builder says: a followed redirect may turn the `POST` into a `GET`.
    ///
    /// # Errors
    /// [`WebhookError::Client`].
    pub fn over(mut self, http: ClientBuilder) -> Result<Self, WebhookError> {
        self.http = one_exchange(http).map_err(WebhookError::Client)?;
        Ok(self)
    }

    /// A sink for all jobs: notices go to the webhook, the others to `sink`.
    #[must_use]
    pub fn beside<J: JobSink>(self, sink: J) -> impl JobSink {
        Beside { webhook: self, sink }
    }

    fn body(&self, waiting: &Waiting) -> Result<Vec<u8>, DeliveryError> {
        let link = self.link.as_ref().map(|link| format!("{link}{}", waiting.request_id));
        let data = Data { waiting, link };
        let event = Event { r#type: EVENT, timestamp: waiting.since, data };
        serde_json::to_vec(&event).map_err(|_| DeliveryError::dead("the notice has no JSON form"))
    }

    /// One for each secret.
    fn signatures(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        let signature = |signer: &Hmac<Sha256>| {
            let mut signer = signer.clone();
            for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
                signer.update(part);
            }
            format!("v1,{}", STANDARD.encode(signer.finalize().into_bytes()))
        };
        self.signers.iter().map(signature).collect::<Vec<_>>().join(" ")
    }

    async fn send(&self, id: &str, body: Vec<u8>) -> Result<(), DeliveryError> {
        let timestamp = crate::moment::wall_clock().timestamp().to_string();
        let request = self
            .http
            .post(self.url.clone())
            .timeout(self.within)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("atomic-phases/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", id)
            .header("webhook-timestamp", &timestamp)
            .header("webhook-signature", self.signatures(id, &timestamp, &body))
            .body(body);
        let answer = request.send().await.map_err(|error| DeliveryError::retry(unsent(&error)))?;
        judge(answer.status().as_u16(), answer.headers())
    }
}

/// Whether an id behind this text makes a link to a place of the same host.
fn is_link(in_front: &str) -> bool {
    let (Ok(url), Ok(link)) =
        (Url::parse(in_front), Url::parse(&format!("{in_front}{}", uuid::Uuid::nil())))
    else {
        return false;
    };
    // `Url::parse` removes spaces and line breaks, which the receiver would get.
    let is_one_word =
        !in_front.contains(|letter: char| letter.is_whitespace() || letter.is_control());
    is_one_word && ["http", "https"].contains(&url.scheme()) && url.origin() == link.origin()
}

/// Why there is no answer.
fn unsent(error: &reqwest::Error) -> &'static str {
    if lacks_tls(error) {
        return "the webhook needs TLS, and the application's reqwest has none: enable its feature";
    }
    match error.is_timeout() {
        true => "the webhook's receiver did not answer in time",
        false => "the webhook's receiver could not be reached",
    }
}

/// What an answer means for the notice.
fn judge(status: u16, headers: &HeaderMap) -> Result<(), DeliveryError> {
    let why = match status {
        200..=299 => return Ok(()),
        410 => return Err(DeliveryError::dead("the webhook's receiver is gone (410)")),
        300..=399 => "the webhook's receiver answered with a redirect, which is not followed",
        401 | 403 => "the webhook's receiver refused the signature (401, 403)",
        429 => "the webhook's receiver has too much to do (429)",
        400..=499 => "the webhook's receiver refused the notice (4xx)",
        _ => "the webhook's receiver failed (5xx)",
    };
    let line = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    Err(match Answer::read(status, line, b"").retry_after {
        Some(after) => DeliveryError::retry_after(why, after),
        None => DeliveryError::retry(why),
    })
}

impl JobSink for Webhook {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        let waiting: Waiting = job.args()?;
        self.send(&job.id.to_string(), self.body(&waiting)?).await
    }

    /// The notices alone.
    fn handles(&self, name: &str) -> bool {
        name == WAITING_JOB
    }
}

/// A webhook beside the application's own sink.
struct Beside<J> {
    webhook: Webhook,
    sink: J,
}

impl<J: JobSink> JobSink for Beside<J> {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        match self.webhook.handles(&job.name) {
            true => self.webhook.deliver(job).await,
            false => self.sink.deliver(job).await,
        }
    }

    fn concurrency(&self, name: &str) -> Option<NonZeroUsize> {
        if self.webhook.handles(name) { None } else { self.sink.concurrency(name) }
    }

    fn handles(&self, name: &str) -> bool {
        self.webhook.handles(name) || self.sink.handles(name)
    }

    fn check(&self) -> Result<(), SettingError> {
        self.sink.check()
    }
}

/// Without its URL, which may have a secret in it.
impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("within", &self.within).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn a_signature_is_that_of_standard_webhooks() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let webhook = Webhook::new("http://127.0.0.1/", secret).unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = webhook.signatures(id, "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let refused = |url: &str, secret: &str| Webhook::new(url, secret).unwrap_err().to_string();
        assert!(refused("ftp://example.com", secret).contains("neither http nor https"));
        assert!(refused("example.com", secret).contains("cannot be parsed"));
        for secret in
            ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_%"]
        {
            assert!(refused("http://127.0.0.1/", secret).contains("secret"), "{secret}");
        }
    }

    /// As an application's that forgot the feature, the `reqwest` of these tests has no TLS.
    #[tokio::test]
    async fn a_notice_that_finds_no_tls_says_so() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        for (url, why) in [("https://127.0.0.1:1/", "TLS"), ("http://127.0.0.1:1/", "reached")] {
            let webhook = Webhook::new(url, secret).unwrap();
            let webhook = webhook.over(Client::builder().no_proxy()).unwrap();
            let then = webhook.send("id", Vec::new()).await.unwrap_err();
            assert_eq!(then, DeliveryError::retry(then.reason));
            assert!(then.reason.contains(why), "{then:?}");
        }
    }

    #[test]
    fn an_answer_says_whether_to_try_again() {
        let said = |status| judge(status, &HeaderMap::new());
        assert_eq!(said(204), Ok(()));
        assert_eq!(said(410), Err(DeliveryError::dead("the webhook's receiver is gone (410)")));
        for status in [302, 401, 404, 429, 500, 503] {
            let then = said(status).unwrap_err();
            assert_eq!(then, DeliveryError::retry(then.reason), "{status}");
        }
        let line = ("retry-after".parse().unwrap(), "30".parse().unwrap());
        let after = judge(503, &HeaderMap::from_iter([line])).unwrap_err();
        assert_eq!(after, DeliveryError::retry_after(after.reason, Duration::from_secs(30)));
    }
}
