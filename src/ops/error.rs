//! [`OpsError`]: why an operator was not served.

use super::Permissions;
use crate::engine::{EraseError, ResolveError};
use crate::store::StoreError;

/// Why an operator was not served. Nothing was changed, unless the store is unavailable: then the audit
/// tells.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The actor lacks these permissions.
    #[error("this needs the permission to {needs}")]
    NotAllowed {
        /// What is missing.
        needs: Permissions,
    },
    /// There is no such request, or its scope is none that the actor may see.
    #[error("there is no such request")]
    NoSuchRequest,
    /// There is no such job that is a dead letter, or its scope is none that the actor may see.
    #[error("there is no dead job of this id")]
    NoSuchJob,
    /// There is no such bulk act, or it is none that the actor may see.
    #[error("there is no such bulk act")]
    NoSuchBulk,
    /// There is no such foreign phase that this build knows.
    #[error("this build knows no foreign phase of this name in a definition of that name")]
    NoSuchPhase,
    /// A pause holds back the requests of every scope, and the actor may see some of them only.
    #[error("a pause is of every scope, and you may act on some of them only")]
    NotEveryScope,
    /// No clock holds the end of such a pause.
    #[error(
        "a pause is ten years at most; one that is to last has no end, until an operator ends it"
    )]
    TooLong,
    /// The row is not as the actor saw it. Look again, then decide again.
    #[error("it has moved on since it was looked at: look again")]
    MovedOn,
    /// An act needs a reason.
    #[error("a reason is 1 to 500 characters, and none of them a control character")]
    BadReason,
    /// The filter cannot work.
    #[error("{0}")]
    BadFilter(&'static str),
    /// The cursor is of another filter, or was cut off.
    #[error("the cursor is of another filter, or was cut off: begin anew")]
    BadCursor,
    /// The word was not taken.
    #[error("{0}")]
    Resolve(#[source] ResolveError),
    /// The request was not erased.
    #[error("{0}")]
    Erase(#[source] EraseError),
    /// A stored value cannot be read here.
    #[error("the stored {what} cannot be read here: {why}")]
    Unreadable {
        /// Which value.
        what: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The store could not be asked or written.
    #[error("the store is unavailable: {0}")]
    Unavailable(#[source] StoreError),
}

impl From<StoreError> for OpsError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unreadable { column } => {
                Self::Unreadable { what: column, why: "written by a newer version, or by hand" }
            }
            error => Self::Unavailable(error),
        }
    }
}

impl From<ResolveError> for OpsError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::NoSuchKey => Self::NoSuchRequest,
            ResolveError::MovedOn => Self::MovedOn,
            ResolveError::Unavailable(error) => Self::Unavailable(error),
            error => Self::Resolve(error),
        }
    }
}

impl From<EraseError> for OpsError {
    fn from(error: EraseError) -> Self {
        match error {
            EraseError::NoSuchKey => Self::NoSuchRequest,
            EraseError::MovedOn => Self::MovedOn,
            EraseError::Unavailable(error) => Self::Unavailable(error),
            error => Self::Erase(error),
        }
    }
}
