//! What the workers ask of PostgreSQL.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel_async::RunQueryDsl;
use uuid::Uuid;

use super::{Pool, Postgres, ask, ask_again, ask_for_many, on_another, statements as sql};
use crate::store::due::{
    DueJobRow, DueKeyRow, ExpiredRow, HeldKeyRow, JobDataRow, NthJobRow, are_among, claimed_jobs,
    due_jobs, due_keys, expired_keys, held_keys, job,
};
use crate::store::first_answer::first_answer;
use crate::store::operators::OperatorStore;
use crate::store::pauses::{PauseRow, PausedPhase, paused_phase};
use crate::store::row::millis;
use crate::store::{
    DueJob, DueKey, Enrolled, ExpiredKey, ExpiryPlace, HeldKey, JobAt, JobPlace, JobRow, KeyPlace,
    Page, StoreError, Undelivered, WorkerStore,
};

impl<P: Pool> WorkerStore for Postgres<P> {
    const CLAIMS_TOGETHER: bool = true;

    async fn due_keys(
        &self,
        after: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> Result<Page<DueKey, KeyPlace>, StoreError> {
        let rows = ask_again!(self, "search for due keys", |conn| {
            sql::DueKeys {
                grace_ms: millis(grace),
                run_after: after.run_after,
                scope: &after.scope,
                key: &after.key,
                limit: limit.into(),
            }
            .load::<DueKeyRow>(&mut conn)
        })?;
        Ok(due_keys(rows, limit))
    }

    async fn held_keys(
        &self,
        (from, to): (DateTime<Utc>, DateTime<Utc>),
        after: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<HeldKey, ExpiryPlace>, StoreError> {
        let rows = ask_again!(self, "search for held keys", |conn| {
            sql::HeldKeys {
                from,
                to,
                expires_at: after.expires_at,
                scope: &after.scope,
                key: &after.key,
                limit: limit.into(),
            }
            .load::<HeldKeyRow>(&mut conn)
        })?;
        Ok(held_keys(rows))
    }

    async fn enrol_keys(&self, held: &[HeldKey]) -> Result<Vec<Enrolled>, StoreError> {
        // Where the table is distributed, only the statement about one can be executed.
        if let [one] = held {
            return Ok(vec![self.enrol_one(one).await?]);
        }
        on_another(&self.pool, || self.enrol_many(held)).await
    }

    async fn expired_keys(
        &self,
        after: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<ExpiredKey, ExpiryPlace>, StoreError> {
        let rows = ask_again!(self, "search for expired keys", |conn| {
            sql::ExpiredKeys {
                expires_at: after.expires_at,
                scope: &after.scope,
                key: &after.key,
                limit: limit.into(),
            }
            .load::<ExpiredRow>(&mut conn)
        })?;
        Ok(expired_keys(rows, limit))
    }

    async fn reap_rows(&self, expired: &[ExpiredKey]) -> Result<u32, StoreError> {
        self.reap_page(expired).await
    }

    async fn jobs_due(
        &self,
        after: &JobPlace,
        limit: u32,
    ) -> Result<Page<DueJob, JobPlace>, StoreError> {
        let rows = ask_again!(self, "search for staged jobs", |conn| {
            sql::DueJobs {
                run_after: after.run_after,
                scope: &after.scope,
                request_id: Uuid::from_slice(&after.request_id).unwrap_or_default(),
                position: after.position,
                limit: limit.into(),
            }
            .load::<DueJobRow>(&mut conn)
        })?;
        Ok(due_jobs(rows, limit))
    }

    async fn claim_job(&self, at: &JobAt, lease: Duration) -> Result<Option<JobRow>, StoreError> {
        let rows = ask!(self, "claim a staged job", |conn| {
            sql::ClaimJob::new(at, lease).load::<JobDataRow>(&mut conn)
        })?;
        rows.into_iter().next().map(|row| job(at, row)).transpose()
    }

    async fn claim_jobs(
        &self,
        at: &[JobAt],
        lease: Duration,
    ) -> Result<Vec<Result<Option<JobRow>, StoreError>>, StoreError> {
        let won = ask_for_many!(self, "claim staged jobs", |conn| {
            sql::ClaimJobs::new(at, lease).load::<NthJobRow>(&mut conn)
        });
        Ok(claimed_jobs(at, won?))
    }

    async fn jobs_delivered(&self, at: &[JobAt]) -> Result<Vec<bool>, StoreError> {
        let deleted = ask_for_many!(self, "delete delivered jobs", |conn| {
            sql::JobsDelivered::new(at).load::<i64>(&mut conn)
        });
        if deleted.as_ref().is_err_and(StoreError::is_of_the_connection) {
            self.pool.forget_idle();
        }
        Ok(are_among(at.len(), &deleted?))
    }

    // Not sent again by itself: what it comes to the second time depends on the first.
    async fn job_delivered(&self, at: &JobAt) -> Result<bool, StoreError> {
        let deleted = ask!(self, "delete a delivered job", |conn| {
            sql::JobDelivered::new(at).load::<i64>(&mut conn)
        });
        if deleted.as_ref().is_err_and(StoreError::is_of_the_connection) {
            self.pool.forget_idle();
        }
        Ok(deleted? == [1])
    }

    async fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let put_back = |after, counts| sql::JobPutBack::new(at, after, counts, reason);
        let put_back = match becomes {
            Undelivered::Again(after) => put_back(after, true),
            Undelivered::Left => put_back(Duration::ZERO, false),
            Undelivered::Dead => {
                let dead = ask_again!(self, "put a dead job aside", |conn| {
                    sql::JobDead::new(at, reason).load::<i64>(&mut conn)
                })?;
                return Ok(dead == [1]);
            }
        };
        let updated =
            ask_again!(self, "put a job back", |conn| { (&put_back).load::<i64>(&mut conn) })?;
        Ok(updated == [1])
    }

    async fn paused_phases(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let workers = self.for_workers();
        first_answer(workers.read_pauses(), self.read_pauses_as_requests()).await
    }
}

impl<P: Pool> Postgres<P> {
    async fn read_pauses_as_requests(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let rows = ask_again!(self, "read the pauses", |conn| {
            super::ops_statements::Pauses {}.load::<PauseRow>(&mut conn)
        })?;
        Ok(rows.into_iter().map(paused_phase).collect())
    }
}
