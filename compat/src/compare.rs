//! [`compare`]: what becomes of the rows of one build under another.
//!
//! The changes are named from the two lists of phases; whether one strands rows is not guessed from its
//! name, but found by asking [`resumed`] about each state in which a row of the old build can be. Whether
//! a stored value is read is found by fitting the old build's own samples into the new shapes. So each
//! finding that denies has a row, or a value, that shows it.

use serde_json::Value;

use crate::finding::Finding;
use crate::fits::{Misfit, fits};
use crate::folder::Locks;
use crate::format::shown;
use crate::lint::Lint;
use crate::lock::{Effect, Lock, Locked, Output, State};
use crate::resume::{CallState, Resumed, StopsBecause, resumed};
use crate::shape::{Shape, Types};

const STARTED: &str = "started";

/// What a deploy of `new` does to what `old` has written, and a rollback to what `new` has. In the order
/// of definitions, versions and phases.
#[must_use]
pub fn compare(old: &Locks, new: &Locks) -> Vec<Finding> {
    let mut findings = Vec::new();
    for before in old.iter().filter(|lock| lock.is_live()) {
        match new.get(&before.definition, before.version) {
            Some(after) => findings.extend(Pair { old: before, new: after }.findings()),
            None => findings.push(gone(before, old, new)),
        }
    }
    for after in new.iter().filter(|lock| lock.is_live()) {
        match old.get(&after.definition, after.version) {
            Some(before) if before.is_live() => {}
            Some(_) => findings.push(of_version(
                after,
                Lint::VersionRevived,
                "it is registered, and its lock file says that it is retired",
            )),
            None => findings.extend(added(after, old)),
        }
    }
    findings
}

fn of_version(lock: &Lock, lint: Lint, change: &str) -> Finding {
    Finding {
        lint,
        definition: lock.definition.clone(),
        version: lock.version,
        phase: None,
        change: change.to_owned(),
        in_flight: "none is affected".to_owned(),
        rollback: "rows of it are left alone by the build before".to_owned(),
        points: Vec::new(),
    }
}

/// A version that is not registered any more, and not retired either.
fn gone(lock: &Lock, old: &Locks, new: &Locks) -> Finding {
    let same_phases = |other: &&Lock| {
        let names = |lock: &Lock| lock.phases.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        old.latest(&other.definition).is_none() && names(other) == names(lock)
    };
    let (lint, change) = match (new.latest(&lock.definition), new.iter().find(same_phases)) {
        (Some(_), _) => {
            (Lint::VersionDropped, "this version is not registered any more".to_owned())
        }
        (None, Some(renamed)) => {
            (Lint::DefinitionRenamed, format!("it is called {} now", renamed.definition))
        }
        (None, None) => (Lint::DefinitionRemoved, "it is not registered any more".to_owned()),
    };
    Finding {
        in_flight: "every unfinished row of it is left alone".to_owned(),
        rollback: "the build before goes on with its rows".to_owned(),
        points: points(lock),
        ..of_version(lock, lint, &change)
    }
}

fn added(lock: &Lock, old: &Locks) -> Option<Finding> {
    match old.latest(&lock.definition) {
        Some(latest) if latest < lock.version => Some(of_version(
            lock,
            Lint::VersionAdded,
            &format!("version {} comes after version {latest}", lock.version),
        )),
        Some(_) => Some(of_version(lock, Lint::VersionAdded, "an earlier version is back")),
        None => Some(of_version(lock, Lint::DefinitionAdded, "it is new")),
    }
}

/// Where a row of the definition can stand.
fn points(lock: &Lock) -> Vec<String> {
    (0..lock.phases.len()).map(|done| point(&lock.phases, done)).collect()
}

/// The recovery point after `done` phases.
fn point(phases: &[Locked], done: usize) -> String {
    match done.checked_sub(1).and_then(|last| phases.get(last)) {
        Some(phase) => phase.name.clone(),
        None => STARTED.to_owned(),
    }
}

/// The states of the call of the phase after a recovery point.
fn calls(next: &Locked) -> &'static [CallState] {
    match next.effect {
        Effect::Local => &[CallState::NotMade],
        Effect::Idempotent { .. } => &[CallState::NotMade, CallState::MayHaveBeenMade],
        Effect::AtMostOnce => &[CallState::NotMade, CallState::IntentOpen],
    }
}

/// The call of this phase as it is after a crash at its worst place.
fn under_way(phase: &Locked) -> CallState {
    calls(phase).last().copied().unwrap_or(CallState::NotMade)
}

