//! The cost of finding abandoned requests: counted, not timed. A request whose holder died young is entered in the
//! index of due rows first, and many of them together.

use crate::recorded::{self, alone};
use crate::support::db::numbers;
use crate::support::work::{config, dies_in_its_call, status};
use crate::support::*;
use atomic_phases::Engine;
use atomic_phases::store::{Postgres, Sqlite, Status};
use atomic_phases::worker::Completer;

pub const REQUESTS: usize = 100;

/// Requests that died in their foreign call, with their leases run out: one of them, and copies of it.
pub async fn abandon<S: TestDb>(db: &S) {
    let engine = engine(&db.another().await, &App::default());
    dies_in_its_call(&engine, "k0", book(20)).await;
    let new_id = match is_postgres::<S>() {
        true => "gen_random_uuid()",
        false => "randomblob(16)",
    };
    let same = "definition, definition_version, phases, fingerprint, status, recovery_point, lease_token, \
        attempts, advanced_at, created_at, expires_at, params, context, outputs, open_intent";
    db.sql(&format!(
        "UPDATE atomic_phases_keys SET locked_until = created_at, run_after = NULL; \
         INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, locked_until, {same}) \
         SELECT concat('tenant-', n % 10), concat('k', n), {new_id}, created_at, {same} \
         FROM atomic_phases_keys, {}",
        numbers::<S>(REQUESTS as u32 - 1)
    ))
    .await;
    assert_eq!(not_entered(db).await, REQUESTS);
}

async fn not_entered<S: TestDb>(db: &S) -> usize {
    let held = "SELECT count(*) FROM atomic_phases_keys WHERE status = 'in_progress' AND run_after IS NULL";
    db.number(held).await as usize
}

/// A completer of a process that has no code for them: it enters them, and runs none.
async fn without_code<S: TestDb>(store: S, batch: usize) -> Completer<S> {
    let engine = Engine::builder(store).app(App::default()).build().unwrap();
    Completer::new(&engine, config().batch(batch as u32))
}

fn count(sent: &[String], part: &str) -> usize {
    sent.iter().filter(|sql| sql.contains(part)).count()
}

const ENTERS: &str = "SET run_after = locked_until";

#[tokio::test(flavor = "multi_thread")]
async fn g17_abandoned_requests_are_entered_by_one_statement_and_one_commit() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    abandon(&db).await;
    let mut completer = without_code(db.another().await, REQUESTS).await;
    let transactions = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let before = db.number(transactions).await;
    recorded::sent();
    completer.run_once().await.unwrap();
    let sent = recorded::sent();
    assert_eq!(not_entered(&db).await, 0);
    assert_eq!(count(&sent, ENTERS), 1, "{sent:#?}");
    // Counted for the whole server, which may have had one or two of its own.
    let written = db.number(transactions).await - before;
    assert!((1..=3).contains(&written), "{written} transactions that wrote");
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_on_sqlite_abandoned_requests_are_synced_once() {
    let _alone = alone().await;
    let db = <Sqlite as TestDb>::fresh().await;
    abandon(&db).await;
    let mut completer = without_code(db.another().await, REQUESTS).await;
    recorded::sent();
    completer.run_once().await.unwrap();
    let sent = recorded::sent();
    assert_eq!(not_entered(&db).await, 0);
    assert_eq!(count(&sent, ENTERS), REQUESTS);
    assert_eq!((count(&sent, "BEGIN IMMEDIATE"), count(&sent, "COMMIT")), (1, 1), "{sent:#?}");
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_on_mariadb_abandoned_requests_are_entered_by_one_text_and_one_commit() {
    use crate::support::db::{open_my, prepare_my};
    use crate::support::mariadb::mysqld;
    let (server, url) = tokio::task::spawn_blocking(crate::mysql::Observed::start).await.unwrap();
    let db = prepare_my(&url).await;
    abandon(&db).await;
    let store = open_my(&url.replace("root@", "app@"), 1).await;
    let mut completer = without_code(store, REQUESTS).await;
    let texts = "argument LIKE '%SET k.run_after = k.locked_until%'";
    let (_, before) = (server.logged(texts), server.commits());
    completer.run_once().await.unwrap();
    assert_eq!(server.commits() - before, 1, "transactions that wrote");
    assert_eq!(not_entered(&db).await, 0);
    let sent = server.logged(texts);
    let entries = sent.iter().map(|text| text.matches("SET k.run_after = k.locked_until").count());
    assert_eq!(entries.sum::<usize>(), REQUESTS);
    // The log of a MySQL has each statement of a text by itself.
    if mysqld().is_none() {
        assert_eq!(sent.len(), 1, "{sent:#?}");
    }
}

/// However many there are: no more are entered than the worker has to run next.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_batch_is_entered_and_run_before_the_next_is_entered() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    abandon(&db).await;
    let engine = engine(&db.another().await, &App::default());
    let batch = REQUESTS / 4;
    let mut completer = Completer::new(&engine, config().batch(batch as u32));
    for left in [3, 2, 1, 0] {
        recorded::sent();
        let swept = completer.run_once().await.unwrap();
        assert_eq!((swept.finished as usize, swept.total() as usize), (batch, batch));
        assert_eq!(not_entered(&db).await, left * batch);
        assert_eq!(count(&recorded::sent(), ENTERS), 1);
    }
}

/// A worker that polls once and is started anew each time reads the whole table for abandoned requests.
#[tokio::test(flavor = "multi_thread")]
async fn g17_what_is_due_is_looked_for_before_the_table_is_read() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    abandon(&db).await;
    let engine = engine(&db.another().await, &App::default());
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    recorded::sent();
    let swept = Completer::new(&engine, config()).run_once().await.unwrap();
    assert_eq!(swept.finished as usize, REQUESTS);
    let sent = recorded::sent();
    let first = |part: &str| sent.iter().position(|sql| sql.contains(part)).unwrap();
    assert!(first("WHERE run_after <=") < first("WITH read AS MATERIALIZED"), "{sent:#?}");
    // A batch in all, of which the accepted request is one.
    assert_eq!(not_entered(&db).await, 0);
    assert_eq!(status(&engine, "accepted").await.status, Status::Completed);
}
