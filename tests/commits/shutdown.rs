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
    g17_a_shutdown_has_a_deadline,
    g17_a_shutdown_uses_up_no_attempt,
    g17_a_shutdown_does_not_end_the_back_off_in_which_a_client_came,
    a_shutdown_does_not_wait_for_calls_that_wait,
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
    assert!(retry_after > Duration::from_secs(400), "{retry_after:?}");
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
