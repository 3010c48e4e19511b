//! [`Health`]: health checks for load balancers, orchestrators and probes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::engine::Engine;
use crate::ops::{Actor, Counts, Ops, Permissions, Scopes};
use crate::store::StoreError;
use crate::store::operators::{OperatorStore, RequestAt, ScopeLimits};

/// How long the database has for an answer.
const WITHIN: Duration = Duration::from_secs(2);

/// For how long an answer is reused, so that probes cause no load, however many there are.
const FRESH: Duration = Duration::from_secs(1);

/// Three health check routes, to be nested under `/health`:
///
/// | route | 200 | 503 |
/// |---|---|---|
/// | `/live` | the process answers | never: restarting the process repairs no database |
/// | `/ready` | the database answers within two seconds and can be written to, no migration is missing, and the engine accepts requests | otherwise |
/// | `/waiting` | nothing waits for an operator | a request with an unknown outcome, a dead letter, a stranded request, a dead job or a job that has been due for a minute does, or may (*0 or more stranded*: more than ten thousand requests wait for a worker, and not all of them were judged); or it was not counted within two seconds |
///
/// The checks query the database at most once a second, whatever the number of probes. `/ready` has a connection of its
/// own: a service whose requests use all connections is busy, not unready, and neither is one whose operators read
/// something slow. `/waiting` shares a connection with the workers' searches: with the
/// [`Census`](crate::worker::Census), which counts the same, the [`BulkRunner`](crate::worker::BulkRunner) and the
/// [`Reconciler`](crate::worker::Reconciler); on PostgreSQL and MySQL also with the engine's reads of the
/// pauses. A PostgreSQL pool that the application has made is an exception: without a
/// [pool for operators](crate::store::Postgres::operators_pool), both take connections of the requests and wait for them, and of
/// a pool of fewer than four also for operators.
///
/// No answer contains a key or a name; `/waiting` returns numbers.
///
/// ```
/// # use atomic_phases::{Engine, http::Health, store::Sqlite};
/// # fn routes(engine: Engine<Sqlite>) -> axum::Router {
/// axum::Router::new().nest("/health", Health::new(&engine).router())
/// # }
/// ```
pub struct Health<S: OperatorStore>(Arc<Asked<S>>);

struct Asked<S: OperatorStore> {
    engine: Engine<S>,
    /// For what `/ready` asks: it cannot wait for searches of operators, or for a count.
    probes: S,
    /// For what `/waiting` counts.
    counts: S,
    /// Once none was missing, none will be.
    is_migrated: AtomicBool,
    ready: Told,
    waiting: Told,
}

/// What was answered, and when.
#[derive(Default)]
struct Told(Mutex<Option<(Instant, StatusCode, String)>>);

impl Told {
    /// As it was answered a moment ago, or anew; probes that arrive meanwhile wait for that, and not much longer than
    /// it may take: the runtime that asks may be blocked. `late` is the answer where it takes too long.
    async fn or(
        &self,
        anew: impl Future<Output = Result<String, String>>,
        late: &'static str,
    ) -> Response {
        let mut told = timeout(WITHIN + FRESH, self.0.lock()).await.ok();
        let (status, text) = match told.as_deref() {
            Some(Some((at, status, text))) if at.elapsed() < FRESH => (*status, text.clone()),
            _ => {
                let (status, text) = match timeout(WITHIN, anew).await {
                    Ok(Ok(text)) => (StatusCode::OK, text),
                    Ok(Err(text)) => (StatusCode::SERVICE_UNAVAILABLE, text),
                    Err(_) => (StatusCode::SERVICE_UNAVAILABLE, late.to_owned()),
                };
                if let Some(told) = told.as_deref_mut() {
                    *told = Some((Instant::now(), status, text.clone()));
                }
                (status, text)
            }
        };
        answer(status, text)
    }
}

fn none_missing(missing: &[String]) -> Result<(), String> {
    match missing.len() {
        0 => Ok(()),
        number => Err(format!("{number} migrations are missing")),
    }
}

const AWAY: &str = "the database does not answer";

