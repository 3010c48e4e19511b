//! A real Prometheus, with the rules of `monitoring/alerts.yml`, scrapes processes until each alert fires, and
//! until it ends. Separate, because a process has one recorder. If Prometheus is not installed, the test says so.
//!
//! It scrapes three services. *In trouble* is the flagship, `rocket_rides --trouble`, as a user starts it: all alerts
//! except one are its own. *Well* is the flagship without trouble, which does the same work at the same time: no alert
//! may fire for it, except for what a busy machine is late with. *Own* is an application of this test, for the one fault
//! that no operator can cause: a worker that panics.
#![cfg(feature = "metrics")]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atomic_phases::ops::{Actor, Filter, Ops, Permissions, Scopes, State};
use atomic_phases::store::{DeadpoolPool, Pool, Postgres, StoreError};
use atomic_phases::worker::WorkerConfig;
use atomic_phases::{Engine, PhaseResult, Reply, Store, Tx, atomic_phases};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use support::cluster::{new_database, psql, psql_each};
use support::db::pg;
use support::process::{free_port, program};
use support::proxy::{Cut, Proxy, port_of};
use support::*;

const RULES: &str = include_str!("../monitoring/alerts.yml");

/// The differences from the shipped rules: for how long a condition must hold, and over which time it is measured.
/// The expressions and the thresholds are those of the shipped rules.
const FASTER: [(&str, &str); 15] = [
    ("for: 1m", "for: 1s"),
    ("for: 2m", "for: 1s"),
    ("for: 5m", "for: 1s"),
    ("for: 10m", "for: 1s"),
    ("for: 6h", "for: 1s"),
    ("[5m]", "[4s]"),
    ("[10m]", "[4s]"),
    ("[15m]", "[8s]"),
    ("[1h]", "[12s]"),
    // The announcer runs about every 15 s.
    ("[6h])) > 60", "[45s])) > 30"),
    ("[6h]", "[45s]"),
    ("offset 1d", "offset 15s"),
    ("> 900", "> 3"),
    ("> time() - 120", "> time() - 10"),
    ("_timestamp_seconds) > ", "_timestamp_seconds) > 0.05 * "),
];

const IN_TROUBLE: &str = "rides-in-trouble";
const WELL: &str = "rides";
const OWN: &str = "own";

fn faster_rules() -> String {
    FASTER.iter().fold(RULES.to_owned(), |rules, (ours, faster)| {
        assert!(rules.contains(ours), "the rules have no {ours:?} any more");
        rules.replace(ours, faster)
    })
}

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

impl Prometheus {
    fn start(folder: &Path, services: &[(&str, &[&str])]) -> Option<Self> {
        std::fs::write(folder.join("alerts.yml"), faster_rules()).unwrap();
        let jobs = services.iter().map(|(job, targets)| {
            format!("  - job_name: {job}\n    static_configs: [{{ targets: {targets:?} }}]\n")
        });
        let config = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 250ms }}\n\
             rule_files: [alerts.yml]\nscrape_configs:\n{}",
            jobs.collect::<String>()
        );
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        let address = free_address();
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
}

/// A service and the name of an alert, without `AtomicPhases`.
type Alert = (String, String);

/// Prometheus' answers, polled ten times a second.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    answers: u32,
    fires: BTreeSet<Alert>,
    has_fired: BTreeSet<Alert>,
    /// The alerts that fired for their cause, and then ended without it.
    seen: BTreeSet<Alert>,
}

