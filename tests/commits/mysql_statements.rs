//! What statements meet on a MySQL and MariaDB server: duplicates that end in a deadlock, the order of assignments, locks
//! that are waited for, idle transactions, and the limit of prepared statements.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::store::{Mysql, MysqlConn};
use atomic_phases::{Batch, Engine, Outcome, PhaseError, PhaseResult, Reply, Tx, atomic_phases};
use diesel::sql_query;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};

use super::mysql_faults::on_own_server;
use crate::support::db::{lock_waits, my, open_my, open_my_without_blocks};
use crate::support::mariadb::{Server, mysqld};
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::*;

/// Its first attempt fails at the test's command.
#[derive(Clone, Serialize, Deserialize)]
struct FailsFirst;

#[derive(Clone)]
struct Gate {
    attempts: Arc<AtomicU32>,
    entered: mpsc::UnboundedSender<()>,
    go_on: Arc<Semaphore>,
}

#[atomic_phases(name = "fails_first", version = 1, app = Gate)]
impl FailsFirst {
    #[phase]
    async fn tried(&self, tx: &mut Tx<'_, Mysql>, gate: &Gate) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "tried").await?;
        if gate.attempts.fetch_add(1, Ordering::SeqCst) == 0 {
            let _ = gate.entered.send(());
            gate.go_on.acquire().await.expect("open").forget();
            return Err(PhaseError::retryable("asked for"));
        }
        Ok(Reply::new(204))
    }
}

/// Y26: two duplicates in two other processes wait at the server for a first phase that then fails; InnoDB makes
/// one of them the victim of a deadlock. If they wait in memory, one of them runs, the other learns that it is in
/// progress, and there is no deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn g10_duplicates_that_wait_for_a_first_phase_which_fails_see_no_deadlock() {
    let (server, db) = on_own_server(&[]).await;
    let (entered, mut has_entered) = mpsc::unbounded_channel();
    let go_on = Arc::new(Semaphore::new(0));
    let gate = Gate { attempts: Arc::default(), entered, go_on: go_on.clone() };
    let node = async || -> (MysqlProxy, Engine<Mysql, Gate>) {
        let proxy = MysqlProxy::start(db.__url()).await;
        let builder = Engine::builder(open_my(&proxy.url(db.__url()), 4).await).app(gate.clone());
        let builder = builder.register::<FailsFirst>().creation_wait(Duration::from_secs(60));
        (proxy, builder.build().unwrap())
    };
    let nodes = [node().await, node().await, node().await];
    let call = |node: &Engine<Mysql, Gate>| {
        tokio::spawn(node.call(&scope(), &key("k"), FailsFirst).into_future())
    };
    let first = call(&nodes[0].1);
    has_entered.recv().await.unwrap();
    let before = [nodes[1].0.commands(), nodes[2].0.commands()];
    let others = [call(&nodes[1].1), call(&nodes[2].1)];
    // Each has met the first one, and tried again.
    let has_waited = |at: usize| nodes[at + 1].0.commands() > before[at] + 12;
    until(async || has_waited(0) && has_waited(1)).await;
    go_on.add_permits(1);
    failed(first.await.unwrap());
    let (mut ran, mut heard) = (0, 0);
    for other in others {
        match other.await.unwrap() {
            Ok(Outcome::Finished(finished)) if !finished.replayed => ran += 1,
            Ok(Outcome::Finished(_) | Outcome::InProgress { .. }) => heard += 1,
            other => panic!("{other:?}"),
        }
    }
    // A MySQL lets them wait at the server for a second at least: what it undoes there runs again.
    if mysqld().is_none() {
        let deadlocks = "SELECT variable_value FROM information_schema.global_status \
            WHERE variable_name = 'Innodb_deadlocks'";
        assert_eq!(server.ask(deadlocks), "0");
    }
    assert_eq!((ran, heard), (1, 1));
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
}

