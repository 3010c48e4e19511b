//! The flagship as real processes, on each store, and a schedule from a seed.

use std::fs::File;
use std::process::Stdio;

use serde_json::Value;

use super::process::{Process, free_port};
use super::{citus, cluster};

#[allow(missing_docs, unreachable_pub)]
#[path = "../../examples/rocket_rides/signature.rs"]
pub mod signature;

/// An event for the flagship's webhook, signed now as its provider does.
pub fn signed(webhook: &str, secret: &str, event: String) -> reqwest::RequestBuilder {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    signed_at(now.as_secs(), webhook, secret, event)
}

pub fn signed_at(time: u64, webhook: &str, secret: &str, event: String) -> reqwest::RequestBuilder {
    let signature = signature::sign(secret, time, event.as_bytes());
    reqwest::Client::new().post(webhook).header(signature::SIGNATURE, signature).body(event)
}

/// `rocket_rides` as two processes: a provider, and a server that is killed and comes back.
pub struct Rides {
    pub provider: Process,
    pub server: Process,
    pub arguments: Vec<String>,
    pub database: String,
    _dir: tempfile::TempDir,
}

impl Rides {
    pub fn start(database: impl FnOnce(&tempfile::TempDir) -> String) -> Self {
        Self::start_with(database, &[])
    }

    /// `changes`: options that are different from the usual.
    pub fn start_with(
        database: impl FnOnce(&tempfile::TempDir) -> String,
        changes: &[(&str, &str)],
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = dir.path().join("ledger");
        let ledger = ledger.to_str().unwrap();
        let provider = Process::start(&["provider", "--listen", "127.0.0.1:0", "--ledger", ledger]);
        let listen = format!("127.0.0.1:{}", free_port());
        let database = database(&dir);
        let mut arguments = [
            "serve",
            "--listen",
            &listen,
            "--database-url",
            &database,
            "--charge-api",
            &provider.url,
            "--lease",
            "1",
            "--reconcile-after",
            "0.1",
            "--poll",
            "0.1",
        ]
        .map(str::to_owned)
        .to_vec();
        change(&mut arguments, changes);
        let server = Self::serve(&arguments);
        if database.starts_with("postgres") && cluster::citus().is_some() {
            citus::distribute_rides(&database);
        }
        Self { provider, server, arguments, database, _dir: dir }
    }

    /// Another server of the same API. `changes`: options that are different for it.
    pub fn another(&self, changes: &[(&str, &str)], variables: &[(&str, &str)]) -> Node {
        Node::start(self.arguments_with(changes), variables, Stdio::null())
    }

    /// The same; what it writes to standard error goes to a file.
    pub fn another_saying(
        &self,
        changes: &[(&str, &str)],
        variables: &[(&str, &str)],
        file: File,
    ) -> Node {
        Node::start(self.arguments_with(changes), variables, file.into())
    }

    fn arguments_with(&self, changes: &[(&str, &str)]) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        change(&mut arguments, &[("--listen", &format!("127.0.0.1:{}", free_port()))]);
        change(&mut arguments, changes);
        arguments
    }

    pub fn serve(arguments: &[String]) -> Process {
        Process::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn kill_and_restart(&mut self) {
        self.server.kill_9();
        self.server = Self::serve(&self.arguments);
    }

    pub async fn faults(&self, faults: Value) {
        let url = format!("{}/test/faults", self.provider.url);
        reqwest::Client::new().post(url).json(&faults).send().await.unwrap();
    }

    /// How often the provider was asked for a charge.
    pub async fn charge_calls(&self) -> u64 {
        let url = format!("{}/test/calls", self.provider.url);
        let told: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        told["calls"].as_u64().unwrap()
    }

    pub async fn charges(&self) -> Vec<Value> {
        let url = format!("{}/v1/charges", self.provider.url);
        let list: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        list["data"].as_array().unwrap().clone()
    }

    /// The rides of which a pilot was notified, each as often as the notification was sent.
    pub async fn notifications(&self) -> Vec<String> {
        let url = format!("{}/v1/notifications", self.provider.url);
        let list: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        let rides = list["data"].as_array().unwrap().iter();
        rides.map(|told| told["ride"].as_str().unwrap().to_owned()).collect()
    }

    pub async fn pilot_faults(&self, faults: Value) {
        let url = format!("{}/test/pilot_faults", self.provider.url);
        reqwest::Client::new().post(url).json(&faults).send().await.unwrap();
    }
}

fn change(arguments: &mut Vec<String>, changes: &[(&str, &str)]) {
    for (option, value) in changes {
        match arguments.iter().position(|argument| argument == option) {
            Some(at) => arguments[at + 1] = (*value).to_owned(),
            None => arguments.extend([option, value].map(|text| (*text).to_owned())),
        }
    }
}

/// One more server, which can be started again as it was.
pub struct Node {
    pub process: Process,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Node {
    fn start(arguments: Vec<String>, variables: &[(&str, &str)], stderr: Stdio) -> Self {
        let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let process = Process::start_with(&texts, variables, stderr);
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Self { process, arguments, variables: variables.iter().map(owned).collect() }
    }

    pub fn url(&self) -> &str {
        &self.process.url
    }

    pub fn kill_and_restart(&mut self) {
        self.process.kill_9();
        let variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        *self = Self::start(self.arguments.clone(), &variables, Stdio::null());
    }
}

/// SplitMix64: a few lines that make a schedule from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub fn sqlite(dir: &tempfile::TempDir) -> String {
    format!("sqlite://{}", dir.path().join("rides.db").display())
}

pub fn postgres(_: &tempfile::TempDir) -> String {
    cluster::new_database()
}

#[cfg(feature = "mysql")]
pub fn mariadb(_: &tempfile::TempDir) -> String {
    super::mariadb::new_database()
}
