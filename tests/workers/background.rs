//! Requests finish without a client's retry: completer, reconciler, reaper and their supervisor; accepted requests;
//! quotas. Over every store.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::config::{OnDuplicate, Quota};
use atomic_phases::engine::{CallError, Resolution, ResolveError, Resolved};
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::store::{Postgres, Status};
use atomic_phases::worker::{Completer, Reaper, Reconciler, Sweep, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Scope, Tx,
    atomic_phases,
};

on_every_store! {
    an_accepted_request_is_run_by_a_worker_and_answered_by_its_key,
    g17_an_abandoned_request_is_finished_with_no_client,
    a_living_holder_and_a_resting_row_are_left_alone,
    a_resumed_run_sees_the_context_of_the_first,
    g14_a_row_that_this_node_does_not_know_blocks_no_other,
    g17_a_poison_request_ends_as_a_dead_letter_and_an_operator_revives_it,
    g2_a_reconcile_function_that_finds_the_effect_lets_the_request_go_on,
    g2_a_reconcile_function_that_finds_nothing_lets_the_call_be_made_again,
    g2_what_stays_unknown_is_asked_less_often_and_ends_with_an_operator,
    an_unknown_outcome_without_a_reconcile_function_waits_for_an_operator,
    an_operator_sees_why_a_reconcile_function_does_not_find_out,
    g2_killed_before_inside_and_after_the_call_a_hundred_times_each,
    g3_two_completers_and_a_retry_make_one_effect,
    g15_the_reaper_deletes_finished_and_expired_keys_only,
    g15_expired_requests_that_are_not_finished_keep_no_other_from_the_reaper,
    ttl_race_an_unfinished_key_does_not_expire_under_a_retrying_client,
    zombie_transaction_a_stuck_key_is_freed_without_a_client,
    g16_a_scope_at_its_quota_is_refused_and_others_are_not,
    the_supervisor_runs_them_all_on_two_nodes_and_stops_them,
}

async fn an_accepted_request_is_run_by_a_worker_and_answered_by_its_key<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for _ in 0..2 {
        let accepted = engine.call(&scope(), &key("k"), book(20)).accept().await.unwrap();
        assert!(matches!(accepted, Outcome::Accepted), "{accepted:?}");
    }
    assert_eq!((status(&engine, "k").await.status, app.bodies()), (Status::Pending, [0, 0, 0]));
    let other = engine.call(&scope(), &key("k"), book(21)).accept().await.unwrap();
    assert!(matches!(other, Outcome::Mismatch), "{other:?}");

    assert_eq!(completed(&engine).await.finished, 1);
    let standing = status(&engine, "k").await;
    assert_eq!((standing.status, standing.attempt), (Status::Completed, 1));
    assert_eq!(standing.recovery_point, "finished");
    let replay = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(replay.replayed);
    assert_eq!(standing.reply, Some(replay.reply));
    let again = finished(engine.call(&scope(), &key("k"), book(20)).accept().await);
    assert!(again.replayed);
    assert_eq!((app.provider.effects(), completed(&engine).await.total()), (1, 0));
    assert!(engine.status(&scope(), &key("none")).await.unwrap().is_none());
}

async fn g17_an_abandoned_request_is_finished_with_no_client<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    dies_in_its_call(&engine, "k", book(20)).await;
    assert_eq!(completed(&engine).await.total(), 0, "its lease lives");
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.finished, 1);
    let replay = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(replay.replayed && replay.reply.status() == 201);
    assert_eq!((app.provider.effects(), app.bodies()), (1, [1, 2, 1]));
}

async fn a_living_holder_and_a_resting_row_are_left_alone<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| {
        builder
            .lease(Duration::from_secs(60))
            .back_off(Duration::from_secs(60), Duration::from_secs(60))
    });
    let mut gate = app.provider.stop_after_the_effect();
    let running = engine.call(&scope(), &key("running"), book(20));
    let running = tokio::spawn(running.into_future());
    let waiting = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    app.forget_bodies();
    failed(engine.call(&scope(), &key("resting"), troubled(Trouble::RetryForeignOnce)).await);
    assert_eq!(completed(&engine).await.total(), 0);
    drop(waiting);
    finished(running.await.unwrap());
    // A client may retry before the back-off is over, and before the workers' grace period.
    finished(engine.call(&scope(), &key("resting"), troubled(Trouble::None)).await);

    app.forget_bodies();
    failed(engine.call(&scope(), &key("due"), troubled(Trouble::RetryForeignOnce)).await);
    db.sql("UPDATE atomic_phases_keys SET run_after = NULL WHERE status = 'completed'").await;
    db.let_time_pass().await;
    let patient = WorkerConfig::default().grace(Duration::from_secs(3600));
    let swept = Completer::new(&engine, patient).run_once().await.unwrap();
    assert_eq!(swept.total(), 0, "within the grace");
    assert_eq!(completed(&engine).await.finished, 1);
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Remember {}

