//! The connections of a pool: phases of one scope that take long leave some to the others (G16).

use std::time::Duration;

use super::races::{Begun, Gate, WAITING};
use crate::support::db::url_of;
use crate::support::*;
use atomic_phases::engine::CallError;
use atomic_phases::store::{DeadpoolPool, Pool, PoolSettings, Postgres, StoreError};
use atomic_phases::{
    Batch, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Scope, Tx, atomic_phases,
};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};

/// G16: the first requests with these keys are not committed, and may never be. A pool of four connections still
/// has room for all other requests. The test counts and does not measure time: none of the others has ended yet.
#[tokio::test(flavor = "multi_thread")]
async fn g16_duplicates_of_uncommitted_keys_leave_the_pool_to_others() {
    let db = Postgres::fresh().await;
    let app = App::default();
    // On a busy machine, the requests behind all these duplicates wait for a connection for some time.
    let settings = PoolSettings::default().max_size(4).wait(Duration::from_secs(60));
    let store = Postgres::connect_with(&url_of(&db), settings).await.unwrap();
    let engine =
        engine_with(&store, &app, |builder| builder.creation_wait(Duration::from_secs(600)));
    finished(engine.call(&scope(), &key("other"), book(20)).await);
    finished(
        engine.call(&scope(), &key("parcel"), Form::SingleStatement.parcel(Trouble::None)).await,
    );
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
        let form = if number % 4 < 2 { Form::SingleStatement } else { Form::OneByOne };
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

/// The place where a request waits for the test.
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
    #[phase(commit, timeout = "5m")]
    async fn begun(&self, batch: &mut Batch<'_, Postgres<P>>) -> PhaseResult<Begun> {
        if self.0 == At::First {
            batch.add(diesel::sql_query(WAIT));
        }
        Ok(Begun)
    }

    #[phase(timeout = "5m")]
    async fn answered(&self, batch: &mut Batch<'_, Postgres<P>>) -> PhaseResult<Reply> {
        if self.0 == At::Last {
            batch.add(diesel::sql_query(WAIT));
        }
        Ok(Reply::new(204))
    }
}

/// G16, G17: the local phases of a scope take as long as they like. Of a pool of four, they have two connections.
/// With the others, replays, heartbeats and whole requests of other scopes continue. The test counts and does not
/// measure time: none of the slow ones has ended yet.
async fn slow_phases_leave_connections_to_others<P: Pool>(store: Postgres<P>, db: &Postgres) {
    let gate = Gate::default();
    let engine = Engine::builder(store).app(gate.clone());
    let engine = engine.register::<WaitsInTx>().register::<WaitsInBatch>();
    let engine = engine.lease(Duration::from_secs(6)).build().unwrap();
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
        for number in 0..3 {
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

/// How long the requests of these tests wait for a connection. They fail if they wait for one that another request
/// holds: the slow ones hold theirs until the others have ended.
const POOL_WAIT: Duration = Duration::from_secs(120);

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

/// bb8 reports neither its size nor its wait.
#[cfg(feature = "bb8")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_slow_phases_of_a_scope_leave_bb8s_pool_to_others() {
    let db = Postgres::fresh().await;
    let pool = bb8::Pool::builder().max_size(8).connection_timeout(POOL_WAIT);
    let pool = pool.build(Manager::new(url_of(&db))).await.unwrap();
    let store = Postgres::with_pool(pool).pool_size(8).unwrap().connections_per_scope(2).unwrap();
    slow_phases_leave_connections_to_others(store, &db).await;
}

/// G12, G16: a request that waits for the share of its own scope gets an error after the pool's wait, and nothing
/// of it ran. A share that cannot work is refused.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_request_that_waits_too_long_for_its_scope_is_refused() {
    let db = Postgres::fresh().await;
    let settings = PoolSettings::default().max_size(4).wait(Duration::from_secs(2));
    let url = url_of(&db);
    let connect = async || Postgres::connect_with(&url, settings).await;
    let store = answer_within(Duration::from_secs(60), connect).await;
    for connections in [0, 4] {
        let refused = store.clone().connections_per_scope(connections).err().unwrap().to_string();
        let says =
            format!("Postgres::connections_per_scope is {connections}, but it must be 1 to 3");
        assert_eq!(refused, says, "the share of all scopes is three connections");
    }
    #[cfg(feature = "mysql")]
    for connections in [0, 1000] {
        let db = atomic_phases::store::Mysql::fresh().await;
        let refused = db.connections_per_scope(connections).err().unwrap().to_string();
        let says = format!("Mysql::connections_per_scope is {connections}, but it must be 1 to ");
        assert!(refused.contains(&says), "{refused}");
    }
    let refused = store.clone().pool_size(0).err().unwrap().to_string();
    assert!(refused.contains("Postgres::pool_size") && refused.contains("1 to"), "{refused}");
    let greedy = store.clone().connections_per_scope(3).unwrap();
    let refused = greedy.pool_size(3).err().unwrap().to_string();
    assert!(refused.contains("connections_per_scope is 3"), "{refused}");
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
