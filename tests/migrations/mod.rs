//! The schema of the engine's own tables changes while requests run: what a migration may contain, what happens to
//! the rows, and how requests are affected.
//!
//! There have to be migrations that the build under test does not need, or nothing of this could be shown
//! before one is written: `tests/fixtures/migrations` are the next ones.

mod deploy;
mod locks;
mod rows;
mod rules;

use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::{Postgres, Sqlite, StoreError};
use diesel_migrations::FileBasedMigrations;

use crate::support::TestDb;

const PATIENCE: Duration = Duration::from_secs(30);

/// A store, with the folder of its migrations.
trait Schema: TestDb {
    const FOLDER: &'static str;
    /// The number of migrations of its earliest schema: on MySQL, each is one table.
    const FIRST: usize = 1;
    /// A query for the columns of a table: name and type.
    const COLUMNS_OF: &'static str;

    async fn up(&self, migrations: FileBasedMigrations) -> Result<(), StoreError> {
        self.up_within(migrations, PATIENCE).await
    }

    /// Tried for so long.
    fn up_within(
        &self,
        migrations: FileBasedMigrations,
        patience: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    async fn down(&self, migrations: FileBasedMigrations) -> Result<(), StoreError>;

    /// What a process that dies in the middle of the next migration leaves behind: nothing, if a migration is one
    /// transaction.
    async fn left_by_a_crash(&self) {}
}

impl Schema for Postgres {
    const FOLDER: &'static str = "postgres";
    const COLUMNS_OF: &'static str = "SELECT coalesce(string_agg(column_name, ',' ORDER BY ordinal_position), '') \
        FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = ";

    async fn up_within(
        &self,
        migrations: FileBasedMigrations,
        patience: Duration,
    ) -> Result<(), StoreError> {
        self.migrate_from(migrations, patience).await
    }

    async fn down(&self, migrations: FileBasedMigrations) -> Result<(), StoreError> {
        self.revert_from(migrations).await
    }
}

impl Schema for Sqlite {
    const FOLDER: &'static str = "sqlite";
    const COLUMNS_OF: &'static str =
        "SELECT coalesce(group_concat(name), '') FROM pragma_table_info WHERE arg = ";

    /// No other process writes to the file meanwhile.
    async fn up_within(
        &self,
        migrations: FileBasedMigrations,
        _: Duration,
    ) -> Result<(), StoreError> {
        self.migrate_from(migrations, Duration::ZERO).await
    }

    async fn down(&self, migrations: FileBasedMigrations) -> Result<(), StoreError> {
        self.revert_from(migrations).await
    }
}

#[cfg(feature = "mysql")]
impl Schema for Mysql {
    const FOLDER: &'static str = "mysql";
    const FIRST: usize = 3;
    const COLUMNS_OF: &'static str = "SELECT coalesce(group_concat(column_name ORDER BY ordinal_position), '') \
        FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ";

    async fn up_within(
        &self,
        migrations: FileBasedMigrations,
        patience: Duration,
    ) -> Result<(), StoreError> {
        self.migrate_from(migrations, patience).await
    }

    async fn down(&self, migrations: FileBasedMigrations) -> Result<(), StoreError> {
        self.revert_from(migrations).await
    }

    /// If the process is killed while it waits for its lock: nothing. If it dies after its change: the change,
    /// unrecorded.
    async fn left_by_a_crash(&self) {
        use std::time::Instant;

        use diesel::sql_types::BigInt;
        use diesel_async::{RunQueryDsl, SimpleAsyncConnection};

        use crate::support::db::{my, sessions};
        use crate::support::until;

        const BOUNDS: &str = "SET SESSION lock_wait_timeout = ";
        let up = std::fs::read_to_string(all(Self::FOLDER).last().unwrap().join("up.sql")).unwrap();
        let mut reader = my(self.__url()).await;
        reader.batch_execute("BEGIN; SELECT 1 FROM atomic_phases_keys LIMIT 1").await.unwrap();
        let mut killed = my(self.__url()).await;
        let id = diesel::dsl::sql::<BigInt>("SELECT CAST(CONNECTION_ID() AS SIGNED)");
        let id: i64 = id.get_result(&mut *killed).await.unwrap();
        let text = format!("{BOUNDS} 3600; {up}");
        let killed = tokio::spawn(async move { killed.batch_execute(&text).await });
        let waits = format!(
            "SELECT count(*) FROM {} WHERE id = {id} AND state = 'Waiting for table metadata lock'",
            sessions()
        );
        until(async || self.number(&waits).await == 1).await;
        self.sql(&format!("KILL {id}")).await;
        killed.await.unwrap().unwrap_err();
        reader.batch_execute("COMMIT").await.unwrap();

        let mut dies = my(self.__url()).await;
        dies.batch_execute(&format!("{BOUNDS} 1")).await.unwrap();
        let began = Instant::now();
        while dies.batch_execute(&up).await.is_err() {
            assert!(began.elapsed() < PATIENCE, "no lock to be had");
            // The requests that had to wait continue meanwhile.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// The folder of the migrations that no build knows yet.
const NEXT: &str = "tests/fixtures/migrations";

/// The folders of a store's migrations at these places, in their order.
fn folders(places: &[&str], folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries =
        places.iter().flat_map(|place| std::fs::read_dir(root.join(place).join(folder)).unwrap());
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.is_dir());
    all.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    all
}

/// The folders of all migrations of a store in order, including the next ones.
fn all(folder: &str) -> Vec<PathBuf> {
    folders(&["migrations", NEXT], folder)
}

/// These migrations alone.
fn only(migrations: &[PathBuf]) -> FileBasedMigrations {
    let dir = crate::support::scratch::dir();
    for migration in migrations {
        let copy = dir.join(migration.file_name().unwrap());
        std::fs::create_dir(&copy).unwrap();
        for file in ["up.sql", "down.sql"] {
            std::fs::copy(migration.join(file), copy.join(file)).unwrap();
        }
    }
    FileBasedMigrations::from_path(dir).unwrap()
}

/// The migrations that no build knows yet.
fn next(folder: &str) -> FileBasedMigrations {
    only(&folders(&[NEXT], folder))
}
