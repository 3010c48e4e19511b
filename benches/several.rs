//! Several processes on one server, beside one with as many connections and as many concurrent requests. Each has workers.
//! What the server's sessions wait for meanwhile tells what is full first.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atomic_phases::worker::{DeliveryError, Handlers, Job, WorkerConfig};
use atomic_phases::{Outcome, Scope};
use diesel::sql_types::{BigInt, Text};
use diesel_async::RunQueryDsl;

use crate::contestants::{PgEngine, batch_ride, new_key, open, scope_of};
use crate::load::{Figures, for_a_while};
use crate::options::Plan;
use crate::samples::Spread;
use crate::server::Server;

const PROCESSES: [usize; 3] = [1, 2, 4];
const CONCURRENT: usize = 32;

/// How the requests are spread over scopes, and what a process is told to measure it.
const SPREADS: [(&str, &str); 2] = [("100 scopes", "cold"), ("one scope", "hot")];

/// One of the processes. Begins when its standard input is closed: they begin together.
pub async fn alone(is_hot: bool, port: u16, plan: &Plan) {
    let engine = open(port, plan.pool).await;
    let sent = Handlers::new().on("receipt", async |_: i64, _: Job| Ok::<_, DeliveryError>(()));
    let workers = engine.spawn_workers(WorkerConfig::default().sink(sent)).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    let _ = std::io::read_to_string(std::io::stdin());
    let concurrent = plan.concurrent[0];
    let figures = for_a_while(concurrent, plan.length(), &|| 0.0, rides(&engine, is_hot)).await;
    let Figures { per_second, p50, p99, client_cpu, .. } = figures;
    println!("{per_second} {p50} {p99} {client_cpu}");
    let _ = workers.shutdown(Duration::from_secs(5)).await;
}

type Work = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn rides(engine: &PgEngine, is_hot: bool) -> impl Fn() -> Work + Clone + Send + use<> {
    let (engine, next) =
        (engine.clone(), std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0)));
    move || {
        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let scope = if is_hot { Scope::new("hot").unwrap() } else { scope_of(number) };
        let call = engine.call(&scope, &new_key(), batch_ride(true));
        Box::pin(async move {
            let outcome = call.await;
            assert!(matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
        })
    }
}

/// What one run came to.
struct Run {
    per_second: f64,
    p50: f64,
    p99: f64,
    client_cpu: f64,
    /// Of the server, in cores.
    busy: f64,
    waits: BTreeMap<String, u64>,
}

pub async fn measure(server: &Server, plan: &Plan) -> String {
    let mut out = format!(
        "# Several processes on one server\n\nWritten by `sh benches/run --several`. {} connections and {CONCURRENT} \
         concurrent requests in all, shared by the processes; each runs its workers. A fresh request of three phases \
         with a `Batch`; medians of {} interleaved rounds of {} s, with the least and the greatest in brackets. \
         {} cores, shared with the server; load average before {}. *Waits*: what the server's busy sessions were seen \
         to do, in {SAMPLED} samples a second; *CPU* is not a wait.\n\n\
         | scopes | processes | requests/s | p50 ms | p99 ms | client CPU µs | server, cores | waits |\n\
         |---|---|---|---|---|---|---|---|\n",
        plan.pool,
        plan.rounds,
        plan.seconds,
        std::thread::available_parallelism().map_or(0, usize::from),
        load(),
    );
    let mut runs: BTreeMap<(usize, usize), Vec<Run>> = BTreeMap::new();
    for round in 0..plan.rounds {
        for (spread, (scopes, spread_over)) in SPREADS.iter().enumerate() {
            for turn in 0..PROCESSES.len() {
                let nth = (round + turn) % PROCESSES.len();
                let run = run(server, plan, spread_over, PROCESSES[nth]).await;
                println!(
                    "round {round}, {}, {} processes: {:.0}/s, p99 {:.1} ms, server {:.2} cores",
                    scopes, PROCESSES[nth], run.per_second, run.p99, run.busy
                );
                runs.entry((spread, nth)).or_default().push(run);
            }
        }
    }
    for ((spread, nth), runs) in &runs {
        let of = |figure: fn(&Run) -> f64| Spread::of(runs.iter().map(figure).collect()).unwrap();
        let _ = writeln!(
            out,
            "| {} | {} | {:.0} | {:.1} | {:.1} | {:.0} | {:.2} | {} |",
            SPREADS[*spread].0,
            PROCESSES[*nth],
            of(|run| run.per_second),
            of(|run| run.p50).median,
            of(|run| run.p99),
            of(|run| run.client_cpu).median,
            of(|run| run.busy).median,
            waits(runs),
        );
    }
    let _ = writeln!(out, "\nLoad average at the end {}.", load());
    out
}

