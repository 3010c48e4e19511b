//! What a holder may do, and when: answers that are read late, stopped processes, calls that outlive their phase,
//! time limits, and the loops that must end.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::db::{open_pg, url_of};
use crate::support::proxy::{Cut, Proxy};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::FailureCause;
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::store::Status;
use atomic_phases::worker::{Completer, Sweep, WorkerConfig};
use atomic_phases::{
    Batch, CallError, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Postgres, Reply,
    Sqlite, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g2_a_call_that_outlives_its_phase_is_under_way_and_can_begin_no_more,
    g17_a_phase_that_ends_before_its_call_began_is_tried_again,
    g17_a_call_that_hangs_ends_with_its_phases_time_limit,
    g17_a_local_phase_may_have_a_time_limit,
    g17_a_local_phase_that_never_waits_has_its_time_limit,
    g2_an_unknown_call_rests_for_its_time_limit_at_least,
    g17_a_commit_is_due_for_the_workers_by_the_end_of_its_lease,
    g17_a_shutdown_has_a_deadline,
    g17_the_cap_is_reached_by_back_offs_and_not_by_an_impatient_client,
    g17_a_cap_of_two_means_two_attempts,
    g17_a_shutdown_uses_up_no_attempt,
    g17_a_shutdown_does_not_end_the_back_off_in_which_a_client_came,
    g17_a_provider_cannot_ask_for_a_back_off_without_end,
    g2_a_call_that_is_made_in_a_task_ends_with_its_phase,
    g3_a_call_ends_as_soon_as_its_holder_hears_that_the_key_is_anothers,
    g3_a_local_phase_ends_as_soon_as_its_holder_hears_that_the_key_is_anothers,
    g17_a_call_that_never_comes_to_its_effect_ends_at_the_cap,
    g17_a_reconcile_function_that_never_returns_is_not_asked_for_ever,
    calls_that_wait_are_answered_by_the_failure_of_the_other,
    a_shutdown_does_not_wait_for_calls_that_wait,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A test's node, and the calls that its provider received; the provider remembers a key for `window`.
#[derive(Clone)]
struct Node {
    name: &'static str,
    calls: Arc<Mutex<Vec<&'static str>>>,
    known: Arc<Mutex<HashMap<String, Instant>>>,
    effects: Arc<AtomicU32>,
    window: Duration,
}

impl Node {
    fn pair(window: Duration) -> (Self, Self) {
        let a = Self {
            name: "a",
            calls: Arc::default(),
            known: Arc::default(),
            effects: Arc::default(),
            window,
        };
        (a.clone(), Self { name: "b", ..a })
    }

    fn called(&self, key: &str) {
        self.calls.lock().unwrap().push(self.name);
        let mut known = self.known.lock().unwrap();
        if known.get(key).is_none_or(|then| then.elapsed() > self.window) {
            known.insert(key.to_owned(), Instant::now());
            self.effects.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn forget(&self) {
        self.calls.lock().unwrap().clear();
        self.effects.store(0, Ordering::SeqCst);
    }
}

#[derive(Serialize, Deserialize)]
struct Begun;
#[derive(Serialize, Deserialize)]
struct Done;

/// A provider that forgets keys after two seconds.
#[derive(Clone, Serialize, Deserialize)]
struct Pay;

#[atomic_phases(name = "pay", version = 1, app = Node)]
impl Pay {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        Postgres::add_step(batch, "pay", "begun");
        Ok(Begun)
    }

    #[phase(foreign(idempotent, window = "2s"))]
    async fn paid(&self, call: ForeignCall, app: &Node) -> PhaseResult<Done> {
        call.make(async |key| {
            app.called(key.as_str());
            Ok::<_, PhaseError>(())
        })
        .await?;
        Ok(Done)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>, _done: &Done) -> PhaseResult<Reply> {
        Postgres::add_step(batch, "pay", "answered");
        Ok(Reply::new(204))
    }
}

/// A provider that honors no key, and can be queried.
#[derive(Clone, Serialize, Deserialize)]
struct Send;

#[atomic_phases(name = "send", version = 1, app = Node)]
impl Send {
    #[phase(foreign(at_most_once), timeout = "200ms")]
    async fn sent(&self, call: ForeignCall, app: &Node) -> PhaseResult<Done> {
        call.make(async |key| {
            app.called(key.as_str());
            Ok::<_, PhaseError>(())
        })
        .await?;
        Ok(Done)
    }

    #[reconcile(sent)]
    async fn was_sent(&self, key: &DerivedKey, app: &Node) -> PhaseResult<Reconciled<Done>> {
        Ok(match app.known.lock().unwrap().contains_key(key.as_str()) {
            true => Reconciled::Executed(Done),
            false => Reconciled::NotExecuted,
        })
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>, _done: &Done) -> PhaseResult<Reply> {
        Postgres::add_step(batch, "send", "answered");
        Ok(Reply::new(204))
    }
}

fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.split('/').next().unwrap().parse().unwrap()
}

async fn proxied() -> (Postgres, Postgres, Proxy) {
    let db = Postgres::fresh().await;
    let proxy = Proxy::start(port_of(&url_of(&db))).await;
    let behind = open_pg(&proxy.url(&url_of(&db)), 4).await;
    (db, behind, proxy)
}

/// The first phase is committed, and the holder reads the answer after its lease has expired.
#[tokio::test(flavor = "multi_thread")]
async fn g1_a_holder_that_reads_its_answer_after_its_lease_begins_no_call() {
    let (db, behind, proxy) = proxied().await;
    let (a, b) = Node::pair(ms(2000));
    let engine = |store: &Postgres, node: &Node| {
        let builder = Engine::builder(store.clone()).app(node.clone()).register::<Pay>();
        builder.lease(ms(400)).build().unwrap()
    };
    let (slow, fast) = (engine(&behind, &a), engine(&db, &b));
    for n in 0..3 {
        finished(slow.call(&scope(), &key(&format!("warm-{n}")), Pay).await);
    }
    a.forget();
    proxy.answer_slowly(4000);
    let late = tokio::spawn(slow.call(&scope(), &key("k"), Pay).expect_new().into_future());
    until(async || db.number("SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key = 'k' AND locked_until < clock_timestamp()").await == 1).await;
    finished(fast.call(&scope(), &key("k"), Pay).await);
    assert!(!late.is_finished(), "its answer is still on its way");
    proxy.answer_slowly(0);
    let late = finished(late.await.unwrap());
    assert!(late.replayed);
    assert_eq!(*a.calls.lock().unwrap(), ["b"], "a provider forgets, so one call was one too many");
}

/// The same after the intent of a call that must not be made twice.
#[tokio::test(flavor = "multi_thread")]
async fn g2_a_holder_that_reads_of_its_intent_after_its_lease_begins_no_call() {
    let (db, behind, proxy) = proxied().await;
    let (a, b) = Node::pair(Duration::ZERO);
    let engine = |store: &Postgres, node: &Node| {
        let builder = Engine::builder(store.clone()).app(node.clone()).register::<Send>();
        builder.lease(ms(2000)).reconcile_after(ms(100)).build().unwrap()
    };
    let (slow, fast) = (engine(&behind, &a), engine(&db, &b));
    for n in 0..3 {
        finished(slow.call(&scope(), &key(&format!("warm-{n}")), Send).await);
    }
    a.forget();
    proxy.delay(800);
    let late = tokio::spawn(slow.call(&scope(), &key("k"), Send).into_future());
    let count = |what: &str| {
        format!("SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key = 'k' AND {what}")
    };
    until(async || db.number(&count("true")).await == 1).await;
    proxy.answer_slowly(12_000);
    until(async || db.number(&count("open_intent IS NOT NULL")).await == 1).await;
    let workers = fast.spawn_workers(WorkerConfig::default().poll(ms(50)).grace(ms(50))).unwrap();
    until(async || db.number(&count("status = 'completed'")).await == 1).await;
    assert!(!late.is_finished(), "its answer is still on its way");
    proxy.answer_slowly(0);
    finished(late.await.unwrap());
    assert_eq!(*a.calls.lock().unwrap(), ["b"]);
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
}

/// A process that is stopped (SIGSTOP) in the round trip of its first commit.
#[tokio::test(flavor = "multi_thread")]
async fn g1_a_process_that_was_stopped_for_longer_than_its_lease_begins_no_call() {
    for runtime in ["multi", "current"] {
        let db = Postgres::fresh().await;
        let proxy = Proxy::start(port_of(&url_of(&db))).await;
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let mut child = stopped_child(runtime, dir.path(), &proxy.url(&url_of(&db)));
        until(async || file("primed").exists()).await;
        proxy.answer_slowly(3000);
        std::fs::write(file("go"), "").unwrap();
        until(async || {
            let born = "SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key = 'k'";
            db.number(born).await == 1
        })
        .await;
        signal(&child, "-STOP");
        let over = "SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key = 'k' \
                    AND locked_until < clock_timestamp()";
        until(async || db.number(over).await == 1).await;
        let (_, b) = Node::pair(Duration::ZERO);
        let builder = Engine::builder(db.clone()).app(b.clone()).register::<Pay>();
        let other = builder.lease(CHILDS_LEASE).build().unwrap();
        finished(other.call(&scope(), &key("k"), Pay).await);
        signal(&child, "-CONT");
        proxy.answer_slowly(0);
        assert!(child.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(file("told")).unwrap(), "replayed, calls []");
        assert_eq!(*b.calls.lock().unwrap(), ["b"]);
    }
}

const CHILDS_LEASE: Duration = Duration::from_millis(1500);

fn stopped_child(runtime: &str, dir: &Path, url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("lease::child_{runtime}"), "--nocapture"])
        .env("LEASE_TEST_DIR", dir)
        .env("LEASE_TEST_URL", url)
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: &str) {
    assert!(
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success()
    );
}

