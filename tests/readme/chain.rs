//! `docs/design.md` lists the functions that a fresh request passes, file by file.

use super::{quoted, rows};

const DESIGN: &str = include_str!("../../docs/design.md");
/// Each file of the chain has fewer lines.
const LONGEST: usize = 628;

#[test]
fn each_function_that_a_request_passes_is_in_the_file_that_the_page_names() {
    let chain = rows(DESIGN, "A request, file by file");
    let mut functions = 0;
    for row in &chain {
        let cells: Vec<&str> = row.split(" | ").collect();
        let file = quoted(cells[0]).next().unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.lines().count() < LONGEST, "{file}");
        for name in quoted(cells[1]) {
            let is_there = [format!("fn {name}("), format!("fn {name}<")];
            assert!(is_there.iter().any(|declared| text.contains(declared)), "{file}: {name}");
            functions += 1;
        }
    }
    let counted = format!("{functions} functions in {} files", chain.len());
    assert!(DESIGN.contains(&counted), "{counted}");
    let shorter = format!("file on the path has fewer than {LONGEST} lines");
    assert!(DESIGN.contains(&shorter), "{shorter}");
}
