//! What crash tests need of [`Mysql`], and for other tests: a store without blocks, its URL, other migrations than its own.

mod standby;

use diesel_async::RunQueryDsl;

use super::ask::await_answer;
use super::opener::SessionOpener;
use super::pool::ConnectionGuard;
use super::transaction::{MysqlTransaction, Positions, Script};
use super::{MIGRATION_TERMS, Mysql, MysqlConn, parsed};
use crate::key::{IdempotencyKey, Scope};
use crate::store::fault::migrated_from;
use crate::store::in_millis::fault::PassTime;
use crate::store::{Commit, PoolSettings, StoreError, StoreUnderFaults, TransactionUnderFaults};

impl StoreUnderFaults for Mysql {
    const CONCURRENT: bool = true;

    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        let passed = self.on_another(|| async {
            let mut connection = ConnectionGuard::of(&self.pool).await?;
            let conn: &mut MysqlConn = &mut connection;
            let (scope, key) = (scope.as_str().to_owned(), key.as_str().to_owned());
            await_answer("pass time", PassTime { scope, key }.execute(conn)).await
        });
        match passed.await {
            // An update finds a row that is not committed yet, and is not to wait for its transaction.
            Ok(_) | Err(StoreError::Locked) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn replicate(&self) -> Result<(), StoreError> {
        self.copy_tables().await
    }

    async fn fail_over(&self) -> Result<(), StoreError> {
        self.bring_tables_back().await
    }
}

impl TransactionUnderFaults for MysqlTransaction {
    async fn cut(&mut self) {
        let _ = self.connection.texts("KILL CONNECTION_ID()").await;
    }

    async fn commit_unguarded(self) -> Commit {
        let mut script = Script::default();
        let commit = script.push_commit();
        self.finish(script, Positions::of_commit(commit)).await
    }
}

impl Mysql {
    /// The same without blocks, as on MySQL: for tests on MariaDB.
    #[doc(hidden)]
    pub async fn __connect_without_blocks(
        url: &str,
        settings: PoolSettings,
    ) -> Result<Self, StoreError> {
        let mut opener = SessionOpener::new(parsed(url)?);
        opener.blocks = &[];
        Self::by(opener, url, settings).await
    }

    /// What it was opened with, the password too: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn __url(&self) -> &str {
        &self.url
    }

    migrated_from!(diesel::mysql::Mysql);
}
