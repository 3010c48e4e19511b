//! A thin client of a Stripe-shaped charge API. It says, exhaustively, what each failure means for
//! the request.
//!
//! The retries are at two levels. Here, for a moment, only what certainly did not charge: the
//! provider is not reachable, too busy, or still at work on the key. Everything else goes back to the
//! engine, which releases the request; who asks next resumes it and sends the same key.

use std::time::Duration;

use atomic_phases::client::{
    Answered, Caller, KeyedCall, Last, Repeat, Response, RetryPolicy, SendError, Transport,
};
use atomic_phases::phase::{DerivedKey, ForeignError};
use serde::{Deserialize, Serialize};

/// A Stripe-shaped charge API. Plain HTTP here; behind TLS, give `reqwest` a TLS feature.
pub struct ChargeApi {
    caller: Caller,
    url: String,
    secret: String,
}

/// What is charged. The same in each attempt, or the provider refuses the repeated key.
#[derive(Serialize)]
pub struct ChargeParams<'a> {
    pub amount: u32,
    pub currency: &'a str,
    pub customer: &'a str,
    pub description: &'a str,
    /// Comes back in the provider's webhook.
    #[serde(rename = "metadata[ride]")]
    pub ride: &'a str,
}

/// What the provider has decided, for good: a declined card is a result like any other.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Charge {
    Made {
        id: String,
    },
    /// For this reason.
    Declined {
        message: String,
    },
}

/// How a charge fails.
#[derive(Debug)]
pub enum ChargeError {
    /// The provider has this key with other parameters: ours have changed between two attempts.
    OtherParameters,
    /// The provider failed for good: each repetition of the key gets the same failure again.
    FailedForGood,
    /// The provider does not accept the request as it is; it will not tomorrow either.
    Refused,
    /// Nothing was charged by this call: no connection, or too many requests.
    NotCharged { after: Option<Duration> },
    /// Not now: an error of the provider, or a repeated key that is still running.
    NotNow { after: Option<Duration> },
    /// No answer. The card may be charged; the key makes it safe to ask again.
    NoAnswer,
}

impl From<ChargeError> for ForeignError {
    fn from(error: ChargeError) -> Self {
        match error {
            // Which of the two requests was charged is unknown, and must not be guessed.
            ChargeError::OtherParameters => Self::other_parameters(),
            ChargeError::FailedForGood => {
                Self::unknown("the provider failed for good and does not say whether it charged")
            }
            ChargeError::NotCharged { after: Some(after) } => {
                Self::not_executed_after("the provider had no time for the call", after)
            }
            ChargeError::NotCharged { after: None } => {
                Self::not_executed("the call did not reach the provider")
            }
            ChargeError::Refused => {
                Self::retryable("the provider refuses the request: see its secret and version")
            }
            ChargeError::NotNow { after: Some(after) } => {
                Self::retryable_after("the provider asked to come back later", after)
            }
            ChargeError::NotNow { after: None } => {
                Self::retryable("the provider failed or is busy")
            }
            ChargeError::NoAnswer => Self::retryable("the provider did not answer"),
        }
    }
}

#[derive(Deserialize)]
struct Made {
    id: String,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    message: String,
}

impl ChargeApi {
    pub fn new(url: &str, secret: &str) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder().connect_timeout(Duration::from_secs(5));
        let (url, secret) = (url.trim_end_matches('/').to_owned(), secret.to_owned());
        Ok(Self { caller: Caller::new(http)?, url, secret })
    }

    /// Charges once for each key. Takes 20 seconds at most.
    pub async fn create(
        &self,
        key: DerivedKey,
        params: ChargeParams<'_>,
    ) -> Result<Charge, ChargeError> {
        let request = self
            .caller
            .http()
            .post(format!("{}/v1/charges", self.url))
            .bearer_auth(&self.secret)
            .form(&params)
            .build()
            .map_err(|_| ChargeError::Refused)?;
        // A client waits for the answer, so the deadline is short.
        let policy = RetryPolicy::new(Duration::from_secs(20))
            .backoff(Duration::from_millis(100), Duration::from_secs(1))
            .attempts(4)
            .repeat(Repeat::WithoutEffect);
        let call = KeyedCall::with_key(key, policy);
        match self.caller.send(call, request).await {
            Ok(Answered { response, .. }) => charged(&response),
            Err(SendError::GaveUp(end)) => match end.last {
                Last::Response(response) => charged(&response),
                // No earlier attempt can have charged, or there would have been no later one.
                Last::Unanswered(Transport::NotSent) => {
                    Err(ChargeError::NotCharged { after: None })
                }
                Last::Unanswered(Transport::Unknown) => Err(ChargeError::NoAnswer),
            },
            Err(_) => Err(ChargeError::Refused),
        }
    }
}

/// What the answer means.
fn charged(response: &Response) -> Result<Charge, ChargeError> {
    let error = serde_json::from_slice::<ErrorBody>(&response.body).ok().map(|body| body.error);
    let answer = response.answer;
    let (after, hopeless) = (answer.retry_after, answer.should_retry == Some(false));
    match response.status.as_u16() {
        200..=299 => match serde_json::from_slice::<Made>(&response.body) {
            Ok(Made { id }) => Ok(Charge::Made { id }),
            Err(_) => Err(ChargeError::NoAnswer),
        },
        402 => Ok(Charge::Declined {
            message: error.map_or_else(|| "The card was declined.".to_owned(), |e| e.message),
        }),
        400 | 422 if error.as_ref().is_some_and(|error| error.kind == "idempotency_error") => {
            Err(ChargeError::OtherParameters)
        }
        409 if hopeless => Err(ChargeError::FailedForGood),
        500..=599 if hopeless || answer.stored => Err(ChargeError::FailedForGood),
        429 if !answer.stored => Err(ChargeError::NotCharged { after }),
        409 | 500..=599 if !answer.stored => Err(ChargeError::NotNow { after }),
        _ => Err(ChargeError::Refused),
    }
}
