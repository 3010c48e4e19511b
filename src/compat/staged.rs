//! Compares the staged jobs of a database with lock files: which of them would a build not deliver?

use std::fmt;

use serde_json::Value;

use super::{Lock, LockedJob, Locks, fits};
use crate::engine::WAITING_JOB;
use crate::store::{Store, StoreError, SurveyedJob};

/// Arguments that are longer are not looked at, so that a check costs a few megabytes at most.
const MAX_BYTES: u32 = 4096;

/// Of each name so many jobs are looked into: those that have been due for longest, which the earliest builds
/// staged, come first.
const MAX_ARGUMENTS: usize = 1000;

/// Staged jobs of one name. `Debug` does not show their arguments (G19).
#[derive(Clone)]
#[non_exhaustive]
pub struct StagedJobs {
    /// The name.
    pub name: String,
    /// How many were found, including dead letters.
    pub jobs: u64,
    /// How many of them are dead letters.
    pub dead: u64,
    /// How many of them were not checked: their arguments are behind a codec or longer than 4 KiB, or a
    /// thousand of that name had been checked already.
    pub unread: u64,
    args: Vec<Value>,
}

/// Staged jobs that a build with some lock files would not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftJobs {
    /// Their name.
    pub name: String,
    /// How many of them.
    pub jobs: u64,
    /// Why.
    pub because: JobsLeftBecause,
}

/// Why staged jobs are not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobsLeftBecause {
    /// No lock file of a live version has a job of that name: they wait for a handler.
    NotNamed,
    /// Their arguments do not have the recorded form: each becomes a dead letter when it is delivered.
    /// Contains the place in the first of them.
    Unreadable(String),
}

impl JobsLeftBecause {
    /// A name for programs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::NotNamed => "job_not_named",
            Self::Unreadable(_) => "job_unreadable",
        }
    }
}

impl fmt::Display for JobsLeftBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNamed => f.write_str(
                "no lock file has a job of that name, so it is not known that a handler has it; \
                 name it by `Definitions::job`",
            ),
            Self::Unreadable(misfit) => {
                write!(f, "their arguments do not decode: {misfit}; keep the earlier form readable")
            }
        }
    }
}

impl fmt::Debug for StagedJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, jobs, dead, unread, args: _ } = self;
        let mut shown = f.debug_struct("StagedJobs");
        shown.field("name", name).field("jobs", jobs).field("dead", dead).field("unread", unread);
        shown.finish_non_exhaustive()
    }
}

impl StagedJobs {
    pub(super) fn left_by(&self, locks: &Locks) -> Option<LeftJobs> {
        // The library's own, of no definition.
        if self.name == WAITING_JOB {
            return None;
        }
        let left = |jobs, because| Some(LeftJobs { name: self.name.clone(), jobs, because });
        let live = locks.iter().filter(|lock| lock.is_live());
        let of_all = live.flat_map(|lock| lock.jobs.iter().map(move |job| (lock, job)));
        let known: Vec<(&Lock, &LockedJob)> =
            of_all.filter(|(_, job)| job.name == self.name).collect();
        if known.is_empty() {
            return left(self.jobs, JobsLeftBecause::NotNamed);
        }
        // A name has one handler, which reads what each of the definitions stages.
        let misfit = |args: &Value| {
            known.iter().find_map(|(lock, job)| fits(args, &job.args, &lock.types).err())
        };
        let misfits: Vec<_> = self.args.iter().filter_map(misfit).collect();
        let first = misfits.first()?;
        left(misfits.len() as u64, JobsLeftBecause::Unreadable(first.to_string()))
    }
}

/// The staged jobs by name, and whether there may be more.
pub(super) async fn read<S: Store>(
    store: &S,
    limit: u32,
) -> Result<(Vec<StagedJobs>, bool), StoreError> {
    let mut found: Vec<StagedJobs> = Vec::new();
    let mut counts = [0; 2];
    for SurveyedJob { is_dead, name, args } in store.survey_jobs(limit, MAX_BYTES).await? {
        counts[usize::from(is_dead)] += 1;
        let index = found.iter().position(|jobs| jobs.name == name).unwrap_or_else(|| {
            found.push(StagedJobs { name, jobs: 0, dead: 0, unread: 0, args: Vec::new() });
            found.len() - 1
        });
        let jobs = &mut found[index];
        jobs.jobs += 1;
        jobs.dead += u64::from(is_dead);
        match args.and_then(|args| serde_json::from_slice(&args).ok()) {
            Some(args) if jobs.args.len() < MAX_ARGUMENTS => jobs.args.push(args),
            _ => jobs.unread += 1,
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((found, counts.contains(&limit)))
}
