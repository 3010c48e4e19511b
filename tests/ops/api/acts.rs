//! Acts over HTTP: each names the version that the operator saw, is done once, and is in the audit.

use std::time::Duration;

use atomic_phases::config::Limits;
use atomic_phases::ops::OperatorStore;
use atomic_phases::worker::BulkRunner;
use serde_json::json;

use super::described::fits;
use super::*;
use crate::ops::cast::*;
use crate::support::work::{completed, config};

on_every_store! {
    g1_g2_each_resolution_is_taken_once_and_the_request_goes_on,
    a_value_near_its_limit_is_taken,
    g3_an_act_about_a_row_that_moved_on_is_a_412,
    g18_a_dead_job_is_retried_or_discarded_as_it_was_seen,
    a_foreign_phase_is_paused_and_goes_on,
    g3_an_act_about_a_pause_that_moved_on_is_a_412,
    a_bulk_act_is_planned_started_followed_and_stopped,
    a_client_that_hangs_up_leaves_no_act_half_done,
    a_read_that_found_no_database_leaves_nothing_in_the_audit,
}

/// The path of a request, and its current version.
async fn at<S: TestDb + OperatorStore>(
    engine: &TestEngine<S>,
    routes: &Router,
    name: &str,
) -> (String, String) {
    let path = format!("/requests/{}", id_of(engine, name).await);
    let version = get(routes, &path).await.version();
    (path, version)
}

async fn g1_g2_each_resolution_is_taken_once_and_the_request_goes_on<S: TestDb + OperatorStore>(
    db: S,
) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let routes = routes(&engine);
    let words = [
        ("executed", json!({ "phase": "notified", "output": { "id": "effect-9", "padding": "" } })),
        ("not_executed", json!({ "phase": "notified", "attempt": 1 })),
        (
            "finish",
            json!({ "reply": { "status": 409, "headers": [["content-type", "text/plain"]], "body": "by hand" } }),
        ),
    ];
    for (name, mut word) in words {
        unknown(&engine, name).await;
        let (path, version) = at(&engine, &routes, name).await;
        word["word"] = name.into();
        word["reason"] = "the pilot said so".into();
        let resolve = format!("{path}/resolve");
        let done = post(&routes, &resolve, Some(&version), word.clone()).await.ok();
        fits("Done", &done);
        assert_eq!(done["outcome"], "applied", "{name}");
        // The same once more: by a retry of the client, or a double click.
        let again = post(&routes, &resolve, Some(&version), word).await.ok();
        assert_eq!(again["outcome"], "already", "{name}");
    }
    assert_eq!(app.provider.effects(), 3, "no act makes a call");
    assert_eq!(completed(&engine).await.finished, 1, "the one that was executed");
    assert_eq!(app.provider.effects(), 4, "the one that was not was called again");
    let by_hand =
        finished(engine.call(&scope(), &key("finish"), notify(Trouble::UnknownForeign)).await);
    assert_eq!((by_hand.reply.status(), by_hand.reply.bytes()), (409, &b"by hand"[..]));

    dead_letter(&engine, "dead").await;
    let (path, version) = at(&engine, &routes, "dead").await;
    let because = json!({ "reason": "it is back" });
    let done = post(&routes, &format!("{path}/retry"), Some(&version), because.clone()).await.ok();
    assert_eq!(done["outcome"], "applied");

    let (path, version) = at(&engine, &routes, "finish").await;
    let done = post(&routes, &format!("{path}/erase"), Some(&version), because).await.ok();
    assert_eq!(done["outcome"], "applied");
    assert_eq!(get(&routes, &path).await.ok()["request"]["state"], "erased");
    let acts = get(&routes, "/audit").await.ok();
    let told: Vec<_> = acts["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| (act["act"].as_str().unwrap(), act["outcome"].as_str().unwrap()))
        .collect();
    let expected = [
        ("erase", "applied"),
        ("retry", "applied"),
        ("resolve.finish", "already"),
        ("resolve.finish", "applied"),
        ("resolve.not_executed", "already"),
        ("resolve.not_executed", "applied"),
        ("resolve.executed", "already"),
        ("resolve.executed", "applied"),
    ];
    assert_eq!(told, expected);
    let given = |acts: &Value, row: usize| {
        let act = &acts["rows"][row];
        json!([act["attempt"], act["value_sha256"], act["value_bytes"]])
    };
    let output = r#"{"id":"effect-9","padding":""}"#;
    let digest = |value: &str| json!([null, sha256(value), value.len()]);
    let expected = [digest("by hand"), json!([1, null, null]), digest(output)];
    assert_eq!([3, 5, 7].map(|row| given(&acts, row)), expected);
    let responder = Caller(Permissions::responder(), Scopes::All);
    let acts = send(&routes, Some(responder), request("GET", "/audit", None), None).await.ok();
    fits("Acts", &acts);
    assert_eq!(given(&acts, 3), json!([null, null, 7]));
    for (query, found) in [
        ("act=erase", 1),
        ("act=resolve", 6),
        ("act=resolve.finish", 2),
        ("actor=ada", 8),
        ("actor=ada&act=retry", 1),
        ("actor=a%64a&act=reveal", 0),
        ("actor=bob", 0),
    ] {
        let rows = get(&routes, &format!("/audit?{query}")).await.ok();
        fits("Acts", &rows);
        assert_eq!(rows["rows"].as_array().unwrap().len(), found, "{query}");
    }
    for bad in ["act=erasure", "act=", "actor=", "actor=a%0ab"] {
        get(&routes, &format!("/audit?{bad}")).await.is(422, "invalid");
    }
}

