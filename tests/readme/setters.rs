//! A bad value of a setting is refused, and `docs/design.md` says where. Each public setter is of one of three kinds of
//! types, and a test gives it a value that cannot work, or a list says why there is none.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{files, quoted, rows};

const DESIGN: &str = include_str!("../../docs/design.md");
const SETTINGS: &str = "tests/requests/settings.rs";

/// Types that collect settings for something that takes them and refuses what cannot work. With the file of the test that
/// gives each setter a bad value.
const COLLECTED: [(&str, &str); 8] = [
    ("CachedReplays", "tests/requests/replay_cache.rs"),
    ("EngineBuilder", SETTINGS),
    ("Limits", SETTINGS),
    ("Policy", SETTINGS),
    ("PoolSettings", SETTINGS),
    ("Quota", SETTINGS),
    ("RetryPolicy", SETTINGS),
    ("WorkerConfig", SETTINGS),
];

/// Types that work as they are, so the setter refuses. (What a setter of `Handlers` cannot know, workers refuse when they
/// start.)
const AT_WORK: [(&str, &str); 12] = [
    ("Api", SETTINGS),
    ("Caller", SETTINGS),
    ("Console", SETTINGS),
    ("DerivedKeys", "src/derived_key/tests.rs"),
    ("EncryptingCodec", SETTINGS),
    ("Handlers", SETTINGS),
    ("Idempotency", SETTINGS),
    ("Mysql", "tests/commits/pool_shares.rs"),
    ("Postgres", "tests/commits/pool_shares.rs"),
    ("RedisReplays", "tests/requests/redis_replays.rs"),
    ("RedisStream", "tests/workers/redis_stream.rs"),
    ("Webhook", SETTINGS),
];

/// Types whose values are arguments: the call that takes one refuses it, or the test that uses it fails.
const ARGUMENTS: [&str; 8] = [
    "AuditFilter",
    "Call",
    "Definitions",
    "Explorer",
    "Filter",
    "Permissions",
    "Reply",
    "Resolution",
];

/// Its type has no value that cannot work.
const TYPE: &str = "each value of its type works";
/// It is one of the types above.
const CHECKED: &str = "its own setters are listed here";

/// Setters to which no bad value can be given.
const NONE_IS_BAD: [(&str, &str, &str); 17] = [
    ("Caller", "key_form", TYPE),
    ("Caller", "marker", TYPE),
    ("DerivedKeys", "also_continue", CHECKED),
    ("EngineBuilder", "app", TYPE),
    ("EngineBuilder", "cached_replays", CHECKED),
    ("EngineBuilder", "codec", TYPE),
    ("EngineBuilder", "definitions", TYPE),
    ("EngineBuilder", "derived_keys", CHECKED),
    ("EngineBuilder", "traces", TYPE),
    ("Handlers", "on", "workers log each job that is staged and has no function"),
    ("Policy", "bodies", TYPE),
    ("Policy", "key", TYPE),
    ("Policy", "key_syntax", TYPE),
    ("Policy", "profile", TYPE),
    ("Postgres", "operators_pool", TYPE),
    ("RedisReplays", "prefix", "Redis takes any name"),
    ("RetryPolicy", "repeat", TYPE),
];

/// A public method that takes a value by value, a setting, and returns it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Setter {
    of: String,
    name: String,
    refuses: bool,
}

/// The type of an `impl` without a trait.
fn type_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl").filter(|_| !line.contains(" for "))?;
    let mut depth = 0;
    let named = rest.find(|letter: char| {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        depth == 0 && letter.is_alphabetic()
    })?;
    rest[named..].split(|letter: char| !letter.is_alphanumeric()).next()
}

/// Whether each value that can be given to a setter works.
fn none_is_bad(of: &str, name: &str) -> bool {
    NONE_IS_BAD.iter().any(|(listed, setter, _)| *listed == of && *setter == name)
}

