//! The floor of the driver: a fresh request and a replay by hand on diesel-async, with the engine's
//! pool, commits and round trips, on the yardstick's narrow table, and without a line of the engine.

mod engines_tables;
mod guarded;

use atomic_phases::store::{DeadpoolPool, Postgres};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use deadpool::managed::Object;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::sql_types::{
    BigInt, Binary, Integer, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid,
};
use diesel::{ExpressionMethods, QueryResult};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use sha2::{Digest, Sha256};
use tokio::try_join;
use uuid::Uuid;

pub use self::engines_tables::ENGINES;
pub use self::guarded::{HEADERS, NARROW};
use crate::requests::{bench_audits, bench_rides};

/// A statement that is prepared once: text, a bind, text, a bind …
struct Cached<const NAME: u8, const BINDS: usize> {
    text: &'static [&'static str],
    binds: [String; BINDS],
}

impl<const NAME: u8, const BINDS: usize> QueryId for Cached<NAME, BINDS> {
    type QueryId = Self;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl<const NAME: u8, const BINDS: usize> QueryFragment<Pg> for Cached<NAME, BINDS> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        for (place, text) in self.text.iter().enumerate() {
            out.push_sql(text);
            if let Some(bind) = self.binds.get(place) {
                out.push_bind_param::<Text, String>(bind)?;
            }
        }
        Ok(())
    }
}

impl<const NAME: u8, const BINDS: usize> Query for Cached<NAME, BINDS> {
    type SqlType = (Text, Text, Nullable<SmallInt>, Nullable<Binary>);
}

impl<const NAME: u8, const BINDS: usize> diesel::RunQueryDsl<AsyncPgConnection>
    for Cached<NAME, BINDS>
{
}

fn plain<const NAME: u8>(text: &'static [&'static str]) -> Cached<NAME, 0> {
    Cached { text, binds: [] }
}

fn begin() -> Cached<0, 0> {
    plain(&["BEGIN ISOLATION LEVEL READ COMMITTED"])
}

fn commit() -> Cached<2, 0> {
    plain(&["COMMIT"])
}

fn read(scope: &str, key: &str) -> Cached<3, 2> {
    Cached {
        text: &[
            "SELECT fingerprint, recovery_point, response_status, response_body \
             FROM limit_keys WHERE scope = ",
            " AND idempotency_key = ",
        ],
        binds: [scope.to_owned(), key.to_owned()],
    }
}

fn reserve(scope: &str, key: &str, fingerprint: &str, params: &str, outputs: &str) -> Cached<4, 5> {
    Cached {
        text: &[
            "INSERT INTO limit_keys (scope, idempotency_key, fingerprint, params, outputs, \
             recovery_point, token, locked_until, created_at) SELECT ",
            ", ",
            ", ",
            ", convert_to(",
            ", 'UTF8'), convert_to(",
            ", 'UTF8'), 'created', 1, t + interval '30 s', t FROM clock_timestamp() AS t \
             ON CONFLICT DO NOTHING",
        ],
        binds: [scope, key, fingerprint, params, outputs].map(str::to_owned),
    }
}

fn job(scope: &str, args: &str) -> Cached<5, 2> {
    Cached {
        text: &[
            "INSERT INTO limit_jobs (scope, name, args) SELECT ",
            ", 'receipt', convert_to(",
            ", 'UTF8')",
        ],
        binds: [scope, args].map(str::to_owned),
    }
}

fn finish(scope: &str, key: &str, body: &str) -> Cached<6, 3> {
    Cached {
        text: &[
            "UPDATE limit_keys SET recovery_point = 'finished', locked_until = NULL, \
             response_status = 201, response_body = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND token = 1 AND recovery_point = 'created'",
        ],
        binds: [body, scope, key].map(str::to_owned),
    }
}

/// diesel would prepare its own UPDATE anew each time. The text of this one never differs.
fn set_charge(ride: &str, charge: &str) -> Cached<9, 2> {
    Cached {
        text: &["UPDATE bench_rides SET charge = ", " WHERE id = "],
        binds: [charge, ride].map(str::to_owned),
    }
}

