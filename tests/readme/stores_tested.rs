//! `docs/stores-tested.md` has a row for each program of tests that has the stores. What is in the row is compared by the
//! program itself, which knows its tests: `tests/support/listed.rs`.

use super::{quoted, rows};

const PAGE: &str = include_str!("../../docs/stores-tested.md");

#[test]
fn each_program_of_tests_that_has_the_stores_has_its_row() {
    let mut programs = Vec::new();
    for entry in std::fs::read_dir("tests").unwrap() {
        let path = entry.unwrap().path();
        let root = if path.is_dir() { path.join("main.rs") } else { path.clone() };
        let text = std::fs::read_to_string(root).unwrap_or_default();
        if text.contains("\nmod support;") {
            programs.push(path.file_stem().unwrap().to_string_lossy().into_owned());
        }
    }
    programs.sort();
    assert!(programs.len() > 15, "{programs:?}");
    let rows = rows(PAGE, "By program");
    let told: Vec<&str> = rows.iter().filter_map(|row| quoted(row).next()).collect();
    assert_eq!(told, programs, "in the order of their names");
    for row in super::rows(PAGE, "Not on MariaDB") {
        let program = quoted(row).next().unwrap();
        assert!(told.contains(&program), "{program} has no row above");
    }
}
