//! What the engine asks of PostgreSQL about one key, each once. The [`Store`](crate::store::Store) asks again where
//! a row was locked, or a connection of the pool was gone.

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::Error;
use diesel_async::RunQueryDsl;
use futures_util::FutureExt;
use futures_util::future::{OptionFuture, join_all, join3, join4};

use super::ask::{ask, ask_again, ask_for_many, ask_in_transaction, ask_within};
use super::commit_statements::{self, WriteWithNotice};
use super::connection::ConnectionGuard;
use super::ops_statements::EraseSeen;
use super::session::{self, KnownRow};
use super::time_limit::answered;
use super::transaction::{PgTransaction, both};
use super::twin::ROW_LOCK_WAIT;
use super::{Pool, PoolOrigin, Postgres, numbered, sql};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::number::to_u32;
use crate::store::patience::LOCKED_WAIT;
use crate::store::row::{KeySummaryRow, Row, millis};
use crate::store::{
    Change, Claim, Enrolled, Erase, ExpiredKey, Guard, HeldKey, Hold, NewRow, Reserved, Store,
    StoreError, Transaction,
};

impl<P: Pool> Postgres<P> {
    pub(super) async fn try_look(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Vec<KeySummaryRow>, StoreError> {
        let connection = ConnectionGuard::to_read(&self.pool).await?;
        let look = sql::Look { scope: scope.as_str(), key: key.as_str() };
        let answer = answered(look.load(&mut connection.shared()?)).await;
        connection.settle("read the key", answer).await
    }

    /// `BEGIN` and the transaction's settings, in one round trip. A transaction that keeps what it saw at
    /// its beginning also locks the key's row there: the heartbeat would change the row behind its back,
    /// and it could never commit. `None` where the row is not in the state that the guard says.
    pub(super) async fn try_begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<PgTransaction<P>>, StoreError> {
        let place = self.shares.for_a_phase(guard.scope).await?;
        let tx = PgTransaction::begin(&self.pool).await?.at(place);
        let conn = tx.connection.shared()?;
        let begin = sql::Begin(isolation).execute(&mut &*conn);
        if isolation == Isolation::ReadCommitted {
            let sent = match self.pool_origin {
                PoolOrigin::Engine => {
                    answered(both(begin, session::Know {}.load::<KnownRow>(&mut &*conn))).await
                }
                PoolOrigin::Application => {
                    answered(both(begin, session::KnowAndSay {}.load::<KnownRow>(&mut &*conn)))
                        .await
                }
            };
            let known = sent.and_then(|(begun, known)| begun.and(known));
            let (tx, known) = tx.unless_refused("begin a transaction", known).await?;
            return tx.known_by(known).await.map(Some);
        }
        let pin = sql::Pin::new(guard);
        let know = session::KnowAndSay {};
        let sent =
            join3(begin, pin.load::<(bool, bool)>(&mut &*conn), know.load::<KnownRow>(&mut &*conn));
        let pinned = answered(sent.map(Ok)).await;
        let pinned = pinned
            .and_then(|(begun, rows, known)| begun.and(rows).and_then(|rows| Ok((rows, known?))));
        let (tx, (mut rows, known)) = tx.unless_refused("lock the key", pinned).await?;
        match rows.pop() {
            Some((true, _)) => tx.known_by(known).await.map(Some),
            Some((false, stands)) => {
                tx.rollback().await;
                if stands { Err(StoreError::Locked) } else { Ok(None) }
            }
            None => Err(StoreError::database("lock the key", Error::NotFound)),
        }
    }

    /// `BEGIN` and the row, in one round trip. Each travels as a prepared statement, polled, and so sent,
    /// in this order: a `COMMIT` or `BEGIN` by `batch_execute` would overtake the others. In between what an
    /// application's session has to be told, and what makes room for a key that is used again.
    pub(super) async fn try_reserve(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<PgTransaction<P>>, StoreError> {
        let place = self.shares.for_a_phase(row.scope).await?;
        let tx = PgTransaction::begin(&self.pool).await?.at(place);
        let conn = tx.connection.shared()?;
        let settings = match row.replaces {
            Some(_) => Some(session::Settings::new(Some(ROW_LOCK_WAIT))),
            None => self.pool_origin.is_application().then(|| session::Settings::new(None)),
        };
        let make_room = row.replaces.map(|request_id| {
            sql::DeleteExpired { scope: row.scope.as_str(), key: row.key.as_str(), request_id }
                .execute(&mut &*conn)
        });
        let reserve = commit_statements::Reserve { row: commit_statements::BornRow::at_start(row) };
        let sent = join4(
            sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
            OptionFuture::from(settings.map(|settings| settings.execute(&mut &*conn))),
            OptionFuture::from(make_room),
            numbered::load::<_, (KnownRow, DateTime<Utc>, DateTime<Utc>)>(conn, &reserve),
        );
        let inserted = answered(async {
            let (begun, set, room, inserted) = sent.await;
            begun.and(set.unwrap_or(Ok(0))).and(room.unwrap_or(Ok(0)))?;
            inserted
        })
        .await;
        let (tx, rows) = tx.unless_refused("reserve the key", inserted).await?;
        let Some(((number, jobs, is_set_up), created_at, expires_at)) = rows.into_iter().next()
        else {
            return tx.undo_and_look(row).await.map(Reserved::Exists);
        };
        let known = (number, jobs, is_set_up || self.pool_origin.is_application());
        let tx = tx.known_by([known]).await?;
        Ok(Reserved::Fresh { tx, created_at, expires_at })
    }

    /// One guarded update, in a transaction that says its isolation level.
    pub(super) async fn take_over_once(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Vec<Row>, StoreError> {
        ask_in_transaction!(
            ConnectionGuard::of(&self.pool).await?.in_transaction()?,
            "take over the key",
            [sql::Begin(Isolation::ReadCommitted), session::Settings::new(None)],
            |conn| sql::TakeOver::new(claim, hold).load::<Row>(&mut conn)
        )
    }

    /// One guarded update.
    pub(super) async fn enrol_one(&self, held: &HeldKey) -> Result<Enrolled, StoreError> {
        let entered = ask_again!(self, "enter an abandoned key among the due ones", |conn| {
            sql::Enrol::new(held).execute(&mut conn)
        })?;
        if entered == 1 {
            return Ok(Enrolled::Entered);
        }
        let left = ask_again!(self, "read the key", |conn| {
            sql::StillHeld::new(held).load::<i64>(&mut conn)
        })?;
        Ok(Enrolled::unless_entered(left.into_iter().next()))
    }

    /// The same of many, by one statement.
    pub(super) async fn enrol_many(&self, held: &[HeldKey]) -> Result<Vec<Enrolled>, StoreError> {
        let told = ask_for_many!(self, "enter abandoned keys among the due ones", |conn| {
            sql::EnrolMany::new(held).load::<(i64, Option<i64>)>(&mut conn)
        })?;
        let mut all = vec![Enrolled::Gone; held.len()];
        for (number, left) in told {
            let nth = usize::try_from(number - 1).unwrap_or(usize::MAX);
            if let Some(one) = all.get_mut(nth) {
                *one = left.map_or(Enrolled::Entered, |left| Enrolled::unless_entered(Some(left)));
            }
        }
        Ok(all)
    }

    /// One guarded update. `false` where the row is not as the guard says.
    pub(super) async fn try_write(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Result<bool, StoreError> {
        let write = commit_statements::Write::new(guard, change);
        let written = match notice {
            None => self.write_once(write).await?,
            Some(job) => self.write_once(WriteWithNotice::new(write, guard, job)).await?,
        };
        if written == 1 {
            return Ok(true);
        }
        let stands = ask_again!(self, "read the key", |conn| {
            sql::StandsGuarded { guarded: sql::Guarded::new(guard) }.load::<bool>(&mut conn)
        })?;
        if stands == [true] { Err(StoreError::Locked) } else { Ok(false) }
    }

    /// One settled row. What is locked beside it is waited for, a second at most.
    pub(super) async fn try_erase(&self, erase: &Erase<'_>) -> Result<Vec<i64>, StoreError> {
        let key = erase.key;
        let (scope_text, key_text) = (erase.scope.as_str(), key.as_str());
        let not_locked = sql::NotLocked::new(erase.scope, key);
        let retention_ms = millis(erase.retention);
        let rows = match &erase.act {
            None => {
                let (scope, key) = (scope_text, key_text);
                let erase = sql::EraseKey { retention_ms, scope, key, not_locked };
                ask_within!(LOCKED_WAIT, self, "erase a key", |conn| erase.load::<i64>(&mut conn))?
            }
            Some(act) => {
                let erase = EraseSeen::new(retention_ms, (scope_text, key_text), act, not_locked);
                ask_within!(LOCKED_WAIT, self, "erase a key", |conn| erase.load::<i64>(&mut conn))?
            }
        };
        if rows.iter().any(|erased| *erased > 0) {
            return Ok(rows);
        }
        let seen_has_moved = match &erase.act {
            None => false,
            Some(act) => {
                self.read_key(erase.scope, key).await?.is_none_or(|row| !act.seen.is(&row))
            }
        };
        if seen_has_moved {
            return Ok(rows);
        }
        let stands = ask_again!(self, "read the key", |conn| {
            sql::StandsSettled { scope: scope_text, key: key_text }.load::<bool>(&mut conn)
        })?;
        if stands == [true] { Err(StoreError::Locked) } else { Ok(rows) }
    }

    /// Deletes these rows, but for those that another transaction has locked: in one round trip.
    pub(super) async fn reap_page(&self, rows: &[ExpiredKey]) -> Result<u32, StoreError> {
        if rows.is_empty() {
            return Ok(0);
        }
        let connection = ConnectionGuard::of(&self.pool).await?.in_transaction()?;
        let conn = connection.shared()?;
        let deleting = rows.iter().map(|ExpiredKey { at, request_id }| {
            let reap = sql::Reap { scope: &at.scope, key: &at.key, request_id: *request_id };
            async move { reap.execute(&mut &*conn).await }
        });
        let answer = answered(async {
            let (begun, deleted, committed) = join3(
                sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
                join_all(deleting),
                sql::CommitTx {}.execute(&mut &*conn),
            )
            .await;
            begun?;
            let deleted = deleted.into_iter().sum::<Result<usize, Error>>()?;
            committed.map(|_| deleted)
        });
        let answer = answer.await;
        let deleted = connection.settle("reap expired keys", answer).await?;
        Ok(to_u32(deleted))
    }

    /// One guarded update. It commits by itself, but for a connection on which the application has left a
    /// transaction open: in its own pool that may be, and then only COMMIT commits it.
    pub(super) async fn write_once<Q>(&self, write: Q) -> Result<usize, StoreError>
    where
        Q: QueryFragment<Pg> + QueryId + Send,
    {
        if self.pool_origin == PoolOrigin::Engine {
            return ask!(self, "write the key", |conn| write.execute(&mut conn));
        }
        ask_in_transaction!(
            ConnectionGuard::of(&self.pool).await?.in_transaction()?,
            "write the key",
            [sql::Begin(Isolation::ReadCommitted)],
            |conn| write.execute(&mut conn)
        )
    }

    pub(super) async fn try_renew(
        &self,
        guard: &Guard<'_>,
        hold: Hold,
    ) -> Result<bool, StoreError> {
        let renewed = ask_again!(self, "renew the lease", |conn| {
            sql::Renew::new(guard, hold).execute(&mut conn)
        })?;
        if renewed == 1 {
            return Ok(true);
        }
        let stands = ask_again!(self, "read the key", |conn| {
            sql::StandsHeld::new(guard).load::<bool>(&mut conn)
        })?;
        if stands == [true] { Err(StoreError::Locked) } else { Ok(false) }
    }

    pub(super) async fn try_take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<Row>, StoreError> {
        if let Some(row) = self.take_over_once(claim, hold).await?.into_iter().next() {
            return Ok(Some(row));
        }
        if self.stands_free(claim).await? { Err(StoreError::Locked) } else { Ok(None) }
    }

    /// Whether the row still is what a takeover that wrote nothing is guarded by: then its lock was held.
    pub(super) async fn stands_free(&self, claim: &Claim<'_>) -> Result<bool, StoreError> {
        let stands = ask_again!(self, "read the key", |conn| {
            sql::StandsFree::new(claim).load::<bool>(&mut conn)
        })?;
        Ok(stands == [true])
    }
}
