//! What may grow in a release that breaks no application is `#[non_exhaustive]`: each public enum, and each public
//! struct whose fields are all public, or that is a unit. What is not is on a list, with the reason.

use std::collections::BTreeSet;
use std::path::Path;

use super::imports::{code, paths};

/// Built by applications, so that a new field or variant is theirs to decide about.
const BUILT: [&str; 11] = [
    // A definition and its phases, in hand-written ones and by the macro.
    "Definition",
    "Phase",
    // By every codec.
    "CodecError",
    // Around a field, around what a handler is given.
    "Unfingerprinted",
    "Params",
    "Checked",
    // By a network between an engine and its simulated database.
    "Passage",
    // By a client that sends by itself; `KeyedCall::decide` takes the parts.
    "Attempt",
    // By its name: a codec and a network that change nothing, and diesel's backend of a store.
    "PlainCodec",
    "Perfect",
    "MemoryBackend",
];

/// Complete: another variant would be another contract, and a `match` without a last arm is how an application finds
/// out.
const COMPLETE: [&str; 9] = [
    // What a phase, a reconcile function or a network says.
    "Flow",
    "Reconciled",
    "Cut",
    // Answered or not; sent or not; done, again or given up.
    "End",
    "Last",
    "Transport",
    "Decision",
    // States of a builder's type, which have no value.
    "Registered",
    "Unregistered",
];

/// Of `atomic-phases-compat`: a lock's, or a stored row's. Built, or matched to the last variant, by the macros and the library, which are released
/// together with it in one exact version. A variant that one of them does not know must not compile.
const OF_THE_LOCK: [&str; 22] = [
    "Absent",
    "CallState",
    "Class",
    "Effect",
    "Field",
    "Length",
    "Level",
    "List",
    "Lock",
    "Locked",
    "LockedJob",
    "Manner",
    "Order",
    "Output",
    "RequestSample",
    "Resumed",
    "Shape",
    "StopsBecause",
    "Stored",
    "Unknown",
    "Variant",
    "Written",
];

/// The names of `pub use` statements.
fn exported(text: &str) -> Vec<String> {
    let statements = text.split("\npub use ").skip(1);
    let trees = statements.filter_map(|rest| rest.split_once(';').map(|(tree, _)| tree));
    trees.flat_map(|tree| paths(tree).into_iter().map(|(_, name)| name)).collect()
}

/// The public enums and structs that are declared here, may not grow, and could.
fn closed(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declared = line.strip_prefix("pub enum ").map(|rest| (true, rest));
        let declared =
            declared.or_else(|| line.strip_prefix("pub struct ").map(|rest| (false, rest)));
        let Some((is_enum, rest)) = declared else { continue };
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
        let mut attributes =
            lines[..at].iter().rev().take_while(|line| !line.is_empty() && **line != "}");
        if attributes.any(|line| line.contains("non_exhaustive") || line.contains("doc(hidden)")) {
            continue;
        }
        let fields = lines[at + 1..].iter().take_while(|line| !line.starts_with('}'));
        // Without what stands around a field: attributes, and the rest of a type that takes several lines.
        let is_field = |line: &&&str| {
            line.strip_prefix("    ").is_some_and(|field| field.starts_with(char::is_alphabetic))
        };
        let fields: Vec<&&str> = match line.ends_with('{') {
            true => fields.filter(is_field).collect(),
            false => Vec::new(),
        };
        let is_public = |line: &&&str| line.starts_with("    pub ");
        let in_brackets = line.contains("(pub ") && !line.contains(", ");
        let is_open = in_brackets || !fields.is_empty() && fields.iter().all(is_public);
        // A unit struct's name is a value, too.
        let is_unit = line.ends_with(';') && !line.contains('(');
        if is_enum || is_open || is_unit {
            found.push(name);
        }
    }
    found
}

#[test]
fn what_may_grow_says_so() {
    let mut files = Vec::new();
    super::files("src", &[".rs"], &mut files);
    super::files("compat/src", &[".rs"], &mut files);
    let files: Vec<(String, String)> =
        files.iter().map(|(path, text)| (path.display().to_string(), code(text))).collect();
    let names: BTreeSet<String> = files.iter().flat_map(|(_, text)| exported(text)).collect();
    let is_of_a_public_module = |path: &str| {
        let path = Path::new(path.trim_end_matches("/mod.rs").trim_end_matches(".rs"));
        path.parent() == Some(Path::new("src"))
    };
    let found: BTreeSet<String> = files
        .iter()
        .flat_map(|(path, text)| closed(text).into_iter().map(move |name| (path, name)))
        .filter(|(path, name)| names.contains(name) || is_of_a_public_module(path))
        .map(|(_, name)| name)
        .collect();
    let lists = [&BUILT[..], &COMPLETE, &OF_THE_LOCK];
    let listed: BTreeSet<String> = lists.concat().iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, listed, "`#[non_exhaustive]`, or a line in one of the lists");
}

#[test]
fn each_form_of_a_type_that_may_not_grow_is_seen() {
    let text = "/// A.\n#[derive(Debug)]\npub enum A {\n    B,\n}\n\n#[non_exhaustive]\npub enum C {\n    D,\n}\n\n\
        pub struct E {\n    pub f: u8,\n}\n\npub struct G {\n    pub f: u8,\n    g: u8,\n}\n\n\
        pub struct H(pub u8);\n\npub struct I(u8);\n\npub struct J;\n\npub(crate) enum K {\n    L,\n}\n";
    assert_eq!(closed(text), ["A", "E", "H", "J"]);
}
