//! What a migration may contain: checks the files against `migrations/README.md`.

use std::ffi::OsStr;
use std::path::Path;

use super::all;

/// Older migrations are part of the first release, and meet no rows of a previous build.
const FIRST_RELEASE: &str = "2026-11-23";

/// The statements of a file, without comments, in one case and with single spaces.
fn statements(sql: &str) -> Vec<String> {
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    let sql = lines.collect::<Vec<_>>().join(" ");
    let mut statements = vec![String::new()];
    let (mut in_text, mut in_body, mut in_block) = (false, false, false);
    for word in sql.split_inclusive([' ', ';', '\'', '$']) {
        let last = statements.last_mut().unwrap();
        last.push_str(word);
        in_text ^= word.ends_with('\'');
        in_body ^= last.ends_with("$$");
        // The body of a trigger of SQLite.
        match word.trim().to_uppercase().trim_end_matches(';') {
            "BEGIN" => in_block = true,
            "END" => in_block = false,
            _ => {}
        }
        if word.ends_with(';') && !in_text && !in_body && !in_block {
            statements.push(String::new());
        }
    }
    let plain = |text: &String| {
        let text = text.trim().trim_end_matches(';');
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    statements.iter().map(plain).filter(|text| !text.is_empty()).collect()
}

/// The reason why a statement would disturb the previous build; `ours` are the tables of the migration itself.
fn refused(statement: &str, ours: &mut Vec<String>) -> Option<&'static str> {
    let words: Vec<String> = statement.split([' ', '(']).map(str::to_lowercase).collect();
    let words: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
    let behind = |word: &str| {
        let at = words.iter().position(|other| *other == word)?;
        words.get(at + 1).map(|name| (*name).to_owned())
    };
    let is_ours = |name: Option<String>| name.is_some_and(|name| ours.contains(&name));
    match words.as_slice() {
        ["create", "table", "if", ..] => Some("a table that may be there is not known"),
        ["create", "table", name, ..] => {
            ours.push((*name).to_owned());
            None
        }
        ["create", "type" | "function" | "sequence", ..] | ["comment", "on", ..] => None,
        ["create", "index", "if", "not", "exists", ..] => None,
        ["create", "index", ..] | ["create", "unique", "index", ..] => {
            (!is_ours(behind("on"))).then_some("an index on a table that is there")
        }
        ["create", "trigger", ..] => {
            (!is_ours(behind("on"))).then_some("a trigger on a table that is there")
        }
        ["insert", "into", name, ..] => {
            (!is_ours(Some((*name).to_owned()))).then_some("rows of a table that is there")
        }
        ["alter", "table", name, ..] if ours.contains(&(*name).to_owned()) => None,
        ["alter", "table", _, rest @ ..] => refused_column(&rest.join(" ")),
        _ => Some("not among what a migration may contain"),
    }
}

/// The reason why an existing table must not be altered this way.
fn refused_column(change: &str) -> Option<&'static str> {
    for part in change.split(", ") {
        let words: Vec<&str> = part.split(' ').collect();
        let ["add", "column", _, rest @ ..] = words.as_slice() else {
            return Some("another change than a new column");
        };
        let has = |word: &str| rest.contains(&word);
        if ["check", "references", "unique", "primary", "constraint", "generated"]
            .iter()
            .any(|w| has(w))
        {
            return Some("a constraint on rows that are there");
        }
        let default =
            rest.iter().position(|word| *word == "default").and_then(|at| rest.get(at + 1));
        let is_constant = |value: &&&str| {
            value.starts_with('\'')
                || value.parse::<f64>().is_ok()
                || ["true", "false"].contains(value)
        };
        match default {
            Some(_) if default.filter(is_constant).is_none() => {
                return Some("a default that is computed");
            }
            None if has("not") => return Some("NOT NULL without a default"),
            _ => {}
        }
    }
    None
}

/// What is wrong with a migration after the first one.
fn wrong(sql: &str) -> Vec<String> {
    let (mut ours, mut wrong, mut alters) = (Vec::new(), Vec::new(), false);
    for statement in statements(sql) {
        if let Some(because) = refused(&statement, &mut ours) {
            wrong.push(format!("{because}: {statement}"));
        }
        let is_alter = statement.to_lowercase().starts_with("alter table");
        if alters && !is_alter {
            wrong.push(format!("behind the lock of a table that is there: {statement}"));
        }
        alters |= is_alter;
    }
    wrong
}

