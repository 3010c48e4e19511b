//! A rolling deploy: nodes of the previous build and of the next one, real processes under load, on a schema that
//! changes in the middle. No request fails because of it, and the provider's ledger is exact.
//!
//! Both builds are the same program. Two things are simulated: the first nodes do not know the migration, and a new
//! node runs it after another one died in the middle of it (the test runs it, with the engine's own code). Everything
//! that the nodes send is real, including the statements that they had prepared before.

use std::time::{Duration, Instant};

use atomic_phases::store::{Postgres, Sqlite};

use super::{Schema, next};
use crate::support::db::open_pg;
use crate::support::load::{Client, Ledger, Load};
use crate::support::rides::{Rides, number, postgres, sqlite};

/// Longer than any request takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

async fn a_rolling_deploy<S: Schema>(store: &str, rides: Rides, db: S) {
    let rounds = number("DEPLOY_RIDES", 30);
    let mut old = [rides.another(&[], &[]), rides.another(&[], &[])];
    let client =
        Client::new(&[&rides.server.url, old[0].url(), old[1].url()], PATIENCE, PATIENCE * 2);
    let load = Load::start(client.clone(), 6, 1);
    load.goes_on(rounds).await;
    // The first process that migrates dies in the middle, and another one continues.
    db.left_by_a_crash().await;
    load.goes_on(rounds).await;
    db.up(next(S::FOLDER)).await.unwrap();
    load.goes_on(rounds).await;

    // New nodes replace old ones, one by one, until all are new.
    let new = [rides.another(&[], &[]), rides.another(&[], &[])];
    client.ask_only(&[&rides.server.url, old[1].url(), new[0].url()], old[0].url()).await;
    tokio::task::block_in_place(|| old[0].process.terminate());
    load.goes_on(rounds).await;
    client.ask_only(&[&rides.server.url, new[0].url(), new[1].url()], old[1].url()).await;
    tokio::task::block_in_place(|| old[1].process.terminate());
    load.goes_on(rounds).await;

    // And back, while nodes of both builds serve: the schema is reverted last.
    let back = rides.another(&[], &[]);
    client.ask_only(&[&rides.server.url, back.url(), new[1].url()], new[0].url()).await;
    load.goes_on(rounds).await;
    let began = Instant::now();
    db.down(next(S::FOLDER)).await.unwrap();
    let down = began.elapsed();
    load.goes_on(rounds).await;

    // And forward once more.
    let began = Instant::now();
    db.up(next(S::FOLDER)).await.unwrap();
    let up = began.elapsed();
    load.goes_on(rounds).await;
    let booked = load.stop().await;
    assert_eq!(client.troubles(), Vec::<String>::new(), "no request fails for a deploy");
    let ledger = Ledger::of(&rides, &client, &booked).await;
    println!(
        "{store}: migrated down in {down:?}, up in {up:?}; {ledger}; the longest request {:?}",
        client.longest()
    );
    ledger.assert_exact();
    assert!(ledger.requests as u64 >= 8 * rounds);
}

/// A lease so long that a holder which is a second late does not lose it; its client would notice.
const QUIET: &[(&str, &str)] = &[("--lease", "30")];

#[tokio::test(flavor = "multi_thread")]
async fn g14_no_request_fails_for_a_rolling_deploy_that_migrates_on_postgres() {
    let rides = tokio::task::block_in_place(|| Rides::start_with(postgres, QUIET));
    let db: Postgres = open_pg(&rides.database, 2).await;
    a_rolling_deploy("postgres", rides, db).await;
}

/// On a server of its own, because the migration would delay other tests on the same server.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g14_no_request_fails_for_a_rolling_deploy_that_migrates_on_mariadb() {
    use crate::support::db::open_my;
    use crate::support::mariadb::Server;
    let (_server, rides) = tokio::task::block_in_place(|| {
        let server = Server::start(&[]);
        let database = server.new_database();
        (server, Rides::start_with(|_| database, QUIET))
    });
    let db = open_my(&rides.database, 2).await;
    a_rolling_deploy("mariadb", rides, db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g14_no_request_fails_for_a_rolling_deploy_that_migrates_on_sqlite() {
    let rides = tokio::task::block_in_place(|| Rides::start_with(sqlite, QUIET));
    let path = rides.database.strip_prefix("sqlite://").unwrap();
    let db = Sqlite::connect(path).await.unwrap();
    a_rolling_deploy("sqlite", rides, db).await;
}
