//! [`Settings`]: who is asked and how, by arguments, environment and profile, in this order.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};
use toml::Table;

use super::TIMEOUT;
use super::arguments::{Format, Output, SECONDS};
use super::end::{End, Failure};
use super::program::Way;
use super::table::{Column, Now, plain, print, text};

/// A variable of the environment.
type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The profile that counts where none is named.
const DEFAULT: &str = "default";

/// What says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Argument(&'static str),
    Environment(&'static str),
    Profile,
    Default,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Said<T> {
    what: T,
    by: By,
}

/// What answers: a service, or the library on a database; by its URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Service(String),
    Database(String),
}

/// Without the URL, which may have a password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service(_) => "Service",
            Self::Database(_) => "Database",
        })
    }
}

/// What holds for a command.
pub(crate) struct Settings {
    file: Option<PathBuf>,
    profile: Option<Said<String>>,
    target: Option<Said<Target>>,
    token: Option<Said<String>>,
    name: Option<Said<String>>,
    timeout: Said<Duration>,
    format: Said<Format>,
}

/// A section of `profiles.toml`.
#[derive(Default)]
struct Profile {
    target: Option<Target>,
    token: Option<String>,
    name: Option<String>,
    timeout: Option<Duration>,
    format: Option<Format>,
}

impl Settings {
    pub(crate) fn of(way: &Way, output: &Output, env: &Env<'_>) -> Result<Self, Failure> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let said = |flag: &Option<String>, argument, variable| {
            let typed = flag.clone().map(|what| Said { what, by: By::Argument(argument) });
            typed.or_else(|| Some(Said { what: env(variable)?, by: By::Environment(variable) }))
        };
        let named = said(&way.profile, "--profile", "ATOMIC_PHASES_PROFILE");
        let file = folder(&env).map(|folder| folder.join("atomic-phases/profiles.toml"));
        let (profile, held) = profile(file.as_deref(), named)?;
        // A service and a database do not mix: who is asked is said in one place.
        let target = match one_of(way.url.clone(), way.database_url.clone())? {
            Some(what) => {
                let by = if way.url.is_some() { "--url" } else { "--database-url" };
                Some(Said { what, by: By::Argument(by) })
            }
            None => match one_of(env("ATOMIC_PHASES_URL"), env("ATOMIC_PHASES_DATABASE_URL"))? {
                Some(what) => {
                    let by = match what {
                        Target::Service(_) => "ATOMIC_PHASES_URL",
                        Target::Database(_) => "ATOMIC_PHASES_DATABASE_URL",
                    };
                    Some(Said { what, by: By::Environment(by) })
                }
                None => held.target.map(|what| Said { what, by: By::Profile }),
            },
        };
        // A profile's token is for the service that the profile names, and for no other.
        let is_of_profile = target.as_ref().is_some_and(|target| target.by == By::Profile);
        let by_profile = |what| Said { what, by: By::Profile };
        let token = said(&way.token, "--token", "ATOMIC_PHASES_TOKEN");
        let token = token.or_else(|| held.token.filter(|_| is_of_profile).map(by_profile));
        let name = way.name.clone().map(|what| Said { what, by: By::Argument("--as") });
        let name = name.or_else(|| held.name.map(by_profile));
        // Cron and containers set one of them, or none.
        let user = || {
            let mut names = ["USER", "LOGNAME"].into_iter();
            names.find_map(|name| Some(Said { what: env(name)?, by: By::Environment(name) }))
        };
        Ok(Self {
            file,
            profile,
            target,
            token,
            name: name.or_else(user),
            timeout: first(
                output.timeout.map(Duration::from_secs),
                "--timeout",
                held.timeout,
                TIMEOUT,
            ),
            format: first(output.format, "--format", held.format, Format::default()),
        })
    }

    pub(crate) fn target(&self) -> Result<&Target, Failure> {
        self.target.as_ref().map(|target| &target.what).ok_or_else(|| {
            Failure::usage(
                "say who is asked: --url of a service, --database-url, or a --profile (ATOMIC_PHASES_URL, \
                 ATOMIC_PHASES_DATABASE_URL, ATOMIC_PHASES_PROFILE)",
            )
        })
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_ref().map(|token| &*token.what)
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &*name.what)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.what
    }

    pub(crate) fn format(&self) -> Format {
        self.format.what
    }

    /// What holds, and what says so: no token and no password.
    pub(crate) fn print(&self) -> Result<End, Failure> {
        // None of them has an age.
        print(&self.rows(), &COLUMNS, Now::default(), self.format());
        Ok(End::Fine)
    }

    fn rows(&self) -> Vec<Value> {
        let row = |id: &str, what: Option<String>, by: Option<By>| {
            let by = by.map(|by| match by {
                By::Argument(name) | By::Environment(name) => name.to_owned(),
                By::Profile => "the profile".to_owned(),
                By::Default => "by default".to_owned(),
            });
            json!({ "id": id, "value": what, "from": by })
        };
        let of = |said: &Option<Said<String>>| {
            said.as_ref().map_or((None, None), |said| (Some(said.what.clone()), Some(said.by)))
        };
        let (url, database) = match self.target.as_ref().map(|target| &target.what) {
            Some(Target::Service(url)) => (Some(without_password(url)), None),
            Some(Target::Database(url)) => (None, Some(without_password(url))),
            None => (None, None),
        };
        let by = |is_it: bool| self.target.as_ref().filter(|_| is_it).map(|target| target.by);
        let file = self.file.as_ref().map(|file| file.display().to_string());
        let ((profile, named), (name, from)) = (of(&self.profile), of(&self.name));
        let token = self.token.as_ref().map(|_| "is set".to_owned());
        let format = self.format.what.to_possible_value();
        let format = format.map(|format| format.get_name().to_owned());
        vec![
            row("profiles", file, None),
            row("profile", profile, named),
            row("url", url.clone(), by(url.is_some())),
            row("database-url", database.clone(), by(database.is_some())),
            row("token", token, self.token.as_ref().map(|token| token.by)),
            row("as", name, from),
            row("timeout", Some(self.timeout.what.as_secs().to_string()), Some(self.timeout.by)),
            row("format", format, Some(self.format.by)),
        ]
    }
}