impl Watch {
    fn begin(&self, prometheus: &Prometheus) {
        let (said, url) = (self.0.clone(), format!("{}/api/v1/alerts", prometheus.url));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let Ok(answer) = reqwest::get(&url).await else { continue };
                let Ok(told) = answer.json::<Value>().await else { continue };
                let Some(alerts) = told["data"]["alerts"].as_array() else { continue };
                let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
                let name = |alert: &Value| {
                    let label = |name: &str| alert["labels"][name].as_str().unwrap_or("");
                    let name = label("alertname").strip_prefix("AtomicPhases").unwrap();
                    (label("job").to_owned(), name.to_owned())
                };
                let fires: BTreeSet<Alert> = firing.map(name).collect();
                let mut said = said.lock().unwrap();
                for alert in fires.difference(&said.fires) {
                    println!("fires: {alert:?}");
                }
                said.answers += 1;
                said.has_fired.extend(fires.iter().cloned());
                said.fires = fires;
            }
        });
    }

    fn fires(&self, service: &str, name: &str) -> bool {
        let alert = (service.to_owned(), name.to_owned());
        self.0.lock().unwrap().fires.contains(&alert)
    }

    /// Waits until the alert of this service fires, or no longer fires.
    async fn until(&self, service: &str, name: &str, fires: bool) {
        let alert = (service.to_owned(), name.to_owned());
        answer_within(Duration::from_secs(60), async || {
            let mut said = self.0.lock().unwrap();
            if said.answers == 0 || said.fires.contains(&alert) != fires {
                return Err(format!("{alert:?} is to fire: {fires}; what fires: {:?}", said.fires));
            }
            if !fires && said.has_fired.contains(&alert) {
                said.seen.insert(alert.clone());
            }
            Ok(())
        })
        .await;
    }

    async fn silent(&self, alerts: &[&str]) {
        for alert in alerts {
            self.until(IN_TROUBLE, alert, false).await;
        }
    }

    async fn fire(&self, alerts: &[&str]) {
        for alert in alerts {
            self.until(IN_TROUBLE, alert, true).await;
        }
    }
}

fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// `rocket_rides`, in a folder of its own.
struct Flagship {
    process: Child,
    said: Arc<Mutex<Vec<String>>>,
    folder: PathBuf,
    arguments: Vec<String>,
    url: String,
    metrics: String,
}

impl Flagship {
    fn start(folder: &Path, database: &str, metrics: &str, more: &[&str]) -> Self {
        let url = free_address();
        let usual = ["--listen", &url, "--metrics-address", metrics, "--database-url", database];
        let quick = "--poll 0.1 --reconcile-after 0.3 --attempts 3 --reap 0.5 --census 0.3";
        let arguments = usual.into_iter().chain(quick.split(' ')).chain(more.iter().copied());
        let arguments: Vec<String> = arguments.map(str::to_owned).collect();
        std::fs::create_dir_all(folder).unwrap();
        let (process, said) = Self::run(folder, &arguments, &[]);
        let url = format!("http://{url}");
        let (folder, metrics) = (folder.to_owned(), metrics.to_owned());
        Self { process, said, folder, arguments, url, metrics }
    }

