//! Requests that wait on MariaDB for a key that another process is about to create wait in memory, without a
//! connection.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use atomic_phases::Outcome;
use atomic_phases::engine::CallError;
use atomic_phases::store::Mysql;
use atomic_phases::worker::{Announcer, Completer, Enqueuer, WorkerConfig};
use diesel_async::SimpleAsyncConnection;

use super::mysql_faults::on_own_server;
use crate::support::db::{my, open_my, open_my_without_blocks, sessions};
use crate::support::mariadb::mysqld;
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::work::{Inbox, config};
use crate::support::*;

/// Longer than any wait of a test.
const LOCK_WAIT: Duration = Duration::from_secs(600);

/// Inserts a copy of each row under another key.
fn copies(of: u32) -> String {
    let key = format!("CONCAT(idempotency_key, '-{of}')");
    let inserts = CREATES.trim_start_matches("BEGIN; ");
    let copies = inserts.replacen("'held'", &key, 1);
    assert_ne!(copies, inserts);
    copies
}

/// Another process is in the middle of creating the key `held`.
const CREATES: &str = "BEGIN; INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
    definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, advanced_at, created_at, \
    expires_at, params) SELECT scope, 'held', randomblob(16), definition, definition_version, phases, fingerprint, \
    status, recovery_point, 1, 1, created_at, created_at, expires_at, params FROM atomic_phases_keys";

/// G16: the pool's only connection is free for others meanwhile, and the waiting request runs as soon as it may.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_key_that_another_process_creates_is_waited_for_without_a_connection() {
    for batch in [false, true] {
        let db = Mysql::fresh().await;
        let proxy = MysqlProxy::start(db.__url()).await;
        let store = open_my(&proxy.url(db.__url()), 1).await;
        let app = App::default();
        let engine = engine_with(&store, &app, |b| b.creation_wait(LOCK_WAIT));
        finished(engine.call(&scope(), &key("done"), book(20)).await);
        let mut other = my(db.__url()).await;
        other.batch_execute(CREATES).await.unwrap();
        let before = proxy.commands();
        let waits = match batch {
            false => engine.call(&scope(), &key("held"), book(20)).into_future(),
            true => {
                let parcel = Form::SingleStatement.parcel(Trouble::None);
                engine.call(&scope(), &key("held"), parcel).into_future()
            }
        };
        let waits = tokio::spawn(waits);
        // It has tried more than once.
        until(async || proxy.commands() > before + 8).await;
        let began = Instant::now();
        assert!(finished(engine.call(&scope(), &key("done"), book(20)).await).replayed);
        finished(engine.call(&scope(), &key("next"), book(20)).await);
        println!("two requests beside it in {:?}", began.elapsed());
        assert!(!waits.is_finished());
        other.batch_execute("ROLLBACK").await.unwrap();
        assert!(!finished(waits.await.unwrap()).replayed);
    }
}

/// G13: once the caller has given up, nothing waits for the row's lock.
#[tokio::test(flavor = "multi_thread")]
async fn g13_no_caller_waits_for_a_key_whose_caller_is_gone() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let store = open_my(&proxy.url(db.__url()), 2).await;
    let app = App::default();
    let engine = engine_with(&store, &app, |b| b.creation_wait(LOCK_WAIT));
    finished(engine.call(&scope(), &key("done"), book(20)).await);
    let mut other = my(db.__url()).await;
    other.batch_execute(CREATES).await.unwrap();
    let before = proxy.commands();
    let waits = tokio::spawn(engine.call(&scope(), &key("held"), book(20)).into_future());
    until(async || proxy.commands() > before + 8).await;
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    // A waiting request tries several times a second.
    let is_still = async || {
        let before = proxy.commands();
        tokio::time::sleep(Duration::from_secs(1)).await;
        proxy.commands() == before
    };
    let mut looks = 0;
    while !is_still().await {
        looks += 1;
        assert!(looks < 30, "it goes on asking");
    }
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1, "and nothing was run");
}

