//! A task with a transaction moves to the thread of an embedded database, and back. Whatever its phase does
//! meanwhile, it behaves as on any store; so tests that need no thread run over every store.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::CallError;
use atomic_phases::phase::ForeignError;
use atomic_phases::store::Sqlite;
use atomic_phases::{
    Batch, Engine, ForeignCall, Outcome, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc, oneshot};

on_every_store! {
    g17_a_phase_that_waits_in_its_transaction_is_waited_for_by_writers_only,
    g13_a_phase_that_is_dropped_in_its_transaction_keeps_nothing,
    g13_a_request_can_be_dropped_at_each_of_its_waits,
    g17_a_phase_that_panics_takes_no_other_along,
    a_phase_in_a_transaction_uses_its_runtime,
}

/// Two local phases; the first one does what the test says.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
enum Visit {
    Passes,
    Waits,
    Spawns,
    Panics,
}

#[derive(Clone)]
struct Inside {
    /// Phases that wait report it, and continue with a permit.
    waits: mpsc::UnboundedSender<()>,
    permits: Arc<Semaphore>,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Left(String);

#[atomic_phases(name = "visit", version = 1, app = Inside)]
impl<Db: TestDb> Visit {
    #[phase]
    async fn entered(
        &self,
        tx: &mut Tx<'_, Db>,
        ctx: &RequestContext,
        inside: &Inside,
    ) -> PhaseResult<Left> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "entered").await?;
        match self {
            Self::Passes => {}
            Self::Waits => {
                inside.waits.send(()).unwrap();
                inside.permits.acquire().await.unwrap().forget();
            }
            Self::Spawns => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                tokio::spawn(tokio::time::sleep(Duration::from_millis(1))).await.unwrap();
                tokio::task::spawn_blocking(|| ()).await.unwrap();
                tokio::task::yield_now().await;
            }
            Self::Panics => panic!("as asked for"),
        }
        Db::insert_step(tx, &ctx.uuid(1).to_string(), "waited").await?;
        Ok(Left(ctx.uuid(1).to_string()))
    }

    #[phase]
    async fn passed(&self, tx: &mut Tx<'_, Db>, left: &Left) -> PhaseResult<Reply> {
        Db::insert_step(tx, &left.0, "passed").await?;
        Ok(Reply::new(204))
    }
}

struct Bench<S: TestDb> {
    db: S,
    engine: Engine<S, Inside>,
    waiting: mpsc::UnboundedReceiver<()>,
    permits: Arc<Semaphore>,
}

type Calling = Pin<Box<dyn Future<Output = Result<Outcome, CallError>> + Send>>;

impl<S: TestDb> Bench<S> {
    fn on(db: S) -> Self {
        let (waits, waiting) = mpsc::unbounded_channel();
        let permits = Arc::new(Semaphore::new(0));
        let app = Inside { waits, permits: permits.clone() };
        let builder = Engine::builder(db.clone()).app(app).lease(Duration::from_secs(60));
        Self { db, engine: builder.register::<Visit>().build().unwrap(), waiting, permits }
    }

    fn call(&self, name: &str, visit: Visit) -> Calling {
        let call = self.engine.call(&scope(), &key(name), visit);
        call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(30))).into_future()
    }

    /// Dropped, it drops the work.
    fn in_place(&self, name: &str, visit: Visit) -> Calling {
        Box::pin(self.engine.call(&scope(), &key(name), visit).__call_in_place())
    }

    async fn steps(&self) -> i64 {
        self.db.number("SELECT count(*) FROM steps").await
    }
}

async fn g17_a_phase_that_waits_in_its_transaction_is_waited_for_by_writers_only<S: TestDb>(db: S) {
    let mut bench = Bench::on(db);
    finished(bench.call("before", Visit::Passes).await);
    let waits = tokio::spawn(bench.call("waits", Visit::Waits));
    bench.waiting.recv().await.unwrap();
    // A replay while the transaction is open; and a writer that comes after it, on a store with one writer.
    assert!(finished(bench.call("before", Visit::Passes).await).replayed);
    let behind = tokio::spawn(bench.call("behind", Visit::Passes));
    bench.permits.add_permits(1);
    for call in [waits, behind] {
        assert!(!finished(call.await.unwrap()).replayed);
    }
    assert_eq!(bench.steps().await, 9);
}

