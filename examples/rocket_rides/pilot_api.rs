//! A client of an API that tells pilots where to fly, and that knows no idempotency keys: a message
//! that is sent twice is a pilot who comes twice. But it can be asked what it was told.

use std::time::Duration;

use atomic_phases::phase::ForeignError;
use serde::Deserialize;

pub struct PilotApi {
    http: reqwest::Client,
    url: String,
}

#[derive(Deserialize)]
struct Notification {
    id: String,
}

#[derive(Deserialize)]
struct Found {
    data: Vec<Notification>,
}

impl PilotApi {
    pub fn new(url: &str) -> Result<Self, reqwest::Error> {
        let timeout = Duration::from_secs(10);
        // A redirect that is followed sends the message, or turns it into a `GET`, somewhere else.
        let http = reqwest::Client::builder()
            .connect_timeout(timeout)
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { http, url: format!("{}/v1/notifications", url.trim_end_matches('/')) })
    }

    /// Tells a pilot about the ride, and returns the notification's id.
    pub async fn notify(&self, ride: &str) -> Result<String, ForeignError> {
        let sent = self.http.post(&self.url).form(&[("ride", ride)]).send().await;
        let answer = match sent {
            Ok(answer) => answer,
            // Nothing left this machine.
            Err(error) if error.is_connect() => {
                return Err(ForeignError::not_executed("the pilots' API is not reachable"));
            }
            Err(_) => return Err(ForeignError::unknown("the pilots' API did not answer")),
        };
        match answer.status().as_u16() {
            200..=299 => match answer.json::<Notification>().await {
                Ok(notification) => Ok(notification.id),
                Err(_) => Err(ForeignError::unknown("the pilots' API answered half")),
            },
            400..=499 => Err(ForeignError::not_executed("the pilots' API refused the message")),
            _ => Err(ForeignError::unknown("the pilots' API failed")),
        }
    }

    /// The notification about the ride, if there is one.
    pub async fn find(&self, ride: &str) -> Result<Option<String>, reqwest::Error> {
        let search = self.http.get(&self.url).query(&[("ride", ride)]).send().await?;
        let found: Found = search.error_for_status()?.json().await?;
        Ok(found.data.into_iter().next().map(|notification| notification.id))
    }
}
