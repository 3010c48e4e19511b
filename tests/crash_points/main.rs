//! Each change of one of the engine's rows is committed between two crash points, or is in a list with the reason why a
//! crash on either side of it leaves the same. The tests read this from what is sent to PostgreSQL and to SQLite, not from the
//! source. Separate, because they record the statements of every connection.
//!
//! What they show, and what they do not:
//!
//! * In a run without faults, for calls, acceptances, workers and an operator: a change is the only one between the two
//!   points of its kind.
//! * After a fault, in the explorer's cases of a call and of an acceptance: a change has the point before it. The point
//!   after it may be where the fault was, and is not looked for.
//! * The same run without one kind of its points is reported: the tests would see a point that the engine lacks.
//! * On PostgreSQL, a takeover that several requests share is sent by a task of its own, and is in no task's order. It is left
//!   out where a task stands before its takeover, and as often as tasks came there, not more. The tests do not see for which
//!   of them it was sent.
//! * On SQLite, a thread executes the statements of all tasks, and does not know whose they are. So one request runs at a time,
//!   and everything is in one order.
//! * Not of the other acts of operators (retries, resolutions of jobs, bulk acts, pauses, erasures) and of deliveries that
//!   fail. Each is one transaction for each request, which an operator, the runner of bulk acts or the end of a claim
//!   repeats; `tests/ops` and `tests/workers` interrupt them.
//! * Not on MariaDB and in memory, where no connection reports its statements to the process. The points are the engine's, and
//!   so the same on every store; that a store changes a row in one commit is not shown for these two here.
#![cfg(feature = "fault-injection")]

mod recorder;
mod rules;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use atomic_phases::Reply;
use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::fault::{Mode, explore};
use atomic_phases::ops::{Actor, Permissions, Scopes};
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{Completer, Enqueuer, Reaper, Reconciler, WorkerConfig};
use recorder::{ALONE, SEEN, Step, Task, arranged, record, see, seen};
use rules::{
    EXEMPTED, PAIRS, PASSES_TIME, behind, between_two_points, done_by_each_task, rules, written,
};
use support::work::{Inbox, config, dies_in_its_call};
use support::*;

async fn world<S: TestDb>(db: &S, provider: Provider) -> (App, TestEngine<S>) {
    let empty = "DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs; \
         DELETE FROM rides; DELETE FROM steps";
    arranged(db, db.sql(empty)).await;
    see(Step::Emptied);
    let app = App::new(provider);
    let engine = engine_with(db, &app, |builder| {
        let builder =
            builder.lease(Duration::from_secs(60)).creation_wait(Duration::from_millis(30));
        builder.back_off(Duration::from_millis(1), Duration::from_millis(1))
    });
    (app, engine)
}

/// On SQLite one request at a time.
fn config_of<S: TestDb>() -> WorkerConfig {
    if is_postgres::<S>() { config() } else { config().concurrency(1) }
}

/// A call that takes longer than its lease, which is renewed meanwhile.
async fn is_renewed<S: TestDb>(db: &S, engine: &TestEngine<S>) {
    let app = engine.app();
    let engine = engine_with(db, app, |builder| builder.lease(Duration::from_secs(2)));
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("slow"), book(20)).into_future());
    let waiting = gate.recv().await.unwrap();
    let (renews, _) = rules::<S>().exempt[0];
    let is_renewal = |(_, step): &(_, _)| matches!(step, Step::Sent(sql) if sql.contains(renews));
    until(async || SEEN.lock().unwrap().iter().any(is_renewal)).await;
    app.provider.stop_no_more();
    drop(waiting);
    let _ = call.await.unwrap();
}

/// An operator's words about two calls whose outcome stays unknown: one with an audit row, and one without.
async fn resolve<S: TestDb>(engine: &TestEngine<S>) {
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    let row = ops.find(&scope(), &key("book-false")).await.unwrap();
    let word = Resolution::not_executed("charged", row.attempts);
    let done = ops.resolve(row.request_id, &row.version, word, "asked the provider").await;
    assert_eq!(done.unwrap(), Resolved::Applied);
    let word = Resolution::finish(Reply::text(409, "by hand"));
    let done = engine.resolve(&scope(), &key("book-true"), word).await;
    assert_eq!(done.unwrap(), Resolved::Applied);
}

/// Each request, called and accepted, with this trouble; and what workers and an operator make of it.
async fn run_each_request<S: TestDb>(db: &S, trouble: Trouble) {
    let provider = Provider::that_ignores_keys();
    provider.answer_searches();
    let (_, engine) = world(db, provider).await;
    seen();
    for accepts in [false, true] {
        let key = |request: &str| key(&format!("{request}-{accepts}"));
        let _ = match accepts {
            false => engine.call(&scope(), &key("book"), troubled(trouble)).await,
            true => engine.call(&scope(), &key("book"), troubled(trouble)).accept().await,
        };
        let _ = match accepts {
            false => engine.call(&scope(), &key("notify"), notify(trouble)).await,
            true => engine.call(&scope(), &key("notify"), notify(trouble)).accept().await,
        };
        for form in [Form::OneByOne, Form::SingleStatement] {
            let parcel = engine.call(&scope(), &key(&format!("{form:?}")), form.parcel(trouble));
            let _ = match accepts {
                false => parcel.await,
                true => parcel.accept().await,
            };
        }
    }
    if trouble == Trouble::None {
        is_renewed(db, &engine).await;
        dies_in_its_call(&engine, "dead", book(20)).await;
    }
    for _ in 0..3 {
        arranged(db, db.let_time_pass()).await;
        Completer::new(&engine, config_of::<S>()).run_once().await.unwrap();
        Reconciler::new(&engine, config_of::<S>()).run_once().await.unwrap();
    }
    if trouble == Trouble::UnknownForeign {
        resolve(&engine).await;
    }
    Enqueuer::new(&engine, Inbox::default().sink(), config()).run_once().await.unwrap();
    arranged(db, db.sql("UPDATE atomic_phases_keys SET expires_at = created_at")).await;
    // A new life of an expired key; the reaper deletes the others.
    let _ = engine.call(&scope(), &key("book-false"), troubled(trouble)).await;
    Reaper::new(engine.store(), config()).run_once().await.unwrap();
}

