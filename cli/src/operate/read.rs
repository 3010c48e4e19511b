//! What is asked.

use std::io::{IsTerminal, Read};

use serde_json::{Map, Value, json};

use super::arguments::{AuditOf, Because, Condition, Filter, Format, Part, What};
use super::ask::{Answer, Api};
use super::end::{End, Failure};
use super::json::escaped;
use super::table::{Column, Now, past, plain, print, table, text, time};

const LIST: [Column; 8] = [
    ("REQUEST", |row, _| text(&row["id"])),
    ("DEFINITION", |row, _| definition(row)),
    ("STATE", |row, _| text(&row["state"])),
    ("AT PHASE", |row, _| at_phase(row)),
    ("WHY", |row, _| text(&row["reason"])),
    ("ATTEMPT", |row, _| text(&row["attempts"])),
    ("SINCE", |row, now| {
        let is_waiting = !row["waiting_since"].is_null();
        past(if is_waiting { &row["waiting_since"] } else { &row["created_at"] }, now)
    }),
    ("NEXT", |row, now| time(&row["next_at"], now)),
];

const AUDIT: [Column; 8] = [
    ("WHEN", |row, now| past(&row["at"], now)),
    ("WHO", |row, _| text(&row["actor"])),
    ("ACT", |row, _| text(&row["act"])),
    ("OUTCOME", |row, _| text(&row["outcome"])),
    ("REQUEST", |row, _| text(&row["request"])),
    ("REASON", |row, _| text(&row["reason"])),
    ("REFUSED BECAUSE", |row, _| text(&row["refused_because"])),
    ("GIVEN", |row, _| given(row).unwrap_or_else(|| text(&Value::Null))),
];

fn definition(row: &Value) -> String {
    format!("{} v{}", text(&row["definition"]), text(&row["definition_version"]))
}

/// The phase at which a request stands, and whether its call may have had its effect, unless the state says so.
fn at_phase(row: &Value) -> String {
    let phase = text(&row["phase"]);
    let is_told = row["phase"].is_null() || row["state"] == "unknown";
    match called(row).is_some() && !is_told {
        true => format!("{phase} (may have been called)"),
        false => phase,
    }
}

/// One document, over several lines or in one.
pub(crate) fn document(told: &Value, format: Format) {
    match format {
        Format::Json => println!("{}", escaped(&format!("{told:#}"))),
        _ => println!("{}", escaped(&told.to_string())),
    }
}

/// How much waits.
pub(crate) async fn status(api: &Api, format: Format) -> Result<End, Failure> {
    let answer = api.get("/overview").await?;
    let now = answer.now;
    let mut told = answer.with("unknown")?;
    if !api.has_code() {
        // Without the application's code, every definition is unknown.
        told["stranded"] = Value::Null;
    }
    match format {
        Format::Table => {
            let count = |name: &str| {
                let more = if told[name]["or_more"] == true { " or more" } else { "" };
                format!("{}{more}", text(&told[name]["number"]))
            };
            let oldest = match told["oldest_waiting"].is_null() {
                true => String::new(),
                false => format!("; oldest {}", past(&told["oldest_waiting"], now)),
            };
            println!(
                "waiting     {} unknown, {} dead letters{oldest}",
                count("unknown"),
                count("dead_letters")
            );
            println!("due         {}", count("due"));
            if !told["stranded"].is_null() {
                println!("stranded    {}", count("stranded"));
            }
            println!("dead jobs   {}", count("dead_jobs"));
            // An earlier build does not count them.
            if !told["late_jobs"].is_null() {
                println!("late jobs   {}", count("late_jobs"));
            }
            if told["none_announced"] == true {
                eprintln!(
                    "note: no process has announced itself in the last minute. If no workers run, requests are resumed \
                     only by their clients, and more may be due than were counted: `list --state lease_ended` has those \
                     whose holder died"
                );
            }
        }
        _ => document(&told, format),
    }
    let waits = ["unknown", "dead_letters", "stranded", "dead_jobs", "late_jobs"];
    // *0 or more* is not none: before the rows that the operator sees there are very many that they do not.
    let waits_or_may = |name: &&str| told[name]["number"] != 0 || told[name]["or_more"] == true;
    let counted = waits.iter().filter(|name| !told[**name].is_null());
    Ok(if counted.into_iter().any(waits_or_may) { End::Found } else { End::Fine })
}

