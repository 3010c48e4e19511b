//! Every judgement about an error of MySQL or MariaDB: by its code, never by its words, which are in the
//! session's language.
//!
//! diesel has no place for a code, so it travels in front of the message: `1213: Deadlock found …`.

use diesel::result::{DatabaseErrorInformation, DatabaseErrorKind, Error};

use crate::store::StoreError;

/// Why the server, the driver or the network did not do what was asked.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server said no.
    Server { code: u16, message: String },
    /// The client refused the statement, and sent nothing.
    Client(String),
    /// No answer will come, or not the one that belongs to the statement: the connection is of no use.
    Lost(String),
    /// None came in time.
    Unanswered,
}

/// Undid the whole transaction, so that it may succeed when it is run again: a deadlock, a record that was
/// changed since the snapshot; and a cluster that refused it.
const UNDONE: [u16; 4] = [1213, 1020, DURING_COMMIT, 3101];
/// A storage engine's error in the middle of a commit. Of any other than this, the server's own sources say that data may be
/// inconsistent: the binary log may have the transaction.
const DURING_COMMIT: u16 = 1180;
const CONFLICT_DURING_COMMIT: &str = "Got error 149 ";

/// A lock was not granted in time: by `innodb_lock_wait_timeout`, `max_statement_time` (MariaDB) or
/// `max_execution_time`, or immediately (`NOWAIT`).
const LOCKED: [u16; 4] = [1205, 1969, 3024, 3572];

/// The server prepares no more statements, for all its connections together (`max_prepared_stmt_count`).
const TOO_MANY_STATEMENTS: u16 = 1461;

/// The server ends the connection, or cannot follow the client's packets. Or it does not have a statement that was
/// prepared there (1243), or prepares no more of them: closed, the connection gives back those that it has.
const LOST: [u16; 14] = [
    1053,
    1152,
    1158,
    1159,
    1160,
    1161,
    1184,
    1243,
    TOO_MANY_STATEMENTS,
    1927,
    2006,
    2013,
    4031,
    1835,
];

const UNIQUE: [u16; 3] = [1062, 1586, 1859];
const FOREIGN_KEY: [u16; 6] = [1216, 1217, 1451, 1452, 1830, 1834];
const NOT_NULL: [u16; 2] = [1048, 1364];
/// MySQL's code, and MariaDB's.
const CHECK: [u16; 2] = [3819, 4025];
/// The server runs with an option that forbids the statement. With `--read-only`, as in a switch-over, it refuses a `COMMIT`,
/// too. Others are `--secure-file-priv` and `--skip-grant-tables`.
const READ_ONLY_SERVER: u16 = 1290;
/// A node of a cluster that has lost the others, or was told to reject statements. It keeps its sessions, and answers each
/// statement so, while new connections may reach another node.
const NODE_APART: u16 = 1047;
/// The server, the transaction or the cluster's node is read only.
const READ_ONLY: [u16; 4] = [READ_ONLY_SERVER, 1792, 1836, 3100];
/// What a value was not: too long, out of range, malformed.
const BAD_VALUE: [u16; 5] = [1264, 1265, 1292, 1366, 1406];

/// A table, a function or a procedure is not there, or is not locked as it should be. MariaDB 10.11 says so, too, of a prepared
/// statement whose table has got another trigger beside one that it has: at each execution, until it is closed.
const STALE: [u16; 3] = [1099, 1146, 1305];

/// There is no session of this number.
const NO_SUCH_SESSION: u16 = 1094;
/// There is no savepoint of this name.
pub(super) const NO_SAVEPOINT: u16 = 1305;
/// A subquery returned more than one row: what the engine raises where a write is fenced.
pub(super) const RAISED: u16 = 1242;

impl Failure {
    pub(super) fn of(error: mysql_async::Error) -> Self {
        use mysql_async::DriverError as Driver;
        match error {
            mysql_async::Error::Server(error) if LOST.contains(&error.code) => {
                Self::Lost(format!("{}: {}", error.code, error.message))
            }
            mysql_async::Error::Server(error) => {
                Self::Server { code: error.code, message: error.message }
            }
            mysql_async::Error::Driver(
                error @ (Driver::MixedParams
                | Driver::MissingNamedParam { .. }
                | Driver::NamedParamsForPositionalQuery
                | Driver::StmtParamsMismatch { .. }
                | Driver::StmtParamsNumberExceedsLimit { .. }),
            ) => Self::Client(error.to_string()),
            error => Self::Lost(error.to_string()),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Unanswered)
    }