/// The body of such a request is larger than the value, and its limit follows the engine's.
async fn a_value_near_its_limit_is_taken<S: TestDb + OperatorStore>(db: S) {
    let engine = engine_with(&db, &App::default(), |builder| {
        let limits = Limits::default().reply_body(2 << 20);
        builder.lease(Duration::from_secs(60)).limits(limits)
    });
    let routes = routes(&engine);
    // In JSON, each of these has six bytes.
    let body = "\u{1}".repeat(2 << 20);
    let reason = "it rang ".repeat(50);
    let reply = json!({ "status": 200, "headers": [["content-type", "text/plain"]], "body": body });
    let output = json!({ "id": "e", "padding": "x".repeat((1 << 20) - 300) });
    for (name, said) in [
        ("finish", json!({ "word": "finish", "reply": reply, "reason": "by hand" })),
        (
            "executed",
            json!({ "word": "executed", "phase": "notified", "output": output, "reason": reason }),
        ),
    ] {
        unknown(&engine, name).await;
        let (path, version) = at(&engine, &routes, name).await;
        let done = post(&routes, &format!("{path}/resolve"), Some(&version), said).await.ok();
        assert_eq!(done["outcome"], "applied", "{name}");
    }
    let by_hand =
        finished(engine.call(&scope(), &key("finish"), notify(Trouble::UnknownForeign)).await);
    assert!(by_hand.reply.bytes() == body.as_bytes());
    assert_eq!(completed(&engine).await.finished, 1, "the other goes on");
}

async fn g3_an_act_about_a_row_that_moved_on_is_a_412<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    dead_letter(&engine, "k").await;
    let (path, stale) = at(&engine, &routes, "k").await;
    // Another operator was faster, and it gave up again.
    let _ = engine
        .resolve(&scope(), &key("k"), atomic_phases::engine::Resolution::retry())
        .await
        .unwrap();
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await);
    set(&engine, "k", "status = 'dead_letter', run_after = NULL, waiting_since = created_at").await;
    let (_, now) = at(&engine, &routes, "k").await;
    assert_ne!(stale, now);

    let before = dump(&db).await;
    let finish = json!({ "word": "finish", "reply": { "status": 200 }, "reason": "r" });
    let because = json!({ "reason": "r" });
    let acts = [("retry", because.clone()), ("resolve", finish), ("erase", because.clone())];
    for (act, body) in &acts {
        let uri = format!("{path}/{act}");
        let weak = format!("W/{now}");
        for seen in [stale.as_str(), "\"no version\"", "\"\""] {
            post(&routes, &uri, Some(seen), body.clone()).await.is(412, "moved_on");
        }
        post(&routes, &uri, None, body.clone()).await.is(428, "version_missing");
        let two = format!("{stale}, {now}");
        for none in ["*", "", &weak, "unquoted", &two] {
            post(&routes, &uri, Some(none), body.clone()).await.is(400, "malformed");
        }
    }
    assert_eq!(dump(&db).await, before, "nothing was written to a row");
    let told = post(&routes, &format!("{path}/erase"), Some(&now), because.clone()).await;
    assert!(told.status == 200 || told.json["code"] == "refused", "{told:?}");
}

