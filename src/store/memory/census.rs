//! The census of the store in memory, over all its rows.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::record::{JobRecord, KeyRecord};
use crate::store::census::{CensusGroup, GroupColumns, JobCensus, LOOKED_INTO, census_group};

/// What is unfinished and does not run.
pub(super) fn by_standing(
    keys: &[KeyRecord],
    now: DateTime<Utc>,
    paused: &str,
) -> Vec<CensusGroup> {
    type Counted = (i64, i64, DateTime<Utc>, DateTime<Utc>, DateTime<Utc>);
    let mut groups: BTreeMap<_, Counted> = BTreeMap::new();
    for key in keys {
        let Some(since) = key.waiting_since.or(key.run_after) else { continue };
        let definition = (key.definition.clone(), key.definition_version, key.phases.clone());
        let is_looked_into = key.status == "in_progress" && key.waiting_since.is_some();
        let names = (
            if is_looked_into { LOOKED_INTO.to_owned() } else { key.status.clone() },
            key.recovery_point.clone(),
            key.open_intent.clone(),
            key.resolution.clone(),
        );
        // The number of the last attempt matters only after a resolution of it.
        let is_said = key.resolution.is_some();
        let attempts = i64::from(if is_said { key.attempts } else { key.attempts.min(1) });
        let is_paused = key.reason.as_deref() == Some(paused);
        let is_held = key.locked_until.is_some_and(|until| until.0 > now);
        let is_due = key.run_after.map(|due| i64::from(due.0 <= now));
        let stands = (attempts, i64::from(is_paused), i64::from(is_held), is_due);
        let found = groups.entry((definition, names, stands));
        let first = (0, 0, since.0, key.advanced_at.0, key.created_at.0);
        let (rows, waiting, oldest, advanced, created) = found.or_insert(first);
        *rows += 1;
        *waiting += i64::from(key.waiting_since.is_some());
        *oldest = since.0.min(*oldest);
        *advanced = key.advanced_at.0.min(*advanced);
        *created = key.created_at.0.min(*created);
    }
    let columns = |((definition, names, stands), found)| -> GroupColumns {
        (definition, names, stands, found)
    };
    groups.into_iter().map(columns).map(census_group).collect()
}

pub(super) fn of_jobs(jobs: &[JobRecord], now: DateTime<Utc>) -> JobCensus {
    let due = || jobs.iter().filter_map(|job| job.run_after.map(|due| due.0));
    let staged = i64::try_from(due().count()).unwrap_or(i64::MAX);
    let dead = i64::try_from(jobs.len()).unwrap_or(i64::MAX) - staged;
    JobCensus::from((staged, due().filter(|due| *due <= now).min(), dead))
}
