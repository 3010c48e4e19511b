//! A request from its first call to its replay, with every way for a phase to end in between.

use std::time::Duration;

use crate::support::*;
use atomic_phases::config::{Limits, OnDuplicate, Quota};
use atomic_phases::engine::{
    BuildError, EngineBuilder, FailureCause, Resolution, Resolved, Unregistered,
};
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::phase::{DerivedKey, Flow, Reconciled};
use atomic_phases::store::{PoolSettings, StoreError, WatchedConnection};
use atomic_phases::worker::{Completer, Reconciler, WorkerConfig};
use atomic_phases::{
    Batch, CallError, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Postgres, Reply,
    RequestContext, Scope, Sqlite, Tx, atomic_phases,
};

on_every_store! {
    g8_a_replay_has_the_same_status_headers_and_bytes,
    g4_a_first_phase_that_fails_leaves_nothing,
    g1_a_retry_resumes_after_the_last_committed_phase,
    a_failure_in_the_last_phase_does_not_repeat_the_charge_or_its_other_phases,
    wire_22_a_rejection_is_stored_and_its_writes_are_not,
    an_early_reply_keeps_the_writes_of_its_phase,
    wire_27_a_panic_is_a_retryable_failure,
    g4_h6_a_swallowed_sql_error_is_not_a_commit,
    g4_h7_a_phase_that_ends_its_transaction_is_found_out,
    a_nested_transaction_is_a_savepoint_and_may_fail,
    g18_staged_jobs_exist_exactly_if_their_phase_committed,
    g5_each_attempt_sees_the_same_request_context_and_outputs,
    g9_another_request_under_the_key_is_told_in_every_state,
    wire_70_scopes_are_independent,
    wire_38_an_expired_key_begins_a_new_request,
    wire_77_a_reply_over_the_cap_is_not_retained_and_not_run_again,
    a_reply_or_output_that_cannot_be_stored_is_a_misuse_that_says_why,
    g5_an_output_that_does_not_come_back_is_refused_before_the_commit,
    g17_an_output_that_never_comes_back_is_a_dead_letter_with_its_reason,
    g2_after_a_call_an_output_that_does_not_come_back_is_unknown_until_it_is_told,
    g4_an_error_is_forgiven_by_a_savepoint_and_by_nothing_else,
    g5_the_time_of_creation_is_the_same_in_each_attempt,
    g16_an_expired_key_counts_against_no_quota,
    g16_a_quota_is_exact_in_a_process_and_almost_between_two,
    g16_requests_without_a_key_hide_no_key_from_a_quota,
    caps_name_the_limit_and_nothing_runs,
    g11_past_the_window_no_call_is_repeated,
    g17_a_call_that_had_no_effect_is_made_again_after_whatever_time,
    g17_the_attempt_cap_ends_in_a_dead_letter,
    g2_an_at_most_once_call_is_never_made_twice,
    g2_at_the_attempt_cap_too_an_open_intent_is_unknown_and_no_dead_letter,
    g2_what_certainly_did_not_happen_may_be_tried_again,
    unknown_from_an_idempotent_phase_is_left_alone,
    graceful_shutdown_releases_the_row_for_another_node,
    operators_see_why_a_request_stopped,
    migrations_go_up_and_down_and_up,
}

async fn g8_a_replay_has_the_same_status_headers_and_bytes<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(first.reply.status(), 201);
    assert!(!first.replayed);
    for _ in 0..3 {
        let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
        assert!(again.replayed);
        assert_eq!(again.reply, first.reply);
        assert_eq!(again.expires_at, first.expires_at);
    }
    assert_eq!(app.provider.effects(), 1);
    assert_eq!(app.bodies(), [1, 1, 1]);
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1);
    assert_eq!(db.text("SELECT recovery_point FROM atomic_phases_keys").await, "finished");
}

async fn g4_a_first_phase_that_fails_leaves_nothing<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for trouble in [Trouble::RetryFirst, Trouble::PanicFirst] {
        let cause = failed(engine.call(&scope(), &key("k"), troubled(trouble)).await);
        assert!(matches!(
            cause,
            FailureCause::Phase { phase: "booked", reason: "asked for" }
                | FailureCause::Panic { phase: "booked" }
        ));
        assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
        assert_eq!(db.number("SELECT count(*) FROM rides").await, 0);
    }
    // Nothing happened, so even other parameters are a first request.
    finished(engine.call(&scope(), &key("k"), book(77)).await);
}

async fn g1_a_retry_resumes_after_the_last_committed_phase<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let cause = failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    assert_eq!(cause, FailureCause::Phase { phase: "charged", reason: "asked for" });
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "failed_retryable");
    assert_eq!(db.text("SELECT recovery_point FROM atomic_phases_keys").await, "booked");
    // The retry comes without the switch, which is no part of the request.
    let done = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(done.reply.status(), 201);
    assert_eq!(app.bodies(), [1, 2, 1]);
    let calls = app.provider.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1], "the same derived key");
    assert_eq!(app.provider.effects(), 1);
}

async fn a_failure_in_the_last_phase_does_not_repeat_the_charge_or_its_other_phases<S: TestDb>(
    db: S,
) {
    for (trouble, name) in [(Trouble::RetryLastOnce, "a"), (Trouble::PanicLastOnce, "b")] {
        let app = App::default();
        let engine = engine(&db, &app);
        failed(engine.call(&scope(), &key(name), troubled(trouble)).await);
        // The foreign result was to ride in the last phase's commit: the release took it along.
        let point = format!(
            "SELECT recovery_point FROM atomic_phases_keys WHERE idempotency_key = '{name}'"
        );
        assert_eq!(db.text(&point).await, "charged");
        finished(engine.call(&scope(), &key(name), book(20)).await);
        assert_eq!(app.bodies(), [1, 1, 2]);
        assert_eq!(app.provider.calls().len(), 1);
    }
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 2);
}

