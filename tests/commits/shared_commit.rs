//! Batches that wait for SQLite's single writer at the same time share a commit, and each of them still succeeds or
//! fails by itself. The test counts in the write-ahead log, and does not measure time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::store::{Sqlite, StoreError};
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, Store, atomic_phases};
use tokio::task::JoinHandle;

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Statements(Vec<String>);

/// The number of requests that have computed their statements.
type Computed = Arc<AtomicUsize>;

#[atomic_phases(name = "statements", version = 1, app = Computed)]
impl Statements {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>, app: &Computed) -> PhaseResult<Reply> {
        self.0.iter().for_each(|sql| batch.add(diesel::sql_query(sql.clone())));
        app.fetch_add(1, Ordering::Relaxed);
        Ok(Reply::new(204))
    }
}

struct Bench {
    db: Sqlite,
    engine: Engine<Sqlite, Computed>,
    computed: Computed,
}

impl Bench {
    /// An engine that has already read the database's clock, so that nothing of a request comes between its phase
    /// and the writer.
    async fn new() -> Self {
        Self::on(Sqlite::fresh().await).await
    }

    async fn on(db: Sqlite) -> Self {
        let computed = Computed::default();
        let builder = Engine::builder(db.clone()).app(computed.clone());
        let engine = builder.register::<Statements>().build().unwrap();
        finished(engine.call(&scope(), &key("first"), Statements(vec![])).await);
        Self { db, engine, computed }
    }

    fn call(&self, name: &str, statements: &[&str]) -> JoinHandle<Result<Outcome, CallError>> {
        let statements = statements.iter().map(|&sql| sql.to_owned()).collect();
        let call = self.engine.call(&scope(), &key(name), Statements(statements));
        let call = call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(30)));
        tokio::spawn(call.__call_in_place())
    }

    /// Requests, each with its key and its statements, that wait for the writer together. The runtime has one
    /// thread, so a request that has computed its statements has also handed them over.
    async fn together(&self, calls: &[(&str, &[&str])]) -> Vec<Result<Outcome, CallError>> {
        let before = self.computed.load(Ordering::Relaxed);
        let writer = self.db.connection().await.unwrap();
        let calls: Vec<_> = calls.iter().map(|(name, sql)| self.call(name, sql)).collect();
        until(async || self.computed.load(Ordering::Relaxed) >= before + calls.len()).await;
        drop(writer);
        let mut told = Vec::new();
        for call in calls {
            told.push(call.await.unwrap());
        }
        told
    }

    async fn things(&self) -> String {
        let all = "SELECT coalesce(group_concat(name, ' '), '') FROM \
            (SELECT name FROM unique_things ORDER BY name)";
        self.db.text(all).await
    }

    async fn keys(&self) -> i64 {
        self.db.number("SELECT count(*) FROM atomic_phases_keys").await - 1
    }

    /// The transactions in the log, each made durable by one fsync: frames that contain the size of the database
    /// after a commit (<https://sqlite.org/fileformat2.html#the_write_ahead_log>).
    async fn commits(&self) -> usize {
        let file = self.db.text("SELECT file FROM pragma_database_list").await;
        let log = std::fs::read(PathBuf::from(file + "-wal")).unwrap();
        let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
        let is_of_this_log = |frame: &&[u8]| frame[8..16] == log[16..24];
        let frames = log[32..].chunks_exact(24 + page).take_while(is_of_this_log);
        frames.filter(|frame| frame[4..8] != [0; 4]).count()
    }
}

const ADD: [&str; 4] = [
    "INSERT INTO unique_things VALUES ('a')",
    "INSERT INTO unique_things VALUES ('b')",
    "INSERT INTO unique_things VALUES ('c')",
    "INSERT INTO unique_things VALUES ('d')",
];

