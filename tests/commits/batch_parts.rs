//! A part of a single-statement batch behaves as it does in a transaction of several statements: order, outcomes,
//! and the connection that it leaves.

use std::time::{Duration, Instant};

use crate::support::db::{open_pg, url_of};
use crate::support::proxy::{Proxy, port_of};
use crate::support::*;
use atomic_phases::phase::ForeignError;
use atomic_phases::store::{DeadpoolPool, PoolSettings, Postgres};
use atomic_phases::{Batch, Engine, ForeignCall, Outcome, PhaseResult, Reply, atomic_phases};
use diesel_async::SimpleAsyncConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use tokio::sync::Semaphore;

/// Each statement is a text, in the first phase or in the last: in order, or independent and so part of a single
/// statement.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Texts {
    first: Vec<String>,
    last: Vec<String>,
    in_order: bool,
}

fn texts(first: &[&str], last: &[&str]) -> Texts {
    let own = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect();
    Texts { first: own(first), last: own(last), in_order: false }
}

fn in_both(all: &[&str]) -> [Texts; 2] {
    [texts(all, &[]), texts(&[], all)]
}

impl Texts {
    fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    fn hand_over(&self, batch: &mut Batch<'_, Postgres>, all: &[String]) {
        all.iter().cloned().map(diesel::sql_query).for_each(|sql| match self.in_order {
            true => batch.add(sql),
            false => batch.add_independent(sql),
        });
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Begun;

#[atomic_phases(name = "texts", version = 1)]
impl Texts {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        self.hand_over(batch, &self.first);
        Ok(Begun)
    }

    #[phase(commit)]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        self.hand_over(batch, &self.last);
        batch.stage_job("thanks", &1)?;
        Ok(Reply::new(204))
    }
}

fn engine_of(db: &Postgres) -> Engine<Postgres> {
    Engine::builder(db.clone()).register::<Texts>().build().unwrap()
}

/// A pool that the application created.
fn its_own_pool(db: &Postgres, size: usize) -> Postgres {
    let manager = AsyncDieselConnectionManager::<diesel_async::AsyncPgConnection>::new(url_of(db));
    Postgres::with_pool(DeadpoolPool::builder(manager).max_size(size).build().unwrap())
}

const TRACE: &str = "CREATE SEQUENCE place; CREATE TABLE trace (place bigint, what text); \
    CREATE TABLE counters (name text PRIMARY KEY, n int NOT NULL); \
    INSERT INTO counters VALUES ('a', 0), ('b', 0), ('c', 0); \
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO trace VALUES \
    (nextval('place'), coalesce(to_jsonb(NEW)->>TG_ARGV[0], TG_TABLE_NAME)); RETURN NEW; END $$; \
    CREATE TRIGGER note BEFORE UPDATE ON counters \
    FOR EACH ROW EXECUTE FUNCTION note('name'); \
    CREATE TRIGGER note BEFORE INSERT OR UPDATE ON atomic_phases_keys \
    FOR EACH ROW EXECUTE FUNCTION note('recovery_point'); \
    CREATE TRIGGER note BEFORE INSERT ON atomic_phases_staged_jobs \
    FOR EACH ROW EXECUTE FUNCTION note('name')";

/// The key's row comes first, and the parts as they were added. Another order of locks would deadlock with the same writes
/// sent one by one. The jobs of a single statement, which lock nothing, are in front of the parts.
#[tokio::test(flavor = "multi_thread")]
async fn parts_are_executed_in_the_order_of_the_batch() {
    let up = ["a", "b", "c"].map(|c| format!("UPDATE counters SET n = n + 1 WHERE name = '{c}'"));
    let up: Vec<&str> = up.iter().map(String::as_str).collect();
    for plan in ["auto", "force_generic_plan"] {
        let db = Postgres::fresh().await;
        db.sql(TRACE).await;
        let url = format!("{}?options=-c%20plan_cache_mode%3D{plan}", url_of(&db));
        let engine = engine_of(&open_pg(&url, 1).await);
        for time in 0..8 {
            for texts in [texts(&up, &up), texts(&up, &up).in_order()] {
                db.sql("TRUNCATE trace").await;
                let name = key(&format!("{plan}-{time}-{}", texts.in_order));
                let last = if texts.in_order { "a b c thanks" } else { "thanks a b c" };
                finished(engine.call(&scope(), &name, texts).await);
                let trace = "SELECT string_agg(what, ' ' ORDER BY place) FROM trace";
                assert_eq!(db.text(trace).await, format!("begun a b c finished {last}"), "{plan}");
            }
        }
    }
}

