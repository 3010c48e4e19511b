//! What holds a request, and what ends that: for every state, and for rows that this build cannot run.

use std::time::Duration;

use atomic_phases::engine::{Resolution, Resolved, StrandedBecause};
use atomic_phases::ops::{
    BulkAct, EndedBy, Event, Filter, HeldBy, OperatorStore, Permissions, PhaseStands, Selection,
    State, What, Why,
};
use atomic_phases::{Engine, Outcome, Reply};

use super::cast::*;
use crate::support::*;

on_every_store! {
    each_state_says_what_holds_it_and_what_ends_that,
    g11_a_call_that_its_provider_forgets_is_told_with_the_end_of_its_window,
    g14_a_row_that_this_build_cannot_run_says_so,
    details_tell_the_phases_and_what_happened,
    g1_a_call_that_may_have_been_made_is_told_as_that,
    g11_what_another_build_has_written_of_a_call_is_told_as_the_engine_judges_it,
    what_an_operator_finished_by_hand_did_not_run_and_says_so,
    the_timeline_says_that_there_are_earlier_acts_and_where,
}

#[track_caller]
fn is(why: &Why, held_by: HeldBy, ended_by: EndedBy, has_time: bool, says: &[&str]) {
    assert_eq!((why.held_by, why.ended_by), (held_by, ended_by), "{why:?}");
    assert_eq!(why.until.is_some(), has_time, "{why:?}");
    for text in says {
        assert!(why.sentence.contains(text), "no {text:?} in {:?}", why.sentence);
    }
    assert!(why.sentence.ends_with('.') && !why.sentence.contains("tenant-1"), "{why:?}");
}

