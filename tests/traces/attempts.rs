//! The spans of calls and of workers: their names, links, statuses and outcomes.

use atomic_phases::Outcome;
use atomic_phases::engine::CallError;
use atomic_phases::ops::{Actor, EventKind, Permissions, Scopes};
use atomic_phases::traces::LinkKind;
use tracing::{Instrument, Level, info_span};

use crate::seen::{Numbered, all, at, below, linked, name, of_key, told, traced, traced_as};
use crate::support::proxy::{Cut, proxied};
use crate::support::work::*;
use crate::support::*;

on_every_store! {
    a_request_that_is_killed_twice_is_one_story_told_by_links,
    what_is_released_is_no_error_and_its_retry_is_linked_to_it,
    a_request_that_gives_up_is_an_error_of_the_attempt_that_did,
    a_request_that_was_accepted_is_linked_to_its_acceptance_alone,
    a_reconciled_outcome_is_linked_and_no_error,
    requests_that_a_worker_takes_over_together_have_each_its_own_trace,
    a_call_that_runs_nothing_names_no_attempt_and_the_request_that_there_is,
}

async fn a_request_that_is_killed_twice_is_one_story_told_by_links<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let (first, second) = (traced(&db, &app), traced(&db.another().await, &app));
    let worker = traced(&db.another().await, &app);
    for engine in [&first, &second] {
        let client = info_span!("client");
        dies_in_its_call(engine, &name, book(20)).instrument(client).await;
        db.let_leases_expire().await;
        db.let_time_pass().await;
    }
    // The worker's resume has a span of its own, which is not the parent of what it runs.
    assert_eq!(completed(&worker).instrument(info_span!("worker")).await.finished, 1);
    finished(first.call(&scope(), &key(&name), book(20)).await);

    let seen = of_key(&name);
    let names: Vec<_> = seen.iter().map(|(_, seen)| seen.name.as_str()).collect();
    assert_eq!(names, ["book execute", "book execute", "book resume", "book execute"]);
    let [one, two, resumed, replay] = seen.as_slice() else { unreachable!() };
    assert_eq!(one.1.links, []);
    assert_eq!(two.1.links, linked(one, one));
    assert_eq!(resumed.1.links, linked(one, two), "the worker knows the one killed last");
    assert_eq!(replay.1.links, [(LinkKind::Creation, at(one))], "who made this answer");
    assert!(resumed.1.parent.is_none() && one.1.level == Level::INFO, "{resumed:?}");
    // One of the attempts is final, and no killed one is an error.
    let statuses: Vec<_> = seen.iter().map(|(_, seen)| seen.status()).collect();
    assert_eq!(statuses, [("", ""), ("", ""), ("OK", ""), ("", "")]);
    let outcomes: Vec<_> = seen.iter().map(|(_, seen)| seen.outcome()).collect();
    assert_eq!(outcomes, ["", "", "finished", "replayed"]);
    let attempts: Vec<_> = seen.iter().map(|it| it.1.says("atomic_phases.attempt")).collect();
    assert_eq!(attempts, ["1", "2", "3", ""]);
    assert_eq!(replay.1.says("atomic_phases.replayed"), "true");
    assert_eq!(resumed.1.says("atomic_phases.recovery_point"), "booked");
    let ids: Vec<_> = seen.iter().map(|it| it.1.says("atomic_phases.request_id")).collect();
    assert!(!ids[0].is_empty() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");

    let phases = |of: &Numbered| below(of.0).into_iter().map(|(_, seen)| seen.name);
    assert!(phases(one).eq(["phase booked", "phase charged"]));
    assert!(phases(two).eq(["phase charged"]));
    assert!(phases(resumed).eq(["phase charged", "phase answered"]));
    let charged = below(two.0).remove(0).1;
    let of = ["atomic_phases.request_id", "atomic_phases.attempt"].map(|field| charged.says(field));
    assert_eq!(of, [ids[0], "2"], "it may be all that arrives of a process that is killed");
    let kind = ["otel.kind", "atomic_phases.phase.kind", "atomic_phases.effect"];
    assert_eq!(kind.map(|field| charged.says(field)), ["client", "foreign", "idempotent"]);

    let taken_over = Some(EventKind::TakenOver);
    let expected = [(None, one), (taken_over, one), (taken_over, two)];
    assert_eq!(told(&first, &name).await, expected.map(|(kind, of)| (kind, Some(at(of)))));
    // Operators read it, too.
    let admin =
        |_: &http::request::Parts| Actor::new("ada", Permissions::admin(), Scopes::All).ok();
    let api = atomic_phases::console::Api::new(first.clone(), admin).router();
    let console = atomic_phases::console::Console::new(first.clone(), admin).router();
    let page = format!("/requests/{}", ids[0]);
    let (json, page) = (read(api, &page).await, read(console, &page).await);
    for of in [one, two] {
        let traceparent = at(of).to_string();
        assert!(json.contains(&traceparent), "{traceparent}: {json}");
        assert!(page.contains(&format!("trace <code>{}", &traceparent[3..35])), "{page}");
    }
}

