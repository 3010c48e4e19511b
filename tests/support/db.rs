//! The stores behind one trait: a fresh database, a second process's view of it, plain SQL.

use std::future::Future;
use std::sync::{Mutex, OnceLock};

use atomic_phases::ops::OperatorStore;
#[cfg(feature = "mysql")]
use atomic_phases::store::{Mysql, MysqlConn};
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::{Batch, Store, Tx};
use diesel::QueryResult;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

#[cfg(feature = "mysql")]
use super::mariadb;
use super::{citus, cluster};

/// Business tables, and a trigger that keeps G6 in every test: a recovery point never moves back, a
/// finished row never changes, a fencing token never falls.
pub const TABLES: &str = "
    CREATE TABLE rides (id TEXT NOT NULL, amount BIGINT NOT NULL);
    CREATE TABLE steps (request TEXT NOT NULL, step TEXT NOT NULL);
    CREATE TABLE unique_things (name TEXT PRIMARY KEY);
    CREATE TABLE phase_order (definition TEXT NOT NULL, point TEXT NOT NULL, place BIGINT NOT NULL);
";

const PG_TRIGGER: &str = "
    CREATE FUNCTION forward_only() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE was bigint; now_at bigint;
    BEGIN
        SELECT place INTO was FROM phase_order WHERE definition = OLD.definition AND point = OLD.recovery_point;
        SELECT place INTO now_at FROM phase_order WHERE definition = NEW.definition AND point = NEW.recovery_point;
        IF now_at < was THEN RAISE EXCEPTION 'G6: % moves back to %', OLD.recovery_point, NEW.recovery_point; END IF;
        IF OLD.status = 'completed' AND NEW.fingerprint <> 'erased' AND NEW.response_body IS DISTINCT FROM OLD.response_body THEN RAISE EXCEPTION 'G8: a finished row changes'; END IF;
        IF NEW.lease_token < OLD.lease_token THEN RAISE EXCEPTION 'G3: the token falls'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER forward_only BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW EXECUTE FUNCTION forward_only();
";

const SQLITE_TRIGGER: &str = "
    CREATE TRIGGER forward_only BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW BEGIN
        SELECT RAISE(ABORT, 'G6: a recovery point moves back') WHERE
            (SELECT place FROM phase_order WHERE definition = NEW.definition AND point = NEW.recovery_point)
          < (SELECT place FROM phase_order WHERE definition = OLD.definition AND point = OLD.recovery_point);
        SELECT RAISE(ABORT, 'G8: a finished row changes') WHERE OLD.status = 'completed' AND NEW.fingerprint <> 'erased' AND NEW.response_body IS NOT OLD.response_body;
        SELECT RAISE(ABORT, 'G3: the token falls') WHERE NEW.lease_token < OLD.lease_token;
    END;
";

/// As `TABLES`, for a server on which a key column needs a length.
#[cfg(feature = "mysql")]
const MYSQL_TABLES: &str = "
    CREATE TABLE rides (id VARCHAR(255) NOT NULL, amount BIGINT NOT NULL);
    CREATE TABLE steps (request VARCHAR(255) NOT NULL, step VARCHAR(255) NOT NULL);
    CREATE TABLE unique_things (name VARCHAR(255) PRIMARY KEY);
    CREATE TABLE phase_order (definition VARCHAR(255) NOT NULL, point VARCHAR(255) NOT NULL, place BIGINT NOT NULL);
";

#[cfg(feature = "mysql")]
const MYSQL_TRIGGER: &str = "
    CREATE TRIGGER forward_only BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW BEGIN
        IF (SELECT place FROM phase_order WHERE definition = NEW.definition AND point = NEW.recovery_point)
         < (SELECT place FROM phase_order WHERE definition = OLD.definition AND point = OLD.recovery_point)
        THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'G6: a recovery point moves back'; END IF;
        IF OLD.status = 'completed' AND NEW.fingerprint <> 'erased' AND NOT (NEW.response_body <=> OLD.response_body)
        THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'G8: a finished row changes'; END IF;
        IF NEW.lease_token < OLD.lease_token
        THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'G3: the token falls'; END IF;
    END;
";