/// The process that is stopped: a test that does nothing unless another test starts it.
async fn child() {
    let Ok(dir) = std::env::var("LEASE_TEST_DIR") else { return };
    let file = |name: &str| Path::new(&dir).join(name);
    let db = open_pg(&std::env::var("LEASE_TEST_URL").unwrap(), 4).await;
    let (a, _) = Node::pair(Duration::ZERO);
    let builder = Engine::builder(db).app(a.clone()).register::<Pay>();
    let engine = builder.lease(CHILDS_LEASE).build().unwrap();
    finished(engine.call(&scope(), &key("prime"), Pay).await);
    a.forget();
    std::fs::write(file("primed"), "").unwrap();
    until(async || file("go").exists()).await;
    let told = finished(engine.call(&scope(), &key("k"), Pay).expect_new().await);
    let how = if told.replayed { "replayed" } else { "ran" };
    let mut out = std::fs::File::create(file("told")).unwrap();
    write!(out, "{how}, calls {:?}", a.calls.lock().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn child_multi() {
    child().await;
}

#[tokio::test]
async fn child_current() {
    child().await;
}

/// A call that is moved into a task, which makes it after the phase has ended.
#[derive(Clone, Serialize, Deserialize)]
struct Leaves;

#[derive(Clone, Default)]
struct Left {
    provider: Provider,
    phases: Arc<AtomicU32>,
    go: Arc<tokio::sync::Notify>,
    tasks: Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>,
}

#[atomic_phases(name = "leaves", version = 1, app = Left)]
impl<Db: TestDb> Leaves {
    #[phase(foreign(at_most_once), timeout = "50ms")]
    async fn sent(&self, call: ForeignCall, app: &Left) -> PhaseResult<Done, ForeignError> {
        app.phases.fetch_add(1, Ordering::SeqCst);
        let (provider, go) = (app.provider.clone(), app.go.clone());
        let task = tokio::spawn(async move {
            go.notified().await;
            call.make(async |key| {
                provider.call(key.as_str(), "mail").await;
                Ok::<_, ()>(())
            })
            .await
            .unwrap();
        });
        app.tasks.lock().unwrap().push(task);
        Err(ForeignError::retryable("its own time limit"))
    }

    #[reconcile(sent)]
    async fn was_sent(&self, app: &Left) -> PhaseResult<Reconciled<Done>> {
        Ok(match app.provider.effects() {
            0 => Reconciled::NotExecuted,
            _ => Reconciled::Executed(Done),
        })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "leaves", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g2_a_call_that_outlives_its_phase_is_under_way_and_can_begin_no_more<S: TestDb>(db: S) {
    let app = Left { provider: Provider::that_ignores_keys(), ..Left::default() };
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Leaves>();
    let engine = builder.build().unwrap();
    let told = engine.call(&scope(), &key("k"), Leaves).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    // The task is free to make its call now, and does not make it.
    app.go.notify_one();
    let task = app.tasks.lock().unwrap().pop().unwrap();
    let waited = tokio::time::timeout(ms(200), task).await;
    assert!(waited.is_err(), "it waits for ever");
    assert_eq!((app.provider.effects(), app.phases.load(Ordering::SeqCst)), (0, 1));
    let told = engine.call(&scope(), &key("k"), Leaves).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
}

/// Phases that never end by themselves.
#[derive(Clone, Serialize, Deserialize)]
struct Hangs {
    at_most_once: bool,
}

#[derive(Serialize, Deserialize)]
struct Idem;

#[atomic_phases(name = "hangs", version = 1)]
impl<Db: TestDb> Hangs {
    #[phase(foreign(idempotent), timeout = "50ms", commit)]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Idem> {
        if self.at_most_once {
            return Ok(Idem);
        }
        call.make(async |key| {
            app.provider.call(key.as_str(), "asked").await;
            std::future::pending::<PhaseResult<()>>().await
        })
        .await?;
        Ok(Idem)
    }

    #[phase(foreign(at_most_once), timeout = "3s")]
    async fn rung(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "rung").await;
            std::future::pending::<PhaseResult<()>>().await
        })
        .await?;
        Ok(Done)
    }

    #[reconcile(rung)]
    async fn was_rung(&self) -> PhaseResult<Reconciled<Done>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "hangs", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g17_a_call_that_hangs_ends_with_its_phases_time_limit<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Hangs>().build().unwrap();
    let cause = failed(engine.call(&scope(), &key("k"), Hangs { at_most_once: false }).await);
    assert_eq!(cause, FailureCause::TimeLimit { phase: "asked", limit: ms(50) });
    assert_eq!(app.provider.calls().len(), 1);
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "failed_retryable");
}

