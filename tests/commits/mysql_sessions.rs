//! What a session of the engine counts, sees and locks on MariaDB, whatever the server's defaults are.

use std::time::Duration;

use atomic_phases::engine::FailureCause;
use atomic_phases::ops::{Actor, Permissions, Scopes};
use atomic_phases::store::{Mysql, MysqlConn};
use atomic_phases::worker::{Enqueuer, Reaper};
use atomic_phases::{Batch, Engine, PhaseError, PhaseResult, Reply, Store, Tx, atomic_phases};
use diesel::result::Error;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};

use super::mysql_kills::number_of;
use super::mysql_statements::is_free;
use crate::support::db::{my, numbers, open_my, open_my_without_blocks, prepare_my, sessions};
use crate::support::mariadb::{Server, mysqld};
use crate::support::work::{Inbox, config, dies_in_its_call};
use crate::support::*;

/// Y7: a guarded update that finds its row unchanged has not lost its lease (G3).
#[tokio::test(flavor = "multi_thread")]
async fn g3_an_update_counts_the_rows_that_it_found() {
    let db = Mysql::fresh().await;
    finished(engine(&db, &App::default()).call(&scope(), &key("k"), book(20)).await);
    let mut conn = db.connection().await.unwrap();
    let same = sql_query("UPDATE rides SET amount = amount");
    assert_eq!(same.execute(&mut *conn).await.unwrap(), 1);
}

/// The server may give a new session any character set; what it tells before the engine has set its own is read all the
/// same.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_database_of_any_name_is_opened_whatever_the_servers_character_set_is() {
    let start = || Server::start(&["--init-connect=SET NAMES latin1"]);
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    // It is not executed for a user with more privileges.
    server.ask(
        "SET NAMES utf8mb4; CREATE DATABASE `f\u{e4}hrten` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin; \
         CREATE USER app@'%'; GRANT ALL ON `f\u{e4}hrten`.* TO app@'%'",
    );
    let url = format!("mysql://app@127.0.0.1:{}/f%C3%A4hrten", server.port());
    let db = prepare_my(&url).await;
    finished(engine(&db, &App::default()).call(&scope(), &key("k"), book(20)).await);
    assert_eq!(db.text("SELECT DATABASE()").await, "f\u{e4}hrten");
}

#[derive(diesel::QueryableByName)]
struct Level {
    #[diesel(sql_type = Text)]
    level: String,
}

/// Y29: at any other isolation level, the engine's own statements lock the gaps between rows, and so block other
/// requests.
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
        let level = match mysqld() {
            None => "SELECT @@tx_isolation AS level",
            Some(_) => "SELECT @@transaction_isolation AS level",
        };
        let level = sql_query(level);
        let level = level.get_result::<Level>(&mut *conn).await.unwrap().level;
        assert_eq!(level, "READ-COMMITTED");
        conn.batch_execute(changed).await.unwrap();
    }
}

/// Finds no row to update, which at any level but READ COMMITTED keeps others from inserting one. Tells whether they may.
#[derive(Clone, Serialize, Deserialize)]
struct FindsNothing;

/// Where other sessions write.
#[derive(Clone)]
struct Beside(Mysql);

#[atomic_phases(name = "finds_nothing", version = 1, app = Beside)]
impl FindsNothing {
    #[phase]
    async fn found_nothing(&self, tx: &mut Tx<'_, Mysql>, app: &Beside) -> PhaseResult<Reply> {
        sql_query("UPDATE rides SET amount = 1 WHERE id = 'missing'").execute(tx).await?;
        let is_read_committed = is_free(&app.0, "INSERT INTO rides VALUES ('r', 1)").await;
        Ok(Reply::text(200, if is_read_committed { "READ COMMITTED" } else { "another level" }))
    }
}

