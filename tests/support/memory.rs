//! Adapts the in-memory store to the tests of the other stores. A test's SQL runs on a copy of the rows in SQLite,
//! and the changes are written back.

use atomic_phases::simulation::{Database, Memory, Write};
use atomic_phases::store::Sqlite;
use atomic_phases::{Batch, Store, Tx};
use diesel::QueryResult;
use diesel::result::Error;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use serde_json::{Value, json};

use super::db::{TABLES, TestDb, phase_order};

const KEYS: &str = "atomic_phases_keys";
const JOBS: &str = "atomic_phases_staged_jobs";
const AUDIT: &str = "atomic_phases_audit";
const PAUSES: &str = "atomic_phases_pauses";

/// The rows of the database in a new SQLite one.
async fn mirror(dump: &Value) -> Sqlite {
    let mirror = Sqlite::connect(":memory:").await.unwrap();
    mirror.migrate().await.unwrap();
    let mut sql = format!("{TABLES}{};", phase_order());
    let tables = [
        (KEYS, &dump["keys"]),
        (JOBS, &dump["jobs"]),
        (AUDIT, &dump["audit"]),
        (PAUSES, &dump["pauses"]),
    ];
    for (table, rows) in tables {
        for row in rows.as_array().unwrap() {
            let columns: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
            let values: Vec<String> = row.as_object().unwrap().values().map(literal).collect();
            let (columns, values) = (columns.join(","), values.join(","));
            sql.push_str(&format!("INSERT INTO {table} ({columns}) VALUES ({values});"));
        }
    }
    for row in dump["rows"].as_array().unwrap() {
        let (id, value) = (&row[1], &row[2]);
        let values = match row[0].as_str().unwrap() {
            "rides" => format!("{},{}", literal(id), literal(value)),
            "steps" => {
                // Its id is the number of the row, which identifies it afterwards.
                let (of, step) = (literal(&value["request"]), literal(&value["step"]));
                let number = id.as_str().unwrap().parse::<i64>().unwrap();
                sql.push_str("INSERT INTO steps (rowid, request, step) ");
                sql.push_str(&format!("VALUES ({number},{of},{step});"));
                continue;
            }
            _ => literal(id),
        };
        sql.push_str(&format!("INSERT INTO {} VALUES ({values});", row[0].as_str().unwrap()));
    }
    mirror.sql(&sql).await;
    mirror
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) if text.contains('\0') => {
            let hex: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
            format!("CAST(x'{hex}' AS TEXT)")
        }
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Object(bytes) => format!("x'{}'", bytes["hex"].as_str().unwrap()),
        other => other.to_string(),
    }
}

/// The current content of the copy.
async fn back(mirror: &Sqlite) -> Value {
    let rides = rows(mirror, "rides", &["id", "amount"]).await;
    let steps = rows(mirror, "steps", &["rowid AS id", "request", "step"]).await;
    let things = rows(mirror, "unique_things", &["name"]).await;
    let ride = |row: &Value| json!(["rides", row["id"], row["amount"]]);
    let step = |row: &Value| {
        let id = format!("{:08}", row["id"].as_i64().unwrap());
        json!(["steps", id, { "request": row["request"], "step": row["step"] }])
    };
    let thing = |row: &Value| json!(["unique_things", row["name"], true]);
    let all: Vec<Value> = rides
        .iter()
        .map(ride)
        .chain(steps.iter().map(step))
        .chain(things.iter().map(thing))
        .collect();
    json!({
        "keys": engine_rows(mirror, KEYS).await,
        "jobs": engine_rows(mirror, JOBS).await,
        "audit": engine_rows(mirror, AUDIT).await,
        "pauses": engine_rows(mirror, PAUSES).await,
        "rows": all,
    })
}

