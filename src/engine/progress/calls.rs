//! What is known of a call: each combination of what a row says of it.

use atomic_phases_compat::CallState::{IntentOpen as Open, MayHaveBeenMade as Perhaps, NotMade};

use super::tests::phase;
use super::*;
use crate::definition::{EffectClass, Isolation, PhaseKind};
use crate::engine::decide::tests::row;
use crate::store::EVERY_STATUS;

const LOCAL: PhaseKind = PhaseKind::Local(Isolation::ReadCommitted);
const IDEMPOTENT: PhaseKind = PhaseKind::Foreign(EffectClass::Idempotent { window: None });

/// The build that asks. It has renamed `pay`, and put another phase in front of it.
const KNOWN: &[Phase] = &[
    phase("a", &[], LOCAL),
    phase("new", &[], IDEMPOTENT),
    phase("paid", &["pay"], IDEMPOTENT),
    phase("c", &[], LOCAL),
];

/// The lists under which the row was last run, behind whose first phase it stands.
const LISTS: [&str; 3] = ["a pay c", "a pay=i c", "a pay=a c"];

/// Whether an intent is open, how many attempts there were, and whether the row denies that a call had an effect; and what
/// is known then of the call of a local, an idempotent and an `at_most_once` phase.
const VERDICTS: [(bool, u32, bool, [CallState; 3], &str); 8] = [
    (false, 0, false, [NotMade; 3], "it was accepted, and was never run"),
    (false, 0, true, [NotMade; 3], "the same"),
    (false, 2, false, [NotMade, Perhaps, NotMade], "at most once, it would have stored its intent"),
    (false, 2, true, [NotMade; 3], "no call up to the last attempt had an effect"),
    (true, 0, false, [Open; 3], "no engine writes it: what is not understood is taken for a call"),
    (true, 0, true, [Open; 3], "the same"),
    (true, 2, false, [Open; 3], "it is under way, or its outcome is unknown"),
    (true, 2, true, [Open; 3], "it was made in a later attempt, or after what was said"),
];

/// What is stored of the resolution of a row of so many attempts; and whether it denies.
fn resolutions(attempts: u32) -> [(Option<String>, bool, &'static str); 20] {
    let of = |text: &str| Some(text.replace('N', &attempts.to_string()));
    let other = |text: &str| Some(text.replace('N', &(attempts + 1).to_string()));
    [
        (None, false, "nothing was said"),
        (of("uncalled pay N"), true, "the run of the last attempt knows it"),
        (of("not_executed pay N"), true, "a reconcile function, a webhook or an operator said it"),
        (of("retry uncalled pay N"), true, "an operator's retry leaves it as known as it was"),
        (of("retry not_executed pay N"), true, "the same"),
        (of("uncalled paid N"), true, "by another name of the phase"),
        (of("not_executed paid N"), true, "the same"),
        (of("not_executed new N"), true, "said to this build, which could not decode the row"),
        (of("executed a uncalled pay N"), true, "said of the call before: none came to this one"),
        (of("retry uncalled paid N"), true, "of the same, behind an operator's retry"),
        (other("executed a uncalled pay N"), false, "the last attempt was another"),
        (of("executed a uncalled a N"), false, "of a call before the recovery point"),
        (other("uncalled pay N"), false, "the last attempt was another"),
        (other("not_executed pay N"), false, "the same"),
        (of("uncalled a N"), false, "of a call before the recovery point"),
        (of("not_executed other N"), false, "of a phase that is not here"),
        (of("uncalled pay"), false, "of no form that an engine writes"),
        (of("retry"), false, "nothing was known before"),
        (of("executed a"), false, "of a call before the recovery point"),
        (of("finish a pay"), false, "of the end"),
    ]
}

#[test]
fn g1_g2_what_a_row_says_of_its_call_is_judged_in_each_combination() {
    for (has_intent, attempts, is_denied, verdicts, because) in VERDICTS {
        let resolutions = resolutions(attempts);
        for (resolution, _, why) in resolutions.iter().filter(|(_, denies, _)| *denies == is_denied)
        {
            for (list, expected) in LISTS.into_iter().zip(verdicts) {
                for status in EVERY_STATUS {
                    let row = KeyRow {
                        phases: list.into(),
                        recovery_point: "a".into(),
                        open_intent: has_intent.then(|| "pay".into()),
                        resolution: resolution.clone(),
                        attempts,
                        ..row(status)
                    };
                    let listed = PhaseList::parse(list).unwrap().phases;
                    let stands = Stands::from(&row);
                    assert_eq!(stands.done(&listed, KNOWN), Some(1));
                    let known = stands.call(&listed[1], 1, KNOWN);
                    assert_eq!(known, expected, "{because}; {resolution:?}: {why}; {list}");
                }
            }
        }
    }
}
