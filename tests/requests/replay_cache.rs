//! A cache in front of replays that loses, keeps, swaps and forges values: the database decides.

use std::time::Duration;

use crate::support::replay_cache::{FakeCache, Manner, SECRET};
use crate::support::*;
use atomic_phases::engine::{BuildError, CallError, EraseError};
use atomic_phases::replay_cache::CachedReplays;
use atomic_phases::worker::{Completer, WorkerConfig};
use atomic_phases::{Engine, Outcome, Scope};

on_every_store! {
    g8_a_replay_from_the_cache_is_that_of_the_row,
    g9_a_mismatch_is_judged_by_the_row,
    whatever_the_cache_does_each_answer_is_that_of_the_row,
    g16_no_scope_is_told_the_answer_of_another,
    an_answer_ends_with_its_key,
    an_erased_answer_is_told_no_more,
    an_erased_scope_is_told_no_more,
    an_answer_that_comes_late_does_not_outlive_its_erasure,
    an_erasure_that_the_cache_has_lost_is_heard_of_when_the_answer_ends,
    an_erasure_is_repeated_until_the_cache_confirms_it,
    an_erasure_is_seen_to_where_its_caller_goes_away,
    g17_many_erasures_that_the_cache_refuses_do_not_flood_it,
    a_cache_that_does_not_answer_is_left_alone_and_asked_again,
    what_is_not_finished_is_not_in_the_cache,
    a_request_that_a_worker_finishes_is_read_through_the_cache,
    g19_names_and_values_tell_nothing_that_the_row_does_not,
}

fn cached<S: TestDb>(db: &S, app: &App, replays: CachedReplays) -> TestEngine<S> {
    let set_lease = |builder: TestBuilder<S>| builder.lease(Duration::from_secs(60));
    engine_with(db, app, |builder| set_lease(builder).cached_replays(replays))
}

type TestBuilder<S> = atomic_phases::engine::EngineBuilder<S, App>;

#[track_caller]
fn is_erased(outcome: Result<Outcome, CallError>) {
    assert!(matches!(outcome, Ok(Outcome::Erased)), "{outcome:?}");
}

#[track_caller]
fn is_mismatch(outcome: Result<Outcome, CallError>) {
    assert!(matches!(outcome, Ok(Outcome::Mismatch)), "{outcome:?}");
}

/// The rows are deleted without telling the cache: every replay now comes from the cache.
async fn forget_the_rows<S: TestDb>(db: &S) {
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    db.sql("DELETE FROM atomic_phases_keys").await;
}

async fn g8_a_replay_from_the_cache_is_that_of_the_row<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let (through, other_node) =
        (cached(&db, &app, cache.cached()), cached(&db.another().await, &app, cache.cached()));
    let plain = engine(&db, &app);
    let mut told = Vec::new();
    for (name, trouble) in [
        ("done", Trouble::None),
        ("early", Trouble::FinishEarly),
        ("rejected first", Trouble::RejectFirst),
        ("rejected there", Trouble::RejectForeign),
        ("rejected last", Trouble::RejectLast),
    ] {
        let name = name.replace(' ', "-");
        let first = finished(through.call(&scope(), &key(&name), troubled(trouble)).await);
        assert!(!first.replayed);
        cache.has_written(told.len() as u32 + 1).await;
        let by_row = finished(plain.call(&scope(), &key(&name), troubled(trouble)).await);
        told.push((name, trouble, by_row));
    }
    let bodies = app.bodies();
    forget_the_rows(&db).await;
    for (name, trouble, by_row) in told {
        for engine in [&through, &other_node] {
            for _ in 0..2 {
                let again = finished(engine.call(&scope(), &key(&name), troubled(trouble)).await);
                assert!(again.replayed, "{name}");
                assert_eq!(again.reply, by_row.reply, "{name}");
                assert!(again.expires_at <= by_row.expires_at, "{name}: at least as long");
            }
        }
        let accepted = through.call(&scope(), &key(&name), troubled(trouble)).accept().await;
        assert_eq!(finished(accepted).reply, by_row.reply);
    }
    assert_eq!((app.bodies(), app.provider.effects()), (bodies, 3));
}

