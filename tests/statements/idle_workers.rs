//! G17: no loop without a bound and a pause. Counts at the driver what the workers send while they have nothing to
//! run.

use std::time::Duration;

use crate::recorded::{self, alone};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::Engine;
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Completer, Enqueuer, Handlers};

fn sent() -> Vec<String> {
    recorded::sent().into_iter().filter(|sql| sql.contains("atomic_phases_")).collect()
}

/// Rows that this node cannot continue: with an unregistered definition, and with an unknown recovery point. Ninety
/// of each, all young.
#[tokio::test(flavor = "multi_thread")]
async fn g14_rows_that_are_left_alone_cost_one_search_a_poll() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    let app = App::default();
    let everything = engine(&db, &app);
    for number in 0..90 {
        let name = format!("unregistered-{number}");
        dies_in_its_call(&everything, &name, notify(Trouble::None)).await;
        dies_in_its_call(&everything, &format!("removed-{number}"), book(20)).await;
    }
    db.sql("UPDATE atomic_phases_keys SET recovery_point = 'gone' WHERE definition = 'book'").await;
    dies_in_its_call(&everything, "known", book(20)).await;
    db.let_leases_expire().await;
    recorded::sent();
    // On connections that are counted.
    let books_only = Engine::builder(db.another().await).app(app.clone());
    let books_only: TestEngine<Postgres> = books_only.register::<Book>().build().unwrap();
    let mut completer = Completer::new(&books_only, config().batch(1000));
    let first = completer.run_once().await.unwrap();
    assert_eq!((first.left, first.finished), (180, 1));
    assert!(!sent().is_empty());
    for _ in 0..20 {
        let swept = completer.run_once().await.unwrap();
        assert_eq!((swept.total() - swept.left, swept.left), (0, 90), "none is read again");
    }
    let searches = sent();
    assert_eq!(searches.len(), 40, "{:#?}", &searches[..4]);

    let mut enqueuer = Enqueuer::new(&books_only, Handlers::new(), config());
    enqueuer.run_once().await.unwrap();
    let jobs = sent();
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    let due = searches.iter().find(|sql| sql.contains("WHERE run_after <=")).unwrap();
    each_search_reads_a_bounded_part_of_an_index(&db, due, &jobs[0]).await;
}

/// From any place in an index of ten thousand due rows: no sort, no scan, and not more than one page.
async fn each_search_reads_a_bounded_part_of_an_index(db: &Postgres, due: &str, jobs: &str) {
    db.sql(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, run_after, \
         attempts, advanced_at, created_at, expires_at, params) \
         SELECT 'due', n, gen_random_uuid(), 'd', 1, '', '', 'pending', 'started', 0, now(), 0, \
         now(), now(), now(), '' FROM generate_series(1, 10000) AS n; \
         INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, \
         idempotency_key, name, args, staged_at, run_after) \
         SELECT 'due', gen_random_uuid(), 1, gen_random_uuid(), '', '', '', now(), now() \
         FROM generate_series(1, 10000); ANALYZE; \
         CREATE FUNCTION plan_of(query text) RETURNS text LANGUAGE plpgsql AS $$ \
         DECLARE line text; plan text := ''; BEGIN \
         FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ' || query LOOP \
         plan := plan || line || chr(10); END LOOP; RETURN plan; END $$",
    )
    .await;
    let id = "'00000000-0000-0000-0000-000000000000'";
    for after in ["'epoch'", "(SELECT max(run_after) FROM atomic_phases_keys)"] {
        let plan = plan_of(db, due, &["2000", after, "'due'", "'5'", "100"]).await;
        assert!(plan.contains("Index Scan using atomic_phases_keys_due"), "{plan}");
        is_bounded(&plan, "ROW(run_after, scope, idempotency_key) >");
    }
    let plan = plan_of(db, jobs, &["'epoch'", "'due'", id, "0", "100"]).await;
    assert!(plan.contains("Index Scan using atomic_phases_staged_jobs_due"), "{plan}");
    // Its subquery for each row is about the jobs of one request.
    let search = plan.split("SubPlan").next().unwrap_or_default();
    is_bounded(search, "ROW(run_after, scope, request_id, \"position\") >");
}