async fn g18_a_dead_job_is_retried_or_discarded_as_it_was_seen<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    finish(&engine, "k").await;
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL, attempts = 20").await;
    let jobs = get(&routes, "/jobs").await.ok();
    let because = json!({ "reason": "address found" });
    for (job, act) in jobs["rows"].as_array().unwrap().iter().zip(["retry", "discard"]) {
        let uri = format!("/jobs/{}/{act}", job["id"].as_str().unwrap());
        assert_eq!(job["version"], "20");
        post(&routes, &uri, Some("\"19\""), because.clone()).await.is(412, "moved_on");
        post(&routes, &uri, Some("\"x\""), because.clone()).await.is(412, "moved_on");
        post(&routes, &uri, None, because.clone()).await.is(428, "version_missing");
        let done = post(&routes, &uri, Some("\"20\""), because.clone()).await.ok();
        assert_eq!(done["outcome"], "applied");
        post(&routes, &uri, Some("\"20\""), because.clone()).await.is(404, "no_such_job");
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 1);
}

async fn a_foreign_phase_is_paused_and_goes_on<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let routes = routes(&engine);
    let begin =
        json!({ "definition": "book", "phase": "charged", "for": "2h", "reason": "closed" });
    let done = post(&routes, "/pauses/begin", None, begin.clone()).await.ok();
    fits("BegunPause", &done);
    assert!(done["replaced"].is_null(), "{done}");
    let (seen, pause) = pause_as_listed(&routes).await;
    let done = post(&routes, "/pauses/begin", Some(&seen), begin).await.ok();
    fits("BegunPause", &done);
    assert_eq!(done["replaced"], pause);
    failed(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 0);
    let pauses = get(&routes, "/pauses").await.ok();
    fits("Pauses", &pauses);
    assert_eq!(
        (&pauses["rows"][0]["reason"], &pauses["rows"][0]["paused_by"]),
        (&json!("closed"), &json!("ada"))
    );
    let id = id_of(&engine, "k").await;
    let why = get(&routes, &format!("/requests/{id}/why")).await.ok();
    fits("Why", &why);
    assert_eq!(why["held_by"], "paused");

    let end = json!({ "definition": "book", "phase": "charged", "reason": "open" });
    let (seen, _) = pause_as_listed(&routes).await;
    let done = post(&routes, "/pauses/end", Some(&seen), end).await.ok();
    fits("EndedPause", &done);
    assert_eq!((&done["outcome"], &done["still_paused"]), (&json!("applied"), &Value::Null));
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let acts = get(&routes, "/audit").await.ok();
    fits("Acts", &acts);
    assert_eq!(
        (&acts["rows"][1]["act"], &acts["rows"][1]["phase"]),
        (&json!("pause"), &json!("charged"))
    );
    for (body, status, code) in [
        (json!({ "definition": "book", "phase": "booked", "reason": "r" }), 404, "no_such_phase"),
        (
            json!({ "definition": "book", "phase": "charged", "for": "soon", "reason": "r" }),
            400,
            "malformed",
        ),
        (
            json!({ "definition": "book", "phase": "charged", "for": "4000d", "reason": "r" }),
            422,
            "invalid",
        ),
        (
            json!({ "definition": "book", "phase": "charged", "for": "0s", "reason": "r" }),
            422,
            "invalid",
        ),
        (json!({ "definition": "book", "phase": "charged", "reason": "" }), 422, "invalid"),
    ] {
        post(&routes, "/pauses/begin", None, body).await.is(status, code);
    }
}

