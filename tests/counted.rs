//! Requests are counted as created and as completed when the commit that makes them so is known to be done, and once,
//! whatever fails meanwhile; and the log has as many lines. On each store, with the recorder and the subscriber of the
//! whole process: SQLite runs requests on threads of its own.
#![cfg(all(feature = "metrics", feature = "mysql", feature = "simulation"))]

mod support;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use atomic_phases::fault::{Mode, explore};
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::phase::ForeignError;
use atomic_phases::prelude::*;
use atomic_phases::request::RequestDefinition;
use atomic_phases::simulation::Memory;
use atomic_phases::store::{Mysql, Postgres, Sqlite};
use atomic_phases::worker::{Completer, WorkerConfig};
use atomic_phases::{Engine, Outcome};
use diesel::result::{DatabaseErrorKind, Error};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use serde::{Deserialize, Serialize};
use support::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Record};
use tracing::{Event, Id, Subscriber};

type Hook = Box<dyn Fn(&str) + Send>;

/// The counters by name and labels, and the lines of the log by their texts and recovery points.
#[derive(Default)]
struct Seen {
    sums: Mutex<BTreeMap<String, u64>>,
    /// Hears which of them grows.
    hook: Mutex<Option<Hook>>,
}

static SEEN: LazyLock<Seen> = LazyLock::new(|| {
    metrics::set_global_recorder(Counters).unwrap();
    tracing::subscriber::set_global_default(Lines).unwrap();
    Seen::default()
});

/// What is seen is the process's, so the tests run one at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    let alone = ALONE.lock().await;
    SEEN.sums.lock().unwrap().clear();
    alone
}

impl Seen {
    fn add(&self, what: &str, by: u64) {
        *self.sums.lock().unwrap().entry(what.to_owned()).or_default() += by;
        if let Some(hook) = &*self.hook.lock().unwrap() {
            hook(what);
        }
    }

    fn of(&self, what: &str) -> u64 {
        self.sums.lock().unwrap().get(what).copied().unwrap_or_default()
    }
}

/// A counter of this crate, without the labels behind that of the definition.
fn counter(name: &str, definition: &str) -> u64 {
    SEEN.of(&format!("atomic_phases.{name} {definition}"))
}

struct Counters;

struct Series(String);

impl CounterFn for Series {
    fn increment(&self, by: u64) {
        SEEN.add(&self.0, by);
    }

    fn absolute(&self, _: u64) {
        panic!("the crate has no such counter")
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<&str> = key.labels().map(|label| label.value()).collect();
        Counter::from_arc(Arc::new(Series(format!("{} {}", key.name(), labels.join(" ")))))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

struct Lines;

/// The text of an event, and the recovery point in it.
#[derive(Default)]
struct Line {
    text: String,
    point: Option<String>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.text = format!("{value:?}"),
            "recovery_point" => self.point = Some(format!("{value:?}").replace('"', "")),
            _ => {}
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "atomic_phases::observe"
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        match (&*line.text, line.point) {
            ("committed", Some(point)) => SEEN.add(&format!("line: committed {point}"), 1),
            (text, _) => SEEN.add(&format!("line: {text}"), 1),
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Whatever happened, the log has as many lines as were counted.
fn log_and_counters_agree(definition: &str) {
    let pairs = [
        ("requests.completed", "committed finished"),
        ("resumes", "resumed"),
        ("commits.unanswered", "a commit got no answer; asking what became of it"),
        ("outcomes.unknown", "outcome unknown: not repeated"),
    ];
    for (name, text) in pairs {
        let lines = SEEN.of(&format!("line: {text}"));
        let sums = SEEN.sums.lock().unwrap().clone();
        assert_eq!(counter(name, definition), lines, "{name}: {sums:#?}");
    }
}

/// A store whose keys cannot be read for a while.
trait Unreadable: TestDb {
    async fn hide(&self);
    async fn show(&self);
}

macro_rules! unreadable {
    ($($store:ty),*) => {
        $(impl Unreadable for $store {
            async fn hide(&self) {
                self.sql("ALTER TABLE atomic_phases_keys RENAME TO put_away").await;
            }

            async fn show(&self) {
                self.sql("ALTER TABLE put_away RENAME TO atomic_phases_keys").await;
            }
        })*
    };
}
unreadable!(Postgres, Sqlite, Mysql);

impl Unreadable for Memory {
    async fn hide(&self) {
        self.database().stop();
    }

    async fn show(&self) {
        self.database().start();
    }
}

/// Runs it to its end on another thread, as another process would.
fn aside<F: Future>(act: impl FnOnce() -> F + Send) {
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(act());
        });
    });
}

