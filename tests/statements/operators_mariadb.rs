//! As `operators_million`, on MariaDB: what each route and page of operators sends among a million requests, by which
//! index, how many rows the server reads for it, and how long that takes beside a read by the primary key.
//!
//! ```sh
//! OPERATORS_INTO=docs/bench/operators-mariadb.md cargo test --all-features --test statements \
//!     among_a_million_requests_on_mariadb -- --ignored --nocapture
//! ```
//!
//! `OPERATORS_ROWS` is another number of requests.

use std::fmt::Write;
use std::time::{Duration, Instant};

use atomic_phases::console::{Api, Console};
use atomic_phases::ops::{Actor, Filter, Permissions, Scopes};
use atomic_phases::store::Mysql;
use atomic_phases::worker::{Announcer, WorkerConfig};
use atomic_phases::{IdempotencyKey, Outcome, Scope};
use axum::Router;
use serde_json::Value;

use crate::mysql::Observed;
use crate::operators_million::{
    Face, Known, NEEDLE, TIMES, WAITING, answer, asks, key_of_needle, median, needle, rows, walked,
};
use crate::support::db::{open_my, prepare_my};
use crate::support::*;

/// Copies of two real rows with times within a month, in random order, as in `operators_million`.
async fn filled(db: &Mysql) {
    let engine = engine(db, &App::default());
    let unknown = engine.call(&scope(), &key("unknown"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    let finished = engine.call(&scope(), &key("finished"), notify(Trouble::None)).await;
    assert!(matches!(finished, Ok(Outcome::Finished(_))), "{finished:?}");
    let (rows, each, needle) = (rows(), rows() / WAITING, needle());
    const NOW: &str = "FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)";
    db.sql("DROP TRIGGER forward_only").await;
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, definition_version, phases, \
         fingerprint, status, recovery_point, open_intent, lease_token, attempts, reason, run_after, waiting_since, \
         advanced_at, created_at, expires_at, params, context, outputs, response_status, response_headers, \
         response_body, events, events_written) \
         SELECT CONCAT('tenant-', n DIV {each} % 100), CONCAT('key-', n), UNHEX(MD5(n)), of.definition, \
         of.definition_version, of.phases, of.fingerprint, \
         CASE WHEN kind IN (1, 2, 3, 4) THEN 'dead_letter' WHEN kind = 5 THEN 'failed_retryable' \
         ELSE of.status END, of.recovery_point, CASE WHEN kind = 0 THEN of.open_intent END, of.lease_token, 1, \
         CASE WHEN n = {needle} THEN '{NEEDLE}' WHEN kind < 6 THEN 'the line is down' END, \
         CASE WHEN kind = 5 THEN t END, CASE WHEN kind < 5 THEN t END, t, t, t + 5184000000, of.params, \
         of.context, of.outputs, of.response_status, of.response_headers, of.response_body, of.events, \
         of.events_written \
         FROM (SELECT n, CASE WHEN n % {each} = 0 THEN n DIV {each} % 5 WHEN n % {each} = 1 AND n % 5 = 1 THEN 5 \
         ELSE 6 END AS kind, {NOW} - n * 2000 AS t \
         FROM (SELECT (seq * 7919) % {rows} + 1 AS n FROM seq_1_to_{rows}) AS numbers) AS requests \
         JOIN atomic_phases_keys AS of ON of.scope = 'tenant-1' \
         AND of.idempotency_key = CASE WHEN kind < 6 THEN 'unknown' ELSE 'finished' END",
    ))
    .await;
    let limits = r#"{"only":null,"prefix":""}"#;
    for sql in [
        format!(
            "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, \
             args, staged_at, run_after) SELECT CONCAT('tenant-', seq % 100), UNHEX(MD5(seq)), 1, \
             UNHEX(MD5(CONCAT('job', seq))), seq, 'receipt', '', {NOW} - seq * 1000, \
             CASE WHEN seq % 2 = 0 THEN {NOW} END FROM seq_1_to_{}",
            rows / 10
        ),
        format!(
            "INSERT INTO atomic_phases_audit (at, id, actor, act, outcome, reason, request_id) \
             SELECT {NOW} - seq * 60000, UNHEX(MD5(seq)), 'ada', 'retry', 'applied', 'r', UNHEX(MD5(-seq)) \
             FROM seq_1_to_100000"
        ),
        format!(
            "INSERT INTO atomic_phases_bulk (id, act, actor, reason, limits, items, started_at, ended_at) \
             SELECT UNHEX(MD5(seq)), 'retry', 'ada', 'r', '{limits}', 5, {NOW} - seq * 3600000, {NOW} \
             FROM seq_1_to_1000"
        ),
        "INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen, outcome) \
         SELECT id, seq, UNHEX(MD5(seq)), 'seen', 'applied' FROM atomic_phases_bulk, seq_0_to_4"
            .to_owned(),
        "DELETE FROM atomic_phases_keys WHERE idempotency_key IN ('unknown', 'finished')"
            .to_owned(),
        "ANALYZE TABLE atomic_phases_keys, atomic_phases_staged_jobs, atomic_phases_audit, \
         atomic_phases_bulk, atomic_phases_bulk_items"
            .to_owned(),
    ] {
        db.sql(&sql).await;
    }
}