const COLUMNS: [Column; 3] = [
    ("SETTING", |row, _| text(&row["id"])),
    ("VALUE", |row, _| text(&row["value"])),
    ("FROM", |row, _| text(&row["from"])),
];

fn first<T>(typed: Option<T>, argument: &'static str, held: Option<T>, default: T) -> Said<T> {
    match (typed, held) {
        (Some(what), _) => Said { what, by: By::Argument(argument) },
        (None, Some(what)) => Said { what, by: By::Profile },
        (None, None) => Said { what: default, by: By::Default },
    }
}

fn one_of(url: Option<String>, database_url: Option<String>) -> Result<Option<Target>, Failure> {
    match (url, database_url) {
        (Some(_), Some(_)) => {
            Err(Failure::usage("a service or a database is asked: --url or --database-url"))
        }
        (Some(url), None) => Ok(Some(Target::Service(url))),
        (None, url) => Ok(url.map(Target::Database)),
    }
}

/// Where programs keep their settings.
fn folder(env: &Env<'_>) -> Option<PathBuf> {
    let folder = |name| env(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let home = || folder("HOME").map(|home| home.join(".config"));
    folder("XDG_CONFIG_HOME").or_else(home).or_else(|| folder("APPDATA"))
}

/// The profile that counts, and what it holds. One that is named has to be there.
fn profile(
    file: Option<&Path>,
    named: Option<Said<String>>,
) -> Result<(Option<Said<String>>, Profile), Failure> {
    let none = |at: &str| match &named {
        Some(name) => {
            Err(Failure::usage(format!("there is no profile {:?}{at}", plain(&name.what))))
        }
        None => Ok((None, Profile::default())),
    };
    let Some(file) = file else { return none(": no folder for settings is known") };
    let read = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return none(&format!(": there is no file {}", file.display()));
        }
        read => read,
    };
    let told = |what: String| Failure::usage(format!("{}: {what}", file.display()));
    let text = read.map_err(|error| told(error.to_string()))?;
    let mut all: Table = text.parse().map_err(|error: toml::de::Error| {
        // Its own text would show the line, and so perhaps a token.
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        told(format!("line {line}: {}", error.message()))
    })?;
    // Also if the secret is in another section than the one that counts: the others may read it all the same.
    if all.values().any(has_a_secret) && is_for_others(file) {
        return Err(told("others may read it, and it has a secret: chmod 600".to_owned()));
    }
    let name = named.as_ref().map_or(DEFAULT, |name| &name.what);
    let Some(section) = all.remove(name) else {
        return none(&format!(" in {}", file.display()));
    };
    let toml::Value::Table(section) = section else {
        return Err(told(format!("{:?} is not a section", plain(name))));
    };
    let held = Profile::of(section).map_err(|what| told(format!("[{}] {what}", plain(name))))?;
    let named = named.unwrap_or_else(|| Said { what: DEFAULT.to_owned(), by: By::Default });
    Ok((Some(named), held))
}

