//! [`Console`]: the pages.
//!
//! The way of a request: `guard` (who asks, from where, for how long) → a page (`overview`, `requests`, …) asks
//! [`ops`](crate::ops) → `frame` writes what is around it.

mod act;
mod acts;
mod assets;
mod audit;
mod bulk;
mod bulk_act;
mod chart;
mod definitions;
mod fields;
mod format;
mod frame;
mod guard;
mod jobs;
mod list;
mod overview;
mod pauses;
mod plan;
mod request;
mod requests;
mod reveal;
mod settle;
mod timeline;
mod trouble;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use http::request::Parts;

use super::access::Access;
use super::largest_body;
use crate::engine::Engine;
use crate::ops::{Actor, OperatorStore};
use crate::setting::{HOUR, MILLISECOND, SettingError, duration};

/// How long a page may take, unless it is said: longer than the five seconds that one search has.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The web console for operators (cargo feature `console`). It shows which requests wait, why, and what ends
/// the wait, and offers the acts of [`ops`](crate::ops), each after a page that says what it will change.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod doc {
/// # use atomic_phases::Engine;
/// # use atomic_phases::console::Console;
/// # use atomic_phases::ops::{Actor, Permissions, Scopes};
/// # use atomic_phases::store::Sqlite;
/// # use axum::{Router, extract::Request, middleware::{Next, from_fn}, response::Response};
/// # fn session_of(_: &Request) -> Option<Employee> { None }
/// #[derive(Clone)]
/// struct Employee {
///     email: String,
///     is_on_call: bool,
/// }
///
/// // Your own login: it leaves the user in the request's extensions.
/// async fn logged_in(mut request: Request, next: Next) -> Response {
///     if let Some(employee) = session_of(&request) {
///         request.extensions_mut().insert(employee);
///     }
///     next.run(request).await
/// }
///
/// fn with_console(engine: Engine<Sqlite>) -> Router {
///     // Without a user, the answer is 404.
///     let console = Console::new(engine, |request| {
///         let employee: &Employee = request.extensions.get()?;
///         let may = match employee.is_on_call {
///             true => Permissions::responder(),
///             false => Permissions::viewer(),
///         };
///         Actor::new(&employee.email, may, Scopes::All).ok()
///     });
///     Router::new().nest_service("/ops", console.router()).layer(from_fn(logged_in))
/// }
/// # }
/// ```
///
/// The pages are rendered on the server. They work without JavaScript, and under any prefix, because every
/// link is relative. [`Ops`](crate::ops::Ops) decides what they show and do: a page shows nothing that the
/// actor may not read, and every act is audited with its reason. A page reads on the operators' own
/// connections, and is given up after [`Console::time_limit`], so no request waits for it.
///
/// No URL contains a key, a scope or a value. Each answer forbids scripts, styles and frames from other
/// origins, and inline ones. A form that another site sends is refused.
///
/// `docs/console.md` walks through it with pictures.
pub struct Console<S: OperatorStore> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: OperatorStore> {
    engine: Engine<S>,
    access: Access,
    time_limit: Duration,
}

impl<S: OperatorStore> Console<S> {
    /// A console of this engine, for the actors that `access` returns.
    ///
    /// ```compile_fail,E0061
    /// # use atomic_phases::{Engine, console::Console, ops::OperatorStore};
    /// # fn example<S: OperatorStore>(engine: Engine<S>) {
    /// let open_to_all = Console::new(engine);
    /// # }
    /// ```
    ///
    /// `access` gets the head of each request, including its extensions, and returns the actor: from a
    /// session, from a header that a trusted proxy sets, from a client certificate. There is no default. If
    /// it returns `None`, the answer is 404, as if there were no console, whatever the request is and whichever page sent it.
    ///
    /// So `access` is asked about each request, also about one that a page of another site made the operator's browser
    /// send. It must only look: to begin or to end a session is for a route of the application.
    pub fn new<A: Send + Sync + 'static>(
        engine: Engine<S, A>,
        access: impl Fn(&Parts) -> Option<Actor> + Send + Sync + 'static,
    ) -> Self {
        let engine = engine.without_app();
        let shared = Shared { engine, access: Access::new(access), time_limit: TIME_LIMIT };
        Self { shared: Arc::new(shared) }
    }

    /// Also accepts forms from pages of this origin, for example `https://ops.example.com`, if a proxy
    /// changes the `Host`.
    ///
    /// # Errors
    /// [`SettingError`] if it is not `http` or `https` with a host, as browsers send it in `Origin`, and perhaps a port.
    /// Origins of other schemes, such as those of a browser's extensions, are not allowed.
    pub fn allow_origin(self, origin: impl Into<String>) -> Result<Self, SettingError> {
        let mut access = self.shared.access.clone();
        access.allow_origin("Console::allow_origin", origin)?;
        Ok(self.changed(access, self.shared.time_limit))
    }

    /// How long a page may take before it reports that the database does not answer; default 10 s. It does
    /// not interrupt an act that has begun.
    ///
    /// # Errors
    /// [`SettingError`]: less than a millisecond, or more than an hour.
    pub fn time_limit(self, limit: Duration) -> Result<Self, SettingError> {
        duration("Console::time_limit", limit, MILLISECOND, HOUR)?;
        Ok(self.changed(self.shared.access.clone(), limit))
    }

    fn changed(&self, access: Access, time_limit: Duration) -> Self {
        let engine = self.shared.engine.clone();
        Self { shared: Arc::new(Shared { engine, access, time_limit }) }
    }

    fn largest_form(&self) -> usize {
        largest_body(&self.shared.engine)
    }

    /// The pages, to be mounted anywhere: `nest_service("/ops", console.router())`.
    pub fn router(self) -> Router {
        let back = || get(guard::back);
        Router::new()
            .route("/", get(guard::entrance))
            .route("/overview", get(overview::page::<S>))
            .route("/waiting", get(waiting::page::<S>))
            .route("/requests", get(requests::page::<S>))
            .route("/requests/find", back().post(requests::find::<S>))
            .route("/requests/{id}", get(request::page::<S>))
            .route("/requests/{id}/plan", back().post(plan::page::<S>))
            .route("/requests/{id}/act", back().post(acts::act::<S>))
            .route("/requests/{id}/reveal", back().post(reveal::page::<S>))
            .route("/jobs", get(jobs::page::<S>))
            .route("/jobs/plan", back().post(jobs::plan::<S>))
            .route("/jobs/act", back().post(jobs::act::<S>))
            .route("/definitions", get(definitions::page::<S>))
            .route("/pauses", get(pauses::page::<S>))
            .route("/pauses/plan", back().post(pauses::plan::<S>))
            .route("/pauses/act", back().post(pauses::act::<S>))
            .route("/bulk", get(bulk::page::<S>))
            .route("/bulk/plan", back().post(bulk_act::plan::<S>))
            .route("/bulk/act", back().post(bulk_act::act::<S>))
            .route("/bulk/{id}", get(bulk::one::<S>))
            .route("/bulk/{id}/stop", back().post(bulk_act::stop::<S>))
            .route("/audit", get(audit::page::<S>))
            .route("/assets/{version}/{file}", get(assets::file))
            .fallback(guard::nowhere::<S>)
            .layer(DefaultBodyLimit::max(self.largest_form()))
            .layer(from_fn_with_state(self.clone(), guard::guard::<S>))
            .with_state(self)
    }
}

impl<S: OperatorStore> Clone for Console<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<S: OperatorStore> std::fmt::Debug for Console<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console")
            .field("time_limit", &self.shared.time_limit)
            .finish_non_exhaustive()
    }
}
