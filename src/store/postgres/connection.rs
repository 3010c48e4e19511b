//! [`ConnectionGuard`]: a pooled connection that is closed unless it is given back.
//!
//! deadpool looks at a connection when it is next taken out, not when it comes back: a dropped future would leave its
//! transaction, and the lock on the key's row, in the pool for as long as no task takes that connection (H1). Here a task that
//! is done gives its connection back. A guard that is dropped earlier closes the connection, and the server rolls back
//! immediately.

use std::time::Instant;

use diesel::result::Error;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, TransactionManager,
};

use super::pool::WritablePool;
use super::statements as sql;
use super::{Pool, answered};
use crate::error::{has_no_kind, is_lost, is_of_a_stale_session, is_of_reading_only};
use crate::observe;
use crate::store::{StoreError, is_nested};

pub(super) struct ConnectionGuard<P: Pool> {
    /// Boxed, because a pool's own is half a kilobyte, and this is handed from one part of a request to the next.
    pooled: Option<Box<PooledConnection<P>>>,
    /// Whether a drop leaves something behind that has to be undone.
    close: bool,
}

/// A connection, where it is from, and since when it is out.
struct PooledConnection<P: Pool> {
    handle: P::Handle,
    pool: WritablePool<P>,
    since: Instant,
}

impl<P: Pool> ConnectionGuard<P> {
    pub(super) async fn of(pool: &WritablePool<P>) -> Result<Self, StoreError> {
        let began = Instant::now();
        let handle = pool.get().await;
        observe::connected(began);
        let pooled =
            PooledConnection { handle: handle?, pool: pool.clone(), since: Instant::now() };
        Ok(Self { pooled: Some(Box::new(pooled)), close: true })
    }

    /// For one statement that only reads. Dropped in the middle of it, the connection is as good as
    /// before: clients that hang up cost no connections.
    pub(super) async fn to_read(pool: &WritablePool<P>) -> Result<Self, StoreError> {
        let mut guard = Self::of(pool).await?;
        guard.close = false;
        Ok(guard)
    }

    /// Tells diesel that a transaction is open, before `BEGIN` is sent: from here on a user's nested
    /// `transaction()` is a savepoint and not a `BEGIN` whose `COMMIT` would end ours, and any pool
    /// knows the connection for one that must not be used again.
    pub(super) fn in_transaction(mut self) -> Result<Self, StoreError> {
        use diesel::connection::TransactionDepthChange::IncreaseDepth;
        let status = AnsiTransactionManager::transaction_manager_status_mut(self.exclusive()?);
        status
            .transaction_state()
            .and_then(|state| state.change_transaction_depth(IncreaseDepth))
            .map_err(|error| StoreError::database("begin a transaction", error))?;
        Ok(self)
    }

    /// Whether a nested transaction was left half-way.
    pub(super) fn is_nested(&mut self) -> Result<bool, StoreError> {
        let status = AnsiTransactionManager::transaction_manager_status_mut(self.exclusive()?);
        Ok(is_nested(status))
    }

    pub(super) fn shared(&self) -> Result<&AsyncPgConnection, StoreError> {
        self.pooled.as_deref().map(|pooled| &*pooled.handle).ok_or_else(gone)
    }

    pub(super) fn exclusive(&mut self) -> Result<&mut AsyncPgConnection, StoreError> {
        self.pooled.as_deref_mut().map(|pooled| &mut *pooled.handle).ok_or_else(gone)
    }

    /// Returns the connection to its pool, unless its session was left since. No transaction is open on it any more.
    pub(super) fn give_back(mut self) {
        if let Some(pooled) = &mut self.pooled {
            let status =
                AnsiTransactionManager::transaction_manager_status_mut(&mut *pooled.handle);
            // A new one is an allocation, and most statements are sent without a transaction.
            if !matches!(status.transaction_depth(), Ok(None)) {
                *pooled.handle.transaction_state() = AnsiTransactionManager::default();
            }
            self.close = pooled.pool.was_left_since(pooled.since);
        }
    }

    /// Returns the connection after an error, if it is good for anything. No transaction is open on it
    /// any more. A server that refused a write, because it can only be read, is left.
    pub(super) fn give_back_after(mut self, error: &Error) {
        if is_of_reading_only(error)
            && let Some(pooled) = &self.pooled
        {
            pooled.pool.leave_read_only();
        }
        match is_lost(error) || is_of_a_stale_session(error) {
            true => self.close = true,
            false => self.give_back(),
        }
    }

    /// Returns the connection after an answer to a statement of its own, unless the answer is that
    /// the connection is gone. A server that ends a connection says so in its own language, as an error
    /// without a kind: whether that was it is told by whether another statement is answered.
    pub(super) async fn settle<T>(
        self,
        doing: &'static str,
        answer: Result<T, Error>,
    ) -> Result<T, StoreError> {
        let Err(error) = answer else {
            self.give_back();
            return answer.map_err(|error| StoreError::database(doing, error));
        };
        let ping = if has_no_kind(&error) { self.ping().await } else { Ok(()) };
        let error = ping.err().filter(is_lost).unwrap_or(error);
        self.give_back_after(&error);
        Err(StoreError::database(doing, error))
    }

    async fn ping(&self) -> Result<(), Error> {
        let pooled = self.pooled.as_deref().ok_or(Error::BrokenTransactionManager)?;
        let mut conn = &*pooled.handle;
        answered(sql::Ping {}.load::<i32>(&mut conn)).await.map(drop)
    }
}

impl<P: Pool> Drop for ConnectionGuard<P> {
    fn drop(&mut self) {
        if let Some(pooled) = self.pooled.take()
            && self.close
        {
            P::close(pooled.handle);
        }
    }
}

fn gone() -> StoreError {
    StoreError::database("use a connection that was given back", Error::BrokenTransactionManager)
}
