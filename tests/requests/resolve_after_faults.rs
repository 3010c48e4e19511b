//! Resolutions of outcomes, and how a process that dies, a caller that goes away, or a codec that fails affects
//! them: nothing is half written, a true resolution is accepted, and a call that may have been executed is not made
//! again.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::codec::{Codec, CodecError, Place};
use atomic_phases::engine::{CallError, FailureCause, Resolution, ResolveError, Resolved};
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::store::{Postgres, Status};
use atomic_phases::{Engine, ForeignCall, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Deserializer, Serialize};

use crate::support::db::url_of;
use crate::support::proxy::{Cut, Proxy, port_of};
use crate::support::work::*;
use crate::support::*;

on_every_store! {
    a_resolution_that_cannot_be_stored_changes_nothing,
    a_resolution_of_the_attempt_that_called_is_taken_after_a_crash,
    a_resolution_of_the_attempt_that_called_is_taken_at_the_cap,
    a_resolution_whose_caller_goes_away_is_written,
    a_webhook_behind_an_erasure_is_told_that_the_request_has_finished,
    an_output_whose_type_panics_is_of_another_type,
    an_output_is_no_resolution_of_a_call_that_ends_the_request,
    g2_a_call_that_was_answered_is_not_made_again_where_its_reply_cannot_be_stored,
    g2_a_call_that_is_known_to_be_executed_is_not_made_again_where_its_reply_cannot_be_stored,
    a_codec_that_fails_is_not_a_mistake_of_a_phase_or_of_a_resolution,
}

async fn an_unknown_outcome<S: TestDb>(engine: &TestEngine<S>, name: &str) -> u32 {
    let told = engine.call(&scope(), &key(name), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    status(engine, name).await.attempt
}

async fn a_resolution_that_cannot_be_stored_changes_nothing<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let attempt = an_unknown_outcome(&engine, "k").await;
    let say = async |word| engine.resolve(&scope(), &key("k"), word).await;
    let two_lines = Reply::text(200, "by hand").header("location", "/rides/1\nx: y");
    // By itself under the cap of all outputs, 1 MiB, and over it together with the existing ones.
    let large = Charge { id: "effect-1".into(), padding: "x".repeat((1 << 20) - 50) };
    for word in [Resolution::finish(two_lines), Resolution::executed("notified", &large).unwrap()] {
        let before = db.text("SELECT lease_token || ' ' || attempts FROM atomic_phases_keys").await;
        let refused = say(word).await;
        assert!(matches!(refused, Err(ResolveError::NotStorable)), "{refused:?}");
        assert_eq!(status(&engine, "k").await.status, Status::Unknown);
        let after = db.text("SELECT lease_token || ' ' || attempts FROM atomic_phases_keys").await;
        assert_eq!(after, before);
    }
    let next = say(Resolution::not_executed("notified", attempt)).await;
    assert!(matches!(next, Ok(Resolved::Applied)), "{next:?}");
}

async fn a_resolution_of_the_attempt_that_called_is_taken_after_a_crash<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    dies_in_its_call(&engine, "k", notify(Trouble::None)).await;
    // Nor does a process that dies immediately after it has taken the row over count as another attempt.
    for _ in 0..2 {
        db.let_time_pass().await;
        let row = engine.status(&scope(), &key("k")).await.unwrap().unwrap();
        assert_eq!(row.attempt, 1);
        assert_eq!(completed(&engine).await.unknown, 1);
        db.sql("UPDATE atomic_phases_keys SET status = 'in_progress', locked_until = created_at, run_after = created_at").await;
    }
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.unknown, 1);
    assert_eq!(app.provider.effects(), 1, "no other call was made");
    let word = engine.resolve(&scope(), &key("k"), Resolution::not_executed("notified", 1)).await;
    assert!(matches!(word, Ok(Resolved::Applied)), "{word:?}");
}

async fn a_resolution_of_the_attempt_that_called_is_taken_at_the_cap<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(1));
    dies_in_its_call(&engine, "k", book(20)).await;
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.dead_letters, 1);
    let word = engine.resolve(&scope(), &key("k"), Resolution::not_executed("charged", 1)).await;
    assert!(matches!(word, Ok(Resolved::Applied)), "{word:?}");
}

