//! Pauses: a foreign phase that an operator has paused is begun by no engine, and what meets the pause waits.

use std::time::Duration;

use atomic_phases::engine::{FailureCause, Resolved};
use atomic_phases::ops::{
    Actor, EndedBy, HeldBy, OperatorStore, OpsError, Permissions, Scopes, State,
};
use atomic_phases::{Outcome, Scope};

use super::cast::*;
use crate::support::*;

on_every_store! {
    g1_g2_a_paused_phase_is_not_begun_and_its_request_waits_uncounted,
    another_engine_hears_of_a_pause_and_of_its_end,
    a_process_that_starts_while_a_phase_is_paused_does_not_begin_it,
    a_pause_ends_by_itself,
    a_call_that_is_under_way_goes_on,
    a_pause_is_of_a_foreign_phase_and_of_every_scope,
}

async fn paused<S: TestDb + OperatorStore>(engine: &TestEngine<S>, (of, phase): (&str, &str)) {
    let done = admin(engine).pause(of, phase, None, "the bank is closed").await;
    assert_eq!(done.unwrap(), Resolved::Applied);
}

async fn g1_g2_a_paused_phase_is_not_begun_and_its_request_waits_uncounted<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    for (definition, phase, name) in [("book", "charged", "k"), ("notify", "notified", "n")] {
        paused(&engine, (definition, phase)).await;
        // More often than the attempt cap, each time past its back-off.
        for _ in 0..25 {
            let (scope, key) = (scope(), key(name));
            let call = match name {
                "k" => engine.call(&scope, &key, book(20)).await,
                _ => engine.call(&scope, &key, notify(Trouble::None)).await,
            };
            let Ok(Outcome::Failed { cause, retry_after }) = call else { panic!("{call:?}") };
            assert_eq!(
                cause,
                FailureCause::Paused { phase: if name == "k" { "charged" } else { "notified" } }
            );
            assert!(retry_after <= Duration::from_secs(30) && !retry_after.is_zero());
            db.let_time_pass().await;
        }
        let found = ops.find(&scope(), &key(name)).await.unwrap();
        assert_eq!((found.state, found.open_intent), (State::Due, None));
        assert_eq!(found.reason.as_deref(), Some("the phase is paused by an operator"));
        let why = ops.why(found.request_id).await.unwrap();
        assert_eq!(
            (why.held_by, why.ended_by, why.until),
            (HeldBy::Paused, EndedBy::Operator, None)
        );
        for says in [phase, "by ada", "the bank is closed", "until an operator ends it"] {
            assert!(why.sentence.contains(says), "{why:?}");
        }
    }
    assert_eq!(app.provider.effects(), 0, "nothing was begun");
    assert_eq!(ops.pauses().await.unwrap().len(), 2);
    assert_eq!(ops.unpause("book", "charged", "it is open").await.unwrap(), Resolved::Applied);
    assert_eq!(ops.unpause("notify", "notified", "it is open").await.unwrap(), Resolved::Applied);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    finished(engine.call(&scope(), &key("n"), notify(Trouble::None)).await);
    assert_eq!(app.provider.effects(), 2);
    let acts = ops.audit(None, None, 10).await.unwrap().rows;
    let told: Vec<_> = acts
        .iter()
        .map(|act| (act.act.as_str(), act.outcome.as_str(), act.phase.as_ref().unwrap().1.as_str()))
        .collect();
    let expected = [
        ("unpause", "applied", "notified"),
        ("unpause", "applied", "charged"),
        ("pause", "applied", "notified"),
        ("pause", "applied", "charged"),
    ];
    assert_eq!(told, expected);
}

async fn another_engine_hears_of_a_pause_and_of_its_end<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let here = engine(&db, &app);
    let often = Duration::from_millis(20);
    let there = engine_with(&db.another().await, &app, |builder| builder.pauses_every(often));
    let begins = async |name: &str| {
        let call = there.call(&scope(), &key(name), book(20)).await;
        match call {
            Ok(Outcome::Finished(_)) => true,
            Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. }) => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(begins("before").await);
    paused(&here, ("book", "charged")).await;
    let mut number = 0;
    while begins(&format!("k-{number}")).await {
        number += 1;
        assert!(number < 1000, "it never hears of it");
    }
    let effects = app.provider.effects();
    assert!(!begins("after").await);
    assert_eq!(app.provider.effects(), effects);
    let _ = admin(&here).unpause("book", "charged", "open").await.unwrap();
    until(async || begins("after").await).await;
    assert_eq!(app.provider.effects(), effects + 1);
}

