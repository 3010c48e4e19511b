//! Erasure: user data is deleted, the key stays used (G15), and nothing runs again.

use std::sync::{Arc, Mutex};

use crate::support::*;
use atomic_phases::engine::{CallError, EraseError, Resolution, ResolveError};
use atomic_phases::fingerprint::RequestOrigin;
use atomic_phases::http::Policy;
use atomic_phases::store::{Postgres, Sqlite, Status, StoreError};
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, Job, Reaper, WorkerConfig};
use atomic_phases::{Engine, Outcome, Scope};

on_every_store! {
    g15_an_erased_request_is_a_tombstone_and_never_runs_again,
    nothing_of_what_the_user_gave_is_left_in_any_table,
    what_is_not_settled_is_not_erased,
    g18_jobs_that_are_to_be_delivered_are_not_lost_to_an_erasure,
    the_dead_jobs_of_a_reaped_key_are_erased_by_its_name,
    the_jobs_of_a_former_life_of_a_key_are_erased_with_it,
    an_erased_dead_letter_is_closed_and_keeps_its_key_for_a_retention,
    g16_a_scope_is_erased_without_its_neighbours,
    g16_what_was_erased_before_keeps_no_other_from_being_erased,
    g14_a_request_whose_definition_is_not_registered_can_be_erased,
    g3_an_erasure_and_a_retry_never_make_a_second_effect,
}

/// Takes every job.
fn taken() -> (Handlers, Arc<Mutex<u32>>) {
    let count = Arc::new(Mutex::new(0));
    let seen = count.clone();
    let take = move |_: serde_json::Value, _: Job| {
        *seen.lock().unwrap() += 1;
        async { Ok(()) }
    };
    let again = take.clone();
    (Handlers::new().on("receipt", take).on("thanks", again), count)
}

/// All staged jobs are delivered.
async fn deliver_all<S: TestDb>(engine: &TestEngine<S>) {
    let (jobs, _) = taken();
    let mut enqueuer = Enqueuer::new(engine, jobs, WorkerConfig::default());
    while enqueuer.run_once().await.unwrap().delivered > 0 {}
}

async fn booked<S: TestDb>(engine: &TestEngine<S>, name: &str) {
    finished(engine.call(&scope(), &key(name), book(20)).await);
}

#[track_caller]
fn is_erased(outcome: Result<Outcome, CallError>) {
    assert!(matches!(outcome, Ok(Outcome::Erased)), "{outcome:?}");
}

async fn g15_an_erased_request_is_a_tombstone_and_never_runs_again<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    booked(&engine, "k").await;
    deliver_all(&engine).await;
    let before = db.text("SELECT expires_at FROM atomic_phases_keys").await;
    for _ in 0..2 {
        engine.erase(&scope(), &key("k")).await.unwrap();
    }
    let other_node = crate::support::engine(&db.another().await, &app);
    for engine in [&engine, &other_node] {
        is_erased(engine.call(&scope(), &key("k"), book(20)).await);
        is_erased(engine.call(&scope(), &key("k"), book(20)).accept().await);
        // The fingerprint is erased, so other parameters cannot be distinguished from these.
        is_erased(engine.call(&scope(), &key("k"), book(21)).await);
        is_erased(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
    }
    let status = engine.status(&scope(), &key("k")).await.unwrap().unwrap();
    assert!(status.erased && status.reply.is_none());
    assert_eq!(status.status, Status::Completed);
    assert_eq!(db.text("SELECT expires_at FROM atomic_phases_keys").await, before);
    let mut reaper = Reaper::new(&db, WorkerConfig::default());
    assert_eq!(reaper.run_once().await.unwrap(), 0, "the rest of its retention is kept");
    assert_eq!(app.bodies(), [1, 1, 1]);
    assert_eq!(app.provider.effects(), 1);

    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    assert_eq!(reaper.run_once().await.unwrap(), 1, "and then it goes");
    booked(&engine, "k").await;
    assert_eq!(app.bodies(), [2, 2, 2], "a new request");
}

