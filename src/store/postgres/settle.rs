//! A resolution of a row, in one transaction: the row is acquired and written, and no other session sees it held
//! in between.

use diesel::result::Error;
use diesel_async::RunQueryDsl;
use futures_util::future::join3;

use super::commit_statements::Write;
use super::ops_statements::{InsertAudit, WriteAudited};
use super::{ConnectionGuard, Pool, Postgres, answered, session, sql};
use crate::definition::Isolation;
use crate::store::audit::AuditEntry;
use crate::store::{Change, Claim, Hold, StoreError};

impl<P: Pool> Postgres<P> {
    /// A takeover and what is written under it, in one transaction: how many rows were taken over. The write
    /// follows once the takeover is known to have found the row: its guard alone would fit the row of a
    /// process that was faster.
    async fn settle_once(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Result<usize, StoreError> {
        let connection = ConnectionGuard::of(&self.pool).await?.in_transaction()?;
        let conn = connection.shared()?;
        let guard = claim.behind();
        let settling = async {
            let (begun, set, taken) = join3(
                sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
                session::Settings::new(None).execute(&mut &*conn),
                sql::TakeOver::new(claim, hold).execute(&mut &*conn),
            )
            .await;
            begun.and(set)?;
            if taken? == 0 {
                return Ok(0);
            }
            let write = Write::new(&guard, change);
            let written = match audit.map(InsertAudit::of) {
                Some(audit) => WriteAudited { write, audit }.execute(&mut &*conn).await?,
                None => write.execute(&mut &*conn).await?,
            };
            if written == 1 { Ok(1) } else { Err(Error::NotFound) }
        };
        let answer = answered(async {
            let settled: Result<usize, Error> = settling.await;
            let ended = match settled {
                Ok(_) => sql::CommitTx {}.execute(&mut &*conn).await,
                Err(_) => sql::Rollback {}.execute(&mut &*conn).await,
            };
            let settled = settled?;
            ended.map(|_| settled)
        });
        let answer = answer.await;
        connection.settle("settle the key", answer).await
    }

    pub(super) async fn try_settle(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Result<bool, StoreError> {
        if self.settle_once(claim, hold, change, audit).await? == 1 {
            return Ok(true);
        }
        if self.stands_free(claim).await? { Err(StoreError::Locked) } else { Ok(false) }
    }
}
