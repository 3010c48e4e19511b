//! Real processes, really killed: rocket_rides under load, `kill -9` at random moments, on every store, with the
//! provider's ledger as judge.
//!
//! `KILL_SEED=… cargo test --test processes kill::` repeats a schedule; `KILLS=…` sets how many.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::process::free_port;
#[cfg(feature = "mysql")]
use crate::support::rides::mariadb;
use crate::support::rides::{Random, Rides, number, postgres, sqlite};
use crate::support::until;
use serde_json::Value;

struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    fn new(url: &str) -> Self {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        Self { http, url: format!("{url}/rides") }
    }

    async fn post(&self, user: &str, key: &str) -> Result<(u16, Vec<u8>), reqwest::Error> {
        let params = [
            ("origin_lat", "37.77"),
            ("origin_lon", "-122.42"),
            ("target_lat", "37.79"),
            ("target_lon", "-122.39"),
        ];
        let request =
            self.http.post(&self.url).header("authorization", user).header("idempotency-key", key);
        let answer = request.form(&params).send().await?;
        Ok((answer.status().as_u16(), answer.bytes().await?.to_vec()))
    }

    /// Retries until there is a final answer, as a client that wants its ride does.
    async fn book(&self, user: &str, key: &str, attempts: &AtomicU64) -> (u16, Vec<u8>) {
        let began = Instant::now();
        loop {
            attempts.fetch_add(1, Ordering::Relaxed);
            match self.post(user, key).await {
                Ok((status @ (201 | 402), body)) => return (status, body),
                Ok((409 | 503, _)) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                Ok((status, body)) => {
                    panic!("{key}: {status} {}", String::from_utf8_lossy(&body))
                }
            }
            assert!(began.elapsed() < Duration::from_secs(240), "{key} is stuck");
        }
    }
}

