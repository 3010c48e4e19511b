//! From a file to its lock.

use std::time::Duration;

use serde::Deserialize;

use super::FORMAT;
use crate::lock::{Effect, Lock, LockError, Locked, LockedJob, Output, RequestSample, State};
use crate::shape::{Shape, Types};

pub(super) fn duration(text: &str) -> Option<Duration> {
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
    #[serde(default)]
    reconciles: bool,
    derived: Option<String>,
    output: String,
    asked_by: Option<Vec<String>>,
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
            "it has format {}, and this version of atomic-phases reads format {FORMAT}: use the version that wrote it",
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
    let request_samples = file.request.sample.into_iter();
    let lock = Lock {
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
    };
    let outputs = lock.phases.iter().filter_map(|phase| match &phase.output {
        Output::Value { shape, .. } => Some(shape),
        Output::Reply => None,
    });
    let args = lock.jobs.iter().map(|job| &job.args);
    refuse_bad_names(&lock.types, outputs.chain(args).chain([&lock.request]))?;
    Ok(lock)
}

fn job(FileJob { name, args, samples }: FileJob) -> Result<LockedJob, LockError> {
    Ok(LockedJob { name, args: shape(&args)?, samples })
}

fn shape(text: &str) -> Result<Shape, LockError> {
    text.parse().map_err(|error: crate::ShapeError| LockError(error.message))
}

/// A type that is nothing but another name for itself would be looked up for ever, and one that is not there would
/// take anything.
fn refuse_bad_names<'s>(
    types: &'s Types,
    shapes: impl Iterator<Item = &'s Shape>,
) -> Result<(), LockError> {
    for shape in shapes.chain(types.values()) {
        let mut names = Vec::new();
        shape.names(&mut names);
        if let Some(name) = names.iter().find(|name| !types.contains_key(**name)) {
            return Err(LockError(format!("the type {name} is not in [types]")));
        }
    }
    match defined_by_itself(types) {
        Some(name) => Err(LockError(format!("the type {name} is defined by itself"))),
        None => Ok(()),
    }
}

/// The first type that a value would be asked of for ever. No lock has one.
pub(crate) fn defined_by_itself(types: &Types) -> Option<&str> {
    let mut names = types.keys().map(String::as_str);
    names.find(|name| {
        let mut at = vec![*name];
        let mut seen = std::collections::BTreeSet::new();
        while let Some(here) = at.pop() {
            let first_names = types.get(here).map(first_names).unwrap_or_default();
            if first_names.contains(name) {
                return true;
            }
            at.extend(first_names.into_iter().filter(|name| seen.insert(*name)));
        }
        false
    })
}

/// The types that a value is asked of before anything of it is looked at.
fn first_names(shape: &Shape) -> Vec<&str> {
    match shape {
        Shape::Named(name) => vec![name],
        Shape::Option(inner) | Shape::Rule { of: inner, .. } => first_names(inner),
        Shape::Union { written, read } => {
            written.iter().chain(read).flat_map(first_names).collect()
        }
        _ => Vec::new(),
    }
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
        reconciles: file.reconciles,
        derived: file.derived.clone(),
        output,
        asked_by: file.asked_by.clone(),
    };
    let provider_key = effect.is_foreign().then(|| phase.provider_key());
    if file.provider_key.as_deref() != provider_key {
        return Err(wrong("`provider_key` is the oldest of its names, on a foreign phase"));
    }
    Ok(phase)
}
