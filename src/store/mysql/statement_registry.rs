//! [`StatementRegistry`]: which texts a connection keeps prepared although they may differ each time.
//!
//! A text that is always the same, as far as diesel knows, is kept: the program has as many as are in its source. The others
//! are mostly the same, too (an `INSERT`, an `UPDATE`, a `sql_query`). But one may grow with its values, of many rows, and
//! the server needs megabytes for a thousand of them, on each connection that keeps it. So a text is kept from its second
//! execution on, and all of them together have at most [`MAX_BYTES`]. Any other is closed after its execution.
//!
//! The same is true of a statement that blocks execute by its name (`named_statements`), which has a number here.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use crate::lock::lock;

/// In bytes. A longer one has its values in it, or places for very many.
const LONGEST: usize = 4096;

/// How many bytes of them are kept. The server needs a hundred times as much for a text that is mostly `?`.
const MAX_BYTES: usize = 128 * 1024;

/// How many are remembered that were seen once.
const MAX_SEEN_ONCE: usize = 4096;

/// How many statements have a number: a connection closes none of them.
const MAX_NAMED: usize = 64;

/// Those of one store, as hashes.
#[derive(Debug, Default)]
pub(super) struct StatementRegistry {
    hasher: RandomState,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    seen_once: HashSet<u64>,
    kept: HashSet<u64>,
    /// The numbers of texts that blocks execute by name.
    named: HashMap<Box<str>, usize>,
    /// Of those that are kept, or have a number.
    bytes: usize,
    /// The server has refused to prepare one more statement.
    is_server_full: bool,
}

impl Known {
    /// Whether a text was seen before. Otherwise it is remembered.
    fn has_seen(&mut self, text: u64) -> bool {
        if self.seen_once.remove(&text) {
            return true;
        }
        if self.seen_once.len() == MAX_SEEN_ONCE {
            self.seen_once.clear();
        }
        self.seen_once.insert(text);
        false
    }
}

impl StatementRegistry {
    /// Whether to keep a text prepared, `varying` bytes of which may differ each time.
    pub(super) fn keeps(&self, text: &str, varying: usize) -> bool {
        if varying == 0 {
            return true;
        }
        if varying > LONGEST {
            return false;
        }
        let text = self.hasher.hash_one(text);
        let mut known = lock(&self.known);
        if known.kept.contains(&text) {
            return true;
        }
        if known.bytes + varying > MAX_BYTES {
            return false;
        }
        if !known.has_seen(text) {
            return false;
        }
        known.bytes += varying;
        known.kept.insert(text)
    }

    /// The number of a statement that blocks execute by its name, if they do so: from its second execution on.
    pub(super) fn number(&self, text: &str) -> Option<usize> {
        if text.len() > LONGEST {
            return None;
        }
        // Other than as a text that is sent by itself.
        let seen = self.hasher.hash_one(("named", text));
        let mut known = lock(&self.known);
        if known.is_server_full {
            return None;
        }
        if let Some(number) = known.named.get(text) {
            return Some(*number);
        }
        let number = known.named.len();
        let has_room = number < MAX_NAMED && known.bytes + text.len() <= MAX_BYTES;
        if !has_room || !known.has_seen(seen) {
            return None;
        }
        known.bytes += text.len();
        known.named.insert(text.into(), number);
        Some(number)
    }

    /// Whether statements are prepared under names.
    pub(super) fn names(&self) -> bool {
        !lock(&self.known).is_server_full
    }

    /// The server prepares no more statements: from here on, no connection prepares another one under a name, because blocks
    /// can do without. Else each request would try it again, and lose its connection.
    pub(super) fn name_no_more(&self) {
        lock(&self.known).is_server_full = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_may_differ_is_kept_once_it_was_seen_again() {
        let registry = StatementRegistry::default();
        assert!(registry.keeps("SELECT 1", 0));
        assert_eq!([(); 3].map(|()| registry.keeps("UPDATE a SET b = ?", 18)), [false, true, true]);
        let long = "?".repeat(LONGEST + 1);
        assert_eq!([(); 3].map(|()| registry.keeps(&long, long.len())), [false; 3]);
    }

    #[test]
    fn so_many_bytes_of_them_are_kept_and_no_more() {
        let registry = StatementRegistry::default();
        let mut kept = 0;
        for number in 0..1000 {
            let text = number.to_string();
            assert!(!registry.keeps(&text, LONGEST));
            kept += usize::from(registry.keeps(&text, LONGEST));
        }
        assert_eq!(kept, MAX_BYTES / LONGEST);
        assert!(registry.keeps("0", LONGEST), "it is kept");
        assert!(registry.keeps("constant", 0));
    }

    #[test]
    fn so_many_statements_have_a_number_from_their_second_execution_on() {
        let registry = StatementRegistry::default();
        for number in 0..MAX_NAMED {
            let text = format!("UPDATE a SET b = {number}");
            // A statement by itself is another matter.
            assert!(!registry.keeps(&text, text.len()));
            let numbers = [(); 3].map(|()| registry.number(&text));
            assert_eq!(numbers, [None, Some(number), Some(number)]);
        }
        assert_eq!([(); 3].map(|()| registry.number("UPDATE a SET b = ?")), [None; 3]);
        let registry = StatementRegistry::default();
        let long = "?".repeat(LONGEST + 1);
        assert_eq!([(); 3].map(|()| registry.number(&long)), [None; 3]);
    }

    #[test]
    fn g17_no_statement_has_a_number_once_the_server_has_prepared_too_many() {
        let registry = StatementRegistry::default();
        assert_eq!([(); 2].map(|()| registry.number("DELETE FROM a")), [None, Some(0)]);
        registry.name_no_more();
        let texts = ["DELETE FROM a", "DELETE FROM b", "DELETE FROM b"];
        assert_eq!(texts.map(|text| registry.number(text)), [None; 3]);
    }

    #[test]
    fn what_was_seen_once_is_forgotten() {
        let registry = StatementRegistry::default();
        for number in 0..3 * MAX_SEEN_ONCE {
            assert!(!registry.keeps(&number.to_string(), 1));
            let known = lock(&registry.known);
            assert!(known.seen_once.len() <= MAX_SEEN_ONCE);
        }
    }
}
