//! A request that this process holds the lease of, from its recovery point to its end, or to where it
//! stops.
//!
//! Each phase comes to a `Transition` of the row; `commit` is the one place that
//! sends one for a run and says its outcome.

mod attended;
mod body;
mod commit;
mod foreign;
mod leave;
mod local;
mod mutants;
mod reconcile;
mod release;
mod transition;
mod writing;

use std::borrow::Cow;
use std::ops::ControlFlow::{self, Break};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Core;
use super::bound::BoundRequest;
use super::creation::Creation;
use super::lease::{Heartbeat, Holder, Lease};
use super::outcome::{CallError, FailureCause, Outcome};
use super::quota::Admission;
use super::replays::{Hint, Whose};
use crate::definition::{Definition, Phase, PhaseKind};
use crate::derived_key::Derivation;
use crate::moment::Moment;
use crate::observe::{self, Span, Subject};
use crate::phase::{DerivedKey, Outputs, RequestContext};
use crate::store::{Guard, KeySummary, NewRow, Store, StoreError};

pub(super) use self::body::timed_out;
pub(super) use self::transition::Transition;
pub(super) use self::writing::Writing;

/// A request that this process holds the lease of.
pub(super) struct Run<S: Store> {
    pub(super) core: Arc<Core<S>>,
    pub(super) definition: Definition,
    pub(super) request: Box<dyn BoundRequest<S>>,
    pub(super) fingerprint: String,
    /// How the keys for its calls are made.
    pub(super) derivation: Arc<Derivation>,
    /// The phases that the row was run under as its lease was acquired; `None` where this run created it.
    pub(super) taken_over_under: Option<String>,
    pub(super) context: RequestContext,
    /// Of the phases that are done, the last of which may not be committed yet: an idempotent
    /// foreign result rides in the commit of the local phase behind it.
    pub(super) outputs: Outputs,
    /// The recovery point, as the row has it.
    pub(super) point: Cow<'static, str>,
    pub(super) lease: Lease,
    pub(super) expires_at: DateTime<Utc>,
    pub(super) heartbeat: Option<Heartbeat>,
    /// How old the last recovery point was, at most, at a moment of this machine's monotonic clock.
    pub(super) advanced: (Duration, Moment),
    /// How many of its attempts do not count against the cap.
    pub(super) forgiven_attempts: u32,
    /// The phase whose call this run has begun under an intent, and of which it is not yet known that it had no
    /// effect. While it stands here the row is not released: it becomes unknown (G2).
    pub(super) may_be_executed: Option<&'static str>,
    /// Whether the next phase may have been called since the recovery point, in this attempt or one before, with an
    /// effect. While it cannot, its provider has nothing to forget: see [`uncalled`](super::resolution::uncalled).
    pub(super) may_be_called: bool,
    /// When the back-off ends during which a client resumed the request.
    pub(super) back_off_ends: Option<Moment>,
    /// How often a phase was run again by itself.
    pub(super) reruns: u32,
    /// What the call knows of the row that it creates.
    pub(super) creation: Arc<Creation>,
    /// Of a request that has no row yet, where its scope has a quota.
    pub(super) admission: Option<Arc<Admission>>,
    /// What the replay cache was told about this request, where it takes hints.
    pub(super) hint: Option<Hint>,
}

/// How one round with the key's row ended.
pub(super) enum RoundEnd {
    Outcome(Outcome),
    /// The row is another one by now, and nothing ran: look again.
    Changed,
    /// The same, and this is the row.
    Found(KeySummary),
    /// Another transaction is about to create the key's row, and nothing ran.
    Busy,
    /// It ran here, and the row is another holder's: look again, and answer as a loser (G3).
    Lost,
    /// The row was not committed, or the outcome of its commit is unknown: look again, and continue from
    /// there. Nothing runs meanwhile.
    Restart(StoreError),
}

/// Whether a phase goes on to the next, or ends the round.
pub(super) type PhaseEnd = Result<ControlFlow<RoundEnd>, CallError>;

impl<S: Store> Run<S> {
    fn span_of(&self, phase: &Phase) -> Span {
        let of = (self.context.request_id, self.context.attempt);
        observe::spans::phase(phase, self.core.is_traced().then_some(of))
    }