/// The answers of the commits are lost, one by one. Where that of the row's creation is, no look succeeds either: the
/// call ends with an error, and does not know of its row.
async fn each_request_is_counted_once<S: Unreadable, R>(request: R)
where
    R: RequestDefinition<S, App> + Clone,
{
    let _alone = alone().await;
    let name = R::DEFINITION.name;
    let worlds = Arc::new(AtomicU32::new(0));
    let world = async || {
        let (db, app) = (S::fresh().await, App::default());
        let other = db.another().await;
        let (is_new, is_hidden) = (AtomicBool::new(true), AtomicBool::new(false));
        *SEEN.hook.lock().unwrap() = Some(Box::new(move |what| {
            let is = |counter: &str| *what == format!("atomic_phases.{counter}");
            if is(&format!("requests.created {name}")) {
                is_new.store(false, Ordering::Relaxed);
            }
            if is(&format!("commits.unanswered {name}")) && is_new.load(Ordering::Relaxed) {
                is_hidden.store(true, Ordering::Relaxed);
                aside(async || other.another().await.hide().await);
            }
            if is(&format!("requests {name} unavailable"))
                && is_hidden.swap(false, Ordering::Relaxed)
            {
                aside(async || other.another().await.show().await);
            }
        }));
        worlds.fetch_add(1, Ordering::Relaxed);
        let engine = engine_with(&db, &app, |builder| {
            let builder = builder.lease(Duration::from_secs(60));
            builder.back_off(Duration::from_millis(1), Duration::from_millis(1))
        });
        (engine, app)
    };
    let counted = {
        let worlds = worlds.clone();
        async move |_: &App| {
            let requests = u64::from(worlds.load(Ordering::Relaxed));
            // The call that did not see its row looks for it behind its answer.
            until(async || counter("requests.created", name) == requests).await;
            until(async || counter("requests.completed", name) == requests).await;
            log_and_counters_agree(name);
        }
    };
    let explored = explore(world, request).modes([Mode::AckLost]).check("counted once", counted);
    explored.run().await.assert_ok();
    *SEEN.hook.lock().unwrap() = None;
    assert!(counter("requests", &format!("{name} unavailable")) > 0, "each look succeeded");
}

/// Where the first commit is the last, too.
async fn a_request_is_counted_that_its_call_did_not_see_again<S: Unreadable>() {
    each_request_is_counted_once::<S, _>(book(20)).await;
    each_request_is_counted_once::<S, _>(troubled(Trouble::RejectFirst)).await;
    each_request_is_counted_once::<S, _>(Form::SingleStatement.parcel(Trouble::None)).await;
}

/// What the first attempt of a test meets.
#[derive(Clone)]
struct World {
    begun: Arc<AtomicU32>,
    called: Arc<AtomicU32>,
    takes_over: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

/// Its first phase is rolled back once, and during its call another process takes it over and finishes it.
#[derive(Clone, Serialize, Deserialize)]
struct Overtaken {
    how: Unfingerprinted<()>,
}

#[atomic_phases(name = "overtaken", version = 1, app = World)]
impl<Db: TestDb> Overtaken {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Db>, app: &World) -> PhaseResult<()> {
        Db::insert_step(tx, "-", "begun").await?;
        if app.begun.fetch_add(1, Ordering::Relaxed) == 0 {
            let rolled_back = DatabaseErrorKind::SerializationFailure;
            return Err(Error::DatabaseError(rolled_back, Box::new("asked for".to_owned())).into());
        }
        Ok(())
    }

    #[phase(foreign(idempotent), commit)]
    async fn called(&self, call: ForeignCall, app: &World) -> PhaseResult<(), ForeignError> {
        call.make(async |_key| {
            if app.called.fetch_add(1, Ordering::Relaxed) == 0 {
                (app.takes_over)().await;
            }
            Ok::<_, ForeignError>(())
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "answered"))
    }
}

async fn a_request_is_counted_once_that_was_rolled_back_and_then_lost<S: TestDb>() {
    let _alone = alone().await;
    let db = S::fresh().await;
    let asked = || Overtaken { how: ().into() };
    let engine = |world: World| {
        let engine = Engine::builder(db.clone()).app(world).register::<Overtaken>();
        engine.lease(Duration::from_secs(60)).build().unwrap()
    };
    let other = World {
        begun: Arc::default(),
        called: Arc::new(AtomicU32::new(1)),
        takes_over: Arc::new(|| async {}.boxed()),
    };
    let (other, db) = (engine(other), db.clone());
    let takes_over = Arc::new(move || {
        let (db, other) = (db.clone(), other.clone());
        let finishes = async move {
            db.let_leases_expire().await;
            finished(other.call(&scope(), &key("k"), asked()).await);
        };
        finishes.boxed()
    });
    let world = World { begun: Arc::default(), called: Arc::default(), takes_over };
    let call = engine(world.clone()).call(&scope(), &key("k"), asked()).await;
    assert!(finished(call).replayed);
    assert_eq!(world.begun.load(Ordering::Relaxed), 2, "it was rolled back once");
    assert_eq!(counter("zombies", "overtaken"), 1, "it has lost its lease");
    assert_eq!(counter("requests.created", "overtaken"), 1);
    assert_eq!(counter("requests.completed", "overtaken"), 1);
    log_and_counters_agree("overtaken");
}

