//! [`PausedPhase`]: a foreign phase that an operator has paused, as a row of its table.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::audit::AuditEntry;

/// A foreign phase that an operator has paused: no engine begins it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedPhase {
    pub(crate) definition: String,
    pub(crate) phase: String,
    /// The operator's own words.
    pub(crate) reason: String,
    pub(crate) paused_by: String,
    pub(crate) paused_at: DateTime<Utc>,
    /// `None`: until an operator ends it.
    pub(crate) ends_at: Option<DateTime<Utc>>,
    /// What was left of it by the database's clock when it was read.
    pub(crate) left: Option<Duration>,
}

/// The columns of a pause, in the order in which each store selects them.
pub(super) type PauseRow =
    ((String, String, String, String), (DateTime<Utc>, Option<DateTime<Utc>>, DateTime<Utc>));

pub(super) fn paused_phase(row: PauseRow) -> PausedPhase {
    let ((definition, phase, reason, paused_by), (paused_at, ends_at, now)) = row;
    let left = ends_at.map(|ends| (ends - now).to_std().unwrap_or_default());
    PausedPhase { definition, phase, reason, paused_by, paused_at, ends_at, left }
}

/// What is to become of a phase, and the audit row of that.
pub struct PauseAct<'a> {
    pub(crate) definition: &'a str,
    pub(crate) phase: &'a str,
    pub(crate) what: PauseWhat<'a>,
    /// Says who and why, too. How the phase stood before and stands after is added in the transaction of the act: `runs`,
    /// `paused`, or `paused until` and a time.
    pub(crate) audit: &'a AuditEntry,
}

/// What becomes of a phase. A pause that is replaced or ended has to be the one that was seen, in every column, and to last:
/// two pauses may begin in one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseWhat<'a> {
    /// It is not paused, nor are [so many](MAX_PAUSES) others, and is paused for so long, or until an operator ends that.
    Begin(Option<Duration>),
    /// The same in the place of this pause.
    Replace(&'a PausedPhase, Option<Duration>),
    /// This pause ends.
    End(&'a PausedPhase),
}

/// How many phases are paused at a time, at most. The statements that begin a pause have this number in their text, and
/// those that read the pauses a hundred more: operators may pause the last phases concurrently.
pub(crate) const MAX_PAUSES: usize = 1000;

/// How long the name of a definition or of a phase is at most, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Whether a definition or a phase may be called so: as each store keeps it.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.contains(char::is_control)
}
