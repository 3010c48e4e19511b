//! [`StatementRegistry`]: which statements of phases the connection keeps prepared.
//!
//! diesel prepares an `UPDATE` anew each time, because its text may differ each time and a connection keeps what it
//! prepared. Here the text is looked at, and so many are kept.

use std::collections::HashMap;

use crate::store::tokenizer::{Dialect, holds_several};

/// The first texts that phases executed, which in nearly every application is all.
#[derive(Default)]
pub(super) struct StatementRegistry(HashMap<String, Known>);

#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) holds_several: bool,
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
        let holds_several = holds_several(&text, Dialect::Sqlite);
        let known = Known { holds_several, is_kept: has_room && changes_rows(&text) };
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
        assert!(registry.known("DELETE FROM a; DELETE FROM b".to_owned()).holds_several);
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
