//! The engine with one guarantee broken on purpose. A kit for crash tests that does not find each of these proves
//! nothing. Each asks whether its mutant is on, which only a plan of the explorer can say.

#![cfg(feature = "fault-injection")]

use super::Run;
use super::transition::Transition;
use super::writing::Writing;
use crate::job::StagedJob;
use crate::phase::{DerivedKey, Reply};
use crate::store::{Claim, Commit, Store, Transaction, TransactionUnderFaults};

impl<S: Store> Run<S> {
    /// The commit of a transaction, as these mutants make it; the writing itself where none is on.
    pub(super) async fn mutant_commit<'r>(
        &self,
        writing: Option<Writing<'r, S>>,
        transition: &Transition,
        jobs: &[StagedJob],
    ) -> Result<Commit, Option<Writing<'r, S>>> {
        let phase = self.phase_of(writing.as_ref(), transition);
        let tx = match writing {
            Some(Writing::Open(tx) | Writing::Reserved(_, tx))
                if mutated!(SecondCommit) || mutated!(NoFence) || mutated!(AssumeCommitted) =>
            {
                tx
            }
            writing => return Err(writing),
        };
        if mutated!(AssumeCommitted) {
            let commit = committing!(phase, transition.kind(), {
                tx.commit(&self.guard(), &transition.change(), jobs).await
            });
            return Ok(match commit {
                Commit::Unknown(_) => Commit::Done(()),
                commit => commit,
            });
        }
        if mutated!(NoFence) {
            return Ok(committing!(phase, transition.kind(), {
                // The replaced holder would be fenced.
                match self.is_overtaken().await {
                    true => tx.commit_unguarded().await,
                    false => tx.commit(&self.guard(), &transition.change(), jobs).await,
                }
            }));
        }
        // The business writes by themselves, and the recovery point afterwards.
        let commit = committing!(phase, transition.kind(), tx.commit_unguarded().await);
        Ok(match commit {
            Commit::Done(()) => {
                self.core.store.write_change(&self.guard(), &transition.change(), None).await
            }
            commit => commit,
        })
    }

    /// A transaction that is open during a call.
    pub(super) async fn transaction_over_call(&self) -> Option<S::Transaction> {
        if !mutated!(TransactionOverCall) {
            return None;
        }
        let isolation = crate::definition::Isolation::ReadCommitted;
        self.core.store.begin_transaction(isolation, &self.guard()).await.ok().flatten()
    }

    async fn is_overtaken(&self) -> bool {
        simulated! {
            if crate::simulation::is_simulated() {
                let row = self.core.store.read_key(&self.context.scope, &self.context.key).await;
                let token = self.lease.token();
                // No other process has a row that is not committed yet.
                return row.is_ok_and(|row| row.is_some_and(|row| row.lease_token != token));
            }
        }
        crate::fault::is_overtaken()
    }
}

/// The claim of a process that resolves its unknown commit, on the lease of the current holder.
pub(super) async fn claim<'a>(store: &impl Store, claim: Claim<'a>) -> Claim<'a> {
    if !mutated!(TakeOverWithoutToken) {
        return claim;
    }
    match store.read_key(claim.scope, claim.key).await {
        Ok(Some(row)) => Claim { lease_token: row.lease_token, ..claim },
        _ => claim,
    }
}

/// Another key in each attempt.
pub(super) fn key(key: DerivedKey) -> DerivedKey {
    match mutated!(FreshDerivedKey) {
        true => DerivedKey::new(crate::chance::uuid().simple().to_string()),
        false => key,
    }
}

/// The reply made once more for its first client, at a later time.
pub(super) fn reply(mut reply: Reply) -> Reply {
    if mutated!(ReplyBuiltTwice) {
        reply.body.extend_from_slice(b" ");
    }
    reply
}
