//! `docs/bench.md` repeats what the bench has counted on MariaDB and has written to `docs/bench/mariadb.md`. No machine changes
//! these counts, so both pages have the same. It also repeats ratios, which are those of the committed run.

const PAGE: &str = include_str!("../../docs/bench.md");
const WRITTEN: &str = include_str!("../../docs/bench/mariadb.md");

/// Commits that write, statements and round trips of each contestant, rounded: the server writes something of its own now and
/// then, which makes 2.01 commits of 2.
fn counted<'p>(page: &'p str, heading: &str) -> Vec<(&'p str, [f64; 3])> {
    let number = |cell: &str| cell.trim().parse().ok().map(f64::round);
    let of = |row: &'p str| {
        let cells: Vec<&'p str> = row.split('|').collect();
        let [_, name, commits, statements, trips, ..] = cells[..] else { return None };
        // A name in italics may have a word about it behind it.
        let name = name.split('*').nth(1).unwrap_or(name).trim();
        Some((name, [number(commits)?, number(statements)?, number(trips)?]))
    };
    super::rows(page, heading).into_iter().filter_map(of).collect()
}

#[test]
fn the_counts_on_mariadb_are_those_that_the_bench_has_written() {
    let told = counted(PAGE, "MariaDB");
    let written = counted(WRITTEN, "Counted, for each request");
    assert!(told.len() >= 14, "{told:?}");
    let others: Vec<_> = told.iter().filter(|row| !written.contains(row)).collect();
    assert!(others.is_empty(), "docs/bench/mariadb.md has other counts: {others:?}");
}

/// The medians of a contestant at each load, as multiples of another one: `0.76, 0.66, 0.78`.
fn ratios(of: &str, by: &str) -> String {
    let heading = if of.starts_with("replay") { "Replay" } else { "Fresh request of three phases" };
    let section = WRITTEN.split(&format!("\n## {heading}\n")).nth(1).expect(heading);
    let names = section.lines().find(|line| line.starts_with('|')).expect(heading);
    let column = names.split('|').position(|name| name.trim() == format!("x {by}")).expect(by);
    let median = |row: &'static str| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, ratio) = (cells[2], cells[column]);
        (name == of).then(|| ratio.split(' ').next().unwrap_or_default())
    };
    let medians: Vec<&str> = super::rows(WRITTEN, heading).into_iter().filter_map(median).collect();
    medians.join(", ")
}

/// A contestant of the table of goals, the one that its goal names, and two floors by hand: on a narrow table, and on the
/// engine's.
const GOALS: [(&str, &str, Option<&str>, &str); 4] = [
    ("tx", "by hand", Some("by hand, guarded"), "by hand, guarded, engine's tables"),
    (
        "batch",
        "by hand",
        Some("by hand, single statement, guarded"),
        "by hand, single statement, guarded, engine's tables",
    ),
    (
        "batch, new key",
        "by hand",
        Some("by hand, new key, guarded"),
        "by hand, new key, guarded, engine's tables",
    ),
    ("replay", "replay by hand", None, "replay by hand, 14 columns"),
];

#[test]
fn the_ratios_on_mariadb_are_those_that_the_bench_has_written() {
    for (engine, yardstick, narrow, floor) in GOALS {
        let begins = format!("| *{engine}* ≥ ");
        let row = PAGE.lines().find(|line| line.starts_with(&begins)).expect(engine);
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let narrow = narrow.map(|narrow| ratios(narrow, yardstick)).unwrap_or_default();
        let expected = [narrow, ratios(floor, yardstick), ratios(engine, floor)];
        assert_eq!(cells[4..7], expected, "docs/bench/mariadb.md has other ratios: {row}");
        // Behind the verdict, and the loads at which the goal is reached.
        assert!(cells[2].ends_with(&format!(": {}", ratios(engine, yardstick))), "{row}");
    }
}

#[test]
fn a_row_of_counts_is_read_in_both_forms() {
    let page = "\n## A\n| | a | b | c |\n|---|---|---|---|\n| *by hand, new* x | 2 | 12 | 2 |\n";
    assert_eq!(counted(page, "A"), [("by hand, new", [2.0, 12.0, 2.0])]);
    let page =
        "\n## B\n| | a | b | c | d |\n|---|---|---|---|---|\n| tx | 2.00 | 76.0 | 8.0 | 4428 |\n";
    assert_eq!(counted(page, "B"), [("tx", [2.0, 76.0, 8.0])]);
    let goals = "\n## C\n| goal | x | y | z |\n|---|---|---|---|\n| *tx* | no: 0.7 | 0.9 | 1 |\n";
    assert!(counted(goals, "C").is_empty());
}
