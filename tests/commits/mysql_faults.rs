//! A commit on MySQL and MariaDB whose answer is lost, or whose session, statement or server is killed.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::Outcome;
use atomic_phases::engine::CallError;
use atomic_phases::store::Mysql;
use diesel_async::SimpleAsyncConnection;

use super::mysql_kills::number_of;
use crate::support::db::{my, open_my, open_my_without_blocks, prepare_my, sessions};
use crate::support::mariadb::{Server, mysqld};
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::proxy::Cut;
use crate::support::work::dies_in_its_call;
use crate::support::*;

/// A passage of the text that ends a phase's transaction, and of no other.
const COMMIT: &str = "COMMIT AND";
/// A passage of a guarded write that has a transaction of its own.
const WRITE: &str = "^UPDATE atomic_phases_keys FORCE INDEX (PRIMARY) SET advanced_at";

/// A prepared database, and a store that reaches it through a proxy.
async fn proxied() -> (Mysql, Mysql, MysqlProxy) {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let store = open_my(&proxy.url(db.__url()), 8).await;
    (db, store, proxy)
}

/// The same, where the store sends what it would send to a MySQL.
async fn proxied_without_blocks() -> (Mysql, Mysql, MysqlProxy) {
    let (db, _, proxy) = proxied().await;
    let store = open_my_without_blocks(&proxy.url(db.__url()), 8).await;
    (db, store, proxy)
}

/// A server of the test's own, with a prepared database.
pub(crate) async fn on_own_server(options: &'static [&'static str]) -> (Arc<Server>, Mysql) {
    let start = move || {
        let server = Server::start(options);
        let url = server.new_database();
        (Arc::new(server), url)
    };
    let (server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    (server, prepare_my(&url).await)
}

async fn once_and_only_once(db: &Mysql, app: &App, what: &str) {
    assert_eq!(app.provider.effects(), 1, "{what}");
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1, "{what}");
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1, "{what}");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 2, "{what}");
}

/// A COMMIT that never arrived and one that was applied and whose answer was lost give the same error. In both
/// cases, at each commit, the same call continues and ends with the right answer.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_lost_commit_is_resolved_and_never_guessed() {
    for cut in [Cut::Before, Cut::After, Cut::Answer] {
        for (nth, has_blocks) in [(1, true), (2, true), (1, false), (2, false)] {
            let (db, store, proxy) = match has_blocks {
                true => proxied().await,
                false => proxied_without_blocks().await,
            };
            let app = App::default();
            let engine = engine(&store, &app);
            proxy.arm(COMMIT, nth, cut);
            let what = format!("{cut:?} at commit {nth}, blocks: {has_blocks}");
            let done = finished(engine.call(&scope(), &key("k"), book(20)).await);
            assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
            assert!(done.reply.status() == 201 && !done.replayed, "{what}");
            once_and_only_once(&db, &app, &what).await;
            let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
            assert_eq!(again.reply, done.reply, "{what}");
        }
    }
}

/// A request that is created and finished in one commit is found finished by the call that did it: this is not a
/// replay.
#[tokio::test(flavor = "multi_thread")]
async fn g7_who_finds_its_own_lost_commit_has_not_replayed_it() {
    for cut in [Cut::After, Cut::Answer] {
        let (db, store, proxy) = proxied().await;
        let app = App::default();
        let engine = engine(&store, &app);
        proxy.arm(COMMIT, 1, cut);
        let request = || troubled(Trouble::FinishEarly);
        let done = finished(engine.call(&scope(), &key("k"), request()).await);
        assert_eq!((proxy.fired(), done.replayed), (1, false), "{cut:?}");
        assert!(finished(engine.call(&scope(), &key("k"), request()).await).replayed, "{cut:?}");
        assert_eq!(db.number("SELECT count(*) FROM rides").await, 1, "{cut:?}");
    }
}

/// The same for the guarded writes that have a transaction of their own: intent, result, release.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_lost_answer_to_a_write_of_its_own_is_resolved() {
    for cut in [Cut::Before, Cut::After, Cut::Answer] {
        for nth in [1, 2] {
            let (_db, store, proxy) = proxied().await;
            let app = App::new(Provider::that_ignores_keys());
            let engine = engine(&store, &app);
            let what = format!("{cut:?} at write {nth}");
            proxy.arm(WRITE, nth, cut);
            finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
            assert_eq!((proxy.fired(), app.provider.effects()), (1, 1), "{what}");

            proxy.arm(WRITE, 1, cut);
            let released = troubled(Trouble::RetryForeignAlways);
            failed(engine.call(&scope(), &key("released"), released).await);
            assert_eq!(proxy.fired(), 2, "{what}");
        }
    }
}

