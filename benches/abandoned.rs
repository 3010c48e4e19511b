//! Requests whose process died: how much memory one in flight takes, how fast clients' retries resume them, and how fast
//! a completer drains as many, with as many concurrent ones.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atomic_phases::{IdempotencyKey, Outcome};
use futures_util::future::join;
use tokio::task::JoinSet;

use crate::background::completed;
use crate::contestants::{PgEngine, open, ride, scope_of};
use crate::load::{Figures, figures, own_cpu};
use crate::options::Plan;
use crate::samples::Samples;
use crate::server::Server;

struct Drained {
    /// Bytes of memory that each request took while its foreign call was under way.
    memory: f64,
    resumed: Figures,
    completed: Figures,
    /// How long the completer, begun anew, took until it resumed the first.
    found: Duration,
}

/// How many requests run concurrently, of the retries and of the completer.
const CONCURRENT: usize = 32;

const RETRIES: &str = "resumed by retries";
const COMPLETER: &str = "drained by a completer";

/// The page.
pub async fn measured(server: &Server, plan: &Plan) -> String {
    let engine = open(server.port(), plan.pool).await;
    let (mut samples, mut memory, mut found) = (Samples::default(), f64::NAN, Duration::ZERO);
    for round in 0..plan.rounds {
        let drained = measure(server, &engine, plan.abandoned).await;
        samples.add(RETRIES, CONCURRENT, round, drained.resumed);
        samples.add(COMPLETER, CONCURRENT, round, drained.completed);
        memory = drained.memory;
        found = found.max(drained.found);
    }
    let mut out = format!(
        "# Requests whose process died in the foreign call\n\n\
         Written by `sh benches/run --drained`: {} requests in a hundred scopes, {CONCURRENT} run concurrently, medians of {} \
         rounds. A completer is measured from the first request that it resumes; begun on a table of {} rows, it resumed the \
         first within {} ms. Each request took {:.1} kB of the client's memory while it was in flight.\n\n\
         | | requests/s | x {RETRIES} | client CPU µs | server CPU µs |\n|---|---|---|---|---|\n",
        plan.abandoned,
        plan.rounds,
        2 * plan.abandoned,
        found.as_millis(),
        memory / 1e3,
    );
    for name in [RETRIES, COMPLETER] {
        let median = |figure: fn(&Figures) -> f64| {
            samples.spread(name, CONCURRENT, figure).map_or(f64::NAN, |spread| spread.median)
        };
        let ratio = samples.ratio(name, RETRIES, CONCURRENT, |f| f.per_second);
        let ratio = ratio.filter(|_| name != RETRIES).map_or(String::new(), |r| r.to_string());
        let _ = writeln!(
            out,
            "| {name} | {:.0} | {ratio} | {:.0} | {:.0} |",
            median(|f| f.per_second),
            median(|f| f.client_cpu),
            median(|f| f.server_cpu),
        );
    }
    out
}

/// Kills `requests` of them in their foreign call, twice; retries resume the first lot, and a
/// completer the second. Both are spread over a hundred scopes.
async fn measure(server: &Server, engine: &PgEngine, requests: u64) -> Drained {
    server.sql("TRUNCATE atomic_phases_keys, atomic_phases_staged_jobs").await;
    let memory = abandon(server, engine, "retried", requests).await;
    let (began, client, on_server) = (Instant::now(), own_cpu(), server.cpu());
    let mut latencies = Vec::new();
    let mut running = JoinSet::new();
    for number in 0..requests {
        if running.len() >= CONCURRENT {
            latencies.extend(running.join_next().await.transpose().unwrap());
        }
        let engine = engine.clone();
        running.spawn(async move {
            let began = Instant::now();
            let outcome = engine.call(&scope_of(number), &key("retried", number), ride()).await;
            assert!(matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
            began.elapsed().as_secs_f64() * 1e3
        });
    }
    latencies.extend(running.join_all().await);
    let taken = |began: Instant, client, on_server, latencies| {
        let (client, on_server) = (own_cpu() - client, server.cpu() - on_server);
        figures(latencies, began.elapsed().as_secs_f64(), client, on_server)
    };
    let resumed = taken(began, client, on_server, latencies);

    abandon(server, engine, "drained", requests).await;
    let (begun, calls) = (Instant::now(), engine.app().calls.load(Ordering::Relaxed));
    let first = async {
        while engine.app().calls.load(Ordering::Relaxed) == calls {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (Instant::now(), own_cpu(), server.cpu())
    };
    let all = completed(server, engine, engine.app(), requests, CONCURRENT);
    let ((began, client, on_server), ()) = join(first, all).await;
    let completed = taken(began, client, on_server, vec![f64::NAN; requests as usize]);
    Drained { memory, resumed, completed, found: began - begun }
}

fn key(lot: &str, number: u64) -> IdempotencyKey {
    IdempotencyKey::new(format!("{lot}-{number}")).unwrap()
}

/// Leaves the rows that a dead process leaves, with their leases run out; says how much memory a
/// request took.
async fn abandon(server: &Server, engine: &PgEngine, lot: &'static str, requests: u64) -> f64 {
    let app = engine.app();
    app.closed.store(true, Ordering::Relaxed);
    app.parked.store(0, Ordering::Relaxed);
    let before = resident();
    let mut doomed = JoinSet::new();
    for number in 0..requests {
        let engine = engine.clone();
        // On the caller's own task: aborting it is the crash.
        doomed.spawn(async move {
            let call = engine.call(&scope_of(number), &key(lot, number), ride());
            drop(call.__call_in_place().await);
        });
    }
    while (app.parked.load(Ordering::Relaxed) as u64) < requests {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let memory = (resident() - before) / requests as f64;
    doomed.shutdown().await;
    app.closed.store(false, Ordering::Relaxed);
    let expire =
        "UPDATE atomic_phases_keys SET locked_until = created_at WHERE status = 'in_progress'";
    server.psql("bench", &["-c", expire, "-c", "VACUUM ANALYZE atomic_phases_keys"]);
    memory
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap();
    pages * 4096.0
}
