//! The server under test: an axum router over a real socket.

use std::net::SocketAddr;

use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::EngineBuilder;
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::http::{Answer, Bodies, Checked, Idempotency, Keyed, Params, Policy, Profile};
use atomic_phases::phase::ForeignError;
use atomic_phases::{
    ForeignCall, PhaseError, PhaseResult, Reply, RequestContext, Scope, Tx, atomic_phases, phase,
};
use axum::Router;
use axum::extract::{Path, Query, Request as AxumRequest};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::Request;
use crate::support::*;

/// A request whose parameters have a type of each kind, and whose reply is what the test asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
pub struct Echo {
    pub amount: f64,
    pub count: i64,
    pub note: String,
    pub tags: Vec<i64>,
    pub extra: Value,
    pub sent_at: Unfingerprinted<Option<String>>,
    pub how: Unfingerprinted<How>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    #[default]
    Plain,
    Headers,
    NoContent,
    Empty,
    Bytes,
    Fail,
    /// Header lines that are not a phase's to give, and one twice.
    Forged,
    /// A header value that would be two lines.
    Split,
    /// A header line of which the log tells once a day, so that only one test asks for it.
    Logged,
}

pub const BYTES: &[u8] = b"\x00\xff\xfe\r\n\r\n\x80";

#[atomic_phases(name = "echo", version = 1)]
impl<Db: TestDb> Echo {
    #[phase(foreign(idempotent))]
    async fn called(&self, call: ForeignCall, app: &App) -> PhaseResult<String, ForeignError> {
        let what = format!("{} {}", self.count, self.note);
        call.make(async |key| Ok::<_, ForeignError>(app.provider.call(key.as_str(), &what).await))
            .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, called: &String) -> PhaseResult<Reply> {
        Db::insert_step(tx, called, "answered").await?;
        Ok(match *self.how {
            How::Plain => Reply::json(200, &json!({ "effect": called }))?,
            How::Headers => Reply::json(201, &json!({ "effect": called }))?
                .header("location", "/echo/1")
                .header("Content-Location", "/echo/1;v=1")
                .header("etag", "\"1\"")
                .header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
                .header("link", "</a>; rel=\"next\"")
                .header("link", "</b>; rel=\"prev\"")
                .header("content-language", "de")
                .header("set-cookie", "session=canary-cookie")
                .header("set-cookie", "other=canary-cookie")
                .header("x-request-id", "canary-id")
                .header("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            How::NoContent => Reply::new(204),
            How::Empty => Reply::new(200),
            How::Bytes => {
                Reply::new(200).header("content-type", "application/octet-stream").body(BYTES)
            }
            How::Forged => Reply::json(200, &())?
                .header("Content-Type", "application/vnd.api+json")
                .header("location", "/echo/1")
                .header("Location", "/echo/2")
                .header("Idempotency-Key", "forged")
                .header("idempotency-expires", "never")
                .header("idempotent-replayed", "true")
                .header("content-encoding", "gzip")
                .body(BYTES),
            How::Logged => Reply::new(201)
                .header("x-logged", "canary-id")
                .header("set-cookie", "session=canary-cookie"),
            How::Split => Reply::new(200).header("x-a", "b\r\nset-cookie: c=d"),
            How::Fail => {
                return Err(PhaseError::reject(Reply::json(500, &json!({ "final": true }))?));
            }
        })
    }
}

/// A request with an object in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Posted {
    to: Address,
}

#[derive(Debug, Serialize, Deserialize)]
struct Address {
    street: String,
    number: u32,
}

#[atomic_phases(name = "posted", version = 1)]
impl<Db: TestDb> Posted {
    #[phase]
    async fn sent(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Reply> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), &self.to.street).await?;
        Ok(Reply::json(200, &self.to.number)?)
    }
}

/// A running server, with its store, engine and provider.
pub struct Wire<S: TestDb> {
    pub db: S,
    pub app: App,
    pub profile: Profile,
    pub engine: TestEngine<S>,
    address: SocketAddr,
}

/// The settings that a test may change.
pub struct Setup<S: TestDb> {
    db: S,
    app: App,
    policy: Policy,
    profile: Profile,
    builder: fn(EngineBuilder<S, App>) -> EngineBuilder<S, App>,
}

impl<S: TestDb> Setup<S> {
    pub fn app(mut self, app: &App) -> Self {
        self.app = app.clone();
        self
    }

    pub fn policy(mut self, set: impl FnOnce(Policy) -> Policy) -> Self {
        self.policy = set(self.policy);
        self
    }

    pub fn builder(mut self, set: fn(EngineBuilder<S, App>) -> EngineBuilder<S, App>) -> Self {
        self.builder = set;
        self
    }

    pub async fn start(self) -> Wire<S> {
        let builder = self.builder;
        let engine = engine_with(&self.db, &self.app, |engine| {
            builder(
                engine
                    .register::<Echo>()
                    .register::<Posted>()
                    .lease(std::time::Duration::from_secs(60)),
            )
        });
        let router = router(engine.clone(), self.policy);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Wire { db: self.db, app: self.app, profile: self.profile, engine, address }
    }
}

