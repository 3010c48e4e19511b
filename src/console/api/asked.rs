//! [`Asked`]: what a request brings, read strictly: a member that is not known is refused, because it may be
//! a condition that was misspelt, and a list without it would be another.

use std::fmt;
use std::time::Duration;

use axum::body::Bytes;
use http::header::{CONTENT_TYPE, IF_MATCH};
use http::request::Parts;
use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::problem::{Kind, Problem};
use crate::engine::Resolution;
use crate::key::Scope;
use crate::ops::{BulkAct, Filter, Planned, Selection, State};
use crate::phase::Reply;

/// A request of an operator who was let in.
pub(super) struct Asked {
    /// Of the path, in order.
    pub(super) params: Vec<String>,
    pub(super) head: Parts,
    pub(super) body: Bytes,
}

impl Asked {
    /// The id in the path. What is none names nothing that there is.
    pub(super) fn id(&self, no_such: Kind) -> Result<Uuid, Problem> {
        // Of a router that is nested under a path with parameters of its own, ours is the last.
        let id = self.params.last().and_then(|id| Uuid::parse_str(id).ok());
        let detail = "What was asked for is not an id: one has 36 characters, as each list has it.";
        id.ok_or_else(|| Problem::new(no_such, detail))
    }

    pub(super) fn query<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let query = self.head.uri.query().unwrap_or_default();
        serde_urlencoded::from_str(query)
            .map_err(|error| Problem::new(Kind::Malformed, format!("The query: {error}.")))
    }

    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let media = self.head.headers.get(CONTENT_TYPE).and_then(|line| line.to_str().ok());
        let media = media.and_then(|line| line.split(';').next()).map(str::trim);
        if !media.is_some_and(|media| media.eq_ignore_ascii_case("application/json")) {
            return Err(Problem::of(Kind::MediaType));
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            let why = without_value(&error.to_string());
            Problem::new(Kind::Malformed, format!("The body: {why}."))
        })
    }

    /// The version of the row as the operator saw it. An act without one would be about whatever is there.
    pub(super) fn version(&self) -> Result<&str, Problem> {
        self.version_if_any()?.ok_or_else(|| Problem::of(Kind::NoVersion))
    }

    /// The same for an act that may be about what is not there yet.
    pub(super) fn version_if_any(&self) -> Result<Option<&str>, Problem> {
        let Some(line) = self.head.headers.get(IF_MATCH) else { return Ok(None) };
        let quoted = line.to_str().ok().map(str::trim);
        let quoted = quoted.and_then(|line| line.strip_prefix('"')?.strip_suffix('"'));
        // A proxy that compresses answers makes their tags weak. By RFC 9110, 13.1.1, a weak tag matches nothing.
        let version = quoted.filter(|version| !version.contains('"')).ok_or_else(|| {
            let why = "If-Match: one version, in quotes, as the body has it. A tag that begins with W/ was \
                       made weak by a proxy.";
            Problem::new(Kind::Malformed, why.to_owned())
        });
        version.map(Some)
    }
}

/// What serde says of a member of another type, without the value that it quotes: it may be a key (G19). What else it
/// quotes are names, and a word where a known one is due.
fn without_value(error: &str) -> String {
    let told = ["invalid type: ", "invalid value: "].into_iter().find_map(|kind| {
        let (found, expected) = error.strip_prefix(kind)?.rsplit_once(", expected ")?;
        let of = found.split(['`', '"']).next()?.trim_end();
        Some(format!("{kind}{of}, expected {expected}"))
    });
    told.unwrap_or_else(|| error.to_owned())
}

/// Which requests to list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct Wanted {
    state: States,
    definition: Option<String>,
    version: Option<u32>,
    phase: Option<String>,
    reason: Option<String>,
    older_than: Option<Ago>,
    waiting_for: Option<Ago>,
    stranded: bool,
    /// In a body only: what is in a URL is in the logs of every proxy.
    scope: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

impl Wanted {
    pub(super) fn tells_scope(&self) -> bool {
        self.scope.is_some()
    }

    pub(super) fn filter(self) -> Result<Filter, Problem> {
        let mut filter = Filter::new().states(self.state.0);
        if self.stranded {
            filter = filter.stranded();
        }
        if let Some(scope) = self.scope {
            let scope = Scope::new(scope)
                .map_err(|error| Problem::new(Kind::Invalid, error.to_string()))?;
            filter = filter.scope(&scope);
        }
        match (self.definition, self.version) {
            (Some(name), version) => filter = filter.definition(name, version),
            (None, None) => {}
            (None, Some(_)) => {
                return Err(Problem::new(
                    Kind::Invalid,
                    "A version is one of a definition: say which.",
                ));
            }
        }
        if let Some(phase) = self.phase {
            filter = filter.phase(phase);
        }
        if let Some(reason) = self.reason {
            filter = filter.reason(reason);
        }
        if let Some(Ago(age)) = self.older_than {
            filter = filter.older_than(age);
        }
        if let Some(Ago(time)) = self.waiting_for {
            filter = filter.waiting_for(time);
        }
        if let Some(rows) = self.limit {
            filter = filter.page(rows);
        }
        Ok(match self.cursor {
            Some(cursor) => filter.after(cursor.parse()?),
            None => filter,
        })
    }
}

