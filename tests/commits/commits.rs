//! What happens to a commit when the connection, the server or the answer is lost (G4, G7), and the facts about
//! PostgreSQL and diesel-async on which the store rests (H1 to H13 of `docs/design.md`).

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::db::{open_pg, prepare_pg, url_of};
use crate::support::proxy::{Cut, Proxy};
use crate::support::*;
use atomic_phases::__private::{self as private};
use atomic_phases::definition::{Definition, Isolation, Phase, PhaseKind};
use atomic_phases::engine::FailureCause;
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::{DeadpoolPool, Pool};
use atomic_phases::{
    Batch, CallError, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Postgres, Reply,
    Sqlite, Store, Tx, atomic_phases,
};
use diesel_async::SimpleAsyncConnection;

fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.split_once('/').unwrap().0.parse().unwrap()
}

/// A prepared database, and a store that reaches it through a proxy.
async fn proxied() -> (Postgres, Postgres, Proxy) {
    let db = Postgres::fresh().await;
    let url = url_of(&db);
    let proxy = Proxy::start(port_of(&url)).await;
    let store = Postgres::connect(&proxy.url(&url)).await.unwrap();
    (db, store, proxy)
}

async fn once_and_only_once(db: &Postgres, app: &App, what: &str) {
    assert_eq!(app.provider.effects(), 1, "{what}");
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1, "{what}");
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1, "{what}");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 2, "{what}");
}

/// A holder that resolves its unanswered commit takes the row back only if no other holder has it.
#[tokio::test(flavor = "multi_thread")]
async fn g3_g7_who_asks_about_a_lost_commit_takes_nothing_from_the_next_holder() {
    let (db, store, proxy) = proxied().await;
    let app = App::default();
    let (first, second) = (engine(&store, &app), engine(&db, &app));
    let mut gate = app.provider.stop_after_the_effect();
    let asking = tokio::spawn(first.call(&scope(), &key("k"), book(20)).into_future());
    let waiting = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    // Its next commit is lost, and for a while the holder cannot resolve it.
    proxy.arm("COMMIT", 1, Cut::Before);
    proxy.refuse(true);
    drop(waiting);
    while proxy.fired() == 0 {
        tokio::task::yield_now().await;
    }
    db.let_leases_expire().await;
    let mut gate = app.provider.stop_before_the_effect();
    let holding = tokio::spawn(second.call(&scope(), &key("k"), book(20)).into_future());
    let waiting = gate.recv().await.unwrap();
    proxy.refuse(false);
    let asked = asking.await.unwrap();
    assert!(matches!(asked, Ok(Outcome::InProgress { .. })), "{asked:?}");
    app.provider.stop_no_more();
    drop(waiting);
    assert!(!finished(holding.await.unwrap()).replayed);
    once_and_only_once(&db, &app, "the next holder").await;
}

/// H4: a COMMIT that never arrived and one that was applied and whose answer was lost give the same error. In both
/// cases, at each commit, the same call continues and ends with the right answer.
#[tokio::test(flavor = "multi_thread")]
async fn g7_h4_a_lost_commit_is_resolved_and_never_guessed() {
    for cut in [Cut::Before, Cut::After, Cut::Answer] {
        for nth in [1, 2] {
            let (db, store, proxy) = proxied().await;
            let app = App::default();
            let engine = engine(&store, &app);
            proxy.arm("COMMIT", nth, cut);
            let what = format!("{cut:?} at commit {nth}");
            let done = finished(engine.call(&scope(), &key("k"), book(20)).await);
            assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
            assert_eq!(done.reply.status(), 201, "{what}");
            assert!(!done.replayed, "{what}");
            once_and_only_once(&db, &app, &what).await;
            let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
            assert_eq!(again.reply, done.reply, "{what}");
        }
    }
}

/// A request that is created and finished in one commit is found finished by the call that did it: this is not a
/// replay.
#[tokio::test(flavor = "multi_thread")]
async fn g7_who_finds_its_own_lost_commit_has_not_replayed_it() {
    for cut in [Cut::After, Cut::Answer] {
        let (db, store, proxy) = proxied().await;
        let app = App::default();
        let engine = engine(&store, &app);
        proxy.arm("COMMIT", 1, cut);
        let request = || troubled(Trouble::FinishEarly);
        let done = finished(engine.call(&scope(), &key("k"), request()).await);
        assert_eq!((proxy.fired(), app.bodies()), (1, [1, 0, 0]), "{cut:?}");
        assert!(!done.replayed, "{cut:?}");
        assert!(finished(engine.call(&scope(), &key("k"), request()).await).replayed, "{cut:?}");
        assert_eq!(db.number("SELECT count(*) FROM rides").await, 1, "{cut:?}");
    }
}

