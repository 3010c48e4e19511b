//! How a row that one build wrote continues under another: the rule, in one place. [`compare`](crate::compare)
//! asks it about every state in which a row can be, through [`resumed`]; the engine about each row that it
//! resumes, through [`phases_done`] and [`after_call`].

use crate::lock::{Effect, Locked};

/// What the provider of a phase promises, as far as a row has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It has none: the phase works in the database.
    Local,
    /// It honors the derived key.
    Idempotent,
    /// It honors no key.
    AtMostOnce,
}

impl Class {
    /// Whether a phase of this class may have had its effect.
    #[must_use]
    pub fn may_have_been_called(self, call: CallState) -> bool {
        match self {
            Self::Local => false,
            Self::Idempotent => call != CallState::NotMade,
            Self::AtMostOnce => call == CallState::IntentOpen,
        }
    }
}

/// A phase that a row was written under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written<'p> {
    /// The name that it had; that of its intent, where one is open.
    pub name: &'p str,
    /// Where its effect was.
    pub class: Class,
    /// The name that its derived key was made of.
    pub provider_key: &'p str,
}

/// A phase of the build that the row comes to.
pub trait KnownPhase {
    /// Whether a row that says `name` means it.
    fn is_called(&self, name: &str) -> bool;
    /// Where its effect is.
    fn class(&self) -> Class;
    /// The name that its derived key is made of.
    fn provider_key(&self) -> &str;
}

impl KnownPhase for Locked {
    fn is_called(&self, name: &str) -> bool {
        Locked::is_called(self, name)
    }

    fn class(&self) -> Class {
        match self.effect {
            Effect::Local => Class::Local,
            Effect::Idempotent { .. } => Class::Idempotent,
            Effect::AtMostOnce => Class::AtMostOnce,
        }
    }

    fn provider_key(&self) -> &str {
        Locked::provider_key(self)
    }
}

/// What is known about the call of the phase after the row's recovery point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// It was not made, or had no effect: the row was not run since that recovery point, or says so. Also of a local phase.
    NotMade,
    /// It may have been made; the provider honors the derived key.
    MayHaveBeenMade,
    /// Its intent is committed, and its outcome is not.
    IntentOpen,
}

/// How a row continues.
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

/// How many phases of `known` are done, for a row with the outputs of phases that were called `committed`.
///
/// # Errors
/// [`StopsBecause`]: the row is left alone.
pub fn phases_done<'n>(
    committed: impl Iterator<Item = &'n str> + Clone,
    known: &[impl KnownPhase],
) -> Result<usize, StopsBecause> {
    if !committed.clone().all(|name| known.iter().any(|phase| phase.is_called(name))) {
        return Err(StopsBecause::UnknownRecoveryPoint);
    }
    let mut done = 0;
    for name in committed {
        if !known.get(done).is_some_and(|phase| phase.is_called(name)) {
            return Err(StopsBecause::PhasesReordered);
        }
        done += 1;
    }
    // The last phase has a reply and no output: a row that has all outputs is of another list.
    match done < known.len() {
        true => Ok(done),
        false => Err(StopsBecause::PhasesReordered),
    }
}

/// How a row continues behind its recovery point: `next` is the phase there that it was last run under, whose
/// call is the only one that can be open, and `ahead` are the phases that are there now.
///
/// # Errors
/// [`StopsBecause`]: the row is left alone.
pub fn after_call(
    next: Written<'_>,
    call: CallState,
    ahead: &[impl KnownPhase],
) -> Result<Resumed, StopsBecause> {
    if !next.class.may_have_been_called(call) {
        return Ok(Resumed::Continues);
    }
    // It must be the next phase here, too. Behind another phase, or taken out, it would be forgotten as
    // soon as the row is run under this build's list: the build after it could call again (G1, G2).
    let same_call = ahead.iter().enumerate().find(|(_, phase)| is_same_call(*phase, next));
    let Some((behind, phase)) = same_call else { return Err(StopsBecause::ProviderKeyChanged) };
    match phase.class() {
        Class::Local => Err(StopsBecause::KindChanged),
        _ if phase.provider_key() != next.provider_key => Err(StopsBecause::ProviderKeyChanged),
        _ if behind > 0 => Err(StopsBecause::PhasesReordered),
        // The outcome of an intent whose name means nothing here cannot be found out.
        _ if call == CallState::IntentOpen && !phase.is_called(next.name) => {
            Err(StopsBecause::UnknownRecoveryPoint)
        }
        Class::AtMostOnce if call != CallState::IntentOpen => Ok(Resumed::BecomesUnknown),
        Class::AtMostOnce | Class::Idempotent => Ok(Resumed::Continues),
    }
}

/// Whether the provider of `phase` would take its call for that of `written`, or both have one name.
fn is_same_call(phase: &impl KnownPhase, written: Written<'_>) -> bool {
    let both_are_foreign = phase.class() != Class::Local && written.class != Class::Local;
    let same_key = both_are_foreign && phase.provider_key() == written.provider_key;
    phase.is_called(written.name) || same_key
}

/// The outcome of a row that was written under the phases `old`, with the first `done` of them
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
    let committed = old.iter().take(done).map(|phase| phase.name.as_str());
    let done = phases_done(committed, new)?;
    let next = old.get(done).ok_or(StopsBecause::UnknownRecoveryPoint)?;
    let next = Written { name: &next.name, class: next.class(), provider_key: next.provider_key() };
    after_call(next, call, new.get(done..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Output;

    fn once(name: &str, was: &[&str]) -> Locked {
        Locked {
            name: name.to_owned(),
            was: was.iter().map(|name| (*name).to_owned()).collect(),
            effect: Effect::AtMostOnce,
            reconciles: false,
            derived: None,
            output: Output::Reply,
            asked_by: None,
        }
    }

    #[test]
    fn g2_an_intent_whose_name_means_nothing_here_is_left_to_the_build_that_knows_it() {
        let (before, renamed) = ([once("pay", &[])], [once("paid", &["pay"])]);
        let rolled_back = |call| resumed(&renamed, 0, call, &before);
        assert_eq!(rolled_back(CallState::IntentOpen), Err(StopsBecause::UnknownRecoveryPoint));
        assert_eq!(rolled_back(CallState::NotMade), Ok(Resumed::Continues));
        let deployed = resumed(&before, 0, CallState::IntentOpen, &renamed);
        assert_eq!(deployed, Ok(Resumed::Continues));
    }
}