/// Y29, Y32: a level that a session was given for its next transaction is not that of the engine's. If a statement has set
/// it, the session is closed. What a trigger sets is not seen, and is undone behind the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_level_that_is_set_for_the_next_transaction_is_not_that_of_the_next_phase() {
    let db = Mysql::fresh().await;
    let level = if mysqld().is_some() { "transaction_isolation" } else { "tx_isolation" };
    db.sql("CREATE TABLE leveled (n INT)").await;
    let trigger = format!(
        "CREATE TRIGGER sets AFTER INSERT ON leveled FOR EACH ROW \
         SET SESSION {level} = 'SERIALIZABLE'"
    );
    db.sql(&trigger).await;
    let level = format!("SELECT @@SESSION.{level} AS level");
    let mut conn = my(db.__url()).await;
    conn.batch_execute("INSERT INTO leveled VALUES (1)").await.unwrap();
    let set = sql_query(level).get_result::<Level>(&mut *conn).await.unwrap().level;
    assert_eq!(set, "SERIALIZABLE", "the trigger sets nothing, so this proves nothing");

    let blocks = open_my(db.__url(), 1).await;
    let texts = open_my_without_blocks(db.__url(), 1).await;
    for (form, store) in [("blocks", blocks), ("texts", texts)] {
        let builder = Engine::builder(store.clone()).app(Beside(db.clone()));
        let engine = builder.register::<Strays>().register::<FindsNothing>().build().unwrap();
        for (by, sets, is_kept) in [
            ("statement", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY", false),
            ("trigger", "INSERT INTO leveled VALUES (1)", true),
        ] {
            for in_a_phase in [true, false] {
                let what = format!("{form}-{by}-{in_a_phase}");
                let mut conn = store.connection().await.unwrap();
                let before = number_of(&mut conn).await;
                if !in_a_phase {
                    conn.batch_execute(sets).await.unwrap();
                }
                drop(conn);
                if in_a_phase {
                    let name = key(&format!("sets-{what}"));
                    finished(engine.call(&scope(), &name, Strays(sets.to_owned())).await);
                }
                let next = finished(engine.call(&scope(), &key(&what), FindsNothing).await);
                assert_eq!(next.reply, Reply::text(200, "READ COMMITTED"), "{what}");
                let mut conn = store.connection().await.unwrap();
                assert_eq!(number_of(&mut conn).await == before, is_kept, "{what}");
            }
        }
    }
}

/// Asks for another level in the middle of its transaction, and rejects the request with what the server says.
#[derive(Clone, Serialize, Deserialize)]
struct AsksForALevel;

#[atomic_phases(name = "asks_for_a_level", version = 1)]
impl AsksForALevel {
    #[phase]
    async fn asked(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "asked").await?;
        match tx.batch_execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").await {
            Ok(()) => Ok(Reply::new(204)),
            Err(error) => Err(PhaseError::reject(Reply::text(409, error.to_string()))),
        }
    }
}

/// Y32: the server refuses another level within a transaction, and the phase gets that error.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_level_that_a_phase_asks_for_in_its_transaction_is_refused() {
    let db = Mysql::fresh().await;
    let engine = Engine::builder(db.clone()).register::<AsksForALevel>().build().unwrap();
    let told = finished(engine.call(&scope(), &key("k"), AsksForALevel).await).reply;
    assert!(told.bytes().starts_with(b"1568: "), "{:?}", String::from_utf8_lossy(told.bytes()));
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
}

/// Y38: a row that another transaction has locked delays neither the reaper nor the rows beside it.
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
    // By its whole key: otherwise the server reads and locks every row.
    let locks = locks.replace("WHERE", "WHERE scope = 'tenant-1' AND");
    other.batch_execute(&locks).await.unwrap();
    assert_eq!(Reaper::new(&db, config()).run_once().await.unwrap(), 2);
    assert_eq!(db.text("SELECT idempotency_key FROM atomic_phases_keys").await, "two");
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(Reaper::new(&db, config()).run_once().await.unwrap(), 1);
}

