//! [`Api`]: what an operator may see and do, as JSON over HTTP.
//!
//! The way of a request: [`Access`] says who it is from, [`Route`] what it asks for, `answer` asks
//! [`ops`](crate::ops) and `views` writes down what it said; what went wrong is a `Problem`.

mod answer;
mod asked;
mod problem;
mod route;
mod views;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{OriginalUri, RawPathParams, Request};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;

use self::asked::Asked;
use self::problem::{Kind, Problem};
pub(crate) use self::route::Route;
use super::access::Access;
use super::largest_body;
use crate::engine::Engine;
use crate::http::{NotRead, read_whole};
use crate::ops::{Actor, OperatorStore};
use crate::setting::SettingError;

/// The published description of the routes, as OpenAPI 3.1.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// Parts of a path that are not text name nothing.
type Params = Result<RawPathParams, RawPathParamsRejection>;

/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(10);

#[doc = include_str!("api.md")]
pub struct Api<S: OperatorStore> {
    engine: Engine<S>,
    access: Access,
    read_only: bool,
}

impl<S: OperatorStore> Api<S> {
    /// The operators' JSON API of this engine.
    ///
    /// `access` returns the actor of a request, from what the application's authentication in front left in
    /// its extensions or headers; `None` is a 401, whatever the request is. It is asked about each request, also about one
    /// that a page of another site made a browser send, so it must only look. There is no default:
    ///
    /// ```compile_fail,E0061
    /// # use atomic_phases::{Engine, console::Api, ops::OperatorStore};
    /// # fn api<S: OperatorStore>(engine: Engine<S>) -> Api<S> {
    /// Api::new(engine)
    /// # }
    /// ```
    pub fn new<A: Send + Sync + 'static>(
        engine: Engine<S, A>,
        access: impl Fn(&Parts) -> Option<Actor> + Send + Sync + 'static,
    ) -> Self {
        let engine = engine.without_app();
        Self { engine, access: Access::new(access), read_only: false }
    }

    /// Omits the routes that change a request or a job, or reveal a value.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Also accepts writing requests from pages of this origin, for example `https://ops.example.com`, if a
    /// proxy in front changes the `Host`.
    ///
    /// # Errors
    /// [`SettingError`] if it is not `http` or `https` with a host, as browsers send it in `Origin`, and perhaps a port.
    /// Origins of other schemes, such as those of a browser's extensions, are not allowed.
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Result<Self, SettingError> {
        self.access.allow_origin("Api::allow_origin", origin)?;
        Ok(self)
    }

    /// The routes, to be nested under a prefix of the application's router: `.nest("/ops/api/v1", api.router())`.
    pub fn router<St: Clone + Send + Sync + 'static>(self) -> Router<St> {
        let api = Arc::new(self);
        let mut router = Router::new();
        for route in Route::ALL.into_iter().filter(|route| !(api.read_only && route.acts())) {
            let api = api.clone();
            let handler = async move |params: Params, uri: OriginalUri, request: Request| {
                let params = params.iter().flatten().map(|(_, value)| value.to_owned()).collect();
                api.serve(Ok(route), params, &uri, request).await
            };
            let filter = if route.is_post() { MethodFilter::POST } else { MethodFilter::GET };
            router = router.route(route.path(), on(filter, handler));
        }
        let refuse = |kind: Kind| {
            let api = api.clone();
            async move |uri: OriginalUri, request: Request| {
                api.serve(Err(kind), Vec::new(), &uri, request).await
            }
        };
        router
            .method_not_allowed_fallback(refuse(Kind::MethodNotAllowed))
            .fallback(refuse(Kind::NoSuchRoute))
    }

    async fn serve(
        &self,
        route: Result<Route, Kind>,
        params: Vec<String>,
        OriginalUri(whole): &OriginalUri,
        request: Request,
    ) -> Response {
        let (head, body) = request.into_parts();
        // Where the description is, for the links of problems: the router may be nested.
        let prefix = whole.path().strip_suffix(head.uri.path()).unwrap_or_default().to_owned();
        let told = self.try_serve(route, params, head, body).await;
        let mut response = told.unwrap_or_else(|problem| problem.tell(&prefix));
        let headers = response.headers_mut();
        for (name, value) in EVERYWHERE {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }

    async fn try_serve(
        &self,
        route: Result<Route, Kind>,
        params: Vec<String>,
        head: Parts,
        body: Body,
    ) -> Result<Response, Problem> {
        let operator = self.access.admit(&head)?;
        let route = route.map_err(Problem::of)?;
        let body = match route.is_post() {
            true => read_body(body, largest_body(&self.engine)).await?,
            false => Bytes::new(),
        };
        let (ops, asked) = (self.engine.ops(operator), Asked { params, head, body });
        // On a task of its own: who hangs up leaves no act half done, and no lease behind.
        let answering =
            crate::task::spawn(async move { answer::answer(route, &ops, &asked).await });
        let told = answering.await.unwrap_or_else(|task| Err(Problem::of(kind_of_lost(&task))));
        let told =
            told.map_err(|problem| if route.acts() { problem } else { problem.of_read() })?;
        let mut response = Response::new(Body::from(told.json));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let version = told.version.and_then(|version| format!("\"{version}\"").try_into().ok());
        headers.extend(version.map(|version: HeaderValue| (ETAG, version)));
        let now = told.now.and_then(|now| views::time(now).try_into().ok());
        headers.extend(now.map(|now: HeaderValue| (DATABASE_TIME, now)));
        Ok(response)
    }
}

/// What kind of problem it is that a task gave no answer.
fn kind_of_lost(task: &tokio::task::JoinError) -> Kind {
    if task.is_panic() { Kind::Panicked } else { Kind::Unavailable }
}

/// On every answer with times: what the database's clock says, by the last reading of it. `Date` is the clock of the service,
/// or of a proxy in front of it.
const DATABASE_TIME: HeaderName = HeaderName::from_static("database-time");

/// On every answer: it is not stored, not taken for a page, and its address is not sent on as a referrer.
const EVERYWHERE: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// The whole body in time, or nothing of it.
async fn read_body(body: Body, most_bytes: usize) -> Result<Bytes, Problem> {
    let read = read_whole(body, most_bytes, BODY_WITHIN).await;
    read.map_err(|not_read| match not_read {
        NotRead::TooLarge => {
            let detail = format!(
                "A body has {most_bytes} bytes at most: send a smaller one. Nothing was done."
            );
            Problem::new(Kind::BodyTooLarge, detail)
        }
        NotRead::NotArrived => Problem::of(Kind::BodyNotRead),
    })
}

impl<S: OperatorStore> std::fmt::Debug for Api<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { access, read_only, .. } = self;
        f.debug_struct("Api")
            .field("access", access)
            .field("read_only", read_only)
            .finish_non_exhaustive()
    }
}
