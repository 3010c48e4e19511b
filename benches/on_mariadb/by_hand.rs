//! A fresh request and a replay by hand on `mysql_async`, on a narrow table, with the engine's commits and without
//! a line of the engine: one prepared statement after the other, each transaction as a single text, and each as one
//! prepared block.

use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, RecycleResult, Timeouts};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, OptsBuilder, Params, Row, Value};
use uuid::Uuid;

use super::guarded::SESSION_RESET;

const PRINT: &str = "v1-0000000000000000000000000000000000000000000000000000000000000000";
pub const PARAMS: &str = r#"{"user":1,"amount":2000}"#;
const CHARGE: &str = "ch_00000000000000000000000000000000";

pub const NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)";

const LOOK: &str = "SELECT fingerprint, recovery_point, response_status, response_body FROM limit_keys \
    WHERE scope = ? AND idempotency_key = ?";
pub const RIDE: &str = "INSERT INTO bench_rides (id, amount, charge) VALUES (?, 2000, '')";
pub const AUDIT: &str = "INSERT INTO bench_audits (id, action) VALUES (?, 'created')";
pub const SET_CHARGE: &str = "UPDATE bench_rides SET charge = ? WHERE id = ?";
pub const JOB: &str = "INSERT INTO limit_jobs (scope, name, args) VALUES (?, 'receipt', ?)";
const FINISH: &str = "UPDATE limit_keys SET locked_until = NULL, response_status = 201, response_body = ?, \
    recovery_point = 'finished' WHERE scope = ? AND idempotency_key = ? AND token = 1 \
    AND recovery_point = 'created'";

fn reserve() -> String {
    format!(
        "INSERT INTO limit_keys (scope, idempotency_key, fingerprint, params, outputs, recovery_point, token, \
         locked_until, created_at) VALUES (?, ?, ?, ?, ?, 'created', 1, {NOW} + 30000, {NOW})"
    )
}

/// The application's statements, as each connection has prepared them for its blocks: under a name, because a block would keep
/// the views, triggers and functions of its first execution. And the settings of a session at rest.
const NAMED: [(&str, &str); 4] = [
    ("ride", RIDE),
    ("audit", AUDIT),
    ("set_charge", SET_CHARGE),
    ("session_reset", SESSION_RESET),
];

/// What undoes a block that fails.
pub const UNDO: &str = "DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END";

pub struct Connections(Opts);

impl managed::Manager for Connections {
    type Type = Conn;
    type Error = Error;

    async fn create(&self) -> Result<Conn, Error> {
        let mut conn = Conn::new(self.0.clone()).await?;
        conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        for (name, sql) in NAMED {
            let sql = sql.replace('\'', "''");
            conn.query_drop(format!("PREPARE {name} FROM '{sql}'")).await?;
        }
        Ok(conn)
    }

    async fn recycle(&self, _: &mut Conn, _: &Metrics) -> RecycleResult<Error> {
        Ok(())
    }
}

/// A program by hand on a pool of its own.
#[derive(Clone)]
pub struct ByHand(managed::Pool<Connections>);

/// One request's names.
struct Names {
    scope: &'static str,
    key: String,
    ride: String,
    audit: String,
    body: String,
}

impl Names {
    fn new() -> Self {
        let ride = Uuid::new_v4().to_string();
        let body = format!(r#"{{"ride":"{ride}","charge":"{CHARGE}"}}"#);
        let (key, audit) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
        Self { scope: "tenant-1", key, ride, audit, body }
    }

    fn reserve(&self) -> Vec<Value> {
        values([self.scope, &self.key, PRINT, PARAMS, &self.ride])
    }

    fn finish(&self) -> Vec<Value> {
        values([&self.body, self.scope, &self.key])
    }
}

pub fn values<const N: usize>(texts: [&str; N]) -> Vec<Value> {
    texts.into_iter().map(Value::from).collect()
}

/// The same with literals in place of the binds.
fn literal(sql: &str, values: Vec<Value>) -> String {
    let mut parts = sql.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (value, part) in values.into_iter().zip(parts) {
        text += &value.as_sql(true);
        text += part;
    }
    text
}

impl ByHand {
    pub fn on(url: &str, connections: usize) -> Self {
        let opts = OptsBuilder::from_opts(Opts::from_url(url).unwrap());
        let opts = opts.prefer_socket(false).client_found_rows(true);
        let wait = Some(Duration::from_secs(60));
        let pool = managed::Pool::builder(Connections(opts.into()))
            .max_size(connections)
            .timeouts(Timeouts { wait, create: wait, recycle: wait })
            .runtime(deadpool::Runtime::Tokio1)
            .build();
        Self(pool.unwrap())
    }

