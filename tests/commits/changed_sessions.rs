//! What an application or a phase sets on a connection: it stays the application's, and nothing of it is in the
//! engine's way.

use crate::support::db::{open_pg, url_of};
use crate::support::*;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::store::{DeadpoolPool, Postgres};
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use diesel_async::SimpleAsyncConnection;

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Noted;

#[derive(diesel::QueryableByName)]
struct Told {
    #[diesel(sql_type = diesel::sql_types::Text)]
    t: String,
}

/// The settings of a session that the engine touches.
const SETTINGS: &str = "current_setting('lock_timeout') || ' ' || \
    current_setting('idle_in_transaction_session_timeout')";

/// Records the settings under which it runs.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Notes;

#[atomic_phases(name = "notes", version = 1)]
impl Notes {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Noted> {
        tx.batch_execute(&format!("INSERT INTO steps SELECT 'first', {SETTINGS}")).await?;
        Ok(Noted)
    }

    #[phase(commit)]
    async fn again(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Again> {
        tx.batch_execute(&format!("INSERT INTO steps SELECT 'later', {SETTINGS}")).await?;
        Ok(Again)
    }

    #[phase(isolation = "repeatable_read")]
    async fn answered(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        tx.batch_execute(&format!("INSERT INTO steps SELECT 'last', {SETTINGS}")).await?;
        Ok(Reply::new(204))
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Again;

/// H13: an application's session keeps the limits that it set itself, inside phases and after them.
#[tokio::test(flavor = "multi_thread")]
async fn h13_a_session_of_the_applications_keeps_its_settings() {
    use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig};
    use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
    use futures_util::FutureExt;
    let db = Postgres::fresh().await;
    let mut config = ManagerConfig::default();
    config.custom_setup = Box::new(|url| {
        async move {
            let mut conn = AsyncPgConnection::establish(url).await?;
            let set = "SET lock_timeout = '2s'; SET idle_in_transaction_session_timeout = '5s'; \
                       SET client_connection_check_interval = '10s'";
            conn.batch_execute(set).await.unwrap();
            Ok(conn)
        }
        .boxed()
    });
    let manager = AsyncDieselConnectionManager::new_with_config(url_of(&db), config);
    let pool = DeadpoolPool::builder(manager).max_size(1).build().unwrap();
    let store = Postgres::with_pool(pool.clone());
    let builder = Engine::builder(store).app(App::default()).register::<Notes>();
    let engine = builder.register::<Parcel>().build().unwrap();
    finished(engine.call(&scope(), &key("notes"), Notes).await);
    for (name, form) in [("one", Form::SingleStatement), ("turn", Form::OneByOne)] {
        finished(engine.call(&scope(), &key(name), form.parcel(Trouble::None)).await);
        let mut conn = pool.get().await.unwrap();
        let sql = format!(
            "SELECT {SETTINGS} || ' ' || current_setting('client_connection_check_interval') AS t"
        );
        let told = diesel::sql_query(sql).get_result::<Told>(&mut conn).await.unwrap();
        assert_eq!(told.t, "2s 5s 10s", "{name}");
    }
    let noted = "SELECT string_agg(request || ' ' || step, ', ' ORDER BY request) FROM steps \
                 WHERE request IN ('first', 'later', 'last')";
    assert_eq!(db.text(noted).await, "first 2s 5s, last 2s 5s, later 2s 5s");
}

/// Runs as a tenant's role, or in its schema.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Tenant(pub(super) String);

#[atomic_phases(name = "tenant", version = 1)]
impl Tenant {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        tx.batch_execute(&self.0).await?;
        tx.batch_execute("INSERT INTO things VALUES (1)").await?;
        tx.stage_job("receipt", &1)?;
        Ok(Reply::new(204))
    }
}

/// G4: a phase that makes the engine's tables unreachable is refused, and the error names the rule.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_phase_that_changes_role_or_path_commits_or_is_told_why_not() {
    let db = Postgres::fresh().await;
    db.sql(
        "CREATE SCHEMA tenant; CREATE TABLE tenant.things (n int); CREATE TABLE things (n int);
         DO $$ BEGIN CREATE ROLE phase_tenant; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
         GRANT USAGE ON SCHEMA public TO phase_tenant; GRANT ALL ON things TO phase_tenant;",
    )
    .await;
    let engine = Engine::builder(open_pg(&url_of(&db), 1).await).register::<Tenant>();
    let engine = engine.build().unwrap();
    let cases = [
        ("SET LOCAL search_path = tenant, public", true),
        ("SET LOCAL search_path = tenant", false),
        ("SET search_path = tenant", false),
        ("SET LOCAL ROLE phase_tenant", false),
        ("SELECT 1", true),
    ];
    let mut done = 0;
    for (number, (sql, commits)) in cases.into_iter().enumerate() {
        let name = key(&format!("k{number}"));
        let outcome = engine.call(&scope(), &name, Tenant(sql.to_owned())).await;
        match commits {
            true => {
                finished(outcome);
                done += 1;
            }
            false => match failed(outcome) {
                FailureCause::Misuse { rule, .. } => {
                    assert!(rule.contains("search_path"), "{rule}")
                }
                cause => panic!("{sql}: {cause:?}"),
            },
        }
        let made = "SELECT (SELECT count(*) FROM things) + (SELECT count(*) FROM tenant.things)";
        assert_eq!(db.number(made).await, done, "{sql}");
        let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs";
        assert_eq!(db.number(jobs).await, done, "{sql}");
    }
}

