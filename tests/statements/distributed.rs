//! Checks every statement of requests, workers and operators that changes rows against what a distributed table
//! refuses (docs/scaling.md). Read from what was sent, not from the source.

use std::time::Duration;

use crate::distributed_rules::{asks_first, changes, refused};
use crate::one_job::stages_one;
use crate::recorded::{alone, count, sent};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::ops::{Actor, Filter, Permissions, Scopes};
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, Reaper};
use atomic_phases::{engine::Resolution, store::Postgres};

/// Requests with every outcome, workers, and operators.
#[tokio::test(flavor = "multi_thread")]
async fn no_statement_is_one_that_a_distributed_table_refuses() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine_with(&db.another().await, &app, |builder| {
        let builder = builder.lease(Duration::from_secs(3)).notify_waiting();
        builder.back_off(Duration::ZERO, Duration::ZERO)
    });
    sent();
    requests(&db, &engine).await;
    renewed(&engine).await;
    let mut all = sent();
    workers(&db, &engine).await;
    let of_workers = sent();
    for sql in &of_workers {
        assert!(
            !waits_for_a_request(sql),
            "a lock_timeout does not reach the node of the row: {sql}"
        );
    }
    all.extend(of_workers);
    operators(&db, &engine).await;
    // A worker's statements on many rows of several scopes do not run on a distributed table.
    let is_of_many = |sql: &String| sql.contains(" WITH ORDINALITY AS given (");
    let changes_rows = |sql: &String| {
        sql.contains("atomic_phases_") && !changes(sql).is_empty() && !is_of_many(sql)
    };
    all.extend(sent());
    let all: Vec<String> = all.into_iter().filter(changes_rows).collect();
    for kind in [
        "WITH advanced AS (",
        JOINED,
        "UPDATE atomic_phases_keys SET status = 'failed_retryable'",
        "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token",
        "UPDATE atomic_phases_keys SET locked_until",
        "UPDATE atomic_phases_keys SET run_after = locked_until",
        "DELETE FROM atomic_phases_keys",
        "UPDATE atomic_phases_staged_jobs AS j SET attempts = attempts",
        "WITH put_back AS (UPDATE",
        "WITH written AS (UPDATE",
        "WITH erased AS (UPDATE",
        "WITH settled AS (",
    ] {
        assert!(all.iter().any(|sql| sql.starts_with(kind)), "no {kind} among {all:#?}");
    }
    assert!(all.iter().any(|sql| sql.contains("AS told_at) INSERT")), "no notice: {all:#?}");
    let stages_one = "FROM atomic_phases_key RETURNING job_id) SELECT";
    assert!(all.iter().any(|sql| sql.contains(stages_one)), "no single job: {all:#?}");
    for sql in &all {
        assert_eq!(refused(&db, sql).await, Ok(()), "{sql}");
        if sql.starts_with("WITH advanced AS (") || sql.starts_with(JOINED) {
            assert!(!asks_first(sql), "its transaction is not of two phases there: {sql}");
            assert!(sql.contains(APART), "it is judged on the row's node: {sql}");
        }
    }
}

/// The flagship's script and the tests follow the instructions of the chapter.
#[test]
fn the_scripts_of_a_distributed_database_do_what_the_chapter_says() {
    let chapter = include_str!("../../docs/scaling.md");
    let scripts = [
        include_str!("../../examples/rocket_rides/migrations/citus.sql"),
        include_str!("../support/citus.rs"),
    ];
    for told in [
        "create_distributed_table('atomic_phases_keys', 'scope')",
        "colocate_with => 'atomic_phases_keys'",
        "citus_add_local_table_to_metadata('atomic_phases_audit')",
        "lock_timeout = ''1s''",
        "idle_in_transaction_session_timeout = ''60s''",
        "client_connection_check_interval = ''500ms''",
    ] {
        assert!(chapter.contains(told), "the chapter says {told} no more");
        for script in scripts {
            assert!(script.contains(told), "{told} is in no {script}");
        }
    }
}

/// A phase's commit that is a single statement together with the phase's own, or with its only job.
const JOINED: &str = "WITH atomic_phases_key AS (WITH";

/// Keeps the evaluation of an update's condition off the row's node.
const APART: &str = "AS (WITH apart AS (SELECT clock_timestamp()) UPDATE atomic_phases_keys";

