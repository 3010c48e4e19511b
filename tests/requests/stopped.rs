//! A request that stops before its end: past a window or a cap, with an unknown outcome, as a dead letter, or because its
//! node shuts down.

use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::engine::{CallError, FailureCause, Resolution, Resolved};
use atomic_phases::worker::{Reconciler, WorkerConfig};

on_every_store! {
    g11_past_the_window_no_call_is_repeated,
    g17_a_call_that_had_no_effect_is_made_again_after_whatever_time,
    g17_the_attempt_cap_ends_in_a_dead_letter,
    g2_an_at_most_once_call_is_never_made_twice,
    g2_at_the_attempt_cap_too_an_open_intent_is_unknown_and_no_dead_letter,
    g2_what_certainly_did_not_happen_may_be_tried_again,
    unknown_from_an_idempotent_phase_is_left_alone,
    graceful_shutdown_releases_the_row_for_another_node,
    operators_see_why_a_request_stopped,
}

async fn g11_past_the_window_no_call_is_repeated<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    let day_ago = match db.text("SELECT created_at FROM atomic_phases_keys").await.contains('-') {
        true => "(SELECT clock_timestamp() - interval '24 hours')",
        false => "advanced_at - 24 * 3600 * 1000",
    };
    db.sql(&format!("UPDATE atomic_phases_keys SET advanced_at = {day_ago}")).await;
    for _ in 0..2 {
        let outcome = engine.call(&scope(), &key("k"), book(20)).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    assert_eq!(app.provider.calls().len(), 1);
    assert_eq!(db.text("SELECT open_intent FROM atomic_phases_keys").await, "charged");
    // The attempt that found that the window had passed made no call: the last call is the first attempt's.
    let word = Resolution::not_executed("charged", 1);
    let told = engine.resolve(&scope(), &key("k"), word).await;
    assert!(matches!(told, Ok(Resolved::Applied)), "{told:?}");
}

/// The back-off after such a result may be longer than the window. The provider never had the call that it may have
/// forgotten, so the call is made again; but the call of that attempt is not repeated after its own window.
async fn g17_a_call_that_had_no_effect_is_made_again_after_whatever_time<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ask =
        async || engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await;
    failed(ask().await);
    let day_ago = match db.text("SELECT created_at FROM atomic_phases_keys").await.contains('-') {
        true => "(SELECT clock_timestamp() - interval '24 hours')",
        false => "advanced_at - 24 * 3600 * 1000",
    };
    let a_day_passes = async || {
        db.sql(&format!("UPDATE atomic_phases_keys SET advanced_at = {day_ago}")).await;
    };
    for calls in 1..=2 {
        a_day_passes().await;
        let unknown = ask().await;
        assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
        assert_eq!(app.provider.calls().len(), calls, "G11");
        let attempt = engine.status(&scope(), &key("k")).await.unwrap().unwrap().attempt;
        let word = Resolution::not_executed("charged", attempt);
        let told = engine.resolve(&scope(), &key("k"), word).await;
        assert!(matches!(told, Ok(Resolved::Applied)), "{told:?}");
        a_day_passes().await;
        failed(ask().await);
        assert_eq!(app.provider.calls().len(), calls + 1);
    }
}

async fn g17_the_attempt_cap_ends_in_a_dead_letter<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.max_attempts(2));
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await);
    for _ in 0..2 {
        db.let_time_pass().await;
        let outcome = engine.call(&scope(), &key("k"), book(20)).await;
        assert!(matches!(outcome, Ok(Outcome::DeadLetter)), "{outcome:?}");
    }
    assert_eq!(app.bodies()[1], 2);
    let waiting = engine.check().await.unwrap().waiting;
    assert_eq!((waiting.len(), waiting[0].rows), (1, 1), "and it is visible");
    // A take-over that only gives the row up is not an attempt: two attempts were made, and were cut off.
    for _ in 0..2 {
        let mut gate = app.provider.stop_before_the_effect();
        let call = engine.call(&scope(), &key("cut-off"), book(20));
        let call = tokio::spawn(call.__call_in_place());
        let in_the_call = gate.recv().await.unwrap();
        call.abort();
        assert!(call.await.is_err());
        app.provider.stop_no_more();
        drop(in_the_call);
        db.let_time_pass().await;
    }
    let given_up = engine.call(&scope(), &key("cut-off"), book(20)).await;
    assert!(matches!(given_up, Ok(Outcome::DeadLetter)), "{given_up:?}");
    let counted = "SELECT attempts - forgiven_attempts FROM atomic_phases_keys \
                   WHERE idempotency_key = 'cut-off'";
    assert_eq!(db.number(counted).await, 2);
}

