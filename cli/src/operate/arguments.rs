//! What can be typed, in an application and in the program.

use std::ops::RangeInclusive;

use atomic_phases::ops::State;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// What both command lines say below their help.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 fine, 1 error, 2 usage, 3 not allowed, 4 no such request or job (or no \
    id on the standard input), 5 refused (or it has changed since it was read), 6 something waits (status), is or may \
    be stranded (definitions) or is missing (migrate status), 7 in use: later, 8 some of several were refused.";

/// The commands of an application's operators, as a part of its own command line: clap's `Args` and `Parser`.
///
/// ```
/// use atomic_phases::Engine;
/// use atomic_phases::ops::{Actor, Permissions, Scopes};
/// use atomic_phases::store::Sqlite;
/// use atomic_phases_cli::Operate;
///
/// #[derive(clap::Parser)]
/// enum Application {
///     /// Serve requests
///     Serve,
///     /// See what requests are stuck and why, and settle them
///     Ops(Operate),
/// }
///
/// async fn run(command: Application, engine: Engine<Sqlite>) -> std::process::ExitCode {
///     match command {
///         Application::Serve => std::process::ExitCode::SUCCESS,
///         Application::Ops(ops) => match Actor::new("ada", Permissions::responder(), Scopes::All) {
///             Ok(actor) => ops.run(&engine, actor).await,
///             Err(_) => std::process::ExitCode::FAILURE,
///         },
///     }
/// }
/// ```
///
/// `-o` and `--timeout` are understood behind each of its commands, so an application has to have no other
/// arguments of these names that are `global`.
#[derive(Parser)]
#[command(about = "See what requests are stuck and why, and settle them", long_about = None)]
#[command(after_help = EXIT_CODES, disable_help_subcommand = true)]
pub struct Operate {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(subcommand)]
    pub(crate) command: Box<Inside>,
}

/// How it is printed.
#[derive(Args)]
pub(crate) struct Output {
    /// How it is printed [default: table]
    #[arg(short = 'o', long = "format", global = true, value_enum)]
    pub(crate) format: Option<Format>,
    /// How long one answer may take, in seconds, a day at most [default: 30]
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds())]
    pub(crate) timeout: Option<u64>,
}

/// What an application is asked.
#[derive(Subcommand)]
pub(crate) enum Inside {
    #[command(flatten)]
    Asked(Box<Commands>),
    /// The tables of atomic-phases in the application's database
    #[command(subcommand)]
    Migrate(Migrate),
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For a person
    #[default]
    Table,
    /// One document, as the API answers it
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
        /// The request's id, from a list or a log
        id: String,
    },
    /// Say what holds a request, and what ends that
    Why {
        /// The request's id
        id: String,
    },
    /// Show the key and a stored value of a request; the access is written into the audit
    Reveal {
        /// The request's id
        id: String,
        /// Which value; `key` is the scope and the key alone
        #[arg(long, value_enum)]
        what: What,
        #[command(flatten)]
        because: Because,
    },
    /// Say what became of a call whose outcome is unknown, or finish a request by hand
    Resolve(ResolveArguments),
    /// Let dead letters try again
    Retry {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        decision: Decision,
    },
    /// Erase settled requests: what users gave is deleted, and the keys never run again
    Erase {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        decision: Decision,
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
        /// How long, a second to ten years: 15m, 2h; without it, until an operator ends it
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        length: Option<String>,
        #[command(flatten)]
        decision: Decision,
    },
    /// End a pause
    Unpause {
        /// The definition's name
        definition: String,
        /// The phase's name
        phase: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// Tell which phase lists requests wait for and how many processes run each; 6 where some are or may be stranded
    Definitions,
    /// List the processes that announce themselves, as those with workers do, and when each was seen last
    Nodes,
    /// List the foreign phases that are paused
    Pauses,
    /// Staged jobs that gave up, or that are late
    #[command(subcommand)]
    Jobs(Jobs),
    /// One act on many requests, done by the workers of the service
    #[command(subcommand)]
    Bulk(Bulk),
    /// Tell what operators did and were refused, the newest first
    Audit {
        #[command(flatten)]
        of: AuditOf,
        #[command(flatten)]
        part: Part,
    },
}

