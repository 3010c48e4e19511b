//! What MySQL and MariaDB do to a transaction and to a connection, and how the store hides it.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use atomic_phases::engine::FailureCause;
use atomic_phases::ops::{Actor, Filter, OperatorStore, Permissions, Scopes};
use atomic_phases::store::{Mysql, MysqlConn, PoolSettings};
use atomic_phases::{Outcome, PhaseResult, Reply, Scope, Store, Tx, atomic_phases};
use diesel::result::Error;
use diesel::sql_query;
use diesel::sql_types::BigInt;
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};

use crate::support::db::{
    lock_waits, my, numbers, open_my, open_my_without_blocks, prepare_my, sessions,
};
use crate::support::mariadb::{Server, mysqld, start_two};
use crate::support::network::Line;
use crate::support::*;

/// A phase that writes a step, then runs texts, and then writes another; it ignores their errors.
#[derive(Clone, Serialize, Deserialize)]
struct Ignores(Vec<String>);

#[atomic_phases(name = "ignores", version = 1)]
impl Ignores {
    #[phase]
    async fn ran(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "before").await?;
        for sql in &self.0 {
            let _ = tx.batch_execute(sql).await;
        }
        let _ = Mysql::insert_step(tx, "r", "after").await;
        Ok(Reply::new(204))
    }
}

/// Y15: statements that end the transaction or commit it, even if they fail. Y13, Y32: two that fail and leave it open. Y16:
/// the statements after them are in another transaction, which is never committed; only a phase that turns `autocommit` on
/// commits what it sends.
#[tokio::test(flavor = "multi_thread")]
async fn g4_whatever_ends_the_transaction_of_a_phase_is_found_out() {
    let db = Mysql::fresh().await;
    end_its_transaction(&db, &db).await;
    let db = Mysql::fresh().await;
    end_its_transaction(&db, &open_my_without_blocks(db.__url(), 4).await).await;
}

async fn end_its_transaction(db: &Mysql, store: &Mysql) {
    let engine = engine_with(store, &App::default(), |b| b.register::<Ignores>());
    db.sql("CREATE TABLE there (n INT); CREATE TABLE other (n INT)").await;
    db.sql("CREATE USER IF NOT EXISTS spare@nowhere").await;
    // Which ends the transaction on MySQL only.
    let loads = "LOAD INDEX INTO CACHE there";
    let (ends, goes_on) =
        if mysqld().is_some() { (Some(loads), None) } else { (None, Some(loads)) };
    for (at, sql) in [
        "COMMIT",
        "COMMIT AND CHAIN",
        "START TRANSACTION",
        "BEGIN",
        "ROLLBACK",
        "ROLLBACK AND CHAIN",
        "SET autocommit = 1",
        "CREATE TABLE made (n INT)",
        "CREATE TABLE there (n INT)",
        "ALTER TABLE there ADD COLUMN m INT",
        "ALTER TABLE there ADD COLUMN m INT",
        "TRUNCATE TABLE other",
        "DROP TABLE other",
        "CREATE VIEW seen AS SELECT 1",
        "ANALYZE TABLE there",
        "CHECK TABLE there",
        "LOCK TABLES there READ; UNLOCK TABLES",
        "FLUSH TABLES",
        "GRANT SELECT ON nowhere.* TO missing@nowhere",
        "COMMIT; SAVEPOINT mine",
        "XA START 'x'",
        "RELEASE SAVEPOINT atomic_phases",
        "SET PASSWORD FOR spare@nowhere = ''",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "KILL QUERY CONNECTION_ID()",
    ]
    .into_iter()
    .chain(ends)
    .enumerate()
    {
        let name = key(&format!("k{at}"));
        let told = engine.call(&scope(), &name, Ignores(vec![sql.to_owned()])).await;
        assert!(matches!(failed(told), FailureCause::Misuse { .. }), "{sql}");
        let completed = format!(
            "SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key = 'k{at}' AND status = 'completed'"
        );
        assert_eq!(db.number(&completed).await, 0, "{sql}");
        let after = db.number("SELECT count(*) FROM steps WHERE step = 'after'").await;
        assert_eq!(after, i64::from(sql.starts_with("SET autocommit")), "{sql}");
        db.sql("DELETE FROM steps WHERE step = 'after'").await;
    }
    for (at, sql) in [
        "CREATE TEMPORARY TABLE mine (n INT)",
        "SAVEPOINT mine; INSERT INTO steps VALUES ('r', 'undone'); ROLLBACK TO mine",
        "SET @mine = 1",
    ]
    .into_iter()
    .chain(goes_on)
    .enumerate()
    {
        let name = key(&format!("fine{at}"));
        let told = engine.call(&scope(), &name, Ignores(vec![sql.to_owned()])).await;
        assert_eq!(finished(told).reply.status(), 204, "{sql}");
    }
    assert_eq!(db.number("SELECT count(*) FROM steps WHERE step = 'undone'").await, 0);
}

