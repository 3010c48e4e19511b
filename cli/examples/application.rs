//! A service with the commands of its operators in its own command line:
//!
//! ```text
//! cargo run --example application -- book 7
//! cargo run --example application -- ops status
//! cargo run --example application -- ops list --state unknown
//! ```
//!
//! They have the application's code: they reveal what its codec has sealed, and judge an output by its types.

use std::process::ExitCode;

use atomic_phases::ops::{Actor, OperatorStore, Permissions, Scopes};
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::store::{Mysql, Postgres, Sqlite};
use atomic_phases::{
    Engine, ForeignCall, IdempotencyKey, Outcome, PhaseError, PhaseResult, Reply, Scope, Store, Tx,
    atomic_phases,
};
use atomic_phases_cli::Operate;
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};

/// How its call ends.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The pilot was told.
    Fine,
    /// The outcome is unknown.
    Unknown,
    /// No call was made.
    Refused,
}

/// A request.
#[derive(Serialize, Deserialize)]
pub struct CallPilot {
    /// Of its call.
    pub end: End,
    /// Of the ride.
    pub number: u64,
}

/// What the pilot's line says.
#[derive(Serialize, Deserialize)]
pub struct Called {
    id: u64,
}

#[atomic_phases(name = "pilots.call", version = 1)]
impl<Db: Store> CallPilot {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        let _ = (self, tx);
        Ok(())
    }

    #[phase(foreign(at_most_once))]
    async fn called(&self, call: ForeignCall) -> PhaseResult<Called, ForeignError> {
        let id = self.number;
        match self.end {
            End::Fine => call.make(async |_| Ok::<_, ForeignError>(Called { id })).await,
            End::Unknown => {
                call.make(async |_| Err::<Called, _>(ForeignError::unknown("no answer"))).await
            }
            End::Refused => Err(PhaseError::retryable("the line is down").into()),
        }
    }

    #[reconcile(called)]
    async fn find_call(&self) -> PhaseResult<Reconciled<Called>> {
        let _ = self;
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, called: &Called) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::json(200, called)?)
    }
}

#[derive(Parser)]
struct Cli {
    /// postgres://…, mysql://… or sqlite://PATH
    #[arg(
        long,
        env = "DATABASE_URL",
        default_value = "sqlite://application.db",
        hide_env_values = true
    )]
    database_url: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Call the pilot of this ride, whose line is bad
    Book { ride: u64 },
    /// See what requests are stuck and why, and settle them
    Ops(Operate),
}

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Failure> {
    let cli = Cli::parse();
    let url = &cli.database_url;
    match url.split_once("://") {
        Some(("postgres", _)) => run(Postgres::connect(url).await?, cli.command).await,
        Some(("mysql", _)) => run(Mysql::connect(url).await?, cli.command).await,
        _ => run(Sqlite::connect(url).await?, cli.command).await,
    }
}

async fn run<S: OperatorStore>(store: S, command: Command) -> Result<ExitCode, Failure> {
    let engine = Engine::builder(store).register::<CallPilot>().build()?;
    match command {
        Command::Book { ride } => {
            engine.store().migrate().await?;
            let (scope, key) = (Scope::new("tenant-1")?, IdempotencyKey::new(ride.to_string())?);
            let request = CallPilot { end: End::Unknown, number: ride };
            let told = match engine.call(&scope, &key, request).await? {
                Outcome::Unknown { .. } => "whether the pilot was told is unknown: ops list",
                Outcome::Finished(_) => "the pilot was told",
                _ => "the request waits: ops list",
            };
            println!("{told}");
            Ok(ExitCode::SUCCESS)
        }
        // Who may start this program where the service runs has its database's password anyway: the name is for the
        // audit. A program on a host of many people would ask them who they are.
        Command::Ops(ops) => {
            let name = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
            let actor = Actor::new(name, Permissions::admin(), Scopes::All)?;
            Ok(ops.run(&engine, actor).await)
        }
    }
}
