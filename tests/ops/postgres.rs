//! The connections of operators on PostgreSQL: the server ends a search that takes too long, and however many searches
//! wait, the others serve requests.

use std::time::{Duration, Instant};

use atomic_phases::Postgres;
use atomic_phases::ops::{Filter, OperatorStore, OpsError};
use atomic_phases::store::DeadpoolPool;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use futures_util::future::{join_all, try_join_all};

use super::cast::*;
use crate::support::db::{pg, url_of};
use crate::support::*;

/// No request needs these tables.
const LOCKED: &str = "BEGIN; LOCK TABLE atomic_phases_audit, atomic_phases_nodes, __diesel_schema_migrations \
                      IN ACCESS EXCLUSIVE MODE";

/// The number of sessions that wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                       AND datname = current_database()";

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
    assert!((4.0..8.0).contains(&took.as_secs_f64()), "{took:?}");
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

/// Twenty searches of operators, and those of a health check and a worker, all of tables that are locked: two of them have
/// a connection and wait for the lock, and so many connections of the requests' pool stay free. A request that waited for
/// one longer than `POOL_WAIT` would fail.
async fn requests_go_on_beside_searches(db: &Postgres, store: &Postgres, free: usize) {
    let engine = engine(store, &App::default());
    finish(&engine, "before").await;
    let mut lock = pg(&url_of(db)).await;
    lock.batch_execute(LOCKED).await.unwrap();
    let searches = (0..20).map(|_| async { admin(&engine).audit(None, None, 10).await });
    let requests = async {
        until(async || db.number(WAITING).await == 2).await;
        drop(try_join_all((0..free).map(|_| store.connection())).await.unwrap());
        for number in 0..10 {
            finish(&engine, &format!("meanwhile-{number}")).await;
            let waiting = db.number(WAITING).await;
            assert!(waiting <= 2, "{waiting} searches have a connection");
        }
    };
    let (told, ()) = tokio::select! {
        both = async { tokio::join!(join_all(searches), requests) } => both,
        () = look_as_probes_and_workers(store) => panic!("the looks ended"),
    };
    for told in told {
        assert!(matches!(told, Err(OpsError::Unavailable(_))), "{told:?}");
    }
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert!(admin(&engine).audit(None, None, 10).await.unwrap().rows.is_empty());
}

/// Of a pool of four, operators take one, and health checks and workers share another.
#[tokio::test(flavor = "multi_thread")]
async fn searches_leave_connections_of_an_applications_pool_to_requests() {
    let db = Postgres::fresh().await;
    let store = Postgres::with_pool(pool(&db, 4));
    requests_go_on_beside_searches(&db, &store, 2).await;
}

/// The four connections of the other pool are all for requests. While these take all of them, an operator searches.
#[tokio::test(flavor = "multi_thread")]
async fn searches_on_a_pool_for_operators_take_no_connection_of_requests() {
    let db = Postgres::fresh().await;
    let store = Postgres::with_pool(pool(&db, 4)).operators_pool(pool(&db, 2));
    requests_go_on_beside_searches(&db, &store, 4).await;
    let engine = engine(&store, &App::default());
    let taken = try_join_all((0..4).map(|_| store.connection())).await.unwrap();
    assert_eq!(admin(&engine).list(Filter::new()).await.unwrap().rows.len(), 11);
    drop(taken);
}