/// A phase that waits for something before it makes its call.
#[derive(Clone, Serialize, Deserialize)]
struct NotYet;

#[atomic_phases(name = "not_yet", version = 1)]
impl<Db: TestDb> NotYet {
    #[phase(foreign(at_most_once), timeout = "50ms")]
    async fn sent(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        std::future::pending::<()>().await;
        call.make(async |key| {
            app.provider.call(key.as_str(), "sent").await;
            Ok::<_, ()>(())
        })
        .await
        .unwrap();
        Ok(Done)
    }

    #[reconcile(sent)]
    async fn was_sent(&self) -> PhaseResult<Reconciled<Done>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "not_yet", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// The engine drops the body, with everything that it holds, before it asks whether its call may have been made.
async fn g17_a_phase_that_ends_before_its_call_began_is_tried_again<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<NotYet>().build().unwrap();
    let cause = failed(engine.call(&scope(), &key("k"), NotYet).await);
    assert_eq!(cause, FailureCause::TimeLimit { phase: "sent", limit: ms(50) });
    assert_eq!(app.provider.calls().len(), 0);
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "failed_retryable");
}

/// *Not executed* can be believed only after every call that a holder had begun has ended.
async fn g2_an_unknown_call_rests_for_its_time_limit_at_least<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> = Engine::builder(db.clone())
        .app(app.clone())
        .register::<Hangs>()
        .reconcile_after(ms(1))
        .build()
        .unwrap();
    let told = engine.call(&scope(), &key("k"), Hangs { at_most_once: true }).await.unwrap();
    let Outcome::Unknown { retry_after, .. } = told else { panic!("{told:?}") };
    assert!(retry_after >= Duration::from_secs(3), "{retry_after:?}");
    // The same if another process finds the intent.
    let mut gate = app.provider.stop_before_the_effect();
    let call = engine.call(&scope(), &key("dies"), Hangs { at_most_once: true });
    let task = tokio::spawn(call.__call_in_place());
    drop(gate.recv().await.unwrap());
    task.abort();
    let _ = task.await;
    app.provider.stop_no_more();
    db.let_leases_expire().await;
    let told = engine.call(&scope(), &key("dies"), Hangs { at_most_once: true }).await.unwrap();
    let Outcome::Unknown { retry_after, .. } = told else { panic!("{told:?}") };
    assert!(retry_after > Duration::from_secs(2), "{retry_after:?}");
}

