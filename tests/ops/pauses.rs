//! Pauses: no engine begins a foreign phase that an operator has paused, and requests that reach it wait.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::ops::{
    Actor, EndedBy, HeldBy, OperatorStore, Ops, OpsError, Permissions, RowVersion, Scopes, State,
};
use atomic_phases::phase::{DerivedKey, ForeignError};
use atomic_phases::worker::Announcer;
use atomic_phases::{Engine, ForeignCall, Outcome, PhaseResult, Reply, Scope, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::cast::*;
use crate::support::work::config;
use crate::support::*;

on_every_store! {
    g1_g2_a_paused_phase_is_not_begun_and_its_request_waits_uncounted,
    another_engine_hears_of_a_pause_and_of_its_end,
    a_process_that_starts_while_a_phase_is_paused_does_not_begin_it,
    a_process_that_stood_still_does_not_begin_a_phase_that_was_paused_meanwhile,
    a_pause_ends_by_itself,
    a_call_that_is_under_way_goes_on,
    g11_a_pause_longer_than_the_window_leaves_no_request_unknown_that_has_called_nothing,
    a_pause_is_of_a_foreign_phase_and_of_every_scope,
    g14_a_pause_holds_a_phase_back_under_each_of_its_names,
    g3_g14_of_the_pauses_under_two_names_only_the_seen_one_ends,
    g14_a_process_without_code_knows_the_pause_of_a_renamed_phase,
    a_pause_has_an_end_that_a_clock_holds,
    a_pause_of_no_time_is_refused_and_ends_no_other,
    g3_a_pause_is_replaced_and_ended_only_as_it_was_seen,
    the_audit_says_what_a_pause_replaced,
    g3_of_two_acts_on_a_pause_at_a_time_one_is_done,
    g3_g14_of_two_builds_that_pause_a_phase_at_a_time_one_does,
}

const BOOK: (&str, &str) = ("book", "charged");

/// Calls two providers.
#[derive(Clone, Serialize, Deserialize)]
struct Twice;

#[atomic_phases(name = "twice", version = 1)]
impl<Db: TestDb> Twice {
    #[phase(foreign(idempotent))]
    async fn first(&self, call: ForeignCall) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| Ok::<_, ForeignError>(())).await
    }

    #[phase(foreign(idempotent))]
    async fn second(&self, call: ForeignCall) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| Ok::<_, ForeignError>(())).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn paused<S: TestDb + OperatorStore>(engine: &TestEngine<S>, (of, phase): (&str, &str)) {
    admin(engine).pause(of, phase, None, "the bank is closed").await.unwrap();
}

async fn g1_g2_a_paused_phase_is_not_begun_and_its_request_waits_uncounted<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    for (definition, phase, name) in [("book", "charged", "k"), ("notify", "notified", "n")] {
        paused(&engine, (definition, phase)).await;
        // More often than the attempt cap, each time after its back-off.
        for _ in 0..25 {
            let (scope, key) = (scope(), key(name));
            let call = match name {
                "k" => engine.call(&scope, &key, book(20)).await,
                _ => engine.call(&scope, &key, notify(Trouble::None)).await,
            };
            let Ok(Outcome::Failed { cause, retry_after }) = call else { panic!("{call:?}") };
            assert_eq!(
                cause,
                FailureCause::Paused { phase: if name == "k" { "charged" } else { "notified" } }
            );
            assert!(retry_after <= Duration::from_secs(30) && !retry_after.is_zero());
            db.let_time_pass().await;
        }
        let found = ops.find(&scope(), &key(name)).await.unwrap();
        assert_eq!((found.state, found.open_intent), (State::Due, None));
        assert_eq!(found.reason.as_deref(), Some("the phase is paused by an operator"));
        let why = ops.why(found.request_id).await.unwrap();
        assert_eq!(
            (why.held_by, why.ended_by, why.until),
            (HeldBy::Paused, EndedBy::Operator, None)
        );
        for says in [phase, "by ada", "the bank is closed", "until an operator ends it"] {
            assert!(why.sentence.contains(says), "{why:?}");
        }
    }
    assert_eq!(app.provider.effects(), 0, "nothing was begun");
    assert_eq!(ops.pauses().await.unwrap().len(), 2);
    unpause(&ops, BOOK).await;
    unpause(&ops, ("notify", "notified")).await;
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    finished(engine.call(&scope(), &key("n"), notify(Trouble::None)).await);
    assert_eq!(app.provider.effects(), 2);
    let acts = ops.audit(None, None, 10).await.unwrap().rows;
    let told: Vec<_> = acts
        .iter()
        .map(|act| (act.act.as_str(), act.outcome.as_str(), act.phase.as_ref().unwrap().1.as_str()))
        .collect();
    let expected = [
        ("unpause", "applied", "notified"),
        ("unpause", "applied", "charged"),
        ("pause", "applied", "notified"),
        ("pause", "applied", "charged"),
    ];
    assert_eq!(told, expected);
}

