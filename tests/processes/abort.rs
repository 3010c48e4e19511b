//! Real processes that abort at each crash point of the flagship's request, one point per run. After a restart, the
//! request has one charge and one answer. The program itself reports which points it passes.
//!
//! Needs the example with its crash points: `cargo build --example rocket_rides --all-features`.
#![cfg(feature = "fault-injection")]

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::answer_within;
use crate::support::process::Process;
#[cfg(feature = "mysql")]
use crate::support::rides::mariadb;
use crate::support::rides::{Rides, postgres, sqlite};
use atomic_phases::fault::ENV;
use serde_json::Value;

/// Restarts the server with this value of `ATOMIC_PHASES_FAULT`.
fn restart(rides: &mut Rides, fault: Option<&str>, stderr: Stdio) {
    tokio::task::block_in_place(|| {
        rides.server.kill_9();
        let arguments: Vec<&str> = rides.arguments.iter().map(String::as_str).collect();
        let fault: Vec<(&str, &str)> = fault.map(|fault| (ENV, fault)).into_iter().collect();
        rides.server = Process::start_with(&arguments, &fault, stderr);
    });
}

/// What one undisturbed request passes, in order.
async fn points(rides: &mut Rides) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("points");
    restart(rides, Some("list"), Stdio::from(File::create(&path).unwrap()));
    book(&rides.server, "listed").await;
    let listed = std::fs::read_to_string(path).unwrap();
    let lines = listed.lines().filter_map(|line| line.strip_prefix(ENV)?.strip_prefix(": "));
    let points: Vec<String> = lines.map(str::to_owned).collect();
    assert!(
        points.iter().any(|point| point == "started/before_phase"),
        "no crash points: build it with `cargo build --example rocket_rides --all-features`"
    );
    points
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

/// Retries until the ride is booked.
async fn book(server: &Process, key: &str) -> Vec<u8> {
    let book = async || match post(server, key).await {
        Ok((201, body)) => Ok(body),
        other => Err(format!("{key} is stuck: {other:?}")),
    };
    answer_within(Duration::from_secs(120), book).await
}

fn set_lease(rides: &mut Rides, seconds: &str) {
    let lease = rides.arguments.iter().position(|argument| argument == "--lease").unwrap();
    rides.arguments[lease + 1] = seconds.to_owned();
}

async fn g1_aborted_at_each_point_one_by_one(store: &str, mut rides: Rides) {
    let began = Instant::now();
    // A long lease is not renewed while the points are listed; no other run would pass a renewal.
    set_lease(&mut rides, "30");
    let points = points(&mut rides).await;
    // A short lease, so that an abandoned request is taken over soon.
    set_lease(&mut rides, "0.3");
    for (index, point) in points.iter().enumerate() {
        let visit = points[..index].iter().filter(|earlier| *earlier == point).count();
        let (fault, key) = (format!("{point}#{visit}=abort"), format!("k-{index}"));
        restart(&mut rides, Some(&fault), Stdio::null());
        let answer = post(&rides.server, &key).await;
        assert!(answer.is_err(), "{fault}: the process was to die, and it answered {answer:?}");
        let status = tokio::task::block_in_place(|| rides.server.wait());
        assert!(!status.success(), "{fault}: {status}");
        restart(&mut rides, None, Stdio::null());
        let first = book(&rides.server, &key).await;
        assert_eq!(book(&rides.server, &key).await, first, "{fault}: one answer");
        let ride: Value = serde_json::from_slice(&first).unwrap();
        let id = ride["id"].as_str().unwrap();
        let (charges, told) = (rides.charges().await, rides.notifications().await);
        let charged = charges.iter().filter(|charge| charge.to_string().contains(id)).count();
        let told_of_it = told.iter().filter(|told| *told == id).count();
        assert_eq!((charged, told_of_it), (1, 1), "{fault}: charges, pilots");
        // One for each key so far, including the key of the listing run.
        assert_eq!((charges.len(), told.len()), (index + 2, index + 2), "{fault}: of another key");
    }
    println!(
        "{store}: {} points, as many processes aborted, one charge, one pilot and one answer each, {:.1} s",
        points.len(),
        began.elapsed().as_secs_f64()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_aborted_at_each_point_on_sqlite() {
    let rides = tokio::task::block_in_place(|| Rides::start(sqlite));
    g1_aborted_at_each_point_one_by_one("sqlite", rides).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_aborted_at_each_point_on_postgres() {
    let rides = tokio::task::block_in_place(|| Rides::start(postgres));
    g1_aborted_at_each_point_one_by_one("postgres", rides).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g1_aborted_at_each_point_on_mariadb() {
    let rides = tokio::task::block_in_place(|| Rides::start(mariadb));
    g1_aborted_at_each_point_one_by_one("mariadb", rides).await;
}