impl Profile {
    /// Or what is wrong, without a value.
    fn of(section: Table) -> Result<Self, String> {
        let (mut held, mut url, mut database_url) = (Self::default(), None, None);
        for (name, value) in section {
            let is_none = |kind| format!("`{name}` is not a {kind}");
            let text = || value.as_str().map(ToOwned::to_owned).ok_or_else(|| is_none("text"));
            match name.as_str() {
                "url" => url = Some(text()?),
                "database-url" => database_url = Some(text()?),
                "token" => held.token = Some(text()?),
                "as" => held.name = Some(text()?),
                "timeout" => {
                    let seconds = value.as_integer().and_then(|number| u64::try_from(number).ok());
                    let seconds = seconds.filter(|seconds| SECONDS.contains(seconds));
                    let of_a_day = || is_none("number of seconds, a day at most");
                    let seconds = seconds.ok_or_else(of_a_day)?;
                    held.timeout = Some(Duration::from_secs(seconds));
                }
                "format" => {
                    let format = Format::from_str(&text()?, false);
                    held.format = Some(format.map_err(|_| is_none("format"))?);
                }
                _ => {
                    return Err(format!(
                        "`{}` is none of url, database-url, token, as, timeout, format",
                        plain(&name)
                    ));
                }
            }
        }
        held.target = one_of(url, database_url)
            .map_err(|_| "names a service and a database: one is asked".to_owned())?;
        Ok(held)
    }
}

/// Whether a section has what opens something, whatever else is wrong with it.
fn has_a_secret(section: &toml::Value) -> bool {
    let value = |name: &str| section.get(name);
    let mut urls = ["url", "database-url"].into_iter().filter_map(|name| value(name)?.as_str());
    value("token").is_some() || urls.any(|url| without_password(url) != url)
}

