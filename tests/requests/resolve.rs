//! `Engine::resolve`: a webhook or an operator resolves a request whose outcome is unknown. Over every store.

use crate::support::work::*;
use crate::support::*;
use atomic_phases::engine::{CallError, Resolution, ResolveError, Resolved};
use atomic_phases::store::{Postgres, Status, StoreError};
use atomic_phases::{Engine, Outcome, Reply};

on_every_store! {
    a_resolution_from_outside_settles_an_unknown_outcome_once,
    a_webhook_behind_the_answer_is_told_that_the_request_has_finished,
    a_late_resolution_of_an_earlier_call_changes_nothing,
    g2_a_resolution_of_a_request_is_not_taken_for_one_of_the_next_under_its_key,
    an_operator_closes_a_request_by_hand,
    a_reply_with_a_header_that_is_not_stored_is_known_again,
    a_resolution_that_fits_nothing_is_refused,
}

async fn a_resolution_from_outside_settles_an_unknown_outcome_once<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let (engine, another) = (engine(&db, &app), engine(&db.another().await, &app));
    let found = |id: &str| Charge { id: id.into(), padding: String::new() };
    let say = async |engine: &TestEngine<S>, id: &str| {
        let word = Resolution::executed("notified", &found(id)).unwrap();
        engine.resolve(&scope(), &key("k"), word).await
    };
    // A webhook that arrives before the call's own answer.
    let mut gate = app.provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key("k"), notify(Trouble::None));
    let call = tokio::spawn(call.__call_in_place());
    let waiting = gate.recv().await.unwrap();
    let early = say(&another, "effect-1").await;
    assert!(matches!(early, Err(ResolveError::InProgress { .. })), "{early:?}");
    let closing = Resolution::finish(Reply::text(200, "by hand"));
    let early = another.resolve(&scope(), &key("k"), closing).await;
    let Err(ResolveError::InProgress { retry_after }) = early else { panic!("{early:?}") };
    assert!(retry_after > std::time::Duration::from_secs(30), "what is left: {retry_after:?}");
    call.abort();
    let _ = call.await;
    drop(waiting);
    app.provider.stop_no_more();
    db.let_time_pass().await;
    let early = say(&another, "effect-1").await;
    let Err(ResolveError::InProgress { retry_after }) = early else { panic!("{early:?}") };
    assert!(
        retry_after >= std::time::Duration::from_secs(1),
        "its lease has ended: {retry_after:?}"
    );
    assert_eq!(completed(&engine).await.unknown, 1);

    assert_eq!(say(&another, "effect-1").await.unwrap(), Resolved::Applied);
    assert_eq!(say(&engine, "effect-1").await.unwrap(), Resolved::Already);
    let other = say(&engine, "effect-2").await;
    assert!(matches!(other, Err(ResolveError::Conflict(_))), "{other:?}");
    let attempt = status(&engine, "k").await.attempt;
    let denied = Resolution::not_executed("notified", attempt);
    let denied = engine.resolve(&scope(), &key("k"), denied).await;
    assert!(matches!(denied, Err(ResolveError::Conflict(_))), "{denied:?}");

    assert_eq!(completed(&engine).await.finished, 1);
    assert_eq!(say(&engine, "effect-1").await.unwrap(), Resolved::Already, "finished by now");
    let other = say(&engine, "effect-2").await;
    assert!(matches!(other, Err(ResolveError::Conflict(_))), "{other:?}");
    let reply = finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await).reply;
    assert_eq!(reply.bytes(), b"notified effect-1");
    assert_eq!(app.provider.effects(), 1);
}

// A provider whose webhook gets a conflict delivers it for days, and then ends the subscription.
async fn a_webhook_behind_the_answer_is_told_that_the_request_has_finished<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let (a_ride, a_note) = (key("ride"), key("note"));
    finished(engine.call(&scope(), &a_ride, book(20)).await);
    finished(engine.call(&scope(), &a_note, notify(Trouble::None)).await);
    let say = async |key, phase, id: &str| {
        let charge = Charge { id: id.into(), padding: String::new() };
        let word = Resolution::executed(phase, &charge).unwrap();
        engine.resolve(&scope(), key, word).await.unwrap()
    };
    // The charge went with the last commit, and its output is not kept.
    assert_eq!(say(&a_ride, "charged", "effect-1").await, Resolved::Finished);
    assert_eq!(say(&a_note, "notified", "effect-2").await, Resolved::Already);
}

