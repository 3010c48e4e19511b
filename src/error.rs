//! [`DbError`]: a diesel error that shows its kind and the schema's names, and never its text.
//!
//! A database's message may repeat a value (`Key (email)=(…) already exists`), and a value must not
//! reach a log (G19). The engine keeps the error for classification and prints only what it is.
//!
//! A judgement is in `store/<backend>/error.rs`, unless rooms above the stores need it too: they hold such an error, and
//! do not know of which store it is. It is a function of diesel's error then, which the stores call, too.

use std::fmt;

use diesel::result::{DatabaseErrorKind, Error};

/// A database error whose `Display` and `Debug` tell its [kind](Self::kind) and what it was
/// [about](Self::about), and never its text.
pub struct DbError(pub(crate) Error);

impl DbError {
    /// What happened, in words without values.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if is_of_a_pooler(&self.0) {
            return POOLER;
        }
        if let Some(kind) = unknown_message(&self.0).and_then(kind_by_the_message) {
            return kind;
        }
        match &self.0 {
            Error::QueryBuilderError(error) if error.to_string() == TOO_LARGE => TOO_LARGE,
            Error::NotFound => "no row where one was expected",
            Error::DeserializationError(_) => "a value of an unexpected type",
            Error::SerializationError(_) => "a value that has no SQL form",
            Error::AlreadyInTransaction => "a transaction is open already",
            Error::NotInTransaction => "no transaction is open",
            Error::BrokenTransactionManager => "the connection's transaction state is broken",
            Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand, about)
                if about.message() == NOT_ENCODED =>
            {
                UNSENDABLE
            }
            Error::DatabaseError(kind, about) if !is_unsent(&self.0) => match kind {
                DatabaseErrorKind::UniqueViolation => "unique violation",
                DatabaseErrorKind::ForeignKeyViolation => "foreign key violation",
                DatabaseErrorKind::NotNullViolation => "not-null violation",
                DatabaseErrorKind::CheckViolation => "check violation",
                DatabaseErrorKind::RestrictViolation => "restrict violation",
                DatabaseErrorKind::ExclusionViolation => "exclusion violation",
                DatabaseErrorKind::SerializationFailure => "serialization failure",
                DatabaseErrorKind::ReadOnlyTransaction => "read-only transaction",
                DatabaseErrorKind::ClosedConnection => "no answer in time",
                DatabaseErrorKind::UnableToSendCommand if about.message() == FILE_REPLACED => {
                    FILE_REPLACED
                }
                DatabaseErrorKind::UnableToSendCommand => "connection lost",
                _ => "an error that the database reported",
            },
            _ => "an error of the query or the driver",
        }
    }

    /// What the error was about, by the schema's names: `constraint rides_pkey of table rides`. Said of a
    /// violated constraint only, where the database itself names it.
    #[must_use]
    pub fn about(&self) -> Option<String> {
        let Error::DatabaseError(kind, about) = &self.0 else { return None };
        if !is_of_a_constraint(kind) {
            return None;
        }
        let named = [
            ("constraint", about.constraint_name()),
            ("column", about.column_name()),
            ("table", about.table_name()),
        ];
        let named: Vec<String> = named
            .into_iter()
            .filter_map(|(what, name)| {
                name.filter(|name| is_a_name(name)).map(|name| format!("{what} {name}"))
            })
            .collect();
        (!named.is_empty()).then(|| named.join(" of "))
    }

    /// The diesel error itself. Its text may hold values of rows: keep it out of logs.
    #[must_use]
    pub fn into_inner(self) -> Error {
        self.0
    }

    /// Whether running the same transaction once more may succeed (H9): judged by the kind where
    /// diesel has one (40001), and otherwise by what is known to be passing. A deadlock (40P01), a
    /// lock or statement timeout all arrive as `Unknown`, without an SQLSTATE. A statement that was refused for what it is
    /// made of is refused each time.
    pub(crate) fn is_worth_a_rerun(&self) -> bool {
        let is_refused_each_time =
            is_unsent(&self.0) || [TOO_MANY_VALUES, CHANGES_CONNECTION].contains(&self.kind());
        !is_refused_each_time
            && matches!(
                self.0,
                Error::BrokenTransactionManager
                    | Error::DatabaseError(
                        DatabaseErrorKind::SerializationFailure
                            | DatabaseErrorKind::UnableToSendCommand
                            | DatabaseErrorKind::ClosedConnection
                            | DatabaseErrorKind::Unknown,
                        _,
                    )
            )
    }

    /// Whether no answer came in time: diesel-async has no use for this kind, the store has.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.0, Error::DatabaseError(DatabaseErrorKind::ClosedConnection, _))
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        self.about().map_or(Ok(()), |about| write!(f, " ({about})"))
    }
}

impl std::error::Error for DbError {}

impl fmt::Debug for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DbError({self})")
    }
}

