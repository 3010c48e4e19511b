//! The statements about the processes that announce themselves: those of `store::postgres::ops_nodes`, with owned values.

use diesel::sql_types;
use diesel::sqlite::Sqlite as Db;

use super::statements::NOW;
pub(super) use crate::store::in_millis::nodes::*;
use crate::store::nodes::NodeEntry;
use crate::store::statement::statement;

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
