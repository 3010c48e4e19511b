//! Which processes run, and which builds requests wait for.

use std::time::Duration;

use atomic_phases::ops::{Actor, DefinitionView, NodeView, Permissions, Scopes};
use atomic_phases::worker::{Announcer, WorkerConfig};
use atomic_phases::{Engine, Scope};

use super::cast::*;
use crate::support::work::config;
use crate::support::*;

on_every_store! {
    g14_operators_see_which_builds_requests_wait_for_and_which_run,
    the_workers_of_a_process_tell_that_it_is_there_until_it_ends,
    a_process_that_is_seen_no_more_counts_as_gone_and_is_forgotten,
    g16_unfinished_requests_are_counted_within_the_scopes,
}

fn named(name: &str, build: &str) -> WorkerConfig {
    config().node(name, build)
}

async fn definitions<S: TestDb>(engine: &TestEngine<S>) -> Vec<DefinitionView> {
    admin(engine).definitions().await.unwrap()
}

/// How many processes run the list, and how many requests began under it, wait, and are stranded.
fn counts(all: &[DefinitionView], name: &str, phases: &[&str]) -> Option<[u32; 4]> {
    let is_it = |one: &&DefinitionView| {
        one.definition.0 == name && one.phases.iter().map(|(name, _)| name).eq(phases)
    };
    let one = all.iter().find(is_it)?;
    Some([one.nodes, one.requests, one.waiting, one.stranded?])
}

async fn g14_operators_see_which_builds_requests_wait_for_and_which_run<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    assert!(definitions(&engine).await.is_empty());
    finish(&engine, "finished").await;
    unknown(&engine, "unknown").await;
    back_off(&engine, "here").await;
    back_off(&engine, "before").await;
    set(&engine, "before", "phases = 'booked pay=i answered'").await;
    Announcer::new(&engine, named("api-1", "9f2c1d")).run_once().await.unwrap();
    let of_books = Engine::builder(db.another().await).app(App::default());
    let of_books: TestEngine<S> = of_books.register::<Book>().build().unwrap();
    Announcer::new(&of_books, config()).run_once().await.unwrap();

    let all = definitions(&engine).await;
    assert_eq!(counts(&all, "book", &["booked", "charged", "answered"]), Some([2, 1, 0, 0]));
    assert_eq!(counts(&all, "notify", &["noted", "notified", "answered"]), Some([1, 1, 1, 0]));
    // No process runs the list under which it began, and this build would call with another key.
    assert_eq!(counts(&all, "book", &["booked", "pay", "answered"]), Some([0, 1, 0, 1]));
    assert!(all.iter().all(|one| !one.or_more && (one.requests == 0) == one.oldest.is_none()));
    // The other build lacks a definition.
    let all = definitions(&of_books).await;
    assert_eq!(counts(&all, "notify", &["noted", "notified", "answered"]), Some([1, 1, 1, 1]));

    let nodes = admin(&engine).nodes().await.unwrap();
    let told = |node: &NodeView| {
        assert!(!node.is_gone && node.seen_at >= node.started_at, "{node:?}");
        (node.name.clone(), node.build.clone(), node.definitions.len())
    };
    let mut told: Vec<_> = nodes.iter().map(told).collect();
    told.sort();
    let all = engine.ops(actor(Permissions::READ)).nodes().await.unwrap();
    let most = all.iter().map(|node| node.definitions.len()).max().unwrap();
    assert!(most > 1);
    let first = (Some("api-1".to_owned()), Some("9f2c1d".to_owned()), most);
    assert_eq!(told, [(None, None, 1), first]);
}

async fn the_workers_of_a_process_tell_that_it_is_there_until_it_ends<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    let nodes = async || admin(&engine).nodes().await.unwrap();
    let workers = engine.spawn_workers(named("api-1", "b")).unwrap();
    until(async || nodes().await.len() == 1).await;
    workers.shutdown(Duration::from_secs(30)).await.unwrap();
    assert!(nodes().await.is_empty(), "it says that it ends");
}

async fn a_process_that_is_seen_no_more_counts_as_gone_and_is_forgotten<S: TestDb>(db: S) {
    if is_memory::<S>() {
        // The SQL of its tests does not reach this table.
        return;
    }
    let engine = engine(&db, &App::default());
    let mut announcer = Announcer::new(&engine, named("api-1", "b"));
    announcer.run_once().await.unwrap();
    let started_at = admin(&engine).nodes().await.unwrap()[0].started_at;
    announcer.run_once().await.unwrap();
    let nodes = admin(&engine).nodes().await.unwrap();
    assert_eq!((nodes.len(), nodes[0].started_at), (1, started_at), "one life, one row");
    let ago = |seconds: u32| match is_postgres::<S>() {
        true => format!(
            "UPDATE atomic_phases_nodes SET seen_at = seen_at - interval '{seconds} seconds'"
        ),
        false => format!("UPDATE atomic_phases_nodes SET seen_at = seen_at - {seconds} * 1000"),
    };
    db.sql(&ago(90)).await;
    let nodes = admin(&engine).nodes().await.unwrap();
    assert!(nodes[0].is_gone, "{nodes:?}");
    assert!(definitions(&engine).await.is_empty(), "it runs nothing any more");
    db.sql(&ago(24 * 3600)).await;
    Announcer::new(&engine, named("api-2", "b")).run_once().await.unwrap();
    let names: Vec<_> =
        admin(&engine).nodes().await.unwrap().into_iter().map(|it| it.name).collect();
    assert_eq!(names, [Some("api-2".to_owned())]);
}

async fn g16_unfinished_requests_are_counted_within_the_scopes<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    back_off(&engine, "k").await;
    unknown(&engine, "u").await;
    let elsewhere = Scopes::Only(vec![Scope::new("other").unwrap()]);
    let eve = engine.ops(Actor::new("eve", Permissions::admin(), elsewhere).unwrap());
    assert!(eve.definitions().await.unwrap().is_empty());
    assert_eq!(definitions(&engine).await.iter().map(|one| one.requests).sum::<u32>(), 2);
}
