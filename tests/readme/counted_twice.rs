//! `docs/bench.md` repeats what the bench has counted on MariaDB and has written to `docs/bench/mariadb.md`. No machine changes
//! these counts, so both pages have the same. It also repeats ratios, which are those of
//! the committed runs.

const PAGE: &str = include_str!("../../docs/bench.md");
const WRITTEN: &str = include_str!("../../docs/bench/mariadb.md");

const RESULTS: &str = include_str!("../../docs/bench/results.md");

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

/// What a column has of a contestant at each load, without the least and the greatest behind it.
fn at_each_load<'p>(page: &'p str, heading: &str, of: &str, column: &str) -> Vec<&'p str> {
    let section = page.split(&format!("\n## {heading}\n")).nth(1).expect(heading);
    let names = section.lines().find(|line| line.starts_with('|')).expect(heading);
    let column = names.split('|').position(|name| name.trim() == column).expect(column);
    let figure = |row: &'p str| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[2] == of).then(|| cells[column].split(' ').next().unwrap_or_default())
    };
    super::rows(page, heading).into_iter().filter_map(figure).collect()
}

const FRESH: &str = "Fresh request of three phases";

const SQLITE: &str = "SQLite, fresh request of three phases";

/// A contestant of the table of goals on MariaDB, the one that its goal names, and two floors by hand: on a narrow table, and
/// on the engine's.
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
        let heading = if engine == "replay" { "Replay" } else { FRESH };
        let ratios = |of, by| at_each_load(WRITTEN, heading, of, &format!("x {by}")).join(", ");
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

/// The rows of the goals on PostgreSQL and SQLite that have a result for each load: what the row says, and whose figure it
/// is in which column of `docs/bench/results.md`.
const PER_LOAD: [(&str, &str, &str, &str); 31] = [
    ("**independent**", FRESH, "batch, independent", "p99 x"),
    ("**new key**", FRESH, "batch, new key", "p99 x"),
    ("**new key**", FRESH, "batch, new key", "x limit2"),
    ("**independent**", FRESH, "batch, independent", "x limit2"),
    ("floor: *by hand, new key*", FRESH, "by hand, new key", "x limit2"),
    ("floor: *by hand, single statement*", FRESH, "by hand, single statement", "x limit2"),
    ("**new key**", FRESH, "batch, new key", "x limit2_pipe"),
    ("**independent**", FRESH, "batch, independent", "x limit2_pipe"),
    ("floor: *by hand, new key*", FRESH, "by hand, new key", "x limit2_pipe"),
    ("floor: *by hand, single statement*", FRESH, "by hand, single statement", "x limit2_pipe"),
    ("**independent**", FRESH, "batch, independent", "x limit2"),
    ("**in order**", FRESH, "batch", "x limit2"),
    ("**`Tx`**", FRESH, "tx", "x limit2"),
    ("floor of a `Tx`: *by hand*", FRESH, "by hand", "x limit2"),
    ("**`Tx`** x *by hand*", FRESH, "tx", "x by hand"),
    ("**`Tx`** x *by hand, guarded*", FRESH, "tx", "x by hand, guarded"),
    (
        "**`Tx`** x *by hand, guarded, engine's tables*",
        FRESH,
        "tx",
        "x by hand, guarded, engine's tables",
    ),
    ("*by hand, guarded* x *by hand*", FRESH, "by hand, guarded", "x by hand"),
    (
        "*by hand, guarded, engine's tables* x *by hand*",
        FRESH,
        "by hand, guarded, engine's tables",
        "x by hand",
    ),
    ("**in order** x *by hand, pipelined*", FRESH, "batch", "x by hand, pipelined"),
    (
        "**in order** x *by hand, guarded, pipelined*",
        FRESH,
        "batch",
        "x by hand, guarded, pipelined",
    ),
    (
        "**in order** x the same on the engine's tables",
        FRESH,
        "batch",
        "x by hand, guarded, pipelined, engine's tables",
    ),
    (
        "*by hand, guarded, pipelined* x *by hand, pipelined*",
        FRESH,
        "by hand, guarded, pipelined",
        "x by hand, pipelined",
    ),
    (
        "the same on the engine's tables x *by hand, pipelined*",
        FRESH,
        "by hand, guarded, pipelined, engine's tables",
        "x by hand, pipelined",
    ),
    ("**replay** x *select1*", "Replay", "replay", "x select1"),
    ("*replay by hand, guarded* x *select1*", "Replay", "replay by hand, guarded", "x select1"),
    ("**replay** x *replay by hand, guarded*", "Replay", "replay", "x replay by hand, guarded"),
    ("**`Batch`** x *rusqlite*", SQLITE, "sqlite batch", "x rusqlite"),
    ("**`Tx`** x *rusqlite*", SQLITE, "sqlite engine", "x rusqlite"),
    ("**`Tx`** x *rusqlite, guarded*", SQLITE, "sqlite engine", "x rusqlite, guarded"),
    ("*rusqlite, guarded* x *rusqlite*", SQLITE, "rusqlite, guarded", "x rusqlite"),
];

#[test]
fn the_ratios_on_postgres_and_sqlite_are_those_that_the_bench_has_written() {
    let told = super::rows(PAGE, "Goals").into_iter().filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let is_of_loads =
            cells.len() == 10 && cells[4].parse::<f64>().is_ok() && cells[3] != "what";
        let figures = || cells[4..9].iter().copied().filter(|cell| !cell.is_empty()).collect();
        is_of_loads.then(|| (cells[3], figures()))
    });
    let told: Vec<(&str, Vec<&str>)> = told.collect();
    let written = PER_LOAD
        .map(|(what, heading, of, column)| (what, at_each_load(RESULTS, heading, of, column)));
    assert_eq!(told, written, "docs/bench/results.md has other figures");
}

