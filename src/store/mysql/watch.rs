//! [`Watch`]: a failed statement fails the phase.
//!
//! InnoDB rolls a failed statement back and goes on with the transaction; or, after a deadlock, has rolled
//! all of it back, and what follows is a transaction of its own. The promise is that of PostgreSQL (G4):
//! after a failure nothing is executed until a savepoint is rolled back to, and nothing is committed.

use diesel::result::{DatabaseErrorKind, EmptyChangeset, Error};

use super::error::Failure;

/// What became of the statements of a phase so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// No phase has the connection.
    Off,
    /// Each statement succeeded, or was rolled back to a savepoint.
    Sound,
    /// One failed.
    Failed,
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
        match self {
            Self::Off | Self::Sound => Ok(Admission::Send),
            Self::Failed if rolls_back_to_savepoint(sql) => Ok(Admission::Send),
            Self::Failed => Err(ignored()),
            Self::Gone if rolls_back_to_savepoint(sql) => Ok(Admission::Pretend),
            Self::Gone => Err(gone()),
        }
    }

    /// Notes what became of a text. Whether the server or the client refused it, the phase lacks what it should
    /// have done.
    pub(super) fn note<T>(&mut self, sql: &str, done: &Result<T, Failure>) {
        match (*self, done) {
            (Self::Off | Self::Gone, _) => {}
            (_, Err(failure)) if failure.has_undone_all() => *self = Self::Gone,
            (_, Err(_)) => *self = Self::Failed,
            (Self::Failed, Ok(_)) if rolls_back_to_savepoint(sql) => *self = Self::Sound,
            (Self::Sound | Self::Failed, Ok(_)) => {}
        }
    }

    /// Notes that diesel could not make a text, or a value, of a statement. An update without changes is none that
    /// failed: diesel itself offers to ignore that error (`optional_empty_changeset`).
    pub(super) fn note_unmade(&mut self, error: &Error) {
        let changes_nothing =
            matches!(error, Error::QueryBuilderError(about) if about.is::<EmptyChangeset>());
        if *self == Self::Sound && !changes_nothing {
            *self = Self::Failed;
        }
    }
}

/// In the words of PostgreSQL, which a user can look up.
fn ignored() -> Error {
    refused(
        DatabaseErrorKind::Unknown,
        "current transaction is aborted by a statement that failed: return its error, or roll back to a \
         savepoint",
    )
}

pub(super) fn gone() -> Error {
    refused(
        DatabaseErrorKind::SerializationFailure,
        "the server rolled the transaction back (a deadlock): return the error, and the phase runs again",
    )
}

fn refused(kind: DatabaseErrorKind, message: &str) -> Error {
    Error::DatabaseError(kind, Box::new(message.to_owned()))
}

/// Whether the text begins with a `ROLLBACK TO`, which undoes what failed.
fn rolls_back_to_savepoint(sql: &str) -> bool {
    let mut words = Words(sql);
    words.next().is_some_and(|word| word.eq_ignore_ascii_case("ROLLBACK"))
        && match words.next() {
            Some(word) if word.eq_ignore_ascii_case("WORK") => {
                words.next().is_some_and(|word| word.eq_ignore_ascii_case("TO"))
            }
            Some(word) => word.eq_ignore_ascii_case("TO"),
            None => false,
        }
}

/// Whether a statement that is handed over by a `Batch` reads or writes rows and does nothing else. Any
/// other may commit what stands before it (DDL, `LOCK TABLES`, `ANALYZE`), or leave the transaction.
pub(super) fn only_touches_rows(sql: &str) -> bool {
    const KNOWN: [&str; 6] = ["INSERT", "UPDATE", "DELETE", "REPLACE", "SELECT", "WITH"];
    let first = Words(sql).next();
    first.is_some_and(|word| KNOWN.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// Whether a statement of a phase's, or of the application's, leaves nothing to its session but rows and
/// savepoints. Any other may set a variable, choose another database, lock a table, or make a temporary one. What a
/// stored function or a trigger does is not seen.
pub(super) fn leaves_its_session_alone(sql: &str) -> bool {
    const KNOWN: [&str; 3] = ["SAVEPOINT", "RELEASE", "ROLLBACK"];
    let is_of_a_savepoint = || {
        let first = Words(sql).next();
        first.is_some_and(|word| KNOWN.iter().any(|known| word.eq_ignore_ascii_case(known)))
    };
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

/// The words that a text begins with: no word comes behind any other sign. A comment is passed over, but
/// for one that the server executes (`/*! .. */`).
struct Words<'s>(&'s str);

impl<'s> Iterator for Words<'s> {
    type Item = &'s str;

    fn next(&mut self) -> Option<&'s str> {
        self.0 = behind_comments(self.0)?;
        let is_of_a_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.0.find(|c| !is_of_a_word(c)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}

fn behind_comments(mut sql: &str) -> Option<&str> {
    loop {
        sql = sql.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
        let ended_by = if sql.starts_with("/*") {
            if sql.starts_with("/*!") || sql.starts_with("/*M!") {
                return None;
            }
            "*/"
        } else if sql.starts_with("-- ") || sql.starts_with("--\t") || sql.starts_with('#') {
            "\n"
        } else {
            return Some(sql);
        };
        let end = sql.get(2..).and_then(|behind| behind.find(ended_by)).map(|end| 2 + end);
        sql = &sql[end? + ended_by.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rollback_to_a_savepoint_forgives() {
        for forgiving in
            ["ROLLBACK TO s", "rollback work to savepoint `s`", " /* a */ ROLLBACK -- b\n TO s"]
        {
            assert!(rolls_back_to_savepoint(forgiving), "{forgiving}");
        }
        for other in [
            "",
            "ROLLBACK",
            "ROLLBACK; TO",
            "RELEASE s",
            "SELECT 'ROLLBACK TO s'",
            "/*!ROLLBACK TO s*/",
        ] {
            assert!(!rolls_back_to_savepoint(other), "{other}");
        }
    }

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
            let mut watch = Watch::Sound;
            watch.note::<()>("INSERT INTO t VALUES (1)", &Err(failure));
            assert_eq!(watch, Watch::Failed, "{what}");
            assert!(watch.admit("INSERT INTO t VALUES (1)").is_err(), "{what}");
            watch.note("ROLLBACK TO SAVEPOINT s", &Ok(()));
            assert_eq!(watch, Watch::Sound, "{what}");
        }
        let after = |error: Error, mut watch: Watch| {
            watch.note_unmade(&error);
            watch
        };
        let no_form = || Error::SerializationError("no form".into());
        assert_eq!(after(no_form(), Watch::Sound), Watch::Failed);
        assert_eq!(after(no_form(), Watch::Gone), Watch::Gone);
        assert_eq!(after(no_form(), Watch::Off), Watch::Off);
        let no_change = Error::QueryBuilderError(Box::new(EmptyChangeset));
        assert_eq!(after(no_change, Watch::Sound), Watch::Sound);
    }

    #[test]
    fn after_a_deadlock_nothing_is_sent() {
        let mut watch = Watch::Sound;
        let deadlock: Result<(), _> = Err(Failure::Server { code: 1213, message: String::new() });
        watch.note("UPDATE t SET a = 1", &deadlock);
        assert_eq!(watch, Watch::Gone);
        assert!(watch.admit("INSERT INTO t VALUES (1)").is_err());
        assert_eq!(watch.admit("ROLLBACK TO SAVEPOINT s").unwrap(), Admission::Pretend);
    }
}
