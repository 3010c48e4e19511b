//! What waits, as gauges: the same as operators see for each request; counted by one process at a time; and not a
//! number if the value is unknown.

use std::collections::BTreeMap;
use std::time::Duration;

use atomic_phases::Engine;
use atomic_phases::ops::{Filter, HeldBy, OperatorStore};
use atomic_phases::store::Sqlite;
use atomic_phases::worker::{Announcer, Census, WorkerConfig};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use super::cast::*;
use crate::support::work::config;
use crate::support::*;

on_every_store! {
    the_gauges_say_of_all_requests_what_an_operator_is_told_of_each,
    g11_the_next_end_of_a_window_is_told,
    one_process_at_a_time_counts_and_the_others_tell_nothing,
    how_many_processes_run_each_version_of_a_definition_is_told,
}

/// The series of a process, which was not told their units.
struct Node(PrometheusRecorder);

impl Node {
    fn new() -> Self {
        Self(PrometheusBuilder::new().with_recommended_naming(true).build_recorder())
    }

    /// Counts once, as this process.
    async fn counts<S: TestDb + OperatorStore>(&self, census: &mut Census<S>) -> bool {
        // The census runs in this task, and so on this thread.
        let _recorded = metrics::set_default_local_recorder(&self.0);
        census.run_once().await.unwrap()
    }

    fn all(&self) -> BTreeMap<String, f64> {
        let exposition = self.0.handle().render();
        // The count's own wait for connections is not compared.
        let is_gauge = |line: &&str| {
            !["#", "atomic_phases_pool_wait"].iter().any(|start| line.starts_with(start))
        };
        let lines = exposition.lines().filter(|line| is_gauge(line) && !line.is_empty());
        let series = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.strip_prefix("atomic_phases_").unwrap().to_owned(), value.parse().unwrap())
        });
        series.collect()
    }

    fn known(&self) -> BTreeMap<String, f64> {
        self.all().into_iter().filter(|(_, value)| !value.is_nan()).collect()
    }

    #[track_caller]
    fn says(&self, name: &str) -> f64 {
        let known = self.known();
        *known.get(name).unwrap_or_else(|| panic!("no {name} in {known:#?}"))
    }
}

/// A row in each state that no holder runs, and some that are run or over.
async fn a_bad_day<S: TestDb + OperatorStore>(engine: &TestEngine<S>) {
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    unknown(engine, "unknown-1").await;
    unknown(engine, "unknown-2").await;
    // Reconcilers have taken two of them: one that lives, and one that died.
    for (name, lease) in [("looked-into", "expires_at"), ("its-reconciler-died", "created_at")] {
        unknown(engine, name).await;
        let columns =
            format!("status = 'in_progress', locked_until = {lease}, run_after = {lease}");
        set(engine, name, &columns).await;
    }
    unknown_unasked(engine, "unasked").await;
    dead_letter(engine, "dead").await;
    dead_letter(engine, "dead-unknown").await;
    set(engine, "dead-unknown", "open_intent = 'charged'").await;
    for (name, change) in [
        ("due", "run_after = created_at"),
        ("backs-off", "run_after = expires_at"),
        ("other-definition", "definition = 'canary'"),
        ("other-version", "definition_version = 9"),
        ("other-point", "recovery_point = 'canary'"),
        ("newer", "phases = 'booked=x'"),
    ] {
        back_off(engine, name).await;
        set(engine, name, change).await;
    }
    leased(engine, "leased").await;
    leased(engine, "watched").await;
    set(engine, "watched", "run_after = locked_until").await;
    leased(engine, "lease-ended").await;
    set(engine, "lease-ended", "locked_until = created_at, run_after = created_at").await;
    finish(engine, "finished").await;
}

