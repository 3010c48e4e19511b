//! The facts of PostgreSQL and diesel-async that the store stands on (H1 to H13 of `docs/design.md`).

use std::path::PathBuf;
use std::time::Duration;

use super::changed_sessions::Tenant;
use super::lost_answers::once_and_only_once;
use crate::support::by_hand::only_local_phases;
use crate::support::db::{open_pg, pg, url_of};
use crate::support::proxy::{Cut, proxied};
use crate::support::*;
use atomic_phases::__private as private;
use atomic_phases::definition::{Definition, Isolation, Phase, PhaseKind};
use atomic_phases::engine::FailureCause;
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::{Pool, Postgres, Sqlite};
use atomic_phases::{Engine, Outcome, PhaseError, Reply, Store, Tx};
use diesel_async::SimpleAsyncConnection;

/// BEGIN, INSERT and the rest are sent in one round trip, and are still one transaction: the rows that belong
/// together have one xmin.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_pipelined_transaction_is_one_transaction() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    // Twice: with a cold statement cache, and with a warm one.
    for name in ["cold", "warm"] {
        db.sql("TRUNCATE rides, steps, atomic_phases_staged_jobs").await;
        let caller = engine.clone();
        let call = tokio::spawn(async move { caller.call(&scope(), &key(name), book(20)).await });
        let go = gate.recv().await.unwrap();
        let same = |tables: &str| {
            format!(
                "SELECT count(DISTINCT x) FROM (SELECT xmin::text AS x FROM atomic_phases_keys WHERE idempotency_key = '{name}' {tables}) AS t"
            )
        };
        assert_eq!(db.number(&same("UNION ALL SELECT xmin::text FROM rides")).await, 1);
        go.send(()).unwrap();
        finished(call.await.unwrap());
        let last = "UNION ALL SELECT xmin::text FROM steps UNION ALL SELECT xmin::text FROM atomic_phases_staged_jobs";
        assert_eq!(db.number(&same(last)).await, 1);
    }
}