/// Y39: in MySQL, an assignment in an UPDATE sees the earlier assignments. A column that decides about another one
/// is assigned after it, so that either order gives the same row.
#[tokio::test(flavor = "multi_thread")]
async fn g11_the_order_of_assignments_decides_nothing() {
    // MariaDB has a mode for the standard's order.
    let modes: &[&[_]] = match mysqld() {
        None => &[&[], &["--sql-mode=SIMULTANEOUS_ASSIGNMENT"]],
        Some(_) => &[&[]],
    };
    for options in modes {
        let (_server, db) = on_own_server(options).await;
        let app = App::default();
        let engine = engine(&db, &app);
        let advanced = "SELECT advanced_at - created_at FROM atomic_phases_keys";

        // A release keeps the recovery point, and so its time.
        let mut gate = app.provider.stop_after_the_effect();
        let stops = engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce));
        let stops = tokio::spawn(stops.into_future());
        let in_the_call = gate.recv().await.unwrap();
        app.provider.stop_no_more();
        db.sql("UPDATE atomic_phases_keys SET advanced_at = created_at - 7").await;
        in_the_call.send(()).unwrap();
        failed(stops.await.unwrap());
        assert_eq!(db.number(advanced).await, -7, "{options:?}");
        // The next recovery point has another time.
        finished(engine.call(&scope(), &key("k"), book(20)).await);
        assert!(db.number(advanced).await >= 0, "{options:?}");

        // An erasure keeps the expiry of a finished request. It gives a dead letter an expiry and an answer.
        db.sql("DELETE FROM atomic_phases_staged_jobs").await;
        app.forget_bodies();
        failed(engine.call(&scope(), &key("dead"), troubled(Trouble::RetryForeignOnce)).await);
        db.sql(
            "UPDATE atomic_phases_keys SET status = 'dead_letter', run_after = NULL, \
             waiting_since = created_at WHERE idempotency_key = 'dead'; \
             UPDATE atomic_phases_keys SET expires_at = created_at + 7",
        )
        .await;
        for name in ["k", "dead"] {
            engine.erase(&scope(), &key(name)).await.unwrap();
        }
        let row = "SELECT (expires_at - created_at = 7) || ' ' || response_status || ' ' || status || ' ' \
            || fingerprint FROM atomic_phases_keys WHERE idempotency_key = ";
        assert_eq!(db.text(&format!("{row}'k'")).await, "1 201 completed erased", "{options:?}");
        assert_eq!(db.text(&format!("{row}'dead'")).await, "0 410 completed erased", "{options:?}");
    }
}