async fn each_state_says_what_holds_it_and_what_ends_that<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    let told = async |name: &str| {
        let found = ops.find(&scope(), &key(name)).await.unwrap();
        let shown = ops.show(found.request_id).await.unwrap();
        assert_eq!(ops.why(found.request_id).await.unwrap().held_by, shown.why.held_by);
        assert_eq!(shown.summary.state, found.state, "a list and one request say the same");
        (found.state, shown.why)
    };

    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    let (state, why) = told("accepted").await;
    assert_eq!(state, State::Accepted);
    is(&why, HeldBy::Accepted, EndedBy::Worker, true, &["completer"]);

    leased(&engine, "leased").await;
    let (state, why) = told("leased").await;
    assert_eq!(state, State::Running);
    let call = "the call of `notified` may be under way";
    is(&why, HeldBy::Lease, EndedBy::Holder, true, &["attempt 1, counted 1 of 20", call, "(in "]);
    set(&engine, "leased", "locked_until = created_at").await;
    let (state, why) = told("leased").await;
    assert_eq!(state, State::LeaseEnded);
    is(&why, HeldBy::EndedLease, EndedBy::Worker, true, &["makes it unknown", "`notified`"]);

    back_off(&engine, "failed").await;
    set(&engine, "failed", "run_after = expires_at").await;
    let (state, why) = told("failed").await;
    assert_eq!(state, State::BackingOff);
    let says =
        ["asked for", "(in ", "attempt 1, counted 1 of 20", "`charged` may have been called"];
    is(&why, HeldBy::BackOff, EndedBy::Worker, true, &says);
    set(&engine, "failed", "run_after = created_at").await;
    let (state, why) = told("failed").await;
    assert_eq!(state, State::Due);
    let says = ["attempt 1, counted 1 of 20", "the back-off is over"];
    is(&why, HeldBy::Due, EndedBy::Worker, true, &says);
    // An attempt keeps its number, whether it counts or not.
    set(&engine, "failed", "forgiven_attempts = attempts").await;
    let (_, why) = told("failed").await;
    is(&why, HeldBy::Due, EndedBy::Worker, true, &["attempt 1, counted 0 of 20"]);

    unknown(&engine, "unknown").await;
    let (state, why) = told("unknown").await;
    assert_eq!(state, State::Unknown);
    let asked = "its reconcile function is asked at";
    let says = ["`notified`", "asked for", asked, "asked 0 of 20 times"];
    is(&why, HeldBy::UnknownAsked, EndedBy::Reconciler, true, &says);

    // While the reconcile function runs, and after its worker has died: the wait does not end with that lease, but
    // with the next call of the function.
    let asks = "status = 'in_progress', locked_until = expires_at, run_after = expires_at";
    set(&engine, "unknown", asks).await;
    let (_, why) = told("unknown").await;
    let until = why.until.unwrap();
    let says = ["it is being looked into", "(in 23 h"];
    is(&why, HeldBy::UnknownAsked, EndedBy::Reconciler, true, &says);
    set(&engine, "unknown", "locked_until = created_at").await;
    let (_, why) = told("unknown").await;
    assert_eq!(why.until, Some(until), "{why:?}");
    let says = ["crashed or is cut off", "makes it unknown again after", "(in 23 h"];
    is(&why, HeldBy::UnknownAsked, EndedBy::Reconciler, true, &says);
    set(&engine, "unknown", "run_after = created_at").await;
    let (_, why) = told("unknown").await;
    let says = ["crashed or is cut off, and another makes it unknown again."];
    is(&why, HeldBy::UnknownAsked, EndedBy::Reconciler, true, &says);

    // An operator's resolution decides what holds the request next, not the earlier reason.
    unknown(&engine, "settled").await;
    let found = ops.find(&scope(), &key("settled")).await.unwrap();
    let word = Resolution::not_executed("notified", 1);
    let said = ops.resolve(found.request_id, &found.version, word, "not in the log").await;
    assert!(matches!(said, Ok(Resolved::Applied)), "{said:?}");
    let (state, why) = told("settled").await;
    assert_eq!(state, State::Due);
    let says = ["settled (`not_executed notified 1`)", "completer resumes it"];
    is(&why, HeldBy::Due, EndedBy::Worker, true, &says);
    assert!(!why.sentence.contains("attempt"), "{why:?}");

    unknown_unasked(&engine, "unasked").await;
    let (state, why) = told("unasked").await;
    assert_eq!(state, State::Unknown);
    let says = ["`charged`", "has no reconcile function"];
    is(&why, HeldBy::UnknownUnasked, EndedBy::Operator, false, &says);

    dead_letter(&engine, "dead").await;
    let (state, why) = told("dead").await;
    assert_eq!(state, State::DeadLetter);
    is(&why, HeldBy::DeadLetter, EndedBy::Operator, false, &["retries, finishes or erases it"]);
    set(&engine, "dead", "open_intent = 'charged'").await;
    let (_, why) = told("dead").await;
    let says = ["whether the call of `charged` was executed is unknown"];
    is(&why, HeldBy::DeadLetterUnknown, EndedBy::Operator, false, &says);

    finish(&engine, "finished").await;
    let (state, why) = told("finished").await;
    assert_eq!(state, State::Finished);
    is(&why, HeldBy::Finished, EndedBy::Retention, true, &["replayed until", "(in 23 h"]);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    engine.erase(&scope(), &key("finished")).await.unwrap();
    let (state, why) = told("finished").await;
    assert_eq!(state, State::Erased);
    is(&why, HeldBy::Erased, EndedBy::Retention, true, &["erased"]);
    set(&engine, "finished", "expires_at = created_at").await;
    let (_, why) = told("finished").await;
    is(&why, HeldBy::Expired, EndedBy::Retention, true, &["the key is free"]);
}

