//! What the workers ask of MySQL.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel_async::RunQueryDsl;
use mysql_async::{Row, from_row_opt};

use super::ask::{ask_again, await_answer, read_back};
use super::error::is_of_a_deadlock;
use super::literal::BoundStatement;
use super::pool::ConnectionGuard;
use super::transaction::EachTold;
use super::tuple_rows::RowsAwaited;
use super::waits::patiently;
use super::{Mysql, MysqlConn, ops_statements, statements as sql};
use crate::number::to_u32;
use crate::store::due::{due_job, due_key, expired_keys, held_keys, job, page};
use crate::store::first_answer::first_answer;
use crate::store::operators::OperatorStore;
use crate::store::pauses::{PausedPhase, paused_phase};
use crate::store::row::millis;
use crate::store::{
    DueJob, DueKey, Enrolled, ExpiredKey, ExpiryPlace, HeldKey, JobAt, JobPlace, JobRow, KeyPlace,
    Page, StoreError, Undelivered, WorkerStore,
};

impl WorkerStore for Mysql {
    async fn due_keys(
        &self,
        after: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> Result<Page<DueKey, KeyPlace>, StoreError> {
        let rows = ask_again!(self, "search for due keys", |conn| {
            sql::DueKeys {
                grace_ms: millis(grace),
                run_after: after.run_after.timestamp_millis(),
                scope: after.scope.clone(),
                key: after.key.clone(),
                limit: limit.into(),
            }
            .rows::<sql::DueKeyRow>(conn)
        })?;
        Ok(page(rows, limit, sql::key_place, |row| due_key(sql::due_key(row)?)))
    }

    async fn held_keys(
        &self,
        (from, to): (DateTime<Utc>, DateTime<Utc>),
        after: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<HeldKey, ExpiryPlace>, StoreError> {
        let rows = ask_again!(self, "search for held keys", |conn| {
            sql::HeldKeys {
                from: from.timestamp_millis(),
                to: to.timestamp_millis(),
                expires_at: after.expires_at.timestamp_millis(),
                scope: after.scope.clone(),
                key: after.key.clone(),
                limit: limit.into(),
            }
            .rows::<sql::HeldKeyRow>(conn)
        })?;
        Ok(held_keys(rows.into_iter().map(sql::held_key).collect()))
    }

    async fn enrol_keys(&self, held: &[HeldKey]) -> Result<Vec<Enrolled>, StoreError> {
        const DOING: &str = "enter abandoned keys among the due ones";
        let row = |held: &HeldKey| {
            let enrol = sql::Enrol { not_entered: sql::NotEntered::new(held) };
            let held = sql::StillHeld { not_entered: sql::NotEntered::new(held) };
            Ok(EachTold {
                writes: vec![BoundStatement::of(&enrol)?, BoundStatement::of(&sql::NoteCount {})?],
                tells: BoundStatement::of(&sql::NotedOrHeld { held })?,
            })
        };
        let script = held.iter().map(row).collect();
        let told = self.of_each(DOING, script).await?;
        let enrolled = |row: Option<Row>| match row.map(from_row_opt::<(i64, Option<i64>)>) {
            Some(Ok((1, _))) => Enrolled::Entered,
            Some(Ok((_, left))) => Enrolled::unless_entered(left),
            _ => Enrolled::Gone,
        };
        Ok(told.into_iter().map(enrolled).collect())
    }

    async fn expired_keys(
        &self,
        after: &ExpiryPlace,
        limit: u32,
    ) -> Result<Page<ExpiredKey, ExpiryPlace>, StoreError> {
        let rows = ask_again!(self, "search for expired keys", |conn| {
            sql::ExpiredKeys::after(after, limit).rows::<sql::ExpiredKeyRow>(conn)
        })?;
        Ok(expired_keys(rows.into_iter().map(sql::expired_key).collect(), limit))
    }

    async fn reap_rows(&self, expired: &[ExpiredKey]) -> Result<u32, StoreError> {
        let (Some(first), Some(last)) = (expired.first(), expired.last()) else { return Ok(0) };
        let limit = i64::try_from(expired.len()).unwrap_or(i64::MAX);
        let reaped = ask_again!(self, "reap expired keys", |conn| {
            let completed = sql::CompletedBetween::new(&first.at, &last.at);
            sql::Reap { completed, limit }.execute(conn)
        })?;
        Ok(to_u32(reaped))
    }

    async fn jobs_due(
        &self,
        after: &JobPlace,
        limit: u32,
    ) -> Result<Page<DueJob, JobPlace>, StoreError> {
        let rows = ask_again!(self, "search for staged jobs", |conn| {
            sql::DueJobs {
                run_after: after.run_after.timestamp_millis(),
                scope: after.scope.clone(),
                request_id: after.request_id.clone(),
                position: after.position,
                limit: limit.into(),
            }
            .rows::<sql::DueJobRow>(conn)
        })?;
        Ok(page(rows, limit, sql::job_place, |row| due_job(sql::due_job(row)?)))
    }

    async fn claim_job(&self, at: &JobAt, lease: Duration) -> Result<Option<JobRow>, StoreError> {
        const DOING: &str = "claim a staged job";
        let claimed = patiently(|| async {
            let mut connection = ConnectionGuard::of(&self.pool).await?;
            let conn: &mut MysqlConn = &mut connection;
            let claim = await_answer(DOING, sql::ClaimJob::new(at, lease).execute(conn)).await;
            // Of a deadlock with another claim nothing is left.
            let claim = match claim {
                Err(error) if is_of_a_deadlock(&error) => Err(StoreError::Locked),
                claim => claim,
            };
            if claim? != 1 {
                return Ok(None);
            }
            let rows = read_back!(DOING, sql::ClaimedJob::new(at).rows::<sql::ClaimedRow>(conn))?;
            Ok(rows.into_iter().next())
        });
        let claimed = claimed.await?.map(sql::claimed).transpose()?;
        claimed.map(|row| job(at, row)).transpose()
    }

    async fn claim_jobs(
        &self,
        at: &[JobAt],
        lease: Duration,
    ) -> Result<Vec<Result<Option<JobRow>, StoreError>>, StoreError> {
        let each = |at: &JobAt| {
            Ok(EachTold {
                writes: vec![BoundStatement::of(&sql::ClaimJob::new(at, lease))?],
                tells: BoundStatement::of(&sql::JobIfClaimed::new(at))?,
            })
        };
        let told = self.of_each_job("claim staged jobs", at, each).await?;
        let claimed = |(at, row): (&JobAt, Option<Row>)| {
            let Some(row) = row else { return Ok(None) };
            let row = from_row_opt::<sql::ClaimedRow>(row)
                .map_err(|_| StoreError::Unreadable { column: "job" })?;
            job(at, sql::claimed(row)?).map(Some)
        };
        Ok(at.iter().zip(told).map(claimed).collect())
    }

    async fn jobs_delivered(&self, at: &[JobAt]) -> Result<Vec<bool>, StoreError> {
        let each = |at: &JobAt| {
            let (delete, next) = (sql::JobDelivered::new(at), sql::MakeNextDueIfNoted::new(at));
            Ok(EachTold {
                writes: vec![
                    BoundStatement::of(&delete)?,
                    BoundStatement::of(&sql::NoteCount {})?,
                    BoundStatement::of(&next)?,
                ],
                tells: BoundStatement::of(&sql::Noted {})?,
            })
        };
        let told = self.of_each_job("delete delivered jobs", at, each).await?;
        Ok(told.into_iter().map(is_one).collect())
    }

    async fn job_delivered(&self, at: &JobAt) -> Result<bool, StoreError> {
        let next = || BoundStatement::of(&sql::MakeNextDue::new(at));
        self.together("delete a delivered job", &sql::JobDelivered::new(at), &[&next]).await
    }

    async fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let failed = sql::JobFailed::new(at, becomes, reason);
        let others = || match becomes {
            Undelivered::Dead => BoundStatement::of(&sql::MakeNextDue::new(at)),
            Undelivered::Again(_) | Undelivered::Left => {
                BoundStatement::of(&sql::LetOthersWait::new(at))
            }
        };
        self.together("put a job back", &failed, &[&others]).await
    }

    async fn paused_phases(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let workers = self.for_workers();
        first_answer(workers.list_pauses(), self.read_pauses_as_requests()).await
    }
}

impl Mysql {
    async fn read_pauses_as_requests(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let rows = ask_again!(self, "read the pauses", |conn| {
            ops_statements::Pauses {}.rows::<ops_statements::StoredPause>(conn)
        })?;
        Ok(rows.into_iter().filter_map(ops_statements::pause).map(paused_phase).collect())
    }
}

/// Whether the statement before has written one row, as was noted.
fn is_one(noted: Option<Row>) -> bool {
    noted.and_then(|row| from_row_opt(row).ok()) == Some(1_i64)
}
