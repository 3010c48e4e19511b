//! What happens to the rows: each migration runs up, down and up again with requests and jobs in every state, and
//! each of them then ends as it would have without.

use atomic_phases::Outcome;
use atomic_phases::engine::{RequestStatus, Resolution, Resolved};
use atomic_phases::store::{Postgres, Sqlite, Status};
use atomic_phases::worker::Enqueuer;

use super::{Schema, all, folders, next, only};
use crate::support::work::*;
use crate::support::*;

const TABLES: [&str; 2] = ["atomic_phases_keys", "atomic_phases_staged_jobs"];

/// Each table's columns in their order.
async fn columns<S: Schema>(db: &S) -> Vec<Vec<String>> {
    let mut columns = Vec::new();
    for table in TABLES {
        let names = db.text(&format!("{}'{table}'", S::COLUMNS_OF)).await;
        columns.push(names.split(',').map(str::to_owned).collect());
    }
    columns
}

/// All values of these columns.
async fn values<S: Schema>(db: &S, columns: &[Vec<String>]) -> Vec<String> {
    let mut values = Vec::new();
    for (table, columns) in TABLES.iter().zip(columns) {
        // An index with the column would return its own order, and without the limit MySQL drops the engine's.
        let rows = format!(
            "(SELECT * FROM {table} ORDER BY scope, request_id LIMIT 1000000) AS rows_in_order"
        );
        for column in columns {
            values.push(format!("{table}.{column}: {}", db.joined(&rows, column).await));
        }
    }
    values
}

