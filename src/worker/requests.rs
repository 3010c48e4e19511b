//! [`DueRequests`]: what completer and reconciler look for in the index of due rows.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use super::backlog::Candidate;
use super::source::{Searching, Settled, Source};
use super::sweep::Sweep;
use crate::engine::{Driven, Engine};
use crate::key::{IdempotencyKey, Scope};
use crate::observe;
use crate::store::{DueKey, KeyPlace, Right, Status, Store};

/// How many definitions that are not registered here are reported, once each.
const REPORTED: usize = 1000;

/// Requests to be driven on, by one right.
pub(super) struct DueRequests<S: Store> {
    engine: Engine<S>,
    right: Right,
    grace: Duration,
    swept: Sweep,
    unregistered: HashSet<(String, u32)>,
}

impl<S: Store> DueRequests<S> {
    pub(super) fn new(engine: &Engine<S>, right: Right, grace: Duration) -> Self {
        let (engine, swept) = (engine.clone(), Sweep::default());
        Self { engine, right, grace, swept, unregistered: HashSet::new() }
    }

    /// What was counted since the last time.
    pub(super) fn take_swept(&mut self) -> Sweep {
        std::mem::take(&mut self.swept)
    }

    fn is_wanted(&self, found: &DueKey) -> bool {
        match found.status {
            Status::Pending => self.right == Right::Free,
            Status::FailedRetryable | Status::InProgress => {
                self.right == Right::Free && found.past_grace
            }
            Status::Unknown => self.right == Right::Reconcile,
            Status::Completed | Status::DeadLetter => false,
        }
    }
}

impl Candidate for DueKey {
    type Id = (Scope, IdempotencyKey);

    fn id(&self) -> Self::Id {
        (self.scope.clone(), self.key.clone())
    }

    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn state(&self) -> i64 {
        self.lease_token
    }
}

impl<S: Store> Source for DueRequests<S> {
    type Place = KeyPlace;
    type Found = DueKey;
    type Ended = Driven;

    fn name(&self) -> &'static str {
        if self.right == Right::Free { "completer" } else { "reconciler" }
    }

    fn search(&self, after: KeyPlace, limit: u32) -> Searching<DueKey, KeyPlace> {
        let (store, grace) = (self.engine.store().clone(), self.grace);
        Box::pin(async move { store.due(&after, grace, limit).await })
    }

    /// A row of a definition that is not registered here is left alone without being read (G14).
    fn admits(&mut self, found: &DueKey) -> bool {
        if !self.is_wanted(found) {
            return false;
        }
        let is_registered = self.engine.is_registered(&found.definition, found.version);
        if !is_registered {
            self.swept.left += 1;
            let definition = (found.definition.clone(), found.version);
            if self.unregistered.len() < REPORTED && self.unregistered.insert(definition) {
                observe::not_registered(&found.definition, found.version);
            }
        }
        is_registered
    }

    fn begin(&mut self, found: DueKey) -> impl Future<Output = Driven> + Send + 'static {
        let (engine, right) = (self.engine.clone(), self.right);
        async move { engine.drive(found, right).await }
    }

    fn settle(&mut self, driven: Driven) -> Settled {
        self.swept.count(driven);
        match driven {
            Driven::Finished | Driven::Released | Driven::Unknown | Driven::DeadLetter => {
                Settled::Progress
            }
            Driven::Lost => Settled::Lost,
            Driven::Left => Settled::Left,
            Driven::Failed => Settled::Failed,
        }
    }

    async fn wakeup(&self) {
        match self.right {
            Right::Free => self.engine.wakeups().accepted.notified().await,
            _ => std::future::pending().await,
        }
    }
}
