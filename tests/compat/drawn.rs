//! Pairs of definitions that nobody chose: lists of phases, their kinds and names, and the types of
//! parameters and outputs, drawn from a seed. Rows of the one, in each state that they can be in, are run by
//! the other, on the store in memory; what `compare` says has to be what happens, and nothing is charged
//! twice.
//!
//! `DRAWN_PAIRS=20000 cargo test --release --all-features --test compat drawn` takes every pair;
//! `DRAWN_SEED=…` at build time draws other definitions.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::__private::{
    self as private, Definition, EffectClass, Isolation, Phase, PhaseKind,
};
use atomic_phases::compat::{
    CallState, Definitions, Effect, Finding, Level, Lock, Locks, Output, Resumed, ValueType,
    compare, resumed,
};
use atomic_phases::definition::RequestDefinition;
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::simulation::{Database, Memory};
use atomic_phases::worker::Reconciler;
use atomic_phases::{Batch, CallError, Engine, ForeignCall, Outcome, PhaseError, Reply, Tx};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::support::rides::{Random, number};
use crate::support::work::config;
use crate::support::{key, scope};

/// Definitions of a family are changes of one.
const FAMILY: usize = 6;
const MOST_PHASES: usize = 5;

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
const WAS: [&[&str]; 8] = [&["a"], &["b"], &["c"], &["d"], &["e"], &["f"], &["g"], &[]];
const NONE: usize = 7;

const SEED: u64 = match option_env!("DRAWN_SEED") {
    Some(text) => match u64::from_str_radix(text, 10) {
        Ok(seed) => seed,
        Err(_) => panic!("DRAWN_SEED is a number"),
    },
    None => 16,
};

/// A phase, by numbers: what a `const fn` can draw.
#[derive(Clone, Copy)]
struct Drawn {
    name: usize,
    was: usize,
    kind: usize,
    output: usize,
}

/// A definition, by numbers.
#[derive(Clone, Copy)]
struct List {
    phases: [Drawn; MOST_PHASES],
    len: usize,
    request: usize,
}

/// SplitMix64, for constants.
struct Chance(u64);

impl Chance {
    const fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

impl List {
    const fn uses(&self, name: usize) -> bool {
        let mut index = 0;
        while index < self.len {
            if self.phases[index].name == name || self.phases[index].was == name {
                return true;
            }
            index += 1;
        }
        false
    }

    /// A name that no phase has, or `NONE`.
    const fn unused(&self, chance: &mut Chance) -> usize {
        let first = chance.below(NAMES.len());
        let mut tried = 0;
        while tried < NAMES.len() {
            let name = (first + tried) % NAMES.len();
            if !self.uses(name) {
                return name;
            }
            tried += 1;
        }
        NONE
    }

    const fn insert(&mut self, at: usize, chance: &mut Chance) {
        let name = self.unused(chance);
        if self.len == MOST_PHASES || name == NONE {
            return;
        }
        let mut index = self.len;
        while index > at {
            self.phases[index] = self.phases[index - 1];
            index -= 1;
        }
        let (kind, output) = (chance.below(4), chance.below(TYPES));
        self.phases[at] = Drawn { name, was: NONE, kind, output };
        self.len += 1;
    }

    const fn remove(&mut self, at: usize) {
        if self.len == 1 {
            return;
        }
        let mut index = at;
        while index + 1 < self.len {
            self.phases[index] = self.phases[index + 1];
            index += 1;
        }
        self.len -= 1;
    }

