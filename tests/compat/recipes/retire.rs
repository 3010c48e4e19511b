//! **Retire a version**: once all its rows are finished, remove its code. Its stored answers are still replayed.

use atomic_phases::compat::{InFlight, State};

use super::side_by_side::CreateOrder;
use super::*;

/// Version 2 alone.
fn definitions<Db: TestDb>() -> Definitions<Db, App> {
    Definitions::new().with::<CreateOrder>()
}

on_every_store! {
    g14_a_version_is_retired_when_it_is_drained_and_its_answers_replay,
}

async fn g14_a_version_is_retired_when_it_is_drained_and_its_answers_replay<S: TestDb>(db: S) {
    let app = App::default();
    in_flight(&db, &app).await;
    let both = deployed(&db, &app, side_by_side::definitions());
    let drained = async || InFlight::read(&db).await.unwrap().is_drained("orders.create", 1);
    assert!(!drained().await);
    assert_eq!(lints(&side_by_side::definitions::<S>(), &definitions()), [Lint::VersionDropped]);
    all_go_on(&db, &both, CreateOrder::of_version_1).await;
    assert!(drained().await);

    // `cargo atomic-phases retire orders.create 1`.
    let mut retired = side_by_side::definitions::<S>().locks();
    let lock = retired.get_mut("orders.create", 1).unwrap();
    lock.state = State::Retired("2026-11-22".to_owned());
    let findings = compare(&retired, &definitions::<S>().locks());
    assert!(findings.iter().all(|finding| finding.lint.level() < Level::Deny), "{findings:?}");
    let new = deployed(&db, &app, definitions());
    for stop in STOPS {
        let answer = finished(new.call(&scope(), &key(stop), CreateOrder::of_version_1()).await);
        assert!(answer.replayed);
    }
    charged_once_each(&db, &new, STOPS.len()).await;
}
