//! [`InFlight`]: the unfinished requests and the staged jobs of a database, read without the code of any
//! definition.

use std::collections::HashMap;
use std::time::Duration;

use super::staged::{self, LeftJobs, StagedJobs};
use super::{Finding, Lock, Locks, Resumed, phases_done};
use crate::definition::PhaseList;
use crate::engine::{CheckReport, Stands, StrandedBecause, counted_alike};
use crate::setting::{DAY, LEASE, duration};
use crate::store::{FoundBy, Standing, Store, StoreError, UnknownStatus};

/// How many rows each search returns at most.
const MAX_ROWS: u32 = 10_000;

/// How many of the youngest rows are looked at: most of them are finished.
const LATEST_ROWS: u32 = 100_000;

/// How long after the end of its first lease a request whose holder died young is in an index of unfinished ones, where a
/// completer runs. Before, none may have it.
const ENROLLED_WITHIN: Duration = Duration::from_secs(60);

/// The unfinished requests of a database, grouped by definition, version, recovery point and the phases under
/// which they were written; and its staged jobs, by name. It does not decode values behind a codec. So it
/// needs no code of the definitions, and a command line or a deploy pipeline can read it;
/// [`Engine::check`](crate::Engine::check) knows more about the requests.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InFlight {
    /// The groups of requests, in the order in which they were found.
    pub places: Vec<Standing>,
    /// The groups of requests whose status this build does not know: a later one wrote it.
    pub unknown_status: Vec<UnknownStatus>,
    /// The staged jobs, by their names.
    pub jobs: Vec<StagedJobs>,
    /// Whether there may be more: a search reached its limit of ten thousand rows, or the oldest of the hundred thousand
    /// rows that were created last is younger than a lease and a minute.
    pub truncated: bool,
}

/// A group of requests that a build with these lock files cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// Name of their definition.
    pub definition: String,
    /// Version of their definition.
    pub version: u32,
    /// Their recovery point.
    pub recovery_point: String,
    /// Their status, as it is stored: it may be one that this build does not know.
    pub status: String,
    /// How many they are.
    pub rows: u64,
    /// Why.
    pub because: StrandedBecause,
}

impl Left {
    fn standing(rows: &Standing, because: StrandedBecause) -> Self {
        Self {
            definition: rows.definition.clone(),
            version: rows.version,
            recovery_point: rows.recovery_point.clone(),
            status: rows.status.as_str().to_owned(),
            rows: rows.rows,
            because,
        }
    }

    /// Of a status that a later build wrote.
    fn unknown(rows: &UnknownStatus) -> Self {
        let UnknownStatus { definition, version, recovery_point, status, rows } = rows.clone();
        let because = StrandedBecause::NewerForm;
        Self { definition, version, recovery_point, status, rows, because }
    }

    /// What its rows have in common.
    fn group(&self) -> (&str, u32, &str, &str, StrandedBecause) {
        let Self { definition, version, recovery_point, status, rows: _, because } = self;
        (definition.as_str(), *version, recovery_point.as_str(), status.as_str(), *because)
    }
}

impl InFlight {
    /// Reads them with two statements: five searches by index, of at most ten thousand rows each, but a hundred thousand of
    /// those that were created last. It takes leases to be as long as an engine can have them, a day: if a table has more
    /// than a hundred thousand requests of the last day, the result is [truncated](Self::truncated).
    ///
    /// # Errors
    /// Any [`StoreError`] if the tables cannot be read.
    pub async fn read<S: Store>(store: &S) -> Result<Self, StoreError> {
        Self::read_with_lease(store, DAY).await
    }

    /// As [`read`](Self::read), for a database whose engines have at most this
    /// [lease](crate::engine::EngineBuilder::lease). If the result is not [truncated](Self::truncated), it also has each
    /// request that had just begun.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for a lease that no engine can have: less than 100 ms, or more than a day. Otherwise any
    /// [`StoreError`] if the tables cannot be read.
    pub async fn read_with_lease<S: Store>(store: &S, lease: Duration) -> Result<Self, StoreError> {
        duration("InFlight::read_with_lease", lease, LEASE.0, LEASE.1)?;
        let youth = lease + ENROLLED_WITHIN;
        let mut seen = std::collections::HashSet::new();
        let mut counts = [0; 2];
        let mut found = Self::default();
        let mut places: HashMap<Standing, usize> = HashMap::new();
        for row in store.survey_keys(MAX_ROWS, LATEST_ROWS, youth).await? {
            match row.found_by {
                FoundBy::OldestOfYouth => {
                    found.truncated = true;
                    continue;
                }
                FoundBy::Due => counts[0] += 1,
                FoundBy::Waiting => counts[1] += 1,
                FoundBy::Youth => {}
            }
            if !seen.insert((row.scope, row.key)) {
                continue;
            }
            let place = match row.standing {
                Ok(standing) => Standing { reason: None, ..counted_alike(standing) },
                Err(row) => {
                    row.count_among(&mut found.unknown_status);
                    continue;
                }
            };
            let index = *places.entry(place.clone()).or_insert_with(|| {
                found.places.push(Standing { rows: 0, ..place });
                found.places.len() - 1
            });
            found.places[index].rows += 1;
        }
        found.truncated |= counts.contains(&MAX_ROWS);
        let (jobs, truncated) = staged::read(store, MAX_ROWS).await?;
        found.jobs = jobs;
        found.truncated |= truncated;
        Ok(found)
    }

