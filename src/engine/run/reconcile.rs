//! Looking into an unknown outcome: the phase's own reconcile function is asked, under the row's
//! lease, and what it says is written like everything else, fenced.

use std::borrow::Cow;
use std::ops::ControlFlow::{Break, Continue};
use std::time::Duration;

use super::release::{ATTEMPT_CAP, at_cap};
use super::{PhaseEnd, RoundEnd, Run, Transition};
use crate::definition::{Phase, PhaseKind};
use crate::engine::outcome::{CallError, FailureCause, Outcome};
use crate::engine::pauses::Unread;
use crate::engine::resolution::{executed, not_executed};
use crate::observe;
use crate::panics;
use crate::phase::{PhaseFailure, PhaseInputs, Reconciled};
use crate::request::Step;
use crate::store::events::EventKind;
use crate::store::{KeyRow, Settles, Status, Store};

const EXECUTED: &str = "executed";
const NOT_EXECUTED: &str = "not executed";
const NEVER_ANSWERED: &str = "its reconcile function never came to an end";
const NOT_ITS_PHASE: &str = "the definition has no foreign phase next that could be asked";
/// Stands between why an outcome became unknown and how its reconcile function failed.
const ITS_FUNCTION: &str = " (its reconcile function";
const RECONCILE_CAP: &str = "was not found out at the cap of reconciliations";