impl<S: TestDb> Wire<S> {
    pub fn setup(db: S, profile: Profile) -> Setup<S> {
        // Immediately in either profile; a separate test covers the default of each.
        let policy = Policy::default()
            .profile(profile)
            .bodies(Bodies::JsonOrForm)
            .on_duplicate(OnDuplicate::Answer);
        Setup { db, app: App::default(), policy, profile, builder: |builder| builder }
    }

    pub async fn start(db: S, profile: Profile) -> Self {
        Self::setup(db, profile).start().await
    }

    pub fn request(&self, method: &'static str, path: &str) -> Request {
        Request::new(self.address, method, path)
    }

    /// `POST /book`, by default without trouble.
    pub fn book(&self, key: &str) -> Request {
        self.request("POST", "/book").key(key).json(r#"{"amount":20}"#)
    }

    pub fn troubled(&self, key: &str, trouble: Trouble) -> Request {
        let body = json!({ "amount": 20, "trouble": trouble }).to_string();
        self.request("POST", "/book").key(key).json(body)
    }

    /// `POST /echo`
    pub fn echo(&self, key: &str, body: impl AsRef<[u8]>) -> Request {
        self.request("POST", "/echo").key(key).json(body)
    }

    /// How often an effect happened.
    pub fn effects(&self) -> usize {
        self.app.provider.effects()
    }
}

pub fn router<S: TestDb>(engine: TestEngine<S>, policy: Policy) -> Router {
    let idempotency = Idempotency::new(engine, |head| {
        Scope::new(head.headers.get("x-tenant")?.to_str().ok()?).ok()
    })
    .with_policy(policy)
    .unwrap();
    let passed = || async { "passed" };
    Router::new()
        .route("/book", post(book::<S>).get(passed).put(passed).delete(passed).options(passed))
        .route("/later", post(later::<S>))
        .route("/notify", post(notify::<S>))
        .route("/echo", post(echo::<S>).patch(echo::<S>))
        .route("/parcel", post(parcel::<S>))
        .nest("/in", Router::new().route("/{place}", post(echo_in::<S>)))
        .nest("/out", Router::new().route("/{place}", post(echo_in::<S>)))
        .route("/wrong", get(book::<S>))
        .route("/maybe", any(maybe::<S>))
        .route("/each", any(each::<S>))
        .merge(idempotency.documentation())
        .merge(idempotency.status_resource())
        .layer(middleware::from_fn(outer))
        .with_state(idempotency)
}

async fn book<S: TestDb>(keyed: Keyed<S, App>, Params(book): Params<Book>) -> Answer {
    keyed.answer(book).await
}

async fn later<S: TestDb>(keyed: Keyed<S, App>, Params(book): Params<Book>) -> Answer {
    keyed.accept(book).await
}

/// One handler for every method.
async fn maybe<S: TestDb>(keyed: Option<Keyed<S, App>>) -> Response {
    match keyed {
        Some(keyed) => keyed.answer(crate::support::book(20)).await.into_response(),
        None => "passed".into_response(),
    }
}

/// One handler for every method, which reads the body of each.
async fn each<S: TestDb>(
    keyed: Option<Keyed<S, App>>,
    Checked(Query(Level { level: _ })): Checked<Query<Level>>,
    Params(book): Params<Book>,
) -> Response {
    match keyed {
        Some(keyed) => keyed.answer(book).await.into_response(),
        None => "passed".into_response(),
    }
}

async fn notify<S: TestDb>(keyed: Keyed<S, App>, Params(notify): Params<Notify>) -> Answer {
    keyed.answer(notify).await
}

async fn echo<S: TestDb>(keyed: Keyed<S, App>, Params(echo): Params<Echo>) -> Answer {
    keyed.answer(echo).await
}

async fn parcel<S: TestDb>(keyed: Keyed<S, App>, Params(parcel): Params<Posted>) -> Answer {
    keyed.answer(parcel).await
}

#[derive(Deserialize)]
struct Level {
    #[serde(default)]
    level: u8,
}

async fn echo_in<S: TestDb>(
    keyed: Keyed<S, App>,
    Checked(Path(_)): Checked<Path<String>>,
    Checked(Query(Level { level: _ })): Checked<Query<Level>>,
    Params(echo): Params<Echo>,
) -> Answer {
    keyed.answer(echo).await
}

/// An outer layer that refuses at the test's command.
async fn outer(request: AxumRequest, next: Next) -> Response {
    let status = request.headers().get("x-outer").and_then(|v| v.to_str().ok()?.parse().ok());
    match status.and_then(|status| StatusCode::from_u16(status).ok()) {
        Some(status) => (status, "from outside").into_response(),
        None => next.run(request).await,
    }
}
