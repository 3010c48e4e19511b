//! The lock file's text: TOML, written by hand so that the same lock has the same bytes, whatever
//! versions of libraries are used, and read by the `toml` crate, so that it may be edited.

use std::fmt::Write;
use std::time::Duration;

use serde::Deserialize;

use crate::lock::{Effect, Lock, LockError, Locked, LockedJob, Output, RequestSample, State};
use crate::shape::{Shape, Types};

const FORMAT: u32 = 1;

const HEADER: &str = "\
# Written by `ATOMIC_PHASES_LOCK=update cargo test`. Review it like a migration: rows in flight, clients'
# retries and providers depend on what is in it.
";

pub(crate) fn write(lock: &Lock) -> String {
    let mut out = HEADER.to_owned();
    let state = match &lock.state {
        State::Current => "state = \"current\"".to_owned(),
        State::Draining => "state = \"draining\"".to_owned(),
        State::Retired(since) => format!("state = \"retired\"\nretired = {}", quoted(since)),
    };
    let _ = write!(
        out,
        "format = {FORMAT}\ndefinition = {}\nversion = {}\n{state}\n\n[request]\nshape = {}\n",
        quoted(&lock.definition),
        lock.version,
        quoted(&lock.request.to_string()),
    );
    for sample in &lock.request_samples {
        let _ = write!(
            out,
            "\n[[request.sample]]\njson = {}\nfingerprint = {}\n",
            quoted(&sample.json),
            quoted(&sample.fingerprint),
        );
    }
    for phase in &lock.phases {
        write_phase(&mut out, phase);
    }
    for LockedJob { name, args, samples } in &lock.jobs {
        let (name, args) = (quoted(name), quoted(&args.to_string()));
        let _ = write!(out, "\n[[job]]\nname = {name}\nargs = {args}\n");
        write_samples(&mut out, samples);
    }
    if !lock.types.is_empty() {
        out.push_str("\n[types]\n");
        for (name, shape) in &lock.types {
            let _ = writeln!(out, "{name} = {}", quoted(&shape.to_string()));
        }
    }
    out
}

fn write_phase(out: &mut String, phase: &Locked) {
    let _ = write!(out, "\n[[phase]]\nname = {}\n", quoted(&phase.name));
    if !phase.was.is_empty() {
        let names: Vec<_> = phase.was.iter().map(|name| quoted(name)).collect();
        let _ = writeln!(out, "was = [{}]", names.join(", "));
    }
    let effect = match phase.effect {
        Effect::Local => "kind = \"local\"\n".to_owned(),
        Effect::AtMostOnce => "kind = \"foreign\"\neffect = \"at_most_once\"\n".to_owned(),
        Effect::Idempotent { window } => {
            let window = window.map_or_else(String::new, |window| {
                format!("window = {}\n", quoted(&shown(window)))
            });
            format!("kind = \"foreign\"\neffect = \"idempotent\"\n{window}")
        }
    };
    out.push_str(&effect);
    if phase.effect.is_foreign() {
        let _ = writeln!(out, "provider_key = {}", quoted(phase.provider_key()));
    }
    if let Some(derived) = &phase.derived {
        let _ = writeln!(out, "derived = {}", quoted(derived));
    }
    match &phase.output {
        Output::Reply => out.push_str("output = \"reply\"\n"),
        Output::Value { shape, samples } => {
            let _ = writeln!(out, "output = {}", quoted(&shape.to_string()));
            write_samples(out, samples);
        }
    }
}

fn write_samples(out: &mut String, samples: &[String]) {
    if !samples.is_empty() {
        out.push_str("samples = [\n");
        for sample in samples {
            let _ = writeln!(out, "    {},", quoted(sample));
        }
        out.push_str("]\n");
    }
}

