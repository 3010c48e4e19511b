//! The window of a provider, past which a call is not repeated (G11): in later attempts, after releases and
//! resolutions, and during a call that takes longer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::engine::{EngineBuilder, Resolution, Resolved};
use atomic_phases::phase::ForeignError;
use atomic_phases::store::Status;
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
    g17_a_call_that_its_phase_says_was_not_executed_is_made_again_after_whatever_back_off,
    g11_the_window_begins_with_the_first_attempt_whose_call_may_have_had_an_effect,
    g17_an_operators_retry_of_what_was_never_executed_makes_the_call,
    g17_what_is_refused_again_behind_an_operators_retry_is_called_after_whatever_time,
    g17_a_build_that_cannot_read_a_request_does_not_forget_that_nothing_was_called,
    g17_the_call_behind_one_that_was_resolved_is_made_after_whatever_time,
    g2_a_later_word_about_a_call_that_was_not_executed_contradicts_nothing,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Serialize, Deserialize)]
struct Done;

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
            app.bodies[1].fetch_add(1, Ordering::SeqCst);
            // Far longer than its window, and less than the time limit of its phase.
            tokio::time::sleep(ms(20_000)).await;
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
    for number in 0..20 {
        let told = engine.call(&scope(), &key(&format!("k{number}")), Queues).await.unwrap();
        assert_eq!(app.provider.calls().len(), 0);
        // On a slow machine, its window may be over before its call has begun.
        if app.bodies()[1] > 0 {
            assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
            return;
        }
        assert!(matches!(told, Outcome::Failed { .. }), "{told:?}");
    }
    panic!("no call has begun");
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
    for number in 0..20 {
        // Nothing was called, so its outcome is not unknown.
        failed(engine.call(&scope(), &key(&format!("k{number}")), Stalls).await);
        assert_eq!(app.provider.calls().len(), 0);
        // On a slow machine, its window may be over before its body has begun.
        if app.bodies()[1] > 0 {
            assert_eq!(app.bodies()[1], 1);
            return;
        }
    }
    panic!("no body has begun");
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

/// The provider refuses its first calls, 429 with `Retry-After: 3600`, and remembers calls for half an hour. The answer to
/// its second call may be lost.
#[derive(Clone, Serialize, Deserialize)]
struct Refused {
    refuses: u32,
    loses_the_second: bool,
}

const REFUSED: Refused = Refused { refuses: 1, loses_the_second: false };

