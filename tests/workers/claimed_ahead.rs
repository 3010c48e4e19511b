//! G10, G16, G17: accepted requests that a completer has taken over ahead of their turn run like others. Those that wait
//! behind requests that hang delay no other scope, and go back as they were. On the stores that take requests over
//! together.

// A phase asks for an output by the type that an earlier one returned.
#![allow(clippy::ptr_arg)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::work::*;
use crate::support::*;
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::worker::Completer;
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Scope, Tx, atomic_phases,
};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

macro_rules! on_stores_that_claim_together {
    ($($name:ident),* $(,)?) => {
        mod on_postgres {
            use crate::support::TestDb;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(<atomic_phases::store::Postgres as TestDb>::fresh().await).await;
            })*
        }
        #[cfg(feature = "simulation")]
        mod on_memory {
            use crate::support::TestDb;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(<atomic_phases::simulation::Memory as TestDb>::fresh().await).await;
            })*
        }
    };
}

on_stores_that_claim_together! {
    g16_what_was_claimed_ahead_of_requests_that_hang_delays_no_other_scope,
    g11_what_waits_too_long_for_its_turn_goes_back_as_it_was,
    g10_a_node_that_stops_gives_back_what_it_claimed_ahead,
    g10_an_engine_that_shuts_down_gives_back_what_it_claimed_ahead,
    g2_what_another_has_begun_meanwhile_is_not_claimed_ahead,
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
    is_over: Arc<AtomicBool>,
}

impl Places {
    async fn visit(&self, may_hang: bool) {
        if may_hang && self.visits.load(Ordering::SeqCst) >= QUICK {
            self.hang_until(&self.is_open).await;
        }
        self.visits.fetch_add(1, Ordering::SeqCst);
    }

