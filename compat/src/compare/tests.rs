//! The table of changes, and random pairs of phase lists.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::lint::Level;
use crate::lock::{LockedJob, Output};
use crate::shape::tests::shapes;
use crate::shape::{Shape, Types};

const HOUR: Duration = Duration::from_secs(3600);

fn phase(name: &str, effect: Effect) -> Locked {
    let output = Output::Value { shape: Shape::Null, samples: vec!["null".into()] };
    Locked { name: name.into(), was: Vec::new(), effect, derived: None, output }
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
    assert_eq!(change(without(3)), one(PhaseRemoved, "noted"), "nobody is left to answer");
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
    assert_eq!(change(with(1, paid(Some(2 * HOUR)))), one(WindowWidened, "created"));
    assert_eq!(change(with(1, paid(None))), one(WindowWidened, "created"));
    assert_eq!(change(with(1, paid(Some(HOUR / 2)))), one(WindowNarrowed, ""));
}

#[test]
fn a_stored_output_is_read_by_what_the_phase_returns_now() {
    use Lint::*;
    let change = |old: &str, written: &str, new: &str, writes: &str| {
        let (old, new) =
            (output(local("created"), old, &[written]), output(local("created"), new, &[writes]));
        lints(with(0, old), with(0, new))
    };
    let behind = "created paid noted";
    let id = "{\"id\":1}";
    let more = "{\"id\":1,\"at\":0}";
    assert_eq!(change("{id: i64}", id, "{id: i64, at?: u8?}", more), one(MemberAdded, ""));
    assert_eq!(change("{id: i64}", id, "{id: i64, at: u8}", more), one(OutputUnreadable, behind));
    assert_eq!(
        change("{id: i64, at: u8}", more, "{id: i64}", id),
        [one(OutputNotRollbackable, ""), one(MemberDropped, "")].concat(),
        "the build before wants the field"
    );
    assert_eq!(
        change("{id: i64, !}", id, "{id: i64, at?: u8?}", more),
        [one(OutputNotRollbackable, ""), one(MemberAdded, "")].concat(),
        "the build before refuses the field"
    );
    let unreadable = change("{id: i64}", id, "{id: str}", "{\"id\":\"\"}");
    let unreadable: Vec<_> = unreadable.into_iter().map(|(lint, _)| lint).collect();
    assert_eq!(unreadable, [OutputUnreadable, OutputNotRollbackable]);
    assert_eq!(change("enum {A, B}", "\"B\"", "enum {A}", "\"A\""), one(OutputUnreadable, behind));
    assert_eq!(change("enum {A}", "\"A\"", "enum {A, B}", "\"B\""), one(OutputNotRollbackable, ""));
    assert_eq!(change("i64", "1", "opaque", "1"), []);
}

#[test]
fn stored_parameters_are_read_by_the_type_of_today() {
    use Lint::*;
    let request = |shape: &str, json: &str, fingerprint: &str| Lock {
        request: shape.parse().unwrap(),
        request_samples: vec![crate::RequestSample {
            json: json.into(),
            fingerprint: fingerprint.into(),
        }],
        ..lock(ride())
    };
    let lints = |old, new| {
        let findings = found(old, new);
        findings.into_iter().map(|finding| finding.lint).collect::<Vec<_>>()
    };
    let old = || request("{id: i64}", "{\"id\":1}", "v1:a");
    let optional = request("{id: i64, note?: str?}", "{\"id\":1,\"note\":null}", "v1:b");
    assert_eq!(lints(old(), optional), [MemberAdded], "retries are the same request");
    let required = request("{id: i64, note: str}", "{\"id\":1,\"note\":\"\"}", "v1:b");
    assert_eq!(lints(old(), required), [RequestUnreadable]);
    let fewer = request("{}", "{}", "v1:b");
    assert_eq!(lints(old(), fewer), [RequestNotRollbackable, MemberDropped]);
    let other_print = request("{id: i64}", "{\"id\":1}", "v1:b");
    assert_eq!(lints(old(), other_print), [FingerprintChanged]);
    assert_eq!(lints(old(), Lock { request: Shape::Opaque, ..lock(ride()) }), [NotProbed]);
}