async fn g13_a_phase_that_is_dropped_in_its_transaction_keeps_nothing<S: TestDb>(db: S) {
    let mut bench = Bench::on(db);
    let waits = tokio::spawn(bench.in_place("dropped", Visit::Waits));
    bench.waiting.recv().await.unwrap();
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    let other = bench.call("other", Visit::Passes);
    let other = tokio::time::timeout(Duration::from_secs(60), other).await;
    finished(other.expect("its connection is free"));
    assert_eq!(bench.steps().await, 3, "what it wrote is undone");
    assert!(!finished(bench.call("dropped", Visit::Passes).await).replayed);
    assert_eq!(bench.permits.available_permits(), 0);
}

/// Polls `future` until it has waited this many times, and drops it there. `false`: it ended before.
async fn waits_so_often(future: impl Future, mut times: usize) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(false),
        Poll::Pending if times == 0 => Poll::Ready(true),
        Poll::Pending => {
            times -= 1;
            Poll::Pending
        }
    })
    .await
}

async fn g13_a_request_can_be_dropped_at_each_of_its_waits<S: TestDb>(db: S) {
    let bench = Bench::on(db);
    let (mut times, mut steps) = (0, 0);
    while waits_so_often(bench.in_place(&format!("k{times}"), Visit::Spawns), times).await {
        // The request resumes, or begins, as after a crash there: each step exists once.
        let began = Instant::now();
        loop {
            // A server may commit what it received after the lease was checked.
            bench.db.let_leases_expire().await;
            let call = bench.engine.call(&scope(), &key(&format!("k{times}")), Visit::Spawns);
            let told = call.await;
            match told {
                // A server that is busy with a dropped statement may have no time for the request (503).
                Ok(Outcome::InProgress { .. }) | Err(CallError::Unavailable(_)) => {
                    tokio::task::yield_now().await;
                }
                told => break drop(finished(told)),
            }
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(60), "dropped at wait {times}: {told:?}");
        }
        steps += 3;
        assert_eq!(bench.steps().await, steps, "dropped at wait {times}");
        times += 1;
    }
    assert!(times > 0, "it never waited");
}

async fn g17_a_phase_that_panics_takes_no_other_along<S: TestDb>(db: S) {
    let bench = Bench::on(db);
    failed(bench.call("panics", Visit::Panics).await);
    let calls = ["a", "b", "c"].map(|name| tokio::spawn(bench.call(name, Visit::Passes)));
    for call in calls {
        finished(call.await.unwrap());
    }
    assert_eq!(bench.steps().await, 9);
}

async fn a_phase_in_a_transaction_uses_its_runtime<S: TestDb>(db: S) {
    let bench = Bench::on(db);
    let calls = ["a", "b", "c"].map(|name| tokio::spawn(bench.call(name, Visit::Spawns)));
    for call in calls {
        finished(call.await.unwrap());
    }
    assert_eq!(bench.steps().await, 9);
}

/// Each hand-over wakes two threads, which costs more than the statements of most phases.
#[tokio::test]
async fn a_request_is_handed_to_the_thread_of_sqlite_once_for_all_phases_without_a_wait_between() {
    let bench = Bench::on(Sqlite::fresh().await);
    finished(bench.call("warm", Visit::Passes).await);
    let before = bench.db.__handed_over();
    finished(bench.call("two-phases", Visit::Passes).await);
    assert_eq!(bench.db.__handed_over() - before, 1);

    // A local phase before its foreign one, and one after it.
    let engine = engine(&bench.db, &App::default());
    let before = bench.db.__handed_over();
    finished(engine.call(&scope(), &key("with-a-call"), book(20)).await);
    assert_eq!(bench.db.__handed_over() - before, 2);

    let before = bench.db.__handed_over();
    assert!(finished(engine.call(&scope(), &key("with-a-call"), book(20)).await).replayed);
    assert_eq!(bench.db.__handed_over() - before, 0, "a replay reads on its own thread");
}

