//! Real processes: the flagship example as server and as provider, started, killed and restarted.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

pub use super::cluster::free_port;

/// A running `rocket_rides`. Dropped, it is killed, by its own id.
pub struct Process {
    child: Child,
    pub url: String,
}

/// The path of the built flagship example.
pub fn program() -> PathBuf {
    example("rocket_rides")
}

/// The path of a built example.
pub fn example(name: &str) -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    dir.pop();
    let program = dir.join("examples").join(name);
    assert!(program.exists(), "not built: run `cargo build --example {name}` first");
    program
}

impl Process {
    /// Starts it and waits for its ready line.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[], Stdio::null())
    }

    /// The same, with these variables in its environment.
    pub fn start_with(arguments: &[&str], variables: &[(&str, &str)], stderr: Stdio) -> Self {
        let mut child = Command::new(program())
            .args(arguments)
            .env_remove("DATABASE_URL")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.split_once(" is ready on ").map(|(_, url)| url.to_owned()))
            .unwrap_or_else(|| panic!("it ended before it was ready: {arguments:?}"));
        // Reads the rest of its output, so that the pipe does not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn kill_9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.child.wait().unwrap()
    }

    /// Sends it a signal: `STOP`, `CONT`, `TERM`.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Whether it is stopped by a `SIGSTOP`.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The state comes after the name, which is in parentheses.
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