/// Whether a statement changes a request without saying what it does if the request's row is locked. A statement of
/// the holder need not: it names the row's recovery point. The engine's statements have parameters, the test's own
/// have not.
fn waits_for_a_request(sql: &str) -> bool {
    let changes = ["UPDATE atomic_phases_keys ", "DELETE FROM atomic_phases_keys "];
    changes.iter().any(|change| sql.contains(change))
        && sql.contains('$')
        && !sql.contains("SKIP LOCKED")
        && !sql.contains(" AND recovery_point = ")
}

async fn requests(db: &Postgres, engine: &TestEngine<Postgres>) {
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    stages_one(db, "one-job").await;
    for form in [Form::OneByOne, Form::SingleStatement] {
        let name = key(&format!("{form:?}"));
        finished(engine.call(&scope(), &name, form.parcel(Trouble::None)).await);
    }
    engine.app().forget_bodies();
    failed(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    engine.app().forget_bodies();
    finished(engine.call(&scope(), &key("call"), notify(Trouble::None)).await);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
}

/// A holder whose call takes long.
async fn renewed(engine: &TestEngine<Postgres>) {
    let mut gate = engine.app().provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key("long"), book(20));
    let call = tokio::spawn(call.into_future());
    let waiting = gate.recv().await.unwrap();
    let renews = "UPDATE atomic_phases_keys SET locked_until";
    until(async || count(|sql| sql.starts_with(renews)) > 0).await;
    engine.app().provider.stop_no_more();
    drop(waiting);
    let _ = call.await.unwrap();
}

async fn workers(db: &Postgres, engine: &TestEngine<Postgres>) {
    let accepted = engine.call(&scope(), &key("accepted"), book(20)).accept().await;
    assert!(accepted.is_ok());
    // One by one, because the statement about many rows does not run on a distributed table.
    dies_in_its_call(engine, "died", book(20)).await;
    db.let_leases_expire().await;
    completed(engine).await;
    dies_in_its_call(engine, "unknown", notify(Trouble::None)).await;
    db.let_leases_expire().await;
    completed(engine).await;
    reconciled(engine).await;
    let store = db.another().await;
    let fails = |error: fn() -> DeliveryError| {
        Handlers::new()
            .on("receipt", move |_: String, _| async move { Err(error()) })
            .on("thanks", async |_: String, _| Ok(()))
    };
    let errors: [fn() -> DeliveryError; 2] =
        [|| DeliveryError::retry_after("busy", Duration::ZERO), || DeliveryError::dead("no")];
    for error in errors {
        // Also job by job, because the statements for many jobs do not run on a distributed table.
        for config in [config().batch(1), config()] {
            Enqueuer::new(engine, fails(error), config).run_once().await.unwrap();
        }
    }
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at WHERE idempotency_key = 'again'")
        .await;
    Reaper::new(&store, config()).run_once().await.unwrap();
}

async fn operators(db: &Postgres, engine: &TestEngine<Postgres>) {
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    for nth in 0..2 {
        let page = ops.dead_jobs(None, 10).await.unwrap().rows;
        let job = page.first().expect("a dead job");
        match nth {
            0 => ops.retry_job(job.id, job.attempts, "again").await.unwrap(),
            _ => ops.discard_job(job.id, job.attempts, "no more").await.unwrap(),
        }
    }
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    failed(engine.call(&scope(), &key("dead"), troubled(Trouble::RetryForeignAlways)).await);
    db.sql(
        "UPDATE atomic_phases_keys SET status = 'dead_letter', run_after = NULL, \
         waiting_since = created_at WHERE idempotency_key = 'dead'",
    )
    .await;
    let dead = ops.find(&scope(), &key("dead")).await.unwrap();
    let _ =
        ops.resolve(dead.request_id, &dead.version, Resolution::retry(), "again").await.unwrap();
    let settled = ops.list(Filter::new()).await.unwrap().rows;
    for row in settled.iter().take(20) {
        let _ = ops.erase(row.request_id, &row.version, "asked for").await;
    }
    let _ = engine.erase(&scope(), &key("fresh")).await;
    engine.erase_scope(&scope()).await.unwrap();
}
