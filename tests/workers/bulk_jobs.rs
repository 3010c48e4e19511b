//! G18, in bulk: jobs that are claimed and deleted together are delivered like single ones. Jobs among them that
//! hang, are locked or cannot be read do not delay the others (G16).

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::proxy::proxied;
use crate::support::work::*;
use crate::support::*;
use atomic_phases::store::Postgres;
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, Job, JobSink};
use diesel_async::SimpleAsyncConnection;

/// A job that hangs is let go by then, or its test has failed.
const OPENED: Duration = Duration::from_secs(120);

on_every_store! {
    g18_of_many_jobs_each_is_delivered_once_and_those_of_a_request_in_their_order,
    g16_a_name_has_no_more_under_way_than_its_bound_and_a_scope_half_of_it,
    g16_what_was_claimed_ahead_of_jobs_that_hang_delays_no_other_scope,
    g18_what_waits_too_long_for_its_turn_goes_back_uncounted,
    g18_a_node_that_stops_gives_back_what_it_claimed_ahead,
    g18_what_a_killed_node_had_claimed_is_delivered_by_another,
    g18_a_job_that_cannot_be_read_keeps_no_other_from_its_delivery,
}

/// This many requests of the scope with two jobs of this name each, as a phase would have staged them.
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
            "round(unixepoch('subsec') * 1000)",
            "253402214400000",
            ["x'31'", "x'32'"],
        ),
    };
    // The second job is inserted first, because it waits for the first one: workers may be running.
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, \
         idempotency_key, name, args, staged_at, run_after) \
         WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {requests}) \
         SELECT '{scope}', {id}, 1, {id}, concat('{name}-', n), '{name}', {second}, {now}, {waits} FROM numbers"
    ))
    .await;
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, \
         idempotency_key, name, args, staged_at, run_after) \
         SELECT scope, request_id, 0, {id}, idempotency_key, name, {first}, staged_at, staged_at \
         FROM atomic_phases_staged_jobs WHERE name = '{name}' AND scope = '{scope}'"
    ))
    .await;
}

const LEFT: &str = "SELECT count(*) FROM atomic_phases_staged_jobs";
const GIVEN_BACK: &str =
    "SELECT count(*) FROM atomic_phases_staged_jobs WHERE forgiven_attempts > 0";

/// The delivered jobs, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Job>>>);

impl JobSink for Log {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        self.0.lock().unwrap().push(job.clone());
        Ok(())
    }
}

impl Log {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether the first job of each request was delivered before the second.
    fn is_in_order(&self) -> bool {
        let mut of_request: HashMap<_, Vec<_>> = HashMap::new();
        for job in &*self.0.lock().unwrap() {
            let request = (job.scope.as_str().to_owned(), job.key.as_str().to_owned());
            of_request.entry(request).or_default().push(job.args.clone());
        }
        of_request.values().all(|args| *args == [b"1", b"2"])
    }
}

/// By two nodes.
async fn g18_of_many_jobs_each_is_delivered_once_and_those_of_a_request_in_their_order<
    S: TestDb,
>(
    db: S,
) {
    let requests = if is_memory::<S>() { 20 } else { 150 };
    for scope in ["one", "other"] {
        stage(&db, scope, "job", requests).await;
    }
    let log = Log::default();
    let nodes = [engine(&db, &App::default()), engine(&db.another().await, &App::default())];
    let workers = nodes.map(|node| node.spawn_workers(config().sink(log.clone())).unwrap());
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    assert_eq!(log.len(), 4 * requests as usize, "each once");
    assert!(log.0.lock().unwrap().iter().all(|job| job.attempt == 1));
    assert!(log.is_in_order());
}

/// Waits until all jobs are delivered, for as long as this at most.
async fn until_none_is_left<S: TestDb>(db: &S, within: Duration) {
    let none_is_left = async || match db.number(LEFT).await {
        0 => Ok(()),
        left => Err(format!("{left} jobs are left")),
    };
    answer_within(within, none_is_left).await;
}

/// The number of jobs named `slow` that run concurrently, in all and of one scope. They wait until the gate is
/// open.
#[derive(Clone, Default)]
struct Counts {
    quick: Arc<AtomicUsize>,
    slow: Arc<Mutex<HashMap<String, usize>>>,
    most: Arc<Mutex<[usize; 2]>>,
    is_open: Arc<AtomicBool>,
}

