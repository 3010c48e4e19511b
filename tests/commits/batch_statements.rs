//! Which statements a [`Batch`] may have: some return rows, some take long, some end the transaction.

use std::time::Duration;

use crate::support::*;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Sly {
    first: Vec<String>,
    last: Vec<String>,
}

macro_rules! sly {
    ($module:ident, $store:ty) => {
        mod $module {
            use super::*;

            #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
            pub struct Request(pub Sly);

            #[derive(serde::Serialize, serde::Deserialize)]
            pub struct Begun;

            #[atomic_phases(name = "sly", version = 1)]
            impl Request {
                #[phase]
                async fn begun(&self, batch: &mut Batch<'_, $store>) -> PhaseResult<Begun> {
                    self.0.first.iter().for_each(|sql| batch.add(diesel::sql_query(sql.clone())));
                    Ok(Begun)
                }

                #[phase(commit)]
                async fn answered(&self, batch: &mut Batch<'_, $store>) -> PhaseResult<Reply> {
                    self.0.last.iter().for_each(|sql| batch.add(diesel::sql_query(sql.clone())));
                    Ok(Reply::new(204))
                }
            }
        }
    };
}

sly!(on_postgres, Postgres);
sly!(on_sqlite, Sqlite);

const BEFORE: &str = "INSERT INTO unique_things VALUES ('before')";
const AFTER: &str = "INSERT INTO unique_things VALUES ('after')";

/// What ends a transaction on both servers, however it is written.
const ENDS: [&str; 9] = [
    "COMMIT",
    "ROLLBACK",
    "COMMIT;",
    "; COMMIT",
    ";COMMIT",
    "/* a */ -- b\n commit",
    "\u{feff}COMMIT",
    "SAVEPOINT a; ROLLBACK TO a",
    "ROLLBACK TO SAVEPOINT a",
];
/// On PostgreSQL a carriage return ends a comment.
const ENDS_ON_POSTGRES: [&str; 2] = ["-- a\rCOMMIT", "--\r\rCOMMIT"];

