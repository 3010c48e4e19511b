//! Acts: each does what it says once, and is in the audit exactly if it was done.

use std::time::Duration;

use atomic_phases::engine::{EraseError, Resolution, ResolveError, Resolved};
use atomic_phases::ops::{
    Actor, AuditFilter, AuditRecord, BulkAct, OperatorStore, Ops, OpsError, Permissions,
    RowVersion, Scopes, Selection, State, Summary, What,
};
use atomic_phases::worker::Enqueuer;
use atomic_phases::{Outcome, Reply};

use super::cast::*;
use crate::support::work::{Inbox, completed, config, reconciled};
use crate::support::*;

on_every_store! {
    g1_g2_each_resolution_is_written_with_its_audit_row,
    g3_an_act_about_a_row_that_moved_on_is_refused,
    g3_a_reconcile_call_that_finds_nothing_out_changes_nothing,
    the_same_act_twice_is_one_act,
    g19_who_may_not_reveal_is_not_told_that_a_guess_is_right,
    an_erasure_is_audited_and_outlived_by_its_audit,
    g18_a_dead_job_is_retried_or_discarded_as_it_was_seen,
    g4_the_audit_is_there_exactly_if_the_act_was_committed,
    the_audit_is_append_only,
    the_audit_is_searched_by_request_actor_and_act,
}

async fn seen<S: TestDb + OperatorStore>(ops: &Ops<S>, name: &str) -> Summary {
    ops.find(&scope(), &key(name)).await.unwrap()
}

async fn audit<S: TestDb + OperatorStore>(ops: &Ops<S>) -> Vec<AuditRecord> {
    ops.audit(None, None, 100).await.unwrap().rows
}

async fn g1_g2_each_resolution_is_written_with_its_audit_row<S: TestDb + OperatorStore>(db: S) {
    // Its ledger has an effect for each call.
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    let output = Charge { id: "effect-9".into(), padding: String::new() };
    let words = [
        ("executed", Resolution::executed("notified", &output).unwrap(), "failed_retryable"),
        ("not_executed", Resolution::not_executed("notified", 1), "failed_retryable"),
        ("finish", Resolution::finish(Reply::text(409, "settled by hand")), "completed"),
    ];
    for (name, word, after) in words {
        unknown(&engine, name).await;
        let row = seen(&ops, name).await;
        let done = ops.resolve(row.request_id, &row.version, word, " the pilot said so ").await;
        assert_eq!(done.unwrap(), Resolved::Applied);
        let acts = ops.audit(Some(row.request_id), None, 10).await.unwrap().rows;
        assert_eq!(acts.len(), 1);
        let act = &acts[0];
        assert_eq!(act.act, format!("resolve.{name}"));
        assert_eq!((act.actor.as_str(), act.outcome.as_str()), ("ada", "applied"));
        assert_eq!(act.reason, "the pilot said so");
        assert_eq!(act.before.as_deref(), Some("unknown"));
        assert_eq!(act.after.as_deref(), Some(after));
        assert_eq!(act.definition, Some(("notify".into(), 1)));
        let phase = (name != "finish").then(|| ("notify".to_owned(), "notified".to_owned()));
        assert_eq!(act.phase, phase, "the call that it is about");
        let status = db
            .text(&format!(
                "SELECT status FROM atomic_phases_keys WHERE idempotency_key = '{name}'"
            ))
            .await;
        assert_eq!(status, after);
        let shown = ops.show(row.request_id).await.unwrap();
        assert!(format!("{:?}", shown.timeline).contains("Acted"), "{:?}", shown.timeline);
    }
    assert_eq!(app.provider.effects(), 3, "no act makes a call");
    assert_eq!(completed(&engine).await.finished, 1, "the one that was executed");
    // The call that was not executed was made again, and no other.
    assert_eq!(app.provider.effects(), 4);
    assert_eq!(seen(&ops, "not_executed").await.state, State::Unknown);

    // A text that cannot be the name of a phase is not kept in the audit.
    let row = seen(&ops, "not_executed").await;
    for text in [String::new(), "\0".to_owned(), "x".repeat(1 << 20)] {
        let word = Resolution::not_executed(text, 2);
        let refused = ops.resolve(row.request_id, &row.version, word, "a slip").await;
        assert!(matches!(refused, Err(OpsError::Resolve(_))), "{refused:?}");
        let acts = ops.audit(Some(row.request_id), None, 1).await.unwrap().rows;
        assert_eq!((acts[0].outcome.as_str(), &acts[0].phase), ("refused", &None));
    }

    dead_letter(&engine, "dead").await;
    let row = seen(&ops, "dead").await;
    assert_eq!(
        ops.retry(row.request_id, &row.version, "it is back").await.unwrap(),
        Resolved::Applied
    );
    assert_eq!(seen(&ops, "dead").await.attempts, 1);
    assert_eq!(audit(&ops).await[0].act, "retry");
}

