//! One executor for each key, whatever else arrives: concurrent first requests, duplicates, zombies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::db::url_of;
use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::CallError;
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::{PoolSettings, Postgres};
use atomic_phases::{Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use diesel_async::SimpleAsyncConnection;
use tokio::sync::Semaphore;

on_every_store! {
    g10_of_64_concurrent_first_requests_one_runs,
    g3_a_stale_holder_commits_nothing,
    g3_a_holder_that_lives_keeps_its_lease,
    g10_a_duplicate_is_answered_immediately_or_waits,
    g13_a_caller_that_goes_away_cancels_nothing,
    g13_wherever_the_future_is_dropped_the_request_resumes_and_no_lock_stays,
    g3_a_phase_that_keeps_its_snapshot_may_be_longer_than_its_lease,
}

async fn g10_of_64_concurrent_first_requests_one_runs<S: TestDb>(db: S) {
    let app = App::default();
    let engines = [engine(&db, &app), engine(&db.another().await, &app)];
    let calls: Vec<_> = (0..64)
        .map(|n| {
            let engine = engines[n % 2].clone();
            tokio::spawn(async move { engine.call(&scope(), &key("k"), book(20)).await })
        })
        .collect();
    let (mut first, mut bodies) = (0, Vec::new());
    for call in calls {
        match call.await.unwrap().unwrap() {
            Outcome::Finished(finished) => {
                first += u32::from(!finished.replayed);
                bodies.push(finished.reply);
            }
            Outcome::InProgress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(first, 1);
    assert!(bodies.iter().all(|body| *body == bodies[0]));
    assert_eq!(app.provider.calls().len(), 1);
    assert_eq!(app.bodies()[1..], [1, 1]);
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1);
}

async fn g3_a_stale_holder_commits_nothing<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let stale = engine(&db, &app);
    let sleeping = tokio::spawn(async move { stale.call(&scope(), &key("k"), book(20)).await });
    let asleep = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    db.let_leases_expire().await;

    let heir = engine(&db.another().await, &app);
    let done = finished(heir.call(&scope(), &key("k"), book(20)).await);
    assert!(!done.replayed);
    let before = db.text("SELECT lease_token FROM atomic_phases_keys").await;

    // The stale holder continues in its call, with a result that is no longer needed.
    asleep.send(()).unwrap();
    let loser = finished(sleeping.await.unwrap());
    assert!(loser.replayed, "the loser's answer");
    assert_eq!(loser.reply, done.reply);
    assert_eq!(db.text("SELECT lease_token FROM atomic_phases_keys").await, before);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 2);
    assert_eq!(app.provider.effects(), 1);
}

async fn g3_a_holder_that_lives_keeps_its_lease<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let lease = Duration::from_secs(2);
    let slow = engine_with(&db, &app, |b| b.lease(lease));
    let call = tokio::spawn(async move { slow.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    // It is renewed again and again, for longer than it lasts: a row whose lease has not ended is not taken over.
    let ends = "SELECT locked_until FROM atomic_phases_keys";
    for _ in 0..4 {
        let known = db.text(ends).await;
        until(async || db.text(ends).await != known).await;
    }
    in_the_call.send(()).unwrap();
    app.provider.stop_no_more();
    assert!(!finished(call.await.unwrap()).replayed);
    assert_eq!(app.provider.calls().len(), 1);
}

async fn g10_a_duplicate_is_answered_immediately_or_waits<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    let Ok(Outcome::InProgress { retry_after }) = engine.call(&scope(), &key("k"), book(20)).await
    else {
        panic!("a live lease");
    };
    // The holder renews its lease and may finish at any moment, however long its lease is.
    assert!(!retry_after.is_zero() && retry_after <= Duration::from_secs(2), "{retry_after:?}");
    // w31: a different request gets a mismatch, although the first one still runs.
    let other = engine.call(&scope(), &key("k"), book(21)).await;
    assert!(matches!(other, Ok(Outcome::Mismatch)));
    let short = OnDuplicate::Wait(Duration::from_millis(120));
    let waited = engine.call(&scope(), &key("k"), book(20)).on_duplicate(short).await;
    assert!(matches!(waited, Ok(Outcome::InProgress { .. })));

    // However long the bound of a call is.
    let long = OnDuplicate::Wait(Duration::MAX);
    let patient = engine.call(&scope(), &key("k"), book(20)).on_duplicate(long);
    let patient = tokio::spawn(patient.into_future());
    in_the_call.send(()).unwrap();
    let first = finished(call.await.unwrap());
    let second = finished(patient.await.unwrap());
    assert!(second.replayed);
    assert_eq!(second.reply, first.reply);
    assert_eq!(app.provider.effects(), 1);
}