    const fn change(&mut self, chance: &mut Chance) {
        let at = chance.below(self.len);
        match chance.below(9) {
            0 => self.insert(chance.below(self.len + 1), chance),
            1 => self.remove(at),
            2 => {
                let other = chance.below(self.len);
                let moved = self.phases[at];
                self.phases[at] = self.phases[other];
                self.phases[other] = moved;
            }
            3 => {
                let name = self.unused(chance);
                if name != NONE && self.phases[at].was == NONE {
                    self.phases[at].was = self.phases[at].name;
                    self.phases[at].name = name;
                }
            }
            4 => {
                let name = self.unused(chance);
                if name != NONE {
                    self.phases[at].name = name;
                }
            }
            5 => self.phases[at].was = NONE,
            6 => self.phases[at].kind = chance.below(4),
            7 => self.phases[at].output = chance.below(TYPES),
            _ => self.request = chance.below(TYPES),
        }
    }
}

/// The definition of a number: the first of its family, or that with changes.
const fn list(number: usize) -> List {
    let mut chance = Chance(SEED.wrapping_mul(1_000_003).wrapping_add((number / FAMILY) as u64));
    let phase = Drawn { name: NONE, was: NONE, kind: 0, output: 0 };
    let mut list = List { phases: [phase; MOST_PHASES], len: 0, request: chance.below(TYPES) };
    let wanted = 2 + chance.below(3);
    while list.len < wanted {
        let at = list.len;
        list.insert(at, &mut chance);
    }
    let variant = number % FAMILY;
    let mut chance = Chance(SEED.wrapping_mul(7919).wrapping_add(number as u64));
    let mut changes = if variant == 0 { 0 } else { 1 + chance.below(2) };
    while changes > 0 {
        list.change(&mut chance);
        changes -= 1;
    }
    list
}

const fn phase(drawn: Drawn) -> Phase {
    const DAY: Duration = Duration::from_secs(86_400);
    let kind = match drawn.kind {
        0 => PhaseKind::Local(Isolation::ReadCommitted),
        1 => PhaseKind::Foreign(EffectClass::Idempotent { window: None }),
        2 => PhaseKind::Foreign(EffectClass::Idempotent { window: Some(DAY) }),
        _ => PhaseKind::Foreign(EffectClass::AtMostOnce),
    };
    let name = if drawn.name == NONE { "" } else { NAMES[drawn.name] };
    Phase { name, was: WAS[drawn.was], kind, commit: false, timeout: None, reconciles: true }
}

#[derive(Serialize, Deserialize)]
struct One {
    a: u8,
}

#[derive(Serialize, Deserialize)]
struct WithOptional {
    a: u8,
    b: Option<u8>,
}

#[derive(Serialize, Deserialize)]
struct WithRequired {
    a: u8,
    c: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Closed {
    a: u8,
}

#[derive(Serialize, Deserialize)]
enum Choice {
    One,
    Other(u8),
}

/// Types of parameters and outputs, by number.
macro_rules! types {
    ($count:literal: $($number:literal $type:ty),*) => {
        const TYPES: usize = $count;

        fn type_of(number: usize) -> ValueType {
            match number {
                $($number => ValueType::of::<$type>(),)*
                _ => unreachable!("there are {TYPES}"),
            }
        }

        fn reads(number: usize, json: &str) -> bool {
            match number {
                $($number => serde_json::from_str::<$type>(json).is_ok(),)*
                _ => unreachable!("there are {TYPES}"),
            }
        }

        /// As a derived `Deserialize` of the type is asked, and as its `Serialize` writes it again.
        fn read_as<'de, D: Deserializer<'de>>(number: usize, from: D) -> Result<String, D::Error> {
            match number {
                $($number => {
                    let value = <$type>::deserialize(from)?;
                    serde_json::to_string(&value).map_err(serde::de::Error::custom)
                })*
                _ => unreachable!("there are {TYPES}"),
            }
        }
    };
}

types!(9: 0 u8, 1 u16, 2 String, 3 Option<u8>, 4 One, 5 WithOptional, 6 WithRequired, 7 Choice, 8 Closed);

/// A request of the definition of that number. Its parameters are a value of its type, in JSON.
struct Request<const N: usize>(String);

impl<const N: usize> Request<N> {
    const LIST: List = list(N);
    const ALL: [Phase; MOST_PHASES] = {
        let drawn = Self::LIST.phases;
        [phase(drawn[0]), phase(drawn[1]), phase(drawn[2]), phase(drawn[3]), phase(drawn[4])]
    };
    const PHASES: &'static [Phase] = Self::ALL.split_at(Self::LIST.len).0;
}

impl<const N: usize> Serialize for Request<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let value: serde_json::Value =
            serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        value.serialize(to)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Request<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        read_as(Self::LIST.request, from).map(Self)
    }
}

/// The world around one row.
#[derive(Clone, Default)]
struct World(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The phase that fails, and whether before its call.
    stop: Option<(usize, bool)>,
    /// What each phase of the old build returns, by its name.
    outputs: BTreeMap<String, String>,
    /// The provider's ledger: the phase by its oldest name, and the key.
    effects: Vec<(String, String)>,
}

impl World {
    fn stops(&self, index: usize, before: bool) -> bool {
        self.0.lock().unwrap().stop == Some((index, before))
    }

    /// One effect for each key.
    fn called(&self, phase: &Phase, key: &DerivedKey) {
        let effect = (phase.key_name().to_owned(), key.as_str().to_owned());
        let effects = &mut self.0.lock().unwrap().effects;
        if !effects.contains(&effect) {
            effects.push(effect);
        }
    }

    fn effects(&self) -> Vec<(String, String)> {
        self.0.lock().unwrap().effects.clone()
    }

    /// What the phase returns: its output, or the reply of the last.
    fn step(&self, list: &'static [Phase], index: usize, output: usize) -> private::Step {
        if index + 1 == list.len() {
            return private::Step::Reply(Reply::new(204));
        }
        let wanted = self.0.lock().unwrap().outputs.get(list[index].name).cloned();
        let json = wanted.unwrap_or_else(|| any_of(output));
        private::Step::Output(RawValue::from_string(json).unwrap())
    }
}

