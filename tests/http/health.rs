//! The answers to a load balancer, an orchestrator and a plain prober.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atomic_phases::Outcome;
use atomic_phases::http::Health;
use atomic_phases::ops::{Actor, OperatorStore, Ops, Permissions, Scopes};
use atomic_phases::store::{DeadpoolPool, Postgres, Sqlite, Store};
use atomic_phases::worker::{Census, WorkerConfig};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use diesel_async::SimpleAsyncConnection as _;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use futures_util::future::join_all;
use tower::ServiceExt;

use crate::support::db::{open_pg, pg, url_of};
use crate::support::*;

on_every_store! {
    what_waits_for_an_operator_is_told_to_a_prober,
    g17_an_engine_that_is_shut_down_is_not_ready_and_lives,
    g12_a_service_whose_database_can_only_be_read_is_not_ready,
}

fn routes<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Router {
    Router::new().nest("/health", Health::new(engine).router())
}

async fn asked(routes: &Router, what: &str) -> (u16, String) {
    let request = Request::get(format!("/health/{what}")).body(Body::empty()).unwrap();
    let response = routes.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["cache-control"], "no-store");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Waits until the answer is computed again, once the previous one is outdated.
async fn becomes(routes: &Router, what: &str, status: u16) -> String {
    let text = std::cell::RefCell::new(String::new());
    until(async || {
        let (code, told) = asked(routes, what).await;
        *text.borrow_mut() = told;
        code == status
    })
    .await;
    text.into_inner()
}

async fn what_waits_for_an_operator_is_told_to_a_prober<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    assert_eq!(asked(&routes, "live").await, (200, "alive\n".to_owned()));
    assert_eq!(asked(&routes, "ready").await, (200, "ready\n".to_owned()));
    let nothing = "0 unknown, 0 dead letters, 0 stranded, 0 dead jobs, 0 late jobs\n";
    assert_eq!(asked(&routes, "waiting").await, (200, nothing.to_owned()));
    // A job that no node delivers.
    finished(engine.call(&scope(), &key("with-jobs"), book(20)).await);
    let ago = if is_postgres::<S>() { "interval '2 minutes'" } else { "120000" };
    let due = format!("SET run_after = staged_at - {ago} WHERE name = 'receipt'");
    db.sql(&format!("UPDATE atomic_phases_staged_jobs {due}")).await;
    let told = becomes(&routes, "waiting", 503).await;
    assert_eq!(told, "0 unknown, 0 dead letters, 0 stranded, 0 dead jobs, 1 late jobs\n");
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    assert_eq!(becomes(&routes, "waiting", 200).await, nothing);
    let call = engine.call(&scope(), &key("canary"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(call, Ok(Outcome::Unknown { .. })), "{call:?}");
    let told = becomes(&routes, "waiting", 503).await;
    assert_eq!(told, "1 unknown, 0 dead letters, 0 stranded, 0 dead jobs, 0 late jobs\n");
    assert_eq!(asked(&routes, "ready").await.0, 200, "it still receives requests");
    // Also while its reconcile function runs: the outcome is still unknown.
    db.sql(
        "UPDATE atomic_phases_keys SET status = 'in_progress', locked_until = expires_at, \
         run_after = expires_at WHERE idempotency_key = 'canary'",
    )
    .await;
    let anew = self::routes(&engine);
    assert_eq!(asked(&anew, "waiting").await, (503, told));
}

/// Accepted requests, more than are judged: one of the others may be stranded. `atomic-phases status` ends with 6, too
/// (`none_or_more_is_not_fine`).
#[tokio::test(flavor = "multi_thread")]
async fn a_prober_is_told_that_not_all_were_judged() {
    let db = <Sqlite as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    let nothing = "0 unknown, 0 dead letters, 0 stranded, 0 dead jobs, 0 late jobs\n";
    assert_eq!(asked(&routes(&engine), "waiting").await, (200, nothing.to_owned()));
    let same = "definition, definition_version, phases, fingerprint, status, recovery_point, lease_token, \
        attempts, run_after, advanced_at, created_at, expires_at, params, outputs";
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, {same}) \
         SELECT scope, 'k-' || n, randomblob(16), {same} FROM atomic_phases_keys, {}",
        numbers::<Sqlite>(10_000)
    ))
    .await;
    let told = "0 unknown, 0 dead letters, 0 or more stranded, 0 dead jobs, 0 late jobs\n";
    assert_eq!(asked(&routes(&engine), "waiting").await, (503, told.to_owned()));
}