#[cfg(feature = "programs")]
impl Commands {
    /// Whether it writes: then the audit has a row of it, with the operator's name.
    pub(crate) fn acts(&self) -> bool {
        match self {
            Self::Reveal { .. }
            | Self::Resolve(_)
            | Self::Retry { .. }
            | Self::Erase { .. }
            | Self::Pause { .. }
            | Self::Unpause { .. }
            | Self::Bulk(Bulk::Retry(_) | Bulk::Erase(_) | Bulk::Stop { .. })
            | Self::Jobs(Jobs::Retry { .. } | Jobs::Discard { .. }) => true,
            Self::Status
            | Self::List(_)
            | Self::Find { .. }
            | Self::Show { .. }
            | Self::Why { .. }
            | Self::Definitions
            | Self::Nodes
            | Self::Pauses
            | Self::Bulk(Bulk::List { .. } | Bulk::Show { .. })
            | Self::Jobs(Jobs::List { .. } | Jobs::Show { .. })
            | Self::Audit { .. } => false,
        }
    }
}

/// Which requests.
#[derive(Args)]
pub(crate) struct Filter {
    #[command(flatten)]
    pub(crate) condition: Condition,
    #[command(flatten)]
    pub(crate) part: Part,
}

/// Which records of the audit.
#[derive(Args)]
pub(crate) struct AuditOf {
    /// Of this request
    #[arg(long, value_name = "ID")]
    pub(crate) request: Option<String>,
    /// Of the operator of this name
    #[arg(long, value_name = "NAME")]
    pub(crate) actor: Option<String>,
    /// Of this act, or all before whose dot this stands: erase, reveal.key, reveal
    #[arg(long, value_name = "ACT")]
    pub(crate) act: Option<String>,
}

/// Which part of a list.
#[derive(Args)]
pub(crate) struct Part {
    /// How many at most
    #[arg(long, default_value_t = 50, value_parser = at_least_one())]
    pub(crate) limit: u32,
    /// Go on where a list with the same conditions ended, as its note says
    #[arg(long, value_name = "CURSOR", value_parser = cursor, allow_hyphen_values = true)]
    pub(crate) after: Option<String>,
}

/// A place in a list, as it may stand in a URL.
fn cursor(text: &str) -> Result<String, String> {
    let is_of_one = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    match !text.is_empty() && text.chars().all(is_of_one) {
        true => Ok(text.to_owned()),
        false => Err("it is not a cursor that a list has returned".to_owned()),
    }
}

fn at_least_one() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

/// How long an answer may take, in seconds. A clock does not hold what is longer by far, and 0 leaves no time to answer.
pub(crate) const SECONDS: RangeInclusive<u64> = 1..=86_400;

fn seconds() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(SECONDS)
}

/// Names of states, with commas between them. What is none would list nothing, as if nothing were stuck.
fn states(text: &str) -> Result<String, String> {
    let known = State::ALL.map(State::as_str);
    match text.split(',').find(|name| !known.contains(name)) {
        Some(name) => Err(format!("{name:?} is none of {}", known.join(", "))),
        None => Ok(text.to_owned()),
    }
}

