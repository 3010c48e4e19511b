//! What becomes of a commit when the connection, the server or the answer is lost (G4, G7).

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::db::{open_pg, prepare_pg};
use crate::support::proxy::{Cut, proxied};
use crate::support::work::config;
use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::engine::CallError;
use atomic_phases::store::Postgres;

pub(super) async fn once_and_only_once(db: &Postgres, app: &App, what: &str) {
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
    until(async || proxy.fired() > 0).await;
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

/// Who finds that its acceptance is committed wakes the workers, as the answer would have.
#[tokio::test(flavor = "multi_thread")]
async fn g17_an_acceptance_whose_answer_was_lost_wakes_the_workers() {
    let (db, store, proxy) = proxied().await;
    let app = App::default();
    let engine = engine(&store, &app);
    // Long polls, so that a worker finds work only by a wake-up.
    let workers = engine.spawn_workers(config().poll(Duration::from_secs(3600))).unwrap();
    let is_done = async |requests| {
        let done = "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed'";
        db.number(done).await == requests
    };
    engine.call(&scope(), &key("first"), book(20)).accept().await.unwrap();
    until(async || is_done(1).await).await;
    proxy.arm("WITH atomic_phases_begun", 1, Cut::Answer);
    let told = engine.call(&scope(), &key("k"), book(20)).accept().await.unwrap();
    assert!(matches!(told, Outcome::Accepted), "{told:?}");
    assert_eq!(proxy.fired(), 1, "a fault that does not happen proves nothing");
    until(async || is_done(2).await).await;
    drop(workers);
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
/// client_connection_check_interval. Then the phase runs again, and it is tried anew, because it shows nothing.)
#[tokio::test(flavor = "multi_thread")]
async fn g7_h5_a_zombie_commit_is_waited_for() {
    for _ in 0..5 {
        if a_zombie_commit_was_found().await {
            return;
        }
    }
    panic!("the commit was repeated each time, not found");
}

async fn a_zombie_commit_was_found() -> bool {
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
    app.bodies() == [1, 1, 1]
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
        until(async || db.number(&kill).await > 0).await;
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
