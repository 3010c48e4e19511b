//! SQLite does not notice that its file is replaced or deleted under a process. The store does: no request is answered from
//! the former file, and nothing that was written there is acknowledged.

use crate::support::*;
use atomic_phases::engine::CallError;
use atomic_phases::ops::OperatorStore as _;
use atomic_phases::store::{Sqlite, StoreError};
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use diesel_async::SimpleAsyncConnection as _;

const ADD: &str = "INSERT INTO steps VALUES ('k', 'done')";

/// Replaces the file at this path in the middle of its phase.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct InTx(String);

#[atomic_phases(name = "in_tx", version = 1)]
impl InTx {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        tx.batch_execute(ADD).await?;
        replace(&self.0);
        Ok(Reply::new(204))
    }
}

/// The same.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct InBatch(String);

#[atomic_phases(name = "in_batch", version = 1)]
impl InBatch {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>) -> PhaseResult<Reply> {
        batch.add(diesel::sql_query(ADD));
        replace(&self.0);
        Ok(Reply::new(204))
    }
}

async fn path_of(db: &Sqlite) -> String {
    db.text("SELECT file FROM pragma_database_list").await
}

fn aside(path: &str) -> String {
    format!("{path}.aside")
}

/// By a copy, as `mv` restores one.
fn replace(path: &str) {
    std::fs::rename(path, aside(path)).unwrap();
    std::fs::copy(aside(path), path).unwrap();
}

fn put_back(path: &str) {
    std::fs::rename(aside(path), path).unwrap();
}

fn refused(told: Result<Outcome, CallError>) {
    match told {
        Err(CallError::Unavailable(StoreError::Database { error, .. })) => {
            assert!(error.kind().starts_with("the database file was replaced"), "{error}");
        }
        told => panic!("{told:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_g12_no_request_is_answered_from_a_file_that_was_replaced_or_deleted() {
    for is_deleted in [false, true] {
        let db = Sqlite::fresh().await;
        let (path, app) = (path_of(&db).await, App::default());
        let engine = engine(&db, &app);
        let first = finished(engine.call(&scope(), &key("done"), book(20)).await);
        db.list_pauses().await.unwrap();
        let (bodies, effects) = (app.bodies(), app.provider.effects());
        replace(&path);
        if is_deleted {
            std::fs::remove_file(&path).unwrap();
        }
        for name in ["done", "new"] {
            refused(engine.call(&scope(), &key(name), book(20)).await);
            refused(engine.call(&scope(), &key(name), book(20)).accept().await);
        }
        assert!(db.list_pauses().await.is_err());
        assert!(db.connection().await.is_err());
        assert_eq!((app.bodies(), app.provider.effects()), (bodies, effects));
        put_back(&path);
        let again = finished(engine.call(&scope(), &key("done"), book(20)).await);
        assert!(again.replayed && again.reply == first.reply);
        finished(engine.call(&scope(), &key("new"), book(20)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_a_phase_in_whose_middle_the_file_is_replaced_is_not_acknowledged() {
    let db = Sqlite::fresh().await;
    let path = path_of(&db).await;
    let builder = Engine::builder(db.clone()).register::<InTx>();
    let engine = builder.register::<InBatch>().build().unwrap();
    for in_tx in [true, false] {
        refused(match in_tx {
            true => engine.call(&scope(), &key("k"), InTx(path.clone())).await,
            false => engine.call(&scope(), &key("k"), InBatch(path.clone())).await,
        });
        put_back(&path);
        let written =
            "SELECT (SELECT count(*) FROM steps) + (SELECT count(*) FROM atomic_phases_keys)";
        assert_eq!(db.number(written).await, 0, "in a Tx: {in_tx}");
    }
}