#[cfg(unix)]
fn is_for_others(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_for_others(_: &Path) -> bool {
    false
}

/// A URL without what may be a secret: a password, and the parameters behind it. A text that is not a URL may have one
/// anywhere (`host=db password=…`).
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    if scheme == "sqlite" {
        return url.to_owned();
    }
    let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    match place.rsplit_once('@') {
        // The password may contain a `?`, so its end is not known.
        _ if parameters.contains('@') => format!("{scheme}://…"),
        // The user name in the address of a service may be a token.
        Some((_, host)) if scheme.starts_with("http") => format!("{scheme}://…@{host}"),
        Some((user, host)) => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}@{host}")
        }
        None => format!("{scheme}://{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these profiles, and an environment that names it.
    struct ProfileFolder {
        folder: tempfile::TempDir,
        variables: Vec<(&'static str, String)>,
    }

    impl ProfileFolder {
        fn with(profiles: &str, variables: &[(&'static str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("atomic-phases/profiles.toml");
            std::fs::create_dir(file.parent().unwrap()).unwrap();
            std::fs::write(&file, profiles).unwrap();
            let it = Self {
                variables: variables
                    .iter()
                    .map(|(name, value)| (*name, (*value).to_owned()))
                    .collect(),
                folder,
            };
            it.mode(0o600);
            it
        }

        fn mode(&self, mode: u32) {
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                let file = self.folder.path().join("atomic-phases/profiles.toml");
                std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }

        fn of(&self, way: Way) -> Result<Settings, Failure> {
            let output = Output { format: None, timeout: None };
            Settings::of(&way, &output, &|name| match name {
                "XDG_CONFIG_HOME" => Some(self.folder.path().display().to_string()),
                name => {
                    self.variables.iter().find(|(one, _)| *one == name).map(|(_, it)| it.clone())
                }
            })
        }

        fn refused(&self, way: Way) -> String {
            let failure = self.of(way).err().unwrap();
            assert_eq!(failure.end, End::Usage);
            failure.text
        }
    }

    fn named(profile: &str) -> Way {
        Way { profile: Some(profile.to_owned()), ..Way::default() }
    }

    const PROFILES: &str = "[production]\nurl = 'https://example.com/ops'\ntoken = 'sesame'\n\
        timeout = 60\nformat = 'jsonl'\n[staging]\ndatabase-url = 'postgres://ada:pw@host/db'\nas = 'ada'\n";

    #[test]
    fn arguments_count_before_the_environment_and_that_before_a_profile() {
        let folder = ProfileFolder::with(PROFILES, &[("USER", "bob")]);
        let settings = folder.of(named("production")).ok().unwrap();
        let service = Target::Service("https://example.com/ops".to_owned());
        assert_eq!(settings.target().ok(), Some(&service));
        assert_eq!((settings.token(), settings.name()), (Some("sesame"), Some("bob")));
        assert_eq!(settings.timeout(), Duration::from_secs(60));
        assert!(settings.format() == Format::Jsonl);
        let settings = folder.of(named("staging")).ok().unwrap();
        assert_eq!((settings.name(), settings.timeout()), (Some("ada"), TIMEOUT));

        let folder = ProfileFolder::with(
            PROFILES,
            &[("ATOMIC_PHASES_PROFILE", "production"), ("ATOMIC_PHASES_TOKEN", "open")],
        );
        let settings = folder.of(Way::default()).ok().unwrap();
        assert_eq!(settings.token(), Some("open"));
        let typed = Way { token: Some("typed".to_owned()), ..Way::default() };
        assert_eq!(folder.of(typed).ok().unwrap().token(), Some("typed"));
        // What is said at one place replaces what is said behind it.
        let other = Way { database_url: Some("sqlite://x.db".to_owned()), ..Way::default() };
        let other = folder.of(other).ok().unwrap();
        assert_eq!(other.target().ok(), Some(&Target::Database("sqlite://x.db".to_owned())));
    }

    #[test]
    fn a_profiles_token_goes_to_the_profiles_service_and_nowhere_else() {
        let folder = ProfileFolder::with(PROFILES, &[("ATOMIC_PHASES_PROFILE", "production")]);
        let way = Way { url: Some("https://elsewhere.example".to_owned()), ..Way::default() };
        assert_eq!(folder.of(way).ok().unwrap().token(), None);
        let elsewhere = [("ATOMIC_PHASES_URL", "https://elsewhere.example")];
        let folder = ProfileFolder::with(PROFILES, &elsewhere);
        assert_eq!(folder.of(named("production")).ok().unwrap().token(), None);
    }

    #[test]
    fn the_profile_default_counts_where_none_is_named() {
        let folder = ProfileFolder::with("[default]\nurl = 'http://localhost:1'\n", &[]);
        let settings = folder.of(Way::default()).ok().unwrap();
        assert_eq!(settings.target().ok(), Some(&Target::Service("http://localhost:1".to_owned())));
        assert!(folder.refused(named("other")).contains("no profile \"other\" in "));
        let folder = ProfileFolder::with("", &[]);
        assert!(folder.of(Way::default()).ok().unwrap().target().is_err());
    }

    #[test]
    fn what_is_wrong_with_a_profile_is_told_without_its_values() {
        for (profiles, wrong) in [
            ("[a]\nurl = 'x'\ntoken = 'sesame\n", "line 3: "),
            ("[a]\ntoken = 1234567\n", "[a] `token` is not a text"),
            ("[a]\ntokn = 'sesame'\n", "`tokn` is none of url"),
            ("[a]\nurl = 'x'\ndatabase-url = 'sesame'\n", "one is asked"),
            ("[a]\ntimeout = -1\n", "not a number of seconds, a day at most"),
            ("[a]\ntimeout = 0\n", "not a number of seconds, a day at most"),
            ("[a]\ntimeout = 86401\n", "not a number of seconds, a day at most"),
            ("[a]\nformat = 'sesame'\n", "`format` is not a format"),
            ("a = 'sesame'\n", "\"a\" is not a section"),
        ] {
            let told = ProfileFolder::with(profiles, &[]).refused(named("a"));
            assert!(told.contains(wrong), "{told}");
            assert!(!told.contains("sesame") && !told.contains("1234567"), "{told}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let folder = ProfileFolder::with(PROFILES, &[]);
        folder.mode(0o640);
        for profile in ["production", "staging"] {
            assert!(folder.refused(named(profile)).contains("chmod 600"), "{profile}");
        }
        // The secret is not in the section that counts, or none counts.
        for other in ["[a]\nurl = 'https://example.com/ops'\n", "[default]\nas = 'ada'\n", ""] {
            let folder = ProfileFolder::with(&format!("{other}{PROFILES}"), &[]);
            folder.mode(0o644);
            let way = if other.starts_with("[a]") { named("a") } else { Way::default() };
            assert!(folder.refused(way).contains("chmod 600"), "{other}");
        }
        let folder = ProfileFolder::with("[a]\ndatabase-url = 'postgres://ada@host/db'\n", &[]);
        folder.mode(0o644);
        assert!(folder.of(named("a")).is_ok(), "it has none");
    }

    #[test]
    fn what_holds_is_told_without_token_and_password() {
        for (profile, url) in
            [("production", "https://example.com/ops"), ("staging", "postgres://ada@host/db")]
        {
            let folder = ProfileFolder::with(PROFILES, &[("ATOMIC_PHASES_PROFILE", profile)]);
            let settings = folder.of(Way::default()).ok().unwrap();
            let told = Value::from(settings.rows()).to_string();
            assert!(!told.contains("sesame") && !told.contains(":pw"), "{told}");
            assert!(told.contains(url) && told.contains("ATOMIC_PHASES_PROFILE"), "{told}");
        }
        for (url, told) in [
            ("postgres://u:p@ss/w:d@host/db?sslmode=require", "postgres://u@host/db"),
            ("postgres://host/db?user=u&password=sesame", "postgres://host/db"),
            ("postgres://u:ses?ame@host/db", "postgres://…"),
            ("postgres://u:a@sesame?x@host/db", "postgres://…"),
            ("https://sesame@host/ops", "https://…@host/ops"),
            ("mysql://host", "mysql://host"),
            ("host=db password=sesame", "…"),
            ("sqlite:///a@b/c?.db", "sqlite:///a@b/c?.db"),
        ] {
            assert_eq!(without_password(url), told);
        }
    }
}
