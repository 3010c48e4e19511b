//! Stored values, and arguments of jobs.

use super::*;
use crate::lock::LockedJob;

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
fn an_output_strands_rows_that_come_to_a_phase_which_asks_for_it() {
    use Lint::*;
    let change = |asked_by: Option<&[&str]>, new: &str, written: &str| {
        let by = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let old = output(local("created"), "u32", &["1"]);
        let new = output(local("created"), new, &[written]);
        let mut found = lints(with(0, old), with(0, Locked { asked_by: asked_by.map(by), ..new }));
        found.retain(|(lint, _)| *lint != OutputNotRollbackable);
        found
    };
    let text = |asked_by| change(asked_by, "str", "\"a\"");
    assert_eq!(text(None), one(OutputUnreadable, "created paid noted"), "not known");
    assert_eq!(text(Some(&["answered"])), one(OutputUnreadable, "created paid noted"));
    assert_eq!(text(Some(&["paid"])), one(OutputUnreadable, "created"));
    assert_eq!(text(Some(&[])), one(OutputUnasked, ""));
    let rounded = |asked_by| change(asked_by, "f32", "0.5");
    assert_eq!(rounded(Some(&["noted"])), one(NumberRounded, "created paid"));
    assert_eq!(rounded(Some(&[])), one(OutputUnasked, ""));
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
        ("a: enum {A, B}", "a: enum {A, *}"),
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
    assert_eq!(of_member("tip?: u32 = 0", "tip: u32"), [RetryRefused], "who leaves it out");
    assert_eq!(of_member("tip|fee: u32", "tip: u32"), [RetryRefused]);
    let of_output = found(
        with(0, output(local("created"), "{a?: u8}", &["{\"a\":1}"])).into(),
        with(0, output(local("created"), "{a: u8}", &["{\"a\":1}"])).into(),
    );
    assert_eq!(of_output[0].lint, DefaultDropped, "no client sends an output");
    assert_eq!(of_member("cents: u64", "cents: f64"), [RequestNotRollbackable, NumberRounded]);
    assert_eq!(of_member("by: str", "by: union {str(date), str}"), [AlternativeTaken]);
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
    let optional = staging(&[("mail", r#"{to: str, cc?: str = ""}"#, r#"{"to":"","cc":""}"#)]);
    assert_eq!(lints(&mail, &optional), [Lint::MemberAdded]);
    let required = staging(&[("mail", "{to: str, cc: str}", r#"{"to":"","cc":""}"#)]);
    assert_eq!(lints(&mail, &required), [Lint::JobUnreadable]);
    assert_eq!(lints(&required, &mail), [Lint::JobNotRollbackable, Lint::MemberDropped]);
    let renamed = staging(&[("letter", "{to: str}", r#"{"to":""}"#)]);
    assert_eq!(lints(&mail, &renamed), [Lint::JobRemoved, Lint::JobAdded]);
    let none = lock(ride());
    assert_eq!(lints(&none, &mail), [Lint::JobAdded]);
    assert_eq!(Lint::JobRemoved.level(), Level::Deny);
    let another = Lock { definition: "rides.mail".into(), ..mail.clone() };
    let findings = compare(&locks([mail]), &locks([lock(ride()), another]));
    assert!(!findings.iter().any(|finding| finding.lint == Lint::JobRemoved), "{findings:#?}");
}

#[test]
fn a_job_of_a_new_version_is_read_as_those_of_the_others_are() {
    let sample = r#"{"to":"","cc":""}"#;
    let mail = |version, args: &str| Lock { version, ..staging(&[("mail", args, sample)]) };
    let lints = |new: &str| -> Vec<Lint> {
        let (old, new) = (mail(1, "{to: str}"), mail(2, new));
        let findings = compare(&locks([old.clone()]), &locks([old, new]));
        findings.iter().map(|finding| finding.lint).collect()
    };
    assert_eq!(lints("{to: str, cc?: str?}"), [Lint::VersionAdded]);
    assert_eq!(lints("{to: str, cc: str}"), [Lint::VersionAdded, Lint::JobUnreadable]);
}

#[test]
fn a_new_version_has_to_read_the_parameters_of_each_one_before() {
    let version = |version, shape: &str| {
        let request = shape.parse().unwrap();
        Lock { version, request, ..lock(ride()) }
    };
    let (one, two) = (version(1, "{a: u8}"), version(2, "{b|a: u8}"));
    let retired = one.clone().in_state(State::Retired("2026-11-20".into()));
    for one in [one, retired] {
        let of = |three: &str| -> Vec<Lint> {
            let old = locks([one.clone(), two.clone()]);
            let new = locks([one.clone(), two.clone(), version(3, three)]);
            let lints = compare(&old, &new).into_iter().map(|finding| finding.lint);
            lints.filter(|lint| *lint != Lint::NotProbed).collect()
        };
        assert_eq!(of("{b|a: u8}"), [Lint::VersionAdded]);
        let refused = [Lint::VersionAdded, Lint::VersionUnreadable, Lint::RetryRefused];
        assert_eq!(of("{b: u8}"), refused, "of the first, and of the second");
    }
}

#[test]
fn g9_a_later_version_recognises_retries_of_each_one_before() {
    let version = |version, shape: &str| {
        let request = shape.parse().unwrap();
        Lock { version, request, request_samples: Vec::new(), ..lock(ride()) }
    };
    let one = |shape: &str| version(1, shape);
    for (first, second, lint) in [
        ("{a: u8, note?: str?}", "{a: u8, memo?: str?}", Lint::MemberRenamed),
        ("{a: u8, tip?: u8?}", "{a: u8}", Lint::MemberDropped),
        ("{seats?: u8 = 1}", "{seats?: u8 = 2}", Lint::DefaultChanged),
        ("{tags: set<str>}", "{tags: [str]}", Lint::RetryDiffers),
        ("{seats?: u8 = 1}", "{seats: u8}", Lint::RetryRefused),
        ("{b|a: u8}", "{b: u8}", Lint::RetryRefused),
        ("{a: u8}", "{b: u8}", Lint::VersionUnreadable),
    ] {
        let both = locks([one(first), version(2, second)]);
        let told = |old: &Locks| -> Vec<Lint> {
            compare(old, &both).into_iter().map(|finding| finding.lint).collect()
        };
        assert!(told(&locks([one(first)])).contains(&lint), "{first} beside {second}");
        let recognising = locks([one(first), version(2, first)]);
        assert!(told(&recognising).contains(&lint), "the second does not recognise it any more");
        assert!(!told(&both).contains(&lint), "it was so before");
    }
}

#[test]
fn a_type_of_more_alternatives_than_are_compared_is_told() {
    let many: Vec<String> = (0..30_000).map(|nth| format!("V{nth}")).collect();
    let shape = format!("enum {{{}}}", many.join(", "));
    let added = compare(
        &Locks::new(),
        &locks([lock(with(0, output(local("created"), &shape, &["\"V0\""])))]),
    );
    let told = added.iter().find(|finding| finding.lint == Lint::NotProbed).unwrap();
    assert!(told.change.starts_with("some of the alternatives of its output"), "{}", told.change);
}