/// Half of them run as a single statement, because their key is new, and half one by one: none waits for a
/// deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn single_statements_and_pipelined_ones_do_not_deadlock() {
    let db = Postgres::fresh().await;
    db.sql(TRACE).await;
    let up = ["a", "b"].map(|name| {
        format!("UPDATE counters SET n = n + 1 + length(pg_sleep(0.1)::text) WHERE name = '{name}'")
    });
    let engine = engine_of(&db);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..6 {
        let texts = texts(&[&up[0], &up[1]], &[]);
        let texts = if number % 2 == 0 { texts.in_order() } else { texts };
        calls.spawn(engine.call(&scope(), &key(&format!("k{number}")), texts).into_future());
    }
    let began = Instant::now();
    while let Some(outcome) = calls.join_next().await {
        finished(outcome.unwrap());
    }
    // The server reports its statistics late.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(db.number(deadlocks).await, 0, "in {:?}", began.elapsed());
}

/// G17: the engine gives up a statement that ends its connection each time, and releases the key.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_statement_that_always_ends_its_connection_is_given_up() {
    let blows = "INSERT INTO steps SELECT 'k', pg_terminate_backend(pg_backend_pid())::text";
    for texts in [texts(&[], &[blows]), texts(&[], &["DELETE FROM rides", blows]).in_order()] {
        let db = Postgres::fresh().await;
        let engine = engine_of(&db);
        let call = engine.call(&scope(), &key("k"), texts).__call_in_place();
        let outcome = tokio::time::timeout(Duration::from_secs(20), call).await;
        failed(outcome.expect("it goes on and on"));
        assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "failed_retryable");
    }
}

/// G8: the application left a transaction open on a connection of its pool. A single statement on it would not be a
/// transaction of its own, and would not be committed.
#[tokio::test(flavor = "multi_thread")]
async fn g8_a_transaction_that_was_left_open_swallows_nothing() {
    let all = ["INSERT INTO steps VALUES ('k', '1')", "INSERT INTO steps VALUES ('k', '2')"];
    for texts in in_both(&all) {
        let db = Postgres::fresh().await;
        let shared = its_own_pool(&db, 1);
        shared.pool().get().await.unwrap().batch_execute("BEGIN").await.unwrap();
        finished(engine_of(&shared).call(&scope(), &key("k"), texts).await);
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 2);
        assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "completed");
    }
}

/// G13: as `g13_an_aborted_statement_frees_its_locks`, on a connection that the engine has not set up.
#[tokio::test(flavor = "multi_thread")]
async fn g13_an_aborted_statement_frees_its_locks_in_a_pool_of_the_applications() {
    let sleeps = "INSERT INTO steps SELECT 'k', pg_sleep(30)::text";
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                  AND wait_event = 'PgSleep'";
    for texts in in_both(&[sleeps]) {
        let db = Postgres::fresh().await;
        // The second time, on a connection of another pool, which has sent nothing before.
        for _ in 0..2 {
            let engine = engine_of(&its_own_pool(&db, 1));
            let call = engine.call(&scope(), &key("k"), texts.clone()).__call_in_place();
            let task = tokio::spawn(call);
            until(async || db.number(asleep).await != 0).await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            // Ended by the server, and not at the end of its sleep.
            until_within(Duration::from_secs(10), async || db.number(asleep).await == 0).await;
            db.let_leases_expire().await;
        }
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
    }
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Thinks;

/// Says that the phase of [`Thinks`] has begun.
static BEGUN: Semaphore = Semaphore::const_new(0);

/// Lets it end.
static MAY_END: Semaphore = Semaphore::const_new(0);

#[atomic_phases(name = "thinks", version = 1)]
impl Thinks {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        BEGUN.add_permits(1);
        // The permit returns, so the phase may run again.
        let _permit = MAY_END.acquire().await.unwrap();
        batch.add(diesel::sql_query("INSERT INTO ruled VALUES (1)"));
        Ok(Reply::new(204))
    }
}

/// Waiting for a connection is not waiting for the row: a refusal by the server then does not mean that another
/// request has the key.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_connection_is_not_told_that_the_key_is_busy() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE ruled (id int)").await;
    db.sql("CREATE RULE also AS ON INSERT TO ruled DO ALSO DELETE FROM steps").await;
    // It waits for the connection for as long as the test takes.
    let settings = PoolSettings::default().max_size(1).wait(Duration::from_secs(60));
    let single = Postgres::connect_with(&url_of(&db), settings).await.unwrap();
    let engine = Engine::builder(single.clone()).register::<Thinks>().build().unwrap();
    let task = tokio::spawn(engine.call(&scope(), &key("k"), Thinks).into_future());
    let _begun = BEGUN.acquire().await.unwrap();
    let conn = single.pool().get().await.unwrap();
    MAY_END.add_permits(1);
    // Longer than a call waits for the row that another one creates.
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(conn);
    finished(task.await.unwrap());
}