/// The workers may have their connection in use for longer than a prober waits.
const UNCOUNTED: &str =
    "not counted in time: the database does not answer, or workers use the connection";

fn answer(status: StatusCode, text: String) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")];
    (status, headers, text + "\n").into_response()
}

impl<S: OperatorStore> Health<S> {
    /// Of this engine.
    pub fn new<A: Send + Sync + 'static>(engine: &Engine<S, A>) -> Self {
        Self(Arc::new(Asked {
            engine: engine.without_app(),
            probes: engine.store().for_probes(),
            counts: engine.store().for_workers(),
            is_migrated: AtomicBool::new(false),
            ready: Told::default(),
            waiting: Told::default(),
        }))
    }

    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/live", get(async || answer(StatusCode::OK, "alive".to_owned())))
            .route("/ready", get(ready::<S>))
            .route("/waiting", get(waiting::<S>))
            .with_state(self.0)
    }
}

async fn ready<S: OperatorStore>(State(asked): State<Arc<Asked<S>>>) -> Response {
    // Not cached: the load balancer must learn of it before requests do.
    if !asked.engine.takes_requests() {
        return answer(StatusCode::SERVICE_UNAVAILABLE, "shutting down".to_owned());
    }
    asked.ready.or(asked.judge(), AWAY).await
}

async fn waiting<S: OperatorStore>(State(asked): State<Arc<Asked<S>>>) -> Response {
    asked.waiting.or(asked.count(), UNCOUNTED).await
}

impl<S: OperatorStore> Asked<S> {
    fn ops(&self) -> Result<Ops<S>, String> {
        let prober = Actor::new("health", Permissions::READ, Scopes::All);
        let ops = |prober| self.engine.ops(prober).searching_by(self.counts.clone());
        prober.map(ops).map_err(|error| error.to_string())
    }

    async fn judge(&self) -> Result<String, String> {
        let (store, is_migrated) = (&self.probes, self.is_migrated.load(Ordering::Relaxed));
        if !is_migrated {
            match store.unapplied_migrations().await {
                Ok(missing) => none_missing(&missing)?,
                // It is not there, or not this user's to read: the tables say it, then.
                Err(error) if error.is_from_server() => {}
                Err(_) => return Err(AWAY.to_owned()),
            }
        }
        match self.find_nothing().await {
            Ok(()) => self.is_migrated.store(true, Ordering::Relaxed),
            Err(error) if !is_migrated && error.is_from_server() => {
                let missing = store.missing_migrations().await.unwrap_or_default();
                none_missing(&missing)?;
                return Err(AWAY.to_owned());
            }
            Err(_) => return Err(AWAY.to_owned()),
        }
        match store.is_read_only().await {
            Ok(false) => Ok("ready".to_owned()),
            Ok(true) => Err("the database can only be read".to_owned()),
            Err(_) => Err(AWAY.to_owned()),
        }
    }

    /// The shortest of the operators' searches: by indexes, for what is not there.
    async fn find_nothing(&self) -> Result<(), StoreError> {
        let (store, limits) = (&self.probes, ScopeLimits::default());
        if !self.is_migrated.load(Ordering::Relaxed) {
            store.find_request(RequestAt::Id(Uuid::nil()), &limits).await?;
        }
        store.dead_job(&limits, Uuid::nil()).await.map(drop)
    }

    async fn count(&self) -> Result<String, String> {
        let counts = self.ops()?.counted().await.map_err(|_| UNCOUNTED.to_owned())?;
        let Counts { unknown, dead_letters, stranded, dead_jobs, late_jobs, .. } = counts;
        let all = [unknown, dead_letters, stranded, dead_jobs, late_jobs];
        let text = format!(
            "{unknown} unknown, {dead_letters} dead letters, {stranded} stranded, {dead_jobs} dead jobs, \
             {late_jobs} late jobs"
        );
        // *0 or more* is not none. `atomic-phases status` says the same.
        match all.iter().all(|count| count.number == 0 && !count.or_more) {
            true => Ok(text),
            false => Err(text),
        }
    }
}

impl<S: OperatorStore> std::fmt::Debug for Health<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").finish_non_exhaustive()
    }
}
