//! What each metric counts; `promtool` accepts the names; and user data creates no series (G19).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::table::{CLOSED, values};
use crate::support::replay_cache::{FakeCache, Manner};
use crate::support::*;
use atomic_phases::config::Limits;
use atomic_phases::engine::CallError;
use atomic_phases::fault::{Mode, explore};
use atomic_phases::ops::{Actor, Permissions, Scopes, What};
use atomic_phases::prelude::*;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, Reaper, Reconciler, WorkerConfig};
use atomic_phases::{Engine, Scope};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};

/// It has nothing to pay for.
#[derive(Serialize, Deserialize)]
struct Gift;

#[atomic_phases(name = "gift", version = 1)]
impl Gift {
    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall) -> PhaseResult<(), ForeignError> {
        let _ = self;
        call.skip();
        Ok(())
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::new(204))
    }
}

/// Requests that succeed and fail, with their jobs and keys.
async fn a_day(rounds: usize) {
    let db = <Sqlite as TestDb>::fresh().await;
    let app = App::new(Provider::that_ignores_keys());
    app.provider.answer_searches();
    let engine = engine(&db, &app);
    for round in 0..rounds {
        let execute = async |name: &str, request: Book| {
            engine.call(&scope(), &key(&format!("{name}-{round}")), request).await.unwrap()
        };
        execute("canary-a", book(20)).await;
        execute("canary-a", book(20)).await;
        execute("canary-a", book(21)).await;
        app.forget_bodies();
        execute("canary-b", troubled(Trouble::RetryLastOnce)).await;
        execute("canary-b", book(20)).await;
        let unknown = notify(Trouble::UnknownForeign);
        engine.call(&scope(), &key(&format!("canary-c-{round}")), unknown).await.unwrap();
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
            cached.call(&scope(), &key(&format!("canary-d-{round}")), request).await.unwrap();
        };
        through(book(20)).await;
        cache.has_written(1).await;
        through(book(20)).await;
        through(book(21)).await;
        cache.becomes(Manner::Unavailable);
        for _ in 0..4 {
            through(book(20)).await;
        }
    }
}

/// The value of each series of an exposition, except for buckets, quantiles and sums, which are times.
fn series(exposition: &str) -> BTreeMap<String, f64> {
    let lines = exposition.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let values = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').expect("a series and its value");
        (series.to_owned(), value.parse().expect("a number"))
    });
    let is_time =
        |series: &str| ["_bucket", "_sum", "quantile="].iter().any(|part| series.contains(part));
    values.filter(|(series, _)| !is_time(series)).collect()
}

