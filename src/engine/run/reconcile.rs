//! Looking into an unknown outcome: the phase's own reconcile function is asked, under the row's
//! lease, and what it says is written like everything else, fenced.

use std::ops::ControlFlow::{Break, Continue};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tracing::Instrument;

use super::release::{ATTEMPT_CAP, at_cap};
use super::{RoundEnd, Run};
use crate::definition::{Phase, PhaseKind, Step};
use crate::engine::outcome::{CallError, FailureCause, Outcome};
use crate::engine::resolution::{executed, not_executed};
use crate::observe;
use crate::phase::{PhaseInputs, Reconciled};
use crate::store::{KeyRow, Settles, Status, Store};

const NOT_EXECUTED: &str = "not executed";
const NEVER_ANSWERED: &str = "its reconcile function never came to an end";
const NOT_ITS_PHASE: &str = "the definition has no foreign phase next that could be asked";
const RECONCILE_CAP: &str = "was not found out at the cap of reconciliations";

impl<S: Store, A: Send + Sync + 'static> Run<S, A> {
    /// Settles the outcome of the phase that the row's intent names, if its reconcile function can tell.
    pub(in crate::engine) async fn reconcile(
        mut self,
        row: &KeyRow,
    ) -> Result<RoundEnd, CallError> {
        let intent = row.open_intent.as_deref();
        let index = self.outputs.len();
        let Some(phase) = self.unknown_phase(index, intent) else {
            // This process cannot say which call it is about: an operator has to.
            return self.still_unknown(row, intent, Some(NOT_ITS_PHASE)).await;
        };
        // One that ended its process each time it was asked is not asked for ever (G17).
        if row.reconciles > self.core.settings.max_reconciles {
            return self.still_unknown(row, Some(phase.name), Some(NEVER_ANSWERED)).await;
        }
        match self.found(index, phase).await {
            Reconciled::Executed(Step::Output(output)) => {
                observe::reconciled(self.definition.name, phase.name, "executed");
                let behind = match self.resumed_behind(phase, output, executed(phase)) {
                    Ok(behind) => behind,
                    Err(rule) => {
                        return self.still_unknown(row, Some(phase.name), Some(rule)).await;
                    }
                };
                let Some(sent) = self.write(&behind).await? else { return Ok(RoundEnd::Lost) };
                match self.arrive(behind, sent) {
                    Continue(()) => self.resume().await,
                    Break(ended) => Ok(ended),
                }
            }
            Reconciled::Executed(Step::Reply(reply)) => {
                observe::reconciled(self.definition.name, phase.name, "executed");
                match self.finish(phase, reply, None).await? {
                    Break(ended) => Ok(ended),
                    Continue(()) => Ok(RoundEnd::Lost),
                }
            }
            Reconciled::NotExecuted => {
                observe::reconciled(self.definition.name, phase.name, "not executed");
                // An attempt like any other: one that never comes to its effect ends at the cap (G17).
                let settings = &self.core.settings;
                if self.failures() >= settings.max_attempts {
                    let reason = Some(at_cap(ATTEMPT_CAP, Some(NOT_EXECUTED)));
                    return self.leave(Status::DeadLetter, None, Duration::ZERO, reason).await;
                }
                let hold = settings.back_off(self.failures());
                let said = not_executed(phase, self.context.attempt);
                let released = self.released(said, Settles::Window, hold);
                if self.write(&released).await?.is_none() {
                    return Ok(RoundEnd::Lost);
                }
                let cause = FailureCause::Phase { phase: phase.name, reason: NOT_EXECUTED };
                Ok(RoundEnd::Outcome(Outcome::Failed { cause, retry_after: hold }))
            }
            Reconciled::StillUnknown => self.still_unknown(row, Some(phase.name), None).await,
        }
    }

    /// The foreign phase that is next, if it is the one whose outcome is unknown.
    fn unknown_phase(&self, index: usize, intent: Option<&str>) -> Option<&'static Phase> {
        let phase = self.definition.phases.get(index)?;
        let foreign = matches!(phase.kind, PhaseKind::Foreign(_));
        (foreign && intent.is_none_or(|name| phase.is_called(name))).then_some(phase)
    }

    /// What the reconcile function says. One that fails, panics or does not answer within a lease
    /// has not found out.
    async fn found(&self, index: usize, phase: &'static Phase) -> Reconciled<Step> {
        let key = self.derived_key(phase);
        let inputs = PhaseInputs {
            app: &self.core.app,
            context: &self.context,
            outputs: &self.outputs,
            derived_key: Some(&key),
        };
        // Two thirds: the answer has to be written while the lease still is ours.
        let bound = self.core.settings.lease * 2 / 3;
        let asking = inside!(phase.name, self.request.reconcile(index, &inputs));
        let asked = AssertUnwindSafe(asking).catch_unwind();
        match tokio::time::timeout(bound, asked.instrument(observe::phase(phase.name))).await {
            Ok(Ok(Ok(found))) => found,
            failed => {
                let how = match failed {
                    Ok(Ok(_)) => "it returned an error",
                    Ok(Err(_)) => "it panicked",
                    Err(_) => "it took too long",
                };
                let subject = self.subject();
                observe::reconcile_failed(self.definition.name, subject, phase.name, how);
                Reconciled::StillUnknown
            }
        }
    }

    /// Later, with back-off; past the cap, an operator has to say. `reason`: why it was not found out,
    /// where there is more to say than why it became unknown.
    pub(in crate::engine) async fn still_unknown(
        &mut self,
        row: &KeyRow,
        intent: Option<&str>,
        reason: Option<&'static str>,
    ) -> Result<RoundEnd, CallError> {
        let settings = &self.core.settings;
        if row.reconciles < settings.max_reconciles {
            let hold = settings.reconcile_back_off(row.reconciles);
            return self.leave(Status::Unknown, intent, hold, reason.map(Into::into)).await;
        }
        let reason = at_cap(RECONCILE_CAP, reason.or(row.reason.as_deref()));
        self.leave(Status::DeadLetter, intent, Duration::ZERO, Some(reason)).await
    }
}
