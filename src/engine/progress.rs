//! Whether this process may continue a stored row, and where: pure functions over the row and the
//! phases that this process knows.
//!
//! A row may have been written by another build. What decides is the text of the phases that the row
//! was last run under (`definition::PhaseList`) and the names of its outputs. What is not understood
//! is left as it is, for a node that knows it (G14).

use std::sync::Arc;
use std::time::Duration;

use atomic_phases_compat::{
    CallState, Class, KnownPhase, Resumed, StopsBecause, Written, after_call, phases_done,
};

use super::StrandedBecause;
use super::resolution::Denial;
use crate::definition::{Definition, ListedKind, ListedPhase, Phase, PhaseList, STARTED};
use crate::derived_key::{Derivation, DerivedKeys};
use crate::store::census::CensusGroup;
use crate::store::operators::ListedRequest;
use crate::store::{KeyRow, Standing, Status};

/// How a row that this process knows continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// With the next phase.
    Continues,
    /// The next phase's call may have been made without an intent, and must not be made again (G2).
    CallMayHaveBeenMade,
}

/// A call that may have been made, and be under way, when this process comes to its row.
#[derive(Clone)]
pub(crate) struct OpenCall {
    /// Its phase.
    pub(crate) index: usize,
    /// How its derived key was made (G1).
    pub(crate) derivation: Arc<Derivation>,
    /// The time limit that it was begun under (G2).
    pub(crate) time_limit: Duration,
}

impl KnownPhase for Phase {
    fn is_called(&self, name: &str) -> bool {
        Phase::is_called(self, name)
    }

    fn class(&self) -> Class {
        ListedKind::of(self.kind).into()
    }

    fn provider_key(&self) -> &str {
        self.key_name()
    }
}

impl From<ListedKind> for Class {
    fn from(kind: ListedKind) -> Self {
        match kind {
            ListedKind::Local => Self::Local,
            ListedKind::Idempotent => Self::Idempotent,
            ListedKind::AtMostOnce => Self::AtMostOnce,
        }
    }
}

/// Where a row stands, and under what it was run last: what is known of its call. Made of each form in which a row is read,
/// and of nothing else.
#[derive(Clone, Copy)]
pub(crate) struct Stands<'a> {
    pub(crate) recovery_point: &'a str,
    pub(crate) phases: &'a str,
    pub(crate) open_intent: Option<&'a str>,
    pub(crate) resolution: Option<&'a str>,
    attempts: u32,
    /// Its outcome is unknown, and a worker is to ask for it.
    is_to_be_asked: bool,
}

/// The columns have one name in each form. What differs: the status, and how it says that a worker is to look at the row.
macro_rules! stands {
    ($($form:ty: |$row:ident| $looked_at:expr;)*) => {
        $(impl<'a> From<&'a $form> for Stands<'a> {
            fn from($row: &'a $form) -> Self {
                let (status, for_workers): (&str, bool) = $looked_at;
                Self {
                    recovery_point: &$row.recovery_point,
                    phases: &$row.phases,
                    open_intent: $row.open_intent.as_deref(),
                    resolution: $row.resolution.as_deref(),
                    attempts: $row.attempts,
                    is_to_be_asked: for_workers && status == Status::Unknown.as_str(),
                }
            }
        })*
    };
}

stands! {
    KeyRow: |row| (row.status.as_str(), row.for_workers);
    ListedRequest: |row| (row.status.as_str(), row.run_after.is_some());
    CensusGroup: |row| (row.status.as_str(), row.is_due.is_some());
    // It does not say who is to look at its rows.
    Standing: |row| (row.status.as_str(), false);
}

impl<'a> Stands<'a> {
    /// The same row when it stood behind another recovery point.
    pub(crate) fn at(self, recovery_point: &'a str) -> Self {
        Self { recovery_point, ..self }
    }

    /// Whether a worker is to ask for its outcome, and this build has no function that does. `next`: its phase behind the
    /// recovery point, whose call is the only one that can have no outcome.
    pub(crate) fn is_unasked(&self, next: Option<&Phase>) -> bool {
        self.is_to_be_asked && next.is_some_and(|next| !next.kind.is_local() && !next.reconciles)
    }

    /// How many phases are done of `listed`, which it was run under: its outputs have their names, or names that they had
    /// before. `None`: the list has no phase of its recovery point.
    pub(crate) fn done(&self, listed: &[ListedPhase], known: &[impl KnownPhase]) -> Option<usize> {
        let point = self.recovery_point;
        if point == STARTED {
            return Some(0);
        }
        // Another phase may have taken a name that this one had before.
        let named = listed.iter().position(|phase| phase.name == point);
        let renamed = || listed.iter().position(|phase| are_one(known, &phase.name, point));
        Some(named.or_else(renamed)? + 1)
    }