const DISK_FULL: &str = "the disk is full";
const NO_PRIVILEGE: &str = "a privilege is missing";
const NO_TABLE: &str = "a table is missing";
const NO_COLUMN: &str = "a column is missing";
const EARLIER_SCHEMA: &str =
    "a migration changed a type that the session remembers: behind a pooler, let it RECONNECT";
const TOO_MANY_VALUES: &str = "more values in one statement than the database takes (65,535 on MariaDB and MySQL, 32,766 on \
    SQLite): use several statements";

/// The kind of an error that diesel has none for. One function serves all stores, because the engine prints an error without
/// knowing its store, and no message of one database is another's with a different meaning.
fn kind_by_the_message(message: &str) -> Option<&'static str> {
    if let Some(&(_, kind)) = KNOWN.iter().find(|(known, _)| *known == message) {
        return Some(kind);
    }
    for (begins, ends, kind) in NAMING {
        if message.starts_with(begins) && message.ends_with(ends) {
            return Some(kind);
        }
    }
    let (code, _) = message.split_once(": ")?;
    kind_by_the_code(code.parse().ok()?)
}

/// By the code that the MySQL store puts in front of the server's message, whatever its language.
fn kind_by_the_code(code: u16) -> Option<&'static str> {
    Some(match code {
        1021 => DISK_FULL,
        // InnoDB says so of a full disk, too.
        1114 => "a table is full, or the disk",
        1044 | 1142 | 1143 | 1227 => NO_PRIVILEGE,
        // MariaDB says so of a trigger that uses a view which was replaced, though each table is there.
        1146 => "a table is missing, or a trigger uses a view that was replaced: then FLUSH TABLES",
        1054 => NO_COLUMN,
        // A killed session may leave the triggers of a table unreadable.
        1064 => "a syntax error, in a statement or in a trigger",
        1665 => "binlog_format is STATEMENT: MIXED or ROW is needed",
        1205 | 3572 => "lock timeout",
        1317 => "the statement was cancelled",
        1390 => TOO_MANY_VALUES,
        1969 | 3024 => "statement timeout",
        _ => return None,
    })
}

/// The beginning and the end of messages with a name or a path in them.
const NAMING: [(&str, &str, &str); 9] = [
    // PostgreSQL's.
    ("", ": No space left on device", DISK_FULL),
    ("permission denied for ", "", NO_PRIVILEGE),
    ("relation \"", "\" does not exist", NO_TABLE),
    ("column ", " does not exist", NO_COLUMN),
    (NO_SUCH_TYPE, "", EARLIER_SCHEMA),
    (OTHER_PARAMETER, ")", EARLIER_SCHEMA),
    // MariaDB's.
    ("1030: ", "\"No space left on device\" from storage engine InnoDB", DISK_FULL),
    // SQLite's.
    ("no such table: ", "", NO_TABLE),
    ("no such column: ", "", NO_COLUMN),
];

/// Messages of servers that speak English. The whole of each, so that it holds no value.
const KNOWN: [(&str, &str); 12] = [
    ("deadlock detected", "deadlock"),
    ("canceling statement due to lock timeout", "lock timeout"),
    ("canceling statement due to statement timeout", "statement timeout"),
    ("canceling statement due to user request", "the statement was cancelled"),
    (
        "terminating connection due to administrator command",
        "the server ended the connection: an administrator's command",
    ),
    ("the database system is shutting down", "the server is shutting down"),
    (
        "current transaction is aborted, commands ignored until end of transaction block",
        "an earlier statement of the transaction failed",
    ),
    (
        "cached plan must not change result type",
        "a migration changed the columns of a prepared statement: behind a pooler, let it RECONNECT",
    ),
    ("attempt to write a readonly database", "read-only transaction"),
    ("database or disk is full", DISK_FULL),
    ("too many SQL variables", TOO_MANY_VALUES),
    (CHANGES_CONNECTION, CHANGES_CONNECTION),
];

/// What PostgreSQL's client says of a statement that does not fit into a message. diesel-async does not pass on why.
const NOT_ENCODED: &str = "error encoding message to server";
const UNSENDABLE: &str = "more than 65,535 values in one statement (bind an array, or use several statements), or over 2 GiB, \
    or a NUL in its text";

/// What a client must not send to MySQL: the server would close the connection without an error. The store refuses it
/// with this text; it is here because [`DbError::kind`] repeats it.
pub(crate) const TOO_LARGE: &str = "larger than max_allowed_packet, the server's or the URL's";

/// What SQLite does not notice. The store refuses everything with this text; it is here for the same reason.
pub(crate) const FILE_REPLACED: &str = "the database file was replaced or deleted while it was open: stop all processes, \
    delete the -wal and -shm files beside a restored copy, and start them again";