async fn g13_a_caller_that_goes_away_cancels_nothing<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    in_the_call.send(()).unwrap();
    app.provider.stop_no_more();
    let long = OnDuplicate::Wait(Duration::from_secs(30));
    let retry = engine.call(&scope(), &key("k"), book(20)).on_duplicate(long).await;
    assert!(finished(retry).replayed, "the work went on without its caller");
    assert_eq!(app.provider.calls().len(), 1);
}

/// Polls the request n times and drops it, for n = 1, 2, 3 … until the request is done within n polls. So a drop
/// happens at each await of engine, store and phases.
async fn g13_wherever_the_future_is_dropped_the_request_resumes_and_no_lock_stays<S: TestDb>(
    db: S,
) {
    // If a session is killed while it parses a trigger, as that of a dropped future is, MariaDB reports to the next
    // session, once, that the trigger is broken.
    if is_mysql::<S>() {
        db.sql("DROP TRIGGER forward_only").await;
    }
    let (mut dropped, mut polls, mut rounds) = (0, 0, 0);
    // If an answer is available before it is awaited, several awaits are one poll, so there are more rounds.
    while rounds < 50 && (rounds == 0 || dropped < 3) {
        polls += 1;
        let app = App::default();
        let name = format!("dropped-{rounds}-{polls}");
        let first = engine(&db, &app);
        let mut request = Box::pin(first.call(&scope(), &key(&name), book(20)).__call_in_place());
        let mut left = polls;
        let done = std::future::poll_fn(|cx| {
            left -= 1;
            match request.as_mut().poll(cx) {
                std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
                std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(false),
                std::task::Poll::Pending => std::task::Poll::Pending,
            }
        })
        .await;
        drop(request);
        if done {
            (polls, rounds) = (0, rounds + 1);
            continue;
        }
        dropped += 1;
        // The row's lock is free within seconds, or this statement fails.
        let update = format!(
            "UPDATE atomic_phases_keys SET locked_until = created_at \
             WHERE idempotency_key = '{name}' AND status = 'in_progress'"
        );
        tokio::time::timeout(Duration::from_secs(10), db.sql(&update))
            .await
            .expect("a lock stayed");
        // A commit that was under way may take effect after that update, with a lease of its own.
        let long = OnDuplicate::Wait(Duration::from_secs(20));
        let retry = engine(&db, &app);
        let retry = retry.call(&scope(), &key(&name), book(20)).on_duplicate(long).into_future();
        let retry = tokio::time::timeout(Duration::from_secs(10), retry);
        let expire = async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                db.sql(&update).await;
            }
        };
        let outcome = tokio::select! {
            outcome = retry => outcome.expect("the retry hangs"),
            _ = expire => unreachable!(),
        };
        assert_eq!(finished(outcome).reply.status(), 201, "after {polls} polls");
        assert_eq!(app.provider.effects(), 1, "after {polls} polls");
        let rides = "SELECT count(*) FROM rides";
        assert_eq!(db.number(rides).await, i64::from(dropped + rounds), "after {polls} polls");
        let steps = "SELECT count(*) FROM steps";
        assert_eq!(db.number(steps).await, i64::from(dropped + rounds), "after {polls} polls");
    }
    println!("dropped at {dropped} awaits, in {rounds} rounds");
    assert!(dropped >= 3, "{dropped}");
}

/// The place where a phase waits for the test.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) entered: Arc<Semaphore>,
    pub(super) leave: Arc<Semaphore>,
    pub(super) bodies: Arc<AtomicU32>,
}

impl Default for Gate {
    fn default() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Self { entered: closed(), leave: closed(), bodies: Arc::default() }
    }
}

