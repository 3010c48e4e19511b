//! Failover of a real pair: a primary and its standby, each a separate PostgreSQL cluster, and two servers with
//! workers that reach them through a line that can be switched. Every process of the primary is killed, and the
//! standby is promoted. The provider's ledgers judge.
//!
//! With a synchronous standby every acknowledged commit survives, and every promise holds. With one that
//! lags, acknowledged commits are lost; the comment of that test says what holds then.
//!
//! `FAILOVER_SEED=… FAILOVERS=… cargo test --all-features --test processes failover::` repeats a schedule, and says how
//! many.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::support::cluster::Cluster;
use crate::support::load::{Answer, Booked, Client, Ledger, Load};
use crate::support::look::Look;
use crate::support::network::Line;
use crate::support::rides::{Node, Random, Rides, number};
use crate::support::{answer_within, until};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

/// A primary with its standby, and the servers that use it.
struct World {
    primary: Cluster,
    standby: Cluster,
    line: Line,
    rides: Rides,
    nodes: [Node; 2],
}

impl World {
    async fn start(seed: u64, synchronous: bool) -> Self {
        let (primary, database) = tokio::task::block_in_place(|| {
            let primary = Cluster::start();
            let database = primary.new_database();
            (primary, database)
        });
        let standby = standby_of(&primary, synchronous).await;
        let line = Line::to(primary.port(), seed).await;
        let database = line.url(&database);
        let (rides, nodes) = tokio::task::block_in_place(|| {
            let rides =
                Rides::start_with(|_| database, &[("--workers", "false"), ("--delivery", "2")]);
            let nodes = [(); 2].map(|()| rides.another(&[("--workers", "true")], &[]));
            (rides, nodes)
        });
        rides.faults(json!({ "delay_before_ms": 5, "delay_after_ms": 5 })).await;
        rides.pilot_faults(json!({ "delay_before_ms": 5, "delay_after_ms": 5 })).await;
        Self { primary, standby, line, rides, nodes }
    }

    fn client(&self, patience: Duration) -> Client {
        Client::new(&[self.nodes[0].url(), self.nodes[1].url()], patience, PATIENCE)
    }

    /// The primary is lost, and the standby takes its place; the servers do not know yet.
    fn lose_the_primary(&self) {
        tokio::task::block_in_place(|| {
            self.primary.kill_9();
            self.line.cut();
            self.standby.promote();
        });
    }

    fn turn_over(&self) {
        self.line.turn_over(self.standby.port());
    }

    /// The keys of the requests that the standby knows as completed.
    async fn completed_on_the_standby(&self) -> HashSet<String> {
        let direct = Line::url_at(&self.rides.database, self.standby.port());
        Look::at(&direct).await.completed().await
    }

    /// A new standby for the current primary.
    async fn complete_the_pair(&mut self) {
        let next = standby_of(&self.standby, true).await;
        self.primary = std::mem::replace(&mut self.standby, next);
    }
}

