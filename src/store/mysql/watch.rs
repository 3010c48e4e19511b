//! [`Watch`]: a failed statement fails the phase (`store::swallowed`).
//!
//! InnoDB rolls a failed statement back and goes on with the transaction; or, after a deadlock, has rolled
//! all of it back, and what follows is a transaction of its own.

use diesel::result::{DatabaseErrorKind, EmptyChangeset, Error};

use super::error::Failure;
use crate::store::swallowed::{PhaseState, rolls_back_to_savepoint};
use crate::store::tokenizer::{Dialect, first_words};

/// What became of the transaction of a phase so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// No phase has the connection.
    Off,
    /// It is open.
    Phase(PhaseState),
    /// The server has rolled the transaction back: a deadlock, or a changed record.
    Gone,
}

/// What to do with a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Send,
    /// Nothing is left that it could roll back to: it has succeeded. diesel's `transaction()` then returns
    /// the error that it was left with, and not that there is no such savepoint.
    Pretend,
}

impl Watch {
    /// Whether a phase may send this text.
    pub(super) fn admit(self, sql: &str) -> Result<Admission, Error> {
        let rolls_back = || rolls_back_to_savepoint(sql, Dialect::Mysql);
        match self {
            Self::Off => Ok(Admission::Send),
            Self::Phase(phase) => phase.admit(rolls_back).map(|()| Admission::Send),
            Self::Gone if rolls_back() => Ok(Admission::Pretend),
            Self::Gone => Err(gone()),
        }
    }

    /// Notes what became of a text that was admitted. Whether the server or the client refused it, the phase lacks
    /// what it should have done.
    pub(super) fn note<T>(&mut self, done: &Result<T, Failure>) {
        let Self::Phase(phase) = self else { return };
        match done {
            Err(failure) if failure.has_undone_all() => *self = Self::Gone,
            Err(_) => *phase = PhaseState::Failed,
            Ok(_) => *phase = PhaseState::Sound,
        }
    }

    /// Notes that diesel could not make a text, or a value, of a statement. An update without changes is none that
    /// failed: diesel itself offers to ignore that error (`optional_empty_changeset`).
    pub(super) fn note_unmade(&mut self, error: &Error) {
        let changes_nothing =
            matches!(error, Error::QueryBuilderError(about) if about.is::<EmptyChangeset>());
        if let (Self::Phase(phase), false) = (self, changes_nothing) {
            *phase = PhaseState::Failed;
        }
    }
}

pub(super) fn gone() -> Error {
    let message = "the server rolled the transaction back (a deadlock): return the error, and the phase runs again";
    Error::DatabaseError(DatabaseErrorKind::SerializationFailure, Box::new(message.to_owned()))
}

/// Whether a statement that is handed over by a `Batch` reads or writes rows and does nothing else. Any
/// other may commit what stands before it (DDL, `LOCK TABLES`, `ANALYZE`), or leave the transaction.
pub(super) fn only_touches_rows(sql: &str) -> bool {
    const KNOWN: [&str; 6] = ["INSERT", "UPDATE", "DELETE", "REPLACE", "SELECT", "WITH"];
    begins_with_one_of(sql, &KNOWN)
}