/// In single quotes where that needs no escape: JSON stays readable.
fn quoted(text: &str) -> String {
    let has_double = text.contains(['"', '\\']);
    if has_double && !text.contains('\'') && !text.chars().any(char::is_control) {
        return format!("'{text}'");
    }
    let mut out = String::from('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            char if char.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push('"');
    out
}

/// In the largest unit that needs no fraction.
pub(crate) fn shown(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, name) in [(3_600_000, "h"), (60_000, "m"), (1000, "s")] {
        if millis > 0 && millis.is_multiple_of(unit) {
            return format!("{}{name}", millis / unit);
        }
    }
    format!("{millis}ms")
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|char: char| !char.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let millis = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "format")]
    _format: u32,
    definition: String,
    version: u32,
    state: String,
    retired: Option<String>,
    request: FileRequest,
    phase: Vec<FilePhase>,
    #[serde(default)]
    job: Vec<FileJob>,
    #[serde(default)]
    types: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRequest {
    shape: String,
    #[serde(default)]
    sample: Vec<FileSample>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSample {
    json: String,
    fingerprint: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePhase {
    name: String,
    #[serde(default)]
    was: Vec<String>,
    kind: String,
    effect: Option<String>,
    window: Option<String>,
    provider_key: Option<String>,
    derived: Option<String>,
    output: String,
    #[serde(default)]
    samples: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJob {
    name: String,
    args: String,
    #[serde(default)]
    samples: Vec<String>,
}

#[derive(Deserialize)]
struct Head {
    format: u32,
}

pub(crate) fn parse(text: &str) -> Result<Lock, LockError> {
    let error = |error: toml::de::Error| {
        let line = error.span().map(|span| text[..span.start].lines().count().max(1));
        LockError(match line {
            Some(line) => format!("line {line}: {}", error.message()),
            None => error.message().to_owned(),
        })
    };
    let head: Head = toml::from_str(text).map_err(error)?;
    if head.format != FORMAT {
        return Err(LockError(format!(
            "it has format {}, and this version of atomic-phases reads format {FORMAT}",
            head.format
        )));
    }
    let file: File = toml::from_str(text).map_err(error)?;
    let state = match (file.state.as_str(), file.retired) {
        ("current", None) => State::Current,
        ("draining", None) => State::Draining,
        ("retired", Some(since)) => State::Retired(since),
        _ => {
            return Err(LockError(
                "`state` is \"current\", \"draining\", or \"retired\" with `retired = \"date\"`"
                    .to_owned(),
            ));
        }
    };
    let mut types = Types::new();
    for (name, text) in file.types {
        let shape = shape(&text)?;
        types.insert(name, shape);
    }
    refuse_cycles(&types)?;
    let request_samples = file.request.sample.into_iter();
    Ok(Lock {
        definition: file.definition,
        version: file.version,
        state,
        request: shape(&file.request.shape)?,
        request_samples: request_samples
            .map(|FileSample { json, fingerprint }| RequestSample { json, fingerprint })
            .collect(),
        phases: file.phase.into_iter().map(phase).collect::<Result<_, _>>()?,
        jobs: file.job.into_iter().map(job).collect::<Result<_, _>>()?,
        types,
    })
}

fn job(FileJob { name, args, samples }: FileJob) -> Result<LockedJob, LockError> {
    Ok(LockedJob { name, args: shape(&args)?, samples })
}

fn shape(text: &str) -> Result<Shape, LockError> {
    text.parse().map_err(|error: crate::ShapeError| LockError(error.message))
}

/// A type that is nothing but another name for itself would be looked up for ever.
fn refuse_cycles(types: &Types) -> Result<(), LockError> {
    for name in types.keys() {
        let mut at = name;
        let mut steps = 0;
        while let Some(shape) = types.get(at) {
            let mut inner = shape;
            while let Shape::Option(shape) = inner {
                inner = shape;
            }
            let Shape::Named(next) = inner else { break };
            at = next;
            steps += 1;
            if steps > types.len() {
                return Err(LockError(format!("the type {name} is defined by itself")));
            }
        }
    }
    Ok(())
}

fn phase(file: FilePhase) -> Result<Locked, LockError> {
    let wrong = |what: &str| LockError(format!("phase {}: {what}", file.name));
    let window = match &file.window {
        None => None,
        Some(text) => {
            Some(duration(text).ok_or_else(|| wrong("`window` is a time such as \"24h\""))?)
        }
    };
    let effect = match (file.kind.as_str(), file.effect.as_deref(), window) {
        ("local", None, None) => Effect::Local,
        ("foreign", Some("idempotent"), window) => Effect::Idempotent { window },
        ("foreign", Some("at_most_once"), None) => Effect::AtMostOnce,
        _ => {
            return Err(wrong(
                "`kind` is \"local\", or \"foreign\" with `effect` \"idempotent\" (and a `window`) or \"at_most_once\"",
            ));
        }
    };
    let output = match file.output.as_str() {
        "reply" => Output::Reply,
        text => Output::Value { shape: shape(text)?, samples: file.samples.clone() },
    };
    let phase = Locked {
        name: file.name.clone(),
        was: file.was.clone(),
        effect,
        derived: file.derived.clone(),
        output,
    };
    let provider_key = effect.is_foreign().then(|| phase.provider_key());
    if file.provider_key.as_deref() != provider_key {
        return Err(wrong("`provider_key` is the oldest of its names, on a foreign phase"));
    }
    Ok(phase)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const FILE: &str = r#"# Written by `ATOMIC_PHASES_LOCK=update cargo test`. Review it like a migration: rows in flight, clients'
# retries and providers depend on what is in it.
format = 1
definition = "rides.create"
version = 2
state = "current"

[request]
shape = "{origin: Point, user_id: i64, note?: str?}"

[[request.sample]]
json = '{"origin":{"lat":0.5,"lon":0.5},"user_id":1,"note":null}'
fingerprint = "v1:6f1c"

[[phase]]
name = "ride_created"
kind = "local"
output = "{id: i64}"
samples = [
    '{"id":1}',
    '{"id":-1}',
]

[[phase]]
name = "charge_made"
was = ["charged", "charge_created"]
kind = "foreign"
effect = "idempotent"
window = "24h"
provider_key = "charge_created"
derived = "kJ3"
output = "{id: str}"
samples = [
    "{\"id\":\"it's\"}",
]

[[phase]]
name = "pilot_called"
kind = "foreign"
effect = "at_most_once"
provider_key = "pilot_called"
output = "null"

[[phase]]
name = "receipt_staged"
kind = "local"
output = "reply"

[[job]]
name = "send_receipt"
args = "{ride: str}"
samples = [
    '{"ride":""}',
]

[types]
Point = "{lat: f64, lon: f64}"
"#;

    #[test]
    fn a_file_that_is_read_and_written_has_the_same_bytes() {
        let lock = Lock::parse(FILE).unwrap();
        assert_eq!(lock.phases[1].provider_key(), "charge_created");
        assert_eq!(lock.to_toml(), FILE);
        for state in [State::Draining, State::Retired("2026-11-20".into())] {
            let lock = Lock { state, ..lock.clone() };
            assert_eq!(Lock::parse(&lock.to_toml()), Ok(lock));
        }
    }

    #[test]
    fn what_is_no_lock_file_is_refused_with_the_reason() {
        for (from, to, because) in [
            ("format = 1", "format = 2", "format 2"),
            ("version = 2", "version = \"2\"", "line 5"),
            ("state = \"current\"", "state = \"old\"", "state"),
            ("\"24h\"", "\"24\"", "window"),
            ("effect = \"at_most_once\"\n", "", "kind"),
            ("provider_key = \"charge_created\"", "provider_key = \"charged\"", "provider_key"),
            ("lon: f64}\"", "lon f64}\"", "a shape has"),
            ("Point = \"{lat: f64, lon: f64}\"", "Point = \"Point?\"", "defined by itself"),
            ("derived", "derivd", "derivd"),
        ] {
            let text = FILE.replacen(from, to, 1);
            assert_ne!(text, FILE, "{from}");
            let error = Lock::parse(&text).unwrap_err().to_string();
            assert!(error.contains(because), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn a_time_comes_back_from_its_text() {
        for millis in [0, 1, 1000, 60_000, 90_000, 86_400_000, 1_500] {
            let time = Duration::from_millis(millis);
            assert_eq!(duration(&shown(time)), Some(time));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_string_comes_back(text in "\\PC{0,20}|[\"'\\\\\n\t\u{1}a]{0,9}") {
            let file = format!("a = {}", quoted(&text));
            let table: toml::Table = file.parse().unwrap();
            proptest::prop_assert_eq!(table["a"].as_str(), Some(text.as_str()));
        }
    }
}
