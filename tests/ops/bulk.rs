//! Bulk acts: planned first, done once for each request whatever happens to the workers, and each refusal is
//! listed.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use atomic_phases::Scope;
use atomic_phases::engine::Resolved;
use atomic_phases::ops::{
    Actor, BulkAct, Filter, OperatorStore, Ops, OpsError, Permissions, Scopes, Selection, State,
};
use atomic_phases::store::StoreError;
use atomic_phases::worker::BulkRunner;
use uuid::Uuid;

use super::cast::*;
use crate::support::work::config;
use crate::support::*;

on_every_store! {
    a_bulk_act_is_planned_and_done_and_each_refusal_is_listed,
    a_selection_has_a_condition_and_a_thousand_requests_at_most,
    g3_what_is_started_is_what_was_planned,
    g3_a_start_that_is_sent_twice_is_one_bulk_act,
    g3_a_plan_is_of_one_selection_whether_it_was_started_or_not,
    g3_a_request_that_moved_in_between_is_left_as_it_is,
    g16_a_bulk_act_reaches_no_request_outside_of_the_scopes,
    g16_a_bulk_act_is_seen_by_whose_limits_it_lies_within,
    g3_two_workers_on_one_bulk_act_act_on_each_request_once,
    g3_killed_at_any_step_a_bulk_act_goes_on_and_acts_on_no_request_twice,
    a_bulk_act_that_is_stopped_does_nothing_more,
    a_bulk_act_that_is_stopped_behind_a_dead_worker_counts_what_that_did,
    the_workers_of_an_engine_do_it,
}

fn dead_letters() -> Selection {
    Selection::Filter(Filter::new().states([State::DeadLetter]))
}

async fn ran<S: TestDb>(engine: &TestEngine<S>) -> u32 {
    BulkRunner::new(engine, config()).run_once().await.unwrap()
}

/// Runs until nothing is left to do.
async fn ran_out<S: TestDb>(engine: &TestEngine<S>) {
    while ran(engine).await > 0 {}
}

async fn dead<S: TestDb>(engine: &TestEngine<S>, names: &[String]) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for name in names {
        dead_letter(engine, name).await;
        ids.push(id_of(engine, name).await);
    }
    ids
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

async fn state<S: TestDb>(engine: &TestEngine<S>, name: &str) -> State {
    admin(engine).find(&scope(), &key(name)).await.unwrap().state
}

/// How often the act was done, according to the audit.
async fn applied<S: TestDb>(engine: &TestEngine<S>, id: Uuid) -> usize {
    let acts = admin(engine).audit(Some(id), None, 100).await.unwrap().rows;
    acts.iter().filter(|act| act.act == "retry" && act.outcome == "applied").count()
}

