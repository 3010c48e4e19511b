//! What the engine asks for: [`Store`] for [`Sqlite`].

use chrono::{DateTime, Utc};
use diesel::RunQueryDsl;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::Error;
use uuid::Uuid;

use super::ops_statements::InsertAudit;
use super::statement::{Statement, refusal, sharing, stage, writing};
use super::transaction::SqliteTransaction;
use super::{MIGRATION_TERMS, MIGRATIONS, Sqlite, SqliteConn, statements as sql};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::store::audit::AuditEntry;
use crate::store::in_millis::tuple_rows::BlockingRows;
use crate::store::migrations::migrated_by;
use crate::store::operators::OperatorStore;
use crate::store::row::{MAX_EXPIRED, count, key_row};
use crate::store::{
    Change, Claim, Commit, Guard, Hold, KeyRow, KeySummary, NewRow, ParamsAndContext, Reserved,
    RowTimes, Store, StoreError, Transaction, Writes,
};

impl Store for Sqlite {
    type Connection = SqliteConn;
    type Transaction = SqliteTransaction;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<diesel::sqlite::Sqlite> + QueryId + Send + 'static,
    {
        Statement::of(query)
    }

    migrated_by!(unapplied_migrations);

    async fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let look = sql::Look::at(scope, key);
        let rows = match self.reader.look(&look) {
            Some(rows) => rows,
            None => self.run("read the key", |conn| look.rows(conn)).await?,
        };
        rows.into_iter().next().map(sql::key_summary).transpose()
    }

    async fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        let read = sql::Read::of(scope, key);
        let rows = self.run("read the key", |conn| read.rows::<sql::StoredRow>(conn)).await?;
        rows.into_iter().next().map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<SqliteTransaction>, StoreError> {
        let insert = sql::InsertNew { insert: sql::Insert::new(row) };
        let make_room = row.replaces.map(|request_id| sql::DeleteExpired::of(row, request_id));
        let look = sql::Look::at(row.scope, row.key);
        let (tx, (times, row)) = self
            .begin_with("reserve the key", |conn| {
                make_room.map(|delete| delete.execute(conn)).transpose()?;
                let times = insert.rows::<(i64, i64)>(conn)?.into_iter().next();
                // There is no other writer meanwhile, so there is a row.
                let row = match times {
                    Some(_) => None,
                    None => look.rows::<sql::StoredKeySummary>(conn)?.into_iter().next(),
                };
                Ok((times, row))
            })
            .await?;
        match times {
            Some((created_at, expires_at)) => Ok(Reserved::Fresh {
                tx,
                created_at: sql::time(created_at, "created_at")?,
                expires_at: sql::time(expires_at, "expires_at")?,
            }),
            None => {
                tx.rollback().await;
                Ok(Reserved::Exists(row.map(sql::key_summary).transpose()?))
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
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        let create = sql::CreateNew { create: sql::Create::new(row, created_at, change) };
        let make_room = row.replaces.map(|request_id| sql::DeleteExpired::of(row, request_id));
        let sharing = sharing(&writes);
        let write = writing(&row.guard(), writes);
        let times = self.in_one_transaction(sharing, move |conn| {
            make_room.as_ref().map(|delete| delete.execute(conn)).transpose()?;
            let Some(times) = (&create).rows::<(i64, i64)>(conn)?.into_iter().next() else {
                return Ok(None);
            };
            write(conn)?;
            Ok(Some(times))
        });
        match times.await {
            (Commit::Done(()), Some((written_at, expires_at))) => {
                match (sql::time(written_at, "advanced_at"), sql::time(expires_at, "expires_at")) {
                    (Ok(written_at), Ok(expires_at)) => {
                        Commit::Done(RowTimes { written_at, expires_at })
                    }
                    (Err(error), _) | (_, Err(error)) => Commit::Unknown(error),
                }
            }
            (Commit::Failed(error), _) => Commit::Failed(error),
            (Commit::Unknown(error), _) => Commit::Unknown(error),
            _ => Commit::Fenced,
        }
    }

    async fn advance_key(
        &self,
        _: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        let advance = sql::Write::new(guard, change);
        let sharing = sharing(&writes);
        let write = writing(guard, writes);
        let advanced = self.in_one_transaction(sharing, move |conn| {
            if (&advance).execute(conn)? != 1 {
                return Ok(None);
            }
            write(conn)?;
            Ok(Some(()))
        });
        advanced.await.0
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = self.run("tell the time", |conn| sql::Now {}.rows::<i64>(conn)).await?;
        sql::time(rows.into_iter().next().unwrap_or(-1), "now")
    }

    async fn begin_transaction(
        &self,
        _: Isolation,
        _: &Guard<'_>,
    ) -> Result<Option<SqliteTransaction>, StoreError> {
        let (tx, ()) = self.begin_with("begin a transaction", |_| Ok(())).await?;
        Ok(Some(tx))
    }

    async fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        let take_over = sql::TakeOverReturning { take_over: sql::TakeOver::new(claim, hold) };
        let rows =
            self.run("take over the key", |conn| take_over.rows::<sql::StoredRow>(conn)).await?;
        rows.into_iter().next().map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn write_change(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Commit {
        let write = sql::Write::new(guard, change);
        let notice = notice.map(|job| sql::InsertJob::new(guard, job));
        let written = self.run("write the key", |conn| match notice {
            None => write.execute(conn),
            Some(notice) => conn.immediate_transaction(|conn| match write.execute(conn)? {
                0 => Ok(0),
                _ => stage(conn, &notice).map(|()| 1),
            }),
        });
        match written.await {
            Ok(0) => Commit::Fenced,
            Ok(_) => Commit::Done(()),
            Err(error) => Commit::Failed(error),
        }
    }

    async fn settle_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        let take_over = sql::TakeOverReturning { take_over: sql::TakeOver::new(claim, hold) };
        let write = sql::Write::new(&claim.behind(), change);
        let audit = audit.map(InsertAudit::of);
        let settled = self.run("settle the key", |conn| {
            conn.immediate_transaction(|conn| {
                if take_over.rows::<sql::StoredRow>(conn)?.is_empty() {
                    return Ok(false);
                }
                if write.execute(conn)? != 1 {
                    return Err(Error::RollbackTransaction);
                }
                audit.map(|audit| audit.execute(conn)).transpose().map(|_| true)
            })
        });
        match settled.await {
            Ok(true) => Commit::Done(()),
            Ok(false) => Commit::Fenced,
            Err(error) => Commit::Failed(error),
        }
    }

    async fn renew_lease(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        let renew = sql::Renew::new(guard, hold);
        Ok(self.run("renew the lease", |conn| renew.execute(conn)).await? == 1)
    }

    async fn read_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let read = sql::Outputs { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() };
        let rows = self.run("read the outputs", |conn| read.rows::<Option<Vec<u8>>>(conn)).await?;
        Ok(rows.into_iter().next().flatten())
    }

    async fn read_params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let read = sql::ParamsAndContext {
            scope: scope.as_str().to_owned(),
            key: key.as_str().to_owned(),
            request_id: request_id.as_bytes().to_vec(),
        };
        let rows = self
            .run("read what was given", |conn| read.rows::<(Vec<u8>, Option<Vec<u8>>)>(conn))
            .await?;
        Ok(rows.into_iter().next())
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let counting = sql::CountKeys {
            scope: scope.as_str().to_owned(),
            most: i64::from(cap) + MAX_EXPIRED,
            cap: cap.into(),
        };
        Ok(count(self.run("count the keys", |conn| counting.rows::<i64>(conn)).await?))
    }
}
