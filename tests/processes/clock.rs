//! Clocks that jump an hour ahead and an hour back during requests, and that run too fast or too slow: the
//! application's, the database's, and, on SQLite, the one clock of both. The provider's ledgers judge.
//!
//! Needs libfaketime. `CLOCK_SEED=… JUMPS=… cargo test --all-features --test processes clock::` repeats a schedule, and
//! says how long it is.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::faketime::Clock;
use crate::support::load::{Client, Ledger, Load};
use crate::support::look::Look;
use crate::support::rides::{Node, Random, Rides, number, postgres, sqlite};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

const HOUR: f64 = 3600.0;
/// Later than ever before, so that nothing is left in the future.
const AT_LAST: f64 = 5.0 * HOUR;
/// A client retries at either server while its call is under way, so that the retry takes it over.
const IMPATIENT: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);

/// Two servers with workers that use these clocks.
fn nodes(rides: &Rides, clocks: [Option<&Clock>; 2]) -> [Node; 2] {
    clocks.map(|clock| {
        let variables = clock.map(Clock::variables).unwrap_or_default();
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        tokio::task::block_in_place(|| rides.another(&[("--workers", "true")], &variables))
    })
}

fn start(lease: &str, database: impl FnOnce(&tempfile::TempDir) -> String) -> Rides {
    let changes = [("--workers", "false"), ("--delivery", "2"), ("--lease", lease)];
    tokio::task::block_in_place(|| Rides::start_with(database, &changes))
}

/// Jumps, and in between runs ahead of the true time, or behind it.
async fn jumps(clock: &Clock, load: &Load, random: &mut Random, jumps: u64) {
    let mut ahead = 0.0;
    let first = random.below(2);
    for jump in 0..jumps {
        // An hour ahead, back, an hour behind, and back: each relative to the current time.
        ahead += if (jump / 2 + jump + first).is_multiple_of(2) { HOUR } else { -HOUR };
        clock.set(ahead);
        load.goes_on(5 + random.below(15)).await;
        let drift = if random.below(2) == 0 { 0.5 } else { -0.5 };
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            ahead += drift * 0.05;
            clock.set(ahead);
        }
    }
}

/// The jumps under load, and the state of the rides afterwards. `end`: the clock's offset when everything must
/// settle.
async fn g1_a_clock_that_jumps(
    name: &str,
    rides: &Rides,
    nodes: &[Node; 2],
    (clock, reads): (&Clock, impl AsyncFn() -> DateTime<Utc>),
    end: f64,
) -> Ledger {
    let seed = number("CLOCK_SEED", std::process::id().into());
    let count = number("JUMPS", 6);
    println!("{name}: CLOCK_SEED={seed} JUMPS={count}");
    // Slow enough that a jump happens during calls, and that another process may take them over.
    rides.faults(json!({ "delay_before_ms": 100, "delay_after_ms": 150 })).await;
    rides.pilot_faults(json!({ "delay_before_ms": 100, "delay_after_ms": 150 })).await;
    let urls = [nodes[0].url(), nodes[1].url()];
    let client = Client::new(&urls, IMPATIENT, PATIENCE);
    let load = Load::start(client.clone(), 8, seed);
    load.goes_on(10).await;
    jumps(clock, &load, &mut Random(seed), count).await;
    // The processes must see the jump, or the test tests nothing.
    clock.set(AT_LAST);
    let seen = reads().await;
    assert!(seen > Utc::now() + TimeDelta::hours(4), "{name}: the clock says {seen}");
    clock.set(end);
    let booked = load.stop().await;
    let look = Look::at(&rides.database).await;
    let settled = look.settles_within(PATIENCE).await;
    let taken_over = look.count("atomic_phases_keys WHERE lease_token > 1").await;
    let ledger = Ledger::of(rides, &client, &booked).await;
    println!(
        "{name}: jumps of an hour {count}, settled {:.1} s after the last answer, requests that \
         changed hands {taken_over}: {ledger}",
        settled.as_secs_f64()
    );
    ledger
}

/// The time that a server dates its answers with.
async fn date_of(node: &Node) -> DateTime<Utc> {
    // The server reads its clock once a second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let answer = reqwest::get(node.url()).await.unwrap();
    let date = answer.headers()["date"].to_str().unwrap().to_owned();
    DateTime::parse_from_rfc2822(&date).unwrap().to_utc()
}

/// The application's clock decides nothing: with a long lease, no request changes hands.
#[tokio::test(flavor = "multi_thread")]
async fn g1_the_clock_of_the_servers_jumps() {
    let rides = start("60", postgres);
    let clock = Clock::new();
    let nodes = nodes(&rides, [Some(&clock), None]);
    let reads = (&clock, async || date_of(&nodes[0]).await);
    g1_a_clock_that_jumps("servers", &rides, &nodes, reads, 0.0).await.assert_exact();
    let look = Look::at(&rides.database).await;
    assert_eq!(look.count("atomic_phases_keys WHERE lease_token > 1").await, 0, "taken over");
}

/// The database's clock decides when a lease ends. If it jumps ahead, leases of live holders end, and the holders
/// are fenced. If it jumps back, leases of dead holders last longer. No effect is made twice in either case.
#[tokio::test(flavor = "multi_thread")]
async fn g1_the_clock_of_the_database_jumps() {
    let clock = Clock::new();
    let variables = clock.variables();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let cluster =
        tokio::task::block_in_place(|| Cluster::start_with(&std::env::temp_dir(), &variables));
    let rides = start("1", |_| cluster.new_database());
    let nodes = nodes(&rides, [None, None]);
    let reads = (&clock, async || {
        let now = "SELECT extract(epoch FROM clock_timestamp())::bigint";
        let seconds = tokio::task::block_in_place(|| cluster.ask(now)).parse().unwrap();
        DateTime::from_timestamp(seconds, 0).unwrap()
    });
    g1_a_clock_that_jumps("database", &rides, &nodes, reads, AT_LAST).await.assert_exact();
}

/// On SQLite both have one clock.
#[tokio::test(flavor = "multi_thread")]
async fn g1_the_clock_of_the_machine_jumps_on_sqlite() {
    let clock = Clock::new();
    let rides = start("1", sqlite);
    let nodes = nodes(&rides, [Some(&clock), Some(&clock)]);
    let reads = (&clock, async || date_of(&nodes[0]).await);
    g1_a_clock_that_jumps("machine", &rides, &nodes, reads, AT_LAST).await.assert_exact();
}