async fn nothing_of_what_the_user_gave_is_left_in_any_table<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let who = |who: &str| Notify { who: who.into(), trouble: Trouble::None.into() };
    let call = engine.call(&scope(), &key("k"), who("canary-in-params"));
    let call = call.context(&"canary-in-context");
    finished(call.origin(RequestOrigin::new("POST", "/canary", None)).await);
    let before = dump(&db).await;
    assert!(before.contains("canary-in-params") && before.contains("canary-in-context"));
    assert!(before.contains("notified effect-1"));
    engine.erase(&scope(), &key("k")).await.unwrap();
    let after = dump(&db).await;
    for gone in ["canary", "effect-1", "v1:"] {
        assert!(!after.contains(gone), "{gone} is in {after}");
    }
}

async fn what_is_not_settled_is_not_erased<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let nothing = engine.erase(&scope(), &key("none")).await;
    assert!(matches!(nothing, Err(EraseError::NoSuchKey)), "{nothing:?}");
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    for status in ["pending", "in_progress", "failed_retryable", "unknown"] {
        db.sql(&format!("UPDATE atomic_phases_keys SET status = '{status}'")).await;
        let refused = engine.erase(&scope(), &key("k")).await.unwrap_err();
        assert!(refused.to_string().contains(status), "{refused}");
        assert!(refused.to_string().contains("resolve it first"), "{refused}");
        let swept = engine.erase_scope(&scope()).await.unwrap();
        assert_eq!((swept.erased, swept.left), (0, 1), "{status}");
    }
    // The request was left as it is: it continues and ends.
    db.sql("UPDATE atomic_phases_keys SET status = 'failed_retryable'").await;
    booked(&engine, "k").await;
    assert_eq!(app.provider.effects(), 1);
}

async fn g18_jobs_that_are_to_be_delivered_are_not_lost_to_an_erasure<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    booked(&engine, "k").await;
    let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs";
    let refused = engine.erase(&scope(), &key("k")).await;
    assert!(matches!(refused, Err(EraseError::JobsWaiting)), "{refused:?}");
    let swept = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((swept.erased, swept.left), (0, 1));
    assert_eq!(db.number(jobs).await, 2);
    // One job is delivered, the other one is a dead letter: both are settled, and the dead one is deleted.
    let handlers = Handlers::new()
        .on("receipt", async |_: String, _: Job| Ok(()))
        .on("thanks", async |_: String, _: Job| Err(DeliveryError::dead("no such address")));
    let mut enqueuer = Enqueuer::new(&engine, handlers, WorkerConfig::default());
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    assert_eq!(enqueuer.run_once().await.unwrap().dead_letters, 1);
    engine.erase(&scope(), &key("k")).await.unwrap();
    assert_eq!(db.number(jobs).await, 0);
    is_erased(engine.call(&scope(), &key("k"), book(20)).await);
}

/// All staged jobs become dead letters.
async fn give_up_all<S: TestDb>(engine: &TestEngine<S>) {
    let never = || async { Err::<(), _>(DeliveryError::dead("no such address")) };
    let jobs = Handlers::new()
        .on("receipt", move |_: String, _| never())
        .on("thanks", move |_: String, _| never());
    let mut enqueuer = Enqueuer::new(engine, jobs, WorkerConfig::default());
    while enqueuer.run_once().await.unwrap().dead_letters > 0 {}
}

async fn reap<S: TestDb>(db: &S) {
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    assert_eq!(Reaper::new(db, WorkerConfig::default()).run_once().await.unwrap(), 1);
}