#[tokio::test]
async fn those_that_wait_at_one_moment_share_a_commit() {
    let bench = Bench::new().await;
    let before = bench.commits().await;
    let names: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let one = ["INSERT INTO steps VALUES ('k', 'done')"];
    let calls: Vec<_> = names.iter().map(|name| (name.as_str(), &one[..])).collect();
    for told in bench.together(&calls).await {
        finished(told);
    }
    assert_eq!(bench.db.number("SELECT count(*) FROM steps").await, 40);
    assert_eq!(bench.commits().await, before + 1);
    assert!(finished(bench.call("k0", &one).await.unwrap()).replayed);
    assert_eq!(bench.commits().await, before + 1, "a replay writes nothing");
}

#[tokio::test]
async fn g4_one_that_fails_fails_alone() {
    for spoilt in [
        // A statement that fails, after one that does not.
        vec![ADD[3], ADD[3]],
        // One that rolls the whole transaction back.
        vec![ADD[3], "INSERT OR ROLLBACK INTO unique_things VALUES ('a')"],
        // A constraint that is checked only at the common COMMIT.
        vec![ADD[3], "INSERT INTO late VALUES (1)"],
        // Savepoints with the engine's name.
        vec!["SAVEPOINT atomic_phases", ADD[3], ADD[3]],
        vec![ADD[3], "SAVEPOINT atomic_phases", ADD[3]],
        vec![ADD[3], "RELEASE atomic_phases"],
    ] {
        let bench = Bench::new().await;
        bench.db.sql("CREATE TABLE early (id INTEGER PRIMARY KEY)").await;
        let late = "CREATE TABLE late (id INTEGER REFERENCES early DEFERRABLE INITIALLY DEFERRED)";
        bench.db.sql(late).await;
        let calls = [("a", &ADD[..1]), ("bad", &spoilt), ("b", &ADD[1..2]), ("c", &ADD[2..3])];
        let told = bench.together(&calls).await;
        for (told, (name, _)) in told.into_iter().zip(calls) {
            match name {
                "bad" => assert!(!matches!(told, Ok(Outcome::Finished(_))), "{spoilt:?}: {told:?}"),
                _ => assert!(!finished(told).replayed, "{spoilt:?}"),
            }
        }
        assert_eq!(bench.things().await, "a b c", "{spoilt:?}");
        assert_eq!(bench.db.number("SELECT count(*) FROM late").await, 0);
        assert_eq!(bench.keys().await, 3, "{spoilt:?}");
    }
}

/// In a shared commit, the first would defer the violation of the second, and the third make SQLite forget it.
#[tokio::test]
async fn g4_a_pragma_of_one_forgets_no_violation_of_another() {
    let bench = Bench::new().await;
    bench.db.sql("CREATE TABLE early (id INTEGER PRIMARY KEY)").await;
    let late = "CREATE TABLE late (id INTEGER REFERENCES early DEFERRABLE INITIALLY DEFERRED)";
    bench.db.sql(late).await;
    let calls = [
        ("on", &["PRAGMA defer_foreign_keys = ON"][..]),
        ("orphan", &["INSERT INTO late VALUES (1)"]),
        ("off", &[ADD[0], "-- forget\nPRAGMA defer_foreign_keys = OFF"]),
    ];
    let [on, orphan, off]: [_; 3] = bench.together(&calls).await.try_into().unwrap();
    assert!(!matches!(orphan, Ok(Outcome::Finished(_))), "{orphan:?}");
    finished(on);
    finished(off);
    assert_eq!(bench.db.number("SELECT count(*) FROM pragma_foreign_key_check").await, 0);
    assert_eq!((bench.things().await.as_str(), bench.keys().await), ("a", 2));
}

#[tokio::test]
async fn g4_where_one_fails_the_others_still_share_their_commit() {
    let bench = Bench::new().await;
    let before = bench.commits().await;
    let calls = [("a", &ADD[..1]), ("bad", &ADD[..1]), ("b", &ADD[1..2])];
    let [a, bad, b]: [_; 3] = bench.together(&calls).await.try_into().unwrap();
    finished(a);
    finished(b);
    let cause = failed(bad);
    assert!(matches!(cause, FailureCause::Database { phase: "answered", .. }), "{cause:?}");
    assert_eq!(bench.commits().await, before + 1);
}