/// Y45: a write that waited for a row's lock has a time from after the wait, and no expiry that had passed by then.
#[tokio::test(flavor = "multi_thread")]
async fn g3_what_is_written_behind_a_lock_has_its_time_from_behind_the_wait() {
    let db = Mysql::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("k"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    let mut holder = my(db.__url()).await;
    holder.batch_execute("BEGIN; SELECT 1 FROM atomic_phases_keys FOR UPDATE").await.unwrap();
    in_the_call.send(()).unwrap();
    // The commit of the last phase, which waits for a second at most.
    until(async || lock_waits(&db).await == 1).await;
    let release = "SET @free = UNIX_TIMESTAMP(NOW(6)) * 1000; ROLLBACK; \
        CREATE TABLE free SELECT CAST(@free AS SIGNED) AS free_at";
    holder.batch_execute(release).await.unwrap();
    finished(call.await.unwrap());
    let free = db.number("SELECT free_at FROM free").await;
    let advanced = db.number("SELECT advanced_at FROM atomic_phases_keys").await;
    assert!(advanced >= free, "{} ms in front of its end", free - advanced);
}

/// Y30: a unique key in addition to the primary key would lock the gaps that deleted rows leave. Y49: searches by
/// time use an index.
#[tokio::test(flavor = "multi_thread")]
async fn g16_no_table_of_the_engine_has_a_unique_key_but_its_primary_one() {
    let db = Mysql::fresh().await;
    let unique = "SELECT count(*) FROM information_schema.statistics WHERE table_schema = DATABASE() \
        AND table_name LIKE 'atomic%' AND non_unique = 0 AND index_name <> 'PRIMARY'";
    assert_eq!(db.number(unique).await, 0);
}

/// Asks in its transaction after how many seconds of silence the server ends it.
#[derive(Clone, Serialize, Deserialize)]
struct MayBeIdle;

#[atomic_phases(name = "may_be_idle", version = 1)]
impl MayBeIdle {
    #[phase]
    async fn asked(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        let setting = if mysqld().is_some() { "wait_timeout" } else { "idle_transaction_timeout" };
        let asked = format!("SELECT CAST(@@SESSION.{setting} AS SIGNED)");
        let asked = diesel::dsl::sql::<diesel::sql_types::BigInt>(&asked);
        let seconds: i64 = diesel_async::RunQueryDsl::get_result(asked, tx).await?;
        Ok(Reply::text(200, seconds.to_string()))
    }
}

/// Y37: if a client is frozen, or vanishes silently, the server ends its transaction.
#[tokio::test(flavor = "multi_thread")]
async fn g13_g17_an_idle_transaction_is_bounded_at_the_server() {
    let db = Mysql::fresh().await;
    let engine = engine_with(&db, &App::default(), |b| b.register::<MayBeIdle>());
    let told = finished(engine.call(&scope(), &key("k"), MayBeIdle).await);
    assert_eq!(told.reply, Reply::text(200, "60"));
    if mysqld().is_some() {
        // An idle session of the pool has the server's own limit.
        let rests = diesel::dsl::sql::<diesel::sql_types::Bool>(
            "SELECT @@SESSION.wait_timeout = @@GLOBAL.wait_timeout",
        );
        let mut conn = db.connection().await.unwrap();
        assert!(diesel_async::RunQueryDsl::get_result::<bool>(rests, &mut *conn).await.unwrap());
    }
}

/// How many statements the server has prepared, for all its connections.
fn prepared(server: &Server) -> usize {
    let told = server.ask("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'");
    told.split_whitespace().next_back().unwrap().parse().unwrap()
}

/// How many it prepares from here on.
fn allow_statements(server: &Server, most: usize) {
    server.ask(&format!("SET GLOBAL max_prepared_stmt_count = {most}"));
}

/// As many as a connection is to keep prepared: more than a request needs.
const MANY: usize = 60;

async fn keep_many_prepared(conn: &mut MysqlConn) {
    // A text that may differ each time is kept when it is seen again.
    for number in (0..MANY).chain(0..MANY) {
        let query = diesel::sql_query(format!("SELECT {number} AS n"));
        diesel_async::RunQueryDsl::execute(query, conn).await.unwrap();
    }
}

/// Inserts this many rows with one statement.
#[derive(Serialize, Deserialize)]
struct Inserts(usize);

#[atomic_phases(name = "inserts", version = 1)]
impl Inserts {
    #[phase]
    async fn inserted(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        let rows = vec!["('r', 'inserted')"; self.0].join(", ");
        let insert = diesel::sql_query(format!("INSERT INTO steps (request, step) VALUES {rows}"));
        diesel_async::RunQueryDsl::execute(insert, tx).await?;
        Ok(Reply::new(204))
    }
}

/// Inserts this many rows with one statement each.
#[derive(Serialize, Deserialize)]
struct HandsOver(usize);

#[atomic_phases(name = "hands_over", version = 1)]
impl HandsOver {
    #[phase]
    async fn handed_over(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
        (0..self.0).for_each(|_| Mysql::add_step(batch, "r", "handed over"));
        Ok(Reply::new(204))
    }
}

/// Else a connection keeps 256 of them, of megabytes each at the server.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_statement_whose_text_depends_on_its_rows_is_kept_on_no_connection() {
    const MAX_ROWS: usize = 100;
    let (server, db) = on_own_server(&[]).await;
    let store = open_my(db.__url(), 1).await;
    let builder = Engine::builder(store).register::<Inserts>().register::<HandsOver>();
    let engine = builder.build().unwrap();
    let mut before = None;
    for rows in 1..=MAX_ROWS {
        finished(engine.call(&scope(), &key(&format!("i{rows}")), Inserts(rows)).await);
        finished(engine.call(&scope(), &key(&format!("h{rows}")), HandsOver(rows)).await);
        before.get_or_insert_with(|| prepared(&server));
    }
    let (before, after) = (before.unwrap(), prepared(&server));
    assert!(after < before + 20, "{before} were prepared, and {after} are");
    let steps = MAX_ROWS * (MAX_ROWS + 1);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, i64::try_from(steps).unwrap());
}

