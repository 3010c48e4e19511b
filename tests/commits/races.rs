//! One executor for each key, whoever else comes: concurrent first requests, duplicates, zombies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::db::{open_pg, url_of};
use crate::support::proxy::{Cut, Proxy};
use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::FailureCause;
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::{DeadpoolPool, Pool, PoolSettings, StoreError};
use atomic_phases::{
    Batch, CallError, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Postgres, Reply,
    RequestContext, Scope, Tx, atomic_phases,
};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use tokio::sync::Semaphore;

on_every_store! {
    g10_of_64_concurrent_first_requests_one_runs,
    g3_a_stale_holder_commits_nothing,
    g3_a_holder_that_lives_keeps_its_lease,
    g10_a_duplicate_is_told_at_once_or_waits,
    g13_a_caller_that_goes_away_cancels_nothing,
    g16_a_wait_ends_with_its_caller,
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

    // The stale holder wakes up in its call, with a result that nobody needs any more.
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
    let other = engine_with(&db.another().await, &app, |b| b.lease(lease));
    // Several leases long; the passing of time is what this is about.
    for _ in 0..5 {
        tokio::time::sleep(lease / 2).await;
        let outcome = other.call(&scope(), &key("k"), book(20)).await.unwrap();
        assert!(matches!(outcome, Outcome::InProgress { .. }), "{outcome:?}");
    }
    in_the_call.send(()).unwrap();
    app.provider.stop_no_more();
    assert!(!finished(call.await.unwrap()).replayed);
    assert_eq!(app.provider.calls().len(), 1);
}

