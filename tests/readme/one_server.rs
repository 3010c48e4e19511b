//! What only MariaDB has, or only MySQL, or newer versions of them, is in a table of `docs/stores.md`, with the form for the
//! other server. Each of its words stands in the files that its row names, and in no other file of the store.

use std::collections::BTreeSet;

use super::{files, quoted, rows};

const PAGE: &str = include_str!("../../docs/stores.md");

/// What the store does without: one server has it, and no row has another form.
const UNUSED: [&str; 5] = ["SET STATEMENT", "@@in_transaction", "AS new", "LATERAL", "NOWAIT"];

/// What of a source file may be sent: without its comments and its unit tests.
fn sent(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a text has these words, and not only as a part of longer ones.
fn has(text: &str, words: &str) -> bool {
    let is_of_a_name = |sign: char| sign.is_alphanumeric() || sign == '_';
    text.match_indices(words).any(|(at, _)| {
        let behind = &text[at + words.len()..];
        !text[..at].ends_with(is_of_a_name) && !behind.starts_with(is_of_a_name)
    })
}

/// The words of a row, up to what they stand with, which both servers have (`RETURNING` behind an `INSERT`); and the files.
fn told(row: &str) -> (Vec<&str>, BTreeSet<&str>) {
    let cells: Vec<&str> = row.split(" | ").collect();
    let [words, _, _, places, _] = cells[..] else { panic!("a row of five cells: {row}") };
    let words = [" behind ", " with ", " outside "]
        .iter()
        .fold(words, |words, ends| words.split(ends).next().unwrap_or_default());
    (quoted(words).collect(), quoted(places).collect())
}

#[test]
fn what_only_one_server_has_stands_where_the_page_says() {
    let mut sources = Vec::new();
    files("src/store/mysql", &[".rs"], &mut sources);
    // A rule about other texts.
    sources.retain(|(path, _)| !path.ends_with("assignments.rs"));
    let name = |path: &std::path::Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let sources: Vec<(String, String)> =
        sources.iter().map(|(path, text)| (name(path), sent(text))).collect();
    assert!(sources.len() > 30, "{}", sources.len());
    let with = |words: &str| -> BTreeSet<&str> {
        let found = sources.iter().filter(|(_, text)| has(text, words));
        found.map(|(name, _)| name.as_str()).collect()
    };
    let rows = rows(PAGE, "Statements that only one of the two servers has");
    assert!(rows.len() > 18, "{}", rows.len());
    for row in rows {
        let (words, places) = told(row);
        let mut found = BTreeSet::new();
        for words in words {
            let files = with(words);
            assert!(!files.is_empty(), "no file of the store has `{words}`");
            found.extend(files);
        }
        assert_eq!(found, places, "{row}");
    }
    for words in UNUSED {
        assert!(with(words).is_empty(), "`{words}` needs a row, and a form for the other server");
    }
}

#[test]
fn the_words_of_a_row_are_read() {
    let row = "| `A B`, `C` behind a `D` | 1 | no | `a.rs`, `b.rs` | it, by `E` |";
    let (words, places) = told(row);
    assert_eq!(words, ["A B", "C"]);
    assert_eq!(places, BTreeSet::from(["a.rs", "b.rs"]));
    assert!(has("SESSION wait_timeout = 1", "wait_timeout"));
    assert!(!has("SESSION lock_wait_timeout = 1", "wait_timeout"));
    let source =
        "// A\nconst B: &str = \"C\";\n#[cfg(test)]\nmod tests {\n    const D: u8 = 1;\n}\n";
    assert_eq!(sent(source), "const B: &str = \"C\";");
}
