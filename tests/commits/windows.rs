//! The window of a provider, past which a call is not repeated (G11): in later attempts, after releases and
//! resolutions, and during a call that takes longer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::phase::ForeignError;
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g11_an_operators_retry_does_not_open_the_window_again,
    g11_a_call_ends_with_its_window,
    g11_a_call_does_not_begin_behind_its_window,
    g11_the_window_goes_on_in_a_later_attempt,
    g11_a_release_does_not_open_the_window_again,
    g17_an_accepted_request_makes_its_first_call_after_whatever_time,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Serialize, Deserialize)]
struct Done;

/// Moves the commit of the last recovery point into the past.
async fn age<S: TestDb>(db: &S, by: Duration) {
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

async fn g11_an_operators_retry_does_not_open_the_window_again<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(1));
    let request = || troubled(Trouble::RetryForeignAlways);
    let told = engine.call(&scope(), &key("k"), request()).await.unwrap();
    assert!(matches!(told, Outcome::DeadLetter), "{told:?}");
    age(&db, Duration::from_secs(25 * 3600)).await;
    let retried = engine.resolve(&scope(), &key("k"), Resolution::retry()).await.unwrap();
    assert_eq!(retried, Resolved::Applied);
    let told = engine.call(&scope(), &key("k"), request()).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    assert_eq!(app.provider.calls().len(), 1);
    // A resolution that no call was made restarts the window.
    let attempt = status(&engine, "k").await.attempt;
    let word = Resolution::not_executed("charged", attempt);
    assert_eq!(engine.resolve(&scope(), &key("k"), word).await.unwrap(), Resolved::Applied);
    engine.call(&scope(), &key("k"), request()).await.unwrap();
    assert_eq!(app.provider.calls().len(), 2);
}

/// The provider keeps its effect in a queue for longer than it remembers keys.
#[derive(Clone, Serialize, Deserialize)]
struct Queues;

#[atomic_phases(name = "queues", version = 1)]
impl<Db: TestDb> Queues {
    #[phase(foreign(idempotent, window = "500ms"))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        call.make(async |key| {
            tokio::time::sleep(ms(1000)).await;
            app.provider.call(key.as_str(), "late").await;
            Ok::<_, PhaseError>(())
        })
        .await?;
        Ok(Done)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "queues", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g11_a_call_ends_with_its_window<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Queues>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Queues).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    assert_eq!(app.provider.calls().len(), 0);
}

/// Its thread is blocked right before the call, for longer than the provider remembers and for less than the lease.
#[derive(Clone, Serialize, Deserialize)]
struct Stalls;

#[atomic_phases(name = "stalls", version = 1)]
impl<Db: TestDb> Stalls {
    #[phase(foreign(idempotent, window = "500ms"))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        app.bodies[1].fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(ms(600));
        call.make(async |key| {
            app.provider.call(key.as_str(), "late").await;
            Ok::<_, PhaseError>(())
        })
        .await?;
        Ok(Done)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "stalls", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g11_a_call_does_not_begin_behind_its_window<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Stalls>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Stalls).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    assert_eq!((app.provider.calls().len(), app.bodies()[1]), (0, 1));
}

/// Its first call fails, and the second one takes a second.
#[derive(Clone, Serialize, Deserialize)]
struct Lingers;

#[atomic_phases(name = "lingers", version = 1)]
impl<Db: TestDb> Lingers {
    #[phase(foreign(idempotent, window = "1h"))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        let attempt = app.bodies[1].fetch_add(1, Ordering::SeqCst);
        call.make(async |key| {
            tokio::time::sleep(ms(1000) * attempt).await;
            app.provider.call(key.as_str(), "slow").await;
            Ok::<_, ForeignError>(())
        })
        .await?;
        Err(ForeignError::retryable("asked for"))
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "lingers", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// A takeover near the end of the window has the rest of it, and no new window.
async fn g11_the_window_goes_on_in_a_later_attempt<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Lingers>().build().unwrap();
    failed(engine.call(&scope(), &key("k"), Lingers).await);
    // An hour less the margin of five minutes, and less half a second.
    age(&db, ms(55 * 60 * 1000 - 500)).await;
    let told = engine.call(&scope(), &key("k"), Lingers).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    assert_eq!(app.provider.calls().len(), 1);
}

async fn g11_a_release_does_not_open_the_window_again<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let request = || troubled(Trouble::RetryForeignAlways);
    for _ in 0..2 {
        failed(engine.call(&scope(), &key("k"), request()).await);
        age(&db, Duration::from_secs(13 * 3600)).await;
    }
    let told = engine.call(&scope(), &key("k"), request()).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    assert_eq!(app.provider.calls().len(), 2);
}

/// Nothing was called, so the provider has nothing to forget. The first to run it is a worker or a client's retry: on
/// PostgreSQL they take it over by different statements.
async fn g17_an_accepted_request_makes_its_first_call_after_whatever_time<S: TestDb>(db: S) {
    for first in ["a worker", "the client"] {
        let app = App::default();
        let engine: TestEngine<S> =
            Engine::builder(db.clone()).app(app.clone()).register::<Lingers>().build().unwrap();
        let accepted = engine.call(&scope(), &key("k"), Lingers).accept().await.unwrap();
        assert!(matches!(accepted, Outcome::Accepted), "{accepted:?}");
        age(&db, Duration::from_secs(2 * 3600)).await;
        if first == "a worker" {
            assert_eq!(completed(&engine).await.unknown, 0);
        } else {
            failed(engine.call(&scope(), &key("k"), Lingers).await);
        }
        assert_eq!(app.provider.calls().len(), 1, "{first}");
        // From then on it may have been made: the window begins.
        failed(engine.call(&scope(), &key("k"), Lingers).await);
        assert_eq!(app.provider.calls().len(), 2, "{first}");
        age(&db, Duration::from_secs(2 * 3600)).await;
        let told = engine.call(&scope(), &key("k"), Lingers).await.unwrap();
        assert!(matches!(told, Outcome::Unknown { .. }), "{first}: {told:?}");
        assert_eq!(app.provider.calls().len(), 2, "G11");
        db.sql("DELETE FROM atomic_phases_keys").await;
    }
}
