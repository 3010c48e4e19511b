//! [`StoreError`]: why a store failed, and the predicates that the engine needs.

use diesel::result::Error;

use crate::error::{DbError, has_no_kind, is_lost, is_of_a_stale_session};
use crate::setting::SettingError;

/// Why a store failed. Contains no value of a row (G19).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No connection within the pool's time limit, or none could be opened. The text says why; the driver's error is
    /// not kept as a source, because its `Debug` has the URL and what the server said (G19).
    #[error("no database connection: {0}")]
    NoConnection(String),
    /// The database answered with an error, or not at all.
    #[error("the database could not {doing}")]
    Database {
        /// The operation, in words.
        doing: &'static str,
        /// The database's answer.
        #[source]
        error: DbError,
    },
    /// Another transaction holds the lock of the key's row: its holder in its own commit, or in a
    /// phase that keeps the row locked.
    #[error("the key's row is locked by another transaction; try again")]
    Locked,
    /// The statements of a phase took longer than its time limit. They were rolled back.
    #[error(
        "the statements took longer than their time limit, and were rolled back: do less in the phase, or set a \
         longer `timeout`"
    )]
    TimeLimit,
    /// A stored value that this version of the crate cannot read.
    #[error(
        "column {column} of a stored row is not readable: a newer version wrote it, or a person by hand; run the \
         newer version, or correct the row"
    )]
    Unreadable {
        /// The column's name.
        column: &'static str,
    },
    /// A migration failed. The text is all that diesel's error says, which has no cause of its own. It is not kept as a
    /// source, because its `Debug` may repeat what a row has (G19).
    #[error("migration: {0}")]
    Migration(String),
    /// A setting of the store's or of a worker's is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// What is configured cannot work: a URL, which the text does not repeat (G19), a pool, or a definition.
    #[error("{0}")]
    Configuration(String),
}

impl StoreError {
    pub(crate) fn database(doing: &'static str, error: impl Into<DbError>) -> Self {
        Self::Database { doing, error: error.into() }
    }

    /// The error that the database, or its connection, reported through diesel.
    pub(crate) fn of_diesel(&self) -> Option<&Error> {
        match self {
            Self::Database { error, .. } => Some(&error.0),
            _ => None,
        }
    }

    /// Whether no answer came in the time that there was for it.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Database { error, .. } if error.is_unanswered())
    }

    /// Whether the connection is gone or good for nothing, and another one may do better.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        self.of_diesel().is_some_and(|error| is_lost(error) || is_of_a_stale_session(error))
    }

    /// Whether the server may have said that the statement waited too long for a lock.
    pub(crate) fn may_be_of_a_lock(&self) -> bool {
        self.of_diesel().is_some_and(has_no_kind)
    }

    /// What happened, in words without values.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::NoConnection(_) => "no connection",
            Self::Locked => "the row is locked",
            Self::TimeLimit => "the time limit has passed",
            Self::Database { error, .. } => error.kind(),
            Self::Unreadable { .. } => "a stored value is not readable",
            Self::Migration(_) => "a migration failed",
            Self::Setting(_) | Self::Configuration(_) => "the configuration cannot work",
        }
    }

    /// What it was about: names of the schema.
    pub(crate) fn about(&self) -> Option<String> {
        match self {
            Self::Database { error, .. } => error.about(),
            _ => None,
        }
    }

    /// Whether the database itself said no, or the client, so that it is certain that nothing was written.
    pub(crate) fn is_from_server(&self) -> bool {
        self.of_diesel().is_some_and(|error| !is_lost(error))
    }

    /// Whether a statement about many rows was refused, perhaps because of one of them. Nothing was written.
    pub(crate) fn may_be_of_one(&self) -> bool {
        self.is_from_server() || matches!(self, Self::Locked)
    }

    pub(crate) fn is_worth_a_rerun(&self) -> bool {
        match self {
            Self::Database { error, .. } => error.is_worth_a_rerun(),
            Self::NoConnection(_) | Self::Locked => true,
            _ => false,
        }
    }
}
