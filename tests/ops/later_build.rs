//! A row whose status only a later build knows, as in the middle of a deploy: it is shown as far as it is readable,
//! counted, and left alone.

use atomic_phases::compat::{InFlight, Locks};
use atomic_phases::engine::{Resolution, StrandedBecause};
use atomic_phases::ops::{
    BulkAct, Filter, OperatorStore, OpsError, RowVersion, Selection, State, Summary, What,
};
use atomic_phases::store::UnknownStatus;
use atomic_phases::worker::{BulkRunner, Completer, Reconciler};
use uuid::Uuid;

use super::cast::*;
use crate::support::work::config;
use crate::support::*;

on_every_store! {
    g14_a_status_of_a_later_build_is_listed_and_counted_and_left_alone,
}

/// Two rows are `parked`; one of them waits.
async fn later<S: TestDb>(db: &S) {
    let parked =
        "UPDATE atomic_phases_keys SET status = 'parked' WHERE idempotency_key IN ('waits', 'due')";
    if is_postgres::<S>() {
        db.sql("ALTER TYPE atomic_phases_status ADD VALUE 'parked'").await;
    }
    if is_mysql::<S>() {
        db.sql(
            "ALTER TABLE atomic_phases_keys MODIFY status ENUM('pending', 'in_progress', 'failed_retryable', \
             'completed', 'unknown', 'dead_letter', 'parked') CHARACTER SET ascii COLLATE ascii_bin NOT NULL",
        )
        .await;
    }
    match is_postgres::<S>() || is_mysql::<S>() {
        true => db.sql(parked).await,
        false => db.sql(&format!("PRAGMA ignore_check_constraints = ON; {parked}")).await,
    }
}

fn ids(rows: &[Summary]) -> Vec<Uuid> {
    let mut ids: Vec<_> = rows.iter().map(|row| row.request_id).collect();
    ids.sort_unstable();
    ids
}