/// The connection is cut at each command that the engine sends, one command per run, until there are no more. A
/// retry ends with the right answer wherever the cut was.
#[tokio::test(flavor = "multi_thread")]
async fn g1_the_connection_may_break_at_any_command() {
    let mut cuts = 0;
    for cut in [Cut::Before, Cut::After] {
        for nth in 1.. {
            let (db, store, proxy) = proxied().await;
            let app = App::default();
            let engine = engine(&store, &app);
            let _ = engine.call(&scope(), &key("warm"), troubled(Trouble::RetryFirst)).await;
            proxy.arm("", nth, cut);
            let mut outcome = engine.call(&scope(), &key("k"), book(20)).await;
            for _ in 0..5 {
                if matches!(outcome, Ok(Outcome::Finished(_))) {
                    break;
                }
                db.let_leases_expire().await;
                outcome = engine.call(&scope(), &key("k"), book(20)).await;
            }
            finished(outcome);
            once_and_only_once(&db, &app, &format!("{cut:?} at command {nth}")).await;
            if proxy.fired() == 0 {
                break;
            }
            cuts += 1;
        }
    }
    println!("cut at {cuts} commands");
    assert!(cuts >= 14, "{cuts}");
}

/// The session is killed while a statement of a phase runs, as an administrator or a proxy does it.
#[tokio::test(flavor = "multi_thread")]
async fn g1_a_session_is_killed_in_a_phase() {
    let db = Mysql::fresh().await;
    // Sleeps the first time only: a table of another engine is not rolled back.
    db.sql(
        "CREATE TABLE times (n INT) ENGINE = MyISAM; \
         CREATE TRIGGER once BEFORE INSERT ON steps FOR EACH ROW BEGIN \
         INSERT INTO times VALUES (1); \
         IF (SELECT count(*) FROM times) = 1 THEN SET @slept = SLEEP(20); END IF; END",
    )
    .await;
    let app = App::default();
    let running = engine(&db, &app);
    let call = tokio::spawn(async move { running.call(&scope(), &key("k"), book(20)).await });
    let asleep = format!(
        "SELECT coalesce(max(id), 0) FROM {} WHERE db = DATABASE() AND state = 'User sleep'",
        sessions()
    );
    until(async || db.number(&asleep).await > 0).await;
    let id = db.number(&asleep).await;
    db.sql(&format!("KILL {id}")).await;
    assert_eq!(finished(call.await.unwrap()).reply.status(), 201);
    once_and_only_once(&db, &app, "killed").await;
}

/// Y4: a session ends in the middle of a takeover. It is killed (MariaDB says 1927), or the server
/// says another code by which a connection is lost. The takeover is sent on another connection, and
/// this one is used no more.
#[tokio::test(flavor = "multi_thread")]
async fn g1_a_takeover_whose_session_ends_is_sent_on_another_connection() {
    const KILLED: i32 = 0;
    const ENDINGS: [i32; 14] =
        [KILLED, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1243, 1835, 1927, 2006, 2013, 4031];
    let db = Mysql::fresh().await;
    // What is deleted from a table of this engine stays so when its statement is rolled back.
    db.sql(
        "CREATE TABLE endings (code INT) ENGINE = MyISAM; \
         CREATE TRIGGER ends BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW BEGIN \
         DECLARE told INT DEFAULT (SELECT max(code) FROM endings); \
         IF NEW.lease_token > OLD.lease_token AND told IS NOT NULL THEN \
         DELETE FROM endings; \
         IF told = 0 THEN SET @slept = SLEEP(20); \
         ELSE SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = told, MESSAGE_TEXT = 'as asked for'; \
         END IF; END IF; END",
    )
    .await;
    let asleep = format!(
        "SELECT coalesce(max(id), 0) FROM {} WHERE db = DATABASE() AND state = 'User sleep'",
        sessions()
    );
    let store = open_my(db.__url(), 1).await;
    let app = App::default();
    let engine = engine(&store, &app);
    let session = async || number_of(&mut store.connection().await.unwrap()).await;
    for code in ENDINGS {
        let name = format!("k{code}");
        dies_in_its_call(&engine, &name, book(20)).await;
        db.let_leases_expire().await;
        db.sql(&format!("INSERT INTO endings VALUES ({code})")).await;
        let before = session().await;
        let call = tokio::spawn(engine.call(&scope(), &key(&name), book(20)).into_future());
        if code == KILLED {
            until(async || db.number(&asleep).await > 0).await;
            let id = db.number(&asleep).await;
            db.sql(&format!("KILL {id}")).await;
        }
        assert_eq!(finished(call.await.unwrap()).reply.status(), 201, "{code}");
        assert_ne!(session().await, before, "{code}: the connection was used again");
    }
    assert_eq!(app.provider.effects(), ENDINGS.len());
}

