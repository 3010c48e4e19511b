//! What crash tests need of [`Memory`].

use diesel::QueryResult;
use futures_util::FutureExt;

use super::open_transaction::{MemoryTransaction, committed};
use super::record::{KeyRecord, Place};
use super::session::Session;
use super::statements::Wait;
use super::{Memory, place_of};
use crate::definition::Isolation;
use crate::key::{IdempotencyKey, Scope};
use crate::store::{Commit, StoreError, StoreUnderFaults, TransactionUnderFaults};

impl StoreUnderFaults for Memory {
    const CONCURRENT: bool = true;

    const IN_MEMORY: bool = true;

    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        let place = place_of(scope, key);
        self.ask_again("pass time", |session| pass_time(session, place).boxed()).await
    }

    async fn replicate(&self) -> Result<(), StoreError> {
        let mut state = self.database().state();
        state.replicated = state.commits;
        Ok(())
    }

    async fn fail_over(&self) -> Result<(), StoreError> {
        let mut state = self.database().state();
        let lost = state.undo.iter().filter(|(commit, _)| *commit > state.replicated).count();
        if state.commits - state.replicated > lost as u64 {
            let error = "more commits were made than a failover in memory can lose";
            return Err(StoreError::Configuration(error.to_owned()));
        }
        state.lose(lost);
        Ok(())
    }
}

impl TransactionUnderFaults for MemoryTransaction {
    async fn cut(&mut self) {
        let cut = self.0.0.ask("cut", |session| {
            async {
                session.end();
                Ok(())
            }
            .boxed()
        });
        let _ = cut.await;
    }

    async fn commit_unguarded(self) -> Commit {
        let connection = self.0.0;
        let answer =
            connection.ask("commit the reservation", |session| session.commit().boxed()).await;
        committed(connection, answer)
    }
}

async fn pass_time(session: &mut Session, place: Place) -> QueryResult<()> {
    session.begin(Isolation::ReadCommitted)?;
    let pass = |key: &mut KeyRecord, _| {
        key.locked_until = key.locked_until.map(|_| key.created_at);
        key.run_after = key.run_after.map(|_| key.created_at);
    };
    let passed = session.update_key(&place, Wait::ForTheLock, |_, _| true, pass).await;
    session.conclude(passed).await.map(drop)
}