/// Y38: while the reaper's statement runs, it has locked each expired row among which it chose,
/// also one that is unfinished. A call that needs such a row tries again.
#[tokio::test(flavor = "multi_thread")]
async fn g15_a_call_that_meets_the_lock_of_a_running_reaper_tries_again() {
    let db = Mysql::fresh().await;
    // In front of all that is prepared about this table.
    db.sql(
        "CREATE TRIGGER slow BEFORE DELETE ON atomic_phases_keys FOR EACH ROW \
         SET @waited = GET_LOCK('reaper', 60) + RELEASE_LOCK('reaper')",
    )
    .await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("finished"), book(20)).await);
    dies_in_its_call(&engine, "unfinished", book(20)).await;
    finished(engine.call(&scope(), &key("z-behind-it"), book(20)).await);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    db.let_leases_expire().await;
    let mut other = my(db.__url()).await;
    other.batch_execute("DO GET_LOCK('reaper', 0)").await.unwrap();
    let mut reaper = Reaper::new(&db.another().await, config());
    let reaping = tokio::spawn(async move { reaper.run_once().await });
    let waits = format!(
        "SELECT count(*) FROM {} WHERE db = DATABASE() AND state = 'User lock'",
        sessions()
    );
    until(async || db.number(&waits).await == 1).await;
    if mysqld().is_none() {
        let locks = "SELECT 1 FROM atomic_phases_keys WHERE scope = 'tenant-1' \
            AND idempotency_key = 'unfinished' FOR UPDATE NOWAIT";
        assert!(!is_free(&db, locks).await, "the reaper keeps no lock, so this proves nothing");
    }
    let call = tokio::spawn(engine.call(&scope(), &key("unfinished"), book(20)).into_future());
    // By then it has met the lock, unless the machine is very busy.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!reaping.is_finished(), "the reaper waits for the test");
    other.batch_execute("DO RELEASE_LOCK('reaper')").await.unwrap();
    finished(call.await.unwrap());
    assert_eq!(reaping.await.unwrap().unwrap(), 2);
}

