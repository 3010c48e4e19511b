//! What is done: each act has a reason, and is about the version that the operator names, or that was looked at right
//! before.

use std::io::{IsTerminal, Read};

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::arguments::{Decision, Format, Ids, JobState, Jobs, ResolveArguments, Said};
use super::ask::{Answer, Api};
use super::end::{End, Failure};
use super::read::{
    self, JOBS, committed, if_there_is_more, is_over, perhaps_called, rows_of, segment,
};
use super::table::{plain, print, text};

#[derive(Clone, Copy)]
pub(crate) enum Act {
    Retry,
    Erase,
}

/// Does it with each, one by one, and says what became of each.
pub(crate) async fn on_each(
    api: &Api,
    act: Act,
    ids: &Ids,
    decision: &Decision,
) -> Result<End, Failure> {
    let word = match act {
        Act::Retry => "retry",
        Act::Erase => "erase",
    };
    let look: Look = match act {
        Act::Retry => |_| Ok(()),
        Act::Erase => before_an_erasure,
    };
    decided(api, ("/requests", word), &read_ids(ids)?, decision, &why(decision), look).await
}

/// Looks at what an act is about, where the operator has not said which version they have seen.
type Look = fn(&Answer) -> Result<(), Failure>;

/// A call that may have been made is looked up first: who names the version has seen that it may have been.
fn before_a_finish(seen: &Answer) -> Result<(), Failure> {
    // A request that is finished is not finished again: the service refuses that.
    let called = perhaps_called(&seen.json).filter(|_| !is_over(&seen.json));
    let Some(phase) = called else {
        note_what_stays(seen);
        return Ok(());
    };
    let stays = match what_stays(seen) {
        Some(stays) => format!(" {stays}"),
        None => String::new(),
    };
    let version = text(&seen.json["request"]["version"]);
    let text = format!(
        "nothing was done: {phase} may have been called. Look it up at the provider.{stays} To finish the request all \
         the same: --version {version}"
    );
    Err(Failure { end: End::Refused, text })
}

fn before_an_erasure(seen: &Answer) -> Result<(), Failure> {
    if let Some(phase) = perhaps_called(&seen.json) {
        eprintln!("note: {phase} may have been called: its effect, if there is one, stays");
    }
    note_what_stays(seen);
    Ok(())
}

fn note_what_stays(seen: &Answer) {
    if let Some(stays) = what_stays(seen) {
        eprintln!("note: {stays}");
    }
}

/// Of a request that no phase of it will end.
fn what_stays(seen: &Answer) -> Option<String> {
    let names = committed(&seen.json);
    (!names.is_empty())
        .then(|| format!("What is committed stays, and nothing undoes it: {}.", names.join(", ")))
}

fn why(Decision { because, .. }: &Decision) -> String {
    json!({ "reason": because.reason }).to_string()
}

/// Acts on each of them, in the state that the operator has seen.
async fn decided(
    api: &Api,
    (of, act): (&str, &str),
    ids: &[String],
    Decision { version, .. }: &Decision,
    body: &str,
    look: Look,
) -> Result<End, Failure> {
    if version.is_some() && ids.len() != 1 {
        return Err(Failure::usage("--version is the version of one: say one id with it"));
    }
    each(ids, async |id| {
        let path = format!("{of}/{}", segment(id));
        let seen = match version {
            Some(version) => in_quotes(version),
            None => {
                let seen = api.get(&path).await?;
                look(&seen)?;
                seen.version.unwrap_or_default()
            }
        };
        api.post(&format!("{path}/{act}"), body, Some(&seen)).await?.with("outcome")
    })
    .await
}

/// As an ETag has it; a text that is not a version matches no row.
fn in_quotes(version: &str) -> String {
    format!("\"{}\"", segment(version.trim_matches('"')))
}

