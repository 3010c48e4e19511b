//! What each column and index of the requests' table costs a fresh request of three phases: bytes of its row, bytes and
//! records of the write-ahead log. The server counts, so the figures are those of any machine.
//!
//! ```sh
//! STORED_INTO=docs/bench/stored.md cargo test --all-features --test statements \
//!     what_operators_need -- --ignored --nocapture
//! ```

use std::fmt::Write;

use atomic_phases::store::Postgres;

use crate::recorded::alone;
use crate::support::cluster::Cluster;
use crate::support::db::{open_pg, prepare_pg};
use crate::support::*;

/// How many requests each is measured over.
pub const REQUESTS: u32 = 1000;

/// What one request costs.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// The bytes of its finished row.
    row: i64,
    log: f64,
    records: f64,
    /// Of all indexes of the table.
    indexes: f64,
    hot: f64,
}

/// Creates the table anew, without a trace of dropped columns.
const MADE_ANEW: &str = "ALTER TABLE atomic_phases_keys RENAME TO before; \
    CREATE TABLE atomic_phases_keys (LIKE before INCLUDING ALL) WITH (fillfactor = 80); DROP TABLE before;";

const TRACE: &str = "CREATE FUNCTION with_trace() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    NEW.trace := decode(repeat('0a', 26), 'hex'); RETURN NEW; END $$; \
    CREATE TRIGGER with_trace BEFORE INSERT ON atomic_phases_keys FOR EACH ROW EXECUTE FUNCTION with_trace();";

/// Six bytes for each committed phase.
const MARKS: &str = "ALTER TABLE atomic_phases_keys ADD COLUMN marks bytea; \
    CREATE FUNCTION with_marks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    IF NEW.recovery_point IS DISTINCT FROM OLD.recovery_point THEN \
    NEW.marks := coalesce(OLD.marks, '') || decode(repeat('0a', 6), 'hex'); END IF; RETURN NEW; END $$; \
    CREATE TRIGGER with_marks BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW EXECUTE FUNCTION with_marks();";