/// The same for statements of a batch: the engine's own statements follow them in the same transaction.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct TenantBatch {
    pub sql: String,
    pub in_first: bool,
    pub stages: bool,
}

#[derive(serde::Serialize, serde::Deserialize)]
pub struct Began;

#[atomic_phases(name = "tenant-batch", version = 1)]
impl TenantBatch {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Began> {
        self.work(batch, self.in_first)?;
        Ok(Began)
    }

    #[phase(commit)]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        self.work(batch, !self.in_first)?;
        Ok(Reply::new(204))
    }

    fn work(&self, batch: &mut Batch<'_, Postgres>, is_here: bool) -> PhaseResult<()> {
        if is_here {
            batch.add(diesel::sql_query("INSERT INTO public.things VALUES (1)"));
            batch.add(diesel::sql_query(self.sql.clone()));
            if self.stages {
                batch.stage_job("receipt", &1)?;
            }
        }
        Ok(())
    }
}

/// G18: a job is not written into a table of that name in another schema.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_batch_that_changes_role_or_path_commits_or_is_told_why_not() {
    let db = Postgres::fresh().await;
    db.sql(
        "CREATE TABLE things (n int); CREATE SCHEMA bare; CREATE SCHEMA tenant;
         CREATE TABLE tenant.atomic_phases_keys
             (LIKE public.atomic_phases_keys INCLUDING ALL);
         CREATE TABLE tenant.atomic_phases_staged_jobs
             (LIKE public.atomic_phases_staged_jobs INCLUDING ALL);
         CREATE FUNCTION to_tenant() RETURNS text LANGUAGE sql AS
             $$ SELECT set_config('search_path', 'tenant', true) $$;
         DO $$ BEGIN CREATE ROLE phase_batch; EXCEPTION WHEN duplicate_object THEN NULL; END $$;",
    )
    .await;
    let store = open_pg(&url_of(&db), 1).await;
    let engine = Engine::builder(store).register::<TenantBatch>().build().unwrap();
    let cases = [
        ("SET LOCAL search_path = bare, public", true),
        ("SET LOCAL search_path = bare", false),
        ("SET LOCAL search_path = tenant, public", false),
        ("SELECT set_config('search_path', 'tenant', true)", false),
        ("SELECT to_tenant()", false),
        ("SET search_path = tenant", false),
        ("SET LOCAL ROLE phase_batch", false),
        ("SELECT 1", true),
    ];
    let (mut done, mut staged) = (0, 0);
    for (number, (sql, commits)) in cases.into_iter().enumerate() {
        for (in_first, stages) in [(true, true), (false, true), (true, false), (false, false)] {
            // Without a job, the role needs no privilege on the table of jobs.
            if !stages && sql.contains("ROLE") {
                continue;
            }
            let name = key(&format!("k{number}-{in_first}-{stages}"));
            let request = TenantBatch { sql: sql.to_owned(), in_first, stages };
            let outcome = engine.call(&scope(), &name, request).await;
            match commits {
                true => {
                    finished(outcome);
                    done += 1;
                    staged += i64::from(stages);
                }
                false => match failed(outcome) {
                    FailureCause::Misuse { rule, .. } => {
                        assert!(rule.contains("search_path"), "{rule}")
                    }
                    cause => panic!("{sql}: {cause:?}"),
                },
            }
            let things = "SELECT count(*) FROM things";
            assert_eq!(db.number(things).await, done, "{sql}");
            let jobs = "SELECT count(*) FROM public.atomic_phases_staged_jobs";
            assert_eq!(db.number(jobs).await, staged, "{sql}");
            let strayed = "SELECT count(*) FROM tenant.atomic_phases_staged_jobs";
            assert_eq!(db.number(strayed).await, 0, "{sql}");
        }
    }
}

