//! Replays through a real Redis: flushed, full, lying, stopped, killed, or never there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::proxy::{Proxy, proxied};
use crate::support::redis_server::{Redis, Slow};
use crate::support::replay_cache::SECRET;
use crate::support::*;
use atomic_phases::replay_cache::{CachedReplays, RedisReplays};
use atomic_phases::store::Postgres;
use atomic_phases::{Outcome, Reply, Scope};

use redis::aio::MultiplexedConnection;

on_every_store! {
    g8_an_answer_is_read_through_redis_and_ends_there,
    g9_a_redis_that_lies_is_not_believed,
    g17_a_hint_in_redis_ends_and_is_withdrawn,
    a_redis_that_is_full_or_evicts_costs_no_answer,
    g8_an_answer_that_redis_has_evicted_is_read_from_the_row,
    g8_an_answer_that_redis_keeps_too_long_is_not_told,
    g8_an_answer_of_redis_that_comes_late_is_given_to_no_caller,
    g12_a_redis_that_stands_still_dies_and_comes_back_costs_no_answer,
    a_redis_that_is_not_there_is_used_once_it_is,
    a_redis_that_takes_longer_to_connect_to_than_to_ask_is_used,
    an_erasure_reaches_the_primary_after_a_failover_of_redis,
    g16_clients_that_hang_up_do_not_cost_the_others_their_connection,
    an_erasure_reaches_redis,
    an_erasure_reaches_a_redis_that_comes_back,
}

fn through<S: TestDb>(db: &S, app: &App, redis: &Redis) -> TestEngine<S> {
    let replays = CachedReplays::new(RedisReplays::new(&redis.url()).unwrap(), SECRET);
    // A time limit that a slow machine meets, too.
    let replays = replays.time_limit(Duration::from_secs(1));
    engine_with(db, app, |builder| builder.lease(Duration::from_secs(60)).cached_replays(replays))
}

/// A connection of the test's own.
async fn raw(redis: &Redis) -> MultiplexedConnection {
    redis.connection().await
}

async fn command<T: redis::FromRedisValue>(redis: &Redis, words: &[&str]) -> T {
    redis.command(words).await
}

/// The names of the stored answers.
async fn answers(redis: &Redis) -> Vec<String> {
    command(redis, &["KEYS", "atomic-phases:reply:*"]).await
}

async fn has_answers(redis: &Redis, number: usize) {
    until(async || answers(redis).await.len() == number).await;
}

/// The number of reads that found a value.
async fn hits(redis: &Redis) -> u64 {
    redis.hits().await
}

async fn replays<S: TestDb>(engine: &TestEngine<S>, name: &str) -> Reply {
    let told = finished(engine.call(&scope(), &key(name), book(20)).await);
    assert!(told.replayed, "{name}");
    told.reply
}

/// Replays until one is read from Redis; each replay is the same.
async fn is_read_from<S: TestDb>(redis: &Redis, engine: &TestEngine<S>, name: &str) -> Reply {
    let (before, by_row) = (hits(redis).await, replays(engine, name).await);
    until(async || {
        assert_eq!(replays(engine, name).await, by_row);
        hits(redis).await > before + 1
    })
    .await;
    by_row
}

async fn g8_an_answer_is_read_through_redis_and_ends_there<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let (engine, other_node) =
        (through(&db, &app, &redis), through(&db.another().await, &app, &redis));
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    has_answers(&redis, 1).await;
    let name = answers(&redis).await.remove(0);
    let left: i64 = command(&redis, &["PTTL", &name]).await;
    assert!((1..=600_000).contains(&left), "{left} ms");

    for engine in [&engine, &other_node] {
        let again = is_read_from(&redis, engine, "k").await;
        assert_eq!(again, first.reply);
    }
    assert_eq!((app.bodies(), app.provider.effects()), ([1, 1, 1], 1));
}

