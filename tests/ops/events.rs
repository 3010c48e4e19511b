//! The request's timeline tells each interruption, and the statement that changes the row writes it.

use std::time::Duration;

use atomic_phases::engine::Resolved;
use atomic_phases::ops::{Details, Event, EventKind, Happened};

use super::cast::*;
use crate::support::work::{completed, dies_in_its_call, reconciled};
use crate::support::*;

on_every_store! {
    g2_a_crash_in_a_call_is_told_from_the_takeover_to_the_reconcile_functions_word,
    g17_failures_are_told_to_the_dead_letter_and_the_operators_word_behind_it,
    g11_a_window_that_has_passed_is_told_as_such,
    a_request_that_runs_through_has_no_event,
    g17_a_row_keeps_the_latest_of_its_events_and_how_many_are_gone,
    what_a_build_before_left_is_told_by_its_row,
    g19_events_are_erased_with_what_they_are_about,
}

async fn shown<S: TestDb>(engine: &TestEngine<S>, name: &str) -> Details {
    let shown = admin(engine).show(id_of(engine, name).await).await.unwrap();
    assert!(shown.timeline.is_sorted_by_key(|happened| happened.at), "{:?}", shown.timeline);
    shown
}

/// The events of a request, in order: kind, attempt, phase, reason.
async fn left<S: TestDb>(
    engine: &TestEngine<S>,
    name: &str,
) -> Vec<(EventKind, u32, Option<String>, Option<String>)> {
    let of = |happened: Happened| match happened.what {
        Event::Left { kind, attempt, phase, reason } => Some((kind, attempt, phase, reason)),
        _ => None,
    };
    shown(engine, name).await.timeline.into_iter().filter_map(of).collect()
}

async fn g2_a_crash_in_a_call_is_told_from_the_takeover_to_the_reconcile_functions_word<
    S: TestDb,
>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    dies_in_its_call(&engine, "k", notify(Trouble::None)).await;
    assert!(left(&engine, "k").await.is_empty(), "it is not known yet");
    db.let_leases_expire().await;
    completed(&engine).await;
    for answers in [false, true] {
        if answers {
            engine.app().provider.answer_searches();
        }
        db.let_time_pass().await;
        reconciled(&engine).await;
    }
    finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
    let told = left(&engine, "k").await;
    use EventKind::{Reconciled, StillUnknown, TakenOver, Unknown};
    let kinds: Vec<_> = told.iter().map(|(kind, attempt, ..)| (*kind, *attempt)).collect();
    let expected = [TakenOver, Unknown, StillUnknown, Reconciled].map(|kind| (kind, 1));
    assert_eq!(kinds, expected, "{told:?}");
    assert!(told.iter().all(|(_, _, phase, _)| phase.as_deref() == Some("notified")), "{told:?}");
    let reasons: Vec<_> = told.iter().map(|it| it.3.as_deref().unwrap_or_default()).collect();
    let call = "its call was under way when the lease ended";
    let lease = "the lease of the last attempt ended before the request did";
    assert_eq!(reasons, [lease, call, call, "executed"]);
    assert_eq!(engine.app().provider.effects(), 1);
}

async fn g17_failures_are_told_to_the_dead_letter_and_the_operators_word_behind_it<S: TestDb>(
    db: S,
) {
    let of_two = |builder: atomic_phases::engine::EngineBuilder<S, App>| {
        builder.lease(Duration::from_secs(60)).max_attempts(2)
    };
    let engine = engine_with(&db, &App::default(), of_two);
    back_off(&engine, "k").await;
    // An impatient client's attempt does not count, and leaves no event.
    back_off(&engine, "k").await;
    db.let_time_pass().await;
    completed(&engine).await;
    let ops = admin(&engine);
    let row = ops.find(&scope(), &key("k")).await.unwrap();
    let retried = ops.retry(row.request_id, &row.version, "provider back").await;
    assert_eq!(retried.unwrap(), Resolved::Applied);
    let told = left(&engine, "k").await;
    let kinds: Vec<_> = told.iter().map(|(kind, attempt, ..)| (*kind, *attempt)).collect();
    use EventKind::{DeadLetter, Released};
    assert_eq!(kinds, [(Released, 1), (DeadLetter, 3), (EventKind::Resolved, 3)], "{told:?}");
    assert!(told[..2].iter().all(|it| it.2.as_deref() == Some("charged")), "{told:?}");
    let reason = |index: usize| told[index].3.clone().unwrap_or_default();
    assert_eq!(reason(1), format!("gave up at the attempt cap: {}", reason(0)));
    assert_eq!(reason(2), "retry");
}

async fn g11_a_window_that_has_passed_is_told_as_such<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    back_off(&engine, "k").await;
    let a_day_ago = match is_postgres::<S>() {
        true => "advanced_at = (SELECT now() - interval '24 hours')",
        false => "advanced_at = advanced_at - 86400000",
    };
    set(&engine, "k", a_day_ago).await;
    unknown_unasked(&engine, "k").await;
    let told = left(&engine, "k").await;
    // The attempt that found this made no call, so the next one has its number.
    let expected = [(EventKind::Released, 1), (EventKind::WindowPassed, 1)];
    assert_eq!(told.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(), expected);
    assert_eq!(told[1].2.as_deref(), Some("charged"));
    assert_eq!(engine.app().provider.calls().len(), 1);
}

async fn a_request_that_runs_through_has_no_event<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    finish(&engine, "book").await;
    finished(engine.call(&scope(), &key("notify"), notify(Trouble::None)).await);
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    assert_eq!(completed(&engine).await.finished, 1);
    let noted = "SELECT count(*) FROM atomic_phases_keys \
        WHERE events IS NOT NULL OR events_written IS NOT NULL";
    assert_eq!(db.number(noted).await, 0);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 3);
}

async fn g17_a_row_keeps_the_latest_of_its_events_and_how_many_are_gone<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    back_off(&engine, "k").await;
    assert_eq!(shown(&engine, "k").await.events_gone, 0);
    let many = format!("events = '{}', events_written = 1000", "x".repeat(3990));
    set(&engine, "k", &many).await;
    db.let_time_pass().await;
    completed(&engine).await;
    assert_eq!(db.number("SELECT length(events) FROM atomic_phases_keys").await, 4000);
    let told = left(&engine, "k").await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].0, told[0].1), (EventKind::Released, 2));
    assert_eq!(shown(&engine, "k").await.events_gone, 1000);
}

/// And if an event has the same time, the timeline tells it once.
async fn what_a_build_before_left_is_told_by_its_row<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    unknown(&engine, "k").await;
    let stops = async || {
        let timeline = shown(&engine, "k").await.timeline;
        let stops = |it: &&Happened| {
            matches!(it.what, Event::Waits { .. } | Event::Left { kind: EventKind::Unknown, .. })
        };
        timeline
            .iter()
            .filter(stops)
            .map(|it| matches!(it.what, Event::Waits { .. }))
            .collect::<Vec<_>>()
    };
    assert_eq!(stops().await, [false]);
    set(&engine, "k", "events = NULL, events_written = NULL").await;
    assert_eq!(stops().await, [true]);
}

async fn g19_events_are_erased_with_what_they_are_about<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    assert_eq!(left(&engine, "k").await.len(), 1);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    engine.erase(&scope(), &key("k")).await.unwrap();
    let noted = "SELECT count(*) FROM atomic_phases_keys \
        WHERE events IS NOT NULL OR events_written IS NOT NULL";
    assert_eq!(db.number(noted).await, 0);
    assert!(left(&engine, "k").await.is_empty());
}
