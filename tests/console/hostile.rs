//! Values that are meant to break a page: markup, characters that change the text direction, a mebibyte, deep JSON;
//! in every field that a page shows.

use atomic_phases::config::Limits;
use atomic_phases::console::Api;
use atomic_phases::engine::Resolution;
use atomic_phases::ops::{Actor, BulkAct, OperatorStore, Permissions, Scopes, Selection};
use atomic_phases::worker::{Announcer, WorkerConfig};
use atomic_phases::{Reply, Scope};
use axum::Router;
use reqwest::{Client, Method};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::cast::*;
use super::desk::{Desk, Page, serve};
use super::html::tags;
use crate::support::*;

on_every_store! {
    what_is_meant_to_break_a_page_is_text,
    what_operators_say_is_text,
    a_mebibyte_and_deep_json_are_shown,
    a_mebibyte_and_deep_json_in_every_field_break_no_page,
    what_is_stored_is_told_whole_by_pages_and_by_the_api,
    the_api_takes_and_tells_what_is_meant_to_break_it,
}

/// Breaks out of a text, an attribute, a script and a style; and changes the direction of the following text.
const HOSTILE: &str = "</script></style></textarea><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u{202e}\u{2066}&lt;";

/// The page has no script, style or handler except the console's files, and no tag that the console did not write.
#[track_caller]
pub fn has_nothing_inline(page: &Page) {
    if !page.text.starts_with("<!DOCTYPE") {
        return;
    }
    let allowed = "html head meta title link script body a header span nav ul ol li p main footer h1 h2 h3 div \
                   section table caption thead tbody tr th td code bdi time dl dt dd form label input select \
                   option button textarea fieldset legend details summary figure figcaption svg line rect pre \
                   strong blockquote br";
    let allowed: Vec<&str> = allowed.split_whitespace().collect();
    for tag in tags(&page.text) {
        assert!(allowed.contains(&tag.name.as_str()), "{}: {tag:?}", page.url);
        assert!(tag.name != "script" || tag.get("src").is_some(), "{tag:?}");
        for (name, value) in &tag.attributes {
            assert!(name != "style" && !name.starts_with("on"), "{}: {tag:?}", page.url);
            let leads = ["href", "src", "action"].contains(&name.as_str());
            let is_relative = !value.contains(':') && !value.starts_with('/');
            assert!(!leads || is_relative, "{}: {tag:?}", page.url);
        }
    }
    let turns = |text: &str| text.contains(['\u{202e}', '\u{2066}', '\0']);
    assert!(!turns(&super::html::shown(&page.text)), "{}", page.url);
}

