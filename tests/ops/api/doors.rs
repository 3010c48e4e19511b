//! Access: foreign pages, unknown callers, unreadable requests.

use std::collections::BTreeSet;

use atomic_phases::ops::OperatorStore;
use serde_json::json;

use super::*;
use crate::ops::cast::*;

on_every_store! {
    what_cannot_be_served_is_a_problem_as_it_is_described,
    each_body_and_each_query_is_read_as_it_is_described,
    a_foreign_page_reads_nothing_and_writes_nothing,
    an_api_that_is_read_only_has_no_route_that_writes,
}

async fn what_cannot_be_served_is_a_problem_as_it_is_described<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    unknown(&engine, "k").await;
    let path = format!("/requests/{}", id_of(&engine, "k").await);
    let version = get(&routes, &path).await.version();
    let stranger = send(&routes, None, request("GET", &path, None), None).await;
    stranger.is(401, "unauthenticated");
    assert_eq!(stranger.headers["www-authenticate"], "Bearer");
    // Only an admitted caller learns whether a route exists.
    send(&routes, None, request("GET", "/nothing", None), None).await.is(401, "unauthenticated");

    for uri in ["/nothing", "/", "/requests/a/b/c"] {
        get(&routes, uri).await.is(404, "no_such_route");
    }
    let told = post(&routes, "/overview", None, json!({})).await;
    told.is(405, "method_not_allowed");
    assert_eq!(told.headers["allow"], "GET,HEAD");
    let told = get(&routes, &format!("{path}/retry")).await;
    told.is(405, "method_not_allowed");
    assert_eq!(told.headers["allow"], "POST");
    for id in ["x", "00000000-0000-4000-8000-000000000000", "%ff"] {
        get(&routes, &format!("/requests/{id}")).await.is(404, "no_such_request");
    }
    for (query, status, code) in [
        ("state=stuck", 400, "malformed"),
        ("colour=red", 400, "malformed"),
        ("limit=many", 400, "malformed"),
        ("limit=0", 422, "invalid"),
        ("limit=1001", 422, "invalid"),
        ("version=1", 422, "invalid"),
        ("cursor=x", 422, "invalid"),
        ("older_than=4294967295d", 422, "invalid"),
        ("reason=", 422, "invalid"),
        ("phase=+", 422, "invalid"),
        ("definition=&state=finished", 422, "invalid"),
        ("scope=tenant-1", 422, "invalid"),
    ] {
        get(&routes, &format!("/requests?{query}")).await.is(status, code);
    }
    let lists = [("jobs", 1000), ("jobs?state=late", 1000), ("bulk", 100), ("audit", 1000)];
    for (list, largest) in lists {
        let and = if list.contains('?') { '&' } else { '?' };
        get(&routes, &format!("/{list}{and}limit={largest}")).await.ok();
        for rows in [0, largest + 1] {
            let told = get(&routes, &format!("/{list}{and}limit={rows}")).await;
            told.is(422, "invalid");
            let detail = told.json["detail"].as_str().unwrap();
            assert!(detail.contains(&format!("1 to {largest}")), "{detail}");
        }
    }
    // A forged time in the year 253509 BC: no database has it.
    for list in ["jobs", "bulk", "audit"] {
        let told = get(&routes, &format!("/{list}?cursor=kPpKYsTgAAAAAAAAAAAAAAAAAAAAAAAA")).await;
        told.is(422, "invalid");
    }
    let told = post(&routes, "/requests/find", None, json!({ "scope": "s", "key": 4711 })).await;
    told.is(400, "malformed");
    assert!(!told.json.to_string().contains("4711"), "G19: {told:?}");
    let resolve = format!("{path}/resolve");
    for (body, status, code) in [
        (json!({ "word": "retry", "reason": "r" }), 400, "malformed"),
        (json!({ "word": "finish", "reason": "r" }), 422, "invalid"),
        (json!({ "word": "finish", "reply": { "status": 99 }, "reason": "r" }), 409, "refused"),
        (json!({ "word": "finish", "reply": { "status": 200 }, "reason": "" }), 422, "invalid"),
        (
            json!({ "word": "executed", "phase": "nothing", "output": 1, "reason": "r" }),
            409,
            "refused",
        ),
        (
            json!({ "word": "executed", "phase": "notified", "output": 1, "reason": "r" }),
            409,
            "refused",
        ),
        (
            json!({ "word": "not_executed", "phase": "notified", "attempt": 9, "reason": "r" }),
            409,
            "refused",
        ),
        (
            json!({ "word": "finish", "reply": { "status": 200 }, "reason": "r", "force": true }),
            400,
            "malformed",
        ),
    ] {
        post(&routes, &resolve, Some(&version), body).await.is(status, code);
    }
    let what = json!({ "what": "everything", "reason": "r" });
    post(&routes, &format!("{path}/values"), None, what).await.is(422, "invalid");
    let sought = json!({ "scope": "tenant-1", "key": "two\nlines" });
    post(&routes, "/requests/find", None, sought).await.is(422, "invalid");

    let body = json!({ "reason": "r" });
    let typed = |media: &str| {
        let post = Request::builder().method("POST").uri(format!("{path}/retry"));
        post.header("authorization", "Bearer t").header("content-type", media.to_owned())
    };
    for media in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let told = send(&routes, Some(Caller::admin()), typed(media), Some(&body)).await;
        told.is(415, "unsupported_media_type");
    }
    let told =
        send(&routes, Some(Caller::admin()), typed("Application/JSON; charset=utf-8"), Some(&body))
            .await;
    told.is(428, "version_missing");
    let large = json!({ "reason": "x".repeat(7 << 20) });
    let told = post(&routes, &format!("{path}/retry"), Some(&version), large).await;
    told.is(413, "body_too_large");
    // A reply of a mebibyte with 16 KiB of headers, of which each byte may have six, and what stands beside it.
    let most = 6 * ((1 << 20) + (16 << 10)) + (64 << 10);
    let detail = told.json["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("{most} bytes")), "{detail}");
    // One that breaks off may be as small as it has to be.
    let parts = [Ok("{"), Err(std::io::Error::other("the connection is gone"))];
    let broken = Body::from_stream(futures_util::stream::iter(parts));
    let typed = typed("application/json");
    let told = send_body(&routes, Some(Caller::admin()), typed, broken).await;
    told.is(408, "body_not_read");
    assert_eq!(told.json["retryable"], true);
    assert_eq!(get(&routes, &path).await.version(), version, "nothing was done");

    // If the router is nested, a problem's link still leads to its description.
    let nested = Router::new().nest("/t/{id}/ops", of(&engine).router());
    let told = get(&nested, "/t/7/ops/requests/x").await;
    told.is(404, "no_such_request");
    assert_eq!(told.json["type"], "/t/7/ops/openapi.json#no_such_request");
    get(&nested, &format!("/t/7/ops{path}")).await.ok();
}