async fn g3_an_act_about_a_row_that_moved_on_is_refused<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    dead_letter(&engine, "k").await;
    let stale = seen(&ops, "k").await;
    // Another operator was faster, and the request gave up again.
    let _ = engine.resolve(&scope(), &key("k"), Resolution::retry()).await.unwrap();
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await);
    set(&engine, "k", "status = 'dead_letter', run_after = NULL, waiting_since = created_at").await;
    let now = seen(&ops, "k").await;
    assert_ne!(stale.version, now.version);

    let before = db.text("SELECT lease_token FROM atomic_phases_keys").await;
    let retried = ops.retry(stale.request_id, &stale.version, "again").await;
    assert!(matches!(retried, Err(OpsError::MovedOn)), "{retried:?}");
    let word = Resolution::finish(Reply::text(200, ""));
    let finished = ops.resolve(stale.request_id, &stale.version, word, "again").await;
    assert!(matches!(finished, Err(OpsError::MovedOn)), "{finished:?}");
    let erased = ops.erase(stale.request_id, &stale.version, "again").await;
    assert!(matches!(erased, Err(OpsError::MovedOn)), "{erased:?}");
    assert_eq!(db.text("SELECT lease_token FROM atomic_phases_keys").await, before);
    assert_eq!(seen(&ops, "k").await, now, "nothing was written to the row");
    let acts = audit(&ops).await;
    let told: Vec<_> = acts.iter().map(|act| (act.act.as_str(), act.outcome.as_str())).collect();
    assert_eq!(told, [("erase", "refused"), ("resolve.finish", "refused"), ("retry", "refused")]);
    assert!(acts[0].refused_because.as_ref().unwrap().contains("has changed"), "{acts:?}");
    assert_eq!(acts[0].before, acts[0].after);

    // Also with a version that is not one of this library.
    let odd = ops.retry(now.request_id, &"no version".into(), "again").await;
    assert!(matches!(odd, Err(OpsError::MovedOn)), "{odd:?}");
    let _ = ops.retry(now.request_id, &now.version, "again").await.unwrap();
}

/// The token has grown, but the request is as the operator saw it: the same call, of the same attempt, is unknown.
async fn g3_a_reconcile_call_that_finds_nothing_out_changes_nothing<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    unknown(&engine, "k").await;
    let before = seen(&ops, "k").await;
    let token = "SELECT lease_token FROM atomic_phases_keys";
    let first = db.number(token).await;
    db.let_time_pass().await;
    assert_eq!(reconciled(&engine).await.unknown, 1);
    assert!(db.number(token).await > first);
    assert_eq!(seen(&ops, "k").await.version, before.version);
    let said = async || {
        let output = Charge { id: "effect-1".into(), padding: String::new() };
        let word = Resolution::executed("notified", &output).unwrap();
        ops.resolve(before.request_id, &before.version, word, "the pilot").await
    };
    // While the reconcile function runs, the act must wait, but does not come too late.
    set(&engine, "k", "status = 'in_progress', locked_until = expires_at").await;
    let told = said().await;
    assert!(matches!(told, Err(OpsError::Resolve(ResolveError::InProgress { .. }))), "{told:?}");
    assert_eq!(seen(&ops, "k").await.version, before.version);
    set(&engine, "k", "status = 'unknown', locked_until = NULL").await;
    assert_eq!(said().await.unwrap(), Resolved::Applied);
    assert_ne!(seen(&ops, "k").await.version, before.version);
}

