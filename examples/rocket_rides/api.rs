//! `POST /rides` over HTTP: who asks, and with which parameters. The key, the answers and their
//! replays are the framework's.

use std::time::Duration;

use atomic_phases::config::SettingError;
use atomic_phases::http::{Answer, Bodies, Idempotency, Keyed, Params, Policy, Profile};
use atomic_phases::{Engine, Scope};
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::header::{self, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;

use crate::create_ride::{App, CreateRide};
use crate::db::RidesDb;

/// A ride's parameters are a hundred bytes.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub fn router<Db: RidesDb>(
    engine: Engine<Db, App>,
    profile: Profile,
) -> Result<Router, SettingError> {
    let idempotency = Idempotency::new(engine, |request| {
        let User(id) = request.extensions.get()?;
        Scope::new(format!("user-{id}")).ok()
    })
    .with_policy(
        Policy::default()
            .profile(profile)
            .bodies(Bodies::JsonOrForm)
            .body_timeout(BODY_TIMEOUT)
            .challenge(HeaderValue::from_static("Email realm=\"rocket rides\"")),
    )?;
    let router = Router::new()
        .route("/rides", post(create_ride::<Db>))
        .layer(middleware::from_fn_with_state(idempotency.clone(), authenticate::<Db>))
        .merge(idempotency.documentation())
        .with_state(idempotency);
    Ok(router)
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
    keyed: Keyed<Db, App>,
    Extension(User(user_id)): Extension<User>,
    Params(params): Params<RideParams>,
) -> Result<Answer, Answer> {
    let in_range = |name: &str, degrees: f64, limit: f64| match degrees.abs() <= limit {
        true => Ok(degrees),
        false => Err(keyed
            .policy()
            .invalid_parameters(format!("{name} must be from -{limit} to {limit} degrees."))),
    };
    let request = CreateRide {
        user_id,
        origin_lat: in_range("origin_lat", params.origin_lat, 90.0)?,
        origin_lon: in_range("origin_lon", params.origin_lon, 180.0)?,
        target_lat: in_range("target_lat", params.target_lat, 90.0)?,
        target_lon: in_range("target_lon", params.target_lon, 180.0)?,
        raise_error: params.raise_error.into(),
    };
    Ok(keyed.answer(request).await)
}

/// Who asks.
#[derive(Clone, Copy)]
struct User(i64);

/// `Authorization: user@example.com`. Who is not known stays without a [`User`], and so without a
/// scope, which is a 401.
async fn authenticate<Db: RidesDb>(
    State(idempotency): State<Idempotency<Db, App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let email = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let user = match email {
        Some(email) => idempotency.engine().store().user_id(email).await,
        None => Ok(None),
    };
    let Ok(user) = user else { return idempotency.policy().unavailable().into_response() };
    if let Some(id) = user {
        request.extensions_mut().insert(User(id));
    }
    next.run(request).await
}
