//! Quotas (G16): what counts as a new key, and what does not.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::config::{OnDuplicate, Quota};
use atomic_phases::engine::CallError;
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseError, PhaseResult, Reply,
    RequestContext, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

use crate::support::gate::{Gate, gate};
use crate::support::*;

on_every_store! {
    g16_requests_without_a_key_hide_no_key_from_a_quota,
    g16_a_quota_is_exact_in_a_process_and_almost_between_two,
    g16_an_expired_key_counts_against_no_quota,
    g16_a_duplicate_of_the_last_key_of_a_quota_is_no_new_key,
    g16_a_duplicate_takes_nothing_of_the_rate,
    g16_a_duplicate_takes_nothing_of_the_rate_where_keys_are_limited_too,
    g16_a_key_that_is_refused_takes_nothing_of_the_rate,
    g16_a_first_phase_that_fails_takes_nothing_of_the_rate,
    g16_a_duplicate_of_a_batch_takes_nothing_of_the_rate,
    g16_a_reserved_key_is_refused_from_all_but_the_http_boundary,
}

/// A first phase and a call whose durations the request sets, in milliseconds.
#[derive(Clone, Serialize, Deserialize)]
struct Slow {
    first: u64,
    call: u64,
}

/// The keys of the requests whose first phase has begun, in all tests of this process.
static BEGUN: Mutex<Vec<IdempotencyKey>> = Mutex::new(Vec::new());

/// Numbers the tests of a duplicate, so that each has a key of its own in the list.
static DUPLICATES: AtomicU32 = AtomicU32::new(0);

#[atomic_phases(name = "slow", version = 1)]
impl<Db: TestDb> Slow {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u8> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "noted").await?;
        BEGUN.lock().unwrap().push(ctx.key().clone());
        tokio::time::sleep(Duration::from_millis(self.first)).await;
        Ok(1)
    }

    #[phase(foreign(idempotent))]
    async fn called(&self, call: ForeignCall) -> PhaseResult<u16> {
        call.make(async |_| {
            tokio::time::sleep(Duration::from_millis(self.call)).await;
            Ok::<_, PhaseError>(1)
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _n: &u16) -> PhaseResult<Reply> {
        let _ = tx;
        Ok(Reply::text(200, "done"))
    }
}

/// A first phase that reserves nothing: its commit creates the row, or finds one. It ends when the test lets it.
#[derive(Clone, Serialize, Deserialize)]
struct HeldBatch;

#[atomic_phases(name = "held_batch", version = 1, app = Gate)]
impl<Db: TestDb> HeldBatch {
    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Db>,
        ctx: &RequestContext,
        gate: &Gate,
    ) -> PhaseResult<Reply> {
        Db::add_step(batch, &ctx.uuid(0).to_string(), "answered");
        gate.pass().await;
        Ok(Reply::text(200, "done"))
    }
}

fn limited<S: TestDb>(db: &S, quota: Quota) -> Engine<S> {
    let builder = Engine::builder(db.clone()).register::<Slow>();
    builder.lease(Duration::from_secs(60)).quota(quota).build().unwrap()
}

/// The same request again while its first phase runs, which only this process knows: a new key is refused, and this
/// is not a new key.
async fn a_duplicate<S: TestDb>(db: S, quota: Quota) {
    let engine = limited(&db, quota);
    let slow = Slow { first: 1500, call: 0 };
    let k = key(&format!("k-{}", DUPLICATES.fetch_add(1, Ordering::Relaxed)));
    let first = tokio::spawn({
        let (engine, k, slow) = (engine.clone(), k.clone(), slow.clone());
        async move { engine.call(&scope(), &k, slow).await }
    });
    let refused = async || {
        let other = engine.call(&scope(), &key("other"), Slow { first: 0, call: 0 }).await;
        matches!(
            other,
            Err(CallError::RateExceeded { .. }
                | CallError::TooManyKeys { .. }
                | CallError::CreatingOthers { .. })
        )
    };
    until(async || BEGUN.lock().unwrap().contains(&k)).await;
    let second = engine.call(&scope(), &k, slow).await;
    finished(first.await.unwrap());
    assert!(
        matches!(second, Ok(Outcome::InProgress { .. } | Outcome::Finished(_))),
        "the answer to a duplicate of a running request: {second:?}"
    );
    assert!(refused().await, "there was room for one");
}

async fn g16_a_duplicate_of_the_last_key_of_a_quota_is_no_new_key<S: TestDb>(db: S) {
    a_duplicate(db, Quota::default().keys(1)).await;
}

async fn g16_a_duplicate_takes_nothing_of_the_rate<S: TestDb>(db: S) {
    a_duplicate(db, Quota::default().rate(1, Duration::from_secs(3600))).await;
}