    fn run(folder: &Path, arguments: &[String], more: &[&str]) -> (Child, Arc<Mutex<Vec<String>>>) {
        let mut process = Command::new(program())
            .args(arguments)
            .args(more)
            .args(["--log", "off"])
            .env_remove("DATABASE_URL")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, lines) = (Arc::<Mutex<Vec<String>>>::default(), process.stdout.take().unwrap());
        let says = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                says.lock().unwrap().push(line);
            }
        });
        (process, said)
    }

    /// Kills it, and starts it with these additional options.
    fn again(&mut self, more: &[&str]) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.arguments.retain(|argument| argument != "--trouble");
        (self.process, self.said) = Self::run(&self.folder, &self.arguments, more);
    }

    /// Waits for the line that contains this.
    async fn says(&self, part: &str) -> String {
        let line = || {
            let said = self.said.lock().unwrap();
            said.iter().find(|line| line.contains(part)).cloned()
        };
        until(async || line().is_some()).await;
        line().unwrap()
    }

    /// The provider that it has started.
    async fn provider(&self) -> String {
        let line = self.says("started a provider on ").await;
        line.split(" on ").nth(1).unwrap().split(',').next().unwrap().to_owned()
    }

    /// Tells the provider how to misbehave.
    async fn provider_is(&self, what: &str, faults: Value) {
        let url = format!("{}/test/{what}", self.provider().await);
        let told = reqwest::Client::new().post(url).json(&faults).send().await.unwrap();
        assert!(told.status().is_success());
    }

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// What a counter says.
    async fn counts(&self, name: &str) -> f64 {
        let Ok(answer) = reqwest::get(format!("http://{}/metrics", self.metrics)).await else {
            return 0.0;
        };
        let text = answer.text().await.unwrap_or_default();
        let series = text.lines().filter(|line| line.starts_with(name));
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Flagship {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn book(http: &reqwest::Client, server: &str, key: &str, latitude: f64) {
    let ride =
        [("origin_lat", latitude), ("origin_lon", 0.0), ("target_lat", 1.0), ("target_lon", 1.0)];
    let call = http.post(format!("{server}/rides")).form(&ride).timeout(Duration::from_secs(5));
    let call = call.header("authorization", "user@example.com").header("idempotency-key", key);
    let _ = call.send().await;
}

/// Clients that book five rides a second, until this is dropped.
struct Clients(tokio::task::JoinHandle<()>);

impl Clients {
    /// `one_key`: all rides use the same key, and each is a different ride.
    fn of(server: &str, one_key: bool) -> Self {
        let (server, http) = (server.to_owned(), reqwest::Client::new());
        Self(tokio::spawn(async move {
            for number in 0_u32.. {
                let key = match one_key {
                    true => "the-same".to_owned(),
                    false => uuid::Uuid::new_v4().to_string(),
                };
                let (server, http) = (server.clone(), http.clone());
                let latitude = f64::from(number) / 1000.0;
                tokio::spawn(async move { book(&http, &server, &key, latitude).await });
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A key expires after twelve seconds; in the rules above, a day is fifteen.
fn short_days(database: String) {
    tokio::spawn(async move {
        let mut conn = pg(&database).await;
        loop {
            let ended = conn.batch_execute(
                "SET default_transaction_read_only = off; \
                 UPDATE atomic_phases_keys SET expires_at = clock_timestamp() WHERE status = 'completed' \
                 AND expires_at > clock_timestamp() AND created_at < clock_timestamp() - interval '12 seconds'",
            );
            if ended.await.is_err() {
                conn = pg(&database).await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
}

/// A receiver of notices: answers with the status that the test sets.
async fn on_call() -> (String, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(410));
    let answer = status.clone();
    let answered = post(async move || StatusCode::from_u16(answer.load(Ordering::SeqCst)).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", answered)).await });
    (url, status)
}

/// An application's pool that panics once when the test says so, in the worker that uses it next.
#[derive(Clone)]
struct Panicky(DeadpoolPool, Arc<AtomicBool>);

impl Pool for Panicky {
    type Handle = <DeadpoolPool as Pool>::Handle;

    async fn get(&self) -> Result<Self::Handle, StoreError> {
        assert!(!self.1.swap(false, Ordering::SeqCst), "as asked for");
        Pool::get(&self.0).await
    }

    fn close(handle: Self::Handle) {
        <DeadpoolPool as Pool>::close(handle);
    }

    fn forget_idle(&self) {
        self.0.forget_idle();
    }
}

#[derive(Serialize, Deserialize)]
struct Tick;

#[atomic_phases(name = "tick", version = 1, app = ())]
impl<Db: Store> Tick {
    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Ok(Reply::new(204))
    }
}

/// What an operator does from any machine, without the flagship's code.
fn operator(engine: &Engine<Postgres>) -> Ops<Postgres> {
    engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_alert_fires_at_a_real_prometheus_for_its_cause_and_ends_with_it() {
    let began = Instant::now();
    let recorder =
        PrometheusBuilder::new().with_recommended_naming(true).install_recorder().unwrap();
    let [troubled, well, own] = tokio::task::block_in_place(|| [(); 3].map(|()| new_database()));
    let proxy = Proxy::start(port_of(&troubled)).await;
    let folder = tempfile::tempdir().unwrap();
    let (on_call, on_call_answers) = on_call().await;
    let notices = ["--waiting-webhook", &on_call, "--waiting-secret"];
    let notices = [&notices[..], &["whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"]].concat();
    let more = [&notices[..], &["--trouble", "--lease", "1"]].concat();
    let through = proxy.url(&troubled);
    let mut flagship =
        Flagship::start(&folder.path().join("trouble"), &through, &free_address(), &more);
    // A lease so long that a holder which is a second late does not lose it, because that would be a reason for an
    // alert.
    let steady = ["--lease", "30"];
    let healthy = Flagship::start(&folder.path().join("well"), &well, &free_address(), &steady);
    flagship.says(" is ready on ").await;
    healthy.says(" is ready on ").await;
    short_days(troubled.clone());
    short_days(well.clone());

    // The application of this test's own.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let exposes = listener.local_addr().unwrap().to_string();
    let routes = Router::new().route("/metrics", get(async move || recorder.render()));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&own);
    let pool = DeadpoolPool::builder(manager).max_size(4).build().unwrap();
    let panics = Arc::new(AtomicBool::new(false));
    let store = Postgres::with_pool(Panicky(pool, panics.clone()));
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).register::<Tick>().build().unwrap();
    let quick = WorkerConfig::default().census_every(Duration::from_millis(300));
    let workers = engine.spawn_workers(quick.poll(Duration::from_millis(100))).unwrap();

    // The second server of the service in trouble comes later.
    let second = format!("127.0.0.1:{}", free_port());
    let services: [(&str, &[&str]); 3] = [
        (IN_TROUBLE, &[&flagship.metrics, &second]),
        (WELL, &[&healthy.metrics]),
        (OWN, &[&exposes]),
    ];
    let Some(prometheus) = Prometheus::start(folder.path(), &services) else { return };
    let watch = Watch::default();
    watch.begin(&prometheus);
    let _well = Clients::of(&healthy.url, false);
    let look = Engine::builder(Postgres::connect(&troubled).await.unwrap());
    let ops = operator(&look.register::<Tick>().build().unwrap());
    let sql = async |sql: &str| tokio::task::block_in_place(|| psql(&troubled, sql));
    let passed = |what: &str| println!("after {:?}: {what}", began.elapsed());

    // The trouble that `--trouble` makes: the pilots' API lost an answer, and a server was killed during a
    // notification. No reconcile function finds the outcomes, and the receiver of notices is gone.
    watch.silent(&["UnknownWaits", "JobsDead"]).await;
    flagship.says("trouble: made").await;
    watch.fire(&["UnknownWaits", "JobsDead"]).await;
    watch.silent(&["JobsLate"]).await;
    passed("the trouble is made");
    // The pilots' API answers again, and the operator lets the notices be delivered, except for one of a removed
    // build.
    flagship.provider_is("pilot_faults", json!({})).await;
    on_call_answers.store(200, Ordering::SeqCst);
    sql("UPDATE atomic_phases_staged_jobs SET name = 'gone' WHERE job_id = \
         (SELECT job_id FROM atomic_phases_staged_jobs WHERE run_after IS NULL LIMIT 1)")
    .await;
    for job in ops.dead_jobs(None, 100).await.unwrap().rows {
        ops.retry_job(job.id, job.attempts, "an operator is on call").await.unwrap();
    }
    watch.silent(&["UnknownWaits", "JobsDead"]).await;
    watch.fire(&["JobsLate"]).await;
    sql("UPDATE atomic_phases_staged_jobs SET name = 'atomic_phases.waiting' WHERE name = 'gone'")
        .await;
    watch.silent(&["JobsLate"]).await;
    passed("those who waited are settled");

    // A worker's own code panics; the supervisor starts it again.
    watch.until(OWN, "WorkerPanics", false).await;
    panics.store(true, Ordering::SeqCst);
    watch.until(OWN, "WorkerPanics", true).await;

    // The charge API fails for nearly a day; at last the request gives up.
    let clients = Clients::of(&flagship.url, false);
    watch.silent(&["ForeignFailing", "WindowEndsSoon", "DeadLetters"]).await;
    flagship.provider_is("faults", json!({ "fail_before": 1_000_000 })).await;
    watch.fire(&["ForeignFailing", "DeadLetters"]).await;
    watch.silent(&["WindowEndsSoon"]).await;
    let a_day_ago = "UPDATE atomic_phases_keys SET advanced_at = clock_timestamp() - interval '22.5 hours' \
         WHERE status = 'failed_retryable'";
    until(async || {
        sql(a_day_ago).await;
        watch.fires(IN_TROUBLE, "WindowEndsSoon")
    })
    .await;
    passed("the charge API fails");
    // One of the requests belongs to a missing build, and another transaction has locked the row of another one.
    watch.silent(&["Stranded", "ResumesLate"]).await;
    let later = "UPDATE atomic_phases_keys SET definition_version = 9 WHERE request_id = (SELECT request_id FROM \
         atomic_phases_keys WHERE status = 'failed_retryable' LIMIT 1) RETURNING request_id";
    until(async || !sql(later).await.is_empty()).await;
    let mut locker = pg(&troubled).await;
    locker
        .batch_execute(
            "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE status = 'failed_retryable' \
             AND definition_version = 1 LIMIT 1 FOR UPDATE",
        )
        .await
        .unwrap();
    watch.fire(&["Stranded", "ResumesLate"]).await;
    passed("one is stranded, and one locked");
    locker.batch_execute("ROLLBACK").await.unwrap();
    sql("UPDATE atomic_phases_keys SET definition_version = 1 WHERE definition_version = 9").await;
    flagship.provider_is("faults", json!({})).await;
    watch.silent(&["Stranded", "ResumesLate", "ForeignFailing", "WindowEndsSoon"]).await;
    until(async || {
        let dead = Filter::new().states([State::DeadLetter]).page(100);
        let dead = ops.list(dead).await.unwrap().rows;
        for row in &dead {
            // The next round sees what another act has changed.
            let _ = ops.retry(row.request_id, &row.version, "the provider is back").await;
        }
        dead.is_empty()
    })
    .await;
    watch.silent(&["DeadLetters"]).await;
    watch.until(OWN, "WorkerPanics", false).await;
    passed("the charge API is back");

    // A client uses one key for all its requests.
    watch.silent(&["MismatchSpike"]).await;
    let same = Clients::of(&flagship.url, true);
    watch.fire(&["MismatchSpike"]).await;
    drop(same);
    // The network loses the database's answers to commits.
    watch.silent(&["CommitsUnanswered", "MismatchSpike"]).await;
    until(async || {
        proxy.arm("COMMIT", 1, Cut::After);
        tokio::time::sleep(Duration::from_millis(300)).await;
        watch.fires(IN_TROUBLE, "CommitsUnanswered")
    })
    .await;
    watch.silent(&["CommitsUnanswered"]).await;
    passed("commits are answered again");

    // The process is stopped for longer than its lease, twice; another one resumes its requests.
    watch.silent(&["Zombies"]).await;
    flagship.provider_is("faults", json!({ "delay_before_ms": 1500 })).await;
    let provider = flagship.provider().await;
    let more = [&notices[..], &["--charge-api", &provider]].concat();
    let other = Flagship::start(&folder.path().join("second"), &troubled, &second, &more);
    other.says(" is ready on ").await;
    for _ in 0..2 {
        let zombies = flagship.counts("atomic_phases_zombies_total").await;
        let in_the_call = "SELECT coalesce(string_agg(quote_literal(request_id), ','), '') FROM \
             atomic_phases_keys WHERE status = 'in_progress' AND attempts = 1";
        until(async || sql(in_the_call).await.matches(',').count() > 3).await;
        flagship.signal("STOP");
        let stopped = sql(in_the_call).await;
        let taken = format!(
            "SELECT count(*) > 0 FROM atomic_phases_keys WHERE request_id IN ({stopped}) AND attempts > 1"
        );
        until(async || sql(&taken).await == "t").await;
        flagship.signal("CONT");
        until(async || flagship.counts("atomic_phases_zombies_total").await > zombies).await;
    }
    watch.fire(&["Zombies"]).await;
    drop(other);
    flagship.provider_is("faults", json!({})).await;
    watch.silent(&["Zombies"]).await;
    passed("it goes on without standing still");

    // The primary is demoted, and becomes read-only.
    watch.silent(&["StoreErrors"]).await;
    let sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND pid <> pg_backend_pid()";
    let name = troubled.rsplit_once('/').unwrap().1;
    let demoted = |is: &str| {
        let alter = format!("ALTER DATABASE {name} SET default_transaction_read_only = {is}");
        tokio::task::block_in_place(|| {
            psql_each(&troubled, &["SET default_transaction_read_only = off", &alter, sessions]);
        });
    };
    demoted("on");
    watch.fire(&["StoreErrors"]).await;
    demoted("off");
    watch.silent(&["StoreErrors"]).await;
    passed("it can be written to again");

    // A deploy forgets the workers: no process resumes, counts, or deletes.
    watch.silent(&["NoWorkers", "NothingCounted", "KeysGrow"]).await;
    flagship.again(&["--workers", "false"]);
    watch.fire(&["NoWorkers", "NothingCounted", "KeysGrow"]).await;
    flagship.again(&[]);
    watch.silent(&["NoWorkers", "NothingCounted", "KeysGrow"]).await;
    passed("the workers are back");
    drop(clients);
    workers.shutdown(Duration::from_secs(30)).await.unwrap();

    let said = watch.0.lock().unwrap();
    let of = |of: &str, all: &BTreeSet<Alert>| -> BTreeSet<String> {
        all.iter().filter(|(service, _)| service == of).map(|(_, name)| name.clone()).collect()
    };
    let mut of_well = of(WELL, &said.has_fired);
    // With so short times, a busy machine is a reason for these.
    of_well.retain(|name| !["JobsLate", "ResumesLate", "StoreErrors"].contains(&name.as_str()));
    assert_eq!(of_well, BTreeSet::new(), "of a service that is well");
    let rules = RULES.lines().filter_map(|line| line.split("alert: AtomicPhases").nth(1));
    let rules: BTreeSet<String> = rules.map(str::to_owned).collect();
    let seen: BTreeSet<String> = said.seen.iter().map(|(_, name)| name.clone()).collect();
    assert_eq!(seen, rules, "not seen to fire and to end");
}