/// The rows of *Before and now*: how what they have now begins, with four loads or three.
const NOW: [(&str, &str, &str, &str, &[usize]); 5] = [
    ("`Tx` phases", FRESH, "tx", "x limit2", &[0, 1, 2, 3]),
    ("batch, independent", FRESH, "batch, independent", "x limit2", &[0, 1, 2, 3]),
    ("batch in order", FRESH, "batch", "x limit2", &[0, 1, 2, 3]),
    ("replay, 1, 8 and 64 concurrent requests", "Replay", "replay", "x select1", &[0, 1, 3]),
    ("SQLite, `Tx`", SQLITE, "sqlite engine", "x rusqlite", &[0, 1, 2, 3]),
];

#[test]
fn what_the_paths_have_now_is_what_the_bench_has_written() {
    let table = PAGE.split("\n### Before and now\n").nth(1).unwrap();
    for (path, heading, of, column, loads) in NOW {
        let begins = format!("| {path} | ");
        let row = table.lines().find(|line| line.starts_with(&begins)).expect(path);
        let figures = at_each_load(RESULTS, heading, of, column);
        let written: Vec<&str> = loads.iter().map(|load| figures[*load]).collect();
        assert!(cells(row)[3].starts_with(&written.join(", ")), "{written:?}: {row}");
    }
}

/// Whose throughput is told with each size of the pool.
#[test]
fn the_throughputs_of_the_pools_are_those_that_the_bench_has_written() {
    let section = PAGE.split("\n## Size of the connection pool\n").nth(1).unwrap();
    let told = section.split("\n## ").next().unwrap().replace('\n', " ");
    for size in ["4", "8", "16", "32", "64"] {
        let of = format!("pool of {size}");
        let heading = "64 concurrent over pools of several sizes";
        let [figure] = at_each_load(RESULTS, heading, &of, "requests/s")[..] else { panic!() };
        let figure = with_commas(figure);
        let forms = [format!("{figure} with {size}"), format!("{figure} requests/s with {size}")];
        assert!(forms.iter().any(|form| told.contains(form)), "{figure} with {size}: {told}");
    }
}

#[test]
fn the_ratios_of_a_server_on_another_machine_are_those_that_the_bench_has_written() {
    let told = super::rows(PAGE, "A server on another machine");
    assert!(told.len() >= 12, "{told:?}");
    for row in told {
        let cells = cells(row);
        let page = match cells[1] {
            "MariaDB" => include_str!("../../docs/bench/away-mariadb.md"),
            _ => include_str!("../../docs/bench/away.md"),
        };
        let (of, by) = cells[2].split_once(" x ").expect(row);
        let [of, by] = [of, by].map(|name| name.trim_matches('*'));
        let heading = if of.starts_with("replay") { "Replay" } else { FRESH };
        let written = at_each_load(page, heading, of, &format!("x {by}"));
        assert_eq!(cells[3..6], written, "docs/bench/away: {row}");
    }
}

/// What a page of a profile has of a contestant with so many concurrent requests, for each time that it has run.
fn profiled(page: &str, section: &str, of: &str, concurrent: &str, column: &str) -> String {
    let part = page.split(&format!("\n## {section}\n")).nth(1).expect(section);
    let names = part.lines().find(|line| line.starts_with('|')).expect(section);
    let column = names.split('|').position(|name| name.trim() == column).expect(column);
    let figure = |row| {
        let cells = cells(row);
        (cells[1] == of && cells[2] == concurrent).then(|| with_commas(cells[column]))
    };
    let runs: Vec<String> = super::rows(page, section).into_iter().filter_map(figure).collect();
    runs.join(" and ")
}

fn cells(row: &str) -> Vec<&str> {
    row.split('|').map(str::trim).collect()
}

/// `1,205` of `1205`.
fn with_commas(number: &str) -> String {
    match number.len().checked_sub(3) {
        Some(behind) if behind > 0 => format!("{},{}", &number[..behind], &number[behind..]),
        _ => number.to_owned(),
    }
}

#[test]
fn the_profile_on_mariadb_is_that_which_the_bench_has_written() {
    let page = include_str!("../../docs/bench/profile-mariadb.md");
    let told = super::rows(PAGE, "Processor time on MariaDB");
    assert_eq!(told.len(), 9);
    for row in told {
        let cells = cells(row);
        let of = cells[1].trim_matches('*');
        let figure = |section, column| profiled(page, section, of, "32", column);
        let client = ["all", "kernel", "memory", "driver", "engine"].map(|it| figure("Client", it));
        let rest = [figure("Server", "all"), figure("Client", "requests/s")];
        assert_eq!(
            cells[2..9],
            [&client[..], &rest[..]].concat(),
            "docs/bench/profile-mariadb.md: {of}"
        );
    }
}

#[test]
fn the_profile_of_a_batch_in_order_is_that_which_the_bench_has_written() {
    let page = include_str!("../../docs/bench/profile.md");
    let begins = "  | concurrent | client: *batch* | by hand |";
    let rows = PAGE.lines().skip_while(|line| !line.starts_with(begins)).skip(2);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with("  | ")).collect();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let cells = cells(row);
        let of = |section, column| {
            ["batch", "by hand, guarded, pipelined, engine's tables"]
                .map(|of| profiled(page, section, of, cells[1], column))
        };
        let written = [of("Client", "all"), of("Server", "all"), of("Client", "requests/s")];
        assert_eq!(cells[2..8], written.concat(), "docs/bench/profile.md: {} concurrent", cells[1]);
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