/// The recovery points at which rows of `old` are left alone by `new`.
fn stranded(old: &[Locked], new: &[Locked]) -> Vec<String> {
    let is_stranded = |done: usize| {
        let states = old.get(done).map(calls).unwrap_or_default();
        states.iter().any(|call| resumed(old, done, *call, new).is_err())
    };
    (0..old.len()).filter(|done| is_stranded(*done)).map(|done| point(old, done)).collect()
}

/// One definition and version, before and after.
struct Pair<'a> {
    old: &'a Lock,
    new: &'a Lock,
}

impl Pair<'_> {
    fn findings(&self) -> Vec<Finding> {
        if !self.new.is_live() {
            return Vec::new();
        }
        let mut findings = self.list();
        let blocks = |finding: &Finding| finding.lint.level() >= crate::Level::Deny;
        if !self.stranded().is_empty() && !findings.iter().any(blocks) {
            findings.push(self.finding(Lint::RowsStranded, None, "its phases changed".to_owned()));
        }
        findings.extend(self.request());
        findings.extend(self.outputs());
        findings.extend(self.derived_keys());
        findings.extend(self.jobs());
        findings
    }

    fn finding(&self, lint: Lint, phase: Option<&Locked>, change: String) -> Finding {
        let strands = lint.level() >= crate::Level::Deny;
        let points = if strands { self.stranded() } else { Vec::new() };
        let in_flight = match points.is_empty() {
            true => "every row goes on".to_owned(),
            false => format!("rows that stand at {} are left alone", points.join(", ")),
        };
        let back = stranded(&self.new.phases, &self.old.phases);
        let rollback = match back.is_empty() {
            true => "the build before goes on with every row".to_owned(),
            false => {
                format!("rows that stand at {} are left alone by the build before", back.join(", "))
            }
        };
        Finding {
            lint,
            definition: self.new.definition.clone(),
            version: self.new.version,
            phase: phase.map(|phase| phase.name.clone()),
            change,
            in_flight,
            rollback,
            points,
        }
    }

    fn stranded(&self) -> Vec<String> {
        stranded(&self.old.phases, &self.new.phases)
    }

    /// The phases of both lists, by their indices. A new phase is one old one at most: a name that is given
    /// up and taken by another phase is of that other phase.
    fn matched(&self) -> Vec<(usize, usize)> {
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
    fn list(&self) -> Vec<Finding> {
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
        let last = self.old.phases.len() - 1;
        let harms = index < last || self.resumed(index, under_way(phase)).is_err();
        let (lint, phase, change) = match renamed.and_then(|place| self.new.phases.get(place)) {
            Some(now) => {
                let change = format!("it was {}, and does not say so", phase.name);
                (Lint::PhaseRenamed, now, change)
            }
            None => (Lint::PhaseRemoved, phase, "it is gone".to_owned()),
        };
        self.finding(if harms { lint } else { Lint::LastPhaseChanged }, Some(phase), change)
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
                let text = |window: Option<_>| window.map_or("none".to_owned(), shown);
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

    fn request(&self) -> Vec<Finding> {
        let (old, new) = (self.old, self.new);
        let mut findings = Vec::new();
        let samples = |lock: &Lock| -> Vec<String> {
            lock.request_samples.iter().map(|sample| sample.json.clone()).collect()
        };
        if let Some(misfit) = first_misfit(&samples(old), &new.request, &new.types) {
            let change = format!("stored parameters do not decode: {misfit}");
            findings.push(Finding {
                in_flight:
                    "each such row fails until the attempt cap, then it waits for an operator"
                        .to_owned(),
                points: points(old),
                ..self.finding(Lint::RequestUnreadable, None, change)
            });
        }
        if let Some(misfit) = first_misfit(&samples(new), &old.request, &old.types) {
            let change = format!("the build before does not decode its parameters: {misfit}");
            findings.push(Finding {
                rollback: "the build before fails each row that this one has created".to_owned(),
                ..self.finding(Lint::RequestNotRollbackable, None, change)
            });
        }
        if new.request == Shape::Opaque && new.request_samples.is_empty() {
            findings.push(self.finding(Lint::NotProbed, None, "its parameters are opaque".into()));
        }
        let changed = old.request_samples.iter().any(|before| {
            let mut after = new.request_samples.iter();
            after.any(|after| after.json == before.json && after.fingerprint != before.fingerprint)
        });
        if changed {
            let change = "the same stored parameters have another fingerprint".to_owned();
            findings.push(self.finding(Lint::FingerprintChanged, None, change));
        }
        findings
    }

    fn outputs(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, position) in self.matched() {
            let (before, phase) = (&self.old.phases[index], &self.new.phases[position]);
            let (Output::Value { shape: old, samples: written }, Output::Value { shape, samples }) =
                (&before.output, &phase.output)
            else {
                continue;
            };
            if let Some(misfit) = first_misfit(written, shape, &self.new.types) {
                let behind = (index + 1)..self.old.phases.len();
                let points: Vec<_> = behind.map(|done| point(&self.old.phases, done)).collect();
                let change = format!("its stored output does not decode: {misfit}");
                findings.push(Finding {
                    in_flight: format!(
                        "rows that stand at {} fail where a later phase asks for it, until the attempt cap",
                        points.join(", ")
                    ),
                    points,
                    ..self.finding(Lint::OutputUnreadable, Some(phase), change)
                });
            }
            if let Some(misfit) = first_misfit(samples, old, &self.old.types) {
                let change = format!("the build before does not decode its output: {misfit}");
                findings.push(Finding {
                    rollback: "the build before fails each row that has passed it".to_owned(),
                    ..self.finding(Lint::OutputNotRollbackable, Some(phase), change)
                });
            }
            if *shape == Shape::Opaque && samples.is_empty() {
                let change = "its output is opaque".to_owned();
                findings.push(self.finding(Lint::NotProbed, Some(phase), change));
            }
        }
        findings
    }

    /// The jobs that phases stage, and later builds deliver.
    fn jobs(&self) -> Vec<Finding> {
        let (old, new) = (self.old, self.new);
        let of_job = |lint, change: String, in_flight: &str| Finding {
            in_flight: in_flight.to_owned(),
            points: Vec::new(),
            ..self.finding(lint, None, change)
        };
        let mut findings = Vec::new();
        for before in &old.jobs {
            let name = &before.name;
            let Some(after) = new.jobs.iter().find(|job| job.name == *name) else {
                let change = format!("it stages no job `{name}` any more");
                let in_flight = "jobs of that name that are staged wait for a handler of it";
                findings.push(of_job(Lint::JobRemoved, change, in_flight));
                continue;
            };
            if let Some(misfit) = first_misfit(&before.samples, &after.args, &new.types) {
                let change = format!("staged jobs `{name}` do not decode: {misfit}");
                let in_flight = "each such job that is staged is a dead letter at its delivery";
                findings.push(of_job(Lint::JobUnreadable, change, in_flight));
            }
            if let Some(misfit) = first_misfit(&after.samples, &before.args, &old.types) {
                let change = format!("the build before does not decode jobs `{name}`: {misfit}");
                findings.push(Finding {
                    rollback: "a node of the build before makes each such job a dead letter"
                        .to_owned(),
                    ..of_job(Lint::JobNotRollbackable, change, "every job is delivered")
                });
            }
        }
        for job in &new.jobs {
            if !old.jobs.iter().any(|before| before.name == job.name) {
                let change = format!("it stages jobs `{}`", job.name);
                findings.push(Finding {
                    rollback: "the build before leaves such jobs to nodes with a handler"
                        .to_owned(),
                    ..of_job(Lint::JobAdded, change, "none is affected")
                });
            }
            if job.args == Shape::Opaque && job.samples.is_empty() {
                let change = format!("the arguments of jobs `{}` are opaque", job.name);
                findings.push(of_job(Lint::NotProbed, change, "not known"));
            }
        }
        findings
    }

    /// The golden keys: of one name, one set of parameters and one fingerprint.
    fn derived_keys(&self) -> Vec<Finding> {
        let same_request =
            match (self.old.request_samples.first(), self.new.request_samples.first()) {
                (Some(old), Some(new)) => old == new,
                _ => false,
            };
        let mut findings = Vec::new();
        for (index, position) in self.matched() {
            let (old, new) = (&self.old.phases[index], &self.new.phases[position]);
            let (Some(before), Some(after)) = (&old.derived, &new.derived) else { continue };
            if same_request && old.provider_key() == new.provider_key() && before != after {
                let change = "its golden derived key is another one".to_owned();
                findings.push(self.finding(Lint::DerivedKeyChanged, Some(new), change));
            }
        }
        findings
    }
}

/// The first place of the first stored value that is not read.
fn first_misfit(samples: &[String], shape: &Shape, types: &Types) -> Option<Misfit> {
    samples.iter().find_map(|sample| {
        let value: Value = serde_json::from_str(sample).ok()?;
        fits(&value, shape, types).err()
    })
}

impl Lock {
    /// The same lock in another state.
    #[must_use]
    pub fn in_state(mut self, state: State) -> Self {
        self.state = state;
        self
    }
}

#[cfg(test)]
mod tests;