/// A filter, as the API takes it.
pub(crate) fn conditions(api: &Api, filter: &Condition) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    let mut wants = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    wants("state", filter.state.clone().map(Value::from));
    wants("definition", filter.definition.clone().map(Value::from));
    wants("version", filter.definition_version.map(Value::from));
    wants("phase", filter.phase.clone().map(Value::from));
    wants("reason", filter.reason.clone().map(Value::from));
    wants("scope", filter.scope.clone().map(Value::from));
    wants("older_than", filter.older_than.clone().map(Value::from));
    wants("waiting_for", filter.waiting_for.clone().map(Value::from));
    wants("stranded", filter.stranded.then_some(Value::from(true)));
    if filter.stranded && !api.has_code() {
        return Err(Failure::usage(
            "which requests are stranded only the application knows: ask a service (--url)",
        ));
    }
    Ok(body)
}

/// Requests, and what may be wrong with the conditions where there are none.
pub(crate) async fn list(api: &Api, filter: &Filter, format: Format) -> Result<End, Failure> {
    let body = conditions(api, &filter.condition)?;
    let (mut rows, page, now) = pages(&filter.part, LARGEST, async |limit, cursor| {
        let mut body = body.clone();
        body.insert("limit".to_owned(), limit.into());
        body.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor.into())));
        api.post("/requests/search", &Value::Object(body).to_string(), None).await
    })
    .await?;
    if !api.has_code() {
        rows.iter_mut().for_each(|row| row["stranded"] = Value::Null);
    }
    print(&rows, &LIST, now, format);
    if rows.is_empty() && page["next"].is_null() && filter.part.after.is_none() {
        unknown_names(api, &filter.condition).await;
    }
    if_there_is_more(&page);
    Ok(End::Fine)
}

/// Nothing was found: says so where no process and no unfinished request has the definition, or the phase, that was asked
/// for. A name that is misspelt would look as if nothing were stuck.
async fn unknown_names(api: &Api, filter: &Condition) {
    if filter.definition.is_none() && filter.phase.is_none() {
        return;
    }
    // It is a hint: where it cannot be given, the list was printed all the same.
    let Ok(told) = api.get("/definitions").await else { return };
    let Some(rows) = told.json["rows"].as_array() else { return };
    // There may be others among those that were not counted.
    if rows.iter().any(|row| row["or_more"] == true) {
        return;
    }
    let is = |value: &Value, name: &Option<String>| name.as_ref().is_none_or(|name| value == name);
    let has_phase = |row: &Value| {
        let phases = row["phases"].as_array();
        filter.phase.is_none()
            || phases.is_some_and(|all| all.iter().any(|phase| is(&phase["name"], &filter.phase)))
    };
    let of_name: Vec<&Value> =
        rows.iter().filter(|row| is(&row["definition"], &filter.definition)).collect();
    let unknown = match &filter.definition {
        Some(name) if of_name.is_empty() => format!("definition {:?}", plain(name)),
        _ if of_name.iter().any(|row| has_phase(row)) => return,
        _ => format!("phase {:?}", plain(filter.phase.as_deref().unwrap_or_default())),
    };
    let known: Vec<String> = rows.iter().map(definition).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    eprintln!(
        "note: no process that runs workers and no unfinished request has the {unknown}; there is {known}"
    );
}

/// The rows of a list, its last page, and the time from which their ages are counted.
pub(crate) async fn rows_of(
    api: &Api,
    path: &str,
    part: &Part,
    largest: usize,
) -> Result<(Vec<Value>, Value, Now), Failure> {
    let and = if path.contains('?') { '&' } else { '?' };
    pages(part, largest, async |limit, cursor| {
        let place = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
        api.get(&format!("{path}{and}limit={limit}{place}")).await
    })
    .await
}

