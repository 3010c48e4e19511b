//! [`compare`]: what becomes of the rows of one build under another.
//!
//! The changes are named from the two lists of phases; whether one strands rows is not guessed from its
//! name, but found by asking [`resumed`] about each state in which a row of the old build can be. Whether
//! a stored value is read is found by fitting the old build's own samples, and examples of its shapes, into
//! the new shapes. So each finding that denies has a row, or a value, that shows it.

mod jobs;
mod list;
mod members;
mod values;

use crate::finding::Finding;
use crate::folder::Locks;
use crate::lint::Lint;
use crate::lock::{Effect, Lock, Locked, State};
use crate::resume::{CallState, resumed};

use self::values::NoCode;
pub use self::values::{Code, Stored};

const STARTED: &str = "started";

/// What a deploy of `new` does to what `old` has written, and a rollback to what `new` has. In the order
/// of definitions, versions and phases.
#[must_use]
pub fn compare(old: &Locks, new: &Locks) -> Vec<Finding> {
    compare_with(old, new, &NoCode)
}

/// As [`compare`], where the code of `new` is there: it reads stored values itself, and its word counts more
/// than what a shape says.
#[must_use]
pub fn compare_with(old: &Locks, new: &Locks, code: &dyn Code) -> Vec<Finding> {
    let mut findings = Vec::new();
    for before in old.iter().filter(|lock| lock.is_live()) {
        match new.get(&before.definition, before.version) {
            Some(after) => {
                if !after.is_live() {
                    findings.push(retired(before, old, new));
                }
                findings.extend(Pair { old: before, new: after, all: new, code }.findings());
            }
            None => findings.push(gone(before, old, new)),
        }
    }
    for after in new.iter().filter(|lock| lock.is_live()) {
        let was = old.get(&after.definition, after.version).filter(|before| before.is_live());
        match old.get(&after.definition, after.version) {
            Some(before) if before.is_live() => {}
            Some(_) => findings.push(of_version(
                after,
                Lint::VersionRevived,
                "it is registered, and its lock file says that it is retired",
            )),
            None => {
                findings.push(added(after, old));
                findings.extend(values::not_probed(None, after));
            }
        }
        findings.extend(values::of_earlier_versions(after, was, (old, new), code));
        findings.extend(jobs::of_new_jobs(after, was, old, code));
    }
    findings
}

fn of_version(lock: &Lock, lint: Lint, change: &str) -> Finding {
    Finding {
        lint,
        definition: lock.definition.clone(),
        version: lock.version,
        phase: None,
        job: None,
        earlier: None,
        change: change.to_owned(),
        in_flight: "none is affected".to_owned(),
        rollback: "rows of it are left alone by the build before".to_owned(),
        points: Vec::new(),
    }
}

/// A version that is not registered any more, and not retired either.
fn gone(lock: &Lock, old: &Locks, new: &Locks) -> Finding {
    // It has come, and has all of its phases, or half of them and its parameters.
    let same_phases = |other: &&Lock| {
        let has = |phase: &&Locked| other.phases.iter().any(|other| other.is_called(&phase.name));
        let common = lock.phases.iter().filter(has).count();
        let is_it = common == lock.phases.len()
            || (2 * common >= lock.phases.len() && other.request == lock.request);
        old.latest(&other.definition).is_none() && is_it
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
        rollback: "the previous build continues its rows".to_owned(),
        points: points(lock),
        ..of_version(lock, lint, &change)
    }
}

/// A version that was live, and is marked as retired.
fn retired(lock: &Lock, old: &Locks, new: &Locks) -> Finding {
    let is_current = old.latest(&lock.definition) == Some(lock.version);
    let latest = new.latest(&lock.definition).filter(|latest| *latest > lock.version);
    let (lint, change) = match latest {
        Some(latest) if is_current => (
            Lint::VersionDropped,
            format!(
                "it is marked as retired in the deploy that brings version {latest}: until then each new request is of it"
            ),
        ),
        None if is_current => (
            Lint::VersionRetired,
            "it is marked as retired, and was not draining before".to_owned(),
        ),
        _ => (
            Lint::VersionDrained,
            "it was draining, and is retired; whether a row of it is left is not seen in the files"
                .to_owned(),
        ),
    };
    let points = if lint == Lint::VersionDropped { points(lock) } else { Vec::new() };
    Finding {
        in_flight: "what is unfinished of it is left alone".to_owned(),
        rollback: "the previous build continues its rows".to_owned(),
        points,
        ..of_version(lock, lint, &change)
    }
}

fn added(lock: &Lock, old: &Locks) -> Finding {
    let change = match old.latest(&lock.definition) {
        None => return of_version(lock, Lint::DefinitionAdded, "it is new"),
        Some(latest) if latest < lock.version => {
            format!("version {} comes after version {latest}", lock.version)
        }
        Some(_) => "an earlier version is back".to_owned(),
    };
    of_version(lock, Lint::VersionAdded, &change)
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
    /// All that the new build has.
    all: &'a Locks,
    code: &'a dyn Code,
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
        findings.extend(values::not_probed(Some(self.old), self.new));
        findings
    }

    fn finding(&self, lint: Lint, phase: Option<&Locked>, change: String) -> Finding {
        let strands = lint.level() >= crate::Level::Deny;
        let points = if strands { self.stranded() } else { Vec::new() };
        let in_flight = match points.is_empty() {
            true => "every row continues".to_owned(),
            false => format!("rows that stand at {} are left alone", points.join(", ")),
        };
        let back = stranded(&self.new.phases, &self.old.phases);
        let rollback = match back.is_empty() {
            true => "the previous build continues every row".to_owned(),
            false => {
                format!("rows that stand at {} are left alone by the build before", back.join(", "))
            }
        };
        Finding {
            lint,
            definition: self.new.definition.clone(),
            version: self.new.version,
            phase: phase.map(|phase| phase.name.clone()),
            job: None,
            earlier: None,
            change,
            in_flight,
            rollback,
            points,
        }
    }

    fn stranded(&self) -> Vec<String> {
        stranded(&self.old.phases, &self.new.phases)
    }
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
