//! G17: no loop without a bound and a pause. What the workers send while there is nothing that they can
//! run, counted at the driver.

use crate::recorded::{self, alone};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::worker::{Completer, Enqueuer, Handlers};
use atomic_phases::{Engine, Postgres};

fn sent() -> Vec<String> {
    recorded::sent().into_iter().filter(|sql| sql.contains("atomic_phases_")).collect()
}

/// A row that this node cannot go on with: of a definition that is not registered, and of one whose
/// recovery point is not known. Ninety of each, all young.
#[tokio::test(flavor = "multi_thread")]
async fn g14_rows_that_are_left_alone_cost_one_search_a_look() {
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

/// From any place in an index of ten thousand due rows: no sort, no scan, no more than the page.
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
    // What it asks of each is about the jobs of one request.
    let search = plan.split("SubPlan").next().unwrap_or_default();
    is_bounded(search, "ROW(run_after, scope, request_id, \"position\") >");
}

/// The plan of a statement that was sent, with these values for its binds.
async fn plan_of(db: &Postgres, sql: &str, values: &[&str]) -> String {
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