/// An executed statement.
struct Run {
    ms: f64,
    /// The most that were read from one table or index.
    rows: u64,
    indexes: Vec<String>,
    /// Tables that were scanned.
    scanned: Vec<String>,
}

impl Run {
    /// `ANALYZE FORMAT=JSON` of it, as the command line client prints it, with escaped line breaks. A condition
    /// with bytes, which contains other escapes, is omitted.
    fn of(told: &str) -> Self {
        let is_odd = |text: &str| text.contains('\\') || text.contains(char::is_control);
        let lines = told.split("\\n").map(|line| match line.split_once("\": ") {
            Some((name, value)) if is_odd(value) => {
                format!("{name}\": \"\"{}", if value.ends_with(',') { "," } else { "" })
            }
            _ => line.to_owned(),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let plan: Value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
        let ms = plan["query_block"]["r_total_time_ms"].as_f64();
        let mut run =
            Self { ms: ms.unwrap_or(0.0), rows: 0, indexes: Vec::new(), scanned: Vec::new() };
        run.look(&plan);
        run.indexes.sort();
        run.indexes.dedup();
        run
    }

    fn look(&mut self, part: &Value) {
        match part {
            Value::Object(members) => {
                // A table that the server derives from parts of a statement is not counted.
                let ours = members.get("table_name").and_then(Value::as_str);
                let ours =
                    ours.filter(|name| !name.starts_with('<') && members.contains_key("r_rows"));
                if let Some(table) = ours {
                    let rows = members["r_rows"].as_f64().unwrap_or(0.0) as u64;
                    match members.get("key").and_then(Value::as_str) {
                        Some(key) => {
                            self.indexes.push(key.trim_start_matches("atomic_phases_").to_owned());
                        }
                        // The outermost derived table has no rows of its own.
                        None if members.get("access_type").is_some_and(|kind| kind == "ALL")
                            && !members.contains_key("materialized") =>
                        {
                            self.scanned.push(format!("{table} ({rows})"));
                        }
                        None => {}
                    }
                    self.rows = self.rows.max(rows);
                }
                members.values().for_each(|member| self.look(member));
            }
            Value::Array(members) => members.iter().for_each(|member| self.look(member)),
            _ => {}
        }
    }
}

struct Cost {
    title: String,
    took: Duration,
    runs: Vec<Run>,
}

/// The reads of the engine's tables, as the log has them.
const READS: &str = "command_type = 'Execute' AND argument LIKE '%atomic\\_phases\\_%' AND \
    (argument LIKE 'SELECT%' OR argument LIKE 'WITH%')";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fills a million rows: some minutes"]
async fn each_question_walks_a_bounded_part_of_an_index_among_a_million_requests_on_mariadb() {
    let (server, url) = tokio::task::spawn_blocking(Observed::start).await.unwrap();
    let db = prepare_my(&url).await;
    filled(&db).await;
    let database = url.rsplit_once('/').unwrap().1;
    let store = open_my(&url.replace("root@", "app@"), 4).await;
    let engine = engine(&store, &App::default());
    Announcer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let ada = || Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
    let api: Router = Api::new(engine.clone(), move |_| Some(ada())).router();
    let pages: Router = Console::new(engine.clone(), move |_| Some(ada())).router();
    let ops = engine.ops(ada());

    // With cold caches of the connection.
    let (id, walk) = walked(&pages, &ops).await;
    let counts = ops.counts().await.unwrap();
    assert_eq!(counts.unknown.number + counts.dead_letters.number, WAITING as u32);
    let found = ops.list(Filter::waiting().reason(NEEDLE)).await.unwrap().rows;
    assert_eq!(found.len(), 1);
    let shown = ops.show(found[0].request_id).await.unwrap();
    assert!(shown.why.sentence.contains(NEEDLE), "{}", shown.why.sentence);
    assert_eq!(id, found[0].request_id.to_string());

    let explained = |sql: &str| {
        let told = server.0.ask(&format!("USE {database}; ANALYZE FORMAT=JSON {sql}"));
        Run::of(&told)
    };
    let (tenant, name) = key_of_needle();
    let (tenant, name) = (Scope::new(tenant).unwrap(), IdempotencyKey::new(name).unwrap());
    let mut times = Vec::new();
    server.logged(READS);
    for _ in 0..101 {
        let begun = Instant::now();
        assert!(engine.status(&tenant, &name).await.unwrap().is_some());
        times.push(begun.elapsed());
    }
    let by_key = median(times);
    let key_read = explained(server.logged(READS).last().unwrap());
    let known = Known::of(&ops, &found[0]).await;

    let mut costs = Vec::new();
    for ask in asks(&known) {
        let router = if ask.face == Face::Api { &api } else { &pages };
        let (mut took, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            server.logged(READS);
            let begun = Instant::now();
            answer(router, &ask).await;
            took.push(begun.elapsed());
            sent = server.logged(READS);
        }
        assert!(!sent.is_empty(), "{} sent nothing", ask.path);
        // A timer queries the pauses, too.
        sent.retain(|sql| ask.is_of_pauses() || !sql.contains("FROM atomic_phases_pauses"));
        sent.dedup();
        let runs: Vec<Run> = sent.iter().map(|sql| explained(sql)).collect();
        for (run, sql) in runs.iter().zip(&sent) {
            // One row more than are shown says that there are more.
            assert!(run.rows <= 10_101, "{}: {} rows: {sql}", ask.path, run.rows);
            // They have a row for each process, and for each paused phase.
            let is_small =
                |table: &String| ["nodes", "pauses"].iter().any(|name| table.contains(name));
            assert!(run.scanned.iter().all(is_small), "{}: {:?}: {sql}", ask.path, run.scanned);
        }
        let took = median(took);
        assert!(took < Duration::from_secs(5), "{}: {took:?}", ask.path);
        costs.push(Cost { title: known.without_ids(&ask.title()), took, runs });
    }
    let version = server.0.ask("SELECT VERSION()");
    let page = page(&costs, (by_key, &key_read), walk, &version);
    match std::env::var("OPERATORS_INTO") {
        Ok(file) => std::fs::write(file, page).unwrap(),
        Err(_) => println!("{page}"),
    }
}

fn page(
    costs: &[Cost],
    (key_took, key_read): (Duration, &Run),
    walk: Duration,
    version: &str,
) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut page = format!(
        "# What operators' questions cost on MariaDB\n\n\
         Written by `OPERATORS_ROWS={rows} OPERATORS_INTO=docs/bench/operators-mariadb.md cargo test --all-features --test statements \
         among_a_million_requests_on_mariadb -- --ignored`: {rows} requests of which {WAITING} wait, {jobs} staged jobs of \
         which half are dead, 100000 audit rows, on MariaDB {version} with `innodb_buffer_pool_size = 64M` and its general \
         log switched on. The client is built without optimization. Medians of {TIMES}; load average at the end {load}.\n\n\
         On the pages of the console, to see what waits, to find the one whose reason is known among the {WAITING} that \
         wait, and to read all about it took {walk:.0} ms together.\n\n\
         A read by the primary key, `Engine::status`, took {key:.2} ms, and the server {server:.3} ms of it: a ratio is to \
         these two. *Rows* are the most that were read from one table or index; a search looks at ten thousand at most, and \
         at one more to tell that there are more. No statement reads a whole table, but for those of the processes and of the pauses.\n\n\
         | asked | statements | rows | the server's ms | x by key | answer ms | x by key | indexes |\n\
         |---|---|---|---|---|---|---|---|\n",
        rows = rows(),
        load = load.split(' ').next().unwrap_or_default(),
        jobs = rows() / 10,
        walk = ms(walk),
        key = ms(key_took),
        server = key_read.ms,
    );
    for Cost { title, took, runs } in costs {
        let server: f64 = runs.iter().map(|run| run.ms).sum();
        let mut indexes: Vec<&str> =
            runs.iter().flat_map(|run| &run.indexes).map(String::as_str).collect();
        indexes.sort_unstable();
        indexes.dedup();
        writeln!(
            page,
            "| {title} | {} | {} | {server:.2} | {:.0} | {:.1} | {:.1} | {} |",
            runs.len(),
            runs.iter().map(|run| run.rows).max().unwrap_or(0),
            server / key_read.ms,
            ms(*took),
            ms(*took) / ms(key_took),
            indexes.join(", "),
        )
        .unwrap();
    }
    page
}