async fn wire_22_a_rejection_is_stored_and_its_writes_are_not<S: TestDb>(db: S) {
    let cases = [
        (Trouble::RejectFirst, 402, 0, 0),
        (Trouble::RejectForeign, 402, 1, 1),
        (Trouble::RejectLast, 409, 1, 1),
    ];
    for (trouble, status, rides, effects) in cases {
        db.sql("DELETE FROM rides").await;
        let app = App::default();
        let engine = engine(&db, &app);
        let key = key(&format!("{trouble:?}"));
        let first = finished(engine.call(&scope(), &key, troubled(trouble)).await);
        assert_eq!(first.reply.status(), status);
        assert!(!first.replayed);
        let bodies = app.bodies();
        let again = finished(engine.call(&scope(), &key, book(20)).await);
        assert!(again.replayed);
        assert_eq!(again.reply, first.reply);
        // A rejected first phase ran once: its second reservation only stores the reply.
        assert_eq!(app.bodies(), bodies);
        assert_eq!(bodies[0], 1);
        assert_eq!(db.number("SELECT count(*) FROM rides").await, rides, "{trouble:?}");
        assert_eq!(app.provider.effects(), effects);
    }
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
}

async fn an_early_reply_keeps_the_writes_of_its_phase<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let done = finished(engine.call(&scope(), &key("k"), troubled(Trouble::FinishEarly)).await);
    assert_eq!((done.reply.status(), done.reply.bytes()), (200, &b"enough"[..]));
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 1);
    assert_eq!(app.bodies(), [1, 0, 0]);
    assert!(finished(engine.call(&scope(), &key("k"), book(20)).await).replayed);
}

async fn wire_27_a_panic_is_a_retryable_failure<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let cause = failed(engine.call(&scope(), &key("k"), troubled(Trouble::PanicForeignOnce)).await);
    assert_eq!(cause, FailureCause::Panic { phase: "charged" });
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 1);
}

async fn g4_h6_a_swallowed_sql_error_is_not_a_commit<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let cause = failed(engine.call(&scope(), &key("k"), troubled(Trouble::SwallowError)).await);
    let FailureCause::Misuse { phase: "answered", rule } = cause else { panic!("{cause:?}") };
    assert!(rule.contains("savepoint"), "{rule}");
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 0);
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "failed_retryable");
}

async fn g4_h7_a_phase_that_ends_its_transaction_is_found_out<S: TestDb>(db: S) {
    for trouble in [Trouble::RawCommit, Trouble::RawRollback] {
        let app = App::default();
        let engine = engine(&db, &app);
        let key = key(&format!("{trouble:?}"));
        let cause = failed(engine.call(&scope(), &key, troubled(trouble)).await);
        let FailureCause::Misuse { phase: "answered", rule } = cause else { panic!("{cause:?}") };
        assert!(rule.contains("the engine commits"), "{rule}");
        let staged = "SELECT count(*) FROM atomic_phases_staged_jobs";
        assert_eq!(db.number(staged).await, 0, "the jobs were not committed on their own");
        let point = format!(
            "SELECT recovery_point FROM atomic_phases_keys WHERE idempotency_key = '{trouble:?}'"
        );
        assert_ne!(db.text(&point).await, "finished");
    }
}

async fn a_nested_transaction_is_a_savepoint_and_may_fail<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), troubled(Trouble::NestedFailure)).await);
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
}

async fn g18_staged_jobs_exist_exactly_if_their_phase_committed<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let jobs = "SELECT count(*) FROM atomic_phases_staged_jobs";
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryLastOnce)).await);
    assert_eq!(db.number(jobs).await, 0);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(db.number(jobs).await, 2);
    let first = "SELECT name FROM atomic_phases_staged_jobs ORDER BY position LIMIT 1";
    assert_eq!(db.text(first).await, "receipt");
}

async fn g5_each_attempt_sees_the_same_request_context_and_outputs<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.max_attempts(3));
    for attempt in 1..=3 {
        let outcome = engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await;
        match attempt {
            3 => assert!(matches!(outcome, Ok(Outcome::DeadLetter)), "{outcome:?}"),
            _ => drop(failed(outcome)),
        }
        db.let_time_pass().await;
    }
    // What the row holds decides, not what the retry says beside the request.
    let other_engine = engine_with(&db.another().await, &app, |b| b.max_attempts(3));
    assert!(matches!(
        other_engine.call(&scope(), &key("k"), book(20)).await,
        Ok(Outcome::DeadLetter)
    ));
    assert_eq!(app.provider.calls().len(), 3);
    assert_eq!(app.provider.effects(), 1, "one key, and the same parameters each time");
}

async fn g9_another_request_under_the_key_is_told_in_every_state<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mismatch = async |name: &str| {
        let outcome = engine.call(&scope(), &key(name), book(21)).await;
        assert!(matches!(outcome, Ok(Outcome::Mismatch)), "{name}: {outcome:?}");
        let outcome = engine.call(&scope(), &key(name), notify(Trouble::None)).await;
        assert!(matches!(outcome, Ok(Outcome::Mismatch)), "{name}: {outcome:?}");
    };
    finished(engine.call(&scope(), &key("completed"), book(20)).await);
    mismatch("completed").await;
    failed(engine.call(&scope(), &key("retryable"), troubled(Trouble::RetryForeignAlways)).await);
    mismatch("retryable").await;
    for status in ["pending", "in_progress", "unknown", "dead_letter"] {
        db.sql(&format!(
            "UPDATE atomic_phases_keys SET status = '{status}' WHERE idempotency_key = 'retryable'"
        ))
        .await;
        mismatch("retryable").await;
    }
    assert_eq!(app.provider.effects(), 2);
}

async fn wire_70_scopes_are_independent<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let pairs = [("a:b", "c"), ("a", "b:c"), ("a", "c"), ("b", "c")];
    for (scope, name) in pairs {
        let done = engine.call(&Scope::new(scope).unwrap(), &key(name), book(20)).await;
        assert!(!finished(done).replayed, "{scope} {name}");
    }
    assert_eq!(app.provider.effects(), pairs.len());
    let hostile = ["'; DROP TABLE rides; --", "%_", "$1", "\\", "\u{2019}"];
    for scope in hostile {
        finished(engine.call(&Scope::new(scope).unwrap(), &key("';--"), book(20)).await);
    }
    assert_eq!(app.provider.effects(), pairs.len() + hostile.len());
}

async fn wire_38_an_expired_key_begins_a_new_request<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    // Even another request: to the client the key is unused.
    let again = finished(engine.call(&scope(), &key("k"), book(30)).await);
    assert!(!again.replayed);
    assert_eq!(app.provider.effects(), 2);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 1);

    failed(engine.call(&scope(), &key("open"), troubled(Trouble::RetryForeignAlways)).await);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    let outcome = engine.call(&scope(), &key("open"), book(99)).await;
    assert!(matches!(outcome, Ok(Outcome::Mismatch)), "G15: an unfinished request does not expire");
}