/// A phase that discards the connection's prepared statements fails, and the pool drops the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_its_prepared_statements_is_not_used_again() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE things (n int)").await;
    let engine = Engine::builder(open_pg(&url_of(&db), 1).await).register::<Tenant>();
    let engine = engine.build().unwrap();
    for name in ["warm", "warmer"] {
        finished(engine.call(&scope(), &key(name), Tenant("SELECT 1".to_owned())).await);
    }
    let _ = engine.call(&scope(), &key("bad"), Tenant("DEALLOCATE ALL".to_owned())).await;
    finished(engine.call(&scope(), &key("good"), Tenant("SELECT 1".to_owned())).await);
}

/// G4: after an application has discarded a connection's prepared statements, nothing commits by itself: neither a
/// statement that is new to the connection, nor a row.
#[tokio::test(flavor = "multi_thread")]
async fn g4_where_prepared_statements_were_discarded_nothing_commits_by_itself() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE things (n int)").await;
    for (in_first, discard) in [true, false].into_iter().zip(["DISCARD ALL", "DEALLOCATE ALL"]) {
        let pooled = open_pg(&url_of(&db), 1).await;
        let engine = Engine::builder(pooled.clone()).register::<TenantBatch>().build().unwrap();
        let batch = |number: u32| {
            let sql = format!("INSERT INTO public.things VALUES ({number})");
            TenantBatch { sql, in_first, stages: false }
        };
        let name = |number: u32| key(&format!("{}-{number}", discard.replace(" ", "-")));
        for number in 10..13 {
            finished(engine.call(&scope(), &name(number), batch(number)).await);
        }
        let before = db.number("SELECT count(*) FROM things").await;
        let mut conn = pooled.connection().await.unwrap();
        conn.batch_execute(discard).await.unwrap();
        drop(conn);
        let told = engine.call(&scope(), &name(77), batch(77)).await;
        let now = db.number("SELECT count(*) FROM things").await;
        let done = match &told {
            Ok(Outcome::Finished(_)) => 2,
            _ => 0,
        };
        assert_eq!(now, before + done, "{discard}: {told:?}");
        // The pool has dropped the connection.
        let again = finished(engine.call(&scope(), &name(77), batch(77)).await);
        assert_eq!(again.replayed, done > 0);
        assert_eq!(db.number("SELECT count(*) FROM things").await, before + 2, "{discard}");
        db.sql("DELETE FROM things").await;
    }
}

/// An error without a kind in diesel is not an error of the connection: the idle connections stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_timeout_closes_no_other_connection() {
    let db = Postgres::fresh().await;
    let store = open_pg(&url_of(&db), 8).await;
    let engine = engine(&store, &App::default());
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut conn = store.pool().get().await.unwrap();
        // Only now: on a busy machine, to open a connection would take longer.
        conn.batch_execute("SET statement_timeout = 200").await.unwrap();
        held.push(conn);
    }
    drop(held);
    let mut aside = crate::support::db::pg(&url_of(&db)).await;
    let lock = "BEGIN; LOCK TABLE atomic_phases_keys IN ACCESS EXCLUSIVE MODE";
    aside.batch_execute(lock).await.unwrap();
    let told = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(told, Err(CallError::Unavailable(_))), "G12: {told:?}");
    assert_eq!(store.pool().status().size, 8);
}
