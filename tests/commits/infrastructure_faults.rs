//! Infrastructure faults: what a database, a provider, a pool and a runtime may do to a request. The tests count
//! effects in the provider's ledger.
//!
//! | row of the catalogue | shown by |
//! |---|---|
//! | retry while running; after finish, failure, unknown, expiry, erasure | `wire`: w28, w21, w25, w34, w38; `erase` |
//! | client disconnects at each point | `races`: g13; `wire`: w35, w36; `explorer` |
//! | handler panics; 500; 4xx after an effect; body over the cap | `wire`: w27, w26, w22, w77 |
//! | phase swallows an SQL error; raw COMMIT; savepoint; takes long | `resume`: g4 h6, g4 h7, nested; `races`: g3 |
//! | phase nests a request with its own key, or another one | `pool_faults` |
//! | provider times out after doing it; forgets the key | `resume`: g1; `wire`: w37; `stopped`: g11 |
//! | provider: 409 in use, 400 parameters differ, 429, 5xx, another id | `provider_answers` |
//! | 40001, 40P01, 55P03 in a phase; 55P03 at reserve | `driver`: h9, g10 |
//! | 57014, 57P01, 25P03, 53100, read-only | here |
//! | 53300 | `pool_faults` |
//! | commit without an answer; connection cut at any statement; server restart | `driver`: g7, g1, h4, h5; `kill` |
//! | schema missing, older, newer; column altered | here |
//! | row deleted mid-flight; clock jumps back | here |
//! | row edited by hand | `arbitrary_rows`; `deploys`: g14 |
//! | deploys: renamed, removed, reordered, inserted phases; two binaries | `deploys`; `src/engine/progress.rs` |
//! | pool of one connection, exhausted, handed a connection in a transaction | `pool_faults` |
//! | current-thread runtime; runtime shut down; blocking pool starved | `driver`: h10; here |
//!
//! No promise covers a failover that loses acknowledged commits (README, *not promised*). Bad input is in
//! `tests/http/wire/header_rows.rs` and `tests/http/wire/request_rows.rs`, row by row.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::cluster::{Cluster, psql};
use crate::support::db::{open_pg, prepare_pg};
use crate::support::network::Line;
use crate::support::*;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::http::Policy;
use atomic_phases::ops::OperatorStore;
use atomic_phases::store::{Postgres, Sqlite, StoreError};
use atomic_phases::{Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use diesel_async::SimpleAsyncConnection;
use serde::{Deserialize, Serialize};

on_every_store! {
    g12_without_its_tables_nothing_runs_and_the_check_names_the_migration,
    g12_an_altered_column_is_an_error_and_nothing_runs,
    a_column_and_a_migration_of_a_newer_version_do_not_disturb,
    g12_a_read_only_database_replays_and_runs_nothing,
    g2_a_row_that_is_deleted_mid_flight_repeats_no_effect,
    a_clock_that_jumps_back_changes_the_length_of_leases_only,
}

#[track_caller]
fn unavailable(outcome: &Result<Outcome, CallError>) {
    assert!(matches!(outcome, Err(CallError::Unavailable(_))), "{outcome:?}");
}

async fn g12_without_its_tables_nothing_runs_and_the_check_names_the_migration<S: TestDb>(db: S) {
    // Tables are distributed after the migrations that create them.
    if is_memory::<S>() || is_distributed::<S>() {
        return;
    }
    let app = App::default();
    let engine = engine(&db, &app);
    // Older: a table of a later migration does not exist yet. Missing: no table exists.
    db.sql("ALTER TABLE atomic_phases_staged_jobs RENAME TO elsewhere").await;
    assert!(engine.check().await.is_err());
    db.sql("ALTER TABLE elsewhere RENAME TO atomic_phases_staged_jobs").await;
    engine.check().await.unwrap();
    db.revert_migrations().await.unwrap();
    let error = engine.check().await.unwrap_err();
    assert!(matches!(error, StoreError::Migration(_)), "{error:?}");
    let first =
        if is_mysql::<S>() { "2026-11-22-000001_keys" } else { "2026-11-21-000001_atomic_phases" };
    for says in [first, "not applied", "Store::migrate"] {
        assert!(error.to_string().contains(says), "{error}");
    }
    unavailable(&engine.call(&scope(), &key("k"), book(20)).await);
    assert!(app.provider.calls().is_empty());
    assert_eq!(app.bodies(), [0, 0, 0]);
}

async fn g12_an_altered_column_is_an_error_and_nothing_runs<S: TestDb>(db: S) {
    if is_memory::<S>() {
        return;
    }
    let app = App::default();
    let engine = engine(&db, &app);
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    let calls = app.provider.calls().len();
    db.sql("ALTER TABLE atomic_phases_keys RENAME COLUMN lease_token TO fence").await;
    unavailable(&engine.call(&scope(), &key("k"), book(20)).await);
    unavailable(&engine.call(&scope(), &key("new"), book(20)).await);
    assert!(engine.check().await.is_err());
    assert_eq!(app.provider.calls().len(), calls);
    db.sql("ALTER TABLE atomic_phases_keys RENAME COLUMN fence TO lease_token").await;
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 1);
}

