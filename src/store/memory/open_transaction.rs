//! [`MemoryTransaction`]: an open transaction, on the client's side.

use diesel::QueryResult;
use futures_util::FutureExt;

use super::Memory;
use super::connection::MemoryConnection;
use super::error::{MARK_FENCED, message_of, refusal};
use super::jobs::staged;
use super::link::ConnectionGuard;
use super::next_state::{Guarded, NextState};
use super::record::JobRecord;
use super::round_trips::commit;
use crate::error::is_lost;
use crate::job::StagedJob;
use crate::store::{Change, Commit, Guard, StoreError, Transaction};

/// An open transaction. Dropped, it closes its connection, and the server undoes it.
#[doc(hidden)]
pub struct MemoryTransaction(pub(super) MemoryConnection);

impl Transaction<Memory> for MemoryTransaction {
    fn connection(&mut self) -> Result<&mut MemoryConnection, StoreError> {
        Ok(&mut self.0)
    }

    async fn commit(self, guard: &Guard<'_>, change: &Change<'_>, jobs: &[StagedJob]) -> Commit {
        let (guarded, next) = (Guarded::by(guard), NextState::of_phase(change));
        let jobs: Vec<JobRecord> = jobs.iter().map(|job| staged(guard, job)).collect();
        let connection = self.0.0;
        let answer =
            connection.ask("commit", |session| commit(session, guarded, next, jobs).boxed()).await;
        committed(connection, answer)
    }

    async fn rollback(self) {
        let connection = self.0.0;
        let rolled_back = connection.ask("rollback", |session| {
            async {
                session.rollback();
                Ok(())
            }
            .boxed()
        });
        // Otherwise the connection is closed, and the server undoes the transaction by itself.
        if rolled_back.await.is_ok() {
            connection.give_back();
        }
    }
}

/// The outcome of a transaction by its answer.
pub(super) fn committed(connection: ConnectionGuard, answer: QueryResult<()>) -> Commit {
    let Err(error) = answer else {
        connection.give_back();
        return Commit::Done(());
    };
    if is_lost(&error) {
        return Commit::Unknown(StoreError::database("commit", error));
    }
    connection.give_back();
    let message = message_of(&error);
    if message.contains(MARK_FENCED) {
        Commit::Fenced
    } else if let Some(refusal) = refusal(message) {
        Commit::Refused(refusal)
    } else {
        Commit::Failed(StoreError::database("write the recovery point", error))
    }
}

opaque! {
    [] MemoryTransaction;
}
