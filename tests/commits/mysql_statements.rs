//! What statements meet on a MySQL and MariaDB server: duplicates that end in a deadlock or keep a lock, the order of
//! assignments, locks that are waited for, and idle transactions.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::store::Mysql;
use atomic_phases::{Engine, Outcome, PhaseError, PhaseResult, Reply, Tx, atomic_phases};
use diesel_async::SimpleAsyncConnection;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};

use super::mysql_faults::on_own_server;
use super::mysql_kills::number_of;
use crate::support::db::{lock_waits, my, open_my, open_my_without_blocks};
use crate::support::mariadb::mysqld;
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

/// Y26: a reservation that has lost a deadlock is tried again, and its phase does not run again for it.
#[tokio::test(flavor = "multi_thread")]
async fn g10_a_reservation_that_loses_a_deadlock_is_tried_again() {
    let db = Mysql::fresh().await;
    // A row of this engine stays when its statement is rolled back.
    db.sql("CREATE TABLE tries (n INT) ENGINE = MyISAM").await;
    db.sql(
        "CREATE TRIGGER loses BEFORE INSERT ON atomic_phases_keys FOR EACH ROW BEGIN \
         INSERT INTO tries VALUES (1); \
         IF (SELECT count(*) FROM tries) < 3 THEN \
         SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'lost'; END IF; END",
    )
    .await;
    for (form, store) in with_one_connection(&db).await {
        for batch in [false, true] {
            db.sql("DELETE FROM tries").await;
            let app = App::default();
            let engine = engine(&store, &app);
            let name = key(&format!("{form}-{batch}"));
            let told = match batch {
                false => engine.call(&scope(), &name, book(20)).await,
                true => {
                    let parcel = Form::SingleStatement.parcel(Trouble::None);
                    engine.call(&scope(), &name, parcel).await
                }
            };
            assert!(!finished(told).replayed, "{form}, batch: {batch}");
            let tries = db.number("SELECT count(*) FROM tries").await;
            assert_eq!((tries, app.bodies()[0]), (3, 1), "{form}, batch: {batch}");
        }
    }
}

/// Stores with one connection each, which the next user of the pool gets with all that it has locked.
async fn with_one_connection(db: &Mysql) -> [(&'static str, Mysql); 2] {
    let url = db.__url();
    [("blocks", open_my(url, 1).await), ("texts", open_my_without_blocks(url, 1).await)]
}

/// Whether another session may write this now. It waits for a lock for a second, the least that a MySQL knows.
pub(super) async fn is_free(db: &Mysql, write: &str) -> bool {
    let mut other = my(db.__url()).await;
    other.batch_execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
    let Err(error) = other.batch_execute(write).await else { return true };
    let error = error.to_string();
    assert!(error.starts_with("1205: "), "{error}");
    false
}

/// Y27: a reservation whose key is there has been rolled back when its call is answered. It keeps no lock of the key's row,
/// and its connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_reservation_of_a_key_that_is_there_keeps_no_lock_of_its_row() {
    let db = Mysql::fresh().await;
    for (form, store) in with_one_connection(&db).await {
        let engine = engine(&store, &App::default());
        let session = async || number_of(&mut store.connection().await.unwrap()).await;
        for batch in [false, true] {
            let (what, name) = (format!("{form}, batch: {batch}"), key(&format!("{form}-{batch}")));
            let call = || match batch {
                false => engine.call(&scope(), &name, book(20)).expect_new().into_future(),
                true => {
                    let parcel = Form::SingleStatement.parcel(Trouble::None);
                    engine.call(&scope(), &name, parcel).expect_new().into_future()
                }
            };
            assert!(!finished(call().await).replayed, "{what}");
            let before = session().await;
            assert!(finished(call().await).replayed, "{what}");
            let update = "UPDATE atomic_phases_keys SET attempts = attempts";
            assert!(is_free(&db, update).await, "{what}: the row is locked");
            assert_eq!(session().await, before, "{what}: the connection was closed");
        }
    }
}

/// What a phase does about the error.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Then {
    Returns,
    Rejects,
    /// To the savepoint of a nested transaction, in which the statement was.
    RollsBack,
}

/// Takes a name that is taken.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct TakesAName(Then);

#[atomic_phases(name = "takes_a_name", version = 1)]
impl TakesAName {
    #[phase]
    async fn took(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        match self.0 {
            Then::Returns => drop(Mysql::insert_unique(tx, "taken").await?),
            Then::Rejects => {
                assert!(Mysql::insert_unique(tx, "taken").await.is_err());
                return Err(PhaseError::reject(Reply::text(409, "taken")));
            }
            Then::RollsBack => assert!(Mysql::insert_unique_nested(tx, "taken").await.is_err()),
        }
        Ok(Reply::new(204))
    }
}

/// Y27: an `INSERT` that failed (1062) keeps a lock of the row that was there, until its transaction ends. When a phase has
/// ended, however it did, others may write that row.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_row_whose_key_a_phase_has_violated_is_free_when_the_phase_has_ended() {
    const UPDATE: &str = "UPDATE unique_things SET name = name";
    let db = Mysql::fresh().await;
    db.sql("INSERT INTO unique_things VALUES ('taken')").await;
    let mut open = my(db.__url()).await;
    let violates = "BEGIN; INSERT INTO unique_things VALUES ('taken')";
    assert!(open.batch_execute(violates).await.is_err());
    assert!(!is_free(&db, UPDATE).await, "the server keeps no lock, so this proves nothing");
    open.batch_execute("ROLLBACK").await.unwrap();

    for (form, store) in with_one_connection(&db).await {
        let engine = engine_with(&store, &App::default(), |b| b.register::<TakesAName>());
        let session = async || number_of(&mut store.connection().await.unwrap()).await;
        let name = |what: &str| key(&format!("{form}-{what}"));
        let takes =
            |what: &str, then| engine.call(&scope(), &name(what), TakesAName(then)).into_future();
        let parcel = |what: &str, trouble| {
            engine.call(&scope(), &name(what), Form::OneByOne.parcel(trouble)).into_future()
        };
        for (what, status, call) in [
            ("returned", None, takes("returned", Then::Returns)),
            ("rejected", Some(409), takes("rejected", Then::Rejects)),
            ("rolled-back", Some(204), takes("rolled-back", Then::RollsBack)),
            ("first-batch", None, parcel("first-batch", Trouble::SwallowError)),
            ("later-batch", None, parcel("later-batch", Trouble::NestedFailure)),
        ] {
            let before = session().await;
            let told = match call.await {
                Ok(Outcome::Finished(done)) => Some(done.reply.status()),
                Ok(Outcome::Failed { .. }) => None,
                other => panic!("{form}, {what}: {other:?}"),
            };
            assert_eq!(told, status, "{form}, {what}");
            assert!(is_free(&db, UPDATE).await, "{form}, {what}: the row is locked");
            assert_eq!(session().await, before, "{form}, {what}: the connection was closed");
        }
    }
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