impl JobSink for Counts {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        if job.name == "quick" {
            self.quick.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        let scope = job.scope.as_str().to_owned();
        {
            let mut slow = self.slow.lock().unwrap();
            *slow.entry(scope.clone()).or_default() += 1;
            let mut most = self.most.lock().unwrap();
            *most = [most[0].max(slow.values().sum()), most[1].max(slow[&scope])];
        }
        let is_open = self.is_open.clone();
        until_within(OPENED, async move || is_open.load(Ordering::SeqCst)).await;
        *self.slow.lock().unwrap().get_mut(&scope).unwrap() -= 1;
        Ok(())
    }

    fn concurrency(&self, name: &str) -> Option<NonZeroUsize> {
        if name == "slow" { NonZeroUsize::new(3) } else { None }
    }
}

async fn g16_a_name_has_no_more_under_way_than_its_bound_and_a_scope_half_of_it<S: TestDb>(db: S) {
    // More slow jobs than a worker remembers of a scope.
    let slow = if is_memory::<S>() { 12 } else { 120 };
    for scope in ["one", "other"] {
        stage(&db, scope, "slow", slow).await;
    }
    for scope in ["one", "other"] {
        stage(&db, scope, "quick", 12).await;
    }
    let sink = Counts::default();
    let engine = engine(&db, &App::default());
    let workers = engine.spawn_workers(config().sink(sink.clone())).unwrap();
    until(async || sink.quick.load(Ordering::SeqCst) == 48).await;
    until(async || sink.slow.lock().unwrap().values().sum::<usize>() == 3).await;
    sink.is_open.store(true, Ordering::SeqCst);
    // Three of them at a time, each with a claim and a deletion that reach the disk.
    until_none_is_left(&db, Duration::from_secs(180)).await;
    assert_eq!(*sink.most.lock().unwrap(), [3, 2]);
    drop(workers);
}

/// One of the two places in its scope's queue is left for the others.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_slow_name_delays_no_other_in_batches_of_one() {
    let db = Postgres::fresh().await;
    stage(&db, "one", "slow", 40).await;
    stage(&db, "one", "quick", 5).await;
    let sink = Counts::default();
    let engine = engine(&db, &App::default());
    let workers = engine.spawn_workers(config().batch(1).sink(sink.clone())).unwrap();
    until(async || sink.quick.load(Ordering::SeqCst) == 10).await;
    sink.is_open.store(true, Ordering::SeqCst);
    drop(workers);
}

/// Jobs of scope `one` are quick, so that more of them are claimed; then all of them hang.
#[derive(Clone, Default)]
struct Turns {
    log: Log,
    hanging: Arc<AtomicUsize>,
    is_open: Arc<AtomicBool>,
}

/// After this many.
const QUICK: usize = 30;

/// The default limit of one scope.
const SHARE: usize = 4;

/// Counted until it is dropped.
struct Hangs(Arc<AtomicUsize>);

impl Drop for Hangs {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl JobSink for Turns {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        let is_quick = job.scope.as_str() != "one" || self.log.len() < QUICK;
        if !is_quick && !self.is_open.load(Ordering::SeqCst) {
            self.hanging.fetch_add(1, Ordering::SeqCst);
            let _hangs = Hangs(self.hanging.clone());
            let is_open = self.is_open.clone();
            until_within(OPENED, async move || is_open.load(Ordering::SeqCst)).await;
        }
        self.log.deliver(job).await
    }
}

impl Turns {
    /// As many as allowed hang, the others that were delivered are gone, and some were claimed ahead of their turn.
    async fn hang<S: TestDb>(&self, db: &S, staged: usize) {
        let claimed = "SELECT count(*) FROM atomic_phases_staged_jobs WHERE attempts > 0";
        until(async || {
            self.hanging.load(Ordering::SeqCst) == SHARE
                && db.number(LEFT).await == (staged - self.log.len()) as i64
                && db.number(claimed).await > SHARE as i64
        })
        .await;
    }
}

