//! [`Cases`]: which cases an explorer tries, and in which order.

use super::case::{Case, Stop, Turn};
use super::mode::{Fault, Mode};
use super::plan::Read;
use super::points::{Place, Point};
use super::verdict::{CaseEnd, Wrong};
use crate::definition::Definition;

/// What goes wrong in a case, attempt by attempt.
type Faults = Vec<Vec<Fault>>;

/// What is explored: the faults of these modes, where this definition has points for them.
pub(super) struct Cases<'x> {
    pub(super) modes: &'x [Mode],
    /// Whether a second fault follows each first.
    pub(super) pairs: bool,
    /// How often two workers switch.
    pub(super) switches: usize,
    pub(super) definition: Definition,
    /// Whether the store has concurrent transactions.
    pub(super) concurrent: bool,
}

impl Cases<'_> {
    /// Each read of the clean run, failing.
    pub(super) fn reads_that_fail(&self, clean: &CaseEnd) -> Vec<Fault> {
        let failing = self.failed_reads(clean.reads.first()).into_iter();
        failing.map(|(_, read)| read).collect()
    }

    /// Each fault at each point of the clean run, with the index of the point.
    pub(super) fn first_faults(&self, clean: &CaseEnd) -> Vec<(usize, Fault)> {
        self.faults(clean.passed.first())
    }

    /// The faults of a case in which `first` went wrong, at the point of this index, and something else behind it: at a
    /// read or, in pairs, at a point, of the rest of the attempt and of the recovery.
    pub(super) fn behind(&self, at: usize, first: &Fault, end: &CaseEnd) -> Vec<Faults> {
        let mut seconds = self.reads_behind(at, first, end);
        if self.pairs && !first.mode.is_of_a_competitor() {
            seconds.extend(self.seconds(first, end));
        }
        seconds
    }

    /// Each failover that loses commits.
    pub(super) fn failovers(&self, clean: &CaseEnd) -> Vec<Faults> {
        failovers(&clean.passed, &self.definition, self.concurrent)
    }

    /// These turns with one more, at each place where a worker stood after the last.
    pub(super) fn with_a_turn_more(&self, turns: &[Turn], stops: Vec<Stop>) -> Vec<Vec<Turn>> {
        let mut longer = Vec::new();
        if turns.len() == self.switches {
            return longer;
        }
        for Stop { point, visit, may_expire } in stops {
            let expiries: &[bool] = if may_expire { &[false, true] } else { &[false] };
            for expires in expiries {
                let turn = Turn { point: point.clone(), visit, expires: *expires };
                longer.push([turns, &[turn]].concat());
            }
        }
        longer
    }

    /// Whether a case from a script can happen here.
    pub(super) fn can_happen(&self, case: &Case) -> Result<(), Wrong> {
        let Case::Crashes { faults, .. } = case else { return Ok(()) };
        let cannot = |fault: &&Fault| {
            !self.is_legal(fault.mode, &fault.point) || fault.mode.needs_a_process()
        };
        match faults.iter().flatten().find(cannot) {
            Some(fault) => Err(format!("{fault} cannot happen there, on this store, in a test")),
            None => Ok(()),
        }
    }

    fn is_legal(&self, mode: Mode, point: &Point) -> bool {
        mode.is_legal_at(point, &self.definition, self.concurrent)
    }

    /// The faults of a case in which `first` went wrong, at the point of this index, and then a read failed.
    fn reads_behind(&self, at: usize, first: &Fault, end: &CaseEnd) -> Vec<Faults> {
        let later = self.failed_reads(end.reads.first()).into_iter();
        let later = later.filter(|(behind, _)| *behind > at);
        let next = self.failed_reads(end.reads.get(1)).into_iter();
        later
            .map(|(_, read)| vec![vec![first.clone(), read]])
            .chain(next.map(|(_, read)| vec![vec![first.clone()], vec![read]]))
            .collect()
    }

    /// Each read that was made, failing, with the number of points before it.
    fn failed_reads(&self, reads: Option<&Vec<Read>>) -> Vec<(usize, Fault)> {
        let reads = reads.filter(|_| self.modes.contains(&Mode::ReadFails));
        let reads = reads.map(Vec::as_slice).unwrap_or_default();
        let failing = reads.iter().enumerate().map(|(index, Read { behind, point })| {
            let visit = point.visit_behind(reads[..index].iter().map(|earlier| &earlier.point));
            (*behind, Fault { point: point.clone(), visit, mode: Mode::ReadFails })
        });
        failing.collect()
    }

    /// The faults of a case in which `first` went wrong, and then something else at a point: later in the same attempt, or
    /// in the next.
    fn seconds(&self, first: &Fault, end: &CaseEnd) -> Vec<Faults> {
        let is_a_crash = |(_, second): &(usize, Fault)| !second.mode.is_of_a_competitor();
        let attempt = self.faults(end.passed.first());
        // After some it continues: a failed commit is tried again, one without an answer is asked about.
        let at = attempt.iter().find(|(_, fault)| fault == first).map(|(index, _)| *index);
        let later = attempt.into_iter().filter(is_a_crash);
        let later = later.filter(|(index, _)| at.is_some_and(|at| *index > at));
        let next = self.faults(end.passed.get(1)).into_iter().filter(is_a_crash);
        later
            .map(|(_, second)| vec![vec![first.clone(), second]])
            .chain(next.map(|(_, second)| vec![vec![first.clone()], vec![second]]))
            .collect()
    }

    /// Each mode that is legal at each point that was passed, with the index of the point.
    fn faults(&self, passed: Option<&Vec<Point>>) -> Vec<(usize, Fault)> {
        let passed = passed.map(Vec::as_slice).unwrap_or_default();
        let mut faults = Vec::new();
        for (index, point) in passed.iter().enumerate() {
            let visit = point.visit_behind(&passed[..index]);
            for mode in self.modes.iter().filter(|mode| !mode.is_of_a_failover()) {
                if self.is_legal(*mode, point) {
                    faults.push((index, Fault { point: point.clone(), visit, mode: *mode }));
                }
            }
        }
        faults
    }
}

/// For each call of an undisturbed run, the failovers that lose commits before it: the fewest first.
/// None loses the intent of a call, which would be made again (G2).
fn failovers(passed: &[Vec<Point>], definition: &Definition, concurrent: bool) -> Vec<Faults> {
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
    use crate::fault::case::Driver;

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
