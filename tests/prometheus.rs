//! A real Prometheus, with the alert rules of `monitoring/`, scrapes a process until alerts fire, and until they end.
//! Alone, because a process has one recorder. Where Prometheus is not installed, it says so.
#![cfg(feature = "metrics")]

mod support;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atomic_phases::ops::{Actor, Filter, Permissions, Scopes, State};
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, WorkerConfig};
use atomic_phases::{Outcome, Sqlite};
use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use support::*;

/// Ended with the test.
struct Prometheus {
    process: Child,
    url: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The rules as they are, but for how long something has to be so before somebody is called.
fn impatient_rules() -> String {
    let rules = include_str!("../monitoring/alerts.yml");
    let impatient = rules.lines().map(|line| match line.trim_start().starts_with("for: ") {
        true => "        for: 0s",
        // Of an unknown outcome: a quarter of an hour.
        false => line,
    });
    impatient.collect::<Vec<_>>().join("\n").replace("> 900", "> 0")
}

impl Prometheus {
    fn start(folder: &Path, target: &str) -> Option<Self> {
        std::fs::write(folder.join("alerts.yml"), impatient_rules()).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 250ms, evaluation_interval: 250ms }}\n\
             rule_files: [alerts.yml]\n\
             scrape_configs:\n  - job_name: rides\n    static_configs: [{{ targets: ['{target}'] }}]\n"
        );
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        match command.spawn() {
            Ok(process) => Some(Self { process, url: format!("http://{address}") }),
            Err(error) => {
                println!("not tested: prometheus: {error}; `sh tests/run` installs it");
                None
            }
        }
    }

    /// The names of the alerts that fire.
    async fn firing(&self) -> Vec<String> {
        let Ok(answer) = reqwest::get(format!("{}/api/v1/alerts", self.url)).await else {
            return Vec::new();
        };
        let Ok(told) = answer.json::<Value>().await else { return Vec::new() };
        let alerts = told["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let fires = alerts.iter().filter(|alert| alert["state"] == "firing");
        let mut names: Vec<String> =
            fires.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect();
        names.dedup();
        names
    }

    async fn fires(&self, alert: &str) -> bool {
        self.firing().await.iter().any(|name| name == alert)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_at_a_real_prometheus_and_end_when_an_operator_has_settled_it() {
    let recorder =
        PrometheusBuilder::new().with_recommended_naming(true).install_recorder().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let exposed = recorder.clone();
    let routes = Router::new().route("/metrics", get(async move || exposed.render()));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let folder = tempfile::tempdir().unwrap();
    let Some(prometheus) = Prometheus::start(folder.path(), &target) else { return };

    let db = <Sqlite as TestDb>::fresh().await;
    let engine = engine_with(&db, &App::default(), |builder| {
        builder.lease(Duration::from_secs(60)).max_attempts(1)
    });
    // Nobody counts, and nobody works.
    until(async || prometheus.fires("AtomicPhasesNobodyWorks").await).await;
    let config = WorkerConfig::default()
        .poll(Duration::from_millis(50))
        .census_every(Duration::from_millis(100));
    let workers = engine.spawn_workers(config).unwrap();
    until(async || !prometheus.fires("AtomicPhasesNobodyWorks").await).await;
    until(async || !prometheus.fires("AtomicPhasesNothingCounted").await).await;

    // A dead letter, an unknown outcome, two jobs that gave up.
    let refused = engine.call(&scope(), &key("dead"), troubled(Trouble::RetryForeignAlways)).await;
    assert!(matches!(refused, Ok(Outcome::DeadLetter)), "{refused:?}");
    let unknown = engine.call(&scope(), &key("unknown"), troubled(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    finished(engine.call(&scope(), &key("fine"), book(20)).await);
    let hopeless = async |_: String, _| Err::<(), _>(DeliveryError::dead("asked for"));
    let jobs = Handlers::new().on("receipt", hopeless).on("thanks", hopeless);
    let mut enqueuer = Enqueuer::new(&engine, jobs, WorkerConfig::default());
    for _ in 0..2 {
        enqueuer.run_once().await.unwrap();
    }
    let alerts = ["AtomicPhasesDeadLetters", "AtomicPhasesUnknownWaits", "AtomicPhasesJobsDead"];
    for alert in alerts {
        until(async || prometheus.fires(alert).await).await;
    }

    // An operator settles all of it.
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    for row in
        ops.list(Filter::new().states([State::Unknown, State::DeadLetter])).await.unwrap().rows
    {
        let reply = atomic_phases::Reply::text(410, "cancelled");
        let word = atomic_phases::engine::Resolution::finish(reply);
        let _ = ops.resolve(row.request_id, &row.version, word, "ticket 91").await.unwrap();
    }
    for job in ops.dead_jobs(None, 10).await.unwrap().rows {
        ops.discard_job(job.id, job.attempts, "ticket 91").await.unwrap();
    }
    for alert in alerts {
        until(async || !prometheus.fires(alert).await).await;
    }
    // The process goes on, and stops to tell what it does not know any more.
    workers.shutdown(Duration::from_secs(30)).await.unwrap();
    until(async || prometheus.fires("AtomicPhasesNothingCounted").await).await;
}
