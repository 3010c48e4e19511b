//! `docs/stores-tested.md` says how many tests of each program run on which store, and why some of them do not run on
//! MariaDB. Each program compares that with its own list of tests.

use std::collections::BTreeSet;
use std::process::Command;

const PAGE: &str = include_str!("../../docs/stores-tested.md");

/// The program that is compiled.
const PROGRAM: &str = env!("CARGO_CRATE_NAME");

/// Whether each test is compiled.
const HAS_ALL: bool = cfg!(all(
    feature = "bb8",
    feature = "console",
    feature = "encryption",
    feature = "metrics",
    feature = "mysql-tls",
    feature = "ops-api",
    feature = "redis",
    feature = "reqwest",
    feature = "simulation",
));

/// The stores, in the order of the columns.
const STORES: [&str; 4] = ["postgres", "sqlite", "mariadb", "memory"];

/// How the name of a test says where it runs, where the same test runs elsewhere, too.
const PLACES: [&str; 6] =
    ["on_postgres", "on_sqlite", "on_mariadb", "on_mysql", "on_memory", "in_memory"];

/// The names of this program's tests, with their modules.
fn own_tests() -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let listed = command.args(["--list", "--format", "terse"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Whether a test's name says that it runs on this store.
fn is_on(test: &str, store: &str) -> bool {
    let mut words = test.split([':', '_']);
    match store {
        // A database of SQLite's may be in memory, too.
        "memory" => test.contains("on_memory") || test.ends_with("_in_memory"),
        // `tests/on_mysql` selects both on a MySQL.
        "mariadb" => words.any(|word| ["mariadb", "mysql"].contains(&word)),
        _ => words.any(|word| word == store),
    }
}

/// The begin of a program's row.
fn row(program: &str, tests: &[String]) -> String {
    let [postgres, sqlite, mariadb, memory] =
        STORES.map(|store| tests.iter().filter(|test| is_on(test, store)).count());
    let others = tests.iter().filter(|test| !STORES.iter().any(|store| is_on(test, store)));
    let others = others.count();
    format!("| `{program}` | {postgres} | {sqlite} | {mariadb} | {memory} | {others} |")
}

/// The name without its place.
fn anywhere(test: &str) -> String {
    PLACES.iter().fold(test.to_owned(), |test, place| test.replace(place, "on"))
}

/// The tests that run on other stores, and not on MariaDB.
fn missing_on_mariadb(tests: &[String]) -> Vec<&String> {
    let on_mariadb: BTreeSet<String> =
        tests.iter().filter(|test| is_on(test, "mariadb")).map(|test| anywhere(test)).collect();
    let is_missing = |test: &&String| {
        let anywhere = anywhere(test);
        let is_somewhere = STORES.iter().any(|store| is_on(test, store));
        is_somewhere && anywhere != **test && !on_mariadb.contains(&anywhere)
    };
    tests.iter().filter(is_missing).collect()
}

/// What the page says about tests of a program that do not run on MariaDB: texts that select them.
fn told_missing(program: &str) -> Vec<&'static str> {
    let section = PAGE.split("\n## Not on MariaDB\n").nth(1).expect("the section of reasons");
    let section = section.split("\n## ").next().unwrap_or_default();
    let start = format!("| `{program}` | ");
    let rows = section.lines().filter_map(|row| row.strip_prefix(&start));
    let selecting = rows.filter_map(|row| row.split(" | ").next());
    selecting.flat_map(|texts| texts.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn the_page_has_the_numbers_of_this_program() {
    names_are_read();
    if !HAS_ALL {
        return;
    }
    let tests = own_tests();
    let row = row(PROGRAM, &tests);
    let is_there = PAGE.lines().any(|line| line.starts_with(&row));
    assert!(is_there, "in docs/stores-tested.md, the row of this program begins with\n{row}");
    let (missing, told) = (missing_on_mariadb(&tests), told_missing(PROGRAM));
    let is_told = |test: &&&String| told.iter().any(|text| test.contains(text));
    let untold: Vec<_> = missing.iter().filter(|test| !is_told(test)).collect();
    assert!(untold.is_empty(), "say there why these do not run on MariaDB: {untold:#?}");
    let is_missing = |text: &&&str| missing.iter().any(|test| test.contains(**text));
    let wrong: Vec<_> = told.iter().filter(|text| !is_missing(text)).collect();
    assert!(wrong.is_empty(), "no test that does not run on MariaDB is selected by {wrong:?}");
}

fn names_are_read() {
    let tests = [
        "module::on_postgres::everywhere",
        "module::on_mariadb::everywhere",
        "cut_off_on_mysql",
        "cut_off_in_memory",
        "frozen_on_sqlite",
        "mysql_faults::its_own",
        "a_database_in_memory_is_one",
        "of_no_store",
    ];
    let tests = tests.map(str::to_owned);
    assert_eq!(row("program", &tests), "| `program` | 1 | 1 | 3 | 1 | 2 |");
    assert_eq!(missing_on_mariadb(&tests), ["frozen_on_sqlite"]);
}
