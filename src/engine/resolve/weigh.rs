//! What a resolution is to a row: known already, a contradiction, or news that is to be written.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::checks::{is_denied, not_running, waits_for};
use super::equal::equal;
use super::types::ResolutionKind;
use super::{Compares, ResolveError, Resolved};
use crate::engine::encoding::Unstorable;
use crate::engine::resolution::{Denial, PlaceOfFinish, executed_before, not_executed, retried};
use crate::engine::revive::{Judged, Revived};
use crate::engine::run::{Run, Transition};
use crate::engine::{Core, Stands};
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::phase::{Outputs, Reply};
use crate::store::{KeyRow, REPLY_STATUSES, Settles, Status, Store};

/// What a resolution is to a row.
pub(super) enum Weighed<S: Store> {
    /// Known already.
    Known(Resolved),
    /// News. Everything that can be refused was refused before, while the row was not touched yet.
    News(Box<News<S>>),
}

/// What is to be written to a row that waits for it.
pub(super) struct News<S: Store> {
    /// The row as a run that makes the transition.
    pub(super) run: Run<S>,
    /// The phases that the row is run under from now on; `None` leaves those that it has.
    pub(super) phases: Option<Arc<str>>,
    pub(super) transition: Transition,
}

impl<S: Store> Core<S> {
    /// Whether the resolution is known already, contradicts what is known, or is new to a row that waits for it.
    pub(super) async fn weigh(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        kind: &ResolutionKind,
        compares: Compares,
    ) -> Result<Weighed<S>, ResolveError> {
        match kind {
            ResolutionKind::Executed { phase, output } => {
                self.weigh_executed(scope, key, row, phase, output, compares).await
            }
            ResolutionKind::NotExecuted { phase, attempt } => {
                self.weigh_not_executed(scope, key, row, phase, *attempt).await
            }
            ResolutionKind::Finish(reply) => {
                self.weigh_finish(scope, key, row, reply, compares).await
            }
            ResolutionKind::Retry => self.weigh_retry(scope, key, row),
        }
    }

    async fn weigh_executed(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        phase: &str,
        output: &RawValue,
        compares: Compares,
    ) -> Result<Weighed<S>, ResolveError> {
        let (index, phase) = self.phase_of(row, phase)?;
        let judged = self.judge_unfinished(scope, key, row)?;
        not_running(row)?;
        let mut outputs = self.stored_outputs(scope, key).await?;
        if let Some(stored) = outputs.get(index) {
            return match compares {
                Compares::Nothing => conflict("the phase has an output already"),
                Compares::Values if equal(stored, output) => Ok(Weighed::Known(Resolved::Already)),
                Compares::Values => conflict("the phase has another output already"),
            };
        }
        // Its output was not kept, or erased: by now, or since the row was read.
        let is_over = row.status == Status::Completed && !phase.kind.is_local();
        if is_over && !mutated!(RefuseBehindErasure) {
            return Ok(Weighed::Known(Resolved::Finished));
        }
        let denial = Denial::of(row.resolution.as_deref()).filter(|denial| !denial.is_note);
        if denial.is_some_and(|it| phase.is_called(it.phase) && it.attempt == row.attempts) {
            return conflict("the call was reported as not executed before");
        }
        waits_for(row, index, phase, &outputs)?;
        // Only a completed row has nothing to bring back to life.
        let Some(judged) = judged else {
            return Ok(Weighed::Known(Resolved::Finished));
        };
        self.reads(row, &judged.revived, index, output)?;
        // The last phase has no output.
        let next = self.phases_of(row)?.get(index + 1).ok_or(ResolveError::NotThatPhase)?;
        outputs.push(phase.name, output.to_owned());
        let outputs = self.encode_outputs(scope, key, &outputs).map_err(refused)?;
        Ok(self.news(scope, key, row, Some(judged), |run| {
            let said = executed_before(phase, next, row.attempts);
            run.released_behind(phase, outputs, said)
        }))
    }