/// One request in each state, and with them jobs that are due and one that is a dead letter.
async fn one_in_each_state<S: Schema>(db: &S, app: &App) -> Vec<(&'static str, RequestStatus)> {
    let engine = engine(db, app);
    finished(engine.call(&scope(), &key("completed"), book(20)).await);
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL WHERE name = 'receipt'").await;
    let pending = engine.call(&scope(), &key("pending"), book(20)).accept().await;
    assert!(matches!(pending, Ok(Outcome::Accepted)), "{pending:?}");
    dies_in_its_call(&engine, "in_progress", book(20)).await;
    dies_in_its_call(&engine, "intent", notify(Trouble::None)).await;
    app.forget_bodies();
    let fails_once = || troubled(Trouble::RetryForeignOnce);
    failed(engine.call(&scope(), &key("failed_retryable"), fails_once()).await);
    app.forget_bodies();
    let impatient = engine_with(db, app, |builder| builder.max_attempts(1));
    let dead = impatient.call(&scope(), &key("dead_letter"), fails_once()).await;
    assert!(matches!(dead, Ok(Outcome::DeadLetter)), "{dead:?}");
    let unknown = engine.call(&scope(), &key("unknown"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    let mut all = Vec::new();
    for name in [
        "completed",
        "pending",
        "in_progress",
        "intent",
        "failed_retryable",
        "dead_letter",
        "unknown",
    ] {
        all.push((name, status(&engine, name).await));
    }
    let states: std::collections::HashSet<Status> = all.iter().map(|(_, it)| it.status).collect();
    assert_eq!(states.len(), 6, "one in each state: {all:?}");
    all
}

/// A status without its times to come.
fn shown(it: &RequestStatus) -> String {
    let place = (it.status, &it.recovery_point, &it.definition, it.attempt);
    let why = (&it.unknown_phase, &it.open_intent, &it.reason, it.waiting_since);
    format!("{place:?} {why:?} {:?} {:?}", (it.created_at, it.expires_at), it.reply)
}

async fn rows_in_every_state_go_on<S: Schema>(db: S) {
    let app = App::default();
    let before = one_in_each_state(&db, &app).await;
    db.up(next(S::FOLDER)).await.unwrap();
    let newest = columns(&db).await;

    // The columns of the earliest schema are those that the oldest rows have.
    let migrations = all(S::FOLDER);
    for migration in migrations[S::FIRST..].iter().rev() {
        db.down(only(std::slice::from_ref(migration))).await.unwrap();
    }
    let earliest = columns(&db).await;
    assert_ne!(earliest, newest);
    let rows = values(&db, &earliest).await;
    for migration in &migrations[S::FIRST..] {
        let columns_before = columns(&db).await;
        db.up(only(std::slice::from_ref(migration))).await.unwrap();
        assert_eq!(values(&db, &earliest).await, rows, "{migration:?} up");
        db.down(only(std::slice::from_ref(migration))).await.unwrap();
        assert_eq!(columns(&db).await, columns_before, "{migration:?} down");
        assert_eq!(values(&db, &earliest).await, rows, "{migration:?} down");
        db.up(only(std::slice::from_ref(migration))).await.unwrap();
        assert_eq!(values(&db, &earliest).await, rows, "{migration:?} up again");
    }
    assert_eq!(columns(&db).await, newest);

    let engine = engine(&db, &app);
    for (name, before) in &before {
        assert_eq!(shown(&status(&engine, name).await), shown(before), "{name}");
    }
    all_end(&db, &app, &engine).await;
}

/// Every request is completed, with one effect each; every job is delivered.
async fn all_end<S: Schema>(db: &S, app: &App, engine: &TestEngine<S>) {
    app.provider.answer_searches();
    let replayed = finished(engine.call(&scope(), &key("completed"), book(20)).await);
    assert!(replayed.replayed);
    let word = engine.resolve(&scope(), &key("dead_letter"), Resolution::retry()).await.unwrap();
    assert_eq!(word, Resolved::Applied);
    assert_eq!(retry_dead_jobs(engine).await, 1);
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(engine, inbox.sink(), config());
    for _ in 0..4 {
        db.let_time_pass().await;
        completed(engine).await;
        reconciled(engine).await;
        enqueuer.run_once().await.unwrap();
    }
    let unfinished = "SELECT count(*) FROM atomic_phases_keys WHERE status <> 'completed'";
    assert_eq!(db.number(unfinished).await, 0);
    assert_eq!(app.provider.effects(), 7, "one of each request");
    assert_eq!(inbox.take().len(), 10, "two of each of five bookings");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_migration_goes_up_down_and_up_again_with_rows_in_every_state_on_postgres() {
    rows_in_every_state_go_on(<Postgres as TestDb>::fresh().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_migration_goes_up_down_and_up_again_with_rows_in_every_state_on_sqlite() {
    rows_in_every_state_go_on(<Sqlite as TestDb>::fresh().await).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn each_migration_goes_up_down_and_up_again_with_rows_in_every_state_on_mariadb() {
    rows_in_every_state_go_on(<atomic_phases::store::Mysql as TestDb>::fresh().await).await;
}

/// Each migration, and each of the engine's statements, on a MariaDB whose tables are partitioned by scope
/// (docs/stores.md).
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn rows_in_every_state_go_on_in_partitions_by_scope_on_mariadb() {
    let db = <atomic_phases::store::Mysql as TestDb>::fresh().await;
    for table in TABLES {
        db.sql(&format!("ALTER TABLE {table} PARTITION BY KEY (scope) PARTITIONS 8")).await;
    }
    rows_in_every_state_go_on(db).await;
}

/// The same on a PostgreSQL, partitioned by scope (docs/scaling.md) and by day (docs/partitioning.md).
#[tokio::test(flavor = "multi_thread")]
async fn rows_in_every_state_go_on_in_partitions_by_scope_on_postgres() {
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    let indexes = indexes(&db).await;
    db.sql(include_str!("../../migrations/postgres_partitioned/by_scope.sql")).await;
    assert_eq!(self::indexes(&db).await, indexes);
    rows_in_every_state_go_on(db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_every_state_go_on_in_partitions_by_day_on_postgres() {
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    let indexes = indexes(&db).await;
    db.sql(include_str!("../../migrations/postgres_partitioned/up.sql")).await;
    assert_eq!(self::indexes(&db).await, indexes);
    rows_in_every_state_go_on(db.another().await).await;
    let migrated = self::indexes(&db).await;
    db.sql(include_str!("../../migrations/postgres_partitioned/down.sql")).await;
    assert_eq!(self::indexes(&db).await, migrated);
}

/// The indexes of the table of keys, by the names that migrations use, with their definitions.
async fn indexes(db: &Postgres) -> String {
    db.text(
        "SELECT string_agg(indexname || substring(indexdef FROM ' USING .*'), chr(10) ORDER BY indexname) \
         FROM pg_indexes WHERE tablename = 'atomic_phases_keys'",
    )
    .await
}

/// Partitioned by day before the migration (docs/partitioning.md).
#[tokio::test(flavor = "multi_thread")]
async fn migrations_apply_to_a_partitioned_table() {
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    for migration in folders(&["migrations"], Postgres::FOLDER)[1..].iter().rev() {
        db.down(only(std::slice::from_ref(migration))).await.unwrap();
    }
    db.sql(include_str!("../../migrations/postgres_partitioned/up.sql")).await;
    db.sql("SELECT atomic_phases_add_partition((now() AT TIME ZONE 'UTC')::date)").await;
    for migration in &all(Postgres::FOLDER)[1..] {
        db.up(only(std::slice::from_ref(migration))).await.unwrap();
    }
    let engine = engine(&db, &App::default());
    let first = "SELECT atomic_phases_first_key(clock_timestamp()) || '-7000-8000-000000000001'";
    for name in [db.text(first).await.as_str(), "bare"] {
        assert!(!finished(engine.call(&scope(), &key(name), book(20)).await).replayed);
        assert!(finished(engine.call(&scope(), &key(name), book(20)).await).replayed);
    }
}