async fn g10_a_duplicate_is_told_at_once_or_waits<S: TestDb>(db: S) {
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
    // The holder gives signs and may end at any moment, whatever its lease.
    assert!(!retry_after.is_zero() && retry_after <= Duration::from_secs(2), "{retry_after:?}");
    // w31: another request is told so, although the first still runs.
    let other = engine.call(&scope(), &key("k"), book(21)).await;
    assert!(matches!(other, Ok(Outcome::Mismatch)));
    let short = OnDuplicate::Wait(Duration::from_millis(120));
    let waited = engine.call(&scope(), &key("k"), book(20)).on_duplicate(short).await;
    assert!(matches!(waited, Ok(Outcome::InProgress { .. })));

    let long = OnDuplicate::Wait(Duration::from_secs(30));
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

/// Polls the request n times and drops it, for n = 1, 2, 3 … until it is done by then: each await of
/// engine, store and phases is hit.
async fn g13_wherever_the_future_is_dropped_the_request_resumes_and_no_lock_stays<S: TestDb>(
    db: S,
) {
    // MariaDB tells whoever comes next that a trigger is broken, once, where the session that was parsing it is
    // killed, as that of a dropped future is.
    if is_mysql::<S>() {
        db.sql("DROP TRIGGER forward_only").await;
    }
    let (mut dropped, mut polls, mut rounds) = (0, 0, 0);
    // Where an answer is there before it is asked for, several awaits are one poll: more rounds then.
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
        // A commit that was under way may land after that update, with a lease of its own.
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

/// Where a phase waits for the test.
#[derive(Clone)]
struct Gate {
    entered: Arc<Semaphore>,
    leave: Arc<Semaphore>,
    bodies: Arc<AtomicU32>,
}

impl Default for Gate {
    fn default() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Self { entered: closed(), leave: closed(), bodies: Arc::default() }
    }
}

impl Gate {
    async fn pass(&self) {
        self.bodies.fetch_add(1, Ordering::SeqCst);
        self.entered.add_permits(1);
        self.leave.acquire().await.unwrap().forget();
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Begun;

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

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
    AND wait_event_type = 'Lock'";

/// G3, G17: the heartbeat does not write behind a snapshot, and nobody takes over a row that its holder
/// keeps locked, or waits for it with a connection.
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

/// G16: the twins of these keys are not committed, and may never be. A pool of four connections has room
/// for everybody else all the same. Counted, not timed: none of the others has ended yet.
#[tokio::test(flavor = "multi_thread")]
async fn g16_duplicates_of_uncommitted_keys_leave_the_pool_to_others() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine =
        engine_with(&crate::support::db::open_pg(&url_of(&db), 4).await, &app, |builder| {
            builder.lock_wait(Duration::from_secs(600))
        });
    finished(engine.call(&scope(), &key("other"), book(20)).await);
    finished(engine.call(&scope(), &key("parcel"), Form::AsOne.parcel(Trouble::None)).await);
    // Another process is about to create all of them.
    let mut aside = crate::support::db::pg(&url_of(&db)).await;
    aside
        .batch_execute(
            "BEGIN; CREATE TEMP TABLE copy AS SELECT * FROM atomic_phases_keys LIMIT 1; \
             DO $$ BEGIN FOR n IN 0..30 LOOP UPDATE copy SET idempotency_key = 'busy-' || n; \
             INSERT INTO atomic_phases_keys SELECT * FROM copy; END LOOP; END $$",
        )
        .await
        .unwrap();
    let mut waiting = Vec::new();
    for number in 0..90 {
        // Sixty of one key, and thirty keys.
        let name = key(&format!("busy-{}", if number < 60 { 0 } else { number - 59 }));
        let form = if number % 4 < 2 { Form::AsOne } else { Form::InTurn };
        let call = engine.call(&scope(), &name, book(20));
        let batch = engine.call(&scope(), &name, form.parcel(Trouble::None));
        waiting.push(match number % 2 == 0 || number < 60 {
            true => tokio::spawn(call.into_future()),
            false => tokio::spawn(batch.into_future()),
        });
    }
    let mut most = 0;
    for number in 0..40 {
        let other = Scope::new(format!("tenant-{}", number + 2)).unwrap();
        finished(engine.call(&other, &key("k"), book(20)).await);
        most = most.max(db.number(WAITING).await);
    }
    assert_eq!(waiting.iter().filter(|call| call.is_finished()).count(), 0);
    assert!((1..=2).contains(&most), "{most} connections wait for a lock");
    aside.batch_execute("ROLLBACK").await.unwrap();
    let mut first = 0;
    for call in waiting {
        match call.await.unwrap().unwrap() {
            Outcome::Finished(finished) => first += u32::from(!finished.replayed),
            Outcome::InProgress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(first, 31, "each key once");
}

/// Where a request waits for the test.
#[derive(Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
enum At {
    Nowhere,
    First,
    Call,
    Last,
}

const WAIT: &str = "SELECT pg_advisory_xact_lock_shared(7)";

#[derive(serde::Serialize, serde::Deserialize)]
struct WaitsInTx(At);

#[atomic_phases(name = "waits_in_tx", version = 1, app = Gate)]
impl<P: Pool> WaitsInTx {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Postgres<P>>) -> PhaseResult<Begun> {
        if self.0 == At::First {
            diesel_async::RunQueryDsl::execute(diesel::sql_query(WAIT), tx).await?;
        }
        Ok(Begun)
    }

    #[phase(foreign(idempotent))]
    async fn called(&self, call: ForeignCall, gate: &Gate) -> PhaseResult<u8> {
        if self.0 == At::Call {
            gate.pass().await;
        }
        call.make(async |_key| Ok::<_, PhaseError>(0)).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Postgres<P>>) -> PhaseResult<Reply> {
        if self.0 == At::Last {
            diesel_async::RunQueryDsl::execute(diesel::sql_query(WAIT), tx).await?;
        }
        Ok(Reply::new(204))
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct WaitsInBatch(At);

#[atomic_phases(name = "waits_in_batch", version = 1, app = Gate)]
impl<P: Pool> WaitsInBatch {
    #[phase(commit)]
    async fn begun(&self, batch: &mut Batch<'_, Postgres<P>>) -> PhaseResult<Begun> {
        if self.0 == At::First {
            batch.add(diesel::sql_query(WAIT));
        }
        Ok(Begun)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres<P>>) -> PhaseResult<Reply> {
        if self.0 == At::Last {
            batch.add(diesel::sql_query(WAIT));
        }
        Ok(Reply::new(204))
    }
}

/// G16, G17: the local phases of a scope end when they like. Of a pool of four they have two connections;
/// with the others, replays, heartbeats and whole requests of other scopes go on. Counted, not timed: none
/// of the slow ones has ended yet.
async fn slow_phases_leave_connections_to_others<P: Pool>(store: Postgres<P>, db: &Postgres) {
    let gate = Gate::default();
    let engine = Engine::builder(store).app(gate.clone());
    let engine = engine.register::<WaitsInTx>().register::<WaitsInBatch>();
    let engine = engine.lease(Duration::from_secs(3)).build().unwrap();
    finished(engine.call(&scope(), &key("old"), WaitsInTx(At::Nowhere)).await);
    let holder =
        tokio::spawn(engine.call(&scope(), &key("held"), WaitsInTx(At::Call)).into_future());
    gate.entered.acquire().await.unwrap().forget();
    let mut aside = crate::support::db::pg(&url_of(db)).await;
    let bad = Scope::new("tenant-bad").unwrap();
    for (name, at, in_tx) in [
        ("tx-first", At::First, true),
        ("tx-last", At::Last, true),
        ("batch-first", At::First, false),
        ("batch-last", At::Last, false),
    ] {
        aside.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        let slow = (0..8).map(|number| {
            let name = key(&format!("{name}-{number}"));
            match in_tx {
                true => tokio::spawn(engine.call(&bad, &name, WaitsInTx(at)).into_future()),
                false => tokio::spawn(engine.call(&bad, &name, WaitsInBatch(at)).into_future()),
            }
        });
        let slow: Vec<_> = slow.collect();
        until(async || db.number(WAITING).await == 2).await;
        for number in 0..8 {
            let replay = engine.call(&scope(), &key("old"), WaitsInTx(At::Nowhere)).await;
            assert!(finished(replay).replayed, "{name}");
            let other = Scope::new(format!("tenant-{number}")).unwrap();
            finished(engine.call(&other, &key(name), WaitsInTx(At::Nowhere)).await);
            finished(
                engine.call(&other, &key(&format!("{name}-b")), WaitsInBatch(At::Nowhere)).await,
            );
            assert_eq!(db.number(WAITING).await, 2, "{name}");
        }
        let lease = "SELECT (extract(epoch FROM locked_until) * 1000)::bigint \
                     FROM atomic_phases_keys WHERE idempotency_key = 'held'";
        let before = db.number(lease).await;
        until(async || db.number(lease).await > before).await;
        assert_eq!(slow.iter().filter(|call| call.is_finished()).count(), 0, "{name}");
        aside.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        for call in slow {
            finished(call.await.unwrap());
        }
    }
    gate.leave.add_permits(1);
    assert!(!finished(holder.await.unwrap()).replayed);
    let taken_over = "SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key = 'held' \
                      AND (lease_token, attempts) <> (1, 1)";
    assert_eq!(db.number(taken_over).await, 0, "the holder lived all the time");
}

type Manager = AsyncDieselConnectionManager<AsyncPgConnection>;

/// How long the requests of these tests wait for a connection: they fail if they wait for another's.
const POOL_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn g16_slow_phases_of_a_scope_leave_the_engines_pool_to_others() {
    let db = Postgres::fresh().await;
    let settings = PoolSettings::default().max_size(4).wait(POOL_WAIT);
    let store = Postgres::connect_with(&url_of(&db), settings).await.unwrap();
    slow_phases_leave_connections_to_others(store, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_slow_phases_of_a_scope_leave_an_applications_pool_to_others() {
    let db = Postgres::fresh().await;
    let pool =
        DeadpoolPool::builder(Manager::new(url_of(&db))).max_size(4).wait_timeout(Some(POOL_WAIT));
    let pool = pool.runtime(deadpool::Runtime::Tokio1).build().unwrap();
    slow_phases_leave_connections_to_others(Postgres::with_pool(pool), &db).await;
}

/// bb8 tells neither its size nor its wait.
#[cfg(feature = "bb8")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_slow_phases_of_a_scope_leave_bb8s_pool_to_others() {
    let db = Postgres::fresh().await;
    let pool = bb8::Pool::builder().max_size(8).build(Manager::new(url_of(&db))).await.unwrap();
    let store = Postgres::with_pool(pool).pool_size(8).unwrap().connections_per_scope(2).unwrap();
    slow_phases_leave_connections_to_others(store, &db).await;
}

/// G12, G16: what waits for the share of its own scope is told so after the pool's bound, and nothing of it
/// ran; and a share that cannot work is refused.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_request_that_waits_too_long_for_its_scope_is_told_so() {
    let db = Postgres::fresh().await;
    let settings = PoolSettings::default().max_size(4).wait(Duration::from_secs(2));
    let store = Postgres::connect_with(&url_of(&db), settings).await.unwrap();
    let refused = store.clone().connections_per_scope(0).err().unwrap().to_string();
    assert!(refused.contains("connections_per_scope") && refused.contains("1 to"), "{refused}");
    let refused = store.clone().pool_size(0).err().unwrap().to_string();
    assert!(refused.contains("pool_size") && refused.contains("1 to"), "{refused}");
    let store = store.connections_per_scope(1).unwrap();
    let engine = Engine::builder(store).app(Gate::default()).register::<WaitsInTx>();
    let engine = engine.build().unwrap();
    let mut aside = crate::support::db::pg(&url_of(&db)).await;
    aside.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let slow =
        tokio::spawn(engine.call(&scope(), &key("slow"), WaitsInTx(At::First)).into_future());
    until(async || db.number(WAITING).await == 1).await;
    let told = engine.call(&scope(), &key("k"), WaitsInTx(At::Nowhere)).await;
    let Err(CallError::Unavailable(StoreError::NoConnection(why))) = &told else {
        panic!("{told:?}")
    };
    assert!(why.contains("this scope hold 1 of the pool's 4 connections"), "{why}");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
    aside.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    finished(slow.await.unwrap());
    assert!(!finished(engine.call(&scope(), &key("k"), WaitsInTx(At::Nowhere)).await).replayed);
}

/// G10: *in progress* is told of a key that another transaction is about to create, and of no other
/// error, however long it took, and with any limit of the session's.
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
        let store = crate::support::db::open_pg(&url, 4).await;
        let engine = engine_with(&store, &app, |b| b.lock_wait(Duration::from_millis(600)));
        // On a busy machine any statement may take longer than the shortest limit.
        let is_told = |told: Result<Outcome, CallError>| match told {
            Ok(Outcome::InProgress { .. }) => true,
            Err(CallError::Unavailable(_)) if limit == "10" => false,
            other => panic!("limit {limit}: {other:?}"),
        };
        until(async || is_told(engine.call(&scope(), &key("busy"), book(20)).await)).await;
        for form in [Form::AsOne, Form::InTurn] {
            let parcel = || form.parcel(Trouble::None);
            until(async || is_told(engine.call(&scope(), &key("busy"), parcel()).await)).await;
        }
    }
    // An error of the phase's own statement, past the bound for the key.
    db.sql(
        "CREATE FUNCTION slow_no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_sleep(0.1); RAISE EXCEPTION 'no'; END $$; \
         CREATE TRIGGER slow_no BEFORE INSERT ON rides FOR EACH ROW EXECUTE FUNCTION slow_no();",
    )
    .await;
    let engine = engine_with(&db, &app, |b| b.lock_wait(Duration::from_millis(50)));
    for (name, form) in [("one", Form::AsOne), ("two", Form::InTurn)] {
        let told = engine.call(&scope(), &key(name), form.parcel(Trouble::None)).await;
        assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    }
}

/// Two first phases that lock the same rows in different orders: the one that the server stops runs again.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_deadlock_in_a_first_batch_is_run_again() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE pair (id int PRIMARY KEY, n int); INSERT INTO pair VALUES (1, 0), (2, 0)")
        .await;
    let engine = Engine::builder(db.clone()).register::<Crossing>().build().unwrap();
    let one = tokio::spawn(engine.call(&scope(), &key("one"), Crossing([1, 2])).into_future());
    let two = tokio::spawn(engine.call(&scope(), &key("two"), Crossing([2, 1])).into_future());
    finished(one.await.unwrap());
    finished(two.await.unwrap());
    assert_eq!(db.number("SELECT sum(n) FROM pair").await, 4);
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Crossing([i32; 2]);

#[atomic_phases(name = "crossing", version = 1)]
impl Crossing {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        for id in self.0 {
            let sql = format!("UPDATE pair SET n = n + 1 WHERE id = {id}");
            batch.add(diesel::sql_query(sql));
            batch.add(diesel::sql_query("SELECT pg_sleep(0.5)"));
        }
        Ok(Reply::new(204))
    }
}

macro_rules! slow {
    ($module:ident, $timeout:literal) => {
        mod $module {
            use super::*;

            /// Sleeps in its first or its last batch.
            #[derive(Clone, serde::Serialize, serde::Deserialize)]
            pub struct Slow {
                pub first: f64,
                pub last: f64,
                pub in_order: bool,
            }

            #[atomic_phases(name = "slow", version = 1, app = Gate)]
            impl Slow {
                #[phase(timeout = $timeout)]
                async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
                    self.sleep(batch, self.first);
                    Ok(Begun)
                }

                #[phase(commit, timeout = $timeout)]
                async fn answered(
                    &self,
                    batch: &mut Batch<'_, Postgres>,
                    gate: &Gate,
                ) -> PhaseResult<Reply> {
                    gate.bodies.fetch_add(1, Ordering::SeqCst);
                    self.sleep(batch, self.last);
                    Ok(Reply::new(204))
                }

                fn sleep(&self, batch: &mut Batch<'_, Postgres>, seconds: f64) {
                    let sql = format!("INSERT INTO steps SELECT 'k', pg_sleep({seconds})::text");
                    batch.add(diesel::sql_query(sql));
                    if self.in_order {
                        batch.add(diesel::sql_query("SELECT nextval('times')"));
                    }
                }
            }
        }
    };
}
slow!(impatient, "3s");
slow!(patient, "30s");

/// G17: a batch past its limit is not committed, not run again by itself, and told by phase and limit.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_batch_past_its_time_limit_is_not_run_again() {
    use impatient::Slow;
    let db = Postgres::fresh().await;
    db.sql("CREATE SEQUENCE times").await;
    for in_order in [true, false] {
        for (name, phase, first, last) in [("f", "begun", 8.0, 0.0), ("l", "answered", 0.0, 8.0)] {
            db.sql("TRUNCATE steps").await;
            let gate = Gate::default();
            let engine = Engine::builder(db.clone()).app(gate.clone()).register::<Slow>();
            let engine = engine.build().unwrap();
            let request = Slow { first, last, in_order };
            let name = key(&format!("{name}-{in_order}"));
            let cause = failed(engine.call(&scope(), &name, request).await);
            let limit = Duration::from_secs(3);
            assert_eq!(cause, FailureCause::TimeLimit { phase, limit }, "{name:?} {in_order}");
            let begun = i64::from(phase == "answered");
            assert_eq!(gate.bodies.load(Ordering::SeqCst), u32::try_from(begun).unwrap());
            assert_eq!(db.number("SELECT count(*) FROM steps").await, begun);
        }
    }
}

