//! A holder that reads its answer when its lease is over: it begins no call, and takes nothing back.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lease::{Begun, Done, ms};
use crate::support::db::{open_pg, url_of};
use crate::support::proxy::{Cut, Proxy, port_of};
use crate::support::*;
use atomic_phases::phase::{DerivedKey, Reconciled};
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Completer, WorkerConfig};
use atomic_phases::{
    Batch, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, atomic_phases,
};
use serde::{Deserialize, Serialize};

/// A test's node, and the calls that its provider received.
#[derive(Clone)]
struct Node {
    name: &'static str,
    calls: Arc<Mutex<Vec<&'static str>>>,
    known: Arc<Mutex<HashSet<String>>>,
}

impl Node {
    fn pair() -> (Self, Self) {
        let a = Self { name: "a", calls: Arc::default(), known: Arc::default() };
        (a.clone(), Self { name: "b", ..a })
    }

    fn called(&self, key: &str) {
        self.calls.lock().unwrap().push(self.name);
        self.known.lock().unwrap().insert(key.to_owned());
    }

    fn forget(&self) {
        self.calls.lock().unwrap().clear();
    }
}

/// A provider that forgets keys after a day.
#[derive(Clone, Serialize, Deserialize)]
struct Pay;

#[atomic_phases(name = "pay", version = 1, app = Node)]
impl Pay {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        Postgres::add_step(batch, "pay", "begun");
        Ok(Begun)
    }

    #[phase(foreign(idempotent, window = "24h"))]
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
        Ok(match app.known.lock().unwrap().contains(key.as_str()) {
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

/// An answer that takes so long, in milliseconds, comes when the test lets it.
const A_MINUTE: usize = 60_000;

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
    let (a, b) = Node::pair();
    let engine = |store: &Postgres, node: &Node| {
        let builder = Engine::builder(store.clone()).app(node.clone()).register::<Pay>();
        builder.lease(ms(2000)).build().unwrap()
    };
    let (slow, fast) = (engine(&behind, &a), engine(&db, &b));
    for n in 0..3 {
        finished(slow.call(&scope(), &key(&format!("warm-{n}")), Pay).await);
    }
    a.forget();
    proxy.answer_slowly(A_MINUTE);
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
    let (a, b) = Node::pair();
    let engine = |store: &Postgres, node: &Node| {
        let builder = Engine::builder(store.clone()).app(node.clone()).register::<Send>();
        builder.lease(ms(2000)).reconcile_after(ms(100)).build().unwrap()
    };
    let (slow, fast) = (engine(&behind, &a), engine(&db, &b));
    for n in 0..3 {
        finished(slow.call(&scope(), &key(&format!("warm-{n}")), Send).await);
    }
    a.forget();
    proxy.arm("UPDATE atomic_phases_keys SET status = ", 1, Cut::Stall);
    let late = tokio::spawn(slow.call(&scope(), &key("k"), Send).into_future());
    let count = |what: &str| {
        format!("SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key = 'k' AND {what}")
    };
    until(async || proxy.fired() == 1).await;
    // The lease may be renewed once more, and the holder does not hear of that in time either.
    proxy.answer_slowly(A_MINUTE);
    until(async || db.number(&count("open_intent IS NOT NULL")).await == 1).await;
    let workers = fast.spawn_workers(WorkerConfig::default().poll(ms(50)).grace(ms(50))).unwrap();
    until(async || db.number(&count("status = 'completed'")).await == 1).await;
    assert!(!late.is_finished(), "its answer is still on its way");
    proxy.answer_slowly(0);
    proxy.arrive_now();
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
        proxy.answer_slowly(A_MINUTE);
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
        let (_, b) = Node::pair();
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
        .args(["--exact", &format!("commits::late_answers::child_{runtime}"), "--nocapture"])
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
    let (a, _) = Node::pair();
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