async fn another_engine_hears_of_a_pause_and_of_its_end<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let here = engine(&db, &app);
    let often = Duration::from_millis(20);
    let there = engine_with(&db.another().await, &app, |builder| builder.pauses_every(often));
    let begins = async |name: &str| {
        let call = there.call(&scope(), &key(name), book(20)).await;
        match call {
            Ok(Outcome::Finished(_)) => true,
            Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. }) => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(begins("before").await);
    paused(&here, ("book", "charged")).await;
    let mut number = 0;
    while begins(&format!("k-{number}")).await {
        number += 1;
        assert!(number < 1000, "it never hears of it");
    }
    let effects = app.provider.effects();
    assert!(!begins("after").await);
    assert_eq!(app.provider.effects(), effects);
    unpause(&admin(&here), BOOK).await;
    until(async || begins("after").await).await;
    assert_eq!(app.provider.effects(), effects + 1);
}

async fn a_process_that_starts_while_a_phase_is_paused_does_not_begin_it<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    paused(&engine(&db, &app), ("book", "charged")).await;
    let started = engine(&db.another().await, &app);
    let call = started.call(&scope(), &key("k"), book(20)).await;
    assert!(
        matches!(call, Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. })),
        "{call:?}"
    );
    assert_eq!(app.provider.effects(), 0);
}

/// Calls a provider during whose answer its process stands still, and another.
#[derive(Clone, Serialize, Deserialize)]
struct Frozen;

/// The process that stands still: what it has begun, and until when it is held.
struct Standing {
    begun: tokio::sync::mpsc::UnboundedSender<&'static str>,
    thaws: Mutex<std::sync::mpsc::Receiver<()>>,
}

#[atomic_phases(name = "frozen", version = 1, app = Arc<Standing>)]
impl<Db: TestDb> Frozen {
    #[phase(foreign(idempotent))]
    async fn called(
        &self,
        call: ForeignCall,
        app: &Arc<Standing>,
    ) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| {
            app.begun.send("called").unwrap();
            app.thaws.lock().unwrap().recv().unwrap();
            Ok::<_, ForeignError>(())
        })
        .await
    }

    #[phase(foreign(idempotent))]
    async fn charged(
        &self,
        call: ForeignCall,
        app: &Arc<Standing>,
    ) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| {
            app.begun.send("charged").unwrap();
            Ok::<_, ForeignError>(())
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// Nothing of a runtime of one thread goes on while a phase blocks it. Whether its next read of the pauses or its next
/// phase comes first then is chance, and so it is tried several times.
async fn a_process_that_stood_still_does_not_begin_a_phase_that_was_paused_meanwhile<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let (begun, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let (thaw, thaws) = std::sync::mpsc::channel();
    let standing = Arc::new(Standing { begun, thaws: Mutex::new(thaws) });
    let every = Duration::from_millis(20);
    let build = move |db: S, app: &Arc<Standing>| {
        let builder = Engine::builder(db).app(app.clone()).pauses_every(every);
        builder.register::<Frozen>().build().unwrap()
    };
    let here = build(db.clone(), &standing);
    let ops = here.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    for round in 0..8 {
        let (db, standing) = (db.clone(), standing.clone());
        let process = std::thread::spawn(move || {
            let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            one.block_on(async {
                let engine = build(db.another().await, &standing);
                engine.call(&scope(), &key(&format!("k-{round}")), Frozen).await
            })
        });
        assert_eq!(seen.recv().await, Some("called"));
        let stands = Instant::now();
        ops.pause("frozen", "charged", None, "the bank is closed").await.unwrap();
        // What it has read of the pauses is no longer trusted by then.
        until(async || stands.elapsed() > every * 3).await;
        thaw.send(()).unwrap();
        let call = tokio::task::spawn_blocking(|| process.join()).await.unwrap().unwrap();
        assert!(is_held(call));
        assert!(seen.try_recv().is_err(), "nothing was begun");
        unpause(&ops, ("frozen", "charged")).await;
    }
}

async fn a_pause_ends_by_itself<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    let length = Duration::from_secs(5);
    ops.pause("book", "charged", Some(length), "maintenance").await.unwrap();
    let call = engine.call(&scope(), &key("k"), book(20)).await;
    let Ok(Outcome::Failed { retry_after, .. }) = call else { panic!("{call:?}") };
    assert!(retry_after <= length, "no longer than the pause: {retry_after:?}");
    let why = ops.why(id_of(&engine, "k").await).await.unwrap();
    assert!(why.until.is_some(), "{why:?}");
    until(async || {
        matches!(engine.call(&scope(), &key("k"), book(20)).await, Ok(Outcome::Finished(_)))
    })
    .await;
    assert!(ops.pauses().await.unwrap().is_empty());
    assert_eq!(app.provider.effects(), 1);
}