#[atomic_phases(name = "remember", version = 1)]
impl<Db: TestDb> Remember {
    #[phase(foreign(idempotent))]
    async fn asked(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
    ) -> PhaseResult<String> {
        let who = ctx.context::<String>().unwrap_or_default();
        let id =
            call.make(async |key| Ok::<_, PhaseError>(app.provider.call(key.as_str(), &who).await));
        id.await?;
        Ok(who)
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Db>,
        asked: &String,
        ctx: &RequestContext,
    ) -> PhaseResult<Reply> {
        let seen =
            format!("{asked} {} {}", ctx.context::<String>().unwrap_or_default(), ctx.uuid(1));
        Db::insert_step(tx, &seen, "remembered").await?;
        Ok(Reply::text(200, seen))
    }
}

async fn a_resumed_run_sees_the_context_of_the_first<S: TestDb>(db: S) {
    let app = App::default();
    let engine: TestEngine<S> = Engine::builder(db.clone())
        .app(app.clone())
        .register::<Remember>()
        .lease(Duration::from_secs(60))
        .build()
        .unwrap();
    let mut gate = app.provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key("k"), Remember {}).context(&"alice from 192.0.2.7");
    let call = tokio::spawn(call.__call_in_place());
    let waiting = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    drop(waiting);
    app.provider.stop_no_more();
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.finished, 1);
    let reply = status(&engine, "k").await.reply.unwrap();
    let text = String::from_utf8(reply.bytes().to_vec()).unwrap();
    assert!(text.starts_with("alice from 192.0.2.7 alice from 192.0.2.7 "), "{text}");
    assert_eq!(app.provider.ledger()[0].what, "alice from 192.0.2.7");
}

async fn g14_a_row_that_this_node_does_not_know_blocks_no_other<S: TestDb>(db: S) {
    let app = App::default();
    let everything = engine(&db, &app);
    for name in ["a", "b", "c"] {
        let strange = notify(Trouble::None);
        everything.call(&scope(), &key(name), strange).accept().await.unwrap();
    }
    everything.call(&scope(), &key("known"), book(20)).accept().await.unwrap();
    let books_only: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Book>().build().unwrap();
    let mut completer = Completer::new(&books_only, config().batch(2));
    let mut swept = Vec::new();
    for _ in 0..3 {
        let one = completer.run_once().await.unwrap();
        swept.push((one.left, one.finished));
    }
    assert_eq!(swept.iter().map(|one| one.1).sum::<u32>(), 1, "{swept:?}");
    assert_eq!(status(&everything, "a").await.status, Status::Pending, "untouched");
    assert_eq!(completed(&everything).await.finished, 3);
}

async fn g17_a_poison_request_ends_as_a_dead_letter_and_an_operator_revives_it<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_secs(60)).max_attempts(3));
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await);
    let mut released = 0;
    for _ in 0..5 {
        db.let_time_pass().await;
        released += completed(&engine).await.released;
    }
    assert_eq!((released, status(&engine, "k").await.status), (1, Status::DeadLetter));
    assert_eq!((app.provider.effects(), app.bodies()[1]), (1, 3));
    let dead = engine.call(&scope(), &key("k"), book(20)).await.unwrap();
    assert!(matches!(dead, Outcome::DeadLetter), "{dead:?}");
    assert_eq!(engine.check().await.unwrap().waiting.len(), 1);

    let retry = async || engine.resolve(&scope(), &key("k"), Resolution::retry()).await;
    assert_eq!(retry().await.unwrap(), Resolved::Applied);
    assert_eq!(retry().await.unwrap(), Resolved::Already);
    for expected in [1, 1, 0] {
        db.let_time_pass().await;
        assert_eq!(completed(&engine).await.released, expected, "a new count of attempts");
    }
    assert_eq!(status(&engine, "k").await.status, Status::DeadLetter);
}

