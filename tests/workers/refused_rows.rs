//! A row that the server refuses to delete blocks no other row; and a resting reaper stops at shutdown.

use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::Scope;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::Reaper;

const KEPT: &str = "SELECT count(*) FROM atomic_phases_keys";

/// A table of the application refers to its key, as that of the rides does in a schema where they belong together.
#[tokio::test(flavor = "multi_thread")]
async fn g15_g16_an_expired_row_that_the_server_refuses_to_delete_blocks_no_other_on_postgres() {
    others_are_deleted(
        Postgres::fresh().await,
        "CREATE TABLE receipts (scope text COLLATE \"C\", key text COLLATE \"C\", \
         FOREIGN KEY (scope, key) REFERENCES atomic_phases_keys (scope, idempotency_key)); \
         INSERT INTO receipts SELECT scope, idempotency_key FROM atomic_phases_keys \
         WHERE idempotency_key LIKE 'kept%'",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g15_g16_an_expired_row_that_the_server_refuses_to_delete_blocks_no_other_on_sqlite() {
    others_are_deleted(
        Sqlite::fresh().await,
        "CREATE TRIGGER kept BEFORE DELETE ON atomic_phases_keys FOR EACH ROW \
         WHEN OLD.idempotency_key LIKE 'kept%' BEGIN SELECT RAISE(ABORT, 'kept'); END",
    )
    .await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g15_g16_an_expired_row_that_the_server_refuses_to_delete_blocks_no_other_on_mariadb() {
    others_are_deleted(
        <atomic_phases::store::Mysql as TestDb>::fresh().await,
        "CREATE TRIGGER kept BEFORE DELETE ON atomic_phases_keys FOR EACH ROW BEGIN \
         IF OLD.idempotency_key LIKE 'kept%' THEN \
         SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'kept'; END IF; END",
    )
    .await;
}

async fn others_are_deleted<S: TestDb>(db: S, refuse: &str) {
    let engine = engine(&db, &App::default());
    let other = Scope::new("zz").unwrap();
    for name in ["kept-1", "kept-2", "kept-3"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    for name in ["other-1", "other-2"] {
        finished(engine.call(&other, &key(name), book(20)).await);
    }
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    db.sql(refuse).await;
    let mut reaper = Reaper::new(&db, config().reap_batch(2));
    // From the oldest on, two at a time: of the first two none, of the next two one, and the last. Then again.
    for expected in [None, Some(1), Some(1), None] {
        assert_eq!(reaper.run_once().await.ok(), expected);
    }
    assert_eq!(db.number(KEPT).await, 3, "those that cannot be deleted");
}

/// The row of a batch that is refused is found by halving it, and the next batch begins behind it.
#[tokio::test(flavor = "multi_thread")]
async fn g15_beside_a_row_that_is_not_deleted_the_others_are_deleted_many_at_a_time() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for number in 0..32 {
        finished(engine.call(&scope(), &key(&format!("k-{number:02}")), book(20)).await);
    }
    db.sql(
        "UPDATE atomic_phases_keys SET expires_at = created_at; \
         CREATE TABLE deletions (id bigint); \
         CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF OLD.idempotency_key = 'k-00' THEN RAISE EXCEPTION 'kept'; END IF; \
         INSERT INTO deletions VALUES (txid_current()); RETURN OLD; END $$; \
         CREATE TRIGGER noted BEFORE DELETE ON atomic_phases_keys \
         FOR EACH ROW EXECUTE FUNCTION noted()",
    )
    .await;
    let mut reaper = Reaper::new(&db, config().reap_batch(16));
    for (expected, transactions) in [(15, 4), (16, 5), (0, 5)] {
        assert_eq!(reaper.run_once().await.unwrap(), expected);
        let committed = "SELECT count(DISTINCT id) FROM deletions";
        assert_eq!(db.number(committed).await, transactions, "1 + 2 + 4 + 8 rows, then 16");
    }
    assert!(reaper.run_once().await.is_err(), "it is tried again from the first row on");
    assert_eq!(db.number(KEPT).await, 1);
}

/// Two deletions search a large table of the application's that refers to the keys and has no index for that. Their batch
/// takes longer than the store waits for an answer: half of it is deleted by the next one. Once they are quick, the batches
/// are full again, also beside a row that the server refuses to delete.
#[tokio::test(flavor = "multi_thread")]
async fn g15_g17_a_batch_that_is_too_slow_for_one_answer_is_deleted_in_parts() {
    const ROWS: u32 = 20;
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for number in 0..ROWS {
        finished(engine.call(&scope(), &key(&format!("k-{number:02}")), book(20)).await);
    }
    db.sql(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(8.5); RETURN OLD; END $$; \
         CREATE TRIGGER slowly BEFORE DELETE ON atomic_phases_keys FOR EACH ROW \
         WHEN (OLD.idempotency_key IN ('k-06', 'k-07')) EXECUTE FUNCTION slowly(); \
         UPDATE atomic_phases_keys SET expires_at = created_at",
    )
    .await;
    let mut reaper = Reaper::new(&db, config().reap_batch(8));
    assert!(reaper.run_once().await.is_err(), "no answer within 15 seconds");
    assert_eq!(db.number(KEPT).await, i64::from(ROWS));
    // The server notices that its client is gone, and undoes what it deleted.
    let deletes = "SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock' \
        AND relation = 'atomic_phases_keys'::regclass \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    until(async || db.number(deletes).await == 0).await;
    db.sql(
        "DROP TRIGGER slowly ON atomic_phases_keys; \
         CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'kept'; END $$; \
         CREATE TRIGGER kept BEFORE DELETE ON atomic_phases_keys FOR EACH ROW \
         WHEN (OLD.idempotency_key = 'k-00') EXECUTE FUNCTION kept()",
    )
    .await;
    assert_eq!(reaper.run_once().await.unwrap(), 3, "four at a time, of which one is refused");
    let mut left = ROWS - 3;
    loop {
        let deleted = reaper.run_once().await.unwrap();
        left -= deleted;
        // Behind a batch that was slow on a busy machine, the next one is as small.
        if deleted != 4 {
            assert_eq!(deleted, 8);
            break;
        }
    }
    assert_eq!(db.number(KEPT).await, i64::from(left));
}

/// Of the rows that expired first, more are refused than a batch tries before it ends: the next one begins behind those.
#[tokio::test(flavor = "multi_thread")]
async fn g15_g17_a_batch_ends_behind_twenty_refused_rows_and_the_next_one_begins_there() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for number in 1..=21 {
        finished(engine.call(&scope(), &key(&format!("kept-{number:02}")), book(20)).await);
    }
    finished(engine.call(&scope(), &key("other"), book(20)).await);
    db.sql(
        "UPDATE atomic_phases_keys SET expires_at = created_at; \
         CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF OLD.idempotency_key LIKE 'kept%' THEN RAISE EXCEPTION 'kept'; END IF; \
         RETURN OLD; END $$; \
         CREATE TRIGGER kept BEFORE DELETE ON atomic_phases_keys \
         FOR EACH ROW EXECUTE FUNCTION kept()",
    )
    .await;
    let mut reaper = Reaper::new(&db, config().reap_batch(100));
    assert!(reaper.run_once().await.is_err(), "it does not come to the last row");
    assert_eq!(db.number(KEPT).await, 22);
    assert_eq!(reaper.run_once().await.unwrap(), 1, "it begins behind those of the first");
    assert_eq!(db.number(KEPT).await, 21);
}

/// A batch takes two seconds, and the reaper rests for five behind it.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_resting_reaper_stops_at_shutdown() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for number in 0..20 {
        finished(engine.call(&scope(), &key(&format!("k-{number}")), book(20)).await);
    }
    db.sql(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(0.1); RETURN OLD; END $$; \
         CREATE TRIGGER slowly BEFORE DELETE ON atomic_phases_keys \
         FOR EACH ROW EXECUTE FUNCTION slowly(); \
         UPDATE atomic_phases_keys SET expires_at = created_at",
    )
    .await;
    let workers = engine.spawn_workers(config().reap_batch(20)).unwrap();
    until(async || db.number(KEPT).await == 0).await;
    workers.shutdown(Duration::from_secs(4)).await.unwrap();
}
