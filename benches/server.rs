//! The throwaway server of the tests, with room for a benchmark, and what it tells about itself.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

use crate::away::Away;

#[path = "../tests/support/cluster.rs"]
#[allow(dead_code)]
pub mod cluster;

const SETTINGS: &[&str] = &[
    "shared_buffers = '1GB'",
    "max_wal_size = '8GB'",
    "checkpoint_timeout = '30min'",
    "autovacuum = on",
    "autovacuum_naptime = '5s'",
    "logging_collector = on",
];

pub struct Server {
    cluster: cluster::Cluster,
    away: Option<Away>,
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

#[derive(diesel::QueryableByName)]
struct TextRow {
    #[diesel(sql_type = Text)]
    t: String,
}

impl Server {
    pub fn start() -> Self {
        let server = Self { cluster: cluster::Cluster::start(), away: None };
        for setting in SETTINGS {
            server.psql("postgres", &["-c", &format!("ALTER SYSTEM SET {setting}")]);
        }
        server.cluster.stop_immediately();
        server.cluster.start_server();
        server.psql("postgres", &["-c", "CREATE DATABASE bench"]);
        server.psql("bench", &["-c", "CREATE EXTENSION pg_stat_statements"]);
        server
    }

    pub fn port(&self) -> u16 {
        self.away.as_ref().map_or_else(|| self.cluster.port(), Away::port)
    }

    /// From here on, what is sent to it arrives after `delay`, in either direction.
    pub fn move_away(&mut self, delay: Duration) {
        self.away = Some(Away::from(self.cluster.port(), delay));
    }

    pub fn url(&self) -> String {
        url(self.port())
    }

    pub fn psql(&self, database: &str, arguments: &[&str]) {
        let url = format!("postgres://postgres@127.0.0.1:{}/{database}", self.port());
        let mut psql = Command::new("psql");
        psql.args([&url, "-q", "-v", "ON_ERROR_STOP=1"]).args(arguments).stdout(Stdio::null());
        assert!(psql.status().unwrap().success(), "{arguments:?}");
    }

    /// On a connection of its own.
    pub async fn connection(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.url()).await.unwrap()
    }

    pub async fn sql(&self, sql: &str) {
        self.connection().await.batch_execute(sql).await.unwrap();
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let sql = format!("SELECT ({sql})::bigint AS n");
        diesel::sql_query(sql).get_result::<Number>(&mut self.connection().await).await.unwrap().n
    }

    pub async fn text(&self, sql: &str) -> String {
        let sql = format!("SELECT ({sql})::text AS t");
        diesel::sql_query(sql).get_result::<TextRow>(&mut self.connection().await).await.unwrap().t
    }

    pub async fn log(&self) -> String {
        let folder = PathBuf::from(self.text("current_setting('data_directory')").await);
        let file = self.text("pg_current_logfile()").await;
        std::fs::read_to_string(folder.join(file)).unwrap()
    }

    /// Processor time of the server and all that it forked, in seconds.
    pub fn cpu(&self) -> f64 {
        let pid_file = self.cluster.data().join("postmaster.pid");
        let postmaster = std::fs::read_to_string(pid_file).unwrap();
        let postmaster = postmaster.lines().next().unwrap().to_owned();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let ticks = processes.filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // Past the name, which may hold spaces: state, parent, …, utime, stime, cutime, cstime.
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let ticks = |range: std::ops::Range<usize>| -> u64 {
                fields[range].iter().filter_map(|field| field.parse::<u64>().ok()).sum()
            };
            if entry.file_name().to_str() == Some(&postmaster) {
                Some(ticks(11..15))
            } else {
                (fields[1] == postmaster).then(|| ticks(11..13))
            }
        });
        ticks.sum::<u64>() as f64 / 100.0
    }
}

pub fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/bench")
}