async fn the_dead_jobs_of_a_reaped_key_are_erased_by_its_name<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs";
    for by_scope in [false, true] {
        booked(&engine, "k").await;
        reap(&db).await;
        let refused = engine.erase(&scope(), &key("k")).await;
        assert!(matches!(refused, Err(EraseError::JobsWaiting)), "{refused:?}");
        let swept = engine.erase_scope(&scope()).await.unwrap();
        assert_eq!((swept.erased, swept.left), (0, 1));
        assert_eq!(db.number(jobs).await, 2, "not lost (G18)");
        give_up_all(&engine).await;
        // Jobs of a request that is not erased, and of another scope, stay.
        booked(&engine, "other").await;
        finished(engine.call(&Scope::new("tenant-2").unwrap(), &key("k"), book(20)).await);
        give_up_all(&engine).await;
        assert_eq!(db.number(jobs).await, 6);
        match by_scope {
            false => engine.erase(&scope(), &key("k")).await.unwrap(),
            true => {
                // The settled request of the scope is deleted with its jobs; the reaped one's jobs are deleted,
                // too.
                assert_eq!(engine.erase_scope(&scope()).await.unwrap().left, 0);
            }
        }
        let left = if by_scope { 2 } else { 4 };
        assert_eq!(db.number(jobs).await, left);
        let nothing = engine.erase(&scope(), &key("k")).await;
        assert!(matches!(nothing, Err(EraseError::NoSuchKey)), "{nothing:?}");
        db.sql("DELETE FROM atomic_phases_staged_jobs").await;
        db.sql("DELETE FROM atomic_phases_keys").await;
    }
}

/// The trigger keeps jobs as if each were revived between the search for it and its deletion.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_revived_meanwhile_keep_no_others_from_being_erased() {
    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs \
         (scope, request_id, position, job_id, idempotency_key, name, args, staged_at) \
         WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1499) \
         SELECT '{}', randomblob(16), i, randomblob(16), 'reaped', 'receipt', x'00', 0 FROM n",
        scope().as_str()
    ))
    .await;
    db.sql(
        "CREATE TRIGGER kept BEFORE DELETE ON atomic_phases_staged_jobs \
         WHEN old.position % 2 = 0 BEGIN SELECT RAISE(IGNORE); END",
    )
    .await;
    // A thousand are searched for at a time.
    engine.erase_scope(&scope()).await.unwrap();
    let others = "SELECT count(*) FROM atomic_phases_staged_jobs WHERE position % 2 = 1";
    assert_eq!(db.number(others).await, 0);
}

async fn the_jobs_of_a_former_life_of_a_key_are_erased_with_it<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    booked(&engine, "k").await;
    reap(&db).await;
    finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
    let refused = engine.erase(&scope(), &key("k")).await;
    assert!(matches!(refused, Err(EraseError::JobsWaiting)), "of the former one: {refused:?}");
    give_up_all(&engine).await;
    engine.erase(&scope(), &key("k")).await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
}

async fn an_erased_dead_letter_is_closed_and_keeps_its_key_for_a_retention<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.max_attempts(1));
    let hopeless = troubled(Trouble::RetryForeignAlways);
    let dead = engine.call(&scope(), &key("k"), hopeless.clone()).await;
    assert!(matches!(dead, Ok(Outcome::DeadLetter)), "{dead:?}");
    // Dead letters do not expire; a tombstone does. It must not have expired immediately.
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    engine.erase(&scope(), &key("k")).await.unwrap();
    assert_eq!(Reaper::new(&db, WorkerConfig::default()).run_once().await.unwrap(), 0);
    is_erased(engine.call(&scope(), &key("k"), hopeless).await);
    let revived = engine.resolve(&scope(), &key("k"), Resolution::retry()).await;
    assert!(matches!(revived, Err(ResolveError::Conflict(_))), "{revived:?}");
    assert!(engine.check().await.unwrap().waiting.is_empty(), "it waits for no operator");
    assert_eq!(app.provider.effects(), 1);
}

