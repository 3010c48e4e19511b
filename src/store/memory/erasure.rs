//! An erasure of what users gave, as the server executes it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use uuid::Uuid;

use super::record::{Bytes, JobRecord, KeyRecord, Place, Record, after};
use super::session::Session;
use super::statements::Wait;
use crate::store::{ERASED, Seen, Status};

impl Session {
    /// What users gave goes out of a settled row whose jobs are settled too: those of this life, or, for
    /// one key, of every life of it.
    pub(super) async fn erase(
        &mut self,
        place: &Place,
        retention: Duration,
        lives: Lives,
        seen: Option<&AsSeen>,
    ) -> QueryResult<bool> {
        let jobs = self.read_jobs()?;
        let settled = |row: &KeyRecord, _: DateTime<Utc>| {
            lives.are_settled(row, &jobs) && seen.is_none_or(|seen| seen.is(row))
        };
        let change = |row: &mut KeyRecord, now: DateTime<Utc>| {
            if !row.is(Status::Completed) {
                row.expires_at = row.expires_at.max(after(now, retention));
            }
            row.status = Status::Completed.as_str().to_owned();
            row.recovery_point = "finished".to_owned();
            row.fingerprint = ERASED.to_owned();
            (row.open_intent, row.locked_until, row.run_after) = (None, None, None);
            (row.resolution, row.context, row.outputs) = (None, None, None);
            (row.reason, row.waiting_since) = (None, None);
            (row.events, row.events_written, row.trace) = (None, None, None);
            row.params = Bytes::default();
            row.response_status = row.response_status.or(Some(410));
            (row.response_headers, row.response_body) = (None, None);
        };
        let updated = self.update_key(place, Wait::No, settled, change).await?;
        let Some((row, _)) = updated else { return Ok(false) };
        for job in jobs.iter().filter(|job| is_of_key(job, &row)) {
            let dead = |job: &JobRecord, _: DateTime<Utc>| job.run_after.is_none();
            self.update_job(&job.place(), dead, |_, _| None).await?;
        }
        Ok(true)
    }

    /// Whether a row that was not erased could have been.
    pub(super) fn is_settled(
        &mut self,
        place: &Place,
        lives: Lives,
        as_seen: Option<&AsSeen>,
    ) -> QueryResult<bool> {
        let jobs = self.read_jobs()?;
        let seen = self.statement()?.see(place);
        let row = seen.as_deref().and_then(Record::key);
        Ok(row.is_some_and(|row| {
            lives.are_settled(row, &jobs) && as_seen.is_none_or(|seen| seen.is(row))
        }))
    }

    /// Deletes a batch of the dead jobs whose key has no row but an erased one.
    pub(super) async fn erase_orphaned_jobs(
        &mut self,
        scope: &str,
        key: Option<&str>,
        limit: u32,
    ) -> QueryResult<u32> {
        let (keys, jobs) = (self.read_keys()?, self.read_jobs()?);
        let has_row = |job: &JobRecord| {
            keys.iter().any(|row| {
                (&row.scope, &row.idempotency_key) == (&job.scope, &job.idempotency_key)
                    && row.fingerprint != ERASED
            })
        };
        let orphan = |job: &&JobRecord| {
            job.scope == scope
                && key.is_none_or(|key| key == job.idempotency_key)
                && job.run_after.is_none()
                && !has_row(job)
        };
        let mut erased = 0;
        for job in jobs.iter().filter(orphan).take(limit as usize) {
            let dead = |job: &JobRecord, _: DateTime<Utc>| job.run_after.is_none();
            erased += u32::from(self.update_job(&job.place(), dead, |_, _| None).await?.is_some());
        }
        Ok(erased)
    }

    /// How many requests have jobs that are to be delivered, and no row.
    pub(super) fn count_orphans(&mut self, scope: &str, key: Option<&str>) -> QueryResult<u64> {
        let (keys, jobs) = (self.read_keys()?, self.read_jobs()?);
        let has_row = |job: &JobRecord| {
            keys.iter().any(|row| row.scope == job.scope && row.request_id == job.request_id)
        };
        let orphan = |job: &&JobRecord| {
            job.scope == scope
                && key.is_none_or(|key| key == job.idempotency_key)
                && job.run_after.is_some()
                && !has_row(job)
        };
        let requests: std::collections::BTreeSet<Uuid> =
            jobs.iter().filter(orphan).map(|job| job.request_id.uuid()).collect();
        Ok(requests.len() as u64)
    }
}

/// A row as an operator saw it.
#[derive(Clone)]
pub(super) struct AsSeen {
    request_id: Uuid,
    token: i64,
    status: Status,
}

impl AsSeen {
    pub(super) fn of(seen: &Seen) -> Self {
        Self { request_id: seen.request_id, token: seen.lease_token, status: seen.status }
    }

    fn is(&self, row: &KeyRecord) -> bool {
        row.request_id.uuid() == self.request_id
            && row.lease_token == self.token
            && row.is(self.status)
    }
}

/// Of which lives of a key the jobs have to be settled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lives {
    This,
    All,
}

impl Lives {
    fn are_settled(self, row: &KeyRecord, jobs: &[JobRecord]) -> bool {
        let of = |job: &&JobRecord| match self {
            Self::All => is_of_key(job, row),
            Self::This => job.scope == row.scope && job.request_id == row.request_id,
        };
        (row.is(Status::Completed) || row.is(Status::DeadLetter))
            && !jobs.iter().filter(of).any(|job| job.run_after.is_some())
    }
}

fn is_of_key(job: &JobRecord, row: &KeyRecord) -> bool {
    job.scope == row.scope && job.idempotency_key == row.idempotency_key
}
