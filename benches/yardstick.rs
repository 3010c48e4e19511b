//! pgbench, the yardstick: the least SQL, by the driver with the least of its own.

use std::process::{Command, Stdio};

use crate::load::{Figures, figures};
use crate::server::Server;

/// One run of `benches/sql/<script>.sql`, prepared.
pub fn run(server: &Server, script: &str, clients: usize, seconds: u64) -> Figures {
    let logs = tempfile::tempdir().unwrap();
    let prefix = logs.path().join("log");
    let (client, on_server) = (of_children(), server.cpu());
    let out = pgbench(server.port(), script, clients)
        // Many clients take seconds to connect, which counts as time but not in the figures.
        .args(["-T", &seconds.max(clients as u64 / 50).to_string(), "-l", "--log-prefix"])
        .arg(&prefix)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = String::from_utf8_lossy(&out.stdout);
    let (client, on_server) = (of_children() - client, server.cpu() - on_server);
    let per_second: f64 = after(&out, "tps = ");
    let mut latencies = Vec::new();
    for log in std::fs::read_dir(logs.path()).unwrap().flatten() {
        let log = std::fs::read_to_string(log.path()).unwrap();
        let micros = log.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<f64>().ok());
        latencies.extend(micros.map(|micros| micros / 1e3));
    }
    Figures { per_second, ..figures(latencies, 1.0, client, on_server) }
}

/// So many transactions of one client, through any port.
pub fn exactly(port: u16, script: &str, transactions: u64) {
    let mut run = pgbench(port, script, 1);
    run.args(["-t", &transactions.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(run.status().unwrap().success());
}

fn pgbench(port: u16, script: &str, clients: usize) -> Command {
    let file = format!("{}/benches/sql/{script}.sql", env!("CARGO_MANIFEST_DIR"));
    let mut pgbench = Command::new("pgbench");
    pgbench
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-n"])
        .args(["-M", "prepared", "-c", &clients.to_string(), "-j", &clients.min(2).to_string()])
        .args(["-f", &file, "bench"]);
    pgbench
}

fn after(text: &str, label: &str) -> f64 {
    let rest = text.split(label).nth(1).unwrap_or_else(|| panic!("pgbench said: {text}"));
    rest.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap()
}

/// Processor time of ended child processes, in seconds.
fn of_children() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[13..15].iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}