async fn what_is_meant_to_break_a_page_is_text<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    let of = Scope::new(HOSTILE.replace(['\u{202e}', '\u{2066}'], "")).unwrap();
    let request = Notify { who: HOSTILE.into(), trouble: Trouble::UnknownForeign.into() };
    engine.call(&of, &key("k"), request).context(&HOSTILE).await.unwrap();
    finish(&engine, "with-jobs").await;
    let ops = admin(&engine);
    let row = ops.find(&of, &key("k")).await.unwrap();
    let id = row.request_id;
    // An operator's own texts, including a refused one.
    let said = HOSTILE;
    let _ = ops.resolve(id, &"stale".into(), Resolution::finish(Reply::text(200, "")), said).await;
    let text = HOSTILE.replace('\'', "''");
    let mut updates = vec![
        format!(
            "UPDATE atomic_phases_staged_jobs SET run_after = NULL, name = '{text}', reason = '{text}'"
        ),
        format!("UPDATE atomic_phases_keys SET reason = '{text}' WHERE idempotency_key = 'k'"),
    ];
    match (is_memory::<S>(), is_postgres::<S>()) {
        (true, _) => {}
        (false, true) => db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await,
        (false, false) => db.sql("DROP TRIGGER forward_only").await,
    }
    updates.push(format!(
        "UPDATE atomic_phases_keys SET resolution = '{text}' WHERE idempotency_key = 'k'"
    ));
    for sql in &updates {
        db.sql(sql).await;
    }
    let mut seen = 0;
    let mut check = |page: Page| {
        has_nothing_inline(&page);
        page.has_not("<img").has_not("<script>");
        seen += 1;
        page
    };
    // A process's announcement.
    let node = WorkerConfig::default().node(HOSTILE, HOSTILE);
    Announcer::new(&engine, node).run_once().await.unwrap();
    for path in ["overview", "waiting", "requests", "jobs", "definitions", "audit"] {
        check(desk.get(path).await.is(200));
    }
    let page = check(desk.request(id).await);
    page.has("&lt;img src=x onerror=alert(1)&gt;").has("⟦U+202E⟧");
    // Names that no build has, as long as the columns allow.
    let text = "<img src=x onerror=alert(1)>\"\u{202e}";
    for column in ["definition", "recovery_point", "open_intent", "phases"] {
        db.sql(&format!(
            "UPDATE atomic_phases_keys SET {column} = '{text}' WHERE idempotency_key = 'k'"
        ))
        .await;
        for path in
            ["overview", "waiting", "requests", "requests?stranded=1", "definitions", "audit"]
        {
            check(desk.get(path).await.is(200));
        }
        check(desk.request(id).await).has("⟦U+202E⟧");
    }
    // Typed text is returned as text, too.
    let encoded: String = serde_urlencoded(HOSTILE);
    for field in [
        "state",
        "definition",
        "version",
        "phase",
        "reason",
        "older",
        "after",
        "said",
        "request",
        "before",
        "actor",
        "act",
    ] {
        for path in
            ["requests", "waiting", "jobs", "definitions", "audit", &format!("requests/{id}")]
        {
            check(desk.get(&format!("{path}?{field}={encoded}")).await);
        }
    }
    check(desk.get(&format!("requests/{encoded}")).await.is(404));
    check(desk.get(&encoded).await.is(404));
    let find = desk.get("requests").await.form("/find").with("scope", HOSTILE).with("key", HOSTILE);
    check(desk.submit(&find).await);
    check(desk.submit(&find.with("key", "")).await);
    for what in ["key", "parameters", "context", "outputs", "reply", "derived key", HOSTILE] {
        let url = desk.url(&format!("requests/{id}/reveal"));
        let form =
            desk.ask(reqwest::Method::POST, url).form(&[("what", what), ("reason", HOSTILE)]);
        check(desk.send(form.header("sec-fetch-site", "same-origin")).await);
    }
    let url = desk.url(&format!("requests/{id}/plan"));
    for act in ["executed", "not_executed", "finish", "retry", "erase", HOSTILE] {
        let hostile = ["version", "phase", "attempt", "output", "status", "media", "body"];
        let mut fields: Vec<_> = hostile.map(|name| (name, HOSTILE.to_owned())).to_vec();
        fields.push(("act", act.to_owned()));
        let form = desk.ask(reqwest::Method::POST, url.clone()).form(&fields);
        check(desk.send(form.header("sec-fetch-site", "same-origin")).await);
    }
    // The actor's own name.
    let name = "<b>\"&";
    let page = desk
        .send(desk.ask(reqwest::Method::GET, desk.url("overview")).header("x-name", name))
        .await;
    check(page).has("&lt;b&gt;&quot;&amp;");
    assert!(seen > 70, "{seen}");
}