/// G14: an older binary beside a newer one, which has migrated already.
async fn a_column_and_a_migration_of_a_newer_version_do_not_disturb<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    db.sql(
        "ALTER TABLE atomic_phases_keys ADD COLUMN of_tomorrow TEXT;
         INSERT INTO __diesel_schema_migrations (version) VALUES ('20991231000001');",
    )
    .await;
    db.migrate().await.unwrap();
    engine.check().await.unwrap();
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    finished(engine.call(&scope(), &key("new"), book(20)).await);
    assert_eq!(app.provider.effects(), 2);
}

async fn g12_a_read_only_database_replays_and_runs_nothing<S: TestDb>(db: S) {
    // MariaDB can be read-only only as a whole server: see `mysql`.
    if is_memory::<S>() || is_mysql::<S>() {
        return;
    }
    let app = App::default();
    let before = engine(&db, &app);
    let first = finished(before.call(&scope(), &key("done"), book(20)).await);
    failed(before.call(&scope(), &key("open"), troubled(Trouble::RetryForeignAlways)).await);
    let (calls, bodies) = (app.provider.calls().len(), app.bodies());
    // A session's default, for PostgreSQL; this one connection's, for SQLite.
    db.sql(match is_postgres::<S>() {
        true => "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = on'; END $$",
        false => "PRAGMA query_only = ON",
    })
    .await;
    let db = if is_postgres::<S>() { db.another().await } else { db };
    // As a process does that starts now.
    db.migrate().await.unwrap();
    let engine = engine(&db, &app);
    let again = finished(engine.call(&scope(), &key("done"), book(20)).await);
    assert_eq!(again.reply, first.reply);
    unavailable(&engine.call(&scope(), &key("open"), book(20)).await);
    unavailable(&engine.call(&scope(), &key("new"), book(20)).await);
    let refused = engine.call(&scope(), &key("new"), book(20)).accept().await;
    unavailable(&refused);
    assert_eq!(Policy::default().answer(Some(&key("new")), refused).status(), 503);
    assert!(engine.erase(&scope(), &key("done")).await.is_err());
    assert_eq!(app.provider.calls().len(), calls);
    assert_eq!(app.bodies(), bodies);
}

async fn g2_a_row_that_is_deleted_mid_flight_repeats_no_effect<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let (caller, name) = (engine.clone(), key("k"));
    let call =
        tokio::spawn(async move { caller.call(&scope(), &name, notify(Trouble::None)).await });
    let in_the_call = gate.recv().await.unwrap();
    db.sql("DELETE FROM atomic_phases_keys").await;
    in_the_call.send(()).unwrap();
    let outcome = call.await.unwrap();
    assert!(matches!(outcome, Err(CallError::RowDeleted)), "{outcome:?}");
    let answer = Policy::default().answer(Some(&key("k")), outcome).into_http();
    assert_eq!(answer.status(), 409);
    assert!(String::from_utf8_lossy(answer.body()).contains(r#""retryable":false"#));
    assert_eq!(app.provider.effects(), 1);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1, "nothing ran again");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
}

