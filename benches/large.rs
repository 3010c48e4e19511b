//! A large table: whether a request costs the same, and the plan of each hot statement.

use std::time::Duration;

use crate::contestants::{PgEngine, batch_ride, fresh, key_of, open, ride, scope_of};
use crate::load::for_a_while;
use crate::samples::Samples;
use crate::server::Server;

/// Finished rows as the engine leaves them, by one statement.
pub async fn fill(server: &Server, rows: u64) {
    let sql = format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
         advanced_at, created_at, expires_at, params, outputs, response_status, response_headers, \
         response_body) SELECT 'tenant-' || n % 100, 'old-' || md5(n::text), gen_random_uuid(), \
         k.definition, 1, k.phases, k.fingerprint, 'completed', 'finished', 1, 1, t, t, \
         t + interval '24 h', k.params, k.outputs, 201, k.response_headers, k.response_body \
         FROM (SELECT * FROM atomic_phases_keys WHERE status = 'completed' AND definition = 'bench.ride' LIMIT 1) AS k, \
         generate_series(1, {rows}) AS n, \
         LATERAL (SELECT now() - n * interval '0.008 s' AS t) AS times ON CONFLICT DO NOTHING"
    );
    server.sql(&sql).await;
    server.psql("bench", &["-c", "VACUUM ANALYZE atomic_phases_keys", "-c", "CHECKPOINT"]);
}

/// Fresh requests, for [`Samples`] under one name at each size.
pub async fn load(
    server: &Server,
    engine: &PgEngine,
    samples: &mut Samples,
    size: &'static str,
    rounds: usize,
    length: Duration,
) {
    for round in 0..rounds {
        let figures =
            for_a_while(8, length, &|| server.cpu(), fresh(engine, batch_ride(true))).await;
        samples.add(size, 8, round, figures);
    }
}

/// A fresh request, its replay, and the same with phases that hand their statements over, after as many
/// requests as make the server choose its generic plans.
pub async fn plans(server: &Server) -> String {
    let warm = open(server.port(), 1).await;
    for number in 0..20 {
        let _ = warm.call(&scope_of(number), &key_of(900_000 + number), ride()).await;
    }
    drop(warm);
    watched(server, async |server| {
        let engine = open(server.port(), 1).await;
        for number in 0..10 {
            let _ = engine.call(&scope_of(number), &key_of(910_000 + number), ride()).await;
            let batch = batch_ride(true);
            let _ = engine.call(&scope_of(number), &key_of(915_000 + number), batch).await;
        }
        let before = server.log().await.len();
        for _ in 0..2 {
            let _ = engine.call(&scope_of(0), &key_of(920_000), ride()).await;
        }
        let _ = engine.call(&scope_of(0), &key_of(920_001), batch_ride(true)).await;
        before
    })
    .await
}

/// Each different statement of `work`, once, as a chapter.
pub async fn explain(server: &Server, work: impl AsyncFn(&Server)) -> String {
    let plans = watched(server, async |server| {
        let before = server.log().await.len();
        work(server).await;
        before
    })
    .await;
    let mut seen = std::collections::HashSet::new();
    let first = plans.split("\n\n").filter(|plan| {
        let text = plan.lines().find(|line| line.contains("Query Text:")).unwrap_or_default();
        // The same statement by another plan is worth its own entry.
        let scans = plan.lines().filter_map(|line| line.split_once(" Scan")).map(|(kind, _)| kind);
        let kind: String = scans.collect();
        text.contains("atomic_phases_") && seen.insert((text.to_owned(), kind))
    });
    let first: Vec<&str> = first.collect();
    format!(
        "\n## Plans\n\nEXPLAIN (ANALYZE, BUFFERS) of each statement that was sent, by auto_explain.\n\n```\n{}\n```\n",
        first.join("\n\n").trim_matches('\n')
    )
}

/// EXPLAIN (ANALYZE, BUFFERS) of what the server really ran, by auto_explain, from where in its log
/// `work` says.
async fn watched(server: &Server, work: impl AsyncFn(&Server) -> usize) -> String {
    for setting in [
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_analyze = on",
        "auto_explain.log_buffers = on",
    ] {
        server.sql(&format!("ALTER DATABASE bench SET {setting}")).await;
    }
    let before = work(server).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let log = server.log().await.split_off(before);
    server.sql("ALTER DATABASE bench RESET ALL").await;
    plans_in(&log)
}

fn plans_in(log: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for line in log.lines() {
        if let Some((_, duration)) = line.split_once("LOG:  duration: ") {
            inside = false;
            if let Some((duration, _)) = duration.split_once("  plan:") {
                inside = true;
                out += &format!("\n{duration}\n");
            }
        } else if inside && line.starts_with('\t') {
            out += &line.replacen('\t', "    ", 1);
            out.push('\n');
        } else {
            inside = false;
        }
    }
    out
}
