//! What is done by hand on SQLite: erasures, surveys, the number of dead jobs.

use std::time::Duration;

use diesel::RunQueryDsl;

use super::ops_statements::InsertAudit;
use super::{Sqlite, statements as sql};
use crate::key::{IdempotencyKey, Scope};
use crate::number::to_u32;
use crate::store::admin::{CountedRow, counted};
use crate::store::in_millis::tuple_rows::BlockingRows;
use crate::store::row::{SurveyRow, SurveyedJobRow, count, millis, surveyed, surveyed_jobs};
use crate::store::{AdminStore, Erase, Page, SettledKey, StoreError, SurveyedJob, SurveyedRow};

impl AdminStore for Sqlite {
    async fn erase_key(&self, erase: &Erase<'_>) -> Result<u32, StoreError> {
        let (scope, retention_ms) = (erase.scope.as_str().to_owned(), millis(erase.retention));
        let jobs = sql::EraseJobs { scope: scope.clone() };
        let one = sql::EraseKey {
            retention_ms,
            scope,
            key: erase.key.as_str().to_owned(),
            seen: sql::AsSeen::by(erase.act.as_ref().map(|act| act.seen)),
        };
        let audit = erase.act.as_ref().map(|act| InsertAudit::of(act.audit));
        let erased = self.run("erase", |conn| {
            conn.immediate_transaction(|conn| {
                let erased = one.execute(conn)?;
                jobs.execute(conn)?;
                if let Some(audit) = audit.filter(|_| erased == 1) {
                    audit.execute(conn)?;
                }
                Ok(erased)
            })
        });
        Ok(to_u32(erased.await?))
    }

    async fn erase_between(
        &self,
        scope: &Scope,
        (from, to): (&str, &str),
        retention: Duration,
    ) -> Result<u32, StoreError> {
        let scope = scope.as_str().to_owned();
        let jobs = sql::EraseJobs { scope: scope.clone() };
        let batch = sql::EraseBetween {
            retention_ms: millis(retention),
            scope,
            from: from.to_owned(),
            to: to.to_owned(),
        };
        let erased = self.run("erase", |conn| {
            conn.immediate_transaction(|conn| {
                let erased = batch.execute(conn)?;
                jobs.execute(conn)?;
                Ok(erased)
            })
        });
        Ok(to_u32(erased.await?))
    }

    async fn keys_to_erase(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<Page<SettledKey, String>, StoreError> {
        let look = sql::KeysToErase::of(scope, after, limit);
        let rows = self
            .run("search for settled keys", |conn| look.rows::<sql::SettledKeyRow>(conn))
            .await?;
        Ok(sql::settled_keys(rows, limit))
    }

    async fn count_unerased(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<(u64, Option<String>), StoreError> {
        let counting = sql::CountUnerased::of(scope, after, limit);
        let rows = self.run("count the keys", |conn| counting.rows::<CountedRow>(conn)).await?;
        Ok(counted(rows, limit))
    }

    async fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> Result<u32, StoreError> {
        let erase = sql::EraseOrphanedJobs {
            scope: scope.as_str().to_owned(),
            is_any: key.is_none(),
            key: key.map_or("", IdempotencyKey::as_str).to_owned(),
            limit: limit.into(),
        };
        let erased = self.run("erase the jobs of reaped keys", |conn| erase.execute(conn)).await?;
        Ok(to_u32(erased))
    }

    async fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> Result<u64, StoreError> {
        let counting = sql::CountOrphans {
            scope: scope.as_str().to_owned(),
            is_any: key.is_none(),
            key: key.map_or("", IdempotencyKey::as_str).to_owned(),
        };
        let doing = "count the jobs of reaped keys";
        Ok(count(self.run(doing, |conn| counting.rows::<i64>(conn)).await?).into())
    }

    async fn dead_jobs(&self) -> Result<u64, StoreError> {
        let rows = self.run("count dead jobs", |conn| sql::DeadJobs {}.rows::<i64>(conn)).await?;
        Ok(count(rows).into())
    }

    async fn survey_keys(
        &self,
        limit: u32,
        latest: u32,
        youth: Duration,
    ) -> Result<Vec<SurveyedRow>, StoreError> {
        let survey = sql::Survey::of(limit, latest, youth);
        let rows = self.run("survey the keys", move |conn| survey.rows::<SurveyRow>(conn)).await?;
        Ok(rows.into_iter().map(surveyed).collect())
    }

    async fn survey_jobs(
        &self,
        limit: u32,
        most_bytes: u32,
    ) -> Result<Vec<SurveyedJob>, StoreError> {
        let survey = sql::SurveyJobs::of(limit, most_bytes);
        let rows =
            self.run("survey the jobs", move |conn| survey.rows::<SurveyedJobRow>(conn)).await?;
        Ok(surveyed_jobs(rows))
    }
}
