//! Sources and pages are in plain technical English. A text that says "nobody" hides who acts: the client, the holder, a
//! worker, the engine, the server, an operator.

use super::{files, words};

/// Words that name no actor.
const VAGUE: [&str; 8] =
    ["anybody", "anyone", "nobody", "somebody", "someone", "whoever", "whom", "whomever"];

/// The same as phrases.
const PHRASES: [&str; 2] = ["told so", "no one"];

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

fn is_vague(line: &str) -> bool {
    let line = line.to_lowercase();
    words(&line).any(|word| VAGUE.contains(&word))
        || PHRASES.iter().any(|phrase| line.contains(phrase))
        || denies_a_noun(&line)
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
    ] {
        assert!(is_vague(vague), "{vague}");
    }
    for plain in
        ["There is no row.", "so there is no", "It is no longer held.", "This is not an error."]
    {
        assert!(!is_vague(plain), "{plain}");
    }
}
