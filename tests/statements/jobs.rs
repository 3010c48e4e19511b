//! The cost of delivering jobs: counted, not timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::recorded::{self, alone};
use crate::support::*;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{DeliveryError, Enqueuer, Job, JobSink, WorkerConfig};

#[derive(Clone, Default)]
struct Nothing(Arc<AtomicUsize>);

impl JobSink for Nothing {
    async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// This many jobs in this many scopes, each of a separate request.
pub async fn stage<S: TestDb>(db: &S, jobs: usize, scopes: usize) {
    let (id, now, args) = match is_postgres::<S>() {
        true => ("gen_random_uuid()", "clock_timestamp()", "'\\x31'::bytea"),
        false => ("randomblob(16)", "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)", "x'31'"),
    };
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, \
         idempotency_key, name, args, staged_at, run_after) \
         WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {jobs}) \
         SELECT concat('tenant-', n % {scopes}), {id}, 0, {id}, concat('job-', n), 'job', {args}, {now}, {now} FROM numbers; ANALYZE"
    ))
    .await;
}

const LEFT: &str = "SELECT count(*) FROM atomic_phases_staged_jobs";

/// How many sent statements begin with this text.
fn count(sent: &[String], start: &str) -> usize {
    sent.iter().filter(|sql| sql.starts_with(start)).count()
}

/// One pass over `JOBS` jobs that may all begin concurrently: returns the sent statements.
pub async fn one_poll<S: TestDb>(db: &S) -> Vec<String> {
    let engine = engine(&db.another().await, &App::default());
    let sink = Nothing::default();
    // One scope may have half of them.
    let config = WorkerConfig::default().batch(JOBS as u32).concurrency(2 * JOBS);
    let mut enqueuer = Enqueuer::new(&engine, sink.clone(), config);
    recorded::sent();
    assert_eq!(enqueuer.run_once().await.unwrap().delivered as usize, JOBS);
    let sent = recorded::sent();
    assert_eq!(sink.0.load(Ordering::SeqCst), JOBS, "each once");
    assert_eq!(db.number(LEFT).await, 0);
    sent
}

pub const JOBS: usize = 100;

/// On a busy machine, some deliveries may not have ended when the first deletion is sent.
pub const DELETIONS: std::ops::RangeInclusive<usize> = 1..=4;

#[tokio::test(flavor = "multi_thread")]
async fn g18_jobs_that_begin_together_take_one_transaction_to_claim_and_one_to_delete() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    stage(&db, JOBS, 1).await;
    let transactions = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let before = db.number(transactions).await;
    let sent = one_poll(&db).await;
    let written = (db.number(transactions).await - before) as usize;
    let claims =
        count(&sent, "UPDATE atomic_phases_staged_jobs AS j SET attempts = j.attempts + 1");
    let deletions = count(&sent, "WITH ended AS (DELETE FROM atomic_phases_staged_jobs AS j USING");
    // Of the last delivery, if it ended after the others: a statement by itself.
    let single = count(&sent, "WITH ended AS (DELETE FROM atomic_phases_staged_jobs WHERE");
    assert_eq!(claims, 1);
    assert!(DELETIONS.contains(&(deletions + single)), "{deletions} deletions, {single} single");
    // Counted for the whole server, which may have had one or two of its own; two for each job would be two
    // hundred.
    let ours = claims + deletions + single;
    assert!((ours..=ours + 2).contains(&written), "{written} transactions that wrote for {ours}");
    let searches = count(&sent, "SELECT run_after, scope, request_id");
    assert!(searches <= 2, "{searches} searches");
    // BEGIN, the settings, the planner's settings, the statement, COMMIT: in one round trip.
    assert_eq!(sent.len(), searches + 5 * (claims + deletions) + single, "{sent:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g18_on_sqlite_jobs_that_begin_together_are_synced_twice() {
    let _alone = alone().await;
    let db = <Sqlite as TestDb>::fresh().await;
    stage(&db, JOBS, 1).await;
    let sent = one_poll(&db).await;
    let commits = count(&sent, "COMMIT");
    assert!((2..=1 + DELETIONS.end()).contains(&commits), "{commits} commits");
    assert_eq!(count(&sent, "BEGIN IMMEDIATE"), commits);
    assert_eq!(count(&sent, "UPDATE atomic_phases_staged_jobs AS j SET attempts"), JOBS);
    assert_eq!(count(&sent, "DELETE FROM atomic_phases_staged_jobs"), JOBS);
}

/// N jobs need a claim and a deletion for each batch, and some more until the worker knows that they end quickly.
/// One by one, they would be two commits each.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_thousand_jobs_take_a_claim_and_a_deletion_for_each_batch() {
    let _alone = alone().await;
    for scopes in [1, 100] {
        a_thousand_jobs(scopes).await;
    }
}

async fn a_thousand_jobs(scopes: usize) {
    const JOBS: usize = 1000;
    const BATCH: usize = 100;
    let db = <Postgres as TestDb>::fresh().await;
    stage(&db, JOBS, scopes).await;
    let sink = Nothing::default();
    let engine = engine(&db.another().await, &App::default());
    let config = WorkerConfig::default().batch(BATCH as u32);
    let enqueuer = Enqueuer::new(&engine, sink.clone(), config);
    recorded::sent();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(enqueuer.run(async { drop(stopped.await) }));
    until(async || db.number(LEFT).await == 0).await;
    drop(stop);
    running.await.unwrap();
    assert_eq!(sink.0.load(Ordering::SeqCst), JOBS, "each once");
    let sent = recorded::sent();
    let claims = count(&sent, "UPDATE atomic_phases_staged_jobs AS j SET attempts");
    let deletions = count(&sent, "WITH ended AS (DELETE");
    let searches = count(&sent, "SELECT run_after, scope, request_id");
    println!(
        "{JOBS} jobs in {scopes} scopes: {claims} claims, {deletions} deletions, {searches} searches"
    );
    // On a busy machine, they end in more groups.
    let most = 2 * JOBS.div_ceil(BATCH) + 80;
    assert!(claims + deletions <= most, "{claims} claims and {deletions} deletions, of {most}");
    assert!(searches <= most, "{searches} searches");
}