/// Y17: and the settings that a phase has changed are restored for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_application_left_on_a_connection_disturbs_nothing() {
    let url = Mysql::fresh().await.__url().to_owned();
    let db = open_my(&url, 1).await;
    let engine = engine_with(&db, &App::default(), |b| b.register::<Ignores>());
    for left in [
        "SET autocommit = 0; INSERT INTO steps VALUES ('r', 'left')",
        "BEGIN; INSERT INTO steps VALUES ('r', 'left')",
        "SET sql_mode = '', completion_type = 1, time_zone = '-11:00', lc_messages = 'de_DE'",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY; SET NAMES latin1",
        "SET autocommit = 0",
    ] {
        let mut conn = db.connection().await.unwrap();
        conn.batch_execute(left).await.unwrap();
        drop(conn);
        let name = key(&format!("{}", left.len()));
        finished(engine.call(&scope(), &name, book(20)).await);
        assert!(finished(engine.call(&scope(), &name, book(20)).await).replayed);
    }
    assert_eq!(db.number("SELECT count(*) FROM steps WHERE step = 'left'").await, 0);
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 5);
    let sets = "SET sql_mode = '', completion_type = 1, time_zone = '-11:00', autocommit = 0";
    finished(engine.call(&scope(), &key("sets"), Ignores(vec![sets.to_owned()])).await);
    let mut conn = db.connection().await.unwrap();
    let long = format!("INSERT INTO steps VALUES ('r', '{}')", "x".repeat(300));
    assert!(conn.batch_execute(&long).await.is_err(), "the session is strict again");
}

/// Y1, Y2: no later statement or text reads an answer that its sender did not wait for.
#[tokio::test(flavor = "multi_thread")]
async fn g16_the_answer_of_a_dropped_statement_reaches_no_other_caller() {
    #[derive(diesel::QueryableByName)]
    struct Told {
        #[diesel(sql_type = BigInt)]
        #[allow(dead_code)]
        n: i64,
    }
    let db = Mysql::fresh().await;
    let store = open_my(db.__url(), 1).await;
    let mut conn = store.connection().await.unwrap();
    // Longer than any delay of a busy machine: the future is dropped before the statement ends.
    let slow = sql_query("SELECT CAST(SLEEP(30) + 7 AS SIGNED) AS n").load::<Told>(&mut *conn);
    assert!(tokio::time::timeout(Duration::from_millis(20), slow).await.is_err());
    let next = sql_query("SELECT 1 AS n").load::<Told>(&mut *conn).await;
    assert!(matches!(next, Err(Error::DatabaseError(..))), "another's answer");
    drop(conn);
    let mut conn = store.connection().await.unwrap();
    let slow = conn.batch_execute("DO SLEEP(30)");
    assert!(tokio::time::timeout(Duration::from_millis(20), slow).await.is_err());
    assert!(conn.batch_execute("DO 0").await.is_err(), "another's answer");
    drop(conn);
    // The pool's only connection is a new one.
    let app = App::default();
    finished(engine(&store, &app).call(&scope(), &key("k"), book(20)).await);
    // And a read that is dropped at each of its polls, right before another tenant's.
    let tenants = ["one", "two"].map(|name| Scope::new(name).unwrap());
    let engine = engine(&store, &app);
    for (amount, tenant) in [(1, &tenants[0]), (2, &tenants[1])] {
        finished(engine.call(tenant, &key("own"), book(amount)).await);
    }
    let reply = |tenant: &Scope, amount| {
        let call = engine.call(tenant, &key("own"), book(amount)).into_future();
        async move { finished(call.await) }
    };
    let (one, two) = (reply(&tenants[0], 1).await.reply, reply(&tenants[1], 2).await.reply);
    assert_ne!(one.bytes(), two.bytes());
    for polls in 1..8 {
        let call = engine.call(&tenants[0], &key("own"), book(1)).__call_in_place();
        let mut call = Box::pin(call);
        for _ in 0..polls {
            if polled(&mut call).await {
                break;
            }
        }
        drop(call);
        assert_eq!(reply(&tenants[1], 2).await.reply, two, "after {polls} polls");
    }
}

