//! The statements about the processes that announce themselves, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Binary, Text};
use uuid::Uuid;

use super::InMillis;
use crate::store::nodes::{NodeColumns, NodeEntry};
use crate::store::statement::statement;

statement! {
    /// The process is there.
    Announce in D: InMillis, rows sql_types::Untyped,
    { id: Vec<u8>, name: String, build: String, definitions: String },
    "INSERT INTO atomic_phases_nodes (id, name, build, definitions, started_at, seen_at) VALUES (", id, ", ",
    name, ", ", build, ", ", definitions, ", ", (D::CLOCK), ", ", (D::CLOCK), ")", (D::UPDATES_NODE)
}

impl Announce {
    pub(in crate::store) fn new(node: &NodeEntry) -> Self {
        let NodeEntry { id, name, build, definitions } = node.clone();
        Self { id: id.as_bytes().to_vec(), name, build, definitions }
    }
}

statement! {
    /// Who was not seen for a day is forgotten.
    Forget in D: InMillis, rows sql_types::Untyped, {},
    "DELETE FROM atomic_phases_nodes WHERE seen_at < ", (D::CLOCK), " - 86400000"
}

statement! {
    /// The process ends.
    Depart in D: InMillis, rows sql_types::Untyped, { id: Vec<u8> },
    "DELETE FROM atomic_phases_nodes WHERE id = ", id
}

statement! {
    /// The processes, those that were seen last first.
    Nodes in D: InMillis, rows NodeSql, {},
    "SELECT id, name, build, definitions, started_at, seen_at, ", (D::CLOCK),
    " FROM atomic_phases_nodes ORDER BY seen_at DESC LIMIT 1000"
}

statement! {
    /// 1 if a process was seen within this time, otherwise 0.
    SawNode in D: InMillis, rows BigInt, { within_ms: i64 },
    "SELECT count(*) FROM (SELECT 1 FROM atomic_phases_nodes WHERE seen_at >= ", (D::CLOCK), " - ", within_ms,
    " LIMIT 1) AS seen"
}

type NodeSql = ((Binary, Text, Text, Text), (BigInt, BigInt, BigInt));

pub(in crate::store) type StoredNode = ((Vec<u8>, String, String, String), (i64, i64, i64));

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(in crate::store) fn stored_node(
    ((id, name, build, definitions), times): StoredNode,
) -> Option<NodeColumns> {
    let time = DateTime::from_timestamp_millis;
    let entry = (Uuid::from_slice(&id).ok()?, name, build, definitions);
    Some((entry, (time(times.0)?, time(times.1)?, time(times.2)?)))
}
