//! A bad value is refused, by `build()`, by a setter that returns a `SettingError`, or by the call that it is an argument of,
//! and never replaced by another without a word. What looks as if it replaced one is on these lists, with the reason.
//! Which of the three it is depends on the type: `setters.rs`.

use std::collections::BTreeSet;

use super::files;
use super::imports::code;

/// Files that clamp a number, wherever in their code.
const CLAMPS: [(&str, &str); 5] = [
    ("src/console/pages/chart.rs", "a row that is outside of the chart's time, at its edge"),
    ("src/http/retry_after.rs", "a header of an answer (RFC 9110, 10.2.3): the engine computes it"),
    ("src/store/postgres/search_slots.rs", "a share of the pool's connections: it is computed"),
    ("src/worker/delivery.rs", ASKED_FOR),
    ("src/worker/reaper.rs", "half of a batch that was too large: it is computed"),
];

/// A value of another system's, such as that of a `Retry-After`. The application cannot change what it asks for.
const ASKED_FOR: &str = "another system asked for it";
/// What is asked for is the smaller of two values, both of which were checked.
const SMALLER: &str = "the smaller of two settings";
/// It is computed from what was found, not from an argument.
const FOUND: &str = "of what was found";
/// What the argument of a random number is for is a range.
const RANGE: &str = "the lower end of a range";

/// Public functions whose code takes the smaller of two values, or one where there is none.
const BOUNDS: [(&str, &str, &str); 6] = [
    ("src/client/policy.rs", "backoff_after", SMALLER),
    ("src/client/policy.rs", "time_for_attempt", SMALLER),
    ("src/client/send.rs", "send_watched", SMALLER),
    ("src/ops/bulk.rs", "bulks", FOUND),
    ("src/simulation/world.rs", "below", RANGE),
    ("src/simulation/world.rs", "duration", RANGE),
];

/// Public functions whose documentation says that something is clamped, or counts as something else.
const SAYS: [(&str, &str, &str); 6] = [
    ("src/ops/mod.rs", "late_jobs", "which jobs are late"),
    ("src/phase/outcome.rs", "not_executed_after", ASKED_FOR),
    ("src/phase/outcome.rs", "retryable_after", ASKED_FOR),
    ("src/worker/config.rs", "concurrency", "what a process leaves behind that is killed"),
    ("src/worker/job.rs", "deliver", "a panic of the application's code"),
    ("src/worker/job.rs", "handles", "a panic of the application's code"),
];

/// The name of the function that a line begins to declare, if others can call it: it is public, or of a public trait.
fn public_function(line: &str, is_in_public_trait: bool) -> Option<&str> {
    let rest = line.trim_start();
    let rest = match rest.strip_prefix("pub ") {
        Some(rest) => rest,
        None if is_in_public_trait => rest,
        None => return None,
    };
    let rest = rest.strip_prefix("const ").unwrap_or(rest);
    let rest = rest.strip_prefix("async ").unwrap_or(rest);
    let name = rest.strip_prefix("fn ")?;
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    Some(&name[..end])
}

/// The public functions of a file, each with its documentation and its code.
fn public_functions(text: &str) -> Vec<(&str, String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut functions, mut doc, mut is_in_public_trait) = (Vec::new(), String::new(), false);
    for (at, line) in lines.iter().enumerate() {
        let begins = line.trim_start();
        if !line.is_empty() && !line.starts_with([' ', '}', ')', '/', '#']) {
            is_in_public_trait = line.starts_with("pub trait ");
        }
        if let Some(said) = begins.strip_prefix("///") {
            doc.push_str(said);
        } else if !begins.starts_with('#') {
            if let Some(name) = public_function(line, is_in_public_trait) {
                let indent = &line[..line.len() - begins.len()];
                let is_end = |line: &&str| {
                    let rest = line.strip_prefix(indent).filter(|rest| !rest.starts_with(' '));
                    rest.is_some_and(|rest| {
                        rest == "}" || rest.ends_with(';') || rest.ends_with(" }")
                    })
                };
                let length = lines[at..].iter().position(is_end).unwrap_or(0);
                functions.push((
                    name,
                    std::mem::take(&mut doc),
                    lines[at..=at + length].join("\n"),
                ));
            }
            doc.clear();
        }
    }
    functions
}

