//! The connections of operators on PostgreSQL: the server ends a search that takes too long, and however many searches
//! wait, the others serve requests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atomic_phases::ops::{BulkAct, Filter, OperatorStore, Ops, OpsError, Selection};
use atomic_phases::store::{DeadpoolPool, PoolSettings, Postgres};
use atomic_phases::worker::BulkRunner;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use futures_util::future::{join_all, try_join_all};
use uuid::Uuid;

use super::cast::*;
use crate::support::db::{pg, url_of};
use crate::support::work::config;
use crate::support::*;

/// No request needs these tables.
const LOCKED: &str = "BEGIN; LOCK TABLE atomic_phases_audit, atomic_phases_nodes, __diesel_schema_migrations \
                      IN ACCESS EXCLUSIVE MODE";

/// The number of sessions that wait for a table.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                       AND wait_event = 'relation' AND datname = current_database()";

#[tokio::test(flavor = "multi_thread")]
async fn a_search_is_given_up_after_five_seconds() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute(LOCKED).await.unwrap();
    let began = Instant::now();
    let told = admin(&engine).audit(None, None, 10).await;
    let took = began.elapsed();
    assert!(matches!(told, Err(OpsError::Unavailable(_))), "{told:?}");
    // After 15 seconds the engine would wait no longer for the server.
    assert!((4.0..14.0).contains(&took.as_secs_f64()), "{took:?}");
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert!(admin(&engine).audit(None, None, 10).await.unwrap().rows.is_empty());
}

/// How long a call waits for a connection of these tests' pools: less than a search waits for the lock.
const POOL_WAIT: Duration = Duration::from_secs(2);

/// A pool that the application creates.
fn pool(db: &Postgres, size: usize) -> DeadpoolPool {
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(url_of(db));
    let pool = DeadpoolPool::builder(manager).max_size(size).wait_timeout(Some(POOL_WAIT));
    pool.runtime(deadpool::Runtime::Tokio1).build().unwrap()
}

/// What a health check and a worker read, again as soon as it is answered.
async fn look_as_probes_and_workers(store: &Postgres) {
    let (probes, workers) = (store.for_probes(), store.for_workers());
    loop {
        let _ = tokio::join!(probes.unapplied_migrations(), workers.nodes());
    }
}

