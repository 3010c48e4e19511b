//! What the engine sends to PostgreSQL as a single statement: when it does so, what holds then, and when it does
//! not.

use std::time::Duration;

use crate::recorded::*;
use crate::support::db::{open_pg, pg, url_of};
use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::store::Postgres;
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, atomic_phases};
use diesel::sql_types::Text;
use tokio::sync::MutexGuard;

/// A fresh database, with every statement recorded.
async fn fresh() -> (MutexGuard<'static, ()>, Postgres) {
    (alone().await, Postgres::fresh().await)
}

/// The number of phases that were sent as a single statement for the keys that begin with `name`.
fn sent_as_single(name: &str) -> usize {
    let name = format!("\"{name}");
    count(|sql| sql.starts_with("WITH atomic_phases_") && sql.contains(&name))
}

/// Independent statements, each a text, in the first phase or in the last.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Texts {
    first: Vec<String>,
    last: Vec<String>,
}

fn in_both(texts: &[&str]) -> [Texts; 2] {
    let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    [Texts { first: texts.clone(), last: vec![] }, Texts { first: vec![], last: texts }]
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Begun;

#[atomic_phases(name = "texts", version = 1)]
impl Texts {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        self.first.iter().for_each(|sql| batch.add_independent(diesel::sql_query(sql.clone())));
        Ok(Begun)
    }

    #[phase(commit)]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        self.last.iter().for_each(|sql| batch.add_independent(diesel::sql_query(sql.clone())));
        Ok(Reply::new(204))
    }
}

fn engine_of(db: &Postgres) -> Engine<Postgres> {
    Engine::builder(db.clone()).register::<Texts>().build().unwrap()
}

/// A statement that is a transaction by itself commits after its answer: the engine receives an error that only the
/// commit finds.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_constraint_that_is_deferred_to_the_commit_fails_its_phase() {
    for (n, texts) in in_both(&["INSERT INTO late VALUES (1), (1)"]).into_iter().enumerate() {
        let (_alone, db) = fresh().await;
        db.sql("CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
        let name = format!("deferred-{n}");
        failed(engine_of(&db).call(&scope(), &key(&name), texts).await);
        assert_eq!(db.number("SELECT count(*) FROM late").await, 0);
        let point = "SELECT coalesce(max(recovery_point), 'no row') FROM atomic_phases_keys";
        assert_eq!(db.text(point).await, ["no row", "begun"][n]);
        assert!(sent_as_single(&name) > 0, "it went as a single statement");
    }
}

/// The connection ends during the statement. The same call resolves it, and continues.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_connection_that_the_server_ends_in_the_statement_is_resolved() {
    let blows = "INSERT INTO steps SELECT 'k', blow()::text";
    for (n, texts) in in_both(&[blows]).into_iter().enumerate() {
        let (_alone, db) = fresh().await;
        // A sequence is not rolled back, so only the first run fails.
        db.sql(
            "CREATE SEQUENCE fuse; CREATE FUNCTION blow() RETURNS bigint LANGUAGE plpgsql AS $$ \
             DECLARE n bigint := nextval('fuse'); BEGIN IF n = 1 THEN \
             PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN n; END $$",
        )
        .await;
        finished(engine_of(&db).call(&scope(), &key("k"), texts).await);
        assert_eq!(db.text("SELECT string_agg(step, ' ') FROM steps").await, "2", "case {n}");
        assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 1);
    }
}

/// A part of a statement cannot change a table with a rule. The writes are then sent one by one, and after some
/// refusals the engine no longer tries a single statement.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_as_a_single_statement_is_sent_one_by_one() {
    for (n, texts) in in_both(&["INSERT INTO ruled VALUES (1)"]).into_iter().enumerate() {
        let (_alone, db) = fresh().await;
        db.sql(
            "CREATE TABLE ruled (id int); CREATE RULE also AS ON INSERT TO ruled \
             DO ALSO INSERT INTO steps VALUES ('rule', 'also')",
        )
        .await;
        let engine = engine_of(&db);
        for time in 0..6 {
            let name = key(&format!("ruled-{n}-{time}"));
            finished(engine.call(&scope(), &name, texts.clone()).await);
        }
        assert_eq!(db.number("SELECT count(*) FROM ruled").await, 6);
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 6);
        // The phase without a statement is sent as a single statement each time.
        assert_eq!(sent_as_single(&format!("ruled-{n}-")), 6 + 3);
    }
}