async fn g9_a_mismatch_is_judged_by_the_row<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    cache.has_written(1).await;
    let found = cache.asked().found;
    is_mismatch(engine.call(&scope(), &key("k"), book(21)).await);
    is_mismatch(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
    is_mismatch(engine.call(&scope(), &key("k"), book(21)).accept().await);
    assert_eq!(cache.asked().found, found + 3, "the cache had an answer, and it was not told");
    assert!(finished(engine.call(&scope(), &key("k"), book(20)).await).replayed);
}

async fn whatever_the_cache_does_each_answer_is_that_of_the_row<S: TestDb>(db: S) {
    let app = App::default();
    for manner in Manner::ALL {
        let cache = FakeCache::default();
        let engine = cached(&db, &app, cache.cached().time_limit(Duration::from_millis(20)));
        let [one, two] = ["one", "two"].map(|name| key(&format!("{manner:?}-{name}")));
        let effects = app.provider.effects();
        let first = finished(engine.call(&scope(), &one, book(20)).await);
        let second = finished(engine.call(&scope(), &two, book(30)).await);
        cache.has_written(2).await;
        cache.becomes(manner);
        for (at, amount, reply) in [(&one, 20, &first.reply), (&two, 30, &second.reply)] {
            let again = finished(engine.call(&scope(), at, book(amount)).await);
            assert!(again.replayed && again.reply == *reply, "{manner:?}");
            is_mismatch(engine.call(&scope(), at, book(amount + 1)).await);
            is_mismatch(engine.call(&scope(), at, notify(Trouble::None)).await);
        }
        // A new request runs, whatever the cache returns for it, and whatever happens to its answer.
        let new = key(&format!("{manner:?}-new"));
        let fresh = finished(engine.call(&scope(), &new, book(40)).await);
        assert!(!fresh.replayed, "{manner:?}");
        let again = finished(engine.call(&scope(), &new, book(40)).await);
        assert!(again.replayed && again.reply == fresh.reply, "{manner:?}");
        assert_eq!(app.provider.effects(), effects + 3, "{manner:?}");
    }
}

async fn g16_no_scope_is_told_the_answer_of_another<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::new(Manner::Swapped));
    let engine = cached(&db, &app, cache.cached());
    // Joined, these scopes and keys are the same text; and their requests are equal.
    let places = [("a:b", "c"), ("a", "b:c"), ("a", "b")];
    let place = |(scope, name)| (Scope::new(scope).unwrap(), key(name));
    let mut replies = Vec::new();
    for at in places {
        let (scope, key) = place(at);
        let first = finished(engine.call(&scope, &key, book(20)).await);
        assert!(!first.replayed);
        replies.push(first.reply);
    }
    cache.has_written(3).await;
    assert_eq!(cache.values().len(), 3);
    for (at, reply) in places.into_iter().zip(replies) {
        let (scope, key) = place(at);
        assert_eq!(finished(engine.call(&scope, &key, book(20)).await).reply, reply);
    }
    assert_eq!(app.provider.effects(), 3);
}

async fn an_answer_ends_with_its_key<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::new(Manner::Stale));
    let replays = cache.cached().keep_for(Duration::from_secs(3600));
    let engine = engine_with(&db, &app, |builder| {
        builder
            .lease(Duration::from_secs(3))
            .retention(Duration::from_secs(6))
            .cached_replays(replays)
    });
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    cache.has_written(1).await;
    let second = answer_within(Duration::from_secs(60), async || {
        let before = chrono::Utc::now();
        let told = finished(engine.call(&scope(), &key("k"), book(20)).await);
        if !told.replayed {
            return Ok(told);
        }
        assert_eq!(told.reply, first.reply);
        assert!(before < told.expires_at, "told at {before}, kept until {}", told.expires_at);
        Err("a replay")
    })
    .await;
    assert!(cache.asked().found > 0, "the cache had it all the time");
    assert_ne!(second.reply, first.reply, "a new request");
    assert_eq!(app.bodies(), [2, 2, 2]);
    // The answer of the key's earlier request is not this one's either.
    let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(again.reply, second.reply);
}

