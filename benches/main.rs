//! Measures the engine beside pgbench, on a server of its own: see `benches/run`.

// As a service may have it that cares what a request costs. By hand has it, too.
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod abandoned;
mod away;
mod background;
mod beside;
mod by_hand;
#[cfg(feature = "redis")]
mod cached;
mod chains;
mod contestants;
mod counts;
mod embedded;
mod large;
mod load;
#[cfg(feature = "mysql")]
mod on_mariadb;
mod options;
mod page;
mod plot;
mod profile;
mod report;
mod requests;
mod samples;
mod server;
mod several;
mod tending;
#[cfg(feature = "metrics")]
mod watched;
mod yardstick;

use std::fmt::Write;
use std::time::Duration;

use clap::Parser;

use crate::by_hand::ByHand;
use crate::chains::{One, Six, Three, Twelve, TwelveLarge};
use crate::contestants::{Field, batch_ride, contended, fresh, new, open, replay, ride};
use crate::embedded::Embedded;
use crate::load::for_a_while;
use crate::options::{Options, Plan};
use crate::samples::Samples;
use crate::server::Server;

const RESULTS: &str = "# Results\n\nWritten by `sh benches/run`; `../bench.md` says what it means.";

const AWAY: &str = "# A server on another machine\n\nWritten by `sh benches/run --away`; `../bench.md` says what it means. A \
    proxy holds back whatever client and server send each other. It shares the cores with both.";

/// How many requests are counted.
const COUNTED: u64 = 1000;

/// How long a profiler may look.
const PROFILED: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() {
    let options = Options::parse();
    let plan = Plan::of(&options);
    if let (Some(case), Some(port)) = (&options.alone, options.port) {
        match case.as_str() {
            #[cfg(feature = "metrics")]
            case if case.starts_with(watched::ALONE) => watched::alone(case, port, &plan).await,
            "hot" | "cold" => several::alone(case == "hot", port, &plan).await,
            "away" => away::alone(port, options.delay().unwrap_or_default()),
            case => beside::alone(case, port, &plan).await,
        }
        return;
    }
    let mut samples = Samples::default();
    if options.only_sqlite {
        match options.profile {
            Some(name) => {
                let embedded = Embedded::open().await;
                println!("{:?}", embedded.run(&name, plan.concurrent[0], PROFILED).await);
            }
            None => println!("{}", on_sqlite(&plan, &mut samples).await),
        }
        return;
    }
    if options.mariadb {
        mariadb(&plan, &options).await;
        return;
    }
    let mut server = Server::start();
    if let Some(delay) = options.delay() {
        server.move_away(delay);
    }
    let tables = |file| format!("{}/benches/sql/{file}.sql", env!("CARGO_MANIFEST_DIR"));
    server.psql("bench", &["-f", &tables("tables"), "-f", &tables("answered")]);

    if options.smoke {
        smoke(&mut server, plan.pool).await;
        return;
    }
    if let Some(name) = &options.profile {
        let field = Field::open(&server, plan.pool).await;
        if let Some(sql) = &options.before {
            server.sql(sql).await;
        }
        let length = options.seconds.map_or(PROFILED, Duration::from_secs);
        println!("{:?}", field.run(name, plan.concurrent[0], length).await);
        return;
    }
    if options.profiles {
        let field = Field::open(&server, plan.pool).await;
        let length = options.seconds.map_or(PROFILED, Duration::from_secs);
        let text = profile::measure(&field, &Embedded::open().await, length).await;
        page::write("profile", &text);
        return;
    }
    if let Some(other) = &options.beside {
        println!("{}", beside::measure(&server, other, &plan).await);
        return;
    }
    if options.drained {
        let text = abandoned::measured(&server, &plan).await;
        page::write("abandoned", &text);
        return;
    }
    if options.background {
        let work = background::Work { rounds: plan.rounds, jobs: plan.jobs, requests: plan.jobs };
        let text = background::measure(&server, work, plan.pool).await;
        let text = format!(
            "# What runs behind the request\n\nWritten by `sh benches/run --background`: {} jobs and as many \
             requests, medians of {} rounds, each contestant once in each.\n{text}",
            plan.jobs, plan.rounds
        );
        page::write("background", &text);
        return;
    }
    #[cfg(feature = "redis")]
    if options.replay_cache {
        let text = cached::measure(&server, &plan).await;
        page::write("replay-cache", &text);
        return;
    }
    #[cfg(feature = "metrics")]
    if options.watched {
        let text = watched::measure(&server, &plan).await;
        page::write("watched", &text);
        return;
    }
    if options.several {
        let text = several::measure(&server, &plan).await;
        page::write("several", &text);
        return;
    }
    if options.workers {
        let text = tending::measure(&server, plan.large, plan.rounds, plan.length()).await;
        page::write("workers", &text);
        return;
    }
    main_cases(&server, &plan, &mut samples).await;
    let mut text = main_sections(&samples);
    if options.only_main {
        println!("{text}");
        return;
    }
    if let Some(delay) = options.delay() {
        page::write("away", &(machine(&server, &plan, AWAY, Some(delay)).await + &text));
        return;
    }
    text += &costs(&server, COUNTED).await;
    text += &pools(&server, &plan, &mut samples, plan.length()).await;
    text += &other_cases(&server, &plan, &mut samples, plan.length()).await;
    text += &on_sqlite(&plan, &mut samples).await;
    let (flat, plans) = on_large_tables(&server, &plan, &mut samples, plan.length()).await;
    text += &flat;
    write(&server, &plan, &samples, &text, &plans).await;
}

