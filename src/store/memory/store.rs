//! What the engine asks for: [`Store`] for [`Memory`]. What waits for a lock is attempted again, without a connection in
//! between.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::query_builder::{QueryFragment, QueryId};
use futures_util::FutureExt;
use uuid::Uuid;

use super::backend::MemoryBackend;
use super::connection::MemoryConnection;
use super::jobs::staged;
use super::next_state::{Birth, Guarded, NextState};
use super::open_transaction::{MemoryTransaction, committed};
use super::record::KeyRecord;
use super::round_trips::{HandedOver, advance, read_key, read_keys};
use super::write::Write;
use super::{Memory, Statement, place_of};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, KEYLESS, Scope};
use crate::number::to_u32;
use crate::store::audit::AuditEntry;
use crate::store::patience::{Patience, patiently};
use crate::store::row::{key_row, key_summary};
use crate::store::{
    Change, Claim, Commit, Guard, Hold, KeyRow, KeySummary, NewRow, ParamsAndContext, Reserved,
    RowTimes, Store, StoreError, Writes,
};

impl Store for Memory {
    type Connection = MemoryConnection;
    type Transaction = MemoryTransaction;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<MemoryBackend> + QueryId + Send + 'static,
    {
        Statement(Write::from_query(&query))
    }

    /// A database is migrated from its beginning; this is the end of
    /// [`revert_migrations`](Store::revert_migrations).
    async fn migrate(&self) -> Result<(), StoreError> {
        self.database().state().reverted = false;
        Ok(())
    }

    async fn missing_migrations(&self) -> Result<Vec<String>, StoreError> {
        let missing = self.database().state().reverted;
        Ok(missing.then(|| "atomic_phases".to_owned()).into_iter().collect())
    }

    async fn revert_migrations(&self) -> Result<(), StoreError> {
        self.database().drop_tables();
        Ok(())
    }

    async fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let place = place_of(scope, key);
        let seen =
            self.ask_again("read the key", |session| read_key(session, place).boxed()).await?;
        seen.map(|(row, now)| key_summary(row.key_summary(now))).transpose()
    }

    async fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        let place = place_of(scope, key);
        let seen =
            self.ask_again("read the key", |session| read_key(session, place).boxed()).await?;
        seen.map(|(row, now)| key_row(row.row(now))).transpose()
    }

    async fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<MemoryTransaction>, StoreError> {
        let mut patience = Patience::new(row.creation_wait);
        loop {
            let reserved = match self.try_reserve(row).await {
                Err(error) if error.is_of_the_connection() => {
                    self.pool.forget_idle();
                    self.try_reserve(row).await
                }
                reserved => reserved,
            };
            match reserved {
                Ok(Reserved::Busy)
                    if row.caller.unless_gone(patience.pause()).await == Some(true) => {}
                reserved => return reserved,
            }
        }
    }

    async fn create_key(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let written = match handed_over(&row.guard(), writes) {
            Ok(written) => written,
            Err(error) => return Commit::Failed(StoreError::database("create the key", error)),
        };
        let mut patience = Patience::new(row.creation_wait);
        loop {
            let birth = Birth::of(row).changed(created_at, change);
            match self.try_create(birth, written.clone()).await {
                Ok(Commit::Failed(StoreError::Locked))
                    if row.caller.unless_gone(patience.pause()).await == Some(true) => {}
                created => return created.unwrap_or_else(Commit::Failed),
            }
        }
    }

    async fn advance_key(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        let connection = match self.pool.get().await {
            Ok(connection) => connection,
            Err(error) => return Commit::Failed(error),
        };
        let (guarded, next) = (Guarded::by(guard), NextState::of_phase(change));
        let written = match handed_over(guard, writes) {
            Ok(written) => written,
            Err(error) => return Commit::Failed(StoreError::database("write the phase", error)),
        };
        let answer = connection
            .ask("advance", move |session| {
                advance(session, isolation, guarded, next, written).boxed()
            })
            .await;
        committed(connection, answer)
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        self.ask_again("tell the time", |session| {
            async {
                session.hello()?;
                Ok(session.now())
            }
            .boxed()
        })
        .await
    }

    async fn begin_transaction(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MemoryTransaction>, StoreError> {
        patiently(|| async move {
            match self.try_begin(isolation, guard).await {
                Err(error) if error.is_of_the_connection() => {
                    self.pool.forget_idle();
                    self.try_begin(isolation, guard).await
                }
                begun => begun,
            }
        })
        .await
    }

    async fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        patiently(|| self.try_take_over(claim, hold)).await
    }

    async fn write_change(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Commit {
        Commit::of(patiently(|| self.try_write(guard, change, notice)).await)
    }

    async fn settle_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        Commit::of(patiently(|| self.try_settle(claim, hold, change, audit)).await)
    }

    async fn renew_lease(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        patiently(|| self.try_renew(guard, hold)).await
    }

    async fn read_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let place = place_of(scope, key);
        let seen =
            self.ask_again("read the outputs", |session| read_key(session, place).boxed()).await?;
        Ok(seen.and_then(|(row, _)| Some(row.outputs?.0)))
    }

    async fn read_params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let place = place_of(scope, key);
        let seen = self
            .ask_again("read what was given", |session| read_key(session, place).boxed())
            .await?;
        let same_life = seen.filter(|(row, _)| row.request_id.uuid() == request_id);
        Ok(same_life.map(|(row, _)| (row.params.0, row.context.map(|context| context.0))))
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let keys = self.ask_again("count the keys", |session| read_keys(session).boxed()).await?;
        let now = self.database().now();
        let live = |key: &&KeyRecord| {
            key.scope == scope.as_str()
                && key.expires_at.0 > now
                && !key.idempotency_key.starts_with(KEYLESS)
        };
        Ok(to_u32(keys.iter().filter(live).take(cap as usize).count()))
    }
}

fn handed_over(guard: &Guard<'_>, writes: Writes<'_, Memory>) -> QueryResult<HandedOver> {
    let statements = writes.statements.all.into_iter().map(|Statement(write)| write);
    let jobs = writes.jobs.iter().map(|job| staged(guard, job)).collect();
    Ok(HandedOver { statements: statements.collect::<Result<_, _>>()?, jobs })
}
