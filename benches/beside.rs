//! This program beside another build of it, in turns, on one server: `sh benches/hooks`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::contestants::{answer_some, fresh, open, replay, ride};
use crate::embedded::Embedded;
use crate::load::{Figures, for_a_while};
use crate::options::Plan;
use crate::samples::Samples;
use crate::server::Server;

const CONCURRENT: usize = 8;

const CASES: [(&str, &str); 3] = [
    ("fresh", "Fresh request, PostgreSQL"),
    ("replay", "Replay, PostgreSQL"),
    ("sqlite", "Fresh request, SQLite"),
];

/// The last is the first once more: how far two runs of one program differ.
const CONTESTANTS: [&str; 3] = ["this build", "the other", "this build again"];

/// One case by itself, on the server at `port`; prints its figures.
pub async fn alone(case: &str, port: u16, plan: &Plan) {
    let length = plan.length();
    let no_server = || 0.0;
    let figures = match case {
        "sqlite" => Embedded::open().await.run("sqlite engine", CONCURRENT, length).await,
        "replay" => {
            let work = replay(&open(port, plan.pool).await);
            for_a_while(CONCURRENT, length, &no_server, work).await
        }
        _ => {
            let work = fresh(&open(port, plan.pool).await, ride());
            for_a_while(CONCURRENT, length, &no_server, work).await
        }
    };
    let Figures { per_second, p50, p99, client_cpu, .. } = figures;
    println!("{per_second} {p50} {p99} {client_cpu}");
}

/// Each case with each build once in each round, one after the other; another begins each time.
pub async fn measure(server: &Server, other: &Path, plan: &Plan) -> String {
    answer_some(&open(server.port(), plan.pool).await).await;
    let own = std::env::current_exe().unwrap();
    let mut samples = CASES.map(|_| Samples::default());
    for round in 0..plan.rounds {
        for ((case, title), samples) in CASES.iter().zip(&mut samples) {
            println!("{title}");
            for turn in 0..CONTESTANTS.len() {
                let contestant = CONTESTANTS[(round + turn) % CONTESTANTS.len()];
                let program = if contestant == "the other" { &other.to_owned() } else { &own };
                let figures = run(program, case, server.port(), plan);
                samples.add(contestant, CONCURRENT, round, figures);
            }
        }
    }
    let mut out = format!(
        "\n{} interleaved rounds of {} s for each, {CONCURRENT} concurrent. Medians; a ratio is the median of the \
         ratios within each round, with the least and the greatest in brackets.\n\n\
         | | | requests/s | client CPU µs | x requests/s | x client CPU |\n|---|---|---|---|---|---|\n",
        plan.rounds, plan.seconds,
    );
    for ((_, title), samples) in CASES.iter().zip(&samples) {
        for name in CONTESTANTS {
            let median = |figure: fn(&Figures) -> f64| {
                samples.spread(name, CONCURRENT, figure).map_or(f64::NAN, |spread| spread.median)
            };
            let ratio = |figure: fn(&Figures) -> f64| match name == CONTESTANTS[0] {
                true => String::new(),
                false => samples
                    .ratio(name, CONTESTANTS[0], CONCURRENT, figure)
                    .map_or(String::new(), |ratio| format!("{ratio:.3}")),
            };
            let _ = writeln!(
                out,
                "| {title} | {name} | {:.0} | {:.1} | {} | {} |",
                median(|f| f.per_second),
                median(|f| f.client_cpu),
                ratio(|f| f.per_second),
                ratio(|f| f.client_cpu),
            );
        }
    }
    out
}

fn run(program: &PathBuf, case: &str, port: u16, plan: &Plan) -> Figures {
    let mut command = Command::new(program);
    command.args(["--alone", case, "--port", &port.to_string()]);
    command.args(["--seconds", &plan.seconds.to_string(), "--pool", &plan.pool.to_string()]);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [per_second, p50, p99, client_cpu] = numbers[..] else { panic!("{command:?}: {told}") };
    Figures { per_second, p50, p99, client_cpu, server_cpu: f64::NAN }
}
