//! A network that goes silent: it accepts bytes and does not pass them on, in one direction or in both, and reports
//! no error. It is between a server and its database, or between a server and its providers. When it is back, some
//! connections continue, late; some are reset; some stay half open for ever. The provider's ledgers judge; and
//! every request settles within a time limit (G17).
//!
//! `PARTITION_SEED=… PARTITIONS=… cargo test --all-features --test processes partition::` repeats a schedule, and says
//! how many.

use std::time::{Duration, Instant};

use crate::support::cluster;
#[cfg(feature = "mysql")]
use crate::support::db::{my, open_my, prepare_my, sessions};
use crate::support::db::{open_pg, prepare_pg};
use crate::support::load::{Booked, Client, Ledger, Load};
use crate::support::look::Look;
#[cfg(feature = "mysql")]
use crate::support::mariadb;
use crate::support::network::{Direction, Line};
use crate::support::rides::{Node, Random, Rides, number};
use crate::support::{App, TestDb, finished, key, scope, until};
#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::Postgres;
use atomic_phases::{Engine, PhaseResult, Reply, Tx, atomic_phases};
#[cfg(feature = "mysql")]
use diesel_async::SimpleAsyncConnection;
use serde::{Deserialize, Serialize};
use serde_json::json;

const DIRECTIONS: [Direction; 3] = [Direction::ToServer, Direction::ToClient, Direction::Both];
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest that a request may stay unsettled when the network is back: the store waits 15 s for the
/// answer to a statement that is on a half-open connection, the flagship 20 s for its charge; then lease,
/// time limit of the at-most-once phase and sweep.
const BOUND: Duration = Duration::from_secs(40);

/// The server ends a transaction whose client is silent. 60 s without that setting.
const IDLE_IN_TRANSACTION: &str = "?options=-c%20idle_in_transaction_session_timeout%3D3000";

/// Two servers with workers. One of them reaches its database or provider through a line that can fall silent.
struct World {
    rides: Rides,
    nodes: [Node; 2],
    line: Line,
}

#[derive(Clone, Copy, PartialEq)]
enum Between {
    Database,
    Provider,
}

impl World {
    async fn start(between: Between, seed: u64) -> Self {
        let database = tokio::task::block_in_place(cluster::new_database) + IDLE_IN_TRANSACTION;
        let rides = tokio::task::block_in_place(|| {
            Rides::start_with(|_| database, &[("--workers", "false"), ("--delivery", "2")])
        });
        let (option, url) = match between {
            Between::Database => ("--database-url", &rides.database),
            Between::Provider => ("--charge-api", &rides.provider.url),
        };
        let line = Line::to(port(url), seed).await;
        let by_the_line = line.url(url);
        let nodes = tokio::task::block_in_place(|| {
            let workers = ("--workers", "true");
            [rides.another(&[workers], &[]), rides.another(&[workers, (option, &by_the_line)], &[])]
        });
        rides.faults(json!({ "delay_before_ms": 5, "delay_after_ms": 5 })).await;
        rides.pilot_faults(json!({ "delay_before_ms": 5, "delay_after_ms": 5 })).await;
        Self { rides, nodes, line }
    }
}

