//! A machine that is suspended while a task makes a call: its clock continues, its timers do not. What wakes first afterwards
//! is the call, by its socket.

use std::sync::mpsc;
use std::thread::JoinHandle;

use super::lease::{Done, ms};
use crate::support::work::{reconciled, status};
use crate::support::*;
use atomic_phases::engine::CallError;
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::store::Status;
use atomic_phases::{Engine, ForeignCall, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

on_every_store! {
    g2_a_call_in_a_task_is_not_made_behind_a_suspend_in_which_another_made_it,
    a_call_in_a_task_continues_behind_a_suspend_when_its_lease_is_renewed,
}

const LEASE: u64 = 1000;

/// Its call is made in a task, as in code that shields the call from the end of the phase.
#[derive(Clone, Serialize, Deserialize)]
struct Mails;

#[atomic_phases(name = "mails", version = 1)]
impl<Db: TestDb> Mails {
    // No test waits for it.
    #[phase(foreign(at_most_once), timeout = "1m")]
    async fn sent(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        let provider = app.provider.clone();
        let task = tokio::spawn(async move {
            call.make(async |key| Ok::<_, ()>(provider.call(key.as_str(), "mail").await)).await
        });
        drop(task.await);
        Ok(Done)
    }

    #[reconcile(sent)]
    async fn was_sent(&self, app: &App) -> PhaseResult<Reconciled<Done>> {
        Ok(match app.provider.effects() {
            0 => Reconciled::NotExecuted,
            _ => Reconciled::Executed(Done),
        })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "mails", "answered").await?;
        Ok(Reply::new(204))
    }
}

fn mailing<S: TestDb>(db: &S, app: &App) -> TestEngine<S> {
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Mails>();
    builder.lease(ms(LEASE)).back_off(ms(1), ms(1)).build().unwrap()
}

/// A machine that makes the call. Its runtime has one thread, which runs no timer and no task while it is suspended.
struct Machine {
    call: JoinHandle<Result<Outcome, CallError>>,
    suspend: oneshot::Sender<()>,
    resume: mpsc::Sender<()>,
}

impl Machine {
    fn start<S: TestDb>(db: &S, app: &App) -> Self {
        let (suspend, suspended) = oneshot::channel();
        let (resume, resumed) = mpsc::channel();
        let (db, app) = (db.clone(), app.clone());
        let call = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let engine = mailing(&db.another().await, &app);
                let call = tokio::spawn(engine.call(&scope(), &key("k"), Mails).into_future());
                let _ = suspended.await;
                let _ = resumed.recv();
                call.await.unwrap()
            })
        });
        Self { call, suspend, resume }
    }

    async fn told(call: JoinHandle<Result<Outcome, CallError>>) -> Result<Outcome, CallError> {
        until(async || call.is_finished()).await;
        call.join().unwrap()
    }
}

async fn g2_a_call_in_a_task_is_not_made_behind_a_suspend_in_which_another_made_it<S: TestDb>(
    db: S,
) {
    let app = App::new(Provider::that_ignores_keys());
    let mut gate = app.provider.stop_before_the_effect();
    let Machine { call, suspend, resume } = Machine::start(&db, &app);
    let connecting = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    suspend.send(()).unwrap();
    let other = mailing(&db, &app);
    let ask = async || other.call(&scope(), &key("k"), Mails).await;
    // The lease ends in its time, so that the holder can know of it.
    until(async || matches!(ask().await, Ok(Outcome::Unknown { .. }))).await;
    db.let_time_pass().await;
    until(async || {
        reconciled(&other).await;
        status(&other, "k").await.status != Status::Unknown
    })
    .await;
    finished(ask().await);
    assert_eq!(app.provider.effects(), 1);

    connecting.send(()).unwrap();
    resume.send(()).unwrap();
    assert!(finished(Machine::told(call).await).replayed);
    assert_eq!(app.provider.effects(), 1, "sent by a holder that has lost the key");
}

async fn a_call_in_a_task_continues_behind_a_suspend_when_its_lease_is_renewed<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let mut gate = app.provider.stop_before_the_effect();
    let Machine { call, suspend, resume } = Machine::start(&db, &app);
    let connecting = gate.recv().await.unwrap();
    suspend.send(()).unwrap();
    tokio::time::sleep(ms(LEASE + 100)).await;
    connecting.send(()).unwrap();
    app.provider.stop_no_more();
    resume.send(()).unwrap();
    assert!(!finished(Machine::told(call).await).replayed);
    assert_eq!(app.provider.effects(), 1);
}
