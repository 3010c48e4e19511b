//! `POST /rides` over HTTP: who asks, under which key, with which parameters; and the status of each
//! outcome.

use std::sync::Arc;
use std::time::Duration;

use atomic_phases::{
    Engine, ExecuteError, FailureCause, IdempotencyKey, Outcome, Reply, RequestOrigin, Scope,
};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Form, Json, Router};
use serde::Deserialize;
use serde_json::json;

use crate::create_ride::{App, CreateRide};
use crate::db::RidesDb;

pub fn router<Db: RidesDb>(engine: Engine<Db, App>) -> Router {
    Router::new().route("/rides", post(create_ride::<Db>)).with_state(Arc::new(engine))
}

/// The parameters as they are sent, as a form or as JSON.
#[derive(Deserialize)]
struct RideParams {
    origin_lat: f64,
    origin_lon: f64,
    target_lat: f64,
    target_lon: f64,
    #[serde(default)]
    raise_error: bool,
}

async fn create_ride<Db: RidesDb>(
    State(engine): State<Arc<Engine<Db, App>>>,
    request: Request,
) -> Result<Response, Refused> {
    let headers = request.headers().clone();
    let user_id = authenticate(engine.store(), &headers).await?;
    let key = idempotency_key(&headers)?;
    let origin =
        RequestOrigin::new(request.method().as_str(), request.uri().path(), request.uri().query());
    let params = parameters(request).await?;
    let request = CreateRide {
        user_id,
        origin_lat: in_range("origin_lat", params.origin_lat, 90.0)?,
        origin_lon: in_range("origin_lon", params.origin_lon, 180.0)?,
        target_lat: in_range("target_lat", params.target_lat, 90.0)?,
        target_lon: in_range("target_lon", params.target_lon, 180.0)?,
        raise_error: params.raise_error.into(),
    };
    let scope = Scope::new(format!("user-{user_id}")).map_err(|e| bad_request(&e.to_string()))?;
    let call = engine.call(&scope, &key, request).origin(origin);
    Ok(answer(call.execute().await))
}

async fn authenticate<Db: RidesDb>(db: &Db, headers: &HeaderMap) -> Result<i64, Refused> {
    let unauthorized = || Refused {
        status: StatusCode::UNAUTHORIZED,
        code: "unauthorized",
        message: "Say who you are: Authorization: user@example.com".into(),
    };
    let email = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let user = db.user_id(email.ok_or_else(unauthorized)?).await;
    user.map_err(|_| unavailable("The database is not reachable."))?.ok_or_else(unauthorized)
}

fn idempotency_key(headers: &HeaderMap) -> Result<IdempotencyKey, Refused> {
    let mut lines = headers.get_all("idempotency-key").iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(bad_request("Send one Idempotency-Key header, a UUID for example."));
    };
    let text = line.to_str().map_err(|_| bad_request("The Idempotency-Key is not ASCII."))?.trim();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    IdempotencyKey::new(bare).map_err(|error| bad_request(&error.to_string()))
}

async fn parameters(request: Request) -> Result<RideParams, Refused> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let is_form = content_type
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/x-www-form-urlencoded"));
    let parsed = match is_form {
        true => Form::from_request(request, &())
            .await
            .map(|Form(params)| params)
            .map_err(|e| e.body_text()),
        false => Json::from_request(request, &())
            .await
            .map(|Json(params)| params)
            .map_err(|e| e.body_text()),
    };
    parsed.map_err(|text| bad_request(&text))
}

fn in_range(name: &str, degrees: f64, limit: f64) -> Result<f64, Refused> {
    match degrees.is_finite() && degrees.abs() <= limit {
        true => Ok(degrees),
        false => Err(bad_request(&format!("{name} must be from -{limit} to {limit} degrees."))),
    }
}

fn answer(outcome: Result<Outcome, ExecuteError>) -> Response {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(
            refused @ (ExecuteError::Fingerprint(_)
            | ExecuteError::TooLarge { .. }
            | ExecuteError::NotStorable { .. }),
        ) => return bad_request(&refused.to_string()).into_response(),
        Err(_) => {
            return unavailable("Nothing was lost. Try again with the same key.").into_response();
        }
    };
    match outcome {
        Outcome::Finished(finished) => {
            let mut response = replied(&finished.reply);
            if finished.replayed {
                response
                    .headers_mut()
                    .insert("idempotent-replayed", "true".parse().expect("ASCII"));
            }
            response
        }
        Outcome::ReplyNotRetained { .. } => error(
            StatusCode::GONE,
            "response_not_retained",
            "The request is done; its answer was too large to keep.",
        ),
        Outcome::Mismatch => error(
            StatusCode::UNPROCESSABLE_ENTITY,
            "key_reused",
            "This Idempotency-Key was used for another request: take a new key.",
        ),
        Outcome::InProgress { retry_after } => later(
            retry_after,
            error(StatusCode::CONFLICT, "in_progress", "This request is being worked on."),
        ),
        Outcome::Unknown { retry_after } => later(
            retry_after,
            error(
                StatusCode::CONFLICT,
                "outcome_unknown",
                "It is being found out what became of this request.",
            ),
        ),
        Outcome::DeadLetter => error(
            StatusCode::CONFLICT,
            "dead_letter",
            "This request failed too often: ask the support.",
        ),
        Outcome::Failed { cause: FailureCause::Panic { .. }, retry_after } => later(
            retry_after,
            error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "failed",
                "That should not happen. Try again with the same key.",
            ),
        ),
        Outcome::Failed { retry_after, .. } => {
            later(retry_after, unavailable("Try again with the same key.").into_response())
        }
        _ => unavailable("Try again with the same key.").into_response(),
    }
}

fn replied(reply: &Reply) -> Response {
    let mut response = Response::new(reply.bytes().to_vec().into());
    *response.status_mut() = StatusCode::from_u16(reply.status()).unwrap_or(StatusCode::OK);
    for (name, value) in reply.headers() {
        if let (Ok(name), Ok(value)) = (name.parse::<header::HeaderName>(), value.parse()) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

fn later(retry_after: Duration, mut response: Response) -> Response {
    let seconds = retry_after.as_secs_f64().ceil().clamp(1.0, 60.0) as u64;
    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    response
}

/// A request that is answered before the engine sees it, or instead of it.
struct Refused {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let response = error(self.status, self.code, &self.message);
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => later(Duration::from_secs(1), response),
            _ => response,
        }
    }
}

fn bad_request(message: &str) -> Refused {
    Refused { status: StatusCode::BAD_REQUEST, code: "bad_request", message: message.into() }
}

fn unavailable(message: &str) -> Refused {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    Refused { status, code: "unavailable", message: message.into() }
}

fn error(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({ "error": { "code": code, "message": message } }))).into_response()
}