/// Local phases that never end by themselves.
#[derive(Clone, Serialize, Deserialize)]
struct Sleeps {
    first: bool,
}

#[atomic_phases(name = "sleeps", version = 1)]
impl<Db: TestDb> Sleeps {
    #[phase(timeout = "1s")]
    async fn begun(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Begun> {
        Db::insert_step(tx, "sleeps", "begun").await?;
        if self.first {
            std::future::pending::<()>().await;
        }
        Ok(Begun)
    }

    #[phase(timeout = "50ms")]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "sleeps", "answered").await?;
        std::future::pending().await
    }
}

async fn g17_a_local_phase_may_have_a_time_limit<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app).register::<Sleeps>().build().unwrap();
    let steps = "SELECT count(*) FROM steps";
    for (name, first, phase, limit, written) in
        [("a", true, "begun", ms(1000), 0), ("b", false, "answered", ms(50), 1)]
    {
        let cause = failed(engine.call(&scope(), &key(name), Sleeps { first }).await);
        assert_eq!(cause, FailureCause::TimeLimit { phase, limit });
        assert_eq!(db.number(steps).await, written, "what it wrote is undone");
    }
}

/// A local phase that keeps its thread busy, and so cannot be interrupted.
#[derive(Clone, Serialize, Deserialize)]
struct Computes {
    first: bool,
}

#[atomic_phases(name = "computes", version = 1)]
impl<Db: TestDb> Computes {
    #[phase(timeout = "1s")]
    async fn begun(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Begun> {
        Db::insert_step(tx, "computes", "begun").await?;
        std::thread::sleep(if self.first { ms(1100) } else { ms(0) });
        Ok(Begun)
    }

    #[phase(timeout = "50ms")]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "computes", "answered").await?;
        std::thread::sleep(ms(100));
        Ok(Reply::new(204))
    }
}

/// Nor does the task that polls it on the thread of an embedded database: a statement is a call there.
async fn g17_a_local_phase_that_never_waits_has_its_time_limit<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app).register::<Computes>().build().unwrap();
    for (name, first, phase, limit, written) in
        [("a", true, "begun", ms(1000), 0), ("b", false, "answered", ms(50), 1)]
    {
        let cause = failed(engine.call(&scope(), &key(name), Computes { first }).await);
        assert_eq!(cause, FailureCause::TimeLimit { phase, limit });
        let steps = db.number("SELECT count(*) FROM steps").await;
        assert_eq!(steps, written, "what it wrote is undone");
    }
}

/// Two calls, and a commit in between.
#[derive(Clone, Serialize, Deserialize)]
struct CallsTwice;

#[atomic_phases(name = "calls_twice", version = 1)]
impl<Db: TestDb> CallsTwice {
    #[phase(foreign(idempotent), commit)]
    async fn first(&self, call: ForeignCall, app: &App) -> PhaseResult<Idem, ForeignError> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "first").await;
            Ok::<_, ForeignError>(Idem)
        })
        .await
    }

    #[phase(foreign(idempotent))]
    async fn second(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "second").await;
            Ok::<_, ForeignError>(Done)
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "calls_twice", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// The time at which a row shows itself to the workers stays only where it fits its new lease: not where it is nearly
/// over, nor where it is of a clock that was set back.
async fn g17_a_commit_is_due_for_the_workers_by_the_end_of_its_lease<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<CallsTwice>().build().unwrap();
    for shown in ["expires_at", "created_at"] {
        let mut gate = app.provider.stop_before_the_effect();
        let call = tokio::spawn(engine.call(&scope(), &key(shown), CallsTwice).into_future());
        let in_the_first = gate.recv().await.unwrap();
        db.sql(&format!("UPDATE atomic_phases_keys SET run_after = {shown}")).await;
        in_the_first.send(()).unwrap();
        let in_the_second = gate.recv().await.unwrap();
        let fits = "SELECT count(*) FROM atomic_phases_keys \
            WHERE run_after > created_at AND run_after < expires_at";
        assert_eq!(db.number(fits).await, 1, "it was {shown}");
        in_the_second.send(()).unwrap();
        finished(call.await.unwrap());
        db.sql("DELETE FROM atomic_phases_keys").await;
    }
}

