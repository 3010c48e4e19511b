//! A trace context, a subscriber or a recorder that panics harms neither a request nor a worker.

use std::path::{Path, PathBuf};

use atomic_phases::traces::{Link, TraceContext, Traceparent};
use atomic_phases::worker::Enqueuer;
use tracing::Span;

#[cfg(feature = "metrics")]
use crate::seen::recorder;
use crate::seen::{PANICS, Place, hash, name, traced, traced_as};
use crate::support::work::*;
use crate::support::*;

on_every_store! {
    a_trace_context_that_panics_harms_no_request,
    a_subscriber_that_panics_harms_no_request_and_no_job,
    a_recorder_that_panics_ends_no_worker,
}

struct Panics;

impl TraceContext for Panics {
    fn current(&self) -> Option<Traceparent> {
        panic!("asked for")
    }

    fn link(&self, _: &Span, _: &[Link]) {
        panic!("asked for")
    }
}

async fn a_trace_context_that_panics_harms_no_request<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let lease = std::time::Duration::from_secs(60);
    let broken = engine_with(&db, &app, |builder| builder.lease(lease).traces(Panics));
    finished(broken.call(&scope(), &key(&self::name()), book(20)).await);
    // With earlier spans to link to, too.
    app.forget_bodies();
    failed(engine.call(&scope(), &key(&name), troubled(Trouble::RetryForeignOnce)).await);
    db.let_time_pass().await;
    assert_eq!(completed(&broken).await.finished, 1);
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&broken, inbox.sink(), config());
    for _ in 0..2 {
        enqueuer.run_once().await.unwrap();
    }
    assert_eq!(inbox.take().len(), 4, "of two requests");
}

/// A layer of the application panics at a span of the request: when it is created, entered, left, closed, updated,
/// or gets an event. The answer, its replay, a retry and a delivery are the same as without the panic, and no row
/// stays locked.
async fn a_subscriber_that_panics_harms_no_request_and_no_job<S: TestDb>(db: S) {
    let app = App::default();
    let engine = traced_as(&db, &app, |builder| {
        builder.back_off(std::time::Duration::from_millis(1), std::time::Duration::from_millis(1))
    });
    let places = [Place::New, Place::Record, Place::Enter, Place::Exit, Place::Close, Place::Event];
    for place in places {
        let name = name();
        PANICS.lock().unwrap().push((hash(&name), place, 0));
        app.forget_bodies();
        let request = || troubled(Trouble::RetryForeignOnce);
        let call = || engine.call(&scope(), &key(&name), request());
        // Its failure is an event, and its retry has something to be linked to.
        failed(call().await);
        db.let_time_pass().await;
        assert_eq!(completed(&engine).await.finished, 1, "{place:?}");
        assert!(finished(call().await).replayed, "{place:?}");
        finished(
            engine.call(&scope(), &key(&format!("{name}-2")), book(20)).__call_in_place().await,
        );
        let inbox = Inbox::default();
        let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config());
        for _ in 0..4 {
            enqueuer.run_once().await.unwrap();
        }
        let left = "SELECT count(*) FROM atomic_phases_staged_jobs";
        assert_eq!(db.number(left).await, 0, "{place:?}");
        assert_eq!(inbox.take().len(), 4, "each job once, {place:?}");
        let held = "SELECT count(*) FROM atomic_phases_keys WHERE status <> 'completed'";
        assert_eq!(db.number(held).await, 0, "{place:?}");
        let panics = PANICS.lock().unwrap().clone();
        let (_, _, times) = panics.iter().find(|(of, _, _)| *of == hash(&name)).unwrap();
        assert!(*times > 0, "it never panicked: {place:?}");
    }
}

/// The worst case is a worker, because the first thing that it records is its start.
async fn a_recorder_that_panics_ends_no_worker<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    engine.call(&scope(), &key(&name), book(20)).accept().await.unwrap();
    let often = config().census_every(std::time::Duration::from_millis(20));
    let inbox = Inbox::default();
    let workers = engine.spawn_workers(often.sink(inbox.sink())).unwrap();
    until(async || inbox.0.lock().unwrap().len() == 2).await;
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    assert!(finished(engine.call(&scope(), &key(&name), book(20)).await).replayed);
    #[cfg(feature = "metrics")]
    assert!(recorder::PANICKED.load(std::sync::atomic::Ordering::SeqCst) > 50);
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// The crate emits nothing except through `observe`, which catches panics of `tracing` and of a recorder. Within
/// `observe`, each of the two is called through `unharmed`.
#[test]
fn the_subscriber_and_the_recorder_are_asked_in_one_place_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The number of lines that may name them: `traces` has the type that applications receive, and `movable_task`
    // moves the subscriber from thread to thread without calling it.
    let allowed = [
        ("movable_task.rs", 2),
        ("observe.rs", 4),
        ("observe/metrics.rs", 3),
        ("observe/replay_cache.rs", 1),
        ("observe/spans.rs", 3),
        ("observe/unharmed.rs", 7),
        ("traces.rs", 1),
    ];
    let all = sources(&root);
    assert!(all.len() > 200, "{all:?}");
    for path in all {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = ["tracing::", "with_recorder(", "register_counter"];
        let says = |line: &&str| words.iter().any(|word| line.contains(word));
        let past: Vec<&str> = code.filter(says).collect();
        let most =
            allowed.iter().find(|(allowed, _)| *allowed == name).map_or(0, |(_, most)| *most);
        assert!(past.len() <= most, "{name}: {past:#?}");
    }
}

/// What a panic carries is dropped nowhere, because that may panic, too (G17): each is caught by `panics`. `movable_task`
/// passes it on to the task's owner, and an explorer shows what a check of the test said.
#[test]
fn a_panic_is_caught_in_one_place_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut catching: Vec<_> = sources(&root)
        .into_iter()
        .filter(|path| std::fs::read_to_string(path).unwrap().contains("catch_unwind("))
        .map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned())
        .collect();
    catching.sort();
    assert_eq!(catching, ["fault/verdict.rs", "movable_task.rs", "panics.rs"]);
}