async fn is_refused<R, S: TestDb>(request: fn(Sly) -> R, ends: &[&str])
where
    R: RequestDefinition<S, ()> + Clone,
{
    let texts = |all: &[&str]| all.iter().map(|&sql| sql.to_owned()).collect::<Vec<_>>();
    for end in ends {
        let sly = texts(&[BEFORE, end, AFTER]);
        for sly in [Sly { first: sly.clone(), last: vec![] }, Sly { first: vec![], last: sly }] {
            let db = S::fresh().await;
            let engine = Engine::builder(db.clone()).register::<R>().build().unwrap();
            let what =
                format!("{end:?} in {}", if sly.first.is_empty() { "last" } else { "first" });
            let cause = failed(engine.call(&scope(), &key("k"), request(sly)).await);
            assert!(matches!(cause, FailureCause::Misuse { .. }), "{what}: {cause:?}");
            assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 0, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_a_statement_that_ends_the_transaction_is_refused_on_postgres() {
    is_refused::<_, Postgres>(on_postgres::Request, &ENDS).await;
    is_refused::<_, Postgres>(on_postgres::Request, &ENDS_ON_POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_a_statement_that_ends_the_transaction_is_refused_on_sqlite() {
    is_refused::<_, Sqlite>(on_sqlite::Request, &ENDS).await;
}

/// A phase that manipulates its transaction, and stages a job.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Games {
    texts: Vec<String>,
    in_tx: bool,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Opened;

#[derive(serde::Serialize, serde::Deserialize)]
struct Played;

#[atomic_phases(name = "games", version = 1)]
impl Games {
    #[phase]
    async fn opened(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Opened> {
        Postgres::insert_step(tx, "k", "opened").await?;
        Ok(Opened)
    }

    #[phase(commit)]
    async fn played(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Played> {
        if self.in_tx {
            for sql in &self.texts {
                diesel_async::SimpleAsyncConnection::batch_execute(tx, sql).await?;
            }
            tx.stage_job("receipt", &1)?;
        }
        Ok(Played)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        if !self.in_tx {
            self.texts.iter().for_each(|sql| batch.add(diesel::sql_query(sql.clone())));
            batch.add(diesel::sql_query(AFTER));
            batch.stage_job("receipt", &1)?;
        }
        Ok(Reply::new(204))
    }
}

/// G4, G18: a phase may change the settings by which the engine recognizes its transaction. Then either everything
/// commits, or the commit is refused and nothing does.
#[tokio::test(flavor = "multi_thread")]
async fn g4_g18_games_with_the_transaction_commit_completely_or_are_refused() {
    // The setting by which a batch recognizes its transaction. A `Tx` recognizes its own by the number that the
    // server returned.
    let settings = [
        "RESET ALL",
        "SET LOCAL atomic_phases.transaction = 'x'",
        "RESET atomic_phases.transaction",
    ];
    let fine = ["SAVEPOINT a", "DISCARD PLANS", "SET LOCAL statement_timeout = '9s'", "SELECT 1"];
    let only_in_tx = [
        "COMMIT",
        "; COMMIT",
        "-- a\rCOMMIT",
        "COMMIT; BEGIN",
        "ROLLBACK; BEGIN; SET LOCAL atomic_phases.transaction = 'ours'",
        "COMMIT AND CHAIN",
    ];
    let games = |texts: &[&str], in_tx| Games {
        texts: texts.iter().map(|&sql| sql.to_owned()).collect(),
        in_tx,
    };
    let mut cases: Vec<(Games, bool)> = Vec::new();
    for in_tx in [true, false] {
        cases.extend(settings.map(|sql| (games(&[sql], in_tx), in_tx)));
        cases.extend(fine.map(|sql| (games(&[sql], in_tx), true)));
        cases.push((games(&["SAVEPOINT a", "RELEASE SAVEPOINT a"], in_tx), true));
    }
    cases.extend(only_in_tx.map(|sql| (games(&[sql], true), false)));
    cases.push((games(&["SAVEPOINT a; ROLLBACK TO a"], true), true));
    let db = Postgres::fresh().await;
    let engine = Engine::builder(db.clone()).register::<Games>().build().unwrap();
    for (number, (games, commits)) in cases.into_iter().enumerate() {
        let name = format!("k{number}");
        let outcome = engine.call(&scope(), &key(&name), games.clone()).await;
        let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs WHERE idempotency_key = ";
        let jobs = db.number(&format!("{jobs}'{name}'")).await;
        if commits {
            finished(outcome);
        } else {
            let cause = failed(outcome);
            assert!(matches!(cause, FailureCause::Misuse { .. }), "{games:?}: {cause:?}");
        }
        assert_eq!(jobs, i64::from(commits), "{games:?}");
        let made = db.number("SELECT count(*) FROM unique_things").await;
        assert_eq!(made, i64::from(commits && !games.in_tx), "{games:?}");
        db.sql("TRUNCATE unique_things").await;
    }
}

/// If a trigger of the database silently drops a job, the phase is not committed.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_that_was_not_inserted_fails_its_phase() {
    for in_tx in [true, false] {
        let db = Postgres::fresh().await;
        db.sql(
            "CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
             CREATE TRIGGER drop_it BEFORE INSERT ON atomic_phases_staged_jobs
             FOR EACH ROW EXECUTE FUNCTION drop_it();",
        )
        .await;
        let engine = Engine::builder(db.clone()).register::<Games>().build().unwrap();
        let texts = vec!["SELECT 1".to_owned(), BEFORE.to_owned()];
        failed(engine.call(&scope(), &key("k"), Games { texts, in_tx }).await);
        assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 0, "in a Tx: {in_tx}");
    }
}

/// In each phase one statement and these jobs, which the engine sends as a single statement.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Stages {
    first: Vec<String>,
    last: Vec<String>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Staged;

impl Stages {
    fn stage(batch: &mut Batch<'_, Postgres>, jobs: &[String]) -> PhaseResult<()> {
        batch.add(diesel::sql_query("INSERT INTO unique_things SELECT gen_random_uuid()::text"));
        for name in jobs {
            batch.stage_job(name, &1)?;
        }
        Ok(())
    }
}

#[atomic_phases(name = "stages", version = 1)]
impl Stages {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Staged> {
        Stages::stage(batch, &self.first)?;
        Ok(Staged)
    }

    #[phase(commit)]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        Stages::stage(batch, &self.last)?;
        Ok(Reply::new(204))
    }
}

/// The same where the phase and its jobs are parts of the statement that commits, whichever of them is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_that_was_not_inserted_fails_its_phase_that_is_a_single_statement() {
    let db = Postgres::fresh().await;
    db.sql(
        "CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
         CREATE TRIGGER drop_it BEFORE INSERT ON atomic_phases_staged_jobs
         FOR EACH ROW WHEN (NEW.name = 'dropped') EXECUTE FUNCTION drop_it();",
    )
    .await;
    let engine = Engine::builder(db.clone()).register::<Stages>().build().unwrap();
    let cases: [(&[&str], &[&str], i64); 7] = [
        (&[], &[], 2),
        (&["kept"], &["kept", "kept"], 2),
        (&["dropped"], &[], 0),
        (&["kept", "dropped"], &[], 0),
        (&["dropped", "kept"], &[], 0),
        (&["kept"], &["dropped"], 1),
        (&[], &["kept", "dropped", "kept"], 1),
    ];
    for (number, (first, last, phases)) in cases.into_iter().enumerate() {
        let names = |jobs: &[&str]| jobs.iter().map(|&name| name.to_owned()).collect();
        let stages = Stages { first: names(first), last: names(last) };
        let told = engine.call(&scope(), &key(&format!("k{number}")), stages.clone()).await;
        assert_eq!(matches!(told, Ok(Outcome::Finished(_))), phases == 2, "{stages:?}: {told:?}");
        let made = db.number("SELECT count(*) FROM unique_things").await;
        assert_eq!(made, phases, "{stages:?}");
        db.sql("TRUNCATE unique_things").await;
    }
}

/// The same on SQLite: of a `Batch`, and then of a `Tx`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct StagesThere(Stages);

#[atomic_phases(name = "stages_there", version = 1)]
impl StagesThere {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Sqlite>) -> PhaseResult<Staged> {
        for name in &self.0.first {
            batch.stage_job(name, &1)?;
        }
        Ok(Staged)
    }

    #[phase(commit)]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        for name in &self.0.last {
            tx.stage_job(name, &1)?;
        }
        Ok(Reply::new(204))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_that_sqlite_was_told_to_ignore_fails_its_phase() {
    let db = Sqlite::fresh().await;
    db.sql(
        "CREATE TRIGGER drop_it BEFORE INSERT ON atomic_phases_staged_jobs WHEN NEW.name = 'dropped'
         BEGIN SELECT RAISE(IGNORE); END;",
    )
    .await;
    let engine = Engine::builder(db.clone()).register::<StagesThere>().build().unwrap();
    let cases: [(&[&str], &[&str], i64); 4] = [
        (&["kept"], &["kept"], 2),
        (&["kept", "dropped"], &[], 0),
        (&["kept"], &["dropped"], 1),
        (&["kept"], &["dropped", "kept"], 1),
    ];
    for (number, (first, last, staged)) in cases.into_iter().enumerate() {
        let names = |jobs: &[&str]| jobs.iter().map(|&name| name.to_owned()).collect();
        let stages = StagesThere(Stages { first: names(first), last: names(last) });
        let told = engine.call(&scope(), &key(&format!("k{number}")), stages.clone()).await;
        assert_eq!(matches!(told, Ok(Outcome::Finished(_))), staged == 2, "{stages:?}: {told:?}");
        let jobs = db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await;
        assert_eq!(jobs, staged, "{stages:?}");
        db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    }
}

/// G3, G10: user input comes back in the message of an application's trigger. The engine does not take it for its
/// own mark, even if the message quotes the engine's statement.
#[tokio::test(flavor = "multi_thread")]
async fn g3_g10_a_message_of_the_applications_is_not_the_engines() {
    let db = Postgres::fresh().await;
    db.sql(
        "CREATE TABLE people (name text);
         CREATE FUNCTION check_name() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         RAISE EXCEPTION 'no such name: % in %', NEW.name, current_query(); END $$;
         CREATE TRIGGER check_name BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION check_name();",
    )
    .await;
    let engine = Engine::builder(db.clone()).register::<on_postgres::Request>();
    let engine = engine.back_off(Duration::ZERO, Duration::ZERO).build().unwrap();
    let names = [
        "bob",
        "atomic_phases:exists",
        "atomic_phases:fenced",
        "atomic_phases:left",
        "lock timeout",
        "canceling statement due to lock timeout",
        "current transaction is aborted, commands ignored until end of transaction block",
    ];
    for (number, name) in names.into_iter().enumerate() {
        let insert = format!("INSERT INTO people VALUES ('{name}')");
        for (place, texts) in [vec![insert.clone()], vec![insert.clone(), "SELECT 1".to_owned()]]
            .into_iter()
            .enumerate()
        {
            for sly in [
                Sly { first: texts.clone(), last: vec![] },
                Sly { first: vec![], last: texts.clone() },
            ] {
                let first = sly.last.is_empty();
                let name = key(&format!("{number}-{place}-{first}"));
                let outcome = engine.call(&scope(), &name, on_postgres::Request(sly)).await;
                let is_of_the_database = match &outcome {
                    Ok(Outcome::Failed { cause, .. }) => {
                        matches!(cause, FailureCause::Database { phase: "answered", .. })
                    }
                    // A failed first phase leaves no row, so there is nothing to release.
                    Err(CallError::Unavailable(_)) => first,
                    _ => false,
                };
                assert!(is_of_the_database, "{name:?}: {outcome:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_answers_rows_is_executed() {
    let db = Postgres::fresh().await;
    let engine = Engine::builder(db.clone()).register::<on_postgres::Request>().build().unwrap();
    let sly = vec![
        "SELECT pg_notify('a', 'b') FROM generate_series(1, 3)".to_owned(),
        format!("{BEFORE} RETURNING name"),
    ];
    let request = on_postgres::Request(Sly { first: sly, last: vec!["SELECT 1".into()] });
    finished(engine.call(&scope(), &key("k"), request).await);
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);

    let db = Sqlite::fresh().await;
    let engine = Engine::builder(db.clone()).register::<on_sqlite::Request>().build().unwrap();
    let sly = vec!["SELECT 1".to_owned(), format!("{BEFORE} RETURNING name")];
    let request = on_sqlite::Request(Sly { first: sly, last: vec!["SELECT 1".into()] });
    finished(engine.call(&scope(), &key("k"), request).await);
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);
}

/// More statements than tokio lets one task send without a pause: they stay in one transaction, and in order.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_thousand_statements_keep_their_order() {
    let statements: Vec<String> =
        (0..1000).map(|n| format!("INSERT INTO steps VALUES ('k', '{n}')")).collect();
    for sly in [
        Sly { first: statements.clone(), last: vec![] },
        Sly { first: vec![], last: statements.clone() },
    ] {
        let db = Postgres::fresh().await;
        db.sql("ALTER TABLE steps ADD COLUMN n bigserial").await;
        let builder = Engine::builder(db.clone()).register::<on_postgres::Request>();
        let engine = builder.build().unwrap();
        finished(engine.call(&scope(), &key("k"), on_postgres::Request(sly)).await);
        let order = "SELECT string_agg(step, ' ' ORDER BY n) FROM steps";
        let expected: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        assert_eq!(db.text(order).await, expected.join(" "));
        assert_eq!(db.number("SELECT count(DISTINCT xmin::text) FROM steps").await, 1);
    }
}

/// G13: a future dropped while the whole transaction is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn g13_an_aborted_batch_frees_its_locks() {
    let sleep = vec![BEFORE.to_owned(), "SELECT pg_sleep(30)".to_owned()];
    let first = Sly { first: sleep.clone(), last: vec![] };
    let later = Sly { first: vec![], last: sleep };
    for (place, sly) in [("the first phase", first), ("a later phase", later)] {
        let store = Postgres::fresh().await;
        let db = store.another().await;
        let engine = Engine::builder(store).register::<on_postgres::Request>().build().unwrap();
        let call = engine.call(&scope(), &key("k"), on_postgres::Request(sly));
        let task = tokio::spawn(call.__call_in_place());
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        until(async || db.number(asleep).await != 0).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
        // The statement under way is ended too: it would take thirty seconds.
        until_within(Duration::from_secs(10), async || db.number(open).await == 0).await;
        assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 0, "{place}");
    }
}

mod unsendable {
    //! Values that no statement can carry: diesel refuses them before anything is sent.
    use diesel::deserialize::{self, FromSql};
    use diesel::expression::AsExpression;
    use diesel::pg::{Pg, PgValue};
    use diesel::serialize::{self, Output, ToSql};
    use diesel::sql_types::Text;

    #[derive(Debug, AsExpression)]
    #[diesel(sql_type = Text)]
    pub struct Refuses;

    impl ToSql<Text, Pg> for Refuses {
        fn to_sql<'b>(&'b self, _: &mut Output<'b, '_, Pg>) -> serialize::Result {
            Err("out of range".into())
        }
    }

    #[derive(diesel::sql_types::SqlType, diesel::query_builder::QueryId)]
    #[diesel(postgres_type(name = "no_such_type"))]
    pub struct MissingSql;

    #[derive(Debug, AsExpression, diesel::deserialize::FromSqlRow)]
    #[diesel(sql_type = MissingSql)]
    pub struct Missing;

    impl ToSql<MissingSql, Pg> for Missing {
        fn to_sql<'b>(&'b self, _: &mut Output<'b, '_, Pg>) -> serialize::Result {
            Ok(serialize::IsNull::Yes)
        }
    }

    impl FromSql<MissingSql, Pg> for Missing {
        fn from_sql(_: PgValue<'_>) -> deserialize::Result<Self> {
            Ok(Self)
        }
    }

    diesel::table! { unique_things (name) { name -> Text, } }

    diesel::table! {
        use diesel::sql_types::Text;
        use super::MissingSql;
        moods (id) { id -> Text, mood -> MissingSql, }
    }
}

