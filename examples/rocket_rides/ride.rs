//! `rocket_rides ride`: a client that wants its ride. One key, as many attempts as it takes.

use std::time::Duration;

use atomic_phases::IdempotencyKey;
use atomic_phases::client::{
    Answered, Caller, Decision, End, KeyedCall, Last, Reason, Response, RetryPolicy, SendError,
    Transport, Tried,
};
use clap::Args;

use crate::Failure;

#[derive(Args)]
pub struct Ride {
    /// Base URL of the server
    #[arg(long, default_value = "http://127.0.0.1:5000")]
    server: String,
    /// Who rides; user-bad-source@example.com has a card that is declined
    #[arg(long, default_value = "user@example.com")]
    user: String,
    #[arg(long, default_value_t = 37.77, allow_negative_numbers = true)]
    origin_lat: f64,
    #[arg(long, default_value_t = -122.42, allow_negative_numbers = true)]
    origin_lon: f64,
    #[arg(long, default_value_t = 37.79, allow_negative_numbers = true)]
    target_lat: f64,
    #[arg(long, default_value_t = -122.39, allow_negative_numbers = true)]
    target_lon: f64,
    /// The idempotency key; without it, a new one: a new ride
    #[arg(long)]
    key: Option<IdempotencyKey>,
    /// Seconds until it gives up
    #[arg(long, default_value_t = 120)]
    deadline: u64,
}

impl Ride {
    /// Books the ride. An error where there is no ride in the end.
    pub async fn book(self) -> Result<(), Failure> {
        let policy = RetryPolicy::new(Duration::from_secs(self.deadline))
            .backoff(Duration::from_millis(200), Duration::from_secs(5));
        let call = match self.key {
            Some(key) => KeyedCall::with_key(key, policy),
            None => KeyedCall::new(policy),
        };
        let caller = Caller::new(reqwest::Client::builder())?;
        let request = caller
            .http()
            .post(format!("{}/rides", self.server.trim_end_matches('/')))
            .header("authorization", self.user)
            .form(&[
                ("origin_lat", self.origin_lat),
                ("origin_lon", self.origin_lon),
                ("target_lat", self.target_lat),
                ("target_lon", self.target_lon),
            ])
            .build()?;
        // Running this again with the same key asks for the same ride.
        println!("key: {}", call.key().as_str());
        match caller.send_watched(call, request, tell).await {
            Ok(answered) => told(&answered),
            Err(SendError::GaveUp(end)) => {
                if let Last::Response(response) = &end.last {
                    show(response);
                }
                Err(match end.reason {
                    Reason::RecordDeleted => end.reason.to_string().into(),
                    reason => format!("{reason}; the same key asks again").into(),
                })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// One line for each attempt.
fn tell(tried: Tried) {
    let end = match tried.end {
        End::Answered(answer) => answer.status.to_string(),
        End::Unanswered(Transport::NotSent) => "no connection".to_owned(),
        End::Unanswered(Transport::Unknown) => "no answer".to_owned(),
    };
    let next = match tried.next {
        Decision::Done { .. } => "done".to_owned(),
        Decision::RetryAfter(wait) => format!("again in {:.1} s", wait.as_secs_f64()),
        Decision::GiveUp(_) => "giving up".to_owned(),
    };
    println!("attempt {}: {end}, {next}", tried.number);
}

fn told(answered: &Answered) -> Result<(), Failure> {
    show(&answered.response);
    println!("replayed: {}", if answered.replayed { "yes" } else { "no" });
    match answered.response.status.is_success() {
        true => Ok(()),
        false => Err("the ride was not booked".into()),
    }
}

fn show(response: &Response) {
    println!("{} {}", response.status, String::from_utf8_lossy(&response.body));
}
