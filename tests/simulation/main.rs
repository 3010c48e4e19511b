//! Simulation of the real engine: several nodes, a database, providers and clients on one thread, on
//! virtual time, from one seed. `docs/simulation.md` tells what it simulates and how to run it for long.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod judge;
mod kept;
mod plan;
mod provider;
mod requests;
mod run;
mod shrink;
mod trace;

use atomic_phases::fault::Mutant;
use plan::Plan;
use run::{Report, run};
use trace::Told;

/// What a thousand seeds have to meet: decisions, plans, points, states, faults and answers.
const MET: &[&str] = &[
    "decision: Create",
    "decision: Mismatch",
    "decision: Replay",
    "decision: InProgress",
    "decision: TakeOver",
    "decision: Recover",
    "decision: Unknown",
    "plan: Run",
    "plan: OpenIntent",
    "plan: WindowPassed",
    "point: before_commit",
    "point: after_commit",
    "point: before_intent",
    "point: after_intent",
    "point: before_call",
    "point: after_call",
    "point: before_take_over",
    "point: after_take_over",
    "point: before_release",
    "point: after_release",
    "row: none -> in_progress",
    "row: none -> pending",
    "row: none -> completed",
    "row: pending -> in_progress",
    "row: in_progress -> in_progress",
    "row: in_progress -> completed",
    "row: in_progress -> failed_retryable",
    "row: failed_retryable -> in_progress",
    "row: in_progress -> unknown",
    "row: unknown -> in_progress",
    "fault: cut Before",
    "fault: cut Inside",
    "fault: cut After",
    "fault: cut SilentBefore",
    "fault: cut SilentAfter",
    "fault: delay",
    "event: Freeze",
    "event: Kill",
    "event: Drain",
    "event: DatabaseAway",
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Shrinks a plan that fails, and tells what happens in it: a story, and the line by which it is kept.
fn tell(plan: &Plan, mutant: Option<Mutant>) -> Plan {
    let least =
        shrink::shrink(plan, |less| !run(less, mutant, Told::Nothing).violations.is_empty());
    let report = run(&least, mutant, Told::Lines);
    println!("{}{:#?}", report.trace, report.violations);
    println!("of {} things, {} are needed:", plan.size(), least.size());
    println!("{}", serde_json::to_string(&least).unwrap());
    least
}

/// What was found once stays found.
#[test]
fn kept_plans_break_no_guarantee_any_more() {
    for (what, text) in kept::PLANS {
        let plan: Plan = serde_json::from_str(text).unwrap();
        let report = run(&plan, None, Told::Lines);
        assert!(report.violations.is_empty(), "{what}:\n{}", report.trace);
    }
}

#[test]
fn seeds_break_no_guarantee() {
    let (first, seeds) = (number("SIMULATION_FIRST", 0), number("SIMULATION_SEEDS", 300));
    let began = std::time::Instant::now();
    let (mut requests, mut simulated) = (0, std::time::Duration::ZERO);
    let mut coverage = std::collections::BTreeMap::new();
    let mut failed = 0;
    for seed in first..first + seeds {
        let report = run(&Plan::of_seed(seed), None, Told::Nothing);
        requests += report.requests;
        simulated += report.simulated;
        for (what, times) in &report.coverage {
            *coverage.entry(what.clone()).or_insert(0) += times;
        }
        if !report.violations.is_empty() {
            failed += 1;
            println!("seed {seed}: {}", report.violations.join("\n    "));
            if failed == 1 {
                tell(&Plan::of_seed(seed), None);
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {requests} requests in {took:.1} s: {:.0} seeds/s, {:.0} requests/s, {:.0} simulated seconds in one",
        seeds as f64 / took,
        requests as f64 / took,
        simulated.as_secs_f64() / took
    );
    for (what, times) in &coverage {
        println!("{times:>8} {what}");
    }
    // What is never met is a defect of the simulator.
    let unmet: Vec<_> = MET.iter().filter(|what| !coverage.contains_key(**what)).collect();
    assert!(seeds < 1000 || unmet.is_empty(), "never met: {unmet:?}");
    assert_eq!(failed, 0, "seeds failed");
}

/// A simulation is worth what it finds: each guarantee that is broken on purpose, within so many seeds.
#[test]
fn every_broken_guarantee_is_found() {
    // What takes a certain fault at a certain commit is found by thousands of seeds, which is for a
    // night, and by the explorer (`tests/explorer.rs`) with each run of the tests.
    let rare = [
        Mutant::RepeatOpenIntent,
        Mutant::TakeOverWithoutToken,
        Mutant::AssumeIntent,
        Mutant::RecoverAccepted,
    ];
    are_found(Mutant::all().into_iter().filter(|mutant| !rare.contains(mutant)));
}

/// All of them: `SIMULATION_MUTANT_SEEDS=5000 cargo test --release … -- --ignored every_mutant`.
#[test]
#[ignore = "takes thousands of seeds"]
fn every_mutant_is_found() {
    are_found(Mutant::all().into_iter());
}

fn are_found(mutants: impl Iterator<Item = Mutant>) {
    let mut missed = Vec::new();
    let only = std::env::var("SIMULATION_MUTANT").unwrap_or_default();
    for mutant in mutants.filter(|mutant| format!("{mutant:?}").contains(&only)) {
        let found = (0..number("SIMULATION_MUTANT_SEEDS", 400)).find_map(|seed| {
            let report = run(&Plan::of_seed(seed), Some(mutant), Told::Nothing);
            report.violations.first().map(|violation| (seed, violation.clone()))
        });
        match found {
            Some((seed, violation)) => {
                println!("{mutant:?}: seed {seed}: {violation}");
                if std::env::var("SIMULATION_STORY").is_ok() {
                    tell(&Plan::of_seed(seed), Some(mutant));
                }
            }
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn the_same_seed_does_the_same() {
    for seed in 0..20 {
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