async fn run(server: &Server, plan: &Plan, case: &str, processes: usize) -> Run {
    let share = |all: usize| (all / processes).max(1).to_string();
    let children: Vec<Child> = (0..processes)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--alone", case, "--port", &server.port().to_string()]);
            command.args(["--seconds", &plan.seconds.to_string(), "--pool", &share(plan.pool)]);
            command.args(["--concurrent", &share(CONCURRENT)]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let children: Vec<Child> =
        tokio::task::block_in_place(|| children.into_iter().map(ready).collect());
    let (cpu, began) = (server.cpu(), Instant::now());
    let ended = tokio::task::spawn_blocking(|| together(children));
    let waits = sampled(server, &ended).await;
    let told = ended.await.unwrap();
    let busy = (server.cpu() - cpu) / began.elapsed().as_secs_f64();
    let all: f64 = told.iter().map(|[per_second, ..]| per_second).sum();
    // Of each figure the mean by requests; of the tail the worst.
    let mean = |nth: usize| told.iter().map(|one| one[0] * one[nth]).sum::<f64>() / all;
    let p99 = told.iter().map(|one| one[2]).fold(0.0, f64::max);
    Run { per_second: all, p50: mean(1), p99, client_cpu: mean(3), busy, waits }
}

/// Has opened its store, and waits to begin.
fn ready(mut child: Child) -> Child {
    let mut line = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    child
}

/// Lets them begin, and waits for their figures.
fn together(mut children: Vec<Child>) -> Vec<[f64; 4]> {
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    let figures = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let told = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<f64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    });
    figures.collect()
}

const SAMPLED: u32 = 20;

#[derive(diesel::QueryableByName)]
struct Wait {
    #[diesel(sql_type = Text)]
    event: String,
    #[diesel(sql_type = BigInt)]
    sessions: i64,
}

/// What the busy sessions are seen to wait for, until `ended`.
async fn sampled<T>(server: &Server, ended: &tokio::task::JoinHandle<T>) -> BTreeMap<String, u64> {
    let mut conn = server.connection().await;
    let mut seen = BTreeMap::new();
    while !ended.is_finished() {
        let asked = diesel::sql_query(
            "SELECT coalesce(wait_event_type || ' ' || wait_event, 'CPU') AS event, count(*) AS sessions \
             FROM pg_stat_activity WHERE state = 'active' AND backend_type = 'client backend' \
             AND pid <> pg_backend_pid() GROUP BY 1",
        );
        for Wait { event, sessions } in asked.load::<Wait>(&mut conn).await.unwrap() {
            *seen.entry(event).or_default() += sessions.unsigned_abs();
        }
        tokio::time::sleep(Duration::from_secs(1) / SAMPLED).await;
    }
    seen
}

/// The three that were seen most.
fn waits(runs: &[Run]) -> String {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for (event, sessions) in runs.iter().flat_map(|run| &run.waits) {
        *all.entry(event).or_default() += sessions;
    }
    let total = all.values().sum::<u64>().max(1) as f64;
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, sessions)| std::cmp::Reverse(*sessions));
    let shown = all.iter().take(3);
    let shown = shown.map(|(event, seen)| format!("{event} {:.0} %", 100.0 * *seen as f64 / total));
    shown.collect::<Vec<_>>().join(", ")
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
