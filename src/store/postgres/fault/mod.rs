//! What crash tests need of [`Postgres`], and other migrations than its own, for tests.

mod standby;

use diesel::pg::Pg;
use diesel::sql_types::{self, Bool};
use diesel_async::RunQueryDsl;

use self::standby::{BringTablesBack, CopyTables};
use super::ask::ask_again;
use super::statements::CommitTx;
use super::time_limit::answered;
use super::transaction::PgTransaction;
use super::{MIGRATION_TERMS, Pool, Postgres};
use crate::key::{IdempotencyKey, Scope};
use crate::store::fault::migrated_from;
use crate::store::statement::statement;
use crate::store::{Commit, StoreError, StoreUnderFaults, TransactionUnderFaults};

statement! {
    /// The row's lease and its back-off are over.
    PassTime<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str },
    "UPDATE atomic_phases_keys SET \
     locked_until = CASE WHEN locked_until IS NOT NULL THEN created_at END, \
     run_after = CASE WHEN run_after IS NOT NULL THEN created_at END \
     WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The end of this connection, by the server's hand.
    Terminate for Pg, rows Bool, {}, "SELECT pg_terminate_backend(pg_backend_pid())"
}

impl<P: Pool> StoreUnderFaults for Postgres<P> {
    const CONCURRENT: bool = true;

    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        ask_again!(self, "pass time", |conn| {
            PassTime { scope: scope.as_str(), key: key.as_str() }.execute(&mut conn)
        })?;
        Ok(())
    }

    async fn replicate(&self) -> Result<(), StoreError> {
        ask_again!(self, "copy all tables", |conn| CopyTables {}.execute(&mut conn))?;
        Ok(())
    }

    async fn fail_over(&self) -> Result<(), StoreError> {
        ask_again!(self, "bring all tables back", |conn| {
            BringTablesBack {}.execute(&mut conn)
        })?;
        Ok(())
    }
}

impl<P: Pool> TransactionUnderFaults for PgTransaction<P> {
    async fn cut(&mut self) {
        if let Ok(conn) = self.connection.shared() {
            let _ = Terminate {}.load::<bool>(&mut &*conn).await;
        }
    }

    async fn commit_unguarded(self) -> Commit {
        let sent = match self.connection.shared() {
            Ok(conn) => answered(CommitTx {}.execute(&mut &*conn)).await,
            Err(error) => return Commit::Failed(error),
        };
        self.committed(sent.map(drop))
    }
}

impl<P: Pool> Postgres<P> {
    migrated_from!(Pg);
}
