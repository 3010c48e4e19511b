//! The loops that must end: attempts, back-offs, and what is asked or written again and again (G17).

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::lease::Done;
use crate::support::db::{open_pg, url_of};
use crate::support::proxy::{Cut, Proxy, port_of};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::store::{Postgres, Status};
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g17_the_cap_is_reached_by_back_offs_and_not_by_an_impatient_client,
    g17_a_cap_of_two_means_two_attempts,
    g17_a_provider_cannot_ask_for_a_back_off_without_end,
    g17_nor_can_a_first_phase_that_leaves_no_row,
    g17_a_call_that_never_comes_to_its_effect_ends_at_the_cap,
    g17_a_reconcile_function_that_never_returns_is_not_asked_for_ever,
}

async fn g17_the_cap_is_reached_by_back_offs_and_not_by_an_impatient_client<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| {
        builder.max_attempts(3).back_off(Duration::from_secs(60), Duration::from_secs(600))
    });
    let request = || troubled(Trouble::RetryForeignAlways);
    let ends = || db.text("SELECT run_after FROM atomic_phases_keys");
    for back_off in 1..3 {
        failed(engine.call(&scope(), &key("k"), request()).await);
        let first = ends().await;
        for _ in 0..20 {
            let told = engine.call(&scope(), &key("k"), request()).await.unwrap();
            let Outcome::Failed { retry_after, .. } = told else { panic!("{told:?}") };
            assert!(retry_after > Duration::from_secs(40), "{back_off}: {retry_after:?}");
        }
        // Nor do they postpone the end of the back-off (by more than a statement takes).
        let moved = match is_postgres::<S>() {
            true => format!(
                "SELECT extract(epoch FROM run_after - '{first}'::timestamptz)::bigint FROM atomic_phases_keys"
            ),
            false => format!("SELECT (run_after - {first}) / 1000 FROM atomic_phases_keys"),
        };
        assert!(db.number(&moved).await <= 1);
        db.let_time_pass().await;
    }
    let last = engine.call(&scope(), &key("k"), request()).await.unwrap();
    assert!(matches!(last, Outcome::DeadLetter), "{last:?}");
    assert_eq!(app.provider.effects(), 1);
}

async fn g17_a_cap_of_two_means_two_attempts<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(2));
    engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).accept().await.unwrap();
    for _ in 0..4 {
        db.let_time_pass().await;
        completed(&engine).await;
    }
    assert_eq!(app.bodies()[1], 2);
    let standing = status(&engine, "k").await;
    assert_eq!((standing.status, standing.attempt), (Status::DeadLetter, 2));
}

/// Its provider asks for a day.
#[derive(Clone, Serialize, Deserialize)]
struct Later;

#[atomic_phases(name = "later", version = 1)]
impl<Db: TestDb> Later {
    #[phase(foreign(idempotent))]
    async fn asked(&self, call: ForeignCall) -> PhaseResult<Done, ForeignError> {
        drop(call);
        Err(ForeignError::not_executed_after("busy", Duration::from_secs(24 * 3600)))
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "later", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g17_a_provider_cannot_ask_for_a_back_off_without_end<S: TestDb>(db: S) {
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(App::default()).register::<Later>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Later).await.unwrap();
    let Outcome::Failed { retry_after, .. } = told else { panic!("{told:?}") };
    assert_eq!(retry_after, Duration::from_secs(3600));
}

/// As `Later`, in a first phase: nothing is stored, and the answer says when to retry.
#[derive(Clone, Serialize, Deserialize)]
struct LaterAtFirst;

#[atomic_phases(name = "later_at_first", version = 1)]
impl<Db: TestDb> LaterAtFirst {
    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Err(PhaseError::retryable_after("busy", Duration::from_secs(24 * 3600)))
    }
}

async fn g17_nor_can_a_first_phase_that_leaves_no_row<S: TestDb>(db: S) {
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(App::default()).register::<LaterAtFirst>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), LaterAtFirst).await.unwrap();
    let Outcome::Failed { retry_after, .. } = told else { panic!("{told:?}") };
    assert_eq!(retry_after, Duration::from_secs(3600), "`retryable_after` says that it is clamped");
}

