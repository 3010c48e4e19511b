//! What becomes of staged jobs, which later builds deliver.

use super::values::{Code, Stored, Written, unread};
use super::{Pair, of_version};
use crate::finding::Finding;
use crate::folder::Locks;
use crate::lint::Lint;
use crate::lock::{Lock, LockedJob};
use crate::members::Typed;

impl Pair<'_> {
    /// The jobs that phases stage, and later builds deliver.
    pub(super) fn jobs(&self) -> Vec<Finding> {
        let of_job = |lint, job: &str, change: String, in_flight: &str| Finding {
            job: Some(job.to_owned()),
            in_flight: in_flight.to_owned(),
            points: Vec::new(),
            ..self.finding(lint, None, change)
        };
        let mut findings = Vec::new();
        for before in &self.old.jobs {
            let name = &before.name;
            let Some(after) = self.new.jobs.iter().find(|job| job.name == *name) else {
                // A name has one handler for all definitions: the forms of another definition are compared with it.
                let mut others =
                    self.all.iter().filter(|lock| lock.is_live()).flat_map(|lock| &lock.jobs);
                if others.any(|job| job.name == *name) {
                    continue;
                }
                let change = format!("it stages no job `{name}` any more");
                let in_flight = "jobs of that name that are staged wait for a handler of it";
                findings.push(of_job(Lint::JobRemoved, name, change, in_flight));
                continue;
            };
            let old = Typed { shape: &before.args, types: &self.old.types };
            let new = Typed { shape: &after.args, types: &self.new.types };
            let reads = |json: &str| self.reads(Stored::Job(name), json);
            let written = Written { typed: old, samples: &before.samples };
            let misfit = unread(written, new, reads);
            let is_unread = misfit.is_some();
            if let Some(misfit) = misfit {
                let change = format!("staged jobs `{name}` do not decode: {misfit}");
                let in_flight = "each such job that is staged is a dead letter at its delivery";
                findings.push(of_job(Lint::JobUnreadable, name, change, in_flight));
            }
            let written = Written { typed: new, samples: &after.samples };
            if let Some(misfit) = unread(written, old, |_| None) {
                let change = format!("the build before does not decode jobs `{name}`: {misfit}");
                findings.push(Finding {
                    rollback: "a node of the build before makes each such job a dead letter"
                        .to_owned(),
                    ..of_job(Lint::JobNotRollbackable, name, change, "every job is delivered")
                });
            }
            let members = self.members(old, new, None, &format!("jobs `{name}`"), Vec::new);
            let of_this = |finding| Finding { job: Some(name.clone()), ..finding };
            let is_told = |finding: &Finding| is_unread && finding.lint == Lint::JobUnreadable;
            findings.extend(members.into_iter().filter(|finding| !is_told(finding)).map(of_this));
        }
        for job in &self.new.jobs {
            if !self.old.jobs.iter().any(|before| before.name == job.name) {
                let change = format!("it stages jobs `{}`", job.name);
                findings.push(Finding {
                    rollback: "the build before leaves such jobs to nodes with a handler"
                        .to_owned(),
                    ..of_job(Lint::JobAdded, &job.name, change, "none is affected")
                });
            }
        }
        findings
    }
}

/// The jobs that come to a definition, beside those of the same name that others have staged: a name has one handler.
pub(super) fn of_new_jobs(
    lock: &Lock,
    was: Option<&Lock>,
    old: &Locks,
    code: &dyn Code,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_new = |job: &&LockedJob| {
        was.is_none_or(|was| !was.jobs.iter().any(|before| before.name == job.name))
    };
    for job in lock.jobs.iter().filter(is_new) {
        for other in old.iter().filter(|other| other.is_live()) {
            let Some(before) = other.jobs.iter().find(|before| before.name == job.name) else {
                continue;
            };
            let new = Typed { shape: &job.args, types: &lock.types };
            let typed = Typed { shape: &before.args, types: &other.types };
            let stored = Stored::Job(&job.name);
            let reads = |json: &str| code.reads(&lock.definition, lock.version, stored, json);
            let Some(misfit) = unread(Written { typed, samples: &before.samples }, new, reads)
            else {
                continue;
            };
            let (name, version) = (&other.definition, other.version);
            let change = format!(
                "jobs `{}` that {name}@{version} stages do not decode as its own: {misfit}",
                job.name
            );
            findings.push(Finding {
                job: Some(job.name.clone()),
                in_flight: "each such job that is staged is a dead letter at its delivery"
                    .to_owned(),
                ..of_version(lock, Lint::JobUnreadable, &change)
            });
        }
    }
    findings
}