async fn a_late_resolution_of_an_earlier_call_changes_nothing<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let unknown = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    let first = status(&engine, "k").await.attempt;
    let say = async |attempt| {
        let word = Resolution::not_executed("notified", attempt);
        engine.resolve(&scope(), &key("k"), word).await
    };
    assert_eq!(say(first).await.unwrap(), Resolved::Applied);
    assert_eq!(say(first).await.unwrap(), Resolved::Already);
    let contrary = Resolution::executed("notified", &1).unwrap();
    let contrary = engine.resolve(&scope(), &key("k"), contrary).await;
    assert!(matches!(contrary, Err(ResolveError::Conflict(_))), "{contrary:?}");
    assert_eq!(completed(&engine).await.unknown, 1, "called again, unknown again");
    let late = say(first).await;
    assert!(!matches!(late, Ok(Resolved::Applied)), "the second call may have had its effect");
    assert_eq!(status(&engine, "k").await.status, Status::Unknown);
    assert_eq!(say(first + 1).await.unwrap(), Resolved::Applied);
    assert_eq!(completed(&engine).await.unknown, 1, "and once more");
    // The last resolution names another call by now, and was written because the first had no effect: the webhook of the
    // first is delivered again, and needs no further delivery.
    assert_eq!(say(first).await.unwrap(), Resolved::Already);
    assert_eq!(say(first + 1).await.unwrap(), Resolved::Already);
    let of_no_call = say(first + 3).await;
    assert!(matches!(of_no_call, Err(ResolveError::Conflict(_))), "{of_no_call:?}");
    assert_eq!(status(&engine, "k").await.status, Status::Unknown);
    assert_eq!(say(first + 2).await.unwrap(), Resolved::Applied);
}

/// A provider delivers a webhook for days. By then the request has ended, and its key has another request, also in
/// its first attempt.
async fn g2_a_resolution_of_a_request_is_not_taken_for_one_of_the_next_under_its_key<S: TestDb>(
    db: S,
) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let say = async |word| engine.resolve(&scope(), &key("k"), word).await;
    let ask = async || {
        let unknown = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
        assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
        status(&engine, "k").await
    };
    let first = ask().await;
    let closing = Resolution::finish(Reply::text(200, "by hand")).of_request(first.request_id);
    assert_eq!(say(closing).await.unwrap(), Resolved::Applied);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    let next = ask().await;
    assert_ne!(first.request_id, next.request_id);
    assert_eq!((first.attempt, app.provider.effects()), (next.attempt, 2), "as each other");

    let found = Charge { id: "effect-1".into(), padding: String::new() };
    for word in [
        Resolution::not_executed("notified", first.attempt),
        Resolution::executed("notified", &found).unwrap(),
        Resolution::finish(Reply::text(200, "by hand")),
        Resolution::retry(),
    ] {
        let late = say(word.of_request(first.request_id)).await;
        assert!(matches!(late, Err(ResolveError::AnotherRequest)), "{late:?}");
    }
    assert_eq!(status(&engine, "k").await.status, Status::Unknown, "nothing was written");
    assert_eq!((completed(&engine).await.unknown, app.provider.effects()), (0, 2));
    let own = Resolution::executed("notified", &found).unwrap().of_request(next.request_id);
    assert_eq!(say(own).await.unwrap(), Resolved::Applied);
    assert_eq!((completed(&engine).await.finished, app.provider.effects()), (1, 2));
}

async fn an_operator_closes_a_request_by_hand<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let unknown = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    let close = async |text: &str| {
        let word = Resolution::finish(Reply::text(200, text));
        engine.resolve(&scope(), &key("k"), word).await
    };
    assert_eq!(close("refunded by hand").await.unwrap(), Resolved::Applied);
    assert_eq!(close("refunded by hand").await.unwrap(), Resolved::Already);
    assert!(matches!(close("otherwise").await, Err(ResolveError::Conflict(_))));
    let told = finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
    assert_eq!((told.reply.bytes(), told.replayed), (&b"refunded by hand"[..], true));
}

