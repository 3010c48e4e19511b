//! A MariaDB server that is killed and restarted under load, with two servers of the flagship that are killed from
//! time to time. The provider's ledgers judge.
//!
//! `CRASH_SEED=… CRASHES=… cargo test --all-features --test processes mariadb::` repeats a schedule, and says how many.

use std::time::{Duration, Instant};

use crate::support::load::{Client, Ledger, Load};
use crate::support::look::Look;
use crate::support::mariadb::Server;
use crate::support::rides::{Random, Rides, number};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

/// Y36: an acknowledged commit survives `kill -9` of the server, and one without an answer is resolved.
#[tokio::test(flavor = "multi_thread")]
async fn g1_g7_g8_a_server_that_is_killed_under_load_loses_nothing() {
    let seed = number("CRASH_SEED", std::process::id().into());
    let crashes = number("CRASHES", 4);
    println!("mariadb: CRASH_SEED={seed} CRASHES={crashes}");
    let (server, rides, mut nodes) = tokio::task::block_in_place(|| {
        let server = Server::start(&[]);
        let database = server.new_database();
        let rides = Rides::start_with(|_| database, &[("--workers", "false"), ("--delivery", "2")]);
        let nodes = [(); 2].map(|()| rides.another(&[("--workers", "true")], &[]));
        (server, rides, nodes)
    });
    rides.faults(json!({ "delay_before_ms": 5, "delay_after_ms": 5 })).await;
    rides.pilot_faults(json!({ "delay_before_ms": 5, "delay_after_ms": 5 })).await;
    let urls = [nodes[0].url().to_owned(), nodes[1].url().to_owned()];
    let client = Client::new(&[&urls[0], &urls[1]], Duration::from_secs(20), PATIENCE);
    let load = Load::start(client.clone(), 8, seed);
    let (mut random, mut kills, mut longest) = (Random(seed), 0, Duration::ZERO);
    for _ in 0..crashes {
        load.goes_on(20 + random.below(20)).await;
        let lost = Instant::now();
        tokio::task::block_in_place(|| {
            server.kill_9();
            server.start_server();
            // Sometimes a server of the flagship dies with it.
            if random.below(3) == 0 {
                nodes[random.below(2) as usize].kill_and_restart();
                kills += 1;
            }
        });
        load.goes_on(1).await;
        longest = longest.max(lost.elapsed());
    }
    load.goes_on(20).await;
    let booked = load.stop().await;
    let look = Look::at(&rides.database).await;
    let settled = look.settles_within(PATIENCE).await;
    let ledger = Ledger::of(&rides, &client, &booked).await;
    println!(
        "mariadb: killed {crashes} times, servers of ours killed {kills}, from a kill to the next ride {:.1} s \
         at most, settled {:.1} s after the last answer: {ledger}",
        longest.as_secs_f64(),
        settled.as_secs_f64()
    );
    ledger.assert_exact();
    assert_eq!(look.count("rides WHERE charge_id IS NOT NULL").await as usize, ledger.charges);
}
