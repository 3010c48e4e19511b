//! A Redis server of a test's own: killed, stopped and started again.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::process::free_port;

pub struct Redis {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Redis {
    pub async fn start() -> Self {
        let started = tokio::task::spawn_blocking(|| {
            let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
            Self { child: Self::spawn(&dir, port), port, dir }
        });
        started.await.unwrap()
    }

    fn spawn(dir: &tempfile::TempDir, port: u16) -> Child {
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("no redis-server: Debian's package of that name has it; tests/run installs it");
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        // It accepts connections while it still loads its data.
        let answers = || {
            let mut connection = client.get_connection()?;
            redis::cmd("PING").query::<String>(&mut connection)
        };
        while answers().is_err() {
            assert!(child.try_wait().unwrap().is_none(), "redis-server ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A connection of the test's own.
    pub async fn connection(&self) -> MultiplexedConnection {
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(30)))
            .set_response_timeout(Some(Duration::from_secs(30)));
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
    }

    pub async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(*word);
        });
        command.query_async(&mut self.connection().await).await.unwrap()
    }

    /// A number of `INFO stats`, since its start.
    pub async fn stat(&self, name: &str) -> u64 {
        let stats: String = self.command(&["INFO", "stats"]).await;
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    }

    /// The number of reads that found a value, since its start.
    pub async fn hits(&self) -> u64 {
        self.stat("keyspace_hits").await
    }

    /// From now on it is a replica of the other one, as after a failover: it stays, and refuses what writes.
    pub async fn becomes_replica_of(&self, primary: &Self) {
        let () = self.command(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]).await;
    }

    pub fn kill_9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Restarts it with all acknowledged data.
    pub fn restart(&mut self) {
        self.child = tokio::task::block_in_place(|| Self::spawn(&self.dir, self.port));
    }

    /// Sends it a signal: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A way to it on which each answer takes longer, and which counts round trips.
#[derive(Clone)]
pub struct Slow {
    port: u16,
    /// Where new connections lead.
    upstream: Arc<AtomicU16>,
    millis: Arc<AtomicU64>,
    are_held: Arc<watch::Sender<bool>>,
    turns: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Slow {
    pub async fn to(redis: &Redis) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let upstream = Arc::new(AtomicU16::new(redis.port));
        let (millis, turns, connections) = (Arc::default(), Arc::default(), Arc::default());
        let are_held = Arc::new(watch::Sender::new(false));
        let slow = Self { port, upstream, millis, are_held, turns, connections };
        let way = slow.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                way.connections.fetch_add(1, Ordering::SeqCst);
                let upstream = way.upstream.load(Ordering::SeqCst);
                if let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await {
                    tokio::spawn(way.clone().connection(client, server));
                }
            }
        });
        slow
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on new connections lead to another server, as a name in DNS does; those that there are stay.
    pub fn leads_to(&self, redis: &Redis) {
        self.upstream.store(redis.port, Ordering::SeqCst);
    }

    /// From now on each answer takes this much longer.
    pub fn answer_slowly(&self, delay: Duration) {
        self.millis.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// From now on answers wait until the test lets them go on.
    pub fn hold_answers(&self, are_held: bool) {
        self.are_held.send_replace(are_held);
    }

    /// How often a client sent something after an answer.
    pub fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    async fn connection(self, client: TcpStream, server: TcpStream) {
        let (mut of_client, mut to_client) = client.into_split();
        let (mut of_server, mut to_server) = server.into_split();
        let has_heard = AtomicBool::new(true);
        let forward = async {
            let mut said = vec![0; 64 << 10];
            while let Ok(length @ 1..) = of_client.read(&mut said).await {
                if has_heard.swap(false, Ordering::SeqCst) {
                    self.turns.fetch_add(1, Ordering::SeqCst);
                }
                if to_server.write_all(&said[..length]).await.is_err() {
                    return;
                }
            }
        };
        let backward = async {
            let mut said = vec![0; 64 << 10];
            while let Ok(length @ 1..) = of_server.read(&mut said).await {
                tokio::time::sleep(Duration::from_millis(self.millis.load(Ordering::SeqCst))).await;
                let _ = self.are_held.subscribe().wait_for(|are_held| !are_held).await;
                has_heard.store(true, Ordering::SeqCst);
                if to_client.write_all(&said[..length]).await.is_err() {
                    return;
                }
            }
        };
        // Whichever ends drops all four halves.
        tokio::select! {
            () = forward => {}
            () = backward => {}
        }
    }
}
