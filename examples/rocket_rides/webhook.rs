//! `POST /webhooks/charges`: the charge provider says what became of a charge, whether or not our own
//! call has heard it. Delivered at least once, so the same word twice is fine, and another is not.

use std::sync::Arc;

use atomic_phases::{Engine, IdempotencyKey, Resolution, ResolveError, Scope};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;

use crate::create_ride::{App, Charge};
use crate::db::RidesDb;

pub fn router<Db: RidesDb>(engine: Engine<Db, App>, secret: &str) -> Router {
    let secret: Arc<str> = format!("Bearer {secret}").into();
    Router::new().route("/webhooks/charges", post(charged::<Db>)).with_state((engine, secret))
}

#[derive(Deserialize)]
struct Event {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    object: Charged,
}

#[derive(Deserialize)]
struct Charged {
    id: String,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    ride: String,
}

async fn charged<Db: RidesDb>(
    State((engine, secret)): State<(Engine<Db, App>, Arc<str>)>,
    headers: HeaderMap,
    Json(event): Json<Event>,
) -> Response {
    let said = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    if said != Some(secret.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Charged { id, metadata } = event.data.object;
    let request = match engine.store().request_of(&metadata.ride).await {
        Ok(Some((user, key))) => {
            Scope::new(format!("user-{user}")).ok().zip(IdempotencyKey::new(key).ok())
        }
        Ok(None) => None,
        Err(_) => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
    };
    let Some((scope, key)) = request else { return StatusCode::NOT_FOUND.into_response() };
    let word = Resolution::executed("charge_created", &Charge { id });
    let resolved = match word {
        Ok(word) => engine.resolve(&scope, &key, word).await,
        Err(error) => Err(error),
    };
    match resolved {
        Ok(_) => StatusCode::OK,
        // Our own call is under way, or the store is away: let it be delivered again.
        Err(ResolveError::InProgress { .. } | ResolveError::Unavailable(_)) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        // The ride is done, long ago perhaps; or it was charged otherwise, and somebody has to look.
        Err(ResolveError::NoSuchKey) => StatusCode::NOT_FOUND,
        Err(_) => StatusCode::CONFLICT,
    }
    .into_response()
}