/// What a route reads besides what is described, only to say why it is refused, or because it does not matter.
fn more_is_read(path: &str, of: Option<&str>) -> &'static [&'static str] {
    match (path, of) {
        ("/requests", None) => &["scope"],
        // What is planned is started with a member more.
        ("/bulk/plan", None) => &["planned", "reason"],
        ("/bulk/plan" | "/bulk/start", Some("filter")) => &["cursor", "limit"],
        _ => &[],
    }
}

/// No member that is described is unknown, and none is known that is not described: a route that meets an unknown one
/// says which it knows.
async fn each_body_and_each_query_is_read_as_it_is_described<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    let known_by = |told: &Told| -> BTreeSet<String> {
        told.is(400, "malformed");
        let detail = told.json["detail"].as_str().unwrap();
        let (_, known) = detail.split_once("unknown field `none`, expected ").expect(detail);
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let expected = |path: &str, of: Option<&str>, described: &Value| -> BTreeSet<String> {
        let more = more_is_read(path, of).iter().map(|name| (*name).to_owned());
        described.as_object().unwrap().keys().cloned().chain(more).collect()
    };
    let (mut bodies, mut queries) = (0, 0);
    for described::Read { path, body, query } in described::reads() {
        let uri = path.replace("{id}", &uuid::Uuid::nil().to_string());
        if let Some(query) = query {
            queries += 1;
            let told = get(&routes, &format!("{uri}?none=1")).await;
            assert_eq!(known_by(&told), expected(&path, None, &query), "{path}");
            for (name, schema) in query.as_object().unwrap() {
                let value = described::sample(schema);
                let value = match &value {
                    Value::String(text) => text.clone(),
                    Value::Array(_) => String::new(),
                    other => other.to_string(),
                };
                let told = get(&routes, &format!("{uri}?{name}={value}")).await;
                assert_ne!(told.status, 400, "{path} {name}={value}: {told:?}");
            }
        }
        let Some(schema) = body else { continue };
        bodies += 1;
        let send = async |body: Value| post(&routes, &uri, Some("\"stale\""), body).await;
        let told = send(json!({ "none": 0 })).await;
        assert_eq!(known_by(&told), expected(&path, None, &schema["properties"]), "{path}");
        let least = described::sample(&schema);
        let told = send(least.clone()).await;
        assert_ne!(told.status, 400, "{path} {least}: {told:?}");
        for name in least.as_object().unwrap().keys() {
            let mut without = least.clone();
            without.as_object_mut().unwrap().remove(name);
            let told = send(without).await;
            assert!(matches!(told.status.as_u16(), 400 | 422), "{path} without {name}: {told:?}");
        }
        for (name, of) in schema["properties"].as_object().unwrap() {
            let mut with = least.clone();
            with[name] = described::sample(of);
            let told = send(with.clone()).await;
            assert_ne!(told.status, 400, "{path} {with}: {told:?}");
            if of["properties"].is_object() {
                with[name] = json!({ "none": 0 });
                let known = known_by(&send(with).await);
                assert_eq!(known, expected(&path, Some(name), &of["properties"]), "{path} {name}");
            }
        }
    }
    assert_eq!((bodies, queries), (13, 4));
}

