//! The engine with one guarantee broken on purpose: what the kit for crash tests has to find, or it
//! is no kit. Each asks whether its mutant is on, which only a plan of the explorer can say.

use chrono::{DateTime, Utc};

use super::moved::Moved;
use super::run::Run;
use crate::definition::Phase;
use crate::moment::Moment;
use crate::phase::{DerivedKey, Reply, StagedJob};
use crate::store::{Claim, Commit, Settles, Store, Transaction, whole_millis};

impl<S: Store, A: Send + Sync + 'static> Run<S, A> {
    pub(super) async fn mutant_commit(
        &self,
        phase: &'static Phase,
        tx: S::Transaction,
        moved: &Moved,
        jobs: &[StagedJob],
    ) -> Commit {
        if mutated!(AssumeCommitted) {
            let commit = committing!(phase.name, BeforeCommit to AfterCommit, {
                tx.commit(&self.guard(), &self.change(moved), jobs).await
            });
            return match commit {
                Commit::Unknown(_) => Commit::Done,
                commit => commit,
            };
        }
        if mutated!(NoFence) {
            return committing!(phase.name, BeforeCommit to AfterCommit, {
                // Whoever was overtaken would be fenced.
                match self.is_overtaken().await {
                    true => tx.commit_reservation().await,
                    false => tx.commit(&self.guard(), &self.change(moved), jobs).await,
                }
            });
        }
        // The business writes by themselves, and the recovery point afterwards.
        let commit = committing!(phase.name, BeforeCommit to AfterCommit, {
            tx.commit_reservation().await
        });
        match commit {
            Commit::Done => self.core.store.write(&self.guard(), &self.change(moved)).await,
            commit => commit,
        }
    }
}

impl<S: Store, A: Send + Sync + 'static> Run<S, A> {
    /// A transaction that is open during a call.
    pub(super) async fn transaction_over_call(&self) -> Option<S::Transaction> {
        if !mutated!(TransactionOverCall) {
            return None;
        }
        let isolation = crate::definition::Isolation::ReadCommitted;
        self.core.store.begin(isolation, &self.guard()).await.ok().flatten()
    }

    async fn is_overtaken(&self) -> bool {
        #[cfg(feature = "simulation")]
        if crate::simulation::is_simulated() {
            let row = self.core.store.read(&self.holder.scope, &self.holder.key).await;
            let token = self.lease.token();
            // A row that is not committed yet is nobody else's.
            return row.is_ok_and(|row| row.is_some_and(|row| row.lease_token != token));
        }
        crate::fault::is_overtaken()
    }
}

/// The claim of whoever asks about a commit, on the lease of whoever holds it.
pub(super) async fn claim<'a>(store: &impl Store, claim: Claim<'a>) -> Claim<'a> {
    if !mutated!(TakeOverWithoutToken) {
        return claim;
    }
    match store.read(claim.scope, claim.key).await {
        Ok(Some(row)) => Claim { lease_token: row.lease_token, ..claim },
        _ => claim,
    }
}

/// Whether the row has the intent of the commit that is asked about.
pub(super) fn intends(intends: bool) -> bool {
    intends || mutated!(AssumeIntent)
}

/// Another key in each attempt.
pub(super) fn key(key: DerivedKey) -> DerivedKey {
    match mutated!(FreshDerivedKey) {
        true => DerivedKey::new(crate::chance::uuid().simple().to_string()),
        false => key,
    }
}

/// The reply made once more for its first client, at a later time.
pub(super) fn told(mut reply: Reply) -> Reply {
    if mutated!(ReplyBuiltTwice) {
        reply.body.extend_from_slice(b" ");
    }
    reply
}

/// When the lease was last known to be ours.
pub(super) fn confirmed(sent: Moment) -> Moment {
    match mutated!(ConfirmWhenRead) {
        true => Moment::now(),
        false => sent,
    }
}

/// The creation time as the attempt that creates the row sees it.
pub(super) fn created_at(created_at: DateTime<Utc>) -> DateTime<Utc> {
    match mutated!(PreciseCreatedAt) {
        true => created_at,
        false => whole_millis(created_at),
    }
}

/// Whether the lease is over for a call that is under way.
pub(super) fn lapsed(lapsed: bool) -> bool {
    lapsed && !mutated!(CallWithoutLease)
}

/// Whether a row was left under the token of the holder that asks.
pub(super) fn under_our_token(ours: bool) -> bool {
    ours || mutated!(AskWithoutToken)
}

/// What a release settles.
pub(super) fn released(mut released: Moved) -> Moved {
    if mutated!(WindowFromRelease) {
        released.settles = Settles::Window;
    }
    released
}