/// The same for the guarded writes that have a transaction of their own: intent, result, release, unknown.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_lost_answer_to_a_write_of_its_own_is_resolved() {
    for cut in [Cut::Before, Cut::After, Cut::Answer] {
        for nth in [1, 2] {
            let (_db, store, proxy) = proxied().await;
            let app = App::new(Provider::that_ignores_keys());
            let engine = engine(&store, &app);
            proxy.arm("UPDATE atomic_phases_keys SET status", nth, cut);
            let what = format!("{cut:?} at write {nth}");
            finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
            assert_eq!((proxy.fired(), app.provider.effects()), (1, 1), "{what}");

            let name = format!("released-{nth}");
            proxy.arm("UPDATE atomic_phases_keys SET status", 1, cut);
            let released = troubled(Trouble::RetryForeignAlways);
            failed(engine.call(&scope(), &key(&name), released).await);
            assert_eq!(proxy.fired(), 2, "{what}");
        }
    }
}

/// The connection is cut before each message that the engine sends, one message per run, until there are no more. A
/// retry ends with the right answer wherever the cut was.
#[tokio::test(flavor = "multi_thread")]
async fn g1_the_connection_may_break_at_any_statement() {
    let mut cuts = 0;
    for nth in 1.. {
        let (db, store, proxy) = proxied().await;
        let app = App::default();
        let engine = engine(&store, &app);
        // A connection that is open already, so that the cut counts this request's statements only.
        let _ = engine.call(&scope(), &key("warm"), troubled(Trouble::RetryFirst)).await;
        proxy.arm("", nth, Cut::After);
        let mut outcome = engine.call(&scope(), &key("k"), book(20)).await;
        for _ in 0..5 {
            if matches!(outcome, Ok(Outcome::Finished(_))) {
                break;
            }
            db.let_leases_expire().await;
            outcome = engine.call(&scope(), &key("k"), book(20)).await;
        }
        finished(outcome);
        once_and_only_once(&db, &app, &format!("cut at statement {nth}")).await;
        if proxy.fired() == 0 {
            break;
        }
        cuts += 1;
    }
    println!("cut at {cuts} statements");
    assert!(cuts >= 11, "{cuts}");
}

/// H5: the client disconnects while the server executes COMMIT. A plain read would see the old recovery point; the
/// engine waits for the row's lock. (After 500 ms the server notices that the client is gone, and rolls back:
/// client_connection_check_interval.)
#[tokio::test(flavor = "multi_thread")]
async fn g7_h5_a_zombie_commit_is_waited_for() {
    let (db, store, proxy) = proxied().await;
    db.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON steps DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION slow();",
    )
    .await;
    let app = App::default();
    let engine = engine(&store, &app);
    proxy.arm("COMMIT", 2, Cut::Hold);
    let call = tokio::spawn(async move { engine.call(&scope(), &key("k"), book(20)).await });
    let committing = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    // A read that comes too late finds it committed.
    let steps = "SELECT count(*) FROM steps";
    until(async || db.number(committing).await > 0 || db.number(steps).await > 0).await;
    proxy.cut_now();
    let done = finished(call.await.unwrap());
    assert_eq!((proxy.fired(), done.reply.status()), (1, 201));
    once_and_only_once(&db, &app, "zombie").await;
    assert_eq!(app.bodies(), [1, 1, 1], "the commit was found, not repeated");
}

/// `pg_terminate_backend` while a phase's statement runs, and while its COMMIT runs.
#[tokio::test(flavor = "multi_thread")]
async fn g1_a_backend_is_terminated_in_a_phase_and_in_its_commit() {
    let sleepers = [
        ("BEFORE INSERT ON steps", "CREATE TRIGGER", "%INSERT INTO \"steps\"%"),
        (
            "AFTER INSERT ON steps DEFERRABLE INITIALLY DEFERRED",
            "CREATE CONSTRAINT TRIGGER",
            "COMMIT",
        ),
    ];
    for (when, create, query) in sleepers {
        let db = Postgres::fresh().await;
        // Sleeps the first time only: a sequence does not roll back.
        db.sql(&format!(
            "CREATE SEQUENCE times;
             CREATE FUNCTION once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('times') = 1 THEN PERFORM pg_sleep(20); END IF; RETURN NEW; END $$;
             {create} once {when} FOR EACH ROW EXECUTE FUNCTION once();"
        ))
        .await;
        let app = App::default();
        let running = engine(&db, &app);
        let call = tokio::spawn(async move { running.call(&scope(), &key("k"), book(20)).await });
        let kill = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE datname = current_database() AND state = 'active' AND query LIKE '{query}' \
             AND wait_event = 'PgSleep'"
        );
        while db.number(&kill).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(finished(call.await.unwrap()).reply.status(), 201, "{query}");
        once_and_only_once(&db, &app, query).await;
    }
}

