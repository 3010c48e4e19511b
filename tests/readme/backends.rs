//! Above the stores, the engine does not ask which database it runs on: what differs between databases is a method of
//! `Store`, an associated item, or a statement.

use super::words;

/// What a store is made of.
const STORES: &str = "src/store/";

/// Who names a database above the stores, each with why.
const PLACES: [(&str, &str); 3] = [
    ("src/lib.rs", "allows what a library with fewer stores does not use"),
    ("src/observe.rs", "warnings that only stores with a server give"),
    ("src/worker/compiled.rs", "compiles the engine once for each store"),
];

/// The features and the types that are a database's.
const NAMES: [&str; 6] = ["postgres", "mysql", "sqlite", "Postgres", "Mysql", "Sqlite"];

/// What tells one database from another when the engine runs. There is not even a place with a reason.
const QUESTIONS: [&str; 8] = [
    "is_postgres",
    "is_mysql",
    "is_mariadb",
    "is_sqlite",
    "is_memory",
    "type_id",
    "type_name_of_val",
    "TypeId",
];

/// The lines of code: no comments, no examples, no unit tests, no conditions of unit tests.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("\nmod tests").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.contains("(test"))
}

/// Whether a line asks which features are compiled. Elsewhere the word may be a module's or a driver's.
fn is_condition(line: &str) -> bool {
    line.contains("feature = \"")
}

fn names_a_database(text: &str) -> bool {
    let is_name = |line: &str, word: &str| {
        NAMES.contains(&word) && (is_condition(line) || word.starts_with(char::is_uppercase))
    };
    code(text).any(|line| words(line).any(|word| is_name(line, word)))
}

fn asks_which(text: &str) -> bool {
    let is_question = |line: &str| {
        let is_asked_in_a_body = line.contains("cfg!(") && names_a_database(line);
        is_asked_in_a_body
            || line.contains("type_name::<S>")
            || words(line).any(|word| QUESTIONS.contains(&word))
    };
    code(text).any(is_question)
}

#[test]
fn the_database_is_named_in_these_places_above_the_stores_and_asked_for_in_none() {
    let mut files = Vec::new();
    super::files("src", &[".rs"], &mut files);
    let above: Vec<(String, &String)> = files
        .iter()
        .map(|(path, text)| (path.display().to_string(), text))
        .filter(|(path, _)| !path.starts_with(STORES))
        .collect();
    assert!(above.len() > 150, "{}", above.len());
    let asking: Vec<&String> =
        above.iter().filter(|(_, text)| asks_which(text)).map(|(path, _)| path).collect();
    assert!(asking.is_empty(), "what differs is the store's to say: {asking:?}");
    let mut naming: Vec<&str> = above
        .iter()
        .filter(|(_, text)| names_a_database(text))
        .map(|(path, _)| path.as_str())
        .collect();
    naming.sort_unstable();
    let mut places = PLACES.map(|(path, _)| path);
    places.sort_unstable();
    assert_eq!(naming, places);
}

#[test]
fn a_database_that_is_named_or_asked_for_is_seen_in_each_form() {
    for text in [
        "    #[cfg(feature = \"mysql\")]\n    fn f() {}",
        "#[cfg(any(feature = \"postgres\", feature = \"sqlite\"))]",
        "impl Engine<crate::store::Mysql> {",
        "use crate::store::{Postgres, Store};",
    ] {
        assert!(names_a_database(text), "{text}");
    }
    for text in [
        "if self.store.is_mysql() { 1 } else { 2 }",
        "if TypeId::of::<S>() == other { f() }",
        "if cfg!(feature = \"sqlite\") { f() }",
        "match std::any::type_name::<S>() {",
    ] {
        assert!(asks_which(text), "{text}");
    }
    for text in [
        "/// As on PostgreSQL: `Postgres`, `is_mysql`.",
        "//! # #[cfg(feature = \"sqlite\")] mod doc {",
        "#[cfg(feature = \"http\")]",
        "#[cfg(all(test, feature = \"sqlite\", feature = \"fault-injection\"))]",
        "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    type S = crate::store::Sqlite;\n}",
        "use crate::store::postgres;",
    ] {
        assert!(!names_a_database(text) && !asks_which(text), "{text}");
    }
}