async fn a_call_that_is_under_way_goes_on<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let calling = engine.call(&scope(), &key("k"), book(20)).into_future();
    let calling = tokio::spawn(calling);
    let waiting = gate.recv().await.unwrap();
    paused(&engine, ("book", "charged")).await;
    app.provider.stop_no_more();
    drop(waiting);
    finished(calling.await.unwrap());
    assert_eq!(app.provider.effects(), 1);
}

/// Its first attempt met the pause: there is no earlier call that the provider could have forgotten.
async fn g11_a_pause_longer_than_the_window_leaves_no_request_unknown_that_has_called_nothing<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    paused(&engine, BOOK).await;
    assert!(is_held(engine.call(&scope(), &key("k"), book(20)).await));
    let (two_days_ago, then) = match is_postgres::<S>() {
        true => ("(SELECT now() - interval '48 hours')", "created_at"),
        false => ("advanced_at - 172800000", "created_at"),
    };
    set(&engine, "k", &format!("advanced_at = {two_days_ago}, run_after = {then}")).await;
    unpause(&admin(&engine), BOOK).await;
    assert!(app.provider.calls().is_empty(), "nothing was called");
    let call = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(call, Ok(Outcome::Finished(_))), "it calls for the first time: {call:?}");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A process that cannot read the pauses begins phases that an operator has paused: the log says so. All of it happens on
/// this thread.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn pauses_that_cannot_be_read_are_told_in_the_log() {
    let db = <atomic_phases::Sqlite as TestDb>::fresh().await;
    let app = App::default();
    paused(&engine(&db, &app), BOOK).await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let started = engine(&db.another().await, &app);
    db.sql("ALTER TABLE atomic_phases_pauses RENAME TO hidden").await;
    let call = started.call(&scope(), &key("k"), book(20)).await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let is_said = |line: &str| line.contains("WARN") && line.contains("pause");
    assert!(is_held(call) || log.lines().any(is_said), "it was called, and nothing is said: {log}");
}

/// "Each engine reads the pauses [..] before its first foreign phase": here another session has the table for longer than
/// the engine waits for it. A pool whose connections are in use for two seconds is the same.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_starting_process_that_cannot_read_the_pauses_begins_no_paused_phase() {
    use crate::support::db::{pg, url_of};
    use diesel_async::SimpleAsyncConnection;
    let db = <atomic_phases::Postgres as TestDb>::fresh().await;
    let app = App::default();
    paused(&engine(&db, &app), BOOK).await;
    let started = engine(&db.another().await, &app);
    let mut other = pg(&url_of(&db)).await;
    other.batch_execute("BEGIN; LOCK TABLE atomic_phases_pauses").await.unwrap();
    let call = started.call(&scope(), &key("k"), book(20)).await;
    drop(other);
    assert_eq!(app.provider.effects(), 0, "it was called, and is paused: {call:?}");
}