/// A request whose answer is in the cache, and that can be erased.
async fn settled<S: TestDb>(db: &S, engine: &TestEngine<S>, cache: &FakeCache, name: &str) {
    let puts = cache.asked().puts;
    finished(engine.call(&scope(), &key(name), book(20)).await);
    cache.has_written(puts + 1).await;
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
}

async fn an_erased_answer_is_told_no_more<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached());
    let other_node = cached(&db.another().await, &app, cache.cached());
    settled(&db, &engine, &cache, "k").await;
    settled(&db, &engine, &cache, "kept").await;
    for _ in 0..2 {
        engine.erase(&scope(), &key("k")).await.unwrap();
    }
    assert_eq!(cache.values().len(), 1, "its value is gone, and no other");
    let longest = Duration::from_secs(600);
    assert!(cache.tombstones().values().all(|kept| *kept > longest), "longer than any answer");
    for engine in [&engine, &other_node] {
        is_erased(engine.call(&scope(), &key("k"), book(20)).await);
        is_erased(engine.call(&scope(), &key("k"), book(21)).await);
    }
    forget_the_rows(&db).await;
    assert!(finished(engine.call(&scope(), &key("kept"), book(20)).await).replayed);
}

async fn an_erased_scope_is_told_no_more<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached());
    for name in ["k", "l"] {
        settled(&db, &engine, &cache, name).await;
    }
    let neighbour = Scope::new("tenant-2").unwrap();
    finished(engine.call(&neighbour, &key("k"), book(20)).await);
    cache.has_written(3).await;
    assert_eq!(engine.erase_scope(&scope()).await.unwrap().erased, 2);
    for name in ["k", "l"] {
        is_erased(engine.call(&scope(), &key(name), book(20)).await);
    }
    // For a while, the row answers for new requests of the scope.
    finished(engine.call(&scope(), &key("new"), book(20)).await);
    assert!(finished(engine.call(&scope(), &key("new"), book(20)).await).replayed);
    forget_the_rows(&db).await;
    assert!(finished(engine.call(&neighbour, &key("k"), book(20)).await).replayed);
}

/// Read or created before the erasure, and written after it.
async fn an_answer_that_comes_late_does_not_outlive_its_erasure<S: TestDb>(db: S) {
    for whole_scope in [false, true] {
        let (app, cache) = (App::default(), FakeCache::default());
        let engine = cached(&db, &app, cache.cached());
        let mut on_its_way = cache.hold_values_back();
        let name = key(&format!("{whole_scope}"));
        finished(engine.call(&scope(), &name, book(20)).await);
        let value = on_its_way.recv().await.unwrap();
        db.sql("DELETE FROM atomic_phases_staged_jobs").await;
        match whole_scope {
            false => engine.erase(&scope(), &name).await.unwrap(),
            true => assert_eq!(engine.erase_scope(&scope()).await.unwrap().erased, 1),
        }
        // Unless its time limit has passed on a very slow machine.
        if value.send(()).is_ok() {
            cache.has_written(1).await;
            assert_eq!(cache.values().len(), 1);
        }
        is_erased(engine.call(&scope(), &name, book(20)).await);
        assert_eq!(app.bodies(), [1, 1, 1]);
    }
}

async fn an_erasure_that_the_cache_has_lost_is_heard_of_when_the_answer_ends<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached().keep_for(Duration::from_secs(2)));
    settled(&db, &engine, &cache, "k").await;
    cache.becomes(Manner::Stale);
    let began = std::time::Instant::now();
    engine.erase(&scope(), &key("k")).await.unwrap();
    until(async || {
        let late = began.elapsed() > Duration::from_secs(2);
        let told = engine.call(&scope(), &key("k"), book(20)).await;
        assert!(!late || matches!(told, Ok(Outcome::Erased)), "{told:?}");
        matches!(told, Ok(Outcome::Erased))
    })
    .await;
    assert_eq!(cache.values().len(), 1, "the cache has it still");
    assert_eq!(app.bodies(), [1, 1, 1]);
}

