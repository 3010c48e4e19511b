//! The schema of our own tables, changed beside the requests that use it.
//!
//! A deploy is rolled out node by node, so the build before continues working on the new schema, and none of its requests may
//! wait long for a migration. `migrations/README.md` says what a migration may contain, and `tests/migrations/rules.rs` checks
//! it. This file runs a migration: within the store's own time limits, and again if a lock was not available.

use std::time::{Duration, Instant};

use diesel::backend::Backend;
use diesel::connection::BoxableConnection;
use diesel::migration::{
    Migration, MigrationMetadata, MigrationName, MigrationSource, Result as Ran,
};
use diesel_migrations::MigrationHarness;

use super::StoreError;
use super::statement::statement;
use crate::chance;

statement! {
    /// The versions of the migrations that have run, the application's own among them.
    Applied in D: Backend, rows diesel::sql_types::Text, {}, "SELECT version FROM __diesel_schema_migrations"
}

/// What a migration may cost the requests beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Sent first in the transaction of each migration: its bounds, in SQL.
    pub(super) bounds: &'static str,
    /// How long a migration waits for a lock in one try. The server's word for it has no kind of its own in
    /// diesel (H9), but comes no sooner than this; nor does that for a statement that took too long.
    pub(super) lock_wait: Duration,
    /// The least time between two tries, in which the requests that had to wait continue; twice that at most.
    pub(super) pause: Duration,
    /// How long a migration is tried.
    pub(super) patience: Duration,
}

/// Runs the migrations that are missing.
pub(super) fn run_migrations<H, DB, M>(
    source: M,
    terms: Terms,
) -> impl FnOnce(&mut H) -> Result<(), StoreError> + Send + 'static
where
    H: MigrationHarness<DB>,
    DB: Backend,
    M: MigrationSource<DB> + Send + 'static,
{
    move |harness| {
        terms.keep_trying(|applied| {
            *applied = harness.applied_migrations()?.len();
            // In a new database there is no request that could wait.
            let bounds = if *applied == 0 { "" } else { terms.bounds };
            for migration in harness.pending_migrations(Borrowed(&source))? {
                harness.run_migration(&BoundedMigration { migration: &*migration, bounds })?;
            }
            Ok(())
        })
    }
}

/// Names the migrations that are missing.
pub(super) fn name_missing<H, DB, M>(
    source: M,
) -> impl FnOnce(&mut H) -> Result<Vec<String>, StoreError> + Send + 'static
where
    H: MigrationHarness<DB>,
    DB: Backend,
    M: MigrationSource<DB> + Send + 'static,
{
    move |harness| {
        let pending = harness.pending_migrations(source).map_err(failed)?;
        Ok(pending.iter().map(|migration| migration.name().to_string()).collect())
    }
}

/// Names those of `source` that are not among the versions that have run.
pub(super) fn not_among<DB: Backend>(
    source: &impl MigrationSource<DB>,
    applied: &[String],
) -> Result<Vec<String>, StoreError> {
    let migrations = source.migrations().map_err(failed)?;
    let mut missing: Vec<String> = migrations
        .iter()
        .filter(|migration| !applied.contains(&migration.name().version().to_string()))
        .map(|migration| migration.name().to_string())
        .collect();
    missing.sort();
    Ok(missing)
}

/// The functions of a store about its migrations. `$missing`: its function that names the missing ones by what stands in their
/// table. diesel's harness creates that table before it reads it, even where it is there, which not every user may.
macro_rules! migrated_by {
    ($missing:ident) => {
        async fn migrate(&self) -> Result<(), StoreError> {
            if self.$missing().await.is_ok_and(|missing| missing.is_empty()) {
                return Ok(());
            }
            let run = $crate::store::migrations::run_migrations(MIGRATIONS, MIGRATION_TERMS);
            self.with_migrations(run).await
        }

        async fn missing_migrations(&self) -> Result<Vec<String>, StoreError> {
            match self.$missing().await {
                Ok(missing) => Ok(missing),
                Err(_) => {
                    let name = $crate::store::migrations::name_missing(MIGRATIONS);
                    self.with_migrations(name).await
                }
            }
        }

        async fn revert_migrations(&self) -> Result<(), StoreError> {
            let revert = $crate::store::migrations::revert_migrations(MIGRATIONS, MIGRATION_TERMS);
            self.with_migrations(revert).await
        }
    };
}
pub(super) use migrated_by;

