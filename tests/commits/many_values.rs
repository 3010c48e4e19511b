//! A statement with more values than its database takes: it is refused each time, on whichever connection.

use std::sync::atomic::Ordering;

use atomic_phases::engine::FailureCause;
use atomic_phases::request::RequestDefinition;
#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::{Batch, Engine, PhaseResult, Reply, Tx, atomic_phases};
use diesel::ExpressionMethods;
use diesel_async::RunQueryDsl;

use crate::support::db::{open_pg, unique_things, url_of};
use crate::support::*;

/// PostgreSQL, MariaDB and MySQL take 65,535, and SQLite 32,766.
const TOO_MANY: usize = 70_000;

/// A request whose phase executes the statement in a `Tx`, and one whose phase adds it to a `Batch`.
macro_rules! too_many_values {
    ($module:ident, $store:ty, $statement:expr) => {
        mod $module {
            use super::*;

            #[derive(Clone, serde::Serialize, serde::Deserialize)]
            pub struct InTx;

            #[atomic_phases(name = "in_tx", version = 1, app = App)]
            impl InTx {
                #[phase]
                async fn answered(&self, tx: &mut Tx<'_, $store>, app: &App) -> PhaseResult<Reply> {
                    app.bodies[0].fetch_add(1, Ordering::SeqCst);
                    $statement.execute(tx).await?;
                    Ok(Reply::new(204))
                }
            }

            #[derive(Clone, serde::Serialize, serde::Deserialize)]
            pub struct InBatch;

            #[atomic_phases(name = "in_batch", version = 1, app = App)]
            impl InBatch {
                #[phase]
                async fn answered(
                    &self,
                    batch: &mut Batch<'_, $store>,
                    app: &App,
                ) -> PhaseResult<Reply> {
                    app.bodies[0].fetch_add(1, Ordering::SeqCst);
                    batch.add($statement);
                    Ok(Reply::new(204))
                }
            }
        }
    };
}

too_many_values!(
    in_postgres,
    Postgres,
    diesel::insert_into(unique_things::table).values(vec![unique_things::name.eq("a"); TOO_MANY])
);
too_many_values!(
    in_sqlite,
    Sqlite,
    diesel::delete(unique_things::table).filter(unique_things::name.eq_any(vec!["a"; TOO_MANY]))
);
#[cfg(feature = "mysql")]
too_many_values!(
    in_mysql,
    Mysql,
    diesel::delete(unique_things::table).filter(unique_things::name.eq_any(vec!["a"; TOO_MANY]))
);

/// The body runs once, and the error says what is wrong.
async fn stops_its_phase<R, S>(db: &S, name: &str, request: R)
where
    R: RequestDefinition<S, App>,
    S: TestDb,
{
    let app = App::default();
    let engine = Engine::builder(db.clone()).app(app.clone()).register::<R>().build().unwrap();
    match failed(engine.call(&scope(), &key(name), request).await) {
        FailureCause::Database { kind, .. } => {
            assert!(kind.contains("values in one statement"), "{name}: {kind}");
        }
        cause => panic!("{name}: {cause:?}"),
    }
    assert_eq!(app.bodies(), [1, 0, 0], "{name}");
}

/// What the client refuses to send does not show that the server restarted: the idle connections stay, and other scopes
/// use them.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_statement_with_too_many_values_stops_its_phase_on_postgres() {
    let db = Postgres::fresh().await;
    let store = open_pg(&url_of(&db), 8).await;
    for in_tx in [true, false] {
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(store.pool().get().await.unwrap());
        }
        drop(held);
        match in_tx {
            true => stops_its_phase(&store, "tx", in_postgres::InTx).await,
            false => stops_its_phase(&store, "batch", in_postgres::InBatch).await,
        }
        let left = store.pool().status().size;
        assert!(left >= 7, "in a Tx: {in_tx}: {left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_a_statement_with_too_many_values_stops_its_phase_on_sqlite() {
    let db = Sqlite::fresh().await;
    stops_its_phase(&db, "tx", in_sqlite::InTx).await;
    stops_its_phase(&db, "batch", in_sqlite::InBatch).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_statement_with_too_many_values_stops_its_phase_on_mariadb() {
    let db = Mysql::fresh().await;
    stops_its_phase(&db, "tx", in_mysql::InTx).await;
    stops_its_phase(&db, "batch", in_mysql::InBatch).await;
}
