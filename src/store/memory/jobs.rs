//! Staged jobs, as the server stages and reads them.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::result::DatabaseErrorKind;
use uuid::Uuid;

use super::error::error;
use super::record::{Bytes, JobRecord, Place, Record, Time, UNSET};
use super::session::Session;
use super::statements::Wait;
use crate::job::{FIRST_NOTICE, StagedJob};
use crate::store::Guard;

impl Session {
    /// All rows of the table of jobs.
    pub(super) fn read_jobs(&mut self) -> QueryResult<Vec<JobRecord>> {
        let from = Place::Job(String::new(), Uuid::nil(), i64::MIN);
        let to = Place::Row(String::new(), String::new());
        let seen = self.statement()?.see_all(from..to);
        Ok(seen.iter().filter_map(|(_, record)| record.job()).cloned().collect())
    }

    pub(super) async fn update_job(
        &mut self,
        place: &Place,
        matches: impl Fn(&JobRecord, DateTime<Utc>) -> bool + Send + Sync,
        change: impl FnOnce(JobRecord, DateTime<Utc>) -> Option<JobRecord> + Send,
    ) -> QueryResult<Option<(JobRecord, DateTime<Utc>)>> {
        let matches = |record: &Record, now| record.job().is_some_and(|job| matches(job, now));
        let change = |record, now| match record {
            Record::Job(job) => change(job, now).map(Record::Job),
            other => Some(other),
        };
        let updated = self.update(place, Wait::ForTheLock, matches, change).await?;
        Ok(updated.and_then(|(record, now)| Some((record.job()?.clone(), now))))
    }

    pub(super) async fn insert_job(&mut self, job: JobRecord) -> QueryResult<()> {
        let place = job.place();
        self.statement()?;
        let locked = self.locked(&place).await.map(|tx| tx.newest(&place).is_some());
        if self.noted(locked)? {
            let message = "duplicate key value violates unique constraint";
            return self.noted(Err(error(DatabaseErrorKind::UniqueViolation, message)));
        }
        let now = Time(self.now());
        let run_after = if job.run_after == Some(waits()) { waits() } else { now };
        let job = JobRecord { staged_at: now, run_after: Some(run_after), ..job };
        self.locked(&place).await?.write(place, Some(Record::Job(job)));
        Ok(())
    }

    /// Whether no earlier job of the same request is still to be delivered, and, of one that is let try again,
    /// no later one under way. A notice waits for none, and none waits for it.
    pub(super) fn is_next(jobs: &[JobRecord], job: &JobRecord, now: DateTime<Utc>) -> bool {
        let is_under_way = |other: &JobRecord| {
            other.attempts > 0
                && other.reason.is_none()
                && other.run_after.is_some_and(|until| until.0 > now && until != waits())
        };
        let holds_back = |other: &JobRecord| match other.position < job.position {
            true => job.position < FIRST_NOTICE && other.run_after.is_some(),
            false => {
                job.forgiven_attempts > 0
                    && other.position > job.position
                    && other.position < FIRST_NOTICE
                    && is_under_way(other)
            }
        };
        let of_its_request =
            |other: &&JobRecord| other.scope == job.scope && other.request_id == job.request_id;
        !jobs.iter().filter(of_its_request).any(holds_back)
    }

    /// Locks the dead jobs in front of this one: none of them is revived until its claim is committed. `false`
    /// where one of them is about to be.
    pub(super) fn lock_dead_before(&mut self, place: &Place) -> QueryResult<bool> {
        let jobs = self.read_jobs()?;
        let Place::Job(scope, request_id, position) = place else { return Ok(true) };
        let mut dead = jobs.iter().filter(|job| {
            (&job.scope, job.request_id.uuid()) == (scope, *request_id)
                && job.position < *position
                && job.run_after.is_none()
        });
        dead.try_fold(true, |all, job| Ok(all && self.open()?.try_lock(&job.place())?))
    }
}

/// A job to be staged.
pub(super) fn staged(guard: &Guard<'_>, job: &StagedJob) -> JobRecord {
    JobRecord {
        scope: guard.scope.as_str().to_owned(),
        request_id: guard.request_id.into(),
        position: job.position,
        job_id: job.id.into(),
        idempotency_key: guard.key.as_str().to_owned(),
        name: job.name.clone(),
        args: job.args.as_slice().into(),
        staged_at: Time(UNSET),
        attempts: 0,
        forgiven_attempts: 0,
        reason: None,
        run_after: job.is_behind_another().then(waits),
        trace: job.trace().map(Bytes::from),
    }
}

/// When a job is due that waits for another one of its request: not before the end of that one makes it due.
pub(super) fn waits() -> Time {
    const END_OF_9999: i64 = 253_402_214_400;
    Time(DateTime::from_timestamp(END_OF_9999, 0).unwrap_or(DateTime::<Utc>::MAX_UTC))
}