    /// Whether the server prepares no more statements until others are given back. Such a connection is closed, so it
    /// counts as lost, with the code in front.
    pub(super) fn is_of_too_many_statements(&self) -> bool {
        let Self::Lost(message) = self else { return false };
        let code = message.split_once(": ").and_then(|(code, _)| code.parse::<u16>().ok());
        code == Some(TOO_MANY_STATEMENTS)
    }

    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Server { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the server has rolled the transaction back, all of it.
    pub(super) fn has_undone_all(&self) -> bool {
        self.code().is_some_and(|code| UNDONE.contains(&code))
    }

    /// Whether a write was refused because the server is read only.
    pub(super) fn is_of_reading_only(&self) -> bool {
        matches!(self, Self::Server { code, message } if is_read_only(*code, message))
    }

    pub(super) fn is_of_a_lock(&self) -> bool {
        self.code().is_some_and(|code| LOCKED.contains(&code))
    }

    /// Whether the savepoint that marks the transaction is gone, and so the transaction.
    pub(super) fn is_of_a_missing_savepoint(&self) -> bool {
        self.code() == Some(NO_SAVEPOINT)
    }

    /// Whether the same statement may succeed where it is prepared anew.
    pub(super) fn may_be_stale(&self) -> bool {
        self.code().is_some_and(|code| STALE.contains(&code))
    }

    /// Whether it is what the engine raises because no row was as the guard says. A statement of the phase may fail with
    /// the same code: the caller knows where the server was.
    pub(super) fn is_raised(&self) -> bool {
        self.code() == Some(RAISED)
    }

    pub(super) fn is_of_a_unique_key(&self) -> bool {
        self.code().is_some_and(|code| UNIQUE.contains(&code))
    }

    /// Whether it is certain that a `COMMIT`, or a statement that commits by itself, which was answered so
    /// has written nothing. Of any other error it is not (G7).
    pub(super) fn is_certain_at_commit(&self) -> bool {
        let Self::Server { code, message } = self else { return matches!(self, Self::Client(_)) };
        match *code {
            DURING_COMMIT => message.starts_with(CONFLICT_DURING_COMMIT),
            // Others are no refusal: `--max-session-mem-used` ends a statement in its middle, or behind it.
            READ_ONLY_SERVER => is_read_only(*code, message),
            code => [&UNDONE[..], &UNIQUE, &FOREIGN_KEY, &NOT_NULL, &CHECK]
                .iter()
                .any(|codes| codes.contains(&code)),
        }
    }

    /// Whether it is certain that a statement which commits by itself was not executed: it failed on the
    /// way to its commit.
    pub(super) fn is_certain_of_a_statement(&self) -> bool {
        let of_the_statement = |code| {
            let codes = [&LOCKED[..], &BAD_VALUE, &READ_ONLY];
            code != READ_ONLY_SERVER && codes.iter().any(|codes| codes.contains(&code))
        };
        self.is_certain_at_commit()
            || self.code().is_some_and(|code| of_the_statement(code) || is_of_the_text(code))
    }
}

/// Whether the server could not make sense of a statement: its syntax, a table or column that is not there,
/// a right that is missing.
fn is_of_the_text(code: u16) -> bool {
    matches!(code, 1044 | 1045 | 1049 | 1054 | 1064 | 1142 | 1143 | 1146 | 1295)
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let (kind, message) = match failure {
            Failure::Server { code, message } => {
                (kind_of(code, &message), format!("{code}: {message}"))
            }
            Failure::Lost(message) => (DatabaseErrorKind::UnableToSendCommand, message),
            Failure::Unanswered => {
                (DatabaseErrorKind::ClosedConnection, "no answer in time".to_owned())
            }
            Failure::Client(message) => return Self::QueryBuilderError(message.into()),
        };
        Self::DatabaseError(kind, Box::new(Told { message }))
    }
}

/// The words of the server, behind the code.
struct Told {
    message: String,
}

impl DatabaseErrorInformation for Told {
    fn message(&self) -> &str {
        &self.message
    }

    fn details(&self) -> Option<&str> {
        None
    }