/// The largest page that the API answers; it refuses a larger one.
pub(crate) const LARGEST: usize = 1000;

/// Page by page, until there are as many rows as were asked for, the list ends, or a page has searched ten thousand rows:
/// enough for one command. With the last page, which says how it goes on.
async fn pages(
    part: &Part,
    largest: usize,
    ask: impl AsyncFn(usize, Option<&str>) -> Result<Answer, Failure>,
) -> Result<(Vec<Value>, Value, Now), Failure> {
    let limit = part.limit as usize;
    let (mut rows, mut cursor) = (Vec::new(), part.after.clone());
    loop {
        let left = limit.saturating_sub(rows.len()).min(largest);
        let (found, page, now) = ask(left, cursor.as_deref()).await?.rows()?;
        rows.extend(found);
        match page["next"].as_str().filter(|_| page["searched_to"].is_null()) {
            Some(next) if rows.len() < limit => cursor = Some(next.to_owned()),
            _ => return Ok((rows, page, now)),
        }
    }
}

/// Of a page that is not the last: why it ended, and how to go on behind it.
pub(crate) fn if_there_is_more(page: &Value) {
    let Some(next) = page["next"].as_str().map(plain) else { return };
    match page["searched_to"].as_str() {
        None => eprintln!("note: there may be more: --limit, or --after {next}"),
        Some(to) => eprintln!(
            "note: ten thousand rows were searched, as far as {}; what is behind them: --after {next}",
            plain(to)
        ),
    }
}

pub(crate) async fn find(api: &Api, scope: &str, format: Format) -> Result<End, Failure> {
    let mut key = String::new();
    if std::io::stdin().is_terminal() {
        eprintln!("the key is read from the terminal, up to its end (Ctrl-D)");
    }
    std::io::stdin().read_to_string(&mut key)?;
    let sought = json!({ "scope": scope, "key": key.trim() }).to_string();
    let found = api.post("/requests/find", &sought, None).await?;
    let now = found.now;
    print(&[found.with("id")?], &LIST, now, format);
    Ok(End::Fine)
}

pub(crate) async fn why(api: &Api, id: &str, format: Format) -> Result<End, Failure> {
    let why = api.get(&format!("/requests/{}/why", segment(id))).await?.with("sentence")?;
    match format {
        Format::Table | Format::Ids => println!("{}", text(&why["sentence"])),
        _ => document(&why, format),
    }
    Ok(End::Fine)
}

pub(crate) async fn show(api: &Api, id: &str, format: Format) -> Result<End, Failure> {
    let answer = api.get(&format!("/requests/{}", segment(id))).await?;
    let now = answer.now;
    let shown = answer.with("request")?;
    match format {
        Format::Ids => println!("{}", text(&shown["request"]["id"])),
        Format::Table => print!("{}", details(&shown, now)),
        _ => document(&shown, format),
    }
    Ok(End::Fine)
}

