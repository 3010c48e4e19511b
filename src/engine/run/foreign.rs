//! One foreign phase: no transaction is open and no connection is held while it runs (G20).
//!
//! A call is begun only by a holder that knows that the lease is its own, and its body is polled only as
//! long as it knows: after a stall of the process, of the machine or of the store the lease is renewed
//! first, or the body is dropped. [`ForeignCall::make`](crate::ForeignCall::make) asks once more, as the
//! last thing before the effect, and before each poll of it: it may be in a task, which the engine does not poll.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow::{Break, Continue};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::body::{Body, database_failed, timed_out};
use super::{PhaseEnd, Run};
use crate::definition::{EffectClass, Phase, PhaseKind};
use crate::engine::decide::{WINDOW_PASSED, left_of_window};
use crate::engine::jitter::jitter;
use crate::engine::outcome::{FailureCause, PAUSES_UNREAD};
use crate::engine::pauses::Unread;
use crate::moment::Moment;
use crate::movable_task;
use crate::observe;
use crate::panics;
use crate::phase::{
    CallState, DerivedKey, ForeignCall, ForeignError, ForeignFailure, PhaseFailure, PhaseInputs,
};
use crate::store::{Store, StoreError};

/// How often the lease is renewed for one call before the store counts as too slow for it.
const MAX_RENEWALS: u32 = 3;

const TOO_SLOW: &str = "the store answers too late, or not at all, for a lease to be held";
const TOO_LATE: &str =
    "the process was too slow for its first call: the provider's window has passed";

/// How the body of a foreign phase ended.
enum Called {
    Ended(Body<ForeignFailure>),
    /// The same, without its call: it had nothing to call for.
    Skipped(Body<ForeignFailure>),
    /// The provider may have forgotten the key (G11). No call was made.
    WindowPassed,
    /// The lease is another holder's.
    Lost,
    /// The store answers too late to know whose the lease is, or not at all. No call was made.
    TooSlow,
}

impl Called {
    /// One word for it, where the body ran.
    fn outcome(&self) -> Option<&'static str> {
        let body = match self {
            Self::Ended(body) => body,
            Self::Skipped(_) => return Some("skipped"),
            Self::WindowPassed | Self::Lost | Self::TooSlow => return None,
        };
        Some(match body {
            Body::Output(_) | Body::Reply(_) => "ok",
            Body::Failed(ForeignFailure::Phase(PhaseFailure::Reject(_))) => "rejected",
            Body::Failed(ForeignFailure::Phase(_)) => "failed",
            Body::Failed(ForeignFailure::NotExecuted { .. }) => "not_executed",
            Body::Failed(ForeignFailure::Unknown { .. }) => "unknown",
            Body::Panicked => "panicked",
            Body::TimedOut => "timed_out",
        })
    }

    /// Whether the phase says that its call had no effect.
    fn is_denied(&self) -> bool {
        matches!(self, Self::Ended(Body::Failed(ForeignFailure::NotExecuted { .. })))
    }
}

/// The outcome of the body while it was attended to.
enum Attended<T> {
    Ended(T),
    Lost,
    TimedOut,
    /// The process stood still right before the call; nothing was sent.
    Refused,
}

/// Whose the lease is.
enum Confirmed {
    Ours,
    Lost,
    TooSlow,
}

/// The failure that an explorer asks for.
fn asked_for(phase: &Phase) -> FailureCause {
    FailureCause::Phase { phase: phase.name, reason: "asked for" }
}

impl<S: Store> Run<S> {
    pub(super) async fn foreign(
        &mut self,
        index: usize,
        phase: &'static Phase,
        effect: EffectClass,
    ) -> PhaseEnd {
        reach!(phase.name, BeforePhase);
        if let Some((cause, rest)) = self.why_not_now(phase).await {
            return self.halt(cause, Some(rest)).await;
        }
        if effect == EffectClass::AtMostOnce {
            // A process that finds this intent open knows that the call may have been made (G2).
            let intent = self.intending(phase);
            if let Break(end) = self.write(&intent).await? {
                return Ok(Break(end));
            }
        }
        if asked!(phase.name, BeforeCall, CallFails) {
            return self.halt(asked_for(phase), Some(Duration::ZERO)).await;
        }
        let called = self.call_and_note(index, phase, effect).await;
        self.after_call(phase, effect, called).await
    }

