//! [`Commit`]: the outcome of a guarded write, and how a phase can break the rules of its transaction.

use super::StoreError;

/// The outcome of a guarded write. Never a guess (G7).
#[derive(Debug)]
pub enum Commit<T = ()> {
    /// Durable.
    Done(T),
    /// The lease is another holder's, or the key of a row that was to be created has one: nothing was
    /// written (G3).
    Fenced,
    /// The phase broke the rules of its transaction: nothing was written by us.
    Refused(Refusal),
    /// Certainly not committed.
    Failed(StoreError),
    /// Sent, and no answer came: resolve it by [`Right::Own`](super::Right::Own) before anything else.
    Unknown(StoreError),
}

impl Commit {
    /// The outcome of a guarded write that committed by itself. `false`: the row is not as the guard says.
    #[cfg(any(feature = "postgres", feature = "simulation"))]
    pub(super) fn of(written: Result<bool, StoreError>) -> Self {
        match written {
            Ok(true) => Self::Done(()),
            Ok(false) => Self::Fenced,
            Err(error @ (StoreError::NoConnection(_) | StoreError::Locked)) => Self::Failed(error),
            Err(error) if error.is_from_server() => Self::Failed(error),
            Err(error) => Self::Unknown(error),
        }
    }
}

impl<T> Commit<T> {
    /// The same, with what is known of a durable one replaced.
    pub(crate) fn map<U>(self, done: impl FnOnce(T) -> U) -> Commit<U> {
        match self {
            Self::Done(known) => Commit::Done(done(known)),
            Self::Fenced => Commit::Fenced,
            Self::Refused(refusal) => Commit::Refused(refusal),
            Self::Failed(error) => Commit::Failed(error),
            Self::Unknown(error) => Commit::Unknown(error),
        }
    }
}

/// How a phase broke the rules of its transaction (G4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A statement failed, the phase ignored it and returned an output.
    SwallowedError,
    /// The phase ended the transaction itself (a raw `COMMIT` or `ROLLBACK`).
    LeftTransaction,
    /// A nested transaction was neither committed nor rolled back: its future was dropped half-way.
    OpenSavepoint,
    /// A statement's text holds several statements, of which SQLite would execute the first alone.
    SeveralStatements,
    /// A statement would change SQLite's connection for the phases of all scopes.
    ChangesConnection,
    /// The phase changed the role or the search path, and the engine cannot reach its tables.
    OutOfReach,
}

/// Whether diesel takes a nested transaction for open, in one that the engine began. What was executed
/// in it must not be committed: what was to follow never came.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(super) fn is_nested(status: &diesel::connection::TransactionManagerStatus) -> bool {
    // In an error, or in no transaction at all, the rule is another one, and found by the database.
    matches!(status.transaction_depth(), Ok(Some(depth)) if depth.get() > 1)
}
