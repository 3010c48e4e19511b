//! No derived `Debug` shows a scope, a key or a value (G19): such a field has a type that hides it, or its struct no
//! `Debug`. The `Debug` of some types of other crates shows a value or a secret, whatever the field is called.

use super::files;

/// What is hidden, as fields are named, where the type does not hide it.
const HIDDEN: [&str; 10] = [
    "scope",
    "key",
    "idempotency_key",
    "params",
    "args",
    "body",
    "output",
    "outputs",
    "payload",
    "secret",
];

/// Types that show what they hold.
const SHOWN: [&str; 5] = ["String", "&'a str", "Vec<u8>", "Bytes", "Value"];

/// Types of other crates that show what they hold: JSON, the header lines of a client, the password of a URL.
const SHOWN_BY_OTHERS: [&str; 5] = ["RawValue", "reqwest::Client", ": Client", ": Opts", ": Url"];

/// The lines with such a field, in items that derive `Debug`.
fn shown(text: &str) -> Vec<&str> {
    let mut derived = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("#[derive(") {
            derived = line.contains("Debug");
        }
        if matches!(line, "}" | "") {
            derived = false;
        }
        let is_code = !line.trim_start().starts_with("//");
        if derived && is_code && SHOWN_BY_OTHERS.iter().any(|kind| line.contains(kind)) {
            found.push(line);
        }
        let field = line.trim().trim_start_matches("pub(").trim_start_matches("pub ");
        let field = field.rsplit_once(") ").map_or(field, |(_, field)| field);
        let Some((name, kind)) = field.split_once(": ") else { continue };
        let kind = kind.trim_start_matches("Option<");
        let is_hidden = HIDDEN.contains(&name) && SHOWN.iter().any(|shown| kind.starts_with(shown));
        if derived && is_hidden {
            found.push(line);
        }
    }
    found
}

#[test]
fn g19_no_derived_debug_shows_what_is_hidden() {
    let mut sources = Vec::new();
    files("src", &[".rs"], &mut sources);
    let found: Vec<_> = sources
        .iter()
        .flat_map(|(path, text)| shown(text).into_iter().map(move |l| (path, l)))
        .collect();
    assert!(found.is_empty(), "shown by `Debug`: {found:#?}");
    let seen = "#[derive(Clone, Debug)]\npub struct Row {\n    pub(in crate::store) scope: Option<String>,\n    pub key: Scope,\n}\n";
    assert_eq!(shown(seen), ["    pub(in crate::store) scope: Option<String>,"]);
    assert!(shown(&seen.replace(", Debug", "")).is_empty());
    let of_others = "#[derive(Debug)]\nstruct Outputs(Vec<(String, Box<RawValue>)>);\n";
    assert_eq!(shown(of_others).len(), 1);
}
