//! What happens to a phase's transaction on MySQL and MariaDB while the phase is in the middle of
//! it: a switch-over, a record that another transaction changes or is about to, a takeover, a call
//! that is dropped, and a server that ends it for its idleness. And what it keeps from others
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::engine::CallError;
use atomic_phases::store::Mysql;
use atomic_phases::worker::Reaper;
use atomic_phases::{Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use diesel::sql_query;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};

use super::mysql_statements::is_free;
use crate::support::db::{lock_waits, my, open_my, open_my_without_blocks, prepare_my, sessions};
use crate::support::mariadb::{Server, mysqld};
use crate::support::work::config;
use crate::support::*;

/// Stops the first run of a phase in its middle.
#[derive(Clone)]
struct Middle {
    runs: Arc<AtomicU32>,
    reached: mpsc::UnboundedSender<i64>,
    go_on: Arc<Semaphore>,
}

impl Middle {
    fn new() -> (Self, mpsc::UnboundedReceiver<i64>) {
        let (reached, is_reached) = mpsc::unbounded_channel();
        (Self { runs: Arc::default(), reached, go_on: Arc::new(Semaphore::new(0)) }, is_reached)
    }

    /// The phase is there, in this session.
    async fn reached(&self, session: i64) {
        if self.runs.fetch_add(1, Ordering::SeqCst) == 0 {
            let _ = self.reached.send(session);
            self.go_on.acquire().await.expect("open").forget();
        }
    }

    fn go_on(&self) {
        self.go_on.add_permits(1);
    }

    fn runs(&self) -> u32 {
        AtomicU32::load(&self.runs, Ordering::SeqCst)
    }
}

/// Writes in front of the middle, and perhaps behind it.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Writes {
    goes_on: bool,
}

#[atomic_phases(name = "writes", version = 1, app = Middle)]
impl Writes {
    #[phase]
    async fn wrote(&self, tx: &mut Tx<'_, Mysql>, app: &Middle) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "before").await?;
        app.reached(0).await;
        if self.goes_on {
            Mysql::insert_step(tx, "r", "behind").await?;
        }
        Ok(Reply::new(204))
    }
}

/// Y35: a server that becomes read only in the middle of a phase refuses what is left of it. Nothing of it is durable,
/// and it runs where the server may write again.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_phase_in_whose_middle_the_server_becomes_read_only_leaves_nothing() {
    let start = || {
        let server = Server::start(&[]);
        let url = server.new_database();
        // With more privileges it could write to such a server.
        server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
        (server, url)
    };
    let (server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    let db = prepare_my(&url).await;
    let app = url.replace("root@", "app@");
    let stores = [open_my(&app, 4).await, open_my_without_blocks(&app, 4).await];
    for (store, form) in stores.iter().zip(["blocks", "texts"]) {
        for goes_on in [false, true] {
            let what = format!("{form}-{goes_on}");
            db.sql("DELETE FROM steps").await;
            let (middle, mut is_reached) = Middle::new();
            let builder = Engine::builder(store.clone()).app(middle.clone()).register::<Writes>();
            let engine = builder.build().unwrap();
            let call = engine.call(&scope(), &key(&what), Writes { goes_on });
            let call = tokio::spawn(call.into_future());
            is_reached.recv().await.unwrap();
            server.ask("SET GLOBAL read_only = 1");
            middle.go_on();
            let told = call.await.unwrap();
            assert!(
                matches!(told, Err(CallError::Unavailable(_)) | Ok(Outcome::Failed { .. })),
                "{what}: {told:?}"
            );
            assert_eq!(db.number("SELECT count(*) FROM steps").await, 0, "{what}: {told:?}");
            server.ask("SET GLOBAL read_only = 0");
            let told = engine.call(&scope(), &key(&what), Writes { goes_on }).await;
            assert!(!finished(told).replayed, "{what}");
            let steps = db.number("SELECT count(*) FROM steps").await;
            assert_eq!(steps, 1 + i64::from(goes_on), "{what}");
        }
    }
}

/// Reads a value in front of the middle, and writes it behind.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct ReadsAndWrites {
    swallows: bool,
}

