//! The acts of operators that pause a phase, replace its pause or end it: what is refused, and what the audit says.

use std::time::Duration;

use atomic_phases::Scope;
use atomic_phases::ops::{Actor, OperatorStore, OpsError, Permissions, RowVersion, Scopes};

use super::cast::*;
use super::pauses::{BOOK, paused};
use crate::support::*;

on_every_store! {
    a_pause_is_of_a_foreign_phase_and_of_every_scope,
    a_pause_has_an_end_that_a_clock_holds,
    a_pause_of_no_time_is_refused_and_ends_no_other,
    g3_a_pause_is_replaced_and_ended_only_as_it_was_seen,
    the_audit_says_what_a_pause_replaced,
    g3_of_two_acts_on_a_pause_at_a_time_one_is_done,
}

async fn a_pause_is_of_a_foreign_phase_and_of_every_scope<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    for (definition, phase) in [("book", "booked"), ("book", "gone"), ("gone", "charged")] {
        let refused = ops.pause(definition, phase, None, "r").await;
        assert!(matches!(refused, Err(OpsError::NoSuchPhase)), "{definition} {phase}: {refused:?}");
    }
    // If a pause names an invalid phase, the refusal's audit row does not contain that text.
    let long = "x".repeat(1 << 20);
    for name in ["", "\0", "a\nb", long.as_str()] {
        for refused in [
            ops.pause("book", name, None, "hostile").await,
            ops.unpause(name, "charged", &"seen".into(), "hostile").await.map(drop),
        ] {
            assert!(matches!(refused, Err(OpsError::NoSuchPhase)), "{refused:?}");
        }
    }
    let acts = ops.audit(None, None, 100).await.unwrap().rows;
    assert_eq!(acts.iter().filter(|act| act.reason == "hostile" && act.phase.is_none()).count(), 8);
    let some = [
        Scopes::Only(vec![Scope::new("tenant-1").unwrap()]),
        Scopes::Only(vec![]),
        Scopes::Prefix("tenant".into()),
    ];
    paused(&engine, ("book", "charged")).await;
    for scopes in some {
        let eve = Actor::new("eve", Permissions::admin(), scopes).unwrap();
        let eve = engine.ops(eve);
        let refused = eve.pause("notify", "notified", None, "r").await;
        assert!(matches!(refused, Err(OpsError::NotEveryScope)), "{refused:?}");
        let refused = eve.unpause("book", "charged", &"seen".into(), "r").await;
        assert!(matches!(refused, Err(OpsError::NotEveryScope)), "{refused:?}");
    }
    // A second pause is refused, unless it names the first: then there is one, with the latest reason.
    let hour = Some(Duration::from_secs(3600));
    let refused = ops.pause("book", "charged", hour, "shorter").await;
    assert!(matches!(refused, Err(OpsError::MovedOn)), "{refused:?}");
    let seen = pause_of(&ops, BOOK).await.version;
    ops.replace_pause("book", "charged", &seen, hour, "shorter").await.unwrap();
    let pauses = ops.pauses().await.unwrap();
    assert_eq!(pauses.len(), 1);
    assert_eq!((pauses[0].reason.as_str(), pauses[0].paused_by.as_str()), ("shorter", "ada"));
    assert!(pauses[0].ends_at.is_some_and(|ends| ends > pauses[0].paused_at));
    ops.unpause("book", "charged", &pauses[0].version, "r").await.unwrap();
    let refused = ops.unpause("book", "charged", &pauses[0].version, "r").await;
    assert!(matches!(refused, Err(OpsError::MovedOn)), "{refused:?}");
    let refused = ops.audit(None, None, 100).await.unwrap().rows;
    assert_eq!(refused.iter().filter(|act| act.outcome == "refused").count(), 3 + 8 + 6 + 2);
}

async fn a_pause_has_an_end_that_a_clock_holds<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let years = |years: u64| Some(Duration::from_secs(years * 365 * 86_400));
    for length in [Some(Duration::MAX), years(11)] {
        let refused = ops.pause("book", "charged", length, "r").await;
        assert!(matches!(refused, Err(OpsError::TooLong)), "{refused:?}");
    }
    assert!(ops.pauses().await.unwrap().is_empty());
    ops.pause("book", "charged", years(10), "r").await.unwrap();
    assert!(ops.pauses().await.unwrap()[0].ends_at.is_some());
}

