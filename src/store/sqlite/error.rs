//! Every judgement about an error of SQLite: by its kind where diesel has one, and otherwise by its text, which is
//! SQLite's own in every language.

use diesel::result::{DatabaseErrorKind, Error};

use crate::error::unknown_message;
use crate::store::StoreError;

/// Another process writes.
const LOCKED: &str = "database is locked";

/// The file, or its folder, may not be written.
const READ_ONLY: &str = "attempt to write a readonly database";

/// Among diesel's errors: the statements of a phase took longer than they may.
#[derive(Debug, thiserror::Error)]
#[error("the statements took longer than their time limit")]
pub(super) struct TimeLimitPassed;

/// What the store says of an error of the statements that a phase handed over.
pub(super) fn not_written(error: Error) -> StoreError {
    match error {
        Error::QueryBuilderError(error) if error.is::<TimeLimitPassed>() => StoreError::TimeLimit,
        error => StoreError::database("write the phase", error),
    }
}

/// Whether a write was refused because the database can only be read.
pub(super) fn is_of_reading_only(error: &StoreError) -> bool {
    error.of_diesel().is_some_and(|error| {
        crate::error::is_of_reading_only(error) || unknown_message(error) == Some(READ_ONLY)
    })
}

/// Whether another process was writing to the file.
pub(super) fn is_of_another_writer(error: &StoreError) -> bool {
    error.of_diesel().and_then(unknown_message) == Some(LOCKED)
}

/// Whether a `COMMIT` that ended so has certainly written nothing (G7).
pub(super) fn is_certain_at_commit(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(DatabaseErrorKind::ForeignKeyViolation, _))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DbError;

    /// The text is in the table of [`DbError::kind`], too, which every store shares.
    #[test]
    fn a_write_to_what_can_only_be_read_is_named_for_what_it_is() {
        let refused =
            || Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(READ_ONLY.to_owned()));
        assert!(is_of_reading_only(&StoreError::database("write the phase", refused())));
        assert_eq!(DbError(refused()).to_string(), "read-only transaction");
    }

    #[test]
    fn the_kind_of_an_error_names_its_cause() {
        for (told, kind) in [
            ("database or disk is full", "the disk is full"),
            ("no such table: rides", "a table is missing"),
            ("no such column: amount", "a column is missing"),
            ("something: else", "an error that the database reported"),
        ] {
            let error = Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(told.to_owned()));
            assert_eq!(DbError(error).kind(), kind, "{told}");
        }
    }
}