#[atomic_phases(name = "reads_and_writes", version = 1, app = Middle)]
impl ReadsAndWrites {
    #[phase(isolation = "repeatable_read")]
    async fn wrote(&self, tx: &mut Tx<'_, Mysql>, app: &Middle) -> PhaseResult<Reply> {
        tx.batch_execute("SET SESSION innodb_snapshot_isolation = ON").await?;
        let n = diesel::dsl::sql::<BigInt>("SELECT CAST(n AS SIGNED) FROM pair WHERE id = 1");
        let n: i64 = n.get_result(tx).await?;
        app.reached(n).await;
        let update = format!("UPDATE pair SET n = {n} + 1 WHERE id = 1");
        let updated = sql_query(update).execute(tx).await;
        if !self.swallows {
            updated?;
        }
        let _ = Mysql::insert_step(tx, "r", "behind").await;
        Ok(Reply::new(204))
    }
}

/// Y14, Y31: with `innodb_snapshot_isolation`, a record that was changed since the phase has read it fails with 1020,
/// and the transaction is undone. The phase runs again, and no update is lost.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_record_that_was_changed_in_the_middle_undoes_the_phase_and_it_runs_again() {
    if mysqld().is_some() {
        // It has no such setting.
        return;
    }
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE pair (id INT PRIMARY KEY, n INT NOT NULL); INSERT INTO pair VALUES (1, 0)",
    )
    .await;
    for swallows in [false, true] {
        db.sql("DELETE FROM steps; UPDATE pair SET n = 0").await;
        let (middle, mut is_reached) = Middle::new();
        let builder = Engine::builder(db.clone()).app(middle.clone()).register::<ReadsAndWrites>();
        let engine = builder.build().unwrap();
        let name = key(&format!("swallows-{swallows}"));
        let call = engine.call(&scope(), &name, ReadsAndWrites { swallows });
        let call = tokio::spawn(call.into_future());
        assert_eq!(is_reached.recv().await, Some(0));
        db.sql("UPDATE pair SET n = 10 WHERE id = 1").await;
        middle.go_on();
        assert_eq!(finished(call.await.unwrap()).reply.status(), 204);
        assert_eq!(middle.runs(), 2, "swallows: {swallows}");
        assert_eq!(db.number("SELECT n FROM pair").await, 11, "swallows: {swallows}");
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 1, "swallows: {swallows}");
    }
}

/// Adds this to a value that it has read in front of the middle.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Adds(i64);

#[atomic_phases(name = "adds", version = 1, app = Middle)]
impl Adds {
    #[phase(isolation = "serializable")]
    async fn added(&self, tx: &mut Tx<'_, Mysql>, app: &Middle) -> PhaseResult<Reply> {
        let n = diesel::dsl::sql::<BigInt>("SELECT CAST(n AS SIGNED) FROM pair WHERE id = 1");
        let n: i64 = n.get_result(tx).await?;
        app.reached(n).await;
        let update = format!("UPDATE pair SET n = {} WHERE id = 1", n + self.0);
        sql_query(update).execute(tx).await?;
        Ok(Reply::new(204))
    }
}

/// Y32: two serializable phases have read the same row, and each of them writes it. The server undoes one of them (1213),
/// which runs again, and no update is lost.
#[tokio::test(flavor = "multi_thread")]
async fn g4_of_two_serializable_phases_that_write_what_both_have_read_one_runs_again() {
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE pair (id INT PRIMARY KEY, n INT NOT NULL); INSERT INTO pair VALUES (1, 0)",
    )
    .await;
    let stores = [db.clone(), open_my_without_blocks(db.__url(), 4).await];
    for (store, form) in stores.iter().zip(["blocks", "texts"]) {
        db.sql("UPDATE pair SET n = 0").await;
        let (mut both, mut calls) = (Vec::new(), Vec::new());
        for adds in [1, 10] {
            let (middle, mut is_reached) = Middle::new();
            let builder = Engine::builder(store.clone()).app(middle.clone()).register::<Adds>();
            let engine = builder.build().unwrap();
            let call = engine.call(&scope(), &key(&format!("{form}-{adds}")), Adds(adds));
            calls.push(tokio::spawn(call.into_future()));
            assert_eq!(is_reached.recv().await, Some(0), "{form}");
            both.push((engine, middle));
        }
        both.iter().for_each(|(_, middle)| middle.go_on());
        for call in calls {
            assert_eq!(finished(call.await.unwrap()).reply.status(), 204, "{form}");
        }
        assert_eq!(db.number("SELECT n FROM pair").await, 11, "{form}: an update is lost");
        let runs: u32 = both.iter().map(|(_, middle)| middle.runs()).sum();
        assert_eq!(runs, 3, "{form}");
    }
}

