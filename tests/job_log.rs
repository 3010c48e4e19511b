//! What the log says about a job that is not delivered. Separate, because a process has one log.

mod support;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::compat::Definitions;
use atomic_phases::engine::{CallError, WAITING_JOB};
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{Completer, DeliveryError, Enqueuer, Handlers, Job, JobSink};
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, atomic_phases};
use support::work::*;
use support::*;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

async fn an_operator_finds_the_job_by_its_line<S: TestDb>(db: S, log: &Log) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("canary"), book(20)).await);
    let sink = Handlers::new()
        .on("receipt", async |_: String, _: Job| Err(DeliveryError::retry("mail is down")));
    let mut enqueuer = Enqueuer::new(&engine, sink, config().max_deliveries(2));
    log.take();
    for _ in 0..5 {
        enqueuer.run_once().await.unwrap();
        db.let_time_pass().await;
    }
    let log = log.take();
    let job = ops_of(&engine).dead_jobs(None, 1).await.unwrap().rows.remove(0);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("mail is down")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("delivered again") && lines[1].contains("dead letter"), "{log}");
    for line in lines {
        for part in ["WARN", "receipt", &job.id.to_string(), &job.request_id.to_string()] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    // The next one has no handler here.
    let left = log.lines().filter(|line| line.contains("left to other nodes"));
    assert_eq!(left.count(), 1, "once, not at each look: {log}");
    assert!(!log.contains("canary") && !log.contains("tenant-1"), "{log}");
}

/// Stages a job.
#[derive(serde::Serialize, serde::Deserialize)]
struct Thank;

#[atomic_phases(name = "thank", version = 1)]
impl<Db: TestDb> Thank {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>) -> PhaseResult<Reply> {
        batch.stage_job("mail", &1)?;
        Ok(Reply::new(204))
    }
}

struct TakesAll;

impl JobSink for TakesAll {
    async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
        Ok(())
    }
}

/// Each job that the process stages and its sink does not handle has a line when its workers start.
async fn workers_that_start_name_the_jobs_that_their_sink_does_not_handle<S: TestDb>(
    db: S,
    log: &Log,
) {
    let engine = |tells: bool| {
        let definitions = Definitions::<S>::new().job::<Thank, String>("staged-elsewhere");
        let builder = Engine::builder(db.clone()).app(()).definitions(definitions);
        let builder = if tells { builder.notify_waiting() } else { builder };
        builder.build().unwrap()
    };
    let named = |log: String| -> Vec<&'static str> {
        let about = "the sink of this process does not handle such jobs, which its own requests";
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(about)).collect();
        assert!(lines.iter().all(|line| line.contains("WARN")), "{log}");
        let names = [WAITING_JOB, "mail", "staged-elsewhere"];
        let is_named = |name: &&str| {
            let named = format!("job=\"{name}\"");
            lines.iter().any(|line| line.contains(&named))
        };
        let named: Vec<&str> = names.into_iter().filter(is_named).collect();
        assert_eq!(named.len(), lines.len(), "{log}");
        named
    };
    let mail = || Handlers::new().on("mail", async |_: u8, _: Job| Ok::<_, DeliveryError>(()));
    log.take();
    let _enqueuer = Enqueuer::new(&engine(false), mail(), config());
    assert_eq!(named(log.take()), ["staged-elsewhere"]);
    let _enqueuer = Enqueuer::new(&engine(true), mail(), config());
    assert_eq!(named(log.take()), [WAITING_JOB, "staged-elsewhere"]);
    let _enqueuer = Enqueuer::new(&engine(true), TakesAll, config());
    assert_eq!(named(log.take()), [""; 0], "it takes all");
    let workers = engine(true).spawn_workers(config().sink(Handlers::new())).unwrap();
    let told = log.take();
    workers.shutdown(Duration::from_secs(60)).await.unwrap();
    assert_eq!(named(told), [WAITING_JOB, "mail", "staged-elsewhere"]);
}

