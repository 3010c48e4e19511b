//! What happened to the list of phases.

use super::{Pair, calls, point};
use crate::finding::Finding;
use crate::format::duration_text;
use crate::lint::Lint;
use crate::lock::{Effect, Locked};
use crate::resume::{CallState, Resumed, StopsBecause, resumed};

/// The call of this phase as it is after a crash at its worst place.
fn under_way(phase: &Locked) -> CallState {
    calls(phase).last().copied().unwrap_or(CallState::NotMade)
}

impl Pair<'_> {
    /// The phases of both lists, by their indices. A new phase is one old one at most: a name that is given
    /// up and taken by another phase is of that other phase.
    pub(super) fn matched(&self) -> Vec<(usize, usize)> {
        let mut matched: Vec<(usize, usize)> = Vec::new();
        for (index, phase) in self.old.phases.iter().enumerate() {
            let position = self.new.phases.iter().position(|now| now.is_called(&phase.name));
            let is_taken = |position| matched.iter().any(|(_, taken)| *taken == position);
            matched.extend(position.filter(|at| !is_taken(*at)).map(|at| (index, at)));
        }
        matched
    }

    fn resumed(&self, done: usize, call: CallState) -> Result<Resumed, StopsBecause> {
        resumed(&self.old.phases, done, call, &self.new.phases)
    }

    /// What happened to the list of phases.
    pub(super) fn list(&self) -> Vec<Finding> {
        let matched = self.matched();
        let mut findings = Vec::new();
        let mut renamed = Vec::new();
        for (index, phase) in self.old.phases.iter().enumerate() {
            if matched.iter().any(|(old, _)| *old == index) {
                continue;
            }
            let looks_renamed = self.looks_renamed(index, &matched);
            renamed.extend(looks_renamed);
            findings.push(self.missing(index, phase, looks_renamed));
        }
        for (index, phase) in self.new.phases.iter().enumerate() {
            if matched.iter().any(|(_, position)| *position == index) || renamed.contains(&index) {
                continue;
            }
            findings.push(self.inserted(index, phase, &matched));
        }
        let is_moved = |&(index, position): &(usize, usize)| {
            matched.iter().any(|(later, before)| *later > index && *before < position)
        };
        if let Some((index, _)) = matched.iter().find(|pair| is_moved(pair)) {
            let phase = &self.old.phases[*index];
            let change = format!("{} comes after phases that it came before", phase.name);
            findings.push(self.finding(Lint::PhasesReordered, Some(phase), change));
        }
        for (index, position) in matched {
            findings.extend(self.same_phase(index, position));
        }
        for (index, phase) in self.old.phases.iter().enumerate() {
            if self.resumed(index, under_way(phase)) == Ok(Resumed::BecomesUnknown) {
                findings.push(self.weakened(index, phase));
            }
        }
        findings
    }

    /// A call that may have been made as idempotent, and is to be made at most once.
    fn weakened(&self, index: usize, phase: &Locked) -> Finding {
        let same_call = |now: &&Locked| {
            now.effect.is_foreign()
                && (now.is_called(&phase.name) || now.provider_key() == phase.provider_key())
        };
        let now = self.new.phases.iter().find(same_call).unwrap_or(phase);
        let change = "it was idempotent, and is at_most_once".to_owned();
        let mut finding = self.finding(Lint::EffectWeakened, Some(now), change);
        self.about_its_call(&mut finding, index);
        finding
    }

    /// The index of a new phase that stands in the place of the missing one.
    fn looks_renamed(&self, index: usize, matched: &[(usize, usize)]) -> Option<usize> {
        let before = matched.iter().rev().find(|(old, _)| *old < index);
        let (old, new) = before.map_or((0, 0), |(old, new)| (old + 1, new + 1));
        let place = new + (index - old);
        let taken = matched.iter().any(|(_, position)| *position == place);
        let next = matched.iter().find(|(old, _)| *old > index);
        let before_next = next.is_none_or(|(_, position)| place < *position);
        let there = self.new.phases.get(place)?;
        let same_kind = there.effect.is_foreign() == self.old.phases[index].effect.is_foreign();
        (!taken && before_next && same_kind).then_some(place)
    }

    fn missing(&self, index: usize, phase: &Locked, renamed: Option<usize>) -> Finding {
        let (last, missing) = (self.old.phases.len() - 1, phase.name.clone());
        let harms = index < last || self.resumed(index, under_way(phase)).is_err();
        let (lint, phase, change) = match renamed.and_then(|place| self.new.phases.get(place)) {
            Some(now) => {
                let change = format!("it was {}, and does not say so", phase.name);
                (Lint::PhaseRenamed, now, change)
            }
            None => (Lint::PhaseRemoved, phase, "it is gone".to_owned()),
        };
        let earlier = (lint == Lint::PhaseRenamed).then_some(missing);
        let lint = if harms { lint } else { Lint::LastPhaseChanged };
        Finding { earlier, ..self.finding(lint, Some(phase), change) }
    }

    fn inserted(&self, index: usize, phase: &Locked, matched: &[(usize, usize)]) -> Finding {
        let last = self.old.phases.len().saturating_sub(1);
        let harms = matched.iter().filter(|(_, position)| *position > index).any(|(old, _)| {
            // A row can have passed the phase that it was put before, or be in its call.
            let in_call = under_way(&self.old.phases[*old]);
            *old < last
                || (self.resumed(*old, CallState::NotMade).is_ok()
                    && self.resumed(*old, in_call).is_err())
        });
        let lint = if harms { Lint::PhaseInserted } else { Lint::PhaseAdded };
        let before = self.new.phases.get(index + 1).map(|next| next.name.as_str());
        let change = match before {
            Some(next) => format!("it is new, before {next}"),
            None => "it is new, and the last".to_owned(),
        };
        self.finding(lint, Some(phase), change)
    }

    /// What happened to one phase that both lists have.
    fn same_phase(&self, index: usize, position: usize) -> Vec<Finding> {
        let (old, new) = (&self.old.phases[index], &self.new.phases[position]);
        let mut findings = Vec::new();
        let mut find = |lint, change: String| findings.push(self.finding(lint, Some(new), change));
        let call_is_left = self.resumed(index, under_way(old)).is_err();
        if new.name != old.name {
            find(Lint::RenamedWithWas, format!("it was {}", old.name));
        }
        if old.reconciles && !new.reconciles {
            find(
                Lint::ReconcileDropped,
                "nothing asks its provider what became of a call".to_owned(),
            );
        }
        let both_are_foreign = old.effect.is_foreign() && new.effect.is_foreign();
        if both_are_foreign && call_is_left && new.provider_key() != old.provider_key() {
            let change = format!(
                "its derived key was made of {}, and is made of {} now",
                old.provider_key(),
                new.provider_key()
            );
            find(Lint::ProviderKeyChanged, change);
        } else {
            for name in old.was.iter().filter(|name| !new.is_called(name)) {
                find(Lint::WasDropped, format!("{name} is gone from its `was`"));
            }
        }
        match (old.effect, new.effect) {
            (Effect::Local, Effect::Local) | (Effect::AtMostOnce, Effect::AtMostOnce) => {}
            (Effect::Local, _) => find(Lint::BecameForeign, "it was local".to_owned()),
            (_, Effect::Local) if call_is_left => {
                find(Lint::KindChanged, "it was foreign, and is local".to_owned());
            }
            (_, Effect::Local) => {}
            // Told where a row shows it.
            (Effect::Idempotent { .. }, Effect::AtMostOnce) => {}
            (Effect::AtMostOnce, Effect::Idempotent { .. }) => {
                find(Lint::EffectClaimed, "it was at_most_once, and is idempotent".to_owned());
            }
            (Effect::Idempotent { window: before }, Effect::Idempotent { window: after }) => {
                let text = |window: Option<_>| window.map_or("none".to_owned(), duration_text);
                let change = format!("its window was {}, and is {}", text(before), text(after));
                let forever = std::time::Duration::MAX;
                match before.unwrap_or(forever).cmp(&after.unwrap_or(forever)) {
                    std::cmp::Ordering::Less => find(Lint::WindowWidened, change),
                    std::cmp::Ordering::Greater => find(Lint::WindowNarrowed, change),
                    std::cmp::Ordering::Equal => {}
                }
            }
        }
        for finding in &mut findings {
            self.about_its_call(finding, index);
        }
        findings
    }

    /// What only rows see that stand before the phase, in its call.
    fn about_its_call(&self, finding: &mut Finding, index: usize) {
        let at = point(&self.old.phases, index);
        let in_flight = match finding.lint {
            Lint::EffectWeakened => "become unknown where the call may have been made",
            Lint::WindowWidened => "may repeat a call that the provider has forgotten",
            _ => return,
        };
        finding.in_flight = format!("rows that stand at {at} {in_flight}");
        finding.points = vec![at];
    }
}
