//! The flagship on a distributed database: two servers with workers, on the Citus cluster whose coordinator
//! `CITUS_URL` names (`tests/README.md` says what the cluster needs). One test runs them under load, the other kills and
//! restarts worker nodes of the database meanwhile. The provider's ledgers judge. No test moves a shard or leaves a node
//! down: `docs/scaling.md` has the results of such runs. Without a cluster, these tests test nothing, and say so.
//!
//! `CITUS_URL=… CITUS_RIDES=… CITUS_KILLS=… cargo test --all-features --test processes citus:: -- --nocapture`

use std::time::Duration;

use crate::support::load::{Client, Ledger, Load};
use crate::support::look::Look;
use crate::support::rides::{Random, Rides, number, postgres};
use crate::support::{citus, cluster};

const PATIENCE: Duration = Duration::from_secs(120);

/// Books this many rides, and kills and restarts a worker node this many times meanwhile.
async fn ridden(what: &str, rides: u64, kills: u64) {
    if cluster::citus().is_none() {
        println!("{what}: no Citus, nothing was shown: CITUS_URL names a coordinator");
        return;
    }
    let seed = number("CITUS_SEED", std::process::id().into());
    let (world, nodes) = tokio::task::block_in_place(|| {
        let world = Rides::start_with(postgres, &[("--workers", "false")]);
        let nodes = [(); 2].map(|()| world.another(&[("--workers", "true")], &[]));
        (world, nodes)
    });
    let servers = [nodes[0].url(), nodes[1].url()];
    let client = Client::new(&servers, Duration::from_secs(20), PATIENCE);
    let load = Load::start(client.clone(), 8, seed);
    let mut random = Random(seed);
    for _ in 0..kills {
        load.goes_on(rides / (kills + 1)).await;
        tokio::task::block_in_place(|| {
            let workers = citus::workers();
            citus::kill_and_restart(&workers[random.below(workers.len() as u64) as usize]);
        });
    }
    load.goes_on(rides / (kills + 1)).await;
    let booked = load.stop().await;
    Look::at(&world.database).await.settles_within(PATIENCE).await;
    let ledger = Ledger::of(&world, &client, &booked).await;
    println!("{what}: worker nodes killed {kills}: {ledger}");
    ledger.assert_exact();
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_two_servers_on_a_distributed_database_charge_each_ride_once() {
    ridden("distributed", number("CITUS_RIDES", 200), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_worker_node_that_is_killed_under_load_loses_nothing() {
    ridden("distributed, killed", number("CITUS_RIDES", 200), number("CITUS_KILLS", 3)).await;
}