async fn g17_a_shutdown_has_a_deadline<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    let call = tokio::spawn(engine.call(&scope(), &key("k"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    let left = engine.shutdown(ms(20)).await.unwrap_err();
    assert_eq!((left.requests, left.within), (1, ms(20)));
    assert!(left.to_string().contains("1 requests are still in a phase after 20ms"), "{left}");
    in_the_call.send(()).unwrap();
    assert_eq!(failed(call.await.unwrap()), FailureCause::ShuttingDown);
    engine.shutdown(Duration::from_secs(30)).await.unwrap();

    // The same for the workers.
    let engine = crate::support::engine(&db, &app);
    let workers = engine.spawn_workers(config()).unwrap();
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    let in_the_call = gate.recv().await.unwrap();
    let left = workers.shutdown(ms(20)).await.unwrap_err();
    // And, on a slow machine, one that queries the database.
    assert!(left.workers >= 1, "{left:?}");
    assert_eq!(left.within, ms(20));
    app.provider.stop_no_more();
    in_the_call.send(()).unwrap();
    until(async || status(&engine, "accepted").await.status == Status::Completed).await;
}

async fn g17_the_cap_is_reached_by_back_offs_and_not_by_an_impatient_client<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| {
        builder.max_attempts(3).back_off(Duration::from_secs(60), Duration::from_secs(600))
    });
    let request = || troubled(Trouble::RetryForeignAlways);
    let ends = || db.text("SELECT run_after FROM atomic_phases_keys");
    for back_off in 1..3 {
        failed(engine.call(&scope(), &key("k"), request()).await);
        let first = ends().await;
        for _ in 0..20 {
            let told = engine.call(&scope(), &key("k"), request()).await.unwrap();
            let Outcome::Failed { retry_after, .. } = told else { panic!("{told:?}") };
            assert!(retry_after > Duration::from_secs(50), "{back_off}: {retry_after:?}");
        }
        // Nor do they postpone the end of the back-off (by more than a statement takes).
        let moved = match is_postgres::<S>() {
            true => format!(
                "SELECT extract(epoch FROM run_after - '{first}'::timestamptz)::bigint FROM atomic_phases_keys"
            ),
            false => format!("SELECT (run_after - {first}) / 1000 FROM atomic_phases_keys"),
        };
        assert!(db.number(&moved).await <= 1);
        db.let_time_pass().await;
    }
    let last = engine.call(&scope(), &key("k"), request()).await.unwrap();
    assert!(matches!(last, Outcome::DeadLetter), "{last:?}");
    assert_eq!(app.provider.effects(), 1);
}

async fn g17_a_cap_of_two_means_two_attempts<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(2));
    engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).accept().await.unwrap();
    for _ in 0..4 {
        db.let_time_pass().await;
        completed(&engine).await;
    }
    assert_eq!(app.bodies()[1], 2);
    let standing = status(&engine, "k").await;
    assert_eq!((standing.status, standing.attempt), (Status::DeadLetter, 2));
}

