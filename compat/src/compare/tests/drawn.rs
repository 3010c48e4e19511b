//! Random pairs of builds.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::format::defined_by_itself;
use crate::lock::LockedJob;
use crate::shape::tests::shapes;

/// Lists as builds have them: of few names, so that they often share some.
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
        let types = types.map(|(index, shape)| (format!("T{index}"), shape)).collect();
        prop_assume!(defined_by_itself(&types).is_none());
        let build = Lock {
            request,
            jobs: vec![job],
            types,
            ..lock(with(0, Locked { output: value, ..local("created") }))
        };
        prop_assert_eq!(found(build.clone(), build), []);
    }
}