/// G3: a batch within its limit may be longer than the lease: it holds the row's lock meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_batch_may_be_longer_than_its_lease() {
    use patient::Slow;
    let db = Postgres::fresh().await;
    db.sql("CREATE SEQUENCE times").await;
    for in_order in [true, false] {
        let gate = Gate::default();
        let engine = Engine::builder(db.clone()).app(gate.clone()).register::<Slow>();
        let engine = engine.lease(Duration::from_millis(400)).build().unwrap();
        let name = key(&format!("k-{in_order}"));
        let request = Slow { first: 0.0, last: 6.0, in_order };
        let call = tokio::spawn(engine.call(&scope(), &name, request.clone()).into_future());
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                      AND wait_event = 'PgSleep'";
        until(async || db.number(asleep).await > 0).await;
        let expired =
            "SELECT count(*) FROM atomic_phases_keys WHERE locked_until < clock_timestamp()";
        while db.number(expired).await == 0 {
            assert_eq!(db.number(WAITING).await, 0, "a connection waits for the row");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let told = engine.call(&scope(), &name, request).await;
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
        finished(call.await.unwrap());
        assert_eq!(gate.bodies.load(Ordering::SeqCst), 1);
        db.sql("TRUNCATE steps; DELETE FROM atomic_phases_keys").await;
    }
}

