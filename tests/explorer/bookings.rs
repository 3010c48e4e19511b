//! The tests' requests through the explorer, with crashes everywhere, on every store.

use std::time::Duration;

use super::worlds::{CREATION_WAIT, World, booking, emptied, notifying, ringing, shipping, shown};
use crate::support::*;
use atomic_phases::fault::{Mode, Mutant, explore};

on_every_store! {
    a_booking_survives_a_crash_at_every_point_and_every_competitor,
    a_booking_survives_every_pair_of_crashes,
    g12_requests_survive_reads_that_fail,
    statements_that_are_handed_over_survive_a_crash_at_every_point_and_every_competitor,
    statements_that_go_as_a_single_one_survive_a_crash_at_every_point_and_every_competitor,
    calls_that_wrongly_expect_a_new_key_survive_as_well,
    requests_that_are_accepted_survive_as_well,
    statements_that_are_handed_over_survive_two_workers_in_every_order,
    an_at_most_once_call_survives_everything_and_is_settled_where_it_can_be_asked,
    an_at_most_once_call_survives_every_pair_of_crashes,
    an_at_most_once_call_without_a_reconcile_function_ends_unknown_and_is_never_repeated,
    a_request_is_told_of_exactly_if_it_began_to_wait,
    a_booking_survives_two_workers_in_every_order,
    an_at_most_once_call_survives_two_workers_in_every_order,
    two_interleaved_workers_find_a_missing_fence_and_a_wrong_clock,
    a_call_under_way_goes_no_further_than_its_lease,
}

async fn a_booking_survives_a_crash_at_every_point_and_every_competitor<S: TestDb>(db: S) {
    let report = booking(db).crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert_eq!((report.points(), report.unknown()), (12, 0));
}

async fn a_booking_survives_every_pair_of_crashes<S: TestDb>(db: S) {
    use atomic_phases::fault::Mode::{AckLost, CutConnection, Drop, NotSent};
    let modes = [Drop, AckLost, NotSent, CutConnection];
    let report = booking(db).modes(modes).and_at_every_pair().run().await;
    shown(&report);
    assert!(report.cases() > 250, "{report}");
}

/// Without another fault, and behind each: most reads are those of a recovery.
async fn g12_requests_survive_reads_that_fail<S: TestDb>(db: S) {
    let modes = [Mode::Drop, Mode::AckLost, Mode::NotSent];
    let report = booking(db.clone()).modes(modes).and_failed_reads().run().await;
    shown(&report);
    let without = booking(db.clone()).modes(modes).run().await;
    assert!(report.cases() > without.cases() + 20, "{report}; {without}");
    shown(&notifying(db, true).with_competitor().and_failed_reads().run().await);
}

async fn statements_that_are_handed_over_survive_a_crash_at_every_point_and_every_competitor<
    S: TestDb,
>(
    db: S,
) {
    let parcel = shipping(db, Form::OneByOne);
    let report = parcel.crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert_eq!((report.points(), report.unknown()), (16, 0));
}

async fn statements_that_go_as_a_single_one_survive_a_crash_at_every_point_and_every_competitor<
    S: TestDb,
>(
    db: S,
) {
    let parcel = shipping(db, Form::SingleStatement);
    let report = parcel.crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert_eq!((report.points(), report.unknown()), (16, 0));
}

async fn calls_that_wrongly_expect_a_new_key_survive_as_well<S: TestDb>(db: S) {
    shown(&booking(db.clone()).with_calls_that_expect_new().crash_at_every_point().run().await);
    for form in [Form::OneByOne, Form::SingleStatement] {
        let parcel = shipping(db.clone(), form).with_calls_that_expect_new();
        let report = parcel.crash_at_every_point().with_competitor().run().await;
        shown(&report);
        assert_eq!((report.points(), report.unknown()), (16, 0));
    }
}

async fn statements_that_are_handed_over_survive_two_workers_in_every_order<S: TestDb>(db: S) {
    shown(&shipping(db, Form::SingleStatement).and_two_workers(1).run().await);
}

async fn an_at_most_once_call_survives_everything_and_is_settled_where_it_can_be_asked<
    S: TestDb,
>(
    db: S,
) {
    let report = notifying(db, true).crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert_eq!(report.unknown(), 0);
}

async fn an_at_most_once_call_survives_every_pair_of_crashes<S: TestDb>(db: S) {
    use atomic_phases::fault::Mode::{AckLost, AnswerLost, Drop, NotSent, Serialization};
    let explorer = notifying(db, true).modes([Drop, NotSent]).and_at_every_pair();
    // The others are the same on all stores, and slow on a server.
    let explorer = match is_on_a_server::<S>() {
        true => explorer,
        false => explorer.modes([AckLost, AnswerLost, Serialization]),
    };
    let report = explorer.run().await;
    shown(&report);
    assert!(report.cases() > 250, "{report}");
}

