//! What each path of a request costs on each store, and the delivery of its job: round trips,
//! statements, commits and bytes of log. One request after the other, on one connection that has
//! prepared its statements. A worker that has many shares statements among them (`accepted`,
//! `abandoned`, `jobs`), so what one alone costs is the most that each of them does.

use std::time::Duration;

use super::log_bytes::{open_database, start_server, written};
use super::{Hop, Long};
use crate::jobs::DELETIONS;
use crate::recorded::{self, alone};
use crate::support::db::{open_pg, url_of};
use crate::support::proxy::Proxy;
use crate::support::work::{Inbox, config, dies_in_its_call};
use crate::support::*;
use atomic_phases::store::Sqlite;
use atomic_phases::worker::{Completer, Enqueuer, WorkerConfig};
use atomic_phases::{IdempotencyKey, Outcome};

/// Round trips, statements, transactions that wrote, and bytes of log. 0 stands for what a store
/// does not have, or for what is not counted there.
type Counts = [i64; 4];

/// A path, and its counts.
type Cost = (&'static str, Counts);

/// Of one request, or of one job. The bytes of log are those of PostgreSQL 15.
///
/// Statements are those that the proxy passes on to the server: each execution of a prepared
/// statement, and each simple query. So `BEGIN`, `COMMIT` and the settings of a transaction count,
/// which `pg_stat_statements` does not see, because they are prepared. The phases' own statements
/// count, too. `counts` lists the statements of some of these paths, as the driver reports them.
const ON_POSTGRES: [Cost; 9] = [
    ("batch", [3, 14, 2, 1_684]),
    ("new-key", [2, 2, 2, 1_732]),
    // Search, claim, deletion: each is a transaction by itself.
    ("job", [3, 3, 2, 436]),
    ("fresh", [7, 11, 2, 2_492]),
    ("replay", [1, 1, 0, 0]),
    ("accepted", [2, 2, 1, 732]),
    // Search, read, takeover (BEGIN, settings, UPDATE, COMMIT), two local phases of 5 each, the
    // database's time, and the search for abandoned requests.
    ("completed", [11, 18, 3, 2_742]),
    // Search, entry in the index, search, read, takeover (4), the last phase (5).
    ("abandoned", [8, 13, 3, 3_046]),
    ("twelve", [22, 36, 7, 4_531]),
];

/// The same of MariaDB 10.11, with what its purge writes. Its statements are not counted here: most
/// of them travel as parts of a block.
#[cfg(feature = "mysql")]
const ON_MARIADB: [Cost; 9] = [
    ("batch", [3, 0, 2, 2_809]),
    ("new-key", [2, 0, 2, 2_689]),
    ("job", [4, 0, 2, 1_290]),
    ("fresh", [7, 0, 2, 5_323]),
    ("replay", [1, 0, 0, 0]),
    ("accepted", [2, 0, 1, 1_157]),
    ("completed", [12, 0, 3, 7_812]),
    ("abandoned", [9, 0, 3, 9_478]),
    ("twelve", [22, 0, 7, 8_563]),
];

/// SQLite has no round trips. Its statements are those that the driver reports, with those that
/// begin and end a transaction. It does not count its log.
const ON_SQLITE: [Cost; 9] = [
    ("batch", [0, 12, 2, 0]),
    ("new-key", [0, 11, 2, 0]),
    ("job", [0, 6, 1, 0]),
    ("fresh", [0, 16, 2, 0]),
    ("replay", [0, 1, 0, 0]),
    ("accepted", [0, 4, 1, 0]),
    ("completed", [0, 19, 2, 0]),
    ("abandoned", [0, 15, 2, 0]),
    ("twelve", [0, 44, 7, 0]),
];

/// What a server may write into its log by itself meanwhile, for each request: bytes.
const OWN_LOG: i64 = 30;

/// How often a path is taken before it is counted: the first time prepares its statements, the second those that diesel
/// keeps only then, and the third those that have a name on MariaDB.
const WARM: i64 = 3;

/// What it costs to take a path so many times.
async fn cost(
    path: &'static str,
    times: i64,
    counted: &impl AsyncFn() -> Counts,
    mut take: impl AsyncFnMut(IdempotencyKey),
) -> Cost {
    for number in 0..WARM {
        take(key(&format!("{path}-warm-{number}"))).await;
    }
    let before = counted().await;
    for number in 0..times {
        take(key(&format!("{path}-{number}"))).await;
    }
    let after = counted().await;
    (path, std::array::from_fn(|what| after[what] - before[what]))
}

/// The cost of each path, taken so many times. `db` is not counted.
async fn costs<S: TestDb>(
    db: &S,
    store: &S,
    times: i64,
    counted: impl AsyncFn() -> Counts,
) -> Vec<Cost> {
    let engine = engine_with(store, &App::default(), |builder| {
        let builder = builder.lease(Duration::from_secs(60)).register::<Hop>().register::<Long>();
        // Only the first call reads what is paused.
        builder.pauses_every(Duration::from_secs(3600))
    });
    let (scope, counted) = (scope(), &counted);
    let mut costs = Vec::new();

    let batch = async |key: IdempotencyKey| {
        finished(engine.call(&scope, &key, Hop(Form::OneByOne)).await);
    };
    costs.push(cost("batch", times, counted, batch).await);
    let new_key = async |key: IdempotencyKey| {
        finished(engine.call(&scope, &key, Hop(Form::SingleStatement)).expect_new().await);
    };
    costs.push(cost("new-key", times, counted, new_key).await);

    // Each of these requests has staged one job.
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config().batch(1));
    let job = async |_: IdempotencyKey| {
        assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    };
    costs.push(cost("job", times, counted, job).await);
    jobs_together(db, Enqueuer::new(&engine, inbox.sink(), many(times)), counted).await;

    let fresh = async |key: IdempotencyKey| {
        finished(engine.call(&scope, &key, book(20)).await);
    };
    costs.push(cost("fresh", times, counted, fresh).await);
    let replay = async |_: IdempotencyKey| {
        assert!(finished(engine.call(&scope, &key("fresh-0"), book(20)).await).replayed);
    };
    costs.push(cost("replay", times, counted, replay).await);

    let accept = async |key: IdempotencyKey| {
        let accepted = engine.call(&scope, &key, book(20)).accept().await;
        assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
    };
    costs.push(cost("accepted", times, counted, accept).await);
    // With the worker's searches, but for the one that begins once in ten polls: it has been before this is counted.
    let once = config().batch(1).poll(Duration::from_secs(60));
    let mut completer = Completer::new(&engine, once.clone());
    let complete = async |_: IdempotencyKey| {
        assert_eq!(completer.run_once().await.unwrap().finished, 1);
    };
    costs.push(cost("completed", times, counted, complete).await);

    for number in 0..WARM + times {
        dies_in_its_call(&engine, &format!("abandoned-{number}"), book(20)).await;
    }
    db.sql(
        "UPDATE atomic_phases_keys SET locked_until = created_at, run_after = NULL WHERE status = 'in_progress'",
    )
    .await;
    // With its entry in the index of due rows. The first pass finds all of them.
    let mut completer = Completer::new(&engine, once);
    let resume = async |_: IdempotencyKey| {
        assert_eq!(completer.run_once().await.unwrap().finished, 1);
    };
    costs.push(cost("abandoned", times, counted, resume).await);

    let twelve = async |key: IdempotencyKey| {
        finished(engine.call(&scope, &key, Long).await);
    };
    costs.push(cost("twelve", times, counted, twelve).await);
    costs
}