/// Which requests a bulk act is about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bulk {
    act: String,
    filter: Option<Wanted>,
    requests: Option<Vec<Uid>>,
    /// What was planned, as the plan told it; of a start, with its reason.
    pub(super) planned: Option<PlannedAs>,
    pub(super) reason: Option<String>,
}

/// A plan, by its count or by its version.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum PlannedAs {
    Count(u32),
    Version(String),
}

impl From<PlannedAs> for Planned {
    fn from(planned: PlannedAs) -> Self {
        match planned {
            PlannedAs::Count(count) => Self::Count(count),
            PlannedAs::Version(version) => Self::Version(version.as_str().into()),
        }
    }
}

impl Bulk {
    pub(super) fn act(&self) -> Result<BulkAct, Problem> {
        BulkAct::named(&self.act).ok_or_else(|| {
            let known = BulkAct::ALL.map(BulkAct::as_str).join(", ");
            Problem::new(Kind::Invalid, format!("What can be done in bulk is {known}."))
        })
    }

    pub(super) fn selection(self) -> Result<Selection, Problem> {
        match (self.filter, self.requests) {
            (Some(filter), None) if filter.limit.is_some() || filter.cursor.is_some() => {
                Err(Problem::new(
                    Kind::Invalid,
                    "A bulk act is about a whole list: leave out `limit` and `cursor`.",
                ))
            }
            (Some(filter), None) => Ok(Selection::Filter(filter.filter()?)),
            (None, Some(ids)) => Ok(Selection::Requests(ids.into_iter().map(|id| id.0).collect())),
            _ => Err(Problem::new(Kind::Invalid, "Say `filter` or `requests`.")),
        }
    }
}

/// States: a JSON array of names, or names with commas between them.
#[derive(Default)]
struct States(Vec<State>);

impl<'de> Deserialize<'de> for States {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = States;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names of states")
            }

            fn visit_str<E: Error>(self, names: &str) -> Result<States, E> {
                let names = names.split(',').filter(|name| !name.is_empty());
                names.map(state).collect::<Result<_, _>>().map(States)
            }

            fn visit_seq<Q: SeqAccess<'de>>(self, mut names: Q) -> Result<States, Q::Error> {
                let mut states = Vec::new();
                while let Some(name) = names.next_element::<String>()? {
                    states.push(state(&name)?);
                }
                Ok(States(states))
            }
        }

        deserializer.deserialize_any(Names)
    }
}

fn state<E: Error>(name: &str) -> Result<State, E> {
    let known = State::ALL.into_iter().find(|state| state.as_str() == name);
    known.ok_or_else(|| {
        let known = State::ALL.map(State::as_str).join(", ");
        E::custom(format_args!("a state is one of {known}"))
    })
}

/// How long ago: `90s`, `15m`, `2h`, `7d`.
pub(super) struct Ago(pub(super) Duration);

impl<'de> Deserialize<'de> for Ago {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        ago(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom("a time is a number and s, m, h or d: 15m"))
    }
}

fn ago(text: &str) -> Option<Duration> {
    let unit = match text.chars().next_back()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u32 = text.get(..text.len() - 1)?.parse().ok()?;
    Some(Duration::from_secs(u64::from(number) * unit))
}

/// Which staged jobs to list.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JobState {
    #[default]
    Dead,
    Late,
}

/// A place in a list of jobs, and their state.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Jobs {
    #[serde(default)]
    pub(super) state: JobState,
    pub(super) limit: Option<u32>,
    pub(super) cursor: Option<String>,
}

/// A place in a list of bulk acts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    pub(super) limit: Option<u32>,
    pub(super) cursor: Option<String>,
}

/// A place in the audit, and filters: the request, the actor and the act.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Audited {
    pub(super) request: Option<Uid>,
    pub(super) actor: Option<String>,
    pub(super) act: Option<String>,
    pub(super) limit: Option<u32>,
    pub(super) cursor: Option<String>,
}

/// A request's id.
pub(super) struct Uid(pub(super) Uuid);

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Uuid::parse_str(&text).map(Self).map_err(|_| D::Error::custom("an id is a UUID"))
    }
}

/// Which request, by what its client knows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sought {
    pub(super) scope: String,
    pub(super) key: String,
}

/// Which value, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reveal {
    pub(super) what: String,
    pub(super) reason: String,
}

/// Which phase is to be paused, for how long, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paused {
    pub(super) definition: String,
    pub(super) phase: String,
    #[serde(rename = "for")]
    pub(super) length: Option<Ago>,
    pub(super) reason: String,
}

