//! The command line: checks configurations and prints what was found.

use std::process::ExitCode;

use atomic_phases_model::case::Case;
use atomic_phases_model::cases::{CASES, LARGE};
use atomic_phases_model::check::{Verdict, check, shortest};
use atomic_phases_model::script::script;
use stateright::{Expectation, Model};

const USAGE: &str = "\
Checks the protocol of atomic-phases, exhaustively within budgets of faults.

usage: cargo run --release --manifest-path tests/model/Cargo.toml -- [--large] [--threads N] [NAME..]

  (nothing)    every configuration that the tests check, a line each
  NAME..       these, with the verdict of each property and a shortest script to each violation
  --large      the runs of millions of states: minutes, and a gigabyte of memory
  --threads N  more than one (default 1)
  --list       the names

Exits with 1 where a verdict is not the expected one.";

struct Asked {
    names: Vec<String>,
    large: bool,
    threads: usize,
}

fn main() -> ExitCode {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(Some(asked)) => asked,
        Ok(None) => return ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let chosen =
        CASES.iter().chain(LARGE).filter(|case| asked.names.iter().any(|n| n == case.name));
    let cases: Vec<_> = match (asked.names.is_empty(), asked.large) {
        (true, true) => LARGE.iter().collect(),
        (true, false) => CASES.iter().collect(),
        (false, _) => chosen.collect(),
    };
    let mut as_expected = true;
    println!("{:<28}{:<14}{:>10}{:>7}{:>9}  violated", "name", "", "states", "depth", "seconds");
    for case in cases {
        let verdict = check(case.config, asked.threads);
        let surprises = case.surprises(&verdict);
        print_line(case, &verdict, &surprises);
        if !asked.names.is_empty() || asked.large {
            print_properties(case, &verdict);
        }
        as_expected &= surprises.is_empty();
    }
    if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Asked>, String> {
    let mut asked = Asked { names: Vec::new(), large: false, threads: 1 };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(None);
            }
            "--list" => {
                for case in CASES.iter().chain(LARGE) {
                    println!("{:<28}{}", case.name, case.sort.as_str());
                }
                return Ok(None);
            }
            "--large" => asked.large = true,
            "--threads" => {
                let number = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                asked.threads = number.ok_or("--threads needs a number above 0")?;
            }
            name if CASES.iter().chain(LARGE).any(|case| case.name == name) => {
                asked.names.push(word);
            }
            other => return Err(format!("there is no configuration {other}: see --list")),
        }
    }
    Ok(Some(asked))
}

fn print_line(case: &Case, verdict: &Verdict, surprises: &[String]) {
    let violated: Vec<_> = verdict.violated.iter().map(|name| &name[..2]).collect();
    println!(
        "{:<28}{:<14}{:>10}{:>7}{:>9.2}  {}{}",
        case.name,
        case.sort.as_str(),
        verdict.states,
        verdict.depth,
        verdict.took.as_secs_f64(),
        if violated.is_empty() { "nothing".to_owned() } else { violated.join(" ") },
        if surprises.is_empty() { "" } else { "  UNEXPECTED" },
    );
    for surprise in surprises {
        println!("    {surprise}");
    }
}

fn print_properties(case: &Case, verdict: &Verdict) {
    for property in case.config.properties() {
        let name = property.name;
        let word = match property.expectation {
            Expectation::Sometimes if verdict.reached.contains(name) => "reached",
            Expectation::Sometimes => "not reached",
            _ if verdict.violated.contains(name) => "VIOLATED",
            _ => "holds",
        };
        println!("  {word:<12} {name}");
    }
    for name in &verdict.violated {
        if let Some(path) = shortest(case.config, name) {
            println!("\n  {name}: violated after\n{}", script(&case.config, &path));
        }
    }
}