/// Whether the code of a public function may replace a value that it was given.
fn bounds(function: &str) -> bool {
    // The least of many is another thing.
    let code = code(function).replace(".min()", "");
    [".clamp(", ".max(1)", ".min("].iter().any(|bound| code.contains(bound))
}

/// Whether the documentation of one says that it does.
fn says(doc: &str) -> bool {
    let doc = doc.to_ascii_lowercase();
    ["clamp", "counts as", "count as", "mean the same"].iter().any(|words| doc.contains(words))
}

fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for below in ["src", "otel/src"] {
        files(below, &[".rs"], &mut found);
    }
    assert!(found.len() > 300, "{}", found.len());
    found.into_iter().map(|(path, text)| (path.display().to_string(), text)).collect()
}

#[test]
fn nothing_is_clamped_without_a_reason() {
    let clamps = |(path, text): (String, String)| code(&text).contains(".clamp(").then_some(path);
    let found: BTreeSet<String> = sources().into_iter().filter_map(clamps).collect();
    let listed = CLAMPS.map(|(path, _)| path.to_owned());
    assert_eq!(
        found,
        BTreeSet::from(listed),
        "refuse what cannot work, or say on the list why not"
    );
}

#[test]
fn no_public_function_replaces_a_value_without_a_reason() {
    let (mut bounding, mut saying) = (BTreeSet::new(), BTreeSet::new());
    for (path, text) in sources() {
        for (name, doc, function) in public_functions(&text) {
            let place = (path.clone(), name.to_owned());
            if bounds(&function) {
                bounding.insert(place.clone());
            }
            if says(&doc) {
                saying.insert(place);
            }
        }
    }
    let listed = |list: &[(&str, &str, &str)]| -> BTreeSet<(String, String)> {
        list.iter().map(|(path, name, _)| ((*path).to_owned(), (*name).to_owned())).collect()
    };
    let advice = "refuse what cannot work, or say on the list why not";
    assert_eq!(bounding, listed(&BOUNDS), "{advice}");
    assert_eq!(saying, listed(&SAYS), "{advice}");
}

#[test]
fn a_replaced_value_is_seen_in_each_form() {
    for text in [
        "    pub fn rows(self, rows: u32) -> Self {\n        let rows = rows.clamp(1, 9);\n    }",
        "    pub async fn rows(self, rows: u32) -> Self {\n        x(rows.min(9))\n    }",
        "pub fn rows(rows: u32) -> u32 { rows.max(1) }",
        "    /// Of many rows. Zero counts as\n    #[must_use]\n    pub fn rows() {}",
        "pub trait Rows {\n    /// Clamped to 9.\n    fn rows(&self) -> u32;\n}",
    ] {
        let functions = public_functions(text);
        let [(name, doc, function)] = &functions[..] else { panic!("{text}: {functions:?}") };
        assert_eq!(*name, "rows");
        assert!(bounds(function) != says(doc), "{text}");
    }
    for text in [
        "    fn rows(rows: u32) -> u32 {\n        rows.clamp(1, 9)\n    }",
        "    /// Zero counts as one.\n    pub(crate) fn rows() {}",
        "    pub fn rows(rows: u32) -> u32 {\n        // not rows.min(9)\n        rows\n    }\n    fn other() {\n        1.min(2);\n    }",
        "/// A row counts as one.\npub struct Row;\n\npub fn rows() {}",
    ] {
        let functions = public_functions(text);
        assert!(
            functions.iter().all(|(_, doc, function)| !bounds(function) && !says(doc)),
            "{text}"
        );
    }
}