/// Another operator has replaced it, or ended it, in between; and one has paused the phase that was not paused.
async fn g3_an_act_about_a_pause_that_moved_on_is_a_412<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    let body = |reason: &str| json!({ "definition": "book", "phase": "charged", "reason": reason });
    post(&routes, "/pauses/begin", None, body("closed")).await.ok();
    let (first, _) = pause_as_listed(&routes).await;
    post(&routes, "/pauses/begin", None, body("again")).await.is(412, "moved_on");
    post(&routes, "/pauses/begin", Some(&first), body("longer")).await.ok();
    let (second, pause) = pause_as_listed(&routes).await;
    assert_eq!(pause["reason"], "longer");
    let weak = format!("W/{second}");
    for act in ["/pauses/begin", "/pauses/end"] {
        for stale in [first.as_str(), "\"no version\"", "\"\""] {
            post(&routes, act, Some(stale), body("stale")).await.is(412, "moved_on");
        }
        for none in ["*", "", &weak, "unquoted"] {
            post(&routes, act, Some(none), body("stale")).await.is(400, "malformed");
        }
    }
    post(&routes, "/pauses/end", None, body("stale")).await.is(428, "version_missing");
    assert_eq!(pause_as_listed(&routes).await, (second.clone(), pause), "nothing was done");
    post(&routes, "/pauses/end", Some(&second), body("open")).await.ok();
    for act in ["/pauses/begin", "/pauses/end"] {
        post(&routes, act, Some(&second), body("stale")).await.is(412, "moved_on");
    }
    let pauses = get(&routes, "/pauses").await.ok();
    assert_eq!(pauses["rows"], json!([]));
    let acts = get(&routes, "/audit").await.ok();
    let refused = acts["rows"].as_array().unwrap().iter().filter(|act| act["outcome"] == "refused");
    assert_eq!(refused.count(), 1 + 2 * 3 + 2);
}

/// The version of the only pause, as `If-Match` has it, and the pause.
async fn pause_as_listed(routes: &Router) -> (String, Value) {
    let pauses = get(routes, "/pauses").await.ok();
    let rows = pauses["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{pauses}");
    (format!("\"{}\"", rows[0]["version"].as_str().unwrap()), rows[0].clone())
}

