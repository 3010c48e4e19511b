//! Brandur Leach's Rocket Rides on atomic phases: a ride is booked, a card is charged at a provider
//! in another process, a pilot is told through an API that knows no idempotency, a receipt is sent;
//! and the process may be killed at any moment, with or without a client who asks again.
//!
//! `cargo run --example rocket_rides --features axum,console,ops-api,reqwest` needs no server: SQLite in the working
//! directory, a provider of its own, and a `curl` command to paste. The features are part of the command: without them
//! cargo refuses it, and names them.

mod api;
mod charge_api;
mod console;
mod create_ride;
mod db;
#[cfg(feature = "metrics")]
mod metrics;
mod pilot_api;
mod pilots;
mod provider;
mod ride;
mod server;
mod signature;
mod trouble;
mod webhook;

use std::path::PathBuf;
use std::time::Duration;

use atomic_phases::Engine;
use atomic_phases::http::Profile;
use atomic_phases::ops::OperatorStore;
#[cfg(feature = "redis")]
use atomic_phases::replay_cache::{CachedReplays, RedisReplays};
#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{DeliveryError, Handlers, Job, Webhook, WorkerConfig};
use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

use crate::charge_api::ChargeApi;
use crate::create_ride::{App, Receipt, definitions};
use crate::db::RidesDb;
use crate::pilot_api::PilotApi;
use crate::provider::Options;
use crate::trouble::Trouble;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(
    about = "Book a ride, charge a card, survive a crash",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
    /// What is logged, to stderr: off, error, warn, info, debug or trace
    #[arg(long, env = "LOG", default_value = "info", global = true)]
    log: LevelFilter,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "made once, when the program begins")]
enum Command {
    /// Serve the API (what happens without a subcommand)
    Serve(Serve),
    /// Run the Stripe-shaped charge provider as a process of its own
    Provider {
        #[arg(long, default_value = "127.0.0.1:5400")]
        listen: String,
        /// Where its charges are kept
        #[arg(long, default_value = "rocket_rides.ledger")]
        ledger: PathBuf,
        /// Be a provider that knows no idempotency keys
        #[arg(long)]
        ignore_keys: bool,
        /// Where to say that a charge succeeded: http://127.0.0.1:5000/webhooks/charges
        #[arg(long)]
        webhook: Option<String>,
        #[arg(long, env = "WEBHOOK_SECRET", default_value = WEBHOOK_SECRET)]
        webhook_secret: String,
    },
    /// Book a ride at a running server, and retry through its crashes
    Ride(ride::Ride),
}