/// The reason why a distributed table refuses it (docs/scaling.md): for most of these statements, Citus sends a
/// worker node the whole text that contains the statement.
fn refused_distributed(sql: &str) -> Option<&'static str> {
    let (mut ours, mut of_others) = (Vec::new(), 0);
    let statements = statements(sql);
    for statement in &statements {
        // A `CREATE TABLE` adds the table to the list.
        refused(statement, &mut ours);
        let words = statement.to_lowercase();
        let table = match words.split([' ', '(']).collect::<Vec<_>>().as_slice() {
            ["alter", "table", name, ..] => Some((*name).to_owned()),
            ["create" | "drop", "index", ..] => {
                let on = words.split_once(" on ").map_or("", |(_, on)| on);
                Some(on.split([' ', '(']).next().unwrap_or_default().to_owned())
            }
            _ => None,
        };
        of_others += usize::from(table.is_some_and(|table| !ours.contains(&table)));
    }
    (of_others > 0 && statements.len() > 1)
        .then_some("beside other statements, a table that is there")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_migration_adds_only_what_the_build_before_takes_no_notice_of_and_has_its_way_down() {
    for folder in ["postgres", "sqlite"] {
        let migrations = all(folder);
        assert!(migrations.len() > 1, "the next one is among them");
        for migration in &migrations {
            assert!(
                !statements(&read(&migration.join("down.sql"))).is_empty(),
                "{migration:?}: no down.sql"
            );
            assert!(
                !migration.join("metadata.toml").exists(),
                "{migration:?} is not in a transaction"
            );
        }
        for migration in &migrations[1..] {
            let sql = read(&migration.join("up.sql"));
            assert!(!statements(&sql).is_empty(), "{migration:?}");
            let mut wrong = wrong(&sql);
            if migration.file_name().unwrap() < OsStr::new(FIRST_RELEASE) {
                wrong.retain(|wrong| !wrong.starts_with("an index on"));
            } else if folder == "postgres" {
                for file in ["up.sql", "down.sql"] {
                    let sql = read(&migration.join(file));
                    assert_eq!(refused_distributed(&sql), None, "{migration:?}/{file}");
                }
            }
            assert_eq!(wrong, Vec::<String>::new(), "{migration:?}");
        }
    }
    let names = |folder| -> Vec<_> {
        all(folder).iter().map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    assert_eq!(names("postgres"), names("sqlite"), "both stores have the same schema");
}

/// The reason why a migration of MySQL, which commits each change immediately, cannot run again after a crash.
fn cannot_run_again(sql: &str) -> Option<&'static str> {
    let statements = statements(sql);
    let sql = statements.join("; ");
    let changes = ["CREATE TABLE", "ALTER TABLE", "CREATE INDEX"];
    let count: usize = changes.iter().map(|change| sql.matches(change).count()).sum();
    match statements.first() {
        _ if count != 1 => Some("not one change"),
        _ if sql.contains("ADD COLUMN IF") || sql.contains("INDEX IF") => Some("of MariaDB alone"),
        _ if sql.contains("UNIQUE") => Some("a unique key locks gaps"),
        Some(first) if first.starts_with("CREATE TABLE IF NOT EXISTS") => None,
        _ if asks_first(&sql) => None,
        _ => Some("fails the second time"),
    }
}

/// Whether it asks for what it changes, and does nothing where that is done.
fn asks_first(sql: &str) -> bool {
    sql.contains("information_schema") && sql.contains("'DO 0'")
}

/// Why the revert of a migration cannot run again, if it cannot.
fn cannot_be_reverted_again(sql: &str) -> Option<&'static str> {
    let statements = statements(sql);
    let sql = statements.join("; ");
    let count: usize = ["DROP TABLE", "ALTER TABLE", "DROP INDEX"]
        .iter()
        .map(|drop| sql.matches(drop).count())
        .sum();
    match statements.first() {
        _ if count != 1 => Some("not one change"),
        _ if sql.contains("COLUMN IF") || sql.contains("KEY IF") => Some("of MariaDB alone"),
        Some(first) if first.starts_with("DROP TABLE IF EXISTS") => None,
        _ if asks_first(&sql) => None,
        _ => Some("fails the second time"),
    }
}