async fn g16_what_was_claimed_ahead_of_jobs_that_hang_delays_no_other_scope<S: TestDb>(db: S) {
    let requests = if is_memory::<S>() { 40 } else { 100 };
    stage(&db, "one", "job", requests).await;
    let sink = Turns::default();
    let engine = engine(&db, &App::default());
    // They wait for their turn for ten minutes.
    let config = config().delivery(Duration::from_secs(3600)).sink(sink.clone());
    let workers = engine.spawn_workers(config).unwrap();
    sink.hang(&db, 2 * requests as usize).await;
    let before = sink.log.len();
    stage(&db, "other", "job", 10).await;
    until(async || sink.log.len() == before + 20).await;
    assert_eq!(sink.hanging.load(Ordering::SeqCst), SHARE);
    assert_eq!(db.number(GIVEN_BACK).await, 0, "they still wait");
    sink.is_open.store(true, Ordering::SeqCst);
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    assert_eq!(sink.log.len(), 2 * requests as usize + 20, "each once");
    assert!(sink.log.is_in_order());
}

async fn g18_what_waits_too_long_for_its_turn_goes_back_uncounted<S: TestDb>(db: S) {
    stage(&db, "one", "job", 40).await;
    let sink = Turns::default();
    let engine = engine(&db, &App::default());
    // They wait for a sixth of it.
    let config = config().delivery(Duration::from_secs(6)).sink(sink.clone());
    let workers = engine.spawn_workers(config).unwrap();
    sink.hang(&db, 80).await;
    until(async || db.number(GIVEN_BACK).await > 0).await;
    sink.is_open.store(true, Ordering::SeqCst);
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    assert_eq!(sink.log.len(), 80, "each once");
    assert!(sink.log.is_in_order());
}

async fn g18_a_node_that_stops_gives_back_what_it_claimed_ahead<S: TestDb>(db: S) {
    stage(&db, "one", "job", 60).await;
    let sink = Turns::default();
    let stopping = engine(&db, &App::default());
    // Otherwise they wait for their turn for ten minutes.
    let claims = config().delivery(Duration::from_secs(3600));
    let enqueuer = Enqueuer::new(&stopping, sink.clone(), claims);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(enqueuer.run(async { drop(stopped.await) }));
    sink.hang(&db, 120).await;
    drop(stop);
    until(async || db.number(GIVEN_BACK).await > 0).await;
    let log = Log::default();
    let workers = engine(&db.another().await, &App::default())
        .spawn_workers(config().sink(log.clone()))
        .unwrap();
    // Jobs that hang, whether the first or the second of their request, and jobs that wait for them.
    let left = "SELECT count(DISTINCT request_id) FROM atomic_phases_staged_jobs";
    until(async || db.number(left).await == SHARE as i64).await;
    sink.is_open.store(true, Ordering::SeqCst);
    running.await.unwrap();
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    log.0.lock().unwrap().splice(0..0, sink.log.0.lock().unwrap().iter().cloned());
    assert_eq!(log.len(), 120, "each once");
}

async fn g18_what_a_killed_node_had_claimed_is_delivered_by_another<S: TestDb>(db: S) {
    stage(&db, "one", "job", 60).await;
    let sink = Turns::default();
    let node = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (its_db, its_sink) = (db.clone(), sink.clone());
    let began = node.spawn(async move {
        let engine = engine(&its_db.another().await, &App::default());
        let claims = config().delivery(Duration::from_secs(3600));
        engine.spawn_workers(claims.sink(its_sink)).unwrap()
    });
    let workers = began.await.unwrap();
    sink.hang(&db, 120).await;
    let delivered = sink.log.len();
    node.shutdown_background();
    drop(workers);
    db.let_time_pass().await;
    let log = Log::default();
    let workers = engine(&db.another().await, &App::default())
        .spawn_workers(config().sink(log.clone()))
        .unwrap();
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    // Delivered jobs that are not deleted yet are delivered again.
    assert!((120..=120 + SHARE + 100).contains(&(delivered + log.len())));
    assert!(log.0.lock().unwrap().iter().all(|job| job.attempt <= 2));
    let ids = |log: &Log| log.0.lock().unwrap().iter().map(|job| job.id).collect::<Vec<_>>();
    let all: std::collections::HashSet<_> = ids(&sink.log).into_iter().chain(ids(&log)).collect();
    assert_eq!(all.len(), 120, "by their stable ids, each");
}

async fn g18_a_job_that_cannot_be_read_keeps_no_other_from_its_delivery<S: TestDb>(db: S) {
    stage(&db, "one", "job", 20).await;
    // No key has a space in it.
    db.sql("UPDATE atomic_phases_staged_jobs SET idempotency_key = 'by hand' WHERE idempotency_key = 'job-7'")
        .await;
    let log = Log::default();
    let engine = engine(&db, &App::default());
    let workers = engine.spawn_workers(config().sink(log.clone())).unwrap();
    until(async || db.number(LEFT).await == 2).await;
    drop(workers);
    assert_eq!(log.len(), 38);
    assert!(log.is_in_order());
}