/// Says a word about one request.
pub(crate) async fn resolve(api: &Api, arguments: &ResolveArguments) -> Result<End, Failure> {
    // What is on the standard input may be an output or a reply's body.
    if arguments.id == "-" {
        return Err(Failure::usage("a word is about one request: say its id, and no `-`"));
    }
    let mut look: Look = |_| Ok(());
    let (body, decision) = match &arguments.said {
        Said::Executed { phase, output, decision } => {
            let output = value_of(output)?;
            // As it was given: a number keeps its digits.
            let output: &RawValue = serde_json::from_str(&output)
                .map_err(|error| Failure::usage(format!("--output is not JSON: {error}")))?;
            let (phase, reason) = (json!(phase), json!(decision.because.reason));
            let body = format!(
                r#"{{"word":"executed","phase":{phase},"output":{output},"reason":{reason}}}"#
            );
            (body, decision)
        }
        Said::NotExecuted { phase, attempt, decision } => {
            let reason = &decision.because.reason;
            let body = json!({
                "word": "not_executed", "phase": phase, "attempt": attempt, "reason": reason,
            });
            (body.to_string(), decision)
        }
        Said::Finish { status, headers, body, decision } => {
            look = before_a_finish;
            let lines: Result<Vec<[String; 2]>, Failure> =
                headers.iter().map(|line| header(line)).collect();
            let (mut lines, body) = (lines?, value_of(body)?);
            if !lines.iter().any(|[name, _]| name.eq_ignore_ascii_case("content-type")) {
                lines.extend(
                    media(&body).map(|media| ["content-type".to_owned(), media.to_owned()]),
                );
            }
            let reply = json!({ "status": status, "headers": lines, "body": body });
            let reason = &decision.because.reason;
            let body = json!({ "word": "finish", "reply": reply, "reason": reason });
            (body.to_string(), decision)
        }
    };
    if !api.has_code() {
        let what = match arguments.said {
            Said::Executed { .. } => "whether the later phases can read the output",
            Said::NotExecuted { .. } => "whether the call can be made again",
            Said::Finish { .. } => "how a reply is stored, and for how long,",
        };
        let text = format!("{what} only the application knows: ask a service (--url)");
        return Err(Failure::usage(text));
    }
    let id = std::slice::from_ref(&arguments.id);
    decided(api, ("/requests", "resolve"), id, decision, &body, look).await
}

/// Pauses a foreign phase. One that is paused stays so, unless the operator names that pause.
pub(crate) async fn pause(
    api: &Api,
    (definition, phase): (&str, &str),
    length: Option<&str>,
    Decision { because, version }: &Decision,
) -> Result<End, Failure> {
    if !api.has_code() {
        let text = "which phases there are only the application knows: ask a service (--url)";
        return Err(Failure::usage(text));
    }
    let mut body = json!({ "definition": definition, "phase": phase, "reason": because.reason });
    if let Some(length) = length {
        body["for"] = length.into();
    }
    let seen = version.as_deref().map(in_quotes);
    let told = set_pause(api, "begin", &body, seen.as_deref()).await;
    let is_refused = told.as_ref().is_err_and(|failure| failure.end == End::Refused);
    if is_refused && seen.is_none() {
        eprintln!(
            "note: it is paused; `pauses` lists who paused it, and the --version to replace it with"
        );
    }
    let told = told?;
    if let Some(by) = told["replaced"]["paused_by"].as_str() {
        eprintln!("note: it replaced the pause by {}", plain(by));
    }
    Ok(End::Fine)
}

/// Ends a pause.
pub(crate) async fn unpause(
    api: &Api,
    at: (&str, &str),
    Decision { because, version }: &Decision,
) -> Result<End, Failure> {
    let seen = match version {
        Some(version) => Some(in_quotes(version)),
        None => seen_pause(api, at).await?,
    };
    let Some(seen) = seen else {
        println!("already");
        // Of a name that is misspelt it would read as if the pause had ended.
        eprintln!("note: no phase of these names was paused; `pauses` lists those that are");
        return Ok(End::Fine);
    };
    let body = json!({ "definition": at.0, "phase": at.1, "reason": because.reason });
    let told = set_pause(api, "end", &body, Some(&seen)).await?;
    let still = &told["still_paused"];
    if let (Some(name), Some(by)) = (still["phase"].as_str(), still["paused_by"].as_str()) {
        let (name, by) = (plain(name), plain(by));
        eprintln!(
            "note: the phase is still paused, under the name {name}, by {by}: end that pause, too"
        );
    }
    Ok(End::Fine)
}

/// The version of the pause of a phase; `None`: no phase of the definition is paused.
async fn seen_pause(
    api: &Api,
    (definition, phase): (&str, &str),
) -> Result<Option<String>, Failure> {
    let (mut rows, ..) = api.get("/pauses").await?.rows()?;
    rows.retain(|row| row["definition"] == definition);
    match rows.iter().find(|row| row["phase"] == phase) {
        Some(row) => Ok(Some(in_quotes(row["version"].as_str().unwrap_or_default()))),
        None if rows.is_empty() => Ok(None),
        // One of them may be of this phase.
        None => {
            let text = "no pause has this name, but the definition has others: a renamed phase is paused under its \
                        oldest name, which `pauses` prints";
            Err(Failure { end: End::NoSuch, text: text.to_owned() })
        }
    }
}

