//! Real processes that are stopped (`SIGSTOP`) for longer than their lease, as in a pause of a virtual machine: at
//! each crash point of the flagship's request and of its recovery, one point per run, and at random under load.
//! Another process takes over and finishes. Then the frozen one continues (`SIGCONT`), and must do nothing: no
//! call, no write, and no answer except the one that was given.
//!
//! `FROZEN_SEED=… FREEZES=… cargo test --all-features --test processes frozen::` repeats the random freezes, and says
//! how many. Needs the example with its crash points: `cargo build --example rocket_rides --all-features`.
#![cfg(feature = "fault-injection")]

use std::time::{Duration, Instant};

use crate::support::load::{Answer, Client, Ledger, Load, effects};
use crate::support::look::Look;
use crate::support::rides::{Node, Random, Rides, number, postgres, sqlite};
use crate::support::until;
use atomic_phases::fault::ENV;
use serde_json::json;
use tokio::task::JoinHandle;

const LEASE: &str = "0.5";
const WITHOUT_WORKERS: &[(&str, &str)] = &[("--workers", "false")];
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a client waits for the answer of a process that is frozen: until one was frozen at each of the other points.
const UNTIL_THAWED: Duration = Duration::from_secs(900);

/// The server frees a stopped holder's row lock when the holder's transaction has been idle for this long.
const IDLE_IN_TRANSACTION: &str = "?options=-c%20idle_in_transaction_session_timeout%3D700";

