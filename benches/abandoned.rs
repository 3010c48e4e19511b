//! Requests whose process died: how much memory one in flight takes, how fast a client's retry
//! resumes one, and how fast the completer drains as many, with as many concurrent ones.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atomic_phases::{IdempotencyKey, Outcome};
use tokio::task::JoinSet;

use crate::background::completed;
use crate::contestants::{PgEngine, ride, scope_of};
use crate::load::{Figures, figures, own_cpu};
use crate::server::Server;

pub struct Drained {
    pub requests: u64,
    /// Bytes of memory that each request took while its foreign call was under way.
    pub memory: f64,
    pub resumed: Figures,
    pub completed: Figures,
}

/// How many requests run concurrently, of the retries and of the completer.
pub const CONCURRENT: usize = 32;

/// Kills `requests` of them in their foreign call, twice; a retry resumes the first lot, and a
/// completer the second. Both are spread over a hundred scopes.
pub async fn measure(server: &Server, engine: &PgEngine, requests: u64) -> Drained {
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
    let (began, client, on_server) = (Instant::now(), own_cpu(), server.cpu());
    completed(server, engine, engine.app(), requests, CONCURRENT).await;
    let completed = taken(began, client, on_server, vec![f64::NAN; requests as usize]);
    Drained { requests, memory, resumed, completed }
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