/// What would outlast a phase on SQLite. The store refuses it with this text; it is here for the same reason.
pub(crate) const CHANGES_CONNECTION: &str = "ATTACH, DETACH, or a PRAGMA that may set something, in a phase: it would stay on \
    the connection that all scopes share, so execute it on the store's connection() when it is opened";

fn is_of_a_constraint(kind: &DatabaseErrorKind) -> bool {
    matches!(
        kind,
        DatabaseErrorKind::UniqueViolation
            | DatabaseErrorKind::ForeignKeyViolation
            | DatabaseErrorKind::RestrictViolation
            | DatabaseErrorKind::NotNullViolation
            | DatabaseErrorKind::CheckViolation
            | DatabaseErrorKind::ExclusionViolation
    )
}

/// A trigger may raise such an error by itself, and name what it likes.
fn is_a_name(name: &str) -> bool {
    let is_of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '.');
    !name.is_empty() && name.len() <= 128 && name.chars().all(is_of_a_name)
}

impl From<Error> for DbError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

/// What to do about a pooler that hands one client's prepared statements to another (H11).
pub(crate) const POOLER: &str = "the pooler mixes up prepared statements: use session pooling, or \
    PgBouncer 1.21 and newer with max_prepared_statements above zero";

/// Whether the server speaks of a prepared statement that exists already, does not, or has other parameters: each is another
/// client's, or was deallocated. Only PostgreSQL behind a pooler says so; recognised in a server that speaks English.
fn is_of_a_pooler(error: &Error) -> bool {
    unknown_message(error).is_some_and(|message| {
        let names_one = message.starts_with("prepared statement \"s")
            && (message.ends_with("\" already exists") || message.ends_with("\" does not exist"));
        names_one
            || (message.starts_with("bind message ") && message.contains("prepared statement \"s"))
    })
}

/// Of a type that is no more. diesel asks a connection once for the number of a type that the application has made, and the
/// type that a migration puts in its place (as PostgreSQL has it, to take a value from an enum) has another.
const NO_SUCH_TYPE: &str = "cache lookup failed for type ";

/// Of a function in PL/pgSQL that a session has run before: its expressions are planned once, for `NEW.amount` as it was.
const OTHER_PARAMETER: &str = "type of parameter ";

/// Whether the server refuses something for ever in this session, because the session remembers the schema from before a
/// migration: a prepared statement that returns a column of another type since, or one of another length only; the number of
/// a type; the plan of a function. Recognised in a server that speaks English.
fn is_of_an_earlier_schema(error: &Error) -> bool {
    unknown_message(error).is_some_and(|message| {
        message == "cached plan must not change result type"
            || message.starts_with(NO_SUCH_TYPE)
            || (message.starts_with(OTHER_PARAMETER)
                && message.contains(" does not match that when preparing the plan "))
    })
}

/// Whether what this connection remembers is good for nothing any more: a prepared statement, a type, a plan. It must not be
/// used again. Only PostgreSQL says so; it is judged here because the engine and the workers ask whether another connection
/// may do better.
pub(crate) fn is_of_a_stale_session(error: &Error) -> bool {
    is_of_a_pooler(error) || is_of_an_earlier_schema(error)
}

/// Whether the connection itself is gone.
pub(crate) fn is_lost(error: &Error) -> bool {
    let is_of_a_connection = matches!(
        error,
        Error::DatabaseError(
            DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection,
            _,
        )
    );
    is_of_a_connection && !is_unsent(error)
}

/// Whether PostgreSQL's client refused the statement: it sent nothing of it, and the connection is as good as before.
/// diesel-async reports that by the kind of a lost connection. The words are tokio-postgres' own, in every language: what a
/// server says has another kind, and what other stores say of a lost connection does not begin so.
pub(crate) fn is_unsent(error: &Error) -> bool {
    let Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand, about) = error else {
        return false;
    };
    let message = about.message();
    message == NOT_ENCODED
        || message.starts_with("error serializing parameter ")
        || (message.starts_with("expected ") && message.contains(" parameters but got "))
}

/// Whether a write was refused because the database can only be read, or the session: by its own default, or on a standby.
/// There even the number of a transaction is refused so.
pub(crate) fn is_of_reading_only(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _))
}

/// Whether the database said something that diesel has no kind for: a lock or statement timeout, a deadlock, what a trigger
/// raises, and everything else.
pub(crate) fn has_no_kind(error: &Error) -> bool {
    unknown_message(error).is_some()
}

/// The database's words for an error that diesel has no kind for.
pub(crate) fn unknown_message(error: &Error) -> Option<&str> {
    match error {
        Error::DatabaseError(DatabaseErrorKind::Unknown, about) => Some(about.message()),
        _ => None,
    }
}

/// An error with its causes, each of which says what happened once.
pub(crate) struct Causes<'a>(pub(crate) &'a (dyn std::error::Error + 'static));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
