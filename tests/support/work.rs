//! Workers as the tests run them: one pass at a time, no grace period; a request that dies in its call; an inbox
//! for jobs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::engine::RequestStatus;
use atomic_phases::ops::{Actor, Ops, Permissions, Scopes};
use atomic_phases::request::RequestDefinition;
use atomic_phases::worker::{
    Completer, DeliveryError, Handlers, Job, JobSink, Reconciler, Sweep, WorkerConfig,
};

use super::{App, TestDb, TestEngine, is_postgres, key, scope};

pub fn config() -> WorkerConfig {
    WorkerConfig::default().grace(Duration::ZERO).poll(Duration::from_millis(20))
}

pub async fn completed<S: TestDb>(engine: &TestEngine<S>) -> Sweep {
    Completer::new(engine, config()).run_once().await.unwrap()
}

pub async fn reconciled<S: TestDb>(engine: &TestEngine<S>) -> Sweep {
    Reconciler::new(engine, config()).run_once().await.unwrap()
}

pub async fn status<S: TestDb>(engine: &TestEngine<S>, name: &str) -> RequestStatus {
    engine.status(&scope(), &key(name)).await.unwrap().unwrap()
}

/// Moves the commit of the last recovery point of the only row into the past.
pub async fn age<S: TestDb>(db: &S, by: Duration) {
    let by = by.as_millis();
    let earlier = match is_postgres::<S>() {
        // A literal time: a distributed table does not compute one from a column.
        true => {
            let asked =
                format!("SELECT (advanced_at - interval '{by} ms')::text FROM atomic_phases_keys");
            format!("'{}'", db.text(&asked).await)
        }
        false => format!("advanced_at - {by}"),
    };
    db.sql(&format!("UPDATE atomic_phases_keys SET advanced_at = {earlier}")).await;
}

/// An operator who may do everything.
pub fn ops_of<S: TestDb>(engine: &TestEngine<S>) -> Ops<S> {
    engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap())
}

/// An operator lets each dead job be delivered again. Returns how many there were.
pub async fn retry_dead_jobs<S: TestDb>(engine: &TestEngine<S>) -> usize {
    let ops = ops_of(engine);
    let dead = ops.dead_jobs(None, 1000).await.unwrap().rows;
    for job in &dead {
        ops.retry_job(job.id, job.attempts, "the receiver is up again").await.unwrap();
    }
    dead.len()
}

/// Dies inside its foreign call, after the effect.
pub async fn dies_in_its_call<S: TestDb, R: RequestDefinition<S, App>>(
    engine: &TestEngine<S>,
    name: &str,
    request: R,
) {
    let mut gate = engine.app().provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key(name), request);
    let call = tokio::spawn(call.__call_in_place());
    let waiting = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    engine.app().provider.stop_no_more();
    drop(waiting);
}

/// The jobs that a sink received, outside of the engine's tables.
#[derive(Clone, Default)]
pub struct Inbox(pub Arc<Mutex<Vec<Job>>>);

impl Inbox {
    pub fn take(&self) -> Vec<Job> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub fn sink(&self) -> impl JobSink {
        let (one, other) = (self.clone(), self.clone());
        Handlers::new()
            .on("receipt", move |_: String, job| one.clone().keep(job))
            .on("thanks", move |_: String, job| other.clone().keep(job))
    }

    pub async fn keep(self, job: Job) -> Result<(), DeliveryError> {
        self.0.lock().unwrap().push(job);
        Ok(())
    }
}