/// The headers that a browser sends for a page of another origin.
const FOREIGN: [&[(&str, &str)]; 6] = [
    &[("sec-fetch-site", "cross-site")],
    &[("sec-fetch-site", "same-site"), ("origin", "http://ops.test")],
    &[("host", "ops.test"), ("origin", "http://evil.test")],
    &[("host", "ops.test"), ("origin", "null")],
    &[("cookie", "session=1")],
    &[],
];

async fn a_foreign_page_reads_nothing_and_writes_nothing<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    dead_letter(&engine, "k").await;
    let id = id_of(&engine, "k").await.to_string();
    let path = format!("/requests/{id}");
    let version = get(&routes, &path).await.version();
    let before = (dump(&db).await, db.number("SELECT count(*) FROM atomic_phases_audit").await);
    let body = json!({ "reason": "r" });
    // Each route that reads a body is a POST route, and each of these reads one.
    let posts = described::reads().into_iter().filter(|read| read.body.is_some());
    let uris: Vec<String> = posts.map(|read| read.path.replace("{id}", &id)).collect();
    assert!(uris.contains(&format!("{path}/erase")), "{uris:?}");
    let browser = |uri: &str, lines: &[(&str, &str)]| {
        let mut post = Request::builder().method("POST").uri(uri);
        for (name, value) in lines {
            post = post.header(*name, *value);
        }
        post.header("content-type", "application/json").header("if-match", &version)
    };
    let size = format!("{} POST routes x {} origins", uris.len(), FOREIGN.len());
    assert!(include_str!("../../../docs/operating.md").contains(&size), "{size}");
    for uri in &uris {
        for lines in FOREIGN {
            let told = send(&routes, Some(Caller::admin()), browser(uri, lines), Some(&body)).await;
            told.is(403, "cross_origin");
            let stranger = send(&routes, None, browser(uri, lines), Some(&body)).await;
            stranger.is(401, "unauthenticated");
        }
    }
    let after = (dump(&db).await, db.number("SELECT count(*) FROM atomic_phases_audit").await);
    assert_eq!(before, after);
    // No header allows a foreign page to read an answer.
    let told = get(&routes, "/overview").await;
    assert!(told.headers.keys().all(|name| !name.as_str().starts_with("access-control")));

    // The same from a page of the same origin, and from one of an allowed origin.
    let allowing = of(&engine).allow_origin("https://ops.example.com").unwrap().router();
    let retry = format!("{path}/retry");
    let from = [("host", "inside:80"), ("origin", "https://ops.example.com")];
    let told = send(&routes, Some(Caller::admin()), browser(&retry, &from), Some(&body)).await;
    told.is(403, "cross_origin");
    let told = send(&allowing, Some(Caller::admin()), browser(&retry, &from), Some(&body)).await;
    assert_eq!(told.ok()["outcome"], "applied");
    let ours = [("sec-fetch-site", "same-origin")];
    let told = send(&routes, Some(Caller::admin()), browser(&retry, &ours), Some(&body)).await;
    assert_eq!(told.ok()["outcome"], "already");
}

async fn an_api_that_is_read_only_has_no_route_that_writes<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = of(&engine).read_only().router();
    dead_letter(&engine, "k").await;
    let path = format!("/requests/{}", id_of(&engine, "k").await);
    let version = get(&routes, &path).await.version();
    let body = json!({ "what": "key", "reason": "r" });
    for act in ["values", "resolve", "retry", "erase"] {
        let told = post(&routes, &format!("{path}/{act}"), Some(&version), body.clone()).await;
        told.is(404, "no_such_route");
    }
    for act in ["retry", "discard"] {
        let told = post(&routes, &format!("/jobs/x/{act}"), Some("\"1\""), body.clone()).await;
        told.is(404, "no_such_route");
    }
    for act in ["begin", "end"] {
        post(&routes, &format!("/pauses/{act}"), None, body.clone()).await.is(404, "no_such_route");
    }
    post(&routes, "/requests/search", None, json!({})).await.ok();
    let sought = json!({ "scope": "tenant-1", "key": "k" });
    post(&routes, "/requests/find", None, sought).await.ok();
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_audit").await, 0);
}