#[cfg(feature = "mysql")]
async fn mariadb(plan: &Plan, options: &Options) {
    let length = options.seconds.map_or(PROFILED, Duration::from_secs);
    if let Some(name) = &options.profile {
        let field = on_mariadb::Field::open(plan.pool, options.delay()).await;
        if let Some(sql) = &options.before {
            field.sql(sql).await;
        }
        println!("{:?}", field.run(name, plan.concurrent[0], length).await);
        return;
    }
    if options.profiles {
        let field = on_mariadb::Field::open(plan.pool, options.delay()).await;
        let text = profile::measure_on_mariadb(&field, length).await;
        page::write("profile-mariadb", &text);
        return;
    }
    on_mariadb::write(plan, options.delay()).await;
}

#[cfg(not(feature = "mysql"))]
async fn mariadb(_: &Plan, _: &Options) {
    panic!("built without the feature `mysql`");
}

/// Every path for a moment, so that none rots: its figures say nothing. What a profiler looks at, and the programs of
/// `sh benches/hooks`, are contestants that run here too.
async fn smoke(server: &mut Server, pool: usize) {
    const MOMENT: Duration = Duration::from_millis(50);
    const SCRIPTS: [&str; 4] = ["limit2", "limit2_pipe", "limit2_one", "select1"];
    // A process that is measured by itself counts whole seconds.
    let plan = Plan {
        rounds: 1,
        seconds: 1,
        concurrent: vec![2],
        abandoned: 20,
        jobs: 300,
        large: 1000,
        pool,
    };
    let field = Field::open(server, pool).await;
    for name in Field::NAMES {
        match SCRIPTS.contains(&name) {
            true => yardstick::exactly(server.port(), name, 20),
            false => println!("{name}: {:?}", field.run(name, 2, MOMENT).await),
        }
    }
    drop(field);
    let embedded = Embedded::open().await;
    for name in Embedded::NAMES {
        println!("{name}: {:?}", embedded.run(name, 2, MOMENT).await);
    }
    drop(embedded);
    #[cfg(feature = "mysql")]
    on_mariadb::smoke(pool, MOMENT).await;
    let mut samples = Samples::default();
    println!("{}", costs(server, 20).await);
    println!("{}", pools(server, &plan, &mut samples, MOMENT).await);
    println!("{}", other_cases(server, &plan, &mut samples, MOMENT).await);
    let work = background::Work { rounds: 1, jobs: plan.jobs, requests: 50 };
    println!("{}", background::measure(server, work, pool).await);
    println!("{}", abandoned::measured(server, &plan).await);
    println!("{}", several::measure(server, &plan).await);
    let program = std::env::current_exe().unwrap();
    println!("{}", beside::measure(server, &program, &plan).await);
    #[cfg(feature = "metrics")]
    println!("{}", watched::measure(server, &plan).await);
    #[cfg(feature = "redis")]
    match cached::is_there() {
        true => {
            // An answer comes into the cache when it is given for the first time.
            server.sql("TRUNCATE atomic_phases_keys, atomic_phases_staged_jobs").await;
            println!("{}", cached::measure(server, &plan).await);
        }
        false => println!("no redis-server: replays behind a Redis were left out"),
    }
    let (flat, plans) = on_large_tables(server, &plan, &mut samples, MOMENT).await;
    println!("{flat}\n{plans}");
    println!("{}", tending::measure(server, plan.large, 1, Duration::from_secs(1)).await);
    server.move_away(Duration::from_micros(100));
    println!("tx, away: {:?}", Field::open(server, pool).await.run("tx", 2, MOMENT).await);
}