/// A first phase that rejects, and a database that refuses each commit of the rejection.
#[derive(Clone, Serialize, Deserialize)]
struct Rejects;

#[atomic_phases(name = "rejects", version = 1)]
impl Rejects {
    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        Err(PhaseError::reject(Reply::new(402)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_rejection_whose_commit_fails_each_time_is_given_up() {
    let db = Postgres::fresh().await;
    db.sql(
        "CREATE TABLE tries (n serial);
         CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM nextval('tries_n_seq'); RAISE EXCEPTION 'audit is full'; END $$;
         CREATE CONSTRAINT TRIGGER audit AFTER INSERT ON atomic_phases_keys
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit();",
    )
    .await;
    let engine = Engine::builder(db.clone()).app(()).register::<Rejects>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Rejects).await;
    assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    // Each of six tries is sent as a single statement and, because that fails, as a transaction.
    assert!(db.number("SELECT last_value FROM tries_n_seq").await <= 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_write_that_is_lost_each_time_is_given_up() {
    let db = Postgres::fresh().await;
    let proxy = Proxy::start(port_of(&url_of(&db))).await;
    let behind = open_pg(&proxy.url(&url_of(&db)), 2).await;
    let app = App::default();
    let engine = engine(&behind, &app);
    let again = proxy.clone();
    let cutting = tokio::spawn(async move {
        let mut seen = usize::MAX;
        loop {
            if again.fired() != seen {
                seen = again.fired();
                again.arm("UPDATE atomic_phases_keys SET status = 'failed", 1, Cut::Before);
            }
            tokio::task::yield_now().await;
        }
    });
    let request = troubled(Trouble::RetryForeignAlways);
    let told = engine.call(&scope(), &key("k"), request).await;
    cutting.abort();
    assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    assert!((1..=6).contains(&proxy.fired()), "{}", proxy.fired());
    // Its lease expires, and the request continues.
    db.let_leases_expire().await;
    let other = crate::support::engine(&db, &app);
    let cause = failed(other.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(cause, FailureCause::Phase { phase: "charged", reason: "asked for" });
    assert_eq!((app.provider.calls().len(), app.provider.effects()), (2, 1));
}

/// The call never arrives, and the provider says so.
#[derive(Clone, Serialize, Deserialize)]
struct Never;

#[atomic_phases(name = "never", version = 1)]
impl<Db: TestDb> Never {
    #[phase(foreign(at_most_once), timeout = "20ms")]
    async fn sent(&self, call: ForeignCall, app: &App) -> PhaseResult<Done> {
        app.bodies[1].fetch_add(1, Ordering::SeqCst);
        call.make(async |_key| std::future::pending::<PhaseResult<()>>().await).await?;
        Ok(Done)
    }

    #[reconcile(sent)]
    async fn was_sent(&self, app: &App) -> PhaseResult<Reconciled<Done>> {
        app.bodies[2].fetch_add(1, Ordering::SeqCst);
        Ok(Reconciled::NotExecuted)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "never", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn g17_a_call_that_never_comes_to_its_effect_ends_at_the_cap<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> = Engine::builder(db.clone())
        .app(app.clone())
        .register::<Never>()
        .max_attempts(3)
        .build()
        .unwrap();
    engine.call(&scope(), &key("k"), Never).accept().await.unwrap();
    for _ in 0..10 {
        db.let_time_pass().await;
        completed(&engine).await;
        db.let_time_pass().await;
        reconciled(&engine).await;
    }
    assert_eq!(app.bodies()[1..], [3, 3]);
    let standing = status(&engine, "k").await;
    assert_eq!((standing.status, standing.open_intent), (Status::DeadLetter, None));
}

async fn g17_a_reconcile_function_that_never_returns_is_not_asked_for_ever<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Never>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Never).await.unwrap();
    assert!(matches!(told, Outcome::Unknown { .. }), "{told:?}");
    // As after twenty processes that died while they called the reconcile function.
    db.sql("UPDATE atomic_phases_keys SET reconciles = 20").await;
    db.let_time_pass().await;
    reconciled(&engine).await;
    assert_eq!((status(&engine, "k").await.status, app.bodies()[2]), (Status::DeadLetter, 0));
}