/// hyper drops a handler's future when its connection closes, and a webhook's resolution takes two commits.
async fn a_resolution_whose_caller_goes_away_is_written<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    for number in 0..12 {
        let name = format!("k{number}");
        let attempt = an_unknown_outcome(&engine, &name).await;
        let say = || {
            let (engine, key) = (engine.clone(), key(&name));
            let word = Resolution::not_executed("notified", attempt);
            async move { engine.resolve(&scope(), &key, word).await }
        };
        // Dropped after this many steps.
        let mut saying = Box::pin(say());
        for _ in 0..=number / 2 {
            let polled = std::future::poll_fn(|context| {
                std::task::Poll::Ready(saying.as_mut().poll(context).is_ready())
            });
            if polled.await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(saying);
        // Sent again, as a provider does, until the first one has been written or was never begun.
        until(async || match say().await {
            Ok(Resolved::Applied | Resolved::Already) => true,
            Err(ResolveError::InProgress { .. }) => false,
            other => panic!("{name}: {other:?}"),
        })
        .await;
        assert_eq!(status(&engine, &name).await.status, Status::FailedRetryable);
    }
}

async fn a_webhook_behind_an_erasure_is_told_that_the_request_has_finished<S: TestDb>(db: S) {
    let engine = engine(&db, &App::new(Provider::that_ignores_keys()));
    finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await);
    engine.erase(&scope(), &key("k")).await.unwrap();
    let charge = Charge { id: "effect-1".into(), padding: String::new() };
    let word = Resolution::executed("notified", &charge).unwrap();
    let told = engine.resolve(&scope(), &key("k"), word).await;
    assert!(matches!(told, Ok(Resolved::Finished)), "{told:?}");
    let denied = Resolution::not_executed("notified", 1);
    let denied = engine.resolve(&scope(), &key("k"), denied).await;
    assert!(matches!(denied, Err(ResolveError::Conflict(_))), "{denied:?}");
}

/// An amount whose type panics at certain values.
#[derive(Serialize)]
struct Cents(i64);

impl<'de> Deserialize<'de> for Cents {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let cents = i64::deserialize(from)?;
        assert!(cents >= 0, "an amount is not negative");
        Ok(Self(cents))
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Pay;

#[atomic_phases(name = "pay", version = 1)]
impl<Db: TestDb> Pay {
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall) -> PhaseResult<Cents, ForeignError> {
        call.make(async |_| Err(ForeignError::unknown("asked for"))).await
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Db>, paid: &Cents) -> PhaseResult<Reply> {
        Ok(Reply::text(200, paid.0.to_string()))
    }
}

async fn an_output_whose_type_panics_is_of_another_type<S: TestDb>(db: S) {
    let engine = Engine::builder(db).register::<Pay>().build().unwrap();
    let told = engine.call(&scope(), &key("k"), Pay).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    let word = Resolution::executed("paid", &-1).unwrap();
    let told = engine.resolve(&scope(), &key("k"), word).await;
    assert!(matches!(told, Err(ResolveError::OtherType { .. })), "{told:?}");
}

const AWAY: &str = "the key service is away";

/// A codec whose key service is unavailable when the reply with one of these numbers is sealed.
#[derive(Clone)]
struct Away(Arc<AtomicU32>, &'static [u32]);

impl Codec for Away {
    fn encode<'v>(&self, at: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        let is_away =
            at.column == "response_body" && self.1.contains(&self.0.fetch_add(1, Ordering::SeqCst));
        if is_away { Err(CodecError(AWAY)) } else { Ok(plain) }
    }

    fn decode<'v>(&self, _: Place<'_>, stored: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(stored)
    }
}

/// An at-most-once call whose answer is the reply.
#[derive(Clone, Serialize, Deserialize)]
struct Errand;

#[atomic_phases(name = "errand", version = 1)]
impl<Db: TestDb> Errand {
    #[phase]
    async fn noted(&self, _tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        Ok(())
    }

