//! Tables, views, triggers and functions of a MySQL and MariaDB server that are changed while connections keep statements
//! prepared.

use atomic_phases::store::Mysql;
use atomic_phases::{Batch, Engine, PhaseResult, Reply, Tx, atomic_phases};
use diesel::sql_query;
use diesel_async::RunQueryDsl;
use serde::{Deserialize, Serialize};

use crate::support::db::open_my;
use crate::support::*;

/// Writes a row of `made`, by a statement that its connection keeps prepared.
#[derive(Clone, Serialize, Deserialize)]
struct SendsOne;

#[atomic_phases(name = "sends_one", version = 1)]
impl SendsOne {
    #[phase]
    async fn sent(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        sql_query("INSERT INTO made VALUES (1)").execute(tx).await?;
        Ok(Reply::new(204))
    }
}

/// The same, as a part of a block.
#[derive(Clone, Serialize, Deserialize)]
struct HandsOneOver;

#[atomic_phases(name = "hands_one_over", version = 1)]
impl HandsOneOver {
    #[phase]
    async fn handed_over(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
        batch.add(sql_query("INSERT INTO made VALUES (1)"));
        Ok(Reply::new(204))
    }
}

/// Writes a row each way, for these keys.
async fn make_two(engine: &Engine<Mysql>, name: &str) {
    finished(engine.call(&scope(), &key(&format!("{name}-sent")), SendsOne).await);
    finished(engine.call(&scope(), &key(&format!("{name}-handed-over")), HandsOneOver).await);
}

/// Of a database with one connection, which has both statements prepared.
async fn that_has_them_prepared(db: &Mysql) -> Engine<Mysql> {
    let builder = Engine::builder(open_my(db.__url(), 1).await);
    let engine = builder.register::<SendsOne>().register::<HandsOneOver>().build().unwrap();
    // A text that may differ each time is kept from its second execution on.
    for name in ["first", "second", "third"] {
        make_two(&engine, name).await;
    }
    engine
}

/// MariaDB notes which tables the triggers of a block use, and how, when the block is executed first. Behind another trigger it
/// would fail at each execution: "Table 'audited' was locked with a READ lock" (1099), "Table 'copied' doesn't exist" (1146).
/// With two triggers on a table, so does a prepared statement by itself: its connection is closed, and the phase runs again.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_writes_to_a_table_whose_triggers_have_changed() {
    let db = Mysql::fresh().await;
    for sql in [
        "CREATE TABLE made (n INT)",
        "CREATE TABLE audited (n INT)",
        "CREATE TABLE copied (n INT)",
        "CREATE TRIGGER counts BEFORE INSERT ON made FOR EACH ROW \
         SET NEW.n = (SELECT count(*) FROM audited)",
    ] {
        db.sql(sql).await;
    }
    let engine = that_has_them_prepared(&db).await;
    db.sql("DROP TRIGGER counts").await;
    let audits = "CREATE TRIGGER audits AFTER INSERT ON made FOR EACH ROW INSERT INTO audited VALUES (NEW.n)";
    db.sql(audits).await;
    make_two(&engine, "writes").await;
    make_two(&engine, "writes-again").await;
    let copies =
        "CREATE TRIGGER copies AFTER INSERT ON made FOR EACH ROW INSERT INTO copied VALUES (NEW.n)";
    db.sql(copies).await;
    make_two(&engine, "copies").await;
    assert_eq!(db.number("SELECT count(*) FROM audited").await, 6);
    assert_eq!(db.number("SELECT count(*) FROM copied").await, 2);
}

/// There are more connections that keep the statement than a phase has runs: behind the first failure, the idle ones are closed.
#[tokio::test(flavor = "multi_thread")]
async fn g17_another_trigger_harms_no_request_in_a_pool_whose_connections_keep_its_statement() {
    // A prime, so that each connection has its turn, however many of them a call uses.
    const CONNECTIONS: usize = 13;
    let db = Mysql::fresh().await;
    for sql in [
        "CREATE TABLE made (n INT)",
        "CREATE TABLE audited (n INT)",
        "CREATE TABLE copied (n INT)",
        "CREATE TABLE counted (n INT)",
        "CREATE TRIGGER audits AFTER INSERT ON made FOR EACH ROW INSERT INTO audited VALUES (NEW.n)",
    ] {
        db.sql(sql).await;
    }
    let store = open_my(db.__url(), CONNECTIONS).await;
    let mut used = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut conn = store.connection().await.unwrap();
        for _ in 0..2 {
            sql_query("INSERT INTO made VALUES (1)").execute(&mut *conn).await.unwrap();
        }
        used.push(conn);
    }
    drop(used);
    let copies =
        "CREATE TRIGGER copies AFTER INSERT ON made FOR EACH ROW INSERT INTO copied VALUES (NEW.n)";
    db.sql(copies).await;
    let builder = Engine::builder(store).register::<SendsOne>().register::<HandsOneOver>();
    let engine = builder.build().unwrap();
    finished(engine.call(&scope(), &key("k"), SendsOne).await);
    assert_eq!(db.number("SELECT count(*) FROM copied").await, 1);

    // The same of a statement that each connection has prepared under a name, for its blocks.
    let mut used = Vec::new();
    for _ in 0..CONNECTIONS {
        used.push(engine.store().connection().await.unwrap());
    }
    drop(used);
    for before in 0..3 * CONNECTIONS {
        finished(engine.call(&scope(), &key(&format!("before-{before}")), HandsOneOver).await);
    }
    let counts = "CREATE TRIGGER counts AFTER INSERT ON made FOR EACH ROW INSERT INTO counted VALUES (NEW.n)";
    db.sql(counts).await;
    finished(engine.call(&scope(), &key("behind"), HandsOneOver).await);
    assert_eq!(db.number("SELECT count(*) FROM counted").await, 1);
}