async fn the_same_act_twice_is_one_act<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    dead_letter(&engine, "k").await;
    let row = seen(&ops, "k").await;
    assert_eq!(ops.retry(row.request_id, &row.version, "first").await.unwrap(), Resolved::Applied);
    // A double click sends the same version.
    let again = ops.retry(row.request_id, &row.version, "second").await.unwrap();
    assert_eq!(again, Resolved::Already);
    let acts = audit(&ops).await;
    let told: Vec<_> = acts.iter().map(|act| (act.reason.as_str(), act.outcome.as_str())).collect();
    assert_eq!(told, [("second", "already"), ("first", "applied")]);

    // Two operators at a time: one of them applies it.
    dead_letter(&engine, "race").await;
    let row = seen(&ops, "race").await;
    let one = ops.retry(row.request_id, &row.version, "one");
    let other = ops.retry(row.request_id, &row.version, "other");
    let (one, other) = tokio::join!(one, other);
    let applied =
        [&one, &other].iter().filter(|done| matches!(done, Ok(Resolved::Applied))).count();
    assert_eq!(applied, 1, "{one:?} {other:?}");
    let acts = ops.audit(Some(row.request_id), None, 10).await.unwrap().rows;
    assert_eq!(acts.iter().filter(|act| act.outcome == "applied").count(), 1, "{acts:?}");
}

/// A responder has no [`Permissions::REVEAL`]. One who gave the value knows it.
async fn g19_who_may_not_reveal_is_not_told_that_a_guess_is_right<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let responder =
        |name: &str| engine.ops(Actor::new(name, Permissions::responder(), Scopes::All).unwrap());
    let (grace, bob) = (responder("grace"), responder("bob"));
    let executed = |number: u32| {
        let charge = Charge { id: format!("effect-{number}"), padding: String::new() };
        Resolution::executed("notified", &charge).unwrap()
    };
    let finish = |number: u32| Resolution::finish(Reply::text(200, format!("by hand {number}")));
    let words: [(&str, &dyn Fn(u32) -> Resolution); 2] =
        [("executed", &executed), ("finish", &finish)];
    for (name, word) in words {
        unknown(&engine, name).await;
        let before = seen(&ops, name).await;
        let say = async |by: &Ops<S>, version: &RowVersion, number: u32| {
            by.resolve(before.request_id, version, word(number), "the pilot's log").await
        };
        assert_eq!(say(&grace, &before.version, 4711).await.unwrap(), Resolved::Applied);
        let now = seen(&ops, name).await;
        for version in [&before.version, &now.version] {
            let mut told = Vec::new();
            for guess in 4705..4715 {
                told.push(format!("{:?}", say(&bob, version, guess).await));
            }
            told.dedup();
            assert_eq!(told.len(), 1, "the answer to the right guess differs: {told:?}");
            assert!(told[0].starts_with("Err("), "{told:?}");
            for knows in [&grace, &ops] {
                assert_eq!(say(knows, version, 4711).await.unwrap(), Resolved::Already);
                assert!(say(knows, version, 4712).await.is_err());
            }
        }
    }
}

async fn an_erasure_is_audited_and_outlived_by_its_audit<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    finish(&engine, "k").await;
    let row = seen(&ops, "k").await;
    let waits = ops.erase(row.request_id, &row.version, "asked by its owner").await;
    assert!(matches!(waits, Err(OpsError::Erase(EraseError::JobsWaiting))), "{waits:?}");
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    let done = ops.erase(row.request_id, &row.version, "asked by its owner").await.unwrap();
    assert_eq!(done, Resolved::Applied);
    let _ = ops.erase(row.request_id, &row.version, "asked by its owner").await.unwrap();
    assert!(matches!(engine.call(&scope(), &key("k"), book(20)).await, Ok(Outcome::Erased)));
    db.sql("DELETE FROM atomic_phases_keys").await;
    let acts = ops.audit(Some(row.request_id), None, 10).await.unwrap().rows;
    let told: Vec<_> = acts.iter().map(|act| act.outcome.as_str()).collect();
    assert_eq!(told[1..], ["applied", "refused"]);
    let gone = ops.show(row.request_id).await;
    assert!(matches!(gone, Err(OpsError::NoSuchRequest)), "{gone:?}");
}