/// The setters of a file.
fn setters(text: &str) -> Vec<Setter> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut of, mut found) = (None, Vec::new());
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("impl") {
            of = type_of(line);
        }
        let Some(rest) = line.strip_prefix("    pub ") else { continue };
        let Some(rest) = rest.strip_prefix("const ").unwrap_or(rest).strip_prefix("fn ") else {
            continue;
        };
        let length = lines[at..].iter().position(|line| line.ends_with('{')).unwrap_or(0);
        let signature = lines[at..=at + length].join(" ");
        let signature: Vec<&str> = signature.split_whitespace().collect();
        let signature = signature.join(" ").replace("( ", "(");
        let takes = ["(self, ", "(mut self, "].iter().any(|begin| signature.contains(begin));
        let refuses = signature.contains("-> Result<Self, ");
        let returns = ["-> Self", "-> EngineBuilder<"].iter().any(|end| signature.contains(end));
        let Some(of) = of.filter(|_| takes && (refuses || returns)) else { continue };
        let name = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
        let name = name.unwrap_or_default().to_owned();
        found.push(Setter { of: of.to_owned(), name, refuses });
    }
    found
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for below in ["src", "otel/src"] {
        files(below, &[".rs"], &mut sources);
    }
    sources
}

fn all_setters() -> BTreeSet<Setter> {
    let found: BTreeSet<Setter> = sources().iter().flat_map(|(_, text)| setters(text)).collect();
    assert!(found.len() > 90, "{}", found.len());
    found
}

#[test]
fn each_setter_refuses_a_bad_value_where_the_page_says() {
    let set = all_setters();
    let is_on = |list: &[(&str, &str)], of: &str| list.iter().any(|(listed, _)| *listed == of);
    for Setter { of, name, refuses } in &set {
        if ARGUMENTS.contains(&of.as_str()) {
            continue;
        }
        let (is_collected, is_at_work) = (is_on(&COLLECTED, of), is_on(&AT_WORK, of));
        assert!(is_collected != is_at_work, "{of} is on one of the lists");
        let expected = is_at_work && !none_is_bad(of, name);
        assert_eq!(
            *refuses, expected,
            "{of}::{name}: see How settings are checked in docs/design.md"
        );
    }
    for (of, name, _) in NONE_IS_BAD {
        assert!(set.iter().any(|setter| setter.of == of && setter.name == name), "{of}::{name}");
    }
    for of in COLLECTED.iter().chain(&AT_WORK).map(|(of, _)| of).chain(&ARGUMENTS) {
        assert!(set.iter().any(|setter| setter.of == *of), "{of} has no setter");
    }
}

/// Types share names of setters, so the test also has the setting's own name, if its errors have one.
#[test]
fn a_test_gives_each_setter_a_value_that_cannot_work() {
    let sources = sources();
    for Setter { of, name, .. } in all_setters() {
        let file = COLLECTED.iter().chain(&AT_WORK).find(|(listed, _)| *listed == of);
        let Some((_, file)) = file.filter(|_| !none_is_bad(&of, &name)) else { continue };
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(&format!(".{name}(")), "{file} does not call {of}::{name}");
        let named = format!("\"{of}::{name}");
        let is_told = sources.iter().any(|(_, source)| source.contains(&named));
        assert!(!is_told || text.contains(&named), "{file} does not compare {of}::{name}");
    }
}

#[test]
fn the_page_names_the_types_of_both_kinds() {
    let rows = rows(DESIGN, "How settings are checked");
    let named: Vec<Vec<&str>> =
        rows.iter().map(|row| quoted(row.split(" | ").next().unwrap()).collect()).collect();
    assert_eq!(named, [COLLECTED.map(|(of, _)| of).to_vec(), AT_WORK.map(|(of, _)| of).to_vec()]);
}

#[test]
fn a_setter_is_found_in_each_form() {
    let text = "impl<S: Store, A: Send + Sync + 'static> Api<S, A> {\n    pub fn a(mut self, to: u8) -> Self {\n    }\n\
                \n    pub fn b(\n        self,\n        to: u8,\n    ) -> Result<Self, E> {\n    }\n\
                \n    pub fn none(self) -> Self {\n    }\n    pub fn look(&self, at: u8) -> Self {\n    }\n\
                \n    pub(crate) fn ours(self, to: u8) -> Self {\n    }\n}\n\
                impl Debug for Api {\n    pub fn of_a_trait(self, to: u8) -> Self {\n    }\n}\n";
    let setter = |name: &str, refuses| Setter { of: "Api".into(), name: name.into(), refuses };
    assert_eq!(setters(text), [setter("a", false), setter("b", true)]);
}
