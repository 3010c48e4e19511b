//! Pairs of random definitions: lists of phases, their kinds and names, and the types of parameters and outputs,
//! drawn from a seed. One build runs rows of the other, in each state that they can have, on the in-memory store.
//! The findings of `compare` must match what happens, and nothing is charged twice.
//!
//! `DRAWN_PAIRS=20000 cargo test --release --all-features --test changes compat::drawn::` takes every pair;
//! `DRAWN_SEED=…` at build time draws other definitions.

mod lists;
mod requests;
mod types;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use atomic_phases::compat::{
    CallState, Definitions, Effect, Finding, Level, Lock, Locks, Output, Resumed, Shape, Types,
    compare, examples, resumed,
};
use atomic_phases::engine::CallError;
use atomic_phases::simulation::{Database, Memory};
use atomic_phases::worker::Reconciler;
use atomic_phases::{Engine, Outcome};

use crate::support::rides::{Random, number};
use crate::support::work::config;
use crate::support::{key, scope};

use self::lists::{FAMILY, List, SEED};
use self::requests::{Request, World};
use self::types::{any_of, reads};

type Asked<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Outcome, CallError>> + Send + 'a>>;

/// A definition without its type.
struct Build {
    number: usize,
    list: List,
    lock: Lock,
    engine: fn(&Memory, &World) -> Engine<Memory, World>,
    /// Accepts, or executes, a request with these parameters.
    ask: for<'a> fn(&'a Engine<Memory, World>, &str, bool) -> Asked<'a>,
}

fn build<const N: usize>() -> Build {
    let definitions = || Definitions::<Memory, World>::new().with::<Request<N>>();
    Build {
        number: N,
        list: Request::<N>::LIST,
        lock: definitions().locks().iter().next().unwrap().clone(),
        engine: |db, world| {
            let definitions = Definitions::new().with::<Request<N>>();
            let builder = Engine::builder(db.clone()).app(world.clone());
            builder.definitions(definitions).build().unwrap()
        },
        ask: |engine, params, accept| {
            // The body of a client that knows the new form and means the same; `None` if the new form cannot
            // express it.
            let request = serde_json::from_str::<Request<N>>(params)
                .unwrap_or_else(|_| Request(any_of(Request::<N>::LIST.request)));
            let call = engine.call(&scope(), &key("k"), request);
            match accept {
                true => Box::pin(call.accept()),
                false => Box::pin(call.into_future()),
            }
        },
    }
}

macro_rules! builds {
    ($($number:literal)*) => { vec![$(build::<$number>()),*] };
}

/// The results of one pair.
#[derive(Default)]
struct Judged {
    rows: u32,
    went_on: u32,
    levels: BTreeMap<Level, u32>,
    lints: BTreeMap<&'static str, u32>,
}

/// A value of the old build that the new one does not read, if there is one.
fn hardest((shape, types): (&Shape, &Types), samples: &[String], now: Option<usize>) -> String {
    let mut all = samples.to_vec();
    let examples = examples(shape, types).into_iter().filter(|example| example.is_complete);
    all.extend(examples.map(|example| example.json));
    let unread = |json: &&String| now.is_some_and(|now| !reads(now, json));
    all.iter().find(unread).unwrap_or(&all[0]).clone()
}

/// The index in the new list of an old phase, if that has an output.
fn output_in(new: &Build, old: &str) -> Option<usize> {
    let at = new.lock.phases.iter().position(|phase| phase.is_called(old))?;
    (at + 1 < new.list.len).then_some(at)
}

/// The states of the call after a recovery point that this test can produce.
fn states(effect: Effect, done: usize) -> &'static [CallState] {
    use CallState::{IntentOpen, MayHaveBeenMade, NotMade};
    match effect {
        Effect::Local => &[NotMade],
        Effect::Idempotent { .. } if done == 0 => &[NotMade, MayHaveBeenMade],
        Effect::Idempotent { .. } => &[MayHaveBeenMade],
        Effect::AtMostOnce => &[NotMade, IntentOpen],
    }
}

async fn judge(old: &Build, new: &Build, judged: &mut Judged) {
    let locks = |build: &Build| -> Locks { [build.lock.clone()].into_iter().collect() };
    let findings = compare(&locks(old), &locks(new));
    let denying: Vec<&Finding> =
        findings.iter().filter(|finding| finding.lint.level() >= Level::Deny).collect();
    let mut shown: HashSet<&str> = HashSet::new();
    for (done, next) in old.lock.phases.iter().enumerate() {
        let point = done.checked_sub(1).map_or("started", |last| &old.lock.phases[last].name);
        for call in states(next.effect, done) {
            let place = format!(
                "{} -> {}, behind {point}, {call:?}\n{}\n{}\n{findings:#?}",
                old.number,
                new.number,
                old.lock.to_toml(),
                new.lock.to_toml()
            );
            let goes_on = goes_on(old, new, done, *call, &place).await;
            judged.rows += 1;
            judged.went_on += u32::from(goes_on);
            if !goes_on {
                let told =
                    denying.iter().filter(|finding| finding.points.iter().any(|p| p == point));
                let told: Vec<&str> = told.map(|finding| finding.lint.name()).collect();
                assert!(!told.is_empty(), "it does not go on, and no finding says so: {place}");
                shown.extend(told);
            }
        }
    }
    for finding in &denying {
        let name = finding.lint.name();
        *judged.lints.entry(name).or_default() += 1;
        // The window became longer: this test cannot see what the provider has forgotten by then.
        let is_shown = shown.contains(name) || name == "window_widened";
        assert!(is_shown, "{} -> {}: no row shows {finding:#?}", old.number, new.number);
    }
    let worst = findings.iter().map(|finding| finding.lint.level()).max();
    *judged.levels.entry(worst.unwrap_or(Level::Allow)).or_default() += 1;
}

