//! Permissions: every act and every read, under each permission, within and outside of the actor's scopes.

use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::ops::{
    Actor, BulkAct, Filter, OperatorStore, Ops, OpsError, Permissions, Scopes, Selection, What,
};
use atomic_phases::{Reply, Scope};
use uuid::Uuid;

use super::cast::*;
use crate::support::*;

on_every_store! {
    each_door_needs_its_permission_and_each_refusal_is_audited,
    g16_what_is_outside_of_the_scopes_is_not_there,
    an_act_needs_a_reason,
}

/// Each entry of the layer, and the permission that it needs.
const DOORS: [(&str, Permissions); 28] = [
    ("list", Permissions::READ),
    ("counts", Permissions::READ),
    ("find", Permissions::READ),
    ("show", Permissions::READ),
    ("why", Permissions::READ),
    ("dead_jobs", Permissions::READ),
    ("late_jobs", Permissions::READ),
    ("dead_job", Permissions::READ),
    ("foreign_phases", Permissions::READ),
    ("audit", Permissions::AUDIT),
    ("pauses", Permissions::READ),
    ("nodes", Permissions::READ),
    ("definitions", Permissions::READ),
    ("plan_bulk", Permissions::READ),
    ("bulks", Permissions::READ),
    ("bulk", Permissions::READ),
    ("resolve", Permissions::ACT),
    ("retry", Permissions::ACT),
    ("erase", Permissions::ERASE),
    ("retry_job", Permissions::ACT),
    ("discard_job", Permissions::ACT),
    ("pause", Permissions::PAUSE),
    ("replace_pause", Permissions::PAUSE),
    ("unpause", Permissions::PAUSE),
    ("start_bulk", A_BULK_RETRY),
    ("stop_bulk", Permissions::BULK),
    ("reveal", Permissions::REVEAL),
    ("reveal_key", Permissions::REVEAL),
];

const READS: usize = 16;

const A_BULK_RETRY: Permissions = BulkAct::Retry.needs();

async fn open<S: TestDb + OperatorStore>(
    ops: &Ops<S>,
    door: &str,
    (request, job): (Uuid, Uuid),
) -> Result<(), OpsError> {
    let (version, one) = ("seen".into(), Selection::Requests(vec![request]));
    match door {
        "list" => ops.list(Filter::new()).await.map(drop),
        "counts" => ops.counts().await.map(drop),
        "find" => ops.find(&scope(), &key("k")).await.map(drop),
        "show" => ops.show(request).await.map(drop),
        "why" => ops.why(request).await.map(drop),
        "dead_jobs" => ops.dead_jobs(None, 10).await.map(drop),
        "late_jobs" => ops.late_jobs(10).await.map(drop),
        "dead_job" => ops.dead_job(job).await.map(drop),
        "foreign_phases" => ops.foreign_phases().map(drop),
        "audit" => ops.audit(None, None, 10).await.map(drop),
        "pauses" => ops.pauses().await.map(drop),
        "nodes" => ops.nodes().await.map(drop),
        "definitions" => ops.definitions().await.map(drop),
        "pause" => ops.pause("book", "charged", None, "reason").await,
        "replace_pause" => {
            ops.replace_pause("book", "charged", &version, None, "reason").await.map(drop)
        }
        "unpause" => ops.unpause("book", "charged", &version, "reason").await.map(drop),
        "plan_bulk" => ops.plan_bulk(BulkAct::Retry, &one).await.map(drop),
        // A number that does not match.
        "start_bulk" => ops.start_bulk(BulkAct::Retry, &one, 99, "reason").await.map(drop),
        "bulks" => ops.bulks(None, 10).await.map(drop),
        "bulk" => ops.bulk(request).await.map(drop),
        "stop_bulk" => ops.stop_bulk(request, "reason").await.map(drop),
        "resolve" => {
            let word = Resolution::finish(Reply::text(200, ""));
            ops.resolve(request, &version, word, "reason").await.map(drop)
        }
        "retry" => ops.retry(request, &version, "reason").await.map(drop),
        "erase" => ops.erase(request, &version, "reason").await.map(drop),
        "retry_job" => ops.retry_job(job, 99, "reason").await,
        "discard_job" => ops.discard_job(job, 99, "reason").await,
        "reveal" => ops.reveal(request, What::Parameters, "reason").await.map(drop),
        "reveal_key" => ops.reveal(request, What::Key, "reason").await.map(drop),
        other => panic!("{other}"),
    }
}

/// A dead letter, and a dead job.
async fn dead_request_and_job<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> (Uuid, Uuid) {
    dead_letter(engine, "k").await;
    finish(engine, "with-jobs").await;
    engine.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    let job = admin(engine).dead_jobs(None, 1).await.unwrap().rows[0].id;
    (id_of(engine, "k").await, job)
}