    /// How many of the rows a finding of [`compare`](super::compare) affects.
    #[must_use]
    pub fn rows_at(&self, finding: &Finding) -> u64 {
        rows_at(&self.places, &self.unknown_status, finding)
    }

    /// How many staged jobs a finding of [`compare`](super::compare) affects: those with its name.
    #[must_use]
    pub fn jobs_at(&self, finding: &Finding) -> u64 {
        let is_of = |jobs: &&StagedJobs| finding.job.as_deref() == Some(&jobs.name);
        self.jobs.iter().filter(is_of).map(|jobs| jobs.jobs).sum()
    }

    /// How many rows of a version were found.
    #[must_use]
    pub fn rows_of(&self, definition: &str, version: u32) -> u64 {
        let known = self.places.iter().map(|at| ((&*at.definition, at.version), at.rows));
        let unknown = self.unknown_status.iter().map(|at| ((&*at.definition, at.version), at.rows));
        let of_it = known.chain(unknown).filter(|(of, _)| *of == (definition, version));
        of_it.map(|(_, rows)| rows).sum()
    }

    /// Whether no row of this version is unfinished. If no node creates any more, its code may be removed.
    #[must_use]
    pub fn is_drained(&self, definition: &str, version: u32) -> bool {
        !self.truncated && self.rows_of(definition, version) == 0
    }

    /// The rows that a build with these lock files would leave alone, judged by the phases under which they were written and
    /// by what is known of their calls, and those of an [unknown status](Self::unknown_status), which a build that does not
    /// know it leaves alone, too. It does not check whether the build can decode their stored parameters and outputs.
    #[must_use]
    pub fn left_by(&self, locks: &Locks) -> Vec<Left> {
        let known = self
            .places
            .iter()
            .filter_map(|rows| Some(Left::standing(rows, goes_on(rows, locks).err()?)));
        let mut groups: Vec<Left> = Vec::new();
        for left in known.chain(self.unknown_status.iter().map(Left::unknown)) {
            match groups.iter_mut().find(|other| other.group() == left.group()) {
                Some(group) => group.rows += left.rows,
                None => groups.push(left),
            }
        }
        groups
    }
}

impl InFlight {
    /// The staged jobs that a build with these lock files would not deliver: no lock file has their name, or
    /// their arguments do not have the recorded form. It reads the arguments of [some](StagedJobs::unread)
    /// jobs of each name.
    #[must_use]
    pub fn jobs_left_by(&self, locks: &Locks) -> Vec<LeftJobs> {
        self.jobs.iter().flat_map(|jobs| jobs.left_by(locks)).collect()
    }

    /// How many staged jobs there are that only this version stages. Keep their handlers while there are any.
    #[must_use]
    pub fn jobs_only_of(&self, locks: &Locks, definition: &str, version: u32) -> u64 {
        let is_it = |lock: &Lock| lock.definition == definition && lock.version == version;
        let has = |lock: &Lock, name: &str| lock.jobs.iter().any(|job| job.name == name);
        let is_only_of_it = |jobs: &&StagedJobs| {
            let mut by =
                locks.iter().filter(|lock| lock.is_live() && has(lock, &jobs.name)).peekable();
            by.peek().is_some() && by.all(is_it)
        };
        self.jobs.iter().filter(is_only_of_it).map(|jobs| jobs.jobs).sum()
    }
}

impl CheckReport {
    /// How many rows are in the states that a finding of [`compare`](super::compare) affects. A change
    /// that is denied in general does no harm if there are none, which a deploy pipeline may check; the old build may
    /// create new ones until it is gone.
    #[must_use]
    pub fn rows_at(&self, finding: &Finding) -> u64 {
        rows_at(&self.in_flight, &self.unknown_status, finding)
    }
}

fn rows_at(places: &[Standing], unknown: &[UnknownStatus], finding: &Finding) -> u64 {
    let known = places.iter().map(|at| (&at.definition, at.version, &at.recovery_point, at.rows));
    let unknown =
        unknown.iter().map(|at| (&at.definition, at.version, &at.recovery_point, at.rows));
    let is_there = |(definition, version, point, _): &(&String, u32, &String, u64)| {
        **definition == finding.definition
            && *version == finding.version
            && finding.points.contains(point)
    };
    known.chain(unknown).filter(is_there).map(|(.., rows)| rows).sum()
}

fn goes_on(rows: &Standing, locks: &Locks) -> Result<(), StrandedBecause> {
    let lock = locks.get(&rows.definition, rows.version).filter(|lock| lock.is_live());
    let Some(lock) = lock else {
        let is_of = |lock: &Lock| lock.definition == rows.definition;
        return Err(match locks.iter().any(is_of) {
            true => StrandedBecause::UnknownVersion,
            false => StrandedBecause::UnknownDefinition,
        });
    };
    let written = PhaseList::parse(&rows.phases).ok_or(StrandedBecause::NewerForm)?.phases;
    let stands = Stands::from(rows);
    let done = stands.done(&written, &lock.phases).ok_or(StrandedBecause::UnknownRecoveryPoint)?;
    let done =
        phases_done(written.iter().take(done).map(|phase| phase.name.as_str()), &lock.phases)?;
    let next = written.get(done).ok_or(StrandedBecause::UnknownRecoveryPoint)?;
    match stands.resumed(next, done, &lock.phases)? {
        (_, Resumed::Continues) => Ok(()),
        (_, Resumed::BecomesUnknown) => Err(StrandedBecause::CallMayHaveBeenMade),
    }
}
