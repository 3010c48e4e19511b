//! What the workers ask of SQLite.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::{QueryResult, RunQueryDsl};

use super::ask::guarded_then;
use super::ops::paused;
use super::ops_statements::Pauses;
use super::{Sqlite, statements as sql};
use crate::number::to_u32;
use crate::store::due::{due_job, due_key, expired_keys, held_keys, page};
use crate::store::in_millis::tuple_rows::BlockingRows;
use crate::store::pauses::PausedPhase;
use crate::store::row::millis;
use crate::store::{
    DueJob, DueKey, Enrolled, ExpiredKey, ExpiryPlace, HeldKey, JobAt, JobPlace, JobRow, KeyPlace,
    Page, StoreError, Undelivered, WorkerStore,
};

impl WorkerStore for Sqlite {
    async fn due_keys(
        &self,
        after: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> Result<Page<DueKey, KeyPlace>, StoreError> {
        let look = sql::DueKeys {
            grace_ms: millis(grace),
            run_after: after.run_after.timestamp_millis(),
            scope: after.scope.clone(),
            key: after.key.clone(),
            limit: limit.into(),
        };
        let rows =
            self.run("search for due keys", |conn| look.rows::<sql::DueKeyRow>(conn)).await?;
        Ok(page(rows, limit, sql::key_place, |row| due_key(sql::due_key(row)?)))
    }

    async fn held_keys(
        &self,
        (from, to): (DateTime<Utc>, DateTime<Utc>),
        after: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<HeldKey, ExpiryPlace>, StoreError> {
        let look = sql::HeldKeys {
            from: from.timestamp_millis(),
            to: to.timestamp_millis(),
            expires_at: after.expires_at.timestamp_millis(),
            scope: after.scope.clone(),
            key: after.key.clone(),
            limit: limit.into(),
        };
        let rows =
            self.run("search for held keys", |conn| look.rows::<sql::HeldKeyRow>(conn)).await?;
        Ok(held_keys(rows.into_iter().map(sql::held_key).collect()))
    }

    async fn enrol_keys(&self, held: &[HeldKey]) -> Result<Vec<Enrolled>, StoreError> {
        let row = |held| (sql::NotEntered::new(held), sql::NotEntered::new(held));
        let rows: Vec<_> = held.iter().map(row).collect();
        self.run("enter abandoned keys among the due ones", |conn| {
            conn.immediate_transaction(|conn| {
                let rows = rows.into_iter();
                rows.map(|(enters, looks)| {
                    if (sql::Enrol { not_entered: enters }).execute(conn)? == 1 {
                        return Ok(Enrolled::Entered);
                    }
                    let left = sql::StillHeld { not_entered: looks }.rows::<i64>(conn)?;
                    Ok(Enrolled::unless_entered(left.first().copied()))
                })
                .collect()
            })
        })
        .await
    }

    async fn expired_keys(
        &self,
        after: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<ExpiredKey, ExpiryPlace>, StoreError> {
        let look = sql::ExpiredKeys::after(after, limit);
        let rows = self
            .run("search for expired keys", |conn| look.rows::<sql::ExpiredKeyRow>(conn))
            .await?;
        Ok(expired_keys(rows.into_iter().map(sql::expired_key).collect(), limit))
    }

    async fn reap_rows(&self, expired: &[ExpiredKey]) -> Result<u32, StoreError> {
        let (Some(first), Some(last)) = (expired.first(), expired.last()) else { return Ok(0) };
        let reap = sql::Reap { completed: sql::CompletedBetween::new(&first.at, &last.at) };
        Ok(to_u32(self.run("reap expired keys", |conn| reap.execute(conn)).await?))
    }

    async fn jobs_due(
        &self,
        after: &JobPlace,
        limit: u32,
    ) -> Result<Page<DueJob, JobPlace>, StoreError> {
        let look = sql::DueJobs {
            run_after: after.run_after.timestamp_millis(),
            scope: after.scope.clone(),
            request_id: after.request_id.clone(),
            position: after.position,
            limit: limit.into(),
        };
        let rows =
            self.run("search for staged jobs", |conn| look.rows::<sql::DueJobRow>(conn)).await?;
        Ok(page(rows, limit, sql::job_place, |row| due_job(sql::due_job(row)?)))
    }

    async fn claim_job(&self, at: &JobAt, lease: Duration) -> Result<Option<JobRow>, StoreError> {
        let claim = sql::ClaimJob::new(at, lease);
        let rows =
            self.run("claim a staged job", |conn| claim.rows::<sql::JobDataRow>(conn)).await?;
        rows.into_iter().next().map(|row| sql::job(at, row)).transpose()
    }

    async fn claim_jobs(
        &self,
        at: &[JobAt],
        lease: Duration,
    ) -> Result<Vec<Result<Option<JobRow>, StoreError>>, StoreError> {
        let claims: Vec<_> = at.iter().map(|at| sql::ClaimJob::new(at, lease)).collect();
        let claimed = self.run("claim staged jobs", |conn| {
            conn.immediate_transaction(|conn| {
                let claims = claims.into_iter();
                claims
                    .map(|claim| claim.rows::<sql::JobDataRow>(conn))
                    .collect::<QueryResult<Vec<_>>>()
            })
        });
        let rows = at.iter().zip(claimed.await?);
        let claimed = |(at, rows): (_, Vec<_>)| {
            rows.into_iter().next().map(|row| sql::job(at, row)).transpose()
        };
        Ok(rows.map(claimed).collect())
    }

    async fn jobs_delivered(&self, at: &[JobAt]) -> Result<Vec<bool>, StoreError> {
        let words: Vec<_> =
            at.iter().map(|at| (sql::JobDelivered::new(at), sql::MakeNextDue::new(at))).collect();
        self.run("delete delivered jobs", |conn| {
            conn.immediate_transaction(|conn| {
                let words = words.into_iter();
                words.map(|(delete, next)| guarded_then(conn, &delete, Some(&next))).collect()
            })
        })
        .await
    }

    async fn job_delivered(&self, at: &JobAt) -> Result<bool, StoreError> {
        let (delete, next) = (sql::JobDelivered::new(at), sql::MakeNextDue::new(at));
        self.together("delete a delivered job", delete, Some(next)).await
    }

    async fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let put_back = sql::JobFailed::new(at, becomes, reason);
        let (next, others) = (sql::MakeNextDue::new(at), sql::LetOthersWait::new(at));
        self.run("put a job back", move |conn| {
            conn.immediate_transaction(|conn| {
                let is_ours = put_back.execute(conn)? == 1;
                match becomes {
                    _ if !is_ours => {}
                    Undelivered::Dead => {
                        next.execute(conn)?;
                    }
                    Undelivered::Again(_) | Undelivered::Left => {
                        others.execute(conn)?;
                    }
                }
                Ok(is_ours)
            })
        })
        .await
    }

    async fn paused_phases(&self) -> Result<Vec<PausedPhase>, StoreError> {
        // No foreign phase begins before they are known: it waits for no thread that may have other work, if it need not.
        let rows = match self.reader.pauses() {
            Some(rows) => rows,
            None => self.run("read the pauses", |conn| Pauses {}.rows(conn)).await?,
        };
        Ok(paused(rows))
    }
}
