//! SQL of a phase, or of the application around it, that breaks the rules of the engine's transaction (G4).

use crate::support::*;
use atomic_phases::engine::{FailureCause, Resolution, Resolved};
use atomic_phases::store::{Postgres, Sqlite, WatchedConnection};
use atomic_phases::{PhaseResult, Reply, Scope, Tx, atomic_phases};

on_every_store! {
    g4_an_error_is_forgiven_by_a_savepoint_and_by_nothing_else,
}

/// SQL statements in order, each with whether the phase ignores its error.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Script(Vec<(String, bool)>);

#[atomic_phases(name = "script", version = 1)]
impl<Db: TestDb> Script {
    #[phase(commit)]
    async fn began(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        Db::insert_unique(tx, "taken").await?;
        Ok(())
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        for (sql, swallowed) in &self.0 {
            match diesel_async::SimpleAsyncConnection::batch_execute(tx, sql).await {
                Err(error) if !swallowed => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Reply::new(204))
    }
}

const TAKEN: &str = "INSERT INTO unique_things VALUES ('taken')";
const STEP: &str = "INSERT INTO steps VALUES ('k', 'written')";

async fn g4_an_error_is_forgiven_by_a_savepoint_and_by_nothing_else<S: TestDb>(db: S) {
    // The in-memory store does not execute a user's SQL.
    if std::any::type_name::<S>().contains("Memory") {
        return;
    }
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.register::<Script>());
    let mut scripts: Vec<(&[(&str, bool)], i64)> = vec![
        (
            &[
                ("SAVEPOINT mine", false),
                (TAKEN, true),
                ("ROLLBACK TO SAVEPOINT mine", false),
                (STEP, false),
            ],
            1,
        ),
        (
            &[
                ("SAVEPOINT mine", false),
                (TAKEN, true),
                ("RELEASE SAVEPOINT mine", true),
                (STEP, true),
            ],
            0,
        ),
        (
            &[
                (STEP, false),
                ("SAVEPOINT mine", false),
                ("NONSENSE", true),
                ("ROLLBACK TO mine; NONSENSE", true),
            ],
            0,
        ),
        (&[(STEP, false), (TAKEN, true)], 0),
        (&[(TAKEN, true), (STEP, true)], 0),
        (&[(TAKEN, true), (STEP, true), ("SAVEPOINT late", true), ("ROLLBACK TO late", true)], 0),
    ];
    if !is_postgres::<S>() && !is_mysql::<S>() {
        // These end the transaction by themselves: the statements after them would commit on their own.
        const TAKEN_OR: &str = "INSERT OR ROLLBACK INTO unique_things VALUES ('taken')";
        scripts.push((&[(STEP, false), (TAKEN_OR, true), (STEP, true)], 0));
        scripts.push((
            &[(STEP, false), (TAKEN_OR, true), ("BEGIN", true), (STEP, true), ("COMMIT", true)],
            0,
        ));
        db.sql("CREATE TRIGGER no BEFORE INSERT ON rides BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
            .await;
        scripts.push((&[("INSERT INTO rides VALUES ('r', 1)", true), (STEP, true)], 0));
    }
    for (script, written) in scripts {
        db.sql("DELETE FROM steps; DELETE FROM unique_things; DELETE FROM atomic_phases_keys")
            .await;
        let request = Script(script.iter().map(|(sql, end)| (sql.to_string(), *end)).collect());
        let told = engine.call(&scope(), &key("k"), request).await;
        assert_eq!(db.number("SELECT count(*) FROM steps").await, written, "{script:?}: {told:?}");
        match written {
            0 => assert!(matches!(failed(told), FailureCause::Misuse { .. }), "{script:?}"),
            _ => assert_eq!(finished(told).reply.status(), 204),
        }
        assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);
    }
}

#[derive(diesel::QueryableByName)]
struct Named {
    #[diesel(sql_type = diesel::sql_types::Text)]
    #[allow(dead_code)]
    name: String,
}

/// Forbidden things that a phase does with its transaction.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
enum Abuse {
    SwallowErrorOfRows,
    DropNestedHalfWay,
    SwallowTwoInOneText,
    SwallowTwoInOneQuery,
    ReturnTwoInOneText,
}

const DEBIT: &str = "INSERT INTO unique_things VALUES ('debit')";
const TWO: &str =
    "INSERT INTO unique_things VALUES ('debit'); INSERT INTO unique_things VALUES ('credit')";