/// Y46: a time is a number of milliseconds. It does not end in 2038, as a `TIMESTAMP` does, does not move with the zone of
/// the server, and is read as it was written.
#[tokio::test(flavor = "multi_thread")]
async fn g8_g15_a_key_that_expires_after_2038_is_kept_until_then_in_any_time_zone() {
    const THIRTY_YEARS: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    const END_OF_TIMESTAMPS: i64 = 0x7fff_ffff * 1000;
    let start = || {
        let server = Server::start(&["--default-time-zone=+05:30"]);
        let url = server.new_database();
        (server, url)
    };
    let (server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    assert_eq!(server.ask("SELECT @@SESSION.time_zone"), "+05:30");
    let db = prepare_my(&url).await;
    let engine = engine_with(&db, &App::default(), |b| b.retention(THIRTY_YEARS));
    let now = chrono::Utc::now().timestamp_millis();
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let column =
        async |name: &str| db.number(&format!("SELECT {name} FROM atomic_phases_keys")).await;
    let (created, expires) = (column("created_at").await, column("expires_at").await);
    assert!((created - now).abs() < 60_000, "created {} ms from now", created - now);
    let beyond = expires - created - i64::try_from(THIRTY_YEARS.as_millis()).unwrap();
    assert!((0..60_000).contains(&beyond), "{beyond} ms more than its retention");
    assert!(expires > END_OF_TIMESTAMPS, "{expires}");
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    let row = ops.find(&scope(), &key("k")).await.unwrap();
    assert_eq!(row.expires_at.timestamp_millis(), expires);
    assert_eq!(row.created_at.timestamp_millis(), created);
    assert!(finished(engine.call(&scope(), &key("k"), book(20)).await).replayed);
    assert_eq!(Reaper::new(&db, config()).run_once().await.unwrap(), 0);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
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

/// Y6: a statement whose error comes after its first rows has failed.
#[tokio::test(flavor = "multi_thread")]
async fn g4_an_error_in_the_middle_of_the_rows_fails_the_phase() {
    let db = Mysql::fresh().await;
    db.sql(&format!(
        "CREATE TABLE many (n BIGINT PRIMARY KEY, wide TEXT) SELECT n FROM {}",
        numbers::<Mysql>(2_000)
    ))
    .await;
    let engine = Engine::builder(db.clone()).register::<ReadsOn>().build().unwrap();
    let mut other = my(db.__url()).await;
    other.batch_execute("BEGIN; UPDATE many SET wide = 'x' WHERE n = 2000").await.unwrap();
    let cause = failed(engine.call(&scope(), &key("k"), ReadsOn).await);
    assert!(matches!(cause, FailureCause::Misuse { .. }), "{cause:?}");
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(finished(engine.call(&scope(), &key("k"), ReadsOn).await).reply.bytes(), b"all");
}

/// Writes a text of so many characters, none of which is ASCII.
#[derive(Serialize, Deserialize)]
struct Writes(usize);

diesel::table! { texts (id) { id -> BigInt, text -> Text, } }

#[atomic_phases(name = "writes", version = 1)]
impl Writes {
    #[phase]
    async fn wrote(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        use diesel::ExpressionMethods;
        let row = (texts::id.eq(self.0 as i64), texts::text.eq("\u{e4}".repeat(self.0)));
        diesel::insert_into(texts::table).values(row).execute(tx).await?;
        Ok(Reply::new(204))
    }
}

/// Y44, Y12: a server that would interpret a text in another character set, and one that closes the connection
/// without an error if a command is too large. The store does not send such a command, and its error says why.
#[tokio::test(flavor = "multi_thread")]
async fn g8_a_text_is_what_it_was_and_what_is_too_large_is_refused() {
    let start = || {
        let server = Server::start(&["--max-allowed-packet=1M", "--init-connect=SET NAMES latin1"]);
        server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
        let url = server.new_database().replace("root@", "app@");
        (server, url)
    };
    let (_server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    // The server does not run `init_connect` for a user with all privileges.
    my(&url)
        .await
        .batch_execute("CREATE TABLE texts (id BIGINT, text LONGTEXT) CHARACTER SET utf8mb4")
        .await
        .unwrap();
    let store = open_my(&url, 2).await;
    store.migrate().await.unwrap();
    let engine = Engine::builder(store.clone()).register::<Writes>().build().unwrap();
    finished(engine.call(&scope(), &key("fits"), Writes(7)).await);
    assert_eq!(store.number("SELECT CHAR_LENGTH(text) FROM texts").await, 7);
    match failed(engine.call(&scope(), &key("large"), Writes(2_000_000)).await) {
        FailureCause::Database { kind, .. } => {
            assert_eq!(kind, "larger than max_allowed_packet, the server's or the URL's");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.number("SELECT count(*) FROM texts").await, 1);
}

/// Y8: a transaction that an application leaves open on a connection of the pool keeps no lock.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_transaction_that_was_left_open_keeps_no_lock() {
    let db = Mysql::fresh().await;
    finished(engine(&db, &App::default()).call(&scope(), &key("k"), book(20)).await);
    for left in ["BEGIN", "SET autocommit = 0"] {
        let mut conn = db.connection().await.unwrap();
        conn.batch_execute(left).await.unwrap();
        conn.batch_execute("UPDATE rides SET amount = 7").await.unwrap();
        drop(conn);
        // The server's own bound for a lock is 50 s.
        let free = db.sql("UPDATE rides SET amount = 20");
        tokio::time::timeout(Duration::from_secs(30), free).await.expect("a lock");
        assert_eq!(db.number("SELECT amount FROM rides").await, 20);
    }
}

/// The number of pauses that the engine sees before it calls.
async fn paused<S: Store>(store: &S) -> usize {
    store.paused_phases().await.unwrap().len()
}

/// Y43: limits that an administrator sets against mistakes truncate none of the engine's lists and refuse none of
/// its statements. A pause that the engine does not see would be a call that it makes.
#[tokio::test(flavor = "multi_thread")]
async fn g2_g17_a_server_that_limits_its_sessions_limits_no_worker() {
    let start = || {
        let limits = "--init-connect=SET SESSION sql_safe_updates = 1, sql_select_limit = 1, \
            sql_big_selects = 0, max_join_size = 1";
        let server = Server::start(&[limits]);
        server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
        let url = server.new_database();
        (server, url)
    };
    let (_server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    // The init_connect is not for those who may do everything.
    let db = prepare_my(&url).await;
    let store = open_my(&url.replace("root@", "app@"), 4).await;
    let app = App::default();
    let engine = engine(&store, &app);
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    for (definition, phase) in [("book", "charged"), ("notify", "notified")] {
        ops.pause(definition, phase, None, "the bank is closed").await.unwrap();
    }
    assert_eq!(paused(&store).await, 2);
    for pause in ops.pauses().await.unwrap() {
        ops.unpause(&pause.definition, &pause.phase, &pause.version, "it is open").await.unwrap();
    }
    assert_eq!(paused(&store).await, 0);

    for name in ["one", "two", "three"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config());
    for _ in 0..4 {
        db.let_time_pass().await;
        enqueuer.run_once().await.unwrap();
    }
    assert_eq!(inbox.take().len(), 6, "two of each");
    engine.erase(&scope(), &key("one")).await.unwrap();
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    assert_eq!(Reaper::new(&store, config()).run_once().await.unwrap(), 3);
}

/// Runs this in its session, and answers without a body.
#[derive(Clone, Serialize, Deserialize)]
struct Strays(String);

#[atomic_phases(name = "strays", version = 1)]
impl Strays {
    #[phase]
    async fn strayed(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "strayed").await?;
        tx.batch_execute(&self.0).await?;
        Ok(Reply::new(204))
    }
}

/// Adds this statement to its batch.
#[derive(Clone, Serialize, Deserialize)]
struct StraysInABatch(String);

#[atomic_phases(name = "strays_in_a_batch", version = 1)]
impl StraysInABatch {
    #[phase]
    async fn strayed(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
        batch.add(sql_query(self.0.clone()));
        Ok(Reply::new(204))
    }
}

/// Y17: nor does a statement of a batch, sent in a block or by itself.
#[tokio::test(flavor = "multi_thread")]
async fn g16_what_a_batch_does_to_its_session_ends_with_it() {
    let db = Mysql::fresh().await;
    let (with, without) =
        (open_my(db.__url(), 1).await, open_my_without_blocks(db.__url(), 1).await);
    for (name, store) in [("with-blocks", with), ("without", without)] {
        let engine = engine_with(&store, &App::default(), |b| b.register::<StraysInABatch>());
        let takes = StraysInABatch("SELECT GET_LOCK(char(109), 0)".to_owned());
        finished(engine.call(&scope(), &key(name), takes).await);
        // The store closes the session, and the server frees the lock.
        until(async || db.number("SELECT IS_FREE_LOCK('m')").await == 1).await;
    }
}

/// An `INSERT IGNORE` of a row that is there generates no number, and leaves the last one of the session, which is another
/// tenant's.
#[tokio::test(flavor = "multi_thread")]
async fn g16_the_last_generated_number_of_a_phase_is_not_the_next_ones() {
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE accounts (id BIGINT AUTO_INCREMENT PRIMARY KEY, name INT UNIQUE); \
         CREATE TABLE charges (account BIGINT)",
    )
    .await;
    const GENERATES: &str = "INSERT INTO accounts (name) VALUES (NULL)";
    const USES: &str = "INSERT INTO charges VALUES (LAST_INSERT_ID())";
    let blocks = open_my(db.__url(), 1).await;
    let texts = open_my_without_blocks(db.__url(), 1).await;
    for (form, store) in [("blocks", blocks), ("texts", texts)] {
        let engine = engine_with(&store, &App::default(), |b| {
            b.register::<Strays>().register::<StraysInABatch>()
        });
        let named = |nth: &str| key(&format!("{form}-{nth}"));
        finished(engine.call(&scope(), &named("1"), Strays(GENERATES.to_owned())).await);
        finished(engine.call(&scope(), &named("2"), Strays(USES.to_owned())).await);
        finished(engine.call(&scope(), &named("3"), Strays(GENERATES.to_owned())).await);
        finished(engine.call(&scope(), &named("4"), StraysInABatch(USES.to_owned())).await);
        finished(engine.call(&scope(), &named("5"), StraysInABatch(GENERATES.to_owned())).await);
        finished(engine.call(&scope(), &named("6"), Strays(USES.to_owned())).await);
        // And the application's.
        let mut conn = store.connection().await.unwrap();
        conn.batch_execute(GENERATES).await.unwrap();
        drop(conn);
        finished(engine.call(&scope(), &named("7"), Strays(USES.to_owned())).await);
        assert_eq!(db.number("SELECT COUNT(*) FROM charges").await, 4, "{form}");
        assert_eq!(db.number("SELECT COUNT(*) FROM charges WHERE account <> 0").await, 0, "{form}");
        db.sql("DELETE FROM charges").await;
    }
}

/// Y22: where a trigger has set `completion_type`, `COMMIT` and `ROLLBACK` end their session. Those
/// of the engine do not: the connection goes on behind a phase, behind one that has failed, and
/// behind the application.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_trigger_that_lets_a_commit_disconnect_ends_no_session() {
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE releases (n INT PRIMARY KEY); \
         CREATE TRIGGER sets AFTER INSERT ON releases FOR EACH ROW \
         SET SESSION completion_type = 'RELEASE'",
    )
    .await;
    let mut conn = my(db.__url()).await;
    conn.batch_execute("INSERT INTO releases VALUES (0)").await.unwrap();
    conn.batch_execute("BEGIN").await.unwrap();
    let _ = conn.batch_execute("COMMIT").await;
    let goes_on = conn.batch_execute("DO 0").await.is_ok();
    assert!(!goes_on, "the server keeps the session, so this proves nothing");

    let blocks = open_my(db.__url(), 1).await;
    let texts = open_my_without_blocks(db.__url(), 1).await;
    for (form, store) in [("blocks", blocks), ("texts", texts)] {
        db.sql("DELETE FROM releases").await;
        let engine = engine_with(&store, &App::default(), |b| b.register::<Strays>());
        let session = async || number_of(&mut store.connection().await.unwrap()).await;
        let inserts = async |values: &str| {
            let inserts = Strays(format!("INSERT INTO releases VALUES {values}"));
            engine.call(&scope(), &key(&format!("{form}-{}", values.len())), inserts).await
        };
        let before = session().await;
        finished(inserts("(1)").await);
        assert_eq!(session().await, before, "{form}: behind a commit");
        // The first of the two rows has set it.
        failed(inserts("(2), (2)").await);
        assert_eq!(session().await, before, "{form}: behind a rollback");
        let mut conn = store.connection().await.unwrap();
        conn.batch_execute("INSERT INTO releases VALUES (3)").await.unwrap();
        drop(conn);
        assert_eq!(session().await, before, "{form}: behind the application");
    }
}