async fn wire_77_a_reply_over_the_cap_is_not_retained_and_not_run_again<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let first = finished(engine.call(&scope(), &key("k"), troubled(Trouble::HugeReply)).await);
    assert_eq!(first.reply.bytes().len(), 3 << 20, "the first client gets it");
    let again = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(again, Ok(Outcome::ReplyNotRetained { status: 200 })), "{again:?}");
    assert_eq!(app.bodies(), [1, 1, 1]);
}

async fn a_reply_or_output_that_cannot_be_stored_is_a_misuse_that_says_why<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for (trouble, says) in
        [(Trouble::HugeOutput, "Limits::outputs"), (Trouble::BadStatus, "200 to 599")]
    {
        let key = key(&format!("{trouble:?}"));
        let cause = failed(engine.call(&scope(), &key, troubled(trouble)).await);
        let FailureCause::Misuse { rule, .. } = cause else { panic!("{cause:?}") };
        assert!(rule.contains(says), "{rule}");
    }
}

async fn caps_name_the_limit_and_nothing_runs<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let huge = Notify { who: "x".repeat(1 << 20), trouble: Trouble::None.into() };
    let refused = engine.call(&scope(), &key("k"), huge).await.unwrap_err();
    assert!(refused.to_string().contains("the limit is 262144"), "{refused}");
    let call = engine.call(&scope(), &key("k"), book(20)).context(&"x".repeat(1 << 20));
    let refused = call.await.unwrap_err();
    assert!(refused.to_string().contains("the limit is 16384"), "{refused}");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
}

async fn g11_past_the_window_no_call_is_repeated<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    let day_ago = match db.text("SELECT created_at FROM atomic_phases_keys").await.contains('-') {
        true => "(SELECT clock_timestamp() - interval '24 hours')",
        false => "advanced_at - 24 * 3600 * 1000",
    };
    db.sql(&format!("UPDATE atomic_phases_keys SET advanced_at = {day_ago}")).await;
    for _ in 0..2 {
        let outcome = engine.call(&scope(), &key("k"), book(20)).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    assert_eq!(app.provider.calls().len(), 1);
    assert_eq!(db.text("SELECT open_intent FROM atomic_phases_keys").await, "charged");
    // The attempt that found the window passed called nothing: the last call is the first attempt's.
    let word = Resolution::not_executed("charged", 1);
    let told = engine.resolve(&scope(), &key("k"), word).await;
    assert!(matches!(told, Ok(Resolved::Applied)), "{told:?}");
}

/// The back-off behind such a word may be longer than the window. What the provider may have forgotten was never
/// there, so it is called again; and what that attempt has called is not repeated past its window.
async fn g17_a_call_that_had_no_effect_is_made_again_after_whatever_time<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ask =
        async || engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await;
    failed(ask().await);
    let day_ago = match db.text("SELECT created_at FROM atomic_phases_keys").await.contains('-') {
        true => "(SELECT clock_timestamp() - interval '24 hours')",
        false => "advanced_at - 24 * 3600 * 1000",
    };
    let a_day_passes = async || {
        db.sql(&format!("UPDATE atomic_phases_keys SET advanced_at = {day_ago}")).await;
    };
    for calls in 1..=2 {
        a_day_passes().await;
        let unknown = ask().await;
        assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
        assert_eq!(app.provider.calls().len(), calls, "G11");
        let attempt = engine.status(&scope(), &key("k")).await.unwrap().unwrap().attempt;
        let word = Resolution::not_executed("charged", attempt);
        let told = engine.resolve(&scope(), &key("k"), word).await;
        assert!(matches!(told, Ok(Resolved::Applied)), "{told:?}");
        a_day_passes().await;
        failed(ask().await);
        assert_eq!(app.provider.calls().len(), calls + 1);
    }
}

async fn g17_the_attempt_cap_ends_in_a_dead_letter<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.max_attempts(2));
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await);
    for _ in 0..2 {
        db.let_time_pass().await;
        let outcome = engine.call(&scope(), &key("k"), book(20)).await;
        assert!(matches!(outcome, Ok(Outcome::DeadLetter)), "{outcome:?}");
    }
    assert_eq!(app.bodies()[1], 2);
    let waiting = engine.check().await.unwrap().waiting;
    assert_eq!((waiting.len(), waiting[0].rows), (1, 1), "and it is visible");
    // Who takes a row over to give it up makes no attempt: two were made, and were cut off.
    for _ in 0..2 {
        let mut gate = app.provider.stop_before_the_effect();
        let call = engine.call(&scope(), &key("cut-off"), book(20));
        let call = tokio::spawn(call.__call_in_place());
        let in_the_call = gate.recv().await.unwrap();
        call.abort();
        assert!(call.await.is_err());
        app.provider.stop_no_more();
        drop(in_the_call);
        db.let_time_pass().await;
    }
    let given_up = engine.call(&scope(), &key("cut-off"), book(20)).await;
    assert!(matches!(given_up, Ok(Outcome::DeadLetter)), "{given_up:?}");
    let counted = "SELECT attempts - forgiven_attempts FROM atomic_phases_keys \
                   WHERE idempotency_key = 'cut-off'";
    assert_eq!(db.number(counted).await, 2);
}

async fn g2_an_at_most_once_call_is_never_made_twice<S: TestDb>(db: S) {
    for trouble in [
        Trouble::RetryForeignOnce,
        Trouble::PanicForeignOnce,
        Trouble::UnknownForeign,
        Trouble::HugeOutput,
        // A reply that cannot be stored.
        Trouble::BadStatus,
    ] {
        let app = App::new(Provider::that_ignores_keys());
        let engine = engine(&db, &app);
        let key = key(&format!("{trouble:?}"));
        for _ in 0..3 {
            let outcome = engine.call(&scope(), &key, notify(trouble)).await;
            assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{trouble:?}: {outcome:?}");
        }
        assert_eq!(app.provider.calls().len(), 1, "{trouble:?}");
    }
    // The holder dies inside of the call: its intent is what the next one finds.
    let app = App::new(Provider::that_ignores_keys());
    let mut gate = app.provider.stop_after_the_effect();
    let dying = engine(&db, &app);
    let call = tokio::spawn(async move {
        let _ = dying.call(&scope(), &key("dead"), notify(Trouble::None)).__call_in_place().await;
    });
    let waiting = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    drop(waiting);
    app.provider.stop_no_more();
    db.let_leases_expire().await;
    let heir = engine(&db, &app);
    for _ in 0..2 {
        let outcome = heir.call(&scope(), &key("dead"), notify(Trouble::None)).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    assert_eq!(app.provider.effects(), 1);
}

async fn g2_at_the_attempt_cap_too_an_open_intent_is_unknown_and_no_dead_letter<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    app.provider.answer_searches();
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(1));
    crate::support::work::dies_in_its_call(&engine, "k", notify(Trouble::None)).await;
    db.let_leases_expire().await;
    let told = engine.call(&scope(), &key("k"), notify(Trouble::None)).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    db.let_time_pass().await;
    assert_eq!(crate::support::work::reconciled(&engine).await.finished, 1);
    assert_eq!(app.provider.calls().len(), 1);
}

