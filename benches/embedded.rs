//! The embedded store beside a program by hand, on rusqlite, with the same commits and the same
//! durability.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::{Engine, Sqlite};
use diesel_async::SimpleAsyncConnection;
use rusqlite::{Connection, params};
use uuid::Uuid;

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
    engine: Engine<Sqlite, App>,
    _folder: tempfile::TempDir,
}

impl Embedded {
    pub async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let by_hand = Connection::open(folder.path().join("by_hand.db")).unwrap();
        by_hand.execute_batch(&format!("{OWN}{BUSINESS}")).unwrap();
        by_hand.set_prepared_statement_cache_capacity(32);
        let store =
            Sqlite::connect(folder.path().join("engine.db").to_str().unwrap()).await.unwrap();
        atomic_phases::Store::migrate(&store).await.unwrap();
        store.connection().await.unwrap().batch_execute(BUSINESS).await.unwrap();
        let engine = Engine::builder(store).app(App::default()).register::<sqlite::Ride>();
        let engine = engine.register::<sqlite::BatchRide>().build().unwrap();
        Self { by_hand: Arc::new(Mutex::new(by_hand)), engine, _folder: folder }
    }

    pub const NAMES: [&'static str; 3] = ["rusqlite", "sqlite engine", "sqlite batch"];

    /// One of [`NAMES`](Self::NAMES), with so many requests at once.
    pub async fn run(&self, name: &str, at_once: usize, length: Duration) -> Figures {
        match name {
            "sqlite engine" => {
                for_a_while(at_once, length, &|| 0.0, fresh(&self.engine, sqlite_ride())).await
            }
            "sqlite batch" => {
                for_a_while(at_once, length, &|| 0.0, fresh(&self.engine, sqlite_batch_ride()))
                    .await
            }
            _ => self.by_hand(at_once, length).await,
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
