//! G16, G17, G14: a scope's hung, slow, poisoned or unknown work does not affect another scope's in the workers.
//! Over every store.

// A phase asks for an output by the type that an earlier one returned.
#![allow(clippy::ptr_arg)]

use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::store::Status;
use atomic_phases::worker::{Completer, DeliveryError, Job, JobSink, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Scope, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g16_a_scope_that_hangs_with_ten_thousand_due_requests_delays_no_other,
    g16_a_scope_whose_reconcile_functions_hang_delays_no_other,
    g16_a_scope_whose_jobs_hang_delays_no_other,
    g16_a_poison_scope_delays_no_other,
    g17_a_slow_request_does_not_stop_those_that_come_later,
    g14_young_rows_that_this_node_does_not_know_starve_no_other,
    g14_a_thousand_unknown_rows_are_passed_over_in_one_poll,
    g17_rows_that_this_deploy_cannot_drive_are_passed_over_by_a_single_poll,
}

/// A guard against a hanging test, which has ten thousand requests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A provider for each kind of visit: the gate of one does not stop the others.
#[derive(Clone, Default)]
pub struct Places {
    pub stuck: Provider,
    pub open: Provider,
}

impl Places {
    fn of(&self, visit: &Visit) -> &Provider {
        if visit.hangs { &self.stuck } else { &self.open }
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Visit {
    pub hangs: bool,
}

#[atomic_phases(name = "visit", version = 1, app = Places)]
impl<Db: TestDb> Visit {
    // Longer than a test takes on a loaded machine: past the limit, a hung visit makes room for the next one of its
    // scope.
    #[phase(foreign(idempotent), timeout = "10m")]
    async fn visited(&self, call: ForeignCall, places: &Places) -> PhaseResult<String> {
        call.make(async |key| {
            Ok::<_, PhaseError>(places.of(self).call(key.as_str(), "visit").await)
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, visited: &String) -> PhaseResult<Reply> {
        Db::insert_step(tx, visited, "visited").await?;
        tx.stage_job("thanks", &self.hangs)?;
        Ok(Reply::text(200, visited.clone()))
    }
}

/// A visit that the place does not recognize when it is repeated.
#[derive(Clone, Serialize, Deserialize)]
struct Errand {
    hangs: bool,
}

#[atomic_phases(name = "errand", version = 1, app = Places)]
impl<Db: TestDb> Errand {
    #[phase(foreign(at_most_once))]
    async fn ran(&self, call: ForeignCall, places: &Places) -> PhaseResult<String, ForeignError> {
        call.make(async |key| {
            Ok::<_, ForeignError>(places.open.call(key.as_str(), "errand").await)
        })
        .await?;
        Err(ForeignError::unknown("asked for"))
    }

    #[reconcile(ran)]
    async fn find(&self, key: &DerivedKey, places: &Places) -> PhaseResult<Reconciled<String>> {
        if self.hangs {
            places.stuck.call(key.as_str(), "search").await;
        }
        Ok(Reconciled::Executed("found".to_owned()))
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, ran: &String) -> PhaseResult<Reply> {
        Db::insert_step(tx, ran, "ran").await?;
        Ok(Reply::text(200, ran.clone()))
    }
}

pub fn places<S: TestDb>(db: &S, places: &Places) -> Engine<S, Places> {
    let builder = Engine::builder(db.clone()).app(places.clone());
    let builder = builder.register::<Visit>().register::<Errand>();
    builder.lease(Duration::from_secs(60)).build().unwrap()
}

pub fn hung() -> Scope {
    Scope::new("hung").unwrap()
}

pub fn other() -> Scope {
    Scope::new("other").unwrap()
}

/// Half of the slots, which is what one scope may hold.
const SHARE: usize = 4;

/// How many due rows of one scope come first: ten thousand, and fewer in the in-memory store, which has no index
/// and reads all of them at each search.
fn many<S: TestDb>() -> u32 {
    if std::any::type_name::<S>().contains("Memory") { 300 } else { 10_000 }
}

/// Copies the row of `name` this many times, in its scope.
pub async fn multiply<S: TestDb>(db: &S, name: &str, times: u32) {
    const COLUMNS: &str = "definition, definition_version, phases, fingerprint, status, \
        recovery_point, open_intent, lease_token, locked_until, run_after, attempts, advanced_at, \
        created_at, expires_at, params";
    let id = if is_postgres::<S>() { "gen_random_uuid()" } else { "randomblob(16)" };
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, {COLUMNS}) \
         SELECT scope, '{name}-' || n, {id}, {COLUMNS} FROM atomic_phases_keys, {} \
         WHERE idempotency_key = '{name}'",
        numbers::<S>(times)
    ))
    .await;
}

pub async fn is_done<S: TestDb, A: Send + Sync + 'static>(
    engine: &Engine<S, A>,
    scope: &Scope,
    name: &str,
) -> bool {
    let status = engine.status(scope, &key(name)).await.unwrap();
    status.is_some_and(|status| status.status == Status::Completed)
}