async fn a_bulk_act_is_planned_and_done_and_each_refusal_is_listed<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let all = names("k", 13);
    let mut ids = dead(&engine, &all).await;
    finish(&engine, "finished").await;
    unknown_unasked(&engine, "unasked").await;
    let (gone, finished) = (Uuid::from_u128(7), id_of(&engine, "finished").await);
    ids.extend([finished, gone, finished]);

    // A plan changes nothing.
    let before = dump(&db).await;
    let plan = ops.plan_bulk(BulkAct::Retry, &dead_letters()).await.unwrap();
    assert_eq!((plan.count, plan.fitting, plan.sample.len()), (13, 13, 10));
    let some = Selection::Requests(ids);
    let plan = ops.plan_bulk(BulkAct::Retry, &some).await.unwrap();
    assert_eq!((plan.count, plan.fitting), (15, 13), "each once");
    assert_eq!(dump(&db).await, before);
    assert!(ops.bulks(None, 10).await.unwrap().rows.is_empty());

    // A different number than planned: the selection has changed.
    let other = ops.start_bulk(BulkAct::Retry, &some, 14, "provider back").await;
    assert!(matches!(other, Err(OpsError::MovedOn)), "{other:?}");
    let none = ops.start_bulk(BulkAct::Retry, &some, 15, " ").await;
    assert!(matches!(none, Err(OpsError::BadReason)), "{none:?}");

    let id = ops.start_bulk(BulkAct::Retry, &some, 15, "provider back").await.unwrap();
    let started = ops.bulk(id).await.unwrap();
    assert_eq!((started.bulk.count, started.bulk.settled, started.bulk.applied), (15, 0, 0));
    assert_eq!((started.bulk.actor.as_str(), started.bulk.ended_at), ("ada", None));
    assert_eq!(state(&engine, "k-0").await, State::DeadLetter, "the workers do it");
    assert_eq!(ran(&engine).await, 10, "a slice");
    assert_eq!(ops.bulk(id).await.unwrap().bulk.settled, 10);
    ran_out(&engine).await;
    let ended = ops.bulk(id).await.unwrap();
    assert_eq!((ended.bulk.settled, ended.bulk.applied), (15, 13));
    assert!(ended.bulk.ended_at.is_some() && ended.bulk.stopped_by.is_none());
    let refused: Vec<_> = ended.refusals.iter().map(|refusal| refusal.request_id).collect();
    assert_eq!(refused, [finished, gone]);
    for refusal in &ended.refusals {
        assert!(refusal.outcome == "refused" && refusal.because.is_some(), "{refusal:?}");
    }
    for name in &all {
        assert_eq!(state(&engine, name).await, State::Due, "{name}");
    }
    // Each act has its row, and so has each refusal, the start, and the two that were refused.
    let acts = ops.audit(None, None, 100).await.unwrap().rows;
    let of = |act: &str, outcome: &str| {
        let ours =
            |row: &&atomic_phases::ops::AuditRecord| row.act == act && row.outcome == outcome;
        acts.iter().filter(ours).filter(|row| row.reason == "provider back").count()
    };
    assert_eq!((of("retry", "applied"), of("retry", "refused")), (13, 2));
    assert_eq!((of("bulk.start", "applied"), of("bulk.start", "refused")), (1, 1));
    assert!(acts.iter().filter(|act| act.act == "retry").all(|act| act.bulk_id == Some(id)));
    assert_eq!(ops.bulks(None, 10).await.unwrap().rows, [ended.bulk]);
    // An ended bulk act stays ended.
    assert_eq!(ran(&engine).await, 0);
    assert_eq!(ops.stop_bulk(id, "late").await.unwrap(), Resolved::Already);
}

async fn a_selection_has_a_condition_and_a_thousand_requests_at_most<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    finish(&engine, "k").await;
    let too_many = (0..1001).map(Uuid::from_u128).collect();
    for selection in [
        Selection::Filter(Filter::new()),
        Selection::Filter(Filter::new().page(5)),
        // All that are finished would be erased, not one of them.
        Selection::Filter(Filter::new().states([State::Finished]).page(1)),
        Selection::Filter(Filter::new().definition("none", None)),
        // What a script asks for whose variable is empty.
        Selection::Filter(Filter::new().reason("")),
        Selection::Filter(Filter::new().phase(" ")),
        Selection::Filter(Filter::new().definition("", None)),
        Selection::Filter(Filter::new().states([])),
        Selection::Filter(Filter::new().older_than(Duration::ZERO)),
        Selection::Filter(Filter::new().states([State::Finished]).reason("")),
        Selection::Requests(too_many),
        Selection::Requests(Vec::new()),
    ] {
        let plan = ops.plan_bulk(BulkAct::Erase, &selection).await;
        assert!(matches!(plan, Err(OpsError::BadFilter(_))), "{selection:?}: {plan:?}");
        let start = ops.start_bulk(BulkAct::Erase, &selection, 1, "reason").await;
        assert!(matches!(start, Err(OpsError::BadFilter(_))), "{selection:?}: {start:?}");
    }
    assert!(ops.bulks(None, 10).await.unwrap().rows.is_empty());
    // Of more than one statement.
    let ids = (0..250).map(Uuid::from_u128).chain([id_of(&engine, "k").await]);
    let plan = ops.plan_bulk(BulkAct::Erase, &Selection::Requests(ids.collect())).await.unwrap();
    assert_eq!((plan.count, plan.fitting, plan.sample.len()), (251, 1, 1));
    let erase = Selection::Filter(Filter::new().definition("book", None));
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    let id = ops.start_bulk(BulkAct::Erase, &erase, 1, "asked for").await.unwrap();
    ran_out(&engine).await;
    assert_eq!(ops.bulk(id).await.unwrap().bulk.applied, 1);
    assert_eq!(state(&engine, "k").await, State::Erased);
}