async fn a_reply_with_a_header_that_is_not_stored_is_known_again<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let unknown = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    let close = async |at: &str| {
        let reply = Reply::text(200, "by hand").header("cache-control", "no-store");
        let word = Resolution::finish(reply.header("location", at));
        engine.resolve(&scope(), &key("k"), word).await
    };
    assert_eq!(close("/rides/1").await.unwrap(), Resolved::Applied);
    assert_eq!(close("/rides/1").await.unwrap(), Resolved::Already);
    let other = close("/rides/2").await;
    assert!(matches!(other, Err(ResolveError::Conflict(_))), "the stored lines differ: {other:?}");
}

async fn a_resolution_that_fits_nothing_is_refused<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let say = async |name: &str, word| engine.resolve(&scope(), &key(name), word).await;
    assert!(matches!(say("none", Resolution::retry()).await, Err(ResolveError::NoSuchKey)));
    let unknown = engine.call(&scope(), &key("k"), troubled(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    for phase in ["booked", "answered", "no_such_phase"] {
        let refused = say("k", Resolution::not_executed(phase, 1)).await;
        let refused = refused.unwrap_err();
        let fits = matches!(refused, ResolveError::NotThatPhase | ResolveError::Conflict(_));
        assert!(fits, "{phase}: {refused:?}");
    }
    let other = say("k", Resolution::executed("charged", &"ch_1").unwrap()).await;
    assert!(matches!(other, Err(ResolveError::OtherType { .. })), "no Charge: {other:?}");
    let bad = say("k", Resolution::finish(Reply::text(99, ""))).await;
    assert!(matches!(bad, Err(ResolveError::NotStorable)), "{bad:?}");
    assert_eq!(status(&engine, "k").await.status, Status::Unknown, "nothing was written");
    let strange: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Notify>().build().unwrap();
    let refused =
        strange.resolve(&scope(), &key("k"), Resolution::not_executed("charged", 1)).await;
    assert!(matches!(refused, Err(ResolveError::NotKnownHere(_))), "{refused:?}");
    // Nor for the next call, if another call may have been made.
    db.sql("UPDATE atomic_phases_keys SET open_intent = 'another'").await;
    let charge = Charge { id: "ch_1".to_owned(), padding: String::new() };
    let executed = Resolution::executed("charged", &charge).unwrap();
    for word in [Resolution::not_executed("charged", 1), executed] {
        let refused = say("k", word).await;
        let refused = refused.unwrap_err();
        let fits = matches!(refused, ResolveError::NotThatPhase | ResolveError::NotKnownHere(_));
        assert!(fits, "{refused:?}");
    }
    assert_eq!(status(&engine, "k").await.status, Status::Unknown, "nothing was written");
}

/// If another transaction keeps a row locked, `resolve` answers that it is in use. A holder's own write of such a
/// row waits for nothing in the database either.
#[tokio::test(flavor = "multi_thread")]
async fn g16_neither_a_resolution_nor_a_holder_waits_for_a_locked_row_in_the_database() {
    use diesel_async::SimpleAsyncConnection;
    let db = Postgres::fresh().await;
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("k"), notify(Trouble::None)).into_future());
    let in_the_call = gate.recv().await.unwrap();
    let mut holder = crate::support::db::pg(&crate::support::db::url_of(&db)).await;
    let lock = "BEGIN; SELECT 1 FROM atomic_phases_keys FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    app.provider.stop_no_more();
    in_the_call.send(()).unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock'";
    while !call.is_finished() {
        assert_eq!(db.number(waiting).await, 0);
    }
    let told = call.await.unwrap();
    assert!(matches!(told, Err(CallError::Unavailable(StoreError::Locked))), "{told:?}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.unknown, 1, "its outcome was not written");
    holder.batch_execute(lock).await.unwrap();
    for word in [Resolution::finish(Reply::new(204)), Resolution::not_executed("notified", 1)] {
        let told = engine.resolve(&scope(), &key("k"), word).await;
        assert!(matches!(told, Err(ResolveError::InProgress { .. })), "{told:?}");
        assert_eq!(db.number(waiting).await, 0);
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    let word = Resolution::finish(Reply::new(204));
    assert_eq!(engine.resolve(&scope(), &key("k"), word).await.unwrap(), Resolved::Applied);
    assert_eq!(app.provider.effects(), 1);
}