async fn g18_a_dead_job_is_retried_or_discarded_as_it_was_seen<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    finish(&engine, "k").await;
    let bury = "UPDATE atomic_phases_staged_jobs SET run_after = NULL, attempts = 20, reason = 'no address'";
    db.sql(bury).await;
    let page = ops.dead_jobs(None, 1).await.unwrap();
    let next = page.next.unwrap().to_string().parse().unwrap();
    let rest = ops.dead_jobs(Some(next), 1).await.unwrap();
    let jobs = [&page.rows[0], &rest.rows[0]];
    assert!(rest.rows.len() == 1 && rest.next.is_none());
    assert!(
        jobs.iter().all(|job| job.attempts == 20 && job.reason.as_deref() == Some("no address"))
    );

    let stale = ops.retry_job(jobs[0].id, 19, "address found").await;
    assert!(matches!(stale, Err(OpsError::MovedOn)), "{stale:?}");
    ops.retry_job(jobs[0].id, 20, "address found").await.unwrap();
    let again = ops.retry_job(jobs[0].id, 20, "address found").await;
    assert!(matches!(again, Err(OpsError::NoSuchJob)), "{again:?}");
    ops.discard_job(jobs[1].id, 20, "address is empty").await.unwrap();
    assert!(ops.dead_jobs(None, 10).await.unwrap().rows.is_empty());

    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config());
    while enqueuer.run_once().await.unwrap().delivered > 0 {}
    assert_eq!(inbox.take().len(), 1, "one retried, one discarded");
    let acts = audit(&ops).await;
    let told: Vec<_> = acts.iter().map(|act| (act.act.as_str(), act.outcome.as_str())).collect();
    let expected = [
        ("job.discard", "applied"),
        ("job.retry", "refused"),
        ("job.retry", "applied"),
        ("job.retry", "refused"),
    ];
    assert_eq!(told, expected);
    assert!(acts.iter().all(|act| act.job_id.is_some()));
    assert_eq!(ops.audit(None, None, 4).await.unwrap().next, None, "there is no fifth record");
    assert!(ops.audit(None, None, 3).await.unwrap().next.is_some());
}

async fn the_audit_is_searched_by_request_actor_and_act<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ada = admin(&engine);
    let named =
        |name: &str, scopes| engine.ops(Actor::new(name, Permissions::admin(), scopes).unwrap());
    let bob = named("bob@example.com", Scopes::All);
    dead_letter(&engine, "k").await;
    finish(&engine, "done").await;
    let (dead, done) = (seen(&ada, "k").await, seen(&ada, "done").await);
    assert_eq!(ada.retry(dead.request_id, &dead.version, "r").await.unwrap(), Resolved::Applied);
    ada.reveal(done.request_id, What::Key, "r").await.unwrap();
    bob.reveal(done.request_id, What::Outputs, "r").await.unwrap();
    bob.pause("book", "charged", None, "r").await.unwrap();
    bob.retry(done.request_id, &done.version, "r").await.unwrap_err();
    let found = async |ops: &Ops<S>, filter: AuditFilter| {
        let rows = ops.audit(filter, None, 10).await.unwrap().rows;
        rows.into_iter().map(|row| (row.actor, row.act)).collect::<Vec<_>>()
    };
    let of = |acts: &[(&str, &str)]| {
        acts.iter().map(|(actor, act)| ((*actor).to_owned(), (*act).to_owned())).collect::<Vec<_>>()
    };
    let bobs = "bob@example.com";
    let (pause, outputs) = ((bobs, "pause"), (bobs, "reveal.outputs"));
    let all = [(bobs, "retry"), pause, outputs, ("ada", "reveal.key"), ("ada", "retry")];
    let any = AuditFilter::new;
    let cases = [
        (any(), all.to_vec()),
        (any().actor(bobs), all[..3].to_vec()),
        (any().actor("ada"), all[3..].to_vec()),
        (any().act("reveal"), all[2..4].to_vec()),
        (any().act("reveal.outputs"), vec![outputs]),
        (any().act("retry"), vec![all[0], all[4]]),
        (any().act("reveal").actor("ada"), vec![all[3]]),
        (any().act("reveal").request(done.request_id).actor(bobs), vec![outputs]),
        (any().act("reveal").request(dead.request_id), vec![]),
        (any().act("erase"), vec![]),
        // As it is written, letter by letter, in every database.
        (any().actor("Ada"), vec![]),
        (any().actor("ada "), vec![]),
        (any().actor("bob%"), vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(found(&ada, filter.clone()).await, of(&expected), "{filter:?}");
    }
    // An operator who sees some scopes sees what was done there, and nothing of a pause.
    let here = named("eve", Scopes::Only(vec![scope()]));
    assert_eq!(found(&here, any().actor(bobs)).await, of(&[all[0], outputs]));
    let elsewhere = named("eve", Scopes::Prefix("tenant-2".into()));
    assert_eq!(found(&elsewhere, any().act("reveal")).await, of(&[]));

    let page = ada.audit(any().act("reveal"), None, 1).await.unwrap();
    let next = ada.audit(any().act("reveal"), page.next, 1).await.unwrap();
    assert_eq!((next.rows[0].act.as_str(), next.next), ("reveal.key", None));
    for bad in [any().act("reveals"), any().act(""), any().actor(""), any().actor("a\0")] {
        let told = ada.audit(bad.clone(), None, 1).await;
        assert!(matches!(told, Err(OpsError::BadFilter(_))), "{bad:?}: {told:?}");
    }
}

