//! What runs behind the request: staged jobs beside the same by hand, and accepted requests beside those in the
//! foreground. Each contestant has the same amount of work, and runs until it is done.

mod completed_by_hand;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atomic_phases::request::RequestDefinition;
use atomic_phases::worker::{Completer, DeliveryError, Enqueuer, Job, JobSink, WorkerConfig};
use atomic_phases::{Outcome, Scope};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use self::completed_by_hand::{ENGINES, NARROW, accept_on_narrow_table, complete_by_hand};
use crate::contestants::{PgEngine, batch_ride, builder_with, new_key, ride, scope_of, store};
use crate::load::{Figures, figures, own_cpu};
use crate::requests::App;
use crate::samples::Samples;
use crate::server::Server;

/// How many jobs one statement by hand claims or deletes: as many as a batch of the worker's.
const TOGETHER: usize = 100;

/// How many requests run concurrently, in the foreground and in the completer.
const CONCURRENT: usize = 16;

/// How much one contestant has to do.
#[derive(Clone, Copy)]
pub struct Work {
    pub rounds: usize,
    pub jobs: u64,
    pub requests: u64,
}

/// Every contestant once in each round, one after the other: the section of the report.
pub async fn measure(server: &Server, work: Work, pool: usize) -> String {
    let app = App::default();
    let engine = builder_with(store(server.port(), pool).await, app.clone()).build().unwrap();
    server.sql("CREATE TABLE hand_jobs (LIKE atomic_phases_staged_jobs INCLUDING ALL)").await;
    server
        .sql("CREATE TABLE hand_accepted (LIKE limit_keys INCLUDING ALL, run_after timestamptz)")
        .await;
    let due = "CREATE INDEX ON hand_accepted (run_after) WHERE run_after IS NOT NULL";
    server.sql(due).await;
    let (mut samples, mut commits) = (Samples::default(), Samples::default());
    for round in 0..work.rounds {
        for name in JOBS {
            let (table, concurrent) = match name {
                ENGINE => ("atomic_phases_staged_jobs", 1),
                ONE_BY_ONE => ("hand_jobs", 8),
                _ => ("hand_jobs", 1),
            };
            stage(server, table, work.jobs).await;
            let done = async || match name {
                ENGINE => delivered(&engine, work.jobs).await,
                ONE_BY_ONE => by_hand(server, concurrent, 1, work.jobs).await,
                _ => by_hand(server, concurrent, TOGETHER as i64, work.jobs).await,
            };
            let (figures, each) = timed(server, work.jobs, done).await;
            samples.add(name, 1, round, figures);
            commits.add(name, 1, round, Figures { per_second: each, ..figures });
        }
        for (paths, is_batch) in [(TX, false), (BATCH, true)] {
            for (name, path) in paths {
                // Else a completer that has just started would read what the contestants before it have left.
                if !matches!(path, Path::Completed) {
                    server.sql(EMPTY).await;
                }
                match path {
                    Path::Foreground | Path::ForegroundNew | Path::Accepted | Path::Completed => {}
                    Path::ByHand => accept_on_narrow_table(server, work.requests).await,
                    Path::ByHandGuarded => {
                        call(&engine, work.requests, is_batch, Does::Accept).await
                    }
                }
                if matches!(path, Path::Completed | Path::ByHandGuarded) {
                    server.sql("VACUUM ANALYZE atomic_phases_keys").await;
                }
                let done = async || match path {
                    Path::Foreground => call(&engine, work.requests, is_batch, Does::Run).await,
                    Path::ForegroundNew => {
                        call(&engine, work.requests, is_batch, Does::RunNew).await;
                    }
                    Path::Accepted => call(&engine, work.requests, is_batch, Does::Accept).await,
                    Path::Completed => {
                        completed(server, &engine, &app, work.requests, CONCURRENT).await;
                    }
                    Path::ByHand => {
                        complete_by_hand(server, &NARROW, work.requests, is_batch).await;
                    }
                    Path::ByHandGuarded => {
                        complete_by_hand(server, &ENGINES, work.requests, is_batch).await;
                    }
                };
                let (figures, each) = timed(server, work.requests, done).await;
                samples.add(name, 1, round, figures);
                commits.add(name, 1, round, Figures { per_second: each, ..figures });
            }
        }
    }
    let mut out = table("Staged jobs", ["jobs/s", "job"], &JOBS, MANY, &samples, &commits);
    for (title, paths) in [("Accepted requests, `Tx`", TX), ("Accepted, batch", BATCH)] {
        let names = paths.map(|(name, _)| name);
        let rate = ["requests/s", "request"];
        out += &table(title, rate, &names, names[0], &samples, &commits);
    }
    out
}

