//! README.md and docs/ agree with the code: their Rust is part of programs that run, and the dependencies compile.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

#[allow(missing_docs, unreachable_pub, dead_code)]
#[path = "../../examples/readme.rs"]
mod page;

mod backends;
mod chain;
mod commands;
mod commits;
mod connections;
mod counted_twice;
mod debug;
mod english;
mod error_predicates;
mod growth;
mod hooks;
mod house_names;
mod ignored_errors;
mod imports;
mod one_server;
mod refusals;
mod root;
mod rows;
mod setters;
mod sleeps;
mod stores_tested;
mod transcripts;
mod versions;

const README: &str = include_str!("../../README.md");

/// Pages with blocks of Rust, and the least number of blocks in each.
const PAGES: [(&str, usize); 6] = [
    (README, 10),
    (include_str!("../../docs/changing-a-request.md"), 1),
    (include_str!("../../docs/console.md"), 1),
    (include_str!("../../docs/foreign-calls.md"), 1),
    (include_str!("../../docs/testing.md"), 2),
    (include_str!("../../docs/think-in-phases.md"), 1),
];

/// The programs that the blocks are parts of. The last two are examples in the documentation of types, which rustdoc
/// compiles.
const PROGRAMS: [&str; 7] = [
    include_str!("../../examples/readme.rs"),
    include_str!("../../examples/crash_test.rs"),
    include_str!("../../examples/crash_test_in_memory.rs"),
    include_str!("../../examples/rocket_rides/create_ride.rs"),
    include_str!("../compat/files.rs"),
    include_str!("../../src/console/pages/mod.rs"),
    include_str!("../../src/phase/outcome.rs"),
];

/// The documentation of a module: rustdoc compiles its blocks.
const OPERATING: &str = include_str!("../../docs/operating.md");

/// The blocks of Rust.
fn blocks(page: &str) -> Vec<&str> {
    let mut rest = page;
    let mut blocks = Vec::new();
    while let Some((_, after)) = rest.split_once("\n```rust\n") {
        let (block, after) = after.split_once("\n```").expect("a block that ends");
        blocks.push(block);
        rest = after;
    }
    blocks
}

/// Lines without their indentation and the mark of a documentation, and without empty ones.
fn lines(text: &str) -> Vec<&str> {
    let shown = text.lines().map(|line| line.trim().trim_start_matches("///").trim());
    shown.filter(|line| !line.is_empty()).collect()
}

/// A block consists of whole declarations and statements. An empty line marks each omission.
#[test]
fn each_block_of_rust_is_part_of_a_program_that_runs() {
    for (page, at_least) in PAGES {
        assert!(!page.contains("```rust,"), "no block of Rust is ignored, or only compiled");
        let blocks = blocks(page);
        assert!(blocks.len() >= at_least, "{}", blocks.len());
        for part in blocks.iter().flat_map(|block| block.split("\n\n")).map(lines) {
            let is_there = |program: &&str| lines(program).windows(part.len()).any(|w| w == part);
            assert!(PROGRAMS.iter().any(is_there), "in none of the programs:\n{}", part.join("\n"));
        }
    }
}

/// A page whose Rust is not checked may be wrong.
#[test]
fn no_other_page_has_rust() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(&path).unwrap();
            let is_known = text == OPERATING || PAGES.iter().any(|(page, _)| *page == text);
            assert!(is_known || !text.contains("```rust"), "{}: add it to PAGES", path.display());
        }
    }
}

/// The targets of a page's links that only rustdoc understands: `crate::Engine`.
fn targets_of_rustdoc(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| target.contains("::") && !target.contains("://")).collect()
}

/// The book's check reads only links to files and headings.
#[test]
fn no_page_links_to_an_item_as_rustdoc_does() {
    let mut pages = Vec::new();
    files("docs", &[".md"], &mut pages);
    pages.push((PathBuf::from("README.md"), README.to_owned()));
    for (path, text) in &pages {
        assert_eq!(targets_of_rustdoc(text), [""; 0], "{}", path.display());
    }
    let page = "[`Ops`](crate::ops::Ops), [`why`](Ops::why), [v6](http://[::1]/), [stores](a.md#a)";
    assert_eq!(targets_of_rustdoc(page), ["crate::ops::Ops", "Ops::why"]);
}

