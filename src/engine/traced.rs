//! What an engine with [`traces`](crate::engine::EngineBuilder::traces) says of a request to the span that works on
//! it. Without it, nothing here does anything.

use std::sync::Arc;

use uuid::Uuid;

use super::background::Driven;
use super::outcome::{CallError, Outcome};
use super::{Core, observed};
use crate::observe::{self, Span, spans};
use crate::panics;
use crate::store::{KeyRow, Right, Store};
use crate::traces::{Link, LinkKind, StoredTrace, TraceContext, Traceparent};

/// How an engine that traces reads and links contexts.
pub(crate) type Traces = Option<Arc<dyn TraceContext>>;

/// What the application's code is asked: where it panics, the request continues without an answer.
fn unharmed<T: Default>(asked: impl FnOnce() -> T) -> T {
    panics::catch(asked).unwrap_or_else(|| {
        observe::trace_context_panicked();
        T::default()
    })
}

impl<S: Store> Core<S> {
    pub(crate) fn is_traced(&self) -> bool {
        self.traces.is_some()
    }

    /// The context of this code.
    pub(crate) fn trace(&self) -> Option<Traceparent> {
        let traces = self.traces.as_ref()?;
        unharmed(|| traces.current())
    }

    /// The context of a span.
    pub(crate) fn trace_of(&self, span: &Span) -> Option<Traceparent> {
        span.in_scope(|| self.trace())
    }

    fn link(&self, span: &Span, to: &[Link]) {
        let Some(traces) = self.traces.as_ref().filter(|_| !to.is_empty()) else { return };
        // A call that continues with its own row, after a commit that got no answer, is not another attempt.
        let own = self.trace_of(span);
        let is_other = |link: &Link| own.is_none_or(|own| !link.to.is_of_the_span_of(&own));
        let others: Vec<Link> = to.iter().copied().filter(is_other).collect();
        if let Some(span) = span.of_tracing().filter(|_| !others.is_empty()) {
            unharmed(|| traces.link(span, &others));
        }
    }

    /// The delivery of a job is linked to the phase that staged it.
    pub(crate) fn link_staging(&self, span: &Span, staged: Option<Traceparent>) {
        let links: Vec<_> =
            staged.into_iter().map(|to| Link { to, kind: LinkKind::Staging }).collect();
        self.link(span, &links);
    }

    /// The verification of a call's creation is linked to the call: it created the row, if there is one.
    pub(super) fn link_call(&self, verification: &Span) {
        let call = self.trace();
        let links: Vec<_> =
            call.into_iter().map(|to| Link { to, kind: LinkKind::Creation }).collect();
        self.link(verification, &links);
    }

    /// The result of the verification.
    pub(super) fn traced_verification(&self, outcome: &'static str) {
        if self.is_traced() {
            Span::current().record(spans::OUTCOME, outcome);
        }
    }

    /// What the row is to have from the takeover on: who takes it over for an attempt, or to look into an outcome.
    pub(super) fn trace_of_holder(&self, row: &KeyRow, right: Right) -> Option<[u8; 52]> {
        let holds = matches!(right, Right::Free | Right::Reconcile);
        let own = holds.then(|| self.trace()).flatten()?;
        Some(StoredTrace::held_by(row.trace, &own))
    }

    /// An attempt works on the request from here on, whose row is there. `attempt`: 0 for one that is left to a worker.
    /// `before`: the trace of the row and how many attempts it had.
    pub(super) fn attempt_begins(
        &self,
        request_id: Uuid,
        attempt: u32,
        recovery_point: &str,
        before: Option<(StoredTrace, u32)>,
    ) {
        if !self.is_traced() {
            return;
        }
        let span = Span::current();
        span.record_text(spans::REQUEST_ID, &request_id);
        if attempt > 0 {
            span.record(spans::ATTEMPT, attempt);
            span.record(spans::RECOVERY_POINT, recovery_point);
        }
        if let Some((trace, attempts)) = before {
            self.link(&span, &trace.links(attempts));
        }
    }

    /// A call receives the result of another one.
    pub(super) fn traced_result_of(&self, request_id: Uuid, trace: Option<&StoredTrace>) {
        if !self.is_traced() {
            return;
        }
        let span = Span::current();
        span.record_text(spans::REQUEST_ID, &request_id);
        if let Some(to) = trace.and_then(|trace| trace.creation) {
            self.link(&span, &[Link { to, kind: LinkKind::Creation }]);
        }
    }

    /// The call is answered.
    pub(super) fn traced_answer(&self, outcome: &Result<Outcome, CallError>) {
        if !self.is_traced() {
            return;
        }
        let span = Span::current();
        span.record(spans::OUTCOME, observed::outcome_label(outcome));
        if let Ok(Outcome::Finished(finished)) = outcome {
            span.record(spans::REPLAYED, finished.replayed);
        }
    }

    /// What the worker's attempt came to.
    pub(super) fn traced_drive(&self, driven: Driven) {
        if self.is_traced() {
            Span::current().record(spans::OUTCOME, driven.word());
        }
    }

    /// The request is finished with a reply of this status: the one end at which a span says how it went. What is
    /// released, left unknown or lost continues in another span, and is not an error of this one.
    pub(super) fn traced_end(&self, status: u16) {
        if !self.is_traced() {
            return;
        }
        let span = Span::current();
        if status < 500 {
            span.record(spans::STATUS, "OK");
        } else {
            span.record(spans::STATUS, "ERROR");
            span.record(spans::ERROR_TYPE, status);
        }
    }

    /// It gave up, which is final as long as no operator says another word.
    pub(super) fn traced_dead_letter(&self) {
        if self.is_traced() {
            let span = Span::current();
            span.record(spans::STATUS, "ERROR");
            span.record(spans::ERROR_TYPE, "dead_letter");
        }
    }
}