fn on_one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A slow statement blocks the connection's thread only.
#[test]
fn a_slow_statement_of_a_phase_does_not_block_a_runtime_of_one_thread() {
    on_one_thread().block_on(async {
        let bench = Bench::on(Sqlite::fresh().await);
        // It returns when a task of the runtime says so.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel::<()>();
        let mut conn = bench.db.connection().await.unwrap();
        let (released, begin) =
            (std::sync::Mutex::new(released), std::sync::Mutex::new(Some(begin)));
        let register = conn.spawn_blocking(move |conn| {
            let conn = conn.sqlite().unwrap();
            blocks_utils::register_nondeterministic_impl(conn, move || {
                if let Some(begin) = begin.lock().unwrap().take() {
                    begin.send(()).unwrap();
                    released.lock().unwrap().recv().unwrap();
                }
                1
            })
        });
        register.await.unwrap();
        drop(conn);
        bench.db.sql("CREATE TRIGGER slow AFTER INSERT ON steps BEGIN SELECT blocks(); END").await;
        let slow = tokio::spawn(bench.call("slow", Visit::Passes));
        begun.await.unwrap();
        release.send(()).unwrap();
        finished(slow.await.unwrap());
    });
}

#[diesel::declare_sql_function]
extern "SQL" {
    fn blocks() -> diesel::sql_types::Integer;
}

#[test]
fn two_runtimes_share_a_connection() {
    let runtimes = [on_one_thread(), Runtime::new().unwrap()];
    let db = runtimes[0].block_on(Sqlite::fresh());
    let bench = Bench::on(db);
    std::thread::scope(|threads| {
        for (number, runtime) in runtimes.iter().enumerate() {
            let bench = &bench;
            threads.spawn(move || {
                runtime.block_on(async move {
                    let calls: Vec<_> = (0..20)
                        .map(|n| bench.call(&format!("{number}-{n}"), Visit::Spawns))
                        .map(tokio::spawn)
                        .collect();
                    for call in calls {
                        assert!(!finished(call.await.unwrap()).replayed);
                    }
                });
            });
        }
    });
    assert_eq!(runtimes[0].block_on(bench.steps()), 120);
}

/// Its task waits on the connection's thread, so that it gets its turn without the runtime.
#[test]
fn g10_a_halted_runtime_whose_phase_waits_for_its_turn_keeps_the_connection_from_no_other() {
    let (halted, alive) = (on_one_thread(), on_one_thread());
    let bench = Bench::on(alive.block_on(Sqlite::fresh()));
    let held = alive.block_on(bench.db.connection()).unwrap();
    let before = bench.db.__handed_over();
    halted.spawn(bench.call("halted", Visit::Passes));
    halted.block_on(until(async || bench.db.__handed_over() != before));
    drop(held);
    finished(alive.block_on(bench.call("alive", Visit::Passes)));
    // And the other request lost nothing.
    assert_eq!(alive.block_on(bench.steps()), 6);
    assert!(finished(alive.block_on(bench.call("halted", Visit::Passes))).replayed);
}

/// What an application panics with on the connection's thread, and panics again where that is dropped.
#[tokio::test]
async fn g17_whatever_panics_on_the_thread_of_sqlite_does_not_end_it() {
    let bench = Bench::on(Sqlite::fresh().await);
    let mut conn = bench.db.connection().await.unwrap();
    let panics = conn.spawn_blocking(|_| -> diesel::QueryResult<()> { panics_twice() });
    assert!(panics.await.is_err());
    drop(conn);
    finished(bench.call("k", Visit::Passes).await);
}

/// A call that is deeper than the stack of a thread by default, which has 2 MiB.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Deep;

#[atomic_phases(name = "deep", version = 1)]
impl Deep {
    #[phase]
    async fn dived(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Sqlite::insert_step(tx, "deep", &dive(None).to_string()).await?;
        Ok(Reply::new(204))
    }
}

