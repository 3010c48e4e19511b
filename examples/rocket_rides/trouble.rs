//! `--trouble`: what goes wrong in a year, in ten seconds. Real calls to this server and to its provider, and a real
//! `kill -9`, to be seen in the console.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Failure;

/// What it is made with.
pub struct Trouble {
    /// This server.
    pub server: String,
    /// The provider that it has started.
    pub provider: String,
    /// Where the rides are kept.
    pub database: String,
}

impl Trouble {
    /// Makes it, and says so.
    pub async fn make(self) {
        match self.try_to().await {
            Ok(()) => println!("trouble: made; the console shows it"),
            Err(error) => println!("trouble: {error}"),
        }
    }

    async fn try_to(&self) -> Result<(), Failure> {
        for _ in 0..8 {
            book(&self.server, "user@example.com").await?;
        }
        println!("trouble: 8 rides went well");
        let status = book(&self.server, "user-bad-source@example.com").await?;
        println!("trouble: a card was declined: {status}");
        // From now on the pilots are told, and cannot be asked: the outcome stays unknown until an operator resolves it.
        self.pilots(json!({ "search_fails": true, "drop_after": 1 })).await?;
        let status = book(&self.server, "user@example.com").await?;
        println!("trouble: a pilot's answer was lost on its way: {status}");
        self.pilots(json!({ "search_fails": true, "delay_before_ms": 600_000 })).await?;
        self.crash().await?;
        println!("trouble: a server was killed while it told a pilot");
        self.pilots(json!({ "search_fails": true })).await
    }

    /// A second server on the same database begins a ride, and is killed in its call.
    async fn crash(&self) -> Result<(), Failure> {
        let before = self.pilot_calls().await?;
        let mut server = Server::start(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--workers",
            "false",
            "--lease",
            "4",
            "--database-url",
            &self.database,
            "--charge-api",
            &self.provider,
        ])?;
        let url = server.url()?;
        let ride = tokio::spawn(async move { book(&url, "user@example.com").await });
        // The phase has two seconds for the call.
        let called = async {
            while self.pilot_calls().await? == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok::<_, Failure>(())
        };
        tokio::time::timeout(Duration::from_secs(30), called).await??;
        server.0.kill()?;
        server.0.wait()?;
        ride.abort();
        Ok(())
    }

    async fn pilot_calls(&self) -> Result<Option<u64>, Failure> {
        let calls = reqwest::get(format!("{}/test/pilot_calls", self.provider)).await?;
        Ok(calls.json::<Value>().await?["calls"].as_u64())
    }

    async fn pilots(&self, faults: Value) -> Result<(), Failure> {
        let url = format!("{}/test/pilot_faults", self.provider);
        reqwest::Client::new().post(url).json(&faults).send().await?.error_for_status()?;
        Ok(())
    }
}

/// Books a ride, once, under a new key.
async fn book(server: &str, user: &str) -> Result<u16, Failure> {
    let ride = [
        ("origin_lat", 37.77),
        ("origin_lon", -122.42),
        ("target_lat", 37.79),
        ("target_lon", -122.39),
    ];
    let call = reqwest::Client::new().post(format!("{server}/rides")).form(&ride);
    let call = call
        .header("authorization", user)
        .header("idempotency-key", uuid::Uuid::new_v4().to_string());
    Ok(call.send().await?.status().as_u16())
}

/// This program once more.
struct Server(Child);

impl Server {
    fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    fn url(&mut self) -> Result<String, Failure> {
        let out = self.0.stdout.take().ok_or("it has no output")?;
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        let ready = lines
            .by_ref()
            .find_map(|line| line.split_once(" is ready on ").map(|(_, url)| url.to_owned()));
        // Whatever else it prints is read, or it could print no more.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(ready.ok_or("the second server did not start")?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
