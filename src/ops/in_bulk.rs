//! One request's turn in a bulk act, by a worker on behalf of the operator who started it.
//!
//! The act is guarded by the row's version and audited in its own transaction, under the bulk act's id. So it is
//! done once whatever becomes of the worker, and one that comes behind a dead worker reads in the audit what was
//! done.

use super::bulk::BulkAct;
use super::request::RowVersion;
use super::{Actor, Ops, OpsError};
use crate::engine::{Engine, Resolution, Resolved};
use crate::observe;
use crate::store::audit::{AuditEntry, Audited};
use crate::store::bulk::{BulkItem, BulkRow, SettledItem};
use crate::store::operators::OperatorStore;
use crate::store::{Status, StoreError};

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is written what became of the request.
    Settled,
    /// The bulk act was stopped before the request's turn.
    LeftAsItIs,
    /// Another worker is at the bulk act by now.
    Lost,
}

/// A worker's slice of a bulk act.
pub(crate) struct Slice<'a> {
    pub(crate) bulk: &'a BulkRow,
    pub(crate) act: BulkAct,
    pub(crate) token: i64,
}

/// What became of a request.
struct End {
    outcome: &'static str,
    because: Option<String>,
}

impl End {
    /// What became of the request, unless the audit says that the act was applied to it. `None`: of a task that was lost
    /// with its runtime, that is for another worker to find out. One that panicked would do so in each turn, and the
    /// requests behind this one would not be reached: it is refused, and the operator reads why.
    fn of(done: Result<Resolved, OpsError>) -> Option<Self> {
        Some(match done {
            Ok(Resolved::Applied) => Self { outcome: "applied", because: None },
            Ok(_) => Self { outcome: "already", because: None },
            Err(error) if error.is_of_no_answer() && !error.is_of_a_panic() => return None,
            Err(refused) => Self { outcome: "refused", because: Some(refused.to_string()) },
        })
    }
}

impl<S: OperatorStore, A: Send + Sync + 'static> Engine<S, A> {
    /// The operator who started a bulk act, and the act; `None` where this build does not know it: it is left
    /// to one that does.
    pub(crate) fn starter_of(&self, bulk: &BulkRow) -> Option<(Ops<S>, BulkAct)> {
        let actor = Actor::of_bulk(bulk.actor.clone(), bulk.limits.clone()?);
        Some((self.ops(actor), BulkAct::named(&bulk.act)?))
    }
}

impl<S: OperatorStore> Ops<S> {
    /// Does the act, or writes down why not.
    pub(crate) async fn take_turn(
        &self,
        slice: &Slice<'_>,
        item: &BulkItem,
    ) -> Result<Turn, StoreError> {
        let Slice { bulk, act, .. } = *slice;
        let mut entry = self.entry(act.as_str(), Some(item.request_id), &bulk.reason);
        entry.bulk_id = Some(bulk.id);
        let version = RowVersion(item.seen.clone());
        let done = match act {
            BulkAct::Retry => {
                let retry = Resolution::retry();
                self.try_resolve(&version, &retry, Status::FailedRetryable, &mut entry).await
            }
            BulkAct::Erase => self.try_erase(&version, &mut entry).await,
        };
        let end = match done {
            Err(OpsError::Unavailable(error)) => return Err(error),
            done => End::of(done),
        };
        let end = match end {
            // It is found out in a later turn.
            None => return Ok(Turn::Lost),
            Some(end) if end.outcome == "applied" => end,
            // A worker that died before it wrote that down, or a slow one; or a task that panicked behind its commit.
            Some(_) if self.was_applied(bulk, item).await? => {
                End { outcome: "applied", because: None }
            }
            Some(end) => end,
        };
        entry.outcome = end.outcome;
        entry.refused_because.clone_from(&end.because);
        entry.after.clone_from(&entry.before);
        // What was done was audited with its write.
        let audit = (end.outcome != "applied").then_some(&entry);
        self.settle_item(slice, item, &end, audit).await
    }

    /// For a bulk act that was stopped while a worker processed a slice. Does not act on the request, but counts it if that
    /// worker acted on it and died before it wrote down the outcome.
    pub(crate) async fn count_if_done(
        &self,
        slice: &Slice<'_>,
        item: &BulkItem,
    ) -> Result<Turn, StoreError> {
        match self.was_applied(slice.bulk, item).await? {
            true => {
                let done = End { outcome: "applied", because: None };
                self.settle_item(slice, item, &done, None).await
            }
            false => Ok(Turn::LeftAsItIs),
        }
    }

    async fn settle_item(
        &self,
        slice: &Slice<'_>,
        item: &BulkItem,
        end: &End,
        audit: Option<&AuditEntry>,
    ) -> Result<Turn, StoreError> {
        let settled = SettledItem {
            bulk_id: slice.bulk.id,
            token: slice.token,
            position: item.position,
            outcome: end.outcome,
            because: end.because.as_deref(),
            audit,
        };
        Ok(match self.core.store.settle_bulk_item(&settled).await? {
            true => {
                observe::operated(slice.act.as_str(), end.outcome);
                Turn::Settled
            }
            false => Turn::Lost,
        })
    }

    /// Whether this bulk act was done on the request.
    async fn was_applied(&self, bulk: &BulkRow, item: &BulkItem) -> Result<bool, StoreError> {
        let is_ours = |act: &Audited| act.outcome == "applied" && act.bulk_id == Some(bulk.id);
        self.audit_has(Some(item.request_id), bulk.started_at, is_ours).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ResolveError;

    #[test]
    fn a_request_whose_task_panics_does_not_keep_those_behind_it_waiting() {
        let end = |error| End::of(Err(OpsError::Resolve(error)));
        let panicked = end(ResolveError::TaskPanicked).unwrap();
        assert_eq!(panicked.outcome, "refused");
        assert!(panicked.because.unwrap().contains("ended in a panic"));
        assert!(end(ResolveError::TaskLost).is_none(), "another worker finds it out");
        assert_eq!(end(ResolveError::OtherType).unwrap().outcome, "refused");
        assert_eq!(End::of(Ok(Resolved::Applied)).unwrap().outcome, "applied");
        assert_eq!(End::of(Ok(Resolved::Already)).unwrap().outcome, "already");
    }
}
