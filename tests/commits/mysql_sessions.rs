//! What a session of the engine's counts, sees and locks on MariaDB, whatever the server's defaults are.

use atomic_phases::engine::FailureCause;
use atomic_phases::worker::Reaper;
use atomic_phases::{Engine, Mysql, PhaseResult, Reply, Tx, atomic_phases};
use diesel::sql_query;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};

use crate::support::db::{my, open_my};
use crate::support::mariadb::Server;
use crate::support::work::config;
use crate::support::*;

/// Y7: a guarded update that finds its row as it would leave it has not lost its lease (G3).
#[tokio::test(flavor = "multi_thread")]
async fn g3_an_update_counts_the_rows_that_it_found() {
    let db = Mysql::fresh().await;
    finished(engine(&db, &App::default()).call(&scope(), &key("k"), book(20)).await);
    let mut conn = db.connection().await.unwrap();
    let same = sql_query("UPDATE rides SET amount = amount");
    assert_eq!(same.execute(&mut *conn).await.unwrap(), 1);
}

#[derive(diesel::QueryableByName)]
struct Level {
    #[diesel(sql_type = Text)]
    level: String,
}

/// Y29: in any other level the engine's own statements lock the gaps between rows, and so other requests out.
#[tokio::test(flavor = "multi_thread")]
async fn g16_the_sessions_level_is_not_the_servers() {
    let start = || {
        let server = Server::start(&["--transaction-isolation=SERIALIZABLE"]);
        let url = server.new_database();
        (server, url)
    };
    let (_server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    let store = open_my(&url, 1).await;
    for changed in ["DO 0", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"] {
        let mut conn = store.connection().await.unwrap();
        let level = sql_query("SELECT @@tx_isolation AS level");
        let level = level.get_result::<Level>(&mut *conn).await.unwrap().level;
        assert_eq!(level, "READ-COMMITTED");
        conn.batch_execute(changed).await.unwrap();
    }
}

/// Y38: a row that another transaction has locked holds up neither the reaper nor the rows beside it.
#[tokio::test(flavor = "multi_thread")]
async fn g15_the_reaper_passes_a_locked_row_by() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    for name in ["one", "two", "three"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    let mut other = my(db.__url()).await;
    let locks = "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE idempotency_key = 'two' FOR UPDATE";
    // By its whole key: else every row is read, and locked.
    let locks = locks.replace("WHERE", "WHERE scope = 'tenant-1' AND");
    other.batch_execute(&locks).await.unwrap();
    assert_eq!(Reaper::new(&db, config()).run_once().await.unwrap(), 2);
    assert_eq!(db.text("SELECT idempotency_key FROM atomic_phases_keys").await, "two");
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(Reaper::new(&db, config()).run_once().await.unwrap(), 1);
}

/// Reads rows, of which the last is locked, and ignores that it did not get them all.
#[derive(Serialize, Deserialize)]
struct ReadsOn;

#[derive(diesel::QueryableByName)]
struct One {
    #[diesel(sql_type = BigInt)]
    #[allow(dead_code)]
    n: i64,
}

#[atomic_phases(name = "reads_on", version = 1)]
impl ReadsOn {
    #[phase]
    async fn read(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        tx.batch_execute("SET SESSION innodb_lock_wait_timeout = 1").await?;
        let rows = sql_query("SELECT n FROM many ORDER BY n FOR UPDATE").load::<One>(tx).await;
        Ok(Reply::text(200, if rows.is_ok() { "all" } else { "an error" }))
    }
}

/// Y6: a statement whose error comes behind its first rows has failed.
#[tokio::test(flavor = "multi_thread")]
async fn g4_an_error_in_the_middle_of_the_rows_fails_the_phase() {
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE many (n BIGINT PRIMARY KEY, wide TEXT) SELECT seq AS n FROM seq_1_to_2000",
    )
    .await;
    let engine = Engine::builder(db.clone()).register::<ReadsOn>().build().unwrap();
    let mut other = my(db.__url()).await;
    other.batch_execute("BEGIN; UPDATE many SET wide = 'x' WHERE n = 2000").await.unwrap();
    let cause = failed(engine.call(&scope(), &key("k"), ReadsOn).await);
    assert!(matches!(cause, FailureCause::Misuse { .. }), "{cause:?}");
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(finished(engine.call(&scope(), &key("k"), ReadsOn).await).reply.bytes(), b"all");
}
