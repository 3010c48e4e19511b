//! The rows that are there, beside what a change does in general.

use atomic_phases::compat::{Definitions, Lint, compare};
use atomic_phases::*;

use crate::support::*;
use crate::verdicts::{Inserted, InsertedLast, Member, Plain};

on_both_stores! {
    g14_a_deploy_counts_the_rows_that_a_change_would_strand,
    a_version_is_drained_when_its_last_row_is_settled,
}

fn engine<S: TestDb, R: RequestDefinition<S, App>>(db: &S) -> Engine<S, App> {
    let definitions = Definitions::new().with::<R>();
    Engine::builder(db.clone()).app(App::default()).definitions(definitions).build().unwrap()
}

fn locks<S: TestDb, R: RequestDefinition<S, App>>() -> compat::Locks {
    Definitions::<S, App>::new().with::<R>().locks()
}

async fn g14_a_deploy_counts_the_rows_that_a_change_would_strand<S: TestDb>(db: S) {
    let old = engine::<S, Plain>(&db);
    for phase in ["a", "b", "c"] {
        failed(old.execute(&scope(), &key(phase), Plain::stopping(phase)).await);
    }
    let report = old.check().await.unwrap();
    assert_eq!(report.in_flight.iter().map(|place| place.rows).sum::<u64>(), report.looked_at);
    let findings = compare(&locks::<S, Plain>(), &locks::<S, Inserted>());
    let inserted = findings.iter().find(|f| f.lint == Lint::PhaseInserted).unwrap();
    assert_eq!(inserted.points, ["a", "b", "c"]);
    assert_eq!(report.rows_at(inserted), 2, "those behind a, with a call ahead, and b; no other");
    let findings = compare(&locks::<S, Plain>(), &locks::<S, InsertedLast>());
    assert!(findings.iter().all(|finding| report.rows_at(finding) == 0));
}

async fn a_version_is_drained_when_its_last_row_is_settled<S: TestDb>(db: S) {
    let engine = engine::<S, Plain>(&db);
    let drained = async || engine.check().await.unwrap().is_drained("family", 1);
    assert!(drained().await);
    failed(engine.execute(&scope(), &key("k"), Plain::stopping("b")).await);
    assert!(!drained().await);
    db.let_time_pass().await;
    finished(engine.execute(&scope(), &key("k"), Plain::stopping("")).await);
    assert!(drained().await);
}
