//! Rows as they are printed.

use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::arguments::Format;
use super::json::escaped;
use super::times::{ago, away};
pub(crate) use crate::plain::plain;

/// The time from which ages are counted: the database's. A terminal's clock may be off.
#[derive(Clone, Copy, Default)]
pub(crate) struct Now {
    time: DateTime<Utc>,
    /// Whether it is this machine's, because the answer has no time.
    is_of_here: bool,
}

static HAS_SAID_SO: AtomicBool = AtomicBool::new(false);

impl Now {
    /// What the answer says; else the time of this machine.
    pub(crate) fn of_answer(time: Option<DateTime<Utc>>) -> Self {
        Self { time: time.unwrap_or_else(Utc::now), is_of_here: time.is_none() }
    }

    /// For an age. Says once where it is of this machine's clock.
    fn for_an_age(self) -> DateTime<Utc> {
        if self.is_of_here && !HAS_SAID_SO.swap(true, Ordering::Relaxed) {
            eprintln!(
                "note: ages are by this machine's clock: the service did not report the database's time"
            );
        }
        self.time
    }
}

/// A column: its head, and a row's cell.
pub(crate) type Column = (&'static str, fn(&Value, Now) -> String);

/// Prints rows.
pub(crate) fn print(rows: &[Value], columns: &[Column], now: Now, format: Format) {
    match format {
        Format::Json => println!("{}", escaped(&format!("{:#}", Value::from(rows)))),
        Format::Jsonl => rows.iter().for_each(|row| println!("{}", escaped(&row.to_string()))),
        Format::Ids => rows.iter().for_each(|row| println!("{}", id(row))),
        Format::Table => print!("{}", table(rows, columns, now)),
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

pub(crate) fn table(rows: &[Value], columns: &[Column], now: Now) -> String {
    let head = columns.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
    let cells = rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row, now)).collect());
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
pub(crate) fn time(value: &Value, now: Now) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), |time| away(time, now.for_an_age()))
}

/// The same of what has happened.
pub(crate) fn past(value: &Value, now: Now) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), |time| ago(time, now.for_an_age()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let rows = [json!({ "a": "x", "b": null }), json!({ "a": "longer", "b": 7 })];
        let columns: [Column; 2] =
            [("A", |row, _| text(&row["a"])), ("B", |row, _| text(&row["b"]))];
        let now = Now::default();
        assert_eq!(table(&rows, &columns, now), "A       B\nx       -\nlonger  7\n");
        assert_eq!(table(&[], &columns, now), "A  B\n");
    }

    #[test]
    fn ages_are_counted_from_the_given_time() {
        let columns: [Column; 2] = [
            ("SINCE", |row, now| past(&row["was"], now)),
            ("NEXT", |row, now| time(&row["is"], now)),
        ];
        let rows = [json!({ "was": "2018-03-01T11:19:00Z", "is": "2018-03-01T12:12:00Z" })];
        let now = Now::of_answer("2018-03-01T12:00:00Z".parse().ok());
        assert_eq!(table(&rows, &columns, now), "SINCE    NEXT\n41m ago  in 12m\n");
    }

    #[test]
    fn what_is_stored_does_not_move_the_cursor() {
        assert_eq!(text(&json!("a\u{1b}[2Jb\n\u{202e}c")), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
    }
}
