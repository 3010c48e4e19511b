//! No client retries: each request is sent once, the server is killed again and again while hundreds are under way,
//! and the workers of the remaining processes finish them. The providers' ledgers judge.
//!
//! `KILL_SEED=…` repeats a schedule; `ABANDONED=…` sets how many requests are to be abandoned.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::look::Look;
use crate::support::process::free_port;
#[cfg(feature = "mysql")]
use crate::support::rides::mariadb;
use crate::support::rides::{Random, Rides, number, postgres, signed, sqlite};
use crate::support::{until, until_within};
use serde_json::{Value, json};

async fn post(http: &reqwest::Client, url: &str, key: &str) -> Option<u16> {
    let params = [
        ("origin_lat", "37.77"),
        ("origin_lon", "-122.42"),
        ("target_lat", "37.79"),
        ("target_lon", "-122.39"),
    ];
    let request = http.post(format!("{url}/rides")).header("authorization", "user@example.com");
    let answer = request.header("idempotency-key", key).form(&params).send().await.ok()?;
    Some(answer.status().as_u16())
}

async fn g17_all_abandoned_requests_finish_with_no_client(store: &str, mut rides: Rides) {
    let seed = number("KILL_SEED", std::process::id().into());
    let wanted = number("ABANDONED", 1000);
    println!("{store}: KILL_SEED={seed} ABANDONED={wanted}");
    rides.faults(json!({ "delay_before_ms": 30, "delay_after_ms": 30 })).await;
    rides.pilot_faults(json!({ "delay_before_ms": 30, "delay_after_ms": 30 })).await;
    // No workers while requests are abandoned, so that they accumulate.
    let with_workers = rides.arguments.clone();
    rides.arguments.extend(["--workers".to_owned(), "false".to_owned()]);
    tokio::task::block_in_place(|| rides.kill_and_restart());
    let look = Look::at(&rides.database).await;
    let mut random = Random(seed);
    let (abandoned, sent) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut kills = 0;
    while look.unfinished().await < wanted as i64 {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        let clients: Vec<_> = (0..80)
            .map(|_| {
                let (http, url) = (http.clone(), rides.server.url.clone());
                let (abandoned, sent) = (abandoned.clone(), sent.clone());
                tokio::spawn(async move {
                    loop {
                        let key = format!("k{}", sent.fetch_add(1, Ordering::Relaxed));
                        match post(&http, &url, &key).await {
                            Some(201) => {}
                            Some(status) => panic!("{key}: {status}"),
                            // The server is gone, and the client does not retry.
                            None => return abandoned.fetch_add(1, Ordering::Relaxed),
                        }
                    }
                })
            })
            .collect();
        // Not before some are under way: a busy machine needs longer for that than for a kill. They end, too, so that
        // their number may never be reached.
        let some = look.unfinished().await + 20 + random.below(40) as i64;
        let under_way = until(async || look.unfinished().await >= some);
        let _ = tokio::time::timeout(Duration::from_secs(2), under_way).await;
        tokio::time::sleep(Duration::from_millis(random.below(100))).await;
        tokio::task::block_in_place(|| rides.kill_and_restart());
        kills += 1;
        for client in clients {
            client.await.unwrap();
        }
    }
    let left = look.unfinished().await;
    rides.faults(json!({})).await;
    rides.pilot_faults(json!({})).await;
    // Two nodes with workers, and no clients.
    rides.arguments = with_workers;
    let mut another = rides.arguments.clone();
    another[2] = format!("127.0.0.1:{}", free_port());
    let last_kill = Instant::now();
    let _another = tokio::task::block_in_place(|| {
        rides.kill_and_restart();
        Rides::serve(&another)
    });
    until_within(Duration::from_secs(120), async || look.unfinished().await == 0).await;
    let waited = last_kill.elapsed();
    // Counted now, because the database may commit a killed process's statements after its death.
    let begun = look.count("atomic_phases_keys").await;
    let mut effects: HashMap<String, (u32, u32)> = HashMap::new();
    for charge in rides.charges().await {
        let ride = charge["metadata"]["ride"].as_str().unwrap().to_owned();
        effects.entry(ride).or_default().0 += 1;
    }
    for ride in rides.notifications().await {
        effects.entry(ride).or_default().1 += 1;
    }
    let wrong = effects.values().filter(|effects| **effects != (1, 1)).count();
    println!(
        "{store}: sent {}, begun {begun}, abandoned {}, kills {kills}, unfinished at the last kill \
         {left}, all finished by two nodes {:.1} s after it (lease 1 s), rides with other than one charge and one \
         notification: {wrong}",
        sent.load(Ordering::Relaxed),
        abandoned.load(Ordering::Relaxed),
        waited.as_secs_f64(),
    );
    assert_eq!(wrong, 0);
    assert_eq!(effects.len() as i64, begun, "each request that was begun has its ride");
    assert_eq!(look.count("rides WHERE charge_id IS NOT NULL").await, begun);
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_all_abandoned_requests_finish_with_no_client_on_sqlite() {
    let rides = tokio::task::block_in_place(|| Rides::start(sqlite));
    g17_all_abandoned_requests_finish_with_no_client("sqlite", rides).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_all_abandoned_requests_finish_with_no_client_on_postgres() {
    let rides = tokio::task::block_in_place(|| Rides::start(postgres));
    g17_all_abandoned_requests_finish_with_no_client("postgres", rides).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_all_abandoned_requests_finish_with_no_client_on_mariadb() {
    let rides = tokio::task::block_in_place(|| Rides::start(mariadb));
    g17_all_abandoned_requests_finish_with_no_client("mariadb", rides).await;
}

/// The webhook of a charge whose answer was lost, and whose request no worker continues: the webhook is accepted
/// once, and the ride continues from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_settles_a_charge_that_was_never_heard() {
    let mut rides = tokio::task::block_in_place(|| Rides::start(sqlite));
    rides.faults(json!({ "delay_after_ms": 600_000 })).await;
    let (http, url) = (reqwest::Client::new(), rides.server.url.clone());
    let call = tokio::spawn(async move { post(&http, &url, "k").await });
    until(async || !rides.charges().await.is_empty()).await;
    // Restarts without workers, so that only the webhook continues the request.
    rides.arguments.extend(["--workers".to_owned(), "false".to_owned()]);
    tokio::task::block_in_place(|| rides.kill_and_restart());
    assert_eq!(call.await.unwrap(), None);
    let charge = rides.charges().await.remove(0);
    let webhook = format!("{}/webhooks/charges", rides.server.url);
    let say = async |secret: &str, id: &str| {
        let mut object = charge.clone();
        object["id"] = id.into();
        let event = json!({ "type": "charge.succeeded", "data": { "object": object } });
        let call = signed(&webhook, secret, event.to_string());
        call.send().await.unwrap().status().as_u16()
    };
    let id = charge["id"].as_str().unwrap().to_owned();
    let secret = "whsec_rocket_rides";
    assert_eq!(say("wrong", &id).await, 401);
    // The holder may still run the request.
    assert_eq!(say(secret, &id).await, 503);
    let free = free_port();
    let mut with_workers = rides.arguments.clone();
    with_workers.truncate(with_workers.len() - 2);
    with_workers[2] = format!("127.0.0.1:{free}");
    rides.faults(json!({})).await;
    let second = tokio::task::block_in_place(|| Rides::serve(&with_workers));
    let look = Look::at(&rides.database).await;
    until_within(Duration::from_secs(120), async || look.unfinished().await == 0).await;
    assert_eq!(say(secret, &id).await, 200, "the same word again");
    assert_eq!(say(secret, "ch_other").await, 409, "another word");
    assert_eq!((rides.charges().await.len(), rides.notifications().await.len()), (1, 1));
    drop(second);
}

/// The ride of a client that is gone: killed after the charge, restarted, finished by the workers.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finishes_the_ride_of_a_client_that_is_gone() {
    let mut rides = tokio::task::block_in_place(|| Rides::start(postgres));
    rides.faults(json!({ "delay_after_ms": 600_000 })).await;
    let (http, url) = (reqwest::Client::new(), rides.server.url.clone());
    let call = tokio::spawn(async move { post(&http, &url, "k").await });
    until(async || !rides.charges().await.is_empty()).await;
    rides.faults(json!({})).await;
    tokio::task::block_in_place(|| rides.kill_and_restart());
    assert_eq!(call.await.unwrap(), None);
    let look = Look::at(&rides.database).await;
    until_within(Duration::from_secs(120), async || look.unfinished().await == 0).await;
    let (charges, told) = (rides.charges().await, rides.notifications().await);
    assert_eq!((charges.len(), told.len()), (1, 1));
    assert_eq!(charges[0]["metadata"]["ride"], Value::from(told[0].as_str()));
}