/// Whose pause is to end, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Unpaused {
    pub(super) definition: String,
    pub(super) phase: String,
    pub(super) reason: String,
}

/// Why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Because {
    pub(super) reason: String,
}

/// A word about a request that waits for one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Told {
    word: ResolutionKind,
    phase: Option<String>,
    /// As it came, digit by digit. `null` is an output, too.
    #[serde(default, deserialize_with = "as_it_came")]
    output: Option<Box<RawValue>>,
    attempt: Option<u32>,
    reply: Option<Replied>,
    pub(super) reason: String,
}

fn as_it_came<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResolutionKind {
    Executed,
    NotExecuted,
    Finish,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replied {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    body: String,
}

impl Told {
    /// The word, if it has what belongs to it and nothing else.
    pub(super) fn resolution(&self) -> Result<Resolution, Problem> {
        let Self { word, phase, output, attempt, reply, .. } = self;
        match (word, phase, output, attempt, reply) {
            (ResolutionKind::Executed, Some(phase), Some(output), None, None) => {
                Ok(Resolution::executed(phase, output).map_err(crate::ops::OpsError::from)?)
            }
            (ResolutionKind::NotExecuted, Some(phase), None, Some(attempt), None) => {
                Ok(Resolution::not_executed(phase, *attempt))
            }
            (ResolutionKind::Finish, None, None, None, Some(reply)) => {
                let body = Reply::new(reply.status).body(reply.body.as_bytes());
                let lines = reply.headers.iter();
                let whole = lines.fold(body, |reply, (name, value)| reply.header(name, value));
                Ok(Resolution::finish(whole))
            }
            _ => Err(Problem::new(
                Kind::Invalid,
                "`executed` takes `phase` and `output`, `not_executed` takes `phase` and `attempt`, \
                 `finish` takes `reply`.",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        let secs = |text| ago(text).map(|time| time.as_secs());
        assert_eq!(
            ["90s", "15m", "2h", "7d", "0s"].map(secs),
            [Some(90), Some(900), Some(7200), Some(604_800), Some(0)]
        );
        for bad in ["", "s", "15", "-1s", "1.5h", "1 h", "99999999999s", "1ä", "ms"] {
            assert_eq!(ago(bad), None, "{bad}");
        }
    }

    #[test]
    fn g19_what_is_of_another_type_is_told_without_its_value() {
        let told = |body: &str| {
            let error = serde_json::from_str::<Sought>(body).err().unwrap();
            without_value(&error.to_string())
        };
        let number = told(r#"{"scope":"a","key":4711}"#);
        assert!(
            number.starts_with("invalid type: integer, expected a string at line 1"),
            "{number}"
        );
        for body in [r#"{"scope":"a","key":4711.5}"#, r#""4711, expected 4711""#, "[4711, 1]"] {
            assert!(!told(body).contains("4711"), "{}", told(body));
        }
        let name = told(r#"{"scope":"a","keys":"x"}"#);
        assert!(name.starts_with("unknown field `keys`, expected"), "{name}");
    }

    #[test]
    fn a_filter_that_is_misspelt_is_none() {
        let of = |query: &str| serde_urlencoded::from_str::<Wanted>(query).is_ok();
        assert!(
            of("") && of("state=unknown,dead_letter&stranded=true&limit=5&older_than=2h&version=3")
        );
        for bad in ["states=unknown", "state=stuck", "limit=-1", "older_than=soon", "stranded=yes"]
        {
            assert!(!of(bad), "{bad}");
        }
        let json = |text: &str| serde_json::from_str::<Wanted>(text).is_ok();
        assert!(json(r#"{"state":["unknown"],"scope":"a"}"#) && json(r#"{"state":"unknown,due"}"#));
        assert!(!json(r#"{"scopes":"a"}"#) && !json(r#"{"state":["stuck"]}"#));
    }

    #[test]
    fn a_word_has_what_belongs_to_it_and_nothing_else() {
        let takes = |body: &str| serde_json::from_str::<Told>(body).unwrap().resolution().is_ok();
        assert!(takes(r#"{"word":"executed","phase":"p","output":null,"reason":"r"}"#));
        assert!(takes(r#"{"word":"not_executed","phase":"p","attempt":1,"reason":"r"}"#));
        assert!(takes(r#"{"word":"finish","reply":{"status":200},"reason":"r"}"#));
        assert!(!takes(r#"{"word":"executed","phase":"p","reason":"r"}"#));
        assert!(!takes(
            r#"{"word":"not_executed","phase":"p","attempt":1,"output":1,"reason":"r"}"#
        ));
        assert!(!takes(r#"{"word":"finish","phase":"p","reply":{"status":200},"reason":"r"}"#));
        assert!(serde_json::from_str::<Told>(r#"{"word":"retry","reason":"r"}"#).is_err());
    }
}