async fn set_pause(
    api: &Api,
    act: &str,
    body: &Value,
    seen: Option<&str>,
) -> Result<Value, Failure> {
    let told = api.post(&format!("/pauses/{act}"), &body.to_string(), seen).await?;
    let told = told.with("outcome")?;
    println!("{}", text(&told["outcome"]));
    Ok(told)
}

/// What a body is, if its operator does not say.
fn media(body: &str) -> Option<&'static str> {
    match serde_json::from_str::<&RawValue>(body) {
        _ if body.is_empty() => None,
        Ok(_) => Some("application/json"),
        Err(_) => Some("text/plain; charset=utf-8"),
    }
}

fn header(line: &str) -> Result<[String; 2], Failure> {
    let (name, value) =
        line.split_once(':').ok_or_else(|| Failure::usage("a header line is `name: value`"))?;
    Ok([name.trim().to_owned(), value.trim().to_owned()])
}

/// A value of the command line, or, of `-`, the standard input.
fn value_of(value: &str) -> Result<String, Failure> {
    if value != "-" {
        return Ok(value.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

pub(crate) async fn jobs(api: &Api, command: &Jobs, format: Format) -> Result<End, Failure> {
    let (act, ids, decision) = match command {
        Jobs::List { state, part } => {
            let is_late = *state == Some(JobState::Late);
            let path = if is_late { "/jobs?state=late" } else { "/jobs" };
            let (rows, page, now) = rows_of(api, path, part, read::LARGEST).await?;
            print(&rows, &JOBS, now, format);
            if_there_is_more(&page);
            match state {
                Some(JobState::Late) => read::about_late_jobs(&rows, part),
                None if part.after.is_none() => read::if_jobs_are_late(api).await,
                _ => {}
            }
            return Ok(End::Fine);
        }
        Jobs::Show { id } => return read::job(api, id, format).await,
        Jobs::Retry { ids, decision } => ("retry", ids, decision),
        Jobs::Discard { ids, decision } => ("discard", ids, decision),
    };
    decided(api, ("/jobs", act), &read_ids(ids)?, decision, &why(decision), |_| Ok(())).await
}

/// Acts on each id, and says what became of it: a refusal ends nothing but itself.
async fn each(
    ids: &[String],
    act: impl AsyncFn(&str) -> Result<Value, Failure>,
) -> Result<End, Failure> {
    let (mut done, mut failed) = (0_u32, None);
    for id in ids {
        match act(id).await {
            Ok(told) => {
                println!("{} {}", plain(id), text(&told["outcome"]));
                done += 1;
            }
            Err(failure) => {
                eprintln!("{} {}", plain(id), plain(&failure.text));
                failed = Some(failure.end);
            }
        }
    }
    Ok(match failed {
        None => End::Fine,
        Some(_) if done > 0 => End::Partly,
        Some(end) => end,
    })
}

pub(crate) fn read_ids(Ids { ids }: &Ids) -> Result<Vec<String>, Failure> {
    if ids.iter().all(|id| id != "-") {
        return Ok(ids.clone());
    }
    if ids.len() > 1 {
        return Err(Failure::usage("`-` stands for all ids: say it alone"));
    }
    if std::io::stdin().is_terminal() {
        eprintln!("ids, one a line, are read from the terminal");
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let ids = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let ids: Vec<String> = ids.map(ToOwned::to_owned).collect();
    // What was to list them may have failed: to have done nothing is not fine.
    match ids.is_empty() {
        true => {
            let text = "no id on the standard input: nothing was done".to_owned();
            Err(Failure { end: End::NoSuch, text })
        }
        false => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_a_type_if_its_operator_gives_none() {
        for json in ["{}", r#"{"id": 7}"#, "[1, 2]", "null", " 7 "] {
            assert_eq!(media(json), Some("application/json"), "{json}");
        }
        for text in ["cancelled", "{id: 7}", "{} {}"] {
            assert_eq!(media(text), Some("text/plain; charset=utf-8"), "{text}");
        }
        assert_eq!(media(""), None);
    }
}