fn begins_with_one_of(sql: &str, words: &[&str]) -> bool {
    let first = first_words(sql, Dialect::Mysql).next();
    first.is_some_and(|word| words.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// Whether a statement of a phase's, or of the application's, leaves nothing to its session but rows and
/// savepoints. Any other may set a variable, choose another database, lock a table, or make a temporary one. What a
/// stored function or a trigger does is not seen.
pub(super) fn leaves_its_session_alone(sql: &str) -> bool {
    const KNOWN: [&str; 3] = ["SAVEPOINT", "RELEASE", "ROLLBACK"];
    let is_of_a_savepoint = || begins_with_one_of(sql, &KNOWN);
    // By its `_`, of which a text has few.
    let is_get_lock = |(at, _): (usize, &str)| {
        let word = at.checked_sub(3).and_then(|from| sql.as_bytes().get(from..from + 8));
        word.is_some_and(|word| word.eq_ignore_ascii_case(b"get_lock"))
    };
    let locks_a_name = || sql.match_indices('_').any(is_get_lock);
    // A variable may be set wherever it stands: `SELECT @a := 1`, `SELECT 1 INTO @a`.
    let has_a_variable = || sql.contains('@');
    (only_touches_rows(sql) && !has_a_variable() && !locks_a_name()) || is_of_a_savepoint()
}

/// Whether a text begins or ends a transaction and does nothing else: what diesel sends for an application's. A block
/// (`BEGIN NOT ATOMIC`) may do anything.
pub(super) fn only_begins_or_commits(sql: &str) -> bool {
    const KNOWN: [&str; 3] = ["BEGIN", "START TRANSACTION", "COMMIT"];
    KNOWN.iter().any(|known| sql.trim().eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: Watch = Watch::Phase(PhaseState::Sound);
    const FAILED: Watch = Watch::Phase(PhaseState::Failed);

    #[test]
    fn a_batch_takes_what_touches_rows_only() {
        for sql in [
            "INSERT INTO t VALUES (1)",
            "(SELECT 1)",
            "# a\nupdate t set a = 1",
            "/* a */DELETE FROM t",
        ] {
            assert!(only_touches_rows(sql), "{sql}");
        }
        for sql in [
            "",
            "COMMIT",
            "CREATE TABLE t (a int)",
            "SET autocommit=1",
            "/*!COMMIT*/",
            "CALL p()",
            "XA END 'a'",
            "/* a",
        ] {
            assert!(!only_touches_rows(sql), "{sql}");
        }
    }

    #[test]
    fn what_may_change_a_session_is_known_by_its_first_word() {
        for sql in
            ["INSERT INTO t VALUES (1)", "SAVEPOINT `s`", "release savepoint s", "ROLLBACK TO s"]
        {
            assert!(leaves_its_session_alone(sql), "{sql}");
        }
        for sql in [
            "USE other",
            "SET timestamp = 1",
            "LOCK TABLES t READ",
            "CALL p()",
            "SELECT get_lock('a', 0)",
            "SELECT a_b, GET_LOCK('a', 0) FROM t",
            "SELECT @a := 1",
            "SELECT id FROM t INTO @a",
            "",
        ] {
            assert!(!leaves_its_session_alone(sql), "{sql}");
        }
    }

    #[test]
    fn a_transaction_of_the_application_is_known_by_its_whole_text() {
        for sql in ["BEGIN", "begin", " COMMIT ", "Start Transaction"] {
            assert!(only_begins_or_commits(sql), "{sql}");
            // In a phase, it is not one that leaves the session alone.
            assert!(!leaves_its_session_alone(sql), "{sql}");
        }
        for sql in [
            "",
            "BEGIN NOT ATOMIC SET timestamp = 1; END",
            "COMMIT; SET timestamp = 1",
            "COMMIT AND CHAIN",
            "START SLAVE",
        ] {
            assert!(!only_begins_or_commits(sql), "{sql}");
        }
    }

    /// Whichever layer refused the statement.
    #[test]
    fn g4_every_failure_of_a_statement_is_noted_until_a_savepoint_is_rolled_back_to() {
        let failures = [
            Failure::Server { code: 1062, message: String::new() },
            Failure::Client("too large".to_owned()),
            Failure::Lost("cut".to_owned()),
            Failure::Unanswered,
        ];
        for failure in failures {
            let what = format!("{failure:?}");
            let mut watch = SOUND;
            watch.note::<()>(&Err(failure));
            assert_eq!(watch, FAILED, "{what}");
            assert!(watch.admit("INSERT INTO t VALUES (1)").is_err(), "{what}");
            assert_eq!(watch.admit("ROLLBACK TO SAVEPOINT s").unwrap(), Admission::Send, "{what}");
            watch.note(&Ok(()));
            assert_eq!(watch, SOUND, "{what}");
        }
        let after = |error: Error, mut watch: Watch| {
            watch.note_unmade(&error);
            watch
        };
        let no_form = || Error::SerializationError("no form".into());
        assert_eq!(after(no_form(), SOUND), FAILED);
        assert_eq!(after(no_form(), Watch::Gone), Watch::Gone);
        assert_eq!(after(no_form(), Watch::Off), Watch::Off);
        let no_change = Error::QueryBuilderError(Box::new(EmptyChangeset));
        assert_eq!(after(no_change, SOUND), SOUND);
    }

    #[test]
    fn after_a_deadlock_nothing_is_sent() {
        let mut watch = SOUND;
        let deadlock: Result<(), _> = Err(Failure::Server { code: 1213, message: String::new() });
        watch.note(&deadlock);
        assert_eq!(watch, Watch::Gone);
        assert!(watch.admit("INSERT INTO t VALUES (1)").is_err());
        assert_eq!(watch.admit("ROLLBACK TO SAVEPOINT s").unwrap(), Admission::Pretend);
    }
}