    /// Why the phase is not begun now, and after how long to try again.
    async fn why_not_now(&self, phase: &Phase) -> Option<(FailureCause, Duration)> {
        match self.core.paused(self.definition.name, phase).await {
            Ok(Some(rest)) => Some((FailureCause::Paused { phase: phase.name }, rest)),
            // The shutdown may have begun during a read of the pauses.
            _ if self.core.running.is_closing() => {
                Some((FailureCause::ShuttingDown, Duration::ZERO))
            }
            Ok(None) => None,
            Err(Unread) => {
                let soon = self.core.settings.back_off(self.context.attempt);
                let (phase, kind) = (phase.name, PAUSES_UNREAD);
                Some((FailureCause::Database { phase, kind, about: None }, soon))
            }
        }
    }

    /// Makes the call, and notes what is known of it from now on: what may have been executed, and what may have been
    /// called.
    async fn call_and_note(
        &mut self,
        index: usize,
        phase: &'static Phase,
        effect: EffectClass,
    ) -> Called {
        let key = self.derived_key(phase);
        faults! { let key = super::mutants::key(key); }
        movable_task::move_back().await;
        let began = Moment::now();
        let (called, under_way) = self.call(index, phase, effect, &key).await;
        if let Some(hint) = self.hint.take() {
            self.hint = self.core.withdraw(&self.whose(), hint);
        }
        observe::phase_took(self.definition.name, phase.name, began.elapsed());
        let at_most_once = effect == EffectClass::AtMostOnce;
        if let Some(outcome) = called.outcome() {
            let effect = if at_most_once { "at_most_once" } else { "idempotent" };
            observe::called(self.definition.name, phase.name, effect, outcome);
        }
        // Where the provider honors no key, whatever is not certain is unknown once the call began: `release`
        // sees to it.
        self.may_be_executed = (at_most_once && under_way).then_some(phase.name);
        self.may_be_called |= under_way && !called.is_denied();
        called
    }

    /// Goes on from what the call came to.
    async fn after_call(
        &mut self,
        phase: &'static Phase,
        effect: EffectClass,
        called: Called,
    ) -> PhaseEnd {
        let name = phase.name;
        let body = match called {
            Called::Ended(body) | Called::Skipped(body) => body,
            Called::Lost => return Ok(Break(self.lost())),
            Called::WindowPassed if self.may_be_called => {
                return self.unknown(name, WINDOW_PASSED).await;
            }
            Called::WindowPassed => {
                let cause = FailureCause::Phase { phase: name, reason: TOO_LATE };
                return self.halt(cause, None).await;
            }
            Called::TooSlow => {
                let cause = FailureCause::Database { phase: name, kind: TOO_SLOW, about: None };
                return self.halt(cause, None).await;
            }
        };
        if asked!(name, AfterCall, AnswerLost) {
            return self.halt(asked_for(phase), Some(Duration::ZERO)).await;
        }
        self.after_body(phase, effect, body).await
    }

