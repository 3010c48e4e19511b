//! Real processes that abort at each crash point of the flagship's request in turn: started again,
//! they come to one charge and one answer. The points are those that the program itself says it passes.
//!
//! Needs the example with its crash points: `cargo build --example rocket_rides --all-features`.
#![cfg(feature = "fault-injection")]

mod support;

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use atomic_phases::fault::ENV;
use serde_json::Value;
use support::cluster;
use support::process::{Process, free_port};

/// A provider, and how to start a server that uses it.
struct Rides {
    provider: Process,
    arguments: Vec<String>,
    dir: tempfile::TempDir,
}

impl Rides {
    fn new(database: impl FnOnce(&tempfile::TempDir) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = dir.path().join("ledger");
        let provider = Process::start(&[
            "provider",
            "--listen",
            "127.0.0.1:0",
            "--ledger",
            ledger.to_str().unwrap(),
        ]);
        let listen = format!("127.0.0.1:{}", free_port());
        let (database, url) = (database(&dir), provider.url.clone());
        let arguments = ["serve", "--listen", &listen, "--database-url", &database]
            .into_iter()
            .chain(["--charge-api", &url, "--lease", "0.3"])
            .map(str::to_owned)
            .collect();
        Self { provider, arguments, dir }
    }

    fn serve(&self, fault: Option<&str>, stderr: Stdio) -> Process {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Process::start_with_fault(&arguments, fault, stderr)
    }

    async fn charges(&self) -> Vec<Value> {
        let url = format!("{}/v1/charges", self.provider.url);
        let list: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        list["data"].as_array().unwrap().clone()
    }

    /// What one undisturbed request passes, in order.
    async fn points(&self) -> Vec<String> {
        let path = self.dir.path().join("points");
        let stderr = Stdio::from(File::create(&path).unwrap());
        let server = tokio::task::block_in_place(|| self.serve(Some("list"), stderr));
        book(&server, "listed").await;
        let listed = std::fs::read_to_string(path).unwrap();
        let points: Vec<String> = listed
            .lines()
            .filter_map(|line| line.strip_prefix(ENV)?.strip_prefix(": "))
            .map(str::to_owned)
            .collect();
        assert!(
            points.iter().any(|point| point == "started/before_phase"),
            "no crash points: build it with `cargo build --example rocket_rides --all-features`"
        );
        points
    }
}

async fn post(server: &Process, key: &str) -> Result<(u16, Vec<u8>), reqwest::Error> {
    let http = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
    let places = ["origin_lat", "origin_lon", "target_lat", "target_lon"];
    let params = places.map(|place| (place, "37.77"));
    let request = http.post(format!("{}/rides", server.url));
    let request =
        request.header("authorization", "user@example.com").header("idempotency-key", key);
    let answer = request.form(&params).send().await?;
    Ok((answer.status().as_u16(), answer.bytes().await?.to_vec()))
}

/// Calls again until the ride is booked.
async fn book(server: &Process, key: &str) -> Vec<u8> {
    let began = Instant::now();
    loop {
        match post(server, key).await {
            Ok((201, body)) => return body,
            other => {
                assert!(began.elapsed() < Duration::from_secs(30), "{key} is stuck: {other:?}")
            }
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

async fn g1_aborted_at_each_point_in_turn(store: &str, rides: Rides) {
    let began = Instant::now();
    let points = rides.points().await;
    for (index, point) in points.iter().enumerate() {
        let visit = points[..index].iter().filter(|earlier| *earlier == point).count();
        let (fault, key) = (format!("{point}#{visit}=abort"), format!("k-{index}"));
        let stderr = Stdio::null();
        let mut server = tokio::task::block_in_place(|| rides.serve(Some(&fault), stderr));
        let answer = post(&server, &key).await;
        assert!(answer.is_err(), "{fault}: the process was to die, and it answered {answer:?}");
        let status = tokio::task::block_in_place(|| server.wait());
        assert!(!status.success(), "{fault}: {status}");
        // Another process, by whose own points nothing happens.
        let server = tokio::task::block_in_place(|| rides.serve(None, Stdio::null()));
        let first = book(&server, &key).await;
        assert_eq!(book(&server, &key).await, first, "{fault}: one answer");
        let ride: Value = serde_json::from_slice(&first).unwrap();
        let charges = rides.charges().await;
        let of_the_ride: Vec<_> = charges
            .iter()
            .filter(|charge| charge.to_string().contains(ride["id"].as_str().unwrap()))
            .collect();
        assert_eq!(of_the_ride.len(), 1, "{fault}: {of_the_ride:?}");
        // One for each key so far, the one that was listed included.
        assert_eq!(charges.len(), index + 2, "{fault}: charges of nobody");
    }
    println!(
        "{store}: {} points, {} processes aborted, one charge and one answer each, {:.1} s",
        points.len(),
        points.len(),
        began.elapsed().as_secs_f64()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_aborted_at_each_point_on_sqlite() {
    let database =
        |dir: &tempfile::TempDir| format!("sqlite://{}", dir.path().join("rides.db").display());
    let rides = tokio::task::block_in_place(|| Rides::new(database));
    g1_aborted_at_each_point_in_turn("sqlite", rides).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_aborted_at_each_point_on_postgres() {
    let rides = tokio::task::block_in_place(|| Rides::new(|_| cluster::new_database()));
    g1_aborted_at_each_point_in_turn("postgres", rides).await;
}
