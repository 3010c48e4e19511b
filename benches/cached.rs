//! Replays and fresh requests with a Redis in front and without: what it saves the database, and what it costs.

use std::fmt::Write;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atomic_phases::replay_cache::{CachedReplays, RedisReplays};

use crate::contestants::{PgEngine, answer_some, builder, fresh, replay, ride, store};
use crate::load::{Figures, for_a_while};
use crate::options::Plan;
use crate::samples::Samples;
use crate::server::Server;

const CONTESTANTS: [&str; 4] = ["replay", "replay, Redis", "fresh", "fresh, Redis"];

/// Whether the program is there that this needs.
pub fn is_there() -> bool {
    Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// A server of the bench's own. Dropped, it is killed.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .stdout(Stdio::null())
            .spawn()
            .expect("no redis-server: Debian's package of that name has it");
        Self { child, port }
    }

    fn replays(&self) -> CachedReplays {
        let redis = RedisReplays::new(&format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let day = Duration::from_secs(24 * 3600);
        CachedReplays::new(redis, [7; 32]).keep_for(day).time_limit(Duration::from_secs(1))
    }

    /// Its processor time, in seconds.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11..13].iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
    }

    async fn has_answers(&self, number: u64) {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        loop {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
                let has: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
                if has >= number {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn measure(server: &Server, plan: &Plan) -> String {
    let redis = Redis::start();
    redis.has_answers(0).await;
    let store = store(server.port(), plan.pool).await;
    let open = |set: &dyn Fn(Builder) -> Builder| set(builder(store.clone())).build().unwrap();
    let plain: PgEngine = open(&|builder| builder);
    let through: PgEngine = open(&|builder| builder.cached_replays(redis.replays()));
    redis.has_answers(answer_some(&through).await).await;

    let mut samples = Samples::default();
    let mut redis_cpu = Samples::default();
    for round in 0..plan.rounds {
        for &concurrent in &plan.concurrent {
            for name in CONTESTANTS {
                let engine = if name.ends_with("Redis") { &through } else { &plain };
                let (length, before) = (plan.length(), redis.cpu());
                let cpu = || server.cpu();
                let figures = match name.starts_with("replay") {
                    true => for_a_while(concurrent, length, &cpu, replay(engine)).await,
                    false => for_a_while(concurrent, length, &cpu, fresh(engine, ride())).await,
                };
                // The warm-up is a fifth of what ran since then.
                let requests = figures.per_second * length.as_secs_f64() * 1.25;
                let each = (redis.cpu() - before) / requests * 1e6;
                samples.add(name, concurrent, round, figures);
                let figures = Figures { server_cpu: each, ..Figures::default() };
                redis_cpu.push(name, concurrent, round, figures);
            }
        }
    }
    table(&samples, &redis_cpu, plan)
}

type Builder =
    atomic_phases::engine::EngineBuilder<atomic_phases::store::Postgres, crate::requests::App>;

fn table(samples: &Samples, redis_cpu: &Samples, plan: &Plan) -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(2).collect();
    let mut out = format!(
        "# A cache in front of replays\n\nWritten by `sh benches/run --replay-cache`: {} rounds of {} s for each, on {} cores \
         that client, PostgreSQL and Redis share; load average at the end {}. Microseconds of processor time for each \
         request.\n\n\
         | concurrent | | requests/s | p50 ms | p99 ms | client µs | PostgreSQL µs | Redis µs |\n\
         |---|---|---|---|---|---|---|---|\n",
        plan.rounds,
        plan.seconds,
        std::thread::available_parallelism().map_or(0, usize::from),
        load.join(" "),
    );
    for concurrent in samples.concurrencies(CONTESTANTS[0]) {
        for name in CONTESTANTS {
            let median = |samples: &Samples, figure: fn(&Figures) -> f64| {
                samples.spread(name, concurrent, figure).map_or(f64::NAN, |spread| spread.median)
            };
            let _ = writeln!(
                out,
                "| {concurrent} | {name} | {:.0} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} |",
                median(samples, |f| f.per_second),
                median(samples, |f| f.p50),
                median(samples, |f| f.p99),
                median(samples, |f| f.client_cpu),
                median(samples, |f| f.server_cpu),
                median(redis_cpu, |f| f.server_cpu),
            );
        }
    }
    out
}