async fn a_pause_of_no_time_is_refused_and_ends_no_other<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let too_short = [Some(Duration::ZERO), Some(Duration::from_millis(999))];
    for length in too_short {
        let refused = ops.pause("book", "charged", length, "r").await;
        assert!(matches!(refused, Err(OpsError::TooShort)), "{refused:?}");
    }
    assert!(ops.pauses().await.unwrap().is_empty());
    ops.pause("book", "charged", None, "the bank is closed").await.unwrap();
    let seen = pause_of(&ops, BOOK).await;
    for length in too_short {
        let refused = ops.replace_pause("book", "charged", &seen.version, length, "r").await;
        assert!(matches!(refused, Err(OpsError::TooShort)), "{refused:?}");
    }
    assert_eq!(ops.pauses().await.unwrap(), [seen]);
}

/// Another operator replaces it, or ends it, or its time is over.
async fn g3_a_pause_is_replaced_and_ended_only_as_it_was_seen<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let bob = engine.ops(Actor::new("bob", Permissions::admin(), Scopes::All).unwrap());
    let is_refused = async |version: &RowVersion| {
        let stands = ops.pauses().await.unwrap();
        for told in [
            ops.replace_pause("book", "charged", version, None, "stale").await.map(drop),
            ops.unpause("book", "charged", version, "stale").await.map(drop),
        ] {
            assert!(matches!(told, Err(OpsError::MovedOn)), "{told:?}");
        }
        assert_eq!(ops.pauses().await.unwrap(), stands);
    };
    is_refused(&"none".into()).await;
    paused(&engine, BOOK).await;
    let first = pause_of(&ops, BOOK).await;
    let hour = Some(Duration::from_secs(3600));
    let told = bob.replace_pause("book", "charged", &first.version, hour, "shorter").await;
    assert_eq!(told.unwrap(), first);
    let second = pause_of(&ops, BOOK).await;
    assert_eq!((&*second.paused_by, &*second.reason), ("bob", "shorter"));
    paused(&engine, ("notify", "notified")).await;
    let of_another_phase = pause_of(&ops, ("notify", "notified")).await.version;
    for stale in [&first.version, &of_another_phase, &"none".into()] {
        is_refused(stale).await;
    }
    unpause(&bob, BOOK).await;
    is_refused(&second.version).await;
    // Long enough to be seen.
    ops.pause("book", "charged", Some(Duration::from_secs(2)), "a moment").await.unwrap();
    let third = pause_of(&ops, BOOK).await;
    until(async || ops.pauses().await.unwrap().len() == 1).await;
    is_refused(&third.version).await;
    // What is over is not in the way of the next.
    ops.pause("book", "charged", hour, "longer").await.unwrap();
    is_refused(&third.version).await;
    let acts = ops.audit(None, None, 100).await.unwrap().rows;
    let refused = acts.iter().filter(|act| act.reason == "stale" && act.outcome == "refused");
    assert_eq!(refused.count(), 2 * 7);
    assert_eq!(acts.len(), 2 * 7 + 6);
}

/// How a phase stood, and stands, by each act on its pause that was done, the oldest first.
async fn told_of_pauses<S: TestDb + OperatorStore>(
    engine: &TestEngine<S>,
) -> Vec<(String, String)> {
    let mut acts = admin(engine).audit(None, None, 100).await.unwrap().rows;
    acts.retain(|act| act.outcome == "applied");
    acts.reverse();
    acts.into_iter().map(|act| (act.before.unwrap(), act.after.unwrap())).collect()
}

/// Such a text, without its time.
fn kind(text: &str) -> String {
    match text.strip_prefix("paused until ") {
        Some(time) => {
            chrono::DateTime::parse_from_rfc3339(time).unwrap();
            "until".to_owned()
        }
        None => text.to_owned(),
    }
}

async fn the_audit_says_what_a_pause_replaced<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let bob = engine.ops(Actor::new("bob", Permissions::admin(), Scopes::All).unwrap());
    paused(&engine, ("book", "charged")).await;
    let hour = Some(Duration::from_secs(3600));
    let seen = pause_of(&bob, BOOK).await.version;
    bob.replace_pause("book", "charged", &seen, hour, "shorter").await.unwrap();
    let ends = pause_of(&ops, BOOK).await.ends_at.unwrap();
    unpause(&ops, BOOK).await;
    // One that is over is not replaced.
    let moment = Some(Duration::from_secs(1));
    ops.pause("book", "charged", moment, "a moment").await.unwrap();
    until(async || ops.pauses().await.unwrap().is_empty()).await;
    paused(&engine, ("book", "charged")).await;

    let told = told_of_pauses(&engine).await;
    let kinds: Vec<_> = told.iter().map(|(before, after)| (kind(before), kind(after))).collect();
    let expected = [
        ("runs", "paused"),
        ("paused", "until"),
        ("until", "runs"),
        ("runs", "until"),
        ("runs", "paused"),
    ];
    assert_eq!(kinds, expected.map(|(before, after)| (before.to_owned(), after.to_owned())));
    for text in [&told[1].1, &told[2].0] {
        let time = text.strip_prefix("paused until ").unwrap();
        let time = chrono::DateTime::parse_from_rfc3339(time).unwrap();
        assert!((time.to_utc() - ends).num_seconds().abs() <= 1, "{text}: {ends}");
    }
}