/// Whose first batch waits for the test, longer than it may take.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Landing {
    waits: bool,
    in_order: bool,
}

#[atomic_phases(name = "landing", version = 1, app = Gate)]
impl Landing {
    #[phase(timeout = "5s")]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        let lock = if self.waits { "pg_advisory_xact_lock(7)::text" } else { "''" };
        let sql = format!("INSERT INTO steps SELECT 'begun', {lock}");
        batch.add(diesel::sql_query(sql));
        if self.in_order {
            batch.add(diesel::sql_query("INSERT INTO rides VALUES ('ride', 1)"));
        }
        Ok(Begun)
    }

    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall, gate: &Gate) -> PhaseResult<u8> {
        call.make(async |_| Ok::<_, PhaseError>(gate.bodies.fetch_add(1, Ordering::SeqCst)))
            .await?;
        Ok(0)
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Postgres>,
        ctx: &RequestContext,
    ) -> PhaseResult<Reply> {
        Postgres::add_step(batch, "answered", "");
        Ok(Reply::text(200, ctx.uuid(0).to_string()))
    }
}

/// What a batch of [`Landing`] begins with, and ends with, on its way to the server.
const LANDS: [(bool, &str, &str); 2] =
    [(false, "WITH atomic_phases_begun", "WITH atomic_phases_begun"), (true, "BEGIN", "COMMIT")];