    /// Runs a request that has no committed row yet.
    pub(super) async fn begin(mut self, creating: Writing<'_, S>) -> Result<RoundEnd, CallError> {
        let end = match (self.definition.phases.first(), creating.new_row()) {
            // Row and first phase share a commit: a first phase that fails leaves nothing behind.
            (Some(phase), _) if phase.shares_the_reservation() => {
                self.local(0, phase, Some(creating)).await?
            }
            (_, Some(row)) => {
                let reservation = self.at_start();
                self.create(row, reservation).await?
            }
            (_, None) => ControlFlow::Continue(()),
        };
        match end {
            Break(end) => Ok(end),
            ControlFlow::Continue(()) => self.resume().await,
        }
    }

    /// Stores a request that a worker is to run.
    pub(super) async fn accept(mut self, row: &NewRow<'_>) -> Result<RoundEnd, CallError> {
        let pending = self.pending();
        Ok(match self.create(row, pending).await? {
            Break(RoundEnd::Restart(_)) if mutated!(AcceptedUnwritten) => {
                RoundEnd::Outcome(Outcome::Accepted)
            }
            Break(end) => end,
            ControlFlow::Continue(()) => {
                self.core.wakeups.accepted.notify_one();
                RoundEnd::Outcome(Outcome::Accepted)
            }
        })
    }

    /// Runs a request whose row is committed, from its recovery point on.
    pub(super) async fn resume(mut self) -> Result<RoundEnd, CallError> {
        if let Some(admission) = self.admission.take() {
            admission.end();
        }
        let RequestContext { scope, key, request_id, .. } = &self.context;
        let holder = Holder { scope: scope.clone(), key: key.clone(), request_id: *request_id };
        self.heartbeat = Some(self.core.heartbeats.start(
            &self.core.store,
            holder,
            self.lease.clone(),
            self.core.settings.hold(),
        ));
        let end = self.run_phases().await;
        if let Some(hint) = self.hint.take() {
            self.core.withdrawn(hint).await;
        }
        end
    }

    /// One phase after the other.
    async fn run_phases(&mut self) -> Result<RoundEnd, CallError> {
        loop {
            if self.lease.is_lost() {
                return Ok(self.lost());
            }
            if self.core.running.is_closing() {
                return self.release(FailureCause::ShuttingDown, Some(Duration::ZERO)).await;
            }
            let index = self.outputs.len();
            let Some(phase) = self.definition.phases.get(index) else {
                let rule = "the last phase returned no reply";
                return self.release(FailureCause::Misuse { phase: "", rule }, None).await;
            };
            let end = match phase.kind {
                PhaseKind::Local(_) | PhaseKind::Batch(_) => self.local(index, phase, None).await?,
                PhaseKind::Foreign(effect) => self.foreign(index, phase, effect).await?,
            };
            if let Break(end) = end {
                return Ok(end);
            }
        }
    }

    /// The row is another holder's (G3).
    fn lost(&self) -> RoundEnd {
        observe::lost(self.definition.name);
        RoundEnd::Lost
    }

    /// By what the replay cache knows this request.
    fn whose(&self) -> Whose<'_> {
        Whose {
            scope: &self.context.scope,
            key: &self.context.key,
            definition: self.definition.name,
            fingerprint: &self.fingerprint,
        }
    }

    /// What a log may know of the request.
    pub(super) fn subject(&self) -> Subject<'_> {
        let RequestContext { scope, key, request_id, .. } = &self.context;
        Subject { definition: self.definition.name, request_id: *request_id, scope, key }
    }

    /// By what each write of this run is guarded (G3).
    fn guard(&self) -> Guard<'_> {
        Guard {
            scope: &self.context.scope,
            key: &self.context.key,
            request_id: self.context.request_id,
            lease_token: self.lease.token(),
            recovery_point: &self.point,
        }
    }

    /// The key for the provider: equal in each attempt (G1).
    fn derived_key(&self, phase: &Phase) -> DerivedKey {
        self.derivation.derive(
            &self.context.scope,
            &self.context.key,
            self.definition.name,
            phase.key_name(),
            &self.fingerprint,
            self.context.request_id,
        )
    }
}
