//! One attempt of each statement: it waits for a lock for a moment only, and [`Memory`] repeats it.

use futures_util::FutureExt;

use super::Memory;
use super::connection::MemoryConnection;
use super::error::{MARK_EXISTS, is_lock_timeout, message_of};
use super::jobs::staged;
use super::next_state::{Birth, Guarded, NextState, TakeOver};
use super::open_transaction::MemoryTransaction;
use super::record::AuditRecord;
use super::round_trips::{HandedOver, create, read_key, settle_key, take_over, write};
use super::statements::Pinned;
use crate::definition::Isolation;
use crate::error::is_lost;
use crate::job::StagedJob;
use crate::store::audit::AuditEntry;
use crate::store::row::{key_row, key_summary};
use crate::store::{
    Change, Claim, Commit, Guard, Hold, KeyRow, NewRow, Reserved, RowTimes, StoreError, Transaction,
};

impl Memory {
    pub(super) async fn try_reserve(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<MemoryTransaction>, StoreError> {
        let connection = self.pool.get().await?;
        let birth = Birth::of(row);
        let reserved =
            connection.ask("reserve the key", |session| session.reserve(birth).boxed()).await;
        let tx = MemoryTransaction(MemoryConnection(connection));
        match reserved {
            Ok(Ok(row)) => Ok(Reserved::Fresh {
                tx,
                created_at: row.created_at.0,
                expires_at: row.expires_at.0,
            }),
            Ok(Err(taken)) => {
                tx.rollback().await;
                let seen = taken.map(|(row, now)| key_summary(row.key_summary(now))).transpose()?;
                Ok(Reserved::Exists(seen))
            }
            Err(error) if is_lock_timeout(&error) => {
                tx.rollback().await;
                Ok(Reserved::Busy)
            }
            Err(error) => Err(StoreError::database("reserve the key", error)),
        }
    }

    /// A transaction that keeps what it saw at its beginning locks the key's row there.
    pub(super) async fn try_begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MemoryTransaction>, StoreError> {
        let connection = self.pool.get().await?;
        let guarded = Guarded::by(guard);
        let begun = connection.ask("begin", move |session| {
            async move {
                session.begin(isolation)?;
                match isolation {
                    Isolation::ReadCommitted => Ok(Pinned::Locked),
                    _ => session.pin(&guarded),
                }
            }
            .boxed()
        });
        let pinned =
            begun.await.map_err(|error| StoreError::database("begin a transaction", error));
        let tx = MemoryTransaction(MemoryConnection(connection));
        match pinned? {
            Pinned::Locked => Ok(Some(tx)),
            Pinned::OfAnother => {
                tx.rollback().await;
                Err(StoreError::Locked)
            }
            Pinned::Gone => {
                tx.rollback().await;
                Ok(None)
            }
        }
    }

    pub(super) async fn try_create(
        &self,
        birth: Birth,
        written: HandedOver,
    ) -> Result<Commit<RowTimes>, StoreError> {
        let connection = self.pool.get().await?;
        let answer =
            connection.ask("create", |session| create(session, birth, written).boxed()).await;
        let failed = |error| StoreError::database("create the key", error);
        Ok(match answer {
            Ok(row) => {
                connection.give_back();
                Commit::Done(RowTimes {
                    written_at: row.advanced_at.0,
                    expires_at: row.expires_at.0,
                })
            }
            Err(error) if is_lost(&error) => Commit::Unknown(failed(error)),
            Err(error) => {
                connection.give_back();
                if message_of(&error).contains(MARK_EXISTS) {
                    Commit::Fenced
                } else if is_lock_timeout(&error) {
                    Commit::Failed(StoreError::Locked)
                } else {
                    Commit::Failed(failed(error))
                }
            }
        })
    }

    pub(super) async fn try_take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        let take = TakeOver::new(claim, hold);
        let taken =
            self.ask("take over the key", |session| take_over(session, take).boxed()).await?;
        if let Some((row, now)) = taken {
            return key_row(row.row(now)).map(Some);
        }
        match self.stands_free(claim, hold).await? {
            true => Err(StoreError::Locked),
            false => Ok(None),
        }
    }

    pub(super) async fn try_write(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Result<bool, StoreError> {
        let (guarded, next) = (Guarded::by(guard), NextState::of(change));
        let notice = notice.map(|job| staged(guard, job));
        let write =
            self.ask("write the key", move |session| write(session, guarded, next, notice).boxed());
        if write.await? {
            return Ok(true);
        }
        let guarded = Guarded::by(guard);
        let place = guarded.place.clone();
        let seen =
            self.ask_again("read the key", |session| read_key(session, place).boxed()).await?;
        match seen.is_some_and(|(row, _)| guarded.matches(&row)) {
            true => Err(StoreError::Locked),
            false => Ok(false),
        }
    }

    pub(super) async fn try_settle(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Result<bool, StoreError> {
        let take = TakeOver::new(claim, hold);
        let (guarded, next) = (Guarded::by(&claim.behind()), NextState::of(change));
        let audit = audit.map(AuditRecord::of);
        let settled = self.ask("settle the key", move |session| {
            settle_key(session, take, guarded, next, audit).boxed()
        });
        if settled.await? {
            return Ok(true);
        }
        match self.stands_free(claim, hold).await? {
            true => Err(StoreError::Locked),
            false => Ok(false),
        }
    }

    /// Whether the row still is what a takeover that wrote nothing is guarded by: then its lock was held.
    async fn stands_free(&self, claim: &Claim<'_>, hold: Hold) -> Result<bool, StoreError> {
        let take = TakeOver::new(claim, hold);
        let place = take.place.clone();
        let seen =
            self.ask_again("read the key", |session| read_key(session, place).boxed()).await?;
        Ok(seen.is_some_and(|(row, now)| take.matches(&row, now)))
    }

    pub(super) async fn try_renew(
        &self,
        guard: &Guard<'_>,
        hold: Hold,
    ) -> Result<bool, StoreError> {
        let guarded = Guarded::by(guard);
        let renewed = self.ask_again("renew the lease", move |session| {
            async move {
                session.begin(Isolation::ReadCommitted)?;
                let renewed = session.renew(&guarded, hold).await;
                session.conclude(renewed).await
            }
            .boxed()
        });
        if renewed.await? {
            return Ok(true);
        }
        let guarded = Guarded::by(guard);
        let place = guarded.place.clone();
        let seen =
            self.ask_again("read the key", |session| read_key(session, place).boxed()).await?;
        match seen.is_some_and(|(row, _)| guarded.holds(&row)) {
            true => Err(StoreError::Locked),
            false => Ok(false),
        }
    }
}
