//! Requests with everything on that tells of them (a recorder that is scraped each second, counts by scope, the census,
//! notices of those that wait), beside the same with all of it off: in turns, each in a process of its own, on one server.

use std::fmt::Write;
use std::future::pending;
use std::process::{Command, Stdio};
use std::time::Duration;

use atomic_phases::worker::{Announcer, Census, WorkerConfig};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::contestants::{PgEngine, answer_some, builder, fresh, open, replay, ride, store};
use crate::load::{Figures, for_a_while};
use crate::options::Plan;
use crate::samples::Samples;
use crate::server::Server;

const CONCURRENT: [usize; 2] = [1, 8];

const CASES: [(&str, &str); 2] = [("fresh", "Fresh request"), ("replay", "Replay")];

/// The last is the first once more: how far two runs of one program differ.
const CONTESTANTS: [&str; 3] = ["off", "on", "off again"];

/// Of a service whose requests take milliseconds.
const BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Begins with it, what is asked for by itself.
pub const ALONE: &str = "watched ";

/// One case by itself, on the server at `port`; prints its figures.
pub async fn alone(case: &str, port: u16, plan: &Plan) {
    let is_on = case.ends_with(" on");
    let engine = if is_on { watched(port, plan).await } else { open(port, plan.pool).await };
    let (no_server, concurrent) = (|| 0.0, plan.concurrent[0]);
    let figures = match case.contains("replay") {
        true => for_a_while(concurrent, plan.length(), &no_server, replay(&engine)).await,
        false => for_a_while(concurrent, plan.length(), &no_server, fresh(&engine, ride())).await,
    };
    let Figures { per_second, p50, p99, client_cpu, .. } = figures;
    println!("{per_second} {p50} {p99} {client_cpu}");
}

async fn watched(port: u16, plan: &Plan) -> PgEngine {
    let recorder = PrometheusBuilder::new().with_recommended_naming(true);
    let exposition = recorder.set_buckets(&BUCKETS).unwrap().install_recorder().unwrap();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            std::hint::black_box(exposition.render());
        }
    });
    let engine = builder(store(port, plan.pool).await).notify_waiting().scopes_in_metrics(20);
    let engine = engine.build().unwrap();
    let config = WorkerConfig::default().census_every(Duration::from_secs(1));
    tokio::spawn(Announcer::new(&engine, config.clone()).run(pending()));
    tokio::spawn(Census::new(&engine, config).run(pending()));
    engine
}

/// Each case once with each contestant in each round, one after the other; another begins each time.
pub async fn measure(server: &Server, plan: &Plan) -> String {
    answer_some(&open(server.port(), plan.pool).await).await;
    let mut samples = CASES.map(|_| Samples::default());
    for round in 0..plan.rounds {
        for ((case, _), samples) in CASES.iter().zip(&mut samples) {
            for concurrent in CONCURRENT {
                for turn in 0..CONTESTANTS.len() {
                    let contestant = CONTESTANTS[(round + turn) % CONTESTANTS.len()];
                    let word = if contestant == "on" { "on" } else { "off" };
                    let before = server.cpu();
                    let mut figures =
                        run(&format!("{ALONE}{case} {word}"), concurrent, server, plan);
                    let requests = figures.per_second * plan.length().as_secs_f64();
                    figures.server_cpu = (server.cpu() - before) * 1e6 / requests;
                    println!("{case} {concurrent} {contestant}: {figures:?}");
                    samples.add(contestant, concurrent, round, figures);
                }
            }
        }
    }
    let mut out = format!(
        "# What it costs to be watched\n\n\
         Written by `sh benches/run --watched`: {} interleaved rounds of {} s for each, on \
         PostgreSQL, every run in a process of its own. *On*: a recorder for Prometheus that is scraped each second, \
         counts by scope, the census and the announcer (each second, fifteen times as often as by default), notices of \
         requests that begin to wait. *Off*: the same program, and no recorder installed. Microseconds of processor \
         time for each request, the server's with what the start of a process takes. Medians; a ratio is the median of \
         the ratios within each round, with the least and the greatest in brackets.\n\n\
         | | concurrent | | requests/s | p50 ms | p99 ms | client µs | PostgreSQL µs | x requests/s | x client µs |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        plan.rounds, plan.seconds,
    );
    for ((_, title), samples) in CASES.iter().zip(&samples) {
        for concurrent in CONCURRENT {
            for name in CONTESTANTS {
                let median = |figure: fn(&Figures) -> f64| {
                    samples
                        .spread(name, concurrent, figure)
                        .map_or(f64::NAN, |spread| spread.median)
                };
                let ratio = |figure: fn(&Figures) -> f64| {
                    let ratio = samples.ratio(name, CONTESTANTS[0], concurrent, figure);
                    let ratio = ratio.filter(|_| name != CONTESTANTS[0]);
                    ratio.map_or(String::new(), |ratio| ratio.to_string())
                };
                let _ = writeln!(
                    out,
                    "| {title} | {concurrent} | {name} | {:.0} | {:.2} | {:.2} | {:.1} | {:.0} | {} | {} |",
                    median(|f| f.per_second),
                    median(|f| f.p50),
                    median(|f| f.p99),
                    median(|f| f.client_cpu),
                    median(|f| f.server_cpu),
                    ratio(|f| f.per_second),
                    ratio(|f| f.client_cpu),
                );
            }
        }
    }
    out
}

fn run(case: &str, concurrent: usize, server: &Server, plan: &Plan) -> Figures {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--alone", case, "--port", &server.port().to_string()]);
    command.args(["--seconds", &plan.seconds.to_string(), "--pool", &plan.pool.to_string()]);
    command.args(["--concurrent", &concurrent.to_string()]);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [per_second, p50, p99, client_cpu] = numbers[..] else { panic!("{command:?}: {told}") };
    Figures { per_second, p50, p99, client_cpu, server_cpu: f64::NAN }
}
