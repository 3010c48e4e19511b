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
            // It is found out in a later turn.
            Err(error) if error.is_of_no_answer() => return Ok(Turn::Lost),
            Ok(Resolved::Applied) => End { outcome: "applied", because: None },
            // A worker that died before it wrote that down, or a slow one.
            _ if self.was_applied(bulk, item).await? => End { outcome: "applied", because: None },
            Ok(_) => End { outcome: "already", because: None },
            Err(refused) => End { outcome: "refused", because: Some(refused.to_string()) },
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