    fn hint(&self) -> Option<&str> {
        None
    }

    fn table_name(&self) -> Option<&str> {
        None
    }

    fn column_name(&self) -> Option<&str> {
        None
    }

    /// `Duplicate entry 'a value' for key 'the key'`: the engine's sessions speak English. MySQL puts the table's name
    /// in front of the key's.
    fn constraint_name(&self) -> Option<&str> {
        let (_, named) = self.message.rsplit_once("for key '")?;
        let named = named.strip_suffix('\'')?;
        Some(named.rsplit_once('.').map_or(named, |(_, name)| name))
    }

    fn statement_position(&self) -> Option<i32> {
        None
    }
}

/// Whether the server, the transaction or the cluster's node is read only, or takes no statement at all: its connections are
/// left. The name of an option is the same in each language.
fn is_read_only(code: u16, message: &str) -> bool {
    let names_it = || ["read-only", "read_only"].iter().any(|name| message.contains(name));
    match code {
        READ_ONLY_SERVER => names_it(),
        code => code == NODE_APART || READ_ONLY.contains(&code),
    }
}

fn kind_of(code: u16, message: &str) -> DatabaseErrorKind {
    match code {
        _ if UNIQUE.contains(&code) => DatabaseErrorKind::UniqueViolation,
        _ if FOREIGN_KEY.contains(&code) => DatabaseErrorKind::ForeignKeyViolation,
        _ if NOT_NULL.contains(&code) => DatabaseErrorKind::NotNullViolation,
        _ if CHECK.contains(&code) => DatabaseErrorKind::CheckViolation,
        _ if is_read_only(code, message) => DatabaseErrorKind::ReadOnlyTransaction,
        _ if UNDONE.contains(&code) => DatabaseErrorKind::SerializationFailure,
        _ => DatabaseErrorKind::Unknown,
    }
}

/// Whether a session that was to be ended has ended by itself.
pub(super) fn is_of_an_ended_session(error: &mysql_async::Error) -> bool {
    match error {
        mysql_async::Error::Server(error) => error.code == NO_SUCH_SESSION,
        _ => false,
    }
}

/// Whether the server prepares no more statements until others are given back.
pub(super) fn is_of_too_many_statements(error: &StoreError) -> bool {
    error
        .of_diesel()
        .and_then(failure_of)
        .is_some_and(|failure| failure.is_of_too_many_statements())
}

/// Whether the server rolled the transaction back, to be run again.
pub(super) fn is_of_a_deadlock(error: &StoreError) -> bool {
    matches!(
        error.of_diesel(),
        Some(Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _))
    )
}