/// The same of a quota that has both: the rate is asked before the keys are counted.
async fn g16_a_duplicate_takes_nothing_of_the_rate_where_keys_are_limited_too<S: TestDb>(db: S) {
    let engine = limited(&db, Quota::default().keys(1).rate(2, Duration::from_secs(3600)));
    let slow = Slow { first: 1500, call: 0 };
    let k = key(&format!("k-{}", DUPLICATES.fetch_add(1, Ordering::Relaxed)));
    let first = tokio::spawn({
        let (engine, k, slow) = (engine.clone(), k.clone(), slow.clone());
        async move { engine.call(&scope(), &k, slow).await }
    });
    until(async || BEGUN.lock().unwrap().contains(&k)).await;
    let second = engine.call(&scope(), &k, slow).await;
    finished(first.await.unwrap());
    assert!(
        matches!(second, Ok(Outcome::InProgress { .. } | Outcome::Finished(_))),
        "the answer to a duplicate of a running request: {second:?}"
    );
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    let other = engine.call(&scope(), &key("other"), Slow { first: 0, call: 0 }).await;
    assert!(matches!(other, Ok(Outcome::Finished(_))), "one of two was created: {other:?}");
}

/// A client that asks again while it has all its keys does not wait for the rate as well once one of them has expired.
async fn g16_a_key_that_is_refused_takes_nothing_of_the_rate<S: TestDb>(db: S) {
    let engine = limited(&db, Quota::default().keys(1).rate(2, Duration::from_secs(3600)));
    let call =
        async |name: &str| engine.call(&scope(), &key(name), Slow { first: 0, call: 0 }).await;
    finished(call("one").await);
    for _ in 0..3 {
        let refused = call("other").await;
        assert!(matches!(refused, Err(CallError::TooManyKeys { limit: 1 })), "{refused:?}");
    }
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    let other = call("other").await;
    assert!(matches!(other, Ok(Outcome::Finished(_))), "one of two was created: {other:?}");
}

/// A first phase that fails leaves no row: no key was created, and the answer asks the client to retry in a second.
async fn g16_a_first_phase_that_fails_takes_nothing_of_the_rate<S: TestDb>(db: S) {
    let quota = Quota::default().rate(1, Duration::from_secs(3600));
    let engine = engine_with(&db, &App::default(), |builder| builder.quota(quota));
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryFirst)).await);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
    let again = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(again, Ok(Outcome::Finished(_))), "none was created: {again:?}");
    let refused = engine.call(&scope(), &key("other"), book(20)).await;
    assert!(matches!(refused, Err(CallError::RateExceeded { .. })), "{refused:?}");
}

/// Of two that run their first phase at a time, one finds at its commit that it has created nothing.
async fn g16_a_duplicate_of_a_batch_takes_nothing_of_the_rate<S: TestDb>(db: S) {
    let quota = Quota::default().rate(2, Duration::from_secs(3600));
    let (gate, mut begun) = gate();
    let builder = Engine::builder(db.clone()).app(gate).register::<HeldBatch>();
    let engine = builder.quota(quota).build().unwrap();
    let call = |name: &str| engine.call(&scope(), &key(name), HeldBatch);
    let first = tokio::spawn(call("k").into_future());
    let first_may_end = begun.recv().await.unwrap();
    let second = tokio::spawn(call("k").into_future());
    let second_may_end = begun.recv().await.unwrap();
    // One after the other: for a commit that waits too long for the other one, the answer is *in progress*.
    drop(first_may_end);
    assert!(!finished(first.await.unwrap()).replayed);
    drop(second_may_end);
    assert!(finished(second.await.unwrap()).replayed);
    // Nothing is held from here on.
    drop(begun);
    finished(call("other").await);
    let refused = call("third").await;
    assert!(matches!(refused, Err(CallError::RateExceeded { .. })), "{refused:?}");
}

