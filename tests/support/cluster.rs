//! A PostgreSQL cluster in a temporary folder, on a port of its own, with fsync on.
//!
//! `DATABASE_URL` names a server to use instead, for the tests that do not kill theirs.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Cluster {
    dir: PathBuf,
    bin: PathBuf,
    port: u16,
    /// Stops the cluster when this process ends, in whatever way: its standard input closes then.
    _watchdog: Child,
}

static SHARED: OnceLock<Cluster> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The URL of a new, empty database on the shared server.
pub fn new_database() -> String {
    match std::env::var("DATABASE_URL") {
        Ok(server) => create_database(&server),
        Err(_) => SHARED.get_or_init(Cluster::start).new_database(),
    }
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_in(&std::env::temp_dir())
    }

    /// A cluster below this folder.
    pub fn start_in(parent: &Path) -> Self {
        let bin = binaries();
        let dir = parent.join(format!(
            "atomic-phases-pg-{}-{}",
            std::process::id(),
            DATABASES.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&dir).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&dir));
        }
        run(as_postgres(&bin.join("initdb"))
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D"])
            .arg(dir.join("data")));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\n\
             shared_preload_libraries = 'pg_stat_statements'\nmax_connections = 300\n\
             fsync = on\nsynchronous_commit = on\nshared_buffers = 64MB\n",
            dir.display()
        );
        let file = dir.join("data/postgresql.conf");
        std::fs::OpenOptions::new()
            .append(true)
            .open(file)
            .unwrap()
            .write_all(settings.as_bytes())
            .unwrap();
        let stop = format!(
            "read _; '{}' -m immediate -D '{}' stop; rm -rf '{}'",
            bin.join("pg_ctl").display(),
            dir.join("data").display(),
            dir.display()
        );
        let watchdog = as_postgres(Path::new("sh"))
            .args(["-c", &stop])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let cluster = Self { dir, bin, port, _watchdog: watchdog };
        cluster.start_server();
        cluster
    }

    pub fn new_database(&self) -> String {
        create_database(&format!("postgres://postgres@127.0.0.1:{}/postgres", self.port))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's own folder.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Stops the server as a crash does: no checkpoint, no goodbye.
    pub fn stop_immediately(&self) {
        self.pg_ctl(&["-m", "immediate", "stop"]);
    }

    pub fn start_server(&self) {
        let log = self.dir.join("log");
        self.pg_ctl(&["-w", "-l", log.to_str().unwrap(), "start"]);
    }

    fn pg_ctl(&self, arguments: &[&str]) {
        run(as_postgres(&self.bin.join("pg_ctl"))
            .arg("-D")
            .arg(self.dir.join("data"))
            .args(arguments)
            .stdout(Stdio::null()));
    }
}

fn create_database(server: &str) -> String {
    let name = format!("t_{}_{}", std::process::id(), DATABASES.fetch_add(1, Ordering::Relaxed));
    run(Command::new(binaries().join("psql")).args([
        server,
        "-q",
        "-c",
        &format!("CREATE DATABASE {name}"),
    ]));
    let (base, _) = server.rsplit_once('/').expect("a URL with a database in it");
    format!("{base}/{name}")
}

fn binaries() -> PathBuf {
    let asked = Command::new("pg_config").arg("--bindir").output().ok();
    let asked = asked.map(|out| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()));
    // Where Debian puts each version's programs.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut known: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    known.sort();
    asked.into_iter().chain(known.into_iter().rev()).find(|bin| bin.join("initdb").exists()).expect(
        "no PostgreSQL server programs: install the package `postgresql`, or let `sh tests/run` do it",
    )
}

pub fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.starts_with(b"0")
}

/// initdb and the server refuse to run as root.
pub fn as_postgres(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program).current_dir("/");
    command
}

fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?} failed");
}
