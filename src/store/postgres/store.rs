//! What the engine asks for: [`Store`] for [`Postgres`].

use std::time::Instant;

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::Error;
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use futures_util::FutureExt;
use uuid::Uuid;

use super::ask::{ask_again, on_another};
use super::error::may_be_of_a_replaced_type;
use super::pipelined::{RowWrite, row_times};
use super::statement::{Statement, keeps_prepared};
use super::transaction::PgTransaction;
use super::twin::Twin;
use super::{MIGRATION_TERMS, MIGRATIONS, Pool, Postgres, statements as sql};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::store::audit::AuditEntry;
use crate::store::migrations::migrated_by;
use crate::store::patience::patiently;
use crate::store::row::{MAX_EXPIRED, count, key_row, key_summary};
use crate::store::{
    Change, Claim, Commit, Guard, Hold, KeyRow, KeySummary, NewRow, ParamsAndContext, Reserved,
    RowTimes, Store, StoreError, TransactionId, Writes,
};

impl<P: Pool> Store for Postgres<P> {
    type Connection = AsyncPgConnection;
    type Transaction = PgTransaction<P>;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<Pg> + QueryId + Send + 'static,
    {
        Statement::of(query)
    }

    fn keeps_prepared(&self, query: &impl QueryFragment<Pg>) -> bool {
        keeps_prepared(query, &self.registry)
    }

    migrated_by!(missing_by_their_table);

    async fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let rows = on_another(&self.pool, || self.try_look(scope, key)).await?;
        rows.into_iter().next().map(key_summary).transpose()
    }

    async fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        self.read_in_group(scope, key).await?.map(key_row).transpose()
    }

    async fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<PgTransaction<P>>, StoreError> {
        let until = Instant::now() + row.creation_wait;
        let Some(turn) = self.waits.for_the_key(row, until).await else {
            return Ok(Reserved::Busy);
        };
        let mut tried_again = false;
        loop {
            return match on_another(&self.pool, || self.try_reserve(row)).await {
                Ok(Reserved::Fresh { mut tx, created_at, expires_at }) => {
                    tx.turn = Some(turn);
                    Ok(Reserved::Fresh { tx, created_at, expires_at })
                }
                Err(error) if error.may_be_of_a_lock() => match self.twin(row, until).boxed().await
                {
                    Ok(Twin::Exists) => Ok(Reserved::Exists(None)),
                    // It waited for a lock: the statement is the engine's own.
                    Ok(Twin::Open | Twin::NotAsked) => Ok(Reserved::Busy),
                    Ok(Twin::Gone) => continue,
                    // The twin may have gone before it was asked about; another cause comes again.
                    Ok(Twin::None) if !std::mem::replace(&mut tried_again, true) => continue,
                    Ok(Twin::None) | Err(_) => Err(error),
                },
                reserved => reserved,
            };
        }
    }

    async fn recover_from(&self, error: &StoreError) {
        if error.is_of_the_connection() {
            self.pool.forget_idle();
        } else if may_be_of_a_replaced_type(error) {
            self.pool.leave_types();
        }
    }

    async fn begin_transaction(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<PgTransaction<P>>, StoreError> {
        patiently(|| on_another(&self.pool, || self.try_begin(isolation, guard))).await
    }

    async fn create_key(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        mut writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        let until = Instant::now() + row.creation_wait;
        let Some(_turn) = self.waits.for_the_key(row, until).await else {
            return Commit::Failed(StoreError::Locked);
        };
        loop {
            let place = match self.shares.for_a_phase(row.scope).await {
                Ok(place) => place,
                Err(error) => return Commit::Failed(error),
            };
            let create = RowWrite::Create { row, created_at, change };
            let creation = self.in_one_trip(create, &mut writes, row_times).await;
            drop(place);
            return match creation.unwrap_or_else(Commit::Failed) {
                Commit::Failed(error) if error.may_be_of_a_lock() => {
                    match self.twin(row, until).boxed().await {
                        Ok(Twin::Exists) => Commit::Fenced,
                        Ok(Twin::Open) => Commit::Failed(StoreError::Locked),
                        Ok(Twin::Gone) => continue,
                        // The error may be that of the phase's own statement.
                        Ok(Twin::None | Twin::NotAsked) | Err(_) => Commit::Failed(error),
                    }
                }
                creation => creation,
            };
        }
    }

    async fn advance_key(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        mut writes: Writes<'_, Self>,
    ) -> Commit {
        let _place = match self.shares.for_a_phase(guard.scope).await {
            Ok(place) => place,
            Err(error) => return Commit::Failed(error),
        };
        let advance = RowWrite::Advance { isolation, guard, change };
        let advanced = self.in_one_trip(advance, &mut writes, |_| Some(())).await;
        advanced.unwrap_or_else(Commit::Failed)
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows =
            ask_again!(self, "tell the time", |conn| sql::Now {}.load::<DateTime<Utc>>(&mut conn))?;
        rows.into_iter()
            .next()
            .ok_or_else(|| StoreError::database("tell the time", Error::NotFound))
    }

    async fn is_transaction_open(&self, transaction: &TransactionId) -> Result<bool, StoreError> {
        let number = transaction.0.as_str();
        let open = ask_again!(self, "search for a transaction", |conn| {
            sql::IsOpen { number }.load::<bool>(&mut conn)
        })?;
        Ok(open == [true])
    }

    async fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        patiently(|| self.take_over_in_group(claim, hold)).await?.map(key_row).transpose()
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
        let rows = ask_again!(self, "read the outputs", |conn| {
            sql::Outputs { scope: scope.as_str(), key: key.as_str() }
                .load::<Option<Vec<u8>>>(&mut conn)
        })?;
        Ok(rows.into_iter().next().flatten())
    }

    async fn read_params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let rows =
            ask_again!(self, "read what was given", |conn| {
                sql::ParamsAndContext { scope: scope.as_str(), key: key.as_str(), request_id }
                    .load::<(Vec<u8>, Option<Vec<u8>>)>(&mut conn)
            })?;
        Ok(rows.into_iter().next())
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let rows = ask_again!(self, "count the keys", |conn| {
            sql::CountKeys {
                scope: scope.as_str(),
                most: i64::from(cap) + MAX_EXPIRED,
                cap: cap.into(),
            }
            .load::<i64>(&mut conn)
        })?;
        Ok(count(rows))
    }
}
