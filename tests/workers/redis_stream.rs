//! Staged jobs into a Redis stream: a real server, on a port of its own, killed in the middle.
#![cfg(feature = "redis")]

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::process::free_port;
use crate::support::*;
use atomic_phases::worker::{Enqueuer, RedisStream, WorkerConfig};

use redis::AsyncCommands;
use redis::streams::StreamRangeReply;

on_every_store! {
    g18_jobs_reach_the_stream_through_a_crash_of_redis,
}

struct Redis {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Redis {
    fn start() -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        Self { child: Self::spawn(&dir, port), port, dir }
    }

    fn spawn(dir: &tempfile::TempDir, port: u16) -> Child {
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("no redis-server: Debian's package of that name has it; tests/run installs it");
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "redis-server ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn kill_9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::spawn(&self.dir, self.port);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn g18_jobs_reach_the_stream_through_a_crash_of_redis<S: TestDb>(db: S) {
    let mut redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let app = App::default();
    let engine = engine(&db, &app);
    let sink = RedisStream::connect(&redis.url(), "jobs").await.unwrap();
    let mut enqueuer = Enqueuer::new(&engine, sink, WorkerConfig::default());
    let book_some = async |from: u32| {
        for round in from..from + 5 {
            finished(engine.call(&scope(), &key(&format!("k{round}")), book(20)).await);
        }
    };
    book_some(0).await;
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 5);

    redis.kill_9();
    book_some(5).await;
    let away = enqueuer.run_once().await.unwrap();
    assert_eq!((away.delivered, away.put_back), (0, 10), "they wait in the database");
    tokio::task::block_in_place(|| redis.restart());
    let mut delivered = 0;
    while delivered < 15 {
        db.let_time_pass().await;
        delivered += enqueuer.run_once().await.unwrap().delivered;
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);

    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let stream: StreamRangeReply = connection.xrange_all("jobs").await.unwrap();
    let field = |at: usize, name: &str| stream.ids[at].get::<String>(name).unwrap();
    let ids: HashSet<String> = (0..stream.ids.len()).map(|at| field(at, "id")).collect();
    assert_eq!(ids.len(), 20, "each at least once");
    for at in 0..stream.ids.len() {
        assert!(["receipt", "thanks"].contains(&field(at, "name").as_str()));
        assert_eq!(field(at, "scope"), "tenant-1");
        serde_json::from_str::<String>(&field(at, "args")).unwrap();
    }
}
