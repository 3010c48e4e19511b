//! `atomic-phases`: what operators ask and do, from a terminal. Every command is one or two requests to the
//! JSON API of the library: of a service that has mounted it (`--url`), or, for what needs none of the
//! application's code, of one that runs in here on the database itself (`--database-url`). What may be seen and
//! done is decided there; here are arguments, tables and exit codes.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod act;
mod arguments;
mod ask;
mod bulk;
mod database;
mod end;
#[path = "../open.rs"]
mod open;
#[path = "../plain.rs"]
mod plain;
mod read;
mod remote;
mod schema;
mod table;
mod times;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use self::arguments::{Arguments, Commands};
use self::ask::Api;
use self::end::{End, Failure};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let end = run(&arguments).unwrap_or_else(|failure| {
        eprintln!("error: {}", table::plain(&failure.text));
        failure.end
    });
    ExitCode::from(end.code())
}

fn run(arguments: &Arguments) -> Result<End, Failure> {
    let Arguments { way, format, command } = arguments;
    match command {
        Commands::Completions { shell } => {
            let mut command = Arguments::command();
            clap_complete::generate(*shell, &mut command, "atomic-phases", &mut std::io::stdout());
            return Ok(End::Fine);
        }
        Commands::Man => {
            clap_mangen::Man::new(Arguments::command()).render(&mut std::io::stdout())?;
            return Ok(End::Fine);
        }
        Commands::Migrate(what) => return schema::run(way, what),
        _ => {}
    }
    let api = Api::of(way)?;
    match command {
        Commands::Status => read::status(&api, *format),
        Commands::List(filter) => read::list(&api, filter, *format),
        Commands::Find { scope } => read::find(&api, scope, *format),
        Commands::Show { id } => read::show(&api, id, *format),
        Commands::Why { id } => read::why(&api, id, *format),
        Commands::Audit { request, limit } => {
            read::audit(&api, request.as_deref(), *limit, *format)
        }
        Commands::Reveal { id, what, because } => read::reveal(&api, id, what, because),
        Commands::Resolve(word) => act::resolve(&api, word),
        Commands::Retry { ids, because } => act::on_each(&api, act::Act::Retry, ids, because),
        Commands::Erase { ids, because, yes } => match *yes {
            true => act::on_each(&api, act::Act::Erase, ids, because),
            false => Err(Failure::usage("an erasure cannot be undone: say --yes")),
        },
        Commands::Definitions => read::definitions(&api, *format),
        Commands::Nodes => read::nodes(&api, *format),
        Commands::Pauses => read::pauses(&api, *format),
        Commands::Pause { definition, phase, length, because } => {
            act::pause(&api, (definition, phase), length.as_deref(), because)
        }
        Commands::Unpause { definition, phase, because } => {
            act::unpause(&api, (definition, phase), because)
        }
        Commands::Bulk(command) => bulk::run(&api, command, *format),
        Commands::Jobs(command) => act::jobs(&api, command, *format),
        Commands::Completions { .. } | Commands::Man | Commands::Migrate(_) => Ok(End::Fine),
    }
}
