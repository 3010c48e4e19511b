//! [`NamedStatements`]: the statements of phases that a connection has prepared under names, to be executed in its blocks.
//!
//! MariaDB does not parse `EXECUTE name` at each execution, as it does `EXECUTE IMMEDIATE`. But it prepares the statement again
//! where a view, a trigger or a column has changed since then, as it does with one that is sent by itself. A text has the same
//! name on all connections of a store, so a block has the same text on all of them.

/// The name of a statement with this number.
pub(super) fn name(number: usize) -> String {
    format!("atomic_phases_{number}")
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

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_name_where_the_server_has_prepared_it() {
        let mut named = NamedStatements::default();
        assert!(named.is_empty());
        named.insert("DELETE FROM a", Some(7));
        named.insert("DELETE FROM b", None);
        let texts = ["DELETE FROM a", "DELETE FROM b", "DELETE FROM c"];
        let numbers = texts.map(|text| named.number(text));
        assert_eq!(numbers, [Some(7), None, None]);
        assert!(named.knows("DELETE FROM b") && !named.knows("DELETE FROM c"));
        assert_eq!(name(7), "atomic_phases_7");
    }
}
