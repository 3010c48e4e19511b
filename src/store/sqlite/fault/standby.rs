//! A copy of all tables, for an explorer that fails over to it: in a database in memory that is attached to the
//! connection. So the tables of the application are copied too, whatever they are.

use diesel::connection::SimpleConnection;
use diesel::sql_types::{BigInt, Text};
use diesel::sqlite::Sqlite as Db;
use diesel::{QueryResult, SqliteConnection};

use crate::store::in_millis::tuple_rows::BlockingRows;
use crate::store::statement::statement;

statement! {
    /// The tables, quoted, with their columns but for those that are computed. Of a virtual table, those in which its
    /// module keeps the rows. The numbers of `AUTOINCREMENT` come last, because each insert changes them.
    Tables for Db, rows (Text, Text), {},
    "SELECT '\"' || replace(t.name, '\"', '\"\"') || '\"', \
     group_concat('\"' || replace(c.name, '\"', '\"\"') || '\"', ', ') \
     FROM pragma_table_list AS t JOIN pragma_table_info(t.name, 'main') AS c \
     WHERE t.schema = 'main' AND t.type IN ('table', 'shadow') AND t.name <> 'sqlite_schema' \
     GROUP BY t.name ORDER BY t.name = 'sqlite_sequence', t.name"
}

statement! {
    /// The triggers, quoted, and what creates them.
    Triggers for Db, rows (Text, Text), {},
    "SELECT '\"' || replace(name, '\"', '\"\"') || '\"', sql FROM main.sqlite_schema WHERE type = 'trigger'"
}

statement! {
    /// Whether foreign keys are enforced.
    ForeignKeys for Db, rows BigInt, {},
    "SELECT foreign_keys FROM pragma_foreign_keys"
}

/// SQLite reserves the name of `sqlite_sequence`.
fn copy_of(table: &str) -> String {
    format!("atomic_phases_standby.{}", table.replacen('"', "\"of ", 1))
}

pub(super) fn copy(conn: &mut SqliteConnection) -> QueryResult<()> {
    // There is one if a copy was made earlier, and never brought back.
    let _ = conn.batch_execute("DETACH atomic_phases_standby");
    conn.batch_execute("ATTACH ':memory:' AS atomic_phases_standby")?;
    let tables = Tables {}.rows::<(String, String)>(conn)?;
    for (table, columns) in tables {
        let copy = copy_of(&table);
        conn.batch_execute(&format!("CREATE TABLE {copy} AS SELECT {columns} FROM main.{table}"))?;
    }
    Ok(())
}

pub(super) fn bring_back(conn: &mut SqliteConnection) -> QueryResult<()> {
    let tables = Tables {}.rows::<(String, String)>(conn)?;
    let triggers = Triggers {}.rows::<(String, String)>(conn)?;
    let enforced = ForeignKeys {}.rows::<i64>(conn)?;
    // Nothing follows from what comes back: no trigger runs, and no row is deleted with another. SQLite ignores this
    // pragma in a transaction.
    conn.batch_execute("PRAGMA foreign_keys = OFF")?;
    let brought_back = conn.immediate_transaction(|conn| -> QueryResult<()> {
        for (trigger, _) in &triggers {
            conn.batch_execute(&format!("DROP TRIGGER main.{trigger}"))?;
        }
        for (table, columns) in &tables {
            let copy = copy_of(table);
            conn.batch_execute(&format!(
                "DELETE FROM main.{table}; \
                 INSERT INTO main.{table} ({columns}) SELECT {columns} FROM {copy}"
            ))?;
        }
        for (_, create) in &triggers {
            conn.batch_execute(create)?;
        }
        Ok(())
    });
    if enforced == [1] {
        conn.batch_execute("PRAGMA foreign_keys = ON")?;
    }
    brought_back?;
    conn.batch_execute("DETACH atomic_phases_standby")
}
