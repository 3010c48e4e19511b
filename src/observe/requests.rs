//! What becomes of requests: of calls, of phases, of the rows that they leave, and of their resolutions.

use std::time::Duration;

use super::{
    FINISHED, IN_PROGRESS, LEFT_ALONE, MISMATCH, ONE_DAY, ONE_MINUTE, ONE_SECOND, OTHER, REPEATS,
    REPLAYED, Scopes, metrics,
};
use crate::error::Causes;
use crate::key::{IdempotencyKey, Scope, ShortHash};

/// The outcome of a call, as one label, and how long the call took.
pub(crate) fn answered(definition: &'static str, told: &'static str, took: Duration) {
    metrics::REQUESTS.add(1, [definition, told]);
    if told == FINISHED {
        metrics::REQUEST_DURATION.record(took.as_secs_f64(), [definition]);
    }
}

/// A call that the store could not serve.
pub(crate) fn unserved(kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
}

/// A call was refused before anything was looked at.
pub(crate) fn refused(definition: &'static str, told: &'static str) {
    metrics::REQUESTS.add(1, [definition, told]);
}

/// The same, of one scope.
pub(crate) fn refused_to(scopes: &Scopes, scope: &Scope) {
    metrics::SCOPE_CALLS.add(1, [scopes.label(scope), OTHER.into()]);
}

/// The outcome of a call of this scope.
pub(crate) fn answered_to(scopes: &Scopes, scope: &Scope, told: &'static str) {
    let (scope, word) = match told {
        REPLAYED | IN_PROGRESS | MISMATCH => (scopes.label_of_duplicate(scope), told),
        _ => (scopes.label(scope), OTHER),
    };
    metrics::SCOPE_CALLS.add(1, [scope, word.into()]);
}

/// A key was reserved, for a request that is new.
pub(crate) fn created(definition: &'static str) {
    metrics::CREATED.add(1, [definition]);
}

/// A holder found out that another one has its lease.
pub(crate) fn lost(definition: &'static str) {
    metrics::ZOMBIES.add(1, [definition]);
}

/// How long the body of a phase took.
pub(crate) fn phase_took(definition: &'static str, phase: &'static str, took: Duration) {
    metrics::PHASE_DURATION.record(took.as_secs_f64(), [definition, phase]);
}

/// What a foreign phase's call came to.
pub(crate) fn called(
    definition: &'static str,
    phase: &'static str,
    effect: &'static str,
    outcome: &'static str,
) {
    metrics::FOREIGN_CALLS.add(1, [definition, phase, effect, outcome]);
}

/// A request came to its answer, and the answer is stored.
/// `age`: since its creation.
pub(crate) fn completed(definition: &'static str, attempt: u32, age: Duration) {
    metrics::COMPLETED.add(1, [definition]);
    metrics::REQUEST_AGE.record(age.as_secs_f64(), [definition]);
    metrics::REQUEST_ATTEMPTS.record(attempt.into(), [definition]);
}

pub(crate) fn resumed(definition: &'static str, recovery_point: &str, attempt: u32) {
    metrics::RESUMES.add(1, [definition]);
    debug!(recovery_point, attempt, "resumed");
}

/// A worker has acquired a request ahead of its turn, which did not come, and made it pending again.
pub(crate) fn given_back(definition: &'static str) {
    metrics::GIVEN_BACK.add(1, [definition]);
}

pub(crate) fn committed(recovery_point: &str) {
    debug!(recovery_point, "committed");
}

/// A request, as far as a log may know it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) definition: &'a str,
    pub(crate) request_id: uuid::Uuid,
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
}

/// Why an attempt ended before its request did.
pub(crate) struct Failure<'a> {
    pub(crate) cause: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) phase: Option<&'static str>,
    /// Of a database error, a constraint, a table or a column, never a value.
    pub(crate) about: Option<&'a str>,
}

/// An attempt ended before the request did, and its row was released.
pub(crate) fn released(subject: Subject<'_>, failure: Failure<'_>, retry_after: Duration) {
    let Failure { cause, reason, phase, about } = failure;
    match cause {
        "shutting_down" => event!(debug, subject, { reason, }, "released"),
        cause => {
            event!(warn, subject, { phase, cause, reason, about, ?retry_after, }, "released");
        }
    }
}

/// The first phase of a request failed, and with it went its row.
pub(crate) fn not_begun(subject: Subject<'_>, failure: Failure<'_>) {
    let Failure { cause, reason, phase, about } = failure;
    event!(
        warn,
        subject,
        { phase, cause, reason, about, },
        "not begun: its first phase failed and left no row"
    );
}

/// The lease of another holder has ended, and this process goes on with its request: that process died, or was too slow. The
/// attempt is the one that takes over; the row's event has the one that ended.
pub(crate) fn taken_over(subject: Subject<'_>, recovery_point: &str, by_attempt: u32) {
    event!(
        info,
        subject,
        { recovery_point, by_attempt, },
        "taken over: its holder's lease has ended"
    );
}

/// This process does not continue a row: why, in one word and in a sentence. Said once a day for each request, of very
/// many for one in a second, and counted each time.
pub(crate) fn left_alone(subject: Subject<'_>, word: &'static str, because: &'static str) {
    // The definition may be any text, so it is not a label.
    metrics::LEFT_ALONE.add(1, [word]);
    if let Some(suppressed) = LEFT_ALONE.admits((subject.request_id, word), ONE_DAY) {
        event!(warn, subject, { because, suppressed, }, "left alone");
    }
}