/// However late the server's refusal of a single statement arrives, over a slow line or on a busy machine: the writes are
/// then sent one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_statement_that_is_refused_late_is_sent_one_by_one() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE ruled (id int)").await;
    db.sql("CREATE RULE also AS ON INSERT TO ruled DO ALSO DELETE FROM rides").await;
    let proxy = Proxy::start(port_of(&url_of(&db))).await;
    let engine = engine_of(&open_pg(&proxy.url(&url_of(&db)), 1).await);
    let ruled = texts(&[], &["INSERT INTO ruled VALUES (1)"]);
    finished(engine.call(&scope(), &key("prompt"), ruled.clone()).await);
    proxy.answer_slowly(300);
    finished(engine.call(&scope(), &key("late"), ruled).await);
    assert_eq!(db.number("SELECT count(*) FROM ruled").await, 2);
}

/// A table changes while a connection has statements on it prepared.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_changes_does_not_stop_a_connection_for_good() {
    for change in [
        "ALTER TABLE t ADD COLUMN b int",
        "DROP TABLE t; CREATE TABLE t (z text, a bigint)",
        "ALTER TABLE t ALTER a TYPE numeric",
    ] {
        let insert = "INSERT INTO t (a) VALUES (1) RETURNING *";
        for texts in [texts(&[insert, insert], &[]), texts(&[insert, insert], &[]).in_order()] {
            let db = Postgres::fresh().await;
            db.sql("CREATE TABLE t (a int)").await;
            let engine = engine_of(&open_pg(&url_of(&db), 1).await);
            for time in 0..8 {
                let name = key(&format!("before-{time}"));
                finished(engine.call(&scope(), &name, texts.clone()).await);
            }
            db.sql(change).await;
            finished(engine.call(&scope(), &key("after"), texts).await);
        }
    }
}

/// A text that is not a statement by itself must not become two statements within the parentheses of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_does_not_leave_its_parentheses() {
    let slips =
        "INSERT INTO steps VALUES ('', '')), x AS (DELETE FROM unique_things WHERE ('' = '')";
    for texts in in_both(&[slips]) {
        let db = Postgres::fresh().await;
        db.sql("INSERT INTO unique_things VALUES ('precious')").await;
        let outcome = engine_of(&db).call(&scope(), &key("k"), texts).await;
        assert!(!matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
        assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);
    }
}

/// Views, partitions, keys, triggers, defaults: a part behaves as the statement does in a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_part_does_is_what_the_statement_does() {
    for (sql, look) in [
        ("INSERT INTO fk VALUES ('tenant-1', 'k')", "SELECT count(*) FROM fk"),
        ("INSERT INTO vw VALUES (1, 2)", "SELECT count(*) FROM base"),
        ("INSERT INTO auto VALUES (1, 2)", "SELECT count(*) FROM base"),
        ("INSERT INTO auto VALUES (1, -2)", "SELECT count(*) FROM base"),
        ("UPDATE part SET id = id + 5 WHERE n = 2", "SELECT sum(id) FROM part"),
        (
            "INSERT INTO gen (n) VALUES (4) RETURNING *, 'x', NULL, ROW(1, 2)",
            "SELECT twice || ' ' || id || ' ' || s FROM gen",
        ),
        (
            "INSERT INTO stmt SELECT generate_series(1, 5)",
            "SELECT string_agg(what, ',') FROM stmt_log",
        ),
        ("DELETE FROM self WHERE id = 1", "SELECT count(*) FROM self"),
        ("INSERT INTO peeked VALUES (1)", "SELECT string_agg(what, ',') FROM stmt_log"),
        ("INSERT INTO defs DEFAULT VALUES", "SELECT a FROM defs"),
        (
            "INSERT INTO base VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = 9 RETURNING id",
            "SELECT n FROM base",
        ),
        ("INSERT INTO base WITH q AS (SELECT 5 AS x) SELECT x, x FROM q", "SELECT n FROM base"),
        ("INSERT INTO base SELECT 1 / 0, 1", "SELECT count(*) FROM base"),
        ("DELETE FROM base WHERE CURRENT OF c", "SELECT 0"),
    ] {
        for n in 0..2 {
            let mut told = Vec::new();
            // After a statement that changes nothing, it is one of several.
            for texts in
                [in_both(&[sql]), in_both(&["DELETE FROM rides", sql]).map(Texts::in_order)]
            {
                let db = Postgres::fresh().await;
                db.sql(ZOO).await;
                let outcome = engine_of(&db).call(&scope(), &key("k"), texts[n].clone()).await;
                let finished = matches!(outcome, Ok(Outcome::Finished(_)));
                let look = format!("SELECT coalesce(({look})::text, '')");
                told.push((finished, db.text(&look).await));
            }
            assert_eq!(told[0], told[1], "{sql}");
        }
    }
}