#[atomic_phases(name = "refused", version = 1)]
impl<Db: TestDb> Refused {
    #[phase(foreign(idempotent, window = "30m"))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        let attempt = app.bodies[1].fetch_add(1, Ordering::SeqCst);
        call.make(async |key| {
            if attempt < self.refuses {
                return Err(ForeignError::not_executed_after("busy", ms(3_600_000)));
            }
            app.provider.call(key.as_str(), "in time").await;
            match self.loses_the_second && attempt == 1 {
                true => Err(ForeignError::retryable("the answer was lost")),
                false => Ok(Done),
            }
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "refused", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// As its reconcile function and an operator may say it: there is nothing that the provider could have forgotten.
async fn g17_a_call_that_its_phase_says_was_not_executed_is_made_again_after_whatever_back_off<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    let engine = refusing(&db, &app, |builder| builder);
    let told = engine.call(&scope(), &key("k"), REFUSED).await.unwrap();
    let Outcome::Failed { retry_after, .. } = told else { panic!("{told:?}") };
    age(&db, retry_after).await;
    db.let_time_pass().await;
    let told = engine.call(&scope(), &key("k"), REFUSED).await.unwrap();
    assert!(matches!(told, Outcome::Finished(_)), "no call was ever executed: {told:?}");
    assert_eq!((app.provider.calls().len(), app.bodies()[1]), (1, 2));
}

fn refusing<S: TestDb>(
    db: &S,
    app: &App,
    set: impl FnOnce(EngineBuilder<S, App>) -> EngineBuilder<S, App>,
) -> TestEngine<S> {
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Refused>();
    set(builder).build().unwrap()
}

/// An hour after a call without an effect the next one is made, and its answer lost: from then on it counts, as it would
/// behind a crash of its process.
async fn g11_the_window_begins_with_the_first_attempt_whose_call_may_have_had_an_effect<
    S: TestDb,
>(
    db: S,
) {
    for (waits, calls) in [(Duration::ZERO, 2), (ms(3_600_000), 1)] {
        let app = App::default();
        let engine = refusing(&db, &app, |builder| builder);
        let ask = async || {
            db.let_time_pass().await;
            engine.call(&scope(), &key("k"), Refused { loses_the_second: true, ..REFUSED }).await
        };
        failed(ask().await);
        age(&db, ms(3_600_000)).await;
        failed(ask().await);
        assert_eq!(app.provider.calls().len(), 1);
        age(&db, waits).await;
        let told = ask().await.unwrap();
        match calls {
            1 => assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}"),
            _ => assert!(matches!(told, Outcome::Finished(_)), "{told:?}"),
        }
        assert_eq!(app.provider.calls().len(), calls);
        db.sql("DELETE FROM atomic_phases_keys").await;
    }
}

async fn g17_an_operators_retry_of_what_was_never_executed_makes_the_call<S: TestDb>(db: S) {
    let app = App::default();
    let engine = refusing(&db, &app, |builder| builder.max_attempts(1));
    let told = engine.call(&scope(), &key("k"), REFUSED).await.unwrap();
    assert!(matches!(told, Outcome::DeadLetter), "{told:?}");
    age(&db, ms(3_600_000)).await;
    let retried = engine.resolve(&scope(), &key("k"), Resolution::retry()).await.unwrap();
    assert_eq!(retried, Resolved::Applied);
    let told = engine.call(&scope(), &key("k"), REFUSED).await.unwrap();
    assert!(matches!(told, Outcome::Finished(_)), "{told:?}");
}

/// Nothing was called before the retry, and nothing behind it. The operator's process may have none of the code.
async fn g17_what_is_refused_again_behind_an_operators_retry_is_called_after_whatever_time<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    let engine = refusing(&db, &app, |builder| builder.max_attempts(1));
    let without_code = Engine::builder(db.clone()).build().unwrap();
    let ask = || engine.call(&scope(), &key("k"), Refused { refuses: 2, ..REFUSED });
    for _ in 0..2 {
        let told = ask().await.unwrap();
        assert!(matches!(told, Outcome::DeadLetter), "{told:?}");
        let retried = without_code.resolve(&scope(), &key("k"), Resolution::retry()).await.unwrap();
        assert_eq!(retried, Resolved::Applied);
        age(&db, ms(3_600_000)).await;
    }
    let told = ask().await.unwrap();
    assert!(matches!(told, Outcome::Finished(_)), "no call was ever executed: {told:?}");
    assert_eq!((app.provider.calls().len(), app.bodies()[1]), (1, 3));
}

/// The same definition, as a build has it that cannot read the parameters.
#[derive(Clone, Serialize, Deserialize)]
struct RefusedElsewhere {
    of_another_build: u32,
}

#[atomic_phases(name = "refused", version = 1)]
impl<Db: TestDb> RefusedElsewhere {
    #[phase(foreign(idempotent, window = "30m"))]
    async fn asked(&self, call: ForeignCall) -> PhaseResult<Done, ForeignError> {
        call.make(async |_| Ok::<_, ForeignError>(Done)).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "refused", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// The same, with another phase in front of the call.
#[derive(Clone, Serialize, Deserialize)]
struct RefusedBehindAnother {
    of_another_build: u32,
}

#[atomic_phases(name = "refused", version = 1)]
impl<Db: TestDb> RefusedBehindAnother {
    #[phase]
    async fn checked(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        Db::insert_step(tx, "refused", "checked").await?;
        Ok(())
    }

    #[phase(foreign(idempotent, window = "30m"))]
    async fn asked(&self, call: ForeignCall) -> PhaseResult<Done, ForeignError> {
        call.make(async |_| Ok::<_, ForeignError>(Done)).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "refused", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// Its attempts call nothing either. Once the right build has the request again, its call is made.
async fn g17_a_build_that_cannot_read_a_request_does_not_forget_that_nothing_was_called<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    let engine = refusing(&db, &app, |builder| builder);
    failed(engine.call(&scope(), &key("k"), REFUSED).await);
    let builder = || Engine::builder(db.clone()).app(app.clone());
    let elsewhere = builder().register::<RefusedElsewhere>().build().unwrap();
    let behind_another = builder().register::<RefusedBehindAnother>().build().unwrap();
    for (attempt, build) in [(2, &elsewhere), (3, &behind_another), (4, &behind_another)] {
        db.let_time_pass().await;
        let _ = completed(build).await;
        assert_eq!(status(&engine, "k").await.attempt, attempt);
    }
    age(&db, ms(3_600_000)).await;
    db.let_time_pass().await;
    let told = engine.call(&scope(), &key("k"), REFUSED).await.unwrap();
    assert!(matches!(told, Outcome::Finished(_)), "no call was ever executed: {told:?}");
    assert_eq!(app.provider.calls().len(), 1);
}

/// Two calls. The outcome of the first is unknown, and the first answer to the second is lost.
#[derive(Clone, Serialize, Deserialize)]
struct Twice;

#[derive(Serialize, Deserialize)]
struct Confirmed;

#[atomic_phases(name = "twice", version = 1)]
impl<Db: TestDb> Twice {
    #[phase(foreign(idempotent, window = "30m"))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "asked").await;
            Err::<Done, _>(ForeignError::unknown("no answer"))
        })
        .await
    }

