//! The counters and histograms, by the names that the crate's front page lists; labelled by definition
//! and never by key (G19).
#![cfg(feature = "metrics")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use atomic_phases::Sqlite;
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, Reaper, Reconciler, WorkerConfig};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use support::replay_cache::{FakeCache, Manner};
use support::*;

#[tokio::test(flavor = "multi_thread")]
async fn each_metric_counts_what_its_name_says() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();

    let db = <Sqlite as TestDb>::fresh().await;
    let app = App::new(Provider::that_ignores_keys());
    app.provider.answer_searches();
    let engine = engine(&db, &app);
    let execute =
        async |name: &str, request: Book| engine.call(&scope(), &key(name), request).await.unwrap();
    execute("canary-a", book(20)).await;
    execute("canary-a", book(20)).await;
    execute("canary-a", book(21)).await;
    app.forget_bodies();
    execute("canary-b", troubled(Trouble::RetryLastOnce)).await;
    execute("canary-b", book(20)).await;
    let unknown = notify(Trouble::UnknownForeign);
    engine.call(&scope(), &key("canary-c"), unknown).await.unwrap();
    db.let_time_pass().await;
    Reconciler::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let jobs = Handlers::new()
        .on("receipt", async |_: String, _| Ok(()))
        .on("thanks", async |_: String, _| Err(DeliveryError::dead("asked for")));
    let mut enqueuer = Enqueuer::new(&engine, jobs, WorkerConfig::default());
    for _ in 0..3 {
        enqueuer.run_once().await.unwrap();
    }
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    Reaper::new(&db, WorkerConfig::default()).run_once().await.unwrap();

    let cache = FakeCache::default();
    let cached = engine_with(&db, &app, |builder| {
        builder.lease(Duration::from_secs(60)).cached_replays(cache.cached())
    });
    let through = async |request: Book| {
        cached.call(&scope(), &key("canary-d"), request).await.unwrap();
    };
    through(book(20)).await;
    cache.has_written(1).await;
    through(book(20)).await;
    through(book(21)).await;
    cache.becomes(Manner::Unavailable);
    for _ in 0..4 {
        through(book(20)).await;
    }

    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for (composite, _, _, value) in snapshotter.snapshot().into_vec() {
        let metric = composite.key();
        for label in metric.labels() {
            assert!(["definition", "phase"].contains(&label.key()), "{label:?}");
            assert!(!label.value().contains("canary"), "{label:?}");
        }
        *seen.entry(metric.name().to_owned()).or_default() += match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(values) => values.len() as u64,
            DebugValue::Gauge(_) => panic!("there is no gauge"),
        };
    }
    let expected: BTreeMap<String, u64> = [
        ("dead_letter.count", 0),
        ("lease.takeover.count", 2),
        // Book three times, with one phase run again; notify, whose call was not run again.
        ("phase.duration.seconds", 3 + 4 + 3 + 3),
        ("reconcile.resolved.count", 1),
        ("reconcile.scheduled.count", 1),
        ("replay_cache.failed.count", 3),
        ("replay_cache.hit.count", 1),
        ("replay_cache.miss.count", 1),
        ("replay_cache.unasked.count", 1),
        ("replay_cache.unusable.count", 1),
        ("reserve.created.count", 4),
        ("reserve.failed_retry.count", 1),
        ("reserve.key_misuse.count", 2),
        ("reserve.replay.count", 6),
        ("reserve.unknown.count", 1),
        ("staged_job.dead_letter.count", 2),
        ("staged_job.lag.seconds", 2),
        ("ttl_pruned.count", 3),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(name, count)| (format!("api.idempotency.{name}"), count))
    .collect();
    assert_eq!(seen, expected);
}
