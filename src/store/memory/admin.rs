//! What is done by hand on the store in memory: erasures, surveys, the number of dead jobs.

use std::ops::RangeInclusive;
use std::time::Duration;

use diesel::QueryResult;
use futures_util::FutureExt;

use super::Memory;
use super::erasure::{AsSeen, Lives};
use super::record::{AuditRecord, JobRecord, KeyRecord, Place, Time, after};
use super::round_trips::{read_jobs, read_keys, write_audit};
use super::session::Session;
use crate::definition::Isolation;
use crate::key::{IdempotencyKey, Scope};
use crate::store::due::page;
use crate::store::patience::patiently;
use crate::store::row::{SurveyRow, SurveyedJobRow, surveyed, surveyed_jobs};
use crate::store::{
    AdminStore, ERASED, Erase, Page, SettledKey, Status, StoreError, SurveyedJob, SurveyedRow,
};

impl Memory {
    /// A part of a scope's keys, from one on.
    async fn keys_behind(
        &self,
        doing: &'static str,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<Vec<KeyRecord>, StoreError> {
        let mut keys = self.ask_again(doing, |session| read_keys(session).boxed()).await?;
        keys.retain(|key| key.scope == scope.as_str() && key.idempotency_key.as_str() > after);
        keys.sort_by(|one, other| one.idempotency_key.cmp(&other.idempotency_key));
        keys.truncate(limit as usize);
        Ok(keys)
    }
}

impl AdminStore for Memory {
    async fn erase_key(&self, erase: &Erase<'_>) -> Result<u32, StoreError> {
        let retention = erase.retention;
        patiently(|| async {
            let (scope, key) = (erase.scope.as_str().to_owned(), erase.key.as_str().to_owned());
            let act = erase.act.map(|act| (AsSeen::of(act.seen), AuditRecord::of(act.audit)));
            let erased = self.ask_again("erase", move |session| {
                async move {
                    session.begin(Isolation::ReadCommitted)?;
                    let erased = erase_key(session, Place::Key(scope, key), act, retention).await;
                    session.conclude(erased).await
                }
                .boxed()
            });
            match erased.await? {
                Erased::Locked => Err(StoreError::Locked),
                Erased::Rows(erased) => Ok(erased),
            }
        })
        .await
    }

    async fn erase_between(
        &self,
        scope: &Scope,
        (from, to): (&str, &str),
        retention: Duration,
    ) -> Result<u32, StoreError> {
        let scope = scope.as_str().to_owned();
        let keys = from.to_owned()..=to.to_owned();
        self.ask_again("erase", move |session| {
            async move {
                session.begin(Isolation::ReadCommitted)?;
                let erased = erase_between(session, &scope, &keys, retention).await;
                session.conclude(erased).await
            }
            .boxed()
        })
        .await
    }

