//! Every route and method, under every set of permissions and every kind of scopes.

use std::collections::BTreeMap;

use atomic_phases::Scope;
use atomic_phases::ops::OperatorStore;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::ops::cast::*;

on_every_store! {
    g16_each_route_needs_its_permission_and_shows_its_scopes_only,
}

const NAMED: [(Permissions, &str); 7] = [
    (Permissions::READ, "read"),
    (Permissions::REVEAL, "reveal"),
    (Permissions::ACT, "act"),
    (Permissions::ERASE, "erase"),
    (Permissions::AUDIT, "audit"),
    (Permissions::PAUSE, "pause"),
    (Permissions::BULK, "bulk"),
];

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// A body with which a route's act is checked against the row.
fn body(path: &str) -> Value {
    match path.rsplit('/').next().unwrap() {
        "search" => json!({}),
        "find" => json!({ "scope": "tenant-1", "key": "k" }),
        "values" => json!({ "what": "parameters", "reason": "r" }),
        "resolve" => json!({ "word": "finish", "reply": { "status": 200 }, "reason": "r" }),
        "begin" | "end" => json!({ "definition": "book", "phase": "charged", "reason": "r" }),
        "plan" => json!({ "act": "retry", "requests": [Uuid::nil().to_string()] }),
        // A number that does not match.
        "start" => {
            json!({ "act": "retry", "requests": [Uuid::nil().to_string()], "planned": 2, "reason": "r" })
        }
        _ => json!({ "reason": "r" }),
    }
}

/// The last parts of the paths at which something is done or revealed: the audit has a row of each, also of a refusal.
const ACTS: [&str; 9] =
    ["values", "resolve", "retry", "erase", "discard", "begin", "end", "start", "stop"];

/// Those of them that name a version, or, at the start of a bulk act, a plan.
const ACTS_AS_SEEN: [&str; 7] = ["resolve", "retry", "erase", "discard", "begin", "end", "start"];

/// Path → method → the permission that the description says it needs.
fn described() -> BTreeMap<String, BTreeMap<String, String>> {
    let text = include_str!("../../../src/console/api/openapi.json");
    let description: Value = serde_json::from_str(text).unwrap();
    let mut paths = BTreeMap::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let of: &mut BTreeMap<_, _> = paths.entry(path.clone()).or_default();
        for (method, what) in
            methods.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters")
        {
            of.insert(method.to_uppercase(), what["x-permission"].as_str().unwrap().to_owned());
        }
    }
    paths
}

async fn g16_each_route_needs_its_permission_and_shows_its_scopes_only<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    let routes = routes(&engine);
    dead_letter(&engine, "k").await;
    finish(&engine, "with-jobs").await;
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    let request_id = id_of(&engine, "k").await;
    let job = admin(&engine).dead_jobs(None, 1).await.unwrap().rows[0].id;
    let before = dump(&db).await;

    let scopes = [
        (Scopes::All, true),
        (Scopes::Only(vec![scope()]), true),
        (Scopes::Prefix("tenant-".into()), true),
        (Scopes::Only(vec![]), false),
        (Scopes::Only(vec![Scope::new("tenant-2").unwrap()]), false),
        (Scopes::Prefix("tenant-11".into()), false),
    ];
    // Each permission by itself, all but one, none, all: so each needed permission is present in some sets and
    // missing in others.
    let all = Permissions::admin();
    let mut sets = vec![Permissions::NONE, all, Permissions::viewer(), Permissions::responder()];
    sets.extend(NAMED.map(|(one, _)| one));
    sets.extend(NAMED.map(|(one, _)| {
        let others = NAMED.into_iter().filter(|(other, _)| *other != one);
        others.fold(Permissions::NONE, |sum, (other, _)| sum | other)
    }));

    let (mut checked, mut acts) = (0, 0);
    for (path, described) in described() {
        let id = if path.starts_with("/jobs") { job } else { request_id };
        let uri = path.replace("{id}", &id.to_string());
        let last = path.rsplit('/').next().unwrap();
        for method in METHODS {
            // HEAD is GET without its body.
            let needs = described.get(if method == "HEAD" { "GET" } else { method });
            for held in &sets {
                for (scopes, is_inside) in &scopes {
                    let caller = Caller(*held, scopes.clone());
                    let body = (method != "GET" && method != "HEAD").then(|| body(&path));
                    let asked =
                        request(method, &uri, body.as_ref()).header("if-match", "\"stale\"");
                    let told = send(&routes, Some(caller), asked, body.as_ref()).await;
                    // `none`: any admitted caller.
                    let known = |name| {
                        NAMED.into_iter().find_map(|(one, other)| (other == name).then_some(one))
                    };
                    let needed = needs.map(|needs| {
                        let one = |name| known(name).unwrap_or(Permissions::NONE);
                        needs.split(',').map(one).fold(Permissions::NONE, |sum, one| sum | one)
                    });
                    let is_one = path.contains("{id}") || path.ends_with("/find");
                    let expected = match needed {
                        None => 405,
                        Some(needed) if !held.contain(needed) => 403,
                        _ if path.starts_with("/bulk/{id}") => 404,
                        // Only operators of all scopes may pause a phase, because a pause affects all scopes.
                        _ if path.starts_with("/pauses/") && *scopes != Scopes::All => 403,
                        _ if is_one && !is_inside => 404,
                        // The act was checked against the row, which does not have the stale version.
                        _ if ACTS_AS_SEEN.contains(&last) => 412,
                        _ => 200,
                    };
                    assert_eq!(
                        told.status, expected,
                        "{method} {path} by {held} of {scopes:?}: {told:?}"
                    );
                    acts += i64::from(ACTS.contains(&last) && needed.is_some());
                    let lists = told.json["rows"].as_array();
                    if let (Some(rows), false) = (lists.filter(|_| path != "/pauses"), is_inside) {
                        assert!(rows.is_empty(), "{method} {path} of {scopes:?}: {told:?}");
                    }
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 26 * 6 * 18 * 6);
    let size = "26 paths x 6 methods x 18 sets of permissions x 6 kinds of scopes = 16,848";
    let page = include_str!("../../../docs/operating.md");
    assert!(page.contains(size), "docs/operating.md has another size");
    // Each answer above has them: `send`.
    assert_eq!(checked * EVERYWHERE.len(), 67_392);
    assert!(
        page.contains("16,848 answers x 4 headers = 67,392"),
        "docs/operating.md has another size"
    );
    println!("{size}; {} headers on each answer", EVERYWHERE.len());
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_audit").await, acts);
    assert_eq!(dump(&db).await, before, "nothing was written to a row");
    assert_eq!(app.provider.effects(), 2, "no call was made");
}