/// Long polls, so that a worker finds work only by a wake-up.
fn no_polls() -> WorkerConfig {
    config().poll(Duration::from_secs(3600))
}

async fn g16_a_scope_that_hangs_with_ten_thousand_due_requests_delays_no_other<S: TestDb>(db: S) {
    let at = Places::default();
    let engine = places(&db, &at);
    engine.call(&hung(), &key("k"), Visit { hangs: true }).accept().await.unwrap();
    multiply(&db, "k", many::<S>()).await;
    let mut gate = at.stuck.stop_before_the_effect();
    let workers = engine.spawn_workers(no_polls()).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..SHARE {
        waiting.push(gate.recv().await.unwrap());
    }
    // The scope fills its share, and then the other one arrives.
    for name in ["first", "second"] {
        engine.call(&other(), &key(name), Visit { hangs: false }).accept().await.unwrap();
        until_within(PATIENCE, async || is_done(&engine, &other(), name).await).await;
    }
    assert!(gate.try_recv().is_err(), "no more than its share");
    let untouched = "SELECT count(*) FROM atomic_phases_keys WHERE lease_token = 0";
    assert_eq!(db.number(untouched).await, i64::from(many::<S>()) + 1 - SHARE as i64);
    // Free slots are filled again, one by one.
    waiting.pop();
    waiting.push(gate.recv().await.unwrap());
    assert!(gate.try_recv().is_err());
    assert_eq!(at.open.effects(), 2);
    drop(workers);
}

async fn g16_a_scope_whose_reconcile_functions_hang_delays_no_other<S: TestDb>(db: S) {
    let at = Places::default();
    let engine = places(&db, &at);
    let mut gate = at.stuck.stop_before_the_effect();
    let unknown = async |scope: &Scope, name: &str, hangs| {
        let outcome = engine.call(scope, &key(name), Errand { hangs }).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    };
    unknown(&hung(), "k", true).await;
    multiply(&db, "k", 300).await;
    unknown(&other(), "k", false).await;
    db.let_time_pass().await;
    // After all the others.
    db.sql("UPDATE atomic_phases_keys SET run_after = advanced_at WHERE scope = 'other'").await;
    let workers = engine.spawn_workers(no_polls()).unwrap();
    let waiting = [gate.recv().await, gate.recv().await, gate.recv().await, gate.recv().await];
    until_within(PATIENCE, async || is_done(&engine, &other(), "k").await).await;
    assert!(gate.try_recv().is_err(), "no more than its share");
    drop((workers, waiting));
}

async fn g16_a_scope_whose_jobs_hang_delays_no_other<S: TestDb>(db: S) {
    let at = Places::default();
    let engine = places(&db, &at);
    let visit = async |scope: &Scope, name: &str| {
        finished(engine.call(scope, &key(name), Visit { hangs: false }).await);
    };
    visit(&hung(), "k").await;
    let id = if is_postgres::<S>() { "gen_random_uuid()" } else { "randomblob(16)" };
    const COLUMNS: &str = "position, idempotency_key, name, args, staged_at, run_after";
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, job_id, {COLUMNS}) \
         SELECT scope, {id}, {id}, {COLUMNS} FROM atomic_phases_staged_jobs, {}",
        numbers::<S>(many::<S>())
    ))
    .await;
    struct Hangs(Places);
    impl JobSink for Hangs {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            let of = if job.scope == hung() { &self.0.stuck } else { &self.0.open };
            of.call(&job.id.to_string(), "job").await;
            Ok(())
        }
    }
    let mut gate = at.stuck.stop_before_the_effect();
    let workers = engine.spawn_workers(no_polls().sink(Hangs(at.clone()))).unwrap();
    let waiting = [gate.recv().await, gate.recv().await, gate.recv().await, gate.recv().await];
    let before = at.open.effects();
    visit(&other(), "k").await;
    // The visit, and its job.
    until_within(PATIENCE, async || at.open.effects() == before + 2).await;
    assert!(gate.try_recv().is_err(), "no more than its share");
    let untouched = "SELECT count(*) FROM atomic_phases_staged_jobs WHERE attempts = 0";
    assert_eq!(
        db.number(untouched).await,
        i64::from(many::<S>()) + 1 - SHARE as i64,
        "no attempt is counted"
    );
    drop((workers, waiting));
}