/// G4, G13: for every way in which a request can run, with calls, workers and an operator.
async fn each_change_is_between_two_crash_points<S: TestDb>() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    EXEMPTED.lock().unwrap().clear();
    let db = S::fresh().await;
    let (mut changed, mut kinds) = (0, BTreeSet::new());
    for trouble in [
        Trouble::None,
        Trouble::RejectFirst,
        Trouble::RetryFirst,
        Trouble::RejectForeign,
        Trouble::RetryForeignOnce,
        Trouble::NotExecutedOnce,
        Trouble::UnknownForeign,
        Trouble::RejectLast,
        Trouble::RetryLastOnce,
        Trouble::FinishEarly,
        Trouble::SwallowError,
        Trouble::HugeReply,
        Trouble::BadStatus,
    ] {
        run_each_request(&db, trouble).await;
        for (_, steps) in done_by_each_task::<S>(seen()) {
            let changes = between_two_points(&steps).unwrap_or_else(|wrong| panic!("{wrong}"));
            for change in changes {
                changed += 1;
                kinds.extend(written(change));
            }
        }
    }
    assert!(changed > 200, "{changed} changes");
    let expected = [
        "INSERT atomic_phases_audit",
        "INSERT atomic_phases_keys",
        "INSERT atomic_phases_staged_jobs",
        "UPDATE atomic_phases_keys",
    ];
    assert_eq!(kinds.iter().collect::<Vec<_>>(), expected, "each kind is recognized");
    let exempt: BTreeSet<&str> = rules::<S>().exempt.iter().map(|(exempt, _)| *exempt).collect();
    assert_eq!(*EXEMPTED.lock().unwrap(), exempt, "no exemption without a statement");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_row_is_committed_between_two_crash_points_on_postgres() {
    each_change_is_between_two_crash_points::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_row_is_committed_between_two_crash_points_on_sqlite() {
    each_change_is_between_two_crash_points::<Sqlite>().await;
}

/// The test above would fail if the engine lacked a point: the same run is judged without each kind of point.
async fn a_point_that_is_left_out_is_reported<S: TestDb>() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    let db = S::fresh().await;
    run_each_request(&db, Trouble::RetryForeignOnce).await;
    let seen = seen();
    let is_reported = |seen: Vec<(Task, Step)>| {
        let tasks = done_by_each_task::<S>(seen);
        tasks.iter().any(|(_, steps)| between_two_points(steps).is_err())
    };
    assert!(!is_reported(seen.clone()), "with all of its points");
    for place in PAIRS.into_iter().flat_map(|(before, after)| [before, after]) {
        let is_there = |(_, step): &(Task, Step)| *step == Step::Point(place.to_owned());
        assert!(seen.iter().any(is_there), "the run passes {place}");
        // There, what a takeover that is shared has behind it is not looked for.
        if is_postgres::<S>() && place == "after_take_over" {
            continue;
        }
        let others = seen.iter().filter(|&step| !is_there(step)).cloned();
        assert!(is_reported(others.collect()), "{place} is left out");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_point_that_is_left_out_is_reported_on_postgres() {
    a_point_that_is_left_out_is_reported::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_point_that_is_left_out_is_reported_on_sqlite() {
    a_point_that_is_left_out_is_reported::<Sqlite>().await;
}

/// G13: also after a crash or a lost answer. Of the two points only the one before it: the fault may be at the other.
async fn each_change_after_a_fault_is_behind_a_crash_point<S: TestDb>() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    let db = S::fresh().await;
    let requests = [Trouble::None, Trouble::RejectFirst];
    for (trouble, accepts) in requests.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        seen();
        let modes =
            [Mode::Drop, Mode::NotSent, Mode::AckLost, Mode::Serialization, Mode::AnswerLost];
        let explorer = explore(
            async || {
                let (app, engine) = world(&db, Provider::default()).await;
                (engine, app)
            },
            troubled(trouble),
        );
        let explorer = explorer.modes(modes).crash_at_every_point();
        // The faults are then those of the acceptance, and a worker or a retry runs the request.
        let explorer = if accepts { explorer.with_a_call_that_accepts() } else { explorer };
        explorer.run().await.assert_ok();
        let mut changed = 0;
        for (task, steps) in done_by_each_task::<S>(seen()) {
            // The explorer's own.
            if is_postgres::<S>() && task.is_none() {
                continue;
            }
            for (index, step) in steps.iter().enumerate() {
                let Step::Sent(sql) = step else { continue };
                if sql.starts_with(PASSES_TIME) {
                    continue;
                }
                changed += 1;
                let before = index.checked_sub(1).and_then(|index| steps.get(index));
                let fits = matches!(before, Some(Step::Point(place)) if behind(place).is_some());
                assert!(fits, "{before:?} before {sql}\nin {steps:#?}");
            }
        }
        assert!(changed > 20, "{changed} changes, accepts: {accepts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_after_a_fault_has_a_crash_point_before_it_on_postgres() {
    each_change_after_a_fault_is_behind_a_crash_point::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_after_a_fault_has_a_crash_point_before_it_on_sqlite() {
    each_change_after_a_fault_is_behind_a_crash_point::<Sqlite>().await;
}
