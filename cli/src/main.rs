//! `cargo atomic-phases`: compares the lock files of a repository with those of what is deployed, and with
//! the rows of a database, without a build of the application. The rules are the library's; here are
//! arguments, git and exit codes.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod database;
mod date;
mod git;
mod open;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use atomic_phases::compat::{
    InFlight, Levels, Lint, Locks, State, blocks, compare, file_name, github, json, text,
};
use clap::{Parser, Subcommand, ValueEnum};

use self::open::NotOpened;

/// As cargo calls its subcommands: with the subcommand's name first.
#[derive(Parser)]
#[command(bin_name = "cargo", disable_help_subcommand = true)]
enum Cargo {
    AtomicPhases(Arguments),
}

/// What a change of a request does to the requests that are under way
///
/// Exit codes: 0 fine, 1 error, 2 usage, 4 no such lint or version, 5 refused, 6 found something: a change that
/// must not be deployed as it is, or rows.
#[derive(clap::Args)]
#[command(name = "atomic-phases", version)]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
    /// The Cargo.toml of the application; its [package.metadata.atomic-phases.lints] sets levels
    #[arg(long, global = true, value_name = "PATH", default_value = "Cargo.toml")]
    manifest_path: PathBuf,
    /// The folder of the lock files, beside Cargo.toml
    #[arg(long, global = true, value_name = "FOLDER", default_value = "phases")]
    folder: PathBuf,
}

#[derive(Subcommand)]
enum Subcommands {
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
    },
}

#[derive(Subcommand)]
enum Definitions {
    /// Say whether no row of a version is unfinished, so that its code may go; exits with 6 while there is one
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
struct Database {
    /// postgres://…, mysql://… or sqlite://PATH
    #[arg(long, value_name = "URL", env = VARIABLE, hide_env_values = true)]
    database_url: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    /// Workflow commands of GitHub Actions
    Github,
}

/// How a command ended that did what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Fine,
    /// There is no lint or version of that name.
    NoSuch,
    /// What was asked for must not be done.
    Refused,
    /// A check found something.
    Found,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let Cargo::AtomicPhases(arguments) = Cargo::parse();
    match run(&arguments) {
        Ok(End::Fine) => ExitCode::SUCCESS,
        Ok(End::NoSuch) => ExitCode::from(4),
        Ok(End::Refused) => ExitCode::from(5),
        Ok(End::Found) => ExitCode::from(6),
        Err(error) => {
            eprintln!("error: {error}");
            let is_usage = matches!(error.downcast_ref(), Some(NotOpened::Unknown));
            ExitCode::from(if is_usage { 2 } else { 1 })
        }
    }
}

fn run(arguments: &Arguments) -> Result<End, Failure> {
    let package = match arguments.manifest_path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = package.join(&arguments.folder);
    match &arguments.command {
        Subcommands::Lock { arguments: passed } => lock(arguments, passed),
        Subcommands::Diff { against, format } => diff(arguments, package, against, *format),
        Subcommands::Explain { lint } => Ok(explain(lint.as_deref())),
        Subcommands::Check { database, format } => check(&folder, database, *format),
        Subcommands::Definitions(Definitions::Drained { name, version, database }) => {
            drained(&folder, name, *version, database)
        }
        Subcommands::Retire { name, version, database_url } => {
            retire(&folder, name, *version, database_url.as_deref())
        }
    }
}

fn lock(arguments: &Arguments, passed: &[String]) -> Result<End, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut test = Command::new(cargo);
    test.arg("test").arg("--manifest-path").arg(&arguments.manifest_path).args(passed);
    let status = test.env("ATOMIC_PHASES_LOCK", "update").env_remove("CI").status()?;
    match status.success() {
        true => Ok(End::Fine),
        false => Err("the tests failed; the lock files of those that passed are written".into()),
    }
}

fn diff(
    arguments: &Arguments,
    package: &Path,
    against: &str,
    format: Format,
) -> Result<End, Failure> {
    let manifest = std::fs::read_to_string(&arguments.manifest_path)
        .map_err(|error| format!("{}: {error}", arguments.manifest_path.display()))?;
    let levels = Levels::from_manifest(&manifest)?;
    let old = Locks::from_files(git::files(package, against, &arguments.folder)?)
        .map_err(|error| format!("at {against}: {error}"))?;
    let new = Locks::read(&package.join(&arguments.folder))?;
    if old.is_empty() {
        eprintln!("note: {against} has no lock file in {}", arguments.folder.display());
    }
    let findings = compare(&old, &new);
    match format {
        Format::Text if findings.is_empty() => println!("no change that a stored row can see"),
        Format::Text => print!("{}", text(&findings, &levels)),
        Format::Json => print!("{}", json(&findings, &levels)),
        Format::Github => {
            let folder = package.join(&arguments.folder);
            let folder = folder.strip_prefix(".").unwrap_or(&folder);
            print!("{}", github(&findings, &levels, &folder.display().to_string()));
        }
    }
    Ok(if blocks(&findings, &levels) { End::Found } else { End::Fine })
}