/// Of a change of one member of the parameters.
fn of_member(old: &str, new: &str) -> Vec<Lint> {
    let request = |member: &str| Lock {
        request: format!("{{id: i64, {member}}}").parse().unwrap(),
        request_samples: Vec::new(),
        ..lock(ride())
    };
    let findings = found(request(old), request(new));
    findings.into_iter().map(|finding| finding.lint).collect()
}

#[test]
fn a_type_that_is_narrowed_is_told_without_a_sample() {
    use Lint::*;
    for (wide, narrow) in [
        ("a: i64", "a: i32"),
        ("a: u128", "a: u64"),
        ("a: i64", "a: u64"),
        ("a: u64", "a: u64(1..)"),
        ("a: i8", "a: i8(!0)"),
        ("a: u8", "a: u8(..100)"),
        ("a: f64", "a: i64"),
        ("a: any", "a: str"),
        ("a: str", "a: str(uuid)"),
        ("a: str", "a: char"),
        ("a: str", "a: enum {A, B}"),
        ("a: str(currency)", "a: enum {USD, EUR}"),
        ("a: str?", "a: str"),
        ("a: [u8]", "a: (u8, u8)"),
        ("a: [u16]", "a: [u8]"),
        ("a: map<str, u8>", "a: map<u8, u8>"),
        ("a: enum {A, B}", "a: enum {A}"),
        ("a: enum {A, B: {c: i64}}", "a: enum {A, B: {c: i32}}"),
        ("a: enum {A: enum {B, C}, D: enum {E, F}}", "a: enum {A: enum {B, C}, D: enum {E, G}}"),
    ] {
        let deny = of_member(wide, narrow);
        assert!(deny.contains(&RequestUnreadable), "{wide} -> {narrow}: {deny:?}");
    }
    for (narrow, wide) in [
        ("a: i32", "a: i64"),
        ("a: u8(..100)", "a: u8"),
        ("a: u64(1..)", "a: u64"),
        ("a: i64", "a: f64"),
        ("a: str(uuid)", "a: str"),
        ("a: enum {A}", "a: enum {A, B}"),
        ("a: u8", "a: u8?"),
        ("a: enum {A, B}", "a: enum {A, \"*\"}"),
        ("a: str(own)", "a: str(uuid)"),
    ] {
        let fine = of_member(narrow, wide);
        assert!(!fine.contains(&RequestUnreadable), "{narrow} -> {wide}: {fine:?}");
    }
}

#[test]
fn a_value_that_is_read_as_another_is_told() {
    use Lint::*;
    assert_eq!(of_member("tip?: u32?", "gratuity?: u32?"), [MemberRenamed]);
    assert_eq!(of_member("tip?: u32?", "gratuity|tip?: u32?"), []);
    assert_eq!(of_member("tip?: u32?", ""), [MemberDropped]);
    assert_eq!(of_member("tip?: u32", "tip: u32"), [DefaultDropped]);
    let renamed = found(
        with(0, output(local("created"), "{a?: u8?}", &["{}"])).into(),
        with(0, output(local("created"), "{b?: u8?}", &["{}"])).into(),
    );
    assert_eq!(renamed[0].lint, MemberRenamed);
    assert_eq!(renamed[0].points, ["created", "paid", "noted"]);
}

impl From<Vec<Locked>> for Lock {
    fn from(phases: Vec<Locked>) -> Self {
        lock(phases)
    }
}

