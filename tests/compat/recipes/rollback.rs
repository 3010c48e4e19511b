//! **Roll back**: the old build continues the rows that it knows, leaves the rest alone, and loses nothing. Here
//! the release with renamed phases was deployed, and is rolled back while its requests are in flight.

use super::rename::CreateOrder;
use super::*;
use atomic_phases::engine::FailureCause;

on_every_store! {
    g14_what_a_rollback_leaves_goes_on_when_the_release_is_back,
}

async fn g14_what_a_rollback_leaves_goes_on_when_the_release_is_back<S: TestDb>(db: S) {
    let app = App::default();
    let release = deployed(&db, &app, rename::definitions());
    let request = || CreateOrder { cents: 2000 };
    for stop in &STOPS[1..] {
        stop_in(&app, Some(stop));
        failed(release.call(&scope(), &key(stop), request()).await);
    }
    stop_in(&app, None);
    db.let_time_pass().await;

    // The report before the rollback: compare in the other direction.
    let findings =
        compare(&rename::definitions::<S>().locks(), &before::definitions::<S>().locks());
    let told = findings.iter().flat_map(|finding| &finding.points).collect::<Vec<_>>();
    assert!(told.iter().any(|point| *point == "card_charged"), "{findings:?}");
    let old = deployed(&db, &app, before::definitions());
    let report = old.check().await.unwrap();
    let left: u64 = report.stranded.iter().map(|stranded| stranded.rows.rows).sum();
    assert_eq!(left, 2, "those behind a renamed phase: {report:?}");
    let again = || before::CreateOrder { cents: 2000 };
    finished(old.call(&scope(), &key("paid"), again()).await);
    for stop in ["stock_taken", "answered"] {
        let cause = failed(old.call(&scope(), &key(stop), again()).await);
        assert_eq!(cause, FailureCause::NotKnownHere, "{stop}");
    }
    assert_eq!(app.provider.effects(), 3, "nothing was called again");

    let release = deployed(&db, &app, rename::definitions());
    for stop in &STOPS[1..] {
        finished(release.call(&scope(), &key(stop), request()).await);
    }
    charged_once_each(&db, &release, 3).await;
}
