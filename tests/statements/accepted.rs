//! The cost of an accepted request, compared with one in the foreground: counted, not timed.

use crate::recorded::{self, alone};
use crate::support::work::config;
use crate::support::*;
use atomic_phases::Scope;
use atomic_phases::store::Postgres;
use atomic_phases::worker::Completer;

const REQUESTS: usize = 40;

/// Requests that begin at the same time share statements: the busier the process, the fewer statements.
#[tokio::test(flavor = "multi_thread")]
async fn g10_requests_that_begin_together_are_read_and_taken_over_in_groups() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    let engine = engine(&db.another().await, &App::default());
    for number in 0..REQUESTS {
        let scope = Scope::new(format!("tenant-{}", number % 4)).unwrap();
        engine.call(&scope, &key(&format!("k{number}")), book(20)).accept().await.unwrap();
    }
    let mut completer = Completer::new(&engine, config().concurrency(REQUESTS));
    let transactions = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let before = db.number(transactions).await;
    recorded::sent();
    assert_eq!(completer.run_once().await.unwrap().finished as usize, REQUESTS);
    let sent = recorded::sent();
    let written = (db.number(transactions).await - before) as usize;
    let count = |is_one: fn(&str) -> bool| sent.iter().filter(|sql| is_one(sql)).count();
    let reads = count(|sql| {
        sql.contains("request_id, definition, definition_version") && sql.starts_with("SELECT")
    });
    let claims = count(|sql| sql.contains("lease_token = lease_token + 1"));
    println!(
        "{REQUESTS} requests: {reads} reads, {claims} claims, {written} transactions that wrote"
    );
    assert!(reads <= REQUESTS / 2, "{reads} reads");
    assert!(claims <= REQUESTS / 2, "{claims} claims");
    assert!(written <= claims + 2 * REQUESTS, "{written} transactions, {claims} of them claims");
    let once = "SELECT count(*) FROM atomic_phases_keys WHERE attempts = 1 AND lease_token = 1 AND status = 'completed'";
    assert_eq!(db.number(once).await as usize, REQUESTS);
}

/// The index of due rows gets an entry when the row is accepted; the claim moves it, and the end removes it. The
/// commits in between change no column that an index names.
#[tokio::test(flavor = "multi_thread")]
async fn the_commits_of_an_accepted_request_are_hot_until_the_last() {
    let _alone = alone().await;
    let db = <Postgres as TestDb>::fresh().await;
    let store = db.another().await;
    let engine = engine(&store, &App::default());
    for number in 0..REQUESTS {
        let scope = Scope::new(format!("tenant-{}", number % 4)).unwrap();
        engine.call(&scope, &key(&format!("k{number}")), book(20)).accept().await.unwrap();
    }
    let mut completer = Completer::new(&engine, config().concurrency(REQUESTS));
    assert_eq!(completer.run_once().await.unwrap().finished as usize, REQUESTS);
    drop((completer, engine, store));
    let updates = async |column: &str| {
        let of_keys = format!(
            "SELECT {column} FROM pg_stat_user_tables WHERE relname = 'atomic_phases_keys'"
        );
        db.number(&of_keys).await as usize
    };
    // A session reports its counts within a second, or when it ends: claim, first phase, last phase.
    until(async || updates("n_tup_upd").await == 3 * REQUESTS).await;
    let hot = updates("n_tup_hot_upd").await;
    // All of them, except if the row's page is full.
    assert!(hot >= REQUESTS / 2, "{hot} of {} updates are HOT", 3 * REQUESTS);
}
