//! The table of changes.

use std::time::Duration;

use super::*;
use crate::lint::Level;
use crate::lock::Output;
use crate::shape::{Shape, Types};

mod drawn;
mod values;

const HOUR: Duration = Duration::from_secs(3600);

fn phase(name: &str, effect: Effect) -> Locked {
    let output = Output::Value { shape: Shape::Null, samples: vec!["null".into()] };
    Locked {
        name: name.into(),
        was: Vec::new(),
        effect,
        reconciles: false,
        derived: None,
        output,
        asked_by: None,
    }
}

fn local(name: &str) -> Locked {
    phase(name, Effect::Local)
}

fn paid(window: Option<Duration>) -> Locked {
    phase("paid", Effect::Idempotent { window })
}

fn once(name: &str) -> Locked {
    phase(name, Effect::AtMostOnce)
}

fn was(phase: Locked, was: &[&str]) -> Locked {
    Locked { was: was.iter().map(|name| (*name).to_owned()).collect(), ..phase }
}

fn named(phase: Locked, name: &str) -> Locked {
    Locked { name: name.into(), ..phase }
}

fn output(phase: Locked, shape: &str, samples: &[&str]) -> Locked {
    let samples = samples.iter().map(|sample| (*sample).to_owned()).collect();
    Locked { output: Output::Value { shape: shape.parse().unwrap(), samples }, ..phase }
}

fn lock(mut phases: Vec<Locked>) -> Lock {
    phases.last_mut().unwrap().output = Output::Reply;
    Lock {
        definition: "rides.create".into(),
        version: 1,
        state: State::Current,
        request: Shape::Null,
        request_samples: Vec::new(),
        phases,
        jobs: Vec::new(),
        types: Types::new(),
    }
}

/// `created`, `paid` at a provider with a window of an hour, `noted`, `answered`.
fn ride() -> Vec<Locked> {
    vec![local("created"), paid(Some(HOUR)), local("noted"), local("answered")]
}

fn with(index: usize, phase: Locked) -> Vec<Locked> {
    let mut phases = ride();
    phases[index] = phase;
    phases
}

fn inserted(index: usize) -> Vec<Locked> {
    let mut phases = ride();
    phases.insert(index, local("new"));
    phases
}

fn without(index: usize) -> Vec<Locked> {
    let mut phases = ride();
    phases.remove(index);
    phases
}

fn locks(locks: impl IntoIterator<Item = Lock>) -> Locks {
    locks.into_iter().collect()
}

fn found(old: Lock, new: Lock) -> Vec<Finding> {
    compare(&locks([old]), &locks([new]))
}

/// The lints, with the recovery points of those that deny.
fn lints(old: Vec<Locked>, new: Vec<Locked>) -> Vec<(Lint, String)> {
    let findings = found(lock(old), lock(new));
    findings.into_iter().map(|finding| (finding.lint, finding.points.join(" "))).collect()
}

/// Of a change of the phases of `ride()`.
fn change(new: Vec<Locked>) -> Vec<(Lint, String)> {
    lints(ride(), new)
}

fn one(lint: Lint, points: &str) -> Vec<(Lint, String)> {
    vec![(lint, points.to_owned())]
}

#[test]
fn what_is_not_changed_has_no_finding() {
    assert_eq!(change(ride()), []);
}