async fn g16_a_scope_is_erased_without_its_neighbours<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let neighbour = Scope::new("tenant-10").unwrap();
    for name in ["a", "b", "c"] {
        finished(engine.call(&scope(), &key(name), notify(Trouble::None)).await);
        finished(engine.call(&neighbour, &key(name), notify(Trouble::None)).await);
    }
    failed(engine.call(&scope(), &key("open"), troubled(Trouble::RetryForeignAlways)).await);
    let swept = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((swept.erased, swept.left), (3, 1));
    let swept = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((swept.erased, swept.left), (0, 1), "what is erased is not counted again");
    for name in ["a", "b", "c"] {
        is_erased(engine.call(&scope(), &key(name), notify(Trouble::None)).await);
        let theirs = engine.call(&neighbour, &key(name), notify(Trouble::None)).await;
        assert!(finished(theirs).replayed);
    }
    assert_eq!(app.provider.effects(), 7);
}

/// Of the former ones, more stand in front of it than one statement reads.
async fn g16_what_was_erased_before_keeps_no_other_from_being_erased<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    for name in ["a", "z"] {
        finished(engine.call(&scope(), &key(name), notify(Trouble::None)).await);
    }
    engine.erase(&scope(), &key("a")).await.unwrap();
    let new_id = if is_postgres::<S>() { "gen_random_uuid()" } else { "randomblob(16)" };
    let same = "definition, definition_version, phases, fingerprint, status, recovery_point, \
        lease_token, attempts, advanced_at, created_at, expires_at, params, response_status";
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, {same}) \
         SELECT scope, concat('b', n), {new_id}, {same} FROM atomic_phases_keys, {} \
         WHERE idempotency_key = 'a'",
        numbers::<S>(2000)
    ))
    .await;
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.left), (1, 0));
    is_erased(engine.call(&scope(), &key("z"), notify(Trouble::None)).await);
}

async fn g14_a_request_whose_definition_is_not_registered_can_be_erased<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    booked(&engine, "k").await;
    deliver_all(&engine).await;
    let ignorant = Engine::builder(db.clone()).build().unwrap();
    ignorant.erase(&scope(), &key("k")).await.unwrap();
    is_erased(engine.call(&scope(), &key("k"), book(20)).await);
}

/// Erasures, retries and a reaper run concurrently: the ledger has one effect, whatever the order.
async fn g3_an_erasure_and_a_retry_never_make_a_second_effect<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut calls = Vec::new();
    for turn in 0..24 {
        let engine = engine.clone();
        calls.push(tokio::spawn(async move {
            match turn % 3 {
                0 => drop(engine.erase(&scope(), &key("k")).await),
                1 => drop(engine.erase_scope(&scope()).await.unwrap()),
                _ => {
                    let outcome = engine.call(&scope(), &key("k"), notify(Trouble::None)).await;
                    assert!(!matches!(outcome, Err(_) | Ok(Outcome::Mismatch)), "{outcome:?}");
                }
            }
        }));
    }
    for call in calls {
        call.await.unwrap();
    }
    engine.erase(&scope(), &key("k")).await.unwrap();
    is_erased(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
    assert_eq!(app.provider.effects(), 1);
}