/// A request became unknown, and the row says so.
pub(crate) fn unknown(
    definition: &'static str,
    subject: Subject<'_>,
    phase: &str,
    reason: &'static str,
) {
    metrics::UNKNOWN.add(1, [definition]);
    event!(warn, subject, { phase, reason, }, "outcome unknown: not repeated");
}

pub(crate) fn dead_letter(definition: &'static str, subject: Subject<'_>, reason: &str) {
    metrics::DEAD_LETTERS.add(1, [definition]);
    event!(warn, subject, { reason, }, "dead letter: an operator has to settle it");
}

/// A request begins to wait, and no notice of it is sent.
pub(crate) fn notice_failed(subject: Subject<'_>, error: &'static str) {
    event!(warn, subject, { error, }, "the codec failed for the notice that a request waits: it is not staged");
}

pub(crate) fn commit_unanswered(definition: &'static str, subject: Subject<'_>) {
    metrics::UNANSWERED.add(1, [definition]);
    event!(warn, subject, {}, "a commit got no answer; asking what became of it");
}

/// A reply has a header line that its replays will lack. In debug builds; once a day for each name.
pub(crate) fn header_not_replayed(subject: Subject<'_>, name: &str) {
    let what = ("not replayed", subject.definition, name.to_ascii_lowercase());
    if REPEATS.admits(what, ONE_DAY).is_some() {
        event!(
            warn,
            subject,
            { name, },
            "a reply's header line is on this answer only: replays have those of `store_header`"
        );
    }
}

/// A request could not be answered from its row. What repeats is counted and logged once a second.
pub(crate) fn call_failed(
    subject: Subject<'_>,
    what: &'static str,
    error: &(dyn std::error::Error + 'static),
) {
    if let Some(suppressed) = REPEATS.admits(("call", subject.definition, what), ONE_SECOND) {
        let error = Causes(error);
        event!(warn, subject, { %error, suppressed, }, "a request could not be answered");
    }
}

/// A call of a definition that the engine does not have.
pub(crate) fn not_registered_call(definition: &'static str, version: u32) {
    if let Some(suppressed) = REPEATS.admits(("not registered", definition, version), ONE_MINUTE) {
        warn!(definition, version, suppressed, "refused: the definition is not registered");
    }
}

/// A foreign phase returned an output, and its call is not made. Said once a day for each phase.
pub(crate) fn call_unmade(subject: Subject<'_>, phase: &str) {
    if REPEATS.admits(("unmade", subject.definition, phase), ONE_DAY).is_some() {
        event!(
            warn,
            subject,
            { phase, },
            "a foreign phase returned an output without making its call: nothing happened (if that is meant, `ForeignCall::skip`)"
        );
    }
}

/// The call of a foreign phase did not look at the derived key. Said once a day for each phase.
pub(crate) fn key_unread(subject: Subject<'_>, phase: &str) {
    if REPEATS.admits(("key unread", subject.definition, phase), ONE_DAY).is_some() {
        event!(
            warn,
            subject,
            { phase, },
            "the call of an idempotent phase did not read its derived key: a retry may have a second effect"
        );
    }
}

pub(crate) fn rerun(definition: &'static str, phase: &'static str, kind: &'static str) {
    metrics::PHASE_RERUNS.add(1, [definition, phase, kind]);
    debug!(phase, kind, "phase is run again");
}

pub(crate) fn reconciled(definition: &'static str, phase: &'static str, found: &'static str) {
    metrics::RECONCILES.add(1, [definition, found]);
    debug!(phase, found, "an unknown outcome is settled");
}

/// A reconcile function did not find out.
pub(crate) fn still_unknown(definition: &'static str, phase: &'static str) {
    metrics::RECONCILES.add(1, [definition, "still_unknown"]);
    debug!(phase, "an unknown outcome is not found out");
}

pub(crate) fn reconcile_failed(
    definition: &'static str,
    subject: Subject<'_>,
    phase: &'static str,
    how: &'static str,
) {
    metrics::RECONCILES.add(1, [definition, "failed"]);
    event!(warn, subject, { phase, how, }, "a reconcile function failed, panicked or did not answer in time");
}

/// `phase` is empty where the resolution is about the request as a whole. `by`: an operator, or the application, as for a
/// provider's webhook.
pub(crate) fn resolved(
    definition: &'static str,
    subject: Subject<'_>,
    resolution: &'static str,
    phase: &str,
    by: &'static str,
) {
    metrics::RESOLUTIONS.add(1, [definition, resolution]);
    event!(info, subject, { resolution, phase, by, }, "a resolution was written");
}

/// A worker could not drive a request on. What repeats is counted and logged once a second.
pub(crate) fn drive_failed(
    subject: Subject<'_>,
    kind: &'static str,
    error: &(dyn std::error::Error + 'static),
) {
    if let Some(suppressed) = REPEATS.admits(("drive", subject.definition, kind), ONE_SECOND) {
        let error = Causes(error);
        event!(warn, subject, { %error, suppressed, }, "a worker could not drive a request on");
    }
}

/// A reply of a phase cannot be sent as it is.
#[cfg(feature = "http")]
pub(crate) fn header_not_sent() {
    warn!("a phase's reply has a header line that HTTP cannot carry");
}
