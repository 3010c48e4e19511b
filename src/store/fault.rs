//! What crash tests need of a store, beside what the engine asks for: time that passes, a standby, a connection that is cut.
//!
//! [`Store`](super::Store) and [`Transaction`](super::Transaction) extend these traits in each build, so that no bound of
//! the engine depends on the feature `fault-injection`. Without it the traits are empty, and every type has them.

#[cfg(all(
    feature = "fault-injection",
    any(feature = "postgres", feature = "sqlite", feature = "mysql")
))]
pub(in crate::store) use self::injected::migrated_from;
#[cfg(feature = "fault-injection")]
pub(crate) use self::injected::{StoreUnderFaults, TransactionUnderFaults};

#[cfg(not(feature = "fault-injection"))]
pub trait StoreUnderFaults {}

#[cfg(not(feature = "fault-injection"))]
impl<S> StoreUnderFaults for S {}

#[cfg(not(feature = "fault-injection"))]
pub trait TransactionUnderFaults {}

#[cfg(not(feature = "fault-injection"))]
impl<T> TransactionUnderFaults for T {}

#[cfg(feature = "fault-injection")]
mod injected {
    use std::future::Future;

    use crate::key::{IdempotencyKey, Scope};
    use crate::store::{Commit, StoreError};

    /// The part of a [`Store`](crate::Store) that crash tests need.
    #[doc(hidden)]
    pub trait StoreUnderFaults {
        /// Whether others can work with the database while a transaction is open.
        const CONCURRENT: bool;

        /// Whether it is a model in memory, whose time can be simulated.
        const IN_MEMORY: bool = false;

        /// Moves the database's clock, as far as this row is concerned: its lease and its back-off are over.
        fn pass_time(
            &self,
            scope: &Scope,
            key: &IdempotencyKey,
        ) -> impl Future<Output = Result<(), StoreError>> + Send;

        /// Copies all tables: what a standby has that receives no commit from now on. Replaces an earlier copy.
        fn replicate(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

        /// Brings the copies back: that standby takes the database's place, and the commits since are lost. No transaction
        /// of the request may be open.
        fn fail_over(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
    }

    /// The part of a [`Transaction`](crate::store::Transaction) that crash tests need.
    #[doc(hidden)]
    pub trait TransactionUnderFaults {
        /// Cuts its connection, at the server.
        fn cut(&mut self) -> impl Future<Output = ()> + Send;

        /// Commits what was written so far, and nothing of the engine's: for a mutant.
        fn commit_unguarded(self) -> impl Future<Output = Commit> + Send;
    }

    /// The functions of a store for tests of migrations.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    macro_rules! migrated_from {
        ($database:ty) => {
            /// [`migrate`](crate::Store::migrate) with other migrations, tried for so long.
            #[doc(hidden)]
            pub async fn migrate_from(
                &self,
                source: impl diesel::migration::MigrationSource<$database> + Send + 'static,
                patience: std::time::Duration,
            ) -> Result<(), StoreError> {
                let terms = $crate::store::migrations::Terms { patience, ..MIGRATION_TERMS };
                self.with_migrations($crate::store::migrations::run_migrations(source, terms)).await
            }

            /// [`revert_migrations`](crate::Store::revert_migrations) of others.
            #[doc(hidden)]
            pub async fn revert_from(
                &self,
                source: impl diesel::migration::MigrationSource<$database> + Send + 'static,
            ) -> Result<(), StoreError> {
                let revert = $crate::store::migrations::revert_migrations(source, MIGRATION_TERMS);
                self.with_migrations(revert).await
            }
        };
    }
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    pub(in crate::store) use migrated_from;
}