fn serde_urlencoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Their names, reasons and outputs, on every page that has them: of a pause, of a bulk act, of a review.
async fn what_operators_say_is_text<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    unknown(&engine, "k").await;
    finish(&engine, "with-jobs").await;
    let text = HOSTILE.replace('\'', "''");
    let dead = format!("UPDATE atomic_phases_staged_jobs SET run_after = NULL, reason = '{text}'");
    db.sql(&dead).await;
    let id = id_of(&engine, "k").await;
    let name = &HOSTILE[HOSTILE.len() - 60..];
    let ops = engine.ops(Actor::new(name, Permissions::admin(), Scopes::All).unwrap());
    ops.pause("book", "charged", None, HOSTILE).await.unwrap();
    let one = Selection::Requests(vec![id]);
    let under_way = ops.start_bulk(BulkAct::Retry, &one, 1, HOSTILE).await.unwrap();
    let stopped = ops.start_bulk(BulkAct::Erase, &one, 1, HOSTILE).await.unwrap();
    let _ = ops.stop_bulk(stopped, HOSTILE).await.unwrap();
    let _ = ops.reveal(id, atomic_phases::ops::What::Key, HOSTILE).await.unwrap();

    let json = serde_json::to_string(HOSTILE).unwrap();
    let output = desk.request(id).await.form("/plan").with("act", "executed").with("output", &json);
    let unpause = desk.get("pauses").await.form("/pauses/plan").with("definition", "book");
    let unpause = unpause.with("phase", "charged").with("act", "unpause");
    let job = desk.get("jobs").await.form("/jobs/plan").with("act", "retry");
    let stop = desk.get(&format!("bulk/{under_way}")).await.form("/stop");
    let long = HOSTILE.repeat(9);
    for form in [
        output,
        unpause,
        job,
        stop.with("because", &long),
        desk.get("requests?state=unknown").await.form("/bulk/plan").with("act", "erase"),
    ] {
        let page = desk.submit(&form).await;
        assert!([200, 422].contains(&page.status), "{page:?}");
        shows_it(&page);
        // A refusal shows it again, beside what was typed.
        let Some(act) = super::html::forms(&page.url, &page.text).pop() else { continue };
        let names = ["reason", "because"]
            .into_iter()
            .filter(|name| act.names.contains(&(*name).to_owned()));
        let act = names.fold(act.clone(), |act, name| act.with(name, &long));
        let again = desk.submit(&act).await;
        assert_eq!(again.status, 422, "{again:?}");
        shows_it(&again);
    }
    let bulk = [under_way, stopped].map(|id| format!("bulk/{id}"));
    for path in ["pauses", "bulk", "audit", &bulk[0], &bulk[1], &format!("requests/{id}")] {
        let page = desk.get(path).await.is(200);
        page.has("&lt;img src=x onerror=alert(1)&gt;");
        shows_it(&page);
    }
}

#[track_caller]
fn shows_it(page: &Page) {
    has_nothing_inline(page);
    page.has_not("<img").has_not("<script>");
}

async fn a_mebibyte_and_deep_json_are_shown<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    unknown(&engine, "large").await;
    let id = id_of(&engine, "large").await;
    let large = format!("{HOSTILE}{}", "é".repeat(500_000));
    let choice = desk.request(id).await.form("/plan").with("act", "finish").with("status", "200");
    let choice = choice.with("media", "text").with("body", &large);
    let review = desk.submit(&choice).await.is(200);
    has_nothing_inline(&review);
    let act = review.form("/act").with("reason", "settled");
    let done = desk.submit(&act).await;
    assert_eq!(done.location().query(), Some("said=applied"), "{}", done.text);
    let reveal = |id| {
        let url = desk.url(&format!("requests/{id}/reveal"));
        let form =
            desk.ask(reqwest::Method::POST, url).form(&[("what", "reply"), ("reason", "look")]);
        desk.send(form.header("sec-fetch-site", "same-origin"))
    };
    let shown = reveal(id).await.is(200);
    has_nothing_inline(&shown);
    assert!(shown.text.len() > 1_000_000);
    let status = engine.status(&scope(), &key("large")).await.unwrap().unwrap();
    assert_eq!(status.reply.unwrap().bytes(), large.as_bytes(), "as it was given");

    // A line's end has six bytes in a form.
    unknown(&engine, "lines").await;
    let id = id_of(&engine, "lines").await;
    let lines = format!("-{}-", "\n".repeat((1 << 20) - 2));
    let choice = desk.request(id).await.form("/plan").with("act", "finish").with("status", "200");
    let choice = choice.with("media", "text").with("body", &lines.replace('\n', "\r\n"));
    let act = desk.submit(&choice).await.is(200).form("/act").with("reason", "settled");
    let done = desk.submit(&act).await;
    assert_eq!(done.location().query(), Some("said=applied"), "{}", done.text);
    let status = engine.status(&scope(), &key("lines")).await.unwrap().unwrap();
    assert!(status.reply.unwrap().bytes() == lines.as_bytes(), "as it was given");

    unknown(&engine, "deep").await;
    let id = id_of(&engine, "deep").await;
    let deep = format!("{}18446744073709551617{}", "[".repeat(20_000), "]".repeat(20_000));
    let deep: Box<RawValue> = RawValue::from_string(deep).unwrap();
    let word = Resolution::finish(Reply::json(200, &deep).unwrap());
    let _ = engine.resolve(&scope(), &key("deep"), word).await.unwrap();
    let shown = reveal(id).await.is(200);
    has_nothing_inline(&shown);
    shown.has("18446744073709551617");
}

