//! The operators' console of this server, on loopback. Whoever has read the terminal may use it: the address that is
//! printed holds a token that is good for one visit, which makes it a cookie.

use std::sync::{Arc, Mutex};

use atomic_phases::Engine;
use atomic_phases::console::Console;
use atomic_phases::ops::{Actor, OperatorStore, Permissions, Scopes};
use axum::Router;
use axum::extract::{Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::Failure;
use crate::create_ride::App;

const COOKIE: &str = "rocket_rides_console";

/// What lets in: a token, once; behind it a cookie, until the server ends.
#[derive(Clone)]
struct Door {
    token: Arc<Mutex<Option<String>>>,
    cookie: Arc<str>,
}

impl Door {
    fn new() -> Self {
        let secret = || uuid::Uuid::new_v4().simple().to_string();
        Self { token: Arc::new(Mutex::new(Some(secret()))), cookie: secret().into() }
    }

    fn token(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A real application asks its own sessions, and gives each operator the name that they have there.
    fn operator(&self, request: &Parts) -> Option<Actor> {
        let lines = request.headers.get_all(header::COOKIE).iter();
        let mut cookies =
            lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(';'));
        let is_ours = |cookie: &str| cookie.trim().split_once('=') == Some((COOKIE, &*self.cookie));
        match cookies.any(is_ours) {
            true => Actor::new("you", Permissions::admin(), Scopes::All).ok(),
            false => None,
        }
    }
}

/// Serves the console on a port of its own, and returns the address to be opened.
pub async fn open<S: OperatorStore>(engine: Engine<S, App>, port: u16) -> Result<String, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let door = Door::new();
    let token = door.token().clone().unwrap_or_default();
    let address = format!("http://{}/enter?token={token}", listener.local_addr()?);
    let at_the_door = door.clone();
    let console = Console::new(engine, move |request| at_the_door.operator(request));
    let router = Router::new()
        .route("/enter", get(enter))
        .with_state(door)
        .nest_service("/console", console.router());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

#[derive(Deserialize)]
struct Visit {
    token: String,
}

async fn enter(State(door): State<Door>, Query(visit): Query<Visit>) -> Response {
    let mut token = door.token();
    if token.as_ref() != Some(&visit.token) {
        return (StatusCode::NOT_FOUND, "this token was used already, or never given\n")
            .into_response();
    }
    *token = None;
    let cookie = format!("{COOKIE}={}; Path=/console; HttpOnly; SameSite=Strict", door.cookie);
    let headers = [(header::SET_COOKIE, cookie), (header::LOCATION, "console/overview".to_owned())];
    (StatusCode::SEE_OTHER, headers).into_response()
}
