//! What is done by hand on MySQL: erasures, surveys, the number of dead jobs.

use std::time::Duration;

use diesel_async::RunQueryDsl;

use super::ask::{ask, ask_again};
use super::literal::BoundStatement;
use super::ops_statements::InsertAudit;
use super::tuple_rows::RowsAwaited;
use super::{Mysql, statements as sql};
use crate::key::{IdempotencyKey, Scope};
use crate::number::to_u32;
use crate::store::admin::{CountedRow, counted};
use crate::store::row::{SurveyRow, SurveyedJobRow, count, millis, surveyed, surveyed_jobs};
use crate::store::{AdminStore, Erase, Page, SettledKey, StoreError, SurveyedJob, SurveyedRow};

impl Mysql {
    /// Erases the dead jobs of requests that were found.
    async fn erase_jobs_of(
        &self,
        doing: &'static str,
        scope: &Scope,
        requests: Vec<Vec<u8>>,
    ) -> Result<usize, StoreError> {
        if requests.is_empty() {
            return Ok(0);
        }
        let jobs = || sql::EraseJobsOf {
            scope: scope.as_str().to_owned(),
            requests: sql::Listed(requests.clone()),
        };
        ask!(self.pool, doing, |conn| jobs().execute(conn))
    }
}

impl AdminStore for Mysql {
    async fn erase_key(&self, erase: &Erase<'_>) -> Result<u32, StoreError> {
        const DOING: &str = "erase";
        let (scope, retention_ms) = (erase.scope.as_str().to_owned(), millis(erase.retention));
        let key = erase.key.as_str();
        let jobs = || {
            let (scope, key) = (erase.scope.as_str().to_owned(), key.to_owned());
            BoundStatement::of(&sql::EraseJobs { scope, key })
        };
        let seen = sql::AsSeen::by(erase.act.as_ref().map(|act| act.seen));
        let one = sql::EraseKey { retention_ms, scope, key: key.to_owned(), seen };
        let erased = match erase.act {
            None => self.by_an_operator(DOING, &one, &[&jobs]).await?,
            Some(act) => {
                let audit = || BoundStatement::of(&InsertAudit::of(act.audit));
                self.by_an_operator(DOING, &one, &[&jobs, &audit]).await?
            }
        };
        Ok(erased.into())
    }

    async fn erase_between(
        &self,
        scope: &Scope,
        (from, to): (&str, &str),
        retention: Duration,
    ) -> Result<u32, StoreError> {
        const DOING: &str = "erase";
        let scope_text = || scope.as_str().to_owned();
        let settled =
            || sql::SettledKeys { scope: scope_text(), from: from.to_owned(), to: to.to_owned() };
        let mut keys = ask!(self.pool, DOING, |conn| settled().rows::<String>(conn))?;
        // The statement needs a key, and no row has this one. It is sent because a server that refuses every erasure says so.
        if keys.is_empty() {
            keys.push(String::new());
        }
        let batch = || sql::EraseKeys {
            retention_ms: millis(retention),
            scope: scope_text(),
            limit: i64::try_from(keys.len()).unwrap_or(i64::MAX),
            keys: sql::Listed(keys.clone()),
        };
        Ok(to_u32(ask!(self.pool, DOING, |conn| batch().execute(conn))?))
    }

    async fn keys_to_erase(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<Page<SettledKey, String>, StoreError> {
        let rows = ask_again!(self, "search for settled keys", |conn| {
            sql::KeysToErase::of(scope, after, limit).rows::<sql::SettledKeyRow>(conn)
        })?;
        Ok(sql::settled_keys(rows, limit))
    }

    async fn count_unerased(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<(u64, Option<String>), StoreError> {
        let rows = ask_again!(self, "count the keys", |conn| {
            sql::CountUnerased::of(scope, after, limit).rows::<CountedRow>(conn)
        })?;
        Ok(counted(rows, limit))
    }

    async fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> Result<u32, StoreError> {
        const DOING: &str = "erase the jobs of reaped keys";
        let requests = ask!(self.pool, DOING, |conn| {
            sql::ReapedWithJobs {
                scope: scope.as_str().to_owned(),
                is_any: key.is_none(),
                key: key.map_or("", IdempotencyKey::as_str).to_owned(),
                limit: limit.into(),
            }
            .rows::<Vec<u8>>(conn)
        })?;
        Ok(to_u32(self.erase_jobs_of(DOING, scope, requests).await?))
    }

    async fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> Result<u64, StoreError> {
        let rows = ask_again!(self, "count the jobs of reaped keys", |conn| {
            sql::CountOrphans {
                scope: scope.as_str().to_owned(),
                is_any: key.is_none(),
                key: key.map_or("", IdempotencyKey::as_str).to_owned(),
            }
            .rows::<i64>(conn)
        })?;
        Ok(count(rows).into())
    }

    async fn dead_jobs(&self) -> Result<u64, StoreError> {
        let rows = ask_again!(self, "count dead jobs", |conn| sql::DeadJobs {}.rows::<i64>(conn))?;
        Ok(count(rows).into())
    }

    async fn survey_keys(
        &self,
        limit: u32,
        latest: u32,
        youth: Duration,
    ) -> Result<Vec<SurveyedRow>, StoreError> {
        let rows = ask_again!(self, "survey the keys", |conn| {
            sql::Survey::of(limit, latest, youth).rows::<SurveyRow>(conn)
        })?;
        Ok(rows.into_iter().map(surveyed).collect())
    }

    async fn survey_jobs(
        &self,
        limit: u32,
        most_bytes: u32,
    ) -> Result<Vec<SurveyedJob>, StoreError> {
        let rows = ask_again!(self, "survey the jobs", |conn| {
            sql::SurveyJobs::of(limit, most_bytes).rows::<SurveyedJobRow>(conn)
        })?;
        Ok(surveyed_jobs(rows))
    }
}