async fn g17_an_engine_that_is_shut_down_is_not_ready_and_lives<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    assert_eq!(asked(&routes, "ready").await.0, 200);
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    assert_eq!(asked(&routes, "ready").await, (503, "shutting down\n".to_owned()), "immediately");
    assert_eq!(asked(&routes, "live").await.0, 200);
}

const ONLY_READ: &str = "the database can only be read\n";

async fn g12_a_service_whose_database_can_only_be_read_is_not_ready<S: TestDb + OperatorStore>(
    db: S,
) {
    // MariaDB is read only as a whole server: see below.
    if is_memory::<S>() || is_mysql::<S>() {
        return;
    }
    let set = |on: &str| match is_postgres::<S>() {
        true => format!(
            "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || \
             ' SET default_transaction_read_only = {on}'; END $$"
        ),
        false => format!("PRAGMA query_only = {on}"),
    };
    db.sql(&set("ON")).await;
    // A session's default, for PostgreSQL; this one connection's, for SQLite.
    let sees = if is_postgres::<S>() { db.another().await } else { db.clone() };
    let routes = routes(&engine(&sees, &App::default()));
    assert_eq!(asked(&routes, "ready").await, (503, ONLY_READ.to_owned()));
    assert_eq!(asked(&routes, "live").await.0, 200);
    if !is_postgres::<S>() {
        db.sql(&set("OFF")).await;
        becomes(&routes, "ready", 200).await;
    }
}

/// The service has the address of a standby, or its primary was demoted: it is ready once that server is promoted.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_service_on_a_standby_is_ready_once_that_is_promoted() {
    use crate::support::cluster::{Cluster, psql};
    let (primary, url) = tokio::task::block_in_place(|| {
        let primary = Cluster::start();
        let url = primary.new_database();
        (primary, url)
    });
    open_pg(&url, 2).await.migrate().await.unwrap();
    let standby = tokio::task::block_in_place(|| primary.standby());
    let there = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", standby.port()));
    until(async || tokio::task::block_in_place(|| psql(&there, "SELECT 1")) == "1").await;
    let routes = routes(&engine(&open_pg(&there, 2).await, &App::default()));
    assert_eq!(asked(&routes, "ready").await, (503, ONLY_READ.to_owned()));
    tokio::task::block_in_place(|| standby.promote());
    becomes(&routes, "ready", 200).await;
}

/// The same on MariaDB. A user who may write all the same is served.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_service_on_a_mariadb_that_is_read_only_is_not_ready() {
    use crate::support::db::open_my;
    use crate::support::mariadb::Server;
    let server = Server::start(&[]);
    let (url, server) =
        tokio::task::spawn_blocking(move || (server.new_database(), server)).await.unwrap();
    server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
    let store = open_my(&url.replace("root@", "app@"), 2).await;
    store.migrate().await.unwrap();
    let routes_of = routes(&engine(&store, &App::default()));
    assert_eq!(asked(&routes_of, "ready").await.0, 200);
    server.ask("SET GLOBAL read_only = 1");
    assert_eq!(becomes(&routes_of, "ready", 503).await, ONLY_READ);
    let administrators = routes(&engine(&open_my(&url, 2).await, &App::default()));
    assert_eq!(asked(&administrators, "ready").await.0, 200);
    server.ask("SET GLOBAL read_only = 0");
    becomes(&routes_of, "ready", 200).await;
}

/// A backup or an `ALTER` locks a table on MariaDB. The probe answers in time, and no session of it waits at the
/// server for a day, which is the server's default.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_service_whose_table_is_locked_on_mariadb_answers_its_prober() {
    use crate::support::db::my;
    let db = <atomic_phases::store::Mysql as TestDb>::fresh().await;
    let routes = routes(&engine(&db, &App::default()));
    let mut other = my(db.__url()).await;
    other.batch_execute("LOCK TABLES atomic_phases_leases WRITE").await.unwrap();
    // It gives up the lock after a second, and a prober waits for two.
    assert_eq!(becomes(&routes, "ready", 200).await, "ready\n");
    // For everything else, its connections wait as long as the server's default.
    other.batch_execute("UNLOCK TABLES").await.unwrap();
    // An answer is kept for a second: the next one is a new one.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(&routes, "ready").await.0, 200);
}