async fn g11_a_call_that_its_provider_forgets_is_told_with_the_end_of_its_window<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let engine = engine_with(&db, &App::default(), |builder| {
        builder.lease(Duration::from_secs(60)).window_margin(Duration::from_secs(3600))
    });
    let ops = admin(&engine);
    let told = async |name: &str| ops.why(id_of(&engine, name).await).await.unwrap();
    back_off(&engine, "failed").await;
    dead_letter(&engine, "dead").await;
    for name in ["failed", "dead"] {
        let why = told(name).await;
        let ends = why.window_ends.unwrap();
        let created = ops.show(id_of(&engine, name).await).await.unwrap().summary.created_at;
        // The window of 24 hours, less its margin.
        let past = (ends - created - chrono::TimeDelta::hours(23)).num_seconds();
        assert!((0..30).contains(&past), "{past} {why:?}");
        let says = "The call of `charged` may be made until ";
        assert!(why.sentence.contains(says) && why.sentence.contains("(in 22 h"), "{why:?}");
    }
    if !is_memory::<S>() {
        let earlier = match is_postgres::<S>() {
            true => "advanced_at = (SELECT now() - interval '24 hours')",
            false => "advanced_at = created_at - 86400000",
        };
        set(&engine, "failed", earlier).await;
        let why = told("failed").await;
        assert!(why.window_ends.unwrap() < chrono::Utc::now(), "{why:?}");
        let says = "may have forgotten an earlier call of `charged` since";
        assert!(why.sentence.contains(says) && why.sentence.contains("(1 h 0 min ago)"), "{why:?}");
        // Once it is said that it had no effect, there is nothing that the provider could forget.
        let stops = || troubled(Trouble::RetryForeignAlways);
        let call = engine.call(&scope(), &key("failed"), stops()).await.unwrap();
        assert!(matches!(call, Outcome::Unknown { .. }), "{call:?}");
        let attempt = engine.status(&scope(), &key("failed")).await.unwrap().unwrap().attempt;
        let word = Resolution::not_executed("charged", attempt);
        let _ = engine.resolve(&scope(), &key("failed"), word).await.unwrap();
        set(&engine, "failed", earlier).await;
        let why = told("failed").await;
        assert_eq!(why.window_ends, None, "{why:?}");
        assert!(!why.sentence.contains("forgotten"), "{why:?}");
        failed(engine.call(&scope(), &key("failed"), stops()).await);
    }
    // Nothing is to be called, or it is not called again by itself, or its provider forgets nothing.
    finish(&engine, "finished").await;
    unknown_unasked(&engine, "unknown").await;
    leased(&engine, "leased").await;
    for name in ["finished", "unknown", "leased"] {
        let why = told(name).await;
        assert_eq!(why.window_ends, None, "{why:?}");
        assert!(!why.sentence.contains("may be made") && !why.sentence.contains("forgotten"));
    }
}

async fn g14_a_row_that_this_build_cannot_run_says_so<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    let ways = [
        ("definition = 'gone'", StrandedBecause::UnknownDefinition, true),
        ("definition_version = 9", StrandedBecause::UnknownVersion, true),
        ("recovery_point = 'gone'", StrandedBecause::UnknownRecoveryPoint, true),
        ("phases = 'booked=x'", StrandedBecause::NewerForm, true),
        ("phases = 'booked pay=i answered'", StrandedBecause::ProviderKeyChanged, true),
        ("params = outputs", StrandedBecause::ParametersUndecodable, false),
    ];
    for (number, (change, because, is_seen_in_a_list)) in ways.into_iter().enumerate() {
        let name = format!("k-{number}");
        back_off(&engine, &name).await;
        set(&engine, &name, change).await;
        let found = ops.find(&scope(), &key(&name)).await.unwrap();
        assert_eq!(found.stranded, Some(because).filter(|_| is_seen_in_a_list), "{change}");
        let why = ops.why(found.request_id).await.unwrap();
        is(&why, HeldBy::Stranded(because), EndedBy::Deploy, false, &[because.as_str()]);
        // A request that waits for an operator says so first, and then that this build would not run a retry.
        set(&engine, &name, "status = 'dead_letter', waiting_since = created_at").await;
        let why = ops.why(found.request_id).await.unwrap();
        is(
            &why,
            HeldBy::DeadLetter,
            EndedBy::Operator,
            false,
            &["would not go on", because.as_str()],
        );
        set(&engine, &name, "status = 'unknown', open_intent = 'charged'").await;
        let row = ops.find(&scope(), &key(&name)).await.unwrap();
        let told = (row.phase.as_deref(), row.perhaps_called.as_deref());
        assert_eq!(told, (Some("charged"), Some("charged")), "{change}: in no list, but open");
        let why = ops.why(found.request_id).await.unwrap();
        is(
            &why,
            HeldBy::Stranded(because),
            EndedBy::Deploy,
            false,
            &["`charged` was executed is unknown"],
        );
        // A holder of another build runs it.
        let columns = "status = 'in_progress', waiting_since = NULL, locked_until = expires_at";
        set(&engine, &name, columns).await;
        let why = ops.why(found.request_id).await.unwrap();
        assert_eq!(why.held_by, HeldBy::Lease, "{why:?}");
    }
    assert_eq!(app.provider.effects(), 6, "one for each, and nothing was run by looking");
}