/// Every contestant once in each round, one after the other.
async fn main_cases(server: &Server, plan: &Plan, samples: &mut Samples) {
    let field = Field::open(server, plan.pool).await;
    for round in 0..plan.rounds {
        for &c in &plan.concurrent {
            for name in Field::NAMES {
                samples.add(name, c, round, field.run(name, c, plan.length()).await);
            }
        }
    }
}

/// The tables of [`main_cases`].
fn main_sections(samples: &Samples) -> String {
    let mut text = report::section(
        "Fresh request of three phases",
        samples,
        &["tx", "batch", "batch, independent", "batch, new key"],
        &[
            "limit2",
            "limit2_pipe",
            "limit2_one",
            "by hand",
            "by hand, guarded",
            "by hand, guarded, engine's tables",
            "by hand, pipelined",
            "by hand, guarded, pipelined",
            "by hand, guarded, pipelined, engine's tables",
            "by hand, single statement",
            "by hand, single statement, guarded, engine's tables",
            "by hand, new key",
            "by hand, new key, guarded, engine's tables",
        ],
    );
    text += &report::section(
        "Replay",
        samples,
        &["replay"],
        &["select1", "replay by hand", "replay by hand, guarded"],
    );
    text
}

/// Counted on a serial run of one connection.
async fn costs(server: &Server, requests: u64) -> String {
    let mut out =
        "\n## Counted, for each request\n\n| | commits that write | statements | round trips \
        | WAL bytes | HOT |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let mut add = |name: &str, counts: counts::Counts| {
        let counts::Counts { commits, statements, trips, wal, hot } = counts;
        println!("{name}: {counts:?}");
        let _ = writeln!(
            out,
            "| {name} | {commits:.2} | {statements:.1} | {trips:.1} | {wal:.0} | {hot:.3} |"
        );
    };
    for script in ["limit2", "limit2_pipe", "limit2_one", "select1"] {
        let run = async |port| yardstick::exactly(port, script, requests);
        add(script, counts::of(server, requests, "limit_keys", run).await);
    }
    let run = async |port| serially(requests, fresh(&open(port, 1).await, ride())).await;
    add("tx", counts::of(server, requests, "atomic_phases_keys", run).await);
    for (name, independent) in [("batch", false), ("batch, independent", true)] {
        let run = async |port| {
            serially(requests, fresh(&open(port, 1).await, batch_ride(independent))).await;
        };
        add(name, counts::of(server, requests, "atomic_phases_keys", run).await);
    }
    let run = async |port| {
        serially(requests, new(&open(port, 1).await, batch_ride(true))).await;
    };
    add("batch, new key", counts::of(server, requests, "atomic_phases_keys", run).await);
    let run = async |port| serially(requests, fresh(&open(port, 1).await, One)).await;
    add("1 phase", counts::of(server, requests, "atomic_phases_keys", run).await);
    let run = async |port| serially(requests, fresh(&open(port, 1).await, Six)).await;
    add("6 phases", counts::of(server, requests, "atomic_phases_keys", run).await);
    let run = async |port| serially(requests, fresh(&open(port, 1).await, Twelve)).await;
    add("12 phases", counts::of(server, requests, "atomic_phases_keys", run).await);
    let run = async |port| serially(requests, fresh(&open(port, 1).await, TwelveLarge)).await;
    add("12 phases, 10 kB each", counts::of(server, requests, "atomic_phases_keys", run).await);
    let run = async |port| {
        let by_hand = ByHand::on(open(port, 1).await.store());
        serially(requests, move || by_hand.clone().fresh()).await;
    };
    add("by hand", counts::of(server, requests, "limit_keys", run).await);
    let run = async |port| serially(requests, replay(&open(port, 1).await)).await;
    add("replay", counts::of(server, requests, "atomic_phases_keys", run).await);
    out
}

async fn serially<F: Future<Output = ()>>(requests: u64, work: impl Fn() -> F) {
    for _ in 0..requests {
        work().await;
    }
}

/// How many connections are best.
async fn pools(server: &Server, plan: &Plan, samples: &mut Samples, length: Duration) -> String {
    const SIZES: [(usize, &str); 5] = [
        (4, "pool of 4"),
        (8, "pool of 8"),
        (16, "pool of 16"),
        (32, "pool of 32"),
        (64, "pool of 64"),
    ];
    let mut engines = Vec::new();
    for (size, name) in SIZES {
        engines.push((name, open(server.port(), size).await));
    }
    for round in 0..plan.rounds {
        for (name, engine) in &engines {
            let work = fresh(engine, batch_ride(true));
            let figures = for_a_while(64, length, &|| server.cpu(), work).await;
            samples.add(name, 64, round, figures);
        }
    }
    let names = SIZES.map(|(_, name)| name);
    report::section("64 concurrent over pools of several sizes", samples, &names, &[])
}