/// A bind that the application numbers itself would be another part's in a single statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_bind_with_a_number_of_its_own_keeps_it() {
    #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
    struct Numbered;

    #[atomic_phases(name = "numbered", version = 1)]
    impl Numbered {
        #[phase]
        async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
            let insert = diesel::sql_query("INSERT INTO steps VALUES ($2, $1)");
            batch.add(insert.bind::<Text, _>("second").bind::<Text, _>("first"));
            Ok(Reply::new(204))
        }
    }

    let (_alone, db) = fresh().await;
    let engine = Engine::builder(db.clone()).register::<Numbered>().build().unwrap();
    finished(engine.call(&scope(), &key("numbered"), Numbered).await);
    assert_eq!(db.text("SELECT request || ' ' || step FROM steps").await, "first second");
    assert_eq!(sent_as_single("numbered"), 0);
}

/// The lock timeout for the key's row does not apply to the phase.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_keeps_the_lock_timeout_of_its_session() {
    let told = "INSERT INTO steps VALUES ('k', current_setting('lock_timeout'))";
    for (n, texts) in in_both(&[told]).into_iter().enumerate() {
        let (_alone, db) = fresh().await;
        let url = format!("{}?options=-c%20lock_timeout%3D12345ms", url_of(&db));
        let single = open_pg(&url, 1).await;
        let engine = engine_of(&single);
        for (time, texts) in [texts.clone(), texts].into_iter().enumerate() {
            let name = key(&format!("timeout-{n}-{time}"));
            finished(engine.call(&scope(), &name, texts).await);
        }
        assert_eq!(db.text("SELECT string_agg(step, ' ') FROM steps").await, "12345ms 12345ms");
        assert_eq!(sent_as_single(&format!("timeout-{n}")), 4);
    }
}

/// Another transaction is slow to create the row: the answer says so, within the time limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_about_to_be_is_in_progress() {
    use diesel_async::SimpleAsyncConnection;
    let (_alone, db) = fresh().await;
    let engine = engine_of(&db);
    let texts = in_both(&["INSERT INTO steps VALUES ('k', 'once')"])[0].clone();
    finished(engine.call(&scope(), &key("other"), texts.clone()).await);
    let mut aside = pg(&url_of(&db)).await;
    aside
        .batch_execute(
            "BEGIN; CREATE TEMP TABLE copy AS SELECT * FROM atomic_phases_keys; \
             UPDATE copy SET idempotency_key = 'busy'; \
             INSERT INTO atomic_phases_keys SELECT * FROM copy",
        )
        .await
        .unwrap();
    let told = engine.call(&scope(), &key("busy"), texts.clone()).await;
    assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
    aside.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
    finished(engine.call(&scope(), &key("busy"), texts).await);
    assert!(sent_as_single("busy") >= 2);
}

/// A session whose default level is serializable: a single statement cannot change that, and is correct all the
/// same.
#[tokio::test(flavor = "multi_thread")]
async fn g10_duplicates_in_serializable_sessions() {
    let (_alone, db) = fresh().await;
    let url = format!("{}?options=-c%20default_transaction_isolation%3Dserializable", url_of(&db));
    let strict = open_pg(&url, 16).await;
    let engine = engine_of(&strict);
    let texts = in_both(&["INSERT INTO steps VALUES ('k', 'once')"])[0].clone();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..64 {
        let call = engine.call(&scope(), &key(&format!("strict-{}", number % 4)), texts.clone());
        calls.spawn(call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(30))).into_future());
    }
    while let Some(outcome) = calls.join_next().await {
        finished(outcome.unwrap());
    }
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 4);
}