/// G20: with a pool of one connection, that connection is free while the provider is called.
#[tokio::test(flavor = "multi_thread")]
async fn g20_no_connection_is_held_during_a_foreign_call() {
    let db = Postgres::fresh().await;
    let single = open_pg(&url_of(&db), 1).await;
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let engine = engine(&single, &app);
    let call = tokio::spawn(async move { engine.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    drop(single.pool().get().await.expect("the engine holds it"));
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    assert_eq!(db.number(open).await, 0);
    let locks = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE relname LIKE 'atomic_phases%' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(db.number(locks).await, 0);
    in_the_call.send(()).unwrap();
    finished(call.await.unwrap());
}

/// H1, H2, H3: a task that is aborted inside a transaction leaves no backend `idle in transaction` and no lock,
/// whichever pool is used.
async fn g13_h1_an_aborted_task_frees_its_locks<P: Pool>(store: Postgres<P>, db: Postgres)
where
    Postgres<P>: Store<Connection = diesel_async::AsyncPgConnection>,
{
    let engine = Engine::builder(store).register::<Sleeps>().build().unwrap();
    let call = engine.call(&scope(), &key("k"), Sleeps {});
    let task = tokio::spawn(call.__call_in_place());
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    until(async || db.number(asleep).await > 0).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    // The statement under way ends, too.
    until(async || db.number(open).await == 0).await;
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Sleeps {}

impl<P: Pool> private::Phases<Postgres<P>, ()> for Sleeps {
    fn run_local<'a>(
        &'a self,
        _: usize,
        tx: &'a mut Tx<'_, Postgres<P>>,
        _: &'a (),
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, private::Step, PhaseError> {
        Box::pin(async move {
            tx.batch_execute("SELECT pg_sleep(30)").await?;
            private::reply(Reply::new(204))
        })
    }

    only_local_phases!(Postgres<P>);

    fn reads(&self, _: usize, _: &private::RawValue, _: usize) -> Result<(), private::JsonError> {
        Ok(())
    }
}

impl<P: Pool> RequestDefinition<Postgres<P>, ()> for Sleeps {
    const DEFINITION: Definition = Definition {
        name: "sleeps",
        version: 1,
        phases: &[Phase {
            name: "slept",
            was: &[],
            kind: PhaseKind::Local(Isolation::ReadCommitted),
            commit: false,
            timeout: None,
            reconciles: false,
        }],
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn g13_h1_with_deadpool() {
    let db = Postgres::fresh().await;
    g13_h1_an_aborted_task_frees_its_locks(db.clone(), db).await;
}

#[cfg(feature = "bb8")]
#[tokio::test(flavor = "multi_thread")]
async fn g13_h2_with_bb8() {
    use diesel_async::pooled_connection::AsyncDieselConnectionManager;
    let db = Postgres::fresh().await;
    let manager = AsyncDieselConnectionManager::<diesel_async::AsyncPgConnection>::new(url_of(&db));
    let pool = bb8::Pool::builder().max_size(4).build(manager).await.unwrap();
    g13_h1_an_aborted_task_frees_its_locks(Postgres::with_pool(pool), db).await;
}

/// H9: diesel has an error kind for 40001 and none for 40P01. Both re-run a local phase, and so does a lock
/// timeout; a constraint violation does not.
#[tokio::test(flavor = "multi_thread")]
async fn h9_passing_errors_run_a_local_phase_again() {
    for (code, table, bodies) in [
        ("40001", "rides", [2, 1, 1]),
        ("40P01", "rides", [2, 1, 1]),
        ("40001", "steps", [1, 1, 2]),
        ("40P01", "steps", [1, 1, 2]),
        ("55P03", "steps", [1, 1, 2]),
    ] {
        let db = Postgres::fresh().await;
        db.sql(&raise_once(code, table)).await;
        let app = App::default();
        finished(engine(&db, &app).call(&scope(), &key("k"), book(20)).await);
        assert_eq!(app.bodies(), bodies, "{code} in {table}");
        once_and_only_once(&db, &app, code).await;
    }
    let db = Postgres::fresh().await;
    db.sql(&raise_once("23505", "steps")).await;
    let app = App::default();
    let cause = failed(engine(&db, &app).call(&scope(), &key("k"), book(20)).await);
    assert_eq!(
        cause,
        FailureCause::Database { phase: "answered", kind: "unique violation", about: None }
    );
    assert_eq!(app.bodies(), [1, 1, 1]);
    // It fails each time: the retries are bounded, and then the row is released.
    let db = Postgres::fresh().await;
    db.sql(&raise_once("40001", "steps").replace("= 1", "> 0")).await;
    let app = App::default();
    let cause = failed(engine(&db, &app).call(&scope(), &key("k"), book(20)).await);
    assert_eq!(
        cause,
        FailureCause::Database { phase: "answered", kind: "serialization failure", about: None }
    );
    assert_eq!(app.bodies(), [1, 1, 6]);
}

fn raise_once(code: &str, table: &str) -> String {
    format!(
        "CREATE SEQUENCE times;
         CREATE FUNCTION raise_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF nextval('times') = 1 THEN RAISE SQLSTATE '{code}'; END IF; RETURN NEW; END $$;
         CREATE TRIGGER raise_once BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION raise_once();"
    )
}

/// H8: the connection breaks after the phase has returned its result; the result counts.
#[tokio::test(flavor = "multi_thread")]
async fn h8_a_rejection_survives_the_loss_of_its_connection() {
    let (db, store, proxy) = proxied().await;
    let app = App::default();
    let engine = engine(&store, &app);
    proxy.arm("ROLLBACK", 1, Cut::Before);
    let done = finished(engine.call(&scope(), &key("k"), troubled(Trouble::RejectLast)).await);
    assert_eq!((proxy.fired(), done.reply.status()), (1, 409));
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
}

/// H13: inside a phase, the transaction has the engine's time limits and isolation level, whatever the database's
/// defaults are; and the phase keeps its session's lock timeout.
#[tokio::test(flavor = "multi_thread")]
async fn h13_a_phase_runs_under_the_settings_that_the_engine_counts_on() {
    let db = Postgres::fresh().await;
    db.sql(
        "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_isolation = ''serializable'''; END $$;
         DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET lock_timeout = ''77s'''; END $$;
         CREATE TABLE seen (name text, value text);
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         INSERT INTO seen SELECT name, current_setting(name) FROM unnest(ARRAY['lock_timeout', 'transaction_isolation',
         'client_connection_check_interval', 'idle_in_transaction_session_timeout']) AS name; RETURN NEW; END $$;
         CREATE TRIGGER see_ride BEFORE INSERT ON rides FOR EACH ROW EXECUTE FUNCTION see();
         CREATE TRIGGER see_step BEFORE INSERT ON steps FOR EACH ROW EXECUTE FUNCTION see();",
    )
    .await;
    let app = App::default();
    let engine = engine(&db.another().await, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let distinct = "SELECT string_agg(DISTINCT name || '=' || value, ' ') FROM seen";
    assert_eq!(
        db.text(distinct).await,
        "client_connection_check_interval=500ms idle_in_transaction_session_timeout=1min \
         lock_timeout=77s transaction_isolation=read committed"
    );
    // The same for takeovers: under the database's default level, losing the race would be an error.
    failed(engine.call(&scope(), &key("t"), troubled(Trouble::RetryForeignAlways)).await);
    let calls = (0..16).map(|_| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.call(&scope(), &key("t"), book(20)).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let outcome = call.await.unwrap().unwrap();
        assert!(
            matches!(outcome, Outcome::Failed { .. } | Outcome::InProgress { .. }),
            "{outcome:?}"
        );
    }
}

/// A duplicate that meets an uncommitted row waits for a short time, and then gets *in progress*.
#[tokio::test(flavor = "multi_thread")]
async fn g10_a_duplicate_of_an_uncommitted_first_phase_waits_shortly() {
    let db = Postgres::fresh().await;
    // The first phase waits until the test unlocks this.
    let mut aside = pg(&url_of(&db)).await;
    aside.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    db.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON rides FOR EACH ROW EXECUTE FUNCTION slow();",
    )
    .await;
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.creation_wait(Duration::from_millis(200)));
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("k"), book(20)).await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    until(async || db.number(waits).await > 0).await;
    let duplicate = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(duplicate, Ok(Outcome::InProgress { .. })), "{duplicate:?}");
    aside.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    finished(call.await.unwrap());
}

/// H12: `now()` is the transaction's start. No statement of the store uses it.
#[test]
fn h12_the_clock_is_clock_timestamp() {
    let mut folders =
        vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/postgres"))];
    let mut clocks = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            for line in source.lines().filter(|line| !line.trim_start().starts_with("//")) {
                clocks += line.matches("clock_timestamp()").count();
                // What is left is SQL: Rust's clocks stand behind their type.
                let sql = line.replace("::now()", "").replace("yield_now()", "");
                assert!(!sql.contains("now()"), "{}: {line}", path.display());
                assert!(!sql.contains("CURRENT_TIMESTAMP"), "{}: {line}", path.display());
            }
        }
    }
    assert!(clocks > 20, "{clocks}");
}

/// H10: the future of a statement is dropped on a current-thread runtime.
#[tokio::test(flavor = "current_thread")]
async fn h10_sqlite_works_and_cancels_on_a_current_thread_runtime() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("k"), book(20)).__call_in_place());
    let waiting = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    drop(waiting);
    app.provider.stop_no_more();
    for polls in 1..10 {
        let mut statement = Box::pin(db.number("SELECT count(*) FROM rides"));
        for _ in 0..polls {
            let once =
                std::future::poll_fn(|cx| std::task::Poll::Ready(statement.as_mut().poll(cx)));
            if once.await.is_ready() {
                statement = Box::pin(db.number("SELECT count(*) FROM rides"));
            }
        }
    }
    db.let_leases_expire().await;
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 1);
}

/// G19: an error names what failed by the schema's names, and contains no value.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_constraint_and_table_and_a_connection_its_host() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE things (n int CONSTRAINT small CHECK (n < 1))").await;
    let engine = Engine::builder(db.clone()).register::<Tenant>().build().unwrap();
    let cause = failed(engine.call(&scope(), &key("k"), Tenant("SELECT 1".to_owned())).await);
    let FailureCause::Database { kind, about, .. } = cause else { panic!("{cause:?}") };
    assert_eq!(
        (kind, about.as_deref()),
        ("check violation", Some("constraint small of table things"))
    );
    // A trigger whose error names arbitrary things.
    db.sql(
        "ALTER TABLE things DROP CONSTRAINT small;
         CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         RAISE unique_violation USING CONSTRAINT = 'canary: ' || NEW.n; END $$;
         CREATE TRIGGER no BEFORE INSERT ON things FOR EACH ROW EXECUTE FUNCTION no();",
    )
    .await;
    let cause = failed(engine.call(&scope(), &key("l"), Tenant("SELECT 1".to_owned())).await);
    let FailureCause::Database { kind, about, .. } = cause else { panic!("{cause:?}") };
    assert_eq!((kind, about), ("unique violation", None));

    let refused = Postgres::connect("postgres://shop:canary@127.0.0.1:1/rides").await;
    let missing = url_of(&db).rsplit_once('/').unwrap().0.to_owned() + "/no_such_database";
    let missing = Postgres::connect(&missing).await;
    for (error, says) in [
        (refused, ["host 127.0.0.1", "port 1,", "database rides", "user shop", "refused"]),
        (
            missing,
            ["host 127.0.0.1", "port", "database no_such_database", "user postgres", "exist"],
        ),
    ] {
        let error = error.expect_err("there is no server").to_string();
        for word in says {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains("canary"), "{error}");
    }
}
