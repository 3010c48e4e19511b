//! The server's errors, as diesel-async reports PostgreSQL's, and every predicate on them.

use diesel::result::{DatabaseErrorKind, Error};

/// The server's errors, as diesel-async reports PostgreSQL's: most have no kind of their own (H9).
pub(super) fn error(kind: DatabaseErrorKind, message: &str) -> Error {
    Error::DatabaseError(kind, Box::new(message.to_owned()))
}

pub(super) fn connection_lost() -> Error {
    error(DatabaseErrorKind::ClosedConnection, "connection closed")
}

pub(super) fn message_of(error: &Error) -> &str {
    match error {
        Error::DatabaseError(_, about) => about.message(),
        _ => "",
    }
}

pub(super) fn is_lock_timeout(error: &Error) -> bool {
    message_of(error).contains("lock timeout")
}
