//! A MariaDB server in a temporary folder, on a port of its own, with fsync on.
//!
//! `MYSQLD` names the program of a MySQL to start instead. `MYSQL_URL` names a server to use instead, for the tests that
//! do not kill theirs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::cluster::{free_port, is_root};

pub struct Server {
    dir: PathBuf,
    port: u16,
    options: Vec<String>,
    /// Stops the server when this process ends, in whatever way: its standard input closes then.
    _watchdog: Child,
}

static SHARED: OnceLock<Server> = OnceLock::new();
/// Who may connect over TCP, without a name that would have to be resolved. MariaDB's own program does the same.
const MYSQL_ROOT: &str =
    "CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;";

static NAMES: AtomicU32 = AtomicU32::new(0);

/// The URL of a new, empty database on the shared server.
pub fn new_database() -> String {
    match std::env::var("MYSQL_URL") {
        Ok(server) => create_database(&server),
        Err(_) => SHARED.get_or_init(|| Server::start(&[])).new_database(),
    }
}

/// Two servers with a database of one name, and its URL at the first. Their user `app` writes to none that is read only,
/// as a user with more privileges could.
pub fn start_two() -> ([Server; 2], String) {
    let servers = [Server::start(&[]), Server::start(&[])];
    let url = servers[0].new_database();
    let (_, name) = url.rsplit_once('/').unwrap();
    servers[1].ask(&format!("CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"));
    for server in &servers {
        server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
    }
    (servers, url)
}

impl Server {
    /// A server with these additional options.
    pub fn start(options: &[&str]) -> Self {
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let name = format!("atomic-phases-my-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        // A starting server deletes the temporary tables of all servers that share its folder for them.
        std::fs::create_dir_all(dir.join("tmp")).unwrap();
        if is_root() {
            run(Command::new("chown").args(["-R", "mysql"]).arg(&dir));
        }
        let mut creates = as_mysql(mysqld().as_deref().unwrap_or("mariadb-install-db"));
        creates
            .arg("--no-defaults")
            .arg(format!("--datadir={}", dir.join("data").display()))
            .arg(format!("--tmpdir={}", dir.join("tmp").display()));
        if mysqld().is_some() {
            let first = dir.join("first.sql");
            std::fs::write(&first, MYSQL_ROOT).unwrap();
            creates.arg("--initialize-insecure").arg(format!("--init-file={}", first.display()));
        } else {
            creates.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        }
        run(&mut creates);
        let port = free_port();
        let stop =
            format!("read _; kill -9 $(cat '{0}/pid'); sleep 0.2; rm -rf '{0}'", dir.display());
        let watchdog = as_mysql("sh")
            .args(["-c", &stop])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let server = Self { dir, port, options, _watchdog: watchdog };
        server.start_server();
        server
    }

    pub fn start_server(&self) {
        let dir = self.dir.display();
        let log = std::fs::File::create(self.dir.join("log")).unwrap();
        // Detached: the watchdog ends it.
        let mut command = as_mysql(mysqld().as_deref().unwrap_or("mariadbd"));
        command
            .arg("--no-defaults")
            .args([format!("--datadir={dir}/data"), format!("--socket={dir}/socket")])
            .arg(format!("--tmpdir={dir}/tmp"))
            .args([format!("--pid-file={dir}/pid"), format!("--port={}", self.port)])
            .args([
                "--bind-address=127.0.0.1",
                "--max-connections=2000",
                "--innodb-buffer-pool-size=64M",
            ])
            .args(["--innodb-flush-log-at-trx-commit=1", "--skip-log-bin", "--skip-name-resolve"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // It is ended by its id, and outlives the process that started it.
        #[expect(clippy::zombie_processes)]
        let _server = command.spawn().unwrap();
        for _ in 0..600 {
            if self.is_ours() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        panic!("the server did not start: {log}");
    }

    /// Whether this server answers, and not another one on its port.
    fn is_ours(&self) -> bool {
        self.try_ask("SELECT @@datadir").is_some_and(|dir| Path::new(&dir).starts_with(&self.dir))
    }

    /// Processor time of the server, in seconds.
    pub fn cpu(&self) -> f64 {
        let id = std::fs::read_to_string(self.dir.join("pid")).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap();
        // After the name, which may contain spaces: state, parent, …, utime, stime.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let ticks: u64 =
            fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        ticks as f64 / 100.0
    }

    /// Kills the server, as the loss of its machine does.
    pub fn kill_9(&self) {
        let id = std::fs::read_to_string(self.dir.join("pid")).unwrap();
        run(Command::new("kill").args(["-9", id.trim()]));
        // Gone or, if it is this process's own child, a zombie.
        let stat = format!("/proc/{}/stat", id.trim());
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn new_database(&self) -> String {
        create_database(&format!("mysql://root@127.0.0.1:{}/mysql", self.port))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// One value that the server itself returns.
    pub fn ask(&self, sql: &str) -> String {
        self.try_ask(sql).expect("an answer")
    }

    fn try_ask(&self, sql: &str) -> Option<String> {
        let asked =
            client(&format!("mysql://root@127.0.0.1:{}/", self.port), sql).output().unwrap();
        let said = String::from_utf8_lossy(&asked.stdout);
        asked.status.success().then(|| said.trim().to_owned())
    }
}

/// The command line's client: `mysql://user[:password]@host:port/..`.
fn client(server: &str, sql: &str) -> Command {
    let (who, place) = server.trim_start_matches("mysql://").split_once('@').unwrap();
    let (user, password) = who.split_once(':').unwrap_or((who, ""));
    let (address, _) = place.split_once('/').unwrap();
    let (host, port) = address.split_once(':').unwrap_or((address, "3306"));
    let mut command = Command::new("mariadb");
    command.args([
        "--no-defaults",
        "--protocol=tcp",
        "-h",
        host,
        "-P",
        port,
        "-u",
        user,
        "-NBe",
        sql,
    ]);
    command.env("MYSQL_PWD", password).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn create_database(server: &str) -> String {
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = format!("t_{}_{number}", std::process::id());
    run(&mut client(
        server,
        &format!("CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    ));
    let (base, _) = server.rsplit_once('/').expect("a URL with a database in it");
    format!("{base}/{name}")
}

/// The program of a MySQL, where one runs instead of a MariaDB.
pub fn mysqld() -> Option<String> {
    std::env::var("MYSQLD").ok()
}

/// The server refuses to run as root.
fn as_mysql(program: &str) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "mysql", "--", program]).current_dir("/");
    command
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed: is the package `mariadb-server` installed? {said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