async fn g3_what_is_started_is_what_was_planned<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    dead(&engine, &names("k", 3)).await;
    let by_hand = async |name: &str| {
        let row = ops.find(&scope(), &key(name)).await.unwrap();
        let _ = ops.retry(row.request_id, &row.version, "by hand").await.unwrap();
    };
    let plan = async || ops.plan_bulk(BulkAct::Retry, &dead_letters()).await.unwrap();
    let planned = plan().await;
    assert_ne!(plan().await.version, planned.version, "another plan");
    // One continues and another gives up: the same number, but other requests.
    by_hand("k-0").await;
    dead_letter(&engine, "z").await;
    assert_eq!(plan().await.count, planned.count);
    let other = ops.start_bulk(BulkAct::Retry, &dead_letters(), &planned, "reason").await;
    assert!(matches!(other, Err(OpsError::MovedOn)), "{other:?}");
    // The same requests, of which one gave up once more.
    let planned = plan().await;
    by_hand("k-1").await;
    dead_letter(&engine, "k-1").await;
    let other = ops.start_bulk(BulkAct::Retry, &dead_letters(), &planned, "reason").await;
    assert!(matches!(other, Err(OpsError::MovedOn)), "{other:?}");
    // Requests outside of the selection may change meanwhile.
    let of_books = Selection::Filter(Filter::new().definition("book", None));
    let planned = ops.plan_bulk(BulkAct::Retry, &of_books).await.unwrap();
    assert_eq!((planned.count, planned.fitting), (4, 3));
    back_off(&engine, "k-0").await;
    let id = ops.start_bulk(BulkAct::Retry, &of_books, &planned, "reason").await.unwrap();
    ran_out(&engine).await;
    assert_eq!(ops.bulk(id).await.unwrap().bulk.applied, 3);
}

async fn g3_a_start_that_is_sent_twice_is_one_bulk_act<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let (here, there) = (engine(&db, &app), engine(&db.another().await, &app));
    let ops = admin(&here);
    let ids = dead(&here, &names("k", 3)).await;
    let plan = ops.plan_bulk(BulkAct::Retry, &dead_letters()).await.unwrap();
    let start = async |ops: Ops<S>, act| {
        ops.start_bulk(act, &dead_letters(), &plan, "the provider is back").await
    };
    // The plan is valid for one kind of act only.
    let other = start(ops.clone(), BulkAct::Erase).await;
    assert!(matches!(other, Err(OpsError::MovedOn)), "{other:?}");
    // Sent to two nodes at the same time, again, and once more after its end.
    let both = [start(ops.clone(), BulkAct::Retry), start(admin(&there), BulkAct::Retry)];
    let both = futures_util::future::join_all(both).await;
    let id = *both[0].as_ref().unwrap();
    assert_eq!(both[1].as_ref().ok(), Some(&id), "{both:?}");
    assert_eq!(start(ops.clone(), BulkAct::Retry).await.unwrap(), id);
    ran_out(&here).await;
    assert_eq!(start(ops.clone(), BulkAct::Retry).await.unwrap(), id);
    ran_out(&here).await;
    let told = ops.bulk(id).await.unwrap();
    assert_eq!((told.bulk.applied, told.refusals.len()), (3, 0), "{told:?}");
    assert_eq!(ops.bulks(None, 10).await.unwrap().rows, [told.bulk]);
    for id in ids {
        assert_eq!(applied(&here, id).await, 1);
    }
    // The plan belongs to another act by now, or this actor may not know it.
    let other = start(ops.clone(), BulkAct::Erase).await;
    assert!(matches!(other, Err(OpsError::MovedOn)), "{other:?}");
    let bob = Actor::new("bob", Permissions::admin(), Scopes::Only(vec![scope()])).unwrap();
    let other = start(here.ops(bob), BulkAct::Retry).await;
    assert!(matches!(other, Err(OpsError::MovedOn)), "{other:?}");
    let acts = ops.audit(None, None, 100).await.unwrap().rows;
    let starts = acts.iter().filter(|act| act.act == "bulk.start" && act.bulk_id == Some(id));
    let mut outcomes: Vec<_> = starts.map(|act| act.outcome.as_str()).collect();
    outcomes.sort_unstable();
    let (again, refused) = (["already"; 3], ["refused"; 3]);
    assert_eq!(outcomes, [&again[..], &["applied"], &refused].concat(), "each is in the audit");
    // A second selection of the same requests is another plan.
    for name in names("k", 3) {
        dead_letter(&here, &name).await;
    }
    let plan = ops.plan_bulk(BulkAct::Retry, &dead_letters()).await.unwrap();
    let next = ops.start_bulk(BulkAct::Retry, &dead_letters(), &plan, "again").await.unwrap();
    assert_ne!(next, id);
}

