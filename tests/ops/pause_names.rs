//! Pauses of a phase that has another name in another build, or none in a process without code.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::ops::{
    Actor, EndedBy, HeldBy, OperatorStore, Ops, OpsError, Permissions, Scopes,
};
use atomic_phases::phase::{DerivedKey, ForeignError};
use atomic_phases::worker::Announcer;
use atomic_phases::{Engine, ForeignCall, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::cast::*;
use super::pause_acts::is_done;
use super::pauses::{is_held, paused};
use crate::support::work::config;
use crate::support::*;

on_every_store! {
    g14_a_pause_holds_a_phase_back_under_each_of_its_names,
    g3_g14_of_the_pauses_under_two_names_only_the_seen_one_ends,
    g14_a_process_without_code_knows_the_pause_of_a_renamed_phase,
    g3_g14_of_two_builds_that_pause_a_phase_at_a_time_one_does,
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