/// Y8: the task of a call is dropped between two statements of a phase. Its connection is closed,
/// and not given back with the transaction: what it has locked is free.
#[tokio::test(flavor = "multi_thread")]
async fn g13_a_call_that_is_dropped_between_two_statements_keeps_no_lock() {
    const UPDATE: &str = "UPDATE pair SET n = n WHERE id = 1";
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE pair (id INT PRIMARY KEY, n INT NOT NULL); INSERT INTO pair VALUES (1, 0)",
    )
    .await;
    let stores = [db.clone(), open_my_without_blocks(db.__url(), 4).await];
    for (store, form) in stores.iter().zip(["blocks", "texts"]) {
        let (middle, mut is_reached) = Middle::new();
        let builder = Engine::builder(store.clone()).app(middle).register::<Adds>();
        let engine = builder.build().unwrap();
        let call = engine.call(&scope(), &key(form), Adds(1));
        let call = tokio::spawn(call.__call_in_place());
        assert_eq!(is_reached.recv().await, Some(0), "{form}");
        assert!(!is_free(&db, UPDATE).await, "{form}: it locks nothing, so this proves nothing");
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled(), "{form}");
        until(async || is_free(&db, UPDATE).await).await;
    }
}

/// Its second phase keeps what it saw at its beginning.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct KeepsItsSnapshot {
    stops_in_front: bool,
}

#[derive(Serialize, Deserialize)]
struct Begun;

#[atomic_phases(name = "keeps_its_snapshot", version = 1, app = Middle)]
impl KeepsItsSnapshot {
    #[phase(commit)]
    async fn begun(&self, tx: &mut Tx<'_, Mysql>, app: &Middle) -> PhaseResult<Begun> {
        Mysql::insert_step(tx, "r", "begun").await?;
        if self.stops_in_front {
            app.reached(0).await;
        }
        Ok(Begun)
    }

    #[phase(isolation = "repeatable_read")]
    async fn answered(&self, tx: &mut Tx<'_, Mysql>, app: &Middle) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "answered").await?;
        app.reached(0).await;
        Ok(Reply::new(204))
    }
}

/// Y31: a phase that keeps its snapshot reads its key's row as it is now, and locks it: it does not
/// begin behind a takeover, and while it runs, there is none.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_phase_that_keeps_its_snapshot_begins_with_the_present_row_and_locks_it() {
    let db = Mysql::fresh().await;
    let stores = [db.clone(), open_my_without_blocks(db.__url(), 4).await];
    for (store, form) in stores.iter().zip(["blocks", "texts"]) {
        for stops_in_front in [true, false] {
            let what = format!("{form}-{stops_in_front}");
            db.sql("DELETE FROM steps").await;
            // By its whole key: such a search waits for a row that is not committed yet.
            let takes_over = format!(
                "UPDATE atomic_phases_keys FORCE INDEX (PRIMARY) \
                 SET lease_token = lease_token + 1 \
                 WHERE scope = 'tenant-1' AND idempotency_key = '{what}'"
            );
            let (middle, mut is_reached) = Middle::new();
            let builder = Engine::builder(store.clone()).app(middle.clone());
            let engine = builder.register::<KeepsItsSnapshot>().build().unwrap();
            let call = engine.call(&scope(), &key(&what), KeepsItsSnapshot { stops_in_front });
            let call = tokio::spawn(call.into_future());
            assert_eq!(is_reached.recv().await, Some(0), "{what}");
            if stops_in_front {
                let mut other = my(db.__url()).await;
                let other = tokio::spawn(async move { other.batch_execute(&takes_over).await });
                // It is granted the lock by the commit of the first phase.
                until(async || lock_waits(&db).await == 1).await;
                middle.go_on();
                other.await.unwrap().unwrap();
                let told = call.await.unwrap();
                assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{what}: {told:?}");
            } else {
                assert!(!is_free(&db, &takes_over).await, "{what}: its row is not locked");
                middle.go_on();
                finished(call.await.unwrap());
            }
            assert_eq!(middle.runs(), 1, "{what}");
            let steps = db.number("SELECT count(*) FROM steps").await;
            assert_eq!(steps, 1 + i64::from(!stops_in_front), "{what}");
        }
    }
}

