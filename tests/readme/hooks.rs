//! The engine asks what a test has arranged through macros that are empty in a build without the features
//! (`src/fault/hooks.rs`), so that its code reads the same with and without them: no `#[cfg]` stands around a hook.

/// What a test has arranged lives here.
const FOR_TESTS: [&str; 3] = ["src/fault/", "src/simulation/", "src/store/fault.rs"];

/// A store has a module for it, `fault`: a method or a statement for it is there. And there is a store in memory, of which
/// the others have items, and no hook in a body.
const STORES: &str = "src/store/";

/// How an item for the store in memory begins.
const ITEMS: [&str; 3] = ["const ", "mod ", "pub"];

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

/// The same of a store's file, but for those of the module `fault` and of items for the store in memory.
fn conditions_in_a_store(text: &str) -> Vec<usize> {
    let mut found = conditions(text);
    found.retain(|line| {
        let behind = text.lines().skip(*line).map(str::trim_start);
        let mut code = behind.skip_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let condition = text.lines().nth(line - 1).unwrap_or_default();
        let is_of_faults = condition.contains("\"fault-injection\"");
        let is_item = |line: &str| match is_of_faults {
            true => line.ends_with("mod fault;"),
            false => ITEMS.iter().any(|item| line.starts_with(item)),
        };
        !code.next().is_some_and(is_item)
    });
    found
}

#[test]
fn no_condition_stands_around_a_hook() {
    let mut files = Vec::new();
    super::files("src", &[".rs"], &mut files);
    let mut found = Vec::new();
    for (path, text) in &files {
        let path = path.display().to_string();
        if FOR_TESTS.iter().any(|room| path.starts_with(room)) {
            continue;
        }
        let lines = match path.starts_with(STORES) {
            true => conditions_in_a_store(text),
            false => conditions(text),
        };
        found.extend(lines.into_iter().map(|line| format!("{path}:{line}")));
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
        let cfg = format!("    #[cfg(feature = \"{feature}\")]\n");
        let in_bodies = [
            "    let asked = true;",
            "    crate::fault::reach();",
            "    if asked {",
            "    self.held = 1;",
            "    async fn pass_time(&self) {}",
            "statement! {",
            "use super::standby;",
            "impl<S> F for S {}",
        ];
        in_bodies.iter().for_each(|code| {
            assert_eq!(conditions_in_a_store(&(cfg.clone() + code)), [1], "{code}")
        });
        // A method for crash tests is in the module `fault`.
        let method = cfg.clone() + "    /// Of a test.\n    pub fn f() {}";
        let is_refused = feature == "fault-injection";
        assert_eq!(conditions_in_a_store(&method).is_empty(), !is_refused, "{method}");
        let modules = ["mod fault;", "pub(super) mod fault;", "pub mod m;"];
        modules.iter().for_each(|module| {
            assert!(conditions_in_a_store(&(cfg.clone() + module)).is_empty(), "{module}")
        });
    };
    with("fault-injection");
    with("simulation");
}
