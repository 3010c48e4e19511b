//! [`StatementRegistry`]: which statements of phases the connection keeps prepared.
//!
//! diesel prepares an `UPDATE` anew each time, because its text may differ each time and a connection keeps what it
//! prepared. Here the text is looked at, and so many are kept.

use std::collections::HashMap;

use crate::error::CHANGES_CONNECTION;
use crate::store::tokenizer::{Dialect, changes_connection, holds_several};

const HOLDS_SEVERAL: &str =
    "cannot execute several statements of one text: execute each by itself, or use batch_execute";

/// The first texts that phases executed, which in nearly every application is all.
#[derive(Default)]
pub(super) struct StatementRegistry(HashMap<String, Known>);

#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Why it is not executed. One of several statements is refused, as by PostgreSQL: SQLite would execute the first and
    /// be silent about the others.
    pub(super) refused: Option<&'static str>,
    /// Whether the connection keeps it prepared.
    pub(super) is_kept: bool,
}

impl StatementRegistry {
    const MAX_TEXTS: usize = 256;
    /// In bytes. A longer one holds its values, most likely.
    const LONGEST: usize = 4096;

    pub(super) fn known(&mut self, text: String) -> Known {
        if let Some(known) = self.0.get(&text) {
            return *known;
        }
        let has_room = self.0.len() < Self::MAX_TEXTS && text.len() <= Self::LONGEST;
        let refused = if changes_connection(&text) {
            Some(CHANGES_CONNECTION)
        } else {
            holds_several(&text, Dialect::Sqlite).then_some(HOLDS_SEVERAL)
        };
        let known = Known { refused, is_kept: has_room && changes_rows(&text) };
        if has_room {
            self.0.insert(text, known);
        }
        known
    }
}

fn changes_rows(text: &str) -> bool {
    let word = text.split_ascii_whitespace().next().unwrap_or_default();
    ["INSERT", "UPDATE", "DELETE", "REPLACE"].iter().any(|verb| word.eq_ignore_ascii_case(verb))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_texts_are_kept_and_no_more() {
        let mut registry = StatementRegistry::default();
        for number in 0..StatementRegistry::MAX_TEXTS {
            assert!(registry.known(format!("UPDATE a SET b = {number}")).is_kept);
        }
        assert!(!registry.known("UPDATE a SET b = 'new'".to_owned()).is_kept, "there is no room");
        assert!(registry.known("UPDATE a SET b = 0".to_owned()).is_kept, "it is known");
        for (text, refused) in [
            ("DELETE FROM a; DELETE FROM b", Some(HOLDS_SEVERAL)),
            ("PRAGMA foreign_keys = OFF", Some(CHANGES_CONNECTION)),
            ("PRAGMA foreign_keys", None),
        ] {
            assert_eq!(registry.known(text.to_owned()).refused, refused, "{text}");
        }
    }

    #[test]
    fn what_changes_no_rows_or_is_long_is_not_kept() {
        let mut registry = StatementRegistry::default();
        for text in ["SELECT 1", "CREATE TABLE a (b)", "PRAGMA user_version", ""] {
            assert!(!registry.known(text.to_owned()).is_kept, "{text}");
        }
        let long = format!("INSERT INTO a VALUES ('{}')", "x".repeat(StatementRegistry::LONGEST));
        assert!(!registry.known(long).is_kept);
    }
}
