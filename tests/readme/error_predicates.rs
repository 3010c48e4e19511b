//! What an error of a database means is judged in one place for each store: its `error.rs`. A judgement that stands
//! elsewhere may differ from the one there.

use super::imports::code;
use super::words;

/// The functions that say yes or no about an error.
fn predicates(text: &str) -> Vec<String> {
    let code = code(text);
    let functions = code.split("fn ").skip(1).filter_map(|rest| rest.split_once(['{', ';']));
    let about_errors = functions.filter(|(signature, _)| {
        let signature = signature.split("where\n").next().unwrap_or_default();
        signature.rsplit_once("->").is_some_and(|(parameters, answer)| {
            answer.trim() == "bool" && words(parameters).any(|word| word.ends_with("Error"))
        })
    });
    let name = |signature: &str| signature.split(['(', '<']).next().unwrap_or_default().to_owned();
    about_errors.map(|(signature, _)| name(signature)).collect()
}

#[test]
fn each_predicate_on_an_error_is_in_the_file_of_its_stores_errors() {
    let mut sources = Vec::new();
    super::files("src/store", &[".rs"], &mut sources);
    let (there, elsewhere): (Vec<_>, Vec<_>) = sources
        .iter()
        .flat_map(|(path, text)| predicates(text).into_iter().map(move |name| (path, name)))
        .partition(|(path, _)| path.ends_with("error.rs"));
    assert!(there.len() > 15, "{there:?}");
    assert!(elsewhere.is_empty(), "in the `error.rs` of the store: {elsewhere:?}");
}

#[test]
fn a_predicate_is_seen_in_each_form() {
    for (text, name) in [
        ("fn is_lost(error: &Error) -> bool {\n}", "is_lost"),
        ("    pub(super) fn cannot(error: &StoreError) -> bool {", "cannot"),
        ("fn ended(error: &diesel::result::Error) -> bool {", "ended"),
        ("fn of<E>(\n    done: &Result<(), DbError>,\n) -> bool\nwhere\n    E: Send,\n{", "of"),
        ("    fn is_told(&self, error: &mysql_async::Error) -> bool;", "is_told"),
    ] {
        assert_eq!(predicates(text), [name], "{text}");
    }
    for text in [
        "fn kind(error: &Error) -> Option<bool> {",
        "fn is_open(&self) -> bool { Err(Error::NotFound) }",
        "fn map(self, told: impl Fn(&Error) -> bool) -> Self {",
        "// fn is_lost(error: &Error) -> bool {",
    ] {
        assert!(predicates(text).is_empty(), "{text}");
    }
}