    /// Goes on from how the body of the phase ended.
    async fn after_body(
        &mut self,
        phase: &'static Phase,
        effect: EffectClass,
        body: Body<ForeignFailure>,
    ) -> PhaseEnd {
        let name = phase.name;
        match body {
            Body::Reply(reply) => self.finish(phase, reply, None).await,
            Body::Output(output) => {
                let transition = match self.after_output(phase, output) {
                    Ok(transition) => transition,
                    Err(why) => return self.halt(why.at(name), None).await,
                };
                let next = self.definition.phases.get(self.outputs.len()).map(|next| next.kind);
                let at_most_once = effect == EffectClass::AtMostOnce;
                let rides = !at_most_once && !phase.commit && next.is_some_and(PhaseKind::is_local);
                if rides {
                    return Ok(Continue(()));
                }
                self.write_and_arrive(transition).await
            }
            Body::Panicked => self.halt(FailureCause::Panic { phase: name }, None).await,
            // It was dropped because of that: a call that it had begun may have arrived, and the provider
            // may have forgotten it by the time of another.
            Body::TimedOut if self.may_be_called && self.window_has_passed(effect) => {
                self.unknown(name, WINDOW_PASSED).await
            }
            Body::TimedOut => self.halt(timed_out(phase), None).await,
            Body::Failed(ForeignFailure::Unknown { reason }) => self.unknown(name, reason).await,
            Body::Failed(ForeignFailure::NotExecuted { reason, after }) => {
                self.may_be_executed = None;
                self.halt(FailureCause::Phase { phase: name, reason }, after).await
            }
            Body::Failed(ForeignFailure::Phase(failure)) => match failure {
                PhaseFailure::Reject(reply) => self.finish(phase, reply, None).await,
                PhaseFailure::Retryable { reason, after } => {
                    self.halt(FailureCause::Phase { phase: name, reason }, after).await
                }
                PhaseFailure::Database(error) => {
                    self.halt(database_failed(phase, &error), None).await
                }
            },
        }
    }

    /// Runs the phase's body. The second value says whether its call may be under way.
    async fn call(
        &mut self,
        index: usize,
        phase: &'static Phase,
        effect: EffectClass,
        key: &DerivedKey,
    ) -> (Called, bool) {
        // A body whose call was refused has done nothing, and runs again under a lease that is known.
        for _ in 0..MAX_RENEWALS {
            match self.confirm_lease(phase).await {
                Confirmed::Ours => {}
                Confirmed::Lost => return (Called::Lost, false),
                Confirmed::TooSlow => break,
            }
            if self.window_has_passed(effect) {
                return (Called::WindowPassed, false);
            }
            let lease_left = self.core.settings.lease.saturating_sub(self.lease.unconfirmed_for());
            let before = self.hint.take();
            self.hint = self.core.hint(before, &self.whose(), lease_left);
            let (call, state) = ForeignCall::new(key.clone(), self.permit(effect));
            let inputs = PhaseInputs {
                context: &self.context,
                outputs: &self.outputs,
                derived_key: Some(key),
            };
            let running = inside!(phase.name, self.request.run_foreign(index, call, &inputs));
            // It owns the body, and `attend` drops it: what the body holds is gone when the call's state is asked.
            let running = self.span_of(phase).around(panics::catch_async(running));
            let limit = phase.time_limit().unwrap_or(Duration::MAX);
            let limit = self.left_of_window(effect).map_or(limit, |left| left.min(limit));
            faults! { let _open = self.transaction_over_call().await; }
            let attended = self.attend(limit, running, &state).await;
            // The body is gone, and so is a call that it left behind in a task.
            let under_way = state.end();
            return match attended {
                Attended::Ended(ended) => {
                    let body = Body::<ForeignFailure>::of::<ForeignError>(ended);
                    if cfg!(debug_assertions) && matches!(body, Body::Output(_)) {
                        self.warn_of_misuse(phase, effect, &state);
                    }
                    match body {
                        Body::Output(_) | Body::Reply(_) if state.was_skipped() => {
                            (Called::Skipped(body), under_way)
                        }
                        body => (Called::Ended(body), under_way),
                    }
                }
                Attended::TimedOut => (Called::Ended(Body::TimedOut), under_way),
                Attended::Lost => (Called::Lost, under_way),
                Attended::Refused => continue,
            };
        }
        (Called::TooSlow, false)
    }

    /// Says in the log what most often is a mistake in a phase that returned an output.
    fn warn_of_misuse(&self, phase: &Phase, effect: EffectClass, call: &CallState) {
        if call.was_unmade() {
            observe::call_unmade(self.subject(), phase.name);
        } else if effect != EffectClass::AtMostOnce && call.read_no_key() {
            observe::key_unread(self.subject(), phase.name);
        }
    }