/// The same of the engine's own statements, where one of its tables has triggers of the application's.
#[tokio::test(flavor = "multi_thread")]
async fn g17_another_trigger_on_a_table_of_the_engine_harms_no_request() {
    // A prime, so that each connection has its turn, however many of them a call uses.
    const CONNECTIONS: usize = 13;
    let db = Mysql::fresh().await;
    for sql in [
        "CREATE TABLE made (n INT)",
        "CREATE TABLE audited (n INT)",
        "CREATE TABLE copied (n INT)",
        "CREATE TRIGGER audits AFTER INSERT ON atomic_phases_keys FOR EACH ROW INSERT INTO audited VALUES (1)",
    ] {
        db.sql(sql).await;
    }
    let store = open_my(db.__url(), CONNECTIONS).await;
    let mut used = Vec::new();
    for _ in 0..CONNECTIONS {
        used.push(store.connection().await.unwrap());
    }
    drop(used);
    let engine = Engine::builder(store).register::<HandsOneOver>().build().unwrap();
    for before in 0..3 * CONNECTIONS {
        finished(engine.call(&scope(), &key(&format!("before-{before}")), HandsOneOver).await);
    }
    let copies = "CREATE TRIGGER copies AFTER INSERT ON atomic_phases_keys FOR EACH ROW INSERT INTO copied VALUES (1)";
    db.sql(copies).await;
    finished(engine.call(&scope(), &key("behind"), HandsOneOver).await);
    assert_eq!(db.number("SELECT count(*) FROM copied").await, 1);
}

/// The same of a function in a block: "Table 'other' doesn't exist".
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_calls_a_function_that_has_changed() {
    let db = Mysql::fresh().await;
    for sql in [
        "CREATE TABLE one (n INT)",
        "CREATE TABLE other (n INT)",
        "CREATE FUNCTION counted() RETURNS INT READS SQL DATA RETURN (SELECT count(*) FROM one)",
        "CREATE TABLE made (n INT)",
        "CREATE TRIGGER counts BEFORE INSERT ON made FOR EACH ROW SET NEW.n = counted()",
    ] {
        db.sql(sql).await;
    }
    let engine = that_has_them_prepared(&db).await;
    db.sql("DROP FUNCTION counted").await;
    let changed = "CREATE FUNCTION counted() RETURNS INT READS SQL DATA RETURN 7 + (SELECT count(*) FROM other)";
    db.sql(changed).await;
    make_two(&engine, "behind").await;
    assert_eq!(db.number("SELECT count(*) FROM made WHERE n = 7").await, 2);
}

/// The same of a view that a table has taken the place of: "View 'made' references invalid table(s)" (1356).
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_writes_to_a_table_that_was_a_view() {
    let db = Mysql::fresh().await;
    db.sql("CREATE TABLE one (n INT); CREATE VIEW made AS SELECT n FROM one").await;
    let engine = that_has_them_prepared(&db).await;
    db.sql("DROP VIEW made; RENAME TABLE one TO made").await;
    make_two(&engine, "behind").await;
    assert_eq!(db.number("SELECT count(*) FROM made").await, 8);
}

/// A block would keep the view that it was executed with first: MariaDB 10.11 compares the version of no view within a block.
#[tokio::test(flavor = "multi_thread")]
async fn g4_what_a_phase_writes_to_a_view_is_where_the_view_leads_now() {
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE one (n INT); CREATE TABLE two (n INT); CREATE VIEW made AS SELECT n FROM one",
    )
    .await;
    let engine = that_has_them_prepared(&db).await;
    db.sql("CREATE OR REPLACE VIEW made AS SELECT n FROM two").await;
    make_two(&engine, "behind").await;
    assert_eq!(db.number("SELECT count(*) FROM one").await, 6);
    assert_eq!(db.number("SELECT count(*) FROM two").await, 2);
}

/// Keeps a copy of each row of `made`.
#[derive(Clone, Serialize, Deserialize)]
struct Archives;

#[atomic_phases(name = "archives", version = 1)]
impl Archives {
    #[phase]
    async fn archived(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
        batch.add(sql_query("INSERT INTO archived (n, m) SELECT * FROM made"));
        Ok(Reply::new(204))
    }
}

/// Within a block, MariaDB would take `*` for the columns that the table had once, in their order of then.
#[tokio::test(flavor = "multi_thread")]
async fn g4_all_columns_of_a_table_are_those_that_it_has_now() {
    let db = Mysql::fresh().await;
    db.sql("CREATE TABLE made (n INT, m INT); INSERT INTO made VALUES (1, 2)").await;
    db.sql("CREATE TABLE archived (n INT, m INT)").await;
    let builder = Engine::builder(open_my(db.__url(), 1).await).register::<Archives>();
    let engine = builder.build().unwrap();
    for name in ["first", "second", "third"] {
        finished(engine.call(&scope(), &key(name), Archives).await);
    }
    db.sql("ALTER TABLE made MODIFY m INT FIRST").await;
    finished(engine.call(&scope(), &key("behind"), Archives).await);
    assert_eq!(db.number("SELECT count(*) FROM archived WHERE n = 1 AND m = 2").await, 3);
    assert_eq!(db.number("SELECT count(*) FROM archived WHERE n = 2 AND m = 1").await, 1);
}
