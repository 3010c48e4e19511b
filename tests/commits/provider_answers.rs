//! What a provider may answer to a call: key in use, other parameters, busy, a server error, another id. The tests count
//! effects in the provider's ledger; [`infrastructure_faults`](super::infrastructure_faults) has the catalogue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use atomic_phases::engine::FailureCause;
use atomic_phases::phase::ForeignError;
use atomic_phases::worker::{Completer, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    provider_says_its_key_is_in_use_and_the_same_key_is_sent_again,
    provider_says_the_parameters_differ_and_the_call_is_not_repeated,
    provider_asks_for_time_and_its_time_is_passed_on,
    provider_that_answers_another_id_is_told_apart_by_its_ledger,
}

/// The provider's answers, and how often it was called.
#[derive(Clone, Default)]
struct Scripted {
    provider: Provider,
    answers: Arc<Mutex<Vec<u16>>>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Pay {}

#[derive(Serialize, Deserialize)]
struct Paid(String);

#[atomic_phases(name = "pay", version = 1, app = Scripted)]
impl<Db: TestDb> Pay {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<()> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "noted").await?;
        Ok(())
    }

    #[phase(foreign(idempotent), commit)]
    async fn paid(&self, call: ForeignCall, app: &Scripted) -> PhaseResult<Paid, ForeignError> {
        let id = call
            .make(async |key| {
                let answer = app.answers.lock().unwrap().pop();
                match answer {
                    // The provider has a call with this key in progress, or is too busy: this call certainly had no
                    // effect.
                    Some(409) => return Err(ForeignError::retryable("key in use")),
                    Some(429) => {
                        let after = Duration::from_secs(17);
                        return Err(ForeignError::not_executed_after("busy", after));
                    }
                    // The provider did something else under this key.
                    Some(400) => return Err(ForeignError::unknown("parameters differ")),
                    _ => {}
                }
                let id = app.provider.call(key.as_str(), "pay").await;
                match answer {
                    Some(500) => Err(ForeignError::retryable("server error")),
                    _ => Ok(id),
                }
            })
            .await?;
        Ok(Paid(id))
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
        Db::insert_step(tx, &paid.0, "answered").await?;
        Ok(Reply::text(200, paid.0.clone()))
    }
}

fn paying<S: TestDb>(db: &S, answers: &[u16]) -> (Engine<S, Scripted>, Scripted) {
    let app = Scripted::default();
    app.answers.lock().unwrap().extend(answers.iter().rev());
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Pay>();
    (builder.build().unwrap(), app)
}

async fn provider_says_its_key_is_in_use_and_the_same_key_is_sent_again<S: TestDb>(db: S) {
    let (engine, app) = paying(&db, &[500, 409, 409, 200]);
    for reason in ["server error", "key in use", "key in use"] {
        let cause = failed(engine.call(&scope(), &key("k"), Pay {}).await);
        assert_eq!(cause, FailureCause::Phase { phase: "paid", reason });
    }
    let done = finished(engine.call(&scope(), &key("k"), Pay {}).await);
    assert_eq!(done.reply.bytes(), b"effect-1");
    assert_eq!(app.provider.effects(), 1);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 2);
}

async fn provider_says_the_parameters_differ_and_the_call_is_not_repeated<S: TestDb>(db: S) {
    let (engine, app) = paying(&db, &[400]);
    for _ in 0..3 {
        let outcome = engine.call(&scope(), &key("k"), Pay {}).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    assert!(app.provider.calls().is_empty(), "asked once, and an operator has to look at it");
    assert_eq!(engine.check().await.unwrap().waiting.len(), 1);
}

async fn provider_asks_for_time_and_its_time_is_passed_on<S: TestDb>(db: S) {
    let (engine, app) = paying(&db, &[429, 200]);
    let outcome = engine.call(&scope(), &key("k"), Pay {}).await;
    let Ok(Outcome::Failed { retry_after, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(retry_after, Duration::from_secs(17));
    let status = engine.status(&scope(), &key("k")).await.unwrap().unwrap();
    assert!(status.retry_after > Duration::from_secs(10), "{:?}", status.retry_after);
    let mut completer = Completer::new(&engine, WorkerConfig::default().grace(Duration::ZERO));
    assert_eq!(completer.run_once().await.unwrap().total(), 0, "workers keep to it");
    finished(engine.call(&scope(), &key("k"), Pay {}).await);
    assert_eq!(app.provider.effects(), 1);
}

/// "The provider honors the key" is an assumption. If a provider does not, its own ledger shows it: the engine sent
/// one key, and keeps the one id that it committed.
async fn provider_that_answers_another_id_is_told_apart_by_its_ledger<S: TestDb>(db: S) {
    let app = Scripted { provider: Provider::that_ignores_keys(), ..Scripted::default() };
    app.answers.lock().unwrap().push(500);
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Pay>();
    let engine = builder.build().unwrap();
    failed(engine.call(&scope(), &key("k"), Pay {}).await);
    for _ in 0..2 {
        let done = finished(engine.call(&scope(), &key("k"), Pay {}).await);
        assert_eq!(done.reply.bytes(), b"effect-2");
    }
    let calls = app.provider.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1], "by one key: theirs to answer for");
}
