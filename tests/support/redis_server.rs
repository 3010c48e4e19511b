//! A Redis server of a test's own: killed, stopped and started again.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