async fn g2_a_reconcile_function_that_finds_the_effect_lets_the_request_go_on<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    app.provider.answer_searches();
    let engine = engine(&db, &app);
    dies_in_its_call(&engine, "k", notify(Trouble::None)).await;
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.unknown, 1, "never called again");
    assert_eq!(reconciled(&engine).await.total(), 0, "it rests first");
    db.let_time_pass().await;
    assert_eq!(reconciled(&engine).await.finished, 1);
    let reply = finished(engine.call(&scope(), &key("k"), notify(Trouble::None)).await).reply;
    assert_eq!(reply.bytes(), b"notified effect-1");
    assert_eq!(app.provider.effects(), 1);
}

async fn g2_a_reconcile_function_that_finds_nothing_lets_the_call_be_made_again<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    app.provider.answer_searches();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_before_the_effect();
    let call = engine.call(&scope(), &key("k"), notify(Trouble::None));
    let call = tokio::spawn(call.__call_in_place());
    let waiting = gate.recv().await.unwrap();
    call.abort();
    assert!(call.await.is_err());
    app.provider.stop_no_more();
    drop(waiting);
    assert_eq!(app.provider.effects(), 0);
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.unknown, 1);
    db.let_time_pass().await;
    assert_eq!(reconciled(&engine).await.released, 1);
    assert_eq!(status(&engine, "k").await.status, Status::FailedRetryable);
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.finished, 1);
    assert_eq!(app.provider.effects(), 1);
}

async fn g2_what_stays_unknown_is_asked_less_often_and_ends_with_an_operator<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_secs(60)).max_reconciles(3));
    let unknown = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    let mut rests = vec![status(&engine, "k").await.retry_after];
    for _ in 0..2 {
        db.let_time_pass().await;
        assert_eq!(reconciled(&engine).await.unknown, 1);
        rests.push(status(&engine, "k").await.retry_after);
    }
    // Each but the first a part less by chance.
    for (rest, seconds) in rests.iter().zip([29..=30, 44..=60, 89..=120]) {
        assert!(seconds.contains(&rest.as_millis().div_ceil(1000)), "{rests:?}");
    }
    db.let_time_pass().await;
    assert_eq!(reconciled(&engine).await.dead_letters, 1);
    let standing = status(&engine, "k").await;
    assert_eq!(standing.status, Status::DeadLetter);
    assert_eq!(standing.unknown_phase.as_deref(), Some("notified"), "still said to be open");
    let conflict = engine.resolve(&scope(), &key("k"), Resolution::retry()).await;
    assert!(matches!(conflict, Err(ResolveError::Conflict(_))), "no blind retry: {conflict:?}");
    let word = Resolution::not_executed("notified", standing.attempt);
    assert_eq!(engine.resolve(&scope(), &key("k"), word).await.unwrap(), Resolved::Applied);
    assert_eq!(status(&engine, "k").await.status, Status::FailedRetryable);
}

/// Its phase has no reconcile function. No worker touches the row, its reason stays, and clients get that answer.
async fn an_unknown_outcome_without_a_reconcile_function_waits_for_an_operator<S: TestDb>(db: S) {
    const REST: Duration = Duration::from_secs(30);
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_secs(60)).max_reconciles(1));
    let unknown = troubled(Trouble::UnknownForeign);
    let told = engine.call(&scope(), &key("k"), unknown.clone()).await;
    let is_told = |told: &Result<Outcome, CallError>| matches!(told, Ok(Outcome::Unknown { is_asked: false, retry_after }) if *retry_after == REST);
    assert!(is_told(&told), "{told:?}");
    const ROW: &str = "SELECT status || ' ' || lease_token || ' ' || reconciles || ' ' || reason \
        || ' ' || CASE WHEN run_after IS NULL THEN 'never' ELSE 'due' END FROM atomic_phases_keys";
    let row = db.text(ROW).await;
    assert_eq!(row, "unknown 1 0 asked for never");
    for _ in 0..3 {
        db.let_time_pass().await;
        assert_eq!((reconciled(&engine).await.total(), completed(&engine).await.total()), (0, 0));
    }
    // Nor does a client wait, because only an operator ends this.
    let waits = engine.call(&scope(), &key("k"), unknown);
    let waits = waits.on_duplicate(OnDuplicate::Wait(Duration::from_secs(600)));
    let told = tokio::time::timeout(REST, waits.into_future()).await.unwrap();
    assert!(is_told(&told), "{told:?}");
    assert_eq!(db.text(ROW).await, row);
    let standing = status(&engine, "k").await;
    assert_eq!((standing.status, standing.retry_after), (Status::Unknown, REST));
    assert_eq!(standing.reason.as_deref(), Some("asked for"));

    let word = Resolution::not_executed("charged", standing.attempt);
    assert_eq!(engine.resolve(&scope(), &key("k"), word).await.unwrap(), Resolved::Applied);
    assert_eq!(status(&engine, "k").await.status, Status::FailedRetryable);
}

