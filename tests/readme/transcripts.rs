//! Each block of a page that shows commands or what a program prints is run or compared by a test, or stands in the
//! list with the reason why not. (Blocks of Rust: `tests/readme/mod.rs`. The pages of `docs/bench` are written by programs.)

use super::files;

enum Shown {
    /// By this file, which names the page.
    By(&'static str),
    /// Why by none.
    Not(&'static str),
}
use Shown::{By, Not};

/// A page, the language of its blocks, how many there are, and what shows that they are right.
const BLOCKS: [(&str, &str, usize, Shown); 12] = [
    ("README.md", "sh", 1, By(".ci/packages")),
    (
        "docs/checklists.md",
        "text",
        1,
        Not("results of long runs, with the commands that repeat them"),
    ),
    // The first starts the flagship; the second is a search in a file, and has a placeholder.
    ("docs/console.md", "sh", 6, By("cli/tests/runbooks.rs")),
    ("docs/failover.md", "text", 1, Not("results of a long run, with the command that repeats it")),
    // Rust: the page is the documentation of a module, and these are its examples.
    ("docs/operating.md", "", 10, By("src/ops/mod.rs")),
    ("docs/operating.md", "text", 2, By("cli/tests/operate/pages.rs")),
    ("docs/runbooks.md", "sh", 29, By("cli/tests/runbooks.rs")),
    ("docs/simulation.md", "sh", 1, By("tests/run")),
    ("docs/simulation.md", "text", 1, By("tests/simulation/src/main.rs")),
    (
        "docs/stores.md",
        "text",
        1,
        Not("results of long runs, with the tests that say how to repeat them"),
    ),
    ("docs/think-in-phases.md", "text", 1, By("tests/readme/transcripts.rs")),
    ("docs/traces.md", "text", 1, By("otel/tests/story.rs")),
];

/// Languages of files that are shown in part.
const FILES: [&str; 4] = ["rust", "toml", "yaml", "sql"];

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
    kinds.retain(|kind| !FILES.contains(kind));
    kinds
        .into_iter()
        .filter_map(|kind| {
            let there = shown.iter().filter(|language| **language == kind).count();
            let listed = BLOCKS.iter().find(|(page, of, ..)| (*page, *of) == (name, kind));
            let listed = listed.map_or(0, |(_, _, count, _)| *count);
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
    assert_eq!(unlisted("docs/new.md", "```console\n$ x\n```\n```\ny\n```\n").len(), 2);
}

/// `docs/think-in-phases.md` lists the flagship's phases, in their order and of their kinds.
#[test]
fn the_phases_that_a_page_lists_are_those_of_the_flagship() {
    let page = include_str!("../../docs/think-in-phases.md");
    let list = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
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
