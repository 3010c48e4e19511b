//! What the explorer reports: why a request cannot be explored, and how a failure is played again.

use super::worlds::{booking, emptied, notifying, shown};
use crate::support::*;
use atomic_phases::fault::{Mutant, explore};
use atomic_phases::{Engine, IdempotencyKey, PhaseResult, Reply, Scope, Tx, atomic_phases};

on_every_store! {
    what_cannot_be_explored_is_told_with_the_reason,
    a_failure_is_told_as_a_script_that_can_be_played_again,
    an_unknown_outcome_is_a_failure_where_every_case_has_to_settle,
    a_clean_run_that_fails_tells_what_the_database_said,
}

async fn what_cannot_be_explored_is_told_with_the_reason<S: TestDb>(db: S) {
    let stale = async || {
        let (engine, world) = emptied(&db, Provider::default()).await;
        let (scope, key) = (Scope::new("explorer").unwrap(), IdempotencyKey::new("explored"));
        engine.call(&scope, &key.unwrap(), book(20)).await.unwrap();
        (engine, world)
    };
    let report = explore(stale, book(20)).run().await;
    assert_eq!(report.failure(), Some("the database is not fresh: each case needs an empty one"));
    let fresh = async || emptied(&db, Provider::default()).await;
    let report = explore(fresh, troubled(Trouble::RetryForeignOnce)).run().await;
    assert!(report.failure().is_some_and(|text| text.contains("took 2 attempts")), "{report}");
    let report = explore(fresh, troubled(Trouble::RetryForeignAlways)).run().await;
    let text = report.to_string();
    assert!(text.contains("after 12 attempts") && text.contains("asked for"), "{text}");
    assert!(text.contains("it is the clean run"), "{text}");
}

async fn a_failure_is_told_as_a_script_that_can_be_played_again<S: TestDb>(db: S) {
    let explorer = booking(db).with_mutant(Mutant::FreshDerivedKey);
    let report = explorer.crash_at_every_point().run().await;
    let text = report.to_string();
    assert!(text.contains("script:\n  attempt 1: at charged/"), "{text}");
    let again = text.split("ATOMIC_PHASES_CASE='").nth(1).and_then(|rest| rest.split('\'').next());
    assert!(again.is_some_and(|case| case.contains("charged/") && case.contains('=')), "{text}");
}

async fn an_unknown_outcome_is_a_failure_where_every_case_has_to_settle<S: TestDb>(db: S) {
    let explorer = notifying(db.clone(), false).crash_at_every_point().always_settles();
    let report = explorer.run().await;
    let failure = report.failure().unwrap_or_else(|| panic!("{report}"));
    assert!(failure.contains("stays unknown"), "{failure}");
    assert_eq!(report.unknown(), 1);
    shown(&notifying(db, true).crash_at_every_point().always_settles().run().await);
}

/// Inserts an existing name.
#[derive(serde::Serialize, serde::Deserialize)]
struct Twice {}

#[atomic_phases(name = "twice", version = 1)]
impl<Db: TestDb> Twice {
    #[phase]
    async fn named(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        for _ in 0..2 {
            Db::insert_unique(tx, "the same").await?;
        }
        Ok(Reply::text(200, "done"))
    }
}

async fn a_clean_run_that_fails_tells_what_the_database_said<S: TestDb>(db: S) {
    let world = async || {
        let engine = Engine::builder(db.clone()).app(App::default()).register::<Twice>();
        (engine.build().unwrap(), ())
    };
    let report = explore(world, Twice {}).crash_at_every_point().run().await;
    let failure = report.failure().unwrap_or_else(|| panic!("{report}")).to_lowercase();
    assert!(failure.contains("has no row: nothing of it was committed"), "{failure}");
    let said = failure.split("the database said: ").nth(1);
    // MySQL calls it a duplicate.
    let is_told = |said: &str| said.contains("unique") || said.contains("duplicate");
    assert!(said.is_some_and(is_told), "{failure}");
}

/// A failure prints a command at its end: it runs one case, and an unknown case is an error.
#[test]
fn the_environment_picks_one_case() {
    let run = |case: &str| {
        let test =
            "bookings::on_sqlite::a_booking_survives_a_crash_at_every_point_and_every_competitor";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", test])
            .env("ATOMIC_PHASES_CASE", case)
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for case in [
        "charged/after_call#0=drop; workers",
        "booked/before_commit#0=not_sent + charged/after_call#0=drop; workers",
        "two: charged/after_call#0=expire; retry",
    ] {
        let (ok, text) = run(case);
        assert!(ok && text.contains("12 points, 1 cases, 0 failed"), "{case}: {text}");
    }
    for (case, reason) in [
        ("charged/after_cal=drop", "did not happen: the attempt passed started/before_phase"),
        ("charged/after_call=not_sent", "cannot happen there"),
        ("two: charged/after_commit=switch", "did not happen, worker 1 passed"),
        ("charged/after_call=bang", "is not a crash point"),
    ] {
        let (ok, text) = run(case);
        assert!(!ok && text.contains(reason), "{case}: {text}");
    }
}
