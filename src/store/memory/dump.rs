//! All rows of a [`Database`] as a JSON value, and back, for tests that change rows behind the engine's back.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::database::Database;
use super::record::{AuditRecord, BulkRecord, JobRecord, KeyRecord, PauseRecord, Place, Record};
use super::state::State;

impl Database {
    /// All committed rows, for a test that wants to look at them by other means.
    #[doc(hidden)]
    #[must_use]
    pub fn dump(&self) -> Value {
        dump_of(&self.state())
    }

    /// Makes the rows in which `after` differs from `before` be those of `after`; for a test that changes
    /// rows behind the engine's back. `false`, and nothing is changed, where the database is not as `seen`
    /// any more, or where a transaction holds one of these rows.
    ///
    /// # Errors
    /// Where one is not a dump.
    #[doc(hidden)]
    pub fn restore(
        &self,
        seen: &Value,
        before: Value,
        after: Value,
    ) -> Result<bool, serde_json::Error> {
        let (before, after) = (records(before)?, records(after)?);
        let mut state = self.state();
        let places = before.keys().chain(after.keys());
        let held = |place| state.slots.get(place).is_some_and(|slot| slot.holder.is_some());
        let changed = |place: &&Place| match (before.get(place), after.get(place)) {
            (Some(before), Some(after)) => !same(before, after),
            (before, after) => before.is_some() || after.is_some(),
        };
        if places.filter(changed).any(held) || dump_of(&state) != *seen {
            return Ok(false);
        }
        state.commits += 1;
        let commit = state.commits;
        let mut install = |place: &Place, record: Option<Record>| {
            let slot = state.slots.entry(place.clone()).or_default();
            slot.versions.push((commit, record.map(Arc::new)));
        };
        for (place, record) in &before {
            if !after.contains_key(place) {
                install(place, None);
            } else if !same(record, &after[place]) {
                install(place, Some(after[place].clone()));
            }
        }
        for (place, record) in &after {
            if !before.contains_key(place) {
                install(place, Some(record.clone()));
            }
        }
        Ok(true)
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Dump {
    keys: Vec<KeyRecord>,
    jobs: Vec<JobRecord>,
    rows: Vec<(String, String, Value)>,
    #[serde(default)]
    audit: Vec<AuditRecord>,
    #[serde(default)]
    pauses: Vec<PauseRecord>,
    #[serde(default)]
    bulks: Vec<BulkRecord>,
}

fn dump_of(state: &State) -> Value {
    let mut dump = Dump::default();
    for (place, slot) in &state.slots {
        match (slot.newest().map(|record| (*record).clone()), place) {
            (Some(Record::Key(key)), _) => dump.keys.push(key),
            (Some(Record::Job(job)), _) => dump.jobs.push(job),
            (Some(Record::Audit(audit)), _) => dump.audit.push(audit),
            (Some(Record::Pause(pause)), _) => dump.pauses.push(pause),
            (Some(Record::Bulk(bulk)), _) => dump.bulks.push(bulk),
            (Some(Record::Row(value)), Place::Row(table, id)) => {
                dump.rows.push((table.clone(), id.clone(), value));
            }
            _ => {}
        }
    }
    serde_json::to_value(dump).unwrap_or_default()
}

fn records(dump: Value) -> Result<BTreeMap<Place, Record>, serde_json::Error> {
    let Dump { keys, jobs, rows, audit, pauses, bulks } = serde_json::from_value(dump)?;
    let keys = keys.into_iter().map(|key| (key.place(), Record::Key(key)));
    let jobs = jobs.into_iter().map(|job| (job.place(), Record::Job(job)));
    let rows =
        rows.into_iter().map(|(table, id, value)| (Place::Row(table, id), Record::Row(value)));
    let audit = audit.into_iter().map(|audit| (audit.place(), Record::Audit(audit)));
    let pauses = pauses.into_iter().map(|pause| (pause.place(), Record::Pause(pause)));
    let bulks = bulks.into_iter().map(|bulk| (bulk.place(), Record::Bulk(bulk)));
    Ok(keys.chain(jobs).chain(rows).chain(audit).chain(pauses).chain(bulks).collect())
}

fn same(a: &Record, b: &Record) -> bool {
    match (a, b) {
        (Record::Key(a), Record::Key(b)) => a == b,
        (Record::Job(a), Record::Job(b)) => a == b,
        (Record::Row(a), Record::Row(b)) => a == b,
        (Record::Audit(a), Record::Audit(b)) => a == b,
        (Record::Pause(a), Record::Pause(b)) => a == b,
        (Record::Bulk(a), Record::Bulk(b)) => a == b,
        _ => false,
    }
}