    async fn keys_to_erase(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<Page<SettledKey, String>, StoreError> {
        let keys = self.keys_behind("search for settled keys", scope, after, limit).await?;
        let place = |key: &KeyRecord| key.idempotency_key.clone();
        Ok(page(keys, limit, place, |key| {
            let is_settled = key.is(Status::Completed) || key.is(Status::DeadLetter);
            (is_settled && key.fingerprint != ERASED).then(|| SettledKey {
                request_id: key.request_id.uuid(),
                key: key.idempotency_key,
                definition: key.definition,
            })
        }))
    }

    async fn count_unerased(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> Result<(u64, Option<String>), StoreError> {
        let keys = self.keys_behind("count the keys", scope, after, limit).await?;
        let unerased = keys.iter().filter(|key| key.fingerprint != ERASED).count() as u64;
        let last = keys.last().filter(|_| keys.len() >= limit as usize);
        Ok((unerased, last.map(|key| key.idempotency_key.clone())))
    }

    async fn dead_jobs(&self) -> Result<u64, StoreError> {
        let jobs = self.ask_again("count dead jobs", |session| read_jobs(session).boxed()).await?;
        Ok(jobs.iter().filter(|job| job.run_after.is_none()).count() as u64)
    }

    async fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> Result<u32, StoreError> {
        let scope = scope.as_str().to_owned();
        let key = key.map(|key| key.as_str().to_owned());
        self.ask_again("erase jobs", move |session| {
            async move {
                session.begin(Isolation::ReadCommitted)?;
                let erased = session.erase_orphaned_jobs(&scope, key.as_deref(), limit).await;
                session.conclude(erased).await
            }
            .boxed()
        })
        .await
    }

    async fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> Result<u64, StoreError> {
        let scope = scope.as_str().to_owned();
        let key = key.map(|key| key.as_str().to_owned());
        self.ask_again("count jobs", move |session| {
            async move {
                session.begin(Isolation::ReadCommitted)?;
                let counted = session.count_orphans(&scope, key.as_deref());
                session.conclude(counted).await
            }
            .boxed()
        })
        .await
    }

    async fn survey_keys(
        &self,
        limit: u32,
        latest: u32,
        youth: Duration,
    ) -> Result<Vec<SurveyedRow>, StoreError> {
        let keys = self.ask_again("survey the keys", |session| read_keys(session).boxed()).await?;
        let found = |by: i32,
                     most: u32,
                     mut keys: Vec<&KeyRecord>,
                     place: fn(&KeyRecord) -> Option<Time>| {
            keys.retain(|key| place(key).is_some());
            keys.sort_by_key(|key| place(key));
            let row = move |key: &KeyRecord| -> SurveyRow {
                (
                    by,
                    (key.scope.clone(), key.idempotency_key.clone()),
                    (key.definition.clone(), key.definition_version, key.phases.clone()),
                    (
                        key.status.clone(),
                        key.recovery_point.clone(),
                        key.open_intent.clone(),
                        key.reason.clone(),
                        key.attempts,
                        key.resolution.clone(),
                    ),
                )
            };
            keys.into_iter().take(most as usize).map(row).collect::<Vec<_>>()
        };
        let all = || keys.iter().collect();
        let mut rows = found(0, limit, all(), |key| key.run_after);
        rows.extend(found(1, limit, all(), |key| key.waiting_since));
        let mut youngest: Vec<&KeyRecord> = all();
        youngest.sort_by_key(|key| std::cmp::Reverse(key.expires_at));
        youngest.truncate(latest as usize);
        let oldest = youngest.get((latest as usize).wrapping_sub(1)).copied();
        let now = self.database().now();
        let is_young = |key: &&KeyRecord| after(key.created_at.0, youth).0 > now;
        rows.extend(found(3, 1, oldest.into_iter().filter(is_young).collect(), |key| {
            Some(key.expires_at)
        }));
        youngest.retain(|key| {
            !key.is(Status::Completed) && key.run_after.is_none() && key.waiting_since.is_none()
        });
        rows.extend(found(2, latest, youngest, |key| Some(key.expires_at)));
        Ok(rows.into_iter().map(surveyed).collect())
    }

    async fn survey_jobs(
        &self,
        limit: u32,
        most_bytes: u32,
    ) -> Result<Vec<SurveyedJob>, StoreError> {
        let mut jobs =
            self.ask_again("survey the jobs", |session| read_jobs(session).boxed()).await?;
        jobs.sort_by_key(|job| (job.run_after, job.staged_at));
        let of = |dead: bool| {
            let row = move |job: &JobRecord| -> SurveyedJobRow {
                let args = job.args.0.clone();
                let is_short = args.len() <= most_bytes as usize;
                (i32::from(dead), job.name.clone(), is_short.then_some(args))
            };
            let jobs = jobs.iter().filter(move |job| job.run_after.is_none() == dead);
            jobs.take(limit as usize).map(row)
        };
        Ok(surveyed_jobs(of(false).chain(of(true)).collect()))
    }
}

/// What an erasure came to.
enum Erased {
    Rows(u32),
    /// The one row has the lock of another transaction on it.
    Locked,
}

async fn erase_key(
    session: &mut Session,
    place: Place,
    act: Option<(AsSeen, AuditRecord)>,
    retention: Duration,
) -> QueryResult<Erased> {
    let (seen, audit) = act.unzip();
    let erased = session.erase(&place, retention, Lives::All, seen.as_ref()).await?;
    if erased {
        write_audit(session, audit).await?;
    }
    Ok(match !erased && session.is_settled(&place, Lives::All, seen.as_ref())? {
        true => Erased::Locked,
        false => Erased::Rows(erased.into()),
    })
}

async fn erase_between(
    session: &mut Session,
    scope: &str,
    keys: &RangeInclusive<String>,
    retention: Duration,
) -> QueryResult<u32> {
    let mut erased = 0;
    for key in session.read_keys()? {
        let is_meant = key.scope == scope && keys.contains(&key.idempotency_key);
        if is_meant && key.fingerprint != crate::store::ERASED {
            let place = Place::Key(key.scope, key.idempotency_key);
            erased += u32::from(session.erase(&place, retention, Lives::This, None).await?);
        }
    }
    Ok(erased)
}