/// An engine behind a proxy, whose one connection has prepared all statements, and that proxy.
async fn behind_a_proxy(
    db: &Postgres,
    gate: &Gate,
    in_order: bool,
) -> (Engine<Postgres, Gate>, Proxy) {
    let url = url_of(db);
    let port = url.rsplit_once(':').unwrap().1.split_once('/').unwrap().0.parse().unwrap();
    let proxy = Proxy::start(port).await;
    let store = open_pg(&proxy.url(&url), 1).await;
    let engine = Engine::builder(store).app(gate.clone()).register::<Landing>().build().unwrap();
    for name in ["warm", "warmer"] {
        let warm = Landing { waits: true, in_order };
        finished(engine.call(&scope(), &key(name), warm).await);
    }
    db.sql("DELETE FROM steps; DELETE FROM rides; DELETE FROM atomic_phases_keys").await;
    gate.bodies.store(0, Ordering::SeqCst);
    (engine, proxy)
}

/// The first batch took longer than it may, and its caller was told so; then it commits after all.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_first_batch_that_lands_after_its_time_limit_is_the_first_phase_of_the_retry() {
    let db = Postgres::fresh().await;
    for (in_order, _, ends) in LANDS {
        let gate = Gate::default();
        let (engine, proxy) = behind_a_proxy(&db, &gate, in_order).await;
        let mut aside = crate::support::db::pg(&url_of(&db)).await;
        aside.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        // The server hears of no client that is gone.
        proxy.arm(ends, 1, Cut::Hold);
        let request = Landing { waits: true, in_order };
        let call = async || engine.call(&scope(), &key("k"), request.clone()).await;
        let limit = Duration::from_secs(5);
        assert_eq!(failed(call().await), FailureCause::TimeLimit { phase: "begun", limit });
        let told = call().await;
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "G10, {in_order}: {told:?}");
        aside.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        let steps = "SELECT count(*) FROM steps";
        until(async || db.number(steps).await == 1).await;
        let told = call().await;
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "a lease: {told:?}");
        db.let_leases_expire().await;
        let done = finished(call().await);
        assert!(finished(call().await).replayed);
        assert_eq!(finished(call().await).reply, done.reply, "G8");
        assert_eq!(db.number(steps).await, 2, "G4: each phase once");
        assert_eq!(db.number("SELECT count(*) FROM rides").await, i64::from(in_order));
        assert_eq!(gate.bodies.load(Ordering::SeqCst), 1, "G1");
        proxy.cut_now();
    }
}

