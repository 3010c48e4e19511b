//! Whether this process may continue a stored row, and where: pure functions over the row and the
//! phases that this process knows.
//!
//! A row may have been written by another build. What decides is the text of the phases that the row
//! was last run under (`definition::PhaseList`) and the names of its outputs. What is not understood
//! is left as it is, for a node that knows it (G14).

use std::sync::Arc;
use std::time::Duration;

use atomic_phases_compat::{
    CallState, Class, KnownPhase, Resumed, Written, after_call, phases_done,
};

use super::StrandedBecause;
use super::resolution::denied;
use crate::definition::{Definition, ListedKind, Phase, PhaseList, STARTED};
use crate::derived_key::{Derivation, DerivedKeys};
use crate::store::{KeyRow, Status};

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
        class(ListedKind::of(self.kind))
    }

    fn provider_key(&self) -> &str {
        self.key_name()
    }
}

fn class(kind: ListedKind) -> Class {
    match kind {
        ListedKind::Local => Class::Local,
        ListedKind::Idempotent => Class::Idempotent,
        ListedKind::AtMostOnce => Class::AtMostOnce,
    }
}

/// Where a row stands, and under what it was run last.
#[derive(Clone, Copy)]
pub(crate) struct Stands<'a> {
    pub(crate) recovery_point: &'a str,
    pub(crate) phases: &'a str,
    pub(crate) open_intent: Option<&'a str>,
    pub(crate) resolution: Option<&'a str>,
    pub(crate) attempts: u32,
    /// Its outcome is unknown, and a worker is to ask for it.
    pub(crate) is_to_be_asked: bool,
}

impl<'a> From<&'a KeyRow> for Stands<'a> {
    fn from(row: &'a KeyRow) -> Self {
        Self {
            recovery_point: &row.recovery_point,
            phases: &row.phases,
            open_intent: row.open_intent.as_deref(),
            resolution: row.resolution.as_deref(),
            attempts: row.attempts,
            is_to_be_asked: row.status == Status::Unknown && row.for_workers,
        }
    }
}

impl Stands<'_> {
    /// Whether a worker is to ask for its outcome, and this definition has no function that does.
    pub(crate) fn is_unasked(&self, definition: &Definition) -> bool {
        let asks = |phase: &Phase| {
            phase.reconciles && self.open_intent.is_some_and(|name| phase.is_called(name))
        };
        self.is_to_be_asked && !definition.phases.iter().any(asks)
    }

    /// The phases that are committed, by the list that it was run under: its outputs have their names, or names
    /// that they had before. `None`: the list has no phase of its recovery point, or is of an unknown form.
    pub(crate) fn committed(&self, definition: &Definition) -> Option<Vec<String>> {
        let listed = PhaseList::parse(self.phases)?.phases;
        let point = self.recovery_point;
        if point == STARTED {
            return Some(Vec::new());
        }
        let is_point = |name: &str| {
            let both = |phase: &Phase| phase.is_called(name) && phase.is_called(point);
            name == point || definition.phases.iter().any(both)
        };
        let last = listed.iter().position(|phase| is_point(&phase.name))?;
        Some(listed.into_iter().take(last + 1).map(|phase| phase.name).collect())
    }
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
    // Another phase may have been added in front of it, and it may have another name here.
    let here = definition.phases.get(done);
    let is_next = |name: &str| name == next.name || here.is_some_and(|phase| phase.is_called(name));
    let call = match row.attempts {
        // Never run, so nothing was called.
        0 => CallState::NotMade,
        _ if row.open_intent.is_some() => CallState::IntentOpen,
        // As the last attempt knew, or a resolution has said since then.
        _ if denied(row.resolution, row.attempts).is_some_and(is_next) => CallState::NotMade,
        _ => CallState::MayHaveBeenMade,
    };
    let name = row.open_intent.unwrap_or(&next.name);
    let called = Written { name, class: class(next.kind), provider_key: &next.key_name };
    let resumed = after_call(called, call, definition.phases.get(done..).unwrap_or_default())?;
    let open = match called.class.may_have_been_called(call) {
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
mod tests;
