//! What can be typed.

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::end::Failure;

/// See what requests are stuck and why, and settle them
///
/// Exit codes: 0 fine, 1 error, 2 usage, 3 not allowed, 4 no such request or job, 5 refused (or it has moved on
/// since it was looked at), 6 something waits (status) or is missing (migrate status), 7 in use: later, 8 some of
/// several were refused.
#[derive(Parser)]
#[command(name = "atomic-phases", version, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) way: Way,
    /// How it is printed
    #[arg(short = 'o', long = "format", global = true, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(subcommand)]
    pub(crate) command: Commands,
}

/// Who is asked.
#[derive(Args)]
pub(crate) struct Way {
    /// Where a service has mounted the API: https://example.com/ops/api/v1 [env: ATOMIC_PHASES_URL]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// A database, for what needs none of the application's code: postgres://…, mysql://… or sqlite://PATH
    /// [env: ATOMIC_PHASES_DATABASE_URL]
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// The bearer token for --url
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        env = "ATOMIC_PHASES_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// Who acts on a database, as the audit tells it
    #[arg(long = "as", global = true, value_name = "NAME", env = "USER")]
    pub(crate) name: Option<String>,
    /// How long one answer may take, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) timeout: u64,
}

/// Who is asked, by its URL.
pub(crate) enum Whom {
    Service(String),
    Database(String),
}

