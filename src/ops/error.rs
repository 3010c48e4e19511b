//! [`OpsError`]: why an operation of an operator failed.

use super::Permissions;
use crate::engine::{EraseError, ResolveError};
use crate::store::StoreError;

/// Why an operation of an operator failed. Nothing was changed, except possibly if the store is unavailable:
/// then the audit shows whether the act was applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The actor lacks these permissions.
    #[error("this needs the permission to {needs}: ask an operator who has it")]
    NotAllowed {
        /// What is missing.
        needs: Permissions,
    },
    /// There is no such request, or the actor may not see its scope.
    #[error("there is no such request: check its id, or its scope and key")]
    NoSuchRequest,
    /// There is no such dead job, or the actor may not see its scope.
    #[error("there is no dead job with this id: list the dead jobs")]
    NoSuchJob,
    /// There is no such bulk act, or the actor may not see it.
    #[error("there is no such bulk act: list them")]
    NoSuchBulk,
    /// This build knows no such foreign phase.
    #[error(
        "this build has no foreign phase of this name in a definition of this name: list the definitions"
    )]
    NoSuchPhase,
    /// A pause affects the requests of every scope, but the actor may see only some scopes.
    #[error(
        "a pause affects every scope, but you may act on some scopes only: ask an operator of every scope"
    )]
    NotEveryScope,
    /// The pause would be longer than ten years.
    #[error("a pause lasts ten years at most; without an end, it lasts until an operator ends it")]
    TooLong,
    /// The pause would be over before an engine reads it.
    #[error("a pause lasts a second at least; without an end, it lasts until an operator ends it")]
    TooShort,
    /// As many phases are paused as may be.
    #[error(
        "a thousand phases are paused, and an engine reads no more: end pauses that are no longer needed"
    )]
    TooManyPauses,
    /// The row has changed since the actor saw it. Read it again, then decide again.
    #[error("it has changed since it was read: read it again")]
    MovedOn,
    /// An act needs a reason.
    #[error("a reason is 1 to 500 characters, and none of them a control character")]
    BadReason,
    /// The filter is invalid.
    #[error("{0}")]
    BadFilter(&'static str),
    /// A page cannot have so many rows.
    #[error(
        "{rows} rows were asked for, and a page has 1 to {most}: ask for such a number, and go on with the page's cursor, \
         if it has one"
    )]
    BadPage {
        /// How many were asked for.
        rows: u32,
        /// The most rows that a page of this list has.
        most: u32,
    },
    /// The cursor belongs to another filter, or is incomplete.
    #[error(
        "the cursor belongs to another filter, or is incomplete: start again at the first page"
    )]
    BadCursor,
    /// The resolution was refused.
    #[error(transparent)]
    Resolve(ResolveError),
    /// The request was not erased.
    #[error(transparent)]
    Erase(EraseError),
    /// A stored value cannot be read here.
    #[error(
        "the stored {what} cannot be read here: {why}; ask a process with the build and the codec that wrote it"
    )]
    Unreadable {
        /// Which value.
        what: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The store could not be read or written.
    #[error("the store is unavailable; the audit says whether an act was done")]
    Unavailable(#[source] StoreError),
}

impl OpsError {
    /// Whether it is not known what became of the act: the audit tells.
    pub(crate) fn is_of_no_answer(&self) -> bool {
        let is_of_a_task = matches!(self, Self::Resolve(ResolveError::TaskLost));
        is_of_a_task || matches!(self, Self::Unavailable(_)) || self.is_of_a_panic()
    }

    /// Whether the act's task panicked, as it would again.
    pub(crate) fn is_of_a_panic(&self) -> bool {
        matches!(self, Self::Resolve(ResolveError::TaskPanicked))
    }
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

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_chain_of_causes_says_each_cause_once() {
        let deadlock = || StoreError::Database {
            doing: "read the key",
            error: diesel::result::Error::RollbackTransaction.into(),
        };
        for error in [
            OpsError::Resolve(ResolveError::Unavailable(deadlock())),
            OpsError::Erase(EraseError::Unavailable(deadlock())),
            OpsError::Resolve(ResolveError::OtherType { why: None }),
            OpsError::Erase(EraseError::InUse),
            OpsError::Unavailable(deadlock()),
        ] {
            let mut texts = Vec::new();
            let mut cause: Option<&dyn Error> = Some(&error);
            while let Some(error) = cause {
                texts.push(error.to_string());
                cause = error.source();
            }
            for (index, text) in texts.iter().enumerate() {
                let others = texts[index + 1..].iter();
                assert!(others.clone().all(|other| !text.contains(other.as_str())), "{texts:?}");
            }
        }
    }
}