async fn g1_as_many_charges_as_rides_whatever_is_killed(store: &str, mut rides: Rides) {
    let seed = number("KILL_SEED", std::process::id().into());
    let kills = number("KILLS", 30);
    println!("{store}: KILL_SEED={seed} KILLS={kills}");
    // The charge takes a moment, so that a kill may hit before, during and after it.
    rides.faults(serde_json::json!({ "delay_before_ms": 4, "delay_after_ms": 4 })).await;
    let (stop, attempts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..16)
        .map(|client| {
            let (stop, attempts) = (stop.clone(), attempts.clone());
            let http = Client::new(&rides.server.url);
            tokio::spawn(async move {
                let mut answers = Vec::new();
                // A slow machine may kill faster than it books, and then there would be no load.
                while !stop.load(Ordering::Relaxed) || answers.len() as u64 <= kills / 16 {
                    let key = format!("c{client}-{}", answers.len());
                    let declines = answers.len() % 10 == 9;
                    let user =
                        if declines { "user-bad-source@example.com" } else { "user@example.com" };
                    let answer = http.book(user, &key, &attempts).await;
                    assert_eq!(answer.0, if declines { 402 } else { 201 });
                    answers.push((user, key, answer));
                }
                answers
            })
        })
        .collect();
    let mut random = Random(seed);
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(20 + random.below(230))).await;
        tokio::task::block_in_place(|| rides.kill_and_restart());
    }
    stop.store(true, Ordering::Relaxed);
    let mut answers = Vec::new();
    for client in clients {
        answers.extend(client.await.unwrap());
    }

    // The answer of a key never changes, not even after one more kill.
    rides.kill_and_restart();
    let http = Client::new(&rides.server.url);
    for (user, key, answer) in &answers {
        assert_eq!(http.book(user, key, &attempts).await, *answer, "{key}");
    }
    let charges = rides.charges().await;
    let mut of_ride: HashMap<String, u64> = HashMap::new();
    for charge in &charges {
        let ride = charge["description"].as_str().unwrap().rsplit_once(' ').unwrap().1.to_owned();
        *of_ride.entry(ride).or_default() += 1;
    }
    let told = rides.notifications().await;
    let charged: HashSet<&str> = charges.iter().map(|c| c["id"].as_str().unwrap()).collect();
    let booked: Vec<Value> = answers
        .iter()
        .filter(|(_, _, (status, _))| *status == 201)
        .map(|(_, _, (_, body))| serde_json::from_slice(body).unwrap())
        .collect();
    let duplicates = of_ride.values().filter(|times| **times > 1).count();
    let lost =
        booked.iter().filter(|ride| !charged.contains(ride["charge"].as_str().unwrap())).count();
    let different: HashSet<&str> = booked.iter().map(|ride| ride["id"].as_str().unwrap()).collect();
    println!(
        "{store}: requests {}, attempts {}, kills {}, charges {}, duplicates {duplicates}, lost {lost}",
        answers.len(),
        attempts.load(Ordering::Relaxed),
        kills + 1,
        charges.len(),
    );
    assert_eq!((duplicates, lost), (0, 0));
    assert_eq!(charges.len(), booked.len(), "as many charges as rides");
    assert_eq!(different.len(), booked.len(), "one ride for each key");
    // G2: the pilots' API honors no key.
    let pilots: HashSet<&str> = told.iter().map(String::as_str).collect();
    assert_eq!((told.len(), pilots.len()), (booked.len(), booked.len()), "one pilot for each ride");
    assert_eq!(pilots, different);
    assert!(answers.len() as u64 > kills, "the load was no load");
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_killed_under_load_on_sqlite() {
    let rides = tokio::task::block_in_place(|| Rides::start(sqlite));
    g1_as_many_charges_as_rides_whatever_is_killed("sqlite", rides).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_killed_under_load_on_postgres() {
    let rides = tokio::task::block_in_place(|| Rides::start(postgres));
    g1_as_many_charges_as_rides_whatever_is_killed("postgres", rides).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g1_killed_under_load_on_mariadb() {
    let rides = tokio::task::block_in_place(|| Rides::start(mariadb));
    g1_as_many_charges_as_rides_whatever_is_killed("mariadb", rides).await;
}

/// Two processes, one key, and a kill in between: the first dies while the charge is being answered.
async fn g1_another_process_takes_over(database: fn(&tempfile::TempDir) -> String) {
    let mut first = tokio::task::block_in_place(|| Rides::start(database));
    let mut arguments = first.arguments.clone();
    arguments[2] = format!("127.0.0.1:{}", free_port());
    let second = tokio::task::block_in_place(|| Rides::serve(&arguments));
    first.faults(serde_json::json!({ "delay_after_ms": 600_000 })).await;
    let client = Client::new(&first.server.url);
    let call = tokio::spawn(async move { client.post("user@example.com", "k").await });
    until(async || !first.charges().await.is_empty()).await;
    tokio::task::block_in_place(|| first.server.kill_9());
    assert!(call.await.unwrap().is_err(), "the first process is dead");
    first.faults(serde_json::json!({})).await;
    // The provider still processes the first call, so it may tell the second process to wait.
    let attempts = AtomicU64::new(0);
    let (status, body) = Client::new(&second.url).book("user@example.com", "k", &attempts).await;
    assert_eq!(status, 201);
    let charges = first.charges().await;
    assert_eq!(charges.len(), 1);
    let ride: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(ride["charge"], charges[0]["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_another_process_takes_over_on_sqlite() {
    g1_another_process_takes_over(sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_another_process_takes_over_on_postgres() {
    g1_another_process_takes_over(postgres).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g1_another_process_takes_over_on_mariadb() {
    g1_another_process_takes_over(mariadb).await;
}

/// SIGTERM: the running request finishes its phase and is released, the process ends by itself, and the next one
/// finishes the request immediately.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains() {
    let mut rides = tokio::task::block_in_place(|| Rides::start(sqlite));
    rides.faults(serde_json::json!({ "delay_after_ms": 3000 })).await;
    let client = Client::new(&rides.server.url);
    let call = tokio::spawn(async move { client.post("user@example.com", "k").await });
    until(async || !rides.charges().await.is_empty()).await;
    let status = tokio::task::block_in_place(|| rides.server.terminate());
    assert!(status.success(), "{status}");
    let (status, _) = call.await.unwrap().unwrap();
    assert_eq!(status, 503, "answered, not cut off");
    tokio::task::block_in_place(|| rides.kill_and_restart());
    let (status, _) = Client::new(&rides.server.url).post("user@example.com", "k").await.unwrap();
    assert_eq!(status, 201, "no lease to wait for");
    assert_eq!(rides.charges().await.len(), 1);
}

/// The flagship's statuses, over HTTP, as its documentation says.
#[tokio::test(flavor = "multi_thread")]
async fn rocket_rides_answers_each_outcome_with_its_status() {
    let rides = tokio::task::block_in_place(|| Rides::start(sqlite));
    let http = reqwest::Client::new();
    let url = format!("{}/rides", rides.server.url);
    let good = r#"{"origin_lat":1,"origin_lon":2,"target_lat":3,"target_lon":4}"#;
    let post = async |user: &str, keys: &[&str], kind: &str, body: &str| {
        let mut request = http.post(&url).header("content-type", kind).body(body.to_owned());
        if !user.is_empty() {
            request = request.header("authorization", user);
        }
        for key in keys {
            request = request.header("idempotency-key", *key);
        }
        let answer = request.send().await.unwrap();
        let header = |name| answer.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
        (answer.status().as_u16(), header("idempotent-replayed"), header("retry-after"))
    };
    let json = "application/json";
    let user = "user@example.com";
    let replayed = Some("true".to_owned());
    assert_eq!(post(user, &["a"], json, good).await, (201, None, None));
    assert_eq!(post(user, &["a"], json, good).await, (201, replayed.clone(), None));
    assert_eq!(post(user, &["\"a\""], json, good).await, (201, replayed.clone(), None));
    let form = "origin_lat=1&origin_lon=2&target_lat=3.0&target_lon=4e0";
    let form_type = "application/x-www-form-urlencoded";
    assert_eq!(post(user, &["a"], form_type, form).await.1, replayed, "the same replay");
    assert_eq!(post(user, &["a"], json, &good.replace('4', "5")).await, (422, None, None));
    let declined = "user-bad-source@example.com";
    assert_eq!(post(declined, &["a"], json, good).await, (402, None, None));
    assert_eq!(post(declined, &["a"], json, good).await, (402, replayed.clone(), None));
    assert_eq!(post("", &["b"], json, good).await.0, 401);
    assert_eq!(post("stranger@example.com", &["b"], json, good).await.0, 401);
    for keys in [&[][..], &[""], &["a b"], &["a", "a"], &["a", "b"]] {
        assert_eq!(post(user, keys, json, good).await.0, 400, "{keys:?}");
    }
    for (body, status) in [
        ("", 400),
        ("{", 400),
        ("{}", 422),
        ("[]", 422),
        (&good.replace('1', "91"), 422),
        (&good.replace('2', "\"x\""), 422),
        (&good.replace('1', "1e400"), 400),
    ] {
        assert_eq!(post(user, &["b"], json, body).await.0, status, "{body}");
    }
    // A refusal is not stored: the corrected body runs with the same key.
    assert_eq!(post(user, &["b"], json, good).await, (201, None, None));
    let failing = good.replace('}', r#","raise_error":true}"#);
    let (status, _, retry_after) = post(user, &["c"], json, &failing).await;
    assert_eq!((status, retry_after.is_some()), (503, true));
    assert_eq!(post(user, &["c"], json, good).await, (201, None, None));
    rides.faults(serde_json::json!({ "drop_after": 1 })).await;
    assert_eq!(post(user, &["d"], json, good).await.0, 503, "no answer from the provider");
    assert_eq!(post(user, &["d"], json, good).await.0, 201);
    rides.faults(serde_json::json!({ "fail_before": 1 })).await;
    assert_eq!(post(user, &["e"], json, good).await.0, 503);
    rides.faults(serde_json::json!({ "fail_after": 1 })).await;
    assert_eq!(post(user, &["e"], json, good).await.0, 503);
    assert_eq!(post(user, &["e"], json, good).await.0, 201);
    assert_eq!(rides.charges().await.len(), 5, "a to e");
}