/// A transaction that an application left open does not block them.
#[tokio::test]
async fn a_transaction_that_was_left_open_is_undone_first() {
    let bench = Bench::new().await;
    bench.db.sql(&format!("BEGIN; {}", ADD[3])).await;
    for told in bench.together(&[("a", &ADD[..1]), ("b", &ADD[1..2])]).await {
        finished(told);
    }
    assert_eq!((bench.things().await.as_str(), bench.keys().await), ("a b", 2));
}

/// G4: SQLite would execute the first statement and silently ignore the second.
#[tokio::test]
async fn g4_a_text_of_two_statements_is_refused() {
    let bench = Bench::new().await;
    let two = format!("{}; {}", ADD[0], ADD[1]);
    for text in [&two, &format!("SELECT 1; -- first\n {two}")] {
        let cause = failed(bench.call("two", &[text]).await.unwrap());
        let FailureCause::Misuse { phase: "answered", rule } = cause else { panic!("{cause:?}") };
        assert!(rule.contains("several statements"), "{rule}");
    }
    assert_eq!(bench.things().await, "");
    finished(bench.call("one", &[&format!(" ;{}; -- the end;\n;", ADD[0])]).await.unwrap());
    assert_eq!(bench.things().await, "a");
}

/// G16: it would be set for the phases of all scopes.
#[tokio::test]
async fn g16_a_statement_that_changes_the_connection_is_refused() {
    let bench = Bench::new().await;
    for text in ["PRAGMA query_only = ON", "ATTACH ':memory:' AS aside"] {
        let cause = failed(bench.call("set", &[ADD[0], text]).await.unwrap());
        let FailureCause::Misuse { phase: "answered", rule } = cause else { panic!("{cause:?}") };
        assert!(rule.contains("connection() when it is opened"), "{rule}");
    }
    finished(bench.call("one", &[ADD[0]]).await.unwrap());
    assert_eq!(bench.things().await, "a");
}

#[tokio::test]
async fn g10_of_duplicates_that_share_a_commit_one_is_executed() {
    let bench = Bench::new().await;
    let one = ["INSERT INTO steps VALUES ('k', 'done')"];
    let told = bench.together(&[("k", &one), ("k", &one), ("k", &one)]).await;
    let replayed = told.into_iter().map(finished).filter(|finished| finished.replayed).count();
    assert_eq!(replayed, 2);
    assert_eq!(bench.db.number("SELECT count(*) FROM steps").await, 1);
}

/// An answer sent before the COMMIT would be wrong here.
#[tokio::test]
async fn g8_where_the_commit_fails_no_caller_is_told_that_it_did_not() {
    let bench = Bench::new().await;
    let folder = tempfile::tempdir().unwrap();
    let aside = folder.path().join("aside.db");
    // A second file, without a log: a reader of it blocks a writer's COMMIT, and nothing before that.
    let reader = rusqlite::Connection::open(&aside).unwrap();
    reader.execute_batch("CREATE TABLE things (name TEXT)").unwrap();
    let count = || -> i64 {
        reader.query_row("SELECT count(*) FROM things", [], |row| row.get(0)).unwrap()
    };
    let attach = format!("PRAGMA busy_timeout = 0; ATTACH '{}' AS aside", aside.display());
    bench.db.sql(&attach).await;
    let aside = ["INSERT INTO aside.things VALUES ('aside')"];
    let calls = [("a", &ADD[..1]), ("aside", &aside), ("b", &ADD[1..2])];

    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(count(), 0);
    for told in bench.together(&calls).await {
        assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    }
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!((bench.things().await.as_str(), bench.keys().await, count()), ("", 0, 0));
    for told in bench.together(&calls).await {
        assert!(!finished(told).replayed);
    }
    assert_eq!((bench.things().await.as_str(), bench.keys().await, count()), ("a b", 3, 1));
}