fn explain(name: Option<&str>) -> End {
    let Some(name) = name else {
        for lint in Lint::ALL {
            println!("{:<25} {}", lint.name(), lint.level());
        }
        return End::Fine;
    };
    let Some(lint) = Lint::named(name) else {
        eprintln!("there is no lint `{name}`; `cargo atomic-phases explain` lists them");
        return End::NoSuch;
    };
    println!("{}[{lint}]\n\n{}\n", lint.level(), lint.what());
    println!("retries   {}\ninstead   {}", lint.retries(), lint.instead());
    End::Fine
}

fn check(folder: &Path, database: &Database, format: Format) -> Result<End, Failure> {
    let locks = Locks::read(folder)?;
    let in_flight = database::in_flight(&database.database_url)?;
    let (left, jobs) = (in_flight.left_by(&locks), in_flight.jobs_left_by(&locks));
    let is_fine = left.is_empty() && jobs.is_empty();
    print!("{}", database::shown(&left, &jobs, format));
    if format == Format::Text && is_fine {
        println!("no unfinished row would be left alone, and no staged job");
    }
    if in_flight.truncated {
        eprintln!("note: there are more unfinished rows or staged jobs than were looked at");
    }
    for jobs in in_flight.jobs.iter().filter(|jobs| jobs.unread > 0) {
        let (unread, name) = (jobs.unread, &jobs.name);
        eprintln!(
            "note: the arguments of {unread} jobs `{name}` were not looked at: sealed, or long, or many"
        );
    }
    Ok(if is_fine { End::Fine } else { End::Found })
}

fn drained(folder: &Path, name: &str, version: u32, database: &Database) -> Result<End, Failure> {
    let locks = Locks::read(folder)?;
    // A name that is mistyped has no rows either.
    if locks.get(name, version).is_none() {
        eprintln!("there is no {} in {}", file_name(name, version), folder.display());
        return Ok(End::NoSuch);
    }
    let in_flight = database::in_flight(&database.database_url)?;
    let left = unfinished(&in_flight, &locks, name, version);
    match &left {
        None => println!("{name}@{version} has no unfinished row in this database"),
        Some(left) => println!("{name}@{version} has {left}"),
    }
    Ok(if left.is_none() { End::Fine } else { End::Found })
}

/// What of a version there is still to do, if anything.
fn unfinished(in_flight: &InFlight, locks: &Locks, name: &str, version: u32) -> Option<String> {
    let jobs = in_flight.jobs_only_of(locks, name, version);
    match in_flight.rows_of(name, version) {
        0 if jobs > 0 => Some(format!("{jobs} staged jobs that no other version stages")),
        0 if in_flight.truncated => {
            Some("no unfinished row among those looked at, and there are more".to_owned())
        }
        0 => None,
        rows => Some(format!("{rows} unfinished rows")),
    }
}

fn retire(
    folder: &Path,
    name: &str,
    version: u32,
    database_url: Option<&str>,
) -> Result<End, Failure> {
    let mut locks = Locks::read(folder)?;
    let Some(lock) = locks.get(name, version) else {
        eprintln!("there is no {} in {}", file_name(name, version), folder.display());
        return Ok(End::NoSuch);
    };
    if let State::Retired(since) = &lock.state {
        println!("{name}@{version} is retired since {since}");
        return Ok(End::Fine);
    }
    if let Some(url) = database_url {
        let in_flight = database::in_flight(url)?;
        if let Some(left) = unfinished(&in_flight, &locks, name, version) {
            eprintln!("refused: {name}@{version} has {left}");
            return Ok(End::Refused);
        }
    }
    if let Some(lock) = locks.get_mut(name, version) {
        lock.state = State::Retired(date::today());
    }
    locks.write(folder)?;
    println!(
        "{name}@{version} is retired: its code may go. Unfinished rows of it, if there are any, are left alone."
    );
    Ok(End::Fine)
}
