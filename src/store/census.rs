//! What a census reads: how many requests stand how, counted by the partial indexes of what does not run.
//!
//! One process at a time takes it ([`CensusLease`]), and each of its searches looks at
//! [`MAX_ROWS_PER_SEARCH`](super::operators::MAX_ROWS_PER_SEARCH) rows of one index at most.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::number::to_u32;

/// The right to take the census, in place of every other process: acquired, and renewed by the process that has it. For no time
/// at all, it is given up.
#[derive(Clone, Copy, Debug)]
pub struct CensusLease {
    pub(crate) holder: Uuid,
    pub(crate) length: Duration,
}

/// The status, as a census tells it, of a row whose outcome is unknown while a reconcile function is asked, or has died
/// while it was: the row itself is in progress.
pub(crate) const LOOKED_INTO: &str = "looked_into";

/// Unfinished requests that stand alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CensusGroup {
    pub(crate) definition: String,
    pub(crate) version: u32,
    /// The phases that they were last run under.
    pub(crate) phases: String,
    /// That of the rows, or [`LOOKED_INTO`].
    pub(crate) status: String,
    pub(crate) recovery_point: String,
    pub(crate) open_intent: Option<String>,
    pub(crate) resolution: Option<String>,
    /// The number of the last, where it matters to the resolution; otherwise whether there was one.
    pub(crate) attempts: u32,
    /// Whether the phase that they met was paused.
    pub(crate) is_paused: bool,
    /// Whether their lease lasts.
    pub(crate) is_held: bool,
    /// Whether a worker may look at them now; `None` where none does.
    pub(crate) is_due: Option<bool>,
    pub(crate) rows: u32,
    /// How many of them wait for a reconcile function or an operator.
    pub(crate) waiting: u32,
    /// Since when the first of them waits; of what no operator is waited for, since when it is due.
    pub(crate) oldest: DateTime<Utc>,
    /// When the first of their recovery points was committed.
    pub(crate) advanced_at: DateTime<Utc>,
    /// When the first of them was accepted.
    pub(crate) created_at: DateTime<Utc>,
}

/// The columns of a [`CensusGroup`], in the order in which each store selects them.
pub(super) type GroupColumns = (
    (String, i32, String),
    (String, String, Option<String>, Option<String>),
    (i64, i64, i64, Option<i64>),
    (i64, i64, DateTime<Utc>, DateTime<Utc>, DateTime<Utc>),
);

pub(super) fn census_group(row: GroupColumns) -> CensusGroup {
    let ((definition, version, phases), names, stands, found) = row;
    let (status, recovery_point, open_intent, resolution) = names;
    let (attempts, is_paused, is_held, is_due) = stands;
    let (rows, waiting, oldest, advanced_at, created_at) = found;
    CensusGroup {
        definition,
        version: version.cast_unsigned(),
        phases,
        status,
        recovery_point,
        open_intent,
        resolution,
        attempts: to_u32(attempts),
        is_paused: is_paused != 0,
        is_held: is_held != 0,
        is_due: is_due.map(|due| due != 0),
        rows: to_u32(rows),
        waiting: to_u32(waiting),
        oldest,
        advanced_at,
        created_at,
    }
}

/// Staged jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCensus {
    /// Those that are to be delivered.
    pub(crate) staged: u32,
    /// Since when the first of them is due.
    pub(crate) oldest_due: Option<DateTime<Utc>>,
    /// Those that gave up.
    pub(crate) dead: u32,
}

impl From<(i64, Option<DateTime<Utc>>, i64)> for JobCensus {
    fn from((staged, oldest_due, dead): (i64, Option<DateTime<Utc>>, i64)) -> Self {
        Self { staged: to_u32(staged), oldest_due, dead: to_u32(dead) }
    }
}

#[cfg(any(feature = "sqlite", feature = "mysql"))]
impl JobCensus {
    pub(super) fn in_millis((staged, oldest_due, dead): (i64, Option<i64>, i64)) -> Self {
        let oldest_due = oldest_due.and_then(DateTime::from_timestamp_millis);
        Self::from((staged, oldest_due, dead))
    }
}

/// How much is unfinished, by how it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) groups: Vec<CensusGroup>,
    pub(crate) jobs: JobCensus,
}

/// The rows that a census looks at, whatever the database: of each index a bounded part. What stands in both is of
/// the first.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(super) mod sql {
    /// Behind the columns of the row, what is asked of them, and whether the operator may see it.
    pub(in crate::store) const WAITING: &str = " AS is_counted, waiting_since AS since, waiting_since FROM \
        atomic_phases_keys WHERE waiting_since IS NOT NULL ORDER BY waiting_since LIMIT 10000) AS waiting \
        UNION ALL SELECT * FROM (SELECT ";
    pub(in crate::store) const DUE: &str = " AS is_counted, run_after AS since, waiting_since FROM atomic_phases_keys \
        WHERE run_after IS NOT NULL ORDER BY run_after LIMIT 10000) AS due WHERE waiting_since IS NULL) AS stands \
        WHERE is_counted GROUP BY definition, definition_version, phases, status, recovery_point, open_intent, \
        resolution, attempts, is_paused, is_held, is_due";
    pub(in crate::store) const GROUPED: &str = "SELECT definition, definition_version, phases, status, \
        recovery_point, open_intent, resolution, attempts, is_paused, is_held, is_due, count(*), \
        count(waiting_since), min(since), min(advanced_at), min(created_at) FROM (SELECT * FROM (SELECT ";
    pub(in crate::store) const STAGED: &str = "SELECT (SELECT count(*) FROM (SELECT 1 FROM \
        atomic_phases_staged_jobs WHERE run_after IS NOT NULL ORDER BY run_after LIMIT 10000) AS staged), \
        (SELECT min(run_after) FROM atomic_phases_staged_jobs WHERE run_after <= ";
    pub(in crate::store) const DEAD: &str = "), (SELECT count(*) FROM (SELECT 1 FROM \
        atomic_phases_staged_jobs WHERE run_after IS NULL LIMIT 10000) AS dead)";
}
