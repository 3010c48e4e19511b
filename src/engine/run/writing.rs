//! [`Writing`]: what a phase writes, on its way to the database.

use crate::definition::Isolation;
use crate::store::{NewRow, Statements, Store, Transaction};

/// What a phase writes, and how it reaches the database together with the phase's transition.
pub(super) enum Writing<'r, S: Store> {
    /// In this transaction.
    Open(S::Transaction),
    /// The same, and the row itself was created in it.
    Reserved(S::Transaction),
    /// Statements that a phase handed over.
    Statements(Isolation, Statements<S>),
    /// The same, and the row is created along with them.
    Create(&'r NewRow<'r>, Statements<S>),
}

impl<S: Store> Writing<'_, S> {
    /// Whether the row is created by the same commit, and nothing of it is there before.
    pub(super) fn creates_row(&self) -> bool {
        matches!(self, Self::Create(..))
    }

    /// Whether the run has no committed row yet, which could be asked for the outcome of the commit.
    pub(super) fn is_of_new_row(&self) -> bool {
        matches!(self, Self::Reserved(_) | Self::Create(..))
    }

    /// Undoes what was written so far.
    pub(super) async fn undo(self) {
        if let Self::Open(tx) | Self::Reserved(tx) = self {
            tx.rollback().await;
        }
    }
}