async fn an_erasure_is_repeated_until_the_cache_confirms_it<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached());
    settled(&db, &engine, &cache, "k").await;
    cache.becomes(Manner::Unavailable);
    engine.erase(&scope(), &key("k")).await.unwrap();
    let burials = cache.asked().burials;
    cache.becomes(Manner::Honest);
    until(async || !cache.tombstones().is_empty() && cache.values().is_empty()).await;
    assert!(cache.asked().burials > burials);
    is_erased(engine.call(&scope(), &key("k"), book(20)).await);
}

/// As by a bulk erasure while the cache is full, or a replica. Without a row there is nothing to be told: even that
/// costs a tombstone, and is asked for again.
async fn g17_many_erasures_that_the_cache_refuses_do_not_flood_it<S: TestDb>(db: S) {
    const ERASURES: u32 = 200;
    const WATCHED: Duration = Duration::from_secs(3);
    let (app, cache) = (App::default(), FakeCache::new(Manner::Refusing));
    let engine = cached(&db, &app, cache.cached());
    for number in 0..ERASURES {
        let erased = engine.erase(&scope(), &key(&format!("k{number}"))).await;
        assert!(matches!(erased, Err(EraseError::NoSuchKey)), "{erased:?}");
    }
    let before = cache.asked().burials;
    tokio::time::sleep(WATCHED).await;
    let burials = cache.asked().burials - before;
    assert!(burials < ERASURES, "{burials} in {WATCHED:?}, and so on for ten minutes");
}

/// While the cache hangs, the row is erased, and the tombstone is not written yet.
async fn an_erasure_is_seen_to_where_its_caller_goes_away<S: TestDb>(db: S) {
    for whole_scope in [false, true] {
        let (app, cache) = (App::default(), FakeCache::default());
        let engine = cached(&db, &app, cache.cached());
        let plain = crate::support::engine(&db.another().await, &app);
        let name = format!("{whole_scope}");
        settled(&db, &engine, &cache, &name).await;
        cache.becomes(Manner::Hanging);
        let erasing = async {
            match whole_scope {
                false => drop(engine.erase(&scope(), &key(&name)).await),
                true => drop(engine.erase_scope(&scope()).await),
            }
        };
        let row_is_erased = until(async || {
            let told = plain.call(&scope(), &key(&name), book(20)).await;
            matches!(told, Ok(Outcome::Erased))
        });
        tokio::select! {
            () = erasing => {}
            () = row_is_erased => {}
        }
        cache.becomes(Manner::Honest);
        until(async || !cache.tombstones().is_empty()).await;
        is_erased(engine.call(&scope(), &key(&name), book(20)).await);
    }
}

async fn a_cache_that_does_not_answer_is_left_alone_and_asked_again<S: TestDb>(db: S) {
    for manner in [Manner::Hanging, Manner::Unavailable, Manner::Panicking] {
        let (app, cache) = (App::default(), FakeCache::default());
        let limit = Duration::from_millis(20);
        let engine = cached(&db, &app, cache.cached().time_limit(limit));
        let name = key(&format!("{manner:?}"));
        finished(engine.call(&scope(), &name, book(20)).await);
        cache.has_written(1).await;
        cache.becomes(manner);
        let (began, gets) = (std::time::Instant::now(), cache.asked().gets);
        for _ in 0..50 {
            assert!(finished(engine.call(&scope(), &name, book(20)).await).replayed);
        }
        let rests = began.elapsed().as_secs() / 5;
        let asked = u64::from(cache.asked().gets - gets);
        assert!((3..=3 + rests).contains(&asked), "{manner:?}: asked {asked} times");
        cache.becomes(Manner::Honest);
        let found = cache.asked().found;
        until(async || {
            assert!(finished(engine.call(&scope(), &name, book(20)).await).replayed);
            cache.asked().found >= found + 2
        })
        .await;
    }
}

