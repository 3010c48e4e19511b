//! The versions that README and the documentation of the crate name are those of Cargo.toml.

const MANIFEST: &str = include_str!("../../Cargo.toml");
const CRATE: &str = include_str!("../../src/lib.rs");

/// What a line of Cargo.toml says of a dependency: `2.3.14`, without the sign in front.
fn required(dependency: &str) -> &'static str {
    let begins = format!("\n{dependency} = {{ version = \"");
    let rest = MANIFEST.split(&begins).nth(1).expect("a dependency");
    rest.split('"').next().unwrap().trim_start_matches(['~', '^', '='])
}

#[test]
fn the_versions_of_diesel_are_those_of_the_manifest() {
    let [diesel, diesel_async] = ["diesel", "diesel-async"].map(|name| {
        let least = required(name);
        let minor: Vec<&str> = least.split('.').take(2).collect();
        format!("{name} {} (from {least})", minor.join("."))
    });
    let said = format!("{diesel} and {diesel_async}");
    for text in [super::README, CRATE] {
        assert!(text.contains(&said), "{said}");
    }
    // Cargo would select 2.4 otherwise, which is not said.
    assert!(MANIFEST.contains("\ndiesel = { version = \"~"), "not only 2.3");
}

#[test]
fn the_oldest_rust_is_that_of_the_manifest() {
    let oldest = MANIFEST.split("\nrust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    let said = format!("\nRust {oldest} or newer.");
    assert!(super::README.contains(&said), "{said}");
}