/// A request as a person reads it.
fn details(shown: &Value, now: Now) -> String {
    let row = &shown["request"];
    let mut out = format!(
        "{}\n{} · {} · last committed {} · scope #{} · key #{} · attempt {} · version {}\n{}\n\n",
        text(&row["id"]),
        definition(row),
        text(&row["state"]),
        text(&row["recovery_point"]),
        text(&row["scope_hash"]),
        text(&row["key_hash"]),
        text(&row["attempts"]),
        text(&row["version"]),
        text(&shown["why"]["sentence"]),
    );
    let rows = |name: &str| shown[name].as_array().cloned().unwrap_or_default();
    let phases: [Column; 3] = [
        ("PHASE", |phase, _| text(&phase["name"])),
        ("KIND", |phase, _| text(&phase["kind"])),
        ("STANDS", |phase, _| stands(phase)),
    ];
    out.push_str(&table(&rows("phases"), &phases, now));
    let happened: [Column; 3] = [
        ("WHEN", |event, _| text(&event["at"])),
        ("WHAT", |event, _| {
            text(if event["act"].is_null() { &event["what"] } else { &event["act"]["act"] })
        }),
        ("", |event, _| match &event["act"] {
            Value::Null => of_attempt(event),
            act => {
                let given = given(act).map_or_else(String::new, |given| format!(" ({given})"));
                let (outcome, actor) = (text(&act["outcome"]), text(&act["actor"]));
                format!("{outcome} by {actor}{given}: {}", text(&act["reason"]))
            }
        }),
    ];
    out.push('\n');
    out.push_str(&table(&rows("timeline"), &happened, now));
    if let Some(gone @ 1..) = shown["events_gone"].as_u64() {
        out.push_str(&format!("{gone} earlier events are not kept\n"));
    }
    if let Some(place) = shown["earlier_acts"].as_str() {
        out.push_str(&format!(
            "the latest hundred acts of operators are shown; earlier: audit --request {} --after {}\n",
            text(&row["id"]),
            plain(place)
        ));
    }
    let jobs = rows("jobs");
    if !jobs.is_empty() {
        out.push('\n');
        out.push_str(&table(&jobs, &JOBS, now));
    }
    out
}

/// What a resolution names or gives: an attempt; or the length of a value, and its hash for those who may see values.
fn given(act: &Value) -> Option<String> {
    let [attempt, bytes, sha256] = ["attempt", "value_bytes", "value_sha256"].map(|name| {
        let value = &act[name];
        (!value.is_null()).then(|| text(value))
    });
    let value = bytes.map(|bytes| match sha256 {
        Some(sha256) => format!("{bytes} bytes, SHA-256 {sha256}"),
        None => format!("{bytes} bytes"),
    });
    attempt.map(|attempt| format!("attempt {attempt}")).or(value)
}

/// How far the request has come with a phase, in the console's words.
fn stands(phase: &Value) -> String {
    match phase["stands"].as_str() {
        Some("done") => "committed".to_owned(),
        Some("call_open") => "call without an outcome".to_owned(),
        Some("over") => "may have run".to_owned(),
        Some(name) => plain(name).replace('_', " "),
        None => text(&Value::Null),
    }
}

/// The phase whose call may have had its effect, though no outcome is stored, as the service judges it. `shown`: the answer
/// about one request.
pub(crate) fn perhaps_called(shown: &Value) -> Option<String> {
    called(&shown["request"])
}

fn called(row: &Value) -> Option<String> {
    let phase = match row.get("perhaps_called") {
        Some(judged) => judged,
        // A service of an earlier version does not judge it: that it says nothing does not mean that nothing was called.
        None if row["may_have_been_called"] == true => &row["phase"],
        None => &row["open_call"],
    };
    (!phase.is_null()).then(|| text(phase))
}

/// Whether the request is finished.
pub(crate) fn is_over(shown: &Value) -> bool {
    matches!(shown["request"]["state"].as_str(), Some("finished" | "erased"))
}

/// The phases of an unfinished request whose effects stay, whatever becomes of it.
pub(crate) fn committed(shown: &Value) -> Vec<String> {
    if is_over(shown) {
        return Vec::new();
    }
    let phases = shown["phases"].as_array().into_iter().flatten();
    phases.filter(|phase| phase["stands"] == "done").map(|phase| text(&phase["name"])).collect()
}

/// What is said of an event that is not an operator's act.
fn of_attempt(event: &Value) -> String {
    let said = |value: &Value| if value.is_null() { String::new() } else { text(value) };
    let (phase, reason) = (said(&event["phase"]), said(&event["text"]));
    let traceparent = said(&event["traceparent"]);
    let trace = match traceparent.split('-').nth(1) {
        Some(trace) => format!(" (trace {trace})"),
        None => String::new(),
    };
    if event["attempt"].is_null() {
        return format!("{reason}{trace}");
    }
    let at = if phase.is_empty() { phase } else { format!(" at {phase}") };
    let because = if reason.is_empty() { reason } else { format!(": {reason}") };
    format!("attempt {}{at}{because}{trace}", text(&event["attempt"]))
}

