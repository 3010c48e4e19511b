//! [`Engine::check`]: which stored rows this process cannot continue, and which wait for an operator.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::Engine;
use super::resolution::counted_alike;
use super::stranded::StrandedBecause;
use crate::key::{IdempotencyKey, Scope};
use crate::store::{FoundBy, Standing, Status, Store, StoreError, SurveyedRow, UnknownStatus};

/// How many rows each of the three searches of [`Engine::check`] returns at most.
const MAX_ROWS: u32 = 10_000;

/// How long after the end of its first lease a row whose holder died young is in the index of due rows, where
/// a completer runs.
const ENROLLED_WITHIN: Duration = Duration::from_secs(60);

/// Of the rows at one place of whose calls the same is known, so many are read and decoded, and all that can be
/// wrong with a row is looked for in them.
const SAMPLES: usize = 3;

/// And so many in all.
const MAX_SAMPLES: usize = 300;

/// The result of [`Engine::check`]. Run it at start-up, before traffic, and in the deploy pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Rows that this process cannot continue. [`StrandedBecause`] says what to do about them.
    pub stranded: Vec<Stranded>,
    /// Rows whose status this build does not know: a later one wrote it, and this process leaves them alone.
    pub unknown_status: Vec<UnknownStatus>,
    /// All other unfinished rows that were read, grouped by their state.
    pub in_flight: Vec<Standing>,
    /// Rows whose outcome is unknown or that are dead letters, by place and reason: they wait for a
    /// reconcile function or an operator.
    pub waiting: Vec<Standing>,
    /// Staged jobs that are dead letters; see [`Ops::dead_jobs`](crate::ops::Ops::dead_jobs).
    pub dead_jobs: u64,
    /// How many unfinished rows were read.
    pub rows_read: u64,
    /// Whether there may be more: a search reached its limit of ten thousand rows, or there were more
    /// groups than the limit of three hundred decoded rows allows. The search of the most recently created rows counts
    /// only if the oldest row that it read is younger than a lease and a minute: if a completer runs, the other searches
    /// find older rows.
    pub truncated: bool,
}

/// A group of rows that this process cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stranded {
    /// Their state, and how many they are.
    pub rows: Standing,
    /// Why.
    pub because: StrandedBecause,
    /// How many of them were decoded; none if their definition or its version is not
    /// registered.
    pub samples: u32,
    /// In how many of those the problem was found; if none was decoded, it is that of all `rows`.
    pub affected: u32,
}

impl CheckReport {
    /// Whether this process can continue every unfinished row that was read. It says nothing about unread rows
    /// ([`truncated`](Self::truncated)), nor about those that [wait for an operator](Self::waiting).
    #[must_use]
    pub fn found_nothing_stranded(&self) -> bool {
        self.stranded.is_empty() && self.unknown_status.is_empty()
    }

    /// Whether no row of this version was found: once no node creates any and
    /// [`truncated`](Self::truncated) is not set, its code may go.
    #[must_use]
    pub fn is_drained(&self, definition: &str, version: u32) -> bool {
        let known = self.in_flight.iter().map(|place| (&*place.definition, place.version));
        let unknown = self.unknown_status.iter().map(|place| (&*place.definition, place.version));
        !self.truncated && !known.chain(unknown).any(|place| place == (definition, version))
    }
}

/// Rows at one place, and those of them that are read.
struct Group {
    rows: Standing,
    samples: Vec<(String, String)>,
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Compares the unfinished rows with the registered definitions, and lists what waits for an
    /// operator. A listed row is not lost.
    ///
    /// It needs no table scan: it reads at most ten thousand rows each of those that are due for a worker, of
    /// those that wait for an operator, and of the most recently created ones. It groups the rows by state and by what
    /// is known of their calls, and decodes three rows of each group. [`CheckReport::truncated`] says whether one of
    /// these limits was reached.
    ///
    /// # Errors
    /// [`StoreError::Migration`] names the missing migrations if the tables do not
    /// exist, or are not as this process needs them; any other [`StoreError`] if the store cannot
    /// be read.
    pub async fn check(&self) -> Result<CheckReport, StoreError> {
        match self.compare().await {
            Err(error) if error.is_from_server() => Err(self.missing_migrations(error).await),
            compared => compared,
        }
    }

    /// Why the tables are not as they have to be, if that is known.
    async fn missing_migrations(&self, error: StoreError) -> StoreError {
        match self.core.store.missing_migrations().await {
            Ok(missing) if !missing.is_empty() => StoreError::Migration(format!(
                "{} not applied; call Store::migrate before the first request",
                missing.join(", ")
            )),
            _ => error,
        }
    }