async fn each_door_needs_its_permission_and_each_refusal_is_audited<S: TestDb + OperatorStore>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    let at = dead_request_and_job(&engine).await;
    let (all, rows) = (Permissions::admin(), "SELECT count(*) FROM atomic_phases_audit");
    let everything = [
        Permissions::READ,
        Permissions::REVEAL,
        Permissions::ACT,
        Permissions::ERASE,
        Permissions::AUDIT,
        Permissions::PAUSE,
        Permissions::BULK,
    ];
    let mut checked = 0;
    for (index, (door, needs)) in DOORS.into_iter().enumerate() {
        let mut sets =
            vec![Permissions::NONE, all, Permissions::viewer(), Permissions::responder()];
        sets.extend(everything);
        // Everything but this one.
        let others = everything.into_iter().filter(|one| *one != needs);
        sets.push(others.fold(Permissions::NONE, |sum, one| sum | one));
        for held in sets {
            let ops = engine.ops(actor(held));
            let before = db.number(rows).await;
            let opened = open(&ops, door, at).await;
            let is_refused =
                matches!(&opened, Err(OpsError::NotAllowed { needs: said }) if *said == needs);
            assert_eq!(is_refused, !held.contain(needs), "{door} by {held}: {opened:?}");
            // With the permission, the act is checked against the row, which does not have the stale version.
            let went_through =
                matches!(opened, Ok(()) | Err(OpsError::MovedOn | OpsError::NoSuchBulk));
            assert_eq!(went_through, !is_refused, "{door} by {held}: {opened:?}");
            let written = db.number(rows).await - before;
            assert_eq!(written, i64::from(index >= READS), "{door} by {held}");
            checked += 1;
        }
    }
    assert_eq!(checked, 28 * 12);
    let size = "28 operations x 12 sets of permissions = 336";
    assert!(
        include_str!("../../docs/operating.md").contains(size),
        "docs/operating.md has another size"
    );
    let refused = db
        .number(
            "SELECT count(*) FROM atomic_phases_audit WHERE refused_because LIKE '%permission%'",
        )
        .await;
    assert!(refused > 0);
    assert_eq!(app.provider.effects(), 2, "no call was made");
}

async fn g16_what_is_outside_of_the_scopes_is_not_there<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let at = dead_request_and_job(&engine).await;
    let outside = [
        Scopes::Only(vec![]),
        Scopes::Only(vec![Scope::new("tenant-2").unwrap()]),
        Scopes::Prefix("tenant-11".into()),
    ];
    let before = dump(&db).await;
    for scopes in outside {
        let ops = engine.ops(Actor::new("eve", Permissions::admin(), scopes.clone()).unwrap());
        for (door, _) in DOORS {
            let opened = open(&ops, door, at).await;
            let is_empty = [
                "list",
                "counts",
                "dead_jobs",
                "late_jobs",
                "foreign_phases",
                "audit",
                "pauses",
                "nodes",
                "definitions",
                "plan_bulk",
                "bulks",
            ]
            .contains(&door);
            match opened {
                Ok(()) => assert!(is_empty, "{door}"),
                Err(OpsError::NoSuchRequest | OpsError::NoSuchJob | OpsError::NoSuchBulk) => {}
                Err(OpsError::MovedOn) => assert_eq!(door, "start_bulk"),
                Err(OpsError::NotEveryScope) => assert!(door.ends_with("pause"), "{door}"),
                Err(other) => panic!("{door} of {scopes:?}: {other}"),
            }
        }
        assert!(ops.list(Filter::new()).await.unwrap().rows.is_empty());
        assert!(ops.dead_jobs(None, 10).await.unwrap().rows.is_empty());
        // The audit row of a refusal has no scope, so that only operators of all scopes see it.
        assert!(ops.audit(None, None, 10).await.unwrap().rows.is_empty());
    }
    assert_eq!(dump(&db).await, before, "nothing was written to a row");
    assert_eq!(admin(&engine).audit(None, None, 100).await.unwrap().rows.len(), 3 * 12);
    let inside = Scopes::Prefix("tenant-1".into());
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), inside).unwrap());
    assert_eq!(ops.list(Filter::new()).await.unwrap().rows.len(), 2);
    assert_eq!(ops.dead_jobs(None, 10).await.unwrap().rows.len(), 2);
}

async fn an_act_needs_a_reason<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let (request, _) = dead_request_and_job(&engine).await;
    let ops = admin(&engine);
    let version = ops.show(request).await.unwrap().summary.version;
    for reason in ["", "   ", "two\nlines", &"x".repeat(501)] {
        let refused = ops.retry(request, &version, reason).await;
        assert!(matches!(refused, Err(OpsError::BadReason)), "{reason:?}: {refused:?}");
        let refused = ops.reveal(request, What::Key, reason).await;
        assert!(matches!(refused, Err(OpsError::BadReason)), "{reason:?}: {refused:?}");
    }
    assert_eq!(ops.show(request).await.unwrap().summary.version, version);
    assert_eq!(ops.retry(request, &version, &"ä".repeat(500)).await.unwrap(), Resolved::Applied);
}
