//! The flagship's edges as a process: its webhook, its stop, its refusals, its log.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::look::Look;
use crate::support::process::{Process, free_port, program};
use crate::support::rides::{Rides, postgres, signed, signed_at, sqlite};
use serde_json::{Value, json};

pub const SECRET: &str = "whsec_rocket_rides";

pub async fn book(server: &str, user: &str, key: &str) -> (u16, Value) {
    let ride = [
        ("origin_lat", 37.77),
        ("origin_lon", -122.42),
        ("target_lat", 37.79),
        ("target_lon", -122.39),
    ];
    let call = reqwest::Client::new().post(format!("{server}/rides")).form(&ride);
    let call = call.header("authorization", user).header("idempotency-key", key);
    let answer = call.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// A ride that is committed and waits for its charge; no worker continues it.
async fn uncharged(database: impl FnOnce(&tempfile::TempDir) -> String) -> (Rides, String) {
    let rides =
        tokio::task::block_in_place(|| Rides::start_with(database, &[("--workers", "false")]));
    rides.faults(json!({ "fail_before": 1 })).await;
    assert_eq!(book(&rides.server.url, "user@example.com", "k").await.0, 503);
    let look = Look::at(&rides.database).await;
    assert_eq!(look.count("rides").await, 1);
    let ride = look.lines("SELECT id AS line FROM rides").await.remove(0);
    (rides, ride)
}

pub fn event(kind: &str, ride: &str) -> Value {
    let object = json!({
        "id": "ch_forged", "object": "charge", "status": "succeeded", "amount": 2000,
        "currency": "usd", "metadata": { "ride": ride },
    });
    json!({ "type": kind, "data": { "object": object } })
}

async fn only_a_charge_that_succeeded_settles(database: impl FnOnce(&tempfile::TempDir) -> String) {
    let (rides, ride) = uncharged(database).await;
    let webhook = format!("{}/webhooks/charges", rides.server.url);
    let say = async |event: Value| {
        signed(&webhook, SECRET, event.to_string()).send().await.unwrap().status().as_u16()
    };
    // Irrelevant events are accepted.
    for kind in ["charge.failed", "charge.refunded", "charge.succeeded.not", ""] {
        assert_eq!(say(event(kind, &ride)).await, 200, "{kind}");
    }
    // A charge of another request.
    for (name, value) in [
        ("status", json!("failed")),
        ("status", json!("pending")),
        ("amount", json!(1999)),
        ("currency", json!("jpy")),
    ] {
        let mut other = event("charge.succeeded", &ride);
        other["data"]["object"][name] = value;
        assert_eq!(say(other).await, 409, "{name}");
    }
    // Not a ride of this service: the provider should not deliver it again, whatever the database would say about
    // the text.
    for stranger in ["", "\0", "r\0", "8e03978e", "ffffffff-ffff-4fff-8fff-ffffffffffff"] {
        assert_eq!(say(event("charge.succeeded", stranger)).await, 404, "{stranger:?}");
    }
    let mut unnamed = event("charge.succeeded", &ride);
    unnamed["data"]["object"]["metadata"] = json!({});
    assert_eq!(say(unnamed).await, 404);
    // None of these events pays for the ride; only the card does.
    let (status, answer) = book(&rides.server.url, "user@example.com", "k").await;
    assert_eq!((status, &answer["charge"]), (201, &json!("ch_00000001")));
    assert_eq!(rides.charges().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_charge_that_succeeded_settles_on_sqlite() {
    only_a_charge_that_succeeded_settles(sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_charge_that_succeeded_settles_on_postgres() {
    only_a_charge_that_succeeded_settles(postgres).await;
}

/// The parameters that both providers receive are derived from the key, so that a lost row does not cause a second
/// charge. If the answer of a key is no longer kept, the key books no second ride, and a resolution about the first
/// one is not applied to the second.
async fn a_key_books_one_ride_ever(database: impl FnOnce(&tempfile::TempDir) -> String) {
    let rides =
        tokio::task::block_in_place(|| Rides::start_with(database, &[("--workers", "false")]));
    let (status, answer) = book(&rides.server.url, "user@example.com", "k").await;
    assert_eq!(status, 201);
    let look = Look::at(&rides.database).await;
    let ended = "UPDATE atomic_phases_keys SET expires_at = created_at RETURNING 'ended' AS line";
    assert_eq!(look.lines(ended).await, ["ended"]);
    let (status, refused) = book(&rides.server.url, "user@example.com", "k").await;
    assert_eq!((status, &refused["error"]["type"]), (409, &json!("invalid_request_error")));
    assert_eq!((look.count("rides").await, rides.charges().await.len()), (1, 1));
    let webhook = format!("{}/webhooks/charges", rides.server.url);
    let late = event("charge.succeeded", answer["id"].as_str().unwrap()).to_string();
    assert_eq!(signed(&webhook, SECRET, late).send().await.unwrap().status().as_u16(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_books_one_ride_ever_on_sqlite() {
    a_key_books_one_ride_ever(sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_books_one_ride_ever_on_postgres() {
    a_key_books_one_ride_ever(postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_believed_by_its_signature_alone() {
    let (rides, ride) = uncharged(sqlite).await;
    let webhook = format!("{}/webhooks/charges", rides.server.url);
    let body = event("charge.succeeded", &ride).to_string();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let status = async |call: reqwest::RequestBuilder| call.send().await.unwrap().status().as_u16();
    let http = reqwest::Client::new();
    let with = |signature: &str| {
        http.post(&webhook).header("stripe-signature", signature).body(body.clone())
    };
    assert_eq!(status(http.post(&webhook).body(body.clone())).await, 401);
    assert_eq!(status(http.post(&webhook).bearer_auth(SECRET).body(body.clone())).await, 401);
    for signature in
        ["", "t=1", "v1=00", "t=x,v1=00", &format!("t={now}"), &format!("t={now},v1=zz")]
    {
        assert_eq!(status(with(signature)).await, 401, "{signature}");
    }
    let good = crate::support::rides::signature::sign(SECRET, now, body.as_bytes());
    assert_eq!(status(with(&good[..good.len() - 2])).await, 401, "shorter");
    assert_eq!(status(with(&format!("{good}00"))).await, 401, "longer");
    assert_eq!(status(with(&good.replace("v1", "v0"))).await, 401, "of another scheme");
    assert_eq!(status(signed(&webhook, "wrong", body.clone())).await, 401);
    // A replayed signature, or one by a wrong clock.
    for time in [now - 3600, now + 3600, 0] {
        assert_eq!(status(signed_at(time, &webhook, SECRET, body.clone())).await, 401, "{time}");
    }
    // A signature of another body; white space counts.
    for other in [body.replace("2000", "2001"), format!("{body} ")] {
        let call = http.post(&webhook).header("stripe-signature", &good).body(other);
        assert_eq!(status(call).await, 401);
    }
    // The server does not read a megabyte from a sender without a signature.
    let address = rides.server.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "POST /webhooks/charges HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n")
        .unwrap();
    let mut answer = [0; 12];
    tokio::task::block_in_place(|| stream.read_exact(&mut answer)).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
    // While the secret is being replaced, one valid signature of several is enough.
    let both = format!("{},v1={}", good, "00".repeat(32));
    assert_eq!(status(with(&both.replace("v1=", "v1 = "))).await, 401);
    assert_eq!(status(with(&both)).await, 200);
    let (status, answer) = book(&rides.server.url, "user@example.com", "k").await;
    assert_eq!((status, &answer["charge"]), (201, &json!("ch_forged")), "as the event says");
    assert_eq!(rides.charges().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_card_undoes_the_ride_and_says_card_error() {
    for database in [sqlite as fn(&tempfile::TempDir) -> String, postgres] {
        let rides = tokio::task::block_in_place(|| Rides::start(database));
        for _ in 0..2 {
            let (status, body) = book(&rides.server.url, "user-bad-source@example.com", "k").await;
            assert_eq!(status, 402);
            assert_eq!(body["error"]["type"], "card_error");
            assert_eq!(body["error"]["code"], "card_declined");
        }
        let look = Look::at(&rides.database).await;
        assert_eq!(look.count("rides WHERE canceled AND charge_id IS NULL").await, 1);
        assert_eq!(look.count("rides").await, 1);
        assert_eq!(look.count("audit_records WHERE action = 'declined'").await, 1);
        assert_eq!((rides.charges().await.len(), rides.notifications().await.len()), (0, 0));
    }
}

/// Half a head, half a body, and a connection that is kept open for later.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_does_not_keep_a_server_from_stopping() {
    let mut rides =
        tokio::task::block_in_place(|| Rides::start_with(sqlite, &[("--drain", "0.5")]));
    let address = rides.server.url.strip_prefix("http://").unwrap().to_owned();
    let halves = [
        "POST /rides HTTP/1.1\r\nhost: h\r\nauthoriz",
        "POST /rides HTTP/1.1\r\nhost: h\r\nauthorization: user@example.com\r\nidempotency-key: k\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{\"origin_lat\":",
        "GET /idempotency HTTP/1.1\r\nhost: h\r\n\r\n",
        "",
    ];
    let open = halves.map(|half| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(half.as_bytes()).unwrap();
        stream
    });
    // All of them are accepted by now: connections are accepted in order.
    assert_eq!(book(&rides.server.url, "user@example.com", "other").await.0, 201);
    let stopped = tokio::task::spawn_blocking(move || rides.server.terminate());
    let stopped = tokio::time::timeout(Duration::from_secs(60), stopped).await;
    assert!(stopped.expect("it stops").unwrap().success());
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pilots_may_be_told_somewhere_else_than_the_card_is_charged() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("pilots");
    let ledger = ledger.to_str().unwrap();
    let pilots = tokio::task::block_in_place(|| {
        Process::start(&["provider", "--listen", "127.0.0.1:0", "--ledger", ledger])
    });
    let rides =
        tokio::task::block_in_place(|| Rides::start_with(sqlite, &[("--pilot-api", &pilots.url)]));
    assert_eq!(book(&rides.server.url, "user@example.com", "k").await.0, 201);
    assert_eq!((rides.charges().await.len(), rides.notifications().await.len()), (1, 0));
    let told = format!("{}/v1/notifications", pilots.url);
    let told: Value = reqwest::get(told).await.unwrap().json().await.unwrap();
    assert_eq!(told["data"].as_array().unwrap().len(), 1);
}

/// Failures are logged by default, and contain nothing of a customer.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_failure_is_logged_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let listen = format!("127.0.0.1:{}", free_port());
    let mut child = Command::new(program())
        .args(["serve", "--listen", &listen, "--charge-api", "http://127.0.0.1:1"])
        .env_remove("DATABASE_URL")
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let server = format!("http://{listen}");
    crate::support::until(async || reqwest::get(format!("{server}/idempotency")).await.is_ok())
        .await;
    assert_eq!(book(&server, "user@example.com", "canary-key").await.0, 503);
    child.kill().unwrap();
    child.wait().unwrap();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("WARN") && log.contains("released"), "{log}");
    assert!(log.contains("rides.create") && log.contains("charge_created"), "{log}");
    assert!(!log.contains("canary") && !log.contains("user@"), "{log}");
}

/// One flag exports metrics; with two, the flagship also sends notices of what waits.
#[cfg(feature = "metrics")]
#[tokio::test(flavor = "multi_thread")]
async fn it_tells_prometheus_what_it_counts() {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let arguments = [("--metrics-address", address.as_str())];
    let rides = tokio::task::block_in_place(|| Rides::start_with(sqlite, &arguments));
    for _ in 0..2 {
        assert_eq!(book(&rides.server.url, "user@example.com", "canary").await.0, 201);
    }
    let exposition = async || {
        let answer = reqwest::get(format!("http://{address}/metrics")).await.unwrap();
        answer.text().await.unwrap()
    };
    let counted = exposition().await;
    for line in [
        r#"atomic_phases_requests_total{definition="rides.create",outcome="finished"} 1"#,
        r#"atomic_phases_requests_total{definition="rides.create",outcome="replayed"} 1"#,
        r#"atomic_phases_request_age_seconds_count{definition="rides.create"} 1"#,
        "# TYPE atomic_phases_pool_wait_seconds histogram",
    ] {
        assert!(counted.contains(line), "{line}\n{counted}");
    }
    assert!(!counted.contains("canary") && !counted.contains("user@example.com"), "G19");
}