/// G13: a future is dropped while the statement is on its way. No setting inside the statement could make the
/// server check its client.
#[tokio::test(flavor = "multi_thread")]
async fn g13_an_aborted_statement_frees_its_locks() {
    let sleeps = "INSERT INTO steps SELECT 'k', pg_sleep(30)::text";
    for (n, texts) in in_both(&[sleeps]).into_iter().enumerate() {
        let (_alone, store) = fresh().await;
        let db = store.another().await;
        let engine = engine_of(&store);
        let name = key(&format!("slept-{n}"));
        let task = tokio::spawn(engine.call(&scope(), &name, texts).__call_in_place());
        let running = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                       AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                      AND wait_event = 'PgSleep'";
        until(async || db.number(asleep).await > 0).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        // Well before it would have slept its time.
        until_within(Duration::from_secs(10), async || db.number(running).await == 0).await;
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
        assert!(sent_as_single(&format!("slept-{n}")) > 0);
    }
}

/// What *independent* means: parts of one statement see only what existed before it. A foreign key is checked at
/// the end.
#[tokio::test(flavor = "multi_thread")]
async fn independent_statements_do_not_see_each_other_and_may_refer_to_each_other() {
    let (_alone, db) = fresh().await;
    db.sql(
        "CREATE TABLE parents (id int PRIMARY KEY); \
         CREATE TABLE children (id int REFERENCES parents); INSERT INTO parents VALUES (1)",
    )
    .await;
    let texts = in_both(&[
        "INSERT INTO children VALUES (2)",
        "INSERT INTO parents VALUES (2)",
        "INSERT INTO steps SELECT 'seen', count(*)::text FROM parents",
    ]);
    finished(engine_of(&db).call(&scope(), &key("family"), texts[0].clone()).await);
    assert_eq!(db.text("SELECT step FROM steps").await, "1");
    assert_eq!(db.number("SELECT count(*) FROM children").await, 1);
    assert_eq!(sent_as_single("family"), 2);
}

/// A request whose last phase waits for the test.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Slow;

#[derive(Clone, Default)]
struct Gate {
    reached: std::sync::Arc<tokio::sync::Notify>,
    go: std::sync::Arc<tokio::sync::Notify>,
    passed: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

#[atomic_phases(name = "slow", version = 1, app = Gate)]
impl Slow {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        batch.add(diesel::sql_query("INSERT INTO steps VALUES ('slow', 'begun')"));
        Ok(Begun)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>, gate: &Gate) -> PhaseResult<Reply> {
        let nth = gate.passed.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if nth == 0 {
            gate.reached.notify_one();
            gate.go.notified().await;
        }
        batch.add(diesel::sql_query(format!("INSERT INTO steps VALUES ('slow', 'of {nth}')")));
        batch.stage_job("thanks", &nth)?;
        Ok(Reply::new(204))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_a_holder_that_was_overtaken_writes_nothing() {
    let (_alone, db) = fresh().await;
    let gate = Gate::default();
    let engine = || {
        let builder = Engine::builder(db.clone()).app(gate.clone()).register::<Slow>();
        builder.lease(Duration::from_secs(60)).build().unwrap()
    };
    let first = tokio::spawn(engine().call(&scope(), &key("slow"), Slow).into_future());
    gate.reached.notified().await;
    db.let_leases_expire().await;
    assert!(!finished(engine().call(&scope(), &key("slow"), Slow).await).replayed);
    gate.go.notify_one();
    assert!(finished(first.await.unwrap()).replayed, "answered as a loser");
    let steps = "SELECT string_agg(step, ' ' ORDER BY step) FROM steps";
    assert_eq!(db.text(steps).await, "begun of 1");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 1);
    assert_eq!(sent_as_single("slow"), 3);
}