/// What the engine sends to PostgreSQL for so many replays, one after the other: statements, and
/// round trips. Whatever it sends is at least a round trip, the preparation of a statement, too.
async fn sent_for_replays(
    engine: &TestEngine<Postgres>,
    proxy: &Proxy,
    number: u64,
    reply: &Reply,
) -> (usize, usize) {
    let (statements, trips) = (proxy.statements(), proxy.turns());
    for _ in 0..number {
        assert_eq!(replays(engine, "k").await, *reply);
    }
    (proxy.statements() - statements, proxy.turns() - trips)
}

/// Another node ran the request, so nothing of it is under way on the connections that are counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_redis_answers_sends_nothing_to_postgres() {
    const REPLAYS: u64 = 10;
    let (db, store, proxy) = proxied().await;
    let (app, redis) = (App::default(), Redis::start().await);
    let (other_node, engine) = (through(&db, &app, &redis), through(&store, &app, &redis));
    let first = finished(other_node.call(&scope(), &key("k"), book(20)).await).reply;
    has_answers(&redis, 1).await;
    // For the first one, the engine reads the database's clock, and does so once a minute at most.
    is_read_from(&redis, &engine, "k").await;
    // Round trips are exact where answers are slow.
    proxy.answer_slowly(100);
    let before = hits(&redis).await;
    let sent = sent_for_replays(&engine, &proxy, REPLAYS, &first).await;
    assert_eq!(sent, (0, 0), "statements and round trips of {REPLAYS} replays");
    assert_eq!(hits(&redis).await - before, REPLAYS, "each was read from Redis");

    // The counters see a replay that is read from the row, once its statement is prepared.
    let () = command(&redis, &["FLUSHALL"]).await;
    sent_for_replays(&engine, &proxy, 3, &first).await;
    assert_eq!(sent_for_replays(&engine, &proxy, 1, &first).await, (1, 1), "without an entry");
    assert_eq!((app.bodies(), app.provider.effects()), ([1, 1, 1], 1));
}

async fn g9_a_redis_that_lies_is_not_believed<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let engine = through(&db, &app, &redis);
    // The last has the key and the parameters of the first, in another scope.
    let requests = [
        (scope(), key("one"), 20),
        (scope(), key("two"), 30),
        (Scope::new("tenant-2").unwrap(), key("one"), 20),
    ];
    let mut replies = Vec::new();
    for (scope, key, amount) in &requests {
        replies.push(finished(engine.call(scope, key, book(*amount)).await).reply);
    }
    has_answers(&redis, 3).await;
    let names = answers(&redis).await;
    let mut values: Vec<Vec<u8>> = Vec::new();
    for name in &names {
        values.push(command(&redis, &["GET", name]).await);
    }
    let set = async |at: usize, value: &[u8]| {
        let mut command = redis::cmd("SET");
        let () =
            command.arg(&names[at]).arg(value).query_async(&mut raw(&redis).await).await.unwrap();
    };
    let judged_by_the_row = async |lie: &str| {
        for ((scope, key, amount), reply) in requests.iter().zip(&replies) {
            let again = finished(engine.call(scope, key, book(*amount)).await);
            assert!(again.replayed && again.reply == *reply, "{lie}");
            let other = engine.call(scope, key, book(amount + 10)).await;
            assert!(matches!(other, Ok(Outcome::Mismatch)), "{lie}: {other:?}");
        }
    };
    judged_by_the_row("nothing").await;
    for next in [1, 2] {
        for at in [0, 1, 2] {
            set(at, &values[(at + next) % 3]).await;
        }
        judged_by_the_row("another request's").await;
    }
    for at in [0, 1, 2] {
        let mut other_form = values[at].clone();
        other_form[0] += 1;
        set(at, &other_form).await;
    }
    judged_by_the_row("another form").await;
    for at in [0, 1, 2] {
        set(at, b"{\"status\":200,\"body\":\"made up\"}").await;
    }
    judged_by_the_row("made up").await;
    for name in &names {
        let _: i64 = command(&redis, &["SETRANGE", name, "20000000", "x"]).await;
    }
    judged_by_the_row("huge").await;
    for name in &names {
        let _: i64 = command(&redis, &["DEL", name]).await;
        let _: i64 = command(&redis, &["LPUSH", name, "of another type"]).await;
    }
    judged_by_the_row("of another type").await;
    for at in [0, 1, 2] {
        set(at, &values[at]).await;
    }
    is_read_from(&redis, &engine, "one").await;
    assert_eq!(app.provider.effects(), 3);
}