    async fn compare(&self) -> Result<CheckReport, StoreError> {
        // No request has this key: what is asked for are the columns.
        let (scope, key) = (Scope::new("-"), IdempotencyKey::new("-"));
        if let (Ok(scope), Ok(key)) = (scope, key) {
            self.core.store.read_key(&scope, &key).await.map(drop)?;
        }
        let dead_jobs = self.core.store.dead_jobs().await?;
        let youth = self.core.settings.lease + ENROLLED_WITHIN;
        let mut surveyed = self.core.store.survey_keys(MAX_ROWS, MAX_ROWS, youth).await?;
        let found = |by| surveyed.iter().filter(|row| row.found_by == by).count();
        let truncated = found(FoundBy::OldestOfYouth) > 0
            || [FoundBy::Due, FoundBy::Waiting].map(found).contains(&(MAX_ROWS as usize));
        surveyed.retain(|row| row.found_by != FoundBy::OldestOfYouth);
        let (groups, unknown_status) = grouped(surveyed);
        let known = groups.iter().map(|group| group.rows.rows);
        let mut report = CheckReport {
            dead_jobs,
            rows_read: known.chain(unknown_status.iter().map(|place| place.rows)).sum(),
            truncated,
            unknown_status,
            ..CheckReport::default()
        };
        let mut left = MAX_SAMPLES;
        for Group { rows, samples } in groups {
            report.in_flight.push(rows.clone());
            let known = self.core.registry.find(&rows.definition, rows.version);
            if let Err(because) = known {
                let rows = rows.clone();
                report.stranded.push(Stranded { rows, because, samples: 0, affected: 0 });
            } else {
                report.truncated |= samples.len() > left;
                let samples = &samples[..samples.len().min(left)];
                left -= samples.len();
                report.stranded.extend(self.stranded(&rows, samples).await?);
            }
            if matches!(rows.status, Status::Unknown | Status::DeadLetter) {
                report.waiting.push(rows);
            }
        }
        Ok(report)
    }

    /// What is wrong with the samples of rows at one place.
    async fn stranded(
        &self,
        rows: &Standing,
        samples: &[(String, String)],
    ) -> Result<Vec<Stranded>, StoreError> {
        let mut read = 0;
        let mut found: HashMap<StrandedBecause, u32> = HashMap::new();
        for (scope, key) in samples {
            // A key that no request can have was written by hand.
            let (Ok(scope), Ok(key)) = (Scope::new(scope), IdempotencyKey::new(key)) else {
                continue;
            };
            let because = match self.core.store.read_key(&scope, &key).await {
                Ok(Some(row)) if row.status != Status::Completed => {
                    self.core.stranded_because(&scope, &key, &row)
                }
                // It was finished meanwhile.
                Ok(_) => continue,
                Err(StoreError::Unreadable { .. }) => Some(StrandedBecause::NewerForm),
                Err(error) => return Err(error),
            };
            read += 1;
            if let Some(because) = because {
                *found.entry(because).or_default() += 1;
            }
        }
        let mut stranded: Vec<_> = found
            .into_iter()
            .map(|(because, affected)| Stranded {
                rows: rows.clone(),
                because,
                samples: read,
                affected,
            })
            .collect();
        stranded.sort_by_key(|stranded| stranded.because);
        Ok(stranded)
    }
}

/// The rows by where they stand, in the order in which they were found; each of them once.
fn grouped(surveyed: Vec<SurveyedRow>) -> (Vec<Group>, Vec<UnknownStatus>) {
    let mut seen = HashSet::new();
    let mut places: HashMap<Standing, usize> = HashMap::new();
    let mut sampled: HashMap<Standing, usize> = HashMap::new();
    let (mut groups, mut unknown): (Vec<Group>, Vec<UnknownStatus>) = (Vec::new(), Vec::new());
    for SurveyedRow { scope, key, standing, .. } in surveyed {
        if !seen.insert((scope.clone(), key.clone())) {
            continue;
        }
        let standing = match standing {
            Ok(standing) => counted_alike(standing),
            Err(row) => {
                row.count_among(&mut unknown);
                continue;
            }
        };
        let samples = sampled.entry(standing.clone()).or_default();
        // What is known of their calls decides which rows are read, and is not reported.
        let standing = Standing { attempts: 0, resolution: None, ..standing };
        let place = *places.entry(standing.clone()).or_insert_with(|| {
            groups.push(Group { rows: Standing { rows: 0, ..standing }, samples: Vec::new() });
            groups.len() - 1
        });
        let group = &mut groups[place];
        group.rows.rows += 1;
        if *samples < SAMPLES {
            *samples += 1;
            group.samples.push((scope, key));
        }
    }
    (groups, unknown)
}