/// The clock jumps an hour back, so all stored times are an hour further ahead.
async fn a_clock_that_jumps_back_changes_the_length_of_leases_only<S: TestDb>(db: S) {
    if is_distributed::<S>() {
        println!("nothing was shown: a distributed table computes no time of a column's");
        return;
    }
    let app = App::default();
    let engine = engine(&db, &app);
    let first = finished(engine.call(&scope(), &key("done"), book(20)).await);
    app.forget_bodies();
    failed(engine.call(&scope(), &key("open"), troubled(Trouble::RetryForeignOnce)).await);
    let mut gate = app.provider.stop_after_the_effect();
    let dying = engine.call(&scope(), &key("held"), book(20)).__call_in_place();
    let dying = tokio::spawn(dying);
    let in_the_call = gate.recv().await.unwrap();
    dying.abort();
    assert!(dying.await.unwrap_err().is_cancelled());
    drop(in_the_call);
    app.provider.stop_no_more();
    let hour = if is_postgres::<S>() { "interval '1 hour'" } else { "3600000" };
    let times = ["locked_until", "run_after", "advanced_at", "created_at", "expires_at"];
    let ahead = times.map(|time| format!("{time} = {time} + {hour}")).join(", ");
    db.sql(&format!("UPDATE atomic_phases_keys SET {ahead}")).await;

    assert_eq!(finished(engine.call(&scope(), &key("done"), book(20)).await).reply, first.reply);
    finished(engine.call(&scope(), &key("open"), book(20)).await);
    let held = engine.call(&scope(), &key("held"), book(20)).await;
    let Ok(Outcome::InProgress { retry_after }) = held else { panic!("{held:?}") };
    assert!(!retry_after.is_zero(), "{retry_after:?}");
    // An hour later, by either clock, the request resumes.
    db.let_leases_expire().await;
    db.sql(&format!("UPDATE atomic_phases_keys SET locked_until = locked_until - {hour} - {hour}"))
        .await;
    finished(engine.call(&scope(), &key("held"), book(20)).await);
    assert_eq!(app.provider.effects(), 3);
}

/// A process opens its connections while the database is fenced off for a switch-over. Each of these sessions stays read
/// only after that, by its own default: a write finds out, and the engine leaves them without a restart, as a probe does.
#[tokio::test(flavor = "multi_thread")]
async fn g12_sessions_that_began_read_only_are_left_once_the_database_can_be_written_to() {
    let db = Postgres::fresh().await;
    let set = async |on: &str| {
        let set = "EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = ";
        db.sql(&format!("BEGIN READ WRITE; DO $$ BEGIN {set}{on}'; END $$; COMMIT")).await;
    };
    set("on").await;
    let store = db.another().await;
    let engine = engine(&store, &App::default());
    unavailable(&engine.call(&scope(), &key("k"), book(20)).await);
    set("off").await;
    // By this `/health/ready` is 200, and clients are sent here.
    until(async || !store.is_read_only().await.unwrap()).await;
    until(async || {
        let told = engine.call(&scope(), &key("k"), book(20)).await;
        matches!(told, Ok(Outcome::Finished(_)))
    })
    .await;
}

/// The address of the primary led to a standby while this process connected: a name that was resolved too early behind
/// a failover, or a proxy that was slow to hear of it. New connections reach the primary, and the old ones never end.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_standby_that_was_taken_for_the_primary_is_left() {
    let (primary, url) = tokio::task::block_in_place(|| {
        let primary = Cluster::start();
        let url = primary.new_database();
        (primary, url)
    });
    prepare_pg(&open_pg(&url, 2).await).await;
    let standby = tokio::task::block_in_place(|| primary.standby());
    let there = Line::url_at(&url, standby.port());
    until(async || tokio::task::block_in_place(|| psql(&there, "SELECT 1")) == "1").await;
    let line = Line::to(standby.port(), 0).await;
    let store = open_pg(&line.url(&url), 4).await;
    let engine = engine(&store, &App::default());
    unavailable(&engine.call(&scope(), &key("k"), book(20)).await);
    line.lead_to(primary.port());
    until(async || !store.is_read_only().await.unwrap()).await;
    until(async || {
        let told = engine.call(&scope(), &key("k"), book(20)).await;
        matches!(told, Ok(Outcome::Finished(_)))
    })
    .await;
}