#[test]
fn a_rename_is_fine_where_it_says_the_earlier_name() {
    use Lint::*;
    let renamed = was(named(paid(Some(HOUR)), "charged"), &["paid"]);
    assert_eq!(change(with(1, renamed)), one(RenamedWithWas, ""));
    let without_was = named(paid(Some(HOUR)), "charged");
    let told = found(lock(ride()), lock(with(1, without_was.clone())));
    assert!(told[0].instead().contains(r#"was = "paid""#), "{told:?}");
    assert_eq!(change(with(1, without_was)), one(PhaseRenamed, "created paid noted"));
    assert_eq!(change(with(0, local("made"))), one(PhaseRenamed, "created paid noted"));
    assert_eq!(change(with(3, local("told"))), one(LastPhaseChanged, ""));
}

#[test]
fn the_oldest_name_of_a_foreign_phase_is_kept_for_ever() {
    use Lint::*;
    let old = with(1, was(paid(None), &["charged", "charge"]));
    let dropped = with(1, was(paid(None), &["charged"]));
    assert_eq!(lints(old.clone(), dropped), one(ProviderKeyChanged, "created"));
    let newer_dropped = with(1, was(paid(None), &["charge"]));
    assert_eq!(lints(old, newer_dropped), one(WasDropped, ""));
    let of_local = with(0, was(local("created"), &["made"]));
    assert_eq!(lints(of_local, ride()), one(WasDropped, ""));
}

#[test]
fn a_phase_is_inserted_where_no_row_has_passed() {
    use Lint::*;
    assert_eq!(change(inserted(3)), one(PhaseAdded, ""));
    assert_eq!(change(inserted(2)), one(PhaseInserted, "noted"));
    assert_eq!(change(inserted(1)), one(PhaseInserted, "created paid noted"));
    assert_eq!(change(inserted(0)), one(PhaseInserted, "created paid noted"));
    assert_eq!(change(inserted(4)), one(PhaseAdded, ""), "behind the last one");
    // Before a call that may have been made (G1, G2, G11).
    let old = vec![local("created"), paid(Some(HOUR))];
    let new = vec![local("created"), local("new"), paid(Some(HOUR))];
    assert_eq!(lints(old, new), one(PhaseInserted, "created"));
    let old = vec![local("created"), paid(None)];
    let new = vec![local("created"), local("new"), paid(None)];
    assert_eq!(lints(old, new), one(PhaseInserted, "created"));
}

#[test]
fn phases_are_removed_and_reordered_in_a_new_version() {
    use Lint::*;
    assert_eq!(change(without(2)), one(PhaseRemoved, "noted"));
    assert_eq!(change(without(0)), one(PhaseRemoved, "created paid noted"));
    assert_eq!(change(without(3)), one(PhaseRemoved, "noted"), "no phase is left that answers");
    let swapped = vec![local("created"), local("noted"), paid(Some(HOUR)), local("answered")];
    assert_eq!(change(swapped), one(PhasesReordered, "created paid noted"));
    // The last phase is gone, and the first has taken its name.
    let old = vec![local("created"), local("noted"), local("answered")];
    let new = vec![was(local("answered"), &["created"]), local("noted"), local("told")];
    let lints: Vec<_> = lints(old, new).into_iter().map(|(lint, _)| lint).collect();
    assert!(!lints.contains(&PhasesReordered), "{lints:?}");
}

#[test]
fn a_call_that_may_have_been_made_keeps_its_kind_and_class() {
    use Lint::*;
    assert_eq!(change(with(1, local("paid"))), one(KindChanged, "created"));
    assert_eq!(change(with(2, once("noted"))), one(BecameForeign, ""));
    assert_eq!(change(with(1, once("paid"))), one(EffectWeakened, "created"));
    assert_eq!(lints(with(1, once("paid")), ride()), one(EffectClaimed, ""));
    let asked = || with(1, Locked { reconciles: true, ..once("paid") });
    assert_eq!(lints(asked(), with(1, once("paid"))), one(ReconcileDropped, ""));
    assert_eq!(lints(with(1, once("paid")), asked()), []);
    assert_eq!(change(with(1, paid(Some(2 * HOUR)))), one(WindowWidened, "created"));
    assert_eq!(change(with(1, paid(None))), one(WindowWidened, "created"));
    assert_eq!(change(with(1, paid(Some(HOUR / 2)))), one(WindowNarrowed, ""));
}

#[test]
fn a_golden_key_that_changes_is_a_second_effect() {
    let keyed = |key: &str| lock(with(1, Locked { derived: Some(key.into()), ..paid(Some(HOUR)) }));
    assert_eq!(found(keyed("a"), keyed("a")), []);
    assert_eq!(found(keyed("a"), keyed("b"))[0].lint, Lint::DerivedKeyChanged);
}

#[test]
fn a_version_stays_registered_until_it_is_retired() {
    use Lint::*;
    let version = |version| Lock { version, ..lock(ride()) };
    let retired = || version(1).in_state(State::Retired("2026-11-20".into()));
    let lints = |old: Vec<Lock>, new: Vec<Lock>| {
        let findings = compare(&locks(old), &locks(new));
        findings.into_iter().map(|finding| finding.lint).collect::<Vec<_>>()
    };
    assert_eq!(lints(vec![version(1)], vec![version(1), version(2)]), [VersionAdded]);
    assert_eq!(lints(vec![version(1)], vec![version(2)]), [VersionDropped, VersionAdded]);
    let drained = lints(vec![version(1), version(2)], vec![retired(), version(2)]);
    assert_eq!(drained, [VersionDrained], "no file says whether a row is left");
    let both = lints(vec![version(1)], vec![retired(), version(2)]);
    assert_eq!(both, [VersionDropped, VersionAdded]);
    assert_eq!(lints(vec![retired(), version(2)], vec![version(2)]), []);
    assert_eq!(lints(vec![retired()], vec![version(1)]), [VersionRevived]);
    assert_eq!(lints(vec![version(1)], vec![]), [DefinitionRemoved]);
    let renamed = Lock { definition: "rides.book".into(), ..version(1) };
    assert_eq!(
        lints(vec![version(1)], vec![renamed.clone()]),
        [DefinitionRenamed, DefinitionAdded]
    );
    let with_more = Lock { phases: inserted(3), ..renamed };
    assert_eq!(lints(vec![version(1)], vec![with_more]), [DefinitionRenamed, DefinitionAdded]);
    assert_eq!(lints(vec![version(1)], vec![retired()]), [VersionRetired], "it was not draining");
}

#[test]
fn a_new_version_has_to_read_the_parameters_of_the_one_before() {
    let version = |version, shape: &str| {
        let request = shape.parse().unwrap();
        locks([Lock { version, request, ..lock(ride()) }])
    };
    let lints = |new: &str| {
        let (old, new) = (version(1, "{cents: u32}"), version(2, new));
        let both: Locks = old.iter().chain(new.iter()).cloned().collect();
        let findings = compare(&old, &both);
        assert_eq!(compare(&both, &both), []);
        findings.into_iter().map(|finding| finding.lint).collect::<Vec<_>>()
    };
    assert_eq!(lints("{cents: u64, channel?: str}")[..1], [Lint::VersionAdded]);
    assert!(!lints("{cents: u64, channel?: str}").contains(&Lint::VersionUnreadable));
    assert!(lints("{cents: u32, channel: str}").contains(&Lint::VersionUnreadable));
}