/// Y17: what a phase or the application leaves in a session besides rows does not affect the engine's own
/// statements, and no other user of the connection meets it.
#[tokio::test(flavor = "multi_thread")]
async fn g8_g10_what_is_done_to_a_session_ends_with_its_phase() {
    let db = Mysql::fresh().await;
    let store = open_my(db.__url(), 1).await;
    let app = App::default();
    let engine = engine_with(&store, &app, |b| b.register::<Strays>());
    for (at, does) in [
        "USE information_schema",
        "SET SESSION timestamp = 1000000000",
        match mysqld() {
            None => "SET SESSION time_zone = '-11:00', sql_mode = 'EMPTY_STRING_IS_NULL'",
            Some(_) => "SET SESSION time_zone = '-11:00', sql_mode = 'ANSI'",
        },
        "SET SESSION sql_select_limit = 0",
        "CREATE TEMPORARY TABLE mine (n INT)",
        "SELECT GET_LOCK('mine', 0)",
    ]
    .into_iter()
    .enumerate()
    {
        for turn in ["one", "two"] {
            let name = key(&format!("{turn}{at}"));
            let request = Strays(does.to_owned());
            let done = finished(engine.call(&scope(), &name, request.clone()).await);
            assert_eq!((done.reply.status(), done.replayed), (204, false), "{does}");
            let again = finished(engine.call(&scope(), &name, request).await);
            assert_eq!((again.reply, again.replayed), (done.reply, true), "{does}");
            finished(engine.call(&scope(), &key(&format!("beside-{turn}{at}")), book(20)).await);
        }
        let mut conn = store.connection().await.unwrap();
        conn.batch_execute(does).await.unwrap();
        drop(conn);
        finished(engine.call(&scope(), &key(&format!("behind{at}")), book(20)).await);
        let free = "SELECT IS_FREE_LOCK('mine')";
        until(async || db.number(free).await == 1).await;
    }
    let odd = "SELECT count(*) FROM atomic_phases_keys WHERE advanced_at < created_at \
        OR created_at < (UNIX_TIMESTAMP() - 3600) * 1000 OR status <> 'completed'";
    assert_eq!(db.number(odd).await, 0);

    let locks = Strays("LOCK TABLES rides READ".to_owned());
    let cause = failed(engine.call(&scope(), &key("locks"), locks).await);
    assert!(matches!(cause, FailureCause::Misuse { .. }), "{cause:?}");
    let free = db.sql("UPDATE rides SET amount = 7");
    tokio::time::timeout(Duration::from_secs(30), free).await.expect("the table is free");
    finished(engine.call(&scope(), &key("last"), book(20)).await);
}