pub(crate) const JOBS: [Column; 6] = [
    ("JOB", |job, _| text(&job["id"])),
    ("NAME", |job, _| text(&job["name"])),
    ("ATTEMPTS", |job, _| text(&job["attempts"])),
    ("STAGED", |job, now| past(&job["staged_at"], now)),
    ("NEXT", |job, now| time(&job["next_at"], now)),
    ("WHY", |job, _| text(&job["reason"])),
];

const JOB: [Column; 6] = [
    ("JOB", |job, _| text(&job["id"])),
    ("REQUEST", |job, _| text(&job["request"])),
    ("NAME", |job, _| text(&job["name"])),
    ("ATTEMPTS", |job, _| text(&job["attempts"])),
    ("STAGED", |job, now| past(&job["staged_at"], now)),
    ("WHY", |job, _| text(&job["reason"])),
];

/// What a list of late jobs does not say.
pub(crate) fn about_late_jobs(rows: &[Value], part: &Part) {
    if rows.iter().any(|job| job["reason"].is_null()) {
        eprintln!(
            "note: a job without a reason was taken by no node: none runs workers with a sink that handles its name, \
             they do not keep up, or an earlier job of its request comes first"
        );
    }
    if rows.len() >= (part.limit as usize).min(LARGEST) {
        eprintln!(
            "note: these have been due for longest; there may be more: --limit, {LARGEST} at most. `status` counts them"
        );
    }
}

/// A list of the jobs that gave up says nothing of those that no node delivers.
pub(crate) async fn if_jobs_are_late(api: &Api) {
    // It is a hint: where it cannot be given, the list was printed all the same. An earlier build knows no such list.
    let Ok(told) = api.get("/jobs?state=late&limit=1").await else { return };
    if told.json["rows"].as_array().is_some_and(|rows| !rows.is_empty()) {
        eprintln!("note: other jobs are late: jobs list --state late");
    }
}

/// One staged job that gave up.
pub(crate) async fn job(api: &Api, id: &str, format: Format) -> Result<End, Failure> {
    let answer = api.get(&format!("/jobs/{}", segment(id))).await?;
    let now = answer.now;
    let job = answer.with("staged_at")?;
    match format {
        Format::Json | Format::Jsonl => document(&job, format),
        Format::Ids | Format::Table => print(&[job], &JOB, now, format),
    }
    Ok(End::Fine)
}

const DEFINITIONS: [Column; 7] = [
    ("DEFINITION", |row, _| definition(row)),
    ("PHASES", |row, _| {
        let name = |phase: &Value| text(&phase["name"]);
        let phases = row["phases"].as_array().map(|all| all.iter().map(name).collect::<Vec<_>>());
        phases.unwrap_or_default().join(" ")
    }),
    ("NODES", |row, _| text(&row["nodes"])),
    ("REQUESTS", |row, _| or_more(row, "requests")),
    ("WAITING", |row, _| or_more(row, "waiting")),
    ("STRANDED", |row, _| or_more(row, "stranded")),
    ("OLDEST", |row, now| past(&row["oldest"], now)),
];

/// A number that was counted among ten thousand rows.
fn or_more(row: &Value, name: &str) -> String {
    let is_more = row["or_more"] == true && row[name].is_number();
    format!("{}{}", text(&row[name]), if is_more { "+" } else { "" })
}

/// Which builds requests wait for. Ends with [`End::Found`] where some wait, or may wait, for one that no process runs.
pub(crate) async fn definitions(api: &Api, format: Format) -> Result<End, Failure> {
    let (rows, _, now) = api.get("/definitions").await?.rows()?;
    print(&rows, &DEFINITIONS, now, format);
    // *0+* is not none, as in `status`.
    let may_be_stranded = |row: &Value| {
        row["stranded"].as_u64().is_some_and(|stranded| stranded > 0 || row["or_more"] == true)
    };
    Ok(if rows.iter().any(may_be_stranded) { End::Found } else { End::Fine })
}

