//! What the workers ask of the store in memory.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use futures_util::FutureExt;
use uuid::Uuid;

use super::jobs::waits;
use super::record::{JobRecord, KeyRecord, Place, Time, after};
use super::round_trips::{read_jobs, read_keys};
use super::session::Session;
use super::statements::Wait;
use super::{Memory, place_of};
use crate::definition::Isolation;
use crate::job::FIRST_NOTICE;
use crate::store::due::{
    DueJobRow, DueKeyRow, ExpiredRow, HeldKeyRow, due_jobs, due_keys, expired_keys, held_keys,
};
use crate::store::pauses::PausedPhase;
use crate::store::{
    DueJob, DueKey, Enrolled, ExpiredKey, ExpiryPlace, HeldKey, JobAt, JobPlace, JobRow, KeyPlace,
    Page, Status, StoreError, Undelivered, WorkerStore,
};

impl WorkerStore for Memory {
    const CLAIMS_TOGETHER: bool = true;

    async fn due_keys(
        &self,
        place: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> Result<Page<DueKey, KeyPlace>, StoreError> {
        let keys =
            self.ask_again("search for due keys", |session| read_keys(session).boxed()).await?;
        let now = self.database().now();
        let behind = (place.run_after, place.scope.as_str(), place.key.as_str());
        let due_at = |key: &KeyRecord| {
            let due = key.run_after?.0;
            let at = (due, key.scope.as_str(), key.idempotency_key.as_str());
            (due <= now && at > behind).then_some(due)
        };
        let row = |key: &KeyRecord| {
            let due = due_at(key)?;
            Some((
                due,
                key.scope.clone(),
                key.idempotency_key.clone(),
                key.status.clone(),
                key.lease_token,
                key.definition.clone(),
                key.definition_version,
                after(due, grace).0 <= now,
                key.request_id.uuid(),
            ))
        };
        let mut rows: Vec<DueKeyRow> = keys.iter().filter_map(row).collect();
        rows.sort();
        rows.truncate(limit as usize);
        Ok(due_keys(rows, limit))
    }

    async fn held_keys(
        &self,
        (from, to): (DateTime<Utc>, DateTime<Utc>),
        place: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<HeldKey, ExpiryPlace>, StoreError> {
        let keys =
            self.ask_again("search for held keys", |session| read_keys(session).boxed()).await?;
        let now = self.database().now();
        let by_expiry =
            |key: &KeyRecord| (key.expires_at.0, key.scope.clone(), key.idempotency_key.clone());
        let behind = (place.expires_at, place.scope.clone(), place.key.clone());
        let is_read =
            |key: &KeyRecord| (from..=to).contains(&key.expires_at.0) && by_expiry(key) > behind;
        let mut read: Vec<_> = keys.into_iter().filter(is_read).collect();
        read.sort_by_key(by_expiry);
        read.truncate(limit as usize);
        let row = |key: &KeyRecord, is_the_last| -> HeldKeyRow {
            let left = key.locked_until.map_or(0, |until| (until.0 - now).num_milliseconds());
            let (expires_at, scope, name) = by_expiry(key);
            let (request_id, token) = (key.request_id.uuid(), key.lease_token);
            (expires_at, scope, name, request_id, token, left.max(0), is_the_last)
        };
        let is_held = |key: &&KeyRecord| key.is(Status::InProgress) && key.run_after.is_none();
        let mut rows: Vec<_> = read.iter().filter(is_held).map(|key| row(key, false)).collect();
        rows.extend(read.last().filter(|_| read.len() == limit as usize).map(|key| row(key, true)));
        Ok(held_keys(rows))
    }

    async fn enrol_keys(&self, held: &[HeldKey]) -> Result<Vec<Enrolled>, StoreError> {
        let found =
            |held: &HeldKey| (place_of(&held.scope, &held.key), held.request_id, held.lease_token);
        let found: Vec<_> = held.iter().map(found).collect();
        self.ask_again("enrol keys", move |session| enrol_each(session, found).boxed()).await
    }

    async fn expired_keys(
        &self,
        place: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<ExpiredKey, ExpiryPlace>, StoreError> {
        let keys =
            self.ask_again("search for expired keys", |session| read_keys(session).boxed()).await?;
        let now = self.database().now();
        let behind = (place.expires_at, place.scope.as_str(), place.key.as_str());
        let is_behind = |key: &&KeyRecord| {
            let at = (key.expires_at.0, key.scope.as_str(), key.idempotency_key.as_str());
            key.expires_at.0 <= now && at > behind
        };
        let row = |key: &KeyRecord| -> ExpiredRow {
            let (scope, name) = (key.scope.clone(), key.idempotency_key.clone());
            (key.expires_at.0, scope, name, key.request_id.uuid(), key.is(Status::Completed))
        };
        let mut rows: Vec<_> = keys.iter().filter(is_behind).map(row).collect();
        rows.sort();
        rows.truncate(limit as usize);
        Ok(expired_keys(rows, limit))
    }

    async fn reap_rows(&self, expired: &[ExpiredKey]) -> Result<u32, StoreError> {
        let found = |ExpiredKey { at, request_id }: &ExpiredKey| {
            (Place::Key(at.scope.clone(), at.key.clone()), *request_id)
        };
        let found: Vec<_> = expired.iter().map(found).collect();
        self.ask("reap expired keys", move |session| reap_each(session, found).boxed()).await
    }

    async fn jobs_due(
        &self,
        place: &JobPlace,
        limit: u32,
    ) -> Result<Page<DueJob, JobPlace>, StoreError> {
        let jobs =
            self.ask_again("search for staged jobs", |session| read_jobs(session).boxed()).await?;
        let now = self.database().now();
        let behind_id = Uuid::from_slice(&place.request_id).unwrap_or_default();
        let behind = (place.run_after, place.scope.as_str(), behind_id, place.position);
        let row = |job: &JobRecord| {
            let (due, request_id) = (job.run_after?.0, job.request_id.uuid());
            let at = (due, job.scope.as_str(), request_id, job.position);
            let is_next = Session::is_next(&jobs, job, now);
            let row = (due, job.scope.clone(), request_id, job.position, job.attempts);
            let (due, scope, request_id, position, attempts) = row;
            (due <= now && at > behind)
                .then(|| (due, scope, request_id, position, attempts, job.name.clone(), is_next))
        };
        let mut rows: Vec<DueJobRow> = jobs.iter().filter_map(row).collect();
        rows.sort();
        rows.truncate(limit as usize);
        Ok(due_jobs(rows, limit))
    }

    async fn claim_job(&self, at: &JobAt, lease: Duration) -> Result<Option<JobRow>, StoreError> {
        let (place, attempts) = job_place(at);
        let claimed = self
            .ask("claim a staged job", move |session| {
                claim_job(session, place, attempts, lease).boxed()
            })
            .await?;
        claimed.map(|claimed| claimed_job(at, claimed)).transpose()
    }

    async fn claim_jobs(
        &self,
        at: &[JobAt],
        lease: Duration,
    ) -> Result<Vec<Result<Option<JobRow>, StoreError>>, StoreError> {
        let places: Vec<_> = at.iter().map(job_place).collect();
        let claimed = self
            .ask("claim staged jobs", move |session| claim_each(session, places, lease).boxed());
        let rows = at.iter().zip(claimed.await?);
        let claimed = |(at, row): (_, Option<_>)| row.map(|row| claimed_job(at, row)).transpose();
        Ok(rows.map(claimed).collect())
    }

    async fn jobs_delivered(&self, at: &[JobAt]) -> Result<Vec<bool>, StoreError> {
        let places: Vec<_> = at.iter().map(job_place).collect();
        self.ask("delete delivered jobs", move |session| delete_each(session, places).boxed()).await
    }

    async fn job_delivered(&self, at: &JobAt) -> Result<bool, StoreError> {
        let (place, attempts) = job_place(at);
        self.ask("delete a delivered job", move |session| {
            change_job(session, place, attempts, Behind::MadeDue, |_, _| None).boxed()
        })
        .await
    }

    async fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let (place, attempts) = job_place(at);
        let reason = reason.to_owned();
        let (back_off, forgiven, behind) = match becomes {
            Undelivered::Again(after) => (Some(after), 0, Behind::Waits),
            Undelivered::Left => (Some(Duration::ZERO), 1, Behind::Waits),
            Undelivered::Dead => (None, 0, Behind::MadeDue),
        };
        let put_back = move |job: JobRecord, now: DateTime<Utc>| {
            let run_after = back_off.map(|back_off| after(now, back_off));
            let forgiven_attempts = job.attempts.min(job.forgiven_attempts + forgiven);
            Some(JobRecord { run_after, forgiven_attempts, reason: Some(reason), ..job })
        };
        self.ask_again("put a job back", move |session| {
            change_job(session, place, attempts, behind, put_back).boxed()
        })
        .await
    }

    async fn paused_phases(&self) -> Result<Vec<PausedPhase>, StoreError> {
        self.paused_phases().await
    }
}

fn job_place(at: &JobAt) -> (Place, i32) {
    let place = Place::Job(at.scope.as_str().to_owned(), at.request_id, at.position);
    (place, at.attempts.cast_signed())
}

fn is_expired(key: &KeyRecord, now: DateTime<Utc>) -> bool {
    key.is(Status::Completed) && key.expires_at.0 <= now
}

async fn reap_each(session: &mut Session, found: Vec<(Place, Uuid)>) -> QueryResult<u32> {
    session.begin(Isolation::ReadCommitted)?;
    let each = async {
        let (now, mut reaped) = (session.now(), 0);
        for (place, request_id) in found {
            let same = move |key: &KeyRecord, _| {
                key.request_id.uuid() == request_id && is_expired(key, now)
            };
            reaped += u32::from(session.delete_key(&place, Wait::No, same).await?);
        }
        Ok(reaped)
    };
    let reaped = each.await;
    session.conclude(reaped).await
}

async fn claim_job(
    session: &mut Session,
    place: Place,
    attempts: i32,
    lease: Duration,
) -> QueryResult<Option<(JobRecord, DateTime<Utc>)>> {
    session.begin(Isolation::ReadCommitted)?;
    let claimed = claim_next(session, place, attempts, lease).await;
    session.conclude(claimed).await
}

fn claimed_job(at: &JobAt, (job, now): (JobRecord, DateTime<Utc>)) -> Result<JobRow, StoreError> {
    let lag = (now - job.staged_at.0).num_milliseconds();
    let (key, id) = (job.idempotency_key, job.job_id.uuid());
    let trace = job.trace.map(|trace| trace.0);
    let row = (key, id, job.name, job.args.0, job.attempts, job.forgiven_attempts, lag, trace);
    crate::store::due::job(at, row)
}

/// Each of them, in one transaction: those that were won.
async fn claim_each(
    session: &mut Session,
    places: Vec<(Place, i32)>,
    lease: Duration,
) -> QueryResult<Vec<Option<(JobRecord, DateTime<Utc>)>>> {
    session.begin(Isolation::ReadCommitted)?;
    let each = async {
        let mut claimed = Vec::new();
        for (place, attempts) in places {
            // `SKIP LOCKED`
            claimed.push(match session.is_of_another(&place) {
                true => None,
                false => claim_next(session, place, attempts, lease).await?,
            });
        }
        Ok(claimed)
    };
    let claimed = each.await;
    session.conclude(claimed).await
}

async fn delete_each(session: &mut Session, places: Vec<(Place, i32)>) -> QueryResult<Vec<bool>> {
    session.begin(Isolation::ReadCommitted)?;
    let each = async {
        let mut deleted = Vec::new();
        for (place, attempts) in places {
            deleted
                .push(change_next(session, &place, attempts, Behind::MadeDue, |_, _| None).await?);
        }
        Ok(deleted)
    };
    let deleted = each.await;
    session.conclude(deleted).await
}

async fn claim_next(
    session: &mut Session,
    place: Place,
    attempts: i32,
    lease: Duration,
) -> QueryResult<Option<(JobRecord, DateTime<Utc>)>> {
    if !session.lock_dead_before(&place)? {
        return Ok(None);
    }
    let jobs = session.read_jobs()?;
    let is_due = move |job: &JobRecord, now| {
        job.attempts == attempts
            && job.run_after.is_some_and(|due| due.0 <= now)
            && Session::is_next(&jobs, job, now)
    };
    let claim = |job: JobRecord, now| {
        let run_after = Some(after(now, lease));
        Some(JobRecord { attempts: job.attempts + 1, reason: None, run_after, ..job })
    };
    session.update_job(&place, is_due, claim).await
}

/// What becomes of the later jobs of the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// The next of them is due, if it waits.
    MadeDue,
    /// Those that are due wait.
    Waits,
}

async fn change_job(
    session: &mut Session,
    place: Place,
    attempts: i32,
    behind: Behind,
    change: impl FnOnce(JobRecord, DateTime<Utc>) -> Option<JobRecord> + Send,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let changed = change_next(session, &place, attempts, behind, change).await;
    session.conclude(changed).await
}

async fn change_next(
    session: &mut Session,
    place: &Place,
    attempts: i32,
    behind: Behind,
    change: impl FnOnce(JobRecord, DateTime<Utc>) -> Option<JobRecord> + Send,
) -> QueryResult<bool> {
    let ours = move |job: &JobRecord, _: DateTime<Utc>| job.attempts == attempts;
    let changed = session.update_job(place, ours, change).await?.is_some();
    if changed {
        change_behind(session, place, behind).await?;
    }
    Ok(changed)
}

async fn change_behind(session: &mut Session, place: &Place, behind: Behind) -> QueryResult<()> {
    let Place::Job(scope, request_id, position) = place else { return Ok(()) };
    let mut later = session.read_jobs()?;
    later.retain(|job| {
        (&job.scope, job.request_id.uuid()) == (scope, *request_id)
            && job.position > *position
            && (behind == Behind::MadeDue || job.position < FIRST_NOTICE)
            && job.run_after.is_some()
    });
    later.sort_by_key(|job| job.position);
    if behind == Behind::MadeDue {
        later.truncate(1);
    }
    for job in later {
        let matches = move |job: &JobRecord, now: DateTime<Utc>| match behind {
            Behind::MadeDue => job.run_after == Some(waits()),
            Behind::Waits => job.run_after.is_some_and(|due| due.0 <= now),
        };
        let change = move |job: JobRecord, now: DateTime<Utc>| {
            let run_after = if behind == Behind::MadeDue { Time(now) } else { waits() };
            Some(JobRecord { run_after: Some(run_after), ..job })
        };
        session.update_job(&job.place(), matches, change).await?;
    }
    Ok(())
}

async fn enrol_each(
    session: &mut Session,
    found: Vec<(Place, Uuid, i64)>,
) -> QueryResult<Vec<Enrolled>> {
    session.begin(Isolation::ReadCommitted)?;
    let each = async {
        let mut enrolled = Vec::new();
        for (place, request_id, token) in found {
            enrolled.push(enrol(session, &place, request_id, token).await?);
        }
        Ok(enrolled)
    };
    let enrolled = each.await;
    session.conclude(enrolled).await
}

async fn enrol(
    session: &mut Session,
    place: &Place,
    request_id: Uuid,
    token: i64,
) -> QueryResult<Enrolled> {
    let is_held = move |key: &KeyRecord| {
        key.request_id.uuid() == request_id
            && key.lease_token == token
            && key.is(Status::InProgress)
            && key.run_after.is_none()
    };
    let abandoned = move |key: &KeyRecord, now| {
        is_held(key) && key.locked_until.is_some_and(|until| until.0 <= now)
    };
    let enter = |key: &mut KeyRecord, _| key.run_after = key.locked_until;
    if session.update_key(place, Wait::No, abandoned, enter).await?.is_some() {
        return Ok(Enrolled::Entered);
    }
    let now = session.now();
    let left =
        |key: KeyRecord| key.locked_until.map_or(0, |until| (until.0 - now).num_milliseconds());
    Ok(Enrolled::unless_entered(session.read_key(place)?.filter(is_held).map(left)))
}
