//! Every judgement about an error of SQLite. What its text says is judged where diesel's error is held, in
//! `src/error.rs`, because rooms below the stores hold one, too.

use diesel::result::{DatabaseErrorKind, Error};

use crate::store::StoreError;

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

/// Whether a `COMMIT` that ended so has certainly written nothing (G7).
pub(super) fn is_certain_at_commit(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(DatabaseErrorKind::ForeignKeyViolation, _))
}