/// Its reconcile function fails in a different way each time.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Riddle;

#[atomic_phases(name = "riddle", version = 1)]
impl<Db: TestDb> Riddle {
    #[phase(foreign(at_most_once))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<String, ForeignError> {
        call.make(async |key| {
            Ok::<_, ForeignError>(app.provider.call(key.as_str(), "riddle").await)
        })
        .await?;
        Err(ForeignError::unknown("no answer"))
    }

    #[reconcile(asked)]
    async fn find(&self, app: &App) -> PhaseResult<Reconciled<String>> {
        match app.bodies[0].fetch_add(1, Ordering::SeqCst) {
            0 => Err(PhaseError::retryable("the search is down")),
            1 => panic!("canary-in-panic"),
            2 => std::future::pending().await,
            3 => Ok(Reconciled::StillUnknown),
            _ => Err(PhaseError::retryable("the search is gone")),
        }
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, asked: &str) -> PhaseResult<Reply> {
        Db::insert_step(tx, asked, "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn an_operator_sees_why_a_reconcile_function_does_not_find_out<S: TestDb>(db: S) {
    let app = App::default();
    let with_lease = |lease| -> TestEngine<S> {
        let builder = Engine::builder(db.clone()).app(app.clone()).register::<Riddle>();
        builder.lease(lease).max_reconciles(5).build().unwrap()
    };
    let engine = with_lease(Duration::from_secs(60));
    // A reconcile function may take two thirds of a lease.
    let hurried = with_lease(Duration::from_secs(1));
    let told = engine.call(&scope(), &key("k"), Riddle).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    let known = "no answer";
    for (engine, failure) in [
        (&engine, " (its reconcile function failed: the search is down)"),
        (&engine, " (its reconcile function panicked)"),
        (&hurried, " (its reconcile function took too long)"),
        (&engine, ""),
    ] {
        db.let_time_pass().await;
        assert_eq!(reconciled(engine).await.unknown, 1);
        let reason = status(engine, "k").await.reason.unwrap();
        assert_eq!(reason, format!("{known}{failure}"));
    }
    db.let_time_pass().await;
    assert_eq!(reconciled(&engine).await.dead_letters, 1);
    let reason = status(&engine, "k").await.reason.unwrap();
    let gone = "no answer (its reconcile function failed: the search is gone)";
    assert!(reason.contains("at the cap of reconciliations") && reason.ends_with(gone), "{reason}");
}

async fn g2_killed_before_inside_and_after_the_call_a_hundred_times_each<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    // Another node finishes them.
    let another = crate::support::engine(&db.another().await, &app);
    let mut keys = Vec::new();
    for round in 0..100 {
        for place in ["before", "inside", "after"] {
            let name = format!("{place}-{round}");
            let (trouble, mut gate) = match place {
                "before" => (Trouble::None, app.provider.stop_before_the_effect()),
                "inside" => (Trouble::None, app.provider.stop_after_the_effect()),
                _ => (Trouble::HangAfterCall, app.provider.stop_after_the_effect()),
            };
            app.forget_bodies();
            let request = Notify { who: name.clone(), trouble: trouble.into() };
            let call = engine.call(&scope(), &key(&name), request);
            let call = tokio::spawn(call.__call_in_place());
            let waiting = gate.recv().await.unwrap();
            if place == "after" {
                let _ = waiting.send(());
                tokio::task::yield_now().await;
                call.abort();
            } else {
                call.abort();
                let _ = (&mut { call }).await;
                drop(waiting);
                keys.push(name);
                app.provider.stop_no_more();
                continue;
            }
            let _ = call.await;
            app.provider.stop_no_more();
            keys.push(name);
        }
    }
    let made = app.provider.effects();
    db.let_time_pass().await;
    let mut swept = Sweep::default();
    while {
        let one = Completer::new(&another, config().batch(1000)).run_once().await.unwrap();
        swept.unknown += one.unknown;
        one.total() > 0
    } {}
    assert_eq!(swept.unknown, 300, "none is retried silently");
    assert_eq!((app.provider.effects(), made), (200, 200));
    app.provider.answer_searches();
    db.let_time_pass().await;
    while Reconciler::new(&another, config()).run_once().await.unwrap().total() > 0 {}
    db.let_time_pass().await;
    while completed(&another).await.total() > 0 {}
    let mut of_who: HashMap<String, usize> = HashMap::new();
    for effect in app.provider.ledger() {
        *of_who.entry(effect.what).or_default() += 1;
    }
    for name in &keys {
        assert_eq!(status(&engine, name).await.status, Status::Completed, "{name}");
        assert_eq!(of_who.get(name), Some(&1), "{name}");
    }
    assert_eq!(of_who.len(), 300);
}