#[derive(Args)]
struct Serve {
    /// Address; API_PORT sets the port alone
    #[arg(long)]
    listen: Option<String>,
    #[arg(long, env = "API_PORT", hide = true, default_value_t = 5000)]
    api_port: u16,
    /// postgres://…, mysql://… (with the feature `mysql`) or sqlite://PATH; without it, sqlite://rocket_rides.db
    #[arg(long, env = "DATABASE_URL")]
    database_url: Option<String>,
    /// Base URL of the charge API: Stripe's, or one that keeps its contract; without it, a provider is
    /// started here
    #[arg(long, env = "CHARGE_API_URL")]
    charge_api: Option<String>,
    /// Secret key at the charge API
    #[arg(
        long,
        env = "CHARGE_API_SECRET",
        default_value = "sk_test_rocket_rides",
        hide_env_values = true
    )]
    charge_api_secret: String,
    /// Id at the charge API of the customer that user@example.com pays as
    #[arg(long, env = "CUSTOMER")]
    customer: Option<String>,
    /// Base URL of the pilots' API; without it, at the charge API, where `rocket_rides provider` has one
    #[arg(long, env = "PILOT_API_URL")]
    pilot_api: Option<String>,
    /// Seconds that a process which gives no sign keeps a request
    #[arg(long, default_value_t = 30.0)]
    lease: f64,
    /// Dialect of the answers: ietf or stripe
    #[arg(long, default_value = "ietf")]
    profile: Profile,
    /// Whether this process also finishes what others have left: true or false
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    workers: bool,
    /// Seconds that an unknown outcome rests before it is looked into
    #[arg(long, default_value_t = 30.0)]
    reconcile_after: f64,
    /// Seconds between two polls of the workers
    #[arg(long, default_value_t = 1.0)]
    poll: f64,
    /// Times that a ride is tried before it waits for an operator
    #[arg(long, default_value_t = 20)]
    attempts: u32,
    /// Seconds between two polls for keys that have expired
    #[arg(long, default_value_t = 60.0)]
    reap: f64,
    /// Seconds between two counts of what waits, for the metrics
    #[arg(long, default_value_t = 15.0)]
    census: f64,
    /// Seconds that connections have to end when the server is asked to stop
    #[arg(long, default_value_t = 10.0)]
    drain: f64,
    /// Seconds that the delivery of a receipt may take
    #[arg(long, default_value_t = 60.0)]
    delivery: f64,
    #[arg(long, env = "WEBHOOK_SECRET", default_value = WEBHOOK_SECRET, hide_env_values = true)]
    webhook_secret: String,
    /// Address of /metrics for Prometheus: 127.0.0.1:9464, say; without it, none
    #[cfg(feature = "metrics")]
    #[arg(long)]
    metrics_address: Option<String>,
    /// URL of a Redis in front of replays: redis://127.0.0.1:6379/, say; without it, none
    #[cfg(feature = "redis")]
    #[arg(long, requires = "replay_secret")]
    replay_cache: Option<String>,
    /// What the answers in it are sealed with: 32 bytes or more, the same on each server
    #[cfg(feature = "redis")]
    #[arg(long, env = "REPLAY_SECRET", hide_env_values = true)]
    replay_secret: Option<String>,
    /// URL to tell of each request that begins to wait for an operator; without it, none is sent
    #[arg(long, requires = "waiting_secret")]
    waiting_webhook: Option<String>,
    /// What that is signed with: whsec_ and the base64 of 24 bytes or more
    #[arg(long, env = "WAITING_SECRET", hide_env_values = true)]
    waiting_secret: Option<String>,
    /// Port of the operators' console on loopback: 0 for one that is free; without it, none
    #[arg(long)]
    console: Option<u16>,
    /// Make what goes wrong in a year, to be looked at in the console: a declined card, a pilot whose answer is
    /// lost, a server that is killed
    #[arg(long, conflicts_with = "charge_api")]
    trouble: bool,
}

/// For a demonstration only: set your own.
const WEBHOOK_SECRET: &str = "whsec_rocket_rides";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_max_level(cli.log).with_writer(std::io::stderr).init();
    match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Provider { listen, ledger, ignore_keys, webhook, webhook_secret } => {
            let webhook = webhook.map(|url| provider::Webhook { url, secret: webhook_secret });
            let listener = TcpListener::bind(listen).await?;
            println!("provider is ready on http://{}", listener.local_addr()?);
            Ok(provider::serve(listener, &ledger, Options { ignore_keys, webhook }).await?)
        }
        Command::Ride(ride) => ride.book().await,
        Command::Serve(options) => match options.database_url.clone() {
            Some(url) if url.starts_with("postgres") => {
                serve(Postgres::connect(&url).await?, options).await
            }
            Some(url) if url.starts_with("sqlite://") => {
                serve(Sqlite::connect(&url).await?, options).await
            }
            #[cfg(feature = "mysql")]
            Some(url) if url.starts_with("mysql://") => {
                serve(Mysql::connect(&url).await?, options).await
            }
            #[cfg(not(feature = "mysql"))]
            Some(url) if url.starts_with("mysql://") => {
                Err("for MySQL and MariaDB, build it with the feature `mysql`".into())
            }
            Some(_) => {
                Err("the database URL starts with postgres://, mysql:// or sqlite://".into())
            }
            None => {
                println!("no --database-url: using the SQLite file rocket_rides.db here");
                serve(Sqlite::connect("rocket_rides.db").await?, options).await
            }
        },
    }
}