/// Polls once; whether it is done.
async fn polled<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_ready())
    })
    .await
}

const PAIR: &str = "CREATE TABLE pair (id INT PRIMARY KEY, n INT NOT NULL); \
    INSERT INTO pair VALUES (1, 0), (2, 0)";

/// Runs into a deadlock in a nested `transaction()`.
#[derive(Clone, Serialize, Deserialize)]
struct Deadlocks {
    swallows: bool,
    /// The language of the server's messages.
    language: String,
}

#[derive(Clone)]
struct Meeting {
    has_first: mpsc::UnboundedSender<()>,
    go_on: Arc<Semaphore>,
}

#[atomic_phases(name = "deadlocks", version = 1, app = Meeting)]
impl Deadlocks {
    #[phase]
    async fn crossed(&self, tx: &mut Tx<'_, Mysql>, app: &Meeting) -> PhaseResult<Reply> {
        let speaks = format!("SET SESSION lc_messages = '{}'", self.language);
        tx.batch_execute(&speaks).await?;
        sql_query("UPDATE pair SET n = n + 1 WHERE id = 1").execute(tx).await?;
        let _ = app.has_first.send(());
        app.go_on.acquire().await.expect("open").forget();
        let nested = tx.conn().transaction::<(), Error, _>(async |conn: &mut MysqlConn| {
            sql_query("UPDATE pair SET n = n + 1 WHERE id = 2").execute(conn).await.map(drop)
        });
        let crossed = nested.await;
        if !self.swallows {
            crossed?;
        }
        let _ = Mysql::insert_step(tx, "r", "behind").await;
        Ok(Reply::new(204))
    }
}

/// Y14: a deadlock has rolled back the whole transaction. The statements after it do not commit by themselves, and
/// the phase runs again, whether it met the deadlock in a nested transaction or ignored it. Y3: in any language.
#[tokio::test(flavor = "multi_thread")]
async fn g4_what_follows_a_deadlock_is_not_durable_and_the_phase_runs_again() {
    for (swallows, language) in [(false, "en_US"), (true, "en_US"), (false, "fr_FR")] {
        let db = Mysql::fresh().await;
        db.sql(PAIR).await;
        let (has_first, mut meets) = mpsc::unbounded_channel();
        let go_on = Arc::new(Semaphore::new(0));
        let engine = atomic_phases::Engine::builder(db.clone())
            .app(Meeting { has_first, go_on: go_on.clone() })
            .register::<Deadlocks>()
            .build()
            .unwrap();
        let deadlocks = Deadlocks { swallows, language: language.to_owned() };
        let call = tokio::spawn(engine.call(&scope(), &key("k"), deadlocks).into_future());
        // The other transaction has changed more rows, so that the server does not choose it as the victim.
        let mut other = my(db.__url()).await;
        let many = format!(
            "BEGIN; INSERT INTO rides (id, amount) SELECT n, 1 FROM {}; UPDATE pair SET n = n + 10 WHERE id = 2",
            numbers::<Mysql>(1_000)
        );
        other.batch_execute(&many).await.unwrap();
        meets.recv().await.unwrap();
        let other = tokio::spawn(async move {
            other.batch_execute("UPDATE pair SET n = n + 10 WHERE id = 1; COMMIT").await.unwrap();
        });
        until(async || lock_waits(&db).await == 1).await;
        go_on.add_permits(1);
        other.await.unwrap();
        // The second attempt meets no other transaction.
        let again = tokio::time::timeout(Duration::from_secs(30), meets.recv()).await;
        again.expect("the phase runs again").unwrap();
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 0, "nothing of the first");
        go_on.add_permits(1);
        assert_eq!(finished(call.await.unwrap()).reply.status(), 204);
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
        assert_eq!(db.number("SELECT sum(n) FROM pair").await, 22);
    }
}

