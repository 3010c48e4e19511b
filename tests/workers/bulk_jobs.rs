//! G18, in bulk: jobs that are claimed and deleted together are delivered as each would be alone, and what of
//! them hangs keeps no other from its turn (G16).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::worker::{DeliveryError, Enqueuer, Job, JobSink};
use tokio::sync::Notify;

on_both_stores! {
    g18_of_many_jobs_each_is_delivered_once_and_those_of_a_request_in_their_order,
    g16_a_name_has_no_more_under_way_than_its_bound_and_keeps_no_other_from_its_turn,
    g16_what_was_claimed_ahead_of_jobs_that_hang_is_left_to_others_uncounted,
}

/// So many requests of the scope with two jobs of this name each, as a phase would have staged them.
pub async fn stage<S: TestDb>(db: &S, scope: &str, name: &str, requests: u32) {
    let (id, now, waits, [first, second]) = match is_postgres::<S>() {
        true => (
            "gen_random_uuid()",
            "clock_timestamp()",
            "timestamptz '9999-12-31 00:00:00+00'",
            ["'\\x31'::bytea", "'\\x32'::bytea"],
        ),
        false => (
            "randomblob(16)",
            "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
            "253402214400000",
            ["x'31'", "x'32'"],
        ),
    };
    let numbers = format!(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {requests})"
    );
    db.sql(&format!(
        "{numbers} INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, \
         idempotency_key, name, args, staged_at, run_after) \
         SELECT '{scope}', {id}, 0, {id}, '{name}-' || n, '{name}', {first}, {now}, {now} FROM numbers"
    ))
    .await;
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, \
         idempotency_key, name, args, staged_at, run_after) \
         SELECT scope, request_id, 1, {id}, idempotency_key, name, {second}, staged_at, {waits} \
         FROM atomic_phases_staged_jobs WHERE name = '{name}' AND scope = '{scope}'"
    ))
    .await;
}

const LEFT: &str = "SELECT count(*) FROM atomic_phases_staged_jobs";

/// By two nodes.
async fn g18_of_many_jobs_each_is_delivered_once_and_those_of_a_request_in_their_order<
    S: TestDb,
>(
    db: S,
) {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<Job>>>);
    impl JobSink for Log {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            self.0.lock().unwrap().push(job.clone());
            Ok(())
        }
    }
    let requests = if is_memory::<S>() { 20 } else { 150 };
    for scope in ["one", "other"] {
        stage(&db, scope, "job", requests).await;
    }
    let log = Log::default();
    let nodes = [engine(&db, &App::default()), engine(&db.another().await, &App::default())];
    let workers = nodes.map(|node| node.spawn_workers(config().sink(log.clone())).unwrap());
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    let jobs = std::mem::take(&mut *log.0.lock().unwrap());
    assert_eq!(jobs.len(), 4 * requests as usize, "each once");
    let mut of_request: HashMap<_, Vec<_>> = HashMap::new();
    for job in jobs {
        assert_eq!(job.attempt, 1);
        of_request.entry((job.scope.as_str().to_owned(), job.key)).or_default().push(job.args);
    }
    assert_eq!(of_request.len(), 2 * requests as usize);
    assert!(of_request.values().all(|args| *args == [b"1", b"2"]));
}

/// The slow ones wait for a word; of all of them it is counted how many are under way at a time.
#[derive(Clone, Default)]
struct Counts {
    quick: Arc<AtomicUsize>,
    slow: Arc<AtomicUsize>,
    most_slow: Arc<AtomicUsize>,
    goes_on: Arc<Notify>,
    is_open: Arc<AtomicBool>,
}

impl JobSink for Counts {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        if job.name == "quick" {
            self.quick.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        let slow = self.slow.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_slow.fetch_max(slow, Ordering::SeqCst);
        while !self.is_open.load(Ordering::SeqCst) {
            let _ = tokio::time::timeout(Duration::from_millis(20), self.goes_on.notified()).await;
        }
        self.slow.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn at_once(&self, name: &str) -> Option<usize> {
        (name == "slow").then_some(2)
    }
}

async fn g16_a_name_has_no_more_under_way_than_its_bound_and_keeps_no_other_from_its_turn<
    S: TestDb,
>(
    db: S,
) {
    stage(&db, "one", "slow", 12).await;
    stage(&db, "one", "quick", 12).await;
    let sink = Counts::default();
    let engine = engine(&db, &App::default());
    let workers = engine.spawn_workers(config().sink(sink.clone())).unwrap();
    until(async || sink.quick.load(Ordering::SeqCst) == 24).await;
    until(async || sink.slow.load(Ordering::SeqCst) == 2).await;
    sink.is_open.store(true, Ordering::SeqCst);
    sink.goes_on.notify_waiters();
    until(async || db.number(LEFT).await == 0).await;
    assert_eq!(sink.most_slow.load(Ordering::SeqCst), 2);
    drop(workers);
}

/// A scope is quick, so that more of its jobs are claimed, and then all of them hang.
async fn g16_what_was_claimed_ahead_of_jobs_that_hang_is_left_to_others_uncounted<S: TestDb>(
    db: S,
) {
    #[derive(Clone, Default)]
    struct Turns {
        delivered: Arc<AtomicUsize>,
        under_way: Arc<AtomicUsize>,
        is_open: Arc<AtomicBool>,
    }
    impl JobSink for Turns {
        async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
            self.under_way.fetch_add(1, Ordering::SeqCst);
            while self.delivered.load(Ordering::SeqCst) >= 30
                && !self.is_open.load(Ordering::SeqCst)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.delivered.fetch_add(1, Ordering::SeqCst);
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    }
    stage(&db, "one", "job", 100).await;
    let sink = Turns::default();
    let engine = engine(&db, &App::default());
    // A sixth of it is how long a claimed job waits for its turn.
    let config = config().delivery(Duration::from_secs(3));
    let mut enqueuer = Enqueuer::new(&engine, sink.clone(), config.clone());
    let look = tokio::spawn(async move { enqueuer.run_once().await.unwrap() });
    let left = "SELECT count(*) FROM atomic_phases_staged_jobs WHERE forgiven_attempts > 0";
    until(async || db.number(left).await > 0).await;
    assert!(sink.under_way.load(Ordering::SeqCst) <= 32, "of the hundred that were claimed");
    sink.is_open.store(true, Ordering::SeqCst);
    look.await.unwrap();
    let workers = engine.spawn_workers(config.sink(sink.clone())).unwrap();
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    assert_eq!(sink.delivered.load(Ordering::SeqCst), 200, "each once");
}