async fn g2_what_certainly_did_not_happen_may_be_tried_again<S: TestDb>(db: S) {
    for trouble in [Trouble::RetryFirst, Trouble::NotExecutedOnce] {
        let app = App::default();
        let engine = engine(&db, &app);
        let key = key(&format!("{trouble:?}"));
        failed(engine.call(&scope(), &key, notify(trouble)).await);
        finished(engine.call(&scope(), &key, notify(trouble)).await);
    }
    let app = App::default();
    let engine = engine(&db, &app);
    let rejected = engine.call(&scope(), &key("r"), notify(Trouble::RejectForeign)).await;
    assert_eq!(finished(rejected).reply.status(), 404);
}

async fn unknown_from_an_idempotent_phase_is_left_alone<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for _ in 0..3 {
        let outcome = engine.call(&scope(), &key("k"), troubled(Trouble::UnknownForeign)).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    assert_eq!(app.provider.calls().len(), 1);
}

async fn graceful_shutdown_releases_the_row_for_another_node<S: TestDb>(db: S) {
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let leaving = engine(&db, &app);
    let caller = leaving.clone();
    let call = tokio::spawn(async move { caller.call(&scope(), &key("k"), book(20)).await });
    let in_the_call = gate.recv().await.unwrap();
    let shutdown = tokio::spawn({
        let leaving = leaving.clone();
        async move { leaving.shutdown(std::time::Duration::from_secs(30)).await }
    });
    // It takes no more work, and waits for what it has.
    while !matches!(
        leaving.call(&scope(), &key("other"), book(20)).await,
        Err(CallError::ShuttingDown)
    ) {
        tokio::task::yield_now().await;
    }
    assert!(!shutdown.is_finished());
    in_the_call.send(()).unwrap();
    assert_eq!(failed(call.await.unwrap()), FailureCause::ShuttingDown);
    shutdown.await.unwrap().unwrap();
    app.provider.stop_no_more();
    // Another node resumes at once, behind the phase that was finished.
    let staying = engine(&db.another().await, &app);
    finished(staying.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.bodies()[1], 1 + u32::from(app.provider.calls().len() > 1));
    assert_eq!(app.provider.calls().len(), 1);
}

async fn migrations_go_up_and_down_and_up<S: TestDb>(db: S) {
    if is_distributed::<S>() {
        println!("nothing was shown: tables are distributed behind the migrations that make them");
        return;
    }
    db.migrate().await.unwrap();
    db.revert_migrations().await.unwrap();
    let gone = engine(&db, &App::default()).call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(gone, Err(CallError::Unavailable(_))), "G12: {gone:?}");
    let (one, two) = (db.another().await, db.another().await);
    let (a, b) = tokio::join!(one.migrate(), two.migrate());
    a.unwrap();
    b.unwrap();
    finished(engine(&db, &App::default()).call(&scope(), &key("k"), book(20)).await);
}

/// An output that JSON cannot hold, of a local or a foreign phase.
#[derive(serde::Serialize, serde::Deserialize)]
struct Quote {
    bad: Unfingerprinted<Option<Bad>>,
}

#[derive(Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
enum Bad {
    Local,
    Foreign,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Quoted {
    lines: Vec<Line>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Line {
    rate: f64,
}

fn quoted(is_bad: bool) -> Quoted {
    let rate = if is_bad { f64::NAN } else { 1.5 };
    Quoted { lines: vec![Line { rate: 1.0 }, Line { rate }] }
}

#[atomic_phases(name = "quote", version = 1)]
impl<Db: TestDb> Quote {
    #[phase(commit)]
    async fn began(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        Db::insert_step(tx, "quote", "began").await?;
        Ok(())
    }

    #[phase]
    async fn counted(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Flow<Option<Line>>> {
        Db::insert_step(tx, "quote", "counted").await?;
        let rate = if *self.bad == Some(Bad::Local) { f64::INFINITY } else { 0.5 };
        Ok(Flow::Continue(Some(Line { rate })))
    }

    #[phase(foreign(at_most_once))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Quoted> {
        let ask = async |key: DerivedKey| {
            Ok::<_, PhaseError>(app.provider.call(key.as_str(), "quote").await)
        };
        call.make(ask).await?;
        Ok(quoted(*self.bad == Some(Bad::Foreign)))
    }

    #[reconcile(asked)]
    async fn find(&self) -> PhaseResult<Reconciled<Quoted>> {
        Ok(Reconciled::Executed(quoted(*self.bad == Some(Bad::Foreign))))
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>, quoted: &Quoted) -> PhaseResult<Reply> {
        Db::add_step(batch, "quote", "answered");
        Ok(Reply::text(200, quoted.lines[1].rate.to_string()))
    }
}

fn quotes<S: TestDb>(db: &S, app: &App) -> TestEngine<S> {
    engine_with(db, app, |builder| builder.register::<Quote>())
}

async fn g5_an_output_that_does_not_come_back_is_refused_before_the_commit<S: TestDb>(db: S) {
    let app = App::default();
    let engine = quotes(&db, &app);
    let quote = |bad| Quote { bad: Unfingerprinted(bad) };
    let told = engine.call(&scope(), &key("k"), quote(Some(Bad::Local))).await;
    let cause = failed(told);
    let FailureCause::Phase { phase: "counted", reason } = cause else { panic!("{cause:?}") };
    assert!(
        reason.starts_with("`rate` of the output is a float that is NaN or infinite"),
        "{reason}"
    );
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1, "its writes went with it");
    assert_eq!(app.provider.effects(), 0);
}

/// A request whose foreign phase never returns what can be stored.
#[derive(serde::Serialize, serde::Deserialize)]
struct Appraise {}

#[atomic_phases(name = "appraise", version = 1)]
impl<Db: TestDb> Appraise {
    #[phase(foreign(idempotent))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Quoted> {
        let ask = async |key: DerivedKey| {
            Ok::<_, PhaseError>(app.provider.call(key.as_str(), "appraise").await)
        };
        call.make(ask).await?;
        Ok(quoted(true))
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>, quoted: &Quoted) -> PhaseResult<Reply> {
        Db::add_step(batch, "appraise", "answered");
        Ok(Reply::text(200, quoted.lines[1].rate.to_string()))
    }
}

