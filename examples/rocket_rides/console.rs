//! The operators' console of this server and their JSON API, on loopback. A user who can read the terminal may use them:
//! the console's address that is printed holds a token that is good for one visit, which makes it a cookie; the API takes
//! another, for programs, until the server ends.

use std::sync::{Arc, Mutex};

use atomic_phases::Engine;
use atomic_phases::console::{Api, Console};
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
    /// Of a program: a browser sends no such header by itself.
    bearer: Arc<str>,
}

impl Door {
    fn new() -> Self {
        let secret = || uuid::Uuid::new_v4().simple().to_string();
        let token = Arc::new(Mutex::new(Some(secret())));
        Self { token, cookie: secret().into(), bearer: secret().into() }
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
        cookies.any(is_ours).then(|| you("you")).flatten()
    }

    /// Of a program, which the audit is to tell from a browser.
    fn program(&self, request: &Parts) -> Option<Actor> {
        let line = request.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let is_ours = line.strip_prefix("Bearer ") == Some(&*self.bearer);
        is_ours.then(|| you("you, by the API")).flatten()
    }
}

fn you(name: &str) -> Option<Actor> {
    Actor::new(name, Permissions::admin(), Scopes::All).ok()
}

/// How operators get in.
pub struct Opened {
    /// The address to be opened in a browser.
    pub console: String,
    /// The JSON API's, and its token.
    pub api: String,
    pub token: Arc<str>,
}

/// Serves console and API on a port of their own.
pub async fn open<S: OperatorStore>(engine: Engine<S, App>, port: u16) -> Result<Opened, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let door = Door::new();
    let token = door.token().clone().unwrap_or_default();
    let address = listener.local_addr()?;
    let opened = Opened {
        console: format!("http://{address}/enter?token={token}"),
        api: format!("http://{address}/api/v1"),
        token: door.bearer.clone(),
    };
    let (at_the_door, of_programs) = (door.clone(), door.clone());
    let api = Api::new(engine.clone(), move |request| of_programs.program(request));
    let console = Console::new(engine, move |request| at_the_door.operator(request));
    let router = Router::new()
        .route("/enter", get(enter))
        .with_state(door)
        .nest("/api/v1", api.router())
        .nest_service("/console", console.router());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(opened)
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
