//! [`PreparedCache`]: the statements that a connection has prepared, found by their texts without the driver.
//!
//! The driver finds them by their texts, too. But each time it first scans the text for parameters of its own (`:name`), and
//! a block has kilobytes: for a `Tx`, that was a quarter of the instructions that the client executed.
//!
//! The driver keeps `stmt_cache_size` statements, and closes the least recently used one. It does not see which statements are
//! found here. So this cache asks the driver for a statement again before it has asked the driver for that many others.

/// How many: the engine's own for a request, and the application's that come most. The driver finds the others.
const MAX_STATEMENTS: usize = 32;

/// Those of one connection. `S`: a statement of the driver's.
pub(super) struct PreparedCache<S> {
    known: Vec<KnownStatement<S>>,
    /// The place of the next one, once there is no room.
    next: usize,
    /// How many the driver keeps.
    kept: usize,
    /// How often the driver was asked for a statement.
    asked: usize,
}

struct KnownStatement<S> {
    text: Box<str>,
    statement: S,
    /// `asked`, when the driver was asked for it.
    asked: usize,
}

impl<S: Clone> PreparedCache<S> {
    pub(super) fn new(kept: usize) -> Self {
        Self { known: Vec::new(), next: 0, kept, asked: 0 }
    }

    /// The statement of this text, if the driver still has it for certain.
    pub(super) fn find(&self, text: &str) -> Option<S> {
        let known = self.known.iter().find(|known| *known.text == *text)?;
        (self.asked - known.asked < self.kept).then(|| known.statement.clone())
    }

    /// Notes that the driver is asked for a statement.
    pub(super) fn ask_driver(&mut self) {
        self.asked += 1;
    }

    /// Adds the statement that the driver was asked for last, and keeps.
    pub(super) fn insert(&mut self, text: String, statement: S) {
        let known = KnownStatement { text: text.into(), statement, asked: self.asked };
        if let Some(same) = self.known.iter_mut().find(|other| other.text == known.text) {
            *same = known;
        } else if self.known.len() < MAX_STATEMENTS {
            self.known.push(known);
        } else {
            self.known[self.next] = known;
            self.next = (self.next + 1) % MAX_STATEMENTS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(cache: &mut PreparedCache<usize>, text: &str, statement: usize) {
        cache.ask_driver();
        cache.insert(text.to_owned(), statement);
    }

    #[test]
    fn a_statement_is_found_until_the_driver_may_have_closed_it() {
        let mut cache = PreparedCache::new(3);
        assert_eq!(cache.find("SELECT 1"), None);
        ask(&mut cache, "SELECT 1", 1);
        for _ in 0..2 {
            cache.ask_driver();
            assert_eq!(cache.find("SELECT 1"), Some(1));
        }
        // Three others: the driver keeps those.
        cache.ask_driver();
        assert_eq!(cache.find("SELECT 1"), None);
        ask(&mut cache, "SELECT 1", 2);
        assert_eq!(cache.find("SELECT 1"), Some(2));
    }

    #[test]
    fn so_many_statements_are_known_and_no_more() {
        let mut cache = PreparedCache::new(usize::MAX);
        for statement in 0..2 * MAX_STATEMENTS + 1 {
            ask(&mut cache, &statement.to_string(), statement);
            assert_eq!(cache.find(&statement.to_string()), Some(statement));
        }
        assert_eq!(cache.known.len(), MAX_STATEMENTS);
        assert_eq!(cache.find("0"), None);
    }
}