    /// Polls the body as long as the lease is known to be ours and its time limit has not passed.
    async fn attend<T>(
        &self,
        limit: Duration,
        body: impl Future<Output = T>,
        call: &CallState,
    ) -> Attended<T> {
        let mut body = pin!(body);
        // The timer wakes; the moment decides, because a timer stands still while the machine is suspended.
        let ends = Moment::now().after(limit);
        let mut limit = pin!(tokio::time::sleep(limit));
        let mut tries = 0;
        loop {
            let has_lapsed = || self.lease.has_lapsed() && !mutated!(CallWithoutLease);
            let may_go_on = || !has_lapsed() && Moment::now() < ends;
            let polled = poll_fn(|context| match !may_go_on() {
                true => Poll::Ready(None),
                false => body.as_mut().poll(context).map(Some),
            });
            let ended = tokio::select! {
                biased;
                ended = polled => ended,
                // What it would answer is not ours to write any more, and what it has not sent yet is
                // better not sent.
                () = self.lease.lost() => return Attended::Lost,
                () = call.refused() => return Attended::Refused,
                // A task makes it, and was woken first after a stall.
                () = call.held_back() => None,
                () = limit.as_mut() => return Attended::TimedOut,
            };
            if let Some(ended) = ended {
                return Attended::Ended(ended);
            }
            // The lease has run out, as far as this process can tell: it stood still, or the store was
            // away. If no other process took the row over meanwhile, the body continues.
            if Moment::now() >= ends {
                return Attended::TimedOut;
            }
            let renewed = tokio::select! {
                biased;
                () = limit.as_mut() => return Attended::TimedOut,
                renewed = self.renew() => renewed,
            };
            match renewed {
                Ok(true) => {}
                Ok(false) => return Attended::Lost,
                Err(_) => {
                    tries += 1;
                    tokio::select! {
                        biased;
                        () = limit.as_mut() => return Attended::TimedOut,
                        () = tokio::time::sleep(jitter(tries)) => {}
                    }
                }
            }
            // Also after a renewal that failed: a heartbeat may have had more luck meanwhile.
            call.look_again();
        }
    }

    /// Whether a call may begin, or continue: asked by the call itself, as the last thing before each poll of its effect.
    fn permit(&self, effect: EffectClass) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let (lease, (age, then)) = (self.lease.clone(), self.advanced);
        let margin = self.core.settings.window_margin;
        Arc::new(move || {
            let left = left_of_window(effect, age + then.elapsed(), margin);
            let has_lapsed = lease.has_lapsed() && !mutated!(CallWithoutLease);
            !lease.is_lost() && !has_lapsed && !left.is_some_and(|left| left.is_zero())
        })
    }

    fn window_has_passed(&self, effect: EffectClass) -> bool {
        self.left_of_window(effect).is_some_and(|left| left.is_zero())
    }

    fn left_of_window(&self, effect: EffectClass) -> Option<Duration> {
        let (age, then) = self.advanced;
        left_of_window(effect, age + then.elapsed(), self.core.settings.window_margin)
    }

    /// Asks the store whether the lease still is ours, if that is not known for the next third of it.
    async fn confirm_lease(&self, phase: &Phase) -> Confirmed {
        let fresh = self.core.settings.lease * 2 / 3;
        for _ in 0..MAX_RENEWALS {
            if self.lease.unconfirmed_for() < fresh {
                return Confirmed::Ours;
            }
            // No call was made, and the row is released with that: an intent that stayed open would say that one may
            // have been.
            let Ok(ours) = self.renew().await else { return Confirmed::TooSlow };
            reach!(phase.name, AfterRenewal);
            if !ours {
                return Confirmed::Lost;
            }
        }
        match self.lease.unconfirmed_for() < fresh {
            true => Confirmed::Ours,
            false => Confirmed::TooSlow,
        }
    }

    async fn renew(&self) -> Result<bool, StoreError> {
        let sent = Moment::now();
        let (guard, hold) = (self.guard(), self.core.settings.hold());
        let renewed = reading!("renew", self.core.store.renew_lease(&guard, hold));
        if renewed.is_err() && mutated!(CallBehindFailedRenewal) {
            self.lease.confirm(sent);
            return Ok(true);
        }
        match &renewed {
            Ok(true) => self.lease.confirm(sent),
            Ok(false) => {}
            Err(error) => observe::lease_not_renewed(error.kind()),
        }
        renewed
    }
}
