//! Reads: lists and their pages, one request, jobs, the audit.

use std::collections::BTreeSet;

use atomic_phases::ops::OperatorStore;
#[cfg(feature = "simulation")]
use atomic_phases::ops::{BulkAct, Selection};
#[cfg(feature = "simulation")]
use atomic_phases::simulation::{Database, Memory};
use atomic_phases::worker::{Announcer, WorkerConfig};
#[cfg(feature = "simulation")]
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use super::described::fits;
use super::*;
use crate::ops::cast::*;

on_every_store! {
    each_read_is_told_as_it_is_described,
    a_list_goes_on_where_its_cursor_says,
    g19_what_users_gave_is_told_by_a_reveal_only_and_digit_by_digit,
}

async fn each_read_is_told_as_it_is_described<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    unknown(&engine, "unknown").await;
    dead_letter(&engine, "dead").await;
    back_off(&engine, "failed").await;
    leased(&engine, "leased").await;
    finish(&engine, "finished").await;
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    set(&engine, "failed", "definition_version = 9, run_after = expires_at").await;

    let overview = get(&routes, "/overview").await.ok();
    fits("Overview", &overview);
    assert_eq!(overview["unknown"], json!({ "number": 1, "or_more": false }));
    assert_eq!(
        (&overview["stranded"]["number"], &overview["dead_jobs"]["number"]),
        (&json!(1), &json!(2))
    );
    let late = get(&routes, "/jobs?state=late").await.ok();
    fits("Jobs", &late);
    assert_eq!((&overview["late_jobs"]["number"], &late["rows"]), (&json!(0), &json!([])));
    assert_eq!(get(&routes, "/jobs?state=dead").await.ok()["rows"].as_array().unwrap().len(), 2);
    get(&routes, "/jobs?state=late&cursor=x").await.is(422, "invalid");
    get(&routes, "/jobs?state=lost").await.is(400, "malformed");

    Announcer::new(&engine, WorkerConfig::default().node("api-1", "9f2c1d"))
        .run_once()
        .await
        .unwrap();
    let nodes = get(&routes, "/nodes").await.ok();
    fits("Nodes", &nodes);
    assert_eq!(
        (&nodes["rows"][0]["name"], &nodes["rows"][0]["build"]),
        (&json!("api-1"), &json!("9f2c1d"))
    );
    let definitions = get(&routes, "/definitions").await.ok();
    fits("Definitions", &definitions);
    let all = definitions["rows"].as_array().unwrap();
    let stranded: Vec<_> = all.iter().filter(|one| one["stranded"] != 0).collect();
    assert_eq!(stranded.len(), 1, "{all:#?}");
    assert_eq!(
        (&stranded[0]["definition_version"], &stranded[0]["nodes"], &stranded[0]["stranded"]),
        (&json!(9), &json!(0), &json!(1))
    );

    let list = get(&routes, "/requests").await.ok();
    fits("Requests", &list);
    let rows = list["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let id = row["id"].as_str().unwrap();
        let shown = get(&routes, &format!("/requests/{id}")).await;
        assert_eq!(shown.version(), format!("\"{}\"", row["version"].as_str().unwrap()));
        let shown = shown.ok();
        fits("Details", &shown);
        assert_eq!(shown["request"]["state"], row["state"], "a list and one request say the same");
        let why = get(&routes, &format!("/requests/{id}/why")).await.ok();
        fits("Why", &why);
        assert_eq!(why["held_by"], shown["why"]["held_by"]);
    }
    let states: BTreeSet<&str> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states.len(), 6, "{states:?}");

    let found = async |query: &str| {
        let list = get(&routes, &format!("/requests?{query}")).await.ok();
        list["rows"].as_array().unwrap().len()
    };
    assert_eq!(found("state=unknown,dead_letter").await, 2);
    assert_eq!(found("definition=notify").await, 2);
    assert_eq!(found("definition=notify&version=2").await, 0);
    assert_eq!(found("phase=notified&reason=asked%20for").await, 1);
    assert_eq!(found("older_than=1h").await + found("waiting_for=7d").await, 0);
    assert_eq!(found("stranded=true").await, 1);

    let by_scope = async |scope: &str| {
        let list = post(&routes, "/requests/search", None, json!({ "scope": scope })).await.ok();
        fits("Requests", &list);
        list["rows"].as_array().unwrap().len()
    };
    assert_eq!((by_scope("tenant-1").await, by_scope("tenant-2").await), (6, 0));
    let sought = json!({ "scope": "tenant-1", "key": "dead" });
    let found = post(&routes, "/requests/find", None, sought).await;
    assert!(found.version().len() > 2);
    let found = found.ok();
    fits("Request", &found);
    assert_eq!(found["state"], "dead_letter");

    let jobs = get(&routes, "/jobs?limit=1").await.ok();
    fits("Jobs", &jobs);
    let one = get(&routes, &format!("/jobs/{}", jobs["rows"][0]["id"].as_str().unwrap())).await;
    assert_eq!(one.version(), "\"0\"");
    assert_eq!(one.ok(), jobs["rows"][0]);
    let next = jobs["next"].as_str().unwrap();
    let rest = get(&routes, &format!("/jobs?cursor={next}")).await.ok();
    assert_eq!(rest["rows"].as_array().unwrap().len(), 1);
    assert!(rest["next"].is_null());

    for reason in ["first", "second"] {
        let id = found["id"].as_str().unwrap();
        post(
            &routes,
            &format!("/requests/{id}/values"),
            None,
            json!({ "what": "key", "reason": reason }),
        )
        .await
        .ok();
    }
    let acts = get(&routes, "/audit?limit=1").await.ok();
    fits("Acts", &acts);
    assert_eq!(acts["rows"][0]["reason"], "second", "the newest first");
    let next = acts["next"].as_str().unwrap();
    let of = found["id"].as_str().unwrap();
    let older = get(&routes, &format!("/audit?request={of}&cursor={next}")).await.ok();
    assert_eq!(older["rows"][0]["reason"], "first");
    assert_eq!(older["rows"].as_array().unwrap().len(), 1);

    let description = get(&routes, "/openapi.json").await.ok();
    assert_eq!(description["openapi"], "3.1.0");
}

