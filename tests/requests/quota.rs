//! Quotas (G16): what counts as a new key, and what does not.

use std::time::Duration;

use atomic_phases::config::{OnDuplicate, Quota};
use atomic_phases::{
    CallError, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Tx,
    atomic_phases,
};
use serde::{Deserialize, Serialize};

use crate::support::*;

on_every_store! {
    g16_a_duplicate_of_the_last_key_of_a_quota_is_no_new_key,
    g16_a_duplicate_takes_nothing_of_the_rate,
}

/// A first phase and a call that take as long as the request says, in milliseconds.
#[derive(Clone, Serialize, Deserialize)]
struct Slow {
    first: u64,
    call: u64,
}

#[atomic_phases(name = "slow", version = 1)]
impl<Db: TestDb> Slow {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u8> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "noted").await?;
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

fn limited<S: TestDb>(db: &S, quota: Quota) -> Engine<S> {
    let builder = Engine::builder(db.clone()).register::<Slow>();
    builder.lease(Duration::from_secs(60)).quota(quota).build().unwrap()
}

/// The same request again while its first phase runs, which nothing but this process knows of: a new key
/// is refused, and this is none.
async fn a_duplicate<S: TestDb>(db: S, quota: Quota) {
    let engine = limited(&db, quota);
    let slow = Slow { first: 1500, call: 0 };
    let first = tokio::spawn({
        let (engine, slow) = (engine.clone(), slow.clone());
        async move { engine.call(&scope(), &key("k"), slow).await }
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
    tokio::time::sleep(Duration::from_millis(300)).await;
    let second = engine.call(&scope(), &key("k"), slow).await;
    finished(first.await.unwrap());
    assert!(
        matches!(second, Ok(Outcome::InProgress { .. } | Outcome::Finished(_))),
        "a duplicate of a running request is told: {second:?}"
    );
    assert!(refused().await, "there was room for one");
}

async fn g16_a_duplicate_of_the_last_key_of_a_quota_is_no_new_key<S: TestDb>(db: S) {
    a_duplicate(db, Quota::default().keys(1)).await;
}

async fn g16_a_duplicate_takes_nothing_of_the_rate<S: TestDb>(db: S) {
    a_duplicate(db, Quota::default().rate(1, Duration::from_secs(3600))).await;
}

/// Duplicates that wait create nothing: they hold no place of a new key.
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

/// Where the first phases of others take long, a call that would wait for them too long is told so, and not
/// that the quota is used up.
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
