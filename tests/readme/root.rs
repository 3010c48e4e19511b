//! The names that every application meets, at the root of the crate and in the prelude. A name that is added here is
//! one that no later version can take away: so it is added to this list, too.

use super::imports::{code, paths};

/// Modules, with those that a cargo feature adds.
const MODULES: [&str; 21] = [
    "__private",
    "client",
    "codec",
    "compat",
    "config",
    "console",
    "definition",
    "engine",
    "fault",
    "fingerprint",
    "http",
    "key",
    "ops",
    "phase",
    "prelude",
    "replay_cache",
    "request",
    "simulation",
    "store",
    "traces",
    "worker",
];

/// A dozen, the attributes, and the crates that phases are written with. Which stores are compiled changes none of them: an
/// application meets one store.
const NAMES: [&str; 17] = [
    "Batch",
    "Engine",
    "ForeignCall",
    "IdempotencyKey",
    "Outcome",
    "PhaseError",
    "PhaseResult",
    "Reply",
    "RequestContext",
    "Scope",
    "Store",
    "Tx",
    "atomic_phases",
    "diesel",
    "diesel_async",
    "phase",
    "reconcile",
];

const PRELUDE: [&str; 15] = [
    "Batch",
    "DerivedKey",
    "Flow",
    "ForeignCall",
    "ForeignError",
    "Isolation",
    "PhaseError",
    "PhaseResult",
    "Reconciled",
    "Reply",
    "RequestContext",
    "Tx",
    "atomic_phases",
    "phase",
    "reconcile",
];

/// Macros by example: `#[macro_export]` puts them at the root, wherever they stand.
const MACROS: [&str; 2] = ["crash_point", "locked"];

/// What stands behind a keyword that makes it public, up to the end of the statement.
fn public<'t>(text: &'t str, keyword: &str) -> Vec<&'t str> {
    let start = format!("pub {keyword} ");
    let rests = text.lines().enumerate().filter(|(_, line)| line.starts_with(&start));
    let starts =
        rests.map(|(number, _)| text.lines().take(number).map(|line| line.len() + 1).sum());
    starts
        .filter_map(|at: usize| text[at..].strip_prefix(&start))
        .filter_map(|rest| rest.split_once(';').map(|(statement, _)| statement))
        .collect()
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn exported(text: &str) -> Vec<String> {
    let trees = public(text, "use").into_iter();
    sorted(trees.flat_map(|tree| paths(tree).into_iter().map(|(_, name)| name)))
}

#[test]
fn the_root_and_the_prelude_have_these_names_and_no_others() {
    let root = code(include_str!("../../src/lib.rs"));
    assert_eq!(sorted(public(&root, "mod").into_iter().map(str::to_owned)), MODULES);
    assert_eq!(exported(&root), NAMES);
    let prelude = code(include_str!("../../src/prelude.rs"));
    assert_eq!(exported(&prelude), PRELUDE);
    for text in [&root, &prelude] {
        assert!(!text.contains('*'), "a name that comes by `*` is in no list");
        let others = ["fn", "struct", "enum", "trait", "type", "const", "static", "macro", "union"];
        let declared = others.iter().flat_map(|keyword| public(text, keyword));
        assert_eq!(declared.collect::<Vec<_>>(), [""; 0], "declared, and not named again");
    }
}

#[test]
fn the_root_has_these_macros_and_no_others() {
    let mut files = Vec::new();
    super::files("src", &[".rs"], &mut files);
    let after = |text: &str| {
        let rests: Vec<&str> = text.split("#[macro_export]\nmacro_rules! ").skip(1).collect();
        rests.iter().map(|rest| rest.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut found = sorted(files.iter().flat_map(|(_, text)| after(text)));
    // One that has another form without its feature.
    found.dedup();
    assert_eq!(found, MACROS);
    let marks = files.iter().map(|(_, text)| text.matches("#[macro_export").count()).sum::<usize>();
    assert_eq!(marks, 3, "each of them stands before its macro");
}

#[test]
fn each_form_of_a_public_name_is_seen() {
    let text = "pub use a::B;\nuse a::C;\npub use a::{\n    d::{self, E},\n    F as G,\n};\npub mod h;\n    pub use i::J;\n";
    assert_eq!(exported(text), ["B", "E", "G", "d"]);
    assert_eq!(public(text, "mod"), ["h"]);
}

/// The methods of `RunQueryDsl`, which diesel and diesel-async give to every type.
const METHODS_OF_DIESEL: [&str; 7] =
    ["execute", "first", "get_result", "get_results", "load", "load_iter", "load_stream"];

/// How a connection declares its part of a trait of diesel's.
const OF_A_CONNECTION: &str = "<'conn, 'query, T>(";

/// Whether a line declares a method by such a name, of a type or of a trait, that an application may call. A function
/// outside of an `impl` begins its line.
fn collides(line: &str) -> bool {
    let declared = line.split_once("fn ").filter(|(before, _)| {
        let is_method = before.starts_with(' ');
        is_method && before.split_whitespace().all(|word| ["async", "const", "pub"].contains(&word))
    });
    declared.is_some_and(|(_, rest)| {
        METHODS_OF_DIESEL.iter().any(|name| {
            rest.strip_prefix(name).is_some_and(|rest| {
                rest.starts_with(['(', '<']) && !rest.starts_with(OF_A_CONNECTION)
            })
        })
    })
}

/// Where `RunQueryDsl` is imported, Rust may take such a call for diesel's method, and its error says nothing of ours.
#[test]
fn no_method_has_the_name_of_one_that_diesel_gives_to_every_type() {
    let mut files = Vec::new();
    super::files("src", &[".rs"], &mut files);
    let found: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| {
            let lines = text.lines().enumerate().filter(|(_, line)| collides(line));
            lines.map(move |(at, line)| format!("{}:{}: {line}", path.display(), at + 1))
        })
        .collect();
    assert!(found.is_empty(), "use another name:\n{}", found.join("\n"));
    for line in [
        "    pub async fn execute(self) -> Result<Outcome, CallError> {",
        "    pub fn load<K>(&self, key: K) -> Option<K> {",
        "    fn first(&self) -> u32;",
    ] {
        assert!(collides(line), "{line}");
    }
    for line in [
        "    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> Rows {",
        "    pub fn first_of(self) {",
        "fn first<const N: usize>(bytes: &[u8]) {",
        "    pub(super) fn first(&self) {",
        "    /// As `fn first(self)`",
    ] {
        assert!(!collides(line), "{line}");
    }
}