/// The plan of a statement that was sent, with these values for its binds.
pub async fn plan_of(db: &Postgres, sql: &str, values: &[&str]) -> String {
    let mut sql = sql.split(" -- binds:").next().unwrap().to_owned();
    for (index, value) in values.iter().enumerate() {
        sql = sql.replace(&format!("${}", index + 1), value);
    }
    db.text(&format!("SELECT plan_of($plan${sql}$plan$)")).await
}

#[track_caller]
fn is_bounded(plan: &str, condition: &str) {
    assert!(!plan.contains("Sort") && !plan.contains("Seq Scan"), "{plan}");
    assert!(plan.contains("Index Cond") && plan.contains(condition), "{plan}");
    assert!(!plan.contains("Rows Removed by Filter"), "{plan}");
}

/// The number of buffers that a plan reports as read.
fn buffers(plan: &str) -> u64 {
    let told = plan.split("Buffers: shared hit=").nth(1).unwrap_or_else(|| panic!("{plan}"));
    let end = told.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(told.len());
    let read = told.split('\n').next().and_then(|line| line.split("read=").nth(1));
    let read = read.map_or(0, |read| {
        let end = read.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(read.len());
        read[..end].parse().unwrap()
    });
    told[..end].parse::<u64>().unwrap() + read
}

/// The search for a request whose holder died young, among a hundred thousand rows: one search reads the rows that
/// were created since the last one, and the full sweep reads a page.
#[tokio::test(flavor = "multi_thread")]
async fn g17_the_searches_for_abandoned_rows_are_bounded_at_a_hundred_thousand() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    db.sql(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
         advanced_at, created_at, expires_at, params) \
         SELECT 'done', n, gen_random_uuid(), 'd', 1, '', '', 'completed', 'finished', 1, 1, \
         t, t, t + interval '1 day', '' FROM generate_series(1, 100000) AS n, \
         LATERAL (SELECT now() - (100000 - n) * interval '100 ms' AS t) AS times; ANALYZE; \
         CREATE FUNCTION plan_of(query text) RETURNS text LANGUAGE plpgsql AS $$ \
         DECLARE line text; plan text := ''; BEGIN \
         FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ' || query LOOP \
         plan := plan || line || chr(10); END LOOP; RETURN plan; END $$",
    )
    .await;
    let app = App::default();
    let engine = engine(&db.another().await, &app);
    // What a slow first batch has created is searched once in ten polls.
    let mut completer = Completer::new(&engine, config().poll(Duration::from_secs(60)));
    recorded::sent();
    assert_eq!(completer.run_once().await.unwrap().total(), 0);
    let is_of_expiry = |sql: &String| sql.starts_with("WITH read AS MATERIALIZED");
    let first = sent().into_iter().filter(is_of_expiry).count();
    assert_eq!(first, 2 + 11, "the young ones, twice, and ten full pages and an empty one");
    assert_eq!(completer.run_once().await.unwrap().total(), 0);
    let looks: Vec<_> = sent().into_iter().filter(is_of_expiry).collect();
    assert_eq!(looks.len(), 1, "{looks:#?}");

    // A second's rows, created ten seconds ago.
    let (from, to) = ("now() + interval '86389 s'", "now() + interval '86390 s'");
    let young = [from, to, "'epoch'", "''", "''", "10000", "10000"];
    let full = ["'epoch'", "'2400-01-01'", "'epoch'", "''", "''", "10000", "10000"];
    for (values, most) in [(young, 40), (full, 1500)] {
        let plan = plan_of(&db, &looks[0], &values).await;
        println!("{plan}");
        assert!(plan.contains("Index Scan using atomic_phases_keys_expiry"), "{plan}");
        assert!(!plan.contains("Seq Scan") && buffers(&plan) <= most, "{plan}");
    }
}
