//! The embedded store beside programs by hand, on rusqlite, with the same commits and the same
//! durability: one on a narrow table, behind a mutex; and one with what the guarantees need, on the engine's tables,
//! on a thread of its own.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use atomic_phases::Engine;
use atomic_phases::store::Sqlite;
use diesel_async::SimpleAsyncConnection;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::by_hand::hash;
use crate::contestants::{fresh, sqlite_batch_ride, sqlite_ride};
use crate::load::{Figures, for_a_while};
use crate::requests::{App, sqlite};

const BUSINESS: &str = "
    CREATE TABLE bench_rides (id text PRIMARY KEY, amount bigint NOT NULL, charge text NOT NULL);
    CREATE TABLE bench_audits (id text PRIMARY KEY, action text NOT NULL);";

const OWN: &str = "
    PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    CREATE TABLE limit_keys (
        scope text NOT NULL, idempotency_key text NOT NULL, fingerprint text NOT NULL,
        recovery_point text NOT NULL, token bigint NOT NULL, locked_until bigint,
        created_at bigint NOT NULL, params blob NOT NULL, outputs blob,
        response_status int, response_body blob, PRIMARY KEY (scope, idempotency_key)
    ) WITHOUT ROWID;
    CREATE INDEX limit_keys_created ON limit_keys (created_at);
    CREATE TABLE limit_jobs (
        id integer PRIMARY KEY, scope text NOT NULL, name text NOT NULL, args blob NOT NULL);";

const FINGERPRINT: &str = "v1-0000000000000000000000000000000000000000000000000000000000000000";

pub struct Embedded {
    by_hand: Arc<Mutex<Connection>>,
    guarded: Thread,
    engine: Engine<Sqlite, App>,
    _folder: tempfile::TempDir,
}

impl Embedded {
    pub async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let by_hand = Connection::open(folder.path().join("by_hand.db")).unwrap();
        by_hand.execute_batch(&format!("{OWN}{BUSINESS}")).unwrap();
        by_hand.set_prepared_statement_cache_capacity(32);
        let file = folder.path().join("guarded.db");
        let tables = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
        atomic_phases::Store::migrate(&tables).await.unwrap();
        tables.connection().await.unwrap().batch_execute(BUSINESS).await.unwrap();
        drop(tables);
        let guarded = Connection::open(file).unwrap();
        guarded.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").unwrap();
        guarded.set_prepared_statement_cache_capacity(32);
        let store =
            Sqlite::connect(folder.path().join("engine.db").to_str().unwrap()).await.unwrap();
        atomic_phases::Store::migrate(&store).await.unwrap();
        store.connection().await.unwrap().batch_execute(BUSINESS).await.unwrap();
        let engine = Engine::builder(store).app(App::default()).register::<sqlite::Ride>();
        let engine = engine.register::<sqlite::BatchRide>().build().unwrap();
        let by_hand = Arc::new(Mutex::new(by_hand));
        Self { by_hand, guarded: Thread::of(guarded), engine, _folder: folder }
    }

    pub const NAMES: [&'static str; 4] =
        ["rusqlite", "rusqlite, guarded", "sqlite engine", "sqlite batch"];

    /// One of [`NAMES`](Self::NAMES), with so many concurrent requests.
    pub async fn run(&self, name: &str, concurrent: usize, length: Duration) -> Figures {
        match name {
            "sqlite engine" => {
                for_a_while(concurrent, length, &|| 0.0, fresh(&self.engine, sqlite_ride())).await
            }
            "sqlite batch" => {
                for_a_while(concurrent, length, &|| 0.0, fresh(&self.engine, sqlite_batch_ride()))
                    .await
            }
            "rusqlite, guarded" => {
                let thread = self.guarded.clone();
                let work = move || guarded(thread.clone());
                for_a_while(concurrent, length, &|| 0.0, work).await
            }
            _ => self.by_hand(concurrent, length).await,
        }
    }

    async fn by_hand(&self, concurrent: usize, length: Duration) -> Figures {
        let conn = self.by_hand.clone();
        let work = move || {
            let conn = conn.clone();
            async move {
                let id = Uuid::new_v4().to_string();
                first(&conn.lock().unwrap(), &id).unwrap();
                // The foreign call goes here, without the connection.
                tokio::task::yield_now().await;
                last(&conn.lock().unwrap(), &id).unwrap();
            }
        };
        for_a_while(concurrent, length, &|| 0.0, work).await
    }
}

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// A connection on a thread of its own, as a store has it that blocks no task of its application's: a hand-over there,
/// and one back.
#[derive(Clone)]
struct Thread(mpsc::Sender<Job>);

impl Thread {
    fn of(conn: Connection) -> Self {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || jobs.into_iter().for_each(|job| job(&conn)));
        Self(sender)
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> T {
        let (tell, told) = oneshot::channel();
        self.0.send(Box::new(move |conn| drop(tell.send(job(conn))))).unwrap();
        told.await.unwrap().unwrap()
    }
}

/// A request with G1 to G8 on the engine's tables and indexes.
async fn guarded(thread: Thread) {
    let print = hash(&["POST", "/rides", PARAMS]);
    let [key, ride, audit] = [(); 3].map(|()| Uuid::new_v4().to_string());
    let (id, job) = (Uuid::new_v4(), Uuid::new_v4());
    let names = Arc::new(Names { print, key, ride, audit, id, job });
    let it = names.clone();
    let first = move |conn: &Connection| {
        let seen = "SELECT request_id, definition, definition_version, fingerprint, status, lease_token, \
            unixepoch(), locked_until, run_after, expires_at, trace, response_status, response_headers, \
            response_body FROM atomic_phases_keys WHERE scope = ? AND idempotency_key = ?";
        assert!(!conn.prepare_cached(seen)?.exists(["tenant-1", &it.key])?);
        guarded_first(conn, &it)
    };
    thread.run(first).await;
    let foreign_key = hash(&["tenant-1", &names.key, "charged", &names.print]);
    let charge = tokio::spawn(async move { format!("ch_{}", &foreign_key[..32]) }).await.unwrap();
    thread.run(move |conn| guarded_last(conn, &names, &charge)).await;
}