    /// What is known of the call of `next`, which is the next phase in the list that it was run under, behind `done` others:
    /// the only call that can be open. No other code judges it. `known`: the phases of the build that asks.
    ///
    /// | the row | the call |
    /// |---|---|
    /// | has an open intent | may have been made: it is under way, or its outcome is unknown (G2, G11) |
    /// | was never run | was not made |
    /// | says of its last attempt, by a resolution or a note of its run, that no call had an effect | was not made |
    /// | otherwise, at an idempotent phase | may have been made, without an intent |
    /// | otherwise | was not made: an `at_most_once` phase would have stored its intent |
    pub(crate) fn call(
        &self,
        next: &ListedPhase,
        done: usize,
        known: &[impl KnownPhase],
    ) -> CallState {
        // A resolution has the name that its build has for it. A build that could not decode the row, and so left the list as
        // it was, may have another phase here.
        let is_next = |name: &str| {
            are_one(known, name, &next.name) || known.get(done).is_some_and(|it| it.is_called(name))
        };
        let denial = Denial::of(self.resolution);
        let is_denied = denial.is_some_and(|it| it.attempt == self.attempts && is_next(it.phase));
        match next.kind {
            _ if self.open_intent.is_some() => CallState::IntentOpen,
            ListedKind::Idempotent if self.attempts > 0 && !is_denied => CallState::MayHaveBeenMade,
            ListedKind::Local | ListedKind::Idempotent | ListedKind::AtMostOnce => {
                CallState::NotMade
            }
        }
    }

    /// The next phase, if its call may have been made without an intent.
    pub(super) fn called_without_intent(&self, known: &[impl KnownPhase]) -> Option<String> {
        let PhaseList { phases: listed, .. } = PhaseList::parse(self.phases)?;
        let done = self.done(&listed, known)?;
        let next = listed.into_iter().nth(done)?;
        (self.call(&next, done, known) == CallState::MayHaveBeenMade).then_some(next.name)
    }

    /// What is known of the call of `next`, and how the row continues behind it under the phases of the build that asks.
    pub(crate) fn resumed(
        &self,
        next: &ListedPhase,
        done: usize,
        known: &[impl KnownPhase],
    ) -> Result<(CallState, Resumed), StopsBecause> {
        let call = self.call(next, done, known);
        let name = self.open_intent.unwrap_or(&next.name);
        let called = Written { name, class: next.kind.into(), provider_key: &next.key_name };
        let resumed = after_call(called, call, known.get(done..).unwrap_or_default())?;
        Ok((call, resumed))
    }
}

/// Whether both are names of one phase.
pub(crate) fn are_one(known: &[impl KnownPhase], name: &str, other: &str) -> bool {
    name == other || known.iter().any(|phase| phase.is_called(name) && phase.is_called(other))
}

/// Compares what the row was run under with `definition`. The rule is that of the lock files
/// (`atomic_phases_compat`): what is said of a change is what happens to its rows. `keys`: what this process
/// makes derived keys with, which is in no lock file. `committed`: the names of the phases that have an output.
pub(crate) fn progress<'n>(
    definition: &Definition,
    keys: &DerivedKeys,
    row: &Stands<'_>,
    committed: impl Iterator<Item = &'n str> + Clone,
) -> Result<(Progress, Option<OpenCall>), StrandedBecause> {
    let done = done(definition, row.recovery_point, committed)?;
    let written = PhaseList::parse(row.phases).ok_or(StrandedBecause::NewerForm)?;
    // Between two recovery points there is one call at most, and it is that of the next phase.
    let next = written.phases.get(done).ok_or(StrandedBecause::UnknownRecoveryPoint)?;
    let (call, resumed) = row.resumed(next, done, definition.phases)?;
    let open = match Class::from(next.kind).may_have_been_called(call) {
        true => {
            let derivation = keys.marked(written.keys.as_deref());
            let derivation = derivation.ok_or(StrandedBecause::DerivedKeysChanged)?.clone();
            Some(OpenCall { index: done, derivation, time_limit: next.time_limit })
        }
        false => None,
    };
    let progress = match resumed {
        Resumed::Continues => Progress::Continues,
        Resumed::BecomesUnknown => Progress::CallMayHaveBeenMade,
    };
    Ok((progress, open))
}

/// How many phases are done. Phases that were renamed (`was`) or added behind its recovery point do
/// not touch a row; anything else leaves it to a node that knows it (G14).
fn done<'n>(
    definition: &Definition,
    recovery_point: &str,
    committed: impl Iterator<Item = &'n str> + Clone,
) -> Result<usize, StrandedBecause> {
    let phases = definition.phases;
    if recovery_point != STARTED && !phases.iter().any(|phase| phase.is_called(recovery_point)) {
        return Err(StrandedBecause::UnknownRecoveryPoint);
    }
    let done = phases_done(committed, phases)?;
    let stands_there = match done.checked_sub(1).and_then(|last| phases.get(last)) {
        None => recovery_point == STARTED,
        Some(last) => last.is_called(recovery_point),
    };
    match stands_there {
        true => Ok(done),
        false => Err(StrandedBecause::PhasesReordered),
    }
}

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod tests;
