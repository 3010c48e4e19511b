//! How requests are affected by a migration that cannot get its lock, or that freezes while it holds it.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use atomic_phases::engine::{Call, CallError};
#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::{Postgres, StoreError};
use atomic_phases::{Outcome, Store};
use diesel::backend::Backend;
use diesel::connection::BoxableConnection;
use diesel::migration::{
    Migration, MigrationMetadata, MigrationName, MigrationSource, MigrationVersion, Result as Ran,
};
use diesel_async::SimpleAsyncConnection;

#[cfg(feature = "mysql")]
use super::all;
use super::{Schema, next};
#[cfg(feature = "mysql")]
use crate::support::db::{my, open_my};
use crate::support::db::{open_pg, pg, url_of};
use crate::support::*;

/// Longer than any request may take here, and shorter than the transaction that holds the lock.
const STUCK: Duration = Duration::from_secs(10);

/// Whether the table of keys has this column.
async fn has_column<S: Schema>(db: &S, name: &str) -> bool {
    let columns = db.text(&format!("{}'atomic_phases_keys'", S::COLUMNS_OF)).await;
    columns.split(',').any(|column| column == name)
}

/// `long`: a connection for a transaction that has read the table and stays open. `one_try`: the longest duration
/// of one try and of the rest after it.
async fn gives_up<S: Schema>(db: S, long: &mut impl SimpleAsyncConnection, one_try: Duration) {
    let engine = engine(&db, &App::default());
    long.batch_execute("BEGIN; SELECT count(*) FROM atomic_phases_keys").await.unwrap();

    let patience = Duration::from_secs(4);
    let began = Instant::now();
    let migrating = {
        let db = db.clone();
        tokio::spawn(async move { db.up_within(next(S::FOLDER), patience).await })
    };
    let (mut requests, mut longest) = (0, Duration::ZERO);
    while !migrating.is_finished() {
        let began = Instant::now();
        let call = engine.call(&scope(), &key(&format!("k{requests}")), book(20));
        finished(within(call).await.expect("a request waits behind the migration"));
        longest = longest.max(began.elapsed());
        requests += 1;
    }
    let gave_up = migrating.await.unwrap().unwrap_err();
    let waited = began.elapsed();
    println!("{requests} requests beside it, the longest {longest:?}; it gave up after {waited:?}");
    assert!(matches!(gave_up, StoreError::Migration(_)), "{gave_up}");
    assert!(gave_up.to_string().contains("kept its tables locked"), "{gave_up}");
    assert!(waited >= patience && waited < patience + one_try + STUCK, "{waited:?}");
    assert!(requests > 3, "{requests}");
    assert!(!has_column(&db, "next_number").await, "nothing of it was changed");

    long.batch_execute("COMMIT").await.unwrap();
    db.up(next(S::FOLDER)).await.unwrap();
    assert!(has_column(&db, "next_number").await);
}

