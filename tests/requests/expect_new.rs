//! `Call::expect_new`: a hint that saves the read of a key, and never more than a hint.

use std::time::Duration;

use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::config::{OnDuplicate, Quota};
use atomic_phases::engine::CallError;

on_every_store! {
    g10_a_wrong_hint_is_answered_as_no_hint,
    g8_g9_a_wrong_hint_is_answered_by_the_row_also_where_the_first_phase_fails,
    g10_of_many_who_expect_a_new_key_one_runs,
    g16_a_replay_with_the_hint_counts_against_no_quota,
    g12_a_hint_survives_the_death_of_every_connection,
}

/// With a transaction, with statements one by one, and with a single statement.
async fn with_each_form<S: TestDb>(
    engine: &TestEngine<S>,
    name: &str,
    weight: i64,
) -> [Result<Outcome, CallError>; 3] {
    let at = |form: &str| key(&format!("{name}-{form}"));
    let parcel = |form: Form| Parcel { weight, ..form.parcel(Trouble::None) };
    [
        engine.call(&scope(), &at("tx"), book(weight)).expect_new().await,
        engine.call(&scope(), &at("turn"), parcel(Form::OneByOne)).expect_new().await,
        engine.call(&scope(), &at("one"), parcel(Form::SingleStatement)).expect_new().await,
    ]
}

async fn g10_a_wrong_hint_is_answered_as_no_hint<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for outcome in with_each_form(&engine, "k", 20).await {
        assert!(!finished(outcome).replayed);
    }
    let (effects, bodies) = (app.provider.effects(), app.bodies());
    for outcome in with_each_form(&engine, "k", 20).await {
        assert!(finished(outcome).replayed);
    }
    for outcome in with_each_form(&engine, "k", 21).await {
        assert!(matches!(outcome, Ok(Outcome::Mismatch)), "{outcome:?}");
    }
    assert_eq!(app.provider.effects(), effects);
    // A first phase that only computes may have run; no later phase has.
    assert_eq!(app.bodies()[1..], bodies[1..]);

    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    for outcome in with_each_form(&engine, "k", 22).await {
        assert!(!finished(outcome).replayed, "the key's next life");
    }

    let mut gate = app.provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key("held"), book(20)).expect_new();
    let running = tokio::spawn(call.into_future());
    let in_the_call = gate.recv().await.unwrap();
    let second = engine.call(&scope(), &key("held"), book(20)).expect_new().await;
    assert!(matches!(second, Ok(Outcome::InProgress { .. })), "{second:?}");
    in_the_call.send(()).unwrap();
    assert!(!finished(running.await.unwrap()).replayed);
}

/// A finished request does not become failed, and a different request with its key is a mismatch.
async fn g8_g9_a_wrong_hint_is_answered_by_the_row_also_where_the_first_phase_fails<S: TestDb>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    for form in [Form::OneByOne, Form::SingleStatement] {
        let at = key(&format!("{form:?}"));
        let first = finished(engine.call(&scope(), &at, form.parcel(Trouble::None)).await);
        for trouble in [Trouble::RetryFirst, Trouble::PanicFirst] {
            let again = engine.call(&scope(), &at, form.parcel(trouble)).expect_new().await;
            assert_eq!(finished(again).reply, first.reply);
            let another = Parcel { weight: 4, ..form.parcel(trouble) };
            let another = engine.call(&scope(), &at, another).expect_new().await;
            assert!(matches!(another, Ok(Outcome::Mismatch)), "{another:?}");
        }
        let new = key(&format!("new-{form:?}"));
        let failed = engine.call(&scope(), &new, form.parcel(Trouble::RetryFirst)).expect_new();
        assert!(matches!(failed.await, Ok(Outcome::Failed { .. })));
    }
}

async fn g10_of_many_who_expect_a_new_key_one_runs<S: TestDb>(db: S) {
    let app = App::default();
    let engines = [engine(&db, &app), engine(&db.another().await, &app)];
    let forms = [Form::OneByOne, Form::SingleStatement];
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..64 {
        let name = key(&format!("k{}", number % 4));
        let parcel = forms[number % 2].parcel(Trouble::None);
        let call = engines[number / 4 % 2].call(&scope(), &name, parcel).expect_new();
        calls.spawn(call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(20))).into_future());
    }
    let mut first = 0;
    while let Some(outcome) = calls.join_next().await {
        first += u32::from(!finished(outcome.unwrap()).replayed);
    }
    assert_eq!(first, 4);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 4);
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 4);
}

async fn g16_a_replay_with_the_hint_counts_against_no_quota<S: TestDb>(db: S) {
    let app = App::default();
    let quota = Quota::default().rate(1, Duration::from_secs(3600));
    let engine = engine_with(&db, &app, |builder| builder.quota(quota));
    let call = |name| engine.call(&scope(), &key(name), book(20)).expect_new();
    assert!(!finished(call("a").await).replayed);
    assert!(finished(call("a").await).replayed);
    let refused = call("b").await;
    assert!(matches!(refused, Err(CallError::RateExceeded { .. })), "{refused:?}");
}

/// Without the hint, the read of the key would find the dead connection.
async fn g12_a_hint_survives_the_death_of_every_connection<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for outcome in with_each_form(&engine, "before", 20).await {
        finished(outcome);
    }
    for round in 0..3 {
        if is_postgres::<S>() {
            db.another()
                .await
                .sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
                )
                .await;
        }
        for outcome in with_each_form(&engine, &format!("after-{round}"), 20).await {
            assert!(!finished(outcome).replayed);
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 12);
}