impl Way {
    /// What is said here counts before what the environment says.
    pub(crate) fn whom(&self) -> Result<Whom, Failure> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let said = match (self.url.clone(), self.database_url.clone()) {
            (None, None) => (set("ATOMIC_PHASES_URL"), set("ATOMIC_PHASES_DATABASE_URL")),
            said => said,
        };
        match said {
            (Some(url), None) => Ok(Whom::Service(url)),
            (None, Some(url)) => Ok(Whom::Database(url)),
            (None, None) => Err(Failure::usage(
                "say who is asked: --url of a service, or --database-url (ATOMIC_PHASES_URL, \
                 ATOMIC_PHASES_DATABASE_URL)",
            )),
            (Some(_), Some(_)) => {
                Err(Failure::usage("a service or a database is asked: --url or --database-url"))
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For a person
    Table,
    /// One document, as the API tells it
    Json,
    /// One row a line
    Jsonl,
    /// The ids alone, one a line: for `-` of another command
    Ids,
}

#[derive(Subcommand)]
pub(crate) enum Commands {
    /// Say how much waits; exits with 6 while something does
    Status,
    /// List requests
    List(Filter),
    /// Find the request under a key, which is read from the standard input: no key in a shell's history
    Find {
        /// Whose key it is
        #[arg(long)]
        scope: String,
    },
    /// Tell all that is known of a request, without its values
    Show {
        /// The request's id, as a list or a log tells it
        id: String,
    },
    /// Say what holds a request, and what ends that
    Why {
        /// The request's id
        id: String,
    },
    /// Show the key and a stored value of a request; the look is written into the audit
    Reveal {
        /// The request's id
        id: String,
        #[arg(long, value_enum)]
        what: What,
        #[command(flatten)]
        because: Because,
    },
    /// Say what became of a call whose outcome is unknown, or finish a request by hand
    Resolve(Word),
    /// Let dead letters try again
    Retry {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        because: Because,
    },
    /// Erase settled requests: what users gave is deleted, and the keys never run again
    Erase {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        because: Because,
        /// It cannot be undone
        #[arg(long)]
        yes: bool,
    },
    /// Pause a foreign phase: no engine begins it, and the requests that come to it wait
    Pause {
        /// The definition's name
        definition: String,
        /// The phase's name
        phase: String,
        /// How long: 15m, 2h; without it, until it is ended
        #[arg(long = "for", value_name = "TIME")]
        length: Option<String>,
        #[command(flatten)]
        because: Because,
    },
    /// End a pause
    Unpause {
        /// The definition's name
        definition: String,
        /// The phase's name
        phase: String,
        #[command(flatten)]
        because: Because,
    },
    /// Tell which phase lists requests wait for and how many processes run each; 6 where some are stranded
    Definitions,
    /// List the processes that run workers, and when each was seen last
    Nodes,
    /// List the foreign phases that are paused
    Pauses,
    /// Staged jobs that gave up
    #[command(subcommand)]
    Jobs(Jobs),
    /// One act on many requests, done by the workers of the service
    #[command(subcommand)]
    Bulk(Bulk),
    /// Tell what operators did and were refused, the newest first
    Audit {
        /// Of this request
        #[arg(long, value_name = "ID")]
        request: Option<String>,
        /// How many
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// The tables of atomic-phases in a database
    #[command(subcommand)]
    Migrate(Migrate),
    /// Print the completions of a shell
    Completions { shell: Shell },
    /// Print the man page
    Man,
}

/// Which requests.
#[derive(Args)]
pub(crate) struct Filter {
    #[command(flatten)]
    pub(crate) condition: Condition,
    /// How many at most
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
}

/// What is asked of them.
#[derive(Args)]
pub(crate) struct Condition {
    /// accepted, running, lease_ended, backing_off, due, unknown, dead_letter, finished, erased; several with commas
    #[arg(long, value_name = "STATES")]
    pub(crate) state: Option<String>,
    #[arg(long, value_name = "NAME")]
    pub(crate) definition: Option<String>,
    /// Of the definition
    #[arg(long, value_name = "VERSION", requires = "definition")]
    pub(crate) definition_version: Option<u32>,
    /// The last committed phase, or the one whose call has no outcome
    #[arg(long, value_name = "NAME")]
    pub(crate) phase: Option<String>,
    /// A part of the reason
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// Accepted at least so long ago: 90s, 15m, 2h, 7d
    #[arg(long, value_name = "TIME")]
    pub(crate) older_than: Option<String>,
    /// Waiting for an operator or a reconcile function for so long at least
    #[arg(long, value_name = "TIME")]
    pub(crate) waiting_for: Option<String>,
    /// Unfinished, and not known to the service that is asked
    #[arg(long)]
    pub(crate) stranded: bool,
}

/// Which ids.
#[derive(Args)]
pub(crate) struct Ids {
    /// Ids, or `-`: they are read from the standard input, one a line
    #[arg(required = true)]
    pub(crate) ids: Vec<String>,
}

/// Why.
#[derive(Args)]
pub(crate) struct Because {
    /// Why; it is kept in the audit. 1 to 500 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum What {
    Key,
    Parameters,
    Context,
    Outputs,
    Reply,
}

#[derive(Args)]
pub(crate) struct Word {
    /// The request's id
    pub(crate) id: String,
    #[command(subcommand)]
    pub(crate) said: Said,
}

#[derive(Subcommand)]
pub(crate) enum Said {
    /// The call had its effect
    Executed {
        #[arg(long)]
        phase: String,
        /// What the phase would have returned, as JSON; `-`: from the standard input
        #[arg(long, value_name = "JSON")]
        output: String,
        #[command(flatten)]
        because: Because,
    },
    /// The call had no effect and will have none: it is made again
    NotExecuted {
        #[arg(long)]
        phase: String,
        /// Which attempt's call, as `show` tells it
        #[arg(long)]
        attempt: u32,
        #[command(flatten)]
        because: Because,
    },
    /// It was settled by hand: the client is told this
    Finish {
        /// The reply's HTTP status
        #[arg(long)]
        status: u16,
        /// `name: value`
        #[arg(long = "header", value_name = "LINE")]
        headers: Vec<String>,
        /// The reply's body; `-`: from the standard input
        #[arg(long, default_value = "")]
        body: String,
        #[command(flatten)]
        because: Because,
    },
}

#[derive(Subcommand)]
pub(crate) enum Bulk {
    /// Let all dead letters of a filter, or of ids, try again
    Retry(BulkOf),
    /// Erase all settled requests of a filter, or of ids
    Erase(BulkOf),
    /// List bulk acts, the newest first
    List {
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Tell how far one came, and each request that it left as it was; exits with 8 if there is one
    Show {
        /// Its id
        id: String,
    },
    /// Stop one: what was done stays done
    Stop {
        /// Its id
        id: String,
        #[command(flatten)]
        because: Because,
    },
}

/// Which requests, and why. Without --yes it only says how many they are.
#[derive(Args)]
pub(crate) struct BulkOf {
    /// Ids instead of a filter, or `-`: they are read from the standard input, one a line
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: Condition,
    /// Why; it is kept in the audit. 1 to 500 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) because: String,
    /// Start it
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Subcommand)]
pub(crate) enum Jobs {
    /// List them, the oldest first
    List {
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Let them be delivered again
    Retry {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        because: Because,
    },
    /// Delete them: they are never delivered
    Discard {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        because: Because,
    },
}

#[derive(Subcommand)]
pub(crate) enum Migrate {
    /// Name the migrations that are missing; exits with 6 if there are any
    Status,
    /// Run the migrations that are missing
    Up,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_two_arguments_have_one_name() {
        Arguments::command().debug_assert();
    }
}
