//! What the delivery of jobs costs: counted, not timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::recorded::{self, alone};
use crate::support::*;
use atomic_phases::{
    Postgres,
    worker::{DeliveryError, Enqueuer, Job, JobSink, WorkerConfig},
};

#[derive(Clone, Default)]
struct Nothing(Arc<AtomicUsize>);

impl JobSink for Nothing {
    async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// N jobs need a claim and a deletion for each batch, and some more until it is known that they end quickly. One
/// by one they would be two commits each.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_thousand_jobs_take_a_claim_and_a_deletion_for_each_batch() {
    const JOBS: usize = 1000;
    const BATCH: usize = 100;
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, \
         idempotency_key, name, args, staged_at, run_after) \
         SELECT 'one', gen_random_uuid(), 0, gen_random_uuid(), n, 'job', '1', now(), now() \
         FROM generate_series(1, {JOBS}) AS n; ANALYZE"
    ))
    .await;
    let sink = Nothing::default();
    let engine = engine(&db.another().await, &App::default());
    let config = WorkerConfig::default().batch(BATCH as u32);
    let enqueuer = Enqueuer::new(&engine, sink.clone(), config);
    recorded::sent();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(enqueuer.run(async { drop(stopped.await) }));
    until(async || db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await == 0).await;
    drop(stop);
    running.await.unwrap();
    assert_eq!(sink.0.load(Ordering::SeqCst), JOBS, "each once");
    let sent = recorded::sent();
    let of = |start: &str| sent.iter().filter(|sql| sql.starts_with(start)).count();
    let claims = of("UPDATE atomic_phases_staged_jobs AS j SET attempts");
    let deletions = of("WITH ended AS (DELETE");
    let searches = of("SELECT run_after, scope, request_id");
    println!("{JOBS} jobs: {claims} claims, {deletions} deletions, {searches} searches");
    // On a machine that is busy they end in more groups.
    let most = 2 * JOBS.div_ceil(BATCH) + 80;
    assert!(claims + deletions <= most, "{claims} claims and {deletions} deletions, of {most}");
    assert!(searches <= most, "{searches} searches");
}
