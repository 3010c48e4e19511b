//! What the log says of a job that is not delivered. Alone in its process, because the log is its own.

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};

use atomic_phases::*;
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
    finished(engine.execute(&scope(), &key("canary"), book(20)).await);
    let sink = Handlers::new()
        .on("receipt", async |_: String, _: Job| Err(DeliveryError::retry("mail is down")));
    let mut enqueuer = Enqueuer::new(&engine, sink, config().max_deliveries(2));
    log.take();
    for _ in 0..5 {
        enqueuer.run_once().await.unwrap();
        db.let_time_pass().await;
    }
    let log = log.take();
    let job = engine.dead_jobs(None, 1).await.unwrap().remove(0);
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

#[tokio::test(flavor = "multi_thread")]
async fn g19_a_job_that_is_not_delivered_is_logged_with_its_name_id_request_and_reason() {
    let log = Log::default();
    let lines = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone());
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    an_operator_finds_the_job_by_its_line(<Sqlite as TestDb>::fresh().await, &log).await;
    an_operator_finds_the_job_by_its_line(<Postgres as TestDb>::fresh().await, &log).await;
}
