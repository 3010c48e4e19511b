//! The engine asks what a test has arranged through macros that are empty in a build without the features
//! (`src/fault/hooks.rs`), so that its code reads the same with and without them: no `#[cfg]` stands around a hook.

/// What a test has arranged lives here, and a store has methods for it: these are items, and not hooks.
const FOR_TESTS: [&str; 3] = ["src/fault/", "src/simulation/", "src/store/"];

/// The conditions on these features, but for those of a crate's or a file's whole (`#![cfg(..)]`), of modules of the
/// root, and of tests.
fn conditions(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_condition = |at: &usize| {
        let line = lines[*at];
        let is_code =
            line.starts_with("#[cfg(") || line.contains("cfg!(") && !line.starts_with("//");
        let features = ["\"fault-injection\"", "\"simulation\""];
        let is_module = lines.get(at + 1).is_some_and(|next| next.starts_with("pub mod "));
        is_code
            && features.iter().any(|feature| line.contains(feature))
            && !line.contains("(test")
            && !is_module
    };
    (0..lines.len()).filter(is_condition).map(|at| at + 1).collect()
}

#[test]
fn no_condition_stands_around_a_hook() {
    let mut files = Vec::new();
    super::files("src", &[".rs"], &mut files);
    let mut found = Vec::new();
    for (path, text) in &files {
        let path = path.display().to_string();
        if !FOR_TESTS.iter().any(|room| path.starts_with(room)) {
            found.extend(conditions(text).into_iter().map(|line| format!("{path}:{line}")));
        }
    }
    assert!(files.len() > 200, "{}", files.len());
    assert!(
        found.is_empty(),
        "a hook is a macro of src/fault/hooks.rs, as `faults!` and `simulated!`:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_condition_on_a_hook_is_seen_in_each_form() {
    let with = |feature: &str| {
        let hooks = [
            format!("    #[cfg(feature = \"{feature}\")]\n    crate::fault::reach();"),
            format!("#[cfg(feature = \"{feature}\")]\nuse crate::fault::Place;"),
            format!("#[cfg(feature = \"{feature}\")]\nmod mutants;"),
            format!("#[cfg(any(feature = \"{feature}\", feature = \"http\"))]\nfn f() {{}}"),
            format!("    if cfg!(feature = \"{feature}\") {{"),
            format!("    let asked = cfg!(feature = \"{feature}\");"),
        ];
        hooks.iter().for_each(|hook| assert_eq!(conditions(hook), [1], "{hook}"));
        let others = [
            format!("#![cfg(feature = \"{feature}\")]"),
            format!("#[cfg(all(test, feature = \"{feature}\"))]\nmod tests {{"),
            format!("#[cfg(feature = \"{feature}\")]\npub mod simulation;"),
            format!("// #[cfg(feature = \"{feature}\")]"),
            "#[cfg(feature = \"http\")]\nfn f() {}".to_owned(),
        ];
        others.iter().for_each(|other| assert!(conditions(other).is_empty(), "{other}"));
    };
    with("fault-injection");
    with("simulation");
}