async fn g14_a_status_of_a_later_build_is_listed_and_counted_and_left_alone<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    unknown(&engine, "waits").await;
    back_off(&engine, "due").await;
    dead_letter(&engine, "dead").await;
    set(&engine, "due", "run_after = created_at").await;
    set(&engine, "waits", "run_after = created_at").await;
    let mut those = vec![id_of(&engine, "waits").await, id_of(&engine, "due").await];
    those.sort_unstable();
    let dead = id_of(&engine, "dead").await;
    let stored = "SELECT status FROM atomic_phases_keys WHERE idempotency_key = 'waits'";
    later(&db).await;

    // Listed, with what can be read.
    let found = async |filter: Filter| ops.list(filter).await.unwrap().rows;
    assert_eq!(found(Filter::new()).await.len(), 3);
    for filter in [Filter::new().states([State::Unreadable]), Filter::new().stranded()] {
        let rows = found(filter).await;
        assert_eq!(ids(&rows), those);
        for row in rows {
            assert_eq!(row.state, State::Unreadable);
            assert_eq!(row.stranded, Some(StrandedBecause::NewerForm));
            assert!(row.reason.is_some() && row.recovery_point != "finished", "{row:?}");
        }
    }
    assert_eq!(ids(&found(Filter::waiting()).await), [dead]);

    // Counted, by all who count.
    let counts = ops.counts().await.unwrap();
    let numbers = [counts.unknown, counts.dead_letters, counts.stranded].map(|count| count.number);
    assert_eq!(numbers, [0, 1, 2]);
    let definitions = ops.definitions().await.unwrap();
    let stranded: u32 = definitions.iter().filter_map(|one| one.stranded).sum();
    assert_eq!(stranded, 2, "{definitions:?}");

    // Shown, with the reason why not more is shown; every act refuses it.
    let version = RowVersion::from("seen");
    for id in those.iter().copied() {
        let word = || Resolution::not_executed("notified", 1);
        let told = [
            ops.show(id).await.map(drop),
            ops.why(id).await.map(drop),
            ops.reveal(id, What::Key, "r").await.map(drop),
            ops.resolve(id, &version, word(), "r").await.map(drop),
            ops.retry(id, &version, "r").await.map(drop),
            ops.erase(id, &version, "r").await.map(drop),
        ];
        for told in told {
            let told = told.unwrap_err();
            assert!(matches!(told, OpsError::Unreadable { what: "status", .. }), "{told:?}");
            assert!(told.to_string().contains("written by a newer version"), "{told}");
        }
        let acts = ops.audit(Some(id), None, 10).await.unwrap().rows;
        let refused =
            |act: &&str| acts.iter().any(|row| row.act == *act && row.outcome == "refused");
        let all = ["reveal.key", "resolve.not_executed", "retry", "erase"];
        assert!(all.iter().all(refused), "{acts:?}");
    }
    assert!(ops.find(&scope(), &key("waits")).await.is_err());

    // A bulk act that meets it processes the others.
    let some = Selection::Requests([&those[..], &[dead]].concat());
    let all = Selection::Filter(Filter::new().scope(&scope()));
    for selection in [&some, &all] {
        let plan = ops.plan_bulk(BulkAct::Retry, selection).await.unwrap();
        assert_eq!((plan.count, plan.fitting), (3, 1));
    }
    let plan = ops.plan_bulk(BulkAct::Retry, &some).await.unwrap();
    let bulk = ops.start_bulk(BulkAct::Retry, &some, &plan, "the provider is back").await.unwrap();
    while BulkRunner::new(&engine, config()).run_once().await.unwrap() > 0 {}
    let told = ops.bulk(bulk).await.unwrap();
    assert_eq!((told.bulk.settled, told.bulk.applied), (3, 1), "{told:?}");
    for refusal in told.refusals {
        let because = refusal.because.unwrap();
        assert!(because.contains("stored status cannot be read here"), "{because}");
    }

    // The check before traffic names it, and reports the others.
    let report = engine.check().await.unwrap();
    let rows = |named: &[UnknownStatus]| -> Vec<(String, u32, String, u64)> {
        assert!(named.iter().all(|rows| rows.status == "parked"), "{named:?}");
        let place = |rows: &UnknownStatus| {
            (rows.definition.clone(), rows.version, rows.recovery_point.clone(), rows.rows)
        };
        let mut rows: Vec<_> = named.iter().map(place).collect();
        rows.sort();
        rows
    };
    let named = [("book", "booked"), ("notify", "noted")];
    let named = named.map(|(name, point)| (name.to_owned(), 1, point.to_owned(), 1));
    assert_eq!(rows(&report.unknown_status), named);
    assert!(!report.found_nothing_stranded() && report.stranded.is_empty(), "{report:?}");
    assert_eq!((report.rows_read, report.in_flight.len()), (3, 1), "{report:?}");
    assert!(!report.is_drained("notify", 1) && report.is_drained("other", 1));
    let without_code = InFlight::read(&db).await.unwrap();
    assert_eq!(rows(&without_code.unknown_status), named);
    assert_eq!((without_code.rows_of("notify", 1), without_code.rows_of("book", 1)), (1, 2));
    if !is_memory::<S>() {
        // Also if neither the index of due rows nor that of waiting rows has it, as for a request under way.
        db.sql("UPDATE atomic_phases_keys SET run_after = NULL WHERE idempotency_key = 'due'")
            .await;
        assert_eq!(rows(&engine.check().await.unwrap().unknown_status), named);
        assert_eq!(rows(&InFlight::read(&db).await.unwrap().unknown_status), named);
        db.sql(
            "UPDATE atomic_phases_keys SET run_after = created_at WHERE idempotency_key = 'due'",
        )
        .await;
    }
    // Whatever lock files there are.
    let left = without_code.left_by(&Locks::new()).into_iter();
    let left = left.filter(|left| left.because != StrandedBecause::UnknownDefinition);
    let mut left: Vec<_> = left
        .map(|left| {
            assert_eq!((&*left.status, left.because), ("parked", StrandedBecause::NewerForm));
            (left.definition, left.version, left.recovery_point, left.rows)
        })
        .collect();
    left.sort();
    assert_eq!(left, named);

    // Workers and clients leave it alone, and continue with the others.
    Reconciler::new(&engine, config()).run_once().await.unwrap();
    Completer::new(&engine, config()).run_once().await.unwrap();
    assert!(engine.call(&scope(), &key("due"), troubled(Trouble::None)).await.is_err());
    assert_ne!(ops.find(&scope(), &key("dead")).await.unwrap().state, State::DeadLetter);
    if !is_memory::<S>() {
        assert_eq!(db.text(stored).await, "parked");
    }
    assert_eq!(ids(&found(Filter::new().states([State::Unreadable])).await), those);
}
