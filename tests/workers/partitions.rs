//! The optional partitions by day: the same engine, and a day that is dropped in one step without losing anything.

use crate::support::db::{open_pg, pg, url_of};
use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Completer, Reaper, WorkerConfig};
use diesel_async::SimpleAsyncConnection;

const UP: &str = include_str!("../../migrations/postgres_partitioned/up.sql");
const DOWN: &str = include_str!("../../migrations/postgres_partitioned/down.sql");
const BY_SCOPE: &str = include_str!("../../migrations/postgres_partitioned/by_scope.sql");

/// The commands of `docs/partitioning.md`: they add the partition of tomorrow, and drop that of three days ago.
fn commands() -> [&'static str; 2] {
    let page = include_str!("../../docs/partitioning.md");
    let blocks = page.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.collect::<Vec<_>>().try_into().unwrap()
}

/// A UUID of version 7 for a moment that is `days` ago, as a client would have made it then.
async fn key_of(db: &Postgres, days: u32, number: u32) -> String {
    let first = format!(
        "SELECT atomic_phases_first_key(clock_timestamp() - interval '{days} days') \
         || '-7000-8000-' || lpad(to_hex({number}), 12, '0')"
    );
    db.text(&first).await
}

async fn partition_of(db: &Postgres, name: &str) -> String {
    let tables = "SELECT tableoid::regclass FROM atomic_phases_keys WHERE idempotency_key = ";
    db.text(&format!("{tables}'{name}'")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn g15_a_day_is_dropped_and_nothing_unfinished_or_unexpired_is_lost() {
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    db.sql(UP).await;
    for days in [-1, 0, 1, 2] {
        let add = "SELECT atomic_phases_add_partition((now() AT TIME ZONE 'UTC')::date - ";
        db.sql(&format!("{add} {days})")).await;
    }
    let app = App::default();
    let engine = engine(&db, &app);

    // Today, two days ago, and a key without a time: each in its partition, and each works like any other.
    let today = key_of(&db, 0, 1).await;
    let old = key_of(&db, 2, 1).await;
    let (open, fresh) = (key_of(&db, 2, 2).await, key_of(&db, 2, 3).await);
    for name in [today.as_str(), &old, &fresh, "bare"] {
        assert!(!finished(engine.call(&scope(), &key(name), book(20)).await).replayed);
        assert!(finished(engine.call(&scope(), &key(name), book(20)).await).replayed);
        let other = engine.call(&scope(), &key(name), book(21)).await;
        assert!(matches!(other, Ok(Outcome::Mismatch)));
    }
    app.forget_bodies();
    failed(engine.call(&scope(), &key(&open), troubled(Trouble::RetryForeignOnce)).await);
    let day = "to_char((now() AT TIME ZONE 'UTC')::date - 2, 'YYYYMMDD')";
    let of_the_day = db.text(&format!("SELECT 'atomic_phases_keys_' || {day}")).await;
    assert_eq!(partition_of(&db, &old).await, of_the_day);
    assert_eq!(partition_of(&db, "bare").await, "atomic_phases_keys_default");
    assert_ne!(partition_of(&db, &today).await, "atomic_phases_keys_default");

    // Ten concurrent duplicates, across partitions: one effect (G10).
    let name = key_of(&db, 1, 9).await;
    let calls = (0..10).map(|_| engine.call(&scope(), &key(&name), book(20)).into_future());
    let outcomes = futures_util::future::join_all(calls).await;
    let ran = outcomes.iter().filter(|o| matches!(o, Ok(Outcome::Finished(f)) if !f.replayed));
    assert_eq!(ran.count(), 1);

    let expire = "UPDATE atomic_phases_keys SET expires_at = created_at WHERE idempotency_key = ";
    db.sql(&format!("{expire}'{old}'")).await;
    let drop = "SELECT atomic_phases_drop_partition((now() AT TIME ZONE 'UTC')::date - 2)";
    assert_eq!(db.number(drop).await, 2, "the open one and the unexpired one");
    assert_eq!(partition_of(&db, &open).await, "atomic_phases_keys_default");
    assert!(finished(engine.call(&scope(), &key(&fresh), book(20)).await).replayed);
    let effects = app.provider.effects();
    assert!(!finished(engine.call(&scope(), &key(&open), book(20)).await).replayed);
    assert_eq!(app.provider.effects(), effects, "resumed, not charged again");

    // The workers, too; and back to one table.
    let name = key_of(&db, 0, 7).await;
    engine.call(&scope(), &key(&name), book(20)).accept().await.unwrap();
    let config = WorkerConfig::default();
    assert_eq!(Completer::new(&engine, config.clone()).run_once().await.unwrap().finished, 1);
    db.sql(&format!("{expire}'{name}'")).await;
    assert_eq!(Reaper::new(&db, config).run_once().await.unwrap(), 1);
    let rows = db.number("SELECT count(*) FROM atomic_phases_keys").await;
    db.sql(DOWN).await;
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, rows);
    assert!(finished(engine.call(&scope(), &key(&today), book(20)).await).replayed);
}

/// A client whose clock is ahead has used a key of a day before its partition exists.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_key_of_tomorrow_keeps_no_day_from_its_partition() {
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    db.sql(UP).await;
    let engine = engine(&db, &App::default());
    let early = "SELECT atomic_phases_first_key(clock_timestamp() + interval '1 day') || '-7000-8000-000000000001'";
    let early = db.text(early).await;
    for name in [early.as_str(), "bare"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
        assert_eq!(partition_of(&db, name).await, "atomic_phases_keys_default");
    }
    let tomorrow = "SELECT atomic_phases_partition_of((now() AT TIME ZONE 'UTC')::date + 1)";
    let tomorrow = db.text(tomorrow).await;
    let [add, drop] = commands();
    // A second time changes nothing.
    for _ in 0..2 {
        db.sql(add).await;
        assert_eq!(partition_of(&db, &early).await, tomorrow);
        assert_eq!(partition_of(&db, "bare").await, "atomic_phases_keys_default");
        for name in [early.as_str(), "bare"] {
            assert!(finished(engine.call(&scope(), &key(name), book(20)).await).replayed);
        }
    }
    let partitions =
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'atomic_phases_keys'::regclass";
    let before = db.number(partitions).await;
    db.sql("SELECT atomic_phases_add_partition((now() AT TIME ZONE 'UTC')::date - 3)").await;
    assert_eq!(db.number(partitions).await, before + 1);
    db.sql(drop).await;
    assert_eq!(db.number(partitions).await, before);
}

