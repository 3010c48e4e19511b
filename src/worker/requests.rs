//! [`DueRequests`]: what completer and reconciler look for in the index of due rows.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::WorkerConfig;
use super::backlog::Candidate;
use super::gates::{Gates, WorkLimits};
use super::source::{Searching, Settled, Source};
use super::sweep::Sweep;
use crate::engine::{Driven, Engine, subject};
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::observe;
use crate::store::{DueKey, KeyPlace, Right, Status, Store};

/// How many definitions that are not registered here are reported, once each.
const REPORTED: usize = 1000;

/// Requests to be driven on, by one right.
pub(super) struct DueRequests<S: Store> {
    engine: Engine<S>,
    right: Right,
    grace: Duration,
    gates: Gates,
    limits: Arc<WorkLimits>,
    swept: Sweep,
    /// How many rows of definitions that are not registered here this pass has met.
    met_unregistered: u32,
    /// How many an earlier pass of the same sweep has met: this one meets them again.
    met_before: u32,
    unregistered: HashSet<(String, u32)>,
}

impl<S: Store> DueRequests<S> {
    pub(super) fn new(engine: &Engine<S>, right: Right, config: &WorkerConfig) -> Self {
        Self {
            engine: engine.clone(),
            right,
            grace: config.grace,
            gates: Gates::new(config.concurrency),
            limits: Arc::new(WorkLimits::new(config.concurrency)),
            swept: Sweep::default(),
            met_unregistered: 0,
            met_before: 0,
            unregistered: HashSet::new(),
        }
    }

    /// A pass has ended. Another one of the same sweep meets its rows again.
    pub(super) fn end_pass(&mut self) {
        // Not the sum: the passes meet the same rows. The larger number is certain to be of different rows.
        self.met_before = self.met_before.max(std::mem::take(&mut self.met_unregistered));
    }

    /// What was counted since the last time.
    pub(super) fn take_swept(&mut self) -> Sweep {
        self.end_pass();
        let mut swept = std::mem::take(&mut self.swept);
        swept.left += std::mem::take(&mut self.met_before);
        swept
    }

    fn is_wanted(&self, found: &DueKey) -> bool {
        match found.status {
            Status::Pending => self.right == Right::Free,
            Status::FailedRetryable | Status::InProgress => {
                self.right == Right::Free && !self.is_early(found)
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

    fn state(&self) -> [i64; 2] {
        [self.lease_token, 0]
    }

    /// One that has never run, and was not given back: of another a call may be under way, and this one need not
    /// wait behind those that came later.
    fn may_go_ahead(&self) -> bool {
        self.status == Status::Pending && self.lease_token == 0
    }
}

impl<S: Store> Source for DueRequests<S> {
    type Place = KeyPlace;
    type Found = DueKey;
    type Ended = (Scope, Driven);

    const CLAIMS_AHEAD: bool = S::CLAIMS_TOGETHER;

    fn name(&self) -> &'static str {
        if self.right == Right::Free { "completer" } else { "reconciler" }
    }

    fn search(&self, after: KeyPlace, limit: u32) -> Searching<DueKey, KeyPlace> {
        let (store, grace) = (self.engine.store().clone(), self.grace);
        Box::pin(async move { store.due_keys(&after, grace, limit).await })
    }

    /// A row of a definition that is not registered here is left alone without being read (G14).
    fn admits(&mut self, found: &DueKey) -> bool {
        if !self.is_wanted(found) {
            return false;
        }
        let is_registered = self.engine.is_registered(&found.definition, found.version);
        if !is_registered {
            self.met_unregistered = self.met_unregistered.saturating_add(1);
            let definition = (found.definition.clone(), found.version);
            if self.unregistered.len() < REPORTED && self.unregistered.insert(definition) {
                observe::not_registered(&found.definition, found.version);
            }
        }
        is_registered
    }

    /// Its client may still repeat it.
    fn is_early(&self, found: &DueKey) -> bool {
        matches!(found.status, Status::FailedRetryable | Status::InProgress) && !found.past_grace
    }

    fn begin(&mut self, found: DueKey) -> impl Future<Output = Self::Ended> + Send + 'static {
        let (engine, limits, right) = (self.engine.clone(), self.limits.clone(), self.right);
        let (scope, gate) = (found.scope.clone(), self.gates.enter_scope(&found.scope));
        let (driver, of) = (self.engine.clone(), found.clone());
        let driving = boxed!(async move {
            let found = subject(&of);
            if !of.may_go_ahead() {
                let Some(permit) = limits.next(&gate).await else { return Driven::Lost };
                return permit.for_work(engine.drive_in_place(found, right)).await;
            }
            let claimed = match engine.claim_pending(found).await {
                Ok(claimed) => claimed,
                Err(driven) => return driven,
            };
            let until = Moment::now().after(engine.settings().lease / 6);
            let permit = tokio::select! {
                biased;
                permit = limits.by(&gate, until) => permit,
                () = engine.closing() => None,
            };
            match permit {
                Some(permit) => permit.for_work(claimed.go_on(found)).await,
                None => claimed.give_back(found).await,
            }
        });
        async move { (scope, driver.drive(found, driving).await) }
    }

    fn stop(&mut self) {
        self.gates.close();
        self.limits.close();
    }

    fn settle(&mut self, (scope, driven): Self::Ended) -> Settled {
        self.gates.leave_scope(&scope);
        self.swept.count(driven);
        match driven {
            Driven::Finished | Driven::Released | Driven::Unknown | Driven::DeadLetter => {
                Settled::Progress
            }
            Driven::Lost | Driven::GivenBack => Settled::Lost,
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
