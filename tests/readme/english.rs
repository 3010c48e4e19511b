//! Sources and pages are in plain technical English. A text that says "nobody" hides who acts: the client, the holder, a
//! worker, the engine, the server, an operator.

use super::{files, words};

/// Words that name no actor.
const VAGUE: [&str; 8] =
    ["anybody", "anyone", "nobody", "somebody", "someone", "whoever", "whom", "whomever"];

/// Phrases that name no actor, and two that have more than one meaning: concurrently, immediately, or one by one is meant.
const PHRASES: [&str; 4] = ["told so", "no one", "at once", "in turn"];

/// In "looked at once more", the two words do not belong together.
const ONCE_MORE: (&str, &str) = ("at once", " more");

/// What may follow "is no": it compares. Another noun is denied by "is not a".
const COMPARES: [&str; 4] = ["larger", "longer", "more", "other"];

/// "It is no `T`" says that it is not a `T`. "There is no `T`" says another thing. The noun may be on the next line: what
/// is compared has to stand on the line of its "is no".
fn denies_a_noun(line: &str) -> bool {
    line.match_indices(" is no").any(|(at, is_no)| {
        let rest = &line[at + is_no.len()..];
        let ends_there = rest.is_empty() || rest.starts_with(' ');
        let is_there = words(&line[..at])
            .rfind(|word| !word.is_empty())
            .is_some_and(|word| word.eq_ignore_ascii_case("there"));
        let next = words(rest).find(|word| !word.is_empty());
        ends_there && !is_there && !next.is_some_and(|word| COMPARES.contains(&word))
    })
}

/// What stands before and behind a phrase, wherever a line has it as whole words.
fn around<'l>(line: &'l str, phrase: &'l str) -> impl Iterator<Item = (&'l str, &'l str)> {
    let found = line.match_indices(phrase);
    let parts = found.map(move |(at, _)| (&line[..at], &line[at + phrase.len()..]));
    parts.filter(|(before, behind)| {
        !before.ends_with(char::is_alphanumeric) && !behind.starts_with(char::is_alphanumeric)
    })
}

fn has_a_phrase(line: &str) -> bool {
    PHRASES.iter().any(|phrase| {
        around(line, phrase)
            .any(|(_, behind)| *phrase != ONCE_MORE.0 || !behind.starts_with(ONCE_MORE.1))
    })
}

/// "Sent as one." does not say as one of what: a single statement, a single value. "Zero counts as one." says a number, and
/// the noun of a line that ends with "as one" may be on the next line.
fn counts_no_noun(line: &str) -> bool {
    around(line, "as one").any(|(before, behind)| {
        let counts = words(before)
            .rfind(|word| !word.is_empty())
            .is_some_and(|word| ["count", "counts"].contains(&word));
        !counts && behind.starts_with(['.', ',', ';', ':', ')'])
    })
}

fn is_vague(line: &str) -> bool {
    let line = line.to_lowercase();
    words(&line).any(|word| VAGUE.contains(&word))
        || has_a_phrase(&line)
        || denies_a_noun(&line)
        || counts_no_noun(&line)
}

#[test]
fn each_text_names_who_acts() {
    let endings = [".rs", ".md", ".sql", ".js", ".yml", ".toml"];
    let mut texts = vec![("README.md".into(), super::README.to_owned())];
    for below in [
        "benches",
        "cli",
        "compat",
        "docs",
        "examples",
        "fuzz",
        "macros",
        "migrations",
        "monitoring",
        "otel",
        "src",
        "tests",
    ] {
        files(below, &endings, &mut texts);
    }
    // The lists above.
    texts.retain(|(path, _)| !path.ends_with("readme/english.rs"));
    assert!(texts.len() > 700, "{}", texts.len());
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().enumerate().filter(|(_, line)| is_vague(line));
        lines.map(|(at, line)| format!("{}: {}", at + 1, line.trim())).collect()
    };
    let found: Vec<String> = texts
        .iter()
        .flat_map(|(path, text)| {
            lines(text).into_iter().map(move |line| format!("{}:{line}", path.display()))
        })
        .collect();
    assert!(found.is_empty(), "name the actor, or say what happens:\n{}", found.join("\n"));
}

#[test]
fn each_form_without_an_actor_is_seen() {
    for vague in [
        "// Nobody waits for it.",
        "A client that is told so gives up.",
        "\"it is no `Reply`\"",
        "/// reported as an error, which is no",
        "for no one else",
        "They are sent at once.",
        "Each is asked in turn, until one answers.",
        "The statements are sent as one, where they can be.",
    ] {
        assert!(is_vague(vague), "{vague}");
    }
    for plain in [
        "There is no row.",
        "so there is no",
        "It is no longer held.",
        "This is not an error.",
        "What is forgotten is looked at once more.",
        "Zero counts as one.",
        "There was one, and it is sent as one",
        "as one line",
        "within turns",
    ] {
        assert!(!is_vague(plain), "{plain}");
    }
}