async fn a_bulk_act_is_planned_started_followed_and_stopped<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    dead_letter(&engine, "k").await;
    finish(&engine, "finished").await;
    let id = id_of(&engine, "finished").await;
    let filter = json!({ "act": "retry", "filter": { "state": ["dead_letter"] } });
    let plan = post(&routes, "/bulk/plan", None, filter).await.ok();
    fits("Plan", &plan);
    assert_eq!((&plan["count"], &plan["fitting"]), (&json!(1), &json!(1)));
    let ids = json!([id_of(&engine, "k").await.to_string(), id.to_string()]);
    let both = json!({ "act": "retry", "requests": ids });
    let planned = post(&routes, "/bulk/plan", None, both).await.ok()["version"].clone();
    let start =
        json!({ "act": "retry", "requests": ids, "planned": planned, "reason": "provider back" });
    let started = post(&routes, "/bulk/start", None, start.clone()).await.ok();
    fits("Started", &started);
    let uri = format!("/bulk/{}", started["id"].as_str().unwrap());
    assert_eq!(get(&routes, &uri).await.ok()["settled"], 0);
    BulkRunner::new(&engine, config()).run_once().await.unwrap();
    let told = get(&routes, &uri).await.ok();
    fits("BulkDetails", &told);
    assert_eq!((&told["count"], &told["applied"]), (&json!(2), &json!(1)));
    assert_eq!(told["refusals"][0]["request"], json!(id.to_string()));
    let bulks = get(&routes, "/bulk").await.ok();
    fits("Bulks", &bulks);
    assert_eq!(bulks["rows"].as_array().unwrap().len(), 1);
    let stopped = post(&routes, &format!("{uri}/stop"), None, json!({ "reason": "r" })).await.ok();
    fits("Done", &stopped);
    assert_eq!(stopped["outcome"], "already");
    let acts = get(&routes, "/audit").await.ok();
    fits("Acts", &acts);
    assert_eq!(acts["rows"][1]["bulk"], started["id"]);
    // Sent again, by a client that got no answer.
    assert_eq!(post(&routes, "/bulk/start", None, start.clone()).await.ok(), started);
    assert_eq!(get(&routes, "/bulk").await.ok()["rows"].as_array().unwrap().len(), 1);
    for (change, status, code) in [
        // The version of another plan, whose request was retried since then; and that of the started plan, as
        // another act.
        (json!({}), 412, "moved_on"),
        (json!({ "planned": planned, "act": "erase" }), 412, "moved_on"),
        (json!({ "planned": 3 }), 412, "moved_on"),
        (json!({ "planned": -1 }), 400, "malformed"),
        (json!({ "planned": null }), 422, "invalid"),
        (json!({ "reason": null }), 422, "invalid"),
        (json!({ "reason": "" }), 422, "invalid"),
        (json!({ "act": "resolve" }), 422, "invalid"),
        (json!({ "requests": null }), 422, "invalid"),
        (json!({ "filter": {} }), 422, "invalid"),
        (json!({ "requests": null, "filter": {} }), 422, "invalid"),
        (json!({ "requests": null, "filter": { "states": ["due"] } }), 400, "malformed"),
        (json!({ "requests": null, "filter": { "state": ["due"], "limit": 5 } }), 422, "invalid"),
    ] {
        let mut body = start.clone();
        body["planned"] = plan["version"].clone();
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        post(&routes, "/bulk/start", None, body).await.is(status, code);
    }
    get(&routes, "/bulk/x").await.is(404, "no_such_bulk");
}

/// The future of the answer is dropped after its first poll; the act is done all the same.
async fn a_client_that_hangs_up_leaves_no_act_half_done<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    dead_letter(&engine, "k").await;
    let (path, version) = at(&engine, &routes, "k").await;
    let retry = format!("{path}/retry");
    let answer = post(&routes, &retry, Some(&version), json!({ "reason": "r" }));
    // Polled once, and dropped.
    let _ = tokio::time::timeout(Duration::ZERO, answer).await;
    until(async || get(&routes, &path).await.ok()["request"]["state"] == "due").await;
    assert_eq!(get(&routes, "/audit").await.ok()["rows"][0]["outcome"], "applied");
}

async fn a_read_that_found_no_database_leaves_nothing_in_the_audit<S: TestDb + OperatorStore>(
    db: S,
) {
    if is_memory::<S>() {
        return;
    }
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    dead_letter(&engine, "k").await;
    let (path, version) = at(&engine, &routes, "k").await;
    db.sql("ALTER TABLE atomic_phases_keys RENAME TO put_away").await;
    let plan = json!({ "act": "retry", "filter": { "state": "dead_letter" } });
    let looks = [
        get(&routes, "/overview").await,
        get(&routes, "/requests").await,
        get(&routes, &path).await,
        post(&routes, "/requests/search", None, json!({})).await,
        post(&routes, "/requests/find", None, json!({ "scope": "a", "key": "k" })).await,
        post(&routes, "/bulk/plan", None, plan).await,
    ];
    for told in looks {
        told.is(503, "unavailable");
        let detail = told.json["detail"].as_str().unwrap();
        assert!(
            detail.starts_with("Nothing was changed.") && !detail.contains("audit"),
            "{detail}"
        );
    }
    for act in ["retry", "erase"] {
        let act = format!("{path}/{act}");
        let told = post(&routes, &act, Some(&version), json!({ "reason": "r" })).await;
        told.is(503, "unavailable");
        assert!(told.json["detail"].as_str().unwrap().contains("is in the audit"), "{told:?}");
    }
}
