//! Names are the usual terms of the field: a type is named for what it is. These were named for something else, and do
//! not come back.

use super::{files, words};

/// What is read: the library, its crates, and the programs that measure it.
const SOURCES: [&str; 6] = ["src", "benches", "cli", "compat", "macros", "otel"];

/// Refused as an identifier, each with the name to use.
const IDENTIFIERS: [(&str, &str); 15] = [
    ("Buckets", "RateLimits"),
    ("Fate", "CommitFate"),
    ("Glance", "KeySummary"),
    ("Graves", "UnconfirmedTombstones"),
    ("Killers", "SessionOpener"),
    ("LOOKS", "MAX_ROUNDS"),
    ("LeftPool", "WritablePool"),
    ("Looked", "RoundEnd"),
    ("Scene", "PhaseInputs, or what it runs"),
    ("Texts", "StatementRegistry"),
    ("bells", "wakeups"),
    ("looked_to", "searched_to"),
    ("take_word", "apply_resolution"),
    ("tell_of_waiting", "notify_waiting"),
    ("told_at_once", "outcome_of_row"),
];

/// Refused in comments, too.
const WORDS: [(&str, &str); 3] = [
    ("Lent", "ConnectionGuard"),
    ("lent", "the connection, or who has it"),
    ("was_lent", "was_with_application"),
];

/// Refused as the name of a type. A variant may have such a name: a whole number, a word of a language.
const TYPES: [(&str, &str); 4] = [
    ("Handed", "what was handed over: a statement, a batch"),
    ("Taken", "what was taken, or how: a token, a connection, a lease"),
    ("Whole", "what is whole: a transaction, a row"),
    ("Word", "ResolutionKind"),
];

/// Refused as the name of a type of the stores. Where a type is probed, a value is tried.
const TYPES_OF_STORES: [(&str, &str); 1] = [("Trial", "MergeAttempt")];

/// Refused in the stores wherever the code names it, because a macro declares such types.
const IDENTIFIERS_OF_STORES: [(&str, &str); 1] =
    [("Moved", "UpdateRow, or Transition in the engine")];

/// Refused in the engine: the stores have a `KnownRow`, and a future that moves between threads is `Moved`.
const IDENTIFIERS_OF_THE_ENGINE: [(&str, &str); 2] =
    [("KnownRow", "RowAtStart"), ("Moved", "Transition")];

/// Refused as the names of files: of the library, and of tests.
const FILES: [(&str, &[&str]); 2] = [
    (
        "src/",
        &[
            "drive", "handed", "joined", "lent", "moved", "moves", "stored", "trial", "utils",
            "whole",
        ],
    ),
    ("tests/", &["at_rest", "bad_world", "silence", "utils", "words"]),
];

/// The same as a part of a type's name.
const JOINED: (&str, &str) = ("Joined", "what is in it: AdvanceAndWrite, PhaseWrites, JobPart");

/// What stands in front of the name of a type where it is declared.
const DECLARES: [&str; 5] = ["enum", "struct", "trait", "type", "union"];

/// A boolean that tells who has made something: an enum says it.
const BOOLEAN: (&str, &str) = ("is_ours: bool", "an enum, as PoolOrigin");

/// Whether a line declares a type of this name.
fn declares(code: &str, name: &str) -> bool {
    let mut named = words(code).filter(|word| !word.is_empty());
    named.any(|word| DECLARES.contains(&word)) && named.next() == Some(name)
}

/// What a line says, and what it should say instead.
fn refused(path: &str, line: &str) -> Option<(&'static str, &'static str)> {
    let code = line.split("//").next().unwrap_or_default();
    let is_of_a_store = path.starts_with("src/store/");
    let is_of_the_engine = path.starts_with("src/engine/");
    let types = TYPES.iter().chain(TYPES_OF_STORES.iter().filter(|_| is_of_a_store));
    let mut found = WORDS.iter().filter(|(name, _)| words(line).any(|word| word == *name));
    let identifiers =
        IDENTIFIERS.iter().chain(IDENTIFIERS_OF_STORES.iter().filter(|_| is_of_a_store));
    let of_the_engine = IDENTIFIERS_OF_THE_ENGINE.iter().filter(|_| is_of_the_engine);
    let mut identifiers = identifiers.chain(of_the_engine).copied();
    let identifier = identifiers.find(|(name, _)| words(code).any(|word| word == *name));
    let joined = Some(JOINED).filter(|(name, _)| is_of_a_store && code.contains(*name));
    let declared = types.copied().find(|(name, _)| declares(code, name));
    let boolean = Some(BOOLEAN).filter(|(name, _)| code.contains(*name));
    found.next().copied().or(identifier).or(joined).or(declared).or(boolean)
}

