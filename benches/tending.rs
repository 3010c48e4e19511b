//! The workers on a large table: what traffic feels of the reaper, and the plan of each statement that
//! a worker sends.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atomic_phases::worker::{
    Completer, DeliveryError, Enqueuer, Job, JobSink, Reaper, Reconciler, WorkerConfig,
};
use atomic_phases::{Outcome, Scope};

use crate::contestants::{PgEngine, key_of, open, ride, scope_of};
use crate::large;
use crate::server::Server;

/// Requests per second of the traffic beside the reaper.
const TRAFFIC: u64 = 200;

/// Fills the table, and writes what it finds.
pub async fn measure(server: &Server, rows: u64, rounds: usize, length: Duration) -> String {
    let engine = open(server.port(), 16).await;
    let _ = engine.call(&scope_of(0), &key_of(1), ride()).await;
    large::fill(server, rows).await;
    let mut out = format!(
        "# The workers on a table of {rows} rows\n\nWritten by `sh benches/run --workers`.\n\n\
         ## The reaper beside {TRAFFIC} requests per second\n\n\
         | round | p99 without, ms | p99 with, ms | ratio | rows reaped |\n|---|---|---|---|---|\n"
    );
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let without = traffic(&engine, length).await;
        // As many rows as it can take in the meantime are expired.
        let expire = "UPDATE atomic_phases_keys SET expires_at = now() - interval '1 h' \
                      WHERE ctid IN (SELECT ctid FROM atomic_phases_keys \
                      WHERE expires_at > now() LIMIT 100000)";
        server.psql("bench", &["-c", expire, "-c", "CHECKPOINT"]);
        let rows = async || {
            server.number("SELECT count(*) FROM atomic_phases_keys WHERE expires_at < now()").await
        };
        let before = rows().await;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let reaper = Reaper::new(engine.store(), WorkerConfig::default());
        let reaping = tokio::spawn(reaper.run(async move { drop(stopped.await) }));
        let with = traffic(&engine, length).await;
        stop.send(()).unwrap();
        reaping.await.unwrap();
        let reaped = before - rows().await;
        let ratio = with / without;
        ratios.push(ratio);
        let _ = writeln!(out, "| {round} | {without:.1} | {with:.1} | {ratio:.2} | {reaped} |");
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
    let _ = writeln!(out, "\nMedian of the ratios: {median:.2}.");
    out + &plans(server).await
}

/// An open loop: a request begins when its time has come, whether or not the last one has ended. The
/// 99th percentile of the latency, in milliseconds.
async fn traffic(engine: &PgEngine, length: Duration) -> f64 {
    static NEXT: AtomicU64 = AtomicU64::new(10_000_000);
    let mut tick = tokio::time::interval(Duration::from_secs(1) / TRAFFIC as u32);
    let (began, mut running) = (Instant::now(), tokio::task::JoinSet::new());
    while began.elapsed() < length {
        tick.tick().await;
        let (engine, number) = (engine.clone(), NEXT.fetch_add(1, Ordering::Relaxed));
        running.spawn(async move {
            let began = Instant::now();
            let outcome = engine.call(&scope_of(number), &key_of(number), ride()).await;
            assert!(matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
            began.elapsed().as_secs_f64() * 1e3
        });
    }
    let mut latencies = running.join_all().await;
    latencies.sort_by(f64::total_cmp);
    latencies[latencies.len() * 99 / 100]
}

/// What auto_explain sees of one look of each worker that finds something to do.
async fn plans(server: &Server) -> String {
    let engine = open(server.port(), 4).await;
    for number in 0..20 {
        let call = engine.call(&Scope::new("tended").unwrap(), &key_of(number), ride());
        call.accept().await.unwrap();
    }
    server.psql("bench", &["-c", "VACUUM ANALYZE"]);
    large::explain(server, async |server| {
        let engine = open(server.port(), 1).await;
        let config = WorkerConfig::default().grace(Duration::ZERO).concurrency(1);
        let mut completer = Completer::new(&engine, config.clone());
        // The first look reads the whole table, the second the youngest rows.
        completer.run_once().await.unwrap();
        completer.run_once().await.unwrap();
        Reconciler::new(&engine, config.clone()).run_once().await.unwrap();
        let mut enqueuer = Enqueuer::new(&engine, Accepting, config.clone().batch(1));
        enqueuer.run_once().await.unwrap();
        Reaper::new(engine.store(), config).run_once().await.unwrap();
    })
    .await
}

struct Accepting;

impl JobSink for Accepting {
    async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
        Ok(())
    }
}