/// Whether this act was done, of two at a time.
pub(super) fn is_done<T: std::fmt::Debug>(told: &Result<T, OpsError>) -> bool {
    assert!(matches!(told, Ok(_) | Err(OpsError::MovedOn)), "{told:?}");
    told.is_ok()
}

/// Both operators have seen the same: that the phase is not paused, or one pause.
async fn g3_of_two_acts_on_a_pause_at_a_time_one_is_done<S: TestDb + OperatorStore>(db: S) {
    let here = engine(&db, &App::default());
    let there = engine(&db.another().await, &App::default());
    let (one, other) = (admin(&here), admin(&there));
    let hour = Some(Duration::from_secs(3600));
    for round in 0..10 {
        let (first, second) = tokio::join!(
            one.pause("book", "charged", None, "one"),
            other.pause("book", "charged", hour, "other"),
        );
        assert!(is_done(&first) != is_done(&second), "{round}: {first:?} {second:?}");
        let seen = pause_of(&one, BOOK).await;
        assert_eq!(seen.ends_at.is_none(), first.is_ok(), "{round}: {seen:?}");
        let (first, second) = tokio::join!(
            one.replace_pause("book", "charged", &seen.version, None, "one again"),
            other.replace_pause("book", "charged", &seen.version, hour, "other again"),
        );
        assert!(is_done(&first) != is_done(&second), "{round}: {first:?} {second:?}");
        assert_eq!(first.or(second).unwrap(), seen, "{round}");
        let seen = pause_of(&one, BOOK).await.version;
        let (begun, ended) = tokio::join!(
            one.replace_pause("book", "charged", &seen, hour, "longer"),
            other.unpause("book", "charged", &seen, "it is open"),
        );
        assert!(is_done(&begun) != is_done(&ended), "{round}: {begun:?} {ended:?}");
        if begun.is_ok() {
            unpause(&one, BOOK).await;
        }
        assert!(one.pauses().await.unwrap().is_empty(), "{round}");
    }
    // Each act finds the phase as the one before it has left it.
    let mut stands = "runs".to_owned();
    for (before, after) in told_of_pauses(&here).await {
        assert_eq!(kind(&before), stands);
        stands = kind(&after);
    }
    assert_eq!(stands, "runs");
}

/// The end of a pause is written and not committed when another operator pauses the phase, or replaces the pause.
#[tokio::test(flavor = "multi_thread")]
async fn g3_an_act_behind_an_end_that_is_being_committed_finds_what_became_of_it() {
    use crate::support::db::{pg, url_of};
    use diesel_async::SimpleAsyncConnection;

    const WAITS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
        AND datname = current_database()";
    let db = atomic_phases::store::Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for (ends_with, replaces, is_done) in [
        ("COMMIT", false, true),
        ("COMMIT", true, false),
        ("ROLLBACK", false, false),
        ("ROLLBACK", true, true),
    ] {
        paused(&engine, BOOK).await;
        let ops = admin(&engine);
        let seen = pause_of(&ops, BOOK).await.version;
        let mut other = pg(&url_of(&db)).await;
        other.batch_execute("BEGIN; DELETE FROM atomic_phases_pauses").await.unwrap();
        let hour = Some(Duration::from_secs(3600));
        let begins = tokio::spawn(async move {
            match replaces {
                true => ops.replace_pause("book", "charged", &seen, hour, "longer").await.map(drop),
                false => ops.pause("book", "charged", hour, "longer").await,
            }
        });
        until(async || db.number(WAITS).await > 0).await;
        other.batch_execute(ends_with).await.unwrap();
        let told = begins.await.unwrap();
        assert_eq!(told.is_ok(), is_done, "{ends_with} {replaces}: {told:?}");
        let act = admin(&engine).audit(None, None, 1).await.unwrap().rows.remove(0);
        let before = match (is_done, replaces) {
            (false, _) => None,
            (true, false) => Some("runs"),
            (true, true) => Some("paused"),
        };
        assert_eq!((&*act.reason, act.before.as_deref()), ("longer", before), "{act:?}");
        for pause in admin(&engine).pauses().await.unwrap() {
            unpause(&admin(&engine), (&pause.definition, &pause.phase)).await;
        }
    }
}