const ZOO: &str = "
  CREATE TABLE fk (scope text, k text, FOREIGN KEY (scope, k) REFERENCES atomic_phases_keys);
  CREATE TABLE base (id int PRIMARY KEY, n int);
  CREATE VIEW vw AS SELECT id, n FROM base;
  CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO base VALUES (NEW.id, NEW.n); RETURN NEW; END $$;
  CREATE TRIGGER instead INSTEAD OF INSERT ON vw FOR EACH ROW EXECUTE FUNCTION instead();
  CREATE VIEW auto AS SELECT id, n FROM base WHERE n > 0 WITH CHECK OPTION;
  CREATE TABLE part (id int, n int) PARTITION BY RANGE (id);
  CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
  CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20);
  INSERT INTO part VALUES (1, 1), (2, 2), (11, 1);
  CREATE TABLE gen (id int GENERATED ALWAYS AS IDENTITY, s bigserial, n int, twice int GENERATED ALWAYS AS (n * 2) STORED);
  CREATE TABLE stmt (n int); CREATE TABLE stmt_log (what text);
  CREATE FUNCTION per_statement() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO stmt_log SELECT TG_OP || count(*) FROM fresh; RETURN NULL; END $$;
  CREATE TRIGGER s AFTER INSERT ON stmt REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION per_statement();
  CREATE TABLE secret (tenant text, n int); ALTER TABLE secret ENABLE ROW LEVEL SECURITY; ALTER TABLE secret FORCE ROW LEVEL SECURITY;
  CREATE POLICY p ON secret USING (tenant = current_setting('app.tenant', true));
  CREATE TABLE self (id int PRIMARY KEY, up int REFERENCES self ON DELETE CASCADE); INSERT INTO self VALUES (1, NULL), (2, 1), (3, 2);
  CREATE FUNCTION peek() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO stmt_log SELECT TG_WHEN || ' sees ' || count(*) || ' ' || coalesce(max(recovery_point), '') FROM atomic_phases_keys; RETURN NEW; END $$;
  CREATE TABLE peeked (n int);
  CREATE TRIGGER b BEFORE INSERT ON peeked FOR EACH ROW EXECUTE FUNCTION peek();
  CREATE TRIGGER a AFTER INSERT ON peeked FOR EACH ROW EXECUTE FUNCTION peek();
  CREATE TABLE times (a timestamptz, b timestamptz, c timestamptz);
  CREATE TABLE defs (a int DEFAULT 7);
";

/// A foreign phase in which the application leaves a transaction open, on the connection on which the engine will
/// write the result; and the rows that were durable when the next phase ran.
#[derive(Clone)]
struct Careless {
    pool: DeadpoolPool,
    aside: Postgres,
    seen: std::sync::Arc<std::sync::Mutex<String>>,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Leaves;

#[derive(serde::Serialize, serde::Deserialize)]
struct Left;

#[atomic_phases(name = "leaves", version = 1, app = Careless)]
impl Leaves {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        batch.add(diesel::sql_query("INSERT INTO steps VALUES ('k', 'begun')"));
        Ok(Begun)
    }

    #[phase(foreign(idempotent), commit)]
    async fn called(&self, call: ForeignCall, app: &Careless) -> PhaseResult<Left, ForeignError> {
        let left = call.make(async |_| {
            app.pool.get().await.unwrap().batch_execute("BEGIN").await.unwrap();
            Ok::<_, ForeignError>(Left)
        });
        left.await
    }

    #[phase]
    async fn answered(
        &self,
        _batch: &mut Batch<'_, Postgres>,
        app: &Careless,
    ) -> PhaseResult<Reply> {
        let point = app.aside.text("SELECT recovery_point FROM atomic_phases_keys").await;
        *app.seen.lock().unwrap() = point;
        Ok(Reply::new(204))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_a_transaction_that_was_left_open_does_not_swallow_a_foreign_result() {
    let db = Postgres::fresh().await;
    let shared = its_own_pool(&db, 1);
    let seen = std::sync::Arc::default();
    let app = Careless { pool: shared.pool().clone(), aside: db.clone(), seen };
    let engine = Engine::builder(shared).app(app.clone()).register::<Leaves>().build().unwrap();
    finished(engine.call(&scope(), &key("k"), Leaves).await);
    assert_eq!(*app.seen.lock().unwrap(), "called");
}