async fn a_pause_is_of_a_foreign_phase_and_of_every_scope<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    for (definition, phase) in [("book", "booked"), ("book", "gone"), ("gone", "charged")] {
        let refused = ops.pause(definition, phase, None, "r").await;
        assert!(matches!(refused, Err(OpsError::NoSuchPhase)), "{definition} {phase}: {refused:?}");
    }
    // If a pause names an invalid phase, the refusal's audit row does not contain that text.
    let long = "x".repeat(1 << 20);
    for name in ["", "\0", "a\nb", long.as_str()] {
        for refused in [
            ops.pause("book", name, None, "hostile").await,
            ops.unpause(name, "charged", &"seen".into(), "hostile").await.map(drop),
        ] {
            assert!(matches!(refused, Err(OpsError::NoSuchPhase)), "{refused:?}");
        }
    }
    let acts = ops.audit(None, None, 100).await.unwrap().rows;
    assert_eq!(acts.iter().filter(|act| act.reason == "hostile" && act.phase.is_none()).count(), 8);
    let some = [
        Scopes::Only(vec![Scope::new("tenant-1").unwrap()]),
        Scopes::Only(vec![]),
        Scopes::Prefix("tenant".into()),
    ];
    paused(&engine, ("book", "charged")).await;
    for scopes in some {
        let eve = Actor::new("eve", Permissions::admin(), scopes).unwrap();
        let eve = engine.ops(eve);
        let refused = eve.pause("notify", "notified", None, "r").await;
        assert!(matches!(refused, Err(OpsError::NotEveryScope)), "{refused:?}");
        let refused = eve.unpause("book", "charged", &"seen".into(), "r").await;
        assert!(matches!(refused, Err(OpsError::NotEveryScope)), "{refused:?}");
    }
    // A second pause is refused, unless it names the first: then there is one, with the latest reason.
    let hour = Some(Duration::from_secs(3600));
    let refused = ops.pause("book", "charged", hour, "shorter").await;
    assert!(matches!(refused, Err(OpsError::MovedOn)), "{refused:?}");
    let seen = pause_of(&ops, BOOK).await.version;
    ops.replace_pause("book", "charged", &seen, hour, "shorter").await.unwrap();
    let pauses = ops.pauses().await.unwrap();
    assert_eq!(pauses.len(), 1);
    assert_eq!((pauses[0].reason.as_str(), pauses[0].paused_by.as_str()), ("shorter", "ada"));
    assert!(pauses[0].ends_at.is_some_and(|ends| ends > pauses[0].paused_at));
    ops.unpause("book", "charged", &pauses[0].version, "r").await.unwrap();
    let refused = ops.unpause("book", "charged", &pauses[0].version, "r").await;
    assert!(matches!(refused, Err(OpsError::MovedOn)), "{refused:?}");
    let refused = ops.audit(None, None, 100).await.unwrap().rows;
    assert_eq!(refused.iter().filter(|act| act.outcome == "refused").count(), 3 + 8 + 6 + 2);
}

/// A build of a definition, whose phase is renamed in the next build.
macro_rules! build {
    ($name:ident, $phase:ident $(, was $was:literal)?) => {
        #[derive(Serialize, Deserialize)]
        struct $name;

        #[atomic_phases(name = "renamed", version = 1)]
        impl<Db: TestDb> $name {
            #[phase(foreign(idempotent) $(, was = $was)?)]
            async fn $phase(&self, call: ForeignCall, app: &App) -> PhaseResult<(), ForeignError> {
                let pay = async |key: DerivedKey| {
                    Ok::<_, ForeignError>(app.provider.call(key.as_str(), "pay").await)
                };
                call.make(pay).await.map(drop)
            }

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
                Db::insert_step(tx, "-", "answered").await?;
                Ok(Reply::text(200, "done"))
            }
        }
    };
}

build!(Before, paid);
build!(After, charged, was "paid");
build!(Newest, charged);

fn is_held(call: Result<Outcome, CallError>) -> bool {
    match call {
        Ok(Outcome::Finished(_)) => false,
        Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. }) => true,
        other => panic!("{other:?}"),
    }
}

/// During a deploy, an operator of either build pauses the phase for both.
async fn g14_a_pause_holds_a_phase_back_under_each_of_its_names<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let builder =
        |db: S| Engine::builder(db).app(app.clone()).pauses_every(Duration::from_millis(20));
    let before: TestEngine<S> = builder(db.clone()).register::<Before>().build().unwrap();
    let after = builder(db.another().await).register::<After>();
    let after: TestEngine<S> = after.build().unwrap();
    let calls = AtomicU32::new(0);
    let fresh = || key(&format!("k-{}", calls.fetch_add(1, Ordering::Relaxed)));
    let both_are = async |held: bool| {
        until(async || is_held(before.call(&scope(), &fresh(), Before).await) == held).await;
        until(async || is_held(after.call(&scope(), &fresh(), After).await) == held).await;
    };
    let (old, new) = ((&before, "paid"), (&after, "charged"));
    for (paused, ended) in [(old, old), (old, new), (new, old), (new, new)] {
        admin(paused.0).pause("renamed", paused.1, None, "the bank is closed").await.unwrap();
        both_are(true).await;
        for (engine, name) in [old, new] {
            let (ops, pauses) = (admin(engine), admin(engine).pauses().await.unwrap());
            let phases = ops.foreign_phases().unwrap();
            assert_eq!((phases.len(), phases[0].phase.as_str(), pauses.len()), (1, name, 1));
            assert!(phases[0].is_paused_by(&pauses[0]), "{phases:?} {pauses:?}");
        }
        let seen = pause_of(&admin(ended.0), ("renamed", "paid")).await.version;
        admin(ended.0).unpause("renamed", ended.1, &seen, "it is open").await.unwrap();
        assert!(admin(&before).pauses().await.unwrap().is_empty());
        both_are(false).await;
    }
}