/// A mebibyte that breaks out of everything, and JSON that is deeper than a stack.
fn large_and_deep() -> [String; 2] {
    let deep = format!("{}18446744073709551617{}", "[".repeat(20_000), "]".repeat(20_000));
    [format!("{HOSTILE}{}", "é".repeat(524_000)), deep]
}

/// Whatever is typed, wherever it may be typed: a page says what is wrong with it, or takes it as a text.
async fn a_mebibyte_and_deep_json_in_every_field_break_no_page<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    unknown(&engine, "k").await;
    finish(&engine, "with-jobs").await;
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    let id = id_of(&engine, "k").await;
    let one = Selection::Requests(vec![id]);
    let bulk = admin(&engine).start_bulk(BulkAct::Retry, &one, 1, "r").await.unwrap();
    let page = desk.request(id).await;
    let list = desk.get("requests?state=unknown").await;
    let settle = page.form("/plan").with("act", "not_executed");
    let pause = desk.get("pauses").await.form("/pauses/plan").with("act", "pause");
    let job = desk.get("jobs").await.form("/jobs/plan").with("act", "retry");
    let start = list.form("/bulk/plan").with("act", "retry");
    let forms = [
        desk.get("requests").await.form("/find"),
        page.form("/plan").with("act", "executed"),
        page.form("/plan").with("act", "finish"),
        desk.submit(&settle).await.is(200).form("/act"),
        page.form("/reveal").with("reason", "r"),
        desk.submit(&pause).await.is(200).form("/pauses/act"),
        desk.submit(&job).await.is(200).form("/jobs/act"),
        desk.submit(&start).await.is(200).form("/bulk/act"),
        desk.get(&format!("bulk/{bulk}")).await.form("/stop"),
        settle,
        pause,
        job,
        start,
    ];
    let filters = ["definition", "version", "phase", "reason", "older", "waiting", "after"];
    let mut sent = 0;
    for value in large_and_deep() {
        for form in &forms {
            let names: std::collections::BTreeSet<_> =
                form.names.iter().map(String::as_str).collect();
            let is_filtered = form.action.path().contains("/bulk/");
            let filters = filters.into_iter().filter(|_| is_filtered);
            for name in names.into_iter().chain(filters) {
                let told = desk.submit(&form.clone().with(name, &value)).await;
                assert!(told.status < 500, "{name} of {}: {}", form.action, told.status);
                shows_it(&told);
                sent += 1;
            }
        }
        // What stands in an address, as far as an address may be long.
        let text: String = value.chars().take(15_000).collect();
        let more = ["state", "before", "request", "actor", "act", "said"];
        for name in filters.into_iter().chain(more) {
            for path in ["requests", "waiting", "jobs", "audit", "bulk", &format!("requests/{id}")]
            {
                let mut url = desk.url(path);
                url.query_pairs_mut().append_pair(name, &text.replace('é', "e"));
                let told = desk.send(desk.ask(Method::GET, url)).await;
                assert!(told.status < 500, "{name} of {path}: {}", told.status);
                shows_it(&told);
                sent += 1;
            }
        }
    }
    assert!(sent > 2 * 120, "{sent}");
}

/// The operators' API, over a socket.
async fn api<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> String {
    let api = Api::new(engine.clone(), super::desk::operator);
    format!("http://{}/api", serve(Router::new().nest("/api", api.router())).await)
}

