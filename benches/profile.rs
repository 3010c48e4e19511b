//! Where the processor time of a request goes, by `perf`: the engine beside the same statements by hand,
//! and a replay beside one SELECT.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use crate::contestants::Field;
use crate::embedded::Embedded;
use crate::load::Figures;

/// The contestants that are profiled, and with how many concurrent requests. Twice what is compared most closely: the
/// second shows how far one run is from another.
const CONTESTANTS: [(&str, usize); 31] = [
    ("limit2_one", 32),
    ("by hand, single statement", 32),
    ("by hand, single statement, guarded, engine's tables", 32),
    ("by hand, new key", 32),
    ("by hand, new key, guarded, engine's tables", 32),
    ("batch, independent", 32),
    ("batch, new key", 32),
    ("limit2_one", 8),
    ("by hand, new key", 8),
    ("batch, new key", 8),
    ("select1", 32),
    ("replay by hand", 32),
    ("replay by hand, guarded", 32),
    ("replay", 32),
    ("replay by hand, guarded", 32),
    ("replay", 32),
    ("by hand, guarded, pipelined, engine's tables", 1),
    ("batch", 1),
    ("by hand, guarded, pipelined, engine's tables", 8),
    ("batch", 8),
    ("by hand, pipelined", 32),
    ("by hand, guarded, pipelined", 32),
    ("by hand, guarded, pipelined, engine's tables", 32),
    ("batch", 32),
    ("by hand, guarded, pipelined, engine's tables", 64),
    ("batch", 64),
    ("by hand", 32),
    ("by hand, guarded", 32),
    ("by hand, guarded, engine's tables", 32),
    ("tx", 32),
    ("tx", 32),
];

/// Those whose client is shown function by function.
const BY_FUNCTION: [&str; 2] = ["batch, new key", "by hand, new key, guarded, engine's tables"];

#[cfg(feature = "mysql")]
const ON_MARIADB: [(&str, usize); 14] = [
    ("by hand", 32),
    ("by hand, guarded", 32),
    ("by hand, guarded, engine's tables", 32),
    ("tx", 32),
    ("tx", 32),
    ("by hand, single statement, guarded, engine's tables", 32),
    ("batch", 32),
    ("by hand, new key, guarded", 32),
    ("by hand, new key, guarded, engine's tables", 32),
    ("batch, new key", 32),
    ("batch, new key", 32),
    ("replay by hand", 32),
    ("replay by hand, 14 columns", 32),
    ("replay", 32),
];

/// A part of the time, known by what the names of its functions begin with, or what library they are in.
#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    libraries: &'static [&'static str],
    functions: &'static [&'static str],
}

const fn part(
    name: &'static str,
    libraries: &'static [&'static str],
    functions: &'static [&'static str],
) -> Part {
    Part { name, libraries, functions }
}

/// What is in none of them is inlined, or the standard library's.
const OF_THE_CLIENT: [Part; 6] = [
    part("kernel", &["[kernel", "[vdso"], &[]),
    part("memory", &[], &["mi_", "_mi_", "__mem", "malloc", "free", "realloc", "__rust"]),
    part("tokio", &[], &["tokio::", "mio::", "parking_lot"]),
    part(
        "driver",
        &["libpq", "libc.so"],
        &[
            "diesel",
            "tokio_postgres",
            "postgres_",
            "mysql_async",
            "mysql_common",
            "deadpool",
            "bytes",
            "futures",
            "tokio_util",
        ],
    ),
    part(
        "engine",
        &[],
        &["atomic_phases", "serde", "sha2", "uuid", "tracing", "itoa", "chrono", "core::hash"],
    ),
    part("bench", &["pgbench"], &["bench::"]),
];

const OF_SQLITE: [Part; 7] = [
    part("kernel", &["[kernel", "[vdso"], &[]),
    part(
        "SQLite",
        &[],
        &[
            "sqlite3", "pager", "wal", "btree", "unix", "vdbe", "balance", "parse", "yy", "page",
            "pcache",
        ],
    ),
    OF_THE_CLIENT[1],
    OF_THE_CLIENT[2],
    part("driver", &["libc.so"], &["diesel", "rusqlite", "futures", "hashlink", "hashbrown"]),
    OF_THE_CLIENT[4],
    OF_THE_CLIENT[5],
];