/// Reverts the migrations of `source`, the newest first, and none that the application keeps in the same
/// table.
pub(super) fn revert_migrations<H, DB, M>(
    source: M,
    terms: Terms,
) -> impl FnOnce(&mut H) -> Result<(), StoreError> + Send + 'static
where
    H: MigrationHarness<DB>,
    DB: Backend,
    M: MigrationSource<DB> + Send + 'static,
{
    move |harness| {
        terms.keep_trying(|left| {
            let applied = harness.applied_migrations()?;
            *left = applied.len();
            let mut migrations = source.migrations()?;
            migrations.retain(|migration| applied.contains(&migration.name().version().as_owned()));
            migrations.sort_by_key(|migration| migration.name().version().as_owned());
            for migration in migrations.iter().rev() {
                let bound = BoundedMigration { migration: &**migration, bounds: terms.bounds };
                harness.revert_migration(&bound)?;
            }
            Ok(())
        })
    }
}

fn failed(error: Box<dyn std::error::Error + Send + Sync>) -> StoreError {
    StoreError::Migration(error.to_string())
}

/// How often a migration may fail for another reason than a lock. Processes that start concurrently may all find
/// one missing; the losers' fails, and their next look finds it applied, and perhaps the next one missing: so
/// this counts anew whenever another number of migrations is applied.
const RACES: u32 = 4;

impl Terms {
    /// Tries again where a lock may have been the cause, until it was tried for long enough. Each migration
    /// is a transaction of its own, so that a further try continues behind the last that succeeded.
    /// `run` says how many were applied as it began.
    fn keep_trying(self, mut run: impl FnMut(&mut usize) -> Ran<()>) -> Result<(), StoreError> {
        let until = Instant::now() + self.patience;
        let (mut races, mut has_tried) = (RACES, false);
        let (mut applied, mut before) = (0, 0);
        loop {
            let began = Instant::now();
            let Err(error) = run(&mut applied) else { return Ok(()) };
            if std::mem::replace(&mut before, applied) != applied {
                races = RACES;
            }
            let tried = std::mem::replace(&mut has_tried, true);
            if began.elapsed() < self.lock_wait {
                if races == 0 {
                    return Err(failed(error));
                }
                races -= 1;
                continue;
            }
            if Instant::now() >= until && tried {
                return Err(StoreError::Migration(format!(
                    "{error} (tried for {:?}: other transactions kept its tables locked all the time, or they \
                     are so large that it takes long; nothing of it was changed. See migrations/README.md)",
                    self.patience
                )));
            }
            let jitter = self.pause.mul_f64(chance::fraction());
            std::thread::sleep(self.pause + jitter);
        }
    }
}

/// A migration that begins with the store's bounds.
struct BoundedMigration<'m, DB: Backend> {
    migration: &'m dyn Migration<DB>,
    bounds: &'static str,
}

impl<DB: Backend> BoundedMigration<'_, DB> {
    fn begin(&self, conn: &mut dyn BoxableConnection<DB>) -> Ran<()> {
        match self.bounds {
            "" => Ok(()),
            bounds => Ok(conn.batch_execute(bounds)?),
        }
    }
}

impl<DB: Backend> Migration<DB> for BoundedMigration<'_, DB> {
    fn run(&self, conn: &mut dyn BoxableConnection<DB>) -> Ran<()> {
        self.begin(conn)?;
        self.migration.run(conn)
    }

    fn revert(&self, conn: &mut dyn BoxableConnection<DB>) -> Ran<()> {
        self.begin(conn)?;
        self.migration.revert(conn)
    }

    fn metadata(&self) -> &dyn MigrationMetadata {
        self.migration.metadata()
    }

    fn name(&self) -> &dyn MigrationName {
        self.migration.name()
    }
}

/// A migration source by reference, which diesel has none for.
struct Borrowed<'s, M>(&'s M);

impl<DB: Backend, M: MigrationSource<DB>> MigrationSource<DB> for Borrowed<'_, M> {
    fn migrations(&self) -> Ran<Vec<Box<dyn Migration<DB>>>> {
        self.0.migrations()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        bounds: "",
        lock_wait: Duration::from_millis(20),
        pause: Duration::ZERO,
        patience: Duration::from_millis(200),
    };

    fn tries(lasting: Duration) -> u32 {
        let mut tries = 0;
        let told = TERMS.keep_trying(|_| {
            tries += 1;
            std::thread::sleep(lasting);
            Err("no".into())
        });
        assert!(matches!(told, Err(StoreError::Migration(_))));
        tries
    }

    #[test]
    fn what_cannot_be_of_a_lock_is_told_after_a_few_tries_and_a_lock_is_waited_for() {
        assert_eq!(tries(Duration::ZERO), RACES + 1);
        let tries = tries(TERMS.lock_wait);
        assert!((3..=11).contains(&tries), "{tries}");
    }
}
