//! Whether this process may go on with a stored row, and where: pure functions over the row and the
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

use super::resolution::not_executed;
use crate::definition::{Definition, ListedKind, Phase, PhaseList, STARTED};
use crate::derived_key::{Derivation, DerivedKeys};
use crate::store::{KeyRow, Status};

/// Why this process does not continue a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StrandedBecause {
    /// No definition of that name is registered.
    UnknownDefinition,
    /// The definition is registered, but not in that version. Register that version as well until its rows
    /// have ended.
    UnknownVersion,
    /// The definition has no phase of that name. Keep the phase, or name it in a `was = ".."`.
    UnknownRecoveryPoint,
    /// The definition knows the row's phases, but not in this order: a phase was inserted or moved before the
    /// row's recovery point, or before a call that may have been made. Run the previous build until these
    /// rows have continued, or put the phase elsewhere.
    PhasesReordered,
    /// The call that may have been made used a derived key that this build would not use, because the oldest
    /// `was` was dropped, or the phase was renamed without one or removed. Calling again would be a second
    /// effect (G1). Restore the phase or its `was`, or run the previous build until these rows have
    /// continued.
    ProviderKeyChanged,
    /// The call that may have been made used a derived key of another secret or salt, which this process does
    /// not have. Calling again would be a second effect (G1). Pass that secret to
    /// [`DerivedKeys::also_continue`](crate::config::DerivedKeys::also_continue).
    DerivedKeysChanged,
    /// A phase whose call may have been made is now local. Run the previous build until these rows have
    /// continued.
    KindChanged,
    /// The call was declared idempotent when the row ran, so it may have been made without an intent; now it
    /// is declared `at_most_once` (G2). The row becomes `unknown` when it is resumed.
    CallMayHaveBeenMade,
    /// The outcome of its call is unknown, and the phase has no reconcile function in this build. A build
    /// that has one calls it, or an operator settles the request.
    NotAskedHere,
    /// A newer build of this crate wrote the row, with a format of the fingerprint or the phase list that
    /// this one does not know.
    NewerForm,
    /// The codec of this process cannot decode the stored values, most likely because it has another secret.
    Sealed,
    /// The stored parameters do not decode as the registered type. Each attempt fails, up to the
    /// attempt cap.
    ParametersUndecodable,
    /// A stored output does not decode as the type that a later phase asks for, or the stored context
    /// is no JSON. Each attempt fails, up to the attempt cap.
    OutputsUndecodable,
}

impl StrandedBecause {
    /// The explanation for an operator.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownDefinition => "its definition is not registered here",
            Self::UnknownVersion => "its definition is registered here in other versions only",
            Self::UnknownRecoveryPoint => {
                "the definition has no phase of its recovery point: keep the phase, or name it in `was`"
            }
            Self::PhasesReordered => {
                "a phase was inserted or moved before its recovery point or before its call"
            }
            Self::ProviderKeyChanged => {
                "a call may have been made under another provider key: restore its phase, or the oldest `was`"
            }
            Self::DerivedKeysChanged => {
                "a call may have been made under another secret of the derived keys: add it by `also_continue`"
            }
            Self::KindChanged => "a call may have been made by a phase that is local now",
            Self::CallMayHaveBeenMade => {
                "a call may have been made when its phase was declared idempotent, without an intent"
            }
            Self::NotAskedHere => {
                "its outcome is unknown, and its phase has no reconcile function in this build"
            }
            Self::NewerForm => "it was written by a newer version of atomic-phases",
            Self::Sealed => "the codec of this process cannot open its stored values",
            Self::ParametersUndecodable => {
                "its stored parameters do not decode as the registered type"
            }
            Self::OutputsUndecodable => {
                "its stored outputs do not decode as the types that the later phases ask for"
            }
        }
    }

    /// What to do, where [`as_str`](Self::as_str) does not say it.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::UnknownDefinition | Self::UnknownVersion => {
                Some("register it beside the others until its rows have ended")
            }
            Self::PhasesReordered => Some(
                "run the build before until these rows have moved on; put the phase directly before the last, or \
                 make the change in a new version",
            ),
            Self::KindChanged => Some("run the build before until these rows have moved on"),
            Self::CallMayHaveBeenMade => {
                Some("declare the new class in a new version, and let the old one drain")
            }
            Self::NotAskedHere => Some("run a build that asks it, or settle it as an operator"),
            Self::NewerForm => Some("run the newer build"),
            Self::Sealed => Some("give the process the secret that sealed them"),
            Self::ParametersUndecodable | Self::OutputsUndecodable => {
                Some("give the new field a default, or keep the old form readable")
            }
            Self::UnknownRecoveryPoint | Self::ProviderKeyChanged | Self::DerivedKeysChanged => {
                None
            }
        }
    }

    /// One word, for a metric's label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::UnknownDefinition => "unknown_definition",
            Self::UnknownVersion => "unknown_version",
            Self::UnknownRecoveryPoint => "unknown_recovery_point",
            Self::PhasesReordered => "phases_reordered",
            Self::ProviderKeyChanged => "provider_key_changed",
            Self::DerivedKeysChanged => "derived_keys_changed",
            Self::KindChanged => "kind_changed",
            Self::CallMayHaveBeenMade => "call_may_have_been_made",
            Self::NotAskedHere => "not_asked_here",
            Self::NewerForm => "newer_form",
            Self::Sealed => "sealed",
            Self::ParametersUndecodable => "parameters_undecodable",
            Self::OutputsUndecodable => "outputs_undecodable",
        }
    }
}

