//! Simulation of the real engine: several nodes, a database, providers and clients on one thread, in virtual time,
//! from one seed. `docs/simulation.md` says what it simulates and how to run it for a night.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod codec;
mod coverage;
mod draw;
mod judge;
mod kept;
mod plan;
mod provider;
mod requests;
mod run;
mod shrink;
mod trace;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atomic_phases::fault::Mutant;
use plan::Plan;
use run::{Report, run};
use trace::Told;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs on as many threads as there are cores; each runs one simulated world after the other.
fn on_all_cores(numbers: Range<u64>, each: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(numbers.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    each(number);
                }
            });
        }
    });
}

/// Shrinks a failing plan, and prints its events as a story, and the plan as one line.
fn tell(plan: &Plan, mutant: Option<Mutant>) {
    let (least, text) = shrink::shrink(plan, fails_as(plan, mutant));
    let report = run(&least, mutant, Told::Lines);
    println!("{}{:#?}\n{text}", report.trace, report.violations);
}

/// Whether a plan breaks the guarantee that this one breaks first.
fn fails_as(plan: &Plan, mutant: Option<Mutant>) -> impl Fn(&Plan) -> bool {
    let guarantee = |violation: &String| violation.split(':').next().map(str::to_owned);
    let broken = run(plan, mutant, Told::Nothing).violations.first().and_then(guarantee);
    move |less| run(less, mutant, Told::Nothing).violations.iter().any(|v| guarantee(v) == broken)
}

/// Defects found once do not return.
#[test]
fn kept_plans_break_no_guarantee_any_more() {
    for (what, text) in kept::PLANS {
        let plan: Plan = serde_json::from_str(text).unwrap();
        let report = run(&plan, None, Told::Lines);
        assert!(report.violations.is_empty(), "{what}:\n{}", report.trace);
    }
}

/// The totals of all runs.
#[derive(Default)]
struct Sum {
    requests: usize,
    statements: u64,
    busiest: u64,
    simulated: Duration,
    coverage: BTreeMap<String, u64>,
    failed: BTreeMap<u64, Vec<String>>,
}

#[test]
fn seeds_break_no_guarantee() {
    let (first, seeds) = (number("SIMULATION_FIRST", 0), number("SIMULATION_SEEDS", 10_000));
    let (began, sum) = (Instant::now(), Mutex::new(Sum::default()));
    on_all_cores(first..first + seeds, |seed| {
        let report = run(&Plan::of_seed(seed), None, Told::Nothing);
        let mut sum = sum.lock().unwrap();
        sum.requests += report.requests;
        sum.statements += report.statements;
        sum.busiest = sum.busiest.max(report.busiest);
        sum.simulated += report.simulated;
        for (what, times) in report.coverage {
            *sum.coverage.entry(what).or_default() += times;
        }
        if !report.violations.is_empty() {
            sum.failed.insert(seed, report.violations);
        }
    });
    let sum = sum.into_inner().unwrap();
    let took = began.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {} requests, {} statements ({} within a second by one node at most) in \
         {took:.1} s: {:.0} seeds, {:.0} requests and {:.0} simulated seconds in each",
        sum.requests,
        sum.statements,
        sum.busiest,
        seeds as f64 / took,
        sum.requests as f64 / took,
        sum.simulated.as_secs_f64() / took
    );
    let (table, unmet) = coverage::table(&sum.coverage);
    println!("{table}");
    for (seed, violations) in sum.failed.iter().take(100) {
        println!("seed {seed}: {}", violations.join("\n    "));
    }
    if let Some(seed) = sum.failed.keys().next() {
        tell(&Plan::of_seed(*seed), None);
    }
    assert!(seeds < 1000 || unmet.is_empty(), "never met: {unmet:?}");
    assert!(sum.failed.is_empty(), "{} seeds failed", sum.failed.len());
}

