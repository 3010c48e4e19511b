//! What `sh benches/run` can be asked for.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Measures the engine beside pgbench.
#[derive(Parser)]
pub struct Options {
    /// About two minutes: three rounds of one second, up to 64 concurrent.
    #[arg(long)]
    pub quick: bool,
    /// Each path for a moment, to see that it runs; writes no file.
    #[arg(long)]
    pub smoke: bool,
    /// Only fresh requests and replays; writes no file.
    #[arg(long)]
    pub only_main: bool,
    /// Only the embedded store beside rusqlite, which needs no server; writes no file.
    #[arg(long)]
    pub only_sqlite: bool,
    /// Only the store on MariaDB beside its driver by hand; writes docs/bench/mariadb.md.
    #[arg(long)]
    pub mariadb: bool,
    /// Only fresh requests and replays, with a server as on another machine: what is sent arrives after so many
    /// microseconds, in either direction. Writes docs/bench/away.md, with `--mariadb` away-mariadb.md.
    #[arg(long)]
    pub away: Option<u64>,
    /// Only this contestant, for ten seconds, at the first of `--concurrent`: for a profiler.
    #[arg(long)]
    pub profile: Option<String>,
    /// Only where the time of some contestants goes; writes docs/bench/profile.md, with `--mariadb` profile-mariadb.md.
    /// See `sh benches/profile`.
    #[arg(long)]
    pub profiles: bool,
    /// Only two and four processes on one server beside one; writes docs/bench/several.md.
    #[arg(long)]
    pub several: bool,
    /// Only the workers, on a large table; writes docs/bench/workers.md.
    #[arg(long)]
    pub workers: bool,
    /// Only what runs behind the request: staged jobs and accepted requests; writes docs/bench/background.md.
    #[arg(long)]
    pub background: bool,
    /// Only requests whose process died, resumed by retries and by a completer; writes docs/bench/abandoned.md.
    #[arg(long)]
    pub drained: bool,
    /// Only replays and fresh requests, with Redis in front and without; writes docs/bench/replay-cache.md. Needs
    /// redis-server.
    #[cfg(feature = "redis")]
    #[arg(long)]
    pub replay_cache: bool,
    /// Only fresh requests and replays, with everything on that tells of them and with all of it off; writes
    /// docs/bench/watched.md.
    #[cfg(feature = "metrics")]
    #[arg(long)]
    pub watched: bool,
    /// How many jobs and accepted requests each contestant of that has.
    #[arg(long)]
    pub jobs: Option<u64>,
    /// SQL to run before that: to try another schema.
    #[arg(long)]
    pub before: Option<String>,
    /// Only this program beside another build of it: see `sh benches/hooks`.
    #[arg(long)]
    pub beside: Option<PathBuf>,
    /// One case of that by itself, on the server at `--port`.
    #[arg(long, hide = true, requires = "port")]
    pub alone: Option<String>,
    #[arg(long, hide = true)]
    pub port: Option<u16>,
    /// Rounds, each with every contestant once.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Seconds of each run.
    #[arg(long)]
    pub seconds: Option<u64>,
    /// How many concurrent requests, with commas between.
    #[arg(long, value_delimiter = ',')]
    pub concurrent: Option<Vec<usize>>,
    /// Abandoned requests to be resumed.
    #[arg(long)]
    pub abandoned: Option<u64>,
    /// Rows of the large table.
    #[arg(long)]
    pub large: Option<u64>,
    /// Connections of the engine's pool.
    #[arg(long, default_value_t = 16)]
    pub pool: usize,
    /// cargo says so.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Options {
    pub fn delay(&self) -> Option<Duration> {
        self.away.map(Duration::from_micros)
    }
}

pub struct Plan {
    pub rounds: usize,
    pub seconds: u64,
    pub concurrent: Vec<usize>,
    pub abandoned: u64,
    pub jobs: u64,
    pub large: u64,
    pub pool: usize,
}

impl Plan {
    pub fn of(options: &Options) -> Self {
        let full: &[usize] = &[1, 8, 32, 64, 256];
        let (concurrent, rounds, seconds, abandoned, jobs, large) = match options.quick {
            true => (&full[..4], 3, 1, 1_000, 5_000, 100_000),
            false => (full, 5, 3, 10_000, 20_000, 1_000_000),
        };
        Self {
            rounds: options.rounds.unwrap_or(rounds),
            seconds: options.seconds.unwrap_or(seconds),
            concurrent: options.concurrent.clone().unwrap_or(concurrent.to_vec()),
            abandoned: options.abandoned.unwrap_or(abandoned),
            jobs: options.jobs.unwrap_or(jobs),
            large: options.large.unwrap_or(large),
            pool: options.pool,
        }
    }

    pub fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
