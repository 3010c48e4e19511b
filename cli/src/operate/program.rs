//! [`main`] of `atomic-phases`: the commands, asked of a service or of a database.

use std::path::PathBuf;
use std::process::ExitCode;

use atomic_phases::Engine;
use atomic_phases::ops::{Actor, Permissions, Scopes};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use super::arguments::{Commands, EXIT_CODES, Format, Migrate, Output};
use super::ask::Api;
use super::end::{End, Failure};
use super::local::Local;
use super::remote::Remote;
use super::settings::{Settings, Target};
use super::{exit_code, run, schema};
use crate::open::{Database, NotOpened, on, open};

#[derive(Parser)]
#[command(about = "See what requests are stuck and why, and settle them")]
#[command(name = "atomic-phases", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
struct Arguments {
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    command: Typed,
}

/// Who is asked. What is said here counts before what the environment says, and that before a profile.
#[derive(Args, Default)]
pub(crate) struct Way {
    /// Where a service has mounted the API: https://example.com/ops/api/v1 [env: ATOMIC_PHASES_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A database, for what needs none of the application's code: postgres://…, mysql://… or sqlite://PATH
    /// [env: ATOMIC_PHASES_DATABASE_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// The bearer token for --url [env: ATOMIC_PHASES_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Who acts on a database, as the audit names them [env: USER, or LOGNAME]
    #[arg(long = "as", global = true, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A section of profiles.toml with what is not given otherwise; `config` prints where that file is
    /// [env: ATOMIC_PHASES_PROFILE] [default: default, where there is one]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
}

#[derive(Subcommand)]
enum Typed {
    #[command(flatten)]
    Asked(Box<Commands>),
    /// The tables of atomic-phases in a database
    #[command(subcommand)]
    Migrate(Migrate),
    /// Print the service or database, the operator's name, and what sets each: an argument, the environment or a profile
    Config,
    /// Print the completions of a shell
    Completions { shell: Shell },
    /// Print the man page
    Man {
        /// Write it and one of each command into this folder instead: ~/.local/share/man/man1
        #[arg(long, value_name = "FOLDER")]
        into: Option<PathBuf>,
    },
}

/// Who reads without a name.
const READER: &str = "reader";

/// The program.
pub(crate) fn main() -> ExitCode {
    exit_code(start(&Arguments::parse()))
}

fn start(Arguments { way, output, command }: &Arguments) -> Result<End, Failure> {
    match command {
        Typed::Completions { shell } => {
            print!("{}", completions(*shell));
            return Ok(End::Fine);
        }
        Typed::Man { into } => {
            match into {
                None => {
                    let mut page = Vec::new();
                    clap_mangen::Man::new(Arguments::command()).render(&mut page)?;
                    print!("{}", String::from_utf8_lossy(&page));
                }
                Some(folder) => clap_mangen::generate_to(Arguments::command(), folder)?,
            }
            return Ok(End::Fine);
        }
        _ => {}
    }
    let settings = Settings::of(way, output, &|name| std::env::var(name).ok())?;
    let format = settings.format();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Typed::Asked(command) => ask(&settings, command, format).await,
            Typed::Migrate(what) => {
                let Target::Database(url) = settings.target()? else {
                    return Err(Failure::usage("migrate needs --database-url"));
                };
                on!(opened(url).await?, store => schema::run(&store, what).await)
            }
            Typed::Config => settings.print(),
            Typed::Completions { .. } | Typed::Man { .. } => Ok(End::Fine),
        }
    })
}

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "atomic-phases", &mut script);
    let script = String::from_utf8_lossy(&script);
    // clap_complete 4.6 writes the `-` of a program's name in two ways into what bash compares, so that no command
    // behind the first would be completed.
    script.replace("atomic__subcmd__phases", "atomic__phases")
}

async fn opened(url: &str) -> Result<Database, Failure> {
    open(url).await.map_err(|error| match error {
        NotOpened::Unknown => Failure::usage(error.to_string()),
        error => error.into(),
    })
}

/// Of a service, or of the library in here on a database, without the application's code.
async fn ask(settings: &Settings, command: &Commands, format: Format) -> Result<End, Failure> {
    let url = match settings.target()? {
        Target::Service(url) => {
            let remote = Remote::to(url, settings.token(), settings.timeout())?;
            return run(&Api::Remote(remote), command, format).await;
        }
        Target::Database(url) => url,
    };
    // Who only reads is in no audit.
    let reader = (!command.acts()).then_some(READER);
    let Some(name) = settings.name().or(reader) else {
        return Err(Failure::usage("say who acts, for the audit: --as NAME (or USER, or LOGNAME)"));
    };
    // What is stored may be sealed, and this process has no key: it reveals nothing.
    let may = Permissions::responder() | Permissions::ERASE;
    let actor = Actor::new(name, may, Scopes::All)
        .map_err(|error| Failure::usage(format!("--as: {error}")))?;
    on!(opened(url).await?, store => {
        let engine = Engine::builder(store).build()?;
        let local = Local::new(engine.clone(), actor, settings.timeout()).without_code();
        schema::explained(engine.store(), run(&Api::Local(local), command, format).await).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_arguments_have_one_name() {
        Arguments::command().debug_assert();
    }
}