    async fn hang_until(&self, fact: &Arc<AtomicBool>) {
        if fact.load(Ordering::SeqCst) {
            return;
        }
        self.hanging.fetch_add(1, Ordering::SeqCst);
        let fact = fact.clone();
        until_within(OPENED, async move || fact.load(Ordering::SeqCst)).await;
        self.hanging.fetch_sub(1, Ordering::SeqCst);
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
    #[phase(foreign(idempotent, window = "1h"), timeout = "10m")]
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
    WHERE status = 'pending' AND attempts = 0 AND lease_token > 0 AND locked_until IS NULL";
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

async fn g11_what_waits_too_long_for_its_turn_goes_back_as_it_was<S: TestDb>(db: S) {
    let places = Places::default();
    // They wait for a sixth of it.
    let engine = node(&db, &places, Duration::from_secs(18));
    accept(&engine, "one", REQUESTS).await;
    let workers = engine.spawn_workers(config()).unwrap();
    places.hang(&db).await;
    until(async || db.number(GIVEN_BACK).await > 0).await;
    // However long it waits: nothing was called that a provider could have forgotten.
    let earlier = match is_postgres::<S>() {
        true => "advanced_at - interval '2 hours'",
        false => "advanced_at - 7200000",
    };
    let age =
        format!("UPDATE atomic_phases_keys SET advanced_at = {earlier} WHERE status = 'pending'");
    db.sql(&age).await;
    places.open();
    all_have_run(&db, &places, REQUESTS).await;
    drop(workers);
}

async fn g10_an_engine_that_shuts_down_gives_back_what_it_claimed_ahead<S: TestDb>(db: S) {
    let places = Places::default();
    let engine = node(&db, &places, LONG_LEASE);
    accept(&engine, "one", REQUESTS).await;
    let workers = engine.spawn_workers(config()).unwrap();
    places.hang(&db).await;
    let shutting = engine.clone();
    let shutdown = tokio::spawn(async move { shutting.shutdown(OPENED).await });
    until(async || db.number(IN_PROGRESS).await == SHARE as i64).await;
    places.open();
    shutdown.await.unwrap().unwrap();
    drop(workers);
    let attempts =
        "SELECT count(*) FROM atomic_phases_keys WHERE status = 'pending' AND attempts > 0";
    assert_eq!(db.number(attempts).await, 0);
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

/// The same, and each is counted. The runtime has one thread, so that the recorder is this test's own.
#[cfg(feature = "metrics")]
#[tokio::test]
async fn what_goes_back_is_counted_on_postgres() {
    use metrics_exporter_prometheus::PrometheusBuilder;

    let recorder = PrometheusBuilder::new().with_recommended_naming(true).build_recorder();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let counted = || {
        let seen = recorder.handle().render();
        let of_visits = "atomic_phases_requests_given_back_total{definition=\"visit\"} ";
        let mut values = seen.lines().filter_map(|line| line.strip_prefix(of_visits));
        values.next().map(|value| value.parse::<i64>().unwrap())
    };
    let (db, places) =
        (<atomic_phases::store::Postgres as TestDb>::fresh().await, Places::default());
    let engine = node(&db, &places, LONG_LEASE);
    accept(&engine, "one", REQUESTS).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let completer = Completer::new(&engine, config());
    let running = tokio::spawn(completer.run(async { drop(stopped.await) }));
    places.hang(&db).await;
    assert_eq!(counted(), None, "they wait");
    drop(stop);
    until(async || db.number(GIVEN_BACK).await > 0).await;
    places.open();
    running.await.unwrap();
    // No other process takes them.
    until(async || counted() == Some(db.number(GIVEN_BACK).await)).await;
}

/// Its call is made at most once.
#[derive(Clone, Serialize, Deserialize)]
enum Payment {
    /// Hangs until the places are open.
    First,
    /// Hangs until all is over.
    Last,
    Other,
}

#[atomic_phases(name = "payment", version = 1, app = Places)]
impl<Db: TestDb> Payment {
    #[phase(foreign(at_most_once), timeout = "10m")]
    async fn paid(&self, call: ForeignCall, places: &Places) -> PhaseResult<String, ForeignError> {
        call.make(async |key| {
            match self {
                Self::First => places.hang_until(&places.is_open).await,
                Self::Last => places.hang_until(&places.is_over).await,
                Self::Other => _ = places.visits.fetch_add(1, Ordering::SeqCst),
            }
            Ok::<_, ForeignError>(key.as_str().to_owned())
        })
        .await
    }

    #[reconcile(paid)]
    async fn find(&self, _: &DerivedKey, _: &Places) -> PhaseResult<Reconciled<String>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &String) -> PhaseResult<Reply> {
        Db::insert_step(tx, paid, "paid").await?;
        Ok(Reply::text(200, paid.clone()))
    }
}

/// A completer has found them as pending, and begins them when another node has run them, and died in their calls. It
/// must not give them back as what they were when it found them.
async fn g2_what_another_has_begun_meanwhile_is_not_claimed_ahead<S: TestDb>(db: S) {
    let places = Places::default();
    let builder = Engine::builder(db.clone()).app(places.clone());
    let engine = builder.register::<Payment>().lease(SHORT_LEASE).build().unwrap();
    let workers = engine.spawn_workers(config()).unwrap();
    for round in 0..ROUNDS {
        if another_has_begun(&db, &engine, &places, round).await {
            drop(workers);
            return;
        }
    }
    panic!("in none of {ROUNDS} rounds was anything claimed ahead: this machine is too busy");
}

/// What is claimed ahead of its turn waits for a sixth of it.
const SHORT_LEASE: Duration = Duration::from_secs(2);

/// More of a scope is claimed ahead if its requests have ended within this time.
const QUICK_END: Duration = Duration::from_secs(1);

const ROUNDS: usize = 20;

async fn accept_payment<S: TestDb>(
    engine: &Engine<S, Places>,
    of: &Scope,
    name: String,
    payment: Payment,
) {
    let accepted = engine.call(of, &key(&name), payment).accept().await;
    assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
}

/// Whether the first requests have ended so soon that more of their scope was claimed ahead. Each round has a scope of its
/// own, of which nothing has ended before.
async fn another_has_begun<S: TestDb>(
    db: &S,
    engine: &Engine<S, Places>,
    places: &Places,
    round: usize,
) -> bool {
    let of = Scope::new(format!("round-{round}")).unwrap();
    let accept = async |kind: &str, payment: Payment| {
        let each = (0..SHARE).map(|number| {
            accept_payment(engine, &of, format!("{round}-{kind}-{number}"), payment.clone())
        });
        join_all(each).await;
    };
    let began = Instant::now();
    accept("first", Payment::First).await;
    until(async || places.hanging.load(Ordering::SeqCst) == SHARE).await;
    accept("last", Payment::Last).await;
    accept("victim", Payment::Other).await;
    // A slot is free for another scope. The search that finds this request finds all that were accepted before it; those
    // wait for a slot, because the first ones have not ended.
    let other = Scope::new("other").unwrap();
    accept_payment(engine, &other, format!("{round}-found"), Payment::Other).await;
    until(async || places.visits.load(Ordering::SeqCst) == round + 1).await;
    let begun = format!(
        "UPDATE atomic_phases_keys SET status = 'in_progress', open_intent = 'paid', lease_token = 1, \
         attempts = 1, locked_until = created_at, run_after = created_at \
         WHERE idempotency_key LIKE '{round}-victim-%'"
    );
    db.sql(&begun).await;
    places.is_open.store(true, Ordering::SeqCst);
    let ended = format!(
        "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed' \
         AND idempotency_key LIKE '{round}-first-%'"
    );
    until(async || db.number(&ended).await == SHARE as i64).await;
    let are_claimed_ahead = began.elapsed() < QUICK_END;
    // The last ones have the share of their scope. What was claimed ahead of its turn would go back now: nothing else
    // shows that it waits, so this waits three times as long.
    until(async || places.hanging.load(Ordering::SeqCst) == SHARE).await;
    tokio::time::sleep(SHORT_LEASE / 2).await;
    places.is_over.store(true, Ordering::SeqCst);
    let open =
        "SELECT count(*) FROM atomic_phases_keys WHERE status NOT IN ('completed', 'unknown')";
    until_within(OPENED, async || db.number(open).await == 0).await;
    assert_eq!(
        places.visits.load(Ordering::SeqCst),
        round + 1,
        "a call that may have been made was repeated"
    );
    places.is_open.store(false, Ordering::SeqCst);
    places.is_over.store(false, Ordering::SeqCst);
    are_claimed_ahead
}