async fn serve<Db: RidesDb + OperatorStore>(store: Db, options: Serve) -> Result<(), Failure> {
    // Two servers that start concurrently may both create the tables; the second look finds them.
    if store.prepare().await.is_err() {
        store.prepare().await?;
    }
    if let Some(customer) = &options.customer {
        store.set_customer("user@example.com", customer).await?;
    }
    let database = options.database_url.unwrap_or_else(|| "sqlite://rocket_rides.db".to_owned());
    let is_by_itself = options.charge_api.is_none();
    let charge_api = match options.charge_api {
        Some(url) => url,
        None => start_provider().await?,
    };
    #[cfg(feature = "metrics")]
    if let Some(address) = &options.metrics_address {
        println!("metrics: http://{}/metrics", metrics::open(address).await?);
    }
    let engine = Engine::builder(store)
        .app(App {
            charges: ChargeApi::new(&charge_api, &options.charge_api_secret)?,
            pilots: PilotApi::new(options.pilot_api.as_ref().unwrap_or(&charge_api))?,
        })
        .definitions(definitions())
        .lease(Duration::from_secs_f64(options.lease))
        .max_attempts(options.attempts)
        .reconcile_after(Duration::from_secs_f64(options.reconcile_after));
    let told = options.waiting_webhook.zip(options.waiting_secret);
    let engine = if told.is_some() { engine.notify_waiting() } else { engine };
    #[cfg(feature = "redis")]
    let engine = match options.replay_cache.zip(options.replay_secret) {
        Some((url, secret)) => {
            engine.cached_replays(CachedReplays::new(RedisReplays::new(&url)?, secret))
        }
        None => engine,
    };
    let engine = engine.build()?;
    let report = engine.check().await?;
    for stranded in &report.stranded {
        println!("left to another version of this program: {stranded:?}");
    }
    let listen = options.listen.unwrap_or(format!("127.0.0.1:{}", options.api_port));
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let config = WorkerConfig::default()
        .node(format!("rocket_rides on {address}"), env!("CARGO_PKG_VERSION"))
        .poll(Duration::from_secs_f64(options.poll))
        .reap_every(Duration::from_secs_f64(options.reap))
        .census_every(Duration::from_secs_f64(options.census))
        .delivery(Duration::from_secs_f64(options.delivery));
    let config = match told {
        Some((url, secret)) => config.sink(Webhook::new(&url, &secret)?.beside(mail())),
        None => config.sink(mail()),
    };
    let workers = options.workers.then(|| engine.spawn_workers(config)).transpose()?;
    // A user who starts the flagship to look at it gets a console; a test's server asks for one.
    let console = options.console.or((is_by_itself || options.trouble).then_some(0));
    if let Some(port) = console {
        let opened = console::open(engine.clone(), port).await?;
        println!("console: {}", opened.console);
        println!(
            "from a terminal: export ATOMIC_PHASES_URL={} ATOMIC_PHASES_TOKEN={}",
            opened.api, opened.token
        );
    }
    println!("rocket_rides is ready on http://{address}");
    println!(
        "try: curl -i http://{address}/rides -H 'Authorization: user@example.com' \
         -H 'Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324' \
         -d origin_lat=37.77 -d origin_lon=-122.42 -d target_lat=37.79 -d target_lon=-122.39"
    );
    if options.trouble {
        let server = format!("http://{address}");
        tokio::spawn(Trouble { server, provider: charge_api.clone(), database }.make());
    }
    let router = api::router(engine.clone(), options.profile)?
        .merge(webhook::router(engine.clone(), &options.webhook_secret));
    let drain = Duration::from_secs_f64(options.drain);
    let cut_off = server::serve(listener, router, asked_to_stop(engine), drain).await;
    if cut_off > 0 {
        println!("{cut_off} connections were cut off");
    }
    if let Some(workers) = workers
        && let Err(left) = workers.shutdown(Duration::from_secs(10)).await
    {
        println!("{left}");
    }
    println!("drained");
    Ok(())
}

/// Waits for SIGTERM or ctrl-c, then lets each request finish its phase and give its lease back, so
/// that their clients are answered before the listener's connections are waited for.
async fn asked_to_stop<Db: RidesDb>(engine: Engine<Db, App>) {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminated => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    // Longer than any of its phases may take.
    if let Err(left) = engine.shutdown(Duration::from_secs(40)).await {
        println!("{left}");
    }
}

/// Where the staged receipts go. A real one would hand `job.id` to the mailer, which ignores an id that
/// it has seen: a job is delivered at least once.
fn mail() -> Handlers {
    Handlers::new().on("send_receipt", async |receipt: Receipt, job: Job| {
        println!("receipt {} for ride {}", job.id, receipt.ride);
        Ok::<_, DeliveryError>(())
    })
}

async fn start_provider() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("no --charge-api: started a provider on {url}, its ledger is rocket_rides.ledger");
    tokio::spawn(async move {
        let ledger = PathBuf::from("rocket_rides.ledger");
        if let Err(error) =
            provider::serve(listener, &ledger, Options { ignore_keys: false, webhook: None }).await
        {
            eprintln!("the provider stopped: {error}");
        }
    });
    Ok(url)
}
