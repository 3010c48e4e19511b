//! The server's errors, as diesel-async reports PostgreSQL's, and every predicate on them.

use diesel::result::{DatabaseErrorKind, Error};

use crate::store::Refusal;

/// Where the guarded update finds no row, what is behind it comes to nothing.
pub(super) const MARK_FENCED: &str = "atomic_phases:fenced";
pub(super) const MARK_LEFT: &str = "atomic_phases:left";
pub(super) const MARK_EXISTS: &str = "atomic_phases:exists";

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

/// Why the engine's guarded update came to nothing.
pub(super) fn refusal(message: &str) -> Option<Refusal> {
    if message.contains(MARK_LEFT) {
        Some(Refusal::LeftTransaction)
    } else if message.contains("current transaction is aborted") {
        Some(Refusal::SwallowedError)
    } else {
        None
    }
}
