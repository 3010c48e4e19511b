//! Simulation of the real engine: several nodes, a database, providers and clients on one thread, on
//! virtual time, from one seed. `docs/simulation.md` tells what it simulates and how to run it for long.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod judge;
mod plan;
mod provider;
mod requests;
mod run;
mod trace;

use plan::Plan;
use run::{Report, run};
use trace::Told;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
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
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!("{seeds} seeds, {requests} requests in {took:.1} s: {:.0} seeds/s, {:.0} requests/s, {:.0} simulated seconds in one",
        seeds as f64 / took, requests as f64 / took, simulated.as_secs_f64() / took);
    for (what, times) in coverage {
        println!("{times:>8} {what}");
    }
    assert_eq!(failed, 0, "seeds failed");
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

/// `SIMULATION_FIRST=17 cargo test … the_story_of_one_seed -- --nocapture --ignored`
#[test]
#[ignore = "prints one run"]
fn the_story_of_one_seed() {
    let plan = Plan::of_seed(number("SIMULATION_FIRST", 0));
    let report = run(&plan, None, Told::Lines);
    println!("{}{:#?}", report.trace, report.violations);
}