async fn g17_a_shutdown_uses_up_no_attempt<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let leaving = engine_with(&db, &app, |builder| builder.max_attempts(1));
    let call = tokio::spawn(leaving.call(&scope(), &key("k"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    assert!(leaving.shutdown(Duration::ZERO).await.is_err());
    in_the_call.send(()).unwrap();
    assert_eq!(failed(call.await.unwrap()), FailureCause::ShuttingDown);
    app.provider.stop_no_more();
    let staying = engine_with(&db, &app, |builder| builder.max_attempts(1));
    finished(staying.call(&scope(), &key("k"), book(20)).await);
}

/// The client came first, and then the node shut down: the workers of other nodes wait as long as before.
async fn g17_a_shutdown_does_not_end_the_back_off_in_which_a_client_came<S: TestDb>(db: S) {
    let app = App::default();
    let long = Duration::from_secs(600);
    let leaving = engine_with(&db, &app, |builder| builder.back_off(long, long));
    let request = || troubled(Trouble::RetryForeignOnce);
    failed(leaving.call(&scope(), &key("k"), request()).await);
    let mut gate = app.provider.stop_before_the_effect();
    let call = tokio::spawn(leaving.call(&scope(), &key("k"), request()).into_future());
    let in_the_call = gate.recv().await.unwrap();
    assert!(leaving.shutdown(Duration::ZERO).await.is_err());
    in_the_call.send(()).unwrap();
    let told = call.await.unwrap().unwrap();
    let Outcome::Failed { cause: FailureCause::ShuttingDown, retry_after } = told else {
        panic!("{told:?}");
    };
    assert!(retry_after > Duration::from_secs(500), "{retry_after:?}");
    app.provider.stop_no_more();
    let staying = engine(&db, &app);
    assert_eq!(completed(&staying).await, Sweep::default(), "it is not due");
    finished(staying.call(&scope(), &key("k"), request()).await);
    assert_eq!(app.provider.effects(), 1);
}

/// Its provider asks for a day.
#[derive(Clone, Serialize, Deserialize)]
struct Later;

#[atomic_phases(name = "later", version = 1)]
impl<Db: TestDb> Later {
    #[phase(foreign(idempotent))]
    async fn asked(&self, call: ForeignCall) -> PhaseResult<Done, ForeignError> {
        drop(call);
        Err(ForeignError::not_executed_after("busy", Duration::from_secs(24 * 3600)))
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "later", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g17_a_provider_cannot_ask_for_a_back_off_without_end<S: TestDb>(db: S) {
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(App::default()).register::<Later>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Later).await.unwrap();
    let Outcome::Failed { retry_after, .. } = told else { panic!("{told:?}") };
    assert_eq!(retry_after, Duration::from_secs(3600));
}

/// A completer has taken the row by the time when `accept` loses the answer of its commit.
#[tokio::test(flavor = "multi_thread")]
async fn g10_an_accepted_request_is_not_taken_from_the_completer_that_runs_it() {
    for at_most_once in [false, true] {
        let (db, behind, proxy) = proxied().await;
        let app = App::new(Provider::that_ignores_keys());
        let (a, b) = (engine(&behind, &app), engine(&db, &app));
        finished(a.call(&scope(), &key("prime"), book(20)).await);
        let mut gate = app.provider.stop_before_the_effect();
        proxy.arm("WITH atomic_phases_begun", 1, Cut::Answer);
        let accepting = match at_most_once {
            false => tokio::spawn(a.call(&scope(), &key("k"), book(20)).accept()),
            true => tokio::spawn(a.call(&scope(), &key("k"), notify(Trouble::None)).accept()),
        };
        until(async || proxy.fired() == 1).await;
        // The completer is in its call before `accept` can resolve its commit.
        proxy.delay(1000);
        let worker = b.clone();
        let worker = tokio::spawn(async move {
            let mut completer = Completer::new(&worker, WorkerConfig::default().grace(ms(0)));
            loop {
                let swept = completer.run_once().await.unwrap();
                if swept.total() > 0 {
                    return swept;
                }
            }
        });
        let in_the_call = gate.recv().await.unwrap();
        proxy.delay(0);
        let told = accepting.await.unwrap().unwrap();
        assert!(matches!(told, Outcome::Accepted), "{told:?}");
        assert!(gate.try_recv().is_err(), "no second call");
        assert_eq!(
            db.number("SELECT lease_token FROM atomic_phases_keys WHERE idempotency_key = 'k'")
                .await,
            1
        );
        app.provider.stop_no_more();
        in_the_call.send(()).unwrap();
        assert_eq!(worker.await.unwrap().finished, 1);
        assert_eq!(app.provider.calls().len(), 2, "and the one that primed");
    }
}

/// A first phase that rejects, and a database that refuses each commit of the rejection.
#[derive(Clone, Serialize, Deserialize)]
struct Rejects;

#[atomic_phases(name = "rejects", version = 1)]
impl Rejects {
    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        Err(PhaseError::reject(Reply::new(402)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_rejection_whose_commit_fails_each_time_is_given_up() {
    let db = Postgres::fresh().await;
    db.sql(
        "CREATE TABLE tries (n serial);
         CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM nextval('tries_n_seq'); RAISE EXCEPTION 'audit is full'; END $$;
         CREATE CONSTRAINT TRIGGER audit AFTER INSERT ON atomic_phases_keys
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit();",
    )
    .await;
    let engine = Engine::builder(db.clone()).app(()).register::<Rejects>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Rejects).await;
    assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    // Each of six tries is sent as a single statement and, because that fails, as a transaction.
    assert!(db.number("SELECT last_value FROM tries_n_seq").await <= 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_write_that_is_lost_each_time_is_given_up() {
    let db = Postgres::fresh().await;
    let proxy = Proxy::start(port_of(&url_of(&db))).await;
    let behind = open_pg(&proxy.url(&url_of(&db)), 2).await;
    let app = App::default();
    let engine = engine(&behind, &app);
    let again = proxy.clone();
    let cutting = tokio::spawn(async move {
        let mut seen = usize::MAX;
        loop {
            if again.fired() != seen {
                seen = again.fired();
                again.arm("UPDATE atomic_phases_keys SET status = 'failed", 1, Cut::Before);
            }
            tokio::task::yield_now().await;
        }
    });
    let request = troubled(Trouble::RetryForeignAlways);
    let told = engine.call(&scope(), &key("k"), request).await;
    cutting.abort();
    assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    assert!((1..=6).contains(&proxy.fired()), "{}", proxy.fired());
    // Its lease expires, and the request continues.
    db.let_leases_expire().await;
    let other = crate::support::engine(&db, &app);
    let cause = failed(other.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(cause, FailureCause::Phase { phase: "charged", reason: "asked for" });
    assert_eq!((app.provider.calls().len(), app.provider.effects()), (2, 1));
}

/// Its call takes longer than the test.
#[derive(Clone, Serialize, Deserialize)]
struct Waits;

#[atomic_phases(name = "waits", version = 1)]
impl<Db: TestDb> Waits {
    #[phase(foreign(idempotent), timeout = "1h")]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "asked").await;
            Ok::<_, PhaseError>(())
        })
        .await?;
        Ok(Done)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "waits", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// The heartbeat learns that the lease is lost. A body that waits is not polled, and so would not check its lease.
async fn g3_a_call_ends_as_soon_as_its_holder_hears_that_the_key_is_anothers<S: TestDb>(db: S) {
    let app = App::default();
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Waits>();
    let engine: TestEngine<S> = builder.lease(ms(300)).build().unwrap();
    let mut gate = app.provider.stop_before_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("k"), Waits).into_future());
    let in_the_call = gate.recv().await.unwrap();
    let another = "lease_token = lease_token + 1, locked_until = expires_at";
    db.sql(&format!("UPDATE atomic_phases_keys SET {another}")).await;
    until(async || in_the_call.is_closed()).await;
    let told = call.await.unwrap().unwrap();
    assert!(matches!(told, Outcome::InProgress { .. }), "{told:?}");
    assert_eq!(app.provider.effects(), 0);
}

/// Its local phases take longer than the test.
#[derive(Clone, Serialize, Deserialize)]
struct Dwells {
    in_a_batch: bool,
}

#[atomic_phases(name = "dwells", version = 1)]
impl<Db: TestDb> Dwells {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Db>) -> PhaseResult<Begun> {
        Db::add_step(batch, "dwells", "begun");
        Ok(Begun)
    }

    #[phase]
    async fn handed(&self, batch: &mut Batch<'_, Db>, app: &App) -> PhaseResult<Done> {
        Db::add_step(batch, "dwells", "handed");
        if self.in_a_batch {
            app.provider.call("dwells", "nothing").await;
        }
        Ok(Done)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, app: &App) -> PhaseResult<Reply> {
        Db::insert_step(tx, "dwells", "answered").await?;
        app.provider.call("dwells", "nothing").await;
        Ok(Reply::new(204))
    }
}

/// The phase may no longer write, and other requests may wait for its locks.
async fn g3_a_local_phase_ends_as_soon_as_its_holder_hears_that_the_key_is_anothers<S: TestDb>(
    db: S,
) {
    let app = App::default();
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Dwells>();
    let engine: TestEngine<S> = builder.lease(ms(300)).build().unwrap();
    // On a database with one connection, no process can take a row over while a transaction is open.
    let forms: &[(&str, bool)] =
        if is_postgres::<S>() { &[("b", true), ("t", false)] } else { &[("b", true)] };
    for (written, (name, in_a_batch)) in forms.iter().enumerate() {
        let mut gate = app.provider.stop_before_the_effect();
        let call = engine.call(&scope(), &key(name), Dwells { in_a_batch: *in_a_batch });
        let call = tokio::spawn(call.into_future());
        let in_the_phase = gate.recv().await.unwrap();
        let another = "lease_token = lease_token + 1, locked_until = expires_at";
        db.sql(&format!(
            "UPDATE atomic_phases_keys SET {another} WHERE idempotency_key = '{name}'"
        ))
        .await;
        until(async || in_the_phase.is_closed()).await;
        let told = call.await.unwrap().unwrap();
        assert!(matches!(told, Outcome::InProgress { .. }), "{told:?}");
        let steps = db.number("SELECT count(*) FROM steps").await;
        assert_eq!(steps, [1, 3][written], "{name}");
    }
}

/// Its thread is blocked right before its first call, for longer than its lease.
#[derive(Clone, Serialize, Deserialize)]
struct Blocks;

#[atomic_phases(name = "blocks", version = 1)]
impl<Db: TestDb> Blocks {
    #[phase(foreign(at_most_once))]
    async fn sent(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        if app.bodies[1].fetch_add(1, Ordering::SeqCst) == 0 {
            std::thread::sleep(ms(1200));
        }
        call.make(async |key| {
            app.provider.call(key.as_str(), "sent").await;
            Ok::<_, PhaseError>(())
        })
        .await?;
        Ok(Done)
    }

    #[reconcile(sent)]
    async fn was_sent(&self) -> PhaseResult<Reconciled<Done>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "blocks", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// The lease is renewed first, and the phase runs again. The runtime has one thread, so that no heartbeat renews
/// the lease meanwhile.
async fn a_thread_that_stood_still_renews_its_lease_before_its_call<S: TestDb>() {
    let app = App::new(Provider::that_ignores_keys());
    let builder = Engine::builder(S::fresh().await).app(app.clone()).register::<Blocks>();
    let engine: TestEngine<S> = builder.lease(ms(1000)).build().unwrap();
    finished(engine.call(&scope(), &key("k"), Blocks).await);
    assert_eq!((app.bodies()[1], app.provider.calls().len()), (2, 1));
}

#[tokio::test]
async fn g2_a_thread_that_stood_still_renews_its_lease_before_its_call_on_sqlite() {
    a_thread_that_stood_still_renews_its_lease_before_its_call::<Sqlite>().await;
}

#[tokio::test]
async fn g2_a_thread_that_stood_still_renews_its_lease_before_its_call_on_postgres() {
    a_thread_that_stood_still_renews_its_lease_before_its_call::<Postgres>().await;
}

/// A call that a task makes, as in code that shields the call from the end of the phase.
#[derive(Clone, Serialize, Deserialize)]
struct Shields;

#[atomic_phases(name = "shields", version = 1)]
impl<Db: TestDb> Shields {
    #[phase(foreign(at_most_once), timeout = "1s")]
    async fn sent(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        let provider = app.provider.clone();
        let task = tokio::spawn(async move {
            call.make(async |key| Ok::<_, ()>(provider.call(key.as_str(), "mail").await)).await
        });
        drop(task.await);
        Ok(Done)
    }

    #[reconcile(sent)]
    async fn was_sent(&self, app: &App) -> PhaseResult<Reconciled<Done>> {
        Ok(match app.provider.effects() {
            0 => Reconciled::NotExecuted,
            _ => Reconciled::Executed(Done),
        })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "shields", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g2_a_call_that_is_made_in_a_task_ends_with_its_phase<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Shields>().build().unwrap();
    let mut gate = app.provider.stop_before_the_effect();
    let told = engine.call(&scope(), &key("k"), Shields).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    let waiting = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    until(async || waiting.is_closed()).await;
    assert_eq!(app.provider.effects(), 0, "the task's call was dropped");
}

/// The call never arrives, and the provider says so.
#[derive(Clone, Serialize, Deserialize)]
struct Never;

#[atomic_phases(name = "never", version = 1)]
impl<Db: TestDb> Never {
    #[phase(foreign(at_most_once), timeout = "20ms")]
    async fn sent(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        app.bodies[1].fetch_add(1, Ordering::SeqCst);
        call.make(async |_key| std::future::pending::<PhaseResult<()>>().await).await?;
        Ok(Done)
    }

    #[reconcile(sent)]
    async fn was_sent(&self, app: &App) -> PhaseResult<Reconciled<Done>> {
        app.bodies[2].fetch_add(1, Ordering::SeqCst);
        Ok(Reconciled::NotExecuted)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "never", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g17_a_call_that_never_comes_to_its_effect_ends_at_the_cap<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> = Engine::builder(db.clone())
        .app(app.clone())
        .register::<Never>()
        .max_attempts(3)
        .build()
        .unwrap();
    engine.call(&scope(), &key("k"), Never).accept().await.unwrap();
    for _ in 0..10 {
        db.let_time_pass().await;
        completed(&engine).await;
        db.let_time_pass().await;
        reconciled(&engine).await;
    }
    assert_eq!(app.bodies()[1..], [3, 3]);
    let standing = status(&engine, "k").await;
    assert_eq!((standing.status, standing.open_intent), (Status::DeadLetter, None));
}

async fn g17_a_reconcile_function_that_never_returns_is_not_asked_for_ever<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Never>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Never).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    // As after twenty processes that died while they called the reconcile function.
    db.sql("UPDATE atomic_phases_keys SET reconciles = 20").await;
    db.let_time_pass().await;
    reconciled(&engine).await;
    assert_eq!((status(&engine, "k").await.status, app.bodies()[2]), (Status::DeadLetter, 0));
}

async fn calls_that_wait_are_answered_by_the_failure_of_the_other<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| {
        builder.back_off(Duration::from_secs(60), Duration::from_secs(60))
    });
    let request = || troubled(Trouble::RetryForeignAlways);
    let mut gate = app.provider.stop_after_the_effect();
    let first = tokio::spawn(engine.call(&scope(), &key("k"), request()).into_future());
    let in_the_call = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let call = engine.call(&scope(), &key("k"), request());
            tokio::spawn(
                call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(30))).into_future(),
            )
        })
        .collect();
    // Each of them has found that another one runs the request.
    until(async || engine.__waiting() == waiting.len()).await;
    in_the_call.send(()).unwrap();
    failed(first.await.unwrap());
    for call in waiting {
        assert_eq!(failed(call.await.unwrap()), FailureCause::OtherAttempt);
    }
    assert_eq!(app.provider.calls().len(), 1);
}