    #[phase(foreign(at_most_once))]
    async fn ran(&self, call: ForeignCall, app: &App) -> PhaseResult<Reply, ForeignError> {
        let run = async |key: DerivedKey| {
            Ok::<_, ForeignError>(app.provider.call(key.as_str(), "errand").await)
        };
        Ok(Reply::text(200, call.make(run).await?))
    }

    #[reconcile(ran)]
    async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<Reply>> {
        Ok(match app.provider.search(key.as_str()) {
            None => Reconciled::StillUnknown,
            Some(None) => Reconciled::NotExecuted,
            Some(Some(id)) => Reconciled::Executed(Reply::text(200, id)),
        })
    }
}

fn running<S: TestDb>(db: &S, app: &App, away: &'static [u32]) -> TestEngine<S> {
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Errand>();
    let builder = builder.codec(Away(Arc::default(), away));
    builder.lease(Duration::from_secs(60)).build().unwrap()
}

/// Runs everything that could continue the request, until it has finished.
async fn driven_on<S: TestDb>(db: &S, engine: &TestEngine<S>) {
    for _ in 0..3 {
        db.let_time_pass().await;
        reconciled(engine).await;
        db.let_time_pass().await;
        completed(engine).await;
    }
    let ended = status(engine, "k").await;
    assert_eq!(engine.app().provider.effects(), 1, "{ended:?}");
    assert_eq!(ended.status, Status::Completed, "{ended:?}");
}

async fn g2_a_call_that_was_answered_is_not_made_again_where_its_reply_cannot_be_stored<
    S: TestDb,
>(
    db: S,
) {
    for away in [&[0][..], &[1], &[0, 1]] {
        let app = App::new(Provider::that_ignores_keys());
        app.provider.answer_searches();
        let engine = running(&db, &app, away);
        let _ = engine.call(&scope(), &key("k"), Errand).await;
        driven_on(&db, &engine).await;
        db.sql("DELETE FROM atomic_phases_keys").await;
    }
}

async fn g2_a_call_that_is_known_to_be_executed_is_not_made_again_where_its_reply_cannot_be_stored<
    S: TestDb,
>(
    db: S,
) {
    let app = App::new(Provider::that_ignores_keys());
    app.provider.answer_searches();
    let engine = running(&db, &app, &[0]);
    dies_in_its_call(&engine, "k", Errand).await;
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.unknown, 1);
    driven_on(&db, &engine).await;
}

/// A codec whose key service is unavailable when the first value of this column is sealed.
struct AwayOnce(&'static str, AtomicBool);

impl Codec for AwayOnce {
    fn encode<'v>(&self, at: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        let is_away = at.column == self.0 && !self.1.swap(true, Ordering::SeqCst);
        if is_away { Err(CodecError(AWAY)) } else { Ok(plain) }
    }

    fn decode<'v>(&self, _: Place<'_>, stored: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(stored)
    }
}

fn away_once<S: TestDb>(db: &S, app: &App, column: &'static str) -> TestEngine<S> {
    let codec = AwayOnce(column, AtomicBool::new(false));
    engine_with(db, app, |builder| builder.codec(codec).lease(Duration::from_secs(60)))
}

/// What fails for a moment succeeds at the next attempt, and the errors say so.
async fn a_codec_that_fails_is_not_a_mistake_of_a_phase_or_of_a_resolution<S: TestDb>(db: S) {
    let app = App::default();
    let engine = away_once(&db, &app, "params");
    let told = engine.call(&scope(), &key("params"), book(20)).await;
    assert!(matches!(told, Err(CallError::NotEncoded { what: "params", why: AWAY })), "{told:?}");
    finished(engine.call(&scope(), &key("params"), book(20)).await);
    for (column, phase) in
        [("outputs", "booked"), ("args", "answered"), ("response_body", "answered")]
    {
        let engine = away_once(&db, &app, column);
        let cause = failed(engine.call(&scope(), &key(column), book(20)).await);
        assert_eq!(cause, FailureCause::Codec { phase, reason: AWAY }, "{column}");
        finished(engine.call(&scope(), &key(column), book(20)).await);
    }
    assert_eq!(app.provider.effects(), 4);
    // A phase that rejects the request stages nothing.
    let engine = away_once(&db, &app, "args");
    let told = engine.call(&scope(), &key("rejected"), troubled(Trouble::RejectLast)).await;
    assert_eq!(finished(told).reply.status(), 409);

    let app = App::new(Provider::that_ignores_keys());
    let engine = away_once(&db, &app, "response_body");
    an_unknown_outcome(&engine, "unknown").await;
    let close = async || {
        let word = Resolution::finish(Reply::text(200, "by hand"));
        engine.resolve(&scope(), &key("unknown"), word).await
    };
    let told = close().await;
    assert!(matches!(told, Err(ResolveError::NotEncoded { why: AWAY })), "{told:?}");
    let told = close().await;
    assert!(matches!(told, Ok(Resolved::Applied)), "{told:?}");
}

