//! The JSON API: its answers match the layer and the description.

mod acts;
mod described;
mod doors;
mod matrix;
mod reads;

use atomic_phases::console::Api;
use atomic_phases::ops::{Actor, OperatorStore, Permissions, Scopes};
use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use serde_json::Value;
use tower::ServiceExt;

use crate::support::*;

/// The caller: what the application's authentication stores in a request.
#[derive(Clone)]
pub struct Caller(pub Permissions, pub Scopes);

impl Caller {
    pub fn admin() -> Self {
        Self(Permissions::admin(), Scopes::All)
    }
}

fn of<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Api<S> {
    Api::new(engine.clone(), |head| {
        let Caller(may, scopes) = head.extensions.get::<Caller>()?.clone();
        Some(Actor::new("ada", may, scopes).unwrap())
    })
}

pub fn routes<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Router {
    of(engine).router()
}

/// On every answer.
pub const EVERYWHERE: [(&str, &str); 4] = [
    ("cache-control", "no-store"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
];

/// The answer, after a check of the headers that every answer must have.
#[derive(Debug)]
pub struct Told {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub json: Value,
}

impl Told {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json
    }

    #[track_caller]
    pub fn is(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status.as_u16(), self.json["code"].as_str()),
            (status, Some(code)),
            "{self:?}"
        );
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.json["status"], status);
        assert!(!self.json["detail"].as_str().unwrap().is_empty(), "{self:?}");
        described::fits("Problem", &self.json);
    }

    /// The version in the answer.
    pub fn version(&self) -> String {
        self.headers["etag"].to_str().unwrap().to_owned()
    }
}

/// A request of a program: with a token, and without a browser's headers.
pub fn request(method: &str, uri: &str, body: Option<&Value>) -> http::request::Builder {
    let request =
        Request::builder().method(method).uri(uri).header("authorization", "Bearer token");
    match body {
        Some(_) => request.header("content-type", "application/json"),
        None => request,
    }
}

pub async fn send(
    routes: &Router,
    caller: Option<Caller>,
    request: http::request::Builder,
    body: Option<&Value>,
) -> Told {
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    send_body(routes, caller, request, body).await
}

/// With a body of any kind.
pub async fn send_body(
    routes: &Router,
    caller: Option<Caller>,
    request: http::request::Builder,
    body: Body,
) -> Told {
    let mut request = request.body(body).unwrap();
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    let response = routes.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    for (name, value) in EVERYWHERE {
        let there: Vec<_> = head.headers.get_all(name).iter().collect();
        assert_eq!(there, [value], "{name}");
    }
    let json = serde_json::from_slice(&body).unwrap_or_default();
    Told { status: head.status, headers: head.headers, json }
}

pub async fn get(routes: &Router, uri: &str) -> Told {
    send(routes, Some(Caller::admin()), request("GET", uri, None), None).await
}

/// `version`: the version that the act names, as `If-Match`.
pub async fn post(routes: &Router, uri: &str, version: Option<&str>, body: Value) -> Told {
    let mut post = request("POST", uri, Some(&body));
    if let Some(version) = version {
        post = post.header("if-match", version);
    }
    send(routes, Some(Caller::admin()), post, Some(&body)).await
}