/// The code of a build that reads what its shape does not show.
struct Reads(&'static str);

impl Code for Reads {
    fn reads(&self, _: &str, _: u32, _: Stored<'_>, json: &str) -> Option<bool> {
        Some(json == self.0)
    }
}

#[test]
fn the_word_of_the_code_counts_more_than_the_shape() {
    let of = |json: &'static str| {
        let old = output(local("created"), "bool", &["true"]);
        let new = output(local("created"), "str", &["\"\""]);
        let (old, new) = (locks([lock(with(0, old))]), locks([lock(with(0, new))]));
        let findings = compare_with(&old, &new, &Reads(json));
        findings.into_iter().map(|finding| finding.change).collect::<Vec<_>>()
    };
    assert!(of("true")[0].contains("a truth value"), "by an example, which is not read: false");
    assert!(of("false")[0].contains("a truth value"), "by the sample, which is not read: true");
}

#[test]
fn what_is_not_probed_is_told_once_by_its_place() {
    let of = |old: &str, new: &str| {
        let of = |shape: &str| lock(with(0, output(local("created"), shape, &[])));
        let findings = found(of(old), of(new));
        findings.into_iter().filter(|f| f.lint == Lint::NotProbed).map(|f| f.change).collect()
    };
    let told: Vec<String> = of("{a: u8}", "{a: u8, code: str(own), more: [{b: opaque}]}");
    let places =
        [".code of its output could not be probed", ".more[].b of its output could not be probed"];
    assert_eq!(told, places);
    let again: Vec<String> = of("{a: u8, code: str(own)}", "{a: u8, code: str(own)}");
    assert_eq!(again, Vec::<String>::new());
    let added =
        compare(&Locks::new(), &locks([lock(with(0, output(local("created"), "opaque", &[])))]));
    assert_eq!(added.last().map(|finding| finding.lint), Some(Lint::NotProbed));
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
    assert_eq!(lints(vec![version(1), version(2)], vec![retired(), version(2)]), []);
    assert_eq!(lints(vec![retired(), version(2)], vec![version(2)]), []);
    assert_eq!(lints(vec![retired()], vec![version(1)]), [VersionRevived]);
    assert_eq!(lints(vec![version(1)], vec![]), [DefinitionRemoved]);
    let renamed = Lock { definition: "rides.book".into(), ..version(1) };
    assert_eq!(lints(vec![version(1)], vec![renamed]), [DefinitionRenamed, DefinitionAdded]);
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

/// Lists as builds have them: of few names, so that they often share some.
fn staging(jobs: &[(&str, &str, &str)]) -> Lock {
    let jobs = jobs.iter().map(|(name, args, sample)| LockedJob {
        name: (*name).to_owned(),
        args: args.parse().unwrap(),
        samples: vec![(*sample).to_owned()],
    });
    Lock { jobs: jobs.collect(), ..lock(ride()) }
}

#[test]
fn a_staged_job_is_read_by_the_handler_of_today() {
    let lints = |old: &Lock, new: &Lock| -> Vec<Lint> {
        let locks = |lock: &Lock| -> Locks { [lock.clone()].into_iter().collect() };
        compare(&locks(old), &locks(new)).iter().map(|finding| finding.lint).collect()
    };
    let mail = staging(&[("mail", "{to: str}", r#"{"to":""}"#)]);
    assert_eq!(lints(&mail, &mail), []);
    let optional = staging(&[("mail", "{to: str, cc?: str}", r#"{"to":"","cc":""}"#)]);
    assert_eq!(lints(&mail, &optional), [Lint::MemberAdded]);
    let required = staging(&[("mail", "{to: str, cc: str}", r#"{"to":"","cc":""}"#)]);
    assert_eq!(lints(&mail, &required), [Lint::JobUnreadable]);
    assert_eq!(lints(&required, &mail), [Lint::JobNotRollbackable, Lint::MemberDropped]);
    let renamed = staging(&[("letter", "{to: str}", r#"{"to":""}"#)]);
    assert_eq!(lints(&mail, &renamed), [Lint::JobRemoved, Lint::JobAdded]);
    let none = lock(ride());
    assert_eq!(lints(&none, &mail), [Lint::JobAdded]);
    assert_eq!(Lint::JobRemoved.level(), Level::Deny);
}

fn lists() -> impl Strategy<Value = Vec<Locked>> {
    let effect = prop_oneof![
        Just(Effect::Local),
        Just(Effect::Idempotent { window: None }),
        Just(Effect::Idempotent { window: Some(HOUR) }),
        Just(Effect::AtMostOnce)
    ];
    let names = prop::sample::subsequence(vec!["a", "b", "c", "d", "e"], 1..=5).prop_shuffle();
    let phases = (names, prop::collection::vec((effect, prop::option::of(0..4usize)), 5));
    phases.prop_map(|(names, more)| {
        let mut used: BTreeSet<&str> = names.iter().copied().collect();
        let mut phases = Vec::new();
        for (name, (effect, old_name)) in names.iter().zip(more) {
            let old_name = old_name.map(|index| ["a", "b", "c", "d"][index]);
            let old_names: Vec<_> = old_name.into_iter().filter(|name| used.insert(name)).collect();
            phases.push(was(phase(name, effect), &old_names));
        }
        phases
    })
}

fn shown_list(list: &[Locked]) -> String {
    let shown = |phase: &Locked| format!("{} {:?} {:?}", phase.name, phase.was, phase.effect);
    list.iter().map(shown).collect::<Vec<_>>().join(" | ")
}

/// `PROPTEST_CASES=…` sets how many.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(4000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// No verdict that lets a change pass strands a row; no verdict that stops one has none.
    #[test]
    fn a_change_is_stopped_exactly_if_a_row_shows_why(old in lists(), new in lists()) {
        let shown = format!("{} -> {}", shown_list(&old), shown_list(&new));
        let findings = found(lock(old.clone()), lock(new.clone()));
        let blocking: Vec<_> = findings.iter().filter(|f| f.lint.level() >= Level::Deny).collect();
        let stranded = stranded(&old, &new);
        let weakened = |finding: &&&Finding| finding.lint == Lint::EffectWeakened;
        let widened = |finding: &&&Finding| finding.lint == Lint::WindowWidened;
        prop_assert!(stranded.is_empty() || !blocking.is_empty(), "{shown}: {stranded:?}");
        let without_a_row = blocking.iter().filter(|f| !weakened(f) && !widened(f)).count();
        prop_assert!(
            !stranded.is_empty() || without_a_row == 0,
            "{shown}: nothing is stranded, but {blocking:#?}"
        );
        for finding in &blocking {
            prop_assert!(!finding.points.is_empty(), "{shown}: {finding:?}");
        }
    }

    /// A build that is rolled out beside itself is stopped by nothing.
    #[test]
    fn a_list_is_compatible_with_itself(list in lists()) {
        prop_assert_eq!(found(lock(list.clone()), lock(list)), []);
    }

    /// Whatever its types are, and whether or not its samples are of them.
    #[test]
    fn a_build_is_compatible_with_itself(
        shapes in prop::collection::vec(shapes(), 3),
        sample in shapes(),
    ) {
        let [request, value, args] = [0, 1, 2].map(|index| shapes[index].clone());
        let of_another = crate::examples(&sample, &Types::new()).into_iter().map(|made| made.json);
        let samples: Vec<String> = of_another.take(3).collect();
        let value = Output::Value { shape: value, samples: samples.clone() };
        let job = LockedJob { name: "mail".into(), args, samples };
        let types = shapes.into_iter().enumerate();
        let build = Lock {
            request,
            jobs: vec![job],
            types: types.map(|(index, shape)| (format!("T{index}"), shape)).collect(),
            ..lock(with(0, Locked { output: value, ..local("created") }))
        };
        prop_assert_eq!(found(build.clone(), build), []);
    }
}
