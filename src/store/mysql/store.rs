//! What the engine asks for: [`Store`] for [`Mysql`]. A statement by itself commits by itself.

use std::time::Instant;

use chrono::{DateTime, Utc};
use diesel::mysql::Mysql as Db;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel_async::RunQueryDsl;
use uuid::Uuid;

use super::another::PAUSE_OF_A_RERUN;
use super::ask::{ask_again, bound};
use super::batch::{Created, refusal, row_times};
use super::block::Block;
use super::error::is_of_too_many_statements;
use super::literal::BoundStatement;
use super::ops_statements::InsertAudit;
use super::pool::Checkout;
use super::transaction::{MysqlTransaction, in_one_go};
use super::tuple_rows::RowsAwaited;
use super::waits::patiently;
use super::{MIGRATION_TERMS, MIGRATIONS, Mysql, MysqlConn, Statement, statements as sql};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::store::audit::AuditEntry;
use crate::store::migrations::migrated_by;
use crate::store::operators::OperatorStore;
use crate::store::row::{MAX_EXPIRED, count, key_row};
use crate::store::{
    Change, Claim, Commit, Guard, Hold, KeyRow, KeySummary, NewRow, ParamsAndContext, Reserved,
    RowTimes, Store, StoreError, TransactionId, Writes,
};

impl Store for Mysql {
    type Connection = MysqlConn;
    type Transaction = MysqlTransaction;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<Db> + QueryId + Send + 'static,
    {
        Statement::of(&query)
    }

    migrated_by!(unapplied_migrations);

    async fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let rows = ask_again!(self, "read the key", |conn| async {
            conn.rows_of(BoundStatement::of(&sql::Look::at(scope, key))?).await
        })?;
        let row = rows.into_iter().next();
        row.map(|row| sql::key_summary(sql::taken_apart(row)?)).transpose()
    }

    async fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        let rows = ask_again!(self, "read the key", |conn| {
            sql::Read::of(scope, key).rows::<sql::StoredRow>(conn)
        })?;
        rows.into_iter().next().map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<MysqlTransaction>, StoreError> {
        let until = Instant::now() + row.creation_wait;
        let Some(turn) = self.turn(row, until).await else { return Ok(Reserved::Busy) };
        let insert = || BoundStatement::of(&sql::Insert::new(row));
        match self.create_when_free(row, until, insert).await? {
            Created::Yes { mut tx, at } => {
                tx.turn = Some(turn);
                let RowTimes { written_at, expires_at } = row_times(row, at)?;
                Ok(Reserved::Fresh { tx, created_at: written_at, expires_at })
            }
            Created::Exists => Ok(Reserved::Exists(self.look_up_key(row.scope, row.key).await?)),
            Created::Busy => Ok(Reserved::Busy),
        }
    }

    async fn create_key(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        let until = Instant::now() + row.creation_wait;
        let Some(_turn) = self.turn(row, until).await else {
            return Commit::Failed(StoreError::Locked);
        };
        let insert = || BoundStatement::of(&sql::Create::new(row, created_at, change));
        match Block::takes(&self.session, &writes.statements.all, writes.jobs) {
            true => self.create_as_block(row, until, insert, writes).await,
            false => self.try_create(row, until, insert, writes).await,
        }
    }

    async fn advance_key(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        // In any other level the row is locked in front of the phase.
        let is_block = isolation == Isolation::ReadCommitted
            && Block::takes(&self.session, &writes.statements.all, writes.jobs);
        match is_block {
            true => self.advance_as_block(guard, change, writes).await,
            false => self.try_advance(isolation, guard, change, writes).await,
        }
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = ask_again!(self, "tell the time", |conn| sql::Now {}.rows::<i64>(conn))?;
        sql::time(rows.into_iter().next().unwrap_or(i64::MAX), "now")
    }

    async fn recover_from(&self, error: &StoreError) {
        if error.is_of_the_connection() {
            self.forget_idle();
        }
        if is_of_too_many_statements(error) {
            tokio::time::sleep(PAUSE_OF_A_RERUN).await;
        }
    }

    async fn begin_transaction(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MysqlTransaction>, StoreError> {
        self.begin_guarded(isolation, guard).await
    }

    async fn is_transaction_open(&self, transaction: &TransactionId) -> Result<bool, StoreError> {
        self.on_another(|| self.has_session(transaction)).await
    }

    async fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        let taken = patiently(|| self.on_another(|| self.try_take_over(claim, hold)));
        taken.await?.map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn write_change(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Commit {
        self.until_written(|| async {
            match notice {
                None => self.write_once(guard, change).await,
                Some(notice) => self.write_with_notice(guard, change, notice).await,
            }
        })
        .await
    }

    async fn settle_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        const DOING: &str = "settle the key";
        let bounds = || {
            let take_over = bound(DOING, &sql::TakeOver::new(claim, hold))?;
            let mut then = vec![bound(DOING, &sql::Write::new(&claim.behind(), change))?];
            if let Some(entry) = audit {
                then.push(bound(DOING, &InsertAudit::of(entry))?);
            }
            Ok::<_, StoreError>((take_over, then))
        };
        self.until_written(|| async {
            match bounds() {
                // Mostly an operator's, who may be the first behind a quiet night.
                Ok((take_over, then)) => {
                    in_one_go(&self.pool, Checkout::Pinged, vec![take_over], then).await
                }
                Err(error) => Commit::Failed(error),
            }
        })
        .await
    }

    async fn renew_lease(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        let renewed = ask_again!(self, "renew the lease", |conn| {
            sql::Renew::new(guard, hold).execute(conn)
        })?;
        Ok(renewed == 1)
    }

    async fn read_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let rows = ask_again!(self, "read the outputs", |conn| {
            sql::Outputs { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
                .rows::<Option<Vec<u8>>>(conn)
        })?;
        Ok(rows.into_iter().next().flatten())
    }

    async fn read_params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let rows = ask_again!(self, "read what was given", |conn| {
            sql::ParamsAndContext {
                scope: scope.as_str().to_owned(),
                key: key.as_str().to_owned(),
                request_id: request_id.as_bytes().to_vec(),
            }
            .rows::<(Vec<u8>, Option<Vec<u8>>)>(conn)
        })?;
        Ok(rows.into_iter().next())
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let rows = ask_again!(self, "count the keys", |conn| {
            sql::CountKeys {
                scope: scope.as_str().to_owned(),
                most: i64::from(cap) + MAX_EXPIRED,
                cap: cap.into(),
            }
            .rows::<i64>(conn)
        })?;
        Ok(count(rows))
    }
}