/// A page of the audit, again as soon as it is answered. Counts the answers.
async fn look_at_the_audit<S: OperatorStore>(ops: &Ops<S>, ended: &AtomicU32) {
    loop {
        let _ = ops.audit(None, None, 10).await;
        ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until this is so while no look has ended: then it has waited for none.
async fn until_beside(ended: &AtomicU32, mut is_so: impl AsyncFnMut() -> bool) {
    until(async || {
        let before = ended.load(Ordering::SeqCst);
        is_so().await && ended.load(Ordering::SeqCst) == before
    })
    .await;
}

/// The audit's table is locked, by a migration for example, and so many operators have its page open. Once their looks have all
/// connections of operators, the process is still ready, takes its census, and serves requests.
async fn is_ready_behind_looks<S: TestDb + OperatorStore>(
    store: &S,
    looks: usize,
    is_waited_for: impl AsyncFnMut() -> bool,
) {
    let engine = engine(store, &App::default());
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    let ended = AtomicU32::new(0);
    let others = async {
        until(is_waited_for).await;
        let nothing = "0 unknown, 0 dead letters, 0 stranded, 0 dead jobs, 0 late jobs\n";
        for (what, expected) in [("ready", "ready\n"), ("waiting", nothing)] {
            until_beside(&ended, async || {
                // Not one that keeps its previous answer for a second.
                asked(&routes(&engine), what).await == (200, expected.to_owned())
            })
            .await;
        }
        let mut census = Census::new(&engine, WorkerConfig::default());
        until_beside(&ended, async || matches!(census.run_once().await, Ok(true))).await;
        for number in 0..5 {
            finished(engine.call(&scope(), &key(&format!("k-{number}")), book(20)).await);
        }
    };
    let looks = (0..looks).map(|_| look_at_the_audit(&ops, &ended));
    tokio::select! {
        biased;
        _ = join_all(looks) => panic!("the looks ended"),
        () = others => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_a_service_whose_operators_look_at_a_locked_table_is_ready_on_postgres() {
    let pool = |url: String, size| {
        let manager = AsyncDieselConnectionManager::new(url);
        DeadpoolPool::builder(manager).max_size(size).build().unwrap()
    };
    for looks in [2, 60] {
        for pools in ["the engine's", "the application's", "a small one for operators"] {
            let db = <Postgres as TestDb>::fresh().await;
            let of_the_application = || Postgres::with_pool(pool(url_of(&db), 8));
            let (store, at_a_time) = match pools {
                "the engine's" => (db.clone(), 2),
                "the application's" => (of_the_application(), 2),
                // It leaves the operators one of its connections.
                _ => (of_the_application().operators_pool(pool(url_of(&db), 2)), 1),
            };
            let mut lock = pg(&url_of(&db)).await;
            lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_audit IN ACCESS EXCLUSIVE MODE")
                .await
                .unwrap();
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                           AND datname = current_database()";
            let is_waited_for = async || db.number(waiting).await >= at_a_time;
            is_ready_behind_looks(&store, looks, is_waited_for).await;
        }
    }
}

/// What workers read is locked, and takes as long as a search may: no count is made meanwhile. But the database answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_prober_is_told_that_workers_search_for_too_long() {
    let db = <Postgres as TestDb>::fresh().await;
    let routes = routes(&engine(&db, &App::default()));
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_nodes IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND datname = current_database()";
    let workers = db.for_workers();
    let asks = async {
        until(async || db.number(waiting).await == 1).await;
        let told =
            "not counted in time: the database does not answer, or workers use the connection\n";
        assert_eq!(asked(&routes, "waiting").await, (503, told.to_owned()));
        assert_eq!(asked(&routes, "ready").await, (200, "ready\n".to_owned()));
    };
    tokio::select! {
        biased;
        told = workers.nodes() => panic!("the search ended: {told:?}"),
        () = asks => {}
    }
    lock.batch_execute("ROLLBACK").await.unwrap();
    becomes(&routes, "waiting", 200).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_service_whose_operators_look_at_a_locked_table_is_ready_on_mariadb() {
    use crate::support::db::{my, sessions};
    for looks in [2, 60] {
        let db = <atomic_phases::store::Mysql as TestDb>::fresh().await;
        let mut lock = my(db.__url()).await;
        lock.batch_execute("LOCK TABLES atomic_phases_audit WRITE").await.unwrap();
        let waiting = format!(
            "SELECT count(*) FROM {} WHERE db = database() \
             AND state LIKE 'Waiting for table metadata lock%'",
            sessions()
        );
        let is_waited_for = async || db.number(&waiting).await >= 2;
        is_ready_behind_looks(&db, looks, is_waited_for).await;
    }
}

/// A phase uses SQLite's single writing connection: that does not mean that there can be no writer.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_service_whose_writer_is_in_use_is_ready() {
    let db = <Sqlite as TestDb>::fresh().await;
    let routes = routes(&engine(&db, &App::default()));
    let taken = db.connection().await.unwrap();
    assert_eq!(asked(&routes, "ready").await, (200, "ready\n".to_owned()));
    drop(taken);
}

/// SQLite does not notice that its file was replaced. Put back, it is the same.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_service_whose_file_was_replaced_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let [file, aside] = ["rides.db", "aside.db"].map(|name| folder.path().join(name));
    let db = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    db.migrate().await.unwrap();
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    assert_eq!(asked(&routes, "ready").await, (200, "ready\n".to_owned()));
    std::fs::rename(&file, &aside).unwrap();
    std::fs::copy(&aside, &file).unwrap();
    assert_eq!(becomes(&routes, "ready", 503).await, "the database does not answer\n");
    std::fs::rename(&aside, &file).unwrap();
    becomes(&routes, "ready", 200).await;
}

/// Another process writes for a long time: this one is ready, and its probe does not block the connection.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_service_beside_a_long_writer_is_ready_and_answers() {
    use diesel::connection::SimpleConnection as _;
    use diesel::{Connection as _, SqliteConnection};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shared.db");
    let db = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    db.migrate().await.unwrap();
    let engine = engine(&db, &App::default());
    let mut other = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    assert_eq!(asked(&routes(&engine), "ready").await, (200, "ready\n".to_owned()));
    // Half of what a statement waits for a writer.
    let looked = async { engine.status(&scope(), &key("k")).await.unwrap() };
    let looked = tokio::time::timeout(Duration::from_secs(5), looked).await;
    assert!(looked.expect("no statement waits behind the probe").is_none());
    other.batch_execute("ROLLBACK").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_its_tables_is_not_ready_until_they_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.db");
    let db = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    let (status, told) = asked(&routes, "ready").await;
    assert!(status == 503 && told.ends_with("migrations are missing\n"), "{status} {told}");
    assert_eq!(asked(&routes, "live").await.0, 200, "to start it again mends nothing");
    db.migrate().await.unwrap();
    becomes(&routes, "ready", 200).await;
}

/// All connections of requests are in use: the service is busy. A probe takes none of them and waits for none.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_busy_service_is_ready_and_one_without_its_database_is_not() {
    let db = <Postgres as TestDb>::fresh().await;
    let one = open_pg(&url_of(&db), 1).await;
    let engine = engine(&one, &App::default());
    let routes = routes(&engine);
    assert_eq!(asked(&routes, "ready").await.0, 200);
    let taken = one.connection().await.unwrap();
    // Computed again: an answer is reused for a second.
    let then = Instant::now();
    until(async || then.elapsed() > Duration::from_secs(1)).await;
    assert_eq!(asked(&routes, "ready").await, (200, "ready\n".to_owned()));
    drop(taken);
    db.sql("ALTER TABLE atomic_phases_staged_jobs RENAME TO elsewhere").await;
    let told = becomes(&routes, "ready", 503).await;
    assert_eq!(told, "the database does not answer\n");
    db.sql("ALTER TABLE elsewhere RENAME TO atomic_phases_staged_jobs").await;
    becomes(&routes, "ready", 200).await;
}

