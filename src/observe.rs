//! Every span and event of the crate, in one place. None of them shows a key, a parameter, an output
//! or a body (G19): a request is known by a short hash of its key.

use tracing::{Span, debug, debug_span, warn};

use crate::definition::Definition;
use crate::engine::{ExecuteError, FailureCause};
use crate::key::{IdempotencyKey, Scope, short_hash};

/// The span of one call.
pub(crate) fn request(definition: &Definition, scope: &Scope, key: &IdempotencyKey) -> Span {
    debug_span!(
        "atomic_phases.request",
        definition = definition.name,
        version = definition.version,
        scope = %short_hash(scope.as_str()),
        key = %short_hash(key.as_str()),
    )
}

/// The span of one phase.
pub(crate) fn phase(name: &'static str) -> Span {
    debug_span!("atomic_phases.phase", phase = name)
}

pub(crate) fn resumed(recovery_point: &str, attempt: u32) {
    debug!(recovery_point, attempt, "resumed");
}

pub(crate) fn committed(recovery_point: &str) {
    debug!(recovery_point, "committed");
}

pub(crate) fn stopped(cause: &FailureCause) {
    match cause {
        FailureCause::Phase { phase, reason } => warn!(phase, reason, "released: phase failed"),
        FailureCause::Panic { phase } => warn!(phase, "released: phase panicked"),
        FailureCause::Database { phase, kind } => warn!(phase, kind, "released: database error"),
        FailureCause::Misuse { phase, rule } => warn!(phase, rule, "released: phase broke a rule"),
        FailureCause::ShuttingDown => debug!("released: shutting down"),
        FailureCause::NotKnownHere => {
            warn!("left alone: this process does not know the row's version, phases or format");
        }
    }
}

pub(crate) fn unknown(phase: &str, reason: &'static str) {
    warn!(phase, reason, "outcome unknown: not repeated");
}

pub(crate) fn dead_letter() {
    warn!("dead letter: gave up at the attempt cap");
}

pub(crate) fn commit_unanswered() {
    warn!("a commit got no answer; asking what became of it");
}

pub(crate) fn rerun(phase: &'static str, kind: &'static str) {
    debug!(phase, kind, "phase is run again");
}

pub(crate) fn reconciled(phase: &'static str, found: &'static str) {
    debug!(phase, found, "an unknown outcome is settled");
}

pub(crate) fn reconcile_failed() {
    warn!("a reconcile function failed, panicked or did not answer in time");
}

pub(crate) fn resolved(phase: &'static str) {
    debug!(phase, "resolved by a word from outside");
}

/// The span of a request that a worker drives on.
pub(crate) fn driven(scope: &Scope, key: &IdempotencyKey) -> Span {
    debug_span!(
        "atomic_phases.driven",
        scope = %short_hash(scope.as_str()),
        key = %short_hash(key.as_str()),
    )
}

pub(crate) fn drive_failed(error: &ExecuteError) {
    warn!(%error, "a worker could not drive a request on");
}

pub(crate) fn worker_failed(worker: &'static str, kind: &'static str) {
    warn!(worker, kind, "a worker could not search the store");
}

pub(crate) fn worker_panicked(worker: &'static str) {
    warn!(worker, "a worker panicked and is started again");
}

pub(crate) fn reaped(keys: u32) {
    debug!(keys, "reaped");
}

pub(crate) fn erased(keys: u32) {
    debug!(keys, "erased");
}

pub(crate) fn job_delivered(name: &str) {
    debug!(job = name, "job delivered");
}

pub(crate) fn job_failed(name: &str, reason: &'static str, attempt: u32) {
    warn!(job = name, reason, attempt, "job not delivered");
}

pub(crate) fn job_dead(name: &str) {
    warn!(job = name, "job is a dead letter");
}
