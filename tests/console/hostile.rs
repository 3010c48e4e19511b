//! Values that are meant to break a page: markup, characters that change the text direction, a mebibyte, deep JSON;
//! in every field that a page shows.

use atomic_phases::engine::Resolution;
use atomic_phases::ops::{Actor, BulkAct, OperatorStore, Permissions, Scopes, Selection};
use atomic_phases::worker::{Announcer, WorkerConfig};
use atomic_phases::{Reply, Scope};
use serde_json::value::RawValue;

use super::cast::*;
use super::desk::{Desk, Page};
use super::html::tags;
use crate::support::*;

on_every_store! {
    what_is_meant_to_break_a_page_is_text,
    what_operators_say_is_text,
    a_mebibyte_and_deep_json_are_shown,
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
    for what in ["key", "parameters", "context", "outputs", "reply", HOSTILE] {
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
    let _ = ops.pause("book", "charged", None, HOSTILE).await.unwrap();
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