async fn g3_a_plan_is_of_one_selection_whether_it_was_started_or_not<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let ids = dead(&engine, &names("k", 2)).await;
    let filter = |states: &[State]| Selection::Filter(Filter::new().states(states.to_vec()));
    let of = |ids: &[Uuid]| Selection::Requests(ids.to_vec());
    let hour = Duration::from_secs(3600);
    let others = [
        of(&ids[..1]),
        of(&[ids[0], ids[1], Uuid::from_u128(7)]),
        filter(&[State::DeadLetter]),
        filter(&[State::DeadLetter, State::Unknown, State::Due]),
        Selection::Filter(Filter::waiting().scope(&scope())),
        Selection::Filter(Filter::waiting().older_than(Duration::ZERO)),
        Selection::Filter(Filter::waiting().older_than(hour)),
        Selection::Filter(Filter::waiting().definition("book", None)),
        Selection::Filter(Filter::waiting().definition("book", Some(1))),
    ];
    // The same selections, written in another way.
    let planned = [
        (
            filter(&[State::Unknown, State::DeadLetter]),
            filter(&[State::DeadLetter, State::Unknown]),
        ),
        (of(&ids), of(&[ids[1], ids[0], ids[1]])),
    ];
    for (number, (selection, same)) in planned.iter().enumerate() {
        let plan = ops.plan_bulk(BulkAct::Retry, selection).await.unwrap();
        let other = &planned[1 - number].0;
        let start =
            async |some: &Selection| ops.start_bulk(BulkAct::Retry, some, &plan, "reason").await;
        let is_refused = async || {
            for other in others.iter().chain([other]) {
                let told = start(other).await;
                assert!(matches!(told, Err(OpsError::MovedOn)), "{other:?}: {told:?}");
            }
        };
        is_refused().await;
        let id = start(same).await.unwrap();
        is_refused().await;
        ran_out(&engine).await;
        // Its requests have changed by now: it is still the same plan.
        is_refused().await;
        for again in [selection, same] {
            assert_eq!(start(again).await.unwrap(), id);
        }
        assert_eq!(ops.bulk(id).await.unwrap().bulk.applied, 2);
        for name in names("k", 2) {
            dead_letter(&engine, &name).await;
        }
    }
    assert_eq!(ops.bulks(None, 10).await.unwrap().rows.len(), 2);
    // An invalid version belongs to no plan.
    for odd in ["", "-", "--", "x-y-z", &Uuid::from_u128(7).simple().to_string()] {
        let version = atomic_phases::ops::RowVersion::from(odd);
        let told = ops.start_bulk(BulkAct::Retry, &of(&ids), version, "reason").await;
        assert!(matches!(told, Err(OpsError::MovedOn)), "{odd}: {told:?}");
    }
}

async fn g3_a_request_that_moved_in_between_is_left_as_it_is<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let ids = dead(&engine, &names("k", 3)).await;
    let id = ops.start_bulk(BulkAct::Retry, &dead_letters(), 3, "reason").await.unwrap();
    // Another operator was faster: one request continues, one gave up again.
    for name in ["k-0", "k-1"] {
        let row = ops.find(&scope(), &key(name)).await.unwrap();
        let _ = ops.retry(row.request_id, &row.version, "by hand").await.unwrap();
    }
    failed(engine.call(&scope(), &key("k-1"), troubled(Trouble::RetryForeignAlways)).await);
    set(&engine, "k-1", "status = 'dead_letter', run_after = NULL, waiting_since = created_at")
        .await;
    ran_out(&engine).await;
    let ended = ops.bulk(id).await.unwrap();
    assert_eq!((ended.bulk.settled, ended.bulk.applied), (3, 1), "{ended:?}");
    let left: Vec<_> = ended.refusals.iter().map(|refusal| refusal.request_id).collect();
    assert!(left.contains(&ids[0]) && left.contains(&ids[1]), "{ended:?}");
    assert_eq!(state(&engine, "k-1").await, State::DeadLetter);
    assert_eq!(state(&engine, "k-2").await, State::Due);
    assert_eq!((applied(&engine, ids[1]).await, applied(&engine, ids[2]).await), (1, 1));
}