/// Y42: `'a' = 'a '` in the default collation of every character set, and `'a' = 'A'` in most.
#[tokio::test(flavor = "multi_thread")]
async fn g16_scopes_and_keys_that_look_alike_are_not_one() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    let scopes = ["a", "a ", "A", "\u{e4}", "a\u{308}"];
    for scope in scopes {
        let scope = Scope::new(scope).unwrap();
        for name in ["k", "K"] {
            assert!(!finished(engine.call(&scope, &key(name), book(20)).await).replayed);
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 10);
}

/// Y43: the store does not depend on the server's defaults.
#[tokio::test(flavor = "multi_thread")]
async fn a_servers_hostile_defaults_change_nothing() {
    let modes = match mysqld() {
        None => {
            "--sql-mode=ORACLE,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION"
        }
        Some(_) => "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION",
    };
    let server = Server::start(&[
        modes,
        "--autocommit=0",
        "--completion-type=CHAIN",
        "--transaction-isolation=SERIALIZABLE",
        "--default-time-zone=+05:30",
        "--lc-messages=de_DE",
        "--character-set-server=latin1",
        "--collation-server=latin1_swedish_ci",
        "--max-allowed-packet=1M",
        "--init-connect=SET SESSION autocommit = 0",
        // Which MariaDB has. It refuses any other time than the clock's.
        "--loose-secure-timestamp=YES",
    ]);
    let url = tokio::task::spawn_blocking(move || (server.new_database(), server)).await.unwrap();
    let (url, server) = url;
    server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'; COMMIT");
    let store = open_my(&url.replace("root@", "app@"), 4).await;
    store.migrate().await.unwrap();
    let mut conn = store.connection().await.unwrap();
    let tables = "CREATE TABLE rides (id VARCHAR(255), amount BIGINT) CHARACTER SET utf8mb4; \
        CREATE TABLE steps (request VARCHAR(255), step VARCHAR(30)) CHARACTER SET utf8mb4";
    conn.batch_execute(tables).await.unwrap();
    drop(conn);
    let app = App::default();
    let engine = engine_with(&store, &app, |b| b.register::<Ignores>());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(finished(engine.call(&scope(), &key("k"), book(20)).await).replayed);
    app.forget_bodies();
    failed(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key("again"), book(20)).await);
    let long = "INSERT INTO steps VALUES ('r', 'longer than thirty characters are')".to_owned();
    let told = engine.call(&scope(), &key("long"), Ignores(vec![long])).await;
    assert!(matches!(failed(told), FailureCause::Misuse { .. }), "cut off in silence");
    let batch = Form::SingleStatement.parcel(Trouble::None);
    finished(engine.call(&scope(), &key("batch"), batch).await);
    let empty = finished(engine.call(&scope(), &key("empty"), Ignores(Vec::new())).await);
    let again = finished(engine.call(&scope(), &key("empty"), Ignores(Vec::new())).await);
    assert_eq!((again.replayed, again.reply), (true, empty.reply), "an empty body is not NULL");
    // Y12: a value that does not fit into a packet is refused before it is sent, and not retried for ever.
    let told = engine.call(&scope(), &key("huge"), troubled(Trouble::HugeOutput)).await;
    assert!(!matches!(told, Ok(Outcome::Finished(_))), "{told:?}");
    finished(engine.call(&scope(), &key("behind"), book(20)).await);
}

