//! The engine, too, refuses a change of the level *never*: if the call of a row was made, a build that a `locked!`
//! test or the compiler should have stopped does not make it again.

use atomic_phases::compat::{Definitions, Level, Lint, compare};
use atomic_phases::engine::{FailureCause, StrandedBecause};
use atomic_phases::phase::{DerivedKey, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::worker::Completer;
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

use crate::support::work::config;
use crate::support::*;

on_every_store! {
    g1_g2_no_change_that_is_never_right_calls_again,
}

/// The call, whose answer is lost in the first attempt.
async fn pay(call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<u8> {
    let made = async |key: DerivedKey| {
        app.provider.call(key.as_str(), "pay").await;
        match ctx.attempt() {
            1 => Err(PhaseError::retryable("no answer")),
            _ => Ok(1),
        }
    };
    call.make(made).await
}

trait Pays: Sized {
    const PAYS: Self;
}

macro_rules! pays {
    ($name:ident, $definition:literal, $paid:ident, $phase:meta $(, $asked:ident)?) => {
        #[derive(Serialize, Deserialize)]
        struct $name {}

        impl Pays for $name {
            const PAYS: Self = Self {};
        }

        #[atomic_phases(name = $definition, version = 1)]
        impl<Db: TestDb> $name {
            #[phase]
            async fn noted(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<u8> {
                Db::insert_step(tx, "pay", "noted").await?;
                Ok(1)
            }

            #[$phase]
            async fn $paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<u8> {
                pay(call, app, ctx).await
            }

            $(#[reconcile($paid)]
            async fn $asked(&self) -> PhaseResult<Reconciled<u8>> {
                Ok(Reconciled::StillUnknown)
            })?

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
                Db::insert_step(tx, "pay", "answered").await?;
                Ok(Reply::new(201))
            }
        }
    };
}

pays!(Before, "pay", paid, phase(foreign(idempotent), was = "charged"));
pays!(PhaseRenamed, "pay", settled, phase(foreign(idempotent)));
pays!(OldestNameDropped, "pay", paid, phase(foreign(idempotent)));
pays!(Weakened, "pay", paid, phase(foreign(at_most_once), was = "charged"), asked);
pays!(DefinitionRenamed, "payments.create", paid, phase(foreign(idempotent), was = "charged"));

fn build<S: TestDb, R: RequestDefinition<S, App>>(db: &S, app: &App) -> Engine<S, App> {
    let definitions = Definitions::new().with::<R>();
    Engine::builder(db.clone()).app(app.clone()).definitions(definitions).build().unwrap()
}

/// The row of `Before` under this build: the answer to a retry, and the report of `check`.
async fn refused<S: TestDb, R: RequestDefinition<S, App> + Pays>(
    db: &S,
    app: &App,
    lint: Lint,
    name: &str,
) -> (Result<Outcome, atomic_phases::engine::CallError>, Vec<StrandedBecause>) {
    let locks = |definitions: Definitions<S, App>| definitions.locks();
    let (before, after) =
        (locks(Definitions::new().with::<Before>()), locks(Definitions::new().with::<R>()));
    let never: Vec<Lint> = compare(&before, &after)
        .iter()
        .map(|finding| finding.lint)
        .filter(|lint| lint.level() == Level::Never)
        .collect();
    assert_eq!(never, [lint]);
    let new = build::<S, R>(db, app);
    let report = new.check().await.unwrap();
    let told = new.call(&scope(), &key(name), R::PAYS).await;
    Completer::new(&new, config()).run_once().await.unwrap();
    (told, report.stranded.iter().map(|stranded| stranded.because).collect())
}

async fn g1_g2_no_change_that_is_never_right_calls_again<S: TestDb>(db: S) {
    let app = App::default();
    let old = build::<S, Before>(&db, &app);
    let in_its_call = async |name: &str| {
        failed(old.call(&scope(), &key(name), Before::PAYS).await);
        db.let_time_pass().await;
    };
    in_its_call("k").await;
    let (told, because) = refused::<S, PhaseRenamed>(&db, &app, Lint::PhaseRenamed, "k").await;
    assert_eq!(failed(told), FailureCause::NotKnownHere);
    assert!(!because.is_empty());
    let (told, because) =
        refused::<S, OldestNameDropped>(&db, &app, Lint::ProviderKeyChanged, "k").await;
    assert_eq!(failed(told), FailureCause::NotKnownHere);
    assert_eq!(because, [StrandedBecause::ProviderKeyChanged]);
    let (told, because) =
        refused::<S, DefinitionRenamed>(&db, &app, Lint::DefinitionRenamed, "k").await;
    assert!(matches!(told, Ok(Outcome::Mismatch)), "its key is used: {told:?}");
    assert_eq!(because, [StrandedBecause::UnknownDefinition]);
    assert_eq!(app.provider.calls().len(), 1, "it was called once, and never again");

    // The request is not lost: the previous build continues it, with the same key.
    finished(old.call(&scope(), &key("k"), Before::PAYS).await);
    assert_eq!(app.provider.effects(), 1);

    in_its_call("once").await;
    let calls = app.provider.calls().len();
    let (told, _) = refused::<S, Weakened>(&db, &app, Lint::EffectWeakened, "once").await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    assert_eq!(app.provider.calls().len(), calls, "it is unknown whether the call was made");
}