/// G16: what the engine writes at the end of a phase waits for a lock of the key's row for a second, and not for as long
/// as the server says.
#[tokio::test(flavor = "multi_thread")]
async fn g16_the_end_of_a_phase_waits_for_a_lock_of_its_key_for_a_second() {
    let by_blocks = Mysql::fresh().await;
    let other = Mysql::fresh().await;
    let by_texts = open_my_without_blocks(other.__url(), 4).await;
    tokio::join!(ends_beside_a_lock(by_blocks), ends_beside_a_lock(by_texts));
}

async fn ends_beside_a_lock(db: Mysql) {
    let server_waits = db.number("SELECT @@GLOBAL.innodb_lock_wait_timeout").await;
    assert!(server_waits >= 30, "{server_waits} s are not told from a second");
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("k"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    let mut holder = my(db.__url()).await;
    holder.batch_execute("BEGIN; SELECT 1 FROM atomic_phases_keys FOR UPDATE").await.unwrap();
    in_the_call.send(()).unwrap();
    // The last phase runs again once the wait at its end is over. A server that is not told to give up does not answer
    // within 15 seconds.
    until_within(Duration::from_secs(10), async || app.bodies()[2] > 1).await;
    let told = tokio::time::timeout(Duration::from_secs(30), call).await.unwrap().unwrap();
    assert!(!matches!(told, Ok(Outcome::Finished(_))), "{told:?}");
    for table in ["steps", "atomic_phases_staged_jobs"] {
        assert_eq!(db.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    // Its release did not get past the lock, either.
    db.let_leases_expire().await;
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
    assert_eq!(app.provider.effects(), 1);
}

/// G19: a request that another process is about to create keeps none of its neighbours from being erased.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_scope_is_erased_beside_a_request_in_its_first_phase() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("a"), book(20)).await);
    let mut other = my(db.__url()).await;
    other.batch_execute(CREATES).await.unwrap();
    finished(engine.call(&scope(), &key("z"), book(20)).await);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.left), (2, 0));
    other.batch_execute("COMMIT").await.unwrap();
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.left), (1, 0));
}

/// G19: what another transaction has locked of a key that is in use keeps neither another key nor the rest of the scope
/// from being erased, nor the jobs of a key that was reaped.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_key_is_erased_beside_a_locked_row_of_another_whose_job_is_dead() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    for name in ["erased", "in-use", "of-the-scope", "reaped"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    db.sql(
        "UPDATE atomic_phases_staged_jobs SET run_after = NULL; \
         DELETE FROM atomic_phases_keys WHERE idempotency_key = 'reaped'",
    )
    .await;
    let mut other = my(db.__url()).await;
    let lock = "BEGIN; SELECT lease_token FROM atomic_phases_keys WHERE idempotency_key = 'in-use' FOR UPDATE";
    other.batch_execute(lock).await.unwrap();
    let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs";
    let all = db.number(jobs).await;
    engine.erase(&scope(), &key("erased")).await.unwrap();
    assert_eq!(db.number(jobs).await, all * 3 / 4);
    engine.erase(&scope(), &key("reaped")).await.unwrap();
    assert_eq!(db.number(jobs).await, all / 2);
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.left), (1, 1));
    assert_eq!(db.number(jobs).await, all / 4);
    other.batch_execute("ROLLBACK").await.unwrap();
}

/// G18: a claim asks for what is in front of its job only. Of what is behind it, another transaction may have locked a row.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_is_claimed_beside_a_locked_one_behind_it() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let last = db.number("SELECT MAX(position) FROM atomic_phases_staged_jobs").await;
    let mut other = my(db.__url()).await;
    let lock = format!(
        "BEGIN; SELECT 1 FROM atomic_phases_staged_jobs WHERE scope = 'tenant-1' AND position = {last} FOR UPDATE"
    );
    other.batch_execute(&lock).await.unwrap();
    let inbox = Inbox::default();
    let workers = engine.spawn_workers(config().sink(inbox.sink())).unwrap();
    // A MySQL does not get past the lock.
    if mysqld().is_none() {
        until(async || inbox.0.lock().unwrap().len() == 1).await;
    }
    // The next one becomes due with the end of this one.
    other.batch_execute("ROLLBACK").await.unwrap();
    until(async || db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await == 0).await;
    drop(workers);
    let delivered: Vec<_> = inbox.take().iter().map(|job| job.name.clone()).collect();
    assert_eq!(delivered, ["receipt", "thanks"]);
}