/// On diesel's own types, so once for each store.
macro_rules! g4_an_abuse_of_the_transaction_is_not_a_commit {
    ($module:ident, $store:ty) => {
        mod $module {
            use diesel::result::Error;
            use diesel::sql_query;

            use super::*;

            #[derive(serde::Serialize, serde::Deserialize)]
            struct Abuses(Abuse);

            #[atomic_phases(name = "abuses", version = 1)]
            impl Abuses {
                #[phase]
                async fn answered(&self, tx: &mut Tx<'_, $store>) -> PhaseResult<Reply> {
                    use diesel_async::{AsyncConnection, RunQueryDsl};
                    <$store>::insert_unique(tx, "first").await?;
                    match self.0 {
                        Abuse::SwallowErrorOfRows => {
                            let again = "INSERT INTO unique_things VALUES ('new'), ('first') \
                                RETURNING name";
                            assert!(sql_query(again).load::<Named>(tx).await.is_err());
                        }
                        Abuse::DropNestedHalfWay => {
                            let (half, is_half) = tokio::sync::oneshot::channel();
                            let moved = tx.conn().transaction::<(), Error, _>(async |conn| {
                                sql_query(DEBIT).execute(conn).await?;
                                half.send(()).unwrap();
                                // The credit never comes.
                                std::future::pending().await
                            });
                            tokio::select! {
                                _ = moved => unreachable!(),
                                is_half = is_half => is_half.unwrap(),
                            }
                        }
                        Abuse::SwallowTwoInOneText => {
                            assert!(sql_query(TWO).execute(tx).await.is_err());
                        }
                        Abuse::SwallowTwoInOneQuery => {
                            assert!(sql_query(TWO).load::<Named>(tx).await.is_err());
                        }
                        Abuse::ReturnTwoInOneText => drop(sql_query(TWO).execute(tx).await?),
                    }
                    Ok(Reply::new(204))
                }
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn g4_an_abuse_of_the_transaction_is_not_a_commit() {
                let db = <$store>::fresh().await;
                let engine = engine_with(&db, &App::default(), |b| b.register::<Abuses>());
                for (abuse, says) in [
                    (Abuse::SwallowErrorOfRows, Some("use a savepoint")),
                    (Abuse::DropNestedHalfWay, Some("dropped half-way")),
                    (Abuse::SwallowTwoInOneText, Some("use a savepoint")),
                    (Abuse::SwallowTwoInOneQuery, Some("use a savepoint")),
                    (Abuse::ReturnTwoInOneText, None),
                ] {
                    let key = key(&format!("{abuse:?}"));
                    let told = engine.call(&scope(), &key, Abuses(abuse)).await;
                    match (says, told) {
                        (Some(says), told) => {
                            let FailureCause::Misuse { rule, .. } = failed(told) else {
                                panic!("{abuse:?}")
                            };
                            assert!(rule.contains(says), "{abuse:?}: {rule}");
                        }
                        (None, told) => assert!(told.is_err(), "{abuse:?}: {told:?}"),
                    }
                    let things = "SELECT count(*) FROM unique_things";
                    assert_eq!(db.number(things).await, 0, "{abuse:?}");
                }
                // And the connection can run a nested transaction that ends properly.
                let request = troubled(Trouble::NestedFailure);
                finished(engine.call(&scope(), &key("next"), request).await);
            }
        }
    };
}

g4_an_abuse_of_the_transaction_is_not_a_commit!(abuse_on_postgres, Postgres);
g4_an_abuse_of_the_transaction_is_not_a_commit!(abuse_on_sqlite, Sqlite);
#[cfg(feature = "mysql")]
g4_an_abuse_of_the_transaction_is_not_a_commit!(abuse_on_mariadb, atomic_phases::store::Mysql);

/// G4: an instrumentation that an application sets on the connection stays, and turns no check off.
#[tokio::test(flavor = "multi_thread")]
async fn g4_an_instrumentation_of_the_applications_switches_no_watch_off() {
    use diesel_async::AsyncConnection;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let db = <Sqlite as TestDb>::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    let seen = std::sync::Arc::new(AtomicUsize::new(0));
    let seeing = seen.clone();
    let count = move |_: diesel::connection::InstrumentationEvent<'_>| {
        seeing.fetch_add(1, Ordering::Relaxed);
    };
    db.connection().await.unwrap().set_instrumentation(count);
    let cause = failed(engine.call(&scope(), &key("k"), troubled(Trouble::SwallowError)).await);
    assert!(matches!(cause, FailureCause::Misuse { phase: "answered", .. }), "{cause:?}");
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 0);
    assert!(seen.load(Ordering::Relaxed) > 10, "and it still sees everything");
    // Outside of phases, diesel's own type is available.
    let is_reached = |conn: &mut WatchedConnection| Ok(conn.sqlite().is_some());
    assert!(db.connection().await.unwrap().spawn_blocking(is_reached).await.unwrap());
}

