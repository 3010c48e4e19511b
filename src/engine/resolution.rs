//! The stored form of what is known of a request's calls: a resolution by a webhook, an operator or a reconcile function, or
//! what a run has noted of itself.

use crate::definition::Phase;
use crate::store::Standing;

const EXECUTED: &str = "executed";
const FINISH: &str = "finish";
const PERHAPS: &str = "perhaps";
const RETRY: &str = "retry";
const NOT_EXECUTED: &str = "not_executed ";
const UNCALLED: &str = "uncalled ";

/// The call of `phase` had its effect. Stored, so that a repeated resolution can be distinguished from a
/// different one.
pub(super) fn executed(phase: &Phase) -> String {
    format!("{EXECUTED} {}", phase.name)
}

/// The same of a request that is released behind that call, after this attempt: `next`, the phase behind it, was called by
/// none so far.
pub(super) fn executed_before(phase: &Phase, next: &Phase, attempt: u32) -> String {
    let said = executed(phase);
    match next.kind.is_local() {
        true => said,
        false => format!("{said} {}", uncalled(next.name, attempt)),
    }
}

/// The call of `phase` in this attempt had none.
pub(super) fn not_executed(phase: &Phase, attempt: u32) -> String {
    format!("{NOT_EXECUTED}{} {attempt}", phase.name)
}

/// Up to the end of this attempt `phase`, a foreign one, was not called, or its calls had no effect, as the run itself knows:
/// stored with the release. It contradicts no resolution: a webhook may know better.
pub(super) fn uncalled(phase: &str, attempt: u32) -> String {
    format!("{UNCALLED}{phase} {attempt}")
}

/// An operator lets the request try again. What is known of its calls stays known.
pub(super) fn retried(resolution: Option<&str>) -> String {
    let known = resolution.map(|resolution| parts(resolution).1);
    let is_of_calls = |known: &&str| known.starts_with(NOT_EXECUTED) || known.starts_with(UNCALLED);
    match known.filter(is_of_calls) {
        Some(known) => format!("{RETRY} {known}"),
        None => RETRY.to_owned(),
    }
}

/// What was said, and behind it what is known of the calls of the next phase. One of both may be empty.
fn parts(resolution: &str) -> (&str, &str) {
    let mut spaces = resolution.match_indices(' ').map(|(at, _)| at);
    let end = match resolution.split(' ').next() {
        Some(RETRY) => spaces.next(),
        // Behind the name of the phase.
        Some(EXECUTED) => spaces.nth(1),
        _ => return ("", resolution),
    };
    end.map_or((resolution, ""), |end| (&resolution[..end], &resolution[end + 1..]))
}

/// That no call of a phase up to the end of an attempt had an effect.
pub(super) struct Denial<'r> {
    /// As the build called it that wrote so.
    pub(super) phase: &'r str,
    pub(super) attempt: u32,
    /// A run has noted it of itself; otherwise it was said of a call that had no outcome.
    pub(super) is_note: bool,
}

impl<'r> Denial<'r> {
    pub(super) fn of(resolution: Option<&'r str>) -> Option<Self> {
        let (_, known) = parts(resolution?);
        let (known, is_note) = match known.strip_prefix(UNCALLED) {
            Some(noted) => (noted, true),
            None => (known.strip_prefix(NOT_EXECUTED)?, false),
        };
        let (phase, attempt) = known.rsplit_once(' ')?;
        Some(Self { phase, attempt: attempt.parse().ok()?, is_note })
    }
}

/// A row as it is grouped with others of whose calls the same is known. That does not depend on the number of attempts, so
/// each of them has one at most.
pub(crate) fn counted_alike(row: Standing) -> Standing {
    let denial = Denial::of(row.resolution.as_deref()).filter(|it| it.attempt == row.attempts);
    let attempts = row.attempts.min(1);
    let resolution = denial.map(|denial| uncalled(denial.phase, attempts));
    Standing { attempts, resolution, ..row }
}

/// What was said of an outcome that was unknown; not what a run has noted of itself.
pub(crate) fn said(resolution: Option<&str>) -> Option<&str> {
    match parts(resolution?) {
        ("", noted) if noted.starts_with(UNCALLED) => None,
        ("", said) | (said, _) => Some(said),
    }
}

/// Where an operator has finished a request. Kept, because the end of a request takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceOfFinish<'r> {
    /// Its last committed phase.
    pub(crate) recovery_point: &'r str,
    /// The phase whose call had no outcome.
    pub(crate) open_intent: Option<&'r str>,
    /// The phase whose call may have been made without an intent.
    pub(crate) perhaps_called: Option<&'r str>,
}

impl<'r> PlaceOfFinish<'r> {
    /// A build that reads nothing behind the phase takes its call for an open one, and so warns of it, too.
    pub(super) fn stored(self) -> String {
        let Self { recovery_point, open_intent, perhaps_called } = self;
        match (open_intent, perhaps_called) {
            (Some(phase), _) => format!("{FINISH} {recovery_point} {phase}"),
            (None, Some(phase)) => format!("{FINISH} {recovery_point} {phase} {PERHAPS}"),
            (None, None) => format!("{FINISH} {recovery_point}"),
        }
    }

    /// `None` of another word, and of one that a build wrote which did not keep the place.
    pub(crate) fn of(resolution: &'r str) -> Option<Self> {
        let mut parts = resolution.split(' ');
        let is_finish = parts.next() == Some(FINISH);
        let recovery_point = parts.next().filter(|_| is_finish)?;
        let (open_intent, perhaps_called) = match (parts.next(), parts.next()) {
            (phase, Some(PERHAPS)) => (None, phase),
            (phase, _) => (phase, None),
        };
        Some(Self { recovery_point, open_intent, perhaps_called })
    }
}