async fn g16_a_poison_scope_delays_no_other<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| {
        let instant = Duration::from_millis(1);
        builder.lease(Duration::from_secs(60)).back_off(instant, instant).max_attempts(1_000_000)
    });
    let poison = troubled(Trouble::RetryForeignAlways);
    engine.call(&hung(), &key("k"), poison).accept().await.unwrap();
    multiply(&db, "k", 300).await;
    let workers = engine.spawn_workers(config()).unwrap();
    until_within(PATIENCE, async || app.bodies()[1] > 20).await;
    for name in ["first", "second", "third"] {
        engine.call(&other(), &key(name), book(20)).accept().await.unwrap();
        until_within(PATIENCE, async || is_done(&engine, &other(), name).await).await;
    }
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
}

async fn g17_a_slow_request_does_not_stop_those_that_come_later<S: TestDb>(db: S) {
    let at = Places::default();
    let engine = places(&db, &at);
    let mut gate = at.stuck.stop_before_the_effect();
    let workers = engine.spawn_workers(no_polls()).unwrap();
    engine.call(&hung(), &key("slow"), Visit { hangs: true }).accept().await.unwrap();
    let slow = gate.recv().await.unwrap();
    // In its own scope, and in another one.
    for scope in [hung(), other()] {
        for name in ["a", "b", "c"] {
            engine.call(&scope, &key(name), Visit { hangs: false }).accept().await.unwrap();
            until_within(PATIENCE, async || is_done(&engine, &scope, name).await).await;
        }
    }
    assert!(!is_done(&engine, &hung(), "slow").await);
    drop(slow);
    until_within(PATIENCE, async || is_done(&engine, &hung(), "slow").await).await;
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    assert_eq!((at.stuck.effects(), at.open.effects()), (1, 6));
}

fn books_only<S: TestDb>(db: &S, app: &App) -> TestEngine<S> {
    Engine::builder(db.clone()).app(app.clone()).register::<Book>().build().unwrap()
}

async fn g14_young_rows_that_this_node_does_not_know_starve_no_other<S: TestDb>(db: S) {
    let app = App::default();
    let everything = engine(&db, &app);
    for name in ["strange-1", "strange-2", "strange-3"] {
        dies_in_its_call(&everything, name, notify(Trouble::None)).await;
    }
    dies_in_its_call(&everything, "known", book(20)).await;
    db.let_leases_expire().await;
    let in_index = "SELECT count(*) FROM atomic_phases_keys WHERE run_after IS NOT NULL";
    assert_eq!(db.number(in_index).await, 0, "they died young");
    let mut completer = Completer::new(&books_only(&db, &app), config().batch(3));
    let mut finished = 0;
    for _ in 0..4 {
        finished += completer.run_once().await.unwrap().finished;
    }
    assert_eq!(finished, 1);
    assert_eq!(status(&everything, "strange-1").await.status, Status::InProgress, "untouched");
    assert_eq!(completed(&everything).await.unknown, 3, "by a node that knows them");
}

async fn g14_a_thousand_unknown_rows_are_passed_over_in_one_poll<S: TestDb>(db: S) {
    let app = App::default();
    let everything = engine(&db, &app);
    everything.call(&hung(), &key("strange"), notify(Trouble::None)).accept().await.unwrap();
    multiply(&db, "strange", 1000).await;
    everything.call(&other(), &key("known"), book(20)).accept().await.unwrap();
    // The enroller enters it, and then the index is read a second time.
    dies_in_its_call(&everything, "young", book(20)).await;
    db.let_leases_expire().await;
    let mut completer = Completer::new(&books_only(&db, &app), config());
    let swept = completer.run_once().await.unwrap();
    assert_eq!((swept.left, swept.finished), (1001, 2), "each is counted once");
    let token = "SELECT max(lease_token) FROM atomic_phases_keys WHERE status = 'pending'";
    assert_eq!(db.number(token).await, 0, "untouched");
}

/// With a scheduler that starts a new completer each time: it begins at the front.
async fn g17_rows_that_this_deploy_cannot_drive_are_passed_over_by_a_single_poll<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for n in 0..12 {
        engine.call(&hung(), &key(&format!("bad{n}")), book(20)).accept().await.unwrap();
    }
    db.sql("UPDATE atomic_phases_keys SET recovery_point = 'gone', run_after = created_at").await;
    engine.call(&other(), &key("good"), book(20)).accept().await.unwrap();
    let mut completer = Completer::new(&engine, WorkerConfig::default().batch(5));
    let swept = completer.run_once().await.unwrap();
    assert_eq!((swept.finished, swept.left), (1, 12));
}
