//! What an error of a database means is judged in one place for each store: its `error.rs`; or, where rooms above the
//! stores ask as well, in `src/error.rs` for all of them. A judgement that stands elsewhere may differ from the one there.

use std::collections::BTreeMap;

use super::imports::code;
use super::words;

/// A function that says yes or no about an error.
#[derive(Debug)]
struct Predicate {
    name: String,
    /// Whether it asks another one of its name: of the error that its own one holds, say.
    asks_another: bool,
}

fn predicates(text: &str) -> Vec<Predicate> {
    let code = format!("\n{}", code(text));
    let mut pieces = code.split("fn ");
    let (mut before, mut is_of_an_error) = (pieces.next().unwrap_or_default(), false);
    let mut found = Vec::new();
    for piece in pieces {
        is_of_an_error = match before.rsplit_once("\nimpl") {
            Some((_, within)) => !within.contains("\n}") && is_about_an_error(implementor(within)),
            None => is_of_an_error && !before.contains("\n}"),
        };
        before = piece;
        let Some((signature, body)) = piece.split_once(['{', ';']) else { continue };
        let signature = signature.split("where\n").next().unwrap_or_default();
        let Some((parameters, answer)) = signature.rsplit_once("->") else { continue };
        let is_asked_itself = is_of_an_error && words(parameters).any(|word| word == "self");
        if answer.trim() == "bool" && (is_asked_itself || is_about_an_error(parameters)) {
            let name = signature.split(['(', '<']).next().unwrap_or_default();
            let asks_another = words(body).any(|word| word == name);
            found.push(Predicate { name: name.to_owned(), asks_another });
        }
    }
    found
}

/// The type of an `impl`, without the trait.
fn implementor(header: &str) -> &str {
    let header = header.split(['{', ';']).next().unwrap_or_default();
    let header = header.split("\nwhere").next().unwrap_or_default();
    header.rsplit(" for ").next().unwrap_or_default()
}

fn is_about_an_error(types: &str) -> bool {
    words(types).any(|word| word.ends_with("Error"))
}

/// The names of predicates that are in several files, each with these.
fn repeated<'a>(
    sources: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, Vec<&'a str>> {
    let mut at: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (path, text) in sources {
        for predicate in predicates(text).into_iter().filter(|found| !found.asks_another) {
            let paths = at.entry(predicate.name).or_default();
            if paths.last() != Some(&path) {
                paths.push(path);
            }
        }
    }
    at.retain(|_, paths| paths.len() > 1);
    at
}

fn sources(below: &str) -> Vec<(String, String)> {
    let mut sources = Vec::new();
    super::files(below, &[".rs"], &mut sources);
    sources.into_iter().map(|(path, text)| (path.to_string_lossy().into_owned(), text)).collect()
}

#[test]
fn each_predicate_on_an_error_is_in_the_file_of_its_stores_errors() {
    let sources = sources("src/store");
    let (there, elsewhere): (Vec<_>, Vec<_>) = sources
        .iter()
        .flat_map(|(path, text)| predicates(text).into_iter().map(move |found| (path, found)))
        .partition(|(path, _)| path.ends_with("/error.rs"));
    assert!(there.len() > 15, "{there:?}");
    assert!(elsewhere.is_empty(), "in the `error.rs` of the store: {elsewhere:?}");
}

#[test]
fn a_predicate_on_an_error_is_in_one_file() {
    let sources = sources("src");
    let repeated = repeated(sources.iter().map(|(path, text)| (path.as_str(), text.as_str())));
    assert!(repeated.is_empty(), "in one file, which the others ask: {repeated:?}");
}

#[test]
fn a_predicate_is_seen_in_each_form() {
    for (text, name) in [
        ("fn is_lost(error: &Error) -> bool {\n}", "is_lost"),
        ("    pub(super) fn cannot(error: &StoreError) -> bool {", "cannot"),
        ("fn ended(error: &diesel::result::Error) -> bool {", "ended"),
        ("fn of<E>(\n    done: &Result<(), DbError>,\n) -> bool\nwhere\n    E: Send,\n{", "of"),
        ("    fn is_told(&self, error: &mysql_async::Error) -> bool;", "is_told"),
        ("impl DbError {\n    fn new() {}\n\n    fn is_lost(&self) -> bool {\n    }\n}", "is_lost"),
        ("impl<T> Asked for OpsError<T>\nwhere\n    T: Send,\n{\n    fn is(self) -> bool {", "is"),
    ] {
        let found: Vec<_> = predicates(text).into_iter().map(|found| found.name).collect();
        assert_eq!(found, [name], "{text}");
    }
    for text in [
        "fn kind(error: &Error) -> Option<bool> {",
        "fn is_open(&self) -> bool { Err(Error::NotFound) }",
        "fn map(self, told: impl Fn(&Error) -> bool) -> Self {",
        "// fn is_lost(error: &Error) -> bool {",
        "impl From<DbError> for Lease {\n    fn is_lost(&self) -> bool {",
        "impl DbError {\n}\n\ntrait Lease {\n    fn is_lost(&self) -> bool;",
    ] {
        assert!(predicates(text).is_empty(), "{text}");
    }
}

#[test]
fn a_predicate_in_two_files_is_seen_unless_one_asks_the_other() {
    let twice = |other| {
        let first = "pub fn is_lost(error: &Error) -> bool {\n    matches!(error, Gone)\n}";
        repeated([("error.rs", first), ("store/error.rs", other)])
    };
    for other in [
        "fn is_lost(error: &Error) -> bool {\n    matches!(error, Gone | Unanswered)\n}",
        "impl DbError {\n    fn is_lost(&self) -> bool {\n        self.0 == Gone\n    }\n}",
    ] {
        assert_eq!(twice(other)["is_lost"], ["error.rs", "store/error.rs"], "{other}");
    }
    for other in [
        "impl DbError {\n    fn is_lost(&self) -> bool {\n        is_lost(&self.0)\n    }\n}",
        "impl Lease {\n    fn is_lost(&self) -> bool {\n        self.0 == Gone\n    }\n}",
    ] {
        assert!(twice(other).is_empty(), "{other}");
    }
}