const ENGINE: &str = "enqueuer";
const ONE_BY_ONE: &str = "by hand, one by one, 8 concurrent";
const MANY: &str = "by hand, 100 together";
const JOBS: [&str; 3] = [MANY, ONE_BY_ONE, ENGINE];

/// What a contestant does with its requests.
#[derive(Clone, Copy)]
enum Path {
    Foreground,
    /// With the hint that the key is new, which saves the read of the key.
    ForegroundNew,
    Accepted,
    /// What was accepted last.
    Completed,
    /// Its floor, with the same SQL as the yardstick's.
    ByHand,
    /// Its floor on the engine's own tables, of requests that the engine has accepted.
    ByHandGuarded,
}

const TX: [(&str, Path); 6] = [
    ("tx in the foreground", Path::Foreground),
    ("tx in the foreground, new key", Path::ForegroundNew),
    ("tx accepted", Path::Accepted),
    ("tx completed", Path::Completed),
    ("completed by hand, claimed 100 together", Path::ByHand),
    ("completed by hand, guarded, engine's tables, claimed 100 together", Path::ByHandGuarded),
];

const BATCH: [(&str, Path); 6] = [
    ("batch in the foreground", Path::Foreground),
    ("batch in the foreground, new key", Path::ForegroundNew),
    ("batch accepted", Path::Accepted),
    ("batch completed", Path::Completed),
    ("completed by hand, single statements, claimed 100 together", Path::ByHand),
    (
        "completed by hand, single statements, guarded, engine's tables, claimed 100 together",
        Path::ByHandGuarded,
    ),
];

const EMPTY: &str = "TRUNCATE atomic_phases_keys, atomic_phases_staged_jobs, hand_accepted";

/// What it came to, and transactions that wrote for each.
async fn timed(server: &Server, count: u64, work: impl AsyncFnOnce()) -> (Figures, f64) {
    let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let before = server.number(xid).await;
    let (began, client, on_server) = (Instant::now(), own_cpu(), server.cpu());
    work().await;
    let (seconds, client) = (began.elapsed().as_secs_f64(), own_cpu() - client);
    let on_server = server.cpu() - on_server;
    let commits = (server.number(xid).await - before) as f64 / count as f64;
    (figures(vec![f64::NAN; count as usize], seconds, client, on_server), commits)
}