/// A standby that follows, and that each commit waits for if it is synchronous.
async fn standby_of(primary: &Cluster, synchronous: bool) -> Cluster {
    let standby = tokio::task::block_in_place(|| primary.standby());
    let state = if synchronous {
        primary.change("synchronous_standby_names = '*'\n");
        "sync"
    } else {
        "async"
    };
    let is_there = || primary.ask("SELECT sync_state FROM pg_stat_replication") == state;
    until(async || tokio::task::block_in_place(is_there)).await;
    standby
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_g7_g8_failover_to_a_synchronous_standby_loses_nothing() {
    let seed = number("FAILOVER_SEED", std::process::id().into());
    let failovers = number("FAILOVERS", 3);
    println!("synchronous: FAILOVER_SEED={seed} FAILOVERS={failovers}");
    let mut world = World::start(seed, true).await;
    let client = world.client(Duration::from_secs(20));
    let load = Load::start(client.clone(), 8, seed);
    let (mut random, mut kills, mut longest) = (Random(seed), 0, Duration::ZERO);
    for round in 0..failovers {
        load.goes_on(20 + random.below(20)).await;
        let lost = Instant::now();
        world.lose_the_primary();
        world.turn_over();
        // Sometimes a server dies at the same time.
        if random.below(3) == 0 {
            let node = &mut world.nodes[random.below(2) as usize];
            tokio::task::block_in_place(|| node.kill_and_restart());
            kills += 1;
        }
        load.goes_on(1).await;
        longest = longest.max(lost.elapsed());
        if round + 1 < failovers {
            world.complete_the_pair().await;
        }
    }
    load.goes_on(20).await;
    let booked = load.stop().await;
    let look = Look::at(&world.rides.database).await;
    let settled = look.settles_within(PATIENCE).await;
    let ledger = Ledger::of(&world.rides, &client, &booked).await;
    println!(
        "synchronous: failovers {failovers}, servers killed {kills}, from the loss of the primary to the \
         next ride {:.1} s at most, settled {:.1} s after the last answer: {ledger}",
        longest.as_secs_f64(),
        settled.as_secs_f64()
    );
    ledger.assert_exact();
    assert_eq!(look.count("rides WHERE charge_id IS NOT NULL").await as usize, ledger.charges);
}

/// Commits that the primary had acknowledged are not on the standby. Then:
///
/// * no card is charged twice for one key, even if only the client's retry is left (G1): the provider's key is
///   derived, not stored, and so are the parameters about a ride that the provider receives. So the retry of a
///   lost request gets its charge;
/// * the answers that the standby had are replayed, byte for byte;
/// * each key is settled, and none waits for an operator.
///
/// Not promised, and only counted: the answers of requests whose commits were lost, and a second call to a
/// provider that honors no key, because the intent of the first was lost with them.
#[tokio::test(flavor = "multi_thread")]
async fn g1_failover_that_loses_acknowledged_commits_charges_no_rider_twice() {
    let seed = number("FAILOVER_SEED", std::process::id().into());
    let failovers = number("FAILOVERS", 2);
    println!("asynchronous: FAILOVER_SEED={seed} FAILOVERS={failovers}");
    let (mut keys, mut charged, mut lost, mut other) = (0, 0, 0, 0);
    let mut told_twice = 0;
    for round in 0..failovers {
        let world = World::start(seed + round, false).await;
        let client = world.client(Duration::from_secs(20));
        let load = Load::start(client.clone(), 8, seed + round);
        load.goes_on(30).await;
        // From now on the standby receives nothing, and no commit waits for it.
        tokio::task::block_in_place(|| {
            world.standby.ask("ALTER SYSTEM SET primary_conninfo = ''");
            world.standby.ask("SELECT pg_reload_conf()");
        });
        let left = "SELECT count(*) FROM pg_stat_replication";
        until(async || tokio::task::block_in_place(|| world.primary.ask(left)) == "0").await;
        load.goes_on(30).await;
        let booked = load.stop().await;
        world.lose_the_primary();
        let survived = world.completed_on_the_standby().await;
        world.turn_over();

        for Booked { user, key, answer } in &booked {
            let again = settled(&client, user, key).await;
            let is_the_same = again == *answer;
            if survived.contains(key) {
                assert!(is_the_same, "{key}: the standby had its answer");
                continue;
            }
            lost += 1;
            other += usize::from(!is_the_same);
        }
        let look = Look::at(&world.rides.database).await;
        let open = "atomic_phases_keys WHERE status <> 'completed'";
        until(async || look.count(open).await == 0).await;
        let charges = world.rides.charges().await;
        let provider_keys: HashSet<String> =
            charges.iter().map(|charge| charge["idempotency_key"].to_string()).collect();
        let to_charge = booked.iter().filter(|booked| booked.answer.0 == 201).count();
        assert_eq!(
            (charges.len(), provider_keys.len()),
            (to_charge, to_charge),
            "one for each key"
        );
        let told = world.rides.notifications().await;
        told_twice += told.len() - told.iter().collect::<HashSet<_>>().len();
        keys += booked.len();
        charged += charges.len();
    }
    println!(
        "asynchronous: failovers {failovers}, requests {keys}, charges {charged}, charged twice 0; answers \
         whose commit was lost {lost}: told again as they were {}, other {other}; pilots told twice \
         {told_twice}",
        lost - other
    );
    assert!(lost > 0, "no acknowledged commit was lost, so nothing was shown");
}

/// Retries until there is a final answer.
async fn settled(client: &Client, user: &str, key: &str) -> Answer {
    let send = async || match client.send(0, user, key).await {
        Ok(answer @ (201 | 402, _)) => Ok(answer),
        last => Err(format!("{key} is stuck: {last:?}")),
    };
    answer_within(PATIENCE, send).await
}
