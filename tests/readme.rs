//! README.md and docs/ say what is so: their Rust is part of programs that run, the dependencies compile.

#[allow(missing_docs, unreachable_pub, dead_code)]
#[path = "../examples/readme.rs"]
mod page;

const README: &str = include_str!("../README.md");

/// Pages with blocks of Rust, and how many they have at least.
const PAGES: [(&str, usize); 4] = [
    (README, 7),
    (include_str!("../docs/changing-a-request.md"), 1),
    (include_str!("../docs/testing.md"), 1),
    (include_str!("../docs/think-in-phases.md"), 1),
];

/// What the blocks are parts of.
const PROGRAMS: [&str; 4] = [
    include_str!("../examples/readme.rs"),
    include_str!("../examples/crash_test.rs"),
    include_str!("../examples/rocket_rides/create_ride.rs"),
    include_str!("compat/files.rs"),
];

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

/// Lines without their indentation, and without empty ones.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// Whole declarations and statements: where a block leaves something out, an empty line stands.
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

/// A page whose Rust is not looked at would be no better than one whose Rust is wrong.
#[test]
fn no_other_page_has_rust() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(&path).unwrap();
            let is_known = PAGES.iter().any(|(page, _)| *page == text);
            assert!(is_known || !text.contains("```rust"), "{}: add it to PAGES", path.display());
        }
    }
}

#[test]
fn the_program_runs() {
    page::main().unwrap();
}

/// The block of dependencies is that of a package which is compiled, with the program above: `tests/first_hour`.
#[test]
fn the_dependencies_are_those_that_compile() {
    let block = |text: &'static str, end: &str| {
        let block = text.split("[dependencies]\n").nth(1).expect("a block of dependencies");
        block.split(end).next().unwrap_or_default().trim().to_owned()
    };
    let package = include_str!("first_hour/Cargo.toml");
    assert_eq!(block(README, "```"), block(package, "\n\n"));
    assert!(package.contains("path = \"../../examples/readme.rs\""));
}