/// Y40, G18: a claim asks its own table for the jobs in front of its own, and locks them, also a
/// dead one. While another transaction revives that one, the claim sees neither its old state nor
/// its new one, and the job is not delivered.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_is_not_claimed_while_a_dead_one_in_front_of_it_is_revived() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    db.sql(
        "UPDATE atomic_phases_staged_jobs SET run_after = IF(name = 'receipt', NULL, staged_at)",
    )
    .await;
    let mut other = my(db.__url()).await;
    let revives = "BEGIN; UPDATE atomic_phases_staged_jobs SET run_after = staged_at \
        WHERE scope = 'tenant-1' AND name = 'receipt'";
    other.batch_execute(revives).await.unwrap();
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config());
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 0);
    other.batch_execute("COMMIT").await.unwrap();
    until(async || {
        enqueuer.run_once().await.unwrap();
        db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await == 0
    })
    .await;
    let delivered: Vec<_> = inbox.take().iter().map(|job| job.name.clone()).collect();
    assert_eq!(delivered, ["receipt", "thanks"]);
}

/// The reaper takes a row of those that are about to be erased: the others are erased all the same.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_scope_is_erased_to_its_end_whatever_goes_meanwhile() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let store = open_my(&proxy.url(db.__url()), 2).await;
    let engine = engine(&store, &App::default());
    finished(engine.call(&scope(), &key("a"), book(20)).await);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    for of in 0..11 {
        db.sql(&copies(of)).await;
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 2048);
    proxy.delay(500);
    let before = proxy.commands();
    let erasing = tokio::spawn(async move { engine.erase_scope(&scope()).await });
    // The keys were searched for and locked, and the update is on its way.
    until(async || proxy.commands() > before + 4).await;
    db.sql("DELETE FROM atomic_phases_keys WHERE fingerprint <> 'erased' ORDER BY scope, idempotency_key LIMIT 3").await;
    proxy.delay(0);
    let erased = erasing.await.unwrap().unwrap();
    assert_eq!((erased.erased, erased.left), (2045, 0));
}

/// G12, G16: a backup's lock holds back each write of the server, and no read. What waits for it gives its connection back
/// as soon as what waits for a row's lock does, so that a finished request is replayed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_backup_that_holds_back_writes_keeps_no_replay() {
    let (_server, db) = on_own_server(&[]).await;
    let store = open_my(db.__url(), 2).await;
    let app = App::default();
    let engine = engine_with(&store, &app, |b| b.lease(Duration::from_secs(3)));
    finished(engine.call(&scope(), &key("done"), book(20)).await);
    // In a foreign call, with a heartbeat each second.
    let mut gate = app.provider.stop_after_the_effect();
    let running = tokio::spawn(engine.call(&scope(), &key("running"), book(20)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    let mut backup = my(db.__url()).await;
    backup.batch_execute("FLUSH TABLES WITH READ LOCK").await.unwrap();
    let fresh = tokio::spawn(engine.call(&scope(), &key("fresh"), book(20)).into_future());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        let replay = engine.call(&scope(), &key("done"), book(20)).into_future();
        // One that waited for the backup would hear that it got no connection.
        let replayed = tokio::time::timeout(Duration::from_secs(30), replay).await;
        assert!(finished(replayed.expect("a replay waits for a backup")).replayed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    backup.batch_execute("UNLOCK TABLES").await.unwrap();
    app.provider.stop_no_more();
    // Its call may be gone with its lease.
    let _ = in_the_call.send(());
    let _ = (running.await.unwrap(), fresh.await.unwrap());
    let rides = "SELECT count(*) FROM rides WHERE amount = 20";
    assert!(db.number(rides).await <= 3, "each at most once");
}

/// G16: a table that is locked keeps no connection, and who needs it hears of it as soon as of a locked row. Nothing of the
/// store waits at the server for as long as the server says, a day.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_locked_table_is_waited_for_as_a_locked_row_is() {
    /// Less than the store waits for an answer, by which it would hear of a statement that waits at the server.
    const PROMPTLY: Duration = Duration::from_secs(14);
    let db = Mysql::fresh().await;
    let store = open_my(db.__url(), 1).await;
    let engine = engine(&store, &App::default());
    finished(engine.call(&scope(), &key("done"), book(20)).await);
    let mut other = my(db.__url()).await;
    other.batch_execute("LOCK TABLES atomic_phases_keys WRITE").await.unwrap();
    let calls = (0..3).map(|_| engine.call(&scope(), &key("done"), book(20)).into_future());
    let began = Instant::now();
    for told in futures_util::future::join_all(calls).await {
        assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    }
    assert!(began.elapsed() < PROMPTLY, "{:?}", began.elapsed());
    other.batch_execute("UNLOCK TABLES").await.unwrap();
    assert!(finished(engine.call(&scope(), &key("done"), book(20)).await).replayed);
    let session = "SELECT @@SESSION.lock_wait_timeout - @@GLOBAL.lock_wait_timeout";
    assert_eq!(store.number(session).await, 0, "the application waits as the server says");
}

/// A process announces itself, whichever other process writes its own row at this moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_announces_itself_beside_the_locked_row_of_another() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    let announced = async || Announcer::new(&engine, WorkerConfig::default()).run_once().await;
    announced().await.unwrap();
    let mut other = my(db.__url()).await;
    let lock = "BEGIN; UPDATE atomic_phases_nodes SET seen_at = seen_at + 1";
    other.batch_execute(lock).await.unwrap();
    announced().await.unwrap();
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_nodes").await, 2);
}

