//! The soak: clients that retry, send duplicates, change their bodies and disconnect; two servers that are killed;
//! a database that crashes and whose connections are cut, delayed and lose their answers; a provider that drops
//! connections after the effect. In the end all faults stop, every key is settled, and the provider's ledgers are
//! compared with the answers.
//!
//! On one of the two stores, which the seed selects, both servers have a Redis in front of replays. It
//! is killed and comes back with its answers, or forgets them. In the end, its answers are compared
//! with those of the rows.
//!
//! `sh tests/run` runs a short one. A seed repeats its schedule. `SOAK_REDIS=1` selects the cache,
//! and `SOAK_REDIS=0` does without it:
//!
//! ```sh
//! cargo build --release --features http,axum,reqwest,mysql,redis --example rocket_rides
//! SOAK_SEED=7 SOAK_REQUESTS=100000 SOAK_KILLS=1000 SOAK_CRASHES=50 SOAK_REDIS=1 \
//!     cargo test --release --features http,axum,reqwest,mysql,redis --test processes \
//!     done_twice_on_postgres -- --nocapture
//! ```
//!
//! The same with `done_twice_on_mariadb`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::cluster::Cluster;
use crate::support::look::Look;
#[cfg(feature = "mysql")]
use crate::support::mariadb::Server;
#[cfg(feature = "mysql")]
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::process::{Process, free_port};
use crate::support::proxy::{Cut, Proxy};
use crate::support::redis_server::Redis;
use crate::support::rides::{Random, Rides, number};
use crate::support::until_within;
use serde_json::{Value, json};

const CLIENTS: u64 = 24;

const REPLAY_SECRET: &str = "32 bytes that both servers share.";

/// The answers that a client received for one key, attempt by attempt.
#[derive(Default)]
struct Log {
    declines: bool,
    answers: Vec<(u16, Vec<u8>)>,
}

impl Log {
    fn user(&self) -> &'static str {
        if self.declines { "user-bad-source@example.com" } else { "user@example.com" }
    }
}

struct Counts {
    attempts: AtomicU64,
    hang_ups: AtomicU64,
    mismatches: AtomicU64,
    unknown: AtomicU64,
}

struct Client {
    http: reqwest::Client,
    servers: Arc<[String; 2]>,
    counts: Arc<Counts>,
    random: Random,
}

impl Client {
    /// One attempt at either server; `None` where it did not answer.
    async fn post(&mut self, user: &str, key: &str, lat: &str) -> Option<(u16, Vec<u8>)> {
        self.counts.attempts.fetch_add(1, Ordering::Relaxed);
        let server = &self.servers[self.random.below(2) as usize];
        let body = format!("origin_lat={lat}&origin_lon=2&target_lat=3&target_lon=4");
        let request = self.http.post(format!("{server}/rides")).body(body);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let request = request.header("authorization", user).header("idempotency-key", key);
        let answer = request.send().await.ok()?;
        Some((answer.status().as_u16(), answer.bytes().await.ok()?.to_vec()))
    }

    /// Sends until there is a final answer, and misbehaves as real clients do.
    async fn book(&mut self, user: &str, key: &str) -> Vec<(u16, Vec<u8>)> {
        let began = Instant::now();
        let mut answers = Vec::new();
        // 2 in 100 disconnect in the middle of their first attempt.
        if self.random.below(100) < 2 {
            let patience = Duration::from_millis(self.random.below(40));
            let _ = tokio::time::timeout(patience, self.post(user, key, "1")).await;
            self.counts.hang_ups.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            assert!(began.elapsed() < Duration::from_secs(240), "{key} is stuck");
            match self.post(user, key, "1").await {
                Some(answer @ (201 | 402, _)) => {
                    answers.push(answer);
                    break;
                }
                Some((409, body)) => {
                    let unknown = String::from_utf8_lossy(&body).contains("outcome_unknown");
                    self.counts.unknown.fetch_add(unknown.into(), Ordering::Relaxed);
                }
                Some((500 | 503, _)) | None => {}
                Some((status, body)) => {
                    panic!("{key}: {status} {}", String::from_utf8_lossy(&body))
                }
            }
            tokio::time::sleep(Duration::from_millis(20 + self.random.below(80))).await;
        }
        // 5 in 100 reuse the key for a different request, 10 in 100 for the same one.
        if self.random.below(100) < 5
            && let Some((status, _)) = self.post(user, key, "50").await
        {
            assert!([422, 503].contains(&status), "{key}: another request got {status}");
            self.counts.mismatches.fetch_add(1, Ordering::Relaxed);
        }
        if self.random.below(100) < 10
            && let Some(again @ (201 | 402, _)) = self.post(user, key, "1").await
        {
            answers.push(again);
        }
        answers
    }
}