async fn g17_a_hint_in_redis_ends_and_is_withdrawn<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let replays = CachedReplays::new(RedisReplays::new(&redis.url()).unwrap(), SECRET);
    let replays = replays.time_limit(Duration::from_secs(1));
    let replays = replays.hint_in_progress(Duration::from_secs(5));
    let engine = engine_with(&db, &app, |builder| {
        builder.lease(Duration::from_secs(60)).cached_replays(replays)
    });
    let mut calls = app.provider.stop_before_the_effect();
    let running = tokio::spawn({
        let engine = engine.clone();
        async move { engine.call(&scope(), &key("k"), troubled(Trouble::RetryLastOnce)).await }
    });
    let waiting = calls.recv().await.unwrap();
    app.provider.stop_no_more();
    has_answers(&redis, 1).await;
    let name = answers(&redis).await.remove(0);
    let left: i64 = command(&redis, &["PTTL", &name]).await;
    assert!((1..=5_000).contains(&left), "{left} ms");
    let hint: Vec<u8> = command(&redis, &["GET", &name]).await;
    let again = || engine.call(&scope(), &key("k"), troubled(Trouble::RetryLastOnce));
    let duplicate = again().await;
    assert!(matches!(duplicate, Ok(Outcome::InProgress { .. })), "{duplicate:?}");

    drop(waiting);
    failed(running.await.unwrap());
    has_answers(&redis, 0).await;
    // A Redis that keeps it: the hint ends, and the request continues.
    let set = async |value: &[u8]| {
        let mut command = redis::cmd("SET");
        let () = command.arg(&name).arg(value).query_async(&mut raw(&redis).await).await.unwrap();
    };
    set(&hint).await;
    let began = std::time::Instant::now();
    until(async || {
        let is_late = began.elapsed() > Duration::from_secs(6);
        let told = again().await;
        assert!(!is_late || !matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
        matches!(told, Ok(Outcome::Finished(_)))
    })
    .await;
    assert_eq!(app.provider.effects(), 1);
}

async fn a_redis_that_is_full_or_evicts_costs_no_answer<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let engine = through(&db, &app, &redis);
    for (policy, name) in [("noeviction", "full"), ("allkeys-lru", "evicting")] {
        let () = command(&redis, &["CONFIG", "SET", "maxmemory-policy", policy]).await;
        let () = command(&redis, &["CONFIG", "SET", "maxmemory", "1"]).await;
        for number in 0..10 {
            let name = format!("{name}-{number}");
            assert!(!finished(engine.call(&scope(), &key(&name), book(20)).await).replayed);
            replays(&engine, &name).await;
        }
        assert_eq!(answers(&redis).await.len(), 0);
    }
    assert_eq!(app.provider.effects(), 20);
    let () = command(&redis, &["CONFIG", "SET", "maxmemory", "0"]).await;
    // Its refusals are answers, so the engine queried it all the time.
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    has_answers(&redis, 1).await;
    is_read_from(&redis, &engine, "k").await;
}

async fn g8_an_answer_that_redis_has_evicted_is_read_from_the_row<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let engine = through(&db, &app, &redis);
    let mut first = Vec::new();
    for number in 0..10 {
        let done = engine.call(&scope(), &key(&format!("k{number}")), book(20)).await;
        first.push(finished(done).reply);
    }
    has_answers(&redis, 10).await;
    let () = command(&redis, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let () = command(&redis, &["CONFIG", "SET", "maxmemory", "1"]).await;
    // It makes room when it is asked for something.
    until(async || {
        let _: String = command(&redis, &["PING"]).await;
        redis.stat("evicted_keys").await == 10
    })
    .await;
    for (number, first) in first.iter().enumerate() {
        assert_eq!(replays(&engine, &format!("k{number}")).await, *first);
    }
    assert_eq!(app.provider.effects(), 10);
}