/// Y34: a COMMIT that is killed while it waits, as for a backup, may or may not take effect. The engine resolves
/// it, and nothing is done twice.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_commit_that_is_killed_is_resolved() {
    if mysqld().is_some() {
        // It has no lock that holds back commits, and not the statements before them.
        return;
    }
    for kill in ["KILL", "KILL QUERY"] {
        // No COMMIT on the whole server completes.
        let (server, db) = on_own_server(&[]).await;
        let app = App::default();
        let mut gate = app.provider.stop_after_the_effect();
        let running = engine(&db, &app);
        let call = tokio::spawn(async move { running.call(&scope(), &key("k"), book(20)).await });
        let in_the_call = gate.recv().await.unwrap();
        let mut backup = my(db.__url()).await;
        let blocks = "BACKUP STAGE START; BACKUP STAGE FLUSH; BACKUP STAGE BLOCK_DDL; \
            BACKUP STAGE BLOCK_COMMIT";
        backup.batch_execute(blocks).await.unwrap();
        in_the_call.send(()).unwrap();
        let waits = "SELECT coalesce(max(id), 0) FROM information_schema.processlist \
            WHERE db = DATABASE() AND state = 'Waiting for backup lock' AND info LIKE 'COMMIT%'";
        until(async || db.number(waits).await > 0).await;
        server.ask(&format!("{kill} {}", db.number(waits).await));
        until(async || db.number(waits).await == 0).await;
        backup.batch_execute("BACKUP STAGE END").await.unwrap();
        assert_eq!(finished(call.await.unwrap()).reply.status(), 201, "{kill}");
        once_and_only_once(&db, &app, kill).await;
    }
}

/// Options of a server with a binary log, which is in front of what a COMMIT does to the tables.
fn semi_sync() -> &'static [&'static str] {
    match mysqld() {
        None => &[
            "--log-bin=binlog",
            "--server-id=1",
            "--log-bin-trust-function-creators=1",
            "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        ],
        Some(_) => &[
            "--log-bin=binlog",
            "--server-id=1",
            "--log-bin-trust-function-creators=1",
            "--plugin-load-add=semisync_source.so",
            "--loose-rpl-semi-sync-source-wait-point=AFTER_SYNC",
        ],
    }
}

/// The first commit from here on waits for a replica that does not come, behind its place in the binary log.
fn wait_for_a_replica(server: &Server, millis: u32) {
    let role = if mysqld().is_some() { "source" } else { "master" };
    server.ask(&format!("SET GLOBAL rpl_semi_sync_{role}_timeout = {millis}"));
    server.ask(&format!("SET GLOBAL rpl_semi_sync_{role}_enabled = 1"));
}

/// The session that waits for it, or 0.
async fn waits_for_a_replica(db: &Mysql) -> i64 {
    let waits = "coalesce(max(CASE WHEN state LIKE '%semi-sync%' THEN id END), 0)";
    db.number(&format!("SELECT {waits} FROM {}", sessions())).await
}

/// Y34: a COMMIT that is killed behind its place in the binary log takes effect all the same, and is found.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_commit_that_is_killed_behind_the_binary_log_is_found() {
    for kill in ["KILL", "KILL QUERY"] {
        let (server, db) = on_own_server(semi_sync()).await;
        let app = App::default();
        let mut gate = app.provider.stop_after_the_effect();
        let running = engine(&db, &app);
        let call = tokio::spawn(async move { running.call(&scope(), &key("k"), book(20)).await });
        let in_the_call = gate.recv().await.unwrap();
        wait_for_a_replica(&server, 600_000);
        in_the_call.send(()).unwrap();
        until(async || waits_for_a_replica(&db).await > 0).await;
        let id = waits_for_a_replica(&db).await;
        server.ask(&format!("{kill} {id}"));
        // A MySQL lets it wait for the replica all the same.
        if mysqld().is_none() {
            until(async || waits_for_a_replica(&db).await != id).await;
        }
        // For what the engine commits to find it.
        let role = if mysqld().is_some() { "source" } else { "master" };
        server.ask(&format!("SET GLOBAL rpl_semi_sync_{role}_enabled = 0"));
        assert_eq!(finished(call.await.unwrap()).reply.status(), 201, "{kill}");
        once_and_only_once(&db, &app, kill).await;
        assert_eq!(app.bodies(), [1, 1, 1], "{kill}: the commit was found, not repeated");
    }
}