impl<S: Store> Run<S> {
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
        let found = match self.ask_function(index, phase).await {
            Ok(found) => found,
            Err(why) => return self.not_found_out(row, Some(phase.name), Some(&why)).await,
        };
        match found {
            Reconciled::Executed(step) => match self.after_executed(row, phase, step).await? {
                Continue(()) => self.resume().await,
                Break(end) => Ok(end),
            },
            Reconciled::NotExecuted => self.after_not_executed(phase).await,
            Reconciled::StillUnknown => {
                observe::still_unknown(self.definition.name, phase.name);
                self.not_found_out(row, Some(phase.name), None).await
            }
        }
    }

    /// Stores what the call had come to, and goes on from there.
    async fn after_executed(
        &mut self,
        row: &KeyRow,
        phase: &'static Phase,
        step: Step,
    ) -> PhaseEnd {
        observe::reconciled(self.definition.name, phase.name, "executed");
        let behind = match step {
            Step::Output(output) => self.resumed_behind(phase, output, executed(phase)),
            Step::Reply(reply) => self.finished_with(reply),
        };
        let behind = match behind {
            Ok(behind) => self.reconciled(behind, phase, EXECUTED),
            Err(why) if mutated!(ReleaseReconciled) => {
                return self.halt(why.at(phase.name), None).await;
            }
            // The call was executed, but its output cannot be stored: never release it (G2).
            Err(why) => {
                let why = Some(why.reason());
                return self.still_unknown(row, Some(phase.name), why).await.map(Break);
            }
        };
        self.write_and_arrive(behind).await
    }

    /// Releases the request for another attempt. It is one like any other: a call that never comes to its effect ends at
    /// the cap (G17).
    async fn after_not_executed(&mut self, phase: &'static Phase) -> Result<RoundEnd, CallError> {
        observe::reconciled(self.definition.name, phase.name, "not_executed");
        self.may_be_called = false;
        let settings = &self.core.settings;
        if self.failures() >= settings.max_attempts {
            let reason = Some(at_cap(ATTEMPT_CAP, Some(NOT_EXECUTED)));
            return self.leave(Status::DeadLetter, None, None, reason).await;
        }
        let hold = settings.back_off(self.failures());
        let said = not_executed(phase, self.context.attempt);
        let released = self.released(said, Settles::Window, hold);
        let released = self.reconciled(released, phase, NOT_EXECUTED);
        if let Break(end) = self.write(&released).await? {
            return Ok(end);
        }
        let cause = FailureCause::Phase { phase: phase.name, reason: NOT_EXECUTED };
        Ok(RoundEnd::Outcome(Outcome::Failed { cause, retry_after: hold }))
    }

    fn reconciled(&self, to: Transition, phase: &Phase, said: &str) -> Transition {
        let (attempt, trace) = (self.context.attempt, self.core.trace());
        to.noted(EventKind::Reconciled, attempt, Some(phase.name), Some(said), trace)
    }

    /// The foreign phase that is next, if it is the one whose outcome is unknown.
    fn unknown_phase(&self, index: usize, intent: Option<&str>) -> Option<&'static Phase> {
        let phase = self.definition.phases.get(index)?;
        let foreign = matches!(phase.kind, PhaseKind::Foreign(_));
        (foreign && intent.is_none_or(|name| phase.is_called(name))).then_some(phase)
    }

    /// What the reconcile function says; why it says nothing, where it failed, panicked or did not answer
    /// within a lease.
    async fn ask_function(
        &self,
        index: usize,
        phase: &'static Phase,
    ) -> Result<Reconciled<Step>, String> {
        let key = self.derived_key(phase);
        let inputs =
            PhaseInputs { context: &self.context, outputs: &self.outputs, derived_key: Some(&key) };
        // Two thirds: the answer has to be written while the lease still is ours.
        let bound = self.core.settings.lease * 2 / 3;
        let asking = inside!(phase.name, self.request.reconcile(index, &inputs));
        let asked = panics::catch_async(asking);
        match tokio::time::timeout(bound, self.span_of(phase).around(asked)).await {
            Ok(Some(Ok(found))) => Ok(found),
            failed => {
                let (how, why) = match failed {
                    Ok(Some(Err(error))) => ("it returned an error", failed_with(&error.0)),
                    Ok(None) => ("it panicked", "panicked".to_owned()),
                    _ => ("it took too long", "took too long".to_owned()),
                };
                let subject = self.subject();
                observe::reconcile_failed(self.definition.name, subject, phase.name, how);
                Err(why)
            }
        }
    }

    /// As [`still_unknown`](Self::still_unknown). `why`: how the reconcile function failed, if it did. It stands
    /// beside the reason why the outcome became unknown, until the function is asked again.
    async fn not_found_out(
        &mut self,
        row: &KeyRow,
        intent: Option<&str>,
        why: Option<&str>,
    ) -> Result<RoundEnd, CallError> {
        let known = row.reason.as_deref().unwrap_or_default();
        let (reason, _) = known.split_once(ITS_FUNCTION).unwrap_or((known, ""));
        let reason = match why {
            Some(why) => format!("{reason}{ITS_FUNCTION} {why})"),
            None => reason.to_owned(),
        };
        self.later_or_never(row, intent, Some(reason.into())).await
    }

    /// Later, with back-off; past the cap, an operator has to say. `reason`: why it was not found out,
    /// where there is more to say than why it became unknown.
    pub(in crate::engine) async fn still_unknown(
        &mut self,
        row: &KeyRow,
        intent: Option<&str>,
        reason: Option<&'static str>,
    ) -> Result<RoundEnd, CallError> {
        self.later_or_never(row, intent, reason.map(Into::into)).await
    }

    async fn later_or_never(
        &mut self,
        row: &KeyRow,
        intent: Option<&str>,
        reason: Option<Cow<'static, str>>,
    ) -> Result<RoundEnd, CallError> {
        let settings = &self.core.settings;
        let back_off = settings.reconcile_back_off(row.reconciles);
        if let Some(rest) = self.rest_of(intent).await {
            // No answer is expected of a provider whose phase is paused: none brings the request to the cap.
            return self.leave_uncounted(intent, rest.max(back_off), reason).await;
        }
        if row.reconciles < settings.max_reconciles || mutated!(AskForEver) {
            return self.leave(Status::Unknown, intent, Some(back_off), reason).await;
        }
        let reason = at_cap(RECONCILE_CAP, reason.as_deref().or(row.reason.as_deref()));
        self.leave(Status::DeadLetter, intent, None, Some(reason)).await
    }

    /// After how long to ask again, if operators have paused the phase, or may have.
    async fn rest_of(&self, intent: Option<&str>) -> Option<Duration> {
        let is_asked = |phase: &&Phase| intent.is_some_and(|name| phase.is_called(name));
        let phase = self.definition.phases.iter().find(is_asked)?;
        match self.core.paused(self.definition.name, phase).await {
            Ok(rest) => rest,
            Err(Unread) => Some(self.core.settings.back_off(1)),
        }
    }
}

/// In words of the library or of the function.
fn failed_with(failure: &PhaseFailure) -> String {
    match failure {
        PhaseFailure::Retryable { reason, .. } => format!("failed: {reason}"),
        PhaseFailure::Database(error) => format!("failed: {error}"),
        PhaseFailure::Reject(_) => "failed: it rejected the request".to_owned(),
    }
}