/// A condition. An empty one, of a script whose variable is not set, would be none.
fn filled(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("a condition is not empty".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// How long: `90s`, `15m`, `2h`, `7d`.
fn time(text: &str) -> Result<String, String> {
    let number = text.strip_suffix(['s', 'm', 'h', 'd']);
    match number.map(str::parse::<u32>) {
        Some(Ok(_)) => Ok(text.to_owned()),
        _ => Err("a time is a number and s, m, h or d: 90s, 15m, 2h, 7d".to_owned()),
    }
}

/// What is asked of them.
#[derive(Args)]
pub(crate) struct Condition {
    /// accepted, running, lease_ended, backing_off, due, unknown, dead_letter, finished, erased, unreadable; several with
    /// commas
    #[arg(long, value_name = "STATES", value_parser = states)]
    pub(crate) state: Option<String>,
    /// A definition's name, as `definitions` prints it
    #[arg(long, value_name = "NAME", value_parser = filled)]
    pub(crate) definition: Option<String>,
    /// Of the definition
    #[arg(long, value_name = "VERSION", requires = "definition")]
    pub(crate) definition_version: Option<u32>,
    /// The phase at which they stand: the one that is next, or whose call is open
    #[arg(long, value_name = "NAME", value_parser = filled)]
    pub(crate) phase: Option<String>,
    /// A part of the reason
    #[arg(long, value_name = "TEXT", value_parser = filled)]
    pub(crate) reason: Option<String>,
    /// Whose keys; what is typed here may be in the shell's history
    #[arg(long, value_parser = filled)]
    pub(crate) scope: Option<String>,
    /// Accepted at least so long ago: 90s, 15m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) older_than: Option<String>,
    /// Waiting for an operator or a reconcile function for so long at least
    #[arg(long, value_name = "TIME", value_parser = time)]
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

/// Why, and about what.
#[derive(Args)]
// What these commands are about has the name under which an application's every command may print its version.
#[command(disable_version_flag = true)]
pub(crate) struct Decision {
    #[command(flatten)]
    pub(crate) because: Because,
    /// Act only if it stands as it was seen: with the version that `show` or `pauses` printed, or, of a job, its attempts.
    /// Without it, the command acts on what it finds, except that `pause` replaces no pause, and that `resolve finish` ends
    /// no request of which a call may have been made
    #[arg(long, value_name = "VERSION")]
    pub(crate) version: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum What {
    Key,
    Parameters,
    Context,
    Outputs,
    Reply,
    /// The key under which each idempotent phase calls its provider
    DerivedKey,
}

#[derive(Args)]
pub(crate) struct ResolveArguments {
    /// The request's id
    pub(crate) id: String,
    #[command(subcommand)]
    pub(crate) said: Said,
}

#[derive(Subcommand)]
pub(crate) enum Said {
    /// The call had its effect
    Executed {
        /// The phase whose call it was, as `show` prints it
        #[arg(long)]
        phase: String,
        /// What the phase would have returned, as JSON; `-`: from the standard input
        #[arg(long, value_name = "JSON")]
        output: String,
        #[command(flatten)]
        decision: Decision,
    },
    /// The call had no effect and will have none: it is made again
    NotExecuted {
        /// The phase whose call it was, as `show` prints it
        #[arg(long)]
        phase: String,
        /// Which attempt's call, as `show` prints it
        #[arg(long)]
        attempt: u32,
        #[command(flatten)]
        decision: Decision,
    },
    /// It was settled by hand: the service answers the client with this
    Finish {
        /// The reply's HTTP status
        #[arg(long)]
        status: u16,
        /// `name: value`. Without a content-type, a body that is JSON is sent as application/json, another as text/plain
        #[arg(long = "header", value_name = "LINE")]
        headers: Vec<String>,
        /// The reply's body; `-`: from the standard input
        #[arg(long, default_value = "")]
        body: String,
        #[command(flatten)]
        decision: Decision,
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
        #[command(flatten)]
        part: Part,
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

/// Which requests, and why. Without --plan and --yes it only says how many they are, and, on the standard output, the
/// plan's version.
#[derive(Args)]
pub(crate) struct BulkOf {
    /// Ids instead of a filter, or `-`: they are read from the standard input, one a line
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: Condition,
    /// Why; it is kept in the audit. 1 to 500 characters
    #[arg(long, value_name = "TEXT")]
    pub(crate) because: String,
    /// Start what was planned: the version that the same command printed without this. Given twice, it starts once
    #[arg(long, value_name = "VERSION", conflicts_with = "yes")]
    pub(crate) plan: Option<String>,
    /// Start the plan that this command makes, without a review: for scripts, where no operator reviews a
    /// plan. An operator who has reviewed one passes --plan
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobState {
    Dead,
    Late,
}

#[derive(Subcommand)]
pub(crate) enum Jobs {
    /// List them, the oldest first; or those that are late, the longest due first
    List {
        /// Those that gave up (as without this), or those that have been due for a minute
        #[arg(long, value_enum)]
        state: Option<JobState>,
        #[command(flatten)]
        part: Part,
    },
    /// Show all that is known of one that gave up, without its arguments
    Show {
        /// The job's id, from a list or `show`
        id: String,
    },
    /// Let them be delivered again
    Retry {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        decision: Decision,
    },
    /// Delete them: they are never delivered
    Discard {
        #[command(flatten)]
        ids: Ids,
        #[command(flatten)]
        decision: Decision,
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
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn no_two_arguments_have_one_name() {
        Operate::command().debug_assert();
    }

    /// What it prints about what was typed.
    fn told<P: Parser>(typed: &str) -> (ErrorKind, String) {
        let told = P::try_parse_from(typed.split(' ')).err().unwrap();
        (told.kind(), told.to_string())
    }

    /// The version that the act is about.
    fn about(command: Inside) -> Option<String> {
        let Inside::Asked(command) = command else { panic!("it is not an act") };
        let decision = match *command {
            Commands::Retry { decision, .. }
            | Commands::Erase { decision, .. }
            | Commands::Pause { decision, .. }
            | Commands::Unpause { decision, .. } => decision,
            Commands::Resolve(ResolveArguments { said, .. }) => match said {
                Said::Executed { decision, .. }
                | Said::NotExecuted { decision, .. }
                | Said::Finish { decision, .. } => decision,
            },
            Commands::Jobs(Jobs::Retry { decision, .. } | Jobs::Discard { decision, .. }) => {
                decision
            }
            _ => panic!("it is not an act"),
        };
        decision.version
    }

    const ACTS: [&str; 9] = [
        "retry 7",
        "erase 7",
        "pause d p",
        "unpause d p",
        "jobs retry 7",
        "jobs discard 7",
        "resolve 7 executed --phase p --output 1",
        "resolve 7 not-executed --phase p --attempt 1",
        "resolve 7 finish --status 200",
    ];

    #[derive(Parser)]
    #[command(version = "1.2.3", propagate_version = true)]
    enum Application {
        Ops(Operate),
    }

    #[derive(Parser)]
    #[command(version = "1.2.3", propagate_version = true)]
    struct Flattened {
        #[command(flatten)]
        ops: Operate,
    }

    #[derive(Parser)]
    #[command(version = "1.2.3")]
    struct Alone {
        #[command(flatten)]
        ops: Operate,
    }

    #[test]
    fn an_application_keeps_its_version_and_an_act_says_which_it_is_about() {
        Application::command().debug_assert();
        Flattened::command().debug_assert();
        Alone::command().debug_assert();
        let version = |(kind, text): (ErrorKind, String)| {
            assert_eq!((kind, text.contains("1.2.3")), (ErrorKind::DisplayVersion, true), "{text}");
        };
        version(told::<Application>("application --version"));
        version(told::<Application>("application ops --version"));
        version(told::<Application>("application ops jobs list --version"));
        version(told::<Flattened>("application --version"));
        version(told::<Flattened>("application -V"));
        version(told::<Flattened>("application status --version"));
        version(told::<Alone>("application --version"));
        for act in ACTS {
            let typed = format!("{act} --reason r --version 0a1b");
            let Application::Ops(Operate { command, .. }) =
                Application::try_parse_from(format!("application ops {typed}").split(' ')).unwrap();
            assert_eq!(about(*command).as_deref(), Some("0a1b"), "{act}");
            let typed = format!("application {typed}");
            let flattened = Flattened::try_parse_from(typed.split(' ')).unwrap();
            assert_eq!(about(*flattened.ops.command).as_deref(), Some("0a1b"), "{act}");
            let alone = Alone::try_parse_from(typed.split(' ')).unwrap();
            assert_eq!(about(*alone.ops.command).as_deref(), Some("0a1b"), "{act}");
        }
    }

    #[test]
    fn a_cursor_is_typed_as_it_was_told() {
        for cursor in ["AAYV", "-b_9", "--x"] {
            for list in ["list", "jobs list", "bulk list", "audit"] {
                let typed = format!("ops {list} --after {cursor} -o ids");
                assert!(Operate::try_parse_from(typed.split(' ')).is_ok(), "{typed}");
            }
        }
        for none in ["a&b", "a/b", "a=", "a b"] {
            let typed = ["ops", "audit", "--after", none];
            assert!(Operate::try_parse_from(typed).is_err(), "{none}");
        }
    }
}