#[test]
fn no_source_has_a_name_that_was_given_up() {
    let mut sources = Vec::new();
    for folder in SOURCES {
        let before = sources.len();
        files(folder, &[".rs"], &mut sources);
        assert!(sources.len() > before, "{folder}");
    }
    assert!(sources.len() > 350, "{}", sources.len());
    let mut found = Vec::new();
    for (path, text) in &sources {
        let path = path.display().to_string();
        for (at, line) in text.lines().enumerate() {
            if let Some((name, instead)) = refused(&path, line) {
                found.push(format!("{path}:{}: {name}: {instead}", at + 1));
            }
        }
    }
    assert!(found.is_empty(), "use the other name:\n{}", found.join("\n"));
}

/// Whether a file or a folder on this path has such a name.
fn has_a_refused_name(path: &str) -> bool {
    let refused = FILES.iter().filter(|(below, _)| path.starts_with(*below));
    let mut refused = refused.flat_map(|(_, names)| names.iter());
    refused.any(|name| path.split('/').any(|part| part.trim_end_matches(".rs") == *name))
}

#[test]
fn no_file_has_a_name_that_was_given_up() {
    let mut sources = Vec::new();
    files("src", &[".rs"], &mut sources);
    files("tests", &[".rs"], &mut sources);
    let paths = sources.iter().map(|(path, _)| path.display().to_string());
    let found: Vec<String> = paths.filter(|path| has_a_refused_name(path)).collect();
    assert!(found.is_empty(), "name the file for the job that it does: {found:?}");
    for path in ["src/engine/stored.rs", "src/store/postgres/moves/mod.rs", "tests/http/words.rs"] {
        assert!(has_a_refused_name(path), "{path}");
    }
    for path in ["src/store/mysql/words.rs", "tests/traces/stored.rs", "src/engine/restored.rs"] {
        assert!(!has_a_refused_name(path), "{path}");
    }
}

#[test]
fn each_name_that_was_given_up_is_seen() {
    for (line, name) in [
        ("pub(super) struct Lent<P: Pool> {", "Lent"),
        ("        let lent = pool.get().await?;", "lent"),
        ("    /// While it is lent, no request makes progress.", "lent"),
        ("    texts: Arc<Texts>,", "Texts"),
        ("impl<S> Scene<'_, S> {", "Scene"),
        ("pub(super) trait Whole: Send {", "Whole"),
        ("enum Word {", "Word"),
        ("pub(super) struct Trial {", "Trial"),
        ("    Moved<'a> for Pg as varying, rows Untyped, { next: NextState<'a> },", "Moved"),
        ("pub(super) struct JoinedWrites<'a> {", "Joined"),
        ("    writes: CreateJoined<'a>,", "Joined"),
        ("    pub(super) is_ours: bool,", "is_ours: bool"),
    ] {
        let seen = refused("src/store/postgres/mod.rs", line);
        assert_eq!(seen.map(|(name, _)| name), Some(name), "{line}");
    }
    for (line, name) in [
        ("enum KnownRow {", "KnownRow"),
        ("Moved(Transition<'_>),", "Moved"),
        ("struct Handed;", "Handed"),
    ] {
        let seen = refused("src/engine/attempt.rs", line);
        assert_eq!(seen.map(|(name, _)| name), Some(name), "{line}");
    }
    for line in [
        "    // Texts have a JSON form.",
        "    Whole(i64),",
        "Token::Word(word) => word.to_ascii_uppercase(),",
        "pub(super) struct Trial {",
        "struct Moved<T> {",
        "let is_ours = delete.execute(conn)? == 1;",
        "silently_lent_out();",
    ] {
        assert_eq!(refused("src/probe/talk.rs", line), None, "{line}");
    }
}