fn begin_single_statement(scope: &str, key: &str, ride: &str, audit: &str) -> Cached<7, 7> {
    let print = "v1-0000000000000000000000000000000000000000000000000000000000000000";
    Cached {
        text: &[
            "WITH key AS (INSERT INTO limit_keys (scope, idempotency_key, fingerprint, params, \
             outputs, recovery_point, token, locked_until, created_at) SELECT ",
            ", ",
            ", ",
            ", convert_to(",
            ", 'UTF8'), convert_to(",
            ", 'UTF8'), 'created', 1, t + interval '30 s', t FROM clock_timestamp() AS t \
             ON CONFLICT DO NOTHING RETURNING 1), \
             ride AS (INSERT INTO bench_rides (id, amount, charge) VALUES (",
            ", 2000, '')), audit AS (INSERT INTO bench_audits (id, action) VALUES (",
            ", 'created')) SELECT count(*) FROM key",
        ],
        binds: [scope, key, print, r#"{"user":1,"amount":2000}"#, ride, ride, audit]
            .map(str::to_owned),
    }
}

fn finish_single_statement(
    scope: &str,
    key: &str,
    body: &str,
    ride: &str,
    charge: &str,
) -> Cached<8, 7> {
    Cached {
        text: &[
            "WITH key AS (UPDATE limit_keys SET recovery_point = 'finished', locked_until = NULL, \
             response_status = 201, response_body = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND token = 1 AND recovery_point = 'created' RETURNING 1), \
             ride AS (UPDATE bench_rides SET charge = ",
            " WHERE id = ",
            "), job AS (INSERT INTO limit_jobs (scope, name, args) SELECT ",
            ", 'receipt', convert_to(",
            ", 'UTF8')) SELECT count(*) FROM key",
        ],
        binds: [body, scope, key, charge, ride, scope, "2000"].map(str::to_owned),
    }
}

/// As many columns as the engine reads of a row for a replay.
struct ReadAnswer(String);

impl QueryId for ReadAnswer {
    type QueryId = Self;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl QueryFragment<Pg> for ReadAnswer {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(
            "SELECT request_id, definition, definition_version, fingerprint, status::text, lease_token, \
             clock_timestamp(), locked_until, run_after, expires_at, trace, response_status, response_headers, \
             response_body FROM guarded_answers WHERE scope = 'replay' AND idempotency_key = ",
        );
        out.push_bind_param::<Text, String>(&self.0)
    }
}

impl Query for ReadAnswer {
    type SqlType = (
        (SqlUuid, Text, Integer, Text),
        (Text, BigInt, Timestamptz, Nullable<Timestamptz>, Nullable<Timestamptz>, Timestamptz),
        (Nullable<Binary>, Nullable<SmallInt>, Nullable<Binary>, Nullable<Binary>),
    );
}

impl diesel::RunQueryDsl<AsyncPgConnection> for ReadAnswer {}

type Time = DateTime<Utc>;
type WholeAnswer = (
    (Uuid, String, i32, String),
    (String, i64, Time, Option<Time>, Option<Time>, Time),
    (Option<Vec<u8>>, Option<i16>, Option<Vec<u8>>, Option<Vec<u8>>),
);

const PARAMS: &str = r#"{"user":1,"amount":2000}"#;

const SCOPE: &str = "tenant-1";

pub fn hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}

type Answer = (String, String, Option<i16>, Option<Vec<u8>>);

/// A program by hand on the pool of `store`.
#[derive(Clone)]
pub struct ByHand(DeadpoolPool);

type ConnectionGuard = Object<AsyncDieselConnectionManager<AsyncPgConnection>>;

impl ByHand {
    pub fn on(store: &Postgres) -> Self {
        Self(store.pool().clone())
    }

    async fn connection(&self) -> ConnectionGuard {
        self.0.get().await.unwrap()
    }