/// What an operator searches for, again as soon as it is refused: each search waits for the lock until the server ends
/// it, or for its turn until there was none for `POOL_WAIT`.
async fn search_as_operators(engine: &TestEngine<Postgres>, refused: &AtomicU32) {
    loop {
        let told = admin(engine).audit(None, None, 10).await;
        assert!(matches!(told, Err(OpsError::Unavailable(_))), "{told:?}");
        refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// Twenty operators search, a health check and a worker look, all of tables that are locked: `searching` of them have a
/// connection and wait for the lock, never more, and so many connections of the requests' pool stay free.
async fn requests_go_on_beside_searches(
    db: &Postgres,
    store: &Postgres,
    searching: i64,
    free: usize,
) {
    let engine = engine(store, &App::default());
    finish(&engine, "before").await;
    let mut lock = pg(&url_of(db)).await;
    lock.batch_execute(LOCKED).await.unwrap();
    let refused = AtomicU32::new(0);
    let requests = async {
        // The searches have their connections while these are in use.
        let taken = try_join_all((0..free).map(|_| store.connection())).await.unwrap();
        until(async || db.number(WAITING).await == searching).await;
        drop(taken);
        let no_more_wait = async || {
            let waiting = db.number(WAITING).await;
            assert!(waiting <= searching, "{waiting} searches have a connection");
        };
        for number in 0..10 {
            finish(&engine, &format!("meanwhile-{number}")).await;
            no_more_wait().await;
        }
        until(async || {
            no_more_wait().await;
            refused.load(Ordering::Relaxed) >= 20
        })
        .await;
    };
    let searches = (0..20).map(|_| search_as_operators(&engine, &refused));
    tokio::select! {
        _ = join_all(searches) => panic!("the searches ended"),
        () = look_as_probes_and_workers(store) => panic!("the looks ended"),
        () = requests => {}
    }
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert!(admin(&engine).audit(None, None, 10).await.unwrap().rows.is_empty());
}

/// Of a pool of four, operators take one, and health checks and workers share another.
#[tokio::test(flavor = "multi_thread")]
async fn searches_leave_connections_of_an_applications_pool_to_requests() {
    let db = Postgres::fresh().await;
    let store = Postgres::with_pool(pool(&db, 4));
    requests_go_on_beside_searches(&db, &store, 2, 2).await;
}

/// Of the four connections of the other pool, operators take two, and a health check and a worker one each; these four
/// are all for requests. While requests take all of them, an operator searches.
#[tokio::test(flavor = "multi_thread")]
async fn searches_on_a_pool_for_operators_take_no_connection_of_requests() {
    let db = Postgres::fresh().await;
    let store = Postgres::with_pool(pool(&db, 4)).operators_pool(pool(&db, 4));
    requests_go_on_beside_searches(&db, &store, 4, 4).await;
    let engine = engine(&store, &App::default());
    let taken = try_join_all((0..4).map(|_| store.connection())).await.unwrap();
    assert_eq!(admin(&engine).list(Filter::new()).await.unwrap().rows.len(), 11);
    drop(taken);
}

/// A bulk act on this dead letter.
async fn retry_of(engine: &TestEngine<Postgres>, name: &str) -> Uuid {
    dead_letter(engine, name).await;
    let one = Selection::Requests(vec![id_of(engine, name).await]);
    admin(engine).start_bulk(BulkAct::Retry, &one, 1, "reason").await.unwrap()
}

/// A page of the processes, again as soon as it is answered.
async fn look_at_the_nodes(ops: &Ops<Postgres>) {
    loop {
        let _ = ops.nodes().await;
    }
}

/// Operators look at a table that is locked, and that no act needs. A worker does not wait for their turns: if it did, it
/// would wait behind more searches than end within the pool's wait.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_bulk_act_does_not_wait_for_searches_of_operators() {
    const POOL_WAIT: Duration = Duration::from_secs(60);
    let db = Postgres::fresh().await;
    let id = retry_of(&engine(&db, &App::default()), "k").await;
    let settings = PoolSettings::default().wait(POOL_WAIT);
    let store = Postgres::connect_with(&url_of(&db), settings).await.unwrap();
    let engine = engine(&store, &App::default());
    let ops = admin(&engine);
    let mut lock = pg(&url_of(&db)).await;
    let locked = "BEGIN; LOCK TABLE atomic_phases_nodes IN ACCESS EXCLUSIVE MODE";
    lock.batch_execute(locked).await.unwrap();
    let works = async {
        until(async || db.number(WAITING).await == 2).await;
        let began = Instant::now();
        assert_eq!(BulkRunner::new(&engine, config()).run_once().await.unwrap(), 1);
        assert!(began.elapsed() < POOL_WAIT / 2, "{:?}", began.elapsed());
    };
    tokio::select! {
        biased;
        _ = join_all((0..60).map(|_| look_at_the_nodes(&ops))) => panic!("the looks ended"),
        () = works => {}
    }
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(ops.bulk(id).await.unwrap().bulk.applied, 1);
}

/// It has claimed them, and cannot read their requests: their leases end immediately. But a stop does not end one of them: a
/// worker that died before may have done an act, and the next worker counts it.
#[tokio::test(flavor = "multi_thread")]
async fn g3_bulk_acts_that_a_worker_could_not_read_are_continued_immediately() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let (goes_on, is_stopped) = (retry_of(&engine, "one").await, retry_of(&engine, "two").await);
    let mut lock = pg(&url_of(&db)).await;
    let locked = "BEGIN; LOCK TABLE atomic_phases_bulk_items IN ACCESS EXCLUSIVE MODE";
    lock.batch_execute(locked).await.unwrap();
    let told = BulkRunner::new(&engine, config()).run_once().await;
    assert!(told.is_err(), "{told:?}");
    lock.batch_execute("ROLLBACK").await.unwrap();

    let _ = ops.stop_bulk(is_stopped, "a mistake").await.unwrap();
    assert_eq!(ops.bulk(is_stopped).await.unwrap().bulk.ended_at, None);
    assert_eq!(BulkRunner::new(&engine, config()).run_once().await.unwrap(), 1);
    for (id, applied) in [(goes_on, 1), (is_stopped, 0)] {
        let bulk = ops.bulk(id).await.unwrap().bulk;
        assert!(bulk.ended_at.is_some() && bulk.applied == applied, "{bulk:?}");
    }
}
