//! From a lock to its file.

use std::fmt::Write;
use std::time::Duration;

use super::FORMAT;
use crate::lock::{Effect, Lock, Locked, LockedJob, Output, State};

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
        let _ = writeln!(out, "was = [{}]", list(&phase.was));
    }
    let effect = match phase.effect {
        Effect::Local => "kind = \"local\"\n".to_owned(),
        Effect::AtMostOnce => "kind = \"foreign\"\neffect = \"at_most_once\"\n".to_owned(),
        Effect::Idempotent { window } => {
            let window = window.map_or_else(String::new, |window| {
                format!("window = {}\n", quoted(&duration_text(window)))
            });
            format!("kind = \"foreign\"\neffect = \"idempotent\"\n{window}")
        }
    };
    out.push_str(&effect);
    if phase.effect.is_foreign() {
        let _ = writeln!(out, "provider_key = {}", quoted(phase.provider_key()));
    }
    if phase.reconciles {
        out.push_str("reconciles = true\n");
    }
    if let Some(derived) = &phase.derived {
        let _ = writeln!(out, "derived = {}", quoted(derived));
    }
    match &phase.output {
        Output::Reply => out.push_str("output = \"reply\"\n"),
        Output::Value { shape, samples } => {
            let _ = writeln!(out, "output = {}", quoted(&shape.to_string()));
            if let Some(phases) = &phase.asked_by {
                let _ = writeln!(out, "asked_by = [{}]", list(phases));
            }
            write_samples(out, samples);
        }
    }
}

fn list(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    names.join(", ")
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
pub(super) fn quoted(text: &str) -> String {
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
pub(crate) fn duration_text(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, name) in [(3_600_000, "h"), (60_000, "m"), (1000, "s")] {
        if millis > 0 && millis.is_multiple_of(unit) {
            return format!("{}{name}", millis / unit);
        }
    }
    format!("{millis}ms")
}