/// Functions that the tests' SQL uses and MySQL lacks, so that other stores' tests run on it.
#[cfg(feature = "mysql")]
const MYSQL_FUNCTIONS: &str = "
    CREATE FUNCTION randomblob(bytes INT) RETURNS BINARY(16) NOT DETERMINISTIC NO SQL
        RETURN UNHEX(REPLACE(UUID(), '-', ''));
    CREATE FUNCTION unixepoch(how VARCHAR(20)) RETURNS DECIMAL(20, 6) NOT DETERMINISTIC NO SQL
        RETURN UNIX_TIMESTAMP(SYSDATE(6));
";

pub fn phase_order() -> String {
    let lists: &[(&str, &[&str])] = &[
        ("book", &["started", "booked", "charged", "finished"]),
        ("notify", &["started", "noted", "notified", "finished"]),
        ("parcel", &["started", "packed", "sent", "weighed", "finished"]),
    ];
    let rows: Vec<String> = lists
        .iter()
        .flat_map(|(definition, points)| {
            points
                .iter()
                .enumerate()
                .map(move |(place, point)| format!("('{definition}','{point}',{place})"))
        })
        .collect();
    format!("INSERT INTO phase_order VALUES {}", rows.join(","))
}

pub trait TestDb: OperatorStore {
    /// A store on a new database, migrated, with the tests' tables and triggers.
    fn fresh() -> impl Future<Output = Self> + Send;
    /// Another store on the same database, as another process would open it.
    fn another(&self) -> impl Future<Output = Self> + Send;
    fn sql(&self, sql: &str) -> impl Future<Output = ()> + Send;
    fn number(&self, sql: &str) -> impl Future<Output = i64> + Send;
    fn text(&self, sql: &str) -> impl Future<Output = String> + Send;

    /// A column of all rows, in hex.
    fn joined(&self, table: &str, column: &str) -> impl Future<Output = String> + Send;

    /// Lets the lease of each running row expire, and each back-off.
    fn let_leases_expire(&self) -> impl Future<Output = ()> + Send {
        async {
            self.sql("UPDATE atomic_phases_keys SET locked_until = created_at WHERE locked_until IS NOT NULL").await;
        }
    }

    /// Lets each lease and each back-off expire, of requests and of jobs.
    fn let_time_pass(&self) -> impl Future<Output = ()> + Send {
        async {
            self.let_leases_expire().await;
            self.sql(
                "UPDATE atomic_phases_keys SET run_after = created_at WHERE run_after IS NOT NULL",
            )
            .await;
            self.sql("UPDATE atomic_phases_staged_jobs SET run_after = staged_at WHERE run_after IS NOT NULL").await;
        }
    }

    fn insert_ride(
        tx: &mut Tx<'_, Self>,
        id: &str,
        amount: i64,
    ) -> impl Future<Output = QueryResult<usize>> + Send;

    fn insert_step(
        tx: &mut Tx<'_, Self>,
        request: &str,
        step: &str,
    ) -> impl Future<Output = QueryResult<usize>> + Send;

    fn insert_unique(
        tx: &mut Tx<'_, Self>,
        name: &str,
    ) -> impl Future<Output = QueryResult<usize>> + Send;