async fn g17_an_output_that_never_comes_back_is_a_dead_letter_with_its_reason<S: TestDb>(db: S) {
    const ATTEMPTS: u32 = 3;
    let app = App::default();
    let engine =
        engine_with(&db, &app, |builder| builder.register::<Appraise>().max_attempts(ATTEMPTS));
    for _ in 1..ATTEMPTS {
        failed(engine.call(&scope(), &key("k"), Appraise {}).await);
        db.let_time_pass().await;
    }
    let last = engine.call(&scope(), &key("k"), Appraise {}).await;
    assert!(matches!(last, Ok(Outcome::DeadLetter)), "{last:?}");
    // Nothing goes on from there.
    db.let_time_pass().await;
    Completer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let again = engine.call(&scope(), &key("k"), Appraise {}).await;
    assert!(matches!(again, Ok(Outcome::DeadLetter)), "{again:?}");
    assert_eq!((app.provider.calls().len(), app.provider.effects()), (ATTEMPTS as usize, 1));
    let reason = engine.status(&scope(), &key("k")).await.unwrap().unwrap().reason.unwrap();
    assert!(reason.contains("`lines[].rate` of the output is a float that is NaN"), "{reason}");
}

async fn g2_after_a_call_an_output_that_does_not_come_back_is_unknown_until_it_is_told<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    let engine = quotes(&db, &app);
    let bad = || Quote { bad: Unfingerprinted(Some(Bad::Foreign)) };
    let told = engine.call(&scope(), &key("k"), bad()).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    // The reconcile function says the same, and that is no answer either.
    db.let_time_pass().await;
    Reconciler::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "unknown");
    let word = |is_bad| Resolution::executed("asked", &quoted(is_bad)).unwrap();
    assert!(engine.resolve(&scope(), &key("k"), word(true)).await.is_err());
    let _ = engine.resolve(&scope(), &key("k"), word(false)).await.unwrap();
    let done = finished(engine.call(&scope(), &key("k"), bad()).await);
    assert_eq!(done.reply.bytes(), b"1.5");
    assert_eq!(app.provider.calls().len(), 1);
}

