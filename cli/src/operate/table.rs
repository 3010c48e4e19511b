//! Rows as they are printed.

use chrono::Utc;
use serde_json::Value;

use super::arguments::Format;
use super::json::escaped;
use super::times::{ago, away};
pub(crate) use crate::plain::plain;

/// A column: its head, and a row's cell.
pub(crate) type Column = (&'static str, fn(&Value) -> String);

/// Prints rows.
pub(crate) fn print(rows: &[Value], columns: &[Column], format: Format) {
    match format {
        Format::Json => println!("{}", escaped(&format!("{:#}", Value::from(rows)))),
        Format::Jsonl => rows.iter().for_each(|row| println!("{}", escaped(&row.to_string()))),
        Format::Ids => rows.iter().for_each(|row| println!("{}", id(row))),
        Format::Table => print!("{}", table(rows, columns)),
    }
}

/// What other commands call it by. A pause has no id of its own, nor has a definition.
fn id(row: &Value) -> String {
    let definition = || text(&row["definition"]);
    match (&row["id"], &row["phase"]) {
        (Value::Null, Value::Null) => {
            format!("{}@{}", definition(), text(&row["definition_version"]))
        }
        (Value::Null, phase) => format!("{} {}", definition(), text(phase)),
        (id, _) => text(id),
    }
}

pub(crate) fn table(rows: &[Value], columns: &[Column]) -> String {
    let head = columns.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
    let cells = rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(cells).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A value as a cell. What is stored must not move a terminal's cursor.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

/// How far away a time is.
pub(crate) fn time(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), |time| away(time, Utc::now()))
}

/// The same of what has happened, by the database's clock: that it is a little ahead of this one makes nothing of it future.
pub(crate) fn past(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), |time| ago(time, Utc::now()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let rows = [json!({ "a": "x", "b": null }), json!({ "a": "longer", "b": 7 })];
        let columns: [Column; 2] = [("A", |row| text(&row["a"])), ("B", |row| text(&row["b"]))];
        assert_eq!(table(&rows, &columns), "A       B\nx       -\nlonger  7\n");
        assert_eq!(table(&[], &columns), "A  B\n");
    }

    #[test]
    fn what_is_stored_does_not_move_the_cursor() {
        assert_eq!(text(&json!("a\u{1b}[2Jb\n\u{202e}c")), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
    }
}