async fn g16_a_bulk_act_reaches_no_request_outside_of_the_scopes<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ids = dead(&engine, &names("k", 2)).await;
    let other = Scope::new("tenant-2").unwrap();
    let stops = troubled(Trouble::RetryForeignAlways);
    failed(engine.call(&other, &key("theirs"), stops).await);
    set(&engine, "theirs", "status = 'dead_letter', run_after = NULL, waiting_since = created_at")
        .await;
    let theirs = admin(&engine).find(&other, &key("theirs")).await.unwrap().request_id;
    let limited = Actor::new("bob", Permissions::admin(), Scopes::Only(vec![other])).unwrap();
    let bob = engine.ops(limited);
    // A filter does not find the others; their ids are refused.
    assert_eq!(bob.plan_bulk(BulkAct::Retry, &dead_letters()).await.unwrap().count, 1);
    let some = Selection::Requests(vec![ids[0], theirs, ids[1]]);
    let id = bob.start_bulk(BulkAct::Retry, &some, 3, "reason").await.unwrap();
    ran_out(&engine).await;
    let ended = bob.bulk(id).await.unwrap();
    assert_eq!((ended.bulk.settled, ended.bulk.applied), (3, 1));
    assert_eq!(bob.bulks(None, 10).await.unwrap().rows, std::slice::from_ref(&ended.bulk));
    for refusal in &ended.refusals {
        let because = refusal.because.as_deref().unwrap();
        assert!(because.contains("there is no such request"), "{because}");
    }
    assert_eq!(state(&engine, "k-0").await, State::DeadLetter);
    assert_eq!((applied(&engine, theirs).await, applied(&engine, ids[0]).await), (1, 0));
}

async fn g16_a_bulk_act_is_seen_by_whose_limits_it_lies_within<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    dead_letter(&engine, "k").await;
    let of = |name: &str, scopes: Scopes| {
        engine.ops(Actor::new(name, Permissions::admin(), scopes).unwrap())
    };
    let only = |names: &[&str]| {
        Scopes::Only(names.iter().map(|name| Scope::new(*name).unwrap()).collect())
    };
    let prefix = |text: &str| Scopes::Prefix(text.to_owned());
    let selection = Selection::Requests(vec![id_of(&engine, "k").await]);
    let mut started = Vec::new();
    for scopes in [
        Scopes::All,
        prefix("tenant-1"),
        only(&["tenant-1"]),
        only(&["tenant-1", "b"]),
        prefix("b"),
    ] {
        let id =
            of("ada", scopes).start_bulk(BulkAct::Retry, &selection, 1, "reason").await.unwrap();
        started.push(id);
    }
    // Whatever the actor's name is: its scopes decide.
    for (scopes, seen) in [
        (Scopes::All, &[0, 1, 2, 3, 4][..]),
        (prefix("tenant-"), &[1, 2]),
        (only(&["tenant-1"]), &[2]),
        (only(&["b", "tenant-1"]), &[2, 3]),
        (prefix("b"), &[4]),
        (only(&["tenant-2"]), &[]),
        (only(&[]), &[]),
    ] {
        for name in ["ada", "bob"] {
            let ops = of(name, scopes.clone());
            let (mut listed, mut next) = (Vec::new(), None);
            loop {
                // In pages of one.
                let page = ops.bulks(next, 1).await.unwrap();
                listed.extend(page.rows.iter().map(|bulk| bulk.id));
                assert!(page.searched_to.is_none());
                next = page.next;
                if next.is_none() {
                    break;
                }
            }
            let mut expected: Vec<Uuid> = seen.iter().map(|at| started[*at]).collect();
            // Several may have the same time.
            listed.sort_unstable();
            expected.sort_unstable();
            assert_eq!(listed, expected, "{name} {scopes:?}");
            for (at, id) in started.iter().enumerate() {
                let is_seen = seen.contains(&at);
                assert_eq!(ops.bulk(*id).await.is_ok(), is_seen, "{name} {scopes:?} {at}");
                if !is_seen {
                    let stopped = ops.stop_bulk(*id, "reason").await;
                    assert!(matches!(stopped, Err(OpsError::NoSuchBulk)), "{name} {scopes:?} {at}");
                }
            }
        }
    }
    let bob = of("bob", only(&["tenant-1"]));
    assert_eq!(bob.stop_bulk(started[2], "a slip").await.unwrap(), Resolved::Applied);
    if is_memory::<S>() {
        // SQL does not write its rows of bulk acts; `store::bulk` itself tests what their texts may be.
        return;
    }
    let limits = r#"{"only":null,"prefix":"","regions":["eu"]}"#;
    db.sql(&format!("UPDATE atomic_phases_bulk SET limits = '{limits}'")).await;
    assert!(bob.bulks(None, 10).await.unwrap().rows.is_empty(), "limits of a later build");
    assert_eq!(of("ada", Scopes::All).bulks(None, 10).await.unwrap().rows.len(), 5);
}