/// As after a restore of an old backup: the value is there again, and has no end.
async fn g8_an_answer_that_redis_keeps_too_long_is_not_told<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let cache = CachedReplays::new(RedisReplays::new(&redis.url()).unwrap(), SECRET);
    let cache = cache.keep_for(Duration::from_secs(3600)).time_limit(Duration::from_secs(1));
    let engine = engine_with(&db, &app, |builder| {
        let builder = builder.lease(Duration::from_secs(3));
        builder.retention(Duration::from_secs(6)).cached_replays(cache)
    });
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    has_answers(&redis, 1).await;
    let name = answers(&redis).await.remove(0);
    let value: Vec<u8> = command(&redis, &["GET", &name]).await;
    let mut set = redis::cmd("SET");
    let () = set.arg(&name).arg(value).query_async(&mut raw(&redis).await).await.unwrap();
    let left: i64 = command(&redis, &["PTTL", &name]).await;
    assert_eq!(left, -1, "it has no end");
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
    assert!(hits(&redis).await > 1, "Redis had it all the time");
    assert_ne!(second.reply, first.reply, "a new request");
    assert_eq!(app.bodies(), [2, 2, 2]);
}

/// Within the limit it is waited for. Past it the row answers, and what comes then is not taken for the answer to what
/// is asked next.
async fn g8_an_answer_of_redis_that_comes_late_is_given_to_no_caller<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let way = Slow::to(&redis).await;
    let with_limit = |limit| {
        let cache = CachedReplays::new(RedisReplays::new(&way.url()).unwrap(), SECRET);
        let cache = cache.time_limit(limit);
        engine_with(&db, &app, |builder| {
            builder.lease(Duration::from_secs(60)).cached_replays(cache)
        })
    };
    let patient = with_limit(Duration::from_secs(1));
    let names = ["one", "two", "three"];
    let mut first = Vec::new();
    for name in names {
        first.push(finished(patient.call(&scope(), &key(name), book(20)).await).reply);
    }
    has_answers(&redis, names.len()).await;
    let asks_for_each = async |engine: &TestEngine<S>| {
        for (name, first) in names.iter().zip(&first) {
            assert_eq!(replays(engine, name).await, *first, "{name}");
        }
    };
    way.answer_slowly(Duration::from_millis(20));
    let before = hits(&redis).await;
    until(async || {
        asks_for_each(&patient).await;
        hits(&redis).await > before + 2
    })
    .await;
    let hurried = with_limit(Duration::from_millis(50));
    way.answer_slowly(Duration::ZERO);
    let is_asked = async || {
        let before = hits(&redis).await;
        until(async || {
            asks_for_each(&hurried).await;
            hits(&redis).await > before
        })
        .await;
    };
    // So that it is connected when each answer takes longer than it waits for one.
    is_asked().await;
    way.answer_slowly(Duration::from_millis(60));
    is_asked().await;
    way.answer_slowly(Duration::ZERO);
    for _ in 0..10 {
        asks_for_each(&hurried).await;
    }
    assert_eq!(app.provider.effects(), names.len());
}

async fn g12_a_redis_that_stands_still_dies_and_comes_back_costs_no_answer<S: TestDb>(db: S) {
    let (app, mut redis) = (App::default(), Redis::start().await);
    let engine = through(&db, &app, &redis);
    let mut effects = 0;
    let mut works = async |when: &str| {
        for number in 0..10 {
            let name = format!("{when}-{number}");
            assert!(!finished(engine.call(&scope(), &key(&name), book(20)).await).replayed);
            replays(&engine, &name).await;
            let other = engine.call(&scope(), &key(&name), book(21)).await;
            assert!(matches!(other, Ok(Outcome::Mismatch)), "{when}: {other:?}");
            effects += 1;
        }
        assert_eq!(app.provider.effects(), effects, "{when}");
    };
    works("well").await;
    has_answers(&redis, 10).await;
    is_read_from(&redis, &engine, "well-0").await;

    redis.signal("STOP");
    works("stopped").await;
    redis.signal("CONT");
    is_read_from(&redis, &engine, "well-1").await;

    let () = command(&redis, &["FLUSHALL"]).await;
    replays(&engine, "well-2").await;
    works("flushed").await;

    redis.kill_9();
    works("killed").await;
    redis.restart();
    works("restarted").await;
    until(async || {
        // A new request, because an answer that was read from the row is not written into the cache.
        let name = format!("back-{}", chrono::Utc::now().timestamp_micros());
        finished(engine.call(&scope(), &key(&name), book(20)).await);
        let before = hits(&redis).await;
        replays(&engine, &name).await;
        hits(&redis).await > before
    })
    .await;
}