impl Gate {
    pub(super) async fn pass(&self) {
        self.bodies.fetch_add(1, Ordering::SeqCst);
        self.entered.add_permits(1);
        self.leave.acquire().await.unwrap().forget();
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Begun;

macro_rules! pinned {
    ($module:ident, $isolation:literal) => {
        mod $module {
            use super::*;

            #[derive(Clone, serde::Serialize, serde::Deserialize)]
            pub struct Pinned;

            #[atomic_phases(name = "pinned", version = 1, app = Gate)]
            impl<Db: TestDb> Pinned {
                #[phase(commit)]
                async fn begun(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Begun> {
                    Db::insert_step(tx, "k", "begun").await?;
                    Ok(Begun)
                }

                #[phase(isolation = $isolation)]
                async fn answered(&self, tx: &mut Tx<'_, Db>, gate: &Gate) -> PhaseResult<Reply> {
                    Db::insert_step(tx, "k", "answered").await?;
                    gate.pass().await;
                    Ok(Reply::new(204))
                }
            }
        }
    };
}

pinned!(repeatable_read, "repeatable_read");
pinned!(serializable, "serializable");

pub(super) const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
    AND wait_event_type = 'Lock'";

/// G3, G17: the heartbeat does not write after a phase's snapshot. No other process takes over a row that its
/// holder keeps locked, or waits for it with a connection.
async fn g3_a_phase_that_keeps_its_snapshot_may_be_longer_than_its_lease<S: TestDb>(db: S) {
    keeps::<S, _>(&db, "repeatable-read", repeatable_read::Pinned).await;
    keeps::<S, _>(&db, "serializable", serializable::Pinned).await;
}

async fn keeps<S: TestDb, R: RequestDefinition<S, Gate> + Clone>(db: &S, name: &str, request: R) {
    let (gate, lease) = (Gate::default(), Duration::from_millis(400));
    let engine = |db: &S| {
        let builder = Engine::builder(db.clone()).app(gate.clone()).register::<R>();
        builder.lease(lease).max_attempts(2).build().unwrap()
    };
    let another = db.another().await;
    let holder = engine(db).call(&scope(), &key(name), request.clone());
    let holder = tokio::spawn(holder.into_future());
    gate.entered.acquire().await.unwrap().forget();
    // Several leases long; the passing of time is what this is about.
    for _ in 0..4 {
        tokio::time::sleep(lease * 2 / 3).await;
        if is_postgres::<S>() {
            assert_eq!(db.number(WAITING).await, 0, "a connection waits for the row");
            let told = engine(&another).call(&scope(), &key(name), request.clone()).await;
            assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
        }
    }
    gate.leave.add_permits(1);
    assert!(!finished(holder.await.unwrap()).replayed);
    assert_eq!(gate.bodies.load(Ordering::SeqCst), 1, "{name}");
    assert!(finished(engine(&another).call(&scope(), &key(name), request).await).replayed);
}

/// G10: *in progress* is the answer for a key that another transaction is about to create, and for no other error,
/// however long that took, and with any limit of the session.
#[tokio::test(flavor = "multi_thread")]
async fn g10_in_progress_is_told_by_what_the_server_knows() {
    let db = Postgres::fresh().await;
    let app = App::default();
    finished(engine(&db, &app).call(&scope(), &key("other"), book(20)).await);
    let mut aside = crate::support::db::pg(&url_of(&db)).await;
    aside
        .batch_execute(
            "BEGIN; CREATE TEMP TABLE copy AS SELECT * FROM atomic_phases_keys; \
             UPDATE copy SET idempotency_key = 'busy'; \
             INSERT INTO atomic_phases_keys SELECT * FROM copy",
        )
        .await
        .unwrap();
    for limit in ["10", "400", "0"] {
        let url = format!("{}?options=-c%20statement_timeout%3D{limit}", url_of(&db));
        let settings = PoolSettings::default().max_size(4);
        // To open a connection may take longer than such a limit, too.
        let connect = async || Postgres::connect_with(&url, settings).await;
        let store = answer_within(Duration::from_secs(60), connect).await;
        let engine = engine_with(&store, &app, |b| b.creation_wait(Duration::from_millis(600)));
        // On a busy machine any statement may take longer than such a limit.
        let is_told = |told: Result<Outcome, CallError>| match told {
            Ok(Outcome::InProgress { .. }) => true,
            Err(CallError::Unavailable(_)) if limit != "0" => false,
            other => panic!("limit {limit}: {other:?}"),
        };
        until(async || is_told(engine.call(&scope(), &key("busy"), book(20)).await)).await;
        for form in [Form::SingleStatement, Form::OneByOne] {
            let parcel = || form.parcel(Trouble::None);
            until(async || is_told(engine.call(&scope(), &key("busy"), parcel()).await)).await;
        }
    }
    // An error of the phase's own statement, after the time limit for the key has passed.
    db.sql(
        "CREATE FUNCTION slow_no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_sleep(0.1); RAISE EXCEPTION 'no'; END $$; \
         CREATE TRIGGER slow_no BEFORE INSERT ON rides FOR EACH ROW EXECUTE FUNCTION slow_no();",
    )
    .await;
    let engine = engine_with(&db, &app, |b| b.creation_wait(Duration::from_millis(50)));
    for (name, form) in [("one", Form::SingleStatement), ("two", Form::OneByOne)] {
        let told = engine.call(&scope(), &key(name), form.parcel(Trouble::None)).await;
        assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    }
}