async fn read(routes: axum::Router, path: &str) -> String {
    let request = http::Request::get(path).header("authorization", "Bearer token");
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(routes, request).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

async fn what_is_released_is_no_error_and_its_retry_is_linked_to_it<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let request = || troubled(Trouble::RetryForeignOnce);
    failed(engine.call(&scope(), &key(&name), request()).await);
    db.let_time_pass().await;
    finished(traced(&db.another().await, &app).call(&scope(), &key(&name), request()).await);
    let seen = of_key(&name);
    let [one, two] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(two.1.links, linked(one, one));
    assert_eq!((one.1.status(), one.1.outcome()), (("", ""), "failed"));
    assert_eq!((two.1.status(), two.1.outcome()), (("OK", ""), "finished"));
    let released = (Some(EventKind::Released), Some(at(one)));
    assert_eq!(told(&engine, &name).await, [(None, Some(at(one))), released]);
}

async fn a_request_that_gives_up_is_an_error_of_the_attempt_that_did<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced_as(&db, &app, |builder| builder.max_attempts(2));
    let request = || troubled(Trouble::RetryForeignAlways);
    failed(engine.call(&scope(), &key(&name), request()).await);
    db.let_time_pass().await;
    completed(&engine).await;
    let told = engine.call(&scope(), &key(&name), request()).await;
    assert!(matches!(told, Ok(Outcome::DeadLetter)), "{told:?}");
    let seen = of_key(&name);
    let [one, two, asked] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(one.1.status(), ("", ""));
    assert_eq!(two.1.status(), ("ERROR", "dead_letter"));
    assert_eq!(asked.1.status(), ("", ""), "a call that reads a dead letter has no error");
    assert_eq!(asked.1.links, [(LinkKind::Creation, at(one))]);
    // A final reply ends the request, whatever its status; only a status of 500 and above is an error.
    for (trouble, status) in [(Trouble::RejectForeign, "OK"), (Trouble::RejectFirst, "OK")] {
        let name = self::name();
        finished(engine.call(&scope(), &key(&name), troubled(trouble)).await);
        assert_eq!(of_key(&name)[0].1.status(), (status, ""), "{trouble:?}");
    }
}

async fn a_request_that_was_accepted_is_linked_to_its_acceptance_alone<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    engine.call(&scope(), &key(&name), book(20)).accept().await.unwrap();
    assert_eq!(completed(&engine).await.finished, 1);
    let seen = of_key(&name);
    let [accepted, resumed] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(accepted.1.outcome(), "accepted");
    assert_eq!(resumed.1.links, [(LinkKind::Creation, at(accepted))]);
    assert_eq!(resumed.1.status(), ("OK", ""));
}

async fn a_reconciled_outcome_is_linked_and_no_error<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let call = engine.call(&scope(), &key(&name), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(call, Ok(Outcome::Unknown { .. })), "{call:?}");
    for answers in [false, true] {
        if answers {
            app.provider.answer_searches();
        }
        db.let_time_pass().await;
        reconciled(&engine).await;
    }
    let seen = of_key(&name);
    let [one, still_unknown, executed] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(still_unknown.1.links, linked(one, one));
    assert_eq!(executed.1.links, linked(one, still_unknown));
    let statuses: Vec<_> = seen.iter().map(|it| (it.1.status().0, it.1.outcome())).collect();
    assert_eq!(statuses, [("", "unknown"), ("", "unknown"), ("OK", "finished")]);
}