async fn a_redis_that_is_not_there_is_used_once_it_is<S: TestDb>(db: S) {
    let (app, mut redis) = (App::default(), Redis::start().await);
    redis.kill_9();
    let engine = through(&db, &app, &redis);
    for name in ["one", "two", "three", "four"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
        replays(&engine, name).await;
    }
    redis.restart();
    until(async || {
        let name = format!("k-{}", chrono::Utc::now().timestamp_micros());
        finished(engine.call(&scope(), &key(&name), book(20)).await);
        !answers(&redis).await.is_empty()
    })
    .await;
}

/// An ask takes a round trip, which is within the limit. The first one takes one more, for the greeting of the
/// connection.
async fn a_redis_that_takes_longer_to_connect_to_than_to_ask_is_used<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let near = through(&db, &app, &redis);
    let in_redis = finished(near.call(&scope(), &key("k"), book(20)).await).reply;
    has_answers(&redis, 1).await;
    // So that the row has another answer.
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    db.sql("DELETE FROM atomic_phases_keys").await;
    let plain = crate::support::engine(&db, &app);
    let in_the_row = finished(plain.call(&scope(), &key("k"), book(20)).await).reply;
    assert_ne!(in_the_row, in_redis);
    let way = Slow::to(&redis).await;
    way.answer_slowly(Duration::from_millis(300));
    let cache = CachedReplays::new(RedisReplays::new(&way.url()).unwrap(), SECRET);
    let cache = cache.time_limit(Duration::from_millis(400));
    let far = engine_with(&db, &app, |builder| {
        builder.lease(Duration::from_secs(60)).cached_replays(cache)
    });
    until(async || replays(&far, "k").await == in_redis).await;
}

/// Redis answers each ask, well within the limit: it is their clients who did not wait for it.
async fn g16_clients_that_hang_up_do_not_cost_the_others_their_connection<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let way = Slow::to(&redis).await;
    let cache = CachedReplays::new(RedisReplays::new(&way.url()).unwrap(), SECRET);
    let cache = cache.time_limit(Duration::from_secs(1));
    let engine = engine_with(&db, &app, |builder| {
        builder.lease(Duration::from_secs(60)).cached_replays(cache)
    });
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    has_answers(&redis, 1).await;
    assert_eq!(way.connections(), 1);
    way.hold_answers(true);
    let mut hung_up = 0;
    for _ in 0..10 {
        let call = engine.call(&scope(), &key("k"), book(20));
        // On a slow machine, the time limit may pass as well, and the row answers.
        let told = tokio::time::timeout(Duration::from_millis(50), call).await;
        hung_up += u32::from(told.is_err());
    }
    assert!(hung_up > 0);
    way.hold_answers(false);
    replays(&engine, "k").await;
    assert!(way.connections() <= 2, "{} connections", way.connections());
}