static IS_BROKEN: AtomicBool = AtomicBool::new(false);

/// A request whose parameters cannot be written a second time for a while: it panics. The first time is for the fingerprint,
/// in the caller's own task.
#[derive(serde::Serialize, serde::Deserialize)]
struct Fragile {
    #[serde(serialize_with = "write")]
    n: u32,
}

fn write<S: serde::Serializer>(n: &u32, to: S) -> Result<S::Ok, S::Error> {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let is_broken = IS_BROKEN.load(Ordering::SeqCst);
    assert!(!is_broken || WRITTEN.fetch_add(1, Ordering::SeqCst).is_multiple_of(2), "as asked for");
    serde::Serialize::serialize(n, to)
}

#[atomic_phases(name = "fragile", version = 1)]
impl<Db: TestDb> Fragile {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>) -> PhaseResult<Reply> {
        Db::add_step(batch, "fragile", "answered");
        Ok(Reply::new(204))
    }
}

/// If a request stops outside of its phases, the line that says so names the definition and the request.
async fn an_operator_finds_the_request_by_its_line<S: TestDb>(db: S, log: &Log) {
    let engine = Engine::builder(db.clone()).app(()).register::<Fragile>().build().unwrap();
    let accepted = engine.call(&scope(), &key("canary"), Fragile { n: 1 }).accept().await;
    assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
    let lines = Lines(log);
    log.take();
    let completes = async || {
        let swept = Completer::new(&engine, config()).run_once().await.unwrap();
        assert_eq!(swept.failed, 1, "{swept:?}");
    };
    // A worker finds the row, and cannot read it.
    let rename = |one: &str, other: &str| {
        format!("ALTER TABLE atomic_phases_keys RENAME COLUMN {one} TO {other}")
    };
    db.sql(&rename("params", "hidden")).await;
    lines.say(completes, &["a worker could not drive a request on"]).await;
    db.sql(&rename("hidden", "params")).await;
    // Its task panics.
    IS_BROKEN.store(true, Ordering::SeqCst);
    let call = async || {
        let told = engine.call(&scope(), &key("canary-2"), Fragile { n: 2 }).await;
        assert!(matches!(told, Err(CallError::TaskLost)), "{told:?}");
    };
    lines.say(call, &["a request could not be answered", "task"]).await;
    IS_BROKEN.store(false, Ordering::SeqCst);
}

/// The lines of a log.
struct Lines<'l>(&'l Log);

impl Lines<'_> {
    /// Exactly one line about a request has these parts. A line that repeats within a second is counted, and
    /// written once.
    async fn say(&self, act: impl AsyncFn(), parts: &[&str]) {
        let log = loop {
            act().await;
            let log = self.0.take();
            if log.contains("WARN") {
                break log;
            }
        };
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(lines.len(), 1, "{log}");
        let all = ["definition=\"fragile\"", "request_id=", "scope=", "key="];
        for part in parts.iter().chain(&all) {
            assert!(lines[0].contains(part), "{part} in {}", lines[0]);
        }
        assert!(!log.contains("canary"), "{log}");
        assert!(!log.contains("request_id=00000000"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g19_a_job_that_is_not_delivered_is_logged_with_its_name_id_request_and_reason() {
    let log = Log::default();
    let lines = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone());
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    an_operator_finds_the_job_by_its_line(<Sqlite as TestDb>::fresh().await, &log).await;
    an_operator_finds_the_job_by_its_line(<Postgres as TestDb>::fresh().await, &log).await;
    workers_that_start_name_the_jobs_that_their_sink_does_not_handle(
        <Sqlite as TestDb>::fresh().await,
        &log,
    )
    .await;
    an_operator_finds_the_request_by_its_line(<Sqlite as TestDb>::fresh().await, &log).await;
    an_operator_finds_the_request_by_its_line(<Postgres as TestDb>::fresh().await, &log).await;
}
