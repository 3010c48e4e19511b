//! The statements about the processes that announce themselves.

use diesel::pg::Pg;
use diesel::sql_types::{self, Bool, Text, Uuid as SqlUuid};
use uuid::Uuid;

use super::timestamptz::Timestamptz;
use crate::store::nodes::NodeEntry;
use crate::store::statement::statement;

statement! {
    /// The process is there; a process that was not there for a day is forgotten.
    Announce<'a> for Pg, rows sql_types::Untyped,
    { id: Uuid, name: &'a str, build: &'a str, definitions: &'a str },
    "WITH forgotten AS (DELETE FROM atomic_phases_nodes WHERE seen_at < clock_timestamp() - interval '1 day') \
     INSERT INTO atomic_phases_nodes (id, name, build, definitions, started_at, seen_at) VALUES (", id, ", ",
    name, ", ", build, ", ", definitions, ", clock_timestamp(), clock_timestamp()) ON CONFLICT (id) DO UPDATE \
     SET name = excluded.name, build = excluded.build, definitions = excluded.definitions, seen_at = excluded.seen_at"
}

impl<'a> Announce<'a> {
    pub(super) fn new(node: &'a NodeEntry) -> Self {
        let NodeEntry { id, name, build, definitions } = node;
        Self { id: *id, name, build, definitions }
    }
}

statement! {
    /// The process ends.
    Depart for Pg, rows sql_types::Untyped, { id: Uuid },
    "DELETE FROM atomic_phases_nodes WHERE id = ", id
}

statement! {
    /// The processes, those that were seen last first.
    Nodes for Pg, rows ((SqlUuid, Text, Text, Text), (Timestamptz, Timestamptz, Timestamptz)), {},
    "SELECT id, name, build, definitions, started_at, seen_at, clock_timestamp() FROM atomic_phases_nodes \
     ORDER BY seen_at DESC LIMIT 1000"
}

statement! {
    /// Whether a process was seen within this time.
    SawNode for Pg, rows Bool, { within_ms: i64 },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_nodes WHERE seen_at >= clock_timestamp() - ", within_ms,
    " * interval '1 millisecond')"
}
