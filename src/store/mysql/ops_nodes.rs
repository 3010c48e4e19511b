//! The statements about the processes that run workers: those of `store::postgres::ops_nodes`, with owned values.

use chrono::DateTime;
use diesel::mysql::Mysql as Db;
use diesel::sql_types::{self, BigInt, Binary, Text};
use uuid::Uuid;

use super::statements::CLOCK;
use crate::store::nodes::{NodeColumns, NodeEntry};
use crate::store::statement::statement;

statement! {
    /// Who was not seen for a day is forgotten.
    Forget for Db, rows sql_types::Untyped, {},
    "DELETE FROM atomic_phases_nodes WHERE seen_at < ", [CLOCK], " - 86400000"
}

statement! {
    /// The process is there.
    Announce for Db, rows sql_types::Untyped,
    { id: Vec<u8>, name: String, build: String, definitions: String },
    "INSERT INTO atomic_phases_nodes (id, name, build, definitions, started_at, seen_at) VALUES (", id, ", ",
    name, ", ", build, ", ", definitions, ", ", [CLOCK], ", ", [CLOCK],
    ") ON DUPLICATE KEY UPDATE name = VALUES(name), build = VALUES(build), \
     definitions = VALUES(definitions), seen_at = VALUES(seen_at)"
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
    Nodes for Db, rows ((Binary, Text, Text, Text), (BigInt, BigInt, BigInt)), {},
    "SELECT id, name, build, definitions, started_at, seen_at, ", [CLOCK],
    " FROM atomic_phases_nodes ORDER BY seen_at DESC LIMIT 1000"
}

pub(super) type NodeMy = ((Vec<u8>, String, String, String), (i64, i64, i64));

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(super) fn node(((id, name, build, definitions), times): NodeMy) -> Option<NodeColumns> {
    let time = DateTime::from_timestamp_millis;
    let entry = (Uuid::from_slice(&id).ok()?, name, build, definitions);
    Some((entry, (time(times.0)?, time(times.1)?, time(times.2)?)))
}