async fn operators_see_why_a_request_stopped<S: TestDb>(db: S) {
    if is_memory::<S>() {
        return;
    }
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(1));
    let generous = engine_with(&db, &app, |builder| builder);
    let standing = async |name: &str| engine.status(&scope(), &key(name)).await.unwrap().unwrap();
    failed(generous.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    let released = standing("k").await;
    assert_eq!(released.reason.as_deref(), Some("asked for"));
    assert_eq!((released.open_intent, released.waiting_since), (None, None));
    finished(generous.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(standing("k").await.reason, None);

    app.forget_bodies();
    failed(generous.call(&scope(), &key("p"), troubled(Trouble::PanicForeignOnce)).await);
    assert_eq!(standing("p").await.reason.as_deref(), Some("the phase panicked"));

    let unknown = engine.call(&scope(), &key("u"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    let waits = standing("u").await;
    assert_eq!(waits.reason.as_deref(), Some("asked for"));
    assert_eq!(waits.open_intent.as_deref(), Some("notified"));
    let since = waits.waiting_since.unwrap();
    // A look that finds nothing out changes neither why it waits nor since when.
    db.let_time_pass().await;
    Reconciler::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let waits = standing("u").await;
    assert_eq!(waits.waiting_since, Some(since));
    assert_eq!(waits.reason.as_deref(), Some("asked for"));
    let word = Resolution::not_executed("notified", waits.attempt);
    assert_eq!(engine.resolve(&scope(), &key("u"), word).await.unwrap(), Resolved::Applied);
    assert_eq!(standing("u").await.waiting_since, None);

    let dead = engine.call(&scope(), &key("d"), troubled(Trouble::RetryForeignAlways)).await;
    assert!(matches!(dead, Ok(Outcome::DeadLetter)), "{dead:?}");
    let dead = standing("d").await;
    assert_eq!(dead.reason.as_deref(), Some("gave up at the attempt cap: asked for"));
    assert!(dead.waiting_since.is_some());
    let report = engine.check().await.unwrap();
    let waiting: Vec<_> = report.waiting.iter().map(|rows| (rows.rows, &rows.reason)).collect();
    assert_eq!(waiting, [(1, &dead.reason)]);
}

/// SQL in an order of its own, each with whether its error is swallowed.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Script(Vec<(String, bool)>);

#[atomic_phases(name = "script", version = 1)]
impl<Db: TestDb> Script {
    #[phase(commit)]
    async fn began(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        Db::insert_unique(tx, "taken").await?;
        Ok(())
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        for (sql, swallowed) in &self.0 {
            match diesel_async::SimpleAsyncConnection::batch_execute(tx, sql).await {
                Err(error) if !swallowed => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Reply::new(204))
    }
}

const TAKEN: &str = "INSERT INTO unique_things VALUES ('taken')";
const STEP: &str = "INSERT INTO steps VALUES ('k', 'written')";

async fn g4_an_error_is_forgiven_by_a_savepoint_and_by_nothing_else<S: TestDb>(db: S) {
    // The store in memory reads no SQL of a user's.
    if std::any::type_name::<S>().contains("Memory") {
        return;
    }
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.register::<Script>());
    let mut scripts: Vec<(&[(&str, bool)], i64)> = vec![
        (
            &[
                ("SAVEPOINT mine", false),
                (TAKEN, true),
                ("ROLLBACK TO SAVEPOINT mine", false),
                (STEP, false),
            ],
            1,
        ),
        (
            &[
                ("SAVEPOINT mine", false),
                (TAKEN, true),
                ("RELEASE SAVEPOINT mine", true),
                (STEP, true),
            ],
            0,
        ),
        (
            &[
                (STEP, false),
                ("SAVEPOINT mine", false),
                ("NONSENSE", true),
                ("ROLLBACK TO mine; NONSENSE", true),
            ],
            0,
        ),
        (&[(STEP, false), (TAKEN, true)], 0),
        (&[(TAKEN, true), (STEP, true)], 0),
        (&[(TAKEN, true), (STEP, true), ("SAVEPOINT late", true), ("ROLLBACK TO late", true)], 0),
    ];
    if !is_postgres::<S>() && !is_mysql::<S>() {
        // These end the transaction by themselves: what follows would commit on its own.
        const TAKEN_OR: &str = "INSERT OR ROLLBACK INTO unique_things VALUES ('taken')";
        scripts.push((&[(STEP, false), (TAKEN_OR, true), (STEP, true)], 0));
        scripts.push((
            &[(STEP, false), (TAKEN_OR, true), ("BEGIN", true), (STEP, true), ("COMMIT", true)],
            0,
        ));
        db.sql("CREATE TRIGGER no BEFORE INSERT ON rides BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
            .await;
        scripts.push((&[("INSERT INTO rides VALUES ('r', 1)", true), (STEP, true)], 0));
    }
    for (script, written) in scripts {
        db.sql("DELETE FROM steps; DELETE FROM unique_things; DELETE FROM atomic_phases_keys")
            .await;
        let request = Script(script.iter().map(|(sql, end)| (sql.to_string(), *end)).collect());
        let told = engine.call(&scope(), &key("k"), request).await;
        assert_eq!(db.number("SELECT count(*) FROM steps").await, written, "{script:?}: {told:?}");
        match written {
            0 => assert!(matches!(failed(told), FailureCause::Misuse { .. }), "{script:?}"),
            _ => assert_eq!(finished(told).reply.status(), 204),
        }
        assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);
    }
}

#[derive(diesel::QueryableByName)]
struct Named {
    #[diesel(sql_type = diesel::sql_types::Text)]
    #[allow(dead_code)]
    name: String,
}

/// What a phase does with its transaction that it must not.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
enum Abuse {
    SwallowErrorOfRows,
    DropNestedHalfWay,
    SwallowTwoInOneText,
    SwallowTwoInOneQuery,
    ReturnTwoInOneText,
}

const DEBIT: &str = "INSERT INTO unique_things VALUES ('debit')";
const TWO: &str =
    "INSERT INTO unique_things VALUES ('debit'); INSERT INTO unique_things VALUES ('credit')";

/// On diesel's own types, so once for each store.
macro_rules! g4_an_abuse_of_the_transaction_is_not_a_commit {
    ($module:ident, $store:ty) => {
        mod $module {
            use diesel::result::Error;
            use diesel::sql_query;

            use super::*;

            #[derive(serde::Serialize, serde::Deserialize)]
            struct Abuses(Abuse);

            #[atomic_phases(name = "abuses", version = 1)]
            impl Abuses {
                #[phase]
                async fn answered(&self, tx: &mut Tx<'_, $store>) -> PhaseResult<Reply> {
                    use diesel_async::{AsyncConnection, RunQueryDsl};
                    <$store>::insert_unique(tx, "first").await?;
                    match self.0 {
                        Abuse::SwallowErrorOfRows => {
                            let again = "INSERT INTO unique_things VALUES ('new'), ('first') \
                                RETURNING name";
                            assert!(sql_query(again).load::<Named>(tx).await.is_err());
                        }
                        Abuse::DropNestedHalfWay => {
                            let (half, is_half) = tokio::sync::oneshot::channel();
                            let moved = tx.conn().transaction::<(), Error, _>(async |conn| {
                                sql_query(DEBIT).execute(conn).await?;
                                half.send(()).unwrap();
                                // The credit never comes.
                                std::future::pending().await
                            });
                            tokio::select! {
                                _ = moved => unreachable!(),
                                is_half = is_half => is_half.unwrap(),
                            }
                        }
                        Abuse::SwallowTwoInOneText => {
                            assert!(sql_query(TWO).execute(tx).await.is_err());
                        }
                        Abuse::SwallowTwoInOneQuery => {
                            assert!(sql_query(TWO).load::<Named>(tx).await.is_err());
                        }
                        Abuse::ReturnTwoInOneText => drop(sql_query(TWO).execute(tx).await?),
                    }
                    Ok(Reply::new(204))
                }
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn g4_an_abuse_of_the_transaction_is_not_a_commit() {
                let db = <$store>::fresh().await;
                let engine = engine_with(&db, &App::default(), |b| b.register::<Abuses>());
                for (abuse, says) in [
                    (Abuse::SwallowErrorOfRows, Some("use a savepoint")),
                    (Abuse::DropNestedHalfWay, Some("dropped half-way")),
                    (Abuse::SwallowTwoInOneText, Some("use a savepoint")),
                    (Abuse::SwallowTwoInOneQuery, Some("use a savepoint")),
                    (Abuse::ReturnTwoInOneText, None),
                ] {
                    let key = key(&format!("{abuse:?}"));
                    let told = engine.call(&scope(), &key, Abuses(abuse)).await;
                    match (says, told) {
                        (Some(says), told) => {
                            let FailureCause::Misuse { rule, .. } = failed(told) else {
                                panic!("{abuse:?}")
                            };
                            assert!(rule.contains(says), "{abuse:?}: {rule}");
                        }
                        (None, told) => assert!(told.is_err(), "{abuse:?}: {told:?}"),
                    }
                    let things = "SELECT count(*) FROM unique_things";
                    assert_eq!(db.number(things).await, 0, "{abuse:?}");
                }
                // And the connection is good for a nested transaction that ends.
                let request = troubled(Trouble::NestedFailure);
                finished(engine.call(&scope(), &key("next"), request).await);
            }
        }
    };
}

g4_an_abuse_of_the_transaction_is_not_a_commit!(abuse_on_postgres, Postgres);
g4_an_abuse_of_the_transaction_is_not_a_commit!(abuse_on_sqlite, Sqlite);
#[cfg(feature = "mysql")]
g4_an_abuse_of_the_transaction_is_not_a_commit!(abuse_on_mariadb, atomic_phases::Mysql);

/// G4: what an application sets on the connection stays, and switches no watch off.
#[tokio::test(flavor = "multi_thread")]
async fn g4_an_instrumentation_of_the_applications_switches_no_watch_off() {
    use diesel_async::AsyncConnection;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let db = <Sqlite as TestDb>::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    let seen = std::sync::Arc::new(AtomicUsize::new(0));
    let seeing = seen.clone();
    let count = move |_: diesel::connection::InstrumentationEvent<'_>| {
        seeing.fetch_add(1, Ordering::Relaxed);
    };
    db.connection().await.unwrap().set_instrumentation(count);
    let cause = failed(engine.call(&scope(), &key("k"), troubled(Trouble::SwallowError)).await);
    assert!(matches!(cause, FailureCause::Misuse { phase: "answered", .. }), "{cause:?}");
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 0);
    assert!(seen.load(Ordering::Relaxed) > 10, "and it still sees everything");
    // diesel's own type is to be had outside of phases.
    let lent = |conn: &mut WatchedConnection| Ok(conn.sqlite().is_some());
    assert!(db.connection().await.unwrap().spawn_blocking(lent).await.unwrap());
}

/// Tells the provider when it was created, from a batch or from a transaction.
#[derive(serde::Serialize, serde::Deserialize)]
struct Dated;

#[atomic_phases(name = "dated", version = 1)]
impl<Db: TestDb> Dated {
    #[phase]
    async fn began(&self, batch: &mut Batch<'_, Db>, ctx: &RequestContext) -> PhaseResult<String> {
        Db::add_step(batch, "dated", "began");
        Ok(ctx.created_at().to_rfc3339())
    }

    #[phase(foreign(idempotent))]
    async fn told(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<()> {
        let now = ctx.created_at().to_rfc3339();
        call.make(async |key| Ok::<_, PhaseError>(app.provider.call(key.as_str(), &now).await))
            .await?;
        match ctx.attempt() {
            1 => Err(PhaseError::retryable("asked for")),
            _ => Ok(()),
        }
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Db>,
        ctx: &RequestContext,
        began: &String,
    ) -> PhaseResult<Reply> {
        Db::add_step(batch, "dated", "answered");
        Ok(Reply::json(200, &[began, &ctx.created_at().to_rfc3339()])?)
    }
}

async fn g5_the_time_of_creation_is_the_same_in_each_attempt<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.register::<Dated>());
    // The first asks the database for the time; what follows carries it on, with more digits.
    for name in ["a", "b", "c"] {
        failed(engine.call(&scope(), &key(name), Dated).await);
        let done = finished(engine.call(&scope(), &key(name), Dated).await);
        let [first, second]: [String; 2] = serde_json::from_slice(done.reply.bytes()).unwrap();
        assert_eq!(first, second);
        let status = engine.status(&scope(), &key(name)).await.unwrap().unwrap();
        assert_eq!(first, status.created_at.to_rfc3339());
    }
    assert_eq!(app.provider.calls().len(), 6);
    assert_eq!(app.provider.effects(), 3, "one key, and the same parameters each time");
}

async fn g16_an_expired_key_counts_against_no_quota<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.quota(Quota::default().keys(1)));
    finished(engine.call(&scope(), &key("old"), book(20)).await);
    for name in ["new", "old"] {
        let refused = engine.call(&scope(), &key("other"), book(20)).await;
        assert!(matches!(refused, Err(CallError::TooManyKeys { limit: 1 })), "{refused:?}");
        db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
        assert!(!finished(engine.call(&scope(), &key(name), book(20)).await).replayed);
    }
}

