//! What is done about one key: one try of each step, and how the steps that write are repeated behind a lock.

use diesel::result::Error;
use diesel_async::RunQueryDsl;
use tokio::time::timeout;

use super::ask::{await_answer, bound, read_back};
use super::error::{Failure, failure_of};
use super::pool::{Checkout, ConnectionGuard};
use super::server::Server;
use super::transaction::{MysqlTransaction, in_one_go};
use super::tuple_rows::RowsAwaited;
use super::waits::{LOCKED_WAIT, patiently};
use super::{ANSWER_WITHIN, Mysql, MysqlConn, statements as sql};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::store::patience::Patience;
use crate::store::{Change, Claim, Commit, Guard, Hold, StoreError, TransactionId};

impl Mysql {
    /// Begins a transaction of a phase. One that keeps what it saw at its beginning locks the row there.
    pub(super) async fn begin_guarded(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MysqlTransaction>, StoreError> {
        patiently(|| self.on_another(|| self.try_begin(isolation, guard))).await
    }

    async fn try_begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MysqlTransaction>, StoreError> {
        const DOING: &str = "begin a transaction";
        let pins = isolation != Isolation::ReadCommitted;
        let pin = pins.then(|| bound(DOING, &sql::Pin::new(guard))).transpose()?;
        let place = self.shares.for_a_phase(guard.scope).await?;
        let mut tx = MysqlTransaction::on(&self.pool).await?;
        let pinned = match tx.open(isolation, pin).await {
            Ok(rows) => rows,
            Err(failure) => {
                tx.undo().await;
                return Err(match failure.is_of_a_lock() {
                    true => StoreError::Locked,
                    false => StoreError::database(DOING, failure),
                });
            }
        };
        if pins && pinned.is_empty() {
            tx.undo().await;
            return Ok(None);
        }
        tx.place = Some(place);
        Ok(Some(tx))
    }

    /// Whether a transaction's session is there. A connection that leads to another server cannot tell.
    pub(super) async fn has_session(
        &self,
        transaction: &TransactionId,
    ) -> Result<bool, StoreError> {
        const DOING: &str = "search for a transaction";
        let unknown = || StoreError::database(DOING, Error::NotFound);
        let (number, server) = transaction.0.split_once(' ').ok_or_else(unknown)?;
        let (number, server) =
            (number.parse::<i64>().map_err(|_| unknown())?, Server::named(server));
        let mut connection = ConnectionGuard::of(&self.pool).await?;
        match connection.server() {
            Some(here) if *here == server => {}
            Some(here) if here.is_restarted(&server) => return Ok(false),
            _ => return Err(unknown()),
        }
        let conn: &mut MysqlConn = &mut connection;
        let told = sql::Sessions { number }.rows::<(i64, i64)>(conn);
        match await_answer(DOING, told).await?.as_slice().first() {
            Some((sessions, 1)) => Ok(*sessions > 0),
            _ => Err(unknown()),
        }
    }

    /// The guarded update of a takeover, and the row that it has left. If the update was executed and its answer lost, a
    /// second try finds the token one higher and returns `None`, as if another process had been faster. That is left so:
    /// nothing in the row tells this process's takeover from another's, and the key is free again after a lease.
    pub(super) async fn try_take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<sql::StoredRow>, StoreError> {
        const DOING: &str = "take over the key";
        let mut connection = ConnectionGuard::of(&self.pool).await?;
        let conn: &mut MysqlConn = &mut connection;
        if await_answer(DOING, sql::TakeOver::new(claim, hold).execute(conn)).await? != 1 {
            return Ok(None);
        }
        let read = || sql::Read::of(claim.scope, claim.key);
        let rows = read_back!(DOING, read().rows::<sql::StoredRow>(conn))?;
        // A holder that took it over since then has a higher token.
        let is_ours = |row: &sql::StoredRow| {
            row.0.0 == claim.request_id.as_bytes() && row.1.3 == claim.lease_token + 1
        };
        Ok(rows.into_iter().find(is_ours))
    }

    pub(super) async fn write_once(&self, guard: &Guard<'_>, change: &Change<'_>) -> Commit {
        const DOING: &str = "write the key";
        let write = sql::Write::new(guard, change);
        let mut connection = match ConnectionGuard::of(&self.pool).await {
            Ok(connection) => connection,
            Err(error) => return Commit::Failed(error),
        };
        let conn: &mut MysqlConn = &mut connection;
        match timeout(ANSWER_WITHIN, write.execute(conn)).await {
            Ok(Ok(1)) => Commit::Done(()),
            Ok(Ok(_)) => Commit::Fenced,
            Err(_) => Commit::Unknown(StoreError::database(DOING, Failure::Unanswered)),
            Ok(Err(error)) => match failure_of(&error) {
                Some(failure) if failure.is_of_a_lock() => Commit::Failed(StoreError::Locked),
                Some(failure) if !failure.is_certain_of_a_statement() => {
                    Commit::Unknown(StoreError::database(DOING, error))
                }
                _ => Commit::Failed(StoreError::database(DOING, error)),
            },
        }
    }

    /// Writes until no other transaction has the row locked any more, for [`LOCKED_WAIT`] at most. Idle connections are
    /// closed behind a failure, where others may do better.
    pub(super) async fn until_written<F>(&self, write: impl Fn() -> F) -> Commit
    where
        F: Future<Output = Commit>,
    {
        let mut patience = Patience::new(LOCKED_WAIT);
        loop {
            match write().await {
                Commit::Failed(StoreError::Locked) if patience.pause().await => {}
                written => {
                    if let Commit::Failed(error) | Commit::Unknown(error) = &written {
                        self.leave_behind(error);
                    }
                    return written;
                }
            }
        }
    }

    pub(super) async fn write_with_notice(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: &StagedJob,
    ) -> Commit {
        const DOING: &str = "write the key";
        let bounds = || {
            let write = bound(DOING, &sql::Write::new(guard, change))?;
            Ok::<_, StoreError>((write, bound(DOING, &sql::InsertJob::new(guard, notice))?))
        };
        match bounds() {
            Ok((write, notice)) => {
                in_one_go(&self.pool, Checkout::AsItIs, vec![write], vec![notice]).await
            }
            Err(error) => Commit::Failed(error),
        }
    }
}
