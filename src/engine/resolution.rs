//! How a word about an unknown outcome is kept in the row.

use crate::definition::Phase;

/// The call of `phase` had its effect. Kept so that another word can be told from its repetition.
pub(super) fn executed(phase: &Phase) -> String {
    format!("executed {}", phase.name)
}

/// The call of `phase` in this attempt had none.
pub(super) fn not_executed(phase: &Phase, attempt: u32) -> String {
    format!("not_executed {} {attempt}", phase.name)
}