/// The code of `w77_*`, with its own message.
#[tokio::test]
async fn over_http_it_is_410() {
    let outcome = Ok(Outcome::Erased);
    let answer = Policy::default().answer(Some(&key("k")), outcome).into_http();
    assert_eq!(answer.status(), 410);
    let body = String::from_utf8(answer.body().to_vec()).unwrap();
    assert!(body.contains("response_not_retained") && body.contains("erased"), "{body}");
    assert!(body.contains(r#""retryable":false"#), "{body}");
}

/// If another transaction keeps a row locked, the answer is that it is in use, and nothing waits for it in the
/// database.
#[tokio::test(flavor = "multi_thread")]
async fn g16_an_erasure_of_a_locked_row_waits_for_nothing_and_says_so() {
    use diesel_async::SimpleAsyncConnection;
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for name in ["locked", "free"] {
        booked(&engine, name).await;
    }
    deliver_all(&engine).await;
    let mut holder = crate::support::db::pg(&crate::support::db::url_of(&db)).await;
    let lock =
        "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE idempotency_key = 'locked' FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock'";
    let erasing = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.erase(&scope(), &key("locked")).await })
    };
    while !erasing.is_finished() {
        assert_eq!(db.number(waiting).await, 0);
    }
    let told = erasing.await.unwrap();
    assert!(matches!(told, Err(EraseError::InUse)), "{told:?}");
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.left), (1, 1), "the other one");
    holder.batch_execute("ROLLBACK").await.unwrap();
    engine.erase(&scope(), &key("locked")).await.unwrap();
    is_erased(engine.call(&scope(), &key("locked"), book(20)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn g19_a_request_that_the_server_refuses_to_erase_blocks_no_other_on_postgres() {
    others_are_erased(
        <Postgres as TestDb>::fresh().await,
        "CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'kept'; END $$; \
         CREATE TRIGGER kept BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW \
         WHEN (OLD.idempotency_key = 'kept') EXECUTE FUNCTION kept()",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g19_a_request_that_the_server_refuses_to_erase_blocks_no_other_on_sqlite() {
    others_are_erased(
        <Sqlite as TestDb>::fresh().await,
        "CREATE TRIGGER kept BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW \
         WHEN OLD.idempotency_key = 'kept' BEGIN SELECT RAISE(ABORT, 'kept'); END",
    )
    .await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_request_that_the_server_refuses_to_erase_blocks_no_other_on_mariadb() {
    others_are_erased(
        <atomic_phases::store::Mysql as TestDb>::fresh().await,
        "CREATE TRIGGER kept BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW BEGIN \
         IF OLD.idempotency_key = 'kept' THEN \
         SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'kept'; END IF; END",
    )
    .await;
}

async fn others_are_erased<S: TestDb>(db: S, refuse: &str) {
    let engine = engine(&db, &App::default());
    for name in ["a", "kept", "z"] {
        booked(&engine, name).await;
    }
    deliver_all(&engine).await;
    db.sql(refuse).await;
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.refused, erased.left), (2, 1, 1));
    for name in ["a", "z"] {
        is_erased(engine.call(&scope(), &key(name), book(20)).await);
    }
    let told = engine.erase(&scope(), &key("kept")).await;
    assert!(matches!(told, Err(EraseError::Unavailable(_))), "{told:?}");
    // The dead jobs of a reaped key are erased beside a row that is not.
    finished(engine.call(&scope(), &key("reaped"), book(20)).await);
    give_up_all(&engine).await;
    db.sql("DELETE FROM atomic_phases_keys WHERE idempotency_key = 'reaped'").await;
    let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs";
    assert_eq!(db.number(jobs).await, 2);
    assert!(
        engine.erase_scope(&scope()).await.is_err(),
        "the server refuses every settled request"
    );
    assert_eq!(db.number(jobs).await, 0);
}

/// However many the server refuses, those behind them are erased.
#[tokio::test(flavor = "multi_thread")]
async fn g19_refused_requests_keep_none_behind_them_from_being_erased() {
    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    let kept = (0..100).map(|number| format!("kept-{number:02}"));
    for name in kept.chain(["z".to_owned()]) {
        finished(engine.call(&scope(), &key(&name), troubled(Trouble::RejectFirst)).await);
    }
    db.sql(
        "CREATE TRIGGER kept BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW \
         WHEN OLD.idempotency_key LIKE 'kept%' BEGIN SELECT RAISE(ABORT, 'kept'); END",
    )
    .await;
    let erased = engine.erase_scope(&scope()).await.unwrap();
    assert_eq!((erased.erased, erased.refused, erased.left), (1, 100, 100));
    is_erased(engine.call(&scope(), &key("z"), troubled(Trouble::RejectFirst)).await);
    let told = engine.erase_scope(&scope()).await;
    assert!(matches!(told, Err(StoreError::Database { .. })), "{told:?}");
}