async fn g3_two_completers_and_a_retry_make_one_effect<S: TestDb>(db: S) {
    let app = App::default();
    let first = engine(&db, &app);
    let second = engine(&db.another().await, &app);
    for round in 0..20 {
        let name = format!("k{round}");
        dies_in_its_call(&first, &name, book(20)).await;
        db.let_time_pass().await;
        let retry = async { second.call(&scope(), &key(&name), book(20)).await };
        let (one, other, retried) = tokio::join!(completed(&first), completed(&second), retry);
        assert!(one.finished + other.finished <= 1, "{one:?} {other:?}");
        assert!(
            matches!(retried, Ok(Outcome::Finished(_) | Outcome::InProgress { .. })),
            "{retried:?}"
        );
        assert_eq!(app.provider.effects(), round + 1);
        finished(first.call(&scope(), &key(&name), book(20)).await);
    }
    assert_eq!(app.bodies()[2], 20, "the last phase was committed by one");
}

async fn g15_the_reaper_deletes_finished_and_expired_keys_only<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_secs(60)).max_attempts(2));
    for round in 0..25 {
        finished(engine.call(&scope(), &key(&format!("k{round}")), book(20)).await);
    }
    finished(engine.call(&scope(), &key("live"), book(20)).await);
    failed(engine.call(&scope(), &key("retryable"), troubled(Trouble::RetryForeignAlways)).await);
    let unknown = engine.call(&scope(), &key("unknown"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    failed(engine.call(&scope(), &key("dead"), troubled(Trouble::RetryForeignAlways)).await);
    db.let_time_pass().await;
    let dead = engine.call(&scope(), &key("dead"), book(20)).await.unwrap();
    assert!(matches!(dead, Outcome::DeadLetter), "{dead:?}");
    dies_in_its_call(&engine, "running", notify(Trouble::None)).await;
    engine.call(&scope(), &key("pending"), book(20)).accept().await.unwrap();
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at WHERE idempotency_key <> 'live'")
        .await;

    let mut reaper = Reaper::new(&db, config().reap_batch(10));
    let mut reaped = Vec::new();
    for _ in 0..4 {
        reaped.push(reaper.run_once().await.unwrap());
    }
    assert_eq!(reaped, [10, 10, 5, 0], "in bounded batches");
    let left = "SELECT count(*) FROM atomic_phases_keys WHERE idempotency_key IN \
                ('live', 'retryable', 'unknown', 'dead', 'running', 'pending')";
    assert_eq!(db.number(left).await, 6);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 6);

    // A request that an operator closed is a finished one.
    let word = Resolution::finish(Reply::text(200, "closed"));
    assert_eq!(engine.resolve(&scope(), &key("unknown"), word).await.unwrap(), Resolved::Applied);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at WHERE idempotency_key <> 'live'")
        .await;
    assert_eq!(reaper.run_once().await.unwrap(), 1);
}

/// One call passes over any number of them.
async fn g15_expired_requests_that_are_not_finished_keep_no_other_from_the_reaper<S: TestDb>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    for round in 0..7 {
        let request = troubled(Trouble::RetryForeignAlways);
        failed(engine.call(&scope(), &key(&format!("k{round}")), request).await);
    }
    for name in ["x", "y", "z"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    let mut reaper = Reaper::new(&db, config().reap_batch(2));
    for expected in [1, 2, 0] {
        assert_eq!(reaper.run_once().await.unwrap(), expected);
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 7);
}

/// The key's expiry passes while its request is unfinished and its client retries: still one effect.
async fn ttl_race_an_unfinished_key_does_not_expire_under_a_retrying_client<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignOnce)).await);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    assert_eq!(Reaper::new(&db, config()).run_once().await.unwrap(), 0);
    let retried = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(!retried.replayed, "resumed, not begun anew");
    let replayed = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(replayed.replayed, "its retention counts from when it was last run");
    assert_eq!((app.provider.effects(), app.bodies()), (1, [1, 2, 1]));
}

