//! What is stored for later attempts, and what is in no span.

use atomic_phases::ops::EventKind;
use atomic_phases::traces::LinkKind;
use atomic_phases::worker::Enqueuer;

use crate::seen::{all, at, name, of_key, recording, told, traced};
use crate::support::work::*;
use crate::support::*;

on_every_store! {
    an_engine_without_traces_writes_none_and_leaves_those_of_others,
    a_row_from_before_and_an_unreadable_trace_are_continued,
    g19_no_span_has_a_key_a_scope_or_a_value,
    an_erased_request_has_no_trace,
}

async fn an_engine_without_traces_writes_none_and_leaves_those_of_others<S: TestDb>(db: S) {
    recording();
    let app = App::default();
    let (engine, silent) = (traced(&db, &app), self::engine(&db, &app));
    let names = [name(), name(), name(), name()];
    finished(silent.call(&scope(), &key(&names[0]), book(20)).await);
    finished(
        silent.call(&scope(), &key(&names[1]), Form::SingleStatement.parcel(Trouble::None)).await,
    );
    silent.call(&scope(), &key(&names[2]), book(20)).accept().await.unwrap();
    dies_in_its_call(&silent, &names[3], book(20)).await;
    db.let_leases_expire().await;
    assert_eq!(completed(&silent).await.finished, 2);
    for table in ["keys", "staged_jobs"] {
        let kept = format!("SELECT count(*) FROM atomic_phases_{table} WHERE trace IS NOT NULL");
        assert_eq!(db.number(&kept).await, 0, "{table}");
    }
    assert!(names.iter().all(|name| of_key(name).is_empty()), "a span for a view of traces");
    let tabs = "SELECT count(*) FROM atomic_phases_keys WHERE events LIKE '%00-0%'";
    assert_eq!(db.number(tabs).await, 0);
    // The nodes are restarted one by one: one that does not trace continues what one that traces has begun.
    let name = self::name();
    dies_in_its_call(&engine, &name, book(20)).await;
    db.let_leases_expire().await;
    assert_eq!(completed(&silent).await.finished, 1);
    finished(engine.call(&scope(), &key(&name), book(20)).await);
    let seen = of_key(&name);
    let [one, replay] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(replay.1.links, [(LinkKind::Creation, at(one))]);
    let taken_over = (Some(EventKind::TakenOver), None);
    assert_eq!(told(&engine, &name).await, [(None, Some(at(one))), taken_over]);
}

async fn a_row_from_before_and_an_unreadable_trace_are_continued<S: TestDb>(db: S) {
    let app = App::default();
    let (engine, silent) = (traced(&db, &app), self::engine(&db, &app));
    let name = name();
    dies_in_its_call(&silent, &name, book(20)).await;
    for _ in 0..2 {
        db.let_leases_expire().await;
        dies_in_its_call(&engine, &name, book(20)).await;
    }
    let seen = of_key(&name);
    let [two, three] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(two.1.links, [], "its maker is unknown");
    assert_eq!(three.1.links, [(LinkKind::PreviousAttempt, at(two))]);
    let bytes = if is_postgres::<S>() { "'\\x010203'" } else { "x'010203'" };
    db.sql(&format!("UPDATE atomic_phases_keys SET trace = {bytes}")).await;
    db.let_leases_expire().await;
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.finished, 1);
    assert_eq!(of_key(&name)[2].1.links, []);
}

async fn g19_no_span_has_a_key_a_scope_or_a_value<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    failed(engine.call(&scope(), &key(&name), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key(&name), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key(&name), troubled(Trouble::None)).await);
    let mut enqueuer = Enqueuer::new(&engine, Inbox::default().sink(), config());
    while enqueuer.run_once().await.unwrap().delivered > 0 {}
    let ours = all()
        .into_iter()
        .filter(|(_, seen)| seen.fields.keys().any(|name| name.starts_with("atomic_phases.")));
    let ours: Vec<_> = ours.collect();
    // Three calls and two deliveries.
    assert_eq!(of_key(&name).len(), 5);
    for (_, seen) in ours {
        let whole = format!("{seen:?}");
        assert!(!whole.contains("canary") && !whole.contains("tenant-1"), "{whole}");
    }
}

async fn an_erased_request_has_no_trace<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    finished(engine.call(&scope(), &key(&name), book(20)).await);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    let kept = "SELECT count(*) FROM atomic_phases_keys WHERE trace IS NOT NULL";
    assert_eq!(db.number(kept).await, 1);
    engine.erase(&scope(), &key(&name)).await.unwrap();
    assert_eq!(db.number(kept).await, 0);
}