/// With the least privileges that a service needs, and without the right to create a table: whether it may read the
/// list of migrations or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_make_no_table_is_ready() {
    let db = <Postgres as TestDb>::fresh().await;
    let role = db.text("SELECT 'least_' || current_database()").await;
    db.sql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    ))
    .await;
    let url = url_of(&db).replace("postgres@", &format!("{role}@"));
    for may_read in [true, false] {
        if !may_read {
            db.sql(&format!("REVOKE ALL ON __diesel_schema_migrations FROM {role}")).await;
        }
        let store = open_pg(&url, 4).await;
        assert_eq!(store.missing_migrations().await.is_ok(), may_read, "it may make no table");
        let engine = engine(&store, &App::default());
        assert_eq!(asked(&routes(&engine), "ready").await, (200, "ready\n".to_owned()));
        finished(engine.call(&scope(), &key(&format!("k-{may_read}")), book(20)).await);
        // A missing migration is reported.
        db.sql("ALTER TABLE atomic_phases_keys RENAME COLUMN trace TO elsewhere").await;
        let engine = self::engine(&open_pg(&url, 4).await, &App::default());
        if !may_read {
            assert_eq!(asked(&routes(&engine), "ready").await.0, 503);
        }
        db.sql("ALTER TABLE atomic_phases_keys RENAME COLUMN elsewhere TO trace").await;
    }
}

/// All connections of requests are in use from the start: no probe takes one of them, not even the first one.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_service_that_is_busy_from_its_first_moment_is_ready() {
    let db = <Postgres as TestDb>::fresh().await;
    let one = open_pg(&url_of(&db), 1).await;
    let engine = engine(&one, &App::default());
    let taken = one.connection().await.unwrap();
    assert_eq!(asked(&routes(&engine), "ready").await, (200, "ready\n".to_owned()));
    drop(taken);
}