/// The HTTP boundary refuses such keys of its clients. A service over gRPC, or a consumer of a queue, calls the engine with
/// what its client sent.
async fn g16_a_reserved_key_is_refused_from_all_but_the_http_boundary<S: TestDb>(db: S) {
    let engine = limited(&db, Quota::default().keys(1));
    let reserved = key("~keyless:1");
    for outcome in [
        engine.call(&scope(), &reserved, Slow { first: 0, call: 0 }).await,
        engine.call(&scope(), &reserved, Slow { first: 0, call: 0 }).accept().await,
    ] {
        assert!(matches!(outcome, Err(CallError::ReservedKey)), "{outcome:?}");
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
}

/// Waiting duplicates create nothing, so they use no slot for new keys.
#[cfg(feature = "simulation")]
#[test]
fn g16_duplicates_that_wait_take_no_room_of_new_keys() {
    use atomic_phases::simulation::{Database, Memory, simulate};
    simulate(1, || async {
        let db = Memory::connect(&Database::default());
        let engine = limited(&db, Quota::default().keys(20));
        let slow = Slow { first: 2000, call: 25_000 };
        let mut calls = Vec::new();
        for _ in 0..3 {
            let call = engine.call(&scope(), &key("k"), slow.clone());
            let wait = OnDuplicate::Wait(Duration::from_secs(20));
            calls.push(tokio::spawn(call.on_duplicate(wait).into_future()));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let other = engine.call(&scope(), &key("other"), Slow { first: 1, call: 1 }).await;
        for call in calls {
            let _ = call.await;
        }
        assert!(matches!(other, Ok(Outcome::Finished(_))), "one key of twenty: {other:?}");
    });
}

/// If the first phases of others take long, a call that would wait for them too long gets an error about that, and
/// not that the quota is exhausted.
#[cfg(feature = "simulation")]
#[test]
fn g16_keys_that_are_being_created_are_not_told_as_keys_that_are_there() {
    use atomic_phases::simulation::{Database, Memory, simulate};
    simulate(1, || async {
        let db = Memory::connect(&Database::default());
        let engine = limited(&db, Quota::default().keys(100));
        for number in 0..6 {
            let (engine, slow) = (engine.clone(), Slow { first: 8000, call: 1 });
            let name = key(&number.to_string());
            tokio::spawn(async move { engine.call(&scope(), &name, slow).await });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = engine.call(&scope(), &key("other"), Slow { first: 1, call: 1 }).await;
        let told = matches!(other, Err(CallError::CreatingOthers { limit: 100, .. }));
        assert!(told, "six keys of a hundred: {other:?}");
    });
}

async fn g16_an_expired_key_counts_against_no_quota<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.quota(Quota::default().keys(1)));
    finished(engine.call(&scope(), &key("old"), book(20)).await);
    for name in ["new", "old"] {
        let refused = engine.call(&scope(), &key("other"), book(20)).await;
        assert!(matches!(refused, Err(CallError::TooManyKeys { limit: 1 })), "{refused:?}");
        db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
        assert!(!finished(engine.call(&scope(), &key(name), book(20)).await).replayed);
    }
}

async fn g16_a_quota_is_exact_in_a_process_and_almost_between_two<S: TestDb>(db: S) {
    let app = App::default();
    let limited = |db: &S| engine_with(db, &app, |builder| builder.quota(Quota::default().keys(5)));
    let (one, other) = (limited(&db), limited(&db.another().await));
    let flood = async |engines: &[&TestEngine<S>], prefix: &str| {
        let calls: Vec<_> = (0..40)
            .map(|n| {
                let engine = engines[n % engines.len()].clone();
                let name = key(&format!("{prefix}-{n}"));
                tokio::spawn(async move { engine.call(&scope(), &name, book(20)).await })
            })
            .collect();
        let mut created = 0;
        for call in calls {
            match call.await.unwrap() {
                Err(CallError::TooManyKeys { limit: 5 }) => {}
                outcome => {
                    finished(outcome);
                    created += 1;
                }
            }
        }
        created
    };
    let rows = "SELECT count(*) FROM atomic_phases_keys";
    assert_eq!(flood(&[&one], "one").await, 5);
    assert_eq!(db.number(rows).await, 5);
    assert_eq!(flood(&[&one, &other], "none").await, 0);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    // Each node may be creating two keys while the other one counts.
    let created = flood(&[&one, &other], "both").await;
    assert!((5..=7).contains(&created), "{created}");
    assert_eq!(db.number(rows).await, 5 + created);
}

/// More of them than a count reads past, and a key that sorts after theirs.
async fn g16_requests_without_a_key_hide_no_key_from_a_quota<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.quota(Quota::default().keys(2)));
    finished(engine.call(&scope(), &key("~~last"), book(20)).await);
    db.sql(&format!(
        "CREATE TABLE keyless AS SELECT k.*, n FROM atomic_phases_keys AS k, {}; \
         UPDATE keyless SET idempotency_key = '~keyless:' || n; \
         ALTER TABLE keyless DROP COLUMN n; \
         INSERT INTO atomic_phases_keys SELECT * FROM keyless; \
         DROP TABLE keyless",
        numbers::<S>(10_100)
    ))
    .await;
    finished(engine.call(&scope(), &key("first"), book(20)).await);
    let refused = engine.call(&scope(), &key("third"), book(20)).await;
    assert!(matches!(refused, Err(CallError::TooManyKeys { limit: 2 })), "{refused:?}");
}