/// The last phase's call ends with a reply, which is a resolution of its own: after an output, no phase would be
/// left to continue with.
async fn an_output_is_no_resolution_of_a_call_that_ends_the_request<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = running(&db, &app, &[]);
    dies_in_its_call(&engine, "k", Errand).await;
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.unknown, 1);
    let say = async |word| engine.resolve(&scope(), &key("k"), word).await;
    let output = say(Resolution::executed("ran", &"effect-1").unwrap()).await;
    let refused = output.unwrap_err();
    assert!(matches!(refused, ResolveError::OtherType { .. }), "{refused:?}");
    assert!(refused.to_string().ends_with("so finish the request with one"), "{refused}");
    assert_eq!(status(&engine, "k").await.status, Status::Unknown, "nothing was written");
    let reply = say(Resolution::finish(Reply::text(200, "effect-1"))).await;
    assert_eq!(reply.unwrap(), Resolved::Applied);
    let late = say(Resolution::executed("ran", &"effect-1").unwrap()).await;
    assert_eq!(late.unwrap(), Resolved::Finished);
}

/// A dead letter is retried by a process whose commit is cut off, and whose next connections are refused until the
/// others have acted.
async fn retried_through(
    db: &Postgres,
    here: &TestEngine<Postgres>,
    cut: Cut,
    others: impl AsyncFnOnce(),
) -> Result<Resolved, ResolveError> {
    failed(here.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    db.sql(
        "UPDATE atomic_phases_keys SET status = 'dead_letter', run_after = NULL, \
         waiting_since = created_at",
    )
    .await;
    let url = url_of(db);
    let proxy = Proxy::start(port_of(&url)).await;
    let store = Postgres::connect(&proxy.url(&url)).await.unwrap();
    let there = engine_with(&store, &App::default(), |b| b.lease(Duration::from_secs(60)));
    proxy.arm("COMMIT", 1, cut);
    proxy.refuse_once_cut();
    let (scope, key) = (scope(), key("k"));
    let others = async {
        until(async || proxy.fired() == 1).await;
        others().await;
        proxy.refuse(false);
    };
    tokio::join!(there.resolve(&scope, &key, Resolution::retry()), others).0
}

#[tokio::test(flavor = "multi_thread")]
async fn g7_a_retry_that_was_applied_is_not_refused_because_the_request_went_on() {
    let db = Postgres::fresh().await;
    let here = engine(&db, &App::default());
    let told = retried_through(&db, &here, Cut::Answer, async || {
        until(async || status(&here, "k").await.status == Status::FailedRetryable).await;
        finished(here.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    });
    let told = told.await;
    assert!(matches!(told, Ok(Resolved::Applied)), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g7_a_retry_whose_outcome_is_unknown_is_not_refused_because_the_request_was_finished() {
    let db = Postgres::fresh().await;
    let here = engine(&db, &App::default());
    let told = retried_through(&db, &here, Cut::Before, async || {
        let finish = || Resolution::finish(Reply::new(204));
        until(async || {
            let told = here.resolve(&scope(), &key("k"), finish()).await;
            matches!(told, Ok(Resolved::Applied | Resolved::Already))
        })
        .await;
    });
    let told = told.await;
    assert!(matches!(told, Err(ResolveError::Unavailable(_))), "{told:?}");
}