async fn other_cases(
    server: &Server,
    plan: &Plan,
    samples: &mut Samples,
    length: Duration,
) -> String {
    let engine = open(server.port(), plan.pool).await;
    let cpu = || server.cpu();
    for round in 0..plan.rounds {
        let mut add = |name, figures| samples.add(name, 8, round, figures);
        add("1 phase", for_a_while(8, length, &cpu, fresh(&engine, One)).await);
        add("3 phases", for_a_while(8, length, &cpu, fresh(&engine, Three)).await);
        add("6 phases", for_a_while(8, length, &cpu, fresh(&engine, Six)).await);
        add("12 phases", for_a_while(8, length, &cpu, fresh(&engine, Twelve)).await);
        let large = fresh(&engine, TwelveLarge);
        add("12 phases, 10 kB each", for_a_while(8, length, &cpu, large).await);
        add("contended key", contended(server, &engine, 8, length).await);
    }
    let names = ["1 phase", "3 phases", "6 phases", "12 phases", "12 phases, 10 kB each"];
    let mut out = report::section("Numbers of phases", samples, &names, &[]);
    out += &report::section("8 callers of each key, who wait", samples, &["contended key"], &[]);
    out
}

async fn on_sqlite(plan: &Plan, samples: &mut Samples) -> String {
    let embedded = Embedded::open().await;
    for round in 0..plan.rounds {
        for &c in plan.concurrent.iter().filter(|c| **c <= 64) {
            for name in Embedded::NAMES {
                samples.add(name, c, round, embedded.run(name, c, plan.length()).await);
            }
        }
    }
    report::section(
        "SQLite, fresh request of three phases",
        samples,
        &["sqlite engine", "sqlite batch"],
        &["rusqlite", "rusqlite, guarded"],
    )
}

async fn on_large_tables(
    server: &Server,
    plan: &Plan,
    samples: &mut Samples,
    length: Duration,
) -> (String, String) {
    let engine = open(server.port(), plan.pool).await;
    large::fill(server, 10_000).await;
    large::load(server, &engine, samples, "small table", plan.rounds, length).await;
    large::fill(server, plan.large).await;
    large::load(server, &engine, samples, "large table", plan.rounds, length).await;
    let rows = server.number("SELECT count(*) FROM atomic_phases_keys").await;
    let title = format!("A table of {rows} rows beside the one before");
    let names = ["small table", "large table"];
    let plans = large::plans(server).await;
    let plans = format!(
        "# Plans of the hot statements\n\nWritten by `sh benches/run`: what auto_explain saw of a fresh \
         request and its replay, on a table of {rows} rows.\n\n```\n{}\n```\n",
        plans.trim_matches('\n')
    );
    (report::section(&title, samples, &names, &[]), plans)
}

/// The machine and the server, below a title.
async fn machine(server: &Server, plan: &Plan, title: &str, away: Option<Duration>) -> String {
    let mut settings = Vec::new();
    for name in
        ["shared_buffers", "fsync", "synchronous_commit", "max_wal_size", "full_page_writes"]
    {
        settings.push((name.to_owned(), server.text(&format!("current_setting('{name}')")).await));
    }
    settings.push(("connections of the pool".to_owned(), plan.pool.to_string()));
    settings.extend(away.map(report::delay));
    let version = server.text("split_part(version(), ' on ', 1)").await;
    report::machine(title, &version, &settings, plan.rounds, plan.seconds)
}

async fn write(server: &Server, plan: &Plan, samples: &Samples, text: &str, plans: &str) {
    let machine = machine(server, plan, RESULTS, None).await;
    let images = "\n![fresh requests](fresh.svg)\n\n![replays](replay.svg)\n";
    page::write("results", &format!("{machine}{images}{text}"));
    page::write("plans", plans);
    let names =
        ["limit2_pipe", "by hand, single statement", "batch, new key", "batch, independent", "tx"];
    let fresh = plot::ratios("Fresh requests/s as a ratio to limit2", samples, &names, "limit2");
    std::fs::write(page::path("fresh.svg"), fresh).unwrap();
    let replay = plot::ratios(
        "Replays/s as a ratio to one SELECT",
        samples,
        &["replay by hand", "replay"],
        "select1",
    );
    std::fs::write(page::path("replay.svg"), replay).unwrap();
    println!("written to docs/bench");
}