    /// The same three with a `Batch`.
    fn add_ride(batch: &mut Batch<'_, Self>, id: &str, amount: i64);
    fn add_step(batch: &mut Batch<'_, Self>, request: &str, step: &str);
    fn add_independent_step(batch: &mut Batch<'_, Self>, request: &str, step: &str);
    fn add_unique(batch: &mut Batch<'_, Self>, name: &str);

    /// A statement that cannot be cached, and that records its order.
    fn add_to_ride(batch: &mut Batch<'_, Self>, id: &str, times: i64, plus: i64);

    /// The same in a nested `transaction()`, which fails.
    fn insert_unique_nested(
        tx: &mut Tx<'_, Self>,
        name: &str,
    ) -> impl Future<Output = QueryResult<usize>> + Send;
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

#[derive(diesel::QueryableByName)]
struct Word {
    #[diesel(sql_type = Text)]
    t: String,
}

diesel::table! { rides (id) { id -> Text, amount -> BigInt, } }
diesel::table! { steps (request) { request -> Text, step -> Text, } }
diesel::table! { unique_things (name) { name -> Text, } }

macro_rules! test_db {
    ($store:ty, $db:ident, $conn:ident => $connect:expr, casts ($number:literal, $text:literal), joined $joined:literal, fresh $fresh:block, another $another:block) => {
        impl TestDb for $store {
            async fn fresh() -> Self $fresh

            async fn another(&self) -> Self {
                let $db = self;
                $another
            }

            async fn sql(&self, sql: &str) {
                let $db = self;
                let mut $conn = $connect;
                $conn.batch_execute(sql).await.unwrap();
            }

            async fn number(&self, sql: &str) -> i64 {
                let $db = self;
                let mut $conn = $connect;
                let sql = format!("SELECT {} AS n", $number.replace("SQL", sql));
                diesel::sql_query(sql).get_result::<Number>(&mut *$conn).await.unwrap().n
            }

            async fn text(&self, sql: &str) -> String {
                let $db = self;
                let mut $conn = $connect;
                let sql = format!("SELECT {} AS t", $text.replace("SQL", sql));
                diesel::sql_query(sql).get_result::<Word>(&mut *$conn).await.unwrap().t
            }

            async fn joined(&self, table: &str, column: &str) -> String {
                let joined = $joined.replace("COLUMN", column);
                self.text(&format!("SELECT coalesce({joined}, '') FROM {table}")).await
            }

            async fn insert_ride(tx: &mut Tx<'_, Self>, id: &str, amount: i64) -> QueryResult<usize> {
                use diesel::ExpressionMethods;
                diesel::insert_into(rides::table)
                    .values((rides::id.eq(id), rides::amount.eq(amount)))
                    .execute(tx)
                    .await
            }

            async fn insert_step(tx: &mut Tx<'_, Self>, request: &str, step: &str) -> QueryResult<usize> {
                use diesel::ExpressionMethods;
                diesel::insert_into(steps::table)
                    .values((steps::request.eq(request), steps::step.eq(step)))
                    .execute(tx)
                    .await
            }

            async fn insert_unique(tx: &mut Tx<'_, Self>, name: &str) -> QueryResult<usize> {
                use diesel::ExpressionMethods;
                diesel::insert_into(unique_things::table)
                    .values(unique_things::name.eq(name))
                    .execute(tx)
                    .await
            }

            fn add_ride(batch: &mut Batch<'_, Self>, id: &str, amount: i64) {
                use diesel::ExpressionMethods;
                let row = (rides::id.eq(id.to_owned()), rides::amount.eq(amount));
                batch.add(diesel::insert_into(rides::table).values(row));
            }

            fn add_step(batch: &mut Batch<'_, Self>, request: &str, step: &str) {
                use diesel::ExpressionMethods;
                let row = (steps::request.eq(request.to_owned()), steps::step.eq(step.to_owned()));
                batch.add(diesel::insert_into(steps::table).values(row));
            }

            fn add_independent_step(batch: &mut Batch<'_, Self>, request: &str, step: &str) {
                use diesel::ExpressionMethods;
                let row = (steps::request.eq(request.to_owned()), steps::step.eq(step.to_owned()));
                batch.add_independent(diesel::insert_into(steps::table).values(row));
            }

            fn add_unique(batch: &mut Batch<'_, Self>, name: &str) {
                use diesel::ExpressionMethods;
                let row = unique_things::name.eq(name.to_owned());
                batch.add(diesel::insert_into(unique_things::table).values(row));
            }

            fn add_to_ride(batch: &mut Batch<'_, Self>, id: &str, times: i64, plus: i64) {
                use diesel::{ExpressionMethods, QueryDsl};
                let ride = rides::table.filter(rides::id.eq(id.to_owned()));
                batch.add(diesel::update(ride).set(rides::amount.eq(rides::amount * times + plus)));
            }

            async fn insert_unique_nested(tx: &mut Tx<'_, Self>, name: &str) -> QueryResult<usize> {
                use diesel::ExpressionMethods;
                let name = name.to_owned();
                tx.conn()
                    .transaction(async move |conn| {
                        diesel::insert_into(unique_things::table)
                            .values(unique_things::name.eq(name))
                            .execute(conn)
                            .await
                    })
                    .await
            }
        }
    };
}

test_db!(Sqlite, db, conn => db.connection().await.unwrap(),
    casts ("CAST((SQL) AS BIGINT)", "CAST((SQL) AS TEXT)"),
    joined "group_concat(hex(COLUMN), '20')",
    fresh {
        let dir = super::scratch::dir();
        let path = dir.join("test.db").to_str().unwrap().to_owned();
        let db = Sqlite::connect(&path).await.unwrap();
        db.migrate().await.unwrap();
        for sql in [TABLES, SQLITE_TRIGGER, &phase_order()] {
            db.sql(sql).await;
        }
        db
    },
    another { Sqlite::connect(&db.text("SELECT file FROM pragma_database_list").await).await.unwrap() }
);

/// Whether the store has no server, so that tests of a server do not apply.
pub fn is_memory<S: TestDb>() -> bool {
    std::any::type_name::<S>().contains("Memory")
}

pub fn is_mysql<S: TestDb>() -> bool {
    std::any::type_name::<S>().contains("Mysql")
}

/// Whether each statement is a round trip to another process.
pub fn is_on_a_server<S: TestDb>() -> bool {
    is_postgres::<S>() || is_mysql::<S>()
}

pub fn is_postgres<S: TestDb>() -> bool {
    std::any::type_name::<S>().contains("Postgres")
}

/// Whether the engine's tables are distributed.
pub fn is_distributed<S: TestDb>() -> bool {
    is_postgres::<S>() && cluster::citus().is_some()
}

/// A table `numbers (n)` that counts from 1 to this, for a `FROM`.
pub fn numbers<S: TestDb>(last: u32) -> String {
    match is_postgres::<S>() {
        // A distributed table is not joined with a recursive query.
        true => format!("generate_series(1, {last}) AS numbers (n)"),
        false => format!(
            "(WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {last}) \
             SELECT n FROM counted) AS numbers"
        ),
    }
}

/// Every row of every table of the database, bytes as text where they are text.
pub async fn dump<S: TestDb>(db: &S) -> String {
    let keys = [
        "scope",
        "idempotency_key",
        "definition",
        "phases",
        "fingerprint",
        "status",
        "recovery_point",
        "open_intent",
        "resolution",
        "reason",
        "params",
        "context",
        "outputs",
        "response_headers",
        "response_body",
    ];
    let jobs = ["scope", "idempotency_key", "name", "args"];
    let mut all = String::new();
    for (table, columns) in
        [("atomic_phases_keys", &keys[..]), ("atomic_phases_staged_jobs", &jobs)]
    {
        for column in columns {
            let hex = db.joined(table, column).await;
            let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
            let bytes = digits.map(|two| u8::from_str_radix(two, 16).unwrap());
            all.push_str(&String::from_utf8_lossy(&bytes.collect::<Vec<_>>()));
            all.push('\n');
        }
    }
    all
}

/// A connection of the test's own: the pool may be what is tested.
pub async fn pg(url: &str) -> Box<AsyncPgConnection> {
    Box::new(AsyncPgConnection::establish(url).await.unwrap())
}

/// The URL that a store was opened with, by the name of its database.
/// Keeps the pools, so that no other takes the address by which one is known.
static URLS: Mutex<Vec<(atomic_phases::store::DeadpoolPool, String)>> = Mutex::new(Vec::new());

pub fn url_of(db: &Postgres) -> String {
    let urls = URLS.lock().unwrap();
    let known = urls.iter().find(|(pool, _)| std::ptr::eq(pool.manager(), db.pool().manager()));
    known.unwrap().1.clone()
}

pub async fn open_pg(url: &str, max_size: usize) -> Postgres {
    let settings = atomic_phases::store::PoolSettings::default().max_size(max_size);
    let db = Postgres::connect_with(url, settings).await.unwrap();
    URLS.lock().unwrap().push((db.pool().clone(), url.to_owned()));
    db
}

pub async fn prepare_pg(db: &Postgres) {
    db.migrate().await.unwrap();
    db.sql(TABLES).await;
    db.sql(&phase_order()).await;
    if cluster::citus().is_none() {
        return db.sql(PG_TRIGGER).await;
    }
    let url = url_of(db);
    let distributed = tokio::task::spawn_blocking(move || {
        citus::distribute(&url);
        citus::watch(&url, PG_TRIGGER, &phase_order());
    });
    distributed.await.unwrap();
}

/// The URL of a new database with all this. It is a copy of the first one, which takes a third of the time that its tables
/// do; the tables of a cluster of Citus cannot be copied.
fn prepared_pg() -> String {
    static FIRST: OnceLock<String> = OnceLock::new();
    let prepared = || {
        let url = cluster::new_database();
        // On a runtime of its own, which closes its connections at its end.
        let prepare = async {
            let db = open_pg(&url, 1).await;
            prepare_pg(&db).await;
            db.pool().close();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(prepare);
        url
    };
    match cluster::citus() {
        Some(_) => prepared(),
        None => cluster::copy_of(FIRST.get_or_init(prepared)),
    }
}

test_db!(Postgres, db, conn => pg(&url_of(db)).await,
    casts ("CAST((SQL) AS BIGINT)", "CAST((SQL) AS TEXT)"),
    joined "string_agg(encode(CASE WHEN pg_typeof(COLUMN) = 'bytea'::regtype THEN COLUMN::text::bytea ELSE convert_to(COLUMN::text, 'UTF8') END, 'hex'), '20')",
    fresh {
        let url = tokio::task::spawn_blocking(prepared_pg).await.unwrap();
        open_pg(&url, 16).await
    },
    another { open_pg(&url_of(db), 16).await }
);

/// A connection of the test's own.
#[cfg(feature = "mysql")]
pub async fn my(url: &str) -> Box<MysqlConn> {
    let mut conn = Box::new(MysqlConn::establish(url).await.unwrap());
    conn.batch_execute(
        "SET SESSION sql_mode = CONCAT(@@sql_mode, ',PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'), \
         group_concat_max_len = 100000000 /*M!100000 , max_recursive_iterations = 1000000 */ \
         /*!80000 , cte_max_recursion_depth = 1000000 */",
    )
    .await
    .unwrap();
    conn
}

/// The server's sessions, as a table with `id`, `db`, `command` and `state`. A MySQL cannot list their statements while
/// one of them has bytes in it that are no text.
#[cfg(feature = "mysql")]
pub fn sessions() -> &'static str {
    match mariadb::mysqld() {
        None => "information_schema.processlist",
        Some(_) => {
            "(SELECT CAST(processlist_id AS SIGNED) AS id, processlist_db AS db, \
             processlist_command AS command, processlist_state AS state \
             FROM performance_schema.threads WHERE processlist_id IS NOT NULL) AS sessions"
        }
    }
}

/// The number of this database's sessions that wait for a row's lock. Read from the status of InnoDB, which is
/// computed on request: `information_schema.innodb_trx` is a copy that is not refreshed while any session reads it
/// more often than ten times a second.
#[cfg(feature = "mysql")]
pub async fn lock_waits(db: &Mysql) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct InnodbStatus {
        #[diesel(sql_type = diesel::sql_types::Text, column_name = "Status")]
        text: String,
    }
    let mut conn = my(db.__url()).await;
    let status = diesel::sql_query("SHOW ENGINE INNODB STATUS");
    let InnodbStatus { text } = status.get_result(&mut *conn).await.unwrap();
    let waiting: Vec<&str> = text
        .split("---TRANSACTION")
        .filter(|transaction| transaction.contains("\nLOCK WAIT "))
        .filter_map(|transaction| transaction.split("thread id ").nth(1)?.split(',').next())
        .collect();
    let waiting = if waiting.is_empty() { "0".to_owned() } else { waiting.join(", ") };
    db.number(&format!(
        "SELECT count(*) FROM {} WHERE db = database() AND id IN ({waiting})",
        sessions()
    ))
    .await
}

#[cfg(feature = "mysql")]
pub async fn open_my(url: &str, max_size: usize) -> Mysql {
    let settings = atomic_phases::store::PoolSettings::default().max_size(max_size);
    Mysql::connect_with(url, settings).await.unwrap()
}

/// The same, but the store sends what it would send to a MySQL: texts instead of blocks.
#[cfg(feature = "mysql")]
pub async fn open_my_without_blocks(url: &str, max_size: usize) -> Mysql {
    let settings = atomic_phases::store::PoolSettings::default().max_size(max_size);
    Mysql::__connect_without_blocks(url, settings).await.unwrap()
}

/// A store on this database, migrated, with the tests' tables and triggers.
#[cfg(feature = "mysql")]
pub async fn prepare_my(url: &str) -> Mysql {
    let db = open_my(url, 16).await;
    db.migrate().await.unwrap();
    for sql in [MYSQL_TABLES, MYSQL_TRIGGER, MYSQL_FUNCTIONS, &phase_order()] {
        db.sql(sql).await;
    }
    db
}

#[cfg(feature = "mysql")]
test_db!(Mysql, db, conn => my(db.__url()).await,
    casts ("CAST((SQL) AS SIGNED)", "CAST((SQL) AS CHAR)"),
    joined "group_concat(hex(COLUMN) SEPARATOR '20')",
    fresh {
        let url = tokio::task::spawn_blocking(mariadb::new_database).await.unwrap();
        prepare_my(&url).await
    },
    another { open_my(db.__url(), 16).await }
);