/// A transaction that an application's dropped future leaves open on the store's own connection, with one row in
/// it.
async fn leave_transaction_open(db: &Sqlite) {
    use diesel_async::{AsyncConnection, RunQueryDsl};
    let (is_open, opened) = tokio::sync::oneshot::channel();
    let mut conn = db.connection().await.unwrap();
    let never_ends = conn.transaction::<(), diesel::result::Error, _>(async |conn| {
        diesel::sql_query("INSERT INTO rides VALUES ('own', 1)").execute(conn).await?;
        is_open.send(()).unwrap();
        std::future::pending().await
    });
    tokio::select! {
        _ = never_ends => unreachable!(),
        opened = opened => opened.unwrap(),
    }
}

/// One connection is that of all scopes, and keeps a setting after a phase that failed.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_phase_on_sqlite_sets_nothing_for_those_of_other_scopes() {
    let other = Scope::new("other").unwrap();
    for sql in [
        "PRAGMA query_only = ON",
        "SELECT 1; PRAGMA main.busy_timeout(0)",
        "ATTACH ':memory:' AS aside; CREATE TABLE aside.rides (id TEXT)",
    ] {
        let db = Sqlite::fresh().await;
        let app = App::default();
        let engine = engine_with(&db, &app, |builder| builder.register::<Script>());
        let script = [sql, TAKEN].map(|sql| (sql.to_owned(), false));
        let cause = failed(engine.call(&scope(), &key("k"), Script(script.to_vec())).await);
        finished(engine.call(&other, &key("k"), book(20)).await);
        let FailureCause::Database { phase: "answered", kind, .. } = cause else {
            panic!("{sql}: {cause:?}")
        };
        assert!(kind.contains("connection() when it is opened"), "{sql}: {kind}");
        assert_eq!(db.number("SELECT timeout FROM pragma_busy_timeout").await, 10_000, "{sql}");
        assert_eq!(db.number("SELECT count(*) FROM pragma_database_list").await, 1, "{sql}");
    }
    let db = Sqlite::fresh().await;
    let engine = engine_with(&db, &App::default(), |builder| builder.register::<Script>());
    let reads = ["PRAGMA defer_foreign_keys = ON", "PRAGMA table_info(steps)", "PRAGMA query_only"];
    let script = reads.into_iter().chain([STEP]).map(|sql| (sql.to_owned(), false)).collect();
    finished(engine.call(&scope(), &key("k"), Script(script)).await);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
}

/// What another process sees is durable.
async fn seen_by_another(db: &Sqlite, sql: &str) -> String {
    db.another().await.text(sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_transaction_that_an_application_left_open_takes_no_intent_along() {
    let db = Sqlite::fresh().await;
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    // The first phase is committed; the provider refused the call before it did anything.
    failed(engine.call(&scope(), &key("k"), notify(Trouble::RetryFirst)).await);
    for _ in 0..2 {
        leave_transaction_open(&db).await;
        finished(engine.call(&scope(), &key("k"), notify(Trouble::RetryFirst)).await);
        let status = "SELECT status FROM atomic_phases_keys";
        assert_eq!(seen_by_another(&db, status).await, "completed");
        assert_eq!(app.provider.effects(), 1);
    }
    assert_eq!(db.number("SELECT count(*) FROM rides WHERE id = 'own'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_a_transaction_that_an_application_left_open_takes_no_reply_along() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    leave_transaction_open(&db).await;
    let first = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(!first.replayed);
    assert_eq!(seen_by_another(&db, "SELECT status FROM atomic_phases_keys").await, "completed");
    assert_eq!(db.number("SELECT count(*) FROM rides WHERE id = 'own'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn g8_what_an_operator_resolved_is_durable_behind_a_transaction_that_was_left_open() {
    let db = Sqlite::fresh().await;
    let app = App::default();
    let engine = engine_with(&db, &app, |b| b.max_attempts(1));
    let _ = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    leave_transaction_open(&db).await;
    let resolution = Resolution::not_executed("notified", 1);
    let resolved = engine.resolve(&scope(), &key("k"), resolution).await.unwrap();
    assert_eq!(resolved, Resolved::Applied);
    let resolution = "SELECT coalesce(resolution, 'none') FROM atomic_phases_keys";
    assert_ne!(seen_by_another(&db, resolution).await, "none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_an_application_left_open_takes_no_other_application_along() {
    use diesel_async::{AsyncConnection, RunQueryDsl};
    let db = Sqlite::fresh().await;
    leave_transaction_open(&db).await;
    let mut conn = db.connection().await.unwrap();
    conn.transaction::<(), diesel::result::Error, _>(async |conn| {
        diesel::sql_query("INSERT INTO rides VALUES ('other', 1)").execute(conn).await.map(drop)
    })
    .await
    .unwrap();
    drop(conn);
    assert_eq!(seen_by_another(&db, "SELECT group_concat(id) FROM rides").await, "other");
}