/// The points that a request passes, in order: an undisturbed request, or the rest of one whose process aborted at
/// `aborted`. Each point has its visit, as a fault names it.
async fn points(rides: &Rides, aborted: Option<&str>) -> Vec<String> {
    let key = if aborted.is_some() { "listed-recovery" } else { "listed" };
    if let Some(point) = aborted {
        abort_at(rides, point, key).await;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let lists = tokio::task::block_in_place(|| {
        // A long lease is not renewed; no other run would pass a renewal.
        let changes = [WITHOUT_WORKERS[0], ("--lease", "30")];
        rides.another_saying(&changes, &[(ENV, "list")], file.reopen().unwrap())
    });
    assert_eq!(client(lists.url()).book(key, &mut Random(1)).await.0, 201);
    let listed = std::fs::read_to_string(file.path()).unwrap();
    let lines = listed.lines().filter_map(|line| line.strip_prefix(ENV)?.strip_prefix(": "));
    let passed: Vec<&str> = lines.collect();
    assert!(
        passed.contains(&"receipt_staged/before_commit"),
        "no crash points: build it with `cargo build --example rocket_rides --all-features`"
    );
    let visits = passed.iter().enumerate().map(|(index, point)| {
        format!("{point}#{}", passed[..index].iter().filter(|earlier| *earlier == point).count())
    });
    visits.collect()
}

fn client(url: &str) -> Client {
    Client::new(&[url], PATIENCE, PATIENCE)
}

/// A process with this fault and without workers, so that all points that it passes belong to the test's requests.
fn node(rides: &Rides, fault: &str) -> Node {
    tokio::task::block_in_place(|| rides.another(WITHOUT_WORKERS, &[(ENV, fault)]))
}

/// Leaves a request that its process did not finish.
async fn abort_at(rides: &Rides, point: &str, key: &str) {
    let mut aborts = node(rides, &format!("{point}=abort"));
    let answer = client(aborts.url()).post(0, key).await;
    assert!(answer.is_err(), "{point}: the process was to die, and it answered {answer:?}");
    tokio::task::block_in_place(|| aborts.process.wait());
}

/// A process that is stopped at a point of a request.
struct Frozen {
    node: Node,
    key: String,
    call: JoinHandle<Answer>,
}

impl Frozen {
    async fn at(rides: &Rides, point: &str, key: String) -> Self {
        let node = node(rides, &format!("{point}=stop"));
        let (asked, its_key) =
            (Client::new(&[node.url()], UNTIL_THAWED, UNTIL_THAWED), key.clone());
        let call = tokio::spawn(async move { asked.book(&its_key, &mut Random(1)).await });
        until(async || node.process.is_stopped()).await;
        Self { node, key, call }
    }

    /// Lets it continue until it has nothing left to run and ends by itself. `answer`: the answer that the client
    /// received from another process.
    async fn thaws(mut self, answer: &Answer) {
        self.node.process.signal("CONT");
        assert_eq!(self.call.await.unwrap(), *answer, "{}: another answer", self.key);
        let status = tokio::task::block_in_place(|| self.node.process.terminate());
        assert!(status.success(), "{}: {status}", self.key);
    }
}

/// Whether a stopped process has this SQLite file's write lock: a running one would release it.
fn is_held(path: &str) -> bool {
    let file = rusqlite::Connection::open(path).unwrap();
    file.busy_timeout(Duration::from_secs(2)).unwrap();
    file.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_err()
}

async fn g3_a_frozen_process_does_nothing_more(store: &str, rides: Rides) {
    let began = Instant::now();
    let look = Look::at(&rides.database).await;
    let bystander = client(&rides.server.url);
    let undisturbed = points(&rides, None).await;
    // In the recovery of a request, the process that took it over is the stopped one.
    let left_at = "charge_created/after_call#0";
    let recovery = points(&rides, Some(left_at)).await;
    assert!(recovery.iter().any(|point| point.contains("after_take_over")), "{recovery:?}");
    let (mut frozen, mut held) = (Vec::new(), 0);
    for (index, point) in undisturbed.iter().chain(&recovery).enumerate() {
        let key = format!("{index} {point}").replace(' ', "-");
        if index >= undisturbed.len() {
            abort_at(&rides, left_at, &key).await;
        }
        let stands_still = Frozen::at(&rides, point, key).await;
        if rides.database.strip_prefix("sqlite://").is_some_and(is_held) {
            // No other process can write before it continues, and none claims to.
            let (status, _) = bystander.post(0, &stands_still.key).await.unwrap();
            assert!([409, 503].contains(&status), "{point}: {status}");
            stands_still.node.process.signal("CONT");
            let (status, _) = stands_still.call.await.unwrap();
            assert_eq!(status, 201, "{point}");
            held += 1;
        } else {
            frozen.push(stands_still);
        }
    }
    // Another process finishes each of them, with its workers.
    let another = tokio::task::block_in_place(|| rides.another(&[("--workers", "true")], &[]));
    let other = client(another.url());
    let mut answers = Vec::new();
    for one in &frozen {
        answers.push(other.book(&one.key, &mut Random(1)).await);
    }
    look.settles_within(PATIENCE).await;
    let told = async || (rides.charge_calls().await, rides.notifications().await);
    let before = (look.written().await, told().await);
    for (one, answer) in frozen.into_iter().zip(&answers) {
        one.thaws(answer).await;
    }
    let after = (look.written().await, told().await);
    assert_eq!(after, before, "a thawed process did something more");

    let requests = undisturbed.len() + recovery.len() + 2;
    let effects = effects(&rides).await;
    let wrong = effects.values().filter(|effects| **effects != (1, 1)).count();
    println!(
        "{store}: processes frozen at {} points of a request and {} of its recovery, {held} of them with \
         the database's lock; the others for longer than their lease of {LEASE} s, and finished by \
         another: requests {requests}, rides {}, with other than one charge and one notification {wrong}, \
         calls and writes of the thawed 0; {:.0} s",
        undisturbed.len(),
        recovery.len(),
        effects.len(),
        began.elapsed().as_secs_f64(),
    );
    assert_eq!((effects.len(), wrong), (requests, 0));
}

/// Two processes under load, each frozen from time to time. A freeze is not longer than lease and time limit of the
/// at-most-once phase together: otherwise a call on its way to a provider that honors no key could be made again.
async fn g1_frozen_at_random_under_load(store: &str, rides: Rides) {
    let seed = number("FROZEN_SEED", std::process::id().into());
    let freezes = number("FREEZES", 6);
    println!("{store}: FROZEN_SEED={seed} FREEZES={freezes}");
    rides.faults(json!({ "delay_before_ms": 10, "delay_after_ms": 10 })).await;
    rides.pilot_faults(json!({ "delay_before_ms": 10, "delay_after_ms": 10 })).await;
    let nodes = [(); 2]
        .map(|()| tokio::task::block_in_place(|| rides.another(&[("--workers", "true")], &[])));
    let client = Client::new(&[nodes[0].url(), nodes[1].url()], Duration::from_secs(2), PATIENCE);
    let load = Load::start(client.clone(), 8, seed);
    let look = Look::at(&rides.database).await;
    let (mut random, mut longest) = (Random(seed), 0);
    for _ in 0..freezes {
        let frozen = &nodes[random.below(2) as usize].process;
        let millis = 100 + random.below(1500);
        frozen.signal("STOP");
        tokio::time::sleep(Duration::from_millis(millis)).await;
        frozen.signal("CONT");
        longest = longest.max(millis);
        load.goes_on(1 + random.below(20)).await;
    }
    let booked = load.stop().await;
    let settled = look.settles_within(PATIENCE).await;
    let ledger = Ledger::of(&rides, &client, &booked).await;
    println!(
        "{store}: freezes {freezes}, the longest {longest} ms (lease {LEASE} s), settled {:.1} s after the \
         last: {ledger}",
        settled.as_secs_f64()
    );
    ledger.assert_exact();
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_frozen_at_random_under_load_on_sqlite() {
    g1_frozen_at_random_under_load("sqlite", start(sqlite)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_frozen_at_random_under_load_on_postgres() {
    let rides = start(|dir| postgres(dir) + IDLE_IN_TRANSACTION);
    g1_frozen_at_random_under_load("postgres", rides).await;
}

fn start(database: fn(&tempfile::TempDir) -> String) -> Rides {
    tokio::task::block_in_place(|| {
        Rides::start_with(database, &[("--lease", LEASE), WITHOUT_WORKERS[0]])
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_a_frozen_process_does_nothing_more_on_sqlite() {
    g3_a_frozen_process_does_nothing_more("sqlite", start(sqlite)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_a_frozen_process_does_nothing_more_on_postgres() {
    let rides = start(|dir| postgres(dir) + IDLE_IN_TRANSACTION);
    g3_a_frozen_process_does_nothing_more("postgres", rides).await;
}
