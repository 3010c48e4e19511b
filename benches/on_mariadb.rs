//! The engine on MariaDB beside the least SQL by hand on the same driver, on a server of its own with fsync on.
//! `sh benches/run --mariadb` writes docs/bench/mariadb.md.

mod by_hand;
mod guarded;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atomic_phases::store::{Mysql, PoolSettings};
use atomic_phases::{Engine, IdempotencyKey, Scope, Store};
use diesel_async::SimpleAsyncConnection;

use self::by_hand::ByHand;
use self::guarded::{ENGINES, NARROW};
use crate::away::Away;
use crate::contestants::{Start, Work, fresh, key_of, new, replays};
use crate::counts::Proxy;
use crate::load::{Figures, for_a_while};
use crate::options::Plan;
use crate::report;
use crate::requests::{App, mysql};
use crate::samples::Samples;
// The server's file looks for it here.
use crate::server::cluster;

#[path = "../tests/support/mariadb.rs"]
#[allow(dead_code)]
mod mariadb;

/// As much memory as PostgreSQL is given, and no other change that a service would not have.
const SETTINGS: [&str; 2] = ["--innodb-buffer-pool-size=1G", "--innodb-log-file-size=1G"];

/// How many finished keys a replay chooses from.
const ANSWERED: u64 = 1000;

const FRESH: [&str; 3] = ["tx", "batch", "batch, new key"];
const FRESH_BY_HAND: [&str; 10] = [
    "by hand",
    "by hand, guarded",
    "by hand, as texts",
    "by hand, single statement",
    "by hand, single statement, guarded",
    "by hand, new key",
    "by hand, new key, guarded",
    "by hand, guarded, engine's tables",
    "by hand, single statement, guarded, engine's tables",
    "by hand, new key, guarded, engine's tables",
];

/// Requests per second beside those of a yardstick.
const GOALS: [(&str, &str, f64); 4] = [
    ("tx", "by hand", 0.9),
    ("batch", "by hand", 1.2),
    ("batch, new key", "by hand", 1.2),
    ("replay", "replay by hand", 0.85),
];

const TITLE: &str = "# The engine on MariaDB