/// A deploy job has migrated. The service's role owns nothing and may create nothing, as any role of PostgreSQL 15 that
/// is not told otherwise; or it is started beside a database that can only be read, whose replays it is to serve.
#[tokio::test(flavor = "multi_thread")]
async fn g14_who_may_create_nothing_hears_that_no_migration_is_missing() {
    let db = <Postgres as TestDb>::fresh().await;
    let role = format!("reader_of_{}", db.text("SELECT current_database()").await);
    db.sql(&format!(
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {role} LOGIN; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    ))
    .await;
    let url = url_of(&db).replace("postgres@", &format!("{role}@"));
    let only_read = format!("{}?options=-c%20default_transaction_read_only%3Don", url_of(&db));
    for url in [url, only_read] {
        let service = open_pg(&url, 2).await;
        assert_eq!(service.missing_migrations().await.unwrap(), Vec::<String>::new());
        service.migrate().await.unwrap();
    }
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g14_who_may_create_nothing_hears_that_no_migration_is_missing_on_mariadb() {
    let db = <Mysql as TestDb>::fresh().await;
    let (head, name) = db.__url().rsplit_once('/').unwrap();
    let user = format!("reader_{name}");
    db.sql(&format!(
        "CREATE USER '{user}'@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO '{user}'@'%'"
    ))
    .await;
    let place = head.rsplit_once('@').unwrap().1;
    let service = open_my(&format!("mysql://{user}@{place}/{name}"), 2).await;
    assert_eq!(service.missing_migrations().await.unwrap(), Vec::<String>::new());
    service.migrate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_migration_gives_up_behind_a_long_transaction_and_no_request_waits_for_it() {
    let db = <Postgres as TestDb>::fresh().await;
    let mut long = pg(&url_of(&db)).await;
    gives_up(db, &mut *long, Duration::from_secs(3)).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_migration_gives_up_behind_a_long_transaction_on_mariadb() {
    let db = <Mysql as TestDb>::fresh().await;
    let mut long = my(db.__url()).await;
    gives_up(db, &mut *long, Duration::from_secs(4)).await;
}

/// `None` where it takes too long.
async fn within<S: Schema>(call: Call<S, App, Book>) -> Option<Result<Outcome, CallError>> {
    tokio::time::timeout(STUCK, call.into_future()).await.ok()
}

/// A migration whose process stops in the middle, after its change.
struct Frozen {
    change: String,
    has_locked: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

struct Name;

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("frozen")
    }
}

impl MigrationName for Name {
    fn version(&self) -> MigrationVersion<'_> {
        MigrationVersion::from("99991231000009")
    }
}

impl MigrationMetadata for Name {}

impl<DB: Backend> Migration<DB> for Frozen {
    fn run(&self, conn: &mut dyn BoxableConnection<DB>) -> Ran<()> {
        conn.batch_execute(&self.change)?;
        self.has_locked.send(())?;
        self.go_on.lock().unwrap().recv()?;
        Ok(())
    }

    fn revert(&self, _: &mut dyn BoxableConnection<DB>) -> Ran<()> {
        Ok(())
    }

    fn metadata(&self) -> &dyn MigrationMetadata {
        &Name
    }

    fn name(&self) -> &dyn MigrationName {
        &Name
    }
}

/// Handed over once.
struct Once(Mutex<Option<Frozen>>);

impl<DB: Backend> MigrationSource<DB> for Once {
    fn migrations(&self) -> Ran<Vec<Box<dyn Migration<DB>>>> {
        let frozen = self.0.lock().unwrap().take();
        Ok(frozen.into_iter().map(|frozen| Box::new(frozen) as Box<dyn Migration<DB>>).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_process_that_freezes_in_a_migration_gives_its_lock_back() {
    let db = <Postgres as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    let ((has_locked, locked), (thaw, go_on)) = (channel(), channel());
    let change = "ALTER TABLE atomic_phases_keys ADD COLUMN frozen text".to_owned();
    let source = Once(Mutex::new(Some(Frozen { change, has_locked, go_on: Mutex::new(go_on) })));
    let migrating = {
        let db = db.clone();
        tokio::spawn(async move { db.migrate_from(source, Duration::ZERO).await })
    };
    tokio::task::block_in_place(|| locked.recv().unwrap());
    let began = Instant::now();
    until(async || {
        let call = engine.call(&scope(), &key("k"), book(20));
        matches!(within(call).await, Some(Ok(Outcome::Finished(_))))
    })
    .await;
    println!("the first request behind it ended after {:?}", began.elapsed());
    thaw.send(()).unwrap();
    migrating.await.unwrap().unwrap_err();
    assert!(!has_column(&db, "frozen").await, "the server took it back");
}

/// MariaDB commits the change immediately, so the process holds no lock on the table. If its machine is lost before
/// the process has recorded the change, the next process to migrate finds the change made.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_process_that_dies_in_a_migration_on_mariadb_delays_no_other() {
    let db = <Mysql as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    let ((has_locked, changed), (thaw, go_on)) = (channel(), channel());
    let up = all(Mysql::FOLDER).last().unwrap().join("up.sql");
    let change = std::fs::read_to_string(up).unwrap();
    let source = Once(Mutex::new(Some(Frozen { change, has_locked, go_on: Mutex::new(go_on) })));
    let migrating = {
        let db = db.clone();
        tokio::spawn(async move { db.migrate_from(source, Duration::ZERO).await })
    };
    tokio::task::block_in_place(|| changed.recv().unwrap());
    for name in ["one", "two"] {
        let call = engine.call(&scope(), &key(name), book(20));
        finished(within(call).await.expect("a request waits behind the migration"));
    }
    let name = "CONCAT('atomic_phases.', LEFT(SHA2(DATABASE(), 256), 40))";
    let its_session = db.number(&format!("SELECT IS_USED_LOCK({name})")).await;
    db.sql(&format!("KILL {its_session}")).await;
    let next_one = {
        let db = db.clone();
        tokio::spawn(async move { db.up(next(Mysql::FOLDER)).await })
    };
    next_one.await.unwrap().unwrap();
    thaw.send(()).unwrap();
    migrating.await.unwrap().unwrap_err();
    assert!(has_column(&db, "next_number").await);
    db.up(next(Mysql::FOLDER)).await.unwrap();
    db.down(next(Mysql::FOLDER)).await.unwrap();
    assert!(!has_column(&db, "next_number").await);
    finished(engine.call(&scope(), &key("three"), book(20)).await);
}

/// One that migrates for longer than the store waits for an answer keeps the next waiting, and does not make it fail.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_migration_on_mariadb_waits_for_a_long_one() {
    let db = <Mysql as TestDb>::fresh().await;
    let mut other = my(db.__url()).await;
    let name = "CONCAT('atomic_phases.', LEFT(SHA2(DATABASE(), 256), 40))";
    other.batch_execute(&format!("DO GET_LOCK({name}, 0)")).await.unwrap();
    let waits = {
        let db = db.clone();
        tokio::spawn(async move { db.up(next(Mysql::FOLDER)).await })
    };
    tokio::time::sleep(Duration::from_secs(17)).await;
    assert!(!waits.is_finished(), "{:?}", waits.await);
    other.batch_execute(&format!("DO RELEASE_LOCK({name})")).await.unwrap();
    waits.await.unwrap().unwrap();
    db.down(next(Mysql::FOLDER)).await.unwrap();
}
