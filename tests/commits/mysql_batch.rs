//! A `Batch` on MariaDB is one block: all of it is committed, or nothing.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use atomic_phases::engine::FailureCause;
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::Mysql;
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use diesel::sql_query;
use diesel_async::SimpleAsyncConnection;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};

use crate::support::db::{my, open_my, open_my_without_blocks};
use crate::support::mariadb::mysqld;
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::proxy::Cut;
use crate::support::*;

macro_rules! hands_over {
    ($module:ident, $first:literal, $last:literal) => {
        mod $module {
            use super::*;

            /// Adds these texts, in its first phase or in its last.
            #[derive(Clone, Serialize, Deserialize)]
            pub struct HandsOver {
                pub first: Vec<String>,
                pub last: Vec<String>,
            }

            #[atomic_phases(name = "hands_over", version = 1)]
            impl HandsOver {
                #[phase(commit, timeout = $first)]
                async fn begun(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Began> {
                    self.first.iter().for_each(|sql| batch.add(sql_query(sql.clone())));
                    Ok(Began)
                }

                #[phase(timeout = $last)]
                async fn answered(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
                    self.last.iter().for_each(|sql| batch.add(sql_query(sql.clone())));
                    Ok(Reply::new(204))
                }
            }
        }
    };
}

hands_over!(patient, "15s", "15s");
hands_over!(impatient_first, "2s", "15s");
hands_over!(impatient_last, "15s", "2s");

use patient::HandsOver;

#[derive(Serialize, Deserialize)]
struct Began;

/// Runs the text as the first statement of a request, and as the last.
fn in_each_phase(sql: &[&str]) -> [(&'static str, HandsOver); 2] {
    let texts: Vec<String> = sql.iter().map(|sql| (*sql).to_owned()).collect();
    [
        ("begun", HandsOver { first: texts.clone(), last: Vec::new() }),
        ("answered", HandsOver { first: Vec::new(), last: texts }),
    ]
}

async fn engine_on(db: &Mysql) -> Engine<Mysql, ()> {
    Engine::builder(db.clone()).register::<HandsOver>().build().unwrap()
}

/// The statements after an error are not executed, and nothing before it is committed. This holds for a statement
/// that may be part of a block, and for one that is sent by itself because of its text.
#[tokio::test(flavor = "multi_thread")]
async fn g4_nothing_of_a_batch_is_committed_where_one_of_it_fails() {
    let db = Mysql::fresh().await;
    let engine = engine_on(&db).await;
    db.sql("CREATE TABLE once (n INT PRIMARY KEY); INSERT INTO once VALUES (1)").await;
    db.sql("CREATE TABLE short (name VARCHAR(3))").await;
    let plain = "INSERT INTO steps (request, step) VALUES (1, 2)";
    for (at, fails) in [
        "INSERT INTO once VALUES (1)",
        "INSERT INTO once VALUES (1) /* by itself */",
        "INSERT INTO short VALUES (12345)",
        "INSERT INTO short VALUES ('long')",
        "INSERT INTO nowhere VALUES (1)",
        "INSERT INTO",
        "INSERT INTO steps (request, step) VALUES (1, 2); COMMIT",
        "INSERT INTO steps (request, step) VALUES (1, 'unclosed)",
        "INSERT INTO `steps VALUES (1, 2)",
        "DELETE FROM steps END",
        "CREATE TABLE made (n INT)",
        "COMMIT",
        "DELETE FROM steps -- the rest",
    ]
    .into_iter()
    .enumerate()
    {
        // An alias, for a MySQL.
        if fails.ends_with("END") && mysqld().is_some() {
            continue;
        }
        for (phase, request) in in_each_phase(&[plain, fails, plain]) {
            let told = engine.call(&scope(), &key(&format!("{phase}-{at}")), request).await;
            if fails.ends_with("the rest") {
                // A comment ends with its statement.
                finished(told);
                assert_eq!(db.number("SELECT count(*) FROM steps").await, 1, "{fails}");
                db.sql("DELETE FROM steps").await;
                continue;
            }
            let cause = failed_or_unavailable(told);
            assert!(cause.is_none_or(|cause| is_of_the_database(&cause)), "{fails}");
            assert_eq!(db.number("SELECT count(*) FROM steps").await, 0, "{phase}: {fails}");
        }
    }
    let wrote = "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed'";
    assert_eq!(db.number(wrote).await, 2);
}

/// The failure of a first phase; `None` if the call reports the store as unavailable.
fn failed_or_unavailable(
    told: Result<atomic_phases::Outcome, atomic_phases::engine::CallError>,
) -> Option<FailureCause> {
    match told {
        Err(atomic_phases::engine::CallError::Unavailable(_)) => None,
        told => Some(failed(told)),
    }
}

fn is_of_the_database(cause: &FailureCause) -> bool {
    matches!(cause, FailureCause::Database { .. } | FailureCause::Misuse { .. })
}

/// A unique violation by a statement of the phase does not mean that the key exists. It is reported as the phase's
/// error.
#[tokio::test(flavor = "multi_thread")]
async fn g10_a_key_that_a_phase_violates_is_not_the_requests() {
    let db = Mysql::fresh().await;
    let engine = engine_on(&db).await;
    db.sql("CREATE TABLE once (n INT PRIMARY KEY); INSERT INTO once VALUES (1)").await;
    for (phase, request) in in_each_phase(&["INSERT INTO once VALUES (1)"]) {
        let cause = failed(engine.call(&scope(), &key(phase), request).await);
        match cause {
            FailureCause::Database { phase: at, about, .. } => {
                assert_eq!((at, about.as_deref()), (phase, Some("constraint PRIMARY")));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A block in which the connection breaks, or whose answer never comes, may have been committed. The engine
/// resolves it.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_lost_block_is_resolved() {
    for cut in [Cut::Before, Cut::After, Cut::Answer] {
        for nth in [1, 2, 3] {
            let db = Mysql::fresh().await;
            let proxy = MysqlProxy::start(db.__url()).await;
            let store = open_my(&proxy.url(db.__url()), 4).await;
            let app = App::default();
            let engine = engine(&store, &app);
            let warm = Form::SingleStatement.parcel(Trouble::FinishEarly);
            finished(engine.call(&scope(), &key("warm"), warm).await);
            db.sql("DELETE FROM rides; DELETE FROM steps; DELETE FROM atomic_phases_staged_jobs")
                .await;
            proxy.arm("COMMIT AND", nth, cut);
            let call =
                engine.call(&scope(), &key("k"), Form::SingleStatement.parcel(Trouble::None));
            let done = finished(call.await);
            let what = format!("{cut:?} at {nth}");
            let told = (proxy.fired(), done.reply.status(), done.replayed);
            assert_eq!(told, (1, 201, false), "{what}");
            for (table, rows) in [("rides", 1), ("steps", 2), ("atomic_phases_staged_jobs", 2)] {
                let count = db.number(&format!("SELECT count(*) FROM {table}")).await;
                assert_eq!(count, rows, "{what}: {table}");
            }
            assert_eq!(app.provider.effects(), 1, "{what}");
        }
    }
}

/// A batch past its time limit is not committed, the error names phase and limit, and its locks are freed.
#[tokio::test(flavor = "multi_thread")]
async fn g13_g17_a_batch_past_its_time_limit_frees_its_locks() {
    let db = Mysql::fresh().await;
    db.sql(
        "CREATE TABLE held (id INT PRIMARY KEY, n INT NOT NULL); INSERT INTO held VALUES (1, 0)",
    )
    .await;
    for sleeps in ["UPDATE held SET n = n + SLEEP(25)", "UPDATE held SET n = n + SLEEP('25')"] {
        let texts = ["UPDATE held SET n = 1", sleeps].map(str::to_owned).to_vec();
        let first = impatient_first::HandsOver { first: texts.clone(), last: Vec::new() };
        frees_its_locks(&db, "begun", sleeps, first).await;
        let last = impatient_last::HandsOver { first: Vec::new(), last: texts };
        frees_its_locks(&db, "answered", sleeps, last).await;
    }
}

/// It is this phase that sleeps.
async fn frees_its_locks<R: RequestDefinition<Mysql, ()>>(
    db: &Mysql,
    phase: &'static str,
    sleeps: &str,
    request: R,
) {
    let engine = Engine::builder(db.clone()).register::<R>().build().unwrap();
    let name = key(&format!("{phase}-{}", sleeps.len()));
    let cause = failed(engine.call(&scope(), &name, request).await);
    let limit = Duration::from_secs(2);
    assert_eq!(cause, FailureCause::TimeLimit { phase, limit }, "{sleeps}");
    // The session ends within a second; it has not slept to the end.
    let free = db.sql("UPDATE held SET n = 0");
    tokio::time::timeout(Duration::from_secs(15), free).await.expect("a lock stayed");
}

/// A table of a prepared block changes while connections have the block prepared.
#[tokio::test(flavor = "multi_thread")]
async fn g14_a_prepared_block_survives_a_change_of_its_tables() {
    let db = Mysql::fresh().await;
    let app = App::default();
    let store = open_my(db.__url(), 1).await;
    let engine = engine(&store, &app);
    let mut admin = my(db.__url()).await;
    for (name, change) in [
        ("before", "DO 0"),
        ("column", "ALTER TABLE rides ADD COLUMN note VARCHAR(9) FIRST"),
        ("index", "CREATE INDEX rides_amount ON rides (amount)"),
        ("own", "ALTER TABLE atomic_phases_keys ADD COLUMN note VARBINARY(9) FIRST"),
        (
            "gone",
            "ALTER TABLE atomic_phases_keys DROP COLUMN note; ALTER TABLE rides DROP COLUMN note",
        ),
        ("trigger", "CREATE TRIGGER seen BEFORE INSERT ON rides FOR EACH ROW SET @seen = 1"),
    ] {
        admin.batch_execute(change).await.unwrap();
        let parcel = Form::SingleStatement.parcel(Trouble::None);
        assert!(!finished(engine.call(&scope(), &key(name), parcel).await).replayed, "{name}");
    }
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 6);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 12);
}

/// The place in a phase's body where a test stops it.
#[derive(Clone)]
struct Stops {
    entered: mpsc::UnboundedSender<()>,
    go_on: Arc<Semaphore>,
}

impl Stops {
    async fn here(&self) {
        let _ = self.entered.send(());
        self.go_on.acquire().await.expect("open").forget();
    }
}

/// Its last phase is stopped after its write.
#[derive(Serialize, Deserialize)]
struct StopsInTx;

#[atomic_phases(name = "stops_in_tx", version = 1, app = Stops)]
impl StopsInTx {
    #[phase(commit)]
    async fn begun(&self, _tx: &mut Tx<'_, Mysql>) -> PhaseResult<Began> {
        Ok(Began)
    }

    #[phase]
    async fn late(&self, tx: &mut Tx<'_, Mysql>, stops: &Stops) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "late").await?;
        stops.here().await;
        Ok(Reply::new(204))
    }
}

/// The same with a `Batch`.
#[derive(Serialize, Deserialize)]
struct StopsInBatch;

#[atomic_phases(name = "stops_in_batch", version = 1, app = Stops)]
impl StopsInBatch {
    #[phase(commit)]
    async fn begun(&self, _batch: &mut Batch<'_, Mysql>) -> PhaseResult<Began> {
        Ok(Began)
    }

    #[phase]
    async fn late(&self, batch: &mut Batch<'_, Mysql>, stops: &Stops) -> PhaseResult<Reply> {
        Mysql::add_step(batch, "r", "late");
        batch.stage_job("late", &1)?;
        stops.here().await;
        Ok(Reply::new(204))
    }
}

/// Y20: an UPDATE that finds no row is not an error. A holder whose row is taken over in the middle of a phase
/// commits nothing of it, with a `Tx` and with a `Batch`.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_phase_whose_holder_was_overtaken_commits_nothing() {
    let db = Mysql::fresh().await;
    commit_nothing_when_overtaken(&db, &db).await;
    commit_nothing_when_overtaken(&db, &open_my_without_blocks(db.__url(), 4).await).await;
}

async fn commit_nothing_when_overtaken(db: &Mysql, store: &Mysql) {
    db.sql("DELETE FROM atomic_phases_keys").await;
    let (entered, mut has_entered) = mpsc::unbounded_channel();
    let go_on = Arc::new(Semaphore::new(0));
    let engine = Engine::builder(store.clone()).app(Stops { entered, go_on: go_on.clone() });
    let engine = engine.register::<StopsInTx>().register::<StopsInBatch>().build().unwrap();
    for batch in [false, true] {
        let name = key(if batch { "batch" } else { "tx" });
        let call = match batch {
            false => engine.call(&scope(), &name, StopsInTx).into_future(),
            true => engine.call(&scope(), &name, StopsInBatch).into_future(),
        };
        let call = tokio::spawn(call);
        has_entered.recv().await.unwrap();
        db.sql("UPDATE atomic_phases_keys SET lease_token = lease_token + 1").await;
        go_on.add_permits(1);
        let told = call.await.unwrap();
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 0, "batch: {batch}");
        let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs";
        assert_eq!(db.number(jobs).await, 0, "batch: {batch}");
    }
}
