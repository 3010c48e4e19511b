//! What a store answers to a commit is read in one place for a run, and in one for a resolution, which holds no lease.
//! A third place would find out in its own way what became of a commit without an answer.

/// Each with why it reads one.
const PLACES: [(&str, &str); 3] = [
    ("src/engine/run/commit.rs", "the commits of a run, which asks the row by its lease"),
    (
        "src/engine/resolve/mod.rs",
        "a resolution acquires the lease by its own commit: it has no token to ask with, and is sent again. The table in \
         run/commit.rs has each answer",
    ),
    ("src/engine/run/mutants.rs", "breaks a store's answers on purpose, in tests of the explorer"),
];

/// Those who give the answer, and what a test does to it.
const STORES: [&str; 2] = ["src/store/", "src/fault/"];

fn reads_an_answer(text: &str) -> bool {
    let words = ["Done", "Fenced", "Refused", "Failed", "Unknown"];
    words.iter().any(|word| {
        text.contains(&format!(" Commit::{word}")) || text.contains(&format!("(Commit::{word}"))
    })
}

#[test]
fn the_answer_to_a_commit_is_read_in_these_places_and_no_others() {
    let mut files = Vec::new();
    super::files("src", &[".rs"], &mut files);
    let without_tests =
        |text: &str| text.split("\nmod tests").next().unwrap_or_default().to_owned();
    let paths = files.iter().filter(|(_, text)| reads_an_answer(&without_tests(text)));
    let mut found: Vec<String> = paths
        .map(|(path, _)| path.display().to_string())
        .filter(|path| !STORES.iter().any(|room| path.starts_with(room)))
        .collect();
    found.sort();
    let mut places = PLACES.map(|(path, _)| path);
    places.sort_unstable();
    assert_eq!(found, places);
}

#[test]
fn an_answer_is_seen_in_each_form() {
    for text in [
        "match x { Commit::Done(()) => y }",
        "matches!(x, Commit::Fenced | Commit::Failed(_))",
        "(Commit::Unknown(e), row)",
    ] {
        assert!(reads_an_answer(text), "{text}");
    }
    assert!(!reads_an_answer("the field `CommitFate::Failed`"));
}