fn table(
    title: &str,
    [rate, each]: [&str; 2],
    names: &[&'static str],
    beside: &str,
    samples: &Samples,
    commits: &Samples,
) -> String {
    let mut out = format!(
        "\n## {title}\n\n| | {rate} | x {beside} | client CPU µs | server CPU µs | x {beside} | commits a {each} |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for name in names {
        let median = |samples: &Samples, figure: fn(&Figures) -> f64| {
            samples.spread(name, 1, figure).map_or(f64::NAN, |spread| spread.median)
        };
        let ratio = |figure: fn(&Figures) -> f64| {
            let ratio = samples.ratio(name, beside, 1, figure).filter(|_| *name != beside);
            ratio.map_or(String::new(), |ratio| ratio.to_string())
        };
        let _ = writeln!(
            out,
            "| {name} | {:.0} | {} | {:.0} | {:.0} | {} | {:.2} |",
            median(samples, |f| f.per_second),
            ratio(|f| f.per_second),
            median(samples, |f| f.client_cpu),
            median(samples, |f| f.server_cpu),
            ratio(|f| f.server_cpu),
            median(commits, |f| f.per_second),
        );
    }
    out
}

/// As phases would have, of as many requests, in a hundred scopes.
async fn stage(server: &Server, table: &str, jobs: u64) {
    server
        .sql(&format!(
            "TRUNCATE {table}; INSERT INTO {table} (scope, request_id, position, job_id, idempotency_key, \
             name, args, staged_at, run_after) SELECT 'tenant-' || n % 100, gen_random_uuid(), 0, \
             gen_random_uuid(), 'key-' || n, 'receipt', '2000', now(), now() FROM generate_series(1, {jobs}) AS n"
        ))
        .await;
    server.sql(&format!("VACUUM ANALYZE {table}")).await;
}

#[derive(Clone, Default)]
struct Nothing(Arc<AtomicU64>);

impl JobSink for Nothing {
    async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Until each was delivered, and what was begun has ended.
async fn delivered(engine: &PgEngine, jobs: u64) {
    let sink = Nothing::default();
    let enqueuer = Enqueuer::new(engine, sink.clone(), WorkerConfig::default());
    let done = async move {
        while sink.0.load(Ordering::Relaxed) < jobs {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::spawn(enqueuer.run(done)).await.unwrap();
}

/// What the engine's statements have to do, in the fewest and simplest.
async fn by_hand(server: &Server, concurrent: usize, together: i64, jobs: u64) {
    let left = Arc::new(AtomicU64::new(jobs));
    let mut running = JoinSet::new();
    for _ in 0..concurrent {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let left = left.clone();
        running.spawn(async move { work_off(&client, together, &left).await });
    }
    running.join_all().await;
}

async fn work_off(client: &Client, together: i64, left: &AtomicU64) {
    let claim = "UPDATE hand_jobs SET attempts = attempts + 1, run_after = clock_timestamp() + interval '60 s' \
        WHERE (scope, request_id, position) IN (SELECT scope, request_id, position FROM hand_jobs \
        WHERE run_after <= clock_timestamp() ORDER BY run_after LIMIT $1 FOR UPDATE SKIP LOCKED) \
        RETURNING scope, request_id::text, position, name, args";
    let delete = "DELETE FROM hand_jobs USING unnest($1::text[], $2::text[]::uuid[], $3::bigint[]) \
        AS ended (scope, request_id, position) WHERE hand_jobs.scope = ended.scope \
        AND hand_jobs.request_id = ended.request_id AND hand_jobs.position = ended.position";
    let (claim, delete) =
        (client.prepare(claim).await.unwrap(), client.prepare(delete).await.unwrap());
    while left.load(Ordering::Relaxed) > 0 {
        let rows = client.query(&claim, &[&together]).await.unwrap();
        let scopes: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let requests: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
        let positions: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
        let deleted = client.execute(&delete, &[&scopes, &requests, &positions]).await.unwrap();
        left.fetch_sub(deleted, Ordering::Relaxed);
    }
}

/// What a call does with a new request.
#[derive(Clone, Copy)]
enum Does {
    Run,
    /// With the hint that the key is new.
    RunNew,
    /// With that hint, too.
    Accept,
}

async fn call(engine: &PgEngine, requests: u64, is_batch: bool, does: Does) {
    match is_batch {
        true => call_each(engine, requests, batch_ride(true), does).await,
        false => call_each(engine, requests, ride(), does).await,
    }
}

async fn call_each<R>(engine: &PgEngine, requests: u64, request: R, does: Does)
where
    R: RequestDefinition<atomic_phases::store::Postgres, App> + Clone + Sync,
{
    let next = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    for _ in 0..CONCURRENT {
        let (engine, next, request) = (engine.clone(), next.clone(), request.clone());
        running.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return;
                }
                let scope: Scope = scope_of(number);
                let key = new_key();
                let call = engine.call(&scope, &key, request.clone());
                let outcome = match does {
                    Does::Run => call.await,
                    Does::RunNew => call.expect_new().await,
                    Does::Accept => call.expect_new().accept().await,
                };
                assert!(
                    matches!(outcome, Ok(Outcome::Finished(_) | Outcome::Accepted)),
                    "{outcome:?}"
                );
            }
        });
    }
    running.join_all().await;
}

/// Until none is left that is due. That is asked for once each has made its call: before, the question would read
/// all that the index has left behind, again and again.
pub async fn completed(
    server: &Server,
    engine: &PgEngine,
    app: &App,
    requests: u64,
    concurrent: usize,
) {
    let config = WorkerConfig::default().grace(Duration::ZERO).concurrency(concurrent);
    let left = "SELECT count(*) FROM (SELECT 1 FROM atomic_phases_keys WHERE run_after IS NOT NULL LIMIT 1) AS due";
    let all = app.calls.load(Ordering::Relaxed) + requests;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    // On a task, as `spawn_workers` does.
    let completer = Completer::new(engine, config).run(async { drop(stopped.await) });
    let completer = tokio::spawn(completer);
    while app.calls.load(Ordering::Relaxed) < all || server.number(left).await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stop);
    completer.await.unwrap();
}
