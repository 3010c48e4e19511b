//! What crash tests need of [`Sqlite`], and other migrations than its own, for tests.

mod standby;

use diesel::RunQueryDsl;

use super::transaction::{SqliteTransaction, commit};
use super::{MIGRATION_TERMS, Sqlite};
use crate::key::{IdempotencyKey, Scope};
use crate::store::fault::migrated_from;
use crate::store::in_millis::fault::PassTime;
use crate::store::{Commit, StoreError, StoreUnderFaults, TransactionUnderFaults};

impl StoreUnderFaults for Sqlite {
    /// One writer at a time, and in this process one connection.
    const CONCURRENT: bool = false;

    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        let pass = PassTime { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() };
        self.run("pass time", |conn| pass.execute(conn)).await?;
        Ok(())
    }

    async fn replicate(&self) -> Result<(), StoreError> {
        self.run("copy all tables", standby::copy).await
    }

    async fn fail_over(&self) -> Result<(), StoreError> {
        self.run("bring all tables back", standby::bring_back).await
    }
}

impl TransactionUnderFaults for SqliteTransaction {
    /// There is no network in between.
    async fn cut(&mut self) {}

    async fn commit_unguarded(mut self) -> Commit {
        self.finish(|conn| commit(conn.unwatched())).await
    }
}

impl Sqlite {
    migrated_from!(diesel::sqlite::Sqlite);
}