async fn details_tell_the_phases_and_what_happened<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    unknown(&engine, "k").await;
    let shown = admin(&engine).show(id_of(&engine, "k").await).await.unwrap();
    let phases: Vec<_> = shown.phases.iter().map(|at| (at.name.as_str(), at.stands)).collect();
    use PhaseStands::{CallOpen, Done, Later};
    assert_eq!(phases, [("noted", Done), ("notified", CallOpen), ("answered", Later)]);
    let timeline = format!("{:?}", shown.timeline);
    let order = ["Accepted", "Committed { recovery_point: \"noted\" }", "Left { kind: Unknown"];
    let found: Vec<_> = order.iter().map(|what| timeline.find(what).unwrap()).collect();
    assert!(found.is_sorted(), "{timeline}");

    finish(&engine, "done").await;
    let shown = admin(&engine).show(id_of(&engine, "done").await).await.unwrap();
    let jobs: Vec<_> = shown.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(jobs, ["receipt", "thanks"]);
    assert!(shown.phases.iter().all(|phase| phase.stands == PhaseStands::Over));
}

/// Its provider honors the derived key, so no intent is stored: the call was made, and the attempt ended without its output.
async fn g1_a_call_that_may_have_been_made_is_told_as_that<S: TestDb + OperatorStore>(db: S) {
    use PhaseStands::{Done, Later, MayHaveBeenCalled, Next};
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    let without_code: Engine<S> = Engine::builder(db.clone()).build().unwrap();
    let without_code = without_code.ops(actor(Permissions::admin()));
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    back_off(&engine, "failed").await;
    dead_letter(&engine, "dead").await;
    assert_eq!(app.provider.effects(), 2);
    // An operator says that the call had no effect.
    unknown_unasked(&engine, "denied").await;
    let row = ops.find(&scope(), &key("denied")).await.unwrap();
    let word = Resolution::not_executed("charged", row.attempts);
    let _ = ops.resolve(row.request_id, &row.version, word, "not in its log").await.unwrap();
    for (name, expected, at, may) in [
        ("accepted", [Next, Later, Later], "booked", false),
        ("failed", [Done, MayHaveBeenCalled, Later], "charged", true),
        ("dead", [Done, MayHaveBeenCalled, Later], "charged", true),
        ("denied", [Done, Next, Later], "charged", false),
    ] {
        let id = id_of(&engine, name).await;
        for ops in [&ops, &without_code] {
            let shown = ops.show(id).await.unwrap();
            let stands: Vec<_> = shown.phases.iter().map(|phase| phase.stands).collect();
            assert_eq!(stands, expected, "{name}");
            let listed = ops.list(Filter::new()).await.unwrap().rows;
            let listed = listed.into_iter().find(|row| row.request_id == id).unwrap();
            for row in [&shown.summary, &listed] {
                assert_eq!((row.phase.as_deref(), row.may_have_been_called), (Some(at), may));
                assert_eq!(row.perhaps_called.as_deref(), may.then_some(at), "{name}");
                assert_eq!(row.open_intent, None, "{name}");
            }
            let says = "`charged` may have been called: look it up at the provider";
            assert_eq!(shown.why.sentence.contains(says), may, "{:?}", shown.why);
        }
    }
    let dead = Selection::Filter(Filter::new().states([State::DeadLetter]));
    for act in [BulkAct::Retry, BulkAct::Erase] {
        let plan = ops.plan_bulk(act, &dead).await.unwrap();
        assert_eq!((plan.count, plan.fitting, plan.with_call), (1, 1, 1));
    }
}

/// The window of the call is that of a call which the engine would repeat, and no other: where it was not made, it is made
/// after whatever time.
async fn g11_what_another_build_has_written_of_a_call_is_told_as_the_engine_judges_it<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    for (number, (columns, may)) in [
        ("reason = reason", true),
        // The phase was local, or was called at most once, and had stored no intent.
        ("phases = 'booked charged answered'", false),
        ("phases = 'booked charged=a answered'", false),
        // A later build has renamed it, and was rolled back.
        ("phases = 'booked paid=i(charged) answered'", true),
        ("phases = 'booked paid=i(charged) answered', resolution = 'uncalled paid 1'", false),
        // It was said to this build, which could not decode the row, and left its list as it was.
        (
            "phases = 'booked paid=i(charged) answered', resolution = 'not_executed charged 1'",
            false,
        ),
        ("resolution = 'uncalled charged 1'", false),
        ("resolution = 'retry not_executed charged 1'", false),
        ("resolution = 'uncalled charged 2'", true),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("k-{number}");
        back_off(&engine, &name).await;
        set(&engine, &name, columns).await;
        let shown = ops.show(id_of(&engine, &name).await).await.unwrap();
        assert_eq!(shown.summary.stranded, None, "{columns}");
        let told = (shown.summary.may_have_been_called, shown.why.window_ends.is_some());
        assert_eq!(told, (may, may), "{columns}: {:?}", shown.why);
        assert_eq!(shown.why.sentence.contains("may have been called"), may, "{:?}", shown.why);
    }
}

