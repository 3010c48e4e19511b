//! `POST /webhooks/charges`: the charge provider says what became of a charge, whether or not our own
//! call has heard it. Delivered at least once, so the same word twice is fine, and another is not.
//!
//! An event is a request that any client can send. So it is believed only with a signature over its time
//! and its bytes, and it settles the phase only where it says that this very charge was made: a
//! `charge.failed` about a ride says nothing of the kind.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atomic_phases::engine::{Resolution, ResolveError};
use atomic_phases::{Engine, IdempotencyKey, Scope};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde::Deserialize;
use uuid::Uuid;

use crate::charge_api::Charge;
use crate::create_ride::{App, CURRENCY, PRICE};
use crate::db::RidesDb;
use crate::signature::{self, SIGNATURE};

/// Events are a few kilobytes.
const LARGEST_EVENT: usize = 64 << 10;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub fn router<Db: RidesDb>(engine: Engine<Db, App>, secret: &str) -> Router {
    let secret: Arc<str> = secret.into();
    Router::new().route("/webhooks/charges", post(received::<Db>)).with_state((engine, secret))
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    data: serde_json::Value,
}

#[derive(Deserialize)]
struct Data {
    object: Charged,
}

#[derive(Deserialize)]
struct Charged {
    id: String,
    status: String,
    amount: u32,
    currency: String,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    ride: String,
}

/// 2xx ends the provider's deliveries; 503 asks for another one.
async fn received<Db: RidesDb>(
    State((engine, secret)): State<(Engine<Db, App>, Arc<str>)>,
    request: Request,
) -> StatusCode {
    let (head, body) = request.into_parts();
    // Before a byte of the body is read: whether there is a signature at all, of this hour.
    let Some(signature) = signature_of(&head.headers) else { return StatusCode::UNAUTHORIZED };
    let body = axum::body::to_bytes(body, LARGEST_EVENT);
    let Ok(Ok(body)) = tokio::time::timeout(BODY_TIMEOUT, body).await else {
        return StatusCode::BAD_REQUEST;
    };
    if !signature.signs(&secret, &body) {
        return StatusCode::UNAUTHORIZED;
    }
    let Ok(event) = serde_json::from_slice::<Event>(&body) else { return StatusCode::BAD_REQUEST };
    // The provider tells a lot that is of no interest here.
    if event.kind != "charge.succeeded" {
        return StatusCode::OK;
    }
    // A charge without a ride is none of ours.
    match serde_json::from_value::<Data>(event.data) {
        Ok(data) => settle(&engine, data.object).await,
        Err(_) => StatusCode::NOT_FOUND,
    }
}

fn signature_of(headers: &HeaderMap) -> Option<signature::Signature> {
    let signature = signature::Signature::parse(headers.get(SIGNATURE)?.to_str().ok()?)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    signature.is_recent(now).then_some(signature)
}

async fn settle<Db: RidesDb>(engine: &Engine<Db, App>, charge: Charged) -> StatusCode {
    let is_ours = charge.status == "succeeded"
        && (charge.amount, charge.currency.as_str()) == (PRICE, CURRENCY);
    if !is_ours {
        // Not the charge that this request makes: an operator has to look.
        return StatusCode::CONFLICT;
    }
    // Whatever else a ride may be called, ours are not; and no text of a client's is a database's problem.
    let Ok(ride) = Uuid::try_parse(&charge.metadata.ride) else { return StatusCode::NOT_FOUND };
    let request = match engine.store().request_of(&ride.to_string()).await {
        Ok(Some((user, key, id))) => {
            let named = Scope::new(format!("user-{user}")).ok().zip(IdempotencyKey::new(key).ok());
            named.zip(Uuid::try_parse(&id).ok())
        }
        Ok(None) => None,
        Err(_) => return StatusCode::SERVICE_UNAVAILABLE,
    };
    let Some(((scope, key), request_id)) = request else { return StatusCode::NOT_FOUND };
    let resolved = match Resolution::executed("charge_created", &Charge::Made { id: charge.id }) {
        Ok(word) => engine.resolve(&scope, &key, word.of_request(request_id)).await,
        Err(error) => Err(error),
    };
    match resolved {
        Ok(_) => StatusCode::OK,
        // Our own call is under way, or the store or the codec fails: let it be delivered again.
        Err(
            ResolveError::InProgress { .. }
            | ResolveError::NotEncoded { .. }
            | ResolveError::Unavailable(_),
        ) => StatusCode::SERVICE_UNAVAILABLE,
        // The ride is done, long ago perhaps; or it was charged otherwise, and an operator has to look.
        Err(ResolveError::NoSuchKey | ResolveError::AnotherRequest) => StatusCode::NOT_FOUND,
        Err(_) => StatusCode::CONFLICT,
    }
}