/// G19: the erasure of a scope reads each of its rows a few times, however many there are: not, for each thousand, all that
/// it has erased so far. Else one of these searches takes longer than its answer is waited for, and each later call begins
/// with the same one.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_scope_is_erased_by_reading_each_row_a_few_times() {
    let (server, db) = on_own_server(&[]).await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("a"), book(20)).await);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    for of in 0..15 {
        db.sql(&copies(of)).await;
    }
    let read = || {
        let told = server.ask("SHOW GLOBAL STATUS LIKE 'Handler_read_next'");
        told.trim().rsplit('\t').next().unwrap().parse::<u64>().unwrap()
    };
    let before = read();
    let erased = engine.erase_scope(&scope()).await.unwrap();
    let rows = read() - before;
    assert_eq!((erased.erased, erased.left), (32_768, 0));
    println!("{rows} rows read");
    assert!(rows < 8 * 32_768, "{rows} rows read to erase 32768");
}

/// G17: a table is locked between a takeover and the look at the row that it has left. The takeover is not sent again: it
/// would find another token, and the request would rest until the end of a lease that no process uses.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_table_that_is_locked_behind_a_takeover_takes_no_attempt() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    engine.call(&scope(), &key("k"), book(20)).accept().await.unwrap();
    db.sql(
        "CREATE TRIGGER slow AFTER UPDATE ON atomic_phases_keys FOR EACH ROW \
         SET @waited = IF(NEW.lease_token > OLD.lease_token, \
         GET_LOCK('takeover', 60) + RELEASE_LOCK('takeover'), 0)",
    )
    .await;
    let (mut other, mut holder) = (my(db.__url()).await, my(db.__url()).await);
    holder.batch_execute("DO GET_LOCK('takeover', 0)").await.unwrap();
    let waits_for = async |what: &str| {
        let waits = format!(
            "SELECT count(*) FROM {} WHERE db = DATABASE() AND state LIKE '{what}%'",
            sessions()
        );
        until(async || db.number(&waits).await > 0).await;
    };
    let locks = async {
        waits_for("User lock").await;
        // It waits for the end of the takeover, and no other statement comes between.
        let locked = "LOCK TABLES atomic_phases_keys WRITE; DO SLEEP(0.3); UNLOCK TABLES";
        let takeover_ends = async {
            waits_for("Waiting for table metadata lock").await;
            holder.batch_execute("DO RELEASE_LOCK('takeover')").await.unwrap();
        };
        let (locked, ()) = tokio::join!(other.batch_execute(locked), takeover_ends);
        locked.unwrap();
    };
    let completes = async { Completer::new(&engine, config()).run_once().await };
    let (completed, ()) = tokio::join!(completes, locks);
    assert_eq!(completed.unwrap().finished, 1);
}