/// A build that does not know the earlier name pauses the phase under the newer one: another build's operator is refused, and
/// ends no pause that was not seen.
async fn g3_g14_of_the_pauses_under_two_names_only_the_seen_one_ends<S: TestDb + OperatorStore>(
    db: S,
) {
    let app = App::default();
    let newest: TestEngine<S> =
        Engine::builder(db.clone()).app(app.clone()).register::<Newest>().build().unwrap();
    let after: TestEngine<S> =
        Engine::builder(db.another().await).app(app.clone()).register::<After>().build().unwrap();
    let pauses = async |ops: &Ops<S>| ops.pause("renamed", "charged", None, "r").await;
    let (ada, bob) = (admin(&newest), Actor::new("bob", Permissions::admin(), Scopes::All));
    let bob = after.ops(bob.unwrap());
    pauses(&ada).await.unwrap();
    let refused = pauses(&bob).await;
    assert!(matches!(refused, Err(OpsError::MovedOn)), "it is paused: {refused:?}");
    let seen = pause_of(&bob, ("renamed", "charged")).await.version;
    assert_eq!(bob.unpause("renamed", "charged", &seen, "it is open").await.unwrap(), None);

    // The newest build does not know that the pause under the earlier name is of its phase.
    pauses(&bob).await.unwrap();
    pauses(&ada).await.unwrap();
    let [of_bob, of_ada] =
        [pause_of(&bob, ("renamed", "paid")).await, pause_of(&ada, ("renamed", "charged")).await];
    let told = bob.unpause("renamed", "charged", &of_ada.version, "it is open").await;
    assert_eq!(told.unwrap().as_ref(), Some(&of_bob), "the phase is still paused");
    assert_eq!(bob.pauses().await.unwrap(), std::slice::from_ref(&of_bob));
    assert!(is_held(after.call(&scope(), &key("k"), After).await));
    let again = bob.unpause("renamed", "charged", &of_ada.version, "it is open").await;
    assert!(matches!(again, Err(OpsError::MovedOn)), "{again:?}");
    let told = bob.unpause("renamed", "charged", &of_bob.version, "it is open").await;
    assert_eq!(told.unwrap(), None);
    assert!(!is_held(after.call(&scope(), &key("k2"), After).await));
    // Each act has one row, the newest first.
    let acts = bob.audit(None, None, 100).await.unwrap().rows;
    let told: Vec<_> = acts
        .iter()
        .map(|act| (&*act.act, &*act.outcome, &*act.phase.as_ref().unwrap().1))
        .collect();
    let expected = [
        ("unpause", "applied", "paid"),
        ("unpause", "refused", "charged"),
        ("unpause", "applied", "charged"),
        ("pause", "applied", "charged"),
        ("pause", "applied", "paid"),
        ("unpause", "applied", "charged"),
        ("pause", "refused", "charged"),
        ("pause", "applied", "charged"),
    ];
    assert_eq!(told, expected);
}

