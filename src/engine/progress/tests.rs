//! The rule over rows, case by case.

use super::*;
use crate::definition::{EffectClass, Isolation, PhaseKind};
use crate::engine::resolution::{
    PlaceOfFinish, executed, executed_before, not_executed, retried, said, uncalled,
};
use std::time::Duration;

pub(super) const fn phase(
    name: &'static str,
    was: &'static [&'static str],
    kind: PhaseKind,
) -> Phase {
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
    const LIST: &[Phase] = &[local("a", &[]), local("new", &[]), local("b", &[]), local("c", &[])];
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
        assert_eq!((progress, call.is_none()), (Progress::Continues, true), "{:?}", free.phases);
    }
    // With both, it continues under the one that it was called under.
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
    const NOW: &[Phase] = &[local("a", &[]), local("new", &[]), windowed("pay"), local("c", &[])];
    assert_eq!(of(&row("a pay=i c"), NOW), Err(StrandedBecause::PhasesReordered));
    assert_eq!(of(&row("a c pay=i"), NOW), Ok(Progress::Continues), "it cannot be under way");
    // Run under this list, the row would tell the next build nothing of the call.
    const UNBOUNDED: &[Phase] =
        &[local("a", &[]), local("new", &[]), idempotent("pay", &[]), local("c", &[])];
    assert_eq!(of(&row("a pay=i c"), UNBOUNDED), Err(StrandedBecause::PhasesReordered));
    let with_intent = KeyRow { open_intent: Some("pay".into()), ..row("a pay=i c") };
    assert_eq!(of(&with_intent, UNBOUNDED), Err(StrandedBecause::PhasesReordered));
}

/// A deploy mends the phase that its operators have paused.
#[test]
fn g14_g17_a_phase_is_put_before_a_call_that_is_known_not_to_have_been_made() {
    const OLD: &[Phase] = &[local("a", &[]), windowed("pay"), local("c", &[])];
    const NOW: &[Phase] = &[local("a", &[]), local("new", &[]), windowed("pay"), local("c", &[])];
    let noted = |resolution| KeyRow { resolution, ..row("a pay=i c") };
    let of_the_last = uncalled("pay", 2);
    let behind_a_retry = retried(Some(&of_the_last));
    assert_eq!(said(Some(&behind_a_retry)), Some("retry"));
    // The call before it was resolved, and none was made since.
    let behind_a_call = executed_before(&idempotent("uncalled", &[]), &OLD[1], 2);
    assert_eq!(said(Some(&behind_a_call)), Some("executed uncalled"));
    assert_eq!(retried(Some(&behind_a_call)), behind_a_retry);
    assert_eq!(executed_before(&OLD[1], &OLD[2], 2), executed(&OLD[1]), "a local phase");
    assert_eq!(said(Some(&executed(&OLD[1]))), Some("executed pay"));
    for known in [of_the_last, not_executed(&OLD[1], 2), behind_a_retry, behind_a_call] {
        assert_eq!(of(&noted(Some(known)), NOW), Ok(Progress::Continues));
    }
    for unknown in [Some(uncalled("pay", 1)), Some(uncalled("c", 2)), Some(retried(None)), None] {
        assert_eq!(of(&noted(unknown), NOW), Err(StrandedBecause::PhasesReordered));
    }
}

/// An earlier build reads the recovery point and one word behind it: the phase of an open call.
#[test]
fn g1_a_finish_by_hand_names_its_call_where_each_build_looks_for_it() {
    let nothing = PlaceOfFinish { recovery_point: "a", open_intent: None, perhaps_called: None };
    let open = PlaceOfFinish { open_intent: Some("pay"), ..nothing };
    let perhaps = PlaceOfFinish { perhaps_called: Some("pay"), ..nothing };
    // The word is a name that a phase may have, too.
    let namesake = PlaceOfFinish { open_intent: Some("perhaps"), ..nothing };
    for (place, stored) in [
        (nothing, "finish a"),
        (open, "finish a pay"),
        (perhaps, "finish a pay perhaps"),
        (namesake, "finish a perhaps"),
    ] {
        assert_eq!(place.stored(), stored);
        assert_eq!(PlaceOfFinish::of(stored), Some(place), "{stored}");
    }
    assert_eq!(PlaceOfFinish::of("finish"), None);
}

#[test]
fn g14_a_list_of_another_form_is_left_alone() {
    const LIST: &[Phase] = &[local("a", &[]), local("b", &[])];
    assert_eq!(of(&row("a=2 b"), LIST), Err(StrandedBecause::NewerForm));
    assert_eq!(of(&row("a"), LIST), Err(StrandedBecause::UnknownRecoveryPoint));
}