/// G7: after a failure of the COMMIT itself, the outcome is unknown to each request, until each has resolved it.
#[tokio::test]
#[ignore = "mounts a tmpfs of 1 MB: run as root with --ignored"]
async fn g7_a_shared_commit_that_the_disk_has_no_room_for_commits_no_request() {
    let disk = tempfile::tempdir().unwrap();
    let mounted = Mounted::on(disk.path());
    let db = Sqlite::connect(disk.path().join("test.db").to_str().unwrap()).await.unwrap();
    db.migrate().await.unwrap();
    db.sql("CREATE TABLE unique_things (name TEXT PRIMARY KEY)").await;
    let bench = Bench::on(db).await;
    let filler = disk.path().join("filler");
    assert!(std::fs::write(&filler, vec![0; 2 << 20]).is_err(), "it was to fill the disk");

    let calls = [("a", &ADD[..1]), ("b", &ADD[1..2]), ("c", &ADD[2..3])];
    for told in bench.together(&calls).await {
        let Err(CallError::Unavailable(StoreError::Database { doing, .. })) = told else {
            panic!("{told:?}")
        };
        assert_eq!(doing, "commit");
    }
    std::fs::remove_file(filler).unwrap();
    assert_eq!((bench.things().await.as_str(), bench.keys().await), ("", 0));
    for told in bench.together(&calls).await {
        assert!(!finished(told).replayed);
    }
    assert_eq!((bench.things().await.as_str(), bench.keys().await), ("a b c", 3));
    drop((bench, mounted));
}

struct Mounted(PathBuf);

impl Mounted {
    fn on(folder: &Path) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(folder);
        assert!(mount.status().unwrap().success(), "mount needs root");
        Self(folder.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn another_process_that_writes_is_waited_for() {
    let bench = Bench::new().await;
    let file = bench.db.text("SELECT file FROM pragma_database_list").await;
    let other = rusqlite::Connection::open(file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let calls = [bench.call("a", &ADD[..1]), bench.call("b", &ADD[1..2])];
    until(async || bench.computed.load(Ordering::Relaxed) >= 3).await;
    assert!(!calls[0].is_finished() && !calls[1].is_finished());
    other.execute_batch("COMMIT").unwrap();
    for call in calls {
        finished(call.await.unwrap());
    }
}

#[tokio::test]
async fn g13_a_batch_that_was_dropped_in_the_queue_is_not_begun() {
    let bench = Bench::new().await;
    let writer = bench.db.connection().await.unwrap();
    let calls = [bench.call("a", &ADD[..1]), bench.call("b", &ADD[1..2])];
    until(async || bench.computed.load(Ordering::Relaxed) >= 3).await;
    let [dropped, kept] = calls;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    drop(writer);
    finished(kept.await.unwrap());
    assert_eq!((bench.things().await.as_str(), bench.keys().await), ("b", 1));
}

#[tokio::test]
async fn g12_a_batch_that_waited_too_long_is_not_begun() {
    let bench = Bench::new().await;
    let writer = bench.db.connection().await.unwrap();
    // From here on the clock advances whenever this thread has nothing else to do.
    tokio::time::pause();
    let told = bench.call("a", &ADD[..1]).await.unwrap();
    assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    tokio::time::resume();
    drop(writer);
    finished(bench.call("b", &ADD[1..2]).await.unwrap());
    assert_eq!((bench.things().await.as_str(), bench.keys().await), ("b", 1));
}

/// G16: a request that only reads waits for no writer.
#[tokio::test]
async fn a_replay_does_not_wait_for_the_writer() {
    let bench = Bench::new().await;
    let writer = bench.db.connection().await.unwrap();
    assert!(finished(bench.call("first", &[]).await.unwrap()).replayed);
    drop(writer);
}

#[tokio::test]
async fn a_database_in_memory_has_one_connection_for_all() {
    let db = Sqlite::connect(":memory:").await.unwrap();
    db.migrate().await.unwrap();
    let builder = Engine::builder(db).app(Computed::default());
    let engine = builder.register::<Statements>().build().unwrap();
    for replayed in [false, true] {
        let told = engine.call(&scope(), &key("k"), Statements(vec![])).await;
        assert_eq!(finished(told).replayed, replayed);
    }
}