/// Y35: on a read-only server, as in a switch-over, nothing runs, and finished requests are replayed.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_read_only_server_replays_and_runs_nothing() {
    let server = Server::start(&[]);
    let (url, server) =
        tokio::task::spawn_blocking(move || (server.new_database(), server)).await.unwrap();
    server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
    let store = open_my(&url.replace("root@", "app@"), 4).await;
    store.migrate().await.unwrap();
    let mut conn = store.connection().await.unwrap();
    let tables = "CREATE TABLE rides (id VARCHAR(255), amount BIGINT); \
        CREATE TABLE steps (request VARCHAR(255), step VARCHAR(255))";
    conn.batch_execute(tables).await.unwrap();
    drop(conn);
    let app = App::default();
    let engine = engine(&store, &app);
    let done = finished(engine.call(&scope(), &key("done"), book(20)).await);
    let calls = app.provider.calls().len();
    server.ask("SET GLOBAL read_only = 1");
    let told = engine.call(&scope(), &key("new"), book(20)).await;
    assert!(matches!(told, Err(atomic_phases::engine::CallError::Unavailable(_))), "{told:?}");
    assert_eq!(finished(engine.call(&scope(), &key("done"), book(20)).await).reply, done.reply);
    assert_eq!(app.provider.calls().len(), calls);
    server.ask("SET GLOBAL read_only = 0");
    finished(engine.call(&scope(), &key("new"), book(20)).await);
}

/// A primary that is demoted keeps its sessions, and new connections reach another server. A write or a probe finds out,
/// and the engine leaves the former primary without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_primary_that_is_demoted_and_keeps_its_sessions_is_left() {
    let ([first, second], url) = tokio::task::spawn_blocking(start_two).await.unwrap();
    prepare_my(&url).await;
    let other = prepare_my(&Line::url_at(&url, second.port())).await;
    let line = Line::to(first.port(), 0).await;
    let store = open_my(&line.url(&url).replace("root@", "app@"), 4).await;
    let engine = engine(&store, &App::default());
    finished(engine.call(&scope(), &key("before"), book(20)).await);
    assert!(!store.is_read_only().await.unwrap());

    line.lead_to(second.port());
    first.ask("SET GLOBAL read_only = 1");
    let told = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(told, Err(atomic_phases::engine::CallError::Unavailable(_))), "{told:?}");
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(other.number("SELECT count(*) FROM rides").await, 1);
    // Nor does the connection stay there that is kept for ending sessions.
    let (_, name) = url.rsplit_once('/').unwrap();
    let there = format!("SELECT count(*) FROM {} WHERE db = '{name}'", sessions());
    until(async || first.ask(&there) == "0").await;

    assert!(!store.is_read_only().await.unwrap());
    first.ask("SET GLOBAL read_only = 0");
    line.lead_to(first.port());
    second.ask("SET GLOBAL read_only = 1");
    assert!(store.is_read_only().await.unwrap(), "the second server has its sessions");
    // A server that is read only is left once a second at most, and the first was just left.
    until(async || !store.is_read_only().await.unwrap()).await;
    finished(engine.call(&scope(), &key("back"), book(20)).await);
    assert_eq!(other.number("SELECT count(*) FROM rides").await, 1);
}

/// A health check may find that out before any request does: the connections by which operators search are left, too.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_demoted_primary_that_a_probe_finds_first_is_left_by_operators() {
    let ([first, second], url) = tokio::task::spawn_blocking(start_two).await.unwrap();
    prepare_my(&url).await;
    prepare_my(&Line::url_at(&url, second.port())).await;
    let line = Line::to(first.port(), 0).await;
    let store = open_my(&line.url(&url).replace("root@", "app@"), 4).await;
    let engine = engine(&store, &App::default());
    finished(engine.call(&scope(), &key("before"), book(20)).await);
    // Each of these pools has a connection to the first server.
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    assert_eq!(ops.list(Filter::new()).await.unwrap().rows.len(), 1);
    assert!(!store.for_probes().is_read_only().await.unwrap());
    store.for_workers().nodes().await.unwrap();

    let in_use = store.connection().await.unwrap();

    line.lead_to(second.port());
    first.ask("SET GLOBAL read_only = 1");
    assert!(store.for_probes().is_read_only().await.unwrap());
    finished(engine.call(&scope(), &key("behind"), book(20)).await);
    // One that was in use when the server was left goes back to its pool, and is not taken out again.
    drop(in_use);
    let all = (0..4).map(|_| store.connection());
    drop(futures_util::future::try_join_all(all).await.unwrap());
    let behind = ops.find(&scope(), &key("behind")).await.unwrap().request_id;
    let listed = ops.list(Filter::new()).await.unwrap().rows;
    assert_eq!(listed.iter().map(|row| row.request_id).collect::<Vec<_>>(), [behind]);
    // Nor does the connection stay there that is kept for ending sessions.
    let (_, name) = url.rsplit_once('/').unwrap();
    let there = format!("SELECT count(*) FROM {} WHERE db = '{name}'", sessions());
    until(async || first.ask(&there) == "0").await;
}