struct Names {
    print: String,
    key: String,
    ride: String,
    audit: String,
    id: Uuid,
    job: Uuid,
}

const PARAMS: &str = r#"{"user":1,"amount":2000}"#;

const PHASES: &str = r#"["started","created","charged","finished"]"#;

/// The output of the phase is stored when it ends (G4), and a fence that finds no row is an error (G3).
fn guarded_first(conn: &Connection, it: &Names) -> rusqlite::Result<()> {
    run(conn, "BEGIN IMMEDIATE", [])?;
    let sql = "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, definition_version, \
        phases, fingerprint, status, recovery_point, lease_token, attempts, locked_until, advanced_at, created_at, \
        expires_at, params) SELECT 'tenant-1', ?, ?, 'bench.ride', 1, ?, ?, 'in_progress', 'started', 1, 1, t + 30000, \
        t, t, t + 86400000, ? FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS t) WHERE true \
        ON CONFLICT (scope, idempotency_key) DO NOTHING";
    let id = it.id.as_bytes().as_slice();
    let values = params![it.key, id, PHASES, it.print, PARAMS.as_bytes()];
    assert_eq!(run(conn, sql, values)?, 1);
    run(conn, "INSERT INTO bench_rides VALUES (?, 2000, '')", [&it.ride])?;
    run(conn, "INSERT INTO bench_audits VALUES (?, 'created')", [&it.audit])?;
    let sql = "UPDATE atomic_phases_keys SET recovery_point = 'created', outputs = ?, \
        advanced_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER), \
        locked_until = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + 30000 \
        WHERE scope = 'tenant-1' AND idempotency_key = ? AND request_id = ? AND lease_token = 1 \
        AND recovery_point = 'started' AND status = 'in_progress'";
    let outputs = format!(r#"[{{"ride":"{}"}}]"#, it.ride);
    assert_eq!(run(conn, sql, params![outputs.as_bytes(), it.key, id])?, 1);
    run(conn, "COMMIT", [])?;
    Ok(())
}

fn guarded_last(conn: &Connection, it: &Names, charge: &str) -> rusqlite::Result<()> {
    run(conn, "BEGIN IMMEDIATE", [])?;
    run(conn, "UPDATE bench_rides SET charge = ? WHERE id = ?", [charge, &it.ride])?;
    let sql = "INSERT INTO atomic_phases_staged_jobs (scope, job_id, idempotency_key, request_id, position, name, args, \
        staged_at, run_after) SELECT 'tenant-1', ?, ?, ?, 0, 'receipt', ?, t, t \
        FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS t)";
    let (id, job) = (it.id.as_bytes().as_slice(), it.job.as_bytes().as_slice());
    run(conn, sql, params![job, it.key, id, b"2000"])?;
    let sql = "UPDATE atomic_phases_keys SET status = 'completed', recovery_point = 'finished', locked_until = NULL, \
        advanced_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER), response_status = 201, \
        response_headers = ?, response_body = ? WHERE scope = 'tenant-1' AND idempotency_key = ? AND request_id = ? \
        AND lease_token = 1 AND recovery_point = 'created' AND status = 'in_progress'";
    let headers = r#"[["content-type","application/json"]]"#;
    let body = format!(r#"{{"ride":"{}","charge":"{charge}"}}"#, it.ride);
    let values = params![headers.as_bytes(), body.as_bytes(), it.key, id];
    assert_eq!(run(conn, sql, values)?, 1);
    run(conn, "COMMIT", [])?;
    Ok(())
}

fn run(conn: &Connection, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<usize> {
    conn.prepare_cached(sql)?.execute(values)
}

fn first(conn: &Connection, id: &str) -> rusqlite::Result<()> {
    run(conn, "BEGIN IMMEDIATE", [])?;
    let sql = "INSERT INTO limit_keys (scope, idempotency_key, fingerprint, recovery_point, token, \
        locked_until, created_at, params, outputs) \
        VALUES (?, ?, ?, 'created', 1, unixepoch() + 30, unixepoch(), ?, ?) ON CONFLICT DO NOTHING";
    let values = params!["tenant-1", id, FINGERPRINT, r#"{"user":1,"amount":2000}"#, id];
    run(conn, sql, values)?;
    run(conn, "INSERT INTO bench_rides VALUES (?, 2000, '')", [id])?;
    run(conn, "INSERT INTO bench_audits VALUES (?, 'created')", [id])?;
    run(conn, "COMMIT", [])?;
    Ok(())
}

fn last(conn: &Connection, id: &str) -> rusqlite::Result<()> {
    run(conn, "BEGIN IMMEDIATE", [])?;
    run(conn, "UPDATE bench_rides SET charge = ? WHERE id = ?", ["ch_00000000", id])?;
    let sql = "INSERT INTO limit_jobs (scope, name, args) VALUES ('tenant-1', 'receipt', ?)";
    run(conn, sql, ["2000"])?;
    let sql = "UPDATE limit_keys SET recovery_point = 'finished', locked_until = NULL, \
        response_status = 201, response_body = ? \
        WHERE scope = 'tenant-1' AND idempotency_key = ? AND token = 1 AND recovery_point = 'created'";
    assert_eq!(run(conn, sql, params![id.as_bytes(), id])?, 1);
    run(conn, "COMMIT", [])?;
    Ok(())
}