async fn g3_two_workers_on_one_bulk_act_act_on_each_request_once<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let one = engine(&db, &app);
    let other = engine(&db.another().await, &app);
    let ids = dead(&one, &names("k", 25)).await;
    let id = admin(&one).start_bulk(BulkAct::Retry, &dead_letters(), 25, "reason").await.unwrap();
    let is_over = async || admin(&one).bulk(id).await.unwrap().bulk.ended_at.is_some();
    let works = async |engine: &TestEngine<S>| {
        while !is_over().await {
            match BulkRunner::new(engine, config()).run_once().await {
                // The other has a row for longer than this one waits: it goes on with its next look.
                Ok(_) | Err(StoreError::Locked) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    tokio::join!(works(&one), works(&other));
    let ended = admin(&one).bulk(id).await.unwrap();
    assert_eq!((ended.bulk.settled, ended.bulk.applied), (25, 25), "{ended:?}");
    for id in ids {
        assert_eq!(applied(&one, id).await, 1);
    }
}

/// Polls it at most this many times, and drops it there: what a process that dies leaves behind. Returns whether it
/// ended.
async fn killed_after<F: Future>(polls: usize, work: F) -> bool {
    let mut work = pin!(work);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        work.as_mut().poll(context).map(|_| true)
    })
    .await
}

async fn g3_killed_at_any_step_a_bulk_act_goes_on_and_acts_on_no_request_twice<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    if is_memory::<S>() {
        // The SQL of its tests does not reach the lease of a bulk act.
        return;
    }
    let app = App::default();
    let here = engine(&db, &app);
    let ops = admin(&here);
    let (mut polls, mut kills) = (0, 0);
    // If an answer is available before it is awaited, several awaits are one poll, so there are more rounds.
    while polls > 0 || kills <= 10 {
        let ids = dead(&here, &names(&format!("k-{polls}"), 2)).await;
        let some = Selection::Requests(ids.clone());
        let id = ops.start_bulk(BulkAct::Retry, &some, 2, "reason").await.unwrap();
        let dies = engine(&db.another().await, &app);
        let mut runner = BulkRunner::new(&dies, config());
        let is_over = killed_after(polls, runner.run_once()).await;
        drop((runner, dies));
        // Another node finds it once its lease has expired.
        let mut rounds = 0;
        while ops.bulk(id).await.unwrap().bulk.ended_at.is_none() {
            db.sql("UPDATE atomic_phases_bulk SET locked_until = NULL").await;
            ran_out(&here).await;
            rounds += 1;
            assert!(rounds < 20, "{polls}: it does not go on");
        }
        let ended = ops.bulk(id).await.unwrap();
        assert_eq!((ended.bulk.settled, ended.bulk.applied), (2, 2), "{polls}: {ended:?}");
        for id in ids {
            assert_eq!(applied(&here, id).await, 1, "{polls}");
        }
        db.sql("DELETE FROM atomic_phases_keys").await;
        (polls, kills) = if is_over { (0, kills) } else { (polls + 1, kills + 1) };
        assert!(kills < 2000, "it never ends");
    }
}

async fn a_bulk_act_that_is_stopped_does_nothing_more<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    dead(&engine, &names("k", 12)).await;
    let id = ops.start_bulk(BulkAct::Retry, &dead_letters(), 12, "reason").await.unwrap();
    assert_eq!(ran(&engine).await, 10);
    assert_eq!(ops.stop_bulk(id, "a mistake").await.unwrap(), Resolved::Applied);
    assert_eq!(ran(&engine).await, 0);
    let stopped = ops.bulk(id).await.unwrap();
    assert_eq!((stopped.bulk.settled, stopped.bulk.stopped_by.as_deref()), (10, Some("ada")));
    let rows = ops.list(Filter::new().states([State::DeadLetter])).await.unwrap().rows;
    assert_eq!(rows.len(), 2);
    assert_eq!(ops.stop_bulk(id, "again").await.unwrap(), Resolved::Already);
    let none = ops.stop_bulk(Uuid::from_u128(7), "reason").await;
    assert!(matches!(none, Err(OpsError::NoSuchBulk)), "{none:?}");
    let acts = ops.audit(None, None, 1000).await.unwrap().rows;
    let outcomes: Vec<_> =
        acts.iter().filter(|act| act.act == "bulk.stop").map(|act| act.outcome.as_str()).collect();
    assert_eq!(outcomes, ["refused", "already", "applied"]);
}