async fn what_is_not_finished_is_not_in_the_cache<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached());
    failed(engine.call(&scope(), &key("failed"), troubled(Trouble::RetryLastOnce)).await);
    let unknown = engine.call(&scope(), &key("unknown"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    // A finished request whose answer was not retained.
    finished(engine.call(&scope(), &key("huge"), troubled(Trouble::HugeReply)).await);
    finished(engine.call(&scope(), &key("done"), book(20)).await);
    cache.has_written(1).await;
    let huge = engine.call(&scope(), &key("huge"), troubled(Trouble::HugeReply)).await;
    assert!(matches!(huge, Ok(Outcome::ReplyNotRetained { .. })), "{huge:?}");
    assert_eq!(cache.values().len(), 1);
    finished(engine.call(&scope(), &key("failed"), troubled(Trouble::RetryLastOnce)).await);
    cache.has_written(2).await;
    assert_eq!(cache.values().len(), 2, "and once it is, it is there");
}

async fn a_request_that_a_worker_finishes_is_read_through_the_cache<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached());
    let accepted = engine.call(&scope(), &key("k"), book(20)).accept().await;
    assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
    Completer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    cache.has_written(1).await;
    forget_the_rows(&db).await;
    assert!(finished(engine.call(&scope(), &key("k"), book(20)).await).replayed);
    assert_eq!(app.provider.effects(), 1);
}

async fn g19_names_and_values_tell_nothing_that_the_row_does_not<S: TestDb>(db: S) {
    let (app, cache) = (App::default(), FakeCache::default());
    let engine = cached(&db, &app, cache.cached());
    let tenant = Scope::new("canary-scope").unwrap();
    let who = Notify { who: "canary-parameter".into(), trouble: Trouble::None.into() };
    finished(engine.call(&tenant, &key("canary-key"), who).await);
    cache.has_written(1).await;
    let values = cache.values();
    assert_eq!(values.len(), 1);
    let shown = format!("{:?} {:?}", cache.cached(), engine);
    let value = values.values().next().unwrap();
    let all = [shown.as_bytes(), values.keys().next().unwrap().as_bytes(), value].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    for secret in ["canary", "v1:", std::str::from_utf8(SECRET).unwrap()] {
        assert!(!all.contains(secret), "{secret} is in {all}");
    }
}

#[tokio::test]
async fn what_cannot_work_is_refused_where_the_engine_is_built() {
    let db = <atomic_phases::store::Sqlite as TestDb>::fresh().await;
    let refused = |replays: CachedReplays| {
        let engine = Engine::builder(db.clone()).app(App::default()).register::<Book>();
        match engine.cached_replays(replays).build() {
            Err(BuildError::Setting(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let cached = || FakeCache::default().cached();
    let short = refused(CachedReplays::new(FakeCache::default(), &SECRET[1..]));
    assert!(short.contains("secret") && short.contains("31") && short.contains("32"), "{short}");
    for too_much in [Duration::ZERO, Duration::from_secs(86_401)] {
        assert!(refused(cached().keep_for(too_much)).contains("CachedReplays::keep_for"));
        assert!(refused(cached().time_limit(too_much)).contains("CachedReplays::time_limit"));
        assert!(
            refused(cached().hint_in_progress(too_much))
                .contains("CachedReplays::hint_in_progress")
        );
    }
}

#[cfg(feature = "encryption")]
#[tokio::test(flavor = "multi_thread")]
async fn values_are_encrypted_as_they_are_in_the_row() {
    use atomic_phases::codec::EncryptingCodec;
    let db = <atomic_phases::store::Sqlite as TestDb>::fresh().await;
    let (app, cache) = (App::default(), FakeCache::default());
    let node = |codec| {
        engine_with(&db, &app, |builder| builder.codec(codec).cached_replays(cache.cached()))
    };
    let (engine, keyless) =
        (node(EncryptingCodec::new(1, &[1; 32])), node(EncryptingCodec::new(2, &[2; 32])));
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    cache.has_written(1).await;
    let value = cache.values().into_values().next().unwrap();
    assert!(!String::from_utf8_lossy(&value).contains("effect-1"));
    assert_eq!(finished(engine.call(&scope(), &key("k"), book(20)).await).reply, first.reply);
    // A node without the key works as without a cache.
    let sealed = keyless.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(sealed, Err(CallError::Unreadable { .. })), "{sealed:?}");
}
