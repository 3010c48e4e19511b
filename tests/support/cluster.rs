//! A PostgreSQL cluster in a temporary folder, on a port of its own, with fsync on.
//!
//! `DATABASE_URL` names a server to use instead, for the tests that do not kill theirs; `CITUS_URL` the
//! coordinator of a Citus cluster whose nodes trust each other.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub struct Cluster {
    dir: PathBuf,
    bin: PathBuf,
    port: u16,
    variables: Vec<String>,
    /// Stops the cluster when this process ends, in whatever way: its standard input closes then.
    _watchdog: Child,
}

static SHARED: OnceLock<Cluster> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// The URL of a new, empty database on the shared server.
pub fn new_database() -> String {
    if let Some(coordinator) = citus() {
        return create_database_on_all_nodes(&coordinator);
    }
    match std::env::var("DATABASE_URL") {
        Ok(server) => create_database(&server),
        Err(_) => SHARED.get_or_init(Cluster::start).new_database(),
    }
}

/// The coordinator, if the tests run on a Citus cluster.
pub fn citus() -> Option<String> {
    std::env::var("CITUS_URL").ok()
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_in(&std::env::temp_dir())
    }

    /// A cluster below this folder.
    pub fn start_in(parent: &Path) -> Self {
        Self::start_with(parent, &[])
    }

    /// The same, with these variables in the server's environment.
    pub fn start_with(parent: &Path, variables: &[(&str, &str)]) -> Self {
        let cluster = Self::below(parent, variables);
        run(as_postgres(&cluster.bin.join("initdb"))
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D"])
            .arg(cluster.data()));
        cluster.set(
            "listen_addresses = '127.0.0.1'\nshared_preload_libraries = 'pg_stat_statements'\n\
             max_connections = 300\nfsync = on\nsynchronous_commit = on\nshared_buffers = 64MB\n\
             autovacuum = off\n",
        );
        cluster.begin();
        cluster
    }

    /// A standby of this server, which follows it.
    pub fn standby(&self) -> Self {
        let standby = Self::below(&std::env::temp_dir(), &[]);
        let port = self.port.to_string();
        run(as_postgres(&self.bin.join("pg_basebackup"))
            .args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-c", "fast", "-p", &port, "-D"])
            .arg(standby.data()));
        standby.set("synchronous_standby_names = ''\n");
        standby.begin();
        standby
    }

    /// Its folder and its watchdog.
    fn below(parent: &Path, variables: &[(&str, &str)]) -> Self {
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
        let port = free_port();
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
        let owned = |&(name, value): &(&str, &str)| format!("{name}={value}");
        let variables = variables.iter().map(owned).collect();
        Self { dir, bin, port, variables, _watchdog: watchdog }
    }

    /// On its own port, and with its own socket.
    fn begin(&self) {
        let socket = self.dir.display();
        self.set(&format!("port = {}\nunix_socket_directories = '{socket}'\n", self.port));
        self.start_server();
    }

    /// Appends lines to the server's configuration. The last line of a setting takes effect.
    fn set(&self, settings: &str) {
        let file = self.data().join("postgresql.conf");
        let mut file = std::fs::OpenOptions::new().append(true).open(file).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
    }

    /// The same for a running server.
    pub fn change(&self, settings: &str) {
        self.set(settings);
        self.pg_ctl(&["reload"]);
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

    /// Stops the server like a crash: without a checkpoint, and without closing connections.
    pub fn stop_immediately(&self) {
        self.pg_ctl(&["-m", "immediate", "stop"]);
    }

    pub fn start_server(&self) {
        let log = self.dir.join("log");
        self.pg_ctl(&["-w", "-l", log.to_str().unwrap(), "start"]);
    }

    /// Kills every process of the server, as the loss of its machine does.
    pub fn kill_9(&self) {
        Self::kill_9_in(&self.data());
    }

    /// The same for the server in that folder.
    pub fn kill_9_in(data: &Path) {
        let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
        let lines: Vec<&str> = file.lines().collect();
        let mut ids = vec![lines[0].trim().to_owned()];
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let id = process.file_name().into_string().unwrap();
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            // After the name, which is in parentheses: the state, and the parent's id.
            let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
            if parent == Some(ids[0].as_str()) {
                ids.push(id);
            }
        }
        // The first one may be fast enough to end the others.
        let _ = Command::new("kill").arg("-9").args(&ids).stderr(Stdio::null()).status();
        // The killed server cannot release its shared memory, so this does.
        if let Some((_, memory)) = lines.get(6).and_then(|line| line.trim().rsplit_once(' ')) {
            let _ = Command::new("ipcrm").args(["-m", memory]).stderr(Stdio::null()).status();
        }
    }

    /// Starts the server of that folder, which was killed.
    pub fn start_in_place(data: &Path) {
        // It refuses to start while the previous one is still ending.
        let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
        let before = Path::new("/proc").join(file.lines().next().unwrap().trim());
        let began = Instant::now();
        while before.exists() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        run(as_postgres(&binaries().join("pg_ctl"))
            .args(["-w", "-t", "300", "-l"])
            .arg(data.join("log"))
            .arg("-D")
            .arg(data)
            .arg("start"));
    }

    /// Promotes a standby.
    pub fn promote(&self) {
        self.pg_ctl(&["-w", "promote"]);
    }

    /// One value that the server itself returns.
    pub fn ask(&self, sql: &str) -> String {
        let server = format!("postgres://postgres@127.0.0.1:{}/postgres", self.port);
        let asked = Command::new(self.bin.join("psql")).args([&server, "-qAtc", sql]).output();
        String::from_utf8(asked.unwrap().stdout).unwrap().trim().to_owned()
    }

    fn pg_ctl(&self, arguments: &[&str]) {
        run(as_postgres(Path::new("env"))
            .args(&self.variables)
            .arg(self.bin.join("pg_ctl"))
            .arg("-D")
            .arg(self.data())
            .args(arguments));
    }
}

