//! An engine, or its workers, that shut down: within a bound, and at no request's expense.

use std::time::Duration;

use super::lease::ms;
use crate::support::work::*;
use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::FailureCause;
use atomic_phases::store::Status;
use atomic_phases::worker::Sweep;

on_every_store! {
    g17_a_commit_is_due_for_the_workers_by_the_end_of_its_lease,
    g17_a_shutdown_has_a_deadline,
    g17_a_shutdown_uses_up_no_attempt,
    g17_a_shutdown_does_not_end_the_back_off_in_which_a_client_came,
    a_shutdown_does_not_wait_for_calls_that_wait,
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
