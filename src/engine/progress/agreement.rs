//! Random lists: the rule over lock files (`atomic_phases_compat`) is the rule over rows.

use super::tests::phase;
use super::*;
use crate::definition::{EffectClass, Isolation, PhaseKind};
use atomic_phases_compat::{CallState, Effect, Locked, Output, Resumed, StopsBecause, resumed};
use proptest::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);

fn lists() -> impl Strategy<Value = Vec<Locked>> {
    let effect = prop_oneof![
        Just(Effect::Local),
        Just(Effect::Idempotent { window: None }),
        Just(Effect::Idempotent { window: Some(HOUR) }),
        Just(Effect::AtMostOnce)
    ];
    let names = prop::sample::subsequence(vec!["a", "b", "c", "d", "e"], 1..=5).prop_shuffle();
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
            Effect::Idempotent { window } => PhaseKind::Foreign(EffectClass::Idempotent { window }),
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
