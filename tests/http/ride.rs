//! `rocket_rides ride`, the client half as a program: it books one ride through crashes of the
//! server, with the provider's ledger as judge.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::support::process::{Process, free_port, program};
use crate::support::until;
use serde_json::Value;

struct World {
    provider: Process,
    server: Process,
    serve: Vec<String>,
    _dir: tempfile::TempDir,
}

impl World {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let provider =
            Process::start(&["provider", "--listen", "127.0.0.1:0", "--ledger", &path("ledger")]);
        let (listen, database) =
            (format!("127.0.0.1:{}", free_port()), format!("sqlite://{}", path("rides.db")));
        let serve = ["serve", "--listen", &listen, "--database-url", &database];
        let more = ["--charge-api", &provider.url, "--lease", "1"];
        let serve: Vec<String> = serve.iter().chain(&more).map(|&text| text.to_owned()).collect();
        let server = Self::serve(&serve);
        Self { provider, server, serve, _dir: dir }
    }

    fn serve(arguments: &[String]) -> Process {
        Process::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn ride(&self, more: &[&str]) -> std::process::Child {
        Command::new(program())
            .args(["ride", "--server", &self.server.url])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    async fn faults(&self, faults: Value) {
        let url = format!("{}/test/faults", self.provider.url);
        reqwest::Client::new().post(url).json(&faults).send().await.unwrap();
    }

    async fn charges(&self) -> usize {
        let url = format!("{}/v1/charges", self.provider.url);
        let list: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        list["data"].as_array().unwrap().len()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn end(ride: std::process::Child) -> Output {
    tokio::task::spawn_blocking(move || ride.wait_with_output().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_ride_is_booked_through_kill_9_with_one_charge() {
    let mut world = tokio::task::block_in_place(World::start);
    // The card is charged, and the server is killed before it receives the answer.
    world.faults(serde_json::json!({ "delay_after_ms": 600_000 })).await;
    let mut ride = world.ride(&["--key", "my-ride", "--deadline", "60"]);
    let mut lines = BufReader::new(ride.stdout.take().unwrap()).lines().map(Result::unwrap);
    until(async || world.charges().await > 0).await;
    tokio::task::block_in_place(|| world.server.kill_9());
    world.faults(serde_json::json!({})).await;
    // The server comes back on the same port, after the client has met both a cut connection and a refused one.
    let mut text = String::new();
    tokio::task::block_in_place(|| {
        for line in lines.by_ref().take_while(|line| !line.contains("no connection")) {
            text += &line;
        }
        world.server = World::serve(&world.serve);
        lines.for_each(|line| text += &line);
    });
    assert_eq!(end(ride).await.status.code(), Some(0), "{text}");
    assert!(text.contains("attempt 1: no answer, again in"), "{text}");
    assert!(text.contains("201 Created {"), "{text}");
    assert!(text.contains("replayed: no"), "{text}");
    assert_eq!(world.charges().await, 1);

    // The same key later is the same ride.
    let again = end(world.ride(&["--key", "my-ride"])).await;
    assert_eq!(again.status.code(), Some(0));
    assert!(stdout(&again).contains("replayed: yes"), "{}", stdout(&again));
    assert_eq!(world.charges().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_tells_whether_there_is_a_ride() {
    let world = tokio::task::block_in_place(World::start);
    // A failure after the charge, which the client receives as 503; its retry succeeds.
    world.faults(serde_json::json!({ "fail_after": 1 })).await;
    let booked = end(world.ride(&[])).await;
    assert_eq!(booked.status.code(), Some(0), "{}", stdout(&booked));
    assert!(stdout(&booked).contains("attempt 1: 503, again in"), "{}", stdout(&booked));
    assert_eq!(world.charges().await, 1);
    // Each ride without a key is another one.
    assert_eq!(end(world.ride(&[])).await.status.code(), Some(0));
    assert_eq!(world.charges().await, 2);
    for (arguments, said) in [
        (&["--user", "user-bad-source@example.com"][..], "402 Payment Required"),
        (&["--user", "stranger@example.com"], "attempt 1: 401, giving up"),
        (&["--origin-lat", "91"], "attempt 1: 422, giving up"),
        (&["--server", "http://127.0.0.1:1", "--deadline", "1"], "no connection"),
    ] {
        let output = match arguments[0] {
            "--server" => Command::new(program()).arg("ride").args(arguments).output().unwrap(),
            _ => end(world.ride(arguments)).await,
        };
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stdout(&output).contains(said), "{arguments:?}: {}", stdout(&output));
    }
    assert_eq!(world.charges().await, 2);
}