async fn g2_an_at_most_once_call_is_never_made_twice<S: TestDb>(db: S) {
    for trouble in [
        Trouble::RetryForeignOnce,
        Trouble::PanicForeignOnce,
        Trouble::UnknownForeign,
        Trouble::HugeOutput,
        // An unstorable reply.
        Trouble::BadStatus,
    ] {
        let app = App::new(Provider::that_ignores_keys());
        let engine = engine(&db, &app);
        let key = key(&format!("{trouble:?}"));
        for _ in 0..3 {
            let outcome = engine.call(&scope(), &key, notify(trouble)).await;
            assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{trouble:?}: {outcome:?}");
        }
        assert_eq!(app.provider.calls().len(), 1, "{trouble:?}");
    }
    // The holder dies during the call: the next one finds its intent.
    let app = App::new(Provider::that_ignores_keys());
    let mut gate = app.provider.stop_after_the_effect();
    let dying = engine(&db, &app);
    let call = tokio::spawn(async move {
        let _ = dying.call(&scope(), &key("dead"), notify(Trouble::None)).__call_in_place().await;
    });
    let waiting = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    drop(waiting);
    app.provider.stop_no_more();
    db.let_leases_expire().await;
    let heir = engine(&db, &app);
    for _ in 0..2 {
        let outcome = heir.call(&scope(), &key("dead"), notify(Trouble::None)).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    assert_eq!(app.provider.effects(), 1);
}

async fn g2_at_the_attempt_cap_too_an_open_intent_is_unknown_and_no_dead_letter<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    app.provider.answer_searches();
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(1));
    crate::support::work::dies_in_its_call(&engine, "k", notify(Trouble::None)).await;
    db.let_leases_expire().await;
    let told = engine.call(&scope(), &key("k"), notify(Trouble::None)).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    db.let_time_pass().await;
    assert_eq!(crate::support::work::reconciled(&engine).await.finished, 1);
    assert_eq!(app.provider.calls().len(), 1);
}

async fn g2_what_certainly_did_not_happen_may_be_tried_again<S: TestDb>(db: S) {
    for trouble in [Trouble::RetryFirst, Trouble::NotExecutedOnce] {
        let app = App::default();
        let engine = engine(&db, &app);
        let key = key(&format!("{trouble:?}"));
        failed(engine.call(&scope(), &key, notify(trouble)).await);
        finished(engine.call(&scope(), &key, notify(trouble)).await);
    }
    let app = App::default();
    let engine = engine(&db, &app);
    let rejected = engine.call(&scope(), &key("r"), notify(Trouble::RejectForeign)).await;
    assert_eq!(finished(rejected).reply.status(), 404);
}

async fn unknown_from_an_idempotent_phase_is_left_alone<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for _ in 0..3 {
        let outcome = engine.call(&scope(), &key("k"), troubled(Trouble::UnknownForeign)).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    assert_eq!(app.provider.calls().len(), 1);
}

async fn graceful_shutdown_releases_the_row_for_another_node<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let leaving = engine(&db, &app);
    let caller = leaving.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    let shutdown = tokio::spawn({
        let leaving = leaving.clone();
        async move { leaving.shutdown(std::time::Duration::from_secs(30)).await }
    });
    // The engine accepts no more work, and waits for its running requests.
    until(async || {
        let other = leaving.call(&scope(), &key("other"), book(20)).await;
        matches!(other, Err(CallError::ShuttingDown))
    })
    .await;
    assert!(!shutdown.is_finished());
    in_the_call.send(()).unwrap();
    assert_eq!(failed(call.await.unwrap()), FailureCause::ShuttingDown);
    shutdown.await.unwrap().unwrap();
    app.provider.stop_no_more();
    // Another node resumes immediately, after the finished phase.
    let staying = engine(&db.another().await, &app);
    finished(staying.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.bodies()[1], 1 + u32::from(app.provider.calls().len() > 1));
    assert_eq!(app.provider.calls().len(), 1);
}

async fn operators_see_why_a_request_stopped<S: TestDb>(db: S) {
    if is_memory::<S>() {
        return;
    }
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(1));
    let generous = engine_with(&db, &app, |builder| builder);
    let standing = async |name: &str| engine.status(&scope(), &key(name)).await.unwrap().unwrap();
    failed(generous.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    let released = standing("k").await;
    assert_eq!(released.reason.as_deref(), Some("asked for"));
    assert_eq!((released.open_intent, released.waiting_since), (None, None));
    finished(generous.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(standing("k").await.reason, None);

    app.forget_bodies();
    failed(generous.call(&scope(), &key("p"), troubled(Trouble::PanicForeignOnce)).await);
    assert_eq!(standing("p").await.reason.as_deref(), Some("the phase panicked"));

    let unknown = engine.call(&scope(), &key("u"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    let waits = standing("u").await;
    assert_eq!(waits.reason.as_deref(), Some("asked for"));
    assert_eq!(waits.open_intent.as_deref(), Some("notified"));
    let since = waits.waiting_since.unwrap();
    // A reconcile function that finds no outcome changes neither why the request waits nor since when.
    db.let_time_pass().await;
    Reconciler::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let waits = standing("u").await;
    assert_eq!(waits.waiting_since, Some(since));
    assert_eq!(waits.reason.as_deref(), Some("asked for"));
    let word = Resolution::not_executed("notified", waits.attempt);
    assert_eq!(engine.resolve(&scope(), &key("u"), word).await.unwrap(), Resolved::Applied);
    assert_eq!(standing("u").await.waiting_since, None);

    let dead = engine.call(&scope(), &key("d"), troubled(Trouble::RetryForeignAlways)).await;
    assert!(matches!(dead, Ok(Outcome::DeadLetter)), "{dead:?}");
    let dead = standing("d").await;
    assert_eq!(dead.reason.as_deref(), Some("gave up at the attempt cap: asked for"));
    assert!(dead.waiting_since.is_some());
    let report = engine.check().await.unwrap();
    let waiting: Vec<_> = report.waiting.iter().map(|rows| (rows.rows, &rows.reason)).collect();
    assert_eq!(waiting, [(1, &dead.reason)]);
}