/// A value of the type.
fn any_of(number: usize) -> String {
    let known = ["1", "\"x\"", r#"{"a":1}"#, r#"{"a":1,"c":1}"#, "\"One\""];
    known.iter().find(|json| reads(number, json)).unwrap().to_string()
}

impl<const N: usize> private::Phases<Memory, World> for Request<N> {
    fn run_local<'a>(
        &'a self,
        index: usize,
        _: &'a mut Tx<'_, Memory>,
        scene: &'a private::PhaseInputs<'a, World>,
    ) -> private::PhaseFuture<'a, private::Step, PhaseError> {
        Box::pin(async move {
            match scene.app().stops(index, true) {
                true => Err(PhaseError::retryable("asked for")),
                false => Ok(scene.app().step(Self::PHASES, index, Self::LIST.phases[index].output)),
            }
        })
    }

    fn run_batch<'a>(
        &'a self,
        _: usize,
        _: &'a mut Batch<'_, Memory>,
        _: &'a private::PhaseInputs<'a, World>,
    ) -> private::PhaseFuture<'a, private::Step, PhaseError> {
        private::no_such_phase()
    }

    fn run_foreign<'a>(
        &'a self,
        index: usize,
        call: ForeignCall,
        scene: &'a private::PhaseInputs<'a, World>,
    ) -> private::PhaseFuture<'a, private::Step, ForeignError> {
        Box::pin(async move {
            let (world, phase) = (scene.app(), &Self::PHASES[index]);
            if world.stops(index, true) {
                return Err(ForeignError::retryable("asked for"));
            }
            call.make(async |key| {
                world.called(phase, &key);
                Ok::<_, ForeignError>(())
            })
            .await?;
            match world.stops(index, false) {
                true => Err(ForeignError::retryable("asked for")),
                false => Ok(world.step(Self::PHASES, index, Self::LIST.phases[index].output)),
            }
        })
    }

    fn reconcile<'a>(
        &'a self,
        index: usize,
        scene: &'a private::PhaseInputs<'a, World>,
    ) -> private::PhaseFuture<'a, Reconciled<private::Step>, PhaseError> {
        Box::pin(async move {
            let output = Self::LIST.phases[index].output;
            Ok(Reconciled::Executed(scene.app().step(Self::PHASES, index, output)))
        })
    }

    /// Each later phase asks for it.
    fn reads(&self, index: usize, output: &RawValue, from: usize) -> bool {
        from >= Self::PHASES.len() || reads(Self::LIST.phases[index].output, output.get())
    }
}

impl<const N: usize> RequestDefinition<Memory, World> for Request<N> {
    const DEFINITION: Definition = Definition { name: "drawn", version: 1, phases: Self::PHASES };

    fn outputs() -> Vec<ValueType> {
        let values = Self::LIST.len - 1;
        Self::LIST.phases[..values].iter().map(|phase| type_of(phase.output)).collect()
    }
}

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
            // Of a client that knows the new form, and means the same; or that cannot say it in it.
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

/// What one pair came to.
#[derive(Default)]
struct Judged {
    rows: u32,
    went_on: u32,
    levels: BTreeMap<Level, u32>,
    lints: BTreeMap<&'static str, u32>,
}

/// A value of the old build's that the new one does not read, if it has one.
fn hardest<'s>(samples: impl Iterator<Item = &'s str> + Clone, now: Option<usize>) -> String {
    let unread = |json: &&str| now.is_some_and(|now| !reads(now, json));
    samples.clone().find(unread).or_else(|| samples.clone().next()).unwrap().to_owned()
}

/// The index of the new phase that an old one is, if that has an output.
fn output_in(new: &Build, old: &str) -> Option<usize> {
    let at = new.lock.phases.iter().position(|phase| phase.is_called(old))?;
    (at + 1 < new.list.len).then_some(at)
}

/// The states that the call behind a recovery point can be in, as this test can bring it there.
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
                assert!(!told.is_empty(), "it does not go on, and nobody says so: {place}");
                shown.extend(told);
            }
        }
    }
    for finding in &denying {
        let name = finding.lint.name();
        *judged.lints.entry(name).or_default() += 1;
        // A window is longer: what the provider has forgotten by then is not seen here.
        let is_shown = shown.contains(name) || name == "window_widened";
        assert!(is_shown, "{} -> {}: no row shows {finding:#?}", old.number, new.number);
    }
    let worst = findings.iter().map(|finding| finding.lint.level()).max();
    *judged.levels.entry(worst.unwrap_or(Level::Allow)).or_default() += 1;
}

/// Brings a row of `old` there, runs it by `new`, and compares with what the rule and the types say.
async fn goes_on(old: &Build, new: &Build, done: usize, call: CallState, place: &str) -> bool {
    let (db, world) = (Memory::connect(&Database::default()), World::default());
    for phase in &old.lock.phases {
        let Output::Value { samples, .. } = &phase.output else { continue };
        let now = output_in(new, &phase.name).map(|at| new.list.phases[at].output);
        let value = hardest(samples.iter().map(String::as_str), now);
        world.0.lock().unwrap().outputs.insert(phase.name.clone(), value);
    }
    let samples = old.lock.request_samples.iter().map(|sample| sample.json.as_str());
    let params = hardest(samples, Some(new.list.request));

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
            let Output::Value { samples, .. } = &old.lock.phases[index].output else { return true };
            let Some(at) = output_in(new, &old.lock.phases[index].name) else { return true };
            let now = new.list.phases[at].output;
            reads(now, &hardest(samples.iter().map(String::as_str), Some(now)))
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
    // All pairs within a family first: a change is most often of one thing.
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