    #[phase(foreign(idempotent, window = "30m"))]
    async fn confirmed(
        &self,
        call: ForeignCall,
        app: &App,
        _done: &Done,
    ) -> PhaseResult<Confirmed, ForeignError> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "confirmed").await;
            match app.bodies[2].fetch_add(1, Ordering::SeqCst) {
                0 => Err(ForeignError::retryable("the answer was lost")),
                _ => Ok(Confirmed),
            }
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _confirmed: &Confirmed) -> PhaseResult<Reply> {
        Db::insert_step(tx, "twice", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// A webhook, or an operator, says that the first call was executed. No attempt has come to the second.
async fn g17_the_call_behind_one_that_was_resolved_is_made_after_whatever_time<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Twice>().build().unwrap();
    let ask = || engine.call(&scope(), &key("k"), Twice);
    let seen = async || {
        let row = ops_of(&engine).find(&scope(), &key("k")).await.unwrap();
        (row.phase, row.perhaps_called)
    };
    let next = || Some("confirmed".to_owned());
    let told = ask().await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    let word = Resolution::executed("asked", &Done).unwrap();
    assert_eq!(engine.resolve(&scope(), &key("k"), word).await.unwrap(), Resolved::Applied);
    assert_eq!(seen().await, (next(), None));
    age(&db, ms(3_600_000)).await;
    failed(ask().await);
    assert_eq!(app.provider.calls().len(), 2);
    // From then on it may have been made: the window has begun.
    assert_eq!(seen().await, (next(), next()));
    age(&db, ms(3_600_000)).await;
    let told = ask().await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    assert_eq!(app.provider.calls().len(), 2, "G11");
}

/// The phase was wrong, or the provider changed its mind: a webhook says that the call was executed after all.
async fn g2_a_later_word_about_a_call_that_was_not_executed_contradicts_nothing<S: TestDb>(db: S) {
    let app = App::default();
    let engine = refusing(&db, &app, |builder| builder);
    failed(engine.call(&scope(), &key("k"), REFUSED).await);
    let same = Resolution::not_executed("asked", 1);
    assert_eq!(engine.resolve(&scope(), &key("k"), same).await.unwrap(), Resolved::Already);
    let word = Resolution::executed("asked", &Done).unwrap();
    assert_eq!(engine.resolve(&scope(), &key("k"), word).await.unwrap(), Resolved::Applied);
    let told = engine.call(&scope(), &key("k"), REFUSED).await.unwrap();
    assert!(matches!(told, Outcome::Finished(_)), "{told:?}");
    assert!(app.provider.calls().is_empty());
    // A word about an earlier attempt is delivered again behind the cap: it is true, and known.
    let engine = refusing(&db, &App::default(), |builder| builder.max_attempts(2));
    let ask = async || {
        db.let_time_pass().await;
        engine.call(&scope(), &key("dead"), Refused { refuses: 2, ..REFUSED }).await.unwrap()
    };
    assert!(matches!(ask().await, Outcome::Failed { .. }));
    let told = ask().await;
    assert!(matches!(told, Outcome::DeadLetter), "{told:?}");
    let told = engine.resolve(&scope(), &key("dead"), Resolution::not_executed("asked", 1)).await;
    assert_eq!(told.unwrap(), Resolved::Already);
    assert_eq!(status(&engine, "dead").await.status, Status::DeadLetter);
    // The same behind an attempt that was released after its call; of that one, nothing is known.
    let engine = refusing(&db, &App::default(), |builder| builder);
    let ask = async || {
        db.let_time_pass().await;
        engine.call(&scope(), &key("lost"), Refused { loses_the_second: true, ..REFUSED }).await
    };
    failed(ask().await);
    failed(ask().await);
    let say = async |attempt| {
        let word = Resolution::not_executed("asked", attempt);
        engine.resolve(&scope(), &key("lost"), word).await
    };
    assert_eq!(say(1).await.unwrap(), Resolved::Already);
    let of_the_second = say(2).await;
    assert!(of_the_second.is_err(), "{of_the_second:?}");
    assert_eq!(status(&engine, "lost").await.status, Status::FailedRetryable);
}
