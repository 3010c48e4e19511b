//! PgBouncer in front of a database: Debian's, or the program that `PGBOUNCER` names.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::cluster::{as_postgres, is_root, psql};
use super::process::free_port;

fn program() -> String {
    std::env::var("PGBOUNCER").unwrap_or_else(|_| "pgbouncer".to_owned())
}

/// Whether it maps prepared statements to other sessions, as it does from 1.21 on.
pub fn hands_statements_on() -> bool {
    let told = Command::new(program()).arg("--version").output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let version = told.strip_prefix("PgBouncer ").expect("its name and its version");
    let mut numbers = version.split(|sign: char| !sign.is_ascii_digit()).map(str::parse::<u32>);
    let mut number = || numbers.next().expect("a number").expect("a number");
    (number(), number()) >= (1, 21)
}

pub struct Bouncer {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Bouncer {
    /// `mode`: `session`, or `transaction`.
    pub fn start(database: &str, mode: &str) -> Self {
        Self::start_with(database, mode, "")
    }

    /// The same; `options` apply to its connections to the server.
    pub fn start_with(database: &str, mode: &str, options: &str) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let (server, name) = database.rsplit_once('/').unwrap();
        let (_, server_port) = server.rsplit_once(':').unwrap();
        let file = dir.path().join("pgbouncer.ini");
        let statements = match hands_statements_on() {
            true => "max_prepared_statements = 200\n",
            false => "",
        };
        let settings = format!(
            "[databases]\n{name} = host=127.0.0.1 port={server_port} user=postgres {options}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n\
             admin_users = postgres\n\
             unix_socket_dir =\npool_mode = {mode}\ndefault_pool_size = 20\n\
             ignore_startup_parameters = extra_float_digits\n{statements}"
        );
        std::fs::write(&file, settings).unwrap();
        if is_root() {
            let owner = Command::new("chown").arg("-R").arg("postgres").arg(dir.path()).status();
            assert!(owner.unwrap().success());
        }
        let child = as_postgres(Path::new(&program()))
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("no pgbouncer: Debian's package of that name has it; tests/run installs it");
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "pgbouncer did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, port, _dir: dir }
    }

    /// Sends a command to its console.
    pub fn tell(&self, command: &str) {
        psql(&format!("postgres://postgres@127.0.0.1:{}/pgbouncer", self.port), command);
    }

    pub fn url(&self, database: &str) -> String {
        let (_, name) = database.rsplit_once('/').unwrap();
        format!("postgres://postgres@127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Bouncer {
    /// Asks it to end: `runuser` passes that on, and ends it within two seconds. A killed `runuser` would leave it
    /// running.
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