/// By the row, and by what running processes tell. What it cannot know it does not take for no pause.
async fn g14_a_process_without_code_knows_the_pause_of_a_renamed_phase<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let builder = Engine::builder(db.clone()).app(App::default());
    let engine: TestEngine<S> = builder.register::<After>().build().unwrap();
    paused(&engine, ("renamed", "charged")).await;
    assert!(is_held(engine.call(&scope(), &key("k"), After).await));
    let bare: Engine<S> = Engine::builder(db.clone()).build().unwrap();
    let bare = bare.ops(actor(Permissions::admin()));
    let why = bare.why(id_of(&engine, "k").await).await.unwrap();
    assert_eq!((why.held_by, why.ended_by), (HeldBy::Paused, EndedBy::Operator), "{why:?}");
    let seen = pause_of(&bare, ("renamed", "paid")).await.version;
    let ends = async || bare.unpause("renamed", "charged", &seen, "it is open").await;
    let told = ends().await;
    assert!(matches!(told, Err(OpsError::NoSuchPhase)), "{told:?}");
    Announcer::new(&engine, config()).run_once().await.unwrap();
    ends().await.unwrap();
    assert!(bare.pauses().await.unwrap().is_empty());
    let told = ends().await;
    assert!(matches!(told, Err(OpsError::MovedOn)), "{told:?}");
    // The same where another phase of the definition is paused, and none was renamed.
    let twice: TestEngine<S> =
        Engine::builder(db.clone()).app(App::default()).register::<Twice>().build().unwrap();
    for phase in ["first", "second"] {
        paused(&twice, ("twice", phase)).await;
    }
    Announcer::new(&twice, config()).run_once().await.unwrap();
    let seen = pause_of(&bare, ("twice", "first")).await.version;
    bare.unpause("twice", "first", &seen, "it is open").await.unwrap();
    let told = bare.unpause("twice", "first", &seen, "it is open").await;
    assert!(matches!(told, Err(OpsError::MovedOn)), "{told:?}");
    let told = bare.unpause("twice", "third", &seen, "it is open").await;
    assert!(matches!(told, Err(OpsError::NoSuchPhase)), "{told:?}");
}

async fn a_pause_has_an_end_that_a_clock_holds<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let years = |years: u64| Some(Duration::from_secs(years * 365 * 86_400));
    for length in [Some(Duration::MAX), years(11)] {
        let refused = ops.pause("book", "charged", length, "r").await;
        assert!(matches!(refused, Err(OpsError::TooLong)), "{refused:?}");
    }
    assert!(ops.pauses().await.unwrap().is_empty());
    ops.pause("book", "charged", years(10), "r").await.unwrap();
    assert!(ops.pauses().await.unwrap()[0].ends_at.is_some());
}

async fn a_pause_of_no_time_is_refused_and_ends_no_other<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let too_short = [Some(Duration::ZERO), Some(Duration::from_millis(999))];
    for length in too_short {
        let refused = ops.pause("book", "charged", length, "r").await;
        assert!(matches!(refused, Err(OpsError::TooShort)), "{refused:?}");
    }
    assert!(ops.pauses().await.unwrap().is_empty());
    ops.pause("book", "charged", None, "the bank is closed").await.unwrap();
    let seen = pause_of(&ops, BOOK).await;
    for length in too_short {
        let refused = ops.replace_pause("book", "charged", &seen.version, length, "r").await;
        assert!(matches!(refused, Err(OpsError::TooShort)), "{refused:?}");
    }
    assert_eq!(ops.pauses().await.unwrap(), [seen]);
}

/// Another operator replaces it, or ends it, or its time is over.
async fn g3_a_pause_is_replaced_and_ended_only_as_it_was_seen<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let bob = engine.ops(Actor::new("bob", Permissions::admin(), Scopes::All).unwrap());
    let is_refused = async |version: &RowVersion| {
        let stands = ops.pauses().await.unwrap();
        for told in [
            ops.replace_pause("book", "charged", version, None, "stale").await.map(drop),
            ops.unpause("book", "charged", version, "stale").await.map(drop),
        ] {
            assert!(matches!(told, Err(OpsError::MovedOn)), "{told:?}");
        }
        assert_eq!(ops.pauses().await.unwrap(), stands);
    };
    is_refused(&"none".into()).await;
    paused(&engine, BOOK).await;
    let first = pause_of(&ops, BOOK).await;
    let hour = Some(Duration::from_secs(3600));
    let told = bob.replace_pause("book", "charged", &first.version, hour, "shorter").await;
    assert_eq!(told.unwrap(), first);
    let second = pause_of(&ops, BOOK).await;
    assert_eq!((&*second.paused_by, &*second.reason), ("bob", "shorter"));
    paused(&engine, ("notify", "notified")).await;
    let of_another_phase = pause_of(&ops, ("notify", "notified")).await.version;
    for stale in [&first.version, &of_another_phase, &"none".into()] {
        is_refused(stale).await;
    }
    unpause(&bob, BOOK).await;
    is_refused(&second.version).await;
    // Long enough to be seen.
    ops.pause("book", "charged", Some(Duration::from_secs(2)), "a moment").await.unwrap();
    let third = pause_of(&ops, BOOK).await;
    until(async || ops.pauses().await.unwrap().len() == 1).await;
    is_refused(&third.version).await;
    // What is over is not in the way of the next.
    ops.pause("book", "charged", hour, "longer").await.unwrap();
    is_refused(&third.version).await;
    let acts = ops.audit(None, None, 100).await.unwrap().rows;
    let refused = acts.iter().filter(|act| act.reason == "stale" && act.outcome == "refused");
    assert_eq!(refused.count(), 2 * 7);
    assert_eq!(acts.len(), 2 * 7 + 6);
}

