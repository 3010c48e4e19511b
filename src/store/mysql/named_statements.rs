//! [`NamedStatements`]: the statements of phases that a connection has prepared under names, to be executed in its blocks.
//!
//! MariaDB parses the text of an `EXECUTE IMMEDIATE` at each execution, and a statement with a name once. It prepares that one
//! again where a view, a trigger or a column has changed since then, as it does with one that is sent by itself. A text has the
//! same name on all connections of a store, so a block has the same text on all of them.

use std::fmt::{self, Display, Formatter};

/// The name of the statement with this number.
pub(super) struct Name(pub(super) usize);

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "atomic_phases_{}", self.0)
    }
}

/// Those of one connection.
#[derive(Debug, Default)]
pub(super) struct NamedStatements {
    /// By text; without a number, where the server has refused to prepare it.
    known: Vec<(Box<str>, Option<usize>)>,
}

impl NamedStatements {
    /// Whether the server was asked to prepare this text.
    pub(super) fn knows(&self, text: &str) -> bool {
        self.known.iter().any(|(known, _)| **known == *text)
    }

    /// The number of the statement with this text, if it is prepared.
    pub(super) fn number(&self, text: &str) -> Option<usize> {
        self.known.iter().find(|(known, _)| **known == *text)?.1
    }

    pub(super) fn insert(&mut self, text: &str, number: Option<usize>) {
        self.known.push((text.into(), number));
    }

    /// Whether no statement is prepared.
    pub(super) fn is_empty(&self) -> bool {
        self.known.iter().all(|(_, number)| number.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_name_where_the_server_has_prepared_it() {
        let mut named = NamedStatements::default();
        named.insert("DELETE FROM b", None);
        assert!(named.is_empty());
        named.insert("DELETE FROM a", Some(7));
        assert!(!named.is_empty());
        let texts = ["DELETE FROM a", "DELETE FROM b", "DELETE FROM c"];
        let numbers = texts.map(|text| named.number(text));
        assert_eq!(numbers, [Some(7), None, None]);
        assert!(named.knows("DELETE FROM b") && !named.knows("DELETE FROM c"));
        assert_eq!(Name(7).to_string(), "atomic_phases_7");
    }
}