async fn requests_that_a_worker_takes_over_together_have_each_its_own_trace<S: TestDb>(db: S) {
    let app = App::default();
    let engine = traced(&db, &app);
    let request = || troubled(Trouble::RetryForeignAlways);
    let names: Vec<_> = (0..4).map(|_| name()).collect();
    for name in &names {
        engine.call(&scope(), &key(name), request()).accept().await.unwrap();
    }
    completed(&engine).await;
    for name in &names {
        failed(engine.call(&scope(), &key(name), request()).await);
        let seen = of_key(name);
        let [accepted, resumed, retried] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!(resumed.1.links, [(LinkKind::Creation, at(accepted))]);
        assert_eq!(retried.1.links, linked(accepted, resumed));
    }
}

/// The call was to create the row, and found one.
async fn a_call_that_runs_nothing_names_no_attempt_and_the_request_that_there_is<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let call = |request: Book| engine.call(&scope(), &key(&name), request);
    finished(call(book(20)).await);
    finished(call(book(20)).expect_new().await);
    assert!(matches!(call(book(21)).expect_new().await, Ok(Outcome::Mismatch)));
    let seen = of_key(&name);
    let [one, replay, mismatch] = seen.as_slice() else { panic!("{seen:?}") };
    let id = |it: &Numbered| it.1.says("atomic_phases.request_id").to_owned();
    assert_eq!((id(replay), id(mismatch)), (id(one), String::new()));
    assert_eq!(replay.1.links, [(LinkKind::Creation, at(one))]);
    for told in [replay, mismatch] {
        let says = |field: &str| told.1.says(&format!("atomic_phases.{field}")).to_owned();
        assert_eq!((says("attempt"), says("recovery_point")), Default::default(), "{told:?}");
    }

    // One that is unknown is named, too.
    let name = self::name();
    let call = async || engine.call(&scope(), &key(&name), notify(Trouble::UnknownForeign)).await;
    for _ in 0..2 {
        let told = call().await;
        assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    }
    let seen = of_key(&name);
    let [one, told] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((id(told), told.1.says("atomic_phases.attempt")), (id(one), ""));
}

/// A call whose commit got no answer continues with its own row.
#[tokio::test(flavor = "multi_thread")]
async fn no_span_is_linked_to_itself_whatever_answer_is_lost() {
    use atomic_phases::fault::{Mode, explore};
    let (mut cases, short) = (0, std::time::Duration::from_millis(1));
    for trouble in [Trouble::None, Trouble::RejectFirst] {
        let world = async || {
            let (db, app) =
                (<atomic_phases::store::Sqlite as TestDb>::fresh().await, App::default());
            (traced_as(&db, &app, |builder| builder.back_off(short, short)), app)
        };
        let modes = [Mode::AckLost, Mode::NotSent, Mode::Drop];
        let report = explore(world, troubled(trouble)).modes(modes).crash_at_every_point();
        let report = report.run().await;
        report.assert_ok();
        cases += report.cases();
    }
    assert!(cases > 10, "{cases}");
    let all = all();
    assert!(all.iter().any(|(_, seen)| !seen.links.is_empty()));
    for one in &all {
        assert!(one.1.links.iter().all(|(_, to)| *to != at(one)), "{one:?}");
    }
}

/// The answer to the commit that creates the row is lost, and so is each read of the key by the call.
#[tokio::test(flavor = "multi_thread")]
async fn the_verification_of_a_creation_has_a_trace_of_its_own_and_is_linked_to_the_call() {
    let (_db, store, proxy) = proxied().await;
    let (app, name) = (App::default(), name());
    let engine = traced(&store, &app);
    proxy.refuse_once_cut();
    proxy.arm("COMMIT", 1, Cut::Answer);
    let told = engine.call(&scope(), &key(&name), book(20)).await;
    assert!(matches!(told, Err(CallError::Unavailable(_))), "{told:?}");
    assert_eq!(proxy.fired(), 1, "a fault that does not happen proves nothing");
    proxy.refuse(false);
    until(async || of_key(&name).iter().any(|it| it.1.outcome() == "created")).await;
    let seen = of_key(&name);
    let [call, verify] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((call.1.name.as_str(), call.1.outcome()), ("book execute", "unavailable"));
    assert_eq!((verify.1.name.as_str(), verify.1.parent), ("book verify", None));
    assert_eq!(verify.1.links, [(LinkKind::Creation, at(call))]);
    assert_eq!(verify.1.status(), ("", ""), "the request goes on");
}
