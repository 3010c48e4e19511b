//! For each pair of a family of definitions: one build writes rows, and stops at each of its recovery points; the
//! other one runs them. The findings of `compare` must match what happens.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use atomic_phases::compat::{
    CallState, Definitions, Level, Lock, Locks, Resumed, compare, resumed,
};
use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::phase::{DerivedKey, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::{
    Engine, ForeignCall, IdempotencyKey, Outcome, PhaseError, PhaseResult, Reply, RequestContext,
    Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

use crate::support::*;

on_every_store! {
    g14_what_compare_says_of_a_change_is_what_happens_to_the_rows,
}

async fn stopped(stop: &str, phase: &str, ctx: &RequestContext) -> PhaseResult<()> {
    match ctx.attempt() == 1 && stop == phase {
        true => Err(PhaseError::retryable("asked for")),
        false => Ok(()),
    }
}

async fn call(
    call: ForeignCall,
    app: &App,
    stop: &str,
    phase: &str,
    ctx: &RequestContext,
) -> PhaseResult<u8> {
    let made =
        async |key: DerivedKey| Ok::<_, PhaseError>(app.provider.call(key.as_str(), phase).await);
    call.make(made).await?;
    stopped(stop, phase, ctx).await.map(|()| 1)
}

pub trait Member: Sized {
    fn stopping(at: &str) -> Self;
}

/// A definition from its phases: `local a`, `serializable a`, `idempotent b`, `window b`, `timed b`, `once b
/// asked_b`, each with the name that it had; and the last.
macro_rules! member {
    (@ $name:ident { $($done:tt)* } local $phase:ident $(was $was:literal)?, $($rest:tt)*) => {
        member! { @ $name { $($done)*
            #[phase($(was = $was)?)]
            async fn $phase(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u8> {
                Db::insert_step(tx, &ctx.uuid(0).to_string(), stringify!($phase)).await?;
                stopped(&self.stop, stringify!($phase), ctx).await.map(|()| 1)
            }
        } $($rest)* }
    };
    (@ $name:ident { $($done:tt)* } idempotent $phase:ident $(was $was:literal)?, $($rest:tt)*) => {
        member! { @ $name { $($done)*
            #[phase(foreign(idempotent) $(, was = $was)?)]
            async fn $phase(&self, c: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<u8> {
                call(c, app, &self.stop, stringify!($phase), ctx).await
            }
        } $($rest)* }
    };
    (@ $name:ident { $($done:tt)* } window $phase:ident, $($rest:tt)*) => {
        member! { @ $name { $($done)*
            #[phase(foreign(idempotent, window = "24h"))]
            async fn $phase(&self, c: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<u8> {
                call(c, app, &self.stop, stringify!($phase), ctx).await
            }
        } $($rest)* }
    };
    (@ $name:ident { $($done:tt)* } timed $phase:ident, $($rest:tt)*) => {
        member! { @ $name { $($done)*
            #[phase(foreign(idempotent), timeout = "5s")]
            async fn $phase(&self, c: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<u8> {
                call(c, app, &self.stop, stringify!($phase), ctx).await
            }
        } $($rest)* }
    };
    (@ $name:ident { $($done:tt)* } serializable $phase:ident, $($rest:tt)*) => {
        member! { @ $name { $($done)*
            #[phase(isolation = "serializable", commit)]
            async fn $phase(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u8> {
                Db::insert_step(tx, &ctx.uuid(0).to_string(), stringify!($phase)).await?;
                stopped(&self.stop, stringify!($phase), ctx).await.map(|()| 1)
            }
        } $($rest)* }
    };
    (@ $name:ident { $($done:tt)* } once $phase:ident $asked:ident, $($rest:tt)*) => {
        member! { @ $name { $($done)*
            #[phase(foreign(at_most_once))]
            async fn $phase(&self, c: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<u8> {
                call(c, app, &self.stop, stringify!($phase), ctx).await
            }

            #[reconcile($phase)]
            async fn $asked(&self) -> PhaseResult<Reconciled<u8>> {
                Ok(Reconciled::StillUnknown)
            }
        } $($rest)* }
    };
    (@ $name:ident { $($done:tt)* } last $phase:ident) => {
        #[derive(Serialize, Deserialize)]
        pub struct $name {
            stop: Unfingerprinted<String>,
        }

        impl Member for $name {
            fn stopping(at: &str) -> Self {
                Self { stop: at.to_owned().into() }
            }
        }

        #[atomic_phases(name = "family", version = 1)]
        impl<Db: TestDb> $name {
            $($done)*

            #[phase]
            async fn $phase(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Reply> {
                Db::insert_step(tx, &ctx.uuid(0).to_string(), stringify!($phase)).await?;
                stopped(&self.stop, stringify!($phase), ctx).await?;
                Ok(Reply::new(204))
            }
        }
    };
    ($name:ident: $($phases:tt)*) => { member! { @ $name {} $($phases)* } };
}

member!(Plain: local a, idempotent b, local c, last z);
member!(Renamed: local a, idempotent bb was "b", local c, last z);
member!(RenamedBadly: local a, idempotent bb, local c, last z);
member!(LastRenamed: local a, idempotent b, local c, last zz);
member!(Inserted: local a, local n, idempotent b, local c, last z);
member!(InsertedLast: local a, idempotent b, local c, local n, last z);
member!(Removed: local a, idempotent b, last z);
member!(Reordered: local a, local c, idempotent b, last z);
member!(ReorderedAndRenamed: local a, local c, idempotent bb was "b", last z);
member!(InOtherTransactions: serializable a, timed b, local c, last z);
member!(Once: local a, once b asked_b, local c, last z);
member!(Local: local a, local b, local c, last z);
member!(Windowed: local a, window b, last z);
member!(InsertedBeforeWindow: local a, local n, window b, last z);
member!(ForeignFirst: idempotent b, local a, last z);
member!(TookTheName: local a, local c was "b", last z);

type Run<S> = fn(
    &Engine<S, App>,
    IdempotencyKey,
    String,
) -> Pin<Box<dyn Future<Output = Result<Outcome, CallError>> + Send + '_>>;

/// One of the family, without its type.
struct Build<S: TestDb> {
    name: &'static str,
    engine: Engine<S, App>,
    run: Run<S>,
    lock: Lock,
}

fn build<S: TestDb, R: RequestDefinition<S, App> + Member>(
    db: &S,
    app: &App,
    name: &'static str,
) -> Build<S> {
    let definitions = || Definitions::<S, App>::new().with::<R>();
    let locks = definitions().locks();
    let engine = Engine::builder(db.clone()).app(app.clone()).definitions(definitions());
    Build {
        name,
        engine: engine.build().unwrap(),
        run: |engine, key, stop| {
            Box::pin(async move { engine.call(&scope(), &key, R::stopping(&stop)).await })
        },
        lock: locks.iter().next().unwrap().clone(),
    }
}

macro_rules! family {
    ($db:expr, $app:expr, $($name:ident),*) => {
        vec![$(build::<S, $name>($db, $app, stringify!($name))),*]
    };
}

async fn g14_what_compare_says_of_a_change_is_what_happens_to_the_rows<S: TestDb>(db: S) {
    let app = App::default();
    let family = family!(
        &db,
        &app,
        Plain,
        Renamed,
        RenamedBadly,
        LastRenamed,
        Inserted,
        InsertedLast,
        Removed,
        Reordered,
        ReorderedAndRenamed,
        InOtherTransactions,
        Once,
        Local,
        Windowed,
        InsertedBeforeWindow,
        ForeignFirst,
        TookTheName
    );
    let mut unknown = BTreeSet::new();
    for (old, new) in pairs(&family) {
        for phase in &old.lock.phases {
            let key = key_of(old, new, &phase.name);
            let stopped = (old.run)(&old.engine, key.clone(), phase.name.clone()).await;
            match stopped {
                Ok(Outcome::Failed { .. }) => {}
                Ok(Outcome::Unknown { .. }) => drop(unknown.insert(key.as_str().to_owned())),
                other => panic!("{} before {}: {other:?}", old.name, phase.name),
            }
        }
    }
    db.let_time_pass().await;
    let mut verdicts: BTreeMap<Level, u32> = BTreeMap::new();
    for (old, new) in pairs(&family) {
        let worst = judged(&app, &unknown, old, new).await;
        *verdicts.entry(worst).or_default() += 1;
    }
    let lock = |name| family.iter().find(|build| build.name == name).unwrap().lock.clone();
    assert_eq!(lock("Plain"), lock("InOtherTransactions"), "no row can see it");
    // The test must have seen pairs of each kind.
    assert!(verdicts[&Level::Allow] > 13 && verdicts[&Level::Never] > 10, "{verdicts:?}");
}

fn pairs<S: TestDb>(family: &[Build<S>]) -> impl Iterator<Item = (&Build<S>, &Build<S>)> {
    family.iter().flat_map(|old| family.iter().map(move |new| (old, new)))
}

/// The key of the row that `old` stopped in `phase`, for `new` to continue.
fn key_of<S: TestDb>(old: &Build<S>, new: &Build<S>, phase: &str) -> IdempotencyKey {
    key(&format!("{}-{}-{phase}", old.name, new.name))
}

/// Runs rows of `old` by `new`, and compares what happens with the findings. Returns the worst level.
async fn judged<S: TestDb>(
    app: &App,
    unknown: &BTreeSet<String>,
    old: &Build<S>,
    new: &Build<S>,
) -> Level {
    let locks = |lock: &Lock| -> Locks { [lock.clone()].into_iter().collect() };
    let findings = compare(&locks(&old.lock), &locks(&new.lock));
    let denying: Vec<_> = findings.iter().filter(|f| f.lint.level() >= Level::Deny).collect();
    let mut shown = 0;
    for (done, phase) in old.lock.phases.iter().enumerate() {
        let place = format!("{} -> {}, before {}: {findings:#?}", old.name, new.name, phase.name);
        let key = key_of(old, new, &phase.name);
        // The outcome of an at-most-once call stays unknown, whichever build asks.
        if unknown.contains(key.as_str()) {
            let open = resumed(&old.lock.phases, done, CallState::IntentOpen, &new.lock.phases);
            shown += u32::from(open.is_err());
            continue;
        }
        let effects = app.provider.effects();
        let call = CallState::MayHaveBeenMade;
        let predicted = resumed(&old.lock.phases, done, call, &new.lock.phases);
        let outcome = (new.run)(&new.engine, key, String::new()).await;
        let goes_on = matches!(outcome, Ok(Outcome::Finished(_)));
        match predicted {
            Ok(Resumed::Continues) => assert!(goes_on, "{place}: {outcome:?}"),
            Ok(Resumed::BecomesUnknown) => {
                assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{place}: {outcome:?}");
            }
            Err(_) => assert_eq!(failed(outcome), FailureCause::NotKnownHere, "{place}"),
        }
        if !goes_on {
            shown += 1;
            assert_eq!(app.provider.effects(), effects, "{place}: nothing is called");
            let point = match done.checked_sub(1) {
                Some(last) => old.lock.phases[last].name.as_str(),
                None => "started",
            };
            let is_told = denying.iter().any(|finding| finding.points.iter().any(|p| p == point));
            assert!(is_told, "{place}: the row at {point} does not go on, and no finding says so");
        }
    }
    let without_rows = denying.iter().all(|finding| finding.lint.name() == "window_widened");
    assert!(shown > 0 || without_rows, "{} -> {}: no row shows {denying:#?}", old.name, new.name);
    findings.iter().map(|finding| finding.lint.level()).max().unwrap_or(Level::Allow)
}