    pub async fn fresh(self) {
        let (scope, key) = ("tenant-1", Uuid::new_v4().to_string());
        let ride = Uuid::new_v4().to_string();
        let conn = self.connection().await;
        read(scope, &key).execute(&mut &*conn).await.unwrap();
        drop(conn);
        let mut conn = self.connection().await;
        let print = "v1-0000000000000000000000000000000000000000000000000000000000000000";
        let reserve = reserve(scope, &key, print, r#"{"user":1,"amount":2000}"#, &ride);
        try_join!(begin().execute(&mut &*conn), reserve.execute(&mut &*conn)).unwrap();
        first_phase(&mut conn, &ride).await.unwrap();
        commit().execute(&mut &*conn).await.unwrap();
        drop(conn);

        let charge = tokio::spawn(async { "ch_00000000000000000000000000000000" }).await.unwrap();

        let conn = self.connection().await;
        let set_charge = set_charge(&ride, charge);
        try_join!(begin().execute(&mut &*conn), set_charge.execute(&mut &*conn)).unwrap();
        let body = format!(r#"{{"ride":"{ride}","charge":"{charge}"}}"#);
        try_join!(
            job(scope, "2000").execute(&mut &*conn),
            finish(scope, &key, &body).execute(&mut &*conn),
            commit().execute(&mut &*conn)
        )
        .unwrap();
    }

    /// The same as `fresh` with each transaction in one round trip.
    pub async fn fresh_pipelined(self) {
        use {bench_audits as a, bench_rides as r};
        let (scope, key) = ("tenant-1", Uuid::new_v4().to_string());
        let ride = Uuid::new_v4().to_string();
        let conn = self.connection().await;
        read(scope, &key).execute(&mut &*conn).await.unwrap();
        drop(conn);
        let conn = self.connection().await;
        let print = "v1-0000000000000000000000000000000000000000000000000000000000000000";
        let reserve = reserve(scope, &key, print, r#"{"user":1,"amount":2000}"#, &ride);
        let row = (r::id.eq(&ride), r::amount.eq(2000), r::charge.eq(""));
        let audit = Uuid::new_v4().to_string();
        let audit = (a::id.eq(&audit), a::action.eq("created"));
        try_join!(
            begin().execute(&mut &*conn),
            reserve.execute(&mut &*conn),
            diesel::insert_into(r::table).values(row).execute(&mut &*conn),
            diesel::insert_into(a::table).values(audit).execute(&mut &*conn),
            commit().execute(&mut &*conn),
        )
        .unwrap();
        drop(conn);

        let charge = tokio::spawn(async { "ch_00000000000000000000000000000000" }).await.unwrap();

        let conn = self.connection().await;
        let body = format!(r#"{{"ride":"{ride}","charge":"{charge}"}}"#);
        try_join!(
            begin().execute(&mut &*conn),
            finish(scope, &key, &body).execute(&mut &*conn),
            set_charge(&ride, charge).execute(&mut &*conn),
            job(scope, "2000").execute(&mut &*conn),
            commit().execute(&mut &*conn)
        )
        .unwrap();
    }

    /// The same with each transaction as a single statement; for a key that may be new, or is.
    pub async fn fresh_single_statement(self, is_new: bool) {
        let (scope, key) = ("tenant-1", Uuid::new_v4().to_string());
        let ride = Uuid::new_v4().to_string();
        if !is_new {
            let conn = self.connection().await;
            read(scope, &key).execute(&mut &*conn).await.unwrap();
        }
        let conn = self.connection().await;
        let audit = Uuid::new_v4().to_string();
        begin_single_statement(scope, &key, &ride, &audit).execute(&mut &*conn).await.unwrap();
        drop(conn);

        let charge = tokio::spawn(async { "ch_00000000000000000000000000000000" }).await.unwrap();

        let conn = self.connection().await;
        let body = format!(r#"{{"ride":"{ride}","charge":"{charge}"}}"#);
        finish_single_statement(scope, &key, &body, &ride, charge)
            .execute(&mut &*conn)
            .await
            .unwrap();
    }

    pub async fn replay(self, key: String) {
        let row: Vec<Answer> =
            read("replay", &key).load(&mut &*self.connection().await).await.unwrap();
        assert_eq!(row.len(), 1);
    }

    /// The engine's finished rows in a table of their own, with a fingerprint of this program's.
    pub async fn copy_answers(&self) {
        let print = hash(&["POST", "/rides", PARAMS]);
        let sql = format!(
            "DROP TABLE IF EXISTS guarded_answers; \
             CREATE TABLE guarded_answers AS SELECT * FROM atomic_phases_keys WHERE scope = 'replay'; \
             UPDATE guarded_answers SET fingerprint = '{print}'; \
             ALTER TABLE guarded_answers ADD PRIMARY KEY (scope, idempotency_key)"
        );
        self.connection().await.batch_execute(&sql).await.unwrap();
        self.connection().await.batch_execute("VACUUM ANALYZE guarded_answers").await.unwrap();
    }

    /// With all that a replay has to judge: whether the row is finished and in time, and of the same parameters (G8, G9).
    pub async fn replay_guarded(self, key: String) {
        let print = hash(&["POST", "/rides", PARAMS]);
        let rows: Vec<WholeAnswer> =
            ReadAnswer(key).load(&mut &*self.connection().await).await.unwrap();
        let [((.., stored), (status, _, now, _, _, expires_at), (_, response, headers, body))] =
            &rows[..]
        else {
            panic!("{} rows", rows.len())
        };
        assert!(*stored == print && status == "completed" && now < expires_at);
        assert!(response.is_some() && headers.is_some() && body.is_some());
    }
}

async fn first_phase(conn: &mut AsyncPgConnection, ride: &str) -> QueryResult<()> {
    use {bench_audits as a, bench_rides as r};
    let row = (r::id.eq(ride), r::amount.eq(2000), r::charge.eq(""));
    diesel::insert_into(r::table).values(row).execute(conn).await?;
    let audit = Uuid::new_v4().to_string();
    let row = (a::id.eq(&audit), a::action.eq("created"));
    diesel::insert_into(a::table).values(row).execute(conn).await?;
    Ok(())
}