impl std::fmt::Display for StrandedBecause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a row that this process knows goes on.
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

impl From<StopsBecause> for StrandedBecause {
    fn from(because: StopsBecause) -> Self {
        match because {
            StopsBecause::UnknownRecoveryPoint => Self::UnknownRecoveryPoint,
            StopsBecause::PhasesReordered => Self::PhasesReordered,
            StopsBecause::ProviderKeyChanged => Self::ProviderKeyChanged,
            StopsBecause::KindChanged => Self::KindChanged,
        }
    }
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
    let is_denied = |phase| row.resolution == Some(&not_executed(phase, row.attempts));
    let call = match row.attempts {
        // Never run, so nothing was called.
        0 => CallState::NotMade,
        _ if row.open_intent.is_some() => CallState::IntentOpen,
        // As somebody who knows has said since the last attempt.
        _ if definition.phases.get(done).is_some_and(is_denied) => CallState::NotMade,
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
mod tests {
    use super::*;
    use crate::definition::{EffectClass, Isolation, PhaseKind};
    use std::time::Duration;

    const fn phase(name: &'static str, was: &'static [&'static str], kind: PhaseKind) -> Phase {
        Phase { name, was, kind, commit: false, timeout: None, reconciles: false }
    }

    const fn local(name: &'static str, was: &'static [&'static str]) -> Phase {
        phase(name, was, PhaseKind::Local(Isolation::ReadCommitted))
    }

    const fn idempotent(name: &'static str, was: &'static [&'static str]) -> Phase {
        phase(name, was, PhaseKind::Foreign(EffectClass::Idempotent { window: None }))
    }

    const fn windowed(name: &'static str) -> Phase {
        let window = Some(Duration::from_secs(86_400));
        phase(name, &[], PhaseKind::Foreign(EffectClass::Idempotent { window }))
    }

    const fn at_most_once(name: &'static str, was: &'static [&'static str]) -> Phase {
        phase(name, was, PhaseKind::Foreign(EffectClass::AtMostOnce))
    }

    fn done_of(
        phases: &'static [Phase],
        point: &str,
        stored: &[&str],
    ) -> Result<usize, StrandedBecause> {
        done(&Definition { name: "d", version: 1, phases }, point, stored.iter().copied())
    }

    #[test]
    fn g14_a_row_of_the_same_list_resumes_after_its_recovery_point() {
        const LIST: &[Phase] = &[local("a", &[]), local("b", &[]), local("c", &[])];
        assert_eq!(done_of(LIST, "started", &[]), Ok(0));
        assert_eq!(done_of(LIST, "a", &["a"]), Ok(1));
        assert_eq!(done_of(LIST, "b", &["a", "b"]), Ok(2));
    }

    #[test]
    fn g14_renamed_and_added_phases_do_not_strand_a_row() {
        const RENAMED: &[Phase] = &[local("first", &["a"]), local("b", &[]), local("c", &[])];
        assert_eq!(done_of(RENAMED, "a", &["a"]), Ok(1));
        const LONGER: &[Phase] =
            &[local("a", &[]), local("new", &[]), local("b", &[]), local("c", &[])];
        assert_eq!(done_of(LONGER, "a", &["a"]), Ok(1));
    }

    #[test]
    fn g14_a_row_that_this_list_cannot_explain_is_left_alone() {
        use StrandedBecause::*;
        const LIST: &[Phase] =
            &[local("a", &[]), local("new", &[]), local("b", &[]), local("c", &[])];
        assert_eq!(done_of(LIST, "b", &["a", "b"]), Err(PhasesReordered), "inserted before it");
        assert_eq!(done_of(LIST, "gone", &["a", "gone"]), Err(UnknownRecoveryPoint), "removed");
        assert_eq!(done_of(LIST, "b", &["a"]), Err(PhasesReordered), "edited by hand");
        assert_eq!(done_of(LIST, "a", &[]), Err(PhasesReordered), "outputs are missing");
        const SHORT: &[Phase] = &[local("a", &[])];
        assert_eq!(done_of(SHORT, "a", &["a"]), Err(PhasesReordered), "nothing is left to reply");
    }

    /// A row behind `a`, written under `phases`.
    fn row(phases: &str) -> KeyRow {
        KeyRow {
            recovery_point: "a".into(),
            phases: phases.into(),
            ..crate::engine::decide::tests::row(Status::FailedRetryable)
        }
    }

    fn of(row: &KeyRow, phases: &'static [Phase]) -> Result<Progress, StrandedBecause> {
        under(&DerivedKeys::plain(), row, phases).map(|(progress, _)| progress)
    }

    fn under(
        keys: &DerivedKeys,
        row: &KeyRow,
        phases: &'static [Phase],
    ) -> Result<(Progress, Option<OpenCall>), StrandedBecause> {
        let definition = Definition { name: "d", version: 1, phases };
        progress(&definition, keys, &row.into(), ["a"].into_iter())
    }

    #[test]
    fn g1_a_call_under_a_secret_that_is_not_here_is_left_alone() {
        use StrandedBecause::DerivedKeysChanged;
        let secret = |byte| DerivedKeys::plain().with_secret([byte; 16]).unwrap();
        let mark = secret(1).current().mark().unwrap();
        let marked = |phases: &str| row(&format!("{phases} ={mark}"));
        const NOW: &[Phase] = &[local("a", &[]), idempotent("pay", &[]), local("c", &[])];
        const ONCE: &[Phase] = &[local("a", &[]), at_most_once("pay", &[]), local("c", &[])];
        let other = secret(2);
        let refused = |row: &KeyRow, phases| under(&other, row, phases).err();
        assert_eq!(refused(&marked("a pay=i c"), NOW), Some(DerivedKeysChanged));
        assert_eq!(refused(&row("a pay=i c"), NOW), Some(DerivedKeysChanged), "it was plain");
        assert_eq!(refused(&marked("a pay=i c"), ONCE), Some(DerivedKeysChanged));
        let with_intent = KeyRow { open_intent: Some("pay".into()), ..marked("a pay=a c") };
        assert_eq!(refused(&with_intent, ONCE), Some(DerivedKeysChanged), "it asks by its key");
        // Nothing was called: the next call is the first.
        for free in [
            marked("a pay=a c"),
            marked("a pay c"),
            KeyRow { attempts: 0, ..marked("a pay=i c") },
            KeyRow { resolution: Some(not_executed(&NOW[1], 2)), ..marked("a pay=i c") },
        ] {
            let (progress, call) = under(&other, &free, NOW).unwrap();
            assert_eq!(
                (progress, call.is_none()),
                (Progress::Continues, true),
                "{:?}",
                free.phases
            );
        }
        // With both, it goes on under the one that it was called under.
        let both = other.also_continue(secret(1));
        let (_, call) = under(&both, &marked("a pay=i c"), NOW).unwrap();
        assert_eq!(call.unwrap().derivation.mark(), Some(mark));
    }

    #[test]
    fn g2_what_was_idempotent_and_is_at_most_once_now_is_not_called_again() {
        const NOW: &[Phase] = &[local("a", &[]), at_most_once("pay", &[]), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), NOW), Ok(Progress::CallMayHaveBeenMade));
        assert_eq!(of(&row("a pay=a c"), NOW), Ok(Progress::Continues));
        assert_eq!(of(&row("a pay c"), NOW), Ok(Progress::Continues), "it was local");
        let never_run = KeyRow { attempts: 0, ..row("a pay=i c") };
        assert_eq!(of(&never_run, NOW), Ok(Progress::Continues));
        let with_intent = KeyRow { open_intent: Some("pay".into()), ..row("a pay=i c") };
        assert_eq!(of(&with_intent, NOW), Ok(Progress::Continues), "the intent decides");
        const LATER: &[Phase] =
            &[local("a", &[]), local("new", &[]), at_most_once("pay", &[]), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), LATER), Err(StrandedBecause::PhasesReordered));
        const IDEMPOTENT: &[Phase] = &[local("a", &[]), idempotent("pay", &[]), local("c", &[])];
        assert_eq!(of(&row("a pay=a c"), IDEMPOTENT), Ok(Progress::Continues));
    }

    #[test]
    fn g1_under_another_provider_key_nothing_is_called() {
        use StrandedBecause::{KindChanged, ProviderKeyChanged};
        const RENAMED: &[Phase] = &[local("a", &[]), idempotent("paid", &["pay"]), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), RENAMED), Ok(Progress::Continues));
        assert_eq!(of(&row("a pay=i(first) c"), RENAMED), Err(ProviderKeyChanged), "dropped `was`");
        const WITHOUT_WAS: &[Phase] = &[local("a", &[]), idempotent("paid", &[]), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), WITHOUT_WAS), Err(ProviderKeyChanged));
        assert_eq!(of(&row("a pay=a c"), WITHOUT_WAS), Ok(Progress::Continues), "no call was made");
        // Back on an old build, where a newer one has renamed the phase: the key is the same.
        const OLD: &[Phase] = &[local("a", &[]), idempotent("pay", &[]), local("c", &[])];
        assert_eq!(of(&row("a paid=i(pay) c"), OLD), Ok(Progress::Continues));
        const REMOVED: &[Phase] = &[local("a", &[]), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), REMOVED), Err(ProviderKeyChanged));
        assert_eq!(of(&row("a pay=a c"), REMOVED), Ok(Progress::Continues), "no call was made");
        const LOCAL: &[Phase] = &[local("a", &[]), local("pay", &[]), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), LOCAL), Err(KindChanged));
        // A reconcile function would ask by another key.
        const ONCE: &[Phase] = &[local("a", &[]), at_most_once("asked", &["pay"]), local("c", &[])];
        let with_intent = KeyRow { open_intent: Some("pay".into()), ..row("a pay=a(first) c") };
        assert_eq!(of(&with_intent, ONCE), Err(ProviderKeyChanged));
    }

    #[test]
    fn g1_g2_g11_no_phase_is_put_before_a_call_that_may_have_been_made() {
        const NOW: &[Phase] =
            &[local("a", &[]), local("new", &[]), windowed("pay"), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), NOW), Err(StrandedBecause::PhasesReordered));
        assert_eq!(of(&row("a c pay=i"), NOW), Ok(Progress::Continues), "it cannot be under way");
        // Run under this list, the row would tell the next build nothing of the call.
        const UNBOUNDED: &[Phase] =
            &[local("a", &[]), local("new", &[]), idempotent("pay", &[]), local("c", &[])];
        assert_eq!(of(&row("a pay=i c"), UNBOUNDED), Err(StrandedBecause::PhasesReordered));
        let with_intent = KeyRow { open_intent: Some("pay".into()), ..row("a pay=i c") };
        assert_eq!(of(&with_intent, UNBOUNDED), Err(StrandedBecause::PhasesReordered));
    }

    #[test]
    fn g14_a_list_of_another_form_is_left_alone() {
        const LIST: &[Phase] = &[local("a", &[]), local("b", &[])];
        assert_eq!(of(&row("a=2 b"), LIST), Err(StrandedBecause::NewerForm));
        assert_eq!(of(&row("a"), LIST), Err(StrandedBecause::UnknownRecoveryPoint));
    }

    /// Random lists: what the crate of the lock files says of a row is what is decided here.
    mod agreement {
        use super::*;
        use atomic_phases_compat::{
            CallState, Effect, Locked, Output, Resumed, StopsBecause, resumed,
        };
        use proptest::prelude::*;

        const HOUR: Duration = Duration::from_secs(3600);

        fn lists() -> impl Strategy<Value = Vec<Locked>> {
            let effect = prop_oneof![
                Just(Effect::Local),
                Just(Effect::Idempotent { window: None }),
                Just(Effect::Idempotent { window: Some(HOUR) }),
                Just(Effect::AtMostOnce)
            ];
            let names =
                prop::sample::subsequence(vec!["a", "b", "c", "d", "e"], 1..=5).prop_shuffle();
            let more = prop::collection::vec((effect, prop::option::of(0..4usize)), 5);
            (names, more).prop_map(|(names, more)| {
                let mut used: Vec<&str> = names.clone();
                let mut list = Vec::new();
                for (name, (effect, old)) in names.into_iter().zip(more) {
                    let old = old.map(|old| ["a", "b", "c", "d"][old]);
                    let was = old.filter(|old| !used.contains(old));
                    used.extend(was);
                    let was = was.into_iter().map(str::to_owned).collect();
                    let name = name.to_owned();
                    let (reconciles, derived) = (false, None);
                    list.push(Locked {
                        name,
                        was,
                        effect,
                        reconciles,
                        derived,
                        output: Output::Reply,
                        asked_by: None,
                    });
                }
                list
            })
        }

        fn text(text: &str) -> &'static str {
            text.to_owned().leak()
        }

        fn definition(list: &[Locked]) -> Definition {
            let phases = list.iter().map(|locked| {
                let was: Vec<&'static str> = locked.was.iter().map(|name| text(name)).collect();
                let kind = match locked.effect {
                    Effect::Local => PhaseKind::Local(Isolation::ReadCommitted),
                    Effect::AtMostOnce => PhaseKind::Foreign(EffectClass::AtMostOnce),
                    Effect::Idempotent { window } => {
                        PhaseKind::Foreign(EffectClass::Idempotent { window })
                    }
                };
                phase(text(&locked.name), was.leak(), kind)
            });
            let phases: Vec<Phase> = phases.collect();
            Definition { name: "d", version: 1, phases: phases.leak() }
        }

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(2000))]

            #[test]
            fn g14_the_rule_over_lock_files_is_the_rule_over_rows(old in lists(), new in lists()) {
                let (before, now) = (definition(&old), definition(&new));
                for done in 0..old.len() {
                    for call in [CallState::NotMade, CallState::MayHaveBeenMade, CallState::IntentOpen] {
                        let next = old[done].name.clone();
                        let names: Vec<&str> =
                            old[..done].iter().map(|phase| phase.name.as_str()).collect();
                        let row = KeyRow {
                            recovery_point: names.last().copied().unwrap_or(STARTED).to_owned(),
                            phases: PhaseList::of(&before).to_string(),
                            attempts: u32::from(call != CallState::NotMade),
                            open_intent: (call == CallState::IntentOpen).then_some(next),
                            ..crate::engine::decide::tests::row(Status::FailedRetryable)
                        };
                        let expected = match resumed(&old, done, call, &new) {
                            Ok(Resumed::Continues) => Ok(Progress::Continues),
                            Ok(Resumed::BecomesUnknown) => Ok(Progress::CallMayHaveBeenMade),
                            Err(because) => Err(match because {
                                StopsBecause::UnknownRecoveryPoint => {
                                    StrandedBecause::UnknownRecoveryPoint
                                }
                                StopsBecause::PhasesReordered => StrandedBecause::PhasesReordered,
                                StopsBecause::ProviderKeyChanged => {
                                    StrandedBecause::ProviderKeyChanged
                                }
                                StopsBecause::KindChanged => StrandedBecause::KindChanged,
                            }),
                        };
                        let keys = DerivedKeys::plain();
                        let decided = progress(&now, &keys, &(&row).into(), names.iter().copied());
                        let decided = decided.map(|(progress, _)| progress);
                        prop_assert_eq!(decided, expected, "{:?} {:?}", row.phases, call);
                    }
                }
            }
        }
    }
}
