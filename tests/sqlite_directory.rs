//! A process that changes its directory behind `Sqlite::connect`, as one that becomes a daemon does. Separate, because the
//! directory is the process's.

#![cfg(feature = "sqlite")]

use std::path::Path;

use atomic_phases::engine::FailureCause;
use atomic_phases::ops::{Actor, Permissions, Scopes};
use atomic_phases::phase::{DerivedKey, ForeignError};
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseResult, Reply, Scope, Sqlite, Store,
    atomic_phases,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Pay;

#[atomic_phases(name = "pay", version = 1, app = ())]
impl Pay {
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| Ok::<_, ForeignError>(())).await
    }

    #[phase]
    async fn answered(&self, _: &mut Batch<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(204))
    }
}

/// Operators and the engine's reads of pauses have connections of their own, which are opened later: to the same file.
#[tokio::test]
async fn a_pause_holds_in_a_process_that_has_changed_its_directory() {
    let home = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::env::set_current_dir(&home).unwrap();
    let store = Sqlite::connect("app.db").await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).register::<Pay>().build().unwrap();
    std::env::set_current_dir(&elsewhere).unwrap();

    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    ops.pause("pay", "paid", None, "the bank is closed").await.unwrap();
    let (scope, key) = (Scope::single_tenant(), IdempotencyKey::new("k").unwrap());
    let call = engine.call(&scope, &key, Pay).await;
    let listed = ops.pauses().await.map(|pauses| pauses.len());
    let is_made_here = Path::new("app.db").exists();
    std::env::set_current_dir("/").unwrap();
    assert!(
        matches!(call, Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. })),
        "it was paused: {call:?}"
    );
    assert!(matches!(listed, Ok(1)), "{listed:?}");
    assert!(!is_made_here, "an empty database of that name was made in the other directory");
}
