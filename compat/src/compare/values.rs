//! What becomes of stored values: parameters, outputs, and arguments of jobs.

use serde_json::Value;

use super::members::{OUTPUT, describe};
use super::{Pair, of_version, point, points};
use crate::examples::{Example, examples};
use crate::finding::Finding;
use crate::fits::fits_sample;
use crate::folder::Locks;
use crate::lint::{Level, Lint};
use crate::lock::{Lock, Locked, Output};
use crate::members::{MemberChange, Typed, changes_for_clients};
use crate::unprobed::unprobed;

pub(super) const PARAMETERS: &str = "its parameters";

/// Which stored value of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// The parameters.
    Parameters,
    /// The output of a phase, by the name that it had.
    Output(&'a str),
    /// The arguments of a job, by its name.
    Job(&'a str),
}

/// The code of the new build, as far as it can be asked.
pub trait Code {
    /// Whether this version of the definition reads `json`; `None` where its type is not known.
    fn reads(&self, definition: &str, version: u32, stored: Stored<'_>, json: &str)
    -> Option<bool>;
}

/// There is none: lock files alone.
pub(super) struct NoCode;

impl Code for NoCode {
    fn reads(&self, _: &str, _: u32, _: Stored<'_>, _: &str) -> Option<bool> {
        None
    }
}

/// Values of one kind, as a build writes them.
#[derive(Clone, Copy)]
pub(super) struct Written<'a> {
    pub(super) typed: Typed<'a>,
    pub(super) samples: &'a [String],
}

/// Why the new type does not read one of the old values: the first place.
///
/// A sample is what the old build wrote. An example is made from its shape, so it counts only where the new
/// shape does not take it either.
pub(super) fn unread(
    old: Written<'_>,
    new: Typed<'_>,
    reads: impl Fn(&str) -> Option<bool>,
) -> Option<String> {
    let is_same = old.typed.shape == new.shape && old.typed.types == new.types;
    let misfit = |json: &str| {
        let value: Value = serde_json::from_str(json).ok().filter(|_| !is_same)?;
        fits_sample(&value, new.shape, new.types).err().map(|misfit| misfit.to_string())
    };
    let of_sample = old.samples.iter().find_map(|sample| match reads(sample) {
        Some(true) => None,
        Some(false) => {
            Some(misfit(sample).unwrap_or_else(|| "a locked sample shows it".to_owned()))
        }
        None => misfit(sample),
    });
    of_sample.or_else(|| {
        if is_same {
            return None;
        }
        let made = examples(old.typed.shape, old.typed.types);
        made.iter().find_map(|Example { json, is_complete }| {
            let misfit = misfit(json)?;
            let is_read = *is_complete && reads(json) == Some(true);
            (!is_read).then_some(misfit)
        })
    })
}

fn parameters(lock: &Lock) -> Typed<'_> {
    Typed { shape: &lock.request, types: &lock.types }
}

fn request_samples(lock: &Lock) -> Vec<String> {
    lock.request_samples.iter().map(|sample| sample.json.clone()).collect()
}

/// Whether retries of earlier versions are recognized by this one, where that was not so before.
pub(super) fn of_earlier_versions(
    lock: &Lock,
    was: Option<&Lock>,
    (old, new): (&Locks, &Locks),
    code: &dyn Code,
) -> Vec<Finding> {
    let mut found = Vec::new();
    // Also those whose code is gone: their answers replay as long as their keys live.
    let all = old.iter().filter(|lock| new.get(&lock.definition, lock.version).is_none());
    for earlier in new.iter().chain(all) {
        if earlier.definition != lock.definition || earlier.version >= lock.version {
            continue;
        }
        let before = old.get(&earlier.definition, earlier.version).unwrap_or(earlier);
        let known = was.map(|was| of_earlier_version(before, was, &NoCode)).unwrap_or_default();
        let is_known = |finding: &Finding| {
            known.iter().any(|known| {
                known.lint == finding.lint
                    && (known.change == finding.change || finding.lint == Lint::VersionUnreadable)
            })
        };
        let now = of_earlier_version(earlier, lock, code);
        found.extend(now.into_iter().filter(|finding| !is_known(finding)));
    }
    found
}

