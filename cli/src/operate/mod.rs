//! What operators ask and do, from a terminal. Every command is one or two requests to the JSON API of the library: of
//! a service that has mounted it, of the application that this is a part of, or, for what needs none of the
//! application's code, of one on the database itself. What may be seen and done is decided there; here are
//! arguments, tables and exit codes.

mod act;
mod arguments;
mod ask;
mod bulk;
mod end;
mod json;
mod local;
#[cfg(feature = "programs")]
pub(crate) mod program;
mod read;
#[cfg(feature = "programs")]
mod remote;
mod schema;
#[cfg(feature = "programs")]
mod settings;
mod table;
mod times;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use atomic_phases::Engine;
use atomic_phases::ops::{Actor, OperatorStore};
use clap::Parser;

pub use self::arguments::Operate;
use self::arguments::{Commands, Format, Inside};
use self::ask::Api;
use self::end::{End, Failure};
use self::local::Local;
use crate::say;

/// How long one answer may take, unless it is said.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What an operator has typed, done by the application's engine: the same as [`Operate`], where the application parses
/// its arguments otherwise than with clap.
///
/// The first of `arguments` is what stands in front of the command, as the help is to show it: `myapp ops`. What is not a
/// command is said on the standard error, and ends with 2.
///
/// ```
/// use atomic_phases::Engine;
/// use atomic_phases::ops::{Actor, Permissions, Scopes};
/// use atomic_phases::store::Sqlite;
///
/// async fn run(engine: &Engine<Sqlite>, ada: Actor) -> std::process::ExitCode {
///     let arguments = std::env::args().skip(2);
///     atomic_phases_cli::operate(engine, ada, ["myapp ops".to_owned()].into_iter().chain(arguments)).await
/// }
/// ```
pub async fn operate<S, A, T>(
    engine: &Engine<S, A>,
    actor: Actor,
    arguments: impl IntoIterator<Item = T>,
) -> ExitCode
where
    S: OperatorStore,
    A: Send + Sync + 'static,
    T: Into<OsString> + Clone,
{
    match Operate::try_parse_from(arguments) {
        Ok(operate) => operate.run(engine, actor).await,
        Err(error) => {
            // Also the help, which is not an error.
            let _ = error.print();
            u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

impl Operate {
    /// Does it, and prints what came of it. The exit codes are for scripts; `--help` lists them.
    ///
    /// `actor` is who acts, as the audit names them, what they may do, and whose requests they may see: the application
    /// decides, by the user it has authenticated. A user who may start it on the service's machine can usually read
    /// its database's password, too.
    pub async fn run<S, A>(&self, engine: &Engine<S, A>, actor: Actor) -> ExitCode
    where
        S: OperatorStore,
        A: Send + Sync + 'static,
    {
        let within = self.output.timeout.map_or(TIMEOUT, Duration::from_secs);
        let format = self.output.format.unwrap_or_default();
        exit_code(match &*self.command {
            Inside::Asked(command) => {
                let api = Api::Local(Local::new(engine.clone(), actor, within));
                schema::explained(engine.store(), run(&api, command, format).await).await
            }
            Inside::Migrate(what) => schema::run(engine.store(), what).await,
        })
    }
}

impl std::fmt::Debug for Operate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What was typed may have values in it.
        f.debug_struct("Operate").finish_non_exhaustive()
    }
}

fn exit_code(end: Result<End, Failure>) -> ExitCode {
    let end = end.unwrap_or_else(|failure| {
        eprintln!("error: {}", table::plain(&failure.text));
        failure.end
    });
    match say::is_lost() {
        true => ExitCode::from(End::Error.code()),
        false => ExitCode::from(end.code()),
    }
}

async fn run(api: &Api, command: &Commands, format: Format) -> Result<End, Failure> {
    match command {
        Commands::Status => read::status(api, format).await,
        Commands::List(filter) => read::list(api, filter, format).await,
        Commands::Find { scope } => read::find(api, scope, format).await,
        Commands::Show { id } => read::show(api, id, format).await,
        Commands::Why { id } => read::why(api, id, format).await,
        Commands::Audit { of, part } => read::audit(api, of, part, format).await,
        Commands::Reveal { id, what, because } => read::reveal(api, id, what, because).await,
        Commands::Resolve(arguments) => act::resolve(api, arguments).await,
        Commands::Retry { ids, decision } => {
            act::on_each(api, act::Act::Retry, ids, decision).await
        }
        Commands::Erase { ids, decision, yes } => match *yes {
            true => act::on_each(api, act::Act::Erase, ids, decision).await,
            false => Err(Failure::usage("an erasure cannot be undone: say --yes")),
        },
        Commands::Definitions => read::definitions(api, format).await,
        Commands::Nodes => read::nodes(api, format).await,
        Commands::Pauses => read::pauses(api, format).await,
        Commands::Pause { definition, phase, length, decision } => {
            act::pause(api, (definition, phase), length.as_deref(), decision).await
        }
        Commands::Unpause { definition, phase, decision } => {
            act::unpause(api, (definition, phase), decision).await
        }
        Commands::Bulk(command) => bulk::run(api, command, format).await,
        Commands::Jobs(command) => act::jobs(api, command, format).await,
    }
}