/// A database that crashes, and the proxy in front of it.
#[derive(Clone)]
enum Database {
    Postgres(Arc<Cluster>, Proxy),
    #[cfg(feature = "mysql")]
    Mariadb(Arc<Server>, MysqlProxy),
}

impl Database {
    /// With its URL.
    async fn postgres() -> (Self, String) {
        let cluster = tokio::task::spawn_blocking(|| Arc::new(Cluster::start())).await.unwrap();
        let (url, proxy) = (cluster.new_database(), Proxy::start(cluster.port()).await);
        (Self::Postgres(cluster, proxy), url)
    }

    #[cfg(feature = "mysql")]
    async fn mariadb() -> (Self, String) {
        let server = tokio::task::spawn_blocking(|| Arc::new(Server::start(&[]))).await.unwrap();
        let url = server.new_database();
        let proxy = MysqlProxy::start(&url).await;
        (Self::Mariadb(server, proxy), url)
    }

    /// The same URL, by the proxy.
    fn by_the_proxy(&self, url: &str) -> String {
        match self {
            Self::Postgres(_, proxy) => proxy.url(url),
            #[cfg(feature = "mysql")]
            Self::Mariadb(_, proxy) => proxy.url(url),
        }
    }

    fn crash_and_come_back(&self) {
        match self {
            Self::Postgres(cluster, _) => {
                cluster.stop_immediately();
                cluster.start_server();
            }
            #[cfg(feature = "mysql")]
            Self::Mariadb(server, _) => {
                server.kill_9();
                server.start_server();
            }
        }
    }

    /// From now on, cuts connections at a commit.
    fn cut(&self, nth: usize, cut: Cut) {
        match self {
            Self::Postgres(_, proxy) => proxy.arm("COMMIT", nth, cut),
            #[cfg(feature = "mysql")]
            Self::Mariadb(_, proxy) => proxy.arm("COMMIT AND", nth, cut),
        }
    }

    fn delay(&self, millis: usize) {
        match self {
            Self::Postgres(_, proxy) => proxy.delay(millis),
            #[cfg(feature = "mysql")]
            Self::Mariadb(_, proxy) => proxy.delay(millis),
        }
    }

    /// Stops cutting.
    fn heal(&self) {
        self.delay(0);
        match self {
            Self::Postgres(_, proxy) => proxy.arm("nothing starts like this", 1, Cut::Before),
            #[cfg(feature = "mysql")]
            Self::Mariadb(_, proxy) => proxy.arm("nothing is like this", 1, Cut::Before),
        }
    }

    /// The number of cuts.
    fn cuts(&self) -> usize {
        match self {
            Self::Postgres(_, proxy) => proxy.fired(),
            #[cfg(feature = "mysql")]
            Self::Mariadb(_, proxy) => proxy.fired(),
        }
    }
}

struct World {
    server: Database,
    provider: Process,
    servers: [(Process, Vec<String>); 2],
    database: String,
    /// In front of the replays of both servers, if there is one.
    redis: Option<Redis>,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start((server, database): (Database, String), redis: Option<Redis>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = redis.as_ref().map(Redis::url);
        let ledger = dir.path().join("ledger").display().to_string();
        tokio::task::block_in_place(|| {
            let provider =
                Process::start(&["provider", "--listen", "127.0.0.1:0", "--ledger", &ledger]);
            // One is near its database, and one behind the proxy.
            let servers = [database.clone(), server.by_the_proxy(&database)].map(|database| {
                let listen = format!("127.0.0.1:{}", free_port());
                let arguments = ["serve", "--listen", &listen, "--database-url", &database];
                let more = ["--charge-api", &provider.url, "--lease", "1"];
                let rest = ["--reconcile-after", "0.2", "--poll", "0.2"];
                let cache = cache.iter().flat_map(|url| {
                    ["--replay-cache", url.as_str(), "--replay-secret", REPLAY_SECRET]
                });
                let arguments = arguments.iter().chain(&more).chain(&rest).copied().chain(cache);
                let arguments: Vec<String> = arguments.map(str::to_owned).collect();
                (Rides::serve(&arguments), arguments)
            });
            Self { server, provider, servers, database, redis, _dir: dir }
        })
    }

