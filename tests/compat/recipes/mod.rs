//! The recipes of `docs/changing-a-request.md`, as programs. `before` is deployed first, and its requests are
//! stopped at each recovery point. Then the next version is deployed on the same database, and the requests
//! continue.

mod before;
mod insert;
mod remove;
mod rename;
mod reorder;
mod retire;
mod retype;
mod rollback;
mod side_by_side;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::compat::{Definitions, Level, Lint, compare};
use atomic_phases::phase::DerivedKey;
use atomic_phases::request::RequestDefinition;
use atomic_phases::{Engine, Outcome, PhaseError};

use crate::support::{Provider, TestDb, failed, finished, key, on_every_store, scope};

/// The application's state: its payment provider, and a switch for the tests.
#[derive(Clone, Default)]
struct App {
    provider: Provider,
    stops: Arc<Mutex<Option<&'static str>>>,
}

impl App {
    /// Fails in the phase that the test has chosen.
    fn pass(&self, phase: &'static str) -> Result<(), PhaseError> {
        match *self.stops.lock().unwrap() == Some(phase) {
            true => Err(PhaseError::retryable("asked for")),
            false => Ok(()),
        }
    }

    async fn charge(&self, key: DerivedKey, what: &str) -> Result<String, PhaseError> {
        Ok(self.provider.call(key.as_str(), what).await)
    }
}

/// A build that runs.
fn deployed<S: TestDb>(db: &S, app: &App, definitions: Definitions<S, App>) -> Engine<S, App> {
    let builder = Engine::builder(db.clone()).app(app.clone()).lease(Duration::from_secs(60));
    builder.definitions(definitions).build().unwrap()
}

/// The phases at which the requests of `before` are stopped: each request is named for the phase that fails. The
/// first one is only accepted, so that its recovery point is `started`.
const STOPS: [&str; 4] = ["order_created", "paid", "stock_taken", "answered"];

/// Runs `before`, and leaves a request at each of its recovery points.
async fn in_flight<S: TestDb>(db: &S, app: &App) {
    let old = deployed(db, app, before::definitions());
    let request = || before::CreateOrder { cents: 2000 };
    let accepted = old.call(&scope(), &key(STOPS[0]), request()).accept().await;
    assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
    for stop in &STOPS[1..] {
        stop_in(app, Some(stop));
        failed(old.call(&scope(), &key(stop), request()).await);
    }
    stop_in(app, None);
    db.let_time_pass().await;
}

fn stop_in(app: &App, phase: Option<&'static str>) {
    *app.stops.lock().unwrap() = phase;
}

/// `new` finishes every request when a client sends `request` again; each is charged once, and its order exists
/// once.
async fn all_go_on<S: TestDb, R: RequestDefinition<S, App>>(
    db: &S,
    new: &Engine<S, App>,
    request: impl Fn() -> R,
) {
    let report = new.check().await.unwrap();
    assert!(report.found_nothing_stranded(), "{report:?}");
    for stop in STOPS {
        finished(new.call(&scope(), &key(stop), request()).await);
        assert!(finished(new.call(&scope(), &key(stop), request()).await).replayed);
    }
    charged_once_each(db, new, STOPS.len()).await;
}

async fn charged_once_each<S: TestDb>(db: &S, engine: &Engine<S, App>, requests: usize) {
    let provider = &engine.app().provider;
    let whats: std::collections::HashSet<String> =
        provider.ledger().into_iter().map(|effect| effect.what).collect();
    assert_eq!(
        (provider.effects(), whats.len()),
        (requests, requests),
        "one charge for each order"
    );
    assert_eq!(db.number("SELECT count(*) FROM rides").await, requests as i64);
    assert_eq!(db.number("SELECT count(DISTINCT id) FROM rides").await, requests as i64);
}

/// The findings of the lock files for the change.
fn lints<S: TestDb>(old: &Definitions<S, App>, new: &Definitions<S, App>) -> Vec<Lint> {
    let findings = compare(&old.locks(), &new.locks());
    eprintln!("{findings:#?}");
    findings.iter().map(|finding| finding.lint).collect()
}

fn none_denies(lints: &[Lint]) -> bool {
    lints.iter().all(|lint| lint.level() < Level::Deny)
}
