//! Each block of a page that shows commands, a part of a file, or what a program prints, is run or compared by a test, or
//! is in the list with the reason why not. (Blocks of Rust: `tests/readme/mod.rs`, and rustdoc for the page that is the
//! documentation of a module. The pages of `docs/bench` are measured: programs write them, or print what `building.md` has.)

use super::files;

enum Shown {
    /// By this file, which names the page.
    By(&'static str),
    /// Why by none.
    Not(&'static str),
}
use Shown::{By, Not};

/// A page, the language of its blocks, how many of them there are, and what shows that these are right.
const BLOCKS: [(&str, &str, usize, Shown); 22] = [
    ("README.md", "sh", 1, By(".ci/packages")),
    ("README.md", "toml", 1, By("tests/readme/mod.rs")),
    ("docs/changing-a-request.md", "toml", 1, By("tests/compat/files.rs")),
    (
        "docs/checklists.md",
        "text",
        1,
        Not("results of long runs, with the commands that repeat them"),
    ),
    (
        "docs/console.md",
        "sh",
        1,
        Not(
            "it compiles the flagship: `tests/readme/commands.rs` compares its words, and `cli/tests/runbooks.rs` \
             starts the program with the same argument",
        ),
    ),
    (
        "docs/console.md",
        "sh",
        1,
        Not("it has a placeholder: the walk from a terminal makes the same search"),
    ),
    // The walk from a terminal.
    ("docs/console.md", "sh", 4, By("cli/tests/runbooks.rs")),
    ("docs/failover.md", "text", 1, Not("results of a long run, with the command that repeats it")),
    ("docs/metrics.md", "yaml", 1, By(HERE)),
    ("docs/operating.md", "sh", 1, By("tests/ops/given.rs")),
    ("docs/operating.md", "text", 2, By("cli/tests/operate/pages.rs")),
    ("docs/operating.md", "toml", 1, By("cli/tests/operate/pages.rs")),
    ("docs/partitioning.md", "sql", 2, By("tests/workers/partitions.rs")),
    ("docs/runbooks.md", "sh", 29, By("cli/tests/runbooks.rs")),
    ("docs/scaling.md", "sql", 2, By(HERE)),
    ("docs/simulation.md", "sh", 1, By("tests/run")),
    ("docs/simulation.md", "text", 1, By("tests/simulation/src/main.rs")),
    ("docs/stores.md", "sql", 1, By("tests/commits/poolers.rs")),
    (
        "docs/stores.md",
        "text",
        1,
        Not("results of long runs, with the tests that say how to repeat them"),
    ),
    ("docs/testing.md", "toml", 1, By(HERE)),
    ("docs/think-in-phases.md", "text", 1, By(HERE)),
    ("docs/traces.md", "text", 1, By("otel/tests/story.rs")),
];

const HERE: &str = "tests/readme/transcripts.rs";

/// The languages of a page's blocks.
fn languages(page: &str) -> Vec<&str> {
    let marks = page.lines().filter_map(|line| line.trim_start().strip_prefix("```"));
    // Every other one ends a block.
    marks.step_by(2).collect()
}

/// What is wrong with the blocks of a page.
fn unlisted(name: &str, page: &str) -> Vec<String> {
    let shown = languages(page);
    let mut kinds = shown.clone();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.retain(|kind| *kind != "rust");
    kinds
        .into_iter()
        .filter_map(|kind| {
            let there = shown.iter().filter(|language| **language == kind).count();
            let listed = BLOCKS.iter().filter(|(page, of, ..)| (*page, *of) == (name, kind));
            let listed: usize = listed.map(|(_, _, count, _)| count).sum();
            (there != listed).then(|| format!("{name}: {there} blocks of {kind:?}, not {listed}"))
        })
        .collect()
}

#[test]
fn each_transcript_is_compared_or_has_a_reason_why_not() {
    let mut pages = vec![("README.md".into(), super::README.to_owned())];
    files("docs", &[".md"], &mut pages);
    pages.retain(|(path, _)| !path.starts_with("docs/bench"));
    let wrong: Vec<_> =
        pages.iter().flat_map(|(path, page)| unlisted(&path.display().to_string(), page)).collect();
    assert!(wrong.is_empty(), "run it in a test, or say in the list why not: {wrong:#?}");
    for (page, language, _, shown) in BLOCKS {
        let (_, text) = pages.iter().find(|(path, _)| path.display().to_string() == page).unwrap();
        assert!(languages(text).contains(&language), "{page} has no block of {language}");
        match shown {
            By(file) => {
                let test = std::fs::read_to_string(file).unwrap();
                assert!(test.contains(page), "{file} does not read {page}");
            }
            Not(reason) => assert!(!reason.is_empty()),
        }
    }
    let new = "```console\n$ x\n```\n```\ny\n```\n```toml\nz = 1\n```\n```rust\nfn f() {}\n```\n";
    assert_eq!(unlisted("docs/new.md", new).len(), 3);
}

/// The blocks of a language.
fn shown<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// `docs/scaling.md` shows statements of two scripts, which other tests run.
#[test]
fn the_statements_that_a_page_shows_are_those_of_the_scripts() {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let partitions = include_str!("../../migrations/postgres_partitioned/by_scope.sql");
    let nodes = include_str!("../../examples/rocket_rides/migrations/citus.sql");
    let scripts = [one_line(partitions).replace("%s", "0"), one_line(nodes)];
    let blocks = shown(include_str!("../../docs/scaling.md"), "sql");
    let statements = blocks.iter().flat_map(|block| block.split(';')).map(one_line);
    let statements: Vec<_> =
        statements.filter(|text| !text.is_empty() && !text.starts_with("--")).collect();
    assert_eq!(statements.len(), 3);
    for statement in statements {
        assert!(scripts.iter().any(|script| script.contains(&statement)), "{statement}");
    }
}

/// `docs/metrics.md` shows the line that loads the alert rules: a real Prometheus reads it in `tests/prometheus.rs`.
#[test]
fn the_line_that_loads_the_rules_is_the_one_that_a_prometheus_reads() {
    let block = shown(include_str!("../../docs/metrics.md"), "yaml")[0];
    let line = block.lines().find(|line| !line.starts_with('#')).unwrap();
    assert!(include_str!("../prometheus.rs").contains(line), "{line}");
}

/// `docs/testing.md` shows README's dependency, with a feature that is there.
#[test]
fn the_dependency_of_tests_has_the_version_of_readme_and_a_feature_that_is_there() {
    let block = shown(include_str!("../../docs/testing.md"), "toml")[0];
    let (dependency, feature) = block.split_once("features = [\"").unwrap();
    let (dependency, feature) =
        (dependency.lines().last().unwrap(), feature.split('"').next().unwrap());
    assert!(super::README.contains(dependency), "{dependency}");
    let manifest = include_str!("../../Cargo.toml");
    assert!(manifest.contains(&format!("\n{feature} = [")), "{feature}");
}

/// `docs/think-in-phases.md` lists the flagship's phases, in their order and of their kinds.
#[test]
fn the_phases_that_a_page_lists_are_those_of_the_flagship() {
    let page = include_str!("../../docs/think-in-phases.md");
    let list = shown(page, "text")[0];
    let listed: Vec<_> = list
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            (words.next().unwrap(), words.next().unwrap())
        })
        .collect();
    let flagship = include_str!("../../examples/rocket_rides/create_ride.rs");
    let phases = flagship.split("#[phase").skip(1).map(|phase| {
        let name = phase.split("async fn ").nth(1).unwrap().split('(').next().unwrap();
        (name, if phase.starts_with("(foreign") { "foreign" } else { "local" })
    });
    assert_eq!(listed, phases.collect::<Vec<_>>());
}