/// The complaints of `promtool check metrics` about names, types and texts.
fn lint(exposition: &str) -> String {
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let promtool = promtool.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut checking = promtool.spawn().expect("promtool: `sh tests/run` installs it");
    checking.stdin.take().expect("piped").write_all(exposition.as_bytes()).unwrap();
    let checked = checking.wait_with_output().unwrap();
    let said = [checked.stdout, checked.stderr].concat();
    format!("{}{}", checked.status, String::from_utf8_lossy(&said))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_metric_counts_what_its_name_says() {
    let builder = PrometheusBuilder::new().with_recommended_naming(true);
    let recorder = builder.install_recorder().unwrap();
    a_day(1).await;
    let gifts = Engine::builder(<Sqlite as TestDb>::fresh().await).register::<Gift>();
    finished(gifts.build().unwrap().call(&scope(), &key("gift"), Gift).await);
    let exposition = recorder.render();
    // The names of the literature are fixed; `…_count` is not a proper name for a counter.
    let ours: Vec<&str> = exposition
        .split_inclusive('\n')
        .filter(|line| !line.contains("api_idempotency_"))
        .collect();
    assert_eq!(lint(&ours.concat()), "exit status: 0");
    assert_ne!(lint("# TYPE a_count counter\na_count 1\n"), "exit status: 0", "it finds nothing");

    let seen = series(&exposition);
    let book = r#"definition="book""#;
    let notify = r#"definition="notify""#;
    let expected = [
        (format!(r#"requests_total{{{book},outcome="finished"}}"#), 3.0),
        (format!(r#"requests_total{{{book},outcome="replayed"}}"#), 6.0),
        (format!(r#"requests_total{{{book},outcome="mismatch"}}"#), 2.0),
        (format!(r#"requests_total{{{book},outcome="failed"}}"#), 1.0),
        (format!(r#"requests_total{{{notify},outcome="unknown"}}"#), 1.0),
        (format!("requests_created_total{{{book}}}"), 3.0),
        (format!("requests_created_total{{{notify}}}"), 1.0),
        (format!("requests_completed_total{{{book}}}"), 3.0),
        (format!("requests_completed_total{{{notify}}}"), 1.0),
        (format!("request_attempts_count{{{book}}}"), 3.0),
        (format!("request_duration_seconds_count{{{book}}}"), 3.0),
        (format!("request_age_seconds_count{{{book}}}"), 3.0),
        (format!("request_age_seconds_count{{{notify}}}"), 1.0),
        (format!("resumes_total{{{book}}}"), 1.0),
        (format!("resumes_total{{{notify}}}"), 1.0),
        (format!("outcomes_unknown_total{{{notify}}}"), 1.0),
        (format!(r#"reconciles_total{{{notify},outcome="executed"}}"#), 1.0),
        (r#"jobs_delivered_total{job_name="receipt"}"#.to_owned(), 2.0),
        (r#"jobs_dead_lettered_total{job_name="thanks"}"#.to_owned(), 2.0),
        (r#"job_lag_seconds_count{job_name="receipt"}"#.to_owned(), 2.0),
        ("keys_reaped_total".to_owned(), 3.0),
        (format!(r#"replay_cache_asks_total{{{book},outcome="hit"}}"#), 1.0),
        (format!(r#"replay_cache_asks_total{{{book},outcome="miss"}}"#), 1.0),
        (format!(r#"replay_cache_asks_total{{{book},outcome="unusable"}}"#), 1.0),
        (r#"replay_cache_asks_total{definition="",outcome="failed"}"#.to_owned(), 3.0),
        (r#"replay_cache_asks_total{definition="",outcome="unasked"}"#.to_owned(), 1.0),
        (format!(r#"build_info{{version="{}"}}"#, env!("CARGO_PKG_VERSION")), 1.0),
    ];
    for (name, count) in expected {
        assert_eq!(seen.get(&format!("atomic_phases_{name}")), Some(&count), "{name} {seen:#?}");
    }
    let calls = |outcome: &str| -> f64 {
        let is = |name: &str| name.contains("foreign_calls") && name.contains(outcome);
        seen.iter().filter(|(name, _)| is(name)).map(|(_, count)| count).sum()
    };
    assert_eq!((calls(r#"outcome="ok""#), calls(r#"outcome="unknown""#)), (3.0, 1.0), "{seen:#?}");
    assert_eq!(calls(r#"outcome="skipped""#), 1.0, "{seen:#?}");

    assert!(seen["atomic_phases_pool_wait_seconds_count"] > 30.0, "{seen:#?}");

    // The same by the other names.
    for (name, count) in [
        ("reserve_created", 3.0),
        ("reserve_replay", 6.0),
        ("reserve_key_misuse", 2.0),
        ("reserve_failed_retry", 1.0),
        ("lease_takeover", 1.0),
    ] {
        let name = format!("api_idempotency_{name}_count_total{{{book}}}");
        assert_eq!(seen.get(&name), Some(&count), "{name} {seen:#?}");
    }
    assert_eq!(seen.get("api_idempotency_ttl_pruned_count_total"), Some(&3.0), "{seen:#?}");

    // The census runs with the other workers, and stops with them; then its values are no longer numbers.
    let db = <Sqlite as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    let unknown = crate::support::notify(Trouble::UnknownForeign);
    engine.call(&scope(), &key("canary-e"), unknown).await.unwrap();
    let often = WorkerConfig::default().census_every(Duration::from_millis(20));
    let workers = engine.spawn_workers(often).unwrap();
    let waits = r#"atomic_phases_waiting{definition="notify",held_by="unknown_asked"}"#;
    until(async || series(&recorder.render()).get(waits) == Some(&1.0)).await;
    let seen = series(&recorder.render());
    for worker in ["completer", "reconciler", "census"] {
        let look =
            format!(r#"atomic_phases_worker_last_poll_timestamp_seconds{{worker="{worker}"}}"#);
        until(async || series(&recorder.render()).contains_key(&look)).await;
        let panics = format!(r#"atomic_phases_worker_panics_total{{worker="{worker}"}}"#);
        assert_eq!(seen.get(&panics), Some(&0.0), "a counter that begins at one has no rate");
    }
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    ops.pause("notify", "notified", None, "canary").await.unwrap();
    let pause = ops.pauses().await.unwrap().remove(0).version;
    ops.unpause("notify", "notified", &pause, "canary").await.unwrap();
    assert!(ops.unpause("notify", "notified", &pause, "canary").await.is_err());
    assert!(ops.reveal(uuid::Uuid::nil(), What::Key, "canary").await.is_err());
    let seen = series(&recorder.render());
    for (act, outcome) in [
        ("pause", "applied"),
        ("unpause", "applied"),
        ("unpause", "refused"),
        ("reveal.key", "refused"),
    ] {
        let acts =
            format!(r#"atomic_phases_operator_acts_total{{act="{act}",outcome="{outcome}"}}"#);
        assert_eq!(seen.get(&acts), Some(&1.0), "{acts} {seen:#?}");
    }
    let whole = recorder.render();
    let ours = whole.split_inclusive('\n').filter(|line| !line.contains("api_idempotency_"));
    assert_eq!(lint(&ours.collect::<String>()), "exit status: 0");
    workers.shutdown(Duration::from_secs(30)).await.unwrap();
    assert!(series(&recorder.render())[waits].is_nan());

    // The calls of two scopes have series of their own: of the first two scopes with many duplicates.
    let by_scope = engine_with(&db, &App::default(), |builder| {
        builder.lease(Duration::from_secs(60)).scopes_in_metrics(2)
    });
    let call = async |name: &str| {
        let scope = Scope::new(name).unwrap();
        by_scope.call(&scope, &key("canary-f"), crate::support::book(20)).await.unwrap();
    };
    for round in 0..150 {
        for name in ["canary-busy-1", "canary-busy-2", "canary-busy-3"] {
            call(name).await;
        }
        if round < 40 {
            call(&format!("canary-once-{round}")).await;
        }
    }
    let exposition = recorder.render();
    let of_scopes: BTreeMap<String, f64> = series(&exposition)
        .into_iter()
        .filter(|(name, _)| name.starts_with("atomic_phases_scope_calls"))
        .collect();
    let replayed: Vec<f64> = of_scopes
        .iter()
        .filter(|(name, _)| name.contains("replayed") && !name.contains(r#"scope="other""#))
        .map(|(_, count)| *count)
        .collect();
    // Counted from the hundredth of the 149 on.
    assert_eq!(replayed, [50.0, 50.0], "{of_scopes:#?}");
    assert_eq!(of_scopes.values().sum::<f64>(), 490.0, "{of_scopes:#?}");
    assert!(of_scopes.len() <= 4 * (2 + 1), "{of_scopes:#?}");

    // The chapter has each value that a label had.
    let words = values();
    for name in series(&exposition).keys().filter(|name| name.starts_with("atomic_phases_")) {
        let labels = name.split(['{', ',', '}']).filter_map(|label| label.split_once('='));
        for (label, value) in labels.filter(|(label, _)| CLOSED.contains(label)) {
            let is_of_operators = name.contains("operator_acts");
            let value = value.trim_matches('"');
            assert!(
                is_of_operators || words.contains(value),
                "docs/metrics.md lacks {label} {value}"
            );
        }
    }

    // Other keys, and more of them, create no other series.
    assert!(!exposition.contains("canary"), "{exposition}");
    let names = |exposition: &str| series(exposition).into_keys().collect::<BTreeSet<_>>();
    let before = names(&exposition);
    a_day(3).await;
    assert_eq!(names(&recorder.render()), before);
}

/// Its second serialization panics, when the value is to be stored, and the call's task ends with it.
#[derive(Deserialize)]
struct Panics {}

impl Serialize for Panics {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        static SERIALIZED: AtomicU32 = AtomicU32::new(0);
        assert!(SERIALIZED.fetch_add(1, Ordering::SeqCst) == 0, "asked for");
        to.serialize_str("")
    }
}

#[atomic_phases(name = "book", version = 1)]
impl<Db: TestDb> Panics {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "answered"))
    }
}

/// Each answer of a call is counted once, also if no row was read, and if the caller has gone. The runtime has one
/// thread, so that the recorder is this test's own.
#[tokio::test]
async fn each_answer_is_counted_once() {
    let recorder = PrometheusBuilder::new().with_recommended_naming(true).build_recorder();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let (db, app) = (<Postgres as TestDb>::fresh().await, App::default());
    let limits = Limits::default().context(8);
    let engine = engine_with(&db, &app, |builder| builder.limits(limits).scopes_in_metrics(2));
    let call = |name: &str| engine.call(&scope(), &key(name), book(20));
    finished(call("a").await);
    assert!(matches!(call("b").context(&"too long").await, Err(CallError::TooLarge { .. })));
    let broken = Engine::builder(db.clone()).app(app.clone()).register::<Panics>();
    let broken: TestEngine<Postgres> = broken.scopes_in_metrics(2).build().unwrap();
    let lost = broken.call(&scope(), &key("c"), Panics {}).await;
    assert!(matches!(lost, Err(CallError::TaskLost)), "{lost:?}");
    let others = Engine::builder(db.clone()).app(app.clone()).register::<Notify>();
    let others: TestEngine<Postgres> = others.scopes_in_metrics(2).build().unwrap();
    let refused = others.call(&scope(), &key("d"), book(20)).await;
    assert!(matches!(refused, Err(CallError::NotRegistered { .. })), "{refused:?}");
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    assert!(matches!(call("e").await, Err(CallError::ShuttingDown)));
    assert!(matches!(call("f").accept().await, Err(CallError::ShuttingDown)));

    let seen = series(&recorder.handle().render());
    let told: Vec<(&str, f64)> = seen
        .iter()
        .filter_map(|(name, count)| {
            let of = r#"atomic_phases_requests_total{definition="book",outcome=""#;
            Some((name.strip_prefix(of)?.trim_end_matches(r#""}"#), *count))
        })
        .collect();
    let expected = [
        ("finished", 1.0),
        ("lost", 1.0),
        ("not_registered", 1.0),
        ("refused", 1.0),
        ("shutting_down", 2.0),
    ];
    assert_eq!(told, expected, "{seen:#?}");
    let of_scopes = seen.iter().filter(|(name, _)| name.starts_with("atomic_phases_scope_calls"));
    assert_eq!(of_scopes.map(|(_, count)| count).sum::<f64>(), 6.0, "{seen:#?}");
}

/// Wherever the answer of a commit is lost, or the commit itself: a created request is counted once as created, and
/// a completed one once as completed.
#[tokio::test]
async fn what_is_created_and_completed_is_counted_once_whatever_answer_is_lost() {
    let recorder = PrometheusBuilder::new().with_recommended_naming(true).build_recorder();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let counted = |handle: &PrometheusHandle| {
        let seen = series(&handle.render());
        let of = |name: &str| *seen.get(&format!("{name}{{definition=\"book\"}}")).unwrap_or(&0.0);
        ["requests_created_total", "requests_completed_total", "request_age_seconds_count"]
            .map(|name| of(&format!("atomic_phases_{name}")))
    };
    let (handle, mut cases) = (recorder.handle(), 0);
    for trouble in [Trouble::None, Trouble::RejectFirst] {
        let world = async || {
            let (db, app) = (<Postgres as TestDb>::fresh().await, App::default());
            let engine = engine_with(&db, &app, |builder| {
                let builder = builder.lease(Duration::from_secs(60));
                builder.back_off(Duration::from_millis(1), Duration::from_millis(1))
            });
            (engine, app)
        };
        let handle = handle.clone();
        let report = explore(world, troubled(trouble))
            .modes([Mode::AckLost, Mode::NotSent])
            .check("counted once", async move |_: &App| {
                let [created, completed, aged] = counted(&handle);
                assert_eq!((created, created), (completed, aged), "created, completed");
            })
            .run()
            .await;
        report.assert_ok();
        cases += report.cases();
    }
    assert!(cases > 5, "{cases}");
    // Each case is one request, and each has been run once without a fault.
    assert!(counted(&handle)[0] >= cases as f64, "{:?} of {cases}", counted(&handle));
}