/// The first batch comes to the server when a retry has done all.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_first_batch_that_arrives_after_its_retry_comes_to_nothing() {
    let db = Postgres::fresh().await;
    for (in_order, begins, _) in LANDS {
        let gate = Gate::default();
        let (engine, proxy) = behind_a_proxy(&db, &gate, in_order).await;
        proxy.arm(begins, 1, Cut::Late);
        let request = Landing { waits: false, in_order };
        let call = async || engine.call(&scope(), &key("k"), request.clone()).await;
        let limit = Duration::from_secs(5);
        assert_eq!(failed(call().await), FailureCause::TimeLimit { phase: "begun", limit });
        assert_eq!(proxy.fired(), 1);
        let done = finished(call().await);
        assert!(!done.replayed, "{in_order}");
        let clients = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
            AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let before = db.number(clients).await;
        proxy.arrive_now();
        until(async || db.number(clients).await == before - 1).await;
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 2, "{in_order}");
        assert_eq!(db.number("SELECT count(*) FROM rides").await, i64::from(in_order));
        assert_eq!(gate.bodies.load(Ordering::SeqCst), 1);
        assert_eq!(finished(call().await).reply, done.reply);
    }
}

/// The same of those that wait for another transaction to create the key or not: one of them asks, on a
/// connection, and the others wait for their turn.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_wait_for_a_key_that_is_being_created_ends_with_its_caller() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.lock_wait(Duration::from_secs(600)));
    finished(engine.call(&scope(), &key("other"), book(20)).await);
    let mut aside = crate::support::db::pg(&url_of(&db)).await;
    aside
        .batch_execute(
            "BEGIN; CREATE TEMP TABLE copy AS SELECT * FROM atomic_phases_keys LIMIT 1; \
             DO $$ BEGIN FOR n IN 0..3 LOOP UPDATE copy SET idempotency_key = 'busy-' || n; \
             INSERT INTO atomic_phases_keys SELECT * FROM copy; END LOOP; END $$",
        )
        .await
        .unwrap();
    let calls: Vec<_> = (0..40)
        .map(|number| {
            let name = key(&format!("busy-{}", number % 4));
            match number % 2 {
                0 => tokio::spawn(engine.call(&scope(), &name, book(20)).into_future()),
                _ => {
                    let parcel = Form::InTurn.parcel(Trouble::None);
                    tokio::spawn(engine.call(&scope(), &name, parcel).into_future())
                }
            }
        })
        .collect();
    until(async || engine.__requests() == 40).await;
    // One of each key has asked, and pauses.
    until(async || db.number(WAITING).await > 0).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    until(async || engine.__requests() == 0).await;
    aside.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 1);
}

