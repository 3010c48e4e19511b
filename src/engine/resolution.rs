//! The stored form of a resolution of an unknown outcome.

use crate::definition::Phase;
use crate::store::KeyRow;

const FINISH: &str = "finish";
const RETRY: &str = "retry";
/// A retry, in front of what was known of the calls before it.
const RETRIED: &str = "retry ";
const NOT_EXECUTED: &str = "not_executed ";
const UNCALLED: &str = "uncalled ";

/// The call of `phase` had its effect. Stored, so that a repeated resolution can be distinguished from a
/// different one.
pub(super) fn executed(phase: &Phase) -> String {
    format!("executed {}", phase.name)
}

/// The call of `phase` in this attempt had none.
pub(super) fn not_executed(phase: &Phase, attempt: u32) -> String {
    format!("{NOT_EXECUTED}{} {attempt}", phase.name)
}

/// Up to the end of this attempt `phase`, a foreign one, was not called, or its calls had no effect, as the run itself knows:
/// stored with the release. It contradicts no resolution: a webhook may know better.
pub(super) fn uncalled(phase: &Phase, attempt: u32) -> Option<String> {
    (!phase.kind.is_local()).then(|| format!("{UNCALLED}{} {attempt}", phase.name))
}

/// An operator lets the request try again. What is known of its calls stays known.
pub(super) fn retried(resolution: Option<&str>) -> String {
    let known = resolution.map(before_retry);
    let is_of_calls = |known: &&str| known.starts_with(NOT_EXECUTED) || known.starts_with(UNCALLED);
    match known.filter(is_of_calls) {
        Some(known) => format!("{RETRIED}{known}"),
        None => RETRY.to_owned(),
    }
}

/// What was stored before an operator let the request try again.
pub(super) fn before_retry(resolution: &str) -> &str {
    resolution.strip_prefix(RETRIED).unwrap_or(resolution)
}

/// Whether a request of so many attempts has called nothing that its provider could know: it never ran, no attempt came to
/// its call, or it was said that the call of the last attempt had no effect. The window of a provider that forgets calls
/// begins then with the next attempt (G11).
pub(crate) fn knows_no_call(resolution: Option<&str>, attempts: u32, next: &Phase) -> bool {
    attempts == 0 || denied(resolution, attempts).is_some_and(|phase| next.is_called(phase))
}

/// The phase of which it is known that no call up to the end of this attempt had an effect: as the build called it that
/// wrote so.
pub(crate) fn denied(resolution: Option<&str>, attempts: u32) -> Option<&str> {
    let known = before_retry(resolution?);
    let known = known.strip_prefix(NOT_EXECUTED).or_else(|| known.strip_prefix(UNCALLED))?;
    let (phase, attempt) = known.rsplit_once(' ')?;
    (attempt.parse::<u32>() == Ok(attempts)).then_some(phase)
}

/// What was said of an outcome that was unknown; not what a run has noted of itself.
pub(crate) fn said(resolution: Option<&str>) -> Option<&str> {
    match resolution? {
        noted if noted.starts_with(UNCALLED) => None,
        retried if retried.starts_with(RETRIED) => Some(RETRY),
        said => Some(said),
    }
}

/// An operator has finished the request where it stood. Kept with that place, which the end of a request takes away.
pub(super) fn finished_at(row: &KeyRow) -> String {
    let call = row.open_intent.as_deref().unwrap_or_default();
    format!("{FINISH} {} {call}", row.recovery_point).trim_end().to_owned()
}

/// Where an operator has finished a request: its last committed phase, and the call that had no outcome. `None` of
/// another word, and of one that a build wrote which did not keep the place.
pub(crate) fn place_of_finish(resolution: &str) -> Option<(&str, Option<&str>)> {
    let mut parts = resolution.split(' ');
    let is_finish = parts.next() == Some(FINISH);
    parts.next().filter(|_| is_finish).map(|point| (point, parts.next()))
}