/// A worker that begins all jobs together, of which one scope may have half.
fn many(times: i64) -> WorkerConfig {
    let jobs = 2 * (WARM + times) as usize;
    config().batch(jobs as u32).concurrency(2 * jobs)
}

/// G18: a search, a claim and a few deletions, however many there are; on a server, each is prepared first.
async fn jobs_together<S: TestDb>(
    db: &S,
    mut enqueuer: Enqueuer<S>,
    counted: &impl AsyncFn() -> Counts,
) {
    let jobs = db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await;
    let before = counted().await;
    assert_eq!(i64::from(enqueuer.run_once().await.unwrap().delivered), jobs);
    let after = counted().await;
    let [trips, statements, commits] = [0, 1, 2].map(|what| after[what] - before[what]);
    println!("{jobs} jobs together: {trips} trips, {statements} statements, {commits} commits");
    let most = 1 + *DELETIONS.end() as i64;
    assert!((2..=most).contains(&commits), "{commits} commits for {jobs} jobs");
    assert!(!is_on_a_server::<S>() || trips <= 12, "{trips} round trips for {jobs} jobs");
}

/// What has more log than measured, by more than this part of it, fails.
#[track_caller]
fn assert_as_counted(times: i64, part: i64, costs: &[Cost], expected: &[Cost]) {
    // As they are written above; behind them, what they are for all.
    for (path, all) in costs {
        println!("    (\"{path}\", {:?}), // {all:?} in {times}", all.map(|count| count / times));
    }
    assert_eq!(costs.len(), expected.len());
    for (&(path, [trips, statements, commits, log]), &(of, each)) in costs.iter().zip(expected) {
        assert_eq!((path, trips), (of, times * each[0]), "round trips of {times}");
        assert_eq!((path, statements), (of, times * each[1]), "statements of {times}");
        // Counted for the whole server, which may have had one or two of its own.
        let of_the_path = times * each[2];
        let is_exact = (of_the_path..=of_the_path + 2).contains(&commits);
        assert!(is_exact, "{path}: {commits} commits in {times}");
        let (log, at_most) = (log / times, each[3] + each[3] / part + OWN_LOG);
        assert!((each[3] / 2..=at_most).contains(&log), "{path}: {log} bytes, of {at_most}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_path_costs_as_much_as_was_counted_on_postgres() {
    // Few, because each round trip is slow.
    const TIMES: i64 = 5;
    let _alone = alone().await;
    let cluster = start_server().await;
    let db = open_database(&cluster).await;
    let proxy = Proxy::start(cluster.port()).await;
    let store = open_pg(&proxy.url(&url_of(&db)), 1).await;
    // Round trips are exact where answers are slow.
    proxy.answer_slowly(50);
    let counted = async || {
        let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        let (trips, statements) = (proxy.turns() as i64, proxy.statements() as i64);
        [trips, statements, db.number(xid).await, written(&db).await]
    };
    // Another version of the server may write a little more.
    assert_as_counted(TIMES, 12, &costs(&db, &store, TIMES, counted).await, &ON_POSTGRES);
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn each_path_costs_as_much_as_was_counted_on_mariadb() {
    use crate::support::db::{open_my, prepare_my};
    use crate::support::mariadb::mysqld;
    use crate::support::mysql_proxy::MysqlProxy;
    const TIMES: i64 = 50;
    if mysqld().is_some() {
        // It has no blocks.
        return;
    }
    let _alone = alone().await;
    let (server, url) = tokio::task::spawn_blocking(crate::mysql::Observed::start).await.unwrap();
    let db = prepare_my(&url).await;
    let proxy = MysqlProxy::start(&url).await;
    let store = open_my(&proxy.url(&url), 1).await;
    let counted = async || {
        // Its purge of old versions of rows belongs to the path that has made them. Now there are none left.
        server.0.ask("SET GLOBAL innodb_max_purge_lag_wait = 0");
        let log = "SELECT variable_value FROM information_schema.global_status \
                   WHERE variable_name = 'innodb_lsn_current'";
        let log = server.0.ask(log).parse().unwrap();
        [proxy.commands() as i64, 0, server.commits() as i64, log]
    };
    assert_as_counted(TIMES, 5, &costs(&db, &store, TIMES, counted).await, &ON_MARIADB);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_path_costs_as_much_as_was_counted_on_sqlite() {
    const TIMES: i64 = 10;
    let _alone = alone().await;
    let db = <Sqlite as TestDb>::fresh().await;
    let store = db.another().await;
    let counted = async || {
        let of = |start: &str| recorded::count(|sql| sql.starts_with(start)) as i64;
        [0, of(""), of("COMMIT"), 0]
    };
    assert_as_counted(TIMES, 12, &costs(&db, &store, TIMES, counted).await, &ON_SQLITE);
}
