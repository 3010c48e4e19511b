//! A request in each state, and operators.

use atomic_phases::Outcome;
use atomic_phases::ops::{Actor, OperatorStore, Ops, PauseView, Permissions, Scopes};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::support::work::dies_in_its_call;
use crate::support::*;

pub fn actor(permissions: Permissions) -> Actor {
    Actor::new("ada", permissions, Scopes::All).unwrap()
}

pub fn admin<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Ops<S> {
    engine.ops(actor(Permissions::admin()))
}

/// In hex.
pub fn sha256(value: &str) -> String {
    Sha256::digest(value).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The id of the request under this key.
pub async fn id_of<S: TestDb + OperatorStore>(engine: &TestEngine<S>, name: &str) -> Uuid {
    admin(engine).find(&scope(), &key(name)).await.unwrap().request_id
}

pub async fn finish<S: TestDb>(engine: &TestEngine<S>, name: &str) {
    finished(engine.call(&scope(), &key(name), book(20)).await);
}

/// Released after a failed call, under a back-off.
pub async fn back_off<S: TestDb>(engine: &TestEngine<S>, name: &str) {
    let stops = troubled(Trouble::RetryForeignAlways);
    failed(engine.call(&scope(), &key(name), stops).await);
}

/// A call whose outcome is unknown, of a phase with a reconcile function.
pub async fn unknown<S: TestDb>(engine: &TestEngine<S>, name: &str) {
    let call = engine.call(&scope(), &key(name), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(call, Ok(Outcome::Unknown { .. })), "{call:?}");
}

/// The same, of a phase without one.
pub async fn unknown_unasked<S: TestDb>(engine: &TestEngine<S>, name: &str) {
    let call = engine.call(&scope(), &key(name), troubled(Trouble::UnknownForeign)).await;
    assert!(matches!(call, Ok(Outcome::Unknown { .. })), "{call:?}");
}

/// Gave up after failed calls that had no effect.
pub async fn dead_letter<S: TestDb>(engine: &TestEngine<S>, name: &str) {
    back_off(engine, name).await;
    engine
        .store()
        .sql(&format!(
            "UPDATE atomic_phases_keys SET status = 'dead_letter', run_after = NULL, \
             waiting_since = created_at WHERE idempotency_key = '{name}'"
        ))
        .await;
}

/// Its process died in its call: the lease lasts for a minute.
pub async fn leased<S: TestDb>(engine: &TestEngine<S>, name: &str) {
    dies_in_its_call(engine, name, notify(Trouble::None)).await;
}

/// Sets columns of one row.
pub async fn set<S: TestDb>(engine: &TestEngine<S>, name: &str, columns: &str) {
    let sql = format!("UPDATE atomic_phases_keys SET {columns} WHERE idempotency_key = '{name}'");
    engine.store().sql(&sql).await;
}

/// The pause of a phase, as it is listed.
pub async fn pause_of<S: OperatorStore>(ops: &Ops<S>, (of, phase): (&str, &str)) -> PauseView {
    let pauses = ops.pauses().await.unwrap();
    let is_meant = |pause: &PauseView| (&*pause.definition, &*pause.phase) == (of, phase);
    pauses.into_iter().find(is_meant).unwrap()
}

/// Ends it.
pub async fn unpause<S: OperatorStore>(ops: &Ops<S>, at: (&str, &str)) {
    let seen = pause_of(ops, at).await;
    ops.unpause(at.0, at.1, &seen.version, "it is open").await.unwrap();
}
