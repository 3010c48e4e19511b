//! [`Writing`]: what a phase writes, on its way to the database, and where the row is before it gets there.

use crate::definition::Isolation;
use crate::store::{NewRow, Statements, Store, Transaction};

/// What a phase writes, and how it reaches the database together with the phase's transition.
pub(in crate::engine) enum Writing<'r, S: Store> {
    /// In this transaction.
    Open(S::Transaction),
    /// The same, and the row itself was created in it.
    Reserved(&'r NewRow<'r>, S::Transaction),
    /// Statements that a phase handed over.
    Statements(Isolation, Statements<S>),
    /// The same, and the row is created along with them.
    Create(&'r NewRow<'r>, Statements<S>),
}

/// Where the key's row is before the commit. The answer is judged by it when the [`Writing`] is sent and gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowBefore {
    /// In the table: the outcome of the commit can be asked for there.
    Committed,
    /// In the same transaction only.
    Reserved,
    /// Nowhere: the commit creates it.
    Absent,
}

impl<'r, S: Store> Writing<'r, S> {
    /// The row that is still to be committed.
    pub(super) fn new_row(&self) -> Option<&'r NewRow<'r>> {
        match self {
            Self::Open(_) | Self::Statements(..) => None,
            Self::Reserved(row, _) | Self::Create(row, _) => Some(row),
        }
    }

    pub(super) fn row_before(&self) -> RowBefore {
        match self {
            Self::Open(_) | Self::Statements(..) => RowBefore::Committed,
            Self::Reserved(..) => RowBefore::Reserved,
            Self::Create(..) => RowBefore::Absent,
        }
    }

    /// Undoes what was written so far.
    pub(super) async fn undo(self) {
        if let Self::Open(tx) | Self::Reserved(_, tx) = self {
            tx.rollback().await;
        }
    }
}