async fn g16_a_quota_is_exact_in_a_process_and_almost_between_two<S: TestDb>(db: S) {
    let app = App::default();
    let limited = |db: &S| engine_with(db, &app, |builder| builder.quota(Quota::default().keys(5)));
    let (one, other) = (limited(&db), limited(&db.another().await));
    let flood = async |engines: &[&TestEngine<S>], prefix: &str| {
        let calls: Vec<_> = (0..40)
            .map(|n| {
                let engine = engines[n % engines.len()].clone();
                let name = key(&format!("{prefix}-{n}"));
                tokio::spawn(async move { engine.call(&scope(), &name, book(20)).await })
            })
            .collect();
        let mut created = 0;
        for call in calls {
            match call.await.unwrap() {
                Err(CallError::TooManyKeys { limit: 5 }) => {}
                outcome => {
                    finished(outcome);
                    created += 1;
                }
            }
        }
        created
    };
    let rows = "SELECT count(*) FROM atomic_phases_keys";
    assert_eq!(flood(&[&one], "one").await, 5);
    assert_eq!(db.number(rows).await, 5);
    assert_eq!(flood(&[&one, &other], "none").await, 0);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    // Each may be creating two where the other counts.
    let created = flood(&[&one, &other], "both").await;
    assert!((5..=7).contains(&created), "{created}");
    assert_eq!(db.number(rows).await, 5 + created);
}

/// More of them than a count passes over, and a key that sorts behind theirs.
async fn g16_requests_without_a_key_hide_no_key_from_a_quota<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.quota(Quota::default().keys(2)));
    finished(engine.call(&scope(), &key("~~last"), book(20)).await);
    db.sql(&format!(
        "CREATE TABLE keyless AS SELECT k.* FROM atomic_phases_keys AS k, {}; \
         UPDATE keyless SET idempotency_key = '~keyless:' || random(); \
         INSERT INTO atomic_phases_keys SELECT * FROM keyless; \
         DROP TABLE keyless",
        numbers::<S>(10_100)
    ))
    .await;
    finished(engine.call(&scope(), &key("first"), book(20)).await);
    let refused = engine.call(&scope(), &key("third"), book(20)).await;
    assert!(matches!(refused, Err(CallError::TooManyKeys { limit: 2 })), "{refused:?}");
}

