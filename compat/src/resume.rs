//! [`resumed`]: how a row that one build wrote goes on under another. The engine's own rule
//! (`engine/progress.rs` of `atomic-phases`), over locks; a test there holds the two together.

use crate::lock::{Effect, Locked};

/// What is known about the call of the phase after the row's recovery point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// The row was not run since that recovery point, or the phase is local.
    NotMade,
    /// It may have been made; the provider honours the derived key.
    MayHaveBeenMade,
    /// Its intent is committed, and its outcome is not.
    IntentOpen,
}

/// How a row goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// With the next phase.
    Continues,
    /// It becomes `unknown`: a call may have been made, and may not be repeated now.
    BecomesUnknown,
}

/// Why a row is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopsBecause {
    /// There is no phase of its recovery point, or of one of its outputs.
    UnknownRecoveryPoint,
    /// The phases are there in another order.
    PhasesReordered,
    /// A call may have been made under another derived key.
    ProviderKeyChanged,
    /// A call may have been made by a phase that is local now.
    KindChanged,
}

/// What became of a row that was written under the phases `old`, with the first `done` of them
/// committed, under the phases `new`.
///
/// # Errors
/// [`StopsBecause`]: the row is left alone.
pub fn resumed(
    old: &[Locked],
    done: usize,
    call: CallState,
    new: &[Locked],
) -> Result<Resumed, StopsBecause> {
    let is_known = |phase: &Locked| new.iter().any(|known| known.is_called(&phase.name));
    let committed = &old[..done.min(old.len())];
    if !committed.iter().all(is_known) {
        return Err(StopsBecause::UnknownRecoveryPoint);
    }
    let in_order = committed
        .iter()
        .enumerate()
        .all(|(index, phase)| new.get(index).is_some_and(|known| known.is_called(&phase.name)));
    if !in_order || done >= new.len() {
        return Err(StopsBecause::PhasesReordered);
    }
    let next = old.get(done).ok_or(StopsBecause::UnknownRecoveryPoint)?;
    if !may_have_been_called(next, call) {
        return Ok(Resumed::Continues);
    }
    let ahead = new.iter().skip(done);
    let Some((behind, phase)) = ahead.enumerate().find(|(_, phase)| is_same_call(phase, next))
    else {
        return Err(StopsBecause::ProviderKeyChanged);
    };
    match phase.effect {
        Effect::Local => Err(StopsBecause::KindChanged),
        _ if phase.provider_key() != next.provider_key() => Err(StopsBecause::ProviderKeyChanged),
        _ if behind > 0 => Err(StopsBecause::PhasesReordered),
        Effect::AtMostOnce if call != CallState::IntentOpen => Ok(Resumed::BecomesUnknown),
        Effect::AtMostOnce | Effect::Idempotent { .. } => Ok(Resumed::Continues),
    }
}

fn may_have_been_called(next: &Locked, call: CallState) -> bool {
    match next.effect {
        Effect::Local => false,
        Effect::Idempotent { .. } => call != CallState::NotMade,
        Effect::AtMostOnce => call == CallState::IntentOpen,
    }
}

/// Whether the provider of `phase` would take its call for that of `written`, or both have one name.
fn is_same_call(phase: &Locked, written: &Locked) -> bool {
    let both_are_foreign = phase.effect.is_foreign() && written.effect.is_foreign();
    let same_key = both_are_foreign && phase.provider_key() == written.provider_key();
    phase.is_called(&written.name) || same_key
}