/// Counted: a hundred clients that are gone send nothing any more.
#[cfg(feature = "simulation")]
#[test]
fn g16_a_call_that_only_waited_asks_the_database_no_more_when_its_caller_is_gone() {
    use std::sync::atomic::AtomicU64;

    use atomic_phases::simulation::{Database, Memory, Network, Passage, simulate};

    #[derive(Clone, Default)]
    struct Counted(Arc<AtomicU64>);

    impl Network for Counted {
        fn passage(&self, _: &'static str) -> Passage {
            self.0.fetch_add(1, Ordering::SeqCst);
            Passage::default()
        }
    }

    let asked = simulate(1, || async {
        let counted = Counted::default();
        let db = Memory::connect_through(&Database::default(), counted.clone(), 16);
        let app = App::default();
        let engine =
            engine_with(&db, &app, |builder| builder.pauses_every(Duration::from_secs(60)));
        let mut gate = app.provider.stop_after_the_effect();
        let holder = tokio::spawn(engine.call(&scope(), &key("k"), book(20)).into_future());
        let _waiting = gate.recv().await.unwrap();
        for _ in 0..100 {
            let call = engine.call(&scope(), &key("k"), book(20));
            let call = call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(60)));
            let hung_up = tokio::time::timeout(Duration::from_millis(100), call.into_future());
            assert!(hung_up.await.is_err());
        }
        let before = counted.0.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(15)).await;
        drop(holder);
        counted.0.load(Ordering::SeqCst) - before
    });
    // In fifteen seconds the holder's lease of a minute is renewed at most once.
    assert!(asked <= 2, "{asked} statements for clients that are gone");
}

/// A hundred duplicates hang up: what they waited for was theirs alone.
async fn g16_a_wait_ends_with_its_caller<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key("k"), book(20)).into_future();
    let holder = tokio::spawn(call);
    let waiting = gate.recv().await.unwrap();
    let waits = || {
        let call = engine.call(&scope(), &key("k"), book(20));
        tokio::spawn(call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(600))).into_future())
    };
    let (gone, stays): (Vec<_>, _) = ((0..100).map(|_| waits()).collect(), waits());
    until(async || engine.__waiting() == 101).await;
    gone.iter().for_each(tokio::task::JoinHandle::abort);
    until(async || engine.__waiting() == 1).await;
    until(async || engine.__requests() == 2).await;
    app.provider.stop_no_more();
    drop(waiting);
    finished(holder.await.unwrap());
    stays.await.unwrap().unwrap();
}