/// Y33: the client disconnects while the server executes COMMIT (semi-synchronous, without a replica to wait for).
/// A plain read sees the old recovery point; the engine waits for the row's lock.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_zombie_commit_is_waited_for() {
    let (server, db) = on_own_server(semi_sync()).await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let store = open_my(&proxy.url(db.__url()), 8).await;
    let app = App::default();
    let engine = engine(&store, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(async move { engine.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    wait_for_a_replica(&server, 3000);
    proxy.arm(COMMIT, 1, Cut::Hold);
    in_the_call.send(()).unwrap();
    until(async || waits_for_a_replica(&db).await > 0).await;
    proxy.cut_now();
    let done = finished(call.await.unwrap());
    assert_eq!((proxy.fired(), done.reply.status()), (1, 201));
    once_and_only_once(&db, &app, "zombie").await;
    assert_eq!(app.bodies(), [1, 1, 1], "the commit was found, not repeated");
}

/// The whole server dies during the call to the provider, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn g1_g12_the_server_dies_during_a_foreign_call_and_comes_back() {
    let (server, db) = on_own_server(&[]).await;
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let engine = engine(&db, &app);
    let call = tokio::spawn(engine.call(&scope(), &key("k"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    let dying = server.clone();
    tokio::task::spawn_blocking(move || dying.kill_9()).await.unwrap();
    let refused = engine.call(&scope(), &key("other"), book(20)).await;
    assert!(matches!(refused, Err(CallError::Unavailable(_))), "G12: {refused:?}");
    assert_eq!(app.provider.effects(), 1, "G12: nothing runs without a reservation");
    let coming = server.clone();
    tokio::task::spawn_blocking(move || coming.start_server()).await.unwrap();
    in_the_call.send(()).unwrap();
    assert_eq!(finished(call.await.unwrap()).reply.status(), 201);
    once_and_only_once(&db, &app, "crash").await;
    assert!(finished(engine.call(&scope(), &key("k"), book(20)).await).replayed);
}

/// `KILL QUERY` ends whatever runs, at any place of a block, and leaves the session alive. The handler of a block does
/// not hear of it.
#[tokio::test(flavor = "multi_thread")]
async fn g1_g4_g7_statements_are_killed_wherever_they_are() {
    const KEYS: usize = 12;
    const KILLS: u32 = 40;
    let db = Mysql::fresh().await;
    let app = App::default();
    let store = open_my(db.__url(), 8).await;
    let mut killer = my(db.__url()).await;
    let kills = Arc::new(AtomicU32::new(0));
    let noted = kills.clone();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let killing = tokio::spawn(async move {
        #[derive(diesel::QueryableByName)]
        struct Runs {
            #[diesel(sql_type = diesel::sql_types::BigInt)]
            id: i64,
        }
        while stopped.try_recv().is_err() && noted.load(Ordering::Relaxed) < KILLS {
            let running = diesel::sql_query(format!(
                "SELECT id FROM {} WHERE db = DATABASE() \
                 AND id <> CONNECTION_ID() AND command IN ('Query', 'Execute')",
                sessions()
            ));
            let running: Vec<Runs> =
                diesel_async::RunQueryDsl::load(running, &mut *killer).await.unwrap();
            for Runs { id } in running {
                let killed = killer.batch_execute(&format!("KILL QUERY {id}")).await;
                noted.fetch_add(u32::from(killed.is_ok()), Ordering::Relaxed);
            }
        }
    });
    let calls: Vec<_> = (0..4)
        .map(|caller| {
            let engine = engine(&store, &app);
            tokio::spawn(async move {
                for number in (caller..KEYS).step_by(4) {
                    let name = key(&format!("k{number}"));
                    for _ in 0..500 {
                        let told = match number % 2 {
                            0 => engine.call(&scope(), &name, book(20)).await,
                            _ => {
                                let parcel = Form::SingleStatement.parcel(Trouble::None);
                                engine.call(&scope(), &name, parcel).await
                            }
                        };
                        match told {
                            Ok(Outcome::Finished(_)) => break,
                            Ok(Outcome::InProgress { .. } | Outcome::Failed { .. })
                            | Err(CallError::Unavailable(_)) => {}
                            other => panic!("{other:?}"),
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let _ = stop.send(());
    killing.await.unwrap();
    // A caller that was answered "in progress", because of the lease, gets its answer now.
    db.let_leases_expire().await;
    let engine = engine(&db, &app);
    for number in 0..KEYS {
        let name = key(&format!("k{number}"));
        match number % 2 {
            0 => finished(engine.call(&scope(), &name, book(20)).await),
            _ => finished(
                engine.call(&scope(), &name, Form::SingleStatement.parcel(Trouble::None)).await,
            ),
        };
    }
    let killed = kills.load(Ordering::Relaxed);
    println!("{killed} statements were killed");
    assert!(killed > 0, "nothing was killed");
    let keys = i64::try_from(KEYS).unwrap();
    assert_eq!(db.number("SELECT count(*) FROM rides").await, keys);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, keys + keys / 2);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, keys * 2);
    assert_eq!(app.provider.effects(), KEYS);
}