/// On a page, a link into the reference leads nowhere, and a hidden line of rustdoc is shown. The reference links each
/// name of the page below it, and rustdoc refuses a link to an item that is not there.
#[test]
fn the_page_that_is_a_modules_documentation_is_plain_and_its_names_are_links_in_the_reference() {
    let module = include_str!("../../src/ops/mod.rs");
    let (_, below) = module.split_once("include_str!(\"../../docs/operating.md\")").unwrap();
    let (reference, _) = below.split_once("\nmod ").unwrap();
    let is_plain = |line: &str| !line.starts_with("# #") && line != "# }";
    assert!(OPERATING.lines().all(is_plain), "a hidden line is shown");
    assert!(!OPERATING.contains("[`Ops"), "a link of rustdoc");
    let is_item = |word: &&str| word.starts_with(char::is_uppercase) && word.contains("::");
    let named: HashSet<&str> = quoted(OPERATING).filter(is_item).collect();
    let missing: Vec<_> =
        named.iter().filter(|name| !reference.contains(&format!("[`{name}`]"))).collect();
    assert!(missing.is_empty() && named.len() > 30, "{missing:?}");
}

#[test]
fn the_program_runs() {
    page::main().unwrap();
}

/// The block of dependencies equals that of a package that is compiled with the program above: `tests/first_hour`.
#[test]
fn the_dependencies_are_those_that_compile() {
    let block = |text: &'static str, end: &str| {
        let block = text.split("[dependencies]\n").nth(1).expect("a block of dependencies");
        block.split(end).next().unwrap_or_default().trim().to_owned()
    };
    let package = include_str!("../first_hour/Cargo.toml");
    assert_eq!(block(README, "```"), block(package, "\n\n"));
    assert!(package.contains("path = \"../../examples/readme.rs\""));
}

/// All files below a folder, with their text.
fn files(below: &str, endings: &[&str], found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" {
            files(&path.to_string_lossy(), endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The words of a text that name something, such as `g1_one_effect` or `H4`.
fn words(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// If the word is one of these letters and a number: both, and the rest of the word.
fn numbered<'a>(word: &'a str, letters: &str) -> Option<(&'a str, &'a str)> {
    let rest = word.strip_prefix(|letter| letters.contains(letter))?;
    let digits = rest.chars().take_while(char::is_ascii_digit).count();
    (1..=2).contains(&digits).then(|| word.split_at(1 + digits))
}

/// A page that names a missing test makes a claim that nothing checks.
#[test]
fn each_test_that_a_page_names_is_there() {
    let (mut pages, mut code) = (Vec::new(), Vec::new());
    files("docs", &[".md"], &mut pages);
    pages.push((PathBuf::from("README.md"), README.to_owned()));
    for below in ["src", "tests", "examples", "compat", "cli", "macros", "otel"] {
        files(below, &[".rs"], &mut code);
    }
    let known: HashSet<&str> = code.iter().flat_map(|(_, text)| words(text)).collect();
    let mut named = 0;
    for (page, text) in &pages {
        for word in words(text) {
            let Some((_, name)) = numbered(word, "ghw") else { continue };
            // `w28_*` names all of them.
            if name.len() > 1 {
                named += 1;
                assert!(known.contains(word), "{}: {word}", page.display());
            }
        }
    }
    assert!(named > 80, "{named}");
}

/// A reader can look up each number that the code cites.
#[test]
fn each_number_that_the_code_cites_is_in_a_page() {
    let mut code = Vec::new();
    files("src", &[".rs"], &mut code);
    let design = include_str!("../../docs/design.md");
    let known: HashSet<&str> = words(design).chain(words(README)).collect();
    for (file, text) in &code {
        for word in words(text) {
            if let Some((number, "")) = numbered(word, "GHRWY") {
                // A type parameter, or the width of a number, is not a citation.
                assert!(known.contains(number), "{}: {number}", file.display());
            }
        }
    }
}

/// The rows of a page's tables from one heading to the next of its kind.
fn rows<'p>(page: &'p str, heading: &str) -> Vec<&'p str> {
    let section = page.split(&format!("\n## {heading}\n")).nth(1).expect(heading);
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    // After the names of the columns and the line below them.
    rows.skip(2).collect()
}

/// The texts between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

const AGES: &str = "Database ages measured by the process's clock";