/// The whole server stops as in a crash during the call to the provider, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn g1_the_server_crashes_during_a_foreign_call_and_comes_back() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let db = open_pg(&cluster.new_database(), 8).await;
    prepare_pg(&db).await;
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let engine = engine(&db, &app);
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    cluster.stop_immediately();
    let refused = engine.call(&scope(), &key("other"), book(20)).await;
    assert!(matches!(refused, Err(CallError::Unavailable(_))), "G12: {refused:?}");
    assert_eq!(app.provider.effects(), 1, "G12: nothing runs without a reservation");
    cluster.start_server();
    in_the_call.send(()).unwrap();
    assert_eq!(finished(call.await.unwrap()).reply.status(), 201);
    once_and_only_once(&db, &app, "crash").await;
    cluster.stop_immediately();
    cluster.start_server();
    assert!(finished(engine.call(&scope(), &key("k"), book(20)).await).replayed);
}

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
    let lent = tokio::time::timeout(Duration::from_secs(1), single.pool().get()).await;
    drop(lent.expect("the engine holds it").unwrap());
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

    fn run_batch<'a>(
        &'a self,
        _: usize,
        _: &'a mut Batch<'_, Postgres<P>>,
        _: &'a (),
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, private::Step, PhaseError> {
        private::no_such_phase()
    }

    fn run_foreign<'a>(
        &'a self,
        _: usize,
        _: ForeignCall,
        _: &'a (),
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, private::Step, ForeignError> {
        private::no_such_phase()
    }

    fn reconcile<'a>(
        &'a self,
        _: usize,
        _: &'a (),
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, Reconciled<private::Step>, PhaseError> {
        private::no_such_phase()
    }

    fn reads(&self, _: usize, _: &private::RawValue, _: usize) -> bool {
        true
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
    db.sql(
        "CREATE SEQUENCE times;
         CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(6); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON rides FOR EACH ROW EXECUTE FUNCTION slow();",
    )
    .await;
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.lock_wait(Duration::from_millis(200)));
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("k"), book(20)).await });
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    until(async || db.number(asleep).await > 0).await;
    let duplicate = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(duplicate, Ok(Outcome::InProgress { .. })), "{duplicate:?}");
    finished(call.await.unwrap());
}

/// H12: `now()` is the transaction's start. No statement of the store uses it.
#[test]
fn h12_the_clock_is_clock_timestamp() {
    for source in [
        include_str!("../../src/store/postgres/statements.rs"),
        include_str!("../../src/store/postgres/commit_statements.rs"),
    ] {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        assert!(code.clone().any(|line| line.contains("clock_timestamp()")));
        for line in code {
            assert!(!line.contains("now()") && !line.contains("CURRENT_TIMESTAMP"), "{line}");
        }
    }
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
    for (name, form) in [("one", Form::AsOne), ("turn", Form::InTurn)] {
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
struct Tenant(String);

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
struct TenantBatch {
    sql: String,
    in_first: bool,
    stages: bool,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Began;

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
    let url = format!("{}?options=-c%20statement_timeout%3D200", url_of(&db));
    let store = open_pg(&url, 8).await;
    let engine = engine(&store, &App::default());
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(store.pool().get().await.unwrap());
    }
    drop(held);
    let mut aside = crate::support::db::pg(&url_of(&db)).await;
    let lock = "BEGIN; LOCK TABLE atomic_phases_keys IN ACCESS EXCLUSIVE MODE";
    aside.batch_execute(lock).await.unwrap();
    let told = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(told, Err(CallError::Unavailable(_))), "G12: {told:?}");
    assert_eq!(store.pool().status().size, 8);
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
        let error = error.err().expect("nobody is there").to_string();
        for word in says {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains("canary"), "{error}");
    }
}