/// 57014: a statement of a phase takes longer than the server lets it.
#[tokio::test(flavor = "multi_thread")]
async fn g17_57014_a_statement_that_times_out_is_tried_a_few_times_then_released() {
    let db = Postgres::fresh().await;
    db.sql(
        "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET statement_timeout = ''1s'''; END $$;
         CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(5); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON steps FOR EACH ROW EXECUTE FUNCTION slow();",
    )
    .await;
    let app = App::default();
    let engine = engine(&db.another().await, &app);
    let cause = failed(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(matches!(cause, FailureCause::Database { phase: "answered", .. }), "{cause:?}");
    assert_eq!(app.bodies(), [1, 1, 6]);
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "failed_retryable");
    db.sql("DROP TRIGGER slow ON steps").await;
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 1);
}

const TERMINATE_OTHERS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// 57P01: an administrator ends all connections, idle ones and those of a running request.
#[tokio::test(flavor = "multi_thread")]
async fn g1_57p01_terminated_connections_are_replaced() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("a"), book(20)).await);
    assert!(db.number(TERMINATE_OTHERS).await > 0);
    finished(engine.call(&scope(), &key("a"), book(20)).await);
    assert!(db.number(TERMINATE_OTHERS).await > 0);
    finished(engine.call(&scope(), &key("b"), book(20)).await);
    // Once more while a request is in its call, with no connection of its own.
    let mut gate = app.provider.stop_after_the_effect();
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("c"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    assert!(db.number(TERMINATE_OTHERS).await > 0);
    in_the_call.send(()).unwrap();
    finished(call.await.unwrap());
    assert_eq!(app.provider.effects(), 3);
}

/// 25P03: a phase is idle inside its transaction for longer than the server allows.
#[derive(Clone, Serialize, Deserialize)]
struct Idles {}