fn port(url: &str) -> u16 {
    let (_, tail) = url.rsplit_once(':').unwrap();
    let digits: String = tail.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

async fn g1_g17_a_silent_network(name: &str, between: Between) {
    let seed = number("PARTITION_SEED", std::process::id().into());
    let partitions = number("PARTITIONS", 3);
    println!("{name}: PARTITION_SEED={seed} PARTITIONS={partitions}");
    let world = World::start(between, seed).await;
    let urls = [world.nodes[0].url(), world.nodes[1].url()];
    let client = Client::new(&urls, Duration::from_secs(3), PATIENCE);
    let load = Load::start(client.clone(), 8, seed);
    let mut random = Random(seed);
    let first = random.below(3);
    for round in 0..partitions {
        load.goes_on(10 + random.below(20)).await;
        world.line.silence(DIRECTIONS[((first + round) % 3) as usize]);
        // Shorter and longer than the lease, and sometimes longer than the store waits for an answer.
        let millis = if random.below(4) == 0 { 16_000 } else { 300 + random.below(4000) };
        tokio::time::sleep(Duration::from_millis(millis)).await;
        world.line.heal();
    }
    let healed = Instant::now();
    let mut booked = load.stop().await;
    let look = Look::at(&world.rides.database).await;
    look.settles_within(BOUND.saturating_sub(healed.elapsed())).await;
    let settled = healed.elapsed();
    // The server that was cut off works as well as the other one.
    let cut_off = Client::new(&urls[1..], Duration::from_secs(3), BOUND);
    let mut slowest = Duration::ZERO;
    for ride in 0..20 {
        let began = Instant::now();
        let key = format!("after-{ride}");
        let answer = cut_off.book(&key, &mut random).await;
        slowest = slowest.max(began.elapsed());
        booked.push(Booked::new(key, answer));
    }
    let ledger = Ledger::of(&world.rides, &client, &booked).await;
    let [late, reset, half_open] = world.line.met();
    println!(
        "{name}: silences {partitions}, connections that went on late {late}, were reset {reset}, stayed \
         half open {half_open}; all settled {:.1} s after the last, slowest of 20 new requests of that server \
         {:.1} s: {ledger}",
        settled.as_secs_f64(),
        slowest.as_secs_f64()
    );
    ledger.assert_exact();
    assert!(late + reset + half_open > 0, "no connection met a silence");
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_g17_a_silent_network_before_the_database() {
    g1_g17_a_silent_network("database", Between::Database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_g17_a_silent_network_before_the_provider() {
    g1_g17_a_silent_network("provider", Between::Provider).await;
}

/// A request that is blocked in the transaction of one of its phases.
#[derive(Clone, Serialize, Deserialize)]
struct Stands {
    in_phase: usize,
}

#[derive(Serialize, Deserialize)]
struct Begun;

#[derive(Serialize, Deserialize)]
struct Pinned;

impl Stands {
    async fn stand(&self, phase: usize, app: &App) {
        if self.in_phase == phase {
            app.provider.call("stands", "nothing").await;
        }
    }
}

#[atomic_phases(name = "stands", version = 1)]
impl<Db: TestDb> Stands {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Db>, app: &App) -> PhaseResult<Begun> {
        self.stand(0, app).await;
        Db::insert_step(tx, "stands", "begun").await?;
        Ok(Begun)
    }

    #[phase(isolation = "repeatable_read")]
    async fn pinned(&self, tx: &mut Tx<'_, Db>, app: &App) -> PhaseResult<Pinned> {
        self.stand(1, app).await;
        Db::insert_step(tx, "stands", "pinned").await?;
        Ok(Pinned)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, app: &App) -> PhaseResult<Reply> {
        self.stand(2, app).await;
        Db::insert_step(tx, "stands", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// Both ends take the phase's connection for alive: its next statement is never answered, and no error comes. TCP
/// notices nothing, because the proxy in between lives.
async fn g17_a_connection_that_is_half_open_for_ever<Db: TestDb>(
    in_phase: usize,
    line: Line,
    (db, aside): (Db, Db),
    server_ends_it: impl AsyncFnOnce(&Db),
) {
    let app = App::default();
    let builder = Engine::builder(db).app(app.clone()).register::<Stands>();
    let engine = builder.lease(Duration::from_secs(6)).build().unwrap();
    let mut gate = app.provider.stop_before_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("k"), Stands { in_phase }).into_future());
    let stands = gate.recv().await.unwrap();
    line.silence(Direction::Both);
    until(async || line.met()[2] > 0).await;
    app.provider.stop_no_more();
    stands.send(()).unwrap();
    until(async || line.swallowed() > 0).await;
    server_ends_it(&aside).await;
    line.heal();
    let told = tokio::time::timeout(Duration::from_secs(60), call).await;
    finished(told.expect("it waits for an answer that never comes").unwrap());
    assert_eq!(app.provider.calls().len(), 2, "the phase was run once more");
    assert_eq!(aside.number("SELECT count(*) FROM steps").await, 3, "and each was written once");
}

async fn g17_a_half_open_connection_to_postgres(
    in_phase: usize,
    store: impl FnOnce(Postgres) -> Postgres,
) {
    let url = tokio::task::block_in_place(cluster::new_database) + IDLE_IN_TRANSACTION;
    let aside = open_pg(&url, 2).await;
    prepare_pg(&aside).await;
    let line = Line::that_forgets(port(&url)).await;
    let db = store(open_pg(&line.url(&url), 4).await);
    g17_a_connection_that_is_half_open_for_ever(
        in_phase,
        line,
        (db, aside),
        async |_: &Postgres| {},
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_first_phase_on_a_connection_that_is_half_open_for_ever_is_run_again() {
    g17_a_half_open_connection_to_postgres(0, |db| db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_that_locks_its_row_on_a_half_open_connection_is_run_again() {
    g17_a_half_open_connection_to_postgres(1, |db| db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_on_a_half_open_connection_of_the_applications_is_run_again() {
    g17_a_half_open_connection_to_postgres(2, |db| Postgres::with_pool(db.pool().clone())).await;
}

#[cfg(feature = "mysql")]
async fn g17_a_half_open_connection_to_mariadb(in_phase: usize) {
    let url = tokio::task::block_in_place(mariadb::new_database);
    let aside = prepare_my(&url).await;
    let line = Line::that_forgets(port(&url)).await;
    let db = open_my(&line.url(&url), 4).await;
    g17_a_connection_that_is_half_open_for_ever(in_phase, line, (db, aside), end_all_sessions)
        .await;
}

/// What the server does to each that is idle in a transaction for a minute.
#[cfg(feature = "mysql")]
async fn end_all_sessions(db: &Mysql) {
    let sessions = sessions();
    let others = format!(
        "SELECT GROUP_CONCAT(id) FROM {sessions} WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    );
    let others = db.text(&others).await;
    let mut conn = my(db.__url()).await;
    for id in others.split(',') {
        // It may have ended by itself.
        let _ = conn.batch_execute(&format!("KILL {id}")).await;
    }
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_first_phase_on_a_half_open_connection_is_run_again_on_mariadb() {
    g17_a_half_open_connection_to_mariadb(0).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_that_locks_its_row_on_a_half_open_connection_is_run_again_on_mariadb() {
    g17_a_half_open_connection_to_mariadb(1).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_later_phase_on_a_half_open_connection_is_run_again_on_mariadb() {
    g17_a_half_open_connection_to_mariadb(2).await;
}
