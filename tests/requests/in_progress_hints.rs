//! Hints in the replay cache that a request is in progress: they answer duplicates sooner, and never let a request
//! run.

use std::time::{Duration, Instant};

use crate::support::gate::Waiting;
use crate::support::replay_cache::{FakeCache, Manner};
use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::CallError;
use atomic_phases::replay_cache::CachedReplays;
use tokio::task::JoinHandle;

on_every_store! {
    a_duplicate_is_told_by_the_hint,
    g9_a_mismatch_is_judged_by_the_row_beside_a_hint_too,
    a_call_that_waits_or_accepts_reads_the_row,
    g8_g17_no_hint_is_told_behind_the_end_of_a_request,
    g17_a_hint_that_the_cache_keeps_ends_by_itself,
    g17_a_hint_is_withdrawn_while_many_writes_are_on_their_way,
    an_answer_is_written_behind_the_hint,
    g1_g10_whatever_the_cache_does_with_a_hint_no_request_runs_because_of_it,
}

const LONG: Duration = Duration::from_secs(60);

fn hinting<S: TestDb>(
    db: &S,
    app: &App,
    replays: CachedReplays,
    hint_for: Duration,
) -> TestEngine<S> {
    let replays = replays.hint_in_progress(hint_for);
    engine_with(db, app, |builder| builder.lease(LONG).cached_replays(replays))
}

type Told = Result<Outcome, CallError>;

/// A request whose call is under way.
async fn under_way<S: TestDb>(
    engine: &TestEngine<S>,
    app: &App,
    name: &str,
) -> (JoinHandle<Told>, Waiting) {
    let mut calls = app.provider.stop_before_the_effect();
    let (engine, name) = (engine.clone(), key(name));
    let running = tokio::spawn(async move { engine.call(&scope(), &name, book(20)).await });
    let waiting = calls.recv().await.unwrap();
    app.provider.stop_no_more();
    (running, waiting)
}

#[track_caller]
fn is_in_progress(told: &Told) {
    assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
}

async fn a_duplicate_is_told_by_the_hint<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = hinting(&db, &app, cache.cached(), LONG);
    let other_node = hinting(&db.another().await, &app, cache.cached(), LONG);
    let (running, waiting) = under_way(&engine, &app, "k").await;
    cache.has_written(1).await;
    // A call that read the row now would find none, and run.
    db.sql("DELETE FROM atomic_phases_keys").await;
    for engine in [&engine, &other_node] {
        let told = engine.call(&scope(), &key("k"), book(20)).await;
        is_in_progress(&told);
        let Ok(Outcome::InProgress { retry_after }) = told else { return };
        assert!(retry_after <= LONG, "{retry_after:?}");
    }
    assert_eq!(app.provider.effects(), 0, "the first call waits");
    drop(waiting);
    let lost = running.await.unwrap();
    assert!(matches!(lost, Err(CallError::RowDeleted)), "{lost:?}");
    assert_eq!(app.provider.effects(), 1);
}

async fn g9_a_mismatch_is_judged_by_the_row_beside_a_hint_too<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = hinting(&db, &app, cache.cached(), LONG);
    let (running, waiting) = under_way(&engine, &app, "k").await;
    cache.has_written(1).await;
    let found = cache.asked().found;
    let other = engine.call(&scope(), &key("k"), book(21)).await;
    assert!(matches!(other, Ok(Outcome::Mismatch)), "{other:?}");
    let other = engine.call(&scope(), &key("k"), notify(Trouble::None)).await;
    assert!(matches!(other, Ok(Outcome::Mismatch)), "{other:?}");
    assert_eq!(cache.asked().found, found + 2, "the cache had a hint, which was another request's");
    drop(waiting);
    finished(running.await.unwrap());
}

async fn a_call_that_waits_or_accepts_reads_the_row<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = hinting(&db, &app, cache.cached(), LONG);
    let (running, waiting) = under_way(&engine, &app, "k").await;
    cache.has_written(1).await;
    is_in_progress(&engine.call(&scope(), &key("k"), book(20)).accept().await);
    let found = cache.asked().found;
    let waits = tokio::spawn({
        let engine = engine.clone();
        async move {
            engine.call(&scope(), &key("k"), book(20)).on_duplicate(OnDuplicate::Wait(LONG)).await
        }
    });
    until(async || cache.asked().found > found || waits.is_finished()).await;
    if waits.is_finished() {
        panic!("it waits, whatever the hint says: {:?}", waits.await);
    }
    drop(waiting);
    let first = finished(running.await.unwrap());
    let waited = finished(waits.await.unwrap());
    assert!(waited.replayed && waited.reply == first.reply);
}

async fn g8_g17_no_hint_is_told_behind_the_end_of_a_request<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = hinting(&db, &app, cache.cached(), LONG);
    for (name, trouble) in
        [("last", Trouble::RetryLastOnce), ("foreign", Trouble::RetryForeignOnce)]
    {
        failed(engine.call(&scope(), &key(name), troubled(trouble)).await);
        assert!(cache.values().is_empty(), "{name}: the hint was withdrawn before this was told");
        let done = finished(engine.call(&scope(), &key(name), troubled(trouble)).await);
        assert!(!done.replayed);
        let again = finished(engine.call(&scope(), &key(name), troubled(trouble)).await);
        assert!(again.replayed && again.reply == done.reply);
        app.forget_bodies();
        db.sql("DELETE FROM atomic_phases_staged_jobs").await;
        db.sql("DELETE FROM atomic_phases_keys").await;
        cache.forget();
    }
}

