//! A thin client of the charge API. It says, exhaustively, what each failure means for the request.

use std::time::Duration;

use atomic_phases::{DerivedKey, ForeignError, Reply};
use serde::{Deserialize, Serialize};

/// A Stripe-shaped charge API. Plain HTTP here; behind TLS, give `reqwest` a TLS feature.
pub struct ChargeApi {
    http: reqwest::Client,
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
}

/// How a charge fails.
pub enum ChargeError {
    /// The card was declined, for this reason: a result like any other.
    Declined { message: String },
    /// The provider has this key with other parameters: ours have changed between two attempts.
    OtherParameters,
    /// The provider does not accept the request as it is; it will not tomorrow either.
    Refused,
    /// Not now: too many requests, an error of the provider, a repeated key that is still running.
    NotNow { after: Option<Duration> },
    /// No answer. The card may be charged; the key makes it safe to ask again.
    NoAnswer,
}

impl From<ChargeError> for ForeignError {
    fn from(error: ChargeError) -> Self {
        match error {
            ChargeError::Declined { message } => {
                let body =
                    serde_json::json!({ "error": { "code": "card_declined", "message": message } });
                match Reply::json(402, &body) {
                    Ok(reply) => Self::reject(reply),
                    Err(error) => error.into(),
                }
            }
            // Nobody may guess which of the two requests was charged.
            ChargeError::OtherParameters => {
                Self::unknown("the provider has the key with other parameters")
            }
            ChargeError::Refused => {
                Self::retryable("the provider refuses the request: see its secret and version")
            }
            ChargeError::NotNow { after: Some(after) } => {
                Self::retryable_after("the provider asked to come back later", after)
            }
            ChargeError::NotNow { after: None } => Self::retryable("the provider failed"),
            ChargeError::NoAnswer => Self::retryable("the provider did not answer"),
        }
    }
}

#[derive(Deserialize)]
struct Charge {
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
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .timeout(Duration::from_secs(20))
            .build()?;
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), secret: secret.to_owned() })
    }

    /// Charges once for each key, and returns the charge's id.
    pub async fn create(
        &self,
        key: DerivedKey,
        params: ChargeParams<'_>,
    ) -> Result<String, ChargeError> {
        let request = self
            .http
            .post(format!("{}/v1/charges", self.url))
            .bearer_auth(&self.secret)
            .header("idempotency-key", key.as_str())
            .form(&params);
        let answer = request.send().await.map_err(|_| ChargeError::NoAnswer)?;
        let status = answer.status().as_u16();
        let after = answer.headers().get("retry-after").and_then(|v| v.to_str().ok()?.parse().ok());
        let body = answer.bytes().await.map_err(|_| ChargeError::NoAnswer)?;
        let error = || serde_json::from_slice::<ErrorBody>(&body).ok().map(|body| body.error);
        match status {
            200..=299 => match serde_json::from_slice::<Charge>(&body) {
                Ok(charge) => Ok(charge.id),
                Err(_) => Err(ChargeError::NoAnswer),
            },
            402 => Err(ChargeError::Declined {
                message: error().map_or_else(|| "The card was declined.".to_owned(), |e| e.message),
            }),
            400 if error().is_some_and(|error| error.kind == "idempotency_error") => {
                Err(ChargeError::OtherParameters)
            }
            409 | 429 | 500..=599 => {
                Err(ChargeError::NotNow { after: after.map(Duration::from_secs) })
            }
            _ => Err(ChargeError::Refused),
        }
    }
}