/// Why a statement cannot be sent.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
enum Flaw {
    NoSqlForm,
    MissingBind,
    MissingType,
    TooManyBinds,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Unsendable {
    flaw: Flaw,
    last: bool,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Begun;

impl Unsendable {
    fn add(&self, batch: &mut Batch<'_, Postgres>) {
        use diesel::ExpressionMethods;
        use unsendable::{Missing, Refuses, moods, unique_things};
        batch.add(diesel::sql_query(BEFORE));
        match self.flaw {
            Flaw::NoSqlForm => {
                let row = unique_things::name.eq(Refuses);
                batch.add(diesel::insert_into(unique_things::table).values(row));
            }
            Flaw::MissingBind => {
                batch.add(diesel::sql_query("INSERT INTO unique_things VALUES ($1)"));
            }
            Flaw::TooManyBinds => {
                let rows = vec![unique_things::name.eq("a"); 70_000];
                batch.add(diesel::insert_into(unique_things::table).values(rows));
            }
            Flaw::MissingType => {
                let row = (moods::id.eq("a"), moods::mood.eq(Missing));
                batch.add(diesel::insert_into(moods::table).values(row));
            }
        }
        batch.add(diesel::sql_query(AFTER));
    }
}

#[atomic_phases(name = "unsendable", version = 1)]
impl Unsendable {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        if !self.last {
            self.add(batch);
        }
        Ok(Begun)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        if self.last {
            self.add(batch);
        }
        Ok(Reply::new(204))
    }
}

/// If the client itself refuses a statement, so that the server never receives it, nothing of its phase may be
/// committed.
async fn g4_a_statement_that_cannot_be_sent_fails_its_phase(flaw: Flaw) {
    let mut wrong = Vec::new();
    for last in [false, true] {
        let db = Postgres::fresh().await;
        db.sql("CREATE TABLE moods (id text, mood text)").await;
        let engine = Engine::builder(db.clone()).register::<Unsendable>().build().unwrap();
        let told = engine.call(&scope(), &key("k"), Unsendable { flaw, last }).await;
        let made = db.number("SELECT count(*) FROM unique_things").await;
        let point = "SELECT coalesce(max(recovery_point), 'no row') FROM atomic_phases_keys";
        let point = db.text(point).await;
        let right = if last { "begun" } else { "no row" };
        // A transient failure is retried; a first phase that still fails has stored no reply.
        let is_failed = match &told {
            Ok(Outcome::Failed { cause: FailureCause::Database { .. }, .. }) => true,
            Err(CallError::Unavailable(_)) => !last,
            _ => false,
        };
        if made != 0 || point != right || !is_failed {
            wrong.push(format!("last: {last}: {told:?}, {made} rows of the phase, at {point}"));
        }
    }
    assert!(wrong.is_empty(), "{flaw:?}: {wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_a_value_that_has_no_sql_form_fails_its_phase() {
    g4_a_statement_that_cannot_be_sent_fails_its_phase(Flaw::NoSqlForm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_a_bind_that_is_missing_fails_its_phase() {
    g4_a_statement_that_cannot_be_sent_fails_its_phase(Flaw::MissingBind).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_a_type_that_the_server_does_not_know_fails_its_phase() {
    g4_a_statement_that_cannot_be_sent_fails_its_phase(Flaw::MissingType).await;
}

/// An error that only `COMMIT` finds.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_deferred_constraint_fails_its_phase() {
    let twice =
        vec!["INSERT INTO late VALUES (1)".to_owned(), "INSERT INTO late VALUES (1)".to_owned()];
    for last in [false, true] {
        let db = Postgres::fresh().await;
        db.sql("CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
        let builder = Engine::builder(db.clone()).register::<on_postgres::Request>();
        let engine = builder.build().unwrap();
        let sly = match last {
            true => Sly { first: vec![], last: twice.clone() },
            false => Sly { first: twice.clone(), last: vec![] },
        };
        failed(engine.call(&scope(), &key("k"), on_postgres::Request(sly)).await);
        assert_eq!(db.number("SELECT count(*) FROM late").await, 0);
        assert_eq!(
            db.text(
                "SELECT coalesce(string_agg(recovery_point, ' '), 'no row') FROM atomic_phases_keys"
            )
            .await,
            if last { "begun" } else { "no row" }
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_more_binds_than_the_protocol_has_room_for_fail_their_phase() {
    g4_a_statement_that_cannot_be_sent_fails_its_phase(Flaw::TooManyBinds).await;
}
