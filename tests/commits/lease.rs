//! What a holder may do, and when: it renews its lease, and ends as soon as the key is another's. A process that stands still
//! delays no other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::FailureCause;
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::{
    Batch, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g17_a_commit_is_due_for_the_workers_by_the_end_of_its_lease,
    g3_a_call_ends_as_soon_as_its_holder_hears_that_the_key_is_anothers,
    g3_a_local_phase_ends_as_soon_as_its_holder_hears_that_the_key_is_anothers,
    calls_that_wait_are_answered_by_the_failure_of_the_other,
    g8_a_request_whose_first_phase_outlasts_the_retention_is_replayed,
}

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Serialize, Deserialize)]
pub(super) struct Begun;
#[derive(Serialize, Deserialize)]
pub(super) struct Done;

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
    let engine: TestEngine<S> = builder.lease(ms(1500)).build().unwrap();
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
    let engine: TestEngine<S> = builder.lease(ms(1500)).build().unwrap();
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
            std::thread::sleep(ms(2300));
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
    let engine: TestEngine<S> = builder.lease(ms(2000)).build().unwrap();
    finished(engine.call(&scope(), &key("k"), Blocks).await);
    assert_eq!(app.provider.calls().len(), 1);
    // More often where the machine stands still as well.
    assert!(app.bodies()[1] >= 2, "it has called under a lease that was over");
}

#[tokio::test]
async fn g2_a_thread_that_stood_still_renews_its_lease_before_its_call_on_sqlite() {
    a_thread_that_stood_still_renews_its_lease_before_its_call::<Sqlite>().await;
}

#[tokio::test]
async fn g2_a_thread_that_stood_still_renews_its_lease_before_its_call_on_postgres() {
    a_thread_that_stood_still_renews_its_lease_before_its_call::<Postgres>().await;
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

/// An engine that two runtimes share, one of which is blocked. (A PostgreSQL connection belongs to the runtime that
/// opened it: there each runtime needs a store of its own.)
#[tokio::test(flavor = "multi_thread")]
async fn g10_a_runtime_that_is_blocked_keeps_no_other_from_its_leases() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.lease(ms(2000)));
    let mut gate = app.provider.stop_before_the_effect();
    let (has_begun, begun) = tokio::sync::oneshot::channel::<()>();
    let (is_over, over) = std::sync::mpsc::channel::<()>();
    let halted = {
        let call = engine.call(&scope(), &key("halted"), book(20));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.spawn(call.into_future());
            // Runs the runtime until its request has begun, and then no further.
            let _ = runtime.block_on(begun);
            let _ = over.recv();
            std::mem::forget(runtime);
        })
    };
    let _its_call = gate.recv().await.unwrap();
    has_begun.send(()).unwrap();
    let slow = tokio::spawn(engine.call(&scope(), &key("slow"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    // It is renewed again and again, for longer than it lasts.
    let ends = "SELECT locked_until FROM atomic_phases_keys WHERE idempotency_key = 'slow'";
    for _ in 0..4 {
        let known = db.text(ends).await;
        until(async || db.text(ends).await != known).await;
    }
    app.provider.stop_no_more();
    in_the_call.send(()).unwrap();
    assert!(!finished(slow.await.unwrap()).replayed);
    drop(is_over);
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

/// Two calls, and a commit in between.
#[derive(Clone, Serialize, Deserialize)]
struct CallsTwice;

#[atomic_phases(name = "calls_twice", version = 1)]
impl<Db: TestDb> CallsTwice {
    #[phase(foreign(idempotent), commit)]
    async fn first(&self, call: ForeignCall, app: &App) -> PhaseResult<Begun, ForeignError> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "first").await;
            Ok::<_, ForeignError>(Begun)
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

/// Its only phase takes longer than a finished key is kept.
#[derive(Clone, Serialize, Deserialize)]
struct Outlasts;

#[atomic_phases(name = "outlasts", version = 1)]
impl<Db: TestDb> Outlasts {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "outlasts", "answered").await?;
        tokio::time::sleep(ms(4000)).await;
        Ok(Reply::new(204))
    }
}

/// No heartbeat moves the expiry of a row that is not committed yet. The end of the request does.
async fn g8_a_request_whose_first_phase_outlasts_the_retention_is_replayed<S: TestDb>(db: S) {
    let app = App::default();
    let builder = Engine::builder(db.clone()).app(app).register::<Outlasts>();
    let engine: TestEngine<S> = builder.lease(ms(1000)).retention(ms(3000)).build().unwrap();
    let done = finished(engine.call(&scope(), &key("k"), Outlasts).await);
    let again = finished(engine.call(&scope(), &key("k"), Outlasts).await);
    assert!(again.replayed);
    assert_eq!(again.reply, done.reply);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
    let row = engine.status(&scope(), &key("k")).await.unwrap().unwrap();
    let kept = (done.expires_at - row.created_at).to_std().unwrap();
    assert!(kept >= ms(6900) && done.expires_at <= row.expires_at + ms(100), "{kept:?}, {row:?}");
}

/// The intent's answer takes most of the lease, and no renewal behind it arrives. No call was made, and the holder knows it:
/// the request is released, and not left as one whose call may have been made.
#[cfg(feature = "simulation")]
#[test]
fn g17_a_request_whose_lease_cannot_be_renewed_before_its_call_is_released() {
    use std::sync::atomic::AtomicBool;

    use crate::support::work::status;
    use atomic_phases::simulation::{Cut, Database, Memory, Network, Passage, simulate};
    use atomic_phases::store::Status;

    struct SlowIntent(AtomicBool);

    impl Network for SlowIntent {
        fn passage(&self, what: &'static str) -> Passage {
            match what {
                "renew the lease" => Passage { cut: Some(Cut::Before), ..Passage::default() },
                // Before the connection counts as dead.
                "write the key" if !self.0.swap(true, Ordering::SeqCst) => {
                    Passage { back: ms(11_000), ..Passage::default() }
                }
                _ => Passage::default(),
            }
        }
    }

    let (told, row, calls) = simulate(1, || async {
        let network = SlowIntent(AtomicBool::new(false));
        let db = Memory::connect_through(&Database::default(), network, 16);
        let app = App::new(Provider::that_ignores_keys());
        let engine = engine_with(&db, &app, |builder| builder.lease(ms(15_000)));
        let told = engine.call(&scope(), &key("k"), notify(Trouble::None)).await;
        (told, status(&engine, "k").await, app.provider.calls().len())
    });
    assert!(matches!(failed(told), FailureCause::Database { phase: "notified", .. }));
    assert_eq!((row.status, row.open_intent, calls), (Status::FailedRetryable, None, 0));
}
