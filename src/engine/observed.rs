//! What log, metrics and traces record of a call: its outcome as one label, and why it has none.

use std::time::Duration;

use super::{CallError, FailureCause, Outcome, StrandedBecause};
use crate::observe::{self, Failure, Subject};

/// The label of a call's outcome.
pub(super) fn outcome_label(outcome: &Result<Outcome, CallError>) -> &'static str {
    match outcome {
        Ok(Outcome::Finished(finished)) if finished.replayed => observe::REPLAYED,
        Ok(Outcome::ReplyNotRetained { .. } | Outcome::Erased) => observe::REPLAYED,
        Ok(Outcome::Finished(_)) => observe::FINISHED,
        Ok(Outcome::Accepted) => "accepted",
        Ok(Outcome::Mismatch) => observe::MISMATCH,
        Ok(Outcome::InProgress { .. }) => observe::IN_PROGRESS,
        Ok(Outcome::Failed { .. }) => "failed",
        Ok(Outcome::Unknown { .. }) => "unknown",
        Ok(Outcome::DeadLetter) => "dead_letter",
        Err(error) => refusal(error),
    }
}

/// One word for why a call has no outcome.
pub(super) fn refusal(error: &CallError) -> &'static str {
    match error {
        CallError::Unavailable(_) => "unavailable",
        CallError::ShuttingDown => "shutting_down",
        CallError::NotRegistered { .. } => "not_registered",
        CallError::RateExceeded { .. }
        | CallError::TooManyKeys { .. }
        | CallError::CreatingOthers { .. } => "over_quota",
        CallError::Fingerprint(_)
        | CallError::ReservedKey
        | CallError::TooLarge { .. }
        | CallError::NotStorable { .. } => "refused",
        CallError::NotEncoded { .. } => "not_encoded",
        CallError::Unreadable { .. } => "unreadable",
        CallError::RowDeleted | CallError::TaskLost => "lost",
    }
}

/// A call ended with this outcome, after this time.
pub(super) fn answered(
    definition: &'static str,
    outcome: &Result<Outcome, CallError>,
    took: Duration,
) {
    observe::answered(definition, outcome_label(outcome), took);
    if let Err(CallError::Unavailable(error)) = outcome {
        observe::unserved(error.kind());
    }
}

/// A request could not be answered from its row.
pub(super) fn call_failed(subject: Subject<'_>, error: &CallError) {
    let what = match error {
        CallError::Unavailable(error) => error.kind(),
        CallError::NotEncoded { .. } => "not encoded",
        CallError::Unreadable { what, .. } => what,
        CallError::RowDeleted => "the row was deleted while it ran",
        CallError::TaskLost => "its task was lost",
        // What the caller did wrong, or has to wait for, is said to the caller.
        _ => return,
    };
    observe::call_failed(subject, what, error);
}

/// A worker could not drive a request on.
pub(super) fn drive_failed(subject: Subject<'_>, error: &CallError) {
    let kind = match error {
        CallError::Unavailable(error) => error.kind(),
        // A row that the codec cannot open is met again and again.
        CallError::Unreadable { .. } => return left_alone(subject, StrandedBecause::Sealed),
        CallError::TaskLost => "its task was lost",
        _ => "",
    };
    observe::drive_failed(subject, kind, error);
}

/// This process does not continue a row.
pub(super) fn left_alone(subject: Subject<'_>, because: StrandedBecause) {
    observe::left_alone(subject, because.word(), because.as_str());
}

/// Why an attempt ended before its request did.
pub(super) fn failure(cause: &FailureCause) -> Failure<'_> {
    let about = match cause {
        FailureCause::Database { about, .. } => about.as_deref(),
        _ => None,
    };
    Failure { cause: cause.name(), reason: cause.reason(), phase: cause.phase(), about }
}