/// Its first phase calls another system, so that its row is created by a commit of its own.
#[derive(Clone, Serialize, Deserialize)]
struct CallsFirst {}

#[atomic_phases(name = "calls_first", version = 1, app = App)]
impl<Db: TestDb> CallsFirst {
    #[phase(foreign(idempotent))]
    async fn called(&self, call: ForeignCall) -> PhaseResult<(), ForeignError> {
        call.make(async |_key| Ok::<_, ForeignError>(())).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "answered"))
    }
}

/// By each way in which a row comes to be and ends.
async fn each_way_is_counted_and_logged<S: TestDb>() {
    let _alone = alone().await;
    let (db, app) = (S::fresh().await, App::default());
    let engine = engine_with(&db, &app, |builder| {
        builder.lease(Duration::from_secs(60)).register::<CallsFirst>()
    });
    let (scope, mut sums) = (scope(), [0; 4]);
    // What was counted and logged since the last time: created, completed, and the lines of first and last commits.
    let mut since = |definition: &str, first: &str| {
        let now = [
            counter("requests.created", definition),
            counter("requests.completed", definition),
            SEEN.of(&format!("line: committed {first}")),
            SEEN.of("line: committed finished"),
        ];
        let before = std::mem::replace(&mut sums, now);
        std::array::from_fn::<_, 4, _>(|at| now[at] - before[at])
    };
    let call = async |name: &str, request| engine.call(&scope, &key(name), request).await;

    finished(call("fresh", book(20)).await);
    assert_eq!(since("book", "booked"), [1, 1, 1, 1], "fresh");
    assert!(finished(call("fresh", book(20)).await).replayed);
    assert_eq!(since("book", "booked"), [0, 0, 0, 0], "a replay");
    finished(call("rejected", troubled(Trouble::RejectFirst)).await);
    assert_eq!(since("book", "booked"), [1, 1, 0, 1], "rejected by the first phase");
    log_and_counters_agree_of_all(&["book"]);

    let accepted = engine.call(&scope, &key("accepted"), book(20)).accept().await.unwrap();
    assert!(matches!(accepted, Outcome::Accepted), "{accepted:?}");
    assert_eq!(since("book", "booked"), [1, 0, 0, 0], "accepted");
    assert_eq!(SEEN.of("line: committed started"), 1, "accepted");
    until(async || {
        Completer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
        counter("requests.completed", "book") == 3
    })
    .await;
    assert_eq!(since("book", "booked"), [0, 1, 1, 1], "run by a worker");
    log_and_counters_agree_of_all(&["book"]);

    let before = SEEN.of("line: committed finished");
    let foreign = engine.call(&scope, &key("foreign"), CallsFirst {}).await;
    finished(foreign);
    assert_eq!(counter("requests.created", "calls_first"), 1, "a call first");
    assert_eq!(counter("requests.completed", "calls_first"), 1, "a call first");
    assert_eq!(SEEN.of("line: committed started"), 2, "a call first");
    assert_eq!(SEEN.of("line: committed finished"), before + 1, "a call first");

    let unknown = engine.call(&scope, &key("unknown"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    assert_eq!(counter("requests.created", "notify"), 1, "unknown");
    assert_eq!(counter("outcomes.unknown", "notify"), 1, "unknown");
    log_and_counters_agree_of_all(&["book", "calls_first", "notify"]);
}

/// As [`log_and_counters_agree`], over several definitions, because a line of a commit does not name one.
fn log_and_counters_agree_of_all(definitions: &[&str]) {
    let of_all = |name: &str| definitions.iter().map(|of| counter(name, of)).sum::<u64>();
    assert_eq!(of_all("requests.completed"), SEEN.of("line: committed finished"));
    assert_eq!(of_all("resumes"), SEEN.of("line: resumed"));
    assert_eq!(of_all("outcomes.unknown"), SEEN.of("line: outcome unknown: not repeated"));
}

macro_rules! on_each_store {
    ($($name:ident),*) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn on_sqlite() {
                super::$name::<super::Sqlite>().await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_postgres() {
                super::$name::<super::Postgres>().await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_memory() {
                super::$name::<super::Memory>().await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_mariadb() {
                super::$name::<super::Mysql>().await;
            }
        })*
    };
}

on_each_store! {
    a_request_is_counted_that_its_call_did_not_see_again,
    a_request_is_counted_once_that_was_rolled_back_and_then_lost,
    each_way_is_counted_and_logged
}