/// How a phase stood, and stands, by each act on its pause that was done, the oldest first.
async fn told_of_pauses<S: TestDb + OperatorStore>(
    engine: &TestEngine<S>,
) -> Vec<(String, String)> {
    let mut acts = admin(engine).audit(None, None, 100).await.unwrap().rows;
    acts.retain(|act| act.outcome == "applied");
    acts.reverse();
    acts.into_iter().map(|act| (act.before.unwrap(), act.after.unwrap())).collect()
}

/// Such a text, without its time.
fn kind(text: &str) -> String {
    match text.strip_prefix("paused until ") {
        Some(time) => {
            chrono::DateTime::parse_from_rfc3339(time).unwrap();
            "until".to_owned()
        }
        None => text.to_owned(),
    }
}

async fn the_audit_says_what_a_pause_replaced<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let bob = engine.ops(Actor::new("bob", Permissions::admin(), Scopes::All).unwrap());
    paused(&engine, ("book", "charged")).await;
    let hour = Some(Duration::from_secs(3600));
    let seen = pause_of(&bob, BOOK).await.version;
    bob.replace_pause("book", "charged", &seen, hour, "shorter").await.unwrap();
    let ends = pause_of(&ops, BOOK).await.ends_at.unwrap();
    unpause(&ops, BOOK).await;
    // One that is over is not replaced.
    let moment = Some(Duration::from_secs(1));
    ops.pause("book", "charged", moment, "a moment").await.unwrap();
    until(async || ops.pauses().await.unwrap().is_empty()).await;
    paused(&engine, ("book", "charged")).await;

    let told = told_of_pauses(&engine).await;
    let kinds: Vec<_> = told.iter().map(|(before, after)| (kind(before), kind(after))).collect();
    let expected = [
        ("runs", "paused"),
        ("paused", "until"),
        ("until", "runs"),
        ("runs", "until"),
        ("runs", "paused"),
    ];
    assert_eq!(kinds, expected.map(|(before, after)| (before.to_owned(), after.to_owned())));
    for text in [&told[1].1, &told[2].0] {
        let time = text.strip_prefix("paused until ").unwrap();
        let time = chrono::DateTime::parse_from_rfc3339(time).unwrap();
        assert!((time.to_utc() - ends).num_seconds().abs() <= 1, "{text}: {ends}");
    }
}

/// Whether this act was done, of two at a time.
fn is_done<T: std::fmt::Debug>(told: &Result<T, OpsError>) -> bool {
    assert!(matches!(told, Ok(_) | Err(OpsError::MovedOn)), "{told:?}");
    told.is_ok()
}

/// Both operators have seen the same: that the phase is not paused, or one pause.
async fn g3_of_two_acts_on_a_pause_at_a_time_one_is_done<S: TestDb + OperatorStore>(db: S) {
    let here = engine(&db, &App::default());
    let there = engine(&db.another().await, &App::default());
    let (one, other) = (admin(&here), admin(&there));
    let hour = Some(Duration::from_secs(3600));
    for round in 0..10 {
        let (first, second) = tokio::join!(
            one.pause("book", "charged", None, "one"),
            other.pause("book", "charged", hour, "other"),
        );
        assert!(is_done(&first) != is_done(&second), "{round}: {first:?} {second:?}");
        let seen = pause_of(&one, BOOK).await;
        assert_eq!(seen.ends_at.is_none(), first.is_ok(), "{round}: {seen:?}");
        let (first, second) = tokio::join!(
            one.replace_pause("book", "charged", &seen.version, None, "one again"),
            other.replace_pause("book", "charged", &seen.version, hour, "other again"),
        );
        assert!(is_done(&first) != is_done(&second), "{round}: {first:?} {second:?}");
        assert_eq!(first.or(second).unwrap(), seen, "{round}");
        let seen = pause_of(&one, BOOK).await.version;
        let (begun, ended) = tokio::join!(
            one.replace_pause("book", "charged", &seen, hour, "longer"),
            other.unpause("book", "charged", &seen, "it is open"),
        );
        assert!(is_done(&begun) != is_done(&ended), "{round}: {begun:?} {ended:?}");
        if begun.is_ok() {
            unpause(&one, BOOK).await;
        }
        assert!(one.pauses().await.unwrap().is_empty(), "{round}");
    }
    // Each act finds the phase as the one before it has left it.
    let mut stands = "runs".to_owned();
    for (before, after) in told_of_pauses(&here).await {
        assert_eq!(kind(&before), stands);
        stands = kind(&after);
    }
    assert_eq!(stands, "runs");
}

