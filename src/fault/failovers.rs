//! Which failovers an explorer tries: behind which call, and from which moment on the standby receives nothing.

use super::mode::{Fault, Mode};
use super::points::{Place, Point};
use crate::definition::Definition;

/// For each call of an undisturbed run, the failovers that lose commits before it: the fewest first.
/// None loses the intent of a call, which would be made again (G2).
pub(super) fn failovers(
    passed: &[Vec<Point>],
    definition: &Definition,
    concurrent: bool,
) -> Vec<Vec<Vec<Fault>>> {
    let mut points = Vec::new();
    for (attempt, passed) in passed.iter().enumerate() {
        for (index, point) in passed.iter().enumerate() {
            let visit = point.visit_behind(&passed[..index]);
            points.push((attempt, visit, point));
        }
    }
    let mut cases = Vec::new();
    for (call, (last, ..)) in points.iter().enumerate() {
        for moment in (0..call).rev() {
            let ends = [(moment, Mode::Replicated), (call, Mode::RowLost)];
            let may_be = ends
                .iter()
                .all(|(at, mode)| mode.is_legal_at(points[*at].2, definition, concurrent));
            let has =
                |place: Place| points[moment..call].iter().any(|(.., point)| point.place == place);
            if !may_be || !has(Place::AfterCommit) || has(Place::BeforeIntent) {
                continue;
            }
            let mut faults = vec![Vec::new(); last + 1];
            for (at, mode) in ends {
                let (attempt, visit, point) = points[at];
                faults[attempt].push(Fault { point: point.clone(), visit, mode });
            }
            cases.push(faults);
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::case::{Case, Driver};

    #[test]
    fn a_failover_loses_the_commits_before_a_call_but_no_intent() {
        use crate::definition::{EffectClass, Isolation, Phase, PhaseKind};
        const fn phase(name: &'static str, kind: PhaseKind) -> Phase {
            Phase { name, was: &[], kind, commit: false, timeout: None, reconciles: false }
        }
        const LOCAL: PhaseKind = PhaseKind::Local(Isolation::ReadCommitted);
        const CHARGED: PhaseKind = PhaseKind::Foreign(EffectClass::Idempotent {
            window: Some(std::time::Duration::from_secs(86_400)),
        });
        const PHASES: &[Phase] = &[
            phase("booked", LOCAL),
            phase("seen", LOCAL),
            phase("charged", CHARGED),
            phase("noted", LOCAL),
            phase("told", PhaseKind::Foreign(EffectClass::AtMostOnce)),
            phase("refunded", CHARGED),
            phase("answered", LOCAL),
        ];
        let definition = Definition { name: "rides.book", version: 1, phases: PHASES };
        let passed = [definition.points()];
        let cases = failovers(&passed, &definition, true);
        let cases = cases.into_iter().map(|faults| Case::Crashes { faults, driver: Driver::Retry });
        let cases: Vec<String> = cases.map(|case| case.to_string()).collect();
        assert_eq!(
            cases,
            [
                "seen/before_phase#0=replicated + charged/after_call#0=row_lost; retry",
                "started/before_phase#0=replicated + charged/after_call#0=row_lost; retry",
            ]
        );
    }
}
