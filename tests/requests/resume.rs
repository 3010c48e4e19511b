//! A request from its first call to its replay, with every possible end of a phase in between.

use crate::support::work::completed;
use crate::support::*;
use atomic_phases::config::Limits;
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::phase::ForeignError;
use atomic_phases::{
    Batch, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Scope,
    atomic_phases,
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
    g5_the_time_of_creation_is_the_same_in_each_attempt,
    caps_name_the_limit_and_nothing_runs,
    g8_parameters_and_a_reply_of_a_mebibyte_come_back_byte_for_byte,
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
    // Nothing happened, so even a call with other parameters is a first request.
    finished(engine.call(&scope(), &key("k"), book(77)).await);
}

async fn g1_a_retry_resumes_after_the_last_committed_phase<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let cause = failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    assert_eq!(cause, FailureCause::Phase { phase: "charged", reason: "asked for" });
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "failed_retryable");
    assert_eq!(db.text("SELECT recovery_point FROM atomic_phases_keys").await, "booked");
    // The retry omits the switch, which is not part of the request.
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
        // The last phase's commit was to store the foreign result; the release stored it instead.
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
        // A rejected first phase runs once: the second reservation only stores the reply.
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
    // The row's values decide, not those that the retry sends in addition to the request.
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
    // Even a different request runs: for the client, the key is unused.
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

/// Sends the provider the creation time, from a batch or from a transaction.
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
    // The first request reads the database's clock; the later ones extrapolate it, with more digits.
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

/// A request whose parameters and reply are large.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Letter {
    text: String,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Written(String);

#[atomic_phases(name = "letter", version = 1)]
impl<Db: TestDb> Letter {
    #[phase]
    async fn written(
        &self,
        batch: &mut Batch<'_, Db>,
        ctx: &RequestContext,
    ) -> PhaseResult<Written> {
        let id = ctx.uuid(0).to_string();
        Db::add_ride(batch, &id, self.text.len() as i64);
        Ok(Written(id))
    }

    #[phase(foreign(idempotent))]
    async fn sent(
        &self,
        call: ForeignCall,
        app: &App,
        written: &Written,
    ) -> PhaseResult<Charge, ForeignError> {
        let what = format!("{} {}", written.0, self.text.len());
        let id = call
            .make(async |key| Ok::<_, ForeignError>(app.provider.call(key.as_str(), &what).await))
            .await?;
        match app.provider.calls().len() {
            1 => Err(ForeignError::retryable("asked for")),
            _ => Ok(Charge { id, padding: String::new() }),
        }
    }

    #[phase]
    async fn read(&self, batch: &mut Batch<'_, Db>, charge: &Charge) -> PhaseResult<Reply> {
        Db::add_step(batch, &charge.id, "read");
        Ok(Reply::text(200, self.text.clone()))
    }
}

/// A worker resumes it from what is stored.
async fn g8_parameters_and_a_reply_of_a_mebibyte_come_back_byte_for_byte<S: TestDb>(db: S) {
    let app = App::default();
    // As JSON and as a literal each of the first four is longer than it is.
    let signs = ['"', '\\', '\'', '\n', 'a', 'é', '雪', '?', ';'];
    let text: String =
        (0..).map(|at: usize| signs[(at * at + at / 7) % signs.len()]).take(1 << 20).collect();
    assert!(text.len() > 1 << 20);
    let limits = Limits::default().params(4 << 20).reply_body(4 << 20);
    let engine = engine_with(&db, &app, |builder| builder.register::<Letter>().limits(limits));
    let letter = || Letter { text: text.clone() };
    failed(engine.call(&scope(), &key("k"), letter()).await);
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.finished, 1);
    for engine in [
        &engine,
        &engine_with(&db.another().await, &app, |builder| {
            builder.register::<Letter>().limits(limits)
        }),
    ] {
        let again = finished(engine.call(&scope(), &key("k"), letter()).await);
        assert!(again.replayed && again.reply.bytes() == text.as_bytes());
    }
    let mut other = letter();
    other.text.pop();
    let told = engine.call(&scope(), &key("k"), other).await;
    assert!(matches!(told, Ok(Outcome::Mismatch)), "{told:?}");
    assert_eq!((app.provider.effects(), app.provider.calls().len()), (1, 2));
}
