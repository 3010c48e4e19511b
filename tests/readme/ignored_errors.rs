//! `INSERT IGNORE` of MySQL and MariaDB stores a value that does not fit, cut off, and reports no error (Y41). No statement
//! for these servers has the word, except one whose values are constants.

use super::words;

/// What has the SQL for MySQL and MariaDB: the store, what it shares with SQLite, and its migrations.
const FOLDERS: [&str; 4] =
    ["src/store/mysql", "src/store/in_millis", "migrations/mysql", "migrations/mysql_audit"];

const LEASES: &str = "migrations/mysql/2026-11-22-000020_leases/up.sql";

/// In that migration, which may run again: the row of a lease whose name fits its column.
const OF_CONSTANTS: &str =
    "INSERT IGNORE INTO atomic_phases_leases (name, held_until) VALUES ('census', 0);";

/// Where a text ignores the errors of its values: the words around it. In lower case, the word belongs to a statement
/// only behind a verb.
fn ignoring(text: &str) -> Vec<String> {
    const VERBS: [&str; 4] = ["DELETE", "INSERT", "REPLACE", "UPDATE"];
    let words: Vec<&str> = words(text).filter(|word| !word.is_empty()).collect();
    let is_of_a_statement = |at: &usize| {
        let before = at.checked_sub(1).map_or("", |before| words[before]);
        words[*at] == "IGNORE"
            || (words[*at].eq_ignore_ascii_case("ignore")
                && VERBS.iter().any(|verb| before.eq_ignore_ascii_case(verb)))
    };
    let around = |at: usize| words[at.saturating_sub(1)..words.len().min(at + 3)].join(" ");
    (0..words.len()).filter(is_of_a_statement).map(around).collect()
}

#[test]
fn no_statement_for_mysql_ignores_errors_but_one_of_constants() {
    let mut texts = Vec::new();
    for folder in FOLDERS {
        let before = texts.len();
        super::files(folder, &[".rs", ".sql"], &mut texts);
        assert!(texts.len() > before, "{folder}");
    }
    assert!(texts.len() > 50, "{}", texts.len());
    let found: Vec<(String, String)> = texts
        .iter()
        .flat_map(|(path, text)| {
            ignoring(text).into_iter().map(|words| (path.display().to_string(), words))
        })
        .collect();
    let leases = (LEASES.to_owned(), "INSERT IGNORE INTO atomic_phases_leases".to_owned());
    assert_eq!(found, [leases]);
    let (_, text) = texts.iter().find(|(path, _)| path.display().to_string() == LEASES).unwrap();
    assert!(text.lines().any(|line| line == OF_CONSTANTS), "{text}");
}

#[test]
fn a_statement_that_ignores_errors_is_seen_in_each_form() {
    for sql in [
        "INSERT IGNORE INTO t VALUES (1)",
        "\"insert \\\n     ignore into t values (\", a, \")\"",
        "UPDATE IGNORE t SET a = 1",
        "INSERT LOW_PRIORITY IGNORE INTO t VALUES (1)",
    ] {
        assert_eq!(ignoring(sql).len(), 1, "{sql}");
    }
    for text in
        ["// The phase may ignore the error of an update.", "INSERT INTO t VALUES ('ignored')"]
    {
        assert!(ignoring(text).is_empty(), "{text}");
    }
}