async fn what_an_operator_finished_by_hand_did_not_run_and_says_so<S: TestDb + OperatorStore>(
    db: S,
) {
    use PhaseStands::{CallOpen, Done, MayHaveBeenCalled, NotCommitted, NotRun, Over};
    let engine = engine(&db, &App::default());
    unknown(&engine, "unknown").await;
    dead_letter(&engine, "dead").await;
    dead_letter(&engine, "uncalled").await;
    set(&engine, "uncalled", "resolution = 'uncalled charged 1'").await;
    let ops = admin(&engine);
    let stands = async |name: &str| {
        let shown = ops.show(id_of(&engine, name).await).await.unwrap();
        shown.phases.iter().map(|phase| phase.stands).collect::<Vec<_>>()
    };
    for (name, expected, called) in [
        ("unknown", [Done, CallOpen, NotRun], Some("notified")),
        ("dead", [Done, MayHaveBeenCalled, NotRun], Some("charged")),
        // No call of its attempts had an effect.
        ("uncalled", [Done, NotCommitted, NotRun], None),
    ] {
        let row = ops.find(&scope(), &key(name)).await.unwrap();
        let by_hand = Resolution::finish(Reply::text(200, "by hand"));
        let done = ops.resolve(row.request_id, &row.version, by_hand, "ticket 88").await;
        assert_eq!(done.unwrap(), Resolved::Applied);
        assert_eq!(stands(name).await, expected, "{name}");
        let row = ops.find(&scope(), &key(name)).await.unwrap();
        assert_eq!(row.perhaps_called.as_deref(), called, "{name}");
        assert_eq!((row.phase, row.may_have_been_called), (None, false), "{name}");
        assert!(!ops.why(row.request_id).await.unwrap().sentence.contains("called"), "{name}");
    }
    // What erases them erases that, too.
    let over = Selection::Filter(Filter::new().states([State::Finished]));
    let plan = ops.plan_bulk(BulkAct::Erase, &over).await.unwrap();
    assert_eq!((plan.count, plan.fitting, plan.with_call), (3, 3, 2));
    // For a row of a build that did not store its phases, and for an erased one, the answer claims nothing.
    set(&engine, "unknown", "resolution = 'finish'").await;
    assert_eq!(stands("unknown").await, [Over; 3]);
    engine.erase(&scope(), &key("dead")).await.unwrap();
    assert_eq!(stands("dead").await, [Over; 3]);
    // Of a later build, whose list this one cannot read.
    let later = "phases = 'noted=2', resolution = 'finish noted notified perhaps'";
    set(&engine, "unknown", later).await;
    let row = ops.find(&scope(), &key("unknown")).await.unwrap();
    assert_eq!(row.perhaps_called.as_deref(), Some("notified"), "in no list, but stored");
}

async fn the_timeline_says_that_there_are_earlier_acts_and_where<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    finish(&engine, "k").await;
    let (ops, id) = (admin(&engine), id_of(&engine, "k").await);
    let acts = async || {
        let shown = ops.show(id).await.unwrap();
        let acts = shown.timeline.iter().filter(|one| matches!(one.what, Event::Acted(_))).count();
        (acts, shown.earlier_acts)
    };
    for number in 0..100 {
        ops.reveal(id, What::Key, &format!("look {number}")).await.unwrap();
    }
    assert_eq!(acts().await.0, 100);
    for number in 100..103 {
        ops.reveal(id, What::Key, &format!("look {number}")).await.unwrap();
    }
    let (told, earlier) = acts().await;
    assert_eq!(told, 100);
    let rest = ops.audit(Some(id), earlier, 100).await.unwrap();
    let reasons: Vec<&str> = rest.rows.iter().map(|act| &*act.reason).collect();
    assert_eq!(reasons, ["look 2", "look 1", "look 0"]);
    // An operator who may not read the audit sees no act, and not that there are any.
    let shown = engine.ops(actor(Permissions::READ)).show(id).await.unwrap();
    assert!(shown.earlier_acts.is_none());
}
