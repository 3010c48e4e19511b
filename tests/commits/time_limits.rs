//! Phases that never end by themselves, and calls that outlive theirs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lease::{Begun, Done, ms};
use crate::support::*;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::{Engine, ForeignCall, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

on_every_store! {
    g2_a_call_that_outlives_its_phase_is_under_way_and_can_begin_no_more,
    g17_a_phase_that_ends_before_its_call_began_is_tried_again,
    g17_a_call_that_hangs_ends_with_its_phases_time_limit,
    g17_a_local_phase_may_have_a_time_limit,
    g17_a_local_phase_that_never_waits_has_its_time_limit,
    g2_an_unknown_call_rests_for_its_time_limit_at_least,
    g2_a_call_that_is_made_in_a_task_ends_with_its_phase,
    g13_a_call_that_is_made_in_a_task_ends_with_a_request_that_is_dropped,
    g2_a_call_in_a_task_ends_with_a_phase_that_panics_as_it_is_dropped,
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

/// A first phase that never ends by itself.
#[derive(Clone, Serialize, Deserialize)]
struct SleepsFirst;

#[atomic_phases(name = "sleeps_first", version = 1)]
impl<Db: TestDb> SleepsFirst {
    #[phase(timeout = "50ms")]
    async fn begun(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "sleeps", "begun").await?;
        std::future::pending().await
    }
}

/// A last phase that never ends by itself, behind one that has time.
#[derive(Clone, Serialize, Deserialize)]
struct SleepsLast;

#[atomic_phases(name = "sleeps_last", version = 1)]
impl<Db: TestDb> SleepsLast {
    #[phase(timeout = "1m")]
    async fn begun(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Begun> {
        Db::insert_step(tx, "sleeps", "begun").await?;
        Ok(Begun)
    }

    #[phase(timeout = "50ms")]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "sleeps", "answered").await?;
        std::future::pending().await
    }
}

async fn g17_a_local_phase_may_have_a_time_limit<S: TestDb>(db: S) {
    let builder = Engine::builder(db.clone()).register::<SleepsFirst>().register::<SleepsLast>();
    let engine = builder.build().unwrap();
    let first = engine.call(&scope(), &key("a"), SleepsFirst).await;
    is_timed_out(&db, first, "begun", 0).await;
    let last = engine.call(&scope(), &key("b"), SleepsLast).await;
    is_timed_out(&db, last, "answered", 1).await;
}

/// The time limit of this phase has passed, and what it wrote is undone: so many steps are left.
async fn is_timed_out<S: TestDb>(
    db: &S,
    told: Result<Outcome, CallError>,
    phase: &'static str,
    steps: i64,
) {
    assert_eq!(failed(told), FailureCause::TimeLimit { phase, limit: ms(50) });
    assert_eq!(db.number("SELECT count(*) FROM steps").await, steps, "{phase}");
}

/// A call that a task makes, as in code that shields the call from the end of the phase.
#[derive(Clone, Serialize, Deserialize)]
struct Shields {
    panics: bool,
}

/// Panics as it is dropped, if it is to: a value of the application's, or of a library's.
struct PanicsInDrop(bool);

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        assert!(!self.0, "asked for");
    }
}

#[atomic_phases(name = "shields", version = 1)]
impl<Db: TestDb> Shields {
    #[phase(foreign(at_most_once), timeout = "3s")]
    async fn sent(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        let _value = PanicsInDrop(self.panics);
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
    let told = engine.call(&scope(), &key("k"), Shields { panics: false }).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    let waiting = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    until(async || waiting.is_closed()).await;
    assert_eq!(app.provider.effects(), 0, "the task's call was dropped");
}

/// As in a crash, with which the task would be gone, too.
async fn g13_a_call_that_is_made_in_a_task_ends_with_a_request_that_is_dropped<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Shields>().build().unwrap();
    let mut gate = app.provider.stop_before_the_effect();
    let call = engine.call(&scope(), &key("k"), Shields { panics: false });
    let call = tokio::spawn(call.__call_in_place());
    let waiting = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    app.provider.stop_no_more();
    until(async || waiting.is_closed()).await;
    assert_eq!(app.provider.effects(), 0, "the task's call was dropped");
}

/// The time limit drops the body, and the panic ends the request's task.
async fn g2_a_call_in_a_task_ends_with_a_phase_that_panics_as_it_is_dropped<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Shields>().build().unwrap();
    let mut gate = app.provider.stop_before_the_effect();
    let told = engine.call(&scope(), &key("k"), Shields { panics: true }).await;
    assert!(matches!(told, Err(CallError::TaskLost)), "{told:?}");
    let waiting = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    until(async || waiting.is_closed()).await;
    assert_eq!(app.provider.effects(), 0, "the task's call was dropped");
}

/// A first phase that keeps its thread busy, and so cannot be interrupted.
#[derive(Clone, Serialize, Deserialize)]
struct ComputesFirst;

#[atomic_phases(name = "computes_first", version = 1)]
impl<Db: TestDb> ComputesFirst {
    #[phase(timeout = "50ms")]
    async fn begun(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "computes", "begun").await?;
        std::thread::sleep(ms(100));
        Ok(Reply::new(204))
    }
}

/// The same of a last phase, behind one that has time.
#[derive(Clone, Serialize, Deserialize)]
struct ComputesLast;

#[atomic_phases(name = "computes_last", version = 1)]
impl<Db: TestDb> ComputesLast {
    #[phase(timeout = "1m")]
    async fn begun(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Begun> {
        Db::insert_step(tx, "computes", "begun").await?;
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
    let builder = Engine::builder(db.clone()).register::<ComputesFirst>();
    let engine = builder.register::<ComputesLast>().build().unwrap();
    let first = engine.call(&scope(), &key("a"), ComputesFirst).await;
    is_timed_out(&db, first, "begun", 0).await;
    let last = engine.call(&scope(), &key("b"), ComputesLast).await;
    is_timed_out(&db, last, "answered", 1).await;
}