async fn engine_rows(mirror: &Sqlite, table: &str) -> Vec<Value> {
    let names = format!("SELECT group_concat(name) FROM pragma_table_info('{table}')");
    let names = mirror.text(&names).await;
    let blobs = format!(
        "SELECT coalesce(group_concat(name), '') FROM pragma_table_info('{table}') WHERE type = 'BLOB'"
    );
    let blobs = mirror.text(&blobs).await;
    let blobs: Vec<&str> = blobs.split(',').collect();
    let column = |name: &str| match blobs.contains(&name) {
        true => format!("CASE WHEN {name} IS NOT NULL THEN hex({name}) END AS {name}"),
        false => name.to_owned(),
    };
    let columns: Vec<String> = names.split(',').map(column).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut rows = rows(mirror, table, &columns).await;
    for row in &mut rows {
        for name in &blobs {
            if let Some(hex) = row.get(*name).and_then(Value::as_str).map(str::to_owned) {
                row[*name] = json!({ "hex": hex });
            }
        }
    }
    rows
}

async fn rows(mirror: &Sqlite, table: &str, columns: &[&str]) -> Vec<Value> {
    let name = |column: &&str| column.rsplit(' ').next().unwrap().to_owned();
    let names: Vec<String> =
        columns.iter().map(name).map(|name| format!("'{name}', {name}")).collect();
    let sql = format!(
        "SELECT json_group_array(json_object({})) FROM (SELECT {} FROM {table})",
        names.join(","),
        columns.join(",")
    );
    serde_json::from_str(&mirror.text(&sql).await).unwrap()
}

fn step(request: &str, step: &str) -> Write {
    Write::append("steps", json!({ "request": request, "step": step }))
}

impl TestDb for Memory {
    async fn fresh() -> Self {
        Memory::connect(&Database::default())
    }

    async fn another(&self) -> Self {
        Memory::connect(self.database())
    }

    async fn sql(&self, sql: &str) {
        if sql.starts_with("DROP TRIGGER") {
            return;
        }
        loop {
            let dump = self.database().dump();
            let mirror = mirror(&dump).await;
            let before = back(&mirror).await;
            mirror.sql(sql).await;
            if self.database().restore(&dump, before, back(&mirror).await).unwrap() {
                return;
            }
            // A transaction has locked or changed a row: waits, as an UPDATE would.
            tokio::task::yield_now().await;
        }
    }

    async fn number(&self, sql: &str) -> i64 {
        mirror(&self.database().dump()).await.number(sql).await
    }

    async fn text(&self, sql: &str) -> String {
        mirror(&self.database().dump()).await.text(sql).await
    }

    async fn joined(&self, table: &str, column: &str) -> String {
        mirror(&self.database().dump()).await.joined(table, column).await
    }

    async fn insert_ride(tx: &mut Tx<'_, Self>, id: &str, amount: i64) -> QueryResult<usize> {
        Write::insert("rides", id, amount).execute(tx).await
    }

    async fn insert_step(tx: &mut Tx<'_, Self>, of: &str, name: &str) -> QueryResult<usize> {
        step(of, name).execute(tx).await
    }

    async fn insert_unique(tx: &mut Tx<'_, Self>, name: &str) -> QueryResult<usize> {
        Write::insert("unique_things", name, true).execute(tx).await
    }

    fn add_ride(batch: &mut Batch<'_, Self>, id: &str, amount: i64) {
        batch.add(Write::insert("rides", id, amount));
    }

    fn add_step(batch: &mut Batch<'_, Self>, request: &str, name: &str) {
        batch.add(step(request, name));
    }

    fn add_independent_step(batch: &mut Batch<'_, Self>, request: &str, name: &str) {
        batch.add_independent(step(request, name));
    }

    fn add_unique(batch: &mut Batch<'_, Self>, name: &str) {
        batch.add(Write::insert("unique_things", name, true));
    }

    fn add_to_ride(batch: &mut Batch<'_, Self>, id: &str, times: i64, plus: i64) {
        batch.add(Write::calculate("rides", id, times, plus));
    }

    async fn insert_unique_nested(tx: &mut Tx<'_, Self>, name: &str) -> QueryResult<usize> {
        let conn = tx.conn();
        conn.batch_execute("SAVEPOINT nested").await?;
        let inserted: Result<usize, Error> =
            Write::insert("unique_things", name, true).execute(conn).await;
        let end = match inserted {
            Ok(_) => "RELEASE nested",
            Err(_) => "ROLLBACK TO nested",
        };
        conn.batch_execute(end).await?;
        inserted
    }
}