/// The primary that the engine is connected to is demoted, and stays up: it answers reads, and refuses each write. The
/// name leads to the new one.
async fn an_erasure_reaches_the_primary_after_a_failover_of_redis<S: TestDb>(db: S) {
    let (app, old, new) = (App::default(), Redis::start().await, Redis::start().await);
    let way = Slow::to(&old).await;
    let cache = CachedReplays::new(RedisReplays::new(&way.url()).unwrap(), SECRET);
    let cache = cache.time_limit(Duration::from_secs(1));
    let engine = engine_with(&db, &app, |builder| {
        builder.lease(Duration::from_secs(60)).cached_replays(cache)
    });
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    has_answers(&old, 1).await;
    old.becomes_replica_of(&new).await;
    way.leads_to(&new);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    engine.erase(&scope(), &key("k")).await.unwrap();
    // The engine sends the tombstone again every second until the cache confirms it.
    until(async || {
        let tombstones: Vec<String> = command(&new, &["KEYS", "atomic-phases:erased:*"]).await;
        tombstones.len() == 1
    })
    .await;
}

async fn an_erasure_reaches_redis<S: TestDb>(db: S) {
    let (app, redis) = (App::default(), Redis::start().await);
    let (engine, other_node) =
        (through(&db, &app, &redis), through(&db.another().await, &app, &redis));
    for name in ["k", "l"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    has_answers(&redis, 2).await;
    let is_erased = async |name: &str| {
        for engine in [&engine, &other_node] {
            let told = engine.call(&scope(), &key(name), book(20)).await;
            assert!(matches!(told, Ok(Outcome::Erased)), "{name}: {told:?}");
        }
    };
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    engine.erase(&scope(), &key("k")).await.unwrap();
    is_erased("k").await;
    assert_eq!(answers(&redis).await.len(), 1);
    assert_eq!(engine.erase_scope(&scope()).await.unwrap().erased, 1);
    is_erased("l").await;
    let tombstones: Vec<String> = command(&redis, &["KEYS", "atomic-phases:erased:*"]).await;
    assert_eq!(tombstones.len(), 2);
    for tombstone in tombstones {
        let left: i64 = command(&redis, &["PTTL", &tombstone]).await;
        assert!(left > 600_000, "{left} ms: longer than any answer");
    }
    let () = command(&redis, &["FLUSHALL"]).await;
    is_erased("k").await;
    is_erased("l").await;
    assert_eq!(app.bodies(), [2, 2, 2]);
}

async fn an_erasure_reaches_a_redis_that_comes_back<S: TestDb>(db: S) {
    let (app, mut redis) = (App::default(), Redis::start().await);
    let engine = through(&db, &app, &redis);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    has_answers(&redis, 1).await;
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    redis.kill_9();
    engine.erase(&scope(), &key("k")).await.unwrap();
    // With the answer, which it had written to its disk.
    redis.restart();
    until(async || answers(&redis).await.is_empty()).await;
    let told = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(told, Ok(Outcome::Erased)), "{told:?}");
    assert_eq!(app.bodies(), [1, 1, 1]);
}

/// A server that accepts a client's first commands, and answers the first query with an endless value. It counts
/// the connections that its clients have closed.
async fn endless() -> (u16, Arc<AtomicU32>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let closed = Arc::new(AtomicU32::new(0));
    let count = closed.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let mut said = vec![0; 64 << 10];
                loop {
                    let Ok(length @ 1..) = socket.read(&mut said).await else { return };
                    let said = String::from_utf8_lossy(&said[..length]);
                    if said.contains("GETRANGE") {
                        break;
                    }
                    for _ in 0..said.matches('*').count() {
                        let _ = socket.write_all(b"+OK\r\n").await;
                    }
                }
                let mut written = socket.write_all(b"$2000000000\r\n").await;
                while written.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    written = socket.write_all(&[b'0'; 16 << 10]).await;
                }
                count.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    (port, closed)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_an_end_is_not_taken_in() {
    let (port, closed) = endless().await;
    let db = atomic_phases::store::Sqlite::fresh().await;
    let cache = RedisReplays::new(&format!("redis://127.0.0.1:{port}/")).unwrap();
    let replays = CachedReplays::new(cache, SECRET).time_limit(Duration::from_millis(50));
    let engine = engine_with(&db, &App::default(), |builder| builder.cached_replays(replays));
    // More than one: the circuit breaker pauses in between.
    until(async || {
        finished(engine.call(&scope(), &key("k"), book(20)).await);
        closed.load(Ordering::SeqCst) > 1
    })
    .await;
}
