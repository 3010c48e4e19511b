//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// As cargo calls its subcommands: with the subcommand's name first.
#[derive(Parser)]
#[command(bin_name = "cargo", disable_help_subcommand = true)]
pub(crate) enum Cargo {
    AtomicPhases(Arguments),
}

/// What a change of a request does to the requests that are under way
///
/// Exit codes: 0 fine, 1 error, 2 usage, 4 no such lint or version, 5 refused, 6 found something: a change that
/// must not be deployed as it is, or rows, or more rows than were read.
#[derive(clap::Args)]
#[command(name = "atomic-phases", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Subcommands,
    /// The Cargo.toml of the application; its [package.metadata.atomic-phases.lints] sets levels
    #[arg(long, global = true, value_name = "PATH", default_value = "Cargo.toml")]
    pub(crate) manifest_path: PathBuf,
    /// The folder of the lock files, beside Cargo.toml
    #[arg(long, global = true, value_name = "FOLDER", default_value = "phases")]
    pub(crate) folder: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum Subcommands {
    /// Write the lock files anew: `cargo test` with ATOMIC_PHASES_LOCK=update
    Lock {
        /// Arguments of `cargo test`, which tests to run for example
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compare with the lock files of a git revision: that which is deployed
    Diff {
        /// A revision: the tag of the deployed release, say
        #[arg(long, value_name = "REV")]
        against: String,
        /// The revision has no lock files, and that is right: these are the first
        #[arg(long)]
        first: bool,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Hold the lock files against the rows of a database: which of them would this build leave alone?
    Check {
        #[command(flatten)]
        database: Database,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Ask about the definitions in a database
    #[command(subcommand)]
    Definitions(Definitions),
    /// Say what a lint means, and what to write instead
    Explain {
        /// Its name; all of them are listed without it
        lint: Option<String>,
    },
    /// Mark a version as retired: no row of it is left in any database
    Retire {
        /// The definition's name
        name: String,
        version: u32,
        /// Refuse while it has unfinished rows in this database: postgres://…, mysql://… or sqlite://PATH
        #[arg(long, value_name = "URL", env = VARIABLE, hide_env_values = true)]
        database_url: Option<String>,
        #[command(flatten)]
        lease: Lease,
    },
}

#[derive(Subcommand)]
pub(crate) enum Definitions {
    /// Say whether no row of a version is unfinished, so that its code may go; exits with 6 while there is one, or may be
    Drained {
        /// The definition's name, as its lock file has it
        name: String,
        version: u32,
        #[command(flatten)]
        database: Database,
    },
}

const VARIABLE: &str = "ATOMIC_PHASES_DATABASE_URL";

#[derive(clap::Args)]
pub(crate) struct Database {
    /// postgres://…, mysql://… or sqlite://PATH
    #[arg(long, value_name = "URL", env = VARIABLE, hide_env_values = true)]
    pub(crate) database_url: String,
    #[command(flatten)]
    pub(crate) lease: Lease,
}

#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Lease {
    /// The longest `EngineBuilder::lease` of the services that write to this database: 30, if they set none. Without it, a
    /// day is assumed, and if more than a hundred thousand requests were created in that time, not all are read
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) lease: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
    /// Workflow commands of GitHub Actions
    Github,
}