/// If the audit row cannot be written, the act is not done.
async fn g4_the_audit_is_there_exactly_if_the_act_was_committed<S: TestDb + OperatorStore>(db: S) {
    if is_memory::<S>() {
        return;
    }
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    dead_letter(&engine, "k").await;
    unknown(&engine, "asked").await;
    finish(&engine, "done").await;
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    let asked = seen(&ops, "asked").await;
    let (row, done) = (seen(&ops, "k").await, seen(&ops, "done").await);
    let job = ops.dead_jobs(None, 1).await.unwrap().rows.remove(0);
    ops.pause("book", "charged", None, "r").await.unwrap();
    let pause = pause_of(&ops, ("book", "charged")).await.version;
    let one = Selection::Requests(vec![done.request_id]);
    let under_way = ops.start_bulk(BulkAct::Retry, &one, 1, "r").await.unwrap();
    let before = (ops.pauses().await.unwrap(), ops.bulks(None, 10).await.unwrap().rows);
    let audited = audit(&ops).await;
    db.sql("ALTER TABLE atomic_phases_audit RENAME TO put_away").await;
    // Nothing is shown before the audit says so, and nothing is begun or ended for everybody.
    let undone = [
        ops.reveal(done.request_id, What::Key, "r").await.map(drop),
        ops.reveal(done.request_id, What::Outputs, "r").await.map(drop),
        ops.pause("notify", "notified", None, "r").await,
        ops.replace_pause("book", "charged", &pause, Some(Duration::from_secs(1)), "r")
            .await
            .map(drop),
        ops.unpause("book", "charged", &pause, "r").await.map(drop),
        ops.start_bulk(BulkAct::Erase, &one, 1, "r").await.map(drop),
        ops.stop_bulk(under_way, "r").await.map(drop),
    ];
    for undone in &undone {
        assert!(matches!(undone, Err(OpsError::Unavailable(_))), "{undone:?}");
    }
    let refused = ops.retry(row.request_id, &row.version, "r").await;
    assert!(matches!(refused, Err(OpsError::Unavailable(_))), "{refused:?}");
    for word in [
        Resolution::not_executed("notified", 1),
        Resolution::finish(Reply::text(409, "settled by hand")),
    ] {
        let refused = ops.resolve(asked.request_id, &asked.version, word, "r").await;
        assert!(matches!(refused, Err(OpsError::Unavailable(_))), "{refused:?}");
    }
    assert!(matches!(
        ops.erase(done.request_id, &done.version, "r").await,
        Err(OpsError::Unavailable(_))
    ));
    assert!(matches!(ops.retry_job(job.id, 0, "r").await, Err(OpsError::Unavailable(_))));
    assert!(matches!(ops.discard_job(job.id, 0, "r").await, Err(OpsError::Unavailable(_))));
    db.sql("ALTER TABLE put_away RENAME TO atomic_phases_audit").await;
    // No lease is held: the rows are as they were.
    for (name, before) in [("k", row), ("asked", asked), ("done", done)] {
        assert_eq!(seen(&ops, name).await, before);
    }
    assert_eq!(ops.dead_jobs(None, 10).await.unwrap().rows.len(), 2);
    assert_eq!((ops.pauses().await.unwrap(), ops.bulks(None, 10).await.unwrap().rows), before);
    assert_eq!(audit(&ops).await, audited);
}

async fn the_audit_is_append_only<S: TestDb + OperatorStore>(db: S) {
    if is_memory::<S>() {
        return;
    }
    if is_mysql::<S>() {
        // Not part of its migrations, because an application seldom has the privilege to create a trigger.
        db.sql(include_str!("../../migrations/mysql_audit/up.sql")).await;
    }
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    dead_letter(&engine, "k").await;
    let row = seen(&ops, "k").await;
    let _ = ops.retry(row.request_id, &row.version, "reason").await.unwrap();
    for sql in ["UPDATE atomic_phases_audit SET actor = 'eve'", "DELETE FROM atomic_phases_audit"] {
        let (db, sql) = (db.clone(), sql.to_owned());
        let told = tokio::spawn(async move { db.sql(&sql).await }).await;
        assert!(told.is_err(), "it was refused");
    }
    assert_eq!(audit(&ops).await[0].actor, "ada");
}
