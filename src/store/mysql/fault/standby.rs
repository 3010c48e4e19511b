//! A copy of all tables, for an explorer that fails over to it: in tables of the same database, because a database of its
//! own is more than a user may have the right to create.

use diesel::mysql::Mysql as Db;
use diesel::sql_types::{BigInt, Text};
use diesel_async::SimpleAsyncConnection;

use crate::store::StoreError;
use crate::store::mysql::ask::await_answer;
use crate::store::mysql::tuple_rows::RowsAwaited;
use crate::store::mysql::{Mysql, MysqlConn};
use crate::store::statement::statement;

statement! {
    /// The tables, quoted, with the names of their copies and with their columns but for those that are computed.
    Columns for Db, rows (Text, Text, Text), {},
    "SELECT CONCAT('`', REPLACE(t.table_name, '`', '``'), '`'), \
     CONCAT('atomic_phases_standby_', MD5(t.table_name)), \
     CONCAT('`', REPLACE(c.column_name, '`', '``'), '`') \
     FROM information_schema.tables t JOIN information_schema.columns c \
     ON c.table_schema = t.table_schema AND c.table_name = t.table_name \
     WHERE t.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' \
     AND LEFT(t.table_name, 22) <> 'atomic_phases_standby_' AND COALESCE(c.generation_expression, '') = '' \
     ORDER BY t.table_name, c.ordinal_position"
}

statement! {
    /// How many triggers there are.
    CountTriggers for Db, rows BigInt, {},
    "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE()"
}

struct Table {
    name: String,
    copy: String,
    columns: String,
}

async fn tables(conn: &mut MysqlConn) -> Result<Vec<Table>, StoreError> {
    let columns = Columns {}.rows::<(String, String, String)>(conn);
    let mut tables: Vec<Table> = Vec::new();
    for (name, copy, column) in await_answer("list the tables", columns).await? {
        match tables.last_mut().filter(|table| table.name == name) {
            Some(table) => {
                table.columns.push_str(", ");
                table.columns.push_str(&column);
            }
            None => tables.push(Table { name, copy, columns: column }),
        }
    }
    Ok(tables)
}

impl Mysql {
    pub(super) async fn copy_tables(&self) -> Result<(), StoreError> {
        let mut conn = self.connection().await?;
        let counted = CountTriggers {}.rows::<i64>(&mut conn);
        if await_answer("count the triggers", counted).await? != [0] {
            let error = "there are triggers, which cannot be kept from running meanwhile";
            return Err(StoreError::Configuration(error.to_owned()));
        }
        let copies = tables(&mut conn).await?.into_iter().map(|Table { name, copy, columns }| {
            format!(
                "DROP TABLE IF EXISTS {copy}; CREATE TABLE {copy} AS SELECT {columns} FROM {name};"
            )
        });
        let copies = copies.collect::<Vec<_>>().join(" ");
        await_answer("copy all tables", conn.batch_execute(&copies)).await
    }

    /// In one transaction. Nothing follows from what comes back: no foreign key is checked, and no row is deleted with
    /// another.
    pub(super) async fn bring_tables_back(&self) -> Result<(), StoreError> {
        let mut conn = self.connection().await?;
        let tables = tables(&mut conn).await?;
        let back = tables.iter().map(|Table { name, copy, columns }| {
            format!(
                "DELETE FROM {name}; INSERT INTO {name} ({columns}) SELECT {columns} FROM {copy};"
            )
        });
        let back = back.collect::<Vec<_>>().join(" ");
        let copies = tables.iter().map(|table| table.copy.as_str()).collect::<Vec<_>>().join(", ");
        let text = format!(
            "SET SESSION foreign_key_checks = 0; START TRANSACTION; {back} COMMIT; DROP TABLE {copies}"
        );
        await_answer("bring all tables back", conn.batch_execute(&text)).await
    }
}