/// A client counts ages from this time. The clock of the service may be years off.
#[cfg(feature = "simulation")]
#[tokio::test(flavor = "multi_thread")]
async fn each_read_tells_the_databases_time() {
    for days in [-3000, 3000] {
        let begins = Utc::now() + TimeDelta::days(days);
        let database = Database::starting_at(begins);
        let engine = engine(&Memory::connect(&database), &App::default());
        let routes = routes(&engine);
        finish(&engine, "with-jobs").await;
        engine.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
        dead_letter(&engine, "dead").await;
        let (ops, request) = (admin(&engine), id_of(&engine, "dead").await);
        let job = ops.dead_jobs(None, 1).await.unwrap().rows[0].id;
        let one = Selection::Requests(vec![request]);
        let bulk = ops.start_bulk(BulkAct::Retry, &one, 1, "reason").await.unwrap();
        let paths = described::timed();
        assert_eq!(paths.len(), 12, "{paths:?}");
        for path in paths {
            let id = match path.split('/').nth(1) {
                Some("jobs") => job,
                Some("bulk") => bulk,
                _ => request,
            };
            let told = get(&routes, &path.replace("{id}", &id.to_string())).await;
            let now = told.headers["database-time"].to_str().unwrap().parse::<DateTime<Utc>>();
            let since = now.unwrap() - begins;
            assert!((0..86_400).contains(&since.num_seconds()), "{path}: {since}");
            told.ok();
        }
    }
}

async fn a_list_goes_on_where_its_cursor_says<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    for number in 0..5 {
        dead_letter(&engine, &format!("k-{number}")).await;
    }
    let (mut ids, mut pages, mut next) = (BTreeSet::new(), 0, String::new());
    loop {
        let page = get(&routes, &format!("/requests?state=dead_letter&limit=2{next}")).await.ok();
        let rows = page["rows"].as_array().unwrap();
        assert!(rows.iter().all(|row| ids.insert(row["id"].as_str().unwrap().to_owned())));
        pages += 1;
        let Some(cursor) = page["next"].as_str() else { break };
        next = format!("&cursor={cursor}");
    }
    assert_eq!((ids.len(), pages), (5, 3));
    let other = get(&routes, &format!("/requests?state=unknown{next}")).await;
    other.is(422, "invalid");
}

/// A number that a JavaScript program would round.
const BIG: &str = "9007199254740993";

async fn g19_what_users_gave_is_told_by_a_reveal_only_and_digit_by_digit<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    let amount = BIG.parse().unwrap();
    let request = Book { amount, trouble: Trouble::RetryForeignAlways.into() };
    failed(engine.call(&scope(), &key("canary-key"), request).context(&"canary-context").await);
    let id = id_of(&engine, "canary-key").await;
    let mut told = String::new();
    for uri in [
        "/overview",
        "/requests",
        "/jobs",
        "/audit",
        &format!("/requests/{id}"),
        &format!("/requests/{id}/why"),
    ] {
        told.push_str(&get(&routes, uri).await.ok().to_string());
    }
    let sought = json!({ "scope": "tenant-1", "key": "canary-key" });
    told.push_str(&post(&routes, "/requests/find", None, sought).await.ok().to_string());
    for secret in ["canary", "tenant-1", BIG] {
        assert!(!told.contains(secret), "{secret} in {told}");
    }

    let reveal = async |what: &str| {
        let body = json!({ "what": what, "reason": "ticket 7" });
        let told = post(&routes, &format!("/requests/{id}/values"), None, body).await.ok();
        fits("Revealed", &told);
        told
    };
    let parameters = reveal("parameters").await;
    assert_eq!(
        (&parameters["scope"], &parameters["key"]),
        (&json!("tenant-1"), &json!("canary-key"))
    );
    assert!(parameters["json"].as_str().unwrap().contains(BIG), "{parameters}");
    assert!(reveal("context").await["json"].as_str().unwrap().contains("canary-context"));
    assert!(reveal("outputs").await["json"].as_str().unwrap().contains("seen"));
    assert!(reveal("reply").await["reply"].is_null());
    finish(&engine, "finished").await;
    let id = id_of(&engine, "finished").await;
    let body = json!({ "what": "reply", "reason": "ticket 7" });
    let reply = post(&routes, &format!("/requests/{id}/values"), None, body).await.ok();
    fits("Revealed", &reply);
    assert_eq!(reply["reply"]["status"], 201);
    assert!(reply["reply"]["body"].as_str().unwrap().contains("charge"));
    assert_eq!(get(&routes, "/audit").await.ok()["rows"].as_array().unwrap().len(), 5);
}