/// What is prepared counts for all connections of the server together: those that keep most give it back.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_server_that_prepares_no_more_statements_is_given_some_back() {
    let (server, db) = on_own_server(&[]).await;
    let app = App::default();
    let store = open_my(db.__url(), 2).await;
    let engine = engine(&store, &app);
    // What others have prepared, and less than a request of the store needs.
    allow_statements(&server, prepared(&server) + 5);
    for number in 0..6 {
        let name = key(&format!("k{number}"));
        match number % 2 {
            0 => finished(engine.call(&scope(), &name, book(20)).await),
            _ => finished(
                engine.call(&scope(), &name, Form::SingleStatement.parcel(Trouble::None)).await,
            ),
        };
    }
    server.ask("SET GLOBAL max_prepared_stmt_count = 1000");
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 6);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 9);
    assert_eq!(app.provider.effects(), 6);
}

/// Its first statement is one too many for the server. The next time it waits until the server has some of them back.
#[derive(Clone, Serialize, Deserialize)]
struct OneTooMany;

#[derive(Clone)]
struct Crowded {
    server: Arc<Server>,
    /// Without those of the store's connections.
    before: usize,
    runs: Arc<AtomicU32>,
}

#[atomic_phases(name = "one_too_many", version = 1, app = Crowded)]
impl OneTooMany {
    #[phase]
    async fn written(&self, tx: &mut Tx<'_, Mysql>, app: &Crowded) -> PhaseResult<Reply> {
        if app.runs.fetch_add(1, Ordering::SeqCst) == 0 {
            allow_statements(&app.server, prepared(&app.server));
        } else {
            let (server, before) = (app.server.clone(), app.before);
            until_within(Duration::from_secs(10), async move || prepared(&server) < before + MANY)
                .await;
        }
        Mysql::insert_step(tx, "r", "written").await?;
        Ok(Reply::new(204))
    }
}

/// A phase whose own statement the server does not prepare runs again. By then the idle connections, too, have given
/// back what they kept prepared.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_that_may_prepare_no_more_statements_has_those_of_idle_connections() {
    let (server, db) = on_own_server(&[]).await;
    let before = prepared(&server);
    let store = open_my(db.__url(), 2).await;
    // The phase runs on one of the two; the other one is idle.
    let mut both = [store.connection().await.unwrap(), store.connection().await.unwrap()];
    for conn in &mut both {
        keep_many_prepared(conn).await;
    }
    drop(both);
    assert!(prepared(&server) >= before + 2 * MANY);
    let app = Crowded { server, before, runs: Arc::default() };
    let builder = Engine::builder(store).app(app.clone()).register::<OneTooMany>();
    let engine = builder.build().unwrap();
    finished(engine.call(&scope(), &key("k"), OneTooMany).await);
    assert_eq!(AtomicU32::load(&app.runs, Ordering::SeqCst), 2);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
}

/// The server has the statements of a connection back only when its session has ended, some time after the connection
/// was closed.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_server_that_prepares_no_more_statements_is_given_the_time_to_free_some() {
    let (server, db) = on_own_server(&[]).await;
    for has_blocks in [true, false] {
        let store = match has_blocks {
            true => open_my(db.__url(), 2).await,
            false => open_my_without_blocks(db.__url(), 2).await,
        };
        let engine = engine(&store, &App::default());
        let mut other = my(db.__url()).await;
        keep_many_prepared(&mut other).await;
        allow_statements(&server, prepared(&server));
        let ends = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(other);
        };
        let name = key(&format!("blocks-{has_blocks}"));
        let (told, ()) = tokio::join!(engine.call(&scope(), &name, book(20)).into_future(), ends);
        finished(told);
        allow_statements(&server, 16_382);
    }
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 2);
}

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
