//! Unknown outcomes that wait for an operator alone, and that this build could ask about.

use std::sync::Arc;

use super::outcome::CallError;
use super::resume::Acquired;
use super::{Core, Engine};
use crate::key::{IdempotencyKey, Scope};
use crate::store::operators::{ListRequests, ListedRequest, OperatorStore, ScopeLimits, Walk};
use crate::store::{Right, Status, Store, StoreError};

/// How many rows a search returns.
const PAGE: u32 = 500;

impl<S: OperatorStore, A: Send + Sync + 'static> Engine<S, A> {
    /// Enters them in the index of due rows, until `stop`: the reconciler asks then. If the server refuses one row, or has it
    /// locked, the others are entered all the same, and the last such error is returned at the end.
    pub(crate) async fn ask_about_unasked(
        &self,
        stop: impl Fn() -> bool,
    ) -> Result<(), StoreError> {
        if !self.core.asks_about_anything() || mutated!(NeverAskedLater) {
            return Ok(());
        }
        let walk = Walk::Waiting;
        let mut list = ListRequests {
            limit: PAGE,
            states: Some(vec![Status::Unknown.as_str().to_owned()]),
            ..ListRequests::of(walk, walk.start(), ScopeLimits::default())
        };
        // Operators may have their connections in use for long.
        let store = self.store().for_workers();
        let mut refused = None;
        loop {
            let found = store.list_requests(&list).await?;
            for row in &found.rows {
                if stop() {
                    return Ok(());
                }
                if row.run_after.is_some() || !self.core.asks_about(row) {
                    continue;
                }
                match self.core.ask_about(row).await {
                    Ok(()) => {}
                    Err(error) if error.may_be_of_one() => refused = Some(error),
                    Err(error) => return Err(error),
                }
            }
            let is_full = found.rows.len() == PAGE as usize;
            let last = found.rows.last().filter(|_| is_full).map(|row| row.place(walk));
            match found.searched_to.or(last) {
                Some(place) => list.after = place,
                None => return refused.map_or(Ok(()), Err),
            }
        }
    }
}

impl<S: Store> Core<S> {
    fn asks_about_anything(&self) -> bool {
        let phases = self.registry.entries().flat_map(|entry| entry.definition.phases);
        phases.into_iter().any(|phase| phase.reconciles)
    }

    fn asks_about(&self, row: &ListedRequest) -> bool {
        let (entry, intent) = (self.registry.get(&row.definition, row.version), &row.open_intent);
        let phases = entry.map(|entry| entry.definition.phases).unwrap_or_default();
        let is_asked = |intent: &String| {
            phases.iter().any(|phase| phase.reconciles && phase.is_called(intent))
        };
        intent.as_ref().is_some_and(is_asked)
    }

    /// The outcome rests once more before the reconcile function is asked: this process knows the time limit of the
    /// call, and not for how long the row has waited (G2).
    async fn ask_about(self: &Arc<Self>, listed: &ListedRequest) -> Result<(), StoreError> {
        let names = (Scope::new(&listed.scope), IdempotencyKey::new(&listed.key));
        let (Ok(scope), Ok(key)) = names else { return Ok(()) };
        let Some(_entered) = self.running.enter() else { return Ok(()) };
        let row = match self.store.read_key(&scope, &key).await {
            Ok(Some(row)) if row.status == Status::Unknown && !row.for_workers => row,
            Ok(_) | Err(StoreError::Unreadable { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(intent) = row.open_intent.clone() else { return Ok(()) };
        let asked = match self.acquire(&scope, &key, row, Right::Resolve).await {
            Ok(Ok(Acquired { mut run, .. })) => run.ask_about(&intent).await.map(drop),
            Ok(Err(_)) => Ok(()),
            Err(error) => Err(error),
        };
        match asked {
            Err(CallError::Unavailable(error)) => Err(error),
            _ => Ok(()),
        }
    }
}