/// The process died in the middle, the key stays locked, and no client retries.
async fn zombie_transaction_a_stuck_key_is_freed_without_a_client<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_millis(300)));
    dies_in_its_call(&engine, "k", book(20)).await;
    let workers = engine.spawn_workers(config()).unwrap();
    until(async || status(&engine, "k").await.status == Status::Completed).await;
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    assert_eq!(app.provider.effects(), 1);
}

async fn g16_a_scope_at_its_quota_is_refused_and_others_are_not<S: TestDb>(db: S) {
    let app = App::default();
    let quota = Quota::default().keys(3);
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_secs(60)).quota(quota));
    for name in ["a", "b", "c"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    let refused = engine.call(&scope(), &key("d"), book(20)).await;
    assert!(matches!(refused, Err(CallError::TooManyKeys { limit: 3 })), "{refused:?}");
    assert!(finished(engine.call(&scope(), &key("a"), book(20)).await).replayed);
    let other = Scope::new("tenant-2").unwrap();
    finished(engine.call(&other, &key("d"), book(20)).await);

    let quota = Quota::default().rate(2, Duration::from_secs(3600));
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_secs(60)).quota(quota));
    for name in ["e", "f"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    let refused = engine.call(&scope(), &key("g"), book(20)).await;
    let Err(CallError::RateExceeded { limit: 2, retry_after, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(retry_after > Duration::from_secs(1700), "{retry_after:?}");
    assert_eq!(app.provider.effects(), 6);
}

async fn the_supervisor_runs_them_all_on_two_nodes_and_stops_them<S: TestDb>(db: S) {
    let app = App::default();
    let one = engine(&db, &app);
    let other = engine(&db.another().await, &app);
    let inbox = Inbox::default();
    let workers =
        [&one, &other].map(|engine| engine.spawn_workers(config().sink(inbox.sink())).unwrap());
    for round in 0..50 {
        let accepted = one.call(&scope(), &key(&format!("k{round}")), book(20)).accept().await;
        assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
    }
    until_within(Duration::from_secs(60), async || inbox.0.lock().unwrap().len() >= 100).await;
    for workers in workers {
        workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    }
    assert_eq!(app.provider.effects(), 50);
    one.call(&scope(), &key("late"), book(20)).accept().await.unwrap();
    // Ten times as long as they waited between two searches.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(status(&one, "late").await.status, Status::Pending, "they have stopped");
}

/// A first phase on an expired key keeps its row locked while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn g16_the_reaper_passes_over_locked_rows() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for name in ["locked-1", "locked-2", "free-1", "free-2"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    db.sql(
        "UPDATE atomic_phases_keys SET expires_at = clock_timestamp() \
         - CASE WHEN idempotency_key LIKE 'locked%' THEN interval '2 h' ELSE interval '1 h' END",
    )
    .await;
    use diesel_async::SimpleAsyncConnection;
    let another = db.another().await;
    let mut holder = another.pool().get().await.unwrap();
    let lock =
        "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE idempotency_key LIKE 'locked%' FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    let mut reaper = Reaper::new(&db, config().reap_batch(1));
    for reaped in [1, 1, 0] {
        let looked = tokio::time::timeout(Duration::from_secs(10), reaper.run_once()).await;
        assert_eq!(looked.expect("it waits for no lock").unwrap(), reaped);
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(reaper.run_once().await.unwrap(), 1);
    assert_eq!(reaper.run_once().await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_locked_rows_keep_no_other_abandoned_request_from_its_end() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    for name in ["locked-1", "locked-2", "locked-3", "free"] {
        dies_in_its_call(&engine, name, book(20)).await;
    }
    db.sql(
        "UPDATE atomic_phases_keys SET created_at = created_at - interval '65 s', \
         locked_until = locked_until - interval '65 s', expires_at = expires_at - interval '65 s'",
    )
    .await;
    use diesel_async::SimpleAsyncConnection;
    let another = db.another().await;
    let mut holder = another.pool().get().await.unwrap();
    let lock =
        "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE idempotency_key LIKE 'locked%' FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    let mut completer = Completer::new(&engine, config().batch(1));
    assert_eq!(completer.run_once().await.unwrap().finished, 1, "the one that is not locked");
    holder.batch_execute("ROLLBACK").await.unwrap();
    let mut finished = 1;
    for _ in 0..100 {
        finished += completer.run_once().await.unwrap().finished;
        if finished == 4 {
            break;
        }
    }
    assert_eq!((finished, app.provider.effects()), (4, 4), "those that were locked are remembered");
}
