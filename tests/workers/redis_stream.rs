//! Staged jobs into a Redis stream: a real server, on a port of its own, killed in the middle.
#![cfg(feature = "redis")]

use std::collections::HashSet;
use std::time::Duration;

use crate::support::redis_server::{Redis, Slow};
use crate::support::*;
use atomic_phases::worker::{Enqueuer, RedisStream, WorkerConfig};

use redis::AsyncCommands;
use redis::streams::StreamRangeReply;

on_every_store! {
    g18_jobs_reach_the_stream_through_a_crash_of_redis,
    g17_a_connection_to_redis_that_died_silently_is_replaced,
    g17_jobs_reach_the_primary_after_a_failover_of_redis,
    g18_a_redis_that_answers_within_the_time_of_a_delivery_gets_each_job_once,
}

async fn g18_jobs_reach_the_stream_through_a_crash_of_redis<S: TestDb>(db: S) {
    let mut redis = Redis::start().await;
    let app = App::default();
    let engine = engine(&db, &app);
    let sink = RedisStream::connect(&redis.url(), "jobs").await.unwrap();
    for length in [0, usize::MAX] {
        let refused = sink.clone().max_length(length).unwrap_err();
        assert_eq!(refused.setting, "RedisStream::max_length", "every job would be dropped");
    }
    let sink = sink.max_length(1000).unwrap();
    let mut enqueuer = Enqueuer::new(&engine, sink, WorkerConfig::default());
    let book_some = async |from: u32| {
        for round in from..from + 5 {
            finished(engine.call(&scope(), &key(&format!("k{round}")), book(20)).await);
        }
    };
    book_some(0).await;
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 5);

    redis.kill_9();
    book_some(5).await;
    let away = enqueuer.run_once().await.unwrap();
    assert_eq!((away.delivered, away.put_back), (0, 10), "they wait in the database");
    redis.restart();
    let mut delivered = 0;
    while delivered < 15 {
        db.let_time_pass().await;
        delivered += enqueuer.run_once().await.unwrap().delivered;
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);

    let mut connection = redis.connection().await;
    let stream: StreamRangeReply = connection.xrange_all("jobs").await.unwrap();
    let field = |at: usize, name: &str| stream.ids[at].get::<String>(name).unwrap();
    let ids: HashSet<String> = (0..stream.ids.len()).map(|at| field(at, "id")).collect();
    assert_eq!(ids.len(), 20, "each at least once");
    for at in 0..stream.ids.len() {
        assert!(["receipt", "thanks"].contains(&field(at, "name").as_str()));
        assert_eq!(field(at, "scope"), "tenant-1");
        serde_json::from_str::<String>(&field(at, "args")).unwrap();
    }
}

/// One of its jobs is delivered in each round, if at all.
async fn deliveries_in_rounds<S: TestDb>(db: &S, enqueuer: &mut Enqueuer<S>, rounds: u32) -> u32 {
    let mut delivered = 0;
    for _ in 0..rounds {
        db.let_time_pass().await;
        delivered += enqueuer.run_once().await.unwrap().delivered;
    }
    delivered
}

/// Its peer is gone, and nothing says so: a host that lost its power, a firewall that forgot the connection. For a
/// new connection, Redis is there.
async fn g17_a_connection_to_redis_that_died_silently_is_replaced<S: TestDb>(db: S) {
    let redis = Redis::start().await;
    let engine = engine(&db, &App::default());
    let way = Slow::to(&redis).await;
    let sink = RedisStream::connect(&way.url(), "jobs").await.unwrap();
    let config = WorkerConfig::default().delivery(Duration::from_secs(3));
    let mut enqueuer = Enqueuer::new(&engine, sink, config);
    finished(engine.call(&scope(), &key("before"), book(20)).await);
    assert!(deliveries_in_rounds(&db, &mut enqueuer, 2).await > 0, "it is connected");

    finished(engine.call(&scope(), &key("k"), book(20)).await);
    // What waits for an answer now waits for ever.
    way.answer_slowly(Duration::from_secs(36_000));
    db.let_time_pass().await;
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 0);
    way.answer_slowly(Duration::ZERO);
    // Ten deliveries, of the twenty after which a job is a dead letter.
    let delivered = deliveries_in_rounds(&db, &mut enqueuer, 10).await;
    assert!(delivered > 0, "a new connection would deliver them immediately");
}

/// The primary that the sink is connected to is demoted, and stays up; the name leads to the new one.
async fn g17_jobs_reach_the_primary_after_a_failover_of_redis<S: TestDb>(db: S) {
    let (old, new) = (Redis::start().await, Redis::start().await);
    let engine = engine(&db, &App::default());
    let way = Slow::to(&old).await;
    let sink = RedisStream::connect(&way.url(), "jobs").await.unwrap();
    let mut enqueuer = Enqueuer::new(&engine, sink, WorkerConfig::default());
    old.becomes_replica_of(&new).await;
    way.leads_to(&new);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    // Ten deliveries, of the twenty after which a job is a dead letter.
    let delivered = deliveries_in_rounds(&db, &mut enqueuer, 10).await;
    assert!(delivered > 0, "it goes on to ask the replica, which refuses");
}

/// `WorkerConfig::delivery` says how long a delivery may take: 40 s here.
async fn g18_a_redis_that_answers_within_the_time_of_a_delivery_gets_each_job_once<S: TestDb>(
    db: S,
) {
    let redis = Redis::start().await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let way = Slow::to(&redis).await;
    let sink = RedisStream::connect(&way.url(), "jobs").await.unwrap();
    let config = WorkerConfig::default().delivery(Duration::from_secs(60));
    let mut enqueuer = Enqueuer::new(&engine, sink, config);
    way.answer_slowly(Duration::from_secs(1));
    let delivered = deliveries_in_rounds(&db, &mut enqueuer, 3).await;
    let mut connection = redis.connection().await;
    let length: u32 = connection.xlen("jobs").await.unwrap();
    assert_eq!((delivered, length), (2, 2), "delivered, and in the stream");
}

/// A hundred jobs, two of each request, which are appended in order: one after the other, they would be a hundred round
/// trips.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_begin_together_are_sent_to_redis_together() {
    const REQUESTS: u32 = 50;
    let (db, redis) = (atomic_phases::store::Sqlite::fresh().await, Redis::start().await);
    let engine = engine(&db, &App::default());
    for number in 0..REQUESTS {
        finished(engine.call(&scope(), &key(&format!("k{number}")), book(20)).await);
    }
    let way = Slow::to(&redis).await;
    let sink = RedisStream::connect(&way.url(), "jobs").await.unwrap();
    // A scope may have half of them.
    let config = WorkerConfig::default().concurrency(4 * REQUESTS as usize);
    let mut enqueuer = Enqueuer::new(&engine, sink, config);
    // What is sent before the first answer arrives is one round trip, on a busy machine too.
    way.answer_slowly(Duration::from_millis(100));
    let before = way.turns();
    let mut delivered = 0;
    while delivered < 2 * REQUESTS {
        delivered += enqueuer.run_once().await.unwrap().delivered;
    }
    let turns = way.turns() - before;
    assert!(turns <= 2 * REQUESTS as usize / 5, "{turns} round trips for {delivered} jobs");
    let mut connection = redis.connection().await;
    let length: u32 = connection.xlen("jobs").await.unwrap();
    assert_eq!(length, 2 * REQUESTS);
}