const PITFALLS: &str = "Pitfalls of MySQL and MariaDB, and the tests that cover them";

/// A row that names no test, or a missing one, is a claim that nothing checks.
#[test]
fn each_row_of_a_table_of_proofs_names_a_test_that_is_there() {
    let mut code = Vec::new();
    for below in ["src", "tests", "examples", "cli", "compat", "macros", "otel"] {
        files(below, &[".rs"], &mut code);
    }
    let functions: HashSet<&str> = code
        .iter()
        .flat_map(|(_, text)| text.split("fn ").skip(1))
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        .collect();
    let is_name = |word: &&str| {
        let is_identifier =
            word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_identifier && word.matches('_').count() > 3 && !word.starts_with('_')
    };
    let mutants = include_str!("../../src/fault/mutant.rs");
    let coverage = include_str!("../simulation/src/coverage.rs");
    let is_there = |word: &str| {
        let is_variant =
            word.starts_with(char::is_uppercase) && words(mutants).any(|known| known == word);
        // A kind in the simulation's table of coverage, and one of its names or `…` for all.
        let (kind, name) = word.split_once(": ").unwrap_or((word, ""));
        let is_met = !name.is_empty() && coverage.contains(&format!("\"{kind}\","));
        let is_met = is_met && (name == "…" || coverage.contains(&format!("\"{name}\"")));
        let is_file = word.contains('/') && PathBuf::from(word).exists();
        functions.contains(word) || is_variant || is_met || is_file
    };
    let simulation = include_str!("../../docs/simulation.md");
    let checklists = include_str!("../../docs/checklists.md");
    let stores = include_str!("../../docs/stores.md");
    let mut named = 0;
    for (page, heading, at_least) in [
        (simulation, "Tests of these claims", 25),
        (simulation, AGES, 9),
        (simulation, "What it finds", 30),
        (simulation, "What the explorer finds", 15),
        (checklists, "Threats", 18),
        (checklists, "Verification", 21),
        (checklists, "Real processes, real faults", 6),
        (stores, PITFALLS, 37),
        (stores, "Hostile settings of a MySQL or MariaDB server", 6),
        (include_str!("../../docs/console.md"), "Tests of the first row", 10),
    ] {
        let rows = rows(page, heading);
        assert!(rows.len() >= at_least, "{heading}: {}", rows.len());
        for row in rows {
            let missing: Vec<&str> =
                quoted(row).filter(is_name).filter(|name| !functions.contains(name)).collect();
            assert!(missing.is_empty(), "{heading}: {missing:?}");
            let has_reasons = [AGES, PITFALLS].contains(&heading);
            let is_reasoned = has_reasons && row.contains("| none: ");
            assert!(is_reasoned || quoted(row).any(is_there), "{heading}: {row}");
            named += quoted(row).filter(|word| is_there(word)).count();
        }
    }
    assert!(named > 150, "{named}");
}

/// The table has every numbered fact about MySQL and MariaDB.
#[test]
fn each_pitfall_has_its_row() {
    let rows = rows(include_str!("../../docs/stores.md"), PITFALLS);
    let of = |row: &str| {
        let numbers = row.split('|').nth(1).unwrap_or_default().trim();
        let number = |text: &str| text.trim_start_matches('Y').parse::<usize>().ok();
        match numbers.split_once(" to ") {
            Some((from, to)) => {
                number(from).zip(number(to)).map_or(vec![], |(a, b)| (a..=b).collect())
            }
            None => numbers.split(", ").filter_map(number).collect::<Vec<_>>(),
        }
    };
    let mut told: Vec<usize> = rows.into_iter().flat_map(of).collect();
    told.sort_unstable();
    assert_eq!(told, (1..=52).collect::<Vec<_>>());
}

/// Each mutant is in the simulation's table, or is left to the explorer.
#[test]
fn each_mutant_is_in_the_table_of_what_is_found() {
    let listed = include_str!("../../src/fault/mutant.rs");
    let (_, groups) = listed.split_once("\nmutants! {").unwrap();
    let (by_the_simulation, _) = groups.split_once("\n    Explorer {").unwrap();
    let lines = by_the_simulation.lines().filter_map(|line| line.trim().strip_suffix(','));
    let names: Vec<&str> = lines.filter(|name| name.chars().all(char::is_alphanumeric)).collect();
    let rows = rows(include_str!("../../docs/simulation.md"), "What it finds").join("\n");
    let missing: Vec<&&str> =
        names.iter().filter(|name| !quoted(&rows).any(|word| word == **name)).collect();
    assert!(missing.is_empty() && names.len() > 35, "{missing:?}");
}