fn create_database(server: &str) -> String {
    create_database_from(server, "template1")
}

/// The URL of a new database on the same server with all that this one has. A server copies no database that has a
/// session.
pub fn copy_of(database: &str) -> String {
    let (_, name) = database.rsplit_once('/').expect("a URL with a database in it");
    create_database_from(&on_this_server(database, "postgres"), name)
}

fn create_database_from(server: &str, template: &str) -> String {
    let name = format!("t_{}_{}", std::process::id(), DATABASES.fetch_add(1, Ordering::Relaxed));
    psql(server, &format!("CREATE DATABASE {name} TEMPLATE {template}"));
    on_this_server(server, &name)
}

/// The same on the coordinator and on each worker, joined to one cluster. One by one: a node that joins two
/// clusters concurrently fails with *tuple concurrently updated*.
fn create_database_on_all_nodes(coordinator: &str) -> String {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let database = create_database(coordinator);
    let (_, name) = database.rsplit_once('/').expect("it has a name");
    let extend = "SET client_min_messages = warning; CREATE EXTENSION citus";
    psql(&database, extend);
    let nodes = "SELECT (groupid = 0)::text || ' ' || nodename || ' ' || nodeport FROM pg_dist_node \
                 WHERE noderole = 'primary' ORDER BY groupid";
    for node in psql(coordinator, nodes).lines() {
        let (is_coordinator, place) = node.split_once(' ').expect("three words");
        let (host, port) = place.split_once(' ').expect("two words");
        let join =
            if is_coordinator == "true" { "citus_set_coordinator_host" } else { "citus_add_node" };
        if is_coordinator != "true" {
            let worker = node_url(coordinator, host, port);
            psql(&worker, &format!("CREATE DATABASE {name}"));
            psql(&on_this_server(&worker, name), extend);
        }
        psql(&database, &format!("SELECT {join}('{host}', {port})"));
    }
    database
}

/// Another node's, with the same user and database.
pub fn node_url(coordinator: &str, host: &str, port: &str) -> String {
    let (before, place) = coordinator.rsplit_once('@').expect("a URL with a user in it");
    let (_, database) = place.split_once('/').expect("a URL with a database in it");
    format!("{before}@{host}:{port}/{database}")
}

fn on_this_server(server: &str, database: &str) -> String {
    let (base, _) = server.rsplit_once('/').expect("a URL with a database in it");
    format!("{base}/{database}")
}

/// The answer of that database.
pub fn psql(url: &str, sql: &str) -> String {
    psql_each(url, &[sql])
}

/// The same for several commands, sent one by one in one session.
pub fn psql_each(url: &str, commands: &[&str]) -> String {
    let mut psql = Command::new(binaries().join("psql"));
    psql.args([url, "-qAt", "-v", "ON_ERROR_STOP=1"]);
    commands.iter().for_each(|command| {
        psql.args(["-c", command]);
    });
    let asked = psql.output().unwrap();
    assert!(asked.status.success(), "{commands:?}: {}", String::from_utf8_lossy(&asked.stderr));
    String::from_utf8(asked.stdout).unwrap().trim().to_owned()
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

static PORTS: AtomicU32 = AtomicU32::new(0);

/// A port outside of the range of outgoing connections, so that a killed server finds its own port free again. Each
/// server of this process searches from another place on, and so does each process.
pub fn free_port() -> u16 {
    const FROM: u32 = 20_000;
    const PORTS_THERE: u32 = 12_000;
    let number = PORTS.fetch_add(1, Ordering::Relaxed);
    let start = std::process::id().wrapping_mul(97).wrapping_add(31 * number);
    let ports = (0..PORTS_THERE).map(|next| (FROM + start.wrapping_add(next) % PORTS_THERE) as u16);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(free).expect("a free port")
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
