//! G10, G16, G17: accepted requests that a completer has taken over ahead of their turn run like others. Those that wait
//! behind requests that hang delay no other scope, and go back uncounted. Over every store.

// A phase asks for an output by the type that an earlier one returned.
#![allow(clippy::ptr_arg)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::worker::Completer;
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Scope, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g16_what_was_claimed_ahead_of_requests_that_hang_delays_no_other_scope,
    g17_what_waits_too_long_for_its_turn_goes_back_uncounted,
    g10_a_node_that_stops_gives_back_what_it_claimed_ahead,
}

/// A request that hangs is let go by then, or its test has failed.
const OPENED: Duration = Duration::from_secs(120);

/// How many requests of scope `one` end immediately, so that more of them are claimed; then all of them hang.
const QUICK: usize = 30;

/// Half of the slots, which is what one scope may hold.
const SHARE: usize = 4;

/// Accepted in each scope.
const REQUESTS: usize = 80;

#[derive(Clone, Default)]
struct Places {
    visits: Arc<AtomicUsize>,
    hanging: Arc<AtomicUsize>,
    is_open: Arc<AtomicBool>,
}

impl Places {
    async fn visit(&self, may_hang: bool) {
        let is_quick = !may_hang || self.visits.load(Ordering::SeqCst) < QUICK;
        if !is_quick && !self.is_open.load(Ordering::SeqCst) {
            self.hanging.fetch_add(1, Ordering::SeqCst);
            let is_open = self.is_open.clone();
            until_within(OPENED, async move || is_open.load(Ordering::SeqCst)).await;
            self.hanging.fetch_sub(1, Ordering::SeqCst);
        }
        self.visits.fetch_add(1, Ordering::SeqCst);
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// As many as allowed hang, the others that were visited are finished, and some were claimed ahead of their turn.
    async fn hang<S: TestDb>(&self, db: &S) {
        const FINISHED: &str = "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed'";
        until(async || {
            self.hanging.load(Ordering::SeqCst) == SHARE
                && db.number(FINISHED).await == self.visits.load(Ordering::SeqCst) as i64
                && db.number(IN_PROGRESS).await > SHARE as i64
        })
        .await;
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Visit {
    may_hang: bool,
}

#[atomic_phases(name = "visit", version = 1, app = Places)]
impl<Db: TestDb> Visit {
    // Longer than a test takes on a loaded machine.
    #[phase(foreign(idempotent), timeout = "10m")]
    async fn visited(&self, call: ForeignCall, places: &Places) -> PhaseResult<String> {
        call.make(async |key| {
            places.visit(self.may_hang).await;
            Ok::<_, PhaseError>(key.as_str().to_owned())
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, visited: &String) -> PhaseResult<Reply> {
        Db::insert_step(tx, visited, "visited").await?;
        Ok(Reply::text(200, visited.clone()))
    }
}

const IN_PROGRESS: &str = "SELECT count(*) FROM atomic_phases_keys WHERE status = 'in_progress'";
const GIVEN_BACK: &str = "SELECT count(*) FROM atomic_phases_keys \
    WHERE status = 'failed_retryable' AND attempts = 1 AND forgiven_attempts = 1";
const LEFT: &str = "SELECT count(*) FROM atomic_phases_keys WHERE status <> 'completed'";

fn node<S: TestDb>(db: &S, places: &Places, lease: Duration) -> Engine<S, Places> {
    let builder = Engine::builder(db.clone()).app(places.clone()).register::<Visit>();
    builder.lease(lease).build().unwrap()
}

async fn accept<S: TestDb>(engine: &Engine<S, Places>, scope: &str, requests: usize) {
    let of = Scope::new(scope).unwrap();
    for number in 0..requests {
        let visit = Visit { may_hang: scope == "one" };
        let accepted = engine.call(&of, &key(&format!("{scope}-{number}")), visit).accept().await;
        assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
    }
}

/// Each was run to its end, once.
async fn all_have_run<S: TestDb>(db: &S, places: &Places, requests: usize) {
    until_within(OPENED, async || db.number(LEFT).await == 0).await;
    assert_eq!(places.visits.load(Ordering::SeqCst), requests);
    let steps = db.number("SELECT count(DISTINCT request) FROM steps").await;
    assert_eq!(steps, requests as i64);
}

/// Those that wait for their turn do so for ten minutes.
const LONG_LEASE: Duration = Duration::from_secs(3600);

async fn g16_what_was_claimed_ahead_of_requests_that_hang_delays_no_other_scope<S: TestDb>(db: S) {
    let places = Places::default();
    let engine = node(&db, &places, LONG_LEASE);
    accept(&engine, "one", REQUESTS).await;
    let workers = engine.spawn_workers(config()).unwrap();
    places.hang(&db).await;
    let before = places.visits.load(Ordering::SeqCst);
    accept(&engine, "other", 20).await;
    until(async || places.visits.load(Ordering::SeqCst) == before + 20).await;
    assert_eq!(places.hanging.load(Ordering::SeqCst), SHARE);
    assert_eq!(db.number(GIVEN_BACK).await, 0, "they still wait");
    places.open();
    all_have_run(&db, &places, REQUESTS + 20).await;
    drop(workers);
}

async fn g17_what_waits_too_long_for_its_turn_goes_back_uncounted<S: TestDb>(db: S) {
    let places = Places::default();
    // They wait for a sixth of it.
    let engine = node(&db, &places, Duration::from_secs(6));
    accept(&engine, "one", REQUESTS).await;
    let workers = engine.spawn_workers(config()).unwrap();
    places.hang(&db).await;
    until(async || db.number(GIVEN_BACK).await > 0).await;
    places.open();
    all_have_run(&db, &places, REQUESTS).await;
    drop(workers);
}

async fn g10_a_node_that_stops_gives_back_what_it_claimed_ahead<S: TestDb>(db: S) {
    let places = Places::default();
    let stopping = node(&db, &places, LONG_LEASE);
    accept(&stopping, "one", REQUESTS).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let completer = Completer::new(&stopping, config());
    let running = tokio::spawn(completer.run(async { drop(stopped.await) }));
    places.hang(&db).await;
    drop(stop);
    until(async || db.number(GIVEN_BACK).await > 0).await;
    // What it has begun goes on here. The rest is another node's.
    let (quick, left) = (Places::default(), SHARE as i64);
    let another = node(&db.another().await, &quick, LONG_LEASE);
    quick.open();
    let workers = another.spawn_workers(config()).unwrap();
    until_within(OPENED, async || db.number(LEFT).await == left).await;
    assert_eq!(db.number(IN_PROGRESS).await, left);
    places.open();
    running.await.unwrap();
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    let visits = [&places, &quick].map(|places| places.visits.load(Ordering::SeqCst));
    assert_eq!(visits.iter().sum::<usize>(), REQUESTS, "each once");
}
