//! [`simulate`]: a runtime on one thread, whose time and whose chance are simulated.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::fault::Mutant;

/// Numbers from a seed: the same seed, the same numbers, on every machine (splitmix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The numbers of this seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Other numbers, of the same seed.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.number())
    }

    /// A number, uniform over `u64`.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or zero where that is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// Whether something happens that happens `times` of `out_of`.
    pub fn happens(&mut self, times: u64, out_of: u64) -> bool {
        self.below(out_of) < times
    }

    /// One of these; of none, `None`.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len() as u64) as usize)
    }

    /// A length of time from a microsecond to `longest`, each order of magnitude as likely as any.
    pub fn duration(&mut self, longest: Duration) -> Duration {
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
        let magnitude = self.below(u64::from(longest.ilog2()) + 1);
        Duration::from_micros(((1 << magnitude) + self.below(1 << magnitude)).min(longest))
    }
}

/// What the thread of a simulation knows.
struct World {
    chance: Chance,
    began: Instant,
    mutant: Option<Mutant>,
    /// How often each point of the engine was passed.
    passed: BTreeMap<String, u64>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Runs `scenario` to its end on this thread, in tokio's paused time, which jumps to the next timer whenever
/// no task can run. Every random number of the engine is drawn from `seed`. The same scenario with the same
/// seed does exactly the same.
///
/// Not simulated are threads (`spawn_blocking`), sockets, files, and the random numbers and clocks of other
/// libraries: a scenario that must be repeatable uses none of them. `tokio::select!` selects its branches in
/// a random order of its own, unless it is `biased`.
///
/// # Panics
/// If the scenario panics, or a simulation already runs on this thread.
pub fn simulate<F: Future>(seed: u64, scenario: impl FnOnce() -> F) -> F::Output {
    simulate_with(seed, None, scenario)
}

/// As [`simulate`], with one guarantee of the engine broken: a simulation is worth what it finds.
///
/// # Panics
/// As there.
pub fn simulate_with<F: Future>(
    seed: u64,
    mutant: Option<Mutant>,
    scenario: impl FnOnce() -> F,
) -> F::Output {
    #[allow(clippy::expect_used)] // A test has no use for an error here.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime on this thread");
    let _installed = Installed;
    let output = runtime.block_on(async move {
        let began = Instant::now();
        let passed = BTreeMap::new();
        let world = World { chance: Chance::from_seed(seed), began, mutant, passed };
        let former = WORLD.with(|here| here.borrow_mut().replace(world));
        assert!(former.is_none(), "a simulation runs on this thread already");
        scenario().await
    });
    // Its tasks are dropped while the world is still there.
    drop(runtime);
    output
}

/// Takes the world away, also where the scenario panics.
struct Installed;

impl Drop for Installed {
    fn drop(&mut self) {
        WORLD.with(|here| here.borrow_mut().take());
    }
}

fn with<T>(ask: impl FnOnce(&mut World) -> T) -> Option<T> {
    WORLD.with(|here| here.borrow_mut().as_mut().map(ask))
}

/// 128 bits by chance, in a simulation.
pub(crate) fn random_bits() -> Option<u128> {
    with(|world| u128::from(world.chance.number()) << 64 | u128::from(world.chance.number()))
}

/// Time since the simulation began, in one.
pub(crate) fn elapsed() -> Option<Duration> {
    with(|world| world.began.elapsed())
}

/// Whether the simulation has this mutant.
pub(crate) fn mutates(mutant: Mutant) -> bool {
    with(|world| world.mutant == Some(mutant)) == Some(true)
}

/// Notes that the engine is at this point.
pub(crate) fn pass(point: &str) {
    with(|world| match world.passed.get_mut(point) {
        Some(times) => *times += 1,
        None => {
            world.passed.insert(point.to_owned(), 1);
        }
    });
}

/// Notes which variant of an enum it came to.
pub(crate) fn pass_variant(what: &str, value: &impl std::fmt::Debug) {
    if is_simulated() {
        let name = format!("{value:?}");
        let end = name.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(name.len());
        pass(&format!("{what}: {}", &name[..end]));
    }
}

/// How often each [point](crate::fault) of the engine was passed in this simulation so far, by its place.
#[must_use]
pub fn passed_points() -> BTreeMap<String, u64> {
    with(|world| world.passed.clone()).unwrap_or_default()
}

/// Whether this thread is that of a simulation.
pub(crate) fn is_simulated() -> bool {
    with(|_| ()).is_some()
}
