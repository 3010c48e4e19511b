//! H11: the engine behind PgBouncer. Session pooling works, and transaction pooling works from 1.21 on. Transaction
//! pooling without prepared-statement support (before 1.21; Debian 12 has 1.18) fails with a clear error, as the
//! documentation says, and does nothing twice. The test uses two real processes. This program has no other test,
//! because the driver numbers prepared statements by process, and both processes must arrive at the same names.

mod support;

use support::bouncer::{Bouncer, hands_statements_on};
use support::process::{Process, free_port};
use support::rides::{Rides, postgres};

/// Requests the same ride at two processes, many times; returns the statuses.
async fn asked(servers: &[&str], rides: u32) -> Vec<u16> {
    let http = reqwest::Client::new();
    let mut statuses = Vec::new();
    for ride in 0..rides {
        for server in servers {
            let request = http
                .post(format!("{server}/rides"))
                .header("authorization", "user@example.com")
                .header("idempotency-key", format!("k{ride}"))
                .header("content-type", "application/x-www-form-urlencoded")
                .body("origin_lat=1&origin_lon=2&target_lat=3&target_lon=4");
            statuses.push(request.send().await.unwrap().status().as_u16());
        }
    }
    statuses
}

fn serve(like: &Rides, database: &str) -> Process {
    let mut arguments = like.arguments.clone();
    arguments[2] = format!("127.0.0.1:{}", free_port());
    arguments[4] = database.to_owned();
    Rides::serve(&arguments)
}

async fn works(mode: &str) {
    let (rides, bouncer, servers) = tokio::task::block_in_place(|| {
        let rides = Rides::start(postgres);
        let bouncer = Bouncer::start(&rides.database, mode);
        let servers = [0, 1].map(|_| serve(&rides, &bouncer.url(&rides.database)));
        (rides, bouncer, servers)
    });
    let statuses = asked(&[&servers[0].url, &servers[1].url], 10).await;
    assert!(statuses.iter().all(|status| *status == 201), "{statuses:?}");
    assert_eq!(rides.charges().await.len(), 10);
    drop(bouncer);
}

#[tokio::test(flavor = "multi_thread")]
async fn h11_session_pooling_works() {
    works("session").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h11_transaction_pooling_works_where_statements_are_handed_on() {
    match hands_statements_on() {
        true => works("transaction").await,
        false => println!("nothing was shown: PGBOUNCER names no version from 1.21 on"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn h11_transaction_pooling_fails_as_documented_and_does_nothing_twice() {
    if hands_statements_on() {
        println!("nothing was shown: this PgBouncer hands statements on");
        return;
    }
    let (rides, bouncer) = tokio::task::block_in_place(|| {
        let rides = Rides::start(postgres);
        let bouncer = Bouncer::start(&rides.database, "transaction");
        (rides, bouncer)
    });
    // In this process, so that the test can read the error; the other process uses the same names of statements.
    let url = bouncer.url(&rides.database);
    let other = tokio::task::block_in_place(|| serve_if_it_can(&rides, &url));
    let mut errors = Vec::new();
    for _ in 0..20 {
        // Concurrently, so that a session's statements go to more than one of the pooler's connections, even if the
        // other process could not start.
        let mut sessions = tokio::task::JoinSet::new();
        for _ in 0..8 {
            sessions.spawn(looked_up(url.clone()));
        }
        errors.extend(sessions.join_all().await.into_iter().filter_map(Result::err));
        if let Some(other) = &other {
            asked(&[&other.url], 3).await;
        }
        if errors.iter().any(|error| error.contains("PgBouncer")) {
            break;
        }
    }
    assert!(errors.iter().any(|error| error.contains("PgBouncer")), "{errors:?}");
    let mut of_ride: std::collections::HashMap<String, u32> = Default::default();
    for charge in rides.charges().await {
        let ride = charge["metadata"]["ride"].as_str().unwrap().to_owned();
        *of_ride.entry(ride).or_default() += 1;
    }
    assert!(of_ride.values().all(|times| *times == 1), "{of_ride:?}");
}

async fn looked_up(url: String) -> Result<(), String> {
    let store =
        atomic_phases::store::Postgres::connect(&url).await.map_err(|error| error.to_string())?;
    let engine = atomic_phases::Engine::builder(store).build().unwrap();
    let (scope, key) = ("s".parse().unwrap(), "k".parse().unwrap());
    engine.status(&scope, &key).await.map(|_| ()).map_err(|error| error.to_string())
}

/// The process may fail to start, because its migrations are prepared statements, too.
fn serve_if_it_can(rides: &Rides, database: &str) -> Option<Process> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(rides, database))).ok()
}