#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_whose_age_cannot_be_computed_is_delivered_with_the_others_on_postgres() {
    a_job_of_any_age_is_delivered(Postgres::fresh().await, "'infinity'").await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_whose_age_cannot_be_computed_is_delivered_with_the_others_on_mariadb() {
    let db = <atomic_phases::store::Mysql as TestDb>::fresh().await;
    a_job_of_any_age_is_delivered(db, "-9223372036854775807").await;
}

/// A person has written when it was staged.
async fn a_job_of_any_age_is_delivered<S: TestDb>(db: S, staged_at: &str) {
    stage(&db, "one", "job", 3).await;
    let sql =
        "UPDATE atomic_phases_staged_jobs SET staged_at = THEN WHERE idempotency_key = 'job-2'";
    db.sql(&sql.replace("THEN", staged_at)).await;
    let log = Log::default();
    let engine = engine(&db, &App::default());
    let workers = engine.spawn_workers(config().sink(log.clone())).unwrap();
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    assert_eq!(log.len(), 6);
    assert!(log.0.lock().unwrap().iter().all(|job| job.attempt == 1));
    assert!(log.is_in_order());
}

/// Only a row's own delivery waits for the row's lock.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_job_whose_row_is_locked_keeps_none_that_was_claimed_with_it_from_its_end() {
    #[derive(Clone, Default)]
    struct Waits(Log, Arc<AtomicBool>);
    impl JobSink for Waits {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            self.0.deliver(job).await?;
            let is_open = self.1.clone();
            until_within(OPENED, async move || is_open.load(Ordering::SeqCst)).await;
            Ok(())
        }
    }
    let db = Postgres::fresh().await;
    for scope in ["one", "two", "three"] {
        stage(&db, scope, "job", 1).await;
    }
    let sink = Waits::default();
    let engine = engine(&db, &App::default());
    let workers = engine.spawn_workers(config().sink(sink.clone())).unwrap();
    until(async || sink.0.len() == 3).await;
    let mut holder = crate::support::db::pg(&crate::support::db::url_of(&db)).await;
    let lock = "BEGIN; SELECT 1 FROM atomic_phases_staged_jobs WHERE scope = 'two' FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    sink.1.store(true, Ordering::SeqCst);
    let of_others = format!("{LEFT} WHERE scope <> 'two'");
    until(async || db.number(&of_others).await == 0).await;
    assert_eq!(db.number(LEFT).await, 2);
    holder.batch_execute("ROLLBACK").await.unwrap();
    until(async || db.number(LEFT).await == 0).await;
    drop(workers);
    assert!(sink.0.is_in_order() && sink.0.len() == 6);
}

/// Jobs whose arguments take longer to arrive together than an answer is waited for: 24 s instead of 15. The server ends a
/// claim that it cannot answer, so they are as due as before.
#[tokio::test(flavor = "multi_thread")]
async fn g17_jobs_whose_arguments_do_not_arrive_in_time_together_arrive_in_smaller_groups() {
    const JOBS: usize = 12;
    const BYTES: usize = 8 << 20;
    let (db, behind, proxy) = proxied().await;
    let delivered = Arc::new(AtomicUsize::new(0));
    let seen = delivered.clone();
    let handlers = Handlers::new().on("large", move |args: String, _| {
        seen.fetch_add(usize::from(args.len() == BYTES), Ordering::SeqCst);
        std::future::ready(Ok::<_, DeliveryError>(()))
    });
    let engine = engine(&behind, &App::default());
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, \
         args, staged_at, run_after) SELECT 'tenant-' || n, gen_random_uuid(), 0, gen_random_uuid(), 'k', 'large', \
         convert_to('\"' || repeat('1', {BYTES}) || '\"', 'UTF8'), clock_timestamp(), clock_timestamp() \
         FROM generate_series(1, {JOBS}) AS n"
    ))
    .await;
    proxy.narrow(BYTES / 2);
    let enqueuer = Enqueuer::new(&engine, handlers, config().concurrency(2 * JOBS));
    let worker = tokio::spawn(enqueuer.run(std::future::pending()));
    until_none_is_left(&db, Duration::from_secs(100)).await;
    worker.abort();
    assert_eq!(delivered.load(Ordering::SeqCst), JOBS);
}
