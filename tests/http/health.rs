//! What a load balancer, an orchestrator and a plain prober are told.

use std::time::Duration;

use atomic_phases::http::Health;
use atomic_phases::ops::OperatorStore;
use atomic_phases::store::Store;
use atomic_phases::{Outcome, Postgres, Sqlite};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use tower::ServiceExt;

use crate::support::db::{open_pg, url_of};
use crate::support::*;

on_every_store! {
    what_waits_for_an_operator_is_told_to_a_prober,
    g17_an_engine_that_is_shut_down_is_not_ready_and_lives,
}

fn routes<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Router {
    Router::new().nest("/health", Health::new(engine).router())
}

async fn asked(routes: &Router, what: &str) -> (u16, String) {
    let request = Request::get(format!("/health/{what}")).body(Body::empty()).unwrap();
    let response = routes.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["cache-control"], "no-store");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// As it is judged anew, once the answer of before is old.
async fn becomes(routes: &Router, what: &str, status: u16) -> String {
    let text = std::cell::RefCell::new(String::new());
    until(async || {
        let (code, told) = asked(routes, what).await;
        *text.borrow_mut() = told;
        code == status
    })
    .await;
    text.into_inner()
}

async fn what_waits_for_an_operator_is_told_to_a_prober<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    assert_eq!(asked(&routes, "live").await, (200, "alive\n".to_owned()));
    assert_eq!(asked(&routes, "ready").await, (200, "ready\n".to_owned()));
    let nothing = "0 unknown, 0 dead letters, 0 stranded, 0 dead jobs\n";
    assert_eq!(asked(&routes, "waiting").await, (200, nothing.to_owned()));
    let call = engine.call(&scope(), &key("canary"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(call, Ok(Outcome::Unknown { .. })), "{call:?}");
    let told = becomes(&routes, "waiting", 503).await;
    assert_eq!(told, "1 unknown, 0 dead letters, 0 stranded, 0 dead jobs\n");
    assert_eq!(asked(&routes, "ready").await.0, 200, "that is no reason to send it no requests");
}

async fn g17_an_engine_that_is_shut_down_is_not_ready_and_lives<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    assert_eq!(asked(&routes, "ready").await.0, 200);
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    assert_eq!(asked(&routes, "ready").await, (503, "shutting down\n".to_owned()), "at once");
    assert_eq!(asked(&routes, "live").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_its_tables_is_not_ready_until_they_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.db");
    let db = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    let engine = engine(&db, &App::default());
    let routes = routes(&engine);
    let (status, told) = asked(&routes, "ready").await;
    assert!(status == 503 && told.ends_with("migrations are missing\n"), "{status} {told}");
    assert_eq!(asked(&routes, "live").await.0, 200, "to start it again mends nothing");
    db.migrate().await.unwrap();
    becomes(&routes, "ready", 200).await;
}

/// All connections of requests are in use: it is busy, and a probe takes none of them and waits for none.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_busy_service_is_ready_and_one_without_its_database_is_not() {
    let db = <Postgres as TestDb>::fresh().await;
    let one = open_pg(&url_of(&db), 1).await;
    let engine = engine(&one, &App::default());
    let routes = routes(&engine);
    assert_eq!(asked(&routes, "ready").await.0, 200);
    let taken = one.connection().await.unwrap();
    // Judged anew: an answer is told again for a second.
    let then = std::time::Instant::now();
    until(async || then.elapsed() > Duration::from_secs(1)).await;
    assert_eq!(asked(&routes, "ready").await, (200, "ready\n".to_owned()));
    drop(taken);
    db.sql("ALTER TABLE atomic_phases_staged_jobs RENAME TO elsewhere").await;
    let told = becomes(&routes, "ready", 503).await;
    assert_eq!(told, "the database does not answer\n");
    db.sql("ALTER TABLE elsewhere RENAME TO atomic_phases_staged_jobs").await;
    becomes(&routes, "ready", 200).await;
}