async fn measured(cluster: &Cluster, change: &str) -> Cost {
    let db = open_pg(&cluster.new_database(), 4).await;
    prepare_pg(&db).await;
    let (change, behind) = match change {
        TRACE | MARKS => ("", change),
        change => (change, ""),
    };
    db.sql(&format!("CREATE EXTENSION pg_stat_statements; {change}; {MADE_ANEW} {behind}")).await;
    let engine = engine(&db, &App::default());
    // The statements that a connection sends once.
    for number in 0..20 {
        finished(engine.call(&scope(), &key(&format!("before-{number}")), book(20)).await);
    }
    let indexes =
        async |db: &Postgres| db.number("SELECT pg_indexes_size('atomic_phases_keys')").await;
    db.sql("SELECT pg_stat_reset(), pg_stat_statements_reset()").await;
    let indexes_before = indexes(&db).await;
    for number in 0..REQUESTS {
        finished(engine.call(&scope(), &key(&format!("request-{number:06}")), book(20)).await);
    }
    let each = |sum: i64| sum as f64 / f64::from(REQUESTS);
    let counted = async |column: &str| {
        let sql = format!(
            "SELECT sum({column}) FROM pg_stat_statements WHERE query LIKE '%atomic\\_phases\\_keys%' \
             AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
        );
        each(db.number(&sql).await)
    };
    let updates = async |column: &str| {
        // A session reports its counts within a second, or when it ends.
        let sql = format!(
            "SELECT {column} FROM pg_stat_user_tables WHERE relname = 'atomic_phases_keys'"
        );
        db.number(&sql).await as f64
    };
    let (log, records) = (counted("wal_bytes").await, counted("wal_records").await);
    let row = "SELECT max(pg_column_size(k.*)) FROM atomic_phases_keys AS k \
               WHERE idempotency_key LIKE 'request-%'";
    let row = db.number(row).await;
    let indexes = each(indexes(&db).await - indexes_before);
    drop(engine);
    let told = async || updates("n_tup_upd").await >= 2.0 * f64::from(REQUESTS);
    until(told).await;
    let hot = updates("n_tup_hot_upd").await / updates("n_tup_upd").await;
    Cost { row, log, records, indexes, hot }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a thousand requests for each column"]
async fn what_operators_need_of_a_row_costs_a_request_as_much_as_the_page_says() {
    let _alone = alone().await;
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    // Full pages in the log, and what vacuum writes, depend on time and not on the request.
    cluster.change("full_page_writes = off\nautovacuum = off\nfsync = off\n");
    let drop_columns = |columns: &str| {
        let each: Vec<String> =
            columns.split(' ').map(|column| format!("DROP COLUMN {column} CASCADE")).collect();
        format!("ALTER TABLE atomic_phases_keys {}", each.join(", "))
    };
    let now = measured(&cluster, "").await;
    let mut table = String::new();
    let mut line = |name: &str, one: Cost| {
        writeln!(
            table,
            "| {name} | {} | {:+} | {:.0} | {:+.0} | {:.2} | {:.0} | {:+.0} | {:.3} |",
            one.row,
            one.row - now.row,
            one.log,
            one.log - now.log,
            one.records,
            one.indexes,
            one.indexes - now.indexes,
            one.hot
        )
        .unwrap();
    };
    line("as it is", now);
    let again = measured(&cluster, "").await;
    line("as it is, again", again);
    assert_eq!((now.row, now.hot), (again.row, 1.0));
    let noise = (now.log - again.log).abs().max(1.0);
    let nothing = ["waiting_since", "reason", "events events_written"];
    for columns in nothing {
        let without = measured(&cluster, &drop_columns(columns)).await;
        let index = if columns == "waiting_since" { ", and the index `waiting`" } else { "" };
        line(&format!("without `{}`{index}", columns.replace(' ', "`, `")), without);
        // NULL without an interruption: one bit, of bytes that exist anyway.
        assert_eq!(without.row, now.row, "{columns}");
        assert!(
            (without.log - now.log).abs() <= 3.0 * noise + 8.0,
            "{columns}: {without:?} {now:?}"
        );
    }
    let all = measured(&cluster, &drop_columns(&nothing.join(" "))).await;
    line("without all of these", all);
    let index = measured(&cluster, "DROP INDEX atomic_phases_keys_request").await;
    line("without the index `request`", index);
    assert!(index.log < now.log - 50.0 && index.indexes < now.indexes, "{index:?} {now:?}");
    let marks = measured(&cluster, MARKS).await;
    line("with `marks`: 6 bytes a phase, which is not stored", marks);
    let trace = measured(&cluster, TRACE).await;
    line("with a `trace` of 26 bytes: `EngineBuilder::traces`", trace);
    assert_eq!((index.hot, marks.hot, trace.hot), (1.0, 1.0, 1.0));
    let version = cluster.ask("SHOW server_version");
    #[cfg(feature = "mysql")]
    let mariadb = crate::stored_mariadb::table().await;
    #[cfg(not(feature = "mysql"))]
    let mariadb = "Not measured: built without the feature `mysql`.\n";
    let page = format!(
        "# What a row's columns and indexes cost\n\n\
         Written by `STORED_INTO=docs/bench/stored.md cargo test --all-features --test statements what_operators_need -- \
         --ignored`: {REQUESTS} fresh requests of three phases with a `Tx`, one by one, for each line, on PostgreSQL \
         {version} with `full_page_writes` and autovacuum off; counted by the server (`pg_stat_statements`, the \
         statements on the requests' table), for one request. Nothing here is timed.\n\n\
         | table | row, bytes | | log, bytes | | log records | indexes, bytes | | HOT |\n\
         |---|---|---|---|---|---|---|---|---|\n{table}\n\
         A column that is NULL while a request runs its usual way costs nothing: the row's bitmap of NULLs has room for it, and a \
         partial index has no entry. What lines of *without* a column differ by is the noise between two runs of the same table: \
         a page that was cleaned up a request earlier. The index `request`, by which operators and logs name a request, costs \
         what its lines say, once a request: its updates stay HOT.\n\n\
         SQLite has no lines here, because it does not count its log. It has the same columns and the same indexes, of which \
         `waiting` is partial there, too.\n\n\
         ## MariaDB\n\n\
         The same requests there, by `Innodb_lsn_current`, which counts the log of the whole server, with what the server does by \
         itself. MariaDB has no partial indexes: each request has an entry in all four indexes by which operators search, and an \
         update moves the entry in `due_listed` if it changes `run_after`. A column that is NULL takes a bit of the row.\n\n\
         {mariadb}"
    );
    match std::env::var("STORED_INTO") {
        Ok(file) => std::fs::write(file, page).unwrap(),
        Err(_) => println!("{page}"),
    }
}
