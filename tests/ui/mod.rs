//! What `#[atomic_phases]` accepts, and how it refuses the rest. Each file of `tests/ui/pass` is a module here,
//! and its `main` runs. Each of `tests/ui/fail` is named after its mistake, and the file next to it has the
//! compiler's messages.
//!
//! After a change of a message: `TRYBUILD=overwrite cargo test --all-features --test sources ui::`, and read
//! the difference. A few messages are rustc's own and may change with its version.

// Each file of `pass` and of `fail` includes `support.rs`, because a file of `fail` is compiled as a program.
#![allow(clippy::duplicate_mod)]

mod pass;

use std::fs;

#[test]
fn mistakes_are_told() {
    // Without a case that has to run, trybuild checks, and builds nothing.
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}

/// Each error of the macro links to its explanation, and the documentation has that place.
#[test]
fn each_error_links_to_what_explains_it() {
    const ROOT: &str = "see https://docs.rs/atomic-phases/latest/atomic_phases/";
    const RUSTC: [&str; 3] =
        ["error: expected ", "error: unexpected token", "error: future cannot be sent"];
    let macros = fs::read_to_string("macros/src/lib.rs").unwrap();
    let mut links = 0;
    for file in fs::read_dir("tests/ui/fail").unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "stderr") {
            continue;
        }
        let told = fs::read_to_string(&path).unwrap();
        for error in told.split("\n\n").filter(|error| error.starts_with("error: ")) {
            let is_ours = !RUSTC.iter().any(|text| error.starts_with(text));
            assert_eq!(error.contains(ROOT), is_ours, "{}: {error}", path.display());
        }
        for link in told.split(ROOT).skip(1) {
            let link = link.split_whitespace().next().unwrap();
            assert!(is_explained(&macros, link), "{}: no {link}", path.display());
            links += 1;
        }
    }
    assert!(links > 50, "{links}");
}

/// Whether the macro `attr.NAME.html` has docs with the heading that `#anchor` leads to.
fn is_explained(macros: &str, link: &str) -> bool {
    let (page, anchor) = link.split_once('#').map_or((link, None), |(page, at)| (page, Some(at)));
    let name = page.rsplit("attr.").next().unwrap().trim_end_matches(".html");
    let Some((docs, _)) = macros.split_once(&format!("pub fn {name}(")) else { return false };
    let docs = docs.rsplit("pub fn ").next().unwrap();
    let slug = |heading: &str| heading.to_lowercase().replace(' ', "-");
    let mut headings = docs.lines().filter_map(|line| line.strip_prefix("/// # "));
    anchor.is_none_or(|anchor| headings.any(|heading| slug(heading) == anchor))
}