async fn a_shutdown_does_not_wait_for_calls_that_wait<S: TestDb>(db: S) {
    let app = App::default();
    let (running, idle) = (engine(&db, &app), engine(&db, &app));
    let mut gate = app.provider.stop_before_the_effect();
    let first = tokio::spawn(running.call(&scope(), &key("k"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    let wait = OnDuplicate::Wait(Duration::from_secs(600));
    let waits =
        tokio::spawn(idle.call(&scope(), &key("k"), book(20)).on_duplicate(wait).into_future());
    until(async || idle.__waiting() == 1).await;
    idle.shutdown(Duration::from_secs(20)).await.unwrap();
    let told = waits.await.unwrap().unwrap();
    assert!(matches!(told, Outcome::InProgress { .. }), "{told:?}");
    app.provider.stop_no_more();
    in_the_call.send(()).unwrap();
    finished(first.await.unwrap());
}
/// An engine that two runtimes share, one of which is blocked. (A PostgreSQL connection belongs to the runtime that
/// opened it: there each runtime needs a store of its own.)
#[tokio::test(flavor = "multi_thread")]
async fn g10_a_runtime_that_is_blocked_keeps_no_other_from_its_leases() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.lease(ms(2000)));
    let mut gate = app.provider.stop_before_the_effect();
    let (has_begun, begun) = tokio::sync::oneshot::channel::<()>();
    let halted = {
        let call = engine.call(&scope(), &key("halted"), book(20));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.spawn(call.into_future());
            // Runs the runtime until its request has begun, and then no further.
            let _ = runtime.block_on(begun);
            std::thread::sleep(Duration::from_secs(8));
            std::mem::forget(runtime);
        })
    };
    let _its_call = gate.recv().await.unwrap();
    has_begun.send(()).unwrap();
    let slow = tokio::spawn(engine.call(&scope(), &key("slow"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    let other = engine_with(&db.another().await, &app, |builder| builder.lease(ms(2000)));
    // Several leases long; the passing of time is what this is about.
    for _ in 0..4 {
        tokio::time::sleep(ms(1000)).await;
        let told = other.call(&scope(), &key("slow"), book(20)).await.unwrap();
        assert!(matches!(told, Outcome::InProgress { .. }), "{told:?}");
    }
    app.provider.stop_no_more();
    in_the_call.send(()).unwrap();
    assert!(!finished(slow.await.unwrap()).replayed);
    halted.join().unwrap();
}

/// A task of a blocked runtime that waits for a lock, or has sent a statement, does not block other runtimes.
#[tokio::test(flavor = "multi_thread")]
async fn g10_a_halted_runtime_keeps_the_connection_from_no_other() {
    let db = Sqlite::fresh().await;
    let engine = engine_with(&db, &App::default(), |builder| builder);
    let held = db.connection().await.unwrap();
    let (halted, waits) = (tokio::runtime::Builder::new_current_thread(), Arc::new(()));
    let (mut halted, their_db, their_engine) = (halted, db.clone(), engine.clone());
    let guard = waits.clone();
    let runtime = std::thread::spawn(move || {
        let runtime = halted.enable_all().build().unwrap();
        let (one, other) = (guard.clone(), guard);
        runtime.spawn(async move { (their_db.connection().await.map(drop), one) });
        runtime.spawn(async move { (their_engine.status(&scope(), &key("x")).await, other) });
        // Runs long enough for both to wait, and then no further.
        runtime.block_on(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        });
        runtime
    });
    let runtime = runtime.join().unwrap();
    assert_eq!(Arc::strong_count(&waits), 3, "they wait");
    drop(held);
    // A `Tx` phase, which has the connection to itself, and single statements.
    finished(engine.call(&scope(), &key("alive"), book(20)).await);
    drop(db.connection().await.unwrap());
    runtime.shutdown_background();
}
