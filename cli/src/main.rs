//! `cargo atomic-phases`: compares the lock files of a repository with those of what is deployed, and with
//! the rows of a database, without a build of the application. The rules are the library's; here are
//! arguments, git and exit codes.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[macro_use]
mod say;

mod arguments;
mod database;
mod date;
mod files;
mod git;
mod open;
mod plain;
mod rows;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use self::arguments::{Arguments, Cargo, Definitions, Subcommands};
use self::open::NotOpened;

/// How a command ended that did what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Fine,
    /// There is no lint or version of that name.
    NoSuch,
    /// What was asked for must not be done.
    Refused,
    /// A check found something.
    Found,
}

pub(crate) type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let Cargo::AtomicPhases(arguments) = Cargo::parse();
    match run(&arguments) {
        Ok(_) if say::is_lost() => ExitCode::FAILURE,
        Ok(End::Fine) => ExitCode::SUCCESS,
        Ok(End::NoSuch) => ExitCode::from(4),
        Ok(End::Refused) => ExitCode::from(5),
        Ok(End::Found) => ExitCode::from(6),
        Err(error) => {
            eprintln!("error: {}", plain::plain(&with_causes(&*error)));
            let is_usage = matches!(error.downcast_ref(), Some(NotOpened::Unknown));
            ExitCode::from(if is_usage { 2 } else { 1 })
        }
    }
}

/// An error and its causes, each of which says what happened once.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn run(arguments: &Arguments) -> Result<End, Failure> {
    let package = match arguments.manifest_path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = package.join(&arguments.folder);
    match &arguments.command {
        Subcommands::Lock { arguments: passed } => files::lock(arguments, passed),
        Subcommands::Diff { against, first, format } => {
            files::diff(arguments, package, (against, *first), *format)
        }
        Subcommands::Explain { lint } => Ok(files::explain(lint.as_deref())),
        Subcommands::Check { database, format } => rows::check(&folder, database, *format),
        Subcommands::Definitions(Definitions::Drained { name, version, database }) => {
            rows::drained(&folder, name, *version, database)
        }
        Subcommands::Retire { name, version, database_url, lease } => {
            rows::retire(&folder, name, *version, database_url.as_deref(), *lease)
        }
    }
}