    async fn weigh_not_executed(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        phase: &str,
        attempt: u32,
    ) -> Result<Weighed<S>, ResolveError> {
        let (index, phase) = self.phase_of(row, phase)?;
        let judged = self.judge_unfinished(scope, key, row)?;
        let is_uncalled = judged.as_ref().is_some_and(|judged| judged.revived.is_uncalled);
        not_running(row)?;
        if is_denied(row, phase, attempt) {
            return Ok(Weighed::Known(Resolved::Already));
        }
        let Some(judged) = judged else { return conflict("the request is finished") };
        let outputs = self.stored_outputs(scope, key).await?;
        if outputs.get(index).is_some() {
            return conflict("the phase has an output already: its call was executed");
        }
        waits_for(row, index, phase, &outputs)?;
        if attempt != row.attempts {
            return conflict(
                "the open call is of another attempt than the named one: read the request again",
            );
        }
        match row.status {
            Status::Unknown | Status::DeadLetter => {
                Ok(self.news(scope, key, row, Some(judged), |run| {
                    let said = not_executed(phase, attempt);
                    run.released(said, Settles::WindowAndAttempts, Duration::ZERO)
                }))
            }
            // Nothing is known of its call, and nothing waits to be: the same call is made again.
            _ if !is_uncalled => Err(ResolveError::NotThatPhase),
            // Released after a failure that had no effect either.
            _ => Ok(Weighed::Known(Resolved::Already)),
        }
    }

    async fn weigh_finish(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        reply: &Reply,
        compares: Compares,
    ) -> Result<Weighed<S>, ResolveError> {
        if !REPLY_STATUSES.contains(&reply.status()) {
            return Err(ResolveError::NotStorable);
        }
        // A request whose holder is gone may be one that no process continues.
        if !row.lease_left.is_zero() {
            not_running(row)?;
        }
        self.keeps_replies(scope, key, row)?;
        match row.status {
            Status::Completed if compares == Compares::Nothing => {
                conflict("the request is finished")
            }
            Status::Completed if self.is_stored(scope, key, reply).await? => {
                Ok(Weighed::Known(Resolved::Already))
            }
            Status::Completed => conflict("the request is finished with another reply"),
            _ => {
                let stored = self.encode_reply(scope, key, reply).map_err(refused)?;
                let known = self.definition_of(row).phases;
                let place = PlaceOfFinish {
                    recovery_point: &row.recovery_point,
                    open_intent: row.open_intent.as_deref(),
                    perhaps_called: Stands::from(row).called_without_intent(known).as_deref(),
                }
                .stored();
                Ok(self.news(scope, key, row, None, |run| {
                    run.finished_by(reply.clone(), stored, place)
                }))
            }
        }
    }

    fn weigh_retry(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
    ) -> Result<Weighed<S>, ResolveError> {
        not_running(row)?;
        match row.status {
            Status::DeadLetter if row.open_intent.is_none() => {
                Ok(self.news(scope, key, row, None, |run| {
                    // The calls that were made before were made: the window continues (G11).
                    let said = retried(row.resolution.as_deref());
                    run.released(said, Settles::Attempts, Duration::ZERO)
                }))
            }
            Status::Pending | Status::FailedRetryable => Ok(Weighed::Known(Resolved::Already)),
            Status::Completed => conflict("the request is finished"),
            _ => conflict("the outcome of a call is unknown: say whether it was executed"),
        }
    }

    /// The transition of a row, as a run whose stored values were judged. One that ends the request or lets it try again
    /// needs none of them.
    fn news(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        judged: Option<Judged<S>>,
        transition: impl FnOnce(&Run<S>) -> Transition,
    ) -> Weighed<S> {
        let (definition, revived, phases) = match judged {
            None => (self.definition_of(row), Revived::nothing(), None),
            Some(judged) => {
                let is_run_here = judged.is_run_here();
                (judged.definition, judged.revived, is_run_here.then_some(judged.phases))
            }
        };
        let run = self.run_of(scope, key, row, Moment::now(), definition, revived);
        let transition = transition(&run);
        Weighed::News(Box::new(News { run, phases, transition }))
    }

    async fn stored_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Outputs, ResolveError> {
        let stored = self.store.read_outputs(scope, key).await?;
        Ok(self.decode_outputs(scope, key, stored)?)
    }

    /// Whether the request was finished with this reply. One that was not retained is like any other.
    async fn is_stored(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        reply: &Reply,
    ) -> Result<bool, ResolveError> {
        let Some(row) = self.store.look_up_key(scope, key).await? else { return Ok(false) };
        Ok(match self.decode_reply(scope, key, row.response)? {
            Ok(stored) => self.is_kept_of(&stored, reply),
            Err(status) => status == reply.status(),
        })
    }
}

fn conflict<S: Store>(what: &'static str) -> Result<Weighed<S>, ResolveError> {
    Err(ResolveError::Conflict(what))
}

/// Why a value that was encoded for it is refused.
fn refused(why: Unstorable) -> ResolveError {
    match why {
        Unstorable::Rule(_) => ResolveError::NotStorable,
        Unstorable::Codec(why) => ResolveError::NotEncoded { why },
    }
}