async fn the_gauges_say_of_all_requests_what_an_operator_is_told_of_each<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    a_bad_day(&engine).await;
    let (node, mut census) = (Node::new(), Census::new(&engine, WorkerConfig::default()));
    assert!(node.counts(&mut census).await);

    let ops = admin(&engine);
    let mut told: BTreeMap<(String, &str), f64> = BTreeMap::new();
    let mut stranded: BTreeMap<&str, f64> = BTreeMap::new();
    for row in ops.list(Filter::new().page(100)).await.unwrap().rows {
        let held_by = ops.why(row.request_id).await.unwrap().held_by;
        if let HeldBy::Lease | HeldBy::Finished = held_by {
            continue;
        }
        let name = if row.definition.0 == "canary" { "other" } else { &row.definition.0 };
        *told.entry((name.to_owned(), held_by.as_str())).or_default() += 1.0;
        if let HeldBy::Stranded(because) = held_by {
            *stranded.entry(because.as_str()).or_default() += 1.0;
        }
    }
    assert_eq!(told.len(), 10, "{told:#?}");
    for ((definition, held_by), count) in &told {
        let name = format!(r#"waiting{{definition="{definition}",held_by="{held_by}"}}"#);
        assert_eq!(node.says(&name), *count, "{name}");
    }
    let sum = |known: &BTreeMap<String, f64>, of: &str| -> f64 {
        known.iter().filter(|(name, _)| name.starts_with(of)).map(|(_, count)| count).sum()
    };
    let known = node.known();
    assert_eq!(sum(&known, "waiting{"), told.values().sum::<f64>(), "{known:#?}");
    assert_eq!(
        (sum(&known, "stranded{"), stranded.values().sum::<f64>()),
        (4.0, 4.0),
        "{known:#?}"
    );
    for because in ["unknown_definition", "unknown_version", "unknown_recovery_point", "newer_form"]
    {
        assert_eq!(node.says(&format!(r#"stranded{{because="{because}"}}"#)), 1.0);
    }
    // Accepted, due, and with a dead holder.
    assert_eq!(node.says("due"), 3.0);
    let waits = admin(&engine).list(Filter::waiting().page(100)).await.unwrap().rows;
    let oldest = waits.iter().filter_map(|row| row.waiting_since).min().unwrap();
    let oldest = oldest.timestamp_millis() as f64 / 1000.0;
    let said: Vec<f64> = node
        .known()
        .iter()
        .filter(|(name, _)| name.starts_with("waiting_oldest_timestamp"))
        .map(|(_, since)| *since)
        .collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert_eq!(said.into_iter().fold(f64::INFINITY, f64::min), oldest);
    assert_eq!((node.says("jobs_staged"), node.says("jobs_dead")), (2.0, 0.0));
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    // All are settled: the counts are zero, and the times are not a number.
    db.sql("UPDATE atomic_phases_keys SET status = 'completed', run_after = NULL, waiting_since = NULL").await;
    assert!(node.counts(&mut census).await);
    let known = node.known();
    assert_eq!((sum(&known, "waiting{"), sum(&known, "stranded{")), (0.0, 0.0), "{known:#?}");
    assert_eq!(
        (node.says("due"), node.says("jobs_staged"), node.says("jobs_dead")),
        (0.0, 0.0, 2.0)
    );
    assert!(!known.keys().any(|name| name.contains("oldest")), "{known:#?}");
    // The content of a row creates no series (G19).
    assert!(!node.0.handle().render().contains("canary"));
    assert!(node.all().len() < 3 * 40, "{:#?}", node.all());
}

async fn g11_the_next_end_of_a_window_is_told<S: TestDb + OperatorStore>(db: S) {
    const NAME: &str = "window_next_end_timestamp";
    let margin = Duration::from_secs(600);
    let engine = engine_with(&db, &App::default(), |builder| {
        builder.lease(Duration::from_secs(60)).window_margin(margin)
    });
    let (node, mut census) = (Node::new(), Census::new(&engine, WorkerConfig::default()));
    // An at-most-once call, which has no window; and a finished request.
    unknown(&engine, "at-most-once").await;
    finish(&engine, "finished").await;
    assert!(node.counts(&mut census).await);
    assert!(!node.known().contains_key(NAME), "{:#?}", node.known());

    back_off(&engine, "later").await;
    back_off(&engine, "first").await;
    assert!(node.counts(&mut census).await);
    assert!(!node.known().contains_key(NAME), "half of its time has not passed");
    let id = id_of(&engine, "first").await;
    let created = admin(&engine).show(id).await.unwrap().summary.created_at;
    let window = 24 * 3600 - 600;
    // An earlier commit ends earlier.
    let earlier = |hours: i64| match is_postgres::<S>() {
        true => format!("advanced_at = (SELECT now() - interval '{hours} hours')"),
        false => format!("advanced_at = created_at - {}", hours * 3_600_000),
    };
    if !is_memory::<S>() {
        // The earlier end of the two; a call with more than half of its window left is not included.
        for (name, hours, told) in [("later", 13, 13), ("first", 11, 13), ("first", 14, 14)] {
            set(&engine, name, &earlier(hours)).await;
            assert!(node.counts(&mut census).await);
            let end = created.timestamp() + window - told * 3600;
            let next = node.says(NAME);
            assert!((next - end as f64).abs() < 30.0, "{name}: {next} {end}");
        }
    }
}

async fn one_process_at_a_time_counts_and_the_others_tell_nothing<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    unknown(&engine, "unknown").await;
    let of = |every: u64| {
        let config = WorkerConfig::default().census_every(Duration::from_millis(every));
        (Node::new(), Census::new(&engine, config))
    };
    let ((one, mut first), (other, mut second)) = (of(3_600_000), of(10));
    assert!(one.counts(&mut first).await);
    for _ in 0..3 {
        assert!(!other.counts(&mut second).await);
        assert!(one.counts(&mut first).await, "it keeps it");
    }
    assert!(other.all().is_empty(), "{:#?}", other.all());
    let asked = r#"waiting{definition="notify",held_by="unknown_asked"}"#;
    assert_eq!(one.says(asked), 1.0);

    // It stops, and another process continues without a pause.
    {
        let _recorded = metrics::set_default_local_recorder(&one.0);
        first.run(async {}).await;
    }
    let known = one.known();
    assert!(known.keys().all(|name| name.starts_with("worker_last_poll")), "{known:#?}");
    assert!(other.counts(&mut second).await);
    assert_eq!(other.says(asked), 1.0);

    // A frozen process loses the lease, and reports that as soon as it continues.
    let (third, mut next) = of(3_600_000);
    until(async || third.counts(&mut next).await).await;
    assert!(!other.counts(&mut second).await);
    assert!(other.known().is_empty(), "{:#?}", other.known());
    assert_eq!(third.says(asked), 1.0);

    // Dropped, as by a panic.
    let _recorded = metrics::set_default_local_recorder(&third.0);
    drop(next);
    assert!(third.known().is_empty(), "{:#?}", third.known());
}

async fn how_many_processes_run_each_version_of_a_definition_is_told<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let (node, mut census) = (Node::new(), Census::new(&engine, WorkerConfig::default()));
    let of =
        |name: &str, version: u32| format!(r#"nodes{{definition="{name}",version="{version}"}}"#);
    assert!(node.counts(&mut census).await);
    assert_eq!(node.says(&of("book", 1)), 0.0, "no process says that it is there");

    let of_books = Engine::builder(db.another().await).app(App::default());
    let of_books: TestEngine<S> = of_books.register::<Book>().build().unwrap();
    let (mut both, mut books) =
        (Announcer::new(&engine, config()), Announcer::new(&of_books, config()));
    both.run_once().await.unwrap();
    books.run_once().await.unwrap();
    assert!(node.counts(&mut census).await);
    assert_eq!((node.says(&of("book", 1)), node.says(&of("notify", 1))), (2.0, 1.0));

    // A row of a later build; a definition that this process does not know creates no series.
    let later =
        r#"[{"name":"book","version":7,"phases":""},{"name":"canary","version":1,"phases":""}]"#;
    both.run(async {}).await;
    // The in-memory store has no such table that SQL could change.
    let met = if is_memory::<S>() { 1 } else { 7 };
    db.sql(&format!("UPDATE atomic_phases_nodes SET definitions = '{later}'")).await;
    assert!(node.counts(&mut census).await);
    assert_eq!(node.says(&of("book", met)), 1.0);
    assert_eq!(node.says(&of("book", 1)), if met == 1 { 1.0 } else { 0.0 });
    assert!(!node.0.handle().render().contains("canary"));

    // The gauge of a version that no process runs is zero, and not its last value.
    books.run(async {}).await;
    assert!(node.counts(&mut census).await);
    assert_eq!((node.says(&of("book", met)), node.says(&of("book", 1))), (0.0, 0.0));
    let _recorded = metrics::set_default_local_recorder(&node.0);
    drop(census);
    assert!(node.known().is_empty(), "{:#?}", node.known());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_does_not_tell_is_no_number() {
    let db = <Sqlite as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    let (node, mut census) = (Node::new(), Census::new(&engine, WorkerConfig::default()));
    assert!(node.counts(&mut census).await);
    assert!(node.known().len() > 10);
    db.sql("ALTER TABLE atomic_phases_keys RENAME TO elsewhere").await;
    {
        let _recorded = metrics::set_default_local_recorder(&node.0);
        assert!(census.run_once().await.is_err());
    }
    assert!(node.known().is_empty(), "{:#?}", node.known());
    db.sql("ALTER TABLE elsewhere RENAME TO atomic_phases_keys").await;
    assert!(node.counts(&mut census).await);
    assert!(node.known().len() > 10);
}
