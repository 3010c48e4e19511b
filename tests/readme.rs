//! README.md says what is so.

/// The block of dependencies is that of a package which is compiled: `tests/first_hour`.
#[test]
fn the_dependencies_are_those_that_compile() {
    let block = |text: &'static str, end: &str| {
        let block = text.split("[dependencies]\n").nth(1).expect("a block of dependencies");
        block.split(end).next().unwrap_or_default().trim().to_owned()
    };
    let readme = block(include_str!("../README.md"), "```");
    assert_eq!(readme, block(include_str!("first_hour/Cargo.toml"), "\n\n"));
}
