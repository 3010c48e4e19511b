//! Bulk acts: planned, started, followed, stopped. The workers of the service do them.

use serde_json::{Value, json};

use super::act::read_ids;
use super::arguments::{Bulk, BulkOf, Format, Ids};
use super::ask::Api;
use super::end::{End, Failure};
use super::read::{conditions, document, if_there_is_more, rows_of, segment};
use super::table::{Column, past, print, text};

const BULKS: [Column; 8] = [
    ("BULK", |row, _| text(&row["id"])),
    ("ACT", |row, _| text(&row["act"])),
    ("REQUESTS", |row, _| text(&row["count"])),
    ("DONE", |row, _| text(&row["applied"])),
    ("LEFT AS IT WAS", |row, _| left_as_it_was(row)),
    ("STARTED", |row, now| past(&row["started_at"], now)),
    ("STATE", |row, _| state(row)),
    ("BY", |row, _| text(&row["actor"])),
];

/// The largest page of bulk acts that the API answers.
const LARGEST: usize = 100;

const REFUSALS: [Column; 3] = [
    ("REQUEST", |row, _| text(&row["request"])),
    ("OUTCOME", |row, _| text(&row["outcome"])),
    ("BECAUSE", |row, _| text(&row["because"])),
];

fn left_as_it_was(row: &Value) -> String {
    let number = |name: &str| row[name].as_u64().unwrap_or_default();
    number("settled").saturating_sub(number("applied")).to_string()
}

fn state(row: &Value) -> String {
    let progress = || format!("under way, {} of {}", text(&row["settled"]), text(&row["count"]));
    match (row["ended_at"].is_null(), row["stopped_by"].is_null()) {
        (true, true) => progress(),
        (true, false) => format!("stopping, by {}", text(&row["stopped_by"])),
        (false, true) => "ended".to_owned(),
        (false, false) => format!("stopped by {}", text(&row["stopped_by"])),
    }
}

pub(crate) async fn run(api: &Api, command: &Bulk, format: Format) -> Result<End, Failure> {
    match command {
        Bulk::Retry(of) => start(api, "retry", of).await,
        Bulk::Erase(of) => start(api, "erase", of).await,
        Bulk::List { part } => {
            let (rows, page, now) = rows_of(api, "/bulk", part, LARGEST).await?;
            print(&rows, &BULKS, now, format);
            if_there_is_more(&page);
            Ok(End::Fine)
        }
        Bulk::Show { id } => show(api, id, format).await,
        Bulk::Stop { id, because } => {
            let body = json!({ "reason": because.reason }).to_string();
            let told = api.post(&format!("/bulk/{}/stop", segment(id)), &body, None).await?;
            let told = told.with("outcome")?;
            println!("{}", text(&told["outcome"]));
            Ok(End::Fine)
        }
    }
}

async fn show(api: &Api, id: &str, format: Format) -> Result<End, Failure> {
    let answer = api.get(&format!("/bulk/{}", segment(id))).await?;
    let now = answer.now;
    let told = answer.with("refusals")?;
    let refusals = told["refusals"].as_array().cloned().unwrap_or_default();
    match format {
        Format::Json => document(&told, format),
        Format::Jsonl => print(&refusals, &REFUSALS, now, format),
        Format::Ids => refusals.iter().for_each(|row| println!("{}", text(&row["request"]))),
        Format::Table => {
            print(&[told], &BULKS, now, format);
            if !refusals.is_empty() {
                print(&refusals, &REFUSALS, now, format);
            }
        }
    }
    Ok(if refusals.is_empty() { End::Fine } else { End::Partly })
}

/// Plans it, and prints the plan's version; or starts it, as that version says or as it is planned now.
async fn start(api: &Api, act: &str, of: &BulkOf) -> Result<End, Failure> {
    let filter = conditions(api, &of.filter)?;
    let mut body = json!({ "act": act });
    match (of.ids.is_empty(), filter.is_empty()) {
        (true, false) => body["filter"] = filter.into(),
        (false, true) => body["requests"] = read_ids(&Ids { ids: of.ids.clone() })?.into(),
        (true, true) => return Err(Failure::usage("say which requests: a condition, or ids")),
        (false, false) => return Err(Failure::usage("a condition or ids: not both")),
    }
    body["planned"] = match &of.plan {
        Some(version) => version.as_str().into(),
        None => {
            let plan = api.post("/bulk/plan", &body.to_string(), None).await?.with("version")?;
            let (count, fitting) = (text(&plan["count"]), text(&plan["fitting"]));
            eprintln!("{act}: {count} requests, of which {fitting} stand where it is taken");
            if plan["with_call"].as_u64().is_some_and(|number| number > 0) {
                let number = text(&plan["with_call"]);
                eprintln!(
                    "note: {number} of them have a call that may have had its effect, and whose outcome is not stored"
                );
            }
            if !of.yes {
                eprintln!(
                    "nothing was done yet. The same command with --plan and the version below starts it, once, and only if \
                     its requests stand as they do now"
                );
                println!("{}", text(&plan["version"]));
                return Ok(End::Fine);
            }
            // By its version: what comes to match in between is not acted on.
            eprintln!(
                "--yes starts this plan, which was made now; to start a plan that was reviewed, use --plan"
            );
            plan["version"].clone()
        }
    };
    body["reason"] = of.because.clone().into();
    let told = api.post("/bulk/start", &body.to_string(), None).await?.with("id")?;
    println!("{}", text(&told["id"]));
    Ok(End::Fine)
}