/// What it answers: JSON, whatever is in it. The body may be deeper than a `Value` can be.
async fn ask(method: Method, url: &str, body: Option<String>) -> (u16, String) {
    let mut request = Client::new().request(method, url).bearer_auth("token");
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    assert!(kind.starts_with("application/") && kind.contains("json"), "{kind}");
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    let text = answer.text().await.unwrap();
    let _: Value = serde_json::from_str(&text).unwrap();
    assert!(status < 500, "{url}: {status}: {text}");
    (status, text)
}

/// As parameters, context, outputs and reply: the page escapes it, and the API tells it character by character.
async fn what_is_stored_is_told_whole_by_pages_and_by_the_api<S: TestDb + OperatorStore>(db: S) {
    let engine = engine_with(&db, &App::default(), |builder| {
        builder.limits(Limits::default().reply_body(4 << 20))
    });
    let desk = Desk::of(&engine).await;
    let api = api(&engine).await;
    let [large, deep] = large_and_deep();
    let large = serde_json::to_string(&large).unwrap();
    for (name, value) in [("large", large), ("deep", deep)] {
        unknown(&engine, name).await;
        let reply = Reply::json(200, &RawValue::from_string(value.clone()).unwrap()).unwrap();
        let _ = engine.resolve(&scope(), &key(name), Resolution::finish(reply)).await.unwrap();
        let hex = |json: &str| json.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let bytes = |json: &str| match is_postgres::<S>() {
            true => format!("'\\x{}'::bytea", hex(json)),
            false => format!("x'{}'", hex(json)),
        };
        let (one, all) = (bytes(&value), bytes(&format!("[{value}]")));
        set(&engine, name, &format!("params = {one}, context = {one}, outputs = {all}")).await;
        let id = id_of(&engine, name).await;
        for what in ["parameters", "context", "outputs", "reply"] {
            let reveal = desk.request(id).await.form("/reveal").with("what", what);
            let shown = desk.submit(&reveal.with("reason", "look")).await.is(200);
            shows_it(&shown);
            assert!(shown.text.len() > value.len(), "{what}: {}", shown.text.len());

            let look = json!({ "what": what, "reason": "look" }).to_string();
            let (status, told) =
                ask(Method::POST, &format!("{api}/requests/{id}/values"), Some(look)).await;
            assert_eq!(status, 200, "{told}");
            let told: Value = serde_json::from_str(&told).unwrap();
            let text = match what {
                "reply" => told["reply"]["body"].as_str(),
                _ => told["json"].as_str(),
            };
            let is_whole = match what {
                "outputs" => text == Some(&format!("[{value}]")),
                _ => text == Some(&value),
            };
            assert!(is_whole, "{what} of {name}");
        }
    }
}

async fn the_api_takes_and_tells_what_is_meant_to_break_it<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    hostile_pages(&engine).await;
    let api = api(&engine).await;
    let id = id_of(&engine, "k").await;
    let mut told = String::new();
    let job = &admin(&engine).dead_jobs(None, 1).await.unwrap().rows[0];
    let bulk = &admin(&engine).bulks(None, 1).await.unwrap().rows[0];
    let (request, job, bulk) =
        (format!("requests/{id}"), format!("jobs/{}", job.id), format!("bulk/{}", bulk.id));
    let why = format!("{request}/why");
    for path in [
        "overview",
        "requests",
        "requests?state=unknown",
        "requests?stranded=true",
        &request,
        &why,
        "jobs",
        &job,
        "definitions",
        "nodes",
        "pauses",
        "bulk",
        &bulk,
        "audit",
    ] {
        let (status, text) = ask(Method::GET, &format!("{api}/{path}"), None).await;
        assert_eq!(status, 200, "{path}: {text}");
        told.push_str(&text);
    }
    // As it was given, for a program to read.
    let given = serde_json::to_string(HOSTILE).unwrap();
    assert!(told.contains(given.trim_matches('"')), "{told}");
    let [large, deep] = large_and_deep();
    for value in [json!(HOSTILE).to_string(), json!(large[..1_000_000]).to_string(), deep] {
        for (path, fields) in [
            (
                "requests/search",
                &["state", "definition", "version", "phase", "reason", "scope"][..],
            ),
            ("requests/search", &["older_than", "waiting_for", "limit", "cursor", "stranded"]),
            ("requests/find", &["scope", "key"]),
            (&format!("{request}/values"), &["what", "reason"]),
            (
                &format!("{request}/resolve"),
                &["word", "phase", "output", "attempt", "reply", "reason"],
            ),
            (&format!("{request}/retry"), &["reason"]),
            (&format!("{request}/erase"), &["reason"]),
            (&format!("{job}/retry"), &["reason"]),
            (&format!("{job}/discard"), &["reason"]),
            ("pauses/begin", &["definition", "phase", "for", "reason"]),
            ("pauses/end", &["definition", "phase", "reason"]),
            ("bulk/plan", &["act", "filter", "requests"]),
            ("bulk/start", &["act", "filter", "requests", "planned", "reason"]),
            (&format!("{bulk}/stop"), &["reason"]),
        ] {
            for field in fields {
                // The others as a program may send them.
                let others = ["word", "phase", "attempt", "reason", "what", "scope", "key", "act"];
                let others = others.iter().filter(|name| fields.contains(name) && *name != field);
                let others: Vec<String> = others
                    .map(|name| match *name {
                        "word" => "\"word\":\"executed\"".to_owned(),
                        "attempt" => "\"attempt\":1".to_owned(),
                        "what" => "\"what\":\"key\"".to_owned(),
                        "act" => "\"act\":\"retry\"".to_owned(),
                        name => format!("\"{name}\":\"text\""),
                    })
                    .chain([format!("\"{field}\":{value}")])
                    .collect();
                let body = format!("{{{}}}", others.join(","));
                ask(Method::POST, &format!("{api}/{path}"), Some(body)).await;
            }
        }
    }
}