#[tokio::test]
async fn numbers_that_cannot_work_are_refused_with_their_bounds() {
    let db = Sqlite::connect(":memory:").await.unwrap();
    let (zero, ever, second) = (Duration::ZERO, Duration::MAX, Duration::from_secs(1));
    type Builder = EngineBuilder<Sqlite, (), Unregistered>;
    type Set = Box<dyn Fn(Builder) -> Builder>;
    let limits = |set: fn(&mut Limits)| -> Set {
        let mut limits = Limits::default();
        set(&mut limits);
        Box::new(move |builder| builder.limits(limits))
    };
    let quota = |quota: Quota| -> Set { Box::new(move |builder| builder.quota(quota)) };
    let cases: Vec<(&str, Set)> = vec![
        ("lease", Box::new(move |b| b.lease(zero))),
        ("lease", Box::new(move |b| b.lease(ever).retention(ever))),
        ("retention", Box::new(move |b| b.retention(second))),
        ("retention", Box::new(move |b| b.retention(ever))),
        ("lock_wait", Box::new(move |b| b.lock_wait(zero))),
        ("lock_wait", Box::new(move |b| b.lock_wait(second * 40 * 24 * 3600))),
        ("on_duplicate", Box::new(move |b| b.on_duplicate(OnDuplicate::Wait(ever)))),
        ("max_attempts", Box::new(|b| b.max_attempts(0))),
        ("max_attempts", Box::new(|b| b.max_attempts(u32::MAX))),
        ("back_off", Box::new(move |b| b.back_off(second, ever))),
        ("back_off", Box::new(move |b| b.back_off(second * 2, second))),
        ("reconcile_after", Box::new(move |b| b.reconcile_after(ever))),
        ("max_reconciles", Box::new(|b| b.max_reconciles(0))),
        ("window_margin", Box::new(move |b| b.window_margin(ever))),
        ("Limits::params", limits(|limits| limits.params = 0)),
        ("Limits::outputs", limits(|limits| limits.outputs = usize::MAX)),
        ("Limits::reply_body", limits(|limits| limits.reply_body = 1 << 30)),
        ("Quota::keys", quota(Quota::default().keys(0))),
        ("Quota::rate", quota(Quota::default().rate(0, second))),
        ("Quota::rate", quota(Quota::default().rate(1, zero))),
        ("Quota::rate", quota(Quota::default().rate(1, ever))),
    ];
    for (setting, set) in cases {
        let Err(BuildError::Setting(error)) = set(Engine::builder(db.clone())).build() else {
            panic!("{setting} is not refused")
        };
        assert!(error.setting.starts_with(setting), "{error}");
        assert!(error.to_string().contains("but it must be"), "{error}");
    }
    let workers: [(&str, WorkerConfig); 11] = [
        ("WorkerConfig::poll", WorkerConfig::default().poll(zero)),
        ("WorkerConfig::batch", WorkerConfig::default().batch(0)),
        ("WorkerConfig::concurrency", WorkerConfig::default().concurrency(0)),
        ("WorkerConfig::grace", WorkerConfig::default().grace(ever)),
        ("WorkerConfig::full_sweep", WorkerConfig::default().full_sweep(ever)),
        ("WorkerConfig::reap_every", WorkerConfig::default().reap_every(zero)),
        ("WorkerConfig::reap_batch", WorkerConfig::default().reap_batch(0)),
        ("WorkerConfig::delivery", WorkerConfig::default().delivery(zero)),
        ("WorkerConfig::max_deliveries", WorkerConfig::default().max_deliveries(0)),
        ("WorkerConfig::node (name)", WorkerConfig::default().node("a".repeat(101), "")),
        ("WorkerConfig::node (build)", WorkerConfig::default().node("", "1\n2")),
    ];
    let engine = Engine::builder(db.clone()).build().unwrap();
    for (setting, config) in workers {
        let Err(error) = engine.spawn_workers(config.clone()) else { panic!("{setting}") };
        assert_eq!(error.setting, setting);
        let told = Completer::new(&engine, config).run_once().await;
        assert!(matches!(told, Err(StoreError::Configuration(_))), "{setting}");
    }
    for pool in [
        PoolSettings { max_size: 0, ..PoolSettings::default() },
        PoolSettings { wait: zero, ..PoolSettings::default() },
    ] {
        let refused = Postgres::connect_with("postgres://localhost/none", pool).await;
        assert!(matches!(refused, Err(StoreError::Configuration(_))));
    }
}

/// A transaction on the store's own connection that an application's dropped future leaves open, with
/// one row in it.
async fn leave_transaction_open(db: &Sqlite) {
    use diesel_async::{AsyncConnection, RunQueryDsl};
    let (is_open, opened) = tokio::sync::oneshot::channel();
    let mut conn = db.connection().await.unwrap();
    let never_ends = conn.transaction::<(), diesel::result::Error, _>(async |conn| {
        diesel::sql_query("INSERT INTO rides VALUES ('own', 1)").execute(conn).await?;
        is_open.send(()).unwrap();
        std::future::pending().await
    });
    tokio::select! {
        _ = never_ends => unreachable!(),
        opened = opened => opened.unwrap(),
    }
}

/// What a writer of another process sees is what is durable.
async fn seen_by_another(db: &Sqlite, sql: &str) -> String {
    db.another().await.text(sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_transaction_that_an_application_left_open_takes_no_intent_along() {
    let db = Sqlite::fresh().await;
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    // The first phase is committed; the provider refused the call before it did anything.
    failed(engine.call(&scope(), &key("k"), notify(Trouble::RetryFirst)).await);
    for _ in 0..2 {
        leave_transaction_open(&db).await;
        finished(engine.call(&scope(), &key("k"), notify(Trouble::RetryFirst)).await);
        let status = "SELECT status FROM atomic_phases_keys";
        assert_eq!(seen_by_another(&db, status).await, "completed");
        assert_eq!(app.provider.effects(), 1);
    }
    assert_eq!(db.number("SELECT count(*) FROM rides WHERE id = 'own'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_a_transaction_that_an_application_left_open_takes_no_reply_along() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    leave_transaction_open(&db).await;
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(!first.replayed);
    assert_eq!(seen_by_another(&db, "SELECT status FROM atomic_phases_keys").await, "completed");
    assert_eq!(db.number("SELECT count(*) FROM rides WHERE id = 'own'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_what_an_operator_resolved_is_durable_behind_a_transaction_that_was_left_open() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.max_attempts(1));
    let _ = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    leave_transaction_open(&db).await;
    let resolution = Resolution::not_executed("notified", 1);
    let resolved = engine.resolve(&scope(), &key("k"), resolution).await.unwrap();
    assert_eq!(resolved, Resolved::Applied);
    let resolution = "SELECT coalesce(resolution, 'none') FROM atomic_phases_keys";
    assert_ne!(seen_by_another(&db, resolution).await, "none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_an_application_left_open_takes_no_other_application_along() {
    use diesel_async::{AsyncConnection, RunQueryDsl};
    let db = Sqlite::fresh().await;
    leave_transaction_open(&db).await;
    let mut conn = db.connection().await.unwrap();
    conn.transaction::<(), diesel::result::Error, _>(async |conn| {
        diesel::sql_query("INSERT INTO rides VALUES ('other', 1)").execute(conn).await.map(drop)
    })
    .await
    .unwrap();
    drop(conn);
    assert_eq!(seen_by_another(&db, "SELECT group_concat(id) FROM rides").await, "other");
}