/// Brings a row of `old` into that state, runs it by `new`, and compares the result with the rule and the types.
async fn goes_on(old: &Build, new: &Build, done: usize, call: CallState, place: &str) -> bool {
    let (db, world) = (Memory::connect(&Database::default()), World::default());
    for phase in &old.lock.phases {
        let Output::Value { samples, shape } = &phase.output else { continue };
        let now = output_in(new, &phase.name).map(|at| new.list.phases[at].output);
        let value = hardest((shape, &old.lock.types), samples, now);
        world.0.lock().unwrap().outputs.insert(phase.name.clone(), value);
    }
    let samples = old.lock.request_samples.iter().map(|sample| sample.json.clone());
    let samples: Vec<String> = samples.collect();
    let params = hardest((&old.lock.request, &old.lock.types), &samples, Some(new.list.request));

    let before_the_call = call == CallState::NotMade;
    world.0.lock().unwrap().stop = Some((done, before_the_call));
    let engine = (old.engine)(&db, &world);
    let accepts = done == 0 && before_the_call;
    match ((old.ask)(&engine, &params, accepts).await, call) {
        (Ok(Outcome::Accepted), _) if accepts => {}
        (Ok(Outcome::Unknown { .. }), CallState::IntentOpen) => {}
        (Ok(Outcome::Failed { .. }), CallState::NotMade | CallState::MayHaveBeenMade) => {}
        (other, _) => panic!("{other:?}: {place}"),
    }
    {
        let mut state = world.0.lock().unwrap();
        state.stop = None;
        state.outputs.clear();
    }
    db.database().set_clock_forward(Duration::from_secs(7200));
    let effects = world.effects();
    let engine = (new.engine)(&db, &world);
    if call == CallState::IntentOpen {
        Reconciler::new(&engine, config()).run_once().await.unwrap();
    }
    let outcome = (new.ask)(&engine, &params, false).await;
    let goes_on = matches!(outcome, Ok(Outcome::Finished(_)));

    let reads_all = reads(new.list.request, &params)
        && (0..done).all(|index| {
            let Output::Value { samples, shape } = &old.lock.phases[index].output else {
                return true;
            };
            let Some(at) = output_in(new, &old.lock.phases[index].name) else { return true };
            let now = new.list.phases[at].output;
            reads(now, &hardest((shape, &old.lock.types), samples, Some(now)))
        });
    let rule = resumed(&old.lock.phases, done, call, &new.lock.phases);
    let expected = rule == Ok(Resumed::Continues) && reads_all;
    assert_eq!(goes_on, expected, "{outcome:?}, {rule:?}: {place}");
    if !goes_on {
        assert_eq!(world.effects(), effects, "{outcome:?}, and something was called: {place}");
    }
    let phases: HashSet<String> = world.effects().into_iter().map(|(phase, _)| phase).collect();
    assert_eq!(phases.len(), world.effects().len(), "G1: a second effect: {place}");
    goes_on
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_g14_what_compare_says_of_drawn_definitions_is_what_happens_to_their_rows() {
    let builds = builds!(
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35
        36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59
    );
    let count = builds.len();
    let wanted = number("DRAWN_PAIRS", 600) as usize;
    // All pairs within a family first, because a real change mostly affects one thing.
    let in_families = (0..count * FAMILY).map(|pair| {
        let (old, variant) = (pair / FAMILY, pair % FAMILY);
        (old, old / FAMILY * FAMILY + variant)
    });
    let mut random = Random(SEED);
    let any = (0..count * count).map(|pair| match wanted < count * count {
        true => (random.below(count as u64) as usize, random.below(count as u64) as usize),
        false => (pair / count, pair % count),
    });
    let mut judged = Judged::default();
    let mut pairs = 0;
    for (old, new) in in_families.chain(any).take(wanted) {
        judge(&builds[old], &builds[new], &mut judged).await;
        pairs += 1;
    }
    let Judged { rows, went_on, levels, lints } = judged;
    println!("seed {SEED}: {pairs} pairs, {rows} rows, {went_on} went on; {levels:?}; {lints:?}");
    for level in [Level::Allow, Level::Deny, Level::Never] {
        assert!(levels.get(&level).is_some_and(|pairs| *pairs > 5), "{levels:?}");
    }
}
