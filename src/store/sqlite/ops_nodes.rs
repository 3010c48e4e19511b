//! The statements about the processes that run workers: those of `store::postgres::ops_nodes`, with owned values.

use diesel::sql_types;
use diesel::sqlite::Sqlite as Db;

use super::sql::NOW;
use crate::store::in_millis::NodeSql;
use crate::store::nodes::NodeEntry;
use crate::store::statement::statement;

statement! {
    /// Who was not seen for a day is forgotten.
    Forget for Db, rows sql_types::Untyped, {},
    "DELETE FROM atomic_phases_nodes WHERE seen_at < ", [NOW], " - 86400000"
}

statement! {
    /// The process is there.
    Announce for Db, rows sql_types::Untyped,
    { id: Vec<u8>, name: String, build: String, definitions: String },
    "INSERT INTO atomic_phases_nodes (id, name, build, definitions, started_at, seen_at) VALUES (", id, ", ",
    name, ", ", build, ", ", definitions, ", ", [NOW], ", ", [NOW],
    ") ON CONFLICT (id) DO UPDATE SET name = excluded.name, build = excluded.build, \
     definitions = excluded.definitions, seen_at = excluded.seen_at"
}

impl Announce {
    pub(super) fn new(node: &NodeEntry) -> Self {
        let NodeEntry { id, name, build, definitions } = node.clone();
        Self { id: id.as_bytes().to_vec(), name, build, definitions }
    }
}

statement! {
    /// The process ends.
    Depart for Db, rows sql_types::Untyped, { id: Vec<u8> },
    "DELETE FROM atomic_phases_nodes WHERE id = ", id
}

statement! {
    /// The processes, those that were seen last first.
    Nodes for Db, rows NodeSql, {},
    "SELECT id, name, build, definitions, started_at, seen_at, ", [NOW],
    " FROM atomic_phases_nodes ORDER BY seen_at DESC LIMIT 1000"
}