async fn an_at_most_once_call_without_a_reconcile_function_ends_unknown_and_is_never_repeated<
    S: TestDb,
>(
    db: S,
) {
    let report = notifying(db, false).crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert!(report.unknown() > 0);
}

/// Whatever crashes or is lost: as many notices are staged as the row's number of begun waits.
async fn a_request_is_told_of_exactly_if_it_began_to_wait<S: TestDb>(db: S) {
    let world = async move || {
        let (_, world) = emptied(&db, Provider::that_ignores_keys()).await;
        let engine = engine_with(&db, &world.app, |builder| {
            let builder = builder.lease(Duration::from_secs(60)).creation_wait(CREATION_WAIT);
            let builder = builder.back_off(Duration::from_millis(1), Duration::from_millis(1));
            builder.max_reconciles(1).notify_waiting()
        });
        (engine, world)
    };
    let told = |world: &World<S>| {
        let db = world.db.clone();
        async move {
            // Reads both in one query, because a worker may be about to change them.
            let both = "SELECT (SELECT count(*) FROM atomic_phases_staged_jobs \
                        WHERE name = 'atomic_phases.waiting') || ' ' || (SELECT coalesce(max(events), '') \
                        FROM atomic_phases_keys)";
            let both = db.text(both).await;
            let (told, events) = both.split_once(' ').unwrap();
            let began = ["unknown", "window_passed", "dead_letter"];
            let began = events
                .lines()
                .filter(|line| line.split('\t').next().is_some_and(|kind| began.contains(&kind)));
            assert_eq!(told, began.count().to_string(), "{both}");
            // A request that waits already does not begin to wait: its wait must end first.
            let mut waits = false;
            for kind in events.lines().filter_map(|line| line.split('\t').next()) {
                match kind {
                    "unknown" | "window_passed" => {
                        assert!(!waits, "it began to wait twice: {events}");
                        waits = true;
                    }
                    "reconciled" | "resolved" => waits = false,
                    _ => {}
                }
            }
        }
    };
    let name = "told as often as it began to wait";
    let explorer = || explore(&world, notify(Trouble::None)).always(name, told);
    let report = explorer().crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert!(report.unknown() > 0, "{report}");
    // A reconciler that dies is the second crash: the same on all stores, and slow on a server.
    if !is_on_a_server::<S>() {
        shown(&explorer().modes([Mode::Drop]).and_at_every_pair().run().await);
    }
}

async fn a_booking_survives_two_workers_in_every_order<S: TestDb>(db: S) {
    // On PostgreSQL also within transactions, where one waits for the other.
    let switches = if S::CONCURRENT { 2 } else { 3 };
    let report = booking(db).and_two_workers(switches).run().await;
    shown(&report);
    assert!(report.interleavings() > 300, "{report}");
}

async fn an_at_most_once_call_survives_two_workers_in_every_order<S: TestDb>(db: S) {
    shown(&notifying(db, true).and_two_workers(1).run().await);
}

async fn two_interleaved_workers_find_a_missing_fence_and_a_wrong_clock<S: TestDb>(db: S) {
    for (mutant, guarantee) in [(Mutant::NoFence, "G10"), (Mutant::ApplicationClock, "G10")] {
        let report = booking(db.clone()).with_mutant(mutant).and_two_workers(1).run().await;
        let found =
            report.failure().unwrap_or_else(|| panic!("{mutant:?} was not found: {report}"));
        println!("{mutant:?}: {report}");
        assert!(found.contains(guarantee), "{mutant:?}: {found}");
    }
}

async fn a_call_under_way_goes_no_further_than_its_lease<S: TestDb>(db: S) {
    let report = ringing(db).crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert_eq!(report.unknown(), 0);
}

async fn requests_that_are_accepted_survive_as_well<S: TestDb>(db: S) {
    // A second fault in the run after the acceptance is the same on all stores, and slow on a server.
    let explorer = booking(db.clone()).with_a_call_that_accepts().crash_at_every_point();
    let explorer = if is_on_a_server::<S>() { explorer } else { explorer.and_at_every_pair() };
    let report = explorer.with_competitor().run().await;
    shown(&report);
    assert_eq!((report.points(), report.unknown()), (3, 0));
    let explorer = notifying(db, true).with_a_call_that_accepts().crash_at_every_point();
    let report = explorer.with_competitor().run().await;
    shown(&report);
    assert_eq!((report.points(), report.unknown()), (3, 0));
}
