//! The stored form of a resolution of an unknown outcome.

use crate::definition::Phase;

/// The call of `phase` had its effect. Stored, so that a repeated resolution can be distinguished from a
/// different one.
pub(super) fn executed(phase: &Phase) -> String {
    format!("executed {}", phase.name)
}

/// The call of `phase` in this attempt had none.
pub(super) fn not_executed(phase: &Phase, attempt: u32) -> String {
    format!("not_executed {} {attempt}", phase.name)
}