const OF_POSTGRES: [Part; 4] = [
    part("kernel", &["[kernel", "[vdso"], &[]),
    part("log", &[], &["XLog", "xlog", "CopyXLog", "pg_comp_crc", "pg_crc"]),
    part(
        "rows and indexes",
        &[],
        &[
            "heap",
            "_bt",
            "bt",
            "Buffer",
            "ReadBuffer",
            "LockBuffer",
            "PinBuffer",
            "index_",
            "toast",
            "pglz",
        ],
    ),
    part("libc", &["libc.so"], &[]),
];

#[cfg(feature = "mysql")]
const OF_MARIADB: [Part; 4] = [
    part("kernel", &["[kernel", "[vdso"], &[]),
    part("log", &[], &["log_", "mtr_", "my_crc32", "crc32", "os_file"]),
    part(
        "rows and indexes",
        &[],
        &[
            "row_",
            "btr_",
            "page_",
            "buf_",
            "rec_",
            "ibuf_",
            "lock_",
            "trx_",
            "dict_",
            "que_",
            "cmp_",
            "ha_innobase",
            "data_",
            "dtuple",
        ],
    ),
    part("libc", &["libc.so"], &[]),
];

const HEADING: &str = "`../bench.md` says what it means. Microseconds of processor time for each request: what the bench \
    counts, divided as `perf` sampled it. A function is known by its name, so what the compiler put into another counts as \
    that.\n";

/// Looks at each, and writes a table.
pub async fn measure(field: &Field<'_>, embedded: &Embedded, length: Duration) -> String {
    let mut both = Sides::new("postgres", &OF_POSTGRES);
    for (name, concurrent) in CONTESTANTS {
        let perf = record(length);
        let figures = field.run(name, concurrent, length).await;
        both.add(name, concurrent, &figures, &report(perf));
    }
    let mut own = Table::new(&OF_SQLITE);
    for name in Embedded::NAMES {
        let perf = record(length);
        let figures = embedded.run(name, 1, length).await;
        let samples = report(perf);
        let samples = of(&samples, &["tokio-rt", "bench", "atomic-phases"]);
        own.add(name, 1, figures.per_second, figures.client_cpu, &samples);
    }
    format!(
        "# Where the processor time goes\n\nWritten by `sh benches/profile`. {HEADING}{}\n## SQLite\n\n{}",
        both.text(),
        own.text()
    )
}

/// The same on MariaDB.
#[cfg(feature = "mysql")]
pub async fn measure_on_mariadb(field: &crate::on_mariadb::Field, length: Duration) -> String {
    let mut both = Sides::new("mariadbd", &OF_MARIADB);
    for (name, concurrent) in ON_MARIADB {
        let perf = record(length);
        let figures = field.run(name, concurrent, length).await;
        both.add(name, concurrent, &figures, &report(perf));
    }
    format!(
        "# Where the processor time goes on MariaDB\n\nWritten by `sh benches/profile --mariadb`. {HEADING}{}",
        both.text()
    )
}

/// The client and the server of each contestant.
struct Sides {
    server_program: &'static str,
    client: Table,
    server: Table,
    functions: String,
}

impl Sides {
    fn new(server_program: &'static str, of_the_server: &'static [Part]) -> Self {
        let (client, server) = (Table::new(&OF_THE_CLIENT), Table::new(of_the_server));
        Self { server_program, client, server, functions: String::new() }
    }

    fn add(&mut self, name: &str, concurrent: usize, figures: &Figures, samples: &[Sample]) {
        let client = of(samples, &["tokio-rt", "bench", "pgbench"]);
        let server = of(samples, &[self.server_program]);
        let &Figures { client_cpu, server_cpu, per_second, .. } = figures;
        self.client.add(name, concurrent, per_second, client_cpu, &client);
        self.server.add(name, concurrent, per_second, server_cpu, &server);
        if BY_FUNCTION.contains(&name) {
            let _ = write!(
                self.functions,
                "\n### *{name}* with {concurrent} concurrent requests\n\n{}",
                functions(client_cpu, &client)
            );
        }
    }