fn of_earlier_version(earlier: &Lock, lock: &Lock, code: &dyn Code) -> Vec<Finding> {
    let samples = request_samples(earlier);
    let (before, now) = (parameters(earlier), parameters(lock));
    let reads = |json: &str| code.reads(&lock.definition, lock.version, Stored::Parameters, json);
    let version = earlier.version;
    let of = |lint, change: String| Finding {
        in_flight: "every row continues in the version that it began in".to_owned(),
        ..of_version(lock, lint, &change)
    };
    if let Some(misfit) = unread(Written { typed: before, samples: &samples }, now, reads) {
        let change = format!("parameters of version {version} do not decode as its own: {misfit}");
        return vec![of(Lint::VersionUnreadable, change)];
    }
    let changes = changes_for_clients(before, now).into_iter();
    let of_change = |change: MemberChange| {
        let (lint, change, _) = describe(&change, PARAMETERS);
        let lint = match lint {
            Lint::RequestUnreadable => Lint::VersionUnreadable,
            lint => lint,
        };
        // What a retry is compared by; the row itself is run in its own version.
        let is_of_retries = [
            Lint::VersionUnreadable,
            Lint::MemberRenamed,
            Lint::MemberDropped,
            Lint::DefaultChanged,
            Lint::RetryDiffers,
            Lint::RetryRefused,
            Lint::FingerprintUnstable,
        ];
        is_of_retries
            .contains(&lint)
            .then(|| of(lint, format!("beside version {version}: {change}")))
    };
    changes.filter_map(of_change).collect()
}

/// The parts of `new` that cannot be compared, and that were not reported before.
pub(super) fn not_probed(old: Option<&Lock>, new: &Lock) -> Vec<Finding> {
    let known: Vec<_> = old.map(places).unwrap_or_default();
    let is_new = |place: &(Option<&str>, String)| !known.contains(place);
    let of_place = |(phase, place): (Option<&str>, String)| Finding {
        phase: phase.map(str::to_owned),
        in_flight: "not known".to_owned(),
        rollback: "not known".to_owned(),
        ..of_version(new, Lint::NotProbed, &format!("{place} could not be probed"))
    };
    places(new).into_iter().filter(is_new).map(of_place).collect()
}

fn places(lock: &Lock) -> Vec<(Option<&str>, String)> {
    let of = |typed: Typed<'_>, samples: &[String], what: &str| -> Vec<String> {
        let places = unprobed(typed.shape, typed.types, samples).into_iter();
        places.map(|place| format!("{place} of {what}")).collect()
    };
    let mut all = Vec::new();
    for place in of(parameters(lock), &request_samples(lock), PARAMETERS) {
        all.push((None, place));
    }
    for phase in &lock.phases {
        let Output::Value { shape, samples } = &phase.output else { continue };
        let typed = Typed { shape, types: &lock.types };
        for place in of(typed, samples, OUTPUT) {
            all.push((Some(phase.name.as_str()), place));
        }
    }
    for job in &lock.jobs {
        let typed = Typed { shape: &job.args, types: &lock.types };
        for place in of(typed, &job.samples, &format!("jobs `{}`", job.name)) {
            all.push((None, place));
        }
    }
    all
}