/// A daily job that was run twice. By then requests use the partition, and a backup reads it.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_partition_that_is_added_a_second_time_is_not_locked() {
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    db.sql(UP).await;
    let add = "SELECT atomic_phases_add_partition((now() AT TIME ZONE 'UTC')::date)";
    db.sql(add).await;
    let (mut backup, mut job) = (pg(&url_of(&db)).await, pg(&url_of(&db)).await);
    backup.batch_execute("BEGIN; SELECT count(*) FROM atomic_phases_keys").await.unwrap();
    let again = job.batch_execute(&format!("SET lock_timeout = '500ms'; {add}")).await;
    again.expect("it is there");
}

/// The service's role owns no table: it may read and write them. A superuser runs the scripts, and the owner drops a day.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_role_that_may_use_the_table_may_use_its_partitions() {
    for script in [UP, BY_SCOPE] {
        let db = <Postgres as TestDb>::fresh().await;
        db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
        let name = db.text("SELECT current_database()").await;
        let (role, owner) = (format!("service_of_{name}"), format!("owner_of_{name}"));
        db.sql(&format!(
            "CREATE ROLE {role} LOGIN; CREATE ROLE {owner} LOGIN; GRANT ALL ON SCHEMA public TO {owner}; \
             ALTER TABLE atomic_phases_keys OWNER TO {owner}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
        ))
        .await;
        let url = |of: &str| url_of(&db).replace("postgres@", &format!("{of}@"));
        let service = engine(&open_pg(&url(&role), 4).await, &App::default());
        finished(service.call(&scope(), &key("before"), book(20)).await);
        db.sql(script).await;
        assert!(finished(service.call(&scope(), &key("before"), book(20)).await).replayed);
        finished(service.call(&scope(), &key("after"), book(20)).await);
        if script == UP {
            db.sql("SELECT atomic_phases_add_partition((now() AT TIME ZONE 'UTC')::date)").await;
            let today = key_of(&db, 0, 1).await;
            finished(service.call(&scope(), &key(&today), book(20)).await);
            let mut owns = pg(&url(&owner)).await;
            let drop = "SELECT atomic_phases_drop_partition((now() AT TIME ZONE 'UTC')::date)";
            owns.batch_execute(drop).await.unwrap();
            // What was granted meanwhile is kept, too.
            db.sql(&format!("REVOKE DELETE ON atomic_phases_keys_default FROM {role}")).await;
            db.sql(DOWN).await;
        }
        assert!(finished(service.call(&scope(), &key("after"), book(20)).await).replayed);
        finished(service.call(&scope(), &key("at-last"), book(20)).await);
    }
}

/// A foreign key to the table, a view of it, or a trigger would be of one partition only, or be lost. The scripts refuse, and
/// change nothing; and behind them a foreign key may refer to the whole table.
#[tokio::test(flavor = "multi_thread")]
async fn g17_what_is_of_the_table_and_would_be_of_a_part_of_it_stops_the_scripts() {
    const RECEIPTS: &str = "CREATE TABLE receipts (scope text COLLATE \"C\", key text COLLATE \"C\", \
        FOREIGN KEY (scope, key) REFERENCES atomic_phases_keys (scope, idempotency_key))";
    let db = <Postgres as TestDb>::fresh().await;
    let refused = async || {
        for script in [UP, BY_SCOPE] {
            let told = pg(&url_of(&db)).await.batch_execute(script).await.unwrap_err();
            assert!(told.to_string().contains("not while these belong to"), "{told}");
        }
        let kind = "SELECT relkind::text FROM pg_class WHERE oid = 'atomic_phases_keys'::regclass";
        assert_eq!(db.text(kind).await, "r");
    };
    refused().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    for (create, drop) in [
        (RECEIPTS, "DROP TABLE receipts"),
        ("CREATE VIEW counted AS SELECT count(*) FROM atomic_phases_keys", "DROP VIEW counted"),
        ("CREATE POLICY p ON atomic_phases_keys", "DROP POLICY p ON atomic_phases_keys"),
        ("CREATE PUBLICATION p FOR TABLE atomic_phases_keys", "DROP PUBLICATION p"),
    ] {
        db.sql(create).await;
        refused().await;
        db.sql(drop).await;
    }
    db.sql(UP).await;
    db.sql(RECEIPTS).await;
    db.sql("SELECT atomic_phases_add_partition((now() AT TIME ZONE 'UTC')::date)").await;
    let engine = engine(&db, &App::default());
    for name in [key_of(&db, 0, 1).await.as_str(), "bare"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    db.sql("INSERT INTO receipts SELECT scope, idempotency_key FROM atomic_phases_keys").await;
    assert!(pg(&url_of(&db)).await.batch_execute(DOWN).await.is_err());
}