/// Two builds know the phase by different names. Both write under the oldest one, which is the key of the row.
async fn g3_g14_of_two_builds_that_pause_a_phase_at_a_time_one_does<S: TestDb + OperatorStore>(
    db: S,
) {
    let builder = |db: S| Engine::builder(db).app(App::default());
    let before: TestEngine<S> = builder(db.clone()).register::<Before>().build().unwrap();
    let after = builder(db.another().await).register::<After>();
    let after: TestEngine<S> = after.build().unwrap();
    let ada = admin(&before);
    let bob = after.ops(Actor::new("bob", Permissions::admin(), Scopes::All).unwrap());
    for round in 0..10 {
        let (first, second) = tokio::join!(
            ada.pause("renamed", "paid", None, "the bank is closed"),
            bob.pause("renamed", "charged", None, "the bank is closed"),
        );
        assert!(is_done(&first) != is_done(&second), "{round}: {first:?} {second:?}");
        let mut pauses = bob.pauses().await.unwrap();
        assert_eq!(pauses.len(), 1, "{round}: {pauses:?}");
        let pause = pauses.remove(0);
        let by = if first.is_ok() { "ada" } else { "bob" };
        assert_eq!((&*pause.phase, &*pause.paused_by), ("paid", by), "{round}");
        let ended = bob.unpause("renamed", "charged", &pause.version, "it is open").await;
        assert_eq!(ended.unwrap(), None, "{round}: no other pause stands");
    }
    let acts = ada.audit(None, None, 100).await.unwrap().rows;
    let pauses = acts.iter().filter(|act| act.act == "pause");
    let outcomes = pauses.map(|act| &*act.outcome);
    let (done, refused): (Vec<_>, Vec<_>) = outcomes.partition(|outcome| *outcome == "applied");
    assert_eq!((done.len(), refused), (10, vec!["refused"; 10]));
}

/// The end of a pause is written and not committed when another operator pauses the phase, or replaces the pause.
#[tokio::test(flavor = "multi_thread")]
async fn g3_an_act_behind_an_end_that_is_being_committed_finds_what_became_of_it() {
    use crate::support::db::{pg, url_of};
    use diesel_async::SimpleAsyncConnection;

    const WAITS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
        AND datname = current_database()";
    let db = atomic_phases::Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for (ends_with, replaces, is_done) in [
        ("COMMIT", false, true),
        ("COMMIT", true, false),
        ("ROLLBACK", false, false),
        ("ROLLBACK", true, true),
    ] {
        paused(&engine, BOOK).await;
        let ops = admin(&engine);
        let seen = pause_of(&ops, BOOK).await.version;
        let mut other = pg(&url_of(&db)).await;
        other.batch_execute("BEGIN; DELETE FROM atomic_phases_pauses").await.unwrap();
        let hour = Some(Duration::from_secs(3600));
        let begins = tokio::spawn(async move {
            match replaces {
                true => ops.replace_pause("book", "charged", &seen, hour, "longer").await.map(drop),
                false => ops.pause("book", "charged", hour, "longer").await,
            }
        });
        until(async || db.number(WAITS).await > 0).await;
        other.batch_execute(ends_with).await.unwrap();
        let told = begins.await.unwrap();
        assert_eq!(told.is_ok(), is_done, "{ends_with} {replaces}: {told:?}");
        let act = admin(&engine).audit(None, None, 1).await.unwrap().rows.remove(0);
        let before = match (is_done, replaces) {
            (false, _) => None,
            (true, false) => Some("runs"),
            (true, true) => Some("paused"),
        };
        assert_eq!((&*act.reason, act.before.as_deref()), ("longer", before), "{act:?}");
        for pause in admin(&engine).pauses().await.unwrap() {
            unpause(&admin(&engine), (&pause.definition, &pause.phase)).await;
        }
    }
}