const NODES: [Column; 6] = [
    ("NODE", |node, _| text(if node["name"].is_null() { &node["id"] } else { &node["name"] })),
    ("BUILD", |node, _| text(&node["build"])),
    ("DEFINITIONS", |node, _| {
        let all = node["definitions"].as_array().map(|all| all.iter().map(definition));
        all.map(|all| all.collect::<Vec<_>>().join(", ")).unwrap_or_default()
    }),
    ("STARTED", |node, now| past(&node["started_at"], now)),
    ("SEEN", |node, now| past(&node["seen_at"], now)),
    ("", |node, _| if node["gone"] == true { "gone".to_owned() } else { String::new() }),
];

pub(crate) async fn nodes(api: &Api, format: Format) -> Result<End, Failure> {
    let (rows, _, now) = api.get("/nodes").await?.rows()?;
    print(&rows, &NODES, now, format);
    Ok(End::Fine)
}

const PAUSES: [Column; 7] = [
    ("DEFINITION", |row, _| text(&row["definition"])),
    ("PHASE", |row, _| text(&row["phase"])),
    ("SINCE", |row, now| past(&row["paused_at"], now)),
    ("UNTIL", |row, now| time(&row["ends_at"], now)),
    ("BY", |row, _| text(&row["paused_by"])),
    ("VERSION", |row, _| text(&row["version"])),
    ("REASON", |row, _| text(&row["reason"])),
];

pub(crate) async fn pauses(api: &Api, format: Format) -> Result<End, Failure> {
    let (rows, _, now) = api.get("/pauses").await?.rows()?;
    print(&rows, &PAUSES, now, format);
    Ok(End::Fine)
}

pub(crate) async fn audit(
    api: &Api,
    AuditOf { request, actor, act }: &AuditOf,
    part: &Part,
    format: Format,
) -> Result<End, Failure> {
    let conditions = [
        request.as_deref().map(|id| format!("request={}", segment(id))),
        actor.as_deref().map(|name| format!("actor={}", in_query(name))),
        act.as_deref().map(|act| format!("act={}", in_query(act))),
    ];
    let of = conditions.into_iter().flatten().collect::<Vec<_>>().join("&");
    let path = if of.is_empty() { "/audit".to_owned() } else { format!("/audit?{of}") };
    let (rows, page, now) = rows_of(api, &path, part, LARGEST).await?;
    print(&rows, &AUDIT, now, format);
    if_there_is_more(&page);
    Ok(End::Fine)
}

/// Prints the value alone, so that it can be piped.
pub(crate) async fn reveal(
    api: &Api,
    id: &str,
    what: &What,
    because: &Because,
) -> Result<End, Failure> {
    if !api.has_code() {
        let text = match what {
            What::DerivedKey => {
                "derived keys are made with the application's settings (a secret, a salt): ask a service (--url)"
            }
            _ => "values are opened by the application's codec: ask a service (--url)",
        };
        return Err(Failure::usage(text));
    }
    let what = match what {
        What::Key => "key",
        What::Parameters => "parameters",
        What::Context => "context",
        What::Outputs => "outputs",
        What::Reply => "reply",
        What::DerivedKey => "derived_key",
    };
    let body = json!({ "what": what, "reason": because.reason }).to_string();
    let told = api.post(&format!("/requests/{}/values", segment(id)), &body, None).await?;
    let told = told.with("json")?;
    match what {
        "key" => println!("{}\n{}", text(&told["scope"]), text(&told["key"])),
        "reply" => document(&told["reply"], Format::Json),
        _ => println!("{}", escaped(told["json"].as_str().unwrap_or("null"))),
    }
    Ok(End::Fine)
}

/// An id as a part of a path or a query. What is none names nothing.
pub(crate) fn segment(id: &str) -> &str {
    let is_id = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    if id.chars().all(is_id) { id } else { "none" }
}

/// A text as a value in a query.
fn in_query(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