#[atomic_phases(name = "idles", version = 1, app = (App, Postgres))]
impl Idles {
    #[phase]
    async fn idled(&self, tx: &mut Tx<'_, Postgres>, app: &(App, Postgres)) -> PhaseResult<Reply> {
        Postgres::insert_ride(tx, "ride", 1).await?;
        let times = app.0.bodies[0].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if times == 0 {
            tx.batch_execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'").await?;
            let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND state = 'idle in transaction'";
            while app.1.number(open).await > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(Reply::new(204))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_25p03_an_idle_transaction_that_the_server_ended_is_run_again() {
    let db = Postgres::fresh().await;
    let app = (App::default(), db.clone());
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Idles>();
    let engine = builder.build().unwrap();
    finished(engine.call(&scope(), &key("k"), Idles {}).await);
    assert_eq!(app.0.bodies(), [2, 0, 0]);
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1);
}

/// SQLITE_FULL: the file may grow no more.
#[tokio::test(flavor = "multi_thread")]
async fn g12_a_full_sqlite_file_runs_nothing_and_loses_nothing() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    let done = finished(engine.call(&scope(), &key("done"), book(20)).await);
    // The pragma never sets a limit below the file's size.
    db.sql("PRAGMA max_page_count = 1").await;
    let (calls, effects) = (app.provider.calls().len(), app.provider.effects());
    let huge = Notify { who: "x".repeat(200_000), trouble: Trouble::None.into() };
    let outcome = engine.call(&scope(), &key("k"), huge.clone()).await;
    assert!(!matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
    assert_eq!((app.provider.calls().len(), app.provider.effects()), (calls, effects));
    let again = finished(engine.call(&scope(), &key("done"), book(20)).await);
    assert_eq!(again.reply, done.reply, "what is stored is replayed");
    db.sql("PRAGMA max_page_count = 1000000").await;
    finished(engine.call(&scope(), &key("k"), huge).await);
    assert_eq!(app.provider.effects(), effects + 1);
}

/// 53100, on a disk of its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "mounts a tmpfs of 120 MB: run as root with --ignored"]
async fn g12_53100_a_full_disk_runs_nothing_and_loses_nothing() {
    let disk = tempfile::tempdir().unwrap();
    let mounted = Mounted::on(disk.path());
    let cluster = Cluster::start_in(disk.path());
    let db = open_pg(&cluster.new_database(), 4).await;
    prepare_pg(&db).await;
    let app = App::default();
    let engine = engine(&db, &app);
    let done = finished(engine.call(&scope(), &key("done"), book(20)).await);
    let filler = disk.path().join("filler");
    let full = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", &format!("of={}", filler.display())])
        .stderr(std::process::Stdio::null())
        .status();
    assert!(!full.unwrap().success(), "it was to fill the disk");
    let effects = app.provider.effects();
    let huge = |n: u32| Notify { who: random_text(n), trouble: Trouble::None.into() };
    let mut refused = Vec::new();
    // Requests that fit into existing pages still run, until none does.
    for n in 0..400 {
        match engine.call(&scope(), &key(&format!("k{n}")), huge(n)).await {
            Ok(Outcome::Finished(_)) => {}
            Ok(Outcome::Failed { .. }) | Err(CallError::Unavailable(_)) => refused.push(n),
            other => panic!("{other:?}"),
        }
        if refused.len() > 20 {
            break;
        }
    }
    assert!(refused.len() > 20, "the disk never was full");
    assert_eq!(app.provider.effects(), effects + (refused[20] + 1) as usize - refused.len());
    std::fs::remove_file(filler).unwrap();
    let again = finished(engine.call(&scope(), &key("done"), book(20)).await);
    assert_eq!(again.reply, done.reply);
    for n in &refused {
        finished(engine.call(&scope(), &key(&format!("k{n}")), huge(*n)).await);
    }
    assert_eq!(app.provider.effects(), effects + (refused[20] + 1) as usize);
    drop((db, engine, cluster, mounted));
}

/// A file system that is mounted while this value lives.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn on(dir: &std::path::Path) -> Self {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=120m,mode=755", "none"]).arg(dir);
        assert!(mount.status().unwrap().success(), "mount needs root");
        Self(dir.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A text that does not compress, and that a retry sends again.
fn random_text(n: u32) -> String {
    use sha2::{Digest, Sha256};
    let part = |i: u32| Sha256::digest([n.to_be_bytes(), i.to_be_bytes()].concat());
    (0..2000).flat_map(part).map(|byte| format!("{byte:02x}")).collect()
}

/// On one thread, while the runtime's only blocking thread is in use.
#[test]
fn a_starved_current_thread_runtime_is_enough() {
    fn run<S: TestDb>() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(2).build().unwrap();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let db = S::fresh().await;
            let wait = Arc::new(Mutex::new(wait));
            let blocked = [wait.clone(), wait].map(|wait| {
                tokio::task::spawn_blocking(move || wait.lock().unwrap().recv().is_err())
            });
            let app = App::default();
            let engine = engine(&db, &app);
            finished(engine.call(&scope(), &key("k"), book(20)).await);
            app.forget_bodies();
            failed(engine.call(&scope(), &key("r"), troubled(Trouble::RetryLastOnce)).await);
            finished(engine.call(&scope(), &key("r"), book(20)).await);
            assert_eq!(app.provider.effects(), 2);
            drop(release);
            for blocked in blocked {
                assert!(blocked.await.unwrap());
            }
        });
    }
    run::<Sqlite>();
    run::<Postgres>();
    #[cfg(feature = "mysql")]
    run::<atomic_phases::store::Mysql>();
}

/// G13: a runtime that is shut down under a running request is a crash.
#[test]
fn g13_a_runtime_that_is_shut_down_is_a_crash_and_the_request_resumes() {
    fn run<S: TestDb>() {
        let new = || tokio::runtime::Runtime::new().unwrap();
        let (dying, heir) = (new(), new());
        let app = App::default();
        let db = heir.block_on(S::fresh());
        let theirs = dying.block_on(db.another());
        let mut gate = app.provider.stop_after_the_effect();
        let leaving = engine(&theirs, &app);
        dying.spawn(async move { leaving.call(&scope(), &key("k"), book(20)).await });
        let in_the_call = heir.block_on(gate.recv()).unwrap();
        dying.shutdown_timeout(Duration::from_secs(5));
        drop(in_the_call);
        app.provider.stop_no_more();
        heir.block_on(async {
            let engine = engine(&db, &app);
            let held = engine.call(&scope(), &key("k"), book(20)).await;
            assert!(matches!(held, Ok(Outcome::InProgress { .. })), "{held:?}");
            db.let_leases_expire().await;
            finished(engine.call(&scope(), &key("k"), book(20)).await);
            drop(theirs);
        });
        assert_eq!(app.provider.effects(), 1);
        assert_eq!(app.provider.calls().len(), 2);
    }
    run::<Sqlite>();
    run::<Postgres>();
    #[cfg(feature = "mysql")]
    run::<atomic_phases::store::Mysql>();
}