async fn a_bulk_act_that_is_stopped_behind_a_dead_worker_counts_what_that_did<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    if is_memory::<S>() {
        // The SQL of its tests does not reach a bulk act.
        return;
    }
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    dead(&engine, &names("k", 12)).await;
    let id = ops.start_bulk(BulkAct::Retry, &dead_letters(), 12, "reason").await.unwrap();
    assert_eq!(ran(&engine).await, 10);
    // As a worker leaves it that dies after its last act, before it has written down the outcome.
    db.sql("UPDATE atomic_phases_bulk_items SET outcome = NULL WHERE position = 9").await;
    let locked = "SELECT max(at) FROM atomic_phases_audit";
    db.sql(&format!("UPDATE atomic_phases_bulk SET lease_token = 7, locked_until = ({locked})"))
        .await;
    assert_eq!(ops.bulk(id).await.unwrap().bulk.applied, 9);

    assert_eq!(ops.stop_bulk(id, "a mistake").await.unwrap(), Resolved::Applied);
    assert_eq!(ops.stop_bulk(id, "again").await.unwrap(), Resolved::Already);
    let stopping = ops.bulk(id).await.unwrap().bulk;
    assert_eq!((stopping.ended_at, stopping.stopped_by.as_deref()), (None, Some("ada")));
    assert_eq!(ran(&engine).await, 1);
    let stopped = ops.bulk(id).await.unwrap().bulk;
    assert!(stopped.ended_at.is_some(), "{stopped:?}");
    assert_eq!((stopped.settled, stopped.applied), (10, 10), "{stopped:?}");
    assert_eq!(ran(&engine).await, 0);
    let left = ops.list(Filter::new().states([State::DeadLetter])).await.unwrap().rows;
    assert_eq!(left.len(), 2);
}

async fn the_workers_of_an_engine_do_it<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    dead(&engine, &names("k", 11)).await;
    let workers = engine.spawn_workers(config()).unwrap();
    let id = ops.start_bulk(BulkAct::Retry, &dead_letters(), 11, "reason").await.unwrap();
    until(async || ops.bulk(id).await.unwrap().bulk.ended_at.is_some()).await;
    assert_eq!(ops.bulk(id).await.unwrap().bulk.applied, 11);
    workers.shutdown(Duration::from_secs(30)).await.unwrap();
}

/// A worker finds two bulk acts whose worker died. While it processes the first, an operator stops the second: the worker
/// does not continue that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_behind_the_search_for_bulk_acts_is_seen() {
    use crate::support::db::{pg, url_of};
    use diesel_async::SimpleAsyncConnection;

    let db = atomic_phases::store::Postgres::fresh().await;
    let here = engine(&db, &App::default());
    let ops = admin(&here);
    let mut acts = Vec::new();
    for id in dead(&here, &names("k", 2)).await {
        let one = Selection::Requests(vec![id]);
        acts.push(ops.start_bulk(BulkAct::Retry, &one, 1, "reason").await.unwrap());
    }
    let died = "UPDATE atomic_phases_bulk SET locked_until = started_at";
    db.sql(died).await;
    let mut other = pg(&url_of(&db)).await;
    let first = "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE idempotency_key = 'k-0' FOR UPDATE";
    other.batch_execute(first).await.unwrap();
    let runs = tokio::spawn({
        let here = engine(&db.another().await, &App::default());
        async move { ran(&here).await }
    });
    // The worker has found both, and waits for the locked row of the first.
    let claimed = "SELECT lease_token FROM atomic_phases_bulk ORDER BY started_at LIMIT 1";
    until(async || db.number(claimed).await > 0).await;
    assert_eq!(ops.stop_bulk(acts[1], "a mistake").await.unwrap(), Resolved::Applied);
    other.batch_execute("ROLLBACK").await.unwrap();
    runs.await.unwrap();
    let stopped = ops.bulk(acts[1]).await.unwrap().bulk;
    assert_eq!((stopped.applied, stopped.ended_at.is_some()), (0, true), "{stopped:?}");
}