/// A transaction of the application's, and what it has rolled back, leaves the connection to the next one: a new one costs
/// a handshake, and each statement is prepared there again. One that is left open does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_the_application_keeps_its_connection() {
    let db = Mysql::fresh().await;
    let store = open_my(db.__url(), 1).await;
    let session = async || {
        let mut conn = store.connection().await.unwrap();
        number_of(&mut conn).await
    };
    let first = session().await;
    for fails in [false, true] {
        let mut handle = store.connection().await.unwrap();
        let conn: &mut MysqlConn = &mut handle;
        let ended = conn.transaction::<(), Error, _>(async |conn: &mut MysqlConn| {
            sql_query("INSERT INTO steps VALUES ('r', 'kept')").execute(conn).await?;
            // As diesel does for a transaction in a transaction.
            conn.batch_execute("SAVEPOINT nested").await?;
            sql_query("INSERT INTO steps VALUES ('r', 'undone')").execute(conn).await?;
            conn.batch_execute("ROLLBACK TO SAVEPOINT nested").await?;
            if fails { Err(Error::RollbackTransaction) } else { Ok(()) }
        });
        assert_eq!(ended.await.is_err(), fails);
        drop(handle);
        assert_eq!(session().await, first, "fails: {fails}");
        assert_eq!(store.text("SELECT GROUP_CONCAT(step) FROM steps").await, "kept");
    }
    let mut conn = store.connection().await.unwrap();
    conn.batch_execute("START TRANSACTION").await.unwrap();
    conn.batch_execute("COMMIT").await.unwrap();
    drop(conn);
    assert_eq!(session().await, first);
    let mut conn = store.connection().await.unwrap();
    conn.batch_execute("BEGIN").await.unwrap();
    drop(conn);
    assert_ne!(session().await, first, "a transaction was left open");
}

/// The application gives a statement up, and the next one is refused by the client, because it is too large. The first
/// answer is still under way, and is not read as that of a later statement.
#[tokio::test(flavor = "multi_thread")]
async fn g13_a_statement_that_is_too_large_hides_no_answer_that_is_under_way() {
    let db = Mysql::fresh().await;
    let store = open_my(&format!("{}?max_allowed_packet=65536", db.__url()), 1).await;
    let mut conn = store.connection().await.unwrap();
    let first = number_of(&mut conn).await;
    // It is given up before it ends, on a busy machine too. A pool would wait so long for its answer.
    let given_up = sql_query("SELECT SLEEP(4)").execute(&mut *conn);
    assert!(tokio::time::timeout(Duration::from_millis(50), given_up).await.is_err());
    let large = format!("SELECT '{}'", "x".repeat(65536));
    assert!(conn.batch_execute(&large).await.is_err());
    drop(conn);
    assert_eq!(store.number("SELECT 7").await, 7);
    let mut conn = store.connection().await.unwrap();
    assert_ne!(number_of(&mut conn).await, first, "the connection was closed");
}