/// The failure that a diesel error of this store's connection was made of.
pub(super) fn failure_of(error: &Error) -> Option<Failure> {
    let Error::DatabaseError(kind, about) = error else { return None };
    let message = about.message();
    match kind {
        DatabaseErrorKind::UnableToSendCommand => return Some(Failure::Lost(message.to_owned())),
        DatabaseErrorKind::ClosedConnection => return Some(Failure::Unanswered),
        _ => {}
    }
    let (code, message) = message.split_once(": ")?;
    Some(Failure::Server { code: code.parse().ok()?, message: message.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DbError, is_of_reading_only};

    fn server(code: u16) -> Failure {
        Failure::Server { code, message: "etwas 1: anderes".to_owned() }
    }

    #[test]
    fn a_code_survives_diesel_in_any_language() {
        for code in [1062, 1205, 1213, 1305, 1644] {
            let error = Error::from(server(code));
            assert_eq!(failure_of(&error).unwrap().code(), Some(code));
        }
        let lost = Error::from(Failure::Lost("1205: no".to_owned()));
        assert!(failure_of(&lost).unwrap().is_lost());
    }

    #[test]
    fn g17_that_no_more_statements_are_prepared_survives_diesel() {
        let told = |message: &str| {
            let error = Error::from(Failure::Lost(message.to_owned()));
            is_of_too_many_statements(&StoreError::database("ask", error))
        };
        assert!(told("1461: Can't create more than max_prepared_stmt_count statements"));
        assert!(!told("1243: Unknown prepared statement handler"));
        assert!(!told("the server is gone: 1461"));
        assert!(!is_of_too_many_statements(&StoreError::Locked));
    }

    #[test]
    fn g7_only_what_is_known_to_have_written_nothing_is_certain_at_commit() {
        let certain = |code: u16| server(code).is_certain_at_commit();
        assert!([1213, 1020, 3101, 1062, 1452].into_iter().all(certain));
        for (option, is_certain) in [
            ("--read-only", true),
            ("--super-read-only", true),
            ("--max-session-mem-used=8192", false),
            ("--secure-file-priv", false),
        ] {
            let message = format!("The MariaDB server is running with the {option} option");
            let failure = Failure::Server { code: 1290, message };
            assert_eq!(failure.is_certain_at_commit(), is_certain, "{option}");
            assert_eq!(failure.is_certain_of_a_statement(), is_certain, "{option}");
        }
        let unknown =
            [1205, 1969, 3024, 3572, 1317, 1047, 1792, 1836, 3100, 1114, 1021, 1206, 1040, 1203];
        assert!(!unknown.into_iter().any(certain));
        assert!(![1226, 1461, 1153, 1301, 1118, 1305, 1242, 1406, 9999].into_iter().any(certain));
        for (message, is_certain) in [
            ("Got error 149 \"Lock deadlock; Retry transaction\" during COMMIT", true),
            ("Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT", true),
            ("Got error 1496 during COMMIT", false),
            ("Got error 28 \"No space left on device\" during COMMIT", false),
        ] {
            let failure = Failure::Server { code: 1180, message: message.to_owned() };
            assert_eq!(failure.is_certain_at_commit(), is_certain, "{message}");
        }
        assert!(!Failure::Lost(String::new()).is_certain_at_commit());
        assert!(server(1205).is_certain_of_a_statement());
        assert!(server(1836).is_certain_of_a_statement());
        assert!(!server(1317).is_certain_of_a_statement());
    }

    #[test]
    fn g12_a_server_is_read_only_where_it_says_so() {
        for (code, option, is_read_only) in [
            (1290, "--read-only", true),
            (1290, "--super-read-only", true),
            (1290, "--secure-file-priv", false),
            (1290, "--skip-grant-tables", false),
            (1836, "", true),
            // Galera: it is not ready for statements.
            (1047, "", true),
        ] {
            let message = format!("The server is running with the {option} option");
            let failure = Failure::Server { code, message };
            assert_eq!(failure.is_of_reading_only(), is_read_only, "{option}");
            let error = StoreError::database("ask", Error::from(failure));
            assert_eq!(error.of_diesel().is_some_and(is_of_reading_only), is_read_only, "{option}");
        }
    }

    #[test]
    fn what_a_cluster_refuses_runs_again() {
        for code in [1213, 1020, 1180, 3101] {
            assert!(server(code).has_undone_all(), "{code}");
            let error = Error::from(server(code));
            assert!(DbError(error).is_worth_a_rerun(), "{code}");
        }
        assert!(!server(1062).has_undone_all() && !server(1205).has_undone_all());
    }

    /// The runbook of store errors counts them by kind, which is to name the cause. No code is a value (G19).
    #[test]
    fn the_kind_of_an_error_names_its_cause() {
        for (code, cause) in [
            (1114, "full"),
            (1021, "full"),
            (1044, "privilege"),
            (1142, "privilege"),
            (1665, "binlog_format"),
            (1146, "a table is missing, or a trigger uses a view"),
            (1054, "column"),
            (1064, "syntax"),
            (1205, "lock timeout"),
            (1969, "statement timeout"),
            (1390, "more values in one statement"),
            (9999, "an error that the database reported"),
        ] {
            let error = DbError(Error::from(server(code)));
            assert!(error.kind().contains(cause), "{code}: {}", error.kind());
            assert_eq!(error.is_worth_a_rerun(), code != 1390, "{code}");
        }
        let message =
            "Got error 28 \"No space left on device\" from storage engine InnoDB".to_owned();
        let error = DbError(Error::from(Failure::Server { code: 1030, message }));
        assert_eq!(error.kind(), "the disk is full");
    }

    #[test]
    fn a_violated_key_is_named_and_no_value() {
        for named in ["PRIMARY", "rides.PRIMARY"] {
            let message = format!("Duplicate entry 'x for key 'y.z'' for key '{named}'");
            let error = Error::from(Failure::Server { code: 1062, message });
            assert_eq!(DbError(error).to_string(), "unique violation (constraint PRIMARY)");
        }
    }
}
