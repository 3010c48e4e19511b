//! Every span and event of the crate, in one place. None of them shows a key, a parameter, an output
//! or a body (G19): a request is known by a short hash of its key.

use tracing::{Span, debug, debug_span, warn};

use crate::definition::Definition;
use crate::engine::FailureCause;
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