    async fn fault(&self, path: &str, faults: Value) {
        let url = format!("{}/test/{path}", self.provider.url);
        reqwest::Client::new().post(url).json(&faults).send().await.unwrap();
    }

    fn restart(&mut self, server: usize) {
        let (process, arguments) = &mut self.servers[server];
        process.kill_9();
        *process = Rides::serve(arguments);
    }

    /// The cache comes back with its answers, forgets them, or is left alone.
    async fn trouble_the_cache(&mut self, random: &mut Random) {
        let Some(redis) = &mut self.redis else { return };
        match random.below(4) {
            0 => {
                redis.kill_9();
                redis.restart();
            }
            1 => redis.command::<()>(&["FLUSHALL"]).await,
            _ => {}
        }
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        let list: Value = reqwest::get(format!("{}/v1/{path}", self.provider.url))
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        list["data"].as_array().unwrap().clone()
    }

    async fn count(&self, what: &str) -> i64 {
        Look::at(&self.database).await.count(what).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_is_done_twice_on_postgres() {
    nothing_is_lost_and_nothing_is_done_twice("postgres", Database::postgres().await).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_is_done_twice_on_mariadb() {
    nothing_is_lost_and_nothing_is_done_twice("mariadb", Database::mariadb().await).await;
}

async fn nothing_is_lost_and_nothing_is_done_twice(store: &str, database: (Database, String)) {
    let seed = number("SOAK_SEED", std::process::id().into());
    let requests = number("SOAK_REQUESTS", 1200);
    let (kills, crashes) = (number("SOAK_KILLS", 24), number("SOAK_CRASHES", 2));
    // Of two stores, one has the cache.
    let is_its_turn = seed.is_multiple_of(2) == (store == "postgres");
    let cached = number("SOAK_REDIS", is_its_turn.into());
    println!(
        "{store}: SOAK_SEED={seed} SOAK_REQUESTS={requests} SOAK_KILLS={kills} \
         SOAK_CRASHES={crashes} SOAK_REDIS={cached}"
    );
    let began = Instant::now();
    let redis = if cached == 1 { Some(Redis::start().await) } else { None };
    let mut world = World::start(database, redis).await;
    let next = Arc::new(AtomicU64::new(0));
    let counts = Arc::new(Counts {
        attempts: AtomicU64::new(0),
        hang_ups: AtomicU64::new(0),
        mismatches: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
    });
    let urls = Arc::new([0, 1].map(|server: usize| world.servers[server].0.url.clone()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let http = reqwest::Client::builder().timeout(Duration::from_secs(20));
            let mut client = Client {
                http: http.build().unwrap(),
                servers: urls.clone(),
                counts: counts.clone(),
                random: Random(seed.wrapping_mul(1000) + client),
            };
            let next = next.clone();
            tokio::spawn(async move {
                let mut logs = HashMap::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= requests {
                        return logs;
                    }
                    let mut log = Log { declines: number % 20 == 19, answers: Vec::new() };
                    let key = format!("soak-{number}");
                    log.answers = client.book(log.user(), &key).await;
                    logs.insert(key, log);
                }
            })
        })
        .collect();

    // The faults are spread evenly over the requests.
    let mut random = Random(seed);
    let (mut killed, mut crashed, mut cut) = (0, 0, 0);
    while next.load(Ordering::Relaxed) < requests && !clients.iter().all(|c| c.is_finished()) {
        let progress = next.load(Ordering::Relaxed);
        if killed * requests < progress * kills {
            tokio::task::block_in_place(|| world.restart(random.below(2) as usize));
            killed += 1;
            world.trouble_the_cache(&mut random).await;
        }
        if crashed * requests < progress * crashes {
            let server = world.server.clone();
            tokio::task::spawn_blocking(move || server.crash_and_come_back()).await.unwrap();
            crashed += 1;
        }
        let cuts = [Cut::Before, Cut::After, Cut::Answer];
        world.server.cut(1 + random.below(5) as usize, cuts[random.below(3) as usize]);
        world.server.delay(random.below(3) as usize);
        cut = world.server.cuts();
        let spoiled = u32::from(random.below(10) == 0);
        let (before, after) = (random.below(4), random.below(4));
        let faults = json!({
            "delay_before_ms": before, "delay_after_ms": after, "drop_after": spoiled,
            "fail_before": spoiled,
        });
        world.fault("faults", faults).await;
        let faults =
            json!({ "delay_before_ms": after, "delay_after_ms": before, "drop_after": spoiled });
        world.fault("pilot_faults", faults).await;
        tokio::time::sleep(Duration::from_millis(20 + random.below(60))).await;
    }

    // End all faults, and require progress.
    world.fault("faults", json!({})).await;
    world.fault("pilot_faults", json!({})).await;
    world.server.heal();
    let mut logs = HashMap::new();
    for client in clients {
        logs.extend(client.await.unwrap());
    }
    let open = "atomic_phases_keys WHERE status <> 'completed'";
    until_within(Duration::from_secs(60), async || {
        world.count(open).await + world.count("atomic_phases_staged_jobs").await == 0
    })
    .await;

    let mut client = Client {
        http: reqwest::Client::new(),
        servers: urls.clone(),
        counts: counts.clone(),
        random: Random(seed),
    };
    // One more replay of every key from the cache, until the servers use it again.
    if let Some(redis) = &world.redis {
        let before = redis.hits().await;
        until_within(Duration::from_secs(60), async || {
            for (key, log) in &mut logs {
                let replay = client.post(log.user(), key, "1").await.expect("healed");
                log.answers.push(replay);
            }
            redis.hits().await > before
        })
        .await;
        println!("{store}: replays from the cache {}", redis.hits().await - before);
        redis.command::<()>(&["FLUSHALL"]).await;
    }
    // And one from its row: the answer never changes.
    let (mut booked, mut changed) = (Vec::new(), 0);
    for (key, log) in &logs {
        let replay = client.post(log.user(), key, "1").await.expect("healed");
        changed += log.answers.iter().filter(|answer| **answer != replay).count();
        assert_eq!(replay.0, if log.declines { 402 } else { 201 }, "{key}");
        if !log.declines {
            booked.push(serde_json::from_slice::<Value>(&replay.1).unwrap());
        }
    }
    let charges = world.list("charges").await;
    let told = world.list("notifications").await;
    let field = |value: &Value, name: &str| value[name].as_str().unwrap().to_owned();
    let rides: HashSet<String> = booked.iter().map(|ride| field(ride, "id")).collect();
    let charged: Vec<String> = charges.iter().map(|c| field(&c["metadata"], "ride")).collect();
    let notified: Vec<String> =
        told.iter().map(|notification| field(notification, "ride")).collect();
    let distinct = |rides: &[String]| rides.iter().cloned().collect::<HashSet<_>>();
    let duplicated =
        charged.len() - distinct(&charged).len() + notified.len() - distinct(&notified).len();
    let lost = rides.difference(&distinct(&charged)).count()
        + rides.difference(&distinct(&notified)).count();
    let phantom = distinct(&charged).difference(&rides).count()
        + distinct(&notified).difference(&rides).count();
    println!(
        "{store}: requests {}, attempts {}, process kills {killed}, database crashes {crashed}, \
         connections cut {cut}, hang-ups {}, mismatches refused {}, unknown for a while {}: \
         lost {lost}, duplicated {duplicated}, without a ride {phantom}, answers changed {changed}, \
         unsettled 0; {:.0} s",
        logs.len(),
        counts.attempts.load(Ordering::Relaxed),
        counts.hang_ups.load(Ordering::Relaxed),
        counts.mismatches.load(Ordering::Relaxed),
        counts.unknown.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64(),
    );
    assert_eq!((lost, duplicated, phantom, changed), (0, 0, 0, 0));
    assert_eq!(rides.len(), booked.len(), "one ride for each key");
    assert_eq!(logs.len() as u64, requests);
    assert_eq!(world.count("rides WHERE charge_id IS NOT NULL").await, rides.len() as i64);
}
