//! What a search of an operator's finds in the store in memory, and how it tells it: as the statements of the other
//! stores do.

use chrono::{DateTime, TimeDelta, Utc};

use super::record::{AuditRecord, JobRecord, KeyRecord, Time};
use crate::store::ERASED;
use crate::store::audit::{Audited, ValueDigest};
use crate::store::operators::{
    LATE_MS, ListRequests, ListedRequest, MAX_ROWS_PER_SEARCH, OperatedJob, SearchPage, Walk,
    listed_request, operated_job, state_name,
};

pub(super) const MAX_ROWS: usize = MAX_ROWS_PER_SEARCH as usize;

pub(super) fn listed(key: &KeyRecord, now: DateTime<Utc>) -> ListedRequest {
    let time = |time: Option<Time>| time.map(|time| time.0);
    let is_later = |time: Option<Time>| time.is_some_and(|time| time.0 > now);
    let (is_leased, backs_off) = (is_later(key.locked_until), is_later(key.run_after));
    let waits = key.waiting_since.is_some();
    let state = state_name(&key.status, waits, key.fingerprint == ERASED, is_leased, backs_off);
    listed_request((
        (key.request_id.uuid(), key.scope.clone(), key.idempotency_key.clone()),
        (key.definition.clone(), key.definition_version, key.phases.clone()),
        (
            state.to_owned(),
            key.status.clone(),
            key.recovery_point.clone(),
            key.open_intent.clone(),
            key.reason.clone(),
        ),
        (key.attempts, key.resolution.clone()),
        (time(key.locked_until), time(key.run_after), time(key.waiting_since)),
        (key.created_at.0, key.expires_at.0),
    ))
}

/// Whether the row is in the index of the walk, behind the place.
pub(super) fn is_behind(row: &ListedRequest, list: &ListRequests) -> bool {
    let place = row.place(list.walk);
    let (here, there) = ((place.time, place.request_id), (list.after.time, list.after.request_id));
    match list.walk {
        Walk::Waiting => row.waiting_since.is_some() && here > there,
        Walk::Due => row.run_after.is_some() && here > there,
        Walk::Newest => here < there,
    }
}

pub(super) fn is_asked_for(row: &ListedRequest, list: &ListRequests, now: DateTime<Utc>) -> bool {
    let is = |asked: &Option<String>, told: &str| asked.as_ref().is_none_or(|one| one == told);
    let among = |asked: &Option<Vec<String>>, told: &str| {
        asked.as_ref().is_none_or(|all| all.iter().any(|one| one == told))
    };
    let reason = list.reason.as_ref().is_none_or(|part| {
        row.reason.as_ref().is_some_and(|reason| reason.contains(part.as_str()))
    });
    let passed =
        |since: DateTime<Utc>, millis: i64| since + chrono::Duration::milliseconds(millis) <= now;
    list.limits.allow(&row.scope)
        && among(&list.states, &row.state)
        && is(&list.scope, &row.scope)
        && is(&list.definition, &row.definition)
        && list.version.is_none_or(|version| version == row.version)
        && reason
        && list.older_ms.is_none_or(|millis| passed(row.created_at, millis))
        && list
            .waiting_ms
            .is_none_or(|millis| row.waiting_since.is_some_and(|since| passed(since, millis)))
}

pub(super) fn operated(job: &JobRecord) -> OperatedJob {
    operated_job((
        (job.job_id.uuid(), job.scope.clone(), job.request_id.uuid(), job.position),
        (
            job.name.clone(),
            job.attempts,
            job.reason.clone(),
            job.staged_at.0,
            job.run_after.map(|time| time.0),
        ),
    ))
}

/// Those that have been due for a minute, the longest due first.
pub(super) fn late(jobs: &[JobRecord], now: DateTime<Utc>) -> Vec<&JobRecord> {
    let due_since = now - TimeDelta::milliseconds(LATE_MS);
    let is_late = |job: &&JobRecord| job.run_after.is_some_and(|due| due.0 <= due_since);
    let mut late: Vec<_> = jobs.iter().filter(is_late).collect();
    late.sort_by_key(|job| (job.run_after, job.place()));
    late
}

pub(super) fn audited(row: &AuditRecord) -> Audited {
    Audited {
        at: row.at.0,
        id: row.id.uuid(),
        actor: row.actor.clone(),
        act: row.act.clone(),
        outcome: row.outcome.clone(),
        refused_because: row.refused_because.clone(),
        reason: row.reason.clone(),
        scope: row.scope.clone(),
        request_id: row.request_id.as_ref().map(|id| id.uuid()),
        job_id: row.job_id.as_ref().map(|id| id.uuid()),
        bulk_id: row.bulk_id.as_ref().map(|id| id.uuid()),
        definition: row.definition.clone(),
        version: row.definition_version.map(i32::cast_unsigned),
        phase: row.phase.clone(),
        attempt: row.attempt.map(i32::cast_unsigned),
        value: ValueDigest::stored(
            row.value_sha256.as_ref().map(|sha256| sha256.0.clone()),
            row.value_bytes,
        ),
        before: row.status_before.clone(),
        after: row.status_after.clone(),
    }
}

/// Of the rows that a search looks at, a page of those that are asked for, and how far it looked.
pub(super) fn page_of<R, T, P>(
    rows: Vec<R>,
    limit: u32,
    found: impl Fn(&R) -> Option<T>,
    place: impl Fn(&R) -> P,
) -> SearchPage<T, P> {
    let looked_at = &rows[..rows.len().min(MAX_ROWS)];
    let page: Vec<T> = looked_at.iter().filter_map(found).take(limit as usize).collect();
    let is_full = page.len() == limit as usize;
    let last = looked_at.last().filter(|_| looked_at.len() == MAX_ROWS && !is_full);
    SearchPage { rows: page, searched_to: last.map(place) }
}