async fn g17_a_hint_that_the_cache_keeps_ends_by_itself<S: TestDb>(db: S) {
    const HINT: Duration = Duration::from_secs(1);
    let (app, cache) = (App::default(), FakeCache::new(Manner::Stale));
    let engine = hinting(&db, &app, cache.cached(), HINT);
    let began = Instant::now();
    let request = || troubled(Trouble::RetryLastOnce);
    failed(engine.call(&scope(), &key("k"), request()).await);
    let hinted = began.elapsed() + HINT;
    until(async || {
        let is_over = began.elapsed() > hinted;
        let told = engine.call(&scope(), &key("k"), request()).await;
        assert!(!is_over || !matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
        matches!(told, Ok(Outcome::Finished(_)))
    })
    .await;
}

/// A call fails while the hints of as many others as may be on their way are.
async fn g17_a_hint_is_withdrawn_while_many_writes_are_on_their_way<S: TestDb>(db: S) {
    const OTHERS: usize = 256;
    /// Not more begin together: on SQLite their first commits wait for one writer.
    const TOGETHER: usize = 32;
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = hinting(&db, &app, cache.cached(), LONG);
    let call = |name: &str, trouble: Trouble| {
        let (engine, name) = (engine.clone(), key(name));
        tokio::spawn(async move { engine.call(&scope(), &name, troubled(trouble)).await })
    };
    let mut calls = app.provider.stop_before_the_effect();
    let failing = call("k", Trouble::RetryLastOnce);
    let waiting = calls.recv().await.unwrap();
    cache.has_written(1).await;

    let mut on_their_way = cache.hold_values_back();
    let (mut others, mut others_wait) = (Vec::new(), Vec::new());
    while others.len() < OTHERS {
        for _ in 0..TOGETHER {
            others.push(call(&format!("k{}", others.len()), Trouble::None));
        }
        for _ in 0..TOGETHER {
            others_wait.push(calls.recv().await.unwrap());
        }
    }
    app.provider.stop_no_more();
    drop(waiting);
    // Its last phase runs behind the withdrawal.
    until(async || app.bodies()[2] == 1).await;
    cache.hold_no_more_back();
    tokio::spawn(async move { while on_their_way.recv().await.is_some() {} });
    failed(failing.await.unwrap());
    let again = engine.call(&scope(), &key("k"), troubled(Trouble::RetryLastOnce)).await;
    assert!(!finished(again).replayed);
    drop(others_wait);
    for other in others {
        finished(other.await.unwrap());
    }
}

async fn an_answer_is_written_behind_the_hint<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = hinting(&db, &app, cache.cached(), LONG);
    let mut on_their_way = cache.hold_values_back();
    let running = tokio::spawn({
        let engine = engine.clone();
        async move { engine.call(&scope(), &key("k"), book(20)).await }
    });
    let hint = on_their_way.recv().await.unwrap();
    until(async || app.bodies() == [1, 1, 1]).await;
    // Unless the engine gave up the hint on a very slow machine.
    assert!(on_their_way.try_recv().is_err() || hint.is_closed(), "the hint was overtaken");
    drop(hint);
    for _ in ["the withdrawal", "the answer"] {
        drop(on_their_way.recv().await.unwrap());
    }
    let first = finished(running.await.unwrap());
    cache.has_written(3).await;
    let found = cache.asked().found;
    let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(again.replayed && again.reply == first.reply);
    assert_eq!(cache.asked().found, found + 1, "by the cache");
}

async fn g1_g10_whatever_the_cache_does_with_a_hint_no_request_runs_because_of_it<S: TestDb>(
    db: S,
) {
    let app = App::default();
    for manner in Manner::ALL {
        let cache = FakeCache::default();
        let replays = cache.cached().time_limit(Duration::from_millis(200));
        let engine = hinting(&db, &app, replays, LONG);
        let (name, effects) = (format!("{manner:?}"), app.provider.effects());
        let (running, waiting) = under_way(&engine, &app, &name).await;
        // The hint of another request, for a cache that swaps values.
        let (other, other_waits) = under_way(&engine, &app, &format!("{manner:?}-other")).await;
        cache.becomes(manner);
        for _ in 0..2 {
            is_in_progress(&engine.call(&scope(), &key(&name), book(20)).await);
            let mismatch = engine.call(&scope(), &key(&name), book(21)).await;
            assert!(matches!(mismatch, Ok(Outcome::Mismatch)), "{manner:?}: {mismatch:?}");
        }
        let new = key(&format!("{manner:?}-new"));
        assert!(!finished(engine.call(&scope(), &new, book(20)).await).replayed, "{manner:?}");
        assert_eq!(app.provider.effects(), effects + 1, "{manner:?}");
        drop((waiting, other_waits));
        let first = finished(running.await.unwrap());
        finished(other.await.unwrap());
        // With a cache that keeps the hint, the answer is *in progress* for a while.
        if manner != Manner::Stale {
            let again = finished(engine.call(&scope(), &key(&name), book(20)).await);
            assert!(again.replayed && again.reply == first.reply, "{manner:?}");
        }
        assert_eq!(app.provider.effects(), effects + 3, "{manner:?}");
    }
}