impl Pair<'_> {
    pub(super) fn reads(&self, stored: Stored<'_>, json: &str) -> Option<bool> {
        self.code.reads(&self.new.definition, self.new.version, stored, json)
    }

    pub(super) fn request(&self) -> Vec<Finding> {
        let (old, new) = (self.old, self.new);
        let mut findings = Vec::new();
        let samples = [request_samples(old), request_samples(new)];
        let [before, after] = [(old, &samples[0]), (new, &samples[1])]
            .map(|(lock, samples)| Written { typed: parameters(lock), samples });
        let reads = |json: &str| self.reads(Stored::Parameters, json);
        let misfit = unread(before, after.typed, reads);
        let is_unread = misfit.is_some();
        if let Some(misfit) = misfit {
            let change = format!("stored parameters do not decode: {misfit}");
            findings.push(Finding {
                in_flight:
                    "each such row fails until the attempt cap, then it waits for an operator"
                        .to_owned(),
                points: points(old),
                ..self.finding(Lint::RequestUnreadable, None, change)
            });
        }
        if let Some(misfit) = unread(after, before.typed, |_| None) {
            let change = format!("the build before does not decode its parameters: {misfit}");
            findings.push(Finding {
                rollback: "the build before fails each row that this one has created".to_owned(),
                ..self.finding(Lint::RequestNotRollbackable, None, change)
            });
        }
        let members = self.members(before.typed, after.typed, None, PARAMETERS, || points(old));
        let is_told = |finding: &Finding| is_unread && finding.lint == Lint::RequestUnreadable;
        findings.extend(members.into_iter().filter(|finding| !is_told(finding)));
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

    pub(super) fn outputs(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, position) in self.matched() {
            let (before, phase) = (&self.old.phases[index], &self.new.phases[position]);
            let (Output::Value { shape: old, samples: written }, Output::Value { shape, samples }) =
                (&before.output, &phase.output)
            else {
                continue;
            };
            let old = Typed { shape: old, types: &self.old.types };
            let new = Typed { shape, types: &self.new.types };
            let points = self.needed_at(index, phase);
            let is_asked = !points.is_empty();
            let behind = || points.clone();
            let unasked = |change: String| Finding {
                in_flight: "every row continues".to_owned(),
                ..self.finding(Lint::OutputUnasked, Some(phase), change)
            };
            let reads = |json: &str| self.reads(Stored::Output(&before.name), json);
            let misfit = unread(Written { typed: old, samples: written }, new, reads);
            let is_unread = misfit.is_some();
            if let Some(misfit) = misfit {
                let change = format!("its stored output does not decode: {misfit}");
                findings.push(match is_asked {
                    false => unasked(change),
                    true => Finding {
                        in_flight: format!(
                            "rows that stand at {} fail where a later phase asks for it, until the attempt cap",
                            points.join(", ")
                        ),
                        points: behind(),
                        ..self.finding(Lint::OutputUnreadable, Some(phase), change)
                    },
                });
            }
            if let Some(misfit) = unread(Written { typed: new, samples }, old, |_| None) {
                let change = format!("the build before does not decode its output: {misfit}");
                findings.push(Finding {
                    rollback: "the build before fails each row that has passed it".to_owned(),
                    ..self.finding(Lint::OutputNotRollbackable, Some(phase), change)
                });
            }
            let members = self.members(old, new, Some(phase), OUTPUT, behind);
            let is_told = |finding: &Finding| is_unread && finding.lint == Lint::OutputUnreadable;
            for finding in members.into_iter().filter(|finding| !is_told(finding)) {
                let strikes = is_asked || finding.lint.level() < Level::Deny;
                findings.push(if strikes { finding } else { unasked(finding.change) });
            }
        }
        findings
    }

    /// The recovery points behind this phase at which a row comes to one that asks for its output.
    fn needed_at(&self, index: usize, phase: &Locked) -> Vec<String> {
        let matched = self.matched();
        let is_needed = |done: &usize| {
            let Some(asking) = &phase.asked_by else { return true };
            let last = matched.iter().find(|(old, _)| old + 1 == *done);
            let mut to_come = self.new.phases.iter().skip(last.map_or(0, |(_, new)| new + 1));
            to_come.any(|phase| asking.contains(&phase.name))
        };
        let behind = (index + 1)..self.old.phases.len();
        behind.filter(is_needed).map(|done| point(&self.old.phases, done)).collect()
    }

    /// The golden keys: of one name, and of one set of parameters that never changes.
    pub(super) fn derived_keys(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, position) in self.matched() {
            let (old, new) = (&self.old.phases[index], &self.new.phases[position]);
            let (Some(before), Some(after)) = (&old.derived, &new.derived) else { continue };
            if old.provider_key() == new.provider_key() && before != after {
                let change = "its golden derived key is another one".to_owned();
                findings.push(self.finding(Lint::DerivedKeyChanged, Some(new), change));
            }
        }
        findings
    }
}