async fn a_process_that_starts_while_a_phase_is_paused_does_not_begin_it<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    paused(&engine(&db, &app), ("book", "charged")).await;
    let started = engine(&db.another().await, &app);
    let call = started.call(&scope(), &key("k"), book(20)).await;
    assert!(
        matches!(call, Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. })),
        "{call:?}"
    );
    assert_eq!(app.provider.effects(), 0);
}

async fn a_pause_ends_by_itself<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    let second = Some(Duration::from_secs(1));
    let _ = ops.pause("book", "charged", second, "maintenance").await.unwrap();
    let call = engine.call(&scope(), &key("k"), book(20)).await;
    let Ok(Outcome::Failed { retry_after, .. }) = call else { panic!("{call:?}") };
    assert!(retry_after <= Duration::from_secs(1), "no longer than the pause: {retry_after:?}");
    let why = ops.why(id_of(&engine, "k").await).await.unwrap();
    assert!(why.until.is_some(), "{why:?}");
    until(async || {
        matches!(engine.call(&scope(), &key("k"), book(20)).await, Ok(Outcome::Finished(_)))
    })
    .await;
    assert!(ops.pauses().await.unwrap().is_empty());
    assert_eq!(app.provider.effects(), 1);
}

async fn a_call_that_is_under_way_goes_on<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let calling = engine.call(&scope(), &key("k"), book(20)).into_future();
    let calling = tokio::spawn(calling);
    let waiting = gate.recv().await.unwrap();
    paused(&engine, ("book", "charged")).await;
    app.provider.stop_no_more();
    drop(waiting);
    finished(calling.await.unwrap());
    assert_eq!(app.provider.effects(), 1);
}

async fn a_pause_is_of_a_foreign_phase_and_of_every_scope<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    for (definition, phase) in [("book", "booked"), ("book", "gone"), ("gone", "charged")] {
        let refused = ops.pause(definition, phase, None, "r").await;
        assert!(matches!(refused, Err(OpsError::NoSuchPhase)), "{definition} {phase}: {refused:?}");
    }
    let some = [
        Scopes::Only(vec![Scope::new("tenant-1").unwrap()]),
        Scopes::Only(vec![]),
        Scopes::Prefix("tenant".into()),
    ];
    paused(&engine, ("book", "charged")).await;
    for scopes in some {
        let eve = Actor::new("eve", Permissions::admin(), scopes).unwrap();
        let eve = engine.ops(eve);
        let refused = eve.pause("notify", "notified", None, "r").await;
        assert!(matches!(refused, Err(OpsError::NotEveryScope)), "{refused:?}");
        let refused = eve.unpause("book", "charged", "r").await;
        assert!(matches!(refused, Err(OpsError::NotEveryScope)), "{refused:?}");
    }
    // Said again, it is replaced: one pause, with the last word.
    let _ = ops.pause("book", "charged", Some(Duration::from_secs(3600)), "shorter").await.unwrap();
    let pauses = ops.pauses().await.unwrap();
    assert_eq!(pauses.len(), 1);
    assert_eq!((pauses[0].reason.as_str(), pauses[0].paused_by.as_str()), ("shorter", "ada"));
    assert!(pauses[0].ends_at.is_some_and(|ends| ends > pauses[0].paused_at));
    assert_eq!(ops.unpause("book", "charged", "r").await.unwrap(), Resolved::Applied);
    assert_eq!(ops.unpause("book", "charged", "r").await.unwrap(), Resolved::Already);
    let refused = ops.audit(None, None, 100).await.unwrap().rows;
    assert_eq!(refused.iter().filter(|act| act.outcome == "refused").count(), 3 + 6);
}