/// A read-only replica replays what has reached it, and runs nothing. Behind the loss of its primary it is promoted, and
/// runs. Not on a MySQL, which has other statements for replication.
#[tokio::test(flavor = "multi_thread")]
async fn g1_g12_a_replica_replays_and_runs_nothing_until_it_is_promoted() {
    if mysqld().is_some() {
        return;
    }
    let (primary, replica, url) = tokio::task::spawn_blocking(|| {
        let primary = Server::start(&["--log-bin=binlog", "--server-id=1"]);
        let replica = Server::start(&["--server-id=2", "--read-only"]);
        replica.ask(&format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root', \
             MASTER_USE_GTID = slave_pos; START SLAVE",
            primary.port()
        ));
        primary.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
        let url = primary.new_database().replace("root@", "app@");
        (primary, replica, url)
    })
    .await
    .unwrap();
    let store = open_my(&url, 4).await;
    store.migrate().await.unwrap();
    let tables = "CREATE TABLE rides (id VARCHAR(255), amount BIGINT); \
        CREATE TABLE steps (request VARCHAR(255), step VARCHAR(255))";
    store.connection().await.unwrap().batch_execute(tables).await.unwrap();
    let app = App::default();
    let done = engine(&store, &app).call(&scope(), &key("done"), book(20)).await;
    let reply = finished(done).reply;

    let there = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", replica.port()));
    let database = url.rsplit_once('/').unwrap().1;
    let tables = format!(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = '{database}' AND table_name = 'atomic_phases_keys'"
    );
    let rows =
        format!("SELECT COUNT(*) FROM {database}.atomic_phases_keys WHERE status = 'completed'");
    // Replication is asynchronous.
    until(async || replica.ask(&tables) == "1" && replica.ask(&rows) == "1").await;
    let store = open_my(&there, 4).await;
    let engine = engine(&store, &app);
    let calls = app.provider.calls().len();
    let told = engine.call(&scope(), &key("new"), book(20)).await;
    assert!(matches!(told, Err(atomic_phases::engine::CallError::Unavailable(_))), "{told:?}");
    assert_eq!(finished(engine.call(&scope(), &key("done"), book(20)).await).reply, reply);
    assert_eq!(app.provider.calls().len(), calls);

    primary.kill_9();
    replica.ask("STOP SLAVE; SET GLOBAL read_only = 0");
    finished(engine.call(&scope(), &key("new"), book(20)).await);
    assert_eq!(finished(engine.call(&scope(), &key("done"), book(20)).await).reply, reply);
    assert!(app.provider.calls().len() > calls);
}

/// Y50, Y51: processes that start concurrently, and one that died between a table and its record.
#[tokio::test(flavor = "multi_thread")]
async fn migrations_survive_a_crash_in_the_middle_and_each_other() {
    let url = tokio::task::spawn_blocking(crate::support::mariadb::new_database).await.unwrap();
    // Each of them died after its change.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/mysql");
    let folders = std::fs::read_dir(folder).unwrap().map(|folder| folder.unwrap().path());
    let mut folders: Vec<_> = folders.collect();
    folders.sort();
    for folder in &folders {
        let up = std::fs::read_to_string(folder.join("up.sql")).unwrap();
        my(&url).await.batch_execute(&up).await.unwrap();
    }
    let settings = PoolSettings::default().max_size(2);
    let mut migrating = Vec::new();
    for _ in 0..6 {
        let store = Mysql::connect_with(&url, settings).await.unwrap();
        migrating.push(tokio::spawn(async move { store.migrate().await }));
    }
    for one in migrating {
        one.await.unwrap().unwrap();
    }
    let store = Mysql::connect_with(&url, settings).await.unwrap();
    assert!(store.missing_migrations().await.unwrap().is_empty());
    store.revert_migrations().await.unwrap();
    assert_eq!(store.missing_migrations().await.unwrap().len(), folders.len());
    store.migrate().await.unwrap();
}