/// The simulation must find each mutant within this many seeds. Without the mutant, each of these seeds breaks
/// nothing.
#[test]
fn every_mutant_is_found() {
    let only = std::env::var("SIMULATION_MUTANT").unwrap_or_default();
    let seeds = number("SIMULATION_MUTANT_SEEDS", 3_000);
    let mutants: Vec<Mutant> = Mutant::all()
        .iter()
        .copied()
        .filter(|mutant| !mutant.needs_explorer() && format!("{mutant:?}").contains(&only))
        .collect();
    let missed = Mutex::new(Vec::new());
    on_all_cores(0..mutants.len() as u64, |index| {
        let mutant = mutants[index as usize];
        let found = (0..seeds).find_map(|seed| {
            let report = run(&Plan::of_seed(seed), Some(mutant), Told::Nothing);
            Some((seed, report.violations.into_iter().next()?))
        });
        let Some((seed, violation)) = found else {
            missed.lock().unwrap().push(mutant);
            return;
        };
        let violation: String = violation.chars().take(120).collect();
        println!("{:<24}{seed:>5}  {violation}", format!("{mutant:?}"));
        let without = run(&Plan::of_seed(seed), None, Told::Nothing).violations;
        assert!(without.is_empty(), "{mutant:?}: seed {seed} fails without it: {without:?}");
        if std::env::var("SIMULATION_STORY").is_ok() {
            tell(&Plan::of_seed(seed), Some(mutant));
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found within {seeds} seeds: {missed:?}");
}

#[test]
fn the_same_seed_does_the_same() {
    for seed in 0..40 {
        let plan = Plan::of_seed(seed);
        let [one, other]: [Report; 2] = [(); 2].map(|()| run(&plan, None, Told::Lines));
        for (one, other) in one.trace.lines().zip(other.trace.lines()) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(one.hash, other.hash, "seed {seed}");
    }
}

#[test]
fn another_process_does_the_same() {
    let of_this = |seed| run(&Plan::of_seed(seed), None, Told::Hash).hash;
    let here: Vec<String> = (0..10).map(|seed| format!("hash {:x}", of_this(seed))).collect();
    let there = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_hashes_of_ten_seeds", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let there = String::from_utf8(there.stdout).unwrap();
    let there: Vec<&str> = there.lines().filter(|line| line.starts_with("hash ")).collect();
    assert_eq!(here, there);
}

#[test]
#[ignore = "asked by another process"]
fn the_hashes_of_ten_seeds() {
    println!();
    for seed in 0..10 {
        println!("hash {:x}", run(&Plan::of_seed(seed), None, Told::Hash).hash);
    }
}

/// `SIMULATION_FIRST=17 cargo test … the_story_of_one_seed -- --nocapture --ignored`
#[test]
#[ignore = "prints one run"]
fn the_story_of_one_seed() {
    let plan = Plan::of_seed(number("SIMULATION_FIRST", 0));
    let report = run(&plan, None, Told::Lines);
    println!("{}{:#?}", report.trace, report.violations);
}

/// The shrunk plan has only what its failure needs, and it fails in the same way when it is kept.
#[test]
fn a_plan_that_fails_is_shrunk_to_one_line() {
    let mutant = Some(Mutant::AssumeIntent);
    let fails = |plan: &Plan| !run(plan, mutant, Told::Nothing).violations.is_empty();
    let seed = (0..1_000).find(|seed| fails(&Plan::of_seed(*seed))).unwrap();
    let plan = Plan::of_seed(seed);
    let (least, text) = shrink::shrink(&plan, fails_as(&plan, mutant));
    println!("{text}");
    // A readable story: the events of the shrunk plan, and the violated guarantee.
    let story = run(&least, mutant, Told::Lines).trace;
    assert!(story.contains(" asks node ") && story.contains(" VIOLATION "), "{story}");
    let told_in_full = run(&plan, mutant, Told::Lines).trace;
    assert!(story.lines().count() * 2 < told_in_full.lines().count(), "{story}");
    assert!(fails(&least));
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap().on_its_nodes(), least);
    assert!(text.len() * 4 < serde_json::to_string(&plan).unwrap().len());
}

/// What `docs/simulation.md` shows is what is printed for the plan in the last line of it.
#[test]
fn the_page_shows_the_story_of_its_plan() {
    let page = include_str!("../../../docs/simulation.md");
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let (shown, plan) = block.and_then(|block| block.rsplit_once('\n')).unwrap();
    let plan: Plan = serde_json::from_str(plan).unwrap();
    let report = run(&plan, Some(Mutant::AssumeIntent), Told::Lines);
    // With one statement more, the times, ids and numbers of statements are others.
    let without_numbers = |text: &str| {
        let lines: String = text.lines().map(str::trim_start).collect();
        let words = lines.split(|c: char| c.is_ascii_hexdigit());
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("#")
    };
    let is_shown = without_numbers(shown) == without_numbers(report.trace.trim_end());
    assert!(
        is_shown,
        "docs/simulation.md shows\n{shown}\nand this is printed now:\n{}",
        report.trace
    );
    assert!(run(&plan, None, Told::Nothing).violations.is_empty(), "the mutant's alone");
}

/// The text of each file below, without its unit tests.
fn sources(below: &Path, found: &mut Vec<(PathBuf, String)>) {
    if below.is_dir() {
        for entry in fs::read_dir(below).unwrap() {
            sources(&entry.unwrap().path(), found);
        }
    } else if below.extension().is_some_and(|extension| extension == "rs") {
        // All of it is a test.
        if below.ends_with("differential.rs") {
            return;
        }
        let text = fs::read_to_string(below).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code = code.split("#[cfg(all(test").next().unwrap_or_default();
        found.push((below.to_owned(), code.to_owned()));
    }
}

/// A clock or a random number from elsewhere would not depend on the seed.
#[test]
fn the_engine_reads_clocks_and_chance_through_one_seam() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut code = Vec::new();
    for part in ["engine", "worker", "phase", "ops", "store/memory", "client/decide.rs"] {
        assert!(root.join(part).exists(), "{part}");
        sources(&root.join(part), &mut code);
    }
    let elsewhere = [
        "std::time::Instant",
        "SystemTime",
        "clock_gettime",
        "Utc::now",
        "Local::now",
        "new_v4",
        "now_v7",
        "rand::",
        "getrandom",
        "std::thread",
        "spawn_blocking",
    ];
    for (file, text) in &code {
        // Outside of a simulation, where its database begins.
        let is_the_seam = file.ends_with("store/memory/database.rs");
        for name in elsewhere.iter().filter(|name| !(is_the_seam && **name == "Utc::now")) {
            assert!(!text.contains(name), "{}: {name}", file.display());
        }
        let imported = text.lines().filter(|line| line.contains("use std::time::"));
        assert!(!imported.clone().any(|line| line.contains("Instant")), "{}", file.display());
    }
    assert!(code.len() > 80, "{}", code.len());
}
