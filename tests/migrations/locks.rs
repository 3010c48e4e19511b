//! What requests notice of a migration that cannot have its lock, or that freezes with it.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use atomic_phases::engine::Call;
use atomic_phases::store::StoreError;
use atomic_phases::{CallError, Outcome, Postgres};
use diesel::connection::BoxableConnection;
use diesel::migration::{
    Migration, MigrationMetadata, MigrationName, MigrationSource, MigrationVersion, Result as Ran,
};
use diesel::pg::Pg;
use diesel_async::SimpleAsyncConnection;

use crate::support::db::{pg, url_of};
use crate::support::*;
use crate::{Schema, next};

/// Longer than any request may take here, and shorter than the transaction that holds the lock.
const STUCK: Duration = Duration::from_secs(10);

async fn has_next_column(db: &Postgres) -> bool {
    let columns =
        "SELECT count(*) FROM information_schema.columns WHERE column_name = 'next_number'";
    db.number(columns).await == 1
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_migration_gives_up_behind_a_long_transaction_and_no_request_waits_for_it() {
    let db = <Postgres as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    let mut long = pg(&url_of(&db)).await;
    long.batch_execute("BEGIN; SELECT count(*) FROM atomic_phases_keys").await.unwrap();

    let patience = Duration::from_secs(4);
    let began = Instant::now();
    let migrating = {
        let db = db.clone();
        tokio::spawn(async move { db.migrate_from(next(Postgres::FOLDER), patience).await })
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
    assert!(waited >= patience && waited < patience + Duration::from_secs(3), "{waited:?}");
    assert!(requests > 10, "{requests}");
    assert!(!has_next_column(&db).await, "nothing of it was changed");

    long.batch_execute("COMMIT").await.unwrap();
    db.up(next(Postgres::FOLDER)).await.unwrap();
    assert!(has_next_column(&db).await);
}

/// `None` where it takes too long.
async fn within(call: Call<Postgres, App, Book>) -> Option<Result<Outcome, CallError>> {
    tokio::time::timeout(STUCK, call.into_future()).await.ok()
}

/// A migration whose process stops in the middle, with its lock held.
struct Frozen {
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
        MigrationVersion::from("99991231000002")
    }
}

impl MigrationMetadata for Name {}

impl Migration<Pg> for Frozen {
    fn run(&self, conn: &mut dyn BoxableConnection<Pg>) -> Ran<()> {
        conn.batch_execute("ALTER TABLE atomic_phases_keys ADD COLUMN frozen text")?;
        self.has_locked.send(())?;
        self.go_on.lock().unwrap().recv()?;
        Ok(())
    }

    fn revert(&self, _: &mut dyn BoxableConnection<Pg>) -> Ran<()> {
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

impl MigrationSource<Pg> for Once {
    fn migrations(&self) -> Ran<Vec<Box<dyn Migration<Pg>>>> {
        let frozen = self.0.lock().unwrap().take();
        Ok(frozen.into_iter().map(|frozen| Box::new(frozen) as Box<dyn Migration<Pg>>).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_process_that_freezes_in_a_migration_gives_its_lock_back() {
    let db = <Postgres as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    let ((has_locked, locked), (thaw, go_on)) = (channel(), channel());
    let source = Once(Mutex::new(Some(Frozen { has_locked, go_on: Mutex::new(go_on) })));
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
    let columns = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'frozen'";
    assert_eq!(db.number(columns).await, 0, "the server took it back");
}
