//! [`DbError`]: a diesel error that shows its kind and never its text.
//!
//! A database's message may repeat a value (`Key (email)=(…) already exists`), and a value must not
//! reach a log (G19). The engine keeps the error for classification and prints only what it is.

use std::fmt;

use diesel::result::{DatabaseErrorKind, Error};

/// A database error whose `Display` and `Debug` tell its kind only.
pub struct DbError(pub(crate) Error);

impl DbError {
    /// What happened, in words without values.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if let Error::DatabaseError(DatabaseErrorKind::Unknown, about) = &self.0
            && is_of_a_pooler(about.message())
        {
            return POOLER;
        }
        match &self.0 {
            Error::NotFound => "no row where one was expected",
            Error::DeserializationError(_) => "a value of an unexpected type",
            Error::SerializationError(_) => "a value that has no SQL form",
            Error::AlreadyInTransaction => "a transaction is open already",
            Error::NotInTransaction => "no transaction is open",
            Error::BrokenTransactionManager => "the connection's transaction state is broken",
            Error::DatabaseError(kind, _) => match kind {
                DatabaseErrorKind::UniqueViolation => "unique violation",
                DatabaseErrorKind::ForeignKeyViolation => "foreign key violation",
                DatabaseErrorKind::NotNullViolation => "not-null violation",
                DatabaseErrorKind::CheckViolation => "check violation",
                DatabaseErrorKind::SerializationFailure => "serialization failure",
                DatabaseErrorKind::ReadOnlyTransaction => "read-only transaction",
                DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => {
                    "connection lost"
                }
                _ => "an error that the database reported",
            },
            _ => "an error of the query or the driver",
        }
    }

    /// The diesel error itself. Its text may hold values of rows: keep it out of logs.
    #[must_use]
    pub fn into_inner(self) -> Error {
        self.0
    }

    /// Whether running the same transaction once more may succeed (H9): told by the kind where
    /// diesel has one (40001), and otherwise by what is known to be passing. A deadlock (40P01), a
    /// lock or statement timeout all arrive as `Unknown`, without an SQLSTATE.
    pub(crate) fn is_worth_a_rerun(&self) -> bool {
        matches!(
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

    /// Whether the database said something that diesel has no kind for: a lock or statement timeout, a
    /// deadlock, what a trigger raises, and everything else.
    pub(crate) fn has_no_kind(&self) -> bool {
        matches!(self.0, Error::DatabaseError(DatabaseErrorKind::Unknown, _))
    }

    /// Whether the connection itself is gone.
    pub(crate) fn is_connection_lost(&self) -> bool {
        matches!(
            self.0,
            Error::DatabaseError(
                DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection,
                _,
            )
        )
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl fmt::Debug for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DbError({})", self.kind())
    }
}

impl From<Error> for DbError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

/// What to do about a pooler that hands one client's prepared statements to another (H11).
pub(crate) const POOLER: &str = "the pooler mixes up prepared statements: use session pooling, or \
    PgBouncer 1.21 and newer with max_prepared_statements above zero";

/// Whether the server speaks of a prepared statement that exists already, does not, or has other
/// parameters: each is another client's. Recognised in a server that speaks English.
pub(crate) fn is_of_a_pooler(message: &str) -> bool {
    message.contains("prepared statement \"")
}