/// Y30: where a value was deleted and not purged yet, a transaction that inserts it again into a
/// unique secondary index locks the gaps around it. The engine's tables have no such index: a key
/// that the reaper has deleted is created again, and delays none of its neighbours meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_key_that_is_created_again_behind_the_reaper_delays_no_neighbour() {
    let db = Mysql::fresh().await;
    let beside = engine(&db, &App::default());
    finished(beside.call(&scope(), &key("k"), book(20)).await);
    // It may read what is deleted from here on, so the server does not purge that.
    let mut reader = my(db.__url()).await;
    let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
        START TRANSACTION WITH CONSISTENT SNAPSHOT";
    reader.batch_execute(snapshot).await.unwrap();
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    assert_eq!(Reaper::new(&db, config()).run_once().await.unwrap(), 1);
    let (middle, mut is_reached) = Middle::new();
    let builder = Engine::builder(db.clone()).app(middle.clone()).register::<Writes>();
    let again = builder.build().unwrap();
    let call = again.call(&scope(), &key("k"), Writes { goes_on: true });
    let call = tokio::spawn(call.into_future());
    is_reached.recv().await.unwrap();
    for neighbour in ["j", "l"] {
        finished(beside.call(&scope(), &key(neighbour), book(20)).await);
    }
    middle.go_on();
    assert!(!finished(call.await.unwrap()).replayed);
    reader.batch_execute("ROLLBACK").await.unwrap();
}

/// Is idle in its middle for longer than the server lets it be.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Idles {
    goes_on: bool,
}

#[atomic_phases(name = "idles", version = 1, app = Middle)]
impl Idles {
    #[phase]
    async fn idled(&self, tx: &mut Tx<'_, Mysql>, app: &Middle) -> PhaseResult<Reply> {
        let setting = if mysqld().is_some() { "wait_timeout" } else { "idle_transaction_timeout" };
        tx.batch_execute(&format!("SET SESSION {setting} = 1")).await?;
        Mysql::insert_step(tx, "r", "before").await?;
        let session = diesel::dsl::sql::<BigInt>("SELECT CAST(CONNECTION_ID() AS SIGNED)");
        let session: i64 = session.get_result(tx).await?;
        app.reached(session).await;
        if self.goes_on {
            Mysql::insert_step(tx, "r", "behind").await?;
        }
        Ok(Reply::new(204))
    }
}

/// Y37: a transaction that the server has ended because it was idle has left nothing, and the phase runs again.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_phase_whose_transaction_was_ended_for_its_idleness_runs_again() {
    for goes_on in [false, true] {
        let db = Mysql::fresh().await;
        let (middle, mut is_reached) = Middle::new();
        let builder = Engine::builder(db.clone()).app(middle.clone()).register::<Idles>();
        let engine = builder.build().unwrap();
        let call = engine.call(&scope(), &key("k"), Idles { goes_on });
        let call = tokio::spawn(call.into_future());
        let session = is_reached.recv().await.unwrap();
        let lives = format!("SELECT count(*) FROM {} WHERE id = {session}", sessions());
        until(async || db.number(&lives).await == 0).await;
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
        middle.go_on();
        let again = tokio::time::timeout(Duration::from_secs(30), call).await.expect("an answer");
        assert_eq!(finished(again.unwrap()).reply.status(), 204);
        assert_eq!(middle.runs(), 2);
        let steps = db.number("SELECT count(*) FROM steps").await;
        assert_eq!(steps, 1 + i64::from(goes_on), "of the second run");
    }
}
