//! One request's turn in a bulk act, by a worker on behalf of the operator who started it.
//!
//! The act is guarded by the row's version and audited in its own transaction, under the bulk act's id. So it is done once,
//! whatever happens to the worker: a worker that continues after a dead one reads in the audit what was done.

use std::collections::HashSet;

use uuid::Uuid;

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
pub(crate) enum TurnEnd {
    /// It is written what became of the request.
    Settled,
    /// The bulk act was stopped before the request's turn.
    LeftAsItIs,
    /// Another worker is at the bulk act by now.
    Lost,
    /// The act's task panicked, and a commit that it sent may be under way. The request has its next turn when the
    /// slice's lease has expired.
    Panicked,
}

/// A request of a bulk act.
type ItemId = (Uuid, Uuid);

/// The requests at which a worker's act panicked, each until its next turn.
#[derive(Debug, Default)]
pub(crate) struct Panicked(HashSet<ItemId>);

impl Panicked {
    /// Whether the act's task panicked, and did not in the turn before.
    fn is_first(&mut self, place: ItemId, done: &Result<Resolved, OpsError>) -> bool {
        let is_again = self.0.remove(&place);
        let is_first = !is_again && done.as_ref().is_err_and(OpsError::is_of_a_panic);
        if is_first {
            self.0.insert(place);
        }
        is_first
    }
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
    /// What became of the request, unless the audit says that the act was applied to it. An error, if only a later turn can
    /// find that out: another worker's, if the task was lost with its runtime; this worker's next one, if the task panicked,
    /// because a commit that it sent may still be under way (G7). A request whose task panics twice is refused, and the
    /// operator reads why: it may panic in each turn, and then the bulk act would never end.
    fn of(
        done: Result<Resolved, OpsError>,
        place: ItemId,
        panicked: &mut Panicked,
    ) -> Result<Self, TurnEnd> {
        let is_first_panic = panicked.is_first(place, &done);
        Ok(match done {
            Ok(Resolved::Applied) => Self { outcome: "applied", because: None },
            Ok(_) => Self { outcome: "already", because: None },
            Err(_) if is_first_panic => return Err(TurnEnd::Panicked),
            Err(error) if error.is_of_no_answer() && !error.is_of_a_panic() => {
                return Err(TurnEnd::Lost);
            }
            Err(refused) => Self { outcome: "refused", because: Some(refused.to_string()) },
        })
    }
}

impl<S: OperatorStore, A: Send + Sync + 'static> Engine<S, A> {
    /// The operator who started a bulk act, and the act; `None` where this build does not know it: it is left
    /// to one that does. Operators may have their connections in use for long, so a worker searches by its own.
    pub(crate) fn starter_of(&self, bulk: &BulkRow) -> Option<(Ops<S>, BulkAct)> {
        let actor = Actor::of_bulk(bulk.actor.clone(), bulk.limits.clone()?);
        let ops = self.ops(actor).searching_by(self.store().for_workers());
        Some((ops, BulkAct::named(&bulk.act)?))
    }
}

impl<S: OperatorStore> Ops<S> {
    /// Does the act, or writes down why not.
    pub(crate) async fn take_turn(
        &self,
        slice: &Slice<'_>,
        item: &BulkItem,
        panicked: &mut Panicked,
    ) -> Result<TurnEnd, StoreError> {
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
            done => End::of(done, (bulk.id, item.request_id), panicked),
        };
        let end = match end {
            Err(later) => return Ok(later),
            Ok(end) if end.outcome == "applied" => end,
            // A worker that died before it wrote that down, or a slow one; or a task that panicked behind its commit.
            Ok(_) if self.was_applied(bulk, item).await? => {
                End { outcome: "applied", because: None }
            }
            Ok(end) => end,
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
    ) -> Result<TurnEnd, StoreError> {
        match self.was_applied(slice.bulk, item).await? {
            true => {
                let done = End { outcome: "applied", because: None };
                self.settle_item(slice, item, &done, None).await
            }
            false => Ok(TurnEnd::LeftAsItIs),
        }
    }

    async fn settle_item(
        &self,
        slice: &Slice<'_>,
        item: &BulkItem,
        end: &End,
        audit: Option<&AuditEntry>,
    ) -> Result<TurnEnd, StoreError> {
        let settled = SettledItem {
            bulk_id: slice.bulk.id,
            token: slice.token,
            position: item.position,
            outcome: end.outcome,
            because: end.because.as_deref(),
            audit,
        };
        Ok(match self.store.settle_bulk_item(&settled).await? {
            true => {
                observe::operated(slice.act.as_str(), end.outcome);
                TurnEnd::Settled
            }
            false => TurnEnd::Lost,
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
    fn g7_a_request_is_refused_for_a_panic_only_when_its_first_commit_has_ended() {
        let place = |request| (Uuid::from_u128(1), Uuid::from_u128(request));
        let mut panicked = Panicked::default();
        let mut turn = |request| {
            let error = OpsError::Resolve(ResolveError::TaskPanicked);
            End::of(Err(error), place(request), &mut panicked)
        };
        // A commit that the task sent may be under way: the audit cannot say yet that nothing was done.
        assert_eq!(turn(2).err(), Some(TurnEnd::Panicked));
        assert_eq!(turn(3).err(), Some(TurnEnd::Panicked), "each request has its own");
        let refused = turn(2).ok().unwrap();
        assert_eq!(refused.outcome, "refused", "a bulk act ends, whatever panics");
        assert!(refused.because.unwrap().contains("ended in a panic"));
        // Its second turn finds that its commit was applied behind the panic.
        assert!(End::of(Err(OpsError::MovedOn), place(3), &mut panicked).is_ok());
        assert!(panicked.0.is_empty(), "each is forgotten behind its second turn");
    }

    #[test]
    fn each_other_end_is_known_in_the_same_turn() {
        let of = |done| End::of(done, Default::default(), &mut Panicked::default());
        let end = |error| of(Err(OpsError::Resolve(error)));
        assert_eq!(
            end(ResolveError::TaskLost).err(),
            Some(TurnEnd::Lost),
            "another worker finds it out"
        );
        let outcome = |end: Result<End, TurnEnd>| end.ok().unwrap().outcome;
        assert_eq!(outcome(end(ResolveError::OtherType { why: None })), "refused");
        assert_eq!(outcome(of(Ok(Resolved::Applied))), "applied");
        assert_eq!(outcome(of(Ok(Resolved::Already))), "already");
    }
}
