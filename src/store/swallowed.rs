//! [`PhaseState`]: a failed statement fails the phase, on servers that do not abort its transaction.
//!
//! The promise is that of PostgreSQL (G4), which refuses whatever follows a failed statement until a savepoint is rolled
//! back to, and does not commit. SQLite and MySQL roll the statement back and go on. So their connections keep the state of
//! the phase, and look at each of its texts. Three things differ between the two:
//!
//! * how a text is read: see [`Dialect`], and the word that may stand before `TO` (below);
//! * which errors are failures: on SQLite those of the database (`sqlite::watched`), on MySQL also those of the client, whose
//!   driver may refuse a statement that it could not send (`mysql::watch`);
//! * MySQL may have rolled back the whole transaction (`mysql::watch`).

use diesel::result::{DatabaseErrorKind, Error};

use super::tokenizer::{Dialect, first_words};

/// What became of the statements of a phase so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseState {
    /// Each statement succeeded, or was rolled back to a savepoint.
    Sound,
    /// One failed. If a text that was admitted since then succeeds, the phase is sound again.
    Failed,
}

impl PhaseState {
    /// Whether the phase may send a text: after a failure, only one that rolls back to a savepoint.
    pub(super) fn admit(self, rolls_back: impl FnOnce() -> bool) -> Result<(), Error> {
        match self {
            Self::Failed if !rolls_back() => Err(ignored()),
            Self::Sound | Self::Failed => Ok(()),
        }
    }
}

/// In the words of PostgreSQL, which a user can look up.
fn ignored() -> Error {
    let message = "current transaction is aborted by a statement that failed: return its error, or \
        roll back to a savepoint";
    Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(message.to_owned()))
}

/// Whether the text begins with a `ROLLBACK TO`, which undoes what failed.
pub(super) fn rolls_back_to_savepoint(sql: &str, dialect: Dialect) -> bool {
    let optional = if dialect.is_mysql() { "WORK" } else { "TRANSACTION" };
    let mut words = first_words(sql, dialect).map(str::to_ascii_uppercase);
    let mut next = || words.next().unwrap_or_default();
    next() == "ROLLBACK"
        && match next() {
            second if second == optional => next() == "TO",
            second => second == "TO",
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "mysql")]
    #[test]
    fn only_a_rollback_to_a_savepoint_forgives_on_mysql() {
        for forgiving in
            ["ROLLBACK TO s", "rollback work to savepoint `s`", " /* a */ ROLLBACK -- b\n TO s"]
        {
            assert!(rolls_back_to_savepoint(forgiving, Dialect::Mysql), "{forgiving}");
        }
        for other in [
            "",
            "ROLLBACK",
            "ROLLBACK; TO",
            "ROLLBACK TRANSACTION TO s",
            "; ROLLBACK TO s",
            "RELEASE s",
            "SELECT 'ROLLBACK TO s'",
            "/*!ROLLBACK TO s*/",
        ] {
            assert!(!rolls_back_to_savepoint(other, Dialect::Mysql), "{other}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn only_a_rollback_to_a_savepoint_forgives_on_sqlite() {
        for forgiving in [
            "ROLLBACK TO s",
            "rollback to savepoint \"s\"",
            "; ROLLBACK /* a */ TRANSACTION -- b\n TO [s];",
            "ROLLBACK TO s; INSERT INTO t VALUES (1)",
        ] {
            assert!(rolls_back_to_savepoint(forgiving, Dialect::Sqlite), "{forgiving}");
        }
        for other in [
            "",
            "ROLLBACK",
            "ROLLBACK TRANSACTION",
            "ROLLBACK WORK TO s",
            "ROLLBACK; TO",
            "RELEASE s",
            "SELECT 'ROLLBACK TO s'",
            "-- ROLLBACK TO s",
        ] {
            assert!(!rolls_back_to_savepoint(other, Dialect::Sqlite), "{other}");
        }
    }
}
