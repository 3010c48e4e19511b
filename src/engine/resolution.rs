//! The stored form of a resolution of an unknown outcome.

use crate::definition::Phase;
use crate::store::KeyRow;

const FINISH: &str = "finish";
const UNCALLED: &str = "uncalled ";

/// The call of `phase` had its effect. Stored, so that a repeated resolution can be distinguished from a
/// different one.
pub(super) fn executed(phase: &Phase) -> String {
    format!("executed {}", phase.name)
}

/// The call of `phase` in this attempt had none.
pub(super) fn not_executed(phase: &Phase, attempt: u32) -> String {
    format!("not_executed {} {attempt}", phase.name)
}

/// Up to the end of this attempt `phase`, a foreign one, was not called, or its calls had no effect, as the run itself knows:
/// stored with the release. It contradicts no resolution: a webhook may know better.
pub(super) fn uncalled(phase: &Phase, attempt: u32) -> Option<String> {
    (!phase.kind.is_local()).then(|| format!("{UNCALLED}{} {attempt}", phase.name))
}

/// Whether a request of so many attempts has called nothing that its provider could know: it never ran, no attempt came to
/// its call, or it was said that the call of the last attempt had no effect. The window of a provider that forgets calls
/// begins then with the next attempt (G11).
pub(crate) fn knows_no_call(resolution: Option<&str>, attempts: u32, next: &Phase) -> bool {
    attempts == 0
        || resolution.is_some_and(|said| {
            said == not_executed(next, attempts)
                || Some(said) == uncalled(next, attempts).as_deref()
        })
}

/// What was said of an outcome that was unknown; not what a run has noted of itself.
pub(crate) fn said(resolution: Option<&str>) -> Option<&str> {
    resolution.filter(|said| !said.starts_with(UNCALLED))
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