#[test]
fn a_migration_of_mysql_is_one_change_that_may_run_again() {
    for migration in all("mysql") {
        let sql = read(&migration.join("up.sql"));
        assert_eq!(cannot_run_again(&sql), None, "{migration:?}");
        let revert = read(&migration.join("down.sql"));
        assert_eq!(cannot_be_reverted_again(&revert), None, "{migration:?}");
    }
    for wrong in [
        "CREATE TABLE a (b INT)",
        "ALTER TABLE a ADD COLUMN b INT",
        "ALTER TABLE a ADD COLUMN IF NOT EXISTS b INT",
        "CREATE TABLE IF NOT EXISTS a (b INT); CREATE TABLE IF NOT EXISTS c (d INT)",
        "CREATE TABLE IF NOT EXISTS a (b INT UNIQUE)",
    ] {
        assert!(cannot_run_again(wrong).is_some(), "{wrong}");
    }
    for wrong in [
        "",
        "DROP TABLE a",
        "ALTER TABLE a DROP KEY b",
        "ALTER TABLE a DROP COLUMN IF EXISTS b",
        "DROP TABLE IF EXISTS a; DROP TABLE IF EXISTS b",
    ] {
        assert!(cannot_be_reverted_again(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn what_the_rules_forbid_is_found() {
    let fine = [
        "CREATE INDEX IF NOT EXISTS a ON keys (b); ALTER TABLE keys ADD COLUMN c text",
        "CREATE TABLE a (b text); CREATE UNIQUE INDEX c ON a (b); INSERT INTO a VALUES ('x;y');",
        "CREATE TABLE a (b text); ALTER TABLE a ADD CONSTRAINT d CHECK (b <> '')",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE x SET y = 1; END $$; \
         -- a comment; with a semicolon\n COMMENT ON FUNCTION f IS 'it';",
        "ALTER TABLE keys ADD COLUMN a text, ADD COLUMN b varchar(50) NOT NULL DEFAULT '';",
        "ALTER TABLE keys ADD COLUMN a bigint NOT NULL DEFAULT 0; ALTER TABLE jobs ADD COLUMN a boolean DEFAULT false",
    ];
    for sql in fine {
        assert_eq!(wrong(sql), Vec::<String>::new(), "{sql}");
    }
    let bad = [
        "DROP TABLE keys",
        "ALTER TABLE keys DROP COLUMN a",
        "ALTER TABLE keys ADD COLUMN a text, DROP COLUMN b",
        "ALTER TABLE keys RENAME COLUMN a TO b",
        "ALTER TABLE keys RENAME TO other",
        "ALTER TABLE keys ALTER COLUMN a TYPE bigint",
        "ALTER TABLE keys ALTER COLUMN a SET NOT NULL",
        "ALTER TABLE keys ADD COLUMN a text NOT NULL",
        "ALTER TABLE keys ADD COLUMN a timestamptz DEFAULT now()",
        "ALTER TABLE keys ADD COLUMN a uuid NOT NULL DEFAULT gen_random_uuid()",
        "ALTER TABLE keys ADD COLUMN a text REFERENCES b",
        "ALTER TABLE keys ADD COLUMN a text CHECK (a <> '')",
        "ALTER TABLE keys ADD CONSTRAINT a CHECK (b > 0)",
        "CREATE INDEX a ON keys (b)",
        "CREATE UNIQUE INDEX IF NOT EXISTS a ON keys (b)",
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS a ON keys (b)",
        "ALTER TABLE keys ADD COLUMN a text; CREATE INDEX IF NOT EXISTS b ON keys (a)",
        "CREATE INDEX CONCURRENTLY a ON keys (b)",
        "CREATE TRIGGER a BEFORE UPDATE ON keys FOR EACH ROW EXECUTE FUNCTION f()",
        "UPDATE keys SET a = 1",
        "DELETE FROM keys",
        "INSERT INTO keys VALUES (1)",
        "TRUNCATE keys",
        "LOCK TABLE keys",
        "ALTER TYPE atomic_phases_status ADD VALUE 'paused'",
        "CREATE TABLE IF NOT EXISTS keys (a text)",
        "ALTER TABLE keys ADD COLUMN a text; CREATE TABLE b (c text)",
    ];
    for sql in bad {
        assert!(!wrong(sql).is_empty(), "{sql}");
    }
}

/// Each was tried on Citus 12.1, with `keys` and `jobs` distributed.
#[test]
fn what_a_distributed_table_refuses_of_a_migration_is_found() {
    for fine in [
        "-- Why.\nCREATE INDEX IF NOT EXISTS a ON keys (b);",
        "ALTER TABLE keys ADD COLUMN a text, ADD COLUMN b integer;",
        "CREATE TABLE a (b text); CREATE INDEX c ON a (b); ALTER TABLE a ADD COLUMN d text",
        "DROP INDEX a",
    ] {
        assert_eq!(refused_distributed(fine), None, "{fine}");
    }
    for bad in [
        "CREATE INDEX IF NOT EXISTS a ON keys (b); CREATE INDEX IF NOT EXISTS c ON keys (d)",
        "CREATE INDEX IF NOT EXISTS a ON keys(b); ALTER TABLE keys ADD COLUMN c text",
        "ALTER TABLE keys ADD COLUMN a text, ADD COLUMN b integer; ALTER TABLE jobs ADD COLUMN a text",
        "ALTER TABLE keys DROP COLUMN a; ALTER TABLE jobs DROP COLUMN a",
        "DROP INDEX a; DROP INDEX b",
    ] {
        assert!(refused_distributed(bad).is_some(), "{bad}");
    }
}
