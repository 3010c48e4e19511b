//! One executor for each key, whoever else comes: concurrent first requests, duplicates, zombies.

mod support;

use std::time::Duration;

use atomic_phases::*;
use support::*;

on_both_stores! {
    g10_of_64_concurrent_first_requests_one_runs,
    g3_a_stale_holder_commits_nothing,
    g3_a_holder_that_lives_keeps_its_lease,
    g10_a_duplicate_is_told_at_once_or_waits,
    g13_a_caller_that_goes_away_cancels_nothing,
    g13_wherever_the_future_is_dropped_the_request_resumes_and_no_lock_stays,
}

async fn g10_of_64_concurrent_first_requests_one_runs<S: TestDb>(db: S) {
    let app = App::default();
    let engines = [engine(&db, &app), engine(&db.another().await, &app)];
    let calls: Vec<_> = (0..64)
        .map(|n| {
            let engine = engines[n % 2].clone();
            tokio::spawn(async move { engine.execute(&scope(), &key("k"), book(20)).await })
        })
        .collect();
    let (mut first, mut bodies) = (0, Vec::new());
    for call in calls {
        match call.await.unwrap().unwrap() {
            Outcome::Finished(finished) => {
                first += u32::from(!finished.replayed);
                bodies.push(finished.reply);
            }
            Outcome::InProgress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(first, 1);
    assert!(bodies.iter().all(|body| *body == bodies[0]));
    assert_eq!(app.provider.calls().len(), 1);
    assert_eq!(app.bodies()[1..], [1, 1]);
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1);
}

async fn g3_a_stale_holder_commits_nothing<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let stale = engine(&db, &app);
    let sleeping = tokio::spawn(async move { stale.execute(&scope(), &key("k"), book(20)).await });
    let asleep = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    db.let_leases_expire().await;

    let heir = engine(&db.another().await, &app);
    let done = finished(heir.execute(&scope(), &key("k"), book(20)).await);
    assert!(!done.replayed);
    let before = db.text("SELECT lease_token FROM atomic_phases_keys").await;

    // The stale holder wakes up in its call, with a result that nobody needs any more.
    asleep.send(()).unwrap();
    let loser = finished(sleeping.await.unwrap());
    assert!(loser.replayed, "WIRE 33: the loser's answer");
    assert_eq!(loser.reply, done.reply);
    assert_eq!(db.text("SELECT lease_token FROM atomic_phases_keys").await, before);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 2);
    assert_eq!(app.provider.effects(), 1);
}

async fn g3_a_holder_that_lives_keeps_its_lease<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let lease = Duration::from_millis(400);
    let slow = engine_with(&db, &app, |b| b.lease(lease));
    let call = tokio::spawn(async move { slow.execute(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    let other = engine_with(&db.another().await, &app, |b| b.lease(lease));
    // Several leases long; the passing of time is what this is about.
    for _ in 0..5 {
        tokio::time::sleep(lease / 2).await;
        let outcome = other.execute(&scope(), &key("k"), book(20)).await.unwrap();
        assert!(matches!(outcome, Outcome::InProgress { .. }), "{outcome:?}");
    }
    in_the_call.send(()).unwrap();
    app.provider.stop_no_more();
    assert!(!finished(call.await.unwrap()).replayed);
    assert_eq!(app.provider.calls().len(), 1);
}

async fn g10_a_duplicate_is_told_at_once_or_waits<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.execute(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    let Ok(Outcome::InProgress { retry_after }) =
        engine.execute(&scope(), &key("k"), book(20)).await
    else {
        panic!("a live lease");
    };
    assert!(retry_after > Duration::from_secs(30) && retry_after <= Duration::from_secs(60));
    // WIRE 31: another request is told so, although the first still runs.
    let other = engine.execute(&scope(), &key("k"), book(21)).await;
    assert!(matches!(other, Ok(Outcome::Mismatch)));
    let short = OnDuplicate::Wait(Duration::from_millis(120));
    let waited = engine.call(&scope(), &key("k"), book(20)).on_duplicate(short).execute().await;
    assert!(matches!(waited, Ok(Outcome::InProgress { .. })));

    let long = OnDuplicate::Wait(Duration::from_secs(30));
    let patient = engine.call(&scope(), &key("k"), book(20)).on_duplicate(long);
    let patient = tokio::spawn(patient.execute());
    in_the_call.send(()).unwrap();
    let first = finished(call.await.unwrap());
    let second = finished(patient.await.unwrap());
    assert!(second.replayed);
    assert_eq!(second.reply, first.reply);
    assert_eq!(app.provider.effects(), 1);
}

async fn g13_a_caller_that_goes_away_cancels_nothing<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    let caller = engine.clone();
    let call = tokio::spawn(async move { caller.execute(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    in_the_call.send(()).unwrap();
    app.provider.stop_no_more();
    let long = OnDuplicate::Wait(Duration::from_secs(30));
    let retry = engine.call(&scope(), &key("k"), book(20)).on_duplicate(long).execute().await;
    assert!(finished(retry).replayed, "WIRE 35: the work went on without its caller");
    assert_eq!(app.provider.calls().len(), 1);
}

/// Polls the request n times and drops it, for n = 1, 2, 3 … until it is done by then: each await of
/// engine, store and phases is hit.
async fn g13_wherever_the_future_is_dropped_the_request_resumes_and_no_lock_stays<S: TestDb>(
    db: S,
) {
    let mut dropped = 0;
    for polls in 1.. {
        let app = App::default();
        let name = format!("dropped-{polls}");
        let first = engine(&db, &app);
        let mut request =
            Box::pin(first.call(&scope(), &key(&name), book(20)).__execute_in_place());
        let mut left = polls;
        let done = std::future::poll_fn(|cx| {
            left -= 1;
            match request.as_mut().poll(cx) {
                std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
                std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(false),
                std::task::Poll::Pending => std::task::Poll::Pending,
            }
        })
        .await;
        drop(request);
        if done {
            break;
        }
        dropped += 1;
        // The row's lock is free within a second, or this statement fails.
        let update = format!(
            "UPDATE atomic_phases_keys SET locked_until = created_at \
             WHERE idempotency_key = '{name}' AND status = 'in_progress'"
        );
        tokio::time::timeout(Duration::from_secs(1), db.sql(&update)).await.expect("a lock stayed");
        // A commit that was under way may land after that update, with a lease of its own.
        let long = OnDuplicate::Wait(Duration::from_secs(20));
        let retry = engine(&db, &app);
        let retry = retry.call(&scope(), &key(&name), book(20)).on_duplicate(long).execute();
        let retry = tokio::time::timeout(Duration::from_secs(10), retry);
        let expire = async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                db.sql(&update).await;
            }
        };
        let outcome = tokio::select! {
            outcome = retry => outcome.expect("the retry hangs"),
            _ = expire => unreachable!(),
        };
        assert_eq!(finished(outcome).reply.status(), 201, "after {polls} polls");
        assert_eq!(app.provider.effects(), 1, "after {polls} polls");
        let rides = "SELECT count(*) FROM rides";
        assert_eq!(db.number(rides).await, i64::from(dropped), "after {polls} polls");
        let steps = "SELECT count(*) FROM steps";
        assert_eq!(db.number(steps).await, i64::from(dropped), "after {polls} polls");
    }
    println!("dropped at {dropped} awaits");
    // Of a busy machine several awaits are one.
    assert!(dropped >= 3, "{dropped}");
}