/// A page that SUMMARY.md omits is not in the book, and readers do not find a page that the list of questions
/// omits.
#[test]
fn each_page_is_a_chapter_of_the_book() {
    let mut pages = Vec::new();
    files("docs", &[".md"], &mut pages);
    let contents = ["docs/README.md", "docs/SUMMARY.md"];
    let links = |page: &'static str| -> HashSet<&str> {
        page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
    };
    let (chapters, questions) =
        (links(include_str!("../../docs/SUMMARY.md")), links(include_str!("../../docs/README.md")));
    for (path, _) in pages {
        let path = path.to_string_lossy();
        if contents.contains(&&*path) {
            continue;
        }
        let page = path.strip_prefix("docs/").unwrap();
        assert!(chapters.contains(page), "{page} is not in docs/SUMMARY.md");
        assert!(page.contains('/') || questions.contains(page), "{page} is not in docs/README.md");
    }
}

/// Who adds a test finds each program on the page about the tests.
#[test]
fn each_program_of_tests_is_on_their_page() {
    let page = include_str!("../README.md");
    let table = page.split("| program |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows = table.lines().skip(2).filter_map(|row| row.split('|').nth(1));
    let mut told: Vec<&str> = rows.flat_map(quoted).collect();
    told.sort_unstable();
    let mut there: Vec<String> = fs::read_dir("tests")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    there.sort_unstable();
    assert_eq!(told, there);
}

/// Whether a line begins a block of code that rustdoc does not compile: `ignore` is among the words behind the fence,
/// whatever stands beside it.
fn is_ignored(line: &str) -> bool {
    ["```", "~~~"].iter().filter_map(|fence| line.split_once(*fence)).any(|(_, behind)| {
        let mut words = behind.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.any(|word| word == "ignore")
    })
}

/// An ignored example may be wrong without a test noticing.
#[test]
fn no_example_is_ignored() {
    let mut texts = Vec::new();
    for below in ["src", "macros", "compat", "cli", "otel", "docs", "migrations"] {
        files(below, &[".rs", ".md"], &mut texts);
    }
    texts.push((PathBuf::from("README.md"), README.to_owned()));
    assert!(texts.len() > 350, "{}", texts.len());
    for (path, text) in &texts {
        for (at, line) in text.lines().enumerate() {
            assert!(!is_ignored(line), "{}:{}: {line}", path.display(), at + 1);
        }
    }
    for line in [
        "//! ```ignore",
        "    /// ```rust,ignore",
        "/// ```ignore,should_panic",
        "/// ``` rust ignore",
        "/// ```ignore-wasm32",
        "//! ~~~rust,ignore",
        "````rust, ignore",
        "#[doc = \"```ignore\"]",
    ] {
        assert!(is_ignored(line), "{line}");
    }
    for line in
        ["/// ```no_run", "```rust", "/// To ignore it is a mistake.", "/// ```", "//! ```text"]
    {
        assert!(!is_ignored(line), "{line}");
    }
}

#[test]
fn each_type_to_begin_with_has_an_example() {
    let mut code = Vec::new();
    files("src", &[".rs"], &mut code);
    let documentation = |declared: &str| -> String {
        let (_, text) = code.iter().find(|(_, text)| text.contains(declared)).expect(declared);
        let above = text.split(declared).next().unwrap_or_default();
        let lines = above
            .lines()
            .rev()
            .take_while(|line| line.starts_with("///") || line.starts_with("#["));
        lines.collect::<Vec<_>>().join("\n")
    };
    for declared in [
        "pub struct Engine<",
        "pub struct Call<",
        "pub enum Outcome ",
        "pub struct RequestContext ",
        "pub enum Flow<",
        "pub struct ForeignError(",
        "pub struct Postgres<",
        "pub trait Codec:",
        "pub struct WorkerConfig ",
        "pub trait JobSink:",
        "pub struct Tx<",
        "pub struct Batch<",
        "pub struct ForeignCall ",
        "pub struct Console<",
    ] {
        assert!(documentation(declared).contains("```"), "{declared} has no example");
    }
}