/// How often it called itself until it was three MiB deep.
#[inline(never)]
fn dive(from: Option<usize>) -> usize {
    let kilobyte = std::hint::black_box([0_u8; 1 << 10]);
    let here = kilobyte.as_ptr() as usize;
    let from = from.unwrap_or(here);
    if from - here > 3 << 20 { 0 } else { 1 + dive(Some(from)) }
}

#[test]
fn a_phase_on_the_thread_of_sqlite_has_the_stack_of_a_main_thread() {
    let runtime = Builder::new_multi_thread().thread_stack_size(8 << 20).enable_all().build();
    runtime.unwrap().block_on(async {
        let db = Sqlite::fresh().await;
        let engine = Engine::builder(db).register::<Deep>().build().unwrap();
        finished(engine.call(&scope(), &key("k"), Deep).await);
    });
}

/// Whether each phase ran on the connection's thread.
type There = Arc<std::sync::Mutex<Vec<bool>>>;

fn note_thread(there: &There) {
    let is_there = std::thread::current().name() == Some("atomic-phases-sqlite");
    there.lock().unwrap().push(is_there);
}

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct ThereAndBack;

#[derive(serde::Serialize, serde::Deserialize)]
struct Called;

#[derive(serde::Serialize, serde::Deserialize)]
struct Wrote;

#[atomic_phases(name = "there_and_back", version = 1, app = There)]
impl ThereAndBack {
    #[phase(commit)]
    async fn went(&self, tx: &mut Tx<'_, Sqlite>, there: &There) -> PhaseResult<Left> {
        note_thread(there);
        Sqlite::insert_step(tx, "went", "there").await?;
        Ok(Left(String::new()))
    }

    #[phase(foreign(idempotent), commit)]
    async fn called(&self, call: ForeignCall, there: &There) -> PhaseResult<Called, ForeignError> {
        note_thread(there);
        call.make(async |_| Ok::<_, ForeignError>(Called)).await
    }

    #[phase(commit)]
    async fn wrote(&self, tx: &mut Tx<'_, Sqlite>, there: &There) -> PhaseResult<Wrote> {
        note_thread(there);
        Sqlite::insert_step(tx, "wrote", "there").await?;
        Ok(Wrote)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>, there: &There) -> PhaseResult<Reply> {
        note_thread(there);
        Sqlite::add_step(batch, "answered", "here");
        Ok(Reply::new(204))
    }
}

/// A phase that needs no transaction keeps the one writer's thread busy with nothing.
#[tokio::test]
async fn g16_only_a_phase_with_a_transaction_runs_on_the_thread_of_sqlite() {
    let there = There::default();
    let builder = Engine::builder(Sqlite::fresh().await).app(there.clone());
    let engine = builder.register::<ThereAndBack>().build().unwrap();
    finished(engine.call(&scope(), &key("k"), ThereAndBack).await);
    assert_eq!(*there.lock().unwrap(), [true, false, true, false]);
}

/// A phase that keeps its thread until another request of the same database has an answer.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Bridges;

#[atomic_phases(name = "bridges", version = 1, app = Engine<Sqlite, Inside>)]
impl Bridges {
    #[phase]
    async fn bridged(
        &self,
        tx: &mut Tx<'_, Sqlite>,
        inner: &Engine<Sqlite, Inside>,
    ) -> PhaseResult<Reply> {
        Sqlite::insert_step(tx, "bridges", "bridged").await?;
        let called = tokio::task::block_in_place(|| {
            let call = inner.call(&scope(), &key("inner"), Visit::Passes);
            tokio::runtime::Handle::current().block_on(call.into_future())
        });
        assert!(matches!(called, Err(CallError::Unavailable(_))), "{called:?}");
        Ok(Reply::new(204))
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a writer waits for ten seconds"]
async fn g17_a_phase_that_blocks_on_another_request_of_its_database_goes_on() {
    let bench = Bench::on(Sqlite::fresh().await);
    let builder = Engine::builder(bench.db.clone()).app(bench.engine.clone());
    let engine = builder.register::<Bridges>().build().unwrap();
    let call = engine.call(&scope(), &key("k"), Bridges).into_future();
    let told = tokio::time::timeout(Duration::from_secs(120), call).await;
    finished(told.expect("nothing ends it"));
}
