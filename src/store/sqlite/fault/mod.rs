//! What crash tests need of [`Sqlite`], and other migrations than its own, for tests.

mod standby;

use std::time::Duration;

use diesel::RunQueryDsl;
use diesel::migration::MigrationSource;

use super::transaction::{SqliteTransaction, commit};
use super::{MIGRATION_TERMS, Sqlite};
use crate::key::{IdempotencyKey, Scope};
use crate::store::in_millis::fault::PassTime;
use crate::store::migrations::{Terms, revert_migrations, run_migrations};
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
    /// [`migrate`](crate::Store::migrate) with other migrations.
    #[doc(hidden)]
    pub async fn migrate_from(
        &self,
        source: impl MigrationSource<diesel::sqlite::Sqlite> + Send + 'static,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let terms = Terms { patience, ..MIGRATION_TERMS };
        self.with_migrations(run_migrations(source, terms)).await
    }

    /// [`revert_migrations`](crate::Store::revert_migrations) of others.
    #[doc(hidden)]
    pub async fn revert_from(
        &self,
        source: impl MigrationSource<diesel::sqlite::Sqlite> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.with_migrations(revert_migrations(source, MIGRATION_TERMS)).await
    }
}