/// Hostile texts wherever a page shows one that others wrote, and a name without a place to break it. The pages of
/// it.
pub async fn hostile_pages<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Vec<String> {
    unknown(engine, "k").await;
    unknown(engine, "renamed").await;
    finish(engine, "with-jobs").await;
    let long = "W".repeat(150);
    let text = format!("{}{long}", HOSTILE.replace('\'', "''"));
    let dead = format!("run_after = NULL, name = '{}', reason = '{text}'", &long[..50]);
    engine.store().sql(&format!("UPDATE atomic_phases_staged_jobs SET {dead}")).await;
    set(engine, "k", &format!("reason = '{text}'")).await;
    let id = id_of(engine, "k").await;
    let renamed = id_of(engine, "renamed").await;
    // Names that no build has, as long as the columns allow.
    let columns = ["definition", "recovery_point", "open_intent"];
    let columns = columns.map(|column| format!("{column} = '{}'", &long[..50]));
    match (is_memory::<S>(), is_postgres::<S>()) {
        (true, _) => {}
        (false, true) => {
            engine.store().sql("DROP TRIGGER forward_only ON atomic_phases_keys").await
        }
        (false, false) => engine.store().sql("DROP TRIGGER forward_only").await,
    }
    set(engine, "renamed", &columns.join(", ")).await;
    let name = &HOSTILE[HOSTILE.len() - 60..];
    let ops = engine.ops(Actor::new(name, Permissions::admin(), Scopes::All).unwrap());
    let reason = format!("{HOSTILE}{long}");
    ops.pause("book", "charged", None, &reason).await.unwrap();
    let both = Selection::Requests(vec![id, renamed]);
    let under_way = ops.start_bulk(BulkAct::Retry, &both, 2, &reason).await.unwrap();
    let stopped = ops.start_bulk(BulkAct::Erase, &both, 2, &reason).await.unwrap();
    let _ = ops.stop_bulk(stopped, &reason).await.unwrap();
    let _ = ops.reveal(id, atomic_phases::ops::What::Key, &reason).await.unwrap();
    let node = WorkerConfig::default().node(HOSTILE, HOSTILE);
    Announcer::new(engine, node).run_once().await.unwrap();
    let pages =
        ["overview", "waiting", "requests", "jobs", "definitions", "pauses", "bulk", "audit"];
    let mut pages = pages.map(str::to_owned).to_vec();
    pages.extend([under_way, stopped].map(|id| format!("bulk/{id}")));
    pages.extend([id, renamed].map(|id| format!("requests/{id}")));
    pages
}
