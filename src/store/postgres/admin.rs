//! What is done by hand on PostgreSQL: erasures, surveys, the number of dead jobs.

use std::time::Duration;

use diesel_async::RunQueryDsl;
use uuid::Uuid;

use super::{LOCKED_WAIT, Pool, Postgres, ask_again, ask_within, statements as sql};
use crate::key::{IdempotencyKey, Scope};
use crate::number::to_u32;
use crate::store::admin::{CountedRow, counted};
use crate::store::due::page;
use crate::store::patience::patiently;
use crate::store::row::{SurveyRow, SurveyedJobRow, count, millis, surveyed, surveyed_jobs};
use crate::store::{AdminStore, Erase, Page, SettledKey, StoreError, SurveyedJob, SurveyedRow};

impl<P: Pool> AdminStore for Postgres<P> {
    async fn erase_key(&self, erase: &Erase<'_>) -> Result<u32, StoreError> {
        Ok(count(patiently(|| self.try_erase(erase)).await?))
    }

    async fn erase_between(
        &self,
        scope: &Scope,
        (from, to): (&str, &str),
        retention: Duration,
    ) -> Result<u32, StoreError> {
        let (scope, retention_ms) = (scope.as_str(), millis(retention));
        let rows = ask_within!(LOCKED_WAIT, self, "erase a scope", |conn| {
            sql::EraseBetween { retention_ms, scope, from, to }.load::<i64>(&mut conn)
        });
        Ok(count(rows?))
    }

    async fn keys_to_erase(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<Page<SettledKey, String>, StoreError> {
        type SettledRow = (String, Uuid, String, bool);
        let rows = ask_again!(self, "search for settled keys", |conn| {
            sql::KeysToErase { scope: scope.as_str(), after, limit: limit.into() }
                .load::<SettledRow>(&mut conn)
        })?;
        let place = |(key, ..): &SettledRow| key.clone();
        Ok(page(rows, limit, place, |(key, request_id, definition, is_settled)| {
            is_settled.then_some(SettledKey { key, request_id, definition })
        }))
    }

    async fn count_unerased(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<(u64, Option<String>), StoreError> {
        let rows = ask_again!(self, "count the keys", |conn| {
            sql::CountUnerased { scope: scope.as_str(), after, limit: limit.into() }
                .load::<CountedRow>(&mut conn)
        })?;
        Ok(counted(rows, limit))
    }

    async fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> Result<u32, StoreError> {
        let (scope, limit) = (scope.as_str(), limit.into());
        let (is_any, key) = (key.is_none(), key.map_or("", IdempotencyKey::as_str));
        let erased = ask_within!(LOCKED_WAIT, self, "erase the jobs of reaped keys", |conn| {
            sql::EraseOrphanedJobs { scope, is_any, key, limit }.execute(&mut conn)
        })?;
        Ok(to_u32(erased))
    }

    async fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> Result<u64, StoreError> {
        let (is_any, key) = (key.is_none(), key.map_or("", IdempotencyKey::as_str));
        let rows = ask_again!(self, "count the jobs of reaped keys", |conn| {
            sql::CountOrphans { scope: scope.as_str(), is_any, key }.load::<i64>(&mut conn)
        })?;
        Ok(count(rows).into())
    }

    async fn dead_jobs(&self) -> Result<u64, StoreError> {
        let rows = ask_again!(self, "count dead jobs", |conn| {
            sql::DeadJobs {}.load::<i64>(&mut conn)
        })?;
        Ok(count(rows).into())
    }

    async fn survey_keys(
        &self,
        limit: u32,
        latest: u32,
        youth: Duration,
    ) -> Result<Vec<SurveyedRow>, StoreError> {
        let rows = ask_again!(self, "survey the keys", |conn| {
            sql::Survey::of(limit, latest, youth).load::<SurveyRow>(&mut conn)
        })?;
        Ok(rows.into_iter().map(surveyed).collect())
    }

    async fn survey_jobs(
        &self,
        limit: u32,
        most_bytes: u32,
    ) -> Result<Vec<SurveyedJob>, StoreError> {
        let rows = ask_again!(self, "survey the jobs", |conn| {
            sql::SurveyJobs::of(limit, most_bytes).load::<SurveyedJobRow>(&mut conn)
        })?;
        Ok(surveyed_jobs(rows))
    }
}