Written by `sh benches/run --mariadb`, on a machine that has nothing else to do; `--quick` takes about two minutes. The \
yardstick is the least SQL of a correct request by hand, on the driver that the store uses, `mysql_async`, and a pool of \
the same size: a narrow table of keys, two commits, no line of the engine ([by_hand.rs](https://github.com/atomic-phases/atomic-phases/blob/main/benches/on_mariadb/by_hand.rs), \
[mariadb.sql](https://github.com/atomic-phases/atomic-phases/blob/main/benches/sql/mariadb.sql)). What the contestants are, and what was tried, is in \
[bench.md](../bench.md#mariadb).";

const AWAY: &str = "# A MariaDB on another machine

Written by `sh benches/run --mariadb --away`: the contestants of [mariadb](mariadb.md), with a proxy that holds back whatever \
client and server send each other. It shares the cores with both. What that means is in [bench.md](../bench.md#a-server-on-another-machine).";

type MyEngine = Engine<Mysql, App>;

/// Those who are compared with each other, on one server.
pub struct Field {
    server: mariadb::Server,
    url: String,
    engine: MyEngine,
    by_hand: ByHand,
    _away: Option<Away>,
}

fn ride() -> mysql::Ride {
    mysql::Ride { user: 1, amount: 2000 }
}

fn batch_ride() -> mysql::BatchRide {
    mysql::BatchRide { user: 1, amount: 2000, independent: true }
}

/// The same by way of a proxy at `port`.
fn through(url: &str, server: &mariadb::Server, port: u16) -> String {
    url.replace(&format!(":{}/", server.port()), &format!(":{port}/"))
}

fn replay_scope() -> Scope {
    Scope::new("replay").unwrap()
}

async fn open(url: &str, connections: usize) -> MyEngine {
    let settings = PoolSettings::default().max_size(connections).wait(Duration::from_secs(60));
    let store = Mysql::connect_with(url, settings).await.unwrap();
    store.migrate().await.unwrap();
    Engine::builder(store)
        .app(App::default())
        .register::<mysql::Ride>()
        .register::<mysql::BatchRide>()
        .build()
        .unwrap()
}

impl Field {
    pub const NAMES: [&'static str; 16] = [
        "tx",
        "batch",
        "batch, new key",
        "by hand",
        "by hand, guarded",
        "by hand, as texts",
        "by hand, single statement",
        "by hand, single statement, guarded",
        "by hand, new key",
        "by hand, new key, guarded",
        "by hand, guarded, engine's tables",
        "by hand, single statement, guarded, engine's tables",
        "by hand, new key, guarded, engine's tables",
        "replay",
        "replay by hand",
        "replay by hand, 14 columns",
    ];

    pub async fn sql(&self, sql: &str) {
        let mut conn = self.engine.store().connection().await.unwrap();
        conn.batch_execute(sql).await.unwrap();
    }

    /// `away`: how long what is sent to the server is on its way, and back.
    pub async fn open(connections: usize, away: Option<Duration>) -> Self {
        let server = mariadb::Server::start(&SETTINGS);
        let away = away.map(|delay| Away::from(server.port(), delay));
        let url = server.new_database();
        let url = away.as_ref().map_or(url.clone(), |away| through(&url, &server, away.port()));
        let engine = open(&url, connections).await;
        let tables = include_str!("sql/mariadb.sql");
        let mut conn = engine.store().connection().await.unwrap();
        conn.batch_execute(tables).await.unwrap();
        drop(conn);
        let keys = (0..ANSWERED).map(key_of);
        for key in keys {
            engine.call(&replay_scope(), &key, ride()).await.unwrap();
        }
        let by_hand = ByHand::on(&url, connections);
        by_hand.answer_some(ANSWERED).await;
        Self { server, url, engine, by_hand, _away: away }
    }

    /// One of [`NAMES`](Self::NAMES), with so many concurrent requests.
    pub async fn run(&self, name: &str, concurrent: usize, length: Duration) -> Figures {
        let work = self.work(name, &self.engine, &self.by_hand);
        for_a_while(concurrent, length, &|| self.server.cpu(), move || work()).await
    }

    fn work(&self, name: &str, engine: &MyEngine, by_hand: &ByHand) -> Arc<dyn Start> {
        let (floor, next) = (by_hand.clone(), AtomicU64::new(0));
        let answered = move || key_of(next.fetch_add(7, Ordering::Relaxed) % ANSWERED);
        match name {
            "tx" => Arc::new(fresh(engine, ride())),
            "batch" => Arc::new(fresh(engine, batch_ride())),
            "batch, new key" => Arc::new(new(engine, batch_ride())),
            "by hand" => Arc::new(move || Box::pin(floor.clone().fresh()) as Work),
            "by hand, guarded" => guarded(floor, |floor| floor.fresh_guarded(&NARROW)),
            "by hand, single statement, guarded" => {
                guarded(floor, |floor| floor.fresh_guarded_single_statement(&NARROW, false))
            }
            "by hand, new key, guarded" => {
                guarded(floor, |floor| floor.fresh_guarded_single_statement(&NARROW, true))
            }
            "by hand, guarded, engine's tables" => {
                guarded(floor, |floor| floor.fresh_guarded(&ENGINES))
            }
            "by hand, single statement, guarded, engine's tables" => {
                guarded(floor, |floor| floor.fresh_guarded_single_statement(&ENGINES, false))
            }
            "by hand, new key, guarded, engine's tables" => {
                guarded(floor, |floor| floor.fresh_guarded_single_statement(&ENGINES, true))
            }
            "by hand, as texts" => {
                Arc::new(move || Box::pin(floor.clone().fresh_as_texts()) as Work)
            }
            "by hand, single statement" => {
                Arc::new(move || Box::pin(floor.clone().fresh_single_statement(false)) as Work)
            }
            "by hand, new key" => {
                Arc::new(move || Box::pin(floor.clone().fresh_single_statement(true)) as Work)
            }
            "replay" => Arc::new(replays(engine, replay_scope(), ride(), ANSWERED)),
            "replay by hand" => Arc::new(move || {
                let key: IdempotencyKey = answered();
                Box::pin(floor.clone().replay(key.as_str().to_owned())) as Work
            }),
            "replay by hand, 14 columns" => Arc::new(move || {
                let key: IdempotencyKey = answered();
                Box::pin(floor.clone().replay_guarded(key.as_str().to_owned())) as Work
            }),
            other => panic!("no contestant is named {other}"),
        }
    }

    /// What a serial request of one connection costs: commits that write, statements, round trips, bytes of log.
    async fn costs(&self) -> String {
        const REQUESTS: u64 = 500;
        let mut out = "\n## Counted, for each request\n\n\
            | | commits that write | statements | round trips | log bytes |\n|---|---|---|---|---|\n"
            .to_owned();
        self.server.ask("SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'");
        for name in Self::NAMES {
            let proxy = Proxy::start(self.server.port()).await;
            let url = through(&self.url, &self.server, proxy.port);
            let (engine, by_hand) = (open(&url, 1).await, ByHand::on(&url, 1));
            let work = self.work(name, &engine, &by_hand);
            // Connections are opened, and statements prepared.
            for _ in 0..10 {
                work().await;
            }
            let before = (self.counts(), proxy.turns());
            for _ in 0..REQUESTS {
                work().await;
            }
            let after = (self.counts(), proxy.turns());
            let each = |before: u64, after: u64| (after - before) as f64 / REQUESTS as f64;
            let _ = writeln!(
                out,
                "| {name} | {:.2} | {:.1} | {:.1} | {:.0} |",
                each(before.0[0], after.0[0]),
                each(before.0[1], after.0[1]),
                each(before.1, after.1),
                each(before.0[2], after.0[2]),
            );
        }
        out
    }

    /// Transactions that wrote, statements, and bytes of InnoDB's log.
    fn counts(&self) -> [u64; 3] {
        let status = |name: &str| {
            self.server.ask(&format!(
                "SELECT variable_value FROM information_schema.global_status WHERE variable_name = '{name}'"
            ))
        };
        let commits = self.server.ask(
            "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'",
        );
        [commits, status("queries"), status("innodb_os_log_written")]
            .map(|count| count.parse().unwrap())
    }
}

fn guarded<F: Future<Output = ()> + Send + 'static>(
    by_hand: ByHand,
    request: fn(ByHand) -> F,
) -> Arc<dyn Start> {
    Arc::new(move || Box::pin(request(by_hand.clone())) as Work)
}

/// Every contestant once in each round, one after the other.
pub async fn measure(plan: &Plan, away: Option<Duration>) -> String {
    let field = Field::open(plan.pool, away).await;
    let mut samples = Samples::default();
    for round in 0..plan.rounds {
        for &c in &plan.concurrent {
            for name in Field::NAMES {
                samples.add(name, c, round, field.run(name, c, plan.length()).await);
            }
        }
    }
    let version = field.server.ask("SELECT VERSION()");
    let names = ["innodb_flush_log_at_trx_commit", "innodb_buffer_pool_size", "tx_isolation"];
    let mut settings: Vec<_> = names
        .iter()
        .map(|name| ((*name).to_owned(), field.server.ask(&format!("SELECT @@{name}"))))
        .collect();
    settings.push(("connections of the pool".to_owned(), plan.pool.to_string()));
    settings.extend(away.map(report::delay));
    let title = if away.is_some() { AWAY } else { TITLE };
    let mut text =
        report::machine(title, &format!("MariaDB {version}"), &settings, plan.rounds, plan.seconds);
    text += &reached(&samples, &plan.concurrent);
    text += &report::section("Fresh request of three phases", &samples, &FRESH, &FRESH_BY_HAND);
    let by_hand = ["replay by hand", "replay by hand, 14 columns"];
    text += &report::section("Replay", &samples, &["replay"], &by_hand);
    if away.is_none() {
        text += &field.costs().await;
    }
    text
}

/// What is to be reached, beside what was.
fn reached(samples: &Samples, concurrent: &[usize]) -> String {
    let mut out = "\n## Reached\n\n| | goal |".to_owned();
    for concurrent in concurrent {
        let _ = write!(out, " {concurrent} concurrent |");
    }
    let _ = writeln!(out, "\n|---|---|{}", "---|".repeat(concurrent.len()));
    for (name, yardstick, goal) in GOALS {
        let _ = write!(out, "| {name} x {yardstick} | ≥ {goal} |");
        for &concurrent in concurrent {
            let _ = match samples.ratio(name, yardstick, concurrent, |f| f.per_second) {
                Some(ratio) => write!(out, " {ratio} |"),
                None => write!(out, " |"),
            };
        }
        out.push('\n');
    }
    out
}

/// The same, into its file.
pub async fn write(plan: &Plan, away: Option<Duration>) {
    let name = if away.is_some() { "away-mariadb" } else { "mariadb" };
    crate::page::write(name, &measure(plan, away).await);
}

/// Each contestant for a moment.
pub async fn smoke(pool: usize, moment: Duration) {
    let field = Field::open(pool, None).await;
    for name in Field::NAMES {
        println!("MariaDB, {name}: {:?}", field.run(name, 2, moment).await);
    }
    println!("{}", field.costs().await);
}