    pub async fn connection(&self) -> Object<Connections> {
        self.0.get().await.unwrap()
    }

    /// The rows that [`replay`](Self::replay) reads.
    pub async fn answer_some(&self, rows: u64) {
        let sql = format!(
            "INSERT INTO limit_keys SELECT 'replay', CONCAT('key-', seq), '{PRINT}', 'finished', 1, NULL, {NOW}, \
             '{PARAMS}', REPEAT('o', 36), 201, REPEAT('b', 90) FROM seq_0_to_{}",
            rows - 1
        );
        self.connection().await.query_drop(sql).await.unwrap();
    }

    pub async fn fresh(self) {
        let it = Names::new();
        self.look(it.scope, &it.key).await;
        let mut conn = self.connection().await;
        conn.query_drop("START TRANSACTION").await.unwrap();
        for (sql, values) in [
            (reserve().as_str(), it.reserve()),
            (RIDE, values([&it.ride])),
            (AUDIT, values([&it.audit])),
        ] {
            run(&mut conn, sql, values).await;
        }
        conn.query_drop("COMMIT").await.unwrap();
        drop(conn);

        called().await;

        let mut conn = self.connection().await;
        conn.query_drop("START TRANSACTION").await.unwrap();
        for (sql, values) in [
            (SET_CHARGE, values([CHARGE, &it.ride])),
            (JOB, values([it.scope, "2000"])),
            (FINISH, it.finish()),
        ] {
            run(&mut conn, sql, values).await;
        }
        assert_eq!(conn.affected_rows(), 1);
        conn.query_drop("COMMIT").await.unwrap();
    }

    /// The same with each transaction as a single text.
    pub async fn fresh_as_texts(self) {
        let it = Names::new();
        self.look(it.scope, &it.key).await;
        let first = [
            literal(&reserve(), it.reserve()),
            literal(RIDE, values([&it.ride])),
            literal(AUDIT, values([&it.audit])),
        ];
        self.text(&first).await;
        called().await;
        let last = [
            literal(SET_CHARGE, values([CHARGE, &it.ride])),
            literal(JOB, values([it.scope, "2000"])),
            literal(FINISH, it.finish()),
        ];
        self.text(&last).await;
    }

    async fn text(&self, statements: &[String]) {
        let text = format!("START TRANSACTION; {}; COMMIT", statements.join("; "));
        self.connection().await.query_drop(text).await.unwrap();
    }

    /// The same with each transaction as a single prepared block; for a key that may be new, or is.
    pub async fn fresh_single_statement(self, is_new: bool) {
        let it = Names::new();
        if !is_new {
            self.look(it.scope, &it.key).await;
        }
        let first = [it.reserve(), values([&it.ride]), values([&it.audit])].concat();
        let reserve = reserve();
        self.block(&format!("{reserve}; {RIDE}; {AUDIT}"), first).await;
        called().await;
        let last = [values([CHARGE, &it.ride, it.scope, "2000"]), it.finish()].concat();
        self.block(&format!("{SET_CHARGE}; {JOB}; {FINISH}"), last).await;
    }

    async fn block(&self, statements: &str, values: Vec<Value>) {
        let block =
            format!("BEGIN NOT ATOMIC {UNDO}; START TRANSACTION; {statements}; COMMIT; END");
        run(&mut *self.connection().await, &block, values).await;
    }

    async fn look(&self, scope: &str, key: &str) -> Vec<Row> {
        self.read(LOOK, values([scope, key])).await
    }

    pub async fn read(&self, sql: &str, values: Vec<Value>) -> Vec<Row> {
        self.connection().await.exec(sql, Params::Positional(values)).await.unwrap()
    }

    pub async fn replay(self, key: String) {
        assert_eq!(self.look("replay", &key).await.len(), 1);
    }
}

pub async fn run(conn: &mut Conn, sql: &str, values: Vec<Value>) {
    conn.exec_drop(sql, Params::Positional(values)).await.unwrap();
}

/// The foreign call, in another task.
pub async fn called() {
    tokio::spawn(async {}).await.unwrap();
}
