//! G16, G17: rows that a search passes over. Each statement reads a bounded part of an index, whatever its rows are.

use crate::idle_workers::plan_of;
use crate::recorded::{self, alone};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::store::Postgres;
use atomic_phases::worker::Reaper;

/// Creates rows of one scope that have expired one after the other, and then one more, which is completed.
async fn fill(db: &Postgres, status: &str, fingerprint: &str) {
    let rows = |numbers: &str, status: &str, fingerprint: &str| {
        format!(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
             definition_version, phases, fingerprint, status, recovery_point, lease_token, \
             attempts, advanced_at, created_at, expires_at, params) \
             SELECT 'tenant-1', to_char(n, 'fm00000'), gen_random_uuid(), 'd', 1, '', \
             '{fingerprint}', '{status}', 'finished', 1, 1, t, t, t, '' FROM {numbers} AS n, \
             LATERAL (SELECT now() - (90000 - n) * interval '1 s' AS t) AS times; "
        )
    };
    let passed = rows("generate_series(1, 20000)", status, fingerprint);
    let wanted = rows("generate_series(20001, 20001)", "completed", "v1:");
    db.sql(&format!(
        "{passed}{wanted}ANALYZE; \
         CREATE FUNCTION plan_of(query text) RETURNS text LANGUAGE plpgsql AS $$ \
         DECLARE line text; plan text := ''; BEGIN \
         FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ' || query LOOP \
         plan := plan || line || chr(10); END LOOP; RETURN plan; END $$"
    ))
    .await;
}

/// The statements that were sent and have this part.
fn sent(part: &str) -> Vec<String> {
    recorded::sent().into_iter().filter(|sql| sql.contains(part)).collect()
}

#[track_caller]
fn reads_a_page(plan: &str, index: &str) {
    assert!(plan.contains(&format!("Index Scan using {index}")), "{plan}");
    assert!(!plan.contains("Rows Removed by Filter") && !plan.contains("Seq Scan"), "{plan}");
}

/// Dead letters keep their expiry and are not reaped, so they stand in front of all that is.
#[tokio::test(flavor = "multi_thread")]
async fn g15_g17_the_reaper_passes_over_dead_letters_a_page_at_a_time() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    fill(&db, "dead_letter", "v1:").await;
    let mut reaper = Reaper::new(&db.another().await, config().reap_batch(200));
    recorded::sent();
    assert_eq!(reaper.run_once().await.unwrap(), 1);
    let searches = sent("WHERE expires_at <= statement_timestamp()");
    assert_eq!(searches.len(), 101, "{:#?}", searches.last());
    let plan = plan_of(&db, &searches[0], &["'epoch'", "''", "''", "200"]).await;
    reads_a_page(&plan, "atomic_phases_keys_expiry");
    // The next call begins with the first row again.
    recorded::sent();
    db.sql("UPDATE atomic_phases_keys SET status = 'completed' WHERE idempotency_key = '00001'")
        .await;
    assert_eq!(reaper.run_once().await.unwrap(), 1);
    assert_eq!(sent("WHERE expires_at <= statement_timestamp()").len(), 1);
}

/// What a former erasure has erased stays for the rest of its retention, and may stand in front of what is left.
#[tokio::test(flavor = "multi_thread")]
async fn g16_g17_an_erasure_passes_over_tombstones_a_page_at_a_time() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    fill(&db, "completed", "erased").await;
    let engine = engine(&db.another().await, &App::default());
    recorded::sent();
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.left), (1, 0));
    let sent = sent("ORDER BY idempotency_key LIMIT");
    let (counts, searches): (Vec<_>, Vec<_>) = sent.iter().partition(|sql| sql.contains("count("));
    assert_eq!((searches.len(), counts.len()), (21, 3), "{sent:#?}");
    let plan = plan_of(&db, searches[0], &["'tenant-1'", "''", "1000"]).await;
    reads_a_page(&plan, "atomic_phases_keys_pkey");
}
