//! The findings for the rows in a database, besides those for a change in general.

use std::collections::BTreeSet;

use atomic_phases::compat::{Definitions, InFlight, Lint, compare};
use atomic_phases::engine::StrandedBecause;
use atomic_phases::request::RequestDefinition;
use atomic_phases::{Engine, Outcome, compat};

use super::verdicts::{
    Inserted, InsertedLast, Local, Member, Once, Plain, Removed, Renamed, RenamedBadly, Reordered,
    TookTheName,
};
use crate::support::*;

on_every_store! {
    g14_a_deploy_counts_the_rows_that_a_change_would_strand,
    a_version_is_drained_when_its_last_row_is_settled,
    g14_what_lock_files_say_of_the_rows_is_what_the_engine_says,
    g14_a_call_that_was_not_made_is_in_the_way_of_no_build,
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
        failed(old.call(&scope(), &key(phase), Plain::stopping(phase)).await);
    }
    let report = old.check().await.unwrap();
    assert_eq!(report.in_flight.iter().map(|place| place.rows).sum::<u64>(), report.rows_read);
    let findings = compare(&locks::<S, Plain>(), &locks::<S, Inserted>());
    let inserted = findings.iter().find(|f| f.lint == Lint::PhaseInserted).unwrap();
    assert_eq!(inserted.points, ["a", "b", "c"]);
    assert_eq!(report.rows_at(inserted), 2, "those behind a, with a call ahead, and b; no other");
    let findings = compare(&locks::<S, Plain>(), &locks::<S, InsertedLast>());
    assert!(findings.iter().all(|finding| report.rows_at(finding) == 0));
}

async fn a_version_is_drained_when_its_last_row_is_settled<S: TestDb>(db: S) {
    let engine = engine::<S, Plain>(&db);
    let drained = async || {
        let drained = engine.check().await.unwrap().is_drained("family", 1);
        let without_code = InFlight::read(&db).await.unwrap().is_drained("family", 1);
        assert_eq!(without_code, drained);
        drained
    };
    assert!(drained().await);
    failed(engine.call(&scope(), &key("k"), Plain::stopping("b")).await);
    assert!(!drained().await);
    db.let_time_pass().await;
    finished(engine.call(&scope(), &key("k"), Plain::stopping("")).await);
    assert!(drained().await);
}

/// What a build with other lock files would leave alone, as reported without its code and by its engine.
async fn told<S: TestDb, R: RequestDefinition<S, App>>(db: &S) -> usize {
    let engine = engine::<S, R>(db).check().await.unwrap();
    let of_engine = engine.stranded.iter().map(|left| (&left.rows.recovery_point, left.because));
    let in_flight = InFlight::read(db).await.unwrap();
    let left = in_flight.left_by(&locks::<S, R>());
    let of_locks = left.iter().map(|left| (&left.recovery_point, left.because));
    let name = std::any::type_name::<R>();
    assert_eq!(
        of_locks.clone().collect::<BTreeSet<_>>(),
        of_engine.collect::<BTreeSet<_>>(),
        "{name}"
    );
    of_locks.count()
}

async fn g14_what_lock_files_say_of_the_rows_is_what_the_engine_says<S: TestDb>(db: S) {
    let old = engine::<S, Plain>(&db);
    let accepted = old.call(&scope(), &key("accepted"), Plain::stopping("")).accept().await;
    assert!(matches!(accepted, Ok(Outcome::Accepted)), "{accepted:?}");
    for phase in ["b", "c", "z"] {
        failed(old.call(&scope(), &key(phase), Plain::stopping(phase)).await);
    }
    assert_eq!(told::<S, Plain>(&db).await, 0);
    assert_eq!(told::<S, Renamed>(&db).await, 0);
    assert_eq!(told::<S, InsertedLast>(&db).await, 0);
    assert!(told::<S, RenamedBadly>(&db).await > 0);
    assert!(told::<S, Inserted>(&db).await > 0);
    assert!(told::<S, Removed>(&db).await > 0);
    assert!(told::<S, Reordered>(&db).await > 0);
    assert!(told::<S, Once>(&db).await > 0);
    assert!(told::<S, Local>(&db).await > 0);
    assert!(told::<S, TookTheName>(&db).await > 0);
    let none = InFlight::read(&db).await.unwrap().left_by(&compat::Locks::new());
    assert!(none.iter().all(|left| left.because == StrandedBecause::UnknownDefinition));
    assert_eq!(none.iter().map(|left| left.rows).sum::<u64>(), 4);
}

/// Its phase was paused, say, and the new build mends it. A check that runs before the deploy must not be in its way.
async fn g14_a_call_that_was_not_made_is_in_the_way_of_no_build<S: TestDb>(db: S) {
    let old = engine::<S, Plain>(&db);
    for name in ["k", "l"] {
        failed(old.call(&scope(), &key(name), Plain::stopping("b")).await);
    }
    assert_eq!(told::<S, Inserted>(&db).await, 1);
    let later = "attempts = 3, resolution = 'retry not_executed b 3' WHERE idempotency_key = 'l'";
    for noted in ["resolution = 'uncalled b 1'", later] {
        db.sql(&format!("UPDATE atomic_phases_keys SET {noted}")).await;
    }
    assert_eq!(told::<S, Inserted>(&db).await, 0);
    assert_eq!(told::<S, Once>(&db).await, 0);
    assert_eq!(told::<S, Local>(&db).await, 0);
    let places = InFlight::read(&db).await.unwrap().places;
    assert_eq!(places.iter().map(|place| place.rows).collect::<Vec<_>>(), [2]);
    // Of another attempt.
    db.sql("UPDATE atomic_phases_keys SET attempts = 2").await;
    assert_eq!(told::<S, Inserted>(&db).await, 1);
    // Of each group, a check reads three rows: none of them stands for one of whose call less is known.
    for name in ["m", "n"] {
        failed(old.call(&scope(), &key(name), Plain::stopping("b")).await);
    }
    let noted = "attempts = 1, resolution = 'uncalled b 1' WHERE idempotency_key <> 'n'";
    for change in [noted, "run_after = expires_at WHERE idempotency_key = 'n'"] {
        db.sql(&format!("UPDATE atomic_phases_keys SET {change}")).await;
    }
    assert_eq!(told::<S, Inserted>(&db).await, 1);
    // It has one place for all of them.
    let places = old.check().await.unwrap().in_flight;
    assert_eq!(places.iter().map(|place| place.rows).collect::<Vec<_>>(), [4]);
    // What is known of their calls does not tell them apart to a build that has none of their code.
    let none = InFlight::read(&db).await.unwrap().left_by(&compat::Locks::new());
    assert_eq!(none.iter().map(|left| left.rows).collect::<Vec<_>>(), [4]);
}

/// A build with a new name has run the row since, and has committed nothing: its outputs have the names of the build before,
/// and its list of phases says so. `check` reports it before a later build is deployed that knows only the new name.
#[tokio::test(flavor = "multi_thread")]
async fn g14_a_name_that_only_the_outputs_of_a_row_have_is_told_without_the_code() {
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    let old = engine::<_, Plain>(&db);
    failed(old.call(&scope(), &key("k"), Plain::stopping("z")).await);
    // The next attempt stops at the same place, too.
    db.sql("UPDATE atomic_phases_keys SET attempts = 0, run_after = created_at").await;
    let renamed = engine::<_, Renamed>(&db);
    failed(renamed.call(&scope(), &key("k"), Renamed::stopping("z")).await);
    assert_eq!(told::<_, Renamed>(&db).await, 0);
    assert!(told::<_, RenamedBadly>(&db).await > 0);
}