    fn text(&self) -> String {
        format!(
            "\n## Client\n\n{}\n## Server\n\n{}\n## The client, by function\n\nOf all but the kernel: from 0.5 µs on.\n{}",
            self.client.text(),
            self.server.text(),
            self.functions
        )
    }
}

/// What programs of such a name did.
fn of<'a>(samples: &'a [Sample], programs: &[&str]) -> Vec<&'a Sample> {
    let of_them = |sample: &&Sample| programs.iter().any(|name| sample.program.starts_with(name));
    samples.iter().filter(of_them).collect()
}

/// Each function's microseconds, the longest first.
fn functions(cpu: f64, samples: &[&Sample]) -> String {
    let whole: f64 = samples.iter().map(|sample| sample.share).sum();
    let mut each: BTreeMap<&str, f64> = BTreeMap::new();
    let of_the_program = |sample: &&&Sample| !sample.library.starts_with('[');
    for sample in samples.iter().filter(of_the_program) {
        *each.entry(sample.function.as_str()).or_default() += sample.share / whole * cpu;
    }
    let mut each: Vec<(&str, f64)> = each.into_iter().filter(|(_, time)| *time >= 0.5).collect();
    each.sort_by(|one, other| other.1.total_cmp(&one.1));
    let lines = each.iter().map(|(name, time)| format!("| {time:.1} | `{name}` |\n"));
    format!("| µs | |\n|---|---|\n{}", lines.collect::<String>())
}

/// One line of `perf report`.
struct Sample {
    share: f64,
    program: String,
    library: String,
    function: String,
}

struct Perf {
    process: std::process::Child,
    file: tempfile::TempPath,
}

/// Looks at the whole machine behind the warm-up.
fn record(length: Duration) -> Perf {
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let sh = format!(
        "sleep {}; exec perf record -q -a -F 1999 -o {} -- sleep {}",
        (length / 3).as_secs_f64(),
        file.display(),
        (length / 2).as_secs_f64()
    );
    let process = Command::new("sh").args(["-c", &sh]).spawn().unwrap();
    Perf { process, file }
}

fn report(mut perf: Perf) -> Vec<Sample> {
    assert!(perf.process.wait().unwrap().success(), "perf could not record");
    let out = Command::new("perf")
        .args(["report", "--stdio", "--no-children", "--sort", "comm,dso,symbol", "-t", ";", "-i"])
        .arg(&*perf.file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        // Behind the name are columns that `perf` adds by itself.
        let mut fields = line.splitn(5, ';').map(str::trim);
        let share = fields.next()?.trim_end_matches('%').parse().ok()?;
        let (program, library) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        // Behind the mark of where it runs: `[.] name`.
        let function = fields.next()?.get(4..)?.trim_start_matches(['<', '&']).to_owned();
        Some(Sample { share, program, library, function })
    });
    samples.collect()
}

struct Table {
    parts: &'static [Part],
    rows: String,
}

impl Table {
    fn new(parts: &'static [Part]) -> Self {
        Self { parts, rows: String::new() }
    }

    fn add(
        &mut self,
        name: &str,
        concurrent: usize,
        per_second: f64,
        cpu: f64,
        samples: &[&Sample],
    ) {
        let whole: f64 = samples.iter().map(|sample| sample.share).sum();
        assert!(whole > 0.0, "perf has seen nothing of {name}");
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        for sample in samples {
            let part = self.parts.iter().find(|part| part.has(sample));
            *shares.entry(part.map_or("", |part| part.name)).or_default() += sample.share;
        }
        let _ = write!(self.rows, "| {name} | {concurrent} | {per_second:.0} | {cpu:.0} |");
        for part in self.parts.iter().map(|part| part.name).chain([""]) {
            let share = shares.get(part).copied().unwrap_or_default() / whole;
            let _ = write!(self.rows, " {:.0} |", share * cpu);
        }
        self.rows.push('\n');
    }

    fn text(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(|part| part.name).collect();
        format!(
            "| | concurrent | requests/s | all | {} | other |\n|---|---|---|---|---|{}\n{}",
            names.join(" | "),
            "---|".repeat(names.len()),
            self.rows
        )
    }
}

impl Part {
    fn has(&self, sample: &Sample) -> bool {
        self.functions.iter().any(|name| sample.function.starts_with(name))
            || self.libraries.iter().any(|name| sample.library.starts_with(name))
    }
}
